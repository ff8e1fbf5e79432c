"""The log of a member: everything that is written goes through it, a group after the other.

What is queued while a group is on its way is the next group: one frame, one sync, in a thread of
its own.  Only behind that it is applied, and only then anybody hears of it.  The embedded store
does the same with threads (``commit.committer``); here all but the sync runs in the loop, so there
is nothing to wait for but that.

A transaction of a partition that has other copies is prepared only (PREPARE): it takes effect by
``decide``, when every copy in the ack set has it (T15).  What has committed that way is told by the
next tick (COMMIT_UPTO), and until then it can be derived again.  One of several groups is prepared
when every copy has it, and an ``EndCommit`` says later what becomes of it.

Invariants:

- One group is on its way at a time, so updates apply in the order of the log.
- What is shared keeps its order, and waits for ``GATHER_S`` at most; what is in haste passes it.
- A group is applied behind its sync, and answered behind its application.
- Copies are sent what is appended before it is synced here; they sync it at the same time.
- After a failed sync nothing is written any more: what was on its way is answered with
  ``CommitUnknownError``, and ``failure`` says why (I6).
- ``mutex`` is held while state, overlay or the end of the log change, and never during a sync:
  checkpoints run in another thread.

Left out: who may commit what (``engine.node.commits``), files (``wal.writer``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from threading import Lock

import trio

from ...affinity.errors import TidelogError
from ...wal.records import (
    ClearRecord,
    CommitUptoRecord,
    IdleRecord,
    PrepareRecord,
    Record,
    Upto,
    encode_record,
)
from ...wal.writer import LogFailedError
from ..commit.commit_log import CommitLog
from ..commit.context import AutomaticIds, CommitContext
from ..commit.entries import Commit, Entry
from ..commit.outcomes import automatic_prefix
from ..data.updates import NoUpdates
from ..files.recovery import apply_updates
from ..replication.streams import PartitionStream, Streams
from ..store.store_files import StoreFiles
from .prepared import ClientCommit, EndCommit, Undecided

GATHER_S = 0.01
"""Seconds that what others have to store waits at most while what went before is on its way to
them: each group costs a frame and a sync at every copy."""
COMPANY_S = 0.003
"""Seconds behind answers in which as many commits are expected to come: clients that were answered
together come again one after the other, and the first would have a group of its own."""
HELD_S = 0.01
"""Seconds between looks whether this member holds still, for who wants something told."""
GROUP_BYTES_MAX = 1 << 20
"""Bytes of updates from which on the rest of the queue waits for the next group."""
FULL_BYTES_MIN = 1 << 20
"""Bytes in memory below which nobody waits for a checkpoint, however small it is to be."""

log = logging.getLogger("tidelog.node")


class Haste(IntEnum):
    """How long something waits in the queue of the log."""

    COURTESY = 0  # until the next frame, or the next tick
    SHARED = 1  # for what is on its way to other copies, or for ``GATHER_S``
    AT_ONCE = 2


class NodeLog:
    """The log, the overlay and the counters of one member, as its one writer and its checkpoints
    see them."""

    def __init__(
        self,
        files: StoreFiles,
        streams: Streams,
        pump: Callable[[], object] = lambda: None,
        gathering: AbstractContextManager[None] | None = None,
    ) -> None:
        """``pump`` is called when there is something new in the streams.

        ``gathering`` is around all that a group lets go on.
        """
        self.environment = files.environment
        self.mutex = files.mutex
        self.state = files.state
        self.overlay = files.overlay
        self.flush_turn = Lock()
        """Held for a part of a checkpoint; ``pass_turn`` lets that get the interpreter."""
        self.failure: TidelogError | None = None
        """Why nothing is written any more."""
        prefix = automatic_prefix(files.environment.clock(), files.environment.new_id())
        self.context = CommitContext(
            files.state,
            files.overlay,
            AutomaticIds(prefix),
            position=files.writer.position,
            now=files.environment.boottime,
            note_given_id=files.keeper.note_given_id,
        )
        self.path = files.path
        """Where the store lies, for who tells of it."""
        self._files = files
        self._overlay_bytes_max = max(files.options.checkpoint_policy().wait_bytes, FULL_BYTES_MIN)
        self._writer = files.writer
        self._end = CommitLog(self.context, files.writer, files.environment.monotonic)
        self._streams = streams
        self._pump = pump
        self._gathering = gathering or nullcontext()
        self._queue: list[Commit | _Barrier] = []
        self._shared: set[Commit] = set()
        """What is in the queue and waits for company."""
        self._shared_until: float | None = None
        """Until when; None before the first of it was seen."""
        self._waits_for_nothing = False
        """Whether all of that is to go, for something that is behind it."""
        self._in_flight: list[Commit] = []
        self._undecided = Undecided()
        self._after: list[Callable[[], object]] = []
        self._unsynced: list[tuple[int, int]] = []
        """Partitions and numbers of items that are in the log, and durable with the next sync."""
        self._courtesies: list[Record] = []
        self._wake = trio.Event()
        self._haste = Haste.COURTESY
        self._gathered = trio.Event()
        self._tells = False
        self._expected = 0
        """Commits that were answered since the last group was made."""
        self._enough = 0
        """So many are waited for, if any."""
        self._answered_at = 0.0
        self._idle = trio.Event()
        self._idle.set()
        self.unsaid: set[int] = set()
        """Partitions in whose older epochs something has committed that the log does not say yet:
        nothing may rest on that."""
        self.clearing: set[int] = set()
        """Partitions of which a CLEAR is on its way into the log: what is here is about to go."""
        self.queued_bytes = 0
        """Bytes of updates in the queue."""
        self.carries = True
        """Whether checkpoints succeed: else nobody waits for one, as nobody knows for how long."""
        self.held = False
        """Whether nothing takes effect just now (Q5): what other members have sent is logged all
        the same, and commits wait in their order."""
        self.advanced: Callable[[], object] = lambda: None
        """Called when what was on its way may be so no more."""
        self.groups = self.commits = 0
        """Frames that were synced, and what was in them."""
        self.asked_disk_at = float("inf")
        """When the disk was asked for what it has not done yet, by the environment's clock."""

    # -------------------------------------------------------------- for checkpoints

    @property
    def applied_position(self) -> int:
        """The position of the log up to which everything is in the overlay."""
        return self.context.applied_position

    @property
    def is_full(self) -> bool:
        """Whether more is in memory than checkpoints should leave there: who writes has to wait."""
        return self.overlay.bytes >= self._overlay_bytes_max and self.carries

    def check_writable(self) -> None:
        """Raise if what is in memory must not be carried over any more; under the mutex."""
        if self.failure is not None:
            raise self.failure

    def sync(self, position: int) -> None:
        """Make the log durable up to a position."""
        try:
            self._end.sync(position)
        except (OSError, LogFailedError) as error:
            with self.mutex:
                self.failure = self._end.failed(error)
                raise self.failure from error

    def log(self, records: Iterable[Record]) -> int:
        """Let records go with the next frame, whenever that is; return the end of the log."""
        self._courtesies.extend(records)
        return self._writer.position

    def pass_turn(self) -> None:
        """Let a checkpoint that waits for the interpreter have it."""
        with self.flush_turn:
            pass

    # -------------------------------------------------------------- for segments

    def ids(self) -> tuple[bytes, int]:
        """Return the prefix and the newest number of automatic ids: members give out none."""
        return self.context.ids.prefix, 0

    def ids_in_flight(self) -> tuple[int, list[bytes]]:
        """Return the ids of the group that is on its way into the log."""
        return 1, [commit.tx_id for commit in self._in_flight if commit.tx_id is not None]

    # -------------------------------------------------------------- for who writes

    def new_id(self) -> bytes:
        """Return a fresh id for a transaction of the member's own."""
        return self.environment.new_id()

    @property
    def waiting(self) -> list[Entry]:
        """What is not applied yet, in order."""
        queued = [commit for commit in self._queue if not isinstance(commit, _Barrier)]
        return [self._undecided, *self._in_flight, *queued]

    @property
    def position(self) -> int:
        """The end of the log."""
        return self._writer.position

    def put(self, commit: Commit, haste: Haste = Haste.AT_ONCE) -> None:
        """Queue a commit; ``commit.then`` is called when it has been applied, else ``undo``."""
        self.queued_bytes += commit.size
        if haste is Haste.SHARED:
            self._shared.add(commit)
        self._enqueue(commit, haste)

    def _enqueue(self, entry: Commit | _Barrier, haste: Haste) -> None:
        self._queue.append(entry)
        if self._idle.is_set():
            self._idle = trio.Event()
        self._hurry(haste)

    def _hurry(self, haste: Haste) -> None:
        self._haste = max(self._haste, haste)
        if self._haste > Haste.COURTESY:
            self._wake.set()
        if self._haste == Haste.AT_ONCE or 0 < self._enough <= len(self._queue):
            self._gathered.set()

    def put_records(
        self,
        records: Iterable[Record],
        then: Callable[[], object],
        undo: Callable[[], object] | None = None,
        logged: Callable[[Record, bytes], object] | None = None,
    ) -> None:
        """Queue records that are not a transaction.

        Behind their fold ``then`` is called, ``undo`` if they did not get into the log; ``logged``
        hears of each record before that, with its bytes as they stand there.
        """
        made = list(records)
        encoded: list[bytes] = []
        cleared = {one.partition for one in made if isinstance(one, ClearRecord)}
        self.clearing |= cleared

        def record(_time: int) -> bytes:
            encoded[:] = map(encode_record, made)
            return b"".join(encoded)

        def fold() -> None:
            if logged is not None:
                for one, data in zip(made, encoded, strict=True):
                    logged(one, data)
            self.fold(made, then)
            self.clearing -= cleared

        def lost() -> None:
            self.clearing -= cleared
            if undo is not None:
                undo()

        commit = Commit(NoUpdates(), durable=True)
        commit.record = record
        commit.then = fold
        commit.undo = lost
        self.put(commit)

    def fold(self, records: Iterable[Record], then: Callable[[], object]) -> None:
        """Let records that are in the log take effect; ``then`` is called without the mutex."""
        position, view = self._writer.position, self.overlay.view
        for record in records:
            apply_updates(view, self.state, position, record)
        self._after.append(then)

    def has_whole(self, partition: int) -> bool:
        """Tell whether the copy of a partition that is here is whole, and here to stay."""
        return self.state.copies.is_whole(partition) and partition not in self.clearing

    async def logged(self, records: Iterable[Record]) -> None:
        """Wait until records are durable, and have taken effect; ``OSError`` if they do not."""
        ended = trio.Event()
        failed: list[bool] = []

        def undo() -> None:
            failed.append(True)
            ended.set()

        self.put_records(records, ended.set, undo)
        await ended.wait()
        if failed:
            raise OSError("the log does not take it")

    def put_barrier(self, then: Callable[[], object]) -> None:
        """Call ``then`` once everything that was queued before is in the log, and that is synced.

        It is never called if the log fails before.
        """
        self._wait_for_nothing()
        self._enqueue(_Barrier(then), Haste.AT_ONCE)

    async def passed(self) -> None:
        """Wait until everything that is queued by now is in the log, durably."""
        behind = trio.Event()
        self.put_barrier(behind.set)
        await behind.wait()

    async def told(self) -> None:
        """Wait until the log says what has committed by now; in a hold it says nothing."""
        while True:
            behind = trio.Event()
            self._tells = True
            self.put_records((), behind.set)
            await behind.wait()
            if not self.held:
                return
            await trio.sleep(HELD_S)

    def hurry(self) -> None:
        """Let what is queued wait for nothing more."""
        if self._queue:
            self._wait_for_nothing()
            self._hurry(Haste.AT_ONCE)

    async def written(self) -> None:
        """Wait until nothing is queued or on its way."""
        self.hurry()
        await self._idle.wait()

    async def run(self) -> None:
        """Carry group after group, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._queue and self._haste > Haste.COURTESY:
                await self._gather()
                first = self._queue[0]
                if isinstance(first, _Barrier):
                    del self._queue[0]
                    await self._pass(first)
                elif group := self._next_group():
                    await self._carry(group)
                elif self._haste is Haste.AT_ONCE:
                    self._haste = Haste.COURTESY  # all of it waits until this member lets go
            if not self._queue:
                self._haste = Haste.COURTESY
                self._idle.set()
            self.pass_turn()

    async def _gather(self) -> None:
        """Wait for company if nothing is in a hurry.

        First until other copies have what went before, then for those who were answered for that.
        """
        if self._haste == Haste.SHARED and self.undecided:
            await self._company(self._patience())
        if self._haste == Haste.SHARED and len(self._queue) < self._expected:
            self._enough = self._expected
            await self._company(self._answered_at + COMPANY_S)
        self._expected = self._enough = 0

    async def _company(self, until: float) -> None:
        self._gathered = trio.Event()
        with trio.move_on_at(until):
            await self._gathered.wait()

    def tell_durable(self) -> None:
        """Let an idle log say how far it is durable, with what is to be noted beside."""
        told = self._writer.announced >= self._writer.position and not self._courtesies
        if not told and self.failure is None and not self._queue and not self._in_flight:
            self.put_records([IdleRecord()], _nothing)

    # -------------------------------------------------------------- what copies have

    def decide(self) -> None:
        """Let everything take effect that all copies in the ack sets have, and answer for it."""
        if self.held:
            return
        rows, answered = self._streams.advance()
        if rows:
            record = CommitUptoRecord(rows=tuple(rows))
            with self.mutex:
                apply_updates(self.overlay.view, self.state, self._writer.position, record)
        clients = 0
        for commit in answered:
            assert isinstance(commit, ClientCommit | EndCommit)
            if isinstance(commit, ClientCommit):
                self._undecided.remove(commit)
                clients += 1
            commit.decided()
            commit.rest()
        if not self.undecided:
            self._gathered.set()
        if clients:
            self._expected += clients
            self._answered_at = trio.current_time()
            self.environment.reached("tx.after_prepared_sent")
        self.advanced()

    def let_go(self) -> None:
        """Let things take effect again."""
        self.held = False
        self.decide()
        self.hurry()

    def tell_decided(self) -> None:
        """Let an idle log, and the copies, know what has committed, and carry what waits for that.

        One word per tick and partition is enough: told with each group it would be half of all
        items.
        """
        if self.failure is not None:
            return
        self._pump()
        if self.held:
            return
        if self._streams.untold():
            self._tells = True  # the next frame brings it along
            if not self._in_flight and not self._queue:
                self.put_records((), _nothing)
        self.hurry()

    def tell_recovered(self) -> None:
        """Let the log say what had committed when it was opened; before anything else is queued.

        A checkpoint may have carried over what was to be told with the next frame, and the end of
        the process came before.  The state has it, and who reads the log alone would wait for ever.
        """
        rows = [
            Upto(partition, self.state.epochs[partition], last)
            for partition in sorted(self.state.copies.sealed)
            if (last := self._committed_upto(partition))
        ]
        if rows:
            self.put_records([CommitUptoRecord(rows=tuple(rows))], _nothing)

    def _committed_upto(self, partition: int) -> int:
        """Return up to which number everything that writes a partition alone has committed.

        That is decided in the order of numbers, so it ends where the first such one is pending.
        """
        pending = self.state.copies.pending.get(partition)
        waiting = [
            one.run.first
            for one in (pending.all() if pending is not None else ())
            if not isinstance(one, PrepareRecord) or len(one.participants) == 1
        ]
        return min(waiting, default=self.state.counters[partition].highest_applied + 1) - 1

    def forsake(self, stream: PartitionStream) -> None:
        """Tell those who wait for a stream that has ended that nobody knows yet (T7)."""
        for commit in stream.waiting():
            assert isinstance(commit, ClientCommit | EndCommit)
            if isinstance(commit, EndCommit):
                commit.forsaken()
            elif not commit.was_forsaken:
                self._undecided.remove(commit)
                commit.forsaken()
                commit.rest()

    @property
    def undecided(self) -> bool:
        """Whether something is prepared here that not every copy is known to have."""
        return len(self._undecided) > 0

    def is_undecided(self, full_keys: AbstractSet[bytes]) -> bool:
        """Tell whether what is prepared here, and not decided, writes one of some keys."""
        return bool(self._undecided.changed(full_keys))

    # -------------------------------------------------------------- one group

    def _wait_for_nothing(self) -> None:
        self._waits_for_nothing = self._waits_for_nothing or bool(self._shared)

    def _shares(self) -> bool:
        """Tell whether what is shared goes on waiting, though something else is in haste.

        Of what others have to store one group is on its way to them at a time.
        """
        if self._waits_for_nothing or not self._shared or not self.undecided:
            return False
        return trio.current_time() < self._patience()

    def _patience(self) -> float:
        """Return until when what is shared waits for what is on its way to others."""
        if self._shared_until is None:
            self._shared_until = trio.current_time() + GATHER_S
        return self._shared_until

    def _next_group(self) -> list[Commit]:
        waiting = self._shared if self._shares() else ()
        size = 0
        group: list[Commit] = []
        left: list[Commit | _Barrier] = []
        for place, commit in enumerate(self._queue):
            if isinstance(commit, _Barrier) or (group and size + commit.size > GROUP_BYTES_MAX):
                left += self._queue[place:]
                break
            held = self.held and isinstance(commit, ClientCommit | EndCommit)
            if held or commit in waiting:
                left.append(commit)
                continue
            size += commit.size
            group.append(commit)
        self._queue = left
        self.queued_bytes -= size
        self._shared.difference_update(group)
        if not self._shared:
            self._shared_until, self._waits_for_nothing = None, False
        if not left:
            self._haste = Haste.COURTESY
        else:
            self._haste = Haste.SHARED if len(left) == len(waiting) else Haste.AT_ONCE
        return group

    async def _pass(self, barrier: _Barrier) -> None:
        """Sync what is in the log, and let a barrier go on."""
        if self.failure is not None:
            return
        end = self._writer.position
        if self._writer.synced < end:
            try:
                await self._at_disk(lambda: self._end.sync(end))
            except (OSError, LogFailedError) as error:
                self._lose([], [], error)
                return
        with self._gathering:
            for partition, number in self._synced():
                self._streams.logged(partition, number)
            barrier.then()

    async def _at_disk(self, work: Callable[[], object]) -> None:
        self.asked_disk_at = self.environment.boottime()
        try:
            await self.environment.run("sync", work)
        finally:
            self.asked_disk_at = float("inf")

    def _synced(self) -> list[tuple[int, int]]:
        """Return the items that were logged without a sync of their own; now there was one."""
        unsynced, self._unsynced = self._unsynced, []
        return unsynced

    async def _carry(self, group: list[Commit]) -> None:
        """Check, number, append, sync and apply a group, and answer everybody in it."""
        if self.failure is not None:
            self._fail(group, self.failure)
            return
        passed, told, payload = self._prepared(group)
        if not payload:
            self._finish(group, passed, [])
            return
        self._in_flight = passed
        self.environment.reached("tx.before_prepare_log")
        ends = bool(told) or any(isinstance(commit, EndCommit) for commit in passed)
        if ends:
            self.environment.reached("tx.before_commit_log")
        try:
            await self._append(payload)
        except (OSError, LogFailedError) as error:
            with self.mutex:
                self._give_back(passed)
                cause = self._end.append_error(error)
            self._in_flight = []
            self._fail(group, self._note_failure() or cause)
            return
        self.environment.reached("tx.after_prepare_log")
        if ends:
            self.environment.reached("tx.after_commit_log")
        numbers = self._stream(passed, told)
        if all(isinstance(commit, EndCommit) for commit in passed):
            # What several groups have come to can be asked again: no sync for that alone (T11).
            self._unsynced += numbers
            self._finish(group, passed, [])
            return
        try:
            end = self._writer.position
            await self._at_disk(lambda: self._end.sync(end))
        except (OSError, LogFailedError) as error:
            self._lose(group, passed, error)
            return
        self.environment.reached("tx.after_prepare_sync")
        self._finish(group, passed, [*self._synced(), *numbers])

    def _prepared(self, group: list[Commit]) -> tuple[list[Commit], list[Upto], bytes]:
        """Return who passed the checks, what has committed elsewhere, and what to write."""
        passed: list[Commit] = []
        parts: list[bytes] = []
        told = self._streams.untold() if self._tells and not self.held else []
        self._tells = self._tells and self.held
        if told:
            parts.append(encode_record(CommitUptoRecord(rows=tuple(told))))
        with self.mutex:
            time = self.state.time = max(self.environment.clock(), self.state.time)
            before: list[Entry] = [self._undecided]
            for commit in group:
                record = commit.prepare(self.context, before, time)
                if record is not None:
                    passed.append(commit)
                    before.append(commit)
                    parts.append(record)
        payload = b"".join(parts)
        if payload and self._courtesies:
            while self._courtesies:  # a checkpoint adds to them in its thread
                payload += encode_record(self._courtesies.pop(0))
        return passed, told, payload

    def _give_back(self, passed: Sequence[Commit]) -> None:
        """Take the numbers back of a group that did not get into the log; nobody else has later."""
        counters = self.state.counters
        for commit in reversed(passed):
            runs = commit.runs
            for place in range(len(runs) - 4, -1, -4):
                counters[runs[place]].lower_hwm(runs[place + 2] - 1)

    def _stream(self, passed: Sequence[Commit], told: Sequence[Upto]) -> list[tuple[int, int]]:
        """Give what was appended to the streams; return partitions and numbers.

        It is sent at once, but for what several groups have come to: nobody waits for that.
        """
        now = self.environment.boottime()
        numbers = self._streams.tell(told, now)
        for commit in passed:
            if isinstance(commit, EndCommit):
                assert commit.record_ended is not None
                ended = commit.partition, commit.epoch, commit.record_ended
                number = self._streams.end(*ended, commit, now)
                if number:
                    numbers.append((commit.partition, number))
            elif isinstance(commit, ClientCommit) and commit.record_prepared is not None:
                number = self._streams.prepare(commit.record_prepared, commit.size, commit, now)
                if number:
                    self._undecided.add(commit)
                    numbers.append((commit.record_prepared.run.partition, number))
        if numbers and not all(isinstance(commit, EndCommit) for commit in passed):
            self._pump()
        return numbers

    async def _append(self, payload: bytes) -> None:
        with self.mutex:
            appended = self._end.try_append(payload)
        if not appended:
            await self._at_disk(self._end.rotate)
            self.environment.reached("rotate.after_new_segment")
            with self.mutex:
                self._end.append(payload)

    def _finish(
        self, group: list[Commit], passed: list[Commit], numbers: Iterable[tuple[int, int]]
    ) -> None:
        """Apply a group that is durable, and tell everybody."""
        end = self._writer.position
        with self.mutex:
            for commit in passed:
                earlier = commit.receipt is not None  # under the same id, so nothing is applied
                commit.apply(self.context, end)
                if earlier and commit.then is not None:
                    commit.then()
            self.context.applied_position = end
        self._in_flight = []
        self.groups += 1
        self.commits += len(passed)
        with self._gathering:
            for commit in group:
                if commit.error is not None and commit.undo is not None:
                    commit.undo()
            for partition, number in numbers:
                self._streams.logged(partition, number)
            after, self._after = self._after, []
            for then in after:
                then()
            for commit in group:
                if not isinstance(commit, ClientCommit | EndCommit) or not commit.waits_for_copies:
                    commit.rest()
            self.decide()

    def _fail(self, group: list[Commit], cause: BaseException) -> None:
        for commit in group:
            if commit.error is None:
                commit.fail(cause)
            elif commit.undo is not None:
                commit.undo()
            commit.rest()

    def _lose(self, group: list[Commit], passed: list[Commit], error: BaseException) -> None:
        """A sync failed: nobody knows what of the group is on the disk."""
        with self.mutex:
            cause = self._end.failed(error)
        self._in_flight = []
        self.failure = cause
        log.error(
            "node.log_failed: Tidelog: the store %s writes nothing any more: %s",
            self._files.path,
            cause,
            extra={"event": "node.log_failed"},
        )
        for commit in passed:
            commit.unknown(cause)
        for commit in group:
            if commit.undo is not None:
                commit.undo()

    def _note_failure(self) -> TidelogError | None:
        """Return how the log has failed, if it has: all that come from now on hear that."""
        if self._writer.failure is not None:
            self.failure = self.context.refusal()
        return self.failure


def _nothing() -> None:
    """Nobody waits for it."""


class _Barrier:
    """What waits in the queue until everything before it is durable."""

    __slots__ = ("then",)

    def __init__(self, then: Callable[[], object]) -> None:
        self.then = then


def record_bytes(record: Record) -> int:
    """Return about how many bytes the updates of a record take."""
    keys, values = getattr(record, "keys", ()), getattr(record, "values", ())
    return sum(map(len, keys)) + sum(len(value) for value in values if value is not None)
