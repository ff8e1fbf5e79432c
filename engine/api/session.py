"""An open store as those use it who work in it: its maps, its transactions, tasks under Trio.

``Database`` is what users see of it.  Whatever they hold of a store, a map, a snapshot, a
transaction, an iteration, refers to the session and keeps the store open.

Invariants:

- Nothing that the session owns refers to it, but weakly: the last handle goes with its last
  reference, and does not wait for the garbage collector.
- If nobody refers to the session any more, it lets go of the store, with a ``ResourceWarning``.

Left out: commits (``committer``), background work (``maintenance``), outcomes (``known_outcomes``),
the end (``ending``).
"""

from __future__ import annotations

import threading
import weakref
from _thread import get_ident
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ParamSpec, TypeVar, cast

from mmh3 import hash as murmur3

from ...affinity.errors import DeadlockError
from ...affinity.partitions import partitions_of
from ..commit.entries import Commit, Entry, Receipt
from ..commit.lock_manager import LockedError
from ..commit.puts import PUT_BYTES_MAX
from ..commit.relaxed import relaxed_setter
from ..data import point_reads as reads
from ..data.decisions import Decide
from ..data.namespaces import OUTCOMES, Home, Namespace, ledger
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
from ..system.forks import free
from .attempts import ATTEMPTS, attempts, run
from .choices import Durability, Isolation, Mode
from .inside import Blocks
from .maps import Map, map_of
from .pickling import Reopenable
from .rewrites import Rewrite
from .rewriting import Rewriting
from .snapshots import SnapshotSession, newest_blocks
from .transaction_session import TransactionSession

T = TypeVar("T")
P = ParamSpec("P")


