"""Transactions: what they read, what they conflict with at each level, and how they end."""

from __future__ import annotations

import copy
import math
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.stores import Opened, opened
from tidelog.affinity.errors import (
    ClosedError,
    ConflictError,
    DeadlineError,
    LockTimeoutError,
    RolledBackError,
    SnapshotExpiredError,
    UsageError,
)
from tidelog.engine.api.database import session_of
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.api.transaction_session import TAG_BYTES_MAX
from tidelog.engine.api.transactions import behind
from tidelog.tx.validation import READ_RULES
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import TxRecord


@pytest.fixture
def store() -> Iterator[Opened]:
    with opened() as store:
        store.database.map("users").update({b"a": b"1", b"b": b"1", b"c": b"1"})
        yield store


def last_record(store: Opened) -> TxRecord:
    scan = Scan(store.disk.directory("/store/wal"))
    records = [record for _, record in read_records(scan) if isinstance(record, TxRecord)]
    return records[-1]


LEVELS = pytest.mark.parametrize(("mode", "isolation"), list(READ_RULES))


# ------------------------------------------------------------------ reading


@LEVELS
def test_a_transaction_reads_what_it_wrote_and_others_do_not(
    store: Opened, mode: Any, isolation: Any
) -> None:
    users = store.database.map("users")
    with store.database.transaction(mode, isolation=isolation) as tx:
        inside = tx[users]
        assert tx[users] is inside
        inside[b"a"] = b"2"
        inside[b"new"] = b"2"
        del inside[b"b"]
        assert dict(inside) == {b"a": b"2", b"c": b"1", b"new": b"2"}
        assert inside.get_many([b"a", b"b", b"new"]) == {b"a": b"2", b"new": b"2"}
        assert list(inside.keys(prefix=b"n")) == [b"new"]
        assert [key for key, _ in inside.range(reverse=True)] == [b"new", b"c", b"a"]
        if mode == "optimistic":
            assert dict(users) == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert dict(users) == {b"a": b"2", b"c": b"1", b"new": b"2"}


@pytest.mark.parametrize("isolation", ["serializable", "repeatable_read", "read_committed"])
def test_what_a_second_read_sees_depends_on_the_level(store: Opened, isolation: Any) -> None:
    users = store.database.map("users")
    with store.database.transaction(isolation=isolation, plain_writes=True) as tx:
        assert tx[users][b"a"] == b"1"
        users[b"a"] = b"2"
        users[b"d"] = b"2"
        sees_new = isolation == "read_committed"
        assert tx[users][b"a"] == (b"2" if sees_new else b"1")
        assert (b"d" in list(tx[users])) == sees_new
        tx.rollback()


# ------------------------------------------------------------------ conflicts

# What one transaction reads and writes, what another commits meanwhile, and whether the first
# one conflicts when it is serializable / repeatable_read / read_committed.
CASES: list[tuple[str, str, str, str, str]] = [
    ("a key read", "read a, write z", "put a", "a", "yes no no"),
    ("a key not read", "read a, write z", "put b", "", "no no no"),
    ("an absent key read", "read x, write z", "put x", "x", "yes no no"),
    ("a key deleted", "read a, write z", "del a", "a", "yes no no"),
    ("a key scanned", "scan, write z", "put b", "b", "yes no no"),
    ("a phantom", "scan, write z", "put bb", "bb", "yes no no"),
    ("beyond a bounded scan", "scan b, write z", "put bb", "", "no no no"),
    ("inside a bounded scan", "scan b, write z", "put aa", "aa", "yes no no"),
    ("behind the block that a scan was given", "first, write z", "put d", "", "no no no"),
    ("its own write, read before", "read a, write a", "put a", "a", "yes yes no"),
    ("its own write, not read", "read b, write a", "put a", "a", "no yes no"),
    ("its own write, read after", "write a, read a", "put a", "", "no no no"),
    ("only reads", "read a", "put a", "", "no no no"),
    ("another map", "read a, write z", "other a", "", "no no no"),
]


def play(tx: Any, store: Opened, script: str) -> None:
    users = store.database.map("users")
    for step in script.split(", "):
        match step.split():
            case ["read", key]:
                tx[users].get(key.encode())
            case ["write", key]:
                tx[users][key.encode()] = b"mine"
            case ["scan"]:
                list(tx[users])
            case ["scan", stop]:
                list(tx[users].range(None, stop.encode()))
            case ["first"]:
                list(tx[users].range(limit=1))


def commit_other(store: Opened, change: str) -> None:
    what, key = change.split()
    users = store.database.map("users")
    match what:
        case "put":
            users[key.encode()] = b"theirs"
        case "del":
            users.discard(key.encode())
        case "other":
            store.database.map("others")[key.encode()] = b"theirs"


