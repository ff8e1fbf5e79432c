"""Jobs without a JVM: history, export, and the proofs about copies."""

from __future__ import annotations

import base64
import csv
import errno
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import tidelog
from support.pipelines import closed_store, content, fill, flip, new_store, rows
from tidelog.affinity.errors import (
    AlreadyOpenError,
    CorruptLogError,
    DiskFullError,
    HistoryTruncatedError,
    UsageError,
)
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import session_of
from tidelog.pipeline.jobs import audits, runner as jobs
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.log.columns import SNAPSHOT
from tidelog.pipeline.spark import sessions

HERE = Runner()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return closed_store(tmp_path / "store")


def copied(store: Path, name: str) -> Path:
    """A hot copy of a closed store."""
    with tidelog.open(store) as db:
        db.backup(store.parent / name)
    return store.parent / name


def edited(copy: Path, edit: Callable[[Any], None]) -> None:
    """Let a copy go its own way."""
    with new_store(copy) as db:
        edit(db)


# ------------------------------------------------------------------------------------- history


def test_the_history_of_a_key_is_every_version_in_order(store: Path) -> None:
    expected = [
        row for row in rows(store, "changes") if (row["namespace"], row["key"]) == ("stock", b"7")
    ]
    assert len(expected) > 1
    assert jobs.history(str(store), "stock", b"7", HERE) == expected
    assert jobs.history(str(store), "stock", b"nobody", HERE) == []


# -------------------------------------------------------------------------------------- export


def export(store: Path, form: Any, view: str = "snapshot", **options: str) -> tuple[int, Path]:
    target = store.parent / f"out.{form}"
    given = {"path": str(store), "view": view, **options}
    count, names = jobs.export(given, str(target), form, HERE)
    assert names == sorted(path.name for path in target.iterdir())
    return count, target


def lines_of(folder: Path) -> list[str]:
    return [line for part in sorted(folder.iterdir()) for line in part.read_text().splitlines()]


def csv_of(folder: Path) -> list[dict[str, str]]:
    parts = [part.read_text().splitlines() for part in sorted(folder.iterdir())]
    return [row for part in parts for row in csv.DictReader(part)]


@pytest.mark.parametrize("view", ["snapshot", "changes", "wal", "meta"])
def test_parquet_holds_what_the_view_shows(store: Path, view: str) -> None:
    count, target = export(store, "parquet", view)
    found = pq.read_table(target).to_pylist()
    assert count == len(found) > 0
    expected = rows(store, view)
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_lines_of_json_hold_bytes_as_text_where_they_are(store: Path) -> None:
    _, target = export(store, "jsonl", columns="namespace,key,value")
    found = [json.loads(line) for line in lines_of(target)]
    plain = {
        (row["namespace"], row["key"]["s"].encode()): (
            row["value"]["s"].encode()
            if "s" in row["value"]
            else base64.b64decode(row["value"]["b64"])
        )
        for row in found
    }
    assert plain == {(n, k): v for n, pairs in content(store).items() for k, v in pairs.items()}


def test_csv_holds_bytes_as_base64(store: Path) -> None:
    _, target = export(store, "csv", columns="key,counter,value")
    found = csv_of(target)
    expected = {(row["key"], row["counter"]): row["value"] for row in rows(store, "snapshot")}
    decoded = {
        (base64.b64decode(row["key"]), int(row["counter"])): base64.b64decode(row["value"])
        for row in found
    }
    assert decoded == expected


def test_gaps_are_json_in_csv(store: Path) -> None:
    _, target = export(store, "csv", "meta")
    found = csv_of(target)
    assert [json.loads(row["gaps"]) for row in found] == [[]] * 4


def test_nothing_exported_is_still_a_file_with_columns(tmp_path: Path) -> None:
    with new_store(tmp_path / "store"):
        pass
    count, target = export(tmp_path / "store", "parquet")
    assert count == 0
    assert pq.read_table(target).column_names == [name for name, _ in SNAPSHOT]


