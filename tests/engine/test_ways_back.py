"""Which way a copy comes back, by what it reports and by the log of its primary; and whom to ask to
join."""

from __future__ import annotations

from dataclasses import replace
from errno import ECONNREFUSED
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from support.takeovers import state_of
from tidelog.affinity.topology import Incarnation, KnownMember, PartitionCopies, Topology
from tidelog.checkpoints.copies import CopyState
from tidelog.checkpoints.replay import State
from tidelog.engine.node import joining
from tidelog.engine.node.joining import ASK_S_MAX, fetch_topology
from tidelog.engine.node.supply_log import reach_of
from tidelog.engine.node.ways_back import EXPLAINED_MAX, LogHolder, WaysBack
from tidelog.engine.replication.reports import Report
from tidelog.errors import ClusterError, NotEnoughMembersError
from tidelog.rebalance.choosing import LogReach, SupplyKind
from tidelog.wal.records import Participant, PrepareRecord, Run

ME, BOB = Incarnation(UUID(int=1), 1), Incarnation(UUID(int=2), 1)
NONE, HISTORY, FULL = SupplyKind.NONE, SupplyKind.HISTORICAL, SupplyKind.FULL
BEHIND = Report(copy=BOB, partition=0, epoch=3, lwm=9, ranges=(), hwm=9, epochs=((1, 1),))


def in_set(*copies: Incarnation) -> PartitionCopies:
    """Return a partition with these copies in its set."""
    return cast(PartitionCopies, SimpleNamespace(in_sync=copies))


class Around:
    """A primary in epoch 3, whose numbers begin with 11; it has given out 20, and 18 is pending."""

    def __init__(self) -> None:
        self.now = 5.0
        self.state = state_of()
        self.state.epochs[0], self.state.epoch_tables[0] = 3, ((1, 1), (3, 11))
        counter = self.state.counters[0]
        counter.prepared(0, 20)
        counter.update(0, 17)
        counter.update(18, 2)
        self.state.copies.prepared(0).add(
            PrepareRecord(
                tx_id=b"of two groups".ljust(16), attempt=1, near=(ME.member.bytes, 1), time=5,
                home=0, participants=(Participant(0, 3, 1), Participant(1, 1, 1)),
                run=Run(0, 3, 18, 1), namespaces=16, keys=[b"k"], values=[b"v"],
            )
        )  # fmt: skip
        self.head = state_of()
        log: Any = cast(Any, SimpleNamespace(state=self.state))
        self.ways = WaysBack(ME, log, lambda: self.now)

    def reaches(self, report: Report) -> list[LogReach[LogHolder]]:
        return [reach_of(self.head.record(1), report.partition, LogHolder(ME))]

    def kind(self, report: Report) -> SupplyKind:
        return self.ways.choice(report, self.reaches(report)).kind

    def missing(self, report: Report) -> list[tuple[int, int]]:
        return self.ways.choice(report, self.reaches(report)).missing


def test_a_copy_gets_what_it_lacks_up_to_the_end_but_for_what_is_pending() -> None:
    at = Around()
    assert at.kind(BEHIND) is HISTORY
    assert at.missing(BEHIND) == [(10, 17), (19, 20)]
    ahead = replace(BEHIND, epochs=((1, 1), (3, 11)), lwm=12, ranges=((14, 2),))
    assert at.missing(ahead) == [(13, 14), (17, 17), (19, 20)]
    assert at.kind(replace(ahead, lwm=17, ranges=((18, 2),))) is NONE


@pytest.mark.parametrize(
    "shown",
    [
        {"state": CopyState.NOT_WHOLE},
        {"state": CopyState.QUARANTINED},
        {"lwm": 11},
        {"ranges": ((11, 1),)},
        {"epochs": ((1, 1), (2, 5))},
        {"epochs": ((4, 1),)},
    ],
    ids=["not whole", "damaged", "with numbers that were given out again",
         "with a range of such numbers", "with another epoch", "with a later epoch"],
)  # fmt: skip
def test_a_copy_that_does_not_count_comes_in_full(shown: dict[str, Any]) -> None:
    assert Around().kind(replace(BEHIND, **shown)) is FULL


def test_one_that_was_coming_back_goes_on_with_what_it_has() -> None:
    assert Around().kind(replace(BEHIND, state=CopyState.MOVING)) is HISTORY


def applied(start: int, delta: int) -> State:
    state = state_of()
    state.counters[0].update(start, delta)
    return state


def test_a_log_that_begins_behind_a_number_or_has_applied_it_before_is_no_history() -> None:
    at = Around()
    for start, delta, kind in ((0, 9, HISTORY), (0, 10, FULL), (12, 1, FULL), (4, 4, HISTORY)):
        at.head = applied(start, delta)
        assert at.kind(BEHIND) is kind, (start, delta)


