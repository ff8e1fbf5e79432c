from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from support.descriptors import open_files
from support.logs import LogBuilder
from tidelog.affinity.errors import NotFoundError, UsageError
from tidelog.wal.files import ReadOnlyDirectory
from tidelog.wal.reader import Scan


def test_a_log_is_read_from_a_plain_directory(tmp_path: Path) -> None:
    log = LogBuilder()
    log.committed(3)
    log.rotate()
    log.committed(3)
    for name, data in log.directory.files.items():
        (tmp_path / name).write_bytes(data)
    assert list(Scan(ReadOnlyDirectory(tmp_path))) == log.frames


def test_names_are_sorted_and_files_are_read_at_any_offset(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_bytes(b"0123456789")
    directory = ReadOnlyDirectory(str(tmp_path))
    assert directory.names() == ["a", "b"]
    assert repr(directory) == f"<ReadOnlyDirectory {tmp_path}>"
    file = directory.open_read("a")
    assert (file.size(), file.read(3, 4), file.read(8, 9), file.read(10, 1)) == (
        10, b"3456", b"89", b"",
    )  # fmt: skip
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(0, 1)


def test_a_file_that_nobody_refers_to_is_closed(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    directory = ReadOnlyDirectory(tmp_path)
    before = open_files()
    file = directory.open_read("a")
    assert open_files() == before + 1
    del file
    assert open_files() == before


def test_a_short_read_of_the_system_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    file = ReadOnlyDirectory(tmp_path).open_read("a")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 3), offset))
    assert file.read(1, 8) == b"12345678"
    assert file.read(5, 50) == b"56789"


def test_a_path_that_is_no_directory_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        with pytest.raises(NotFoundError, match=name):
            ReadOnlyDirectory(tmp_path / name)


def test_a_missing_file_is_told_as_the_system_tells_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ReadOnlyDirectory(tmp_path).open_read("a")


def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to("target")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    directory = ReadOnlyDirectory(tmp_path)
    for name, kind in {
        "folder": "a directory",
        "fifo": "a FIFO",
        "link": "a symbolic link",
        "socket": "a socket",
    }.items():
        with pytest.raises(UsageError, match=f"{name} is {kind}, not a regular file"):
            directory.open_read(name)
    with pytest.raises(UsageError, match="a device"):
        ReadOnlyDirectory("/dev").open_read("null")


def test_a_name_does_not_lead_out_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "outside").touch()
    with pytest.raises(UsageError, match="not the name of a file"):
        ReadOnlyDirectory(tmp_path / "inner").open_read("../outside")


def test_files_of_other_owners_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"content")
    os_open = os.open

    def refuses_noatime(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_NOATIME:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return os_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuses_noatime)
    assert ReadOnlyDirectory(tmp_path).open_read("a").read(0, 99) == b"content"


def test_reading_leaves_the_access_time_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"content")
    os.utime(path, ns=(5, 10**18))
    ReadOnlyDirectory(tmp_path).open_read("a").read(0, 99)
    assert path.stat().st_atime_ns == 5
