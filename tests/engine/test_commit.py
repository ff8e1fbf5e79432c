"""The commit path: groups with a sync in the test's hand, and what failures leave behind."""

from __future__ import annotations

import errno
import threading
from operator import length_hint
from typing import Any

import pytest

from support.commits import WAIT, commit_of, error_of, gated, put_of, records_of
from support.stores import Opened, open_store, opened
from tidelog.affinity.errors import (
    ClosedError,
    CommitUnknownError,
    ConflictError,
    DeadlineError,
    DiskError,
    DiskFullError,
    ReadOnlyError,
    TidelogError,
    TransactionTooLargeError,
)
from tidelog.engine.api.database import session_of
from tidelog.engine.commit.entries import Batch, Commit
from tidelog.engine.commit.puts import PUT_BYTES_MAX, Puts
from tidelog.engine.commit.standing import Lead
from tidelog.engine.commit.sync_times import SyncTimes
from tidelog.engine.system.wakes import WakeChain
from tidelog.tx.counter import PartitionUpdateCounter
from tidelog.wal.records import CheckpointRecord, IdleRecord, RollbackRecord, TxRecord

# ------------------------------------------------------------------ groups


def test_what_comes_during_a_sync_is_one_group_with_one_frame_and_one_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened() as store:
        users = store.database.map("users")
        with gated(store, monkeypatch) as gate:
            before = store.database.statistics()
            gate.start(lambda: users.__setitem__(b"first", b"1"))
            gate.wait_syncing()
            for number in range(5):
                gate.start(lambda number=number: users.__setitem__(b"%d" % number, b"2"))  # type: ignore[misc]
            gate.wait_queued(store, 5)
            # Logged, but not durable: nobody sees it, and nobody was told.
            assert b"first" not in users
            gate.finish(2)
        after = store.database.statistics()
        assert after.groups - before.groups == 2
        assert after.syncs - before.syncs == 2
        assert after.transactions - before.transactions == 6
        assert sorted(users) == [b"0", b"1", b"2", b"3", b"4", b"first"]
        sizes = [sum(isinstance(r, TxRecord) for r in frame) for frame in records_of(store)]
        assert [size for size in sizes if size] == [1, 5]


def test_a_thread_that_saw_nobody_queues_if_somebody_leads_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready, come = threading.Semaphore(0), threading.Semaphore(0)
    with opened() as store:
        users, carrier = store.database.map("users"), store.parts.committer.carrier
        carry = carrier.carry

        def carry_late(*args: Any) -> Any:
            if threading.current_thread().name == "late":
                ready.release()
                assert come.acquire(timeout=WAIT)
            return carry(*args)

        with gated(store, monkeypatch) as gate:
            monkeypatch.setattr(carrier, "carry", carry_late)
            gate.start(lambda: users.__setitem__(b"late", b""), "late")
            assert ready.acquire(timeout=WAIT)
            gate.start(lambda: users.__setitem__(b"first", b""))
            gate.wait_syncing()
            come.release(2)
            gate.wait_queued(store, 1)
            gate.finish(2)
            assert gate.errors == []
        sizes = [sum(isinstance(r, TxRecord) for r in frame) for frame in records_of(store)]
        assert [size for size in sizes if size] == [1, 1]
        assert sorted(users) == [b"first", b"late"]


