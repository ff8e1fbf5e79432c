"""Leases: for how long a coordinator, and each primary, may count on nobody having replaced it.

A member that answers a ping of a term promises no other term for ``lease`` seconds of its own
clock (L2).  So the coordinator knows, from when it *sent* a round of pings that a majority has
answered, until when nobody else can lead; of that it hands out what is left (L3).  A primary
counts what it was handed from when it sent its own answer.  Each hand-over is scaled by what two
clocks may differ.

    coordinator sends round 7 at 100.0, a majority answers: its own lease ends at 101.23
    a primary answered at 50.0 of its own clock; the coordinator hands out 1.1 s at 100.13
    the primary's lease ends at 50.0 + 1.1 * 0.82 = 50.9, by then the coordinator's clock shows at
    most 101.2

Invariants:

- no lease of a primary outlives that of the coordinator that gave it;
- whoever has a majority of promises for a new term knows that every older lease has run out.

Left out: which partitions a lease covers, which is what the log gives its holder (L7).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from ...affinity.changes import BaselineChanged, Decision
from ...affinity.takeovers import GivenUp
from ...affinity.topology import Incarnation, Topology
from .timing import Timing

ROUNDS_MAX = 64
"""Rounds of pings whose times are remembered; an answer to an older one counts for nothing."""

NEVER = float("-inf")
FOREVER = float("inf")


def majority(members: Iterable[UUID]) -> int:
    """Return how many of some members are a majority."""
    return len(list(members)) // 2 + 1


def voting(topology: Topology, proposed: Decision | None) -> tuple[tuple[UUID, ...], ...]:
    """Return the baselines of which each has to give a majority.

    While a baseline changes that are both, the old one and the new one (C4).
    """
    changes = () if proposed is None else proposed.changes
    following = [one.baseline for one in changes if isinstance(one, BaselineChanged)]
    return (topology.baseline, *following)


def has_majorities(members: Collection[UUID], baselines: Iterable[tuple[UUID, ...]]) -> bool:
    """Tell whether some members are a majority of each of some baselines."""
    return all(len({*members} & {*one}) >= majority(one) for one in baselines)


class CoordinatorLease:
    """The coordinator's own lease, and what it has handed out of it."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._sent: dict[int, float] = {}
        self._answered: dict[UUID, int] = {}
        self._handed: dict[Incarnation, float] = {}
        self.round = 0

    def begin_round(self, now: float) -> int:
        """Return the number of a new round of pings, which are sent now."""
        self.round += 1
        self._sent[self.round] = now
        self._sent.pop(self.round - ROUNDS_MAX, None)
        return self.round

    def answered(self, member: UUID, number: int) -> None:
        """Note that a member answered a round, and promised to wait."""
        if number in self._sent:
            self._answered[member] = max(number, self._answered.get(member, 0))

    def newest(self, baselines: Iterable[tuple[UUID, ...]]) -> int:
        """Return the newest round that a majority of each baseline answered; 0 if there is none."""
        return min(map(self._newest, baselines))

    def _newest(self, members: tuple[UUID, ...]) -> int:
        rounds = sorted((self._answered.get(member, 0) for member in members), reverse=True)
        return rounds[majority(members) - 1]

    def end(self, baselines: Iterable[tuple[UUID, ...]]) -> float:
        """Return when the lease ends: counted from the newest round that majorities answered."""
        sent = self._sent.get(self.newest(baselines))
        return NEVER if sent is None else sent + self._timing.scaled(self._timing.lease)

    def hand_out(
        self, holder: Incarnation, baselines: Iterable[tuple[UUID, ...]], now: float
    ) -> float:
        """Return for how long a member may serve from when it answered; 0 if there is no lease."""
        end = self.end(baselines)
        if end <= now:
            return 0.0
        self._handed[holder] = max(end, self._handed.get(holder, NEVER))
        return end - now

    def held_until(self, holder: Incarnation) -> float:
        """Return when the lease that was last handed to an incarnation has surely ended (L4)."""
        return self._handed.get(holder, NEVER)


class PrimaryLease:
    """The lease of a member, by its own clock."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._answers: dict[tuple[object, int], float] = {}
        self.end = NEVER

    def answering(self, term: object, number: int, now: float) -> None:
        """Note when a round of a term was answered, just before the answer leaves."""
        self._answers.setdefault((term, number), now)
        while len(self._answers) > ROUNDS_MAX:
            del self._answers[next(iter(self._answers))]

    def granted(self, term: object, number: int, seconds: float) -> None:
        """Take what a coordinator handed out upon the answer to one of its rounds."""
        answered = self._answers.get((term, number))
        if answered is not None:
            self.end = max(self.end, answered + self._timing.scaled(seconds))

    def give_up(self) -> None:
        """End the lease: this incarnation is out of the topology."""
        self._answers.clear()
        self.end = NEVER


class Released:
    """What a primary gave up by itself: no lease message that follows covers it again (L7)."""

    def __init__(self) -> None:
        self._epochs: dict[int, GivenUp] = {}

    def release(self, partition: int, epoch: int, target: UUID | None = None) -> None:
        """Give a partition up, up to an epoch, in favour of a member if there is one."""
        if not self.covers(partition, epoch):
            self._epochs[partition] = GivenUp(epoch, target)

    def covers(self, partition: int, epoch: int) -> bool:
        """Tell whether an epoch of a partition was given up."""
        return partition in self._epochs and epoch <= self._epochs[partition].epoch

    def epochs(self) -> Mapping[int, GivenUp]:
        """Return the last epoch that was given up, by partition."""
        return dict(self._epochs)
