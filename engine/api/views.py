"""What ``keys``, ``items`` and ``values`` of a map return: views, as those of a dict are.

A view holds no snapshot.  Each iteration over it takes one of its own, and so does ``len``: what
one of them shows is of one moment, what two of them show need not be.

``list`` asks for the length first, so a length may cost no scan.

Left out: the iterations themselves (``items``), and parts of a map, whose length would be a scan.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import ItemsView, Iterator, KeysView, MappingView, ValuesView
from typing import Any, TypeVar

from ..data import operations
from ..data.namespaces import not_copied
from ..data.requests import Iteration
from .answering import iterate

K = TypeVar("K")
V = TypeVar("V")


class _View(MappingView):
    """Goes over a map, of which it is a view."""

    __slots__ = ()

    _mapping: Any

    __reduce_ex__ = not_copied

    def __bool__(self) -> bool:
        """Tell whether the map has any key, without counting them."""
        return bool(self._mapping)

    def __iter__(self) -> Iterator[Any]:
        """Begin an iteration; its snapshot ends with it, or once nothing refers to it."""
        return iter(iterate(self._way(), self._mapping))  # the one in C beneath

    def __reversed__(self) -> Iterator[Any]:
        """Begin an iteration backwards."""
        return iter(iterate(self._way()._replace(reverse=True), self._mapping))

    @abstractmethod
    def _way(self) -> Iteration[Any]:
        """Return how to go over the map."""


class MapKeys(_View, KeysView[K]):
    """The keys of a map, in order, and as a set: ``&``, ``|``, ``-``, ``^``, ``<=``, ``==``."""

    __slots__ = ()

    def _way(self) -> Iteration[K]:
        return operations.keys(self._mapping._namespace, None)


class MapItems(_View, ItemsView[K, V]):
    """The pairs of a map, in the order of their keys, and as a set."""

    __slots__ = ()

    def _way(self) -> Iteration[tuple[K, V]]:
        return operations.items(self._mapping._namespace, None)

    def __contains__(self, pair: object) -> bool:
        """Tell whether a key is there with a value, by one read."""
        return isinstance(pair, tuple) and len(pair) == 2 and super().__contains__(pair)


class MapValues(_View, ValuesView[V]):
    """The values of a map, in the order of their keys."""

    __slots__ = ()

    def _way(self) -> Iteration[V]:
        return operations.values(self._mapping._namespace)

    def __contains__(self, value: object) -> bool:
        """Tell whether some key has a value: a scan that ends at the first one."""
        with iterate(self._way(), self._mapping) as values:
            return any(found is value or found == value for found in values)
