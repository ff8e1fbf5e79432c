"""What a fold knows of partitions that have other copies: prepared transactions, settle lists.

A transaction of such a partition comes in two records: PREPARE has its updates and numbers, and
COMMIT, COMMIT_UPTO, ROLLBACK or a settle list say later what became of it.  In between it is
*pending*: its numbers are given out (HWM), and not applied (LWM stands still below them).

An example, of one partition in epoch 1:

======================================= ======= ===== ============= ============================
record                                  LWM     HWM   out of order  pending
======================================= ======= ===== ============= ============================
PREPARE A, numbers 1 and 2              0       2     \\-            A
PREPARE B, number 3                     0       3     \\-            A, B
COMMIT B                                0       3     (2, 1)        A
SETTLE epoch 2 from 4: A rolled back    0       3     (2, 1)        A
OPEN epoch 2                            3       3     \\-            \\-
======================================= ======= ===== ============= ============================

Invariants:

- A settle list has no effect before its OPEN; a newer list replaces one without.
- A pending transaction ends once: with its updates taken over, or with its numbers closed.
- CLEAR and ADMIT drop what is pending, for a copy that was away decides nothing.
- A copy that was admitted is whole again once every number up to HWM is applied or pending.
- A commit of several partitions is *remembered* until all of them have it, for others that do not
  know ask about it.
- What has *ended* here and may be pending at another copy, or unknown to it, is known: numbers that
  were rolled back or closed, and commits of several partitions with their time.  In a takeover the
  others settle alike by it.  What commits by COMMIT_UPTO has the time of its PREPARE at each copy.

How much of that there is: a stream reaches each copy in order, and what commits was prepared at all
of them.  So once a transaction commits whose PREPARE came behind the end of another one, that end
has reached every copy that is waited for, and is forgotten here.  What is left are the ends since
the PREPARE of the last commit; OPEN, CLEAR and ADMIT leave nothing of them.

At a checkpoint all this is kept as it stands in the log, as one entry for each transaction and for
the list (``entries``, ``restore``).  Ends stand among prepared transactions in the order of the
log, since only the PREPAREs behind them make them forgotten.

Left out: where these entries lie (the data file), and whether a copy that is whole counts (the
topology).  A copy that was away knows the ends of older
transactions by its supply, and not here: who takes it in waits until every other copy has stored
the stream up to its admission.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from ..wal.records import (
    Columns,
    CommitRecord,
    Committed,
    OutcomesRecord,
    Pending,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    SettleRecord,
)

OUTCOMES_MAX = 1024
"""Transactions of one record of what is remembered."""


class CopyState(IntEnum):
    """What a copy of a partition is good for."""

    OWNING = 0
    """It is whole."""
    MOVING = 1
    """It is being brought up to its group: what it lacks may come in any order."""
    NOT_WHOLE = 2
    """What it holds counts for nothing."""
    QUARANTINED = 3
    """Damage was found in it."""


class Prepared:
    """The transactions that are pending in one partition, by id, in the order of their numbers."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[bytes, PrepareRecord | Pending] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, prepared: PrepareRecord | Pending) -> None:
        """Take in a transaction; done twice it does the same."""
        self._found[prepared.tx_id] = prepared

    def take(self, tx_id: bytes, run: Run) -> PrepareRecord | Pending | None:
        """Take a transaction out, if it is pending with these numbers."""
        prepared = self._found.get(tx_id)
        if prepared is None or prepared.run != run:
            return None
        return self._found.pop(tx_id)

    def take_upto(self, epoch: int, last: int) -> list[PrepareRecord | Pending]:
        """Take out those of an epoch up to a number that write this partition alone."""
        found = [
            prepared
            for prepared in self._found.values()
            if prepared.run.epoch == epoch
            and prepared.run.first + prepared.run.count - 1 <= last
            and (isinstance(prepared, Pending) or len(prepared.participants) == 1)
        ]
        for prepared in found:
            del self._found[prepared.tx_id]
        return sorted(found, key=lambda prepared: prepared.run.first)

    def keep(self, known: set[tuple[bytes, Run]]) -> None:
        """Drop all but some, which are told by id and numbers: another attempt has others."""
        self._found = {
            tx_id: one for tx_id, one in self._found.items() if (tx_id, one.run) in known
        }

    def all(self) -> list[PrepareRecord | Pending]:
        """Return them, in the order of their numbers."""
        return sorted(self._found.values(), key=lambda prepared: prepared.run.first)


def numbers_ended(record: RollbackRecord | CommitRecord) -> Run:
    """Return the numbers of the one partition of which ``Copies`` keeps a record."""
    return record.runs[0] if isinstance(record, RollbackRecord) else record.participants[0]


def columns_prepared(prepared: PrepareRecord | Pending) -> Columns | None:
    """Return the updates of a prepared transaction; None if only its numbers are known."""
    if isinstance(prepared, Pending):
        return None
    return Columns(prepared.namespaces, prepared.keys, prepared.values)


class _EndedBehind(NamedTuple):
    """The end of a transaction, and the highest number that was prepared before it."""

    prepared: int
    record: RollbackRecord | CommitRecord


