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

from dataclasses import dataclass

from ..tx.numbers import NumberRanges, applied_in, in_both, run_numbers, united, without
from ..wal.records import (
    AdmitRecord,
    Closed,
    IngestRecord,
    PrepareRecord,
    Record,
    RollbackRecord,
    SettleRecord,
    StateRecord,
    Supplied,
    SuppliedRecord,
    TxRecord,
)
from .marks import EpochTable, epoch_of
from .replay import Applied, State

CLOSED_HERE = "closed at the supplier"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundNumbers:
    """What a log has of some missing numbers: each of them is in one of the four."""

    transactions: list[Supplied]
    closed: list[Closed]
    lacking: NumberRanges
    not_yet: NumberRanges


class SupplySearch:
    """Looks for the missing numbers of one partition in a log, record after record."""

    def __init__(
        self, head: StateRecord, partition: int, missing: NumberRanges, epochs: EpochTable
    ) -> None:
        """``head`` begins the first segment that may hold any of them; ``epochs`` is the table of
        the partition at the end of the log."""
        self._state = State.from_record(head)
        self._partition = partition
        self._epochs = epochs
        self._lacking = in_both(missing, applied_in(self._state.counters[partition]))
        self._left = without(missing, self._lacking)
        self._without_updates = united(
            run_numbers(one.run) for one in head.pending if one.run.partition == partition
        )
        self._ids: dict[int, tuple[bytes, int]] = {}
        self._transactions: list[Supplied] = []
        self._closed: list[Closed] = []
        self.bytes = 0
        """Of the keys and values that were found."""

    def __repr__(self) -> str:
        return (
            f"<SupplySearch in partition {self._partition}: {len(self._transactions)} found, "
            f"{len(self._left)} ranges left>"
        )

    def take(self, position: int, record: Record) -> None:
        """Take in the next record; raises ``CorruptLogError`` as the fold does."""
        self._note_ids(record)
        self._state.touched.clear()
        mine = [
            effect
            for effect in self._state.apply(position, record)
            if isinstance(effect, Applied) and effect.run.partition == self._partition
        ]
        for effect in mine:
            self._add(effect)
        if mine or self._partition in self._state.touched:
            self._close(record)

    def result(self) -> FoundNumbers:
        """Return what the records so far tell."""
        return FoundNumbers(
            transactions=list(self._transactions),
            closed=list(self._closed),
            lacking=list(self._lacking),
            not_yet=list(self._left),
        )

    def _note_ids(self, record: Record) -> None:
        match record:
            case TxRecord():
                told = [(run, record.tx_id, 1) for run in record.runs]
            case PrepareRecord():
                told = [(record.run, record.tx_id, record.attempt)]
            case SettleRecord() | SuppliedRecord():
                told = [(one.run, one.tx_id, one.attempt) for one in record.transactions]
            case _:
                return
        for run, tx_id, attempt in told:
            if run.partition == self._partition:
                for first, last in in_both(self._left, [run_numbers(run)]):
                    self._ids.update(dict.fromkeys(range(first, last + 1), (tx_id, attempt)))

    def _add(self, effect: Applied) -> None:
        """Take in updates that took effect, as far as they are missing."""
        run = effect.run
        if not self._counts(*run_numbers(run), run.epoch):
            return
        for first, last in in_both(self._left, [run_numbers(run)]):
            columns = effect.columns.between(first - run.first, last - run.first + 1)
            tx_id, attempt = self._ids[first]
            piece = run._replace(first=first, count=last - first + 1)
            self._transactions.append(Supplied(tx_id, attempt, piece, effect.time, columns))
            self.bytes += sum(map(len, columns.keys))
            self.bytes += sum(len(value) for value in columns.values if value is not None)
            self._left = without(self._left, [(first, last)])

    def _close(self, record: Record) -> None:
        """Take in numbers that are applied now, and have no updates."""
        partition, blind = self._partition, self._without_updates
        table = self._state.epoch_tables[partition]
        moved = in_both(self._left, applied_in(self._state.counters[partition]))
        if isinstance(record, RollbackRecord):
            blind = []
        elif isinstance(record, IngestRecord | AdmitRecord):
            blind = moved
        for first, last in _split(moved, table, self._epochs):
            epoch = epoch_of(table, first)
            if self._counts(first, last, epoch):
                piece = [(first, last)]
                self._left = without(self._left, piece)
                self._lacking = united([*self._lacking, *in_both(piece, blind)])
                self._closed += [
                    Closed(epoch, low, high - low + 1, CLOSED_HERE)
                    for low, high in without(piece, blind)
                ]

    def _counts(self, first: int, last: int, epoch: int) -> bool:
        """Tell whether numbers of an epoch still stand for the same."""
        return epoch_of(self._epochs, first) == epoch == epoch_of(self._epochs, last)


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
