"""Every pair of a row and its goal, and what a plan between them has promised.

Knows nothing of the planner's own helpers: it applies migrations by their six fields, finds cycles
in its own way, and holds each row on the way against the promise.

Rows are lists by replica index, with None for an empty place, padded to the same length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import NoReturn

from tidelog.rebalance import Migration, planner, priority

Row = list[str | None]
Plan = Sequence[Migration[str]]

STEPS_MAX = 7


class BrokenPromise(AssertionError):  # noqa: N818  # it is no error of the program's own
    """A plan does not keep a promise; ``name`` says which."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


def broken(name: str, text: str) -> NoReturn:
    """Raise for the promise of that name."""
    raise BrokenPromise(name, text)


@dataclass
class Figures:
    """What was looked at."""

    pairs: int = 0
    plans: int = 0
    steps: int = 0
    longest: int = 0


# ------------------------------------------------------------------ all rows, up to renaming

HOLDERS = "ABCDEFG"
NEW = "tuvwxyz"
"""Who stands in a row, and who is only in its goal: the names say nothing else."""


def pairs(places: int, goal_lengths: range | None = None) -> Iterator[tuple[Row, Row]]:
    """Yield each row of so many places, holes included, with each goal that it may have.

    Pairs that are the same but for the names of members come once: who stands in the row is named
    in the order of places, and so is who is new in the goal.  An empty goal comes only with rows
    that have no primary, since no plan may take the last one away.
    """
    for length in goal_lengths or range(places + 1):
        for taken in subsets(range(places)):
            if length or 0 not in taken:
                row: Row = [None] * places
                for place, name in zip(taken, HOLDERS, strict=False):
                    row[place] = name
                for goal in goals(HOLDERS[: len(taken)], length):
                    yield row, goal + [None] * (places - length)


def goals(holders: str, length: int) -> Iterator[Row]:
    """Yield each goal of a length for a row with some members: who is wanted, and where."""
    for places in subsets(range(length)):
        for chosen in permutations(holders, len(places)):
            wanted = dict(zip(places, chosen, strict=True))
            new = iter(NEW)
            yield [wanted[place] if place in wanted else next(new) for place in range(length)]


def subsets(places: range) -> Iterator[tuple[int, ...]]:
    """Yield all subsets of some places, in order."""
    for count in range(len(places) + 1):
        yield from combinations(places, count)


# ------------------------------------------------------------------ the algebra of one migration


def after(row: Row, step: Migration[str]) -> Row:
    """Return a row after a migration; everything that its fields say must be true of the row."""
    leaves = [(step.source, step.source_current_index, step.source_new_index)]
    leaves += [(step.destination, step.destination_current_index, step.destination_new_index)]
    result = list(row)
    for member, now, _ in leaves:
        if now >= 0:
            if member is None or row[now] != member:
                broken("algebra", f"{member} does not stand at {now} of {row}: {step}")
            result[now] = None
        elif member in row and member is not None:
            broken("algebra", f"{member} stands in {row}: {step}")
    for member, _, new in leaves:
        if new >= 0:
            if result[new] is not None:
                broken("algebra", f"place {new} of {row} is taken: {step}")
            result[new] = member
    return result


def replicas(row: Row) -> list[int]:
    """Return the number of replicas at the places 0 to t, for each t."""
    return [sum(member is not None for member in row[: t + 1]) for t in range(len(row))]


def goal_without_cycles(row: Row, goal: Row) -> Row:
    """Return the goal in which each member of a cycle keeps its place.

    A place is in a cycle if going on to where its member is wanted, as often as there are places in
    a row, passes it again.
    """
    on = {place: goal.index(name) for place, name in enumerate(row) if name and name in goal}
    kept = list(goal)
    for start in on:
        place: int | None = start
        passed = set()
        for _ in row:
            place = on.get(place) if place is not None else None
            passed.add(place)
        if start in passed:
            kept[start] = row[start]
    return kept


# ------------------------------------------------------------------ the promise


def check(row: Row, goal: Row, figures: Figures, *, failing: bool = True) -> None:
    """Plan from a row to its goal, and hold the plan against its promise.

    In the order of the plan and in that of ``prioritize``; and where any one step fails, for the
    plan that follows from there.
    """
    figures.pairs += 1
    needed = [min(both) for both in zip(replicas(row), replicas(goal), strict=True)]
    for order in orders(row, goal, figures):
        reached = check_steps(row, goal, order, needed)
        if failing:
            for stopped in reached:
                # The step behind this row fails, so the row stays, and all is planned anew.
                for again in orders(stopped, goal, figures):
                    check_steps(stopped, goal, again, needed)


def orders(row: Row, goal: Row, figures: Figures) -> list[Plan]:
    """Return the plan, and the plan as it is prioritised, if that is another one."""
    plan = planner.plan_migrations(row, goal)
    figures.plans += 1
    figures.steps += len(plan)
    figures.longest = max(figures.longest, len(plan))
    if len(plan) > STEPS_MAX:
        broken("steps", f"{len(plan)} steps from {row} to {goal}")
    first = priority.prioritize(plan)
    if sorted(map(repr, first)) != sorted(map(repr, plan)):
        broken("order", f"{first} has not the steps of {plan}")
    return [plan] if first == plan else [plan, first]


def check_steps(row: Row, goal: Row, steps: Plan, needed: Sequence[int]) -> list[Row]:
    """Hold steps against the promise; return the rows on the way, the last one left out."""
    first, passed = row, []
    for step in steps:
        passed.append(row)
        row, before = after(row, step), row
        if any(has < needs for has, needs in zip(replicas(row), needed, strict=True)):
            broken("replicas", f"{row} has too few on the way from {first} to {goal}: {steps}")
        names = [name for name in row if name is not None]
        if len(names) != len({*names}):
            broken("twice", f"{row} has a member twice: {steps}")
        if before[0] is not None and row[0] is None:
            broken("primary", f"{row} has lost its primary: {steps}")
        changed = sum(now != then for now, then in zip(row, before, strict=True))
        if [step.version_increment(success=True), step.version_increment(success=False)] != [
            changed,
            changed + 1,
        ]:
            broken("version", f"{step} changes {changed} places")
    if row != goal_without_cycles(first, goal):
        broken("goal", f"{first} becomes {row} in the place of {goal}: {steps}")
    return passed
