"""The store as its user holds it: open, transact, snapshot, close.

Invariants:

- One handle writes: the directory's lock is held from before the first look to the very end.
- Nothing is served before recovery has ended and its tail is durable.
- After ``close`` every call raises ``ClosedError``, after a fork ``ForkedError`` in the child.

Left out: how each part works: commits (``committer``), background work (``maintenance``), outcomes
(``known_outcomes``), the end (``ending``).
"""

from __future__ import annotations

import logging
import os
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

from ...affinity.errors import (
    TidelogError,
)
from ..codecs import registry as codecs
from ..commit.outcomes import Outcome, check_receipt_home
from ..store.place import place_of
from ..store.statistics import Statistics, collect
from ..system.disk_errors import translated_disk
from .attempts import ATTEMPTS, Attempt, attempts as make_attempts, run
from .choices import Durability, Isolation, Mode, TransactionOptions
from .maps import Map, map_of
from .pickling import pickled, shared
from .session import StoreSession
from .snapshots import Snapshot
from .transaction_session import TransactionSession
from .transactions import Transaction

if TYPE_CHECKING:
    from ..upkeep.backup import BackupReport
    from .read_only import ReadOnlyDatabase
    from .read_session import ReadSession

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
A = TypeVarTuple("A")

log = logging.getLogger("tidelog.store")


