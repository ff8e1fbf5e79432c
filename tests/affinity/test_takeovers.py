"""Which in-sync sets have to change: golden cases of sets of three, by what is known of members."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from support.decisions import history_of
from tidelog.affinity.changes import (
    Begun,
    CopiesRemoved,
    Decision,
    EpochsOpened,
    Joined,
    MemberGone,
    Takeover,
    TopologyChange,
)
from tidelog.affinity.folding import applied
from tidelog.affinity.partitions import Space
from tidelog.affinity.takeovers import GivenUp, removals_due, takeovers_due
from tidelog.affinity.topology import Incarnation, PartitionCopies, Topology

ADA, BOB, CID, EVE = (UUID(int=number) for number in (1, 2, 3, 4))
ADA_1, BOB_1, CID_1 = (Incarnation(member, 1) for member in (ADA, BOB, CID))
ADA_2, BOB_2, CID_2 = (Incarnation(member, 2) for member in (ADA, BOB, CID))
BEGUN = Begun(
    cluster=UUID(int=9),
    store=UUID(int=10),
    history=UUID(int=11),
    members=((ADA, "a:1"), (BOB, "b:1"), (CID, "c:1")),
    spaces=(Space(0, 2, 2),),
    rows=((ADA, BOB, CID), (BOB, CID, ADA)),
)


def joined(*incarnations: Incarnation) -> list[TopologyChange]:
    return [Joined(incarnation=one, nonce=b"n", address="x:1") for one in incarnations]


def gone(*incarnations: Incarnation) -> list[TopologyChange]:
    return [MemberGone(incarnation=one) for one in incarnations]


def takeover(partition: int, epoch: int, *listed: Incarnation) -> Takeover:
    return Takeover(partition=partition, epoch=epoch, author=listed[0], in_sync=listed)


def after(topology: Topology, *changes: TopologyChange) -> Topology:
    return applied(topology, Decision(topology.index + 1, changes))


def running(*opened: int) -> Topology:
    """Three members that all hold two partitions, of which some are known to be open."""
    topology = after(after(Topology(), BEGUN), *joined(ADA_1, BOB_1, CID_1))
    first = (takeover(0, 1, ADA_1, BOB_1, CID_1), takeover(1, 1, BOB_1, CID_1, ADA_1))
    topology = after(topology, *first)
    return after(topology, EpochsOpened(opened=tuple((partition, 1) for partition in opened)))


def nobody(_kept: Incarnation, _gone: Incarnation) -> bool:
    return False


def test_nothing_is_due_while_all_are_present() -> None:
    for topology in (running(), running(0, 1)):
        assert takeovers_due(topology) == []
        assert removals_due(topology) == []


# ------------------------------------------------------------------ somebody of a set has gone


def test_a_backup_that_has_gone_leaves_open_epochs_and_its_own_partitions_are_taken_over() -> None:
    topology = after(running(0, 1), *gone(ADA_1))
    assert removals_due(topology) == [CopiesRemoved(copy=ADA_1, partitions=(1,))]
    assert takeovers_due(topology) == [takeover(0, 2, BOB_1, CID_1)]
    assert takeovers_due(topology, lambda _copies: False) == []


def test_who_is_started_again_has_gone_before() -> None:
    topology = after(running(0, 1), *joined(BOB_2))
    assert removals_due(topology) == [CopiesRemoved(copy=BOB_1, partitions=(0,))]
    assert takeovers_due(topology) == [takeover(1, 2, CID_1, ADA_1)]


def test_i4_an_epoch_that_is_not_open_is_followed_by_one_without_who_has_gone() -> None:
    """The same author goes on, and so needs no lease to end."""
    topology = after(running(1), *gone(CID_1))
    assert removals_due(topology) == [CopiesRemoved(copy=CID_1, partitions=(1,))]
    assert takeovers_due(topology, lambda _copies: False) == [takeover(0, 2, ADA_1, BOB_1)]


def test_i1_who_is_not_known_to_have_been_outlived_stays_listed() -> None:
    topology = after(running(1), *gone(CID_1))
    assert removals_due(topology, nobody) == []
    assert takeovers_due(topology, outlived=nobody) == []
    topology = after(topology, *gone(ADA_1))
    assert takeovers_due(topology, outlived=nobody) == []


def test_i1_all_who_stay_have_to_have_outlived_all_who_go() -> None:
    """Else one that died with the author becomes the next one, and then the only one."""
    topology = after(running(), *gone(ADA_1))

    def only_bob(kept: Incarnation, _gone: Incarnation) -> bool:
        return kept == BOB_1

    assert takeovers_due(topology, outlived=only_bob) == []
    topology = after(topology, *gone(CID_1))
    due = takeovers_due(topology, outlived=only_bob)
    assert due == [takeover(0, 2, BOB_1), takeover(1, 2, BOB_1)]


def test_i1_a_removal_needs_the_primary_only() -> None:
    topology = after(running(0, 1), *gone(CID_1))
    due = removals_due(topology, lambda kept, _gone: kept == ADA_1)
    assert due == [CopiesRemoved(copy=CID_1, partitions=(0,))]


def test_removals_are_one_for_each_who_has_gone() -> None:
    topology = after(running(0, 1), *gone(ADA_1, CID_1))
    due = [CopiesRemoved(copy=ADA_1, partitions=(1,)), CopiesRemoved(copy=CID_1, partitions=(1,))]
    assert removals_due(topology) == due
    topology = after(topology, *due)
    assert topology.partitions[1].in_sync == (BOB_1,)


# ------------------------------------------------------------------ nobody of a set stayed


def test_s3_members_that_stayed_go_before_those_that_came_back() -> None:
    topology = after(running(), *gone(ADA_1, CID_1), *joined(ADA_2, CID_2))
    assert takeovers_due(topology) == [takeover(0, 2, BOB_1), takeover(1, 2, BOB_1)]


def test_s2_a_set_of_which_nobody_stayed_is_waited_for_as_a_whole() -> None:
    topology = after(running(0), *gone(ADA_1, BOB_1, CID_1))
    assert takeovers_due(topology) == []
    topology = after(topology, *joined(CID_2, BOB_2))
    assert takeovers_due(topology, waited=lambda _partition: False) == []
    due = [takeover(1, 2, BOB_2, CID_2)]
    assert takeovers_due(topology, waited=lambda partition: partition == 1) == due
    topology = after(topology, *joined(ADA_2))
    due = [takeover(0, 2, ADA_2, BOB_2, CID_2), takeover(1, 2, BOB_2, CID_2, ADA_2)]
    found = takeovers_due(topology, outlived=nobody, waited=lambda _partition: False)
    assert found == due


def test_s5_a_set_of_one_waits_for_nobody_else() -> None:
    topology = running()
    alone = replace(topology.partitions[0], in_sync=(ADA_1,))
    topology = after(replace(topology, partitions=(alone,)), *joined(ADA_2))
    due = takeovers_due(topology, outlived=nobody, waited=lambda _partition: False)
    assert due == [takeover(0, 2, ADA_2)]


# ------------------------------------------------------------------ released


def test_k1_who_released_is_followed_by_the_first_other_one_and_stays_listed() -> None:
    topology = running(0, 1)
    due = replace(takeover(0, 2, ADA_1, BOB_1, CID_1), author=BOB_1)
    assert takeovers_due(topology, lambda _copies: False, released={0: GivenUp(1)}) == [due]
    assert takeovers_due(topology, released={0: GivenUp(0)}) == []


def test_k7_who_was_named_by_the_release_is_next_if_it_is_listed() -> None:
    topology = running(0, 1)
    for target, author in ((CID, CID_1), (BOB, BOB_1), (ADA, BOB_1), (EVE, BOB_1)):
        due = replace(takeover(0, 2, ADA_1, BOB_1, CID_1), author=author)
        assert takeovers_due(topology, released={0: GivenUp(1, target)}) == [due]


def test_k1_who_released_and_is_alone_goes_on_in_a_new_epoch() -> None:
    topology = after(running(), *gone(BOB_1, CID_1))
    assert takeover(0, 2, ADA_1) in takeovers_due(topology, released={0: GivenUp(1)})


def test_k1_who_released_and_has_gone_is_no_longer_listed() -> None:
    topology = after(running(0), *gone(ADA_1))
    due = takeovers_due(topology, released={0: GivenUp(1)})
    assert takeover(0, 2, BOB_1, CID_1) in due


def test_k1_who_releases_what_it_has_not_opened_hands_it_on_until_all_have_had_it() -> None:
    """Two that both release it would have it in turn, and the third one never."""
    topology, authors = running(0), []
    for epoch in range(1, 7):
        [due] = takeovers_due(topology, released={0: GivenUp(epoch)})
        topology = after(topology, due)
        authors.append(due.author)
    assert authors == [BOB_1, CID_1, ADA_1, BOB_1, CID_1, ADA_1]


def test_k1_that_goes_on_behind_the_row_too() -> None:
    copies = replace(running().partitions[0], author=ADA_1, in_sync=(ADA_1, BOB_1, CID_1))
    copies = replace(copies, row=replace(copies.row, replicas=(ADA,)))
    for author, follower in ((ADA_1, BOB_1), (BOB_1, CID_1), (CID_1, ADA_1)):
        topology = replace(running(), partitions=(replace(copies, author=author),))
        [due] = takeovers_due(topology, released={0: GivenUp(copies.epoch)})
        assert due.author == follower


# ------------------------------------------------------------------ who serves


def test_who_serves_is_the_first_of_the_row_and_else_of_the_set() -> None:
    topology = running()
    gone = Incarnation(ADA, 0)
    copies = replace(topology.partitions[0], author=gone, in_sync=(gone, CID_1, BOB_1))
    found = takeovers_due(replace(topology, partitions=(copies,)))
    assert [due.author for due in found] == [BOB_1]
    elsewhere = replace(copies, row=replace(copies.row, replicas=(EVE,)))
    found = takeovers_due(replace(topology, partitions=(elsewhere,)))
    assert [due.author for due in found] == [CID_1]


def test_i4_an_author_that_is_not_the_first_of_the_row_goes_on() -> None:
    """Whoever released the partition would get it back by the death of a third one."""
    topology = after(running(), replace(takeover(0, 2, ADA_1, BOB_1, CID_1), author=BOB_1))
    topology = after(topology, *gone(CID_1))
    due = replace(takeover(0, 3, ADA_1, BOB_1), author=BOB_1)
    assert takeovers_due(topology)[0] == due


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_due_can_follow_and_leaves_nothing_due(seed: int) -> None:
    for topology in history_of(seed, 20)[1]:
        following = after(topology, *removals_due(topology), *takeovers_due(topology))
        assert removals_due(following) == []
        assert takeovers_due(following) == []


class LookedAt(tuple[PartitionCopies, ...]):
    """Partitions that count how often somebody goes over them."""

    times = 0

    def __iter__(self) -> Iterator[PartitionCopies]:
        LookedAt.times += 1
        return super().__iter__()


def test_a_topology_looks_once_for_partitions_with_somebody_missing() -> None:
    topology = running(0, 1)
    topology = replace(topology, partitions=LookedAt(topology.partitions))
    for _ in range(3):
        assert takeovers_due(topology) == []
        assert removals_due(topology) == []
    assert LookedAt.times == 1
