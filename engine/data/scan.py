"""Ordered scans over a view: blocks from LMDB and the overlay, merged over partitions by sorting.

Each partition keeps a block of pairs in hand.  A round tops up the blocks that run low, takes
from every partition what lies up to the lowest last key of all blocks that have more behind them,
and sorts that once: a sort of presorted runs in C, instead of a heap step per pair in Python
(measured: 0.35 instead of 0.15 of the speed of LMDB's own scan).

Invariants:

- Pairs come in the order of the user's keys, each once, as the view has them.
- Every block from LMDB is checked by one CRC before any of it is handed out.
- Memory is bounded by ``BlockSizes.in_hand``, whatever the size of the range and of the overlay;
  where values are long by ``HEAVY_BYTES`` and one value for each partition, but for a block behind
  a value that was not.

Blocks grow from few pairs, so that a short range costs little.  How many are left of a range is
guessed from how far apart its keys were so far: what is read beyond the end of a range is wasted.

Left out: decoding, and what a transaction must remember of its reads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import NamedTuple

from crc32c import crc32c

from ..system.environment import Cursor
from .overlay import View
from .partition_store import check_before
from .stored import (
    PREFIX_SIZE,
    TRAILER_SIZE,
    USER_KEY,
    VALUE,
    StoredPair,
    check_block,
    check_pair,
    flags_of,
    is_damaged,
    is_tombstone,
    pack_prefix,
    present,
)
from .updates import Writes

BLOCK_MAX = 512
"""More new tuples than Python's collector lets pass would cost a collection in each round."""
BLOCK_FIRST = 64
BLOCK_LEAST = 8
LONG = 512
"""Bytes of a value behind which the next block is counted while it is read."""
HEAVY_BYTES = BLOCK_MAX * LONG
"""Behind so much a block that is counted ends."""
PIECES = (1, 8, 64, BLOCK_MAX)
"""How long such a block is when it is counted."""
KEY_GAUGED = PREFIX_SIZE + 32
"""As much of a key is taken for a number when the rest of a range is guessed."""

Pair = tuple[bytes, bytes]
"""Encoded key and encoded value."""

Damaged = Callable[[bytes], None]

