"""The rules of the planner, one by one, by their letters; and what it refuses."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from support.letters import planned, row_of
from support.plans import Figures, check
from tidelog.affinity.errors import PlacementError
from tidelog.rebalance import Migration, plan_migrations, remove_cycles

RULES = [
    ("P1", "ABC", "ABC", []),
    ("P2", "ABC", "A", ["CLEAR B 1->-", "CLEAR C 2->-"]),
    ("P3", "A-C", "ADC", ["COPY D -->1"]),
    ("P4", "A-C", "AC", ["SHIFT_UP C 2->1"]),
    ("P5", "ABC", "DBC", ["MOVE D -->0, A 0->-"]),
    ("P6", "A-C", "DAC", ["SHIFT_DOWN D -->0, A 0->1"]),
    ("P7", "AB", "CA", ["MOVE C -->0, A 0->-", "MOVE A -->1, B 1->-"]),
    (
        "P8a: its own place is empty",
        "AB-C",
        "CBA",
        ["SHIFT_UP_AND_SHIFT_DOWN C 3->0, A 0->2"],
    ),
    ("P8a: pushed out", "ABC", "CB", ["SHIFT_UP C 2->0, A 0->-"]),
    (
        "P8a: pushed out where the row has fewer copies than the goal, and keeps as many as it has",
        "X-BA",
        "AB",
        ["SHIFT_UP A 3->0, X 0->-", "SHIFT_UP B 2->1"],
    ),
    (
        "P8b",
        "ABCD",
        "ACDE",
        ["MOVE E -->3, D 3->-", "MOVE D -->2, C 2->-", "MOVE C -->1, B 1->-"],
    ),
    (
        "P8c: ring made by parking B",
        "AB-C",
        "BCA",
        [
            "SHIFT_UP_AND_SHIFT_DOWN C 3->1, B 1->2",
            "SHIFT_UP_AND_SHIFT_DOWN B 2->0, A 0->3",
            "SHIFT_UP A 3->2",
        ],
    ),
    ("P9: a new one", "A-B", "BC", ["COPY C -->1", "SHIFT_UP B 2->0, A 0->-"]),
    ("P9: a colder one", "A-BC", "BC", ["SHIFT_UP C 3->1", "SHIFT_UP B 2->0, A 0->-"]),
    (
        "P9: a new one at the hotter end",
        "ABC-D",
        "DCEB",
        ["MOVE E -->2, C 2->-", "SHIFT_DOWN C -->1, B 1->3", "SHIFT_UP D 4->0, A 0->-"],
    ),
    (
        "P9: a new one at the hotter end, which parks the one that is wanted",
        "AB-C",
        "CDB",
        ["SHIFT_DOWN D -->1, B 1->2", "SHIFT_UP C 3->0, A 0->-"],
    ),
    (
        "P9: parks the one that is wanted",
        "A-BC",
        "BAC",
        ["SHIFT_UP_AND_SHIFT_DOWN B 2->0, A 0->1", "SHIFT_UP C 3->2"],
    ),
    (
        "P9: copies come before the CLEAR that they make harmless",
        "A--B",
        "ACD",
        ["COPY C -->1", "COPY D -->2", "CLEAR B 3->-"],
    ),
    ("P9: before A is pushed out", "A--B", "BC", ["COPY C -->1", "SHIFT_UP B 3->0, A 0->-"]),
]


@pytest.mark.parametrize(
    ("row", "goal", "steps"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES]
)
def test_a_rule_gives_these_steps(row: str, goal: str, steps: list[str]) -> None:
    assert planned(row, goal) == steps
    check(padded(row), padded(goal), Figures())


def padded(text: str) -> list[str | None]:
    return row_of(text.ljust(7, "-"))


def test_every_rule_has_an_example() -> None:
    found = {rule[0].partition(":")[0] for rule in RULES}
    assert found == {"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8a", "P8b", "P8c", "P9"}


def test_seven_steps_are_the_most() -> None:
    steps = planned("ABCDEFG", "tuvwxyz")
    assert len(steps) == 7
    assert {step.partition(" ")[0] for step in steps} == {"MOVE"}


def test_what_is_given_stays_as_it_is() -> None:
    row, goal = row_of("AB-C"), row_of("BCA")
    plan_migrations(row, goal)
    remove_cycles(row, goal)
    assert (row, goal) == (row_of("AB-C"), row_of("BCA"))


def test_members_may_be_anything_that_can_be_hashed() -> None:
    one, two = UUID(int=1), UUID(int=2)
    assert plan_migrations([one], [one, two]) == [
        Migration(destination=two, destination_new_index=1)
    ]
    # What Python takes for false is a member, too.
    assert plan_migrations([0, ""], ["", 0]) == []
    assert [step.destination for step in plan_migrations([0], ["", b""])] == ["", b""]


def test_empty_rows_need_nothing() -> None:
    assert plan_migrations([], []) == []
    assert plan_migrations([None] * 3, [None] * 7) == []


@pytest.mark.parametrize(
    ("row", "goal", "text"),
    [
        ("ABC", "A-C", r"the goal has an empty place in front of a member: \['A', None, 'C'\]"),
        ("ABC", "-A", "the goal has an empty place in front of a member"),
        ("ABC", "ABA", "the goal holds a member twice"),
        ("ABA", "ABC", "the current row holds a member twice"),
        ("ABC", "ABCDEFGH", "the goal has 8 places, 7 are allowed"),
        ("ABCDEFGH", "ABC", "the current row has 8 places, 7 are allowed"),
        ("ABC", "", "the goal of .* is empty, and no plan takes the last primary away"),
        ("ABC", "---", "the goal of .* is empty"),
    ],
)
def test_rows_that_cannot_be_right_are_refused(row: str, goal: str, text: str) -> None:
    with pytest.raises(PlacementError, match=text) as caught:
        plan_migrations(row_of(row), row_of(goal))
    assert isinstance(caught.value, ValueError)


def test_a_row_without_a_primary_may_be_cleared() -> None:
    assert planned("-AB", "") == ["CLEAR A 1->-", "CLEAR B 2->-"]


def drawn(data: st.DataObject, *, holes: bool) -> list[Any]:
    members = data.draw(st.permutations("ABCDEFGHIJ"))[: data.draw(st.integers(1, 7))]
    for place in range(len(members)):
        if holes and data.draw(st.booleans()):
            members[place] = ""
    return [member or None for member in members] + [None] * (7 - len(members))


@given(st.data())
def test_seven_places_keep_the_promise(data: st.DataObject) -> None:
    check(drawn(data, holes=True), drawn(data, holes=False), Figures())
