"""Stores for tasks on a simulated disk, and a gate that holds a thread inside a function."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from support import tasks
from support.stores import PATH, expect_sound
from tidelog import aio
from tidelog.engine.aio.database import loop_session_of
from tidelog.engine.api.open import open_with
from tidelog.engine.store.opening import OpenStore
from tidelog.engine.store.statistics import Statistics
from tidelog.engine.system.limits import LIMITS, Limits
from tidelog.testing import FaultyDisk, simulated


@asynccontextmanager
async def opened(
    disk: FaultyDisk | None = None, *, seed: int = 1, limits: Limits = LIMITS, **options: Any
) -> AsyncIterator[aio.Database]:
    """Open a store of four partitions, close it behind the block, and check what it left."""
    disk = disk if disk is not None else FaultyDisk(seed)
    if disk.kind(PATH) is None:
        options.setdefault("partitions", 4)
    async with aio.open_with(simulated(seed, disk, limits=limits), PATH, **options) as db:
        yield db
    if not disk.crashed:
        expect_sound(disk)


def contents(disk: FaultyDisk, name: str) -> dict[Any, Any]:
    """What a map holds on a disk after a power cut."""
    with open_with(simulated(77, disk.crash("lost")), PATH) as after:
        return dict(after.map(name).items()) if name in after.maps() else {}


class Gate:
    """Holds whoever calls a function until it is opened; counts who came."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.calls = 0
        self._work = work
        self._entered = threading.Semaphore(0)
        self._opened = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        self._entered.release()
        assert self._opened.wait(60)
        return self._work(*args)

    async def entered(self) -> None:
        """Wait until somebody is inside."""
        assert await tasks.in_thread(lambda: self._entered.acquire(timeout=60))

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._opened.set()


@contextmanager
def gated(owner: Any, name: str) -> Iterator[Gate]:
    """Put a gate before a function of an object; behind the block it is open."""
    work = getattr(owner, name)
    gate = Gate(work)
    setattr(owner, name, gate)
    try:
        yield gate
    finally:
        gate.open()
        setattr(owner, name, work)


async def statistics(db: aio.Database) -> Statistics:
    """The statistics of a store that is open for writing."""
    found = await db.statistics()
    assert isinstance(found, Statistics)
    return found


def parts_of(db: aio.Database) -> OpenStore:
    """The parts of the store beneath, for tests that look inside."""
    return loop_session_of(db).writer().store
