"""Threads for the blocking work of a loop that has none without a limit of its own: asyncio's.

Who calls limits how much runs at a time.  A thread that has nothing to do waits for a while, as
starting one takes longer than handing work over.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from .loops import take_back

IDLE_SECONDS = 10.0
"""How long a thread waits for more work."""

Jobs = SimpleQueue[Callable[[], None]]


class Threads:
    """Threads that end when they have had nothing to do for a while."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._idle: deque[Jobs] = deque()

    def start(self, job: Callable[[], None]) -> None:
        """Run a job, which raises nothing, in a thread."""
        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = SimpleQueue()
            threading.Thread(
                target=self._serve, args=(jobs,), name="tidelog-worker", daemon=True
            ).start()
        jobs.put(job)

    def _serve(self, jobs: Jobs) -> None:
        while True:
            try:
                job = jobs.get(timeout=self._idle_seconds)
            except Empty:
                if take_back(self._idle, jobs):
                    return
                continue  # somebody has taken it, and is about to give it a job
            job()
            del job  # it may hold on to a store
            self._idle.append(jobs)

    def forked(self) -> None:
        """In the child of a fork, where the threads are not: forget them."""
        self._idle.clear()


threads = Threads()
"""Those of all loops of asyncio in this process."""

os.register_at_fork(after_in_child=threads.forked)
