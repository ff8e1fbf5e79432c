"""Files and folders that only their owner may read, as those of a store are, and how they are read.

Left out: stores and loads, which have ports of their own for this.
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from crc32c import crc32c

from ...affinity.errors import CorruptDataError

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_CHUNK = 1 << 20


def make_folder(path: str) -> None:
    """Make a folder, and those above it that are not there; one that is there stays as it is."""
    above = os.path.dirname(path)
    if above and not os.path.isdir(above):
        make_folder(above)
    if not os.path.isdir(path):
        os.mkdir(path, FOLDER_MODE)


def new_file(path: str) -> BinaryIO:
    """Open a new file for writing, replacing one that is there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")


def is_name(name: object) -> bool:
    """Tell whether a text names something in a folder, and nothing above or below it."""
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and "/" not in name
        and "\0" not in name
    )


def open_plain(path: str, folder: str, name: str) -> BinaryIO:
    """Open a file in a folder below a path for reading; neither may be a symbolic link.

    ``OSError`` if it is not a regular file.
    """
    inside = os.open(
        os.path.join(path, folder), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    )
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=inside)
    finally:
        os.close(inside)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("it is not a regular file")
    return os.fdopen(file, "rb")


def size_and_crc(file: BinaryIO) -> tuple[int, int]:
    """Return size and CRC-32C of an open file, which is at its beginning again behind that."""
    file.seek(0)
    size = crc = 0
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        crc = crc32c(chunk, crc)
    file.seek(0)
    return size, crc


def check_size_and_crc(file: BinaryIO, shown: str, size: int, crc: int) -> None:
    """Raise ``CorruptDataError`` unless an open file has this size and CRC-32C."""
    found = size_and_crc(file)
    if found[0] != size:
        raise CorruptDataError(f"{shown} has {found[0]:,} bytes, {size:,} were written")
    if found[1] != crc:
        raise CorruptDataError(
            f"{shown} is not what was written: CRC-32C {found[1]:08x}, {crc:08x} was"
        )
