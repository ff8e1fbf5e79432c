"""When a checkpoint is due: a pure decision.

A checkpoint bounds three things: memory (the overlay), the time of a recovery (the log behind the
last checkpoint), and how long a quiet store keeps its last updates only in the log.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """Limits: overlay and log in bytes, idle time in seconds."""

    overlay_bytes: int
    log_bytes: int
    idle_seconds: float

    def due(self, *, overlay_bytes: int, log_bytes: int, idle_seconds: float) -> str | None:
        """Return why a checkpoint is due, or None; the inputs are as of now."""
        if overlay_bytes >= self.overlay_bytes:
            return "overlay"
        if log_bytes >= self.log_bytes:
            return "log"
        if overlay_bytes and idle_seconds >= self.idle_seconds:
            return "idle"
        return None
