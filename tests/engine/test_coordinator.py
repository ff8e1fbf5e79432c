"""What a coordinator makes of what it has heard: one term, a topology, and no messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.agreement_net import member
from tidelog.affinity.changes import (
    BaselineChanged,
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    Decision,
    EpochsOpened,
    GoalsSet,
    Joined,
    MemberGone,
    MemberLost,
    MemberWanted,
    PartitionReset,
    Takeover,
    Touched,
    TransactionResolved,
)
from tidelog.affinity.partitions import Space
from tidelog.affinity.table import PartitionRow
from tidelog.affinity.takeovers import GivenUp
from tidelog.affinity.topology import (
    Incarnation,
    KnownMember,
    Loss,
    MovingCopy,
    PartitionCopies,
    Topology,
)
from tidelog.engine.agreement.coordinator import GIVE_IT_UP, REQUESTS_MAX, Coordinator
from tidelog.engine.agreement.departures import TOO_FEW
from tidelog.engine.agreement.messages import (
    Credentials,
    Guard,
    Join,
    Pong,
    ProposeChange,
    Release,
    Term,
)
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.agreement.waits import Waits

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
    return Coordinator(ME, Term(9, ME.member), TIMING, 0.0, None, Waits(1.0))


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


def test_x4_nobody_has_gone_whom_no_majority_has_outlived() -> None:
    at, of = leading(), topology((ME, BOB))
    answered(at, ME, BOB, CID, EVE)
    at.unreachable(EVE)
    for now in (0.1, 0.2, 0.3):
        answered(at, ME, BOB, now=now)
        assert changes(at, of, now) == ()
    answered(at, Incarnation(CID.member, 2), now=0.4)
    assert changes(at, of, 0.4) == (MemberGone(incarnation=EVE),), "under any boot"


def test_c10_the_others_have_a_round_more_to_show_that_they_outlived_one() -> None:
    at, of = leading(), topology((ME, BOB))
    three = ME.member, BOB.member, CID.member
    of = replace(of, baseline=three, placed=three)
    answered(at, ME, BOB, CID, EVE)
    at.unreachable(EVE)
    answered(at, ME, BOB, now=0.1)
    assert changes(at, of, 0.1) == ()
    at.begin_round(0.2)
    assert changes(at, of, 0.2) == (MemberGone(incarnation=EVE),)


def test_c10_one_whose_newest_answer_came_later_was_not_outlived_before() -> None:
    """It was noticed, and answered that round all the same."""
    at = leading()
    answered(at, ME, BOB, CID, EVE)
    answered(at, ME, BOB, CID, EVE, now=0.1)
    at._answers.notice(EVE, 1)
    assert not at._answers.outlived(ME, EVE)
    answered(at, ME, BOB, CID, now=0.2)
    assert at._answers.outlived(ME, EVE)


def test_c10_those_that_fell_silent_together_do_not_wait_for_each_other() -> None:
    at, of = leading(), topology((ME, BOB))
    three = ME.member, BOB.member, CID.member
    of = replace(of, baseline=three, placed=three)
    answered(at, ME, BOB, CID, EVE)
    at.unreachable(CID)
    at.unreachable(EVE)
    answered(at, ME, BOB, now=0.1)
    assert changes(at, of, 0.1) == (MemberGone(incarnation=CID), MemberGone(incarnation=EVE))


def test_c10_a_new_coordinator_gives_everybody_the_time_to_answer() -> None:
    at, of = leading(), topology((ME, BOB))
    for now in (0.0, 0.4, 0.8):
        answered(at, ME, BOB, CID, now=now)
        assert changes(at, of, now) == ()
    assert changes(at, of, TIMING.member_timeout) == ()
    answered(at, ME, BOB, CID, now=TIMING.member_timeout)
    assert changes(at, of, TIMING.member_timeout) == (MemberGone(incarnation=EVE),)


def test_s2_while_too_many_ask_to_leave_nobody_has_gone_though_all_outlived_it() -> None:
    at, of = leading(), topology((ME, BOB))
    answered(at, ME, BOB, CID, EVE)
    for one in (CID, EVE):
        at.asked(one, ProposeChange(request=3, change=MemberGone(incarnation=one)), 0.0)
    at.unreachable(BOB)
    answered(at, ME, CID, EVE, now=0.1)
    assert changes(at, of, 0.1) == ()


def test_c10_one_that_is_heard_again_has_not_gone() -> None:
    at, of = leading(), topology((ME, BOB))
    answered(at, ME, BOB, CID, EVE)
    at.unreachable(EVE)
    answered(at, ME, BOB, CID, EVE, now=0.1)
    answered(at, ME, BOB, CID, now=0.2)
    assert changes(at, of, 0.2) == ()


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


def test_a_new_coordinator_knows_how_long_an_author_has_opened_nothing() -> None:
    of = topology((BOB, CID))
    of = replace(of, partitions=(replace(of.partitions[0], opened=False),))
    waits, elected = Waits(TIMING.member_timeout), 100.0
    waits.look(of, 10.0)
    for quarter in range(4 * 25 + 1):
        waits.led(of, 10 + quarter / 4)  # another one leads
    at = Coordinator(ME, Term(9, ME.member), TIMING, elected, None, waits)
    seen = []
    for quarter in range(4 * 8):
        now = elected + quarter / 4
        answered(at, ME, BOB, CID, EVE, now=now)
        seen += [now for change in changes(at, of, now) if change == MemberGone(incarnation=BOB)]
    heard = elected + TIMING.member_timeout  # what was opened while nobody led
    assert seen[0] == heard + TIMING.exchange_timeout - 25


def test_a_set_that_was_away_before_is_waited_for_anew() -> None:
    at = leading()
    gone = topology((BOB, CID), away=[BOB, CID])
    back = topology((BOB, CID))
    some = replace(topology((BOB, CID), away=[BOB], again=[CID]), index=9)
    answered(at, ME, EVE)
    assert changes(at, gone, 10.0) == ()
    changes(at, back, 12.0)
    assert Takeover not in [type(change) for change in changes(at, some, 20.0)]
    assert at._noted.deserted == {(0, 1): 20.0}


def test_a_new_coordinator_waits_for_a_set_since_its_member_has_known_that_it_is_away() -> None:
    gone = topology((BOB, CID), away=[BOB], again=[CID])
    waits = Waits(1.0)
    waits.look(gone, 0.0)
    at = Coordinator(ME, Term(9, ME.member), TIMING, 2.0, None, waits)
    answered(at, ME, CID._replace(boot=2), EVE, now=2.0)
    assert Takeover not in [type(change) for change in changes(at, gone, TIMING.restart_wait - 0.1)]
    assert Takeover in [type(change) for change in changes(at, gone, TIMING.restart_wait)]


def test_who_has_gone_gets_no_lease() -> None:
    # Else its partitions would wait for its end for ever.
    at, of = leading(), topology((ME, BOB), away=[EVE], again=[CID])
    answered(at, ME, BOB, CID, EVE)
    assert [holder for holder, _, _ in at.leases_due(of, 0.0)] == [ME, BOB]


def test_a_question_to_join_is_answered_once() -> None:
    at, of = leading(), topology((ME, BOB), away=[EVE])
    again = EVE._replace(boot=2)
    disk = Credentials(incarnation=again, last=b"", fresh=b"n" * 16, end=7)
    at.joining(Join(credentials=disk, address="eve"))
    lost = {**of.members, EVE.member: replace(of.members[EVE.member], lost=True)}
    assert changes(at, replace(of, members=lost), 0.0) == (), "it is lost"
    assert changes(at, of, 0.0) == ()
    at.joining(Join(credentials=disk, address="eve"))
    [joined] = changes(at, of, 0.0)
    assert isinstance(joined, Joined)
    assert joined.incarnation == again


def test_of_too_many_questions_the_oldest_are_forgotten() -> None:
    at, leaves = leading(), MemberGone(incarnation=CID)
    at.asked(EVE, ProposeChange(request=0, change=replace(leaves, incarnation=EVE)), 0.0)
    for number in range(REQUESTS_MAX):
        at.asked(CID, ProposeChange(request=number, change=leaves), 0.0)
    assert len(at._requests) == REQUESTS_MAX
    assert {sender for sender, _ in at._requests} == {CID}


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


# ------------------------------------------------------------------ who leaves, and who resets


@pytest.mark.parametrize("lost", [False, True])
def test_those_that_go_in_one_decision_leave_enough_together(lost: bool) -> None:
    of = replace(topology((ME, BOB), away=[CID]), min_in_sync=3)
    first = MemberLost(member=CID.member) if lost else MemberWanted(member=CID.member, wanted=False)
    second = MemberWanted(member=EVE.member, wanted=False)
    at = leading()
    for number, change in enumerate((first, second)):
        at.asked(ME, ProposeChange(request=number, change=change), 0.0)
    decision, [(_, refused)] = at.due(of, (), 0.0)
    assert decision is not None
    assert first in decision.changes
    assert second not in decision.changes
    assert (refused.request, refused.reason) == (
        1,
        "2 members with data would stay, and nothing is written to fewer than 3 copies",
    )


def test_who_leaves_alone_leaves_enough() -> None:
    change = MemberWanted(member=EVE.member, wanted=False)
    for least, found in ((3, []), (4, ["3 members with data would stay"])):
        of = replace(topology((ME, BOB)), min_in_sync=least)
        reasons = refusals(leading(), of, ME, change)
        assert [reason.split(",")[0] for reason in reasons] == found
    gone = {**of.members, EVE.member: replace(of.members[EVE.member], wanted=False)}
    assert refusals(leading(), replace(of, members=gone, min_in_sync=4), ME, change) == []


def test_goals_are_set_with_the_decision_that_somebody_leaves() -> None:
    of = topology((ME, BOB), (EVE, CID))
    of = replace(of, spaces=(Space(0, 2, 1),))
    leaves = MemberWanted(member=EVE.member, wanted=False)
    at = leading()
    at.asked(ME, ProposeChange(request=3, change=leaves), 0.0)
    first, goals = changes(at, of, 0.0)
    assert first == leaves
    assert isinstance(goals, GoalsSet)
    assert goals.members == tuple(one.member for one in THREE)
    assert [partition for partition, _ in goals.goals] == [1]


def test_a_goal_that_was_made_for_other_members_is_not_set() -> None:
    of = topology((ME, BOB))
    members = of.placed
    goal = GoalsSet(members=members, goals=((0, (BOB.member, ME.member)),))
    assert refusals(leading(), of, ME, goal) == []
    [reason] = refusals(leading(), of, ME, replace(goal, members=members[:3]))
    assert "divided among other members by now" in reason


def test_nobody_lets_another_one_go_on_with_what_was_lost() -> None:
    of = topology((BOB,), away=[BOB])
    lost = {**of.members, BOB.member: replace(of.members[BOB.member], lost=True)}
    change = PartitionReset(partition=0, epoch=2, author=CID, empty=True, opened=0, upto=0)
    for sender, found in ((CID, []), (ME, ["who goes on"]), (Incarnation(CID.member, 2), ["who"])):
        reasons = refusals(leading(), replace(of, members=lost), sender, change)
        assert [reason[: len(begin)] for reason, begin in zip(reasons, found, strict=True)] == found


# ------------------------------------------------------------------ baselines that change

SOON = replace(TIMING, join_wait=0.5)
THREE = (ME, BOB, CID)


def of_three(*, away: Sequence[Incarnation] = (), **eve: Any) -> Topology:
    """Return a topology of three members that vote, and of Eve, of whom more is said."""
    of = topology((ME, BOB), away=away)
    voters = tuple(one.member for one in THREE)
    members = {**of.members, EVE.member: replace(of.members[EVE.member], **eve)}
    return replace(of, baseline=voters, placed=voters, members=members)


def entering() -> BaselineChanged:
    return BaselineChanged(baseline=tuple(sorted(one.member for one in (*THREE, EVE))))


def soon() -> Coordinator:
    return Coordinator(ME, Term(9, ME.member), SOON, 0.0, None, Waits(1.0))


def test_who_joined_enters_once_it_has_answered_for_the_wait_without_a_gap() -> None:
    at, of = soon(), of_three()
    answered(at, *THREE, EVE, now=0.0)
    answered(at, *THREE, EVE, now=0.4)
    assert changes(at, of, 0.49) == ()
    answered(at, *THREE, now=0.5)
    assert changes(at, of, 0.5) == (), "it has been silent since"
    answered(at, *THREE, EVE, now=0.6)
    assert changes(at, of, 0.6) == (entering(),)
    answered(at, *THREE, now=1.5)
    answered(at, *THREE, EVE, now=1.7)
    answered(at, *THREE, EVE, now=2.1)
    assert changes(at, of, 2.1) == (), "there was a gap"
    answered(at, *THREE, EVE, now=2.3)
    assert changes(at, of, 2.3) == (entering(),)


@pytest.mark.parametrize(
    ("auto_join", "wanted", "enters"),
    [
        (True, None, True),
        (True, False, False),
        (True, True, True),
        (False, None, False),
        (False, False, False),
        (False, True, True),
    ],
)
def test_what_was_asked_for_goes_before_what_goes_by_itself(
    auto_join: bool, wanted: bool | None, enters: bool
) -> None:
    at, of = soon(), replace(of_three(wanted=wanted), auto_join=auto_join)
    for now in (0.0, 0.5):
        answered(at, *THREE, EVE, now=now)
    assert changes(at, of, 0.5) == ((entering(),) if enters else ())


def test_who_is_out_of_the_topology_does_not_enter_whatever_it_answers() -> None:
    at, of = soon(), of_three(present=False)
    for now in (0.0, 0.5):
        answered(at, *THREE, EVE, now=now)
    assert changes(at, of, 0.5) == ()


def test_nobody_enters_unless_a_majority_with_it_has_answered_in_this_term() -> None:
    at, of = soon(), of_three(away=[CID])
    for now in (0.0, 0.5):
        answered(at, ME, CID, EVE, now=now)
    assert changes(at, of, 0.5) == (), "of four two, and one that is out of the topology"
    answered(at, ME, BOB, EVE, now=0.6)
    assert changes(at, of, 0.6) == (entering(),)


def test_who_leaves_is_out_once_nobody_needs_it_and_a_majority_without_it_has_answered() -> None:
    of = topology((ME, BOB), away=[CID])
    members = {**of.members, EVE.member: replace(of.members[EVE.member], wanted=False)}
    of = replace(of, members=members, placed=tuple(one.member for one in THREE))
    without = BaselineChanged(baseline=of.placed)
    at = leading()
    answered(at, ME, EVE)
    assert changes(at, of, 0.0) == (), "one of three"
    answered(at, ME, BOB, EVE)
    assert changes(at, of, 0.0) == (without,)
    [copies] = of.partitions
    for more in ({"in_sync": (ME, EVE)}, {"goal": (ME.member, EVE.member)}):
        needing = replace(of, partitions=(replace(copies, **more),))
        assert changes(at, needing, 0.0) == ()
    stays = {**members, EVE.member: replace(members[EVE.member], wanted=None)}
    stays_there = tuple(sorted(stays))
    assert changes(at, replace(of, members=stays, placed=stays_there), 0.0) == ()


def test_what_was_asked_for_is_decided_before_a_baseline_changes() -> None:
    at, of = soon(), of_three()
    for now in (0.0, 0.5):
        answered(at, *THREE, EVE, now=now)
    at.asked(ME, ProposeChange(request=3, change=Touched(partition=0)), 0.5)
    assert changes(at, of, 0.5) == (Touched(partition=0),)
    assert changes(at, of, 0.5) == (entering(),)


def test_one_that_cannot_leave_yet_lets_others_enter() -> None:
    at, of = soon(), of_three()
    members = {**of.members, CID.member: replace(of.members[CID.member], wanted=False)}
    of = replace(of, members=members, placed=(ME.member, BOB.member))
    for now in (0.0, 0.5):
        answered(at, ME, CID, EVE, now=now)
    assert changes(at, of, 0.5) == (entering(),)
    answered(at, *THREE, EVE, now=0.5)
    assert changes(at, of, 0.5) == (BaselineChanged(baseline=(ME.member, BOB.member)),)


BASELINES = pytest.mark.parametrize(
    ("before", "after", "enough", "too_few"),
    [
        ((ME, BOB), THREE, [(ME, BOB)], [(ME, CID), (BOB,)]),
        (THREE, (*THREE, EVE), [THREE, (ME, BOB, EVE)], [(ME, BOB), (ME, EVE)]),
        ((*THREE, EVE), THREE, [THREE, (ME, BOB, EVE)], [(ME, BOB), (ME, EVE)]),
        (THREE, (ME, BOB), [(ME, BOB), THREE], [(ME, CID), (BOB, CID)]),
        (THREE, (ME, BOB, EVE), [(ME, BOB), (ME, CID, EVE)], [(ME, CID), (BOB, EVE)]),
    ],
)
Members = Sequence[Incarnation]


def changing(before: Members, after: Members) -> tuple[Coordinator, Topology]:
    """Return who has proposed another baseline, and the topology before that."""
    of = replace(topology((ME,)), baseline=tuple(one.member for one in before))
    at = leading()
    change = BaselineChanged(baseline=tuple(one.member for one in after))
    at.propose(Decision(8, (change,)), of)
    return at, of


@BASELINES
def test_a_change_of_the_baseline_is_decided_by_majorities_of_both(
    before: Members, after: Members, enough: list[Members], too_few: list[Members]
) -> None:
    for who in (*enough, *too_few):
        at, of = changing(before, after)
        assert {*at.missing(of)} == {one.member for one in (*before, *after)}
        found = [at.accepted(one.member, 8, of) for one in who]
        assert any(found) is (who in enough), who


@BASELINES
def test_while_a_baseline_changes_leases_are_given_by_majorities_of_both(
    before: Members, after: Members, enough: list[Members], too_few: list[Members]
) -> None:
    ended = TIMING.lease + 0.01
    for who in (*enough, *too_few):
        at, of = changing(before, after)
        answered(at, *who, now=ended)
        given = [holder for holder, _, _ in at.leases_due(of, ended)]
        assert given == (sorted(who) if who in enough else []), who
        assert at.has_lost(of, ended) is (who in too_few), who


def test_a_lost_partition_is_reset_once_the_lease_of_its_author_has_ended() -> None:
    at = leading()
    answered(at, ME, BOB, CID, EVE)
    of = topology((BOB,))
    assert BOB in [holder for holder, _, _ in at.leases_due(of, 0.0)]
    lost = {**of.members, BOB.member: replace(of.members[BOB.member], present=False, lost=True)}
    of = replace(of, members=lost)
    change = PartitionReset(partition=0, epoch=2, author=ME, empty=False, opened=1, upto=3)
    at.asked(ME, ProposeChange(request=3, change=change), 0.0)
    held = at.lease.held_until(BOB)
    assert at.due(of, (), held - 0.01) == (None, [])
    assert change in changes(at, of, held)


def test_a_new_coordinator_hears_everybody_before_a_lost_partition_goes_on_by_itself() -> None:
    # What others have of it was told to the coordinator before, and a better copy may be there.
    of = replace(topology((BOB,)), loss_policy="ignore")
    lost = {**of.members, BOB.member: replace(of.members[BOB.member], present=False, lost=True)}
    of = replace(of, members=lost)
    waits = Waits(1.0)
    waits.look(of, 0.0)
    at = Coordinator(ME, Term(9, ME.member), TIMING, 100.0, None, waits)
    answered(at, ME, CID, EVE, now=100.0)
    worse = PartitionReset(partition=0, epoch=2, author=ME, empty=False, opened=1, upto=3)
    better = replace(worse, author=CID, upto=5)
    at.asked(ME, ProposeChange(request=3, change=worse), 100.0)
    assert at.due(of, (), 100.0) == (None, [])
    at.asked(CID, ProposeChange(request=3, change=better), 100.1)
    assert at.due(of, (), 100.1) == (None, []), "there is somebody who has told nothing"
    end = 100.0 + TIMING.restart_wait
    assert at.due(of, (), end - 0.1) == (None, [])
    assert better in changes(at, of, end)


def test_whoever_may_have_a_better_copy_is_waited_for_from_the_first_word_on() -> None:
    # The partition may have been lost long before losses were ignored, or before anybody had its
    # turn to say what it has of it.
    of = topology((BOB,))
    lost = {**of.members, BOB.member: replace(of.members[BOB.member], present=False, lost=True)}
    of = replace(of, members=lost)
    at = leading()
    answered(at, ME, CID, EVE)
    assert changes(at, of, 0.0) == ()
    of = replace(of, loss_policy="ignore")
    for late in (100.0, 200.0):
        answered(at, ME, CID, EVE, now=late)
        assert changes(at, of, late) == ()
    worse = PartitionReset(partition=0, epoch=2, author=ME, empty=True, opened=0, upto=0)
    better = replace(worse, author=CID, empty=False, opened=1, upto=5)
    at.asked(ME, ProposeChange(request=3, change=worse), 200.0)
    assert changes(at, of, 200.0) == ()
    at.asked(CID, ProposeChange(request=3, change=better), 200.1)
    end = 200.0 + TIMING.restart_wait
    answered(at, ME, CID, EVE, now=end - 0.1)
    assert changes(at, of, end - 0.1) == (), "there is somebody who has told nothing"
    assert changes(at, of, end)[0] == better


def lost_of_bob(**others: Any) -> Topology:
    """Return a topology of which Bob's partition is lost, and goes on by itself."""
    of = replace(topology((BOB,)), loss_policy="ignore")
    more = {"bob": {"present": False, "lost": True}, **others}
    known = {member(number): more.get(name, {}) for number, name in enumerate(NAMES, 1)}
    members = {one: replace(of.members[one], **known[one]) for one in of.members}
    return replace(of, members=members)


