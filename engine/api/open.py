"""``tidelog.open``: from a path and options to the handle that the user gets.

Left out: how a directory becomes an open store (``opening``), what the handles do (``database``,
``read_only``).
"""

from __future__ import annotations

import difflib
import gc
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload

from ...affinity.errors import AlreadyOpenError, CodecError, UsageError
from ..codecs.registry import ValueCodec, given_codecs
from ..store.opening import OpenStore, open_store
from ..store.options import GivenOptions, Options
from ..store.place import IN_MEMORY, place_of
from ..system.disk_errors import translated_disk
from ..system.environment import Environment
from ..system.forks import free
from ..system.production import production
from .choices import Durability, choice
from .database import Database, session_of
from .maps import Map, namespace_of
from .pickling import Reopenable, WayBack, opened_at
from .session import StoreSession

if TYPE_CHECKING:
    from .read_only import ReadOnlyDatabase
    from .read_session import ReadSession

T = TypeVar("T")

log = logging.getLogger("tidelog.store")


@overload
def open(
    path: str | os.PathLike[str],
    *,
    partitions: int | None = ...,
    durability: Durability = ...,
    read_only: Literal[False] = ...,
    create: bool = ...,
    codecs: Iterable[ValueCodec[Any]] = ...,
    **limits: Unpack[GivenOptions],
) -> Database: ...
@overload
def open(
    path: str | os.PathLike[str],
    *,
    durability: Durability = ...,
    read_only: Literal[True],
    create: bool = ...,
    codecs: Iterable[ValueCodec[Any]] = ...,
    **limits: Unpack[GivenOptions],
) -> ReadOnlyDatabase: ...
@overload
def open(
    path: str | os.PathLike[str],
    *,
    durability: Durability = ...,
    read_only: bool,
    create: bool = ...,
    codecs: Iterable[ValueCodec[Any]] = ...,
    **limits: Unpack[GivenOptions],
) -> Database | ReadOnlyDatabase: ...
def open(
    path: str | os.PathLike[str],
    *,
    partitions: int | None = None,
    durability: Durability = "always",
    read_only: bool = False,
    create: bool = True,
    codecs: Iterable[ValueCodec[Any]] = (),
    **limits: Unpack[GivenOptions],
) -> Database | ReadOnlyDatabase:
    """Open the store in the directory ``path``, making it if there is none.

    ``partitions`` (1 to 32,768, default 16) is fixed when a store is made.  ``durability``:
    ``always`` acknowledges a commit after its sync, ``interval`` syncs every ``sync_interval``
    seconds, ``none`` at checkpoints and every few MiB.  ``read_only`` opens beside a live writer,
    at the newest durable state, and returns a ``ReadOnlyDatabase``.  ``codecs`` are codecs of your
    own that the store's maps name.  ``limits`` are the fields of ``Options``.

    Raises ``AlreadyOpenError``, ``NotFoundError``, ``CorruptLogError``, ``CorruptDataError``,
    ``FormatVersionError``, ``ForeignFileError``, ``DiskError``, ``UsageError``.
    """
    if read_only:
        return _open_reading(production(), path, partitions, codecs, limits, named=True)
    return _open_writing(
        production(), place_of(path), partitions, durability, create, codecs, limits, named=True
    )


def reopened(path: str, read_only: bool, options: dict[str, Any]) -> Database | ReadOnlyDatabase:
    """Return what a pickled handle stands for: the store that is open here, or open it.

    Raises as ``open`` does: ``AlreadyOpenError`` if another process has it open for writing, and
    so had the handle.  A store that is gone is not made anew.
    """
    return _found_again(path, read_only, options)[0]


def _found_again(
    path: str, read_only: bool, options: dict[str, Any]
) -> tuple[Database | ReadOnlyDatabase, bool]:
    """Return the store of a pickled handle, and whether it was opened for that."""
    with _reopening:
        session = opened_at(path, read_only)
        if session is not None:
            return session.face() or _face_of(session), False
        found: Database | ReadOnlyDatabase
        if read_only:
            found = open(path, read_only=True, **options)
        else:
            try:
                found = open(path, create=False, **options)
            except AlreadyOpenError as error:
                if error.pid == os.getpid():
                    raise
                raise AlreadyOpenError(
                    f"the handle that was pickled is one for writing, and {error}",
                    path=error.path,
                    pid=error.pid,
                    hint="Hand over the path, and open it with `tidelog.open(path, "
                    "read_only=True)`, which works beside the process that writes.",
                ) from None
        session_of(found).warns = False
        return found, True


def reopened_map(
    path: str,
    read_only: bool,
    options: dict[str, Any],
    name: str,
    codecs: tuple[tuple[str, int], tuple[str, int]],
) -> Map[Any, Any]:
    """Return the map that a pickled one stands for: see ``reopened``.

    Raises ``NotFoundError`` if there is none of that name, ``CodecError`` if that is another one.
    """
    database, fresh = _found_again(path, read_only, options)
    try:
        found = database.map(name, create=False)
        if namespace_of(found).codec_names != codecs:
            (key, _), (value, _) = codecs
            raise CodecError(
                f"the map {name!r} that was pickled had codecs {key} and {value}, and this one is "
                f"{found!r}",
                hint="It was dropped and made anew: get it from `db.map`.",
            )
        return found
    except BaseException:
        if fresh:  # at once: whoever has the exception has the store, too
            database.close()
        raise


def _face_of(session: Reopenable) -> Database | ReadOnlyDatabase:
    """Return a handle of a store of which only maps, or what they gave, are left."""
    if isinstance(session, StoreSession):
        return Database(session)
    from .read_only import ReadOnlyDatabase
    from .read_session import ReadSession

    return ReadOnlyDatabase(cast(ReadSession, session))


