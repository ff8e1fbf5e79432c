"""Transactions, attempts and snapshots under Trio.

The reads and writes are those of a synchronous transaction; this module decides where they run.
*Optimistic*: in the loop, as far as they are short, and the commit goes through the log thread.
*Pessimistic*: everything runs in a worker thread, since it may wait for a lock.

Cancellation:

- Until its commit is submitted a transaction can be cancelled; it is rolled back then.
- After that the commit goes on to its end; the task learns the outcome, and is cancelled at its
  next checkpoint.  So a ``commit`` that raises ``trio.Cancelled`` had no effect.
- Cancelling a wait for a lock withdraws the request; what is locked stays locked until the end.

A transaction is used by one task at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from trio.lowlevel import Task, checkpoint_if_cancelled, current_task

from ...affinity.errors import ClosedError, ForkedError, TidelogError, UsageError
from ..api import snapshots, transactions
from ..api.attempts import Plan, checked_count, not_entered, plan, tell_attempts
from ..commit.entries import Commit, Receipt
from ..commit.lock_manager import LockedError
from ..data.decisions import Decide
from ..data.namespaces import Home, Namespace, not_copied
from ..data.scan import Pair
from ..store.data_file_growth import GrowingError
from .maps import Getter, Map, Putter, Rewriter, SyncMap, check_home

if TYPE_CHECKING:
    from .database import Database

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class Transaction:
    """One attempt at a change of many keys; made by ``db.transaction``, used in ``async with``.

    ``tx[users]`` is the map ``users`` inside the transaction.  Leaving the block commits, an
    exception in it rolls back.
    """

    def __init__(
        self,
        database: Database,
        inner: transactions.Transaction,
        *,
        pessimistic: bool,
        plain_writes: bool = False,
    ) -> None:
        self._database = database
        self._workers = database.workers
        self._inner = inner
        self._waits = pessimistic
        self._begun = False
        self._open = True
        self._busy = False
        self._plain_writes = plain_writes
        self._task: Task | None = None

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show what the transaction is doing."""
        return f"<aio {self._inner!r}>"

    @property
    def receipt(self) -> Receipt | None:
        """What the commit left behind; None before it, and without one."""
        return self._inner.receipt

    @property
    def tx_id(self) -> bytes | None:
        """The id that the caller gave, or the one of the commit; None before it."""
        return self._inner.tx_id

    def __getitem__(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is inside this transaction; ``UsageError`` for a foreign one."""
        check_home(mapping, self.home)

        async def bind() -> SyncMap:
            return self._inner[await mapping.bound()]

        return Map(mapping.name, self, bind)

    @property
    def home(self) -> Home:
        """The opening of the store, to which its maps belong."""
        return self._database.home

    @property
    def is_open(self) -> bool:
        """Whether it has neither been committed nor rolled back."""
        return self._open

    # -------------------------------------------------------------- begin and end

    async def __aenter__(self) -> Transaction:
        """Begin; a pessimistic transaction waits for its turn if many are running."""
        self._workers.check()
        if self._begun:
            raise UsageError("a transaction is used once", hint="Begin a new one.")
        if self._waits:
            await self._workers.take_place(self, self._inner.lock_timeout)
        self._begun = True
        if not self._plain_writes:
            self._task = current_task()
            self._database.inside.enter(self._task, self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back if the block raised; after ``commit`` or ``rollback`` do nothing."""
        try:
            if self._open and kind is None:
                await self.commit()
        finally:
            if self._task is not None:
                self._database.inside.leave(self._task, self)
            await self.rollback()
            if self._waits:
                self._workers.leave_place(self)

    async def commit(self) -> Receipt:
        """Make the transaction take effect; return its receipt.

        Raises what ``tidelog.Transaction.commit`` does.  Raises ``trio.Cancelled`` only if it
        had no effect.
        """
        with self._alone():
            await checkpoint_if_cancelled()
            self._open = False
            if self._waits:
                return await self._wait(self._inner.commit)
            receipt = None
            commit = self._inner.prepare()
            try:
                receipt = await self._submit(commit)
                return receipt
            finally:
                self._inner.end(receipt)

    async def _submit(self, commit: Commit | None) -> Receipt:
        if commit is None:
            await trio.lowlevel.checkpoint()
            return self._database.writer().outcomes.empty_receipt()
        with self._database.writer().outcomes.pending(commit.tx_id):
            try:
                return await self._database.commit(commit)
            except (LockedError, GrowingError):
                await self._workers.take_place(self, self._inner.lock_timeout)
            try:
                return await self._wait(self._commit_waiting)
            finally:
                self._workers.leave_place(self)

    def _commit_waiting(self) -> Receipt:
        """Wait for what is in the way, locks or a growing data file, and commit; in a thread."""
        receipt = None
        try:
            receipt = self._database.writer().commit_transaction(self._inner)
            return receipt
        finally:
            self._inner.end(receipt)

    async def rollback(self) -> None:
        """End the transaction without any effect; after its end this does nothing."""
        if not self._open:
            return
        self._open = False
        if self._waits and self._begun:
            with trio.CancelScope(shield=True):
                try:
                    await self._workers.run(self._inner.rollback)
                except (ClosedError, ForkedError):  # so nobody waits for its locks any more
                    self._inner.rollback()
        else:
            self._inner.rollback()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._workers.check()
        if not self._begun:
            raise UsageError("a transaction is used in its `async with` block")
        if self._busy:
            raise UsageError(
                "another task is using the transaction", hint="Begin one in each task."
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    # -------------------------------------------------------------- session of its maps

    def getter(self, inner: SyncMap) -> Getter:
        """Return an async function from key and default to value."""

        async def get(key: Any, default: Any) -> Any:
            return await self.read(lambda: inner.get(key, default))

        return get

    def putter(self, inner: SyncMap) -> Putter:
        """Return an async function that sets an encoded key, or deletes it."""

        async def put(key: bytes, value: bytes | None) -> None:
            await self.set_encoded(inner.namespace, [(key, value)])

        return put

    async def set_encoded(
        self, namespace: Namespace, pairs: list[tuple[bytes, bytes | None]]
    ) -> None:
        """Set or delete encoded keys."""
        work = partial(self._inner.set_many, namespace, pairs)
        with self._alone():
            if self._waits:
                await self._wait(work)
            else:
                await self._database.pace()
                work()

    def rewriter(self, inner: SyncMap) -> Rewriter:
        """Return an async function that carries out a decision about an encoded key."""
        namespace = inner.namespace

        async def rewrite(key: bytes, decide: Decide) -> Any:
            return await self.read(lambda: self._inner.rewriter(namespace)(key, decide))

        return rewrite

    async def pop_first(self, inner: SyncMap) -> Pair | None:
        """Delete the first key and return the encoded pair, None where there is none."""
        return await self.scan(lambda: self._inner.pop_first(inner.namespace))

    def inner_map(self, inner: SyncMap) -> SyncMap:
        """Return the synchronous map inside the transaction of one outside of it."""
        return self._inner[inner]

    def check_nowait(self) -> None:
        """Raise ``trio.WouldBlock`` unless a read may be made without awaiting."""
        with self._alone():
            if self._waits or self._database.database.overlay.gated:
                raise trio.WouldBlock
            if self._inner.wants_snapshot:
                snapshot = self._database.writer().snapshot_nowait()
                if snapshot is None:
                    raise trio.WouldBlock
                self._inner.read_from(snapshot)

    async def read(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which reads a few keys."""
        with self._alone():
            if self._waits:
                return await self._wait(work)
            if self._inner.wants_snapshot:
                self._inner.read_from(await self._database.take_snapshot())
            return await self._database.read(work)

    async def scan(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which may read a lot."""
        with self._alone():
            return await (self._wait(work) if self._waits else self._workers.run(work))

    async def change(self, inner: SyncMap, work: Callable[[SyncMap], T], *, scans: bool) -> T:
        """Return ``work(map)`` of the map inside a transaction: this one."""
        return await (self.scan if scans else self.read)(lambda: work(inner))

    async def update_many(self, inner: SyncMap, pairs: list[tuple[Any, Any]]) -> None:
        """Set many keys, all or none."""
        await self.scan(lambda: inner.update_many(pairs))

    async def _wait(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which may wait for locks."""
        self._inner.resume()
        return await self._workers.run_waiting(work, self._inner.interrupt)


class Attempt:
    """One attempt: ``async with attempt as tx``.  Swallows an error that the next may cure."""

    def __init__(
        self, attempts: Attempts, transaction: Transaction, number: int, *, last: bool
    ) -> None:
        self._attempts = attempts
        self._transaction = transaction
        self._number = number
        self._last = last

    async def __aenter__(self) -> Transaction:
        """Return the transaction of this attempt."""
        self._attempts.entered = True
        return await self._transaction.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Commit or roll back; tell whether the error is for the next attempt."""
        try:
            await self._transaction.__aexit__(kind, error, trace)
        except TidelogError as failure:
            if self._ends(failure):
                raise
            error = failure
        again = isinstance(error, TidelogError) and not self._ends(error)
        self._attempts.done = not again
        return again

    def _ends(self, error: TidelogError) -> bool:
        """Tell whether an error ends the loop."""
        if error.retryable and self._last:
            tell_attempts(error, self._number)
        return self._last or not error.retryable


class Attempts(AsyncIterator[Attempt]):
    """The attempts of one loop: ends after the one that commits; the last one raises."""

    def __init__(
        self, database: Database, count: int, deadline: float | None, options: dict[str, Any]
    ) -> None:
        self.done = False
        self.entered = False
        self._database = database
        self._options = options
        self._count = checked_count(count)
        self._number = 0
        self._plan: Plan | None = None
        """That of the newest attempt."""
        self._end: float | None = None
        if deadline is not None:
            self._end = database.database.now() + transactions.checked_seconds("deadline", deadline)

    async def __anext__(self) -> Attempt:
        """Pause, and return the next attempt."""
        if self._plan is not None:
            if not self.entered:
                raise not_entered("async with")
            if self.done or self._plan.last:
                raise StopAsyncIteration
            pause = self._database.writer().random.uniform(0.0, self._plan.pause)
            await trio.sleep(pause)
        self._number += 1
        left = None
        if self._end is not None:
            left = max(self._end - self._database.database.now(), 0.0)
        self._plan = plan(self._number, self._count, left, self._options)
        # Done unless the attempt says otherwise: an error that it does not swallow ends the loop.
        self.done, self.entered = True, False
        transaction = self._database.transaction(deadline=left, **self._plan.options)
        return Attempt(self, transaction, self._number, last=self._plan.last)


class Snapshot:
    """The whole store as it was at one moment; made by ``db.snapshot``, used in ``async with``."""

    def __init__(
        self, database: Database, take: Callable[[], Awaitable[snapshots.Snapshot]]
    ) -> None:
        self._database = database
        self._take = take
        self._inner: snapshots.Snapshot | None = None

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show position and state."""
        return f"<aio {self._inner!r}>" if self._inner else "<aio Snapshot not taken yet>"

    @property
    def position(self) -> int:
        """The position in the log up to which the snapshot has everything."""
        return self._taken().position

    def __getitem__(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is in this snapshot; ``UsageError`` for a foreign one."""
        check_home(mapping, self.home)

        async def bind() -> SyncMap:
            return self._taken()[await mapping.bound()]

        return Map(mapping.name, self, bind)

    @property
    def home(self) -> Home:
        """The opening of the store, to which its maps belong."""
        return self._database.home

    def _taken(self) -> snapshots.Snapshot:
        if self._inner is None:
            raise UsageError("a snapshot is taken by its `async with` block")
        return self._inner

    async def __aenter__(self) -> Snapshot:
        """Take the snapshot."""
        if self._inner is None:
            self._inner = await self._take()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close the snapshot."""
        self.close()

    def close(self) -> None:
        """Let go of what the snapshot holds; closing twice is fine."""
        if self._inner is not None:
            self._inner.close()

    # -------------------------------------------------------------- session of its maps

    def getter(self, inner: SyncMap) -> Getter:
        """Return an async function from key and default to value."""

        async def get(key: Any, default: Any) -> Any:
            return await self._database.read(lambda: inner.get(key, default))

        return get

    def putter(self, inner: SyncMap) -> Putter:
        """Return an async function that refuses to write."""

        async def refuse(key: bytes, value: bytes | None) -> None:
            self._taken().set_many(inner.namespace, [(key, value)])

        return refuse

    def rewriter(self, inner: SyncMap) -> Rewriter:
        """Return an async function that refuses to write."""

        async def refuse(key: bytes, decide: Decide) -> Any:
            return self._taken().rewriter(inner.namespace)(key, decide)

        return refuse

    async def pop_first(self, inner: SyncMap) -> Pair | None:
        """Refuse to write."""
        return self._taken().pop_first(inner.namespace)

    def check_nowait(self) -> None:
        """Raise ``trio.WouldBlock`` unless a read may be made without awaiting."""
        self._database.check_nowait()

    async def read(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which reads a few keys."""
        return await self._database.read(work)

    async def scan(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which may read a lot."""
        return await self._database.workers.run(work)

    async def change(self, inner: SyncMap, work: Callable[[SyncMap], T], *, scans: bool) -> T:
        """Refuse to write."""
        return work(inner)

    async def update_many(self, inner: SyncMap, pairs: list[tuple[Any, Any]]) -> None:
        """Refuse to write."""
        inner.update_many(pairs)
