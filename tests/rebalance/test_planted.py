"""Bugs planted into the planner, each of which the look at all rows must find, and soon."""

from __future__ import annotations

import pytest

from support.planted_plans import BUGS, Planted, hunt
from tidelog.rebalance import priority


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_caught(bug: Planted) -> None:
    name, cases = hunt(bug)
    assert name in bug.names
    assert cases <= bug.cases


def test_every_bug_is_planted_by_replacing_one_function_of_the_product() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 14
    for bug in BUGS:
        original = getattr(bug.owner, bug.attribute)
        assert callable(original)
        assert original is not bug.replacement
        assert original.__module__.startswith("tidelog.rebalance")


@pytest.mark.slow
def test_nothing_is_found_where_nothing_is_planted() -> None:
    bug = Planted(
        name="nothing",
        owner=priority,
        attribute="prioritize",
        replacement=priority.prioritize,
        names=frozenset(),
        cases=0,
    )
    with pytest.raises(AssertionError, match="nothing was not caught in 9736 pairs"):
        hunt(bug)
