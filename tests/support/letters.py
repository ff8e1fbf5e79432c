"""Rows and plans as short texts: ``A-BC`` is a row, ``MOVE D -->0, A 0->-`` is a step."""

from __future__ import annotations

from tidelog.rebalance import Migration, plan_migrations

from .plans import Row


def row_of(text: str) -> Row:
    """Return the row of a text with a letter for each member and a dash for each empty place."""
    return [None if letter == "-" else letter for letter in text]


def text_of(row: Row) -> str:
    """Return the text of a row, without the empty places at its end."""
    return "".join(member or "-" for member in row).rstrip("-")


def step_text(step: Migration[str]) -> str:
    """Return the text of a migration: type, the way of the destination, and that of the source."""
    ways = [
        (step.destination, step.destination_current_index, step.destination_new_index),
        (step.source, step.source_current_index, step.source_new_index),
    ]
    moves = [
        f"{member} {'-' if now < 0 else now}->{'-' if new < 0 else new}"
        for member, now, new in ways
        if member is not None
    ]
    return f"{step.type.name} {', '.join(moves)}"


def planned(row: str, goal: str) -> list[str]:
    """Return the texts of the steps from a row to its goal."""
    return [*map(step_text, plan_migrations(row_of(row), row_of(goal)))]
