"""The data source ``tidelog`` of Spark: ``spark.read.format("tidelog").option("path", p).load()``.

A thin shell: options and schema go in, tasks and batches come out (``reads``, ``streams``); rows go
in, and end in one transaction (``sinks``) or in the files of a load (``load_sinks``).

Invariants:

- No filter is pushed down: PySpark 4.3 keeps a planned reader for all queries of a DataFrame, and
  would apply the filters of one query to the next.
- What a read shows is pinned when it is planned: a snapshot by ``load()``, whatever else, and a
  snapshot that is given a schema, at the first action on a DataFrame.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...affinity.errors import TidelogError, UsageError
from ...engine.system.production import production
from ...engine.upkeep.load_files import LoadFile
from ..base.sql_types import parse_type, type_of_json
from ..data.decoded import Decoding
from ..log.columns import Fields, ddl
from ..plan.options import (
    ReadOptions,
    WriteOptions,
    is_load,
    is_table,
    parse,
    parse_load,
    parse_write,
    table_options,
)
from ..plan.reads import Task, check_fields, fields_of, read, read_snapshot, resolved
from ..plan.streams import ViewStream, stream
from ..write import load_sinks, sinks
from ..write.load_sinks import LoadWriter
from ..write.sinks import Encoding, Staged
from .bases import (
    AvailableNow,
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from .versions import check_pyspark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType


_CUTS = "tidelog.cuts"
"""Under this name the first column of a snapshot carries the cuts, as JSON."""
_OPTIONS = "tidelog.options"
"""Under this name the first column of a table carries the options that it was made with."""


class TidelogSource(DataSource):
    """The format ``tidelog``; the view is an option."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_pyspark()
        self._given = dict(options)
        self._planned: list[Task] | None = None
        self._decoding: Decoding | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tidelog"

    def schema(self) -> StructType | str:
        """Return the columns of the view; the first of a snapshot tells the cut that it shows."""
        options = resolved(parse(self._given, stream=None))
        fields = fields_of(options)
        self._decoding = options.decoding
        if is_table(self._given):
            return _with(fields, _OPTIONS, self._pinned(options))
        if options.view == "snapshot":
            # What stands in the way is told at the first action: nobody may come to that.
            with contextlib.suppress(TidelogError):
                self._planned, cuts = read_snapshot(options, [name for name, _ in fields])
                plain = {path: {p: n for p, (_, n) in cut.items()} for path, cut in cuts.items()}
                return _with(fields, _CUTS, json.dumps(plain))
        return ddl(fields)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch."""
        return _Reader(*self._asked(schema, stream=False), self._planned)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads a stream."""
        return _StreamReader(*self._asked(schema, stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return what writes a batch."""
        if not self._given:
            raise UsageError(
                "Spark tells a source nothing of the options of a table that is written",
                hint="INSERT INTO a view: CREATE TEMPORARY VIEW name (key binary, value binary) "
                "USING tidelog OPTIONS (path '...', namespace '...').",
            )
        kind = _LoadWriter if is_load(self._given) else _Writer
        return kind(self._given, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return what writes a stream."""
        return _StreamWriter(self._given, schema, overwrite)

    def _asked(self, schema: StructType, *, stream: bool) -> tuple[ReadOptions, list[str]]:
        """Return options, and the columns that a reader is asked for, all of them of the view.

        Types that are given are those that keys and values are decoded into.
        """
        kinds = _kinds(schema)
        options = parse(self._given or _of_table(schema), stream=stream)
        if options.decode:
            options = replace(
                options,
                key_schema=options.key_schema or kinds.get("key"),
                value_schema=options.value_schema or kinds.get("value"),
                decoding=self._decoding,
            )
        options = resolved(options, stream=stream)
        check_fields(options, list(kinds.items()))
        return options, list(schema.names)

    def _pinned(self, options: ReadOptions) -> str:
        """Return the options of a table as JSON: Spark keeps the types of its columns, too."""
        given = table_options(self._given)
        if options.decoding is not None:
            given["keySchema"] = options.decoding.key.kind
            given["valueSchema"] = options.decoding.value.kind
        return json.dumps(given)


class _Part(InputPartition):
    """A task on its way to an executor."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


class _Reader(DataSourceReader):
    def __init__(
        self, options: ReadOptions, names: Sequence[str], planned: list[Task] | None
    ) -> None:
        self._options = options
        self._names = tuple(names)
        self._planned = planned

    def partitions(self) -> list[InputPartition]:
        """Plan the read, unless ``load()`` has."""
        planned = self._planned
        return [_Part(task) for task in planned or read(self._options, self._names)]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the planner needs."""
        return {**self.__dict__, "_planned": None}

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task; Spark calls this with None if there is none."""
        return _batches(partition)


class _StreamReader(DataSourceStreamReader, AvailableNow):
    def __init__(self, options: ReadOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)
        self._opened: ViewStream | None = None

    @property
    def _stream(self) -> ViewStream:
        if self._opened is None:
            self._opened = stream(self._options, self._names)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins."""
        return self._stream.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

        options = self._options
        if options.most_changes is not None:
            return ReadMaxRows(options.most_changes)
        return (
            ReadAllAvailable() if options.most_bytes is None else ReadMaxBytes(options.most_bytes)
        )

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next batch goes."""
        most = getattr(limit, "max_rows", None) or getattr(limit, "max_bytes", None)
        return self._stream.latest(start, most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return how far a batch could go now, for the progress of the query."""
        return self._stream.newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at what is there now."""
        self._stream.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a batch."""
        return [_Part(task) for task in self._stream.tasks(start, end)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task."""
        return _batches(partition)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the planner needs."""
        return {**self.__dict__, "_opened": None}


class _Message(WriterCommitMessage):
    """What a task tells whoever commits; ``query`` is the stream that it writes."""

    def __init__(self, staged: Staged, query: str | None = None) -> None:
        self.staged = staged
        self.query = query


class _Writer(DataSourceArrowWriter):
    def __init__(self, given: dict[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = parse_write(given)
        self._encoding = sinks.check_write(_kinds(schema), self._options, replace=overwrite)
        self._overwrite = overwrite
        self._folder = production().new_id().hex()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        staged = _stage(self._options, self._folder, _context(), iterator, self._encoding)
        return _Message(staged)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what all tasks have staged."""
        options = self._options
        batch = sinks.NumberedBatch(options.writer, options.number or 0)
        staged = [message.staged for message in _messages(messages)]
        sinks.commit(staged, batch, options, replace=self._overwrite, encoding=self._encoding)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what was staged."""
        sinks.discard(self._options.path, self._folder)


class _LoadMessage(WriterCommitMessage):
    """The file that a task of a load has written."""

    def __init__(self, file: LoadFile) -> None:
        self.file = file


class _LoadWriter(DataSourceArrowWriter):
    def __init__(self, given: dict[str, str], schema: StructType, overwrite: bool) -> None:
        sinks.check_schema(_kinds(schema), load_sinks.COLUMNS)
        self._load = LoadWriter(parse_load(given), replace=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return _LoadMessage(self._load.stage(_attempt(_context()), iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make a load of what all tasks have staged."""
        told = [message for message in messages if isinstance(message, _LoadMessage)]
        self._load.commit([message.file for message in told])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what was staged."""
        self._load.discard()


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, given: dict[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = parse_write(given, stream=True)
        self._encoding = sinks.check_write(_kinds(schema), self._options, replace=overwrite)
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId")
        number = context.getLocalProperty("streaming.sql.batchId")
        folder = f"{query}-{number}"
        return _Message(_stage(self._options, folder, context, iterator, self._encoding), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit what all tasks have staged, unless it is committed already."""
        options, told = self._options, _messages(messages)
        if told:
            batch = sinks.NumberedBatch(options.writer or told[0].query, batchId)
            staged = [message.staged for message in told]
            sinks.commit(staged, batch, options, replace=self._overwrite, encoding=self._encoding)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Forget what was staged: a repetition stages anew."""
        for folder in {message.staged.folder for message in _messages(messages)}:
            sinks.discard(self._options.path, folder)


def _stage(
    options: WriteOptions,
    folder: str,
    context: TaskContext,
    batches: Iterator[pa.RecordBatch],
    encoding: Encoding | None,
) -> Staged:
    return sinks.stage(folder, _attempt(context), batches, options, encoding)


def _attempt(context: TaskContext) -> str:
    """Return a name for what an attempt writes: a slow one must not write into that of another."""
    return f"{context.partitionId()}-{context.taskAttemptId()}"


def _context() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "only tasks write"
    return context


def _of_table(schema: StructType) -> dict[str, str]:
    """Return the options that a table was made with: Spark hands over nothing but its columns."""
    for field in schema.fields:
        if _OPTIONS in field.metadata:
            found: dict[str, str] = json.loads(field.metadata[_OPTIONS])
            return found
    raise UsageError(
        "this table does not say what to read: it was made with columns of its own",
        hint="CREATE TABLE name USING tidelog OPTIONS (path '...'), without columns.",
    )


def _messages(given: list[WriterCommitMessage | None]) -> list[_Message]:
    return [message for message in given if isinstance(message, _Message)]


def _kinds(schema: StructType) -> dict[str, str]:
    return {field.name: str(type_of_json(field.dataType.jsonValue())) for field in schema.fields}


def _batches(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _Part):
        task: Task = partition.value
        yield from task.batches()


def _with(fields: Fields, name: str, text: str) -> StructType:
    """Return fields as a schema whose first column carries a text under a name."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(
        {
            "fields": [
                {
                    "name": column,
                    "type": parse_type(kind).json(),
                    "nullable": True,
                    "metadata": {} if place else {name: text},
                }
                for place, (column, kind) in enumerate(fields)
            ]
        }
    )


def snapshot_vector(frame: DataFrame) -> dict[str, dict[int, int]]:
    """Return the cut that a snapshot shows: the last update number of each partition, by path.

    ``frame`` is what ``load()`` has returned, without a schema of the caller's.  As JSON the
    numbers of a path are a value for ``asOf`` and ``startingCounters``.  ``UsageError`` if
    ``frame`` is nothing of that kind, or its read could not be planned.
    """
    for field in frame.schema.fields:
        if _CUTS in field.metadata:
            cuts = json.loads(field.metadata[_CUTS])
            return {path: {int(p): n for p, n in cut.items()} for path, cut in cuts.items()}
    raise UsageError(
        "the cut of this DataFrame is not known",
        hint="Give what load() of the view snapshot returned, not a selection of it, and load it "
        "without a schema. `show()` tells whether the store can be read.",
    )


def register(spark: SparkSession) -> None:
    """Register the format in a session that does not find it by itself."""
    check_pyspark()
    spark.dataSource.register(TidelogSource)
