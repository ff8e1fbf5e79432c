"""The store for tasks: what its calls return, where they run, and how it ends."""

from __future__ import annotations

import threading
from _thread import get_ident
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support import tasks
from support.loads import make_load
from support.real_stores import expect_sound
from support.trio_stores import contents, gated, opened, parts_of, statistics
from tidelog import aio
from tidelog.codecs import I64, Msgpack, Str
from tidelog.engine.aio.database import loop_session_of
from tidelog.engine.data.driving import taken
from tidelog.errors import (
    ClosedError,
    CodecError,
    CommitUnknownError,
    DiskError,
    DiskFullError,
    KeyTooLargeError,
    NotFoundError,
    ReadOnlyError,
    TransactionTooLargeError,
    UsageError,
)
from tidelog.testing import FaultyDisk

pytestmark = pytest.mark.loops


class Traced:
    """A value codec that notes which threads decode."""

    name = "traced"
    version = 1

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        self.threads.add(get_ident())
        return data.decode()


# ------------------------------------------------------------------ one key


@pytest.mark.parametrize("reads", ["inline", "thread"])
async def test_a_call_that_nobody_awaits_has_the_name_that_its_user_knows(reads: Any) -> None:
    def names(items: aio.Map[str, int]) -> set[str]:
        called: dict[str, Any] = {
            "get": items.get("a"),
            "set": items.set("a", 1),
            "incr": items.incr("a"),
        }
        for call in called.values():
            call.close()
        return {name for name, call in called.items() if call.__qualname__ != f"Map.{name}"}

    async with opened(reads=reads) as db:
        items = db.map("items", key=Str, value=I64)
        assert names(items) == set()
        await items.ensure()
        assert names(items) == set()
        async with db.transaction() as one, db.snapshot() as before:
            for inside in (one[items], before[items]):
                await inside.get("a")
                assert names(inside) == set()
        async with db.transaction(mode="pessimistic") as other:
            await other[items].get("a")
            assert names(other[items]) == set()


async def test_what_was_set_is_durable_when_the_call_returns() -> None:
    disk = FaultyDisk()
    async with opened(disk) as db:
        users = db.map("users", key=Str, value=Msgpack)
        await users.set("ada", {"credit": 1})
        await users.set("bob", {"credit": 2})
        await users.discard("bob")
        assert contents(disk.copy(), "users") == {"ada": {"credit": 1}}


async def test_single_keys_behave_as_those_of_a_synchronous_map() -> None:
    async with opened() as db:
        stock = db.map("stock", key=Str, value=Msgpack)
        assert await stock.get("apples") is None
        assert await stock.get("apples", 0) == 0
        assert await stock.setdefault("apples", 3) == 3
        assert await stock.setdefault("apples", 4) == 3
        assert await stock.incr("apples", 2) == 5
        assert await stock.compare_and_set("apples", 4, 1) is False
        assert await stock.compare_and_set("apples", 5, 1) is True
        assert await stock.contains("apples")
        assert stock.get_nowait("apples") == 1
        assert await stock.pop("apples") == 1
        assert await stock.pop("apples", None) is None
        with pytest.raises(KeyError):
            await stock.pop("apples")
        with pytest.raises(KeyError):
            await stock.delete("apples")
        await stock.set("pears", 1)
        assert await stock.popitem() == ("pears", 1)
        with pytest.raises(KeyError):
            await stock.popitem()
        await stock.set("text", "x")
        with pytest.raises(UsageError):
            await stock.incr("text")


async def test_values_of_every_length_and_deletes_go_into_one_log() -> None:
    disk = FaultyDisk()
    async with opened(disk) as db:
        data = db.map("data")
        expected = {}
        for length in (0, 1, 1023, 1024, 1025, 70_000):
            key, value = b"%d" % length, b"x" * length
            await data.set(key, value)
            expected[key] = value
        await data.delete(b"1024")
        del expected[b"1024"]
        assert contents(disk.copy(), "data") == expected


