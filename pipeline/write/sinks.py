"""Writing from many tasks into one store, each batch once: tasks stage, one process commits.

A task writes its rows into a file of its own under ``staging/`` in the store's folder.  When all
tasks have ended, one process opens the store and commits the rows of the files that it was told
of, together with a row in the *ledger*: the writer's newest batch.  What each death leaves:

- a task, or the job, before the commit: files that nobody names.  The folder goes with the job,
  or after ``STAGING_SECONDS`` when somebody else commits.
- the committing process before the transaction is durable: nothing in the store; the batch is
  brought again.
- behind that, before the job hears of it: the batch is brought again, the ledger knows it, and
  nothing is written.

Invariants:

- No update number is reserved and no lock taken while rows are staged.
- The ledger's row is in the very transaction that it tells of.
- A writer's batches ascend; the ledger keeps its newest one, for each partition if those are
  committed one by one.

Nothing here knows Spark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...affinity.errors import (
    AlreadyOpenError,
    NotFoundError,
    SnapshotExpiredError,
    TransactionTooLargeError,
    UsageError,
)
from ...affinity.partitions import Space, partition_of
from ...engine.api.database import Database, session_of
from ...engine.api.maps import namespace_of
from ...engine.api.open import open as open_store
from ...engine.api.transactions import Transaction, behind
from ...engine.data.namespaces import Namespace
from ...engine.system.layout import MANIFEST_NAME, STAGING_NAME
from ...engine.system.production import production
from ..plan.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("tidelog.pipeline")

STAGING_SECONDS = 24 * 3600
COLUMNS = {"key": "binary", "value": "binary", "namespace": "string"}
"""What may be written; a null value deletes, and the namespace may be an option instead."""

BatchRows = dict[tuple[str, bytes], "bytes | None"]
"""What a batch does, by map and encoded key."""


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """A batch as its writer numbers it; without a writer a repeated batch is not recognised."""

    writer: str | None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """The rows of one task: a file in a folder of the staging area."""

    folder: str
    file: str
    rows: int


def check_write(columns: Mapping[str, str], options: WriteOptions, *, replace: bool) -> None:
    """Raise ``UsageError`` unless columns, by name with their types, can be written so."""
    if not os.path.isfile(os.path.join(options.path, MANIFEST_NAME)):
        raise NotFoundError(
            f"there is no store at {options.path}", hint="Make one with `tidelog.open(path)`."
        )
    if replace and (options.namespace is None or options.atomicity == "partition"):
        raise UsageError(
            "only one map can be replaced, in one transaction",
            hint="Set the option namespace, and leave out atomicity=partition.",
        )
    wanted = dict(COLUMNS)
    if options.namespace is not None:
        del wanted["namespace"]
    check_schema(columns, wanted)


def check_schema(columns: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise ``UsageError`` unless columns, by name with their types, are those that are wanted."""
    wrong = [name for name, kind in columns.items() if wanted.get(name) != kind]
    missing = [name for name in wanted if name not in columns]
    if wrong or missing:
        told = [f"{name} {columns[name]}" for name in wrong] + [f"no {name}" for name in missing]
        needed = ", ".join(f"{name} {kind}" for name, kind in wanted.items())
        raise UsageError(
            f"these columns cannot be written: {', '.join(told)}",
            hint=f"Select {needed}; text becomes bytes by `cast(... as binary)`.",
        )


