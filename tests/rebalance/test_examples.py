"""The examples of "Avoid Data Loss on Migration" (Hazelcast, 2016), by the names they have there.

Where that page has a picture only, the members are those that its text names.
"""

from __future__ import annotations

import pytest

from support.letters import planned, row_of, step_text, text_of
from tidelog.rebalance import plan_migrations, prioritize, remove_cycles


@pytest.mark.parametrize(
    ("row", "goal", "steps"),
    [
        pytest.param("123", "143", ["MOVE 4 -->1, 2 1->-"], id="3.1.1 MOVE"),
        pytest.param("1-3", "143", ["COPY 4 -->1"], id="3.1.2 COPY"),
        pytest.param("12-", "421", ["SHIFT_DOWN 4 -->0, 1 0->2"], id="3.1.3.1 SHIFT DOWN, case 1"),
        pytest.param(
            "12",
            "41",
            ["MOVE 4 -->0, 1 0->-", "MOVE 1 -->1, 2 1->-"],
            id="3.1.3.2 SHIFT DOWN, case 2",
        ),
        pytest.param("1-3", "13", ["SHIFT_UP 3 2->1"], id="3.1.4.1 SHIFT UP, case 1"),
        pytest.param(
            "123", "13", ["SHIFT_UP 3 2->1, 2 1->-"], id="3.1.4.1 SHIFT UP, case 1, with an owner"
        ),
        pytest.param(
            "123",
            "134",
            ["MOVE 4 -->2, 3 2->-", "MOVE 3 -->1, 2 1->-"],
            id="3.1.4.2 SHIFT UP, case 2",
        ),
        pytest.param(
            "1-34", "134", ["SHIFT_UP 3 2->1", "SHIFT_UP 4 3->2"], id="3. a missing backup"
        ),
        pytest.param("ABC", "DBC", ["MOVE D -->0, A 0->-"], id="3.2.2 first"),
        pytest.param("A-C", "ADC", ["COPY D -->1"], id="3.2.2 second"),
        pytest.param("A-C", "DAC", ["SHIFT_DOWN D -->0, A 0->1"], id="3.2.2 third"),
        pytest.param("A-BC", "ABC-", ["SHIFT_UP B 2->1", "SHIFT_UP C 3->2"], id="3.2.2 fourth"),
        pytest.param(
            "ABCD",
            "ACDE",
            ["MOVE E -->3, D 3->-", "MOVE D -->2, C 2->-", "MOVE C -->1, B 1->-"],
            id="3.2.2 fifth",
        ),
        pytest.param(
            "ABCD",
            "BDC-",
            ["SHIFT_UP D 3->1, B 1->-", "MOVE B -->0, A 0->-"],
            id="3.2.2 sixth",
        ),
    ],
)
def test_an_example_is_planned_as_it_stands_there(row: str, goal: str, steps: list[str]) -> None:
    assert planned(row, goal) == steps


def test_3_2_1_a_cycle_keeps_its_places() -> None:
    assert text_of(remove_cycles(row_of("123"), row_of("312"))) == "123"
    assert planned("123", "312") == []


def test_3_2_2_a_plan_that_is_cut_short_is_made_anew_from_where_it_stopped() -> None:
    first, *rest = planned("ABCD", "ACDE")
    assert first == "MOVE E -->3, D 3->-"
    assert planned("ABCE", "ACDE") == rest


@pytest.mark.parametrize(
    ("row", "goal", "order"),
    [
        pytest.param("AB-", "CBD", ["COPY D", "MOVE C"], id="COPY, MOVE on a hotter index"),
        pytest.param("ABC-D", "XBCD", ["SHIFT_UP D", "MOVE X"], id="SHIFT UP, MOVE"),
        pytest.param("A--", "CDA", ["COPY D", "SHIFT_DOWN C"], id="COPY, SHIFT DOWN"),
    ],
)
def test_3_2_3_what_adds_a_replica_goes_first(row: str, goal: str, order: list[str]) -> None:
    steps = plan_migrations(row_of(row), row_of(goal))
    found = [f"{step.type.name} {step.destination}" for step in prioritize(steps)]
    assert found == order != [f"{step.type.name} {step.destination}" for step in steps]


def test_3_2_3_migrations_with_a_common_participant_keep_their_order() -> None:
    steps = plan_migrations(row_of("AB-C"), row_of("BCA"))
    assert [*map(step_text, steps)] == [
        "SHIFT_UP_AND_SHIFT_DOWN C 3->1, B 1->2",
        "SHIFT_UP_AND_SHIFT_DOWN B 2->0, A 0->3",
        "SHIFT_UP A 3->2",
    ]
    assert prioritize(steps) == steps
