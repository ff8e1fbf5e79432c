"""The store as its user holds it: open, transact, snapshot, close.

Owns the life of a store and who does its maintenance: one background thread syncs relaxed commits
(``interval``), takes checkpoints that are due, and announces what is durable; a committer that
finds the overlay at twice its limit takes the checkpoint itself.

Invariants:

- One handle writes: the directory's lock is held from before the first look to the very end.
- Nothing is served before recovery has ended and its tail is durable.
- ``close`` makes everything durable, takes a checkpoint and says so in the manifest; without it
  nothing that was acknowledged as durable is lost either.
- After ``close`` every call raises ``ClosedError``, after a fork ``ForkedError`` in the child.

Left out: how each part works (``commit``, ``checkpointer``, ``recovery``, ``overlay``).
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from _thread import get_ident, start_new_thread
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count, repeat
from operator import mod
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from mmh3 import hash as murmur3

from ...affinity.errors import (
    ClosedError,
    ConflictError,
    DeadlockError,
    DiskError,
    DiskFullError,
    ForkedError,
    HistoryTruncatedError,
    TidelogError,
    UsageError,
)
from ...checkpoints.policy import CheckpointPolicy
from ...wal.records import NamespaceRecord, TxRecord
from ..codecs import registry as codecs
from ..commit import outcomes
from ..commit.committer import CLOSED
from ..commit.entries import Commit, Entry, Receipt
from ..commit.lock_manager import LockedError
from ..commit.puts import PUT_BYTES_MAX
from ..commit.relaxed import relaxed_setter
from ..data import point_reads as reads
from ..data.decisions import Decide
from ..data.namespaces import OUTCOMES, Home, Namespace, ledger, not_copied
from ..data.overlay import Layer, View
from ..data.scan import Pair, Range
from ..data.stored import shown_key, split_key, version_of
from ..data.updates import FewUpdates, ManyUpdates, Writes
from ..store.catalog import Catalog
from ..store.data_file_growth import GrowingError, check_open
from ..store.handles import open_handles, warn_of_lost
from ..store.opening import OpenStore, place_of, translated_disk
from ..store.statistics import Statistics, collect
from ..system.environment import BackgroundTask
from ..system.forks import free
from .attempts import ATTEMPTS, Attempt, attempts as make_attempts, run
from .inside import Blocks
from .maps import Map, map_of
from .rewrites import Rewrite
from .rewriting import Rewriting
from .snapshots import LiveSnapshots, Snapshot, read_view
from .transactions import Durability, Isolation, Mode, Transaction

if TYPE_CHECKING:
    from ..upkeep.backup import BackupReport

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger("tidelog.store")

CHECKPOINT_PAUSE = 5.0
"""Seconds after a failed checkpoint in which the background thread begins no other one."""

WRITE_BEHIND = 32 << 20
"""Bytes of log that are synced in the background though nobody asked for it: a whole segment at
once would keep all committers waiting when the next one is begun."""

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
        self.dropped = store.committer.context.dropped
        self.was_dropped = store.committer.context.was_dropped
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
        self._catalog = Catalog(store, durability == "always", given, self.home)
        self._snapshots = LiveSnapshots()
        self.rewriting = Rewriting(
            cast(Database, weakref.proxy(self)), _call_of(weakref.WeakMethod(self._commit_rewrite))
        )
        self._pending: list[bytes] = []
        self._empty_numbers = count()
        self._attaching = threading.Lock()
        self._limit = store.options.checkpoint_bytes
        self._policy = CheckpointPolicy(
            overlay_bytes=self._limit,
            log_bytes=4 * self._limit,
            idle_seconds=store.options.checkpoint_interval,
        )
        self._last_checkpoint = self._checkpoint_again = self.now()
        self._last_sweep = self.now()
        self._opened = self._log_time()
        self._times = deque([(self._last_sweep, self._opened)])
        """When outcomes were swept, by the steady clock, and what time the log had reached."""
        self.closed: Callable[[], TidelogError] | None = None
        """What every call raises once the store is closed here."""
        self._closing = threading.Lock()
        self._leaving = self._released = False
        store.growth.expire = self._snapshots.expire
        store.keeper.ids = store.committer.ids
        store.keeper.ids_in_flight = store.committer.ids_in_flight
        self._task: BackgroundTask | None = None
        if store.environment.finalizes:
            open_handles.add(self)
        if self._unwritten():
            self._begin_maintenance()
        store.committer.serve(_call_of(weakref.WeakMethod(self._begin_maintenance)))
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
        state = "closed" if self.closed else self.durability
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
        return map_of(ledger(self.partitions, self.home), self)

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
            return self.empty_receipt()
        self.make_room()
        tx_id = commit.tx_id
        if tx_id is not None:
            self._pending.append(tx_id)
        try:
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
        finally:
            if tx_id is not None:
                self._pending.remove(tx_id)

    def commit_group(self, entries: Sequence[Entry]) -> None:
        """Commit several transactions, in order; each gets its receipt or its ``error``."""
        self._check_open()
        self.make_room()
        self._committer.commit_all(entries)

    def empty_receipt(self) -> Receipt:
        """Return the receipt of a transaction that wrote nothing."""
        # Numbers of their own, counted in one step: this is called without the mutex, and nothing
        # in the log may ever have the same one.
        tx_id = outcomes.empty_id(self._committer.ids()[0], next(self._empty_numbers))
        return Receipt(tx_id, 0, self._store.state.time, 0)

    @contextmanager
    def pending(self, tx_id: bytes | None) -> Iterator[None]:
        """Let ``outcome`` say ``pending`` of an id meanwhile; None is no id."""
        if tx_id is None:
            yield
            return
        self._pending.append(tx_id)
        try:
            yield
        finally:
            self._pending.remove(tx_id)

    def conflict(
        self,
        full_key: bytes,
        winner: bytes | None,
        stored: bytes | None = None,
    ) -> ConflictError:
        """Return the error for a key that was changed: by ``winner``, or where that is not known
        by whoever wrote the value ``stored``."""
        partition, number, key = split_key(full_key)
        name = self._catalog.name_of(number)
        return ConflictError(
            f"key {shown_key(key)} of {name!r} was changed by another transaction",
            namespace=name,
            key=key,
            winner=winner if stored is None else self._search_for_winner(partition, stored),
        )

    def _search_for_winner(self, partition: int, stored: bytes) -> Callable[[], bytes | None]:
        """Return a function that finds in the newest part of the log who wrote a value.

        It is for whoever reads the error to call: this is called under the mutex.
        """
        _, counter, _ = version_of(stored)
        writer = self._store.writer
        segment, end = writer.segment, writer.position
        held = weakref.ref(self._store.keeper)

        def search() -> bytes | None:
            keeper = held()
            if keeper is None:
                return None
            try:
                return keeper.writer_of(partition, counter, segment, end)
            except (OSError, TidelogError):
                return None  # it is a courtesy

        return search

    # -------------------------------------------------------------- outcomes

    def new_id(self) -> bytes:
        """Return a fresh transaction id, for ``transaction(id=...)``.

        It carries its time, so that ``outcome`` can tell for long that nothing was committed under
        it: of other ids that is known only as long as the whole log is there.
        """
        environment, state = self._store.environment, self._store.state
        time = max(environment.clock(), state.time)
        return outcomes.dated_id(time, environment.new_id(), state.store_id)

    def add_outcome(self, writes: Writes, tx_id: bytes) -> None:
        """Add the entry that remembers a transaction whose id the caller gave."""
        partition = outcomes.home_of(tx_id, self.partitions)
        key = outcomes.outcome_key(tx_id, self.partitions)
        state = self._store.state
        time = max(self._store.environment.clock(), state.time)
        if outcomes.is_dated(tx_id, state.store_id):
            time = max(time, outcomes.born(tx_id, state.store_id) or 0)
        writes[key] = (partition, OUTCOMES, tx_id, outcomes.committed(time))

    def earlier_receipt(self, tx_id: bytes, group: Sequence[Entry]) -> Receipt | None:
        """Return the receipt of an id that is committed already.

        Raises ``ConflictError`` where it is about to be, in this very group.  Reads the data file:
        under the mutex ``check_readable`` comes first.
        """
        key = outcomes.outcome_key(tx_id, self.partitions)
        if any(entry.changed({key}) for entry in group):
            raise ConflictError(
                f"another attempt of transaction {tx_id.hex()} is being committed",
                namespace="",
                key=None,
                winner=tx_id,
            )
        partition = outcomes.home_of(tx_id, self.partitions)
        found = read_view(self.overlay.view, None, partition, key)
        entry = None if found is None else outcomes.decode_outcome(found)
        if entry is None or entry.kind is not outcomes.Kind.COMMITTED:
            return None
        return Receipt(tx_id, 0, entry.time, partition)

    def check_readable(self) -> None:
        """Raise ``GrowingError`` where a read of the data file would have to wait; under the mutex.

        Whoever waited there would keep from going on those whose end is waited for.
        """
        check_open(self.overlay.view.txn)

    def outcome(self, tx_id: bytes) -> outcomes.Outcome:
        """Tell what became of a transaction.

        ``committed``, ``rolled_back`` (it never took effect), ``pending`` (on its way in another
        thread, or a sync failed: the next open will know), or ``too_old`` (the log that would tell
        is gone).
        """
        self._check_open()
        if type(tx_id) is not bytes or len(tx_id) != 16:
            raise UsageError(f"the id of a transaction is 16 bytes, not {tx_id!r}")
        if tx_id in self._pending:
            return "pending"
        if self.earlier_receipt(tx_id, ()) is not None:
            return "committed"
        with translated_disk("reading the log"):
            for _ in range(outcomes.ATTEMPTS):
                # A checkpoint beside this may drop a segment that is about to be read.
                with suppress(HistoryTruncatedError):
                    return self._outcome_in_log(tx_id)
            return self._outcome_in_log(tx_id)

    def _outcome_in_log(self, tx_id: bytes) -> outcomes.Outcome:
        keeper, writer = self._store.keeper, self._store.writer
        found = keeper.find_transaction(tx_id, self._store.manifest.log_ids)
        if writer.failure is not None and (found is None or found[0].end > writer.synced):
            return "pending"  # a sync failed: what lies behind the last one may be there or not
        if found is not None:
            return "committed" if isinstance(found[1], TxRecord) else "rolled_back"
        surely = keeper.first_position == 0 or self._never_committed(tx_id)
        return "rolled_back" if surely else "too_old"

    def _never_committed(self, tx_id: bytes) -> bool:
        """Tell whether what is found nowhere would be found somewhere if it had been committed."""
        keeper = self._store.keeper
        since = outcomes.born(tx_id, self._store.state.store_id)
        automatic = outcomes.is_automatic(tx_id)
        if since is not None and automatic and since > self._log_time():
            since = None  # one that somebody gave, and that only looks like an automatic one
        if since is not None and since > keeper.known_since():
            return True
        if automatic:
            first = keeper.first_number(tx_id[:8])
            return first is not None and outcomes.number_of(tx_id) >= first
        return since is not None and since > self._horizon()

    def _horizon(self) -> int:
        """Return a time behind which no outcome of a given id has expired."""
        known = self.earlier_receipt(outcomes.HORIZON_ID, ())
        return self._opened if known is None else known.time

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> Snapshot:
        """Return the whole store as it is now; close it, or use it in a ``with`` block."""
        self._check_open()
        snapshot = Snapshot(self, self._committer.context.applied_position)
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
            taken, position = self._taken(), self._committer.context.applied_position
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
        broken = committer.context.standing.broken
        return self.overlay.frozen() if broken else self.overlay.snapshot()

    def _expire_heavy_snapshots(self) -> None:
        """End the oldest snapshots while they hold more memory than they may."""
        current = set(map(id, self.overlay.view.layers))
        held: dict[int, int] = {}
        users: list[tuple[float, Snapshot]] = []
        for snapshot in self._snapshots:
            layers = snapshot.layers()
            if layers:
                users.append((snapshot.began, snapshot))
            for layer in layers or ():
                if id(layer) not in current:
                    held[id(layer)] = layer.bytes
        if sum(held.values()) > self._store.options.snapshot_memory_max and users:
            oldest = min(users, key=lambda user: user[0])[1]
            oldest.expire("it pinned more memory than `snapshot_memory_max`")

    # -------------------------------------------------------------- session of maps

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value: the path of every plain ``get``."""
        return reads.getter(self.overlay, namespace, self._committer.wait_applied)

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys, checked all at once."""
        found = reads.get_many(self.overlay, namespace, keys, self._committer.wait_applied)
        if found is None:
            with self.snapshot() as snapshot:
                found = snapshot.get_many(namespace, keys)
        return found

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that commits one update."""
        prefixes = namespace.prefixes
        count = len(prefixes)
        number = namespace.id
        durable = self.durability == "always"
        commit, put = self._committer.commit, self._committer.put
        limit, overlay = self._limit, self.overlay
        inside = self.inside

        def set_one(key: bytes, value: bytes | None) -> None:
            if inside or self.closed is not None or not namespace.alive:
                self._check_open()
                namespace.check_alive()
                self.check_outside(namespace)
            layers = overlay.view.layers
            if layers[0].bytes >= limit or len(layers) > 1:
                self.make_room()
            partition = murmur3(key, 0, False) % count
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
            self._committer.yield_to_checkpoint()
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
        if layers[0].bytes >= self._limit or len(layers) > 1:
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
        if self._committer.context.standing.stopped:
            raise self._committer.refusal()

    def make_room(self) -> None:
        """Let the overlay be flushed when it is full; wait where it is twice as full."""
        overlay = self.overlay
        if overlay.bytes >= self._limit:
            self._check_open()
            if overlay.bytes >= 2 * self._limit:
                self._store.checkpointer.run_while(
                    lambda: overlay.bytes >= 2 * self._limit, "overlay"
                )
            elif self._task is not None:
                self._task.wake()

    def _unwritten(self) -> bool:
        """Whether the data file lacks anything that the log has."""
        state = self._store.state
        return bool(self.overlay.bytes or state.touched or state.dropped)

    def _begin_maintenance(self) -> None:
        """Begin the background work, unless the store is closed.

        Only when there is something to do: whatever thread a process has beside its first one
        makes each look into LMDB dearer, a scan by a seventh.
        """
        with self._committer.mutex:
            if self._task is None and self.closed is None:
                self._task = self._background()

    def _background(self) -> BackgroundTask:
        """Begin the background work, which keeps nobody from collecting this handle."""
        maintain = weakref.WeakMethod(self.maintain)

        def work() -> bool:
            call = maintain()
            return call is None or call()

        environment, seconds = self._store.environment, self._store.options.sync_interval
        return environment.background("tidelog-maintenance", seconds, work)

    def maintain(self) -> bool:
        """Do what is due: sync relaxed commits, announce what is durable, checkpoint, sweep.

        True where nothing will be due any more.  A thread that nobody stops ends by that: one
        whose beginning was interrupted behind its last line.
        """
        self.rewriting.let_go()
        if self.closed is not None:
            return True
        store = self._store
        try:
            store.locks.release_lost()
            if store.committer.stopped is None:
                behind = store.writer.position - store.writer.synced
                if behind > (WRITE_BEHIND if self.durability == "none" else 0):
                    store.committer.sync()
                store.committer.announce()
            reason = self._policy.due(
                overlay_bytes=self.overlay.bytes,
                log_bytes=store.writer.position - store.checkpointer.position,
                idle_seconds=self.now() - self._last_checkpoint,
            )
            if reason is not None and self.now() >= self._checkpoint_again:
                self._checkpoint(reason)
            if self.now() - self._last_sweep >= outcomes.SWEEP_SECONDS:
                self._last_sweep = self.now()
                self.sweep_outcomes()
        except TidelogError as error:
            log.error("maintenance.failed error=%s", error, extra={"event": "maintenance.failed"})
        return False

    def _log_time(self) -> int:
        """Return the time, which no later commit falls behind."""
        state = self._store.state
        with self._committer.mutex:
            state.time = max(state.time, self._store.environment.clock())
            return state.time

    def _time_of_expiry(self) -> int:
        """Return a time that had passed a whole retention ago, by the steady clock."""
        now, times = self.now(), self._times
        times.append((now, self._log_time()))
        while len(times) > 1 and times[1][0] <= now - outcomes.RETENTION_SECONDS:
            times.popleft()
        steady, reached = times[0]
        return reached if steady <= now - outcomes.RETENTION_SECONDS else 0

    def sweep_outcomes(self) -> int:
        """Delete outcomes of given ids that have expired; return how many."""
        oldest = self._time_of_expiry()
        horizon: int | None = None
        entries: list[tuple[int, bytes]] = []
        with self.snapshot() as snapshot:
            for block in snapshot.scan(Range(namespace=OUTCOMES), reverse=False, block=64):
                entries += [(outcomes.decode_outcome(value).time, key) for key, value in block]
        for time, key in entries:
            if key == outcomes.HORIZON_ID:
                horizon = time
        entries = sorted(entry for entry in entries if entry[1] != outcomes.HORIZON_ID)
        excess = len(entries) - outcomes.ENTRIES_MAX
        expired = [(time, key) for place, (time, key) in enumerate(entries)
                   if time < oldest or place < excess]  # fmt: skip
        newest = max([time for time, _ in expired], default=0)
        if entries and (horizon is None or newest > horizon):
            self._set_horizon(max(newest, self._opened if horizon is None else horizon))
        for first in range(0, len(expired), outcomes.SWEEP_BATCH):
            writes: Writes = {}
            for _, tx_id in expired[first : first + outcomes.SWEEP_BATCH]:
                partition = outcomes.home_of(tx_id, self.partitions)
                key = outcomes.outcome_key(tx_id, self.partitions)
                writes[key] = (partition, OUTCOMES, tx_id, None)
            self._committer.commit(Commit(FewUpdates(writes), False))
        return len(expired)

    def _set_horizon(self, time: int) -> None:
        """Note, before they go, how new the entries are that expire."""
        partition = outcomes.home_of(outcomes.HORIZON_ID, self.partitions)
        key = outcomes.outcome_key(outcomes.HORIZON_ID, self.partitions)
        value = outcomes.committed(time)
        writes: Writes = {key: (partition, OUTCOMES, outcomes.HORIZON_ID, value)}
        self._committer.commit(Commit(FewUpdates(writes), False))

    def _checkpoint(self, reason: str) -> int:
        self._last_checkpoint = self.now()
        # Until it has succeeded: what failed now will most likely fail in a moment, too.
        self._checkpoint_again = self.now() + CHECKPOINT_PAUSE
        position = self._store.checkpointer.run(reason)
        self._checkpoint_again = self._last_checkpoint
        self._expire_heavy_snapshots()
        return position

    def checkpoint(self) -> int:
        """Carry all updates into the data file now; return the position up to which it has them.

        Everything committed before the call is durable when it returns.
        """
        self._check_open()
        return self._checkpoint("asked")

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
        pins, name = self._store.keeper.pins, f"backup {self.new_id().hex()[-8:]}"
        pins[name] = 0
        try:
            with translated_disk(f"the backup to {place}"):
                from ..upkeep.backup import back_up, source_of

                source = source_of(self._store, self.maps(), lambda at: pins.update({name: at}))
                return back_up(source, place, verify=verify)
        finally:
            del pins[name]

    def statistics(self) -> Statistics:
        """Return how the store is doing."""
        self._check_open()
        live = [s for s in self._snapshots if s.layers() is not None]
        oldest = max((self.now() - snapshot.began for snapshot in live), default=None)
        with translated_disk("taking statistics"):
            return collect(self._store, len(live), oldest)

    # -------------------------------------------------------------- end

    def _check_open(self) -> None:
        if self.closed is not None:
            raise self.closed()

    def close(self) -> None:
        """Make everything durable, take a checkpoint, and let go of the store.

        Closing twice is fine, and what an interrupt left undone is done then.  Open snapshots and
        transactions end.  If the disk fails, what was acknowledged as durable still is, the store
        is let go of, and the error is raised; where it says so, all that was committed is durable.
        """
        with self._closing:
            if self._released:
                return
            with self._committer.mutex:
                self._committer.check_whole()
                self.closed = self.closed or self._closed_error
                self._committer.close_short_cut()
            try:
                if not self._leaving:
                    self._stop_maintenance()
                    self._end()
            finally:
                self._let_go()
            log.info("store.closed path=%s", self.path, extra={"event": "store.closed"})

    def _end(self) -> None:
        """Make everything durable, and the end a clean one unless the store has stopped before."""
        store, committer = self._store, self._committer
        if committer.interrupted:
            committer.sync()  # the next open has it all from the log
        elif committer.stopped not in (None, CLOSED):  # closed: a close that was interrupted
            raise DiskError(f"{committer.stopped}; newer relaxed commits may be lost")
        else:
            failure: DiskError | DiskFullError | None = None
            try:
                if self._unwritten():
                    store.checkpointer.run("close")
            except (DiskError, DiskFullError) as error:
                failure = error
            committer.sync()
            committer.announce()
            # First the end of all writing, then the sync: what the manifest calls durable is.
            committer.end(self._closed_error)
            committer.sync()
            try:
                if failure is None and not committer.interrupted:
                    store.end_cleanly()
            except (DiskError, DiskFullError) as error:
                failure = error
            if failure is not None:
                raise _but_committed(failure) from failure

    def _let_go(self) -> None:
        """Let every later call raise, and give up files and lock; done twice it does the same."""
        self._leaving = True
        self._stop_maintenance()
        try:
            # Also where the end of `_end` was not reached: whose commit is in the log is told so.
            self._committer.end(self._closed_error)
        finally:
            self._shut(self._closed_error)
            self._store.release()
            self._released = True

    def abandon(self) -> None:
        """Let go of the store as a crash would: no checkpoint, no mark of a clean end."""
        if self.closed == self.forked_error:
            return
        with self._closing:
            self._let_go()

    def _stop_maintenance(self) -> None:
        with self._committer.mutex:
            task = self._task
        if task is not None:
            task.stop()

    def _shut(self, error: Callable[[], TidelogError]) -> None:
        """Let every later call raise; nothing of LMDB is referenced from here any more."""
        self.closed = error
        self._committer.refuse(error)
        for snapshot in self._snapshots:
            snapshot.close()
        self.overlay.view = reads.closed_view(error)
        open_handles.discard(self)

    def _closed_error(self) -> TidelogError:
        return ClosedError(f"the store {self.path} is closed")

    def __del__(self) -> None:
        """Let go of a store that nobody can close any more; what was acknowledged is in its log."""
        if not self._held or self._released or not self._store.environment.finalizes:
            return
        # A finalizer may run anywhere, in a thread that has one of these locks, too.
        if self._store.checkpointer.running or self._committer.mutex.locked():
            start_new_thread(self._let_go_lost, ())
        else:
            self._let_go_lost()
        warn_of_lost(self.path)

    def _let_go_lost(self) -> None:
        """Let go of the store: cleanly if the data file has everything, else as a crash would.

        A checkpoint may take too long for a finalizer.  The background work ends by itself.
        """
        clean = self._committer.stopped is None and not self._unwritten()
        with suppress(TidelogError):
            if clean or self.durability == "interval":
                self._committer.sync()
            if clean:
                self._committer.announce()
        self._committer.end(self._closed_error)
        if clean:
            with suppress(TidelogError):
                self._committer.sync()
                self._store.end_cleanly()
        self._shut(self._closed_error)
        self._store.release()
        self._released = True
        log.warning("store.lost path=%s", self.path, extra={"event": "store.lost"})

    def forked(self) -> None:
        """In the child of a fork: nothing of this store may be touched."""
        free(self._closing)
        self._released = True
        self.closed = self.forked_error
        self.overlay.view = reads.closed_view(self.forked_error)
        for snapshot in self._snapshots:
            snapshot.forked(self.forked_error)
        self._committer.forked(self.forked_error)
        self._store.checkpointer.forked()
        self._catalog.forked()
        self.rewriting.forked()
        free(self._attaching)

    def forked_error(self) -> TidelogError:
        """Return what every call raises in the child of a fork."""
        return ForkedError(f"the store {self.path} was opened before this process was forked")

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


def _but_committed(failure: DiskError | DiskFullError) -> DiskError | DiskFullError:
    """Return the error of a close that failed when the log had everything, durably."""
    return type(failure)(
        f"{failure}; the store is closed, and everything that was committed is durable in its log",
        hint="The next open finds all of it there. "
        "It wants what this close wanted: free some space, or check the disk.",
    )


def _call_of(method: weakref.WeakMethod[Callable[P, None]]) -> Callable[P, None]:
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
    count = len(namespace.prefixes)
    parts: defaultdict[int, dict[bytes, bytes | None]] = defaultdict(dict)
    pairs = list(pairs)
    hashes = map(murmur3, [key for key, _ in pairs], repeat(0), repeat(False))
    for (key, value), partition in zip(pairs, map(mod, hashes, repeat(count)), strict=True):
        parts[partition][key] = value
    return parts
