"""Carries the overlay into the partition store, and drops log that nobody needs any more.

One checkpoint, step by step, and what a crash leaves:

1. Seal the overlay at a position P of the log (O(1), under the commit mutex).
2. Sync the log up to P: LMDB never holds what the synced log does not (I-3).
3. Write the partitions in order, several to a transaction (`batch_updates` of them each), every one
   with its mark at P; a large one in pieces (`piece_updates`), of which the last moves the mark.
   If a map was dropped, all namespaces that are in no catalog go with the last piece.
   A crash between two transactions leaves partitions at different marks; replay goes by each
   partition's own, and brings again what a piece holds already.
4. Write the store's mark with the last transaction: now every partition counts as being at P.
5. Drop the sealed layers, log a CHECKPOINT record, let retention look at the log.

After an I/O error of LMDB nothing is written into its file any more: the manifest notes it, and
the next open makes a fresh, synced copy of the file and checks it.

Several transactions instead of one bound the pages that copy-on-write doubles; readers move to
the newest transaction after each, so that LMDB can use freed pages again.

Rows of a load take a way of their own (``attaching``): ``add`` writes them in between, and a
checkpoint follows.

Left out: when it is due (``checkpoints.policy``), which segments may go (``wal.retention``).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from ...affinity.errors import DiskError, DiskFullError, TidelogError
from ...checkpoints.marks import PartitionMark, StoreMark
from ...checkpoints.replay import FIRST_NAMESPACE, State
from ...wal.records import CheckpointRecord, Record
from ..data.flush import Flush, Piece, append_pairs, flush_piece, still_held, without_data
from ..data.full_pairs import PairTally
from ..data.overlay import Layer, Overlay, merged
from ..data.partition_store import STORE_KEY, read_marks, write_mark
from ..system.disk_errors import lacks_space, translated_disk
from ..system.environment import Environment, KeyValueEnvironment, KvTransaction
from ..system.forks import free
from ..system.layout import DATA_NAME
from ..system.limits import Limits
from ..system.lmdb_file import KvFullError
from .data_file_growth import MapGrowth
from .renewal import pays, take_place, write_fresh

Lives = Callable[[int], bool]
"""Whether a namespace, by its id, may have data."""

log = logging.getLogger("tidelog.checkpoint")


@dataclass(slots=True)
class CheckpointFigures:
    """What checkpoints did so far."""

    count: int = 0
    failures: int = 0
    seconds: float = 0.0
    updates: int = 0
    position: int = 0


class CheckpointSource(Protocol):
    """Where a checkpoint finds what to write: the ``Committer``, or a recovery before it."""

    @property
    def mutex(self) -> threading.Lock:
        """Guards state and overlay."""

    @property
    def state(self) -> State:
        """Counters, epochs and namespaces."""

    @property
    def overlay(self) -> Overlay:
        """What is to be written."""

    @property
    def applied_position(self) -> int:
        """The position up to which the overlay has everything."""

    @property
    def flush_turn(self) -> AbstractContextManager[object]:
        """Taken while a part of a checkpoint is written; threads that never wait pass it on."""

    def check_writable(self) -> None:
        """Raise if what is in memory must not be carried over any more; under the mutex."""

    def sync(self, position: int) -> object:
        """Make the log durable up to a position."""

    def log(self, records: Iterable[Record]) -> int:
        """Append records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    """What one checkpoint carries over, as it was at a position of the log.

    ``moved`` are partitions of which only the counters have changed.  ``lives`` is None unless
    maps were dropped, so that their rows have to go.  ``cleared`` is what the log had cleared.
    """

    layers: list[Layer]
    position: int
    flushes: list[Flush]
    moved: list[Flush]
    mark: StoreMark
    dropped: frozenset[int]
    lives: Lives | None
    cleared: Mapping[int, int]


