"""Maps: the dict-like face of a namespace, the same on the store, in a transaction, in a snapshot.

A ``Map`` reads and writes single keys through closures that its *session* has made for it, the hot
path; all else is an operation (``data.operations``), which it carries out over the session: the
database itself (each write is a transaction), a ``Transaction``, or a ``Snapshot``.

Invariants:

- Keys are checked for type and length before anything is asked of the session.
- Iteration is lazy and bound to one snapshot (in a transaction: to that transaction).

Left out: what the operations mean (``operations``), what a session does (``database``,
``transactions``, ``snapshots``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, MutableMapping
from itertools import chain, islice
from typing import Any, Protocol, TypeVar, cast, overload

from ..data import operations
from ..data.decisions import MISSING, Decide
from ..data.namespaces import VALUE_BYTES_MAX, Namespace, not_copied
from ..data.operations import LOAD_BATCH, iterated
from ..data.requests import (
    Compute,
    Count,
    DecideOn,
    GetMany,
    Has,
    Iteration,
    Keys,
    Operation,
    PopFirst,
    PutMany,
    Request,
    Take,
    Together,
)
from ..data.scan import BLOCK_FIRST, Pair
from ..data.stored import KEY_BYTES_MAX
from .items import Items

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

BLOCK_COUNTED = 2048
"""Pairs that are wanted at once by who only counts them."""


class Session(Protocol):
    """Where a map reads and writes."""

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that sets an encoded key, or deletes it if the value is None."""

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int
    ) -> Iterator[list[Pair]]:
        """Yield blocks of encoded pairs, in order."""

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""

    def set_many(self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Set or delete many encoded keys at once."""

    def rewriter(self, namespace: Namespace) -> Callable[[bytes, Decide], Any]:
        """Return a function that carries out a decision about an encoded key, in one step."""

    def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None if the map is empty."""

    def atomically(self, namespace: Namespace, work: Callable[[Map[Any, Any]], T]) -> T:
        """Run ``work`` with the map of one transaction."""


class Map(MutableMapping[K, V]):
    """A named map from keys to values, both encoded by its codecs.

    Made by ``db.map``; may be shared by threads as the database may.  Keys iterate in the order
    of their encoded bytes, which for ordered codecs is their own order.
    """

    def __init__(self, namespace: Namespace, session: Session) -> None:
        self.namespace = namespace
        self._session = session

    def __getattr__(self, name: str) -> Any:
        """Make the functions that read and write when they are first needed."""
        if name == "_read":
            self._read = self._session.getter(self.namespace)
            return self._read
        if name == "_write":
            self._write = self._session.setter(self.namespace)
            return self._write
        if name == "_rewrite":
            self._rewrite = self._session.rewriter(self.namespace)
            return self._rewrite
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def name(self) -> str:
        """The name of the map."""
        return self.namespace.name

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show name and codecs."""
        key, value = self.namespace.key_codec.name, self.namespace.value_codec.name
        return f"<Map {self.name!r} {key} -> {value}>"

    # -------------------------------------------------------------- one key

    def __getitem__(self, key: K) -> V:
        """Return the value of a key; ``KeyError`` if it is not there."""
        data = self._read(self.namespace.encode_key(key))
        if data is None:
            raise KeyError(key)
        return cast(V, self.namespace.decode_value(data))

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T) -> V | T: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or ``default``."""
        data = self._read(self.namespace.encode_key(key))
        return default if data is None else self.namespace.decode_value(data)

    def __contains__(self, key: object) -> bool:
        """Tell whether the map has a key."""
        return self._read(self.namespace.encode_key(key)) is not None

    def __setitem__(self, key: K, value: V) -> None:
        """Set a key: outside of a transaction a transaction of its own."""
        self._write(self.namespace.encode_key(key), self.namespace.encode_value(value))

    set = __setitem__

    def __delitem__(self, key: K) -> None:
        """Delete a key; ``KeyError`` if it is not there."""
        answer(operations.delete(self.namespace, key), self)

    def discard(self, key: K) -> None:
        """Delete a key if it is there; unlike ``del`` it reads nothing."""
        self._write(self.namespace.encode_key(key), None)

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: V | T) -> V | T: ...
    def pop(self, key: K, default: Any = MISSING) -> Any:
        """Delete a key and return its value, in one transaction."""
        return answer(operations.pop(self.namespace, key, default), self)

    @overload
    def setdefault(self: Map[K, T | None], key: K, default: None = None) -> T | None: ...
    @overload
    def setdefault(self, key: K, default: V) -> V: ...
    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, setting it first if it is not there, in one transaction."""
        return answer(operations.setdefault(self.namespace, key, default), self)

    def popitem(self) -> tuple[K, V]:
        """Delete the first key and return it with its value; ``KeyError`` if the map is empty."""
        return perform(operations.popitem(self.namespace), self)

    def incr(self, key: K, delta: int = 1) -> int:
        """Add ``delta`` to an integer, taken as 0 if it is not there; return the sum.

        Raises ``UsageError`` if the value is not an integer.
        """
        total: int = answer(operations.incr(self.namespace, key, delta), self)
        return total

    def compare_and_set(self, key: K, expected: V | None, value: V | None) -> bool:
        """Set a key to ``value`` if it has ``expected``, in one transaction; tell whether it did.

        None stands for no value: ``expected`` None means absent, ``value`` None deletes.
        """
        asked = operations.compare_and_set(self.namespace, key, expected, value)
        done: bool = answer(asked, self)
        return done

    # -------------------------------------------------------------- many keys

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the keys that are there, with their values; cheaper than one ``get`` each."""
        return perform(operations.get_many(self.namespace, list(keys)), self)

    def update_many(self, pairs: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set many keys in one transaction, all or none; the last value of a key counts.

        Raises ``TransactionTooLargeError`` beyond ``transaction_bytes_max``: see ``load``.
        """
        perform(operations.update_many(self.namespace, pairs), self)

    def update(self, *args: Any, **kwargs: V) -> None:
        """Set many keys in one transaction, all or none: the ``update`` of a dict."""
        self.update_many(dict(*args, **kwargs))

    def load(self, pairs: Mapping[K, V] | Iterable[tuple[K, V]], *, batch: int = LOAD_BATCH) -> int:
        """Set any number of keys, ``batch`` at a time, each batch all or none; return how many.

        After an error or a crash a whole number of batches is there, and loading the same pairs
        again from the start, or from any batch that may be missing, gives the same map.
        """
        return perform(operations.load(self.namespace, iterated(pairs), batch), self)

    def clear(self) -> None:
        """Delete all keys, in one transaction; ``db.drop`` is quicker for a large map."""
        answer(operations.clear(), self)

    # -------------------------------------------------------------- in order

    def range(
        self,
        start: K | None = None,
        stop: K | None = None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Items[tuple[K, V]]:
        """Iterate over the pairs from ``start`` (included) to ``stop`` (not), in order.

        ``reverse`` gives the same pairs backwards; ``limit`` ends after that many.  Raises
        ``CodecError`` if the key codec does not keep the order of keys and a bound is given.
        """
        way = operations.between(self.namespace, start, stop, reverse=reverse, limit=limit)
        return iterate(way, self)

    def items(self, prefix: K | None = None) -> Items[tuple[K, V]]:  # type: ignore[override]
        """Iterate over (key, value) in order; ``prefix`` keeps those whose key begins with it."""
        # Not the set-like view of a dict: that would need the length, which is O(n) here.
        return iterate(operations.items(self.namespace, prefix), self)

    def keys(self, prefix: K | None = None) -> Items[K]:  # type: ignore[override]
        """Iterate over the keys in order; ``prefix`` keeps those that begin with it."""
        return iterate(operations.keys(self.namespace, prefix), self)

    def values(self) -> Items[V]:  # type: ignore[override]
        """Iterate over the values in the order of their keys."""
        return iterate(operations.values(self.namespace), self)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys in order."""
        # A generator, unlike what `keys` goes over: it can be closed.
        decode = self.namespace.decode_key
        for block in self._session.blocks(self.namespace, b"", None, False, BLOCK_FIRST):
            for key, _ in block:
                yield decode(key)

    def __len__(self) -> int:
        """Count the keys: O(n), a scan of the whole map."""
        found: int = answer(operations.count(), self)
        return found

    def __bool__(self) -> bool:
        """Tell whether the map has any key, without counting them."""
        return perform(operations.has_any(), self)

    def __eq__(self, other: object) -> bool:
        """Maps are equal when they are the same map of the same session."""
        return self is other

    __hash__ = object.__hash__


class BytesMap(Map[bytes, bytes]):
    """A map without codecs: keys and values are the bytes that are stored."""

    def __getitem__(self, key: bytes) -> bytes:
        """Return the value of a key; ``KeyError`` if it is not there."""
        if type(key) is not bytes or len(key) > KEY_BYTES_MAX:
            key = self.namespace.encode_key(key)
        data = self._read(key)
        if data is None:
            raise KeyError(key)
        return data

    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the value of a key, or ``default``."""
        if type(key) is not bytes or len(key) > KEY_BYTES_MAX:
            key = self.namespace.encode_key(key)
        data = self._read(key)
        return default if data is None else data

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Set a key: outside of a transaction a transaction of its own."""
        if type(key) is bytes is type(value) and (
            len(key) <= KEY_BYTES_MAX and len(value) <= VALUE_BYTES_MAX
        ):
            self._write(key, value)
        else:
            self._write(self.namespace.encode_key(key), self.namespace.encode_value(value))

    set = __setitem__


# ---------------------------------------------------------------------- operations over a session


def perform(operation: Operation[T], mapping: Map[Any, Any]) -> T:
    """Carry out an operation: answer what it asks for, and return its result."""
    send, found = operation.send, None
    while True:
        try:
            request = send(found)
        except StopIteration as end:
            result: T = end.value
            return result
        found = answer(request, mapping)


def answer(request: Request, mapping: Map[Any, Any]) -> Any:
    """Return the answer to a request of an operation."""
    # The frequent ones first, and not as cases of the match, which would take longer.
    if isinstance(request, DecideOn):
        return mapping._rewrite(*request)
    namespace, session = mapping.namespace, mapping._session
    if isinstance(request, GetMany):
        return session.get_many(namespace, request.keys)
    if isinstance(request, PutMany):
        return session.set_many(namespace, request.pairs)
    match request:
        case Compute(work):
            return work()
        case Has(key):
            return mapping._read(key) is not None
        case Count(most):
            size = BLOCK_COUNTED if most is None else most
            return _count(session.blocks(namespace, b"", None, False, size), most)
        case Keys():
            blocks = session.blocks(namespace, b"", None, False, BLOCK_COUNTED)
            return [key for block in blocks for key, _ in block]
        case PopFirst():
            return session.pop_first(namespace)
        case Together(operation):
            return session.atomically(namespace, lambda inside: perform(operation(), inside))
        case Take(source, most):
            assert not isinstance(source, AsyncIterator), "the face has refused it"
            return list(islice(source, most))


def _count(blocks: Iterator[list[Pair]], most: int | None) -> int:
    total = 0
    for block in blocks:
        total += len(block)
        if most is not None and total >= most:
            return most
    return total


def iterate(way: Iteration[T], mapping: Map[Any, Any]) -> Items[T]:
    """Return an iteration over a map, of which nothing has been read yet."""
    low, high, reverse, limit, size, of_block = way
    blocks = mapping._session.blocks(mapping.namespace, low, high, reverse, size)
    if limit is not None:
        blocks = _limited(blocks, limit)
    found: Any = blocks if of_block is None else map(of_block, blocks)
    return Items(chain.from_iterable(found), blocks)


def _limited(blocks: Iterator[list[Pair]], left: int) -> Iterator[list[Pair]]:
    """Yield blocks with ``left`` pairs in all, and let go of the snapshot that they are from."""
    try:
        while left > 0 and (block := next(blocks, None)) is not None:
            del block[left:]  # in its place: a fork takes from a snapshot what it has handed out
            left -= len(block)
            yield block
    finally:
        blocks.close()  # type: ignore[attr-defined]  # a generator always has it


def map_of(namespace: Namespace, session: Session) -> Map[Any, Any]:
    """Return the map of a namespace in a session."""
    return BytesMap(namespace, session) if namespace.plain else Map(namespace, session)
