"""Writing a load from many tasks: each stages a file, and one process lets them count.

A task writes whole partitions, rows in order, into a file of its own under ``_staging/`` in the
load's directory.  When all have ended, the files get their names and the manifest is written.
What each death leaves:

- before the manifest: files that it does not name.  The next job removes them.
- behind it: the load, and perhaps the files of the one that it replaced, until the next job.

Invariants:

- Whatever a directory has beside its manifest and the files named there is not part of a load.
- An attempt has a file of its own; only the files of attempts that were told of get names.

Left out: two jobs that write one directory at once.  Nothing here knows Spark.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from ...affinity.errors import UsageError
from ...affinity.partitions import one_space, partitions_of
from ...engine.data.namespaces import VALUE_BYTES_MAX, Home, Namespace, bound
from ...engine.data.stored import KEY_BYTES_MAX
from ...engine.system.disk import RealDirectory
from ...engine.system.production import production
from ...engine.upkeep.load_files import (
    LOAD_MANIFEST_NAME,
    NEW_LOAD_MANIFEST_NAME,
    LoadFile,
    LoadManifest,
    write_file,
    write_load_manifest,
)
from ...wal.records import NamespaceRecord
from ..base.private import make_folder
from ..plan.options import LoadOptions

if TYPE_CHECKING:
    import pyarrow as pa

LOAD_STAGING_NAME = "_staging"
COLUMNS = {"key": "binary", "value": "binary"}

_PART = re.compile(r"part-[0-9a-f]{32}-[0-9]{5}\.mdb")
_OTHERS = (LOAD_MANIFEST_NAME, NEW_LOAD_MANIFEST_NAME, LOAD_STAGING_NAME)
_ARRANGE = (
    "Keep one row per key, or set onConflict=last (`--on-conflict last`). A frame is sorted by "
    "`tidelog.pipeline.spark.arranging.arrange`."
)

KeyedRow = tuple[int, bytes, bytes]
"""Partition, key, value."""


class LoadWriter:
    """One job that writes a load: made where the job begins, and handed to its tasks.

    Raises ``UsageError`` if the directory has a load that is not to be replaced, or files of
    somebody else.
    """

    def __init__(self, options: LoadOptions, *, replace: bool = False) -> None:
        environment = production()
        self._options = options
        self._replace = replace
        self._id = environment.new_id()
        self._time = environment.clock()
        self._check_place()

    def stage(self, attempt: str, batches: Iterable[pa.RecordBatch]) -> LoadFile:
        """Write the rows of one task, which come by partition and key, into a file.

        Raises ``UsageError`` for a row out of order, without key or value, and for a key that
        comes twice; what the codecs did not make raises as ``Namespace.check_encoded`` does.
        """
        folder = self._staging()
        make_folder(folder)
        rows: Iterator[KeyedRow] = chain.from_iterable(_rows(batches, _namespace(self._options)))
        if self._options.on_conflict == "last":
            rows = _last_of_each(rows)
        parts = ((number, map(itemgetter(1, 2), part)) for number, part in groupby(rows, _FIRST))
        try:
            return write_file(os.path.join(folder, f"{attempt}.mdb"), parts, self._time)
        except UsageError as error:
            error.advise(error.hint or _ARRANGE)
            raise

    def commit(self, staged: Sequence[LoadFile]) -> LoadManifest:
        """Make a load of what was staged, replacing the one that is there."""
        self._check_place()
        found: set[int] = set()
        for part in (part for file in staged for part in file.partitions):
            if part.partition in found:
                raise UsageError(f"partition {part.partition} comes from two tasks", hint=_ARRANGE)
            found.add(part.partition)
        options = self._options
        make_folder(options.path)
        files = [self._named(number, file) for number, file in enumerate(staged) if file.partitions]
        directory = RealDirectory(options.path)
        directory.sync()  # the names of the files, before one that counts on them
        directory.close()
        namespace = _namespace(options)
        manifest = LoadManifest(
            id=self._id,
            partitions=options.partitions,
            map=options.namespace,
            key_codec=(namespace.key_codec.name, namespace.key_codec.version),
            value_codec=(namespace.value_codec.name, namespace.value_codec.version),
            time=self._time,
            files=tuple(files),
        )
        write_load_manifest(options.path, manifest)
        shutil.rmtree(os.path.join(options.path, LOAD_STAGING_NAME), ignore_errors=True)
        named = {file.name for file in files}
        for name in os.listdir(options.path):
            if _PART.fullmatch(name) and name not in named:
                os.unlink(os.path.join(options.path, name))
        return manifest

    def discard(self) -> None:
        """Remove what was staged."""
        shutil.rmtree(self._staging(), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self._staging()))

    def _staging(self) -> str:
        return os.path.join(self._options.path, LOAD_STAGING_NAME, self._id.hex())

    def _named(self, number: int, file: LoadFile) -> LoadFile:
        """Give a staged file a name that no other load has."""
        name = f"part-{self._id.hex()}-{number:05d}.mdb"
        staged = os.path.join(self._staging(), file.name)
        os.rename(staged, os.path.join(self._options.path, name))
        return replace(file, name=name)

    def _check_place(self) -> None:
        path = self._options.path
        names = os.listdir(path) if os.path.lexists(path) else []
        if LOAD_MANIFEST_NAME in names and not self._replace:
            raise UsageError(
                f"there is a load in {path} already",
                hint='Overwrite it: `--replace`, or mode("overwrite") of a frame.',
            )
        foreign = sorted(n for n in names if n not in _OTHERS and not _PART.fullmatch(n))
        if foreign:
            raise UsageError(
                f"{path} has files that do not belong to a load: {', '.join(foreign[:3])}",
                hint="Name a folder that is not there yet.",
            )


_FIRST = itemgetter(0)


def _namespace(options: LoadOptions) -> Namespace:
    """Return the map that a load is for, as far as it is known."""
    record = NamespaceRecord(
        id=0,
        name=options.namespace,
        key_codec=options.key_codec,
        key_version=1,
        value_codec=options.value_codec,
        value_version=1,
    )
    return bound(record, one_space(options.partitions)[0], Home(options.path), ())


def _rows(batches: Iterable[pa.RecordBatch], namespace: Namespace) -> Iterator[Iterable[KeyedRow]]:
    for batch in batches:
        columns = [batch.column(name) for name in COLUMNS]
        if any(column.null_count for column in columns):
            raise UsageError(
                "a row without a key, or without a value", hint="A load holds no deletes."
            )
        keys, values = (column.to_pylist() for column in columns)
        if (
            not namespace.plain
            or _longest(keys) > KEY_BYTES_MAX
            or _longest(values) > VALUE_BYTES_MAX
        ):
            for key, value in zip(keys, values, strict=True):
                namespace.check_encoded(key, value)
        yield zip(partitions_of(keys, namespace.space), keys, values, strict=True)


def _longest(parts: Iterable[bytes]) -> int:
    return max(map(len, parts), default=0)


def _last_of_each(rows: Iterable[KeyedRow]) -> Iterator[KeyedRow]:
    """Yield the last of successive rows with the same key."""
    held: KeyedRow | None = None
    for row in rows:
        if held is not None and held[1] != row[1]:
            yield held
        held = row
    if held is not None:
        yield held
