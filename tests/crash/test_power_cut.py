"""The power is cut before, inside and after every operation of the script."""

from __future__ import annotations

import pytest

from support.crashes import cut_everywhere, cut_recoveries, kill_everywhere, scenario_of
from support.scripts import full_script
from tidelog.testing.crash import recorded
from tidelog.testing.media import CRASH_OUTCOMES

# What a dead process held is dropped as it was, locks and all.
pytestmark = pytest.mark.filterwarnings("ignore:a pessimistic transaction was dropped")

PARTS = 16
STEPS = full_script()


def test_the_script_has_over_300_operations_that_change_the_disk() -> None:
    operations = [op for op in recorded(scenario_of(STEPS)) if op.changes]
    assert len(operations) >= 400
    kinds = {operation.kind for operation in operations}
    assert kinds >= {"write", "sync", "rename", "unlink", "create", "commit", "sync_directory"}
    recycled = [op for op in operations if op.kind == "rename" and op.path.endswith(".spare")]
    assert recycled, "no segment was used again"
    assert {step.kind for step in STEPS} >= {
        "map", "drop", "rename", "put", "many", "commit", "group", "swap", "close", "snapshot",
        "conflict",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_wherever_the_power_is_cut(part: int) -> None:
    figures = cut_everywhere(STEPS, outcomes=("lost", "reordered"), step=PARTS, first=part)
    assert figures.points >= 150
    assert len(figures.worlds) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_promise_is_broken_when_the_process_dies_first_and_the_machine_later(part: int) -> None:
    assert kill_everywhere(STEPS, step=4, first=part) >= 100


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_power_cut_inside_a_recovery_changes_nothing(part: int) -> None:
    outcome = CRASH_OUTCOMES[part]
    figures = cut_recoveries(
        STEPS, step=80, first=20 * part, outcomes=(outcome,), inner=("lost", "reordered")
    )
    assert figures.points >= 200


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_promise_is_broken_with_the_real_lmdb(part: int) -> None:
    figures = cut_everywhere(
        STEPS, outcomes=("lost", "reordered"), step=40, first=10 * part, kv="lmdb"
    )
    assert figures.points >= 60


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_in_the_whole_product(part: int, seed: int) -> None:
    cut_everywhere(STEPS, seed=seed, step=PARTS, first=part)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_at_any_point_with_the_real_lmdb(part: int) -> None:
    cut_everywhere(STEPS, seed=1, step=PARTS, first=part, kv="lmdb")


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_a_kill_at_any_moment_breaks_no_promise(part: int) -> None:
    kill_everywhere(STEPS, step=PARTS, first=part, moments=("before", "inside"))


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_power_cuts_inside_many_recoveries_change_nothing(part: int) -> None:
    cut_recoveries(STEPS, step=5 * PARTS, first=part, outcomes=CRASH_OUTCOMES, inner=CRASH_OUTCOMES)
