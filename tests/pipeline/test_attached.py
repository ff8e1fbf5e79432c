"""Maps that were attached from files: snapshots have their rows, the log has not, and says so."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

import tidelog
from support.loads import make_load, rows_of
from support.pipelines import content, new_store, replayed, rows, rows_of as rows_of_tasks
from tidelog.affinity.errors import HistoryTruncatedError
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import session_of
from tidelog.engine.store.checkpointer import Checkpointer
from tidelog.pipeline.jobs import audits, runner as jobs
from tidelog.pipeline.jobs.compaction import compact
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.jobs.wal_stats import wal_stats
from tidelog.pipeline.plan.options import parse
from tidelog.pipeline.plan.streams import stream

HERE = Runner()
ROWS = rows_of(40)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a map of its own, and an attached one that was changed since."""
    load = make_load(tmp_path / "load", ROWS)
    with new_store(tmp_path / "store", partitions=4) as db:
        users = db.map("users")
        users[b"ada"] = b"x"
        cities = db.attach(load)
        cities[b"later"] = b"y"
        del cities[b"key00001"]
        users[b"bob"] = b"z"
    return tmp_path / "store"


def test_a_snapshot_has_the_rows(store: Path) -> None:
    found: dict[str, dict[bytes, bytes]] = {}
    for row in rows(store, "snapshot"):
        found.setdefault(row["namespace"], {})[row["key"]] = row["value"]
    assert found == content(store)
    assert len(found["cities"]) == len(ROWS)


def test_the_rows_of_a_load_belong_to_no_transaction(store: Path) -> None:
    logged = rows(store, "changes", failOnDataLoss="false")
    made = {(row["partition"], row["counter"]): row["tx_id"] for row in logged}
    found = rows(store, "snapshot", columns="partition,counter,tx_id")
    assert {row["tx_id"] is None for row in found} == {True, False}
    for row in found:
        assert row["tx_id"] == made.get((row["partition"], row["counter"]))


def test_changes_over_the_numbers_of_a_load_are_an_error_that_says_what_to_do(store: Path) -> None:
    first = 1 + (partition_of(b"ada", Space(0, 4)) == 0)
    for options in ({}, {"namespace": "cities"}, {"partitions": "0"}):
        with pytest.raises(HistoryTruncatedError, match="no rows of map 'cities'") as raised:
            rows(store, "changes", **options)
        count = sum(partition_of(key, Space(0, 4)) == 0 for key in ROWS)
        assert f"by partition: 0: {first}..{first + count - 1}" in str(raised.value)
        assert "Read a snapshot" in raised.value.hint
        assert (", 1: " in str(raised.value)) == ("partitions" not in options)


def test_changes_without_the_map_are_read(store: Path) -> None:
    found = replayed(rows(store, "changes", namespace="users"))
    assert found == {"users": {b"ada": b"x", b"bob": b"z"}}


def test_changes_from_behind_the_numbers_are_read(store: Path) -> None:
    last = {
        str(row["partition"]): row["first_counter"] + row["count"] - 1
        for row in rows(store, "wal")
        if row["record_type"] == "INGEST"
    }
    found = rows(store, "changes", startingCounters=json.dumps(last))
    assert {(row["namespace"], row["key"], row["op"]) for row in found} == {
        ("cities", b"later", "put"),
        ("cities", b"key00001", "delete"),
        ("users", b"bob", "put"),
    }


