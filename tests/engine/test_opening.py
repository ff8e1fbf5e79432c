"""Opening: options, what lies in the way, what a crash left, and when epochs rise."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from support.commits import records_of
from support.stores import PATH, Opened, expect_sound, open_store, opened
from tidelog.affinity.errors import (
    AlreadyOpenError,
    ClosedError,
    CorruptDataError,
    DiskError,
    DiskFullError,
    ForeignFileError,
    ForkedError,
    NotFoundError,
    StorageError,
    TidelogError,
    UnsupportedError,
    UsageError,
)
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api import open as opens
from tidelog.engine.api.database import session_of
from tidelog.engine.api.open import open_with
from tidelog.engine.data.stored import pack_prefix
from tidelog.engine.files import manifest as manifests
from tidelog.engine.files.log_keeper import LogKeeper
from tidelog.engine.store import claim, opening, place
from tidelog.engine.store.options import Options
from tidelog.testing import FaultyDisk, MemoryKv, SimulatedCrash, crash_points, simulated
from tidelog.wal.format import segment_name
from tidelog.wal.records import EpochRecord, TxRecord
from tidelog.wal.segments import open_segment, seal_at


def put(store: Opened, *keys: bytes) -> None:
    users = store.database.map("users")
    for key in keys:
        users[key] = b"v"


def content(store: Opened) -> list[bytes]:
    return list(store.database.map("users"))


def epochs(store: Opened) -> list[int]:
    return list(store.parts.state.epochs)


# ------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("segment_byte", "segment_bytes"),
        ("checkpoint_intervall", "checkpoint_interval"),
        ("mapsize", "map_size"),
        ("zzz", None),
    ],
)
def test_an_unknown_option_names_the_nearest_one(name: str, near: str | None) -> None:
    disk = FaultyDisk()
    options: dict[str, Any] = {name: 1}
    with pytest.raises(UsageError, match=f"no option '{name}'") as caught:
        open_with(simulated(1, disk), PATH, **options)
    assert caught.value.hint == (f"Did you mean '{near}'?" if near else "")
    assert disk.paths() == []


@pytest.mark.parametrize("value", [0, -1, "large", None, True, float("nan")])
@pytest.mark.parametrize("name", ["segment_bytes", "sync_interval", "retain_bytes"])
def test_an_option_that_is_no_positive_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        Options(**{name: value})
    assert Options(retain_seconds=None).retain_seconds is None


@pytest.mark.parametrize("partitions", [0, -1, 32_769, 1.5, "16", True])
def test_a_number_of_partitions_that_is_none_is_refused(partitions: Any) -> None:
    with pytest.raises(UsageError, match="partitions="):
        open_store(partitions=partitions)


@pytest.mark.parametrize("durability", ["sometimes", None, 1])
def test_a_durability_that_is_none_is_refused(durability: Any) -> None:
    with pytest.raises(UsageError, match="always, interval, none"):
        open_store(durability=durability)


@pytest.mark.parametrize("partitions", [1, 3, 300])
def test_the_number_of_partitions_is_fixed_when_a_store_is_made(partitions: int) -> None:
    with opened(partitions=partitions) as store:
        put(store, b"a")
    with opened(store.disk, partitions=partitions) as same:
        assert content(same) == [b"a"]
    with opened(store.disk) as unnamed:
        assert session_of(unnamed.database).partitions == partitions
    with pytest.raises(UsageError, match=f"has {partitions} partitions, not 4"):
        open_store(store.disk, partitions=4)
    expect_sound(store.disk)


# ------------------------------------------------------------------ what is in the way


def test_a_store_is_not_made_where_none_is_wanted() -> None:
    disk = FaultyDisk()
    environment = simulated(1, disk)
    with pytest.raises(NotFoundError):
        open_with(environment, PATH, create=False)
    assert disk.kind(PATH) is None
    disk.make_directory(PATH)
    with pytest.raises(NotFoundError):
        open_with(environment, PATH, create=False)


def test_a_place_that_is_no_directory_is_refused() -> None:
    disk = FaultyDisk()
    disk.write_bytes(PATH, b"a file")
    with pytest.raises(UsageError, match="not a directory"):
        open_store(disk)


def test_a_network_file_system_is_refused() -> None:
    disk = FaultyDisk()
    disk.network = "nfs4"
    with pytest.raises(UnsupportedError, match="nfs4"):
        open_store(disk)
    assert disk.paths() == []


def test_a_directory_of_other_files_is_left_alone() -> None:
    disk = FaultyDisk()
    disk.make_directory(PATH)
    disk.write_bytes(f"{PATH}/notes.txt", b"mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        open_store(disk)
    assert disk.paths() == [f"{PATH}/notes.txt"]  # no lock either


@pytest.mark.parametrize(("path", "says"), [("", "is empty"), (":memory:", "cannot be in memory")])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_path_that_means_no_directory_is_refused(path: str, says: str, read_only: bool) -> None:
    """An empty one made a store of the current directory, and `:memory:` one of that name."""
    disk = FaultyDisk()
    options: Any = {"read_only": read_only}
    with pytest.raises(UsageError, match=says) as caught:
        open_with(simulated(1, disk), path, **options)
    assert caught.value.hint
    assert disk.paths() == []


def test_wrong_partitions_and_codecs_leave_nothing_behind_and_nothing_open() -> None:
    """The directory and a lock were made first, and a store with wrong codecs stayed open."""
    disk = FaultyDisk()
    wrong: Any
    for wrong in (0, 40_000, "16"):
        with pytest.raises(UsageError, match="partitions="):
            open_with(simulated(1, disk), PATH, partitions=wrong)
    wrong = 5
    with pytest.raises(UsageError, match="not a list of codecs"):
        open_with(simulated(1, disk), PATH, codecs=wrong)
    assert disk.kind(PATH) is None
    with opened(disk) as store:
        put(store, b"a")


def test_a_place_is_looked_at_once_more_under_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    # Somebody else has put files there since it was found empty.
    disk, take_lock = FaultyDisk(), place.take_lock

    def late(environment: Any, path: str) -> Any:
        lock = take_lock(environment, path)
        disk.write_bytes(f"{PATH}/notes.txt", b"a stranger")
        return lock

    monkeypatch.setattr(claim, "take_lock", late)
    with pytest.raises(UsageError, match="not empty"):
        open_store(disk)
    assert disk.kind(f"{PATH}/manifest") is None
    assert disk.read_bytes(f"{PATH}/notes.txt") == b"a stranger"


def test_an_open_seals_the_segment_before_the_last_one() -> None:
    store = open_store(segment_bytes=1)
    while store.parts.writer.segment.number == 1:
        store.database.map("users").update_many({b"a": bytes(10_000)})
    last = store.parts.writer.segment
    session_of(store.database).abandon()
    # As if the process that began the last one had died before it sealed the one before.
    wal, path = store.disk.directory(f"{PATH}/wal"), f"{PATH}/wal/{segment_name(1)}"
    whole = store.disk.read_bytes(path)
    border = open_segment(wal, 1).offset_of(last.first_position)
    store.disk.write_bytes(path, whole[:border])
    with opened(store.disk, seed=2):
        assert seal_at(open_segment(wal, 1), last.first_position) is not None


def test_a_store_that_lost_its_manifest_is_not_made_anew_and_said_to_have_lost_it() -> None:
    """Who only read it was told that there is no store, and to make one."""
    with opened() as store:
        put(store, b"a")
    store.disk.directory(PATH).unlink("manifest")
    before = store.disk.paths()
    options: Any
    for options in ({}, {"create": False}, {"read_only": True}):
        with pytest.raises(CorruptDataError, match="no manifest"):
            open_with(simulated(2, store.disk), PATH, **options)
    assert store.disk.paths() == before


def test_a_missing_data_file_that_the_log_cannot_replace_is_named_and_not_made_anew() -> None:
    """A segment of the log was said to be missing, and an empty data file was made."""
    store = open_store(segment_bytes=1 << 16, retain_bytes=1, checkpoint_interval=1e9)
    for n in range(100):
        store.database.map("users")[b"%d" % n] = bytes(2000)
    store.database.checkpoint()
    assert store.parts.keeper.first_position > 0
    store.database.close()
    store.disk.directory(f"{PATH}/data").unlink("data.mdb")
    before = store.disk.paths()
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=r"data file data\.mdb is missing") as caught:
            open_store(store.disk)
        assert "backup" in caught.value.hint
    assert store.disk.paths() == before


def test_a_store_is_open_once_and_says_where() -> None:
    with opened() as store:
        with pytest.raises(AlreadyOpenError) as caught:
            open_store(store.disk)
        assert (caught.value.path, caught.value.pid) == (PATH, 4242)
        assert str(caught.value) == f"{PATH} is open in this process already"
        put(store, b"a")
        store.disk.write_bytes(f"{PATH}/lock", b"garbage")
        with pytest.raises(AlreadyOpenError, match="another process") as caught:
            open_store(store.disk)
        assert caught.value.pid is None
    with opened(store.disk) as again:
        assert content(again) == [b"a"]


def test_the_data_file_of_another_store_is_refused() -> None:
    with opened() as one:
        put(one, b"a")
    with opened(seed=5) as two:
        put(two, b"b")
    one.disk.write_bytes(f"{PATH}/data/data.mdb", two.disk.read_bytes(f"{PATH}/data/data.mdb"))
    with pytest.raises(ForeignFileError):
        open_store(one.disk)


def test_an_open_that_fails_lets_the_lock_go() -> None:
    with opened() as store:
        put(store, b"a")
    good = store.disk.read_bytes(f"{PATH}/manifest")
    store.disk.write_bytes(f"{PATH}/manifest", b"nonsense")
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="manifest"):
            open_store(store.disk)
    store.disk.write_bytes(f"{PATH}/manifest", good)
    with opened(store.disk) as again:
        assert content(again) == [b"a"]


def test_a_folder_that_a_copying_tool_left_out_is_made_again() -> None:
    with opened() as store:
        put(store, b"a")
    copied = FaultyDisk()
    copied.make_directory(PATH)
    for folder in ("wal", "data"):
        copied.make_directory(f"{PATH}/{folder}")
    for path in store.disk.paths():
        if "readers" not in path:
            copied.write_bytes(path, store.disk.read_bytes(path))
    with opened(copied) as again:
        assert content(again) == [b"a"]
        assert copied.kind(f"{PATH}/readers") == "directory"


# ------------------------------------------------------------------ what a crash left


@pytest.mark.slow
def test_a_creation_that_crashed_anywhere_is_begun_again() -> None:
    def scenario(disk: FaultyDisk, acknowledge: Any) -> None:
        store = open_store(disk)
        put(store, b"a")
        acknowledge(b"a")

    made = 0
    for point in crash_points(scenario, outcomes=("lost", "kept", "torn"), step=3):
        with opened(point.disk, seed=7, partitions=4) as store:
            assert set(point.acknowledged) <= set(content(store)), point
            made += b"a" not in content(store)
    assert made


def test_epochs_rise_after_a_crash_only() -> None:
    with opened() as store:
        put(store, b"a")
        assert epochs(store) == [1, 1, 1, 1]
        assert store.parts.report.clean
    again = store.reopened()
    assert epochs(again) == [1, 1, 1, 1]
    put(again, b"b")
    session_of(again.database).abandon()
    after = again.reopened(seed=3)
    assert not after.parts.report.clean
    assert epochs(after) == [2, 2, 2, 2]
    session_of(after.database).abandon()
    with opened(after.disk.crash("lost"), seed=4) as last:
        assert epochs(last) == [3, 3, 3, 3]
        put(last, b"c")
        assert content(last) == [b"a", b"b", b"c"]
    with opened(last.disk, seed=5) as clean:
        assert epochs(clean) == [3, 3, 3, 3]
        assert clean.parts.report.clean


def test_numbers_that_were_lost_are_given_out_again_in_the_next_epoch() -> None:
    store = open_store(partitions=1, durability="none")
    put(store, b"a")
    store.database.sync()
    put(store, b"b", b"c")
    with opened(store.disk.crash("lost")) as again:
        assert content(again) == [b"a"]
        (counter,) = again.parts.state.counters
        assert counter.hwm == 1
        assert again.parts.state.epoch_tables == [((1, 1), (2, 2))]
        put(again, b"d")
        assert counter.lwm == counter.hwm == 2


def test_times_and_ids_of_an_opening_are_behind_all_commits_though_the_clock_has_fallen() -> None:
    store = open_store(partitions=1)
    store.environment.time.jump(3600)
    put(store, b"a")
    last = store.parts.state.time
    session_of(store.database).abandon()
    with opened(store.disk, seed=2) as again:
        assert again.environment.clock() < last
        prefix, _ = again.parts.committer.ids()
        begun = int.from_bytes(prefix[:6], "big") * 1000
        put(again, b"b")
        times = [
            record.time
            for frame in records_of(again)
            for record in frame
            if isinstance(record, (TxRecord, EpochRecord))
        ]
        assert times == sorted(times)
        assert last < begun <= times[-1]


def test_the_mark_of_a_clean_close_goes_before_anything_is_written() -> None:
    with opened() as store:
        put(store, b"a")
    directory = store.disk.directory(PATH)
    assert manifests.read(directory).clean_end == store.parts.writer.position
    again = store.reopened()
    assert manifests.read(directory).clean_end is None
    again.database.close()
    assert manifests.read(directory).clean_end is not None


def test_what_recovery_did_is_told(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store()
    put(store, b"a", b"b")
    session_of(store.database).abandon()
    with caplog.at_level(logging.INFO, "tidelog"), opened(store.disk, seed=2) as again:
        report = again.parts.report
        assert (report.updates, report.clean) == (2, False)
    levels = {record.event: record.levelname for record in caplog.records}  # type: ignore[attr-defined]
    assert levels["recovery.done"] == "WARNING"
    assert levels["store.opened"] == levels["store.closed"] == "INFO"


def test_a_recovery_larger_than_the_overlay_may_be_checkpoints_on_its_way() -> None:
    limits: dict[str, Any] = {"checkpoint_bytes": 1 << 20}
    store = open_store(durability="none", **limits)
    users = store.database.map("users")
    for number in range(300):
        users[b"%d" % number] = b"x" * 1000
    session_of(store.database).abandon()
    with opened(store.disk, seed=2, checkpoint_bytes=20_000) as again:
        assert again.parts.checkpointer.figures.count > 3
        assert len(content(again)) == 300


def test_leftovers_of_a_rotation_and_of_a_manifest_are_removed() -> None:
    with opened() as store:
        put(store, b"a")
    store.disk.write_bytes(f"{PATH}/wal/next.tmp", b"half a segment")
    store.disk.write_bytes(f"{PATH}/wal/0000000000000077.spare", b"an old one")
    store.disk.write_bytes(f"{PATH}/manifest.tmp", b"half a manifest")
    with opened(store.disk) as again:
        assert content(again) == [b"a"]
    names = {path.rsplit("/", 1)[1] for path in store.disk.paths()}
    assert not names & {"next.tmp", "0000000000000077.spare", "manifest.tmp"}


def test_a_copy_becomes_a_store_of_its_own_when_it_is_written() -> None:
    with opened() as store:
        put(store, b"a")
    directory = store.disk.directory(PATH)
    original = manifests.read(directory)
    manifests.write(directory, replace(original, copied=True, clean_end=None))
    with opened(store.disk, seed=9) as again:
        put(again, b"b")
        manifest = manifests.read(directory)
        assert not manifest.copied
        assert manifest.store_id == original.store_id
        assert manifest.history_id != original.history_id
        assert [log for log, _ in manifest.logs] == [original.log_id, manifest.log_id]
    with opened(store.disk, seed=10) as last:
        assert content(last) == [b"a", b"b"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_data_file_whose_sync_failed_is_copied_and_checked(clean: bool) -> None:
    with opened() as store:
        put(store, b"a")
    directory = store.disk.directory(PATH)
    found = manifests.read(directory)
    end = found.clean_end if clean else None
    manifests.write(directory, replace(found, rebuild=True, clean_end=end))
    with opened(store.disk, seed=2) as again:
        assert content(again) == [b"a"]
        assert not manifests.read(directory).rebuild
        assert any("data.tmp" in operation.path for operation in store.disk.trace)


def test_a_data_file_that_lost_pages_when_its_sync_failed_is_refused() -> None:
    with opened() as store:
        put(store, b"a")
    data = MemoryKv(store.disk, f"{PATH}/data", 1 << 20)
    with data.write() as txn:
        assert txn.delete(pack_prefix(partition_of(b"a", Space(0, 4)), 16) + b"a")
    data.close()
    directory = store.disk.directory(PATH)
    manifests.write(directory, replace(manifests.read(directory), rebuild=True))
    with pytest.raises(CorruptDataError, match="damaged when a sync failed"):
        open_store(store.disk, seed=2)
    assert manifests.read(directory).rebuild


def test_a_data_file_whose_sync_failed_in_a_recovery_is_copied_and_checked() -> None:
    store = open_store(durability="none")
    for number in range(40):
        put(store, b"%d" % number)
    session_of(store.database).abandon()
    disk = store.disk
    disk.fail_at(disk.operations + 1, "EIO", kind="commit")
    with pytest.raises(DiskError):
        open_store(disk, seed=2, checkpoint_bytes=500)
    directory = disk.directory(PATH)
    assert manifests.read(directory).rebuild
    with opened(disk, seed=3) as again:
        assert len(content(again)) == 40
        assert not manifests.read(directory).rebuild
        assert any("data.tmp" in operation.path for operation in disk.trace)


def test_no_power_cut_brings_a_data_file_back_whose_sync_failed() -> None:
    with opened() as store:
        store.database.map("users")[b"a"] = bytes(10_000)  # one of no size would be made anew
    directory = store.disk.directory(PATH)
    manifests.write(directory, replace(manifests.read(directory), rebuild=True))

    def scenario(disk: FaultyDisk, acknowledge: Any) -> None:
        # What programs see in it never came to the platter.
        platter = disk.file(f"{PATH}/data/data.mdb").durable
        platter[:] = b"x" * len(platter)
        session_of(open_store(disk, seed=2).database).abandon()
        acknowledge("opened")

    rebuilt = 0
    for point in crash_points(scenario, start=store.disk, outcomes=("lost",)):
        if manifests.read(point.disk.directory(PATH)).rebuild:
            assert point.acknowledged == []
            continue
        rebuilt += 1
        with opened(point.disk, seed=3) as after:
            assert content(after) == [b"a"], point
    assert rebuilt


# ------------------------------------------------------------------ errors while opening


@pytest.mark.slow
def test_every_error_of_the_disk_while_opening_is_one_of_tidelog_and_the_next_open_works() -> None:
    with opened() as store:
        put(store, b"a")
    crashed = store.reopened()
    put(crashed, b"b")
    session_of(crashed.database).abandon()
    start = crashed.disk.copy()
    probe = start.copy()
    session_of(open_store(probe, seed=3).database).abandon()
    wrong = []
    for number in range(1, probe.operations + 1):
        disk = start.copy()
        disk.fail_at(number, "EIO")
        try:
            session_of(open_store(disk, seed=3).database).abandon()
        except (StorageError, NotFoundError):
            pass
        except OSError as error:
            wrong.append(f"{probe.trace[number - 1]}: {error!r}")
        disk.heal()
        with opened(disk, seed=4) as again:
            assert content(again) == [b"a", b"b"], probe.trace[number - 1]
    assert wrong == []


# ------------------------------------------------------------------ the end


def test_a_closed_store_refuses_everything() -> None:
    with opened() as store:
        put(store, b"a")
        users = store.database.map("users")
        snapshot = store.database.snapshot()
        tx = store.database.transaction()
        assert tx[users][b"a"] == b"v"
    database = store.database
    database.close()
    assert repr(database).startswith("<Database '/store' closed")
    for act in (
        lambda: users[b"a"],
        lambda: users.__setitem__(b"a", b"b"),
        lambda: list(users),
        lambda: snapshot[users],
        lambda: tx[users].get(b"b"),
        lambda: database.map("users"),
        database.maps,
        database.snapshot,
        database.transaction,
        database.checkpoint,
        database.sync,
        database.statistics,
        database.__enter__,
        lambda: database.run(lambda tx: None),
        lambda: database.outcome(bytes(16)),
        lambda: database.drop("users"),
    ):
        with pytest.raises(ClosedError):
            act()
    session_of(database).maintenance.maintain()


def test_a_close_that_fails_lets_the_store_go_and_loses_nothing() -> None:
    store = open_store()
    put(store, b"a")
    store.disk.fail_at(store.disk.operations + 1, "EIO", kind="commit")
    with pytest.raises(DiskError):
        store.database.close()
    store.database.close()
    with opened(store.disk, seed=2) as again:
        assert content(again) == [b"a"]


@pytest.mark.slow
def test_every_error_of_the_disk_while_closing_is_one_of_tidelog() -> None:
    probe = open_store()
    put(probe, b"a")
    before = probe.disk.operations
    probe.database.close()
    wrong = []
    for number in range(before + 1, probe.disk.operations + 1):
        store = open_store()
        put(store, b"a")
        store.disk.fail_at(number, "EIO")
        try:
            store.database.close()
        except TidelogError:
            pass
        except OSError as error:
            wrong.append(f"{probe.disk.trace[number - 1]}: {error!r}")
        store.disk.heal()
        with opened(store.disk, seed=2) as again:
            assert content(again) == [b"a"]
    assert wrong == []


def test_in_the_child_of_a_fork_nothing_is_touched() -> None:
    store = open_store()
    put(store, b"a")
    users = store.database.map("users")
    operations = store.disk.operations
    session_of(store.database).forked()
    for act in (lambda: users[b"a"], lambda: users.__setitem__(b"a", b"b"), store.database.maps):
        with pytest.raises(ForkedError):
            act()
    store.database.close()
    assert store.disk.operations == operations


def faults_of_a_creation() -> int:
    """How many operations it takes to make a store."""
    disk = FaultyDisk()
    open_store(disk)
    return disk.operations


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("number", range(1, faults_of_a_creation() + 1))
def test_a_creation_that_finds_no_space_leaves_nothing_that_it_made(
    number: int, there: bool
) -> None:
    """The directory and the lock stayed, or a store without a data file."""
    disk = FaultyDisk()
    if there:
        disk.make_directory(PATH)
    disk.fail_at(disk.operations + number, "ENOSPC", for_ever=True)
    try:
        store = open_store(disk)
    except DiskFullError:
        assert disk.paths() == []
        assert (disk.kind(PATH) is not None) == there
        disk.heal()
    else:
        disk.heal()
        store.database.close()
    with opened(disk) as store:
        put(store, b"a")


def test_a_creation_in_the_way_of_another_one_takes_nothing_of_it_away() -> None:
    disk = FaultyDisk()
    disk.make_directory(PATH)
    lock = disk.lock(f"{PATH}/lock")
    with pytest.raises(AlreadyOpenError):
        open_store(disk)
    assert disk.paths() == [f"{PATH}/lock"]
    lock.release()


def test_nobody_else_may_begin_while_a_creation_that_failed_is_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, remove = FaultyDisk(), FaultyDisk.remove_directory
    removed: list[str] = []

    def beside(self: FaultyDisk, path: str) -> None:
        if path != PATH:
            with pytest.raises(BlockingIOError):
                self.lock(f"{PATH}/lock")
        removed.append(path)
        remove(self, path)

    monkeypatch.setattr(FaultyDisk, "remove_directory", beside)
    disk.fail_at(faults_of_a_creation(), "EIO")
    with pytest.raises(DiskError):
        open_store(disk)
    assert len(removed) > 1
    assert removed[-1] == PATH


def test_a_disk_that_fails_while_a_creation_is_taken_away_leaves_no_half_of_a_store() -> None:
    # A data file stayed without a manifest, or a manifest without a log: the next open refused it.
    failing = faults_of_a_creation()
    for number in range(failing, failing + 20):
        disk = FaultyDisk()
        disk.fail_at(failing, "EIO")
        disk.fail_at(number, "EIO", for_ever=True)
        with pytest.raises(DiskError):
            open_store(disk)
        disk.heal()
        with opened(disk, seed=2, partitions=4) as store:
            put(store, b"a")


@pytest.mark.parametrize("outcome", ["lost", "kept", "reordered"])
def test_a_power_cut_while_a_creation_is_taken_away_leaves_no_half_of_a_store(outcome: str) -> None:
    failing = faults_of_a_creation()
    for number in range(failing + 1, failing + 15):
        disk = FaultyDisk(number)
        disk.fail_at(failing, "EIO")
        disk.crash_at(number)
        with pytest.raises(SimulatedCrash):
            open_store(disk)
        with opened(disk.crash(outcome), seed=2, partitions=4) as store:
            put(store, b"a")


def test_an_interrupt_at_any_operation_of_a_creation_leaves_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    perform, left = FaultyDisk.perform, [0]

    def counted(self: FaultyDisk, *args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return perform(self, *args, **more)

    operations = faults_of_a_creation()
    monkeypatch.setattr(FaultyDisk, "perform", counted)
    for number in range(1, operations + 1):
        disk = FaultyDisk()
        left[0] = number
        with pytest.raises(KeyboardInterrupt):
            open_store(disk)
        if disk.paths() == [f"{PATH}/lock"]:  # nobody knew yet whether a store was there
            assert {one.kind for one in disk.trace} <= {
                "make_directory",
                "sync_directory",
                "names",
                "lock",
            }
        else:
            assert (disk.paths(), disk.kind(PATH)) == ([], None)


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_open_that_fails_behind_its_data_file_closes_that(kind: type[BaseException]) -> None:
    # While anybody keeps the exception nothing else would: LMDB opens no file twice.
    disk = FaultyDisk()
    environment, files = simulated(1, disk), list[Any]()

    def open_kv(*args: Any) -> Any:
        files.append(environment.open_kv(*args))
        return files[-1]

    def fail(_open_segment: object) -> None:
        raise kind

    with disk.around("open_write", f"{PATH}/wal/", fail), pytest.raises(kind):
        open_with(replace(environment, open_kv=open_kv), PATH)
    assert [file._closed for file in files] == [True]


def test_a_data_file_whose_name_cannot_be_synced_is_closed() -> None:
    disk, files = FaultyDisk(), list[Any]()
    environment = simulated(1, disk)

    def open_kv(*args: Any) -> Any:
        files.append(environment.open_kv(*args))
        return files[-1]

    disk.fail_at(1, "EIO", kind="sync_directory", path=f"{PATH}/data")
    with pytest.raises(DiskError):
        open_with(replace(environment, open_kv=open_kv), PATH)
    assert [file._closed for file in files] == [True]


@pytest.mark.parametrize("step", ["_embedded", "_close_gaps"])
def test_an_open_that_fails_behind_its_files_closes_them(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    found = list[Any]()

    def fail(files: Any, *_args: object, **_options: object) -> None:
        found.extend((files.writer._file, files.kv))
        raise RuntimeError

    monkeypatch.setattr(opening, step, fail)
    with pytest.raises(RuntimeError):
        open_store()
    assert [file._closed for file in found] == [True, True]


def test_an_open_that_fails_behind_its_writer_closes_that(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[Any]()

    def fail(_keeper: object, writer: Any, _state: object) -> None:
        found.append(writer._file)
        raise RuntimeError

    monkeypatch.setattr(LogKeeper, "begin", fail)
    with pytest.raises(RuntimeError):
        open_store()
    assert [file._closed for file in found] == [True]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_open_that_fails_at_its_very_end_lets_go_of_the_store(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    disk = FaultyDisk()

    def fail(*_args: object) -> None:
        raise kind

    with monkeypatch.context() as patch:
        patch.setattr(opens, "Database", fail)
        with pytest.raises(kind) as caught:
            open_store(disk)
    with opened(disk) as store:
        put(store, b"a")
    assert caught.value.__traceback__ is not None  # kept until here, with all that it knows
