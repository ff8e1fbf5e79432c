"""Stored pairs as rows of the view ``snapshot``: cut into columns in C, a batch at a time.

Invariants:

- Memory is bounded by the rows and bytes of a batch and one block.
- Nothing is looked at but what the columns asked for need; whoever adds pairs has checked them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING

from ...engine.data.stored import COUNTER, PREFIX_SIZE, TIME, TRAILER_SIZE
from ..log.changes import spread
from ..log.columns import BATCH_BYTES, SNAPSHOT, arrow_schema
from ..log.tx_ids import TxIds

if TYPE_CHECKING:
    import pyarrow as pa

_FAR = 1 << 31
"""No key is as long; Arrow multiplies the end of a slice by the number of rows."""


class StoredRows:
    """Pairs as they are stored, until they are enough for a batch."""

    def __init__(self, columns: Sequence[str] | None, rows: int, known: TxIds | None) -> None:
        fields = [field for field in SNAPSHOT if columns is None or field[0] in columns]
        self._schema = arrow_schema(fields)
        self._rows = rows
        self._known = known
        self._clear()

    def _clear(self) -> None:
        self._keys: list[bytes] = []
        self._stored: list[bytes] = []
        self._partitions: list[int] = []
        self._names: list[str] = []
        self._maps: list[int] = []
        self._bytes = 0
        self._counts: list[int] = []

    def add(self, block: list[tuple[bytes, bytes]], partition: int, number: int, name: str) -> None:
        """Take pairs of full key and stored value, all of one partition and one map."""
        stored = [value for _, value in block]
        self._keys += [key for key, _ in block]
        self._stored += stored
        self._bytes += sum(map(len, stored))
        self._maps.append(number)
        self._partitions.append(partition)
        self._names.append(name)
        self._counts.append(len(block))

    @property
    def full(self) -> bool:
        """Whether a batch is due."""
        return len(self._keys) >= self._rows or self._bytes >= BATCH_BYTES

    def batch(self) -> Iterator[pa.RecordBatch]:
        """Yield what there is, if anything."""
        import pyarrow as pa

        if self._keys:
            columns = self._columns()
            arrays = [columns[name]() for name in self._schema.names]
            self._clear()
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _columns(self) -> dict[str, Callable[[], pa.Array]]:
        """Return what makes each column."""
        import pyarrow as pa
        import pyarrow.compute as pc

        stored = cache(lambda: pa.array(self._stored, pa.binary()))
        block = cache(lambda: spread(self._counts)[0])
        trailer = cache(
            lambda: pc.binary_slice(stored(), -TRAILER_SIZE).cast(pa.binary(TRAILER_SIZE))
        )
        counter = cache(lambda: pc.binary_slice(trailer(), *COUNTER).view(pa.int64()))

        def tx_id() -> pa.Array:
            if self._known is None:
                return pa.nulls(len(self._keys), pa.binary())
            numbers = iter(counter().to_pylist())
            runs = zip(self._partitions, self._counts, strict=True)
            return pa.array(
                chain.from_iterable(self._known.of(p, islice(numbers, n)) for p, n in runs),
                pa.binary(),
            )

        return {
            "namespace": lambda: pa.array(self._names, pa.string()).take(block()),
            "map_id": lambda: pa.array(self._maps, pa.int64()).take(block()),
            "key": lambda: pc.binary_slice(pa.array(self._keys, pa.binary()), PREFIX_SIZE, _FAR),
            "value": lambda: pc.binary_slice(stored(), 0, -TRAILER_SIZE),
            "partition": lambda: pa.array(self._partitions, pa.int32()).take(block()),
            "counter": counter,
            "tx_id": tx_id,
            "commit_ts": lambda: pc.binary_slice(trailer(), *TIME).view(
                self._schema.field("commit_ts").type
            ),
        }