async def test_a_key_is_put_where_it_is_looked_for() -> None:
    # With a power of two a hash that is taken for a signed number would do no harm.
    async with opened(partitions=5) as db:
        data = db.map("data")
        for number in range(40):
            await data.set(b"%d" % number, b"1")
        assert [await data.get(b"%d" % number) for number in range(40)] == [b"1"] * 40


async def test_what_is_too_large_is_refused_before_anything_is_queued() -> None:
    async with opened(transaction_bytes_max=2000) as db:
        data = db.map("data")
        await data.ensure()
        with pytest.raises(KeyTooLargeError):
            await data.set(b"x" * 481, b"")
        with pytest.raises(TransactionTooLargeError):
            await data.set(b"x", b"y" * 3000)
        async with tasks.open_nursery() as nursery:  # together they are larger, and may be
            for number in range(30):
                nursery.start_soon(data.set, b"%d" % number, b"z" * 900)
        assert await data.count() == 30


async def test_a_single_put_is_no_larger_than_a_transaction_may_be() -> None:
    async with opened(transaction_bytes_max=1200) as db:
        data = db.map("data")
        await data.ensure()
        await data.set(b"x" * 480, b"y" * 600)
        with pytest.raises(TransactionTooLargeError):
            await data.set(b"x" * 480, b"y" * 1000)
        assert await data.get(b"x" * 480) == b"y" * 600


@pytest.mark.parametrize("durability", ["interval", "none"])
async def test_relaxed_stores_commit_without_a_sync(durability: str) -> None:
    async with opened(durability=durability) as db:
        data = db.map("data")
        await data.ensure()
        before = (await statistics(db)).syncs
        await data.set(b"a", b"1")
        assert (await statistics(db)).syncs == before
        assert await db.sync() == parts_of(db).writer.position


# ------------------------------------------------------------------ maps


async def test_a_map_is_made_when_it_is_first_used() -> None:
    async with opened() as db:
        users = db.map("users", key=Str)
        assert db.maps() == []
        assert "not used yet" in repr(users)
        with pytest.raises(tasks.would_block()):
            users.get_nowait("a")
        await users.ensure()
        assert db.maps() == ["users"]
        assert "str" in repr(users)
        assert users.get_nowait("a") is None
        other = db.map("users", key=I64)
        with pytest.raises(CodecError):
            await other.ensure()
        with pytest.raises(UsageError):
            db.map("")


async def test_maps_are_renamed_and_dropped() -> None:
    async with opened() as db:
        users = db.map("users")
        await users.set(b"a", b"1")
        await db.rename("users", "people")
        assert await users.get(b"a") == b"1"
        await db.drop("people")
        assert db.maps() == []
        for refused in (users.set(b"a", b"2"), users.get(b"z"), users.count()):
            with pytest.raises(NotFoundError):
                await refused
        with pytest.raises(NotFoundError):
            await db.drop("people")


# ------------------------------------------------------------------ many keys


async def test_many_keys_are_set_all_at_once_and_read_back() -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.ensure()
        for count in (0, 10, 200):
            groups = (await statistics(db)).groups
            await numbers.update_many({n: n * n for n in range(count)})
            assert (await statistics(db)).groups - groups == (count > 0)
            found = await numbers.get_many(range(count + 1))
            assert found == {n: n * n for n in range(max(count, 10 if count else 0))}
        await numbers.clear()
        assert await numbers.count() == 0


async def test_a_load_takes_any_source_and_commits_in_batches() -> None:
    async def later() -> AsyncIterator[tuple[int, int]]:
        for number in range(25):
            await tasks.checkpoint()
            yield number, 2

    async with opened() as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.ensure()
        groups = (await statistics(db)).groups
        assert await numbers.load(((n, 1) for n in range(30)), batch=10) == 30
        assert await numbers.load(later(), batch=10) == 25
        assert await numbers.load({5: 3}) == 1
        assert (await statistics(db)).groups - groups == 3 + 3 + 1
        assert [value async for value in numbers.values()] == [2] * 5 + [3] + [2] * 19 + [1] * 5
        with pytest.raises(UsageError):
            await numbers.load({}, batch=0)
    numbered = later()
    assert [len(await taken(numbered, 10)) for _ in range(4)] == [10, 10, 5, 0]


# ------------------------------------------------------------------ iteration


