"""The end of the log as commits see it: frames, the gaps of groups that failed, segments, syncs.

Invariants:

- Only a group on its way appends, and whoever holds the mutex while none is: in the order of the
  log is in the order of the overlay.
- A group that failed to reach the log leaves its numbers as *gaps*: a ROLLBACK at the head of the
  next frame closes them, and only then may the counters pass them.
- One sync at a time, and none beside the begin of a segment.  A sync does not need the mutex.

Left out: what a failed append or sync means for whom (``committer``), frames and files
(``wal.writer``).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

from ...affinity.errors import DiskError, DiskFullError
from ...wal.records import RollbackRecord, Run, encode_record
from ...wal.writer import LogFailedError, LogWriter
from .context import CommitContext
from .sync_times import SyncTimes

_NOWHERE = 1 << 63
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CommitLog:
    """The writer of the log, and what commits know about its end."""

    def __init__(self, context: CommitContext, writer: LogWriter, now: Callable[[], float]) -> None:
        self.writer = writer
        self.gaps: list[Run] = []
        """Numbers that were reserved for groups that failed."""
        self.frame_at = _NOWHERE
        """Where the frame of the group in flight begins; the log is longer once it is there."""
        self.times = SyncTimes()
        self.sync_lock = threading.Lock()
        self._context = context
        self._now = now

    def append(self, payload: bytes) -> None:
        """Append a frame, in a new segment if it does not fit; it closes all gaps."""
        if not self.try_append(payload):
            self.frame_at = _NOWHERE
            self.rotate()
            self.frame_at = self.writer.position
            self.try_append(payload)

    def try_append(self, payload: bytes) -> bool:
        """Append a frame, which closes all gaps; False, and nothing done, if it does not fit."""
        if self.gaps:
            payload = self._closing() + payload
        if not self.writer.append(payload):
            return False
        if self.gaps:
            self.close_gaps()
        return True

    def _closing(self) -> bytes:
        return encode_record(
            RollbackRecord(
                tx_id=bytes(16),
                time=self._context.state.time,
                reason="append failed",
                runs=tuple(self.gaps),
            )
        )

    def has_frame(self) -> bool:
        """Tell whether the frame that was begun last is in the log."""
        return self.writer.position > self.frame_at

    def leave_gaps(self) -> None:
        """Remember the numbers that were reserved and not applied: those of groups that failed."""
        context, found = self._context, []
        for partition, counter in enumerate(context.state.counters):
            first = counter.highest_applied + 1
            if counter.hwm >= first:
                epoch = context.state.epochs[partition]
                found.append(Run(partition, epoch, first, counter.hwm - first + 1))
        after = context.standing.after["leave gaps" if found else "close gaps"]
        self.gaps, context.standing = found, after

    def close_gaps(self) -> None:
        """Count the gaps as closed, now that a record says so."""
        context = self._context
        for run in self.gaps:
            context.state.counters[run.partition].update(run.first - 1, run.count)
            context.state.touched.add(run.partition)
        self.gaps, context.standing = [], context.standing.after["close gaps"]

    def rotate(self) -> None:
        """Begin a new segment; its position is that of the end of the old one."""
        with self.sync_lock:
            try:
                self.writer.rotate()
            except OSError:
                if self.writer.failure is not None:
                    self.failed(self.writer.failure)
                raise

    def sync(self, end: int) -> None:
        """Make the log durable up to ``end`` at least."""
        with self.sync_lock:
            if self.writer.synced < end:
                start = self._now()
                self.writer.sync()
                self.times.recent.append(self._now() - start)
                self.times.count += 1

    def failed(self, error: BaseException) -> DiskError:
        """A sync failed: nothing is written from here on; return the error.  Under the mutex."""
        cause = self.writer.failure or error
        self._context.stop("fail", f"the store stopped writing because a sync failed: {cause}")
        return DiskError(f"the sync of the log failed: {cause}")

    def append_error(self, error: BaseException) -> BaseException:
        """Return the error for a commit that could not be appended."""
        if isinstance(error, LogFailedError):
            return self._context.refusal()
        if not isinstance(error, OSError):
            return error
        if error.errno in _NO_SPACE:
            return DiskFullError(f"no space to append to the log: {error}")
        return DiskError(f"appending to the log failed: {error}", hint="Check the disk.")


def of_the_disk(error: BaseException) -> bool:
    """Tell whether an error is one of the log: without a number a signal's handler raised it."""
    if isinstance(error, OSError):
        return error.errno is not None
    return isinstance(error, LogFailedError)
