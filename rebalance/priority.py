"""The order of a plan: migrations that add a copy go first, as far as nothing is in their way.

A COPY, and a SHIFT_UP that pushes nobody out, raise the number of copies of a hot replica index; a
MOVE does not, so it can wait.  After "Prioritization of COPY and SHIFT UP" of Hazelcast's "Avoid
Data Loss on Migration".
"""

from __future__ import annotations

from collections.abc import Sequence

from ..affinity.rows import NO_REPLICA, Member
from .migration import Migration


def prioritize(migrations: Sequence[Migration[Member]]) -> list[Migration[Member]]:
    """Return the migrations of one row in the order in which they shall run.

    In the order of the list, each that adds a copy and takes no member's place walks towards the
    front, and stops behind the first one that must run before it.  All others keep their order.
    """
    ordered: list[Migration[Member]] = []
    for migration in migrations:
        place = len(ordered)
        if adds_copy(migration):
            while place and not must_precede(ordered[place - 1], migration):
                place -= 1
        ordered.insert(place, migration)
    return ordered


def adds_copy(migration: Migration[Member]) -> bool:
    """Whether a migration fills an empty place and takes none from a member: COPY or SHIFT_UP."""
    return migration.source is None


def must_precede(earlier: Migration[Member], later: Migration[Member]) -> bool:
    """Whether a migration that adds a copy has to stay behind another one.

    It has to if the other one a) adds a copy, too, b) has its member as source or destination, or
    c) moves a source down to a hotter place than the one that is filled.
    """
    return (
        adds_copy(earlier)
        or later.destination in (earlier.source, earlier.destination)
        or NO_REPLICA < earlier.source_new_index < later.destination_new_index
    )
