"""The real disk: what its twin in memory does not have (tests/testing has the suite for both)."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.descriptors import open_files
from tidelog.engine.system import disk as disk_module
from tidelog.engine.system.disk import NETWORK_FILE_SYSTEMS, MappedFile, RealDisk, file_system_of
from tidelog.wal.ports import Directory

DISK = RealDisk()


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return DISK.directory(str(tmp_path))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ------------------------------------------------------------------ modes and kinds


def test_only_the_owner_may_read_what_is_made(tmp_path: Path) -> None:
    DISK.make_directory(str(tmp_path / "store"))
    directory = DISK.directory(str(tmp_path / "store"))
    directory.create("a").close()
    DISK.lock(str(tmp_path / "store" / "lock")).release()
    assert mode_of(tmp_path / "store") == 0o700
    assert mode_of(tmp_path / "store" / "a") == 0o600
    assert mode_of(tmp_path / "store" / "lock") == 0o600


def test_what_is_neither_file_nor_directory_is_other(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.symlink("loop", tmp_path / "loop")
    os.symlink(tmp_path, tmp_path / "link")
    kinds = [DISK.kind(str(tmp_path / name)) for name in ("pipe", "loop", "link")]
    assert kinds == ["other", "other", "directory"]


def test_the_parent_is_synced_even_where_the_directory_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def record(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", record)
    for _ in range(2):
        DISK.make_directory(str(tmp_path / "store"))
    assert synced == [str(tmp_path)] * 2


@pytest.mark.parametrize("mapped", [False, True])
def test_a_sync_of_a_file_is_one_of_the_kernel(
    tmp_path: Path, directory: Directory, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    synced: list[str] = []

    def record(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fdatasync", record)
    file = directory.create("a", mapped=mapped)
    file.write(0, b"x")
    assert synced == []
    file.sync()
    file.sync()
    assert synced == [str(tmp_path / "a")] * 2
    file.close()


def test_a_relative_path_has_a_parent_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DISK.make_directory("store")
    assert DISK.kind("store") == "directory"


# ------------------------------------------------------------------ files


def test_symbolic_links_are_not_followed(tmp_path: Path, directory: Directory) -> None:
    (tmp_path / "target").write_bytes(b"secret")
    os.symlink(tmp_path / "target", tmp_path / "link")
    for attempt in (directory.open_read, directory.open_write):
        with pytest.raises(OSError, match="symbolic links"):
            attempt("link")
    with pytest.raises(FileExistsError):
        directory.create("link")


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path, directory: Directory) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = open_files()
    for attempt in (directory.open_read, directory.open_write):
        with pytest.raises(OSError, match="not a regular file") as caught:
            attempt("pipe")
        assert caught.value.errno == errno.EINVAL
    assert open_files() == before


def test_files_follow_their_directory_when_it_is_renamed(tmp_path: Path) -> None:
    DISK.make_directory(str(tmp_path / "old"))
    directory = DISK.directory(str(tmp_path / "old"))
    os.rename(tmp_path / "old", tmp_path / "new")
    directory.create("a").close()
    assert os.listdir(tmp_path / "new") == ["a"]


def test_threads_that_list_one_directory_at_once_see_all_of_it(
    tmp_path: Path, directory: Directory
) -> None:
    # Listed through one descriptor, they shared out the entries: a healthy store lost segments.
    everything = [f"{number:040d}" for number in range(2000)]
    for name in everything:
        (tmp_path / name).touch()

    def partial(_thread: int) -> int:
        return sum(directory.names() != everything for _ in range(8))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(partial, range(4))) == [0] * 4


def test_a_listing_keeps_no_descriptor(tmp_path: Path) -> None:
    directory = disk_module.RealDirectory(str(tmp_path))
    before = open_files()
    assert directory.names() == []
    os.rmdir(tmp_path)
    assert directory.names() == []
    directory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        directory.names()
    assert open_files() == before - 1


def test_a_directory_gives_its_descriptor_back(tmp_path: Path) -> None:
    before = open_files()
    for _ in range(5):
        DISK.directory(str(tmp_path)).names()
    closed = disk_module.RealDirectory(str(tmp_path))
    closed.close()
    closed.close()
    assert open_files() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        closed.names()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let the kernel itself cut a write short at that size."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_write_that_the_kernel_cut_short_is_continued_and_then_fails(
    directory: Directory,
) -> None:
    file = directory.create("a")
    with file_size_limit(10), pytest.raises(OSError, match="File too large"):
        file.write(4, b"0123456789")
    assert file.read(0, 100) == bytes(4) + b"012345"
    file.close()


def test_short_writes_and_reads_are_continued(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 3), at))
    file = directory.create("a")
    file.write(0, b"0123456789")
    assert file.read(0, 10) == b"0123456789"
    assert file.read(8, 10) == b"89"
    file.close()


def test_a_disk_that_takes_nothing_is_an_error(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = directory.create("a")
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="took no bytes"):
        file.write(0, b"x")
    file.close()


# ------------------------------------------------------------------ mapped files


def test_a_mapped_file_takes_the_space_of_its_holes(tmp_path: Path, directory: Directory) -> None:
    with open(tmp_path / "a", "wb") as stream:
        stream.truncate(1 << 20)
    assert (tmp_path / "a").stat().st_blocks == 0
    file = directory.open_write("a", mapped=True)
    assert isinstance(file, MappedFile)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 1 << 20
    file.close()


def test_a_file_that_cannot_be_mapped_gives_its_descriptor_back(
    tmp_path: Path, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"x")

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = open_files()
    with pytest.raises(OSError, match="No space"):
        directory.open_write("a", mapped=True)
    assert open_files() == before


def test_a_mapped_write_inside_the_file_is_no_system_call(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = directory.create("a", mapped=True)
    file.write(0, bytes(100))
    monkeypatch.delattr(os, "pwrite")
    file.write(50, b"x" * 50)
    with pytest.raises(AttributeError):
        file.write(51, b"x" * 50)
    file.close()


# ------------------------------------------------------------------ locks

HOLD = """
import sys
from tidelog.engine.system.disk import RealDisk
lock = RealDisk().lock(sys.argv[1])
lock.write(b"child")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_of_another_process_ends_with_that_process(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            DISK.lock(path)
        assert Path(path).read_bytes() == b"child"
        child.kill()
    DISK.lock(path).release()


def test_a_forked_child_does_not_give_up_the_lock_of_its_parent(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = DISK.lock(path)
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(BlockingIOError):
        DISK.lock(path)
    lock.release()


def test_the_owner_gives_up_a_lock_that_a_forked_child_still_has_open(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = DISK.lock(path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        os._exit(0)
    lock.release()
    DISK.lock(path).release()
    os.write(writer, b"x")
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)


def test_a_lock_file_removed_in_between_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    flock = fcntl.flock
    removed: list[int] = []

    def remove_first(fd: int, operation: int) -> None:
        if not removed:
            removed.append(fd)
            path.unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    before = open_files()
    lock = DISK.lock(str(path))
    assert removed
    with pytest.raises(BlockingIOError):
        DISK.lock(str(path))
    lock.release()
    assert open_files() == before


def test_a_shared_lock_needs_no_right_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "lock")
    DISK.lock(path).release()
    real_open = os.open

    def read_only_medium(name: str, flags: int, *rest: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system", name)
        return real_open(name, flags, *rest)

    monkeypatch.setattr(os, "open", read_only_medium)
    DISK.lock(path, shared=True).release()
    with pytest.raises(OSError, match="Read-only"):
        DISK.lock(path)


# ------------------------------------------------------------------ network file systems

MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
35 22 0:31 / /mnt/nfs rw,relatime shared:7 master:2 - nfs4 server:/export rw,vers=4.2
36 22 0:32 / /mnt/with\\040space rw - fuse.sshfs user@host:/ rw
broken line
"""


@pytest.mark.parametrize(
    ("device", "name"),
    [((254, 0), "ext4"), ((0, 31), "nfs4"), ((0, 32), "fuse.sshfs"), ((0, 99), None)],
)
def test_the_file_system_is_found_by_its_device(device: tuple[int, int], name: str | None) -> None:
    assert file_system_of(MOUNTINFO, *device) == name


def test_network_file_systems_are_known_by_name() -> None:
    assert {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"} <= NETWORK_FILE_SYSTEMS
    assert not {"ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuseblk"} & NETWORK_FILE_SYSTEMS


def test_a_path_on_a_network_file_system_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "file_system_of", lambda text, major, minor: "nfs4")
    assert DISK.network_file_system(str(tmp_path / "not" / "there")) == "nfs4"


def test_where_nobody_can_tell_the_disk_counts_as_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_proc(*args: object, **keywords: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(disk_module, "open", no_proc, raising=False)
    assert DISK.network_file_system(str(tmp_path)) is None
