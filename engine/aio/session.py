"""What is behind a store for tasks: where the work of its maps runs, and how it ends.

The store beneath is a synchronous one; this module decides where its work runs.  Commits go
through one thread (``log_thread``), all else that may block through worker threads
(``workers``), and a read of a few keys runs in the loop, where it may fault a page in.

Invariants:

- Nothing that syncs, scans, checkpoints or waits for a lock runs in the loop; while the data file
  grows no read does.
- A call that is cancelled had no effect; one that returns had all of it.
- Every call checks for cancellation.  Those that commit, scan or maintain are full checkpoints;
  of the others one in ``READS_PER_CHECKPOINT`` is, counted over the store.
- After ``close``, in another thread and in another loop every call raises a ``UsageError``.

Left out: what users hold (``database``), what maps do (``maps``, ``beneath``, ``plain``),
transactions and attempts.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, TypeVarTuple, Unpack, cast

from ...affinity.errors import ReadOnlyError
from ..api import database as databases, snapshots
from ..api.attempts import ATTEMPTS
from ..api.choices import Durability, Isolation, Mode, TransactionOptions
from ..api.database import session_of
from ..api.inside import Blocks
from ..api.session import StoreSession
from ..api.transaction_session import TransactionSession
from ..commit.entries import Commit, Receipt
from .attempts import Attempts, run
from .beneath import Beneath, SyncMap
from .log_thread import LogThread
from .loops import Loop, called, wrong_loop
from .maps import Getter
from .plain import Plain
from .running import would_block
from .transactions import Transaction, TransactionPlace
from .waiting import Once
from .workers import Workers, in_thread

if TYPE_CHECKING:
    from ..api.read_only import ReadOnlyDatabase
    from ..api.read_session import ReadSession

Reads = Literal["inline", "thread"]

READS_PER_CHECKPOINT = 64
"""Reads in the loop, of all tasks, after which one lets the others run."""

T = TypeVar("T")
A = TypeVarTuple("A")

_open_sessions: weakref.WeakSet[LoopSession] = weakref.WeakSet()


class LoopSession:
    """An opening of a store for the tasks of one loop."""

    def __init__(
        self, database: databases.Database | ReadOnlyDatabase, loop: Loop, reads: Reads
    ) -> None:
        self.loop = loop
        self.database = database
        self._beneath: StoreSession | ReadSession = session_of(database)
        self.home = self._beneath.home
        self.read_only = database.read_only
        self.workers = Workers(database.path, loop, self._beneath.limits.lock_places)
        self.inside = Blocks()
        self.log = None if database.read_only else LogThread(self.writer(), loop)
        self._inline = reads == "inline"
        self._reads = 0
        self._closed: Once | None = None
        _open_sessions.add(self)

    def writer(self) -> StoreSession:
        """Return the store beneath if it can be written, else raise ``ReadOnlyError``."""
        if self.read_only:
            raise ReadOnlyError(
                f"{self.database.path} is open for reading only",
                hint="Open it without `read_only=True`.",
            )
        return cast(StoreSession, self._beneath)

    def handle(self) -> databases.Database:
        """Return the handle of the store beneath if it can be written; raises as ``writer``."""
        self.writer()
        return cast(databases.Database, self.database)

    def check_change(self, what: str) -> None:
        """Raise ``UsageError`` for a change of the store in a transaction block of this task."""
        self.workers.check()
        self.inside.check_change(self.loop.task(), what)

    def backing(self, mapping: SyncMap) -> Beneath:
        """Return what a map of the store is bound to."""
        return Beneath(mapping, self) if self.log is None else Plain(mapping, self, self.log)

    # -------------------------------------------------------------- transactions

    def transaction(
        self,
        mode: Mode = "optimistic",
        *,
        isolation: Isolation = "serializable",
        durability: Durability | None = None,
        id: bytes | None = None,
        tag: str | None = None,
        deadline: float | None = None,
        lock_timeout: float | None = None,
        plain_writes: bool = False,
    ) -> Transaction:
        """Return a transaction for an ``async with`` block; see ``database``."""
        self.workers.check()
        inner = TransactionSession(
            self.writer(),
            mode=mode,
            isolation=isolation,
            durability=durability,
            id=id,
            tag=tag,
            deadline=deadline,
            lock_timeout=lock_timeout,
            any_thread=True,
        )
        place = TransactionPlace(
            self, inner, pessimistic=mode == "pessimistic", plain_writes=plain_writes
        )
        return Transaction(place)

    async def run(
        self,
        work: Callable[[Transaction, *A], Awaitable[T]],
        *args: *A,
        attempts: int = ATTEMPTS,
        deadline: float | None = None,
        **options: Unpack[TransactionOptions],
    ) -> T:
        """Run ``await work(tx, *args)`` until it commits; see ``database``."""
        tries = self.attempts(attempts, deadline=deadline, **options)
        return await run(tries, work, *args)

    def attempts(
        self,
        attempts: int = ATTEMPTS,
        *,
        deadline: float | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Attempts:
        """Yield attempts; see ``database``."""
        self.workers.check()
        self.writer()
        return Attempts(self, attempts, deadline, options)

    async def commit(self, commit: Commit) -> Receipt:
        """Commit through the log thread; what ``aio`` itself builds on."""
        assert self.log is not None
        await self.log.commit(commit)
        if commit.error is not None:
            raise commit.error
        assert commit.receipt is not None
        return commit.receipt

    async def take_snapshot(self) -> snapshots.SnapshotSession:
        """Return a synchronous snapshot: at once if that is quick, else from a worker thread."""
        self.workers.check()
        await self.pace()
        if not self.read_only:
            snapshot = self.writer().snapshot_nowait()
            if snapshot is not None:
                return snapshot
        return await self.workers.run(self._beneath.snapshot)

    # -------------------------------------------------------------- place of maps

    async def pace(self) -> None:
        """Check for cancellation, and now and then let other tasks run."""
        self._reads += 1
        if self._reads % READS_PER_CHECKPOINT:
            await self.loop.checkpoint_if_cancelled()
        else:
            await self.loop.checkpoint()

    async def read(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which looks at a few keys."""
        if not self._inline:
            return await self.workers.run(work)
        await self.pace()
        self.workers.check()
        if self._beneath.overlay.gated:
            return await self.workers.run(work)
        return work()

    async def scan(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which may take long."""
        return await self.workers.run(work)

    def check_nowait(self) -> None:
        """Raise what ``would_block`` gives unless a read may be made without awaiting."""
        self.workers.check()
        if self._beneath.overlay.gated:
            raise would_block()

    def getter(self, mapping: SyncMap) -> Getter:
        """Return an async function from key and default to value."""
        read, check, overlay = mapping.get, self.workers.check, self._beneath.overlay
        checkpoint = self.loop.checkpoint
        checkpoint_if_cancelled = self.loop.checkpoint_if_cancelled
        if not self._inline:

            @called("Map.get")
            async def get(key: Any, default: Any) -> Any:
                return await self.workers.run(partial(read, key, default))

            return get

        @called("Map.get")
        async def get_inline(key: Any, default: Any) -> Any:
            self._reads += 1
            if self._reads % READS_PER_CHECKPOINT:
                await checkpoint_if_cancelled()
            else:
                await checkpoint()
            check()
            if overlay.gated:
                return await self.workers.run(partial(read, key, default))
            return read(key, default)

        return get_inline

    # -------------------------------------------------------------- end

    def forked(self) -> None:
        """In the child of a fork: let every later call raise ``ForkedError``."""
        self.workers.closed = True
        self.workers.refusal = self._beneath.forked_error
        if self.log is not None:
            self.log.forked()

    async def close(self) -> None:
        """Let what is being committed end, take a checkpoint, and let go of the store.

        Closing twice is fine.  It cannot be cancelled.
        """
        if self.workers.refusal == self._beneath.forked_error:
            return
        if not self.loop.runs_here():
            raise wrong_loop()
        if self._closed is not None:
            await self._closed.wait()
            return
        closed = self._closed = Once(self.loop)
        self.workers.closed = True
        try:
            if self.log is not None:
                await self.log.stop()
            await self.workers.close()
            await in_thread(self.loop, self.database.close)
        except KeyboardInterrupt:
            self._closed = None  # for whoever closes it again
            raise
        finally:
            closed.come()


def _after_fork() -> None:
    for session in list(_open_sessions):
        session.forked()


os.register_at_fork(after_in_child=_after_fork)
