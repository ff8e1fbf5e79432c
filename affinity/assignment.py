"""Assignment: which members shall hold each partition, so that all hold the same, and few move.

What holds of the rows that ``assign`` returns:

- each has min(backups + 1, members, 7) members, and no hole;
- two members differ by at most one in the copies they hold, and in the partitions whose primary
  they are; with zones of unlike sizes, a zone that is too small for its share holds what it can;
- a row has no two members of one zone if there are zones enough, else as few as there can be;
- no rows that are as even have fewer copies on members that did not hold them before; zones may
  cost some more;
- a member that stays keeps its replica index, unless its row gets another primary;
- the same arguments give the same rows, whatever the order of the members, in every process.

Members are ordered, and told apart, by their text: ``str(member)``.  A partition prefers members by
rendezvous hashing (Thaler and Ravishankar, 1998) with 32-bit murmur3, the partition as the seed.

The steps: ``quotas`` says how many copies each member gets, ``placing`` which, ``roles`` at which
replica index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, pairwise, repeat

import mmh3

from .errors import PlacementError
from .placing import Placing
from .quotas import quotas, zone_limit
from .roles import Places, Roles
from .rows import REPLICAS_MAX, Member, Row, padded


def assign(
    members: Iterable[Member],
    partitions: int,
    backups: int,
    previous: Sequence[Row[Member]] | None = None,
    zones: Mapping[Member, Hashable] | None = None,
) -> list[list[Member]]:
    """Return a row for each partition from 0 on: its members by replica index, without a hole.

    ``previous`` are the rows so far, one for each partition; who stands there and is not one of the
    ``members`` has left.  ``zones`` names the zone of each member: a rack, a building.
    ``PlacementError``, which is a ``ValueError``, for no members, members with the same text, a
    member without a zone, fewer than one partition, fewer than no backups, a number of previous
    rows other than that of partitions, and a previous row that is not one.
    """
    _check_count("partitions", partitions, 1)
    _check_count("backups", backups, 0)
    known = _in_order(members)
    copies = min(backups + 1, len(known), REPLICAS_MAX)
    zone = _zones(known, zones)
    limit = zone_limit(zone, copies)
    before = _before(known, partitions, previous)
    held = [[member for member in places if member is not None] for places in before]
    kept = [_kept(row, zone, limit)[:copies] for row in held]
    quota = quotas(_by_copies(kept, held, len(known)), zone, partitions, copies)
    placing = Placing(held, kept, quota, zone, copies=copies, limit=limit)
    texts = [str(member).encode() for member in known]
    placing.complete(
        lambda partition: [*map(mmh3.hash, texts, repeat(partition), repeat(False))],
        lambda member: [*map(mmh3.hash, repeat(texts[member]), range(partitions), repeat(False))],
    )
    roles = Roles(before, placing.rows, len(known))
    roles.balance()
    return [[known[member] for member in row] for row in roles.laid_out()]


def _check_count(name: str, count: int, least: int) -> None:
    if type(count) is not int or count < least:
        raise PlacementError(f"{name} must be a whole number of at least {least}, not {count!r}")


def _in_order(members: Iterable[Member]) -> list[Member]:
    """Return the members in the order of their text."""
    known = sorted(members, key=str)
    if not known:
        raise PlacementError("there are no members that could hold a partition")
    for member, following in pairwise(known):
        if str(member) == str(following):
            raise PlacementError(
                f"two members have the same text: {member!r} and {following!r}",
                hint="Give each member once; `str(member)` tells members apart.",
            )
    try:
        fit_rows = len({*known, None}) == len(known) + 1
    except TypeError:
        fit_rows = False
    if not fit_rows:
        raise PlacementError(
            f"the members cannot stand in rows: {known!r}",
            hint="Give members that can be hashed, of which no two are equal, and not None.",
        )
    return known


def _zones(known: Sequence[Member], zones: Mapping[Member, Hashable] | None) -> list[int]:
    """Return the number of each member's zone; without zones all are in one."""
    if zones is None:
        return [0] * len(known)
    numbers: dict[Hashable, int] = {}
    for member in known:
        if member not in zones:
            raise PlacementError(f"member {member!r} has no zone", hint="Name one in `zones`.")
        numbers.setdefault(zones[member], len(numbers))
    return [numbers[zones[member]] for member in known]


def _before(
    known: Sequence[Member], partitions: int, previous: Sequence[Row[Member]] | None
) -> list[Places]:
    """Return the previous rows with the members that are still there."""
    if previous is None:
        return [[None]] * partitions
    if len(previous) != partitions:
        raise PlacementError(
            f"there are {len(previous)} previous rows of {partitions} partitions",
            hint="Give one row for each partition, an empty one if it had none.",
        )
    numbers: dict[Member | None, int | None] = {
        member: number for number, member in enumerate(known)
    }
    return [
        [*map(numbers.get, padded(row, f"the previous row of partition {partition}"))]
        for partition, row in enumerate(previous)
    ]


def _kept(row: Iterable[int], zone: Sequence[int], limit: int) -> list[int]:
    """Return the members that may stay in a row: the hottest of each zone."""
    kept: list[int] = []
    for member in row:
        if [zone[other] for other in kept].count(zone[member]) < limit:
            kept.append(member)
    return kept


def _by_copies(kept: list[list[int]], held: list[list[int]], members: int) -> list[int]:
    """Return all members, first those that keep the most copies, then those that had the most."""
    keeps, had = (Counter(chain.from_iterable(rows)) for rows in (kept, held))
    return sorted(range(members), key=lambda member: (-keeps[member], -had[member]))
