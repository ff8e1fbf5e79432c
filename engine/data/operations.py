"""The operations of a map, each written once for all its faces.

A face is a map of a store, in a transaction, or in a snapshot, for threads or for tasks, beside
the store or at the other end of a network.  Whatever it is, it carries these out: it answers the
requests that an operation yields, and its caller gets what the operation returns.  So all faces
agree about results and errors, by construction.  An operation that is one request, whose answer is
its result, is just that request.

Invariants:

- Keys and values are encoded before anything of the operation is asked for.
- Nothing here depends on which face it is, and nothing blocks.

Left out: single gets and puts, which are too hot for this.  Each face has closures for them, which
the conformance suite holds to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import index, itemgetter
from typing import Any, SupportsIndex, TypeVar

from ...affinity.errors import CodecError, UsageError
from . import decisions
from .decisions import MISSING
from .namespaces import VALUE_BYTES_MAX, Namespace
from .requests import (
    Compute,
    Count,
    DecideOn,
    First,
    GetMany,
    Has,
    Iteration,
    Keys,
    Operation,
    PopFirst,
    PutMany,
    Request,
    Source,
    Take,
    Together,
)
from .scan import BLOCK_FIRST, Pair
from .stored import KEY_BYTES_MAX

T = TypeVar("T")

LOAD_BATCH = 10_000
"""Pairs that a load commits at once, if the caller does not say."""

KEYS_AT_ONCE = 64
"""Keys that are encoded, read and decoded where that keeps others waiting; more go elsewhere."""

Encoded = list[tuple[bytes, "bytes | None"]]

_KEY: Callable[[tuple[Any, Any]], Any] = itemgetter(0)
_VALUE: Callable[[tuple[Any, Any]], Any] = itemgetter(1)

# ------------------------------------------------------------------ one key


def contains(namespace: Namespace, key: Any) -> Request:
    """Tell whether the map has a key."""
    return Has(namespace.encode_key(key))


def delete(namespace: Namespace, key: Any) -> Request:
    """Delete a key; ``KeyError`` if it is not there."""
    return DecideOn(namespace.encode_key(key), decisions.delete(key))


def pop(namespace: Namespace, key: Any, default: Any = MISSING) -> Request:
    """Delete a key and return its value, or ``default`` if it is not there."""
    return DecideOn(namespace.encode_key(key), decisions.pop(namespace, key, default))


def setdefault(namespace: Namespace, key: Any, default: Any) -> Request:
    """Return the value of a key, setting it first if it is not there."""
    return DecideOn(namespace.encode_key(key), decisions.setdefault(namespace, key, default))


def incr(namespace: Namespace, key: Any, delta: int) -> Request:
    """Add ``delta`` to an integer, taken as 0 if it is not there; return the sum."""
    return DecideOn(namespace.encode_key(key), decisions.incr(namespace, key, delta))


def compare_and_set(namespace: Namespace, key: Any, expected: Any, value: Any) -> Request:
    """Set a key if it has ``expected``, None being no value; tell whether it did."""
    decide = decisions.compare_and_set(namespace, key, expected, value)
    return DecideOn(namespace.encode_key(key), decide)


def popitem(namespace: Namespace) -> Operation[tuple[Any, Any]]:
    """Delete the first key and return it with its value; ``KeyError`` if the map is empty."""
    pair: Pair | None = yield PopFirst()
    if pair is None:
        raise KeyError(f"the map {namespace.name!r} is empty")
    try:
        return _decoded(namespace, pair)
    except BaseException:
        # It was committed before the codecs were asked: nobody else has what could not be read.
        yield DecideOn(pair[0], decisions.restore(pair[1]))
        raise


def first(namespace: Namespace) -> Operation[tuple[Any, Any] | None]:
    """Return the first key with its value; None if the map is empty."""
    return _at_the_end(namespace, reverse=False)


def last(namespace: Namespace) -> Operation[tuple[Any, Any] | None]:
    """Return the last key with its value; None if the map is empty."""
    return _at_the_end(namespace, reverse=True)


def _at_the_end(namespace: Namespace, *, reverse: bool) -> Operation[tuple[Any, Any] | None]:
    pair: Pair | None = yield First(reverse)
    return pair and _decoded(namespace, pair)


def _decoded(namespace: Namespace, pair: Pair) -> tuple[Any, Any]:
    return next(iter(_pairs_of_block(namespace)([pair])))


# ------------------------------------------------------------------ many keys


def get_many(namespace: Namespace, keys: list[Any]) -> Operation[dict[Any, Any]]:
    """Return the keys that are there, with their values."""
    if namespace.plain:
        if {*map(type, keys)} != {bytes} or max(map(len, keys)) > KEY_BYTES_MAX:
            keys = list(map(namespace.encode_key, keys))
        pairs = dict(zip(keys, (yield GetMany(keys)), strict=True))
        if all(pairs.values()):  # none is missing, nor empty
            return pairs
        return {key: data for key, data in pairs.items() if data is not None}
    found: list[bytes | None] = yield GetMany(list(map(namespace.encode_key, keys)))
    decode = namespace.decode_value
    values = {}
    try:
        for key, data in zip(keys, found, strict=True):
            if data is not None:
                values[key] = decode(data)
    except CodecError as error:
        raise namespace.at_key(error, key) from error.__cause__
    return values


def update_many(namespace: Namespace, pairs: Mapping[Any, Any] | Iterable[Any]) -> Operation[None]:
    """Set many keys, all or none; the last value of a key counts."""
    given = list(pairs_of(pairs))
    if len(given) <= KEYS_AT_ONCE:
        yield PutMany(_encoded(namespace, given))
    else:
        yield PutMany((yield Compute(partial(_encoded, namespace, given))))


def _encoded(namespace: Namespace, pairs: list[tuple[Any, Any]]) -> Encoded:
    if namespace.plain and pairs:
        # What may be stored as it is costs few calls for all of it.
        keys, values = list(map(_KEY, pairs)), list(map(_VALUE, pairs))
        plain = {*map(type, keys), *map(type, values)} == {bytes}
        if (
            plain
            and max(map(len, keys)) <= KEY_BYTES_MAX
            and max(map(len, values)) <= VALUE_BYTES_MAX
        ):
            return pairs
    encode_key, encode_value = namespace.encode_key, namespace.encode_value
    try:
        return [(encode_key(key), encode_value(value)) for key, value in pairs]
    except CodecError:
        for key, value in pairs:  # once more, to tell which key it is
            encode_key(key)
            try:
                encode_value(value)
            except CodecError as error:
                raise namespace.at_key(error, key) from error.__cause__
        raise


def load(namespace: Namespace, source: Source, batch: int) -> Operation[int]:
    """Set any number of keys, ``batch`` at a time, each batch all or none; return how many."""
    if type(batch) is not int or batch < 1:
        raise UsageError(f"batch={batch!r} is not a positive whole number")
    total = 0
    while part := (yield Take(source, batch)):
        yield from update_many(namespace, part)
        total += len(part)
    return total


def delete_many(namespace: Namespace, keys: Iterable[Any]) -> Operation[None]:
    """Delete keys, all or none, if they are there."""
    given = list(keys)
    if len(given) <= KEYS_AT_ONCE:
        yield PutMany(_deletes(namespace, given))
    else:
        yield PutMany((yield Compute(partial(_deletes, namespace, given))))


def _deletes(namespace: Namespace, keys: list[Any]) -> Encoded:
    return [(key, None) for key in map(namespace.encode_key, keys)]


def clear() -> Request:
    """Delete all keys, all or none; return how many there were."""
    return Together(partial(_clear, b"", None))


def delete_range(namespace: Namespace, start: Any, stop: Any) -> Request:
    """Delete the keys from ``start`` to below ``stop``, all or none; return how many there were."""
    return Together(partial(_clear, *_bounds(namespace, start, stop)))


def _clear(low: bytes, high: bytes | None) -> Operation[int]:
    keys: list[bytes] = yield Keys(low, high)
    yield PutMany([(key, None) for key in keys])
    return len(keys)


def count() -> Request:
    """Return the number of keys."""
    return Count(b"", None, None)


def has_any() -> Operation[bool]:
    """Tell whether the map has any key, without counting them."""
    found: int = yield Count(b"", None, 1)
    return found > 0


# ------------------------------------------------------------------ in order


def between(
    namespace: Namespace, start: Any, stop: Any, *, reverse: bool, limit: int | None
) -> Iteration[tuple[Any, Any]]:
    """Go over the pairs from ``start`` (included) to ``stop`` (not); None means no bound."""
    low, high = _bounds(namespace, start, stop)
    if limit is not None:
        limit = _limit(limit)
    if reverse not in (False, True):
        raise UsageError(f"reverse={reverse!r} is neither False nor True")
    size = BLOCK_FIRST if limit is None else min(max(limit, 1), BLOCK_FIRST)
    of_block = None if namespace.plain else _pairs_of_block(namespace)
    return Iteration(low, high, bool(reverse), limit, size, of_block)


def _limit(limit: SupportsIndex) -> int:
    try:
        number = index(limit)
    except TypeError:
        raise UsageError(
            f"limit={limit!r} is not a whole number", hint="Give an int, or None for no limit."
        ) from None
    if number < 0:
        raise UsageError(
            f"limit={number} is negative", hint="Give 0 or more, or None for no limit."
        )
    return number


def _bounds(namespace: Namespace, start: Any, stop: Any) -> tuple[bytes, bytes | None]:
    if not namespace.key_codec.ordered and not (start is stop is None):
        raise CodecError(
            f"codec {namespace.key_codec.name} does not keep the order of keys",
            hint="Leave the bounds out, or use an ordered key codec.",
        )
    low = b"" if start is None else namespace.encode_key(start)
    return low, None if stop is None else namespace.encode_key(stop)


def items(namespace: Namespace, prefix: Any) -> Iteration[tuple[Any, Any]]:
    """Go over the pairs whose key begins with a prefix; None means all."""
    low, high = _run_of(namespace, prefix)
    of_block = None if namespace.plain else _pairs_of_block(namespace)
    return Iteration(low, high, False, None, BLOCK_FIRST, of_block)


def _run_of(namespace: Namespace, prefix: Any) -> tuple[bytes, bytes | None]:
    if prefix is None:
        return b"", None
    try:
        return namespace.key_codec.prefix_range(prefix)
    except CodecError as error:
        raise namespace.key_refused(error, prefix) from error.__cause__


def keys(namespace: Namespace, prefix: Any) -> Iteration[Any]:
    """Go over the keys that begin with a prefix; None means all."""
    low, high = _run_of(namespace, prefix)
    decode = namespace.decode_key

    def decoded(block: list[Pair]) -> Iterator[Any]:
        try:
            for key, _ in block:  # no slower than a map: that would call from C into Python
                yield decode(key)
        except CodecError as error:
            raise namespace.unread(error, key) from error.__cause__

    return Iteration(low, high, False, None, BLOCK_FIRST, decoded, values=False)


def values(namespace: Namespace) -> Iteration[Any]:
    """Go over the values, in the order of their keys."""
    decode = namespace.decode_value

    def decoded(block: list[Pair]) -> Iterator[Any]:
        try:
            for key, value in block:  # noqa: B007  # the key is for the error
                yield decode(value)
        except CodecError as error:
            raise namespace.unread(error, key) from error.__cause__

    return Iteration(b"", None, False, None, BLOCK_FIRST, decoded)


def _pairs_of_block(namespace: Namespace) -> Callable[[list[Pair]], Iterable[tuple[Any, Any]]]:
    decode_key, decode_value = namespace.decode_key, namespace.decode_value

    def decoded(block: list[Pair]) -> Iterator[tuple[Any, Any]]:
        try:
            for key, value in block:
                yield decode_key(key), decode_value(value)
        except CodecError as error:
            raise namespace.unread(error, key) from error.__cause__

    return decoded


# ------------------------------------------------------------------ what callers give


def pairs_of(pairs: Mapping[Any, Any] | Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Return the pairs that a caller gave; ``UsageError`` for what is not a pair."""
    return iter(pairs.items()) if isinstance(pairs, Mapping) else _checked(iterated(pairs))


def iterated(pairs: Mapping[Any, Any] | Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over what a caller gave; ``UsageError`` if there cannot be one."""
    if isinstance(pairs, Mapping):
        return iter(pairs.items())
    try:
        return iter(pairs)
    except TypeError:
        raise _no_pair(pairs) from None


def _checked(pairs: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    for pair in pairs:
        try:
            key, value = pair
        except (TypeError, ValueError):
            raise _no_pair(pair) from None
        yield key, value


def _no_pair(found: object) -> UsageError:
    return UsageError(
        f"a pair of key and value is needed, not {type(found).__name__}",
        hint="Give a mapping, or an iterable of pairs: `[(key, value), ...]`.",
    )
