"""Maps under Trio: the same as ``maps.Map``, awaited.

A ``Map`` is a name until it is first used: making a map writes the log, so that happens in a
worker thread, once, in the first call that is awaited.  Encoding, decoding and what the operations
mean are those of the synchronous map that it then holds; where an operation runs is up to the
*session* (the store itself, a transaction, a snapshot).

Invariants:

- What may read more than ``INLINE_KEYS_MAX`` keys runs in a worker thread.
- An iteration holds its snapshot until it is exhausted, closed, or collected.

Left out: what a session does (``aio``, ``aio_transactions``).
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar, overload

import trio

from ..api import maps
from ..api.maps import LOAD_BATCH, check_batch, no_map_of, pairs_of
from ..data import decisions
from ..data.decisions import MISSING, Decide
from ..data.namespaces import Home, Namespace, not_copied
from ..data.scan import Pair

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

INLINE_KEYS_MAX = 64
"""Keys that are encoded or read in the loop at once; more go to a worker thread."""

BLOCK_FIRST = 16
BLOCK_MAX = 1024
"""Pairs that an iteration fetches at first, and at most, in one visit to a worker thread."""

Getter = Callable[[Any, Any], Coroutine[Any, Any, Any]]
Putter = Callable[[bytes, "bytes | None"], Coroutine[Any, Any, None]]
Rewriter = Callable[[bytes, Decide], Coroutine[Any, Any, Any]]
SyncMap = maps.Map[Any, Any]


class Session(Protocol):
    """Where a map under Trio reads and writes."""

    @property
    def home(self) -> Home:
        """The opening of the store, to which its maps belong."""

    def getter(self, inner: SyncMap) -> Getter:
        """Return an async function from key and default to value."""

    def putter(self, inner: SyncMap) -> Putter:
        """Return an async function that sets an encoded key, or deletes it."""

    def rewriter(self, inner: SyncMap) -> Rewriter:
        """Return an async function that carries out a decision about an encoded key."""

    async def pop_first(self, inner: SyncMap) -> Pair | None:
        """Delete the first key and return the encoded pair, None where there is none."""

    def check_nowait(self) -> None:
        """Raise ``trio.WouldBlock`` unless a read may be made without awaiting."""

    async def read(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which reads a few keys."""

    async def scan(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which may read a lot."""

    async def change(self, inner: SyncMap, work: Callable[[SyncMap], T], *, scans: bool) -> T:
        """Return ``work(map)`` of the map inside a transaction."""

    async def update_many(self, inner: SyncMap, pairs: list[tuple[Any, Any]]) -> None:
        """Set many keys, all or none."""


class Items(AsyncIterator[T], Generic[T]):
    """An iteration over a map; fetches blocks in a worker thread, each of them a checkpoint.

    Exhausting it, ``aclose`` and leaving its ``async with`` block end its snapshot; so does
    dropping it, as the end of a function or a ``break`` does where nothing else refers to it.
    """

    def __init__(self, session: Session, begin: Callable[[], Awaitable[Iterator[T]]]) -> None:
        self._session = session
        self._begin: Callable[[], Awaitable[Iterator[T]]] | None = begin
        self._source: Iterator[T] | None = None
        self._ready: list[T] = []  # backwards
        self._size = BLOCK_FIRST

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
            # Kept until there is a first block: cancelled before, the iteration begins again.
            self._source = await self._begin()
        source, size = self._source, self._size
        if source is None:
            raise StopAsyncIteration
        block = await self._session.scan(lambda: list(islice(source, size)))
        self._begin = None
        block.reverse()
        self._ready = block
        self._size = min(4 * size, BLOCK_MAX)
        if len(block) < size:
            self._end()
            if not block:
                raise StopAsyncIteration

    def _end(self) -> None:
        source, self._source = self._source, None
        if isinstance(source, maps.Items):
            source.close()

    async def aclose(self) -> None:
        """End the iteration and its snapshot; closing twice is fine."""
        self._begin = None
        self._ready.clear()
        self._end()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Items[T]:
        """Return the iteration itself."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close the iteration."""
        await self.aclose()


class Map(Generic[K, V]):
    """A named map of a store that is open under Trio; made by ``db.map``.

    Each method does what the one of the same name of ``tidelog.Map`` does.
    """

    def __init__(self, name: str, session: Session, bind: Callable[[], Awaitable[SyncMap]]) -> None:
        self.name = name
        self._session = session
        self._bind = bind
        self._inner: SyncMap | None = None
        self._get: Getter = self._bound_get
        self._put: Putter
        self._rewrite: Rewriter
        self._encode_key: Callable[[K], bytes]
        self._encode_value: Callable[[V], bytes]

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show name and codecs, the latter once they are known."""
        if self._inner is None:
            return f"<aio Map {self.name!r} not used yet>"
        return f"<aio {self._inner!r}>"

    @property
    def home(self) -> Home:
        """The opening of the store, to which the map belongs."""
        return self._session.home

    async def ensure(self) -> None:
        """Make or find the map now, not at its first use; errors about it come here."""
        await self.bound()

    async def bound(self) -> SyncMap:
        """Return the synchronous map beneath."""
        inner = self._inner
        if inner is None:
            inner = await self._bind()
            self._get = self._session.getter(inner)
            self._put = self._session.putter(inner)
            self._rewrite = self._session.rewriter(inner)
            self._encode_key = inner.namespace.encode_key
            self._encode_value = inner.namespace.encode_value
            self._inner = inner
        return inner

    # -------------------------------------------------------------- one key

    @overload
    def get(self, key: K) -> Coroutine[Any, Any, V | None]: ...
    @overload
    def get(self, key: K, default: V | T) -> Coroutine[Any, Any, V | T]: ...
    def get(self, key: K, default: Any = None) -> Coroutine[Any, Any, Any]:
        """Return the value of a key, or ``default``."""
        return self._get(key, default)

    async def _bound_get(self, key: K, default: Any) -> Any:
        await self.bound()
        return await self._get(key, default)

    @overload
    def get_nowait(self, key: K) -> V | None: ...
    @overload
    def get_nowait(self, key: K, default: V | T) -> V | T: ...
    def get_nowait(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or ``default``, at once and in the loop.

        Raises ``trio.WouldBlock`` where that is impossible: before the first awaited call of the
        map (``ensure``), in a pessimistic transaction, where a snapshot has to be waited for, and
        while the data file grows.
        """
        if self._inner is None:
            raise trio.WouldBlock
        self._session.check_nowait()
        return self._inner.get(key, default)

    async def contains(self, key: K) -> bool:
        """Tell whether the map has a key."""
        inner = await self.bound()
        return await self._session.read(lambda: key in inner)

    def set(self, key: K, value: V) -> Coroutine[Any, Any, None]:
        """Set a key: outside of a transaction a transaction of its own."""
        if self._inner is None:
            return self._bound_set(key, value)
        return self._put(self._encode_key(key), self._encode_value(value))

    async def _bound_set(self, key: K, value: V) -> None:
        await self.bound()
        await self._put(self._encode_key(key), self._encode_value(value))

    async def discard(self, key: K) -> None:
        """Delete a key if it is there; unlike ``delete`` it reads nothing."""
        await self.bound()
        await self._put(self._encode_key(key), None)

    async def delete(self, key: K) -> None:
        """Delete a key; ``KeyError`` where there is none."""
        await self._decided(key, lambda _: decisions.delete(key))

    @overload
    def pop(self, key: K) -> Coroutine[Any, Any, V]: ...
    @overload
    def pop(self, key: K, default: V | T) -> Coroutine[Any, Any, V | T]: ...
    def pop(self, key: K, default: Any = MISSING) -> Coroutine[Any, Any, Any]:
        """Delete a key and return its value, in one transaction."""
        return self._decided(key, lambda namespace: decisions.pop(namespace, key, default))

    async def setdefault(self, key: K, default: V) -> V:
        """Return the value of a key, setting it first where there is none, in one transaction."""
        value: V = await self._decided(
            key, lambda namespace: decisions.setdefault(namespace, default)
        )
        return value

    async def popitem(self) -> tuple[K, V]:
        """Delete the first key and return it with its value; ``KeyError`` where there is none."""
        inner = await self.bound()
        pair = await self._session.pop_first(inner)
        if pair is None:
            raise KeyError(f"the map {self.name!r} is empty")
        return inner.namespace.decode_key(pair[0]), inner.namespace.decode_value(pair[1])

    async def incr(self, key: K, delta: int = 1) -> int:
        """Add ``delta`` to an integer, taken as 0 where there is none; return the sum."""
        total: int = await self._decided(
            key, lambda namespace: decisions.incr(namespace, key, delta)
        )
        return total

    async def compare_and_set(self, key: K, expected: V | None, value: V | None) -> bool:
        """Set a key to ``value`` if it has ``expected``, in one transaction; tell whether it did.

        None stands for no value: ``expected`` None means absent, ``value`` None deletes.
        """
        done: bool = await self._decided(
            key, lambda namespace: decisions.compare_and_set(namespace, expected, value)
        )
        return done

    async def _decided(self, key: K, decision: Callable[[Namespace], Decide]) -> Any:
        """Carry out a decision about a key, and return what it tells."""
        inner = await self.bound()
        return await self._rewrite(self._encode_key(key), decision(inner.namespace))

    async def _change(self, work: Callable[[SyncMap], T], *, scans: bool = False) -> T:
        inner = await self.bound()
        return await self._session.change(inner, work, scans=scans)

    # -------------------------------------------------------------- many keys

    async def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the keys that are there, with their values; cheaper than one ``get`` each."""
        wanted = list(keys)
        inner = await self.bound()
        few = len(wanted) <= INLINE_KEYS_MAX
        run = self._session.read if few else self._session.scan
        found: dict[K, V] = await run(lambda: inner.get_many(wanted))
        return found

    async def update_many(self, pairs: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set many keys in one transaction, all or none; the last value of a key counts.

        Raises ``TransactionTooLargeError`` beyond ``transaction_bytes_max``: see ``load``.
        """
        inner = await self.bound()
        given = list(pairs_of(pairs))
        await self._session.update_many(inner, given)

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
        check_batch(batch)
        total = 0
        async with aclosing(_batches(pairs, batch)) as parts:
            async for part in parts:
                await self.update_many(part)
                total += len(part)
        return total

    async def clear(self) -> None:
        """Delete all keys, in one transaction; ``db.drop`` is quicker for a large map."""
        await self._change(lambda inner: inner.clear(), scans=True)

    async def count(self) -> int:
        """Count the keys: O(n), a scan of the whole map."""
        inner = await self.bound()
        return await self._session.scan(lambda: len(inner))

    # -------------------------------------------------------------- in order

    def range(
        self,
        start: K | None = None,
        stop: K | None = None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Items[tuple[K, V]]:
        """Iterate over the pairs from ``start`` (included) to ``stop`` (not), in order."""
        return self._iterate(lambda inner: inner.range(start, stop, reverse=reverse, limit=limit))

    def items(self, prefix: K | None = None) -> Items[tuple[K, V]]:
        """Iterate over (key, value) in order; ``prefix`` keeps those whose key begins with it."""
        return self._iterate(lambda inner: inner.items(prefix))

    def keys(self, prefix: K | None = None) -> Items[K]:
        """Iterate over the keys in order; ``prefix`` keeps those that begin with it."""
        return self._iterate(lambda inner: inner.keys(prefix))

    def values(self) -> Items[V]:
        """Iterate over the values in the order of their keys."""
        return self._iterate(lambda inner: inner.values())

    def __aiter__(self) -> Items[K]:
        """Iterate over the keys in order."""
        return self.keys()

    def _iterate(self, begin: Callable[[SyncMap], Iterator[T]]) -> Items[T]:
        async def bound() -> Iterator[T]:
            return begin(await self.bound())

        return Items(self._session, bound)


def check_home(mapping: object, home: Home) -> None:
    """Raise ``UsageError`` unless this is a map of this opening of a store."""
    found = mapping.home if isinstance(mapping, Map) else None
    if found is not home:
        raise no_map_of(home, mapping, found)


async def _batches(
    pairs: Mapping[K, V] | Iterable[tuple[K, V]] | AsyncIterable[tuple[K, V]], size: int
) -> AsyncGenerator[list[tuple[K, V]], None]:
    """Yield lists of up to ``size`` pairs."""
    if not isinstance(pairs, AsyncIterable):
        source = pairs_of(pairs)
        while part := list(islice(source, size)):
            yield part
        return
    part = []
    async for pair in pairs:
        part.append(pair)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