NAMES = ("me", "bob", "cid", "eve")
WORSE = PartitionReset(partition=0, epoch=2, author=ME, empty=False, opened=1, upto=3)
BETTER = replace(WORSE, author=CID, upto=5)


def offered(at: Coordinator, *offers: PartitionReset, now: float = 0.0) -> None:
    for change in offers:
        at.asked(change.author, ProposeChange(request=3, change=change), now)


@pytest.mark.parametrize(
    ("eve", "is_awaited"),
    [
        ({}, True),
        ({"present": False}, True),
        ({"present": False, "lost": True}, False),
        ({"voter": True}, False),
    ],
)
def test_who_may_have_a_better_copy_of_what_is_lost_is_awaited(
    eve: dict[str, bool], is_awaited: bool
) -> None:
    at, of = leading(), lost_of_bob(eve=eve)
    offered(at, WORSE, BETTER)
    assert (BETTER in changes(at, of, 0.0)) is not is_awaited


def test_what_somebody_offered_who_has_gone_since_counts_once_it_offers_that_again() -> None:
    at, of = leading(), lost_of_bob()
    offered(at, WORSE, BETTER)
    assert changes(at, of, 0.0) == (), "Eve has told nothing"
    gone = lost_of_bob(cid={"present": False})
    offered(at, replace(WORSE, author=EVE))
    assert changes(at, gone, 0.1) == ()
    again = replace(BETTER, author=CID._replace(boot=2))
    offered(at, again)
    assert again in changes(at, lost_of_bob(cid={"boot": 2}), 0.2)


