"""What differs between loops: how asyncio cancels and is interrupted, and which loop is asked."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import trio

import tidelog
from support import tasks
from support.real_stores import expect_sound
from support.trio_stores import Gate, contents, gated, opened, parts_of
from tidelog import aio
from tidelog.codecs import I64, Str
from tidelog.engine.aio import database, session, workers
from tidelog.engine.aio.asyncio_loop import AsyncioLoop
from tidelog.engine.aio.database import loop_session_of
from tidelog.engine.aio.loops import never
from tidelog.engine.aio.running import running_loop
from tidelog.engine.aio.threads import Threads
from tidelog.engine.aio.waiting import Turns
from tidelog.errors import ClosedError, ForkedError, LockTimeoutError, UsageError
from tidelog.testing import FaultyDisk

WRONG = "in the loop that opened it"

on_both = pytest.mark.parametrize("run", tasks.RUNS.values(), ids=tasks.RUNS)


async def numbers_of(db: aio.Database) -> aio.Map[Any, Any]:
    found = db.map("numbers", key=Str, value=I64)
    await found.ensure()
    return found


async def in_the_gate(gate: Gate, work: Any) -> asyncio.Task[Any]:
    """Begin work in a task, and return it once its commit waits in the gate."""
    task: asyncio.Task[Any] = asyncio.ensure_future(work)
    await gate.entered()
    return task


# ------------------------------------------------------------------ cancelled too late


def under_asyncio(test: Any) -> Callable[..., None]:
    return tasks.as_plain_test(test)


@under_asyncio
async def test_a_task_that_is_cancelled_too_late_ends_as_if_it_had_not_been() -> None:
    disk = FaultyDisk()
    async with opened(disk) as db:
        numbers = await numbers_of(db)
        for name, work in (("set", numbers.set("set", 1)), ("incr", numbers.incr("incr"))):
            with gated(parts_of(db).writer, "sync") as gate:
                task = await in_the_gate(gate, work)
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0)
                gate.open()
                await task
            assert not task.cancelled()
            assert contents(disk.copy(), "numbers")[name] == 1


@under_asyncio
async def test_a_late_cancellation_comes_at_the_next_await() -> None:
    async with opened() as db:
        numbers = await numbers_of(db)
        told: list[str] = []

        async def work(then: Callable[[], Any]) -> None:
            await numbers.set("a", 1)
            told.append("returned")
            await then()
            told.append("never")

        for then in (
            partial(asyncio.sleep, 0), asyncio.Event().wait, partial(numbers.set, "b", 1),
            partial(numbers.incr, "b"), partial(numbers.get, "a"), numbers.count,
        ):  # fmt: skip
            with gated(parts_of(db).writer, "sync") as gate:
                task = await in_the_gate(gate, work(then))
                task.cancel("enough")
                gate.open()
                with pytest.raises(asyncio.CancelledError, match="enough"):
                    await task
            assert await numbers.get("b") is None
        assert told == ["returned"] * 6
        loop = loop_session_of(db).loop
        assert isinstance(loop, AsyncioLoop)
        assert not loop._late  # it holds on to no task


@under_asyncio
async def test_a_timeout_that_comes_too_late_is_none() -> None:
    async with opened() as db:
        numbers = await numbers_of(db)
        done: list[int] = []
        limits: list[asyncio.Timeout] = []

        async def work(name: str, *, more: bool) -> None:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await numbers.set(name, 1)
                assert limit.expired() or limit.when() is not None
                if more:
                    await asyncio.sleep(0)
            task = asyncio.current_task()
            assert task is not None
            done.append(task.cancelling())
            await asyncio.sleep(0)
            await numbers.set(name, 2)

        async def timed_out(limited: asyncio.Task[None]) -> None:
            limits[-1].reschedule(asyncio.get_running_loop().time())
            while not limited.cancelling():
                await asyncio.sleep(0)

        with gated(parts_of(db).writer, "sync") as gate:
            task = await in_the_gate(gate, work("a", more=False))
            await timed_out(task)
            gate.open()
            await task
        assert await numbers.get("a") == 2
        with gated(parts_of(db).writer, "sync") as gate:
            task = await in_the_gate(gate, work("b", more=True))
            await timed_out(task)
            gate.open()
            with pytest.raises(TimeoutError):
                await task
        assert await numbers.get("b") == 1
        assert done == [0]


@under_asyncio
async def test_wait_for_takes_back_what_has_not_begun_and_waits_for_what_has() -> None:
    async with opened() as db:
        numbers = await numbers_of(db)
        with gated(parts_of(db).writer, "sync") as gate:
            first = await in_the_gate(gate, numbers.set("first", 1))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(numbers.set("second", 1), 0.001)
            gate.open()
            await first
        assert await numbers.get("second") is None
        assert await asyncio.wait_for(numbers.incr("third"), 60) == 1


@under_asyncio
async def test_a_task_group_ends_its_tasks_and_leaves_no_lock() -> None:
    async with opened() as db:
        numbers = await numbers_of(db)

        async def hold(name: str) -> None:
            async with db.transaction("pessimistic", lock_timeout=60) as tx:
                await tx[numbers].incr(name)
                await tx[numbers].incr("shared")
                await asyncio.Event().wait()

        async def fail() -> None:
            while not loop_session_of(db).writer().locks._waiting:
                await asyncio.sleep(0)
            raise ZeroDivisionError

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for work in (hold("a"), hold("b"), fail()):
                    group.create_task(work)

        with pytest.raises(ExceptionGroup) as caught:
            await all_of_them()
        assert caught.group_contains(ZeroDivisionError)
        assert loop_session_of(db).writer().locks.table.idle
        assert await numbers.count() == 0


# ------------------------------------------------------------------ interrupted


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_the_program_and_loses_no_commit(tmp_path: Path, times: int) -> None:
    told: list[int] = []

    async def main() -> None:
        async with aio.open(tmp_path / "s", partitions=2) as db, asyncio.TaskGroup() as group:
            numbers = db.map("numbers", key=I64, value=I64)

            async def work(first: int) -> None:
                for number in range(first, 10_000, 10):
                    await numbers.set(number, number)
                    told.append(number)
                    if len(told) == 50:
                        interrupt()

            for first in range(10):
                group.create_task(work(first))

    def interrupt() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(times):
            loop.call_soon(signal.raise_signal, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    expect_sound(tmp_path / "s")

    async def look() -> set[int]:
        async with aio.open(tmp_path / "s") as db:
            return {number async for number in db.map("numbers")}

    assert set(told) <= asyncio.run(look())


@under_asyncio
async def test_what_an_interrupt_cut_off_is_called_once_somebody_is_cancelled() -> None:
    """A sleeper that nobody wakes, and that no cancellation ends, would hold the program."""
    loop = running_loop()
    assert isinstance(loop, AsyncioLoop)
    sleeper = loop.sleeper()
    task = asyncio.ensure_future(loop.wait(sleeper, never))
    await asyncio.sleep(0)
    loop._calls.append((loop.wake, (sleeper,)))  # and its handle is lost
    task.cancel()
    await task
    assert not loop._calls


class Interrupting:
    """Raises ``KeyboardInterrupt`` at one line of a module that this thread comes by."""

    def __init__(self, module: ModuleType, line: int) -> None:
        self._path = module.__file__
        self._left = line
        self.raised = False

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Interrupting | None:
        if frame.f_code.co_filename != self._path:
            return None
        if event == "line" and not self.raised:
            self._left -= 1
            if not self._left:
                self.raised = True
                raise KeyboardInterrupt
        return self


@under_asyncio
async def test_a_store_is_closed_wherever_a_call_in_a_thread_was_interrupted() -> None:
    # It waited for ever for a job that nobody counted as ended.
    for line in range(1, 1000):
        interrupting = Interrupting(workers, line)
        async with opened(FaultyDisk()) as db:
            numbers = await numbers_of(db)
            await numbers.set("a", 1)
            before = sys.gettrace()
            sys.settrace(interrupting)
            try:
                with suppress(KeyboardInterrupt):
                    await db.statistics()
            finally:
                sys.settrace(before)
        if not interrupting.raised:
            break
    assert line > 20


def log_threads_have_ended() -> bool:
    """Collect what nobody refers to, and tell whether the log threads have ended.

    One that is about to fall asleep holds its store until then.
    """
    for _ in range(300):
        gc.collect()
        if not any(thread.name == "tidelog-log" for thread in threading.enumerate()):
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("module", [database, session], ids=["database", "session"])
def test_a_store_can_be_opened_again_wherever_its_opening_or_end_was_interrupted(
    tmp_path: Path, module: ModuleType
) -> None:
    """The log thread kept it open until the process ended."""

    async def main() -> None:
        async with aio.open(tmp_path / "s", partitions=1, durability="none") as db:
            await db.map("a").set(b"k", b"v")

    before = sys.gettrace()
    logging.disable(logging.CRITICAL)  # it is lost, and says so
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for line in range(1, 1000):
                interrupting = Interrupting(module, line)
                sys.settrace(interrupting)
                with suppress(KeyboardInterrupt):
                    asyncio.run(main())
                sys.settrace(before)
                assert log_threads_have_ended(), line
                tidelog.open(tmp_path / "s", partitions=1).close()
                if not interrupting.raised:
                    break
    finally:
        sys.settrace(before)
        logging.disable(logging.NOTSET)
    assert line > 20


def test_a_store_whose_loop_was_closed_under_it_is_let_go_of(tmp_path: Path) -> None:
    kept: list[Any] = []

    async def main() -> None:
        kept.append(aio.open(tmp_path / "s", partitions=1))
        db = await kept[0].__aenter__()
        await db.map("a").set(b"k", b"v")

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()  # and nobody shut its generators down
    kept.clear()
    with pytest.warns(ResourceWarning, match="was not closed"):
        assert log_threads_have_ended()
    with tidelog.open(tmp_path / "s") as db:
        assert db.map("a")[b"k"] == b"v"


@on_both
def test_a_close_that_was_interrupted_can_be_made_again(run: Any, tmp_path: Path) -> None:
    """The second one returned, and the store was open."""

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with aio.open(tmp_path / "s", partitions=1) as db:
            log = loop_session_of(db).log
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(log, "stop", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    await db.aclose()
            await db.aclose()
            expect_sound(tmp_path / "s")

    run(main)


@under_asyncio
async def test_a_call_that_is_interrupted_is_made_again() -> None:
    loop = running_loop()
    assert isinstance(loop, AsyncioLoop)
    calls: list[str] = []

    def interrupted() -> None:
        calls.append("call")
        if len(calls) == 1:
            raise KeyboardInterrupt

    loop._calls.append((interrupted, ()))
    with pytest.raises(KeyboardInterrupt):
        loop._call()
    loop._call()
    assert calls == ["call", "call"]
    assert not loop._calls


# ------------------------------------------------------------------ which loop


@on_both
def test_a_store_is_of_one_loop_even_if_another_one_runs_in_its_thread(
    run: Any, tmp_path: Path
) -> None:
    """A task waited for ever, for a call into a loop that had ended."""
    kept: list[Any] = []
    beneath = tidelog.open(tmp_path / "s", partitions=2)

    async def begin() -> None:
        db = aio.Database(beneath, running_loop(), "inline")
        mapping = db.map("a")
        await mapping.set(b"k", b"v")
        kept.extend((db, mapping))

    async def use() -> None:
        db, mapping = kept

        async def transact() -> None:
            async with db.transaction("pessimistic"):
                raise AssertionError

        for call in (
            partial(mapping.set, b"k", b"w"), partial(mapping.set, b"k", b"w" * 5000),
            partial(mapping.pop, b"k"), mapping.count, db.statistics, db.refresh, db.aclose,
            transact,
        ):  # fmt: skip
            with pytest.raises(UsageError, match=WRONG):
                await call()

    run(begin)
    run(use)
    beneath.close()
    expect_sound(tmp_path / "s")


@on_both
def test_a_store_that_is_open_when_its_loop_ends_is_closed_by_it(run: Any, tmp_path: Path) -> None:
    kept: list[Any] = []

    async def main() -> None:
        kept.append(aio.open(tmp_path / "s", partitions=2))
        db = await kept[0].__aenter__()
        await db.map("a").set(b"k", b"v")
        kept.append(db)

    async def use() -> None:
        with pytest.raises(ClosedError):
            await kept[1].map("a").count()

    run(main)
    expect_sound(tmp_path / "s")
    run(use)


@under_asyncio
async def test_a_callback_of_a_loop_is_not_a_task() -> None:
    found: list[str] = []
    ready = asyncio.Event()

    def call() -> None:
        with pytest.raises(UsageError, match="no task of one is calling"):
            running_loop()
        found.append("refused")
        ready.set()

    asyncio.get_running_loop().call_soon(call)
    await ready.wait()
    assert found == ["refused"]


def test_a_loop_that_runs_as_a_guest_of_another_is_the_one_of_its_tasks(tmp_path: Path) -> None:
    async def of_trio() -> str:
        async with aio.open(tmp_path / "trio", partitions=1) as db:
            await db.map("a").set(b"k", b"v")
            return type(loop_session_of(db).loop).__name__

    async def host() -> list[str]:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        trio.lowlevel.start_guest_run(
            of_trio,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=done.set_result,
        )
        async with aio.open(tmp_path / "asyncio", partitions=1) as db:
            await db.map("a").set(b"k", b"v")
            return [type(loop_session_of(db).loop).__name__, (await done).unwrap()]

    assert asyncio.run(host()) == ["AsyncioLoop", "TrioLoop"]


@under_asyncio
async def test_in_a_child_of_a_fork_where_no_loop_runs_a_call_still_says_what_is_wrong() -> None:
    """asyncio forgets the running loop in the child; it was a RuntimeError about that."""
    async with opened() as db:
        numbers, session = await numbers_of(db), loop_session_of(db)
        loop = asyncio.get_running_loop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session.workers, "closed", True)
            patch.setattr(session.workers, "refusal", session._beneath.forked_error)
            asyncio._set_running_loop(None)
            try:
                for call in (partial(numbers.get, "a"), numbers.count, db.sync, db.statistics):
                    running: Any = call()
                    with pytest.raises(ForkedError):
                        running.send(None)
            finally:
                asyncio._set_running_loop(loop)
        await numbers.set("a", 1)


# ------------------------------------------------------------------ left behind


@pytest.mark.loops
async def test_an_iteration_that_a_loop_abandons_lets_go_of_its_snapshot() -> None:
    async with opened() as db:
        numbers = await numbers_of(db)
        await numbers.update_many({f"{number:03}": number for number in range(100)})

        async def first(rows: Any) -> Any:
            async for row in rows:
                return row

        async def rows_of() -> Any:
            async for row in numbers.items():
                yield row

        assert await first(numbers.items()) == ("000", 0)
        async with aclosing(numbers.items()) as rows:
            assert await first(rows) == ("000", 0)
        async with aclosing(rows_of()) as rows:
            assert await first(rows) == ("000", 0)
        gc.collect()
        assert (await db.statistics()).snapshots == 0


@pytest.mark.loops
async def test_a_transaction_that_may_not_wait_begins_if_there_is_a_place() -> None:
    """It was refused, whoever was there."""
    async with opened() as db:
        numbers = await numbers_of(db)
        async with db.transaction("pessimistic", lock_timeout=0) as tx:
            await tx[numbers].set("a", 1)
            with pytest.raises(LockTimeoutError):
                async with db.transaction("pessimistic", lock_timeout=0) as other:
                    await other[numbers].set("a", 2)
        assert await numbers.get("a") == 1


@under_asyncio
async def test_a_sleep_that_is_over_is_not_given_up() -> None:
    loop, asked = running_loop(), 0

    def give_up() -> bool:
        nonlocal asked
        asked += 1
        return True

    async def asleep() -> None:
        await loop.wait(sleepers[0], give_up)

    sleepers = [loop.sleeper()]
    task = asyncio.create_task(asleep())
    await asyncio.sleep(0)
    loop.wake(sleepers[0])
    loop.wake(sleepers[0])
    task.cancel()
    await task  # it ends before its cancellation comes back
    assert asked == 0


@under_asyncio
async def test_a_sleep_that_is_given_up_is_cancelled_once_and_says_why() -> None:
    loop, told = running_loop(), list[object]()

    async def asleep() -> str:
        try:
            await loop.wait(loop.sleeper(), lambda: True)
        except asyncio.CancelledError as error:
            told.append(error.args)
        await asyncio.sleep(0)
        return "went on"

    task = asyncio.create_task(asleep())
    await asyncio.sleep(0)
    task.cancel("enough")
    assert await task == "went on"
    assert told == [("enough",)]


@under_asyncio
async def test_a_check_sees_a_cancellation_that_has_not_come_yet() -> None:
    loop = running_loop()
    await loop.checkpoint_if_cancelled()
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop.checkpoint_if_cancelled()
    task.uncancel()


@pytest.mark.parametrize("run", [trio.run, lambda main: asyncio.run(main())])
def test_a_loop_that_has_ended_takes_no_calls(run: Any) -> None:
    async def ending() -> Any:
        return running_loop()

    called: list[int] = []
    ended = run(ending)
    assert ended.soon(called.append, 1) is False
    assert ended.has_ended()
    assert called == []


@pytest.mark.loops
async def test_a_loop_that_runs_has_not_ended() -> None:
    assert not running_loop().has_ended()


@pytest.mark.loops
async def test_no_more_tasks_have_a_turn_than_may() -> None:
    turns, having, most = Turns(running_loop(), 2), 0, 0

    async def twice() -> None:
        nonlocal having, most
        for _ in range(2):
            await turns.wait()
            having += 1
            most = max(most, having)
            await tasks.checkpoint()
            having -= 1
            turns.leave()

    async with tasks.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(twice)
    assert (having, most) == (0, 2)
    assert [turns.take_nowait() for _ in range(3)] == [True, True, False]


# ------------------------------------------------------------------ threads


@under_asyncio
async def test_a_thread_that_ends_while_it_is_given_work_does_it_first() -> None:
    loop, threads = running_loop(), Threads(idle_seconds=0.0)
    done: list[int] = []
    for number in range(50):
        sleeper = loop.sleeper()

        def job(number: int = number, sleeper: Any = sleeper) -> None:
            done.append(number)
            loop.soon(loop.wake, sleeper)

        threads.start(job)
        await loop.wait(sleeper, never)
    assert done == list(range(50))