class StoreSession(Reopenable):
    """One opening of a store, for writing; may be shared by threads."""

    _held = False
    """Whether it has been made as a whole."""

    def __init__(self, store: OpenStore, durability: Durability, given: Sequence[Any]) -> None:
        self.path = store.path
        self.durability = durability
        self.store = store
        self.committer = store.committer
        self.overlay = store.overlay
        self.snapshots = store.snapshots
        self.locks = store.locks
        self.dropped = store.committer.context.dropped
        self.was_dropped = store.committer.context.was_dropped
        self.lock_timeout = store.options.lock_timeout
        self.partitions = store.state.partitions
        self.now = store.environment.monotonic
        self.pause = store.environment.wait
        self.random = store.environment.random
        self.limits = store.environment.limits
        self.home = Home(store.path)
        self.inside = Blocks()
        self.open_state = OpenState(store.path)
        self.forked_error = self.open_state.forked_error
        self.catalog = Catalog(store, durability == "always", given, self.home)
        self.conflicts = Conflicts(store, self.catalog.name_of)
        self.outcomes = KnownOutcomes(store)
        self.rewriting = Rewriting(
            cast(StoreSession, weakref.proxy(self)),
            _call_of(weakref.WeakMethod(self._commit_rewrite)),
        )
        self.attaching = threading.Lock()
        self.maintenance = Maintenance(
            store,
            self.open_state,
            write_behind=WRITE_BEHIND if durability == "none" else 0,
            tidy=self.rewriting.let_go,
            sweep=_call_of(weakref.WeakMethod(self.sweep_outcomes)),
        )
        self.ending = Ending(
            store, self.open_state, self.maintenance, sync_lost=durability == "interval"
        )
        self._wire()
        self._held = True

    def _wire(self) -> None:
        store = self.store
        if store.environment.finalizes:
            open_handles.add(self)
        if self.maintenance.unwritten:
            self.maintenance.begin()
        store.committer.serve(_call_of(weakref.WeakMethod(self.maintenance.begin)))

    def ledger(self) -> Map[bytes, bytes]:
        """Return the internal map in which those who repeat their batches note the newest one.

        Written in the transaction of a batch, it tells whether that took effect.
        """
        self.open_state.check()
        return map_of(ledger(self.store.state.spaces[0], self.home), self)

    # -------------------------------------------------------------- transactions

    def transaction(
        self,
        mode: Mode,
        *,
        isolation: Isolation = "serializable",
        plain_writes: bool,
    ) -> TransactionSession:
        """Begin a transaction of the store's own."""
        self.open_state.check()
        return TransactionSession(self, mode, isolation, plain_writes=plain_writes)

    def commit_transaction(self, transaction: TransactionSession) -> Receipt:
        """Commit what a transaction wrote; waits for locks that are in the way."""
        if self.open_state.closed is not None:
            raise self.open_state.closed()
        commit = transaction.to_commit()
        if commit is None:
            return self.outcomes.empty_receipt()
        layers = self.overlay.view.layers
        if layers[0].bytes >= self.maintenance.limit or len(layers) > 1:
            self.make_room()
        if commit.tx_id is None:
            return self._commit_at_last(transaction, commit)
        with self.outcomes.pending(commit.tx_id):
            return self._commit_at_last(transaction, commit)

    def _commit_at_last(self, transaction: TransactionSession, commit: Commit) -> Receipt:
        """Commit behind the locks that are in the way, and when the data file has grown."""
        while True:
            try:
                return self.committer.commit(commit)
            except LockedError:
                transaction.lock_writes()
            except GrowingError as error:
                error.gate.wait()
            again = transaction.to_commit()
            assert again is not None
            commit = again

    def commit_group(self, entries: Sequence[Entry]) -> None:
        """Commit several transactions, in order; each gets its receipt or its ``error``."""
        self.open_state.check()
        self.make_room()
        self.committer.commit_all(entries)

    def sweep_outcomes(self) -> int:
        """Delete outcomes of given ids that have expired; return how many."""
        with self.snapshot() as snapshot:
            return self.outcomes.sweep(
                snapshot.scan(Range(namespace=OUTCOMES), reverse=False, block=64)
            )

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> SnapshotSession:
        """Return the whole store as it is now; close it, or use it in a ``with`` block."""
        if self.open_state.closed is not None:
            raise self.open_state.closed()
        snapshot = SnapshotSession(self)
        self.snapshots.add(snapshot)
        return snapshot

    def snapshot_nowait(self) -> SnapshotSession | None:
        """Return a snapshot if that takes neither waiting nor much work, else None."""
        self.open_state.check()
        mutex = self.committer.mutex
        if mutex.locked():  # no attempt to take it: an interrupt could come behind that
            return None
        with mutex:
            if self.overlay.newer_bytes > self.limits.merged_nowait_bytes:
                return None
            taken = self._taken()
        snapshot = SnapshotSession(self, taken)
        self.snapshots.add(snapshot)
        return snapshot

    def take_view(self) -> tuple[View, Layer, int]:
        """Return a view that does not change, its boundary, and its position in the log."""
        with self.committer.mutex:
            return self._taken()

    def _taken(self) -> tuple[View, Layer, int]:
        committer = self.committer
        committer.check_whole()
        context = committer.context
        taken = self.overlay.frozen() if context.standing.broken else self.overlay.snapshot()
        return *taken, context.applied_position

    # -------------------------------------------------------------- what maps read and write

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value: the path of every plain ``get``."""
        return reads.getter(self.overlay, namespace, self.committer.wait_applied)

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys, checked all at once."""
        found = reads.get_many(self.overlay, namespace, keys, self.committer.wait_applied)
        if found is None:
            with self.snapshot() as snapshot:
                found = snapshot.get_many(namespace, keys)
        return found

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that commits one update."""
        prefixes, (first, count, _) = namespace.prefixes, namespace.space
        number = namespace.id
        durable = self.durability == "always"
        commit, put = self.committer.commit, self.committer.put
        limit, overlay, state = self.maintenance.limit, self.overlay, self.open_state
        inside = self.inside

        def set_one(key: bytes, value: bytes | None) -> None:
            if inside or state.closed is not None or not namespace.alive:
                self.open_state.check()
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
        return relaxed_setter(self.committer, namespace, inside, self.make_room, limit, set_one)

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
        self.open_state.check()
        self.check_outside(namespace)
        self.make_room()
        parts = _by_partition(namespace, pairs)
        if not parts:
            return
        updates = ManyUpdates(namespace.id, namespace.prefixes, parts)
        durable = self.durability == "always"
        if not durable:
            self.committer.yield_to_checkpoint()
        try:
            self.committer.commit(Commit(updates, durable))
        except LockedError:
            self._commit_locked(namespace, chain.from_iterable(map(dict.items, parts.values())))

    def commit_of(
        self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]
    ) -> Commit | None:
        """Return a commit that sets or deletes encoded keys, None if there are none."""
        parts = _by_partition(namespace, pairs)
        if not parts:
            return None
        updates = ManyUpdates(namespace.id, namespace.prefixes, parts)
        return Commit(updates, self.durability == "always")

    def _commit_rewrite(self, rewrite: Rewrite) -> None:
        self.open_state.check()
        layers = self.overlay.view.layers
        if layers[0].bytes >= self.maintenance.limit or len(layers) > 1:
            self.make_room()
        self.committer.commit_all((rewrite,))

    def rewriter(self, namespace: Namespace) -> Callable[[bytes, Decide], Any]:
        """Return a function that carries out a decision about an encoded key, in one step."""
        return self.rewriting.rewriter(namespace)

    def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None if there is none."""
        self.open_state.check()
        return self.rewriting.pop_first(namespace)

    def atomically(self, namespace: Namespace, work: Callable[[Map[Any, Any]], T]) -> T:
        """Run ``work`` with the map inside a transaction, until it commits."""
        self.open_state.check()
        self.check_outside(namespace)
        mapping: Map[Any, Any] = map_of(namespace, self)
        tries = attempts(self, ATTEMPTS, None, {"plain_writes": True})
        return run(tries, lambda tx: work(tx[mapping]))

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int,
        *, values: bool = True,
    ) -> Iterator[list[Pair]]:  # fmt: skip
        """Return blocks of encoded pairs, in order, as of the first one."""
        return newest_blocks(self.snapshot, namespace, start, stop, reverse, size)

    def check_open(self) -> None:
        """Raise if the store was closed, or opened before a fork."""
        self.open_state.check()

    def count(self, namespace: Namespace) -> int | None:
        """Return the number of keys of a map; None if it has to be counted."""
        with self.snapshot() as snapshot:
            return snapshot.count(namespace)

    def peek(self, namespace: Namespace) -> tuple[list[Pair], int | None]:
        """Return the first pairs and how many there are, for whoever only looks."""
        with self.snapshot() as snapshot:
            return snapshot.peek(namespace)

    def check_writable(self) -> None:
        """Raise unless the store can be written."""
        self.open_state.check()
        if self.committer.context.standing.stopped:
            raise self.committer.refusal()

    def make_room(self) -> None:
        """Let the overlay be flushed when it is full; wait if it is twice as full."""
        self.maintenance.make_room()

    # -------------------------------------------------------------- end

    def close(self) -> None:
        """Make everything durable, take a checkpoint, and let go of the store."""
        try:
            self.ending.close()
        finally:
            if self.ending.released:
                open_handles.discard(self)

    def abandon(self) -> None:
        """Let go of the store as a crash would: no checkpoint, no mark of a clean end."""
        self.ending.abandon()
        open_handles.discard(self)

    def __del__(self) -> None:
        """Let go of a store that nobody can close any more; what was acknowledged is in its log."""
        if self._held and not self.ending.released and self.store.environment.finalizes:
            self.ending.lost()
            if self.warns:
                warn_of_lost(self.path)

    def forked(self) -> None:
        """In the child of a fork: nothing of this store may be touched."""
        self.ending.forked()
        self.catalog.forked()
        self.rewriting.forked()
        free(self.attaching)


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
