"""What ``keys``, ``items`` and ``values`` of a map return: views, as those of a dict are.

A view holds no snapshot.  Each iteration over it takes one of its own, and so does ``len``: what
one shows is of one moment, what two show need not be.

Left out: the iterations themselves (``items``).
"""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, ValuesView
from typing import Any, TypeVar, cast

from ..data.decisions import MISSING
from ..data.requests import Count, Iteration
from .answering import Bound, answer, iterate
from .items import Items

K = TypeVar("K")
V = TypeVar("V")


class _Over:
    """Iterates over a part of a map, and counts it."""

    def __init__(self, mapping: Bound, way: Iteration[Any]) -> None:
        self._bound = mapping
        self._way = way

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the map {self._bound.namespace.name!r}>"

    def __iter__(self) -> Items[Any]:
        """Begin an iteration; closing it, or leaving its ``with`` block, ends its snapshot."""
        return iterate(self._way, self._bound)

    def __reversed__(self) -> Items[Any]:
        """Begin an iteration backwards."""
        return iterate(self._way._replace(reverse=True), self._bound)

    def __len__(self) -> int:
        """Count: O(n), a scan."""
        found: int = answer(Count(self._way.low, self._way.high, None), self._bound)
        return found

    def _value(self, key: Any) -> Any:
        """Return the value of a key of this part, ``MISSING`` if it has none."""
        namespace, (low, high, *_) = self._bound.namespace, self._way
        encoded = namespace.encode_key(key)
        if encoded < low or (high is not None and encoded >= high):
            return MISSING
        data = self._bound._read(encoded)
        return MISSING if data is None else namespace.decode_value(data)


class MapKeys(_Over, KeysView[K]):
    """The keys of a map, in order; as a set for ``&``, ``|``, ``-`` and ``==``."""

    def __contains__(self, key: object) -> bool:
        """Tell whether a key is there."""
        return self._value(key) is not MISSING


class MapItems(_Over, ItemsView[K, V]):
    """The pairs of a map, in the order of their keys."""

    def __contains__(self, pair: object) -> bool:
        """Tell whether a key is there with a value."""
        if not isinstance(pair, tuple) or len(pair) != 2:
            return False
        return bool(self._value(pair[0]) == pair[1])


class MapValues(_Over, ValuesView[V]):
    """The values of a map, in the order of their keys."""

    def __contains__(self, value: object) -> bool:
        """Tell whether some key has a value: O(n)."""
        return any(value == cast(object, found) for found in self)
