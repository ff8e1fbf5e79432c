"""Sets of update numbers beside plain sets."""

from __future__ import annotations

from hypothesis import given, strategies as st

from tidelog.tx.counter import PartitionUpdateCounter
from tidelog.tx.numbers import NumberRanges, applied_in, in_both, united, without

RANGES = st.lists(
    st.tuples(st.integers(1, 30), st.integers(-1, 6)).map(lambda pair: (pair[0], sum(pair))),
    max_size=6,
)


def plain(ranges: NumberRanges) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def is_a_set(numbers: NumberRanges) -> bool:
    ends = [-1, *(last for _, last in numbers)]
    apart = all(end + 1 < first for end, (first, _) in zip(ends, numbers, strict=False))
    return apart and all(first <= last for first, last in numbers)


@given(RANGES)
def test_any_ranges_become_a_set(ranges: NumberRanges) -> None:
    found = united(ranges)
    assert is_a_set(found)
    assert plain(found) == plain(ranges)


@given(RANGES, RANGES)
def test_what_is_in_one_and_in_both(ranges: NumberRanges, others: NumberRanges) -> None:
    numbers = united(ranges)
    for found, wanted in (
        (without(numbers, others), plain(numbers) - plain(others)),
        (in_both(numbers, others), plain(numbers) & plain(others)),
    ):
        assert is_a_set(found)
        assert plain(found) == wanted


@given(RANGES)
def test_what_a_counter_has_applied(ranges: NumberRanges) -> None:
    counter = PartitionUpdateCounter()
    for first, last in united(ranges):
        counter.update(first - 1, last - first + 1)
    assert applied_in(counter) == united(ranges)