def test_an_export_writes_over_nothing_and_is_whole(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "_write_file", dies)
        with pytest.raises(KeyboardInterrupt):
            export(store, "parquet")
    assert not (store.parent / "out.parquet").exists()
    (store.parent / "out.parquet.unfinished" / "part-99999.parquet").write_bytes(b"old")
    export(store, "parquet")
    assert not (store.parent / "out.parquet.unfinished").exists()
    with pytest.raises(UsageError, match="there already"):
        export(store, "parquet")
    with pytest.raises(UsageError, match="no format"):
        export(store, "xml")


# -------------------------------------------------------------------------------------- verify


def test_copies_of_one_store_hold_the_same_whatever_their_checkpoints(store: Path) -> None:
    copy = copied(store, "copy")
    with new_store(copy) as db:
        db.checkpoint()
    with new_store(store) as db:  # the copy has all in its data file, the store has a tail
        session_of(db).abandon()
    assert audits.verify([str(store), str(copy), str(store)], HERE) == []


def test_what_copies_hold_unlike_is_told_key_by_key(store: Path) -> None:
    copy, third = copied(store, "copy"), copied(store, "third")
    have = content(store)
    gone, changed = sorted(have["stock"])[:2]

    def edit(db: Any) -> None:
        db.map("stock").discard(gone)
        db.map("stock")[changed] = b"other"
        db.map("fresh")[b"new"] = b"x"

    edited(copy, edit)
    found = audits.verify([str(store), str(copy), str(third)], HERE, tasks=3)
    told = {(row["namespace"], row["key"]): row["copies"] for row in found}
    assert sorted(told) == [("fresh", b"new"), ("stock", gone), ("stock", changed)]
    newest = {(r["namespace"], r["key"]): r["counter"] for r in rows(store, "snapshot")}
    assert told["stock", gone] == [newest["stock", gone], None, newest["stock", gone]]
    first, second, last = told["stock", changed]
    assert first == last == newest["stock", changed]
    assert second > first
    assert told["fresh", b"new"][0] is told["fresh", b"new"][2] is None
    assert all(row["partition"] == partition_of(row["key"], Space(0, 4)) for row in found)


def test_a_value_that_differs_under_one_number_is_found(store: Path) -> None:
    copy, other = copied(store, "copy"), copied(store, "other")
    edited(copy, lambda db: db.map("stock").__setitem__(b"k", b"one"))
    edited(other, lambda db: db.map("stock").__setitem__(b"k", b"two"))
    (row,) = audits.verify([str(copy), str(other)], HERE)
    assert row["key"] == b"k"
    assert row["copies"][0] == row["copies"][1]


def test_only_copies_of_one_store_are_compared(store: Path, tmp_path: Path) -> None:
    other = closed_store(tmp_path / "other")
    with pytest.raises(UsageError, match="is a copy of store"):
        audits.verify([str(store), str(other)], HERE)
    with pytest.raises(UsageError, match="cannot differ"):
        audits.verify([str(store)], HERE)
    with new_store(other), pytest.raises(AlreadyOpenError, match="open for writing"):
        audits.verify([str(other), str(store)], HERE)


# -------------------------------------------------------------------------------------- replay


def test_an_older_copy_and_the_log_give_the_newer_one(store: Path) -> None:
    older = copied(store, "older")
    with new_store(store) as db:
        fill(db, 9, 80)
        db.drop("orders")
        db.rename("stock", "goods")
        fill(db, 10, 30)
        db.map("goods").clear()
        fill(db, 11, 10)
    assert audits.replay_check(str(older), str(store), HERE, tasks=3) == []
    assert audits.replay_check(str(store), str(store), HERE) == []


