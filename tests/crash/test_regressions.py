"""What the crash tests have found, each bug as the shortest way to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

import pytest

from support.promises import opened, shown
from support.scripts import LIMITS, PARTITIONS, PATH, SMALL_PIECES, Run, Step, Writer
from support.stores import expect_sound, open_store, took_steps
from support.trouble import check_killed
from tidelog.affinity.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptDataError,
    DiskError,
    DiskFullError,
    ReadOnlyError,
)
from tidelog.engine.api import open as opens
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.data.partition_store import read_marks
from tidelog.testing import FaultyDisk, SimulatedCrash, simulated
from tidelog.testing.crash import crash_points
from tidelog.testing.plan import DiskOperation

WAL = f"{PATH}/wal"
DATA_FILE = f"{PATH}/data/data.mdb"


def open_on(disk: FaultyDisk, seed: int = 1) -> Database:
    environment = simulated(seed, disk, limits=SMALL_PIECES)
    return opens.open_with(environment, PATH, partitions=PARTITIONS, read_only=False, **LIMITS)


def small_steps(commits: int = 3) -> list[Step]:
    writer = Writer()
    writer.add("open")
    writer.add("map", name="a")
    for key in range(commits):
        writer.add("put", changes=writer.changes("a", range(key, key + 1), 500))
    return writer.steps


@pytest.mark.parametrize("kv", ["memory", "lmdb"])
@pytest.mark.parametrize("content", [b"", bytes(8192)])
def test_a_data_file_without_a_commit_is_made_anew(kv: str, content: bytes) -> None:
    # A power cut before the first checkpoint left a data file that was named and empty, and the
    # store did not open any more, though its log had everything.
    disk = FaultyDisk()
    run = Run(disk, kv=kv)
    run.play(small_steps())
    world = run.world
    session_of(run.store).abandon()
    left = disk.crash("lost")
    left.write_bytes(DATA_FILE, content)
    _, db = opened(left, 2, kv)
    assert shown(db) == world
    session_of(db).abandon()


def test_an_empty_data_file_is_damage_once_the_log_does_not_go_back_to_its_beginning() -> None:
    disk = FaultyDisk()
    run = Run(disk)
    run.play([*small_steps(60), Step(kind="checkpoint"), Step(kind="close")])
    assert f"{WAL}/0000000000000001.log" not in disk.paths()
    disk.write_bytes(DATA_FILE, b"")
    with pytest.raises(CorruptDataError):
        open_on(disk)


def test_a_failed_sync_while_a_segment_is_begun_stops_the_store() -> None:
    # The new segment was there by name, and the old one was written on: what was acknowledged
    # there would have been ignored by the next recovery.
    disk = FaultyDisk()
    db = open_on(disk)
    numbers = db.map("a")
    while session_of(db).store.writer.position < 7500:
        numbers[b"large"] = bytes(500)
    disk.fail_at(disk.operations + 1, "EIO", kind="sync_directory", path=WAL)
    with pytest.raises(CommitUnknownError):
        numbers[b"too large for the segment"] = bytes(1000)
    with pytest.raises(ReadOnlyError, match="sync failed"):
        numbers[b"small enough for the old segment"] = b""
    session_of(db).abandon()


def trace_of(steps: list[Step]) -> list[DiskOperation]:
    disk = FaultyDisk()
    run = Run(disk)
    run.play(steps)
    session_of(run.store).abandon()
    return disk.trace


@pytest.mark.parametrize(
    ("kind", "path"),
    [("make_directory", PATH), ("rename", f"{WAL}/next.tmp"), ("rename", f"{PATH}/manifest")],
)
def test_names_that_a_killed_process_left_are_made_durable_before_they_are_used(
    kind: str, path: str
) -> None:
    # A process was killed between giving a segment its name and syncing the directory.  The next
    # one found the name and wrote on; a power cut then took the segment with all that was
    # acknowledged in it.  The same went for the store's own directory.
    steps = small_steps(30)
    operations = [op for op in trace_of(steps) if op.kind == kind and op.path.startswith(path)]
    for operation in operations:
        disk = FaultyDisk()
        disk.crash_at(operation.number, "after")
        run = Run(disk)
        with pytest.raises(SimulatedCrash):
            run.play(steps)
        check_killed(run)


@pytest.mark.parametrize("seed", range(4))
def test_a_data_file_whose_name_could_not_be_synced_is_not_lost_later(seed: int) -> None:
    # The open that made the file failed, and the next one took its name for durable.  A power cut
    # took the file when the log no longer had what was in it.
    disk = FaultyDisk(seed)
    disk.fail_at(1, "EIO", kind="sync_directory", path=f"{PATH}/data")
    with pytest.raises(DiskError):
        open_on(disk)
    run = Run(disk)
    run.play([*small_steps(60), Step(kind="checkpoint")])
    session_of(run.store).abandon()
    _, db = opened(disk.crash("lost"), 2, "memory")
    assert shown(db) == run.world
    session_of(db).abandon()


def test_the_outcome_of_an_id_that_only_a_rollback_names_is_not_committed() -> None:
    # Gaps are closed under the id of sixteen zeros, and any record of an id counted as a commit.
    disk = FaultyDisk()
    run = Run(disk)
    run.play(small_steps())
    disk.fail_at(disk.operations + 1, "ENOSPC", kind="write")
    with pytest.raises(DiskFullError):
        run.store.map("a")[b"too much"] = bytes(900)
    run.store.map("a")[b"fits"] = b"again"
    assert run.store.outcome(bytes(16)) == "rolled_back"
    run.store.close()


def test_closing_a_store_that_has_stopped_writing_says_so() -> None:
    # `close` said nothing, as if everything that was acknowledged were durable now.
    disk = FaultyDisk()
    db = open_on(disk)
    with db.transaction(durability="none") as tx:
        tx[db.map("a")][b"relaxed"] = b"acknowledged"
    disk.fail_at(disk.operations + 1, "EIO", kind="sync")
    with pytest.raises(DiskError):
        db.sync()
    with pytest.raises(DiskError, match="may be lost"):
        db.close()


def test_an_error_of_closing_does_not_hide_what_ended_the_block() -> None:
    disk = FaultyDisk()

    def write() -> None:
        with open_on(disk) as db:
            numbers = db.map("a")
            disk.fail_at(disk.operations + 1, "EIO", kind="sync")
            with pytest.raises(DiskError):
                db.map("b")
            numbers[b"1"] = b"one"

    with pytest.raises(ReadOnlyError):
        write()


def test_a_lock_that_could_not_be_filled_in_is_given_up() -> None:
    # The lock stayed with a handle that nobody had, and the store could not be opened again.
    disk = FaultyDisk()
    open_on(disk).close()
    number = disk.operations
    disk.fail_at(number + 1, "ENOSPC", kind="write", path=f"{PATH}/lock")
    with pytest.raises(DiskFullError):
        open_on(disk)
    open_on(disk).close()


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC"])
def test_errors_of_the_disk_leave_open_and_close_as_errors_of_tidelog(fault: str) -> None:
    # Both raised a bare `OSError` wherever nobody had thought of one.
    disk = FaultyDisk()
    disk.fail_at(1, fault, for_ever=True)
    with pytest.raises((DiskError, DiskFullError)):
        open_on(disk)
    disk.heal()
    db = open_on(disk)
    db.map("a")[b"1"] = b"one"
    disk.fail_at(disk.operations + 1, fault, for_ever=True)
    with pytest.raises((DiskError, DiskFullError)):
        db.close()
    disk.heal()
    assert open_on(disk).map("a")[b"1"] == b"one"


def test_segments_below_a_hole_are_kept_and_never_read_across_it() -> None:
    # They were removed at the next open, as if trimming could leave a hole: a segment that an
    # operator put back had nothing to go on from any more.
    disk = FaultyDisk()
    run = Run(disk)
    run.play([*small_steps(60), Step(kind="checkpoint")])
    session_of(run.store).abandon()
    kept = [path for path in disk.paths() if path.endswith(".log")]
    first = int(PurePosixPath(kept[0]).stem)
    assert first > 3
    left = disk.crash("lost")
    left.write_bytes(f"{WAL}/{first - 2:016d}.log", left.read_bytes(kept[0]))
    _, db = opened(left, 2, "memory")
    assert f"{WAL}/{first - 2:016d}.log" in left.paths()
    assert db.outcome(b"never committed!") == "too_old"
    assert db.statistics().log_first_position > 0
    before = len(left.paths())
    for number in range(60):
        db.map("a")[b"%d" % number] = bytes(500)
    db.checkpoint()
    assert f"{WAL}/{first - 2:016d}.log" in left.paths(), "it was trimmed away"
    assert f"{WAL}/{first:016d}.log" not in left.paths()
    assert len(left.paths()) <= before + 3
    session_of(db).abandon()


def test_a_conflict_is_told_even_where_the_log_cannot_be_read() -> None:
    # Who won was looked up in the log; an error there ended the leader of the group, and all who
    # waited for it would have waited for ever.
    disk = FaultyDisk()
    db = open_on(disk)
    numbers = db.map("a")
    numbers[b"1"] = b"one"
    with db.transaction(plain_writes=True) as tx:
        tx[numbers][b"2"] = tx[numbers][b"1"]
        numbers[b"1"] = b"another"
        disk.fail_at(disk.operations + 1, "EIO", for_ever=True, kind="read")
        disk.fail_at(disk.operations + 1, "EIO", for_ever=True, kind="names")
        with pytest.raises(ConflictError) as conflict:
            tx.commit()
    assert conflict.value.winner is None
    numbers[b"3"] = b"goes on"
    session_of(db).abandon()


def test_the_log_has_to_be_whole_as_far_as_a_cut_checkpoint_went_whatever_follows() -> None:
    # A recovery flushed at a lower position and said that nothing newer was in the data file: a
    # log that had lost its end was cut there, and a healthy one was called wrong.
    store = open_store(limits=SMALL_PIECES, partitions=1)
    users = store.database.map("users")
    for number in range(20):
        users[b"%02d" % number] = b"old" * 100
    for number in range(20):
        users[b"%02d" % number] = b"new" * 100
    assert not took_steps(store.database, 2, SMALL_PIECES)
    session_of(store.database).maintenance.maintain()
    session_of(store.database).abandon()
    start = store.disk.crash("lost")

    def recover(disk: FaultyDisk, _acknowledge: Callable[[object], None]) -> None:
        again = open_store(disk, limits=SMALL_PIECES, checkpoint_bytes=1500)
        session_of(again.database).abandon()

    def whole_up_to(disk: FaultyDisk) -> int:
        with opens.open_with(simulated(3, disk.copy()), PATH, read_only=True) as reader:
            return read_marks(session_of(reader).access.kv.begin())[1][0].written

    went, points = whole_up_to(start), 0
    for point in crash_points(recover, start=start, moments=("before",), outcomes=("lost",)):
        expect_sound(point.disk.copy())
        assert whole_up_to(point.disk) >= went
        points += 1
    assert points > 20
