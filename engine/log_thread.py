"""One thread per store that commits for Trio tasks, so that their loop never waits for a disk.

Tasks leave their commits in a queue and sleep.  The thread takes all that are there, commits them
as one group (one frame, one sync), and wakes their tasks by one call into the loop.  Both ways
are batched: the thread is woken only when it sleeps, the loop once per group.

Invariants:

- A commit is *submitted* when the thread takes it out of the queue.  A task that is cancelled
  before takes its commit back, and nothing happened; after that the task sleeps until the outcome
  is known, and is cancelled at its next checkpoint.
- Whoever takes a commit out of the queue owns it: taking is one step under the interpreter lock.
- Every commit that was submitted gets a receipt or an error, and its task is woken exactly once.

Left out: what a commit is and how groups are written (``commit``), who may commit what (``aio``).
"""

from __future__ import annotations

import threading
from _thread import get_ident
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from queue import SimpleQueue
from typing import NoReturn

import trio
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    TrioToken,
    checkpoint_if_cancelled,
    current_task,
    enable_ki_protection,
    reschedule,
    wait_task_rescheduled,
)

from ..affinity.errors import ClosedError, TidelogError, UsageError
from .commit import Commit
from .database import Database

COMMITS_MAX = 4096
"""Commits that are taken from the queue at once; the bytes of a group have a limit of their own."""

Entry = tuple[Commit, Task]


class LogThread:
    """Commits for the tasks of one Trio loop; made, used and stopped in that loop."""

    def __init__(self, database: Database, token: TrioToken) -> None:
        self._database = database
        self._token = token
        self._loop = get_ident()
        self._queue: deque[Entry] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._asleep = False
        self._stopping = False
        self._ended = trio.Event()
        self._thread = threading.Thread(target=self._run, name="tidelog-log", daemon=True)
        self._thread.start()

    # -------------------------------------------------------------- in the loop

    @enable_ki_protection
    async def commit(self, commit: Commit) -> None:
        """Let the thread commit; afterwards ``commit`` has its receipt or its error.

        Raises ``trio.Cancelled`` only if nothing was done.
        """
        await checkpoint_if_cancelled()
        if self._stopping or self._loop != get_ident():
            self._refuse()
        queue = self._queue
        entry = (commit, current_task())

        def abort(_: RaiseCancelT) -> Abort:
            try:
                queue.remove(entry)
            except ValueError:
                return Abort.FAILED
            return Abort.SUCCEEDED

        queue.append(entry)
        if self._asleep:
            self._asleep = False
            self._wake.put(None)
        await wait_task_rescheduled(abort)

    def _refuse(self) -> NoReturn:
        if self._stopping:
            raise ClosedError(f"the store {self._database.path} is closed")
        raise wrong_loop()

    async def stop(self) -> None:
        """Take no more commits, and return once all that were in the queue have ended."""
        with trio.CancelScope(shield=True):
            self._stopping = True
            self._wake.put(None)
            await self._ended.wait()
        self._thread.join()

    # -------------------------------------------------------------- in the thread

    def _run(self) -> None:
        queue = self._queue
        # The loop has gone where a program ended without closing: nobody is left to be told.
        with suppress(trio.RunFinishedError):
            while True:
                while queue:
                    entries = self._take()
                    self._commit([commit for commit, _ in entries])
                    self._token.run_sync_soon(_wake_tasks, entries)
                if self._stopping:
                    self._token.run_sync_soon(self._ended.set)
                    return
                self._asleep = True
                # Whoever queued before that did not wake anybody: look again.
                if not queue:
                    self._wake.get()

    def _take(self) -> list[Entry]:
        entries: list[Entry] = []
        take = self._queue.popleft
        with suppress(IndexError):
            while len(entries) < COMMITS_MAX:
                entries.append(take())
        return entries

    def _commit(self, commits: list[Commit]) -> None:
        try:
            self._database.commit_group(commits)
        except BaseException as error:
            # Not only what the disk does: a bug must end the tasks that wait, not this thread.
            for commit in commits:
                if commit.receipt is None and commit.error is None:
                    commit.error = copy(error) if isinstance(error, TidelogError) else error


def _wake_tasks(entries: Sequence[Entry]) -> None:
    for _, task in entries:
        reschedule(task)


def wrong_loop() -> UsageError:
    """Return the error for a call from another thread than that of the loop."""
    return UsageError(
        "a store of `tidelog.aio` is used in the Trio loop that opened it",
        hint="Use its `.database`, which threads may share, or open with `tidelog.open`.",
    )
