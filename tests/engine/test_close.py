"""The end of writing: closing beside threads that go on, and what is said after a failed sync."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tidelog.affinity.errors import ClosedError, CommitUnknownError, DiskError, DiskFullError
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.open import open_with
from tidelog.engine.files import manifest as manifests
from tidelog.engine.store import ending
from tidelog.engine.store.handles import open_handles
from tidelog.engine.store.store_files import StoreFiles
from tidelog.testing import FaultyDisk, simulated


def relaxed_store(disk: FaultyDisk) -> tuple[Database, Any]:
    db = open_with(simulated(1, disk), "/store", durability="none", partitions=1)
    numbers = db.map("numbers")
    numbers[b"first"] = b"1"
    return db, numbers


def put_after_each(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, numbers: Any
) -> list[bytes]:
    """Let another thread's put come right after each call of a function; return what was taken."""
    function, taken = getattr(owner, name), list[bytes]()

    def then_put(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        key = b"late %d" % len(taken)
        with suppress(ClosedError):
            numbers[key] = b"x"
            taken.append(key)
        return result

    monkeypatch.setattr(owner, name, then_put)
    return taken


def test_puts_that_race_with_close_are_refused_and_never_called_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The manifest promised frames of a daemon thread that came after the last sync: after a power
    # cut their absence was taken for damage, and the store could not be opened.
    disk = FaultyDisk()
    db, numbers = relaxed_store(disk)
    taken = put_after_each(monkeypatch, session_of(db).store.committer, "sync", numbers)
    db.close()
    assert taken == []
    with open_with(simulated(2, disk.crash("lost")), "/store") as after:
        assert list(after.map("numbers")) == [b"first"]


def test_a_store_that_was_closed_beside_a_writer_was_closed_cleanly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The closing checkpoint let go of the way, and the next open replayed what was put meanwhile.
    disk = FaultyDisk()
    db, numbers = relaxed_store(disk)
    taken = put_after_each(monkeypatch, session_of(db).store.checkpointer, "run", numbers)
    db.close()
    assert taken == []
    writer = session_of(db).store.writer
    assert writer.announced == writer.synced
    found = manifests.read(disk.copy().directory("/store", read_only=True))
    assert found.clean_end == writer.synced == writer.position


@pytest.mark.parametrize(
    ("kind", "path"), [("commit", "/store/data"), ("write", "/store/manifest.tmp")]
)
@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_a_close_that_fails_behind_its_last_sync_says_that_everything_is_durable(
    kind: str, path: str, fault: str
) -> None:
    # An import into a full disk ended with an error that read as if nothing had been committed.
    disk = FaultyDisk()
    db, numbers = relaxed_store(disk)
    numbers[b"second"] = b"2"
    disk.fail_at(1, fault, kind=kind, path=path)
    expected = DiskFullError if fault == "ENOSPC" else DiskError
    with pytest.raises(expected, match="everything that was committed is durable") as caught:
        db.close()
    assert manifests.read(disk.directory("/store")).clean_end is None
    assert ("No space" if fault == "ENOSPC" else "Input/output") in str(caught.value)
    with open_with(simulated(2, disk.crash("lost")), "/store") as after:
        assert list(after.map("numbers")) == [b"first", b"second"]


def test_a_close_whose_last_sync_fails_promises_nothing() -> None:
    disk = FaultyDisk()
    db, _ = relaxed_store(disk)
    disk.fail_at(1, "EIO", kind="sync", path="/store/wal")
    with pytest.raises(DiskError) as caught:
        db.close()
    assert "everything" not in str(caught.value)


def test_every_sync_after_a_failed_one_names_the_reason() -> None:
    # The second and later ones said "the sync of the log failed: " and nothing more.
    disk = FaultyDisk()
    db = open_with(simulated(1, disk), "/store", partitions=1)
    numbers = db.map("numbers")
    disk.fail_at(1, "EIO", kind="sync", path="/store/wal")
    with pytest.raises(CommitUnknownError, match="Input/output error"):
        numbers[b"first"] = b"1"
    with pytest.raises(DiskError, match="Input/output error"):
        db.sync()
    with pytest.raises(DiskError, match="Input/output error"):
        db.close()


def interrupt_halfway(db: Database) -> None:
    """Leave a change of the log unfinished, as an interrupt does that nobody can make good."""
    committer = session_of(db).store.committer
    with committer.mutex:
        committer.context.changing = "the log"


def test_a_store_that_stopped_halfway_is_closed_with_all_that_its_log_has() -> None:
    disk = FaultyDisk()
    db, _ = relaxed_store(disk)
    interrupt_halfway(db)
    db.close()
    with open_with(simulated(2, disk.crash("lost")), "/store") as after:
        assert list(after.map("numbers")) == [b"first"]


def test_a_store_that_stops_while_it_is_closed_has_no_clean_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    db, _ = relaxed_store(disk)
    committer = session_of(db).store.committer
    announce = committer.announce

    def announced() -> None:
        announce()
        interrupt_halfway(db)

    monkeypatch.setattr(committer, "announce", announced)
    db.close()
    assert manifests.read(disk.directory("/store")).clean_end is None
    with open_with(simulated(2, disk), "/store") as after:
        assert list(after.map("numbers")) == [b"first"]


def test_a_close_that_was_interrupted_at_its_end_is_made_up_for_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    db, _ = relaxed_store(disk)
    session = session_of(db)
    open_handles.add(session)  # as a real environment does

    def interrupted(_files: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreFiles, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            db.close()
    assert session in open_handles
    db.close()
    assert session not in open_handles
    with open_with(simulated(2, disk), "/store") as after:
        assert list(after.map("numbers")) == [b"first"]


# ------------------------------------------------------------------ stores that are lost


def test_a_relaxed_store_that_is_lost_keeps_what_it_would_have_synced_soon() -> None:
    disk = FaultyDisk()
    db = open_with(simulated(1, disk), "/store", durability="interval", partitions=1)
    db.map("numbers")[b"first"] = b"1"
    session_of(db).ending.lost()
    with open_with(simulated(2, disk.crash("lost")), "/store") as after:
        assert list(after.map("numbers")) == [b"first"]


def test_a_store_that_had_stopped_when_it_was_lost_has_no_clean_end() -> None:
    disk = FaultyDisk()
    db, _ = relaxed_store(disk)
    db.checkpoint()
    committer = session_of(db).store.committer
    with committer.mutex:
        committer.context.stop("fail", "for the test")
    assert not session_of(db).maintenance.unwritten
    session_of(db).ending.lost()
    assert manifests.read(disk.directory("/store")).clean_end is None


def test_a_finalizer_waits_for_no_lock_that_its_own_thread_may_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    db, _ = relaxed_store(disk)
    started = list[Any]()
    monkeypatch.setattr(ending, "start_new_thread", lambda work, _args: started.append(work))
    with session_of(db).store.committer.mutex:
        session_of(db).ending.lost()
    (work,) = started
    work()
    with open_with(simulated(2, disk), "/store") as after:
        assert list(after.map("numbers")) == [b"first"]
