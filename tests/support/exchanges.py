"""Three members that agree on whatever a test says, and the exchanges that this makes."""

from __future__ import annotations

from uuid import UUID

from tidelog.affinity.causes import Exchange, exchange_of
from tidelog.affinity.changes import (
    Begun,
    Decision,
    EpochsOpened,
    Joined,
    MemberGone,
    Takeover,
    TopologyChange,
)
from tidelog.affinity.folding import applied
from tidelog.affinity.partitions import Space
from tidelog.affinity.topology import Incarnation, Topology

ADA, BOB, CID = (UUID(int=number) for number in (1, 2, 3))
ADA_1, BOB_1, CID_1 = (Incarnation(member, 1) for member in (ADA, BOB, CID))
PARTITIONS = 3
BEGUN = Begun(
    cluster=UUID(int=9),
    store=UUID(int=10),
    history=UUID(int=11),
    members=((ADA, "a:1"), (BOB, "b:1"), (CID, "c:1")),
    spaces=(Space(0, PARTITIONS),),
    rows=((ADA, BOB, CID), (BOB, CID, ADA), (CID, ADA, BOB)),
)


def joined(*incarnations: Incarnation) -> list[TopologyChange]:
    return [Joined(incarnation=one, nonce=b"n", address="x:1") for one in incarnations]


def gone(incarnation: Incarnation) -> MemberGone:
    return MemberGone(incarnation=incarnation)


def takeover(partition: int, epoch: int, *listed: Incarnation) -> Takeover:
    """A takeover by the first of those that are listed."""
    return Takeover(partition=partition, epoch=epoch, author=listed[0], in_sync=listed)


def opened(*epochs: tuple[int, int]) -> EpochsOpened:
    return EpochsOpened(opened=epochs)


class Deciding:
    """What was decided, with the exchange of the last decision."""

    def __init__(self) -> None:
        self.topology = Topology()
        self.exchange: Exchange | None = None
        self.decisions: list[Decision] = []

    def decide(self, *changes: TopologyChange) -> Exchange | None:
        before, decision = self.topology, Decision(self.topology.index + 1, changes)
        self.topology = applied(before, decision)
        self.decisions.append(decision)
        self.exchange = exchange_of(before, decision, self.topology)
        return self.exchange


def serving() -> Deciding:
    """Return a cluster in which each member serves a partition in epoch 1, with all as copies."""
    deciding = Deciding()
    deciding.decide(BEGUN)
    deciding.decide(*joined(ADA_1, BOB_1, CID_1))
    deciding.decide(
        takeover(0, 1, ADA_1, BOB_1, CID_1),
        takeover(1, 1, BOB_1, CID_1, ADA_1),
        takeover(2, 1, CID_1, ADA_1, BOB_1),
    )
    deciding.decide(opened((0, 1), (1, 1), (2, 1)))
    return deciding
