"""The power is cut, the process killed, and the disk fails, at every operation of an attach.

Whatever happens, the map is there whole or not at all, and everything else is as promised.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.crashes import cut_everywhere, cut_recoveries, fail_everywhere, kill_everywhere
from support.loads import make_load, rows_of
from support.scripts import Step, Writer


@pytest.fixture
def steps(tmp_path: Path) -> list[Step]:
    """Attach a load twice, with commits and checkpoints around it."""
    rows = rows_of(20)
    load = make_load(tmp_path / "load", rows)
    other = rows_of(6, b"other", 200)
    other_load = make_load(tmp_path / "other", other, files=1)
    w = Writer()
    w.add("open")
    w.add("map", name="a")
    w.add("many", changes=w.changes("a", range(12), 300))
    _attach(w, "cities", load, rows)
    w.add("commit", changes=(("cities", b"key00003", None), *w.changes("a", range(2))))
    w.add("checkpoint")
    w.add("commit", durability="none", changes=w.changes("cities", range(2)))
    w.add("close")
    w.add("open", durability="none")
    w.add("put", changes=w.changes("a", range(1)))
    _attach(w, "towns", other_load, other)
    w.add("drop", name="cities")
    w.add("rename", name="towns", other="cities")
    w.add("checkpoint")
    return w.steps


def _attach(w: Writer, name: str, load: str, rows: dict[bytes, bytes]) -> None:
    w.add("attach", name=name, other=load, changes=tuple((name, *row) for row in rows.items()))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_power_cut_leaves_a_map_whole_or_not_at_all(steps: list[Step], part: int) -> None:
    figures = cut_everywhere(steps, outcomes=("lost", "reordered"), step=4, first=part)
    assert figures.points >= 150
    assert len(figures.worlds) >= 8


@pytest.mark.slow
def test_a_power_cut_leaves_a_map_whole_or_not_at_all_in_the_real_lmdb(steps: list[Step]) -> None:
    assert cut_everywhere(steps, outcomes=("lost",), step=10, first=3, kv="lmdb").points >= 30


@pytest.mark.slow
def test_a_power_cut_inside_the_recovery_changes_nothing(steps: list[Step]) -> None:
    assert cut_recoveries(steps, step=12, outcomes=("lost",), inner=("lost",)).points >= 100


@pytest.mark.slow
def test_a_process_that_dies_leaves_a_map_whole_or_not_at_all(steps: list[Step]) -> None:
    assert kill_everywhere(steps, step=2) >= 50


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_error_of_the_disk_breaks_a_promise(steps: list[Step], part: int) -> None:
    assert fail_everywhere(steps, step=4, first=part).points >= 100
