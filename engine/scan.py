"""Ordered scans over a view: blocks from LMDB and the overlay, merged over partitions by sorting.

Each partition keeps a block of pairs in hand.  A round tops up the blocks that run low, takes
from every partition what lies up to the lowest last key of all blocks that have more behind them,
and sorts that once: a sort of presorted runs in C, instead of a heap step per pair in Python
(BENCH figures: 0.35 instead of 0.15 of LMDB's own scan).

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

from crc32c import crc32c

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
BLOCK_FIRST = 16

Pair = tuple[bytes, bytes]


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
    most = max(PAIRS_IN_HAND // max(len(sources), 1), BLOCK_MIN)
    block = min(block, most)
    live = sources
    while live:
        for source in live:
            # A block may vanish under deletes of the overlay: go on until something is in hand.
            while source.more and len(source.keys) <= block // 2:
                source.fetch(block)
        pairs = _round(live, reverse)
        live = [source for source in live if source.more or source.keys]
        block = min(block * 4, most)
        if pairs:
            yield pairs


def _round(live: list[_Source], reverse: bool) -> list[Pair]:
    """Take what is certainly next from every source, sorted."""
    ends = [source.keys[0 if reverse else -1] for source in live if source.more and source.keys]
    if len(live) == 1 or not ends:
        taken = [source.take_all() for source in live]
    elif reverse:
        bound = max(ends)
        taken = [source.take_from(bound) for source in live]
    else:
        bound = min(ends)
        taken = [source.take_to(bound) for source in live]
    if len(taken) == 1:
        return taken[0][::-1] if reverse else taken[0]
    pairs = list(chain.from_iterable(taken))
    pairs.sort(reverse=reverse)
    return pairs


class _Source:
    """One partition's part of a range: a block in hand (ascending), and cursors behind it."""

    __slots__ = ("_high", "_key_cursor", "_keys", "_low", "_overlay", "_overlay_keys", "_reverse",
                 "_values", "keys", "more", "pairs")  # fmt: skip

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
        self.keys: list[bytes] = []
        """User keys in hand; ``pairs`` are the same with their values."""
        self.pairs: list[Pair] = []
        self.more = True
        self._overlay = _overlay_part(view, partition, self._low, self._high, writes)
        self._overlay_keys = sorted(self._overlay)
        if self._low >= self._high:
            self._keys: Iterator[bytes] = iter(())
            self._values: Iterator[bytes] = iter(())
            return
        key_cursor, value_cursor = view.txn.cursor(), view.txn.cursor()
        edge, step = (self._high, "iterprev") if reverse else (self._low, "iternext")
        # What lies beyond the edge is checked too: a flipped bit may have moved it there.
        placed = value_cursor.set_range(edge)
        found = value_cursor.prev() if placed else value_cursor.last()
        if reverse:
            if placed:
                key_cursor.set_range(edge)
                check_pair(*key_cursor.item())
            placed = found and key_cursor.set_range(value_cursor.key())
        else:
            if found:
                check_before(value_cursor, edge)
            placed = placed and key_cursor.set_range(edge) and value_cursor.set_range(edge)
        if placed:
            self._keys = getattr(key_cursor, step)(keys=True, values=False)
            self._values = getattr(value_cursor, step)(keys=False, values=True)
        else:
            self._keys, self._values = iter(()), iter(())

    def fetch(self, size: int) -> None:
        """Add up to ``size`` pairs of LMDB to those in hand, and the overlay's in their range."""
        keys = list(islice(self._keys, size))
        values = list(islice(self._values, size))
        whole = len(keys) == size
        if keys and self._reverse and keys[-1] < self._low:
            count = len(keys) - bisect_left(keys[::-1], self._low)
            check_pair(keys[count], values[count])
            keys, values, whole = keys[:count], values[:count], False
        elif keys and not self._reverse and keys[-1] >= self._high:
            count = bisect_left(keys, self._high)
            check_pair(keys[count], values[count])
            keys, values, whole = keys[:count], values[:count], False
        # The CRC of a zeroed pair, empty key and empty value, is zero too.
        if not all(keys) or crc32c(b"".join(chain.from_iterable(zip(keys, values, strict=True)))):
            check_block(keys, values)
        self.more = whole
        if self._reverse:
            keys.reverse()
            values.reverse()
        if self._overlay_keys:
            keys, values = self._with_overlay(keys, values, whole)
        users = [key[PREFIX_SIZE:] for key in keys]
        pairs = list(zip(users, [value[:-TRAILER_SIZE] for value in values], strict=True))
        if self._reverse:
            self.keys = users + self.keys
            self.pairs = pairs + self.pairs
        elif self.keys:
            self.keys += users
            self.pairs += pairs
        else:
            self.keys = users
            self.pairs = pairs

    def _with_overlay(
        self, keys: list[bytes], values: list[bytes], whole: bool
    ) -> tuple[list[bytes], list[bytes]]:
        """Lay the overlay's pairs over those of LMDB, as far as the latter reach."""
        ready = self._overlay_keys
        if whole and self._reverse:
            cut = bisect_left(ready, keys[0])
            ready, self._overlay_keys = ready[cut:], ready[:cut]
        elif whole:
            cut = bisect_right(ready, keys[-1])
            ready, self._overlay_keys = ready[:cut], ready[cut:]
        else:
            self._overlay_keys = []
        if not ready:
            return keys, values
        overlay = self._overlay
        block = dict(zip(keys, values, strict=True))
        for key in ready:
            stored = overlay[key]
            if is_tombstone(stored):
                block.pop(key, None)
            else:
                block[key] = stored
        keys = sorted(block)
        return keys, [block[key] for key in keys]

    def take_all(self) -> list[Pair]:
        """Take everything in hand."""
        pairs, self.pairs, self.keys = self.pairs, [], []
        return pairs

    def take_to(self, bound: bytes) -> list[Pair]:
        """Take what is in hand up to ``bound``, that included."""
        cut = bisect_right(self.keys, bound)
        pairs = self.pairs[:cut]
        del self.pairs[:cut], self.keys[:cut]
        return pairs

    def take_from(self, bound: bytes) -> list[Pair]:
        """Take what is in hand from ``bound`` on."""
        cut = bisect_left(self.keys, bound)
        pairs = self.pairs[cut:]
        del self.pairs[cut:], self.keys[cut:]
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
