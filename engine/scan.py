"""Ordered scans over a view: blocks from LMDB and the overlay, merged over partitions by sorting.

Each partition keeps a block of pairs in hand.  A round tops up the blocks that run low, takes
from every partition what lies up to the lowest last key of all blocks that have more behind them,
and sorts that once: a sort of presorted runs in C, instead of a heap step per pair in Python
(measured: 0.35 instead of 0.15 of the speed of LMDB's own scan).

Invariants:

- Pairs come in the order of the user's keys, each once, as the view has them.
- Every block from LMDB is checked by one CRC before any of it is handed out.
- Memory is bounded by ``PAIRS_IN_HAND``, whatever the size of the range.

Left out: decoding, and what a transaction must remember of its reads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter

from crc32c import crc32c

from .environment import Cursor
from .overlay import View
from .partition_store import check_before
from .stored import (
    PREFIX_SIZE,
    TRAILER_SIZE,
    check_block,
    check_pair,
    is_tombstone,
    pack_prefix,
)
from .updates import Writes

PAIRS_IN_HAND = 2048
BLOCK_MIN = 64
BLOCK_MAX = 512
"""More new tuples than Python's collector lets pass would cost a collection in each round."""
BLOCK_FIRST = 64

Pair = tuple[bytes, bytes]

