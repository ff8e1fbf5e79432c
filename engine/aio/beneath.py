"""Backings over synchronous maps: the map beneath answers, in the loop or in a worker thread.

Good for whatever has all that it needs in this process: snapshots and transactions, and the reads
of a store.  Where a piece of work runs is up to the *place*: the store, the transaction or the
snapshot that the map beneath belongs to.

Left out: the plain writes of a store, which go through its log thread (``plain``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from ..api import answering, maps
from ..api.items import Items
from ..data.driving import drive, taken
from ..data.namespaces import Namespace
from ..data.operations import KEYS_AT_ONCE
from ..data.requests import (
    Compute,
    Count,
    First,
    Iteration,
    Keys,
    Operation,
    PopFirst,
    PutMany,
    Request,
    Take,
)
from .loops import called

T = TypeVar("T")

SyncMap = maps.Map[Any, Any]
_LONG = frozenset((First, PopFirst, Keys, Count, Compute))
"""Requests whose answer others would have to wait for too long."""


class WorkPlace(Protocol):
    """Where the work of a map runs."""

    async def read(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which looks at a few keys."""

    async def scan(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which may take long."""

    def check_nowait(self) -> None:
        """Raise what ``would_block`` gives unless a read may be made without awaiting."""


class SyncPages(Generic[T]):
    """The pages of a synchronous iteration, which runs at the place of its map."""

    def __init__(self, place: WorkPlace, items: Items[T]) -> None:
        self._place = place
        self._items = items

    async def fetch(self, size: int) -> list[T]:
        """Return the next ``size``; fewer at the end."""
        return await self._place.scan(lambda: list(islice(self._items, size)))

    def close(self) -> None:
        """Let go of the snapshot."""
        self._items.close()


class Beneath:
    """The backing of a map whose requests the synchronous map beneath answers, in its place."""

    def __init__(self, mapping: SyncMap, place: WorkPlace) -> None:
        self._mapping = mapping
        self._place = place

    @property
    def namespace(self) -> Namespace:
        """The namespace, with its codecs."""
        return self._mapping._namespace

    @called("Map.get")
    async def get(self, key: Any, default: Any, /) -> Any:
        """Return the value of a key, or ``default``."""
        return await self._place.read(partial(self._mapping.get, key, default))

    @called("Map.set")
    async def put(self, key: bytes, value: bytes | None, /) -> None:
        """Set an encoded key, or delete it."""
        await self.answer(PutMany([(key, value)]))

    def get_nowait(self, key: Any, default: Any) -> Any:
        """Return the value of a key, or raise what ``would_block`` gives."""
        self._place.check_nowait()
        return self._mapping.get(key, default)

    async def perform(self, operation: Operation[T]) -> T:
        """Carry out an operation, request by request."""
        return await drive(operation, self.answer)

    async def read(self, operation: Operation[T], keys: int) -> T:
        """Carry out an operation that only reads, all of it in one place."""
        run = self._place.read if keys <= KEYS_AT_ONCE else self._place.scan
        return await run(partial(answering.perform, operation, self._mapping))

    def pages(self, way: Iteration[T]) -> SyncPages[T]:
        """Begin an iteration, of which nothing is read yet."""
        return SyncPages(self._place, answering.iterate(way, self._mapping))

    def answer(self, request: Request) -> Awaitable[Any]:
        """Return the answer to a request of an operation."""
        if isinstance(request, Take):
            return taken(request.source, request.most)
        run = self._place.scan if type(request) in _LONG else self._place.read
        return run(partial(answering.answer, request, self._mapping))
