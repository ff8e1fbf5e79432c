"""What a user is told of a partition whose listed copies are not there as they were listed."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import Incarnation, KnownMember, PartitionCopies, Topology
from tidelog.engine.node.partitions import unavailable

MEMBERS = [UUID(int=number << 96) for number in (1, 2, 3)]
LISTED = [Incarnation(member, 1) for member in MEMBERS]


@pytest.mark.parametrize(
    ("listed", "back", "told", "next_step"),
    [
        (1, "", "is unavailable: its data is at a:1 (00000001), which is away", "that member"),
        (2, "", "a:1 (00000001) and a:2 (00000002), which are away", "these members"),
        (3, "13", "waits for a:2 (00000002), which is away: all who have copies ended", "seconds"),
        (3, "3", "a:1 (00000001) and a:2 (00000002), which are away: all who", "what is away"),
        (2, "12", "is about to be opened: all who have copies", "some seconds"),
    ],
)
def test_who_is_away_is_named_and_nobody_else(
    listed: int, back: str, told: str, next_step: str
) -> None:
    # All copies were called away when one was, behind a power cut.
    known = [
        KnownMember(member=member, address=f"a:{number}", since=1, boot=1)
        for number, member in enumerate(MEMBERS, 1)
    ]
    members = {
        one.member: replace(one, boot=2, present=True) if str(number) in back else one
        for number, one in enumerate(known, 1)
    }
    copies = PartitionCopies(
        row=PartitionRow(partition=0, version=1, replicas=tuple(MEMBERS[:listed])),
        epoch=1,
        author=LISTED[0],
        in_sync=tuple(LISTED[:listed]),
        changed=1,
        opened=True,
    )
    topology = Topology(index=1, baseline=tuple(MEMBERS), members=members, partitions=(copies,))
    error = unavailable(0, copies, topology)
    assert told in str(error)
    assert next_step in (error.hint or "")
    assert error.partition == 0


def test_of_a_cluster_that_has_just_begun_nobody_has_ended() -> None:
    first, *others = (
        KnownMember(member=member, address=f"a:{number}", since=1)
        for number, member in enumerate(MEMBERS, 1)
    )
    members = {one.member: one for one in (replace(first, boot=1, present=True), *others)}
    never = [Incarnation(member, 0) for member in MEMBERS]
    copies = PartitionCopies(
        row=PartitionRow(partition=0, version=1, replicas=tuple(MEMBERS)),
        epoch=1, author=never[0], in_sync=tuple(never), changed=1, opened=False,
    )  # fmt: skip
    topology = Topology(index=2, baseline=tuple(MEMBERS), members=members, partitions=(copies,))
    error = unavailable(0, copies, topology)
    assert str(error).startswith(
        "partition 0 waits for a:2 (00000002) and a:3 (00000003) to be there for the first time"
    )
    assert "has not been started yet" in (error.hint or "")
