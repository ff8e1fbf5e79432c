"""The update counter: examples by hand, illegal input, damaged bytes, and a twin made of a set."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from itertools import permutations

import pytest
from crc32c import crc32c
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import tidelog.tx
from tidelog.errors import CorruptDataError, TooManyRangesError, UsageError
from tidelog.tx.counter import COUNTER_MAX, PartitionUpdateCounter

Ranges = list[tuple[int, int]]


class SlowCounter:
    """The twin: a set of all applied numbers, and every answer read off it."""

    def __init__(self) -> None:
        self.applied: set[int] = set()
        self.hwm = 0

    @property
    def lwm(self) -> int:
        number = 0
        while number + 1 in self.applied:
            number += 1
        return number

    @property
    def highest_applied(self) -> int:
        return max(self.applied, default=0)

    @property
    def missing(self) -> Ranges:
        return _runs(set(range(1, self.highest_applied + 1)) - self.applied)

    @property
    def out_of_order(self) -> Ranges:
        above = {number for number in self.applied if number > self.lwm}
        return [(first - 1, last - first + 1) for first, last in _runs(above)]

    def reserve(self, n: int) -> int:
        self.hwm += n
        return self.hwm - n

    def update(self, start: int, delta: int) -> bool:
        numbers = set(range(start + 1, start + delta + 1))
        new = not numbers <= self.applied
        self.applied |= numbers
        self.hwm = max(self.hwm, start + delta)
        return new

    def finalize(self) -> Ranges:
        gaps = self.missing
        self.hwm = self.highest_applied
        self.applied = set(range(1, self.hwm + 1))
        return gaps

    def set(self, value: int) -> None:
        if value >= self.lwm:
            self.applied = set(range(1, value + 1))
            self.hwm = max(self.hwm, value)

    def prepared(self, start: int, delta: int) -> None:
        self.hwm = max(self.hwm, start + delta)

    def cut(self, to: int, without: Ranges) -> None:
        gone = {n for start, delta in without for n in range(start + 1, start + delta + 1)}
        self.applied = {number for number in self.applied - gone if number <= to}
        self.hwm = min(self.hwm, to)

    def lower_hwm(self, to: int) -> None:
        self.hwm = to

    def reset(self) -> None:
        self.applied = set()
        self.hwm = 0


def _runs(numbers: set[int]) -> Ranges:
    runs: Ranges = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


State = tuple[int, int, int, Ranges, Ranges]


def state(counter: PartitionUpdateCounter | SlowCounter) -> State:
    return (
        counter.lwm,
        counter.hwm,
        counter.highest_applied,
        counter.out_of_order,
        counter.missing,
    )


def applied(counter: PartitionUpdateCounter) -> set[int]:
    numbers = set(range(1, counter.lwm + 1))
    for start, delta in counter.out_of_order:
        numbers |= set(range(start + 1, start + delta + 1))
    return numbers


def with_gaps() -> PartitionUpdateCounter:
    """Return a counter with LWM 5, HWM 14, and 7, 8 and 10 applied out of order."""
    counter = PartitionUpdateCounter(5, [(6, 2), (9, 1)])
    counter.reserve(4)
    return counter


# ------------------------------------------------------------------ the notation of the documents


def test_the_package_gives_the_counter_its_public_name() -> None:
    assert tidelog.tx.PartitionUpdateCounter is PartitionUpdateCounter


def test_a_new_counter_is_all_zero() -> None:
    assert state(PartitionUpdateCounter()) == (0, 0, 0, [], [])


def test_the_range_5_3_covers_6_7_and_8() -> None:
    counter = PartitionUpdateCounter(5)
    assert counter.update(5, 3)
    assert state(counter) == (8, 8, 8, [], [])


def test_lwm_5_hwm_9_with_6_2_means_that_6_and_9_are_still_to_come() -> None:
    counter = PartitionUpdateCounter(5)
    assert counter.reserve(4) == 5
    assert counter.update(6, 2)
    assert state(counter) == (5, 9, 8, [(6, 2)], [(6, 6)])
    assert applied(counter) == {1, 2, 3, 4, 5, 7, 8}


def test_lwm_5_hwm_11_with_two_ranges_has_applied_10_and_misses_6_and_8_and_9_no_more() -> None:
    counter = PartitionUpdateCounter(5)
    counter.reserve(6)
    counter.update(6, 1)
    counter.update(8, 2)
    assert state(counter) == (5, 11, 10, [(6, 1), (8, 2)], [(6, 6), (8, 8)])


def test_a_later_transaction_that_commits_first_holds_lwm_back() -> None:
    counter = PartitionUpdateCounter(5)
    first, second = counter.reserve(3), counter.reserve(2)
    assert (first, second, counter.hwm) == (5, 8, 10)
    assert counter.update(second, 2)
    assert (counter.lwm, counter.out_of_order) == (5, [(8, 2)])
    assert counter.update(first, 3)
    assert state(counter) == (10, 10, 10, [], [])


def test_any_commit_order_of_ranges_of_5_7_and_3_ends_at_15() -> None:
    for order in permutations([(0, 5), (5, 7), (12, 3)]):
        counter = PartitionUpdateCounter()
        counter.reserve(15)
        assert all(counter.update(start, delta) for start, delta in order)
        assert state(counter) == (15, 15, 15, [], [])


def test_reserve_returns_the_hwm_before_and_leaves_lwm_alone() -> None:
    counter = PartitionUpdateCounter(7)
    assert [counter.reserve(1), counter.reserve(5), counter.reserve(1)] == [7, 8, 13]
    assert (counter.lwm, counter.hwm) == (7, 14)


# ------------------------------------------------------------------ one row per case of update()

UPDATES: list[tuple[str, Ranges, Ranges, bool, int, Ranges]] = [
    # name, given ranges, then applied, whether the last was new, LWM, ranges
    ("in order", [], [(0, 3)], True, 3, []),
    ("the same again", [(0, 3)], [(0, 3)], False, 3, []),
    ("inside what is applied", [(0, 9)], [(2, 3)], False, 9, []),
    ("starts below LWM and ends above it", [(0, 3)], [(1, 5)], True, 6, []),
    ("ends exactly at LWM", [(0, 5)], [(2, 3)], False, 5, []),
    ("reaches the touching range", [(3, 2)], [(0, 3)], True, 5, []),
    ("reaches into a range", [(3, 4)], [(0, 5)], True, 7, []),
    ("swallows a range and ends above it", [(3, 2)], [(0, 9)], True, 9, []),
    ("swallows one, touches the next", [(2, 1), (5, 2)], [(0, 5)], True, 7, []),
    ("stops short of the next range", [(5, 2)], [(0, 4)], True, 4, [(5, 2)]),
    ("out of order", [], [(4, 2)], True, 0, [(4, 2)]),
    ("a range again", [(4, 2)], [(4, 2)], False, 0, [(4, 2)]),
    ("the start of a range again", [(4, 4)], [(4, 2)], False, 0, [(4, 4)]),
    ("the end of a range again", [(4, 4)], [(6, 2)], False, 0, [(4, 4)]),
    ("the middle of a range again", [(4, 4)], [(5, 2)], False, 0, [(4, 4)]),
    ("touches a range from above", [(4, 2)], [(6, 1)], True, 0, [(4, 3)]),
    ("touches a range from below", [(4, 2)], [(3, 1)], True, 0, [(3, 3)]),
    ("overlaps a range from above", [(4, 3)], [(6, 4)], True, 0, [(4, 6)]),
    ("overlaps a range from below", [(4, 3)], [(2, 4)], True, 0, [(2, 5)]),
    ("same start, longer", [(4, 2)], [(4, 5)], True, 0, [(4, 5)]),
    ("holds a range", [(4, 2)], [(2, 9)], True, 0, [(2, 9)]),
    ("fills the gap between two", [(2, 2), (6, 2)], [(4, 2)], True, 0, [(2, 6)]),
    ("overlaps two", [(2, 3), (7, 3)], [(4, 4)], True, 0, [(2, 8)]),
    ("holds three", [(2, 1), (5, 1), (8, 1)], [(1, 9)], True, 0, [(1, 9)]),
    ("lies between two", [(2, 1), (8, 1)], [(5, 1)], True, 0, [(2, 1), (5, 1), (8, 1)]),
    # What the original gets wrong: LWM fell from 10 to 8, numbers were lost, gaps turned round.
    ("a longer range, then a shorter one that LWM meets", [(6, 2), (5, 5)], [(0, 5)], True, 10, []),
    ("a shorter range inside, before LWM comes", [(5, 5), (6, 2)], [(0, 5)], True, 10, []),
    ("LWM is above the start, the tail is new", [(0, 8)], [(5, 5)], True, 10, []),
    ("part of it survived a crash", [(0, 2)], [(0, 5)], True, 5, []),
    ("two ranges that cross", [(3, 4), (5, 6)], [(0, 3)], True, 11, []),
    ("same start twice, longer first", [(3, 6), (3, 2)], [(0, 3)], True, 9, []),
]


@pytest.mark.parametrize(
    ("before", "then", "new", "lwm", "ranges"),
    [pytest.param(*row[1:], id=row[0]) for row in UPDATES],
)
def test_update_is_an_exact_union(
    before: Ranges, then: Ranges, new: bool, lwm: int, ranges: Ranges
) -> None:
    counter, twin = PartitionUpdateCounter(), SlowCounter()
    for start, delta in before:
        assert counter.update(start, delta) == twin.update(start, delta)
    assert [counter.update(*pair) for pair in then] == [new]
    assert [twin.update(*pair) for pair in then] == [new]
    assert (counter.lwm, counter.out_of_order) == (lwm, ranges)
    assert state(counter) == state(twin)


def test_finalize_after_crossing_ranges_never_lowers_lwm() -> None:
    for order in permutations([(6, 2), (5, 5), (0, 5)]):
        counter = PartitionUpdateCounter()
        for start, delta in order:
            counter.update(start, delta)
        assert counter.lwm == 10
        assert counter.finalize() == []
        assert state(counter) == (10, 10, 10, [], [])


def test_update_raises_hwm_to_the_end_of_its_range_and_never_lowers_it() -> None:
    counter = PartitionUpdateCounter()
    counter.update(4, 2)
    assert counter.hwm == 6
    counter.reserve(10)
    counter.update(0, 3)
    assert counter.hwm == 16


# ------------------------------------------------------------------ finalize, set, reset


def test_finalize_returns_the_gaps_and_forgets_reservations_above_the_highest_applied() -> None:
    counter = with_gaps()
    assert counter.hwm == 14
    assert counter.finalize() == [(6, 6), (9, 9)]
    assert state(counter) == (10, 10, 10, [], [])


def test_finalize_without_gaps_returns_none_of_them_and_lowers_hwm_to_lwm() -> None:
    counter = PartitionUpdateCounter(3)
    counter.reserve(5)
    assert counter.finalize() == []
    assert (counter.lwm, counter.hwm) == (3, 3)


def test_set_below_lwm_is_ignored() -> None:
    counter = with_gaps()
    before = state(counter)
    counter.set(4)
    assert state(counter) == before


@pytest.mark.parametrize("value", [5, 6, 9])
def test_set_below_the_highest_applied_raises_and_changes_nothing(value: int) -> None:
    counter = with_gaps()
    before = state(counter)
    with pytest.raises(UsageError, match="highest applied"):
        counter.set(value)
    assert state(counter) == before


@pytest.mark.parametrize(("value", "hwm"), [(10, 14), (12, 14), (14, 14), (20, 20)])
def test_set_from_the_highest_applied_on_drops_the_ranges_and_raises_hwm(
    value: int, hwm: int
) -> None:
    counter = with_gaps()
    counter.set(value)
    assert state(counter) == (value, hwm, value, [], [])


def test_set_drops_stale_ranges_the_second_time_too() -> None:
    counter = PartitionUpdateCounter()
    for value in (10, 20):
        counter.update(value - 4, 2)
        counter.set(value)
        assert state(counter) == (value, value, value, [], [])


def test_set_at_lwm_without_ranges_changes_nothing() -> None:
    counter = PartitionUpdateCounter(5)
    counter.reserve(2)
    counter.set(5)
    assert state(counter) == (5, 7, 5, [], [])


def test_numbers_that_another_copy_prepared_raise_hwm_only() -> None:
    counter = with_gaps()
    counter.prepared(20, 2)
    counter.prepared(3, 1)
    assert state(counter)[:3] == (5, 22, 10)


def test_a_cut_leaves_gaps_and_forgets_what_is_above() -> None:
    counter = PartitionUpdateCounter(5, [(6, 2)])
    counter.cut(7, [(2, 1)])
    assert state(counter)[:4] == (2, 7, 7, [(3, 2), (6, 1)])
    counter.cut(100)
    assert counter.hwm == 7


def test_a_new_epoch_lowers_hwm_to_no_less_than_what_is_applied() -> None:
    counter = with_gaps()
    for number in (9, 15):
        with pytest.raises(UsageError, match="cannot lower HWM"):
            counter.lower_hwm(number)
    counter.lower_hwm(11)
    assert state(counter)[:3] == (5, 11, 10)


def test_a_cut_that_would_leave_too_many_ranges_changes_nothing() -> None:
    counter = PartitionUpdateCounter(9, max_ranges=1)
    with pytest.raises(TooManyRangesError):
        counter.cut(9, [(1, 1), (3, 1), (5, 1)])
    assert state(counter)[:3] == (9, 9, 9)


def test_reset_sets_everything_to_zero() -> None:
    counter = with_gaps()
    counter.reset()
    assert counter == PartitionUpdateCounter()


# ------------------------------------------------------------------ building, comparing, showing


def test_ranges_given_to_the_constructor_are_united_like_updates() -> None:
    counter = PartitionUpdateCounter(5, [(8, 2), (6, 1), (2, 2), (9, 4)])
    assert state(counter) == (5, 13, 13, [(6, 1), (8, 5)], [(6, 6), (8, 8)])


def test_a_range_given_to_the_constructor_that_touches_lwm_raises_it() -> None:
    assert state(PartitionUpdateCounter(5, [(5, 2)])) == (7, 7, 7, [], [])


def test_counters_are_equal_when_lwm_hwm_and_ranges_are() -> None:
    assert with_gaps() == with_gaps()
    assert PartitionUpdateCounter(5, max_ranges=7) == PartitionUpdateCounter(5)
    reserved = with_gaps()
    reserved.reserve(1)
    assert reserved != with_gaps()
    assert PartitionUpdateCounter(1) != PartitionUpdateCounter(2)
    assert PartitionUpdateCounter(1, [(4, 1)]) != PartitionUpdateCounter(1, [(3, 2)])
    assert PartitionUpdateCounter() != 0


def test_a_counter_cannot_be_hashed_because_it_changes() -> None:
    with pytest.raises(TypeError):
        hash(PartitionUpdateCounter())


REPRS = [
    (PartitionUpdateCounter(), "<PartitionUpdateCounter lwm=0 hwm=0>"),
    (
        with_gaps(),
        "<PartitionUpdateCounter lwm=5 hwm=14 out_of_order=[(6,2)=7..8, (9,1)=10..10]>",
    ),
    (
        PartitionUpdateCounter(0, [(n, 1) for n in range(1, 13, 2)]),
        "<PartitionUpdateCounter lwm=0 hwm=12 "
        "out_of_order=[(1,1)=2..2, (3,1)=4..4, (5,1)=6..6, (7,1)=8..8, and 2 more]>",
    ),
]


@pytest.mark.parametrize(("counter", "shown"), REPRS)
def test_repr_is_a_status_of_one_line(counter: PartitionUpdateCounter, shown: str) -> None:
    assert repr(counter) == shown


def test_the_lists_it_returns_are_copies() -> None:
    counter = with_gaps()
    counter.out_of_order.clear()
    counter.missing.clear()
    assert counter == with_gaps()


# ------------------------------------------------------------------ illegal input

BAD_NUMBERS = [-1, COUNTER_MAX + 1, True, 1.0, "1", None, b"1"]

ILLEGAL: list[tuple[str, tuple[object, ...]]] = [
    *[("reserve", (n,)) for n in [0, COUNTER_MAX - 13, *BAD_NUMBERS]],
    *[("update", (n, 1)) for n in [COUNTER_MAX, [1], *BAD_NUMBERS]],
    *[("update", (5, n)) for n in [0, COUNTER_MAX - 4, *BAD_NUMBERS]],
    *[("set", (n,)) for n in BAD_NUMBERS],
]


@pytest.mark.parametrize(("method", "arguments"), ILLEGAL)
def test_illegal_input_raises_and_leaves_the_counter_untouched(
    method: str, arguments: tuple[object, ...]
) -> None:
    counter = with_gaps()
    before = counter.to_bytes()
    with pytest.raises(UsageError):
        getattr(counter, method)(*arguments)
    assert counter.to_bytes() == before
    assert counter == with_gaps()


@pytest.mark.parametrize("lwm", BAD_NUMBERS)
def test_an_illegal_lwm_builds_no_counter(lwm: int) -> None:
    with pytest.raises(UsageError):
        PartitionUpdateCounter(lwm)


@pytest.mark.parametrize(
    "ranges", [None, 5, [5], [(5,)], [(5, 1, 1)], [(5, 0)], [(-1, 3)], [("5", 1)], [(None, None)]]
)
def test_illegal_ranges_build_no_counter(ranges: Ranges) -> None:
    with pytest.raises(UsageError):
        PartitionUpdateCounter(0, ranges)


@pytest.mark.parametrize("max_ranges", [0, -1, True, 2.5, None, "9"])
def test_an_illegal_number_of_ranges_builds_no_counter(max_ranges: int) -> None:
    with pytest.raises(UsageError, match="max_ranges"):
        PartitionUpdateCounter(max_ranges=max_ranges)
    with pytest.raises(UsageError, match="max_ranges"):
        PartitionUpdateCounter.from_bytes(with_gaps().to_bytes(), max_ranges=max_ranges)


def test_the_largest_numbers_fit() -> None:
    counter = PartitionUpdateCounter(COUNTER_MAX - 3)
    assert counter.reserve(2) == COUNTER_MAX - 3
    assert counter.update(COUNTER_MAX - 1, 1)
    assert state(counter)[:3] == (COUNTER_MAX - 3, COUNTER_MAX, COUNTER_MAX)
    assert PartitionUpdateCounter.from_bytes(counter.to_bytes()) == counter
    with pytest.raises(UsageError):
        counter.reserve(1)
    assert counter.finalize() == [(COUNTER_MAX - 2, COUNTER_MAX - 1)]
    assert counter.lwm == COUNTER_MAX


# ------------------------------------------------------------------ the number of ranges


def test_one_separate_range_too_many_raises_and_changes_nothing() -> None:
    counter = PartitionUpdateCounter(max_ranges=3)
    for start in (2, 4, 6):
        counter.update(start, 1)
    before = state(counter)
    with pytest.raises(TooManyRangesError, match="lowest missing number is 1"):
        counter.update(8, 1)
    assert state(counter) == before


def test_a_full_counter_still_takes_what_joins_a_range_or_lwm() -> None:
    counter = PartitionUpdateCounter(max_ranges=2)
    counter.update(2, 1)
    counter.update(5, 1)
    assert counter.update(6, 1)
    assert counter.update(0, 1)
    assert counter.update(3, 2)
    assert state(counter) == (1, 7, 7, [(2, 5)], [(2, 2)])


def test_ten_thousand_ranges_are_the_limit_unless_said_otherwise() -> None:
    counter = PartitionUpdateCounter(0, [(2 * n, 1) for n in range(1, 10_001)])
    with pytest.raises(TooManyRangesError):
        counter.update(30_000, 1)
    assert len(counter.out_of_order) == 10_000
    with pytest.raises(TooManyRangesError):
        PartitionUpdateCounter(0, [(2 * n, 1) for n in range(1, 10_002)])


def test_bytes_with_more_ranges_than_allowed_raise() -> None:
    data = with_gaps().to_bytes()
    with pytest.raises(TooManyRangesError):
        PartitionUpdateCounter.from_bytes(data, max_ranges=1)
    assert PartitionUpdateCounter.from_bytes(data, max_ranges=2) == with_gaps()


# ------------------------------------------------------------------ bytes


def test_the_bytes_are_laid_out_as_the_table_says() -> None:
    body = struct.pack("<BqqI4q", 1, 5, 14, 2, 6, 2, 9, 1)
    assert with_gaps().to_bytes() == body + struct.pack("<I", crc32c(body))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_make_a_round_trip(kind: Callable[[bytes], bytes]) -> None:
    for counter in (PartitionUpdateCounter(), PartitionUpdateCounter(9), with_gaps()):
        again = PartitionUpdateCounter.from_bytes(kind(counter.to_bytes()))
        assert again == counter
        assert state(again) == state(counter)


def test_a_counter_from_bytes_goes_on_where_the_other_one_was() -> None:
    again = PartitionUpdateCounter.from_bytes(with_gaps().to_bytes())
    assert again.reserve(1) == 14
    assert again.update(5, 1)
    assert (again.lwm, again.out_of_order) == (8, [(9, 1)])


def test_bytes_cut_at_any_length_raise() -> None:
    data = with_gaps().to_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            PartitionUpdateCounter.from_bytes(data[:length])


def test_bytes_with_something_after_them_raise() -> None:
    for tail in (b"\0", b"\0" * 4, b"\0" * 16, with_gaps().to_bytes()):
        with pytest.raises(CorruptDataError):
            PartitionUpdateCounter.from_bytes(with_gaps().to_bytes() + tail)


@pytest.mark.parametrize("counter", [PartitionUpdateCounter(), with_gaps()])
def test_any_flipped_bit_raises(counter: PartitionUpdateCounter) -> None:
    data = counter.to_bytes()
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError):
            PartitionUpdateCounter.from_bytes(damaged)


def _sealed(version: int, lwm: int, hwm: int, count: int, *numbers: int) -> bytes:
    body = struct.pack(f"<BqqI{len(numbers)}q", version, lwm, hwm, count, *numbers)
    return body + struct.pack("<I", crc32c(body))


IMPOSSIBLE = {
    "another version": _sealed(2, 0, 0, 0),
    "fewer ranges than counted": _sealed(1, 0, 9, 1),
    "more ranges than counted": _sealed(1, 0, 9, 0, 3, 1),
    "HWM below LWM": _sealed(1, 5, 4, 0),
    "HWM below the highest range": _sealed(1, 0, 4, 1, 3, 2),
    "negative LWM": _sealed(1, -1, 4, 0),
    "a range that touches LWM": _sealed(1, 3, 9, 1, 3, 2),
    "a range below LWM": _sealed(1, 3, 9, 1, 1, 1),
    "an empty range": _sealed(1, 0, 9, 1, 3, 0),
    "a negative range": _sealed(1, 0, 9, 1, 3, -1),
    "ranges that touch": _sealed(1, 0, 9, 2, 3, 1, 4, 1),
    "ranges that overlap": _sealed(1, 0, 9, 2, 3, 3, 5, 1),
    "ranges out of order": _sealed(1, 0, 9, 2, 6, 1, 3, 1),
    "a range past 64 bits": _sealed(1, 0, COUNTER_MAX, 1, COUNTER_MAX, 1),
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in IMPOSSIBLE.items()])
def test_an_impossible_state_raises_though_its_crc_is_right(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        PartitionUpdateCounter.from_bytes(data)


@pytest.mark.parametrize("data", ["text", None, 5, [1, 2]])
def test_what_is_not_bytes_is_the_callers_fault(data: bytes) -> None:
    with pytest.raises(UsageError):
        PartitionUpdateCounter.from_bytes(data)


@given(st.binary(max_size=80))
def test_random_bytes_never_make_a_counter(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        PartitionUpdateCounter.from_bytes(data)


# ------------------------------------------------------------------ against the twin

SMALL = st.integers(0, 40)
DELTAS = st.integers(1, 12)


class CounterAndTwin(RuleBasedStateMachine):
    """Does the same to a counter and to its twin, and compares all that can be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = PartitionUpdateCounter()
        self.twin = SlowCounter()
        self.lwm = 0

    @rule(n=DELTAS)
    def reserve(self, n: int) -> None:
        assert self.counter.reserve(n) == self.twin.reserve(n)

    @rule(start=SMALL, delta=DELTAS)
    def update_anywhere(self, start: int, delta: int) -> None:
        assert self.counter.update(start, delta) == self.twin.update(start, delta)

    @rule(delta=DELTAS)
    def update_in_order(self, delta: int) -> None:
        start = self.counter.lwm
        assert self.counter.update(start, delta) == self.twin.update(start, delta)

    @precondition(lambda self: self.counter.out_of_order)
    @rule(data=st.data(), delta=DELTAS)
    def update_near_a_range(self, data: st.DataObject, delta: int) -> None:
        start, length = data.draw(st.sampled_from(self.counter.out_of_order))
        near = data.draw(st.sampled_from([max(0, start - delta), start, start + length]))
        assert self.counter.update(near, delta) == self.twin.update(near, delta)

    @rule()
    def finalize(self) -> None:
        assert self.counter.finalize() == self.twin.finalize()

    @rule(value=st.integers(0, 60))
    def set(self, value: int) -> None:
        if self.twin.lwm <= value < self.twin.highest_applied:
            with pytest.raises(UsageError):
                self.counter.set(value)
        else:
            self.counter.set(value)
            self.twin.set(value)

    @rule(start=SMALL, delta=DELTAS)
    def prepared(self, start: int, delta: int) -> None:
        self.counter.prepared(start, delta)
        self.twin.prepared(start, delta)

    @rule(to=st.integers(0, 60), without=st.lists(st.tuples(SMALL, DELTAS), max_size=3))
    def cut(self, to: int, without: Ranges) -> None:
        self.counter.cut(to, without)
        self.twin.cut(to, without)
        self.lwm = 0

    @rule(to=st.integers(0, 60))
    def lower_hwm(self, to: int) -> None:
        if self.twin.highest_applied <= to <= self.twin.hwm:
            self.counter.lower_hwm(to)
            self.twin.lower_hwm(to)
        else:
            with pytest.raises(UsageError):
                self.counter.lower_hwm(to)

    @rule()
    def reset(self) -> None:
        self.counter.reset()
        self.twin.reset()
        self.lwm = 0

    @rule()
    def restart(self) -> None:
        self.counter = PartitionUpdateCounter.from_bytes(self.counter.to_bytes())

    @invariant()
    def both_look_the_same(self) -> None:
        assert state(self.counter) == state(self.twin)
        assert applied(self.counter) == self.twin.applied

    @invariant()
    def the_marks_are_in_order_and_lwm_never_falls(self) -> None:
        counter = self.counter
        assert counter.hwm >= counter.highest_applied >= counter.lwm >= self.lwm
        self.lwm = counter.lwm


