"""Everything the engine needs from the outside world, as one object that is handed in.

Owns the ports for disk, key-value environment and network, and the ``Environment`` that bundles
them with clocks, randomness, background work and the runner of blocking work.  ``production`` wires
the real ones; ``tidelog.testing`` wires faulty, seeded ones under the same engine code.

Invariants:

- What only code under Trio uses (``run``, ``network``) costs a store without Trio nothing: the real
  ones are loaded when they are first used.

Left out: the log's directory and file ports, which ``wal.ports`` declares.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ...wal.ports import Directory
from .limits import LIMITS, Limits

T = TypeVar("T")

Address = tuple[str, int]
"""Host and port; a host that begins with a slash is the path of a Unix socket, with port 0."""


def address_text(address: Address) -> str:
    """Return an address as people write it: ``HOST:PORT``, ``[HOST]:PORT``, or a path."""
    host, port = address
    if host.startswith("/"):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class LockHandle(Protocol):
    """A lock on a file, held until it is released or the process ends."""

    def write(self, text: bytes) -> None:
        """Replace the content of the locked file."""

    def release(self) -> None:
        """Give the lock up; releasing twice is fine."""


class Disk(Protocol):
    """The file system: directories to work in, and locks between processes."""

    def kind(self, path: str) -> str | None:
        """Return ``directory``, ``file``, ``other``, or None if nothing is there."""

    def make_directory(self, path: str) -> None:
        """Create a directory (mode 0700) that may exist already, durably."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def directory(self, path: str, *, read_only: bool = False) -> Directory:
        """Open an existing directory."""

    def lock(self, path: str, *, shared: bool = False) -> LockHandle:
        """Create the file if needed and lock it; ``BlockingIOError`` if it is locked."""

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

    def set_key(self, key: bytes) -> bool:
        """Go to a key; tell whether it is there."""

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

    def delete(self) -> bool:
        """Delete the pair here, and go to the one behind it; tell whether there was one."""

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

    A commit is atomic and durable when it returns.  Errors are ``KvFullError`` of ``lmdb_file``
    (the map is full), ``OSError`` (the disk), ``CorruptDataError``.
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

    def beside(self) -> KeyValueEnvironment:
        """Make a new file beside this one: ``FRESH_DATA_FILE``, with ``FRESH_DATA_LOCK``."""

    def become(self, fresh: KeyValueEnvironment) -> None:
        """Go on in a file that was made ``beside`` and has the names of this one by now.

        Transactions that read go on seeing the old file; none may be writing.
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


class RunBlocking(Protocol):
    """Lets code under Trio do what blocks."""

    async def __call__(self, kind: str, work: Callable[[], T]) -> T:
        """Return ``work()``, called where it keeps no task waiting.

        Work of the kind ``sync`` runs one at a time, in the order of the calls; of all other kinds
        together a limited number runs at a time, so it must not wait for other work.  Work that was
        begun is waited for, also by a task that is cancelled: what a disk was asked for happens or
        fails whoever looks, and whoever goes on (to close a file, say) has to know.  Such a task
        gets the result, and is cancelled at its next checkpoint.  Cancelled before that, nothing
        happens.
        """


class Stream(Protocol):
    """One end of a connection: bytes in order, both ways, which may be cut and joined anywhere.

    One task at a time may send and one may receive, else ``trio.BusyResourceError``.  What the peer
    or the way to it does is an ``OSError``, mostly a ``ConnectionError``; a stream that was closed
    at this end raises ``trio.ClosedResourceError``, also if a task was waiting.
    """

    @property
    def peer(self) -> Address:
        """The address of the other end."""

    async def send(self, data: bytes) -> None:
        """Send all of ``data``; waits while the peer does not keep up.

        That it returns does not mean that anything arrived.  Cancelled, any part may be sent.
        """

    def send_nowait(self, data: bytes) -> int:
        """Send what can be taken at once; return how many bytes that is, maybe none.

        Like ``send``, but for the waiting: nobody may be in ``send`` meanwhile.
        """

    async def receive(self, bytes_max: int = 65_536) -> bytes:
        """Wait for some bytes; empty if the peer has closed its end."""

    def close(self) -> None:
        """Close this end, without waiting; closing twice is fine.

        What was sent still goes its way, unless something that was received has not been read.
        """


class Listener(Protocol):
    """A port at which connections arrive."""

    @property
    def address(self) -> Address:
        """Where it listens; the port was chosen where 0 was asked for."""

    async def accept(self) -> Stream:
        """Wait for the next connection."""

    def close(self) -> None:
        """Take no more connections; closing twice is fine."""


class Network(Protocol):
    """The way to other processes, for code under Trio."""

    async def listen(self, address: Address) -> Listener:
        """Listen at an address of this machine; ``OSError`` if that cannot be."""

    async def connect(self, address: Address) -> Stream:
        """Connect; ``OSError`` if nobody listens, or nobody answered in the system's time."""


REST_S = 0.0001
"""Seconds of a rest: enough for who waits for the interpreter to wake up and take it."""


MANY_FILES = 1 << 20


def many_files() -> int:
    """Return more than anybody opens: only a real system has a limit."""
    return MANY_FILES


def not_reached(_point: str) -> None:
    """Do nothing: only a simulation wants to know what was reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Clocks, randomness, disk, key-value store, threads and network of one store."""

    clock: Callable[[], int]
    """Microseconds UTC; may jump."""
    monotonic: Callable[[], float]
    """Seconds that never run backwards."""
    boottime: Callable[[], float]
    """Seconds that never run backwards, and go on while the machine is suspended."""
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
    run: RunBlocking
    """Do what blocks, for code under Trio; one environment serves one Trio loop."""
    network: Network
    reached: Callable[[str], None] = not_reached
    """Tell that a named point of the program was reached, where a simulation may let it end."""
    pid: Callable[[], int] = os.getpid
    open_files_max: Callable[[], int] = many_files
    """How many files this process may have open."""
    limits: Limits = LIMITS
    """How much the engine does at a time."""
    finalizes: bool = False
    """Whether open stores are closed at the end of this process, and let go of when they are lost.

    Not if a test drops a handle to have a crash: such a store belongs to no process.
    """

    def rest(self) -> None:
        """Let other threads have the interpreter; for who computes beside an event loop.

        Called behind each millisecond or so.  Without it the loop waits for five, and again behind
        each thing that it asks of the system.  Letting go without a pause is of no use: who does
        has taken the interpreter back before the other one is awake.
        """
        self.wait(REST_S)
