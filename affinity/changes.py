"""What changes a topology: the entries of the configuration log, and what stands in them.

Each decision holds *changes* that take effect together.  What each does is said by ``folding``.

Left out: who may propose what, and how a change is written (``engine.agreement``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from .partitions import Space
from .topology import Incarnation, LossPolicy


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
    auto_join: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """An incarnation is in the topology, at an address; earlier ones of its member have gone."""

    incarnation: Incarnation
    nonce: bytes
    address: str
    voter: bool = False


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
    """An incarnation catches up in some partitions, which it shall hold, and does not yet."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineChanged:
    """Others vote from here on: one member more, one less, or one for another (C4)."""

    baseline: tuple[UUID, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberWanted:
    """A member is to be of the baseline; or others are to hold its data, and then it is not."""

    member: UUID
    wanted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalsSet:
    """The partitions are to be divided among these members; so some have new rows to come."""

    members: tuple[UUID, ...]
    goals: tuple[tuple[int, tuple[UUID, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalsReached:
    """The goals of some partitions are their rows."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLost:
    """The disk of a member is gone for good: it never comes back, and what only it had is lost."""

    member: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReset:
    """A partition that was lost goes on in a new epoch: from an older copy, or with nothing (S6).

    ``opened`` and ``upto`` tell how far that copy had come: the newest epoch that it has opened,
    and up to which number it has everything, pending or applied; both are 0 if it is to be
    ``empty``.  ``time`` is when that was asked for, in microseconds.
    """

    partition: int
    epoch: int
    author: Incarnation
    empty: bool
    opened: int = 0
    upto: int = 0
    time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPolicySet:
    """What else happens from here on when partitions are lost."""

    policy: LossPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionResolved:
    """A transaction in doubt has committed, or is rolled back: all its groups obey (T13, S6).

    ``participants`` are its partitions, with the epochs in which it is prepared; ``missing`` those
    of them that cannot tell, with the epochs that they are at.  ``time`` is that of the commit.
    """

    tx_id: bytes
    attempt: int
    commits: bool
    by_hand: bool
    time: int
    participants: tuple[tuple[int, int], ...]
    missing: tuple[tuple[int, int], ...]


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
    | BaselineChanged
    | MemberWanted
    | GoalsSet
    | GoalsReached
    | MemberLost
    | PartitionReset
    | LossPolicySet
    | TransactionResolved
)


@dataclass(frozen=True, slots=True)
class Decision:
    """An entry of the configuration log."""

    index: int
    changes: tuple[TopologyChange, ...]
