"""The pages of an LMDB file, looked at without LMDB: damage would end the process by a signal.

LMDB trusts what it reads: a page whose header or table of nodes is damaged sends it beyond the
end of the file (SIGBUS) or into an assertion (SIGABRT), and a damaged list of free pages lets its
next commit overwrite live ones.  So a file of up to ``CHECKED_BYTES_MAX`` is walked before LMDB
opens it for writing, all of it; a larger one takes too long for an open, and ``db verify`` does.

Invariants:

- What this walk passes LMDB can read and write without leaving the file or meeting an assertion.
- Every key that the tree counts is found by going down from its root.

Left out: what keys and values mean; their checksums are looked at when they are read.

The layout is that of LMDB 0.9's ``mdb.c`` (``MDB_page``, ``MDB_node``, ``MDB_meta``) on a little
endian machine with 64 bits.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple

from ...affinity.errors import CorruptDataError

PAGE = 4096
CHECKED_BYTES_MAX = 4 << 20
"""At 10 us a page this is what an open may take longer."""

HEADER = struct.Struct("<QHHHH")
NODE = struct.Struct("<HHHH")
_TREE = struct.Struct("<IHHQQQQQ")
_PAGE_NUMBER = struct.Struct("<Q")

BRANCH, LEAF, OVERFLOW = 1, 2, 4
BIG = 1
NO_PAGE = (1 << 64) - 1
TREE_DEPTH_MAX = 32
_INTEGER_KEYS = 8
_SIGNS = {"free": (PAGE, _INTEGER_KEYS), "main": (0, 0)}
"""Padding, which is the size of pages for one of them, and flags."""
_ALONE = 0x4000
"""Among the flags of the first one, and of no effect: the file has had no folder of its own."""


class Tree(NamedTuple):
    """One of the two trees of a file: where it begins, and how many keys it says it has."""

    name: str
    root: int
    depth: int
    entries: int


def tree_of(name: str, record: bytes) -> Tree:
    """Return a tree as the meta page describes it; ``name`` is ``free`` or ``main``."""
    pad, flags, depth, _, _, _, entries, root = _TREE.unpack(record)
    if (pad, flags & ~_ALONE) != _SIGNS[name]:
        raise CorruptDataError(f"the data file describes its tree {name} as {pad}, {flags:#x}")
    return Tree(name, root, depth, entries)


def check_pages(data: bytes, count: int, free: Tree, main: Tree) -> None:
    """Raise ``CorruptDataError`` unless both trees of a file are sound; ``data`` is all of it.

    ``count`` pages are known to its meta page; those at the end that are free may never have been
    written.
    """
    walk = _Walk(data, count)
    walk.tree(free)
    freed = walk.values
    walk.tree(main)
    walk.check_free(freed)


class _Walk:
    """A walk through the trees of one file."""

    def __init__(self, data: bytes, count: int) -> None:
        self.values: list[bytes] = []
        """Lists of free pages, found in the tree that holds them."""
        self._data = data
        self._pages = min(len(data) // PAGE, count)
        self._count = count
        self._seen: set[int] = {0, 1}
        self._entries = 0
        self._free = False

    def tree(self, tree: Tree) -> None:
        """Go through one tree."""
        self._free = tree.name == "free"
        self._entries = 0
        if tree.root != NO_PAGE:
            if not 1 <= tree.depth <= TREE_DEPTH_MAX:
                raise _damage(tree.root, f"the tree {tree.name} has depth {tree.depth}")
            self._page(tree.root, tree.depth, None, None)
        if self._entries != tree.entries:
            raise CorruptDataError(
                f"the data file holds {self._entries} keys, its meta page says {tree.entries}"
            )

    def check_free(self, lists: list[bytes]) -> None:
        """Look for free pages that are in use, or beyond the end."""
        for value in lists:
            count, *numbers = struct.unpack(f"<{len(value) // 8}Q", value[: len(value) // 8 * 8])
            if count > len(numbers):
                raise CorruptDataError("a list of free pages of the data file is cut off")
            for number in numbers[:count]:
                self._take(number, "free", self._count)

    def _take(self, number: int, what: str, count: int) -> None:
        if not 0 <= number < count:
            raise _damage(number, f"{what}, beyond the {count} pages of the file")
        if number in self._seen:
            raise _damage(number, f"{what}, and used elsewhere")
        self._seen.add(number)

    def _page(self, number: int, depth: int, low: bytes | None, high: bytes | None) -> None:
        """Check a page of a tree, and those below; its keys lie from ``low`` to before ``high``."""
        self._take(number, "part of a tree", self._pages)
        base = number * PAGE
        found, _, flags, lower, upper = HEADER.unpack_from(self._data, base)
        kind = LEAF if depth == 1 else BRANCH
        if found != number or flags != kind:
            raise _damage(number, f"its header says page {found}, kind {flags:#x}")
        if not HEADER.size < lower <= upper <= PAGE or lower % 2:
            raise _damage(number, f"its free space is from {lower} to {upper}")
        count = (lower - HEADER.size) // 2
        places = struct.unpack_from(f"<{count}H", self._data, base + HEADER.size)
        if min(places) < upper or max(places) > PAGE - NODE.size:
            raise _damage(number, "a node lies outside of it")
        if kind == LEAF:
            keys = [self._leaf_node(number, base + place) for place in places]
            self._entries += count
            self._check_order(number, keys, low, high)
            return
        nodes = [self._branch_node(number, base + place) for place in places]
        keys = [key for key, _ in nodes[1:]]
        self._check_order(number, keys, low, high)
        for (_, below), start, stop in zip(nodes, [low, *keys], [*keys, high], strict=True):
            self._page(below, depth - 1, start, stop)

    def _check_order(
        self, number: int, keys: list[bytes], low: bytes | None, high: bytes | None
    ) -> None:
        if self._free:  # numbers, in the order of this machine
            keys = [key[::-1] for key in keys]
            low = None if low is None else low[::-1]
            high = None if high is None else high[::-1]
        inside = not keys or ((low is None or low <= keys[0]) and (high is None or keys[-1] < high))
        if not inside or not all(one < other for one, other in pairwise(keys)):
            raise _damage(number, "its keys are out of order")

    def _branch_node(self, number: int, at: int) -> tuple[bytes, int]:
        low, high, top, size = NODE.unpack_from(self._data, at)
        end = at + NODE.size + size
        if end > (number + 1) * PAGE:
            raise _damage(number, "a key reaches beyond it")
        return self._data[at + NODE.size : end], low | high << 16 | top << 32

    def _leaf_node(self, number: int, at: int) -> bytes:
        low, high, flags, size = NODE.unpack_from(self._data, at)
        length = low | high << 16
        start = at + NODE.size + size
        end = start + (_PAGE_NUMBER.size if flags == BIG else length)
        if flags & ~BIG or not size or end > (number + 1) * PAGE:
            raise _damage(number, f"a node has flags {flags:#x} and {size} + {length} bytes")
        if flags == BIG:
            (first,) = _PAGE_NUMBER.unpack_from(self._data, start)
            start = self._overflow(first, length)
            end = start + length
        if self._free:
            self.values.append(self._data[start:end])
        return self._data[at + NODE.size : at + NODE.size + size]

    def _overflow(self, first: int, length: int) -> int:
        """Check the pages of a large value; return where it begins."""
        count = (HEADER.size + length + PAGE - 1) // PAGE
        for number in range(first, first + count):
            self._take(number, "part of a large value", self._pages)
        found, _, flags, low, high = HEADER.unpack_from(self._data, first * PAGE)
        if found != first or flags != OVERFLOW or low | high << 16 != count:
            raise _damage(first, f"its header says page {found}, kind {flags:#x}")
        return first * PAGE + HEADER.size


def _damage(number: int, what: str) -> CorruptDataError:
    return CorruptDataError(f"page {number} of the data file is damaged: {what}")