class Checkpointer:
    """Takes checkpoints, one at a time, from whichever thread asks."""

    def __init__(
        self,
        environment: Environment,
        source: CheckpointSource,
        store: KeyValueEnvironment,
        marks: dict[int, PartitionMark],
        *,
        path: str,
        growth: MapGrowth,
        doubt: Callable[[], None],
    ) -> None:
        self._path = path
        self.position = source.applied_position
        self.figures = CheckpointFigures(position=self.position)
        self.marks = marks
        self._marks_hold = True
        """Whether ``marks`` are those of the data file; False while it is written."""
        self.doubtful: DiskError | None = None
        """What failed when the data file was written: nobody knows what it holds now."""
        self._doubt = doubt
        self._environment = environment
        self._source = source
        self._store = store
        self._growth = growth
        self._after: Callable[[int], None] = _nothing
        self._lock = threading.Lock()
        self._carried: AbstractSet[int] = frozenset()
        """Partitions whose marks a checkpoint is to write; none of them is forgotten before that,
        also if an interrupt comes in the way of one that failed."""

    def adopt(self, source: CheckpointSource, after: Callable[[int], None]) -> None:
        """Go on for who writes, now that the recovery has ended; ``after`` hears of checkpoints."""
        self._source = source
        self._after = after

    def between(self) -> AbstractContextManager[object]:
        """Return a block during which no checkpoint runs."""
        return self._lock

    @property
    def running(self) -> bool:
        """Whether a checkpoint is being taken."""
        return self._lock.locked()

    def forked(self) -> None:
        """In the child of a fork: wait for no checkpoint of the parent."""
        free(self._lock)

    def run(self, reason: str) -> int:
        """Take a checkpoint now; return its position.  Raises ``StorageError`` if it fails."""
        self.run_while(_always, reason)
        return self.position

    def run_while(self, needed: Callable[[], bool], reason: str) -> None:
        """Take a checkpoint if it is still needed when a running one has ended."""
        # In C, so that no interrupt comes in between two steps and leaves the lock with them.
        deque(self.steps(needed, reason), maxlen=0)

    def steps(
        self, needed: Callable[[], bool], reason: str, limits: Limits | None = None
    ) -> Generator[None, None, None]:
        """Take a checkpoint step by step: yields behind its beginning and behind each piece.

        Only the lock of checkpoints is held meanwhile, so that anything else may happen.  Whoever
        does not want the rest closes the iterator: what was written counts for its partitions, and
        the next checkpoint does the rest.  ``limits`` are those of the store if none are given.
        Raises ``StorageError`` if it fails.
        """
        with self._lock:
            if not needed():
                return
            if self.doubtful is not None:
                raise self._refusal() from self.doubtful
            self._growth.let_through()
            start = self._environment.monotonic()
            log.debug("checkpoint.begin reason=%s", reason, extra={"event": "checkpoint.begin"})
            try:
                yield from self._renew(limits or self._environment.limits)
                updates = yield from self._checkpoint(limits or self._environment.limits)
            except (TidelogError, OSError) as error:
                raise self._failed(error, reason) from error
            self._done(reason, updates, self._environment.monotonic() - start)

    def _failed(self, error: TidelogError | OSError, reason: str) -> TidelogError:
        self.figures.failures += 1
        log.error(
            "checkpoint.failed: Tidelog: a checkpoint of the store %s failed, and its log keeps "
            "the updates: %s (reason=%s)",
            self._path,
            error,
            reason,
            extra={"event": "checkpoint.failed"},
        )
        return _as_storage_error(error)

    def _done(self, reason: str, updates: int, seconds: float) -> None:
        figures = self.figures
        figures.count += 1
        figures.seconds += seconds
        figures.updates += updates
        figures.position = self.position
        log.info(
            "checkpoint.done reason=%s position=%d updates=%d seconds=%.3f",
            reason,
            self.position,
            updates,
            seconds,
            extra={"event": "checkpoint.done"},
        )
        self._after(self.position)

    def add(
        self,
        rows: Mapping[int, dict[bytes, bytes]],
        position: int,
        check: Callable[[], None],
    ) -> None:
        """Write rows that no record holds, by full key and in its order, in one transaction.

        A record below ``position``, durable, has closed their numbers.  Positions and counters of
        the marks stay as they are.  ``check`` raises if nothing may be written any more.
        """
        parts = [_part_of(*item, position) for item in rows.items()]
        self._put(lambda txn: self._flushed(txn, parts, None), check)

    def fill(
        self,
        partition: int,
        keys: list[bytes],
        stored: list[bytes],
        position: int,
        check: Callable[[], None],
        turn: AbstractContextManager[object],
    ) -> PairTally:
        """Write stored pairs, deletes among them, into a partition of which nothing else counts.

        They have their checks, and lie behind all that is there, in order.  ``position`` is where
        the log says that nothing counts, durably.  ``turn`` is held but for the sync.
        Returns the tally of what was written.
        """
        marks: list[PartitionMark] = []

        def write(txn: KvTransaction) -> dict[int, PartitionMark]:
            before = self.marks.get(partition) or PartitionMark.empty()
            with turn:
                after = append_pairs(txn, before, partition, keys, stored, position)
            marks[:] = before, after
            return {partition: after}

        self._put(write, check)
        before, after = marks
        return PairTally(
            after.count - before.count,
            after.tombstones - before.tombstones,
            after.digest ^ before.digest,
        )

    def _put(
        self, write: Callable[[KvTransaction], dict[int, PartitionMark]], check: Callable[[], None]
    ) -> None:
        with self._lock:
            check()
            if self.doubtful is not None:
                raise self._refusal() from self.doubtful
            self._growth.let_through()
            self._carry(write)

    def _refusal(self) -> DiskError:
        # A further commit may succeed without the pages that the failed one left unwritten.
        return DiskError(
            f"no checkpoint is taken any more since writing the data file failed: {self.doubtful}",
            hint="Check the disk, close the store and open it again: the log has everything.",
        )

    def _renew(self, limits: Limits) -> Iterator[None]:
        """Go on in a new data file if most of what this one has was cleared.

        If there is no room for two the checkpoint removes it pair by pair.
        """
        source = self._source
        if not self._marks_hold:
            self._read_marks()
        with source.mutex:
            source.check_writable()
            cleared = still_held(source.state.cleared, self.marks)
            position = source.applied_position
        if not pays(self.marks, cleared, limits):
            return
        source.sync(position)
        without = {p: without_data(self.marks[p], position) for p in cleared}
        environment = self._environment
        try:
            folder = environment.disk.directory(os.path.join(self._path, DATA_NAME))
            fresh = yield from write_fresh(self._store, folder, without, limits, environment.rest)
        except (KvFullError, DiskFullError, DiskError, OSError) as error:
            log.warning(
                "data.not_renewed: Tidelog: the store %s gets no new data file, and removes what "
                "was cleared pair by pair: %s",
                self._path,
                error,
                extra={"event": "data.not_renewed"},
            )
            return
        self._marks_hold = False
        try:
            with translated_disk("giving a new data file its name"):
                take_place(self._store, folder, fresh)
        except BaseException as error:
            self._let_nothing_be_written(DiskError(f"renewing the data file failed: {error!r}"))
            raise
        self._hold(without)

    def _checkpoint(self, limits: Limits) -> Generator[None, None, int]:
        """Take a checkpoint; the generator returns how many updates that carried over."""
        source = self._source
        state = source.state
        if not self._marks_hold:
            self._read_marks()
        try:
            with source.mutex:
                source.check_writable()
                state.touched |= self._carried
                sealed = self._seal()
                self._carried, state.touched = state.touched, set()
            yield
            source.sync(sealed.position)
            yield from self._write(sealed, limits)
            with source.mutex:
                source.overlay.end_flush(sealed.layers, self._growth.begin())
                state.dropped.difference_update(sealed.dropped)
                self._carried = frozenset()
        except BaseException:
            with source.mutex:
                source.overlay.abandon_flush()
                state.touched |= self._carried
            raise
        self.position = sealed.position
        self._note(sealed.position)
        return sum(len(flush.updates) for flush in sealed.flushes)

    def _seal(self) -> _Sealed:
        """Take what is there into a checkpoint; under the mutex."""
        state, overlay = self._source.state, self._source.overlay
        layers = overlay.begin_flush()
        position = self._source.applied_position
        parts = merged(layers)
        dropped = frozenset(state.dropped)
        wanted = range(state.partitions) if dropped else sorted(parts)
        untouched = () if dropped else sorted(state.touched.difference(parts))
        return _Sealed(
            layers=layers,
            position=position,
            flushes=[self._flush_of(at, parts.get(at, {}), position) for at in wanted],
            moved=[self._flush_of(at, {}, position) for at in untouched],
            mark=state.mark(position),
            dropped=dropped,
            lives=catalog_of(state) if dropped else None,
            cleared=dict(state.cleared),
        )

    def _flush_of(self, partition: int, updates: dict[bytes, bytes], position: int) -> Flush:
        mark = self.marks.get(partition)
        return Flush.of(self._source.state, partition, updates, position, mark)

    def _write(self, sealed: _Sealed, limits: Limits) -> Iterator[None]:
        """Write all partitions, several to a transaction, and the store's mark with the last.

        One that was cleared has pieces of its own, even if it has no updates.
        """
        flushes, moved, lives = sealed.flushes, sealed.moved, sealed.lives
        cleared = {f.partition for f in (*flushes, *moved) if f.cleared is not None}
        batch: list[Piece] = []
        size, most = 0, limits.piece_updates
        for piece in _pieces([*flushes, *(f for f in moved if f.partition in cleared)], most):
            batch.append(piece)
            size += len(piece.keys) + min(piece.clears, piece.flush.held)
            if size >= limits.batch_updates or (piece.keys and not piece.last):
                self._commit(batch, None, lives)
                yield
                batch, size = [], 0
        moved = [flush for flush in moved if flush.partition not in cleared]
        self._environment.reached("checkpoint.before_mark")
        self._commit([*batch, *_pieces(moved, most)], sealed.mark, lives)
        yield
        with self._source.mutex:
            self._source.state.forget_cleared(sealed.cleared)

    def _commit(self, batch: list[Piece], mark: StoreMark | None, lives: Lives | None) -> None:
        """Write partitions in one transaction, and the store's mark if there is one."""

        def write(txn: KvTransaction) -> dict[int, PartitionMark]:
            done = self._flushed(txn, batch, lives)
            if mark is not None:
                write_mark(txn, STORE_KEY, mark.to_bytes())
            return done

        self._carry(write)

    def _flushed(
        self, txn: KvTransaction, batch: Iterable[Piece], lives: Lives | None
    ) -> dict[int, PartitionMark]:
        """Write pieces, of one partition in their order; return the new marks."""
        done: dict[int, PartitionMark] = {}
        for piece in batch:
            partition = piece.flush.partition
            before = done.get(partition) or self.marks.get(partition) or PartitionMark.empty()
            done[partition] = flush_piece(
                txn, piece, before, lives, self._source.flush_turn, rest=self._environment.rest
            )
        return done

    def _carry(self, write: Callable[[KvTransaction], dict[int, PartitionMark]]) -> None:
        """Write in one transaction, with a larger map if this one is full; note the new marks."""
        if not self._marks_hold:
            self._read_marks()
        while True:
            try:
                self._marks_hold = False
                with self._store.write() as txn:
                    done = write(txn)
                break
            except KvFullError:
                self._growth.grow()
            except DiskError as error:
                self._let_nothing_be_written(error)
                raise
        self._hold(done)

    def _let_nothing_be_written(self, error: DiskError) -> None:
        """Write into the data file no more: nobody knows what it holds now."""
        self.doubtful = error
        self._doubt()

    def _hold(self, marks: Mapping[int, PartitionMark]) -> None:
        """Note marks that the data file has by now, and let readers move on."""
        self.marks.update(marks)
        self._marks_hold = True
        with self._source.mutex:
            self._source.overlay.refresh(self._growth.begin())

    def _read_marks(self) -> None:
        """Learn anew what the data file holds: an interrupt may come behind a commit of LMDB."""
        _, marks = read_marks(self._store.begin())
        self.marks.clear()
        self.marks.update(marks)
        self._marks_hold = True

    def _note(self, position: int) -> None:
        """Leave a CHECKPOINT record; it is a courtesy to readers of the log, so no error."""
        try:
            self._source.log([CheckpointRecord(position=position, time=self._environment.clock())])
        except TidelogError as error:
            log.warning(
                "checkpoint.unnoted: Tidelog: a checkpoint of the store %s left no record in the "
                "log: %s",
                self._path,
                error,
                extra={"event": "checkpoint.unnoted"},
            )


def catalog_of(state: State) -> Lives:
    """Return whether a namespace, by its id, may have data: all but those that are gone.

    An id that the log has not come to yet is not gone: a partition that an interrupted checkpoint
    left ahead may have its rows while a recovery is still behind.
    """
    known, later = frozenset(state.namespaces), state.next_namespace
    return lambda number: number in known or number < FIRST_NAMESPACE or number >= later


def _part_of(partition: int, rows: dict[bytes, bytes], position: int) -> Piece:
    flush = Flush(partition=partition, updates=rows, position=position, counter=b"", epochs=())
    return Piece(flush=flush, keys=list(rows), last=False)


def _pieces(flushes: Iterable[Flush], most: int) -> Iterator[Piece]:
    return chain.from_iterable(flush.pieces(most) for flush in flushes)


def _always() -> bool:
    return True


def _nothing(_position: int) -> None:
    """Nobody listens during a recovery."""


def _as_storage_error(error: TidelogError | OSError) -> TidelogError:
    if isinstance(error, TidelogError):
        return error
    return (DiskFullError if lacks_space(error) else DiskError)(f"the checkpoint failed: {error}")
