"""One thread per store that commits for tasks, so that their loop never waits for a disk.

Tasks leave their commits in a queue and sleep.  The thread takes all that are there, commits them
as one group (one frame, one sync), and wakes their tasks by one call into the loop.  Both ways
are batched: the thread is woken only when it sleeps, the loop once per group.

Invariants:

- A commit is *submitted* when the thread takes it out of the queue.  A task that is cancelled
  before takes its commit back, and nothing happened; after that the task sleeps until the outcome
  is known, and is cancelled at its next checkpoint.
- Whoever takes a commit out of a queue owns it: taking is one step under the interpreter lock.
- Every commit that was submitted gets its outcome, and its task is woken exactly once.
- The thread keeps nothing alive while it sleeps: a store that nobody can close any more, as after
  an interrupt in the middle of closing, is let go of, and the thread ends.

Left out: what a commit is and how groups are written (``commit``, ``puts``), who may commit what
(``aio``).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Container, Coroutine, Iterator
from contextlib import suppress
from copy import copy
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

from mmh3 import hash as murmur3

from ...affinity.errors import ClosedError, TidelogError
from ..api.rewrites import Rewrite
from ..api.session import StoreSession
from ..commit.entries import Commit, Entry
from ..commit.lock_manager import LockedError
from ..commit.puts import PUT_BYTES_MAX, PUTS_MAX, WAITER, Put, Puts
from ..commit.queue import GROUP_BYTES_MAX
from ..data.namespaces import Namespace
from ..data.stored import KEY_BYTES_MAX
from .loops import Loop, called, take_back, wrong_loop
from .waiting import Once

COMMITS_MAX = 256
"""Commits, other than single puts, that are taken from the queue at once."""

T = TypeVar("T")


class LogThread:
    """Commits for the tasks of one loop; made, used and stopped in that loop."""

    def __init__(self, session: StoreSession, loop: Loop) -> None:
        self._session = session
        self._durable = session.durability == "always"
        self._loop = loop
        self._puts: deque[Put] = deque()
        self._commits: deque[tuple[Commit | Rewrite, Any]] = deque()
        self._errors: dict[Any, BaseException] = {}
        """Errors of puts, for the tasks that are about to run."""
        self.commit = loop.protected(self._commit_one)
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._asleep = False
        self._stopping = False
        self._ended = Once(loop)
        weakref.finalize(self, self._wake.put, None).atexit = False
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(self), self._wake), name="tidelog-log", daemon=True
        )
        self._thread.start()

    # -------------------------------------------------------------- in the loop

    def putter(
        self,
        namespace: Namespace,
        inside: Container[object],
        otherwise: Callable[[bytes, bytes | None], Coroutine[Any, Any, None]],
    ) -> Callable[[bytes, bytes | None], Coroutine[Any, Any, None]]:
        """Return an async function that sets an encoded key.

        ``otherwise`` does it for deletes (None), large values, keys that somebody has locked, and
        for tasks ``inside`` a transaction block.  Cancelled it has done nothing.  One closure on
        purpose: at full load a call more per put costs several percent.
        """
        prefixes, number = namespace.prefixes, namespace.id
        first, count, _ = namespace.space
        queue, errors, loop = self._puts, self._errors, self._loop
        place, here, task, sleeper_of = loop.place, loop.here, loop.task, loop.sleeper
        check, wait = loop.checkpoint_if_cancelled, loop.wait
        largest = min(
            PUT_BYTES_MAX, self._session.store.options.transaction_bytes_max - KEY_BYTES_MAX
        )

        @loop.protected
        @called("Map.set")
        async def put(key: bytes, value: bytes | None) -> None:
            if self._stopping or place != here() or not namespace.alive:
                self._refuse(namespace)
            await check()
            if value is None or len(value) > largest or (inside and task() in inside):
                return await otherwise(key, value)
            if self._asleep and not loop.runs_here():
                raise wrong_loop()
            sleeper = sleeper_of()
            partition = first + murmur3(key, 0, False) % count
            entry = (partition, number, prefixes[partition] + key, key, value, sleeper)
            queue.append(entry)
            if self._asleep:
                self._asleep = False
                self._wake.put(None)
            await wait(sleeper, take_back, queue, entry)
            if errors and sleeper in errors:
                error = errors.pop(sleeper)
                if isinstance(error, LockedError):
                    return await otherwise(key, value)
                raise _for_one(error)
            return None

        return put

    async def _commit_one(self, commit: Commit | Rewrite) -> None:
        """Let the thread commit; afterwards ``commit`` has its receipt or its error.

        Cancelled it has done nothing.
        """
        if self._stopping or not self._loop.runs_here():
            self._refuse(None)
        await self._loop.checkpoint_if_cancelled()
        sleeper = self._loop.sleeper()
        entry = (commit, sleeper)
        self._commits.append(entry)
        if self._asleep:
            self._asleep = False
            self._wake.put(None)
        await self._loop.wait(sleeper, take_back, self._commits, entry)

    def _refuse(self, namespace: Namespace | None) -> NoReturn:
        if self._session.open_state.closed is not None:
            raise self._session.open_state.closed()
        if self._stopping:
            raise ClosedError(f"the store {self._session.path} is closed")
        if namespace is not None:
            namespace.check_alive()
        raise wrong_loop()

    def forked(self) -> None:
        """In the child of a fork, where the thread is not: take no more commits."""
        self._stopping = True

    async def stop(self) -> None:
        """Take no more commits, and return once all that were in the queue have ended."""
        self._stopping = True
        self._wake.put(None)
        await self._ended.wait()

    # -------------------------------------------------------------- in the thread

    def emptied(self) -> bool:
        """Commit all that is in the queues; False if nothing will come any more."""
        puts, commits = self._puts, self._commits
        while True:
            while puts or commits:
                if not self._group():
                    return False
            if self._stopping:
                self._loop.soon(self._ended.come)
                return False
            self._asleep = True
            # Whoever queued before that did not wake anybody: look again.
            if not puts and not commits:
                return True

    def _group(self) -> bool:
        """Commit what is in the queues, and wake those who wait for it.

        False if the loop has gone, as it has if a program ended without closing: nobody is left
        to be told.
        """
        puts = _taken(self._puts, PUTS_MAX)
        commits = _taken(self._commits, COMMITS_MAX)
        entries: list[Entry] = [commit for commit, _ in commits]
        together = Puts(puts, self._durable) if puts else None
        if together is not None:
            entries.append(together)
        for group in _groups(entries):
            self._commit(group)
        if together is not None:
            together.leave_errors(self._errors, None)
        return self._loop.soon(self._wake_tasks, puts, commits)

    def _wake_tasks(self, puts: list[Put], commits: list[tuple[Commit | Rewrite, Any]]) -> None:
        wake = self._loop.wake
        for put in puts:
            wake(put[WAITER])
        for _, sleeper in commits:
            wake(sleeper)

    def _commit(self, entries: list[Entry]) -> None:
        try:
            self._session.commit_group(entries)
        except BaseException as error:
            # Not only what the disk does: a bug must end the tasks that wait, not this thread.
            for entry in entries:
                done = isinstance(entry, (Commit, Rewrite)) and entry.receipt is not None
                if entry.error is None and not done:
                    entry.error = _for_one(error)


def _run(found: weakref.ref[LogThread], wake: SimpleQueue[None]) -> None:
    """Commit whenever somebody wakes this thread, until that is over or nobody is left to."""
    while True:
        log = found()
        if log is None or not log.emptied():
            return
        del log
        wake.get()


def _for_one(error: BaseException) -> BaseException:
    """Return an error for one task to raise: those of the user's concern are not shared."""
    return copy(error) if isinstance(error, TidelogError) else error


def _groups(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Cut a list so that no part with more than one entry is larger than a group may be."""
    first, size = 0, 0
    for place, entry in enumerate(entries):
        size += entry.size
        if size > GROUP_BYTES_MAX and place > first:
            yield entries[first:place]
            first, size = place, entry.size
    yield entries[first:]


def _taken(queue: deque[T], most: int) -> list[T]:
    taken: list[T] = []
    take = queue.popleft
    with suppress(IndexError):
        while len(taken) < most:
            taken.append(take())
    return taken