@pytest.mark.parametrize(
    ("script", "change", "key", "conflicts"),
    [row[1:] for row in CASES],
    ids=[row[0] for row in CASES],
)
@pytest.mark.parametrize("level", range(3))
@pytest.mark.parametrize("flushed", [False, True])
def test_a_conflict_is_found_exactly_where_the_level_says(
    store: Opened, script: str, change: str, key: str, conflicts: str, level: int, flushed: bool
) -> None:
    isolation: Any = ("serializable", "repeatable_read", "read_committed")[level]
    tx = store.database.transaction(isolation=isolation)
    play(tx, store, script)
    commit_other(store, change)
    if flushed:
        # The change has left the overlay; the transaction still finds it.
        store.database.checkpoint()
    if conflicts.split()[level] == "yes":
        with pytest.raises(ConflictError) as caught:
            tx.commit()
        assert caught.value.namespace == "users"
        assert caught.value.key == key.encode()
        assert caught.value.winner == last_record(store).tx_id
        assert store.database.map("users").get(b"z") is None
    else:
        tx.commit()
    assert repr(tx).startswith("<Transaction committed" if tx.receipt else "<Transaction rolled")


def test_a_transaction_whose_snapshot_has_ended_commits_nothing(store: Opened) -> None:
    # What was committed since was merged with what it had read from, and nobody saw the conflict.
    users = store.database.map("users")
    users[b"a"] = b"1"
    tx = store.database.transaction()
    seen = tx[users][b"a"]
    for snapshot in session_of(store.database).snapshots:
        snapshot.expire("the data file had to grow")
    users[b"a"] = b"2"
    for _ in range(2):
        store.database.snapshot().close()
    tx[users][b"new"] = seen
    with pytest.raises(SnapshotExpiredError):
        tx.commit()
    assert b"new" not in users


def test_first_reads_of_one_key_only_are_compared_with_that_key(store: Opened) -> None:
    users = store.database.map("users")
    with store.database.transaction(plain_writes=True) as tx:
        first = next(iter(tx[users]))
        tx[users][b"z"] = first
        users[b"~"] = b"behind what was read"
    assert users[b"z"] == b"a"


# ------------------------------------------------------------------ pessimistic


@pytest.mark.parametrize(
    ("isolation", "script", "change", "blocked"),
    [
        ("serializable", "read a", "put a", True),
        ("serializable", "read x", "put x", True),
        ("serializable", "scan", "put bb", True),
        ("serializable", "scan b", "put bb", False),
        ("repeatable_read", "read a", "put a", True),
        ("repeatable_read", "scan", "put bb", True),
        ("read_committed", "read a", "put a", False),
        ("read_committed", "write a", "put a", True),
        ("serializable", "read a", "other a", False),
    ],
)
def test_what_a_pessimistic_transaction_locks(
    store: Opened, isolation: Any, script: str, change: str, blocked: bool
) -> None:
    store.database.map("others")
    session_of(store.database).lock_timeout = 0.0
    options: Any = {"isolation": isolation, "plain_writes": True}
    with store.database.transaction("pessimistic", **options) as tx:
        play(tx, store, script)
        if blocked:
            with pytest.raises(LockTimeoutError):
                commit_other(store, change)
        else:
            commit_other(store, change)
        tx.rollback()
    commit_other(store, change)


def test_a_lock_that_is_not_granted_ends_in_an_error_and_the_transaction_can_go_on(
    store: Opened,
) -> None:
    users = store.database.map("users")
    with store.database.transaction("pessimistic") as first:
        first[users][b"a"] = b"2"
        with store.database.transaction("pessimistic", lock_timeout=0.0) as second:
            with pytest.raises(LockTimeoutError):
                second[users][b"a"] = b"3"
            second[users][b"b"] = b"3"
    assert (users[b"a"], users[b"b"]) == (b"2", b"3")


def test_an_interrupted_transaction_waits_for_no_lock(store: Opened) -> None:
    users = store.database.map("users")
    with store.database.transaction("pessimistic") as holder:
        holder[users][b"a"] = b"2"
        tx = store.database.transaction("pessimistic")
        behind(tx).interrupt()
        with pytest.raises(RolledBackError):
            tx[users][b"a"] = b"3"
        tx.rollback()
        other = store.database.transaction("pessimistic")
        other[users][b"b"] = b"3"
        behind(other).interrupt()
        with pytest.raises(RolledBackError):
            other[users].get(b"a")
        other.rollback()


# ------------------------------------------------------------------ the end