@pytest.mark.parametrize("glanced", ["before", "behind"])
def test_a_newcomer_waits_until_those_of_the_last_group_are_awake(
    monkeypatch: pytest.MonkeyPatch, glanced: str
) -> None:
    # Also one that had looked, without the mutex, when nobody was about.
    ready, come, frozen, go = (threading.Semaphore(0) for _ in range(4))
    with opened() as store:
        users, committer = store.database.map("users"), store.parts.committer
        users[b"first"] = b""  # what begins with the first commit is none of this
        carry, wake_next = committer.carrier.carry, WakeChain.wake_next

        def carry_late(*args: Any) -> Any:
            if threading.current_thread().name == "newcomer" and glanced == "before":
                ready.release()
                assert come.acquire(timeout=WAIT)
            return carry(*args)

        def wake_late(chain: WakeChain) -> None:
            if threading.current_thread().name == "woken" and length_hint(chain.left):
                frozen.release()
                assert go.acquire(timeout=WAIT)
            wake_next(chain)

        with gated(store, monkeypatch) as gate:
            monkeypatch.setattr(committer.carrier, "carry", carry_late)
            if glanced == "before":
                gate.start(lambda: users.__setitem__(b"late", b""), "newcomer")
                assert ready.acquire(timeout=WAIT)
            gate.start(lambda: users.__setitem__(b"0", b""))
            gate.wait_syncing()
            for number, name in enumerate(("next leader", "woken", "last")):
                gate.start(lambda number=number: users.__setitem__(b"%d" % number, b""), name)  # type: ignore[misc]
                gate.wait_queued(store, 1)
            monkeypatch.setattr(WakeChain, "wake_next", wake_late)
            gate.open.release(2)
            gate.wait_syncing()
            assert frozen.acquire(timeout=WAIT)
            # The group has ended, and nobody leads; one thread of it is awake, one not yet.
            leads = [committer.context.standing.lead]
            position = store.parts.writer.position
            if glanced == "before":
                come.release(2)
            else:
                gate.start(lambda: users.__setitem__(b"late", b""), "newcomer")
            gate.wait_queued(store, 1)
            assert [*leads, committer.context.standing.lead] == [Lead.IDLE, Lead.NAMED]
            assert store.parts.writer.position == position
            go.release(2)
            gate.finish(1)
            assert gate.errors == []
        assert sorted(users) == [b"0", b"1", b"2", b"first", b"late"]


@pytest.mark.parametrize(("limit", "size"), [("bytes_max", 2000), ("puts_max", 10)])
def test_a_group_is_no_larger_than_it_may_be(
    monkeypatch: pytest.MonkeyPatch, limit: str, size: int
) -> None:
    with opened() as store:
        users = store.database.map("users")
        setattr(store.parts.committer.queue, limit, 5000 if size > PUT_BYTES_MAX else 2)
        with gated(store, monkeypatch) as gate:
            gate.start(lambda: users.__setitem__(b"first", b""))
            gate.wait_syncing()
            for number in range(5):
                gate.start(lambda number=number: users.__setitem__(b"%d" % number, b"x" * size))  # type: ignore[misc]
            gate.wait_queued(store, 5)
            gate.finish(4)
        sizes = [sum(isinstance(r, TxRecord) for r in frame) for frame in records_of(store)]
        assert [size for size in sizes if size] == [1, 2, 2, 1]


def test_a_transaction_is_checked_against_those_before_it_in_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened() as store:
        users = store.database.map("users")
        users[b"a"] = b"1"

        def rewrite() -> None:
            with store.database.transaction() as tx:
                tx[users][b"a"] = tx[users][b"a"] + b"!"
                ready.release()
                assert go.acquire(timeout=WAIT)

        ready, go = threading.Semaphore(0), threading.Semaphore(0)
        with gated(store, monkeypatch) as gate:
            for _ in range(2):
                gate.start(rewrite)
            for _ in range(2):
                assert ready.acquire(timeout=WAIT)
            gate.start(lambda: users.__setitem__(b"b", b""))
            gate.wait_syncing()
            go.release(2)
            gate.wait_queued(store, 2)
            gate.finish(2)
        assert users[b"a"] == b"1!"
        (error,) = gate.errors
        assert isinstance(error, ConflictError)
        assert (error.namespace, error.key) == ("users", b"a")
        assert error.winner is not None
        assert store.database.outcome(error.winner) == "committed"


def test_the_same_id_twice_in_one_group_is_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as store:
        users = store.database.map("users", value=None)
        tx_id = store.database.new_id()
        counted = store.database.map("counted")

        def add() -> None:
            with store.database.transaction(id=tx_id, isolation="read_committed") as tx:
                tx[counted][b"n"] = tx[counted].get(b"n", b"") + b"|"

        with gated(store, monkeypatch) as gate:
            gate.start(lambda: users.__setitem__(b"b", b""))
            gate.wait_syncing()
            for _ in range(2):
                gate.start(add)
            gate.wait_queued(store, 2)
            gate.finish(3)
        assert counted[b"n"] == b"|"
        assert len(gate.errors) <= 1
        assert all(error.retryable for error in gate.errors if isinstance(error, TidelogError))
        add()
        assert counted[b"n"] == b"|"


