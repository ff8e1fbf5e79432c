"""Hot copies: what they hold, what they leave alone, and what a crash leaves of them."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tidelog
from support.descriptors import open_files
from tidelog import errors
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.open import open_with
from tidelog.engine.api.read_only import ReadOnlyDatabase
from tidelog.engine.files import manifest as manifests
from tidelog.engine.files.manifest import Manifest
from tidelog.engine.system.limits import LIMITS, Limits
from tidelog.engine.upkeep import backup as backups
from tidelog.engine.upkeep.backup import BackupReport, back_up, source_of
from tidelog.testing import (
    FaultyDisk,
    MemoryKv,
    check_database,
    check_store,
    crash_points,
    simulated,
)
from tidelog.testing.crash import error_points
from tidelog.wal.segments import open_segment, segment_numbers

STORE, COPY = "/store", "/copy"
SMALL: dict[str, Any] = {"partitions": 4, "segment_bytes": 1 << 17}


def opened(disk: FaultyDisk, path: str = STORE, seed: int = 1, **options: Any) -> Database:
    database: Database = open_with(simulated(seed, disk), path, **options)
    return database


def reading(disk: FaultyDisk, path: str = STORE, seed: int = 2) -> ReadOnlyDatabase:
    return open_with(simulated(seed, disk), path, read_only=True)


def content(db: Database) -> dict[str, dict[object, object]]:
    return {name: dict(db.map(name).items()) for name in db.maps()}


def manifest_of(disk: FaultyDisk, path: str) -> Manifest:
    return manifests.read(disk.directory(path))


def filled(disk: FaultyDisk, limits: Limits = LIMITS) -> Database:
    """A store with several segments, a checkpoint in the middle, and deletes."""
    db: Database = open_with(simulated(1, disk, limits=limits), STORE, **SMALL)
    users, other = db.map("users"), db.map("other", value=tidelog.codecs.Json)
    for number in range(40):
        users[b"%d" % (number % 25)] = bytes(9_000) + b"%d" % number
        other[b"%d" % number] = [number]
        if number == 20:
            db.checkpoint()
        if number % 7 == 0:
            users.discard(b"%d" % (number // 2))
    return db


# ------------------------------------------------------------------ what a copy holds


def test_a_copy_holds_what_was_committed_before() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    report = db.backup(COPY)
    assert report.verified
    assert report.maps == ("other", "users")
    assert 0 < report.checkpoint_position < report.position == session_of(db).store.writer.synced
    assert report.keys == sum(map(len, content(db).values()))
    assert set(report.partitions) == set(range(4))
    assert 0 < report.log_bytes < report.bytes
    expected = content(db)
    db.map("users")[b"later"] = b"x"
    with opened(disk, COPY, 2) as copy:
        assert content(copy) == expected
        assert check_database(copy) == []
    assert check_store(COPY, simulated(3, disk)) == []
    assert check_database(db) == []
    db.close()
    assert check_store(STORE, simulated(4, disk)) == []


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_beside_a_copy_leaves_its_data_no_newer_than_its_log(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    disk = FaultyDisk()
    db = filled(disk, Limits(batch_updates=1))
    source = source_of(session_of(db).store, db.maps(), lambda _position: None)
    real, left = MemoryKv.write, [1000 if whole else 2]

    def write(kv: MemoryKv) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise errors.DiskFullError("no space for the third partition")
        return real(kv)

    def overtaken(known: int) -> int:
        """Tell the end of the log, which a checkpoint has left behind when it is used."""
        end = source.durable(known)
        db.map("users")[b"meanwhile"] = b"x"
        monkeypatch.setattr(MemoryKv, "write", write)
        with nullcontext() if whole else pytest.raises(errors.DiskFullError):
            db.checkpoint()
        monkeypatch.setattr(MemoryKv, "write", real)
        return end

    report = back_up(replace(source, durable=overtaken), COPY, verify=True)
    assert report.position >= report.checkpoint_position
    expected = content(db)
    with opened(disk, COPY, 2) as copy:
        assert content(copy) == expected
    assert check_store(COPY, simulated(3, disk)) == []
    db.close()


def test_a_copy_leaves_no_file_open(tmp_path: Path) -> None:
    with tidelog.open(tmp_path / "store") as db:
        db.map("m")[b"k"] = b"v"
        db.backup(tmp_path / "first")
        before = open_files()
        db.backup(tmp_path / "second", verify=False)
        assert open_files() == before


def test_a_copy_that_is_not_verified_says_so() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    report = db.backup(COPY, verify=False)
    assert (report.verified, report.keys, report.partitions) == (False, None, {})
    assert report.maps == ("other", "users")
    assert check_store(COPY, simulated(2, disk)) == []
    db.close()


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_a_copy_holds_commits_that_were_not_durable_yet(durability: Any) -> None:
    disk = FaultyDisk()
    db = opened(disk, durability=durability)
    db.map("m")[b"k"] = b"v"
    db.backup(COPY)
    with opened(disk, COPY, 2) as copy:
        assert copy.map("m")[b"k"] == b"v"
    db.close()


def test_an_empty_store_is_copied() -> None:
    disk = FaultyDisk()
    with opened(disk) as db:
        assert db.backup(COPY).keys == 0
    with opened(disk, COPY, 2) as copy:
        assert copy.maps() == []


def test_everything_in_a_copy_is_durable() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    db.backup(COPY, verify=False)
    expected = content(db)
    for outcome in ("lost", "torn", "reordered"):
        after = disk.crash(outcome)
        with opened(after, COPY, 2) as copy:
            assert content(copy) == expected


def test_only_the_log_that_the_copy_needs_is_copied_and_never_linked(tmp_path: Path) -> None:
    with tidelog.open(tmp_path / "s", segment_bytes=1 << 17) as db:
        for number in range(10):
            db.map("m")[b"%d" % number] = bytes(50_000)
        db.checkpoint()
        db.map("m")[b"last"] = b"x"
        db.backup(tmp_path / "copy")
    assert len(list((tmp_path / "s/wal").glob("*.log"))) > 3
    assert len(list((tmp_path / "copy/wal").glob("*.log"))) == 1
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "copy").rglob("*.*"))
    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert {oct(path.stat().st_mode)[-3:] for path in copied} == {"600"}
    assert oct((tmp_path / "copy").stat().st_mode)[-3:] == "700"
    assert check_store(tmp_path / "copy") == []


def test_the_log_is_pinned_until_the_copy_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    db = opened(disk, **SMALL, retain_bytes=1)
    users = db.map("users")
    users[b"first"] = b"x"
    expected = content(db)
    seen: list[dict[str, int]] = []
    copy = session_of(db).store.kv.copy

    def busy_copy(path: str, **how: Any) -> None:
        copy(path, **how)
        for number in range(9):
            users[b"%d" % number] = bytes(50_000)
        db.checkpoint()
        seen.append(db.statistics().pins)

    monkeypatch.setattr(session_of(db).store.kv, "copy", busy_copy)
    report = db.backup(COPY)
    assert [list(pins.values()) for pins in seen] == [[0]]
    assert report.checkpoint_position == 0
    assert db.statistics().pins == {}
    db.checkpoint()
    assert db.statistics().log_first_position > 0
    db.close()
    with opened(disk, COPY, 2) as opened_copy:
        assert content(opened_copy) == expected


# ------------------------------------------------------------------ where it may lie


def test_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/note.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "half/data").mkdir(parents=True)
    (tmp_path / "half/data/data.mdb").write_text("mine")
    with tidelog.open(tmp_path / "s") as db:
        for name, told in [
            ("full", "not empty: note.txt"),
            ("file", "not a directory"),
            ("half", "holds data without a manifest"),
            ("s", "lies in the store"),
            ("s/copy", "lies in the store"),
        ]:
            with pytest.raises(errors.UsageError, match=told):
                db.backup(tmp_path / name)
        db.backup(tmp_path / "copy")
        with pytest.raises(errors.UsageError, match="not empty"):
            db.backup(tmp_path / "copy")
        # It was told as a failing disk.
        with pytest.raises(errors.NotFoundError, match="no directory"):
            db.backup(tmp_path / "none/copy")
    assert os.listdir(tmp_path / "full") == ["note.txt"]
    assert os.listdir(tmp_path / "half") == ["data"]
    assert sorted(os.listdir(tmp_path)) == ["copy", "file", "full", "half", "s"]


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with tidelog.open(tmp_path / "s") as db:
        db.backup(tmp_path / "copy")
    tidelog.open(tmp_path / "copy").close()


def test_a_copy_that_failed_can_be_taken_again_in_the_same_place() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    disk.fail_at(disk.operations, "ENOSPC", kind="write", path=f"{COPY}/wal", for_ever=True)
    with pytest.raises(errors.DiskFullError, match="copying the store"):
        db.backup(COPY)
    with pytest.raises(errors.NotFoundError):  # half a copy is nothing that can be opened
        reading(disk, COPY, 2)
    disk.heal()
    assert db.backup(COPY).verified
    db.close()
    assert check_store(COPY, simulated(3, disk)) == []


@pytest.mark.slow
def test_every_error_of_the_disk_leaves_the_store_as_it_was_and_no_half_copy() -> None:
    start = FaultyDisk()
    filled(start).close()

    def scenario(disk: FaultyDisk, _acknowledge: Callable[[object], None]) -> None:
        with opened(disk, STORE, 2) as db:
            db.backup(COPY, verify=False)

    seen = 0
    for point in error_points(scenario, start=start, faults=("EIO", "ENOSPC")):
        if COPY not in point.operation.path:
            continue
        seen += 1
        disk = point.disk
        db = opened(disk, STORE, 2)
        try:
            db.backup(COPY, verify=False)
        except errors.StorageError:
            assert disk.kind(f"{COPY}/manifest") is None or check_copy(disk)
        else:
            assert check_copy(disk)
        disk.heal()
        assert check_database(db) == []
        db.close()
    assert seen > 40


def check_copy(disk: FaultyDisk) -> bool:
    """Whether the copy is a sound store."""
    disk.heal()
    return check_store(COPY, simulated(9, disk)) == []


def test_a_copy_that_does_not_verify_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    db = filled(disk)
    copy = session_of(db).store.kv.copy

    def damaging_copy(path: str, **how: Any) -> None:
        copy(path, **how)
        disk.flip_bit(f"{path}/data.mdb", 8 * 9_000)

    with monkeypatch.context() as patch:
        patch.setattr(session_of(db).store.kv, "copy", damaging_copy)
        # It was left there as a whole store, and who keeps the newest copy kept it.
        with pytest.raises(errors.CorruptDataError, match="did not verify, and was removed"):
            db.backup(COPY)
    assert not [path for path in disk.paths() if path.startswith(COPY)]
    assert check_database(db) == []
    assert db.backup(COPY).verified, "the same place cannot be used again"
    db.close()


@pytest.mark.parametrize("where", ["copy", "inspect_store", "write"])
def test_a_copy_that_is_interrupted_is_no_store(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    disk = FaultyDisk()
    db = filled(disk)

    def interrupted(*_args: object, **_options: object) -> None:
        assert disk.kind(f"{COPY}/manifest") is None, "it is a store before it is checked"
        raise KeyboardInterrupt

    owner = {"copy": session_of(db).store.kv, "inspect_store": backups, "write": manifests}[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            db.backup(COPY)
    assert not [path for path in disk.paths() if path.startswith(COPY)]
    assert db.backup(COPY).verified
    db.close()


def test_a_manifest_whose_name_may_not_last_goes_again() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    disk.fail_at(disk.operations, "EIO", kind="rename", path=f"{COPY}/manifest")
    with pytest.raises(errors.DiskError, match="making a store of the copy"):
        db.backup(COPY)
    assert not [path for path in disk.paths() if path.startswith(COPY)]
    db.close()


# ------------------------------------------------------------------ from a reading process


def test_a_reading_process_copies_beside_the_writer() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    expected = content(db)
    session_of(db).store.committer.announce()
    with reading(disk, STORE, 2) as reader:
        before = reader.position
        db.map("users")[b"later"] = b"x"
        session_of(db).store.committer.announce()
        report = reader.backup(COPY)
        assert report.position > before == reader.position
    expected["users"][b"later"] = b"x"
    with opened(disk, COPY, 3) as copy:
        assert content(copy) == expected
    assert db.statistics().readers == {}
    db.close()


def test_a_reading_process_holds_the_log_that_its_copy_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    db = opened(disk, **SMALL, retain_bytes=1)
    users = db.map("users")
    users[b"first"] = b"x"
    session_of(db).store.committer.announce()
    expected = content(db)
    with reading(disk, STORE, 2) as reader:
        copy = session_of(reader).access.kv.copy

        def busy_copy(path: str, **how: Any) -> None:
            copy(path, **how)
            for number in range(9):
                users[b"%d" % number] = bytes(50_000)
            db.checkpoint()
            session_of(db).store.committer.announce()
            reader.refresh()

        monkeypatch.setattr(session_of(reader).access.kv, "copy", busy_copy)
        assert reader.backup(COPY).checkpoint_position == 0
    db.close()
    with opened(disk, COPY, 3) as opened_copy:
        assert content(opened_copy) == expected


def test_a_store_that_nobody_recovered_is_copied_up_to_what_is_durable() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    session_of(db).store.committer.announce()
    expected = content(db)
    db.map("users")[b"unannounced"] = b"x"
    after = disk.crash("kept")
    with reading(after, STORE, 2) as reader:
        reader.backup(COPY)
    with opened(after, COPY, 3) as copy:
        assert content(copy) == expected


def test_a_sealed_store_is_copied(tmp_path: Path) -> None:
    with tidelog.open(tmp_path / "s") as db:
        db.map("m")[b"k"] = b"v"
    with tidelog.open(tmp_path / "s", read_only=True) as reader:
        access = session_of(reader).access
        assert access.slot is not None
        access.slot.release()
        access.slot = None  # as where nothing can be written
        assert reader.backup(tmp_path / "copy").keys == 1
    assert check_store(tmp_path / "copy") == []


# ------------------------------------------------------------------ the first writable open


def test_the_first_writable_open_begins_a_log_and_a_history_of_its_own() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    report = db.backup(COPY)
    db.close()
    original, sealed = manifest_of(disk, STORE), manifest_of(disk, COPY)
    assert sealed.copied
    assert (sealed.log_id, sealed.history_id) == (original.log_id, original.history_id)
    reading(disk, COPY, 2).close()
    assert manifest_of(disk, COPY) == sealed
    copy = opened(disk, COPY, 3)
    now = session_of(copy).store.manifest
    assert now.store_id == original.store_id
    assert len({original.log_id, now.log_id}) == len({original.history_id, now.history_id}) == 2
    assert now.logs == [(original.log_id, 0), (now.log_id, report.position)]
    assert not now.copied
    assert set(session_of(copy).store.state.epochs) == {2}
    wal = disk.directory(f"{COPY}/wal")
    headers = [open_segment(wal, number).header for number in segment_numbers(wal)]
    ids = [header.log_id.hex() for header in headers if header]
    assert ids == [original.log_id] * (len(ids) - 1) + [now.log_id]
    assert headers[-1] is not None
    assert headers[-1].history_id.hex() == now.history_id
    copy.map("users")[b"mine"] = b"x"
    assert check_database(copy) == []
    session_of(copy).abandon()
    with opened(disk, COPY, 4) as again:
        assert again.map("users")[b"mine"] == b"x"
        assert session_of(again).store.manifest.logs == now.logs
    assert check_store(COPY, simulated(5, disk)) == []


def test_the_older_part_of_the_log_still_answers_questions() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    with db.transaction() as tx:
        tx[db.map("users")][b"asked"] = b"x"
    assert tx.receipt is not None
    db.backup(COPY)
    db.close()
    with opened(disk, COPY, 2) as copy:
        copy.map("users")[b"mine"] = b"x"
        assert copy.outcome(tx.receipt.tx_id) == "committed"


def test_a_copy_of_a_copy_lists_all_logs() -> None:
    disk = FaultyDisk()
    filled(disk).close()
    places = [STORE, "/a", "/b", "/c"]
    for number, (source, target) in enumerate(itertools.pairwise(places)):
        with opened(disk, source, 10 + number) as db:
            db.map("users")[b"from"] = source.encode()
            db.backup(target)
    with opened(disk, "/c", 20) as last:
        assert len(session_of(last).store.manifest.logs) == 4
        assert last.map("users")[b"from"] == b"/b"
        assert check_database(last) == []
    assert check_store("/c", simulated(21, disk)) == []


@pytest.mark.slow
def test_a_crash_in_the_first_writable_open_of_a_copy_loses_nothing() -> None:
    start = FaultyDisk()
    db = filled(start)
    db.backup(COPY, verify=False)
    expected = content(db)
    db.close()

    def scenario(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
        copy = opened(disk, COPY, 2)
        copy.map("users")[b"mine"] = b"x"
        acknowledge(b"mine")
        copy.close()

    crashes = 0
    for point in crash_points(scenario, start=start, outcomes=("lost", "kept")):
        crashes += 1
        assert check_store(COPY, simulated(3, point.disk)) == [], point
        with opened(point.disk, COPY, 4) as copy:
            found = content(copy)
            mine = found["users"].pop(b"mine", None)
            assert found == expected, point
            assert mine == b"x" or not point.acknowledged, point
            assert not session_of(copy).store.manifest.copied
            assert check_database(copy) == [], point
        assert check_store(COPY, simulated(5, point.disk)) == [], point
    assert crashes > 40


def test_original_and_copy_give_the_same_numbers_under_different_histories() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    db.backup(COPY)
    with opened(disk, COPY, 2) as copy:
        copy.map("users")[b"k"] = b"in the copy"
        db.map("users")[b"k"] = b"in the original"
        assert (
            session_of(copy).store.manifest.history_id != session_of(db).store.manifest.history_id
        )
        assert check_database(copy) == check_database(db) == []
    db.close()


def test_a_reader_follows_a_copy_that_is_opened_for_writing() -> None:
    disk = FaultyDisk()
    filled(disk).close()
    with reading(disk, STORE, 2) as source:
        source.backup(COPY)
    with reading(disk, COPY, 3) as reader, opened(disk, COPY, 4) as copy:
        copy.map("users")[b"mine"] = b"x"
        copy.sync()
        session_of(copy).store.committer.announce()
        reader.refresh()
        assert reader.map("users")[b"mine"] == b"x"


# ------------------------------------------------------------------ under load


BACK_UP = """
import sys, tidelog
with tidelog.open(sys.argv[1], read_only=True) as reader:
    print(reader.backup(sys.argv[2]).position)
