from __future__ import annotations

import pytest

from support.letters import row_of, text_of
from support.plans import goal_without_cycles, pairs
from tidelog.affinity.errors import PlacementError
from tidelog.rebalance import remove_cycles


@pytest.mark.parametrize(
    ("row", "goal", "kept"),
    [
        pytest.param("ABC", "ABC", "ABC", id="nothing to do"),
        pytest.param("ABC", "BAC", "ABC", id="two change places"),
        pytest.param("ABC", "CAB", "ABC", id="three go round"),
        pytest.param("ABC", "BAD", "ABD", id="a cycle, and a new member"),
        pytest.param("ABCD", "BADC", "ABCD", id="two cycles"),
        pytest.param("ABCDE", "BAEDC", "ABCDE", id="two cycles around one that stays"),
        pytest.param("ABC", "BCD", "BCD", id="a chain that ends with who is left out"),
        pytest.param("A-BC", "BAC", "BAC", id="an empty place breaks the cycle"),
        pytest.param("AB-", "B", "B", id="whose place is gone is in no cycle"),
        pytest.param("ABC", "BA", "AB", id="the goal is shorter"),
        pytest.param("AB", "BACD", "ABCD", id="the goal is longer"),
        pytest.param("-AB", "XBA", "XAB", id="a cycle behind an empty place"),
        pytest.param("", "AB", "AB", id="an empty row"),
    ],
)
def test_members_of_a_cycle_keep_their_places(row: str, goal: str, kept: str) -> None:
    found = remove_cycles(row_of(row), row_of(goal))
    assert text_of(found) == kept
    assert len(found) == len(goal)


def test_the_result_is_as_long_as_the_goal() -> None:
    assert remove_cycles(["A", "B"], ["B", "A", None, None]) == ["A", "B", None, None]
    assert remove_cycles(["A", "B"], ["C"]) == ["C"]


def test_cycles_are_those_that_another_way_of_looking_finds() -> None:
    looked_at = changed = 0
    for row, goal in pairs(4):
        found = remove_cycles(row, goal)
        assert found == goal_without_cycles(row, goal)
        assert remove_cycles(row, found) == found
        looked_at, changed = looked_at + 1, changed + (found != goal)
    assert (looked_at, changed) == (1136, 143)


@pytest.mark.parametrize(
    ("row", "goal"), [("AA", "A"), ("A", "AA"), ("A", "-A"), ("A", "ABCDEFGH"), ("ABCDEFGH", "A")]
)
def test_rows_that_cannot_be_right_are_refused(row: str, goal: str) -> None:
    with pytest.raises(PlacementError):
        remove_cycles(row_of(row), row_of(goal))
