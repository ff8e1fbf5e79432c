"""The topology: who the members of a cluster are, and who holds what, as of one decision.

The configuration log of a cluster is a list of *decisions*, numbered from 1; a topology is the fold
of all decisions up to its index (``folding``), and never changes.

A member that is started has a new *boot*; member and boot together are an *incarnation*.  An
incarnation that has gone never returns.

Each partition has a *row*: who shall hold it.  While members join or leave, some have a *goal*
beside it, which becomes the row once everybody in it is in the in-sync set (MIGRATIONS R3).

Left out: what changes a topology (``changes``), and which changes are due (``takeovers``,
``goals``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, get_args
from uuid import UUID, uuid5

from .partitions import Space
from .table import PartitionRow

LossPolicy = Literal["read-write-safe", "read-only-safe", "ignore"]
"""What else happens when partitions are lost (S6): nothing, all others are served; nothing is
written to other partitions of their space; or they go on by themselves, from the best copy that is
left."""
LOSS_POLICIES: tuple[LossPolicy, ...] = get_args(LossPolicy)

FIRST_NAMESPACE = 16
"""The id of the first map; a store has namespaces of its own below."""


class Incarnation(NamedTuple):
    """A member, and the number of one start of it."""

    member: UUID
    boot: int

    def __str__(self) -> str:
        return f"{str(self.member)[:8]}.{self.boot}"


@lru_cache(maxsize=1024)
def incarnation_of(member: bytes, boot: int) -> Incarnation:
    """Return an incarnation of the bytes that every message of it brings along."""
    return Incarnation(UUID(bytes=member), boot)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMember:
    """What the log says of a member.

    ``since`` is the index of the decision that first named it: its age.  Boot 0 has never been
    started.  A ``voter`` holds no data.  ``wanted`` is what was asked for: to be of the baseline,
    or to let others hold its data, and then to be out of it; None if nobody has asked.  One that
    is ``lost`` never comes back: its disk is gone.
    """

    member: UUID
    address: str
    since: int
    boot: int = 0
    nonce: bytes = b""
    present: bool = False
    voter: bool = False
    wanted: bool | None = None
    lost: bool = False

    @property
    def leaving(self) -> bool:
        """Whether its data moves to others, so that it can be out of the baseline."""
        return self.wanted is False

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
    """Who shall hold a partition (its row, and its goal), and who does (the in-sync set).

    ``author`` serves in ``epoch``, once it has opened it; ``opened`` tells whether the log knows
    that it has.  ``changed`` is the index of the last decision that touched the partition.
    ``moving`` are copies that catch up in this epoch: they count for nothing yet.  The ``goal`` is
    what its row will be; empty if it stays as it is.
    """

    row: PartitionRow[UUID]
    epoch: int
    author: Incarnation
    in_sync: tuple[Incarnation, ...]
    changed: int
    opened: bool
    moving: tuple[MovingCopy, ...] = ()
    goal: tuple[UUID, ...] = ()
    emptied: int = 0
    """The epoch in which it began anew, with nothing; 0 if it never did."""

    @property
    def wanted(self) -> tuple[UUID, ...]:
        """The members that shall hold it in the end, the primary first."""
        return self.goal or tuple(member for member in self.row.replicas if member is not None)

    @property
    def first(self) -> UUID:
        """The member that shall serve it."""
        return self.wanted[0]

    @property
    def is_to_be_emptied(self) -> bool:
        """Whether its author removes what it has before it opens the epoch."""
        return 0 < self.emptied == self.epoch and not self.opened

    def may_hold(self, member: UUID) -> bool:
        """Tell whether a member stands in the row or in the goal."""
        return member in self.row.replicas or member in self.goal

    def has(self, member: UUID) -> bool:
        """Tell whether a member is in the in-sync set, under whatever boot."""
        return any(copy.member == member for copy in self.in_sync)

    @property
    def leavers(self) -> tuple[Incarnation, ...]:
        """The copies of the set that nobody needs any more: others hold all of the row (M9)."""
        if not self.opened or self.author.member not in self.row.replicas or self.goal:
            return ()
        if not all(member is None or self.has(member) for member in self.row.replicas):
            return ()
        return tuple(copy for copy in self.in_sync if copy.member not in self.row.replicas)

    @property
    def has_reached_goal(self) -> bool:
        """Tell whether all of the goal hold the partition, and its first member serves it."""
        reached = bool(self.goal) and self.opened and self.author.member == self.goal[0]
        return reached and all(map(self.has, self.goal))

    def admission(self, copy: Incarnation) -> int | None:
        """Return by which decision a copy was admitted that is catching up; None if it is not."""
        return next((one.admission for one in self.moving if one.copy == copy), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What became of a partition of which every copy that counted was lost.

    In ``epoch`` it went on from the copy of ``author``, which had opened the epoch ``opened`` and
    had everything up to number ``upto``, pending or applied; or with nothing, if both are 0.
    ``before`` is the epoch that was lost, ``index`` the decision.
    """

    index: int
    partition: int
    before: int
    epoch: int
    author: Incarnation
    opened: int
    upto: int
    time: int = 0
    """When that was asked for, in microseconds; 0 if nobody has noted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What was decided of a transaction that its groups could not decide any more.

    ``partitions`` are those that it writes, ``missing`` those of them that could not tell what they
    had of it, ``index`` is the decision.
    """

    index: int
    tx_id: bytes
    attempt: int
    commits: bool
    by_hand: bool
    time: int
    partitions: tuple[int, ...]
    missing: tuple[int, ...]


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
    auto_join: bool = True
    """Whether who has joined, and is there, enters the baseline by itself (C9)."""
    placed: tuple[UUID, ...] = ()
    """The members among which rows and goals divide the partitions, by id."""
    losses: tuple[Loss, ...] = ()
    """What was lost, and how it went on, the oldest first."""
    loss_policy: LossPolicy = "read-write-safe"
    """What else happens when partitions are lost."""
    resolutions: tuple[Resolution, ...] = ()
    """Transactions in doubt that have come to an end, the oldest first."""

    @cached_property
    def told_history(self) -> UUID | None:
        """The history of the data: another one behind each reset, as acknowledged writes went."""
        if not self.losses or self.history is None:
            return self.history
        return uuid5(self.history, f"behind the reset of decision {self.losses[-1].index}")

    @cached_property
    def resolved(self) -> Mapping[tuple[bytes, int], Resolution]:
        """What was decided of transactions in doubt, by id and attempt."""
        return {(one.tx_id, one.attempt): one for one in self.resolutions}

    def is_too_old(self, partition: int, epoch: int) -> bool:
        """Tell whether a partition may know nothing any more of what was prepared in an epoch."""
        return is_too_old(self.losses, partition, epoch)

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

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """The partitions with several copies whose epoch is not known to be open; found once."""
        return tuple(
            partition
            for partition, copies in enumerate(self.partitions)
            if not copies.opened and len(copies.in_sync) > 1
        )

    @cached_property
    def holding(self) -> tuple[UUID, ...]:
        """The members among which the partitions are to be divided, by id."""
        members = (self.members[member] for member in self.baseline)
        return tuple(sorted(m.member for m in members if not m.voter and not m.leaving))

    @cached_property
    def reached(self) -> tuple[int, ...]:
        """The partitions that have reached their goals; looked for once."""
        return tuple(p for p, copies in enumerate(self.partitions) if copies.has_reached_goal)

    @cached_property
    def overfull(self) -> tuple[int, ...]:
        """The partitions of whose sets somebody is that nobody needs any more."""
        return tuple(p for p, copies in enumerate(self.partitions) if copies.leavers)

    @cached_property
    def lost(self) -> tuple[int, ...]:
        """The partitions of which every copy that counts is on a disk that is gone (S6)."""
        return tuple(
            partition
            for partition, copies in enumerate(self.partitions)
            if all(self.members[copy.member].lost for copy in copies.in_sync)
        )

    @cached_property
    def read_only(self) -> frozenset[int]:
        """The partitions that nothing is written to, as others of their space are lost."""
        if self.loss_policy != "read-only-safe":
            return frozenset()
        return frozenset(
            number
            for space in self.spaces
            if any(partition in space.numbers for partition in self.lost)
            for number in space.numbers
        )

    def needs(self, member: UUID) -> bool:
        """Tell whether a member stands in a row or in a goal, or is in an in-sync set."""
        return any(copies.may_hold(member) or copies.has(member) for copies in self.partitions)

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
        return map_named(self.namespaces, name)

    def __repr__(self) -> str:
        present = sum(known.present for known in self.members.values())
        return f"<Topology index={self.index} members={present}/{len(self.members)}>"


def is_too_old(losses: Iterable[Loss], partition: int, epoch: int) -> bool:
    """Tell whether a partition went on from a copy that may not know of all of an epoch (T9).

    That copy has taken part in the takeover of the newest epoch that it had opened, so it knows
    what has become of everything before that one.
    """
    return any(loss.partition == partition and loss.opened <= epoch < loss.epoch for loss in losses)


def map_named(namespaces: Mapping[int, KnownNamespace], name: str) -> KnownNamespace | None:
    """Return the map of a name among some; None if there is none."""
    return next((known for known in namespaces.values() if known.name == name), None)
