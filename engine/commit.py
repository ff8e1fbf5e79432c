"""The commit path: validate, reserve, log, sync, apply, in groups led by a committing thread.

A thread that commits queues a *ticket*.  If nobody leads, it leads: it takes what is queued,
checks it in queue order, writes it as one frame, syncs once, applies it and wakes the others;
then it hands the lead to the first ticket that came meanwhile.  A lone committer pays no hand-off.

What is durable when, and what a crash leaves:

1. checked and reserved: nothing on disk; numbers above the last one in the log are forgotten.
2. frame written: ``always`` waits; other levels apply and acknowledge here (kill -9 keeps it).
3. synced: the group is durable.  A crash from here on finds it in the log.
4. applied: readers see it, LWM has passed it, committers are told.

Invariants:

- The mutex guards queue, counters, overlay, log end, and the in-flight group.  It is not held
  during a sync.
- While a group is in flight nobody else appends, so updates apply in log order.
- A group that failed to reach the log leaves its numbers in ``_closing``: a ROLLBACK at the head
  of the next frame closes them.
- After a failed sync ``stopped`` is set: no commit is accepted any more, what was in flight is
  answered with ``CommitUnknownError``, and reading goes on.

Left out: locks of pessimistic transactions (``lock_manager``), checkpoints (``checkpointer``).
"""

from __future__ import annotations

import errno
import threading
from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterable, Iterator, Sequence, Set as AbstractSet
from typing import Any, NamedTuple, Protocol

import msgpack
from crc32c import crc32c
from mmh3 import hash as murmur3

from ..affinity.errors import (
    CommitUnknownError,
    DeadlineError,
    DiskError,
    DiskFullError,
    ReadOnlyError,
    TidelogError,
    TransactionTooLargeError,
)
from ..checkpoints.replay import State
from ..wal.records import (
    IdleRecord,
    Record,
    RollbackRecord,
    Run,
    encode_put,
    encode_record,
    pack_record_header,
)
from ..wal.writer import LogFailedError, LogWriter
from .environment import Environment
from .namespaces import Namespace
from .overlay import PAIR_OVERHEAD, Overlay
from .stored import CHECK_XOR, pack_check, pack_meta
from .updates import NoUpdates, Updates

GROUP_BYTES_MAX = 1 << 20
TURN_MASK = 511
"""A relaxed committer lets a checkpoint write a part once in so many transactions, and one."""
PUT_OVERHEAD = 64
"""About what the record of a put has beside its value."""


class Receipt(NamedTuple):
    """What a commit leaves behind: its id, its position in the log, and its time.

    ``position`` is the end of the log behind the transaction, in bytes; ``time`` microseconds
    UTC; ``home`` the partition to ask about it.  A transaction that wrote nothing has position 0.
    """

    tx_id: bytes
    position: int
    time: int
    home: int


class Entry(Protocol):
    """A commit in the queue, as the leader handles it; all calls are made under the mutex."""

    durable: bool
    size: int
    error: BaseException | None

    @property
    def tx_id(self) -> bytes | None:
        """The id of the transaction, known once it is prepared; None for other records."""

    def prepare(self, committer: Committer, group: Sequence[Entry], time: int) -> bytes | None:
        """Check it against all before it, reserve its numbers and return its record.

        None where it was refused; empty where it was committed earlier under the same id.
        """

    def apply(self, committer: Committer, end: int) -> None:
        """Put it into overlay and counters; the frame that holds it ends at ``end``."""

    def fail(self, error: BaseException, runs: list[int]) -> None:
        """End it without effect; ``runs`` takes the numbers that it had reserved."""

    def unknown(self, cause: BaseException) -> None:
        """End it after a failed sync: it may or may not be on disk."""

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys it changes."""

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys that it changes."""


