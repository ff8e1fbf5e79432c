"""A log that clears a partition, as the log of a cluster's member may: whoever recovers drops it.

The records are written by hand, behind a checkpoint that has what they clear; the power is cut at
every operation of the recovery, and the next one has to come to the same end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest

import tidelog
from support.pipelines import rows
from support.scripts import SMALL_PIECES
from support.stores import Opened, expect_sound, open_store, opened, took_steps
from tidelog.affinity.errors import UsageError
from tidelog.affinity.partitions import Space, partition_of
from tidelog.checkpoints.copies import CopyState
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.data.partition_store import read_marks
from tidelog.engine.files.recovery import apply_updates
from tidelog.engine.store.opening import OpenStore
from tidelog.testing import FaultyDisk, check_store
from tidelog.testing.crash import crash_points
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
    Supplied,
    SuppliedRecord,
    TxRecord,
)

SPACE = Space(0, 2)
TIME = 1_800_000_000_000_000
KEYS = [b"%03d" % number for number in range(120)]
MINE = [key for key in KEYS if partition_of(key, SPACE) == 1]
OTHERS = {key: b"new" if key < b"030" else b"old" for key in KEYS if key not in MINE}
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
    users.update_many({key: b"new" for key in KEYS if key < b"030"})
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


def cleared_store(clearing: list[list[Record]]) -> FaultyDisk:
    store = open_store(limits=SMALL_PIECES, partitions=2)
    fill(store.database, clearing)
    return store.disk.crash("lost")


def expect_cleared(store: Opened) -> None:
    users = store.database.map("users")
    assert dict(users.items()) == {**OTHERS, **SUPPLIED}
    assert {key: users.get(key) for key in KEYS} == {
        key: {**OTHERS, **SUPPLIED}.get(key) for key in KEYS
    }
    mark = read_marks(store.parts.kv.begin())[1][1]
    assert (mark.state, mark.admission, mark.count) == (CopyState.MOVING, 9, 2)
    assert store.parts.state.counters[1].lwm == 7


@pytest.fixture(params=LOGS)
def clearing(request: pytest.FixtureRequest) -> list[list[Record]]:
    return LOGS[request.param]


def test_a_recovery_drops_what_was_cleared(clearing: list[list[Record]]) -> None:
    with opened(cleared_store(clearing), seed=2, limits=SMALL_PIECES) as store:
        expect_cleared(store)
        assert store.parts.state.cleared == {}


@pytest.mark.parametrize("piece", [5, 65_536])
def test_a_power_cut_inside_such_a_recovery_changes_nothing(
    clearing: list[list[Record]], piece: int
) -> None:
    limits = replace(SMALL_PIECES, piece_updates=piece)
    start = cleared_store(clearing)
    points = 0

    def recover(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
        store = open_store(disk, seed=5, limits=limits)
        acknowledge("open")
        session_of(store.database).abandon()

    for point in crash_points(recover, start=start, moments=("before",), outcomes=("lost",)):
        expect_sound(point.disk.copy())
        with opened(point.disk, seed=7, limits=limits) as again:
            expect_cleared(again)
        points += 1
    assert points >= (20 if piece == 5 else 8)


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


def test_checkpoints_that_come_to_no_end_lose_nothing_of_what_came_behind_a_clearing() -> None:
    # The first one had cleared the partition and written it anew; the second one cleared it again,
    # under a mark that said that all of that was there.
    limits = replace(SMALL_PIECES, piece_updates=20, batch_updates=1)
    steps = range(1, 10)
    for first, second in product(steps, steps):
        store = open_store(limits=limits, partitions=2)
        parts = store.parts

        def take_effect(record: Record, parts: OpenStore = parts) -> None:
            position = parts.writer.position - 1
            apply_updates(parts.overlay.view, parts.state, position, record, 0)

        fill(store.database, [], abandoned=False)
        for record in (CLEAR, ADMIT, *SUPPLY):
            parts.committer.log([record], durable=True, then=partial(take_effect, record))
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
