"""Who wants to leave a cluster that goes on, and whether that is decided: a member that stops.

A member that stops asks for its own ``MemberGone``.  The question is kept for a heartbeat, since
of members that all are told to stop each asks.  Then the answer is the first that fits:

=========================================== ====================================================
so it is                                     answer
=========================================== ====================================================
without all that asked there is no majority  ``TOO_FEW``: it stops, and nothing is decided
it serves what others have a copy of         ``HAND_OVER``: it hands that over, and asks again
else                                         it has gone
=========================================== ====================================================

So sets do not shrink to whoever stops last when a whole cluster is stopped, as long as nobody is
declared gone for whom there are ``too_few``: all are waited for when it is started again (S2).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ...affinity.takeovers import GivenUp
from ...affinity.topology import Incarnation, Topology
from .leases import majority
from .timing import Timing

TOO_FEW: Final = "too few members would stay to decide anything: stop without it"
HAND_OVER: Final = "what it serves has other copies: hand it over first"


class Departures:
    """The members that have asked a coordinator to leave."""

    def __init__(self, timing: Timing) -> None:
        self._pause = timing.heartbeat
        self._asked: dict[Incarnation, float] = {}

    def asked(self, who: Incarnation, now: float) -> None:
        """Note that somebody wants to leave."""
        self._asked.setdefault(who, now)

    def waits(self, who: Incarnation, topology: Topology, now: float) -> bool:
        """Tell whether it is too early for an answer: others may be asking, too."""
        return now < self._asked[who] + self._pause and not self.too_few(topology)

    def objection(
        self, who: Incarnation, topology: Topology, released: dict[int, GivenUp]
    ) -> str | None:
        """Return why somebody does not go now; None if it does."""
        if self.too_few(topology):
            return TOO_FEW
        shared = (
            partition
            for partition, copies in enumerate(topology.partitions)
            if copies.author == who
            and any(copy != who and copy in topology.present for copy in copies.in_sync)
        )
        for partition in shared:
            given_up = released.get(partition)
            if given_up is None or given_up.epoch != topology.partitions[partition].epoch:
                return HAND_OVER
        return None

    def leaving(self) -> Collection[Incarnation]:
        """Return who has asked."""
        return self._asked.keys()

    def too_few(self, topology: Topology) -> bool:
        """Tell whether those that have not asked to leave are not a majority."""
        stay = {one.member for one in topology.present if one not in self._asked}
        return len(stay & {*topology.baseline}) < majority(topology.baseline)
