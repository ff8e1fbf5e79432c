"""The commit path: validate, reserve, log, sync, apply, in groups led by a committing thread.

A thread that commits while nobody else does leads a group of its own: it checks what it brought,
writes it as one frame, syncs once and applies it.  Who comes meanwhile queues a put or a *ticket*;
at the end the lead goes to the first of them, who takes all that is queued (puts first, for
nothing can speak against one but a lock), does the same, and wakes the others.

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
- Whoever has queued does not leave before the outcome, not even for Ctrl-C, which is raised
  afterwards: the queue may have made it the next leader.  Python raises it behind calls and jumps
  only, so what has to happen together stands here without a call in between.
- After a failed sync ``stopped`` is set: no commit is accepted any more, what was in flight is
  answered with ``CommitUnknownError``, and reading goes on.

Left out: locks of pessimistic transactions (``lock_manager``), checkpoints (``checkpointer``).
"""

from __future__ import annotations

import errno
import threading
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import length_hint

import msgpack

from ..affinity.errors import (
    DeadlineError,
    DiskError,
    DiskFullError,
    ReadOnlyError,
    RolledBackError,
    TidelogError,
    TransactionTooLargeError,
)
from ..checkpoints.replay import State
from ..wal.records import (
    IdleRecord,
    Record,
    RollbackRecord,
    Run,
    encode_record,
    pack_record_header,
    put_encoder,
)
from ..wal.writer import LogFailedError, LogWriter
from .entries import Batch, Commit, Entry, Receipt
from .environment import Environment
from .forks import free
from .overlay import Overlay
from .puts import PUTS_MAX, LonePut, Put, Puts
from .updates import NoUpdates

