"""The fold of decisions: what may follow, what is refused, and that a refusal changes nothing."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from support.decisions import history_of
from tidelog.affinity.changes import (
    Begun,
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    Decision,
    EpochsOpened,
    Joined,
    MemberGone,
    NamespaceDropped,
    NamespaceMade,
    NamespaceRenamed,
    Takeover,
    TopologyChange,
    Touched,
)
from tidelog.affinity.folding import ChangeError, applied, verdicts
from tidelog.affinity.partitions import Space
from tidelog.affinity.topology import (
    FIRST_NAMESPACE,
    Incarnation,
    KnownNamespace,
    MovingCopy,
    Topology,
)
from tidelog.checkpoints import replay

ADA, BOB, CID, EVE = (UUID(int=number) for number in (1, 2, 3, 4))
ADA_1, BOB_1, CID_1, EVE_1 = (Incarnation(member, 1) for member in (ADA, BOB, CID, EVE))
BEGUN = Begun(
    cluster=UUID(int=9),
    store=UUID(int=10),
    history=UUID(int=11),
    members=((ADA, "a:1"), (BOB, "b:1"), (CID, "c:1")),
    spaces=(Space(0, 2, 2),),
    rows=((ADA, BOB, CID), (BOB, CID, ADA)),
)


def joined(incarnation: Incarnation) -> Joined:
    return Joined(incarnation=incarnation, nonce=b"n", address="x:1")


def takeover(partition: int, epoch: int, *listed: Incarnation) -> Takeover:
    return Takeover(partition=partition, epoch=epoch, author=listed[0], in_sync=listed)


def made(name: str, value: str = "msgpack", version: int = 1, space: int = 0) -> NamespaceMade:
    return NamespaceMade(
        name=name,
        key_codec="str",
        key_version=1,
        value_codec=value,
        value_version=version,
        space=space,
    )


def known(number: int, name: str) -> KnownNamespace:
    return KnownNamespace(
        id=number,
        name=name,
        key_codec="str",
        key_version=1,
        value_codec="msgpack",
        value_version=1,
        space=0,
    )


def decided(*decisions: tuple[TopologyChange, ...]) -> Topology:
    topology = Topology()
    for index, changes in enumerate(decisions, 1):
        topology = applied(topology, Decision(index, changes))
    return topology


def after(topology: Topology, *changes: TopologyChange) -> Topology:
    return applied(topology, Decision(topology.index + 1, changes))


def running() -> Topology:
    """Three members, two partitions that all of them hold."""
    every = (joined(ADA_1), joined(BOB_1), joined(CID_1))
    first = (takeover(0, 1, ADA_1, BOB_1, CID_1), takeover(1, 1, BOB_1, CID_1, ADA_1))
    return decided((BEGUN,), every, first)


def test_a_cluster_that_runs() -> None:
    topology = running()
    assert repr(topology) == "<Topology index=3 members=3/3>"
    assert topology.by_age() == [ADA, BOB, CID]
    assert [copies.author for copies in topology.partitions] == [ADA_1, BOB_1]
    assert str(ADA_1) == "00000000.1"
    ids = topology.cluster, topology.store, topology.history
    assert ids == (BEGUN.cluster, BEGUN.store, BEGUN.history)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (BEGUN, "only the first decision begins a cluster"),
        (joined(ADA_1), "not newer than boot 1"),
        (MemberGone(incarnation=Incarnation(ADA, 2)), "not in the topology"),
        (MemberGone(incarnation=EVE_1), "not in the topology"),
        (takeover(0, 3, ADA_1), "epoch 3 does not follow on 1"),
        (takeover(2, 1, ADA_1), "there is no partition 2"),
        (takeover(-1, 1, ADA_1), "there is no partition -1"),
        (replace(takeover(0, 2, ADA_1), author=BOB_1), "its author does not stand in its set once"),
        (takeover(0, 2, ADA_1, BOB_1, Incarnation(BOB, 2)), "a member stands in its set twice"),
        (takeover(0, 2, EVE_1), "not of the last in-sync set"),
        (takeover(0, 2, Incarnation(ADA, 2)), "is not in the topology"),
        (Touched(partition=2), "there is no partition 2"),
        (EpochsOpened(opened=((0, 1), (2, 1))), "there is no partition 2"),
        (CopiesRemoved(copy=BOB_1, partitions=(2,)), "there is no partition 2"),
        (made("users", space=1), "there is no space 1 for the map 'users'"),
        (made("users", space=-1), "there is no space -1 for the map 'users'"),
        (NamespaceRenamed(old="users", new="people"), "there is no map 'users'"),
        (NamespaceDropped(name="users"), "there is no map 'users'"),
    ],
)
def test_what_cannot_follow_is_refused_and_changes_nothing(
    change: TopologyChange, reason: str
) -> None:
    topology = running()
    with pytest.raises(ChangeError, match=reason):
        applied(topology, Decision(4, (change,)))
    fine = Touched(partition=0)
    one, other, third = verdicts(topology, [fine, change, fine])
    assert (one, third) == (None, None)
    assert other is not None
    assert reason in other


@pytest.mark.parametrize(
    ("begun", "reason"),
    [
        (replace(BEGUN, members=()), "begins with at least one member"),
        (replace(BEGUN, members=((ADA, "a"), (ADA, "b"))), "each of them once"),
        (replace(BEGUN, spaces=(Space(1, 2),)), "does not begin at partition 0"),
        (replace(BEGUN, rows=((ADA,), ())), "the row of partition 1 is empty"),
        (replace(BEGUN, rows=((ADA,), (BOB, BOB))), "twice"),
        (replace(BEGUN, rows=((ADA,), (EVE,))), "somebody who is not a member"),
    ],
)
def test_a_cluster_that_cannot_begin(begun: Begun, reason: str) -> None:
    with pytest.raises(ChangeError, match=reason):
        decided((begun,))


def test_decisions_come_in_order() -> None:
    with pytest.raises(ChangeError, match="decision 2 does not follow on 0"):
        applied(Topology(), Decision(2, (BEGUN,)))


def test_who_has_gone_stays_in_the_sets() -> None:
    topology = after(running(), MemberGone(incarnation=ADA_1))
    assert topology.partitions == running().partitions
    assert topology.is_gone(ADA_1)
    assert not topology.is_gone(Incarnation(ADA, 2))
    assert not topology.is_gone(EVE_1)
    assert sorted(topology.present) == [BOB_1, CID_1]
    assert sorted(topology.members_present) == [BOB, CID]


def test_who_is_started_again_has_gone_before_and_is_in_no_set() -> None:
    topology = after(running(), joined(Incarnation(BOB, 2)))
    assert topology.is_gone(BOB_1)
    assert topology.partitions == running().partitions


def test_an_epoch_that_was_opened_is_known_to_be_until_the_next_one() -> None:
    topology = running()
    assert not any(copies.opened for copies in topology.partitions)
    topology = after(topology, EpochsOpened(opened=((0, 1), (1, 0), (1, 2), (0, 1))))
    assert [copies.opened for copies in topology.partitions] == [True, False]
    assert [copies.changed for copies in topology.partitions] == [3, 3]
    topology = after(topology, takeover(0, 2, ADA_1, BOB_1), EpochsOpened(opened=((0, 1),)))
    assert [copies.opened for copies in topology.partitions] == [False, False]


def test_a_copy_leaves_a_set_whose_epoch_goes_on() -> None:
    topology = after(running(), EpochsOpened(opened=((0, 1), (1, 1))))
    topology = after(topology, CopiesRemoved(copy=CID_1, partitions=(1, 0)))
    assert [copies.in_sync for copies in topology.partitions] == [(ADA_1, BOB_1), (BOB_1, ADA_1)]
    assert [(one.epoch, one.changed) for one in topology.partitions] == [(1, 5), (1, 5)]


@pytest.mark.parametrize(
    ("copy", "reason"),
    [
        (ADA_1, "partition 0: 00000000.1 is the author of its epoch: it takes a takeover"),
        (Incarnation(BOB, 2), "partition 0: 00000000.2 is not in its in-sync set"),
        (CID_1, "partition 1: epoch 1 is not known to be open: it takes a takeover"),
    ],
)
def test_i4_a_copy_that_cannot_leave_one_set_leaves_none(copy: Incarnation, reason: str) -> None:
    topology = after(running(), EpochsOpened(opened=((0, 1),)))
    change = CopiesRemoved(copy=copy, partitions=(0, 1))
    assert verdicts(topology, [change, Touched(partition=1)]) == [reason, None]


# ------------------------------------------------------------------ copies that come back


def admitted(copy: Incarnation, *partitions: int) -> CopiesAdmitted:
    return CopiesAdmitted(copy=copy, partitions=partitions)


def added(copy: Incarnation, *partitions: int) -> CopiesAdded:
    return CopiesAdded(copy=copy, partitions=partitions)


def without_cid() -> Topology:
    """Two open epochs that go on without CID, who is there."""
    topology = after(running(), EpochsOpened(opened=((0, 1), (1, 1))))
    return after(topology, CopiesRemoved(copy=CID_1, partitions=(0, 1)))


def moving(topology: Topology) -> list[tuple[MovingCopy, ...]]:
    return [copies.moving for copies in topology.partitions]


def test_a_copy_that_is_admitted_catches_up_and_counts_for_nothing() -> None:
    before = without_cid()
    topology = after(before, admitted(CID_1, 1, 0))
    assert moving(topology) == [(MovingCopy(CID_1, 6),)] * 2
    for copies, known in zip(topology.partitions, before.partitions, strict=True):
        assert copies == replace(known, moving=copies.moving, changed=6)
        assert copies.admission(CID_1) == 6
        assert copies.admission(Incarnation(CID, 2)) is None
        assert copies.admission(BOB_1) is None
    assert topology.incomplete == ()


def test_a_copy_that_is_admitted_again_begins_anew() -> None:
    topology = after(without_cid(), admitted(CID_1, 0, 1))
    topology = after(topology, admitted(CID_1, 1))
    assert moving(topology) == [(MovingCopy(CID_1, 6),), (MovingCopy(CID_1, 7),)]
    assert [copies.changed for copies in topology.partitions] == [6, 7]


def test_a_copy_that_has_caught_up_is_of_the_set() -> None:
    topology = after(without_cid(), admitted(CID_1, 0, 1))
    topology = after(topology, added(CID_1, 1))
    assert moving(topology) == [(MovingCopy(CID_1, 6),), ()]
    assert [c.in_sync for c in topology.partitions] == [(ADA_1, BOB_1), (BOB_1, ADA_1, CID_1)]
    assert [(one.epoch, one.changed) for one in topology.partitions] == [(1, 6), (1, 7)]
    topology = after(topology, takeover(1, 2, CID_1, BOB_1))
    assert topology.partitions[1].author == CID_1


def test_several_copies_catch_up_and_each_is_added_on_its_own() -> None:
    topology = after(without_cid(), CopiesRemoved(copy=BOB_1, partitions=(0,)))
    topology = after(topology, admitted(CID_1, 0))
    topology = after(topology, admitted(BOB_1, 0))
    assert moving(topology)[0] == (MovingCopy(CID_1, 7), MovingCopy(BOB_1, 8))
    topology = after(topology, added(BOB_1, 0))
    assert moving(topology)[0] == (MovingCopy(CID_1, 7),)
    assert topology.partitions[0].in_sync == (ADA_1, BOB_1)


def test_a_copy_that_is_removed_while_it_catches_up_has_to_be_admitted_anew() -> None:
    topology = after(without_cid(), admitted(CID_1, 0, 1))
    topology = after(topology, added(CID_1, 1))
    topology = after(topology, CopiesRemoved(copy=CID_1, partitions=(0, 1)))
    assert moving(topology) == [(), ()]
    assert [copies.in_sync for copies in topology.partitions] == [(ADA_1, BOB_1), (BOB_1, ADA_1)]
    assert [copies.changed for copies in topology.partitions] == [8, 8]
    assert verdicts(topology, [added(CID_1, 0)]) == ["partition 0: 00000000.1 was not admitted"]


def test_a_takeover_ends_what_catches_up_in_its_partition() -> None:
    topology = after(without_cid(), admitted(CID_1, 0, 1))
    topology = after(topology, takeover(0, 2, ADA_1, BOB_1), EpochsOpened(opened=((0, 2),)))
    assert moving(topology) == [(), (MovingCopy(CID_1, 6),)]
    assert verdicts(topology, [added(CID_1, 0, 1)]) == ["partition 0: 00000000.1 was not admitted"]
    with pytest.raises(ChangeError, match="not of the last in-sync set"):
        after(topology, takeover(1, 2, BOB_1, CID_1))


@pytest.mark.parametrize("end", [MemberGone(incarnation=CID_1), joined(Incarnation(CID, 2))])
def test_a_copy_that_has_gone_catches_up_nowhere(end: TopologyChange) -> None:
    topology = after(without_cid(), CopiesRemoved(copy=BOB_1, partitions=(0,)))
    topology = after(topology, admitted(CID_1, 0, 1), admitted(BOB_1, 0))
    topology = after(topology, end)
    assert moving(topology) == [(MovingCopy(BOB_1, 7),), ()]
    assert [copies.changed for copies in topology.partitions] == [7, 7]
    assert [copies.in_sync for copies in topology.partitions] == [(ADA_1,), (BOB_1, ADA_1)]
    assert verdicts(topology, [added(CID_1, 1)]) == ["partition 1: 00000000.1 was not admitted"]


def test_who_was_started_again_may_be_admitted_under_its_new_boot() -> None:
    again = Incarnation(CID, 2)
    topology = after(without_cid(), joined(again))
    assert verdicts(topology, [admitted(CID_1, 0)]) == ["00000000.1 is not in the topology"]
    topology = after(after(topology, admitted(again, 0)), added(again, 0))
    assert topology.partitions[0].in_sync == (ADA_1, BOB_1, again)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (admitted(EVE_1, 0), "partition 0: 00000000.1 is neither of its row nor of its goal"),
        (admitted(BOB_1, 0), "partition 0: 00000000.1 is in its in-sync set, or was under another"),
        (admitted(Incarnation(BOB, 2), 0), "00000000.2 is not in the topology"),
        (admitted(ADA_1, 0), "partition 0: 00000000.1 is in its in-sync set"),
        (
            admitted(CID_1, 0, 1),
            "partition 1: epoch 2 is not known to be open: it takes a takeover",
        ),
        (admitted(CID_1, 2), "there is no partition 2"),
        (admitted(CID_1, -1), "there is no partition -1"),
        (added(BOB_1, 0), "partition 0: 00000000.1 was not admitted"),
        (added(CID_1, 0), "partition 0: 00000000.1 was not admitted"),
        (added(CID_1, 2), "there is no partition 2"),
        (CopiesRemoved(copy=CID_1, partitions=(0,)), "is not in its in-sync set"),
    ],
)
def test_who_cannot_come_back_everywhere_comes_back_nowhere(
    change: TopologyChange, reason: str
) -> None:
    topology = after(without_cid(), joined(EVE_1), takeover(1, 2, BOB_1, ADA_1))
    one, other = verdicts(topology, [change, Touched(partition=0)])
    assert one is not None
    assert reason in one
    assert other is None
    assert moving(topology) == [(), ()]


def test_who_is_in_a_set_under_another_boot_is_not_admitted_before_that_is_out() -> None:
    again = Incarnation(BOB, 2)
    topology = after(after(running(), EpochsOpened(opened=((0, 1), (1, 1)))), joined(again))
    [reason] = verdicts(topology, [admitted(again, 0)])
    assert reason is not None
    assert "is in its in-sync set, or was under another boot" in reason
    topology = after(topology, CopiesRemoved(copy=BOB_1, partitions=(0,)), admitted(again, 0))
    assert moving(topology)[0] == (MovingCopy(again, 6),)


@pytest.mark.parametrize("seed", range(20))
def test_who_catches_up_is_there_and_of_a_row_and_of_no_set(seed: int) -> None:
    for topology in history_of(seed, 20)[1]:
        for copies in topology.partitions:
            members = [one.copy.member for one in copies.moving]
            assert {*members} <= {*copies.row.replicas} - {one.member for one in copies.in_sync}
            assert len(members) == len({*members})
            assert {one.copy for one in copies.moving} <= topology.present
            assert copies.opened or not copies.moving
            assert all(one.admission <= topology.index for one in copies.moving)


# ------------------------------------------------------------------ who is missing


@pytest.mark.parametrize("seed", range(20))
def test_a_topology_knows_where_somebody_is_missing(seed: int) -> None:
    for topology in history_of(seed, 20)[1]:
        numbered = [*enumerate(topology.partitions)]
        gone = {p: {*copies.in_sync} - topology.present for p, copies in numbered}
        orphaned = [p for p, copies in numbered if not topology.is_present(copies.author)]
        assert [*topology.incomplete] == [p for p in gone if gone[p]]
        assert [*topology.orphaned] == orphaned
        assert [*topology.diminished] == [p for p in gone if gone[p] and p not in orphaned]
        assert [*topology.deserted] == [p for p, c in numbered if gone[p] == {*c.in_sync}]


def test_a_new_member_is_the_youngest_and_in_no_row() -> None:
    topology = applied(running(), Decision(4, (joined(EVE_1),)))
    assert topology.members[EVE].since == 4
    assert topology.baseline == (ADA, BOB, CID)


# ------------------------------------------------------------------ maps


def test_maps_are_numbered_like_those_of_a_store_that_nobody_shares() -> None:
    assert FIRST_NAMESPACE == replay.FIRST_NAMESPACE
    topology = after(running(), made("users"), made("orders"))
    assert topology.namespaces == {16: known(16, "users"), 17: known(17, "orders")}
    assert topology.next_namespace == 18
    assert topology.namespace_named("orders") == known(17, "orders")
    assert topology.namespace_named("people") is None


def test_a_map_that_is_made_again_is_the_one_that_there_is() -> None:
    topology = after(running(), made("users"))
    again = after(topology, made("users"))
    assert again == replace(topology, index=again.index)


@pytest.mark.parametrize("other", [made("users", "bytes"), made("users", version=2)])
def test_a_map_has_the_codecs_that_it_was_made_with(other: NamespaceMade) -> None:
    topology = after(running(), made("users"))
    reason = "the map 'users' has the codecs str 1 and msgpack 1, not str 1 and "
    with pytest.raises(ChangeError, match=reason):
        after(topology, other)


def test_a_map_keeps_its_id_under_another_name() -> None:
    topology = after(running(), made("users"), made("orders"))
    topology = after(topology, NamespaceRenamed(old="users", new="people"), made("users"))
    assert {number: one.name for number, one in topology.namespaces.items()} == {
        16: "people",
        17: "orders",
        18: "users",
    }
    for taken in ("orders", "people"):
        with pytest.raises(ChangeError, match=f"there is a map '{taken}' already"):
            after(topology, NamespaceRenamed(old="people", new=taken))


def test_the_id_of_a_map_that_was_dropped_is_not_given_again() -> None:
    topology = after(running(), made("users"))
    topology = after(topology, NamespaceDropped(name="users"), made("users", "bytes"))
    assert list(topology.namespaces) == [17]
    assert topology.next_namespace == 18


def test_what_one_decision_changes_is_not_seen_in_the_topology_before() -> None:
    topology = after(running(), made("users"))
    after(topology, NamespaceDropped(name="users"))
    assert list(topology.namespaces) == [16]
