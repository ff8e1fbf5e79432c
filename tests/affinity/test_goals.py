"""Rows follow the baseline: goals, steps towards them, and who is dropped in the end."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from tidelog.affinity.changes import (
    BaselineChanged,
    Begun,
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    Decision,
    EpochsOpened,
    GoalsReached,
    GoalsSet,
    Joined,
    MemberGone,
    MemberWanted,
    Takeover,
    TopologyChange,
)
from tidelog.affinity.folding import ChangeError, applied, verdicts
from tidelog.affinity.goals import goals_due, rows_due
from tidelog.affinity.partitions import Space
from tidelog.affinity.takeovers import removals_due
from tidelog.affinity.topology import Incarnation, Topology

ADA, BOB, CID, DEB, EVE = (UUID(int=number) for number in range(1, 6))
ONES = {member: Incarnation(member, 1) for member in (ADA, BOB, CID, DEB, EVE)}


def behind(topology: Topology, *changes: TopologyChange) -> Topology:
    """Return the topology behind one decision for each change."""
    for change in changes:
        topology = applied(topology, Decision(topology.index + 1, (change,)))
    return topology


def joined(member: UUID, *, voter: bool = False, boot: int = 1) -> Joined:
    one = Incarnation(member, boot)
    return Joined(incarnation=one, nonce=b"%d" % boot, address="x:1", voter=voter)


def begun(partitions: int = 2, backups: int = 1) -> Topology:
    """Return a cluster of Ada, Bob and Cid, in which each partition is open."""
    members = (ADA, BOB, CID)
    rows = tuple(
        tuple(members[(partition + place) % 3] for place in range(backups + 1))
        for partition in range(partitions)
    )
    first = Begun(
        cluster=UUID(int=9),
        store=UUID(int=10),
        history=UUID(int=11),
        members=tuple((member, "x:1") for member in members),
        spaces=(Space(0, partitions, backups),),
        rows=rows,
    )
    topology = behind(Topology(), first, *map(joined, members))
    for partition, row in enumerate(rows):
        listed = tuple(ONES[member] for member in row)
        topology = behind(
            topology,
            Takeover(partition=partition, epoch=1, author=listed[0], in_sync=listed),
            EpochsOpened(opened=((partition, 1),)),
        )
    return topology


def entered(topology: Topology, *members: UUID) -> Topology:
    for member in members:
        topology = behind(
            topology,
            joined(member),
            BaselineChanged(baseline=tuple(sorted({*topology.baseline, member}))),
        )
    return topology


def with_goal(goal: tuple[UUID, ...], partition: int = 0) -> Topology:
    """Return Ada, Bob and Cid with Deb, and one partition that has a goal."""
    topology = entered(begun(), DEB)
    return behind(topology, GoalsSet(members=topology.holding, goals=((partition, goal),)))


def refusal(topology: Topology, change: TopologyChange) -> str:
    [reason] = verdicts(topology, [change])
    assert reason is not None
    return reason


# ------------------------------------------------------------------ the baseline


def test_a_member_that_joins_votes_only_once_it_is_of_the_baseline() -> None:
    topology = behind(begun(), joined(DEB))
    assert topology.is_present(ONES[DEB])
    assert DEB not in topology.baseline
    assert goals_due(topology) is None
    assert DEB in entered(begun(), DEB).baseline


@pytest.mark.parametrize(
    ("baseline", "reason"),
    [
        ((), "at least one member"),
        ((ADA, ADA, BOB, CID), "each of them once"),
        ((ADA, BOB, CID), "one member at a time"),
        ((ADA, BOB, CID, DEB, EVE), "one member at a time"),
        ((ADA, DEB), "one member at a time"),
        ((ADA, BOB, CID, EVE), "was never started"),
        ((ADA, BOB), "holds partitions: its data has to move first"),
    ],
)
def test_a_baseline_that_cannot_follow(baseline: tuple[UUID, ...], reason: str) -> None:
    assert reason in refusal(behind(begun(), joined(DEB)), BaselineChanged(baseline=baseline))


def test_who_is_of_a_row_a_goal_or_a_set_stays_of_the_baseline() -> None:
    topology = behind(
        with_goal((DEB, BOB)),
        CopiesAdmitted(copy=ONES[DEB], partitions=(0,)),
        CopiesAdded(copy=ONES[DEB], partitions=(0,)),
    )
    [copies, _] = topology.partitions
    row, left = copies.row, BaselineChanged(baseline=(ADA, BOB, CID))
    for kept in (
        replace(copies, in_sync=copies.in_sync[:2]),
        replace(copies, goal=()),
        replace(copies, goal=(), in_sync=copies.in_sync[:2], row=replace(row, replicas=(DEB,))),
    ):
        assert "holds partitions" in refusal(replace(topology, partitions=(kept,)), left)
    free = replace(copies, goal=(), in_sync=copies.in_sync[:2])
    assert behind(replace(topology, partitions=(free,)), left).baseline == (ADA, BOB, CID)


def test_a_baseline_changes_in_a_decision_of_its_own() -> None:
    topology = behind(begun(), joined(DEB))
    change = BaselineChanged(baseline=(ADA, BOB, CID, DEB))
    wanted = MemberWanted(member=ADA, wanted=True)
    with pytest.raises(ChangeError, match="decision of its own"):
        applied(topology, Decision(topology.index + 1, (wanted, change)))


def test_one_that_holds_nothing_may_be_replaced_by_another_at_once() -> None:
    topology = behind(entered(begun(), DEB), joined(EVE))
    topology = behind(topology, BaselineChanged(baseline=(ADA, BOB, CID, EVE)))
    assert topology.baseline == (ADA, BOB, CID, EVE)


def test_who_comes_as_a_voter_stays_one() -> None:
    topology = behind(begun(), joined(DEB, voter=True))
    assert "comes as a member that holds data" in refusal(topology, joined(DEB, boot=2))
    assert behind(topology, joined(DEB, boot=2, voter=True)).members[DEB].voter


def test_nobody_is_wanted_of_whom_nobody_has_heard() -> None:
    assert "no member" in refusal(begun(), MemberWanted(member=EVE, wanted=True))


# ------------------------------------------------------------------ goals


def test_partitions_are_divided_anew_once_others_are_to_hold_them() -> None:
    topology = entered(begun(partitions=8), DEB)
    goals = goals_due(topology)
    assert goals is not None
    assert goals.members == (ADA, BOB, CID, DEB)
    assert 0 < len(goals.goals) < 8
    assert any(DEB in goal for _, goal in goals.goals)
    assert goals_due(behind(topology, goals)) is None


def test_who_is_to_leave_and_who_only_votes_gets_nothing() -> None:
    topology = behind(entered(begun(partitions=8), DEB), MemberWanted(member=ADA, wanted=False))
    goals = goals_due(topology)
    assert goals is not None
    assert goals.members == (BOB, CID, DEB)
    assert not any(ADA in goal for _, goal in goals.goals)
    voter = behind(begun(), joined(DEB, voter=True))
    voter = behind(voter, BaselineChanged(baseline=(ADA, BOB, CID, DEB)))
    assert goals_due(voter) is None


def test_goals_go_on_from_the_goals_that_there_are() -> None:
    topology = entered(begun(partitions=8), DEB)
    first = goals_due(topology)
    assert first is not None
    topology = entered(behind(topology, first), EVE)
    second = goals_due(topology)
    assert second is not None
    there = [copies.wanted for copies in behind(topology, second).partitions]
    held = [sum(member in row for row in there) for member in topology.holding]
    assert max(held) - min(held) <= 1


def test_if_nobody_is_to_hold_anything_all_stays() -> None:
    topology = begun()
    for member in (ADA, BOB, CID):
        topology = behind(topology, MemberWanted(member=member, wanted=False))
    assert goals_due(topology) is None


@pytest.mark.parametrize(
    ("members", "goals", "reason"),
    [
        ((ADA, EVE), (), "members of the baseline"),
        ((ADA, BOB), ((0, ()),), "is empty"),
        ((ADA, BOB), ((0, (ADA, ADA)),), "has one twice"),
        ((ADA, BOB), ((0, (ADA, CID)),), "somebody who holds nothing"),
        ((ADA, BOB), ((7, (ADA,)),), "no partition 7"),
    ],
)
def test_goals_that_cannot_follow(
    members: tuple[UUID, ...], goals: tuple[tuple[int, tuple[UUID, ...]], ...], reason: str
) -> None:
    assert reason in refusal(begun(), GoalsSet(members=members, goals=goals))


def test_a_voter_is_given_nothing() -> None:
    voter = behind(begun(), joined(DEB, voter=True))
    voter = behind(voter, BaselineChanged(baseline=(ADA, BOB, CID, DEB)))
    assert "no voters" in refusal(voter, GoalsSet(members=(ADA, DEB), goals=()))


def test_a_goal_that_is_the_row_is_none() -> None:
    topology = with_goal((DEB, BOB))
    row = topology.partitions[0].row.replicas
    topology = behind(topology, GoalsSet(members=topology.holding, goals=((0, (ADA, BOB)),)))
    assert row == (ADA, BOB)
    assert topology.partitions[0].goal == ()
    assert topology.partitions[0].wanted == (ADA, BOB)


def test_who_is_of_the_goal_is_admitted_and_who_is_of_it_no_more_is_not() -> None:
    topology = with_goal((DEB, BOB))
    assert "neither of its row nor of its goal" in refusal(
        topology, CopiesAdmitted(copy=ONES[CID], partitions=(0,))
    )
    topology = behind(topology, CopiesAdmitted(copy=ONES[DEB], partitions=(0,)))
    assert topology.partitions[0].admission(ONES[DEB]) is not None
    topology = behind(topology, GoalsSet(members=topology.holding, goals=((0, (CID, BOB)),)))
    assert topology.partitions[0].moving == ()


def test_who_is_of_the_row_goes_on_to_catch_up_though_its_goal_is_another() -> None:
    topology = behind(
        entered(begun(), DEB),
        CopiesRemoved(copy=ONES[BOB], partitions=(0,)),
        CopiesAdmitted(copy=ONES[BOB], partitions=(0,)),
    )
    moving = topology.partitions[0].moving
    goals = GoalsSet(members=topology.holding, goals=((0, (DEB, CID)),))
    assert behind(topology, goals).partitions[0].moving == moving != ()


# ------------------------------------------------------------------ step by step


def test_a_row_goes_to_its_goal_step_by_step() -> None:
    topology = with_goal((DEB, BOB))
    assert rows_due(topology) == []
    assert "has not reached its goal" in refusal(topology, GoalsReached(partitions=(0,)))
    topology = behind(
        topology,
        CopiesAdmitted(copy=ONES[DEB], partitions=(0,)),
        CopiesAdded(copy=ONES[DEB], partitions=(0,)),
    )
    assert rows_due(topology) == []  # somebody else serves it still
    listed = topology.partitions[0].in_sync
    topology = behind(topology, Takeover(partition=0, epoch=2, author=ONES[DEB], in_sync=listed))
    assert rows_due(topology) == []  # its epoch is not known to be open
    topology = behind(topology, EpochsOpened(opened=((0, 2),)))
    assert rows_due(topology) == [GoalsReached(partitions=(0,))]
    version = topology.partitions[0].row.version
    topology = behind(topology, *rows_due(topology))
    copies = topology.partitions[0]
    assert (copies.row.replicas, copies.goal) == ((DEB, BOB), ())
    assert copies.row.version == version + 1
    assert copies.changed == topology.index
    assert rows_due(topology) == [CopiesRemoved(copy=ONES[ADA], partitions=(0,))]
    topology = behind(topology, *rows_due(topology))
    assert {*topology.partitions[0].in_sync} == {ONES[DEB], ONES[BOB]}
    assert rows_due(topology) == []


def test_nobody_is_dropped_while_others_that_shall_hold_it_do_not() -> None:
    topology = with_goal((ADA, DEB))
    topology = behind(
        topology,
        CopiesAdmitted(copy=ONES[DEB], partitions=(0,)),
        CopiesAdded(copy=ONES[DEB], partitions=(0,)),
    )
    topology = behind(topology, *rows_due(topology))
    assert topology.partitions[0].row.replicas == (ADA, DEB)
    without = behind(topology, CopiesRemoved(copy=ONES[DEB], partitions=(0,)))
    assert rows_due(without) == []
    assert rows_due(topology) == [CopiesRemoved(copy=ONES[BOB], partitions=(0,))]


def test_who_leaves_and_has_gone_is_removed_once() -> None:
    topology = with_goal((ADA, DEB))
    topology = behind(
        topology,
        CopiesAdmitted(copy=ONES[DEB], partitions=(0,)),
        CopiesAdded(copy=ONES[DEB], partitions=(0,)),
    )
    topology = behind(topology, *rows_due(topology), MemberGone(incarnation=ONES[BOB]))
    changes = [*rows_due(topology), *removals_due(topology)]
    assert changes == [CopiesRemoved(copy=ONES[BOB], partitions=(0,))]
    applied(topology, Decision(topology.index + 1, tuple(changes)))


def test_nobody_is_dropped_while_one_that_is_to_go_serves_or_an_epoch_is_not_open() -> None:
    topology = with_goal((ADA, DEB))
    topology = behind(
        topology,
        CopiesAdmitted(copy=ONES[DEB], partitions=(0,)),
        CopiesAdded(copy=ONES[DEB], partitions=(0,)),
        GoalsReached(partitions=(0,)),
    )
    dropped = [CopiesRemoved(copy=ONES[BOB], partitions=(0,))]
    assert rows_due(topology) == dropped
    listed = topology.partitions[0].in_sync
    for epoch, author, due in ((2, BOB, []), (3, ADA, dropped)):
        again = Takeover(partition=0, epoch=epoch, author=ONES[author], in_sync=listed)
        topology = behind(topology, again)
        assert rows_due(topology) == []
        topology = behind(topology, EpochsOpened(opened=((0, epoch),)))
        assert rows_due(topology) == due


def test_one_that_has_gone_keeps_no_other_one_that_nobody_needs() -> None:
    topology = behind(entered(begun(), DEB), MemberWanted(member=BOB, wanted=False))
    topology = behind(
        topology,
        GoalsSet(members=topology.holding, goals=((0, (CID, DEB)),)),
        *(
            change(copy=ONES[member], partitions=(0,))
            for member in (CID, DEB)
            for change in (CopiesAdmitted, CopiesAdded)
        ),
    )
    listed = topology.partitions[0].in_sync
    topology = behind(
        topology,
        Takeover(partition=0, epoch=2, author=ONES[CID], in_sync=listed),
        EpochsOpened(opened=((0, 2),)),
        GoalsReached(partitions=(0,)),
        MemberGone(incarnation=ONES[BOB]),
    )
    assert rows_due(topology) == [CopiesRemoved(copy=ONES[ADA], partitions=(0,))]


def test_nobody_is_dropped_while_one_of_the_row_is_away() -> None:
    """Who is about to be dropped may be all that is left of it, should the others go as well."""
    topology = behind(with_goal((ADA, DEB)), *(
        change(copy=ONES[DEB], partitions=(0,)) for change in (CopiesAdmitted, CopiesAdded)
    ), GoalsReached(partitions=(0,)))  # fmt: skip
    assert rows_due(topology) == [CopiesRemoved(copy=ONES[BOB], partitions=(0,))]
    assert rows_due(behind(topology, MemberGone(incarnation=ONES[DEB]))) == []


def test_who_is_dropped_is_named_in_the_order_of_members_whatever_they_held() -> None:
    topology = entered(begun(partitions=3), DEB)
    goals = ((0, (ADA, DEB)), (2, (CID, DEB)))
    topology = behind(topology, GoalsSet(members=topology.holding, goals=goals), *(
        change(copy=ONES[DEB], partitions=(0, 2)) for change in (CopiesAdmitted, CopiesAdded)
    ), GoalsReached(partitions=(0, 2)))  # fmt: skip
    assert rows_due(topology) == [
        CopiesRemoved(copy=ONES[ADA], partitions=(2,)),
        CopiesRemoved(copy=ONES[BOB], partitions=(0,)),
    ]


@given(st.lists(st.sampled_from([ADA, BOB, CID, DEB, EVE]), max_size=6), st.integers(0, 2))
def test_whoever_comes_and_goes_all_is_divided_evenly_in_the_end(
    turns: list[UUID], backups: int
) -> None:
    """Each turn a member enters, or leaves; then all steps are taken until there are none."""
    topology = begun(partitions=6, backups=backups)
    for member in turns:
        if member not in topology.baseline:
            if not topology.is_present(ONES[member]):
                topology = behind(topology, joined(member))
            topology = behind(topology, MemberWanted(member=member, wanted=True))
            topology = behind(
                topology, BaselineChanged(baseline=tuple(sorted({*topology.baseline, member})))
            )
        elif len(topology.holding) > 1:
            topology = behind(topology, MemberWanted(member=member, wanted=False))
        topology = settled(topology)
        for gone in [m for m in topology.baseline if topology.members[m].leaving]:
            assert not topology.needs(gone)
            left = tuple(one for one in topology.baseline if one != gone)
            topology = behind(topology, BaselineChanged(baseline=left))
        rows = [copies.row.replicas for copies in topology.partitions]
        held = [sum(one in row for row in rows) for one in topology.holding]
        assert max(held) - min(held) <= 1
        served = [sum(one == row[0] for row in rows) for one in topology.holding]
        assert max(served) - min(served) <= 1
        for copies in topology.partitions:
            assert len(copies.row.replicas) == min(backups + 1, len(topology.holding))
            assert {one.member for one in copies.in_sync} == {*copies.row.replicas}


def settled(topology: Topology) -> Topology:
    """Take all steps, as members that are all there do."""
    goals = goals_due(topology)
    if goals is not None:
        topology = behind(topology, goals)
    for _ in range(100):
        if changes := rows_due(topology):
            topology = behind(topology, *changes)
            continue
        for copies in topology.partitions:
            partition = (copies.row.partition,)
            for member in copies.wanted:
                if not copies.has(member):
                    topology = behind(
                        topology,
                        CopiesAdmitted(copy=ONES[member], partitions=partition),
                        CopiesAdded(copy=ONES[member], partitions=partition),
                    )
        for number, copies in enumerate(topology.partitions):
            if copies.author.member != copies.first:
                epoch = copies.epoch + 1
                topology = behind(
                    topology,
                    Takeover(
                        partition=number,
                        epoch=epoch,
                        author=ONES[copies.first],
                        in_sync=copies.in_sync,
                    ),
                    EpochsOpened(opened=((number, epoch),)),
                )
        if not rows_due(topology):
            return topology
    raise AssertionError("it goes on for ever")
