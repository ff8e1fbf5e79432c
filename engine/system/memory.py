"""The environment of a store without files: this machine's, but for its disk and its data file.

``MemoryDisk`` keeps what lies below one path in the memory of this process.  Every other path is on
the real disk, so a backup goes there, and a load is attached from there.  LMDB cannot do without
files: they lose their names as soon as they are open, before anything is written into them.

Invariants:

- What is open has no name in any file system: nothing is left, however the process ends.
- Nothing is durable: a sync has nothing to do, and LMDB's go to a file system in memory if this
  machine has one.

Left out: a second opening of the same store, which nobody can ask for.
"""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from typing import Union

from ...wal.ports import Directory, LogFile, ReadableFile
from .disk import RealDisk
from .environment import Environment, KeyValueEnvironment, LockHandle
from .layout import DATA_FILE
from .lmdb_file import LOCK_FILE, open_lmdb
from .production import production

SHARED_MEMORY = "/dev/shm"
"""A file system in memory, on nearly every Linux."""


class Content(bytearray):
    """The bytes of a file, which names and open files share."""

    holders = 0
    """How many share a lock on it; -1 if one holds it alone."""


Listing = dict[str, Union["Listing", Content]]


class MemoryFile:
    """An open file; ``mapping`` is its content, if it was opened so and has any."""

    def __init__(self, content: Content, name: str, *, mapped: bool = False) -> None:
        self._content: Content | None = content
        self._mapped = mapped
        self.name = name

    def __repr__(self) -> str:
        return f"<MemoryFile {self.name}>"

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        return bytes(self._opened()[offset : offset + length])

    def size(self) -> int:
        """Return the size in bytes."""
        return len(self._opened())

    def write(self, offset: int, data: bytes) -> None:
        """Write all of ``data`` at ``offset``, growing the file if needed."""
        content = self._opened()
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data

    def sync(self) -> None:
        """Do nothing: no file here outlives the process."""
        self._opened()

    @property
    def mapping(self) -> Content | None:
        """The bytes of a mapped file, to be written in place."""
        return (self._content or None) if self._mapped else None

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes, or let it grow by zeros."""
        content = self._opened()
        del content[size:]
        content.extend(bytes(size - len(content)))

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._content = None

    def _opened(self) -> Content:
        if self._content is None:
            raise _error(errno.EBADF, self.name)
        return self._content


class MemoryDirectory:
    """An open directory."""

    def __init__(self, folder: Listing, path: str, *, read_only: bool) -> None:
        self._folder = folder
        self._read_only = read_only
        self.path = path

    def __repr__(self) -> str:
        return f"<MemoryDirectory {self.path}>"

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        return sorted(self._folder)

    def open_read(self, name: str) -> ReadableFile:
        """Open a regular file for reading."""
        return MemoryFile(self._file(name), self._path(name))

    def create(self, name: str, *, mapped: bool = False) -> LogFile:
        """Create a file that must not exist yet, and open it."""
        self._check_writable(name)
        if name in self._folder:
            raise _error(errno.EEXIST, self._path(name))
        self._folder[name] = Content()
        return self.open_write(name, mapped=mapped)

    def open_write(self, name: str, *, mapped: bool = False) -> LogFile:
        """Open an existing regular file for reading and writing."""
        self._check_writable(name)
        return MemoryFile(self._file(name), self._path(name), mapped=mapped)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing ``new`` if it exists."""
        self._check_writable(old)
        content = self._file(old)
        # In this order: an interrupt between the two must not lose it.
        self._folder[new] = content
        del self._folder[old]

    def unlink(self, name: str) -> None:
        """Remove a file."""
        self._check_writable(name)
        self._file(name)
        del self._folder[name]

    def sync(self) -> None:
        """Do nothing: no name here outlives the process."""

    def _file(self, name: str) -> Content:
        found = self._folder.get(name)
        if isinstance(found, Content):
            return found
        raise _error(errno.ENOENT if found is None else errno.EISDIR, self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _check_writable(self, name: str) -> None:
        if self._read_only:
            raise _error(errno.EROFS, self._path(name))


class MemoryLock:
    """A lock on a file in memory."""

    def __init__(self, content: Content, *, shared: bool) -> None:
        content.holders = content.holders + 1 if shared else -1
        self._content: Content | None = content

    def write(self, text: bytes) -> None:
        """Replace the content of the locked file."""
        if self._content is not None:
            self._content[:] = text

    def release(self) -> None:
        """Give the lock up; releasing twice is fine."""
        content, self._content = self._content, None
        if content is not None:
            content.holders = max(0, content.holders - 1)


class MemoryDisk(RealDisk):
    """The real disk, but for what lies at or below ``root``: that is in memory."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._top: Listing = {}

    def holds(self, path: str) -> bool:
        """Tell whether what a path names is in memory."""
        return path == self.root or path.startswith(f"{self.root}/")

    def kind(self, path: str) -> str | None:
        """Return ``directory``, ``file``, ``other``, or None if nothing is there."""
        if not self.holds(path):
            return super().kind(path)
        try:
            found = self._found(path)
        except OSError:
            return None
        return "file" if isinstance(found, Content) else "directory"

    def make_directory(self, path: str) -> None:
        """Create a directory that may exist already."""
        if not self.holds(path):
            return super().make_directory(path)
        folder, name = self._around(path)
        if isinstance(folder.setdefault(name, {}), Content):
            raise _error(errno.EEXIST, path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        if not self.holds(path):
            return super().remove_directory(path)
        if self._folder(path):
            raise _error(errno.ENOTEMPTY, path)
        folder, name = self._around(path)
        del folder[name]

    def directory(self, path: str, *, read_only: bool = False) -> Directory:
        """Open an existing directory."""
        if not self.holds(path):
            return super().directory(path, read_only=read_only)
        return MemoryDirectory(self._folder(path), path, read_only=read_only)

    def lock(self, path: str, *, shared: bool = False) -> LockHandle:
        """Create the file if needed and lock it; ``BlockingIOError`` if it is locked."""
        if not self.holds(path):
            return super().lock(path, shared=shared)
        folder, name = self._around(path)
        content = folder.setdefault(name, Content())
        if not isinstance(content, Content):
            raise _error(errno.EISDIR, path)
        if content.holders < 0 or (content.holders and not shared):
            raise _error(errno.EAGAIN, path)
        return MemoryLock(content, shared=shared)

    def network_file_system(self, path: str) -> str | None:
        """Return the name of the network file system that holds ``path``, or None."""
        return None if self.holds(path) else super().network_file_system(path)

    def _around(self, path: str) -> tuple[Listing, str]:
        """Return the folder that has, or may have, a name, and that name."""
        folder, name = os.path.split(path)
        return self._folder(folder), name

    def _folder(self, path: str) -> Listing:
        found = self._found(path)
        if isinstance(found, Content):
            raise _error(errno.ENOTDIR, path)
        return found

    def _found(self, path: str) -> Listing | Content:
        found: Listing | Content = self._top
        for name in filter(None, path.split("/")):
            if isinstance(found, Content):
                raise _error(errno.ENOTDIR, path)
            if name not in found:
                raise _error(errno.ENOENT, path)
            found = found[name]
        return found


def without_files(path: str) -> Environment:
    """Return an environment in which the store at ``path`` has no files; all else is real."""
    disk = MemoryDisk(path)

    def open_kv(place: str, map_size: int, read_only: bool, lock: bool) -> KeyValueEnvironment:
        if disk.holds(place):
            return _open_nameless(map_size)
        return open_lmdb(place, map_size, read_only, lock)

    return replace(production(), disk=disk, open_kv=open_kv)


def _open_nameless(map_size: int) -> KeyValueEnvironment:
    """Open a new LMDB file, and take its name away, with that of its lock file."""
    base = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None
    folder = tempfile.mkdtemp(prefix="tidelog-", dir=base)
    try:
        return open_lmdb(folder, map_size, False, True)
    finally:
        # By their names, and not by a walk, which needs a descriptor: there may be none.
        for name in (DATA_FILE, LOCK_FILE):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
