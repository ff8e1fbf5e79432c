"""Records of a log as columns: Arrow batches for Spark, and for tools that need no JVM.

Invariants:

- Memory is bounded by the rows and bytes of a batch and one record, whatever the size of a segment.

Left out: the view ``changes``, of which there is more to do (``changes``).

PyArrow is imported when it is first needed: the store works without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from ...wal.format import Frame
from ...wal.records import (
    IngestRecord,
    NumberedRecord,
    RecordType,
    UndecodableRecordError,
    corrupt_record,
    decode_record,
    split_records,
)
from ..base.sql_types import parse_type
from .logs import BadFrame

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 4_000
BATCH_BYTES = 16 << 20
"""A batch ends with the row that brings it here: Arrow takes no 2 GiB in a column, nor memory."""

Fields = Sequence[tuple[str, str]]

CHANGES = (
    ("partition", "int"),
    ("counter", "bigint"),
    ("namespace", "string"),
    ("map_id", "bigint"),
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
    ("map_id", "bigint"),
    ("key", "binary"),
    ("value", "binary"),
    ("partition", "int"),
    ("counter", "bigint"),
    ("tx_id", "binary"),
    ("commit_ts", "timestamp"),
)
"""Columns of the view ``snapshot``; the data file knows no ``tx_id`` (``tx_ids``)."""

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


NODE = "node"
"""The column with the path of what a row is of."""


def with_node(batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
    """Return a batch with the path of what its rows are of behind its columns."""
    import pyarrow as pa

    return batch.append_column(NODE, pa.repeat(pa.scalar(path, pa.string()), batch.num_rows))


def ddl(fields: Fields) -> str:
    """Return fields as a schema of Spark SQL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in fields)


def arrow_schema(fields: Fields) -> pa.Schema:
    """Return fields as a schema of Arrow."""
    import pyarrow as pa

    return pa.schema([(name, parse_type(kind).arrow()) for name, kind in fields])


class GrowingColumns:
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
        self._bytes = 0

    def add(self, count: int, *values: Iterable[Any], size: int = 0) -> None:
        """Append ``count`` values to each column, in order; ``size`` is that of large ones."""
        self._added += count
        self._bytes += size
        for take, more in zip(self._takers, values, strict=True):
            if take is not None:
                take(more)

    @property
    def full(self) -> bool:
        """Whether a batch is due."""
        return self._added >= self._rows or self._bytes >= BATCH_BYTES

    def batch(self) -> Iterator[pa.RecordBatch]:
        """Yield what there is, if anything."""
        import pyarrow as pa

        if self._added:
            arrays = [
                pa.array(self._columns[name], type=self._schema.field(name).type)
                for name, _ in self._fields
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            self._added = self._bytes = 0
            for column in self._columns.values():
                column.clear()


def records(frame: Frame, kinds: Sequence[int]) -> Iterator[Any]:
    """Yield the records of some kinds in a frame; raises ``CorruptLogError``."""
    try:
        for kind, flags, body in split_records(frame.payload):
            if kind in kinds:
                yield decode_record(kind, flags, body)
    except UndecodableRecordError as error:
        raise corrupt_record(error, frame.segment, frame.offset) from None


def wal(
    frames: Iterable[Frame | BadFrame],
    node: str,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the records in the frames; a stretch without a valid frame is a row, too."""
    rows = GrowingColumns(WAL, columns, batch_rows)
    payloads = columns is None or "payload" in columns
    for frame in frames:
        if isinstance(frame, BadFrame):
            nothing = (None,)
            rows.add(
                1, (node,), (frame.segment,), (frame.offset,), (frame.length,), (False,),
                *repeat(nothing, 7),
            )  # fmt: skip
        else:
            yield from _add_records(rows, frame, node, payloads)
        if rows.full:
            yield from rows.batch()
    yield from rows.batch()


def _add_records(
    rows: GrowingColumns, frame: Frame, node: str, payloads: bool
) -> Iterator[pa.RecordBatch]:
    """Take the records of a frame; yield batches that are due."""
    try:
        parts = [
            (kind, body, *_head_of(kind, body)) for kind, _, body in split_records(frame.payload)
        ]
    except UndecodableRecordError as error:
        raise corrupt_record(error, frame.segment, frame.offset) from None
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
            size=len(body) if payloads else 0,
        )
        if rows.full:
            yield from rows.batch()


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