_reopening = threading.Lock()
"""Held on the way back, so that two threads do not open the same store at once."""

os.register_at_fork(after_in_child=partial(free, _reopening))


@overload
def open_with(
    environment: Environment,
    path: str | os.PathLike[str],
    *,
    partitions: int | None = ...,
    durability: Durability = ...,
    read_only: Literal[False] = ...,
    create: bool = ...,
    codecs: Iterable[ValueCodec[Any]] = ...,
    **limits: Unpack[GivenOptions],
) -> Database: ...
@overload
def open_with(
    environment: Environment,
    path: str | os.PathLike[str],
    *,
    durability: Durability = ...,
    read_only: Literal[True],
    create: bool = ...,
    codecs: Iterable[ValueCodec[Any]] = ...,
    **limits: Unpack[GivenOptions],
) -> ReadOnlyDatabase: ...
@overload
def open_with(
    environment: Environment,
    path: str | os.PathLike[str],
    *,
    durability: Durability = ...,
    read_only: bool,
    create: bool = ...,
    codecs: Iterable[ValueCodec[Any]] = ...,
    **limits: Unpack[GivenOptions],
) -> Database | ReadOnlyDatabase: ...
def open_with(
    environment: Environment,
    path: str | os.PathLike[str],
    *,
    partitions: int | None = None,
    durability: Durability = "always",
    read_only: bool = False,
    create: bool = True,
    codecs: Iterable[ValueCodec[Any]] = (),
    **limits: Unpack[GivenOptions],
) -> Database | ReadOnlyDatabase:
    """Open a store in a given environment: ``open`` with another disk, clock or data file."""
    if read_only:
        return _open_reading(environment, path, partitions, codecs, limits)
    return _open_writing(
        environment, place_of(path), partitions, durability, create, codecs, limits
    )


_stores_in_memory = itertools.count(1)


def memory(
    *,
    partitions: int | None = None,
    durability: Durability = "always",
    codecs: Iterable[ValueCodec[Any]] = (),
    **limits: Unpack[GivenOptions],
) -> Database:
    """Open a new, empty store that has no files, for tests: it is gone once it is closed.

    It does what any other store does, but nobody else can open it: there is one handle, in this
    process.  The options are those of ``open``; no level of durability waits for a disk.
    ``backup`` writes into a real directory, and ``attach`` reads from one.
    """
    from ..system.memory import without_files

    for name in ("create", "read_only"):
        if name in limits:
            raise UsageError(
                f"memory() has no option {name!r}: it always makes a new store, to be written",
                hint="For a store that is there, call `tidelog.open` with its path.",
            )
    place = f"{IN_MEMORY}{next(_stores_in_memory)}"
    environment = without_files(place)
    return _open_writing(environment, place, partitions, durability, True, codecs, limits)


def _open_writing(
    environment: Environment,
    place: str,
    partitions: int | None,
    durability: Durability,
    create: bool,
    codecs: Iterable[ValueCodec[Any]],
    limits: GivenOptions,
    *,
    named: bool = False,
) -> Database:
    """Open a store for writing; ``named`` tells that any process finds it by its path."""
    choice("durability", durability, Durability)
    given = given_codecs(codecs)
    store: OpenStore | None = None
    try:
        with translated_disk(f"opening {place}"):
            store = _at_last(
                environment,
                partial(
                    open_store,
                    environment,
                    place,
                    partitions=partitions,
                    create=create,
                    options=_options(limits),
                    mapped=durability != "always",
                ),
            )
        session = StoreSession(store, durability, given)
        if named:
            options = {**limits, "durability": durability}
            session.found_by(WayBack(reopened, reopened_map, place, False, options))
        database = Database(session)
        log.info(
            "store.opened path=%s clean=%s",
            place,
            store.report.clean,
            extra={"event": "store.opened"},
        )
        return database
    except BaseException:
        if store is not None:
            store.release()
        raise


def _at_last(environment: Environment, opening: Callable[[], T]) -> T:
    """Open a store, also if this process has lost its files and not closed them yet.

    That is so if several signals came one behind the other while it was opened or closed: the last
    one kept what the first had broken off from being closed, and the files are the collector's.
    """
    try:
        return opening()
    except AlreadyOpenError as error:
        if error.pid != environment.pid():
            raise
    gc.collect()
    return opening()


def _open_reading(
    environment: Environment,
    path: str | os.PathLike[str],
    partitions: int | None,
    codecs: Iterable[ValueCodec[Any]],
    limits: GivenOptions,
    *,
    named: bool = False,
) -> ReadOnlyDatabase:
    if partitions is not None:
        raise UsageError(
            "a store that is opened for reading has the partitions that it was made with",
            hint="Leave `partitions` out.",
        )
    place = place_of(path)
    session: ReadSession | None = None
    try:
        with translated_disk(f"opening {place}"):
            from .read_only import ReadOnlyDatabase
            from .read_session import ReadSession

            options, given = _options(limits), given_codecs(codecs)
            session = _at_last(environment, lambda: ReadSession(environment, place, options, given))
            if named:
                way = WayBack(reopened, reopened_map, place, True, dict(limits))
                session.found_by(way)
        return ReadOnlyDatabase(session)
    except BaseException:
        if session is not None:
            session.close()
        raise


def _options(limits: GivenOptions) -> Options:
    """Return the options that a caller gave by name; a name that is wrong is a ``UsageError``."""
    known = set(Options.__dataclass_fields__)
    for name in limits:
        if name not in known:
            near = difflib.get_close_matches(name, known.union(open.__kwdefaults__ or ()), n=1)
            raise UsageError(
                f"open() has no option {name!r}",
                hint=f"Did you mean {near[0]!r}?" if near else "",
            )
    return Options(**limits)
