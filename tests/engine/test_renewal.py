"""When a new data file pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidelog.checkpoints.marks import PartitionMark
from tidelog.engine.store.renewal import pays
from tidelog.engine.system.limits import Limits


def mark(count: int, tombstones: int = 0) -> PartitionMark:
    return replace(PartitionMark.empty(), count=count, tombstones=tombstones)


@pytest.mark.parametrize(("stays", "expected"), [(6_000, True), (6_250, True), (6_251, False)])
def test_it_pays_where_much_was_cleared_and_little_stays(stays: int, expected: bool) -> None:
    marks = {0: mark(30_000, 20_000), 1: mark(stays - 50, 50)}
    assert pays(marks, [0]) is expected
    assert not pays(marks, [1])
    assert not pays(marks, [])


def test_it_pays_from_some_pairs_on_only() -> None:
    marks = {0: mark(99), 1: mark(1)}
    assert pays(marks, [0], Limits(renewed_pairs=99))
    assert not pays(marks, [0], Limits(renewed_pairs=100))
    assert not pays(marks, [0], Limits(renewed_pairs=9, renewed_share=100))
