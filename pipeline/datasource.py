"""The data source ``tidelog`` of Spark: ``spark.read.format("tidelog").option("path", p).load()``.

A thin shell: options and schema go in, tasks and batches come out (``reads``).

Invariants:

- No filter is pushed down: PySpark 4.3 keeps a planned reader for all queries of a DataFrame, and
  would apply the filters of one query to the next.
- What a read shows is pinned when it is planned: at the first action on a DataFrame.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..affinity.errors import TidelogError
from .bases import (
    AvailableNow,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from .columns import ddl
from .options import parse
from .reads import Stream, Task, fields_of, read

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType


P = ParamSpec("P")
T = TypeVar("T")


def _told(method: Callable[P, T]) -> Callable[P, T]:
    """Let an error bring its hint along: Spark shows the text of a traceback and nothing else."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except TidelogError as error:
            _note_hint(error)
            raise

    return call


def _note_hint(error: TidelogError) -> None:
    if error.hint and error.hint not in getattr(error, "__notes__", ()):
        error.add_note(error.hint)


class TidelogSource(DataSource):
    """The format ``tidelog``; the view is an option."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tidelog"

    @_told
    def schema(self) -> str:
        """Return the columns of the view."""
        return ddl(fields_of(parse(self._given, stream=None)))

    @_told
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch."""
        return _Reader(self._given, schema.names)

    @_told
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads a stream."""
        return _StreamReader(self._given, schema.names)


class _Part(InputPartition):
    """A task on its way to an executor."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


class _Reader(DataSourceReader):
    def __init__(self, given: dict[str, str], names: Sequence[str]) -> None:
        self._options = parse(given)
        self._names = tuple(names)

    @_told
    def partitions(self) -> list[InputPartition]:
        """Plan the read."""
        return [_Part(task) for task in read(self._options, self._names)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task; Spark calls this with None where there is none."""
        return _batches(partition)


class _StreamReader(DataSourceStreamReader, AvailableNow):
    def __init__(self, given: dict[str, str], names: Sequence[str]) -> None:
        self._options = parse(given, stream=True)
        self._names = tuple(names)
        self._opened: Stream | None = None

    @property
    def _stream(self) -> Stream:
        if self._opened is None:
            self._opened = Stream(self._options, self._names)
        return self._opened

    @_told
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins."""
        return self._stream.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        most = self._options.most_changes
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @_told
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next batch goes."""
        return self._stream.latest(start, getattr(limit, "max_rows", None))

    @_told
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at what is there now."""
        self._stream.freeze()

    @_told
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a batch."""
        return [_Part(task) for task in self._stream.tasks(start, end)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task."""
        return _batches(partition)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the planner needs."""
        return {**self.__dict__, "_opened": None}


def _batches(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _Part):
        task: Task = partition.value
        try:
            yield from task.batches()
        except TidelogError as error:
            _note_hint(error)
            raise


def register(spark: SparkSession) -> None:
    """Register the format in a session that does not find it by itself."""
    spark.dataSource.register(TidelogSource)
