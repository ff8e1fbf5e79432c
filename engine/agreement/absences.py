"""Since when nobody of a partition's set has been there, as one member has known.

Every member notes it, whoever leads: a coordinator that was elected just now waits no longer for
who is away than one that has led all the time (S2).  Else a cluster whose coordinators change
every few seconds, as when all are overloaded, would wait for ever.

Left out: partitions that are lost.  Who has what of these is told to each coordinator anew, so each
waits anew, too.
"""

from __future__ import annotations

from ...affinity.topology import Topology


class Absences:
    """Moments in seconds of the member's steady clock, by partition."""

    def __init__(self) -> None:
        self.deserted: dict[int, float] = {}
        """Partitions of whose last set nobody is present."""

    def __repr__(self) -> str:
        return f"<Absences of {len(self.deserted)} sets>"

    def look(self, topology: Topology, now: float) -> None:
        """Note what is so since now, and forget what is so no more."""
        self.deserted = {p: self.deserted.get(p, now) for p in topology.deserted}
