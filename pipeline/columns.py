"""Records of a log as columns: Arrow batches for Spark, and for tools that need no JVM.

Invariants:

- Memory is bounded by the rows of a batch and one record, whatever the size of a segment.
- Updates come out in the order of the log, so the numbers of a partition ascend.
- Update numbers that no user sees (closed gaps, internal maps) make no row unless asked for.
- Rows that were attached from files are in no log: whoever reads over their numbers hears of it.

PyArrow is imported when it is first needed: the store works without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any, Literal

from ..checkpoints.replay import FIRST_NAMESPACE
from ..tx.counter import COUNTER_MAX
from ..wal.format import Frame
from ..wal.records import (
    HIDDEN,
    IngestRecord,
    NumberedRecord,
    RecordType,
    RollbackRecord,
    TxFields,
    UndecodableRecordError,
    corrupt_record,
    decode_record,
    decode_tx_fields,
    split_records,
)
from .logs import BadFrame
from .vectors import Vector

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 4_000

Fields = Sequence[tuple[str, str]]

CHANGES = (
    ("partition", "int"),
    ("counter", "bigint"),
    ("namespace", "string"),
    ("key", "binary"),
    ("op", "string"),
    ("value", "binary"),
    ("tx_id", "binary"),
    ("tx_seq", "int"),
    ("tx_size", "int"),
    ("commit_ts", "timestamp"),
)
"""Columns of the view ``changes`` with their Spark types."""

ChangeFormat = Literal["tidelog", "cdf"]

_OF_DELTA = {"op": "_change_type", "counter": "_commit_version", "commit_ts": "_commit_timestamp"}

CHANGE_FIELDS: dict[ChangeFormat, Fields] = {
    "tidelog": CHANGES,
    "cdf": [(_OF_DELTA.get(name, name), kind) for name, kind in CHANGES],
}
"""The columns of ``changes``, also under the names of Delta Lake's change data feed."""

SNAPSHOT = (
    ("namespace", "string"),
    ("key", "binary"),
    ("value", "binary"),
    ("partition", "int"),
    ("counter", "bigint"),
    ("tx_id", "binary"),
    ("commit_ts", "timestamp"),
)
"""Columns of the view ``snapshot``; ``tx_id`` is null, for the data file knows none."""

META = (
    ("node", "string"),
    ("partition", "int"),
    ("state", "string"),
    ("lwm", "bigint"),
    ("hwm", "bigint"),
    ("gaps", "array<struct<start:bigint,count:bigint>>"),
    ("earliest_counter", "bigint"),
    ("checkpoint_id", "string"),
    ("rows", "bigint"),
    ("bytes", "bigint"),
    ("digest", "binary"),
)
"""Columns of the view ``meta``; rows and digest are the checkpoint's, bytes are not known."""

WAL = (
    ("node", "string"),
    ("segment", "bigint"),
    ("offset", "bigint"),
    ("length", "int"),
    ("crc_ok", "boolean"),
    ("record_type", "string"),
    ("partition", "int"),
    ("first_counter", "bigint"),
    ("count", "int"),
    ("tx_id", "binary"),
    ("topology_version", "bigint"),
    ("payload", "binary"),
)
"""Columns of the view ``wal``: a row per record and run; the payload stands in the first."""