def test_who_may_have_a_better_copy_is_waited_for_anew_when_a_partition_is_lost_again() -> None:
    at, of = leading(), lost_of_bob()
    assert changes(at, of, 0.0) == ()
    assert changes(at, topology((CID,)), 10.0) == ()
    offered(at, WORSE)
    assert changes(at, of, 20.0) == ()
    assert WORSE in changes(at, of, 20.0 + TIMING.restart_wait)


def test_of_what_is_left_of_a_lost_partition_the_newest_that_was_opened_goes_on() -> None:
    older = replace(WORSE, upto=9)
    newer = replace(WORSE, author=CID, opened=2, upto=1)
    empty = replace(WORSE, author=EVE, opened=0, upto=0, empty=True)
    at = leading()
    offered(at, empty, older, newer)
    found = changes(at, lost_of_bob(), 0.0)
    assert [one for one in found if isinstance(one, PartitionReset)] == [newer]


@pytest.mark.parametrize("partition", [0, 4])
def test_who_asks_to_reset_what_is_not_lost_is_refused_at_once(partition: int) -> None:
    at, of = leading(), topology((BOB,))
    answered(at, ME, BOB, CID, EVE)
    assert [*at.leases_due(of, 0.0)]
    change = PartitionReset(partition=partition, epoch=2, author=ME, empty=True, opened=0, upto=0)
    [reason] = refusals(at, of, ME, change)
    assert reason.startswith(("partition 0 is not lost", "there is no partition 4"))


