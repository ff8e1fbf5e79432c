"""Carries out decisions about single keys of the store itself: ``m.incr(key)`` and its like.

Each is a rewrite in the queue of commits.  Where a pessimistic transaction has locked the key, or
the codec of the values must not run under the mutex, it is done in a pessimistic transaction of its
own, which waits for its turn.  Either way it never ends in a conflict.

Left out: what a rewrite is (``rewrites``), decisions inside of transactions (``transactions``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..affinity.errors import DeadlockError, RolledBackError, SnapshotExpiredError
from .decisions import Decide
from .lock_manager import LockedError
from .namespaces import Namespace
from .rewrites import FirstKey, OneKey, RacedError, Rewrite, StaleError
from .scan import Pair
from .snapshots import Snapshot

if TYPE_CHECKING:
    from .database import Database
    from .transactions import Transaction

T = TypeVar("T")

FIRST_KEYS = 32
"""First keys of a map that ``popitem`` looks at; more where others have taken all of them."""

FIRST_KEYS_MAX = 2048


class Rewriting:
    """Makes rewrites of a store, and sees them through for its threads."""

    def __init__(self, database: Database, commit: Callable[[Rewrite], None]) -> None:
        self._database = database
        self._commit = commit
        self._durable = database.durability == "always"

    # -------------------------------------------------------------- one key

    def maker(self, namespace: Namespace) -> Callable[[bytes, Decide], Rewrite]:
        """Return a function that makes the rewrite of an encoded key.

        ``settled`` of its choice tells that nothing has to be committed.
        """
        database, durable = self._database, self._durable
        overlay, get = database.overlay, database.getter(namespace)

        def make(key: bytes, decide: Decide) -> Rewrite:
            return Rewrite(OneKey(overlay, namespace, key, decide, get), durable)

        return make

    def rewriter(self, namespace: Namespace) -> Callable[[bytes, Decide], Any]:
        """Return a function that carries out a decision about an encoded key."""
        make, commit = self.maker(namespace), self._commit

        def rewrite(key: bytes, decide: Decide) -> Any:
            while True:
                made = make(key, decide)
                if made.choice.settled:
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

    def first(self, namespace: Namespace, snapshot: Snapshot, count: int) -> Rewrite:
        """Return the rewrite that deletes the first key; the snapshot has to stay open."""
        return Rewrite(FirstKey(namespace, snapshot, count), self._durable)

    def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None where there is none."""
        count = FIRST_KEYS
        while True:
            with self._database.snapshot() as snapshot:
                made = self.first(namespace, snapshot, count)
                if made.choice.settled:
                    return None
                self._commit(made)
            if made.error is None:
                found: Pair | None = made.choice.result
                return found
            if has_to_wait(made.error):
                return self._wait(lambda tx: tx.pop_first(namespace))
            if not begins_again(made.error):
                raise made.error
            count = more_keys(count)

    # -------------------------------------------------------------- under locks

    def _wait(self, work: Callable[[Transaction], T]) -> T:
        """Return ``work(tx)`` of a pessimistic transaction."""
        while True:
            try:
                with self._database.transaction("pessimistic") as tx:
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
    return isinstance(error, (StaleError, SnapshotExpiredError))


def more_keys(count: int) -> int:
    """Return how many first keys to look at next."""
    return min(4 * count, FIRST_KEYS_MAX)
