"""A disk in memory that numbers every operation, and fails or loses power at the one it is told to.

Owns the faulty twin of ``engine.system.disk``: same ports, same errors, one whole tree of
directories.

Invariants:

- Every call that a system call would serve is a ``DiskOperation`` with a number, from 1 on, in
  ``trace``; the same calls on the same seed give the same trace and the same faults.
- After the power cut every operation on this disk raises ``SimulatedCrash``, whatever handle it
  comes through; closing files and releasing locks does nothing.
- ``crash`` changes nothing but the power: it may be asked for several outcomes.

Not simulated: permissions, links, time stamps, free space (``fail_at`` with ``ENOSPC`` stands for
a full disk), and reads that return wrong bytes (``flip_bit`` damages the platter itself).
"""

from __future__ import annotations

import errno
import posixpath
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..engine.system.environment import LockHandle
from ..wal.ports import Directory
from .handles import FaultyDirectory, FaultyLock
from .media import FileOrFolder, Folder, Inode, NameChange
from .plan import FAULTS, MOMENTS, DiskOperation, PlannedFault, SimulatedCrash, disk_error

T = TypeVar("T")

Around = Callable[[Callable[[], Any]], Any]
"""Is handed an operation, does it or not, and returns what whoever asked for it gets."""


class FaultyDisk:
    """The twin of ``RealDisk``: a tree in memory, with faults on demand.

    ``/`` exists; make other directories with ``make_directory``.  ``network`` is the name that
    ``network_file_system`` answers, None by default.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.trace: list[DiskOperation] = []
        self.crashed = False
        self.failed = False
        """Whether a planned error has come true."""
        self.network: str | None = None
        self.at_crash: list[Callable[[], None]] = []
        self.at_power_cut: Callable[[], None] = _nothing
        """Called once, when the power goes, whoever or whatever cut it."""
        self._root = Folder()
        self._locks: dict[Inode, list[FaultyLock]] = {}
        self._faults: list[PlannedFault] = []
        self._crash_at: tuple[int, str] | None = None
        self._around: tuple[tuple[str, str, Around], ...] = ()
        self._mutex = threading.RLock()

    def __repr__(self) -> str:
        state = "crashed" if self.crashed else "running"
        return f"<FaultyDisk seed={self.seed} operations={self.operations} {state}>"

    # ---------------------------------------------------------------- the Disk port

    def kind(self, path: str) -> str | None:
        """Return ``directory``, ``file``, or None if nothing is there."""
        self._check_power()
        node = self.node(path)
        if node is None:
            return None
        return "directory" if isinstance(node, Folder) else "file"

    def make_directory(self, path: str) -> None:
        """Create a directory that may exist already, durably: two operations."""
        path = normal(path)
        parent_path, name = posixpath.split(path)
        self.perform("make_directory", path, lambda: self._make_directory(parent_path, name, path))
        self.directory(parent_path).sync()

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        path = normal(path)
        self.perform("remove_directory", path, lambda: self._remove_directory(path))

    def directory(self, path: str, *, read_only: bool = False) -> Directory:
        """Open an existing directory."""
        self._check_power()
        return FaultyDirectory(self, normal(path), self.folder(path), read_only)

    def lock(self, path: str, *, shared: bool = False) -> LockHandle:
        """Create the file if needed and lock it; ``BlockingIOError`` if it is locked."""
        path = normal(path)
        return self.perform("lock", path, lambda: self._lock(path, shared))

    def network_file_system(self, path: str) -> str | None:
        """Return ``network``, whatever the path."""
        return self.network

    # ---------------------------------------------------------------- the plan

    @property
    def operations(self) -> int:
        """The number of operations so far."""
        return len(self.trace)

    def crash_at(self, number: int, moment: str = "before") -> None:
        """Cut the power before, inside or after the operation of that number.

        Inside a write a part of the bytes has reached the cache, inside a sync a part has become
        durable; what is atomic has happened or not, as the seed has it.
        """
        if moment not in MOMENTS:
            raise ValueError(f"moment must be one of {', '.join(MOMENTS)}, not {moment!r}")
        self._crash_at = (number, moment)

    def fail_at(
        self,
        number: int,
        fault: str = "EIO",
        *,
        for_ever: bool = False,
        kind: str | None = None,
        path: str = "/",
    ) -> None:
        """Let the first operation from that number on that ``fault`` can hit fail (see ``FAULTS``).

        ``kind`` and ``path`` (a prefix) narrow that down; ``for_ever`` lets all that follow fail
        too, until ``heal``.
        """
        if fault not in FAULTS:
            raise ValueError(f"fault must be one of {', '.join(FAULTS)}, not {fault!r}")
        plan = PlannedFault(number=number, name=fault, for_ever=for_ever, kind=kind, path=path)
        self._faults.append(plan)

    @contextmanager
    def around(self, kind: str, path: str, call: Around) -> Iterator[None]:
        """Hand operations of a kind, at or below a path, to ``call`` meanwhile.

        So a sync takes its time, or a signal comes before it or behind: ``call`` runs in the thread
        that asked, which holds nothing of the disk then.
        """
        entry = (kind, path, call)
        self._around += (entry,)
        try:
            yield
        finally:
            self._around = tuple(other for other in self._around if other is not entry)

    def heal(self) -> None:
        """Forget all planned errors; what earlier ones did stays done."""
        self._faults.clear()

    def cut_power(self) -> None:
        """Let every operation from now on raise ``SimulatedCrash``."""
        self._die()

    def crash(self, outcome: str = "lost") -> FaultyDisk:
        """Cut the power and return the disk as it is found afterwards, with no locks or faults."""
        self._die()
        while self.at_crash:
            self.at_crash.pop()()
        return self._image(outcome)

    def copy(self) -> FaultyDisk:
        """Return a disk with all that programs see on this one, synced; this one runs on."""
        return self._image("kept")

    # ---------------------------------------------------------------- looking, and damage

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        return sorted(path for path, node in _walk(self._root, "/") if isinstance(node, Inode))

    def read_bytes(self, path: str) -> bytes:
        """Return what programs see in a file, without an operation."""
        return bytes(self.file(path).cached)

    def write_bytes(self, path: str, data: bytes) -> None:
        """Replace a file, or make one, durably and without an operation: damage by hand."""
        if self.node(path) is None:
            folder, name = posixpath.split(normal(path))
            parent = self.folder(folder)
            node = Inode()
            parent.cached[name] = parent.durable[name] = node
        self.file(path).replace(data)

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip one bit of a file, counted from its start, on the platter and in the cache."""
        data = bytearray(self.file(path).cached)
        data[bit // 8] ^= 1 << bit % 8
        self.file(path).replace(bytes(data))

    def unsynced(self) -> list[str]:
        """Return the paths of files with unsynced bytes and of directories with unsynced names."""
        return sorted(path for path, node in _walk(self._root, "/") if node.unsynced)

    # ---------------------------------------------------------------- for the other twins

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
        """Number an operation and do it, or do what the plan has in store for it.

        ``partly`` does a part of the action (none of it or all if it is atomic), ``spoil`` what
        a failure leaves behind.
        """

        def do() -> T:
            return self._perform(kind, path, action, size, partly, spoil)

        for wanted, below, call in self._around:
            if kind == wanted and path.startswith(below):
                result: T = call(do)
                return result
        return do()

    def _perform(
        self,
        kind: str,
        path: str,
        action: Callable[[], T],
        size: int,
        partly: Callable[[random.Random], object] | None,
        spoil: Callable[[random.Random], object] | None,
    ) -> T:
        with self._mutex:
            self._check_power()
            operation = DiskOperation(
                number=len(self.trace) + 1, kind=kind, path=path, size_bytes=size
            )
            self.trace.append(operation)
            moment = self._moment(operation.number)
            if moment == "before":
                self._die(operation)
            if moment == "inside":
                rng = self._chance(operation)
                if partly is not None:
                    partly(rng)
                elif rng.random() < 0.5:
                    action()
                self._die(operation)
            self._fail(operation, partly, spoil)
            result = action()
            if moment == "after":
                self._die(operation)
            return result

    def node(self, path: str) -> FileOrFolder | None:
        """Return what is at ``path``, or None."""
        node: FileOrFolder | None = self._root
        for part in normal(path).split("/"):
            if part:
                node = node.cached.get(part) if isinstance(node, Folder) else None
        return node

    def folder(self, path: str) -> Folder:
        """Return the directory at ``path``; ``OSError`` if there is none."""
        node = self.node(path)
        if isinstance(node, Folder):
            return node
        raise disk_error(errno.ENOENT if node is None else errno.ENOTDIR, path)

    def file(self, path: str) -> Inode:
        """Return the file at ``path``; ``OSError`` if there is none."""
        node = self.node(path)
        if isinstance(node, Inode):
            return node
        raise disk_error(errno.ENOENT if node is None else errno.EISDIR, path)

    # ---------------------------------------------------------------- inside

    def _check_power(self) -> None:
        if self.crashed:
            raise SimulatedCrash("the power is gone")

    def _die(self, operation: DiskOperation | None = None) -> None:
        if not self.crashed:
            self.crashed = True
            self._locks.clear()
            self.at_power_cut()
        if operation is not None:
            raise SimulatedCrash(f"at operation {operation}")

    def _chance(self, operation: DiskOperation) -> random.Random:
        return random.Random(f"{self.seed}:{operation.number}")

    def _moment(self, number: int) -> str | None:
        if self._crash_at is None or self._crash_at[0] != number:
            return None
        return self._crash_at[1]

    def _fail(
        self,
        operation: DiskOperation,
        partly: Callable[[random.Random], object] | None,
        spoil: Callable[[random.Random], object] | None,
    ) -> None:
        fault = next((fault for fault in self._faults if fault.hits(operation)), None)
        if fault is None:
            return
        self.failed = True
        if not fault.for_ever:
            self._faults.remove(fault)
        if spoil is not None and fault.name == "EIO":
            spoil(self._chance(operation))
        elif partly is not None and fault.name == "short":
            partly(self._chance(operation))
        raise disk_error(FAULTS[fault.name][0], operation.path)

    def _image(self, outcome: str) -> FaultyDisk:
        image = FaultyDisk(self.seed)
        rng = random.Random(f"{self.seed}:{self.operations}:{outcome}")
        image._root = self._root.after_crash(outcome, rng, {})
        image.network = self.network
        return image

    def _make_directory(self, parent_path: str, name: str, path: str) -> None:
        if isinstance(self.node(path), Folder):
            return
        parent = self.folder(parent_path)
        if name in parent.cached:
            raise disk_error(errno.EEXIST, path)
        parent.change(NameChange(None, name, Folder()))

    def _remove_directory(self, path: str) -> None:
        if self.folder(path).cached:
            raise disk_error(errno.ENOTEMPTY, path)
        parent_path, name = posixpath.split(path)
        self.folder(parent_path).change(NameChange(name, None, None))

    def _lock(self, path: str, shared: bool) -> FaultyLock:
        if self.node(path) is None:
            folder, name = posixpath.split(path)
            self.folder(folder).change(NameChange(None, name, Inode()))
        inode = self.file(path)
        held = self._locks.setdefault(inode, [])
        if held and not (shared and all(lock.shared for lock in held)):
            raise disk_error(errno.EAGAIN, path)
        lock = FaultyLock(self, path, inode, shared)
        held.append(lock)
        return lock

    def unlock(self, lock: FaultyLock) -> None:
        """Give up a lock, if the disk still knows it."""
        held = self._locks.get(lock.inode, [])
        if lock in held:
            held.remove(lock)


def normal(path: str) -> str:
    """Return ``path`` as an absolute path without ``.``, ``..`` or double slashes."""
    return posixpath.normpath(posixpath.join("/", path))


def _nothing() -> None:
    """Nobody wants to know."""


def _walk(folder: Folder, path: str) -> list[tuple[str, FileOrFolder]]:
    found: list[tuple[str, FileOrFolder]] = [(path, folder)]
    for name, node in sorted(folder.cached.items()):
        below = posixpath.join(path, name)
        found += _walk(node, below) if isinstance(node, Folder) else [(below, node)]
    return found
