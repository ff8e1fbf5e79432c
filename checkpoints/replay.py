"""The fold of the log: counters, epochs and namespaces as records come.

``State`` is what a store knows beside its data.  Recovery, reading processes and the built-in
check all build it by the same ``apply``, from the marks of a checkpoint on.

Invariants:

- Applying a record twice, or from an earlier position on, gives the same state: what the marks
  already hold is skipped by position.  So it does if a signal cut the first time short anywhere.
- Counters move only for records that are in the log.
- A store gets more partitions by whole spaces, and a STATE says so.  It never loses any.
- A load gets its name behind a checkpoint with its rows.  Who folds in both, INGEST and name, has
  begun at an older one, and lacks the rows.

Left out: the data itself; ``apply`` says what the caller shall take over, or let go of.  What is
known of partitions with other copies is explained in ``copies``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ..affinity.errors import CorruptLogError
from ..affinity.partitions import Space, one_space
from ..tx.counter import PartitionUpdateCounter
from ..tx.numbers import applied_in, run_numbers, united
from ..wal.records import (
    AdmitRecord,
    CheckpointRecord,
    ClearRecord,
    Columns,
    CommitRecord,
    CommitUptoRecord,
    DropNamespaceRecord,
    EpochRecord,
    IdleRecord,
    IngestRecord,
    NamespaceRecord,
    OpenRecord,
    OutcomesRecord,
    Pending,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    SettledOutcome,
    SettleRecord,
    StateRecord,
    SuppliedRecord,
    TxRecord,
    UnknownRecord,
    Update,
    numbered,
)
from .copies import Copies, CopyState, columns_prepared
from .marks import (
    FIRST_EPOCHS,
    EpochTable,
    PartitionMark,
    StoreMark,
    epoch_of,
    with_epoch,
)

FIRST_NAMESPACE = 16
"""Ids below are internal: 0 checkpoint marks, 1 outcomes, 2 the ledger, 3 losses, 4 pending."""


class Applied(NamedTuple):
    """Updates that take effect: those of one run, with the time of their commit.

    ``late``: higher numbers of the partition have taken effect already, so a key may hold a newer
    value.
    """

    run: Run
    time: int
    columns: Columns
    late: bool

    def updates(self) -> Iterator[Update]:
        """Yield the updates with their numbers, in the order of the log."""
        return numbered((self.run,), self.columns)


class Cleared(NamedTuple):
    """Everything that was in a partition counts for nothing."""

    partition: int


Effect = Applied | Cleared


class State:
    """Counters, epochs and namespaces of a store at one position of its log."""

    def __init__(self, store_id: bytes, spaces: Sequence[Space]) -> None:
        self.store_id = store_id
        self.spaces = tuple(spaces)
        self.partitions = partitions = self.spaces[-1].end
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
        self.cleared: dict[int, int] = {}
        """Partitions of which the data file holds what counts for nothing, and where the log says
        so.  A checkpoint removes it; before that, nobody else writes into them there."""
        self.loaded: set[int] = set()
        """Namespaces of the loads that were folded in."""
        self.copies = Copies()
        self.time = 0
        self.position = 0
        self._knows_admissions = True
        """Whether a supply to a copy that was not admitted is a contradiction."""

    @classmethod
    def from_marks(
        cls,
        store_id: bytes,
        spaces: Sequence[Space],
        store: StoreMark | None,
        marks: Mapping[int, PartitionMark],
        pending: Mapping[int, Iterable[Record]] = MappingProxyType({}),
    ) -> State:
        """Return the state that a checkpoint recorded; marks and pending entries by partition."""
        state = cls(store_id, spaces)
        if store is not None:
            state.position = state.durable = store.position
            state.time = store.time
            state.namespaces = {namespace.id: namespace for namespace in store.namespaces}
            state.next_namespace = store.next_namespace
            state.dropped = set(store.dropped)
            state.replay_from = [store.position] * state.partitions
        for partition, mark in marks.items():
            state.counters[partition] = PartitionUpdateCounter.from_bytes(mark.counter)
            state.epoch_tables[partition] = mark.epochs
            state.epochs[partition] = mark.epochs[-1][0]
            state.replay_from[partition] = max(mark.position, state.replay_from[partition])
            state.durable = max(mark.written, state.durable)
            if mark.state:
                state.copies.states[partition] = CopyState(mark.state)
            if mark.admission:
                state.copies.admissions[partition] = mark.admission
            if mark.sealed:
                state.copies.sealed[partition] = mark.sealed
        for partition, entries in pending.items():
            state.copies.restore(partition, entries)
        return state

    @classmethod
    def from_record(cls, record: StateRecord) -> State:
        """Return the state at the head of a segment, but for what only marks tell.

        So the first supply to a copy tells that it was admitted.
        """
        state = cls(b"", record.spaces or one_space(len(record.lwms)))
        state._knows_admissions = False
        state.time = record.time
        state.epochs = list(record.epochs)
        state.epoch_tables = [
            record.epoch_tables.get(p, ((epoch, 1),)) for p, epoch in enumerate(record.epochs)
        ]
        state.counters = [
            PartitionUpdateCounter(lwm, record.ranges.get(p, ()), max_ranges=1 << 30)
            for p, lwm in enumerate(record.lwms)
        ]
        for pending in record.pending:
            run = pending.run
            state.counters[run.partition].prepared(run.first - 1, run.count)
            state.copies.prepared(run.partition).add(pending)
        state.namespaces = {namespace.id: namespace for namespace in record.namespaces}
        return state

    def space_of(self, record: NamespaceRecord) -> Space:
        """Return the space among whose partitions the keys of a map are spread."""
        return self.spaces[record.space]

    def apply(self, position: int, record: Record) -> list[Effect]:
        """Fold one record in; return what becomes of the data, in order.

        Raises ``CorruptLogError`` for a record that contradicts the state.
        """
        return _FOLD[type(record)](self, position, record)

    def _apply_tx(self, position: int, record: TxRecord) -> list[Effect]:
        self.time = max(self.time, record.time)
        found: list[Effect] = []
        for run, columns in zip(record.runs, record.columns(), strict=True):
            if self._belongs(position, run):
                counter = self.counters[run.partition]
                late = counter.highest_applied >= run.first
                counter.update(run.first - 1, run.count)
                found.append(Applied(run, record.time, columns, late))
                if self.copies.ended:  # nobody else is waited for, so nobody lacks an end
                    self.copies.ended.pop(run.partition, None)
        return found

    def _prepare(self, position: int, record: PrepareRecord) -> list[Effect]:
        self.time = max(self.time, record.time)
        run = record.run
        if self._belongs(position, run):
            self.counters[run.partition].prepared(run.first - 1, run.count)
            self.copies.prepared(run.partition).add(record)
            self.touched.add(run.partition)
            self._note_whole(run.partition)
        return []

    def _commit(self, position: int, record: CommitRecord) -> list[Effect]:
        self.time = max(self.time, record.time)
        found: list[Effect] = []
        for run in record.participants:
            if run.partition in record.applied and self._belongs(position, run):
                prepared = self.copies.prepared(run.partition).take(record.tx_id, run)
                if prepared is not None:
                    hwm = self.counters[run.partition].hwm
                    self.copies.commit(run)
                    self.copies.end(run.partition, hwm, _of_one_partition(record, run))
                    self.copies.remember(prepared, record.time)
                    found += self._end(run, record.time, columns_prepared(prepared))
                elif not self._has(run):
                    raise self._contradiction(
                        position, f"the commit of {record.tx_id.hex()}, which was not prepared"
                    )
        return found

    def _commit_upto(self, position: int, record: CommitUptoRecord) -> list[Effect]:
        found: list[Effect] = []
        for partition, epoch, last in record.rows:
            if self._is_new(position, partition):
                for prepared in self.copies.prepared(partition).take_upto(epoch, last):
                    time = prepared.time if isinstance(prepared, PrepareRecord) else 0
                    self.copies.commit(prepared.run)
                    found += self._end(prepared.run, time, columns_prepared(prepared))
        return found

    def _roll_back(self, position: int, record: RollbackRecord) -> list[Effect]:
        for run in record.runs:
            if self._belongs(position, run):
                known = self.copies.prepared(run.partition).take(record.tx_id, run)
                if known is not None or (self._is_shared(run.partition) and not self._has(run)):
                    hwm = self.counters[run.partition].hwm
                    self.copies.end(run.partition, hwm, replace(record, runs=(run,)))
        return self._close(position, record)

    def _is_shared(self, partition: int) -> bool:
        """Tell whether a cluster owns a partition: an epoch was opened, or a copy admitted."""
        return partition in self.copies.sealed or partition in self.copies.admissions

    def _close(self, position: int, record: RollbackRecord | IngestRecord) -> list[Effect]:
        """Count numbers whose updates are not in the log."""
        self.time = max(self.time, record.time)
        for run in record.runs:
            if self._belongs(position, run):
                self.counters[run.partition].update(run.first - 1, run.count)
                self._note_whole(run.partition)
            self.touched.add(run.partition)
        return []

    def _ingest(self, position: int, record: IngestRecord) -> list[Effect]:
        self.loaded.add(record.namespace)
        return self._close(position, record)

    # -------------------------------------------------------------- copies

    def _settle(self, position: int, record: SettleRecord) -> list[Effect]:
        if self._is_new(position, record.partition):
            self.copies.lists[record.partition] = record
            self.touched.add(record.partition)
        return []

    def _open(self, position: int, record: OpenRecord) -> list[Effect]:
        found: list[Effect] = []
        for partition, epoch in record.rows:
            if self._is_new(position, partition):
                settled = self.copies.lists.get(partition)
                if settled is None or settled.epoch != epoch:
                    raise self._contradiction(
                        position, f"epoch {epoch} of partition {partition} without its list"
                    )
                found += self._open_one(position, settled)
                del self.copies.lists[partition]
        return found

    def _open_one(self, position: int, settled: SettleRecord) -> list[Effect]:
        """Let a settle list take effect: outcomes, closed numbers, then the new epoch.

        Behind it all copies of the list are equal, whatever they knew before: what the list does
        not tell stays as it is where it has ended, and goes where it is pending.
        """
        partition, counter = settled.partition, self.counters[settled.partition]
        before = settled.epochs or self.epoch_tables[partition]
        table = with_epoch(before, settled.epoch, settled.start)
        self._check_list(position, settled, table)
        prepared = self.copies.prepared(partition)
        found: list[Effect] = []
        for one in settled.transactions:
            if one.outcome is SettledOutcome.PENDING:
                continue
            known = prepared.take(one.tx_id, one.run)
            columns = one.columns or (columns_prepared(known) if known is not None else None)
            if one.outcome is SettledOutcome.ROLLED_BACK:
                counter.update(one.run.first - 1, one.run.count)
            elif known is not None or (one.columns is not None and not self._has(one.run)):
                self.time = max(self.time, one.time)
                if known is not None:
                    self.copies.remember(known, one.time)
                found += self._end(one.run, one.time, columns)
            elif not self._has(one.run):
                raise self._contradiction(
                    position, f"a settle list that commits {one.tx_id.hex()}, unknown here"
                )
        for _, first, count, _ in settled.closed:
            counter.update(first - 1, count)
        prepared.keep(
            {
                (one.tx_id, one.run)
                for one in settled.transactions
                if one.outcome is SettledOutcome.PENDING
            }
        )
        if settled.start > 1:
            counter.prepared(0, settled.start - 1)
        counter.lower_hwm(settled.start - 1)
        self.epoch_tables[partition], self.epochs[partition] = table, settled.epoch
        self.copies.open(partition, settled.epoch)
        self.touched.add(partition)
        return found

    def _check_list(self, position: int, settled: SettleRecord, table: EpochTable) -> None:
        """Raise unless the numbers of a list lie below its epoch, and those applied here do."""
        runs = [one.run[1:] for one in settled.transactions]
        runs += [(epoch, first, count) for epoch, first, count, _ in settled.closed]
        last = self.counters[settled.partition].highest_applied
        for epoch, first, count in runs:
            last = max(last, first + count - 1)
            if last < settled.start and epoch_of(table, first) != epoch:
                raise self._contradiction(
                    position,
                    f"a settle list with number {first} of partition {settled.partition} in epoch "
                    f"{epoch}",
                )
        if last >= settled.start:
            raise self._contradiction(
                position,
                f"an epoch {settled.epoch} of partition {settled.partition} that begins at "
                f"{settled.start}, and number {last} below it",
            )

    def _supply(self, position: int, record: SuppliedRecord) -> list[Effect]:
        partition = record.partition
        if not self._is_new(position, partition):
            return []
        if not self._knows_admissions:
            self.copies.admissions.setdefault(partition, record.admission)
        if self.copies.admissions.get(partition) != record.admission:
            raise self._contradiction(
                position, f"a supply of admission {record.admission} of partition {partition}"
            )
        found: list[Effect] = []
        for one in record.transactions:
            self.time = max(self.time, one.time)
            if self._belongs(position, one.run) and not self._has(one.run):
                found += self._end(one.run, one.time, one.columns)
        for _, first, count, _ in record.closed:
            self.counters[partition].update(first - 1, count)
        self.touched.add(partition)
        self._note_whole(partition)
        return found

    def _clear(self, position: int, record: ClearRecord) -> list[Effect]:
        partition = record.partition
        if not self._is_new(position, partition):
            return []
        self.copies.forget(partition)
        self.copies.states[partition] = CopyState.NOT_WHOLE
        self.copies.admissions[partition] = record.admission
        self.copies.moves += 1
        self.counters[partition].reset()
        self.touched.add(partition)
        self.cleared[partition] = position
        return [Cleared(partition)]

    def forget_cleared(self, done: Mapping[int, int]) -> None:
        """Learn that a checkpoint has removed what counted for nothing at these positions."""
        self.cleared = {p: at for p, at in self.cleared.items() if done.get(p) != at}

    def _admit(self, position: int, record: AdmitRecord) -> list[Effect]:
        partition = record.partition
        if self._is_new(position, partition):
            self.copies.forget(partition)
            self.copies.states[partition] = CopyState.MOVING
            self.copies.admissions[partition] = record.admission
            self.copies.moves += 1
            counter = PartitionUpdateCounter(record.lwm, record.ranges)
            if record.hwm:
                counter.prepared(0, record.hwm)
            self.counters[partition] = counter
            self.epoch_tables[partition] = record.epochs
            self.epochs[partition] = record.epochs[-1][0]
            self.copies.sealed[partition] = self.epochs[partition]
            self.touched.add(partition)
            self._note_whole(partition)
        return []

    def _note_whole(self, partition: int) -> None:
        """Let a copy be whole that has caught up: every number up to HWM is applied or pending.

        Those above the HWM of its ADMIT come in the order of the stream, so they leave no gap.
        """
        copies, counter = self.copies, self.counters[partition]
        if copies.states.get(partition) is not CopyState.MOVING:
            return
        prepared = copies.pending.get(partition)
        waiting = [run_numbers(one.run) for one in prepared.all()] if prepared is not None else []
        known = united([*applied_in(counter), *waiting])
        if known == united([(1, counter.hwm)]):
            copies.states[partition] = CopyState.OWNING

    def _take_outcomes(self, position: int, record: OutcomesRecord) -> list[Effect]:
        if self._is_new(position, record.partition):
            self.copies.take_outcomes(record)
            self.touched.add(record.partition)
        return []

    # -------------------------------------------------------------- numbers

    def _end(self, run: Run, time: int, columns: Columns | None) -> list[Effect]:
        """Count the numbers of a transaction that has committed; return its updates."""
        counter = self.counters[run.partition]
        late = counter.highest_applied >= run.first
        counter.update(run.first - 1, run.count)
        self.touched.add(run.partition)
        return [] if columns is None else self._living(run, time, columns, late)

    def _living(self, run: Run, time: int, columns: Columns, late: bool) -> list[Effect]:
        """Return the updates of maps that are there still: a drop may overtake what was prepared.

        Nobody would remove their rows any more, and copies would have other ones.
        """
        names = columns.namespaces
        told = {names} if isinstance(names, int) else set(names)
        gone = {name for name in told if self._has_gone(name)}
        if not gone:
            return [Applied(run, time, columns, late)]
        if isinstance(names, int):
            return []
        return [
            Applied(run._replace(first=run.first + at, count=1), time, columns.between(at, at + 1),
                    late)
            for at, name in enumerate(names)
            if name not in gone
        ]  # fmt: skip

    def _has_gone(self, number: int) -> bool:
        """Tell whether there was a map of an id, and it was dropped."""
        return FIRST_NAMESPACE <= number < self.next_namespace and number not in self.namespaces

    def _has(self, run: Run) -> bool:
        """Tell whether all numbers of a run are applied already."""
        counter = self.counters[run.partition]
        end = run.first + run.count - 1
        if end <= counter.lwm:
            return True
        start = run.first - 1
        return any(low <= start and end <= low + count for low, count in counter.out_of_order)

    def _is_new(self, position: int, partition: int) -> bool:
        """Tell whether what a record says of a partition is not in the state yet."""
        if partition >= self.partitions:
            raise self._contradiction(position, f"partition {partition} of {self.partitions}")
        return position >= self.replay_from[partition]

    def _belongs(self, position: int, run: Run) -> bool:
        """Tell whether a run is not in the state yet, and its numbers are those of its epoch."""
        if not self._is_new(position, run.partition):
            return False
        if epoch_of(self.epoch_tables[run.partition], run.first) != run.epoch:
            raise self._contradiction(
                position, f"partition {run.partition}, counter {run.first} in epoch {run.epoch}"
            )
        return True

    # -------------------------------------------------------------- maps and epochs

    def _name(self, position: int, record: NamespaceRecord) -> list[Effect]:
        if record.space >= len(self.spaces):
            raise self._contradiction(position, f"space {record.space} of {len(self.spaces)}")
        if record.id not in self.dropped:
            self.namespaces[record.id] = record
        self.next_namespace = max(self.next_namespace, record.id + 1)
        return []

    def _drop(self, _position: int, record: DropNamespaceRecord) -> list[Effect]:
        if record.id in self.namespaces:
            self.dropped.add(record.id)  # first: a signal may come before the next line
            del self.namespaces[record.id]
        return []

    def _skip(self, _position: int, _record: Record) -> list[Effect]:
        return []

    def _grow(self, position: int, record: StateRecord) -> list[Effect]:
        """Learn of the spaces that a store has got; else a STATE has nothing that is new."""
        known, told = self.spaces, record.spaces
        if any(a[:2] != b[:2] for a, b in zip(known, told, strict=False)):
            raise self._contradiction(position, f"the spaces {told!r}")
        if len(told) > len(known):
            fresh, before = State.from_record(record), self.partitions
            self.counters = self.counters[:before] + fresh.counters[before:]
            self.epoch_tables = self.epoch_tables[:before] + fresh.epoch_tables[before:]
            self.epochs = self.epochs[:before] + fresh.epochs[before:]
            self.replay_from = self.replay_from[:before] + fresh.replay_from[before:]
            self.partitions, self.spaces = fresh.partitions, fresh.spaces
        return []

    def _apply_epochs(self, position: int, record: EpochRecord) -> list[Effect]:
        self.time = max(self.time, record.time)
        pairs = zip(record.epochs, record.starts, strict=True)
        for partition, (epoch, start) in enumerate(pairs, record.first_partition):
            if partition >= self.partitions:
                raise self._contradiction(position, f"partition {partition} of {self.partitions}")
            if epoch > self.epochs[partition]:
                table = with_epoch(self.epoch_tables[partition], epoch, start)
                self.epoch_tables[partition] = table
                self.touched.add(partition)
                self.epochs[partition] = epoch
        return []

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

    def mark(self, position: int) -> StoreMark:
        """Return what a checkpoint at a position records, which ``from_marks`` takes.

        Of a namespace that was dropped nothing is left then.
        """
        return StoreMark(
            store_id=self.store_id,
            position=position,
            time=self.time,
            namespaces=tuple(self.namespaces.values()),
            next_namespace=self.next_namespace,
            dropped=(),
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
            epoch_tables={p: table for p, table in enumerate(self.epoch_tables) if len(table) > 1},
            pending=tuple(
                Pending(one.tx_id, one.attempt, one.run)
                for prepared in self.copies.pending.values()
                for one in prepared.all()
            ),
            spaces=self.spaces,
        )


def _of_one_partition(record: CommitRecord, run: Run) -> CommitRecord:
    """Return the part of a COMMIT that another copy of one partition may lack."""
    return replace(record, participants=(run,), applied=(run.partition,))


_FOLD: dict[type, Callable[[State, int, Any], list[Effect]]] = {
    TxRecord: State._apply_tx,
    PrepareRecord: State._prepare,
    CommitRecord: State._commit,
    CommitUptoRecord: State._commit_upto,
    RollbackRecord: State._roll_back,
    IngestRecord: State._ingest,
    SettleRecord: State._settle,
    OpenRecord: State._open,
    SuppliedRecord: State._supply,
    ClearRecord: State._clear,
    AdmitRecord: State._admit,
    OutcomesRecord: State._take_outcomes,
    NamespaceRecord: State._name,
    DropNamespaceRecord: State._drop,
    EpochRecord: State._apply_epochs,
    StateRecord: State._grow,
    CheckpointRecord: State._skip,
    IdleRecord: State._skip,
    UnknownRecord: State._skip,
}
"""What each type of record does to a state; a test sees a row for every type."""
