"""The store for the tasks of a loop: the same names as ``tidelog.open``'s, awaited.

    async with aio.open("shop.tl") as db:
        stock = db.map("stock", key=Str, value=Msgpack)
        await stock.set("apples", 3)

The store beneath is a synchronous one; this module decides where its work runs.  Commits go
through one thread (``log_thread``), all else that may block through worker threads
(``workers``), and a read of a few keys runs in the loop, where it may fault a page in.

Invariants:

- Nothing that syncs, scans, checkpoints or waits for a lock runs in the loop; while the data file
  grows no read does.
- A call that is cancelled had no effect; one that returns had all of it.
- Every call checks for cancellation.  Those that commit, scan or maintain are full checkpoints;
  of the others one in ``READS_PER_CHECKPOINT`` is, counted over the store.
- After ``aclose``, in another thread and in another loop every call raises a ``UsageError``.

Left out: what maps do (``maps``, ``beneath``, ``plain``), transactions, attempts and snapshots.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from ...affinity.errors import ReadOnlyError, UsageError
from ..api import database as databases, open as opens, snapshots
from ..api.attempts import ATTEMPTS, check_callable
from ..api.choices import Durability, Isolation, Mode, choice
from ..api.database import session_of
from ..api.inside import Blocks
from ..api.session import StoreSession
from ..api.transaction_session import TransactionSession
from ..codecs import registry as codecs_module
from ..commit.entries import Commit, Receipt
from ..data.namespaces import check_name, not_copied
from ..system.environment import Environment
from ..system.production import production
from .attempts import Attempt, Attempts
from .beneath import Beneath, SyncMap
from .log_thread import LogThread
from .loops import Loop, wrong_loop
from .maps import Getter, Items, Map
from .plain import Plain
from .running import running_loop, would_block
from .snapshots import Snapshot
from .transactions import Transaction
from .waiting import Once
from .workers import Workers, in_thread

if TYPE_CHECKING:
    from ..api.read_only import ReadOnlyDatabase
    from ..api.read_session import ReadSession, ReadStatistics
    from ..commit.outcomes import Outcome
    from ..store.statistics import Statistics
    from ..upkeep.backup import BackupReport

__all__ = [
    "Attempt",
    "Attempts",
    "Database",
    "Items",
    "Map",
    "Reads",
    "Snapshot",
    "Transaction",
    "open",
    "open_with",
]

Reads = Literal["inline", "thread"]

READS_PER_CHECKPOINT = 64
"""Reads in the loop, of all tasks, after which one lets the others run."""

T = TypeVar("T")

_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()


class Database:
    """An open store; made by ``open``.  May be shared by the tasks of its loop."""

    def __init__(
        self, database: databases.Database | ReadOnlyDatabase, loop: Loop, reads: Reads
    ) -> None:
        self.loop = loop
        self.database = database
        """The synchronous store beneath, which threads may share; ``aclose`` closes it."""
        self.path = database.path
        self._beneath: StoreSession | ReadSession = session_of(database)
        self.home = self._beneath.home
        self.read_only = database.read_only
        self.workers = Workers(database.path, loop, self._beneath.limits.lock_places)
        self._inline = reads == "inline"
        self._reads = 0
        self.inside = Blocks()
        self._log = None if database.read_only else LogThread(self.writer(), loop)
        self._closed: Once | None = None
        _open_databases.add(self)

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show the store beneath."""
        return f"<aio {self.database!r}>"

    def writer(self) -> StoreSession:
        """Return the store beneath if it can be written, else raise ``ReadOnlyError``."""
        if self.read_only:
            raise ReadOnlyError(
                f"{self.path} is open for reading only", hint="Open it without `read_only=True`."
            )
        return cast(StoreSession, self._beneath)

    def _handle(self) -> databases.Database:
        """Return the handle of the store beneath if it can be written; raises as ``writer``."""
        self.writer()
        return cast(databases.Database, self.database)

    # -------------------------------------------------------------- maps

    def map(
        self,
        name: str,
        *,
        key: codecs_module.ValueCodec[Any] | None = None,
        value: codecs_module.ValueCodec[Any] | None = None,
        create: bool = True,
    ) -> Map[Any, Any]:
        """Return the map ``name``, which is made if there is none, when it is first used.

        That is also when a ``CodecError`` comes, and with ``create=False`` a ``NotFoundError``;
        ``await map.ensure()`` does it now.
        """
        self.workers.check()
        check_name(name)
        make = partial(self.database.map, name, key=key, value=value, create=create)

        async def bind() -> Beneath:
            mapping = await self.workers.run(make)
            return Beneath(mapping, self) if self._log is None else Plain(mapping, self, self._log)

        return Map(name, self.home, bind)

    def maps(self) -> list[str]:
        """Return the names of all maps, sorted."""
        self.workers.check()
        return self.database.maps()

    async def drop(self, name: str) -> None:
        """Remove a map and everything in it; ``NotFoundError`` if there is none."""
        self.inside.check_change(self.loop.task(), f"dropping the map {name!r}")
        await self.workers.run(partial(self._handle().drop, name))

    async def rename(self, old: str, new: str) -> None:
        """Give a map another name; its handles keep working."""
        self.inside.check_change(self.loop.task(), f"renaming the map {old!r}")
        await self.workers.run(partial(self._handle().rename, old, new))

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
        """Return a transaction for an ``async with`` block; see ``tidelog.Database.transaction``.

        The reads and writes of a pessimistic one run in a worker thread, as they may wait.  A
        plain write is refused in the task that is in the block; others are free.
        """
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
        return Transaction(
            self, inner, pessimistic=mode == "pessimistic", plain_writes=plain_writes
        )

    async def run(
        self,
        work: Callable[..., Awaitable[T]],
        *args: Any,
        attempts: int = ATTEMPTS,
        deadline: float | None = None,
        **options: Any,
    ) -> T:
        """Run ``await work(tx, *args)`` in a transaction and commit; return what it returned.

        Runs it again, up to ``attempts`` times and ``deadline`` seconds in all, after errors that
        are ``retryable``.  ``options`` are those of ``transaction``.
        """
        check_callable(work)
        async for attempt in self.attempts(attempts, deadline=deadline, **options):
            async with attempt as tx:
                running = work(tx, *args)
                if not isinstance(running, Awaitable):
                    raise UsageError(
                        f"{work!r} is not an async function",
                        hint="Give one that is made with `async def`, and does not `yield`.",
                    )
                result = await running
                await tx.commit()
                return result
        raise AssertionError("the last attempt neither committed nor raised")

    def attempts(
        self, attempts: int = ATTEMPTS, *, deadline: float | None = None, **options: Any
    ) -> Attempts:
        """Yield attempts: ``async for attempt in db.attempts(): async with attempt as tx: ...``."""
        self.workers.check()
        self.writer()
        return Attempts(self, attempts, deadline, options)

    async def commit(self, commit: Commit) -> Receipt:
        """Commit through the log thread; what ``aio`` itself builds on."""
        assert self._log is not None
        await self._log.commit(commit)
        if commit.error is not None:
            raise commit.error
        assert commit.receipt is not None
        return commit.receipt

    def new_id(self) -> bytes:
        """Return a fresh transaction id, for ``transaction(id=...)``."""
        return self._handle().new_id()

    async def outcome(self, tx_id: bytes) -> Outcome:
        """Tell what became of a transaction; see ``tidelog.Database.outcome``."""
        return await self.workers.run(partial(self._handle().outcome, tx_id))

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> Snapshot:
        """Return the whole store as it is when the ``async with`` block begins."""
        self.workers.check()
        return Snapshot(self, self.take_snapshot)

    async def take_snapshot(self) -> snapshots.Snapshot:
        """Return a synchronous snapshot: at once if that is quick, else from a worker thread."""
        self.workers.check()
        await self.pace()
        if not self.read_only:
            snapshot = self.writer().snapshot_nowait()
            if snapshot is not None:
                return snapshot
        return await self.workers.run(self.database.snapshot)

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

            async def get(key: Any, default: Any) -> Any:
                return await self.workers.run(partial(read, key, default))

            return get

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

    # -------------------------------------------------------------- maintenance

    async def checkpoint(self) -> int:
        """Carry all updates into the data file; return the position up to which it has them."""
        return await self.workers.run(self._handle().checkpoint)

    async def sync(self) -> int:
        """Make every commit so far durable; return the position up to which the log is."""
        return await self.workers.run(self._handle().sync)

    async def backup(
        self, directory: str | os.PathLike[str], *, verify: bool = True
    ) -> BackupReport:
        """Copy the store, as it is now, into a directory; see ``tidelog.Database.backup``."""
        return await self.workers.run(partial(self._handle().backup, directory, verify=verify))

    async def attach(
        self, directory: str | os.PathLike[str], name: str | None = None
    ) -> Map[Any, Any]:
        """Make the load in a directory a new map; see ``tidelog.Database.attach``."""
        self.inside.check_change(self.loop.task(), "attaching a load")
        attached = await self.workers.run(partial(self._handle().attach, directory, name))
        return self.map(attached.name)

    async def refresh(self) -> None:
        """Show the newest state, of a store that is open for reading; others always show it."""
        if self.read_only:
            await self.workers.run(cast("ReadOnlyDatabase", self.database).refresh)
        else:
            await self.loop.checkpoint()

    async def statistics(self) -> Statistics | ReadStatistics:
        """Return how the store is doing; looks at its files."""
        return await self.workers.run(self.database.statistics)

    # -------------------------------------------------------------- end

    def forked(self) -> None:
        """In the child of a fork: let every later call raise ``ForkedError``."""
        self.workers.closed = True
        self.workers.refusal = self._beneath.forked_error
        if self._log is not None:
            self._log.forked()

    async def aclose(self) -> None:
        """Let what is being committed end, take a checkpoint, and let go of the store.

        Closing twice is fine.  It cannot be cancelled: see ``tidelog.Database.close`` for what
        it promises.
        """
        if self.workers.refusal == self._beneath.forked_error:
            return
        if not self.loop.runs_here():
            raise wrong_loop()
        if self._closed is not None:
            await self._closed.wait()
            return
        self._closed = Once(self.loop)
        self.workers.closed = True
        try:
            if self._log is not None:
                await self._log.stop()
            await self.workers.close()
            await in_thread(self.loop, self.database.close)
        finally:
            self._closed.come()


