"""Maps: the dict-like face of a namespace, the same on the store, in a transaction, in a snapshot.

A ``Map`` turns keys and values into bytes and back, and leaves reading and writing to its
*session*: the database itself (each write is a transaction), a ``Transaction``, or a ``Snapshot``.

Invariants:

- Keys are checked for type and length before anything is asked of the session.
- Iteration is lazy and bound to one snapshot (in a transaction: to that transaction).

Left out: what a session does (``sessions``, ``transactions``, ``snapshots``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from itertools import chain, islice
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from ...affinity.errors import CodecError, UsageError
from ..data import decisions
from ..data.decisions import MISSING, Decide
from ..data.namespaces import VALUE_BYTES_MAX, Home, Namespace, not_copied
from ..data.scan import BLOCK_FIRST, Pair
from ..data.stored import KEY_BYTES_MAX

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

LOAD_BATCH = 10_000


class Session(Protocol):
    """Where a map reads and writes."""

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that sets an encoded key, or deletes it where the value is None."""

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
        """Delete the first key and return the encoded pair, None where there is none."""

    def atomically(self, namespace: Namespace, work: Callable[[Map[Any, Any]], T]) -> T:
        """Run ``work`` with the map of one transaction."""


class Items(Iterator[T], Generic[T]):
    """A lazy iterator over a map; closing it, or leaving its ``with`` block, ends its snapshot."""

    def __init__(self, values: Iterator[T], source: Iterator[Any] | None = None) -> None:
        self._values = values
        self._source = values if source is None else source
        self._next = values.__next__

    def __iter__(self) -> Iterator[T]:
        """Return the iterator itself."""
        return self._values

    def __next__(self) -> T:
        """Return the next one."""
        return self._next()

    def close(self) -> None:
        """End the iteration and its snapshot; closing twice is fine."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()
            self._next = iter(()).__next__

    def __enter__(self) -> Items[T]:
        """Return the iterator itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the iteration."""
        self.close()


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
        """Return the value of a key; ``KeyError`` where there is none."""
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
        """Delete a key; ``KeyError`` where there is none."""
        self._rewrite(self.namespace.encode_key(key), decisions.delete(key))

    def discard(self, key: K) -> None:
        """Delete a key if it is there; unlike ``del`` it reads nothing."""
        self._write(self.namespace.encode_key(key), None)

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: V | T) -> V | T: ...
    def pop(self, key: K, default: Any = MISSING) -> Any:
        """Delete a key and return its value, in one transaction."""
        decide = decisions.pop(self.namespace, key, default)
        return self._rewrite(self.namespace.encode_key(key), decide)

    @overload
    def setdefault(self: Map[K, T | None], key: K, default: None = None) -> T | None: ...
    @overload
    def setdefault(self, key: K, default: V) -> V: ...
    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, setting it first where there is none, in one transaction."""
        decide = decisions.setdefault(self.namespace, default)
        return self._rewrite(self.namespace.encode_key(key), decide)

    def popitem(self) -> tuple[K, V]:
        """Delete the first key and return it with its value; ``KeyError`` where there is none."""
        pair = self._session.pop_first(self.namespace)
        if pair is None:
            raise KeyError(f"the map {self.name!r} is empty")
        return self.namespace.decode_key(pair[0]), self.namespace.decode_value(pair[1])

    def incr(self, key: K, delta: int = 1) -> int:
        """Add ``delta`` to an integer, taken as 0 where there is none; return the sum.

        Raises ``UsageError`` where the value is no integer.
        """
        decide = decisions.incr(self.namespace, key, delta)
        return cast(int, self._rewrite(self.namespace.encode_key(key), decide))

    def compare_and_set(self, key: K, expected: V | None, value: V | None) -> bool:
        """Set a key to ``value`` if it has ``expected``, in one transaction; tell whether it did.

        None stands for no value: ``expected`` None means absent, ``value`` None deletes.
        """
        decide = decisions.compare_and_set(self.namespace, expected, value)
        return cast(bool, self._rewrite(self.namespace.encode_key(key), decide))

    # -------------------------------------------------------------- many keys

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the keys that are there, with their values; cheaper than one ``get`` each."""
        wanted = list(keys)
        found = self._session.get_many(self.namespace, list(map(self.namespace.encode_key, wanted)))
        decode = self.namespace.decode_value
        return {
            key: decode(data) for key, data in zip(wanted, found, strict=True) if data is not None
        }

    def update_many(self, pairs: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set many keys in one transaction, all or none; the last value of a key counts.

        Raises ``TransactionTooLargeError`` beyond ``transaction_bytes_max``: see ``load``.
        """
        encode_key, encode_value = self.namespace.encode_key, self.namespace.encode_value
        self._session.set_many(
            self.namespace,
            ((encode_key(key), encode_value(value)) for key, value in pairs_of(pairs)),
        )

    def update(self, *args: Any, **kwargs: V) -> None:
        """Set many keys in one transaction, all or none: the ``update`` of a dict."""
        self.update_many(dict(*args, **kwargs))

    def load(self, pairs: Mapping[K, V] | Iterable[tuple[K, V]], *, batch: int = LOAD_BATCH) -> int:
        """Set any number of keys, ``batch`` at a time, each batch all or none; return how many.

        After an error or a crash a whole number of batches is there, and loading the same pairs
        again from the start, or from any batch that may be missing, gives the same map.
        """
        check_batch(batch)
        source = pairs_of(pairs)
        total = 0
        while part := list(islice(source, batch)):
            self.update_many(part)
            total += len(part)
        return total

    def clear(self) -> None:
        """Delete all keys, in one transaction; ``db.drop`` is quicker for a large map."""

        def work(mapping: Map[K, V]) -> None:
            for key in mapping.keys():  # noqa: SIM118  # the lazy iterator, not a set
                mapping.discard(key)

        self._session.atomically(self.namespace, work)

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
        ``CodecError`` where the key codec does not keep the order of keys and a bound is given.
        """
        if not self.namespace.key_codec.ordered and not (start is stop is None):
            raise CodecError(
                f"codec {self.namespace.key_codec.name} does not keep the order of keys",
                hint="Iterate over all items, or use an ordered key codec.",
            )
        low = b"" if start is None else self.namespace.encode_key(start)
        high = None if stop is None else self.namespace.encode_key(stop)
        return self._pairs(low, high, reverse, limit)

    def _bounds(self, prefix: K | None) -> tuple[bytes, bytes | None]:
        return (b"", None) if prefix is None else self.namespace.key_codec.prefix_range(prefix)

    def _pairs(
        self, low: bytes, high: bytes | None, reverse: bool, limit: int | None
    ) -> Items[tuple[K, V]]:
        if limit is not None and limit < 0:
            raise UsageError(f"a limit of {limit} pairs is none")
        size = BLOCK_FIRST if limit is None else min(max(limit, 1), BLOCK_FIRST)
        blocks: Iterator[list[Any]] = self._session.blocks(self.namespace, low, high, reverse, size)
        if limit is not None:
            return Items(_limited(self._decoded(blocks), limit))
        if self.namespace.plain:
            return Items(chain.from_iterable(blocks), blocks)
        return Items(self._decoded(blocks))

    def _decoded(self, blocks: Iterator[list[Pair]]) -> Iterator[tuple[K, V]]:
        decode_key, decode_value = self.namespace.decode_key, self.namespace.decode_value
        for block in blocks:
            for key, value in block:
                yield decode_key(key), decode_value(value)

    def items(self, prefix: K | None = None) -> Items[tuple[K, V]]:  # type: ignore[override]
        """Iterate over (key, value) in order; ``prefix`` keeps those whose key begins with it."""
        # Not the set-like view of a dict: that would need the length, which is O(n) here.
        low, high = self._bounds(prefix)
        return self._pairs(low, high, False, None)

    def keys(self, prefix: K | None = None) -> Items[K]:  # type: ignore[override]
        """Iterate over the keys in order; ``prefix`` keeps those that begin with it."""
        low, high = self._bounds(prefix)
        return Items(self._keys(low, high))

    def _keys(self, low: bytes, high: bytes | None) -> Iterator[K]:
        decode = self.namespace.decode_key
        for block in self._session.blocks(self.namespace, low, high, False, BLOCK_FIRST):
            for key, _ in block:
                yield decode(key)

    def values(self) -> Items[V]:  # type: ignore[override]
        """Iterate over the values in the order of their keys."""
        return Items(self._values())

    def _values(self) -> Iterator[V]:
        decode = self.namespace.decode_value
        for block in self._session.blocks(self.namespace, b"", None, False, BLOCK_FIRST):
            for _, value in block:
                yield decode(value)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys in order."""
        return self._keys(b"", None)

    def __len__(self) -> int:
        """Count the keys: O(n), a scan of the whole map."""
        return sum(map(len, self._session.blocks(self.namespace, b"", None, False, 2048)))

    def __bool__(self) -> bool:
        """Tell whether the map has any key, without counting them."""
        return any(self._session.blocks(self.namespace, b"", None, False, 1))

    def __eq__(self, other: object) -> bool:
        """Maps are equal when they are the same map of the same session."""
        return self is other

    __hash__ = object.__hash__