CounterAndTwin.TestCase.settings = settings(stateful_step_count=40)
test_a_counter_and_its_twin_never_differ = pytest.mark.slow(CounterAndTwin.TestCase)


@pytest.mark.parametrize("seed", range(20))
def test_random_overlapping_ranges_end_in_their_union(seed: int) -> None:
    rng = random.Random(seed)
    counter, twin = PartitionUpdateCounter(), SlowCounter()
    for _ in range(150):
        pair = (rng.randrange(200), rng.randint(1, 6))
        assert counter.update(*pair) == twin.update(*pair)
        assert counter.lwm == twin.lwm
    assert state(counter) == state(twin)


def _chunks(rng: random.Random, total: int, longest: int) -> Ranges:
    chunks: Ranges = []
    start = 0
    while start < total:
        delta = min(rng.randint(1, longest), total - start)
        chunks.append((start, delta))
        start += delta
    rng.shuffle(chunks)
    return chunks


@pytest.mark.parametrize("longest", [200, 2_000])
def test_a_permutation_of_a_million_numbers_leaves_no_range(longest: int) -> None:
    counter = PartitionUpdateCounter()
    count = 0
    for start, delta in _chunks(random.Random(longest), 1_000_000, longest):
        assert counter.update(start, delta)
        count += delta
        assert counter.lwm <= count <= counter.highest_applied
    assert state(counter) == (1_000_000, 1_000_000, 1_000_000, [], [])


@pytest.mark.slow
def test_numbers_applied_one_by_one_in_a_shuffled_window_leave_no_range() -> None:
    rng = random.Random(7)
    counter = PartitionUpdateCounter()
    window = [counter.reserve(1) for _ in range(1_000)]
    for _ in range(50_000 - len(window)):
        place = rng.randrange(len(window))
        assert counter.update(window[place], 1)
        window[place] = counter.reserve(1)
    rng.shuffle(window)
    assert all(counter.update(start, 1) for start in window)
    assert state(counter) == (50_000, 50_000, 50_000, [], [])
