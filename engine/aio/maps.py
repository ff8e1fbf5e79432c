"""Maps for tasks: the same as ``api.maps.Map``, awaited.

A ``Map`` is a name until it is first used: making a map writes the log, so that happens in a
worker thread, once, in the first call that is awaited.  What the operations mean stands in
``data.operations``; where they run is up to the *backing* that the map is bound to then: that of
the store itself, of a transaction, of a snapshot.

Invariants:

- What a map asks of its backing can be asked over a network as well: keys, values and requests.
- An iteration holds its snapshot until it is exhausted, closed, or collected.

Left out: the backings (``beneath``, ``plain``, ``transactions``).
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
)
from typing import Any, Generic, Protocol, TypeVar, overload

from ...affinity.errors import CodecError
from ..data import operations
from ..data.decisions import MISSING
from ..data.namespaces import Home, Namespace, no_map_of, not_copied
from ..data.operations import LOAD_BATCH, iterated
from ..data.requests import Iteration, Operation, Request, Source
from .loops import called
from .running import running_loop, would_block

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
TK = TypeVar("TK", bound=tuple[Any, ...])
"""Keys that are tuples: a shorter one is a prefix, or a bound, of many."""

BLOCK_FIRST = 16
BLOCK_MAX = 1024
"""Pairs that an iteration fetches at first, and at most, in one visit to a worker thread."""

Getter = Callable[[Any, Any], Coroutine[Any, Any, Any]]
Putter = Callable[[bytes, "bytes | None"], Coroutine[Any, Any, None]]


class Pages(Protocol[T]):
    """What an iteration gives, page by page."""

    async def fetch(self, size: int) -> list[T]:
        """Return the next ``size``; fewer at the end."""

    def close(self) -> None:
        """Let go of the snapshot."""


class Backing(Protocol):
    """What a map is bound to: one namespace, in a store, a transaction or a snapshot."""

    @property
    def namespace(self) -> Namespace:
        """The namespace, with its codecs."""

    @property
    def get(self) -> Getter:
        """An async function from key and default to value."""

    @property
    def put(self) -> Putter:
        """An async function that sets an encoded key, or deletes it."""

    def get_nowait(self, key: Any, default: Any) -> Any:
        """Return the value of a key, or raise what ``would_block`` gives."""

    def answer(self, request: Request) -> Awaitable[Any]:
        """Return the answer to a request, which may be a whole operation."""

    async def perform(self, operation: Operation[T]) -> T:
        """Carry out an operation."""

    async def read(self, operation: Operation[T], keys: int) -> T:
        """Carry out an operation that only reads, and looks at about so many keys."""

    def pages(self, way: Iteration[T]) -> Pages[T]:
        """Begin an iteration, of which nothing is read yet."""


class Items(AsyncIterator[T], Generic[T]):
    """An iteration over a map; fetches pages in a worker thread, each of them a checkpoint.

    Exhausting it, ``aclose`` and leaving its ``async with`` block end its snapshot; so does
    dropping it, as the end of a function or a ``break`` does if nothing else refers to it.
    """

    def __init__(self, begin: Callable[[], Awaitable[Pages[T]]]) -> None:
        self._begin: Callable[[], Awaitable[Pages[T]]] | None = begin
        self._pages: Pages[T] | None = None
        self._ready: list[T] = []  # backwards
        self._size = BLOCK_FIRST

    __reduce_ex__ = not_copied

    def __aiter__(self) -> Items[T]:
        """Return the iteration itself."""
        return self

    async def __anext__(self) -> T:
        """Return the next one."""
        if not self._ready:
            await self._fetch()
        return self._ready.pop()

    async def _fetch(self) -> None:
        if self._begin is not None:
            # Kept until there is a first page: cancelled before, the iteration begins again.
            self._pages = await self._begin()
        pages, size = self._pages, self._size
        if pages is None:
            raise StopAsyncIteration
        page = await pages.fetch(size)
        self._begin = None
        page.reverse()
        self._ready = page
        self._size = min(4 * size, BLOCK_MAX)
        if len(page) < size:
            self._end()
            if not page:
                raise StopAsyncIteration

    def _end(self) -> None:
        pages, self._pages = self._pages, None
        if pages is not None:
            pages.close()

    async def aclose(self) -> None:
        """End the iteration and its snapshot; closing twice is fine."""
        self._begin = None
        self._ready.clear()
        self._end()
        await running_loop().checkpoint()

    async def __aenter__(self) -> Items[T]:
        """Return the iteration itself."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close the iteration."""
        await self.aclose()