def test_what_the_log_does_not_give_is_told(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = copied(store, "older")
    with new_store(store) as db:
        db.map("stock").update({b"lost": b"1", b"kept": b"2", b"0": b"3"})
        db.map("stock").discard(sorted(content(older)["orders"])[0])
    updates = audits._updates

    def forgetful(work: Any) -> Any:
        return (one for one in updates(work) if not one[0].endswith(b"lost"))

    monkeypatch.setattr(audits, "_updates", forgetful)
    (row,) = audits.replay_check(str(older), str(store), HERE)
    assert (row["namespace"], row["key"], row["replayed"]) == ("stock", b"lost", None)
    monkeypatch.setattr(audits, "_updates", lambda work: iter(()))
    told = audits.replay_check(str(older), str(store), HERE)
    assert {b"lost", b"kept", b"0"} <= {row["key"] for row in told}


def test_only_what_leads_from_one_to_the_other_is_replayed(store: Path, tmp_path: Path) -> None:
    older = copied(store, "older")
    edited(older, lambda db: fill(db, 3, 5))
    with pytest.raises(UsageError, match=r"was asked for|different histories"):
        audits.replay_check(str(older), str(store), HERE)
    with new_store(tmp_path / "short", partitions=2, segment_bytes=1, retain_bytes=1) as db:
        db.backup(tmp_path / "before")
        for number in range(8):
            db.map("m")[b"%d" % number] = bytes(200_000)
            db.checkpoint()
    with pytest.raises((HistoryTruncatedError, UsageError)):
        audits.replay_check(str(tmp_path / "before"), str(tmp_path / "short"), HERE)


def test_damage_ends_a_proof(store: Path) -> None:
    older = copied(store, "older")
    with new_store(store) as db:
        fill(db, 4, 30)
    newest = rows(store, "wal")[-3]
    flip(store / "wal" / f"{newest['segment']:016d}.log", newest["offset"] + 22)
    with pytest.raises(CorruptLogError):
        audits.replay_check(str(older), str(store), HERE)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(seeds=st.lists(st.integers(0, 1000), min_size=1, max_size=4), tasks=st.integers(1, 6))
def test_every_way_of_cutting_the_work_gives_the_same(
    tmp_path_factory: pytest.TempPathFactory, seeds: list[int], tasks: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    store = closed_store(folder / "store")
    copy = copied(store, "copy")
    with new_store(store) as db:
        for seed in seeds:
            fill(db, seed, 5)
    paths = [str(copy), str(store)]
    assert audits.replay_check(str(copy), str(store), HERE, tasks=tasks) == []
    assert audits.verify(paths, HERE, tasks=tasks) == audits.verify(paths, HERE, tasks=1)


def test_a_runner_tells_how_far_it_is_and_small_inputs_need_no_jvm(store: Path) -> None:
    told: list[int] = []
    assert list(Runner(done=told.append).run(range, [2, 3])) == [0, 1, 0, 1, 2]
    assert told == [1, 1]
    assert jobs.engine_for([str(store)]) == "arrow"
    assert jobs.engine_for([str(store / "nowhere")]) == "arrow"


def test_large_inputs_go_to_spark(store: Path) -> None:
    assert jobs.engine_for([str(store)], small_bytes=10) == "spark"


class Executors:
    """A Spark context that runs tasks here, where nothing gets to or back other than as bytes."""

    def __init__(self) -> None:
        self.sparkContext = self
        self._results: list[Any] = []

    def parallelize(self, tasks: list[Any], slices: int) -> Executors:
        assert slices == len(tasks)
        self._results = tasks
        return self

    def flatMap(self, work: Callable[[Any], Iterator[Any]]) -> Executors:  # noqa: N802
        sent = pickle.loads(pickle.dumps((work, self._results)))
        self._results = [result for task in sent[1] for result in sent[0](task)]
        return self

    def collect(self) -> list[Any]:
        found: list[Any] = pickle.loads(pickle.dumps(self._results))
        return found


def fails(error: BaseException) -> Iterator[int]:
    """A task that ends before its end."""
    yield 1
    raise error


@pytest.mark.parametrize("engine", ["arrow", "spark"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), DiskFullError("full")]
)
def test_an_error_of_a_task_is_raised_as_it_is_wherever_that_ran(
    monkeypatch: pytest.MonkeyPatch, engine: Any, error: Exception
) -> None:
    # Spark made a text of it, and the command ended as for a bug.
    masters = list[str]()

    def session(master: str) -> Executors:
        masters.append(master)
        return Executors()

    monkeypatch.setattr(sessions, "local_session", session)
    ended = list[int]()
    results = Runner(engine, "local[7]", ended.append).run(fails, [error, error])
    assert next(results) == 1
    with pytest.raises(type(error)) as caught:
        next(results)
    assert caught.value.args == error.args
    assert ended == []
    assert masters == ["local[7]"] * (engine == "spark")
