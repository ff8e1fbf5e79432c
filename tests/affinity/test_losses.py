"""Members whose disks are gone, partitions that are lost with them, and how these go on (S6)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tidelog.affinity.changes import (
    Begun,
    CopiesAdmitted,
    Decision,
    EpochsOpened,
    Joined,
    MemberGone,
    MemberLost,
    MemberWanted,
    PartitionReset,
    Takeover,
    TopologyChange,
)
from tidelog.affinity.folding import applied, verdicts
from tidelog.affinity.partitions import Space
from tidelog.affinity.topology import Incarnation, Loss, Topology
from tidelog.engine.agreement.encoding import topology_bytes, topology_of
from tidelog.engine.agreement.identity import misfit
from tidelog.engine.agreement.messages import Credentials

ADA, BOB, CID = (UUID(int=number) for number in (1, 2, 3))
ADA_1, BOB_1, CID_1 = (Incarnation(member, 1) for member in (ADA, BOB, CID))
FIRST = Begun(
    cluster=UUID(int=9),
    store=UUID(int=10),
    history=UUID(int=11),
    members=tuple((member, "x:1") for member in (ADA, BOB, CID)),
    spaces=(Space(0, 2, 1),),
    rows=((ADA, BOB), (ADA, CID)),
)


def behind(topology: Topology, *changes: TopologyChange) -> Topology:
    for change in changes:
        topology = applied(topology, Decision(topology.index + 1, (change,)))
    return topology


def begun() -> Topology:
    """Return three members; Ada and Bob have partition 0, and Ada alone partition 1."""
    joins = [Joined(incarnation=one, nonce=b"n", address="x:1") for one in (ADA_1, BOB_1, CID_1)]
    return behind(
        Topology(),
        FIRST,
        *joins,
        Takeover(partition=0, epoch=1, author=ADA_1, in_sync=(ADA_1, BOB_1)),
        Takeover(partition=1, epoch=1, author=ADA_1, in_sync=(ADA_1,)),
        EpochsOpened(opened=((0, 1), (1, 1))),
    )


def reset(partition: int = 1, epoch: int = 2, author: Incarnation = CID_1) -> PartitionReset:
    return PartitionReset(
        partition=partition, epoch=epoch, author=author, empty=False, opened=1, upto=7
    )


def refusal(topology: Topology, change: TopologyChange) -> str:
    [reason] = verdicts(topology, [change])
    assert reason is not None
    return reason


def test_nothing_is_emptied_that_was_not_lost() -> None:
    topology = begun()
    assert not any(copies.is_to_be_emptied for copies in topology.partitions)
    first = applied(Topology(), Decision(1, (FIRST,)))
    assert not any(copies.is_to_be_emptied for copies in first.partitions)


def test_a_partition_is_lost_with_the_last_of_its_set() -> None:
    topology = begun()
    assert topology.lost == ()
    topology = behind(topology, MemberGone(incarnation=ADA_1))
    assert topology.lost == ()
    topology = behind(topology, MemberLost(member=ADA))
    assert topology.lost == (1,)
    topology = behind(topology, MemberGone(incarnation=BOB_1), MemberLost(member=BOB))
    assert topology.lost == (0, 1)


def test_who_is_lost_never_comes_back_and_is_to_leave() -> None:
    topology = begun()
    assert "is there: its disk is not lost" in refusal(topology, MemberLost(member=ADA))
    assert "no member" in refusal(topology, MemberLost(member=UUID(int=5)))
    topology = behind(topology, MemberGone(incarnation=ADA_1), MemberLost(member=ADA))
    assert topology.members[ADA].leaving
    again = Joined(incarnation=Incarnation(ADA, 2), nonce=b"m", address="x:1")
    assert "was declared lost" in refusal(topology, again)
    shown = Credentials(incarnation=Incarnation(ADA, 2), last=b"n", fresh=b"m", end=1)
    assert "was declared lost" in (misfit(shown, topology) or "")


def test_a_partition_that_was_reset_has_one_copy_in_a_new_epoch_and_its_loss_is_kept() -> None:
    topology = behind(begun(), MemberGone(incarnation=ADA_1), MemberLost(member=ADA), reset())
    copies = topology.partitions[1]
    assert (copies.epoch, copies.author, copies.in_sync) == (2, CID_1, (CID_1,))
    assert (copies.opened, copies.changed) == (False, topology.index)
    assert not copies.is_to_be_emptied
    assert topology.losses == (
        Loss(index=topology.index, partition=1, before=1, epoch=2, author=CID_1, opened=1, upto=7),
    )
    assert topology.lost == ()
    assert topology_of(topology_bytes(topology)) == topology


def test_who_is_lost_is_asked_for_no_more_and_may_be_told_to_leave_again() -> None:
    topology = behind(begun(), MemberGone(incarnation=ADA_1), MemberLost(member=ADA))
    assert "was declared lost" in refusal(topology, MemberWanted(member=ADA, wanted=True))
    again = behind(topology, MemberWanted(member=ADA, wanted=False))
    assert again.members[ADA].lost
    assert again.members[ADA].leaving


def test_what_caught_up_with_a_copy_that_was_lost_counts_for_nothing_behind_a_reset() -> None:
    topology = behind(
        begun(),
        CopiesAdmitted(copy=CID_1, partitions=(1,)),
        MemberGone(incarnation=ADA_1),
        MemberLost(member=ADA),
    )
    assert topology.partitions[1].moving
    topology = behind(topology, reset(author=BOB_1))
    assert topology.partitions[1].moving == ()


def test_no_voter_goes_on_with_what_was_lost() -> None:
    voter = Joined(incarnation=Incarnation(UUID(int=4), 1), nonce=b"n", address="x:1", voter=True)
    topology = behind(begun(), voter, MemberGone(incarnation=ADA_1), MemberLost(member=ADA))
    assert "holds no data" in refusal(topology, reset(author=voter.incarnation))


def test_what_begins_with_nothing_is_emptied_until_an_epoch_is_open() -> None:
    topology = behind(
        begun(),
        MemberGone(incarnation=ADA_1),
        MemberLost(member=ADA),
        replace(reset(), empty=True, opened=0, upto=0),
    )
    assert topology.partitions[1].is_to_be_emptied
    again = Takeover(partition=1, epoch=3, author=CID_1, in_sync=(CID_1,))
    topology = behind(topology, again)
    assert topology.partitions[1].is_to_be_emptied
    assert topology_of(topology_bytes(topology)) == topology
    topology = behind(topology, EpochsOpened(opened=((1, 3),)))
    assert not topology.partitions[1].is_to_be_emptied
    topology = behind(topology, replace(again, epoch=4))
    assert not topology.partitions[1].is_to_be_emptied


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (reset(partition=0), "partition 0 is not lost"),
        (reset(partition=2), "no partition 2"),
        (reset(epoch=3), "does not follow on 1"),
        (reset(author=Incarnation(CID, 2)), "is not there"),
        (reset(author=ADA_1), "is not there"),
    ],
)
def test_what_cannot_be_reset(change: PartitionReset, reason: str) -> None:
    topology = behind(begun(), MemberGone(incarnation=ADA_1), MemberLost(member=ADA))
    assert reason in refusal(topology, change)
