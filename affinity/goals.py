"""Rows follow the baseline: which rows have to come, once others are to hold data.

    members enter or leave -> goals -> who is new is admitted, and added -> the first of the goal
    serves -> the goal is the row -> who stands in no row is dropped

Each step is a decision of its own kind, and rests on what is decided alone: whoever leads next goes
on where the last one was.

    row [A, B, C], D enters, goal [D, B, C]: D is admitted, added to the set {A, B, C, D}, serves,
    then the row is [D, B, C], and A, whom nobody needs any more, is dropped.

Left out: how a copy catches up, and how a primary lets go (``engine.node``).
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from .assignment import assign
from .changes import CopiesRemoved, GoalsReached, GoalsSet, TopologyChange
from .topology import Incarnation, Topology


def goals_due(topology: Topology) -> GoalsSet | None:
    """Return how partitions are to be divided, if not as they are, or are about to be."""
    if topology.holding == topology.placed or not topology.holding:
        return None
    return GoalsSet(members=topology.holding, goals=tuple(_goals(topology)))


def _goals(topology: Topology) -> Iterator[tuple[int, tuple[UUID, ...]]]:
    """Yield the partitions that are to have other rows than these, or than those to come."""
    for space in topology.spaces:
        wanted = [topology.partitions[partition].wanted for partition in space.numbers]
        rows = assign(topology.holding, space.partitions, space.backups, wanted)
        for partition, before, row in zip(space.numbers, wanted, rows, strict=True):
            if before != tuple(row):
                yield partition, tuple(row)


def rows_due(topology: Topology) -> list[TopologyChange]:
    """Return which goals are rows by now, and who has to leave which sets for good."""
    found: list[TopologyChange] = []
    if topology.reached:
        found.append(GoalsReached(partitions=topology.reached))
    leaving: dict[Incarnation, list[int]] = {}
    for partition in topology.overfull:
        copies = topology.partitions[partition]
        row = [one for one in copies.in_sync if copies.may_hold(one.member)]
        if not topology.present.issuperset(row):
            continue  # others may be all that is left of it
        for copy in topology.partitions[partition].leavers:
            if copy in topology.present:  # who has gone is removed for that
                leaving.setdefault(copy, []).append(partition)
    found += [
        CopiesRemoved(copy=copy, partitions=tuple(partitions))
        for copy, partitions in sorted(leaving.items())
    ]
    return found
