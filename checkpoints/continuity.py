"""Whether a log goes on as it must: the fold that looks for contradictions in its records.

Owns ``Continuity``, which the built-in check and ``wal verify`` share.  It knows the log alone and
nothing of checkpoints, so it can begin at any segment: the STATE there is its base.

Invariants:

- A STATE says what was applied before the frame that holds it.  Its HWM covers numbers that the
  records behind it in the same frame bring, so it is no proof that they were in the log before.
- An update number belongs to one record, in the epoch of its time; commit times never fall.
- Numbers that no record has are no contradiction: a write that failed leaves some.

Left out: damage (``wal.reader``), and the data file (``engine.check``).
"""

from __future__ import annotations

from collections.abc import Callable

from ..tx.counter import PartitionUpdateCounter
from ..wal.format import Frame
from ..wal.records import (
    DropNamespaceRecord,
    EpochRecord,
    IngestRecord,
    NamespaceRecord,
    Record,
    RollbackRecord,
    Run,
    StateRecord,
    TxRecord,
)

_UNLIMITED = 1 << 30


class Continuity:
    """The fold of a log from the head of some segment on; tells what contradicts it.

    ``tell`` takes each contradiction as a sentence that begins with its place.  ``partitions`` is
    how many the store has; None is as many as the first STATE says.
    """

    def __init__(self, tell: Callable[[str], None], partitions: int | None = None) -> None:
        self.numbers: list[PartitionUpdateCounter] = []
        """Which numbers the log has, by partition; empty before the first STATE."""
        self.bases: list[PartitionUpdateCounter] = []
        """Which numbers lie below the first STATE."""
        self.epochs: list[int] = []
        self.namespaces: dict[int, NamespaceRecord] = {}
        self._partitions = partitions
        self._tell = tell
        self._time = 0

    def take(self, frame: Frame, record: Record) -> None:
        """Fold one record in, and tell what is wrong with it."""
        match record:
            case StateRecord():
                self._take_state(frame, record)
            case TxRecord() | RollbackRecord() | IngestRecord():
                self._check_time(frame, record.time)
                for run in record.runs:
                    self._take_run(frame, run)
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
        if self._partitions is None:
            self._partitions = len(record.lwms)
        if len(record.lwms) != self._partitions:
            self._wrong(frame, f"the state of {len(record.lwms)} partitions")
        elif not self.numbers:
            for partition, lwm in enumerate(record.lwms):
                ranges = record.ranges.get(partition, ())
                self.numbers.append(PartitionUpdateCounter(lwm, ranges, max_ranges=_UNLIMITED))
                self.bases.append(PartitionUpdateCounter(lwm, ranges, max_ranges=_UNLIMITED))
            self.epochs, self.namespaces = list(record.epochs), namespaces
        elif record.epochs != self.epochs or namespaces != self.namespaces:
            self._wrong(frame, "a state with other epochs or namespaces than the log before it")
        elif any(
            lwm > numbers.highest_applied
            for lwm, numbers in zip(record.lwms, self.numbers, strict=True)
        ):
            self._wrong(frame, "a state with higher counters than the log before it")

    def _check_time(self, frame: Frame, time: int) -> None:
        if time < self._time:
            self._wrong(frame, f"commit time {time} after {self._time}")
        self._time = max(time, self._time)

    def _take_run(self, frame: Frame, run: Run) -> None:
        if run.partition >= len(self.numbers):
            self._wrong(frame, f"partition {run.partition} of {len(self.numbers)}")
            return
        if run.epoch != self.epochs[run.partition]:
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

    def _wrong(self, frame: Frame, what: str) -> None:
        self._tell(f"segment {frame.segment}, offset {frame.offset}: {what}")


def is_free(counter: PartitionUpdateCounter, first: int, count: int) -> bool:
    """Tell whether none of the numbers from ``first`` on was applied."""
    last = first + count - 1
    if first <= counter.lwm:
        return False
    if first > counter.highest_applied:
        return True
    return all(last <= start or start + delta < first for start, delta in counter.out_of_order)
