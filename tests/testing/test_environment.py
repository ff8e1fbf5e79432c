"""Time, ids and background work of a simulated engine."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from tidelog.testing import FaultyDisk, simulated
from tidelog.testing.environment import START_US, SimulatedEnvironment


@pytest.fixture
def environment() -> SimulatedEnvironment:
    return simulated(1, FaultyDisk(1))


def test_the_same_seed_gives_the_same_ids_and_numbers() -> None:
    def drawn(seed: int) -> list[object]:
        environment = simulated(seed, FaultyDisk(1))
        return [*(environment.new_id() for _ in range(3)), environment.random.random()]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len(simulated(1, FaultyDisk(1)).new_id()) == 16


def test_time_stands_still_until_it_is_moved(environment: SimulatedEnvironment) -> None:
    assert (environment.clock(), environment.monotonic()) == (START_US, 0.0)
    environment.advance(1.5)
    environment.wait(0.5)
    assert (environment.clock(), environment.monotonic()) == (START_US + 2_000_000, 2.0)


def test_the_wall_clock_may_jump_alone(environment: SimulatedEnvironment) -> None:
    environment.time.jump(-3600)
    assert environment.clock() == START_US - 3_600_000_000
    assert environment.monotonic() == 0.0
    with pytest.raises(ValueError, match="jump"):
        environment.time.move(-1)


def test_work_runs_when_it_is_due_or_was_woken(environment: SimulatedEnvironment) -> None:
    ran: list[float] = []
    task = environment.background("w", 10.0, lambda: ran.append(environment.monotonic()))
    assert environment.run_due() == 0
    environment.advance(25)
    assert ran == [10.0, 20.0]
    task.wake()
    task.wake()
    assert ran == [10.0, 20.0]
    assert environment.run_due() == 1
    assert environment.run_due() == 0
    assert ran == [10.0, 20.0, 25.0]
    environment.advance(10)
    assert ran[-1] == 35.0


def test_tasks_run_in_the_order_in_which_they_are_due(environment: SimulatedEnvironment) -> None:
    ran: list[str] = []
    environment.background("slow", 3.0, lambda: ran.append("slow"))
    environment.background("quick", 2.0, lambda: ran.append("quick"))
    environment.advance(6)
    assert ran == ["quick", "slow", "quick", "slow", "quick"]


def test_a_stopped_task_runs_no_more(environment: SimulatedEnvironment) -> None:
    ran: list[int] = []
    task = environment.background("w", 1.0, lambda: ran.append(1))
    task.wake()
    task.stop()
    environment.advance(5)
    assert ran == []


def test_a_task_may_stop_another_that_is_due(environment: SimulatedEnvironment) -> None:
    ran: list[int] = []
    environment.background("first", 1.0, lambda: second.stop())
    second = environment.background("second", 1.0, lambda: ran.append(1))
    environment.time.move(1)
    assert environment.run_due() == 1
    assert ran == []


def test_work_that_waits_only_moves_time(environment: SimulatedEnvironment) -> None:
    ran: list[float] = []

    def work() -> None:
        ran.append(environment.monotonic())
        environment.wait(5)

    environment.background("w", 2.0, work)
    environment.advance(2)
    assert ran == [2.0]
    assert environment.monotonic() == 7.0


def test_a_task_that_fails_does_not_stop_the_others(environment: SimulatedEnvironment) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    environment.background("w", 1.0, fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            environment.advance(1)


async def test_work_for_trio_runs_at_once_and_there_is_no_network(
    environment: SimulatedEnvironment,
) -> None:
    environment.advance(3)
    environment.reached("anything")
    assert await environment.run("sync", environment.boottime) == 3.0
    for call in (environment.network.listen, environment.network.connect):
        with pytest.raises(OSError, match="no network") as caught:
            await call(("localhost", 7000))
        assert caught.value.errno == errno.ENETUNREACH


LEFT_OPEN = """
import sys
from tidelog.testing import FaultyDisk, open_with, simulated

disk = FaultyDisk(1)
writer = open_with(simulated(1, disk), "/store", partitions=2)
writer.map("users")[b"ada"] = b"x"
reader = open_with(simulated(2, disk), "/store", read_only=True)
disk.crash()
print("trio" in sys.modules)
"""


def test_the_end_of_a_process_leaves_simulated_stores_alone() -> None:
    """It closed them like real ones, and raised the power cut of a store long gone."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEFT_OPEN], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_kind_of_store_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="memory, lmdb"):
        simulated(1, FaultyDisk(1), kv="paper")
