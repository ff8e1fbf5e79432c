"""Transactions in doubt that are ended by a decision, and what a partition has forgotten."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tidelog.affinity.changes import (
    Begun,
    Decision,
    EpochsOpened,
    Joined,
    MemberGone,
    MemberLost,
    PartitionReset,
    Takeover,
    TopologyChange,
    TransactionResolved,
)
from tidelog.affinity.folding import applied, verdicts
from tidelog.affinity.partitions import Space
from tidelog.affinity.topology import Incarnation, Resolution, Topology
from tidelog.engine.agreement.encoding import topology_bytes, topology_of

ADA, BOB, CID = (UUID(int=number) for number in (1, 2, 3))
ADA_1, BOB_1, CID_1, ADA_2 = (
    Incarnation(member, boot) for member, boot in ((ADA, 1), (BOB, 1), (CID, 1), (ADA, 2))
)
TX = b"t" * 16
BY_HAND = TransactionResolved(
    tx_id=TX, attempt=1, commits=True, by_hand=True, time=9, participants=((0, 1), (1, 1)),
    missing=((0, 1),),
)  # fmt: skip
BY_RESET = replace(BY_HAND, by_hand=False, missing=((0, 2),))


def behind(topology: Topology, *changes: TopologyChange) -> Topology:
    for change in changes:
        topology = applied(topology, Decision(topology.index + 1, (change,)))
    return topology


def begun() -> Topology:
    """Return three members: Ada has partition 0, Bob partition 1, each alone; Cid has none."""
    first = Begun(
        cluster=UUID(int=9), store=UUID(int=10), history=UUID(int=11),
        members=tuple((member, "x:1") for member in (ADA, BOB, CID)), spaces=(Space(0, 2, 0),),
        rows=((ADA,), (BOB,)),
    )  # fmt: skip
    joins = [Joined(incarnation=one, nonce=b"n", address="x:1") for one in (ADA_1, BOB_1, CID_1)]
    takeovers = [
        Takeover(partition=number, epoch=1, author=one, in_sync=(one,))
        for number, one in enumerate((ADA_1, BOB_1))
    ]
    return behind(Topology(), first, *joins, *takeovers, EpochsOpened(opened=((0, 1), (1, 1))))


def away() -> Topology:
    return behind(begun(), MemberGone(incarnation=ADA_1))


def reset(*, opened: int = 0) -> Topology:
    change = PartitionReset(
        partition=0, epoch=2, author=CID_1, empty=not opened, opened=opened, upto=4 * opened
    )
    return behind(away(), MemberLost(member=ADA), change)


def refusal(topology: Topology, change: TopologyChange) -> str | None:
    [reason] = verdicts(topology, [change])
    return reason


@pytest.mark.parametrize(
    ("topology", "change"), [(away(), BY_HAND), (reset(), BY_RESET), (reset(opened=1), BY_RESET)]
)
def test_what_is_in_doubt_is_ended_once_and_that_is_kept(
    topology: Topology, change: TransactionResolved
) -> None:
    topology = behind(topology, change)
    resolution = Resolution(
        index=topology.index, tx_id=TX, attempt=1, commits=True, by_hand=change.by_hand, time=9,
        partitions=(0, 1), missing=(0,),
    )  # fmt: skip
    assert topology.resolutions == (resolution,)
    assert topology.resolved == {(TX, 1): resolution}
    assert topology_of(topology_bytes(topology)) == topology
    for again in (change, replace(change, commits=False)):
        assert "has committed already, by decision" in (refusal(topology, again) or "")
    assert refusal(topology, replace(change, tx_id=b"o" * 16)) is None
    assert refusal(topology, replace(change, attempt=2)) is None
    rolled_back = behind(topology, replace(change, tx_id=b"o" * 16, commits=False))
    assert [one.tx_id for one in rolled_back.resolutions] == [TX, b"o" * 16]
    again = replace(change, tx_id=b"o" * 16)
    assert "is rolled back already, by decision" in (refusal(rolled_back, again) or "")


@pytest.mark.parametrize(
    ("topology", "change", "reason"),
    [
        (begun(), BY_HAND, "is not in doubt"),
        (away(), replace(BY_HAND, missing=()), "is not in doubt"),
        (away(), replace(BY_HAND, missing=((1, 1),)), "is not in doubt"),
        (away(), replace(BY_HAND, missing=((0, 2),)), "partition 0 has changed meanwhile"),
        (away(), replace(BY_HAND, missing=((2, 1),)), "partition 2 has changed meanwhile"),
        (away(), replace(BY_HAND, participants=((0, 1), (5, 1))), "there is no partition 5"),
        (reset(opened=1), replace(BY_RESET, participants=((0, 2), (1, 1))), "is not in doubt"),
    ],
)
def test_what_can_end_by_itself_is_not_ended(
    topology: Topology, change: TransactionResolved, reason: str
) -> None:
    assert reason in (refusal(topology, change) or "")


def test_a_partition_that_one_copy_can_open_is_not_given_up() -> None:
    topology = away()
    first, *rest = topology.partitions
    both = replace(first, in_sync=(ADA_1, BOB_1))
    topology = replace(topology, partitions=(both, *rest))
    assert "is not in doubt" in (refusal(topology, BY_HAND) or "")


def test_a_member_that_is_back_may_be_about_to_open_its_partition() -> None:
    # It is present, under another boot than the set lists, until the takeover is decided.
    back = behind(away(), Joined(incarnation=ADA_2, nonce=b"n", address="x:1"))
    assert refusal(back, BY_HAND) is None
    taken = behind(back, Takeover(partition=0, epoch=2, author=ADA_2, in_sync=(ADA_2,)))
    assert "has changed meanwhile" in (refusal(taken, BY_HAND) or "")


def test_a_partition_has_forgotten_epochs_that_its_older_copy_may_not_have_seen_end() -> None:
    topology = reset(opened=1)
    assert [topology.is_too_old(0, epoch) for epoch in range(4)] == [False, True, False, False]
    assert not topology.is_too_old(1, 1)
    assert [reset().is_too_old(0, epoch) for epoch in range(3)] == [True, True, False]
