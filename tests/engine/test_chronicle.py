"""Chronicle by itself: what each change of decisions, leases and coordinators has it tell."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import Incarnation, KnownMember, PartitionCopies, Topology
from tidelog.engine.agreement.journal_format import NO_TERM, Term
from tidelog.engine.node.chronicle import Chronicle, _became
from tidelog.engine.node.partitions import Partitions

N1, N2 = UUID(int=1 << 120), UUID(int=2 << 120)
ME, EARLIER_ME, OTHER = Incarnation(N1, 2), Incarnation(N1, 1), Incarnation(N2, 1)
MEMBERS = {
    N1: KnownMember(member=N1, address="n1:7400", since=1, boot=2, present=True),
    N2: KnownMember(member=N2, address="n2:7400", since=1, boot=1, present=True),
}
Given = tuple[Incarnation, int]
"""Who serves a partition, and in which epoch."""


def gives(*given: Given, members: Mapping[UUID, KnownMember] = MEMBERS) -> Topology:
    """Return a topology that gives partition 0, 1, ... so, with both members in all sets."""
    partitions = [
        PartitionCopies(
            row=PartitionRow(partition=partition, version=1, replicas=(N1, N2)),
            epoch=epoch,
            author=author,
            in_sync=(author, OTHER if author != OTHER else ME),
            changed=1,
            opened=True,
        )
        for partition, (author, epoch) in enumerate(given)
    ]
    return Topology(members=members, partitions=tuple(partitions))


class Told:
    """A chronicle, and what it tells."""

    def __init__(self, caplog: pytest.LogCaptureFixture, topology: Topology) -> None:
        caplog.set_level(logging.INFO, "tidelog.node")
        self._caplog = caplog
        self.has_majority = True
        agreement: Any = SimpleNamespace(
            me=ME,
            coordinator=NO_TERM,
            leads=False,
            lease=SimpleNamespace(end=0.0),
            topology=topology,
            is_author=lambda copies: copies.author == ME,
            reaches_majority=lambda _now: self.has_majority,
        )
        self.agreement = agreement
        self.partitions = Partitions(self.agreement, 0.0)
        self.chronicle = Chronicle("/m", "n1:1", self.agreement, self.partitions)

    def decided(self, topology: Topology, now: float) -> list[str]:
        self.agreement.topology = topology
        self.chronicle.decided(topology, now)
        return self.lines()

    def opened(self, partition: int, epoch: int, now: float) -> list[str]:
        self.partitions.opened([(partition, epoch)])
        self.chronicle.look(now)
        return self.lines()

    def led(self, term: Term, *, leads: bool = False) -> list[str]:
        self.agreement.coordinator, self.agreement.leads = term, leads
        self.chronicle.look(1.0)
        return self.lines()

    def lines(self) -> list[str]:
        texts = [record.getMessage().split(": ", 2)[2] for record in self._caplog.records]
        self._caplog.clear()
        return [text.removeprefix("n1:7400 (01000000) ") for text in texts]


def test_all_that_is_to_be_opened_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog, gives((OTHER, 1), (OTHER, 1), (OTHER, 1)))
    assert told.decided(gives((OTHER, 1), (OTHER, 1), (ME, 2)), 1.0) == [
        "is to open 1 partition by decision 0, of 1 that it serves then: 2"
    ]
    assert told.opened(2, 2, 1.5) == ["has opened 1 partition after 0.500 s"]
    assert told.decided(gives((ME, 2), (OTHER, 1), (ME, 2)), 10.0) == [
        "is to open 1 partition by decision 0, of 2 that it serves then: 0"
    ]
    assert told.decided(gives((ME, 2), (ME, 2), (ME, 2)), 20.0) == [
        "is to open 1 partition by decision 0, of 3 that it serves then: 1"
    ]
    assert told.opened(1, 2, 20.5) == []
    assert told.opened(0, 2, 21.0) == ["has opened 2 partitions after 11.000 s"], "of the first"
    assert told.opened(0, 2, 22.0) == []


def test_what_is_taken_before_it_was_opened_is_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told(caplog, gives((OTHER, 1), (OTHER, 1)))
    told.decided(gives((ME, 2), (ME, 2)), 10.0)
    assert told.decided(gives((OTHER, 3), (ME, 2)), 11.0) == ["serves 1 partition no more: 0"]
    assert told.opened(1, 2, 11.0) == ["has opened 1 partition after 1.000 s"]


def test_a_partition_in_another_epoch_is_to_be_opened_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told(caplog, gives((OTHER, 1)))
    told.decided(gives((ME, 2)), 1.0)
    told.opened(0, 2, 1.5)
    assert told.decided(gives((ME, 3)), 2.0) == [
        "is to open 1 partition by decision 0, of 1 that it serves then: 0"
    ]
    copies = replace(gives((ME, 3)).partitions[0], opened=False)
    assert told.decided(Topology(members=MEMBERS, partitions=(copies,)), 3.0) == []


def test_the_partitions_of_an_earlier_boot_are_not_those_of_this_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told(caplog, gives((EARLIER_ME, 1), (OTHER, 1)))
    assert told.decided(gives((OTHER, 2), (OTHER, 1)), 1.0) == []
    assert told.decided(gives((EARLIER_ME, 3), (OTHER, 1)), 1.0) == []


@pytest.mark.parametrize(("count", "more"), [(15, ""), (16, ""), (17, " and others")])
def test_a_line_names_sixteen_partitions(
    caplog: pytest.LogCaptureFixture, count: int, more: str
) -> None:
    told = Told(caplog, Topology(members=MEMBERS))
    named = ", ".join(map(str, range(min(count, 16)))) + more
    assert told.decided(gives(*[(ME, 2)] * count), 1.0) == [
        f"is to open {count} partitions by decision 0, of {count} that it serves then: {named}"
    ]
    assert told.decided(Topology(members=MEMBERS), 1.0) == [
        f"serves {count} partitions no more: {named}"
    ]


def test_who_comes_and_goes_is_named_and_this_member_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told(caplog, gives(members={}))
    assert told.decided(gives(), 1.0) == ["hears that n2:7400 (02000000) has joined, as boot 1"]
    alone = {N1: replace(MEMBERS[N1], present=False)}
    assert told.decided(gives(members=alone), 2.0) == [
        "hears that n2:7400 (02000000) is not a member any more"
    ]


def test_a_coordinator_is_told_in_each_of_its_terms_and_that_it_leads_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told(caplog, gives())
    assert told.led(Term(3, N2)) == ["is led by n2:7400 (02000000), in term 3"]
    assert told.led(Term(3, N2)) == []
    assert told.led(Term(5, N2)) == ["is led by n2:7400 (02000000), in term 5"]
    assert told.led(Term(6, N1), leads=True) == ["leads, in term 6"]
    assert told.led(Term(6, N1)) == ["leads no more, in term 6"], "it reaches too few"
    assert told.led(Term(7, UUID(int=9))) == [f"is led by {UUID(int=9)}, in term 7"]


def test_a_lease_has_ended_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog, gives())
    told.agreement.lease.end = 5.0
    told.chronicle.look(4.9)
    assert [text.split(":")[0] for text in told.lines()] == ["has a lease"]
    told.chronicle.look(5.0)
    assert [text.split(":")[0] for text in told.lines()] == ["has no lease any more"]


def test_a_member_that_no_decision_knows_has_the_address_that_it_was_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told(caplog, gives(members={}))
    told.chronicle.begun()
    assert told.lines() == ["the member at /m begins as boot 2 of n1:1 (01000000)"]


def test_who_has_not_begun_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    # A copy of the directory of a member that runs is refused: that member goes on.
    told = Told(caplog, gives())
    told.chronicle.ended()
    assert told.lines() == []
    told.chronicle.begun()
    told.chronicle.ended()
    assert told.lines()[1:] == ["has ended"]


def test_that_no_majority_is_reached_is_a_warning_and_that_one_is_again_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told(caplog, replace(gives(), baseline=(N1, N2)))
    for told.has_majority in (False, True, False, False, True):
        told.chronicle.look(1.0)
    text = "n1:7400 (01000000), with the store /m, reaches %s majority of 2 members"
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", f"node.majority: Tidelog: {text % 'no'}"),
        ("INFO", f"node.majority: Tidelog: {text % 'a'}"),
    ]


def test_who_starts_and_reaches_no_majority_says_so_after_some_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told(caplog, replace(gives(), baseline=(N1, N2)))
    told.has_majority = False
    for now in (7.0, 9.0, 11.9):
        told.chronicle.look(now)
    assert told.lines() == []
    told.chronicle.look(12.0)
    text = "n1:7400 (01000000), with the store /m, reaches no majority of 2 members"
    assert [one.getMessage() for one in caplog.records] == [f"node.majority: Tidelog: {text}"]


def test_another_baseline_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog, replace(gives(), baseline=(N1,)))
    both = replace(gives(), baseline=(N1, N2))
    assert told.decided(both, 1.0) == [
        "hears that these are the baseline: n1:7400 (01000000), n2:7400 (02000000)"
    ]
    assert told.decided(both, 1.0) == []


def test_who_leads_tells_whose_copies_count_and_whose_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    both = gives((OTHER, 1), (OTHER, 1), (OTHER, 1))
    alone = [replace(copies, in_sync=(OTHER,)) for copies in both.partitions]
    fewer = replace(both, partitions=(*alone[:2], both.partitions[2]))
    told = Told(caplog, both)
    assert told.decided(fewer, 1.0) == [], "the coordinator says so"
    told.decided(both, 1.0)
    told.agreement.leads = True
    assert told.decided(fewer, 1.0) == [
        "decides that the copy of n1:7400 (01000000) counts no more for 2 partitions"
    ]
    one_more = replace(both, partitions=(alone[0], *both.partitions[1:]))
    assert told.decided(one_more, 1.0) == [
        "decides that the copy of n1:7400 (01000000) counts for 1 partition more"
    ]


KNOWN = MEMBERS[N1]
AWAY = replace(KNOWN, present=False)
LOST = replace(AWAY, lost=True)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, KNOWN, "has joined, as boot 2"),
        (None, replace(AWAY, boot=0), "is to join"),
        (None, AWAY, "is away"),
        (None, LOST, "is lost: its disk counts no more"),
        (KNOWN, None, "is not a member any more"),
        (KNOWN, AWAY, "is gone: others are to serve what it did"),
        (AWAY, KNOWN, "is there, as boot 2"),
        (KNOWN, replace(KNOWN, boot=3), "is there, as boot 3"),
        (KNOWN, LOST, "is lost: its disk counts no more"),
        (LOST, replace(LOST, wanted=False), None),
        (KNOWN, replace(KNOWN, wanted=False), "is asked to leave the baseline"),
        (KNOWN, replace(KNOWN, wanted=True), "is asked to be of the baseline"),
        (replace(KNOWN, wanted=True), KNOWN, None),
        (AWAY, AWAY, None),
    ],
)
def test_what_becomes_of_a_member(
    before: KnownMember | None, after: KnownMember | None, told: str | None
) -> None:
    assert _became(before, after) == told
