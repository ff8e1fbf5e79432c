"""What the partitions served here have to do with transactions of several groups.

A *work* is what one partition has to do with one transaction:

========== ============================================================= =========================
phase      what holds                                                    it ends by
========== ============================================================= =========================
locking    its keys are locked, an older write of one is on its way      that has been applied
locked     its keys are locked                                           prepare, unlock, time
preparing  its PREPARE is on its way to all copies                       all have it; refused
prepared   all have it, and somebody may have been told so (T6)          a decision
ending     COMMIT or ROLLBACK is on its way into the log                 it has taken effect
========== ============================================================= =========================

Each is found by its place, by its transaction, by who holds its locks, and by what its near member
has asked, however many there are.

Left out: what becomes of a work (``commit_locks``, ``participating``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from ...affinity.topology import Incarnation, incarnation_of
from ...wal.records import Participant, PrepareRecord, Run
from .tx_messages import GroupOutcome, PreparedPart

K = TypeVar("K")
L = TypeVar("L")

DECISION_TIMEOUT_S = 1.0
"""Seconds after which a prepared transaction without a decision is asked about (T10)."""

WorkPhase = Literal["locking", "locked", "preparing", "prepared", "ending"]


@dataclass(slots=True, eq=False)
class Work:
    """What one partition has to do with one transaction."""

    partition: int
    epoch: int
    """In which it is prepared."""
    tx_id: bytes
    attempt: int
    near: Incarnation
    ask: int
    owner: int
    """Of its locks."""
    keys: frozenset[bytes]
    phase: WorkPhase
    until: float = float("inf")
    """When locks without a PREPARE are let go."""
    was_locked: bool = False
    """Whether its locks are older than its PREPARE (T3)."""
    participants: tuple[Participant, ...] = ()
    run: Run | None = None
    time: int = 0
    is_lost: bool = False
    """Whether a snapshot was taken before its PREPARE was in the log."""
    told: set[Incarnation] = field(default_factory=set)
    """Who is to hear that it is prepared."""
    decided: GroupOutcome | None = None
    answers: dict[int, PreparedPart] = field(default_factory=dict)
    """What other groups have said to this one, by partition."""
    too_old: set[int] = field(default_factory=set)
    """The other partitions that cannot tell what became of it (T9)."""
    ask_at: float = float("inf")
    pause: float = DECISION_TIMEOUT_S

    @property
    def name(self) -> tuple[bytes, int]:
        """Id and attempt."""
        return self.tx_id, self.attempt

    @property
    def holds_only(self) -> bool:
        """Whether it has locks, and nothing of it is on its way into a log."""
        return self.phase in ("locking", "locked")

    def part(self) -> PreparedPart:
        """Return what is said of it once it is prepared."""
        assert self.run is not None
        return PreparedPart(self.tx_id, self.attempt, self.run, self.time)


class Works:
    """The works of all partitions that one incarnation serves."""

    def __init__(self) -> None:
        self._count = 0
        self._by_partition: dict[int, dict[bytes, Work]] = {}
        self._by_id: dict[bytes, dict[int, Work]] = {}
        self._by_owner: dict[int, Work] = {}
        self._asked: dict[tuple[Incarnation, int, int], Work] = {}
        """Those that hold locks only, by near member, ask and partition."""

    def __repr__(self) -> str:
        return f"<Works {len(self)}>"

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Work]:
        """Yield those that are here now; any of them may go meanwhile."""
        return iter([work for found in self._by_partition.values() for work in found.values()])

    def add(self, work: Work) -> None:
        """Take a work; it replaces an earlier one of its transaction there."""
        earlier = self.at(work.partition, work.tx_id)
        if earlier is not None:
            self.remove(earlier)
        self._count += 1
        self._by_partition.setdefault(work.partition, {})[work.tx_id] = work
        self._by_id.setdefault(work.tx_id, {})[work.partition] = work
        self._by_owner[work.owner] = work
        if work.holds_only:
            self._asked[work.near, work.ask, work.partition] = work

    def enter_preparing(self, work: Work) -> None:
        """Let a work hold more than locks from now on."""
        work.phase, work.until = "preparing", float("inf")
        self._asked.pop((work.near, work.ask, work.partition), None)

    def remove(self, work: Work) -> None:
        """Forget a work, if it is here."""
        found = self._by_partition.get(work.partition, {})
        if found.get(work.tx_id) is not work:
            return
        self._count -= 1
        _remove(self._by_partition, work.partition, work.tx_id)
        _remove(self._by_id, work.tx_id, work.partition)
        del self._by_owner[work.owner]
        self._asked.pop((work.near, work.ask, work.partition), None)

    def at(self, partition: int, tx_id: bytes) -> Work | None:
        """Return what a partition has to do with a transaction."""
        return self._by_partition.get(partition, {}).get(tx_id)

    def within(self, partition: int) -> list[Work]:
        """Return the works of a partition."""
        return list(self._by_partition.get(partition, {}).values())

    def of(self, tx_id: bytes) -> list[Work]:
        """Return what partitions here have to do with a transaction."""
        return list(self._by_id.get(tx_id, {}).values())

    def prepared(self) -> list[Work]:
        """Return the works that wait for a decision."""
        return [work for work in self if work.phase == "prepared"]

    def holding(self) -> list[Work]:
        """Return the works that hold locks only."""
        return list(self._asked.values())

    def asked(self, near: Incarnation, ask: int, partition: int) -> Work | None:
        """Return the work that holds the locks a near member has asked for, and no more."""
        return self._asked.get((near, ask, partition))

    def is_ending(self, owner: int) -> bool:
        """Tell whether locks go once the end of a transaction is in the log."""
        work = self._by_owner.get(owner)
        return work is not None and work.phase == "ending"


def _remove(found: dict[K, dict[L, Work]], outer: K, inner: L) -> None:
    some = found[outer]
    del some[inner]
    if not some:
        del found[outer]


def near_of(prepared: PrepareRecord) -> Incarnation:
    """Return the incarnation that led a transaction."""
    return incarnation_of(*prepared.near)
