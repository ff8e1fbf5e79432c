"""Standing for coordinator: first whether it would be worth it, then for good (C1, C2, C5).

A candidate asks whether it would be promised a term before it asks for it: a member that cannot win
then disturbs nobody, and raises no term.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from ...affinity.topology import Topology
from .identity import misfit
from .leases import majority
from .messages import Acceptance, Promise, Term


class Shown(NamedTuple):
    """A promise, and how much its sender knew to be decided."""

    promise: Promise
    decided: int


class Candidacy:
    """One try to become the coordinator of a term; it ends at ``until``."""

    def __init__(self, term: Term, *, sure: bool, until: float) -> None:
        self.term = term
        self.sure = sure
        self.until = until
        self._shown: dict[UUID, Shown] = {}

    def take(self, promise: Promise, decided: int) -> None:
        """Take an answer that belongs to this try."""
        if promise.granted and (promise.term, promise.sure) == (self.term, self.sure):
            member = promise.credentials.incarnation.member
            self._shown[member] = Shown(promise, decided)

    def would_win(self, topology: Topology) -> bool:
        """Tell whether a majority of the baseline has said yes."""
        return len(self._shown.keys() & set(topology.baseline)) >= majority(topology.baseline)

    def decided(self) -> int:
        """Return the highest index that anybody who said yes knows to be decided."""
        return max((shown.decided for shown in self._shown.values()), default=0)

    def fitting(self, topology: Topology) -> list[Promise]:
        """Return the promises that count: of disks that the longest decided log knows (C1)."""
        return [
            shown.promise
            for member, shown in sorted(self._shown.items())
            if member in topology.baseline and misfit(shown.promise.credentials, topology) is None
        ]

    def wins(self, topology: Topology) -> bool:
        """Tell whether the term is won: nothing is missing here that is decided, and who counts."""
        if topology.index < self.decided():
            return False
        return len(self.fitting(topology)) >= majority(topology.baseline)

    def to_adopt(self, topology: Topology) -> Acceptance | None:
        """Return what may have been decided at the next index: the highest term's (C2)."""
        accepted = [
            promise.accepted
            for promise in self.fitting(topology)
            if promise.accepted and promise.accepted.decision.index == topology.index + 1
        ]
        return max(accepted, key=lambda acceptance: acceptance.term, default=None)
