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

At a checkpoint what is pending is kept as it stands in the log, as one entry for each transaction
and for the list (``entries``, ``restore``).

Left out: where these entries lie (the data file).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from ..wal.records import Columns, Pending, PrepareRecord, Record, Run, SettleRecord


class CopyState(IntEnum):
    """What a copy of a partition is good for."""

    OWNING = 0
    """It is whole, and counts."""
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

    def keep(self, ids: set[bytes]) -> None:
        """Drop all but some."""
        self._found = {tx_id: one for tx_id, one in self._found.items() if tx_id in ids}

    def all(self) -> list[PrepareRecord | Pending]:
        """Return them, in the order of their numbers."""
        return sorted(self._found.values(), key=lambda prepared: prepared.run.first)


def columns_prepared(prepared: PrepareRecord | Pending) -> Columns | None:
    """Return the updates of a prepared transaction; None if only its numbers are known."""
    if isinstance(prepared, Pending):
        return None
    return Columns(prepared.namespaces, prepared.keys, prepared.values)


class Copies:
    """What is known of each partition beside its counter and its epochs; most have nothing."""

    def __init__(self) -> None:
        self.pending: dict[int, Prepared] = {}
        self.lists: dict[int, SettleRecord] = {}
        """Settle lists whose epoch has not opened."""
        self.states: dict[int, CopyState] = {}
        self.admissions: dict[int, int] = {}
        self.sealed: dict[int, int] = {}

    def prepared(self, partition: int) -> Prepared:
        """Return what is pending in a partition."""
        found = self.pending.get(partition)
        if found is None:
            found = self.pending[partition] = Prepared()
        return found

    def entries(self, partition: int) -> list[Record]:
        """Return what a checkpoint keeps of a partition: prepared transactions, then the list."""
        prepared = self.pending.get(partition)
        found: list[Record] = []
        for one in prepared.all() if prepared is not None else ():
            assert isinstance(one, PrepareRecord), "a store's own fold has the updates"
            found.append(one)
        return [*found, self.lists[partition]] if partition in self.lists else found

    def restore(self, partition: int, entries: Iterable[Record]) -> None:
        """Take in what ``entries`` returned."""
        for entry in entries:
            if isinstance(entry, SettleRecord):
                self.lists[partition] = entry
            elif isinstance(entry, PrepareRecord):
                self.prepared(partition).add(entry)

    def forget(self, partition: int) -> None:
        """Drop what is pending and unopened, for the copy has to begin anew."""
        self.pending.pop(partition, None)
        self.lists.pop(partition, None)
