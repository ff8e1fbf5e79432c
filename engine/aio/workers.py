"""Worker threads for what may block: scans, cold reads, checkpoints, waiting for locks.

Invariants:

- Nothing runs in a worker thread once ``close`` has returned, so the store may be let go of.  A job
  counts until its thread has ended it: a task may be interrupted before it hears of that.
- Work that only reads or maintains runs to its end even if its task is cancelled; such a task
  gets the result, and is cancelled at its next checkpoint.
- Who waits for locks holds a *place*, and so do those who have locks: were threads given out one
  wait at a time, all of them could wait for somebody who waits for a thread.

Left out: commits, which have a thread of their own (``log_thread``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar, cast

from ...affinity.errors import ClosedError, LockTimeoutError, RolledBackError, TidelogError
from .loops import Loop, never, wrong_loop
from .waiting import Once, Turns

WORKERS_MAX = 16
"""Blocking reads, scans and maintenance of one store at a time."""

T = TypeVar("T")


class Workers:
    """The worker threads of one store, for the tasks of one loop."""

    def __init__(self, path: str, loop: Loop, places: int) -> None:
        self.closed = False
        self.refusal: Callable[[], TidelogError] = self._closed_error
        """What is raised once it is closed."""
        self._path = path
        self._loop = loop
        self._place = loop.place
        self._here = loop.here
        self._turns = Turns(loop, WORKERS_MAX)
        self._places = Turns(loop, places)
        self._jobs: set[object] = set()
        """Those that are given to a thread, and have not ended."""
        self._quiet = Once(loop)
        self._interrupts: set[Callable[[], None]] = set()

    def check(self) -> None:
        """Raise unless the store is open, and this is its loop; as quick as can be."""
        if self.closed:
            raise self.refusal()
        if self._place != self._here():
            raise wrong_loop()

    def check_all(self) -> None:
        """Raise unless the store is open, and this is its loop."""
        self.check()
        if not self._loop.runs_here():
            raise wrong_loop()

    def _closed_error(self) -> TidelogError:
        return ClosedError(f"the store {self._path} is closed")

    async def run(self, work: Callable[[], T]) -> T:
        """Return ``work()``, called in a worker thread."""
        self.check_all()
        await self._loop.checkpoint_if_cancelled()
        await self._turns.wait()
        try:
            self.check()  # it may have been closed meanwhile
            return await in_thread(self._loop, work, jobs=self)
        finally:
            self._turns.leave()

    async def finish(self, work: Callable[[], T]) -> T:
        """Return ``work()``, called in a thread at once, whether the task is cancelled or not."""
        self.check_all()
        return await in_thread(self._loop, work, jobs=self)

    async def run_waiting(self, work: Callable[[], T], interrupt: Callable[[], None]) -> T:
        """Return ``work()``, called in a thread of its own, where it may wait for locks.

        If the task is cancelled ``interrupt`` is called, which lets a wait for a lock end in
        ``RolledBackError``; if it did, the task is cancelled, else the result is returned.
        """
        self.check_all()
        await self._loop.checkpoint_if_cancelled()
        cancelled = False

        def give_up() -> bool:
            nonlocal cancelled
            if not cancelled:
                cancelled = True
                interrupt()
            return False

        self._interrupts.add(interrupt)
        try:
            return await in_thread(self._loop, work, give_up, jobs=self)
        except RolledBackError:
            if cancelled:
                await self._loop.checkpoint()  # where the cancellation comes
            raise
        finally:
            self._interrupts.discard(interrupt)

    def begin(self, job: object) -> None:
        """Count a job that is about to be given to a thread."""
        self._jobs.add(job)

    def end(self, job: object) -> None:
        """Count a job no more; called by whatever thread has ended it."""
        self._jobs.discard(job)
        if self.closed and not self._jobs:
            self._loop.soon(self._quiet.come)

    async def take_place(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for a place among those who may wait for locks."""
        self.check_all()
        await self._loop.checkpoint_if_cancelled()
        places = self._places
        if not places.take_nowait() and not await self._loop.within(timeout, places.wait):
            raise LockTimeoutError(
                f"{places.most} transactions with locks are running, and none ended in {timeout} "
                "seconds"
            )

    def leave_place(self) -> None:
        """Give a place back."""
        self._places.leave()

    async def close(self) -> None:
        """Take no more work, end all waits for locks, and return once no work is running."""
        self.closed = True
        for interrupt in list(self._interrupts):
            interrupt()
        if self._jobs:
            await self._quiet.wait()


async def in_thread(
    loop: Loop,
    work: Callable[[], T],
    give_up: Callable[[], bool] = never,
    jobs: Workers | None = None,
) -> T:
    """Return ``work()``, called in a thread; a task that is cancelled waits for its end.

    ``jobs`` counts it.
    """
    context = copy_context()
    sleeper: Any = None
    result: T | None = None
    error: BaseException | None = None
    token = object()
    claims = [token]

    def claimed() -> bool:
        """Take the job: the thread to run it, or who was interrupted so that nobody does."""
        try:
            claims.pop()
        except IndexError:
            return False
        return True

    def job() -> None:
        nonlocal work, result, error
        if not claimed():
            return
        try:
            result = context.run(work)
        except BaseException as raised:
            error = raised
        del work  # the task may let go of a snapshot before this thread is through
        if jobs is not None:
            jobs.end(token)
        loop.soon(loop.wake, sleeper)

    @loop.protected
    async def begin() -> None:
        nonlocal sleeper
        sleeper = loop.sleeper()
        try:
            if jobs is not None:
                jobs.begin(token)
            loop.start(job)
        except BaseException:
            if claimed() and jobs is not None:
                jobs.end(token)
            raise
        await loop.wait(sleeper, give_up)

    await begin()
    try:
        if error is not None:
            raise error
        return cast(T, result)
    finally:
        result = error = None
