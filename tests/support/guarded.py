"""A twin of the commit mutex that knows who holds it, and what may only be done by its holder.

Threads that meet by chance prove little: in CPython most windows are a few bytecodes wide.  So each
step that the mutex has to guard asks whether its own thread holds it, whoever else is there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tidelog.checkpoints.replay import State
from tidelog.engine.commit.carrier import Carrier
from tidelog.engine.commit.commit_log import CommitLog
from tidelog.engine.commit.committer import Committer
from tidelog.engine.commit.context import CommitContext
from tidelog.engine.commit.queue import CommitQueue
from tidelog.engine.data.overlay import Overlay
from tidelog.engine.store import store_files
from tidelog.engine.store.opening import OpenStore
from tidelog.tx.locks import LockTable
from tidelog.wal.writer import LogWriter

GUARDED: tuple[tuple[type, tuple[str, ...]], ...] = (
    (
        CommitQueue,
        (
            "add_put",
            "add_ticket",
            "applied_soon",
            "end",
            "name_anybody",
            "take",
            "withdraw_abandoned",
        ),
    ),
    (CommitLog, ("append", "close_gaps", "leave_gaps")),
    (CommitContext, ("change", "check_dropped", "locked", "note_locks")),
    (Committer, ("close_short_cut",)),
    (Carrier, ("check_whole",)),
    (Overlay, ("begin_flush", "end_flush", "abandon_flush", "refresh", "snapshot", "seal")),
    (LogWriter, ("append",)),
    (State, ("apply",)),
    (LockTable, ("request", "release", "cancel")),
)
"""What the commit mutex guards once a store is open; all of it is called by the suite."""


class OwnedLock:
    """A lock that tells whether this thread holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it as ``threading.Lock`` does."""
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._owner = threading.get_ident()
        return taken

    def release(self) -> None:
        """Give it up."""
        self._owner = None
        self._lock.release()

    def locked(self) -> bool:
        """Tell whether anybody holds it."""
        return self._lock.locked()

    def mine(self) -> bool:
        """Tell whether this thread holds it."""
        return self._owner == threading.get_ident()

    def __enter__(self) -> bool:
        """Take it."""
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        """Give it up."""
        self.release()


class Watch:
    """What was called of a store without its mutex, and what was called at all."""

    def __init__(self) -> None:
        self._parts: frozenset[int] = frozenset()
        self.mutex = OwnedLock()
        self.bare: list[str] = []
        self.called: set[str] = set()

    def follow(self, store: OpenStore) -> None:
        """Watch the parts of a store that has been opened."""
        committer = store.committer
        parts = (
            committer,
            committer.carrier,
            committer.context,
            committer.end_of_log,
            committer.queue,
            store.overlay,
            store.writer,
            store.state,
            store.locks.table,
        )
        self._parts = frozenset(map(id, parts))

    def guarded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method, which then says whether the mutex was held."""

        @functools.wraps(method)
        def checked(*args: Any, **named: Any) -> Any:
            if id(args[0]) in self._parts:
                self.called.add(name)
                if not self.mutex.mine():
                    self.bare.append(name)
            return method(*args, **named)

        return checked


@contextmanager
def watched() -> Iterator[Watch]:
    """Give the store that is opened next the twin, and watch what it guards."""
    watch = Watch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_files, "Lock", lambda: watch.mutex)
        for owner, names in GUARDED:
            for name in names:
                full = f"{owner.__name__}.{name}"
                patch.setattr(owner, name, watch.guarded(full, getattr(owner, name)))
        yield watch
