"""Reads that take only so many bytes per second, by a clock that nobody waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from support.pipelines import Row, closed_store, rows
from tidelog.affinity.errors import UsageError
from tidelog.pipeline.base.pace import paced
from tidelog.pipeline.data.snapshots import Part
from tidelog.pipeline.plan.options import parse
from tidelog.pipeline.plan.reads import read
from tidelog.testing import FaultyDisk, simulated
from tidelog.testing.environment import SimulatedEnvironment


class Clock:
    """An environment whose waits are noted; time moves by them, and as the test says."""

    def __init__(self) -> None:
        plain = simulated(1, FaultyDisk(1))
        self.waits: list[float] = []
        self.advance = plain.advance

        def wait(seconds: float) -> None:
            self.waits.append(seconds)
            plain.wait(seconds)

        self.environment: SimulatedEnvironment = replace(plain, wait=wait)


def test_each_block_takes_the_time_that_its_bytes_have() -> None:
    clock = Clock()
    blocks = paced([10, 40, 0, 5], int, 20, clock.environment)
    assert next(blocks) == 10
    assert clock.waits == []
    assert list(blocks) == [40, 0, 5]
    assert clock.waits == pytest.approx([0.5, 2, 0.25])


def test_time_that_reading_takes_is_not_waited_for() -> None:
    clock = Clock()

    def slow() -> Iterator[int]:
        for size, seconds in ((10, 3), (10, 0.75), (10, 0)):
            clock.advance(seconds)
            yield size

    # Three seconds for the first block: the others may not make up for them.
    assert list(paced(slow(), int, 10, clock.environment)) == [10, 10, 10]
    assert clock.waits == pytest.approx([0.25, 1])


def test_whoever_closes_it_does_not_wait() -> None:
    clock = Clock()
    closed: list[bool] = []

    def source() -> Iterator[int]:
        try:
            yield from (1_000_000, 1)
        finally:
            closed.append(True)

    blocks = cast("Iterator[int]", paced(source(), int, 1, clock.environment))
    assert next(blocks) == 1_000_000
    del blocks
    assert (clock.waits, closed) == ([], [True])


def parts(path: Path, tasks: int, most: int | None) -> list[Part]:
    given = {"path": str(path), "minPartitions": str(tasks)}
    if most is not None:
        given["maxReadBytesPerSec"] = str(most)
    found = [task.part for task in read(parse(given))]
    assert all(isinstance(part, Part) for part in found)
    return cast("list[Part]", found)


def taken(part: Part, clock: Clock, rows: int = 10) -> list[Row]:
    batches = part.batches(None, rows, clock.environment)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("tasks", [1, 3, 4])
def test_the_tasks_of_a_read_share_its_bytes(tmp_path: Path, tasks: int) -> None:
    store = closed_store(tmp_path / "s")
    shared = parts(store, tasks, 600)
    assert [part.bytes_per_second for part in shared] == [600 / len(shared)] * len(shared)
    found: list[Row] = []
    for part in shared:
        blocks = [block for _, _, block in part.pairs(7)]
        size = sum(len(key) + len(value) for block in blocks for key, value in block)
        clock = Clock()
        found += taken(part, clock, rows=7)
        assert sum(clock.waits) == pytest.approx(size * len(shared) / 600)
        assert len(clock.waits) == len(blocks)
    assert found == rows(store, "snapshot", minPartitions=tasks)


def test_the_first_rows_of_a_task_come_at_once(tmp_path: Path) -> None:
    (part,) = parts(closed_store(tmp_path / "s"), 1, 1)
    clock = Clock()
    batches = part.batches(None, 1, clock.environment)
    assert next(batches).num_rows
    batches.close()  # type: ignore[attr-defined]  # a generator, whatever it is called
    assert clock.waits == []


def test_without_the_option_nothing_waits(tmp_path: Path) -> None:
    (part,) = parts(closed_store(tmp_path / "s"), 1, None)
    clock = Clock()
    assert taken(part, clock)
    assert clock.waits == []


@pytest.mark.parametrize("text", ["0", "-1", "64m", "", "1.5"])
def test_the_option_is_a_positive_number(text: str) -> None:
    with pytest.raises(UsageError, match="maxReadBytesPerSec"):
        parse({"path": "/s", "maxReadBytesPerSec": text})


def test_other_views_do_not_have_it() -> None:
    with pytest.raises(UsageError, match="has no option"):
        parse({"path": "/s", "view": "changes", "maxReadBytesPerSec": "5"})
