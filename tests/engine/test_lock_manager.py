"""Waiting for locks with real threads, each step of which the test waits for and none by time."""

from __future__ import annotations

import _thread
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from support.commits import standing_of
from support.stores import Opened, opened
from tidelog.affinity.errors import (
    DeadlineError,
    DeadlockError,
    LockTimeoutError,
    ReadOnlyError,
    RolledBackError,
    TidelogError,
)
from tidelog.engine.api.database import session_of
from tidelog.engine.commit import lock_manager
from tidelog.engine.commit.lock_manager import LockManager
from tidelog.tx.locks import KeyLock, LockTable, RangeLock, Waiting, Want

WAIT = 60.0
A, B, C = (b"\0\0\0\0\0\0\0\x10" + key for key in (b"a", b"b", b"c"))


class Locks:
    """A lock manager, and threads that acquire with it."""

    def __init__(self, store: Opened) -> None:
        self.store = store
        self.manager: LockManager = store.parts.locks
        self.waiting = threading.Semaphore(0)
        self.outcomes: dict[str, TidelogError | None] = {}
        self.threads: dict[str, threading.Thread] = {}

    def owners(self, count: int) -> list[int]:
        return [self.manager.new_owner() for _ in range(count)]

    def take(
        self, owner: int, want: Want, timeout: float = WAIT, deadline: float | None = None
    ) -> None:
        self.manager.acquire(owner, want, timeout=timeout, deadline=deadline)

    def take_waiting(self, name: str, owner: int, want: Want) -> None:
        """Let a thread ask for a lock, and return once it waits for it."""

        def run() -> None:
            try:
                self.take(owner, want)
                self.outcomes[name] = None
            except TidelogError as error:
                self.outcomes[name] = error
                self.manager.release(owner)

        self.threads[name] = threading.Thread(target=run)
        self.threads[name].start()
        assert self.waiting.acquire(timeout=WAIT)
        with self.store.parts.committer.mutex:
            pass

    @contextmanager
    def put_in_flight(self, key: bytes) -> Iterator[Callable[[], None]]:
        """Hold a put of another thread in its sync until the function that is given is called."""
        users = self.store.database.map("users")
        syncing, go = threading.Semaphore(0), threading.Semaphore(0)

        def held(sync: Callable[[], Any]) -> None:
            syncing.release()
            assert go.acquire(timeout=WAIT)
            sync()

        with self.store.around_syncs(held):
            thread = threading.Thread(target=lambda: users.__setitem__(key, b"new"))
            thread.start()
            assert syncing.acquire(timeout=WAIT)
            try:
                yield go.release
            finally:
                go.release()
                thread.join(WAIT)
            assert not thread.is_alive()

    def outcome(self, name: str) -> TidelogError | None:
        self.threads[name].join(WAIT)
        assert not self.threads[name].is_alive()
        return self.outcomes[name]


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Locks]:
    with opened() as store:
        made = Locks(store)

        def allocate() -> Any:
            made.waiting.release()
            return _thread.allocate_lock()

        monkeypatch.setattr(lock_manager, "_thread", SimpleNamespace(allocate_lock=allocate))
        yield made
        for thread in made.threads.values():
            thread.join(WAIT)
        # Everybody has gone: nothing is held, waited for or remembered.
        manager = made.manager
        assert manager.table.idle
        left = [*manager._waiting, *manager._victims, *manager._interrupted]
        assert left == []
        assert not store.parts.committer.context.standing.locks


def test_owners_are_numbered_by_age(locks: Locks) -> None:
    assert locks.owners(3) == [1, 2, 3]


def test_a_lock_is_waited_for_and_granted_when_it_is_released(locks: Locks) -> None:
    first, second = locks.owners(2)
    locks.take(first, KeyLock(A))
    locks.take_waiting("second", second, KeyLock(A))
    locks.manager.release(first)
    assert locks.outcome("second") is None
    locks.manager.release(second)


def test_shared_locks_and_other_keys_are_not_waited_for(locks: Locks) -> None:
    first, second = locks.owners(2)
    locks.take(first, KeyLock(A, exclusive=False))
    locks.take(second, KeyLock(A, exclusive=False), timeout=0.0)
    locks.take(second, KeyLock(B), timeout=0.0)
    locks.take(first, RangeLock(C, None), timeout=0.0)
    locks.manager.release(first)
    locks.manager.release(second)


