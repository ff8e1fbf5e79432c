"""Opens the store that a command is about, for reading or for writing, and finds its maps.

Invariants:

- Reading commands open read-only: they work beside a live writer and change nothing but
  ``lock.mdb`` and ``readers/``.  Those that copy a store recover it first (``recover``).
- A command never makes a store or a map unless it was told to.
- A map whose codecs are not installed here can still be read, as bytes.

Left out: the log (``files.log_source``) and what LMDB holds (``inspection``).
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from ...affinity.errors import (
    AlreadyOpenError,
    CodecError,
    CorruptDataError,
    NotFoundError,
    StorageError,
    UsageError,
)
from ...engine.api import open as opens
from ...engine.api.choices import Durability
from ...engine.api.database import Database, session_of
from ...engine.api.maps import Map
from ...engine.api.read_only import ReadOnlyDatabase
from ...engine.codecs.registry import DATACLASS_PREFIX, Codec, codec_named, reading_codec
from ...engine.files import manifest as manifests
from ...engine.store.place import cluster_directory, owner_of
from ...engine.system.disk import DIRECTORY_MODE
from ...engine.system.layout import (
    CLUSTER_FILE_NAME,
    DATA_FILE,
    DATA_NAME,
    LOCK_NAME,
    MANIFEST_NAME,
    READERS_NAME,
    WAL_NAME,
)
from ...engine.system.production import production
from ...wal.files import ReadOnlyDirectory
from ...wal.records import NamespaceRecord
from ..shell.exits import ClosingError, Exit, RefusedError, exit_code
from ..shell.terminal import tell_beside
from ..shell.text import first_of
from ..wal.records import FIRST_USER_NAMESPACE

AnyMap = Map[Any, Any]


def is_store(path: str) -> bool:
    """Tell whether a path has the manifest of a store; ``OSError`` if that cannot be seen."""
    try:
        os.stat(os.path.join(path, MANIFEST_NAME))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_link(path: str) -> None:
    """Raise ``UsageError`` for a symbolic link that leads nowhere: nothing can be made there."""
    if os.path.islink(path) and not os.path.exists(path):
        raise UsageError(
            f"{path} is a symbolic link to {os.readlink(path)}, which does not exist",
            hint="Make that directory, or name another path.",
        )


def require_store(path: str) -> None:
    """Raise unless a store is at a path: ``NotFoundError``, or ``UsageError`` for a file."""
    check_link(path)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise UsageError(f"{path} is not a directory", hint="Name the directory of a store.")
    if not is_store(path):
        if _holds_data(path):
            raise CorruptDataError(f"{path} holds the data of a store, but no manifest")
        if os.path.lexists(os.path.join(path, CLUSTER_FILE_NAME)):
            raise cluster_directory(path)
        raise NotFoundError(
            f"there is no store at {path}",
            hint="These commands are for stores: connect to a cluster with `tidelog.connect`."
            if path.startswith(("tidelog:", "tidelog+unix:"))
            else "Check the path; `tidelog kv put` and `kv import` make a store with --create.",
        )


def _holds_data(path: str) -> bool:
    """Tell whether a directory has what only a store has, beside its manifest."""
    log = os.path.join(path, WAL_NAME)
    segments = os.listdir(log) if os.path.isdir(log) else []
    return any(name.endswith(".log") for name in segments) or os.path.exists(
        os.path.join(path, DATA_NAME, DATA_FILE)
    )


def check_backup(path: str) -> None:
    """Raise unless a copy of a store is at a path that nobody has opened for writing."""
    require_store(path)
    if not manifests.read(ReadOnlyDirectory(path)).copied:
        raise RefusedError(
            f"{path} is not a backup: it was opened for writing, and is a store of its own",
            hint=f"Use it as it is, or copy it: `tidelog db backup {shlex.quote(path)} DIRECTORY`.",
        )


def check_new_directory(path: str) -> None:
    """Raise ``RefusedError`` if a command would write over something."""
    if os.path.lexists(path) and not (os.path.isdir(path) and _holds_no_file(path)):
        if _holds_data(path) and not is_store(path):
            raise RefusedError(
                f"{path} holds data without a manifest, as a copy that was killed leaves",
                hint="Delete it if it is that, or name another directory.",
            )
        raise RefusedError(
            f"{path} is there already, and not an empty directory",
            hint="Name an empty directory, or one that does not exist yet.",
        )


def _holds_no_file(path: str) -> bool:
    """Tell whether a directory is empty but for the empty folders of a copy that was not made."""
    return all(
        name in (WAL_NAME, DATA_NAME, READERS_NAME)
        and os.path.isdir(os.path.join(path, name))
        and not os.listdir(os.path.join(path, name))
        for name in os.listdir(path)
    )


@contextmanager
def new_directory(path: str) -> Iterator[None]:
    """Take the empty folders away that a failure leaves, if the directory was not there before."""
    new = not os.path.lexists(path)
    try:
        yield
    except BaseException:
        if new:
            _remove_empty(path)
        raise


@contextmanager
def appearing_whole(path: str) -> Iterator[str]:
    """Give a directory beside ``path`` to make a store in; it gets that name when all is done.

    Half a store looks whole, and a command may be killed.  ``path`` may be an empty directory.
    """
    path = os.path.realpath(path)
    beside = f"{path}.part"
    if os.path.lexists(beside):
        raise RefusedError(
            f"{beside} is there: half of a store, by a command that was killed or still runs",
            hint="Delete it unless such a command is running, and run this one again.",
        )
    if os.path.ismount(path):
        raise UsageError(
            f"{path} is a mount point, which nothing can be renamed to",
            hint="Name a directory in it.",
        )
    os.mkdir(beside, DIRECTORY_MODE)
    try:
        if os.path.isdir(path):
            os.chmod(beside, stat.S_IMODE(os.stat(path).st_mode))
        yield beside
        _remove_empty(path)
        os.rename(beside, path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _remove_empty(path: str) -> None:
    """Remove a directory with nothing but the empty folders of a store in it."""
    for name in (WAL_NAME, DATA_NAME, READERS_NAME, ""):
        with suppress(OSError):
            os.rmdir(os.path.join(path, name))


def map_like(db: Database, record: NamespaceRecord) -> AnyMap:
    """Return the map of a record in another store, made if needed; its codecs may be unknown."""
    stand_ins = {codec.name: codec for codec in _placeholders(record)}

    def codec(name: str, version: int) -> Codec[Any]:
        return stand_ins.get(name) or codec_named(name, version)

    return db.map(
        record.name,
        key=codec(record.key_codec, record.key_version),
        value=codec(record.value_codec, record.value_version),
    )


@contextmanager
def reading(path: str, codecs: Sequence[Codec[Any]] = ()) -> Iterator[ReadOnlyDatabase]:
    """Open a store for reading, beside a live writer or not."""
    require_store(path)
    with opens.open(path, read_only=True, codecs=codecs) as db:
        yield db


def recover(path: str) -> None:
    """Recover a store that was not closed: its last commits may not be known to be durable yet.

    Beside a writer there is nothing to recover; if nothing can be written, what is left out
    of a copy is told.
    """
    require_store(path)
    if manifests.read(ReadOnlyDirectory(path)).clean_end is not None:
        return
    try:
        with writing(path):
            pass
    except AlreadyOpenError:
        return
    except StorageError as error:
        if exit_code(error) is not Exit.PERMISSION:
            raise
        tell_beside(
            f"note: {path} was not closed, and cannot be written here: commits behind the last "
            "position that is known to be durable are left out of the copy"
        )


@contextmanager
def without_writer(path: str) -> Iterator[None]:
    """Keep writers away; ``AlreadyOpenError`` if there is one.

    A store without a lock file has no writer; no lock file is made.
    """
    environment = production()
    if not os.path.isfile(os.path.join(path, LOCK_NAME)):
        yield
        return
    try:
        lock = environment.disk.lock(os.path.join(path, LOCK_NAME), shared=True)
    except BlockingIOError:
        pid = owner_of(environment, path)
        raise AlreadyOpenError(
            f"{path} is open for writing in process {pid or '(unknown)'}", path=path, pid=pid
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing(
    path: str,
    *,
    create: bool = False,
    durability: Durability = "always",
    partitions: int | None = None,
) -> Iterator[Database]:
    """Open a store for writing, making it only if ``create`` says so."""
    if create:
        check_link(path)
    else:
        require_store(path)
    db = opens.open(path, create=create, durability=durability, partitions=partitions)
    try:
        yield db
    except BaseException:
        with suppress(StorageError):  # the failure that is on its way tells more
            db.close()
        raise
    try:
        db.close()
    except StorageError as error:
        raise ClosingError(
            f"what was printed is committed; closing failed: {error}"
        ) from error.__cause__


@contextmanager
def reading_map(path: str, name: str) -> Iterator[tuple[ReadOnlyDatabase, AnyMap]]:
    """Open a store for reading with one of its maps, as bytes if its codecs are unknown."""
    with reading(path) as db:
        require_map(db, name)
        try:
            mapping = db.map(name)
        except CodecError:
            record = record_of(db, name)
        else:
            yield db, mapping
            return
    with reading(path, codecs=_placeholders(record)) as db:
        yield db, db.map(name)


def require_map(db: Database | ReadOnlyDatabase, name: str) -> None:
    """Raise ``NotFoundError`` if the store has no such map."""
    names = db.maps()
    if name not in names:
        hint = f"The store has these maps: {first_of(names)}."
        raise NotFoundError(f"there is no map {name!r}", hint=hint)


def record_of(db: Database | ReadOnlyDatabase, name: str) -> NamespaceRecord:
    """Return what is recorded about a map that exists."""
    return next(record for record in records_of(db) if record.name == name)


def records_of(db: Database | ReadOnlyDatabase) -> list[NamespaceRecord]:
    """Return what is recorded about all maps."""
    wanted, number = len(db.maps()), FIRST_USER_NAMESPACE
    found: list[NamespaceRecord] = []
    while len(found) < wanted:
        record = (
            session_of(db).catalog.record(number)
            if isinstance(db, Database)
            else session_of(db).record(number)
        )
        number += 1
        if record is not None and not record.hidden:
            found.append(record)
    return found


def _placeholders(record: NamespaceRecord) -> list[Codec[Any]]:
    """Codecs that stand for unknown ones: their bytes pass; of values only documents are read."""
    codecs = []
    for name, version in {
        (record.key_codec, record.key_version),
        (record.value_codec, record.value_version),
    }:
        try:
            codec_named(name, version)
        except CodecError:
            codecs.append(_placeholder(name, version))
    return codecs


def _placeholder(name: str, version: int) -> Codec[Any]:
    try:
        return reading_codec(name, version)
    except CodecError:
        of = dict if name.startswith(DATACLASS_PREFIX) else None
        return Codec(name=name, version=version, encode=_unknown, decode=_unknown, of=of)


def _unknown(_value: object) -> NoReturn:
    raise CodecError(
        "the codec is not known here",
        hint="Install the package that registers it, or give bytes as hex: or b64:.",
    )
