"""A log that clears a partition, as the log of a cluster's member may: whoever recovers drops it.

The records are written by hand, behind a checkpoint that has what they clear; the power is cut at
every operation of the recovery, and the next one has to come to the same end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import tidelog
from support.pipelines import rows
from support.scripts import SMALL_PIECES
from support.stores import Opened, expect_sound, open_store, opened, took_steps
from tidelog.affinity.errors import DiskError, StorageError, UsageError
from tidelog.affinity.partitions import Space, partition_of
from tidelog.checkpoints.copies import CopyState
from tidelog.checkpoints.marks import PartitionMark
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.data.partition_store import read_marks
from tidelog.engine.files.recovery import apply_updates
from tidelog.engine.store.opening import OpenStore
from tidelog.engine.system.layout import FRESH_DATA_FILE, FRESH_DATA_LOCK, WHOLE_DATA_FILE
from tidelog.engine.system.limits import Limits
from tidelog.testing import FaultyDisk, MemoryKv, check_store
from tidelog.testing.crash import crash_points
from tidelog.testing.media import CRASH_OUTCOMES
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import (
    AdmitRecord,
    ClearRecord,
    Closed,
    Columns,
    Opened as OpenedEpoch,
    OpenRecord,
    Record,
    Run,
    Settled,
    SettledOutcome,
    SettleRecord,
    StateRecord,
    Supplied,
    SuppliedRecord,
    TxRecord,
)

SPACE = Space(0, 2)
TIME = 1_800_000_000_000_000
KEYS = [
    key for number in range(120) if partition_of(key := b"%03d" % number, SPACE) == 1 or number < 11
]
"""Most of them are of partition 1: when it is cleared a new data file pays."""
MINE = [key for key in KEYS if partition_of(key, SPACE) == 1]
OTHERS = {key: b"new" if key < b"005" else b"old" for key in KEYS if key not in MINE}
NEW = [key for number in range(200, 290) if partition_of(key := b"%03d" % number, SPACE) == 0][:4]
"""Of partition 0."""
SUPPLIED = {MINE[0]: b"four", MINE[2]: b"six"}
"""What partition 1 holds in the end: numbers are lower than those that it held before."""

CLEAR = ClearRecord(partition=1, admission=9, reason="diverged")
ADMIT = AdmitRecord(partition=1, admission=9, epochs=((1, 1),), lwm=2, ranges=(), hwm=9, dropped=())


def supplied(*transactions: tuple[int, bytes, bytes | None]) -> SuppliedRecord:
    return SuppliedRecord(
        partition=1,
        admission=9,
        source=b"m" * 16,
        transactions=tuple(
            Supplied(
                bytes([n]) * 16,
                1,
                Run(1, 1, n, 1),
                1_700_000_000_000_000,
                Columns(16, [key], [value]),
            )
            for n, key, value in transactions
        ),
        closed=(Closed(1, 7, 1, "gap"),),
    )


SUPPLY: list[Record] = [
    supplied((4, MINE[0], b"four"), (6, MINE[2], b"six")),
    supplied((3, MINE[0], b"three"), (5, MINE[1], None)),
]


def fill(db: Database, clearing: list[list[Record]], *, abandoned: bool = True) -> None:
    """Write what is cleared, some of it behind the checkpoint; each list of records is a frame."""
    users = db.map("users")
    users.update_many(dict.fromkeys(KEYS, b"old"))
    db.checkpoint()
    users.update_many({key: b"new" for key in KEYS if key < b"005"})
    for records in clearing:
        session_of(db).store.committer.log(records, durable=True)
    if abandoned:
        db.sync()
        session_of(db).maintenance.maintain()  # which logs that all of it is durable
        session_of(db).abandon()


LOGS: dict[str, list[list[Record]]] = {
    "one frame": [[CLEAR, ADMIT, *SUPPLY]],
    "frames of their own": [[CLEAR], [ADMIT], *([record] for record in SUPPLY)],
    "cleared twice": [[CLEAR], [ADMIT, supplied((4, MINE[5], b"x"))], [CLEAR, ADMIT], SUPPLY],
}


def cleared_store(clearing: list[list[Record]], kv: str = "memory") -> FaultyDisk:
    store = open_store(limits=SMALL_PIECES, partitions=2, kv=kv)
    fill(store.database, clearing)
    return store.disk.crash("lost")


def took_effect(parts: OpenStore, record: Record) -> None:
    """Apply a record that was logged, as recoveries do."""
    apply_updates(parts.overlay.view, parts.state, parts.writer.position - 1, record)


def expect_cleared(store: Opened) -> None:
    users = store.database.map("users")
    assert dict(users.items()) == {**OTHERS, **SUPPLIED}
    assert {key: users.get(key) for key in KEYS} == {
        key: {**OTHERS, **SUPPLIED}.get(key) for key in KEYS
    }
    mark = read_marks(store.parts.kv.begin())[1][1]
    assert (mark.state, mark.admission, mark.count) == (CopyState.MOVING, 9, 2)
    assert store.parts.state.counters[1].lwm == 7


RENEWING = replace(SMALL_PIECES, renewed_pairs=10)


@pytest.fixture(params=LOGS)
def clearing(request: pytest.FixtureRequest) -> list[list[Record]]:
    return LOGS[request.param]


@pytest.mark.parametrize("kv", ["memory", "lmdb"])
@pytest.mark.parametrize("limits", [SMALL_PIECES, RENEWING])
def test_a_recovery_drops_what_was_cleared(
    clearing: list[list[Record]], limits: Limits, kv: str
) -> None:
    with opened(cleared_store(clearing, kv), seed=2, limits=limits, kv=kv) as store:
        expect_cleared(store)
        assert store.parts.state.cleared == {}
        renamed = [o.path for o in store.disk.trace if o.kind == "rename" and "/data/" in o.path]
        assert len(renamed) == (3 if limits is RENEWING else 0)


@pytest.mark.parametrize("limits", [replace(SMALL_PIECES, piece_updates=5), SMALL_PIECES, RENEWING])
def test_a_power_cut_inside_such_a_recovery_changes_nothing(
    clearing: list[list[Record]], limits: Limits
) -> None:
    start = cleared_store(clearing)
    points = 0

    def recover(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
        store = open_store(disk, seed=5, limits=limits)
        acknowledge("open")
        session_of(store.database).abandon()

    outcomes = CRASH_OUTCOMES if limits is RENEWING else ("lost",)
    for point in crash_points(recover, start=start, moments=("before",), outcomes=outcomes):
        expect_sound(point.disk.copy())
        with opened(point.disk, seed=7, limits=limits) as again:
            expect_cleared(again)
            names = again.disk.directory("/store/data").names()
            assert set(names) == {"data.mdb", "lock.mdb"}, "nothing is left of a renewal"
        points += 1
    assert points >= (20 if limits.piece_updates == 5 else 8)


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC", "EROFS"])
def test_a_fault_inside_a_renewal_loses_nothing(fault: str) -> None:
    start = cleared_store(LOGS["one frame"])
    probe = start.copy()
    before = probe.operations
    session_of(open_store(probe, seed=5, limits=RENEWING).database).abandon()
    ended = 0
    steps = [o for o in probe.trace[before:] if o.path.startswith("/store/data")]
    for step in steps:
        disk = start.copy()
        disk.fail_at(disk.operations + step.number - before, fault)
        try:
            store = open_store(disk, seed=5, limits=RENEWING)
        except StorageError:
            disk.heal()
        else:
            expect_cleared(store)
            session_of(store.database).abandon()
            ended += 1
        for outcome in ("lost", "kept"):
            with opened(disk.copy().crash(outcome), seed=7, limits=RENEWING) as again:
                expect_cleared(again)
    assert len(steps) > 12
    assert ended < len(steps)


def test_without_room_for_a_new_data_file_what_was_cleared_is_removed() -> None:
    disk = cleared_store(LOGS["one frame"])
    disk.fail_at(disk.operations, "ENOSPC", for_ever=True, path=f"/store/data/{FRESH_DATA_FILE}")
    store = open_store(disk, seed=3, limits=RENEWING)
    assert any(o.kind == "open_kv" and FRESH_DATA_FILE in o.path for o in disk.trace)
    assert not any(o.kind == "rename" and FRESH_DATA_FILE in o.path for o in disk.trace)
    expect_cleared(store)
    disk.heal()
    store.database.close()
    expect_sound(disk)


@pytest.mark.parametrize("name", [FRESH_DATA_FILE, FRESH_DATA_LOCK, WHOLE_DATA_FILE])
def test_a_renewal_is_ended_by_the_next_open_once_its_lock_file_has_its_name(name: str) -> None:
    disk = cleared_store(LOGS["one frame"])
    disk.fail_at(disk.operations, "EIO", kind="rename", path=f"/store/data/{name}", for_ever=True)
    with pytest.raises(DiskError, match="giving a new data file its name failed"):
        open_store(disk, seed=3, limits=RENEWING)
    found = disk.crash("kept")
    ends = name == WHOLE_DATA_FILE
    assert (FRESH_DATA_LOCK in found.directory("/store/data").names()) is not ends
    before = found.operations
    with opened(found, seed=4, limits=SMALL_PIECES) as again:
        expect_cleared(again)
        renames = [str(o) for o in found.trace[before:] if o.kind == "rename"]
        assert any(WHOLE_DATA_FILE in one for one in renames) is ends


def test_an_interrupt_at_the_names_lets_nothing_be_written_before_the_next_open() -> None:
    # What came behind it went into the old file, which had no name any more.
    for kind, path in (
        ("rename", FRESH_DATA_FILE),
        ("rename", FRESH_DATA_LOCK),
        ("rename", WHOLE_DATA_FILE),
        ("sync_directory", ""),
    ):
        for moment in ("before", "behind"):
            store = open_store(limits=RENEWING, partitions=2)
            fill(store.database, [], abandoned=False)
            parts = store.parts
            for record in (CLEAR, ADMIT, *SUPPLY):
                parts.committer.log(
                    [record], durable=True, then=partial(took_effect, parts, record)
                )

            def interrupted(call: Callable[[], object], moment: str = moment) -> object:
                if moment == "behind":
                    call()
                raise KeyboardInterrupt

            place = f"/store/data/{path}" if path else "/store/data"
            with store.disk.around(kind, place, interrupted), pytest.raises(KeyboardInterrupt):
                store.database.checkpoint()
            with pytest.raises(DiskError, match="no checkpoint is taken any more"):
                store.database.checkpoint()
            session_of(store.database).maintenance.maintain()
            session_of(store.database).abandon()
            with opened(store.disk.crash("kept"), seed=2, limits=RENEWING) as again:
                expect_cleared(again)


def test_a_log_that_begins_amid_a_supply_is_sound() -> None:
    # The head of a segment does not say who was admitted: the check took that for a contradiction.
    store = open_store(partitions=2, segment_bytes=1, retain_bytes=1)
    fill(store.database, [[CLEAR, ADMIT, SUPPLY[0]]], abandoned=False)
    parts = store.parts
    for record in (CLEAR, ADMIT, SUPPLY[0]):
        took_effect(parts, record)
    more = {f"{number}".encode(): b"x" * 20_000 for number in range(20)}
    for key, value in more.items():
        store.database.map("more")[key] = value
    parts.committer.log([SUPPLY[1]], durable=True, then=partial(took_effect, parts, SUPPLY[1]))
    store.database.checkpoint()
    store.database.close()
    expect_sound(store.disk)


def fill_between(db: Database) -> SettleRecord:
    """Write a log that begins between the list of an epoch, which is returned, and its opening."""
    fill(db, [], abandoned=False)
    parts, users = session_of(db).store, db.map("users")
    start = parts.state.counters[1].hwm + 1
    settled = SettleRecord(partition=1, epoch=2, start=start, closed=(), transactions=())
    parts.committer.log([settled], durable=True, then=partial(took_effect, parts, settled))
    for number, key in enumerate(OTHERS):
        users[key] = b"%d" % number * 100_000
        db.checkpoint()
    later = TxRecord(b"t" * 16, TIME, (Run(1, 2, start, 1),), 16, [MINE[0]], [b"later"])
    for record in (OpenRecord(rows=(OpenedEpoch(1, 2),)), later):
        parts.committer.log([record], durable=True, then=partial(took_effect, parts, record))
    db.close()
    return settled


def test_a_log_that_begins_between_a_list_and_the_opening_of_its_epoch_is_sound() -> None:
    # The list lay in a segment that was dropped, so nobody could read on behind that head.
    store = open_store(partitions=2, segment_bytes=1, retain_bytes=1)
    listed = fill_between(store.database)
    log = Scan(store.disk.directory("/store/wal"), durable=1 << 62)
    head, settled, *_ = [record for _, record in read_records(log)]
    assert isinstance(head, StateRecord)
    assert settled == listed
    expect_sound(store.disk)


def test_a_real_store_with_such_a_log_is_read_from_there(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill_between(tidelog.open(path, partitions=2, segment_bytes=65_536, retain_bytes=1))
    assert check_store(path) == []
    assert {row["key"]: row["value"] for row in rows(path, "changes")}[MINE[0]] == b"later"
    with tidelog.open(path) as db:
        assert db.map("users")[MINE[0]] == b"later"
    assert check_store(path) == []


@pytest.mark.parametrize("name", [FRESH_DATA_FILE, FRESH_DATA_LOCK])
def test_an_open_that_cannot_remove_what_a_renewal_left_says_so(name: str) -> None:
    disk = cleared_store(LOGS["one frame"])
    disk.write_bytes(f"/store/data/{name}", b"left")
    disk.fail_at(disk.operations, "EIO", kind="unlink", path="/store/data")
    with pytest.raises(DiskError, match="ending the renewal of a data file"):
        open_store(disk, seed=3, limits=SMALL_PIECES)
    disk.heal()
    with opened(disk, seed=4, limits=SMALL_PIECES) as store:
        expect_cleared(store)
        assert name not in disk.directory("/store/data").names()


def test_a_clearing_is_several_transactions_of_the_data_file() -> None:
    disk = cleared_store(LOGS["one frame"])
    before = disk.operations
    store = open_store(disk, seed=3, limits=replace(SMALL_PIECES, piece_updates=10))
    commits = [o for o in disk.trace[before:] if o.kind == "commit"]
    assert len(commits) >= len(MINE) // 10 + 2
    expect_cleared(store)
    store.database.close()


@pytest.mark.parametrize("name", LOGS)
def test_a_real_store_with_such_a_log_goes_on(name: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill(tidelog.open(path, partitions=2), LOGS[name])
    # The data file of a store that nobody recovers has what the log has cleared.
    with pytest.raises(UsageError, match="clears partition 1 behind the last checkpoint"):
        tidelog.open(path, read_only=True)
    assert check_store(path) == []
    with tidelog.open(path) as db:
        users = db.map("users")
        assert dict(users.items()) == {**OTHERS, **SUPPLIED}
        users[MINE[1]] = b"written later"
        del users[MINE[0]]
    assert check_store(path) == []
    expected = {**OTHERS, MINE[2]: b"six", MINE[1]: b"written later"}
    with tidelog.open(path, read_only=True) as db:
        assert dict(db.map("users").items()) == expected
    assert {row["key"]: row["value"] for row in rows(path, "snapshot")} == expected


# ------------------------------------------------------------------ in a store that runs


def clear(store: Opened, records: Iterable[Record], *, durable: bool = True) -> None:
    """Log records, each in a frame of its own, and let them take effect."""
    parts = store.parts
    for record in records:
        parts.committer.log([record], durable=durable, then=partial(took_effect, parts, record))


def running(*, durable: bool = True, limits: Limits = RENEWING) -> Opened:
    """A store that runs, in which partition 1 was cleared and has got nothing since."""
    store = open_store(limits=limits, partitions=2, durability="none")
    fill(store.database, [], abandoned=False)
    clear(store, [CLEAR], durable=durable)
    return store


def renewals(store: Opened) -> int:
    """How many new data files have taken the place of others."""
    return sum(o.kind == "rename" and o.path.endswith(WHOLE_DATA_FILE) for o in store.disk.trace)


def in_file(store: Opened) -> dict[int, PartitionMark]:
    """The marks of the data file that has the name."""
    kv = MemoryKv(store.disk.copy(), "/store/data", 1 << 30, read_only=True)
    return read_marks(kv.begin())[1]


def test_what_comes_behind_a_renewal_is_written_into_the_new_file() -> None:
    store = running()
    store.database.checkpoint()
    assert renewals(store) == 1
    clear(store, [ADMIT, *SUPPLY])
    store.database.checkpoint()
    assert in_file(store) == store.parts.checkpointer.marks
    assert renewals(store) == 1
    expect_cleared(store)
    session_of(store.database).abandon()


def test_nothing_is_renewed_before_the_log_says_durably_why() -> None:
    store = running(durable=False)
    store.disk.fail_at(store.disk.operations, "EIO", kind="sync", path="/store/wal")
    with pytest.raises(DiskError):
        store.database.checkpoint()
    assert renewals(store) == 0
    with opened(store.disk.crash("lost"), seed=2, limits=RENEWING) as again:
        assert set(again.database.map("users")) == set(KEYS)


def test_a_log_that_must_not_be_carried_over_any_more_renews_nothing() -> None:
    store = running()
    store.database.map("users")[NEW[0]] = b"x"
    store.disk.fail_at(store.disk.operations, "EIO", kind="sync", path="/store/wal")
    with pytest.raises(DiskError):
        store.database.sync()
    before = store.disk.operations
    with pytest.raises(StorageError):
        store.database.checkpoint()
    assert not any(o.path.startswith("/store/data") for o in store.disk.trace[before:])
    session_of(store.database).abandon()


def test_the_marks_of_a_new_file_say_how_far_its_log_has_to_go() -> None:
    store = running(durable=False)
    before, end = store.parts.checkpointer.marks[1], store.parts.writer.position
    with closing(store.parts.checkpointer.steps(lambda: True, "test")) as steps:
        while not renewals(store):
            next(steps)
    mark = in_file(store)[1]
    assert mark == replace(before, written=end, count=0, digest=0, counts={})
    assert store.parts.writer.synced >= end
    session_of(store.database).abandon()


def test_the_limits_that_a_checkpoint_is_given_are_those_of_its_renewal() -> None:
    store = running(limits=SMALL_PIECES)
    took_steps(store.database, 1000, RENEWING)
    assert renewals(store) == 1
    store.database.close()
    expect_sound(store.disk)


def test_a_new_file_that_cannot_be_written_leaves_no_doubt_about_the_old_one() -> None:
    store = running()
    file = f"/store/data/{FRESH_DATA_FILE}"
    store.disk.fail_at(store.disk.operations, "EIO", kind="commit", path=file)
    store.database.checkpoint()
    assert renewals(store) == 0
    assert store.parts.checkpointer.doubtful is None
    assert in_file(store)[1].count == 0
    assert set(store.disk.directory("/store/data").names()) == {"data.mdb", "lock.mdb"}
    store.database.close()
    expect_sound(store.disk)


def test_behind_names_in_doubt_no_checkpoint_is_taken_and_the_next_open_has_all() -> None:
    store = running()
    store.disk.fail_at(store.disk.operations, "EIO", kind="rename", path="/store/data")
    with pytest.raises(DiskError, match="giving a new data file its name failed"):
        store.database.checkpoint()
    with pytest.raises(DiskError, match="no checkpoint is taken any more"):
        store.database.checkpoint()
    clear(store, [ADMIT, *SUPPLY])
    session_of(store.database).abandon()
    with opened(store.disk.crash("lost"), seed=2, limits=RENEWING) as again:
        expect_cleared(again)


def test_what_stays_may_not_fit_into_a_new_file_either() -> None:
    store = open_store(limits=RENEWING, partitions=2)
    store.database.map("users").update_many(dict.fromkeys(OTHERS, b"x" * 3000))
    store.database.map("users").update_many(dict.fromkeys(MINE, b"old"))
    store.database.checkpoint()
    clear(store, [CLEAR])
    kv = store.parts.kv
    assert isinstance(kv, MemoryKv)
    kv._map_size = 8000
    store.database.checkpoint()
    assert renewals(store) == 0
    assert kv.map_size() > 8000
    store.database.close()
    expect_sound(store.disk)


def test_a_renewal_behind_an_interrupted_write_goes_by_the_marks_of_the_data_file() -> None:
    class Interrupted(dict[int, PartitionMark]):
        def update(self, *_args: Any, **_named: Any) -> None:
            raise KeyboardInterrupt

    store = running(limits=SMALL_PIECES)
    users, checkpointer = store.database.map("users"), store.parts.checkpointer
    users.update_many(dict.fromkeys(NEW, b"newer"))
    before, checkpointer.marks = checkpointer.marks, Interrupted(checkpointer.marks)
    with pytest.raises(KeyboardInterrupt):
        store.database.checkpoint()
    checkpointer.marks = before
    assert in_file(store) != before
    took_steps(store.database, 1000, RENEWING)
    assert renewals(store) == 1
    store.database.close()
    expect_sound(store.disk)


@pytest.mark.parametrize("renewed_pairs", [1, 16_384])
def test_checkpoints_that_come_to_no_end_lose_nothing_of_what_came_behind_a_clearing(
    renewed_pairs: int,
) -> None:
    # The first one had cleared the partition and written it anew; the second one cleared it again,
    # under a mark that said that all of that was there.
    limits = replace(
        SMALL_PIECES,
        piece_updates=20,
        batch_updates=1,
        renewed_pairs=renewed_pairs,
        renewed_share=0,
    )
    steps = range(1, 10)
    for first, second in product(steps, steps):
        store = open_store(limits=limits, partitions=2)

        fill(store.database, [], abandoned=False)
        clear(store, [CLEAR, ADMIT, *SUPPLY])
        ended = took_steps(store.database, first, limits)
        took_steps(store.database, second, limits)
        session_of(store.database).maintenance.maintain()
        session_of(store.database).abandon()
        with opened(store.disk.crash("lost"), seed=2, limits=limits) as again:
            expect_cleared(again)
    assert ended


def test_gaps_are_closed_in_the_epochs_that_gave_them_out() -> None:
    # Closed in the newest one, they made a log that contradicts itself: no open took it.
    run = Run(1, 1, 200, 2)
    settled = SettleRecord(
        partition=1, epoch=2, start=202, closed=(),
        transactions=(Settled(b"p" * 16, 1, run, SettledOutcome.PENDING, 0, None),),
    )  # fmt: skip
    later = TxRecord(b"t" * 16, TIME, (Run(1, 2, 203, 1),), 16, [MINE[0]], [b"later"])
    records: list[Record] = [settled, OpenRecord(rows=(OpenedEpoch(1, 2),)), later]
    disk = cleared_store([records])
    for seed in (2, 3, 4):
        store = open_store(disk, seed=seed, limits=SMALL_PIECES)
        assert store.database.map("users")[MINE[0]] == b"later"
        assert store.parts.state.counters[1].missing == []
        session_of(store.database).abandon()
        disk = store.disk.crash("kept")
