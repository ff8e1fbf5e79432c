"""The topology: who the members of a cluster are, and who holds what, as of one decision.

The configuration log of a cluster is a list of *decisions*, numbered from 1; each holds *changes*
that take effect together.  A topology is the fold of all decisions up to its index.  It never
changes: ``applied`` returns the next one, or refuses the decision whole.

A member that is started has a new *boot*; member and boot together are an *incarnation*.  An
incarnation that has gone never returns.

Invariants:

- the epoch of a partition grows by one with each takeover, and has one author;
- an in-sync set is never empty, and a takeover lists members of the last one only (I1);
- within an epoch a set changes only once the log knows that the epoch is open (I4): it loses
  members, never its author, and gains those that were admitted in this epoch and have caught up;
- that somebody has gone takes him out of no set by itself: who died together with all others of his
  set may be the one that comes back; but it ends that he is admitted;
- boots only grow; at most one incarnation of a member is present;
- the id of a namespace is never given again, and no two namespaces have one name.

Left out: who may propose what, how a change is written (``engine.agreement``), which changes of
sets are due (``takeovers``), and what a map may be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from .partitions import Space, check_spaces
from .table import PartitionRow

FIRST_NAMESPACE = 16
"""The id of the first map; a store has namespaces of its own below."""


class ChangeError(ValueError):
    """Why a change cannot follow on a topology."""


class Incarnation(NamedTuple):
    """A member, and the number of one start of it."""

    member: UUID
    boot: int

    def __str__(self) -> str:
        return f"{str(self.member)[:8]}.{self.boot}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMember:
    """What the log says of a member.

    ``since`` is the index of the decision that first named it: its age.  Boot 0 has never been
    started.
    """

    member: UUID
    address: str
    since: int
    boot: int = 0
    nonce: bytes = b""
    present: bool = False

    @property
    def incarnation(self) -> Incarnation:
        """The newest incarnation that the log knows."""
        return Incarnation(self.member, self.boot)


class MovingCopy(NamedTuple):
    """A copy that is catching up, and the index of the decision that admitted it."""

    copy: Incarnation
    admission: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCopies:
    """Who shall hold a partition (its row), and who does (the in-sync set).

    ``author`` serves in ``epoch``, once it has opened it; ``opened`` tells whether the log knows
    that it has.  ``changed`` is the index of the last decision that touched the partition.
    ``moving`` are copies of the row that catch up in this epoch: they count for nothing yet.
    """

    row: PartitionRow[UUID]
    epoch: int
    author: Incarnation
    in_sync: tuple[Incarnation, ...]
    changed: int
    opened: bool
    moving: tuple[MovingCopy, ...] = ()

    def admission(self, copy: Incarnation) -> int | None:
        """Return by which decision a copy was admitted that is catching up; None if it is not."""
        return next((one.admission for one in self.moving if one.copy == copy), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNamespace:
    """A map: its name, its codecs with their versions, and the place of its space in the list."""

    id: int
    name: str
    key_codec: str
    key_version: int
    value_codec: str
    value_version: int
    space: int


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Members, partitions and maps as of the decision ``index``; 0: before the first one.

    ``store`` and ``history`` are the ids that the manifests of all members have.
    """

    cluster: UUID | None = None
    store: UUID | None = None
    history: UUID | None = None
    index: int = 0
    baseline: tuple[UUID, ...] = ()
    members: Mapping[UUID, KnownMember] = field(default_factory=dict)
    spaces: tuple[Space, ...] = ()
    partitions: tuple[PartitionCopies, ...] = ()
    namespaces: Mapping[int, KnownNamespace] = field(default_factory=dict)
    next_namespace: int = FIRST_NAMESPACE
    min_in_sync: int = 1
    """How many copies a set has to have for anything new to be written to its partition (I7)."""

    @cached_property
    def present(self) -> frozenset[Incarnation]:
        """The incarnations that are in the topology now."""
        return frozenset(known.incarnation for known in self.members.values() if known.present)

    @cached_property
    def members_present(self) -> frozenset[UUID]:
        """The members of which an incarnation is in the topology now."""
        return frozenset(incarnation.member for incarnation in self.present)

    @cached_property
    def incomplete(self) -> tuple[int, ...]:
        """The partitions with somebody in their set who has gone; looked for once."""
        present = self.present
        return tuple(
            partition
            for partition, copies in enumerate(self.partitions)
            if not present.issuperset(copies.in_sync)
        )

    @cached_property
    def orphaned(self) -> tuple[int, ...]:
        """The partitions whose author has gone."""
        return tuple(p for p in self.incomplete if self.partitions[p].author not in self.present)

    @cached_property
    def diminished(self) -> tuple[int, ...]:
        """The partitions whose author is present, and somebody else of their set has gone."""
        return tuple(p for p in self.incomplete if self.partitions[p].author in self.present)

    @cached_property
    def deserted(self) -> tuple[int, ...]:
        """The partitions of whose set nobody is present, under the boot that it lists."""
        return tuple(
            p for p in self.orphaned if self.present.isdisjoint(self.partitions[p].in_sync)
        )

    def is_present(self, incarnation: Incarnation) -> bool:
        """Tell whether an incarnation is in the topology now."""
        known = self.members.get(incarnation.member)
        return known is not None and known.present and known.boot == incarnation.boot

    def is_gone(self, incarnation: Incarnation) -> bool:
        """Tell whether an incarnation was in the topology, or before one that was: it is out."""
        known = self.members.get(incarnation.member)
        if known is None or incarnation.boot > known.boot:
            return False
        return incarnation.boot < known.boot or not known.present

    def by_age(self) -> list[UUID]:
        """Return the baseline, the oldest member first."""
        return sorted(self.baseline, key=lambda member: (self.members[member].since, member))

    def namespace_named(self, name: str) -> KnownNamespace | None:
        """Return the map of a name; None if there is none."""
        return _named(self.namespaces, name)

    def __repr__(self) -> str:
        present = sum(known.present for known in self.members.values())
        return f"<Topology index={self.index} members={present}/{len(self.members)}>"


