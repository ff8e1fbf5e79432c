"""The proof of the demo: a model kept outside of the store, compared with what recovery brought.

Owns ``Model`` and ``find_problems``, which are pure: no store, no files.

What has to hold after the kill:

- every move that was acknowledged is there, whole: both cities, the index, and the note of it;
- every other move is there whole or not at all, and ``db.outcome`` says which;
- nothing else has changed, and the total population is what it was.

Left out: who moved whom (``worker``), and how the store is read (``cli``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .data import CityRecord, IndexKey, index_pairs

PROBLEMS_MAX = 20


class Move(NamedTuple):
    """So many people go from one city to another one."""

    source: int
    target: int
    people: int


@dataclass(slots=True)
class Model:
    """What the parent knows: the cities before, every move begun, and which were acknowledged."""

    cities: Mapping[int, CityRecord]
    begun: dict[bytes, Move] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)

    def hear(self, line: str) -> None:
        """Take in a line of the child: ``B id from to people`` or ``A id``."""
        kind, tx_id, *numbers = line.split()
        if kind == "B":
            self.begun[bytes.fromhex(tx_id)] = Move(*map(int, numbers))
        else:
            self.acknowledged.add(bytes.fromhex(tx_id))

    @property
    def undecided(self) -> set[bytes]:
        """Moves that were begun and never acknowledged."""
        return self.begun.keys() - self.acknowledged

    def populations(self, applied: Iterable[bytes]) -> dict[int, int]:
        """Return the population of each city after these moves; their order does not matter."""
        result = {number: record["population"] for number, record in self.cities.items()}
        for tx_id in applied:
            move = self.begun[tx_id]
            result[move.source] -= move.people
            result[move.target] += move.people
        return result


@dataclass(slots=True, kw_only=True)
class Found:
    """What the store holds after recovery; ``outcomes`` by id of each undecided move."""

    cities: Mapping[int, CityRecord]
    index: Mapping[IndexKey, str]
    moves: Mapping[bytes, list[int]]
    outcomes: Mapping[bytes, str]


def find_problems(model: Model, found: Found) -> list[str]:
    """Return what contradicts the promises, as sentences; the empty list is the proof."""
    problems = _check_moves(model, found)
    applied = found.moves.keys() & model.begun.keys()
    problems += _check_cities(model, found, model.populations(applied | model.acknowledged))
    problems += _check_index(found)
    return problems[:PROBLEMS_MAX]


def _check_moves(model: Model, found: Found) -> list[str]:
    problems = []
    for tx_id in sorted(model.acknowledged - found.moves.keys()):
        problems.append(f"transaction {tx_id.hex()} was acknowledged and is lost")
    for tx_id in sorted(found.moves.keys() - model.begun.keys()):
        problems.append(f"transaction {tx_id.hex()} is there and was never begun")
    for tx_id in sorted(found.moves.keys() & model.begun.keys()):
        if tuple(found.moves[tx_id]) != model.begun[tx_id]:
            problems.append(f"transaction {tx_id.hex()} is there with other values")
    for tx_id in sorted(model.undecided):
        expected = "committed" if tx_id in found.moves else "rolled_back"
        told = found.outcomes.get(tx_id)
        if told != expected:
            problems.append(f"transaction {tx_id.hex()} is {expected}, its outcome says {told}")
    return problems


def _check_cities(model: Model, found: Found, expected: Mapping[int, int]) -> list[str]:
    problems = []
    if found.cities.keys() != model.cities.keys():
        problems.append(f"there are {len(found.cities)} cities instead of {len(model.cities)}")
    for number, population in expected.items():
        record = found.cities.get(number)
        if record is None:
            problems.append(f"city {number} is lost")
        elif record["population"] != population:
            problems.append(
                f"city {number} has {record['population']} people instead of {population}"
            )
        elif {**record, "population": 0} != {**model.cities[number], "population": 0}:
            problems.append(f"city {number} has another record")
        if len(problems) > PROBLEMS_MAX:
            break
    total = sum(record["population"] for record in found.cities.values())
    before = sum(record["population"] for record in model.cities.values())
    if total != before:
        problems.append(f"there are {total} people instead of {before}")
    return problems


def _check_index(found: Found) -> list[str]:
    expected = dict(index_pairs(found.cities.items()))
    problems = [f"the index lacks {key}" for key in sorted(expected.keys() - found.index.keys())]
    problems += [
        f"the index has {key}, the city says otherwise"
        for key in sorted(found.index.keys() - expected.keys())
    ]
    problems += [
        f"the index calls {key} {found.index[key]!r}"
        for key in sorted(expected.keys() & found.index.keys())
        if expected[key] != found.index[key]
    ]
    return problems[:PROBLEMS_MAX]
