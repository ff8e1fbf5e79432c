"""Blocking work for code under Trio, in threads.

Invariants:

- At most one work of the kind ``sync`` runs at a time, in the order of the calls, in a thread of
  its own: two threads that sync one file only wait for each other.
- Of the other kinds together at most ``WORKERS_MAX`` run at a time; they never keep a sync waiting.
- Work that was begun is waited for, whoever is cancelled (``RunBlocking`` says why).
- The thread of syncs ends when nothing can ask for one any more.

Left out: waits for locks, which could use up all workers, and the commits of the embedded store
under Trio, which have a thread of their own (``aio.log_thread``).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import trio

WORKERS_MAX = 16
"""Work of other kinds than ``sync`` that runs at a time."""

SYNC = "sync"

T = TypeVar("T")


class BlockingRunner:
    """Runs blocking work for the tasks of one Trio loop; Trio keeps idle threads for the next."""

    def __init__(self) -> None:
        self._syncs: _SyncThread | None = None
        self._workers = trio.CapacityLimiter(WORKERS_MAX)

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """Return ``work()``, called in a thread."""
        if kind != SYNC:
            return await trio.to_thread.run_sync(work, limiter=self._workers)
        if self._syncs is None:
            self._syncs = _SyncThread()
        return await self._syncs.run(work)


class _Sync:
    """Work for the thread, and the task that waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.task = trio.lowlevel.current_task()
        self.token = trio.lowlevel.current_trio_token()
        self.result: Any = None
        self.error: BaseException | None = None


class _SyncThread:
    """A thread that waits for work: that takes two thirds of the time of ``trio.to_thread``."""

    def __init__(self) -> None:
        self._waiting: deque[_Sync] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        thread = threading.Thread(
            target=_sync_all, args=(self._waiting, self._wake), name="tidelog-sync", daemon=True
        )
        thread.start()
        weakref.finalize(self, self._wake.put, False).atexit = False

    async def run(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        sync = _Sync(work)
        self._waiting.append(sync)
        self._wake.put(True)

        def give_up(_raise: object) -> trio.lowlevel.Abort:
            with suppress(ValueError):
                self._waiting.remove(sync)
                return trio.lowlevel.Abort.SUCCEEDED
            return trio.lowlevel.Abort.FAILED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        if sync.error is not None:
            raise sync.error
        result: T = sync.result
        return result


def _sync_all(waiting: deque[_Sync], wake: SimpleQueue[bool]) -> None:
    while wake.get():
        try:
            sync = waiting.popleft()
        except IndexError:  # its task was cancelled before
            continue
        try:
            sync.result = sync.work()
        except BaseException as error:
            sync.error = error
        with suppress(trio.RunFinishedError):
            sync.token.run_sync_soon(trio.lowlevel.reschedule, sync.task)
        del sync
