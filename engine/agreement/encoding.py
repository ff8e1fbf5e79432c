"""From decisions and topologies to bytes, and back: on the disk and between members.

``docs/config-log-format.md`` shows the same as tables.  Everything is an array of msgpack.  A
change begins with its number.  Ids and incarnations stand in lists of their own at the beginning,
each once; else there are only their places in these: a takeover of a thousand partitions is about
a few incarnations.

Invariants:

- A number and the order of fields never change; a later version appends fields and adds numbers.
- What ``decision_bytes`` and ``topology_bytes`` make is read as the same; anything else is an
  ``UndecodableRecordError``, or longer than what this version reads of it.
- A topology that was read names members and spaces that it has; nobody need look.

Left out: whether a decision may follow (``affinity.topology``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgpack

from ...affinity.changes import (
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
from ...affinity.partitions import Space, check_spaces
from ...affinity.table import PartitionRow
from ...affinity.topology import (
    FIRST_NAMESPACE,
    LOSS_POLICIES,
    Incarnation,
    KnownMember,
    KnownNamespace,
    Loss,
    LossPolicy,
    MovingCopy,
    PartitionCopies,
    Resolution,
    Topology,
)
from ...wal.records.shapes import UNDECODABLE, UndecodableRecordError
from .fields import as_bytes, as_flag, as_id, as_list, as_number, as_text, each, maybe, read_fields

T = TypeVar("T")


def decision_bytes(decision: Decision) -> bytes:
    """Return the bytes of a decision."""
    names = _Names()
    changes = [_change_row(change, names) for change in decision.changes]
    data: bytes = msgpack.packb([decision.index, *names.rows(), changes])
    return data


def decision_of(data: bytes) -> Decision:
    """Return the decision that bytes stand for; ``UndecodableRecordError`` if they do not."""
    return _read(_decision, data)


def topology_bytes(topology: Topology) -> bytes:
    """Return the bytes of a topology."""
    names = _Names()
    for member in topology.members:
        names.member(member)
    fields = [
        [_maybe_bytes(one) for one in (topology.cluster, topology.store, topology.history)],
        [_member_row(known, names) for known in topology.members.values()],
        list(map(names.member, topology.baseline)),
        list(map(list, topology.spaces)),
        [_copies_row(copies, names) for copies in topology.partitions],
        [_namespace_row(known) for known in topology.namespaces.values()],
        topology.next_namespace,
        topology.min_in_sync,
        topology.auto_join,
        list(map(names.member, topology.placed)),
        [_loss_row(loss, names) for loss in topology.losses],
        topology.loss_policy,
        list(map(_resolution_row, topology.resolutions)),
    ]
    data: bytes = msgpack.packb([topology.index, *names.rows(), *fields])
    return data


def topology_of(data: bytes) -> Topology:
    """Return the topology that bytes stand for; ``UndecodableRecordError`` if they do not."""
    return _read(_topology, data)


def _read(reader: Callable[[object], T], data: bytes) -> T:
    try:
        return reader(msgpack.unpackb(data))
    except UNDECODABLE as error:
        raise UndecodableRecordError(str(error) or type(error).__name__) from None


# ------------------------------------------------------------------ ids and incarnations


class _Names:
    """Ids and incarnations, each with its place in the order of its first use."""

    def __init__(self) -> None:
        self._members: dict[UUID, int] = {}
        self._incarnations: dict[Incarnation, int] = {}

    def member(self, member: UUID) -> int:
        return self._members.setdefault(member, len(self._members))

    def incarnation(self, incarnation: Incarnation) -> int:
        self.member(incarnation.member)
        return self._incarnations.setdefault(incarnation, len(self._incarnations))

    def rows(self) -> tuple[list[bytes], list[list[int]]]:
        """Return both lists."""
        pairs = [[self._members[member], boot] for member, boot in self._incarnations]
        return [member.bytes for member in self._members], pairs


class _Places:
    """The ids and incarnations that places stand for."""

    def __init__(self, members: Sequence[UUID], incarnations: Iterable[object]) -> None:
        self._members = members
        self._incarnations: list[Incarnation] = []
        for row in incarnations:
            self._incarnations.append(Incarnation(*read_fields(row, self.member, as_number)))

    def member(self, place: object) -> UUID:
        return self._members[as_number(place)]

    def incarnation(self, place: object) -> Incarnation:
        return self._incarnations[as_number(place)]


# ------------------------------------------------------------------ changes


class _Shape(NamedTuple):
    """How a change is written behind its number, and read."""

    number: int
    row: Callable[[Any, _Names], list[Any]]
    change: Callable[[list[Any], _Places], TopologyChange]


def _begun_row(change: Begun, names: _Names) -> list[Any]:
    return [
        change.cluster.bytes,
        change.store.bytes,
        change.history.bytes,
        [[names.member(member), address] for member, address in change.members],
        list(map(list, change.spaces)),
        [list(map(names.member, row)) for row in change.rows],
        change.min_in_sync,
        change.auto_join,
    ]


def _begun(row: list[Any], places: _Places) -> Begun:
    def member(pair: object) -> tuple[UUID, str]:
        known, address = read_fields(pair, places.member, as_text)
        return known, address

    cluster, store, history, members, spaces, rows, min_in_sync, auto_join = read_fields(
        row, as_id, as_id, as_id, each(member), each(_space), each(each(places.member)),
        later=((as_number, 1), (as_flag, True)),
    )  # fmt: skip
    return Begun(
        cluster=cluster,
        store=store,
        history=history,
        members=members,
        spaces=spaces,
        rows=rows,
        min_in_sync=min_in_sync,
        auto_join=auto_join,
    )


def _joined_row(change: Joined, names: _Names) -> list[Any]:
    return [names.incarnation(change.incarnation), change.nonce, change.address, change.voter]


def _joined(row: list[Any], places: _Places) -> Joined:
    incarnation, nonce, address, voter = read_fields(
        row, places.incarnation, as_bytes, as_text, later=((as_flag, False),)
    )
    return Joined(incarnation=incarnation, nonce=nonce, address=address, voter=voter)


def _gone_row(change: MemberGone, names: _Names) -> list[Any]:
    return [names.incarnation(change.incarnation)]


def _gone(row: list[Any], places: _Places) -> MemberGone:
    (incarnation,) = read_fields(row, places.incarnation)
    return MemberGone(incarnation=incarnation)


def _takeover_row(change: Takeover, names: _Names) -> list[Any]:
    author = names.incarnation(change.author)
    return [change.partition, change.epoch, author, list(map(names.incarnation, change.in_sync))]


def _takeover(row: list[Any], places: _Places) -> Takeover:
    partition, epoch, author, in_sync = read_fields(
        row, as_number, as_number, places.incarnation, each(places.incarnation)
    )
    return Takeover(partition=partition, epoch=epoch, author=author, in_sync=in_sync)


def _touched_row(change: Touched, _names: _Names) -> list[Any]:
    return [change.partition]


def _touched(row: list[Any], _places: _Places) -> Touched:
    (partition,) = read_fields(row, as_number)
    return Touched(partition=partition)


_MADE = (as_text, as_text, as_number, as_text, as_number, as_number)


def _made_row(made: NamespaceMade | KnownNamespace, _names: object) -> list[Any]:
    return [
        made.name,
        made.key_codec,
        made.key_version,
        made.value_codec,
        made.value_version,
        made.space,
    ]


def _made(row: list[Any], _places: _Places) -> NamespaceMade:
    name, key_codec, key_version, value_codec, value_version, space = read_fields(row, *_MADE)
    return NamespaceMade(
        name=name,
        key_codec=key_codec,
        key_version=key_version,
        value_codec=value_codec,
        value_version=value_version,
        space=space,
    )


def _renamed_row(change: NamespaceRenamed, _names: _Names) -> list[Any]:
    return [change.old, change.new]


def _renamed(row: list[Any], _places: _Places) -> NamespaceRenamed:
    old, new = read_fields(row, as_text, as_text)
    return NamespaceRenamed(old=old, new=new)


def _dropped_row(change: NamespaceDropped, _names: _Names) -> list[Any]:
    return [change.name]


def _dropped(row: list[Any], _places: _Places) -> NamespaceDropped:
    (name,) = read_fields(row, as_text)
    return NamespaceDropped(name=name)


def _opened_row(change: EpochsOpened, _names: _Names) -> list[Any]:
    return [list(map(list, change.opened))]


def _opened(row: list[Any], _places: _Places) -> EpochsOpened:
    def pair(value: object) -> tuple[int, int]:
        partition, epoch = read_fields(value, as_number, as_number)
        return partition, epoch

    (opened,) = read_fields(row, each(pair))
    return EpochsOpened(opened=opened)


def _copy_row(change: CopiesRemoved | CopiesAdmitted | CopiesAdded, names: _Names) -> list[Any]:
    return [names.incarnation(change.copy), list(change.partitions)]


def _copy_of(row: list[Any], places: _Places) -> dict[str, Any]:
    copy, partitions = read_fields(row, places.incarnation, each(as_number))
    return {"copy": copy, "partitions": partitions}


def _removed(row: list[Any], places: _Places) -> CopiesRemoved:
    return CopiesRemoved(**_copy_of(row, places))


def _admitted(row: list[Any], places: _Places) -> CopiesAdmitted:
    return CopiesAdmitted(**_copy_of(row, places))


def _added(row: list[Any], places: _Places) -> CopiesAdded:
    return CopiesAdded(**_copy_of(row, places))


def _baseline_row(change: BaselineChanged, names: _Names) -> list[Any]:
    return [list(map(names.member, change.baseline))]


def _baseline(row: list[Any], places: _Places) -> BaselineChanged:
    (baseline,) = read_fields(row, each(places.member))
    return BaselineChanged(baseline=baseline)


def _wanted_row(change: MemberWanted, names: _Names) -> list[Any]:
    return [names.member(change.member), change.wanted]


def _wanted(row: list[Any], places: _Places) -> MemberWanted:
    member, wanted = read_fields(row, places.member, as_flag)
    return MemberWanted(member=member, wanted=wanted)


def _goals_row(change: GoalsSet, names: _Names) -> list[Any]:
    members = list(map(names.member, change.members))
    return [members, [[p, list(map(names.member, goal))] for p, goal in change.goals]]


def _goals(row: list[Any], places: _Places) -> GoalsSet:
    def goal(value: object) -> tuple[int, tuple[UUID, ...]]:
        partition, members = read_fields(value, as_number, each(places.member))
        return partition, members

    members, goals = read_fields(row, each(places.member), each(goal))
    return GoalsSet(members=members, goals=goals)


def _reached_row(change: GoalsReached, _names: _Names) -> list[Any]:
    return [list(change.partitions)]


def _reached(row: list[Any], _places: _Places) -> GoalsReached:
    (partitions,) = read_fields(row, each(as_number))
    return GoalsReached(partitions=partitions)


def _lost_row(change: MemberLost, names: _Names) -> list[Any]:
    return [names.member(change.member)]


def _lost(row: list[Any], places: _Places) -> MemberLost:
    (member,) = read_fields(row, places.member)
    return MemberLost(member=member)


def _reset_row(change: PartitionReset, names: _Names) -> list[Any]:
    author = names.incarnation(change.author)
    rest = [change.empty, change.opened, change.upto, change.time]
    return [change.partition, change.epoch, author, *rest]


def _reset(row: list[Any], places: _Places) -> PartitionReset:
    partition, epoch, author, empty, opened, upto, time = read_fields(
        row, as_number, as_number, places.incarnation, as_flag, as_number, as_number,
        later=((as_number, 0),),
    )  # fmt: skip
    return PartitionReset(
        partition=partition, epoch=epoch, author=author, empty=empty, opened=opened, upto=upto,
        time=time,
    )  # fmt: skip


def _policy_row(change: LossPolicySet, _names: _Names) -> list[Any]:
    return [change.policy]


def _policy_set(row: list[Any], _places: _Places) -> LossPolicySet:
    (policy,) = read_fields(row, _policy)
    return LossPolicySet(policy=policy)


def _policy(value: object) -> LossPolicy:
    for policy in LOSS_POLICIES:
        if value == policy:
            return policy
    raise ValueError(f"expected one of {', '.join(LOSS_POLICIES)}, found {value!r}")


def _resolved_row(change: TransactionResolved, _names: _Names) -> list[Any]:
    return [
        change.tx_id, change.attempt, change.commits, change.by_hand, change.time,
        list(map(list, change.participants)), list(map(list, change.missing)),
    ]  # fmt: skip


def _resolved(row: list[Any], _places: _Places) -> TransactionResolved:
    def pair(value: object) -> tuple[int, int]:
        partition, epoch = read_fields(value, as_number, as_number)
        return partition, epoch

    tx_id, attempt, commits, by_hand, time, participants, missing = read_fields(
        row, as_id, as_number, as_flag, as_flag, as_number, each(pair), each(pair)
    )
    return TransactionResolved(
        tx_id=tx_id.bytes, attempt=attempt, commits=commits, by_hand=by_hand, time=time,
        participants=participants, missing=missing,
    )  # fmt: skip


# Append; change nothing.
_SHAPES: Mapping[type, _Shape] = {
    Begun: _Shape(1, _begun_row, _begun),
    Joined: _Shape(2, _joined_row, _joined),
    MemberGone: _Shape(3, _gone_row, _gone),
    Takeover: _Shape(4, _takeover_row, _takeover),
    Touched: _Shape(5, _touched_row, _touched),
    NamespaceMade: _Shape(6, _made_row, _made),
    NamespaceRenamed: _Shape(7, _renamed_row, _renamed),
    NamespaceDropped: _Shape(8, _dropped_row, _dropped),
    EpochsOpened: _Shape(9, _opened_row, _opened),
    CopiesRemoved: _Shape(10, _copy_row, _removed),
    CopiesAdmitted: _Shape(11, _copy_row, _admitted),
    CopiesAdded: _Shape(12, _copy_row, _added),
    BaselineChanged: _Shape(13, _baseline_row, _baseline),
    MemberWanted: _Shape(14, _wanted_row, _wanted),
    GoalsSet: _Shape(15, _goals_row, _goals),
    GoalsReached: _Shape(16, _reached_row, _reached),
    MemberLost: _Shape(17, _lost_row, _lost),
    PartitionReset: _Shape(18, _reset_row, _reset),
    LossPolicySet: _Shape(19, _policy_row, _policy_set),
    TransactionResolved: _Shape(20, _resolved_row, _resolved),
}
_BY_NUMBER = {shape.number: shape for shape in _SHAPES.values()}


def _change_row(change: TopologyChange, names: _Names) -> list[Any]:
    shape = _SHAPES[type(change)]
    return [shape.number, *shape.row(change, names)]


def _decision(value: object) -> Decision:
    index, members, incarnations, rows = read_fields(
        value, as_number, each(as_id), as_list, as_list
    )
    places = _Places(members, incarnations)
    changes: list[TopologyChange] = []
    for row in rows:
        number, *fields = as_list(row)
        shape = _BY_NUMBER.get(as_number(number))
        if shape is None:
            raise ValueError(f"expected a change of kind 1 to {max(_BY_NUMBER)}, found {number}")
        changes.append(shape.change(fields, places))
    return Decision(index, tuple(changes))


def _space(row: object) -> Space:
    return Space(*read_fields(row, as_number, as_number, as_number))


# ------------------------------------------------------------------ topologies


def _maybe_bytes(one: UUID | None) -> bytes | None:
    return None if one is None else one.bytes


def _member_row(known: KnownMember, names: _Names) -> list[Any]:
    place = names.member(known.member)
    return [
        place,
        known.address,
        known.since,
        known.boot,
        known.nonce,
        known.present,
        known.voter,
        known.wanted,
        known.lost,
    ]


def _copies_row(copies: PartitionCopies, names: _Names) -> list[Any]:
    row = copies.row
    return [
        row.version,
        [None if member is None else names.member(member) for member in row.replicas],
        copies.epoch,
        names.incarnation(copies.author),
        list(map(names.incarnation, copies.in_sync)),
        copies.changed,
        copies.opened,
        [[names.incarnation(one.copy), one.admission] for one in copies.moving],
        list(map(names.member, copies.goal)),
        copies.emptied,
    ]


def _loss_row(loss: Loss, names: _Names) -> list[Any]:
    author = names.incarnation(loss.author)
    rest = [loss.opened, loss.upto, loss.time]
    return [loss.index, loss.partition, loss.before, loss.epoch, author, *rest]


def _resolution_row(one: Resolution) -> list[Any]:
    return [
        one.index, one.tx_id, one.attempt, one.commits, one.by_hand, one.time,
        list(one.partitions), list(one.missing),
    ]  # fmt: skip


def _namespace_row(known: KnownNamespace) -> list[Any]:
    return [known.id, *_made_row(known, None)]


def _topology(value: object) -> Topology:
    index, ids, incarnations, named, members, *rest = read_fields(
        value, as_number, each(as_id), as_list, as_list, as_list, as_list, as_list, as_list,
        as_list, as_number,
        later=(
            (as_number, 1), (as_flag, True), (as_list, None), (as_list, []),
            (_policy, "read-write-safe"), (as_list, []),
        ),
    )  # fmt: skip
    places = _Places(ids, incarnations)
    baseline, spaces, partitions, namespaces, next_namespace, *later = rest
    min_in_sync, auto_join, placed, losses, loss_policy, resolutions = later
    placed = baseline if placed is None else placed
    cluster, store, history = read_fields(named, maybe(as_id), maybe(as_id), maybe(as_id))
    topology = Topology(
        cluster=cluster,
        store=store,
        history=history,
        index=index,
        baseline=tuple(map(places.member, baseline)),
        members=_by_key((_member(row, places) for row in members), lambda known: known.member),
        spaces=tuple(map(_space, spaces)),
        partitions=tuple(_copies(*numbered, places) for numbered in enumerate(partitions)),
        namespaces=_by_key(map(_namespace, namespaces), lambda known: known.id),
        next_namespace=next_namespace,
        min_in_sync=min_in_sync,
        auto_join=auto_join,
        placed=tuple(map(places.member, placed)),
        losses=tuple(_loss(row, places) for row in losses),
        loss_policy=loss_policy,
        resolutions=tuple(map(_resolution, resolutions)),
    )
    _check(topology, ids)
    return topology


def _member(row: object, places: _Places) -> KnownMember:
    member, address, since, boot, nonce, present, voter, wanted, lost = read_fields(
        row, places.member, as_text, as_number, as_number, as_bytes, as_flag,
        later=((as_flag, False), (maybe(as_flag), None), (as_flag, False)),
    )  # fmt: skip
    return KnownMember(
        member=member,
        address=address,
        since=since,
        boot=boot,
        nonce=nonce,
        present=present,
        voter=voter,
        wanted=wanted,
        lost=lost,
    )


def _copies(partition: int, row: object, places: _Places) -> PartitionCopies:
    def moving_copy(value: object) -> MovingCopy:
        return MovingCopy(*read_fields(value, places.incarnation, as_number))

    version, replicas, epoch, author, in_sync, changed, opened, moving, *later = read_fields(
        row,
        as_number,
        each(maybe(places.member)),
        as_number,
        places.incarnation,
        each(places.incarnation),
        as_number,
        as_flag,
        each(moving_copy),
        later=((each(places.member), ()), (as_number, 0)),
    )
    goal, emptied = later
    return PartitionCopies(
        row=PartitionRow(partition=partition, version=version, replicas=replicas),
        epoch=epoch,
        author=author,
        in_sync=in_sync,
        changed=changed,
        opened=opened,
        moving=moving,
        goal=goal,
        emptied=emptied,
    )


def _loss(row: object, places: _Places) -> Loss:
    index, partition, before, epoch, author, opened, upto, time = read_fields(
        row, as_number, as_number, as_number, as_number, places.incarnation, as_number, as_number,
        later=((as_number, 0),),
    )  # fmt: skip
    return Loss(
        index=index,
        partition=partition,
        before=before,
        epoch=epoch,
        author=author,
        opened=opened,
        upto=upto,
        time=time,
    )


def _resolution(row: object) -> Resolution:
    index, tx_id, attempt, commits, by_hand, time, partitions, missing = read_fields(
        row, as_number, as_id, as_number, as_flag, as_flag, as_number, each(as_number),
        each(as_number),
    )  # fmt: skip
    return Resolution(
        index=index, tx_id=tx_id.bytes, attempt=attempt, commits=commits, by_hand=by_hand,
        time=time, partitions=partitions, missing=missing,
    )  # fmt: skip


def _namespace(row: object) -> KnownNamespace:
    number, name, key_codec, key_version, value_codec, value_version, space = read_fields(
        row, as_number, *_MADE
    )
    return KnownNamespace(
        id=number,
        name=name,
        key_codec=key_codec,
        key_version=key_version,
        value_codec=value_codec,
        value_version=value_version,
        space=space,
    )


def _by_key(values: Iterable[T], key: Callable[[T], Any]) -> dict[Any, T]:
    found: dict[Any, T] = {}
    for value in values:
        if found.setdefault(key(value), value) is not value:
            raise ValueError(f"{key(value)} is there twice")
    return found


def _check(topology: Topology, ids: Sequence[UUID]) -> None:
    """Raise ``ValueError`` if a topology names what it does not have."""
    if not topology.members.keys() >= {*ids}:
        raise ValueError("it names somebody who is not a member")
    check_spaces(topology.spaces, len(topology.partitions))
    if not all(copies.in_sync for copies in topology.partitions):
        raise ValueError("the in-sync set of a partition is empty")
    names = {known.name for known in topology.namespaces.values()}
    if len(names) != len(topology.namespaces):
        raise ValueError("two maps have one name")
    for known in topology.namespaces.values():
        if not FIRST_NAMESPACE <= known.id < topology.next_namespace:
            raise ValueError(
                f"the map {known.id} is not from {FIRST_NAMESPACE} on, or not yet made"
            )
        if known.space >= len(topology.spaces):
            raise ValueError(f"there is no space {known.space} for the map {known.id}")