class BytesMap(Map[bytes, bytes]):
    """A map without codecs: keys and values are the bytes that are stored."""

    def __getitem__(self, key: bytes) -> bytes:
        """Return the value of a key; ``KeyError`` where there is none."""
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

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the keys that are there, with their values; cheaper than one ``get`` each."""
        wanted = list(keys)
        if {*map(type, wanted)} != {bytes} or max(map(len, wanted)) > KEY_BYTES_MAX:
            wanted = list(map(self.namespace.encode_key, wanted))
        found = dict(zip(wanted, self._session.get_many(self.namespace, wanted), strict=True))
        if None in found.values():
            return {key: data for key, data in found.items() if data is not None}
        return cast("dict[bytes, bytes]", found)

    def update_many(self, pairs: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]]) -> None:
        """Set many keys in one transaction, all or none; the last value of a key counts."""
        ready = list(pairs_of(pairs))
        keys, values = [key for key, _ in ready], [value for _, value in ready]
        plain = {*map(type, keys), *map(type, values)} == {bytes}
        if (
            plain
            and max(map(len, keys)) <= KEY_BYTES_MAX
            and max(map(len, values)) <= VALUE_BYTES_MAX
        ):
            self._session.set_many(self.namespace, ready)
        else:
            super().update_many(ready)


def check_batch(batch: object) -> None:
    """Raise ``UsageError`` for what is no number of pairs."""
    if type(batch) is not int or batch < 1:
        raise UsageError(f"batch={batch!r} is not a positive whole number")


def pairs_of(pairs: Mapping[K, V] | Iterable[tuple[K, V]]) -> Iterator[tuple[K, V]]:
    """Return the pairs that a caller gave; ``UsageError`` for what is none."""
    if isinstance(pairs, Mapping):
        return iter(pairs.items())
    try:
        return _checked(iter(pairs))
    except TypeError:
        raise _no_pair(pairs) from None


def _checked(pairs: Iterator[tuple[K, V]]) -> Iterator[tuple[K, V]]:
    for pair in pairs:
        try:
            key, value = pair
        except (TypeError, ValueError):
            raise _no_pair(pair) from None
        yield key, value


def _no_pair(found: object) -> UsageError:
    return UsageError(
        f"a {type(found).__name__} was given where key and value are wanted",
        hint="Give a mapping, or an iterable of pairs: `[(key, value), ...]`.",
    )


def namespace_at(home: Home, mapping: object) -> Namespace:
    """Return the namespace of a map of this opening of a store; ``UsageError`` for all else.

    A map of another store would name another namespace here, by its number.
    """
    namespace = getattr(mapping, "namespace", None)
    if getattr(namespace, "home", None) is home:
        return cast(Namespace, namespace)
    raise no_map_of(home, mapping, getattr(namespace, "home", None))


def no_map_of(here: Home, mapping: Any, home: Home | None) -> UsageError:
    """Return the error for a map that belongs to another home, or for what is none at all."""
    name = repr(mapping if isinstance(mapping, str) else getattr(mapping, "name", "name"))
    if home is None:
        return UsageError(
            f"{mapping!r} is not a map of this store",
            hint=f"Give the map itself, as in `tx[db.map({name})]`.",
        )
    other = "another opening of this store" if home.path == here.path else f"the store {home.path}"
    return UsageError(
        f"the map {name} belongs to {other}, this is {here.path}",
        hint=f"Use the map of this one: `db.map({name})`.",
    )


def map_of(namespace: Namespace, session: Session) -> Map[Any, Any]:
    """Return the map of a namespace in a session."""
    return BytesMap(namespace, session) if namespace.plain else Map(namespace, session)


def _limited(pairs: Iterator[T], limit: int) -> Iterator[T]:
    """Yield the first ``limit``; closing this closes ``pairs`` (islice would not)."""
    try:
        yield from islice(pairs, limit)
    finally:
        pairs.close()  # type: ignore[attr-defined]  # a generator always has it
