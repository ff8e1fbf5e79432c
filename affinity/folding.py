"""From one topology to the next: what each change of a decision does, and when it is refused.

``applied`` returns the topology behind a decision, or refuses it whole.

Invariants:

- the epoch of a partition grows by one with each takeover, and has one author;
- an in-sync set is never empty, and a takeover lists members of the last one only (I1);
- within an epoch a set changes only once the log knows that the epoch is open (I4): it loses
  members, never its author, and gains those that were admitted in this epoch and have caught up;
- that somebody has gone takes him out of no set by itself: who died together with all others of his
  set may be the one that comes back; but it ends that he is admitted;
- boots only grow; at most one incarnation of a member is present;
- a baseline changes by one member, in a decision of its own, and loses nobody who shall hold data,
  or does (S5);
- who is lost never comes back, and only a partition that is lost begins anew;
- a transaction is resolved once, and only while one of its groups cannot tell, or never will (T13);
- a row changes to its goal only once everybody in that is in the set (R3);
- the id of a namespace is never given again, and no two namespaces have one name.

Left out: who may propose what (``engine.agreement``), which changes are due (``takeovers``,
``goals``), and what a map may be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from .changes import (
    BaselineChanged,
    Begun,
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    Decision,
    EpochsOpened,
    GoalsReached,
    GoalsSet,
    Joined,
    LossPolicySet,
    MemberGone,
    MemberLost,
    MemberWanted,
    NamespaceDropped,
    NamespaceMade,
    NamespaceRenamed,
    PartitionReset,
    Takeover,
    TopologyChange,
    Touched,
    TransactionResolved,
)
from .partitions import check_spaces
from .rows import REPLICAS_MAX, padded
from .table import PartitionRow
from .topology import (
    Incarnation,
    KnownMember,
    KnownNamespace,
    Loss,
    MovingCopy,
    PartitionCopies,
    Resolution,
    Topology,
    is_too_old,
    map_named,
)


class ChangeError(ValueError):
    """Why a change cannot follow on a topology."""


def applied(topology: Topology, decision: Decision) -> Topology:
    """Return the topology behind a decision; ``ChangeError`` if it cannot follow."""
    if decision.index != topology.index + 1:
        raise ChangeError(f"decision {decision.index} does not follow on {topology.index}")
    draft = _Draft(topology)
    if len(decision.changes) > 1 and any(map(_of_baseline, decision.changes)):
        raise ChangeError("a baseline changes in a decision of its own")
    for change in decision.changes:
        draft.apply(change)
    return draft.done()


def verdicts(topology: Topology, changes: Iterable[TopologyChange]) -> list[str | None]:
    """Return of each change why it cannot follow on those before it that can; None if it can."""
    draft = _Draft(topology)
    found: list[str | None] = []
    for change in changes:
        try:
            draft.apply(change)
        except ChangeError as error:
            found.append(str(error))
        else:
            found.append(None)
    return found


class _Draft:
    """The next topology, while changes are applied; a change that is refused leaves it alone."""

    def __init__(self, topology: Topology) -> None:
        self._index = topology.index + 1
        self._cluster = topology.cluster
        self._store = topology.store
        self._history = topology.history
        self._baseline = topology.baseline
        self._members = dict(topology.members)
        self._spaces = topology.spaces
        self._partitions = list(topology.partitions)
        self._namespaces = dict(topology.namespaces)
        self._next_namespace = topology.next_namespace
        self._min_in_sync = topology.min_in_sync
        self._auto_join = topology.auto_join
        self._placed = topology.placed
        self._losses = topology.losses
        self._loss_policy = topology.loss_policy
        self._resolutions = topology.resolutions

    def apply(self, change: TopologyChange) -> None:
        _APPLY[type(change)](self, change)

    def done(self) -> Topology:
        return Topology(
            cluster=self._cluster,
            store=self._store,
            history=self._history,
            index=self._index,
            baseline=self._baseline,
            members=self._members,
            spaces=self._spaces,
            partitions=tuple(self._partitions),
            namespaces=self._namespaces,
            next_namespace=self._next_namespace,
            min_in_sync=self._min_in_sync,
            auto_join=self._auto_join,
            placed=self._placed,
            losses=self._losses,
            loss_policy=self._loss_policy,
            resolutions=self._resolutions,
        )

    def begun(self, change: Begun) -> None:
        members = dict(change.members)
        if self._index != 1:
            raise ChangeError("only the first decision begins a cluster")
        if len(members) != len(change.members) or not members:
            raise ChangeError("a cluster begins with at least one member, and each of them once")
        try:
            check_spaces(change.spaces, len(change.rows))
            copies = [_first_copies(*numbered) for numbered in enumerate(change.rows)]
        except ValueError as error:
            raise ChangeError(str(error)) from None
        if not {member for row in change.rows for member in row} <= members.keys():
            raise ChangeError("a row has somebody who is not a member")
        self._cluster = change.cluster
        self._store = change.store
        self._history = change.history
        self._baseline = self._placed = tuple(sorted(members))
        self._spaces = change.spaces
        self._min_in_sync = change.min_in_sync
        self._auto_join = change.auto_join
        self._partitions = copies
        for member, address in sorted(members.items()):
            self._members[member] = KnownMember(member=member, address=address, since=self._index)

    def joined(self, change: Joined) -> None:
        member, boot = change.incarnation
        known = self._members.get(member)
        if known is None:
            known = KnownMember(
                member=member, address=change.address, since=self._index, voter=change.voter
            )
        if known.lost:
            raise ChangeError(f"{change.incarnation} is of a member that was declared lost")
        if known.voter != change.voter:
            raise ChangeError(f"{change.incarnation} {_told_voter(change.voter, known.voter)}")
        if boot <= known.boot:
            raise ChangeError(f"{change.incarnation} is not newer than boot {known.boot}")
        self._members[member] = replace(
            known, boot=boot, nonce=change.nonce, address=change.address, present=True
        )
        self._end_moving(member)

    def _end_moving(self, member: UUID) -> None:
        """Let a member be admitted nowhere: that incarnation has gone."""
        for partition, copies in enumerate(self._partitions):
            left = tuple(one for one in copies.moving if one.copy.member != member)
            if left != copies.moving:
                self._partitions[partition] = replace(copies, moving=left)

    def gone(self, change: MemberGone) -> None:
        known = self._present(change.incarnation)
        if known is None:
            raise ChangeError(f"{change.incarnation} is not in the topology")
        self._members[known.member] = replace(known, present=False)
        self._end_moving(change.incarnation.member)

    def takeover(self, change: Takeover) -> None:
        copies = self._copies(change.partition)
        listed = {incarnation.member for incarnation in copies.in_sync}
        name = f"partition {change.partition}"
        if change.epoch != copies.epoch + 1:
            raise ChangeError(f"{name}: epoch {change.epoch} does not follow on {copies.epoch}")
        if change.in_sync.count(change.author) != 1:
            raise ChangeError(f"{name}: its author does not stand in its set once")
        if len({incarnation.member for incarnation in change.in_sync}) != len(change.in_sync):
            raise ChangeError(f"{name}: a member stands in its set twice")
        for incarnation in change.in_sync:
            if incarnation.member not in listed:
                raise ChangeError(f"{name}: {incarnation} is not of the last in-sync set")
            if self._present(incarnation) is None:
                raise ChangeError(f"{name}: {incarnation} is not in the topology")
        self._partitions[change.partition] = replace(
            copies,
            epoch=change.epoch,
            author=change.author,
            in_sync=change.in_sync,
            changed=self._index,
            opened=False,
            moving=(),
            # Nobody knows whether who was to empty it has: the next one does it again.
            emptied=change.epoch if copies.is_to_be_emptied else copies.emptied,
        )

    def epochs_opened(self, change: EpochsOpened) -> None:
        found = [(partition, epoch, self._copies(partition)) for partition, epoch in change.opened]
        for partition, epoch, copies in found:
            if copies.epoch == epoch and not copies.opened:
                self._partitions[partition] = replace(copies, opened=True)

    def copies_removed(self, change: CopiesRemoved) -> None:
        self._change_sets(change, _without)

    def copies_admitted(self, change: CopiesAdmitted) -> None:
        if self._present(change.copy) is None:
            raise ChangeError(f"{change.copy} is not in the topology")
        self._change_sets(change, _admitting)

    def copies_added(self, change: CopiesAdded) -> None:
        self._change_sets(change, _with)

    def _change_sets(
        self,
        change: CopiesRemoved | CopiesAdmitted | CopiesAdded,
        changed: Callable[[Incarnation, PartitionCopies, int], PartitionCopies],
    ) -> None:
        """Change what a copy is in some partitions, in all of them or in none."""
        found = {p: changed(change.copy, self._copies(p), self._index) for p in change.partitions}
        for partition, copies in found.items():
            if not copies.opened:
                raise ChangeError(
                    f"partition {partition}: epoch {copies.epoch} is not known to be open: it "
                    "takes a takeover"
                )
        for partition, copies in found.items():
            self._partitions[partition] = replace(copies, changed=self._index)

    def baseline_changed(self, change: BaselineChanged) -> None:
        before, after = {*self._baseline}, {*change.baseline}
        if len(after) != len(change.baseline) or not after:
            raise ChangeError("a baseline has at least one member, and each of them once")
        if len(after - before) > 1 or len(before - after) > 1 or after == before:
            raise ChangeError("a baseline changes by one member at a time")
        for member in after - before:
            if self._members.get(member, _NOBODY).boot == 0:
                raise ChangeError(f"member {member} was never started")
        for member in before - after:
            if any(copies.may_hold(member) or copies.has(member) for copies in self._partitions):
                raise ChangeError(f"member {member} holds partitions: its data has to move first")
        self._baseline = tuple(sorted(after))

    def member_wanted(self, change: MemberWanted) -> None:
        known = self._members.get(change.member)
        if known is None:
            raise ChangeError(f"there is no member {change.member}")
        if known.lost and change.wanted:
            raise ChangeError(f"member {change.member} was declared lost: it never comes back")
        self._members[known.member] = replace(known, wanted=change.wanted)

    def member_lost(self, change: MemberLost) -> None:
        known = self._members.get(change.member)
        if known is None:
            raise ChangeError(f"there is no member {change.member}")
        if known.present:
            raise ChangeError(f"member {change.member} is there: its disk is not lost")
        self._members[known.member] = replace(known, lost=True, wanted=False)

    def partition_reset(self, change: PartitionReset) -> None:
        copies = self._copies(change.partition)
        name = f"partition {change.partition}"
        if change.epoch != copies.epoch + 1:
            raise ChangeError(f"{name}: epoch {change.epoch} does not follow on {copies.epoch}")
        if not all(self._members[copy.member].lost for copy in copies.in_sync):
            raise ChangeError(f"{name} is not lost: of those who had it not all were declared so")
        known = self._present(change.author)
        if known is None or known.voter:
            raise ChangeError(f"{name}: {change.author} is not there, or holds no data")
        self._losses = (
            *self._losses,
            Loss(
                index=self._index,
                partition=change.partition,
                before=copies.epoch,
                epoch=change.epoch,
                author=change.author,
                opened=change.opened,
                upto=change.upto,
                time=change.time,
            ),
        )
        self._partitions[change.partition] = replace(
            copies,
            epoch=change.epoch,
            author=change.author,
            in_sync=(change.author,),
            changed=self._index,
            opened=False,
            moving=(),
            emptied=change.epoch if change.empty else copies.emptied,
        )

    def loss_policy_set(self, change: LossPolicySet) -> None:
        self._loss_policy = change.policy

    def transaction_resolved(self, change: TransactionResolved) -> None:
        name = f"transaction {change.tx_id.hex()}"
        for known in self._resolutions:
            if (known.tx_id, known.attempt) == (change.tx_id, change.attempt):
                told = "has committed" if known.commits else "is rolled back"
                raise ChangeError(f"{name} {told} already, by decision {known.index}")
        places = {partition: self._copies(partition) for partition, _ in change.participants}
        for partition, epoch in change.missing:
            if partition not in places or places[partition].epoch != epoch:
                raise ChangeError(f"{name}: partition {partition} has changed meanwhile")
        too_old = any(is_too_old(self._losses, *row) for row in change.participants)
        deserted = any(
            not any(map(self._present, places[partition].in_sync))
            for partition, _ in change.missing
        )
        if not too_old and not deserted:
            raise ChangeError(f"{name} is not in doubt: all of its partitions can be asked")
        self._resolutions = (
            *self._resolutions,
            Resolution(
                index=self._index,
                tx_id=change.tx_id,
                attempt=change.attempt,
                commits=change.commits,
                by_hand=change.by_hand,
                time=change.time,
                partitions=tuple(places),
                missing=tuple(partition for partition, _ in change.missing),
            ),
        )

    def goals_set(self, change: GoalsSet) -> None:
        members = {*change.members}
        if not members <= {*self._baseline} or any(self._members[m].voter for m in members):
            raise ChangeError("the partitions are divided among members of the baseline, no voters")
        found = [(partition, goal, self._copies(partition)) for partition, goal in change.goals]
        for partition, goal, _ in found:
            if not 0 < len(goal) <= REPLICAS_MAX or len({*goal}) < len(goal):
                raise ChangeError(f"partition {partition}: its goal is empty, or has one twice")
            if not members.issuperset(goal):
                raise ChangeError(f"partition {partition}: its goal has somebody who holds nothing")
        for partition, goal, copies in found:
            goal = () if goal == copies.row.replicas else goal
            moving = tuple(
                one
                for one in copies.moving
                if one.copy.member in goal or one.copy.member in copies.row.replicas
            )
            self._partitions[partition] = replace(copies, goal=goal, moving=moving)
        self._placed = tuple(sorted(members))

    def goals_reached(self, change: GoalsReached) -> None:
        found = [(partition, self._copies(partition)) for partition in change.partitions]
        for partition, copies in found:
            if not copies.has_reached_goal:
                raise ChangeError(f"partition {partition} has not reached its goal, or has none")
        for partition, copies in found:
            self._partitions[partition] = replace(
                copies, row=_next_row(copies), goal=(), changed=self._index
            )

    def touched(self, change: Touched) -> None:
        copies = self._copies(change.partition)
        self._partitions[change.partition] = replace(copies, changed=self._index)

    def made(self, change: NamespaceMade) -> None:
        known = map_named(self._namespaces, change.name)
        if known is not None:
            if _codecs(known) != _codecs(change):
                raise ChangeError(
                    f"the map {change.name!r} has the codecs {_told(known)}, not {_told(change)}"
                )
            return
        if not 0 <= change.space < len(self._spaces):
            raise ChangeError(f"there is no space {change.space} for the map {change.name!r}")
        self._namespaces[self._next_namespace] = KnownNamespace(
            id=self._next_namespace,
            name=change.name,
            key_codec=change.key_codec,
            key_version=change.key_version,
            value_codec=change.value_codec,
            value_version=change.value_version,
            space=change.space,
        )
        self._next_namespace += 1

    def renamed(self, change: NamespaceRenamed) -> None:
        known = self._named(change.old)
        if map_named(self._namespaces, change.new) is not None:
            raise ChangeError(f"there is a map {change.new!r} already")
        self._namespaces[known.id] = replace(known, name=change.new)

    def dropped(self, change: NamespaceDropped) -> None:
        del self._namespaces[self._named(change.name).id]

    def _named(self, name: str) -> KnownNamespace:
        known = map_named(self._namespaces, name)
        if known is None:
            raise ChangeError(f"there is no map {name!r}")
        return known

    def _present(self, incarnation: Incarnation) -> KnownMember | None:
        known = self._members.get(incarnation.member)
        return known if known and known.present and known.boot == incarnation.boot else None

    def _copies(self, partition: int) -> PartitionCopies:
        if not 0 <= partition < len(self._partitions):
            raise ChangeError(f"there is no partition {partition}")
        return self._partitions[partition]


_APPLY: Mapping[type, Callable[[_Draft, Any], None]] = {
    Begun: _Draft.begun,
    Joined: _Draft.joined,
    MemberGone: _Draft.gone,
    Takeover: _Draft.takeover,
    EpochsOpened: _Draft.epochs_opened,
    CopiesRemoved: _Draft.copies_removed,
    CopiesAdmitted: _Draft.copies_admitted,
    CopiesAdded: _Draft.copies_added,
    Touched: _Draft.touched,
    NamespaceMade: _Draft.made,
    NamespaceRenamed: _Draft.renamed,
    NamespaceDropped: _Draft.dropped,
    BaselineChanged: _Draft.baseline_changed,
    MemberWanted: _Draft.member_wanted,
    GoalsSet: _Draft.goals_set,
    GoalsReached: _Draft.goals_reached,
    MemberLost: _Draft.member_lost,
    PartitionReset: _Draft.partition_reset,
    LossPolicySet: _Draft.loss_policy_set,
    TransactionResolved: _Draft.transaction_resolved,
}

_NOBODY = KnownMember(member=UUID(int=0), address="", since=0)


def _of_baseline(change: TopologyChange) -> bool:
    return isinstance(change, BaselineChanged)


def _told_voter(now: bool, before: bool) -> str:
    kinds = {True: "a voter without data", False: "a member that holds data"}
    return f"comes as {kinds[now]}, and was {kinds[before]}"


def _next_row(copies: PartitionCopies) -> PartitionRow[UUID]:
    """Return the goal as the next row; its version counts the places that change (R5)."""
    before, goal = padded(copies.row.replicas), padded(copies.goal)
    changed = sum(one != other for one, other in zip(before, goal, strict=True))
    return PartitionRow(
        partition=copies.row.partition,
        version=copies.row.version + changed,
        replicas=copies.goal,
    )


def _codecs(map_: KnownNamespace | NamespaceMade) -> tuple[str, int, str, int]:
    return map_.key_codec, map_.key_version, map_.value_codec, map_.value_version


def _told(map_: KnownNamespace | NamespaceMade) -> str:
    return f"{map_.key_codec} {map_.key_version} and {map_.value_codec} {map_.value_version}"


def _first_copies(partition: int, row: Sequence[UUID]) -> PartitionCopies:
    """Return the copies of a partition that nobody has opened yet: those of boots before the first.

    Who is started next takes over from them.
    """
    if not row:
        raise ChangeError(f"the row of partition {partition} is empty")
    return PartitionCopies(
        row=PartitionRow(partition=partition, version=len(row), replicas=tuple(row)),
        epoch=0,
        author=Incarnation(row[0], 0),
        in_sync=tuple(Incarnation(member, 0) for member in row),
        changed=1,
        opened=False,
    )


def _without(copy: Incarnation, copies: PartitionCopies, _index: int) -> PartitionCopies:
    """Return a partition without a copy, or say why its epoch cannot go on."""
    name = f"partition {copies.row.partition}"
    if copy == copies.author:
        raise ChangeError(f"{name}: {copy} is the author of its epoch: it takes a takeover")
    if copy not in copies.in_sync and copies.admission(copy) is None:
        raise ChangeError(f"{name}: {copy} is not in its in-sync set")
    return replace(
        copies,
        in_sync=tuple(one for one in copies.in_sync if one != copy),
        moving=tuple(one for one in copies.moving if one.copy != copy),
    )


def _admitting(copy: Incarnation, copies: PartitionCopies, index: int) -> PartitionCopies:
    """Return a partition in which a copy catches up; one that did so before begins anew (B3)."""
    name = f"partition {copies.row.partition}"
    if not copies.may_hold(copy.member):
        raise ChangeError(f"{name}: {copy} is neither of its row nor of its goal")
    if copies.has(copy.member):
        raise ChangeError(f"{name}: {copy} is in its in-sync set, or was under another boot")
    others = [one for one in copies.moving if one.copy != copy]
    return replace(copies, moving=(*others, MovingCopy(copy, index)))


def _with(copy: Incarnation, copies: PartitionCopies, _index: int) -> PartitionCopies:
    """Return a partition of whose set a copy is that has caught up."""
    if copies.admission(copy) is None:
        raise ChangeError(f"partition {copies.row.partition}: {copy} was not admitted")
    return replace(
        copies,
        in_sync=(*copies.in_sync, copy),
        moving=tuple(one for one in copies.moving if one.copy != copy),
    )
