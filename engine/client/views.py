"""A cluster as one of its members shows it: who is there, who serves what, which maps there are.

Invariants:

- A view that was made of what arrived is whole: every partition has its member and its epoch.
- A view never changes; a newer one takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...affinity.partitions import Space, check_spaces
from ...wal.records import NamespaceRecord
from ..net.frames import FrameError


class MemberView(NamedTuple):
    """A member as a view shows it."""

    id: bytes
    boot: int
    present: bool
    address: str


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What one decision after another has made of a cluster."""

    decided: int
    """How many decisions it rests on."""
    members: tuple[MemberView, ...]
    spaces: tuple[Space, ...]
    namespaces: Mapping[int, NamespaceRecord]
    """By id."""
    names: Mapping[str, NamespaceRecord]
    primaries: Sequence[int]
    """For each partition the place in ``members`` of who serves it."""
    epochs: Sequence[int]
    coming: frozenset[int]
    """Partitions whose primary is away, and that another copy is about to take over."""
    copies: Sequence[Sequence[int]]
    """For each partition the places in ``members`` of those in its in-sync set."""
    lost: frozenset[int]
    """Partitions of which every copy that counts is on a disk that is gone."""

    def serving(self, partition: int) -> MemberView:
        """Return the member that serves a partition."""
        return self.members[self.primaries[partition]]


def view_of(fields: Sequence[Any]) -> ClusterView:
    """Return the view that arrived; ``FrameError`` if it cannot be one.

    A later version may have appended to it, to its members and to its namespaces.
    """
    try:
        decided, members, spaces, namespaces, primaries, epochs, coming, copies = fields[:8]
        lost = fields[8] if len(fields) > 8 else ()
        told = tuple(MemberView(*row[:4]) for row in members)
        records = [
            NamespaceRecord(
                id=row[0],
                name=row[1],
                key_codec=row[2],
                key_version=row[3],
                value_codec=row[4],
                value_version=row[5],
                space=row[6],
            )
            for row in namespaces
        ]
        divided = tuple(Space(*row[:3]) for row in spaces)
        check_spaces(divided, len(primaries))
        known = frozenset(range(len(told)))
        wrong = [
            *(f"member {member!r}" for member in told if not _is_member(member)),
            *(f"partition of {place!r}" for place in primaries if place not in range(len(told))),
            *(f"copies at {places!r}" for places in copies if not known.issuperset(places)),
            *(f"map {record!r}" for record in records if record.space not in range(len(divided))),
        ]
        lengths = {len(primaries), len(epochs), len(copies)}
        if wrong or len(lengths) > 1 or type(decided) is not int:
            raise ValueError(wrong[0] if wrong else "columns of different lengths")
    except (ValueError, TypeError, IndexError) as error:
        raise FrameError(f"a view that cannot be right: {error}") from None
    by_id = {record.id: record for record in records}
    by_name = {record.name: record for record in records if not record.hidden}
    return ClusterView(
        decided, told, divided, by_id, by_name, primaries, epochs, frozenset(coming), copies,
        frozenset(lost),
    )  # fmt: skip


def _is_member(member: MemberView) -> bool:
    return tuple(map(type, member)) == (bytes, int, bool, str)
