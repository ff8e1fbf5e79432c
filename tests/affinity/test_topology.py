"""The fold of decisions: what may follow, what is refused, and that a refusal changes nothing."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tidelog.affinity.partitions import Space
from tidelog.affinity.topology import (
    Begun,
    ChangeError,
    Decision,
    Incarnation,
    Joined,
    MemberGone,
    Takeover,
    Topology,
    TopologyChange,
    Touched,
    applied,
    takeovers_due,
    verdicts,
)

ADA, BOB, CID, EVE = (UUID(int=number) for number in (1, 2, 3, 4))
ADA_1, BOB_1, CID_1 = (Incarnation(member, 1) for member in (ADA, BOB, CID))
BEGUN = Begun(
    cluster=UUID(int=9),
    members=((ADA, "a:1"), (BOB, "b:1"), (CID, "c:1")),
    spaces=(Space(0, 2, 2),),
    rows=((ADA, BOB, CID), (BOB, CID, ADA)),
)


def joined(incarnation: Incarnation) -> Joined:
    return Joined(incarnation=incarnation, nonce=b"n", address="x:1")


def takeover(partition: int, epoch: int, *listed: Incarnation) -> Takeover:
    return Takeover(partition=partition, epoch=epoch, author=listed[0], in_sync=listed)


def decided(*decisions: tuple[TopologyChange, ...]) -> Topology:
    topology = Topology()
    for index, changes in enumerate(decisions, 1):
        topology = applied(topology, Decision(index, changes))
    return topology


def running() -> Topology:
    """Three members, two partitions that all of them hold."""
    every = (joined(ADA_1), joined(BOB_1), joined(CID_1))
    first = (takeover(0, 1, ADA_1, BOB_1, CID_1), takeover(1, 1, BOB_1, CID_1, ADA_1))
    return decided((BEGUN,), every, first)


def test_a_cluster_that_runs() -> None:
    topology = running()
    assert repr(topology) == "<Topology index=3 members=3/3>"
    assert topology.by_age() == [ADA, BOB, CID]
    assert [copies.author for copies in topology.partitions] == [ADA_1, BOB_1]
    assert str(ADA_1) == "00000000.1"
    assert takeovers_due(topology) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (BEGUN, "only the first decision begins a cluster"),
        (joined(ADA_1), "not newer than boot 1"),
        (MemberGone(incarnation=Incarnation(ADA, 2)), "not in the topology"),
        (MemberGone(incarnation=Incarnation(EVE, 1)), "not in the topology"),
        (takeover(0, 3, ADA_1), "epoch 3 does not follow on 1"),
        (takeover(2, 1, ADA_1), "there is no partition 2"),
        (takeover(-1, 1, ADA_1), "there is no partition -1"),
        (replace(takeover(0, 2, ADA_1), author=BOB_1), "its author does not stand in its set once"),
        (takeover(0, 2, ADA_1, BOB_1, Incarnation(BOB, 2)), "a member stands in its set twice"),
        (takeover(0, 2, Incarnation(EVE, 1)), "not of the last in-sync set"),
        (takeover(0, 2, Incarnation(ADA, 2)), "is not in the topology"),
        (Touched(partition=2), "there is no partition 2"),
    ],
)
def test_what_cannot_follow_is_refused_and_changes_nothing(
    change: TopologyChange, reason: str
) -> None:
    topology = running()
    with pytest.raises(ChangeError, match=reason):
        applied(topology, Decision(4, (change,)))
    fine = Touched(partition=0)
    one, other, third = verdicts(topology, [fine, change, fine])
    assert (one, third) == (None, None)
    assert other is not None
    assert reason in other


@pytest.mark.parametrize(
    ("begun", "reason"),
    [
        (replace(BEGUN, members=()), "begins with at least one member"),
        (replace(BEGUN, members=((ADA, "a"), (ADA, "b"))), "each of them once"),
        (replace(BEGUN, spaces=(Space(1, 2),)), "does not begin at partition 0"),
        (replace(BEGUN, rows=((ADA,), ())), "the row of partition 1 is empty"),
        (replace(BEGUN, rows=((ADA,), (BOB, BOB))), "twice"),
        (replace(BEGUN, rows=((ADA,), (EVE,))), "somebody who is not a member"),
    ],
)
def test_a_cluster_that_cannot_begin(begun: Begun, reason: str) -> None:
    with pytest.raises(ChangeError, match=reason):
        decided((begun,))


def test_decisions_come_in_order() -> None:
    with pytest.raises(ChangeError, match="decision 2 does not follow on 0"):
        applied(Topology(), Decision(2, (BEGUN,)))


def test_who_has_gone_is_in_no_set_as_a_backup_and_stays_as_an_author() -> None:
    topology = applied(running(), Decision(4, (MemberGone(incarnation=ADA_1),)))
    assert topology.partitions[0].in_sync == (ADA_1, BOB_1, CID_1)
    assert topology.partitions[1].in_sync == (BOB_1, CID_1)
    assert (topology.partitions[0].changed, topology.partitions[1].changed) == (3, 4)
    assert topology.is_gone(ADA_1)
    assert not topology.is_gone(Incarnation(ADA, 2))
    assert not topology.is_gone(Incarnation(EVE, 1))
    assert takeovers_due(topology) == [takeover(0, 2, BOB_1, CID_1)]
    assert takeovers_due(topology, lambda _copies: False) == []


def test_who_is_started_again_has_gone_before() -> None:
    topology = applied(running(), Decision(4, (joined(Incarnation(BOB, 2)),)))
    assert topology.is_gone(BOB_1)
    assert topology.partitions[0].in_sync == (ADA_1, CID_1)
    assert takeovers_due(topology) == [takeover(1, 2, CID_1, ADA_1)]


def test_if_all_have_gone_those_that_come_back_take_over() -> None:
    gone = tuple(MemberGone(incarnation=one) for one in (BOB_1, CID_1, ADA_1))
    topology = applied(running(), Decision(4, gone))
    assert takeovers_due(topology) == []
    again = Incarnation(ADA, 2)
    topology = applied(topology, Decision(5, (joined(again),)))
    assert takeovers_due(topology) == [takeover(0, 2, again)]


def test_a_new_member_is_the_youngest_and_in_no_row() -> None:
    topology = applied(running(), Decision(4, (joined(Incarnation(EVE, 1)),)))
    assert topology.members[EVE].since == 4
    assert topology.baseline == (ADA, BOB, CID)


def test_who_serves_is_the_first_of_the_row_and_else_of_the_set() -> None:
    topology = running()
    copies = replace(topology.partitions[0], author=Incarnation(ADA, 0), in_sync=(CID_1, BOB_1))
    found = takeovers_due(replace(topology, partitions=(copies,)))
    assert [due.author for due in found] == [BOB_1]
    elsewhere = replace(copies, row=replace(copies.row, replicas=(EVE,)))
    found = takeovers_due(replace(topology, partitions=(elsewhere,)))
    assert [due.author for due in found] == [CID_1]
