"""What the answers of members say of a cluster: who is there, who leads, who holds what.

Pure.  An answer that is not of the form of ``docs/client-protocol.md`` is a ``ClusterError``.

Invariants:

- What members were told differently is as the one says that knows the most decisions.

Left out: one partition as its members have it (``stories``), and what follows for whoever looks
(``shares``, ``blocks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from ...affinity.errors import ClusterError
from .cluster_file import LocalCluster, LocalMember

_FIELDS: Mapping[str, tuple[type, ...]] = {
    "member": (bytes,),
    "boot": (int,),
    "term": (int,),
    "coordinator": (bytes, type(None)),
    "majority": (bool,),
    "decided": (int,),
    "members": (list,),
    "baseline": (list,),
    "placed": (list,),
    "voters": (list,),
    "wanted": (list,),
    "auto_join": (bool,),
    "lost": (list,),
    "lost_members": (list,),
    "lease_us": (int,),
    "partitions": (list,),
    "epochs": (list,),
    "open": (list,),
    "leased": (list,),
    "blocked": (list,),
    "lagging": (list,),
    "log_failure": (str, type(None)),
    "data_failure": (str, type(None)),
    "timing": (dict,),
    "counts": (dict,),
}
_COLUMNS = ("partitions", "epochs", "open", "leased")
_HELD = (
    "partitions", "rows", "goals", "epochs", "authors", "boots", "sets", "set_boots", "opened",
    "changed", "lwms", "hwms", "ranges",
)  # fmt: skip
_VIEW_PRIMARIES, _VIEW_EPOCHS = 4, 5


class Blocked(NamedTuple):
    """How far the takeover of a partition has come at its primary, and who is waited for."""

    phase: str
    waits_for: tuple[UUID, ...]


class Lagging(NamedTuple):
    """A copy that has not stored all of a partition's stream, and for how long not."""

    partition: int
    member: UUID
    items: int
    seconds: float


class HeldPartition(NamedTuple):
    """Who holds a partition by the decisions that a member knows, and its counters there."""

    partition: int
    row: tuple[UUID, ...]
    goal: tuple[UUID, ...]
    epoch: int
    author: UUID
    boot: int
    in_sync: tuple[UUID, ...]
    boots: tuple[int, ...]
    """Of the members of the set, in its order."""
    opened: bool
    changed: int
    lwm: int
    hwm: int
    ranges: tuple[tuple[int, int], ...] = ()
    """What is applied above the LWM: the number before each run, and how many it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """What one member says, and the view that it has."""

    member: UUID
    boot: int
    term: int
    coordinator: UUID | None
    majority: bool
    stopping: bool
    """Whether it was told to end, and is about to; False of a version that does not tell."""
    decided: int
    lease_us: int
    partitions: tuple[int, ...]
    epochs: tuple[int, ...]
    open: tuple[bool, ...]
    leased: tuple[bool, ...]
    blocked: Mapping[int, Blocked]
    """Of the partitions that are not open yet, by number."""
    lagging: Sequence[Lagging]
    log_failure: str | None
    """Why it writes nothing any more; None while it does."""
    data_failure: str | None
    """Why it takes no checkpoints any more; None while it does."""
    timing: Mapping[str, float]
    """Seconds that it waits, by name; ``drift`` is a factor."""
    counts: Mapping[str, int]
    known: Sequence[UUID]
    """All who have ever been in the topology."""
    baseline: Sequence[UUID]
    """Whose majority decides."""
    placed: Sequence[UUID]
    """Among whom the partitions are divided, or are about to be."""
    voters: Sequence[UUID]
    """Who holds no data, of those who are known."""
    wanted: Mapping[UUID, bool]
    """Of whom somebody has asked that they enter the baseline, or that they leave it."""
    auto_join: bool
    lost: frozenset[int]
    lost_members: frozenset[UUID]
    """The partitions of which every copy is on a disk that is gone."""
    """Whether who has joined enters the baseline by itself."""
    boots: Mapping[UUID, int]
    """Who is in the topology, of those who are known, with the boot."""
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


@contextmanager
def in_form() -> Iterator[None]:
    """Turn what goes wrong with an answer of another form into a ``ClusterError``."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        kind = type(error).__name__
        raise ClusterError(
            f"a member answered with a status that cannot be right: {kind} {error}",
            hint="Use the same version of tidelog as the member.",
        ) from None


