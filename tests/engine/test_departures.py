"""Members that ask to leave: who is let go, who hands over first, and who just stops."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tidelog.affinity.table import PartitionRow
from tidelog.affinity.takeovers import GivenUp
from tidelog.affinity.topology import Incarnation, KnownMember, PartitionCopies, Topology
from tidelog.engine.agreement.departures import HAND_OVER, TOO_FEW, Departures
from tidelog.engine.agreement.timing import Timing

TIMING = Timing()


def one(number: int) -> Incarnation:
    return Incarnation(UUID(int=number), 1)


def cluster(members: int, *sets: tuple[int, ...]) -> Topology:
    """Return a topology whose partitions have these sets, their authors first."""
    return Topology(
        index=1,
        baseline=tuple(UUID(int=number) for number in range(members)),
        members={
            UUID(int=number): KnownMember(
                member=UUID(int=number), address="", since=1, boot=1, present=True
            )
            for number in range(members)
        },
        partitions=tuple(
            PartitionCopies(
                row=PartitionRow(
                    partition=partition,
                    version=1,
                    replicas=tuple(UUID(int=number) for number in numbers),
                ),
                epoch=1,
                author=one(numbers[0]),
                in_sync=tuple(map(one, numbers)),
                changed=1,
                opened=True,
            )
            for partition, numbers in enumerate(sets)
        ),
    )


def test_who_serves_nothing_goes_after_a_heartbeat() -> None:
    departures, topology = Departures(TIMING), cluster(3, (0, 1, 2))
    departures.asked(one(1), 5.0)
    departures.asked(one(1), 5.1)
    assert departures.waits(one(1), topology, 5.0 + TIMING.heartbeat - 0.01)
    assert not departures.waits(one(1), topology, 5.0 + TIMING.heartbeat)
    assert departures.objection(one(1), topology, {}) is None


def test_who_serves_what_others_have_hands_over_first() -> None:
    departures, topology = Departures(TIMING), cluster(3, (1, 2), (0, 1), (0, 2))
    departures.asked(one(0), 0.0)
    assert departures.objection(one(0), topology, {}) == HAND_OVER
    assert departures.objection(one(0), topology, {1: GivenUp(1)}) == HAND_OVER
    assert departures.objection(one(0), topology, {1: GivenUp(1), 2: GivenUp(0)}) == HAND_OVER
    assert departures.objection(one(0), topology, {1: GivenUp(1), 2: GivenUp(1)}) is None


def test_what_nobody_else_has_is_not_handed_over() -> None:
    departures, topology = Departures(TIMING), cluster(3, (0,), (0, 1))
    departures.asked(one(0), 0.0)
    away = {
        **topology.members,
        one(1).member: replace(topology.members[one(1).member], present=False),
    }
    assert departures.objection(one(0), topology, {}) == HAND_OVER
    assert departures.objection(one(0), cluster(3, (0,), (1,)), {}) is None
    departures = Departures(TIMING)
    departures.asked(one(0), 0.0)
    assert departures.objection(one(0), replace(topology, members=away), {}) == TOO_FEW


def test_of_those_that_stop_together_nobody_goes_if_too_few_would_stay() -> None:
    departures, topology = Departures(TIMING), cluster(5, (0, 1), (1, 2))
    for number in (0, 1):
        departures.asked(one(number), 0.0)
        assert departures.waits(one(number), topology, 0.1)
    departures.asked(one(2), 0.1)
    for number in (0, 1, 2):
        assert not departures.waits(one(number), topology, 0.1), "all know at once"
        assert departures.objection(one(number), topology, {}) == TOO_FEW


def test_the_only_member_of_a_cluster_just_stops() -> None:
    departures, topology = Departures(TIMING), cluster(1, (0,))
    departures.asked(one(0), 0.0)
    assert not departures.waits(one(0), topology, 0.0)
    assert departures.objection(one(0), topology, {}) == TOO_FEW


def test_what_others_had_a_copy_of_that_are_away_is_not_handed_over() -> None:
    departures, topology = Departures(TIMING), cluster(5, (0, 1))
    departures.asked(one(0), 0.0)
    assert departures.objection(one(0), topology, {}) == HAND_OVER
    gone = replace(topology.members[one(1).member], present=False)
    topology = replace(topology, members={**topology.members, gone.member: gone})
    assert departures.objection(one(0), topology, {}) is None


def test_who_has_no_say_in_decisions_is_not_counted_among_those_that_stay() -> None:
    departures, topology = Departures(TIMING), cluster(4, (3, 2))
    topology = replace(topology, baseline=topology.baseline[:3])
    for number in (0, 1):
        departures.asked(one(number), 0.0)
    assert departures.too_few(topology), "one of three that decide, and another"
