"""The log of a member: everything that is written goes through it, a group after the other.

What is queued while a group is on its way is the next group: one frame, one sync, in a thread of
its own.  Only behind that it is applied, and only then anybody hears of it.  The embedded store
does the same with threads (``commit.committer``); here all but the sync runs in the loop, so there
is nothing to wait for but that.

Invariants:

- One group is on its way at a time, so updates apply in the order of the log.
- A group is applied behind its sync, and answered behind its application.
- After a failed sync nothing is written any more: what was on its way is answered with
  ``CommitUnknownError``, and ``failure`` says why (I6).
- ``mutex`` is held while state, overlay or the end of the log change, and never during a sync:
  checkpoints run in another thread.

Left out: who may commit what (``engine.node.commits``), files (``wal.writer``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from threading import Lock

import trio

from ...affinity.errors import TidelogError
from ...wal.records import IdleRecord, Record, encode_record
from ...wal.writer import LogFailedError
from ..commit.commit_log import CommitLog
from ..commit.context import AutomaticIds, CommitContext
from ..commit.entries import Commit
from ..commit.outcomes import automatic_prefix
from ..data.updates import NoUpdates
from ..store.store_files import StoreFiles

GROUP_BYTES_MAX = 1 << 20
"""Bytes of updates from which on the rest of the queue waits for the next group."""

log = logging.getLogger("tidelog.node")


class NodeLog:
    """The log, the overlay and the counters of one member, as its one writer and its checkpoints
    see them."""

    def __init__(self, files: StoreFiles) -> None:
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
        self._files = files
        self._writer = files.writer
        self._end = CommitLog(self.context, files.writer, files.environment.monotonic)
        self._queue: list[Commit] = []
        self._in_flight: list[Commit] = []
        self._courtesies: list[Record] = []
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self.queued_bytes = 0
        """Bytes of updates in the queue."""
        self.groups = self.commits = 0
        """Frames that were synced, and what was in them."""

    # -------------------------------------------------------------- for checkpoints

    @property
    def applied_position(self) -> int:
        """The position of the log up to which everything is in the overlay."""
        return self.context.applied_position

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
    def waiting(self) -> list[Commit]:
        """What is not applied yet, in order."""
        return [*self._in_flight, *self._queue]

    @property
    def position(self) -> int:
        """The end of the log."""
        return self._writer.position

    def put(self, commit: Commit) -> None:
        """Queue a commit; ``commit.then`` is called when it has been applied, else ``undo``."""
        self._queue.append(commit)
        self.queued_bytes += commit.size
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wake.set()

    def put_records(
        self,
        records: Iterable[Record],
        then: Callable[[], object],
        undo: Callable[[], object] | None = None,
    ) -> None:
        """Queue records that are not a transaction.

        Behind their fold ``then`` is called, ``undo`` if they did not get into the log.
        """
        commit = Commit(NoUpdates(), durable=True)
        made = list(records)
        position = 0

        def record(_time: int) -> bytes:
            nonlocal position
            position = self._writer.position
            return b"".join(map(encode_record, made))

        def fold() -> None:
            for one in made:
                self.state.apply(position, one)
            then()

        commit.record, commit.then, commit.undo = record, fold, undo
        self.put(commit)

    async def written(self) -> None:
        """Wait until nothing is queued or on its way."""
        await self._idle.wait()

    async def run(self) -> None:
        """Carry group after group, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._queue:
                await self._carry(self._next_group())
            self._idle.set()
            self.pass_turn()

    def tell_durable(self) -> None:
        """Let an idle log say how far it is durable, with what is to be noted beside."""
        told = self._writer.announced >= self._writer.position and not self._courtesies
        if not told and self.failure is None and not self._queue and not self._in_flight:
            self.put_records([IdleRecord()], _nothing)

    # -------------------------------------------------------------- one group

    def _next_group(self) -> list[Commit]:
        size, count = 0, 0
        for commit in self._queue:
            if count and size + commit.size > GROUP_BYTES_MAX:
                break
            size, count = size + commit.size, count + 1
        group = self._queue[:count]
        del self._queue[:count]
        self.queued_bytes -= size
        return group

    async def _carry(self, group: list[Commit]) -> None:
        """Check, number, append, sync and apply a group, and answer everybody in it."""
        if self.failure is not None:
            self._fail(group, self.failure)
            return
        passed, payload = self._prepared(group)
        if not payload:
            self._finish(group, passed)
            return
        self._in_flight = passed
        self.environment.reached("tx.before_prepare_log")
        try:
            await self._append(payload)
        except (OSError, LogFailedError) as error:
            with self.mutex:
                self._end.leave_gaps()
                cause = self._end.append_error(error)
            self._in_flight = []
            self._note_failure()
            self._fail(group, cause)
            return
        self.environment.reached("tx.after_prepare_log")
        try:
            end = self._writer.position
            await self.environment.run("sync", lambda: self._end.sync(end))
        except (OSError, LogFailedError) as error:
            self._lose(group, passed, error)
            return
        self.environment.reached("tx.after_prepare_sync")
        self._finish(group, passed)

    def _prepared(self, group: list[Commit]) -> tuple[list[Commit], bytes]:
        """Return who passed the checks, and what to write for them."""
        passed: list[Commit] = []
        parts: list[bytes] = []
        with self.mutex:
            time = self.state.time = max(self.environment.clock(), self.state.time)
            for commit in group:
                record = commit.prepare(self.context, passed, time)
                if record is not None:
                    passed.append(commit)
                    parts.append(record)
        payload = b"".join(parts)
        if payload and self._courtesies:
            while self._courtesies:  # a checkpoint adds to them in its thread
                payload += encode_record(self._courtesies.pop(0))
        return passed, payload

    async def _append(self, payload: bytes) -> None:
        with self.mutex:
            appended = self._end.try_append(payload)
        if not appended:
            await self.environment.run("sync", self._end.rotate)
            self.environment.reached("rotate.after_new_segment")
            with self.mutex:
                self._end.append(payload)

    def _finish(self, group: list[Commit], passed: list[Commit]) -> None:
        """Apply a group that is durable, and tell everybody."""
        end = self._writer.position
        with self.mutex:
            for commit in passed:
                earlier = commit.receipt is not None  # under the same id, so nothing is applied
                commit.apply(self.context, end)
                if earlier and commit.then is not None:
                    commit.then()
            self.overlay.changes += 1
            self.context.applied_position = end
        self._in_flight = []
        self.groups += 1
        self.commits += len(passed)
        for commit in group:
            if commit.error is not None and commit.undo is not None:
                commit.undo()

    def _fail(self, group: list[Commit], cause: BaseException) -> None:
        for commit in group:
            if commit.error is None:
                commit.fail(cause)
            elif commit.undo is not None:
                commit.undo()

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

    def _note_failure(self) -> None:
        if self._writer.failure is not None:
            self.failure = self.context.refusal()


def _nothing() -> None:
    """Nobody waits for it."""
