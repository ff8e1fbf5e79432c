"""Since when partitions have nobody who could go on, as one member has known.

Every member notes it, whoever leads: a coordinator that was elected just now waits no longer for
who is away than one that has led all the time (S2).  Else a cluster whose coordinators change
every few seconds, as when all are overloaded, would wait for ever.
"""

from __future__ import annotations

from ...affinity.topology import Topology


class Absences:
    """Moments in seconds of the member's steady clock, by partition."""

    def __init__(self) -> None:
        self.deserted: dict[int, float] = {}
        """Partitions of whose last set nobody is present."""
        self.lost: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<Absences: {len(self.deserted)} partitions deserted, {len(self.lost)} lost>"

    def look(self, topology: Topology, now: float) -> None:
        """Note what is so since now, and forget what is so no more."""
        self.deserted = {p: self.deserted.get(p, now) for p in topology.deserted}
        self.lost = {p: self.lost.get(p, now) for p in topology.lost}
