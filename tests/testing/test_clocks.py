"""The clocks of the machines of a world: they drift, stand still and begin anew."""

from __future__ import annotations

import random

import pytest

from tidelog.testing.clocks import DRIFT_MAX, WALL_OFFSET_US_MAX, NodeClocks
from tidelog.testing.environment import START_US


class WorldTime:
    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def jump(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def time() -> WorldTime:
    return WorldTime()


def clocks_of(time: WorldTime, seed: int = 1) -> NodeClocks:
    return NodeClocks(random.Random(seed), time.now, time.jump)


def test_no_two_machines_have_the_same_clocks_and_none_is_far_off(time: WorldTime) -> None:
    machines = [clocks_of(time, seed) for seed in range(20)]
    assert len({clocks.wall_us() for clocks in machines}) == 20
    assert len({clocks.rate for clocks in machines}) == 20
    assert len({clocks.steady_s() for clocks in machines}) == 20
    for clocks in machines:
        assert abs(clocks.wall_us() - START_US) <= WALL_OFFSET_US_MAX
        wall, steady = clocks.wall_us(), clocks.steady_s()
        time.jump(1000)
        assert clocks.steady_s() - steady == pytest.approx(1000 * clocks.rate)
        assert clocks.wall_us() - wall == pytest.approx(1e9 * clocks.wall_rate, abs=2)
        assert 0 < abs(clocks.rate - 1) <= DRIFT_MAX
        assert 0 < abs(clocks.wall_rate - 1) <= DRIFT_MAX
        time.now_s = 0.0


def test_the_same_seed_gives_the_same_clocks(time: WorldTime) -> None:
    one, same = clocks_of(time, 5), clocks_of(time, 5)
    assert (one.wall_us(), one.boot_s()) == (same.wall_us(), same.boot_s())


def test_the_wall_clock_may_jump_alone(time: WorldTime) -> None:
    clocks = clocks_of(time)
    wall, steady = clocks.wall_us(), clocks.steady_s()
    clocks.jump_wall(-3600)
    assert clocks.wall_us() == wall - 3_600_000_000
    assert clocks.steady_s() == steady


def test_the_steady_clock_stands_still_while_the_machine_is_suspended(time: WorldTime) -> None:
    clocks = clocks_of(time)
    steady, boot = clocks.steady_s(), clocks.boot_s()
    assert steady == boot
    clocks.suspend(10)
    time.jump(4)
    assert clocks.steady_s() == pytest.approx(steady)
    time.jump(7)
    assert clocks.steady_s() == pytest.approx(steady + 1 * clocks.rate)
    assert clocks.boot_s() == pytest.approx(boot + 11 * clocks.rate)
    clocks.suspend(5)
    time.jump(2)
    clocks.suspend(3)  # it woke up, and was suspended once more
    time.jump(4)
    assert clocks.steady_s() == pytest.approx(steady + 2 * clocks.rate)
    assert clocks.boot_s() == pytest.approx(boot + 17 * clocks.rate)


def test_a_machine_that_computes_is_awake(time: WorldTime) -> None:
    clocks = clocks_of(time)
    clocks.suspend(10)
    steady = clocks.steady_s()
    clocks.move(2)
    assert clocks.steady_s() == pytest.approx(steady + 2)
    assert time.now_s == pytest.approx(2 / clocks.rate)


def test_a_boot_begins_the_steady_clocks_anew_and_leaves_the_wall_clock(time: WorldTime) -> None:
    clocks = clocks_of(time)
    clocks.suspend(3)
    time.jump(5)
    wall = clocks.wall_us()
    clocks.reboot()
    assert (clocks.steady_s(), clocks.boot_s(), clocks.wall_us()) == (0.0, 0.0, wall)
    time.jump(1)
    assert clocks.steady_s() == clocks.boot_s() == clocks.rate