def open(
    path: str | os.PathLike[str],
    *,
    partitions: int | None = None,
    durability: Durability = "always",
    read_only: bool = False,
    create: bool = True,
    codecs: Iterable[Any] = (),
    reads: Reads = "inline",
    **limits: Any,
) -> AbstractAsyncContextManager[Database]:
    """Open a store for the tasks of this loop; leaving the ``async with`` block closes it.

    ``reads``: where single reads run.  ``inline``, in the loop, costs a microsecond if the data
    is in memory, and stops the loop for a disk read if it is not; ``thread`` costs fifty and
    never stops it.  All else is as in ``tidelog.open``.  Opening and closing run in a worker
    thread, and cannot be cancelled: a recovery goes on to its end.
    """
    return open_with(
        production(),
        path,
        partitions=partitions,
        durability=durability,
        read_only=read_only,
        create=create,
        codecs=codecs,
        reads=reads,
        **limits,
    )


@asynccontextmanager
async def open_with(
    environment: Environment,
    path: str | os.PathLike[str],
    *,
    reads: Reads = "inline",
    **options: Any,
) -> AsyncIterator[Database]:
    """Open a store in a given environment: ``open`` with another disk, clock or data file."""
    choice("reads", reads, Reads)
    loop = running_loop()
    await loop.checkpoint_if_cancelled()
    opening = partial(opens.open_with, environment, path, **options)
    database = Database(await in_thread(loop, opening), loop, reads)
    try:
        yield database
    finally:
        await database.aclose()


def _after_fork() -> None:
    for database in list(_open_databases):
        database.forked()


os.register_at_fork(after_in_child=_after_fork)