async def filled(db: aio.Database, count: int = 3000) -> aio.Map[Any, Any]:
    numbers = db.map("numbers", key=Str, value=I64)
    await numbers.update_many({f"{n:04}": n for n in range(count)})
    return numbers


async def test_iterations_give_what_synchronous_ones_do() -> None:
    async with opened() as db:
        numbers = await filled(db)
        twin = db.database.map("numbers")
        assert [pair async for pair in numbers.items()] == list(twin.items())
        assert [pair async for pair in numbers.items("00")] == list(twin.items("00"))
        assert [key async for key in numbers.keys("1")] == list(twin.keys("1"))
        assert [value async for value in numbers.values()] == list(twin.values())
        assert [key async for key in numbers] == list(twin)
        for bounds in ({"reverse": True}, {"limit": 100}, {"limit": 0}, {"limit": 16}):
            wanted = twin.range("0500", "1500", **bounds)
            assert [pair async for pair in numbers.range("0500", "1500", **bounds)] == list(wanted)
        with pytest.raises(UsageError):
            await anext(numbers.range(limit=-1))


async def test_an_iteration_sees_the_store_as_it_was_at_its_first_step() -> None:
    async with opened() as db:
        numbers = await filled(db, 100)
        found = []
        async for key in numbers.keys():
            found.append(key)
            await numbers.discard(key)
            await numbers.set("9" + key, 1)
        assert found == [f"{n:04}" for n in range(100)]


async def test_an_iteration_that_ends_early_lets_go_of_its_snapshot() -> None:
    async def snapshots() -> int:
        return (await statistics(db)).snapshots

    async with opened() as db:
        numbers = await filled(db)
        async for _ in numbers.items():
            assert await snapshots() == 1
            break
        assert await snapshots() == 0

        items = numbers.items()
        await anext(items)
        assert await snapshots() == 1
        await items.aclose()
        await items.aclose()
        assert await snapshots() == 0
        with pytest.raises(StopAsyncIteration):
            await anext(items)
        unused = numbers.items()
        await unused.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(unused)

        async def failing() -> None:
            async with numbers.items() as rows:
                async for _ in rows:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert await snapshots() == 0

        rest = [key async for key in numbers]
        assert len(rest) == 3000
        assert await snapshots() == 0


async def test_a_thread_that_is_not_through_holds_nothing_of_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as db:
        numbers = await filled(db)
        session = loop_session_of(db)
        soon, through = session.loop.soon, threading.Event()

        def held(*call: Any) -> bool:
            told = soon(*call)
            assert through.wait(60)
            return told

        with monkeypatch.context() as patch:
            patch.setattr(session.loop, "soon", held)
            async for _ in numbers.items():
                break
            assert (await statistics(db)).snapshots == 0
            through.set()


# ------------------------------------------------------------------ where things run


async def test_a_get_runs_in_the_loop_and_a_scan_does_not() -> None:
    codec = Traced()
    async with opened() as db:
        words = db.map("words", value=codec)
        await words.set(b"a", "apple")
        assert await words.get(b"a") == "apple"
        assert codec.threads == {get_ident()}
        codec.threads.clear()
        assert [word async for word in words.values()] == ["apple"]
        assert get_ident() not in codec.threads


async def test_reads_of_a_cold_store_run_in_threads() -> None:
    codec = Traced()
    async with opened(reads="thread") as db:
        words = db.map("words", value=codec)
        await words.set(b"a", "apple")
        assert await words.get(b"a") == "apple"
        assert await words.get_many([b"a"]) == {b"a": "apple"}
        async with db.snapshot() as snapshot, db.transaction() as tx:
            assert await snapshot[words].get(b"a") == "apple"
            assert await tx[words].get(b"a") == "apple"
        assert get_ident() not in codec.threads
    with pytest.raises(UsageError):
        async with opened(reads="quickly"):
            raise AssertionError


async def test_commits_run_in_the_log_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.ensure()
        names = set()
        writer = parts_of(db).writer
        sync = writer.sync

        def noted() -> Any:
            names.add(threading.current_thread().name)
            return sync()

        monkeypatch.setattr(writer, "sync", noted)
        await numbers.set(1, 1)
        await numbers.update_many({n: n for n in range(500)})
        async with db.transaction() as tx:
            await tx[numbers].incr(1)
        assert names == {"tidelog-log"}