@pytest.mark.parametrize(
    ("timeout", "deadline", "error"),
    [(0.0, None, LockTimeoutError), (0.0, 1.0, LockTimeoutError), (WAIT, 0.0, DeadlineError)],
)
def test_a_wait_ends_at_its_time_limit(
    locks: Locks, timeout: float, deadline: float | None, error: type[TidelogError]
) -> None:
    first, second, third = locks.owners(3)
    locks.take(first, KeyLock(A))
    with pytest.raises(error):
        locks.take(second, KeyLock(A), timeout, deadline)
    # The request is gone: it is in nobody's way.
    locks.manager.release(first)
    locks.take(third, KeyLock(A), timeout=0.0)
    locks.manager.release(second)
    locks.manager.release(third)


def test_a_request_that_ran_out_of_time_lets_those_behind_it_through(locks: Locks) -> None:
    first, second, third = locks.owners(3)
    locks.take(first, KeyLock(A, exclusive=False))
    with pytest.raises(LockTimeoutError):
        locks.take(second, KeyLock(A), timeout=0.0)
    locks.take(third, KeyLock(A, exclusive=False), timeout=0.0)
    for owner in (first, third):
        locks.manager.release(owner)


def test_the_youngest_ends_when_it_closes_a_circle(locks: Locks) -> None:
    old, young = locks.owners(2)
    locks.take(old, KeyLock(A))
    locks.take(young, KeyLock(B))
    locks.take_waiting("old", old, KeyLock(B))
    with pytest.raises(DeadlockError) as caught:
        locks.take(young, KeyLock(A))
    assert caught.value.retryable
    locks.manager.release(young)
    assert locks.outcome("old") is None
    locks.manager.release(old)


def test_who_ends_the_one_in_its_way_goes_on_at_once(locks: Locks) -> None:
    # The victim's lock was granted before the older one had begun to wait for it: it slept until
    # its time limit, and was told that it had not got what it held.
    old, young = locks.owners(2)
    locks.take(old, KeyLock(A))
    locks.take(young, KeyLock(B))
    locks.take_waiting("young", young, KeyLock(A))
    locks.take(old, KeyLock(B), timeout=0.0)
    assert isinstance(locks.outcome("young"), DeadlockError)
    locks.manager.release(old)


def test_who_ends_one_of_two_in_its_way_waits_for_the_other(locks: Locks) -> None:
    old, other, young = locks.owners(3)
    locks.take(old, KeyLock(A))
    locks.take(young, KeyLock(B, exclusive=False))
    locks.take(other, KeyLock(B, exclusive=False))
    locks.take_waiting("young", young, KeyLock(A))
    locks.take_waiting("old", old, KeyLock(B))
    assert isinstance(locks.outcome("young"), DeadlockError)
    locks.manager.release(other)
    assert locks.outcome("old") is None
    locks.manager.release(old)


def test_an_interrupted_wait_ends_and_so_does_the_next_one(locks: Locks) -> None:
    first, second, third = locks.owners(3)
    locks.take(first, KeyLock(A))
    locks.take_waiting("second", second, KeyLock(A))
    locks.manager.interrupt(second)
    assert isinstance(locks.outcome("second"), RolledBackError)
    locks.manager.interrupt(third)
    with pytest.raises(RolledBackError):
        locks.take(third, KeyLock(A))
    locks.take(third, KeyLock(B), timeout=0.0)
    for owner in (first, third):
        locks.manager.release(owner)


