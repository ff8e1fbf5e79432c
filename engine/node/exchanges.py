"""The exchanges that one incarnation of a member saw lately, and how its takeovers went.

    decided -> begun, for each partition that is to be opened here -> opened, or superseded

Pure: it is told what happens, and when.

Invariants:

- At most ``EXCHANGES_MAX`` are remembered; of what is over sums are kept, and no takeover.
- A takeover is over once: it is opened, or a later epoch was decided before that was known.
- Who opens a partition tells of its phases; whether it is over all members tell, as far as the log
  says so: of an epoch with one copy it never says that it is open.

Left out: why an exchange begins (``affinity.causes``), and what is done (``groups``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple, get_args
from uuid import UUID

from ...affinity.causes import Exchange, exchange_of
from ...affinity.changes import Decision, Takeover
from ...affinity.folding import applied
from ...affinity.topology import Incarnation, Topology
from ..replication.opening import OpeningEpoch, Phase

EXCHANGES_MAX = 64
"""Exchanges that a member remembers."""
_PHASES: tuple[Phase, ...] = get_args(Phase)


class Longest(NamedTuple):
    """The longest of some times: of which partition, and which copy was waited for until then."""

    seconds: float
    partition: int
    copy: Incarnation | None = None


class _Times:
    """What took longest, as a whole and in each phase."""

    def __init__(self) -> None:
        self.closed: Longest | None = None
        self.phases: dict[Phase, Longest] = {}

    def copy(self) -> _Times:
        """Return the same times, to be gone on with."""
        other = _Times()
        other.closed, other.phases = self.closed, dict(self.phases)
        return other

    def take(self, takeover: OpeningEpoch, now: float) -> None:
        """Take in how long a takeover has lasted by now."""
        steps, partition = takeover.steps(now), takeover.partition
        whole = Longest(sum(step.seconds for step in steps), partition)
        self.closed = _longer(self.closed, whole)
        for phase, seconds, last in steps:
            self.phases[phase] = _longer(self.phases.get(phase), Longest(seconds, partition, last))


class _Share:
    """The takeovers of an exchange that have one author: how many, and how many are over how."""

    def __init__(self) -> None:
        self.count = 0
        self.opened = 0
        self.superseded: dict[int, int] = {}
        """By the decision that gave the next epoch."""
        self.ended = 0
        """Behind which the next epoch came, and only the author knew whether it was open."""


class _Course:
    """How an exchange goes on, as far as its takeovers are over."""

    def __init__(self, exchange: Exchange, now: float) -> None:
        self.index = exchange.index
        self.causes = exchange.causes
        self.copies = exchange.removed, exchange.admitted, exchange.added
        self.since = now
        self.times = _Times()
        self.shares: dict[UUID, _Share] = {}
        for takeover in exchange.takeovers:
            self.shares.setdefault(takeover.author.member, _Share()).count += 1


class _Going:
    """A takeover that is not known to be over, and how far it is if it is done here."""

    def __init__(self, course: _Course, takeover: Takeover) -> None:
        self.course = course
        self.share = course.shares[takeover.author.member]
        self.epoch = takeover.epoch
        self.is_shared = len(takeover.in_sync) > 1
        self.here: OpeningEpoch | None = None


class ExchangeRecord:
    """The newest exchanges that were seen since a topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._courses: deque[_Course] = deque(maxlen=EXCHANGES_MAX)
        self._going: dict[int, _Going] = {}

    def __repr__(self) -> str:
        return f"<ExchangeRecord of {len(self._courses)}, {self._topology}>"

    # -------------------------------------------------------------- what happens

    def decided(self, topology: Topology, decisions: Iterable[Decision], now: float) -> None:
        """Take decisions up to that of a topology; ``decisions`` are those that are known still.

        If some of those in between are not, nothing is told of any.
        """
        for decision in decisions:
            if decision.index == self._topology.index + 1 <= topology.index:
                newest = decision.index == topology.index
                after = topology if newest else applied(self._topology, decision)
                self._take(decision, after, now)
                self._topology = after
        self._topology = topology
        for partition, going in list(self._going.items()):
            copies = topology.partitions[partition]
            if copies.epoch != going.epoch:
                self._supersede(partition, copies.changed, now)
            elif copies.opened and going.here is None:
                del self._going[partition]
                going.share.opened += 1

    def _take(self, decision: Decision, after: Topology, now: float) -> None:
        exchange = exchange_of(self._topology, decision, after)
        if exchange is None:
            return
        course = _Course(exchange, now)
        self._courses.append(course)
        for takeover in exchange.takeovers:
            self._supersede(takeover.partition, decision.index, now)
            self._going[takeover.partition] = _Going(course, takeover)

    def begun(self, takeover: OpeningEpoch) -> None:
        """Hear that a partition is about to be opened here."""
        going = self._going.get(takeover.partition)
        if going is not None and going.epoch == takeover.epoch:
            going.here = takeover

    def opened(self, takeover: OpeningEpoch, now: float) -> None:
        """Hear that it is open now."""
        going = self._going.get(takeover.partition)
        if going is not None and going.here is takeover:
            del self._going[takeover.partition]
            going.share.opened += 1
            going.course.times.take(takeover, now)

    def _supersede(self, partition: int, index: int, now: float) -> None:
        """Note that a later epoch was decided, by the decision of an index."""
        going = self._going.pop(partition, None)
        if going is None:
            return
        if going.here is not None:
            going.course.times.take(going.here, now)
        share = going.share
        if going.here is not None or going.is_shared:
            share.superseded[index] = share.superseded.get(index, 0) + 1
        else:
            share.ended += 1

    # -------------------------------------------------------------- what is shown

    def told(self, last: int, now: float) -> list[dict[str, object]]:
        """Return the newest exchanges, the newest last, as members say it to clients."""
        first = max(len(self._courses) - last, 0)
        return [self._told(course, now) for course in islice(self._courses, first, None)]

    def _told(self, course: _Course, now: float) -> dict[str, object]:
        times = course.times.copy()
        blocked: dict[tuple[Phase, tuple[Incarnation, ...]], list[int]] = {}
        for partition, going in sorted(self._going.items()):
            if going.course is course and going.here is not None:
                times.take(going.here, now)
                silent = going.here.waits_for() or sorted(going.here.left_out)
                blocked.setdefault((going.here.phase, tuple(silent)), []).append(partition)
        removed, admitted, added = course.copies
        return {
            "decision": course.index,
            "ago_us": _us(now - course.since),
            "causes": [
                [kind, None if member is None else member.bytes, [one.bytes for one in others], n]
                for kind, member, others, n in course.causes
            ],
            "taken_over": sum(share.count for share in course.shares.values()),
            "removed": removed,
            "admitted": admitted,
            "added": added,
            "authors": [
                [
                    member.bytes,
                    one.count,
                    one.opened,
                    one.ended,
                    list(map(list, one.superseded.items())),
                ]
                for member, one in sorted(course.shares.items())
            ],
            "closed": None
            if times.closed is None
            else [_us(times.closed.seconds), times.closed.partition],
            "phases": [
                [phase, _us(seconds), partition, None if copy is None else copy.member.bytes]
                for phase in _PHASES
                if phase in times.phases
                for seconds, partition, copy in [times.phases[phase]]
            ],
            "blocked": [
                [phase, [copy.member.bytes for copy in silent], partitions]
                for (phase, silent), partitions in blocked.items()
            ],
        }


def _longer(one: Longest | None, other: Longest) -> Longest:
    """Return the longer time; the first of two that are equal."""
    return other if one is None or other.seconds > one.seconds else one


def _us(seconds: float) -> int:
    return max(round(seconds * 1e6), 0)