def test_what_is_in_doubt_is_ended_once_the_lease_of_who_is_missing_has_ended() -> None:
    at = leading()
    answered(at, ME, BOB, CID, EVE)
    of = topology((BOB,))
    assert BOB in [holder for holder, _, _ in at.leases_due(of, 0.0)]
    of = replace(
        of, members={**of.members, BOB.member: replace(of.members[BOB.member], present=False)}
    )
    change = TransactionResolved(
        tx_id=b"t" * 16, attempt=1, commits=False, by_hand=True, time=0,
        participants=((0, of.partitions[0].epoch),), missing=((0, of.partitions[0].epoch),),
    )  # fmt: skip
    at.asked(ME, ProposeChange(request=3, change=change), 0.0)
    held = at.lease.held_until(BOB)
    assert at.due(of, (), held - 0.01) == (None, [])
    assert change in changes(at, of, held)


def test_what_is_in_doubt_does_not_wait_for_who_cannot_tell_and_is_there() -> None:
    # Its partition went on from an older copy, and its lease is given anew all the time.
    at, of = leading(), topology((BOB,))
    answered(at, ME, BOB, CID, EVE)
    assert BOB in [holder for holder, _, _ in at.leases_due(of, 0.0)]
    loss = Loss(index=6, partition=0, before=0, epoch=1, author=BOB, opened=0, upto=0)
    change = TransactionResolved(
        tx_id=b"t" * 16, attempt=1, commits=True, by_hand=False, time=0,
        participants=((0, 0),), missing=((0, 1),),
    )  # fmt: skip
    at.asked(ME, ProposeChange(request=3, change=change), 0.0)
    assert changes(at, replace(of, losses=(loss,)), 0.0) == (change,)


