"""The enumeration of crash points, on a log of fixed records that keeps or breaks its promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.testing import FaultyDisk, SimulatedCrash, crash_points
from tidelog.testing.crash import error_points, recorded
from tidelog.testing.media import CRASH_OUTCOMES

RECORD = b"%07d\n"
Acknowledge = Callable[[object], None]


def append(disk: FaultyDisk, acknowledge: Acknowledge, *, synced: bool = True) -> None:
    """Append three records to a log, each acknowledged once it is durable, or before."""
    directory = disk.directory("/")
    file = directory.create("log")
    directory.sync()
    for number in range(3):
        file.write(8 * number, RECORD % number)
        if synced:
            file.sync()
        acknowledge(number)
    file.close()


def append_too_trusting(disk: FaultyDisk, acknowledge: Acknowledge) -> None:
    append(disk, acknowledge, synced=False)


def recover(disk: FaultyDisk, acknowledge: Acknowledge) -> None:
    """Cut the log behind its last whole record."""
    if disk.kind("/log") is None:
        return
    file = disk.directory("/").open_write("log")
    file.truncate(8 * len(records_of(disk)))
    file.sync()
    file.close()


def records_of(disk: FaultyDisk) -> list[int]:
    if disk.kind("/log") is None:
        return []
    lines = disk.read_bytes("/log").split(b"\n")[:-1]
    whole = [int(line) for line in lines if line.isdigit() and len(line) == 7]
    return whole if whole == list(range(len(whole))) else []


def test_every_operation_moment_and_outcome_is_visited_once() -> None:
    points = list(crash_points(append))
    assert len(points) == len(recorded(append)) * 3 * 4 == 96
    visited = {(point.operation.number, point.moment, point.outcome) for point in points}
    assert len(visited) == 96


def test_what_was_acknowledged_comes_with_the_point() -> None:
    points = list(crash_points(append))
    assert [point.acknowledged for point in points if point.moment == "before"][::4] == [
        [], [], [], [], [0], [0], [0, 1], [0, 1]
    ]  # fmt: skip
    assert all(set(point.acknowledged) <= set(records_of(point.disk)) for point in points)


def test_a_broken_promise_is_found() -> None:
    broken = [
        point
        for point in crash_points(append_too_trusting)
        if not set(point.acknowledged) <= set(records_of(point.disk))
    ]
    assert {point.outcome for point in broken} == {"lost", "torn", "reordered"}
    assert str(broken[0]).startswith("crash ")


def test_a_scenario_can_begin_with_a_disk_that_was_left() -> None:
    count = 0
    for point in crash_points(append, moments=("inside",), outcomes=("torn",)):
        before = set(records_of(point.disk))
        for inner in crash_points(recover, start=point.disk):
            count += 1
            assert before <= set(records_of(inner.disk)), (point, inner)
    assert count > 100


def test_steps_moments_and_outcomes_can_be_chosen() -> None:
    points = list(crash_points(append, moments=("after",), outcomes=CRASH_OUTCOMES[:2], step=3))
    assert [point.operation.number for point in points] == [1, 1, 4, 4, 7, 7]


def test_reading_is_no_crash_point() -> None:
    def look(disk: FaultyDisk, acknowledge: Acknowledge) -> None:
        append(disk, acknowledge)
        disk.directory("/").open_read("log").read(0, 8)

    assert len(recorded(look)) == 10
    assert len(list(crash_points(look))) == 96


def test_the_same_seed_leaves_the_same_disks() -> None:
    def left(seed: int) -> list[bytes]:
        points = crash_points(append, seed=seed, outcomes=("torn", "reordered"))
        return [point.disk.read_bytes(path) for point in points for path in point.disk.paths()]

    assert left(1) == left(1)
    assert left(1) != left(2)


def test_a_scenario_that_differs_from_run_to_run_is_refused() -> None:
    runs: list[int] = []

    def scenario(disk: FaultyDisk, acknowledge: Acknowledge) -> None:
        runs.append(1)
        disk.directory("/").create(f"run{len(runs)}")

    with pytest.raises(AssertionError, match="not repeatable"):
        list(crash_points(scenario))


def test_a_scenario_that_does_less_the_second_time_is_refused() -> None:
    runs: list[int] = []

    def scenario(disk: FaultyDisk, acknowledge: Acknowledge) -> None:
        runs.append(1)
        if len(runs) == 1:
            append(disk, acknowledge)

    with pytest.raises(AssertionError, match="ended before"):
        list(crash_points(scenario))


def test_an_acknowledgement_after_the_power_cut_is_a_bug_of_the_engine() -> None:
    def scenario(disk: FaultyDisk, acknowledge: Acknowledge) -> None:
        try:
            append(disk, acknowledge)
        except SimulatedCrash:
            acknowledge("too late")

    with pytest.raises(AssertionError, match="too late"):
        list(crash_points(scenario))


def test_error_points_visit_what_each_fault_can_hit() -> None:
    points = list(error_points(append))
    by_fault = {fault: sum(p.fault == fault for p in points) for fault in ("EIO", "short")}
    assert by_fault == {"EIO": 2 * 8, "short": 2 * 3}
    for point in points:
        acknowledged: list[object] = []
        with pytest.raises(OSError, match=r"error|space|Read-only"):
            append(point.disk, acknowledged.append)
        assert set(acknowledged) <= set(records_of(point.disk.crash("lost"))), point
        assert str(point).startswith(point.fault)
