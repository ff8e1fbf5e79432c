"""The planner: which migrations lead one row to its goal without ever having a copy too few.

It walks over the replica indexes, the hottest first, and stays at each until the goal is reached
there.  What is done at index i depends on what stands there, and on what the goal wants there:

==== ======================== ==================================== ==============================
rule the goal wants           there stands                         step
==== ======================== ==================================== ==============================
P1   what stands there        the same                             none; on to the next index
P2   nobody                   a member                             CLEAR
P3   a member without a copy  nobody                               COPY
P4   a member at a colder j   nobody                               SHIFT_UP from j
P5   a member without a copy  one whom the goal leaves out         MOVE
P6   a member without a copy  one whose own place k is empty       SHIFT_DOWN of that one to k
P7   a member without a copy  one whose own place is taken         MOVE; that one comes back later
P8   a member at a colder j   another member                       what makes j free, see below
==== ======================== ==================================== ==============================

P8 follows a chain: the member that the goal wants at c stands at x; then c becomes x.  It ends

a) if the goal wants nobody at x.  The one wanted at c goes there (SHIFT_UP), and whoever stood
   at c goes to an empty place of its own (SHIFT_UP_AND_SHIFT_DOWN) or is pushed out.  It is pushed
   out only if each prefix of the row keeps the replicas that it must have, else P9 goes first;
b) if the goal wants a member without a copy at x: MOVE it in, so that x is free;
c) back at i: a ring, made by parking (P9).  Its coldest member goes to its place, and whoever
   stood there is parked at the next empty place behind it.

P9 gains a copy first, at e, the hottest empty place that the goal fills:

- the member wanted at e holds no copy: COPY;
- it stands at a colder place: SHIFT_UP;
- it stands at a hotter place j: j becomes the hotter end of the chain that begins there.  If the
  member wanted at j has no copy, and the one that stands there is not the one wanted at e, MOVE it
  in.  Else it goes to j, and whoever stood there is parked at e (SHIFT_DOWN if it had no copy,
  SHIFT_UP_AND_SHIFT_DOWN if it had one).

What holds after each step, in this order or in that of ``prioritize``, and in every plan that
follows where a step fails:

- for each t, the places 0 to t hold at least as many replicas as in the first row or in the goal,
  whichever has fewer;
- no member stands twice, and a filled place 0 is never emptied;
- the plan ends at the goal without its cycles, after seven steps at most.

P1 to P8 are the algorithm of Hazelcast's "Avoid Data Loss on Migration" (2016), with what its last
case leaves open; on rows without holes the plan is the original's.  P9, and that a CLEAR stands in
its place of the plan, are ours: with holes the original has copies too few for a while.

Left out: rows with an empty place 0 (a takeover fills it before anything is planned), and when a
migration runs.
"""

from __future__ import annotations

from enum import Enum
from itertools import accumulate
from typing import Generic

from ..affinity.errors import PlacementError
from ..affinity.rows import NO_REPLICA, REPLICAS_MAX, Member, Row, padded, padded_goal
from .cycles import without_cycles
from .migration import Migration, apply_to


def plan_migrations(current: Row[Member], target: Row[Member]) -> list[Migration[Member]]:
    """Return the migrations, in order, that lead a row to its goal without the goal's cycles.

    Both rows are by replica index, None for an empty place, up to seven long.  At most seven
    migrations come back, none if the row is at its goal.  ``PlacementError``, which is a
    ``ValueError``, for a goal with an empty place in front of a member, a goal without anybody for
    a row that has a primary, a member that stands twice in either row, and more than seven places.
    """
    row, goal = padded(current, "the current row"), padded_goal(target)
    if row[0] is not None and goal[0] is None:
        raise PlacementError(
            f"the goal of {list(current)!r} is empty, and no plan takes the last primary away",
            hint="Name a member that shall hold the partition.",
        )
    walk = _Walk(row, without_cycles(row, goal))
    for index in range(REPLICAS_MAX):
        walk.to_the_goal_at(index)
    return walk.steps


class _Stands(Enum):
    """Who stands at a replica index, as the goal sees it."""

    NOBODY = "nobody"
    LEFT_OUT = "a member whom the goal leaves out"
    PLACE_EMPTY = "a member whose own place is empty"
    PLACE_TAKEN = "a member whose own place is taken"


class _Wanted(Enum):
    """Whom the goal wants at a replica index, as the row sees it."""

    NOBODY = "nobody"
    NEW = "a member without a copy"
    HOLDER = "a member that holds a copy at a colder index"


