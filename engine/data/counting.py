"""How many keys a map has, without a look at most of them.

The marks of the data file tell how many pairs each partition has of each map.  What the overlay
has of a map is looked up there, each key once: a count takes as long as what is not written yet.

Left out: ranges of a map, which are counted by a scan.
"""

from __future__ import annotations

from ...checkpoints.marks import PartitionMark
from .namespaces import Namespace
from .overlay import View
from .partition_store import checked_get, mark_key
from .scan import Range, in_overlay
from .stored import VALUE, flags_of, is_tombstone
from .updates import Writes


def count_keys(view: View, namespace: Namespace, writes: Writes | None = None) -> int | None:
    """Return the number of keys of a map, under a transaction's own writes.

    None if the marks do not tell: those of a version that kept no counts, and deletes beside the
    pairs.
    """
    total, wanted = 0, Range(namespace=namespace.id)
    for partition in namespace.space.numbers:
        stored = checked_get(view.txn, mark_key(partition))
        held = 0
        if stored is not None:
            mark = PartitionMark.from_bytes(stored[VALUE])
            if mark.counts is None or mark.tombstones:
                return None
            held = mark.counts.get(namespace.id, 0)
        total += held + _since(view, partition, wanted, held)
    return total + _own(view, namespace, writes) if writes else total


def _since(view: View, partition: int, wanted: Range, held: int) -> int:
    """Return how many keys the overlay adds to the ``held`` ones of the data file."""
    keys, stored = in_overlay(view, partition, wanted)
    added = len(keys) - sum(map(flags_of, stored))
    if held and keys:
        cursor = view.txn.cursor()
        added -= sum(map(cursor.set_key, keys))
        cursor.close()
    return added


def _own(view: View, namespace: Namespace, writes: Writes) -> int:
    """Return how many keys a transaction adds."""
    added = 0
    for full_key, (partition, number, _, value) in writes.items():
        if number == namespace.id:
            stored = view.stored(partition, full_key)
            there = stored is not None and not is_tombstone(stored)
            added += (value is not None) - there
    return added
