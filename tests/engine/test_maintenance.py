"""The background thread: when it begins, and that it goes on trying beside a disk that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.real_stores import opened, run_python
from tidelog.affinity.errors import DiskError
from tidelog.engine.api.choices import Durability
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.maps import Map, namespace_of
from tidelog.engine.api.open import open_with
from tidelog.engine.store.maintenance import CHECKPOINT_PAUSE
from tidelog.testing import FaultyDisk, simulated
from tidelog.testing.environment import SimulatedEnvironment


def count_of(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return sum(vars(record).get("event") == event for record in caplog.records)


def test_a_failed_background_sync_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    # It was tried, and told, twenty times a second for as long as the store was open.
    disk = FaultyDisk()
    environment = simulated(1, disk)
    db = open_with(environment, "/store", durability="interval", partitions=1)
    numbers = db.map("numbers")
    disk.fail_at(1, "EIO", kind="sync", path="/store/wal")
    numbers[b"first"] = b"1"
    with caplog.at_level(logging.ERROR, "tidelog"):
        environment.advance(30.0)
    assert count_of(caplog, "maintenance.failed") == 1
    with pytest.raises(DiskError):
        db.close()


def test_a_failed_checkpoint_is_tried_again_after_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # With a full data file each round of the background thread wrote as much as fitted again.
    disk = FaultyDisk()
    environment = simulated(1, disk)
    with open_with(environment, "/store", partitions=1, checkpoint_bytes=1000) as db:
        numbers = db.map("numbers")
        disk.fail_at(1, "ENOSPC", kind="commit", for_ever=True)
        for number in range(5):
            numbers[b"%d" % number] = b"x"
        assert db.statistics().overlay_bytes >= 1000
        with caplog.at_level(logging.ERROR, "tidelog"):
            environment.advance(10 * CHECKPOINT_PAUSE)
        assert 9 <= db.statistics().checkpoint_failures <= 11
        disk.heal()
        environment.advance(2 * CHECKPOINT_PAUSE)
        assert db.statistics().overlay_bytes == 0
    assert count_of(caplog, "checkpoint.failed") <= 11


def test_a_checkpoint_that_was_taken_leaves_no_pause() -> None:
    environment = simulated(1, FaultyDisk())
    with open_with(environment, "/store", partitions=1, checkpoint_bytes=1000) as db:
        for _ in range(2):
            db.map("numbers").update_many({b"%d" % number: bytes(50) for number in range(20)})
            environment.advance(CHECKPOINT_PAUSE / 4)
            assert db.statistics().overlay_bytes == 0


def test_a_map_that_was_dropped_is_written_though_nothing_else_has_come() -> None:
    with open_with(simulated(1, FaultyDisk()), "/store", partitions=1) as db:
        db.map("numbers")[b"a"] = b"1"
        db.checkpoint()
        assert not session_of(db).maintenance.unwritten
        db.drop("numbers")
        assert session_of(db).maintenance.unwritten
        db.checkpoint()
        assert not session_of(db).maintenance.unwritten


def tasks(environment: SimulatedEnvironment) -> list[str]:
    return [task.name for task in environment.schedule.tasks if not task.stopped]


def commit_in_group(db: Database, mapping: Map[Any, Any], pairs: list[tuple[bytes, bytes]]) -> None:
    commit = session_of(db).commit_of(namespace_of(mapping), pairs)
    assert commit is not None
    session_of(db).commit_group([commit])


@pytest.mark.parametrize("durability", ["always", "interval", "none"])
@pytest.mark.parametrize(
    "write",
    [
        lambda db: db.map("numbers").set(b"a", b"1"),
        lambda db: db.map("numbers").update_many({b"a": b"1", b"b": b"2"}),
        lambda db: db.map("numbers").discard(b"a"),
        lambda db: db.run(lambda tx: tx[db.map("numbers")].set(b"a", b"1")),
        lambda db: commit_in_group(db, db.map("numbers"), [(b"a", b"1")]),
        lambda db: db.map("more"),
        lambda db: db.drop("numbers"),
    ],
    ids=["put", "many", "delete", "transaction", "group", "map", "drop"],
)
def test_background_work_begins_with_the_first_commit(
    write: Callable[[Database], object], durability: Durability
) -> None:
    # A thread that has nothing to do makes every scan of its process a seventh dearer.
    environment = simulated(1, FaultyDisk())
    with open_with(environment, "/store") as db:
        db.map("numbers")[b"a"] = b"0"
    with open_with(environment, "/store", durability=durability) as db:
        assert list(db.map("numbers").items()) == [(b"a", b"0")]
        with db.snapshot() as snapshot:
            assert snapshot[db.map("numbers")][b"a"] == b"0"
        assert tasks(environment) == []
        write(db)
        assert tasks(environment) == ["tidelog-maintenance"]
        environment.advance(1.0)
        statistics = db.statistics()
        assert statistics.durable_position == statistics.position or durability == "none"
    assert tasks(environment) == []


def test_two_first_commits_begin_it_once() -> None:
    environment = simulated(1, FaultyDisk())
    with open_with(environment, "/store", durability="none") as db:
        db.map("numbers")[b"a"] = b"1"
        session_of(db).maintenance.begin()
        assert tasks(environment) == ["tidelog-maintenance"]
        assert not session_of(db).committer.context.standing.must_queue


def test_a_first_commit_that_a_close_overtakes_begins_nothing() -> None:
    environment = simulated(1, FaultyDisk())
    with open_with(environment, "/store") as db:
        begin = session_of(db).maintenance.begin
    begin()
    assert tasks(environment) == []


def test_background_work_begins_at_once_behind_a_crash() -> None:
    environment = simulated(1, disk := FaultyDisk())
    open_with(environment, "/store").map("numbers")[b"a"] = b"1"
    environment = simulated(2, disk.crash())
    with open_with(environment, "/store", checkpoint_interval=1.0) as db:
        assert tasks(environment) == ["tidelog-maintenance"]
        assert db.statistics().overlay_bytes > 0
        environment.advance(2.0)
        assert db.statistics().overlay_bytes == 0


def test_a_store_that_is_lost_sight_of_is_closed_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
import gc, sys, tidelog

def look():
    return dict(tidelog.open(sys.argv[1]).map("numbers"))

print(look())
gc.collect()
"""
    with opened(tmp_path / "store") as db:
        db.map("numbers")[b"a"] = b"1"
    assert run_python(source, tmp_path / "store").out == "{b'a': b'1'}\n"
    with caplog.at_level(logging.INFO, "tidelog"), opened(tmp_path / "store"):
        assert f"store.opened path={tmp_path / 'store'} clean=True" in caplog.text
