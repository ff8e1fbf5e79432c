"""The updates of a log as columns: little work for each transaction, the rest in C for a batch.

Updates wait for their batch as they stand in their records, and become columns all at once.  An
example of two transactions, t1 with three updates in two partitions, and t2 with one::

    record   runs: partition, epoch, first, count   map   keys      values
    TX t1    (0, 1, 5, 2), (1, 1, 9, 1)             16    a, b, c   1, -, 3
    TX t2    (0, 1, 7, 1)                           17    d         4

    what ``_Updates`` holds of them
    _runs    [0, 1, 5, 2, 1, 1, 9, 1, 0, 1, 7, 1]   keys  [a, b, c, d]
    _maps    [16, 17]   _map_counts  [3, 1]         _values  [1, None, 3, 4]
    _tx_ids  [t1, t2]   _sizes       [3, 1]

``spread`` says for each row which of the counts it belongs to, and its place there: for the counts
of the runs, [2, 1, 1], that is [0, 0, 1, 2] and [0, 1, 0, 0].  So the number of a row is the first
one of its run plus its place there: 5 + 0, 5 + 1, 9 + 0 and 7 + 0.  All columns together::

    partition  counter  namespace  map_id  key  op      value  tx_id  tx_seq  tx_size
    0          5        users      16      a    put     1      t1     0       3
    0          6        users      16      b    delete         t1     1       3
    1          9        users      16      c    put     3      t1     2       3
    0          7        stock      17      d    put     4      t2     0       1

Invariants:

- Memory is bounded by the rows and bytes of a batch and one record, whatever the size of a segment.
- Updates come out in the order of the log, so the numbers of a partition ascend.
- Update numbers that no user sees (closed gaps, internal maps) make no row unless asked for.
- A row has the name that its map had when it was committed, whoever plans the read, and when.
- Rows that were attached from files are in no log: whoever reads over their numbers hears of it.

Left out: what a batch is called and typed (``columns``), where frames come from (``logs``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, compress, repeat
from typing import TYPE_CHECKING

from ...checkpoints.replay import FIRST_NAMESPACE
from ...tx.counter import COUNTER_MAX
from ...wal.format import Frame
from ...wal.records import (
    HIDDEN,
    DropNamespaceRecord,
    IngestRecord,
    RecordType,
    RollbackRecord,
    Run,
    StateRecord,
    TxFields,
    UndecodableRecordError,
    corrupt_record,
    decode_record,
    decode_tx_fields,
    flatten,
    split_records,
)
from ..base.vectors import Vector
from .columns import BATCH_BYTES, BATCH_ROWS, CHANGE_FIELDS, CHANGES, ChangeFormat, arrow_schema
from .logs import CATALOG, BadFrame, CatalogRecord, learn

if TYPE_CHECKING:
    import pyarrow as pa

PUT: Mapping[ChangeFormat, str] = {"tidelog": "put", "cdf": "update_postimage"}
"""What a put is called; whether there was a value before is not known."""

MAP_OF_CLOSED = -1
"""Stands for the map of numbers that were closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which changes make rows: numbers in ``(low, high]`` per partition, and filters.

    ``catalog`` is a stretch of the log whose drops and renames of maps make rows, too.
    """

    low: Vector
    high: Vector
    partitions: frozenset[int] | None = None
    namespace: str | None = None
    rollbacks: bool = False
    form: ChangeFormat = "tidelog"
    catalog: tuple[int, int] = (0, 0)

    def has_load(self, name: str) -> bool:
        """Tell whether the map of a load may be wanted, by its first name.

        One that is hidden has no name yet; one that was dropped hidden has closed numbers only.
        """
        if name == "":
            return False
        return name.startswith(HIDDEN) or self.namespace in (None, name)

    def borders(self) -> tuple[list[int], list[int]]:
        """Return the two borders by partition; if nothing is wanted no number lies between."""
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
            return batch if mask.true_count == len(mask) else batch.filter(mask)

        return filtered


def changes(
    frames: Iterable[Frame | BadFrame],
    names: dict[int, str],
    wanted: Wanted,
    attached: Callable[[IngestRecord, int], None],
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted updates in the frames, which begin where maps have these names.

    An update of an unknown map has none: that comes behind what cannot be read.  ``attached`` hears
    of what is wanted and not there, with the runs that are wanted, and the position of its frame.
    """
    import pyarrow as pa

    fields = CHANGE_FIELDS[wanted.form]
    chosen = [name for name, _ in fields if columns is None or name in columns]
    # What is wanted depends on the first three.
    built = [place for place, (name, _) in enumerate(fields) if place < 3 or name in chosen]
    schema = arrow_schema([fields[place] for place in built])
    names = dict(names)
    updates = _Updates(names, PUT[wanted.form])
    low, high = wanted.borders()
    filtered = wanted.filter()

    def ready() -> Iterator[pa.RecordBatch]:
        if updates.keys:
            columns = updates.columns()
            arrays = [columns[CHANGES[place][0]]() for place in built]
            batch = filtered(pa.RecordBatch.from_arrays(arrays, schema=schema))
            updates.clear()
            if batch.num_rows:
                yield batch.select(chosen)

    size = 0
    for frame in frames:
        assert isinstance(frame, Frame), "damage is refused before"
        try:
            for kind, flags, body in split_records(frame.payload):
                if kind == RecordType.TX:
                    updates.add(decode_tx_fields(body))
                elif kind == RecordType.ROLLBACK and wanted.rollbacks:
                    record = decode_record(kind, flags, body)
                    assert isinstance(record, RollbackRecord)
                    updates.add_closed(record)
                elif kind == RecordType.INGEST:
                    record = decode_record(kind, flags, body)
                    assert isinstance(record, IngestRecord)
                    runs = tuple(run for run in record.runs if _between(run, low, high))
                    if runs:
                        attached(replace(record, runs=runs), frame.position)
                elif kind in CATALOG:
                    record = decode_record(kind, flags, body)
                    assert isinstance(record, CatalogRecord)
                    yield from ready()
                    row = catalog_row(names, record, frame.position, wanted)
                    if row is not None:
                        yield catalog_batch([row], wanted.form).select(chosen)
                    learn(names, record)
                size += len(body)
                if len(updates.keys) >= batch_rows or size >= BATCH_BYTES:
                    yield from ready()
                    size = 0
        except UndecodableRecordError as error:
            raise corrupt_record(error, frame.segment, frame.offset) from None
    yield from ready()