_FIRST = itemgetter(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A range of user keys of one namespace: ``start`` included, ``stop`` not; None is no bound."""

    namespace: int
    start: bytes = b""
    stop: bytes | None = None

    def bounds(self, partition: int) -> tuple[bytes, bytes]:
        """Return the range as full keys of one partition, the lower included, the upper not."""
        prefix = pack_prefix(partition, self.namespace)
        if self.stop is None:
            return prefix + self.start, pack_prefix(partition, self.namespace + 1)
        return prefix + self.start, prefix + self.stop


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the first key behind all that begin with ``prefix``, or None where there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


def scan(
    view: View,
    partitions: range,
    wanted: Range,
    *,
    reverse: bool = False,
    writes: Writes | None = None,
    block: int = BLOCK_FIRST,
) -> Iterator[list[Pair]]:
    """Yield blocks of (user key, value), in order; ``writes`` are a transaction's own."""
    sources = [_Source(view, partition, wanted, reverse, writes) for partition in partitions]
    most = min(max(PAIRS_IN_HAND // max(len(sources), 1), BLOCK_MIN), BLOCK_MAX)
    block = min(block, most)
    live = sources
    while live:
        for source in live:
            # A block may vanish under deletes of the overlay: go on until something is in hand.
            while source.more and len(source.pairs) <= block // 2:
                source.fetch(block)
        pairs = _round(live, reverse)
        live = [source for source in live if source.more or source.pairs]
        block = min(block * 4, most)
        if pairs:
            yield pairs


def _round(live: list[_Source], reverse: bool) -> list[Pair]:
    """Take what is certainly next from every source, sorted."""
    if len(live) == 1:
        pairs = live[0].take_all()
        return pairs[::-1] if reverse else pairs
    edge = 0 if reverse else -1
    ends = [source.pairs[edge][0] for source in live if source.more and source.pairs]
    pairs = []
    if not ends:
        for source in live:
            pairs += source.take_all()
    elif reverse:
        bound = max(ends)
        for source in live:
            pairs += source.take_from(bound)
    else:
        bound = min(ends)
        for source in live:
            pairs += source.take_to(bound)
    pairs.sort(reverse=reverse)
    return pairs


class _Source:
    """One partition's part of a range: a block in hand (ascending), and a cursor behind it."""

    __slots__ = (
        "_high",
        "_items",
        "_low",
        "_overlay",
        "_overlay_keys",
        "_reverse",
        "more",
        "pairs",
    )

    def __init__(
        self,
        view: View,
        partition: int,
        wanted: Range,
        reverse: bool,
        writes: Writes | None,
    ) -> None:
        self._low, self._high = wanted.bounds(partition)
        self._reverse = reverse
        self.pairs: list[Pair] = []
        """(user key, value) in hand."""
        self.more = True
        self._overlay = _overlay_part(view, partition, self._low, self._high, writes)
        self._overlay_keys = sorted(self._overlay)
        self._items: Iterator[Pair] = iter(())
        if self._low < self._high:
            self._items = self._placed(view.txn.cursor())

    def _placed(self, cursor: Cursor) -> Iterator[Pair]:
        """Return the pairs from the edge of the range on; what lies beyond it is checked too.

        A flipped bit may have moved a record there, or sent the search elsewhere.
        """
        reverse = self._reverse
        edge = self._high if reverse else self._low
        placed = cursor.set_range(edge)
        if placed and reverse:
            check_pair(*cursor.item())
        found = cursor.prev() if placed else cursor.last()
        if found:
            check_before(cursor, edge)
        if reverse:
            return cursor.iterprev() if found else iter(())
        if not placed:
            return iter(())
        if found:
            cursor.next()
        else:
            cursor.first()
        return cursor.iternext()

    def fetch(self, size: int) -> None:
        """Add up to ``size`` pairs of LMDB to those in hand, and the overlay's in their range."""
        items = list(islice(self._items, size))
        whole = len(items) == size
        if items:
            if self._reverse:
                items.reverse()
                if items[0][0] < self._low:
                    cut = bisect_left(items, self._low, key=_FIRST)
                    check_pair(*items[cut - 1])
                    items, whole = items[cut:], False
            elif items[-1][0] >= self._high:
                cut = bisect_left(items, self._high, key=_FIRST)
                check_pair(*items[cut])
                items, whole = items[:cut], False
            parts = list(chain.from_iterable(items))
            # Nothing in a pair is empty; the CRC of a zeroed pair would be zero like that of all.
            if not all(parts) or crc32c(b"".join(parts)):
                check_block([key for key, _ in items], [value for _, value in items])
        self.more = whole
        if self._overlay_keys:
            items = self._with_overlay(items, whole)
        pairs = [(key[PREFIX_SIZE:], value[:-TRAILER_SIZE]) for key, value in items]
        if not self.pairs:
            self.pairs = pairs
        elif self._reverse:
            self.pairs = pairs + self.pairs
        else:
            self.pairs += pairs

    def _with_overlay(self, items: list[Pair], whole: bool) -> list[Pair]:
        """Lay the overlay's pairs over those of LMDB, as far as the latter reach."""
        ready = self._overlay_keys
        if whole and self._reverse:
            cut = bisect_left(ready, items[0][0])
            ready, self._overlay_keys = ready[cut:], ready[:cut]
        elif whole:
            cut = bisect_right(ready, items[-1][0])
            ready, self._overlay_keys = ready[:cut], ready[cut:]
        else:
            self._overlay_keys = []
        if not ready:
            return items
        overlay = self._overlay
        block = dict(items)
        for key in ready:
            stored = overlay[key]
            if is_tombstone(stored):
                block.pop(key, None)
            else:
                block[key] = stored
        return sorted(block.items())

    def take_all(self) -> list[Pair]:
        """Take everything in hand."""
        pairs, self.pairs = self.pairs, []
        return pairs

    def take_to(self, bound: bytes) -> list[Pair]:
        """Take what is in hand up to ``bound``, that included."""
        cut = bisect_right(self.pairs, bound, key=_FIRST)
        pairs = self.pairs[:cut]
        del self.pairs[:cut]
        return pairs

    def take_from(self, bound: bytes) -> list[Pair]:
        """Take what is in hand from ``bound`` on."""
        cut = bisect_left(self.pairs, bound, key=_FIRST)
        pairs = self.pairs[cut:]
        del self.pairs[cut:]
        return pairs


_OWN_TRAILER = bytes(TRAILER_SIZE)
_OWN_TOMBSTONE = b"\1" + bytes(TRAILER_SIZE - 1)


def _overlay_part(
    view: View,
    partition: int,
    low: bytes,
    high: bytes,
    writes: Writes | None,
) -> dict[bytes, bytes]:
    """Return the pairs of all layers, and a transaction's own, that lie in a range."""
    found: dict[bytes, bytes] = {}
    for layer in reversed(view.layers):
        part = layer.parts.get(partition)
        if part:
            keys = layer.keys_of(partition)
            inside = keys[bisect_left(keys, low) : bisect_left(keys, high)]
            found.update(zip(inside, map(part.__getitem__, inside), strict=True))
    if writes:
        for key, (_, _, _, value) in writes.items():
            if low <= key < high:
                found[key] = _OWN_TOMBSTONE if value is None else value + _OWN_TRAILER
    return found
