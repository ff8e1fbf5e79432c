"""Lets threads wait for the locks of pessimistic transactions.

The decisions are those of ``tx.locks``; this module adds threads, time-outs, and the in-flight
group: a lock that was granted is used only after a commit that was already on its way to the
same key has been applied, so what is read under a lock is the newest there will be.

Invariants:

- The lock table is touched under the commit mutex only.  A change of it that an interrupt cuts
  short is made good before the mutex is given up; a second interrupt in that stops the store.
- A thread waits for at most one lock, with a time limit, holding no mutex.
- Locks of a transaction that was dropped without an end are released: at once if its finalizer
  gets the mutex, else by whoever asks for a lock next, or by the background work.

The table itself is part of the ``CommitContext``: groups look there whether keys are locked.
"""

from __future__ import annotations

import _thread
import warnings
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from ...affinity.errors import (
    DeadlineError,
    DeadlockError,
    LockTimeoutError,
    RolledBackError,
    TidelogError,
)
from ...tx.locks import Deadlock, Granted, KeyLock, Want
from ..data.stored import pack_prefix, shown_key, split_key
from ..system.environment import Environment
from .committer import Committer
from .context import LockedError
from .entries import DROPPED_WITH_LOCKS, Entry

__all__ = ["Holder", "LockManager", "LockedError", "covers", "map_key", "shown_lock"]

T = TypeVar("T")

_NO_PARTITION = 0xFFFFFFFF

_TABLE = "the table of locks"

SECONDS_MAX = _thread.TIMEOUT_MAX
"""How long a thread can be told to wait."""


def map_key(number: int) -> bytes:
    """Return the key of a whole map in the lock table; no partition has its number.

    Whoever locks anything in the map holds it shared, and a drop wants it alone.
    """
    return pack_prefix(_NO_PARTITION, number)


class Holder:
    """Stands for the locks of one transaction; dropped before their release, it sees to that."""

    owner = 0
    """The number of the transaction; 0 before it has one, and after its end."""

    def __init__(self, locks: LockManager) -> None:
        self._locks = locks
        self.locked = False
        """Whether it has, or had, any lock."""
        self.owner = locks.new_owner()

    def release(self) -> None:
        """Release all locks; releasing twice is fine."""
        if self.owner:
            self._locks.release(self.owner)
            self.owner = 0

    def __del__(self) -> None:
        """Release what nobody can release any more."""
        if self.owner and self._locks.lose(self.owner) and self.locked:
            warnings.warn(DROPPED_WITH_LOCKS, ResourceWarning, stacklevel=1, source=self)


