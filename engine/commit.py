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

import _thread
import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
from crc32c import crc32c as _crc32c
from mmh3 import hash as _murmur3

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
    RecordType,
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


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a commit leaves behind: its id, its position in the log, and its time.

    ``position`` is the end of the log behind the transaction, in bytes; ``time`` microseconds
    UTC; ``home`` the partition to ask about it.  A transaction that wrote nothing has position 0.
    """

    tx_id: bytes
    position: int
    time: int
    home: int


class Commit:
    """One transaction on its way into the log.

    ``check`` raises what speaks against it, given the earlier ones of its group; it runs under
    the mutex, in commit order.  ``then`` runs under the mutex when the commit is applied.
    """

    __slots__ = ("check", "deadline", "details", "durable", "error", "receipt", "record", "runs",
                 "size", "then", "tx_id", "updates")  # fmt: skip

    def __init__(
        self,
        updates: Updates,
        durable: bool,
        check: Callable[[Commit, Sequence[Commit]], None] | None = None,
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
        self.runs: list[int] = []
        self.record = b""
        self.size = 0
        self.then: Callable[[], object] | None = None
        self.receipt: Receipt | None = None
        self.error: BaseException | None = None


class Ticket:
    """Commits that one thread waits for."""

    __slots__ = ("commits", "done", "wake")

    def __init__(self, commits: list[Commit]) -> None:
        self.commits = commits
        self.done = False
        self.wake: _thread.LockType | None = None


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
    ) -> None:
        self.mutex = threading.Lock()
        self.state = state
        self.overlay = overlay
        self.writer = writer
        self.stopped: str | None = None
        """Why nothing is written any more, or None."""
        self.transaction_bytes_max = transaction_bytes_max
        self.in_flight: Sequence[Commit] = ()
        self.applied_position = writer.position
        self.locks_held: Callable[[], bool] = _no_locks
        self.note_given_id: Callable[[bytes], None] = _no_note
        self.syncs = SyncTimes()
        self.grouped = 0
        self.groups = 0
        self.relaxed = 0
        """Transactions that went into the log in groups, those groups, and those that did not."""
        self._environment = environment
        self._sync_lock = threading.Lock()
        self._queue: list[Ticket] = []
        self._leading = False
        self.in_the_way = False
        """Whether a relaxed update has to queue: a leader, gaps to close, locks, or a stop."""
        self._closing: list[int] = []
        self._id_prefix = id_prefix
        self._next_id = 0
        self._pack = msgpack.Packer().pack
        self._waiters: list[_thread.LockType] = []

    # -------------------------------------------------------------- entrances

    def commit(self, commit: Commit) -> Receipt:
        """Commit one transaction and return its receipt; raises what speaks against it."""
        if self._measure(commit):
            self._queue_up(Ticket([commit]))
        if commit.error is not None:
            raise commit.error
        assert commit.receipt is not None
        return commit.receipt

    def commit_all(self, commits: list[Commit]) -> None:
        """Commit several transactions, in order; each gets its ``receipt`` or its ``error``."""
        ready = [commit for commit in commits if self._measure(commit)]
        for part in _groups(ready):
            self._queue_up(Ticket(part))

    def _queue_up(self, ticket: Ticket) -> None:
        """Wait until the commits of a ticket have ended, leading a group where nobody does."""
        mutex = self.mutex
        mutex.acquire()
        self._queue.append(ticket)
        if self._leading:
            wake = ticket.wake = _thread.allocate_lock()
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

    def _measure(self, commit: Commit) -> bool:
        """Refuse what is too large, before anything is reserved."""
        size = commit.size = commit.updates.size()
        if size > self.transaction_bytes_max:
            commit.error = TransactionTooLargeError(
                f"the transaction has {size:,} bytes, {self.transaction_bytes_max:,} are allowed"
            )
            return False
        return True

    def new_id(self) -> bytes:
        """Return the next automatic transaction id."""
        self._next_id += 1
        return self._id_prefix + self._next_id.to_bytes(8, "big")

    def ids(self) -> tuple[bytes, int]:
        """Return the prefix and the newest number of the automatic ids of this opening."""
        return self._id_prefix, self._next_id

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
        see the newest commits (FORMAT section 1).
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
        murmur3, crc32c = _murmur3, _crc32c
        encode, meta, check = encode_put, pack_meta, pack_check

        def set_one(key: bytes, value: bytes | None) -> None:
            partition = murmur3(key, 0, False) % count
            full_key = prefixes[partition] + key
            if overlay.active.bytes >= limit:
                room()
            with mutex:
                if not self.in_the_way and namespace.alive and value is not None:
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
                        self.relaxed += 1
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
            self.stopped = f"the store stopped writing because a sync failed: {error}"
        return DiskError(f"the sync of the log failed: {error}")

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
        waiter = _thread.allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)
        self.mutex.release()
        waiter.acquire()
        self.mutex.acquire()

    def _next_leader(self) -> _thread.LockType | None:
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
        self.in_the_way = (
            self._leading or bool(self._closing) or self.stopped is not None or self.locks_held()
        )

    def _take(self) -> list[Ticket]:
        """Take tickets from the head of the queue, up to the size of a group."""
        queue = self._queue
        size = 0
        for count, ticket in enumerate(queue):
            size += sum(commit.size for commit in ticket.commits)
            if count and size > GROUP_BYTES_MAX:
                taken = queue[:count]
                del queue[:count]
                return taken
        self._queue = []
        return queue

    def _lead(self) -> None:
        """Carry one group from the queue into log and overlay."""
        tickets = self._take()
        group = self._prepare(tickets)
        if group:
            try:
                self._write(group)
            except (OSError, LogFailedError) as error:
                self._fail(group, error)
            except BaseException as error:
                # A bug, or a simulated crash: nobody may wait for ever, nothing was acknowledged.
                self._fail(group, error)
                self._finish(tickets)
                raise
        self._finish(tickets)

    def _finish(self, tickets: list[Ticket]) -> None:
        self.in_flight = ()
        for ticket in tickets:
            ticket.done = True
            if ticket.wake is not None:
                ticket.wake.release()

    def _prepare(self, tickets: list[Ticket]) -> list[Commit]:
        """Check each commit against all before it, reserve its numbers, encode its record."""
        group: list[Commit] = []
        state = self.state
        time = max(self._environment.clock(), state.time)
        for ticket in tickets:
            for commit in ticket.commits:
                try:
                    self._admit(commit, group)
                except TidelogError as error:
                    commit.error = error
                    continue
                if commit.receipt is None:
                    self._reserve(commit, time)
                    group.append(commit)
        state.time = time
        return group

    def _admit(self, commit: Commit, group: Sequence[Commit]) -> None:
        if self.stopped is not None:
            raise self.refusal()
        if commit.deadline is not None and self._environment.monotonic() > commit.deadline:
            raise DeadlineError("the deadline passed before the commit began")
        if commit.check is not None:
            commit.check(commit, group)

    def _reserve(self, commit: Commit, time: int) -> None:
        if commit.record:
            commit.receipt = Receipt(b"", 0, time, 0)
            return
        runs, namespaces, keys, values = commit.updates.reserve(self.state)
        commit.runs = runs
        if commit.tx_id is None:
            commit.tx_id = self.new_id()
        else:
            self.note_given_id(commit.tx_id)
        body = self._pack((commit.tx_id, time, runs, namespaces, keys, values, commit.details))
        commit.record = pack_record_header(len(body), RecordType.TX, 0) + body
        commit.receipt = Receipt(commit.tx_id, 0, time, runs[0])

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

    def _write(self, group: list[Commit]) -> None:
        """Log the group, sync it if anybody in it asked for that, and apply it."""
        self.in_flight = group
        payload = group[0].record if len(group) == 1 else b"".join([c.record for c in group])
        self._append(payload)
        end = self.writer.position
        for commit in group:
            if commit.durable:
                self._sync_group(end)
                break
        self._apply(group, end)

    def _sync_group(self, end: int) -> None:
        self.mutex.release()
        try:
            with self._sync_lock:
                if self.writer.synced < end:
                    self._timed_sync()
        finally:
            self.mutex.acquire()

    def _apply(self, group: list[Commit], end: int) -> None:
        layer, state = self.overlay.active, self.state
        for commit in group:
            receipt = commit.receipt
            assert receipt is not None
            commit.updates.apply(layer, state, receipt.time)
            commit.receipt = Receipt(receipt.tx_id, end, receipt.time, receipt.home)
            if commit.then is not None:
                commit.then()
        self.applied_position = end
        self.grouped += len(group)
        self.groups += 1

    def _fail(self, group: list[Commit], error: BaseException) -> None:
        """Nothing of the group took effect in memory; say whether it may be on disk."""
        if self.writer.failure is None:
            for commit in group:
                self._closing += commit.runs
                commit.receipt = None
                commit.error = self._disk_error(error)
            return
        cause = self._stop(self.writer.failure)
        for commit in group:
            receipt, commit.receipt = commit.receipt, None
            assert receipt is not None
            commit.error = CommitUnknownError(
                f"{cause}; transaction {receipt.tx_id.hex()} may or may not be on disk",
                tx_id=receipt.tx_id,
                home=receipt.home,
            )

    def _disk_error(self, error: BaseException) -> BaseException:
        if isinstance(error, LogFailedError):
            return self.refusal()
        if not isinstance(error, OSError):
            return error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return DiskFullError(f"no space to append to the log: {error}")
        return DiskError(f"appending to the log failed: {error}", hint="Check the disk.")


_NO_UPDATES = NoUpdates()


def _groups(commits: list[Commit]) -> list[list[Commit]]:
    """Cut a list so that no part is larger than a group may be, if it holds more than one."""
    if sum(commit.size for commit in commits) <= GROUP_BYTES_MAX:
        return [commits] if commits else []
    parts: list[list[Commit]] = []
    size = 0
    for commit in commits:
        size += commit.size
        if not parts or size > GROUP_BYTES_MAX:
            parts.append([])
            size = commit.size
        parts[-1].append(commit)
    return parts


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


def _no_locks() -> bool:
    return False


def _no_note(_tx_id: bytes) -> None:
    return None