class Database:
    """An open store; made by ``tidelog.open``.  May be shared by threads; its transactions may not.

    Use it in a ``with`` block, or ``close`` it.  If nobody refers to it any more, nor to a map,
    snapshot, transaction or iteration of it, it lets go of the store with a ``ResourceWarning``.
    """

    def __init__(self, session: StoreSession) -> None:
        self.path = session.path
        self.durability = session.durability
        self.partitions = session.partitions
        self.read_only = False
        self._session = session
        self._store = session.store
        session.face = weakref.ref(self)

    __reduce_ex__ = pickled
    __copy__ = __deepcopy__ = shared

    def __repr__(self) -> str:
        """Show path, state and position."""
        state = "closed" if self._session.open_state.closed else self.durability
        return f"<Database {self.path!r} {state} position={self._store.writer.position}>"

    def _repr_html_(self) -> str:
        """Show path, state, and maps with their codecs, in a notebook."""
        from .html import store_as_html

        return store_as_html(self)

    # -------------------------------------------------------------- maps

    @overload
    def map(
        self,
        name: str,
        *,
        key: codecs.ValueCodec[K],
        value: codecs.ValueCodec[V],
        create: bool = True,
    ) -> Map[K, V]: ...
    @overload
    def map(
        self,
        name: str,
        *,
        key: codecs.ValueCodec[K],
        value: None = None,
        create: bool = True,
    ) -> Map[K, Any]: ...
    @overload
    def map(
        self,
        name: str,
        *,
        key: None = None,
        value: codecs.ValueCodec[V],
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
        key: codecs.ValueCodec[Any] | None = None,
        value: codecs.ValueCodec[Any] | None = None,
        create: bool = True,
    ) -> Map[Any, Any]:
        """Return the map ``name``, making it if there is none.

        Without codecs those recorded at its first use hold (``bytes`` for a new map); other ones
        are a ``CodecError``.  With ``create=False`` a map that is not there is a ``NotFoundError``.
        """
        self._check_open()
        return map_of(self._session.catalog.map(name, key, value, create=create), self._session)

    def maps(self) -> list[str]:
        """Return the names of all maps, sorted."""
        self._check_open()
        return self._session.catalog.names()

    def drop(self, name: str) -> None:
        """Remove a map and everything in it; ``NotFoundError`` if there is none.

        Its space is given back at the next checkpoint.  Handles of the map stop working, and
        transactions that wrote to it, or read it at level ``serializable``, do not commit any more
        (``NotFoundError``); snapshots that were taken before still show it.  It waits for
        pessimistic transactions with locks in the map, up to ``lock_timeout`` of the store
        (``LockTimeoutError``).
        """
        self._session.check_writable()
        self._session.inside.check_change(get_ident(), f"dropping the map {name!r}")
        self._session.catalog.drop(name, self._session.lock_timeout)

    def rename(self, old: str, new: str) -> None:
        """Give a map another name; its handles keep working."""
        self._session.check_writable()
        self._session.inside.check_change(get_ident(), f"renaming the map {old!r}")
        self._session.catalog.rename(old, new)

    def attach(self, directory: str | os.PathLike[str], name: str | None = None) -> Map[Any, Any]:
        """Make the load in a directory a new map, called ``name`` or as the load says; return it.

        The rows go straight into the data file, whatever their number, while others read and
        write; they become visible all at once, durable.  The directory is only read.  Raises
        ``UsageError`` if there is such a map or the load is for other partitions,
        ``NotFoundError``, ``CodecError``, ``CorruptDataError``, ``DiskError``, ``DiskFullError``;
        nothing of the load is left in the store then.
        """
        session = self._session
        session.check_writable()
        session.inside.check_change(get_ident(), "attaching a load")
        place = place_of(directory, "the path of a load")
        with session.attaching, translated_disk(f"attaching the load in {place}"):
            from ..upkeep.attaching import attach

            namespace = attach(session.store, session.catalog, place, name, session.check_writable)
        return map_of(namespace, session)

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
        """Begin a transaction; use it in a ``with`` block.

        ``durability`` is that of the store by default.  ``id`` (16 bytes) makes a retry under the
        same id apply at most once.  ``tag`` is text for the log.  ``deadline`` and
        ``lock_timeout`` are in seconds from now.  In the block a write that does not go through
        ``tx[map]`` is a ``UsageError``, unless ``plain_writes`` says that it is meant.
        """
        self._check_open()
        inner = TransactionSession(
            self._session, mode, isolation, durability, id, tag, deadline, lock_timeout, False,
            plain_writes,
        )  # fmt: skip  # positional: as keywords they would cost as much again
        return Transaction(inner)

    def run(
        self,
        work: Callable[[Transaction, *A], T],
        *args: *A,
        attempts: int = ATTEMPTS,
        deadline: float | None = None,
        **options: Unpack[TransactionOptions],
    ) -> T:
        """Run ``work(tx, *args)`` in a transaction and commit; return what it returned.

        Runs it again, up to ``attempts`` times and ``deadline`` seconds in all, after errors that
        are ``retryable``.  ``options`` are those of ``transaction``.
        """
        self._check_open()
        return run(make_attempts(self._session, attempts, deadline, options), work, *args)

    def attempts(
        self,
        attempts: int = ATTEMPTS,
        *,
        deadline: float | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Iterator[Attempt]:
        """Yield attempts: ``for attempt in db.attempts(): with attempt as tx: ...``.

        The loop ends after the attempt that commits; the last one raises what went wrong.
        """
        self._check_open()
        return make_attempts(self._session, attempts, deadline, options)

    # -------------------------------------------------------------- outcomes

    def new_id(self) -> bytes:
        """Return a fresh transaction id, for ``transaction(id=...)``.

        It carries its time, so that ``outcome`` can tell for long that nothing was committed under
        it: of other ids that is known only as long as the whole log is there.
        """
        return self._session.outcomes.new_id()

    def outcome(self, tx_id: bytes, *, home: int | None = None) -> Outcome:
        """Tell what became of a transaction.

        ``committed``, ``rolled_back`` (it never took effect), ``pending`` (on its way in another
        thread, or a sync failed: the next open will know), or ``too_old`` (the log that would tell
        is gone).  ``home`` is that of its receipt, for programs that serve clusters, too: a store
        finds its transactions without.
        """
        self._check_open()
        check_receipt_home(home, self.partitions)
        return self._session.outcomes.outcome(tx_id)

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> Snapshot:
        """Return the whole store as it is now; close it, or use it in a ``with`` block."""
        return Snapshot(self._session.snapshot())

    # -------------------------------------------------------------- maintenance

    def checkpoint(self) -> int:
        """Carry all updates into the data file now; return the position up to which it has them.

        Everything committed before the call is durable when it returns.
        """
        self._check_open()
        return self._session.maintenance.checkpoint("asked")

    def sync(self) -> int:
        """Make every commit so far durable; return the position up to which the log is."""
        self._check_open()
        return self._store.committer.sync()

    def backup(self, directory: str | os.PathLike[str], *, verify: bool = True) -> BackupReport:
        """Copy the store, as it is now, into a directory that does not exist yet or is empty.

        Others read and write meanwhile; everything committed before the call is in the copy.
        ``verify`` opens the copy and checks all of it, which takes a while.  Raises
        ``UsageError``, ``DiskError``, ``DiskFullError``, ``CorruptDataError``.
        """
        self._check_open()
        place = place_of(directory)
        pins = self._store.keeper.pins
        pin = pins.set(f"backup {self.new_id().hex()[-8:]}", 0)
        try:
            with translated_disk(f"the backup to {place}"):
                from ..upkeep.backup import back_up, source_of

                source = source_of(self._store, self.maps(), pin.move_to)
                return back_up(source, place, verify=verify)
        finally:
            pins.release(pin)

    def statistics(self) -> Statistics:
        """Return how the store is doing."""
        self._check_open()
        live = [s for s in self._store.snapshots if s.layers() is not None]
        oldest = max((self._session.now() - snapshot.began for snapshot in live), default=None)
        with translated_disk("taking statistics"):
            return collect(self._store, len(live), oldest)

    # -------------------------------------------------------------- end

    def _check_open(self) -> None:
        self._session.open_state.check()

    def abandon(self) -> None:
        """Let go of the store as a crash would: no checkpoint, no mark of a clean end.

        For tests of what a program makes of a crash; nothing that was acknowledged is lost.
        """
        self._session.abandon()

    def close(self) -> None:
        """Make everything durable, take a checkpoint, and let go of the store.

        Closing twice is fine, and what an interrupt left undone is done then.  Open snapshots and
        transactions end.  If the disk fails, what was acknowledged as durable still is, the store
        is let go of, and the error is raised; if it says so, all that was committed is durable.
        """
        self._session.close()

    def __enter__(self) -> Database:
        """Return the database."""
        self._check_open()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Close the store; what has ended the block is not hidden by an error of closing."""
        try:
            self.close()
        except TidelogError as failure:
            if error is None:
                raise
            event = {"event": "store.close_failed"}
            path = self._session.path
            log.error(
                "store.close_failed: Tidelog: closing the store %s failed: %s",
                path,
                failure,
                extra=event,
            )


@overload
def session_of(database: Database) -> StoreSession: ...
@overload
def session_of(database: ReadOnlyDatabase) -> ReadSession: ...
def session_of(database: Database | ReadOnlyDatabase) -> StoreSession | ReadSession:
    """Return what is behind a database, for the parts of Tidelog that work in it."""
    return database._session