_FIRST = itemgetter(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A range of user keys of one namespace: ``start`` included, ``stop`` not; None: no bound."""

    namespace: int
    start: bytes = b""
    stop: bytes | None = None

    def bounds(self, partition: int) -> tuple[bytes, bytes]:
        """Return the range as full keys of one partition, the lower included, the upper not."""
        prefix = pack_prefix(partition, self.namespace)
        if self.stop is None:
            return prefix + self.start, pack_prefix(partition, self.namespace + 1)
        return prefix + self.start, prefix + self.stop


class BlockSizes(NamedTuple):
    """How many pairs of a range are read at a time."""

    first: int = BLOCK_FIRST
    """At first, over all partitions: about as many as are wanted."""
    least: int = BLOCK_LEAST
    """At first, of one partition."""
    full: int = 64
    """Later on, of one partition, however many there are."""
    in_hand: int = 2048
    """Later on, over all partitions, if that is more."""


BLOCK_SIZES = BlockSizes()


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the first key behind all that begin with ``prefix``, or None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


def scan(
    view: View,
    partitions: Sequence[int],
    wanted: Range,
    *,
    reverse: bool = False,
    writes: Writes | None = None,
    blocks: BlockSizes = BLOCK_SIZES,
    damaged: Damaged | None = None,
) -> Iterator[list[Pair]]:
    """Yield blocks of (user key, value), in order; ``writes`` are a transaction's own.

    ``damaged`` is told the full keys of pairs of LMDB that do not match their checksums, which are
    left out then; without it they raise ``CorruptDataError``.
    """
    sources = [
        _Source(view, partition, wanted, reverse, writes, damaged) for partition in partitions
    ]
    count = max(len(sources), 1)
    first, least, full, in_hand = blocks
    most = min(max(in_hand // count, full), BLOCK_MAX)
    block = min(first, max(first // count, least), most)
    live = sources
    counted = True
    while live:
        for source in live:
            # A block may vanish under deletes of the overlay: go on until something is in hand.
            size = block
            while source.more and source.is_low(block // 2):
                counted = source.fetch(size, counted)
                size = min(2 * size, most)
        pairs = _round(live, reverse)
        live = [source for source in live if source.more or source.pairs]
        block = min(block * 16, most)
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
    pairs.sort(key=_FIRST, reverse=reverse)  # by keys alone: two thirds of the time of pairs
    return pairs


class _Source:
    """One partition's part of a range: a block in hand (ascending), and what is behind it."""

    __slots__ = ("_damaged", "_flagged", "_held", "_high", "_items", "_left", "_low", "_reverse",
                 "_stretches", "_whole", "heavy", "more", "pairs")  # fmt: skip

    def __init__(
        self,
        view: View,
        partition: int,
        wanted: Range,
        reverse: bool,
        writes: Writes | None,
        damaged: Damaged | None = None,
    ) -> None:
        self._damaged = damaged
        self._low, self._high = wanted.bounds(partition)
        self._reverse = reverse
        self.pairs: list[Pair] = []
        """(user key, value) in hand."""
        self.more = True
        self.heavy = False
        """Whether what was read last ended early, for its bytes."""
        self._stretches = _stretches(view, partition, self._low, self._high, writes)
        self._items: Iterator[StoredPair] = iter(())
        self._flagged = False
        """Whether values with flags have come from LMDB: then some are deletes."""
        self._whole = True
        """Whether the last block from LMDB was as long as asked for: there may be more."""
        self._left = BLOCK_MAX
        """A guess of how many pairs of LMDB are left in the range, rather more than fewer."""
        self._held: list[StoredPair] = []
        """Pairs of LMDB that were read already and lie behind those in hand."""
        if self._low < self._high:
            self._items = self._placed(view.txn.cursor())

    def _placed(self, cursor: Cursor) -> Iterator[StoredPair]:
        """Return the pairs from the edge of the range on; what lies beyond it is checked too.

        A flipped bit may have moved a record there, or sent the search elsewhere.
        """
        reverse = self._reverse
        edge = self._high if reverse else self._low
        placed = cursor.set_range(edge)
        strict = self._damaged is None
        if placed and reverse and strict:
            check_pair(*cursor.item())
        found = cursor.prev() if placed else cursor.last()
        if found and strict:
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

    def is_low(self, count: int) -> bool:
        """Tell whether so few pairs are in hand, or none if they are large."""
        return len(self.pairs) <= (0 if self.heavy else count)

    def fetch(self, size: int, counted: bool) -> bool:
        """Add about ``size`` pairs to those in hand, fewer if they are large and ``counted``.

        Return whether the next ones should be counted.
        """
        items, self._held = self._held or self._read(size, counted), []
        if items:
            counted = len(items[-1][1]) > LONG
        self.more = self._whole
        if self._stretches:
            items = self._with_overlay(items, size)
        if self._flagged:
            items = [item for item in items if not is_tombstone(item[1])]
        pairs = [(key[USER_KEY], value[VALUE]) for key, value in items]
        if not self.pairs:
            self.pairs = pairs
        elif self._reverse:
            self.pairs = pairs + self.pairs
        else:
            self.pairs += pairs
        return counted

    def _read(self, size: int, counted: bool) -> list[StoredPair]:
        """Return up to ``size`` pairs of LMDB, ascending and checked."""
        size = min(size, self._left)
        self.heavy = False
        if counted:
            items = self._read_counted(size)
        else:
            items = list(islice(self._items, size))
            self._whole = len(items) == size
        size = len(items)
        if self._damaged is not None:
            items = self._readable(items, self._damaged)
        if items:
            if self._reverse:
                items.reverse()
                if items[0][0] < self._low:
                    cut = bisect_left(items, self._low, key=_FIRST)
                    check_pair(*items[cut - 1])
                    items, self._whole = items[cut:], False
            elif items[-1][0] >= self._high:
                cut = bisect_left(items, self._high, key=_FIRST)
                check_pair(*items[cut])
                items, self._whole = items[:cut], False
            parts = list(chain.from_iterable(items))
            # Nothing in a pair is empty; the CRC of a zeroed pair would be zero like that of all.
            if not all(parts) or crc32c(b"".join(parts)):
                check_block([key for key, _ in items], [value for _, value in items])
            if any(map(flags_of, parts[1::2])):
                self._flagged = True
                present(items)  # which refuses those of a later version
            if self._whole:
                self._left = self._guess(items[0][0], items[-1][0], size)
        return items

    def _read_counted(self, size: int) -> list[StoredPair]:
        """Return up to ``size`` pairs of LMDB as they come, fewer if they are large."""
        items: list[StoredPair] = []
        for piece in PIECES:
            wanted = min(piece, size)
            items += islice(self._items, wanted - len(items))
            self._whole = len(items) == wanted
            if not self._whole or wanted == size:
                break
            self.heavy = sum(len(value) for _, value in items) > HEAVY_BYTES
            if self.heavy:
                break
        return items

    def _readable(self, items: list[StoredPair], damaged: Damaged) -> list[StoredPair]:
        """Return the pairs that are as they were written; tell the others, if of this range.

        A key that is damaged itself may say anything: it counts by where it lies.
        """
        good = [not is_damaged(key, value) for key, value in items]
        inside = [self._low <= key < self._high for key, _ in items]
        reached = max((at for at, sound in enumerate(good) if sound and inside[at]), default=-1)
        for at, (key, _) in enumerate(items):
            if not good[at] and (inside[at] or at < reached) and not self._replaced(key):
                damaged(key)
        return [item for item, sound in zip(items, good, strict=True) if sound]

    def _replaced(self, key: bytes) -> bool:
        """Tell whether a newer layer has the key."""
        return any(stretch.holds(key) for stretch in self._stretches)

    def _guess(self, first: bytes, last: bytes, count: int) -> int:
        """Return how many pairs are left if they lie as close as ``count`` of them did."""
        low, first_at, last_at, high = map(_gauge, (self._low, first, last, self._high))
        if first_at >= last_at:
            return BLOCK_MAX
        left = first_at - low if self._reverse else high - last_at
        guess = left * count // (last_at - first_at)
        return guess + guess // 8 + BLOCK_LEAST

    def _with_overlay(self, items: list[StoredPair], size: int) -> list[StoredPair]:
        """Lay the overlay's pairs over those of LMDB, up to where either has more behind."""
        reverse = self._reverse
        ends = [stretch.end(size, reverse) for stretch in self._stretches]
        bounds = [end for end in ends if end is not None]
        if items and self._whole:
            bounds.append(items[0 if reverse else -1][0])
        self.more = bool(bounds)
        bound = None
        if bounds and reverse:
            bound = max(bounds)
            cut = bisect_left(items, bound, key=_FIRST)
            self._held, items = items[:cut], items[cut:]
        elif bounds:
            bound = min(bounds)
            cut = bisect_right(items, bound, key=_FIRST)
            items, self._held = items[:cut], items[cut:]
        block: dict[bytes, bytes] = {}
        for stretch in self._stretches:
            stretch.take(bound, reverse, block)
        if not block:
            return items
        block = {**dict(items), **block}
        return sorted([item for item in block.items() if not is_tombstone(item[1])])

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


def _gauge(full_key: bytes) -> int:
    """Return a key as a number, in the order of keys."""
    return int.from_bytes(full_key[:KEY_GAUGED].ljust(KEY_GAUGED, b"\0"), "big")


class _Stretch:
    """What a layer holds of a range and has not been taken yet, by sorted keys."""

    __slots__ = ("_first", "_keys", "_last", "_pairs")

    def __init__(self, keys: list[bytes], pairs: dict[bytes, bytes], low: bytes, high: bytes):
        self._keys = keys
        self._pairs = pairs
        self._first = bisect_left(keys, low)
        self._last = bisect_left(keys, high, self._first)

    def __len__(self) -> int:
        """Return how many pairs are left."""
        return self._last - self._first

    def holds(self, key: bytes) -> bool:
        """Tell whether the layer has a key, taken already or not."""
        return key in self._pairs

    def all(self) -> tuple[list[bytes], Iterator[bytes]]:
        """Return all keys and their stored values, these in another order."""
        if len(self) == len(self._keys):
            return self._keys, iter(list(self._pairs.values()))  # half the time, as they lie there
        keys = self._keys[self._first : self._last]
        return keys, map(self._pairs.__getitem__, keys)

    def end(self, size: int, reverse: bool) -> bytes | None:
        """Return the last of the next ``size`` keys; None if there are no more than these."""
        if len(self) <= size:
            return None
        return self._keys[self._last - size if reverse else self._first + size - 1]

    def take(self, bound: bytes | None, reverse: bool, into: dict[bytes, bytes]) -> None:
        """Take the pairs up to ``bound``, that included, or all of them."""
        first, last = self._first, self._last
        if bound is None:
            self._first = last
        elif reverse:
            self._last = first = bisect_left(self._keys, bound, first, last)
        else:
            self._first = last = bisect_right(self._keys, bound, first, last)
        keys = self._keys[first:last]
        into.update(zip(keys, map(self._pairs.__getitem__, keys), strict=True))


_OWN_TRAILER = bytes(TRAILER_SIZE)
_OWN_TOMBSTONE = b"\1" + bytes(TRAILER_SIZE - 1)


def in_overlay(
    view: View, partition: int, wanted: Range
) -> tuple[Sequence[bytes], Iterable[bytes]]:
    """Return all keys that the overlay has of a range, and their values, in any order.

    Each key is there once, and deletes are among the values.
    """
    stretches = _stretches(view, partition, *wanted.bounds(partition), None)
    if len(stretches) == 1:
        return stretches[0].all()
    found: dict[bytes, bytes] = {}
    for stretch in stretches:
        stretch.take(None, False, found)
    return list(found), found.values()


def _stretches(
    view: View,
    partition: int,
    low: bytes,
    high: bytes,
    writes: Writes | None,
) -> list[_Stretch]:
    """Return what lies in a range, oldest layer first, a transaction's own writes last."""
    found = []
    for layer in reversed(view.layers):
        part = layer.parts.get(partition)
        if part:
            found.append(_Stretch(layer.keys_of(partition), part, low, high))
    if writes:
        own = {
            key: _OWN_TOMBSTONE if value is None else value + _OWN_TRAILER
            for key, (_, _, _, value) in writes.items()
            if low <= key < high
        }
        found.append(_Stretch(sorted(own), own, low, high))
    return [stretch for stretch in found if len(stretch)]
