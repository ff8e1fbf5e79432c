"""The backing of the maps of a store that can be written, outside of transactions.

Reads are those of the synchronous map beneath.  Each write is a transaction of its own, which goes
through the log thread; if somebody has locked its keys, it waits in a pessimistic transaction.

Invariants:

- Nothing is awaited between a commit and the return of the call: who is cancelled had no effect.
- No write is made by a task that is inside a transaction block.

Left out: where reads run (``database``), how groups are committed (``log_thread``).
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any

from ...affinity.errors import DeadlockError
from ..api.choices import Isolation
from ..api.maps import namespace_of
from ..api.rewrites import Rewrite
from ..api.rewriting import begins_again, has_to_wait
from ..commit.lock_manager import LockedError
from ..data.namespaces import Namespace
from ..data.operations import Encoded
from ..data.requests import DecideOn, PopFirst, PutMany, Request, Together
from .beneath import Beneath, SyncMap
from .log_thread import LogThread
from .transactions import Store, Transaction, place_behind


class Plain(Beneath):
    """The backing of a map of a store: reads beneath, writes through the log thread."""

    def __init__(self, mapping: SyncMap, store: Store, log: LogThread) -> None:
        super().__init__(mapping, store)
        self._store = store
        self._log = log
        self._make = store.writer().rewriting.maker(namespace_of(mapping))
        # The hot paths.  Neither refers to this object, which would keep itself alive.
        namespace = namespace_of(mapping)
        otherwise = partial(_commit_pair, store, namespace)
        self.get = store.getter(mapping)  # type: ignore[method-assign]
        self.put = log.putter(namespace, store.inside, otherwise)  # type: ignore[method-assign]

    def answer(self, request: Request) -> Awaitable[Any]:
        """Return the answer to a request of an operation."""
        match request:
            case DecideOn():
                return self._decide_on(request)
            case PutMany(pairs):
                return _commit_pairs(self._store, self.namespace, pairs)
            case PopFirst():
                return self._pop_first(request)
            case Together():
                return self._together(request)
        return super().answer(request)

    async def _decide_on(self, request: DecideOn) -> Any:
        """Carry out a decision about a key."""
        _check_outside(self._store, self.namespace)
        while True:
            made = await self._store.read(partial(self._make, request.key, request.decide))
            if made.choice.nothing_to_write or await self._carried_out(made):
                return made.choice.result
            if has_to_wait(made.error):
                return await _wait(self._store, self.namespace, request)

    async def _pop_first(self, request: PopFirst) -> Any:
        """Delete the first key and return the encoded pair, None if the map is empty."""
        _check_outside(self._store, self.namespace)
        make = partial(self._store.writer().rewriting.first, self.namespace)
        while True:
            made = await self._store.scan(make)
            if made.choice.nothing_to_write:
                return None
            if await self._carried_out(made):
                return made.choice.result
            if has_to_wait(made.error):
                return await _wait(self._store, self.namespace, request)

    async def _carried_out(self, made: Rewrite) -> bool:
        """Commit a rewrite; False if it has to be done in another way, or again."""
        await self._log.commit(made)
        if made.error is None:
            return True
        if has_to_wait(made.error) or begins_again(made.error):
            return False
        raise made.error

    async def _together(self, request: Together) -> Any:
        """Carry out an operation in a transaction of its own, until it commits."""
        _check_outside(self._store, self.namespace)

        async def attempt(tx: Transaction) -> Any:
            return await place_behind(tx).backing(self.namespace).perform(request.operation())

        return await self._store.run(attempt, plain_writes=True)


def _check_outside(store: Store, namespace: Namespace) -> None:
    """Raise ``UsageError`` for a plain write in a transaction block of this task."""
    if store.inside:
        store.inside.check_write(store.loop.task(), namespace.name)


async def _commit_pair(store: Store, namespace: Namespace, key: bytes, value: bytes | None) -> None:
    """Commit what the log thread does not take as a single put."""
    await _commit_pairs(store, namespace, [(key, value)])


async def _commit_pairs(store: Store, namespace: Namespace, pairs: Encoded) -> None:
    """Commit encoded pairs; wait if somebody has locked one of them."""
    store.workers.check()
    _check_outside(store, namespace)
    commit = store.writer().commit_of(namespace, pairs)
    if commit is None:
        await store.loop.checkpoint()
        return
    try:
        await store.commit(commit)
    except LockedError:
        await _wait(store, namespace, PutMany(pairs), isolation="read_committed")


async def _wait(
    store: Store, namespace: Namespace, request: Request, *, isolation: Isolation = "serializable"
) -> Any:
    """Ask a pessimistic transaction instead, which waits for the locks of others."""
    while True:
        own = store.transaction("pessimistic", isolation=isolation, plain_writes=True)
        try:
            async with own as tx:
                return await place_behind(tx).backing(namespace).answer(request)
        except DeadlockError:
            continue  # it stood, waiting, in the way of those it waits for
