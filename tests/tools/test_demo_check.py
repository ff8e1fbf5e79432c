"""The proof of the demo finds what it is there to find."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tidelog.tools.demo.check import Found, Model, Move, find_problems
from tidelog.tools.demo.data import CityRecord, index_pairs

FIRST, SECOND, THIRD = (bytes([n]) * 16 for n in (1, 2, 3))


def city(name: str, population: int) -> CityRecord:
    return {"name": name, "country": "DE", "population": population}


def model() -> Model:
    cities = {1: city("Ulm", 100), 2: city("Hof", 200), 3: city("Trier", 300)}
    begun = {FIRST: Move(1, 2, 10), SECOND: Move(2, 3, 20), THIRD: Move(3, 1, 30)}
    return Model(cities, begun, {FIRST, SECOND})


def after(applied: set[bytes]) -> Found:
    """A store in which exactly these moves were made."""
    known = model()
    cities = {n: dict(record) for n, record in copy.deepcopy(dict(known.cities)).items()}
    for number, population in known.populations(applied).items():
        cities[number]["population"] = population
    return Found(
        cities=cities,
        index=dict(index_pairs(cities.items())),
        moves={tx_id: list(known.begun[tx_id]) for tx_id in applied},
        outcomes={THIRD: "committed" if THIRD in applied else "rolled_back"},
    )


@pytest.mark.parametrize("applied", [{FIRST, SECOND}, {FIRST, SECOND, THIRD}])
def test_acknowledged_moves_with_or_without_the_undecided_one_are_fine(applied: set[bytes]) -> None:
    assert find_problems(model(), after(applied)) == []


def test_a_lost_transaction_is_found() -> None:
    problems = find_problems(model(), after({FIRST}))
    assert f"transaction {SECOND.hex()} was acknowledged and is lost" in problems
    assert "city 3 has 300 people instead of 320" in problems


def test_a_lost_transaction_is_found_even_if_its_note_is_there() -> None:
    found = after({FIRST})
    found.moves = after({FIRST, SECOND}).moves
    assert find_problems(model(), found) == [
        "city 2 has 210 people instead of 190",
        "city 3 has 300 people instead of 320",
    ]


def half_a_city(found: Found) -> None:
    """The third move took people from one city and brought them nowhere."""
    record = found.cities[3]
    record["population"] -= 30
    found.index = dict(index_pairs(found.cities.items()))


def half_without_index(found: Found) -> None:
    found.index = after({FIRST, SECOND, THIRD}).index


def note_without_cities(found: Found) -> None:
    found.moves = after({FIRST, SECOND, THIRD}).moves
    found.outcomes = {THIRD: "committed"}


def wrong_outcome(found: Found) -> None:
    found.outcomes = {THIRD: "committed"}


def no_outcome(found: Found) -> None:
    found.outcomes = {}


def lost_city(found: Found) -> None:
    found.cities = {n: record for n, record in found.cities.items() if n != 2}


def other_record(found: Found) -> None:
    found.cities[1]["name"] = "Elm"
    found.index = dict(index_pairs(found.cities.items()))


def strange_move(found: Found) -> None:
    found.moves = {**found.moves, bytes(16): [1, 2, 3]}


def changed_move(found: Found) -> None:
    found.moves = {**found.moves, FIRST: [1, 2, 11]}


def doubled_index(found: Found) -> None:
    found.index = {**found.index, ("DE", -1, 1): "Ulm"}


def misnamed_index(found: Found) -> None:
    found.index = {**found.index, ("DE", -90, 1): "Elm"}


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (half_a_city, "people instead of"),
        (half_without_index, "the index"),
        (note_without_cities, "people instead of"),
        (wrong_outcome, "its outcome says committed"),
        (no_outcome, "its outcome says None"),
        (lost_city, "city 2 is lost"),
        (other_record, "city 1 has another record"),
        (strange_move, "was never begun"),
        (changed_move, "with other values"),
        (doubled_index, "the city says otherwise"),
        (misnamed_index, "the index calls"),
    ],
)
def test_half_a_transaction_and_other_damage_are_found(
    spoil: Callable[[Found], None], told: str
) -> None:
    found = after({FIRST, SECOND})
    spoil(found)
    problems = find_problems(model(), found)
    assert any(told in problem for problem in problems), problems


def test_the_model_hears_its_child() -> None:
    heard = Model({})
    for line in (f"B {FIRST.hex()} 1 2 10\n", f"B {SECOND.hex()} 2 3 20\n", f"A {FIRST.hex()}\n"):
        heard.hear(line)
    assert heard.begun == {FIRST: Move(1, 2, 10), SECOND: Move(2, 3, 20)}
    assert heard.acknowledged == {FIRST}
    assert heard.undecided == {SECOND}
