"""What a member remembers of exchanges, and how long each phase of a takeover has lasted."""

from __future__ import annotations

from typing import Any

import pytest

from support.exchanges import (
    ADA,
    ADA_1,
    BOB,
    BOB_1,
    CID,
    CID_1,
    Deciding,
    gone,
    joined,
    opened,
    serving,
    takeover,
)
from tidelog.affinity.changes import CopiesAdded, CopiesAdmitted, CopiesRemoved, TopologyChange
from tidelog.affinity.topology import Incarnation
from tidelog.engine.node.exchanges import EXCHANGES_MAX, ExchangeRecord
from tidelog.engine.replication.opening import OpeningEpoch, PhaseTime
from tidelog.engine.replication.reports import Report

LAST = EXCHANGES_MAX
FROM_ADA = (takeover(0, 2, BOB_1, CID_1),)


class Seen:
    """A member that sees what is decided, and opens what it is told to."""

    def __init__(self) -> None:
        self.deciding: Deciding = serving()
        self.record = ExchangeRecord(self.deciding.topology)
        self.now = 100.0

    def decide(self, *changes: TopologyChange, after: float = 0.0) -> None:
        self.now += after
        self.deciding.decide(*changes)
        self.record.decided(self.deciding.topology, self.deciding.decisions, self.now)

    def opening(self, partition: int = 0) -> OpeningEpoch:
        copies = self.deciding.topology.partitions[partition]
        found = OpeningEpoch(copies, self.now)
        self.record.begun(found)
        return found

    def reported(self, takeover: OpeningEpoch, copy: Incarnation, after: float) -> None:
        self.now += after
        takeover.reported(report(copy, takeover))

    def stored(self, takeover: OpeningEpoch, copy: Incarnation, after: float) -> None:
        self.now += after
        takeover.stored(copy)

    def enter(self, takeover: OpeningEpoch, phase: Any, after: float = 0.0) -> None:
        self.now += after
        takeover.enter(phase, self.now)

    def opened(self, takeover: OpeningEpoch, after: float = 0.0) -> None:
        self.now += after
        self.record.opened(takeover, self.now)

    def told(self, last: int = LAST) -> list[dict[str, Any]]:
        return self.record.told(last, self.now)

    def newest(self) -> dict[str, Any]:
        return self.told(1)[0]


def report(copy: Incarnation, takeover: OpeningEpoch) -> Report:
    return Report(
        copy=copy,
        partition=takeover.partition,
        epoch=takeover.epoch,
        lwm=0,
        ranges=(),
        hwm=0,
        epochs=((1, 1),),
    )


# ------------------------------------------------------------------ the phases of a takeover


def test_the_phases_of_a_takeover_are_together_as_long_as_it_lasts() -> None:
    seen = Seen()
    seen.decide(gone(ADA_1), *FROM_ADA)
    one = seen.opening()
    assert one.steps(seen.now) == [PhaseTime("reports", 0.0, BOB_1)]
    seen.reported(one, BOB_1, after=1)
    assert one.steps(seen.now) == [PhaseTime("reports", 1.0, CID_1)], "who is waited for"
    seen.reported(one, CID_1, after=2)
    seen.enter(one, "logging")
    seen.enter(one, "storing", after=4)
    seen.stored(one, CID_1, after=8)
    seen.enter(one, "opening")
    assert one.steps(seen.now + 16) == [
        PhaseTime("reports", 3.0, CID_1),
        PhaseTime("logging", 4.0, None),
        PhaseTime("storing", 8.0, CID_1),
        PhaseTime("opening", 16.0, None),
    ]


def test_a_phase_that_is_tried_again_goes_on() -> None:
    # A disk without space lets it be tried with each tick: what is kept must not grow.
    seen = Seen()
    seen.decide(gone(ADA_1), *FROM_ADA)
    one = seen.opening()
    seen.reported(one, CID_1, after=1)
    seen.reported(one, BOB_1, after=1)
    for _ in range(3):
        seen.enter(one, "logging")
        seen.enter(one, "reports", after=2)
    assert one.steps(seen.now + 1) == [
        PhaseTime("reports", 3.0, BOB_1),
        PhaseTime("logging", 6.0, None),
    ]


def test_a_report_that_comes_twice_or_from_somebody_else_is_not_waited_for() -> None:
    seen = Seen()
    seen.decide(gone(ADA_1), *FROM_ADA)
    one = seen.opening()
    for copy in (BOB_1, CID_1, BOB_1, ADA_1):
        seen.reported(one, copy, after=0)
    assert one.steps(seen.now) == [PhaseTime("reports", 0.0, CID_1)]


