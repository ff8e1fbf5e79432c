"""Jobs over stores and logs: what one task does, and how many of them are run.

A job is a list of tasks and a function; its tasks run one after the other in this process
(engine ``arrow``, no JVM), or in the executors of a Spark session (engine ``spark``).  Both give
the same answer.

Invariants:

- An error of Tidelog, or of the operating system, in an executor is raised as it is in the driver.
- A task's memory is bounded by a batch of rows, unless its job says otherwise.
"""

from __future__ import annotations

import json
import os
import tempfile
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, get_args

from ...affinity.errors import TidelogError, UsageError
from ...affinity.partitions import partition_of
from ...engine.codecs.byte_text import shown_bytes
from ..base.private import make_folder, new_file
from ..base.remote import is_remote, names_at, send
from ..log import columns
from ..log.logs import Log
from ..plan.options import ReadOptions, parse
from ..plan.reads import Task, fields_of, read, resolved

if TYPE_CHECKING:
    import pyarrow as pa

    WriteBatch = Callable[[pa.RecordBatch], object]

Engine = Literal["arrow", "spark"]
Format = Literal["parquet", "csv", "jsonl"]
PlainRow = dict[str, Any]
Done = Callable[[int], None]
"""Told how many tasks have ended since."""

SMALL_BYTES = 64 << 20
"""Inputs below this are read sooner than a JVM starts."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Runner:
    """Where tasks run; ``master`` is that of Spark."""

    engine: Engine = "arrow"
    master: str = "local[*]"
    done: Done = lambda _count: None

    def run(self, work: Callable[[T], Iterable[R]], tasks: Sequence[T]) -> Iterator[R]:
        """Yield what ``work`` gives for every task; raises its first error."""
        if self.engine == "arrow" or not tasks:
            for task in tasks:
                yield from work(task)
                self.done(1)
            return
        from ..spark.sessions import local_session

        context = local_session(self.master).sparkContext
        # Collected as they are, errors too: Spark would make texts of them.
        for result in (
            context.parallelize(tasks, len(tasks)).flatMap(partial(_told, work)).collect()
        ):
            if isinstance(result, TidelogError | OSError):
                raise result
            yield result
        self.done(len(tasks))


def _told(work: Callable[[T], Iterable[R]], task: T) -> Iterator[R | TidelogError | OSError]:
    try:
        yield from work(task)
    except (TidelogError, OSError) as error:
        yield error


def engine_for(paths: Iterable[str], *, small_bytes: int = SMALL_BYTES) -> Engine:
    """Return the engine for inputs of this size."""
    size = 0
    for path in paths:
        if os.path.isfile(path):
            size += os.stat(path).st_size
        for folder, _, files in os.walk(path):
            size += sum(os.stat(os.path.join(folder, file)).st_size for file in files)
    return "arrow" if size < small_bytes else "spark"


# ------------------------------------------------------------------------------------- history


def history(
    path: str, namespace: str, key: bytes, runner: Runner, archive: str | None = None
) -> list[PlainRow]:
    """Return all versions of a key that the kept log holds, or an archive of it, oldest first.

    ``key`` is encoded as its map does.  Of a map that was attached from files the log holds later
    versions only, which a warning says.  Raises ``UsageError`` for a path without a log.
    """
    log = Log(path)
    cut = log.newest()
    given = {
        "view": "changes",
        "partitions": ",".join(str(partition_of(key, space)) for space in cut.state.spaces),
        "failOnDataLoss": "false",
    }
    # Also what it had under other names, if it is still there.
    wanted = frozenset(number for number, name in cut.maps().items() if name == namespace)
    found: dict[int, PlainRow] = {}
    for place in filter(None, (archive, path)):
        tasks = read(parse({**given, "path": json.dumps([place])}))
        for row in runner.run(partial(_versions, namespace, wanted, key), tasks):
            found[row["counter"]] = row
    return [found[number] for number in sorted(found)]


def _versions(name: str, maps: frozenset[int], key: bytes, task: Task) -> Iterator[PlainRow]:
    import pyarrow.compute as pc

    for batch in task.batches():
        for row in batch.filter(pc.equal(batch.column("key"), key)).to_pylist():
            if row["namespace"] == name or row["map_id"] in maps:
                yield row


# -------------------------------------------------------------------------------------- export


def export(
    given: Mapping[str, str], target: str, form: Format, runner: Runner
) -> tuple[int, list[str]]:
    """Write what a read with these options gives into files of a new folder.

    One file per task; a folder under its name is whole.  In ``jsonl`` bytes are ``{"s": text}`` or
    ``{"b64": ...}``, in ``csv`` base64.  Returns how many rows, and the names of the files.
    Raises ``UsageError`` if the folder is there already.
    """
    if form not in get_args(Format):
        raise UsageError(f"there is no format {form!r}", hint=", ".join(get_args(Format)))
    elsewhere = target if is_remote(target) else None
    if names_at(target) if elsewhere else os.path.lexists(target):
        raise UsageError(f"{target} is there already", hint="Name a folder that is not there yet.")
    options = resolved(parse(given))
    tasks = list(enumerate(read(options)))
    with ExitStack() as stack:
        if elsewhere:
            unfinished = stack.enter_context(tempfile.TemporaryDirectory())
        else:
            unfinished = f"{target}.unfinished"
        rows, names = _exported(unfinished, elsewhere, form, runner, tasks, options)
        if elsewhere:
            send(unfinished, [WHOLE_NAME], elsewhere)
        else:
            os.rename(unfinished, target)
    return rows, names


WHOLE_NAME = "_SUCCESS"
"""The last file of an export to a URI, where no folder can be renamed; it is empty, as Spark's."""


