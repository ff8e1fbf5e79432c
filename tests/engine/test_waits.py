"""What one member notes of how long partitions wait, whoever leads."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import Incarnation, KnownMember, PartitionCopies, Topology
from tidelog.engine.agreement.waits import Waits

ONE, TWO = Incarnation(UUID(int=1), 1), Incarnation(UUID(int=2), 1)


def topology(*epochs: int, opened: bool = False, there: bool = True) -> Topology:
    """A topology with a partition for each epoch."""
    members = {
        one.member: KnownMember(member=one.member, address="", since=1, boot=1, present=there)
        for one in (ONE, TWO)
    }
    copies = PartitionCopies(
        row=PartitionRow(partition=0, version=1, replicas=(ONE.member, TWO.member)),
        epoch=0, author=ONE, in_sync=(ONE, TWO), changed=1, opened=opened,
    )  # fmt: skip
    partitions = tuple(
        replace(copies, row=replace(copies.row, partition=partition), epoch=epoch)
        for partition, epoch in enumerate(epochs)
    )
    return Topology(index=1, members=members, partitions=partitions)


def test_the_example_of_the_module() -> None:
    waits, of = Waits(1.0), topology(3)
    waits.look(of, 10.0)
    for quarter in range(40, 4 * 30 + 1):
        waits.led(of, quarter / 4)
    assert waits.unopened == {(0, 3): 20.0}
    for quarter in range(4 * 40, 4 * 50 + 1):
        waits.led(of, quarter / 4)
        if quarter == 4 * 40:
            assert waits.unopened == {(0, 3): 20.0}, "nobody led between"
    assert waits.unopened == {(0, 3): 30.0}


def test_what_was_decided_behind_the_last_word_begins_to_wait_now() -> None:
    waits = Waits(1.0)
    waits.led(topology(3), 10.0)
    waits.led(topology(3), 11.0)
    waits.led(topology(4, 2), 11.5)
    assert waits.unopened == {(0, 4): 0.0, (1, 2): 0.0}, "another epoch is another wait"
    waits.led(topology(4, 2), 12.0)
    assert waits.unopened == {(0, 4): 0.5, (1, 2): 0.5}


def test_what_is_open_waits_no_more() -> None:
    waits = Waits(1.0)
    waits.led(topology(3), 10.0)
    waits.led(topology(3), 10.5)
    waits.look(topology(3, opened=True), 10.7)
    assert waits.unopened == {}
    waits.look(topology(3), 10.8)
    assert waits.unopened == {(0, 3): 0.0}
    waits.led(topology(3, opened=True), 11.0)
    assert waits.unopened == {}


def test_who_is_away_is_away_since_that_was_known_first() -> None:
    waits, away = Waits(1.0), topology(3, 4, there=False)
    waits.look(away, 10.0)
    waits.look(away, 20.0)
    assert waits.deserted == {(0, 3): 10.0, (1, 4): 10.0}
    waits.look(topology(3, 4), 30.0)
    assert waits.deserted == {}
    waits.look(away, 40.0)
    assert waits.deserted == {(0, 3): 40.0, (1, 4): 40.0}
    waits.look(topology(3, 5, there=False), 50.0)
    assert waits.deserted == {(0, 3): 40.0, (1, 5): 50.0}, "somebody was there between"