class Map(Generic[K, V]):
    """A named map of a store that is open in a loop; made by ``db.map``.

    Each method does what the one of the same name of ``tidelog.Map`` does.
    """

    def __init__(self, name: str, home: Home, bind: Callable[[], Awaitable[Backing]]) -> None:
        self.name = name
        self._home = home
        self._bind = bind
        self._backing: Backing | None = None
        self._get: Getter = self._bound_get
        self._put: Putter
        self._encode_key: Callable[[K], bytes]
        self._encode_value: Callable[[V], bytes]

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show name and codecs, the latter once they are known."""
        if self._backing is None:
            return f"<aio Map {self.name!r} not used yet>"
        namespace = self._backing.namespace
        key, value = namespace.key_codec.name, namespace.value_codec.name
        return f"<aio Map {namespace.name!r} {key} -> {value}>"

    async def ensure(self) -> None:
        """Make or find the map now, not at its first use; errors about it come here."""
        await self._bound()

    async def _bound(self) -> Backing:
        backing = self._backing
        if backing is None:
            backing = await self._bind()
            self._get, self._put = backing.get, backing.put
            self._encode_key = backing.namespace.encode_key
            self._encode_value = backing.namespace.encode_value
            self._backing = backing
        return backing

    # -------------------------------------------------------------- one key

    @overload
    def get(self, key: K) -> Coroutine[Any, Any, V | None]: ...
    @overload
    def get(self, key: K, default: V | T) -> Coroutine[Any, Any, V | T]: ...
    def get(self, key: K, default: Any = None) -> Coroutine[Any, Any, Any]:
        """Return the value of a key, or ``default``."""
        return self._get(key, default)

    @called("Map.get")
    async def _bound_get(self, key: K, default: Any) -> Any:
        await self._bound()
        return await self._get(key, default)

    @overload
    def get_nowait(self, key: K) -> V | None: ...
    @overload
    def get_nowait(self, key: K, default: V | T) -> V | T: ...
    def get_nowait(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or ``default``, at once and in the loop.

        Raises ``trio.WouldBlock``, under asyncio ``BlockingIOError``, if that is impossible:
        before the first awaited call of the map (``ensure``), in a pessimistic transaction, if a
        snapshot has to be waited for, and while the data file grows.
        """
        if self._backing is None:
            raise would_block()
        return self._backing.get_nowait(key, default)

    async def contains(self, key: K) -> bool:
        """Tell whether the map has a key."""
        backing = await self._bound()
        found: bool = await backing.answer(operations.contains(backing.namespace, key))
        return found

    def set(self, key: K, value: V) -> Coroutine[Any, Any, None]:
        """Set a key: outside of a transaction a transaction of its own."""
        if self._backing is None:
            return self._bound_set(key, value)
        encoded = self._encode_key(key)
        try:
            data = self._encode_value(value)
        except CodecError as error:
            raise self._backing.namespace.at_key(error, key) from error.__cause__
        return self._put(encoded, data)

    @called("Map.set")
    async def _bound_set(self, key: K, value: V) -> None:
        await self._bound()
        await self.set(key, value)

    async def discard(self, key: K) -> None:
        """Delete a key if it is there; unlike ``delete`` it reads nothing."""
        await self._bound()
        await self._put(self._encode_key(key), None)

    async def delete(self, key: K) -> None:
        """Delete a key; ``KeyError`` if it is not there."""
        backing = await self._bound()
        await backing.answer(operations.delete(backing.namespace, key))

    @overload
    def pop(self, key: K) -> Coroutine[Any, Any, V]: ...
    @overload
    def pop(self, key: K, default: V | T) -> Coroutine[Any, Any, V | T]: ...
    async def pop(self, key: K, default: Any = MISSING) -> Any:
        """Delete a key and return its value, in one transaction."""
        backing = await self._bound()
        return await backing.answer(operations.pop(backing.namespace, key, default))

    async def setdefault(self, key: K, default: V) -> V:
        """Return the value of a key, setting it first if it is not there, in one transaction."""
        backing = await self._bound()
        value: V = await backing.answer(operations.setdefault(backing.namespace, key, default))
        return value

    async def popitem(self) -> tuple[K, V]:
        """Delete the first key and return it with its value; ``KeyError`` if the map is empty."""
        backing = await self._bound()
        return await backing.perform(operations.popitem(backing.namespace))

    async def incr(self, key: K, delta: int = 1) -> int:
        """Add ``delta`` to an integer, taken as 0 if it is not there; return the sum."""
        backing = await self._bound()
        total: int = await backing.answer(operations.incr(backing.namespace, key, delta))
        return total

    async def compare_and_set(self, key: K, expected: V | None, value: V | None) -> bool:
        """Set a key to ``value`` if it has ``expected``, in one transaction; tell whether it did.

        None stands for no value: ``expected`` None means absent, ``value`` None deletes.
        """
        backing = await self._bound()
        asked = operations.compare_and_set(backing.namespace, key, expected, value)
        done: bool = await backing.answer(asked)
        return done

    # -------------------------------------------------------------- many keys

    async def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the keys that are there, with their values; cheaper than one ``get`` each."""
        wanted = list(keys)
        backing = await self._bound()
        return await backing.read(operations.get_many(backing.namespace, wanted), len(wanted))

    async def update_many(self, pairs: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set many keys in one transaction, all or none; the last value of a key counts.

        Raises ``TransactionTooLargeError`` beyond ``transaction_bytes_max``: see ``load``.
        """
        backing = await self._bound()
        await backing.perform(operations.update_many(backing.namespace, pairs))

    async def load(
        self,
        pairs: Mapping[K, V] | Iterable[tuple[K, V]] | AsyncIterable[tuple[K, V]],
        *,
        batch: int = LOAD_BATCH,
    ) -> int:
        """Set any number of keys, ``batch`` at a time, each batch all or none; return how many.

        After an error, a cancellation or a crash a whole number of batches is there, and loading
        the same pairs again gives the same map.
        """
        source: Source = aiter(pairs) if isinstance(pairs, AsyncIterable) else iterated(pairs)
        backing = await self._bound()
        return await backing.perform(operations.load(backing.namespace, source, batch))

    async def delete_many(self, keys: Iterable[K]) -> None:
        """Delete many keys in one transaction, all or none; those that are not there are no error.

        Like ``discard`` it reads nothing.
        """
        backing = await self._bound()
        await backing.perform(operations.delete_many(backing.namespace, keys))

    @overload
    async def delete_range(self, start: K | None = None, stop: K | None = None) -> int: ...
    @overload
    async def delete_range(
        self: Map[TK, V], start: tuple[Any, ...] | None = None, stop: tuple[Any, ...] | None = None
    ) -> int: ...
    async def delete_range(self, start: Any = None, stop: Any = None) -> int:
        """Delete the keys from ``start`` (included) to ``stop`` (not); return how many there were.

        In one transaction, all or none.  Raises ``CodecError`` as ``range`` does.
        """
        backing = await self._bound()
        asked = operations.delete_range(backing.namespace, start, stop)
        deleted: int = await backing.answer(asked)
        return deleted

    async def first(self) -> tuple[K, V] | None:
        """Return the first key with its value; None if the map is empty."""
        backing = await self._bound()
        return await backing.perform(operations.first(backing.namespace))

    async def last(self) -> tuple[K, V] | None:
        """Return the last key with its value; None if the map is empty."""
        backing = await self._bound()
        return await backing.perform(operations.last(backing.namespace))

    async def clear(self) -> None:
        """Delete all keys, in one transaction; ``db.drop`` is quicker for a large map."""
        backing = await self._bound()
        await backing.answer(operations.clear())

    async def count(self) -> int:
        """Return the number of keys; it takes as long as what no checkpoint has written yet."""
        backing = await self._bound()
        found: int = await backing.answer(operations.count())
        return found

    # -------------------------------------------------------------- in order

    @overload
    def range(
        self,
        start: K | None = None,
        stop: K | None = None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Items[tuple[K, V]]: ...
    @overload
    def range(
        self: Map[TK, V],
        start: tuple[Any, ...] | None = None,
        stop: tuple[Any, ...] | None = None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Items[tuple[TK, V]]: ...
    def range(
        self,
        start: Any = None,
        stop: Any = None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Items[tuple[Any, V]]:
        """Iterate over the pairs from ``start`` (included) to ``stop`` (not), in order."""
        return self._iterate(
            lambda namespace: operations.between(
                namespace, start, stop, reverse=reverse, limit=limit
            )
        )

    @overload
    def items(self, prefix: K | None = None) -> Items[tuple[K, V]]: ...
    @overload
    def items(self: Map[TK, V], prefix: tuple[Any, ...]) -> Items[tuple[TK, V]]: ...
    def items(self, prefix: Any = None) -> Items[tuple[Any, V]]:
        """Iterate over (key, value) in order; ``prefix`` keeps those whose key begins with it."""
        return self._iterate(lambda namespace: operations.items(namespace, prefix))

    @overload
    def keys(self, prefix: K | None = None) -> Items[K]: ...
    @overload
    def keys(self: Map[TK, Any], prefix: tuple[Any, ...]) -> Items[TK]: ...
    def keys(self, prefix: Any = None) -> Items[Any]:
        """Iterate over the keys in order; ``prefix`` keeps those that begin with it."""
        return self._iterate(lambda namespace: operations.keys(namespace, prefix))

    def values(self) -> Items[V]:
        """Iterate over the values in the order of their keys."""
        return self._iterate(operations.values)

    def __aiter__(self) -> Items[K]:
        """Iterate over the keys in order."""
        return self.keys()

    def _iterate(self, way: Callable[[Namespace], Iteration[T]]) -> Items[T]:
        async def begin() -> Pages[T]:
            backing = await self._bound()
            return backing.pages(way(backing.namespace))

        return Items(begin)


async def backing_of(mapping: Map[Any, Any]) -> Backing:
    """Return what a map is bound to, for the parts of Tidelog that work in it."""
    return await mapping._bound()


def check_home(mapping: object, home: Home) -> None:
    """Raise ``UsageError`` unless this is a map of this opening of a store."""
    found = mapping._home if isinstance(mapping, Map) else None
    if found is not home:
        raise no_map_of(home, mapping, found)
