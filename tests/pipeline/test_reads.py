"""Snapshots, changes and the log as Arrow batches: what they hold, and that no split loses any."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import tidelog
from support.pipelines import (
    Row,
    closed_store,
    content,
    fill,
    flip,
    new_store,
    parse,
    replayed,
    rows,
    rows_of,
)
from tidelog.affinity.errors import (
    AlreadyOpenError,
    CorruptLogError,
    HistoryTruncatedError,
    NotFoundError,
    SnapshotExpiredError,
    UsageError,
)
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import session_of
from tidelog.pipeline.log import columns
from tidelog.pipeline.log.changes import Wanted, changes
from tidelog.pipeline.log.logs import Log
from tidelog.pipeline.plan import reads
from tidelog.pipeline.plan.reads import read
from tidelog.pipeline.plan.streams import ChangeStream, ViewStream, WalStream, stream
from tidelog.wal.format import Frame
from tidelog.wal.records import RecordType, pack_record_header


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return closed_store(tmp_path / "store")


# ------------------------------------------------------------------ snapshots


@pytest.mark.parametrize("tasks", [1, 3, 100])
def test_a_snapshot_has_each_key_once_with_its_newest_value(store: Path, tasks: int) -> None:
    found = rows(store, "snapshot", minPartitions=tasks)
    maps: dict[str, dict[bytes, bytes]] = {}
    for row in found:
        maps.setdefault(row["namespace"], {})[row["key"]] = row["value"]
    assert maps == content(store)
    assert len(found) == sum(map(len, maps.values()))


def test_a_snapshot_tells_which_change_wrote_a_value(store: Path) -> None:
    newest = {(r["namespace"], r["key"]): r for r in rows(store, "changes")}
    found = rows(store, "snapshot")
    assert found
    for row in found:
        change = newest[row["namespace"], row["key"]]
        for name in ("partition", "counter", "value", "commit_ts"):
            assert row[name] == change[name]


def test_a_snapshot_of_some_partitions_or_one_map(store: Path) -> None:
    everything = rows(store, "snapshot")
    some = rows(store, "snapshot", partitions="0,2-3")
    assert some == [row for row in everything if row["partition"] in (0, 2, 3)]
    stock = rows(store, "snapshot", namespace="stock")
    assert sorted(map(repr, stock)) == sorted(
        repr(row) for row in everything if row["namespace"] == "stock"
    )
    with pytest.raises(UsageError, match="no partition 4"):
        rows(store, "snapshot", partitions="4")
    with pytest.raises(UsageError, match="no map 'stok'"):
        rows(store, "snapshot", namespace="stok")


def test_a_store_that_is_open_for_writing_has_no_snapshot_and_its_copy_has(
    store: Path, tmp_path: Path
) -> None:
    with tidelog.open(store) as db:
        with pytest.raises(AlreadyOpenError, match="open for writing"):
            rows(store, "snapshot")
        fill(db, 3, 30)  # behind the checkpoint: the copy has it in its log only
        db.backup(tmp_path / "copy")
        fill(db, 4, 10)
    copy = rows(tmp_path / "copy", "snapshot")
    assert len(copy) == len({(row["namespace"], row["key"]) for row in copy})
    assert replayed(rows(tmp_path / "copy", "changes")) == {
        name: {r["key"]: r["value"] for r in copy if r["namespace"] == name}
        for name in ("orders", "stock")
    }


def test_a_store_that_was_written_after_the_plan_ends_the_read(store: Path) -> None:
    tasks = read(parse({"path": str(store), "view": "snapshot"}))
    with tidelog.open(store) as db:
        fill(db, 3, 1)
    with pytest.raises(SnapshotExpiredError, match="was written since"):
        rows_of(tasks)


def test_a_map_that_was_dropped_last_is_not_in_the_snapshot(store: Path) -> None:
    with tidelog.open(store) as db:
        db.drop("stock")
        db.rename("orders", "bills")
    assert {row["namespace"] for row in rows(store, "snapshot")} == {"bills"}


def test_segments_alone_have_no_snapshot(store: Path) -> None:
    with pytest.raises(NotFoundError, match="folder of segments"):
        rows(store / "wal", "snapshot")


# ------------------------------------------------------------------ changes


def test_changes_replayed_are_the_store(store: Path) -> None:
    assert replayed(rows(store, "changes")) == content(store)
    assert rows(store / "wal", "changes") == rows(store, "changes")


def test_numbers_of_a_partition_ascend_without_a_gap(store: Path) -> None:
    found = rows(store, "changes")
    for partition in range(4):
        numbers = [row["counter"] for row in found if row["partition"] == partition]
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_transaction_tells_its_size_and_the_place_of_each_update(store: Path) -> None:
    by_id: dict[bytes, list[tuple[int, int]]] = {}
    for row in rows(store, "changes"):
        by_id.setdefault(row["tx_id"], []).append((row["tx_seq"], row["tx_size"]))
    assert len(by_id) > 80
    for places in by_id.values():
        assert places == [(number, len(places)) for number in range(len(places))]


@pytest.mark.parametrize("tasks", [1, 2, 7, 40, 1000])
def test_any_number_of_tasks_gives_the_same_changes(store: Path, tasks: int) -> None:
    found = rows(store, "changes", minPartitions=tasks)
    assert found == rows(store, "changes", minPartitions=1)


def test_changes_between_two_vectors(store: Path) -> None:
    everything = rows(store, "changes")
    log = Log(str(store))
    half = {p: (e, n // 2) for p, (e, n) in log.newest().vector().items()}
    text = json.dumps({str(p): list(number) for p, number in half.items()})
    below = rows(store, "changes", endingCounters=text)
    above = rows(store, "changes", startingCounters=text)
    assert below == [row for row in everything if row["counter"] <= half[row["partition"]][1]]
    assert above == [row for row in everything if row["counter"] > half[row["partition"]][1]]
    plain = json.dumps({str(p): n for p, (_, n) in half.items()})
    assert rows(store, "changes", startingCounters=plain) == above
    assert rows(store, "changes", startingCounters="latest") == []


@pytest.mark.parametrize("zone", [None, UTC, timezone(timedelta(hours=3))])
def test_changes_since_a_time(store: Path, zone: timezone | None) -> None:
    everything = rows(store, "changes")
    times = sorted({row["commit_ts"] for row in everything})
    for time in (times[0], times[1], times[len(times) // 2], times[-1]):
        for moment in (time, time + timedelta(microseconds=1)):
            text = moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)
            found = rows(store, "changes", startingTimestamp=text.isoformat())
            assert found == [row for row in everything if row["commit_ts"] >= moment]
    assert rows(store, "changes", startingTimestamp="1969-12-31") == everything


def test_changes_under_the_names_of_delta(store: Path) -> None:
    names = {"op": "_change_type", "counter": "_commit_version", "commit_ts": "_commit_timestamp"}
    found = rows(store, "changes", changeFormat="CDF")
    assert {row["_change_type"] for row in found} == {"update_postimage", "delete"}
    for row, plain in zip(found, rows(store, "changes"), strict=True):
        assert (row["_change_type"] == "delete") == (plain.pop("op") == "delete")
        row.pop("_change_type")
        assert row == {names.get(name, name): value for name, value in plain.items()}
    given = {"path": str(store), "view": "changes", "changeFormat": "cdf", "columns": "op"}
    with pytest.raises(UsageError, match="no column op"):
        reads.fields_of(parse(given))
    fields = reads.fields_of(parse({**given, "columns": "key,_change_type"}))
    assert [name for name, _ in fields] == ["key", "_change_type"]


def test_what_users_do_not_see_makes_no_row(tmp_path: Path) -> None:
    # The outcome of a transaction with an id is an update of its own.
    with new_store(tmp_path / "s", partitions=2) as db, db.transaction(id=db.new_id()) as tx:
        tx[db.map("m")][b"k"] = b"v"
    (row,) = rows(tmp_path / "s", "changes")
    assert (row["namespace"], row["tx_seq"], row["tx_size"]) == ("m", 0, 1)


def test_the_changes_of_a_live_store_end_where_it_is_durable(store: Path) -> None:
    before = rows(store, "changes")
    with tidelog.open(store, durability="none") as db:
        db.map("stock")[b"new"] = b"v"
        assert rows(store, "changes") == before
        db.sync()
        session_of(db).committer.announce()
        assert [row["key"] for row in rows(store, "changes")[len(before) :]] == [b"new"]


def test_a_map_that_is_gone_keeps_its_name(store: Path) -> None:
    with tidelog.open(store) as db:
        db.drop("stock")
        db.rename("orders", "bills")
    assert {row["namespace"] for row in rows(store, "changes")} == {"stock", "orders"}


def test_only_the_columns_asked_for_are_made(store: Path) -> None:
    tasks = read(parse({"path": str(store), "view": "changes"}), ("counter", "key"))
    (batch, *_) = tasks[0].batches()
    assert batch.schema.names == ["counter", "key"]


def test_batches_are_no_longer_than_asked_for_but_for_one_transaction(store: Path) -> None:
    (task,) = read(parse({"path": str(store), "view": "changes", "batchRows": "10"}))[:1]
    sizes = [batch.num_rows for batch in task.batches()]
    assert len(sizes) > 3
    assert all(10 <= size <= 15 for size in sizes[:-1])


# ------------------------------------------------------------------ the raw log


def test_the_log_has_a_row_per_run_and_one_payload_per_record(store: Path) -> None:
    found = rows(store, "wal")
    updates = [row for row in found if row["record_type"] == "TX"]
    assert sum(row["count"] for row in updates) == len(rows(store, "changes"))
    payloads = [row for row in updates if row["payload"] is not None]
    assert len(payloads) == len({row["tx_id"] for row in updates})
    kinds = {row["record_type"] for row in found}
    assert {"STATE", "NAMESPACE", "TX", "CHECKPOINT"} <= kinds
    assert all(row["crc_ok"] for row in found)


@pytest.mark.parametrize("tasks", [1, 9, 200])
def test_any_number_of_tasks_gives_the_same_log(store: Path, tasks: int) -> None:
    assert rows(store, "wal", minPartitions=tasks) == rows(store, "wal", minPartitions=1)


# ------------------------------------------------------------------ the account


def test_the_account_of_a_store_has_a_row_per_partition(store: Path) -> None:
    found = rows(store, "meta")
    assert [row["partition"] for row in found] == [0, 1, 2, 3]
    newest = {row["partition"]: row["counter"] for row in rows(store, "changes")}
    assert {row["partition"]: row["lwm"] for row in found} == newest
    assert all(row["gaps"] == [] and row["earliest_counter"] == 0 for row in found)
    with tidelog.open(store) as db:
        db.checkpoint()
    found = rows(store, "meta")
    for row in found:
        data = [r for r in rows(store, "snapshot") if r["partition"] == row["partition"]]
        assert (row["rows"], len(row["digest"])) == (len(data), 25)
    assert len({row["checkpoint_id"] for row in found}) == 1
    with tidelog.open(store), pytest.raises(AlreadyOpenError):
        rows(store, "meta")
    alone = rows(store / "wal", "meta")
    assert [row["lwm"] for row in alone] == [row["lwm"] for row in found]
    assert {row["rows"] for row in alone} == {None}


# ------------------------------------------------------------------ damage and loss


@pytest.mark.parametrize("tasks", [1, 4, 60])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_damaged_frame_is_an_error_or_one_bad_row(store: Path, tasks: int, share: float) -> None:
    good = rows(store, "wal")
    frames = sorted({row["offset"] for row in good})
    hit = frames[int(len(frames) * share)]
    flip(store / "wal" / f"{1:016d}.log", hit + 25)
    with pytest.raises(CorruptLogError):
        rows(store, "wal", minPartitions=tasks)
    with pytest.raises(CorruptLogError):
        rows(store, "changes", minPartitions=tasks)
    found = rows(store, "wal", minPartitions=tasks, mode="permissive")
    (bad,) = [row for row in found if not row["crc_ok"]]
    assert bad["offset"] == hit
    assert [row for row in found if row["crc_ok"]] == [row for row in good if row["offset"] != hit]


@pytest.mark.parametrize("harm", ["cut", "last frame", "segment"])
def test_an_end_that_is_lost_is_a_bad_row(tmp_path: Path, harm: str) -> None:
    # There were fewer rows, and no sign of that.
    path = large_store(tmp_path / "s")
    good = rows(path, "wal")
    segments = sorted((path / "wal").glob("*.log"))
    last = max(row["offset"] for row in good if row["segment"] == len(segments))
    if harm == "segment":
        segments[-1].unlink()
    elif harm == "cut":
        segments[-1].write_bytes(segments[-1].read_bytes()[: last + 10])
    else:
        flip(segments[-1], last + 25)
    with pytest.raises(CorruptLogError):
        rows(path, "wal")
    found = rows(path, "wal", mode="permissive")
    (bad,) = [row for row in found if not row["crc_ok"]]
    kept = [row for row in found if row["crc_ok"]]
    assert kept == good[: len(kept)]
    assert len(kept) < len(good)
    assert (bad["segment"], bad["offset"]) > (kept[-1]["segment"], kept[-1]["offset"])
    assert bad["length"] > 0


def large_store(path: Path) -> Path:
    """A store whose log has several segments."""
    with new_store(path, partitions=4, segment_bytes=1 << 20, retain_bytes=1 << 30) as db:
        for number in range(40):
            fill(db, number, 4)
            db.map("m").update_many({b"%d" % n: bytes(1000) for n in range(100)})
    assert len(list((path / "wal").glob("*.log"))) > 3
    return path


def places_of_frames(path: Path) -> dict[tuple[int, int], list[Row]]:
    """The rows of the log, by segment and offset."""
    found: dict[tuple[int, int], list[Row]] = {}
    for row in rows(path, "wal"):
        found.setdefault((row["segment"], row["offset"]), []).append(row)
    return found


def check_changes_around(
    path: Path, place: tuple[int, int], caplog: pytest.LogCaptureFixture, tasks: int = 3
) -> None:
    """Damage one frame; each partition is to be read up to the numbers that were in it."""
    good = rows(path, "changes", includeRollbacks="true")
    hit = places_of_frames(path)[place]
    lost: dict[int, int] = {}
    last: dict[int, int] = {}
    for row in hit:
        lost.setdefault(row["partition"], row["first_counter"])
        last[row["partition"]] = (row["first_counter"] or 0) + (row["count"] or 0) - 1
    flip(path / "wal" / f"{place[0]:016d}.log", place[1] + 25)
    caplog.clear()
    found = rows(path, "changes", mode="permissive", minPartitions=tasks, includeRollbacks="true")
    reached = [row for row in good if row["counter"] < lost.get(row["partition"], 1 << 62)]
    if "NAMESPACE" in {row["record_type"] for row in hit}:  # then some maps have no name
        found, reached = ([{**row, "namespace": ""} for row in of] for of in (found, reached))
    assert found == reached
    events: list[tuple[str, Any]] = [
        (record.msg.split()[0], record.args) for record in caplog.records
    ]
    told = {args[1]: args[2] for event, args in events if event == "changes.stopped"}
    later = {r["partition"] for r in good if r["counter"] > last.get(r["partition"], 1 << 62)}
    assert told.keys() >= later
    assert all(told[partition] == lost[partition] - 1 for partition in told)
    assert [event for event, _ in events].count("log.damaged") == 1


@pytest.mark.parametrize("tasks", [1, 4, 60])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_changes_go_around_damage_up_to_the_first_gap_of_each_partition(
    store: Path, tasks: int, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    places = sorted(places_of_frames(store))
    check_changes_around(store, places[int(len(places) * share)], caplog, tasks)


@pytest.mark.slow
def test_changes_go_around_damage_anywhere_in_several_segments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = large_store(tmp_path / "s")
    places = sorted(places_of_frames(path))
    heads = [
        place for place, before in zip(places[1:], places, strict=False) if place[0] != before[0]
    ]
    newest = max(place for place, frame in places_of_frames(path).items() if frame[0]["count"])
    for place in [*places[1::9], *heads, newest, places[-1]]:
        check_changes_around(path, place, caplog)
        flip(path / "wal" / f"{place[0]:016d}.log", place[1] + 25)


def test_the_head_of_a_later_segment_tells_what_nothing_else_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    one, other = (
        next(b"%d" % n for n in range(99) if partition_of(b"%d" % n, Space(0, 2)) == p)
        for p in (0, 1)
    )
    with new_store(path, partitions=2, segment_bytes=1 << 20, retain_bytes=1 << 30) as db:
        db.map("m")[one] = b"first"
        db.map("m")[one] = b"last"
        for _ in range(3):
            db.map("m")[other] = bytes(600_000)
    segment, offset = next(
        place
        for place, of in places_of_frames(path).items()
        if any((row["partition"], row["first_counter"]) == (0, 2) for row in of)
    )
    flip(path / "wal" / f"{segment:016d}.log", offset + 25)
    found = rows(path, "changes", mode="permissive")
    assert [row["counter"] for row in found if row["partition"] == 0] == [1]
    told = [record.args for record in caplog.records if record.msg.startswith("changes.stopped")]
    assert told == [(str(path), 0, 1, 2)]


@pytest.mark.parametrize("kind", [RecordType.TX, RecordType.ROLLBACK, RecordType.INGEST])
def test_a_record_that_is_none_is_damage_in_every_view(kind: RecordType) -> None:
    body = b"\xc1"
    payload = pack_record_header(len(body), kind, 0) + body
    frames = [Frame(position=0, synced=0, payload=payload, segment=7, offset=128)]
    wanted = Wanted(low={}, high={}, rollbacks=True)
    for batches in (columns.wal(frames, "here"), changes(frames, {}, wanted, print)):
        with pytest.raises(CorruptLogError, match="segment 7, offset 128"):
            list(batches)


def test_damage_to_the_head_of_the_log_leaves_nothing_to_begin_with(store: Path) -> None:
    flip(store / "wal" / f"{1:016d}.log", min(places_of_frames(store))[1] + 25)
    with pytest.raises(CorruptLogError):
        rows(store, "changes", mode="permissive")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["failfast", "permissive"])
@pytest.mark.parametrize("tasks", [1, 5, 33])
def test_damage_that_came_after_the_plan_is_seen_by_a_task(
    store: Path, tasks: int, mode: str
) -> None:
    given = {"path": str(store), "view": "changes", "minPartitions": str(tasks), "mode": mode}
    options = parse(given)
    for row in [row for row in rows(store, "wal") if row["record_type"] == "TX"][5::9]:
        path = store / "wal" / f"{1:016d}.log"
        planned = read(options)
        flip(path, row["offset"] + 21)
        with pytest.raises(CorruptLogError, match=f"offset {row['offset']}"):
            rows_of(planned)
        flip(path, row["offset"] + 21)


@pytest.mark.slow
def test_history_that_is_gone_is_an_error_or_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    with new_store(path, partitions=2, segment_bytes=1 << 20) as db:
        for _ in range(40):
            db.map("m").update_many({b"%d" % n: bytes(1000) for n in range(100)})
        db.checkpoint()
    shutil.copytree(path / "wal", tmp_path / "all")
    log = Log(str(path / "wal"))
    numbers = log._numbers()
    assert len(numbers) > 2
    (path / "wal" / f"{numbers[0]:016d}.log").unlink()
    start = json.dumps({"0": [1, 5], "1": [1, 5]})
    with pytest.raises(HistoryTruncatedError, match="kept from update numbers"):
        rows(path / "wal", "changes", startingCounters=start)
    kept = rows(path / "wal", "changes", startingCounters=start, failOnDataLoss="false")
    assert [record.event for record in caplog.records] == ["history.skipped"]  # type: ignore[attr-defined]
    assert kept == rows(path / "wal", "changes")
    with pytest.raises(HistoryTruncatedError, match="is kept from"):
        rows(path / "wal", "changes", startingTimestamp="2020-01-01")
    since = rows(path / "wal", "changes", startingTimestamp="2020-01-01", failOnDataLoss="false")
    assert since == kept
    assert 0 < len(kept) < len(rows(tmp_path / "all", "changes"))


# ------------------------------------------------------------------ streams


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_stream_gives_every_change_once_and_splits_no_transaction(
    store: Path, most: int, restart: bool
) -> None:
    options = parse(
        {"path": str(store), "view": "changes", "startingCounters": "earliest"}, stream=True
    )
    following = ChangeStream(options)
    offset, found, batches = following.initial(), [], 0
    while (end := following.latest(offset, most)) != offset:
        batch = rows_of(following.tasks(offset, end))
        sizes: dict[bytes, int] = {}
        for row in batch:
            sizes[row["tx_id"]] = sizes.get(row["tx_id"], 0) + 1
        assert all(sizes[row["tx_id"]] == row["tx_size"] for row in batch)
        found += batch
        batches += 1
        offset = json.loads(json.dumps(end))
        if restart:
            assert rows_of(ChangeStream(options).tasks(json.loads(json.dumps(offset)), end)) == []
            following = ChangeStream(options)
    assert found == rows(store, "changes")
    assert batches == 1 or most < 1000


def test_a_batch_that_is_planned_again_is_the_same(store: Path) -> None:
    options = parse(
        {"path": str(store), "view": "changes", "startingCounters": "earliest"}, stream=True
    )
    following = ChangeStream(options)
    start = following.initial()
    middle = following.latest(start, 50)
    once = rows_of(following.tasks(start, middle))
    with tidelog.open(store) as db:
        fill(db, 9, 20)
    assert rows_of(ChangeStream(options).tasks(start, middle)) == once


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 300, 100_000])
def test_a_batch_is_of_about_so_many_bytes_of_the_log(store: Path, most: int) -> None:
    given = {"path": str(store), "view": "changes", "startingCounters": "earliest"}
    options = parse({**given, "maxBytesPerTrigger": str(most)}, stream=True)
    following = ChangeStream(options)
    offset, found = following.initial(), []
    sizes = []
    while (end := following.latest(offset, most)) != offset:
        batch = rows_of(following.tasks(offset, end))
        sizes.append(sum(len(row["key"]) + len(row["value"] or b"") for row in batch))
        found += batch
        offset = end
    assert found == rows(store, "changes")
    largest = 6 * 45  # updates of a transaction, which is never split
    assert max(sizes) <= most + largest
    assert len(sizes) == (1 if most > 10_000 else 100 if most == 1 else len(sizes))
    assert most != 300 or 10 < len(sizes) < 60


# ------------------------------------------------------------------ streams that begin with data


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Path, Path]:
    """A store, and a hot copy from before its newest changes; nothing older is in its log."""
    path, copy = tmp_path / "live", tmp_path / "copy"
    with new_store(path, partitions=4, segment_bytes=1 << 20, retain_bytes=1) as db:
        fill(db, 1, 60)
        db.map("stock")[b"large"] = bytes(900_000)
        db.map("stock")[b"large"] = bytes(900_000)
        fill(db, 2, 10)
        db.checkpoint()
        fill(db, 3, 20)
        db.backup(copy)
        fill(db, 4, 30)
    return path, copy


def beginning(path: Path, copy: Path, **options: str) -> ChangeStream:
    given = {"path": str(path), "view": "changes", "initialSnapshot": str(copy), **options}
    return ChangeStream(parse(given, stream=True))


@pytest.mark.parametrize("restart", [False, True])
def test_a_stream_begins_with_the_data_of_a_copy(copied: tuple[Path, Path], restart: bool) -> None:
    path, copy = copied
    following = beginning(path, copy)
    offset = following.initial()
    assert offset["p"] == {}
    batches = []
    while (end := following.latest(offset, 40)) != offset:
        batches.append(rows_of(following.tasks(offset, end)))
        if restart:
            following = beginning(path, copy)
            assert rows_of(following.tasks(offset, end)) == batches[-1]
        offset = json.loads(json.dumps(end))
    data, *changes = batches
    assert len(changes) > 1
    assert {row["op"] for row in data} == {"put"}
    known = {(row["namespace"], row["key"], row["value"], row["counter"]) for row in data}
    assert known == {
        (row["namespace"], row["key"], row["value"], row["counter"])
        for row in rows(copy, "snapshot")
    }
    assert replayed(data) == content(copy)
    assert replayed([row for batch in batches for row in batch]) == content(path)
    newest = {row["partition"]: row["counter"] for row in rows(path, "changes")}
    assert {int(p): number for p, (_, number) in offset["p"].items()} == newest


def test_a_stream_begins_with_what_is_wanted_of_a_copy(copied: tuple[Path, Path]) -> None:
    path, copy = copied
    for wanted in ({"namespace": "stock", "partitions": "1-2"}, {"namespace": "not there yet"}):
        following = beginning(path, copy, changeFormat="cdf", columns="key,_change_type", **wanted)
        start = following.initial()
        found = rows_of(following.tasks(start, following.latest(start, None)))
        here = rows(copy, "snapshot", **wanted) if "partitions" in wanted else []
        assert sorted(row["key"] for row in found) == sorted(row["key"] for row in here)
        assert {row["_change_type"] for row in found} == ({"update_postimage"} if here else set())


def test_another_copy_is_not_taken_for_the_one_that_a_query_began_with(
    copied: tuple[Path, Path], store: Path, tmp_path: Path
) -> None:
    path, copy = copied
    following = beginning(path, copy)
    start = following.initial()
    end = following.latest(start, None)
    with tidelog.open(path) as db:
        db.backup(tmp_path / "later")
    with pytest.raises(SnapshotExpiredError, match="not the copy"):
        beginning(path, tmp_path / "later").tasks(start, end)
    with pytest.raises(UsageError, match="not a copy of"):
        beginning(path, store).latest(start, None)
    with pytest.raises(UsageError, match="began with a copy"):
        ChangeStream(parse({"path": str(path), "view": "changes"}, stream=True)).latest(start, None)
    for rival in ("startingCounters", "startingTimestamp"):
        with pytest.raises(UsageError, match="exclude each other"):
            beginning(path, copy, **{rival: "earliest" if rival[8] == "C" else "2026-01-01"})
    with pytest.raises(UsageError, match="1 stores, and 2 copies"):
        beginning(path, copy, initialSnapshot=json.dumps([str(copy), str(copy)]))


# ------------------------------------------------------------------ transactions of a snapshot


def test_transactions_of_a_snapshot_are_told_as_far_as_the_log_is_kept(
    copied: tuple[Path, Path],
) -> None:
    path, _ = copied
    changes = {(row["partition"], row["counter"]): row["tx_id"] for row in rows(path, "changes")}
    found = rows(path, "snapshot", columns="partition,counter,tx_id")
    told = [row for row in found if row["tx_id"] is not None]
    assert 0 < len(told) < len(found)
    for row in found:
        assert row["tx_id"] == changes.get((row["partition"], row["counter"]))
    assert {row["tx_id"] for row in rows(path, "snapshot")} == {None}


@pytest.mark.slow
def test_a_stream_follows_a_writer_and_its_new_segments(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with new_store(path, partitions=2, segment_bytes=1 << 20) as db:
        table = db.map("m")
        session_of(db).committer.announce()
        options = parse({"path": str(path), "view": "changes"}, stream=True)
        following = ChangeStream(options)
        offset = following.initial()
        found = []
        for number in range(60):
            table[b"%d" % number] = bytes(60_000)
            session_of(db).committer.announce()
            end = following.latest(offset, None)
            found += rows_of(following.tasks(offset, end))
            offset = end
        assert [row["key"] for row in found] == [b"%d" % number for number in range(60)]
        assert len(Log(str(path))._numbers()) > 2


def test_an_offset_that_was_passed_may_be_asked_for_again(store: Path) -> None:
    # A query that failed comes back with the start that it had, and perhaps another limit.
    options = parse(
        {"path": str(store), "view": "changes", "startingCounters": "earliest"}, stream=True
    )
    following = ChangeStream(options)
    start = following.initial()
    for most in (5, None, 30, 5, 60):
        end = following.latest(start, most)
        assert end == ChangeStream(options).latest(start, most)
        once = rows_of(following.tasks(start, end))
        assert once == rows_of(ChangeStream(options).tasks(start, end))
    middle = following.latest(start, 30)
    for most in (None, 5, 40):
        end = following.latest(middle, most)
        assert end == ChangeStream(options).latest(middle, most)
        assert rows_of(following.tasks(middle, end)) == rows_of(
            ChangeStream(options).tasks(middle, end)
        )
    rest = rows_of(following.tasks(middle, following.latest(middle, None)))
    assert rows_of(following.tasks(start, middle)) + rest == rows(store, "changes")


@pytest.mark.parametrize("rotate", [False, True])
def test_a_rename_behind_a_batch_does_not_change_it(tmp_path: Path, rotate: bool) -> None:
    path = tmp_path / "s"
    with new_store(path, partitions=2, segment_bytes=1 << 20) as db:
        db.map("old")[b"k"] = b"v"
        session_of(db).committer.announce()
        options = parse(
            {"path": str(path), "view": "changes", "startingCounters": "earliest"}, stream=True
        )
        following = ChangeStream(options)
        start = following.initial()
        end = following.latest(start, None)
        once = rows_of(following.tasks(start, end))
        db.rename("old", "new")
        if rotate:
            session_of(db).committer.end_of_log.rotate()
        db.map("new")[b"k"] = b"w"
        session_of(db).committer.announce()
        assert [row["namespace"] for row in once] == ["old"]
        assert rows_of(following.tasks(start, end)) == once
        assert rows_of(ChangeStream(options).tasks(start, end)) == once
        rest = rows_of(following.tasks(end, following.latest(end, None)))
        assert [row["namespace"] for row in rest] == ["new"]


def test_an_offset_of_another_store_is_refused(store: Path, tmp_path: Path) -> None:
    with new_store(tmp_path / "other", partitions=4) as db:
        fill(db, 1, 60)
    options = parse({"path": str(tmp_path / "other"), "view": "changes"}, stream=True)
    other = ChangeStream(options).initial()
    following = ChangeStream(parse({"path": str(store), "view": "changes"}, stream=True))
    with pytest.raises(UsageError, match="belongs to store"):
        following.latest(other, None)


def test_an_offset_beyond_the_log_is_refused(store: Path) -> None:
    following = ChangeStream(parse({"path": str(store), "view": "changes"}, stream=True))
    offset = following.initial()
    offset["p"]["1"][1] += 1000
    with pytest.raises(UsageError, match="partition 1"):
        following.latest(offset, None)


def test_a_stream_over_two_stores(store: Path, tmp_path: Path) -> None:
    second = closed_store(tmp_path / "second")
    paths = json.dumps([str(store), str(second)])
    options = parse({"path": paths, "view": "changes", "startingCounters": "earliest"}, stream=True)
    following = ChangeStream(options)
    start = following.initial()
    found = rows_of(following.tasks(start, following.latest(start, None)))
    one, other = rows(store, "changes"), rows(second, "changes")
    assert [row.pop("node") for row in found] == [str(store)] * len(one) + [str(second)] * len(
        other
    )
    assert found == one + other


def test_a_stream_tells_how_far_it_could_go(tmp_path: Path) -> None:
    path = tmp_path / "s"
    given = {"path": str(path), "view": "changes"}
    new_store(path, partitions=2, segment_bytes=1 << 20, retain_bytes=1 << 30).close()
    following: list[ViewStream] = [
        stream(parse({**given, "startingCounters": "earliest"}, stream=True)),
        stream(parse({**given, "view": "wal", "startingPosition": "earliest"}, stream=True)),
    ]
    starts = [one.initial() for one in following]
    for _ in range(3):
        with new_store(path) as db:
            for _ in range(20):
                db.map("m").update_many({b"%d" % n: bytes(1000) for n in range(100)})
        for one, start in zip(following, starts, strict=True):
            assert one.latest(start, 1) != one.newest() == one.latest(start, None)


def test_a_frozen_stream_goes_no_further(store: Path) -> None:
    options = parse(
        {"path": str(store), "view": "changes", "startingCounters": "earliest"}, stream=True
    )
    following = ChangeStream(options)
    following.freeze()
    before = rows(store, "changes")
    with tidelog.open(store) as db:
        fill(db, 9, 20)
    start = following.initial()
    end = following.latest(start, None)
    assert rows_of(following.tasks(start, end)) == before
    assert following.latest(end, None) == end


# ------------------------------------------------------------------ key ranges


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"keyPrefix": "1"}, lambda key: key.startswith(b"1")),
        ({"keyPrefix": "hex:31"}, lambda key: key.startswith(b"1")),
        ({"startKey": "2", "endKey": "utf8:35"}, lambda key: b"2" <= key < b"35"),
        ({"keyPrefix": "1", "startKey": "12", "endKey": "5"}, lambda key: b"12" <= key < b"2"),
        ({"keyPrefix": "hex:ff"}, lambda key: False),
        ({"startKey": "5", "endKey": "2"}, lambda key: False),
        ({"endKey": ""}, lambda key: False),
    ],
)
def test_a_snapshot_of_a_range_of_keys(
    store: Path, options: dict[str, str], wanted: Callable[[bytes], bool]
) -> None:
    whole = rows(store, "snapshot")
    found = rows(store, "snapshot", **options)
    assert found == [row for row in whole if wanted(row["key"])]


# ------------------------------------------------------------------ streams of records


def wal_stream(path: Path, **options: object) -> WalStream:
    given = {name: str(value) for name, value in options.items()}
    made = stream(parse({"path": str(path), "view": "wal", **given}, stream=True))
    assert isinstance(made, WalStream)
    return made


@pytest.mark.parametrize("most", [1, 700, None])
def test_a_stream_of_records_gives_each_once_over_restarts(store: Path, most: int | None) -> None:
    expected = rows(store, "wal")
    following = wal_stream(store, startingPosition="earliest")
    offset, found = following.initial(), []
    while (end := following.latest(offset, most)) != offset:
        found += rows_of(following.tasks(offset, end))
        offset = json.loads(json.dumps(end))
        following = wal_stream(store)
    assert found == expected
    assert wal_stream(store).initial() == offset


def test_a_stream_of_records_begins_at_the_next_frame(store: Path) -> None:
    whole = wal_stream(store, startingPosition="earliest")
    start = whole.initial()["sources"][0]["position"]
    behind = wal_stream(store, startingPosition=start + 1)
    first = rows(store, "wal")[0]["offset"]
    found = rows_of(behind.tasks(behind.initial(), behind.latest(behind.initial(), None)))
    assert found == [row for row in rows(store, "wal") if row["offset"] > first]


def test_a_stream_of_records_follows_a_writer_and_stops_where_it_was_frozen(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    with new_store(path, partitions=2, segment_bytes=1 << 20) as db:
        session_of(db).committer.announce()
        following = wal_stream(path)
        offset = following.initial()
        for number in range(40):
            db.map("m")[b"%d" % number] = bytes(60_000)
        session_of(db).committer.announce()
        following.freeze()
        frozen = following.latest(offset, None)
        db.map("m")[b"later"] = b""
        session_of(db).committer.announce()
        assert following.latest(offset, None) == frozen
        found = rows_of(following.tasks(offset, frozen))
        assert [row["record_type"] for row in found].count("TX") == 40
        assert len({row["segment"] for row in found}) > 2


def test_an_offset_of_other_logs_is_refused(store: Path, tmp_path: Path) -> None:
    other = closed_store(tmp_path / "other")
    with pytest.raises(UsageError, match="other logs"):
        wal_stream(store).latest(wal_stream(other).initial(), None)
    with pytest.raises(UsageError, match="cannot be streamed") as caught:
        stream(parse({"path": str(store), "view": "snapshot"}, stream=None))
    assert "wal" in caught.value.hint


def test_records_that_are_gone_are_missed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with new_store(path, partitions=1, segment_bytes=1 << 20, retain_bytes=1) as db:
        start = wal_stream(path).initial()
        for number in range(60):
            db.map("m")[b"%d" % number] = bytes(60_000)
        db.checkpoint()
        db.checkpoint()
        following = wal_stream(path)
        with pytest.raises(HistoryTruncatedError):
            following.tasks(start, following.latest(start, None))


def test_what_can_be_read_of_several_stores_is_read_of_each(tmp_path: Path) -> None:
    stores = [closed_store(tmp_path / name) for name in ("first", "second")]
    both = read(
        parse({"path": json.dumps(list(map(str, stores))), "view": "changes", "mode": "PERMISSIVE"})
    )
    alone = [
        {**row, "node": str(store)}
        for store in stores
        for row in rows(store, "changes", mode="PERMISSIVE")
    ]
    assert {row["node"] for row in alone} == set(map(str, stores))
    assert rows_of(both) == alone


def test_the_history_of_a_log_is_that_of_its_newest_segment(tmp_path: Path) -> None:
    store, copy = closed_store(tmp_path / "store"), tmp_path / "copy"
    with new_store(store) as db:
        fill(db, 3, 5)
        db.backup(copy)
    with new_store(copy) as db:
        fill(db, 4, 5)
    assert len(list((copy / "wal").glob("*.log"))) == 2
    original, continued = Log(str(store)), Log(str(copy))
    assert continued.store_id == original.store_id
    assert continued.history_id != original.history_id
    with tidelog.open(copy, read_only=True) as reader:
        assert continued.history_id.hex() == session_of(reader).access.manifest().history_id
