"""Which decisions begin an exchange, and why: one case for each kind of cause."""

from __future__ import annotations

import pytest

from support.exchanges import (
    ADA,
    ADA_1,
    BEGUN,
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
from tidelog.affinity.causes import Cause, Exchange
from tidelog.affinity.changes import (
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    NamespaceMade,
    TopologyChange,
    Touched,
)
from tidelog.affinity.topology import Incarnation

ADA_2 = Incarnation(ADA, 2)


def begun(deciding: Deciding, *changes: TopologyChange) -> Exchange:
    exchange = deciding.decide(*changes)
    assert exchange is not None
    assert exchange.index == deciding.topology.index
    return exchange


def test_a_cluster_begins_with_members_that_join_and_are_the_first_to_serve() -> None:
    deciding = Deciding()
    assert deciding.decide(BEGUN) is None, "nobody is there yet"
    assert begun(deciding, *joined(ADA_1, BOB_1)).causes == (
        Cause("joined", ADA),
        Cause("joined", BOB),
    )
    first = begun(deciding, takeover(0, 1, ADA_1, BOB_1), takeover(1, 1, BOB_1, ADA_1))
    assert first.causes == (Cause("first", None, (ADA, BOB), 2),)
    assert [one.partition for one in first.takeovers] == [0, 1]


MAP = NamespaceMade(
    name="m", key_codec="str", key_version=1, value_codec="str", value_version=1, space=0
)


@pytest.mark.parametrize("change", [opened((0, 1)), Touched(partition=1), MAP])
def test_what_says_nothing_of_who_serves_and_holds_what_is_no_exchange(
    change: TopologyChange,
) -> None:
    assert serving().decide(change) is None


def test_who_has_gone_is_the_cause_in_the_same_decision_and_in_a_later_one() -> None:
    together = begun(serving(), gone(ADA_1), takeover(0, 2, BOB_1, CID_1))
    assert together.causes == (Cause("gone", ADA), Cause("from_gone", ADA, (BOB,), 1))
    deciding = serving()
    assert begun(deciding, gone(ADA_1)).causes == (Cause("gone", ADA),)
    later = begun(deciding, takeover(0, 2, BOB_1, CID_1))
    assert later.causes == (Cause("from_gone", ADA, (BOB,), 1),)


def test_who_was_started_again_is_followed_by_others_or_by_itself() -> None:
    deciding = serving()
    again = begun(deciding, *joined(ADA_2), takeover(0, 2, BOB_1, CID_1))
    assert again.causes == (Cause("restarted", ADA), Cause("from_older", ADA, (BOB,), 1))
    deciding = serving()
    deciding.decide(gone(ADA_1), gone(BOB_1), gone(CID_1))
    deciding.decide(*joined(ADA_2))
    assert begun(deciding, takeover(0, 2, ADA_2)).causes == (Cause("from_older", ADA, (ADA,), 1),)


def test_a_primary_that_is_there_hands_over() -> None:
    exchange = begun(serving(), takeover(0, 2, CID_1, ADA_1, BOB_1), takeover(2, 2, BOB_1, CID_1))
    assert exchange.causes == (Cause("moved", ADA, (CID,), 1), Cause("moved", CID, (BOB,), 1))


def test_an_author_goes_on_without_a_copy_in_a_new_epoch() -> None:
    exchange = begun(serving(), takeover(0, 2, ADA_1, CID_1))
    assert exchange.causes == (Cause("without", ADA, (BOB,), 1),)


def test_copies_are_removed_admitted_and_added_and_partitions_counted_once() -> None:
    deciding = serving()
    removed = begun(
        deciding,
        CopiesRemoved(copy=CID_1, partitions=(0, 1)),
        CopiesRemoved(copy=BOB_1, partitions=(0,)),
    )
    assert removed.causes == (Cause("removed", CID, (), 2), Cause("removed", BOB, (), 1))
    assert (removed.removed, removed.admitted, removed.added) == (2, 0, 0)
    admitted = begun(deciding, CopiesAdmitted(copy=CID_1, partitions=(0, 1)))
    assert admitted.causes == (Cause("admitted", CID, (), 2),)
    assert (admitted.removed, admitted.admitted, admitted.added) == (0, 2, 0)
    added = begun(deciding, CopiesAdded(copy=CID_1, partitions=(0,)))
    assert added.causes == (Cause("added", CID, (), 1),)
    assert (added.removed, added.admitted, added.added) == (0, 0, 1)
