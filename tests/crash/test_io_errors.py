"""Every operation of the script fails, in every way that it can, once or from then on."""

from __future__ import annotations

import pytest

from support.crashes import errors_of, fail_everywhere, scenario_of
from support.scripts import full_script
from tidelog.testing.crash import recorded

PARTS = 24
STEPS = full_script()


def test_there_are_over_2000_cases() -> None:
    assert len(list(errors_of(recorded(scenario_of(STEPS))))) >= 2000


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_whatever_fails(part: int) -> None:
    assert fail_everywhere(STEPS, step=PARTS, first=part).points >= 60


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_whatever_else_the_disk_does(part: int, seed: int) -> None:
    fail_everywhere(STEPS, step=PARTS, first=part, seed=seed)
