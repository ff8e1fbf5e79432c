"""Snapshots: the whole store as it was at one moment, for reading.

Invariants:

- A snapshot never changes: it holds sealed layers and an LMDB read transaction.
- It may be shared by threads.
- It can be expired from outside (the map has to grow, or it pins too much memory): every later
  read raises ``SnapshotExpiredError``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple, NoReturn, Protocol, TypeVar

from ...affinity.errors import (
    ClosedError,
    CorruptDataError,
    ReadOnlyError,
    SnapshotExpiredError,
    TidelogError,
)
from ...affinity.partitions import partition_of
from ..data.counting import count_keys
from ..data.namespaces import Home, Namespace, named, namespace_at, not_copied
from ..data.overlay import Layer, View
from ..data.point_reads import read_view
from ..data.scan import BlockSizes, Damaged, Pair, Range, scan
from ..data.updates import Writes
from ..system.lmdb_file import KvReadError, read_error
from .maps import Map, map_of
from .pickling import not_pickled
from .unwritable import Unwritable


class Glimpse(NamedTuple):
    """How much of a map somebody sees who only looks."""

    pairs: int = 10
    bytes: int = 1 << 20
    """Bytes of values behind which no more pairs are read."""
    seconds: float = 0.1
    """After which no more are read."""


GLIMPSE = Glimpse()

K = TypeVar("K")
V = TypeVar("V")


class _Ends(Protocol):
    @property
    def ended(self) -> deque[Layer]: ...


class SnapshotSource(Protocol):
    """Where snapshots come from: a ``Database``, or one that is open for reading only."""

    @property
    def home(self) -> Home:
        """The opening of the store, to which its maps belong."""

    @property
    def partitions(self) -> int:
        """The number of partitions."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds that never run backwards."""

    @property
    def overlay(self) -> _Ends:
        """Who hears of boundaries that are needed no more."""

    def take_view(self) -> tuple[View, Layer, int]:
        """Return a view that does not change, its boundary, and its position in the log."""


