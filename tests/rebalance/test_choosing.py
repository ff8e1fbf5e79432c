"""How a copy that was away comes back, by examples and beside plain sets of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from tidelog.rebalance.choosing import (
    LogReach,
    ShownByCopy,
    ShownByPrimary,
    SupplyChoice,
    SupplyKind,
    agreed_up_to,
    choose,
)
from tidelog.tx.counter import PartitionUpdateCounter

EPOCHS = ((1, 1), (3, 11))
PRIMARY = ShownByPrimary(epoch=3, epochs=EPOCHS, top=20, pending=((18, 18),))
ALL = (LogReach("s", 1),)


def copy(
    opened: int,
    lwm: int,
    *ranges: tuple[int, int],
    epochs: tuple[tuple[int, int], ...] | None = None,
    data_to: int | None = None,
    whole: bool = True,
) -> ShownByCopy:
    if epochs is None:
        epochs = tuple(entry for entry in EPOCHS if entry[0] <= opened)
    highest = ranges[-1][0] + ranges[-1][1] if ranges else lwm
    return ShownByCopy(
        whole=whole,
        opened=opened,
        epochs=epochs,
        lwm=lwm,
        ranges=ranges,
        data_to=min(highest, agreed_up_to(opened, PRIMARY)) if data_to is None else data_to,
    )


def agreed(choice: SupplyChoice[str]) -> set[int]:
    ranges = [(0, choice.lwm), *choice.ranges]
    return {number for start, delta in ranges for number in range(start + 1, start + delta + 1)}


def numbers(pairs: Iterable[tuple[int, int]]) -> set[int]:
    return {number for first, last in pairs for number in range(first, last + 1)}


def test_a_copy_that_has_everything_is_sent_nothing() -> None:
    choice: SupplyChoice[str] = choose(copy(3, 20), PRIMARY, ())
    assert (choice.kind, choice.missing, choice.supplier) == (SupplyKind.NONE, [], None)
    assert agreed(choice) == {*range(1, 18), 19, 20}, "what is pending is not agreed"
    assert choice.reason == "the copy has every number up to 20 that is not pending"
    assert choose(copy(3, 17, (18, 2)), PRIMARY, ()).kind is SupplyKind.NONE


def test_what_is_missing_comes_from_a_log_that_holds_all_of_it() -> None:
    choice = choose(
        copy(3, 9), PRIMARY, [LogReach("late", 11), LogReach("s", 10), LogReach("t", 1)]
    )
    assert (choice.kind, choice.supplier) == (SupplyKind.HISTORICAL, "s")
    assert choice.missing == [(10, 17), (19, 20)]
    assert choice.reason == (
        "10 to 17, 19 to 20 of 20 are missing, and the log of s holds them from 10 on"
    )


def test_a_number_above_a_gap_is_not_asked_for() -> None:
    # A search by LWM alone would ask for 10 to 17 and send what is there once more.
    choice = choose(copy(3, 9, (10, 3), (15, 1)), PRIMARY, ALL)
    assert choice.missing == [(10, 10), (14, 15), (17, 17), (19, 20)]
    assert agreed(choice) == {*range(1, 10), 11, 12, 13, 16}


def test_numbers_of_an_older_epoch_that_were_given_out_again_are_missing() -> None:
    choice = choose(copy(1, 12), PRIMARY, ALL)
    assert (choice.kind, choice.missing) == (SupplyKind.HISTORICAL, [(11, 17), (19, 20)])
    assert (choice.lwm, choice.ranges) == (10, [])


def test_an_epoch_in_which_nothing_survived_is_no_reason() -> None:
    choice = choose(copy(2, 9, epochs=((1, 1), (2, 11))), PRIMARY, ALL)
    assert (choice.kind, choice.missing) == (SupplyKind.HISTORICAL, [(10, 17), (19, 20)])


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (copy(1, 12, data_to=11), "has data at number 11, and from 11 on the numbers were given"),
        (copy(3, 12, epochs=((1, 1), (3, 10))), r"epochs of the copy are \[\(1, 1\), \(3, 10\)\]"),
        (copy(3, 12, epochs=((1, 1), (2, 9), (3, 11))), "it has diverged"),
        (copy(3, 12, epochs=((3, 1),)), "it has diverged"),
        (copy(4, 12), "has opened epoch 4, and the primary is in 3"),
        (copy(3, 12, whole=False), "is not whole"),
        (copy(0, 0), "is not whole"),
    ],
)
def test_what_cannot_be_compared_comes_anew(shown: ShownByCopy, told: str) -> None:
    choice = choose(shown, PRIMARY, ALL)
    assert (choice.kind, choice.lwm, choice.ranges) == (SupplyKind.FULL, 0, [])
    assert choice.missing == [(1, 17), (19, 20)]
    assert choice.supplier is None
    assert re.search(told, choice.reason)


@pytest.mark.parametrize(
    ("histories", "told", "instead"),
    [
        ((), "no log holds 10 to 17, 19 to 20", "if another copy in sync had its log"),
        (
            (LogReach("s", 15), LogReach("t", 11)),
            "number 10 is missing, and no log reaches further back than 11",
            "if a log had been kept from number 10 on",
        ),
        (
            (LogReach("s", 10, ((12, 14), (30, 38))), LogReach("t", 11)),
            "12 to 14 are in no log with their data: loaded, or prepared earlier",
            "if the copy had been there then",
        ),
    ],
)
def test_without_history_everything_is_sent(
    histories: tuple[LogReach[str], ...], told: str, instead: str
) -> None:
    choice = choose(copy(3, 9), PRIMARY, histories)
    assert (choice.kind, choice.reason, choice.instead) == (SupplyKind.FULL, told, instead)


def test_a_load_that_the_copy_has_is_in_nobodys_way() -> None:
    history = LogReach("s", 10, ((2, 6),))
    assert choose(copy(3, 9), PRIMARY, [history]).kind is SupplyKind.HISTORICAL


# ------------------------------------------------------------------ beside sets


@st.composite
def worlds(draw: st.DrawFn) -> tuple[ShownByCopy, ShownByPrimary, list[LogReach[str]], set[int]]:
    """A copy that went away in some epoch, and what came behind; with what it truly shares."""
    starts = sorted(draw(st.sets(st.integers(2, 30), max_size=3)))
    table = ((1, 1), *((2 + at, start) for at, start in enumerate(starts)))
    top = draw(st.integers(starts[-1] if starts else 1, 40))
    opened = draw(st.integers(1, len(table)))
    last = min([top, *(start - 1 for epoch, start in table if epoch > opened)])
    had = draw(st.sets(st.integers(1, last))) if last else set()
    closed = draw(st.sets(st.integers(last + 1, last + 5))) if opened < len(table) else set()
    counter = PartitionUpdateCounter()
    for number in sorted(had | closed):
        counter.update(number - 1, 1)
    pending = sorted(draw(st.sets(st.integers(table[-1][1], top))))
    shown = ShownByCopy(
        whole=True,
        opened=opened,
        epochs=tuple(entry for entry in table if entry[0] <= opened),
        lwm=counter.lwm,
        ranges=counter.out_of_order,
        data_to=max(had, default=0),
    )
    primary = ShownByPrimary(
        epoch=len(table), epochs=table, top=top, pending=tuple((one, one) for one in pending)
    )
    histories = [
        LogReach(
            str(at),
            draw(st.integers(1, 40)),
            tuple((one, one) for one in sorted(draw(st.sets(st.integers(1, 40), max_size=2)))),
        )
        for at in range(draw(st.integers(0, 2)))
    ]
    return shown, primary, histories, had - set(pending)


@given(worlds())
def test_agreed_missing_and_pending_are_all_numbers_once(
    world: tuple[ShownByCopy, ShownByPrimary, list[LogReach[str]], set[int]],
) -> None:
    shown, primary, histories, shared = world
    choice = choose(shown, primary, histories)
    pending, missing = numbers(primary.pending), numbers(choice.missing)
    assert agreed(choice) | missing | pending == set(range(1, primary.top + 1))
    assert not agreed(choice) & missing
    assert not (agreed(choice) | missing) & pending
    useful = [
        one.member
        for one in histories
        if missing and one.first <= min(missing) and not missing & numbers(one.lacking)
    ]
    if choice.kind is SupplyKind.FULL:
        assert (agreed(choice), choice.supplier) == (set(), None)
        rest = set(range(1, primary.top + 1)) - shared - pending
        assert rest
        assert not any(
            one.first <= min(rest) and not rest & numbers(one.lacking) for one in histories
        )
    else:
        assert agreed(choice) == shared
        assert (choice.kind is SupplyKind.NONE) == (not missing)
        assert choice.supplier == (useful[0] if missing else None)