class Put:
    """A put of one key, outside of any transaction: the most frequent commit, and the leanest."""

    __slots__ = ("_epoch", "_full_key", "_id", "_key", "_namespace", "_number", "_partition",
                 "_time", "_value", "done", "durable", "error", "size", "wake")  # fmt: skip

    def __init__(
        self, partition: int, namespace: int, full_key: bytes, key: bytes, value: bytes,
        durable: bool,
    ) -> None:  # fmt: skip
        self._partition = partition
        self._namespace = namespace
        self._full_key = full_key
        self._key = key
        self._value = value
        self.durable = durable
        self.size = len(value) + PUT_OVERHEAD
        self.done = False
        self.error: BaseException | None = None
        self.wake: LockType | None = None

    def prepare(self, committer: Committer, group: Sequence[Entry], time: int) -> bytes | None:
        """Check for locks and a stop, reserve a number and return the record."""
        if committer.stopped is not None:
            self.error = committer.refusal()
            return None
        if committer.locks_held:
            self.error = committer.locked(0, (self._full_key,))
            if self.error is not None:
                return None
        state = committer.state
        partition = self._partition
        self._number = number = state.counters[partition].reserve(1) + 1
        self._time = time
        self._epoch = epoch = state.epochs[partition]
        self._id = prefix, tx = committer.next_id()
        return encode_put(
            prefix, tx, time, partition, epoch, number, self._namespace, self._key, self._value
        )

    def apply(self, committer: Committer, end: int) -> None:
        """Put it into overlay and counters."""
        state, layer = committer.state, committer.overlay.active
        partition, number, full_key = self._partition, self._number, self._full_key
        body = self._value + pack_meta(0, self._epoch, number, self._time)
        part = layer.parts.get(partition)
        if part is None:
            part = layer.part(partition)
        part[full_key] = body + pack_check(crc32c(full_key + body) ^ CHECK_XOR)
        layer.bytes += self.size + PAIR_OVERHEAD
        state.counters[partition].update(number - 1, 1)

    def fail(self, error: BaseException, runs: list[int]) -> None:
        """End it without effect."""
        runs += (self._partition, self._epoch, self._number, 1)
        self.error = error

    def unknown(self, cause: BaseException) -> None:
        """End it after a failed sync."""
        self.error = unknown_outcome(cause, self.tx_id, self._partition)

    @property
    def tx_id(self) -> bytes:
        """The id that it got when it was prepared."""
        prefix, tx = self._id
        return prefix + tx.to_bytes(8, "big")

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return the key if it is among ``keys``."""
        return keys & {self._full_key}

    def full_keys(self) -> Iterable[bytes]:
        """Return the key."""
        return (self._full_key,)


class Commit:
    """A transaction, or other records, on the way into the log.

    ``check`` raises what speaks against it, given the earlier ones of its group; it runs under
    the mutex, in commit order.  ``then`` runs under the mutex when the commit is applied.
    """

    __slots__ = ("_runs", "_time", "check", "deadline", "details", "done", "durable", "error",
                 "receipt", "record", "size", "then", "tx_id", "updates",
                 "wake")  # fmt: skip

    def __init__(
        self,
        updates: Updates,
        durable: bool,
        check: Callable[[Commit, Sequence[Entry]], None] | None = None,
        *,
        tx_id: bytes | None = None,
        details: dict[str, Any] | None = None,
        deadline: float | None = None,
    ) -> None:
        self.updates = updates
        self.durable = durable
        self.check = check
        self.tx_id = tx_id
        self.details = details
        self.deadline = deadline
        self.record = b""
        self.size = updates.size()
        self.then: Callable[[], object] | None = None
        self.receipt: Receipt | None = None
        self.error: BaseException | None = None
        self.done = False
        self.wake: LockType | None = None
        self._runs: list[int] = []
        self._time = 0

    def prepare(self, committer: Committer, group: Sequence[Entry], time: int) -> bytes | None:
        """Check it against all before it, reserve its numbers and return its record."""
        try:
            if committer.stopped is not None:
                raise committer.refusal()
            if self.deadline is not None:
                committer.check_deadline(self.deadline)
            if self.check is not None:
                self.check(self, group)
        except TidelogError as error:
            self.error = error
            return None
        if self.receipt is not None:
            return b""  # committed earlier under the same id, but perhaps not durably
        self._time = time
        if self.record:
            return self.record
        self._runs, namespaces, keys, values = self.updates.reserve(committer.state)
        if self.tx_id is None:
            self.tx_id = committer.new_id()
        else:
            committer.note_given_id(self.tx_id)
        return committer.tx_record(
            (self.tx_id, time, self._runs, namespaces, keys, values, self.details)
        )

    def apply(self, committer: Committer, end: int) -> None:
        """Put it into overlay and counters, and make its receipt."""
        if self.receipt is not None:
            return
        self.updates.apply(committer.overlay.active, committer.state, self._time)
        home = self._runs[0] if self._runs else 0
        self.receipt = Receipt(self.tx_id or b"", end, self._time, home)
        if self.then is not None:
            self.then()

    def fail(self, error: BaseException, runs: list[int]) -> None:
        """End it without effect."""
        runs += self._runs
        self.receipt = None
        self.error = error

    def unknown(self, cause: BaseException) -> None:
        """End it after a failed sync."""
        home = self._runs[0] if self._runs else 0
        self.receipt = None
        self.error = cause if self.tx_id is None else unknown_outcome(cause, self.tx_id, home)

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys it changes."""
        return self.updates.changed(keys)

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys that it changes."""
        return self.updates.full_keys()


class Batch:
    """Commits that one thread brings at once, and waits for together."""

    __slots__ = ("done", "entries", "size", "wake")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.size = sum(entry.size for entry in entries)
        self.done = False
        self.wake: LockType | None = None


def unknown_outcome(cause: BaseException, tx_id: bytes, home: int) -> CommitUnknownError:
    """Return the error for a commit whose sync failed."""
    return CommitUnknownError(
        f"{cause}; transaction {tx_id.hex()} may or may not be on disk", tx_id=tx_id, home=home
    )


class Committer:
    """The one way into the log and the overlay."""

    def __init__(
        self,
        environment: Environment,
        state: State,
        overlay: Overlay,
        writer: LogWriter,
        *,
        id_prefix: bytes,
        transaction_bytes_max: int,
        mutex: threading.Lock,
    ) -> None:
        self.mutex = mutex
        self.state = state
        self.overlay = overlay
        self.writer = writer
        self.stopped: str | None = None
        """Why nothing is written any more, or None."""
        self.transaction_bytes_max = transaction_bytes_max
        self.in_flight: Sequence[Entry] = ()
        self.applied_position = writer.position
        self.locks_held = False
        """Whether anybody holds a lock; kept by the lock manager."""
        self.locked: Callable[[int, Iterable[bytes]], TidelogError | None] = _not_locked
        """Returns the error for keys of which somebody else than the owner holds a lock."""
        self.note_given_id: Callable[[bytes], None] = _no_note
        self.syncs = SyncTimes()
        self.turn = threading.Lock()
        """Held for a part of a checkpoint; relaxed committers, who never wait otherwise, take it
        now and then, else the checkpoint would get the interpreter once in five milliseconds."""
        self.grouped = 0
        self.groups = 0
        """Transactions that went into the log in groups, and those groups."""
        overlay.settle = self._settled
        self._environment = environment
        self._sync_lock = threading.Lock()
        self._queue: list[Put | Commit | Batch] = []
        self._leading = False
        self.in_the_way = False
        """Whether a relaxed update has to queue: a leader, gaps to close, locks, an end."""
        self._ending = False
        self._closing: list[int] = []
        self._id_prefix = id_prefix
        self._next_id = 0
        self._first_in_flight = 1
        self._pack = msgpack.Packer().pack
        self._waiters: list[LockType] = []

    # -------------------------------------------------------------- entrances

    def commit(self, commit: Commit) -> Receipt:
        """Commit one transaction and return its receipt; raises what speaks against it."""
        if commit.size > self.transaction_bytes_max:
            raise self._too_large(commit.size)
        self._queue_up(commit)
        if commit.error is not None:
            raise commit.error
        assert commit.receipt is not None
        return commit.receipt

    def put(self, put: Put) -> None:
        """Commit one put; raises what speaks against it."""
        if put.size > self.transaction_bytes_max:
            raise self._too_large(put.size)
        self._queue_up(put)
        if put.error is not None:
            raise put.error

    def commit_all(self, entries: Sequence[Entry]) -> None:
        """Commit several, in order; each gets its receipt or its ``error``."""
        ready = []
        for entry in entries:
            if entry.size > self.transaction_bytes_max:
                entry.error = self._too_large(entry.size)
            else:
                ready.append(entry)
        if ready:
            self._queue_up(Batch(ready))

    def _too_large(self, size: int) -> TransactionTooLargeError:
        return TransactionTooLargeError(
            f"the transaction has {size:,} bytes, {self.transaction_bytes_max:,} are allowed"
        )

    def _queue_up(self, ticket: Put | Commit | Batch) -> None:
        """Wait until a ticket has ended, leading a group where nobody does."""
        mutex = self.mutex
        mutex.acquire()
        self._queue.append(ticket)
        if self._leading:
            wake = ticket.wake = allocate_lock()
            wake.acquire()
            mutex.release()
            wake.acquire()
            if ticket.done:
                return
            mutex.acquire()
        self._leading = self.in_the_way = True
        try:
            while not ticket.done:
                self._lead()
        finally:
            following = self._next_leader()
            mutex.release()
            if following is not None:
                following.release()

    def new_id(self) -> bytes:
        """Return the next automatic transaction id."""
        self._next_id += 1
        return self._id_prefix + self._next_id.to_bytes(8, "big")

    def next_id(self) -> tuple[bytes, int]:
        """Return the next automatic transaction id as its two halves."""
        self._next_id += 1
        return self._id_prefix, self._next_id

    def reserve_ids(self, count: int) -> tuple[bytes, int]:
        """Return the next ``count`` automatic transaction ids as prefix and first number."""
        first = self._next_id + 1
        self._next_id += count
        return self._id_prefix, first

    def check_deadline(self, deadline: float) -> None:
        """Raise ``DeadlineError`` where a deadline has passed."""
        if self._environment.monotonic() > deadline:
            raise DeadlineError("the deadline passed before the commit began")

    def tx_record(self, fields: tuple[object, ...]) -> bytes:
        """Return a TX record with these fields; the packer is used under the mutex only."""
        body = self._pack(fields)
        return pack_record_header(len(body), 1, 0) + body

    def ids(self) -> tuple[bytes, int]:
        """Return the prefix and the newest number of the automatic ids of this opening."""
        return self._id_prefix, self._next_id

    def ids_in_flight(self) -> tuple[int, list[bytes]]:
        """Return the ids of the group on its way into the log: the first number, and given ones."""
        given = [entry.tx_id for entry in self.in_flight if entry.tx_id is not None]
        return self._first_in_flight, given

    def log(
        self,
        records: Iterable[Record],
        *,
        durable: bool = False,
        then: Callable[[], object] | None = None,
    ) -> int:
        """Log records that are no transactions; return the end of the log behind them.

        ``then`` runs under the mutex once they are in the log.
        """
        commit = Commit(_NO_UPDATES, durable)
        commit.record = b"".join(map(encode_record, records))
        commit.then = then
        return self.commit(commit).position

    def announce(self) -> None:
        """Log an empty frame if syncs went further than any frame tells, and nobody is busy.

        It narrows what a damaged end of the log could be mistaken for, and lets other processes
        see the newest commits (docs/wal-format.md).
        """
        with self.mutex:
            writer = self.writer
            idle = not self._leading and self.stopped is None
            if idle and writer.synced == writer.position and writer.announced < writer.synced:
                try:
                    self._append(encode_record(IdleRecord()))
                except (OSError, LogFailedError):
                    return
                self.applied_position = writer.position
                # Nothing depends on this frame: it counts as announced, and needs no sync.
                writer.announced = writer.position

    def _settled(self) -> None:
        """Wait until no commit is being applied."""
        with self.mutex:
            pass

    def pass_turn(self) -> None:
        """Wait while a checkpoint writes a part."""
        with self.turn:
            pass

    def relaxed_setter(
        self,
        namespace: Namespace,
        room: Callable[[], None],
        limit: int,
        otherwise: Callable[[bytes, bytes | None], None],
    ) -> Callable[[bytes, bytes | None], None]:
        """Return a function that commits one update without a sync: one lock, frame and append.

        It calls ``room`` where the active layer holds ``limit`` bytes, and leaves the update to
        ``otherwise`` where a group is in flight or anything else stands in the way.  One closure
        on purpose: what it does once per update would cost half as much again in methods.
        """
        mutex, state, overlay, writer = self.mutex, self.state, self.overlay, self.writer
        counters, epochs = state.counters, state.epochs
        prefixes, number_of_map = namespace.prefixes, namespace.id
        count = len(prefixes)
        clock, append = self._environment.clock, self.writer.append
        prefix = self._id_prefix
        encode, meta, check = encode_put, pack_meta, pack_check
        value_bytes_max = self.transaction_bytes_max - PUT_OVERHEAD

        def set_one(key: bytes, value: bytes | None) -> None:
            partition = murmur3(key, 0, False) % count
            full_key = prefixes[partition] + key
            if overlay.active.bytes >= limit:
                room()
            if not self._next_id & TURN_MASK:
                self.pass_turn()
            with mutex:
                if (
                    not self.in_the_way
                    and namespace.alive
                    and value is not None
                    and len(value) < value_bytes_max
                ):
                    counter = counters[partition]
                    number = counter.hwm + 1
                    epoch = epochs[partition]
                    time = clock()
                    if time < state.time:
                        time = state.time
                    self._next_id = tx = self._next_id + 1
                    record = encode(
                        prefix, tx, time, partition, epoch, number, number_of_map, key, value
                    )
                    try:
                        done = append(record)
                    except (OSError, LogFailedError) as error:
                        raise self._disk_error(error) from error
                    if done:
                        counter.apply_next(1)
                        state.time = time
                        stored = value + meta(0, epoch, number, time)
                        layer = overlay.active
                        part = layer.parts.get(partition)
                        if part is None:
                            part = layer.part(partition)
                        part[full_key] = stored + check(crc32c(full_key + stored) ^ CHECK_XOR)
                        layer.bytes += len(record) + PAIR_OVERHEAD
                        self.applied_position = writer.position
                        overlay.changes += 1
                        return
            otherwise(key, value)

        return set_one

    # -------------------------------------------------------------- syncs

    def sync(self, position: int | None = None) -> int:
        """Make the log durable up to ``position`` (default: all); return how far it is.

        Raises ``DiskError`` and stops the store where the sync fails.
        """
        with self._sync_lock:
            if position is not None and self.writer.synced >= position:
                return self.writer.synced
            try:
                return self._timed_sync()
            except (OSError, LogFailedError) as error:
                raise self._stop(error) from error

    def _timed_sync(self) -> int:
        now = self._environment.monotonic
        start = now()
        synced = self.writer.sync()
        self.syncs.note(now() - start)
        return synced

    def _stop(self, error: BaseException) -> TidelogError:
        """A sync failed: nothing is written from here on."""
        self.in_the_way = True
        if self.stopped is None:
            cause = self.writer.failure or error
            self.stopped = f"the store stopped writing because a sync failed: {cause}"
        return DiskError(f"the sync of the log failed: {self.writer.failure or error}")

    def refusal(self) -> TidelogError:
        """Return the error for a write to a store that has stopped writing."""
        return ReadOnlyError(
            self.stopped or "the store is closed for writing",
            hint="Check the disk; close the store, open it again, and ask `db.outcome` "
            "about commits whose outcome is unknown.",
        )

    # -------------------------------------------------------------- the leader, mutex held

    def wait_applied(self) -> None:
        """Give up the mutex until the group in flight has ended."""
        waiter = allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)
        self.mutex.release()
        waiter.acquire()
        self.mutex.acquire()

    def _next_leader(self) -> LockType | None:
        if self._waiters:
            for waiter in self._waiters:
                waiter.release()
            self._waiters.clear()
        if self._queue:
            return self._queue[0].wake
        self._leading = False
        self.settle_way()
        return None

    def settle_way(self) -> None:
        """Find out whether a relaxed update may go straight into the log; under the mutex."""
        self.in_the_way = bool(
            self._leading
            or self._closing
            or self.locks_held
            or self._ending
            or self.stopped is not None
        )

    def begin_end(self) -> None:
        """Let no relaxed update take the short cut any more; under the mutex."""
        self._ending = self.in_the_way = True

    def end(self, why: str) -> None:
        """Take no more commits, and return once those on their way have ended."""
        with self.mutex:
            self.stopped = why
            self.begin_end()
            while self._leading:
                self.wait_applied()

    def _take(self) -> list[Put | Commit | Batch]:
        """Take tickets from the head of the queue, up to the size of a group."""
        queue = self._queue
        size = 0
        for count, ticket in enumerate(queue):
            size += ticket.size
            if count and size > GROUP_BYTES_MAX:
                taken = queue[:count]
                del queue[:count]
                return taken
        self._queue = []
        return queue

    def _lead(self) -> None:
        """Carry one group from the queue into log and overlay."""
        tickets = self._take()
        state = self.state
        time = self._environment.clock()
        if time < state.time:
            time = state.time
        group: list[Entry] = []
        records: list[bytes] = []
        self._first_in_flight = self._next_id + 1
        try:
            for entry in _entries(tickets):
                record = entry.prepare(self, group, time)
                if record is not None:
                    group.append(entry)
                    records.append(record)
            if group:
                state.time = time
                self._write(group, records)
        except (OSError, LogFailedError) as error:
            self._fail(group, error)
        except BaseException as error:
            # A bug, Ctrl-C, or a simulated crash: nobody may wait for ever.
            self._interrupted(group, error)
            for entry in _entries(tickets):
                entry.error = entry.error or error
            raise
        finally:
            self.in_flight = ()
            for ticket in tickets:
                ticket.done = True
                if ticket.wake is not None:
                    ticket.wake.release()

    def _write(self, group: Sequence[Entry], records: list[bytes]) -> None:
        """Log the group, sync it if anybody in it asked for that, and apply it."""
        self.in_flight = group
        payload = records[0] if len(records) == 1 else b"".join(records)
        if payload:
            self._append(payload)
        end = self.writer.position
        for entry in group:
            if entry.durable:
                self._sync_group(end)
                break
        overlay = self.overlay
        overlay.applying = True
        try:
            for entry in group:
                entry.apply(self, end)
        finally:
            overlay.changes += 1
            overlay.applying = False
        self.applied_position = end
        self.grouped += len(group)
        self.groups += 1

    def _sync_group(self, end: int) -> None:
        self.mutex.release()
        try:
            with self._sync_lock:
                if self.writer.synced < end:
                    self._timed_sync()
        finally:
            self.mutex.acquire()

    def _append(self, payload: bytes) -> None:
        """Append a frame, in a new segment where it does not fit."""
        if self._closing:
            runs = tuple(Run(*self._closing[i : i + 4]) for i in range(0, len(self._closing), 4))
            closing = RollbackRecord(
                tx_id=bytes(16), time=self.state.time, reason="append failed", runs=runs
            )
            payload = encode_record(closing) + payload
        if not self.writer.append(payload):
            self._rotate()
            self.writer.append(payload)
        if self._closing:
            for run in runs:
                self.state.counters[run.partition].update(run.first - 1, run.count)
                self.state.touched.add(run.partition)
            self._closing.clear()

    def _rotate(self) -> None:
        """Begin a new segment; its position is that of the end of the old one."""
        with self._sync_lock:
            try:
                self.writer.rotate()
            except OSError:
                if self.writer.failure is not None:
                    self._stop(self.writer.failure)
                raise

    def _interrupted(self, group: Sequence[Entry], error: BaseException) -> None:
        """End a group that something unexpected cut short; nothing of it was acknowledged.

        If its frame may be in the log already its numbers are used, and may not be closed: then
        nothing is written any more until the log has been read again.
        """
        if self.in_flight and self.writer.position != self.applied_position:
            self.stopped = f"a commit was interrupted: {error!r}"
            self.in_the_way = True
            for entry in group:
                entry.unknown(error)
        else:
            self._fail(group, error)

    def _fail(self, group: Sequence[Entry], error: BaseException) -> None:
        """Nothing of the group took effect in memory; say whether it may be on disk."""
        if self.writer.failure is None:
            for entry in group:
                entry.fail(self._disk_error(error), self._closing)
        else:
            cause = self._stop(self.writer.failure)
            for entry in group:
                entry.unknown(cause)

    def _disk_error(self, error: BaseException) -> BaseException:
        if isinstance(error, LogFailedError):
            return self.refusal()
        if not isinstance(error, OSError):
            return error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return DiskFullError(f"no space to append to the log: {error}")
        return DiskError(f"appending to the log failed: {error}", hint="Check the disk.")


_NO_UPDATES = NoUpdates()


def _entries(tickets: Iterable[Put | Commit | Batch]) -> Iterator[Entry]:
    for ticket in tickets:
        if isinstance(ticket, Batch):
            yield from ticket.entries
        else:
            yield ticket


class SyncTimes:
    """How long the last syncs took, in seconds: a ring of the newest 1,024."""

    def __init__(self) -> None:
        self.count = 0
        self._ring = [0.0] * 1024

    def note(self, seconds: float) -> None:
        """Remember one more sync."""
        self._ring[self.count & 1023] = seconds
        self.count += 1

    def percentiles(self) -> tuple[float, float, float]:
        """Return the median, the 99th percentile and the maximum, in microseconds."""
        known = sorted(self._ring[: min(self.count, 1024)])
        if not known:
            return 0.0, 0.0, 0.0
        last = len(known) - 1
        return known[last // 2] * 1e6, known[last * 99 // 100] * 1e6, known[last] * 1e6


def _not_locked(_owner: int, _keys: Iterable[bytes]) -> TidelogError | None:
    return None


def _no_note(_tx_id: bytes) -> None:
    return None
