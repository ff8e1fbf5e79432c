"""Recovery: what it does to the end of a log, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.commits import commit_of
from support.stores import open_store, opened
from tidelog.affinity.errors import CorruptLogError
from tidelog.engine.api.database import session_of
from tidelog.engine.files import recovery
from tidelog.engine.files.recovery import rewrite_tail
from tidelog.testing import FaultyDisk, crash_points
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


def test_a_group_costs_its_bytes_in_memory_once_when_it_is_replayed() -> None:
    store = open_store()
    store.database.map("users")
    store.parts.committer.commit_all([commit_of(b"%d" % at, bytes(1000)) for at in range(10)])
    session_of(store.database).abandon()
    with opened(store.disk, seed=2) as again:
        assert 10_000 < again.parts.overlay.bytes < 15_000


@pytest.mark.parametrize("checkpoint_bytes", [1000, 1 << 20])
def test_a_recovery_writes_its_log_once_more_before_anybody_relies_on_it(
    checkpoint_bytes: int,
) -> None:
    store = open_store(durability="none")
    for key in range(20):
        store.database.map("users")[b"%d" % key] = bytes(200)
    session_of(store.database).abandon()
    log = f"/store/wal/{segment_name(1)}"
    platter = bytes(store.disk.file(log).durable)
    assert platter != store.disk.read_bytes(log)

    def scenario(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
        # The page cache shows as written what a sync that failed has left off the disk.
        disk.file(log).durable[:] = platter
        again = open_store(disk, seed=2, checkpoint_bytes=checkpoint_bytes)
        acknowledge("opened")
        again.database.map("users")[b"new"] = b""
        session_of(again.database).abandon()

    commits = seen = 0
    for point in crash_points(scenario, start=store.disk, outcomes=("lost",)):
        commits += point.operation.kind == "commit"
        with opened(point.disk, seed=3) as after:
            keys = len(after.database.map("users"))
        if point.acknowledged:
            assert keys in (20, 21), point
            seen += 1
        assert keys in range(22), point
    assert seen
    assert (commits > 2) == (checkpoint_bytes == 1000)
