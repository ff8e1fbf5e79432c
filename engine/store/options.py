"""Limits and habits of an open store, checked when they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from ...affinity.errors import UsageError
from ...checkpoints.policy import CheckpointPolicy
from ..commit.lock_manager import SECONDS_MAX

TRANSACTION_BYTES_LIMIT = 512 << 20
"""Half of what a frame may hold: how many bytes a record will have is known roughly beforehand."""
SIZE_MAX = (1 << 63) - 1
"""What the system takes for the size of a file or of a map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Limits and habits of an open store; sizes in bytes, times in seconds."""

    segment_bytes: int = 64 << 20
    checkpoint_bytes: int = 192 << 20
    retain_bytes: int = 256 << 20
    retain_seconds: float | None = None
    transaction_bytes_max: int = 64 << 20
    snapshot_memory_max: int = 1 << 30
    map_size: int = 1 << 40
    map_size_max: int = 16 << 40
    sync_interval: float = 0.05
    checkpoint_interval: float = 60.0
    lock_timeout: float = 10.0
    growth_patience: float = 5.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is None and name == "retain_seconds":
                continue
            whole = type(self.__dataclass_fields__[name].default) is int
            if type(value) not in ((int,) if whole else (int, float)) or not value > 0:
                kind = "whole number" if whole else "number"
                raise UsageError(f"{name}={value!r} is not a positive {kind}")
            limit, unit = (SIZE_MAX, "bytes") if whole else (int(SECONDS_MAX), "seconds")
            if value > limit:
                raise UsageError(f"{name} is more than {limit:,} {unit}", hint="Give less.")
        if self.transaction_bytes_max > TRANSACTION_BYTES_LIMIT:
            raise UsageError(
                f"transaction_bytes_max={self.transaction_bytes_max:,} is more than the "
                f"{TRANSACTION_BYTES_LIMIT:,} that a transaction may ever have"
            )

    def checkpoint_policy(self) -> CheckpointPolicy:
        """Return when checkpoints are due with these options."""
        return CheckpointPolicy(
            overlay_bytes=self.checkpoint_bytes, interval_seconds=self.checkpoint_interval
        )


class GivenOptions(TypedDict, total=False):
    """The fields of ``Options`` as keywords, for type checkers and editors."""

    segment_bytes: int
    checkpoint_bytes: int
    retain_bytes: int
    retain_seconds: float | None
    transaction_bytes_max: int
    snapshot_memory_max: int
    map_size: int
    map_size_max: int
    sync_interval: float
    checkpoint_interval: float
    lock_timeout: float
    growth_patience: float
