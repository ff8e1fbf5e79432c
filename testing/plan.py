"""What can go wrong on a simulated disk, and at which operation.

Owns the table of faults, what an operation is, and the exception that stands for a power cut.

Left out: what each fault does (``testing.disk``, ``testing.media``).
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

MOMENTS = ("before", "inside", "after")

READING = frozenset(["names", "open_read", "open_write", "read"])
"""The kinds of operation that change nothing on the disk."""

FAULTS: dict[str, tuple[int, frozenset[str]]] = {
    "EIO": (
        errno.EIO,
        READING
        | {"create", "write", "sync", "truncate", "rename", "unlink", "sync_directory"}
        | {"make_directory", "remove_directory", "lock", "open_kv", "commit", "copy"},
    ),
    "ENOSPC": (
        errno.ENOSPC,
        frozenset(["create", "write", "rename", "make_directory", "lock"])
        | {"open_kv", "commit", "copy"},
    ),
    "short": (errno.ENOSPC, frozenset(["write", "copy"])),
    "EROFS": (
        errno.EROFS,
        frozenset(["create", "open_write", "write", "truncate", "rename", "unlink"])
        | {"make_directory", "remove_directory", "lock", "open_kv", "commit", "copy"},
    ),
}
"""Fault -> (errno, the kinds of operation that it can hit).

``EIO`` at a sync drops the unsynced changes, and a later sync succeeds without them.  ``short``
writes a part of the bytes and then reports a full disk.
"""


class SimulatedCrash(BaseException):
    """The simulated machine has lost its power; no ``Exception``, so that nobody handles it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOperation:
    """One call that reached the disk."""

    number: int
    kind: str
    path: str
    size_bytes: int

    def __str__(self) -> str:
        size = f" {self.size_bytes} bytes" if self.size_bytes else ""
        return f"{self.number} {self.kind} {self.path}{size}"

    @property
    def changes(self) -> bool:
        """Whether the operation can change what is on the disk."""
        return self.kind not in READING


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """An error that waits for its operation."""

    number: int
    name: str
    for_ever: bool
    kind: str | None
    path: str

    def hits(self, operation: DiskOperation) -> bool:
        """Whether the operation is one that this error was planned for."""
        return (
            operation.number >= self.number
            and operation.kind in FAULTS[self.name][1]
            and self.kind in (None, operation.kind)
            and operation.path.startswith(self.path)
        )


def disk_error(code: int, path: str) -> OSError:
    """Return the ``OSError`` that the operating system would raise."""
    return OSError(code, os.strerror(code), path)