def test_what_the_log_lacks_may_be_skipped(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidelog.pipeline"):
        found = rows(store, "changes", failOnDataLoss="false")
    assert {(row["namespace"], row["key"]) for row in found} == {
        ("users", b"ada"), ("users", b"bob"), ("cities", b"later"), ("cities", b"key00001")
    }  # fmt: skip
    (told,) = caplog.records
    assert told.event == "history.skipped"  # type: ignore[attr-defined]
    assert "no rows of map 'cities'" in told.message


def test_the_log_shows_the_record(store: Path) -> None:
    found = [row for row in rows(store, "wal") if row["record_type"] == "INGEST"]
    assert sum(row["count"] for row in found) == len(ROWS)
    assert {row["tx_id"] for row in found} == {None}


def test_a_key_has_the_history_that_the_log_knows(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = b"key00001"
    with caplog.at_level(logging.WARNING, "tidelog.pipeline"):
        (row,) = jobs.history(str(store), "cities", key, HERE)
    assert (row["op"], len(caplog.records)) == ("delete", 1)


def test_counts_tell_of_the_numbers_of_a_load(store: Path) -> None:
    tables = wal_stats([str(store)], HERE)
    ranges = [row for row in tables["ranges"] if row["kind"] == "load"]
    assert sum(row["count"] for row in ranges) == len(ROWS)
    assert {row["kind"] for row in tables["ranges"]} == {"load"}


def test_a_stream_stops_at_a_load_that_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = make_load(tmp_path / "load", ROWS)
    with new_store(tmp_path / "store", partitions=4) as db:
        db.map("users")[b"ada"] = b"x"
        options = parse({"path": str(tmp_path / "store"), "view": "changes", "namespace": "cities"})
        follower = stream(options)
        start = stream(replace(options, namespace=None)).initial()
        add, errors = Checkpointer.add, []

        def follow(*args: object) -> None:
            add(*args)  # type: ignore[arg-type]
            session_of(db).store.committer.announce()
            tasks = follower.tasks(start, follower.latest(start, None))
            with pytest.raises(HistoryTruncatedError, match="no rows of map 17") as raised:
                rows_of_tasks(tasks)
            errors.append(raised.value)

        monkeypatch.setattr(Checkpointer, "add", follow)
        db.attach(load)
        assert errors


def test_an_attach_that_failed_has_closed_numbers_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = make_load(tmp_path / "load", ROWS)
    path, archive = tmp_path / "store", tmp_path / "archive"
    with new_store(path, partitions=4) as db:
        db.map("users")[b"ada"] = b"x"
    compact(str(path), str(archive), HERE)
    with new_store(path) as db:
        with monkeypatch.context() as patch:
            patch.setattr(Checkpointer, "add", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                db.attach(load)
        db.map("users")[b"bob"] = b"y"
    found = replayed(rows(path, "changes"))
    assert found == {"users": {b"ada": b"x", b"bob": b"y"}}
    assert compact(str(path), str(archive), HERE)["rows"] == 1
    assert replayed(rows(archive, "changes")) == found


def test_no_view_shows_a_map_that_was_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = make_load(tmp_path / "load", ROWS)
    path = tmp_path / "store"
    with new_store(path, partitions=4) as db:
        db.map("users")[b"ada"] = b"x"

        def copy(*_args: object) -> None:
            db.backup(tmp_path / "copy")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Checkpointer, "run", copy)
            with pytest.raises(KeyboardInterrupt):
                db.attach(load)
    copied = tmp_path / "copy"
    with tidelog.open(copied, read_only=True) as reader:
        assert reader.maps() == ["users"]
    assert {row["namespace"] for row in rows(copied, "snapshot")} == {"users"}
    assert audits.verify([str(copied), str(path)], HERE) == []
    compact(str(copied), str(tmp_path / "archive"), HERE)
    assert {row["namespace"] for row in rows(tmp_path / "archive", "snapshot")} == {"users"}


# ------------------------------------------------------------------ archives and audits


def test_an_archive_cannot_go_on_over_a_load_and_a_new_one_begins_behind_it(tmp_path: Path) -> None:
    path, archive, anew = (tmp_path / name for name in ("store", "archive", "anew"))
    load = make_load(tmp_path / "load", ROWS)
    with new_store(path, partitions=4) as db:
        db.map("users")[b"ada"] = b"x"
    compact(str(path), str(archive), HERE)
    with new_store(path) as db:
        db.attach(load)[b"later"] = b"y"
    with pytest.raises(HistoryTruncatedError, match="no rows of map 'cities'") as raised:
        compact(str(path), str(archive), HERE)
    assert "Compact into a new folder" in raised.value.hint
    assert {row["key"] for row in rows(archive, "snapshot")} == {b"ada"}
    compact(str(path), str(anew), HERE)
    with new_store(path) as db:
        del db.map("cities")[b"key00002"]
    compact(str(path), str(anew), HERE)
    found: dict[str, dict[bytes, bytes]] = {}
    for row in rows(anew, "snapshot"):
        found.setdefault(row["namespace"], {})[row["key"]] = row["value"]
    assert found == content(path)


def test_a_replay_over_a_load_is_an_error(store: Path, tmp_path: Path) -> None:
    older, behind = tmp_path / "older", tmp_path / "behind"
    with new_store(older, partitions=4) as db:
        db.map("users")[b"ada"] = b"x"
    with new_store(older) as db:
        db.backup(tmp_path / "before")
        cities = db.attach(make_load(tmp_path / "again", ROWS))
        db.backup(behind)
        cities[b"later"] = b"y"
    with pytest.raises(HistoryTruncatedError, match="no rows of map 'cities'"):
        audits.replay_check(str(tmp_path / "before"), str(older), HERE)
    assert audits.replay_check(str(behind), str(older), HERE) == []
    with new_store(older) as db:
        db.drop("cities")
    assert audits.replay_check(str(tmp_path / "before"), str(older), HERE) == []
