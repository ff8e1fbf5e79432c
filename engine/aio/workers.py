"""Worker threads for what may block: scans, cold reads, checkpoints, waiting for locks.

Invariants:

- Nothing runs in a worker thread once ``close`` has returned, so the store may be let go of.
- Work that only reads or maintains runs to its end even if its task is cancelled; such a task
  gets the result, and is cancelled at its next checkpoint.
- Who waits for locks holds a *place*, and so do those who have locks: were threads given out one
  wait at a time, all of them could wait for somebody who waits for a thread.

Left out: commits, which have a thread of their own (``log_thread``).
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from typing import TypeVar, cast

import trio
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    TrioToken,
    checkpoint_if_cancelled,
    current_task,
    enable_ki_protection,
    reschedule,
    start_thread_soon,
    wait_task_rescheduled,
)

from ...affinity.errors import ClosedError, LockTimeoutError, RolledBackError, TidelogError
from .log_thread import wrong_loop

WORKERS_MAX = 16
"""Blocking reads, scans and maintenance of one store at a time."""

T = TypeVar("T")


class Workers:
    """The worker threads of one store, for the tasks of one Trio loop."""

    def __init__(self, path: str, token: TrioToken, places: int) -> None:
        self.closed = False
        self.refusal: Callable[[], TidelogError] = self._closed_error
        """What is raised once it is closed."""
        self._path = path
        self._token = token
        self._loop = get_ident()
        self._limiter = trio.CapacityLimiter(WORKERS_MAX)
        self._places = trio.CapacityLimiter(places)
        self._busy = 0
        self._quiet = trio.Event()
        self._interrupts: set[Callable[[], None]] = set()

    def check(self) -> None:
        """Raise unless the store is open, and this is its loop."""
        if self._loop != get_ident():
            raise wrong_loop()
        if self.closed:
            raise self.refusal()

    def _closed_error(self) -> TidelogError:
        return ClosedError(f"the store {self._path} is closed")

    async def run(self, work: Callable[[], T]) -> T:
        """Return ``work()``, called in a worker thread."""
        self.check()
        self._busy += 1
        try:
            return await trio.to_thread.run_sync(work, limiter=self._limiter)
        finally:
            self._done()

    @enable_ki_protection
    async def run_waiting(self, work: Callable[[], T], interrupt: Callable[[], None]) -> T:
        """Return ``work()``, called in a thread of its own, where it may wait for locks.

        If the task is cancelled ``interrupt`` is called, which lets a wait for a lock end in
        ``RolledBackError``; if it did, ``trio.Cancelled`` is raised, else the result is returned.
        """
        self.check()
        await checkpoint_if_cancelled()
        task = current_task()
        raise_cancel: RaiseCancelT | None = None

        def abort(given: RaiseCancelT) -> Abort:
            nonlocal raise_cancel
            raise_cancel = given
            interrupt()
            return Abort.FAILED

        start_thread_soon(work, lambda result: self._token.run_sync_soon(reschedule, task, result))
        self._busy += 1
        self._interrupts.add(interrupt)
        try:
            return cast(T, await wait_task_rescheduled(abort))
        except RolledBackError:
            if raise_cancel is None:
                raise
        finally:
            self._interrupts.discard(interrupt)
            self._done()
        raise_cancel()

    def _done(self) -> None:
        self._busy -= 1
        if self.closed and not self._busy:
            self._quiet.set()

    async def take_place(self, owner: object, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for a place among those who may wait for locks."""
        self.check()
        with trio.move_on_after(timeout):
            await self._places.acquire_on_behalf_of(owner)
            return
        raise LockTimeoutError(
            f"{int(self._places.total_tokens)} transactions with locks are running, and none ended "
            f"in {timeout} seconds"
        )

    def leave_place(self, owner: object) -> None:
        """Give a place back."""
        self._places.release_on_behalf_of(owner)

    async def close(self) -> None:
        """Take no more work, end all waits for locks, and return once no work is running."""
        self.closed = True
        for interrupt in list(self._interrupts):
            interrupt()
        if self._busy:
            with trio.CancelScope(shield=True):
                await self._quiet.wait()
