"""Carries out decisions about single keys of the store itself: ``m.incr(key)`` and its like.

Each is a rewrite in the queue of commits.  If a pessimistic transaction has locked the key, or
the codec of the values must not run under the mutex, it is done in a pessimistic transaction of its
own, which waits for its turn.  Either way it never ends in a conflict.

Left out: what a rewrite is (``rewrites``), decisions inside of transactions (``transactions``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar
from weakref import WeakValueDictionary

from ...affinity.errors import DeadlockError, RolledBackError
from ..commit.lock_manager import LockedError
from ..data.decisions import Decide
from ..data.namespaces import Namespace
from ..data.overlay import Overlay
from ..data.scan import Pair
from ..system.forks import free
from .choices import Durability
from .inside import Blocks
from .rewrites import FirstKey, Look, OneKey, RacedError, Rewrite, StaleError
from .snapshots import SnapshotSession
from .transaction_session import TransactionSession

T = TypeVar("T")

FIRST_KEYS = 32
"""First keys of a map that ``popitem`` looks at; more if others pop at the same time."""

FIRST_KEYS_MAX = 512


class RewritingSource(Protocol):
    """The store that rewrites are for."""

    @property
    def durability(self) -> Durability:
        """What a commit waits for."""

    @property
    def overlay(self) -> Overlay:
        """The newest state."""

    @property
    def inside(self) -> Blocks:
        """The threads that are inside a transaction block."""

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""

    def check_outside(self, namespace: Namespace) -> None:
        """Raise ``UsageError`` for a plain write in a transaction block of this thread."""

    def snapshot(self) -> SnapshotSession:
        """Return the whole store as it is now."""

    def transaction(
        self, mode: Literal["pessimistic"], *, plain_writes: Literal[True]
    ) -> TransactionSession:
        """Begin a transaction."""


class Rewriting:
    """Makes rewrites of a store, and sees them through for its threads."""

    def __init__(self, database: RewritingSource, commit: Callable[[Rewrite], None]) -> None:
        self._database = database
        self._commit = commit
        self._durable = database.durability == "always"
        self._looking = threading.Lock()
        self._looks: WeakValueDictionary[int, Look] = WeakValueDictionary()
        """What those know who pop from a map just now, by the id of its namespace."""
        self._kept: Look | None = None
        """The newest of them, so that one who pops alone need not look each time."""

    def forked(self) -> None:
        """In the child of a fork: wait for nobody of the parent."""
        free(self._looking)

    # -------------------------------------------------------------- one key

    def maker(self, namespace: Namespace) -> Callable[[bytes, Decide], Rewrite]:
        """Return a function that makes the rewrite of an encoded key.

        ``nothing_to_write`` of its choice tells that nothing has to be committed.
        """
        database, durable = self._database, self._durable
        overlay, get = database.overlay, database.getter(namespace)

        def make(key: bytes, decide: Decide) -> Rewrite:
            return Rewrite(OneKey(overlay, namespace, key, decide, get), durable)

        return make

    def rewriter(self, namespace: Namespace) -> Callable[[bytes, Decide], Any]:
        """Return a function that carries out a decision about an encoded key."""
        make, commit = self.maker(namespace), self._commit
        inside, check_outside = self._database.inside, self._database.check_outside

        def rewrite(key: bytes, decide: Decide) -> Any:
            if inside:
                check_outside(namespace)
            while True:
                made = make(key, decide)
                if made.choice.nothing_to_write:
                    return made.choice.result
                commit(made)
                if made.error is None:
                    return made.choice.result
                if has_to_wait(made.error):
                    return self._wait(lambda tx: tx.rewriter(namespace)(key, decide))
                if not begins_again(made.error):
                    raise made.error

        return rewrite

    # -------------------------------------------------------------- the first key

    def first(self, namespace: Namespace) -> Rewrite:
        """Return the rewrite that deletes the first key; it may have to read a lot for that."""
        with self._looking:
            look = self._looks.get(namespace.id)
            if look is None or look.used_up:
                count = FIRST_KEYS if look is None else min(4 * look.count, FIRST_KEYS_MAX)
                namespace.check_alive()
                look = Look(namespace, self._database.snapshot(), count)
                self._looks[namespace.id] = look
            self._kept = None if look.used_up else look
        return Rewrite(FirstKey(namespace, look), self._durable)

    def let_go(self) -> None:
        """Keep no snapshot for those who pop next; called now and then."""
        self._kept = None

    def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None if there is none."""
        self._database.check_outside(namespace)
        while True:
            made = self.first(namespace)
            if made.choice.nothing_to_write:
                return None
            self._commit(made)
            if made.error is None:
                found: Pair | None = made.choice.result
                return found
            if has_to_wait(made.error):
                return self._wait(lambda tx: tx.pop_first(namespace))
            if not begins_again(made.error):
                raise made.error

    # -------------------------------------------------------------- under locks

    def _wait(self, work: Callable[[TransactionSession], T]) -> T:
        """Return ``work(tx)`` of a pessimistic transaction; codecs may write plainly in it."""
        while True:
            try:
                with self._database.transaction("pessimistic", plain_writes=True) as tx:
                    return work(tx)
            except DeadlockError:
                # It stood, waiting, in the way of those it waits for: they go first.
                continue


def has_to_wait(error: BaseException | None) -> bool:
    """Tell whether a rewrite is to be done under a lock."""
    return isinstance(error, (LockedError, RacedError))


def begins_again(error: BaseException) -> bool:
    """Tell whether a rewrite had no effect, for a reason that is not its own."""
    if isinstance(error, RolledBackError):
        return error.retryable  # the thread that led its group was interrupted
    return isinstance(error, StaleError)
