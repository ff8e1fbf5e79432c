"""A cursor of ``MemoryKv``: moves and answers as py-lmdb's does, the odd parts included.

Invariants:

- It never remembers a place, only a key, so that changes of its transaction cannot mislead it.
- An iterator begins at the item, or at an end if there is none, and moves its cursor along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from sortedcontainers import SortedDict

SortedPairs = SortedDict[bytes, bytes]


class CursorTransaction(Protocol):
    """The transaction that a cursor is of."""

    tree: SortedPairs

    def check(self) -> None:
        """Raise if it has ended."""

    def get(self, key: bytes) -> bytes | None:
        """Return a value."""

    def put(self, key: bytes, value: bytes) -> bool:
        """Set a value."""

    def delete(self, key: bytes) -> bool:
        """Remove a key."""


class MemoryCursor:
    """A position in the keys of a transaction.

    After a step that found nothing the cursor shows no item, but still knows where it was: at
    ``_at``, or behind the last key if ``_behind`` is true.  If LMDB's next step depends on
    how its pages are filled, after a ``getmulti`` that missed its last key, this one refuses it.
    """

    def __init__(self, transaction: CursorTransaction) -> None:
        self._transaction = transaction
        self._at: bytes | None = None
        self._behind = False
        self._found = False
        self._undefined = False

    def first(self) -> bool:
        """Move to the first key."""
        return self._move_to(0)

    def last(self) -> bool:
        """Move to the last key."""
        return self._move_to(len(self._tree()) - 1)

    def next(self) -> bool:
        """Move to the next key, or to the first if there is no position."""
        tree = self._defined_tree()
        if self._behind:
            self._found = False
        elif self._at is None:
            self._move_to(0)
        else:
            self._move_to(tree.bisect_right(self._at))
        return self._found

    def prev(self) -> bool:
        """Move to the previous key, or to the last if there is no position."""
        tree = self._defined_tree()
        if self._behind or self._at is None:
            self._move_to(len(tree) - 1)
        else:
            self._move_to(tree.bisect_left(self._at) - 1)
        return self._found

    def set_key(self, key: bytes) -> bool:
        """Move to a key; tell whether it is there."""
        return bool(self.getmulti((key,)))

    def set_range(self, key: bytes) -> bool:
        """Move to the first key that is not less than ``key``."""
        tree = self._tree()
        found = self._move_to(tree.bisect_left(key))
        self._behind = not found and len(tree) > 0
        self._undefined = False
        return found

    def key(self) -> bytes:
        """Return the key, empty if there is no item."""
        return self.item()[0]

    def value(self) -> bytes:
        """Return the value, empty if there is no item."""
        return self.item()[1]

    def item(self) -> tuple[bytes, bytes]:
        """Return key and value, both empty if there is no item."""
        tree = self._tree()
        if self._found and self._at is not None and self._at not in tree:
            # It was deleted under the cursor, which now stands on the next one.
            self._move_to(tree.bisect_left(self._at))
        if not self._found or self._at is None:
            return b"", b""
        return self._at, tree[self._at]

    def delete(self) -> bool:
        """Remove the item and stand on the next one; return whether there was one."""
        key = self.key()
        return key != b"" and self._transaction.delete(key)

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[object]:
        """Iterate from the item on, or from the first key if there is none."""
        if not self._found:
            self.first()
        return self._iterate(keys, values, forward=True)

    def iterprev(self, keys: bool = True, values: bool = True) -> Iterator[object]:
        """Iterate from the item backwards, or from the last key if there is none."""
        if not self._found:
            self.last()
        return self._iterate(keys, values, forward=False)

    def getmulti(self, keys: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """Return (key, value) of those that exist, in the order of ``keys``."""
        found: list[tuple[bytes, bytes]] = []
        for key in keys:
            value = self._transaction.get(key)
            self._found = value is not None
            self._undefined = not self._found
            if value is not None:
                self._at, self._behind = bytes(key), False
                found.append((self._at, value))
        return found

    def putmulti(
        self, items: Iterable[tuple[bytes, bytes]], *, append: bool = False
    ) -> tuple[int, int]:
        """Set many; return how many were taken and how many of them were stored."""
        consumed = added = 0
        for key, value in items:
            consumed += 1
            tree = self._tree()
            if append and tree and key <= tree.peekitem(-1)[0]:
                continue
            self._transaction.put(key, value)
            self._at, self._behind, self._found = bytes(key), False, True
            self._undefined = False
            added += 1
        return consumed, added

    def close(self) -> None:
        """Give the cursor up."""

    def _tree(self) -> SortedPairs:
        self._transaction.check()
        return self._transaction.tree

    def _defined_tree(self) -> SortedPairs:
        if self._undefined:
            raise RuntimeError("where a cursor stands after a failed getmulti is not defined")
        return self._tree()

    def _move_to(self, index: int) -> bool:
        tree = self._tree()
        self._found = 0 <= index < len(tree)
        self._undefined = False
        if self._found:
            self._at = tree.peekitem(index)[0]
            self._behind = False
        return self._found

    def _iterate(self, keys: bool, values: bool, *, forward: bool) -> Iterator[object]:
        step = self.next if forward else self.prev
        found = self._found
        while found:
            key, value = self.item()
            yield (key, value) if keys and values else key if keys else value
            found = step()
