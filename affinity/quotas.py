"""Quotas: how many copies each member shall hold, so that all hold nearly the same.

Members are numbers here, and so are zones.  If there are zones, a row has at most ``zone_limit``
copies in one of them: one if there are zones enough, else as few as there can be.

Invariants of quotas: their sum is the number of all copies; those of two members differ by at most
one, unless a zone is too small for its share (it then gets what it can hold, and the others share
the rest).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def zone_limit(zones: Sequence[int], copies: int) -> int:
    """Return how many copies of a row one zone has to hold, given the zone of each member."""
    sizes = Counter(zones).values()
    return next(
        limit for limit in range(copies + 1) if sum(min(size, limit) for size in sizes) >= copies
    )


def quotas(order: Sequence[int], zones: Sequence[int], partitions: int, copies: int) -> list[int]:
    """Return the number of copies for each member, given the zone of each.

    ``copies`` is the number of copies of each partition.  What is left over when they are shared
    out evenly goes to the first members of ``order``, which has all of them.
    """
    sizes = Counter(zones)
    limit = zone_limit(zones, copies)
    room = {zone: partitions * min(size, limit) for zone, size in sizes.items()}
    full = _full_zones(sizes, room, partitions * copies)
    quota = [0] * len(zones)
    for zone in full:
        inside = [member for member in order if zones[member] == zone]
        _share(quota, inside, room[zone], zones, room)
    free = [member for member in order if zones[member] not in full]
    left = partitions * copies - sum(room[zone] for zone in full)
    _share(quota, free, left, zones, room)
    return quota


def _full_zones(sizes: Counter[int], room: dict[int, int], copies: int) -> set[int]:
    """Return the zones that are too small for their share of the copies."""
    full: set[int] = set()
    while True:
        members = sum(size for zone, size in sizes.items() if zone not in full)
        left = copies - sum(room[zone] for zone in full)
        more = {
            zone
            for zone, size in sizes.items()
            if zone not in full and room[zone] * members < left * size
        }
        if not more:
            return full
        full |= more


def _share(
    quota: list[int],
    members: list[int],
    copies: int,
    zones: Sequence[int],
    room: dict[int, int],
) -> None:
    """Share copies out evenly among some members, within the room of each zone."""
    each, over = divmod(copies, len(members))
    left = dict(room)
    for member in members:
        quota[member] = each
        left[zones[member]] -= each
    for member in members:
        if over and left[zones[member]]:
            quota[member] += 1
            left[zones[member]] -= 1
            over -= 1
