"""A store that is open for reading only: what ``tidelog.open(path, read_only=True)`` returns.

Left out: what it reads from, and how it moves on (``read_session``).
"""

from __future__ import annotations

import os
import weakref
from typing import Any, NoReturn, TypeVar, overload

from ..codecs.registry import ValueCodec
from ..store.place import place_of
from ..system.disk_errors import translated_disk
from ..upkeep.backup import BackupReport
from .maps import Map, map_of
from .pickling import pickled, shared
from .read_session import ReadSession, ReadStatistics
from .snapshots import Snapshot

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyDatabase:
    """A store that is open for reading; made by ``tidelog.open(path, read_only=True)``.

    May be shared by threads.  Use it in a ``with`` block, or ``close`` it: the writer keeps log and
    space for it until then.  If nobody refers to it any more, nor to a map, snapshot or iteration
    of it, it lets go, with a ``ResourceWarning``.
    """

    def __init__(self, session: ReadSession) -> None:
        self.path = session.path
        self.partitions = session.partitions
        self.read_only = True
        self._session = session
        session.face = weakref.ref(self)

    __reduce_ex__ = pickled
    __copy__ = __deepcopy__ = shared

    def __repr__(self) -> str:
        """Show path, state and position."""
        state = "closed" if self._session.closed else "read-only"
        return f"<ReadOnlyDatabase {self.path!r} {state} position={self.position}>"

    def _repr_html_(self) -> str:
        """Show path, state, and maps with their codecs, in a notebook."""
        from .html import store_as_html

        return store_as_html(self)

    @property
    def position(self) -> int:
        """The position of the log up to which it shows the store."""
        return self._session.position

    def refresh(self) -> int:
        """Move on to the newest durable state; return its position in the log.

        Open snapshots and iterations stay where they are.  Raises ``CorruptLogError`` and the
        like; the state is then the one before.
        """
        with translated_disk(f"refreshing {self.path}"):
            return self._session.refresh()

    @overload
    def map(
        self,
        name: str,
        *,
        key: ValueCodec[K],
        value: ValueCodec[V],
        create: bool = False,
    ) -> Map[K, V]: ...
    @overload
    def map(
        self,
        name: str,
        *,
        key: ValueCodec[K],
        value: None = None,
        create: bool = False,
    ) -> Map[K, Any]: ...
    @overload
    def map(
        self,
        name: str,
        *,
        key: None = None,
        value: ValueCodec[V],
        create: bool = False,
    ) -> Map[Any, V]: ...
    @overload
    def map(
        self, name: str, *, key: None = None, value: None = None, create: bool = False
    ) -> Map[Any, Any]: ...
    def map(
        self,
        name: str,
        *,
        key: ValueCodec[Any] | None = None,
        value: ValueCodec[Any] | None = None,
        create: bool = False,
    ) -> Map[Any, Any]:
        """Return the map ``name``; ``NotFoundError`` if there is none yet, whatever ``create``.

        Codecs need not be given; other ones than those recorded are a ``CodecError``.
        """
        return map_of(self._session.namespace(name, key, value), self._session)

    def maps(self) -> list[str]:
        """Return the names of all maps, sorted."""
        return self._session.names()

    def snapshot(self) -> Snapshot:
        """Return the whole store as it is now; close it, or use it in a ``with`` block.

        It stays as it is when the store is refreshed.
        """
        return Snapshot(self._session.snapshot())

    def _refuse(self, *_args: object, **_options: object) -> NoReturn:
        """Raise ``ReadOnlyError``: the store is open for reading only."""
        self._session.refuse()

    transaction = run = attempts = new_id = outcome = _refuse
    attach = drop = rename = checkpoint = sync = abandon = _refuse

    def backup(self, directory: str | os.PathLike[str], *, verify: bool = True) -> BackupReport:
        """Copy the store, as it is now, into a directory that does not exist yet or is empty.

        The copy has the newest durable state, whatever this handle shows.  ``verify`` opens the
        copy and checks all of it.  Raises as ``Database.backup`` does.
        """
        self._session.check_open()
        place = place_of(directory)
        with translated_disk(f"the backup to {place}"):
            return self._session.back_up(place, verify=verify)

    def statistics(self) -> ReadStatistics:
        """Return how the store looks from here."""
        self._session.check_open()
        with translated_disk("taking statistics"):
            return self._session.statistics()

    def close(self) -> None:
        """Let go of the store; open snapshots end.

        Closing twice is fine, and what an interrupt left undone is done then.
        """
        self._session.close()

    def __enter__(self) -> ReadOnlyDatabase:
        """Return the database."""
        self._session.check_open()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the store."""
        self._session.close()