async def test_while_a_sync_is_waited_for_the_loop_runs_and_the_next_group_gathers() -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.ensure()
        before = await statistics(db)
        with gated(parts_of(db).writer, "sync") as gate:
            async with tasks.open_nursery() as nursery:
                nursery.start_soon(numbers.set, -1, 0)
                await gate.entered()
                for number in range(50):
                    nursery.start_soon(numbers.set, number, number)
                nursery.start_soon(numbers.update_many, {100: 1, 101: 1})
                for _ in range(3):
                    await tasks.checkpoint()
                assert await numbers.get(-1) is None  # not durable, so nobody sees it
                gate.open()
        after = await statistics(db)
        assert after.groups - before.groups == 2
        assert after.transactions - before.transactions == 52


async def test_a_long_row_of_reads_lets_other_tasks_run() -> None:
    ran = 0

    async def other() -> None:
        nonlocal ran
        while True:
            await tasks.checkpoint()
            ran += 1

    async with opened() as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.set(1, 1)
        async with tasks.open_nursery() as nursery:
            nursery.start_soon(other)
            for _ in range(640):
                await numbers.get(1)
            nursery.cancel()
        assert ran >= 5


# ------------------------------------------------------------------ when the disk fails


async def test_after_a_failed_sync_every_task_learns_its_own_id() -> None:
    disk = FaultyDisk()
    unknown: dict[bytes, int] = {}
    async with opened(disk) as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.set(-1, 0)

        async def put(number: int) -> None:
            with pytest.raises(CommitUnknownError) as caught:
                await numbers.set(number, number)
            unknown[caught.value.tx_id] = number

        with gated(parts_of(db).writer, "sync") as gate:
            async with tasks.open_nursery() as nursery:
                nursery.start_soon(numbers.set, -2, 0)
                await gate.entered()  # what is asked for from here on goes into one group
                for number in range(20):
                    nursery.start_soon(put, number)
                await tasks.wait_all_tasks_blocked()
                disk.fail_at(disk.operations + 2, kind="sync", for_ever=True)
                gate.open()
        assert len(unknown) == 20
        with pytest.raises(ReadOnlyError):
            await numbers.set(1, 1)
        assert await numbers.get(-1) == 0
        assert await numbers.count() == 2
        disk.heal()
        with pytest.raises(DiskError):
            await db.aclose()
    async with opened(disk) as db:
        numbers = db.map("numbers")
        for tx_id, number in unknown.items():
            committed = await db.outcome(tx_id) == "committed"
            assert committed == await numbers.contains(number)


async def test_on_a_full_disk_every_task_gets_an_error_and_later_ones_succeed() -> None:
    disk = FaultyDisk()
    async with opened(disk) as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.set(-1, 0)
        failed = []

        async def put(number: int) -> None:
            try:
                await numbers.set(number, number)
            except DiskFullError:
                failed.append(number)

        disk.fail_at(disk.operations + 1, "ENOSPC", kind="write", for_ever=True)
        async with tasks.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(put, number)
        assert len(failed) == 20
        assert await numbers.count() == 1
        disk.heal()
        await put(7)
        assert contents(disk.copy(), "numbers") == {-1: 0, 7: 7}


async def test_a_bug_in_the_commit_path_reaches_the_tasks_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.ensure()
        with monkeypatch.context() as patch:
            patch.setattr(loop_session_of(db).writer(), "commit_group", lambda _: 1 / 0)
            for call in (partial(numbers.set, 1, 1), partial(numbers.update_many, {1: 1})):
                with pytest.raises(ZeroDivisionError):
                    await call()
        await numbers.set(1, 2)
        assert await numbers.get(1) == 2


# ------------------------------------------------------------------ the end


