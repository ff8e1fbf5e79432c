"""Blocking work of Trio code in threads: how much at a time, and what a cancellation does."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
from functools import partial
from itertools import count

import pytest
import trio
import trio.testing

from tidelog.engine.system.blocking import (
    DOUBTS,
    LONG_S,
    QUICK_S,
    WORKERS_MAX,
    BlockingRunner,
    _SyncThread,
)
from tidelog.engine.system.environment import RunBlocking
from tidelog.engine.system.production import production

WAIT = 60.0


class Crowd:
    """Work that stays until it is let go, and counts how many are inside."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.inside_max = 0
        self.order: list[int] = []
        self.inside = 0
        self._mutex = threading.Lock()
        self._leave = threading.Event()

    def work(self, number: int) -> int:
        with self._mutex:
            self.inside += 1
            self.inside_max = max(self.inside_max, self.inside)
            self.order.append(number)
        self.entered.release()
        assert self._leave.wait(WAIT)
        with self._mutex:
            self.inside -= 1
        return number

    async def wait_entered(self) -> None:
        assert await trio.to_thread.run_sync(lambda: self.entered.acquire(timeout=WAIT))

    def let_go(self) -> None:
        self._leave.set()


@pytest.fixture
def run() -> RunBlocking:
    return production().run


def slow_runner() -> BlockingRunner:
    """Return one for which everything takes a second: it does no sync in the loop."""
    return BlockingRunner(map(float, count()).__next__)


async def test_work_runs_in_another_thread_and_its_result_or_error_comes_back(
    run: RunBlocking,
) -> None:
    def fail() -> None:
        raise OSError("the disk")

    for kind in ("sync", "read"):
        assert await run(kind, threading.get_ident) != threading.get_ident()
        with pytest.raises(OSError, match="the disk"):
            await run(kind, fail)


async def test_syncs_run_one_at_a_time_in_the_order_of_the_calls(run: RunBlocking) -> None:
    crowd = Crowd()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(run, "sync", lambda number=number: crowd.work(number))
            await trio.testing.wait_all_tasks_blocked()
        await crowd.wait_entered()
        crowd.let_go()
    assert crowd.order == [0, 1, 2, 3, 4]
    assert crowd.inside_max == 1


async def test_other_kinds_share_a_limited_number_of_threads_and_never_hold_a_sync_up(
    run: RunBlocking,
) -> None:
    crowd = Crowd()
    async with trio.open_nursery() as nursery:
        for number in range(2 * WORKERS_MAX):
            kind = "read" if number % 2 else "scan"
            nursery.start_soon(run, kind, lambda number=number: crowd.work(number))
        for _ in range(WORKERS_MAX):
            await crowd.wait_entered()
        assert await run("sync", lambda: "done") == "done"
        crowd.let_go()
    assert len(crowd.order) == 2 * WORKERS_MAX
    assert crowd.inside_max == WORKERS_MAX


async def test_work_that_was_begun_is_waited_for_and_its_result_is_not_lost(
    run: RunBlocking,
) -> None:
    crowd = Crowd()
    results = list[int]()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def one() -> None:
                results.append(await run("sync", lambda: crowd.work(1)))
                await trio.lowlevel.checkpoint()
                results.append(-1)

            nursery.start_soon(one)
            await crowd.wait_entered()
            scope.cancel()
            crowd.let_go()
    assert results == [1]
    assert scope.cancelled_caught


