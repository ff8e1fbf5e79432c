"""What can still be read of a damaged LMDB file: a walk through its tree that goes on past damage.

Owns ``Remains``.  If a page or a node is damaged, the run of keys that it may have held is told,
and the walk goes on behind it; LMDB itself would end the process, or the search.

Invariants:

- Nothing is read beyond the file, no page twice, and none that is called something else.
- A page whose keys lie outside of the run that leads to it is not believed.
- Pairs come as they stand: whether they are as they were written is for the caller to check.

Left out: what a sound file looks like (``lmdb_pages``, whose layout this is), and what keys mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .lmdb_pages import (
    BIG,
    BRANCH,
    HEADER,
    LEAF,
    NO_PAGE,
    NODE,
    OVERFLOW,
    PAGE,
    TREE_DEPTH_MAX,
    Tree,
)

_PAGE_NUMBER = struct.Struct("<Q")

TreePair = tuple[bytes, bytes]
"""Key and value as a leaf has them."""


class LostRun(NamedTuple):
    """A run of keys that cannot be read: from ``low`` to before ``high``, None if there is none.

    With ``key`` only the value of that key is lost.
    """

    page: int
    why: str
    low: bytes | None
    high: bytes | None
    key: bytes | None = None


class Remains:
    """One walk through the data of a file; ``data`` is all of it.

    ``doubted`` tells of a leaf, by its number and first key, that it is not to be believed.
    """

    def __init__(
        self,
        data: bytes,
        tree: Tree,
        doubted: Callable[[int, bytes], bool] = lambda _number, _key: False,
    ) -> None:
        self.lost: list[LostRun] = []
        self._data = data
        self._pages = len(data) // PAGE
        self._tree = tree
        self._ordered = tree.name != "free"  # whose keys are numbers, in the order of this machine
        self._doubted = doubted
        self._seen = {0, 1}

    def pairs(self) -> Iterator[TreePair]:
        """Yield the pairs of the tree that can be read, in the order of its pages."""
        if self._tree.root == NO_PAGE:
            return
        if not 1 <= self._tree.depth <= TREE_DEPTH_MAX:
            self._lose(self._tree.root, f"depth {self._tree.depth}", None, None)
            return
        yield from self._page(self._tree.root, self._tree.depth, None, None)

    def _page(
        self, number: int, depth: int, low: bytes | None, high: bytes | None
    ) -> Iterator[TreePair]:
        places = self._places(number, BRANCH if depth > 1 else LEAF, low, high)
        if places is None:
            return
        if depth == 1:
            yield from self._leaf(number, places, low, high)
            return
        starts: list[tuple[bytes | None, int | None]] = []
        for index, place in enumerate(places):
            node = self._branch_node(number, place)
            if node is None:
                starts.append((None, None))
            else:
                starts.append((low if index == 0 else node[0], node[1]))
        for index, (start, below) in enumerate(starts):
            stop = next((key for key, _ in starts[index + 1 :] if key is not None), high)
            if below is None:
                before = next((key for key, _ in reversed(starts[:index]) if key is not None), low)
                self._lose(number, "a branch is damaged", before, stop)
            elif self._strange(start, low, high) or self._strange(start, None, stop):
                self._lose(number, "a branch is out of order", low, high)
            else:
                yield from self._page(below, depth - 1, start, stop)

    def _places(
        self, number: int, kind: int, low: bytes | None, high: bytes | None
    ) -> list[int] | None:
        """Return where the nodes of a page lie; None for a page that cannot be believed."""
        why = self._fault(number, kind)
        if why is None:
            _, _, _, lower, _ = HEADER.unpack_from(self._data, number * PAGE)
            count = (lower - HEADER.size) // 2
            return list(struct.unpack_from(f"<{count}H", self._data, number * PAGE + HEADER.size))
        self._lose(number, why, low, high)
        return None

    def _fault(self, number: int, kind: int) -> str | None:
        if not 0 <= number < self._pages:
            return "beyond the end of the file"
        if number in self._seen:
            return "used elsewhere"
        self._seen.add(number)
        found, _, flags, lower, upper = HEADER.unpack_from(self._data, number * PAGE)
        if found != number or flags != kind:
            return f"its header says page {found}, kind {flags:#x}"
        if not HEADER.size < lower <= upper <= PAGE or lower % 2:
            return f"its free space is from {lower} to {upper}"
        return None

    def _branch_node(self, number: int, place: int) -> tuple[bytes, int] | None:
        if not HEADER.size <= place <= PAGE - NODE.size:
            return None
        at = number * PAGE + place
        low, high, top, size = NODE.unpack_from(self._data, at)
        end = at + NODE.size + size
        if end > (number + 1) * PAGE:
            return None
        return self._data[at + NODE.size : end], low | high << 16 | top << 32

    def _leaf(
        self, number: int, places: list[int], low: bytes | None, high: bytes | None
    ) -> Iterator[TreePair]:
        nodes = [self._leaf_node(number, place) for place in places]
        keys = [node[0] for node in nodes if node is not None]
        outside = sum(self._strange(key, low, high) for key in keys)
        if keys and (2 * outside > len(keys) or self._doubted(number, keys[0])):
            self._lose(number, "its keys do not belong there", low, high)
            return
        before = low
        for index, node in enumerate(nodes):
            if node is not None and node[1] is not None:
                yield node[0], node[1]
                before = node[0]
            elif node is not None:
                self.lost.append(LostRun(number, "its large value is damaged", None, None, node[0]))
            else:
                after = next((one[0] for one in nodes[index + 1 :] if one is not None), high)
                self._lose(number, "a node is damaged", before, after)

    def _leaf_node(self, number: int, place: int) -> tuple[bytes, bytes | None] | None:
        """Return key and value; None for the value, or for all, if they cannot be read."""
        if not HEADER.size <= place <= PAGE - NODE.size:
            return None
        at = number * PAGE + place
        low, high, flags, size = NODE.unpack_from(self._data, at)
        length = low | high << 16
        start = at + NODE.size + size
        end = start + (_PAGE_NUMBER.size if flags == BIG else length)
        if flags & ~BIG or not size or end > (number + 1) * PAGE:
            return None
        key = self._data[at + NODE.size : start]
        if flags != BIG:
            return key, self._data[start:end]
        (first,) = _PAGE_NUMBER.unpack_from(self._data, start)
        return key, self._overflow(first, length)

    def _overflow(self, first: int, length: int) -> bytes | None:
        count = (HEADER.size + length + PAGE - 1) // PAGE
        if not 1 < first <= self._pages - count:
            return None
        found, _, flags, low, high = HEADER.unpack_from(self._data, first * PAGE)
        if found != first or flags != OVERFLOW or low | high << 16 != count:
            return None
        start = first * PAGE + HEADER.size
        return self._data[start : start + length]

    def _strange(self, key: bytes | None, low: bytes | None, high: bytes | None) -> bool:
        """Tell whether a key lies outside of a run."""
        if key is None or not self._ordered:
            return False
        return (low is not None and key < low) or (high is not None and key >= high)

    def _lose(self, number: int, why: str, low: bytes | None, high: bytes | None) -> None:
        self.lost.append(LostRun(number, why, low, high))


def free_pages(data: bytes, tree: Tree) -> set[int]:
    """Return the pages that a file calls free, as far as its list of them can be read."""
    found: set[int] = set()
    for _, value in Remains(data, tree).pairs():
        numbers = struct.unpack(f"<{len(value) // 8}Q", value[: len(value) // 8 * 8])
        if numbers and numbers[0] < len(numbers):
            found.update(numbers[1 : 1 + numbers[0]])
    return found
