"""Bugs that are planted into the planner by replacing one function, and the hunt for them.

Each one is a mistake that somebody could make, or that the algorithm had where it comes from.
``hunt`` walks over all rows of five places until a promise is broken; ``cases`` is how many pairs
that may take: half as many again as when it was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tidelog.affinity.errors import PlacementError
from tidelog.rebalance import cycles, migration, planner, priority
from tidelog.rebalance.migration import Migration, MigrationType

from .plans import BrokenPromise, Figures, check, pairs


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A bug: ``owner.attribute`` is replaced; it shows as one of ``names`` within ``cases``."""

    name: str
    owner: object
    attribute: str
    replacement: Callable[..., Any]
    names: frozenset[str]
    cases: int


def hunt(bug: Planted) -> tuple[str, int]:
    """Plant a bug and look at rows; return the broken promise and the number of pairs."""
    figures = Figures()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bug.owner, bug.attribute, bug.replacement)
        try:
            for row, goal in pairs(5):
                check(row, goal, figures, failing=False)
        except BrokenPromise as found:
            return found.name, figures.pairs
        except PlacementError:
            return "impossible", figures.pairs
    raise AssertionError(f"{bug.name} was not caught in {figures.pairs} pairs")


# ------------------------------------------------------------------ bugs

Walk = planner._Walk


def _never_too_few(self: Walk[str], index: int) -> bool:
    return True


def _gains_at_the_cold_end(self: Walk[str]) -> None:
    wanted = zip(self._row, self._goal, strict=True)
    empty = [place for place, (member, goal) in enumerate(wanted) if member is None and goal]
    self._bring_in(max(empty))


def _gains_without_parking(self: Walk[str]) -> None:
    empty = self._row.index(None)
    wanted = self._goal[empty]
    self._bring_in(self._row.index(wanted) if wanted in self._row[:empty] else empty)


def _gains_at_the_first_link(self: Walk[str]) -> None:
    empty = self._row.index(None)
    wanted = self._goal[empty]
    if wanted not in self._row[:empty]:
        return self._bring_in(empty)
    return self._bring_in(self._row.index(wanted), park_at=empty)


def _parks_where_somebody_stands(self: Walk[str], index: int) -> planner._Stands:
    member = self._row[index]
    if member is None:
        return planner._Stands.NOBODY
    return planner._Stands.PLACE_EMPTY if member in self._goal else planner._Stands.LEFT_OUT


def _turns_from_the_hot_end(self: Walk[str], ring: list[int]) -> None:
    index = self._place_of(self._row[min(ring)])
    self._bring_in(index, park_at=self._row.index(None, index))


_plan = planner.plan_migrations


def _clears_first(current: Any, target: Any) -> list[Migration[str]]:
    steps: list[Migration[str]] = _plan(current, target)
    return sorted(steps, key=lambda step: step.type is not MigrationType.CLEAR)


def _through_an_empty_place(start: int, row: list[Any], goal: list[Any]) -> list[int]:
    cycle = [start]
    while True:
        member = row[cycle[-1]]
        if member is None:
            return cycle  # "there is nobody, so nobody is in the way"
        if member not in goal:
            return []
        index = goal.index(member)
        if index == start:
            return cycle
        cycle.append(index)


def _no_cycles(start: int, row: list[Any], goal: list[Any]) -> list[int]:
    return []


def _passes_its_own_member(earlier: Migration[str], later: Migration[str]) -> bool:
    hotter = 0 <= earlier.source_new_index < later.destination_new_index
    return priority.adds_copy(earlier) or hotter


def _passes_hotter_places(earlier: Migration[str], later: Migration[str]) -> bool:
    alike = later.destination in (earlier.source, earlier.destination)
    return priority.adds_copy(earlier) or alike


def _one_for_all(self: Migration[str], success: bool) -> int:
    return 1 if success else 2


def _failure_like_success(self: Migration[str], success: bool) -> int:
    return 1 + (self.source_new_index >= 0) + (self.destination_current_index >= 0)


_apply = migration.apply_to


def _leaves_the_old_place(row: list[Any], step: Migration[str]) -> None:
    now = step.destination_current_index
    _apply(row, step)
    if now >= 0:
        row[now] = step.destination


def _bug(
    name: str,
    owner: object,
    attribute: str,
    replacement: Callable[..., Any],
    names: str,
    cases: int,
) -> Planted:
    return Planted(
        name=name,
        owner=owner,
        attribute=attribute,
        replacement=replacement,
        names=frozenset(names.split()),
        cases=cases,
    )


BUGS = (
    _bug("P9 left out: P8a pushes out whoever it likes", Walk, "_may_lose", _never_too_few,
         "replicas", 231),
    _bug("P9 begins at the cold end", Walk, "_gain", _gains_at_the_cold_end, "impossible", 1030),
    _bug("P9 does not park", Walk, "_gain", _gains_without_parking, "replicas", 1045),
    _bug("P9 does not follow the chain", Walk, "_gain", _gains_at_the_first_link, "replicas", 1045),
    _bug("P7 taken for P6", Walk, "_standing_at", _parks_where_somebody_stands, "algebra", 222),
    _bug("P8c turns the ring at its hot end", Walk, "_turn_the_ring", _turns_from_the_hot_end,
         "impossible", 1045),
    _bug("CLEAR before COPY", planner, "plan_migrations", _clears_first, "replicas", 30),
    _bug("a cycle through an empty place", cycles, "_cycle", _through_an_empty_place, "goal", 31),
    _bug("cycles are planned", cycles, "_cycle", _no_cycles, "replicas", 226),
    _bug("a copy passes what has its member", priority, "must_precede", _passes_its_own_member,
         "algebra", 790),
    _bug("a copy passes what fills a hotter place", priority, "must_precede",
         _passes_hotter_places, "algebra", 1146),
    _bug("every success counts one", Migration, "version_increment", _one_for_all, "version", 31),
    _bug("a failure counts like a success", Migration, "version_increment",
         _failure_like_success, "version", 3),
    _bug("who comes up stays below, too", planner, "apply_to", _leaves_the_old_place,
         "algebra", 31),
)  # fmt: skip
