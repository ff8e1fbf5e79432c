"""Random decisions that follow on one another: histories of a cluster for tests."""

from __future__ import annotations

from random import Random
from uuid import UUID

from tidelog.affinity.changes import (
    Begun,
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    Decision,
    EpochsOpened,
    Joined,
    MemberGone,
    NamespaceDropped,
    NamespaceMade,
    NamespaceRenamed,
    TopologyChange,
    Touched,
)
from tidelog.affinity.folding import applied, verdicts
from tidelog.affinity.partitions import Space
from tidelog.affinity.takeovers import removals_due, takeovers_due
from tidelog.affinity.topology import Incarnation, Topology

MEMBERS = [UUID(int=number) for number in range(1, 6)]
NAMES = ["users", "orders", "Zürich"]


def first_of(random: Random, partitions: int = 6) -> Begun:
    count = random.randint(1, 4)
    members = random.sample(MEMBERS[:4], count)
    cut = random.randrange(1, partitions)
    return Begun(
        cluster=UUID(int=random.getrandbits(128)),
        store=UUID(int=random.getrandbits(128)),
        history=UUID(int=random.getrandbits(128)),
        members=tuple((one, f"host{one.int}:7400") for one in members),
        spaces=(Space(0, cut), Space(cut, partitions - cut, 1)),
        rows=tuple(
            tuple(random.sample(members, random.randint(1, count))) for _ in range(partitions)
        ),
    )


def change_of(random: Random, topology: Topology) -> TopologyChange:
    """Some change; it need not be one that can follow."""
    known = topology.members.get(member := random.choice(MEMBERS))
    boot = 0 if known is None else known.boot
    match random.randrange(15):
        case 0 | 1 | 2:
            nonce = random.randbytes(8)
            return Joined(
                incarnation=Incarnation(member, boot + 1), nonce=nonce, address=f"at{boot}:7400"
            )
        case 3:
            return MemberGone(incarnation=Incarnation(member, boot))
        case 4:
            return Touched(partition=random.randrange(len(topology.partitions)))
        case 5:
            return NamespaceRenamed(old=random.choice(NAMES), new=random.choice(NAMES))
        case 6:
            return NamespaceDropped(name=random.choice(NAMES))
        case 7:
            numbers = range(len(topology.partitions))
            some = random.sample(numbers, random.randint(0, len(numbers)))
            epochs = [topology.partitions[p].epoch - (random.random() < 0.2) for p in some]
            return EpochsOpened(
                opened=tuple((p, max(e, 0)) for p, e in zip(some, epochs, strict=True))
            )
        case 8:
            partition = random.randrange(len(topology.partitions))
            copies = topology.partitions[partition]
            moving = [one.copy for one in copies.moving]
            return CopiesRemoved(
                copy=random.choice([*copies.in_sync, *moving]), partitions=(partition,)
            )
        case 9 | 10:
            away = [
                (known.incarnation, copies.row.partition)
                for copies in topology.partitions
                for known in topology.members.values()
                if copies.opened and known.present and known.member in copies.row.replicas
                if known.member not in {one.member for one in copies.in_sync}
            ]
            copy, partition = random.choice(away or [(Incarnation(member, boot), 0)])
            return CopiesAdmitted(copy=copy, partitions=(partition,))
        case 11 | 12:
            admitted = [
                (one.copy, copies.row.partition)
                for copies in topology.partitions
                for one in copies.moving
            ]
            copy, partition = random.choice(admitted or [(Incarnation(member, boot), 0)])
            return CopiesAdded(copy=copy, partitions=(partition,))
        case _:
            return NamespaceMade(
                name=random.choice(NAMES),
                key_codec="str",
                key_version=1,
                value_codec="msgpack",
                value_version=random.randint(1, 2),
                space=random.randrange(2),
            )


def following(random: Random, topology: Topology) -> Decision:
    """A decision that can follow on a topology."""
    if not topology.index:
        return Decision(1, (first_of(random),))
    wanted = [change_of(random, topology) for _ in range(random.randint(1, 4))]
    if random.random() < 0.5:
        wanted += removals_due(topology)
        wanted += takeovers_due(topology)
    reasons = verdicts(topology, wanted)
    fine = tuple(change for change, reason in zip(wanted, reasons, strict=True) if reason is None)
    return Decision(topology.index + 1, fine)


def history_of(seed: int, length: int) -> tuple[list[Decision], list[Topology]]:
    """Decisions from the first one on, and the topology before each, and behind the last one."""
    random = Random(seed)
    decisions: list[Decision] = []
    topologies = [Topology()]
    for _ in range(length):
        decision = following(random, topologies[-1])
        decisions.append(decision)
        topologies.append(applied(topologies[-1], decision))
    return decisions, topologies