def uuids_of(rows: Iterable[bytes]) -> tuple[UUID, ...]:
    """Return the ids that some bytes are."""
    return tuple(UUID(bytes=row) for row in rows)


def status_of(view: Any, answer: Any) -> MemberStatus:
    """Return what a member said; ``ClusterError`` if it cannot be right."""
    with in_form():
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
            stopping=bool(answer.get("stopping", False)),
            decided=answer["decided"],
            lease_us=answer["lease_us"],
            partitions=tuple(map(int, answer["partitions"])),
            epochs=tuple(map(int, answer["epochs"])),
            open=tuple(map(bool, answer["open"])),
            leased=tuple(map(bool, answer["leased"])),
            blocked={
                int(row[0]): Blocked(str(row[1]), uuids_of(row[2])) for row in answer["blocked"]
            },
            lagging=[
                Lagging(int(row[0]), UUID(bytes=row[1]), int(row[2]), int(row[3]) / 1e6)
                for row in answer["lagging"]
            ],
            log_failure=answer["log_failure"],
            data_failure=answer["data_failure"],
            timing={str(name): float(seconds) for name, seconds in answer["timing"].items()},
            counts={str(name): int(count) for name, count in answer["counts"].items()},
            known=uuids_of(row[0] for row in answer["members"]),
            baseline=uuids_of(answer["baseline"]),
            placed=uuids_of(answer["placed"]),
            voters=uuids_of(answer["voters"]),
            wanted={UUID(bytes=row[0]): bool(row[1]) for row in answer["wanted"]},
            auto_join=answer["auto_join"],
            lost=frozenset(map(int, answer["lost"])),
            lost_members=frozenset(uuids_of(answer["lost_members"])),
            boots={UUID(bytes=row[0]): int(row[1]) for row in answer["members"] if row[2]},
            primaries=[
                (places[place], int(epoch))
                for place, epoch in zip(view[_VIEW_PRIMARIES], view[_VIEW_EPOCHS], strict=True)
            ],
        )


