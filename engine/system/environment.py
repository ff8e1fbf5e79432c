"""Everything the engine needs from the outside world, as one object that is handed in.

Owns the ports for disk and key-value environment, and the ``Environment`` that bundles them with
clock, randomness and background work.  ``production`` wires the real ones; ``tidelog.testing``
wires faulty, seeded ones under the same engine code.

Left out: the log's directory and file ports, which ``wal.ports`` declares.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from ...wal.ports import Directory


class LockHandle(Protocol):
    """A lock on a file, held until it is released or the process ends."""

    def write(self, text: bytes) -> None:
        """Replace the content of the locked file."""

    def release(self) -> None:
        """Give the lock up; releasing twice is fine."""


class Disk(Protocol):
    """The file system: directories to work in, and locks between processes."""

    def kind(self, path: str) -> str | None:
        """Return ``directory``, ``file``, ``other``, or None where nothing is."""

    def make_directory(self, path: str) -> None:
        """Create a directory (mode 0700) that may exist already, durably."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def directory(self, path: str, *, read_only: bool = False) -> Directory:
        """Open an existing directory."""

    def lock(self, path: str, *, shared: bool = False) -> LockHandle:
        """Create the file where needed and lock it; ``BlockingIOError`` where it is locked."""

    def network_file_system(self, path: str) -> str | None:
        """Return the name of the network file system that holds ``path``, or None."""


class Cursor(Protocol):
    """A position in the sorted keys: the part of py-lmdb's cursor that the engine uses."""

    def first(self) -> bool:
        """Go to the first pair; tell whether there is one."""

    def last(self) -> bool:
        """Go to the last pair; tell whether there is one."""

    def next(self) -> bool:
        """Go to the next pair; tell whether there is one."""

    def prev(self) -> bool:
        """Go to the pair before; tell whether there is one."""

    def set_range(self, key: bytes) -> bool:
        """Go to the first pair at or behind a key; tell whether there is one."""

    def key(self) -> bytes:
        """Return the key here."""

    def value(self) -> bytes:
        """Return the value here."""

    def item(self) -> tuple[bytes, bytes]:
        """Return key and value here."""

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        """Yield from here on: keys, values, or pairs of both."""

    def iterprev(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        """Yield from here backwards: keys, values, or pairs of both."""

    def getmulti(self, keys: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
        """Return the pairs of those keys that are there, in their order."""

    def putmulti(
        self, items: Iterable[tuple[bytes, bytes]], *, append: bool = False
    ) -> tuple[int, int]:
        """Write pairs in order; return how many there were, and how many were new."""

    def close(self) -> None:
        """Let go of the cursor."""


class KvTransaction(Protocol):
    """A consistent view of the store, or one atomic change: py-lmdb's transaction.

    A read transaction may be shared by threads (each with cursors of its own), as nothing but the
    map is read through it; a write transaction stays on the thread that began it.
    """

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Return the value of a key, or ``default``."""

    def put(self, key: bytes, value: bytes) -> bool:
        """Write a pair; tell whether it was written."""

    def delete(self, key: bytes) -> bool:
        """Delete a key; tell whether it was there."""

    def cursor(self) -> Cursor:
        """Return a cursor that stands nowhere yet."""

    def commit(self) -> None:
        """Make the changes durable, all at once."""

    def abort(self) -> None:
        """End the transaction without any effect."""


class KeyValueEnvironment(Protocol):
    """An ordered, transactional key-value store in one file: LMDB, or its twin in memory.

    A commit is atomic and durable when it returns.  Errors are ``engine.kv.KvFullError`` (the map
    is full), ``OSError`` (the disk), ``CorruptDataError``.
    """

    def begin(self, *, write: bool = False) -> KvTransaction:
        """Begin a transaction; a read transaction ends when its last reference goes."""

    def write(self) -> AbstractContextManager[KvTransaction]:
        """Begin a write transaction that commits when the block ends, and aborts on an error."""

    def entries(self) -> int:
        """Return the number of keys that the tree says it has."""

    def size_used(self) -> int:
        """Return the bytes of the file that hold, or held, pages."""

    def map_size(self) -> int:
        """Return the bytes that the map may grow to."""

    def grow(self, map_size: int) -> None:
        """Enlarge the map; no transaction of this process may be open."""

    def copy(self, path: str, *, compact: bool = False) -> None:
        """Write a consistent copy of the file into the directory ``path``.

        A ``compact`` one leaves unused pages out, and takes longer.
        """

    def clear_stale_readers(self) -> int:
        """Free the slots of processes that have died; return how many."""

    def close(self) -> None:
        """Close the file; closing twice is fine."""


class BackgroundTask(Protocol):
    """Work that runs beside the callers until it is stopped."""

    def wake(self) -> None:
        """Run the work soon."""

    def stop(self, *, wait: bool = True) -> None:
        """Run the work no more; return when it has finished, unless told not to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Clock, randomness, disk, key-value store and background work of one store."""

    clock: Callable[[], int]
    """Microseconds UTC; may jump."""
    monotonic: Callable[[], float]
    """Seconds that never run backwards."""
    random: random.Random
    new_id: Callable[[], bytes]
    """A fresh id of 16 bytes."""
    disk: Disk
    open_kv: Callable[[str, int, bool, bool], KeyValueEnvironment]
    """(path, map size in bytes, read only, lock) -> environment."""
    background: Callable[[str, float, Callable[[], object]], BackgroundTask]
    """(name, seconds between runs, work) -> task; the work also runs when woken.

    Work that returns something true is done for good.
    """
    wait: Callable[[float], None]
    """Let the calling thread pause for some seconds (back-off between attempts)."""
    pid: Callable[[], int] = os.getpid
    finalizes: bool = False
    """Whether a handle that nobody refers to any more lets go of its store, with a warning.

    Not where a test drops a handle to have a crash.
    """
