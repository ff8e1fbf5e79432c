"""What the answers of members say of a cluster: who is there, who leads, what is served.

Pure.  An answer that is not of the form of ``docs/client-protocol.md`` is a ``ClusterError``.

Invariants:

- What members were told differently is as the one says that knows the most decisions.
- What a member serves is what it says itself; of a partition whose member does not answer nothing
  is known but who it is and its epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ...affinity.errors import ClusterError
from .cluster_file import LocalCluster

_FIELDS: Mapping[str, tuple[type, ...]] = {
    "member": (bytes,),
    "boot": (int,),
    "term": (int,),
    "coordinator": (bytes, type(None)),
    "majority": (bool,),
    "decided": (int,),
    "members": (list,),
    "lease_us": (int,),
    "partitions": (list,),
    "epochs": (list,),
    "open": (list,),
    "leased": (list,),
    "counts": (dict,),
}
_COLUMNS = ("partitions", "epochs", "open", "leased")
_VIEW_PRIMARIES, _VIEW_EPOCHS = 4, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """What one member says, and the view that it has."""

    member: UUID
    boot: int
    term: int
    coordinator: UUID | None
    majority: bool
    decided: int
    lease_us: int
    partitions: tuple[int, ...]
    epochs: tuple[int, ...]
    open: tuple[bool, ...]
    leased: tuple[bool, ...]
    counts: Mapping[str, int]
    present: Mapping[UUID, bool]
    """Who is in the topology, of those who are known."""
    primaries: Sequence[tuple[UUID, int]]
    """Of each partition who serves it, and its epoch."""

    @property
    def served(self) -> int:
        """How many partitions it serves now."""
        return sum(map(all, zip(self.open, self.leased, strict=True)))

    @property
    def serves_all(self) -> bool:
        """Whether it serves all that is its own, of an earlier start of it, too."""
        return self.served == sum(member == self.member for member, _ in self.primaries)


def status_of(view: Any, answer: Any) -> MemberStatus:
    """Return what a member said; ``ClusterError`` if it cannot be right."""
    try:
        for name, kinds in _FIELDS.items():
            if type(answer[name]) not in kinds:
                raise TypeError(f"{name} is {type(answer[name]).__name__}")
        if len({len(answer[name]) for name in _COLUMNS}) != 1:
            raise ValueError("its columns are not of one length")
        places = [UUID(bytes=row[0]) for row in view[1]]
        leading = answer["coordinator"]
        return MemberStatus(
            member=UUID(bytes=answer["member"]),
            boot=answer["boot"],
            term=answer["term"],
            coordinator=None if leading is None else UUID(bytes=leading),
            majority=answer["majority"],
            decided=answer["decided"],
            lease_us=answer["lease_us"],
            partitions=tuple(map(int, answer["partitions"])),
            epochs=tuple(map(int, answer["epochs"])),
            open=tuple(map(bool, answer["open"])),
            leased=tuple(map(bool, answer["leased"])),
            counts={str(name): int(count) for name, count in answer["counts"].items()},
            present={UUID(bytes=row[0]): bool(row[2]) for row in answer["members"]},
            primaries=[
                (places[place], int(epoch))
                for place, epoch in zip(view[_VIEW_PRIMARIES], view[_VIEW_EPOCHS], strict=True)
            ],
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        kind = type(error).__name__
        raise ClusterError(
            f"a member answered with a status that cannot be right: {kind} {error}",
            hint="Use the same version of tidelog as the member.",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAnswer:
    """What is known of a member: its process, and its answer or why there is none."""

    pid: int
    status: MemberStatus | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A cluster as its members tell it."""

    cluster: LocalCluster
    answers: Mapping[str, MemberAnswer]
    """By the names of the members."""
    names: Mapping[UUID, str] = field(default_factory=dict)

    @property
    def statuses(self) -> list[MemberStatus]:
        """All answers."""
        return [answer.status for answer in self.answers.values() if answer.status]

    @property
    def newest(self) -> MemberStatus | None:
        """The answer of the member that knows the most."""
        return max(self.statuses, key=lambda status: (status.decided, status.term), default=None)

    @property
    def partitions_served(self) -> int:
        """How many partitions are served."""
        return sum(status.served for status in self.statuses)

    @property
    def whole(self) -> bool:
        """Whether everybody answers, and everything is served."""
        everybody = len(self.statuses) == len(self.answers)
        return everybody and self.partitions_served == self.cluster.partitions

    def name_of(self, member: UUID | None) -> str | None:
        """Return the name of a member; its id if it has none here."""
        return None if member is None else self.names.get(member, str(member))