def test_a_log_that_proved_to_lack_something_is_not_asked_again_until_the_copy_was_filled() -> None:
    at = Around()
    at.ways.lacks(BOB, [0], ME)
    assert at.kind(BEHIND) is FULL
    assert at.kind(replace(BEHIND, copy=ME)) is HISTORY
    at.state.counters[1].update(0, 12)
    other = replace(BEHIND, partition=1)
    assert at.kind(other) is HISTORY
    at.ways.lacks(BOB, [1], ME)
    at.ways.filled(BOB, 0)
    assert at.kind(BEHIND) is HISTORY
    assert at.kind(other) is FULL


def test_what_the_log_lacks_for_a_copy_is_known_while_that_is_there() -> None:
    at = Around()
    at.ways.lacks(BOB, [0], ME)
    known = KnownMember(member=BOB.member, address="", since=1, boot=1, present=True)
    me = replace(known, member=ME.member)
    both = Topology(members={BOB.member: known, ME.member: me}, partitions=(in_set(ME),))
    at.ways.decided(both)
    assert at.kind(BEHIND) is FULL
    gone = replace(known, present=False)
    at.ways.decided(replace(both, members={BOB.member: gone, ME.member: me}))
    assert at.kind(BEHIND) is HISTORY
    at.ways.lacks(BOB, [0], ME)
    at.ways.decided(replace(both, members={BOB.member: known, ME.member: replace(me, boot=2)}))
    assert at.kind(BEHIND) is HISTORY, "nor is a log known of who has gone"


def test_what_a_copy_of_the_set_will_lack_is_new() -> None:
    at = Around()
    known = KnownMember(member=BOB.member, address="", since=1, boot=1, present=True)
    members = {BOB.member: known, ME.member: replace(known, member=ME.member)}
    at.ways.lacks(BOB, [0, 1], ME)
    at.ways.decided(Topology(members=members, partitions=(in_set(ME, BOB), in_set(ME))))
    assert at.kind(BEHIND) is HISTORY
    at.state.counters[1].update(0, 12)
    assert at.kind(replace(BEHIND, partition=1)) is FULL


def test_of_several_logs_the_first_one_is_chosen_that_has_not_proved_to_lack_anything() -> None:
    at, cid = Around(), Incarnation(UUID(int=3), 1)
    at.head = applied(0, 12)
    mine = at.reaches(BEHIND)
    reaches = [*mine, LogReach(LogHolder(cid), 10), LogReach(LogHolder(BOB), 1)]
    assert at.ways.choice(BEHIND, mine).wants_log
    chosen = at.ways.choice(BEHIND, reaches)
    assert (chosen.kind, chosen.supplier, chosen.wants_log) == (HISTORY, LogHolder(cid), False)
    at.ways.lacks(BOB, [0], ME)
    assert at.ways.choice(BEHIND, mine).wants_log
    at.ways.lacks(BOB, [0], cid)
    assert at.ways.choice(BEHIND, reaches).supplier == LogHolder(BOB)
    at.ways.lacks(BOB, [0], BOB)
    assert at.ways.choice(BEHIND, reaches).wants_log
    diverged = replace(BEHIND, ranges=((11, 1),))
    assert not at.ways.choice(diverged, reaches).wants_log, "nobody's log would do"


def test_what_was_chosen_lately_is_told() -> None:
    at = Around()
    choice = at.ways.choice(BEHIND, at.reaches(BEHIND))
    for _ in range(EXPLAINED_MAX + 1):
        at.ways.explain(BOB, 0, choice)
    at.now += 2
    told = at.ways.told(0)
    assert len(told) == EXPLAINED_MAX
    assert told[0][:5] == [BOB.member.bytes, 1, 2_000_000, "historical", 10]
    assert at.ways.told(1) == []


# ------------------------------------------------------------------ whom to ask


def test_the_first_member_that_answers_tells_of_its_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology = Topology(index=7)

    async def asked(_environment: object, address: tuple[str, int]) -> Topology:
        if address[0] == "silent":
            await trio.sleep_forever()
        if address[0] == "gone":
            raise ConnectionRefusedError(ECONNREFUSED, "nobody listens there")
        if address[0] == "stranger":
            raise ConnectionRefusedError("it is of another cluster")
        return topology

    monkeypatch.setattr(joining, "_asked", asked)

    async def fetched(*seeds: str) -> tuple[Topology, float]:
        return await fetch_topology(cast(Any, None), seeds), trio.current_time()

    def fetch(*seeds: str) -> tuple[Topology, float]:
        found: tuple[Topology, float] = trio.run(
            fetched, *seeds, clock=MockClock(autojump_threshold=0)
        )
        return found

    assert fetch("gone:1", "there:1", "silent:1") == (topology, 0.0)
    assert fetch("silent:1", "there:1") == (topology, ASK_S_MAX)
    with pytest.raises(ClusterError) as found:
        fetch("silent:1", "gone:2")
    assert "silent:1: it did not answer in time; gone:2: " in str(found.value)
    assert "nobody listens there" in str(found.value)
    for seeds, is_there in (
        (("silent:1", "gone:2"), True),
        (("stranger:1", "gone:2"), True),
        (("gone:1", "gone:2"), False),
    ):
        with pytest.raises(ClusterError) as found:
            fetch(*seeds)
        assert isinstance(found.value, NotEnoughMembersError) is not is_there
