"""Whether a log goes on as it must: the fold that looks for contradictions in its records.

Owns ``Continuity``, which the built-in check and ``wal verify`` share.  It knows the log alone and
nothing of checkpoints, so it can begin at any segment: the STATE there is its base.

Invariants:

- A STATE says what was applied before the frame that holds it.  Its HWM covers numbers that the
  records behind it in the same frame bring, so it does not prove that they were in the log before.
- An update number belongs to one record, in the epoch of its time; commit times never fall within
  an epoch of a partition.  A PREPARE has numbers, what ends it has none of its own.  A new epoch
  may give out again what lies behind its beginning.
- Numbers that no record has are not a contradiction: a write that failed leaves some.

Left out: damage (``wal.reader``), and the data file (``engine.upkeep.check``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from ..affinity.partitions import Space, one_space
from ..tx.counter import PartitionUpdateCounter
from ..wal.format import Frame
from ..wal.records import (
    AdmitRecord,
    ClearRecord,
    CommitRecord,
    CommitUptoRecord,
    DropNamespaceRecord,
    EpochRecord,
    IngestRecord,
    NamespaceRecord,
    OpenRecord,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    SettledOutcome,
    SettleRecord,
    StateRecord,
    SuppliedRecord,
    TxRecord,
)
from .marks import EpochTable, epoch_of

_UNLIMITED = 1 << 30

SpaceRange = tuple[int, int]
"""First partition of a space, and how many there are."""


class _Prepared(NamedTuple):
    """The numbers of a transaction, and whether it is known to write this partition alone."""

    run: Run
    alone: bool


class Continuity:
    """The fold of a log from the head of some segment on; tells what contradicts it.

    ``tell`` takes each contradiction as a sentence that begins with its place.  ``spaces`` are
    those that the store has now: a STATE has the first ones of them.  None: whatever STATEs say.
    """

    def __init__(self, tell: Callable[[str], None], spaces: Sequence[Space] | None = None) -> None:
        self.numbers: list[PartitionUpdateCounter] = []
        """Which numbers the log has, by partition; empty before the first STATE."""
        self.bases: list[PartitionUpdateCounter] = []
        """Which numbers lie below the first STATE."""
        self.epochs: list[int] = []
        self.namespaces: dict[int, NamespaceRecord] = {}
        self._spaces = None if spaces is None else _space_ranges(spaces)
        self._known: list[SpaceRange] = []
        self._tell = tell
        self._times: dict[int, tuple[int, int]] = {}
        """Per partition, its epoch and the newest commit time in that."""
        self._prepared: dict[tuple[int, bytes], _Prepared] = {}
        """What has no outcome yet, by partition and id."""
        self._lists: dict[int, SettleRecord] = {}
        self._admitted: dict[int, EpochTable] = {}
        """Epochs at the last ADMIT of a partition: what is pending comes again behind that, and may
        be of an older one."""

    def take(self, frame: Frame, record: Record) -> None:
        """Fold one record in, and tell what is wrong with it."""
        match record:
            case StateRecord():
                self._take_state(frame, record)
            case TxRecord() | IngestRecord():
                for run in record.runs:
                    self._check_time(frame, run, record.time)
                    self._take_run(frame, run)
            case PrepareRecord():
                self._check_time(frame, record.run, record.time)
                self._take_run(frame, record.run)
                self._prepared[record.run.partition, record.tx_id] = _Prepared(
                    record.run, len(record.participants) == 1
                )
            case CommitRecord():
                self._take_commit(frame, record)
            case CommitUptoRecord():
                self._take_upto(record)
            case RollbackRecord():
                for run in record.runs:
                    self._check_time(frame, run, record.time)
                    known = self._prepared.pop((run.partition, record.tx_id), None)
                    if known is None or known.run != run:
                        self._take_run(frame, run)
            case SettleRecord():
                self._lists[record.partition] = record
            case OpenRecord():
                for partition, epoch in record.rows:
                    self._open(frame, partition, epoch)
            case SuppliedRecord():
                for supplied in record.transactions:
                    self._fill(supplied.run)
                for _, first, count, _ in record.closed:
                    self._fill(Run(record.partition, 0, first, count))
            case ClearRecord():
                self._begin_anew(record.partition, PartitionUpdateCounter(max_ranges=_UNLIMITED))
            case AdmitRecord():
                counter = PartitionUpdateCounter(record.lwm, record.ranges, max_ranges=_UNLIMITED)
                self._begin_anew(record.partition, counter)
                if record.partition < len(self.epochs):
                    self.epochs[record.partition] = record.epochs[-1][0]
                    self._admitted[record.partition] = record.epochs
            case EpochRecord():
                last = record.first_partition + len(record.epochs)
                self.epochs[record.first_partition : last] = record.epochs
            case NamespaceRecord():
                self.namespaces[record.id] = record
            case DropNamespaceRecord():
                self.namespaces.pop(record.id, None)
            case _:
                pass

    def _take_state(self, frame: Frame, record: StateRecord) -> None:
        namespaces = {namespace.id: namespace for namespace in record.namespaces}
        told = _space_ranges(record.spaces or one_space(len(record.lwms)))
        known = len(self.numbers)
        if told[: len(self._known)] != self._known or (
            self._spaces is not None and self._spaces[: len(told)] != told
        ):
            self._wrong(frame, f"the state of {len(record.lwms)} partitions")
            return
        if not known:
            self.epochs, self.namespaces = list(record.epochs), namespaces
        elif record.epochs[:known] != self.epochs or namespaces != self.namespaces:
            self._wrong(frame, "a state with other epochs or namespaces than the log before it")
        elif any(
            lwm > numbers.highest_applied
            for lwm, numbers in zip(record.lwms, self.numbers, strict=False)
        ):
            self._wrong(frame, "a state with higher counters than the log before it")
        self._begin(record, known)
        self._known = told

    def _begin(self, record: StateRecord, known: int) -> None:
        """Take a STATE for the base of all partitions but the first so many, which are known."""
        self.epochs += record.epochs[len(self.epochs) :]
        for partition, lwm in islice(enumerate(record.lwms), known, None):
            ranges = record.ranges.get(partition, ())
            self.numbers.append(PartitionUpdateCounter(lwm, ranges, max_ranges=_UNLIMITED))
            self.bases.append(PartitionUpdateCounter(lwm, ranges, max_ranges=_UNLIMITED))
        for one in record.pending:
            if one.run.partition >= known:
                self.numbers[one.run.partition].update(one.run.first - 1, one.run.count)
                self._prepared[one.run.partition, one.tx_id] = _Prepared(one.run, False)

    # -------------------------------------------------------------- copies

    def _take_commit(self, frame: Frame, record: CommitRecord) -> None:
        for run in record.participants:
            if run.partition not in record.applied or run.partition >= len(self.numbers):
                continue
            known = self._prepared.pop((run.partition, record.tx_id), None)
            if (known is None or known.run != run) and is_free(
                self.numbers[run.partition], run.first, run.count
            ):
                self._wrong(frame, f"the commit of {record.tx_id.hex()}, which was not prepared")

    def _take_upto(self, record: CommitUptoRecord) -> None:
        for partition, epoch, last in record.rows:
            ended = [
                place
                for place, (run, alone) in self._prepared.items()
                if alone
                and (place[0], run.epoch) == (partition, epoch)
                and run.first + run.count - 1 <= last
            ]
            for place in ended:
                del self._prepared[place]

    def _open(self, frame: Frame, partition: int, epoch: int) -> None:
        settled = self._lists.pop(partition, None)
        if settled is None or settled.epoch != epoch or partition >= len(self.numbers):
            self._wrong(frame, f"epoch {epoch} of partition {partition} without its list")
            return
        numbers = self.numbers[partition]
        numbers.cut(settled.start - 1)
        for one in settled.transactions:
            if one.outcome is not SettledOutcome.PENDING:
                self._prepared.pop((partition, one.tx_id), None)
                self._fill(one.run)
        for _, first, count, _ in settled.closed:
            self._fill(Run(partition, 0, first, count))
        self.epochs[partition] = epoch

    def _fill(self, run: Run) -> None:
        """Take numbers that may have been seen before."""
        if run.partition < len(self.numbers):
            self.numbers[run.partition].update(run.first - 1, run.count)

    def _begin_anew(self, partition: int, counter: PartitionUpdateCounter) -> None:
        if partition < len(self.numbers):
            self.numbers[partition] = counter
            self.bases[partition] = PartitionUpdateCounter.from_bytes(
                counter.to_bytes(), max_ranges=_UNLIMITED
            )
        self._prepared = {k: one for k, one in self._prepared.items() if k[0] != partition}
        self._times.pop(partition, None)  # what was pending comes again, with the time it had

    # -------------------------------------------------------------- numbers

    def _check_time(self, frame: Frame, run: Run, time: int) -> None:
        """Tell if a commit time falls within one epoch of a partition."""
        epoch, newest = self._times.get(run.partition, (run.epoch, time))
        if epoch == run.epoch and time < newest:
            self._wrong(frame, f"commit time {time} after {newest} in partition {run.partition}")
        if epoch != run.epoch or time > newest:
            newest = time
        self._times[run.partition] = run.epoch, newest

    def _take_run(self, frame: Frame, run: Run) -> None:
        if run.partition >= len(self.numbers):
            self._wrong(frame, f"partition {run.partition} of {len(self.numbers)}")
            return
        if run.epoch != self.epochs[run.partition] and not self._is_pending_again(run):
            self._wrong(
                frame,
                f"partition {run.partition}, number {run.first} in epoch {run.epoch} "
                f"instead of {self.epochs[run.partition]}",
            )
        numbers = self.numbers[run.partition]
        if not is_free(numbers, run.first, run.count):
            last = run.first + run.count - 1
            self._wrong(
                frame, f"partition {run.partition}, numbers {run.first}..{last} for a second time"
            )
        numbers.update(run.first - 1, run.count)

    def _is_pending_again(self, run: Run) -> bool:
        """Tell whether a number of an older epoch belongs to that by the last ADMIT."""
        table = self._admitted.get(run.partition)
        return table is not None and epoch_of(table, run.first) == run.epoch

    def _wrong(self, frame: Frame, what: str) -> None:
        self._tell(f"segment {frame.segment}, offset {frame.offset}: {what}")


def _space_ranges(spaces: Sequence[Space]) -> list[SpaceRange]:
    """Return where spaces lie; how many backups they have may change."""
    return [(space.first, space.partitions) for space in spaces]


def is_free(counter: PartitionUpdateCounter, first: int, count: int) -> bool:
    """Tell whether none of the numbers from ``first`` on was applied."""
    last = first + count - 1
    if first <= counter.lwm:
        return False
    if first > counter.highest_applied:
        return True
    return all(last <= start or start + delta < first for start, delta in counter.out_of_order)
