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
import threading
import weakref
from _thread import get_ident
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from mmh3 import hash as murmur3

from ...affinity.errors import (
    DeadlockError,
    TidelogError,
)
from ...affinity.partitions import partitions_of
from ...wal.records import NamespaceRecord
from ..codecs import registry as codecs
from ..commit.entries import Commit, Entry, Receipt
from ..commit.lock_manager import LockedError
from ..commit.outcomes import Outcome
from ..commit.puts import PUT_BYTES_MAX
from ..commit.relaxed import relaxed_setter
from ..data import point_reads as reads
from ..data.decisions import Decide
from ..data.namespaces import OUTCOMES, Home, Namespace, ledger, not_copied
from ..data.overlay import Layer, View
from ..data.scan import Pair, Range
from ..data.updates import FewUpdates, ManyUpdates
from ..store.catalog import Catalog
from ..store.conflicts import Conflicts
from ..store.data_file_growth import GrowingError
from ..store.ending import Ending
from ..store.handles import open_handles, warn_of_lost
from ..store.known_outcomes import KnownOutcomes
from ..store.maintenance import WRITE_BEHIND, Maintenance
from ..store.open_state import OpenState
from ..store.opening import OpenStore
from ..store.place import place_of
from ..store.statistics import Statistics, collect
from ..system.disk_errors import translated_disk
from ..system.forks import free
from .attempts import ATTEMPTS, Attempt, attempts as make_attempts, run
from .inside import Blocks
from .maps import Map, map_of
from .rewrites import Rewrite
from .rewriting import Rewriting
from .snapshots import Snapshot
from .transactions import Durability, Isolation, Mode, Transaction

if TYPE_CHECKING:
    from ..upkeep.backup import BackupReport

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger("tidelog.store")

MERGED_NOWAIT_MAX = 1 << 20
"""Bytes of layers that taking a snapshot may merge where nobody may be kept waiting."""


