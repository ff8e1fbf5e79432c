"""Scans a partition as it is stored: full keys in order, values with their trailers, deletes too.

Example: the data file has ``a`` (number 1) and ``c`` (number 2), the overlay has ``b`` (number 3)
and a delete of ``c`` (number 4).  The scan yields ``a`` with 1, ``b`` with 3 and the tombstone of
``c`` with 4.

Invariants:

- Every pair of the data file that is yielded was checked, and so were those beside the range: a
  flipped bit in a key cannot hide a pair.  Pairs of the overlay have no check yet.
- A block has at most ``rows`` pairs, and it ends with the pair that brings it to ``most_bytes``.
- Pairs are taken a few at a time, and one at a time if they are large.

Left out: what users read (``scan``), and what the pairs mean.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter

from ..system.environment import Cursor
from .overlay import View
from .partition_store import check_before
from .stored import StoredPair, check_block

_FEW = 32
_LARGE = 32 << 10
"""Pairs taken at a time, and bytes of a value beyond which there is one."""

_KEY = itemgetter(0)


def raw_blocks(
    view: View, partition: int, low: bytes, high: bytes, *, rows: int, most_bytes: int
) -> Iterator[list[StoredPair]]:
    """Yield (full key, stored value) of a partition from ``low`` to below ``high``, in blocks.

    Raises ``CorruptDataError`` for a pair that is not as it was written.
    """
    newer = _newer(view, partition, low, high)
    names = sorted(newer)
    at = 0
    for block in _checked(view.txn.cursor(), low, high, rows, most_bytes):
        end = bisect_right(names, block[-1][0], at)
        if end == at:
            yield block
            continue
        merged = [pair for pair in block if pair[0] not in newer]
        merged += [(name, newer[name]) for name in names[at:end]]
        merged.sort(key=_KEY)
        yield from _bounded(merged, rows, most_bytes)
        at = end
    yield from _bounded(((name, newer[name]) for name in names[at:]), rows, most_bytes)


def _newer(view: View, partition: int, low: bytes, high: bytes) -> dict[bytes, bytes]:
    """Return what the layers of a view have in a range, the newest of each key."""
    newer: dict[bytes, bytes] = {}
    for layer in reversed(view.layers):
        part = layer.parts.get(partition, {})
        newer.update({key: part[key] for key in layer.keys_of(partition) if low <= key < high})
    return newer


def _checked(
    cursor: Cursor, low: bytes, high: bytes, rows: int, most_bytes: int
) -> Iterator[list[StoredPair]]:
    """Yield the pairs of the data file in a range, in blocks."""
    placed = cursor.set_range(low)
    if cursor.prev() if placed else cursor.last():
        check_before(cursor, low)
        if placed:
            cursor.next()
    elif placed:
        cursor.first()
    for block in _bounded(cursor.iternext() if placed else (), rows, most_bytes):
        check_block([key for key, _ in block], [value for _, value in block])
        if block[-1][0] < high:
            yield block
            continue
        inside = block[: bisect_left(block, high, key=_KEY)]
        if inside:
            yield inside
        return


def _bounded(pairs: Iterable[StoredPair], rows: int, most_bytes: int) -> Iterator[list[StoredPair]]:
    """Yield blocks of pairs, taken a few at a time, and one at a time if they are large."""
    waiting = iter(pairs)
    block: list[StoredPair] = []
    size, few = 0, min(rows, _FEW)
    while some := list(islice(waiting, few)):
        weight = sum([len(value) for _, value in some])
        large = weight > _LARGE * len(some) or size + weight >= most_bytes
        for piece in ([pair] for pair in some) if large else (some,):
            block += piece
            size += len(piece[0][1]) if large else weight
            if size >= most_bytes or len(block) >= rows:
                yield block
                block, size = [], 0
        few = min(rows - len(block), 1 if large else _FEW)
    if block:
        yield block
