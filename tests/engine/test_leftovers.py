"""Copies that nobody wants a member to have go, once all know that, and others have them (M9)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from support.takeovers import state_of
from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import (
    Incarnation,
    KnownMember,
    MovingCopy,
    PartitionCopies,
    Topology,
)
from tidelog.checkpoints.copies import CopyState
from tidelog.engine.node.leftovers import LOOK_AGAIN_S, Leftovers

ME, BOB, CID = (Incarnation(UUID(int=n), 1) for n in (1, 2, 3))
DROPPED = 7
"""The decision that took this member out of the partition."""


class Around:
    """A member with a copy of partition 0, which is Bob's alone by now."""

    def __init__(self) -> None:
        self.known_by_all = 0
        self.kept = True
        self.now = 100.0
        self.cleared: list[tuple[int, int]] = []
        state = state_of()
        state.counters[0].update(0, 3)
        log: Any = SimpleNamespace(state=state, put_records=self._put)
        aside: Any = self
        self.state = state
        self.leftovers = Leftovers(ME, log, self, aside, lambda: self.now)
        copies = PartitionCopies(
            row=PartitionRow(partition=0, version=1, replicas=(BOB.member,)),
            epoch=1, author=BOB, in_sync=(BOB,), changed=DROPPED, opened=True,
        )  # fmt: skip
        members = {
            one.member: KnownMember(member=one.member, address="", since=1, boot=1, present=True)
            for one in (ME, BOB)
        }
        self.topology = Topology(index=DROPPED, members=members, partitions=(copies,))
        self.decide(self.topology)

    def has_kept(self, _partition: int) -> bool:
        return self.kept

    def decide(self, topology: Topology) -> None:
        self.leftovers.decided(Topology(), topology)

    def tick(self) -> list[tuple[int, int]]:
        self.now += LOOK_AGAIN_S
        self.leftovers.tick()
        return self.cleared

    def _put(self, records: Any, _then: object) -> None:
        self.cleared += [(one.partition, one.admission) for one in records]


def test_a_copy_stays_until_all_who_are_present_know_that_it_is_dropped() -> None:
    around = Around()
    around.known_by_all = DROPPED - 1
    assert around.tick() == []
    around.known_by_all = DROPPED
    assert around.tick() == [(0, DROPPED)]
    assert around.tick() == [(0, DROPPED)], "it is cleared once"


def test_a_copy_stays_while_nobody_that_counts_is_there() -> None:
    around = Around()
    around.known_by_all = DROPPED
    bob = around.topology.members[BOB.member]
    away = {**around.topology.members, BOB.member: replace(bob, present=False)}
    around.decide(replace(around.topology, members=away))
    assert around.tick() == []
    around.decide(around.topology)
    assert around.tick() == [(0, DROPPED)]


def test_a_copy_that_is_wanted_again_or_counts_still_stays() -> None:
    around = Around()
    around.known_by_all = DROPPED
    [copies] = around.topology.partitions
    wanted = replace(copies, goal=(ME.member, BOB.member))
    around.decide(replace(around.topology, partitions=(wanted,)))
    assert around.tick() == []
    for listed in (ME, Incarnation(ME.member, 2)):
        counts = replace(copies, in_sync=(BOB, listed))
        around.decide(replace(around.topology, partitions=(counts,)))
        assert around.tick() == []
    around.decide(around.topology)
    assert around.tick() == [(0, DROPPED)]


def test_a_copy_that_follows_still_as_its_row_came_to_others_stays_until_it_is_let_go() -> None:
    around = Around()
    around.known_by_all = DROPPED
    [copies] = around.topology.partitions
    follows = replace(copies, moving=(MovingCopy(ME, DROPPED - 1),))
    around.decide(replace(around.topology, partitions=(follows,)))
    assert around.tick() == []
    over = replace(copies, moving=(MovingCopy(Incarnation(ME.member, 2), DROPPED - 1),))
    around.decide(replace(around.topology, partitions=(over,)))
    assert around.tick() == [(0, DROPPED)], "another boot has gone, and follows no more"


def test_what_has_nothing_and_what_counts_for_nothing_is_not_cleared() -> None:
    around = Around()
    around.known_by_all = DROPPED
    around.state.copies.states[0] = CopyState.NOT_WHOLE
    assert around.tick() == []
    around = Around()
    around.known_by_all = DROPPED
    around.state.counters[0].reset()
    assert around.tick() == []


def test_a_copy_that_a_reset_has_left_behind_stays_until_it_is_kept_aside() -> None:
    around = Around()
    around.known_by_all, around.kept = DROPPED, False
    assert around.tick() == []
    around.kept = True
    assert around.tick() == [(0, DROPPED)]


def test_the_decision_that_counts_is_the_last_one_of_the_partition() -> None:
    around = Around()
    around.known_by_all = DROPPED
    around.decide(replace(around.topology, index=DROPPED + 5))
    assert around.tick() == [(0, DROPPED)], "later ones are of others"
    around = Around()
    around.known_by_all = DROPPED
    [copies] = around.topology.partitions
    later = replace(copies, changed=DROPPED + 2)
    around.decide(replace(around.topology, partitions=(later,)))
    assert around.tick() == []
    around.known_by_all = DROPPED + 2
    assert around.tick() == [(0, DROPPED + 2)]


def test_one_of_those_that_count_is_enough() -> None:
    around = Around()
    around.known_by_all = DROPPED
    [copies] = around.topology.partitions
    both = replace(copies, in_sync=(BOB, CID))
    around.decide(replace(around.topology, partitions=(both,)))
    assert around.tick() == [(0, DROPPED)]


def test_what_had_nothing_when_it_was_due_is_not_cleared_later() -> None:
    around = Around()
    around.known_by_all = DROPPED
    around.state.copies.states[0] = CopyState.NOT_WHOLE
    around.tick()
    around.state.copies.states[0] = CopyState.OWNING
    assert around.tick() == []