async def test_work_that_was_not_begun_is_never_done_once_its_task_is_cancelled(
    run: RunBlocking,
) -> None:
    crowd = Crowd()
    scope = trio.CancelScope()

    async def second() -> None:
        with scope:
            await run("sync", lambda: crowd.work(2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "sync", lambda: crowd.work(1))
        await crowd.wait_entered()
        nursery.start_soon(second)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert scope.cancelled_caught
        with trio.move_on_after(0) as at_once:
            await run("sync", lambda: crowd.work(3))
        assert at_once.cancelled_caught
        crowd.let_go()
    assert await run("sync", lambda: 4) == 4
    assert crowd.order == [1]


async def test_a_sync_behind_a_quick_one_is_done_here_and_behind_a_slow_one_in_the_thread() -> None:
    clock = [0.0]
    run = BlockingRunner(lambda: clock[0]).run
    here = threading.get_ident()
    places = list[bool]()

    def sync(seconds: float, *, fails: bool = False) -> None:
        places.append(threading.get_ident() == here)
        clock[0] += seconds
        if fails:
            raise OSError("the disk")

    slow, quick = 2 * QUICK_S, QUICK_S / 2
    for seconds in (slow, quick, quick, slow, slow, quick, quick):
        await run("sync", partial(sync, seconds))
    assert places == [False, False, True, True, False, False, True]
    with pytest.raises(OSError, match="the disk"):
        await run("sync", lambda: sync(slow, fails=True))
    await run("sync", lambda: sync(quick))
    assert places[-2:] == [True, False]


async def test_a_sync_that_hung_is_not_risked_here_again_until_many_were_quick() -> None:
    clock = [0.0]
    run = BlockingRunner(lambda: clock[0]).run
    here = threading.get_ident()

    async def is_done_here(seconds: float) -> bool:
        def sync() -> int:
            clock[0] += seconds
            return threading.get_ident()

        return await run("sync", sync) == here

    assert not await is_done_here(0)
    assert await is_done_here(LONG_S)
    for number in range(DOUBTS):
        assert not await is_done_here(0 if number else 2 * QUICK_S)
    assert not await is_done_here(0), "one of them was slow"
    assert await is_done_here(0)


async def test_a_sync_is_never_done_here_while_another_is_in_the_thread() -> None:
    run = BlockingRunner(lambda: 0.0).run
    first, places = Crowd(), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "sync", lambda: first.work(0))
        await first.wait_entered()
        nursery.start_soon(run, "sync", lambda: places.append(threading.get_ident()))
        await trio.testing.wait_all_tasks_blocked()
        assert not places
        first.let_go()
    assert places == [threading.get_ident()]


async def test_an_error_in_the_thread_of_syncs_comes_back_and_no_later_sync_has_it() -> None:
    run = slow_runner().run
    places = list[int]()

    def fail() -> None:
        places.append(threading.get_ident())
        raise OSError("the disk")

    for _ in range(2):
        with pytest.raises(OSError, match="the disk"):
            await run("sync", fail)
        assert await run("sync", lambda: "done") == "done"
    assert threading.get_ident() not in places


async def test_others_go_on_while_a_sync_that_was_begun_is_waited_for(run: RunBlocking) -> None:
    crowd, scope = Crowd(), trio.CancelScope()

    async def one() -> None:
        with scope:
            await run("sync", lambda: crowd.work(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        await crowd.wait_entered()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert crowd.inside == 1
        crowd.let_go()


async def test_syncs_take_one_pipe_and_none_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    pipes, pipe = list[tuple[int, int]](), os.pipe

    def the_last_one() -> tuple[int, int]:
        if pipes:
            raise OSError(errno.EMFILE, "too many open files")
        pipes.append(pipe())
        return pipes[0]

    monkeypatch.setattr(os, "pipe", the_last_one)
    runner = slow_runner()
    thread = await runner.run("sync", threading.current_thread)
    assert len(pipes) == 1
    crowd = Crowd()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(runner.run, "sync", lambda number=number: crowd.work(number))
        await crowd.wait_entered()
        crowd.let_go()
    assert len(crowd.order) == 5
    closed, close = list[int](), os.close

    def noted(number: int) -> None:
        closed.append(number)
        close(number)

    monkeypatch.setattr(os, "close", noted)
    del runner, nursery
    gc.collect()
    await trio.to_thread.run_sync(thread.join, WAIT)
    assert set(pipes[0]) <= set(closed)


async def test_a_ring_for_a_sync_that_was_given_up_is_not_taken_for_another() -> None:
    thread = _SyncThread()
    thread._bell.ring()
    assert await thread.run(lambda: "done") == "done"


async def test_a_sync_that_would_be_done_here_is_not_once_its_task_is_cancelled(
    run: RunBlocking,
) -> None:
    done = list[int]()
    await run("sync", lambda: done.append(1))
    with trio.move_on_after(0) as at_once:
        await run("sync", lambda: done.append(2))
    assert at_once.cancelled_caught
    assert done == [1]


async def test_the_thread_of_syncs_ends_with_its_runner() -> None:
    runner = slow_runner()
    thread = await runner.run("sync", threading.current_thread)
    assert await runner.run("sync", threading.current_thread) is thread
    del runner
    gc.collect()
    await trio.to_thread.run_sync(thread.join, WAIT)
    assert not thread.is_alive()


def test_the_thread_of_syncs_keeps_no_process_from_ending() -> None:
    program = """
import itertools, trio
from tidelog.engine.system.blocking import BlockingRunner
runner = BlockingRunner(itertools.count().__next__)
trio.run(runner.run, "sync", int)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT)
