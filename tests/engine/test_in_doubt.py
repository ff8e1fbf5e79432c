"""Transactions in doubt at one primary: what it tells of them, asks for, and obeys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from support.group_transactions import OTHER, PARTITIONS, TX
from support.primaries import BOB, CID, ME, Primary, key_in, prepare, question
from tidelog.affinity.changes import TransactionResolved
from tidelog.affinity.topology import Loss, Resolution, Topology
from tidelog.engine.net.failures import Failure
from tidelog.engine.node.in_doubt import ASK_AGAIN_S, AT_ONCE_MAX, InDoubt
from tidelog.engine.node.tx_messages import PreparedPart, RefusedPart, TooOldPart
from tidelog.engine.node.works import Work
from tidelog.errors import ClusterError, UsageError
from tidelog.wal.records import CommitRecord, RollbackRecord, Run

ALONE, BOBS, AWAY = 1, 2, 3
"""A partition that nobody else has a copy of, one of Bob, and the one of Cid that takes part."""
ELSEWHERE = PreparedPart(TX, 1, Run(AWAY, 1, 7, 1), 5000)
LOST = Loss(index=3, partition=AWAY, before=1, epoch=2, author=BOB, opened=1, upto=3)


class History:
    """A log that says what it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, int, Callable[[Any], object]]] = []

    def find_outcome(self, tx_id: bytes, home: int, done: Callable[[Any], object]) -> None:
        self.asked.append((tx_id, home, done))


class At:
    """A primary that has prepared its part of a transaction with Cid."""

    def __init__(self, *, prepares: bool = True) -> None:
        self.primary, self.history = Primary(), History()
        one = self.primary
        history: Any = self.history
        post: Any = one.post
        self.doubt = InDoubt(
            one.works, one.log, one.partitions, one.here, history, post, lambda: one.now
        )
        self.suggested: list[Any] = []
        self.doubt.suggest = self.suggested.append
        self.topology = one.leases.topology
        if prepares:
            one.here.prepare(ME, prepare(ALONE, TX))
            one.all_have(ALONE)
            one.said()
        self.decide()

    def decide(self, **more: Any) -> Topology:
        self.topology = replace(self.topology, **more)
        self.doubt.decided(self.topology)
        return self.topology

    def leave(self) -> None:
        """Let it be decided that Cid has gone."""
        known = self.topology.members[CID.member]
        self.decide(members={**self.topology.members, CID.member: replace(known, present=False)})

    @property
    def work(self) -> Work:
        [work] = self.primary.works.of(TX)
        return work

    def resolve(self, *, commits: bool) -> None:
        self.decide(
            resolutions=(
                Resolution(
                    index=9, tx_id=TX, attempt=1, commits=commits, by_hand=True, time=7000,
                    partitions=(ALONE, AWAY), missing=(AWAY,),
                ),
            )
        )  # fmt: skip
        self.primary.carry()


# ------------------------------------------------------------------ what it is asked


def test_what_an_older_copy_may_have_lacked_is_not_refused() -> None:
    at = At(prepares=False)
    at.decide(losses=(replace(LOST, partition=ALONE, epoch=3),))
    at.primary.seal(ALONE, 3, ME)
    at.primary.open_again(ALONE, 3)
    at.primary.here.question(BOB, question(ALONE, OTHER, epoch=2))
    assert at.primary.said() == [("bob", "too-old", TooOldPart(OTHER, 1, ALONE))]
    at.primary.here.question(BOB, question(ALONE, OTHER, epoch=0))
    assert at.primary.kinds() == [("bob", "refused")], "that one's end it has seen"
    at.primary.here.question(BOB, question(ALONE, OTHER, epoch=3))
    assert at.primary.kinds() == [("bob", "refused")], "that is of this epoch"


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        ("rolled_back", [("bob", "refused")]),
        ("committed", [("bob", "too-old")]),
        ("too_old", [("bob", "too-old")]),
        (ClusterError("the log cannot be read"), []),
    ],
)
def test_who_has_gone_back_is_told_what_the_log_says(
    found: Any, kinds: list[tuple[str, str]]
) -> None:
    at = At(prepares=False)
    asked = question(ALONE, OTHER)._replace(went_back=True)
    at.primary.here.question(BOB, asked)
    assert at.primary.kinds() == []
    [(tx_id, home, done)] = at.history.asked
    assert (tx_id, home) == (OTHER, ALONE)
    done(found)
    assert at.primary.kinds() == kinds


def test_who_serves_a_partition_no_more_says_nothing_when_the_log_is_read() -> None:
    at = At(prepares=False)
    at.primary.here.question(BOB, question(ALONE, OTHER)._replace(went_back=True))
    [(_, _, done)] = at.history.asked
    at.primary.leases.held = False
    done("committed")
    assert at.primary.kinds() == []


