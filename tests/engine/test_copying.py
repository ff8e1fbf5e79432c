"""Copies of files: the bytes that were asked for, no others, and an error for those not there."""

from __future__ import annotations

import pytest

from tidelog.engine.system.copying import PIECE_BYTES, copy_file
from tidelog.engine.system.memory import MemoryDisk
from tidelog.wal.ports import Directory

DATA = bytes(range(256)) * (PIECE_BYTES // 256) + b"the last piece"


@pytest.fixture
def directory() -> Directory:
    """A directory with one file of more than a piece."""
    disk = MemoryDisk("/store")
    disk.make_directory("/store")
    found = disk.directory("/store")
    found.create("a").write(0, DATA)
    return found


@pytest.mark.parametrize("size", [None, 0, 1, PIECE_BYTES, PIECE_BYTES + 3, len(DATA)])
def test_only_the_bytes_that_were_asked_for_are_copied(
    directory: Directory, size: int | None
) -> None:
    expected = DATA[:size]
    assert copy_file(directory, "a", directory, target_name="b", size=size) == len(expected)
    copy = directory.open_read("b")
    assert copy.read(0, copy.size()) == expected


def test_a_file_that_is_shorter_than_it_should_be_is_an_error(directory: Directory) -> None:
    with pytest.raises(OSError, match=f"ends at {len(DATA)} of {len(DATA) + 1} bytes"):
        copy_file(directory, "a", directory, target_name="b", size=len(DATA) + 1)
