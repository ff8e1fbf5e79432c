"""The commit path: groups of commits, each led into the log and the overlay by one of its threads.

There is no thread for commits.  A thread that commits while nobody else does leads a group of its
own: it checks what it brought, writes it as one frame, syncs once and applies it.  Threads that
arrive meanwhile queue.  Behind the sync the first of them leads: it takes all that is queued (puts
first, for nothing but a lock can refuse one) and carries that in the same way.  An example: threads
A, B and C put into one partition of a durable store whose syncs take a millisecond.

======= === ============================================================== ===============
 time    by  what happens                                                   the log
======= === ============================================================== ===============
0.00 ms  A   finds nobody, and leads.  Under the mutex it gives ``a``       frame 1: a
             number 1 and appends; it syncs without the mutex
0.10     B   finds A leading, queues ``b``, waits on a lock of its own
0.20     C   queues ``c``, waits
1.02     A   has synced.  Under the mutex it applies ``a`` and names B the  a is durable
             next leader; it wakes B, and its put returns
1.05     B   takes ``b`` and ``c`` from the queue, gives them numbers 2     frame 2: b, c
             and 3, appends, syncs
1.10     A   wants to put ``d``, finds B leading, queues, waits
2.07     B   applies ``b`` and ``c``, names A the next leader, wakes C;     b, c are durable
             its put returns
2.08     C   wakes A; its put returns
2.09     A   leads with ``d``                                               frame 3: d
======= === ============================================================== ===============

Four puts took three frames and three syncs.  With 32 threads nearly all of them are in the queue
when a sync ends, and one frame has some 31 puts.

What is durable when, and what a crash leaves:

1. checked and reserved: nothing on disk; numbers above the last one in the log are forgotten.
2. frame written: ``always`` waits; other levels apply and acknowledge here (kill -9 keeps it).
3. synced: the group is durable.  A crash from here on finds it in the log.
4. applied: readers see it, LWM has passed it, its threads are told.

Invariants:

- The mutex guards queue, context and standing, counters, overlay, the end of the log and the group
  in flight.  It is not held during a sync.
- While a group is in flight nobody else appends, so updates apply in the order of the log.
- After a failed sync no commit is accepted any more, what was in flight is answered with
  ``CommitUnknownError``, and reading goes on.

Ctrl-C, and whatever else a signal raises, may come at any line of the main thread.  So:

- ``context.changing`` names what the holder of the mutex is in the middle of, and is None before
  the mutex is given up.  Whoever takes the mutex and finds a name there knows that an earlier
  holder went away halfway: the store stops writing, for the log alone is surely right then.
- What a group does to memory is done again, at once, if it was cut short: it may be done twice.
- A thread that was interrupted takes back what it had queued, unless a leader has it already; then
  it waits for the outcome, and raises afterwards.
- The main thread wakes nobody but as a leader, and every thread that waits looks up now and then:
  nobody waits for a thread that has gone.
- What has to change together changes in one statement without a call: no signal comes between.

Left out: how a group is carried, and seen through behind an interrupt (``carrier``), who is woken
when (``queue``), locks of pessimistic transactions (``lock_manager``), puts that wait for nobody
(``relaxed``), checkpoints (``checkpointer``).
"""

from __future__ import annotations

import threading
from _thread import LockType
from collections.abc import Callable, Iterable, Sequence
from operator import length_hint

from ...affinity.errors import TidelogError, TransactionTooLargeError
from ...wal.records import IdleRecord, Record, encode_record
from ...wal.writer import LogFailedError, LogWriter
from ..data.updates import NoUpdates
from ..system.environment import Environment
from ..system.forks import free
from ..system.wakes import held_lock
from .carrier import Carrier
from .commit_log import CommitLog
from .context import CommitContext
from .entries import Batch, Commit, Entry, Receipt
from .group import Queued, Ticket
from .puts import LonePut
from .queue import CommitQueue
from .standing import Life

PATIENCE = 0.25
"""Seconds after which a thread that waits looks whether anybody is left to wake it."""
CLOSED = "the store is closed"
"""Why nothing is written any more if nothing went wrong."""


