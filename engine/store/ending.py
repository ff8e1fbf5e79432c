"""The end of an open store: closed by its user, abandoned, lost, or left behind in a fork.

However it ends, what was acknowledged as durable is in the log.  ``close`` also makes the rest
durable, takes a checkpoint, and says in the manifest that the log ends cleanly.

Invariants:

- Only a store whose log is durable to its very end gets the mark of a clean close.
- Every step may be done again: an interrupt anywhere in ``close`` leaves it to the next ``close``.
- No commit that was acknowledged is answered differently because of the end.

Left out: what else belongs to the handle that the user has (``database``).
"""

from __future__ import annotations

import logging
import threading
from _thread import start_new_thread
from contextlib import suppress

from ...affinity.errors import DiskError, DiskFullError, TidelogError
from ..commit.committer import CLOSED
from ..data.point_reads import closed_view
from ..system.forks import free
from .maintenance import Maintenance
from .open_state import OpenState
from .opening import OpenStore

log = logging.getLogger("tidelog.store")


class Ending:
    """Ends one open store, once.

    ``sync_lost`` tells whether what nobody has waited for is made durable if the store is lost.
    """

    def __init__(
        self, store: OpenStore, state: OpenState, maintenance: Maintenance, *, sync_lost: bool
    ) -> None:
        self._store = store
        self._committer = store.committer
        self._state = state
        self._maintenance = maintenance
        self._sync_lost = sync_lost
        self._closing = threading.Lock()
        self._leaving = False
        self.released = False
        """Whether files and lock have been given up."""

    def close(self) -> None:
        """Make everything durable, take a checkpoint, and let go of the store."""
        with self._closing:
            if self.released:
                return
            with self._committer.mutex:
                self._committer.check_whole()
                self._state.closed = self._state.closed or self._state.closed_error
                self._committer.close_short_cut()
            try:
                if not self._leaving:
                    self._maintenance.stop()
                    self._end()
            finally:
                self._let_go()
            log.info("store.closed path=%s", self._state.path, extra={"event": "store.closed"})

    def _end(self) -> None:
        """Make everything durable, and the end a clean one unless the store has stopped before."""
        store, committer = self._store, self._committer
        if committer.interrupted:
            committer.sync()  # the next open has it all from the log
        elif committer.stopped not in (None, CLOSED):  # closed: a close that was interrupted
            raise DiskError(f"{committer.stopped}; newer relaxed commits may be lost")
        else:
            failure: DiskError | DiskFullError | None = None
            try:
                if self._maintenance.unwritten:
                    store.checkpointer.run("close")
            except (DiskError, DiskFullError) as error:
                failure = error
            committer.sync()
            committer.announce()
            # First the end of all writing, then the sync: what the manifest calls durable is.
            committer.end(self._state.closed_error)
            committer.sync()
            try:
                if failure is None and not committer.interrupted:
                    store.manifests.end_cleanly(store.writer.position)
            except (DiskError, DiskFullError) as error:
                failure = error
            if failure is not None:
                raise _but_committed(failure) from failure

    def _let_go(self) -> None:
        """Let every later call raise, and give up files and lock; done twice it does the same."""
        self._leaving = True
        self._maintenance.stop()
        try:
            # Also if the end of `_end` was not reached: whose commit is in the log is told so.
            self._committer.end(self._state.closed_error)
        finally:
            self._shut()
            self._store.release()
            self.released = True

    def _shut(self) -> None:
        """Let every later call raise; nothing of LMDB is referenced from here any more."""
        error = self._state.closed_error
        self._state.closed = error
        self._committer.refuse(error)
        for snapshot in self._store.snapshots:
            snapshot.end(error)
        self._store.overlay.view = closed_view(error)

    def abandon(self) -> None:
        """Let go of the store as a crash would: no checkpoint, no mark of a clean end."""
        if self._state.closed == self._state.forked_error:
            return
        with self._closing:
            self._let_go()

    # -------------------------------------------------------------- nobody is left

    def lost(self) -> None:
        """Let go of a store that nobody can close any more; called by a finalizer."""
        # A finalizer may run anywhere, in a thread that has one of these locks, too.
        if self._store.checkpointer.running or self._committer.mutex.locked():
            start_new_thread(self._let_go_lost, ())
        else:
            self._let_go_lost()

    def _let_go_lost(self) -> None:
        """Let go of the store: cleanly if the data file has everything, else as a crash would.

        A checkpoint may take too long for a finalizer.  The background work ends by itself.
        """
        committer, store = self._committer, self._store
        clean = committer.stopped is None and not self._maintenance.unwritten
        with suppress(TidelogError):
            if clean or self._sync_lost:
                committer.sync()
            if clean:
                committer.announce()
        committer.end(self._state.closed_error)
        if clean:
            with suppress(TidelogError):
                committer.sync()
                store.manifests.end_cleanly(store.writer.position)
        self._shut()
        store.release()
        self.released = True
        log.warning(
            "store.lost: Tidelog let go of the store %s, to which nothing referred any more: "
            "close it instead",
            self._state.path,
            extra={"event": "store.lost"},
        )

    def forked(self) -> None:
        """In the child of a fork: nothing of this store may be touched."""
        free(self._closing)
        self.released = True
        error = self._state.forked_error
        self._state.closed = error
        self._store.overlay.view = closed_view(error)
        for snapshot in self._store.snapshots:
            snapshot.forked(error)
        self._committer.forked(error)
        self._store.checkpointer.forked()


def _but_committed(failure: DiskError | DiskFullError) -> DiskError | DiskFullError:
    """Return the error of a close that failed when the log had everything, durably."""
    return type(failure)(
        f"{failure}; the store is closed, and everything that was committed is durable in its log",
        hint="The next open finds all of it. "
        "It needs what this close needed: free some space, or check the disk.",
    )
