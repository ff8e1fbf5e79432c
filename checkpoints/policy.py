"""When a checkpoint is due, and who has to wait for one: pure decisions.

A checkpoint bounds three things: memory (the overlay), the time of a recovery (the log behind the
last checkpoint), and how long a quiet store keeps its last updates only in the log.
"""

from __future__ import annotations

from dataclasses import dataclass

LOG_FACTOR = 4
"""The log behind the last checkpoint may be so many times as long as the overlay may be large."""

WAIT_FACTOR = 2
"""Whoever fills the overlay waits for a checkpoint once it is so many times too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """Limits: the overlay in bytes, and seconds since the last checkpoint; others follow."""

    overlay_bytes: int
    interval_seconds: float

    @property
    def wait_bytes(self) -> int:
        """Return how large the overlay is when whoever fills it waits for a checkpoint."""
        return WAIT_FACTOR * self.overlay_bytes

    def due(self, *, overlay_bytes: int, log_bytes: int, seconds: float) -> str | None:
        """Return why a checkpoint is due, or None.

        The inputs are as of now, log and seconds counted from the last checkpoint.
        """
        if overlay_bytes >= self.overlay_bytes:
            return "overlay"
        if log_bytes >= LOG_FACTOR * self.overlay_bytes:
            return "log"
        if overlay_bytes and seconds >= self.interval_seconds:
            return "idle"
        return None
