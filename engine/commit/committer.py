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
- After a failed sync ``stopped`` is set: no commit is accepted any more, what was in flight is
  answered with ``CommitUnknownError``, and reading goes on.

Ctrl-C, and whatever else a signal raises, may come at any line of the main thread.  So:

- ``changing`` names what the holder of the mutex is in the middle of, and is None before it is
  given up.  Whoever takes the mutex and finds a name there knows that an earlier holder went away
  halfway: the store stops writing, for the log alone is surely right then.
- What a group does to memory is done again, at once, if it was cut short: it may be done twice.
- A thread that was interrupted takes back what it had queued, unless a leader has it already; then
  it waits for the outcome, and raises afterwards.
- The main thread wakes nobody but as a leader, and whoever waits looks up now and then: nobody
  waits for a thread that has gone.

Left out: locks of pessimistic transactions (``lock_manager``), checkpoints (``checkpointer``).
"""

from __future__ import annotations

import errno
import logging
import threading
from _thread import LockType, get_ident
from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from typing import Any

import msgpack

from ...affinity.errors import (
    DeadlineError,
    DiskError,
    DiskFullError,
    NotFoundError,
    ReadOnlyError,
    RolledBackError,
    TidelogError,
    TransactionTooLargeError,
)
from ...checkpoints.replay import State
from ...wal.records import (
    IdleRecord,
    Record,
    RollbackRecord,
    Run,
    encode_record,
    pack_record_header,
    put_encoder,
)
from ...wal.writer import LogFailedError, LogWriter
from ..data.overlay import Overlay
from ..data.updates import NoUpdates
from ..system.environment import Environment
from ..system.forks import free
from ..system.wakes import WakeChain, held_lock, wake as wake_up
from .entries import Batch, Commit, Entry, Receipt
from .puts import PUTS_MAX, LonePut, Put, Puts

GROUP_BYTES_MAX = 1 << 20
PATIENCE = 0.25
"""Seconds after which who waits looks whether anybody is left to wake it."""
CLOSED = "the store is closed"
"""Why nothing is written any more where nothing went wrong."""
_NOWHERE = 1 << 63

log = logging.getLogger("tidelog.store")


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
        self.changing: str | None = None
        """What the holder of the mutex is in the middle of."""
        self.left: tuple[int, Callable[..., None], tuple[Any, ...]] | None = None
        """A relaxed put that was interrupted: where its frame begins, and what lets it land."""
        self.interrupted = False
        """Whether the store stopped since a thread went away in the middle of a change."""
        self.transaction_bytes_max = transaction_bytes_max
        self.in_flight: Sequence[Entry] = ()
        self.applied_position = writer.position
        self.locks_held = False
        """Whether anybody holds a lock; kept by the lock manager."""
        self.locked: Callable[[int, Iterable[bytes]], TidelogError | None] = _not_locked
        """Returns the error for keys of which somebody else than the owner holds a lock."""
        self.dropped: dict[int, str] = {}
        """Maps that were dropped in this opening, id to name; whatever touched one is refused."""
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
        self._deserters: list[Put | Commit | Batch] = []
        """What a thread had queued that was interrupted, and may have gone."""
        self._group: _Group | None = None
        """The group on its way, from the moment it is taken until it has ended."""
        self._orphan: _Group | None = None
        """A group whose leader went away before its end."""
        self._chain = WakeChain()
        self._main = threading.main_thread().ident
        self._errors: dict[LockType, BaseException] = {}
        """Errors of puts, for the threads that are about to be woken."""
        self._apart: LockType | None = None
        """What the main thread waits for: it is woken beside the chain, for it may go away."""
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
            if not (self._leading or length_hint(self._chain.left)):
                alone = LonePut(partition, namespace, full_key, key, value, self.puts_durable)
                if self._carry(_Group((alone,))):
                    if alone.error is not None:
                        raise alone.error
                    return
            wake = held_lock()
            put = (partition, namespace, full_key, key, value, wake)
            try:
                with self.mutex:
                    queued = self._may_queue(wake)
                    if queued:
                        self._puts += (put,)
                        self._queued(put)
                if not queued:
                    continue
                error = self._see_through(put, wake)
            except BaseException:
                self._deserters.append(put)  # before anything that could be interrupted
                self._leave(put, wake)
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
        """Carry entries at once; False, and nothing done, if others are about."""
        # Without the mutex this is a glance, which spares taking it twice; `_carry` looks again.
        busy = self._leading or length_hint(self._chain.left)
        return not busy and self._carry(_Group(entries))

    # -------------------------------------------------------------- the queue

    def _queue_up(self, ticket: Commit | Batch) -> bool:
        """Queue a ticket and return when it has ended; False if it is best to lead at once."""
        ticket.wake = wake = held_lock()
        try:
            with self.mutex:
                queued = self._may_queue(wake)
                if queued:
                    self._tickets += (ticket,)
                    self._queued(ticket)
            if queued:
                self._see_through(ticket, wake)
        except BaseException:
            self._deserters.append(ticket)  # before anything that could be interrupted
            self._leave(ticket, wake)
            raise
        return queued

    def _may_queue(self, wake: LockType) -> bool:
        """Tell whether to queue, under the mutex; if not, it is best to lead at once.

        While those of the last group are still being woken whoever comes first waits for that:
        by then most of them are back, and one sync serves all.
        """
        if not self._leading:
            self._chain.join(wake)
            if not length_hint(self._chain.left):
                return False  # they have been woken meanwhile
        if get_ident() == self._main:
            self._apart = wake
        return True

    def _queued(self, queued: Put | Commit | Batch) -> None:
        """Let what has just been queued lead, if nobody does; under the mutex."""
        if not self._leading:
            self._heir, self._leading, self.in_the_way = queued, True, True

    def _see_through(self, queued: Put | Commit | Batch, wake: LockType) -> BaseException | None:
        """Wait until what this thread has queued has ended, leading its group if that is its turn.

        Returns the error of a put.
        """
        while not wake.acquire(timeout=PATIENCE):
            if self._look_after(queued):
                break
        self._chain.wake_next()
        if self._heir is queued:
            group = _Group((), queued)
            self._carry(group)
            return None if group.puts is None else group.puts.error_of(wake)
        return self._errors.pop(wake, None) if self._errors else None

    def _look_after(self, queued: Put | Commit | Batch) -> bool:
        """See whether anybody is left to wake this thread; True if it is to lead itself."""
        with self.mutex:
            self.check_whole()
            if self._heir is None and self._group is None:
                self._pass_lead()
            self._chain.wake_next()
            return self._heir is queued

    def _leave(self, queued: Put | Commit | Batch, wake: LockType) -> None:
        """Behind an interrupt: take back what is queued still, else wait for its outcome."""
        with self.mutex:
            self.check_whole()
            taken = self._group is not None and self._group.has(queued)
        self._chain.wake_next()
        if taken:
            self._see_through(queued, wake)

    def _withdraw(self, queued: object) -> None:
        """Take something out of the queue, and the lead from its thread; under the mutex."""
        self._puts = [put for put in self._puts if put is not queued]
        self._tickets = [ticket for ticket in self._tickets if ticket is not queued]
        if self._heir is queued:
            self._pass_lead()

    def _next_heir(self) -> tuple[Put | Commit | Batch | None, LockType | None]:
        """Return whose turn it is to lead, and the lock that its thread waits for."""
        if self._puts:
            return self._puts[0], self._puts[0][5]
        if self._tickets:
            return self._tickets[0], self._tickets[0].wake
        return None, None

    def _pass_lead(self) -> None:
        """Let the first of the queue lead, at once; under the mutex."""
        heir, wake = self._next_heir()
        self._heir, self._leading = heir, heir is not None
        self.settle_way()
        if wake is not None:
            wake_up(wake)

    # -------------------------------------------------------------- for those in the queue

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

    def check_dropped(self, namespaces: Iterable[int]) -> None:
        """Raise ``NotFoundError`` where one of some maps has been dropped; under the mutex."""
        for number in namespaces:
            if number in self.dropped:
                raise self.was_dropped(number)

    def was_dropped(self, number: int) -> NotFoundError:
        """Return the error for a commit that touched a map which is no longer there."""
        return NotFoundError(
            f"the map {self.dropped[number]!r} was dropped before the commit, which had no effect",
            hint="Ask `db.map` for a new one.",
        )

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
            self.check_whole()
            idle = not self._leading and self.stopped is None
            if idle and writer.synced == writer.position and writer.announced < writer.synced:
                self.changing = "the log"
                try:
                    self._append(encode_record(IdleRecord()))
                except (OSError, LogFailedError):
                    self.changing = None
                    return
                self.changing = None
                self.applied_position = writer.position
                # Nothing depends on this frame: it counts as announced, and needs no sync.
                writer.announced = writer.position

    def _settled(self) -> None:
        """Wait until no commit is being applied, and see to one that was interrupted."""
        with self.mutex:
            self.check_whole()

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
            if self.writer.failure is None:
                raise  # by the handler of a signal
            raise self._stop(error) from error
        return self.writer.synced

    def _sync_to(self, end: int) -> None:
        """Make the log durable up to ``end`` at least."""
        with self._sync_lock:
            if self.writer.synced < end:
                start = self._now()
                self.writer.sync()
                self.syncs.note(self._now() - start)

    def check_whole(self) -> None:
        """See to what an earlier holder of the mutex left undone when it was interrupted.

        What it queued is taken back, a commit that is in the log takes effect, another one is
        rolled back; after anything else nothing is written any more.  Called by whoever has just
        taken the mutex: a second interrupt may keep the first one's thread from all of that.
        """
        if self.changing is None and self._orphan is None and not self._deserters:
            return
        while self._deserters:
            self._withdraw(self._deserters[0])
            del self._deserters[0]
        if (self.changing is None and self._orphan is None) or self._mended():
            return
        what, group = self.changing or "a commit", self._orphan
        self.in_the_way = self.interrupted = True
        if self.stopped is None:
            self.stopped = f"a thread was interrupted in the middle of a change of {what}"
        if group is not None and not group.ended:
            self._fail_orphan(group)
        elif group is not None:
            self._end_group(group)
        self.left = self._orphan = self.changing = None
        self.overlay.applying = False
        log.error("store.interrupted what=%s", what, extra={"event": "store.interrupted"})

    def _mended(self) -> bool:
        """See an interrupted commit through to one of its ends; False where that fails, too."""
        group, left = self._orphan, self.left
        if (group is None and left is None) or self.changing not in (None, "a commit"):
            return False
        try:
            if group is not None:
                self._mend(group)
            elif left is not None:
                before, land, what = left
                self.writer.settle()
                if self.writer.position != before:
                    land(*what)
        except Exception:
            if self.writer.failure is not None:
                self._stop(self.writer.failure)
            return False
        self.left = self._orphan = self.changing = None
        self.overlay.applying = False
        return True

    def _mend(self, group: _Group) -> None:
        if not group.logged and not group.ended:
            self._give_up(group, group.cause or KeyboardInterrupt())
        if group.ended:  # of those who wait not all may have been woken
            self._end_group(group)
            return
        if any(entry.durable for entry in group.passed):
            self._sync_to(self.writer.position)
        self._take_effect(group)

    def check_writable(self) -> None:
        """Raise if the store stopped in the middle of a change; under the mutex."""
        self.check_whole()
        if self.interrupted:
            raise self.refusal()

    def _fail_orphan(self, group: _Group) -> None:
        """Answer those whose leader went away, and let somebody else lead."""
        cause = self.refusal()
        writer = self.writer
        logged = bool(self.in_flight) and (writer.position > self._frame_at or writer.in_doubt)
        for entry in group.taken:
            if entry in group.passed and logged:
                entry.unknown(cause)
            else:
                entry.fail(cause)
        self._end_group(group)

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
        if self.interrupted:
            return ReadOnlyError(
                f"{self.stopped}: nothing is written any more",
                hint="Close the store and open it again; nothing that was acknowledged is lost.",
            )
        return ReadOnlyError(
            self.stopped or "the store has stopped writing",
            hint="Check the disk; close the store, open it again, and ask `db.outcome` "
            "about commits whose outcome is unknown.",
        )

    # -------------------------------------------------------------- the group in flight

    def applied_soon(self) -> LockType:
        """Return a lock that can be taken once the group in flight has ended; under the mutex."""
        waiter = held_lock()
        self._waiters += (waiter,)
        return waiter

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
            self.stopped = self.stopped or CLOSED
            self.begin_end()
        while True:
            with self.mutex:
                self.check_whole()
                if not self._leading:
                    return
                waiter = self.applied_soon()
            waiter.acquire(timeout=PATIENCE)

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
        state, writer, passed = self.state, self.writer, group.passed
        try:
            with self.mutex:
                if self.changing is not None or self._orphan is not None or self._deserters:
                    self.check_whole()
                if group.own is not None:
                    self._heir, self._group, self.changing = None, group, "a commit"
                elif self._leading or length_hint(self._chain.left):
                    return False
                else:
                    self._leading, self._group, self.changing = True, group, "a commit"
                    self.in_the_way = True
                try:
                    if group.own is not None:
                        self._take(group)
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
                except BaseException as error:
                    group.cause = error
                    self._give_up(group, error)
                    self.changing = None
                    if group.ended and of_the_disk(error):
                        return True
                    raise
                group.logged, self.changing = True, None
            self._land(group)
        except BaseException as error:
            # The handler of a signal may raise an OSError, too: TimeoutError is one.
            if writer.failure is not None and isinstance(error, (OSError, LogFailedError)):
                self._fail_landing(group, error)
            else:
                if self._group is group:
                    self._orphan, self.overlay.applying = group, True
                    self._settled()
                raise
        finally:
            if self._group is group:
                # Whoever takes the mutex next sees to it, and readers look first.
                self._orphan, self.overlay.applying = group, True
        return True

    def _give_up(self, group: _Group, error: BaseException) -> None:
        """End a group that did not reach the log; leave alone one that did; under the mutex."""
        self.writer.settle()
        if self.in_flight and self.writer.position > self._frame_at:
            self._close_reserved()  # its frame may have closed gaps
            group.logged = True
            return
        if group.own is not None:
            group.take()  # it may have come no further
        failed = of_the_disk(error)
        shared = self.disk_error(error) if failed else _for_others(error)
        self._fail(group.passed, error if failed else shared)
        for entry in group.taken:
            entry.error = entry.error or shared
        self._end_group(group)

    def _fail_landing(self, group: _Group, error: BaseException) -> None:
        """End a group whose sync failed."""
        with self.mutex:
            self.changing = "a commit"
            self._fail(group.passed, error)
            self._end_group(group)
            self.changing = None

    def _land(self, group: _Group) -> None:
        """Sync what was logged, where anybody asked for that, and let it take effect."""
        for entry in group.passed:
            if entry.durable:
                self._sync_to(self.writer.position)
                break
        with self.mutex:
            self.changing = "a commit"
            try:
                self._take_effect(group)
            except BaseException:
                # Before the mutex is given up: nobody may see half of it.
                self._take_effect(group)
                self.changing = None
                raise
            self.changing = None

    def _take_effect(self, group: _Group) -> None:
        """Apply what has passed, and end the group; done twice it does the same."""
        passed, end, overlay = group.passed, self.writer.position, self.overlay
        if passed and not group.applied:
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
        """Take from the heads of the queues, up to the size of a group, or up to a drop."""
        puts, tickets = self._puts, self._tickets
        size = count = 0
        for ticket in tickets:
            size += ticket.size
            if count and size > GROUP_BYTES_MAX:
                break
            count += 1
            if type(ticket) is Commit and ticket.undo is not None:
                break  # a drop that does not get into the log must not have refused anybody
        first = Puts(puts[:PUTS_MAX], self.puts_durable) if puts else None
        taken, puts, tickets = tickets[:count], puts[PUTS_MAX:], tickets[count:]
        group.puts, group.tickets, self._puts, self._tickets = first, taken, puts, tickets
        group.take()

    def _end_group(self, group: _Group) -> None:
        """Wake those whose outcome is known, and pass the lead on; done twice it does the same."""
        self.in_flight = ()
        if not group.ended:
            if group.puts is not None:
                group.puts.leave_errors(self._errors, group.own)
            heir, last = self._next_heir()
            wakes = group.wakes()
            if self._apart in wakes:
                group.apart = self._apart
                wakes.remove(self._apart)
            if last is not None:
                wakes.append(last)
            if length_hint(self._chain.left):
                self._chain.wake_all()  # at its end by now, unless its heir was interrupted
            chain = WakeChain(wakes)
            self._heir, self._leading, self._chain, group.ended = heir, bool(last), chain, True
        self._group = None
        if self._heir is None:
            self.settle_way()
        if group.apart is not None:
            wake_up(group.apart)
        if self._waiters:
            for waiter in self._waiters:
                wake_up(waiter)
            self._waiters = []
        self._chain.wake_next()

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
            self._close_reserved()

    def _close_reserved(self) -> None:
        """Count the numbers of failed groups as closed, now that a record says so."""
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

    __slots__ = (
        "apart", "applied", "cause", "ended", "logged", "own", "passed", "puts", "taken", "tickets"
    )  # fmt: skip

    def __init__(self, taken: Iterable[Entry], own: Put | Commit | Batch | None = None) -> None:
        self.own = own
        self.puts: Puts | None = None
        self.tickets: Sequence[Commit | Batch] = ()
        self.logged = self.applied = self.ended = False
        self.cause: BaseException | None = None
        self.taken = list(taken)
        self.passed: list[Entry] = []
        self.apart: LockType | None = None
        """What the main thread waits for, if it is one of the others."""

    def take(self) -> None:
        """Take in hand what is in puts and tickets, the puts ahead of all tickets."""
        taken: list[Entry] = [] if self.puts is None else [self.puts]
        for ticket in self.tickets:
            if isinstance(ticket, Batch):
                taken += ticket.entries
            else:
                taken.append(ticket)
        self.taken = taken

    def wakes(self) -> list[LockType]:
        """Return what the others wait for."""
        wakes = [] if self.puts is None else self.puts.waiters(self.own)
        wakes += [ticket.wake for ticket in self.tickets if ticket is not self.own]
        return wakes

    def has(self, queued: object) -> bool:
        """Tell whether something that was queued is in it."""
        if any(ticket is queued for ticket in self.tickets):
            return True
        return self.puts is not None and self.puts.has(queued)


def of_the_disk(error: BaseException) -> bool:
    """Tell whether an error is one of the log: without a number a signal's handler raised it."""
    if isinstance(error, OSError):
        return error.errno is not None
    return isinstance(error, LogFailedError)


def _for_others(error: BaseException) -> BaseException:
    """Return what the others of a group hear of an error in the thread that led it."""
    if isinstance(error, Exception) and not isinstance(error, OSError):
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