class LockManager:
    """The locks of a store, for use by its threads."""

    def __init__(self, environment: Environment, committer: Committer) -> None:
        self.table = committer.context.locks
        self._monotonic = environment.monotonic
        self._committer = committer
        self._patience = committer.patience
        self._lost: deque[int] = deque()
        """Owners whose transactions were dropped; filled without the mutex."""
        self._owners = count(1)
        self._waiting: dict[int, _thread.LockType] = {}
        self._victims: set[int] = set()
        self._interrupted: set[int] = set()

    def new_owner(self) -> int:
        """Return the number of a new transaction; later ones are younger."""
        return next(self._owners)

    def acquire(self, owner: int, want: Want, *, timeout: float, deadline: float | None) -> None:
        """Take a lock for ``owner``, waiting up to ``timeout`` seconds.

        ``deadline`` is a time of the monotonic clock.  Raises ``DeadlockError`` if this
        transaction must end so that others can go on, ``LockTimeoutError``, ``DeadlineError``, and
        ``ReadOnlyError`` once the store has stopped in the middle of a change.
        """
        wake = self._request(owner, want)
        if wake is not None:
            self._wait(owner, want, wake, timeout, deadline)
        while (waiter := self._in_flight(want)) is not None:
            waiter.acquire(timeout=self._patience)

    def _request(self, owner: int, want: Want) -> _thread.LockType | None:
        """Ask for a lock; return what to wait for, None if it is granted."""
        with self._committer.mutex:
            self._committer.check_writable()
            self._release_lost()
            wake = self._change(lambda: self._asked(owner, want))
        if wake is not None and owner in self._interrupted:
            self.interrupt(owner)
        return wake

    def _asked(self, owner: int, want: Want) -> _thread.LockType | None:
        wake = None
        outcome = self.table.request(owner, want)
        if isinstance(outcome, Deadlock):
            if owner in outcome.victims:
                raise DeadlockError("this transaction waits for one that waits for it")
            self._end_victims(outcome)
        # What the victims held may have been all that was in the way.
        if not isinstance(outcome, Granted) and self.table.blockers(owner):
            wake = _thread.allocate_lock()
            wake.acquire()
            self._waiting[owner] = wake
        self._committer.context.note_locks()
        return wake

    def _change(self, work: Callable[[], T]) -> T:
        """Change the table, and make it whole again behind an exception; under the mutex."""
        return self._committer.context.change(_TABLE, work, self._restore)

    def _restore(self, error: BaseException) -> None:
        if not isinstance(error, TidelogError):  # these change nothing
            self.table.restore()
            self._wake([owner for owner in self._waiting if not self.table.waits(owner)])
            self._committer.context.note_locks()

    def _end_victims(self, deadlock: Deadlock) -> None:
        for victim in deadlock.victims:
            self._victims.add(victim)
            # Its thread raises as soon as it runs; nobody has to wait for that.
            self._wake(self.table.release(victim))
            waiting = self._waiting.pop(victim, None)
            if waiting is not None:
                waiting.release()

    def _wait(
        self,
        owner: int,
        want: Want,
        wake: _thread.LockType,
        timeout: float,
        deadline: float | None,
    ) -> None:
        """Wait for a queued request."""
        left = timeout
        if deadline is not None:
            left = min(left, deadline - self._monotonic())
        try:
            wake.acquire(timeout=max(left, 0.0))
        finally:
            granted = self._waited(owner)
        if owner in self._interrupted:
            raise RolledBackError("the wait for a lock was interrupted")
        if owner in self._victims:
            self._victims.discard(owner)
            raise DeadlockError("this transaction waited for one that waited for it")
        if not granted:
            if deadline is not None and self._monotonic() >= deadline:
                raise DeadlineError("the deadline passed while waiting for a lock")
            shown = shown_lock(want, self._committer.context.name_of)
            raise LockTimeoutError(f"{shown} was not granted within {timeout} seconds")

    def _waited(self, owner: int) -> bool:
        """Tell whether a request was granted, and take it back if it was not."""
        with self._committer.mutex:
            self._committer.check_writable()
            # Whoever granted the lock, or chose this owner as a victim, took it off the list.
            granted = self._waiting.pop(owner, None) is None
            if not granted or owner in self._interrupted or owner in self._victims:
                self._change(lambda: self._wake(self.table.cancel(owner)))
            return granted

    def interrupt(self, owner: int) -> None:
        """Let ``owner`` wait no more: its wait, or its next one, raises ``RolledBackError``.

        Called from any thread; takes no mutex, so that an event loop may call it.
        """
        # Flag first: whoever begins to wait looks at the flag after it is on the list.
        self._interrupted.add(owner)
        waiting = self._waiting.pop(owner, None)
        if waiting is not None:
            waiting.release()

    def resume(self, owner: int) -> None:
        """Forget that ``owner`` was interrupted."""
        self._interrupted.discard(owner)

    def release(self, owner: int) -> None:
        """Release everything that ``owner`` holds, and wake those who get it."""
        with self._committer.mutex:
            self._committer.check_whole()
            if self._committer.interrupted:
                return  # nobody gets a lock any more
            self._change(lambda: self._released(owner))

    def _released(self, owner: int) -> None:
        self._interrupted.discard(owner)
        self._wake(self.table.release(owner))
        self._committer.context.note_locks()

    def lose(self, owner: int) -> bool:
        """Hear that a transaction was dropped with its locks; tell whether that matters.

        Called by a finalizer, in any thread, at any moment: this one may hold the mutex.
        """
        if self._committer.stopped is not None:
            return False
        self._lost.append(owner)
        if self._committer.mutex.acquire(blocking=False):
            try:
                self._release_lost()
            finally:
                self._committer.mutex.release()
        return True

    def release_lost(self) -> None:
        """Release the locks of transactions that were dropped while somebody held the mutex."""
        if self._lost:
            with self._committer.mutex:
                self._release_lost()

    def _release_lost(self) -> None:
        # Nobody gets a lock any more from a store that was interrupted halfway.
        if self._lost and not self._committer.interrupted:
            self._change(self._released_lost)

    def _released_lost(self) -> None:
        while self._lost:
            # To release twice is to release once, if an interrupt comes in between.
            self._wake(self.table.release(self._lost[0]))
            self._lost.popleft()
        self._committer.context.note_locks()

    def _wake(self, owners: list[int]) -> None:
        for owner in owners:
            waiting = self._waiting.pop(owner, None)
            if waiting is not None:
                waiting.release()

    def _in_flight(self, want: Want) -> _thread.LockType | None:
        """Return what to wait for if a group on its way changes what the lock covers, else None."""
        with self._committer.mutex:
            self._committer.check_writable()
            if any(covers(want, entry) for entry in self._committer.carrier.in_flight):
                return self._committer.queue.applied_soon()
        return None


def shown_lock(want: Want, name_of: Callable[[int], str]) -> str:
    """Return a lock as errors name it; ``name_of`` is what a map is called, by its id."""
    partition, number, key = split_key(want.key if isinstance(want, KeyLock) else want.start)
    if partition == _NO_PARTITION:
        return f"a lock on the map {name_of(number)!r}"
    what = f"key {shown_key(key)}" if isinstance(want, KeyLock) else "a range"
    return f"a lock on {what} of {name_of(number)!r}"


def covers(want: Want, entry: Entry) -> bool:
    """Tell whether an entry changes what a lock is about."""
    if isinstance(want, KeyLock):
        return bool(entry.changed({want.key}))
    return any(key in want for key in entry.full_keys())
