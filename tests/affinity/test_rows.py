from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tidelog.affinity.errors import PlacementError
from tidelog.affinity.rows import REPLICAS_MAX, padded, padded_goal

A, B, C = (UUID(int=number) for number in (1, 2, 3))


@pytest.mark.parametrize("row", [[], [A], [A, None, B], [None, A], [None] * 7, list("abcdefg")])
def test_a_row_gets_all_of_its_places(row: list[Any]) -> None:
    full = padded(row)
    assert len(full) == REPLICAS_MAX == 7
    assert full == row + [None] * (7 - len(row))


def test_a_member_may_be_anything_that_can_be_hashed() -> None:
    assert padded([0, "", False.__str__(), b""])[:4] == [0, "", "False", b""]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (list("abcdefgh"), "the row has 8 places, 7 are allowed"),
        ([None] * 8, "the row has 8 places, 7 are allowed"),
        ([A, B, A], "the row holds a member twice"),
        ([A, None, None, A], "the row holds a member twice"),
        ([A, [B]], "the row holds what is not a member"),
    ],
)
def test_what_is_not_a_row_is_refused(row: list[Any], text: str) -> None:
    with pytest.raises(PlacementError, match=text):
        padded(row)


def test_the_text_names_the_row() -> None:
    with pytest.raises(PlacementError, match="the row of partition 7 holds a member twice"):
        padded([A, A], "the row of partition 7")


@pytest.mark.parametrize("goal", [[], [A], [A, B, C], [A, B, None, None], list("abcdefg")])
def test_a_goal_gets_all_of_its_places(goal: list[Any]) -> None:
    assert padded_goal(goal) == padded(goal)


@pytest.mark.parametrize("goal", [[None, A], [A, None, B], [A, B, None, None, None, None, C]])
def test_a_goal_has_no_hole(goal: list[UUID | None]) -> None:
    with pytest.raises(ValueError, match="an empty place in front of a member"):
        padded_goal(goal)


@pytest.mark.parametrize("goal", [list("abcdefgh"), [A, A]])
def test_a_goal_is_a_row(goal: list[Any]) -> None:
    with pytest.raises(ValueError, match="the goal h"):
        padded_goal(goal)