# ------------------------------------------------------------------ who opens nothing


def unopened(*baseline: Incarnation, away: Sequence[Incarnation] = ()) -> Topology:
    """Return a topology in which Bob has not opened what Cid has a copy of."""
    of = topology((BOB, CID), away=away)
    voters = tuple(one.member for one in baseline or (ME, BOB, CID, EVE))
    return replace(of, baseline=voters, partitions=(replace(of.partitions[0], opened=False),))


HEARD = TIMING.member_timeout
"""Seconds behind an election in which everybody says what it has opened."""
PATIENCE = HEARD + TIMING.exchange_timeout


def led(
    at: Coordinator, of: Topology, until: float, *there: Incarnation, since: float = 0.0
) -> tuple[Any, ...]:
    """Lead with a round in each heartbeat; return what follows in the last one."""
    found: tuple[Any, ...] = ()
    for beat in range(int((until - since) / TIMING.heartbeat) + 1):
        now = since + beat * TIMING.heartbeat
        answered(at, *(there or (ME, BOB, CID, EVE)), now=now)
        found = changes(at, of, now)
    return found


def test_x4_who_opens_nothing_has_gone_after_a_time_that_begins_with_the_epoch() -> None:
    at, of, beat = leading(), unopened(), TIMING.heartbeat
    assert led(at, of, PATIENCE - beat) == ()
    newer = replace(of, partitions=(replace(of.partitions[0], epoch=2),))
    begun = PATIENCE
    assert led(at, newer, begun, since=begun) == (), "that is another epoch"
    end = begun + TIMING.exchange_timeout
    assert led(at, newer, end - 2 * beat, since=begun + beat) == ()
    assert MemberGone(incarnation=BOB) in led(at, newer, end, since=end)


