"""Assignment: even, with few new copies, and the same for everybody who asks.

``support.flows`` says how few new copies there could be at all.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st

from support.flows import fewest_new_copies
from tidelog.affinity import assign
from tidelog.affinity.errors import PlacementError
from tidelog.affinity.quotas import quotas, zone_limit

Rows = Sequence[Sequence[str | None]]
Zones = Mapping[str, Hashable]


def names(count: int, start: int = 0) -> list[str]:
    return [f"m{number:02d}" for number in range(start, start + count)]


def counted(members: Iterable[str], seen: Iterable[str | None]) -> list[int]:
    counts = Counter(seen)
    return [counts[member] for member in members]


def spread(counts: Sequence[int]) -> int:
    return max(counts) - min(counts)


def new_copies(before: Rows, after: Rows) -> int:
    return sum(len({*new} - {*old}) for old, new in zip(before, after, strict=True))


def bound(before: Rows, members: Sequence[str], copies: int) -> int:
    """The larger of the number of holes, and of what members lack to an even share."""
    held = counted(members, [member for row in before for member in row])
    each, over = divmod(copies * len(before), len(members))
    shares = [each + (place < over) for place in range(len(members))]
    lacks = (max(0, s - h) for s, h in zip(shares, sorted(held, reverse=True), strict=True))
    return max(copies * len(before) - sum(held), sum(lacks))


def check_rows(rows: Rows, partitions: int, copies: int) -> None:
    assert len(rows) == partitions
    for row in rows:
        assert len(row) == len({*row}) == copies
        assert None not in row


def check_even(rows: Rows, members: Sequence[str]) -> None:
    assert spread(counted(members, [member for row in rows for member in row])) <= 1
    assert spread(counted(members, [row[0] for row in rows])) <= 1


def check_roles(before: Rows, after: Rows) -> None:
    """Who stays keeps its place, unless the primary of its row is another one."""
    for old, new in zip(before, after, strict=True):
        if old and old[0] == new[0]:
            assert all(new.index(m) == old.index(m) for m in new if m in old[: len(new)])


# ------------------------------------------------------------------ by hand


def test_with_one_member_it_has_everything() -> None:
    assert assign(["a"], 3, 2) == [["a"]] * 3


@pytest.mark.parametrize(
    ("members", "backups", "copies"),
    [(1, 0, 1), (1, 6, 1), (3, 1, 2), (3, 2, 3), (3, 3, 3), (9, 0, 1), (9, 6, 7), (9, 8, 7)],
)
def test_a_row_has_as_many_members_as_it_may(members: int, backups: int, copies: int) -> None:
    check_rows(assign(names(members), 20, backups), 20, copies)


def test_nothing_moves_where_nothing_changed() -> None:
    rows = assign(names(5), 64, 2)
    assert assign(names(5), 64, 2, rows) == rows


def test_a_member_that_joins_takes_its_share_and_nobody_else_gets_anything() -> None:
    before = assign(names(5), 60, 1)
    after = assign(names(6), 60, 1, before)
    assert new_copies(before, after) == 20 == sum("m05" in row for row in after)
    assert sum(row[0] == "m05" for row in after) == 10
    check_even(after, names(6))
    check_roles(before, after)


def test_a_member_that_left_is_replaced_in_its_rows_only() -> None:
    before = assign(names(6), 60, 1)
    after = assign(names(5), 60, 1, before)
    assert new_copies(before, after) == 20
    assert [new for old, new in zip(before, after, strict=True) if "m05" not in old] == [
        old for old in before if "m05" not in old
    ]
    check_even(after, names(5))


def test_roles_are_handed_on_in_rows_that_change_first() -> None:
    before = assign(names(10), 500, 2)
    after = assign(names(11), 500, 2, before)
    check_even(after, names(11))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert all({*old} != {*new} for old, new in changed)
    # No two have just changed places.
    assert not any(
        one != other and old[new.index(one)] == other and old[new.index(other)] == one
        for old, new in changed
        for one in new
        for other in new
    )


def test_a_role_is_handed_on_in_the_row_that_changes_rather_than_in_another() -> None:
    after = assign(["a", "b"], 2, 1, [["a", "b"], ["gone", "a"]])
    assert after == [["a", "b"], ["b", "a"]]


def test_what_is_left_over_goes_to_those_who_had_most() -> None:
    before = [["c", "d"], ["gone", "c"]]
    assert new_copies(before, assign(["a", "c", "d"], 2, 0, before)) == 0


def test_roles_are_handed_on_elsewhere_where_that_is_not_enough() -> None:
    before = [["a", "b"]] * 4
    after = assign(["a", "b"], 4, 1, before)
    assert sorted(after) == [["a", "b"], ["a", "b"], ["b", "a"], ["b", "a"]]


def test_the_next_one_becomes_primary_where_the_primary_has_left() -> None:
    before = [["gone", "b", "c"], ["b", "c", "gone"], ["c", "gone", "b"]]
    after = assign(["b", "c", "d"], 3, 2, before)
    check_even(after, ["b", "c", "d"])
    assert after[1] == ["b", "c", "d"]
    assert after[2] == ["c", "d", "b"]
    assert after[0][0] != "gone"


def test_a_member_without_a_copy_is_primary_only_where_nobody_has_one() -> None:
    after = assign(["a", "b", "c"], 3, 1, [[None, "a"], [None, None], ["b", None]])
    assert after[0][0] == "a"
    assert after[2][0] == "b"
    assert after[1][0] == "c"


def test_places_beyond_the_end_of_a_row_move_up() -> None:
    assert assign(["a", "b"], 1, 1, [["a", None, None, "b"]]) == [["a", "b"]]
    assert assign(["a", "b", "c"], 1, 0, [["gone", None, "c", "a"]]) == [["c"]]


def test_members_may_be_of_any_kind_that_has_a_text() -> None:
    ids = [UUID(int=number) for number in range(4)]
    rows = assign(ids, 8, 1)
    assert {type(member) for row in rows for member in row} == {UUID}
    assert assign(map(str, ids), 8, 1) == [[str(member) for member in row] for row in rows]
    assert assign([3, 1, 2], 1, 2) == assign([1, 2, 3], 1, 2)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (([], 4, 1), {}, "there are no members"),
        ((["a", "a"], 4, 1), {}, "two members have the same text: 'a' and 'a'"),
        ((["1", 1], 4, 1), {}, "two members have the same text: '1' and 1"),
        ((["a"], 0, 1), {}, "partitions must be a whole number of at least 1, not 0"),
        ((["a"], 1.5, 1), {}, "partitions must be a whole number of at least 1, not 1.5"),
        ((["a"], 4, -1), {}, "backups must be a whole number of at least 0, not -1"),
        ((["a"], 4, True), {}, "backups must be a whole number of at least 0, not True"),
        ((["a"], 2, 1), {"previous": [["a"]]}, "there are 1 previous rows of 2 partitions"),
        ((["a"], 2, 1), {"previous": [[], ["b", "b"]]}, "the previous row of partition 1 holds"),
        ((["a"], 1, 1), {"previous": [list("abcdefgh")]}, "the previous row of partition 0 has 8"),
        ((["a", "b"], 1, 1), {"zones": {"a": 1}}, "member 'b' has no zone"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(
    arguments: Any, options: Any, text: str
) -> None:
    with pytest.raises(PlacementError, match=text) as caught:
        assign(*arguments, **options)
    assert isinstance(caught.value, ValueError)


# ------------------------------------------------------------------ quotas


@pytest.mark.parametrize(
    ("sizes", "copies", "limit"),
    [
        ([5], 3, 3),
        ([2, 2], 3, 2),
        ([1, 5], 3, 2),
        ([1, 1, 5], 3, 1),
        ([1, 1, 5], 4, 2),
        ([3, 3, 3, 3], 3, 1),
        ([1, 1, 9], 7, 5),
    ],
)
def test_a_zone_holds_as_few_copies_of_a_row_as_it_can(
    sizes: list[int], copies: int, limit: int
) -> None:
    zones = [zone for zone, size in enumerate(sizes) for _ in range(size)]
    assert zone_limit(zones, copies) == limit


@pytest.mark.parametrize(
    ("order", "zones", "partitions", "copies", "expected"),
    [
        ([0, 1, 2], [0, 0, 0], 4, 2, [3, 3, 2]),
        ([2, 1, 0], [0, 0, 0], 4, 2, [2, 3, 3]),
        # Three copies in three zones: each zone holds all partitions, however small it is.
        ([0, 1, 2, 3], [0, 1, 1, 2], 4, 3, [4, 2, 2, 4]),
        ([3, 2, 1, 0], [0, 1, 1, 2], 3, 3, [3, 1, 2, 3]),
        # Two copies in three zones: nobody holds more than all partitions.
        ([0, 1, 2, 3], [0, 1, 1, 2], 4, 2, [2, 2, 2, 2]),
        # Two copies in two zones: a zone with one member, and four that share.
        ([0, 1, 2, 3, 4], [0, 1, 1, 1, 1], 8, 2, [8, 2, 2, 2, 2]),
        # What is left over goes where the zone has room: the first one has none for a third.
        ([0, 1, 2, 3], [0, 1, 1, 1], 2, 3, [2, 2, 1, 1]),
    ],
)
def test_quotas_are_even_within_the_room_of_the_zones(
    order: list[int], zones: list[int], partitions: int, copies: int, expected: list[int]
) -> None:
    assert quotas(order, zones, partitions, copies) == expected


# ------------------------------------------------------------------ whatever happens

COUNTS = st.integers(0, 6)
CHANGES = st.lists(st.integers(-9, 4), min_size=1, max_size=6)
"""Below zero a member leaves, else so many join."""


def histories(start: int, changes: Iterable[int]) -> Iterable[list[str]]:
    """The members before and after each change."""
    members, made = names(start), start
    yield members
    for change in changes:
        if change < 0 and len(members) > 1:
            members = [m for place, m in enumerate(members) if place != -change % len(members)]
        else:
            members, made = members + names(max(change, 1), made), made + max(change, 1)
        yield members


@given(
    start=st.integers(1, 9),
    changes=CHANGES,
    partitions=st.integers(1, 30),
    backups=COUNTS,
    data=st.data(),
)
def test_rows_are_full_and_even_and_have_no_copy_too_many_that_is_new(
    start: int, changes: list[int], partitions: int, backups: int, data: st.DataObject
) -> None:
    rows: list[list[str]] | None = None
    for members in histories(start, changes):
        copies = min(backups + 1, len(members), 7)
        after = assign(members, partitions, backups, rows)
        check_rows(after, partitions, copies)
        check_even(after, members)
        assert assign(data.draw(st.permutations(members)), partitions, backups, rows) == after
        if rows is not None:
            check_roles(rows, after)
            assert new_copies(rows, after) == fewest(rows, members, copies)
        rows = after


def fewest(rows: Rows, members: list[str], copies: int) -> int:
    each, over = divmod(copies * len(rows), len(members))
    return fewest_new_copies(
        rows,
        members,
        copies,
        shares=dict.fromkeys(members, (each, each + bool(over))),
        over=over,
        zones=dict.fromkeys(members, ""),
        limit=copies,
    )


ODD_ROWS = st.lists(
    st.lists(st.sampled_from([None, *names(12)]), max_size=7).map(
        lambda row: [m for place, m in enumerate(row) if m is None or m not in row[:place]]
    ),
    min_size=1,
    max_size=12,
)


@given(previous=ODD_ROWS, count=st.integers(1, 12), backups=COUNTS)
def test_any_previous_rows_lead_to_full_and_even_ones(
    previous: list[list[str | None]], count: int, backups: int
) -> None:
    after = assign(names(count), len(previous), backups, previous)
    check_rows(after, len(previous), min(backups + 1, count, 7))
    check_even(after, names(count))
    assert new_copies(previous, after) <= 1.1 * fewest(previous, names(count), len(after[0])) + 1


@pytest.mark.parametrize("backups", [0, 1, 2, 3])
@pytest.mark.parametrize("partitions", [64, 271])
def test_joins_and_leaves_make_exactly_as_many_new_copies_as_they_must(
    partitions: int, backups: int
) -> None:
    chance = random.Random(partitions + backups)
    rows, steps = assign(names(6), partitions, backups), 0
    for members in histories(6, [chance.choice([-1, -5, 1, 1, 2]) for _ in range(40)]):
        after = assign(members, partitions, backups, rows)
        assert new_copies(rows, after) == bound(rows_left(rows, members), members, len(after[0]))
        rows, steps = after, steps + 1
    assert steps == 41


def rows_left(rows: Rows, members: Sequence[str]) -> Rows:
    return [[member for member in row if member in members] for row in rows]


# ------------------------------------------------------------------ zones


def check_zones(rows: Rows, members: Sequence[str], zones: Zones) -> None:
    sizes = Counter(zones[member] for member in members)
    copies = len(rows[0])
    limit = next(n for n in range(8) if sum(min(size, n) for size in sizes.values()) >= copies)
    for row in rows:
        assert max(Counter(zones[member] for member in row if member).values()) <= limit
    for zone in sizes:
        inside = [member for member in members if zones[member] == zone]
        assert spread(counted(inside, [member for row in rows for member in row])) <= 1


def test_no_two_copies_are_in_one_zone_where_there_are_zones_enough() -> None:
    members = names(7)
    zones = {member: f"rack {number % 3}" for number, member in enumerate(members)}
    rows = assign(members, 50, 2, zones=zones)
    assert {len({zones[member] for member in row}) for row in rows} == {3}
    check_zones(rows, members, zones)
    assert spread(counted(members, [row[0] for row in rows])) <= 1


def test_rows_that_break_a_new_zone_are_changed_at_their_colder_end() -> None:
    after = assign(names(3), 1, 1, [["m00", "m01"]], {"m00": "a", "m01": "a", "m02": "b"})
    assert after == [["m00", "m02"]]


def test_a_row_that_becomes_shorter_than_its_zones_keeps_its_hotter_end() -> None:
    zones = {member: member for member in names(3)}
    assert assign(names(3), 1, 0, [["m01", "m00"]], zones) == [["m01"]]


def test_rows_of_one_new_zone_each_exchange_members() -> None:
    # Everybody has its quota already.
    zones = {"m00": "a", "m01": "a", "m02": "b", "m03": "b"}
    after = assign(names(4), 2, 1, [["m00", "m01"], ["m02", "m03"]], zones)
    assert [{zones[member] for member in row} for row in after] == [{"a", "b"}] * 2
    assert [row[0] for row in after] == ["m00", "m02"]


ZONED = st.tuples(st.integers(1, 5), st.randoms(use_true_random=False))


@given(
    start=st.integers(1, 9),
    changes=CHANGES,
    partitions=st.integers(1, 20),
    backups=st.integers(0, 3),
    zoned=ZONED,
)
def test_zones_are_kept_through_joins_and_leaves(
    start: int,
    changes: list[int],
    partitions: int,
    backups: int,
    zoned: tuple[int, random.Random],
) -> None:
    zones = {member: zoned[1].randrange(zoned[0]) for member in names(60)}
    rows: list[list[str]] | None = None
    for members in histories(start, changes):
        mirrored = dict(reversed(zones.items()))
        after = assign(members, partitions, backups, rows, zones)
        check_rows(after, partitions, min(backups + 1, len(members)))
        check_zones(after, members, zones)
        assert assign(members[::-1], partitions, backups, rows, mirrored) == after
        rows = after


@pytest.mark.slow
def test_zones_cost_hardly_more_new_copies_than_they_must() -> None:
    chance = random.Random(7)
    made = fewest = steps = 0
    for count in (2, 3, 4, 5):
        zones = {member: str(chance.randrange(count)) for member in names(99)}
        rows = assign(names(9), 48, 2, zones=zones)
        for members in histories(9, [chance.choice([-1, -4, -6, 1, 1, 1]) for _ in range(12)]):
            after = assign(members, 48, 2, rows, zones)
            made += new_copies(rows, after)
            fewest += fewest_with_zones(rows, members, zones)
            rows, steps = after, steps + 1
    assert steps == 52
    assert fewest <= made <= 1.02 * fewest
    assert fewest > 500


def fewest_with_zones(rows: Rows, members: list[str], zones: Mapping[str, str]) -> int:
    copies = min(3, len(members))
    numbers = [sorted(set(zones.values())).index(zones[member]) for member in members]
    quota = dict(zip(members, quotas(range(len(members)), numbers, len(rows), copies), strict=True))
    shares = {}
    for member in members:
        alike = [quota[other] for other in members if abs(quota[other] - quota[member]) <= 1]
        shares[member] = min(alike), max(alike)
    return fewest_new_copies(
        rows,
        members,
        copies,
        shares=shares,
        over=copies * len(rows) - sum(least for least, _ in shares.values()),
        zones=zones,
        limit=zone_limit(numbers, copies),
    )


# ------------------------------------------------------------------ every process


PROGRAM = """
from uuid import UUID
from tidelog.affinity import assign
members = {UUID(int=n * 7919) for n in range(9)} | {f"text {n}" for n in range(4)}
zones = {member: hash(str(member)) and str(member)[-1] for member in members}
rows = assign(members, 100, 2)
rows = assign([m for m in members if str(m) != "text 2"], 100, 2, rows, zones)
print([[str(member) for member in row] for row in rows])
"""


@pytest.mark.slow
def test_every_process_gets_the_same_rows_whatever_its_hash_seed() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(printed) == 1
    assert printed.pop().count("[") == 101


def test_the_first_rows_never_change() -> None:
    assert assign(names(5), 4, 2) == [
        ["m04", "m00", "m02"],
        ["m01", "m02", "m04"],
        ["m03", "m00", "m01"],
        ["m00", "m01", "m03"],
    ]


@settings(max_examples=5)
@given(st.randoms(use_true_random=False))
def test_a_member_keeps_most_rows_of_a_first_table_where_another_one_is_missing(
    chance: random.Random,
) -> None:
    members = names(12)
    gone = chance.choice(members)
    whole, less = assign(members, 400, 1), assign([m for m in members if m != gone], 400, 1)
    same = sum(len({*row} & {*other}) for row, other in zip(whole, less, strict=True))
    assert same > 0.75 * sum(member != gone for row in whole for member in row)
