"""Which in-sync sets have to change, by what is known of who is there: takeovers and removals.

A coordinator asks with each decision, and says what it knows beside the log: which leases have
ended, who answered after whom, what was released.

Invariants:

- a set shrinks, in place or by a takeover, only when who stays has surely outlived who goes: of
  members that died together nobody is dropped (I1);
- while an epoch is not known to be open every change of its set is a takeover (I4);
- members that never went go before those that came back: if anybody of a set stayed, others are
  stale (S3); if nobody did, all of them are waited for, but not for ever (S2);
- an author that is present and serves on is not replaced by another one.

Left out: who knows what is asked here (``engine.agreement``), and what may follow (``topology``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from .changes import CopiesRemoved, Takeover
from .topology import Incarnation, PartitionCopies, Topology


class GivenUp(NamedTuple):
    """An epoch that its author serves no more, and the member that shall serve the next one."""

    epoch: int
    target: UUID | None = None


NOTHING: Mapping[int, GivenUp] = MappingProxyType({})

Outlived = Callable[[Incarnation, Incarnation], bool]
"""Whether the first one was surely there when the second one was not any more."""


def surely(*_about: object) -> bool:
    """Tell that it is so: what whoever knows all would say."""
    return True


def takeovers_due(
    topology: Topology,
    may_move: Callable[[PartitionCopies], bool] = surely,
    *,
    outlived: Outlived = surely,
    waited: Callable[[int], bool] = surely,
    released: Mapping[int, GivenUp] = NOTHING,
    leaving: Collection[Incarnation] = (),
) -> list[Takeover]:
    """Return the takeovers that have to be, and for which somebody is there.

    ``may_move`` tells whether the lease of an author that has gone has surely ended, ``waited``
    whether a partition whose whole set is away has been waited for long enough.  ``released`` has
    the epochs that their authors serve no more, by partition; ``leaving`` are members that are
    about to go.
    """
    due = []
    for partition in sorted({*topology.incomplete, *released}):
        copies = topology.partitions[partition]
        given_up = released.get(partition)
        if given_up is not None and given_up.epoch != copies.epoch:
            given_up = None
        listed = _who_stayed(topology, copies)
        if copies.author not in topology.present:
            if not may_move(copies):
                continue
            listed = listed or _who_came_back(topology, copies, waited)
        elif given_up is None and not _cannot_open(copies, listed):
            continue
        if listed and _outlived_all(listed, copies.in_sync, outlived):
            due.append(
                Takeover(
                    partition=partition,
                    epoch=copies.epoch + 1,
                    author=_next_author(copies, listed, given_up, leaving),
                    in_sync=tuple(listed),
                )
            )
    return due


def removals_due(topology: Topology, outlived: Outlived = surely) -> list[CopiesRemoved]:
    """Return who has to leave which sets, as they have gone and the primary has outlived them.

    An author that has gone, or has not opened its epoch yet, is a matter of takeovers.
    """
    found: dict[Incarnation, list[int]] = {}
    for partition in topology.diminished:
        copies = topology.partitions[partition]
        for listed in copies.in_sync if copies.opened else ():
            if listed not in topology.present and outlived(copies.author, listed):
                found.setdefault(listed, []).append(partition)
    return [
        CopiesRemoved(copy=copy, partitions=tuple(partitions))
        for copy, partitions in sorted(found.items())
    ]


def _cannot_open(copies: PartitionCopies, stayed: Sequence[Incarnation]) -> bool:
    """Tell whether an author waits for somebody who has gone before it opens its epoch (I4)."""
    return not copies.opened and len(stayed) < len(copies.in_sync)


def _who_stayed(topology: Topology, copies: PartitionCopies) -> list[Incarnation]:
    """Return the members of a set that are there under the boot that it lists."""
    return [listed for listed in copies.in_sync if listed in topology.present]


def _who_came_back(
    topology: Topology, copies: PartitionCopies, waited: Callable[[int], bool]
) -> list[Incarnation]:
    """Return the members of a set of which nobody stayed, once there are enough of them (S2)."""
    known = [topology.members[listed.member] for listed in copies.in_sync]
    back = [one.incarnation for one in known if one.present]
    return back if len(back) == len(known) or waited(copies.row.partition) else []


def _outlived_all(
    listed: Sequence[Incarnation], last: Sequence[Incarnation], outlived: Outlived
) -> bool:
    """Tell whether all that are listed have outlived every member of the last set that is not."""
    members = {incarnation.member for incarnation in listed}
    dropped = [one for one in last if one.member not in members]
    return all(outlived(kept, one) for one in dropped for kept in listed)


def _next_author(
    copies: PartitionCopies,
    listed: Sequence[Incarnation],
    given_up: GivenUp | None,
    leaving: Collection[Incarnation],
) -> Incarnation:
    """Return who goes on: the author if it can, and else the first of the row that is listed (K1).

    Who gave the partition up, or is about to go, gets it only if there is nobody else, and in
    favour of a member that is listed that one is taken (K7).  Who gave it up before it was open
    hands it on to the next of the row: the ones before may have done so, too, and if it went to
    the first again others would never get it.
    """
    if copies.author in listed and given_up is None:
        return copies.author
    others = [one for one in listed if one != copies.author] or listed
    able = [one for one in others if one not in leaving] or others
    by_member = {incarnation.member: incarnation for incarnation in able}
    wanted = [*copies.row.replicas, *(one.member for one in copies.in_sync)]
    if given_up is not None:
        behind = 0 if copies.opened else wanted.index(copies.author.member) + 1
        wanted = [given_up.target, *wanted[behind:], *wanted]
    return next(by_member[one] for one in wanted if one is not None and one in by_member)
