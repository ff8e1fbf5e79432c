"""The fold of the log: counters, epochs and namespaces as records come.

``State`` is what a store knows beside its data.  Recovery, reading processes and the built-in
check all build it by the same ``apply``, from the marks of a checkpoint on.

Invariants:

- Applying a record twice, or from an earlier position on, gives the same state: what the marks
  already hold is skipped by position.
- Counters move only for records that are in the log.
- A load gets its name behind a checkpoint with its rows.  Who folds in both, INGEST and name, has
  begun at an older one, and lacks the rows.

Left out: the data itself; ``apply`` names the runs whose updates the caller shall take over.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..affinity.errors import CorruptLogError
from ..tx.counter import PartitionUpdateCounter
from ..wal.records import (
    CheckpointRecord,
    DropNamespaceRecord,
    EpochRecord,
    IdleRecord,
    IngestRecord,
    NamespaceRecord,
    Record,
    RollbackRecord,
    Run,
    StateRecord,
    TxRecord,
    UnknownRecord,
)
from .marks import (
    FIRST_EPOCHS,
    EpochTable,
    PartitionMark,
    StoreMark,
    epoch_of,
    with_epoch,
)

FIRST_NAMESPACE = 16
"""Ids below are internal: 0 checkpoint marks, 1 outcomes, 2 the ledger."""


class State:
    """Counters, epochs and namespaces of a store at one position of its log."""

    def __init__(self, store_id: bytes, partitions: int) -> None:
        self.store_id = store_id
        self.partitions = partitions
        self.counters = [PartitionUpdateCounter() for _ in range(partitions)]
        self.epoch_tables: list[EpochTable] = [FIRST_EPOCHS] * partitions
        self.epochs = [1] * partitions
        self.replay_from = [0] * partitions
        self.durable = 0
        """The position up to which the log is durable, for the data file holds some of it."""
        self.namespaces: dict[int, NamespaceRecord] = {}
        self.next_namespace = FIRST_NAMESPACE
        self.dropped: set[int] = set()
        self.touched: set[int] = set()
        """Partitions whose counters or epochs moved without data, since the last checkpoint."""
        self.loaded: set[int] = set()
        """Namespaces of the loads that were folded in."""
        self.time = 0
        self.position = 0

    @classmethod
    def from_marks(
        cls,
        store_id: bytes,
        partitions: int,
        store: StoreMark | None,
        marks: Mapping[int, PartitionMark],
    ) -> State:
        """Return the state that a checkpoint recorded; ``marks`` by partition."""
        state = cls(store_id, partitions)
        if store is not None:
            state.position = state.durable = store.position
            state.time = store.time
            state.namespaces = {namespace.id: namespace for namespace in store.namespaces}
            state.next_namespace = store.next_namespace
            state.dropped = set(store.dropped)
            state.replay_from = [store.position] * partitions
        for partition, mark in marks.items():
            state.counters[partition] = PartitionUpdateCounter.from_bytes(mark.counter)
            state.epoch_tables[partition] = mark.epochs
            state.epochs[partition] = mark.epochs[-1][0]
            state.replay_from[partition] = max(mark.position, state.replay_from[partition])
            state.durable = max(mark.written, state.durable)
        return state

    @classmethod
    def from_record(cls, record: StateRecord) -> State:
        """Return the state at the head of a segment, but for what only marks tell."""
        state = cls(b"", len(record.lwms))
        state.time = record.time
        state.epochs = list(record.epochs)
        state.epoch_tables = [((epoch, 1),) for epoch in record.epochs]
        state.counters = [
            PartitionUpdateCounter(lwm, record.ranges.get(p, ()), max_ranges=1 << 30)
            for p, lwm in enumerate(record.lwms)
        ]
        state.namespaces = {namespace.id: namespace for namespace in record.namespaces}
        return state

    def apply(self, position: int, record: Record) -> list[tuple[int, Run]]:
        """Fold one record in; return (index of its first key, run) of updates to take over.

        Raises ``CorruptLogError`` for a record that contradicts the state.
        """
        match record:
            case TxRecord():
                return self._apply_tx(position, record)
            case RollbackRecord():
                self._close(position, record)
            case IngestRecord():
                self._close(position, record)
                self.loaded.add(record.namespace)
            case NamespaceRecord():
                if record.id not in self.dropped:
                    self.namespaces[record.id] = record
                self.next_namespace = max(self.next_namespace, record.id + 1)
            case DropNamespaceRecord():
                if self.namespaces.pop(record.id, None) is not None:
                    self.dropped.add(record.id)
            case EpochRecord():
                self._apply_epochs(position, record)
            case StateRecord() | CheckpointRecord() | IdleRecord() | UnknownRecord():
                pass
        return []

    def _apply_tx(self, position: int, record: TxRecord) -> list[tuple[int, Run]]:
        self.time = max(self.time, record.time)
        wanted = []
        index = 0
        for run in record.runs:
            if self._count(position, run):
                wanted.append((index, run))
            index += run.count
        return wanted

    def _close(self, position: int, record: RollbackRecord | IngestRecord) -> None:
        """Count numbers whose updates are not in the log."""
        self.time = max(self.time, record.time)
        for run in record.runs:
            self._count(position, run)
            self.touched.add(run.partition)

    def _count(self, position: int, run: Run) -> bool:
        """Move the counter of a run's partition; tell whether its updates belong to the state."""
        if run.partition >= self.partitions:
            raise self._contradiction(position, f"partition {run.partition} of {self.partitions}")
        if position < self.replay_from[run.partition]:
            return False
        if epoch_of(self.epoch_tables[run.partition], run.first) != run.epoch:
            raise self._contradiction(
                position, f"partition {run.partition}, counter {run.first} in epoch {run.epoch}"
            )
        self.counters[run.partition].update(run.first - 1, run.count)
        return True

    def _apply_epochs(self, position: int, record: EpochRecord) -> None:
        self.time = max(self.time, record.time)
        pairs = zip(record.epochs, record.starts, strict=True)
        for partition, (epoch, start) in enumerate(pairs, record.first_partition):
            if partition >= self.partitions:
                raise self._contradiction(position, f"partition {partition} of {self.partitions}")
            if epoch > self.epochs[partition]:
                self.epochs[partition] = epoch
                self.touched.add(partition)
                table = with_epoch(self.epoch_tables[partition], epoch, start)
                self.epoch_tables[partition] = table

    @staticmethod
    def _contradiction(position: int, what: str) -> CorruptLogError:
        return CorruptLogError(
            f"the log at position {position} holds {what}, which contradicts the store",
            kind="damaged",
            segment=0,
            offset=position,
        )

    def without_rows(self) -> list[str]:
        """Return the names of maps whose rows the checkpoint cannot have where the fold began."""
        found = [self.namespaces[number] for number in self.loaded & self.namespaces.keys()]
        return sorted(record.name for record in found if not record.hidden)

    def next_epochs(self, time: int) -> EpochRecord:
        """Return the record that raises the epoch of every partition."""
        return EpochRecord(
            time=time,
            first_partition=0,
            epochs=[epoch + 1 for epoch in self.epochs],
            starts=[counter.hwm + 1 for counter in self.counters],
        )

    def record(self, time: int) -> StateRecord:
        """Return the STATE record for the head of a segment."""
        ranges = {p: c.out_of_order for p, c in enumerate(self.counters) if c.out_of_order}
        return StateRecord(
            time=time,
            namespaces=list(self.namespaces.values()),
            epochs=list(self.epochs),
            lwms=[counter.lwm for counter in self.counters],
            hwms=[counter.hwm for counter in self.counters],
            ranges=ranges,
        )
