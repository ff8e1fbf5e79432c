"""Maps: the dict-like face of a namespace, the same on the store, in a transaction, in a snapshot.

A ``Map`` reads and writes single keys through closures that its *session* has made for it, the hot
path; all else is an operation (``data.operations``), which it carries out over the session: the
database itself (each write is a transaction), a ``Transaction``, or a ``Snapshot``.

Invariants:

- Keys are checked for type and length before anything is asked of the session.
- Iteration is lazy and bound to one snapshot (in a transaction: to that transaction).

Left out: what the operations mean (``operations``), and how they are carried out over a session
(``answering``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from ...affinity.errors import CodecError
from ..data import operations
from ..data.decisions import MISSING, Decide
from ..data.namespaces import VALUE_BYTES_MAX, Namespace
from ..data.operations import LOAD_BATCH, iterated
from ..data.scan import BLOCK_FIRST
from ..data.stored import KEY_BYTES_MAX
from .answering import Session, answer, iterate, perform
from .items import Items
from .pickling import shared
from .views import MapItems, MapKeys, MapValues

if TYPE_CHECKING:
    from _typeshed import SupportsKeysAndGetItem

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
TK = TypeVar("TK", bound=tuple[Any, ...])
"""Keys that are tuples: a shorter one is a prefix, or a bound, of many."""


class Map(MutableMapping[K, V]):
    """A named map from keys to values, both encoded by its codecs.

    Made by ``db.map``; may be shared by threads as the database may.  Keys iterate in the order
    of their encoded bytes, which for ordered codecs is their own order.
    """

    def __init__(self, namespace: Namespace, session: Session) -> None:
        self._namespace = namespace
        self._session = session

    _read: Callable[[bytes], bytes | None]
    _write: Callable[[bytes, bytes | None], None]
    _rewrite: Callable[[bytes, Decide], Any]

    if not TYPE_CHECKING:  # a checker that saw it would accept any misspelt method

        def __getattr__(self, name: str) -> object:
            """Make the functions that read and write when they are first needed."""
            if name == "_read":
                self._read = self._session.getter(self._namespace)
                return self._read
            if name == "_write":
                self._write = self._session.setter(self._namespace)
                return self._write
            if name == "_rewrite":
                self._rewrite = self._session.rewriter(self._namespace)
                return self._rewrite
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def name(self) -> str:
        """The name of the map."""
        return self._namespace.name

    __copy__ = __deepcopy__ = shared

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        """Pickle the way to the map: that of its store, its name, and the names of its codecs."""
        way = self._session.way()
        self._namespace.check_alive()
        return way.mapping, (*way.arguments, self.name, self._namespace.codec_names)

    def __repr__(self) -> str:
        """Show name and codecs."""
        key, value = self._namespace.key_codec.name, self._namespace.value_codec.name
        return f"<Map {self.name!r} {key} -> {value}>"

    def _repr_html_(self) -> str:
        """Show name, codecs and the first rows, in a notebook."""
        from .html import map_as_html

        return map_as_html(self)

    # -------------------------------------------------------------- one key

    def __getitem__(self, key: K) -> V:
        """Return the value of a key; ``KeyError`` if it is not there."""
        data = self._read(self._namespace.encode_key(key))
        if data is None:
            raise KeyError(key)
        try:
            return cast(V, self._namespace.decode_value(data))
        except CodecError as error:
            raise self._namespace.at_key(error, key) from error.__cause__

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T) -> V | T: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or ``default``."""
        data = self._read(self._namespace.encode_key(key))
        try:
            return default if data is None else self._namespace.decode_value(data)
        except CodecError as error:
            raise self._namespace.at_key(error, key) from error.__cause__

    def __contains__(self, key: object) -> bool:
        """Tell whether the map has a key."""
        return self._read(self._namespace.encode_key(key)) is not None

    def __setitem__(self, key: K, value: V) -> None:
        """Set a key: outside of a transaction a transaction of its own."""
        encoded = self._namespace.encode_key(key)
        try:
            data = self._namespace.encode_value(value)
        except CodecError as error:
            raise self._namespace.at_key(error, key) from error.__cause__
        self._write(encoded, data)

    set = __setitem__

    def __delitem__(self, key: K) -> None:
        """Delete a key; ``KeyError`` if it is not there."""
        answer(operations.delete(self._namespace, key), self)

    def discard(self, key: K) -> None:
        """Delete a key if it is there; unlike ``del`` it reads nothing."""
        self._write(self._namespace.encode_key(key), None)

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: V | T) -> V | T: ...
    def pop(self, key: K, default: Any = MISSING) -> Any:
        """Delete a key and return its value, in one transaction."""
        return answer(operations.pop(self._namespace, key, default), self)

    @overload
    def setdefault(self: Map[K, T | None], key: K, default: None = None) -> T | None: ...
    @overload
    def setdefault(self, key: K, default: V) -> V: ...
    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, setting it first if it is not there, in one transaction."""
        return answer(operations.setdefault(self._namespace, key, default), self)

    def popitem(self) -> tuple[K, V]:
        """Delete the first key and return it with its value; ``KeyError`` if the map is empty."""
        return perform(operations.popitem(self._namespace), self)

    def incr(self, key: K, delta: int = 1) -> int:
        """Add ``delta`` to an integer, taken as 0 if it is not there; return the sum.

        Raises ``UsageError`` if the value is not an integer.
        """
        total: int = answer(operations.incr(self._namespace, key, delta), self)
        return total

    def compare_and_set(self, key: K, expected: V | None, value: V | None) -> bool:
        """Set a key to ``value`` if it has ``expected``, in one transaction; tell whether it did.

        None stands for no value: ``expected`` None means absent, ``value`` None deletes.
        """
        asked = operations.compare_and_set(self._namespace, key, expected, value)
        done: bool = answer(asked, self)
        return done

    # -------------------------------------------------------------- many keys

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the keys that are there, with their values; cheaper than one ``get`` each."""
        return perform(operations.get_many(self._namespace, list(keys)), self)

    def update_many(self, pairs: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set many keys in one transaction, all or none; the last value of a key counts.

        Raises ``TransactionTooLargeError`` beyond ``transaction_bytes_max``: see ``load``.
        """
        perform(operations.update_many(self._namespace, pairs), self)

    @overload
    def update(self, pairs: SupportsKeysAndGetItem[K, V], /) -> None: ...
    @overload
    def update(self: Map[str, V], pairs: SupportsKeysAndGetItem[str, V], /, **more: V) -> None: ...
    @overload
    def update(self, pairs: Iterable[tuple[K, V]], /) -> None: ...
    @overload
    def update(self: Map[str, V], pairs: Iterable[tuple[str, V]], /, **more: V) -> None: ...
    @overload
    def update(self: Map[str, V], /, **more: V) -> None: ...
    def update(self, /, *args: Any, **kwargs: Any) -> None:
        """Set many keys in one transaction, all or none: the ``update`` of a dict."""
        self.update_many(dict(*args, **kwargs))

    def load(self, pairs: Mapping[K, V] | Iterable[tuple[K, V]], *, batch: int = LOAD_BATCH) -> int:
        """Set any number of keys, ``batch`` at a time, each batch all or none; return how many.

        After an error or a crash a whole number of batches is there, and loading the same pairs
        again from the start, or from any batch that may be missing, gives the same map.
        """
        return perform(operations.load(self._namespace, iterated(pairs), batch), self)

    def clear(self) -> None:
        """Delete all keys, in one transaction; ``db.drop`` is quicker for a large map."""
        answer(operations.clear(), self)

    def delete_many(self, keys: Iterable[K]) -> None:
        """Delete many keys in one transaction, all or none; those that are not there are no error.

        Like ``discard`` it reads nothing.
        """
        perform(operations.delete_many(self._namespace, keys), self)

    def __ior__(self, other: Mapping[K, V] | Iterable[tuple[K, V]]) -> Map[K, V]:
        """Set many keys in one transaction: ``update_many`` as an operator."""
        self.update_many(other)
        return self

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
        """Iterate over the pairs from ``start`` (included) to ``stop`` (not), in order.

        ``reverse`` gives the same pairs backwards; ``limit`` ends after that many.  Raises
        ``CodecError`` if the key codec does not keep the order of keys and a bound is given.
        """
        way = operations.between(self._namespace, start, stop, reverse=reverse, limit=limit)
        return iterate(way, self)

    @overload
    def delete_range(self, start: K | None = None, stop: K | None = None) -> int: ...
    @overload
    def delete_range(
        self: Map[TK, V], start: tuple[Any, ...] | None = None, stop: tuple[Any, ...] | None = None
    ) -> int: ...
    def delete_range(self, start: Any = None, stop: Any = None) -> int:
        """Delete the keys from ``start`` (included) to ``stop`` (not); return how many there were.

        In one transaction, all or none.  Raises ``CodecError`` as ``range`` does.
        """
        deleted: int = answer(operations.delete_range(self._namespace, start, stop), self)
        return deleted

    def first(self) -> tuple[K, V] | None:
        """Return the first key with its value; None if the map is empty."""
        return perform(operations.first(self._namespace), self)

    def last(self) -> tuple[K, V] | None:
        """Return the last key with its value; None if the map is empty."""
        return perform(operations.last(self._namespace), self)

    @overload
    def items(self, prefix: None = None) -> MapItems[K, V]: ...
    @overload
    def items(self, prefix: K) -> Items[tuple[K, V]]: ...
    @overload
    def items(self: Map[TK, V], prefix: tuple[Any, ...]) -> Items[tuple[TK, V]]: ...
    def items(self, prefix: Any = None) -> MapItems[Any, V] | Items[tuple[Any, V]]:
        """Return a view of the pairs, in order of their keys: that of a dict.

        With ``prefix`` an iterator over those whose key begins with it.
        """
        if prefix is None:
            return MapItems(self)
        return iterate(operations.items(self._namespace, prefix), self)

    @overload
    def keys(self, prefix: None = None) -> MapKeys[K]: ...
    @overload
    def keys(self, prefix: K) -> Items[K]: ...
    @overload
    def keys(self: Map[TK, Any], prefix: tuple[Any, ...]) -> Items[TK]: ...
    def keys(self, prefix: Any = None) -> MapKeys[Any] | Items[Any]:
        """Return a view of the keys, in order; with ``prefix`` an iterator, as ``items`` does."""
        if prefix is None:
            return MapKeys(self)
        return iterate(operations.keys(self._namespace, prefix), self)

    def values(self) -> MapValues[V]:
        """Return a view of the values, in the order of their keys."""
        return MapValues(self)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys in order."""
        # A generator, unlike what `keys` goes over: it can be closed.
        decode = self._namespace.decode_key
        try:
            for block in self._session.blocks(
                self._namespace, b"", None, False, BLOCK_FIRST, values=False
            ):
                for key, _ in block:
                    yield decode(key)
        except CodecError as error:
            raise self._namespace.unread(error, key) from error.__cause__

    def __reversed__(self) -> Iterator[K]:
        """Iterate over the keys backwards."""
        return reversed(self.keys())

    def __len__(self) -> int:
        """Return the number of keys; it takes as long as what no checkpoint has written yet."""
        found: int = answer(operations.count(), self)
        return found

    def __bool__(self) -> bool:
        """Tell whether the map has any key, without counting them."""
        return perform(operations.has_any(), self)

    def __eq__(self, other: object) -> bool:
        """Tell whether another mapping has the same keys with the same values: O(n)."""
        if self is other:
            return True
        if not isinstance(other, Mapping):
            return NotImplemented
        found = 0
        for key, value in self.items():
            if key not in other or other[key] != value:
                return False
            found += 1
        return found == len(other)

    __hash__ = None  # type: ignore[assignment]  # as of all that can change and is equal by content


class BytesMap(Map[bytes, bytes]):
    """A map without codecs: keys and values are the bytes that are stored."""

    def __getitem__(self, key: bytes) -> bytes:
        """Return the value of a key; ``KeyError`` if it is not there."""
        if type(key) is not bytes or len(key) > KEY_BYTES_MAX:
            key = self._namespace.encode_key(key)
        data = self._read(key)
        if data is None:
            raise KeyError(key)
        return data

    @overload
    def get(self, key: bytes) -> bytes | None: ...
    @overload
    def get(self, key: bytes, default: bytes | T) -> bytes | T: ...
    def get(self, key: bytes, default: Any = None) -> Any:
        """Return the value of a key, or ``default``."""
        if type(key) is not bytes or len(key) > KEY_BYTES_MAX:
            key = self._namespace.encode_key(key)
        data = self._read(key)
        return default if data is None else data

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Set a key: outside of a transaction a transaction of its own."""
        if type(key) is bytes is type(value) and (
            len(key) <= KEY_BYTES_MAX and len(value) <= VALUE_BYTES_MAX
        ):
            self._write(key, value)
        else:
            super().__setitem__(key, value)

    set = __setitem__


def namespace_of(mapping: Map[Any, Any]) -> Namespace:
    """Return the namespace of a map, for the parts of Tidelog that work in it."""
    return mapping._namespace


def map_of(namespace: Namespace, session: Session) -> Map[Any, Any]:
    """Return the map of a namespace in a session."""
    return BytesMap(namespace, session) if namespace.plain else Map(namespace, session)