def picture_of(cluster: LocalCluster, answers: Mapping[str, MemberAnswer]) -> Picture:
    """Return the picture that answers make."""
    names = {member.id: member.name for member in cluster.members}
    return Picture(cluster=cluster, answers=answers, names=names)


def summary_of(picture: Picture) -> dict[str, Any]:
    """Return what `tidelog cluster status` shows."""
    newest = picture.newest
    return {
        "cluster": str(picture.cluster.cluster),
        "members": len(picture.answers),
        "members_up": len(picture.statuses),
        "majority": any(status.majority for status in picture.statuses),
        "coordinator": picture.name_of(newest.coordinator) if newest else None,
        "term": newest.term if newest else None,
        "decided": newest.decided if newest else None,
        "partitions": picture.cluster.partitions,
        "partitions_served": picture.partitions_served,
    }


NODE_COLUMNS = (
    "name", "state", "pid", "address", "boot", "coordinator", "majority", "lease_ms", "decided",
    "partitions", "served", "problem",
)  # fmt: skip
PARTITION_COLUMNS = ("partition", "member", "epoch", "open", "leased", "state")


def node_rows(picture: Picture) -> list[dict[str, Any]]:
    """Return a row for each member, with its counts beside the columns."""
    newest = picture.newest
    rows = []
    for member in picture.cluster.members:
        answer = picture.answers[member.name]
        status = answer.status
        row: dict[str, Any] = {**dict.fromkeys(NODE_COLUMNS), "counts": {}}
        row |= {
            "name": member.name,
            "state": "up" if status else "silent" if answer.pid else "down",
            "pid": answer.pid or None,
            "address": member.address,
            "problem": answer.problem,
        }
        if status and newest:
            row |= {
                "boot": status.boot,
                "coordinator": newest.coordinator == member.id,
                "majority": status.majority,
                "lease_ms": status.lease_us // 1000,
                "decided": status.decided,
                "partitions": len(status.partitions),
                "served": status.served,
                "counts": dict(status.counts),
            }
        rows.append(row)
    return rows


def partition_rows(picture: Picture) -> list[dict[str, Any]]:
    """Return a row for each partition; none if no member answers."""
    own: dict[int, tuple[MemberStatus, int, bool, bool]] = {}
    for status in picture.statuses:
        columns = status.partitions, status.epochs, status.open, status.leased
        for partition, epoch, is_open, leased in zip(*columns, strict=True):
            if partition not in own or own[partition][1] < epoch:
                own[partition] = status, epoch, is_open, leased
    newest = picture.newest
    rows = []
    for partition, (member, epoch) in enumerate(newest.primaries if newest else ()):
        served: tuple[bool | None, bool | None] = None, None
        if partition in own:
            status, told, *flags = own[partition]
            if (status.member, told) == (member, epoch):
                served = flags[0], flags[1]
        rows.append(
            {
                "partition": partition,
                "member": picture.name_of(member),
                "epoch": epoch,
                "open": served[0],
                "leased": served[1],
                "state": _state(*served),
            }
        )
    return rows


def _state(is_open: bool | None, leased: bool | None) -> str:
    if is_open is None:
        return "away"
    return "served" if is_open and leased else "waiting"
