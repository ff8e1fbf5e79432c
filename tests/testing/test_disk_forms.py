"""One suite for all forms of the disk: the real one, its faulty twin, and memory answer alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.engine.system.disk import RealDisk
from tidelog.engine.system.environment import Disk
from tidelog.engine.system.memory import MemoryDisk
from tidelog.testing import FaultyDisk
from tidelog.wal.ports import Directory

Place = tuple[Disk, str]


def real_place(tmp_path: Path) -> Place:
    return RealDisk(), str(tmp_path / "store")


def twin_place(tmp_path: Path) -> Place:
    return FaultyDisk(1), "/store"


def memory_place(_tmp_path: Path) -> Place:
    return MemoryDisk(":memory:1"), ":memory:1"


@pytest.fixture(params=[real_place, twin_place, memory_place], ids=["real", "twin", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make: Callable[[Path], Place] = request.param
    disk, path = make(tmp_path)
    disk.make_directory(path)
    return disk, path


@pytest.fixture
def directory(place: Place) -> Directory:
    disk, path = place
    return disk.directory(path)


def write_file(directory: Directory, name: str, data: bytes) -> None:
    file = directory.create(name)
    file.write(0, data)
    file.sync()
    file.close()


def read_file(directory: Directory, name: str) -> bytes:
    file = directory.open_read(name)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


# ------------------------------------------------------------------ paths and directories


def test_kind_tells_directories_files_and_nothing(place: Place) -> None:
    disk, path = place
    write_file(disk.directory(path), "a", b"x")
    assert disk.kind(path) == "directory"
    assert disk.kind(f"{path}/a") == "file"
    assert disk.kind(f"{path}/b") is None
    assert disk.kind(f"{path}/a/b") is None


def test_making_a_directory_again_is_fine(place: Place) -> None:
    disk, path = place
    disk.make_directory(f"{path}/wal")
    write_file(disk.directory(f"{path}/wal"), "a", b"x")
    disk.make_directory(f"{path}/wal")
    assert disk.directory(path).names() == ["wal"]
    assert read_file(disk.directory(f"{path}/wal"), "a") == b"x"


def test_a_directory_is_not_made_over_a_file_or_below_nothing(place: Place) -> None:
    disk, path = place
    write_file(disk.directory(path), "a", b"x")
    with pytest.raises(FileExistsError):
        disk.make_directory(f"{path}/a")
    with pytest.raises(FileNotFoundError):
        disk.make_directory(f"{path}/b/c")


def test_a_directory_is_removed_once_it_is_empty(place: Place) -> None:
    disk, path = place
    disk.make_directory(f"{path}/a")
    write_file(disk.directory(f"{path}/a"), "x", b"x")
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory(f"{path}/a")
    disk.directory(f"{path}/a").unlink("x")
    disk.remove_directory(f"{path}/a")
    assert disk.kind(f"{path}/a") is None
    with pytest.raises(FileNotFoundError):
        disk.remove_directory(f"{path}/a")


def test_opening_what_is_no_directory_says_so(place: Place) -> None:
    disk, path = place
    write_file(disk.directory(path), "a", b"x")
    with pytest.raises(FileNotFoundError):
        disk.directory(f"{path}/missing")
    with pytest.raises(NotADirectoryError):
        disk.directory(f"{path}/a")


def test_a_local_disk_is_no_network_file_system(place: Place) -> None:
    disk, path = place
    assert disk.network_file_system(path) is None
    assert disk.network_file_system(f"{path}/not/there/yet") is None


# ------------------------------------------------------------------ names


def test_names_are_sorted(directory: Directory) -> None:
    for name in ("b", "a", "c"):
        write_file(directory, name, b"")
    assert directory.names() == ["a", "b", "c"]


def test_creating_a_file_that_exists_is_refused(directory: Directory) -> None:
    write_file(directory, "a", b"old")
    with pytest.raises(FileExistsError):
        directory.create("a")
    assert read_file(directory, "a") == b"old"


def test_opening_a_missing_file_is_refused(directory: Directory) -> None:
    with pytest.raises(FileNotFoundError):
        directory.open_read("a")
    with pytest.raises(FileNotFoundError):
        directory.open_write("a")
    assert directory.names() == []


def test_opening_a_directory_as_a_file_is_refused(place: Place) -> None:
    disk, path = place
    disk.make_directory(f"{path}/sub")
    directory = disk.directory(path)
    with pytest.raises(IsADirectoryError):
        directory.open_read("sub")
    with pytest.raises(IsADirectoryError):
        directory.open_write("sub")


def test_rename_replaces_its_target(directory: Directory) -> None:
    write_file(directory, "new", b"2")
    write_file(directory, "old", b"1")
    directory.rename("new", "old")
    directory.sync()
    assert directory.names() == ["old"]
    assert read_file(directory, "old") == b"2"


def test_renaming_or_removing_what_is_missing_is_refused(directory: Directory) -> None:
    with pytest.raises(FileNotFoundError):
        directory.rename("a", "b")
    with pytest.raises(FileNotFoundError):
        directory.unlink("a")


def test_an_open_file_outlives_its_name(directory: Directory) -> None:
    write_file(directory, "a", b"abc")
    file = directory.open_write("a")
    directory.unlink("a")
    file.write(3, b"d")
    assert file.read(0, 10) == b"abcd"
    assert directory.names() == []
    file.close()


def test_a_directory_for_reading_changes_nothing(place: Place) -> None:
    disk, path = place
    write_file(disk.directory(path), "a", b"x")
    directory = disk.directory(path, read_only=True)
    attempts: list[Callable[[], object]] = [
        lambda: directory.create("b"),
        lambda: directory.open_write("a"),
        lambda: directory.rename("a", "b"),
        lambda: directory.unlink("a"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match=r"opened for reading|Read-only"):
            attempt()
    assert directory.names() == ["a"]
    assert read_file(directory, "a") == b"x"


# ------------------------------------------------------------------ content


@pytest.mark.parametrize("mapped", [False, True])
def test_content_is_what_was_written_last(directory: Directory, mapped: bool) -> None:
    file = directory.create("a", mapped=mapped)
    file.write(0, bytes(10_000))
    file.write(4_090, b"0123456789")
    file.write(9_995, b"beyond the end")
    file.sync()
    file.write(0, b"start")
    assert file.size() == 10_009
    assert file.read(4_088, 14) == b"\0\0" + b"0123456789" + b"\0\0"
    assert file.read(9_990, 100) == bytes(5) + b"beyond the end"
    file.close()
    assert read_file(directory, "a")[:6] == b"start\0"


@pytest.mark.parametrize("mapped", [False, True])
def test_a_reopened_file_is_written_in_place(directory: Directory, mapped: bool) -> None:
    write_file(directory, "a", b"abcdef")
    file = directory.open_write("a", mapped=mapped)
    file.write(2, b"XY")
    file.sync()
    file.close()
    assert read_file(directory, "a") == b"abXYef"


@pytest.mark.parametrize("mapped", [False, True])
def test_truncate_cuts_and_later_writes_grow_again(directory: Directory, mapped: bool) -> None:
    file = directory.create("a", mapped=mapped)
    file.write(0, b"x" * 5_000)
    file.truncate(3)
    assert file.size() == 3
    assert file.read(0, 100) == b"xxx"
    file.write(5, b"y")
    file.sync()
    assert file.read(0, 100) == b"xxx\0\0y"
    file.truncate(0)
    assert file.read(0, 100) == b""
    file.write(0, b"z")
    assert file.read(0, 100) == b"z"
    file.close()


def test_truncate_lets_a_file_grow_by_zeros(directory: Directory) -> None:
    file = directory.create("a")
    file.write(0, b"abc")
    file.truncate(9)
    assert (file.size(), file.read(0, 20)) == (9, b"abc" + bytes(6))
    file.close()


def test_reading_behind_the_end_returns_nothing(directory: Directory) -> None:
    write_file(directory, "a", b"abc")
    file = directory.open_read("a")
    assert file.read(3, 10) == b""
    assert file.read(100, 10) == b""
    assert file.read(1, 10) == b"bc"
    assert file.read(1, 0) == b""
    file.close()


def test_a_closed_file_is_refused_and_closing_twice_is_fine(directory: Directory) -> None:
    file = directory.create("a")
    file.write(0, b"abc")
    file.close()
    file.close()
    attempts: list[Callable[[], object]] = [
        lambda: file.write(0, b"x"),
        lambda: file.read(0, 1),
        lambda: file.sync(),
        lambda: file.truncate(0),
        lambda: file.size(),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="Bad file descriptor"):
            attempt()
    assert read_file(directory, "a") == b"abc"


def test_a_file_opened_for_reading_sees_later_writes(directory: Directory) -> None:
    writer = directory.create("a", mapped=True)
    writer.write(0, bytes(100))
    reader = directory.open_read("a")
    writer.write(50, b"new")
    assert reader.read(49, 5) == b"\0new\0"
    reader.close()
    writer.close()


# ------------------------------------------------------------------ locks


def test_a_lock_excludes_others_until_it_is_released(place: Place) -> None:
    disk, path = place
    held = disk.lock(f"{path}/lock")
    for shared in (False, True):
        with pytest.raises(BlockingIOError):
            disk.lock(f"{path}/lock", shared=shared)
    held.release()
    held.release()
    disk.lock(f"{path}/lock").release()


def test_shared_locks_exclude_only_an_exclusive_one(place: Place) -> None:
    disk, path = place
    first = disk.lock(f"{path}/lock", shared=True)
    second = disk.lock(f"{path}/lock", shared=True)
    first.release()
    first.release()
    with pytest.raises(BlockingIOError):
        disk.lock(f"{path}/lock")
    second.release()
    disk.lock(f"{path}/lock").release()


def test_the_text_of_a_lock_can_be_read_by_others(place: Place) -> None:
    disk, path = place
    held = disk.lock(f"{path}/lock")
    held.write(b"a longer text")
    held.write(b"short")
    assert read_file(disk.directory(path), "lock") == b"short"
    held.release()


def test_a_lock_below_nothing_is_refused(place: Place) -> None:
    disk, path = place
    with pytest.raises(FileNotFoundError):
        disk.lock(f"{path}/missing/lock")


def test_locks_on_different_files_are_independent(place: Place) -> None:
    disk, path = place
    first = disk.lock(f"{path}/a")
    second = disk.lock(f"{path}/b")
    first.release()
    second.release()


def test_a_lock_on_a_removed_file_keeps_nobody_out(place: Place) -> None:
    disk, path = place
    old = disk.lock(f"{path}/slot")
    disk.directory(path).unlink("slot")
    new = disk.lock(f"{path}/slot")
    old.release()
    with pytest.raises(BlockingIOError):
        disk.lock(f"{path}/slot")
    new.release()