def test_after_its_end_a_transaction_refuses_everything_but_its_end(store: Opened) -> None:
    users = store.database.map("users")
    for end in ("commit", "rollback"):
        with store.database.transaction() as tx:
            inside = tx[users]
            inside[b"a"] = b"2"
            getattr(tx, end)()
            tx.rollback()
            for act in (
                lambda: inside[b"a"],  # noqa: B023
                lambda: inside.__setitem__(b"a", b"3"),  # noqa: B023
                lambda: list(inside),  # noqa: B023
                lambda: inside.clear(),  # noqa: B023
                lambda: tx[users],
                tx.commit,
                tx.__enter__,
            ):
                with pytest.raises(ClosedError, match="over"):
                    act()
    assert users[b"a"] == b"2"


def test_an_error_in_the_block_rolls_back(store: Opened) -> None:
    users = store.database.map("users")
    with pytest.raises(ZeroDivisionError), store.database.transaction() as tx:  # noqa: PT012
        tx[users][b"a"] = b"2"
        raise ZeroDivisionError
    assert users[b"a"] == b"1"
    assert tx.receipt is None
    assert tx.tx_id is None
    assert store.database.statistics().snapshots == 0


def test_a_scan_that_outlives_its_transaction_says_so(store: Opened) -> None:
    users = store.database.map("users")
    users.update_many({b"%04d" % number: b"v" for number in range(500)})
    with store.database.transaction() as tx:
        scan = iter(tx[users])
        next(scan)
    with pytest.raises(ClosedError):
        list(scan)


def test_a_transaction_is_not_shared_by_threads(store: Opened) -> None:
    users = store.database.map("users")
    caught: list[BaseException] = []
    with store.database.transaction() as tx:
        inside = tx[users]

        def use() -> None:
            try:
                inside[b"a"]
            except UsageError as error:
                caught.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join(60)
    assert [str(error) for error in caught] == ["a transaction belongs to the thread that began it"]


@pytest.mark.parametrize("options", [{"mode": ["x"]}, {"isolation": {}}])
def test_a_mode_that_is_no_text_is_refused(store: Opened, options: Any) -> None:
    with pytest.raises(UsageError, match=r"^a transaction cannot be") as caught:
        store.database.transaction(**options)
    assert "optimistic, pessimistic" in caught.value.hint


NO_TIMES: list[Any] = [math.nan, math.inf, 1e10, 1e300, 10**400, -1, "5", True, [1.0]]
"""What is no time, or longer than anybody can be told to wait."""


@pytest.mark.parametrize("name", ["deadline", "lock_timeout"])
@pytest.mark.parametrize("value", NO_TIMES, ids=type)
def test_what_is_no_time_is_refused_at_once(store: Opened, name: str, value: Any) -> None:
    # It was an OverflowError, TypeError or ValueError of whoever met a lock, much later.
    with pytest.raises(UsageError, match=f"^{name}"):
        store.database.transaction(**{name: value})
    with pytest.raises(UsageError, match=f"^{name}"):
        store.database.run(lambda tx: None, **{name: value})
    with pytest.raises(UsageError, match=f"^{name}"):
        next(iter(store.database.attempts(**{name: value})))


def test_a_deadline_is_for_reads_writes_and_the_commit(store: Opened) -> None:
    users = store.database.map("users")
    tx = store.database.transaction(deadline=1.0)
    store.environment.time.move(1.0)
    tx[users][b"a"] = b"2"  # in time
    store.environment.time.move(0.5)
    for act in (lambda: tx[users][b"a"], lambda: tx[users].__setitem__(b"a", b"3"), tx.commit):
        with pytest.raises(DeadlineError):
            act()
    tx.rollback()
    assert users[b"a"] == b"1"


def test_a_receipt_says_where_and_when(store: Opened) -> None:
    users = store.database.map("users")
    with store.database.transaction(tag="nightly import") as tx:
        tx[users][b"a"] = b"2"
        tx[users][b"b"] = b"2"
    receipt, record = tx.receipt, last_record(store)
    assert receipt is not None
    assert receipt.tx_id == record.tx_id == tx.tx_id
    assert receipt.position == store.parts.writer.position
    assert receipt.time == record.time == store.environment.clock()
    assert receipt.home == record.runs[0].partition
    assert record.tag == "nightly import"


def test_a_tag_and_an_id_of_the_callers_are_both_in_the_record(store: Opened) -> None:
    tx_id = store.database.new_id()
    with store.database.transaction(id=tx_id, tag="import") as tx:
        tx[store.database.map("users")][b"k"] = b"v"
    record = last_record(store)
    assert record.tx_id == tx_id
    assert record.details == {"user_id": True, "tag": "import"}


