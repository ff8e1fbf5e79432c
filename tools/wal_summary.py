"""Counts over a log: what ``wal stat`` and ``wal verify`` tell.

Owns ``Tally``, a fold over records, and ``Continuity``, which sees that update numbers go on
without an overlap.

Invariants:

- Memory grows with the number of maps and partitions, not with the log.

Left out: reading the log, and judging its end (``wal.tail``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..wal.records import EpochRecord, NumberedRecord, RollbackRecord, Run, StateRecord
from ..wal.tallies import MapTally
from .text import shown_time
from .wal_records import BadRecord, Entry, Names, Update, time_of, type_of


@dataclass(slots=True)
class PartitionTally:
    """What a log did to one partition: how many updates, and which numbers."""

    updates: int = 0
    first: int = 0
    last: int = 0


@dataclass(slots=True)
class Tally:
    """Counts over records."""

    frames: int = 0
    payload_bytes: int = 0
    updates: int = 0
    largest_transaction: int = 0
    oldest: int | None = None
    newest: int | None = None
    types: Counter[str] = field(default_factory=Counter)
    maps: dict[int, MapTally] = field(default_factory=dict)
    partitions: dict[int, PartitionTally] = field(default_factory=dict)
    _frame: int = -1

    def add(self, entry: Entry, updates: Sequence[Update]) -> None:
        """Count one record with its wanted updates."""
        if entry.frame.position != self._frame:
            self._frame = entry.frame.position
            self.frames += 1
            self.payload_bytes += len(entry.frame.payload)
        self.types[type_of(entry.record)] += 1
        time = time_of(entry.record)
        if time is not None:
            self.oldest = time if self.oldest is None else min(self.oldest, time)
            self.newest = time if self.newest is None else max(self.newest, time)
        self.updates += len(updates)
        self.largest_transaction = max(self.largest_transaction, len(updates))
        for update in updates:
            self._count(update)

    def _count(self, update: Update) -> None:
        found = self.maps.get(update.namespace)
        if found is None:
            found = self.maps[update.namespace] = MapTally()
        found.add((update.key,), (update.value,))
        part = self.partitions.get(update.partition)
        if part is None:
            part = self.partitions[update.partition] = PartitionTally(first=update.counter)
        part.updates += 1
        part.first = min(part.first, update.counter)
        part.last = max(part.last, update.counter)

    def document(self, names: Names) -> dict[str, Any]:
        """Return the counts as data."""
        transactions = self.types["tx"]
        return {
            "frames": self.frames,
            "payload_bytes": self.payload_bytes,
            "records": dict(sorted(self.types.items())),
            "transactions": transactions,
            "updates": self.updates,
            "transactions_per_frame": _ratio(transactions, self.frames),
            "updates_per_transaction": _ratio(self.updates, transactions),
            "largest_transaction": self.largest_transaction,
            "oldest": None if self.oldest is None else shown_time(self.oldest),
            "newest": None if self.newest is None else shown_time(self.newest),
            "maps": [self._map(number, names) for number in sorted(self.maps)],
            "partitions": [self._partition(number) for number in sorted(self.partitions)],
        }

    def _map(self, number: int, names: Names) -> dict[str, Any]:
        found = self.maps[number]
        return {
            "namespace": number,
            "map": names.name(number),
            "puts": found.puts,
            "deletes": found.deletes,
            "key_bytes": found.key_bytes,
            "value_bytes": found.value_bytes,
        }

    def _partition(self, number: int) -> dict[str, int]:
        part = self.partitions[number]
        return {
            "partition": number,
            "updates": part.updates,
            "first": part.first,
            "last": part.last,
        }


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 2) if whole else 0.0


class Continuity:
    """Sees that no update number is given twice, and that records can be read.

    Numbers that are missing are no problem by themselves: a group that failed leaves some, and an
    opening after a crash goes on in a new epoch.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.later_version = False
        self._next: dict[int, int] = {}

    def add(self, entry: Entry) -> None:
        """Look at one record; what is wrong is added to ``problems``."""
        match entry.record:
            case BadRecord(later=True) as bad:
                self.later_version = True
                self._tell(entry, bad.problem)
            case BadRecord() as bad:
                self._tell(entry, f"{bad.problem}")
            case StateRecord() as state:
                self._check_state(entry, state)
            case EpochRecord() as record:
                for index, start in enumerate(record.starts):
                    self._next[record.first_partition + index] = start
            case record if isinstance(record, NumberedRecord):
                for run in record.runs:
                    self._check_run(entry, run)
            case _:
                pass

    def _check_state(self, entry: Entry, state: StateRecord) -> None:
        for partition, hwm in enumerate(state.hwms):
            below = self._next.get(partition, 1) - 1
            if hwm < below:
                self._tell(entry, f"partition {partition}: STATE says {hwm}, the log {below}")
            self._next[partition] = max(hwm + 1, below + 1)

    def _check_run(self, entry: Entry, run: Run) -> None:
        rollback = isinstance(entry.record, RollbackRecord)
        expected = self._next.get(run.partition, run.first)
        if run.first < expected and not rollback:
            last = run.first + run.count - 1
            self._tell(entry, f"partition {run.partition}: {run.first}..{last} were given before")
        self._next[run.partition] = max(expected, run.first + run.count)

    def _tell(self, entry: Entry, text: str) -> None:
        frame = entry.frame
        self.problems.append(f"segment {frame.segment}, offset {frame.offset}: {text}")