def stage(
    folder: str, name: str, batches: Iterable[pa.RecordBatch], options: WriteOptions
) -> Staged:
    """Write the rows of one task into a file of the folder; ``name`` is the attempt's own."""
    import pyarrow as pa

    kinds = {"binary": pa.binary(), "string": pa.string()}
    names = [name for name in COLUMNS if name != "namespace" or options.namespace is None]
    schema = pa.schema([(name, kinds[COLUMNS[name]]) for name in names])
    place = os.path.join(options.path, STAGING_NAME)
    for deeper in ("", folder):
        place = os.path.join(place, deeper)
        os.makedirs(place, mode=0o700, exist_ok=True)
    file = os.path.join(place, f"{name}.arrow")
    rows = 0
    with (
        os.fdopen(os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch.select(names).cast(schema))
            rows += batch.num_rows
    return Staged(folder, f"{name}.arrow", rows)


def commit(
    staged: Sequence[Staged], batch: NumberedBatch, options: WriteOptions, *, replace: bool = False
) -> None:
    """Commit what was staged, unless the ledger knows the batch; remove the staging area.

    ``replace`` removes everything else from the map.  Raises ``AlreadyOpenError`` if another
    process writes the store, ``UsageError`` for rows that cannot be written,
    ``TransactionTooLargeError``.
    """
    path = options.path
    with _opened(path) as db:
        if options.atomicity == "batch":
            groups = [(b"", _rows(path, staged, options))] if staged or replace else []
        else:
            groups = _by_partition(
                _rows(path, staged, options), session_of(db).store.state.spaces[0]
            )
        _check_size(groups, options.most_updates)
        for part, rows in groups:
            try:
                known = db.run(
                    _apply, db, rows, batch, part, options.namespace if replace else None
                )
            except TransactionTooLargeError as error:
                error.add_note("Write smaller batches, or set atomicity=partition.")
                raise
            if known is not None:
                _log.warning(
                    "batch.known writer=%s number=%d newest=%d rows=%d path=%s",
                    batch.writer,
                    batch.number,
                    known,
                    len(rows),
                    path,
                    extra={"event": "batch.known"},
                )
    for folder in {one.folder for one in staged}:
        discard(path, folder)
    _sweep(path)


def _check_size(groups: Sequence[tuple[bytes, BatchRows]], most: int | None) -> None:
    """Raise ``TransactionTooLargeError`` before the first transaction if any has too many."""
    largest = max((len(rows) for _, rows in groups), default=0)
    if most is not None and largest > most:
        raise TransactionTooLargeError(
            f"{largest} updates would be one transaction, maxOpsPerTx is {most}",
            hint="Write smaller batches, or set atomicity=partition.",
        )


def discard(path: str, folder: str) -> None:
    """Remove what was staged in a folder; what is committed needs it no more."""
    shutil.rmtree(os.path.join(path, STAGING_NAME, folder), ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.join(path, STAGING_NAME))


def _sweep(path: str) -> None:
    """Remove what jobs have left that died."""
    place = os.path.join(path, STAGING_NAME)
    oldest = production().clock() / 1e6 - STAGING_SECONDS
    with contextlib.suppress(FileNotFoundError), os.scandir(place) as entries:
        for entry in entries:
            if entry.stat(follow_symlinks=False).st_mtime < oldest:
                discard(path, entry.name)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Database]:
    try:
        db = open_store(path, create=False)
    except AlreadyOpenError as error:
        error.add_note("Spark commits from its driver: no other process may write to the store.")
        raise
    with db:
        yield db


def _rows(path: str, staged: Sequence[Staged], options: WriteOptions) -> BatchRows:
    """Return the rows of files, later ones last; raises if a key comes twice."""
    rows: BatchRows = {}
    for one in staged:
        for name, key, value in _read(path, one, options.namespace):
            if options.on_conflict == "fail" and (name, key) in rows:
                raise UsageError(
                    f"key {key!r} of {name!r} comes twice in one batch, in no known order",
                    hint="Reduce the batch to one row per key, or set onConflict=last.",
                )
            rows[name, key] = value
    return rows


def _read(
    path: str, one: Staged, namespace: str | None
) -> Iterator[tuple[str, bytes, bytes | None]]:
    import pyarrow as pa

    file = os.path.join(path, STAGING_NAME, one.folder, one.file)
    rows = 0
    try:
        with pa.OSFile(file) as source, pa.ipc.open_stream(source) as batches:
            for batch in batches:
                rows += batch.num_rows
                # Lists, for what follows is a transaction, which takes bytes one by one.
                keys, values = (batch.column(name).to_pylist() for name in ("key", "value"))
                names = (
                    [namespace] * batch.num_rows
                    if namespace is not None
                    else batch.column("namespace").to_pylist()
                )
                if None in keys or None in names:
                    raise UsageError("a row without a key, or without a namespace")
                yield from zip(names, keys, values, strict=True)
    except FileNotFoundError as error:
        raise SnapshotExpiredError(
            f"the rows staged in {file} are gone", hint="Run the job again."
        ) from error
    if rows != one.rows:
        raise SnapshotExpiredError(
            f"{file} has {rows} rows, {one.rows} were staged", hint="Run the job again."
        )


def _by_partition(rows: BatchRows, space: Space) -> list[tuple[bytes, BatchRows]]:
    """Return rows by partition, each with the partition's name in the ledger."""
    found: dict[int, BatchRows] = {}
    for (name, key), value in rows.items():
        found.setdefault(partition_of(key, space), {})[name, key] = value
    return [(b"\0%d" % partition, found[partition]) for partition in sorted(found)]


def _apply(
    tx: Transaction,
    db: Database,
    rows: BatchRows,
    batch: NumberedBatch,
    part: bytes,
    replaced: str | None,
) -> int | None:
    """Write rows, and the ledger's row, in one transaction; nothing if it is there already.

    Return the writer's newest batch in that case.
    """
    if batch.writer is not None:
        view = tx[session_of(db).ledger()]
        whole = batch.writer.encode()
        for place in {whole, whole + part}:
            known = view.get(place)
            if known is not None and int(known) >= batch.number:
                return int(known)
        view[whole + part] = b"%d" % batch.number
    if replaced is not None:
        tx[db.map(replaced)].clear()
    setters: dict[str, Any] = {}
    for (name, key), value in rows.items():
        put = setters.get(name)
        if put is None:
            put = setters[name] = _setter(tx, namespace_of(db.map(name)))
        put(key, value)
    return None


def _setter(tx: Transaction, namespace: Namespace) -> Any:
    """Return what sets an encoded key, and refuses what the map's codecs would not read."""
    put = behind(tx).setter(namespace)

    def checked(key: bytes, value: bytes | None) -> None:
        namespace.check_encoded(key, value)
        put(key, value)

    return checked
