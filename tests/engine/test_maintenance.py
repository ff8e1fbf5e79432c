"""The background thread beside a disk that fails: it goes on trying, and does not fill the log."""

from __future__ import annotations

import logging

import pytest

from tidelog.affinity.errors import DiskError
from tidelog.engine.database import CHECKPOINT_PAUSE
from tidelog.engine.open import open_with
from tidelog.testing import FaultyDisk, simulated


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
