"""The faulty disk: numbers, power cuts, planned errors, damage."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tidelog.testing import FaultyDisk, SimulatedCrash
from tidelog.testing.plan import FAULTS, MOMENTS
from tidelog.wal.ports import LogFile


def script(disk: FaultyDisk) -> None:
    """One operation of each kind that the disk itself has."""
    disk.make_directory("/store")
    directory = disk.directory("/store")
    lock = disk.lock("/store/lock")
    lock.write(b"4242")
    file = directory.create("new")
    file.write(0, b"abcdef")
    file.sync()
    file.truncate(3)
    file.close()
    directory.rename("new", "a")
    directory.sync()
    directory.open_write("a").close()
    directory.open_read("a").read(0, 3)
    directory.unlink("a")
    directory.names()
    lock.release()


KINDS = [
    "make_directory", "sync_directory", "lock", "write", "create", "write", "sync", "truncate",
    "rename", "sync_directory", "open_write", "open_read", "read", "unlink", "names",
]  # fmt: skip


def open_file(disk: FaultyDisk, content: bytes = b"") -> LogFile:
    """A synced file of a synced directory, after four operations."""
    directory = disk.directory("/")
    file = directory.create("a")
    file.write(0, content)
    file.sync()
    directory.sync()
    return file


def errno_of(attempt: Callable[[], object]) -> int | None:
    try:
        attempt()
    except OSError as error:
        return error.errno
    return None


# ------------------------------------------------------------------ numbers


def test_every_call_is_one_operation_with_a_number() -> None:
    disk = FaultyDisk(1)
    script(disk)
    assert [operation.kind for operation in disk.trace] == KINDS
    assert [operation.number for operation in disk.trace] == list(range(1, len(KINDS) + 1))
    assert disk.operations == len(KINDS)
    assert str(disk.trace[5]) == "6 write /store/new 6 bytes"
    assert str(disk.trace[6]) == "7 sync /store/new"


def test_the_same_calls_leave_the_same_trace() -> None:
    disks = [FaultyDisk(1), FaultyDisk(1)]
    for disk in disks:
        script(disk)
    assert disks[0].trace == disks[1].trace


def test_paths_are_absolute_and_normal() -> None:
    disk = FaultyDisk(1)
    disk.make_directory("store/./x/../")
    disk.make_directory("//store//wal/")
    assert disk.directory("store").names() == ["wal"]


# ------------------------------------------------------------------ power cuts


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", range(1, len(KINDS) + 1))
def test_the_power_goes_at_the_operation_that_was_planned(number: int, moment: str) -> None:
    disk = FaultyDisk(1)
    disk.crash_at(number, moment)
    with pytest.raises(SimulatedCrash, match=rf"at operation {number} {KINDS[number - 1]}"):
        script(disk)
    assert disk.crashed
    assert disk.operations == number


def test_nothing_works_after_the_power_cut_but_closing() -> None:
    disk = FaultyDisk(1)
    directory = disk.directory("/")
    file = open_file(disk)
    lock = disk.lock("/lock")
    disk.crash_at(disk.operations + 1)
    attempts: list[Callable[[], object]] = [
        lambda: file.write(0, b"x"),
        lambda: file.read(0, 1),
        lambda: file.sync(),
        lambda: directory.names(),
        lambda: directory.create("b"),
        lambda: disk.make_directory("/c"),
        lambda: disk.directory("/"),
        lambda: disk.kind("/"),
        lambda: lock.write(b"x"),
    ]
    for attempt in attempts:
        with pytest.raises(SimulatedCrash):
            attempt()
    file.close()
    lock.release()
    assert disk.operations == 6


def test_a_crash_is_no_exception_that_somebody_handles() -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_inside_a_write_a_part_of_it_reaches_the_cache() -> None:
    sizes = set()
    for seed in range(60):
        disk = FaultyDisk(seed)
        file = open_file(disk)
        disk.crash_at(disk.operations + 1, "inside")
        with pytest.raises(SimulatedCrash):
            file.write(0, b"abcd")
        after = disk.crash("kept")
        sizes.add(len(after.read_bytes("/a")))
    assert sizes == {0, 1, 2, 3}


def test_before_a_write_nothing_and_after_it_all_reached_the_cache() -> None:
    for moment, content in (("before", b""), ("after", b"abcd")):
        disk = FaultyDisk(1)
        file = open_file(disk)
        disk.crash_at(disk.operations + 1, moment)
        with pytest.raises(SimulatedCrash):
            file.write(0, b"abcd")
        assert disk.crash("kept").read_bytes("/a") == content
        assert disk.crash("lost").read_bytes("/a") == b""


def test_inside_what_is_atomic_it_happened_or_not() -> None:
    names = set()
    for seed in range(20):
        disk = FaultyDisk(seed)
        open_file(disk)
        disk.crash_at(disk.operations + 1, "inside")
        with pytest.raises(SimulatedCrash):
            disk.directory("/").rename("a", "b")
        names.add(tuple(disk.crash("kept").paths()))
    assert names == {("/a",), ("/b",)}


def test_a_directory_is_durable_when_its_making_returns() -> None:
    disk = FaultyDisk(1)
    disk.make_directory("/store")
    assert disk.crash("lost").kind("/store") == "directory"


def test_a_directory_may_be_lost_before_its_parent_is_synced() -> None:
    disk = FaultyDisk(1)
    disk.crash_at(2, "before")
    with pytest.raises(SimulatedCrash):
        disk.make_directory("/store")
    assert disk.crash("lost").kind("/store") is None
    assert disk.crash("kept").kind("/store") == "directory"


def test_a_disk_after_a_crash_has_no_locks_and_no_plan() -> None:
    disk = FaultyDisk(1)
    disk.lock("/lock")
    disk.fail_at(1, "EIO", for_ever=True, kind="sync")
    disk.crash_at(99)
    after = disk.crash("kept")
    after.lock("/lock").release()
    open_file(after)
    assert after.operations == 5


def test_one_power_cut_may_be_asked_for_all_outcomes() -> None:
    disk = FaultyDisk(3)
    file = open_file(disk, b"old")
    file.write(0, b"new")
    assert disk.crash("lost").read_bytes("/a") == b"old"
    assert disk.crash("kept").read_bytes("/a") == b"new"
    assert disk.crash("lost").read_bytes("/a") == b"old"
    first, second = (disk.crash("reordered").read_bytes("/a") for _ in range(2))
    assert first == second


def test_a_copy_leaves_the_disk_running() -> None:
    disk = FaultyDisk(1)
    file = open_file(disk)
    file.write(0, b"abc")
    copy = disk.copy()
    file.write(0, b"xyz")
    assert copy.read_bytes("/a") == b"abc"
    assert copy.crash("lost").read_bytes("/a") == b"abc"
    assert disk.read_bytes("/a") == b"xyz"


def test_a_moment_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="before, inside, after"):
        FaultyDisk(1).crash_at(1, "soon")


# ------------------------------------------------------------------ errors

APPLIES = sorted(
    (number, fault)
    for number, kind in enumerate(KINDS, start=1)
    for fault, (_, kinds) in FAULTS.items()
    if kind in kinds
)


@pytest.mark.parametrize(("number", "fault"), APPLIES)
def test_a_planned_error_hits_its_operation_once(number: int, fault: str) -> None:
    disk = FaultyDisk(1)
    disk.fail_at(number, fault)
    assert errno_of(lambda: script(disk)) == FAULTS[fault][0]
    assert disk.operations == number
    before = disk.operations
    disk.directory("/").names()
    assert disk.operations == before + 1


def test_an_error_for_ever_lasts_until_the_disk_heals() -> None:
    disk = FaultyDisk(1)
    file = open_file(disk)
    disk.fail_at(disk.operations + 1, "ENOSPC", for_ever=True)
    for _ in range(3):
        assert errno_of(lambda: file.write(0, b"x")) == errno.ENOSPC
    assert errno_of(lambda: disk.directory("/").create("b")) == errno.ENOSPC
    file.sync()
    assert file.read(0, 1) == b""
    disk.heal()
    file.write(0, b"x")
    assert file.read(0, 1) == b"x"


def test_an_error_can_be_kept_to_a_kind_and_a_path() -> None:
    disk = FaultyDisk(1)
    disk.make_directory("/wal")
    directory = disk.directory("/wal")
    inner = directory.create("segment")
    outer = open_file(disk)
    disk.fail_at(1, "EIO", kind="sync", path="/wal")
    inner.write(0, b"x")
    outer.sync()
    directory.sync()
    assert errno_of(inner.sync) == errno.EIO
    inner.sync()


def test_a_short_write_leaves_a_part_and_says_that_the_disk_is_full() -> None:
    sizes = set()
    for seed in range(60):
        disk = FaultyDisk(seed)
        file = open_file(disk)
        disk.fail_at(1, "short")
        assert errno_of(lambda file=file: file.write(0, b"abcd")) == errno.ENOSPC  # type: ignore[misc]  # bound early
        sizes.add(file.size())
    assert sizes == {0, 1, 2, 3}


def test_a_full_disk_takes_nothing() -> None:
    disk = FaultyDisk(1)
    file = open_file(disk, b"abc")
    disk.fail_at(1, "ENOSPC")
    assert errno_of(lambda: file.write(0, b"xyz")) == errno.ENOSPC
    assert disk.read_bytes("/a") == b"abc"


def test_after_a_failed_sync_the_next_one_succeeds_without_the_data() -> None:
    durable = set()
    for seed in range(60):
        disk = FaultyDisk(seed)
        file = open_file(disk, b"old")
        file.write(0, b"new")
        disk.fail_at(1, "EIO", kind="sync")
        assert errno_of(file.sync) == errno.EIO
        file.sync()
        durable.add(disk.crash("kept").read_bytes("/a"))
    assert durable == {b"old", b"new"}


def test_a_fault_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="EIO, ENOSPC, short, EROFS"):
        FaultyDisk(1).fail_at(1, "rain")


# ------------------------------------------------------------------ looking, and damage


def test_damage_by_hand_is_durable_and_no_operation() -> None:
    disk = FaultyDisk(1)
    open_file(disk, b"abc")
    before = disk.operations
    disk.flip_bit("/a", 8)
    assert disk.read_bytes("/a") == b"acc"
    disk.write_bytes("/b", b"new")
    assert disk.paths() == ["/a", "/b"]
    assert disk.operations == before
    after = disk.crash("lost")
    assert [after.read_bytes(path) for path in after.paths()] == [b"acc", b"new"]


def test_what_is_unsynced_can_be_listed() -> None:
    disk = FaultyDisk(1)
    disk.make_directory("/store")
    directory = disk.directory("/store")
    file = directory.create("a")
    assert disk.unsynced() == ["/store"]
    file.write(0, b"x")
    assert disk.unsynced() == ["/store", "/store/a"]
    file.sync()
    directory.sync()
    assert disk.unsynced() == []


def test_looking_at_what_is_no_file_says_so() -> None:
    disk = FaultyDisk(1)
    assert errno_of(lambda: disk.read_bytes("/a")) == errno.ENOENT
    assert errno_of(lambda: disk.read_bytes("/")) == errno.EISDIR


def test_a_network_file_system_can_be_played() -> None:
    disk = FaultyDisk(1)
    disk.network = "nfs4"
    assert disk.network_file_system("/store") == "nfs4"
    assert disk.crash("lost").network_file_system("/store") == "nfs4"


def test_what_is_put_around_operations_gets_those_of_its_kind_below_its_path() -> None:
    disk, seen = FaultyDisk(), list[int]()

    def late(do: Callable[[], object]) -> object:
        seen.append(disk.operations)
        return do() if len(seen) == 1 else None

    disk.make_directory("/store")
    first, other = disk.directory("/store").create("first"), disk.directory("/").create("other")
    with disk.around("sync", "/store", late):
        for file in (first, other, first):
            file.write(0, b"x")
            file.sync()
    first.sync()
    kinds = [(o.kind, o.path) for o in disk.trace[seen[0] :] if o.kind == "sync"]
    assert kinds == [("sync", "/store/first"), ("sync", "/other"), ("sync", "/store/first")]
    assert len(seen) == 2