def test_a_durable_repeat_of_a_relaxed_commit_is_synced_before_it_is_acknowledged() -> None:
    with opened(durability="none") as store:
        users = store.database.map("users")
        tx_id = store.database.new_id()
        with store.database.transaction(id=tx_id) as tx:
            tx[users][b"a"] = b"1"
        assert store.parts.writer.synced < tx.receipt.position  # type: ignore[union-attr]
        with store.database.transaction(id=tx_id, durability="always") as again:
            again[users][b"a"] = b"2"
        assert store.parts.writer.synced >= tx.receipt.position  # type: ignore[union-attr]
        assert users[b"a"] == b"1"
        assert again.receipt is not None
        assert again.receipt.tx_id == tx_id


def test_a_batch_has_an_outcome_for_each_of_its_commits() -> None:
    with opened(transaction_bytes_max=1000) as store:
        store.database.map("users")
        committer = store.parts.committer

        def refuse(commit: Commit, group: object) -> None:
            raise ConflictError("no", namespace="users", key=None, winner=None)

        batch: list[Puts | Commit] = [
            commit_of(b"a"),
            commit_of(b"large", b"x" * 2000),
            commit_of(b"b", check=refuse),
            put_of(b"c"),
            commit_of(b"d", durable=False),
        ]
        committer.commit_all(batch)
        assert [type(entry.error) for entry in batch] == [
            type(None), TransactionTooLargeError, ConflictError, type(None), type(None)
        ]  # fmt: skip
        receipts = [entry.receipt for entry in batch if isinstance(entry, Commit)]
        assert [receipt is None for receipt in receipts] == [False, True, True, False]
        committer.commit_all([])
        assert Batch(batch).size == sum(entry.size for entry in batch)


def test_a_commit_whose_deadline_has_passed_leaves_nothing() -> None:
    with opened() as store:
        store.database.map("users")
        position = store.parts.writer.position
        with pytest.raises(DeadlineError):
            store.parts.committer.commit(commit_of(b"a", deadline=-1.0))
        assert store.parts.writer.position == position
        assert not any(counter.hwm for counter in store.parts.state.counters)


def test_a_commit_at_its_very_deadline_is_in_time() -> None:
    with opened() as store:
        store.database.map("users")
        commit = commit_of(b"a", deadline=store.environment.monotonic())
        assert store.parts.committer.commit(commit) is commit.receipt


# ------------------------------------------------------------------ too large


def test_a_transaction_may_be_as_large_as_the_limit() -> None:
    alone, in_batch = commit_of(b"a", b"x" * 1000), commit_of(b"b", b"x" * 1000)
    with opened(transaction_bytes_max=alone.size) as store:
        store.database.map("users")
        store.parts.committer.commit(alone)
        store.parts.committer.commit_all([in_batch])
        assert in_batch.error is None


@pytest.mark.parametrize("durability", ["always", "none"])
def test_what_is_too_large_reserves_nothing(durability: Any) -> None:
    with opened(transaction_bytes_max=1000, durability=durability) as store:
        users = store.database.map("users")
        users[b"a"] = b"1"
        position = store.parts.writer.position
        hwms = [counter.hwm for counter in store.parts.state.counters]
        with pytest.raises(TransactionTooLargeError, match="1,000 are allowed") as caught:
            users.update_many({b"%d" % number: b"x" * 100 for number in range(20)})
        assert "map.load" in caught.value.hint
        with store.database.transaction() as tx:
            for number in range(20):
                tx[users][b"%d" % number] = b"x" * 100
            with pytest.raises(TransactionTooLargeError):
                tx.commit()
        with pytest.raises(TransactionTooLargeError):
            users[b"large"] = b"x" * 2000
        assert store.parts.writer.position == position
        assert [counter.hwm for counter in store.parts.state.counters] == hwms
        assert dict(users) == {b"a": b"1"}


# ------------------------------------------------------------------ appends that fail


