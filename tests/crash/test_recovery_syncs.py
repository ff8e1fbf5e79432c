"""Power cuts in the recovery from a log that a dead process never synced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.scripts import PATH, SMALL_PIECES
from tidelog.engine.api import open as opens
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.upkeep.check import check_store
from tidelog.testing import FaultyDisk, crash_points, simulated

COMMITS = 16
KEYS = [b"%02d" % number for number in range(COMMITS)]


def opened(disk: FaultyDisk, seed: int, **options: Any) -> Database:
    environment = simulated(seed, disk, limits=SMALL_PIECES)
    database: Database = opens.open_with(
        environment, PATH, partitions=2, read_only=False, segment_bytes=1 << 20, **options
    )
    return database


def live_and_die(disk: FaultyDisk) -> None:
    """Leave a log that is in the page cache, behind its checkpoint, and nowhere else."""
    db = opened(disk, 1, durability="none", checkpoint_bytes=1 << 20)
    numbers = db.map("numbers")
    db.checkpoint()
    for key in KEYS:
        numbers[key] = key * 200
    session_of(db).abandon()
    assert disk.unsynced()


def recovery(overlay: int) -> Callable[[FaultyDisk, Callable[[object], None]], None]:
    """A second life: open with an overlay of that size, and commit."""

    def scenario(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
        live_and_die(disk)
        db = opened(disk, 2, checkpoint_bytes=overlay)
        acknowledge("opened")
        db.map("numbers")[b"new"] = b"new"
        acknowledge("committed")
        session_of(db).abandon()

    return scenario


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["lost", "torn", "reordered"])
@pytest.mark.parametrize(("overlay", "checkpoints"), [(1500, 4), (1 << 20, 0)])
def test_a_power_cut_in_a_recovery_leaves_a_store(
    overlay: int, checkpoints: int, outcome: str
) -> None:
    before = FaultyDisk()
    live_and_die(before)
    first = sum(operation.changes for operation in before.trace)
    points = commits = opened_points = 0
    for point in crash_points(recovery(overlay), outcomes=(outcome,), first=first):
        points += 1
        commits += point.operation.kind == "commit"
        assert check_store(PATH, simulated(3, point.disk)) == [], point
        with opened(point.disk, 3) as db:
            shown = dict(db.map("numbers").items())
        found = [key for key in KEYS if shown.pop(key, b"")[:2] == key]
        assert found == KEYS[: len(found)], point
        if point.acknowledged:
            # What was shown once stays: the tail was made durable before the store opened.
            assert found == KEYS, point
            opened_points += 1
        assert shown.keys() <= {b"new"}, point
        assert b"new" in shown or "committed" not in point.acknowledged, point
    assert points > 40
    assert commits >= 3 * checkpoints
    assert opened_points > 5
