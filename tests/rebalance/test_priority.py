from __future__ import annotations

import pytest

from support.letters import planned, row_of, step_text
from tidelog.rebalance import Migration, plan_migrations, prioritize
from tidelog.rebalance.priority import adds_copy, must_precede


def copying(member: str, index: int) -> Migration[str]:
    return Migration(destination=member, destination_new_index=index)


def moving(source: str, member: str, index: int) -> Migration[str]:
    return Migration(
        source=source, source_current_index=index, destination=member, destination_new_index=index
    )


def shifting_down(source: str, member: str, index: int, new: int) -> Migration[str]:
    return Migration(
        source=source,
        source_current_index=index,
        source_new_index=new,
        destination=member,
        destination_new_index=index,
    )


def shifting_up(member: str, now: int, index: int, source: str | None = None) -> Migration[str]:
    return Migration(
        source=source,
        source_current_index=-1 if source is None else index,
        destination=member,
        destination_current_index=now,
        destination_new_index=index,
    )


CLEARING = Migration(source="Z", source_current_index=6)
COPY = copying("D", 3)


@pytest.mark.parametrize(
    ("earlier", "precedes"),
    [
        pytest.param(copying("E", 2), True, id="a: it copies, too"),
        pytest.param(shifting_up("E", 4, 2), True, id="a: it shifts up into an empty place"),
        pytest.param(moving("D", "E", 2), True, id="b: it pushes the member out"),
        pytest.param(moving("E", "D", 2), True, id="b: it brings the member in"),
        pytest.param(shifting_down("E", "F", 0, 2), True, id="c: it fills a hotter place"),
        pytest.param(shifting_down("E", "F", 0, 4), False, id="it fills a colder place"),
        pytest.param(moving("E", "F", 2), False, id="it only moves"),
        pytest.param(moving("E", "F", 4), False, id="it moves at a colder place"),
        pytest.param(shifting_up("E", 4, 2, "F"), False, id="it shifts up, and pushes out"),
        pytest.param(CLEARING, False, id="it clears"),
    ],
)
def test_a_copy_stays_behind_what_must_run_before_it(
    earlier: Migration[str], precedes: bool
) -> None:
    assert must_precede(earlier, COPY) is precedes
    assert prioritize([earlier, COPY]) == ([earlier, COPY] if precedes else [COPY, earlier])


def test_the_place_that_is_filled_is_no_hotter_than_itself() -> None:
    assert not must_precede(shifting_down("E", "F", 0, 3), COPY)


@pytest.mark.parametrize(
    ("step", "adds"),
    [
        (COPY, True),
        (shifting_up("E", 4, 2), True),
        (shifting_up("E", 4, 2, "F"), False),
        (moving("E", "F", 2), False),
        (shifting_down("E", "F", 0, 2), False),
        (CLEARING, False),
    ],
)
def test_copies_and_shifts_into_empty_places_go_first(step: Migration[str], adds: bool) -> None:
    assert adds_copy(step) is adds
    hot = moving("M", "N", 0)
    assert prioritize([hot, step]) == ([step, hot] if adds else [hot, step])


def test_it_goes_as_far_as_nothing_is_in_its_way() -> None:
    one, two, three = moving("A", "B", 0), moving("C", "D", 1), moving("E", "F", 2)
    assert prioritize([one, two, three, COPY]) == [one, two, COPY, three]
    assert prioritize([one, three, COPY]) == [COPY, one, three]


def test_those_that_go_first_keep_their_order() -> None:
    hot = moving("A", "B", 0)
    first, second = shifting_up("E", 4, 1), copying("F", 2)
    assert prioritize([hot, first, second]) == [first, second, hot]
    assert prioritize([first, hot, second]) == [first, second, hot]


def test_all_others_keep_theirs_and_a_new_list_is_returned() -> None:
    steps = [moving("A", "B", 2), moving("C", "D", 1), CLEARING]
    assert prioritize(steps) == steps
    assert prioritize(steps) is not steps
    assert prioritize([]) == []


def test_a_plan_in_which_a_copy_passes_two_moves() -> None:
    row, goal = row_of("ABC-"), row_of("DEFG")
    assert planned("ABC-", "DEFG")[-1] == "COPY G -->3"
    assert step_text(prioritize(plan_migrations(row, goal))[0]) == "COPY G -->3"
