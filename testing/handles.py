"""Open files, open directories and locks of a ``FaultyDisk``.

Every call that a system call would serve goes through ``FaultyDisk.perform``, which numbers it and
decides whether it takes place; the handles say what it does, whole and in part.
"""

from __future__ import annotations

import errno
import posixpath
import random
from collections.abc import Callable
from typing import Protocol, TypeVar

from ..wal.ports import LogFile, ReadableFile
from .media import FileWrite, Folder, Inode, NameChange, Resize
from .plan import disk_error

T = TypeVar("T")


class Performer(Protocol):
    """The disk that the handles are of."""

    def perform(
        self,
        kind: str,
        path: str,
        action: Callable[[], T],
        *,
        size: int = 0,
        partly: Callable[[random.Random], object] | None = None,
        spoil: Callable[[random.Random], object] | None = None,
    ) -> T:
        """Number an operation and do it, or what is planned in its place."""

    def unlock(self, lock: FaultyLock) -> None:
        """Give up a lock, if the disk still knows it."""


class FaultyFile:
    """An open file of a ``FaultyDisk``."""

    def __init__(self, disk: Performer, path: str, inode: Inode, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable
        self._closed = False

    def __repr__(self) -> str:
        return f"<FaultyFile {self._path}>"

    @property
    def mapping(self) -> None:
        """Every write is to be seen, so there is no mapping."""
        return None

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        self._check()
        return self._disk.perform(
            "read", self._path, lambda: bytes(self._inode.cached[offset : offset + length])
        )

    def size(self) -> int:
        """Return the size in bytes."""
        self._check()
        return len(self._inode.cached)

    def write(self, offset: int, data: bytes) -> None:
        """Write all of ``data`` at ``offset``, growing the file if needed."""
        self._check(writing=True)
        write = FileWrite(offset, bytes(data))

        def partly(rng: random.Random) -> None:
            self._inode.change(write.head(rng.randint(0, max(0, len(data) - 1))))

        self._disk.perform(
            "write",
            self._path,
            lambda: self._inode.change(write),
            size=len(data),
            partly=partly,
            spoil=partly,
        )

    def sync(self) -> None:
        """Make every earlier write of this file durable."""
        self._check()
        inode = self._inode
        self._disk.perform(
            "sync", self._path, inode.sync, partly=inode.sync_partly, spoil=inode.fail_sync
        )

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        self._check(writing=True)
        self._disk.perform("truncate", self._path, lambda: self._inode.change(Resize(size)))

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._closed = True

    def _check(self, *, writing: bool = False) -> None:
        if self._closed or (writing and not self._writable):
            raise disk_error(errno.EBADF, self._path)


class FaultyDirectory:
    """An open directory of a ``FaultyDisk``."""

    def __init__(self, disk: Performer, path: str, folder: Folder, read_only: bool) -> None:
        self._disk = disk
        self._folder = folder
        self._read_only = read_only
        self.path = path

    def __repr__(self) -> str:
        return f"<FaultyDirectory {self.path}>"

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        return self._disk.perform("names", self.path, lambda: sorted(self._folder.cached))

    def open_read(self, name: str) -> ReadableFile:
        """Open a regular file for reading."""
        return self._disk.perform("open_read", self._at(name), lambda: self._open(name, False))

    def create(self, name: str, *, mapped: bool = False) -> LogFile:
        """Create a file that must not exist yet, and open it; mapped or not is the same here."""
        self._check_writable(name)
        return self._disk.perform("create", self._at(name), lambda: self._create(name))

    def open_write(self, name: str, *, mapped: bool = False) -> LogFile:
        """Open an existing regular file for reading and writing."""
        self._check_writable(name)
        return self._disk.perform("open_write", self._at(name), lambda: self._open(name, True))

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing ``new`` if it exists."""
        self._check_writable(old)
        self._disk.perform("rename", self._at(old), lambda: self._rename(old, new))

    def unlink(self, name: str) -> None:
        """Remove a file."""
        self._check_writable(name)
        self._disk.perform("unlink", self._at(name), lambda: self._unlink(name))

    def sync(self) -> None:
        """Make names that were created, renamed or removed durable."""
        folder = self._folder
        self._disk.perform(
            "sync_directory",
            self.path,
            folder.sync,
            partly=folder.sync_partly,
            spoil=folder.fail_sync,
        )

    def close(self) -> None:
        """Close the directory; closing twice is fine."""

    def _at(self, name: str) -> str:
        return posixpath.join(self.path, name)

    def _check_writable(self, name: str) -> None:
        if self._read_only:
            raise disk_error(errno.EROFS, self._at(name))

    def _inode(self, name: str) -> Inode:
        node = self._folder.cached.get(name)
        if isinstance(node, Inode):
            return node
        raise disk_error(errno.ENOENT if node is None else errno.EISDIR, self._at(name))

    def _open(self, name: str, writable: bool) -> FaultyFile:
        return FaultyFile(self._disk, self._at(name), self._inode(name), writable=writable)

    def _create(self, name: str) -> FaultyFile:
        if name in self._folder.cached:
            raise disk_error(errno.EEXIST, self._at(name))
        self._folder.change(NameChange(None, name, Inode()))
        return self._open(name, True)

    def _rename(self, old: str, new: str) -> None:
        self._folder.change(NameChange(old, new, self._inode(old)))

    def _unlink(self, name: str) -> None:
        self._inode(name)
        self._folder.change(NameChange(name, None, None))


class FaultyLock:
    """A lock on a file of a ``FaultyDisk``, until it is released or the power is gone."""

    def __init__(self, disk: Performer, path: str, inode: Inode, shared: bool) -> None:
        self._disk = disk
        self._path = path
        self.inode = inode
        self.shared = shared

    def write(self, text: bytes) -> None:
        """Replace the content of the locked file."""

        def replace() -> None:
            self.inode.change(Resize(0))
            self.inode.change(FileWrite(0, text))

        self._disk.perform("write", self._path, replace, size=len(text))

    def release(self) -> None:
        """Give the lock up; releasing twice is fine."""
        self._disk.unlock(self)
