"""Cancellation: a call that raises it did nothing, one that returns did all.

Answers, store and log are compared: what a program was told, what it reads afterwards, and what is
found after a power cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from support import tasks
from support.trio_stores import contents, gated, opened, parts_of
from tidelog import aio
from tidelog.codecs import I64, Str
from tidelog.engine.aio.database import loop_session_of
from tidelog.errors import ConflictError
from tidelog.testing import FaultyDisk

pytestmark = pytest.mark.loops

Told = dict[str, int]
Scenario = Callable[[aio.Database, "aio.Map[Any, Any]", Told], Awaitable[None]]


async def put(db: aio.Database, numbers: aio.Map[Any, Any], told: Told) -> None:
    for number in range(3):
        await numbers.set(f"put {number}", number)
        told[f"put {number}"] = number


async def change(db: aio.Database, numbers: aio.Map[Any, Any], told: Told) -> None:
    await numbers.update_many({"many 1": 1, "many 2": 2})
    told.update({"many 1": 1, "many 2": 2})
    told["count"] = await numbers.incr("count")
    if await numbers.compare_and_set("count", 1, 5):
        told["count"] = 5
    await numbers.delete("many 1")
    del told["many 1"]


async def load(db: aio.Database, numbers: aio.Map[Any, Any], told: Told) -> None:
    # What a load commits before it is cancelled is told by its source.
    def pairs() -> Any:
        for number in range(6):
            if number and number % 2 == 0:
                told.update({f"load {n}": n for n in range(number)})
            yield f"load {number}", number

    await numbers.load(pairs(), batch=2)
    told.update({f"load {n}": n for n in range(6)})


async def transact(mode: Any, db: aio.Database, numbers: aio.Map[Any, Any], told: Told) -> None:
    async with db.transaction(mode) as tx:
        await tx[numbers].set("in block", await tx[numbers].get("absent", 1))
        assert await tx[numbers].count() == 1
        await tx.commit()
        told["in block"] = 1
    tx = db.transaction(mode)
    async with tx:
        await tx[numbers].incr("at its end")
        async for _ in tx[numbers].items():
            pass
    told["at its end"] = 1


async def retry(db: aio.Database, numbers: aio.Map[Any, Any], told: Told) -> None:
    meddled = False

    async def work(tx: aio.Transaction) -> int:
        nonlocal meddled
        value: int = await tx[numbers].incr("retried")
        if not meddled:
            await numbers.set("retried", 10)
            told["retried"] = 10
            meddled = True
        return value

    told["retried"] = await db.run(work, plain_writes=True)


SCENARIOS: dict[str, Scenario] = {
    "put": put,
    "change": change,
    "load": load,
    "optimistic": partial(transact, "optimistic"),
    "pessimistic": partial(transact, "pessimistic"),
    "retry": retry,
}


@pytest.mark.parametrize("when", ["before", "while", "after"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_cancelled_at_any_step_answer_store_and_log_agree(name: str, when: str) -> None:
    cancelled = True
    step = 0
    while cancelled:
        step += 1
        assert step < 200
        disk = FaultyDisk()
        told: Told = {}
        async with opened(disk) as db:
            numbers = db.map("numbers", key=Str, value=I64)
            await numbers.ensure()
            with tasks.scope() as scope, tasks.cancelled_at(scope, step, when) as watched:
                await watched(SCENARIOS[name](db, numbers, told))
            cancelled = scope.cancelled_caught
            assert {key: value async for key, value in numbers.items()} == told
            assert contents(disk.copy(), "numbers") == told
            assert loop_session_of(db).writer().locks.table.idle
            await numbers.set("afterwards", 1)
    assert step >= 3


async def test_a_commit_that_is_on_its_way_is_finished_and_the_task_cancelled_afterwards() -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=Str, value=I64)
        await numbers.ensure()
        told: list[str] = []

        async def work() -> None:
            await numbers.set("on its way", 1)
            told.append("returned")
            await tasks.checkpoint()
            told.append("never")

        with gated(parts_of(db).writer, "sync") as gate:
            async with tasks.open_nursery() as nursery:
                nursery.start_soon(work)
                await gate.entered()
                nursery.cancel()
                with tasks.shielded():
                    await tasks.checkpoint()
                    assert told == []
                gate.open()
        assert told == ["returned"]
        assert await numbers.get("on its way") == 1


async def test_a_commit_that_waits_for_its_group_is_taken_back() -> None:
    disk = FaultyDisk()
    async with opened(disk) as db:
        numbers = db.map("numbers", key=Str, value=I64)
        await numbers.ensure()

        async def in_transaction() -> None:
            async with db.transaction() as tx:
                await tx[numbers].set("queued 2", 1)

        with gated(parts_of(db).writer, "sync") as gate:
            async with tasks.open_nursery() as outer:
                outer.start_soon(numbers.set, "on its way", 1)
                await gate.entered()
                async with tasks.open_nursery() as nursery:
                    nursery.start_soon(numbers.set, "queued 1", 1)
                    nursery.start_soon(numbers.incr, "queued 3")
                    nursery.start_soon(in_transaction)
                    for _ in range(5):
                        await tasks.checkpoint()
                    nursery.cancel()
                assert nursery.cancelled_caught
                gate.open()
        assert contents(disk.copy(), "numbers") == {"on its way": 1}


async def test_nothing_is_committed_in_a_scope_that_is_cancelled_already() -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=Str, value=I64)
        await numbers.ensure()
        position = parts_of(db).writer.position
        calls: list[Callable[[], Awaitable[object]]] = [
            partial(numbers.set, "a", 1),
            partial(numbers.set, "a", 2**62),
            partial(numbers.discard, "a"),
            partial(numbers.incr, "a"),
            partial(numbers.update_many, {"a": 1}),
            partial(numbers.get, "a"),
            partial(numbers.get_many, ["a"]),
            numbers.count,
            db.checkpoint,
        ]
        for call in calls:
            with tasks.scope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught
        assert parts_of(db).writer.position == position


async def test_a_scan_that_is_cancelled_loses_no_block() -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=Str, value=I64)
        await numbers.update_many({f"{n:03}": n for n in range(100)})
        items = numbers.items()
        found = []
        with gated(loop_session_of(db).writer(), "snapshot") as gate:
            async with tasks.open_nursery() as nursery:

                async def first() -> None:
                    found.append(await anext(items))

                nursery.start_soon(first)
                await gate.entered()
                nursery.cancel()
                gate.open()
        found += [pair async for pair in items]
        assert found == [(f"{n:03}", n) for n in range(100)]


# ------------------------------------------------------------------ many tasks


async def many_writers(random: Random, count: int, stop_after: int) -> None:
    """Cancel tasks that put, transfer and increment, once so many of them were told."""
    disk = FaultyDisk()
    told: Told = {}
    done = 0
    async with opened(disk) as db:
        numbers = db.map("numbers", key=Str, value=I64)
        await numbers.update_many({"left": 1000, "right": 0})
        nursery: tasks.Nursery

        def note() -> None:
            nonlocal done
            done += 1
            if done >= stop_after:
                nursery.cancel()

        async def putting(name: str) -> None:
            for number in range(1000):
                await numbers.set(f"{name} {number}", number)
                told[f"{name} {number}"] = number
                note()

        async def moving(mode: Any) -> None:
            async def move(tx: aio.Transaction) -> None:
                amount = random.randrange(5)
                await tx[numbers].incr("left", -amount)
                await tx[numbers].incr("right", amount)

            while True:
                await db.run(move, mode=mode, attempts=1000)
                note()

        async with tasks.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(putting, f"task {number}")
            nursery.start_soon(moving, "optimistic")
            nursery.start_soon(moving, "pessimistic")
        found = {key: value async for key, value in numbers.items()}
        assert contents(disk.copy(), "numbers") == found
        assert found.pop("left") + found.pop("right") == 1000
        assert found == told
        assert loop_session_of(db).writer().locks.table.idle


@pytest.mark.slow
@settings(max_examples=15)
@given(st.random_module(), st.integers(0, 1 << 32), st.integers(1, 12), st.integers(1, 60))
@pytest.mark.parametrize("run", tasks.RUNS.values(), ids=tasks.RUNS)
def test_many_writers_may_be_cancelled_at_any_moment(
    run: Any, module: object, seed: int, count: int, stop_after: int
) -> None:
    # A seed, for how often the tasks draw depends on when the thread of the log gets to run.
    run(many_writers, Random(seed), count, stop_after)


async def test_an_error_of_one_writer_cancels_the_others_and_loses_nothing() -> None:
    disk = FaultyDisk()
    told: Told = {}
    async with opened(disk) as db:
        numbers = db.map("numbers", key=Str, value=I64)

        async def putting(name: str) -> None:
            for number in range(100):
                await numbers.set(f"{name} {number}", number)
                told[f"{name} {number}"] = number
                if name == "task 3" and number == 5:
                    async with db.transaction(plain_writes=True) as tx:
                        await tx[numbers].incr("conflict")
                        await numbers.set("conflict", 7)
                        told["conflict"] = 7

        async def all_of_them() -> None:
            async with tasks.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(putting, f"task {number}")

        with pytest.raises(ExceptionGroup) as caught:
            await all_of_them()
        assert caught.group_contains(ConflictError)
        assert contents(disk.copy(), "numbers") == told