GROUP_BYTES_MAX = 1 << 20
_NOWHERE = 1 << 63


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
        self.clock = environment.clock
        self._now = environment.monotonic
        self._sync_lock = threading.Lock()
        self._puts: list[Put] = []
        self._tickets: list[Commit | Batch] = []
        self._leading = False
        self._heir: object = None
        """The put or ticket whose thread is to lead and has not begun yet."""
        self._wakes: list[LockType] = []
        self._waking = iter(self._wakes)
        self._releases = map(LockType.release, self._waking)
        """Wakes one more of those whose group has ended, each time it is asked for the next.

        Whoever is woken wakes the following one: two at once would only fight for the interpreter.
        The heir comes last, so that those before it are back in the queue when it looks there.
        """
        self._errors: dict[LockType, BaseException] = {}
        """Errors of puts, for the threads that are about to be woken."""
        self.puts_durable = True
        """Whether a put waits for a sync."""
        self.at_first: Callable[[], None] | None = None
        """Called before the first commit; it sets this to None once what it begins has begun."""
        self.in_the_way = False
        """Whether a relaxed update has to queue: a leader, gaps to close, locks, an end."""
        self._ending = False
        self._ended: Callable[[], TidelogError] | None = None
        self._closing: list[Run] = []
        self._frame_at = _NOWHERE
        """Where the frame of the group in flight begins; the log is longer once it is there."""
        self.encode_put = put_encoder(id_prefix)
        self._id_prefix = id_prefix
        self.last_id = 0
        """The number of the newest automatic id."""
        self._first_in_flight = 1
        self._pack = msgpack.Packer().pack
        self._waiters: list[LockType] = []

    # -------------------------------------------------------------- entrances

    def commit(self, commit: Commit) -> Receipt:
        """Commit one transaction and return its receipt; raises what speaks against it."""
        if commit.size > self.transaction_bytes_max:
            raise self._too_large(commit.size)
        if self.at_first is not None:
            self.at_first()
        while not (self._alone((commit,)) or self._queue_up(commit)):
            pass
        if commit.error is not None:
            raise commit.error
        assert commit.receipt is not None
        return commit.receipt

    def put(
        self, partition: int, namespace: int, full_key: bytes, key: bytes, value: bytes
    ) -> None:
        """Commit one put, of at most ``PUT_BYTES_MAX``; raises what speaks against it."""
        if self.at_first is not None:
            self.at_first()
        while True:
            if not (self._leading or length_hint(self._waking)):
                alone = LonePut(partition, namespace, full_key, key, value, self.puts_durable)
                if self._carry(_Group((alone,))):
                    if alone.error is not None:
                        raise alone.error
                    return
            put: Put | None = None
            try:
                with self.mutex:
                    wake = self._wake()
                    if wake is not None:
                        put = (partition, namespace, full_key, key, value, wake)
                        self._puts += (put,)
                        if not self._leading:
                            self._heir = put
                            self._leading = self.in_the_way = True
                if put is None:
                    continue
                error = self._see_through(put, put[5])
            except BaseException:
                if put is not None:
                    self._see_through(put, put[5])
                raise
            if error is not None:
                raise error
            return

    def commit_all(self, entries: Sequence[Entry]) -> None:
        """Commit several, in order; each gets its receipt or its ``error``."""
        if self.at_first is not None:
            self.at_first()
        ready = []
        for entry in entries:
            if entry.size > self.transaction_bytes_max:
                entry.error = self._too_large(entry.size)
            else:
                ready.append(entry)
        if ready:
            while not (self._alone(ready) or self._queue_up(Batch(ready))):
                pass

    def _too_large(self, size: int) -> TransactionTooLargeError:
        return TransactionTooLargeError(
            f"the transaction has {size:,} bytes, {self.transaction_bytes_max:,} are allowed"
        )

    def _alone(self, entries: Sequence[Entry]) -> bool:
        """Carry entries at once; False, and nothing done, where others are about."""
        # Without the mutex this is a glance, which spares taking it twice; `_carry` looks again.
        return not (self._leading or length_hint(self._waking)) and self._carry(_Group(entries))

    def _queue_up(self, ticket: Commit | Batch) -> bool:
        """Queue a ticket and return when it has ended; False where it is best to lead at once."""
        wake: LockType | None = None
        queued = False
        try:
            with self.mutex:
                wake = self._wake()
                if wake is not None:
                    ticket.wake = wake
                    self._tickets += (ticket,)
                    if not self._leading:
                        self._heir = ticket
                        self._leading = self.in_the_way = True
                    queued = True
            if wake is not None:
                self._see_through(ticket, wake)
        except BaseException:
            if queued:
                self._see_through(ticket, ticket.wake)
            raise
        return queued

    def _wake(self) -> LockType | None:
        """Return what to wait for, a lock that is held; None where it is best to lead at once.

        While those of the last group are still being woken whoever comes first waits for that:
        by then most of them are back, and one sync serves all.
        """
        wake = allocate_lock()
        wake.acquire()
        if not self._leading:
            self._wakes.append(wake)
            if not length_hint(self._waking):
                return None  # they have been woken meanwhile
        return wake

    def _see_through(self, queued: Put | Commit | Batch, wake: LockType) -> BaseException | None:
        """Wait until what this thread has queued has ended, leading its group if that is its turn.

        Returns the error of a put.  Called a second time, after an interrupt, it does what is
        left to do.
        """
        with wake:
            pass
        next(self._releases, None)
        if self._heir is queued:
            group = _Group((), queued)
            self._carry(group)
            return None if group.puts is None else group.puts.error_of(wake)
        return self._errors.pop(wake, None) if self._errors else None

    def new_id(self) -> bytes:
        """Return the next automatic transaction id."""
        self.last_id += 1
        return self._id_prefix + self.last_id.to_bytes(8, "big")

    def reserve_ids(self, count: int) -> tuple[bytes, int]:
        """Return the next ``count`` automatic transaction ids as prefix and first number."""
        first = self.last_id + 1
        self.last_id += count
        return self._id_prefix, first

    def check_deadline(self, deadline: float) -> None:
        """Raise ``DeadlineError`` where a deadline has passed."""
        if self._now() > deadline:
            raise DeadlineError("the deadline passed before the commit began")

    def tx_record(self, fields: tuple[object, ...]) -> bytes:
        """Return a TX record with these fields; the packer is used under the mutex only."""
        body = self._pack(fields)
        return pack_record_header(len(body), 1, 0) + body

    def ids(self) -> tuple[bytes, int]:
        """Return the prefix and the newest number of the automatic ids of this opening."""
        return self._id_prefix, self.last_id

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
        payload = b"".join(map(encode_record, records))
        return self.log_made(lambda _time: payload, durable=durable, then=then)

    def log_made(
        self,
        record: Callable[[int], bytes],
        *,
        durable: bool,
        then: Callable[[], object] | None,
    ) -> int:
        """Log what ``record`` makes for its time, under the mutex: it may reserve numbers."""
        commit = Commit(NoUpdates(), durable)
        commit.record = record
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

    # -------------------------------------------------------------- syncs

    def sync(self, position: int | None = None) -> int:
        """Make the log durable up to ``position`` (default: all); return how far it is.

        Raises ``DiskError`` and stops the store where the sync fails.
        """
        try:
            self._sync_to(self.writer.position if position is None else position)
        except (OSError, LogFailedError) as error:
            raise self._stop(error) from error
        return self.writer.synced

    def _sync_to(self, end: int) -> None:
        """Make the log durable up to ``end`` at least."""
        with self._sync_lock:
            if self.writer.synced < end:
                start = self._now()
                self.writer.sync()
                self.syncs.note(self._now() - start)

    def _stop(self, error: BaseException) -> TidelogError:
        """A sync failed: nothing is written from here on."""
        self.in_the_way = True
        if self.stopped is None:
            cause = self.writer.failure or error
            self.stopped = f"the store stopped writing because a sync failed: {cause}"
        return DiskError(f"the sync of the log failed: {self.writer.failure or error}")

    def refusal(self) -> TidelogError:
        """Return the error for a write to a store that has stopped writing."""
        if self._ended is not None:
            return self._ended()
        return ReadOnlyError(
            self.stopped or "the store has stopped writing",
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

    def settle_way(self) -> None:
        """Find out whether a relaxed update may go straight into the log; under the mutex."""
        self.in_the_way = bool(
            self._leading
            or self.at_first is not None
            or self._closing
            or self.locks_held
            or self._ending
            or self.stopped is not None
        )

    def begin_end(self) -> None:
        """Let no relaxed update take the short cut any more; under the mutex."""
        self._ending = self.in_the_way = True

    def end(self, error: Callable[[], TidelogError]) -> None:
        """Take no more commits, and return once those on their way have ended.

        Whoever comes later gets ``error()``.
        """
        with self.mutex:
            self._ended = error
            self.stopped = self.stopped or "the store is closed"
            self.begin_end()
            while self._leading:
                self.wait_applied()

    def forked(self, error: Callable[[], TidelogError]) -> None:
        """In the child of a fork: write nothing, and wait for no thread of the parent.

        Whoever comes gets ``error()``.
        """
        self._ended = error
        self.stopped = "the store was opened by the parent of this process"
        self.begin_end()
        self._leading = False
        self.writer.close()
        free(self.mutex, self.turn, self._sync_lock)

    def _carry(self, group: _Group) -> bool:
        """Carry a group into log and overlay, and pass the lead on.

        One that nobody queued leads at once; False, and nothing done, where others are about.
        Little is called from here: between two syncs all code runs from cold caches.
        """
        leads = group.own is not None
        state, writer, passed = self.state, self.writer, group.passed
        try:
            with self.mutex:
                if leads:
                    self._heir = None
                    self._take(group)
                elif self._leading or length_hint(self._waking):
                    return False
                else:
                    self._leading = self.in_the_way = leads = True
                time = self.clock()
                if time < state.time:
                    time = state.time
                self._first_in_flight = self.last_id + 1
                records = []
                for entry in group.taken:
                    record = entry.prepare(self, passed, time)
                    if record is not None:
                        passed.append(entry)
                        records.append(record)
                if records:
                    state.time = time
                    self._frame_at = writer.position
                    self.in_flight = passed
                    payload = records[0] if len(records) == 1 else b"".join(records)
                    if payload:
                        self._append(payload)
            self._land(group)
        except (OSError, LogFailedError) as error:
            with self.mutex:
                self._fail(passed, error)
                self._end_group(group)
        except BaseException as error:
            if leads:
                self._clean_up(group, error)
            raise
        return True

    def _clean_up(self, group: _Group, error: BaseException) -> None:
        """See a group through that a bug, Ctrl-C or a simulated crash cut short.

        Nobody may wait for ever.  Behind its frame a group is synced and applied after all; where
        that fails too, its numbers are used but may not be closed, so nothing is written any more
        until the log has been read again.
        """
        logged = bool(self.in_flight) and self.writer.position > self._frame_at
        if logged and not group.applied:
            try:
                self._land(group)
            except BaseException:
                with self.mutex:
                    if not group.applied:
                        self.stopped = f"a commit was interrupted: {error!r}"
                        for entry in group.passed:
                            entry.unknown(error)
        with self.mutex:
            if not group.applied and not logged:
                shared = _for_others(error)
                self._fail(group.passed, shared)
                for entry in group.taken:
                    entry.error = entry.error or shared
            if not group.ended:
                self._end_group(group)

    def _land(self, group: _Group) -> None:
        """Sync what was logged, where anybody asked for that, and let it take effect."""
        passed, end, overlay = group.passed, self.writer.position, self.overlay
        for entry in passed:
            if entry.durable:
                self._sync_to(end)
                break
        with self.mutex:
            if passed:
                overlay.applying = True
                try:
                    for entry in passed:
                        entry.apply(self, end)
                finally:
                    overlay.changes += 1
                    overlay.applying = False
                self.applied_position = end
                self.grouped += len(passed)
                self.groups += 1
            group.applied = True
            self._end_group(group)

    def _take(self, group: _Group) -> None:
        """Take from the heads of the queues, up to the size of a group."""
        puts, tickets = self._puts, self._tickets
        if puts:
            count = min(len(puts), PUTS_MAX)
            group.take_puts(puts[:count], self.puts_durable)
            self._puts = puts[count:]
        size = count = 0
        for ticket in tickets:
            size += ticket.size
            if count and size > GROUP_BYTES_MAX:
                break
            count += 1
            group.take_ticket(ticket)
        self._tickets = tickets[count:]

    def _end_group(self, group: _Group) -> None:
        """Wake those whose outcome is known, and pass the lead on."""
        self.in_flight = ()
        if group.puts is not None:
            group.puts.leave_errors(self._errors, group.own)
        if self._waiters:
            deque(map(LockType.release, self._waiters), maxlen=0)
            self._waiters = []
        wakes, group.wakes = group.wakes, []
        if self._puts:
            self._heir = self._puts[0]
            wakes.append(self._puts[0][5])
        elif self._tickets:
            self._heir = self._tickets[0]
            wakes.append(self._tickets[0].wake)
        else:
            self._leading = False
            self.settle_way()
        # The chain of the group before has come to its end: its heir, who led this one, was last.
        self._wakes, self._waking = wakes, iter(wakes)
        self._releases = map(LockType.release, self._waking)
        group.ended = True
        next(self._releases, None)

    def _append(self, payload: bytes) -> None:
        """Append a frame, in a new segment where it does not fit."""
        if self._closing:
            closing = RollbackRecord(
                tx_id=bytes(16),
                time=self.state.time,
                reason="append failed",
                runs=tuple(self._closing),
            )
            payload = encode_record(closing) + payload
        if not self.writer.append(payload):
            self._frame_at = _NOWHERE
            self._rotate()
            self._frame_at = self.writer.position
            self.writer.append(payload)
        if self._closing:
            for run in self._closing:
                self.state.counters[run.partition].update(run.first - 1, run.count)
                self.state.touched.add(run.partition)
            self._closing = []

    def _rotate(self) -> None:
        """Begin a new segment; its position is that of the end of the old one."""
        with self._sync_lock:
            try:
                self.writer.rotate()
            except OSError:
                if self.writer.failure is not None:
                    self._stop(self.writer.failure)
                raise

    def _fail(self, group: Sequence[Entry], error: BaseException) -> None:
        """Nothing of the group took effect in memory; say whether it may be on disk."""
        if self.writer.failure is None:
            for entry in group:
                entry.fail(self.disk_error(error))
            self._closing = self._reserved()
        else:
            cause = self._stop(self.writer.failure)
            for entry in group:
                entry.unknown(cause)

    def _reserved(self) -> list[Run]:
        """Return the numbers that were reserved and not applied: those of groups that failed."""
        found = []
        for partition, counter in enumerate(self.state.counters):
            first = counter.highest_applied + 1
            if counter.hwm >= first:
                epoch = self.state.epochs[partition]
                found.append(Run(partition, epoch, first, counter.hwm - first + 1))
        return found

    def disk_error(self, error: BaseException) -> BaseException:
        """Return the error for a commit that could not be appended."""
        if isinstance(error, LogFailedError):
            return self.refusal()
        if not isinstance(error, OSError):
            return error
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return DiskFullError(f"no space to append to the log: {error}")
        return DiskError(f"appending to the log failed: {error}", hint="Check the disk.")


class _Group:
    """What a leader carries at once: all that it took, and of that the entries that passed.

    ``own`` is what its thread has queued; None where it queued nothing.
    """

    __slots__ = ("applied", "ended", "own", "passed", "puts", "taken", "wakes")

    def __init__(self, taken: Iterable[Entry], own: Put | Commit | Batch | None = None) -> None:
        self.own = own
        self.puts: Puts | None = None
        self.applied = self.ended = False
        self.taken = list(taken)
        self.passed: list[Entry] = []
        self.wakes: list[LockType] = []
        """The locks of the others."""

    def take_puts(self, puts: Sequence[Put], durable: bool) -> None:
        """Take puts, ahead of all tickets."""
        self.puts = Puts(puts, durable)
        self.taken.append(self.puts)
        self.wakes += self.puts.waiters(self.own)

    def take_ticket(self, ticket: Commit | Batch) -> None:
        """Take what one thread brought."""
        if isinstance(ticket, Batch):
            self.taken += ticket.entries
        else:
            self.taken.append(ticket)
        if ticket is not self.own:
            self.wakes.append(ticket.wake)


def _for_others(error: BaseException) -> BaseException:
    """Return what the others of a group hear of an error in the thread that led it."""
    if isinstance(error, Exception):
        return error
    return RolledBackError(f"the thread that wrote it with others was interrupted: {error!r}")


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
