"""A checkpoint step by step: what may happen between any two steps, and an end between them."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from support.scripts import SMALL_PIECES
from support.stores import Opened, expect_sound, open_store
from tidelog.engine.api.database import session_of
from tidelog.testing import FaultyDisk

STEPS = 7
"""Of a checkpoint of the store below: its beginning, and its transactions."""


def filled() -> tuple[Opened, dict[bytes, bytes]]:
    """A store with enough updates for several transactions of a checkpoint."""
    store = open_store(limits=SMALL_PIECES, partitions=3)
    rows = {b"%02d" % number: b"old" for number in range(24)}
    store.database.map("m").update_many(rows)
    return store, rows


def steps_of(store: Opened) -> Generator[None, None, None]:
    return store.parts.checkpointer.steps(lambda: True, "test")


def expect_after_crash(disk: FaultyDisk, rows: dict[bytes, bytes]) -> None:
    with open_store(disk, seed=2, limits=SMALL_PIECES).database as db:
        assert dict(db.map("m")) == rows
    expect_sound(disk)


def test_a_checkpoint_has_a_step_for_its_beginning_and_for_each_transaction() -> None:
    store, rows = filled()
    assert len(list(steps_of(store))) == STEPS
    assert store.database.statistics().overlay_bytes == 0
    assert dict(store.database.map("m")) == rows
    store.database.close()
    expect_sound(store.disk)


@pytest.mark.parametrize("at", range(STEPS))
def test_commits_reads_and_snapshots_go_on_between_two_steps(at: int) -> None:
    store, rows = filled()
    mapping, taken = store.database.map("m"), []
    for number, _ in enumerate(steps_of(store)):
        if number == at:
            old = store.database.snapshot()
            mapping[b"05"] = b"new"
            del mapping[b"06"]
            taken.append((old, dict(rows)))
            rows[b"05"] = b"new"
            del rows[b"06"]
        assert dict(mapping) == rows
    ((old, before),) = taken
    assert dict(old[mapping]) == before
    expect_after_crash(store.disk.crash(), rows)


@pytest.mark.parametrize("at", range(STEPS))
def test_a_checkpoint_that_is_given_up_leaves_the_rest_to_the_next_one(at: int) -> None:
    store, rows = filled()
    steps = steps_of(store)
    for _ in range(at + 1):
        next(steps)
    steps.close()
    assert not store.parts.checkpointer.running
    store.database.map("m")[b"05"] = rows[b"05"] = b"new"
    store.database.checkpoint()
    assert store.database.statistics().overlay_bytes == 0
    assert dict(store.database.map("m")) == rows
    expect_after_crash(store.disk.crash(), rows)


@pytest.mark.parametrize("outcome", ["lost", "kept"])
@pytest.mark.parametrize("at", range(STEPS))
def test_power_may_go_at_any_step(at: int, outcome: str) -> None:
    store, rows = filled()
    steps = steps_of(store)
    for _ in range(at + 1):
        next(steps)
    expect_after_crash(store.disk.crash(outcome), rows)


@pytest.mark.parametrize("ends", [True, False])
def test_what_changes_between_two_steps_is_left_to_the_next_checkpoint(ends: bool) -> None:
    store, _ = filled()
    store.database.map("early")[b"a"] = b"1"
    store.database.map("late")[b"a"] = b"1"
    state = store.parts.state
    numbers = {record.name: number for number, record in state.namespaces.items()}
    store.database.drop("early")
    state.touched.add(0)
    state.cleared[0] = cleared = store.parts.committer.applied_position
    steps = steps_of(store)
    next(steps)
    store.database.drop("late")
    state.touched.add(1)
    state.cleared[1] = cleared
    if ends:
        for _ in steps:
            pass
        assert (state.touched, state.cleared) == ({1}, {1: cleared})
        assert state.dropped == {numbers["late"]}
    else:
        steps.close()
        assert (state.touched, state.cleared) == ({0, 1}, {0: cleared, 1: cleared})
        assert state.dropped == {numbers["early"], numbers["late"]}
    store.database.checkpoint()
    assert (state.touched, state.cleared, state.dropped) == (set(), {}, set())
    session_of(store.database).abandon()  # no record says what was cleared