def held_of(pages: Iterable[Any]) -> tuple[HeldPartition, ...]:
    """Return who holds the partitions, as a member said; ``ClusterError`` if it cannot be right."""
    found: list[HeldPartition] = []
    with in_form():
        for page in pages:
            for row in zip(*(page[name] for name in _HELD), strict=True):
                number, members, goal, epoch, author, boot, in_sync, boots, *rest = row
                opened, changed, lwm, hwm, ranges = rest
                if number != len(found):
                    raise ValueError(f"partition {number} stands where {len(found)} should")
                if len(in_sync) != len(boots):
                    raise ValueError("a set and its boots are not of one length")
                found.append(
                    HeldPartition(
                        number, uuids_of(members), uuids_of(goal), int(epoch),
                        UUID(bytes=author), int(boot), uuids_of(in_sync), tuple(map(int, boots)),
                        bool(opened), int(changed), int(lwm), int(hwm),
                        tuple((int(start), int(many)) for start, many in ranges),
                    )
                )  # fmt: skip
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAnswer:
    """What is known of a member: its process, and its answers or why there are none."""

    pid: int
    status: MemberStatus | None = None
    held: tuple[HeldPartition, ...] = ()
    """Who holds the partitions, as this member knows, with the counters that they have here."""
    story: Mapping[str, Any] | None = None
    """What it said of one partition, if it was asked."""
    exchanges: Mapping[str, Any] | None = None
    """What it said of the exchanges that it saw lately, if it was asked."""
    problem: str | None = None
    disk_gone: bool = False
    """Whether it does not run, and its directory on this machine has no store."""

    @property
    def state(self) -> str:
        """``up`` if it answers, ``silent`` if it only runs, ``down`` if it does not."""
        return "up" if self.status else "silent" if self.pid else "down"

    @property
    def failures(self) -> tuple[str | None, str | None]:
        """Why its log fails, and its data file; None for what does not."""
        return (self.status.log_failure, self.status.data_failure) if self.status else (None, None)


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
        return max(self.statuses, key=_knowledge, default=None)

    @property
    def held(self) -> tuple[HeldPartition, ...]:
        """Who holds the partitions, as the member says that knows the most."""
        answers = [answer for answer in self.answers.values() if answer.status]
        newest = max(answers, key=lambda one: _knowledge(one.status), default=None)
        return newest.held if newest else ()

    @property
    def voting(self) -> list[str]:
        """The names of those whose majority decides; who began the cluster, if nobody tells."""
        if self.newest is None:
            return [member.name for member in self.cluster.founders]
        names = self.names_of(self.newest.baseline)
        return [name for name in self.answers if name in names] + [
            name for name in names if name not in self.answers
        ]

    @property
    def partitions_served(self) -> int:
        """How many partitions are served."""
        return sum(status.served for status in self.statuses)

    @property
    def majority(self) -> bool:
        """Whether somebody reaches a majority, and did not miss yet that there is none."""
        newest, voting = self.newest, self.voting
        if newest is None or not any(status.majority for status in self.statuses):
            return False
        if sum(self.state_of(name) != "down" for name in voting) <= len(voting) // 2:
            return False  # which those that are left are about to notice
        leads = any(status.member == newest.coordinator for status in self.statuses)
        there = [name for name in voting if self.state_of(name) == "up"]
        return leads or len(there) > len(voting) // 2

    @property
    def leading(self) -> str | None:
        """Who leads; None without a majority: who led last leads nobody."""
        newest = self.newest
        return self.name_of(newest.coordinator) if newest and self.majority else None

    @property
    def whole(self) -> bool:
        """Whether everybody answers and has joined, and everything is served."""
        return self.partitions_served == self.cluster.partitions and self.whole_but_for_losses

    @property
    def whole_but_for_losses(self) -> bool:
        """Whether everybody answers and has joined, and everything is served that is not lost."""
        everybody = len(self.statuses) == len(self.answers)
        lost = len(self.newest.lost) if self.newest is not None else 0
        served = self.partitions_served + lost == self.cluster.partitions
        return everybody and served and all(map(self.has_joined, self.statuses))

    def has_joined(self, status: MemberStatus) -> bool:
        """Tell whether the cluster has taken in a member as it runs now."""
        newest = self.newest
        return newest is not None and newest.boots.get(status.member) == status.boot

    def is_lost(self, member: LocalMember) -> bool:
        """Tell whether the disk of a member was declared lost, by the file or by who tells."""
        return member.lost or (self.newest is not None and member.id in self.newest.lost_members)

    def not_lost(self, names: Iterable[str]) -> list[str]:
        """Return those of some members that were not declared lost: who may come back."""
        lost = {member.name for member in self.cluster.members if member.lost}
        if self.newest is not None:
            lost.update(self.names_of(self.newest.lost_members))
        return [name for name in names if name not in lost]

    def stays(self, name: str) -> bool:
        """Tell whether a member runs, as far as it knows, and is not about to end.

        While nothing can be decided the cluster need not have taken it in.
        """
        status = self.answers[name].status
        if status is None or status.stopping:
            return False
        return self.has_joined(status) or not self.majority

    def away(self, wanted: Callable[[MemberAnswer], bool] | None = None) -> list[str]:
        """Return the names of the members that do not answer, or of some of these."""
        return [
            name
            for name, answer in self.answers.items()
            if not answer.status and (wanted is None or wanted(answer))
        ]

    def state_of(self, name: str) -> str:
        """Return the state of a member; one that is not of the cluster's file is ``down``."""
        answer = self.answers.get(name)
        return answer.state if answer else "down"

    def gone(self, names: Iterable[str]) -> list[str]:
        """Return those of some members whose disks are gone, as far as this machine can tell."""
        return [name for name in names if name in self.answers and self.answers[name].disk_gone]

    def name_of(self, member: UUID | None) -> str | None:
        """Return the name of a member; its id if it has none here."""
        return None if member is None else self.names.get(member, str(member))

    def names_of(self, members: Iterable[UUID]) -> list[str]:
        """Return the names of some members."""
        return [self.names.get(member, str(member)) for member in members]


def _knowledge(status: MemberStatus | None) -> tuple[int, int]:
    assert status is not None
    return status.decided, status.term


def picture_of(cluster: LocalCluster, answers: Mapping[str, MemberAnswer]) -> Picture:
    """Return the picture that answers make."""
    names = {member.id: member.name for member in cluster.members}
    return Picture(cluster=cluster, answers=answers, names=names)
