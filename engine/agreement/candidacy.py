"""Standing for coordinator: first whether it would be worth it, then for good (C1, C2, C5).

A candidate asks whether it would be promised a term before it asks for it: a member that cannot win
then disturbs nobody, and raises no term.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from ...affinity.topology import Topology
from .identity import misfit
from .leases import has_majorities, voting
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
        """Tell whether a term would be won by those that have said yes.

        Else one that reaches a majority of the old baseline only, while that changes, would ask
        for term after term, and each time those that could win would wait for it.  Who is behind
        cannot tell yet: it takes any majority of the baseline that it knows.
        """
        if topology.index < self.decided():
            return has_majorities(self._shown.keys(), voting(topology, None))
        return self.wins(topology)

    def decided(self) -> int:
        """Return the highest index that anybody who said yes knows to be decided."""
        return max((shown.decided for shown in self._shown.values()), default=0)

    def _fitting(self, topology: Topology) -> dict[UUID, Promise]:
        """Return the promises that count: of disks that the longest decided log knows (C1)."""
        return {
            member: shown.promise
            for member, shown in sorted(self._shown.items())
            if misfit(shown.promise.credentials, topology) is None
        }

    def wins(self, topology: Topology) -> bool:
        """Tell whether the term is won: nothing is missing here that is decided, and who counts.

        With a change of the baseline to adopt it takes a majority of the new one as well (C4).
        """
        if topology.index < self.decided():
            return False
        adopted = self.to_adopt(topology)
        proposed = None if adopted is None else adopted.decision
        return has_majorities(self._fitting(topology).keys(), voting(topology, proposed))

    def to_adopt(self, topology: Topology) -> Acceptance | None:
        """Return what may have been decided at the next index: the highest term's (C2).

        Of whoever is not of the baseline nothing is taken: what it has accepted the others have.
        """
        accepted = [
            promise.accepted
            for member, promise in self._fitting(topology).items()
            if member in topology.baseline
            and promise.accepted
            and promise.accepted.decision.index == topology.index + 1
        ]
        return max(accepted, key=lambda acceptance: acceptance.term, default=None)
