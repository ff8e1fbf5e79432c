"""Real processes with two backups, under load: killed, paused and cut, round after round."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.real_rounds import dealt, run_rounds

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.slow
def test_five_rounds_of_faults_lose_nothing_that_has_copies(tmp_path: Path) -> None:
    faults = ["pause short", "pause long", "cut what it says", "kill all", "kill"]
    assert len(run_rounds(tmp_path, 1, [faults])) == len(faults)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
def test_forty_rounds_of_faults_lose_nothing_that_has_copies(tmp_path: Path, seed: int) -> None:
    assert len(run_rounds(tmp_path, seed, dealt(seed, lives=10, rounds=4))) == 40


@pytest.mark.nightly
def test_members_that_do_not_look_at_their_leases_are_found_by_a_stale_read(tmp_path: Path) -> None:
    """Rule L5, taken out; clients reach a member still which the others do not."""
    with pytest.raises(BaseExceptionGroup) as caught:
        run_rounds(tmp_path, 5, [["cut"]] * 3, [str(SUPPORT / "planted_member.py")])
    assert caught.group_contains(AssertionError, match="stale read|went back|lost update")
