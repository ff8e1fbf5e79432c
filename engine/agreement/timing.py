"""How long members wait: the times of agreement, all of a clock that goes on during suspend.

No rule of safety rests on any of them but ``lease`` and ``drift``: a clock may run wrong by the
factor ``drift``, and two members compare only durations that each measured itself (L1).

With ``lease=1.5`` and ``drift=0.1`` members wait at least 1.5 / 1.1 = 1.364 real seconds, if their
clocks are quick.  A coordinator whose clock is slow sees 1.364 * 0.9 = 1.227 s of them, and counts
its own lease as that.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...affinity.errors import UsageError

LEASE_SECONDS_MIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds; ``UsageError`` for what cannot work."""

    heartbeat: float = 0.25
    member_timeout: float = 1.0
    lease: float = 1.5
    drift: float = 0.1
    rank_pause: float = 0.1
    """How much longer than the next older member one waits to stand, and the random part."""
    restart_wait: float = 10.0
    """How long a partition of whose in-sync set nobody stayed waits for all of it to come back."""
    exchange_timeout: float = 30.0
    """How long an author that is there may take to open an epoch before others go on without it."""
    join_wait: float = 5.0
    """How long a new member has to be there before it enters the baseline."""
    swap_pause: float = 1.0
    """How long a primary waits before it gives more partitions back to the first of their rows."""

    def __post_init__(self) -> None:
        if self.lease < LEASE_SECONDS_MIN:
            raise UsageError(
                f"a lease of {self.lease} s is too short: {LEASE_SECONDS_MIN} s at least"
            )
        if not 0 <= self.drift < 0.5:
            raise UsageError(f"clocks that drift by {self.drift} cannot be allowed for")
        if not 0 < 2 * self.heartbeat < min(self.member_timeout, self.scaled(self.lease)):
            raise UsageError(
                f"a heartbeat of {self.heartbeat} s is too slow",
                hint="Let at least two of them fit into `member_timeout`, and into the lease.",
            )

    def scaled(self, seconds: float) -> float:
        """Return how long a time of another member's clock surely lasts on the own one (L1)."""
        return seconds * (1 - self.drift) / (1 + self.drift)
