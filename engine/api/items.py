"""What an iteration over a map returns to a thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from ..data.namespaces import not_copied

T = TypeVar("T")


class Items(Iterator[T], Generic[T]):
    """A lazy iterator over a map; closing it, or leaving its ``with`` block, ends its snapshot."""

    def __init__(self, values: Iterator[T], source: Iterator[Any] | None = None) -> None:
        self._values = values
        self._source = values if source is None else source
        self._next = values.__next__

    __reduce_ex__ = not_copied

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
            self._values = iter(())
            self._next = self._values.__next__

    def __enter__(self) -> Items[T]:
        """Return the iterator itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the iteration."""
        self.close()
