"""Decisions and topologies as bytes: what is written is read, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from support.decisions import history_of
from tidelog.affinity.changes import (
    BaselineChanged,
    Begun,
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    Decision,
    EpochsOpened,
    GoalsReached,
    GoalsSet,
    Joined,
    LossPolicySet,
    MemberGone,
    MemberLost,
    MemberWanted,
    NamespaceDropped,
    NamespaceMade,
    NamespaceRenamed,
    PartitionReset,
    Takeover,
    Touched,
    TransactionResolved,
)
from tidelog.affinity.partitions import Space
from tidelog.affinity.topology import (
    LOSS_POLICIES,
    Incarnation,
    Loss,
    MovingCopy,
    Resolution,
    Topology,
)
from tidelog.engine.agreement.encoding import (
    decision_bytes,
    decision_of,
    topology_bytes,
    topology_of,
)
from tidelog.engine.node.member_files import first_decision
from tidelog.wal.records.shapes import UndecodableRecordError

ADA, BOB = UUID(int=1), UUID(int=2)
ADA_1, BOB_2 = Incarnation(ADA, 1), Incarnation(BOB, 2)

NUMBERS = st.integers(0, (1 << 63) - 1)
TEXT = st.text(max_size=8)
INCARNATIONS = st.builds(Incarnation, st.uuids(), NUMBERS)
CHANGES = st.one_of(
    st.builds(
        Begun,
        cluster=st.uuids(),
        store=st.uuids(),
        history=st.uuids(),
        members=st.lists(st.tuples(st.uuids(), TEXT), max_size=3).map(tuple),
        spaces=st.lists(st.builds(Space, NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple),
        rows=st.lists(st.lists(st.uuids(), max_size=3).map(tuple), max_size=3).map(tuple),
    ),
    st.builds(
        Joined,
        incarnation=INCARNATIONS,
        nonce=st.binary(max_size=8),
        address=TEXT,
        voter=st.booleans(),
    ),
    st.builds(MemberGone, incarnation=INCARNATIONS),
    st.builds(
        Takeover,
        partition=NUMBERS,
        epoch=NUMBERS,
        author=INCARNATIONS,
        in_sync=st.lists(INCARNATIONS, max_size=3).map(tuple),
    ),
    st.builds(Touched, partition=NUMBERS),
    st.builds(
        NamespaceMade,
        name=TEXT,
        key_codec=TEXT,
        key_version=NUMBERS,
        value_codec=TEXT,
        value_version=NUMBERS,
        space=NUMBERS,
    ),
    st.builds(NamespaceRenamed, old=TEXT, new=TEXT),
    st.builds(NamespaceDropped, name=TEXT),
    st.builds(EpochsOpened, opened=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple)),
    *(
        st.builds(change, copy=INCARNATIONS, partitions=st.lists(NUMBERS, max_size=3).map(tuple))
        for change in (CopiesRemoved, CopiesAdmitted, CopiesAdded)
    ),
    st.builds(BaselineChanged, baseline=st.lists(st.uuids(), max_size=3).map(tuple)),
    st.builds(MemberWanted, member=st.uuids(), wanted=st.booleans()),
    st.builds(
        GoalsSet,
        members=st.lists(st.uuids(), max_size=3).map(tuple),
        goals=st.lists(
            st.tuples(NUMBERS, st.lists(st.uuids(), max_size=3).map(tuple)), max_size=3
        ).map(tuple),
    ),
    st.builds(MemberLost, member=st.uuids()),
    st.builds(
        PartitionReset,
        partition=NUMBERS,
        epoch=NUMBERS,
        author=INCARNATIONS,
        empty=st.booleans(),
        opened=NUMBERS,
        upto=NUMBERS,
        time=NUMBERS,
    ),
    st.builds(LossPolicySet, policy=st.sampled_from(LOSS_POLICIES)),
    st.builds(
        TransactionResolved,
        tx_id=st.binary(min_size=16, max_size=16),
        attempt=NUMBERS,
        commits=st.booleans(),
        by_hand=st.booleans(),
        time=NUMBERS,
        participants=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple),
        missing=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple),
    ),
    st.builds(GoalsReached, partitions=st.lists(NUMBERS, max_size=3).map(tuple)),
)
DECISIONS = st.builds(Decision, NUMBERS, st.lists(CHANGES, max_size=4).map(tuple))
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 20), TEXT, st.binary(max_size=17)),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=20,
)


@given(DECISIONS)
def test_a_decision_is_read_as_it_was_written(decision: Decision) -> None:
    assert decision_of(decision_bytes(decision)) == decision


@given(st.integers(0), st.integers(0, 20))
@settings(max_examples=50)
def test_a_topology_is_read_as_it_was_written(seed: int, length: int) -> None:
    topology = history_of(seed, length)[1][-1]
    assert topology_of(topology_bytes(topology)) == topology


def test_bytes_are_as_they_always_were() -> None:
    """What is on a disk is read for ever."""
    decision = Decision(
        7,
        (
            Begun(
                cluster=UUID(int=9),
                store=UUID(int=10),
                history=UUID(int=11),
                members=((ADA, "a:1"), (BOB, "b:1")),
                spaces=(Space(0, 2, 1),),
                rows=((ADA, BOB), (BOB,)),
            ),
            Joined(incarnation=ADA_1, nonce=b"n", address="x:1"),
            MemberGone(incarnation=BOB_2),
            Takeover(partition=1, epoch=2, author=BOB_2, in_sync=(BOB_2, ADA_1)),
            Touched(partition=3),
            NamespaceMade(
                name="m",
                key_codec="str",
                key_version=1,
                value_codec="bytes",
                value_version=2,
                space=0,
            ),
            NamespaceRenamed(old="m", new="n"),
            NamespaceDropped(name="n"),
            EpochsOpened(opened=((1, 2), (3, 4))),
            CopiesRemoved(copy=ADA_1, partitions=(1, 5)),
            CopiesAdmitted(copy=BOB_2, partitions=(1, 5)),
            CopiesAdded(copy=BOB_2, partitions=(5,)),
            BaselineChanged(baseline=(ADA,)),
            MemberWanted(member=BOB, wanted=False),
            GoalsSet(members=(ADA, BOB), goals=((1, (BOB, ADA)), (2, (ADA,)))),
            GoalsReached(partitions=(1, 2)),
            MemberLost(member=BOB),
            PartitionReset(
                partition=1, epoch=9, author=ADA_1, empty=False, opened=4, upto=7, time=8
            ),
            LossPolicySet(policy="ignore"),
            TransactionResolved(
                tx_id=ADA.bytes,
                attempt=2,
                commits=True,
                by_hand=False,
                time=6,
                participants=((1, 4), (5, 3)),
                missing=((5, 7),),
            ),
        ),
    )
    nine, ten, eleven = (UUID(int=number).bytes for number in (9, 10, 11))
    pairs = [[0, "a:1"], [1, "b:1"]]
    written: list[Any] = [
        7,
        [ADA.bytes, BOB.bytes],
        [[0, 1], [1, 2]],
        [
            [1, nine, ten, eleven, pairs, [[0, 2, 1]], [[0, 1], [1]], 1, True],
            [2, 0, b"n", "x:1", False],
            [3, 1],
            [4, 1, 2, 1, [1, 0]],
            [5, 3],
            [6, "m", "str", 1, "bytes", 2, 0],
            [7, "m", "n"],
            [8, "n"],
            [9, [[1, 2], [3, 4]]],
            [10, 0, [1, 5]],
            [11, 1, [1, 5]],
            [12, 1, [5]],
            [13, [0]],
            [14, 1, False],
            [15, [0, 1], [[1, [1, 0]], [2, [0]]]],
            [16, [1, 2]],
            [17, 1],
            [18, 1, 9, 0, False, 4, 7, 8],
            [19, "ignore"],
            [20, ADA.bytes, 2, True, False, 6, [[1, 4], [5, 3]], [[5, 7]]],
        ],
    ]
    assert msgpack.unpackb(decision_bytes(decision)) == written
    assert decision_of(msgpack.packb(written)) == decision
    written[3][17][7] = 0
    undated = decision_of(msgpack.packb(written))
    del written[3][0][7:], written[3][1][4:], written[3][17][7:]  # as earlier versions wrote them
    assert decision_of(msgpack.packb(written)) == undated


TOPOLOGY: list[Any] = [
    4,
    [ADA.bytes, BOB.bytes],
    [[0, 1], [1, 2]],
    [UUID(int=9).bytes, None, None],
    [
        [0, "a:1", 1, 1, b"n", True, False, None, False],
        [1, "b:1", 1, 2, b"", False, True, False, True],
    ],
    [0, 1],
    [[0, 1, 0]],
    [[2, [0, None, 1], 3, 0, [0], 4, True, [[1, 4]], [1], 3]],
    [[16, "m", "str", 1, "bytes", 2, 0]],
    17,
    2,
    False,
    [0],
    [[3, 0, 1, 2, 0, 1, 7, 8]],
    "read-only-safe",
    [[4, BOB.bytes, 1, False, True, 6, [0, 5], [5]]],
]


def test_a_topology_of_plain_arrays() -> None:
    topology = topology_of(msgpack.packb(TOPOLOGY))
    assert msgpack.unpackb(topology_bytes(topology)) == TOPOLOGY
    (copies,) = topology.partitions
    assert (copies.author, copies.in_sync) == (ADA_1, (ADA_1,))
    assert (copies.changed, copies.opened) == (4, True)
    assert copies.moving == (MovingCopy(BOB_2, 4),)
    assert copies.row.replicas == (ADA, None, BOB)
    assert copies.goal == (BOB,)
    assert copies.emptied == 3
    assert topology.members[BOB].lost
    [loss] = topology.losses
    assert loss == Loss(
        index=3, partition=0, before=1, epoch=2, author=ADA_1, opened=1, upto=7, time=8
    )
    [resolution] = topology.resolutions
    assert resolution == Resolution(
        index=4,
        tx_id=BOB.bytes,
        attempt=1,
        commits=False,
        by_hand=True,
        time=6,
        partitions=(0, 5),
        missing=(5,),
    )
    assert (topology.members[BOB].voter, topology.members[BOB].leaving) == (True, True)
    assert (topology.min_in_sync, topology.auto_join, topology.placed) == (2, False, (ADA,))
    assert topology.loss_policy == "read-only-safe"
    assert topology_of(topology_bytes(Topology())) == Topology()


def test_a_later_version_may_append_fields() -> None:
    found = [*msgpack.unpackb(msgpack.packb(TOPOLOGY)), 1]
    for row in (
        found, found[2][0], found[3], found[4][0], found[6][0], found[7][0], found[7][0][7][0],
        found[8][0], found[13][0], found[15][0],
    ):  # fmt: skip
        row.append(b"new")
    assert topology_of(msgpack.packb(found)) == topology_of(msgpack.packb(TOPOLOGY))
    written = [1, [ADA.bytes], [[0, 1, "new"]], [[5, 3, "new"], [3, 0, "new"]], "new"]
    decision = Decision(1, (Touched(partition=3), MemberGone(incarnation=ADA_1)))
    assert decision_of(msgpack.packb(written)) == decision


def test_a_topology_of_an_earlier_version_is_read() -> None:
    found = msgpack.unpackb(msgpack.packb(TOPOLOGY))[:10]
    found[4] = [row[:6] for row in found[4]]
    found[7] = [row[:8] for row in found[7]]
    topology = topology_of(msgpack.packb(found))
    assert topology.partitions[0].goal == ()
    assert not any(one.voter or one.leaving for one in topology.members.values())
    assert (topology.min_in_sync, topology.auto_join) == (1, True)
    assert topology.placed == topology.holding


def test_the_fewest_copies_for_a_write_are_read_as_they_were_written() -> None:
    [begun] = first_decision(ADA, [(ADA, "a:1"), (BOB, "b:1")], 2, 1, 2).changes
    assert isinstance(begun, Begun)
    assert begun.min_in_sync == 2
    assert decision_of(decision_bytes(Decision(1, (begun,)))) == Decision(1, (begun,))
    assert decision_bytes(Decision(1, (begun,))) != decision_bytes(
        Decision(1, (replace(begun, min_in_sync=1),))
    )


def test_whether_members_enter_by_themselves_is_the_same_for_all_who_begin() -> None:
    members = [(ADA, "a:1"), (BOB, "b:1")]
    [by_itself] = first_decision(ADA, members, 2).changes
    [when_asked] = first_decision(ADA, members, 2, auto_join=False).changes
    assert isinstance(by_itself, Begun)
    assert isinstance(when_asked, Begun)
    assert (by_itself.auto_join, when_asked.auto_join) == (True, False)
    assert by_itself.history != when_asked.history


def changed(at: list[int], value: object) -> list[Any]:
    """The plain topology with another value in one place."""
    found: list[Any] = msgpack.unpackb(msgpack.packb(TOPOLOGY))
    inner = found
    for index in at[:-1]:
        inner = inner[index]
    inner[at[-1]] = value
    return found


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        ([0], -1, "expected a number of 63 bits, found -1"),
        ([0], True, "expected a number of 63 bits, found bool"),
        ([1, 0], b"short", "expected the 16 bytes of an id, found 5 of bytes"),
        ([1], [ADA.bytes, BOB.bytes, UUID(int=3).bytes], "somebody who is not a member"),
        ([2, 0], [2, 1], "out of range"),
        ([2, 0], [0], "expected 2 fields, found 1"),
        ([3], None, "expected an array, found NoneType"),
        ([4, 1, 0], 0, "there twice"),
        ([4, 0, 1], b"a", "expected text, found 1 of bytes"),
        ([4, 0, 5], 1, "expected a flag, found 1"),
        ([5], [2], "out of range"),
        ([6], [[0, 2, 0]], "spaces of 2 partitions in a store of 1"),
        ([6], [[1, 1, 0]], "does not begin at partition 0"),
        ([7, 0, 1], [0, 0], "twice"),
        ([7, 0, 3], 7, "out of range"),
        ([7, 0, 4], [], "the in-sync set of a partition is empty"),
        ([7, 0, 6], 1, "expected a flag, found 1"),
        ([7, 0, 7], None, "expected an array, found NoneType"),
        ([7, 0, 7, 0], [1], "expected 2 fields, found 1"),
        ([7, 0, 7, 0, 0], 2, "out of range"),
        ([7, 0, 7, 0, 1], -1, "expected a number of 63 bits, found -1"),
        ([7, 0], TOPOLOGY[7][0][:7], "expected 8 fields, found 7"),
        ([7, 0, 8], [2], "out of range"),
        ([4, 0, 6], None, "expected a flag, found NoneType"),
        ([12], [2], "out of range"),
        ([8, 0, 0], 15, "the map 15 is not from 16 on"),
        ([8, 0, 0], 17, "the map 17 is not from 16 on, or not yet made"),
        ([8, 0, 6], 1, "there is no space 1"),
        ([8], [TOPOLOGY[8][0], TOPOLOGY[8][0]], "16 is there twice"),
        ([8], [TOPOLOGY[8][0], [*TOPOLOGY[8][0]]], "16 is there twice"),
    ],
)
def test_a_topology_that_cannot_be_is_refused(at: list[int], value: object, reason: str) -> None:
    with pytest.raises(UndecodableRecordError, match=reason):
        topology_of(msgpack.packb(changed(at, value)))


def test_two_maps_of_one_name_are_refused() -> None:
    found = changed([9], 18)
    found[8].append([17, *found[8][0][1:]])
    with pytest.raises(UndecodableRecordError, match="two maps have one name"):
        topology_of(msgpack.packb(found))


@pytest.mark.parametrize(
    "change",
    [
        [13, 1], [0], [], [5], [5, -1], ["5", 1], 5, [3, 0], [9, 1], [9, [[1]]], [10, 0, [1]],
        [11, 0, [1]], [12, 0, [1]],
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_is_refused(change: object) -> None:
    with pytest.raises(UndecodableRecordError):
        decision_of(msgpack.packb([1, [], [], [change]]))


@given(st.binary(max_size=60) | PLAIN.map(msgpack.packb) | DECISIONS.map(decision_bytes))
@settings(max_examples=300)
def test_whatever_is_read_is_a_decision_or_one_error(data: bytes) -> None:
    try:
        decision = decision_of(data)
    except UndecodableRecordError:
        return
    assert decision_of(decision_bytes(decision)) == decision


@given(st.integers(0, 50), st.data())
@settings(max_examples=300)
def test_a_damaged_topology_is_a_topology_or_one_error(seed: int, data: st.DataObject) -> None:
    rows = msgpack.unpackb(topology_bytes(history_of(seed, 4)[1][-1]))
    inner = rows
    while True:
        at = data.draw(st.integers(0, len(inner) - 1))
        if not isinstance(inner[at], list) or not inner[at] or data.draw(st.booleans()):
            break
        inner = inner[at]
    inner[at] = data.draw(PLAIN)
    try:
        topology = topology_of(msgpack.packb(rows))
    except UndecodableRecordError:
        return
    assert topology_of(topology_bytes(topology)) == topology