def test_locks_for_writes_are_taken_in_the_order_of_the_keys(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that of two who wait for each other's keys neither can be.
    users, taken = store.database.map("users"), list[bytes]()
    with session_of(store.database).transaction("optimistic", plain_writes=False) as tx:
        tx.set_many(namespace_of(users), [(b"%d" % number, b"v") for number in (3, 1, 2, 5, 4)])
        monkeypatch.setattr(tx, "_lock", lambda want: taken.append(want.key))
        tx.lock_writes()
    assert len(taken) == 5
    assert taken == sorted(taken)


@pytest.mark.parametrize("tag", [7, b"bytes", "x" * (TAG_BYTES_MAX + 1), "é" * 600, "\ud800"])
def test_a_tag_that_is_none_is_refused(store: Opened, tag: Any) -> None:
    with pytest.raises(UsageError, match="tag"):
        store.database.transaction(tag=tag)


@pytest.mark.parametrize("durability", ["sometimes", 7])
def test_a_durability_that_is_none_is_refused(store: Opened, durability: Any) -> None:
    with pytest.raises(UsageError, match="durability"):
        store.database.transaction(durability=durability)


@pytest.mark.parametrize("durability", ["always", "interval", "none"])
@pytest.mark.parametrize("of_store", ["always", "none"])
def test_a_transaction_may_be_more_or_less_durable_than_its_store(
    of_store: Any, durability: Any
) -> None:
    with opened(durability=of_store) as store:
        users = store.database.map("users")
        store.database.sync()
        with store.database.transaction(durability=durability) as tx:
            tx[users][b"a"] = b"1"
        assert tx.receipt is not None
        assert (store.parts.writer.synced >= tx.receipt.position) == (durability == "always")


def test_a_transaction_over_maps_and_partitions_is_one_record(store: Opened) -> None:
    users, others = store.database.map("users"), store.database.map("others")
    with store.database.transaction() as tx:
        for number in range(20):
            tx[users][b"%d" % number] = b"u"
            tx[others][b"%d" % number] = b"o"
    record = last_record(store)
    assert len(record.keys) == 40
    assert len({run.partition for run in record.runs}) == 4


def test_what_is_dropped_under_a_transaction_is_not_found(store: Opened) -> None:
    users = store.database.map("users")
    tx = store.database.transaction()
    inside = tx[users]
    store.database.drop("users")
    with pytest.raises(UsageError, match="dropped"):
        inside.get(b"a")
    with pytest.raises(UsageError, match="dropped"):
        list(inside)
    with pytest.raises(UsageError, match="dropped"):
        inside[b"a"] = b"1"
    tx.rollback()


def conflicting(store: Opened) -> ConflictError:
    """The error of a transaction that has read what another one changed."""
    users = store.database.map("users")
    tx = store.database.transaction()
    tx[users].get(b"a")
    tx[users][b"b"] = b"1"
    users[b"a"] = b"changed"
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    return caught.value


def test_the_winner_of_a_conflict_is_looked_up_when_it_is_asked_for(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every conflict read the log, under the mutex of all commits.
    keeper, mutex = store.parts.keeper, store.parts.committer.mutex
    asked: list[bool] = []
    find = keeper.writer_of

    def noted(*args: Any) -> Any:
        asked.append(mutex.locked())
        return find(*args)

    monkeypatch.setattr(keeper, "writer_of", noted)
    error = conflicting(store)
    winner = last_record(store).tx_id
    twin = copy.copy(error)
    assert str(error) == "key 'a' of 'users' was changed by another transaction"
    assert asked == []
    assert [error.winner, error.winner, twin.winner] == [winner] * 3
    assert asked == [False, False]


def test_a_conflict_takes_its_winner_into_another_process(store: Opened) -> None:
    error = conflicting(store)
    sent = pickle.loads(pickle.dumps(error))
    assert sent.winner == last_record(store).tx_id
    assert (str(sent), sent.namespace, sent.key) == (str(error), "users", b"a")
    late = conflicting(store)
    store.database.close()
    assert late.winner is not None


@pytest.mark.parametrize(
    ("limit", "changed", "conflicts"),
    [(None, 1, True), (None, 999, False), (1, 0, True), (1, 1, False)],
)
def test_a_range_counts_as_far_as_it_was_iterated_rounded_up_to_a_block(
    store: Opened, limit: int | None, changed: int, conflicts: bool
) -> None:
    db = store.database
    queue = db.map("queue")
    queue.update({b"%04d" % number: b"v" for number in range(1000)})
    tx = db.transaction()
    next(iter(tx[queue].range(limit=limit)))
    tx[queue][b"other"] = b"1"
    queue[b"%04d" % changed] = b"2"
    if conflicts:
        with pytest.raises(ConflictError):
            tx.commit()
    else:
        tx.commit()
