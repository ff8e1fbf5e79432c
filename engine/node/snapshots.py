"""Snapshots of the whole store, as the member takes them that a client asked (Q5).

    pin to all that serve anything -> all pinned -> resume to all -> all have held -> answered

What a snapshot shows of transactions that were prepared at the pins: one of which each of its
groups says that it is prepared there, or has committed.

Invariants:

- All pins are of one decision, and there was an instant at which all members held.
- Answers to another attempt are dropped.

Left out: what a member pins (``pinning``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...affinity.errors import SnapshotExpiredError
from ...affinity.topology import Incarnation, Topology
from .partitions import Partitions, RoutedError
from .post import Post
from .tx_messages import PinnedHere, pin_message, resume_message

ATTEMPTS_MAX = 5
ATTEMPT_S_MAX = 0.5
"""Seconds that an attempt may take."""


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """A snapshot that was taken: who has which partitions of it, and what it shows beside them."""

    snapshot: bytes
    members: dict[Incarnation, list[int]]
    shown: list[bytes]


HearSnapshot = Callable[[TakenSnapshot | Exception], None]


@dataclass(slots=True, eq=False)
class _Taking:
    snapshot: bytes
    done: HearSnapshot
    deadline: float
    attempt: int = 0
    decided: int = 0
    since: float = 0.0
    waits: set[Incarnation] = field(default_factory=set)
    pinned: dict[Incarnation, PinnedHere] = field(default_factory=dict)
    held: bool = False
    """Whether all have pinned, and are told to go on."""


class Snapshots:
    """The snapshots that one incarnation takes."""

    def __init__(
        self,
        me: Incarnation,
        partitions: Partitions,
        post: Post,
        new_id: Callable[[], bytes],
        now: Callable[[], float],
    ) -> None:
        self._me = me
        self._partitions = partitions
        self._post = post
        self._new_id = new_id
        self._now = now
        self._topology = Topology()
        self._taking: dict[bytes, _Taking] = {}

    def __repr__(self) -> str:
        return f"<Snapshots: {len(self._taking)} are being taken>"

    def take(self, deadline: float, done: HearSnapshot) -> None:
        """Take a snapshot; ``done`` hears of it, or why there is none."""
        taking = _Taking(self._new_id(), done, deadline)
        self._taking[taking.snapshot] = taking
        self._try(taking)

    def _try(self, taking: _Taking) -> None:
        topology = self._topology
        authors = {copies.author for copies in topology.partitions}
        for partition, copies in enumerate(topology.partitions):
            if not topology.is_present(copies.author):
                self._end(taking, self._partitions.refusal(partition, self._now()))
                return
        if taking.attempt == ATTEMPTS_MAX:
            why = f"no moment was found in {ATTEMPTS_MAX} attempts at which all members held"
            self._end(taking, SnapshotExpiredError(f"no snapshot was taken: {why}"))
            return
        taking.attempt += 1
        taking.decided, taking.since, taking.held = topology.index, self._now(), False
        taking.waits, taking.pinned = set(authors), {}
        message = pin_message(taking.snapshot, taking.attempt, taking.decided)
        for author in self._in_turn(authors):
            self._post.tell(author, message)

    def _in_turn(self, members: Iterable[Incarnation]) -> list[Incarnation]:
        """Return members, this one last: it answers at once, which may begin the next attempt."""
        return sorted(members, key=lambda member: (member == self._me, member))

    def pinned(self, sender: Incarnation, told: PinnedHere) -> None:
        """Take it that a member has pinned what it serves."""
        taking = self._taking.get(told.snapshot)
        if taking is None or taking.held or told.attempt != taking.attempt:
            return
        if sender not in taking.waits or told.decided != taking.decided:
            return
        taking.waits.remove(sender)
        taking.pinned[sender] = told
        if not taking.waits:
            taking.held, taking.waits = True, set(taking.pinned)
            self._resume(taking)

    def _resume(self, taking: _Taking) -> None:
        message = resume_message(taking.snapshot, taking.attempt)
        for member in self._in_turn(taking.pinned):
            self._post.tell(member, message)

    def held(self, sender: Incarnation, snapshot: bytes, attempt: int, *, still: bool) -> None:
        """Take it that a member goes on, and whether it has held until then."""
        taking = self._taking.get(snapshot)
        if taking is None or not taking.held or attempt != taking.attempt:
            return
        if not still:
            self._try(taking)
            return
        taking.waits.discard(sender)
        if taking.waits:
            return
        members = {member: told.partitions for member, told in taking.pinned.items()}
        count = len(self._topology.partitions)
        if sum(map(len, members.values())) < count:
            self._try(taking)  # something was about to be opened
        else:
            self._end(taking, TakenSnapshot(snapshot, members, shown_of(taking.pinned.values())))

    def _end(self, taking: _Taking, result: TakenSnapshot | Exception) -> None:
        del self._taking[taking.snapshot]
        taking.done(result)

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self._topology = topology

    def tick(self) -> None:
        """Try again, or give up, what takes too long."""
        now = self._now()
        for taking in list(self._taking.values()):
            if now > taking.deadline:
                self._end(taking, RoutedError("wait", "members have not answered"))
            elif now > taking.since + ATTEMPT_S_MAX:
                if not taking.held:
                    self._resume(taking)
                self._try(taking)


def shown_of(pins: Iterable[PinnedHere]) -> list[bytes]:
    """Return the transactions, prepared at pins, that a snapshot shows."""
    parts: dict[bytes, set[int]] = {}
    having: dict[bytes, set[int]] = {}
    for pin in pins:
        for partition, tx_id, participants in pin.prepared:
            parts[tx_id] = set(participants)
            having.setdefault(tx_id, set()).add(partition)
        for partition, tx_id in pin.committed:
            having.setdefault(tx_id, set()).add(partition)
    return sorted(tx_id for tx_id, needed in parts.items() if having[tx_id] >= needed)