async def test_closing_waits_for_what_is_being_committed() -> None:
    disk = FaultyDisk()
    done: list[int] = []
    refused: list[int] = []
    async with opened(disk) as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.ensure()

        async def put(number: int) -> None:
            try:
                await numbers.set(number, number)
                done.append(number)
            except ClosedError:
                refused.append(number)

        with gated(parts_of(db).writer, "sync") as gate:
            async with tasks.open_nursery() as nursery:
                nursery.start_soon(put, -1)
                await gate.entered()
                for number in range(20):
                    nursery.start_soon(put, number)
                await tasks.checkpoint()
                nursery.start_soon(db.aclose)
                nursery.start_soon(db.aclose)
                await tasks.checkpoint()
                await tasks.checkpoint()
                await put(100)
                gate.open()
        assert refused == [100]
        assert sorted(done) == [-1, *range(20)]
    assert contents(disk, "numbers") == {number: number for number in done}


async def test_after_closing_every_call_says_so() -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.set(1, 1)
        items = numbers.items()
        await anext(items)
        tx = db.transaction()
        await db.aclose()
        await db.aclose()
    calls: list[Any] = [
        partial(numbers.get, 1), partial(numbers.set, 1, 1), partial(numbers.discard, 1),
        partial(numbers.incr, 1), partial(numbers.update_many, {2: 2}), numbers.count,
        partial(anext, numbers.items()), tx.__aenter__, tx.commit, db.checkpoint, db.statistics,
        db.sync, loop_session_of(db).take_snapshot,
        partial(db.run, numbers.get),  # type: ignore[arg-type]
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ClosedError):
            await call()
    for plain in (db.maps, db.transaction, db.snapshot, partial(numbers.get_nowait, 1)):
        with pytest.raises(ClosedError):
            plain()
    await items.aclose()


async def test_another_thread_or_loop_is_refused() -> None:
    async with opened() as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.ensure()

        async def elsewhere() -> None:
            for call in (
                partial(numbers.set, 1, 1),
                partial(numbers.set, 1, 2**40),
                partial(numbers.get, 1),
                partial(numbers.count),
                partial(numbers.update_many, {1: 1}),
                db.checkpoint,
            ):
                with pytest.raises(UsageError, match="in the loop that opened it"):
                    await call()

        await tasks.in_thread(tasks.run_of_this_kind(), elsewhere)
        with pytest.raises(UsageError, match="in the loop that opened it"):
            await tasks.in_thread(partial(db.map, "x"))
        # The store beneath is for everybody.
        await tasks.in_thread(db.database.map("numbers").__setitem__, 1, 1)
        assert await numbers.get(1) == 1


async def test_in_a_child_of_a_fork_no_commit_waits_for_the_thread_of_the_parent() -> None:
    async with opened() as db:
        data = db.map("data")
        await data.set(b"k", b"v")
        log: Any = loop_session_of(db).log
        log.forked()
        for call in (partial(data.set, b"k", b"w"), partial(data.update_many, {b"k": b"w"})):
            with pytest.raises(ClosedError):
                await call()
        log._stopping = False
        assert await data.get(b"k") == b"v"