class SnapshotSession(Unwritable):
    """What stands behind a snapshot: what it holds of the store, and what its maps read."""

    _view: View | None = None

    def __init__(
        self, database: SnapshotSource, taken: tuple[View, Layer, int] | None = None
    ) -> None:
        self._database = database
        self._view, self.boundary, self.position = taken or database.take_view()
        self._error: Callable[[], TidelogError] = _closed
        self._in_hand: dict[int, list[Pair]] = {}
        """The newest block of each iteration."""
        self.began = database.now()

    way = not_pickled

    def __repr__(self) -> str:
        return f"<Snapshot position={self.position}{'' if self._view else ' closed'}>"

    def map_inside(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is in this snapshot; ``UsageError`` for a foreign one."""
        if self._view is None:
            self.view()
        namespace = namespace_at(self._database.home, mapping)
        self.check_shows(namespace)
        return map_of(namespace, self)

    def check_shows(self, namespace: Namespace) -> None:
        """Raise unless a map was there when the snapshot was taken, or came later and empty.

        ``SnapshotExpiredError`` if some rows of a load may be in it, ``NotFoundError`` if the map
        had been dropped, so that some of its rows, or all, may have gone.
        """
        if self.position < namespace.since:
            raise SnapshotExpiredError(
                f"the map {namespace.name!r} was attached after the snapshot was taken"
            )
        if self.position >= namespace.until:
            namespace.check_alive()

    def view(self) -> View:
        """Return what the snapshot reads; raises once it is closed or expired."""
        view = self._view
        if view is None:
            raise self._error()
        return view

    def layers(self) -> tuple[Layer, ...] | None:
        """Return the layers that are held, or None once the snapshot has ended."""
        view = self._view
        return None if view is None else view.layers

    def expire(self, why: str) -> None:
        """End the snapshot from outside; its next use raises ``SnapshotExpiredError``."""
        self.end(lambda: SnapshotExpiredError(f"the snapshot was ended: {why}"))

    def end(self, error: Callable[[], TidelogError]) -> None:
        """End the snapshot from outside; its next use raises ``error()``."""
        if self._view is not None:
            self._error = error
            self.close()

    def forked(self, error: Callable[[], TidelogError]) -> None:
        """In the child of a fork: end it, and take from iterations what they have in hand."""
        self.end(error)
        for pairs in self._in_hand.values():
            pairs.clear()

    def close(self) -> None:
        """Let go of what the snapshot holds; closing twice is fine."""
        if self._view is not None:
            self._view = None
            self._database.overlay.ended.append(self.boundary)

    def __del__(self) -> None:
        """Close a snapshot that nobody closed: the overlay keeps layers apart for it."""
        if self._view is not None:
            self.close()

    def __enter__(self) -> SnapshotSession:
        if self._view is None:
            self.view()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # -------------------------------------------------------------- session of its maps

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""
        prefixes, space = namespace.prefixes, namespace.space

        def get(key: bytes) -> bytes | None:
            partition = partition_of(key, space)
            return self.read(namespace, partition, prefixes[partition] + key)

        return get

    def read(self, namespace: Namespace, partition: int, full_key: bytes) -> bytes | None:
        """Return the encoded value of a full key."""
        view = self._view
        if view is None:
            view = self.view()
        found = read_view(view, namespace, partition, full_key)
        if self._view is None:
            self.view()  # ended meanwhile, its layers may have been merged with newer ones
        return found

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""
        self.check_shows(namespace)
        return list(map(self.getter(namespace), keys))

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int,
        *, values: bool = True,
    ) -> Iterator[list[Pair]]:  # fmt: skip
        """Yield blocks of encoded pairs, in order."""
        self.check_shows(namespace)
        wanted = Range(namespace=namespace.id, start=start, stop=stop)
        try:
            yield from self.scan(wanted, reverse=reverse, block=size)
        except CorruptDataError as error:
            raise named(error, namespace) from error.__cause__

    def count(self, namespace: Namespace, writes: Writes | None = None) -> int | None:
        """Return the number of keys of a map; None if it has to be counted."""
        self.check_shows(namespace)
        try:
            found = count_keys(self.view(), namespace, writes)
        except KvReadError as error:
            self.view()
            raise read_error(error) from None
        self.view()  # ended meanwhile, its layers may have been merged with newer ones
        return found

    def peek(
        self, namespace: Namespace, glimpse: Glimpse = GLIMPSE
    ) -> tuple[list[Pair], int | None]:
        """Return the first pairs and how many there are, for whoever only looks.

        There are few of them, and fewer if they are large or come slowly.
        """
        found: list[Pair] = []
        now, (pairs, most, seconds) = self._database.now, glimpse
        end = now() + seconds
        with closing(self.blocks(namespace, b"", None, False, 1)) as blocks:  # type: ignore[type-var]  # a generator
            for block in blocks:
                found += block
                size = sum(len(value) for _, value in found)
                if len(found) >= pairs or size > most or now() > end:
                    break
        return found[:pairs], self.count(namespace)

    def scan(
        self,
        wanted: Range,
        *,
        reverse: bool,
        block: int,
        writes: Writes | None = None,
        damaged: Damaged | None = None,
    ) -> Iterator[list[Pair]]:
        """Yield blocks of encoded pairs of all partitions, in order, under ``writes``.

        ``damaged`` is told of pairs that do not match their checksums, which are left out then.
        """
        blocks = scan(
            self.view(),
            range(self._database.partitions),
            wanted,
            reverse=reverse,
            writes=writes,
            blocks=BlockSizes(first=block),
            damaged=damaged,
        )
        in_hand, mine = self._in_hand, id(blocks)
        try:
            for pairs in blocks:
                # Ended meanwhile, its layers may have been merged with newer ones.
                if self._view is None:
                    self.view()
                in_hand[mine] = pairs
                yield pairs
                if self._view is None:
                    self.view()
        except KvReadError as error:
            self.view()
            raise read_error(error) from None
        finally:
            in_hand.pop(mine, None)

    def refuse(self) -> NoReturn:
        """Raise ``ReadOnlyError``: nobody writes into a snapshot."""
        raise ReadOnlyError("a snapshot cannot be written", hint="Write to the database's own map.")


def newest_blocks(
    take: Callable[[], SnapshotSession],
    namespace: Namespace,
    start: bytes,
    stop: bytes | None,
    reverse: bool,
    size: int,
) -> Iterator[list[Pair]]:
    """Yield blocks of encoded pairs, in order, of a snapshot that is taken for the first one."""
    with take() as snapshot:
        yield from snapshot.blocks(namespace, start, stop, reverse, size)


class Snapshot:
    """A view of the whole store that does not change; made by ``db.snapshot``.

    ``old[users]`` is the map ``users`` as it was.  Close it, or use ``with``: an open snapshot
    holds memory and disk space.  It ends with the last reference to it and to its maps.
    """

    __slots__ = ("__weakref__", "_session")

    def __init__(self, session: SnapshotSession) -> None:
        self._session = session

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show position and state."""
        return repr(self._session)

    def __getitem__(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is in this snapshot; ``UsageError`` for a foreign one."""
        return self._session.map_inside(mapping)

    @property
    def position(self) -> int:
        """The position in the log up to which the snapshot has everything."""
        return self._session.position

    def close(self) -> None:
        """Let go of what the snapshot holds; closing twice is fine."""
        self._session.close()

    def __enter__(self) -> Snapshot:
        """Return the snapshot."""
        if self._session._view is None:
            self._session.view()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the snapshot."""
        self._session.close()


def held_by(snapshot: Snapshot) -> SnapshotSession:
    """Return what stands behind a snapshot, for the parts of Tidelog that work in it."""
    return snapshot._session


def _closed() -> TidelogError:
    return ClosedError("the snapshot is closed")
