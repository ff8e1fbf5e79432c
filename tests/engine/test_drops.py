"""Drops against commits: whatever touched a map that was dropped first is refused, whole."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from support.interrupts import Interrupt, Line, Tracer
from support.stores import Opened, open_store, opened, took_steps
from tidelog.affinity.errors import (
    DiskFullError,
    LockTimeoutError,
    NotFoundError,
)
from tidelog.affinity.partitions import partition_of
from tidelog.codecs import Msgpack
from tidelog.engine.api.database import session_of
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.api.snapshots import SnapshotSession
from tidelog.engine.api.transactions import Transaction
from tidelog.engine.commit.entries import Commit, Entry
from tidelog.engine.commit.puts import Puts
from tidelog.engine.data.namespaces import Namespace
from tidelog.engine.data.updates import FewUpdates
from tidelog.engine.system.limits import Limits
from tidelog.testing import check_database
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import TxRecord

Reads = Callable[[Any], object]

NAMESPACES = "engine/data/namespaces.py"


@pytest.fixture
def store() -> Iterator[Opened]:
    with opened() as store:
        for name in ("a", "b"):
            store.database.map(name)[b"k"] = b"1"
        yield store


def sound(store: Opened) -> bool:
    store.database.checkpoint()
    return check_database(store.database) == []


def expect_dropped(work: Callable[[], object]) -> None:
    with pytest.raises(NotFoundError, match="'a' was dropped") as caught:
        work()
    assert not caught.value.retryable


# ------------------------------------------------------------------ transactions


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_transaction_that_wrote_to_a_map_that_was_dropped_writes_nothing(
    store: Opened, checkpointed: bool
) -> None:
    # Its commit was acknowledged, and its keys belonged to no map for ever.
    db = store.database
    a, b = db.map("a"), db.map("b")
    tx = db.transaction(id=b"i" * 16)
    tx[a][b"new"] = b"x"
    tx[b][b"also"] = b"y"
    db.drop("a")
    if checkpointed:
        db.checkpoint()
    expect_dropped(tx.commit)
    assert dict(b) == {b"k": b"1"}
    assert db.outcome(b"i" * 16) == "rolled_back"
    assert sound(store)


@pytest.mark.parametrize(
    "read",
    [
        lambda a: a.get(b"k"),
        lambda a: a.get(b"absent"),
        lambda a: a.get_many([b"x"]),
        lambda a: list(a.items()),
        lambda a: next(iter(a.range(limit=1))),
    ],
)
def test_a_serializable_transaction_that_read_a_map_that_was_dropped_is_refused(
    store: Opened, read: Reads
) -> None:
    # It closed a circle: who saw no map, and nothing of the transaction, came before it and behind.
    db = store.database
    a, b = db.map("a"), db.map("b")
    tx = db.transaction()
    read(tx[a])
    tx[b][b"x"] = b"seen"
    db.drop("a")
    expect_dropped(tx.commit)
    assert b.get(b"x") is None


def test_a_map_that_was_made_anew_is_another_one(store: Opened) -> None:
    db = store.database
    tx = db.transaction()
    tx[db.map("a")].get(b"k")
    tx[db.map("b")][b"x"] = b"seen"
    first = namespace_of(db.map("a")).id
    db.drop("a")
    again = db.map("a")
    assert namespace_of(again).id > first
    expect_dropped(tx.commit)
    again[b"k"] = b"2"
    assert sound(store)
    store.database.close()
    reopened = store.reopened()
    assert dict(reopened.database.map("a")) == {b"k": b"2"}
    assert namespace_of(reopened.database.map("c")).id > namespace_of(again).id
    reopened.database.close()


@pytest.mark.parametrize("isolation", ["repeatable_read", "read_committed"])
def test_what_lower_levels_only_read_may_be_dropped(store: Opened, isolation: Any) -> None:
    db = store.database
    a, b = db.map("a"), db.map("b")
    tx = db.transaction(isolation=isolation)
    tx[a].get(b"k")
    tx[b][b"x"] = b"seen"
    db.drop("a")
    tx.commit()
    assert b[b"x"] == b"seen"


def test_a_map_that_was_looked_at_but_not_read_may_be_dropped(store: Opened) -> None:
    db = store.database
    a, b = db.map("a"), db.map("b")
    tx = db.transaction()
    pairs = tx[a].items()
    tx[b].get(b"k")
    tx[b][b"x"] = b"1"
    db.drop("a")
    del pairs
    tx.commit()
    assert b[b"x"] == b"1"


def test_an_id_that_was_committed_before_the_drop_stays_committed(store: Opened) -> None:
    db = store.database
    a = db.map("a")

    def work(tx: Transaction) -> None:
        tx[a][b"x"] = b"1"

    transactions = [db.transaction(id=b"i" * 16) for _ in range(2)]
    for tx in transactions:
        work(tx)
    transactions[0].commit()
    db.drop("a")
    assert transactions[1].commit().tx_id == b"i" * 16


def test_nobody_tries_again_with_a_map_that_is_gone(store: Opened) -> None:
    db = store.database
    a, runs = db.map("a"), []

    def work(tx: Transaction) -> None:
        runs.append(tx)
        tx[a][b"x"] = b"1"
        db.drop("a")

    expect_dropped(lambda: db.run(work, plain_writes=True))
    assert len(runs) == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda a: a.incr(b"n"),
        lambda a: a.pop(b"k"),
        lambda a: a.popitem(),
        lambda a: a.setdefault(b"x", b"1"),
        lambda a: a.compare_and_set(b"k", b"1", b"2"),
        lambda a: a.clear(),
        lambda a: a.update_many({b"x": b"1"}),
        lambda a: a.load([(b"x", b"1")]),
        lambda a: a.set(b"x", b"1"),
        lambda a: a.discard(b"x"),
        lambda a: a.set(b"x", bytes(5000)),
    ],
)
@pytest.mark.parametrize("durability", ["always", "none"])
def test_a_write_that_is_overtaken_by_a_drop_is_not_acknowledged(
    durability: Any, write: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(durability=durability) as store:
        db = store.database
        a = db.map("a", value=Msgpack)
        a[b"k"] = b"1"
        carrier = store.parts.committer.carrier
        carry = carrier.carry

        def drop_first(taken: Any) -> Any:
            if db.maps() == ["a"]:
                monkeypatch.setattr(carrier, "carry", carry)
                db.drop("a")
            return carry(taken)

        # A relaxed put takes no way on which it could be overtaken, but for this one.
        with carrier.mutex:
            store.parts.committer.close_short_cut()
        monkeypatch.setattr(carrier, "carry", drop_first)
        with pytest.raises(NotFoundError):
            write(a)
        assert sound(store)


# ------------------------------------------------------------------ the group


def drop_entry(store: Opened, name: str, monkeypatch: pytest.MonkeyPatch) -> Commit:
    """What a drop queues, without queueing it."""
    found: list[Commit] = []
    with monkeypatch.context() as patch:
        patch.setattr(store.parts.committer, "commit", found.append)
        store.database.drop(name)
    return found[0]


def entries(store: Opened, key: bytes) -> list[Any]:
    """A transaction and a put of a key of map ``a``, and one of map ``b``."""
    a, b = (namespace_of(store.database.map(name)) for name in "ab")
    partition, full_key, put = place(a, b"put" + key)
    return [
        Commit(update(a, key), True),
        Puts([(partition, a.id, full_key, put, b"v", key)], True),
        Commit(update(b, key), True),
    ]


def place(namespace: Namespace, key: bytes) -> tuple[int, bytes, bytes]:
    partition = partition_of(key, namespace.space)
    return partition, namespace.prefixes[partition] + key, key


def update(namespace: Namespace, key: bytes) -> FewUpdates:
    partition, full_key, _ = place(namespace, key)
    return FewUpdates({full_key: (partition, namespace.id, key, b"v")})


def test_what_comes_behind_a_drop_in_its_group_is_refused_and_what_comes_before_it_is_not(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = drop_entry(store, "a", monkeypatch)
    before, behind = entries(store, b"1"), entries(store, b"2")
    group: list[Entry] = [*before, drop, *behind]
    store.parts.committer.commit_all(group)
    assert [entry.error for entry in before] == [None] * 3
    assert before[1].error_of(b"1") is None
    assert isinstance(behind[0].error, NotFoundError)
    assert isinstance(behind[1].error_of(b"2"), NotFoundError)
    assert behind[2].error is None
    assert store.database.maps() == ["b"]
    assert sound(store)


def test_a_drop_that_does_not_get_into_the_log_refuses_nobody(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = store.database
    a = db.map("a")
    drop = drop_entry(store, "a", monkeypatch)

    def no_space(_payload: bytes) -> bool:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store.parts.writer, "append", no_space)
        with pytest.raises(DiskFullError):
            store.parts.committer.commit(drop)
    a[b"x"] = b"1"
    with db.transaction() as tx:
        tx[a][b"y"] = tx[a][b"k"]
    assert dict(a) == {b"k": b"1", b"x": b"1", b"y": b"1"}
    assert session_of(db).dropped == {}
    db.drop("a")
    assert sound(store)


# ------------------------------------------------------------------ pessimistic transactions


@pytest.mark.parametrize(
    "touch",
    [
        lambda a: a.get(b"k"),
        lambda a: list(a),
        lambda a: a.set(b"k", b"2"),
    ],
)
def test_a_drop_waits_for_locks_in_its_map(touch: Reads) -> None:
    # A map went away under a read lock, and what was read was committed elsewhere.
    with opened(lock_timeout=0.01) as store:
        db = store.database
        a, b = db.map("a"), db.map("b")
        a[b"k"] = b"1"
        with db.transaction("pessimistic", plain_writes=True) as tx:
            touch(tx[a])
            with pytest.raises(LockTimeoutError, match="the map 'a' was not granted"):
                db.drop("a")
            db.drop("b")
            touch(tx[a])
        db.drop("a")
        assert db.maps() == []
        assert store.parts.locks.table.idle
        with pytest.raises(NotFoundError):
            b.get(b"k")


def test_whoever_waits_for_a_lock_behind_a_drop_does_not_find_the_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened() as store:
        db = store.database
        a = db.map("a")
        a[b"k"] = b"1"
        locks = store.parts.locks
        asked = threading.Event()
        acquire = locks.acquire

        def noted(owner: int, want: Any, **limits: Any) -> None:
            if threading.current_thread() is not threading.main_thread():
                asked.set()
            acquire(owner, want, **limits)

        monkeypatch.setattr(locks, "acquire", noted)
        errors: list[BaseException] = []

        def late() -> None:
            try:
                with db.transaction("pessimistic") as tx:
                    tx[a].get(b"k")
            except NotFoundError as error:
                errors.append(error)

        thread = threading.Thread(target=late)
        drop = session_of(store.database).catalog._drop

        def drop_beside(record: Any) -> None:
            thread.start()
            assert asked.wait(60)
            drop(record)

        session_of(store.database).catalog._drop = drop_beside  # type: ignore[method-assign]
        db.drop("a")
        thread.join(60)
        assert [type(error) for error in errors] == [NotFoundError]
        assert locks.table.idle


def test_a_map_that_is_renamed_while_its_drop_waits_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as store:
        db = store.database
        db.map("a")[b"k"] = b"1"
        locks = store.parts.locks
        acquire = locks.acquire

        def rename_first(*args: Any, **limits: Any) -> None:
            db.rename("a", "c")
            acquire(*args, **limits)

        monkeypatch.setattr(locks, "acquire", rename_first)
        with pytest.raises(NotFoundError, match="no map 'a'"):
            db.drop("a")
        assert dict(db.map("c")) == {b"k": b"1"}


def test_a_map_that_took_the_name_while_the_drop_waited_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened() as store:
        db = store.database
        old, new = db.map("a"), db.map("new")
        locks = store.parts.locks
        acquire = locks.acquire

        def swap_first(*args: Any, **limits: Any) -> None:
            if "new" in db.maps():
                db.rename("a", "c")
                db.rename("new", "a")
            acquire(*args, **limits)

        monkeypatch.setattr(locks, "acquire", swap_first)
        db.drop("a")
        assert db.maps() == ["c"]
        old[b"k"] = b"1"
        with pytest.raises(NotFoundError):
            new[b"k"] = b"1"


# ------------------------------------------------------------------ what is left behind


def test_keys_that_an_older_version_left_without_a_map_go_with_the_next_drop(
    store: Opened,
) -> None:
    db = store.database
    a = namespace_of(db.map("a"))
    db.drop("a")
    db.checkpoint()
    session_of(db).dropped.clear()
    for key in (b"x", b"y"):
        store.parts.committer.commit(Commit(update(a, key), True))
    db.checkpoint()
    assert any("belongs to no map" in problem for problem in check_database(db))
    db.map("c")[b"k"] = b"1"
    db.drop("b")
    assert sound(store)
    assert dict(db.map("c")) == {b"k": b"1"}


def test_a_recovery_keeps_rows_of_a_map_that_its_replay_has_not_come_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store(limits=Limits(batch_updates=1), partitions=4, checkpoint_bytes=1 << 20)
    db = store.database
    old, keep = db.map("old"), db.map("keep")
    old[b"k"] = b"1"
    db.checkpoint()
    db.drop("old")
    for key in range(40):
        keep[b"%d" % key] = bytes(1000)
    new = db.map("new")
    pairs = {b"%d" % key: b"v" for key in range(40)}
    new.update(pairs)
    assert not took_steps(db, 2, store.environment.limits)  # one transaction, and no other
    found = store.disk.crash("lost")
    session_of(db).abandon()
    with opened(found, checkpoint_bytes=10_000) as again:
        assert dict(again.database.map("new")) == pairs
        assert len(again.database.map("keep")) == 40
        assert again.database.maps() == ["keep", "new"]


def test_no_record_behind_a_drop_touches_the_map(store: Opened) -> None:
    db = store.database
    a = db.map("a")
    number = namespace_of(a).id
    a[b"x"] = b"1"
    db.drop("a")
    expect_dropped(lambda: a.set(b"y", b"1"))
    scan = Scan(store.disk.directory("/store/wal"))
    touching = [
        record.time
        for _, record in read_records(scan)
        if isinstance(record, TxRecord) and record.namespaces == number
    ]
    assert len(touching) == 2


def test_a_map_that_was_dropped_still_has_its_name_in_errors(store: Opened) -> None:
    number = namespace_of(store.database.map("a")).id
    store.database.drop("a")
    name_of = store.parts.committer.context.name_of
    assert name_of(number) == "a"
    assert name_of(9999) == "namespace 9999"


# ------------------------------------------------------------------ reads beside a drop


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_snapshot_from_behind_a_drop_does_not_show_the_map(
    store: Opened, checkpointed: bool
) -> None:
    # It did, and behind a checkpoint the map was empty.
    db = store.database
    a = db.map("a")
    with db.snapshot() as before:
        db.drop("a")
        if checkpointed:
            db.checkpoint()
        with db.snapshot() as behind:
            expect_dropped(lambda: behind[a])
        assert dict(before[a]) == {b"k": b"1"}
        assert before[a].get_many([b"k"]) == {b"k": b"1"}


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(
    "read",
    [
        lambda a: a.get(b"k"),
        lambda a: a.get_many([b"k"]),
        lambda a: list(a.items()),
        lambda a: len(a),
    ],
)
def test_a_transaction_whose_snapshot_was_overtaken_by_a_drop_reads_nothing_of_the_map(
    store: Opened, read: Reads, checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It read the map and what was written behind the drop, or an empty map.
    db = store.database
    a, b = db.map("a"), db.map("b")
    session = session_of(db)
    take = session.snapshot

    def overtaken() -> SnapshotSession:
        monkeypatch.setattr(session, "snapshot", take)
        db.drop("a")
        b[b"k"] = b"behind the drop"
        if checkpointed:
            db.checkpoint()
        return take()

    with db.transaction(plain_writes=True) as tx:
        monkeypatch.setattr(session, "snapshot", overtaken)
        expect_dropped(lambda: read(tx[a]))
        assert tx[b][b"k"] == b"behind the drop"


@pytest.mark.parametrize(
    "read",
    [
        lambda db: db.map("a").get(b"k"),
        lambda db: b"k" in db.map("a"),
        lambda db: db.transaction(isolation="read_committed")[db.map("a")].get(b"k"),
    ],
)
def test_a_read_that_is_overtaken_by_a_drop_and_a_checkpoint_does_not_find_an_empty_map(
    store: Opened, read: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = store.database
    session = session_of(db)
    overlay = session.overlay

    class Overtaken:
        """Whoever wants to read here comes too late, the first time."""

        def __getattr__(self, name: str) -> Any:
            if name == "view" and db.maps() == ["a", "b"]:
                db.drop("a")
                db.checkpoint()
            return getattr(overlay, name)

    monkeypatch.setattr(session, "overlay", Overtaken())
    expect_dropped(lambda: read(db))


def test_whoever_pops_is_told_of_a_drop_that_came_first(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = store.database
    a, session = db.map("a"), session_of(db)
    take = session.snapshot

    def overtaken() -> SnapshotSession:
        monkeypatch.setattr(session, "snapshot", take)
        db.drop("a")
        db.checkpoint()
        return take()

    monkeypatch.setattr(session, "snapshot", overtaken)
    expect_dropped(a.popitem)


def test_a_drop_that_is_interrupted_at_any_line_reaches_the_handles_of_its_map() -> None:
    # Carried on by the next holder of the mutex, it left them alive.
    def dropped(at: tuple[Line, int] | None) -> tuple[Counter[Line], bool]:
        tracer = Tracer(at)
        with opened() as store:
            db = store.database
            a = db.map("a")
            a[b"k"] = b"1"
            with suppress(Interrupt):
                tracer.run(lambda: db.drop("a"))
            db.snapshot().close()  # sees to what was left undone
            broken = store.parts.committer.interrupted
            assert broken or (db.maps() == []) == (not namespace_of(a).alive), tracer.where
        return tracer.lines, broken

    lines, _ = dropped(None)
    wanted = [line for line in lines if line[0] in ("engine/store/catalog.py", NAMESPACES)]
    assert len(wanted) > 20
    assert not any(dropped((line, 0))[1] for line in wanted)