class Committer:
    """The one way into the log and the overlay; shared by threads."""

    def __init__(
        self,
        environment: Environment,
        context: CommitContext,
        writer: LogWriter,
        *,
        mutex: threading.Lock,
        transaction_bytes_max: int,
        puts_durable: bool,
    ) -> None:
        self.mutex = mutex
        self.context = context
        self.queue = CommitQueue(context, puts_durable)
        self.end_of_log = CommitLog(context, writer, environment.monotonic)
        self.carrier = Carrier(
            context, self.queue, self.end_of_log, mutex=mutex, clock=environment.clock
        )
        self.state = context.state
        self.overlay = context.overlay
        self.check_whole = self.carrier.check_whole
        self.check_writable = self.carrier.check_writable
        self.wait_applied = self.carrier.wait_applied
        self.refusal = context.refusal
        self.transaction_bytes_max = transaction_bytes_max
        self.clock = environment.clock
        self.flush_turn = threading.Lock()
        """Held for a part of a checkpoint; relaxed updates, which never wait otherwise, take it
        now and then, else the checkpoint would get the interpreter once in five milliseconds."""
        self._writer = writer
        self._puts_durable = puts_durable
        self._before_first: Callable[[], None]
        """What has to begin before the first commit of a user; ``serve`` gives it."""

    # -------------------------------------------------------------- what others look at

    @property
    def applied_position(self) -> int:
        """The position of the log up to which everything is in the overlay."""
        return self.context.applied_position

    @property
    def stopped(self) -> str | None:
        """Why nothing is written any more; None while it is."""
        return self.context.reason

    @property
    def interrupted(self) -> bool:
        """Whether the store stopped since a thread went away in the middle of a change."""
        return self.context.standing.broken

    def ids(self) -> tuple[bytes, int]:
        """Return the prefix and the newest number of the automatic ids of this opening."""
        return self.context.ids.prefix, self.context.ids.last

    def ids_in_flight(self) -> tuple[int, list[bytes]]:
        """Return the ids of the group on its way into the log: the first number, and given ones."""
        given = [entry.tx_id for entry in self.carrier.in_flight if entry.tx_id is not None]
        return self.context.ids.first_in_flight, given

    # -------------------------------------------------------------- entrances

    def serve(self, before_first: Callable[[], None]) -> None:
        """Take commits of users from here on; ``before_first`` is called ahead of the first one."""
        with self.mutex:
            context = self.context
            self._before_first, context.standing = before_first, context.standing.after["serve"]

    def _commence(self) -> None:
        """Call what has to be called before the first commit."""
        if self.context.standing.life is Life.FRESH:
            self._before_first()
        with self.mutex:
            self.context.standing = self.context.standing.after["commence"]

    def commit(self, commit: Commit) -> Receipt:
        """Commit one transaction and return its receipt; raises the error that prevents it."""
        if commit.size > self.transaction_bytes_max:
            raise self._too_large(commit.size)
        if self.context.standing.fresh and not self._is_of_opening(commit):
            self._commence()
        while True:
            busy = self.context.standing.busy or length_hint(self.queue.chain.left)
            if (not busy and self.carrier.carry((commit,))) or self._queue_up(commit):
                break
        if commit.error is not None:
            raise commit.error
        assert commit.receipt is not None
        return commit.receipt

    def _is_of_opening(self, commit: Commit) -> bool:
        return commit.record is not None and self.context.standing.life is Life.RECOVERING

    def put(
        self, partition: int, namespace: int, full_key: bytes, key: bytes, value: bytes
    ) -> None:
        """Commit one put, of at most ``PUT_BYTES_MAX``; raises the error that prevents it."""
        context, queue = self.context, self.queue
        if context.standing.fresh:
            self._commence()
        while True:
            # Without the mutex this is a glance, which spares taking it twice; `carry` looks
            # again.
            if not (context.standing.busy or length_hint(queue.chain.left)):
                alone = LonePut(partition, namespace, full_key, key, value, self._puts_durable)
                if self.carrier.carry((alone,)):
                    if alone.error is not None:
                        raise alone.error
                    return
            wake = held_lock()
            put = (partition, namespace, full_key, key, value, wake)
            try:
                with self.mutex:
                    queued = queue.add_put(put)
                if not queued:
                    continue
                error = self._wait_for_outcome(put, wake)
            except BaseException:
                queue.abandoned.append(put)  # before anything that could be interrupted
                self._take_back(put, wake)
                raise
            if error is not None:
                raise error
            return

    def commit_all(self, entries: Sequence[Entry]) -> None:
        """Commit several, in order; each gets its receipt or its ``error``."""
        if self.context.standing.fresh:
            self._commence()
        ready = []
        for entry in entries:
            if entry.size > self.transaction_bytes_max:
                entry.error = self._too_large(entry.size)
            else:
                ready.append(entry)
        while ready:
            busy = self.context.standing.busy or length_hint(self.queue.chain.left)
            if (not busy and self.carrier.carry(ready)) or self._queue_up(Batch(ready)):
                break

    def _too_large(self, size: int) -> TransactionTooLargeError:
        return TransactionTooLargeError(
            f"the transaction has {size:,} bytes, {self.transaction_bytes_max:,} are allowed"
        )

    def log(
        self,
        records: Iterable[Record],
        *,
        durable: bool = False,
        then: Callable[[], object] | None = None,
    ) -> int:
        """Log records that are not transactions; return the end of the log behind them.

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

    # -------------------------------------------------------------- waiting in the queue

    def _queue_up(self, ticket: Ticket) -> bool:
        """Queue a ticket and return when it has ended; False if it is best to lead at once."""
        ticket.wake = wake = held_lock()
        try:
            with self.mutex:
                queued = self.queue.add_ticket(ticket)
            if queued:
                self._wait_for_outcome(ticket, wake)
        except BaseException:
            self.queue.abandoned.append(ticket)  # before anything that could be interrupted
            self._take_back(ticket, wake)
            raise
        return queued

    def _wait_for_outcome(self, queued: Queued, wake: LockType) -> BaseException | None:
        """Wait until what this thread has queued has ended, leading its group if that is its turn.

        Returns the error of a put.
        """
        queue = self.queue
        # A lock is released for one of two reasons: the group has ended, or this is the next
        # leader.  It is never released if whoever should have done it was interrupted and has
        # gone: that is what the time limit is for.
        while not wake.acquire(timeout=PATIENCE):
            if self._look_for_leader(queued):
                break
        # First of all the next of the chain: it may have the lead, and this thread may be the next
        # leader only if it is the last of the chain.
        queue.chain.wake_next()
        if queue.next_leader is queued:
            # Nobody can take that away from here on but an interrupt of this very thread.
            group = self.carrier.carry((), queued)
            return None if group is None or group.puts is None else group.puts.error_of(wake)
        return queue.errors.pop(wake, None) if queue.errors else None

    def _look_for_leader(self, queued: Queued) -> bool:
        """See whether anybody is left to wake this thread; True if it is to lead itself."""
        with self.mutex:
            self.check_whole()
            self.queue.name_anybody()
            self.queue.chain.wake_next()
            return self.queue.next_leader is queued

    def _take_back(self, queued: Queued, wake: LockType) -> None:
        """Behind an interrupt: take back what is queued still, else wait for its outcome."""
        with self.mutex:
            self.check_whole()
            group = self.carrier.group
            taken = group is not None and group.has(queued)
        self.queue.chain.wake_next()
        if taken:
            self._wait_for_outcome(queued, wake)

    # -------------------------------------------------------------- the log beside commits

    def announce(self) -> None:
        """Log an empty frame if syncs went further than any frame tells, and nobody is busy.

        It narrows what a damaged end of the log could be mistaken for, and lets other processes
        see the newest commits (docs/wal-format.md).
        """
        with self.mutex:
            context, writer = self.context, self._writer
            self.check_whole()
            idle = not (context.standing.busy or context.standing.stopped)
            if idle and writer.synced == writer.position and writer.announced < writer.synced:
                context.changing = "the log"
                try:
                    self.end_of_log.append(encode_record(IdleRecord()))
                except (OSError, LogFailedError):
                    context.changing = None
                    return
                context.changing = None
                context.applied_position = writer.position
                # Nothing depends on this frame: it counts as announced, and needs no sync.
                writer.announced = writer.position

    def sync(self, position: int | None = None) -> int:
        """Make the log durable up to ``position`` (default: all); return how far it is.

        Raises ``DiskError`` and stops the store if the sync fails.
        """
        writer = self._writer
        try:
            self.end_of_log.sync(writer.position if position is None else position)
        except (OSError, LogFailedError) as error:
            if writer.failure is None:
                raise  # by the handler of a signal
            with self.mutex:
                failure = self.end_of_log.failed(error)
            raise failure from error
        return writer.synced

    def yield_to_checkpoint(self) -> None:
        """Wait while a checkpoint writes a part."""
        with self.flush_turn:
            pass

    # -------------------------------------------------------------- the end

    def close_short_cut(self) -> None:
        """Let every relaxed update go through the queue from here on; under the mutex."""
        self.context.standing = self.context.standing.after["end"]

    def refuse(self, error: Callable[[], TidelogError]) -> None:
        """Take no more commits: whoever comes from here on gets ``error()``."""
        with self.mutex:
            self.context.ended = error
            self.context.stop("close", CLOSED)

    def end(self, error: Callable[[], TidelogError]) -> None:
        """Take no more commits, and return once those on their way have ended."""
        self.refuse(error)
        while True:
            with self.mutex:
                self.check_whole()
                if not self.context.standing.busy:
                    return
                waiter = self.queue.applied_soon()
            waiter.acquire(timeout=PATIENCE)

    def forked(self, error: Callable[[], TidelogError]) -> None:
        """In the child of a fork: write nothing, and wait for no thread of the parent.

        Whoever comes gets ``error()``.
        """
        self.context.ended = error
        self.context.stop("fork", "the store was opened by the parent of this process")
        self._writer.close()
        free(self.mutex, self.flush_turn, self.end_of_log.sync_lock)
