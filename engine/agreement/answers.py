"""What a coordinator learns from answers to its pings: who is there, outlived whom, reaches whom.

An answer to a round shows that its sender was there when the round began.  So whoever answers one
that began after somebody was noticed to be dead has surely outlived that one.  Without this, of two
members that lose their power together the one whose last answer came a little later would be taken
for a survivor, and the other one's copy given up for it.

Invariants:

- "outlived" is never said of two incarnations that ended at one moment;
- of a member that is heard again nobody remembers that it was noticed.

Left out: what follows from it (``coordinator``).
"""

from __future__ import annotations

from uuid import UUID

from ...affinity.topology import Incarnation, PartitionCopies, Topology
from .messages import Pong
from .timing import Timing


class Answers:
    """What has been answered in one term."""

    def __init__(self, timing: Timing, now: float) -> None:
        self._timing = timing
        self._elected = now
        self._heard: dict[UUID, float] = {}
        self._rounds: dict[Incarnation, int] = {}
        self._noticed: dict[Incarnation, int] = {}
        self._reaches: dict[Incarnation, frozenset[UUID]] = {}
        self._steady: dict[Incarnation, float] = {}
        """Since when each incarnation has answered without a gap."""

    def heard(self, sender: Incarnation, pong: Pong, now: float) -> bool:
        """Take an answer; tell whether its sender is known to have outlived somebody by it."""
        before = self._rounds.get(sender, 0)
        if sender not in self._steady or not self.lately(sender.member, now):
            self._steady[sender] = now
        self._heard[sender.member] = now
        self._noticed.pop(sender, None)
        if pong.round > before:
            self._rounds[sender] = pong.round
            self._reaches[sender] = pong.reaches
        return any(before <= noticed < pong.round for noticed in (0, *self._noticed.values()))

    def joined(self, member: UUID, now: float) -> None:
        """Take it that a member is there under a new boot: answers of the last one say nothing."""
        self._heard[member] = now

    def lately(self, member: UUID, now: float) -> bool:
        """Tell whether a member has answered, or there was no time to."""
        return self._heard.get(member, self._elected) > now - self._timing.member_timeout

    def surely_lately(self, incarnation: Incarnation, now: float) -> bool:
        """Tell whether an incarnation has answered in this term, and lately, and is not dead."""
        answered = incarnation in self._rounds and not self.is_noticed(incarnation)
        return answered and self.lately(incarnation.member, now)

    def steadily(self, incarnation: Incarnation, now: float) -> bool:
        """Tell whether an incarnation has answered for long, without a gap, and lately."""
        since, member = self._steady.get(incarnation), incarnation.member
        if since is None or not self.lately(member, now):
            return False
        return self._heard[member] >= since + self._timing.join_wait

    # -------------------------------------------------------------- who outlived whom

    def notice(self, incarnation: Incarnation, newest: int) -> bool:
        """Take it that an incarnation is not there any more; tell whether that is new.

        ``newest`` is the newest round that has begun.
        """
        if incarnation in self._noticed:
            return False
        self._noticed[incarnation] = newest
        return True

    def is_noticed(self, incarnation: Incarnation) -> bool:
        """Tell whether an incarnation was noticed to be gone, and not heard since."""
        return incarnation in self._noticed

    def outlived(self, kept: Incarnation, gone: Incarnation) -> bool:
        """Tell whether one was there when another one was surely not any more.

        Who had gone before this term has been outlived by everybody who answers in it.
        """
        noticed = max(self._noticed.get(gone, 0), self._rounds.get(gone, 0))
        return self._rounds.get(kept, 0) > noticed

    def survivors(self, gone: Incarnation) -> set[UUID]:
        """Return the members that were there when one was surely not any more, under any boot."""
        return {one.member for one in self._rounds if self.outlived(one, gone)}

    def all_outlived(self, gone: Incarnation, topology: Topology, newest: int) -> bool:
        """Tell whether all that are present have outlived one, or had a round more time to.

        Then what its going means for sets can be decided together with it.
        """
        others = topology.present - self._noticed.keys()
        return newest > self._noticed[gone] + 1 or all(self.outlived(one, gone) for one in others)

    # -------------------------------------------------------------- who reaches whom

    def reaches_more(
        self, accused: Incarnation, accuser: Incarnation, copies: PartitionCopies
    ) -> bool:
        """Tell whether a copy is known to reach more of its set than the primary that accuses it.

        What it said before it fell silent counts for nothing: it may be dead, and not noticed yet.
        """
        if accuser not in self._reaches or accused not in self._reaches:
            return False
        if self.is_noticed(accused) or self._rounds[accused] < self._rounds[accuser] - 1:
            return False
        others = {listed.member for listed in copies.in_sync}
        accused_reaches, accuser_reaches = (
            len(self._reaches[one] & others - {one.member}) for one in (accused, accuser)
        )
        return accused_reaches > accuser_reaches
