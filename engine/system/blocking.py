"""Blocking work for code under Trio, in threads.

Invariants:

- At most one work of the kind ``sync`` runs at a time, in the order of the calls: two threads that
  sync one file only wait for each other.  It runs in the loop if the last one was quick, else in a
  thread of its own.
- Of the other kinds together at most ``WORKERS_MAX`` run at a time; they never keep a sync waiting.
- Work that was begun is waited for, whoever is cancelled (``RunBlocking`` says why).
- The thread of syncs ends when nothing can ask for one any more.

A disk that begins to hang holds the loop up, once: then its member is silent, like one that was
stopped, and others take over from it if that lasts.  One that is slow is synced in the thread, and
holds up nobody.

Left out: waits for locks, which could use up all workers, and the commits of the embedded store
under Trio, which have a thread of their own (``aio.log_thread``).
"""

from __future__ import annotations

import os
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
QUICK_S = 0.002
"""Seconds under which a sync takes so little that the next one is done in the loop: waking a thread
for it, and being woken, takes as long."""

T = TypeVar("T")


class BlockingRunner:
    """Runs blocking work for the tasks of one Trio loop; Trio keeps idle threads for the next."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._thread: _SyncThread | None = None
        self._syncs = 0
        """Begun, or about to be."""
        self._quick = False
        """Whether the last one took less than ``QUICK_S``."""
        self._workers = trio.CapacityLimiter(WORKERS_MAX)

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """Return ``work()``, called in a thread; a sync perhaps here."""
        if kind != SYNC:
            return await trio.to_thread.run_sync(work, limiter=self._workers)
        self._syncs += 1
        try:
            if self._quick and self._syncs == 1:
                await trio.lowlevel.checkpoint_if_cancelled()
                return self._measured(work)
            if self._thread is None:
                self._thread = _SyncThread()
            return await self._thread.run(lambda: self._measured(work))
        finally:
            self._syncs -= 1

    def _measured(self, work: Callable[[], T]) -> T:
        began = self._monotonic()
        try:
            return work()
        finally:
            self._quick = self._monotonic() - began < QUICK_S


class _Bell:
    """What a thread rings, and one task waits for: a byte in a pipe.

    A task that waits for a pipe goes on two rounds of the loop before one that Trio is asked to
    wake, which takes a task of Trio's in between.
    """

    __slots__ = ("_heard", "_rung")

    def __init__(self) -> None:
        self._heard, self._rung = os.pipe()

    def __del__(self) -> None:
        os.close(self._heard)
        os.close(self._rung)

    def ring(self) -> None:
        os.write(self._rung, b"!")

    async def wait(self) -> None:
        await trio.lowlevel.wait_readable(self._heard)

    def still(self) -> None:
        os.read(self._heard, 1)


class _Sync:
    """Work for the thread, and the bell of the task that waits for it."""

    __slots__ = ("bell", "error", "result", "work")

    def __init__(self, work: Callable[[], Any], bell: _Bell) -> None:
        self.work = work
        self.bell = bell
        self.result: Any = None
        self.error: BaseException | None = None


class _SyncThread:
    """A thread that waits for work: a thread of ``trio.to_thread`` takes longer."""

    def __init__(self) -> None:
        self._waiting: deque[_Sync] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._bells: list[_Bell] = []
        """Those that nobody waits for."""
        thread = threading.Thread(
            target=_sync_all, args=(self._waiting, self._wake), name="tidelog-sync", daemon=True
        )
        thread.start()
        weakref.finalize(self, self._wake.put, False).atexit = False

    async def run(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        bell = self._bells.pop() if self._bells else _Bell()
        sync = _Sync(work, bell)
        self._waiting.append(sync)
        self._wake.put(True)
        try:
            await bell.wait()
        except trio.Cancelled:
            if self._was_taken_back(sync):
                raise
            with trio.CancelScope(shield=True):
                await bell.wait()
        bell.still()
        self._bells.append(bell)
        if sync.error is not None:
            raise sync.error
        result: T = sync.result
        return result

    def _was_taken_back(self, sync: _Sync) -> bool:
        """Tell whether work was not begun, and never will be."""
        with suppress(ValueError):
            self._waiting.remove(sync)
            return True
        return False


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
        sync.bell.ring()
        del sync
