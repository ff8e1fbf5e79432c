"""Rows: which member shall hold which copy of one partition.

A row has up to seven places, counted by *replica index*: 0 is the primary, 1 and up are its
backups.  The smaller of two indexes is *hotter*, the larger is *colder*.  A place holds a member
or is empty (None).  A member is anything that can be hashed and compared, and is mostly a UUID.

Owns what makes a row a row: its length, and that no member stands in it twice.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias, TypeVar

from .errors import PlacementError

REPLICAS_MAX = 7
NO_REPLICA = -1
"""The replica index of a member that holds no copy."""

Member = TypeVar("Member", bound=Hashable)
Row: TypeAlias = Sequence[Member | None]


def padded(row: Row[Member], name: str = "the row") -> list[Member | None]:
    """Return a row with all of its seven places, the missing ones empty.

    ``PlacementError`` for more than seven places, for a member that stands twice, and for one that
    cannot be hashed; ``name`` is how its text calls the row.
    """
    if len(row) > REPLICAS_MAX:
        raise PlacementError(
            f"{name} has {len(row)} places, {REPLICAS_MAX} are allowed: {list(row)!r}",
            hint="Give one primary and at most six backups.",
        )
    full = [*row, *[None] * (REPLICAS_MAX - len(row))]
    try:
        once = len({*full}) == REPLICAS_MAX + (None in full) - full.count(None)
    except TypeError:
        raise PlacementError(f"{name} holds what is not a member: {list(row)!r}") from None
    if not once:
        raise PlacementError(
            f"{name} holds a member twice: {list(row)!r}",
            hint="Each copy of a partition belongs on a member of its own.",
        )
    return full


def padded_goal(row: Row[Member]) -> list[Member | None]:
    """Return a goal with all of its seven places; beside ``padded``, its filled ones come first.

    ``PlacementError`` also for an empty place in front of a member.
    """
    full = padded(row, "the goal")
    if None in full and any(member is not None for member in full[full.index(None) :]):
        raise PlacementError(
            f"the goal has an empty place in front of a member: {list(row)!r}",
            hint="Fill the places of a goal from replica index 0 on.",
        )
    return full
