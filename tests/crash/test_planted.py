"""Bugs planted into the engine, each of which a suite must catch, and soon."""

from __future__ import annotations

import pytest

from support.crashes import Figures
from support.planted import BUGS, Planted, Suite, damage, gaps, hunt, stale_frames


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_planted_bug_is_caught(bug: Planted) -> None:
    name, cases = hunt(bug)
    assert name in bug.names
    assert cases <= bug.cases


def test_every_bug_is_planted_by_replacing_one_function_of_the_product() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 13
    for bug in BUGS:
        original = getattr(bug.owner, bug.attribute)
        assert callable(original)
        assert original is not bug.replacement
        assert original.__module__.startswith("tidelog.")


@pytest.mark.slow
@pytest.mark.parametrize("suite", [damage, stale_frames, gaps])
def test_a_suite_finds_nothing_where_nothing_is_planted(suite: Suite) -> None:
    figures = Figures()
    suite(figures)
    assert figures.points >= 20