"""


@contextmanager
def load(db: Database) -> Iterator[None]:
    """Threads that move amounts between accounts, and check in now and then."""
    accounts = db.map("accounts", value=tidelog.codecs.Msgpack)
    accounts.update({b"%d" % number: 100 for number in range(20)})
    stop = threading.Event()
    errors_seen: list[BaseException] = []

    def move(seed: int) -> None:
        rng = random.Random(seed)

        def work(tx: Any) -> None:
            a, b = rng.sample(range(20), 2)
            tx[accounts][b"%d" % a] -= 1
            tx[accounts][b"%d" % b] += 1

        try:
            while not stop.is_set():
                db.run(work, attempts=1000)
        except BaseException as error:
            errors_seen.append(error)

    threads = [threading.Thread(target=move, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors_seen == []


def total(path: Path) -> int:
    with tidelog.open(path) as db:
        assert check_database(db) == []
        return sum(db.map("accounts").values())


@pytest.mark.slow
def test_copies_under_load_hold_whole_transactions(tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": 1 << 17, "checkpoint_bytes": 1 << 16}
    reports: list[BackupReport] = []
    with tidelog.open(tmp_path / "s", retain_bytes=1, **options) as db:
        with load(db):
            for number in range(3):
                reports.append(db.backup(tmp_path / f"copy{number}"))
                subprocess.run(
                    [sys.executable, "-c", BACK_UP, tmp_path / "s", tmp_path / f"other{number}"],
                    check=True,
                )
        assert check_database(db) == []
    positions = [report.position for report in reports]
    assert positions == sorted(set(positions))
    for number in range(3):
        assert total(tmp_path / f"copy{number}") == total(tmp_path / f"other{number}") == 2000
        assert check_store(tmp_path / f"copy{number}") == []
    assert check_store(tmp_path / "s") == []


# ------------------------------------------------------------------ a data file in doubt


def fail_next_commit(disk: FaultyDisk, *, for_ever: bool = False) -> None:
    disk.fail_at(disk.operations, "EIO", kind="commit", for_ever=for_ever)


def test_after_a_failed_write_of_the_data_file_no_checkpoint_is_taken() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    fail_next_commit(disk)
    with pytest.raises(errors.DiskError):
        db.checkpoint()
    with pytest.raises(errors.DiskError, match="no checkpoint is taken any more"):
        db.checkpoint()
    db.map("users")[b"still"] = b"x"
    expected = content(db)
    assert manifest_of(disk, STORE).rebuild
    with pytest.raises(errors.DiskError):
        db.close()
    assert content_of_the_next(disk) == expected
    assert not manifest_of(disk, STORE).rebuild
    assert check_store(STORE, simulated(5, disk)) == []


def content_of_the_next(disk: FaultyDisk) -> dict[str, dict[object, object]]:
    with opened(disk, STORE, 2) as db:
        assert check_database(db) == []
        return content(db)


def test_a_full_disk_leaves_no_doubt() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    disk.fail_at(disk.operations, "ENOSPC", kind="commit")
    with pytest.raises(errors.DiskFullError):
        db.checkpoint()
    assert not manifest_of(disk, STORE).rebuild
    db.checkpoint()
    db.close()
    assert check_store(STORE, simulated(2, disk)) == []


def test_the_fresh_data_file_is_another_file_and_synced() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    expected = content(db)
    fail_next_commit(disk)
    with pytest.raises(errors.DiskError):
        db.checkpoint()
    session_of(db).abandon()
    disk.write_bytes(f"{STORE}/data/data.tmp", b"left behind by a crash")
    before = disk.file(f"{STORE}/data/data.mdb")
    db = opened(disk, STORE, 2)
    assert disk.file(f"{STORE}/data/data.mdb") is not before
    assert "data.tmp" not in disk.directory(f"{STORE}/data").names()
    assert content(db) == expected
    session_of(db).abandon()
    after = disk.crash("lost")
    assert content_of_the_next(after) == expected


@pytest.mark.slow
def test_a_crash_while_the_data_file_is_renewed_loses_nothing() -> None:
    start = FaultyDisk()
    db = filled(start)
    expected = content(db)
    fail_next_commit(start)
    with pytest.raises(errors.DiskError):
        db.checkpoint()
    session_of(db).abandon()

    def scenario(disk: FaultyDisk, _acknowledge: Callable[[object], None]) -> None:
        opened(disk, STORE, 2).close()

    for point in crash_points(scenario, start=start, outcomes=("lost", "kept")):
        with opened(point.disk, STORE, 3) as db:
            assert content(db) == expected, point
        assert check_store(STORE, simulated(4, point.disk)) == [], point


def test_a_data_file_that_a_failed_sync_spoilt_is_refused() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    fail_next_commit(disk)
    with pytest.raises(errors.DiskError):
        db.checkpoint()
    session_of(db).abandon()
    data = bytearray(disk.read_bytes(f"{STORE}/data/data.mdb"))
    data[20_000] ^= 1
    disk.write_bytes(f"{STORE}/data/data.mdb", bytes(data))
    with pytest.raises(errors.CorruptDataError, match="damaged when a sync failed"):
        opened(disk, STORE, 2)
    assert manifest_of(disk, STORE).rebuild


def test_a_manifest_that_cannot_be_written_then_costs_only_the_note() -> None:
    disk = FaultyDisk()
    db = filled(disk)
    expected = content(db)
    disk.fail_at(disk.operations, "EIO", kind="commit", for_ever=True)
    disk.fail_at(disk.operations, "EIO", path=f"{STORE}/manifest", for_ever=True)
    with pytest.raises(errors.DiskError):
        db.checkpoint()
    session_of(db).abandon()
    disk.heal()
    assert content_of_the_next(disk) == expected


def test_lmdb_reads_its_fresh_file(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with tidelog.open(store) as db:
        db.map("m").update({b"%d" % number: b"x" * 50 for number in range(2000)})
        db.checkpoint()
        session_of(db).store.manifests.doubt()
        expected = content(db)
        before = (store / "data/data.mdb").stat().st_ino
        session_of(db).abandon()
    with tidelog.open(store) as db:
        assert (store / "data/data.mdb").stat().st_ino != before
        assert content(db) == expected
    assert check_store(store) == []


@pytest.mark.parametrize("place", ["", ":memory:"])
def test_a_copy_goes_nowhere_that_a_store_would_not(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An empty path filled the current directory with a store.
    monkeypatch.chdir(tmp_path)
    with tidelog.open("shop.tl") as db, pytest.raises(errors.UsageError):
        db.backup(place)
    assert [path.name for path in tmp_path.iterdir()] == ["shop.tl"]
