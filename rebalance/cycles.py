"""Cycles: members of a row that a goal only puts into each other's places.

Whoever follows, from a replica index, where the goal puts the member that stands there, and comes
back, has found a cycle.  It cannot be carried out without one copy less for a while, so the members
of a cycle keep their places.  An empty place breaks it: there is room to turn.
"""

from __future__ import annotations

from ..affinity.rows import Member, Row, padded, padded_goal


def remove_cycles(current: Row[Member], target: Row[Member]) -> list[Member | None]:
    """Return the goal without its cycles: ``[A, B, C] -> [B, A, D]`` becomes ``[A, B, D]``.

    The result is as long as ``target``.  ``PlacementError``, which is a ``ValueError``, for a goal
    with an empty place in front of a member, a member that stands twice in either row, and more
    than seven places.
    """
    row, goal = padded(current, "the current row"), padded_goal(target)
    return without_cycles(row, goal)[: len(target)]


def without_cycles(row: list[Member | None], goal: list[Member | None]) -> list[Member | None]:
    """Return a goal without its cycles; both rows have all of their seven places."""
    kept = list(goal)
    for start in range(len(row)):
        for index in _cycle(start, row, goal):
            kept[index] = row[index]
    return kept


def _cycle(start: int, row: list[Member | None], goal: list[Member | None]) -> list[int]:
    """Return the replica indexes of the cycle through ``start``; none if there is no cycle.

    A member that stands where the goal wants it is a cycle of one, which changes nothing.
    """
    cycle = [start]
    while True:
        member = row[cycle[-1]]
        if member is None or member not in goal:
            return []
        index = goal.index(member)
        if index == start:
            return cycle
        cycle.append(index)
