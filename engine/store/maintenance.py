"""What a store has done for it in the background: syncs, checkpoints, expiry.

One background thread syncs relaxed commits (``interval``), announces what is durable, takes the
checkpoints that are due, and sweeps outcomes that have expired.  A committer that finds the overlay
far too full takes the checkpoint itself.

Example, with ``checkpoint_bytes`` of 192 MiB: at 192 MiB of overlay a commit wakes the thread, and
goes on; at 384 MiB, which means that checkpoints are slower than commits, it waits for one.

Left out: how a checkpoint works (``checkpointer``), when one is due, and when a committer waits for
it (``checkpoints.policy``).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable

from ...affinity.errors import TidelogError
from ..commit.outcomes import SWEEP_SECONDS
from ..system.environment import BackgroundTask
from .open_state import OpenState
from .opening import OpenStore

CHECKPOINT_PAUSE = 5.0
"""Seconds after a failed checkpoint in which the background thread begins no other one."""

WRITE_BEHIND = 32 << 20
"""Bytes of log that are synced in the background though nobody asked for it: a whole segment at
once would keep all committers waiting when the next one is begun."""

log = logging.getLogger("tidelog.store")


class Maintenance:
    """Looks after one open store.

    ``write_behind`` is how many bytes of log may lack a sync that nobody waits for.  ``tidy`` is
    called each time, and ``sweep`` now and then.
    """

    def __init__(
        self,
        store: OpenStore,
        state: OpenState,
        *,
        write_behind: int,
        tidy: Callable[[], object],
        sweep: Callable[[], object],
    ) -> None:
        self._store = store
        self._state = state
        self._write_behind = write_behind
        self._tidy = tidy
        self._sweep = sweep
        self._now = store.environment.monotonic
        self._policy = store.options.checkpoint_policy()
        self.limit = self._policy.overlay_bytes
        """How large the overlay may be before it is flushed, in bytes."""
        self._last_checkpoint = self._checkpoint_again = self._last_sweep = self._now()
        self._task: BackgroundTask | None = None

    @property
    def unwritten(self) -> bool:
        """Whether the data file lacks anything that the log has."""
        state = self._store.state
        return bool(self._store.overlay.bytes or state.touched or state.dropped)

    def make_room(self) -> None:
        """Let the overlay be flushed when it is full; wait if it is far too full."""
        overlay = self._store.overlay
        if overlay.bytes >= self.limit:
            self._state.check()
            most = self._policy.wait_bytes
            if overlay.bytes >= most:
                self._store.checkpointer.run_while(lambda: overlay.bytes >= most, "overlay")
            elif self._task is not None:
                self._task.wake()

    def checkpoint(self, reason: str) -> int:
        """Take a checkpoint now; return the position up to which the data file has everything."""
        self._last_checkpoint = self._now()
        # Until it has succeeded: what failed now will most likely fail in a moment, too.
        self._checkpoint_again = self._now() + CHECKPOINT_PAUSE
        store = self._store
        position = store.checkpointer.run(reason)
        self._checkpoint_again = self._last_checkpoint
        store.snapshots.expire_oldest(store.overlay.view, store.options.snapshot_memory_max)
        return position

    # -------------------------------------------------------------- in the background

    def begin(self) -> None:
        """Begin the background work, unless the store is closed or it has begun.

        Only when there is something to do: whatever thread a process has beside its first one
        makes each look into LMDB dearer, a scan by a seventh.
        """
        with self._store.mutex:
            if self._task is None and self._state.closed is None:
                self._task = self._background()

    def _background(self) -> BackgroundTask:
        """Begin the background work, which keeps nobody from collecting this store."""
        maintain = weakref.WeakMethod(self.maintain)

        def work() -> bool:
            call = maintain()
            return call is None or call()

        environment, seconds = self._store.environment, self._store.options.sync_interval
        return environment.background("tidelog-maintenance", seconds, work)

    def stop(self) -> None:
        """End the background work; return once it has ended."""
        with self._store.mutex:
            task = self._task
        if task is not None:
            task.stop()

    def maintain(self) -> bool:
        """Do what is due: sync relaxed commits, announce what is durable, checkpoint, sweep.

        True if nothing will be due any more.  A thread that nobody stops ends by that: one
        whose beginning was interrupted behind its last line.
        """
        self._tidy()
        if self._state.closed is not None:
            return True
        store = self._store
        try:
            store.locks.release_lost()
            self._sync_behind()
            reason = self._policy.due(
                overlay_bytes=store.overlay.bytes,
                log_bytes=store.writer.position - store.checkpointer.position,
                seconds=self._now() - self._last_checkpoint,
            )
            if reason is not None and self._now() >= self._checkpoint_again:
                self.checkpoint(reason)
            if self._now() - self._last_sweep >= SWEEP_SECONDS:
                self._last_sweep = self._now()
                self._sweep()
        except TidelogError as error:
            log.error("maintenance.failed error=%s", error, extra={"event": "maintenance.failed"})
        return False

    def _sync_behind(self) -> None:
        """Sync what nobody waits for, and tell readers of the log how far it is durable."""
        committer, writer = self._store.committer, self._store.writer
        if not committer.context.standing.stopped:
            if writer.position - writer.synced > self._write_behind:
                committer.sync()
            committer.announce()