class Database:
    """An open store; made by ``tidelog.open``.  May be shared by threads; its transactions may not.

    Use it in a ``with`` block, or ``close`` it.  Where nobody refers to it any more, nor to a map,
    snapshot, transaction or iteration of it, it lets go of the store with a ``ResourceWarning``.
    """

    _held = False
    """Whether it has been made as a whole."""

    def __init__(self, store: OpenStore, durability: Durability, given: Sequence[Any]) -> None:
        self.path = store.path
        self.durability = durability
        self.read_only = False
        self.overlay = store.overlay
        self.locks = store.locks
        self.dropped = store.committer.dropped
        self.was_dropped = store.committer.was_dropped
        self.lock_timeout = store.options.lock_timeout
        self.partitions = store.state.partitions
        self.transaction_bytes_max = store.options.transaction_bytes_max
        self.now = store.environment.monotonic
        self.pause = store.environment.wait
        self.random = store.environment.random
        self._store = store
        self._committer = store.committer
        self.home = Home(store.path)
        self.inside = Blocks()
        self.open_state = OpenState(store.path)
        self._catalog = Catalog(store, durability == "always", given, self.home)
        self.conflicts = Conflicts(store, self._catalog.name_of)
        self.outcomes = KnownOutcomes(store)
        self.rewriting = Rewriting(
            cast(Database, weakref.proxy(self)), _call_of(weakref.WeakMethod(self._commit_rewrite))
        )
        self._snapshots = store.snapshots
        self._attaching = threading.Lock()
        self._maintenance = Maintenance(
            store,
            self.open_state,
            write_behind=WRITE_BEHIND if durability == "none" else 0,
            tidy=self.rewriting.let_go,
            sweep=_call_of(weakref.WeakMethod(self.sweep_outcomes)),
        )
        self._ending = Ending(
            store, self.open_state, self._maintenance, sync_lost=durability == "interval"
        )
        store.locks.name_of = self._catalog.name_of
        store.keeper.ids = store.committer.ids
        store.keeper.ids_in_flight = store.committer.ids_in_flight
        store.committer.note_given_id = store.keeper.note_given_id
        store.committer.puts_durable = durability == "always"
        if store.environment.finalizes:
            open_handles.add(self)
        if self._maintenance.unwritten:
            self._maintenance.begin()
        else:
            store.committer.at_first = _call_of(weakref.WeakMethod(self._maintenance.begin))
            store.committer.settle_way()
        self._held = True
        log.info(
            "store.opened path=%s clean=%s",
            self.path,
            store.report.clean,
            extra={"event": "store.opened"},
        )

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show path, state and position."""
        state = "closed" if self.open_state.closed else self.durability
        return f"<Database {self.path!r} {state} position={self._store.writer.position}>"

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
        key: codecs.ValueCodec[Any] | None = None,
        value: codecs.ValueCodec[Any] | None = None,
        create: bool = True,
    ) -> Map[Any, Any]: ...
    def map(
        self,
        name: str,
        *,
        key: codecs.ValueCodec[Any] | None = None,
        value: codecs.ValueCodec[Any] | None = None,
        create: bool = True,
    ) -> Map[Any, Any]:
        """Return the map ``name``, making it where there is none.

        Without codecs those recorded at its first use hold (``bytes`` for a new map); other ones
        are a ``CodecError``.  With ``create=False`` a map that is not there is a ``NotFoundError``.
        """
        self._check_open()
        return map_of(self._catalog.map(name, key, value, create=create), self)

    def ledger(self) -> Map[bytes, bytes]:
        """Return the internal map in which those who repeat their batches note the newest one.

        Written in the transaction of a batch, it tells whether that took effect.
        """
        self._check_open()
        return map_of(ledger(self._store.state.spaces[0], self.home), self)

    def maps(self) -> list[str]:
        """Return the names of all maps, sorted."""
        self._check_open()
        return self._catalog.names()

    def namespace_record(self, number: int) -> NamespaceRecord | None:
        """Return what is recorded about the namespace with an id."""
        return self._catalog.record(number)

    def drop(self, name: str) -> None:
        """Remove a map and everything in it; ``NotFoundError`` where there is none.

        Its space is given back at the next checkpoint.  Handles of the map stop working, and
        transactions that wrote to it, or read it at level ``serializable``, do not commit any more
        (``NotFoundError``); snapshots that were taken before still show it.  It waits for
        pessimistic transactions with locks in the map, up to ``lock_timeout`` of the store
        (``LockTimeoutError``).
        """
        self.check_writable()
        self.inside.check_change(get_ident(), f"dropping the map {name!r}")
        self._catalog.drop(name, self.lock_timeout)

    def rename(self, old: str, new: str) -> None:
        """Give a map another name; its handles keep working."""
        self.check_writable()
        self.inside.check_change(get_ident(), f"renaming the map {old!r}")
        self._catalog.rename(old, new)

    def attach(self, directory: str | os.PathLike[str], name: str | None = None) -> Map[Any, Any]:
        """Make the load in a directory a new map, called ``name`` or as the load says; return it.

        The rows go straight into the data file, whatever their number, while others read and
        write; they become visible all at once, durable.  The directory is only read.  Raises
        ``UsageError`` where there is such a map or the load is for other partitions,
        ``NotFoundError``, ``CodecError``, ``CorruptDataError``, ``DiskError``, ``DiskFullError``;
        nothing of the load is left in the store then.
        """
        self.check_writable()
        self.inside.check_change(get_ident(), "attaching a load")
        place = place_of(directory, "the path of a load")
        with self._attaching, translated_disk(f"attaching the load in {place}"):
            from ..upkeep.attaching import attach

            namespace = attach(self._store, self._catalog, place, name, self.check_writable)
        return map_of(namespace, self)

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
        return Transaction(
            self, mode, isolation, durability, id, tag, deadline, lock_timeout, False, plain_writes
        )  # positional: as keywords they would cost as much again

    def run(
        self,
        work: Callable[..., T],
        *args: Any,
        attempts: int = ATTEMPTS,
        deadline: float | None = None,
        **options: Any,
    ) -> T:
        """Run ``work(tx, *args)`` in a transaction and commit; return what it returned.

        Runs it again, up to ``attempts`` times and ``deadline`` seconds in all, after errors that
        are ``retryable``.  ``options`` are those of ``transaction``.
        """
        self._check_open()
        return run(self, work, attempts, deadline, options, *args)

    def attempts(
        self, attempts: int = ATTEMPTS, *, deadline: float | None = None, **options: Any
    ) -> Iterator[Attempt]:
        """Yield attempts: ``for attempt in db.attempts(): with attempt as tx: ...``.

        The loop ends after the attempt that commits; the last one raises what went wrong.
        """
        self._check_open()
        return make_attempts(self, attempts, deadline, options)

    def commit_transaction(self, transaction: Transaction) -> Receipt:
        """Commit what a transaction wrote; waits for locks that are in the way."""
        self._check_open()
        commit = transaction.to_commit()
        if commit is None:
            return self.outcomes.empty_receipt()
        self.make_room()
        if commit.tx_id is None:
            return self._commit_at_last(transaction, commit)
        with self.outcomes.pending(commit.tx_id):
            return self._commit_at_last(transaction, commit)

    def _commit_at_last(self, transaction: Transaction, commit: Commit) -> Receipt:
        """Commit behind the locks that are in the way, and when the data file has grown."""
        while True:
            try:
                return self._committer.commit(commit)
            except LockedError:
                transaction.lock_writes()
            except GrowingError as error:
                error.gate.wait()
            again = transaction.to_commit()
            assert again is not None
            commit = again

    def commit_group(self, entries: Sequence[Entry]) -> None:
        """Commit several transactions, in order; each gets its receipt or its ``error``."""
        self._check_open()
        self.make_room()
        self._committer.commit_all(entries)

    # -------------------------------------------------------------- outcomes

    def new_id(self) -> bytes:
        """Return a fresh transaction id, for ``transaction(id=...)``.

        It carries its time, so that ``outcome`` can tell for long that nothing was committed under
        it: of other ids that is known only as long as the whole log is there.
        """
        return self.outcomes.new_id()

    def outcome(self, tx_id: bytes) -> Outcome:
        """Tell what became of a transaction.

        ``committed``, ``rolled_back`` (it never took effect), ``pending`` (on its way in another
        thread, or a sync failed: the next open will know), or ``too_old`` (the log that would tell
        is gone).
        """
        self._check_open()
        return self.outcomes.outcome(tx_id)

    def sweep_outcomes(self) -> int:
        """Delete outcomes of given ids that have expired; return how many."""
        with self.snapshot() as snapshot:
            return self.outcomes.sweep(
                snapshot.scan(Range(namespace=OUTCOMES), reverse=False, block=64)
            )

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> Snapshot:
        """Return the whole store as it is now; close it, or use it in a ``with`` block."""
        self._check_open()
        snapshot = Snapshot(self, self._committer.applied_position)
        self._snapshots.add(snapshot)
        return snapshot

    def snapshot_nowait(self) -> Snapshot | None:
        """Return a snapshot if that takes neither waiting nor much work, else None."""
        self._check_open()
        mutex = self._committer.mutex
        if mutex.locked():  # no attempt to take it: an interrupt could come behind that
            return None
        with mutex:
            if self.overlay.newer_bytes > MERGED_NOWAIT_MAX:
                return None
            taken, position = self._taken(), self._committer.applied_position
        snapshot = Snapshot(self, position, taken)
        self._snapshots.add(snapshot)
        return snapshot

    def take_view(self) -> tuple[View, Layer]:
        """Return a view that does not change, and its boundary."""
        with self._committer.mutex:
            return self._taken()

    def _taken(self) -> tuple[View, Layer]:
        committer = self._committer
        committer.check_whole()
        return self.overlay.frozen() if committer.interrupted else self.overlay.snapshot()

    # -------------------------------------------------------------- session of maps

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value: the path of every plain ``get``."""
        return reads.getter(self.overlay, namespace)

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys, checked all at once."""
        found = reads.get_many(self.overlay, namespace, keys)
        if found is None:
            with self.snapshot() as snapshot:
                found = snapshot.get_many(namespace, keys)
        return found

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that commits one update."""
        prefixes, (first, count, _) = namespace.prefixes, namespace.space
        number = namespace.id
        durable = self.durability == "always"
        commit, put = self._committer.commit, self._committer.put
        limit, overlay, state = self._maintenance.limit, self.overlay, self.open_state
        inside = self.inside

        def set_one(key: bytes, value: bytes | None) -> None:
            if inside or state.closed is not None or not namespace.alive:
                self._check_open()
                namespace.check_alive()
                self.check_outside(namespace)
            layers = overlay.view.layers
            if layers[0].bytes >= limit or len(layers) > 1:
                self.make_room()
            partition = first + murmur3(key, 0, False) % count
            full_key = prefixes[partition] + key
            try:
                if value is not None and len(value) <= PUT_BYTES_MAX:
                    put(partition, number, full_key, key, value)
                else:
                    commit(Commit(FewUpdates({full_key: (partition, number, key, value)}), durable))
            except LockedError:
                self._commit_locked(namespace, [(key, value)])

        if durable:
            return set_one
        return relaxed_setter(self._committer, namespace, inside, self.make_room, limit, set_one)

    def check_outside(self, namespace: Namespace) -> None:
        """Raise ``UsageError`` for a plain write in a transaction block of this thread."""
        if self.inside:
            self.inside.check_write(get_ident(), namespace.name)

    def _commit_locked(
        self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]
    ) -> None:
        """Set keys that somebody has locked: wait for the locks, in a transaction."""
        updates = sorted(pairs)
        while True:
            try:
                with self.transaction(
                    "pessimistic", isolation="read_committed", plain_writes=True
                ) as tx:
                    tx.set_many(namespace, updates)
                return
            except DeadlockError:
                # It stood, waiting, in the way of those it waits for: they go first.
                continue

    def set_many(self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Set or delete many encoded keys in one transaction."""
        self._check_open()
        self.check_outside(namespace)
        self.make_room()
        parts = _by_partition(namespace, pairs)
        if not parts:
            return
        updates = ManyUpdates(namespace.id, namespace.prefixes, parts)
        durable = self.durability == "always"
        if not durable:
            self._committer.pass_turn()
        try:
            self._committer.commit(Commit(updates, durable))
        except LockedError:
            self._commit_locked(namespace, chain.from_iterable(map(dict.items, parts.values())))

    def commit_of(
        self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]
    ) -> Commit | None:
        """Return a commit that sets or deletes encoded keys, None where there are none."""
        parts = _by_partition(namespace, pairs)
        if not parts:
            return None
        updates = ManyUpdates(namespace.id, namespace.prefixes, parts)
        return Commit(updates, self.durability == "always")

    def _commit_rewrite(self, rewrite: Rewrite) -> None:
        self._check_open()
        layers = self.overlay.view.layers
        if layers[0].bytes >= self._maintenance.limit or len(layers) > 1:
            self.make_room()
        self._committer.commit_all((rewrite,))

    def rewriter(self, namespace: Namespace) -> Callable[[bytes, Decide], Any]:
        """Return a function that carries out a decision about an encoded key, in one step."""
        return self.rewriting.rewriter(namespace)

    def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None where there is none."""
        return self.rewriting.pop_first(namespace)

    def atomically(self, namespace: Namespace, work: Callable[[Map[Any, Any]], T]) -> T:
        """Run ``work`` with the map inside a transaction, until it commits."""
        self._check_open()
        self.check_outside(namespace)
        mapping: Map[Any, Any] = map_of(namespace, self)
        return self.run(lambda tx: work(tx[mapping]), plain_writes=True)

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int
    ) -> Iterator[list[Pair]]:
        """Yield blocks of encoded pairs, in order, as of the first one."""
        self._check_open()
        namespace.check_alive()
        with self.snapshot() as snapshot:
            yield from snapshot.blocks(namespace, start, stop, reverse, size)

    # -------------------------------------------------------------- maintenance

    def check_writable(self) -> None:
        """Raise unless the store can be written."""
        self._check_open()
        if self._committer.stopped is not None:
            raise self._committer.refusal()

    def make_room(self) -> None:
        """Let the overlay be flushed when it is full; wait if it is twice as full."""
        self._maintenance.make_room()

    def checkpoint(self) -> int:
        """Carry all updates into the data file now; return the position up to which it has them.

        Everything committed before the call is durable when it returns.
        """
        self._check_open()
        return self._maintenance.checkpoint("asked")

    def sync(self) -> int:
        """Make every commit so far durable; return the position up to which the log is."""
        self._check_open()
        return self._committer.sync()

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
        live = [s for s in self._snapshots if s.layers() is not None]
        oldest = max((self.now() - snapshot.began for snapshot in live), default=None)
        with translated_disk("taking statistics"):
            return collect(self._store, len(live), oldest)

    # -------------------------------------------------------------- end

    @property
    def closed(self) -> Callable[[], TidelogError] | None:
        """Returns the error for every later call; None while the store is open."""
        return self.open_state.closed

    def _check_open(self) -> None:
        self.open_state.check()

    def close(self) -> None:
        """Make everything durable, take a checkpoint, and let go of the store.

        Closing twice is fine, and what an interrupt left undone is done then.  Open snapshots and
        transactions end.  If the disk fails, what was acknowledged as durable still is, the store
        is let go of, and the error is raised; where it says so, all that was committed is durable.
        """
        try:
            self._ending.close()
        finally:
            if self._ending.released:
                open_handles.discard(self)

    def abandon(self) -> None:
        """Let go of the store as a crash would: no checkpoint, no mark of a clean end."""
        self._ending.abandon()
        open_handles.discard(self)

    def __del__(self) -> None:
        """Let go of a store that nobody can close any more; what was acknowledged is in its log."""
        if self._held and not self._ending.released and self._store.environment.finalizes:
            self._ending.lost()
            warn_of_lost(self.path)

    def forked(self) -> None:
        """In the child of a fork: nothing of this store may be touched."""
        self._ending.forked()
        self._catalog.forked()
        self.rewriting.forked()
        free(self._attaching)

    def forked_error(self) -> TidelogError:
        """Return what every call raises in the child of a fork."""
        return self.open_state.forked_error()

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
            log.error("store.close_failed error=%s", failure, extra=event)


def _call_of(method: weakref.WeakMethod[Callable[P, object]]) -> Callable[P, None]:
    """Return a function that calls a method of what is alive: its callers keep it so."""

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        bound = method()
        assert bound is not None
        bound(*args, **kwargs)

    return call


def _by_partition(
    namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]
) -> dict[int, dict[bytes, bytes | None]]:
    """Sort encoded pairs of a map into its partitions."""
    namespace.check_alive()
    parts: defaultdict[int, dict[bytes, bytes | None]] = defaultdict(dict)
    pairs = list(pairs)
    places = partitions_of([key for key, _ in pairs], namespace.space)
    for (key, value), partition in zip(pairs, places, strict=True):
        parts[partition][key] = value
    return parts
