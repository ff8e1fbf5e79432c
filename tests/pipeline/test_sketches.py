"""Summaries in bounded memory keep their bounds, however their input is cut into parts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings, strategies as st

from tidelog.pipeline.base.sketches import HeavyHitters, Sizes

# Few of the numbers are frequent, and some parts are merged before others.
ITEMS = st.one_of(st.integers(0, 3), st.integers(0, 40))
PARTS = st.lists(st.lists(st.lists(ITEMS, max_size=30), max_size=6), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=40)
@given(PARTS, st.integers(1, 8))
@example([[[0] * 5 + [1, 2]]], 1)
def test_counts_of_frequent_items_keep_their_bound(
    parts: list[list[list[int]]], capacity: int
) -> None:
    whole: HeavyHitters[int] = HeavyHitters(capacity)
    for part in parts:
        found: HeavyHitters[int] = HeavyHitters(capacity)
        for items in part:
            found.add(items)
            assert len(found.counts) <= 2 * capacity
        whole.merge(found)
        assert len(whole.counts) <= 2 * capacity
    true = Counter(item for part in parts for items in part for item in items)
    for item, times in true.items():
        assert whole.counts[item] <= times <= whole.counts[item] + whole.error
    assert set(whole.counts) <= set(true)
    assert whole.error * (capacity + 1) <= true.total()
    if len(true) <= 2 * capacity:
        assert whole.error == 0
        assert whole.counts == true


def test_an_item_that_is_frequent_enough_is_never_lost() -> None:
    found: HeavyHitters[int] = HeavyHitters(9)
    for number in range(900):
        found.add([number, -1] if number % 5 == 0 else [number])
    assert found.error > 0
    ((item, count),) = found.counts.most_common(1)
    assert item == -1
    assert count <= 180 <= count + found.error


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 5000), max_size=20), max_size=4), st.integers(1, 100))
def test_a_percentile_is_at_most_twice_the_true_one(parts: list[list[int]], percent: int) -> None:
    whole = Sizes()
    for part in parts:
        found = Sizes()
        for size in part:
            found.add(size)
        whole.merge(found)
    sizes = sorted(size for part in parts for size in part)
    assert whole.total == sum(sizes)
    assert whole.largest == max(sizes, default=0)
    assert sum(count for _, count in whole.histogram()) == len(sizes)
    if not sizes:
        assert whole.percentile(percent) == 0
        return
    true = next(s for s in sizes if 100 * sum(t <= s for t in sizes) >= percent * len(sizes))
    assert true <= whole.percentile(percent) < max(2 * true, 1)
    assert whole.percentile(100) == whole.largest


def test_classes_of_sizes_are_powers_of_two() -> None:
    found = Sizes()
    for size in (0, 1, 2, 3, 4, 7, 8):
        found.add(size)
    assert found.histogram() == [(0, 1), (1, 1), (3, 2), (7, 2), (15, 1)]
