"""What members read for clients: columns of values with their versions, from one view.

Left out: which partitions may be read (``partitions``), checks of commits (``commits``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...checkpoints.replay import State
from ..data.overlay import View
from ..data.point_reads import read_stored
from ..data.scan import BlockSizes, Range, scan
from ..data.stored import VALUE, pack_prefix, version_of
from .commits import ABSENT, places_of, version_at

PAGE_BYTES = 1 << 20
PAGE_PAIRS_MAX = 8192
PASSED_BYTES_MAX = 32 << 20
"""So much is gone over for a page that shows keys only: the member does nothing else meanwhile."""


def get(
    view: View, number: int, keys: Sequence[bytes], places: Sequence[int]
) -> tuple[list[bytes | None], list[int], list[int]]:
    """Return values, epochs and counters of keys that lie in these partitions."""
    values: list[bytes | None] = []
    epochs: list[int] = []
    counters: list[int] = []
    for key, place in zip(keys, places, strict=True):
        stored = read_stored(view, place, pack_prefix(place, number) + key)
        if stored is None:
            values.append(None)
            epoch, counter = ABSENT
        else:
            values.append(stored[VALUE])
            epoch, counter, _ = version_of(stored)
        epochs.append(epoch)
        counters.append(counter)
    return values, epochs, counters


def page(
    view: View,
    state: State,
    wanted: Range,
    partitions: Sequence[int],
    *,
    reverse: bool,
    limit: int,
    versions: bool,
    with_values: bool = True,
) -> tuple[list[bytes], list[bytes], list[int], list[int], bool]:
    """Return keys, values, epochs and counters in order, and whether there may be more.

    A page has at most ``limit`` pairs, and about a mebibyte.  Values are left out if they are not
    wanted; so are versions.
    """
    limit = min(limit, PAGE_PAIRS_MAX)
    keys: list[bytes] = []
    values: list[bytes] = []
    size, passed, more = 0, 0, False
    blocks = BlockSizes(first=max(min(limit, 512), 1))
    for block in scan(view, partitions, wanted, reverse=reverse, blocks=blocks):
        for key, value in block:
            if len(keys) == limit or size >= PAGE_BYTES or passed >= PASSED_BYTES_MAX:
                more = True
                break
            keys.append(key)
            passed += len(value)
            size += len(key)
            if with_values:
                values.append(value)
                size += len(value)
        if more:
            break
    if not versions:
        return keys, values, [], [], more
    found = [
        version_at(view, place, pack_prefix(place, wanted.namespace) + key)
        for key, place in zip(keys, places_of(state, wanted.namespace, keys), strict=True)
    ]
    return keys, values, [epoch for epoch, _ in found], [counter for _, counter in found], more
