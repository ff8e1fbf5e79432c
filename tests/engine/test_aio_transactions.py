"""Transactions, attempts and snapshots of tasks."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest

from support import tasks
from support.trio_stores import contents, gated, opened, parts_of
from tidelog import aio
from tidelog.codecs import I64, Str
from tidelog.engine.aio.database import loop_session_of
from tidelog.engine.system.limits import Limits
from tidelog.errors import (
    ClosedError,
    ConflictError,
    DeadlineError,
    DeadlockError,
    LockTimeoutError,
    ReadOnlyError,
    TidelogError,
    UsageError,
)
from tidelog.testing import FaultyDisk
from tidelog.testing.environment import SimulatedEnvironment

pytestmark = pytest.mark.loops


async def accounts(db: aio.Database) -> aio.Map[Any, Any]:
    found = db.map("accounts", key=Str, value=I64)
    await found.update_many({"ada": 10, "bob": 10})
    return found


async def waiting(db: aio.Database, count: int = 1) -> None:
    """Let other tasks run until that many owners wait for a lock."""
    for _ in range(1_000_000):
        if len(loop_session_of(db).writer().locks._waiting) >= count:
            return
        await tasks.checkpoint()
    raise AssertionError("nobody waits for a lock")


# ------------------------------------------------------------------ optimistic


@pytest.mark.parametrize("mode", ["optimistic", "pessimistic"])
@pytest.mark.parametrize("reads", ["inline", "thread"])
async def test_a_block_commits_what_it_did_and_reads_it_before(mode: Any, reads: Any) -> None:
    disk = FaultyDisk()
    async with opened(disk, reads=reads) as db:
        money = await accounts(db)
        async with db.transaction(mode, tag="move") as tx:
            mine = tx[money]
            assert await mine.incr("ada", -3) == 7
            await mine.set("bob", 13)
            await mine.update_many({"cyd": 1, "dan": 2})
            assert await mine.pop("dan") == 2
            assert await mine.get("bob") == 13
            assert [pair async for pair in mine.items()] == [("ada", 7), ("bob", 13), ("cyd", 1)]
            assert await money.get("ada") == 10
            assert "open" in repr(tx)
        assert tx.receipt is not None
        assert tx.tx_id == tx.receipt.tx_id
        assert tx.receipt.position == parts_of(db).writer.position
        assert await db.outcome(tx.tx_id) == "committed"
        assert await db.outcome(tx.tx_id, home=tx.receipt.home) == "committed"
        assert contents(disk.copy(), "accounts") == {"ada": 7, "bob": 13, "cyd": 1}


@pytest.mark.parametrize("mode", ["optimistic", "pessimistic"])
async def test_an_error_in_the_block_rolls_back(mode: Any) -> None:
    async with opened() as db:
        money = await accounts(db)
        tx = db.transaction(mode)

        async def failing() -> None:
            async with tx:
                await tx[money].set("ada", 0)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert await money.get("ada") == 10
        assert "rolled back" in repr(tx)
        assert loop_session_of(db).writer().locks.table.idle
        async with db.transaction(mode) as tx:
            await tx[money].set("ada", 0)
            await tx.rollback()
            await tx.rollback()
            for late in (tx[money].get("ada"), tx[money].set("ada", 1), tx.commit()):
                with pytest.raises(ClosedError):
                    await late
        assert await money.get("ada") == 10


@pytest.mark.parametrize("mode", ["optimistic", "pessimistic"])
async def test_an_explicit_commit_ends_the_transaction(mode: Any) -> None:
    async with opened() as db:
        money = await accounts(db)
        async with db.transaction(mode) as tx:
            await tx[money].set("ada", 1)
            receipt = await tx.commit()
            with pytest.raises(ClosedError):
                await tx[money].set("ada", 2)
        assert tx.receipt == receipt
        assert await money.get("ada") == 1


async def test_the_options_of_a_transaction_count() -> None:
    async with opened() as db:
        money = await accounts(db)
        for isolation, conflicts in (("serializable", True), ("read_committed", False)):
            async with db.transaction(isolation=isolation, plain_writes=True) as tx:  # type: ignore[arg-type]
                await tx[money].set("sum", await tx[money].get("ada") or 0)
                await money.incr("ada")
                if conflicts:
                    with pytest.raises(ConflictError):
                        await tx.commit()
        beneath = loop_session_of(db).handle()
        before = beneath.statistics().syncs
        async with db.transaction(durability="none", tag="tagged", id=b"m" * 16) as tx:
            await tx[money].set("ada", 1)
        assert beneath.statistics().syncs == before
        assert await db.outcome(b"m" * 16)


async def test_a_transaction_that_wrote_nothing_has_a_receipt_without_a_position() -> None:
    async with opened() as db:
        money = await accounts(db)
        async with db.transaction() as tx:
            assert await tx[money].get("ada") == 10
            assert tx[money] is not None
        assert tx.receipt is not None
        assert tx.receipt.position == 0


async def test_a_conflict_is_an_error_in_a_block_and_another_attempt_in_a_loop() -> None:
    async with opened() as db:
        money = await accounts(db)

        async def overtaken() -> None:
            async with db.transaction(plain_writes=True) as tx:
                await tx[money].incr("ada")
                await money.set("ada", 50)

        with pytest.raises(ConflictError) as caught:
            await overtaken()
        assert caught.value.namespace == "accounts"
        tries = 0

        async def meddled(tx: aio.Transaction, key: str) -> int:
            nonlocal tries
            tries += 1
            value = await tx[money].incr(key)
            if tries < 3:
                await money.incr(key, 100)
            return value

        assert await db.run(meddled, "ada", plain_writes=True) == 251
        assert tries == 3

        async def rolls_back(tx: aio.Transaction) -> str:
            await tx[money].incr("ada")
            await tx.rollback()
            return "rolled back"

        async def commits(tx: aio.Transaction) -> str:
            await tx[money].incr("ada")
            await tx.commit()
            return "committed"

        assert await db.run(rolls_back) == "rolled back"
        assert await money.get("ada") == 251
        assert await db.run(commits) == "committed"
        assert await money.get("ada") == 252

        async def commits_and_fails(tx: aio.Transaction) -> None:
            await commits(tx)
            raise LockTimeoutError("of something else")

        with pytest.raises(LockTimeoutError, match="behind the commit, which took effect"):
            await db.run(commits_and_fails)
        assert await money.get("ada") == 253
        tries = -100
        with pytest.raises(ConflictError):
            await db.run(meddled, "ada", attempts=2, plain_writes=True)
        assert tries == -98
        rounds = 0
        async for attempt in db.attempts(deadline=60, plain_writes=True):
            async with attempt as tx:
                rounds += 1
                await tx[money].incr("bob")
                if rounds == 1:
                    await money.incr("bob")
        assert rounds == 2
        assert await money.get("bob") == 12


async def test_a_later_attempt_without_its_block_is_refused_as_well() -> None:
    async with opened() as db:
        turns = 0

        async def forgets() -> None:
            nonlocal turns
            async for attempt in db.attempts():
                turns += 1
                if turns == 1:
                    async with attempt:
                        raise ConflictError("meddled", namespace="m", key=None, winner=None)

        with pytest.raises(UsageError, match="was not used"):
            await forgets()
        assert turns == 2


async def test_a_loop_without_the_block_of_its_attempt_is_refused() -> None:
    async with opened() as db:

        async def forgets() -> None:
            async for _ in db.attempts():
                pass

        with pytest.raises(UsageError, match="was not used") as caught:
            await forgets()
        assert "`async with attempt as tx:`" in caught.value.hint


async def test_attempts_end_with_what_no_attempt_can_cure() -> None:
    async with opened() as db:
        money = await accounts(db)
        tries = 0

        async def failing() -> None:
            nonlocal tries
            async for attempt in db.attempts():
                async with attempt as tx:
                    tries += 1
                    await tx[money].set("ada", 0)
                    raise ZeroDivisionError

        async def too_slow() -> None:
            async for attempt in db.attempts(deadline=5):
                async with attempt as tx:
                    await tx[money].set("ada", 0)
                    cast(SimulatedEnvironment, parts_of(db).environment).advance(6)

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert tries == 1
        with pytest.raises(DeadlineError):
            await too_slow()
        assert await money.get("ada") == 10
        with pytest.raises(UsageError):
            db.attempts(0)


async def test_many_tasks_that_change_one_key_lose_no_update() -> None:
    async with opened() as db:
        money = await accounts(db)
        async with tasks.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(money.incr, "ada")
        assert await money.get("ada") == 50


async def test_many_transfers_keep_the_sum() -> None:
    async with opened() as db:
        money = await accounts(db)

        async def transfer(tx: aio.Transaction, source: str, target: str, amount: int) -> None:
            mine = tx[money]
            await mine.incr(source, -amount)
            await mine.incr(target, amount)

        async with tasks.open_nursery() as nursery:
            for number in range(20):
                pair = ("ada", "bob") if number % 3 else ("bob", "ada")
                nursery.start_soon(partial(db.run, attempts=100), transfer, *pair, number)
                mode = partial(db.run, attempts=100, mode="pessimistic")
                nursery.start_soon(mode, transfer, *pair, number)
        assert sum((await money.get_many(["ada", "bob"])).values()) == 20


async def test_an_id_is_applied_once_and_pending_meanwhile() -> None:
    async with opened() as db:
        money = await accounts(db)
        tx_id = db.new_id()
        assert await db.outcome(tx_id) == "rolled_back"

        async def apply() -> None:
            async with db.transaction(id=tx_id) as tx:
                await tx[money].set("ada", 99)

        with gated(parts_of(db).writer, "sync") as gate:
            async with tasks.open_nursery() as nursery:
                nursery.start_soon(apply)
                await gate.entered()
                assert await db.outcome(tx_id) == "pending"
                gate.open()
        assert await db.outcome(tx_id) == "committed"
        await money.set("ada", 1)
        await apply()
        assert await money.get("ada") == 1


async def test_a_transaction_takes_its_snapshot_off_the_loop_where_the_way_is_blocked() -> None:
    async with opened() as db:
        money = await accounts(db)
        async with db.transaction(plain_writes=True) as tx:
            assert tx[money] is not None
            mine = tx[money]
            await mine.ensure()
            with parts_of(db).committer.mutex:
                assert loop_session_of(db).writer().snapshot_nowait() is None
                with pytest.raises(tasks.would_block()):
                    mine.get_nowait("ada")
            assert mine.get_nowait("ada") == 10
            await money.set("ada", 11)
            assert mine.get_nowait("ada") == 10
            assert await mine.get("ada") == 10


async def test_a_transaction_belongs_to_one_task_and_one_block() -> None:
    async with opened() as db:
        money = await accounts(db)
        outside = db.transaction()
        with pytest.raises(UsageError, match="has not begun"):
            await outside[money].get("ada")
        await outside.rollback()
        async with db.transaction() as tx:
            mine = tx[money]
            await mine.ensure()
            with gated(loop_session_of(db).writer(), "snapshot") as gate:
                async with tasks.open_nursery() as nursery:
                    nursery.start_soon(mine.count)
                    await gate.entered()
                    with pytest.raises(UsageError, match="another task"):
                        await mine.get("ada")
                    gate.open()
        with pytest.raises(UsageError, match="once"):
            async with tx:
                raise AssertionError


async def test_a_few_pairs_are_set_in_the_loop_and_many_beside_it() -> None:
    """Even one went through a worker thread."""
    async with opened() as db:
        money = await accounts(db)
        async with db.transaction() as tx:
            mine = tx[money]
            await mine.ensure()
            with gated(loop_session_of(db).workers, "run") as gate:
                gate.open()
                await mine.update_many({f"{number}": number for number in range(64)})
                assert gate.calls == 0
                await mine.update_many({f"{number}": -number for number in range(65)})
                assert gate.calls == 2  # encoded there, and put there
        assert await money.get_many(["0", "64"]) == {"0": 0, "64": -64}


# ------------------------------------------------------------------ pessimistic


async def test_a_lock_is_waited_for_beside_a_running_loop() -> None:
    async with opened() as db:
        money = await accounts(db)
        order = []

        async def second() -> None:
            async with db.transaction("pessimistic") as tx:
                await tx[money].incr("ada")
                order.append("second")

        async with tasks.open_nursery() as nursery, db.transaction("pessimistic") as tx:
            await tx[money].incr("ada")
            with pytest.raises(tasks.would_block()):
                tx[money].get_nowait("ada")
            nursery.start_soon(second)
            await waiting(db)
            order.append("first")
        assert order == ["first", "second"]
        assert await money.get("ada") == 12


@pytest.mark.parametrize("how", ["set", "large", "discard", "update_many", "optimistic"])
async def test_commits_wait_for_the_locks_of_others(how: str) -> None:
    disk = FaultyDisk()
    async with opened(disk) as db:
        data = db.map("data")
        await data.update_many({b"ada": b"1", b"bob": b"1"})

        async def change() -> None:
            if how == "set":
                await data.set(b"ada", b"2")
            elif how == "large":
                await data.set(b"ada", b"2" * 5000)
            elif how == "discard":
                await data.discard(b"ada")
            elif how == "update_many":
                await data.update_many({b"ada": b"2", b"bob": b"2"})
            else:
                async with db.transaction() as tx:
                    await tx[data].set(b"ada", b"2")

        own = db.transaction("pessimistic", plain_writes=True)
        async with tasks.open_nursery() as nursery, own as tx:
            assert await tx[data].get(b"ada") == b"1"
            nursery.start_soon(change)
            nursery.start_soon(data.set, b"cyd", b"2")  # in the same group, and not locked
            await waiting(db)
            await data.set(b"dan", b"2")
            await tx[data].set(b"seen", b"%d" % len(await data.get_many([b"ada", b"bob"])))
        found = contents(disk.copy(), "data")
        assert [found[key] for key in (b"seen", b"dan", b"cyd")] == [b"2", b"2", b"2"]
        assert found.get(b"ada") != b"1"
        assert (found[b"bob"] == b"2") == (how == "update_many")


async def test_a_deadlock_ends_one_and_attempts_cure_it() -> None:
    async with opened() as db:
        money = await accounts(db)
        deadlocks = 0
        met = tasks.event()
        here = 0

        async def both(first: str, second: str) -> None:
            nonlocal deadlocks, here
            async for attempt in db.attempts(mode="pessimistic"):
                async with attempt as tx:
                    await tx[money].incr(first)
                    here += 1
                    if here == 2:
                        met.set()
                    await met.wait()
                    try:
                        await tx[money].incr(second)
                    except DeadlockError:
                        deadlocks += 1
                        raise

        async with tasks.open_nursery() as nursery:
            nursery.start_soon(both, "ada", "bob")
            nursery.start_soon(both, "bob", "ada")
        assert deadlocks >= 1
        assert await money.get_many(["ada", "bob"]) == {"ada": 12, "bob": 12}


async def test_a_plain_write_that_stands_in_the_way_of_whom_it_waits_for_waits_again() -> None:
    """It was a DeadlockError, of which a plain write in a thread knows nothing."""
    async with opened() as db:
        data = db.map("data")
        await data.ensure()
        own = db.transaction("pessimistic", plain_writes=True)
        async with tasks.open_nursery() as nursery, own as tx:
            await tx[data].set(b"a", b"2")
            nursery.start_soon(data.update_many, [(b"b", b"3"), (b"a", b"3")])
            await waiting(db)
            await tx[data].set(b"b", b"2")
        assert await data.get_many([b"a", b"b"]) == {b"a": b"3", b"b": b"3"}


async def test_a_cancelled_wait_for_a_lock_leaves_the_transaction_as_it_was() -> None:
    async with opened() as db:
        money = await accounts(db)
        async with (
            db.transaction("pessimistic") as holder,
            db.transaction("pessimistic", lock_timeout=60) as tx,
        ):
            await holder[money].set("ada", 1)
            await tx[money].set("bob", 2)
            for _ in range(2):
                async with tasks.open_nursery() as nursery:
                    nursery.start_soon(tx[money].set, "ada", 2)
                    await waiting(db)
                    nursery.cancel()
                assert nursery.cancelled_caught
            await holder.commit()
            assert await tx[money].get("ada") == 1
            await tx[money].set("ada", 3)
        assert await money.get_many(["ada", "bob"]) == {"ada": 3, "bob": 2}


async def test_an_iteration_that_was_cancelled_before_its_first_block_begins_again() -> None:
    async with opened() as db:
        money = await accounts(db)
        async with (
            db.transaction("pessimistic") as holder,
            db.transaction("pessimistic", lock_timeout=60) as tx,
        ):
            await holder[money].set("ada", 1)
            names = tx[money].keys()
            async with tasks.open_nursery() as nursery:
                nursery.start_soon(anext, names)
                await waiting(db)
                nursery.cancel()
            await holder.commit()
            assert [name async for name in names] == ["ada", "bob"]


async def test_a_cancelled_commit_that_waits_for_a_lock_has_no_effect() -> None:
    async with opened() as db:
        money = await accounts(db)
        async with db.transaction("pessimistic") as holder:
            await holder[money].set("ada", 1)

            async def change() -> None:
                async with db.transaction(lock_timeout=60) as tx:
                    await tx[money].update_many({"ada": 2, "bob": 2})

            for work in (change, partial(money.set, "ada", 2)):
                async with tasks.open_nursery() as nursery:
                    nursery.start_soon(work)
                    await waiting(db)
                    nursery.cancel()
                assert nursery.cancelled_caught
            assert not loop_session_of(db).writer().locks._interrupted
        assert await money.get_many(["ada", "bob"]) == {"ada": 1, "bob": 10}


async def test_locks_are_waited_for_no_longer_than_asked() -> None:
    async with opened() as db:
        money = await accounts(db)
        async with db.transaction("pessimistic") as holder:
            await holder[money].set("ada", 1)
            with pytest.raises(LockTimeoutError):
                async with db.transaction("pessimistic", lock_timeout=1e-9) as tx:
                    await tx[money].set("ada", 2)
        assert await money.get("ada") == 1


async def test_more_transactions_with_locks_than_places_take_turns() -> None:
    async with opened(limits=Limits(lock_places=2)) as db:
        money = await accounts(db)

        async def add(tx: aio.Transaction) -> None:
            await tx[money].incr("ada")
            await tx[money].incr("bob")

        async with tasks.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(partial(db.run, mode="pessimistic", attempts=100), add)
        assert await money.get_many(["ada", "bob"]) == {"ada": 20, "bob": 20}
        async with db.transaction("pessimistic"), db.transaction("pessimistic"):
            with pytest.raises(LockTimeoutError, match="2 transactions"):
                async with db.transaction("pessimistic", lock_timeout=0):
                    raise AssertionError


@pytest.mark.parametrize("name", ["deadline", "lock_timeout"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e10, -1, "5"], ids=repr)
async def test_what_is_no_time_is_refused_at_once(name: str, value: Any) -> None:
    # It was a bare error of Trio or of the thread that waited for a lock.
    async with opened() as db:
        with pytest.raises(UsageError, match=f"^{name}"):
            db.transaction(**{name: value})
        with pytest.raises(UsageError, match=f"^{name}"):
            await anext(db.attempts(**{name: value}))


async def test_closing_ends_waits_for_locks_and_open_transactions() -> None:
    async with opened() as db:
        money = await accounts(db)
        ended: list[type[TidelogError]] = []

        async def change(work: Any) -> None:
            try:
                await work()
            except TidelogError as error:
                ended.append(type(error))

        async def pessimistic() -> None:
            async with db.transaction("pessimistic", lock_timeout=60) as tx:
                await tx[money].set("ada", 2)

        holder = db.transaction("pessimistic")
        await holder.__aenter__()
        await holder[money].set("ada", 1)
        optimistic = db.transaction()
        await optimistic.__aenter__()
        await optimistic[money].incr("bob")
        async with tasks.open_nursery() as nursery:
            nursery.start_soon(change, pessimistic)
            nursery.start_soon(change, partial(money.set, "ada", 3))
            await waiting(db, 2)
            await db.aclose()
        assert len(ended) == 2
        with pytest.raises(ClosedError):
            await optimistic.__aexit__(None, None, None)
        with pytest.raises(ClosedError):
            await holder.__aexit__(None, None, None)


# ------------------------------------------------------------------ snapshots


async def test_a_snapshot_shows_the_store_as_it_was() -> None:
    async with opened() as db:
        money = await accounts(db)
        snapshot = db.snapshot()
        assert "not taken" in repr(snapshot)
        with pytest.raises(UsageError):
            assert snapshot.position
        async with snapshot:
            old = snapshot[money]
            await money.set("ada", 0)
            await money.set("cyd", 0)
            assert await old.get("ada") == 10
            assert old.get_nowait("ada") == 10
            assert await old.get_many(["ada", "cyd"]) == {"ada": 10}
            assert [key async for key in old] == ["ada", "bob"]
            assert await old.count() == 2
            assert not await old.contains("cyd")
            assert snapshot.position < parts_of(db).writer.position
            for refused in (old.set("ada", 1), old.incr("ada"), old.update_many({"a": 1})):
                with pytest.raises(ReadOnlyError):
                    await refused
        with pytest.raises(ClosedError):
            await old.get("ada")


async def test_a_snapshot_of_a_busy_store_is_taken_off_the_loop() -> None:
    async with opened() as db:
        money = await accounts(db)
        async with tasks.open_nursery() as nursery:
            with parts_of(db).committer.mutex:
                taken: list[Any] = []

                async def take() -> None:
                    async with db.snapshot() as snapshot:
                        taken.append(await snapshot[money].get("ada"))

                nursery.start_soon(take)
                for _ in range(3):
                    await tasks.checkpoint()
                assert taken == []
        assert taken == [10]
