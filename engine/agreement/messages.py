"""What members say to each other to agree, and what they note durably before they say it.

Terms are (number, member): two candidates never have the same one.  All messages travel in an
envelope, which says what its sender knows to be decided: who is behind fetches what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

from ...affinity.changes import Decision, TopologyChange
from ...affinity.topology import Incarnation, Topology
from .journal_format import NO_TERM as NO_TERM, Term as Term


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A decision that was proposed and accepted in a term; whether it is decided is not known."""

    term: Term
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What the disk of an incarnation says of it (C7).

    ``last`` is the nonce of the boot that the log recorded when this disk last heard of it,
    ``fresh`` the one of this boot; ``end`` is how far its configuration log reaches.
    """

    incarnation: Incarnation
    last: bytes
    fresh: bytes
    end: int


# ------------------------------------------------------------------ messages


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPromise:
    """A candidate asks for a promise, or, if it is not ``sure``, whether it would get one."""

    term: Term
    sure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The answer; ``promised`` is the highest term that this member has promised."""

    term: Term
    sure: bool
    granted: bool
    promised: Term
    credentials: Credentials
    accepted: Acceptance | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """A coordinator asks to accept a decision."""

    term: Term
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """It is durable here; if ``promised`` is a higher term it was refused."""

    term: Term
    index: int
    promised: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Decisions that a majority has accepted, in order; or the topology that they led to."""

    decisions: tuple[Decision, ...]
    topology: Topology | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Asks for the decisions behind an index."""

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A coordinator's heartbeat; ``known``: up to there all who are present have the decisions."""

    term: Term
    round: int
    known: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The answer; ``votes``: this member promises no other term for a lease.

    ``reaches`` has the members with which it exchanges data, in both directions.
    """

    term: Term
    round: int
    votes: bool
    promised: Term
    end: int
    reaches: frozenset[UUID] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a coordinator hands out upon a pong: seconds from when that was sent."""

    term: Term
    round: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A primary serves an epoch of a partition no more; ``target`` is who shall, if listed."""

    partition: int
    epoch: int
    target: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """An incarnation asks to be in the topology; a ``voter`` holds no data."""

    credentials: Credentials
    address: str
    voter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRefused:
    """A coordinator will not have an incarnation, whose disk is not the one that the log knows."""

    incarnation: Incarnation
    nonce: bytes
    """That of the disk: another one may be the member of this name."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeChange:
    """A member asks for a change; a guard names what it was made from (C6).

    With ``after`` it is one of maps, made from those that there were behind that decision.  Whoever
    asks twice does so with the same one, and so the change is decided once at most, however late
    the other question arrives.
    """

    request: int
    change: TopologyChange
    guards: tuple[Guard, ...] = ()
    after: int | None = None


class Guard(NamedTuple):
    """A partition as a change takes it to be; ``changed`` is the index that touched it last."""

    partition: int
    epoch: int
    changed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRefused:
    """The change that was asked for is not proposed, and why.

    ``stale``: there are other maps by now, or may be; it can be asked for again from these.
    """

    request: int
    reason: str
    stale: bool = False


Telling: TypeAlias = (
    AskPromise
    | Promise
    | Propose
    | Accepted
    | Decided
    | Fetch
    | Ping
    | Pong
    | Lease
    | Release
    | Join
    | JoinRefused
    | ProposeChange
    | ChangeRefused
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A message with its sender, and the index up to which that knows what is decided.

    The fresh nonce of the sender's boot tells it from a copy of its disk that counts the same boot.
    """

    sender: Incarnation
    nonce: bytes
    cluster: UUID | None
    decided: int
    message: Telling


# ------------------------------------------------------------------ what is noted


@dataclass(frozen=True, slots=True)
class PromisedTerm:
    """A term that was promised: nothing of a lower one is accepted any more."""

    term: Term


Note: TypeAlias = PromisedTerm | Acceptance | Decision | Topology
"""What is written down: a promise, what was accepted, what is decided, or where decisions led to.

An acceptance is a promise of its term, too.
"""
