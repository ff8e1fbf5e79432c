"""Lets threads wait for the locks of pessimistic transactions.

The decisions are those of ``tx.locks``; this module adds threads, time-outs, and the in-flight
group: a lock that was granted is used only after a commit that was already on its way to the
same key has been applied, so what is read under a lock is the newest there will be.

Invariants:

- The lock table is touched under the commit mutex only.
- A thread waits for at most one lock, with a time limit, holding no mutex.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Iterable

from ..affinity.errors import (
    DeadlineError,
    DeadlockError,
    LockTimeoutError,
    RolledBackError,
    TidelogError,
)
from ..tx.locks import Deadlock, Granted, KeyLock, LockTable, Want
from .commit import Committer
from .environment import Environment
from .stored import pack_prefix, shown_key, split_key

_NO_PARTITION = 0xFFFFFFFF


class LockedError(TidelogError):
    """A key to be written is locked by a pessimistic transaction; users never see this."""

    code = "TL-INT-001"


def map_key(number: int) -> bytes:
    """Return the key that stands for a whole map in the lock table, in a partition that is none.

    Whoever locks anything in the map holds it shared, and a drop wants it alone.
    """
    return pack_prefix(_NO_PARTITION, number)


class LockManager:
    """The lock table of a store, for use by its threads."""

    def __init__(self, environment: Environment, committer: Committer) -> None:
        self.table = LockTable()
        self.name_of: Callable[[int], str] = "namespace {}".format
        """The name of the map with an id, for errors."""
        self._monotonic = environment.monotonic
        self._committer = committer
        self._owners = 0
        self._waiting: dict[int, _thread.LockType] = {}
        self._victims: set[int] = set()
        self._interrupted: set[int] = set()
        committer.locked = self.locked

    def locked(self, owner: int, keys: Iterable[bytes]) -> TidelogError | None:
        """Return the error for keys that others than ``owner`` have locked; under the mutex."""
        if self.table.would_block(owner, keys) is None:
            return None
        return LockedError("a key is locked")

    def new_owner(self) -> int:
        """Return the number of a new transaction; later ones are younger."""
        with self._committer.mutex:
            self._owners += 1
            return self._owners

    def acquire(self, owner: int, want: Want, *, timeout: float, deadline: float | None) -> None:
        """Take a lock for ``owner``, waiting up to ``timeout`` seconds.

        ``deadline`` is a time of the monotonic clock.  Raises ``DeadlockError`` where this
        transaction must end so that others can go on, ``LockTimeoutError`` and ``DeadlineError``.
        """
        mutex = self._committer.mutex
        mutex.acquire()
        try:
            outcome = self.table.request(owner, want)
            if not isinstance(outcome, Granted):
                if isinstance(outcome, Deadlock):
                    self._end_victims(owner, outcome)
                # What the victims held may have been all that was in the way.
                if self.table.blockers(owner):
                    self._wait(owner, want, timeout, deadline)
            self._note_busy()
            while self._in_flight(want):
                self._committer.wait_applied()
        finally:
            mutex.release()

    def _end_victims(self, owner: int, deadlock: Deadlock) -> None:
        if owner in deadlock.victims:
            raise DeadlockError("this transaction waits for one that waits for it")
        for victim in deadlock.victims:
            self._victims.add(victim)
            # Its thread raises as soon as it runs; nobody has to wait for that.
            self._wake(self.table.release(victim))
            waiting = self._waiting.pop(victim, None)
            if waiting is not None:
                waiting.release()

    def _wait(self, owner: int, want: Want, timeout: float, deadline: float | None) -> None:
        """Wait for a queued request; the mutex is held before and after, not meanwhile."""
        wake = _thread.allocate_lock()
        wake.acquire()
        self._waiting[owner] = wake
        if owner in self._interrupted:
            self.interrupt(owner)
        left = timeout
        if deadline is not None:
            left = min(left, deadline - self._monotonic())
        self._committer.mutex.release()
        try:
            wake.acquire(timeout=max(left, 0.0))
        finally:
            self._committer.mutex.acquire()
        # Whoever granted the lock, or chose this owner as a victim, took it off the list.
        granted = self._waiting.pop(owner, None) is None
        if owner in self._interrupted:
            self._wake(self.table.cancel(owner))
            raise RolledBackError("the wait for a lock was interrupted")
        if owner in self._victims:
            self._victims.discard(owner)
            self._wake(self.table.cancel(owner))
            raise DeadlockError("this transaction waited for one that waited for it")
        if not granted:
            self._wake(self.table.cancel(owner))
            if deadline is not None and self._monotonic() >= deadline:
                raise DeadlineError("the deadline passed while waiting for a lock")
            raise LockTimeoutError(f"{self._shown(want)} was not granted within {timeout} seconds")

    def _shown(self, want: Want) -> str:
        """Return a lock as errors name it."""
        partition, number, key = split_key(want.key if isinstance(want, KeyLock) else want.start)
        if partition == _NO_PARTITION:
            return f"a lock on the map {self.name_of(number)!r}"
        what = f"key {shown_key(key)}" if isinstance(want, KeyLock) else "a range"
        return f"a lock on {what} of {self.name_of(number)!r}"

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
            self._interrupted.discard(owner)
            self._wake(self.table.release(owner))
            self._note_busy()

    def _wake(self, owners: list[int]) -> None:
        for owner in owners:
            waiting = self._waiting.pop(owner, None)
            if waiting is not None:
                waiting.release()

    def _note_busy(self) -> None:
        """Tell the committer whether anybody holds a lock; under the mutex."""
        self._committer.locks_held = not self.table.idle
        self._committer.settle_way()

    def _in_flight(self, want: Want) -> bool:
        """Tell whether the group on its way to the log changes what the lock covers."""
        for commit in self._committer.in_flight:
            if isinstance(want, KeyLock):
                if commit.changed({want.key}):
                    return True
            elif any(key in want for key in commit.full_keys()):
                return True
        return False
