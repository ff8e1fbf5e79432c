"""What the log needs from a disk: a directory of files that are written in place and synced.

Owns no behaviour.  ``engine.system.disk`` has the real form, ``testing`` the faulty twin, and
``wal.files`` the plain read-only form that tools use.

Rules that every form keeps:

- ``write`` writes all bytes or raises ``OSError``; what a failed write left behind is undefined.
- ``sync`` covers the writes issued before it, the file's size included; after it has failed once
  the file must not be used again.
- names become durable by ``Directory.sync`` only, their content by ``LogFile.sync`` only.
"""

from __future__ import annotations

from typing import Protocol


class WritableBytes(Protocol):
    """Bytes that can be replaced in place."""

    def __setitem__(self, where: slice, data: bytes, /) -> None:
        """Replace a range by as many bytes."""


class ReadableFile(Protocol):
    """An open file that can be read at any offset."""

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end of the file."""

    def size(self) -> int:
        """Return the size in bytes."""

    def close(self) -> None:
        """Close the file; closing twice is fine."""


class LogFile(ReadableFile, Protocol):
    """An open file that can be written in place."""

    @property
    def mapping(self) -> WritableBytes | None:
        """The bytes of a mapped file, to be written in place; None if there is no mapping.

        Valid until the file grows, is cut or closed.
        """

    def write(self, offset: int, data: bytes) -> None:
        """Write all of ``data`` at ``offset``, growing the file if needed."""

    def sync(self) -> None:
        """Make every earlier write of this file durable (fdatasync)."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""


class ReadableDirectory(Protocol):
    """A directory whose files can be listed and read."""

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""

    def open_read(self, name: str) -> ReadableFile:
        """Open a regular file for reading."""


class Directory(ReadableDirectory, Protocol):
    """A directory whose files can be created, replaced and removed."""

    def create(self, name: str, *, mapped: bool = False) -> LogFile:
        """Create a file that must not exist yet, and open it.

        A ``mapped`` file is written through a mapping if it has bytes already: cheaper writes,
        dearer syncs.  It behaves the same otherwise.
        """

    def open_write(self, name: str, *, mapped: bool = False) -> LogFile:
        """Open an existing regular file for reading and writing; ``mapped`` as for ``create``."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing ``new`` if it exists."""

    def unlink(self, name: str) -> None:
        """Remove a file."""

    def sync(self) -> None:
        """Make names that were created, renamed or removed durable."""
