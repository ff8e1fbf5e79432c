"""Taking a table that was sent: per partition, and all or nothing where it has diverged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from tidelog.affinity import PartitionRow, PartitionTable, stamp
from tidelog.affinity.errors import DivergedError, PlacementError
from tidelog.affinity.versions import VERSION_MAX

Sent = tuple[int, str]
"""A version, and the members by replica index; a dash is an empty place."""


def row_of(partition: int, version: int, members: str) -> PartitionRow[str]:
    replicas = tuple(None if member == "-" else member for member in members)
    return PartitionRow(partition=partition, version=version, replicas=replicas)


def table_of(*rows: Sent) -> PartitionTable[str]:
    return PartitionTable(row_of(number, *row) for number, row in enumerate(rows))


def shown(table: PartitionTable[str]) -> list[Sent]:
    return [(r.version, "".join(member or "-" for member in r.replicas)) for r in table.rows]


@pytest.mark.parametrize(
    ("own", "sent", "after"),
    [
        ((4, "AB"), (3, "CD"), (4, "AB")),
        ((4, "AB"), (4, "AB"), (4, "AB")),
        ((4, "AB"), (5, "CD"), (5, "CD")),
        ((4, "AB"), (5, "AB"), (5, "AB")),
        ((0, ""), (1, "A"), (1, "A")),
        ((4, "A-B"), (4, "A-B----"), (4, "A-B")),
    ],
    ids=["lower", "equal", "higher", "higher, same row", "first", "empty places at the end"],
)
def test_each_partition_takes_what_is_newer(own: Sent, sent: Sent, after: Sent) -> None:
    table = table_of((9, "X"), own, (0, "Y"))
    taken = table.taking(table_of((8, "Z"), sent, (1, "Z")))
    assert shown(taken) == [(9, "X"), after, (1, "Z")]
    assert taken.rows[0] is table.rows[0]


@pytest.mark.parametrize("sent", [(4, "BA"), (4, "A"), (4, "ABC"), (4, "A-B"), (4, "")])
def test_one_version_with_two_rows_has_diverged(sent: Sent) -> None:
    table = table_of((1, "X"), (4, "AB"))
    with pytest.raises(DivergedError, match="partition 1 version 4") as caught:
        table.taking(table_of((2, "Y"), sent))
    assert (caught.value.partition, caught.value.version) == (1, 4)
    assert shown(table) == [(1, "X"), (4, "AB")]


def test_the_text_of_a_divergence_has_both_rows() -> None:
    with pytest.raises(DivergedError, match=r"here is .*\[A, -, B\], and .*\[B, A\] was sent"):
        table_of((4, "A-B")).taking(table_of((4, "BA")))


def test_partitions_that_only_one_table_has_are_kept_and_taken() -> None:
    short, long = table_of((1, "A")), table_of((0, "Z"), (3, "B"))
    assert shown(short.taking(long)) == shown(long.taking(short)) == [(1, "A"), (3, "B")]


SENT = st.tuples(st.integers(0, 3), st.sampled_from(["A", "AB", "B-A"]))
TABLES = st.lists(SENT, min_size=3, max_size=3)


@given(TABLES, TABLES)
def test_taking_is_the_table_of_the_docstring(own: Sequence[Sent], sent: Sequence[Sent]) -> None:
    both = list(zip(own, sent, strict=True))
    if any(mine[0] == other[0] and mine[1] != other[1] for mine, other in both):
        with pytest.raises(DivergedError):
            table_of(*own).taking(table_of(*sent))
    else:
        taken = table_of(*own).taking(table_of(*sent))
        assert shown(taken) == [max(mine, other, key=lambda row: row[0]) for mine, other in both]
        assert shown(table_of(*sent).taking(table_of(*own))) == shown(taken)
        assert shown(taken.taking(table_of(*sent))) == shown(taken)


def test_a_table_has_a_stamp_and_the_sum_of_its_versions() -> None:
    table = table_of((5, "A"), (0, "B"), (7, ""))
    assert table.stamp == stamp([5, 0, 7]) != table_of((0, "A"), (5, "B"), (7, "")).stamp
    assert table.version_sum == 12
    assert repr(table) == f"<PartitionTable partitions=3 stamp={table.stamp}>"


def test_rows_stand_in_the_place_of_their_partition() -> None:
    with pytest.raises(PlacementError, match="was given for partition 0"):
        PartitionTable([row_of(1, 0, "A")])


@pytest.mark.parametrize("version", [-1, VERSION_MAX + 1])
def test_a_version_of_a_row_has_its_bounds(version: int) -> None:
    with pytest.raises(PlacementError, match="the version of partition 3"):
        row_of(3, version, "A")


@pytest.mark.parametrize("members", ["AA", "ABCDEFGH"])
def test_a_row_of_a_table_is_a_row(members: str) -> None:
    with pytest.raises(PlacementError, match="the row of partition 3 h"):
        row_of(3, 0, members)


def test_a_row_has_no_empty_places_at_its_end() -> None:
    row = row_of(0, 1, "A-B--")
    assert row.replicas == ("A", None, "B")
    assert row == row_of(0, 1, "A-B")
    assert str(row) == "partition 0 version 1 [A, -, B]"
