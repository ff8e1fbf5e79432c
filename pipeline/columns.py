"""Records of a log as columns: Arrow batches for Spark, and for tools that need no JVM.

Invariants:

- Memory is bounded by the rows of a batch and one record, whatever the size of a segment.
- Updates come out in the order of the log, so the numbers of a partition ascend.
- Update numbers that no user sees (closed gaps, internal maps) make no row unless asked for.

PyArrow is imported when it is first needed: the store works without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from ..checkpoints.replay import FIRST_NAMESPACE
from ..wal.format import Frame
from ..wal.records import (
    RecordType,
    RollbackRecord,
    Run,
    TxRecord,
    UndecodableRecordError,
    corrupt_record,
    decode_record,
    split_records,
)
from .logs import BadFrame
from .vectors import Number, Vector

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

    def takes(self, partition: int, number: int) -> bool:
        """Tell whether one number is wanted."""
        if self.partitions is not None and partition not in self.partitions:
            return False
        return self.low[partition][1] < number <= self.high[partition][1]

    def covers(self, run: Run) -> tuple[int, int]:
        """Return which of a run's updates are wanted, as a half-open range of places."""
        if self.partitions is not None and run.partition not in self.partitions:
            return 0, 0
        low, high = self.low.get(run.partition), self.high.get(run.partition)
        if low is None or high is None:
            return 0, 0
        return _above(run, low), _above(run, high)


def _above(run: Run, border: Number) -> int:
    """Return how many updates of a run are at or below a border."""
    return min(max(border[1] - run.first + 1, 0), run.count)


class Rows:
    """Columns that grow row by row and leave as batches."""

    def __init__(self, fields: Fields, columns: Sequence[str] | None, rows: int) -> None:
        self._fields = [field for field in fields if columns is None or field[0] in columns]
        self._schema = arrow_schema(self._fields)
        self._columns: dict[str, list[Any]] = {name: [] for name, _ in fields}
        self._first = fields[0][0]
        self._rows = rows

    def add(self, *values: Iterable[Any]) -> None:
        """Append values to each column, in order."""
        for column, more in zip(self._columns.values(), values, strict=True):
            column.extend(more)

    @property
    def full(self) -> bool:
        """Whether a batch is due."""
        return len(self._columns[self._first]) >= self._rows

    def batch(self) -> Iterator[pa.RecordBatch]:
        """Yield what there is, if anything."""
        import pyarrow as pa

        if self._columns[self._first]:
            arrays = [
                pa.array(self._columns[name], type=self._schema.field(name).type)
                for name, _ in self._fields
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            for column in self._columns.values():
                column.clear()


def changes(
    frames: Iterable[Frame | BadFrame],
    names: dict[int, str],
    wanted: Wanted,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted updates in the frames; an update of an unknown map has its id as name."""
    rows = Rows(CHANGE_FIELDS[wanted.form], columns, batch_rows)
    for frame in frames:
        assert isinstance(frame, Frame), "damage is refused before"
        for record in records(frame, (RecordType.TX, RecordType.ROLLBACK)):
            if isinstance(record, TxRecord):
                _add_updates(rows, record, names, wanted)
            elif isinstance(record, RollbackRecord) and wanted.rollbacks:
                _add_closed(rows, record, wanted)
            if rows.full:
                yield from rows.batch()
    yield from rows.batch()


def records(frame: Frame, kinds: Sequence[int]) -> Iterator[Any]:
    """Yield the records of some kinds in a frame; raises ``CorruptLogError``."""
    try:
        for kind, flags, body in split_records(frame.payload):
            if kind in kinds:
                yield decode_record(kind, flags, body)
    except UndecodableRecordError as error:
        raise corrupt_record(error, frame.segment, frame.offset) from error


def _add_updates(rows: Rows, tx: TxRecord, names: dict[int, str], wanted: Wanted) -> None:
    ids = tx.namespaces
    if isinstance(ids, int):
        if ids < FIRST_NAMESPACE:
            return
        shown: list[str] | None = None
        one = names.get(ids, str(ids))
        size = len(tx.keys)
    else:
        shown = [names.get(i, str(i)) if i >= FIRST_NAMESPACE else "" for i in ids]
        one = ""
        size = len(shown) - shown.count("")
    place = seen = 0
    for run in tx.runs:
        first, last = wanted.covers(run)
        before, place = place, place + run.count
        if shown is not None:
            seen = _add_mixed(rows, tx, run, before, (first, last), shown, seen, size, wanted)
            continue
        if first < last and wanted.namespace in (None, one):
            values = tx.values[before + first : before + last]
            count = last - first
            rows.add(
                repeat(run.partition, count),
                range(run.first + first, run.first + last),
                repeat(one, count),
                tx.keys[before + first : before + last],
                [wanted.put if value is not None else "delete" for value in values],
                values,
                repeat(tx.tx_id, count),
                range(before + first, before + last),
                repeat(size, count),
                repeat(tx.time, count),
            )


def _add_mixed(
    rows: Rows,
    tx: TxRecord,
    run: Run,
    before: int,
    covered: tuple[int, int],
    shown: list[str],
    seen: int,
    size: int,
    wanted: Wanted,
) -> int:
    """Add the updates of a run of several maps one by one; return how many users have seen."""
    for place in range(run.count):
        name = shown[before + place]
        if not name:
            continue
        if covered[0] <= place < covered[1] and wanted.namespace in (None, name):
            value = tx.values[before + place]
            rows.add(
                (run.partition,),
                (run.first + place,),
                (name,),
                (tx.keys[before + place],),
                (wanted.put if value is not None else "delete",),
                (value,),
                (tx.tx_id,),
                (seen,),
                (size,),
                (tx.time,),
            )
        seen += 1
    return seen


def _add_closed(rows: Rows, record: RollbackRecord, wanted: Wanted) -> None:
    for run in record.runs:
        first, last = wanted.covers(run)
        count = last - first
        if count > 0 and wanted.namespace is None:
            nothing = (None,) * count
            rows.add(
                repeat(run.partition, count),
                range(run.first + first, run.first + last),
                nothing,
                nothing,
                repeat("rollback", count),
                nothing,
                repeat(record.tx_id, count),
                nothing,
                nothing,
                repeat(record.time, count),
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
                (node,), (frame.segment,), (frame.offset,), (frame.length,), (False,),
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
    if kind not in (RecordType.TX, RecordType.ROLLBACK):
        return None, ()
    record = decode_record(kind, 0, body)
    assert isinstance(record, TxRecord | RollbackRecord)
    return record.tx_id, record.runs