CatalogRow = tuple[int, str | None, int, str, bytes | None, int | None]
"""Position, name, id, ``drop`` or ``rename``, the new name as bytes, microseconds UTC or None."""


def catalog_row(
    names: Mapping[int, str], record: CatalogRecord, position: int, wanted: Wanted
) -> CatalogRow | None:
    """Return what a record does to a map that had one of these names, if it is a wanted row."""
    if isinstance(record, StateRecord):
        return None
    old = names.get(record.id)
    row: CatalogRow
    if isinstance(record, DropNamespaceRecord):
        row = (position, old, record.id, "drop", None, record.time)
    else:
        row = (position, old, record.id, "rename", record.name.encode(), None)
    hidden = old is None or old.startswith(HIDDEN)
    return None if hidden or not wants(wanted, row) else row


def wants(wanted: Wanted, row: CatalogRow) -> bool:
    """Tell whether a drop, or a rename that is one, is among what is wanted."""
    position, old, _, op, new, _ = row
    low, high = wanted.catalog
    names = {old, None if new is None else new.decode()}
    return (
        low <= position < high
        and (op == "drop" or len(names) > 1)
        and (wanted.namespace is None or wanted.namespace in names)
    )


def catalog_batch(rows: Sequence[CatalogRow], form: ChangeFormat) -> pa.RecordBatch:
    """Return what became of maps as rows of the changes."""
    import pyarrow as pa

    schema = arrow_schema(CHANGE_FIELDS[form])
    places = {"counter": 0, "namespace": 1, "map_id": 2, "op": 3, "value": 4, "commit_ts": 5}
    arrays = [
        pa.array([row[places[name]] for row in rows], field.type)
        if name in places
        else pa.nulls(len(rows), field.type)
        for (name, _), field in zip(CHANGES, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_puts(
    batch: pa.RecordBatch, form: ChangeFormat, columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return rows of a snapshot as the puts that they would be in the changes."""
    import pyarrow as pa

    rows = batch.num_rows
    pairs = zip(CHANGES, CHANGE_FIELDS[form], strict=True)
    chosen = [(name, field) for (name, _), field in pairs if columns is None or field[0] in columns]
    schema = arrow_schema([field for _, field in chosen])

    def column(name: str, kind: pa.DataType) -> pa.Array:
        if name in batch.schema.names:
            return batch.column(name)
        return pa.repeat(PUT[form], rows) if name == "op" else pa.nulls(rows, kind)

    arrays = [column(name, field.type) for (name, _), field in zip(chosen, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _between(run: Run, low: list[int], high: list[int]) -> bool:
    """Tell whether a run has numbers above one border and up to the other."""
    return low[run.partition] < run.first + run.count - 1 and run.first <= high[run.partition]


class _Updates:
    """Updates as they stand in their records, until they are enough for a batch."""

    def __init__(self, names: dict[int, str], put: str) -> None:
        self._names = names
        self._put = put
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._runs: list[int] = []
        """Flat, as in a record: partition, epoch, first, count, ..."""
        self._maps: list[int] = []
        """Ids of maps, each of as many updates as ``_map_counts`` says."""
        self._map_counts: list[int] = []
        self._tx_ids: list[bytes] = []
        self._times: list[int] = []
        self._sizes: list[int] = []

    def add(self, tx: TxFields) -> None:
        """Take the updates of a transaction, but for those of internal maps."""
        tx_id, time, runs, maps, keys, values, _ = tx
        if isinstance(maps, int):
            if maps < FIRST_NAMESPACE:
                return
            self._maps.append(maps)
            self._map_counts.append(len(keys))
        else:
            if min(maps) < FIRST_NAMESPACE:
                runs, maps, keys, values = _shown(runs, maps, keys, values)
                if not keys:
                    return
            self._maps += maps
            self._map_counts += repeat(1, len(maps))
        self._take(tx_id, time, runs, keys, values)

    def add_closed(self, record: RollbackRecord) -> None:
        """Take numbers that were closed."""
        runs = flatten(record.runs)
        nothing = [None] * sum(runs[3::4])
        self._maps.append(MAP_OF_CLOSED)
        self._map_counts.append(len(nothing))
        self._take(record.tx_id, record.time, runs, nothing, nothing)

    def _take(
        self,
        tx_id: bytes,
        time: int,
        runs: list[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
    ) -> None:
        self._runs += runs
        self.keys += keys
        self._values += values
        self._tx_ids.append(tx_id)
        self._times.append(time)
        self._sizes.append(len(keys))

    def columns(self) -> dict[str, Callable[[], pa.Array]]:
        """Return what makes each column, by the names of ``CHANGES``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows, counts = len(self.keys), self._runs[3::4]
        partition = pa.array(self._runs[::4], pa.int32())
        number = pa.array(self._runs[2::4], pa.int64())
        if len(counts) != rows:  # some runs have more than one update
            of_run, place = spread(counts)
            partition, number = partition.take(of_run), pc.add(number.take(of_run), place)
        of_tx, place_in_tx = spread(self._sizes)
        # Each transaction brings one map at least.
        one_each = len(self._maps) == len(self._sizes)
        of_map = of_tx if one_each else spread(self._map_counts)[0]
        names = [self._names.get(number) for number in self._maps]
        values = cache(lambda: pa.array(self._values, pa.binary()))

        def op() -> pa.Array:
            # Arrow looks for modules that may know the type if it has to find one by itself.
            put, delete = (pa.scalar(text, pa.string()) for text in (self._put, "delete"))
            if values().null_count:
                return pc.if_else(values().is_valid(), put, delete)
            return pa.repeat(put, rows)

        found: dict[str, Callable[[], pa.Array]] = {
            "partition": lambda: partition,
            "counter": lambda: number,
            "namespace": lambda: pa.array(names, pa.string()).take(of_map),
            "map_id": lambda: pa.array(self._maps, pa.int64()).take(of_map),
            "key": lambda: pa.array(self.keys, pa.binary()),
            "op": op,
            "value": values,
            "tx_id": lambda: pa.array(self._tx_ids, pa.binary()).take(of_tx),
            "tx_seq": lambda: place_in_tx,
            "tx_size": lambda: pa.array(self._sizes, pa.int32()).take(of_tx),
            "commit_ts": lambda: pa.array(self._times, pa.timestamp("us", tz="UTC")).take(of_tx),
        }
        if MAP_OF_CLOSED in self._maps:
            closed = pc.equal(pa.array(self._maps, pa.int64()), MAP_OF_CLOSED).take(of_map)
            for name, shown in _OF_CLOSED.items():
                found[name] = partial(_where, closed, shown, found[name])
        return found


_OF_CLOSED = {"namespace": None, "map_id": None, "op": "rollback", "tx_seq": None, "tx_size": None}
"""What the columns of a number that was closed show."""


def _where(mask: pa.Array, shown: object, make: Callable[[], pa.Array]) -> pa.Array:
    """Return a column with something else where a mask is set."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = make()
    return pc.if_else(mask, pa.scalar(shown, column.type), column)


def spread(counts: Sequence[int]) -> tuple[pa.Array, pa.Array]:
    """Return for each row which of the counts it is counted in, and its place there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pa.array(counts, pa.int32())
    ends = pc.cumulative_sum(sizes)
    starts = pc.subtract(ends, sizes)
    rows = ends[-1].as_py()
    borders = pa.concat_arrays([starts, ends.slice(len(ends) - 1)])
    whose = pc.list_parent_indices(pa.ListArray.from_arrays(borders, pa.nulls(rows)))
    return whose, pc.subtract(_ascending(1 << rows.bit_length()).slice(0, rows), starts.take(whose))


@cache
def _ascending(count: int) -> pa.Array:
    import pyarrow as pa

    return pa.array(range(count), pa.int32())


def _shown(
    runs: list[int], maps: list[int], keys: list[bytes], values: list[bytes | None]
) -> tuple[list[int], list[int], list[bytes], list[bytes | None]]:
    """Leave the updates of internal maps out; return runs of one update each."""
    seen = [number >= FIRST_NAMESPACE for number in maps]
    parts = zip(*(iter(runs),) * 4, strict=True)
    single = ((p, epoch, n, 1) for p, epoch, low, count in parts for n in range(low, low + count))
    return (
        list(chain.from_iterable(compress(single, seen))),
        list(compress(maps, seen)),
        list(compress(keys, seen)),
        list(compress(values, seen)),
    )
