"""Scans a partition as it is stored: full keys in order, values with their trailers, deletes too.

Example: the data file has ``a`` (number 1) and ``c`` (number 2), the overlay has ``b`` (number 3)
and a delete of ``c`` (number 4).  The scan yields ``a`` with 1, ``b`` with 3 and the tombstone of
``c`` with 4.

Invariants:

- Every pair of the data file that is yielded was checked, and so were those beside the range: a
  flipped bit in a key cannot hide a pair.  Pairs of the overlay have no check yet.
- A block has at most ``rows`` pairs, and it ends where it has ``most_bytes``: one pair may be more.

Left out: what users read (``scan``), and what the pairs mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from ..system.environment import Cursor
from .overlay import View
from .partition_store import check_before
from .stored import StoredPair, check_block

_FEW = 64
"""Pairs of the data file that are taken at once."""


def raw_blocks(
    view: View, partition: int, low: bytes, high: bytes, *, rows: int, most_bytes: int
) -> Iterator[list[StoredPair]]:
    """Yield (full key, stored value) of a partition from ``low`` to below ``high``, in blocks.

    Raises ``CorruptDataError`` for a pair that is not as it was written.
    """
    newer = _newer(view, partition, low, high)
    block: list[StoredPair] = []
    size = 0
    for pair in _merged(_checked(view.txn.cursor(), low, high), newer):
        block.append(pair)
        size += len(pair[1])
        if len(block) >= rows or size >= most_bytes:
            yield block
            block, size = [], 0
    if block:
        yield block


def _merged(older: Iterator[StoredPair], newer: dict[bytes, bytes]) -> Iterator[StoredPair]:
    """Yield pairs in the order of their keys; of a key that both have, the newer one."""
    names = sorted(newer)
    at = 0
    for pair in older:
        key = pair[0]
        while at < len(names) and names[at] < key:
            yield names[at], newer[names[at]]
            at += 1
        if at == len(names) or names[at] != key:
            yield pair
    for name in names[at:]:
        yield name, newer[name]


def _newer(view: View, partition: int, low: bytes, high: bytes) -> dict[bytes, bytes]:
    """Return what the layers of a view have in a range, the newest of each key."""
    newer: dict[bytes, bytes] = {}
    for layer in reversed(view.layers):
        part = layer.parts.get(partition, {})
        newer.update({key: part[key] for key in layer.keys_of(partition) if low <= key < high})
    return newer


def _checked(cursor: Cursor, low: bytes, high: bytes) -> Iterator[StoredPair]:
    """Yield the pairs of the data file in a range."""
    placed = cursor.set_range(low)
    if cursor.prev() if placed else cursor.last():
        check_before(cursor, low)
        if placed:
            cursor.next()
    elif placed:
        cursor.first()
    pairs = cursor.iternext() if placed else iter(())
    while block := list(islice(pairs, _FEW)):
        check_block([key for key, _ in block], [value for _, value in block])
        if block[-1][0] >= high:
            yield from block[: bisect_left(block, high, key=lambda pair: pair[0])]
            return
        yield from block
