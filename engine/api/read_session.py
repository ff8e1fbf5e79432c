"""What stands behind a store that is open for reading, and behind its maps and snapshots.

It may stand beside a live writer in another process, and shows the newest state that is known to
be durable; ``refresh`` moves on to a newer one.  What it reads from is a *base*: an LMDB read
transaction, and the log after that checkpoint as layers of an overlay of its own.

Invariants:

- A base shows the store as it was at one position of the log: whole transactions, none of which
  can be lost any more.  A refresh replaces it as a whole, or fails and leaves it.
- The end of the log is taken before the view of the data file: of a map that has its name there,
  all rows are in that view.
- Its slot never lies above what the next refresh reads: the checkpoint that its base began with.
- Nothing of the store is written; a torn tail is left as it is, damage is refused.
- After ``close`` every call raises ``ClosedError``, after a fork ``ForkedError`` in the child.

Left out: what users hold (``read_only``), slots and locks (``access``), plain reads
(``point_reads``), replay (``recovery``).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ...affinity.errors import (
    ClosedError,
    CorruptLogError,
    ForkedError,
    HistoryTruncatedError,
    NotFoundError,
    ReadOnlyError,
    TidelogError,
    UsageError,
)
from ...checkpoints.marks import StoreMark
from ...checkpoints.replay import State
from ...wal.records import NamespaceRecord
from ...wal.segments import segment_sizes
from ..codecs.registry import ValueCodec
from ..data import point_reads as reads
from ..data.namespaces import Home, Namespace, bound, check_codecs, check_name
from ..data.overlay import Layer, Overlay, View
from ..data.partition_store import read_state, read_store_mark
from ..data.scan import Pair
from ..files.manifest import Manifest
from ..files.recovery import Replayed, newest_durable, replay_to
from ..store.access import ReadAccess
from ..store.handles import warn_of_lost
from ..store.live_snapshots import LiveSnapshots
from ..store.options import Options
from ..system.environment import Environment, KvTransaction
from ..system.forks import free
from ..upkeep.backup import BackupReport, BackupSource, back_up
from ..upkeep.check import BeginPhase, untold
from .pickling import Reopenable
from .snapshots import SnapshotSession, newest_blocks
from .unwritable import Unwritable

REFRESH_ATTEMPTS = 8
"""How often a refresh begins again because the writer dropped a segment under its hands."""

log = logging.getLogger("tidelog.store")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStatistics:
    """How a store looks from a reading process.  Positions and sizes in bytes.

    ``position`` is what is shown; its base began at ``checkpoint_position``: the writer keeps the
    log from there on.  ``oldest_snapshot_seconds`` is None if no snapshot is open.
    """

    position: int
    checkpoint_position: int
    overlay_bytes: int
    overlay_layers: int
    data_bytes: int
    snapshots: int
    oldest_snapshot_seconds: float | None
    refreshes: int
    log_bytes: int
    log_segments: int


@dataclass(slots=True, kw_only=True)
class Base:
    """One state of the store: a checkpoint, and the durable log after it."""

    txn: KvTransaction
    state: State
    start: int
    """The position of the checkpoint."""
    position: int
    """The position up to which the log is in ``layers``; what is shown."""
    layers: tuple[Layer, ...] = ()
    """Newest first; none of them changes any more."""


@dataclass(slots=True)
class Published:
    """What maps and snapshots read from; ``view`` is replaced as a whole."""

    view: View
    ended: deque[Layer] = field(default_factory=lambda: deque(maxlen=0))
    """Takes the boundaries of ended snapshots; nothing here waits for them."""
    applying: bool = False
    gated: bool = False
    changes: int = 0
    """Nothing is applied here: a refresh publishes another view."""


class ReadSession(Unwritable, Reopenable):
    """One opening of a store, for reading; may be shared by threads."""

    _held = False
    """Whether it has been made as a whole."""

    def __init__(
        self,
        environment: Environment,
        path: str,
        options: Options,
        given_codecs: Sequence[ValueCodec[Any]],
    ) -> None:
        self.path = path
        self.home = Home(path)
        self.now = environment.monotonic
        self.limits = environment.limits
        self.access = ReadAccess(environment, path, options.map_size)
        try:
            manifest = self.access.manifest()
            self.partitions, self._spaces = manifest.partitions, manifest.spaces
            self._base: Base | None = self._newest(None)
            self.overlay = Published(_view_of(self._base))
            self.position = self._base.position
            self._start = self._base.start
            self._records: Mapping[int, NamespaceRecord] = dict(self._base.state.namespaces)
            self._given = given_codecs
            self._namespaces: dict[int, Namespace] = {}
            self._since: dict[int, int] = {}
            """Positions at which maps that were hidden before have got their names."""
            self._snapshots = LiveSnapshots()
            self._mutex = threading.Lock()
            self._refreshing = threading.Lock()
            self._refreshes = 0
            self._closed: Callable[[], TidelogError] | None = None
            self._released = False
            self._finalizes = environment.finalizes
            self._held = True
            if environment.finalizes:
                _open_readers.add(self)
            log.info("store.opened path=%s read_only=True", path, extra={"event": "store.opened"})
        except BaseException:
            self.access.close()
            raise

    # -------------------------------------------------------------- a newer state

    def refresh(self) -> int:
        """Move on to the newest durable state; return its position in the log.

        Open snapshots and iterations stay where they are.  Raises ``CorruptLogError`` and the
        like; the state is then the one before.
        """
        with self._refreshing:
            self.check_open()
            base, self._base = self._base, None
            base = self._newest(base)
            self._publish(base)
            self._base = base
            return base.position

    def _newest(self, base: Base | None) -> Base:
        """Return the newest base, grown from the one before if its checkpoint still holds."""
        for _ in range(REFRESH_ATTEMPTS):
            manifest = self.access.manifest()
            try:
                base = self._grown(manifest, base)
            except HistoryTruncatedError:
                base = None
            except CorruptLogError:
                # A copy that is opened for writing right now goes on with another log.
                if self.access.manifest() == manifest:
                    raise
                base = None
            else:
                self.access.raise_slot(base.start)
                return base
        raise HistoryTruncatedError(
            f"the log of {self.path} is dropped faster than it can be read",
            hint="Let the writer keep more of it: `retain_bytes`.",
        )

    def _grown(self, manifest: Manifest, base: Base | None) -> Base:
        # The end first: the rows of whatever map has its name there are in the data file by now.
        end = self._durable_end(manifest, base)
        txn = self.access.kv.begin()
        mark = read_store_mark(txn)
        if base is None or base.start != _position_of(mark):
            base = self._base_at(manifest, txn)
        self._follow(manifest, base, max(end, base.state.durable))
        return base

    def _durable_end(self, manifest: Manifest, base: Base | None) -> int:
        """Return the position up to which the log is known to be durable."""
        known = _position_of(read_store_mark(self.access.kv.begin()))
        known = max(known, manifest.clean_end or 0, base.position if base else 0)
        return newest_durable(self.access.wal, manifest.log_ids, known)

    def _base_at(self, manifest: Manifest, txn: KvTransaction) -> Base:
        store_id = bytes.fromhex(manifest.store_id)
        state, _ = read_state(txn, store_id, manifest.spaces, self.path)
        return Base(txn=txn, state=state, start=state.position, position=state.position)

    def _follow(self, manifest: Manifest, base: Base, stop: int) -> None:
        """Apply the log behind a base, up to a position that is durable."""
        fresh = Overlay(base.txn)
        replayed = Replayed(base.state, fresh, base.position, _nothing_to_sync)
        replay_to(self.access.wal, replayed, stop=stop, log_ids=manifest.log_ids)
        if base.state.cleared:
            partition = min(base.state.cleared)
            raise UsageError(
                f"the log of {self.path} clears partition {partition} behind the last checkpoint, "
                "and the data file still has it",
                hint="Read it again when whoever writes the store has taken a checkpoint.",
            )
        base.position = replayed.applied_position
        if fresh.active.parts:
            base.layers = stacked(fresh.active, base.layers)

    def _publish(self, base: Base) -> None:
        with self._mutex:
            hidden = {number for number, record in self._records.items() if record.hidden}
            self._records = dict(base.state.namespaces)
            self._since |= {
                number: base.position
                for number in hidden & self._records.keys()
                if not self._records[number].hidden
            }
            for number, namespace in list(self._namespaces.items()):
                record = self._records.get(number)
                if record is None:
                    namespace.drop(base.position)
                    del self._namespaces[number]
                else:
                    namespace.name = record.name
            self._start = base.start
            self.position = base.position
            self._refreshes += 1
            self.check_open()
            self.overlay.view = _view_of(base)

    # -------------------------------------------------------------- maps

    def namespace(
        self, name: str, key: ValueCodec[Any] | None, value: ValueCodec[Any] | None
    ) -> Namespace:
        """Return the map with a name, as one of these codecs; raises as ``map`` does."""
        check_name(name)
        self.check_open()
        with self._mutex:
            namespace = self._namespace(name, key, value)
        check_codecs(namespace, key, value)
        return namespace

    def _namespace(
        self, name: str, key: ValueCodec[Any] | None, value: ValueCodec[Any] | None
    ) -> Namespace:
        for record in self._records.values():
            if record.name == name:
                namespace = self._namespaces.get(record.id)
                if namespace is None:
                    given = [key, value, *self._given]
                    namespace = bound(record, self._spaces[record.space], self.home, given)
                    namespace.since = self._since.get(record.id, 0)
                    self._namespaces[record.id] = namespace
                return namespace
        raise NotFoundError(
            f"there is no map {name!r}", hint="Open the store for writing to make it."
        )

    def names(self) -> list[str]:
        """Return the names of all maps, sorted."""
        self.check_open()
        return sorted(record.name for record in self._records.values() if not record.hidden)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or opened before a fork."""
        return self._closed is not None

    @property
    def state(self) -> State:
        """Counters, epochs and maps at ``position``; not to be changed."""
        self.check_open()
        with self._refreshing:
            assert self._base is not None
            return self._base.state

    def record(self, number: int) -> NamespaceRecord | None:
        """Return what is recorded about the namespace with an id."""
        return self._records.get(number)

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> SnapshotSession:
        """Return the whole store as it is now; close it, or use it in a ``with`` block.

        It stays as it is when the store is refreshed.
        """
        with self._mutex:
            self.check_open()
            snapshot = SnapshotSession(self)
            self._snapshots.add(snapshot)
        return snapshot

    def take_view(self) -> tuple[View, Layer, int]:
        """Return a view that does not change, a boundary that nothing follows, and a position."""
        return self.overlay.view, Layer(), self.position

    # -------------------------------------------------------------- session of maps

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""
        return reads.getter(self.overlay, namespace, _nothing_to_wait_for)

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""
        view = self.overlay.view
        found = reads.get_many(self.overlay, namespace, keys, _nothing_to_wait_for)
        if found is None or self.overlay.view is not view:  # a refresh came in between
            with self.snapshot() as snapshot:
                found = snapshot.get_many(namespace, keys)
        return found

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int,
        *, values: bool = True,
    ) -> Iterator[list[Pair]]:  # fmt: skip
        """Return blocks of encoded pairs, in order, as of the first one."""
        return newest_blocks(self.snapshot, namespace, start, stop, reverse, size)

    def count(self, namespace: Namespace) -> int | None:
        """Return the number of keys of a map; None if it has to be counted."""
        with self.snapshot() as snapshot:
            return snapshot.count(namespace)

    def peek(self, namespace: Namespace) -> tuple[list[Pair], int | None]:
        """Return the first pairs and how many there are, for whoever only looks."""
        with self.snapshot() as snapshot:
            return snapshot.peek(namespace)

    # -------------------------------------------------------------- what only writers may

    def refuse(self) -> NoReturn:
        """Raise ``ReadOnlyError``: the store is open for reading only."""
        self.check_open()
        raise ReadOnlyError(
            f"{self.path} is open for reading only",
            hint="Open it without `read_only=True`; to read at one moment take a `snapshot`.",
        )

    # -------------------------------------------------------------- copies

    def back_up(
        self, directory: str, *, verify: bool, compact: bool = False, begin: BeginPhase = untold
    ) -> BackupReport:
        """Copy the newest durable state, whatever is shown here, into a directory.

        ``compact`` leaves the unused pages of the data file out; ``begin`` is told of each phase of
        the check.
        """
        access = self.access
        manifest = access.manifest()
        # A slot of its own: a refresh may raise the other one meanwhile.
        slot = access.another_slot()
        try:
            source = BackupSource(
                environment=access.environment,
                path=self.path,
                manifest=manifest,
                kv=access.kv,
                wal=access.wal,
                maps=tuple(self.names()),
                durable=lambda known: newest_durable(access.wal, manifest.log_ids, known),
                pin=_nothing_to_pin if slot is None else slot.raise_to,
                compact=compact,
            )
            return back_up(source, directory, verify=verify, begin=begin)
        finally:
            if slot is not None:
                slot.release()

    # -------------------------------------------------------------- status and end

    def statistics(self) -> ReadStatistics:
        """Return how the store looks from here."""
        view = self.overlay.view
        live = [snapshot for snapshot in self._snapshots if snapshot.layers() is not None]
        sizes = segment_sizes(self.access.wal)
        return ReadStatistics(
            position=self.position,
            checkpoint_position=self._start,
            overlay_bytes=sum(layer.bytes for layer in view.layers),
            overlay_layers=len(view.layers),
            data_bytes=self.access.kv.size_used(),
            snapshots=len(live),
            oldest_snapshot_seconds=max((self.now() - s.began for s in live), default=None),
            refreshes=self._refreshes,
            log_bytes=sum(sizes),
            log_segments=len(sizes),
        )

    def close(self) -> None:
        """Let go of the store; open snapshots end.

        Closing twice is fine, and what an interrupt left undone is done then.
        """
        with self._mutex:
            self._closed = self._closed or self._closed_error
        with self._refreshing:
            if self._released:
                return
            for snapshot in self._snapshots:
                snapshot.end(self._closed)
            self._base = None
            self.overlay.view = reads.closed_view(self._closed)
            _open_readers.discard(self)
            self.access.close()
            self._released = True
        log.info("store.closed path=%s", self.path, extra={"event": "store.closed"})

    def _closed_error(self) -> TidelogError:
        return ClosedError(f"the store {self.path} is closed")

    def __del__(self) -> None:
        """Give back what nobody can give back any more."""
        if self._held and not self._released and self._finalizes:
            self.close()
            if self.warns:
                warn_of_lost(self.path)

    def forked(self) -> None:
        """In the child of a fork: nothing of this store may be touched."""
        self._closed = self.forked_error
        free(self._mutex, self._refreshing)
        self._released = True
        self._base = None
        self.overlay.view = reads.closed_view(self.forked_error)
        for snapshot in self._snapshots:
            snapshot.forked(self.forked_error)

    def forked_error(self) -> TidelogError:
        """Return what every call raises in the child of a fork."""
        return ForkedError(f"the store {self.path} was opened before this process was forked")

    def check_open(self) -> None:
        """Raise if the store was closed, or opened before a fork."""
        if self._closed is not None:
            raise self._closed()


def stacked(newest: Layer, older: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return the layers with ``newest`` on top, merged so that their sizes double going down.

    So n refreshes leave about log2(n) layers, and copy an update about that often.  Layers that
    were there stay as they are: views may hold them.
    """
    while older and older[0].bytes <= 2 * newest.bytes:
        merged = Layer()
        merged.absorb(older[0])
        merged.absorb(newest)
        newest, older = merged, older[1:]
    return newest, *older


def _position_of(mark: StoreMark | None) -> int:
    return 0 if mark is None else mark.position


def _view_of(base: Base) -> View:
    return View(base.layers, base.txn)


def _nothing_to_pin(_position: int) -> None:
    """Nobody writes the store, so nothing is dropped."""


def _nothing_to_sync(_position: int) -> None:
    """A reading process makes nothing durable."""


def _nothing_to_wait_for() -> None:
    """Nothing is applied here, so nothing ever is half applied."""


_open_readers: weakref.WeakSet[ReadSession] = weakref.WeakSet()


def _close_all() -> None:
    """Give back the slots of what a program left open at its end."""
    for session in list(_open_readers):
        session.close()


def _after_fork() -> None:
    for session in list(_open_readers):
        session.forked()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