def test_what_is_resolved_is_not_spoken_of() -> None:
    at = At()
    about = question(ALONE, TX)
    assert not at.doubt.is_resolved(about)
    at.resolve(commits=True)
    assert at.doubt.is_resolved(about)
    assert not at.doubt.is_resolved(about._replace(attempt=2))
    assert at.doubt.is_resolved(prepare(ALONE, TX))


# ------------------------------------------------------------------ what it obeys


def test_what_was_resolved_commits_with_the_numbers_that_are_known_and_one_time_for_all() -> None:
    at = At()
    at.primary.records()
    at.resolve(commits=True)
    [record] = at.primary.records()
    assert isinstance(record, CommitRecord)
    assert (record.time, record.applied) == (7000, (ALONE,))
    assert [run.partition for run in record.participants] == [ALONE]
    assert at.primary.value(key_in(ALONE)) is not None
    assert at.primary.locks.idle


def test_what_was_resolved_is_rolled_back_without_effect() -> None:
    at = At()
    at.primary.records()
    at.resolve(commits=False)
    [record] = at.primary.records()
    assert isinstance(record, RollbackRecord)
    assert at.primary.value(key_in(ALONE)) is None
    assert at.primary.locks.idle


def test_what_was_resolved_before_it_was_everywhere_ends_when_it_is() -> None:
    at = At(prepares=False)
    at.primary.here.prepare(ME, prepare(ALONE, TX))
    at.resolve(commits=True)
    at.primary.sync()
    at.doubt.tick()
    at.primary.carry()
    assert at.primary.value(key_in(ALONE)) is not None


def test_what_has_been_decided_by_all_groups_stays_so() -> None:
    at = At()
    at.primary.log.held = True
    at.primary.settling.prepared(ELSEWHERE)
    at.resolve(commits=False)
    assert at.work.decided is not None
    assert at.work.decided.commits


def test_another_attempt_is_not_what_was_resolved() -> None:
    at = At()
    [other] = [replace(one, attempt=2) for one in _resolutions()]
    at.decide(resolutions=(other,))
    assert at.work.decided is None


def _resolutions() -> list[Resolution]:
    at = At()
    at.resolve(commits=True)
    return list(at.topology.resolutions)


# ------------------------------------------------------------------ what it asks for


def test_it_commits_if_nobody_can_tell_and_nobody_has_refused() -> None:
    at = At()
    at.decide(losses=(LOST,))
    at.doubt.tick()
    assert at.suggested == [], "it was not asked yet"
    at.doubt.too_old(TooOldPart(TX, 2, AWAY))
    at.doubt.too_old(TooOldPart(TX, 1, ALONE))
    at.doubt.too_old(TooOldPart(TX, 1, PARTITIONS))
    assert at.work.too_old == set()
    at.primary.now += ASK_AGAIN_S
    at.doubt.tick()
    assert at.suggested == [], "nobody who counts has said so"
    at.doubt.too_old(TooOldPart(TX, 1, AWAY))
    at.primary.now += ASK_AGAIN_S
    at.doubt.tick()
    [change] = at.suggested
    assert change == TransactionResolved(
        tx_id=TX, attempt=1, commits=True, by_hand=False, time=at.work.time,
        participants=tuple((row.partition, row.epoch) for row in at.work.participants),
        missing=((AWAY, 1),),
    )  # fmt: skip
    at.doubt.tick()
    assert len(at.suggested) == 1
    at.primary.now += ASK_AGAIN_S
    at.doubt.tick()
    assert at.suggested == [change, change], "it is asked for again"


def test_what_has_been_refused_is_not_asked_for() -> None:
    at = At()
    at.doubt.too_old(TooOldPart(TX, 1, AWAY))
    part = RefusedPart(TX, 1, AWAY, Failure("again", "", {}))
    at.primary.settling.refused(part)
    at.primary.now += ASK_AGAIN_S
    at.doubt.tick()
    assert at.suggested == []


@pytest.mark.parametrize("case", ["it is about to end", "all have prepared it"])
def test_what_ends_by_itself_is_not_asked_for(case: str) -> None:
    at = At()
    if case == "it is about to end":
        at.work.too_old.add(AWAY)
        at.primary.log.held = True
        at.resolve(commits=True)
    else:
        at.work.answers[AWAY] = ELSEWHERE
    at.primary.now += ASK_AGAIN_S
    at.doubt.tick()
    assert at.suggested == []


def test_only_so_many_are_asked_for_at_once() -> None:
    at = At()
    work = at.work
    work.too_old.add(AWAY)
    works = [
        replace(work, tx_id=b"%016d" % number, owner=work.owner + 1 + number)
        for number in range(AT_ONCE_MAX + 5)
    ]
    at.primary.works.remove(work)
    for one in reversed(works):
        at.primary.works.add(one)
    at.doubt.tick()
    assert [change.tx_id for change in at.suggested] == [
        one.tx_id for one in works[:AT_ONCE_MAX]
    ]  # fmt: skip


# ------------------------------------------------------------------ by hand


