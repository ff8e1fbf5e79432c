"""How long each partition has waited, as one member has known.

It waits for anybody of its set to be back, and for its author to open it.

Every member notes it, whoever leads: a coordinator that was elected just now waits no longer for
who is away (S2), or opens nothing (X4), than one that has led all the time.  Else a cluster whose
coordinators change every few seconds, as when all are overloaded, would wait for ever.

While nobody leads nobody can have an epoch opened, so that time is nobody's fault.  An example, of
an epoch that is decided at second 10, with coordinators in seconds 10 to 30, and from 40 on:

========================= ========= ============================
second                    unopened
========================= ========= ============================
10                        0         it is decided
30                        20        nobody leads from here on
40                        20        another one does
50                        30        its author has taken too long
========================= ========= ============================

Left out: partitions that are lost.  Who has what of these is told to each coordinator anew, so each
waits anew, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...affinity.topology import Topology


class Waits:
    """Seconds of the member's steady clock, by partition and epoch.

    What waited in an older epoch has been served, or taken over, since then: it waits anew, also if
    this member has missed that.
    """

    def __init__(self, pause_max: float) -> None:
        """With ``pause_max`` seconds without a word of a coordinator nobody leads."""
        self._pause_max = pause_max
        self._heard_at = float("-inf")
        self.deserted: dict[tuple[int, int], float] = {}
        """Since when nobody of a partition's last set is present."""
        self.unopened: dict[tuple[int, int], float] = {}
        """How long somebody has led while a partition's epoch was decided, and not open."""

    def __repr__(self) -> str:
        return f"<Waits for {len(self.deserted)} sets and {len(self.unopened)} authors>"

    def look(self, topology: Topology, now: float) -> None:
        """Note what is so since now, and forget what is so no more."""
        self.deserted = {
            one: self.deserted.get(one, now) for one in _in_epochs(topology, topology.deserted)
        }
        self.unopened = {
            one: self.unopened.get(one, 0.0) for one in _in_epochs(topology, topology.opening)
        }

    def led(self, topology: Topology, now: float) -> None:
        """Take it that a coordinator, this member or another, is heard now."""
        passed, self._heard_at = now - self._heard_at, now
        if passed <= self._pause_max:
            self.unopened = {
                one: self.unopened[one] + passed if one in self.unopened else 0.0
                for one in _in_epochs(topology, topology.opening)
            }


def _in_epochs(topology: Topology, partitions: Iterable[int]) -> list[tuple[int, int]]:
    return [(partition, topology.partitions[partition].epoch) for partition in partitions]
