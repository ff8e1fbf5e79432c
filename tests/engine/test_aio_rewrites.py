"""Changes of one key by the tasks of a loop: none meets a conflict, one frame has many."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from support import tasks
from support.trio_stores import contents, gated, opened, parts_of
from tidelog.codecs import I64, Codec, Str
from tidelog.engine.aio.database import loop_session_of
from tidelog.errors import UsageError
from tidelog.testing import FaultyDisk

# Slow are nearly all: threads that start and hand over.
pytestmark = [pytest.mark.slow, pytest.mark.loops]


async def test_64_tasks_count_one_key_and_none_fails() -> None:
    # A fifth of them met ConflictError 16 times in a row.
    disk = FaultyDisk(1)

    async with opened(disk) as db:
        numbers = db.map("numbers", key=Str, value=I64)
        told: list[int] = []

        async def count() -> None:
            for _ in range(10):
                told.append(await numbers.incr("n"))

        syncs = parts_of(db).committer.end_of_log.times.count
        async with tasks.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(count)
        assert sorted(told) == list(range(1, 641))
        assert parts_of(db).committer.end_of_log.times.count - syncs < 100
    assert contents(disk, "numbers") == {"n": 640}


async def test_all_changes_that_are_queued_go_into_one_frame() -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=Str, value=I64)
        await numbers.set("n", 1)
        groups = parts_of(db).committer.carrier.groups
        found: dict[str, Any] = {}

        async def note(name: str, work: Any) -> None:
            found[name] = await work

        with gated(loop_session_of(db).writer(), "commit_group") as gate:
            async with tasks.open_nursery() as nursery:
                nursery.start_soon(numbers.set, "first", 0)
                await gate.entered()
                nursery.start_soon(note, "swap", numbers.compare_and_set("n", 1, 10))
                await tasks.wait_all_tasks_blocked()
                nursery.start_soon(note, "incr", numbers.incr("n"))
                nursery.start_soon(note, "made", numbers.setdefault("m", 5))
                await tasks.wait_all_tasks_blocked()
                nursery.start_soon(note, "pop", numbers.pop("n"))
                await tasks.wait_all_tasks_blocked()
                gate.open()
        assert found == {"swap": True, "incr": 11, "made": 5, "pop": 11}
        assert parts_of(db).committer.carrier.groups == groups + 2
        assert [pair async for pair in numbers.items()] == [("first", 0), ("m", 5)]


async def test_a_locked_key_is_waited_for_and_others_are_not() -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=Str, value=I64)
        await numbers.set("n", 1)
        found: dict[str, Any] = {}

        async def note(name: str, work: Any) -> None:
            found[name] = await work

        async with (
            tasks.open_nursery() as nursery,
            db.transaction("pessimistic", plain_writes=True) as tx,
        ):
            await tx[numbers].set("n", 10)
            nursery.start_soon(note, "incr", numbers.incr("n"))
            with gated(parts_of(db).locks, "_wait") as gate:
                gate.open()
                await gate.entered()
            assert await numbers.incr("free") == 1
        assert found == {"incr": 11}
        assert await numbers.popitem() == ("free", 1)


async def test_a_codec_of_ones_own_runs_without_the_commit_mutex() -> None:
    async with opened() as db:
        mutex = parts_of(db).committer.mutex

        def encode(value: int) -> bytes:
            with mutex:
                return b"%d" % value

        own = db.map("own", key=Str, value=Codec(name="own", encode=encode, decode=int))
        async with tasks.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(own.incr, "n")
        assert await own.get("n") == 20


async def test_what_a_decision_raises_is_for_its_own_task() -> None:
    async with opened() as db:
        texts = db.map("texts", key=Str, value=Str)
        await texts.set("n", "five")
        with pytest.raises(UsageError, match="not an integer"):
            await texts.incr("n")
        with pytest.raises(KeyError):
            await texts.delete("absent")
        with pytest.raises(KeyError, match="empty"):
            await db.map("nothing").popitem()


async def popped(jobs: Any) -> int | None:
    try:
        found: int = (await jobs.popitem())[0]
    except KeyError:
        return None
    return found


async def test_tasks_and_threads_share_a_queue_and_nobody_gets_an_item_twice() -> None:
    disk = FaultyDisk(1)

    async with opened(disk, checkpoint_bytes=8_000) as db:
        jobs = db.map("jobs", key=I64, value=I64)
        await jobs.update_many([(number, -number) for number in range(150)])
        beneath = db.database.map("jobs")
        taken: list[int] = []

        async def consume() -> None:
            while (found := await popped(jobs)) is not None:
                taken.append(found)

        def consume_in_thread() -> None:
            while beneath:
                with suppress(KeyError):  # the others may be quicker
                    taken.append(beneath.popitem()[0])

        async with tasks.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(consume)
            for _ in range(2):
                nursery.start_soon(tasks.in_thread, consume_in_thread)
            nursery.start_soon(db.checkpoint)
        assert sorted(taken) == list(range(150))
    assert contents(disk, "jobs") == {}