class _Walk(Generic[Member]):
    """A row on its way to a goal, and the steps so far."""

    __slots__ = ("_goal", "_needed", "_row", "steps")

    def __init__(self, row: list[Member | None], goal: list[Member | None]) -> None:
        self.steps: list[Migration[Member]] = []
        self._row = row
        self._goal = goal
        self._needed = [*map(min, _replicas(row), _replicas(goal))]

    def to_the_goal_at(self, index: int) -> None:
        """Add steps until a replica index is as the goal wants it, which is P1."""
        while self._row[index] != self._goal[index]:
            match self._wanted_at(index), self._standing_at(index):
                case _Wanted.NOBODY, _:  # P2
                    self._clear(index)
                case _Wanted.NEW, _Stands.NOBODY:  # P3
                    self._bring_in(index)
                case _Wanted.HOLDER, _Stands.NOBODY:  # P4
                    self._bring_in(index)
                case _Wanted.NEW, _Stands.LEFT_OUT:  # P5
                    self._bring_in(index)
                case _Wanted.NEW, _Stands.PLACE_EMPTY:  # P6
                    self._bring_in(index, park_at=self._place_of(self._row[index]))
                case _Wanted.NEW, _Stands.PLACE_TAKEN:  # P7
                    self._bring_in(index)
                case _Wanted.HOLDER, _:  # P8
                    self._follow_the_chain(index)

    # -------------------------------------------------------------- what is seen at an index

    def _wanted_at(self, index: int) -> _Wanted:
        member = self._goal[index]
        if member is None:
            return _Wanted.NOBODY
        return _Wanted.HOLDER if member in self._row else _Wanted.NEW

    def _standing_at(self, index: int) -> _Stands:
        member = self._row[index]
        if member is None:
            return _Stands.NOBODY
        if member not in self._goal:
            return _Stands.LEFT_OUT
        taken = self._row[self._place_of(member)] is not None
        return _Stands.PLACE_TAKEN if taken else _Stands.PLACE_EMPTY

    def _place_of(self, member: Member | None) -> int:
        """Where the goal wants a member."""
        return self._goal.index(member)

    def _may_lose(self, index: int) -> bool:
        """Whether each prefix of the row has replicas enough without the one at an index."""
        row = [*self._row]
        row[index] = None
        return all(map(int.__ge__, _replicas(row), self._needed))

    # -------------------------------------------------------------- P8 and P9

    def _follow_the_chain(self, start: int) -> None:
        """P8: make free, from the cold end on, the place of the member that is wanted here."""
        chain = [start]
        while True:
            index = self._row.index(self._goal[chain[-1]])
            if self._goal[index] is None:
                return self._into_the_open(chain[-1], index)
            if self._goal[index] not in self._row:
                return self._bring_in(index)  # P8b
            if index == start:
                return self._turn_the_ring(chain)
            chain.append(index)

    def _into_the_open(self, index: int, freed: int) -> None:
        """P8a: the member that is wanted here stands at an index that nobody is wanted at."""
        match self._standing_at(index):
            case _Stands.PLACE_EMPTY:
                self._bring_in(index, park_at=self._place_of(self._row[index]))
            case _ if self._may_lose(freed):
                self._bring_in(index)
            case _:
                self._gain()

    def _turn_the_ring(self, ring: list[int]) -> None:
        """P8c: everybody in the ring is wanted at the place of another one in it."""
        index = self._place_of(self._row[max(ring)])
        self._bring_in(index, park_at=self._row.index(None, index))

    def _gain(self) -> None:
        """P9: fill the hottest place that is empty and should not be."""
        empty = self._row.index(None)
        wanted = self._goal[empty]
        if wanted not in self._row[:empty]:
            return self._bring_in(empty)
        index = self._row.index(wanted)
        while self._goal[index] in self._row[:empty]:
            index = self._row.index(self._goal[index])
        if self._goal[index] not in self._row and self._row[index] != wanted:
            self._bring_in(index)
        else:
            self._bring_in(index, park_at=empty)

    # -------------------------------------------------------------- steps

    def _clear(self, index: int) -> None:
        self._step(Migration(source=self._row[index], source_current_index=index))

    def _bring_in(self, index: int, *, park_at: int = NO_REPLICA) -> None:
        """Put the member that the goal wants at an index there, from wherever it is.

        Whoever stands there is parked at an empty place, or loses its copy.
        """
        wanted, standing = self._goal[index], self._row[index]
        step = Migration(
            source=standing,
            source_current_index=NO_REPLICA if standing is None else index,
            source_new_index=park_at,
            destination=wanted,
            destination_current_index=self._row.index(wanted)
            if wanted in self._row
            else NO_REPLICA,
            destination_new_index=index,
        )
        self._step(step)

    def _step(self, step: Migration[Member]) -> None:
        self.steps.append(step)
        assert len(self.steps) <= REPLICAS_MAX, f"{self.steps} do not reach {self._goal}"
        apply_to(self._row, step)


def _replicas(row: list[Member | None]) -> list[int]:
    """The number of replicas at the places 0 to t, for each t."""
    return [*accumulate(member is not None for member in row)]
