"""The store for the tasks of a loop: the same names as ``tidelog.open``'s, awaited.

    async with aio.open("shop.tl") as db:
        stock = db.map("stock", key=Str, value=Msgpack)
        await stock.set("apples", 3)

Left out: what is behind it (``session``), what maps do (``maps``, ``beneath``, ``plain``),
transactions, attempts and snapshots.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, cast, overload

from ..api import database as databases, open as opens
from ..api.attempts import ATTEMPTS
from ..api.choices import Durability, Isolation, Mode, TransactionOptions, choice
from ..codecs import registry as codecs_module
from ..data.namespaces import check_name, not_copied
from ..store.options import GivenOptions
from ..system.environment import Environment
from ..system.production import production
from .attempts import Attempt, Attempts
from .beneath import Beneath
from .loops import Loop
from .maps import Items, Map
from .running import running_loop
from .session import LoopSession, Reads
from .snapshots import Snapshot
from .transactions import Transaction
from .workers import in_thread

if TYPE_CHECKING:
    from ..api.read_only import ReadOnlyDatabase
    from ..api.read_session import ReadStatistics
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
    "memory",
    "open",
    "open_with",
]

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
A = TypeVarTuple("A")


class Database:
    """An open store; made by ``open``.  May be shared by the tasks of its loop."""

    def __init__(
        self, database: databases.Database | ReadOnlyDatabase, loop: Loop, reads: Reads
    ) -> None:
        self.database = database
        """The synchronous store beneath, which threads may share; ``aclose`` closes it."""
        self.path = database.path
        self.read_only = database.read_only
        self._session = LoopSession(database, loop, reads)

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show the store beneath."""
        return f"<aio {self.database!r}>"

    # -------------------------------------------------------------- maps

    @overload
    def map(
        self,
        name: str,
        *,
        key: codecs_module.ValueCodec[K],
        value: codecs_module.ValueCodec[V],
        create: bool = True,
    ) -> Map[K, V]: ...
    @overload
    def map(
        self,
        name: str,
        *,
        key: codecs_module.ValueCodec[K],
        value: None = None,
        create: bool = True,
    ) -> Map[K, Any]: ...
    @overload
    def map(
        self,
        name: str,
        *,
        key: None = None,
        value: codecs_module.ValueCodec[V],
        create: bool = True,
    ) -> Map[Any, V]: ...
    @overload
    def map(
        self, name: str, *, key: None = None, value: None = None, create: bool = True
    ) -> Map[Any, Any]: ...
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
        session = self._session
        session.workers.check()
        check_name(name)
        make = partial(self.database.map, name, key=key, value=value, create=create)

        async def bind() -> Beneath:
            return session.backing(await session.workers.run(make))

        return Map(name, session.home, bind)

    def maps(self) -> list[str]:
        """Return the names of all maps, sorted."""
        self._session.workers.check()
        return self.database.maps()

    async def drop(self, name: str) -> None:
        """Remove a map and everything in it; ``NotFoundError`` if there is none."""
        self._session.check_change(f"dropping the map {name!r}")
        await self._session.workers.run(partial(self._session.handle().drop, name))

    async def rename(self, old: str, new: str) -> None:
        """Give a map another name; its handles keep working."""
        self._session.check_change(f"renaming the map {old!r}")
        await self._session.workers.run(partial(self._session.handle().rename, old, new))

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
        return self._session.transaction(
            mode,
            isolation=isolation,
            durability=durability,
            id=id,
            tag=tag,
            deadline=deadline,
            lock_timeout=lock_timeout,
            plain_writes=plain_writes,
        )

    async def run(
        self,
        work: Callable[[Transaction, *A], Awaitable[T]],
        *args: *A,
        attempts: int = ATTEMPTS,
        deadline: float | None = None,
        **options: Unpack[TransactionOptions],
    ) -> T:
        """Run ``await work(tx, *args)`` in a transaction and commit; return what it returned.

        Runs it again, up to ``attempts`` times and ``deadline`` seconds in all, after errors that
        are ``retryable``.  ``options`` are those of ``transaction``.
        """
        return await self._session.run(work, *args, attempts=attempts, deadline=deadline, **options)

    def attempts(
        self,
        attempts: int = ATTEMPTS,
        *,
        deadline: float | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Attempts:
        """Yield attempts: ``async for attempt in db.attempts(): async with attempt as tx: ...``."""
        return self._session.attempts(attempts, deadline=deadline, **options)

    def new_id(self) -> bytes:
        """Return a fresh transaction id, for ``transaction(id=...)``."""
        return self._session.handle().new_id()

    async def outcome(self, tx_id: bytes, *, home: int | None = None) -> Outcome:
        """Tell what became of a transaction; see ``tidelog.Database.outcome``."""
        handle = self._session.handle()
        return await self._session.workers.run(partial(handle.outcome, tx_id, home=home))

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> Snapshot:
        """Return the whole store as it is when the ``async with`` block begins."""
        self._session.workers.check()
        return Snapshot(self._session, self._session.take_snapshot)

    # -------------------------------------------------------------- maintenance

    async def checkpoint(self) -> int:
        """Carry all updates into the data file; return the position up to which it has them."""
        return await self._session.workers.run(self._session.handle().checkpoint)

    async def sync(self) -> int:
        """Make every commit so far durable; return the position up to which the log is."""
        return await self._session.workers.run(self._session.handle().sync)

    async def backup(
        self, directory: str | os.PathLike[str], *, verify: bool = True
    ) -> BackupReport:
        """Copy the store, as it is now, into a directory; see ``tidelog.Database.backup``."""
        return await self._session.workers.run(
            partial(self._session.handle().backup, directory, verify=verify)
        )

    async def attach(
        self, directory: str | os.PathLike[str], name: str | None = None
    ) -> Map[Any, Any]:
        """Make the load in a directory a new map; see ``tidelog.Database.attach``."""
        self._session.check_change("attaching a load")
        attached = await self._session.workers.run(
            partial(self._session.handle().attach, directory, name)
        )
        return self.map(attached.name)

    async def refresh(self) -> None:
        """Show the newest state, of a store that is open for reading; others always show it."""
        if self.read_only:
            await self._session.workers.run(cast("ReadOnlyDatabase", self.database).refresh)
        else:
            self._session.workers.check_all()
            await self._session.loop.checkpoint()

    async def statistics(self) -> Statistics | ReadStatistics:
        """Return how the store is doing; looks at its files."""
        return await self._session.workers.run(self.database.statistics)

    # -------------------------------------------------------------- end

    async def aclose(self) -> None:
        """Let what is being committed end, take a checkpoint, and let go of the store.

        Closing twice is fine.  It cannot be cancelled: see ``tidelog.Database.close`` for what
        it promises.
        """
        await self._session.close()


def open(
    path: str | os.PathLike[str],
    *,
    partitions: int | None = None,
    durability: Durability = "always",
    read_only: bool = False,
    create: bool = True,
    codecs: Iterable[codecs_module.ValueCodec[Any]] = (),
    reads: Reads = "inline",
    **limits: Unpack[GivenOptions],
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


def memory(
    *,
    partitions: int | None = None,
    durability: Durability = "always",
    codecs: Iterable[codecs_module.ValueCodec[Any]] = (),
    **limits: Unpack[GivenOptions],
) -> AbstractAsyncContextManager[Database]:
    """Open a new, empty store without files for the tasks of this loop: ``tidelog.memory``.

    It is gone behind the ``async with`` block.
    """
    making = partial(
        opens.memory, partitions=partitions, durability=durability, codecs=codecs, **limits
    )
    return _opened(making, "inline")


def open_with(
    environment: Environment,
    path: str | os.PathLike[str],
    *,
    partitions: int | None = None,
    durability: Durability = "always",
    read_only: bool = False,
    create: bool = True,
    codecs: Iterable[codecs_module.ValueCodec[Any]] = (),
    reads: Reads = "inline",
    **limits: Unpack[GivenOptions],
) -> AbstractAsyncContextManager[Database]:
    """Open a store in a given environment: ``open`` with another disk, clock or data file."""
    opening = partial(
        opens.open_with,
        environment,
        path,
        partitions=partitions,
        durability=durability,
        read_only=read_only,
        create=create,
        codecs=codecs,
        **limits,
    )
    return _opened(opening, reads)


@asynccontextmanager
async def _opened(
    opening: Callable[[], databases.Database | ReadOnlyDatabase], reads: Reads
) -> AsyncIterator[Database]:
    choice("reads", reads, Reads)
    loop = running_loop()
    await loop.checkpoint_if_cancelled()
    database = Database(await in_thread(loop, opening), loop, reads)
    try:
        yield database
    finally:
        await database.aclose()


def loop_session_of(database: Database) -> LoopSession:
    """Return what is behind a store for tasks, for the parts of Tidelog that work in it."""
    return database._session
