from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tidelog.wal.retention import (
    MICROSECONDS,
    RULES,
    Holders,
    RetentionLimits,
    RetentionPlan,
    SegmentInfo,
    plan_retention,
)

NOW = 1_000 * MICROSECONDS
NOTHING = RetentionLimits(size_bytes=0, age_seconds=0)


def segments(count: int = 4) -> list[SegmentInfo]:
    """Segments 1, 2, ... of 100 positions and 10 bytes each; the newest record is 100 s younger."""
    return [
        SegmentInfo(
            number=number,
            first_position=100 * (number - 1),
            end_position=100 * number,
            size_bytes=10,
            newest=NOW - (count - number) * 100 * MICROSECONDS,
        )
        for number in range(1, count + 1)
    ]


def plan(
    limits: RetentionLimits = NOTHING,
    checkpoint: int = 10_000,
    pins: dict[str, int] | None = None,
    readers: dict[str, int] | None = None,
) -> RetentionPlan:
    holders = Holders(checkpoint=checkpoint, pins=pins or {}, readers=readers or {})
    return plan_retention(segments(), limits=limits, holders=holders, now=NOW)


def test_a_the_segment_that_is_written_stays() -> None:
    assert plan() == RetentionPlan((1, 2, 3), {4: ("being written",)})


@pytest.mark.parametrize(
    ("checkpoint", "droppable"), [(0, ()), (99, ()), (100, (1,)), (250, (1, 2))]
)
def test_b_what_recovery_would_replay_stays(checkpoint: int, droppable: tuple[int, ...]) -> None:
    found = plan(checkpoint=checkpoint)
    assert found.droppable == droppable
    assert all("recovery" in found.held[number] for number in range(len(droppable) + 1, 5))


@pytest.mark.parametrize(("position", "droppable"), [(0, ()), (99, ()), (100, (1,)), (299, (1, 2))])
def test_c_and_d_what_a_pin_or_a_reader_is_at_or_below_stays(
    position: int, droppable: tuple[int, ...]
) -> None:
    pinned = plan(pins={"backup": position})
    assert pinned.droppable == droppable
    assert pinned.held[len(droppable) + 1] == ("pin backup",)
    read = plan(readers={"12345": position, "far": 10_000})
    assert read.droppable == droppable
    assert read.held[len(droppable) + 1] == ("reader 12345",)


def test_e_the_log_is_kept_up_to_a_size() -> None:
    for size, droppable in ((0, (1, 2, 3)), (19, (1, 2, 3)), (20, (1, 2)), (40, ())):
        found = plan(RetentionLimits(size_bytes=size))
        assert found.droppable == droppable
        assert all(found.held[n] == ("history",) for n in range(len(droppable) + 1, 4))


def test_e_the_log_is_kept_up_to_an_age() -> None:
    for age, droppable in ((0, (1, 2, 3)), (100, (1, 2, 3)), (101, (1, 2)), (301, ())):
        assert plan(RetentionLimits(age_seconds=age)).droppable == droppable


def test_e_one_exceeded_limit_is_enough_and_no_limit_keeps_all() -> None:
    assert plan(RetentionLimits(size_bytes=1_000, age_seconds=101)).droppable == (1, 2)
    assert plan(RetentionLimits(size_bytes=20, age_seconds=9_999)).droppable == (1, 2)
    assert plan(RetentionLimits()).droppable == ()


def test_e_a_segment_without_a_time_is_not_kept_for_its_age() -> None:
    infos = segments()
    infos[0] = SegmentInfo(number=1, first_position=0, end_position=100, size_bytes=10)
    holders = Holders(checkpoint=10_000)
    by_age = plan_retention(
        infos, limits=RetentionLimits(age_seconds=9_999), holders=holders, now=NOW
    )
    assert by_age.droppable == (1,)
    kept = plan_retention(infos, limits=RetentionLimits(), holders=holders, now=NOW)
    assert kept.droppable == ()


def test_all_that_holds_a_segment_is_told() -> None:
    found = plan(RetentionLimits(), checkpoint=0, pins={"b": 0, "a": 0}, readers={"7": 0})
    assert found.held[4] == (
        "being written", "recovery", "pin a", "pin b", "reader 7", "history"
    )  # fmt: skip


def test_a_segment_behind_a_kept_one_is_kept_with_it() -> None:
    infos = segments()
    infos[1] = SegmentInfo(
        number=2, first_position=100, end_position=200, size_bytes=10, newest=NOW - MICROSECONDS
    )
    infos[2] = SegmentInfo(number=3, first_position=200, end_position=300, size_bytes=10, newest=0)
    found = plan_retention(
        infos,
        limits=RetentionLimits(age_seconds=50),
        holders=Holders(checkpoint=10_000),
        now=NOW,
    )
    assert found.droppable == (1,)
    assert found.held[2] == ("history",)
    assert found.held[3] == ("segment 2",)


def test_what_keeps_a_segment_is_the_first_kept_one_before_it() -> None:
    infos = [
        replace(segment, newest=NOW if segment.number == 1 else 0)
        for segment in [
            *segments(),
            SegmentInfo(number=5, first_position=400, end_position=500, size_bytes=10, newest=0),
        ]
    ]
    found = plan_retention(
        infos,
        limits=RetentionLimits(age_seconds=50),
        holders=Holders(checkpoint=10_000),
        now=NOW,
    )
    assert [found.held[number] for number in (1, 2, 3, 4)] == [
        ("history",), ("segment 1",), ("segment 1",), ("segment 1",)
    ]  # fmt: skip


def test_without_segments_there_is_nothing_to_drop() -> None:
    empty = plan_retention([], limits=NOTHING, holders=Holders(checkpoint=0), now=NOW)
    assert empty == RetentionPlan((), {})


def test_nothing_that_is_needed_ever_goes() -> None:
    chance = random.Random(5)
    for _ in range(300):
        needs = [chance.randrange(500) for _ in range(3)]
        found = plan(
            RetentionLimits(size_bytes=chance.randrange(60), age_seconds=chance.randrange(500)),
            checkpoint=needs[0],
            pins={"pin": needs[1]},
            readers={"slot": needs[2]},
        )
        assert found.droppable == tuple(range(1, len(found.droppable) + 1))
        assert 100 * len(found.droppable) <= min(needs)
        assert sorted([*found.droppable, *found.held]) == [1, 2, 3, 4]


def test_the_rules_have_letters() -> None:
    assert [letter for letter, _ in RULES] == list("ABCDE")