# ------------------------------------------------------------------ changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The first change of all: ids, the baseline with its addresses, spaces and rows."""

    cluster: UUID
    store: UUID
    history: UUID
    members: tuple[tuple[UUID, str], ...]
    spaces: tuple[Space, ...]
    rows: tuple[tuple[UUID, ...], ...]
    min_in_sync: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """An incarnation is in the topology, at an address; earlier ones of its member have gone."""

    incarnation: Incarnation
    nonce: bytes
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberGone:
    """An incarnation is out of the topology; the sets that list it stay as they are."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """A new epoch of a partition: its author, and its in-sync set."""

    partition: int
    epoch: int
    author: Incarnation
    in_sync: tuple[Incarnation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsOpened:
    """Pairs of partition and epoch that their authors have opened; one that is over says nothing.

    It touches no partition: what was proposed of them before may still be decided.
    """

    opened: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesRemoved:
    """An incarnation is out of the in-sync sets of some partitions, whose epochs go on.

    Of a partition in which it is catching up it has to be admitted anew.
    """

    copy: Incarnation
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesAdmitted:
    """An incarnation catches up in some partitions, of whose rows it is and of whose sets not."""

    copy: Incarnation
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesAdded:
    """An incarnation has caught up in some partitions, and is in their sets from here on."""

    copy: Incarnation
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """Nothing changes, but what was proposed of the partition before this is dead."""

    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceMade:
    """There is a map of this name; one that has it already stays, if its codecs are these."""

    name: str
    key_codec: str
    key_version: int
    value_codec: str
    value_version: int
    space: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRenamed:
    """A map has another name; its id stays."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceDropped:
    """A map is gone, with everything in it; one of its name that is made later has another id."""

    name: str


TopologyChange: TypeAlias = (
    Begun
    | Joined
    | MemberGone
    | Takeover
    | EpochsOpened
    | CopiesRemoved
    | CopiesAdmitted
    | CopiesAdded
    | Touched
    | NamespaceMade
    | NamespaceRenamed
    | NamespaceDropped
)


@dataclass(frozen=True, slots=True)
class Decision:
    """An entry of the configuration log."""

    index: int
    changes: tuple[TopologyChange, ...]


# ------------------------------------------------------------------ the fold


def applied(topology: Topology, decision: Decision) -> Topology:
    """Return the topology behind a decision; ``ChangeError`` if it cannot follow."""
    if decision.index != topology.index + 1:
        raise ChangeError(f"decision {decision.index} does not follow on {topology.index}")
    draft = _Draft(topology)
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
        self._baseline = tuple(sorted(members))
        self._spaces = change.spaces
        self._min_in_sync = change.min_in_sync
        self._partitions = copies
        for member, address in sorted(members.items()):
            self._members[member] = KnownMember(member=member, address=address, since=self._index)

    def joined(self, change: Joined) -> None:
        member, boot = change.incarnation
        known = self._members.get(member)
        if known is None:
            known = KnownMember(member=member, address=change.address, since=self._index)
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

    def touched(self, change: Touched) -> None:
        copies = self._copies(change.partition)
        self._partitions[change.partition] = replace(copies, changed=self._index)

    def made(self, change: NamespaceMade) -> None:
        known = _named(self._namespaces, change.name)
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
        if _named(self._namespaces, change.new) is not None:
            raise ChangeError(f"there is a map {change.new!r} already")
        self._namespaces[known.id] = replace(known, name=change.new)

    def dropped(self, change: NamespaceDropped) -> None:
        del self._namespaces[self._named(change.name).id]

    def _named(self, name: str) -> KnownNamespace:
        known = _named(self._namespaces, name)
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
}


def _named(namespaces: Mapping[int, KnownNamespace], name: str) -> KnownNamespace | None:
    return next((known for known in namespaces.values() if known.name == name), None)


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
    if copy.member not in copies.row.replicas:
        raise ChangeError(f"{name}: {copy} is not of its row")
    if any(one.member == copy.member for one in copies.in_sync):
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
