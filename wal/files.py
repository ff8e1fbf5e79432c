"""A directory of files for reading only: what tools and inspecting processes look at a log through.

Invariants:

- Nothing is created, changed or locked, and access times stay as they are if the system lets us.
- Only regular files are opened: a FIFO would block, a symbolic link may lead out of the store.

Left out: everything that writes (``engine.system.disk``).
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ..affinity.errors import NotFoundError, UsageError
from .ports import ReadableFile

# A FIFO without a writer would block at open for ever without O_NONBLOCK.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class ReadOnlyFile:
    """An open regular file."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        data = os.pread(self._fd, length, offset)
        while data and len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class ReadOnlyDirectory:
    """A directory whose regular files can be listed and read, and nothing else.

    Raises ``NotFoundError`` for a path that is not a directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        if not self._path.is_dir():
            raise NotFoundError(f"{self._path} is not a directory", hint="Check the path.")

    def __repr__(self) -> str:
        return f"<ReadOnlyDirectory {self._path}>"

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        return sorted(os.listdir(self._path))

    def open_read(self, name: str) -> ReadableFile:
        """Open a regular file.

        Raises ``UsageError`` for anything else of that name, ``FileNotFoundError`` for nothing.
        """
        if os.path.basename(name) != name:
            raise UsageError(f"{name!r} is not the name of a file in {self._path}")
        path = self._path / name
        try:
            fd = _opened(path)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                kind = "a symbolic link" if error.errno == errno.ELOOP else "a socket"
                raise UsageError(f"{path} is {kind}, not a regular file") from error
            raise
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            kind = next(text for matches, text in _KINDS if matches(mode))
            raise UsageError(f"{path} is {kind}, not a regular file")
        return ReadOnlyFile(fd)


def _opened(path: Path) -> int:
    try:
        return os.open(path, _OPEN | os.O_NOATIME)
    except PermissionError:
        # Only the owner of a file may leave its access time alone.
        return os.open(path, _OPEN)
