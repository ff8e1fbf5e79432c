"""Plain writes inside one's own transaction block: refused, as a rollback would not undo them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support import tasks
from support.stores import Opened, opened
from support.trio_stores import opened as opened_under_trio
from tidelog import aio
from tidelog.codecs import I64, Str
from tidelog.engine.aio.database import loop_session_of
from tidelog.engine.api.database import session_of
from tidelog.engine.api.inside import Blocks
from tidelog.engine.api.maps import Map
from tidelog.engine.api.open import open_with
from tidelog.errors import LockTimeoutError, UsageError
from tidelog.testing import simulated

BESIDE = "inside a transaction block"


@pytest.fixture(params=["always", "interval"])
def store(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(durability=request.param) as store:
        store.database.map("users").update({b"a": b"1", b"n": b"2"})
        yield store


def clear(users: Map[Any, Any]) -> None:
    users.clear()


WRITES: dict[str, Callable[[Map[Any, Any]], object]] = {
    "set": lambda users: users.set(b"a", b"9"),
    "set a large value": lambda users: users.set(b"a", bytes(5_000)),
    "del": lambda users: users.__delitem__(b"a"),
    "discard": lambda users: users.discard(b"a"),
    "update": lambda users: users.update({b"a": b"9"}),
    "update_many": lambda users: users.update_many([(b"a", b"9")]),
    "load": lambda users: users.load([(b"a", b"9")]),
    "pop": lambda users: users.pop(b"a"),
    "popitem": lambda users: users.popitem(),
    "setdefault": lambda users: users.setdefault(b"new", b"9"),
    "compare_and_set": lambda users: users.compare_and_set(b"a", b"1", b"9"),
    "clear": clear,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("mode", ["optimistic", "pessimistic"])
def test_a_write_that_forgets_the_transaction_is_refused_and_nothing_happens(
    store: Opened, write: Callable[[Map[Any, Any]], object], mode: Any
) -> None:
    """It was a transaction of its own, and stayed when the block rolled back."""
    users = store.database.map("users")
    with store.database.transaction(mode) as tx:
        with pytest.raises(UsageError, match=f"a write to the map 'users' {BESIDE}") as caught:
            write(users)
        assert "tx[map]" in caught.value.hint
        assert "plain_writes=True" in caught.value.hint
        assert dict(users) == {b"a": b"1", b"n": b"2"}  # reading is allowed
        write(tx[users])  # and this is what was meant
        tx.rollback()
    assert dict(users) == {b"a": b"1", b"n": b"2"}
    write(users)
    assert dict(users) != {b"a": b"1", b"n": b"2"}


def test_an_increment_that_forgets_the_transaction_is_refused(store: Opened) -> None:
    """It was a transaction of its own."""
    counts = store.database.map("counts", key=Str, value=I64)
    with store.database.transaction() as tx:
        with pytest.raises(UsageError, match=BESIDE):
            counts.incr("a")
        tx[counts].incr("a")
    assert counts.incr("a") == 2


def test_a_block_of_run_and_of_attempts_counts_too(store: Opened) -> None:
    """They make the transactions themselves, and their blocks are easily overlooked."""
    users = store.database.map("users")

    def work(tx: object) -> None:
        users[b"a"] = b"9"

    with pytest.raises(UsageError, match=BESIDE):
        store.database.run(work)
    for attempt in store.database.attempts():
        with attempt, pytest.raises(UsageError, match=BESIDE):
            users[b"a"] = b"9"
    store.database.run(work, plain_writes=True)
    assert users[b"a"] == b"9"


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("dropping the map 'users'", lambda db: db.drop("users")),
        ("renaming the map 'users'", lambda db: db.rename("users", "people")),
        ("attaching a load", lambda db: db.attach("/nowhere")),
    ],
)
def test_maps_are_not_dropped_renamed_or_attached_inside_a_block(
    store: Opened, what: str, change: Callable[[Any], object]
) -> None:
    """No transaction has them, so no rollback undoes them."""
    with store.database.transaction(), pytest.raises(UsageError, match=f"{what} {BESIDE}"):
        change(store.database)
    assert store.database.maps() == ["users"]


def test_who_means_it_says_so(store: Opened) -> None:
    """A note that is to stay whatever becomes of the transaction."""
    users = store.database.map("users")
    with store.database.transaction(plain_writes=True) as tx:
        tx[users][b"a"] = b"9"
        users[b"tried"] = b"1"
        tx.rollback()
    assert dict(users) == {b"a": b"1", b"n": b"2", b"tried": b"1"}


def test_plain_writes_are_free_where_no_block_of_this_thread_and_store_is_open(
    store: Opened,
) -> None:
    """Another thread's block, another store's, one that is over, and a transaction without one."""
    users = store.database.map("users")
    with (
        open_with(simulated(2, store.disk), "/other", partitions=1) as other,
        store.database.transaction() as tx,
        ThreadPoolExecutor(1) as pool,
    ):
        other.map("logs")[b"a"] = b"1"
        pool.submit(users.set, b"thread", b"1").result()
        with store.database.transaction():
            pass
        with pytest.raises(UsageError):  # the outer one is open still
            users[b"b"] = b"1"
        tx.commit()
        users[b"over"] = b"1"
    loose = store.database.transaction()
    users[b"loose"] = b"1"
    loose.rollback()
    assert {b"thread", b"over", b"loose"} <= set(users)
    assert not session_of(store.database).inside


def test_blocks_that_end_out_of_order_free_their_thread_with_the_last_of_them(
    store: Opened,
) -> None:
    """Whoever ended first would have freed it, or nobody."""
    users = store.database.map("users")
    first, second = store.database.transaction(), store.database.transaction()
    with first, second:
        first.rollback()
        with pytest.raises(UsageError):
            users[b"b"] = b"1"
        second.rollback()
        users[b"b"] = b"1"
    assert not session_of(store.database).inside


def test_a_transaction_that_is_lost_inside_its_block_holds_nobody(store: Opened) -> None:
    """Ctrl-C between the beginning of a block and its first line leaves one behind."""
    users = store.database.map("users")
    tx = store.database.transaction()
    tx.__enter__()
    with pytest.raises(UsageError):
        users[b"b"] = b"1"
    del tx
    gc.collect()
    users[b"b"] = b"1"
    assert users[b"b"] == b"1"


def test_a_plain_write_that_waits_for_a_lock_in_another_block_still_times_out_there(
    store: Opened,
) -> None:
    """The store writes through a transaction of its own meanwhile, which is no misuse."""
    users = store.database.map("users")
    with (
        store.database.transaction("pessimistic") as tx,
        ThreadPoolExecutor(1) as pool,
    ):
        tx[users][b"a"] = b"9"
        session_of(store.database).lock_timeout = 0.01
        with pytest.raises(LockTimeoutError):
            pool.submit(users.set, b"a", b"8").result()
    assert users[b"a"] == b"9"


# ------------------------------------------------------------------ tasks


ASYNC_WRITES: dict[str, Callable[[aio.Map[Any, Any]], Any]] = {
    "set": lambda users: users.set(b"a", b"9"),
    "discard": lambda users: users.discard(b"a"),
    "update_many": lambda users: users.update_many({b"a": b"9"}),
    "load": lambda users: users.load({b"a": b"9"}),
    "pop": lambda users: users.pop(b"a"),
    "popitem": lambda users: users.popitem(),
    "setdefault": lambda users: users.setdefault(b"new", b"9"),
    "compare_and_set": lambda users: users.compare_and_set(b"a", b"1", b"9"),
    "clear": lambda users: users.clear(),
}


@pytest.mark.loops
@pytest.mark.parametrize("write", ASYNC_WRITES.values(), ids=ASYNC_WRITES)
@pytest.mark.parametrize("mode", ["optimistic", "pessimistic"])
async def test_a_task_that_forgets_the_transaction_is_refused(
    write: Callable[[aio.Map[Any, Any]], Any], mode: Any
) -> None:
    """As in a thread; and tasks share theirs."""
    async with opened_under_trio() as db:
        users = db.map("users")
        await users.update_many({b"a": b"1", b"n": b"2"})
        async with db.transaction(mode) as tx:
            with pytest.raises(UsageError, match=f"a write to the map 'users' {BESIDE}"):
                await write(users)
            await write(tx[users])
            await tx.rollback()
        assert await users.get_many([b"a", b"n", b"new"]) == {b"a": b"1", b"n": b"2"}
        await write(users)


@pytest.mark.loops
async def test_other_tasks_are_free_and_so_is_who_means_it() -> None:
    """A block is that of one task."""
    async with opened_under_trio() as db:
        users = db.map("users")
        async with db.transaction(plain_writes=True) as tx:
            await users.set(b"a", b"1")
            await tx[users].set(b"b", b"1")
        async with db.transaction() as tx, tasks.open_nursery() as nursery:
            nursery.start_soon(users.set, b"c", b"1")
            for refused in (db.drop("users"), db.rename("users", "people"), db.attach("/nowhere")):
                with pytest.raises(UsageError, match=BESIDE):
                    await refused
            with pytest.raises(UsageError, match=BESIDE):
                async with db.transaction():
                    await users.set(b"d", b"1")
        assert await users.count() == 3
        assert not loop_session_of(db).inside


# ------------------------------------------------------------------ blocks that nobody ends


class Left:
    """A transaction as its block sees it."""

    is_open = True

    def __init__(self) -> None:
        self.itself = self


def test_a_block_that_only_refers_to_itself_does_not_count() -> None:
    blocks, left = Blocks(), Left()
    gc.disable()
    try:
        blocks.enter("me", left)
        with pytest.raises(UsageError):
            blocks.check_write("me", "users")
        del left
        blocks.check_write("me", "users")
        blocks.check_change("me", "a drop")
    finally:
        gc.enable()


def test_a_block_whose_transaction_has_ended_does_not_count() -> None:
    blocks, left = Blocks(), Left()
    blocks.enter("me", left)
    left.is_open = False
    blocks.check_write("me", "users")


def test_who_leaves_a_block_forgets_those_that_were_lost_as_well() -> None:
    blocks, kept, left, lost = Blocks(), Left(), Left(), Left()
    for block in (kept, lost, left):
        blocks.enter("me", block)
    del block, lost
    gc.collect()
    blocks.leave("me", left)
    assert [block() for block in blocks["me"]] == [kept]