def test_who_lacks_something_is_waited_for_by_a_takeover_that_is_stuck() -> None:
    seen = Seen()
    seen.decide(gone(ADA_1), *FROM_ADA)
    one = seen.opening()
    for copy in (CID_1, BOB_1):
        seen.reported(one, copy, after=0)
    seen.enter(one, "stuck", after=1)
    one.left_out = frozenset({CID_1})
    assert one.steps(seen.now + 2)[1] == PhaseTime("stuck", 2.0, CID_1)
    assert seen.newest()["blocked"] == [["stuck", [CID.bytes], [0]]]


# ------------------------------------------------------------------ what is remembered


def test_an_exchange_tells_its_cause_and_counts_and_is_over_once_all_is_open() -> None:
    seen = Seen()
    seen.decide(gone(ADA_1), *FROM_ADA, CopiesRemoved(copy=ADA_1, partitions=(1, 2)))
    one = seen.opening()
    told = seen.newest()
    assert told["decision"] == 5
    assert told["causes"] == [
        ["gone", ADA.bytes, [], 0],
        ["from_gone", ADA.bytes, [BOB.bytes], 1],
        ["removed", ADA.bytes, [], 2],
    ]
    counts = [told[name] for name in ("taken_over", "removed", "admitted", "added")]
    assert counts == [1, 2, 0, 0]
    assert told["authors"] == [[BOB.bytes, 1, 0, 0, []]]
    seen.reported(one, BOB_1, after=0.5)
    told = seen.newest()
    assert told["blocked"] == [["reports", [CID.bytes], [0]]]
    assert (told["closed"], told["phases"]) == (
        [500_000, 0],
        [["reports", 500_000, 0, CID.bytes]],
    )
    seen.reported(one, CID_1, after=0.25)
    seen.enter(one, "logging")
    seen.enter(one, "storing", after=0.125)
    seen.stored(one, CID_1, after=0.0625)
    seen.enter(one, "opening")
    seen.opened(one, after=0.03125)
    seen.now += 10
    told = seen.newest()
    assert (told["ago_us"], told["blocked"]) == (10_968_750, [])
    assert told["authors"] == [[BOB.bytes, 1, 1, 0, []]]
    assert told["phases"] == [
        ["reports", 750_000, 0, CID.bytes],
        ["logging", 125_000, 0, None],
        ["storing", 62_500, 0, CID.bytes],
        ["opening", 31_250, 0, None],
    ]
    assert told["closed"] == [sum(phase[1] for phase in told["phases"]), 0]


def test_of_several_partitions_the_slowest_is_told_in_each_phase() -> None:
    seen = Seen()
    seen.decide(gone(ADA_1), *FROM_ADA, takeover(2, 2, BOB_1, CID_1))
    first, second = seen.opening(0), seen.opening(2)
    for one in (first, second):
        seen.reported(one, BOB_1, after=0)
    seen.reported(second, CID_1, after=1)
    seen.enter(second, "logging")
    seen.reported(first, CID_1, after=1)
    seen.enter(first, "logging")
    seen.opened(first, after=1)
    assert seen.newest()["blocked"] == [["logging", [], [2]]]
    seen.opened(second, after=4)
    told = seen.newest()
    assert told["phases"] == [["reports", 2_000_000, 0, CID.bytes], ["logging", 6_000_000, 2, None]]
    assert told["closed"] == [7_000_000, 2]
    assert told["authors"] == [[BOB.bytes, 2, 2, 0, []]]


def test_who_blocks_is_grouped_by_phase_and_names() -> None:
    seen = Seen()
    seen.decide(gone(ADA_1), *FROM_ADA, *(takeover(p, 2, BOB_1, CID_1) for p in (1, 2)))
    takeovers = [seen.opening(partition) for partition in range(3)]
    for one in takeovers:
        seen.reported(one, BOB_1, after=0)
    seen.reported(takeovers[1], CID_1, after=0)
    seen.enter(takeovers[1], "storing")
    blocked = [["reports", [CID.bytes], [0, 2]], ["storing", [CID.bytes], [1]]]
    assert seen.newest()["blocked"] == blocked


