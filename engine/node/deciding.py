"""What somebody asks a member to have decided, until it has taken effect here.

    change   of maps, of who is wanted, of losses: asked for again until it is seen, or refused
    move     of a primary: first who shall serve is decided, then this member hands over

Invariants:

- ``done`` hears None only once the change has taken effect here.
- An error says when the change may be decided all the same.

Left out: what is refused (``agreement.coordinator``), handing over (``departure``).
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import trio

from ...affinity.changes import (
    GoalsSet,
    LossPolicySet,
    MemberLost,
    MemberWanted,
    NamespaceDropped,
    NamespaceMade,
    NamespaceRenamed,
    PartitionReset,
    TopologyChange,
    TransactionResolved,
)
from ...affinity.errors import (
    ClusterError,
    DeadlineError,
    NotEnoughMembersError,
    UsageError,
)
from ...affinity.topology import PartitionCopies, Topology
from ..agreement.messages import ChangeRefused
from .council import Council
from .departure import Departure
from .log import NodeLog
from .partitions import Partitions, just_started
from .tasks import Tasks

LOOK_S = 0.05
"""Seconds between looks at whether there is a majority still."""
CHANGE_S_MAX = 2.0
"""Seconds without a majority after which nobody waits for a change any more."""
REFUSED_S = 0.5
"""Seconds in which a change that was refused may prove to have been decided already."""

Hear = Callable[[Exception | None], None]


class Deciding:
    """What one incarnation was asked to have decided."""

    def __init__(
        self,
        node_log: NodeLog,
        council: Council,
        partitions: Partitions,
        departure: Departure,
        now: Callable[[], float],
        tasks: Tasks,
    ) -> None:
        """``now`` is the time of leases."""
        self.topology = Topology()
        """What was decided, as far as it has taken effect here."""
        self._log = node_log
        self._council = council
        self._partitions = partitions
        self._departure = departure
        self._now = now
        self._news = trio.Event()
        self._tasks = tasks

    def __repr__(self) -> str:
        return f"<Deciding behind decision {self.topology.index}>"

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self.topology = topology
        news, self._news = self._news, trio.Event()
        news.set()

    def change(
        self,
        change: TopologyChange,
        deadline: float,
        done: Hear,
        number: int | None = None,
    ) -> None:
        """Have a change of maps decided; ``done`` hears None behind its effect, or why not.

        ``number`` is the map that is meant: one that has got its name since is left alone.
        """
        if not self._tasks.begin(self._change, change, deadline, done, number):
            done(_ending())

    async def _change(
        self,
        change: TopologyChange,
        deadline: float,
        done: Hear,
        number: int | None,
    ) -> None:
        refused: list[Exception] = []
        if not self._council.agreement.reaches_majority(self._now()):
            early = self._partitions.just_started(self._now())
            done(just_started() if early else self._too_few())
            return
        before = self.topology

        async def ask() -> None:
            # Who asks anew has seen that it was not decided behind what it was asked from before,
            # and whatever was asked from there comes too late by now.
            after, refusal = -1, None
            while refusal is None or refusal.stale:
                while self.topology.index <= after:
                    await self._news.wait()
                if self._was_made(change, before):
                    return
                after = self.topology.index
                if number is not None and _named(change, self.topology) not in (None, number):
                    refused.append(UsageError(f"the map with the id {number} is not there"))
                    nursery.cancel_scope.cancel()
                    return
                refusal = await self._council.propose(change, after=after)
            await trio.sleep(REFUSED_S)
            refused.append(UsageError(refusal.reason))
            nursery.cancel_scope.cancel()

        async def give_up() -> None:
            reached = self._now()
            while self._now() < min(reached + CHANGE_S_MAX, deadline) and self._log.failure is None:
                await trio.sleep(LOOK_S)
                if self._council.agreement.reaches_majority(self._now()):
                    reached = self._now()
            if self._log.failure is not None:
                refused.append(self._log.failure)
            elif self._now() >= deadline:
                refused.append(
                    DeadlineError("the deadline passed; the change may be decided all the same")
                )
            else:
                refused.append(self._too_few("the change may be made all the same"))
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(give_up)
            while not self._was_made(change, before):
                await self._news.wait()
            refused.clear()
            nursery.cancel_scope.cancel()
        done(refused[0] if refused else None)

    def _was_made(self, change: TopologyChange, before: Topology) -> bool:
        """Tell whether a change of maps was decided behind a topology, and has taken effect."""
        topology = self.topology
        behind = range(before.index + 1, topology.index + 1)
        return _is_effective(change, before, topology) or any(
            change in decision.changes
            for decision in self._council.agreement.decisions_kept()
            if decision.index in behind
        )

    def _too_few(self, so: str = "nothing can be decided") -> NotEnoughMembersError:
        return NotEnoughMembersError(
            f"this member reaches no majority of the {len(self.topology.baseline)} members: {so}",
            hint="Start the others, or mend the network between them.",
        )

    def move(self, partition: int, target: UUID, done: Hear) -> None:
        """Let another member serve a partition of this one; ``done`` hears None once it does."""
        copies = self._council.agreement.topology.partitions[partition]
        listed = {copy.member for copy in copies.in_sync if copy in self.topology.present}
        if target not in listed or target not in copies.wanted:
            names = ", ".join(sorted(str(one)[:8] for one in listed))
            raise UsageError(
                f"partition {partition} cannot be served by {str(target)[:8]}, which is not in "
                f"its in-sync set: {names} are",
                hint="Choose one of these, or wait until the copy has caught up.",
            )
        if target == self._council.agreement.me.member:
            done(None)
        elif not self._tasks.begin(self._move, copies, target, done):
            done(_ending())

    async def _move(self, copies: PartitionCopies, target: UUID, done: Hear) -> None:
        partition = copies.row.partition
        refused = await self._set_goal(copies, target)
        if refused is not None:
            done(UsageError(f"partition {partition} was not moved: {refused.reason}"))
            return
        await self._departure.hand_over([copies], target)
        author = self._council.agreement.topology.partitions[partition].author
        if author.member == target:
            done(None)
        else:
            done(
                ClusterError(
                    f"partition {partition} was handed over to {author}, and not to the member "
                    "that was named: another move, or the end of a member, came first"
                )
            )

    async def _set_goal(self, copies: PartitionCopies, target: UUID) -> ChangeRefused | None:
        """Have it decided that a member shall serve a partition; return why that is refused.

        Else it would be given back to the first of its row.
        """
        partition = copies.row.partition
        goal = (target, *(one for one in copies.wanted if one != target))
        goals = GoalsSet(members=self.topology.placed, goals=((partition, goal),))
        refused: list[ChangeRefused] = []

        async def ask() -> None:
            refused.append(await self._council.propose(goals))
            nursery.cancel_scope.cancel()

        def is_set() -> bool:
            return self.topology.partitions[partition].first == target

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not is_set():
                await self._news.wait()
            nursery.cancel_scope.cancel()
        return None if is_set() else refused[0]


def _ending() -> ClusterError:
    return ClusterError(
        "this member is about to end: nothing is asked for any more",
        hint="Ask another member, or this one again once it is back.",
    )


def _named(change: TopologyChange, topology: Topology) -> int | None:
    """Return the map that has the name which a change is about; None if there is none."""
    assert isinstance(change, NamespaceDropped | NamespaceRenamed)
    known = topology.namespace_named(
        change.name if isinstance(change, NamespaceDropped) else change.old
    )
    return None if known is None else known.id


def _is_effective(change: TopologyChange, before: Topology, topology: Topology) -> bool:
    """Tell whether a change of maps can be seen in a topology, and was not there before."""
    names = {one.name: one for one in topology.namespaces.values()}
    match change:
        case NamespaceMade(name=name):
            made = names.get(name)
            return made is not None and (made.key_codec, made.value_codec) == (
                change.key_codec, change.value_codec,
            )  # fmt: skip
        case NamespaceRenamed(old=old, new=new):
            renamed = [one.id for one in before.namespaces.values() if one.name == old]
            return new in names and names[new].id in renamed
        case NamespaceDropped(name=name):
            gone = [one.id for one in before.namespaces.values() if one.name == name]
            return bool(gone) and not set(gone) & topology.namespaces.keys()
        case MemberWanted(member=member, wanted=wanted):
            known = topology.members.get(member)
            return known is not None and known.wanted is wanted
        case MemberLost(member=member):
            return member in topology.members and topology.members[member].lost
        case LossPolicySet(policy=policy):
            return topology.loss_policy == policy
        case TransactionResolved(tx_id=tx_id, attempt=attempt):
            resolution = topology.resolved.get((tx_id, attempt))
            return resolution is not None and resolution.commits == change.commits
        case PartitionReset():
            return False  # that is for the decisions to show
    raise AssertionError(change)
