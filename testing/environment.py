"""The simulated world of one engine: its own time, ids and randomness, and work run by hand.

Invariants:

- Nothing happens by itself: time moves by ``advance`` and ``wait``, background work runs in these
  calls or in ``run_due``, on the caller's thread, one task at a time.
- The same seed and the same calls give the same ids, random numbers, times and order of work.

Left out: threads, and other machines (``world`` has several).  An engine that waits for a
background task must do so through ``Environment.wait``, which lets the work run.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeVar

from ..engine.system.environment import (
    Address,
    BackgroundTask,
    Environment,
    KeyValueEnvironment,
    Listener,
    Stream,
)
from ..engine.system.limits import LIMITS, Limits
from .disk import FaultyDisk
from .kv import MemoryKv
from .lmdb_kv import CopiedLmdb

START_US = 1_704_067_200_000_000
"""The wall clock at the start: 2024-01-01 00:00 UTC."""
PID = 4242

T = TypeVar("T")


class SteadyTime(Protocol):
    """The clock by which work is due."""

    def steady_s(self) -> float:
        """Return seconds that never run backwards."""

    def move(self, seconds: float) -> None:
        """Let it run on."""


class VirtualTime:
    """A wall clock and a steady clock that stand still until they are moved."""

    def __init__(self) -> None:
        self._wall_us = START_US
        self._steady_us = 0

    def wall_us(self) -> int:
        """Return microseconds UTC."""
        return self._wall_us

    def steady_s(self) -> float:
        """Return seconds that never run backwards."""
        return self._steady_us / 1_000_000

    def move(self, seconds: float) -> None:
        """Let both clocks run on."""
        microseconds = round(seconds * 1_000_000)
        if microseconds < 0:
            raise ValueError("time does not run backwards; `jump` moves the wall clock alone")
        self._wall_us += microseconds
        self._steady_us += microseconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock alone, forwards or backwards, as an operator does."""
        self._wall_us += round(seconds * 1_000_000)


def _nothing() -> None:
    """Nobody wants to know."""


class ManualTask:
    """Background work that only ``Schedule`` runs."""

    def __init__(
        self,
        name: str,
        seconds: float,
        work: Callable[[], object],
        time: SteadyTime,
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.stopped = False
        self._seconds = seconds
        self._work = work
        self._time = time
        self._changed = changed
        self.due = time.steady_s() + seconds

    def __repr__(self) -> str:
        return f"<ManualTask {self.name} due at {self.due:.6f} s>"

    def wake(self) -> None:
        """Make the work due now."""
        self.due = min(self.due, self._time.steady_s())
        self._changed()

    def stop(self, *, wait: bool = True) -> None:
        """Run the work no more."""
        self.stopped = True

    def run(self) -> None:
        """Do the work once, and not again before its interval has passed or it is woken."""
        self.due = self._time.steady_s() + self._seconds
        if self._work():
            self.stopped = True


class Schedule:
    """The background tasks of one engine, run in the order in which they are due."""

    def __init__(self, time: SteadyTime, changed: Callable[[], None] = _nothing) -> None:
        self.tasks: list[ManualTask] = []
        self._time = time
        self._changed = changed
        """Called when work may be due sooner than it was."""
        self._running = False

    def add(self, name: str, seconds: float, work: Callable[[], object]) -> BackgroundTask:
        """Take up a task; it is first due after its interval."""
        task = ManualTask(name, seconds, work, self._time, self._changed)
        self.tasks.append(task)
        self._changed()
        return task

    def seconds_left(self) -> float:
        """Return the seconds until something is due; infinite if nothing ever is."""
        waiting = self._until(inf)
        return max(0.0, waiting[0].due - self._time.steady_s()) if waiting else inf

    def run_due(self) -> int:
        """Run each task that is due, once; return how many ran."""
        return sum(self._run(task) for task in self._until(self._time.steady_s()))

    def advance(self, seconds: float) -> None:
        """Let time pass, and each task run when its time has come.

        Called by a running task (which waits for something) it only moves the clocks.
        """
        end = self._time.steady_s() + seconds
        while not self._running and (due := self._until(end)):
            self._time.move(max(0.0, due[0].due - self._time.steady_s()))
            self._run(due[0])
        self._time.move(max(0.0, end - self._time.steady_s()))

    def _until(self, end: float) -> list[ManualTask]:
        self.tasks = [task for task in self.tasks if not task.stopped]
        return sorted((task for task in self.tasks if task.due <= end), key=lambda task: task.due)

    def _run(self, task: ManualTask) -> bool:
        if self._running or task.stopped:
            return False
        self._running = True
        try:
            task.run()
        finally:
            self._running = False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedEnvironment(Environment):
    """An ``Environment`` whose time and background work are moved by hand."""

    time: VirtualTime
    schedule: Schedule

    def advance(self, seconds: float) -> None:
        """Let time pass, and background work run when it is due."""
        self.schedule.advance(seconds)

    def run_due(self) -> int:
        """Run the background work that is due now; return how many tasks ran."""
        return self.schedule.run_due()


def simulated(
    seed: int, disk: FaultyDisk, *, kv: str = "memory", limits: Limits = LIMITS
) -> SimulatedEnvironment:
    """Return an environment that depends on nothing but ``seed`` and ``disk``.

    ``kv`` is ``memory``, or ``lmdb`` for the real LMDB: slower, in a scratch directory, with each
    commit copied to the simulated disk.  Smaller ``limits`` make more steps of the same work.
    """
    time = VirtualTime()
    schedule = Schedule(time)
    return SimulatedEnvironment(
        clock=time.wall_us,
        monotonic=time.steady_s,
        boottime=time.steady_s,
        random=random.Random(f"{seed}:random"),
        new_id=seeded_ids(f"{seed}:ids"),
        disk=disk,
        open_kv=kv_on(disk, kv),
        background=schedule.add,
        wait=schedule.advance,
        run=_run_here,
        network=_Alone(),
        pid=_pid,
        limits=limits,
        time=time,
        schedule=schedule,
    )


def kv_on(disk: FaultyDisk, kind: str) -> Callable[[str, int, bool, bool], KeyValueEnvironment]:
    """Return what opens key-value environments on a disk: ``memory`` or ``lmdb``."""
    kinds: dict[str, type[MemoryKv] | type[CopiedLmdb]] = {"memory": MemoryKv, "lmdb": CopiedLmdb}
    if kind not in kinds:
        raise ValueError(f"kv must be one of {', '.join(kinds)}, not {kind!r}")
    chosen = kinds[kind]

    def open_kv(path: str, map_size: int, read_only: bool, lock: bool) -> KeyValueEnvironment:
        return chosen(disk, path, map_size, read_only, lock)

    return open_kv


def seeded_ids(seed: str) -> Callable[[], bytes]:
    """Return what gives fresh ids, the same ones for the same seed."""
    ids = random.Random(seed)
    return lambda: ids.randbytes(16)


async def _run_here(kind: str, work: Callable[[], T]) -> T:
    """Do the work in the thread of the caller: nothing else runs meanwhile."""
    return work()


class _Alone:
    """The network of a machine that has none."""

    async def listen(self, address: Address) -> Listener:
        raise _unreachable(address)

    async def connect(self, address: Address) -> Stream:
        raise _unreachable(address)


def _unreachable(address: Address) -> OSError:
    return OSError(errno.ENETUNREACH, f"{address} is out of reach: this machine has no network")


def _pid() -> int:
    return PID
