"""What a coordinator makes of what it has heard: one term, a topology, and no messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.agreement_net import member
from tidelog.affinity.changes import (
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    Decision,
    MemberGone,
    Takeover,
)
from tidelog.affinity.table import PartitionRow
from tidelog.affinity.takeovers import GivenUp
from tidelog.affinity.topology import (
    Incarnation,
    KnownMember,
    MovingCopy,
    PartitionCopies,
    Topology,
)
from tidelog.engine.agreement.coordinator import GIVE_IT_UP, Coordinator
from tidelog.engine.agreement.departures import TOO_FEW
from tidelog.engine.agreement.messages import Guard, Pong, ProposeChange, Release, Term
from tidelog.engine.agreement.timing import Timing

TIMING = Timing(restart_wait=5)
ME, BOB, CID, EVE = (Incarnation(member(number), 1) for number in (1, 2, 3, 4))


def topology(
    *sets: Sequence[Incarnation],
    away: Sequence[Incarnation] = (),
    again: Sequence[Incarnation] = (),
    epoch: int = 1,
) -> Topology:
    """Return four members, some away, some there under boot 2; whose sets have authors first."""
    members = {
        one.member: KnownMember(
            member=one.member, address="", since=1, boot=2 if one in again else 1,
            present=one not in away,
        )
        for one in (ME, BOB, CID, EVE)
    }  # fmt: skip
    partitions = tuple(
        PartitionCopies(
            row=PartitionRow(
                partition=partition, version=1, replicas=tuple(one.member for one in listed)
            ),
            epoch=epoch, author=listed[0], in_sync=tuple(listed), changed=1, opened=True,
        )
        for partition, listed in enumerate(sets)
    )  # fmt: skip
    return Topology(
        index=7,
        baseline=tuple(members),
        members=members,
        partitions=partitions,
        placed=tuple(members),
    )


def leading() -> Coordinator:
    return Coordinator(ME, Term(9, ME.member), TIMING, 0.0, None)


def answered(at: Coordinator, *who: Incarnation, now: float = 0.0, **reaches: Any) -> None:
    """Begin a round, and let members answer it that reach all, or whom ``reaches`` says."""
    everybody = frozenset(one.member for one in (ME, BOB, CID, EVE))
    number = at.begin_round(now)
    for one in who:
        others = reaches.get(f"m{one.member.int}", everybody)
        pong = Pong(term=at.term, round=number, votes=True, promised=at.term, end=1, reaches=others)
        at.heard(one, pong, now)


def changes(at: Coordinator, of: Topology, now: float) -> tuple[Any, ...]:
    decision, _ = at.due(of, (), now)
    return () if decision is None else decision.changes


def refusals(at: Coordinator, of: Topology, sender: Incarnation, change: Any) -> list[str]:
    at.asked(sender, ProposeChange(request=3, change=change), 0.0)
    _, refused = at.due(of, (), 0.0)
    return [refusal.reason for _, refusal in refused]


def test_who_is_named_by_a_release_is_the_next_author() -> None:
    for target, author in ((CID, CID), (BOB, BOB), (None, BOB)):
        at, of = leading(), topology((ME, BOB, CID))
        named = None if target is None else target.member
        at.released(ME, Release(partition=0, epoch=1, target=named), of)
        [change] = changes(at, of, 0.0)
        assert (change.author, change.epoch) == (author, 2)


def test_what_was_released_in_an_epoch_that_is_over_counts_for_nothing() -> None:
    at, of = leading(), topology((BOB, CID))
    at.released(BOB, Release(partition=0, epoch=1), of)
    newer = topology((BOB, CID), epoch=2)
    other = Takeover(partition=0, epoch=3, author=CID, in_sync=(CID, BOB))
    at.propose(Decision(8, (other,)), newer)
    assert at._losing == {BOB}, "it may have a lease for the new one"
    assert changes(at, newer, 0.0) == ()
    assert at._released == dict[int, GivenUp]()


def test_a_question_to_leave_is_kept_until_it_can_be_answered() -> None:
    at, of = leading(), topology((ME, BOB))
    at.asked(CID, ProposeChange(request=3, change=MemberGone(incarnation=CID)), 0.1)
    assert changes(at, of, 0.1) == ()
    assert changes(at, of, TIMING.heartbeat + 0.09) == ()
    assert changes(at, of, TIMING.heartbeat + 0.11) == (MemberGone(incarnation=CID),)
    assert changes(at, of, TIMING.heartbeat + 0.11) == (), "it is answered once"


def test_who_has_left_by_its_own_wish_leaves_the_sets_once_others_outlived_it() -> None:
    at, of = leading(), topology((ME, BOB, CID))
    answered(at, ME, BOB, CID)
    at.asked(CID, ProposeChange(request=3, change=MemberGone(incarnation=CID)), 0.0)
    assert changes(at, of, TIMING.heartbeat) == (MemberGone(incarnation=CID),)
    assert at.next_round == 0.0, "the next round shows it, and begins now"
    of = topology((ME, BOB, CID), away=[CID])
    answered(at, ME, BOB)
    assert changes(at, of, TIMING.heartbeat) == (CopiesRemoved(copy=CID, partitions=(0,)),)


def test_a_takeover_is_weighed_against_those_that_it_leaves_out_and_nobody_else() -> None:
    of = topology((ME, BOB, CID))
    for left_out, kept, refused in ((CID, (ME, BOB), []), (BOB, (ME, CID), [GIVE_IT_UP])):
        at = leading()
        less, more = frozenset([CID.member]), frozenset([ME.member, CID.member])
        answered(at, ME, BOB, CID, m1=less, m2=more, m3=less)
        change = Takeover(partition=0, epoch=2, author=ME, in_sync=kept)
        assert refusals(at, of, ME, change) == refused, left_out


def test_a_takeover_lists_nobody_new() -> None:
    of = topology((ME, BOB, CID))
    change = Takeover(partition=0, epoch=2, author=ME, in_sync=(ME, BOB, EVE))
    [reason] = refusals(leading(), of, ME, change)
    assert "with copies of the last in-sync set" in reason


def catching_up(*listed: Incarnation, moving: Incarnation = EVE) -> Topology:
    """Return a topology of two sets in whose rows somebody else catches up."""
    of = topology(listed, listed)
    partitions = tuple(
        replace(
            copies,
            row=replace(copies.row, replicas=(*copies.row.replicas, moving.member)),
            moving=(MovingCopy(moving, 5),),
            changed=5,
        )
        for copies in of.partitions
    )
    return replace(of, partitions=partitions)


ABOUT_COPIES = pytest.mark.parametrize("change_type", [CopiesAdmitted, CopiesAdded, CopiesRemoved])


@ABOUT_COPIES
def test_only_the_author_of_all_its_partitions_says_who_comes_back(change_type: Any) -> None:
    of = catching_up(ME, BOB)
    change = change_type(copy=EVE, partitions=(0, 1))
    assert refusals(leading(), of, ME, change) == []
    for sender in (BOB, EVE, CID, Incarnation(ME.member, 2)):
        [reason] = refusals(leading(), of, sender, change)
        assert reason == f"partition 0 is served by {ME}, and only that one asks for this"
    mine, other = of.partitions
    shared = replace(of, partitions=(mine, replace(other, author=BOB)))
    [reason] = refusals(leading(), shared, ME, change)
    assert "partition 1 is served by" in reason


@ABOUT_COPIES
def test_who_comes_back_is_decided_of_what_its_author_has_seen(change_type: Any) -> None:
    of = catching_up(ME, BOB)
    change = change_type(copy=EVE, partitions=(0, 1))
    seen = (Guard(0, 1, 5), Guard(1, 1, 5))
    at = leading()
    at.asked(ME, ProposeChange(request=3, change=change, guards=seen), 0.0)
    assert changes(at, of, 0.0) == (change,)
    for stale in (Guard(1, 1, 4), Guard(1, 0, 5)):
        at = leading()
        request = ProposeChange(request=3, change=change, guards=(seen[0], stale))
        at.asked(ME, request, 0.0)
        decision, [(asker, refused)] = at.due(of, (), 0.0)
        assert (decision, asker, refused.request) == (None, ME, 3)
        assert "partition 1" in refused.reason


def test_a_copy_that_catches_up_is_never_a_reason_to_give_a_partition_up() -> None:
    less = frozenset([EVE.member])
    of, change = catching_up(ME, BOB, CID), CopiesRemoved(copy=EVE, partitions=(0, 1))
    for moving, refused in ((of, []), (topology((ME, BOB, EVE), (ME, BOB, EVE)), [GIVE_IT_UP])):
        at = leading()
        answered(at, ME, BOB, CID, EVE, m1=less, m2=less)
        assert refusals(at, moving, ME, change) == refused


@pytest.mark.parametrize("change_type", [CopiesAdmitted, CopiesAdded])
def test_who_reaches_less_than_the_others_may_let_somebody_come_back(change_type: Any) -> None:
    at, of = leading(), catching_up(ME, BOB, CID)
    answered(at, ME, BOB, CID, EVE, m1=frozenset([EVE.member]))
    assert refusals(at, of, ME, change_type(copy=EVE, partitions=(0, 1))) == []


def test_who_comes_back_nowhere_is_told_why() -> None:
    of = topology((ME, BOB))
    [reason] = refusals(leading(), of, ME, CopiesAdmitted(copy=BOB, partitions=(0,)))
    assert "is in its in-sync set" in reason
    [reason] = refusals(leading(), of, ME, CopiesAdded(copy=CID, partitions=(0,)))
    assert "was not admitted" in reason
    [reason] = refusals(leading(), of, ME, CopiesAdmitted(copy=CID, partitions=(4,)))
    assert "there is no partition 4" in reason


def test_the_partitions_of_who_was_started_again_move_at_once_and_of_who_has_gone_at_its_end() -> (
    None
):
    for again, away, moves in (([BOB], [], True), ([], [BOB], False)):
        at = leading()
        answered(at, ME, BOB, CID, EVE)
        of = topology((BOB, CID))
        assert BOB in [holder for holder, _, _ in at.leases_due(of, 0.0)]
        held = at.lease.held_until(BOB)
        assert held > 0.01
        answered(at, ME, CID, EVE)
        of = topology((BOB, CID), away=away, again=again)
        found = [type(change) for change in changes(at, of, 0.01)]
        assert (Takeover in found) is moves
        if not moves:
            at.next_round = held + 1
            assert at.next_due() == held
            assert Takeover in [type(change) for change in changes(at, of, held)]


def test_a_set_that_was_away_before_is_waited_for_anew() -> None:
    at = leading()
    gone = topology((BOB, CID), away=[BOB, CID])
    back = topology((BOB, CID))
    some = replace(topology((BOB, CID), away=[BOB], again=[CID]), index=9)
    answered(at, ME, EVE)
    assert changes(at, gone, 10.0) == ()
    changes(at, back, 12.0)
    assert Takeover not in [type(change) for change in changes(at, some, 20.0)]
    assert at._deserted == {0: 20.0}


def test_who_asks_to_leave_where_too_few_stay_is_told_at_once_and_nobody_else_is_gone() -> None:
    at, of = leading(), topology((ME, BOB))
    for one in (BOB, CID):
        at.asked(one, ProposeChange(request=3, change=MemberGone(incarnation=one)), 0.0)
    decision, refused = at.due(of, (), 0.0)
    assert decision is None
    assert [refusal.reason for _, refusal in refused] == [TOO_FEW] * 2
    for now in (1000.0, 1001.0, 1002.0):
        answered(at, ME, EVE, now=now)
        assert changes(at, of, now) == ()
