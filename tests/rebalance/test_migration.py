"""One migration: its type and its increments follow from its fields, and few fields go together."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from itertools import product
from typing import Any

import pytest

from support.letters import row_of
from tidelog.affinity.errors import PlacementError
from tidelog.rebalance import Migration, MigrationType
from tidelog.rebalance.migration import apply_to

Indexes = tuple[int, int]


def migration(
    source: str | None, source_indexes: Indexes, destination: str | None, indexes: Indexes
) -> Migration[str]:
    return Migration(
        source=source,
        source_current_index=source_indexes[0],
        source_new_index=source_indexes[1],
        destination=destination,
        destination_current_index=indexes[0],
        destination_new_index=indexes[1],
    )


NONE = (-1, -1)
TABLE = [
    # type, source with its indexes, destination with its indexes, version: success, failure; shown
    ("COPY", None, NONE, "D", (-1, 2), 1, 2, "copy: D -->2"),
    ("MOVE", "S", (2, -1), "D", (-1, 2), 1, 2, "move: D -->2, S 2->-"),
    ("SHIFT_UP", None, NONE, "D", (4, 2), 2, 3, "shift up: D 4->2"),
    ("SHIFT_UP", "S", (2, -1), "D", (4, 2), 2, 3, "shift up: D 4->2, S 2->-"),
    ("SHIFT_DOWN", "S", (2, 5), "D", (-1, 2), 2, 3, "shift down: D -->2, S 2->5"),
    (
        "SHIFT_UP_AND_SHIFT_DOWN",
        "S",
        (2, 5),
        "D",
        (4, 2),
        3,
        4,
        "shift up and shift down: D 4->2, S 2->5",
    ),
    ("CLEAR", "S", (2, -1), None, NONE, 1, 2, "clear: S 2->-"),
]


@pytest.mark.parametrize(("kind", "s", "ss", "d", "dd", "success", "failure", "shown"), TABLE)
def test_type_and_increments_follow_from_the_fields(
    kind: str,
    s: str | None,
    ss: Indexes,
    d: str | None,
    dd: Indexes,
    success: int,
    failure: int,
    shown: str,
) -> None:
    step = migration(s, ss, d, dd)
    assert step.type is MigrationType[kind]
    assert step.version_increment(success=True) == success
    assert step.version_increment(success=False) == failure
    assert step.version_increment(True) == success
    assert repr(step) == f"<Migration {shown}>"


@pytest.mark.parametrize(
    ("row", "step", "after"),
    [
        ("A-C", migration(None, NONE, "D", (-1, 1)), "ADC"),
        ("ABC", migration("A", (0, -1), "D", (-1, 0)), "DBC"),
        ("A-C", migration(None, NONE, "C", (2, 1)), "AC-"),
        ("ABC", migration("A", (0, -1), "C", (2, 0)), "CB-"),
        ("A-C", migration("A", (0, 1), "D", (-1, 0)), "DAC"),
        ("A-C", migration("A", (0, 1), "C", (2, 0)), "CA-"),
        ("ABC", migration("A", (0, -1), None, NONE), "-BC"),
    ],
)
def test_a_row_is_changed_as_the_type_says(row: str, step: Migration[str], after: str) -> None:
    places = row_of(row.ljust(7, "-"))
    apply_to(places, step)
    assert places == row_of(after.ljust(7, "-"))


def test_the_table_has_every_type() -> None:
    assert {row[0] for row in TABLE} == set(MigrationType.__members__)


@pytest.mark.parametrize(
    ("s", "ss", "d", "dd"),
    [
        pytest.param(None, NONE, None, NONE, id="nobody"),
        pytest.param(None, (2, -1), "D", (-1, 2), id="an index of no source"),
        pytest.param(None, (-1, 3), "D", (-1, 2), id="a new index of no source"),
        pytest.param("S", NONE, "D", (-1, 2), id="a source without a copy"),
        pytest.param("S", (2, -1), None, (2, -1), id="an index of no destination"),
        pytest.param("S", (2, -1), None, (-1, 2), id="a new index of no destination"),
        pytest.param("S", (2, 4), None, NONE, id="a source that goes where nobody comes"),
        pytest.param(None, NONE, "D", (2, -1), id="a destination that goes away"),
        pytest.param(None, NONE, "D", (2, 3), id="a destination that goes colder"),
        pytest.param(None, NONE, "D", (2, 2), id="a destination that stays"),
        pytest.param("S", (2, 1), "D", (-1, 2), id="a source that goes hotter"),
        pytest.param("S", (2, 2), "D", (-1, 2), id="a source that stays"),
        pytest.param("S", (3, -1), "D", (-1, 2), id="another place than that of the source"),
        pytest.param("S", (2, 4), "D", (4, 2), id="two that change places"),
        pytest.param("S", (2, -1), "S", (-1, 2), id="one member twice"),
        pytest.param("S", (7, -1), None, NONE, id="a source beyond the row"),
        pytest.param("S", (2, 7), "D", (-1, 2), id="a source that leaves the row"),
        pytest.param(None, NONE, "D", (-1, 7), id="a destination beyond the row"),
        pytest.param(None, NONE, "D", (7, 2), id="a destination from beyond the row"),
        pytest.param(None, NONE, "D", (-2, 2), id="less than none"),
        pytest.param("S", (2, -2), "D", (-1, 2), id="less than none, of the source"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(
    s: str | None, ss: Indexes, d: str | None, dd: Indexes
) -> None:
    with pytest.raises(PlacementError, match="do not make a migration: source"):
        migration(s, ss, d, dd)


def is_in_the_table(s: str | None, ss: Indexes, d: str | None, dd: Indexes) -> bool:
    """What the table of the module says, written out."""
    empty = s is None and ss == NONE
    leaves = s is not None and 0 <= ss[0] <= 6 and ss[1] == -1
    parks = s is not None and 0 <= ss[0] < ss[1] <= 6
    if d is None:
        return leaves and dd == NONE
    fits = 0 <= dd[1] <= 6 and (empty or ss[0] == dd[1])
    comes = fits and dd[0] == -1
    rises = fits and dd[1] < dd[0] <= 6 and dd[0] != ss[1]
    return (empty or leaves or parks) and (comes or rises)


def test_all_fields_that_go_together_are_those_of_the_table() -> None:
    possible = 0
    indexes = [(now, new) for now in range(-2, 8) for new in range(-2, 8)]
    for s, d in product([None, "S"], [None, "D"]):
        for ss, dd in product(indexes, indexes):
            if is_in_the_table(s, ss, d, dd):
                migration(s, ss, d, dd)
                possible += 1
            else:
                with pytest.raises(PlacementError):
                    migration(s, ss, d, dd)
    # COPY, MOVE, CLEAR: one index each; SHIFT_UP twice and SHIFT_DOWN: two; the last one: three.
    assert possible == 3 * 7 + 3 * 21 + 2 * 35


def test_a_migration_is_a_value() -> None:
    step = migration("S", (2, -1), "D", (4, 2))
    assert step == migration("S", (2, -1), "D", (4, 2))
    assert len({step, migration("S", (2, -1), "D", (4, 2))}) == 1
    assert step != migration("S", (2, -1), "E", (4, 2))
    assert pickle.loads(pickle.dumps(step)) == copy.copy(step) == step
    with pytest.raises(FrozenInstanceError):
        step.source = "T"  # type: ignore[misc]


def test_fields_are_given_by_name_only() -> None:
    make: Any = Migration
    with pytest.raises(TypeError):
        make("S", 2)
