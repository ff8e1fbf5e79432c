"""What a log has of the numbers that a copy has missed: with their updates, or closed.

The log is folded from the head of a segment on, so what is supplied is what took effect here, with
the time of its commit: data stands in PREPARE, and what became of it in COMMIT, COMMIT_UPTO,
ROLLBACK or a settle list, which may come much later.

An example, of numbers 4 to 9 that are missing elsewhere:

============================ ===================================================================
record here                  supplied
============================ ===================================================================
TX with 4                    4 with its updates
PREPARE A with 5 and 6       nothing yet
ROLLBACK of 7                7, closed
INGEST with 8                8 is lacking: the rows of a load are in no log
COMMIT A                     5 and 6 with the updates of the PREPARE
PREPARE B with 9             9 is *not yet* known
============================ ===================================================================

Invariants:

- A number is supplied as it took effect here, or it is closed, or lacking, or not yet known.
- Lacking is what was applied before the fold begins, what was prepared before and committed behind,
  and what is in no record: the rows of loads, and of the full copy that this one once was.
- What took effect in an epoch whose number was given out again counts for nothing.

Left out: which segments may hold the numbers (``wal.history``); who asks, and how much at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..tx.numbers import NumberRanges, applied_in, in_both, run_numbers, united, without
from ..wal.records import (
    AdmitRecord,
    Closed,
    IngestRecord,
    Pending,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    SettleRecord,
    StateRecord,
    Supplied,
    SuppliedRecord,
    TxRecord,
)
from .marks import EpochTable, epoch_of
from .replay import Applied, State

NEVER = 1 << 62
"""A position behind every log."""
CLOSED_HERE = "closed at the supplier"


class WantedNumbers(NamedTuple):
    """Numbers of a partition that a copy has missed, and the epoch table at the end of the log."""

    missing: NumberRanges
    epochs: EpochTable


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundNumbers:
    """What a log has of some missing numbers: each of them is in one of the four."""

    transactions: list[Supplied]
    closed: list[Closed]
    lacking: NumberRanges
    not_yet: NumberRanges


class SupplySearch:
    """Looks for the missing numbers of some partitions in a log, record after record."""

    def __init__(self, head: StateRecord, wanted: Mapping[int, WantedNumbers]) -> None:
        """``head`` begins the first segment that may hold any of them."""
        self._state = State.from_record(head)
        for partition in range(self._state.partitions):
            if partition not in wanted:  # what of it began before the head is not known here
                self._state.replay_from[partition] = NEVER
        self._sought = {
            partition: _Sought(self._state, partition, *row, head.pending)
            for partition, row in wanted.items()
        }
        self.bytes = 0
        """Of the keys and values that were found and not taken out."""

    def __repr__(self) -> str:
        found = sum(len(one.transactions) for one in self._sought.values())
        left = sum(len(one.left) for one in self._sought.values())
        return f"<SupplySearch of {found} transactions, {left} ranges left>"

    def take(self, position: int, record: Record) -> None:
        """Take in the next record; raises ``CorruptLogError`` as the fold does."""
        for run, tx_id, attempt in _ids_in(record):
            sought = self._sought.get(run.partition)
            if sought is not None:
                sought.note_id(run, tx_id, attempt)
        self._state.touched.clear()
        moved: set[int] = set()
        for effect in self._state.apply(position, record):
            if isinstance(effect, Applied) and effect.run.partition in self._sought:
                self.bytes += self._sought[effect.run.partition].add(effect)
                moved.add(effect.run.partition)
        for partition in sorted(moved | (self._state.touched & self._sought.keys())):
            self._sought[partition].close(record)

    def take_out(self) -> dict[int, FoundNumbers]:
        """Return what the records have told since the last call, by partition.

        What is not yet known, and what is lacking, is said again each time.
        """
        self.bytes = 0
        return {partition: sought.take_out() for partition, sought in self._sought.items()}


class _Sought:
    """The missing numbers of one partition, while a log is searched."""

    def __init__(
        self,
        state: State,
        partition: int,
        missing: NumberRanges,
        epochs: EpochTable,
        pending: Iterable[Pending],
    ) -> None:
        self._state = state
        self._partition = partition
        self._epochs = epochs
        self._lacking = in_both(missing, applied_in(state.counters[partition]))
        self.left = without(missing, self._lacking)
        self._without_updates = united(
            run_numbers(one.run) for one in pending if one.run.partition == partition
        )
        self._ids: dict[int, tuple[bytes, int]] = {}
        self.transactions: list[Supplied] = []
        self._closed: list[Closed] = []

    def take_out(self) -> FoundNumbers:
        transactions, self.transactions = self.transactions, []
        closed, self._closed = self._closed, []
        return FoundNumbers(
            transactions=transactions,
            closed=closed,
            lacking=list(self._lacking),
            not_yet=list(self.left),
        )

    def note_id(self, run: Run, tx_id: bytes, attempt: int) -> None:
        """Note which transaction some numbers belong to, as far as they are missing."""
        for first, last in in_both(self.left, [run_numbers(run)]):
            self._ids.update(dict.fromkeys(range(first, last + 1), (tx_id, attempt)))

    def add(self, effect: Applied) -> int:
        """Take in updates that took effect, as far as they are missing; return their bytes."""
        run, size = effect.run, 0
        if not self._counts(*run_numbers(run), run.epoch):
            return 0
        for first, last in in_both(self.left, [run_numbers(run)]):
            columns = effect.columns.between(first - run.first, last - run.first + 1)
            tx_id, attempt = self._ids[first]
            for number in range(first, last + 1):
                self._ids.pop(number, None)
            piece = run._replace(first=first, count=last - first + 1)
            self.transactions.append(Supplied(tx_id, attempt, piece, effect.time, columns))
            size += sum(map(len, columns.keys))
            size += sum(len(value) for value in columns.values if value is not None)
            self.left = without(self.left, [(first, last)])
        return size

    def close(self, record: Record) -> None:
        """Take in numbers that are applied now, and have no updates."""
        partition, blind = self._partition, self._without_updates
        table = self._state.epoch_tables[partition]
        moved = in_both(self.left, applied_in(self._state.counters[partition]))
        if isinstance(record, RollbackRecord):
            blind = []
        elif isinstance(record, IngestRecord | AdmitRecord):
            blind = moved
        for first, last in _split(moved, table, self._epochs):
            epoch = epoch_of(table, first)
            if self._counts(first, last, epoch):
                piece = [(first, last)]
                self.left = without(self.left, piece)
                self._lacking = united([*self._lacking, *in_both(piece, blind)])
                self._closed += [
                    Closed(epoch, low, high - low + 1, CLOSED_HERE)
                    for low, high in without(piece, blind)
                ]

    def _counts(self, first: int, last: int, epoch: int) -> bool:
        """Tell whether numbers of an epoch still stand for the same."""
        return epoch_of(self._epochs, first) == epoch == epoch_of(self._epochs, last)


def _ids_in(record: Record) -> list[tuple[Run, bytes, int]]:
    """Return the numbers in a record that belong to a transaction, with its id and attempt."""
    match record:
        case TxRecord():
            return [(run, record.tx_id, 1) for run in record.runs]
        case PrepareRecord():
            return [(record.run, record.tx_id, record.attempt)]
        case SettleRecord() | SuppliedRecord():
            return [(one.run, one.tx_id, one.attempt) for one in record.transactions]
    return []


def _split(numbers: NumberRanges, *tables: EpochTable) -> NumberRanges:
    """Return some numbers in ranges that lie in one epoch each, by every table."""
    starts = sorted({start for table in tables for _, start in table})
    found: NumberRanges = []
    for first, last in numbers:
        for start in starts:
            if first < start <= last:
                found.append((first, start - 1))
                first = start
        found.append((first, last))
    return found