def test_what_a_later_epoch_follows_before_it_is_open_is_superseded() -> None:
    seen = Seen()
    seen.decide(gone(ADA_1), *FROM_ADA)
    one = seen.opening()
    seen.reported(one, BOB_1, after=1)
    seen.decide(takeover(0, 3, BOB_1), after=5)
    first, second = seen.told(2)
    assert first["authors"] == [[BOB.bytes, 1, 0, 0, [[6, 1]]]]
    assert (first["closed"], first["blocked"]) == ([6_000_000, 0], [])
    assert first["phases"] == [["reports", 6_000_000, 0, CID.bytes]], "who was waited for"
    assert second["causes"] == [["without", BOB.bytes, [CID.bytes], 1]]
    seen.opened(one, after=1)  # too late: another epoch was given meanwhile
    superseded, going = (told["authors"] for told in seen.told(2))
    assert superseded == [[BOB.bytes, 1, 0, 0, [[6, 1]]]]
    assert going == [[BOB.bytes, 1, 0, 0, []]]
    two = seen.opening()
    seen.opened(two, after=1)
    assert seen.told(2)[1]["authors"] == [[BOB.bytes, 1, 1, 0, []]]
    assert seen.told(2)[0]["closed"] == [6_000_000, 0], "it has ended"


def test_what_others_open_is_over_once_the_log_says_so() -> None:
    seen = Seen()
    seen.decide(gone(ADA_1), *FROM_ADA)
    assert seen.newest()["authors"] == [[BOB.bytes, 1, 0, 0, []]]
    seen.decide(opened((0, 2)))
    told = seen.newest()
    assert told["decision"] == 5, "a decision of what is open is no exchange"
    assert told["authors"] == [[BOB.bytes, 1, 1, 0, []]]
    assert (told["closed"], told["phases"]) == (None, []), "its author knows how long it took"
    seen.decide(takeover(0, 3, CID_1, BOB_1))
    assert seen.told(2)[0]["authors"] == [[BOB.bytes, 1, 1, 0, []]], "it was open before that"


def test_whether_a_copy_alone_was_open_nobody_else_knows() -> None:
    seen = Seen()
    seen.decide(gone(ADA_1), takeover(0, 2, BOB_1))
    seen.decide(gone(BOB_1))
    seen.decide(*joined(Incarnation(BOB, 2)), takeover(0, 3, Incarnation(BOB, 2)))
    assert seen.told(3)[0]["authors"] == [[BOB.bytes, 1, 0, 1, []]]


def test_decisions_that_take_effect_together_are_exchanges_of_their_own() -> None:
    seen = Seen()
    for changes in ([gone(ADA_1), *FROM_ADA], [takeover(0, 3, BOB_1)]):
        seen.deciding.decide(*changes)
    then = seen.deciding.topology
    seen.deciding.decide(gone(CID_1))  # it is known, and takes effect later
    seen.record.decided(then, seen.deciding.decisions, seen.now)
    first, second = seen.told()
    assert [first["decision"], second["decision"]] == [5, 6]
    assert first["authors"] == [[BOB.bytes, 1, 0, 0, [[6, 1]]]]
    assert second["causes"] == [["without", BOB.bytes, [CID.bytes], 1]]
    seen.record.decided(seen.deciding.topology, seen.deciding.decisions, seen.now)
    assert seen.newest()["causes"] == [["gone", CID.bytes, [], 0]]


def test_of_decisions_that_are_not_kept_nothing_is_told_and_what_went_before_ends() -> None:
    seen = Seen()
    seen.decide(gone(ADA_1), *FROM_ADA)
    seen.opening()
    seen.deciding.decide(takeover(0, 3, BOB_1))
    seen.deciding.decide(gone(CID_1))
    seen.record.decided(seen.deciding.topology, seen.deciding.decisions[-1:], seen.now)
    [told] = seen.told()
    assert told["authors"] == [[BOB.bytes, 1, 0, 0, [[6, 1]]]]
    assert told["blocked"] == []


def test_so_many_exchanges_are_remembered_and_the_newest_of_them_told() -> None:
    seen, wanted = Seen(), (0,)
    for number in range(1, EXCHANGES_MAX):
        seen.decide(CopiesRemoved(copy=CID_1, partitions=wanted), after=1)
        seen.decide(CopiesAdmitted(copy=CID_1, partitions=wanted), after=1)
        seen.decide(CopiesAdded(copy=CID_1, partitions=wanted), after=1)
        assert len(seen.told(10 * EXCHANGES_MAX)) == min(3 * number, EXCHANGES_MAX)
    newest = seen.deciding.topology.index
    assert [told["decision"] for told in seen.told(2)] == [newest - 1, newest]
    assert [told["ago_us"] for told in seen.told(2)] == [1_000_000, 0]


@pytest.mark.parametrize("last", [0, -1])
def test_none_are_told_if_none_are_asked_for(last: int) -> None:
    seen = Seen()
    seen.decide(gone(ADA_1))
    assert seen.told(last) == []
    assert len(seen.told(1 << 63)) == 1


def test_a_takeover_of_before_is_none_of_an_exchange() -> None:
    seen = Seen()
    one = seen.opening()
    seen.opened(one)
    assert seen.told() == []
