"""Transactions of tasks.

The reads and writes are those of a synchronous transaction; this module decides where they run.
*Optimistic*: in the loop, as far as they are short, and the commit goes through the log thread.
*Pessimistic*: everything runs in a worker thread, since it may wait for a lock.

Cancellation:

- Until its commit is submitted a transaction can be cancelled; it is rolled back then.
- After that the commit goes on to its end; the task learns the outcome, and is cancelled at its
  next checkpoint.  So a ``commit`` that is cancelled had no effect.
- Cancelling a wait for a lock withdraws the request; what is locked stays locked until the end.

A transaction is used by one task at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack, cast

from ...affinity.errors import ClosedError, CommitUnknownError, ForkedError, UsageError
from ..api import snapshots
from ..api.choices import Durability, Isolation, Mode, TransactionOptions
from ..api.inside import Blocks
from ..api.maps import map_of
from ..api.session import StoreSession
from ..api.transaction_session import TransactionSession
from ..commit.entries import Commit, Receipt
from ..commit.lock_manager import LockedError
from ..data.namespaces import Home, Namespace, not_copied
from ..data.operations import KEYS_AT_ONCE, Encoded
from ..data.requests import PutMany, Request, Together
from ..store.data_file_growth import GrowingError
from .beneath import Beneath, SyncMap, WorkPlace
from .loops import Loop, called
from .maps import Getter, Map, backing_of, check_home
from .running import would_block
from .workers import Workers

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
A = TypeVarTuple("A")


class Store(WorkPlace, Protocol):
    """What maps, transactions and snapshots need of the store that they belong to."""

    @property
    def home(self) -> Home:
        """The opening of the store, to which its maps belong."""

    @property
    def loop(self) -> Loop:
        """The loop of the tasks."""

    @property
    def workers(self) -> Workers:
        """The worker threads."""

    @property
    def inside(self) -> Blocks:
        """The tasks that are inside a transaction block."""

    def writer(self) -> StoreSession:
        """Return the store beneath if it can be written, else raise ``ReadOnlyError``."""

    def getter(self, mapping: SyncMap) -> Getter:
        """Return an async function from key and default to value."""

    def transaction(
        self,
        mode: Mode = ...,
        *,
        isolation: Isolation = ...,
        durability: Durability | None = ...,
        id: bytes | None = ...,
        tag: str | None = ...,
        deadline: float | None = ...,
        lock_timeout: float | None = ...,
        plain_writes: bool = ...,
    ) -> Transaction:
        """Return a transaction for an ``async with`` block."""

    async def run(
        self,
        work: Callable[[Transaction, *A], Awaitable[T]],
        *args: *A,
        **options: Unpack[TransactionOptions],
    ) -> T:
        """Run ``await work(tx, *args)`` in a transaction and commit; return what it returned."""

    async def commit(self, commit: Commit) -> Receipt:
        """Commit through the log thread."""

    async def pace(self) -> None:
        """Check for cancellation, and now and then let other tasks run."""

    async def take_snapshot(self) -> snapshots.SnapshotSession:
        """Return a synchronous snapshot."""


class Inside(Beneath):
    """The backing of a map inside a transaction."""

    def __init__(self, mapping: SyncMap, transaction: TransactionPlace) -> None:
        super().__init__(mapping, transaction)
        self._transaction = transaction

    @called("Map.set")
    async def put(self, key: bytes, value: bytes | None, /) -> None:
        """Set an encoded key, or delete it."""
        await self._transaction.put_many(self._mapping._namespace, [(key, value)])

    def answer(self, request: Request) -> Awaitable[Any]:
        """Return the answer to a request of an operation."""
        match request:
            case PutMany(pairs):  # as a read it would take a snapshot
                return self._transaction.put_many(self.namespace, pairs)
            case Together(operation):
                return self.perform(operation())
        return super().answer(request)


class TransactionPlace:
    """What is behind a transaction: where the work of its maps runs, and how it begins and ends."""

    def __init__(
        self,
        store: Store,
        inner: TransactionSession,
        *,
        pessimistic: bool,
        plain_writes: bool = False,
    ) -> None:
        self._store = store
        self._workers = store.workers
        self._inner = inner
        self._waits = pessimistic
        self._begun = False
        self._open = True
        self._busy = False
        self._plain_writes = plain_writes
        self._task: Hashable | None = None

    @property
    def session(self) -> TransactionSession:
        """The synchronous transaction."""
        return self._inner

    def map_inside(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is inside the transaction; ``UsageError`` for a foreign one."""
        check_home(mapping, self._store.home)

        async def bind() -> Inside:
            return self.backing((await backing_of(mapping)).namespace)

        return Map(mapping.name, self._store.home, bind)

    def backing(self, namespace: Namespace) -> Inside:
        """Return the backing of a map inside this transaction."""
        return Inside(self._inner.map_inside(map_of(namespace, self._inner)), self)

    @property
    def is_open(self) -> bool:
        """Whether it has neither been committed nor rolled back."""
        return self._open

    # -------------------------------------------------------------- begin and end

    async def begin(self) -> None:
        """Begin; a pessimistic transaction waits for its turn if many are running."""
        self._workers.check()
        if self._begun:
            raise UsageError("a transaction can be used only once", hint="Begin a new one.")
        if self._waits:
            await self._workers.take_place(self._inner.lock_timeout)
        self._begun = True
        if not self._plain_writes:
            self._task = self._store.loop.task()
            self._store.inside.enter(self._task, self)

    async def end(self, *, failed: bool) -> None:
        """Commit, or roll back if the block raised; after ``commit`` or ``rollback`` do nothing."""
        try:
            if self._open and not failed:
                await self.commit()
        finally:
            if self._task is not None:
                self._store.inside.leave(self._task, self)
            await self.rollback()
            if self._waits:
                self._workers.leave_place()

    async def commit(self) -> Receipt:
        """Make the transaction take effect; return its receipt."""
        with self._alone():
            await self._store.loop.checkpoint_if_cancelled()
            self._open = False
            if self._waits:
                return await self._wait(self._inner.commit)
            receipt = None
            commit = self._inner.prepare()
            try:
                receipt = await self._submit(commit)
                return receipt
            except CommitUnknownError:
                self._inner.in_doubt = True
                raise
            finally:
                self._inner.end(receipt)

    async def _submit(self, commit: Commit | None) -> Receipt:
        if commit is None:
            await self._store.loop.checkpoint()
            return self._store.writer().outcomes.empty_receipt()
        with self._store.writer().outcomes.pending(commit.tx_id):
            try:
                return await self._store.commit(commit)
            except (LockedError, GrowingError):
                await self._workers.take_place(self._inner.lock_timeout)
            try:
                return await self._wait(self._commit_waiting)
            finally:
                self._workers.leave_place()

    def _commit_waiting(self) -> Receipt:
        """Wait for what is in the way, locks or a growing data file, and commit; in a thread."""
        receipt = None
        try:
            receipt = self._store.writer().commit_transaction(self._inner)
            return receipt
        finally:
            self._inner.end(receipt)

    async def rollback(self) -> None:
        """End the transaction without any effect; after its end this does nothing."""
        if not self._open:
            return
        self._open = False
        if self._waits and self._begun:
            try:
                await self._workers.finish(self._inner.rollback)
            except (ClosedError, ForkedError):  # so nobody waits for its locks any more
                self._inner.rollback()
        else:
            self._inner.rollback()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._workers.check()
        if not self._begun:
            raise UsageError(
                "the transaction has not begun", hint="Use it in its `async with` block."
            )
        if self._busy:
            raise UsageError(
                "another task is using the transaction", hint="Begin one in each task."
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    # -------------------------------------------------------------- place of its maps

    def check_nowait(self) -> None:
        """Raise what ``would_block`` gives unless a read may be made without awaiting."""
        with self._alone():
            if self._waits:
                raise would_block()
            self._store.check_nowait()
            if self._inner.wants_snapshot:
                snapshot = self._store.writer().snapshot_nowait()
                if snapshot is None:
                    raise would_block()
                self._inner.read_from(snapshot)

    async def read(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which looks at a few keys."""
        with self._alone():
            if self._waits:
                return await self._wait(work)
            if self._inner.wants_snapshot:
                self._inner.read_from(await self._store.take_snapshot())
            return await self._store.read(work)

    async def scan(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which may take long."""
        with self._alone():
            return await (self._wait(work) if self._waits else self._workers.run(work))

    async def put_many(self, namespace: Namespace, pairs: Encoded) -> None:
        """Set or delete encoded keys."""
        work = partial(self._inner.set_many, namespace, pairs)
        with self._alone():
            if self._waits:
                await self._wait(work)
            elif len(pairs) > KEYS_AT_ONCE:
                await self._workers.run(work)
            else:
                await self._store.pace()
                work()

    async def _wait(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which may wait for locks."""
        self._inner.resume()
        return await self._workers.run_waiting(work, self._inner.interrupt)


class KnownTransaction(Protocol):
    """What is known of a transaction; its ``repr`` is what it is doing."""

    @property
    def receipt(self) -> Receipt | None:
        """What the commit left behind."""

    @property
    def in_doubt(self) -> bool:
        """Whether it may have taken effect, or not."""

    @property
    def tx_id(self) -> bytes | None:
        """The id that the caller gave, or the one of the commit."""


class Place(Protocol):
    """What is behind a transaction: of a store here, or of a cluster."""

    @property
    def session(self) -> KnownTransaction:
        """What is known of it."""

    def map_inside(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is inside."""

    async def begin(self) -> None:
        """Begin."""

    async def end(self, *, failed: bool) -> None:
        """Commit, or roll back if the block raised."""

    async def commit(self) -> Receipt:
        """Make it take effect."""

    async def rollback(self) -> None:
        """End it without any effect."""


class Transaction:
    """One attempt at a change of many keys; made by ``db.transaction``, used in ``async with``.

    ``tx[users]`` is the map ``users`` inside the transaction.  Leaving the block commits, an
    exception in it rolls back.
    """

    __slots__ = ("__weakref__", "_place")

    def __init__(self, place: Place) -> None:
        self._place = place

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show what the transaction is doing."""
        return f"<aio {self._place.session!r}>"

    @property
    def receipt(self) -> Receipt | None:
        """What the commit left behind; None before it, and without one."""
        return self._place.session.receipt

    @property
    def tx_id(self) -> bytes | None:
        """The id that the caller gave, or the one of the commit; None before it."""
        return self._place.session.tx_id

    @property
    def in_doubt(self) -> bool:
        """Whether it may have taken effect, or not.

        So it is if the commit raised ``CommitUnknownError``, or in a cluster was cancelled.
        """
        return self._place.session.in_doubt

    def __getitem__(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is inside this transaction; ``UsageError`` for a foreign one."""
        return self._place.map_inside(mapping)

    async def commit(self) -> Receipt:
        """Make the transaction take effect; return its receipt.

        Raises what ``tidelog.Transaction.commit`` does.  Cancelled it had no effect; in a cluster
        it may have.
        """
        return await self._place.commit()

    async def rollback(self) -> None:
        """End the transaction without any effect; after its end this does nothing."""
        await self._place.rollback()

    async def __aenter__(self) -> Transaction:
        """Begin; a pessimistic transaction waits for its turn if many are running."""
        await self._place.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back if the block raised; after ``commit`` or ``rollback`` do nothing."""
        await self._place.end(failed=kind is not None)


def place_behind(transaction: Transaction) -> TransactionPlace:
    """Return what is behind a transaction of a store, for the parts of it that work in it."""
    return cast(TransactionPlace, transaction._place)