def test_by_hand_it_ends_with_the_highest_time_and_names_who_could_not_tell() -> None:
    at = At()
    at.leave()
    change = at.doubt.change(TX, commits=False)
    assert (change.commits, change.by_hand, change.missing) == (False, True, ((AWAY, 1),))
    assert change.time == at.work.time


def test_what_has_been_answered_is_not_missing_though_its_member_has_gone_since() -> None:
    at = At()
    at.leave()
    at.work.answers[AWAY] = ELSEWHERE
    with pytest.raises(UsageError, match="is not in doubt"):
        at.doubt.change(TX, commits=True)


@pytest.mark.parametrize("case", ["nobody is away", "it is about to end", "unknown", "resolved"])
def test_what_is_not_in_doubt_is_refused_by_hand(case: str) -> None:
    at = At()
    if case == "it is about to end":
        at.leave()
        at.primary.log.held = True
        at.resolve(commits=True)
        at.decide(resolutions=())
    elif case == "resolved":
        at.resolve(commits=True)
    told = {"unknown": "not prepared in any", "resolved": "has committed already"}
    with pytest.raises(UsageError, match=told.get(case, "is not in doubt")):
        at.doubt.change(OTHER if case == "unknown" else TX, commits=True)


def test_another_attempt_than_the_one_that_was_resolved_is_ended_by_hand() -> None:
    at = At(prepares=False)
    at.resolve(commits=False)
    with pytest.raises(UsageError, match="is rolled back already"):
        at.doubt.change(TX, commits=True)
    with pytest.raises(UsageError, match="not prepared in any"):
        at.doubt.change(OTHER, commits=True)
    at.primary.here.prepare(ME, prepare(ALONE, TX, attempt=2))
    at.primary.all_have(ALONE)
    at.leave()
    assert at.doubt.change(TX, commits=True).attempt == 2


def of_three() -> At:
    """A primary that has prepared its part of a transaction with Bob, too."""
    at = At(prepares=False)
    wanted = prepare(ALONE, TX)
    more = (*wanted.participants, wanted.participants[0]._replace(partition=BOBS))
    at.primary.here.prepare(ME, wanted._replace(participants=more))
    at.primary.all_have(ALONE)
    return at


def test_what_others_have_not_said_yet_is_waited_for() -> None:
    at = of_three()
    at.leave()
    with pytest.raises(UsageError, match="partitions 2 have not said whether they have it"):
        at.doubt.change(TX, commits=True)
    at.work.answers[BOBS] = PreparedPart(TX, 1, Run(BOBS, 1, 7, 1), 5000)
    change = at.doubt.change(TX, commits=True)
    assert (change.missing, change.time) == (((AWAY, 1),), 5000)
    at.primary.records()
    at.resolve(commits=True)
    [record] = at.primary.records()
    assert isinstance(record, CommitRecord)
    assert [run.partition for run in record.participants] == [ALONE, BOBS]


def test_it_is_not_asked_for_before_all_others_have_answered() -> None:
    at = of_three()
    at.doubt.too_old(TooOldPart(TX, 1, AWAY))
    at.doubt.tick()
    assert at.suggested == []
    at.work.answers[BOBS] = PreparedPart(TX, 1, Run(BOBS, 1, 7, 1), 5000)
    at.primary.now += ASK_AGAIN_S
    at.doubt.tick()
    assert [change.missing for change in at.suggested] == [((AWAY, 1),)]


def test_who_cannot_tell_is_named_with_its_newest_epoch() -> None:
    at = At()
    rows = list(at.topology.partitions)
    rows[AWAY] = replace(rows[AWAY], epoch=2)
    at.decide(partitions=tuple(rows))
    at.leave()
    assert at.doubt.change(TX, commits=True).missing == ((AWAY, 2),)


def test_what_is_not_everywhere_yet_is_not_ended_by_hand() -> None:
    at = At(prepares=False)
    at.primary.here.prepare(ME, prepare(ALONE, TX))
    at.leave()
    with pytest.raises(UsageError, match="not prepared in any"):
        at.doubt.change(TX, commits=True)


# ------------------------------------------------------------------ what is shown


def test_what_is_pending_and_remembered_is_told() -> None:
    at = At(prepares=False)
    at.primary.here.prepare(ME, prepare(ALONE, TX, shared=[1, 2]))
    at.primary.all_have(ALONE)
    at.primary.here.prepare(CID, prepare(0, OTHER, others=()))
    at.primary.sync()
    at.leave()
    told = at.doubt.told()
    [row] = told["pending"]
    assert row[:4] == [TX, 1, ALONE, 0]
    assert row[4:7] == [ME.member.bytes, ME.boot, True]
    assert row[8:] == [1, 2, [[row.partition, row.epoch] for row in at.work.participants]]
    assert (told["deserted"], told["remembered"]) == ([3, 5], [])
    at.resolve(commits=True)
    told = at.doubt.told()
    assert (told["pending"], told["remembered"]) == ([], [[ALONE, TX]])
