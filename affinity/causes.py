"""How an exchange begins: what a decision says of who is there, and of who serves and holds what.

An *exchange* is one decision of this sort, and what follows from it: takeovers, and copies that are
removed, admitted or added.  A decision of maps, or of epochs that are open, begins none.

========== ================================== ====================================
kind       ``member``                         ``others``
========== ================================== ====================================
joined     was started for the first time     nobody
restarted  was started again                  nobody
gone       is there no more                   nobody
first      nobody: it was never served        who serve now
from_gone  served, and has gone               who take over
from_older served, and was started again      who take over, itself perhaps
moved      served, and is there: it gave up   who take over
without    serves, and goes on in a new epoch the copies that its set has no more
removed    is out of sets                     nobody
admitted   catches up                         nobody
added      is in sets again                   nobody
========== ================================== ====================================

Pure.

Left out: how an exchange goes on (``engine.node.exchanges``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple
from uuid import UUID

from .changes import (
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    Decision,
    Joined,
    MemberGone,
    Takeover,
)
from .topology import Topology

CauseKind = Literal[
    "joined", "restarted", "gone", "first", "from_gone", "from_older", "moved", "without",
    "removed", "admitted", "added",
]  # fmt: skip


class Cause(NamedTuple):
    """One thing that a decision says, of one member, and of how many partitions."""

    kind: CauseKind
    member: UUID | None
    others: tuple[UUID, ...] = ()
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What a decision says, and how many partitions it is about."""

    index: int
    causes: tuple[Cause, ...]
    takeovers: tuple[Takeover, ...]
    removed: int
    admitted: int
    added: int


def exchange_of(before: Topology, decision: Decision, after: Topology) -> Exchange | None:
    """Return the exchange that a decision begins, between these topologies; None for none."""
    takeovers = tuple(one for one in decision.changes if isinstance(one, Takeover))
    causes = (
        *_of_members(before, decision),
        *_of_takeovers(before, takeovers, after),
        *_of_copies(decision),
    )
    if not causes:
        return None
    return Exchange(
        index=decision.index,
        causes=causes,
        takeovers=takeovers,
        removed=_touched(decision, CopiesRemoved),
        admitted=_touched(decision, CopiesAdmitted),
        added=_touched(decision, CopiesAdded),
    )


def _of_members(before: Topology, decision: Decision) -> Iterator[Cause]:
    for change in decision.changes:
        if isinstance(change, Joined):
            known = before.members.get(change.incarnation.member)
            first = known is None or known.boot == 0
            yield Cause("joined" if first else "restarted", change.incarnation.member)
        elif isinstance(change, MemberGone):
            yield Cause("gone", change.incarnation.member)


def _of_takeovers(
    before: Topology, takeovers: Iterable[Takeover], after: Topology
) -> Iterator[Cause]:
    found: dict[tuple[CauseKind, UUID | None], tuple[set[UUID], set[int]]] = {}
    for takeover in takeovers:
        kind, member, others = _of_takeover(before, takeover, after)
        about = found.setdefault((kind, member), (set(), set()))
        about[0].update(others)
        about[1].add(takeover.partition)
    for (kind, member), (others, partitions) in found.items():
        yield Cause(kind, member, tuple(sorted(others)), len(partitions))


def _of_takeover(
    before: Topology, takeover: Takeover, after: Topology
) -> tuple[CauseKind, UUID | None, Iterable[UUID]]:
    here = takeover.partition < len(before.partitions)
    copies = before.partitions[takeover.partition] if here else None
    author = takeover.author.member
    if copies is None or copies.epoch == 0:
        return "first", None, [author]
    last = copies.author
    if last == takeover.author:
        listed = {copy.member for copy in takeover.in_sync}
        return "without", author, {copy.member for copy in copies.in_sync} - listed
    if last.member not in after.members_present:
        return "from_gone", last.member, [author]
    return "moved" if after.is_present(last) else "from_older", last.member, [author]


def _of_copies(decision: Decision) -> Iterator[Cause]:
    for change in decision.changes:
        if isinstance(change, CopiesRemoved):
            yield Cause("removed", change.copy.member, (), len(change.partitions))
        elif isinstance(change, CopiesAdmitted):
            yield Cause("admitted", change.copy.member, (), len(change.partitions))
        elif isinstance(change, CopiesAdded):
            yield Cause("added", change.copy.member, (), len(change.partitions))


def _touched(decision: Decision, kind: type[CopiesRemoved | CopiesAdmitted | CopiesAdded]) -> int:
    changes = (one for one in decision.changes if isinstance(one, kind))
    return len({partition for one in changes for partition in one.partitions})