class Copies:
    """What is known of each partition beside its counter and its epochs; most have nothing."""

    def __init__(self) -> None:
        self.pending: dict[int, Prepared] = {}
        self.ended: dict[int, deque[_EndedBehind]] = {}
        """What has ended, and maybe not at every copy; empty for a store of its own."""
        self.remembered: dict[int, dict[bytes, Committed]] = {}
        """Commits of several partitions that others may ask about, by partition and id."""
        self.lists: dict[int, SettleRecord] = {}
        """Settle lists whose epoch has not opened."""
        self.states: dict[int, CopyState] = {}
        self.admissions: dict[int, int] = {}
        self.moves = 0
        """How often a CLEAR or an ADMIT was folded in, since this fold began."""
        self.sealed: dict[int, int] = {}

    def prepared(self, partition: int) -> Prepared:
        """Return what is pending in a partition."""
        found = self.pending.get(partition)
        if found is None:
            found = self.pending[partition] = Prepared()
        return found

    def is_whole(self, partition: int) -> bool:
        """Tell whether this is a copy that has once been open, and lacks nothing of that."""
        state = self.states.get(partition, CopyState.OWNING)
        return partition in self.sealed and state is CopyState.OWNING

    def remember(self, prepared: PrepareRecord | Pending, time: int) -> None:
        """Note that a transaction has committed; of one of a single partition nobody asks."""
        if isinstance(prepared, PrepareRecord) and len(prepared.participants) > 1:
            tx_id, attempt, run = prepared.tx_id, prepared.attempt, prepared.run
            self.remembered.setdefault(run.partition, {})[tx_id] = Committed(
                tx_id, attempt, prepared.near, time, run, prepared.participants
            )

    def take_outcomes(self, record: OutcomesRecord) -> None:
        """Remember what others may ask about, and forget what nobody does."""
        known = self.remembered.setdefault(record.partition, {})
        known.update((one.tx_id, one) for one in record.committed)
        for tx_id in record.forgotten:
            known.pop(tx_id, None)
        if not known:
            del self.remembered[record.partition]

    def outcomes(self, partition: int) -> list[OutcomesRecord]:
        """Return what is remembered of a partition, as records of some transactions each."""
        known = list(self.remembered.get(partition, {}).values())
        return [
            OutcomesRecord(partition=partition, committed=tuple(known[at : at + OUTCOMES_MAX]))
            for at in range(0, len(known), OUTCOMES_MAX)
        ]

    def end(self, partition: int, prepared: int, record: RollbackRecord | CommitRecord) -> None:
        """Note that a transaction ended; ``prepared`` is the highest number given out by then."""
        run = numbers_ended(record)
        found = self.ended.setdefault(partition, deque())
        if not found or numbers_ended(found[-1].record) != run:  # else a signal came behind it
            found.append(_EndedBehind(prepared, record))

    def commit(self, run: Run) -> None:
        """Forget the ends that every copy has, since these numbers have committed."""
        found = self.ended.get(run.partition)
        if found is not None:
            while found and found[0].prepared < run.first:
                found.popleft()
            if not found:
                del self.ended[run.partition]

    def ended_of(self, partition: int) -> list[RollbackRecord | CommitRecord]:
        """Return the ends that some copy may lack, in the order of the log."""
        return [one.record for one in self.ended.get(partition, ())]

    def entries(self, partition: int) -> list[Record]:
        """Return what a checkpoint keeps: transactions and their ends, outcomes, then the list."""
        prepared = self.pending.get(partition)
        found: list[Record] = []
        ended = deque(self.ended.get(partition, ()))
        for one in prepared.all() if prepared is not None else ():
            assert isinstance(one, PrepareRecord), "a store's own fold has the updates"
            while ended and ended[0].prepared < one.run.first:
                found.append(ended.popleft().record)
            found.append(one)
        found += [one.record for one in ended]
        found += self.outcomes(partition)
        return [*found, self.lists[partition]] if partition in self.lists else found

    def restore(self, partition: int, entries: Iterable[Record]) -> None:
        """Take in what ``entries`` returned."""
        highest = 0
        for entry in entries:
            if isinstance(entry, SettleRecord):
                self.lists[partition] = entry
            elif isinstance(entry, PrepareRecord):
                self.prepared(partition).add(entry)
                highest = entry.run.first + entry.run.count - 1
            elif isinstance(entry, OutcomesRecord):
                self.take_outcomes(entry)
            elif isinstance(entry, RollbackRecord | CommitRecord):
                self.end(partition, highest, entry)

    def open(self, partition: int, epoch: int) -> None:
        """Take it that an epoch is open: the copy is whole, and has settled as all others have."""
        self.ended.pop(partition, None)
        self.states[partition] = CopyState.OWNING
        self.sealed[partition] = max(epoch, self.sealed.get(partition, 0))

    def forget(self, partition: int) -> None:
        """Drop what is pending, unopened or remembered, for the copy has to begin anew."""
        self.pending.pop(partition, None)
        self.ended.pop(partition, None)
        self.remembered.pop(partition, None)
        self.lists.pop(partition, None)
