"""Parquet files of ``tidelog kv import`` and ``export``, through pyarrow alone.

An export has the columns ``key`` and ``value``.  Of the codecs ``str``, ``bytes``, ``i64``, ``u64``
and ``float`` they have the type that means the same, of any other codec the text of the command
line, which is JSON for most.  The metadata of the file have the ``map`` line of an export in JSON
lines, and which columns are text.

Invariants:

- An export keeps every byte: an import of it makes the same map, given the same codecs.
- Memory is bounded by a group of rows, whatever the file is.
- pyarrow is imported only for such a file; without it the error names the extra.

Left out: what a row means for a map (``record_pairs``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from ...affinity.errors import UsageError
from ...engine.codecs.registry import Codec
from ...engine.data.namespaces import Namespace
from ..shell.text import exact, repeated
from .record_files import Numbered

if TYPE_CHECKING:
    import pyarrow

ROWS_MAX = 8192
"""Rows of a group that an export writes."""
ROWS_AT_ONCE = 1024
"""Rows that an import takes out of a group at a time."""
GROUP_BYTES = 64 << 20
"""A group that an export writes ends once it has so many bytes, too."""

_METADATA = b"tidelog"
_ARROW_TYPES = {"str": "string", "bytes": "binary", "i64": "int64", "u64": "uint64",
                "float": "float64"}  # fmt: skip


class ParquetRecords:
    """The rows of a Parquet file, and what an export of our own says about them."""

    def __init__(self, file: Any, name: str) -> None:
        self._file = file
        self._name = name
        self.rows: int = file.metadata.num_rows
        names = file.schema_arrow.names
        if len(set(names)) < len(names):
            raise UsageError(f"the file names the column {repeated(names)!r} twice")
        told = _metadata_of(file.schema_arrow.metadata or {})
        head, texts = told.get("head"), told.get("texts")
        self.head: dict[str, Any] = head if isinstance(head, dict) else {}
        self.texts = frozenset(map(str, texts)) if isinstance(texts, list) else frozenset()

    def records(self) -> Iterator[Numbered]:
        """Yield (number, record) of each row, from 1."""
        number = 0
        batches = self._file.iter_batches(ROWS_AT_ONCE)
        while True:
            with parquet_errors(f"{self._name}, behind row {number},"):
                batch = next(batches, None)
                records = [] if batch is None else batch.to_pylist()
            if batch is None:
                return
            for record in records:
                number += 1
                yield number, record


def _metadata_of(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    try:
        told = json.loads(metadata.get(_METADATA, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


@contextmanager
def parquet_errors(what: str) -> Iterator[None]:
    """Turn what pyarrow finds wrong with a file into an error about it."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, ValueError, ArithmeticError, RecursionError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UsageError(
            f"{what} is not Parquet that pyarrow {pa.__version__} reads: "
            + " ".join(str(error).split()),
            hint="Check that the file is whole, or convert it.",
        ) from None


def parquet_records(stream: BinaryIO, name: str) -> ParquetRecords:
    """Return the rows of a Parquet file that is open for reading already."""
    from pyarrow import parquet

    with parquet_errors(name):
        file = parquet.ParquetFile(stream)
    return ParquetRecords(file, name)


def write_parquet(
    stream: BinaryIO,
    namespace: Namespace,
    head: dict[str, Any],
    pairs: Iterable[tuple[bytes, bytes]],
    advance: Callable[[int], None],
) -> int:
    """Write pairs as Parquet; return how many."""
    import pyarrow as pa
    from pyarrow import parquet

    codecs = {"key": namespace.key_codec, "value": namespace.value_codec}
    texts = [name for name, codec in codecs.items() if codec.name not in _ARROW_TYPES]
    told = json.dumps({"head": head, "texts": texts}, ensure_ascii=False)
    fields = [
        pa.field(name, pa.type_for_alias(_ARROW_TYPES.get(codec.name, "string")), nullable=False)
        for name, codec in codecs.items()
    ]
    schema = pa.schema(fields, metadata={_METADATA: told.encode()})
    written = 0
    with parquet.ParquetWriter(stream, schema) as writer:
        for part in groups_of(pairs):
            columns = zip(*part, strict=True)
            arrays = [
                _array(column, codec, field.type)
                for column, codec, field in zip(columns, codecs.values(), fields, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            written += len(part)
            advance(len(part))
    return written


def groups_of(
    pairs: Iterable[tuple[bytes, bytes]], rows_max: int = ROWS_MAX, bytes_max: int = GROUP_BYTES
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the pairs of each group: it ends by their number, or by their bytes."""
    group: list[tuple[bytes, bytes]] = []
    size = 0
    for pair in pairs:
        group.append(pair)
        size += len(pair[0]) + len(pair[1])
        if len(group) == rows_max or size >= bytes_max:
            yield group
            group, size = [], 0
    if group:
        yield group


def _array(column: tuple[bytes, ...], codec: Codec[Any], kind: pyarrow.DataType) -> pyarrow.Array:
    import pyarrow as pa

    if codec.name in _ARROW_TYPES:
        return pa.array([codec.decode(data) for data in column], kind)
    return pa.array([exact(data, codec) for data in column], kind)