def _exported(
    unfinished: str,
    elsewhere: str | None,
    form: Format,
    runner: Runner,
    tasks: list[tuple[int, Task]],
    options: ReadOptions,
) -> tuple[int, list[str]]:
    """Write a file for each task into a folder, and bring it elsewhere, if that is wanted."""
    make_folder(unfinished)
    for name in os.listdir(unfinished):  # of a job that died
        os.unlink(os.path.join(unfinished, name))
    rows, names = 0, []
    for name, count in runner.run(partial(_export, unfinished, elsewhere, form), tasks):
        rows += count
        names.append(name)
    if not names:
        schema = columns.arrow_schema(fields_of(options))
        names.append(_write_file(unfinished, form, 0, schema, ())[0])
        if elsewhere:
            send(unfinished, names, elsewhere)
    if elsewhere:
        new_file(os.path.join(unfinished, WHOLE_NAME)).close()
    return rows, sorted(names)


def _export(
    folder: str, elsewhere: str | None, form: Format, numbered: tuple[int, Task]
) -> Iterator[tuple[str, int]]:
    """Write the rows of one task, if it has any, into a file of its own."""
    number, task = numbered
    batches = task.batches()
    first = next(batches, None)
    if first is not None:
        make_folder(folder)  # in Spark this may be another machine
        written = _write_file(folder, form, number, first.schema, chain((first,), batches))
        if elsewhere:
            send(folder, [written[0]], elsewhere)
        yield written


def _write_file(
    folder: str, form: Format, number: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[str, int]:
    name, rows = f"part-{number:05d}.{form}", 0
    with new_file(os.path.join(folder, name)) as file, _WRITERS[form](file, schema) as write:
        for batch in batches:
            write(batch)
            rows += batch.num_rows
    return name, rows


@contextmanager
def _parquet(file: BinaryIO, schema: pa.Schema) -> Iterator[WriteBatch]:
    from pyarrow.parquet import ParquetWriter

    with ParquetWriter(file, schema, compression="zstd") as writer:
        yield writer.write_batch


@contextmanager
def _csv(file: BinaryIO, schema: pa.Schema) -> Iterator[WriteBatch]:
    import pyarrow as pa
    from pyarrow.csv import CSVWriter

    def flat(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            column if field.type == kinds.field(field.name).type else _texts(column)
            for field, column in zip(batch.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=kinds)

    as_text = (pa.types.is_binary, pa.types.is_nested)
    kinds = pa.schema(
        [
            (field.name, pa.string() if any(test(field.type) for test in as_text) else field.type)
            for field in schema
        ]
    )
    with CSVWriter(file, kinds) as writer:
        yield lambda batch: writer.write_batch(flat(batch))


def _texts(column: pa.Array) -> pa.Array:
    """Return bytes as base64, and what is nested as JSON."""
    import pyarrow as pa

    def text(value: Any) -> str | None:
        if value is None:
            return None
        return b64encode(value).decode() if isinstance(value, bytes) else json.dumps(_plain(value))

    return pa.array(map(text, column.to_pylist()), pa.string())


@contextmanager
def _jsonl(file: BinaryIO, _schema: pa.Schema) -> Iterator[WriteBatch]:
    def write(batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            file.write(json.dumps(plain(row), ensure_ascii=False).encode() + b"\n")

    yield write


def plain(row: Mapping[str, Any]) -> PlainRow:
    """Return a row as JSON can hold it."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return shown_bytes(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, date) else value


_WRITERS = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl}
