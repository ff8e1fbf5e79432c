"""Keeps the overlay of a recovery small: checkpoints beside the replay, and instead of it.

Invariants:

- If the overlay is far too full, the replay waits for a checkpoint.
- No error of the thread beside the replay is lost: what a checkpoint of the replay itself would
  meet again may pass there, all else is raised where the store is opened.

Left out: what a checkpoint writes (``checkpointer``), and the replay (``recovery``).
"""

from __future__ import annotations

from ...affinity.errors import ClosedError, DiskError, DiskFullError, SnapshotExpiredError
from ...checkpoints.policy import CheckpointPolicy
from ..data.overlay import Overlay
from ..system.environment import BackgroundTask, Environment
from .checkpointer import Checkpointer


class Relief:
    """Checkpoints for one replay, which calls ``look`` between two frames."""

    def __init__(
        self,
        environment: Environment,
        checkpointer: Checkpointer,
        overlay: Overlay,
        policy: CheckpointPolicy,
    ) -> None:
        self._environment = environment
        self._checkpointer = checkpointer
        self._overlay = overlay
        self._policy = policy
        self._task: BackgroundTask | None = None
        self._error: BaseException | None = None
        self._ended = False

    def look(self) -> None:
        """Have a checkpoint taken if the overlay is full; wait for it if it is far too full."""
        if self._error is not None:
            raise self._error
        if self._overlay.bytes >= self._policy.wait_bytes:
            self._flush(self._policy.wait_bytes)
        elif self._overlay.bytes >= self._policy.overlay_bytes:
            if self._task is None:
                self._task = self._environment.background("tidelog-recovery", 3600.0, self._beside)
            self._task.wake()

    def end(self) -> None:
        """Begin no more checkpoints; one that is running goes on: it has the same mutex."""
        self._ended = True
        if self._task is not None:
            self._task.stop(wait=False)
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Return once nothing runs any more; the store is not going to be opened."""
        if self._task is not None:
            self._task.stop()

    def _flush(self, limit: int) -> None:
        self._checkpointer.run_while(lambda: self._overlay.bytes >= limit, "recovery")

    def _beside(self) -> None:
        try:
            self._flush(self._policy.overlay_bytes)
        except (DiskError, DiskFullError, SnapshotExpiredError):
            return  # it comes again when the checkpoint must be taken
        except ClosedError:
            return  # the replay has ended, and so has the store meanwhile
        except BaseException as error:
            self._error = error
            if self._ended:
                raise  # nobody is left who would look: this thread shows it