async def test_an_error_in_the_block_closes_the_store() -> None:
    disk = FaultyDisk()

    async def failing() -> None:
        async with opened(disk) as db:
            await db.map("numbers", key=I64, value=I64).set(1, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert contents(disk, "numbers") == {1: 1}


async def test_opening_and_closing_go_on_when_they_are_cancelled(tmp_path: Path) -> None:
    with tasks.scope() as scope:
        async with aio.open(tmp_path / "s", partitions=1) as db:
            await db.map("a").set(b"k", b"v")
            scope.cancel()
    assert scope.cancelled_caught is False
    expect_sound(tmp_path / "s")
    async with aio.open(tmp_path / "s") as db:
        assert await db.map("a").get(b"k") == b"v"


async def test_a_load_is_attached(tmp_path: Path) -> None:
    load = make_load(tmp_path / "load", {b"k": b"v"})
    async with aio.open(tmp_path / "s", partitions=4) as db:
        cities = await db.attach(load)
        assert await cities.get(b"k") == b"v"
        assert await (await db.attach(load, "towns")).get(b"k") == b"v"
    async with aio.open(tmp_path / "s", read_only=True) as reader:
        assert reader.maps() == ["cities", "towns"]
        with pytest.raises(ReadOnlyError):
            await reader.attach(load)


async def test_a_real_store_serves_readers_and_backups(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "s", partitions=4) as db:
        numbers = db.map("numbers", key=I64, value=I64)
        await numbers.update_many({n: n for n in range(100)})
        await db.checkpoint()
        await db.refresh()
        assert (await db.backup(tmp_path / "copy")) is not None
        await numbers.set(100, 100)
    expect_sound(tmp_path / "s")
    expect_sound(tmp_path / "copy")
    async with aio.open(tmp_path / "copy", read_only=True) as reader:
        seen = reader.map("numbers")
        assert await seen.count() == 100
        async with reader.snapshot() as snapshot:
            assert await snapshot[seen].get(5) == 5
        await reader.refresh()
        for refused in (seen.set(1, 2), seen.incr(1), seen.update_many({1: 1})):
            with pytest.raises(ReadOnlyError):
                await refused
        for plain in (reader.transaction, reader.attempts, reader.new_id):
            with pytest.raises(ReadOnlyError):
                plain()


# ------------------------------------------------------------------ the data file grows


async def test_the_loop_goes_on_while_the_data_file_grows() -> None:
    """A read in the loop waited for it there, and everybody else with it, for up to six seconds."""
    async with opened(map_size=20_000, map_size_max=1 << 20) as db:
        users = db.map("users")
        await users.update_many({b"%05d" % number: b"x" * 100 for number in range(10)})
        await db.checkpoint()
        await users.update_many({b"%05d" % number: b"x" * 100 for number in range(10, 150)})
        found = dict[str, Any]()

        async def read(name: str, work: Any) -> None:
            found[name] = await work()

        async def in_transaction() -> Any:
            async with db.transaction() as tx:
                await tx[users].set(b"new", b"1")
                return await tx[users].get(b"00002")

        async def in_snapshot() -> Any:
            async with db.snapshot() as snapshot:
                return await snapshot[users].get(b"00003")

        async def under_an_id() -> Any:
            async with db.transaction(id=bytes(16)) as tx:
                await tx[users].set(b"given", b"1")

        with gated(parts_of(db).kv, "grow") as gate:
            async with tasks.open_nursery() as nursery:
                nursery.start_soon(db.checkpoint)
                await gate.entered()
                nursery.start_soon(read, "get", partial(users.get, b"00001"))
                nursery.start_soon(read, "missing", partial(users.get, b"none", b"?"))
                nursery.start_soon(read, "many", partial(users.get_many, [b"00004"]))
                nursery.start_soon(read, "transaction", in_transaction)
                nursery.start_soon(read, "snapshot", in_snapshot)
                nursery.start_soon(read, "id", under_an_id)
                for _ in range(10):
                    await tasks.wait_all_tasks_blocked()
                with pytest.raises(tasks.would_block()):
                    users.get_nowait(b"00001")
                assert found == {}
                gate.open()
        value = b"x" * 100
        assert found == {
            "get": value,
            "missing": b"?",
            "many": {b"00004": value},
            "transaction": value,
            "snapshot": value,
            "id": None,
        }
        assert users.get_nowait(b"00001") == value
        assert await users.count() == 152


def test_without_a_loop_it_says_what_it_needs(tmp_path: Path) -> None:
    # It was a bare RuntimeError of Trio.
    async def use() -> None:
        async with aio.open(tmp_path / "store"):
            raise AssertionError

    running = use()
    with pytest.raises(UsageError, match="needs a running Trio or asyncio loop") as caught:
        running.send(None)
    assert "`tidelog.open`" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


async def test_what_cannot_be_run_or_loaded_is_refused() -> None:
    async with opened() as db:
        users = db.map("users")
        wrong: Any = None
        no_pairs: list[Any] = [5, [1]]
        with pytest.raises(UsageError, match="not a function to run"):
            await db.run(wrong)
        with pytest.raises(UsageError, match=r"^batch="):
            await users.load([], batch=wrong)
        for act in (users.load, users.update_many):
            for given in no_pairs:
                with pytest.raises(UsageError, match="a pair of key and value is needed"):
                    await act(given)