def test_x4_who_says_just_then_that_it_has_opened_stays() -> None:
    """That may have waited for a decision for all the time."""
    for epoch, stays in ((1, True), (0, False)):
        at, of = leading(), unopened()
        led(at, of, PATIENCE - TIMING.heartbeat)
        answered(at, ME, BOB, CID, EVE, now=PATIENCE)
        opened = EpochsOpened(opened=((0, epoch),))
        at.asked(BOB, ProposeChange(request=3, change=opened), PATIENCE)
        found = changes(at, of, PATIENCE)
        assert (MemberGone(incarnation=BOB) not in found) == stays
        assert [holder for holder, _, _ in at.leases_due(of, PATIENCE)].count(BOB) == stays


def test_x4_who_opens_nothing_gets_no_lease_any_more() -> None:
    for of, everybody in ((unopened(), False), (topology((BOB, CID)), True)):
        at = leading()
        led(at, of, PATIENCE)
        given = [holder for holder, _, _ in at.leases_due(of, PATIENCE)]
        assert given == sorted([ME, CID, EVE, *[BOB] * everybody])


@pytest.mark.parametrize(
    ("voters", "away", "goes"),
    [
        ((ME, BOB, CID), [], True),
        ((ME, BOB, CID), [ME], False),
        ((BOB, CID), [], False),
        ((ME, BOB, CID, EVE), [EVE], False),
        ((ME, BOB, EVE), [CID], False),
    ],
)
def test_x4_who_opens_nothing_stays_unless_others_can_decide_and_go_on(
    voters: Sequence[Incarnation], away: Sequence[Incarnation], goes: bool
) -> None:
    at, of = leading(), unopened(*voters, away=away)
    there = [one for one in (ME, BOB, CID, EVE) if one not in away]
    assert (MemberGone(incarnation=BOB) in led(at, of, PATIENCE, *there)) is goes
    given = [holder for holder, _, _ in at.leases_due(of, PATIENCE)]
    assert (BOB in given) is not goes
