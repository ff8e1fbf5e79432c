"""Every row and every goal there can be, up to the names of members, against the promise."""

from __future__ import annotations

from math import comb, factorial

import pytest

from support.plans import Figures, check, pairs


def number_of_pairs(places: int, goal_length: int, members: range) -> int:
    """How many pairs there are of rows with some numbers of members and goals of one length."""
    return sum(
        comb(places, count) * comb(count, both) * comb(goal_length, both) * factorial(both)
        for count in members
        for both in range(min(count, goal_length) + 1)
    )


def test_as_many_pairs_are_made_as_there_are() -> None:
    for places in range(5):
        for length in range(1, places + 1):
            made = [(*row, *goal) for row, goal in pairs(places, range(length, length + 1))]
            assert len(made) == len({*made}) == number_of_pairs(places, length, range(places + 1))
        assert len([*pairs(places, range(1))]) == 2 ** max(places - 1, 0)


@pytest.mark.slow
def test_every_row_of_five_places_keeps_the_promise() -> None:
    figures = Figures()
    for row, goal in pairs(5):
        check(row, goal, figures)
    assert figures.pairs == 9736 == 16 + sum(number_of_pairs(5, n, range(6)) for n in range(1, 6))
    assert figures.plans > 40_000
    assert figures.longest == 5


PAIRS_OF_SEVEN = [64, 576, 2368, 8864, 30_144, 93_088, 261_536, 671_568]
"""Pairs of a row of seven places and a goal, by the length of the goal: 1,068,208 together."""


@pytest.mark.nightly
@pytest.mark.parametrize("length", range(8))
def test_every_row_of_seven_places_keeps_the_promise(length: int) -> None:
    figures = Figures()
    for row, goal in pairs(7, range(length, length + 1)):
        check(row, goal, figures)
    assert figures.pairs == PAIRS_OF_SEVEN[length]
    if length:
        assert figures.pairs == number_of_pairs(7, length, range(8))
        assert figures.longest == 7