@pytest.mark.parametrize(
    ("fault", "error"), [("ENOSPC", DiskFullError), ("short", DiskFullError), ("EIO", DiskError)]
)
def test_a_failed_append_takes_no_effect_and_its_numbers_are_closed_by_the_next_frame(
    fault: str, error: type[TidelogError]
) -> None:
    with opened() as store:
        users = store.database.map("users")
        users[b"a"] = b"1"
        store.disk.fail_at(store.disk.operations + 1, fault, kind="write")
        with pytest.raises(error) as caught:
            users.update_many({b"a": b"2", b"b": b"2"})
        assert caught.value.retryable == (error is DiskFullError)
        assert dict(users) == {b"a": b"1"}
        users[b"c"] = b"3"
        (*_, (rollback, put)) = records_of(store)
        assert isinstance(rollback, RollbackRecord)
        assert isinstance(put, TxRecord)
        assert rollback.reason == "append failed"
        assert sum(run.count for run in rollback.runs) == 2
        for counter in store.parts.state.counters:
            assert counter.lwm == counter.hwm
            assert not counter.out_of_order
        assert dict(users) == {b"a": b"1", b"c": b"3"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_quota_and_a_largest_file_are_a_full_disk_too(number: int) -> None:
    with opened() as store:
        error = store.parts.committer.end_of_log.append_error(OSError(number, "no more"))
        assert isinstance(error, DiskFullError)


def test_while_the_disk_is_full_nothing_is_lost_and_with_space_everything_works_again() -> None:
    with opened() as store:
        users = store.database.map("users")
        users[b"a"] = b"1"
        store.disk.fail_at(store.disk.operations + 1, "ENOSPC", for_ever=True)
        for number in range(5):
            with pytest.raises(DiskFullError):
                users[b"%d" % number] = b"2"
            assert dict(users) == {b"a": b"1"}
        store.disk.heal()
        users[b"b"] = b"3"
        assert dict(users) == {b"a": b"1", b"b": b"3"}
        (*_, (rollback, _)) = records_of(store)
        assert sum(run.count for run in rollback.runs) == 5


def test_a_relaxed_update_waits_for_the_gaps_to_be_closed() -> None:
    with opened(durability="none") as store:
        users = store.database.map("users")
        store.disk.fail_at(store.disk.operations + 1, "EIO", kind="write")
        with pytest.raises(DiskError):
            users.update_many({b"a": b"1"})
        syncs = store.parts.committer.end_of_log.times.count
        users[b"b"] = b"2"
        users[b"c"] = b"3"
        assert store.parts.committer.end_of_log.times.count == syncs
        frames = records_of(store)[-2:]
        assert [[type(record) for record in frame] for frame in frames] == [
            [RollbackRecord, TxRecord],
            [TxRecord],
        ]


def test_a_rotation_that_fails_fails_the_group_and_no_more() -> None:
    with opened(segment_bytes=1) as store:
        users = store.database.map("users")
        for number in range(12):
            users[b"%d" % number] = b"x" * 10_000
        store.disk.fail_at(store.disk.operations + 1, "ENOSPC", kind="create")
        with pytest.raises(DiskFullError):
            users[b"more"] = b"x" * 20_000
        assert b"more" not in users
        users[b"more"] = b"x" * 20_000
        assert store.parts.writer.segment.number == 2


# ------------------------------------------------------------------ syncs that fail


def failing_sync(store: Opened) -> None:
    store.disk.fail_at(store.disk.operations + 1, "EIO", kind="sync")


def expect_failing_close(store: Opened) -> None:
    """Closing says that the last commits may be lost, and lets go of the store all the same."""
    with pytest.raises(DiskError, match="a sync failed"):
        store.database.close()
    store.database.close()


def expect_stopped(store: Opened) -> None:
    """Writing is refused in every way, reading goes on."""
    users = store.database.map("users")
    operations = store.disk.operations
    for write in (
        lambda: users.__setitem__(b"x", b"y"),
        lambda: users.update_many({b"x": b"y"}),
        lambda: users.discard(b"x"),
        lambda: store.database.drop("users"),
        lambda: store.database.map("new"),
    ):
        with pytest.raises(ReadOnlyError) as caught:
            write()
        assert "outcome" in caught.value.hint
    assert store.disk.operations == operations
    assert store.database.maps() == ["users"]


def test_after_a_failed_sync_the_outcome_is_unknown_and_the_store_stops_writing() -> None:
    store = open_store()
    users = store.database.map("users")
    users[b"a"] = b"1"
    failing_sync(store)
    with pytest.raises(CommitUnknownError) as caught:
        users[b"b"] = b"2"
    assert len(caught.value.tx_id) == 16
    assert not caught.value.retryable
    assert dict(users) == {b"a": b"1"}
    expect_stopped(store)
    expect_failing_close(store)
    again = store.reopened()
    content = dict(again.database.map("users"))
    committed = again.database.outcome(caught.value.tx_id) == "committed"
    assert content == ({b"a": b"1", b"b": b"2"} if committed else {b"a": b"1"})
    again.database.close()


@pytest.mark.parametrize("how", ["transaction", "update_many", "batch"])
def test_the_unknown_outcome_names_the_transaction_and_where_to_ask(how: str) -> None:
    store = open_store()
    users = store.database.map("users")
    failing_sync(store)
    if how == "batch":
        batch: list[Puts | Commit] = [put_of(b"k"), commit_of(b"l", durable=False)]
        store.parts.committer.commit_all(batch)
        errors = [error_of(entry) for entry in batch]
    else:
        tx = store.database.transaction()
        tx[users][b"a"] = b"1"
        act = tx.commit if how == "transaction" else lambda: users.update_many({b"a": b"1"})
        with pytest.raises(CommitUnknownError) as caught:
            act()
        errors = [caught.value]
    for error in errors:
        assert isinstance(error, CommitUnknownError)
        assert error.tx_id.hex() in str(error)
        assert 0 <= error.home < 4
    expect_stopped(store)
    expect_failing_close(store)


def test_a_store_that_has_stopped_names_the_first_reason_for_good() -> None:
    store = open_store()
    users = store.database.map("users")
    failing_sync(store)
    with pytest.raises(CommitUnknownError):
        users[b"a"] = b"1"
    committer = store.parts.committer
    with committer.mutex:
        committer.context.stop("break", "for the test")
    assert "because a sync failed" in (committer.stopped or "")
    session_of(store.database).abandon()


def test_whoever_comes_behind_a_close_hears_that_the_store_is_closed() -> None:
    # One that had looked before it whether the store is open.
    store = open_store()
    store.database.map("users")
    store.database.close()
    with pytest.raises(ClosedError, match="is closed"):
        store.parts.committer.commit(commit_of(b"a"))


def test_what_is_durable_already_is_not_synced_again() -> None:
    with opened(durability="none") as store:
        store.database.map("users")[b"a"] = b"1"
        for _ in range(2):
            store.database.sync()
            syncs = store.parts.committer.end_of_log.times.count
        assert syncs == 1


def test_a_sync_that_fails_for_somebody_else_stops_all() -> None:
    store = open_store(durability="none")
    store.database.map("users")[b"a"] = b"1"
    failing_sync(store)
    with pytest.raises(DiskError, match="sync of the log failed"):
        store.database.sync()
    with pytest.raises(DiskError):
        store.database.sync()
    expect_stopped(store)
    assert store.database.map("users")[b"a"] == b"1"
    expect_failing_close(store)


def test_a_sync_that_fails_while_a_segment_is_begun_stops_all() -> None:
    store = open_store(segment_bytes=1, durability="none")
    users = store.database.map("users")
    for number in range(6):
        users[b"%d" % number] = b"x" * 20_000
    failing_sync(store)
    with pytest.raises(CommitUnknownError):
        users.update_many({b"last": b"x" * 20_000})
    expect_stopped(store)
    assert len(users) == 6
    expect_failing_close(store)


def test_a_sync_that_fails_in_a_rotation_for_an_announcement_stops_all() -> None:
    # No commit is there to be told of it, so that nobody else would stop the store.
    store = open_store()
    store.database.map("users")[b"a"] = b"1"
    store.parts.writer._filled = 0  # as in a rotation that was cut short
    failing_sync(store)
    store.parts.committer.announce()
    assert "because a sync failed" in (store.parts.committer.stopped or "")
    assert store.parts.committer.context.standing.must_queue
    expect_stopped(store)
    expect_failing_close(store)


def test_an_error_from_the_handler_of_a_signal_in_a_sync_stops_nothing() -> None:
    # TimeoutError is an OSError, too: it was taken for one of the disk.
    with opened(durability="none") as store:
        users = store.database.map("users")
        users[b"a"] = b"1"
        with store.around_syncs(timed_out), pytest.raises(TimeoutError):
            store.database.sync()
        assert store.parts.committer.stopped is None
        users[b"b"] = b"2"
        store.database.sync()
        assert store.parts.writer.synced == store.parts.writer.position


def timed_out(_sync: object) -> None:
    raise TimeoutError


# ------------------------------------------------------------------ relaxed commits


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_a_relaxed_put_is_logged_and_not_synced(durability: Any) -> None:
    with opened(durability=durability) as store:
        users = store.database.map("users")
        store.database.sync()
        before = store.database.statistics()
        for number in range(10):
            users[b"%d" % number] = b"v"
        after = store.database.statistics()
        assert after.syncs == before.syncs
        assert after.durable_position == before.position < after.position
        assert after.transactions == before.transactions + 10
        assert after.groups == before.groups
        assert (
            len([r for frame in records_of(store) for r in frame if isinstance(r, TxRecord)]) == 10
        )
        if durability == "interval":
            store.environment.advance(1.0)
            assert store.database.statistics().durable_position >= after.position


def test_a_relaxed_delete_and_a_relaxed_put_agree_on_their_numbers() -> None:
    with opened(durability="none", partitions=1) as store:
        users = store.database.map("users")
        for number in range(5):
            users[b"%d" % number] = b"v"
            users.discard(b"%d" % (number - 1))
        assert dict(users) == {b"4": b"v"}
        (counter,) = store.parts.state.counters
        assert (counter.lwm, counter.hwm) == (10, 10)


def test_time_does_not_fall_when_the_clock_does() -> None:
    for durability in ("always", "none"):
        with opened(durability=durability) as store:
            users = store.database.map("users")
            users[b"a"] = b"1"
            store.environment.time.jump(-3600)
            users[b"b"] = b"2"
            users.update_many({b"c": b"3"})
            times = [
                r.time for frame in records_of(store) for r in frame if isinstance(r, TxRecord)
            ]
            assert len(times) == 3
            assert times == sorted(times)


def test_a_relaxed_update_that_fails_says_so_and_uses_no_number() -> None:
    with opened(durability="none", partitions=1) as store:
        users = store.database.map("users")
        store.disk.fail_at(store.disk.operations + 1, "ENOSPC", kind="write")
        with pytest.raises(DiskFullError):
            users[b"a"] = b"1"
        assert b"a" not in users
        users[b"b"] = b"1"
        (counter,) = store.parts.state.counters
        assert (counter.lwm, counter.hwm) == (1, 1)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("next_one", ["reads", "writes"])
def test_a_relaxed_put_that_is_in_the_log_takes_effect(
    monkeypatch: pytest.MonkeyPatch, times: int, next_one: str
) -> None:
    # Interrupted once it is done again; if that is interrupted, too, whoever comes next does it.
    store = open_store(durability="none", partitions=1)
    users = store.database.map("users")
    users[b"a"] = b"1"
    apply_one, left = PartitionUpdateCounter.apply_one, [None] * times

    def applied(self: PartitionUpdateCounter, number: int) -> None:
        if left:
            left.pop()
            raise KeyboardInterrupt
        apply_one(self, number)

    monkeypatch.setattr(PartitionUpdateCounter, "apply_one", applied)
    with pytest.raises(KeyboardInterrupt):
        users[b"b"] = b"2"
    if next_one == "reads":
        assert users[b"b"] == b"2"
    users[b"c"] = b"3"
    assert dict(users) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    session_of(store.database).abandon()
    with opened(store.disk.crash("kept"), seed=2) as again:
        assert again.database.map("users")[b"b"] == b"2"


def test_an_error_behind_the_frame_of_a_relaxed_put_is_not_called_one_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The handler of a signal may raise one with a number, too; the put has taken effect.
    with opened(durability="none", partitions=1) as store:
        users = store.database.map("users")
        users[b"a"] = b"1"

        def broken_pipe(_counter: object, _number: int) -> None:
            monkeypatch.undo()
            raise BrokenPipeError(errno.EPIPE, "by the handler of a signal")

        monkeypatch.setattr(PartitionUpdateCounter, "apply_one", broken_pipe)
        with pytest.raises(BrokenPipeError):
            users[b"b"] = b"2"
        assert dict(users) == {b"a": b"1", b"b": b"2"}


def test_relaxed_puts_give_way_to_a_checkpoint_once_in_512(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(durability="none") as store:
        users, committer = store.database.map("users"), store.parts.committer
        given = list[int]()

        def give_way() -> None:
            given.append(committer.context.ids.last)

        monkeypatch.setattr(committer, "yield_to_checkpoint", give_way)
        for _ in range(1100):
            users[b"a"] = b"1"
        assert given == [0, 512, 1024]
        users.update_many({b"a": b"2"})  # takes long enough to do so each time
        assert given[3:] == [1100]


# ------------------------------------------------------------------ other records


def test_what_is_durable_is_announced_once_and_only_when_nobody_is_busy() -> None:
    with opened() as store:
        store.database.map("users")[b"a"] = b"1"
        writer, committer = store.parts.writer, store.parts.committer
        assert writer.announced < writer.synced
        committer.announce()
        assert writer.announced == writer.position == committer.applied_position
        assert [type(record) for record in records_of(store)[-1]] == [IdleRecord]
        position = writer.position
        committer.announce()
        assert writer.position == position
        store.database.map("users")[b"a"] = b"2"
        store.disk.fail_at(store.disk.operations + 1, "EIO", kind="write")
        committer.announce()
        assert writer.announced < writer.synced == writer.position


def test_a_store_that_has_stopped_announces_nothing() -> None:
    store = open_store(durability="none")
    users, writer = store.database.map("users"), store.parts.writer
    users[b"a"] = b"1"
    store.database.sync()
    assert writer.announced < writer.synced == writer.position
    with store.parts.committer.mutex:
        store.parts.committer.context.stop("break", "for the test")
    store.parts.committer.announce()
    assert writer.announced < writer.synced
    session_of(store.database).abandon()


def test_other_records_run_what_follows_once_they_are_logged() -> None:
    with opened() as store:
        ran: list[int] = []
        record = CheckpointRecord(position=0, time=1)
        end = store.parts.committer.log(
            [record, IdleRecord()], durable=True, then=lambda: ran.append(1)
        )
        assert ran == [1]
        assert end == store.parts.writer.position == store.parts.writer.synced
        assert records_of(store)[-1] == [record, IdleRecord()]


def test_a_bug_in_a_commit_ends_all_that_wait_with_it() -> None:
    # A put that shared the group with a commit that broke was acknowledged without being logged.
    store = open_store()
    store.database.map("users")

    def broken(commit: Commit, group: object) -> None:
        raise ZeroDivisionError

    batch: list[Puts | Commit] = [put_of(b"a"), commit_of(b"b", check=broken), put_of(b"c")]
    with pytest.raises(ZeroDivisionError):
        store.parts.committer.commit_all(batch)
    assert all(isinstance(entry.error, ZeroDivisionError) for entry in batch)
    assert len(store.database.map("users")) == 0
    store.database.map("users")[b"d"] = b"1"
    store.database.close()


def note(times: SyncTimes, seconds: float) -> None:
    times.count += 1
    times.recent.append(seconds)


def test_sync_times_are_those_of_the_newest_syncs() -> None:
    times = SyncTimes()
    assert times.percentiles() == (0.0, 0.0, 0.0)
    note(times, 0.5)
    assert times.percentiles() == (5e5, 5e5, 5e5)
    for milliseconds in range(1, 2001):
        note(times, milliseconds / 1000)
    median, p99, longest = times.percentiles()
    assert times.count == 2001
    assert longest == pytest.approx(2e6)
    assert median == pytest.approx(1.488e6, rel=0.01)
    assert p99 == pytest.approx(1.99e6, rel=0.01)