def test_an_interrupt_during_the_last_step_before_a_wait_is_not_lost(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = locks.owners(2)
    locks.take(first, KeyLock(A))

    def allocate() -> Any:
        locks.manager.interrupt(second)
        return _thread.allocate_lock()

    monkeypatch.setattr(lock_manager, "_thread", SimpleNamespace(allocate_lock=allocate))
    with pytest.raises(RolledBackError):
        locks.take(second, KeyLock(A))
    for owner in (first, second):
        locks.manager.release(owner)


@pytest.mark.parametrize("write", ["set", "update_many", "discard", "transaction"])
def test_a_write_outside_of_locks_waits_for_them(locks: Locks, write: str) -> None:
    store = locks.store
    users = store.database.map("users")
    users[b"a"] = b"0"
    tx = store.database.transaction(mode="pessimistic")
    tx[users][b"a"] = b"1"

    def act() -> None:
        match write:
            case "set":
                users[b"a"] = b"2"
            case "update_many":
                users.update_many({b"a": b"2", b"b": b"2"})
            case "discard":
                users.discard(b"a")
            case _:
                with store.database.transaction() as other:
                    other[users][b"a"] = b"2"

    thread = threading.Thread(target=act)
    thread.start()
    assert locks.waiting.acquire(timeout=WAIT)
    assert users[b"a"] == b"0"
    tx.commit()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert users.get(b"a") == (None if write == "discard" else b"2")


def test_a_lock_is_used_only_after_the_group_in_flight_has_been_applied(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = locks.store
    users = store.database.map("users")
    queue = store.parts.committer.queue
    applied_soon = queue.applied_soon

    with locks.put_in_flight(b"a") as go:

        def waits() -> Any:
            go()
            return applied_soon()

        monkeypatch.setattr(queue, "applied_soon", waits)
        for want_all in (False, True):
            with store.database.transaction(mode="pessimistic") as tx:
                # Both a key lock and a range lock cover the put on its way.
                found = dict(tx[users].range()) if want_all else {b"a": tx[users][b"a"]}
                assert found == {b"a": b"new"}


def test_locks_are_released_with_the_transaction_however_it_ends(locks: Locks) -> None:
    users = locks.store.database.map("users")
    for end in ("commit", "rollback", "error"):
        tx = locks.store.database.transaction(mode="pessimistic")
        tx[users][b"a"] = b"1"
        assert standing_of(locks.store).locks
        if end == "error":
            with pytest.raises(ZeroDivisionError), tx:
                raise ZeroDivisionError
        else:
            getattr(tx, end)()
        assert not standing_of(locks.store).locks
        users[b"a"] = b"2"


# ------------------------------------------------------------------ transactions that are dropped


def locking(store: Opened) -> list[Any]:
    """A transaction that has locked a key, and nobody else refers to."""
    tx = store.database.transaction("pessimistic")
    tx[store.database.map("users")][b"k"] = b"dropped"
    return [tx]


def drop(held: list[Any]) -> None:
    """Forget a transaction; with its maps it is a cycle."""
    held.clear()
    with pytest.warns(ResourceWarning, match="was dropped with its locks"):
        gc.collect()


def test_a_dropped_transaction_lets_go_of_its_locks_and_warns() -> None:
    """They stayed until the store was closed: every put of such a key failed after ten seconds."""
    with opened() as store:
        users = store.database.map("users")
        drop(locking(store))
        assert store.parts.locks.table.idle
        assert not store.parts.committer.context.standing.locks
        users[b"k"] = b"put"
        assert users[b"k"] == b"put"
        assert store.environment.time.steady_s() == 0


def test_locks_of_a_transaction_that_is_dropped_under_the_mutex_go_with_the_next_look() -> None:
    with opened() as store:
        users = store.database.map("users")
        for use in (
            lambda: users.set(b"k", b"put"),
            lambda: users.update_many({b"k": b"put"}),
            lambda: store.database.run(lambda tx: tx[users].set(b"k", b"put"), mode="pessimistic"),
            session_of(store.database).maintenance.maintain,
        ):
            held = locking(store)
            with store.parts.committer.mutex:
                drop(held)
            assert not store.parts.locks.table.idle
            use()
            assert store.parts.locks.table.idle


def test_a_put_that_waits_for_a_transaction_goes_on_when_that_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened() as store:
        users, locks = store.database.map("users"), store.parts.locks
        held = locking(store)
        waits, waiting = threading.Semaphore(0), locks._wait

        def wait(*args: Any) -> None:
            waits.release()
            waiting(*args)

        monkeypatch.setattr(locks, "_wait", wait)
        thread = threading.Thread(target=users.set, args=(b"k", b"put"))
        thread.start()
        assert waits.acquire(timeout=WAIT)
        drop(held)
        # The thread may have had the mutex still when the transaction went.
        session_of(store.database).maintenance.maintain()
        thread.join(WAIT)
        assert users[b"k"] == b"put"


def test_transactions_that_have_ended_or_whose_store_has_are_dropped_in_silence(
    recwarn: pytest.WarningsRecorder,
) -> None:
    with opened() as store:
        users = store.database.map("users")
        for end in ("commit", "rollback"):
            tx = store.database.transaction("pessimistic")
            tx[users][b"k"] = b"1"
            getattr(tx, end)()
            del tx
        optimistic = store.database.transaction()
        optimistic[users][b"k"] = b"2"
        last = store.database.transaction("pessimistic")
        last[users][b"k"] = b"3"
    del last, optimistic
    gc.collect()
    assert recwarn.list == []


# ------------------------------------------------------------------ interrupts


def interrupt_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Raise once where a method of the table begins."""
    method = getattr(LockTable, name)

    def raises(*_args: Any) -> Any:
        monkeypatch.setattr(LockTable, name, method)
        raise KeyboardInterrupt

    monkeypatch.setattr(LockTable, name, raises)


def lose(manager: LockManager, owner: int) -> None:
    """Release the locks of a transaction that was dropped while somebody held the mutex."""
    manager._lost.append(owner)
    manager.release_lost()


@pytest.mark.parametrize("where", ["_drop", "_wake"])
@pytest.mark.parametrize("release", [LockManager.release, lose])
def test_an_interrupt_in_a_release_hands_the_locks_on(
    locks: Locks,
    monkeypatch: pytest.MonkeyPatch,
    release: Callable[[LockManager, int], None],
    where: str,
) -> None:
    first, second = locks.owners(2)
    locks.take(first, KeyLock(A))
    locks.take_waiting("second", second, KeyLock(A))
    interrupt_once(monkeypatch, where)
    with pytest.raises(KeyboardInterrupt):
        release(locks.manager, first)
    assert second not in locks.manager._waiting
    assert locks.outcome("second") is None
    locks.manager.release(second)


def test_an_interrupt_before_the_release_of_lost_locks_leaves_them_to_the_next_look(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody knew any more of the transaction that was dropped, and its locks stayed.
    (owner,) = locks.owners(1)
    locks.take(owner, KeyLock(A))
    interrupt_once(monkeypatch, "release")
    with pytest.raises(KeyboardInterrupt):
        lose(locks.manager, owner)
    locks.manager.release_lost()
    assert locks.manager.table.idle
    assert locks.store.parts.committer.stopped is None


def test_an_interrupt_at_the_end_of_a_wait_lets_those_behind_it_through(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = locks.owners(3)
    locks.take(first, KeyLock(A, exclusive=False))
    locks.manager._waiting[second] = _thread.allocate_lock()
    assert isinstance(locks.manager.table.request(second, KeyLock(A)), Waiting)
    locks.take_waiting("third", third, KeyLock(A, exclusive=False))
    interrupt_once(monkeypatch, "_wake")
    with pytest.raises(KeyboardInterrupt):
        locks.manager._waited(second)
    assert third not in locks.manager._waiting
    assert locks.outcome("third") is None
    for owner in (first, third):
        locks.manager.release(owner)


def test_an_interrupt_while_a_group_in_flight_is_waited_for_is_raised_as_it_is(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It came with a RuntimeError in its place, and let go of a mutex that another thread held.
    store = locks.store
    users, committer = store.database.map("users"), store.parts.committer
    applied_soon = committer.queue.applied_soon
    held = list[bool]()

    class Waiter:
        def acquire(self, timeout: float) -> bool:
            held.append(committer.mutex.locked())
            raise KeyboardInterrupt

    def interrupted() -> Waiter:
        applied_soon()
        return Waiter()

    with locks.put_in_flight(b"a") as go:
        monkeypatch.setattr(committer.queue, "applied_soon", interrupted)
        with pytest.raises(KeyboardInterrupt), store.database.transaction("pessimistic") as tx:
            tx[users][b"a"] = b"never"
        assert held == [False]
        assert not committer.mutex.locked()
        assert locks.manager.table.idle
        go()
    assert users[b"a"] == b"new"


def test_behind_an_interrupt_in_the_last_release_nobody_is_asked_for_locks(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (owner,) = locks.owners(1)
    locks.take(owner, KeyLock(A))
    interrupt_once(monkeypatch, "_drop")
    with pytest.raises(KeyboardInterrupt):
        locks.manager.release(owner)
    committer = locks.store.parts.committer
    assert not committer.context.standing.locks
    assert committer.context.changing is None


def test_locks_that_are_released_behind_a_commit_that_was_cut_short_leave_it_marked(
    locks: Locks,
) -> None:
    # Else nobody would notice that its thread went away in the middle of it.
    committer = locks.store.parts.committer
    (owner,) = locks.owners(1)
    locks.take(owner, KeyLock(A))
    with committer.mutex:
        committer.context.changing = "a commit"
    assert locks.manager.lose(owner)  # a finalizer, which gets the mutex at once
    assert locks.manager.table.idle
    with committer.mutex:
        assert committer.context.changing == "a commit"
        committer.context.changing = None


def test_who_waits_for_a_lock_while_the_store_stops_gets_none() -> None:
    with opened() as store:
        locks, committer = store.parts.locks, store.parts.committer
        first, second = locks.new_owner(), locks.new_owner()
        locks.acquire(first, KeyLock(A), timeout=WAIT, deadline=None)
        assert isinstance(locks.table.request(second, KeyLock(A)), Waiting)
        committer.context.changing = "a commit"  # whose thread has gone
        locks.release(first)
        assert locks.table.waits(second)
        with pytest.raises(ReadOnlyError):
            locks._waited(second)
        session_of(store.database).abandon()
