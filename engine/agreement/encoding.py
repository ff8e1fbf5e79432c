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

from ...affinity.partitions import Space, check_spaces
from ...affinity.table import PartitionRow
from ...affinity.topology import (
    FIRST_NAMESPACE,
    Begun,
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    Decision,
    EpochsOpened,
    Incarnation,
    Joined,
    KnownMember,
    KnownNamespace,
    MemberGone,
    MovingCopy,
    NamespaceDropped,
    NamespaceMade,
    NamespaceRenamed,
    PartitionCopies,
    Takeover,
    Topology,
    TopologyChange,
    Touched,
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
        *_least(topology.min_in_sync),
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
        *_least(change.min_in_sync),
    ]


def _begun(row: list[Any], places: _Places) -> Begun:
    def member(pair: object) -> tuple[UUID, str]:
        known, address = read_fields(pair, places.member, as_text)
        return known, address

    cluster, store, history, members, spaces, rows = read_fields(
        row, as_id, as_id, as_id, each(member), each(_space), each(each(places.member))
    )
    return Begun(
        cluster=cluster,
        store=store,
        history=history,
        members=members,
        spaces=spaces,
        rows=rows,
        min_in_sync=_least_of(row[6:]),
    )


def _least(min_in_sync: int) -> list[int]:
    """Return the field of the fewest copies for a write, which is left out if it is one."""
    return [min_in_sync] if min_in_sync > 1 else []


def _least_of(fields: list[Any]) -> int:
    return as_number(fields[0]) if fields else 1


def _joined_row(change: Joined, names: _Names) -> list[Any]:
    return [names.incarnation(change.incarnation), change.nonce, change.address]


def _joined(row: list[Any], places: _Places) -> Joined:
    incarnation, nonce, address = read_fields(row, places.incarnation, as_bytes, as_text)
    return Joined(incarnation=incarnation, nonce=nonce, address=address)


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
    return [place, known.address, known.since, known.boot, known.nonce, known.present]


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
    ]


def _namespace_row(known: KnownNamespace) -> list[Any]:
    return [known.id, *_made_row(known, None)]


def _topology(value: object) -> Topology:
    index, ids, incarnations, named, members, *rest = read_fields(
        value, as_number, each(as_id), as_list, as_list, as_list, as_list, as_list, as_list,
        as_list, as_number,
    )  # fmt: skip
    places = _Places(ids, incarnations)
    baseline, spaces, partitions, namespaces, next_namespace = rest
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
        min_in_sync=_least_of(as_list(value)[10:]),
    )
    _check(topology, ids)
    return topology


def _member(row: object, places: _Places) -> KnownMember:
    member, address, since, boot, nonce, present = read_fields(
        row, places.member, as_text, as_number, as_number, as_bytes, as_flag
    )
    return KnownMember(
        member=member, address=address, since=since, boot=boot, nonce=nonce, present=present
    )


def _copies(partition: int, row: object, places: _Places) -> PartitionCopies:
    def moving_copy(value: object) -> MovingCopy:
        return MovingCopy(*read_fields(value, places.incarnation, as_number))

    version, replicas, epoch, author, in_sync, changed, opened, moving = read_fields(
        row,
        as_number,
        each(maybe(places.member)),
        as_number,
        places.incarnation,
        each(places.incarnation),
        as_number,
        as_flag,
        each(moving_copy),
    )
    return PartitionCopies(
        row=PartitionRow(partition=partition, version=version, replicas=replicas),
        epoch=epoch,
        author=author,
        in_sync=in_sync,
        changed=changed,
        opened=opened,
        moving=moving,
    )


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
