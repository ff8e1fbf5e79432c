"""Counts over a log: what ``wal stat`` and ``wal verify`` tell.

Owns ``Tally``, a fold over records.

Invariants:

- Memory grows with the number of maps and partitions, not with the log.

Left out: reading the log, whether its records fit each other (``checkpoints.continuity``), and
judging its end (``wal.tail``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...wal.records import Update
from ...wal.tallies import MapTally
from ..shell.text import shown_time
from .records import LoggedRecord, Names, record_time, type_of


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

    def add(self, logged: LoggedRecord, updates: Sequence[Update]) -> None:
        """Count one record with its wanted updates."""
        if logged.frame.position != self._frame:
            self._frame = logged.frame.position
            self.frames += 1
            self.payload_bytes += len(logged.frame.payload)
        self.types[type_of(logged.record)] += 1
        time = record_time(logged.record)
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

    @property
    def transactions(self) -> int:
        """How many there are: those in one record, and the parts of those that were prepared."""
        return self.types["tx"] + self.types["prepare"]

    def document(self, names: Names) -> dict[str, Any]:
        """Return the counts as data."""
        transactions = self.transactions
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
