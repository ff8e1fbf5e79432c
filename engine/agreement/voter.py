"""One vote: what a member has promised and accepted, and until when it promises nothing else.

The acceptor of Paxos (Lamport, 2001), for one undecided decision at a time, and the holder of the
promise on which leases rest.

Invariants:

- the promised term never falls, over all boots: it is durable before the promise leaves;
- nothing of a lower term than the promised one is accepted;
- for ``lease`` seconds behind its answer to a ping, and behind its start, a member promises no
  other term (L2).
"""

from __future__ import annotations

from ...affinity.changes import Decision
from .leases import NEVER
from .messages import NO_TERM, Acceptance, Term


class Voter:
    """The vote of one incarnation.  ``may_vote`` is False for a damaged or an old disk."""

    def __init__(
        self,
        *,
        promised: Term = NO_TERM,
        accepted: Acceptance | None = None,
        may_vote: bool = True,
        held_until: float = NEVER,
    ) -> None:
        self.promised = promised
        self.accepted = accepted
        self.may_vote = may_vote
        self.held_until = held_until

    def would_promise(self, term: Term, now: float) -> bool:
        """Tell whether a term can be promised now."""
        return self.may_vote and term > self.promised and now >= self.held_until

    def promise(self, term: Term) -> None:
        """Promise a term; it has to be durable before anybody hears of it."""
        assert term > self.promised
        self.promised = term

    def accept(self, term: Term, decision: Decision, decided: int) -> bool:
        """Accept what a coordinator proposes; False if it may not be, or is not the next one."""
        if not self.may_vote or term < self.promised or decision.index != decided + 1:
            return False
        self.promised = term
        self.accepted = Acceptance(term, decision)
        return True

    def hold(self, until: float) -> None:
        """Promise no other term before a time."""
        self.held_until = max(self.held_until, until)

    def learned(self, decided: int) -> None:
        """Forget what was accepted if it is decided, one way or the other."""
        if self.accepted is not None and self.accepted.decision.index <= decided:
            self.accepted = None
