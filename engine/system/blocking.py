"""Blocking work for code under Trio, in threads.

Invariants:

- At most one work of the kind ``sync`` runs at a time, in the order of the calls: two threads that
  sync one file only wait for each other.
- Of the other kinds together at most ``WORKERS_MAX`` run at a time; they never keep a sync waiting.
- Work that was begun is waited for, whoever is cancelled (``RunBlocking`` says why).

Left out: waits for locks, which could use up all workers, and the commits of the embedded store
under Trio, which have a thread of their own (``aio.log_thread``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

WORKERS_MAX = 16
"""Work of other kinds than ``sync`` that runs at a time."""

SYNC = "sync"

T = TypeVar("T")


class BlockingRunner:
    """Runs blocking work for the tasks of one Trio loop; Trio keeps idle threads for the next."""

    def __init__(self) -> None:
        self._syncing = trio.CapacityLimiter(1)
        self._workers = trio.CapacityLimiter(WORKERS_MAX)

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """Return ``work()``, called in a thread."""
        limiter = self._syncing if kind == SYNC else self._workers
        return await trio.to_thread.run_sync(work, limiter=limiter)
