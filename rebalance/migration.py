"""One migration: the smallest change of a row that is made as a whole or not at all.

A migration is told by six fields.  The *source* is the member that holds the replica index which
the migration fills or empties, the *destination* is the member that gets it.  Each has the replica
index before and after, -1 if it holds no copy.  Which of them there are, and which hold a copy
before and after, decides the type:

======================= =========== ========== ================= =======================
type                    source      source new destination       destination current
======================= =========== ========== ================= =======================
COPY                    none                   d, into an empty  -1
                                               place
MOVE                    s           -1         d                 -1
SHIFT_UP                none, or s  -1         d                 colder, empty afterwards
SHIFT_DOWN              s           colder     d                 -1
SHIFT_UP_AND_SHIFT_DOWN s           colder     d                 colder, empty afterwards
CLEAR                   s           -1         none
======================= =========== ========== ================= =======================

Invariants:

- if both are there, the destination takes the place of the source;
- a destination that holds a copy goes to a hotter replica index, a source that stays to a colder
  one, and never to the one that the destination has left.

The types are those of Hazelcast's "Avoid Data Loss on Migration" (2016); there a CLEAR is a change
of the table that no migration stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic

from ..affinity.errors import PlacementError
from ..affinity.rows import NO_REPLICA, REPLICAS_MAX, Member


class MigrationType(Enum):
    """What a migration does to a row."""

    MOVE = "move"
    COPY = "copy"
    SHIFT_UP = "shift up"
    SHIFT_DOWN = "shift down"
    SHIFT_UP_AND_SHIFT_DOWN = "shift up and shift down"
    CLEAR = "clear"


# Whether there is a source, it keeps a copy, there is a destination, it had a copy -> type.
_TYPES: dict[tuple[bool, bool, bool, bool], MigrationType] = {
    (False, False, True, False): MigrationType.COPY,
    (True, False, True, False): MigrationType.MOVE,
    (False, False, True, True): MigrationType.SHIFT_UP,
    (True, False, True, True): MigrationType.SHIFT_UP,
    (True, True, True, False): MigrationType.SHIFT_DOWN,
    (True, True, True, True): MigrationType.SHIFT_UP_AND_SHIFT_DOWN,
    (True, False, False, False): MigrationType.CLEAR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration(Generic[Member]):
    """One step of a plan; replica indexes are 0 to 6, and -1 if a member holds no copy.

    ``PlacementError``, which is a ``ValueError``, for fields that fit none of the types.
    """

    source: Member | None = None
    source_current_index: int = NO_REPLICA
    source_new_index: int = NO_REPLICA
    destination: Member | None = None
    destination_current_index: int = NO_REPLICA
    destination_new_index: int = NO_REPLICA

    def __post_init__(self) -> None:
        if not self._is_possible():
            raise PlacementError(
                f"these fields do not make a migration: {self._fields()}",
                hint="The table in the docstring of the module says which fields go together.",
            )

    @property
    def type(self) -> MigrationType:
        """The type that follows from the fields."""
        return _TYPES[
            self.source is not None,
            self.source_new_index != NO_REPLICA,
            self.destination is not None,
            self.destination_current_index != NO_REPLICA,
        ]

    def version_increment(self, success: bool) -> int:
        """Return by how much the version of the row grows with the end of this migration.

        After a success that is the number of replica indexes that change.  A failure counts one
        more: a success that somebody saw, and that was not decided, never has the higher version.
        """
        kept = self.source_new_index != NO_REPLICA
        held = self.destination_current_index != NO_REPLICA
        return 1 + kept + held + (not success)

    def _is_possible(self) -> bool:
        source, source_now, source_new = (
            self.source, self.source_current_index, self.source_new_index
        )  # fmt: skip
        destination, now, new = (
            self.destination, self.destination_current_index, self.destination_new_index
        )  # fmt: skip
        if source is None:
            rests = source_now == source_new == NO_REPLICA and destination is not None
        else:
            rests = 0 <= source_now < REPLICAS_MAX and source != destination
            rests = rests and _goes_colder(source_now, source_new)
        if destination is None:
            return rests and now == new == source_new == NO_REPLICA
        return (
            rests
            and 0 <= new < REPLICAS_MAX
            and (source is None or source_now == new)
            and _goes_colder(new, now)
            and (now != source_new or now == NO_REPLICA)
        )

    def _fields(self) -> str:
        return (
            f"source {self.source!r} from {self.source_current_index} to {self.source_new_index}, "
            f"destination {self.destination!r} from {self.destination_current_index} "
            f"to {self.destination_new_index}"
        )

    def __repr__(self) -> str:
        changes = [
            f"{member} {_shown(now)}->{_shown(new)}"
            for member, now, new in (
                (self.destination, self.destination_current_index, self.destination_new_index),
                (self.source, self.source_current_index, self.source_new_index),
            )
            if member is not None
        ]
        return f"<Migration {self.type.value}: {', '.join(changes)}>"


def _goes_colder(index: int, other: int) -> bool:
    """Whether another replica index is colder, or none."""
    return other == NO_REPLICA or index < other < REPLICAS_MAX


def _shown(index: int) -> str:
    return "-" if index == NO_REPLICA else str(index)


def apply_to(row: list[Member | None], migration: Migration[Member]) -> None:
    """Change a row of seven places as a successful migration does."""
    for index in (migration.source_current_index, migration.destination_current_index):
        if index != NO_REPLICA:
            row[index] = None
    if migration.source_new_index != NO_REPLICA:
        row[migration.source_new_index] = migration.source
    if migration.destination_new_index != NO_REPLICA:
        row[migration.destination_new_index] = migration.destination
