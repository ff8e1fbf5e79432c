"""Recovery: what it does to the end of a log, and what it leaves alone."""

from __future__ import annotations

import pytest

from support.stores import open_store, opened
from tidelog.affinity.errors import CorruptLogError
from tidelog.engine.api.database import session_of
from tidelog.engine.files import recovery
from tidelog.engine.files.recovery import rewrite_tail
from tidelog.testing import FaultyDisk
from tidelog.wal.format import segment_name
from tidelog.wal.ports import ReadableDirectory
from tidelog.wal.reader import Scan
from tidelog.wal.segments import segment_numbers


def crashed(keys: int) -> FaultyDisk:
    """A store with that many durable keys in several segments, after a crash."""
    store = open_store(segment_bytes=4096)
    users = store.database.map("users")
    for key in range(keys):
        users[b"%d" % key] = bytes(200)
    disk: FaultyDisk = store.disk.crash("kept")
    session_of(store.database).abandon()
    return disk


def test_a_segment_that_the_replay_did_not_see_is_not_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A listing without the newest segment ended the replay before it, and recovery cut it then.
    disk = crashed(100)
    last = segment_numbers(disk.directory("/store/wal"))[-1] + 1

    def with_one_more(directory: ReadableDirectory) -> list[int]:
        return [*segment_numbers(directory), last]

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "segment_numbers", with_one_more)
        with pytest.raises(CorruptLogError, match="nothing was cut") as caught:
            open_store(disk)
    assert caught.value.segment == last
    with opened(disk) as store:
        assert len(store.database.map("users")) == 100


def test_a_segment_that_is_dropped_does_not_come_back() -> None:
    # Behind one that was written on meanwhile it would have been a gap in the log.
    disk = crashed(10)
    wal = disk.directory("/store/wal")
    first = segment_numbers(wal)[-1] + 1
    disk.write_bytes(f"/store/wal/{segment_name(first)}", b"")
    scan = Scan(wal)
    list(scan)
    assert scan.end.dropped_segment == first
    rewrite_tail(wal, scan.end, scan.end.position, 1 << 16)
    left = disk.crash("lost").directory("/store/wal")
    assert segment_numbers(left)[-1] == first - 1
