"""Blocking work for code under Trio, in threads.

Invariants:

- At most one work of the kind ``sync`` runs at a time, in the order of the calls: two threads that
  sync one file only wait for each other.  It runs in the loop if the last ones were quick, else in
  a thread of its own.
- Of the other kinds together at most ``WORKERS_MAX`` run at a time; they never keep a sync waiting.
- Work that was begun is waited for, whoever is cancelled (``RunBlocking`` says why).
- What a sync needs is there from the first one on: no later one fails for want of a descriptor.
- The thread of syncs ends when nothing can ask for one any more.

A disk that begins to hang holds the loop up, once: then its member is silent, like one that was
stopped, and others take over from it if that lasts.  One that is slow is synced in the thread, and
holds up nobody; one that hangs now and then holds the loop up once in ``DOUBTS`` syncs at most.

Left out: waits for locks, which could use up all workers, and the commits of the embedded store
under Trio, which have a thread of their own (``aio.log_thread``).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import trio

WORKERS_MAX = 16
"""Work of other kinds than ``sync`` that runs at a time."""

SYNC = "sync"
QUICK_S = 0.002
"""Seconds under which a sync takes so little that the next one is done in the loop: waking a thread
for it, and being woken, takes as long."""
LONG_S = 0.02
"""Seconds from which on a sync is nothing that the loop may be held up by again."""
DOUBTS = 50
"""Syncs that have to be quick behind one that took long, before one is done in the loop."""

T = TypeVar("T")


class BlockingRunner:
    """Runs blocking work for the tasks of one Trio loop; Trio keeps idle threads for the next."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._thread: _SyncThread | None = None
        self._turn = trio.Semaphore(1)
        """Held for the sync that runs."""
        self._doubts = 1
        """Syncs that have to be quick before one is done in the loop."""
        self._workers = trio.CapacityLimiter(WORKERS_MAX)

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """Return ``work()``, called in a thread; a sync perhaps here."""
        if kind != SYNC:
            return await trio.to_thread.run_sync(work, limiter=self._workers)
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._turn.acquire_nowait()  # mostly, and without a round of the loop
        except trio.WouldBlock:
            await self._turn.acquire()
        try:
            if not self._doubts:
                return self._measured(work)
            if self._thread is None:
                self._thread = _SyncThread()
            return await self._thread.run(lambda: self._measured(work))
        finally:
            self._turn.release()

    def _measured(self, work: Callable[[], T]) -> T:
        began = self._monotonic()
        try:
            return work()
        finally:
            took = self._monotonic() - began
            if took >= LONG_S:
                self._doubts = DOUBTS
            elif took >= QUICK_S:
                self._doubts = max(self._doubts, 1)
            else:
                self._doubts = max(self._doubts - 1, 0)


class _Bell:
    """What a thread rings, and one task waits for: a byte in a pipe.

    A task that waits for a pipe goes on two rounds of the loop before one that Trio is asked to
    wake, which takes a task of Trio's in between.
    """

    __slots__ = ("_heard", "_rung")

    def __init__(self, heard: int, rung: int) -> None:
        """``heard`` and ``rung`` are the ends of a pipe, which is closed with the bell."""
        self._heard = heard
        self._rung = rung

    def __del__(self) -> None:
        os.close(self._heard)
        os.close(self._rung)

    def ring(self) -> None:
        os.write(self._rung, b"!")

    async def wait(self) -> None:
        await trio.lowlevel.wait_readable(self._heard)
        os.read(self._heard, 1)


class _Sync:
    """Work for the thread, and what became of it."""

    __slots__ = ("error", "is_done", "result", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None


class _SyncThread:
    """A thread that waits for work: a thread of ``trio.to_thread`` takes longer."""

    def __init__(self) -> None:
        self._wanted: SimpleQueue[_Sync | None] = SimpleQueue()
        self._bell = _Bell(*os.pipe())
        thread = threading.Thread(
            target=_sync_all, args=(self._wanted, self._bell), name="tidelog-sync", daemon=True
        )
        thread.start()
        weakref.finalize(self, self._wanted.put, None).atexit = False

    async def run(self, work: Callable[[], T]) -> T:
        """Return ``work()``; one task at a time may call this."""
        sync = _Sync(work)
        self._wanted.put(sync)
        with trio.CancelScope(shield=True):
            while not sync.is_done:  # it may ring for one whose task was interrupted
                await self._bell.wait()
        if sync.error is not None:
            raise sync.error
        result: T = sync.result
        return result


def _sync_all(wanted: SimpleQueue[_Sync | None], bell: _Bell) -> None:
    while sync := wanted.get():
        try:
            sync.result = sync.work()
        except BaseException as error:
            sync.error = error
        sync.is_done = True
        bell.ring()
        del sync
