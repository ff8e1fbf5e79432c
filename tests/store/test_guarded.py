"""What the commit mutex guards is done by its holder, on every path that leads there."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.guarded import GUARDED, OwnedLock, watched
from support.loads import make_load, rows_of
from support.real_stores import opened as real_store
from support.stores import Opened, open_store, opened
from tidelog.engine.api.database import Database, session_of
from tidelog.errors import CommitUnknownError, DiskFullError, LockTimeoutError, TidelogError
from tidelog.testing import check_database


def work(db: Database, number: int) -> None:
    """Commit in every way."""
    users = db.map("users")
    for step in range(4):
        key = b"%d %d" % (number, step)
        users[key] = b"v" * 300
        users.update_many({key: b"w", b"shared": b"%d" % number})
        with suppress(TidelogError), db.transaction() as tx:
            tx[users][key] = tx[users].get(b"shared", b"") + b"x"
        with suppress(TidelogError), db.transaction("pessimistic") as tx:
            tx[users][key] = tx[users].get(b"shared", b"") + b"y"
        with db.snapshot() as snapshot:
            assert snapshot[users][key]
        assert len(users.get_many([key, b"none"])) == 1
        users.discard(key)


def change_the_catalog(store: Opened, load: str, number: int) -> None:
    """Make maps, rename, drop and attach them, and hold one in a transaction meanwhile."""
    db = store.database
    passing = db.map(f"passing {number}")
    passing[b"k"] = b"v"
    tx = db.transaction()
    tx[passing][b"k"] = b"late"
    db.rename(f"passing {number}", f"gone {number}")
    db.drop(f"gone {number}")
    with pytest.raises(TidelogError):
        tx.commit()
    db.attach(load, f"attached {number}")


def wait_for_locks(store: Opened) -> None:
    """Let a lock be waited for in vain, and one be in the way of a plain put."""
    db = store.database
    users = db.map("users")
    with db.transaction("pessimistic") as first:
        first[users][b"locked"] = b"1"
        with (
            pytest.raises(LockTimeoutError),
            db.transaction("pessimistic", lock_timeout=0.001) as second,
        ):
            second[users][b"locked"] = b"2"


@pytest.mark.parametrize("durability", ["always", "interval", "none"])
def test_what_the_mutex_guards_is_done_by_its_holder(durability: Any, tmp_path: Path) -> None:
    load = make_load(tmp_path / "load", rows_of(30))
    with watched() as watch, opened(durability=durability, checkpoint_bytes=4_000) as store:
        watch.follow(store.parts)
        work(store.database, 0)
        threads = [threading.Thread(target=work, args=(store.database, n)) for n in range(1, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        change_the_catalog(store, load, 0)
        wait_for_locks(store)
        for kind, path in (("write", "/store/wal"), ("commit", "/store/data")):
            store.disk.fail_at(store.disk.operations + 1, "ENOSPC", kind=kind, path=path)
            with suppress(DiskFullError):
                store.database.map("users").update_many({b"big": bytes(70_000)})
                store.database.checkpoint()
            store.disk.heal()
        store.database.map("users")[b"after"] = b"1"
        store.environment.advance(100.0)
        store.database.checkpoint()
        nowait = session_of(store.database).snapshot_nowait()
        assert nowait is not None
        nowait.close()
        assert check_database(store.database) == []
    assert watch.bare == []
    everything = {f"{owner.__name__}.{name}" for owner, names in GUARDED for name in names}
    # Where threads meet (below), or are interrupted.
    rare = {
        f"CommitQueue.{name}"
        for name in ("add_put", "add_ticket", "applied_soon", "name_anybody", "take")
    } | {"CommitQueue.withdraw_abandoned"}
    assert everything - watch.called <= rare


def test_a_commit_whose_sync_fails_ends_under_the_mutex() -> None:
    with watched() as watch:
        store = open_store()
        users = store.database.map("users")
        watch.follow(store.parts)
        store.disk.fail_at(store.disk.operations + 1, "EIO", kind="sync")
        with pytest.raises(CommitUnknownError):
            users[b"k"] = b"v"
        session_of(store.database).abandon()
    assert watch.bare == []
    assert "CommitQueue.end" in watch.called


@pytest.mark.slow
def test_threads_that_meet_at_a_sync_queue_and_lead_under_the_mutex(tmp_path: Path) -> None:
    with watched() as watch, real_store(tmp_path / "store", checkpoint_bytes=4_000) as db:
        watch.follow(session_of(db).store)
        for _ in range(20):
            threads = [threading.Thread(target=work, args=(db, n)) for n in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if {"CommitQueue.take", "CommitQueue.add_put"} <= watch.called:
                break
    assert watch.bare == []
    assert {"CommitQueue.take", "CommitQueue.add_put"} <= watch.called


def test_the_twin_knows_its_holder() -> None:
    lock, seen = OwnedLock(), list[bool]()
    with lock:
        assert lock.mine()
        thread = threading.Thread(target=lambda: seen.append(lock.mine()))
        thread.start()
        thread.join()
        assert not lock.acquire(blocking=False)
    assert not lock.mine()
    assert seen == [False]
