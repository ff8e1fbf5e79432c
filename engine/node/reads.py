"""What members read for clients: columns of values with their versions, from one view.

Left out: which partitions may be read (``partitions``), checks of commits (``commits``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence, Set as AbstractSet
from typing import Any, NamedTuple

from ...checkpoints.replay import State
from ..data.overlay import View
from ..data.point_reads import read_stored
from ..data.scan import BlockSizes, Range, scan
from ..data.stored import VALUE, pack_prefix, version_of
from ..net.operations import check_arguments
from .commits import ABSENT, map_record, not_understood, places_of, range_of, version_at

PAGE_BYTES = 1 << 20
PAGE_PAIRS_MAX = 8192
PASSED_BYTES_MAX = 32 << 20
"""So much is gone over for a page that shows keys only: the member does nothing else meanwhile."""


class LookedUp(NamedTuple):
    """What a ``get`` or a ``scan`` has found, and all that it rests on."""

    value: tuple[Any, ...]
    partitions: AbstractSet[int]
    namespace: int
    keys: AbstractSet[bytes] | None
    """The keys of a ``get``."""
    low: bytes = b""
    high: bytes | None = None
    """What a ``scan`` has gone over: from ``low`` to below ``high``."""

    def span(self) -> Range:
        """Return what a ``scan`` has gone over."""
        return Range(namespace=self.namespace, start=self.low, stop=self.high)

    def meets(self, written: AbstractSet[tuple[int, bytes]]) -> bool:
        """Tell whether one of these keys of maps could change what was found."""
        if self.keys is not None:
            return any((self.namespace, key) in written for key in self.keys)
        return any(
            number == self.namespace and self.low <= key and (self.high is None or key < self.high)
            for number, key in written
        )


def looked_up(state: State, view: View, operation: object, arguments: object) -> LookedUp:
    """Carry out a ``get`` or a ``scan``; ``UsageError`` for anything else, ``NotFoundError``."""
    if operation not in ("get", "scan") or not isinstance(arguments, list):
        raise not_understood(f"a read by {operation!r}")
    assert isinstance(operation, str)
    check_arguments(operation, arguments)
    if operation == "scan":
        return scanned(state, view, arguments)
    number, keys = arguments
    places = places_of(state, number, keys)
    return LookedUp(get(view, number, keys, places), frozenset(places), number, frozenset(keys))


def read_partitions(state: State, operation: object, arguments: object) -> set[int]:
    """Return the partitions that a ``get`` or a ``scan`` is about."""
    if operation not in ("get", "scan") or not isinstance(arguments, list):
        raise not_understood(f"a read by {operation!r}")
    assert isinstance(operation, str)
    check_arguments(operation, arguments)
    if operation == "scan":
        return set(arguments[1])
    return set(places_of(state, *arguments))


def scanned(state: State, view: View, arguments: Sequence[Any]) -> LookedUp:
    """Return a page, by the arguments of a ``scan``."""
    number, partitions, low, high, reverse, limit, versions, values = arguments
    if limit < 1:
        raise not_understood(f"a scan of {limit} pairs")
    space = state.space_of(map_record(state, number))
    if not set(partitions) <= set(space.numbers):
        raise not_understood("a scan of partitions that its map has not")
    wanted = range_of(number, low, high)
    found = page(
        view,
        state,
        wanted,
        partitions,
        reverse=bool(reverse),
        limit=limit,
        versions=bool(versions),
        with_values=bool(values),
    )
    keys, more = found[0], found[4]
    start, stop = wanted.start, wanted.stop
    if more and reverse:
        start = keys[-1]
    elif more:
        stop = keys[-1] + b"\0"
    return LookedUp(found, frozenset(partitions), number, None, start, stop)


def cut(
    found: Sequence[Any], key: bytes, *, reverse: bool
) -> tuple[list[bytes], list[bytes], list[int], list[int], bool]:
    """Return the part of a page before a key; there is more behind it."""
    keys = found[0]
    count = len(keys) - bisect_right(keys[::-1], key) if reverse else bisect_left(keys, key)
    return keys[:count], found[1][:count], found[2][:count], found[3][:count], True


def get(
    view: View, number: int, keys: Sequence[bytes], places: Sequence[int]
) -> tuple[list[bytes | None], list[int], list[int]]:
    """Return values, epochs and counters of keys that lie in these partitions."""
    values: list[bytes | None] = []
    epochs: list[int] = []
    counters: list[int] = []
    for key, place in zip(keys, places, strict=True):
        stored = read_stored(view, place, pack_prefix(place, number) + key)
        if stored is None:
            values.append(None)
            epoch, counter = ABSENT
        else:
            values.append(stored[VALUE])
            epoch, counter, _ = version_of(stored)
        epochs.append(epoch)
        counters.append(counter)
    return values, epochs, counters


def page(
    view: View,
    state: State,
    wanted: Range,
    partitions: Sequence[int],
    *,
    reverse: bool,
    limit: int,
    versions: bool,
    with_values: bool = True,
) -> tuple[list[bytes], list[bytes], list[int], list[int], bool]:
    """Return keys, values, epochs and counters in order, and whether there may be more.

    A page has at most ``limit`` pairs, and about a mebibyte.  Values are left out if they are not
    wanted; so are versions.
    """
    limit = min(limit, PAGE_PAIRS_MAX)
    keys: list[bytes] = []
    values: list[bytes] = []
    size, passed, more = 0, 0, False
    blocks = BlockSizes(first=max(min(limit, 512), 1))
    for block in scan(view, partitions, wanted, reverse=reverse, blocks=blocks):
        for key, value in block:
            if len(keys) == limit or size >= PAGE_BYTES or passed >= PASSED_BYTES_MAX:
                more = True
                break
            keys.append(key)
            passed += len(value)
            size += len(key)
            if with_values:
                values.append(value)
                size += len(value)
        if more:
            break
    if not versions:
        return keys, values, [], [], more
    found = [
        version_at(view, place, pack_prefix(place, wanted.namespace) + key)
        for key, place in zip(keys, places_of(state, wanted.namespace, keys), strict=True)
    ]
    return keys, values, [epoch for epoch, _ in found], [counter for _, counter in found], more
