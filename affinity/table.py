"""The partition table: a row and its version for each partition, and how a newer table is taken.

A member that is sent a whole table takes it partition by partition:

==================== ==================================
version that is sent what happens
==================== ==================================
lower                skipped: this member knows better
equal                the rows must be identical, else the tables have *diverged*
higher               the sent row takes the place of the own one
==================== ==================================

Invariants:

- a version of a partition never falls;
- a table that has diverged anywhere is not taken at all;
- rows are compared without empty places at their end.

Left out: who may change a row.  Only a decided entry does, so nothing here counts a version up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Generic

from .errors import DivergedError, PlacementError
from .rows import Member, padded
from .versions import check_version, stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow(Generic[Member]):
    """The row of one partition, by replica index, and its version.

    Empty places at the end are cut off.  ``PlacementError`` for a row that is not one, and for a
    version out of bounds.
    """

    partition: int
    version: int
    replicas: tuple[Member | None, ...]

    def __post_init__(self) -> None:
        check_version(self.version, self.partition)
        full = padded(self.replicas, f"the row of partition {self.partition}")
        while full and full[-1] is None:
            full.pop()
        object.__setattr__(self, "replicas", tuple(full))

    def __str__(self) -> str:
        names = ", ".join("-" if member is None else str(member) for member in self.replicas)
        return f"partition {self.partition} version {self.version} [{names}]"


class PartitionTable(Generic[Member]):
    """The rows of partitions 0, 1, 2, ... in order; it never changes.

    ``PlacementError`` for a row that is given for another partition.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Iterable[PartitionRow[Member]]) -> None:
        self.rows = tuple(rows)
        for partition, row in enumerate(self.rows):
            if row.partition != partition:
                raise PlacementError(
                    f"{row} was given for partition {partition}",
                    hint="Give the rows of all partitions, in order of number, from 0.",
                )

    @property
    def stamp(self) -> int:
        """The stamp of all versions: equal in tables with equal versions."""
        return stamp([row.version for row in self.rows])

    @property
    def version_sum(self) -> int:
        """The sum of all versions, by which whole tables are ordered."""
        return sum(row.version for row in self.rows)

    def taking(self, sent: PartitionTable[Member]) -> PartitionTable[Member]:
        """Return this table with what is newer in another one; rows that stay are the same objects.

        Partitions that only one of the tables has are kept, and taken.  ``DivergedError`` if a
        partition has one version with two rows.
        """
        return PartitionTable(
            _newer(own, other) for own, other in zip_longest(self.rows, sent.rows)
        )

    def __repr__(self) -> str:
        return f"<PartitionTable partitions={len(self.rows)} stamp={self.stamp}>"


def _newer(
    own: PartitionRow[Member] | None, sent: PartitionRow[Member] | None
) -> PartitionRow[Member]:
    if own is None or sent is None:
        row = own or sent
        assert row is not None
        return row
    if sent.version == own.version and sent.replicas != own.replicas:
        raise DivergedError(
            f"two tables have diverged: here is {own}, and {sent} was sent",
            partition=own.partition,
            version=own.version,
        )
    return sent if sent.version > own.version else own