def ddl(fields: Fields) -> str:
    """Return fields as a schema of Spark SQL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in fields)


def arrow_schema(fields: Fields) -> pa.Schema:
    """Return fields as a schema of Arrow."""
    import pyarrow as pa

    types = {
        "int": pa.int32(),
        "bigint": pa.int64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        dict(META)["gaps"]: pa.list_(pa.struct([("start", pa.int64()), ("count", pa.int64())])),
    }
    return pa.schema([(name, types[kind]) for name, kind in fields])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which changes make rows: numbers in ``(low, high]`` per partition, and filters."""

    low: Vector
    high: Vector
    partitions: frozenset[int] | None = None
    namespace: str | None = None
    rollbacks: bool = False
    form: ChangeFormat = "tidelog"

    @property
    def put(self) -> str:
        """What a put is called; whether there was a value before is not known."""
        return "put" if self.form == "tidelog" else "update_postimage"

    def has_load(self, name: str | None) -> bool:
        """Tell whether the map of a load may be wanted, by its name as a ``Cut`` has it.

        One that is hidden has no name yet; one that was dropped hidden has closed numbers only.
        """
        if name == "":
            return False
        return name is None or name.startswith(HIDDEN) or self.namespace in (None, name)

    def borders(self) -> tuple[list[int], list[int]]:
        """Return the two borders by partition; where nothing is wanted no number lies between."""
        everywhere = range(max(self.high, default=-1) + 1)
        chosen = self.high.keys() & self.low.keys()
        if self.partitions is not None:
            chosen &= self.partitions
        low = [self.low[p][1] if p in chosen else COUNTER_MAX for p in everywhere]
        return low, [self.high[p][1] if p in chosen else -1 for p in everywhere]

    def filter(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return what leaves the wanted rows of batches that begin with the columns of changes."""
        import pyarrow as pa
        import pyarrow.compute as pc

        low, high = (pa.array(border, pa.int64()) for border in self.borders())

        def filtered(batch: pa.RecordBatch) -> pa.RecordBatch:
            partition, number, name = batch.columns[:3]
            mask = pc.and_(
                pc.greater(number, low.take(partition)),
                pc.less_equal(number, high.take(partition)),
            )
            if self.namespace is not None:
                mask = pc.and_(mask, pc.equal(name, self.namespace))
            return batch.filter(mask)

        return filtered


class Rows:
    """Columns that grow row by row and leave as batches."""

    def __init__(self, fields: Fields, columns: Collection[str] | None, rows: int) -> None:
        self._fields = [field for field in fields if columns is None or field[0] in columns]
        self._schema = arrow_schema(self._fields)
        self._columns: dict[str, list[Any]] = {name: [] for name, _ in self._fields}
        self._takers = [
            self._columns[name].extend if name in self._columns else None for name, _ in fields
        ]
        self._rows = rows
        self._added = 0

    def add(self, count: int, *values: Iterable[Any]) -> None:
        """Append ``count`` values to each column, in order."""
        self._added += count
        for take, more in zip(self._takers, values, strict=True):
            if take is not None:
                take(more)

    @property
    def full(self) -> bool:
        """Whether a batch is due."""
        return self._added >= self._rows

    def batch(self) -> Iterator[pa.RecordBatch]:
        """Yield what there is, if anything."""
        import pyarrow as pa

        if self._added:
            arrays = [
                pa.array(self._columns[name], type=self._schema.field(name).type)
                for name, _ in self._fields
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            self._added = 0
            for column in self._columns.values():
                column.clear()


def changes(
    frames: Iterable[Frame | BadFrame],
    names: dict[int, str],
    wanted: Wanted,
    attached: Callable[[IngestRecord], None],
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted updates in the frames; an update of an unknown map has its id as name.

    ``attached`` hears of what is wanted and not there, with the runs that are wanted.
    """
    fields = [name for name, _ in CHANGE_FIELDS[wanted.form]]
    chosen = fields if columns is None else [name for name in fields if name in columns]
    rows = Rows(CHANGE_FIELDS[wanted.form], {*chosen, *fields[:3]}, batch_rows)
    low, high = wanted.borders()
    filtered = wanted.filter()

    def ready() -> Iterator[pa.RecordBatch]:
        for batch in map(filtered, rows.batch()):
            if batch.num_rows:
                yield batch.select(chosen)

    for frame in frames:
        assert isinstance(frame, Frame), "damage is refused before"
        try:
            for kind, flags, body in split_records(frame.payload):
                if kind == RecordType.TX:
                    tx = decode_tx_fields(body)
                    if _overlap(tx[2], low, high):
                        _add_updates(rows, tx, names, wanted.put)
                elif kind == RecordType.ROLLBACK and wanted.rollbacks:
                    record = decode_record(kind, flags, body)
                    assert isinstance(record, RollbackRecord)
                    _add_closed(rows, record)
                elif kind == RecordType.INGEST:
                    record = decode_record(kind, flags, body)
                    assert isinstance(record, IngestRecord)
                    runs = tuple(run for run in record.runs if _overlap([*run], low, high))
                    if runs and wanted.has_load(names.get(record.namespace)):
                        attached(replace(record, runs=runs))
                if rows.full:
                    yield from ready()
        except UndecodableRecordError as error:
            raise corrupt_record(error, frame.segment, frame.offset) from error
    yield from ready()


def _overlap(flat: list[int], low: list[int], high: list[int]) -> bool:
    """Tell whether any run has numbers between two borders; mostly the first tells of all."""
    return any(
        low[partition] < first + count - 1 and first <= high[partition]
        for partition, first, count in zip(flat[::4], flat[2::4], flat[3::4], strict=True)
    )


def records(frame: Frame, kinds: Sequence[int]) -> Iterator[Any]:
    """Yield the records of some kinds in a frame; raises ``CorruptLogError``."""
    try:
        for kind, flags, body in split_records(frame.payload):
            if kind in kinds:
                yield decode_record(kind, flags, body)
    except UndecodableRecordError as error:
        raise corrupt_record(error, frame.segment, frame.offset) from error


def _add_updates(rows: Rows, tx: TxFields, names: dict[int, str], put: str) -> None:
    tx_id, time, flat, ids, keys, values, _ = tx
    partitions: Iterable[int] = flat[::4]
    numbers: Iterable[int] = flat[2::4]
    count = len(keys)
    if len(flat) != 4 * count:  # some runs have more than one update
        runs = list(zip(partitions, numbers, flat[3::4], strict=True))
        partitions = [partition for partition, _, size in runs for _ in range(size)]
        numbers = [n for _, first, size in runs for n in range(first, first + size)]
    ops: Iterable[str] = [put if value is not None else "delete" for value in values]
    if isinstance(ids, int):
        if ids < FIRST_NAMESPACE:
            return
        shown: Iterable[str] = repeat(names.get(ids, str(ids)), count)
    else:
        seen = [number >= FIRST_NAMESPACE for number in ids]
        count = sum(seen)
        shown = [names.get(number, str(number)) for number in compress(ids, seen)]
        partitions, numbers = compress(partitions, seen), compress(numbers, seen)
        keys, values = list(compress(keys, seen)), list(compress(values, seen))
        ops = compress(ops, seen)
    rows.add(
        count,
        partitions,
        numbers,
        shown,
        keys,
        ops,
        values,
        repeat(tx_id, count),
        range(count),
        repeat(count, count),
        repeat(time, count),
    )


def _add_closed(rows: Rows, record: RollbackRecord) -> None:
    for run in record.runs:
        nothing = (None,) * run.count
        rows.add(
            run.count,
            repeat(run.partition, run.count),
            range(run.first, run.first + run.count),
            nothing,
            nothing,
            repeat("rollback", run.count),
            nothing,
            repeat(record.tx_id, run.count),
            nothing,
            nothing,
            repeat(record.time, run.count),
        )


def wal(
    frames: Iterable[Frame | BadFrame],
    node: str,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the records in the frames; a stretch without a valid frame is a row, too."""
    rows = Rows(WAL, columns, batch_rows)
    payloads = columns is None or "payload" in columns
    for frame in frames:
        if isinstance(frame, BadFrame):
            nothing = (None,)
            rows.add(
                1, (node,), (frame.segment,), (frame.offset,), (frame.length,), (False,),
                *repeat(nothing, 7),
            )  # fmt: skip
        else:
            _add_records(rows, frame, node, payloads)
        if rows.full:
            yield from rows.batch()
    yield from rows.batch()


def _add_records(rows: Rows, frame: Frame, node: str, payloads: bool) -> None:
    try:
        parts = [
            (kind, body, *_head_of(kind, body)) for kind, _, body in split_records(frame.payload)
        ]
    except UndecodableRecordError as error:
        raise corrupt_record(error, frame.segment, frame.offset) from error
    for kind, body, tx_id, runs in parts:
        count = max(len(runs), 1)
        payload = [bytes(body) if payloads else None, *repeat(None, count - 1)]
        rows.add(
            count,
            repeat(node, count),
            repeat(frame.segment, count),
            repeat(frame.offset, count),
            repeat(frame.end - frame.position, count),
            repeat(True, count),
            repeat(record_name(kind), count),
            [run[0] for run in runs] or (None,),
            [run[2] for run in runs] or (None,),
            [run[3] for run in runs] or (None,),
            repeat(tx_id, count),
            repeat(None, count),
            payload,
        )


_NAMES = {int(kind): kind.name for kind in RecordType}


def record_name(kind: int) -> str:
    """Return the name of a record's type; of one of a later version, its number."""
    return _NAMES.get(kind, str(kind))


def _head_of(kind: int, body: memoryview) -> tuple[bytes | None, Sequence[Sequence[int]]]:
    """Return id and runs of a record that has them."""
    if kind not in (RecordType.TX, RecordType.ROLLBACK, RecordType.INGEST):
        return None, ()
    record = decode_record(kind, 0, body)
    assert isinstance(record, NumberedRecord)
    return None if isinstance(record, IngestRecord) else record.tx_id, record.runs
