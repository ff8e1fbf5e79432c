"""Archives against the whole log that they were made of."""

from __future__ import annotations

import errno
import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from crc32c import crc32c
from pyarrow import parquet

import tidelog
from support.full_disks import files_at_most
from support.pipelines import Row, content, fill, greatest_closed, new_store, replayed, rows
from tidelog.affinity.errors import (
    AlreadyOpenError,
    CorruptDataError,
    DiskError,
    DiskFullError,
    HistoryTruncatedError,
    SnapshotExpiredError,
    UsageError,
)
from tidelog.engine.api.database import session_of
from tidelog.engine.system.disk import RealDisk
from tidelog.pipeline.data import archives
from tidelog.pipeline.jobs import compaction, runner as jobs
from tidelog.pipeline.jobs.compaction import FILE_SIZES, FileSizes, compact
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.plan.options import parse
from tidelog.pipeline.plan.reads import read, read_snapshot


class Remote(Runner):
    """Runs tasks here, but nothing gets there or back other than as bytes."""

    def run(self, work: Callable[[T], Iterable[R]], tasks: Sequence[T]) -> Iterator[R]:
        for task in tasks:
            there = pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(task)))
            yield from (pickle.loads(pickle.dumps(result)) for result in there)


HERE = Remote()
T = TypeVar("T")
R = TypeVar("R")
KEEP_ALL = {"segment_bytes": 1 << 20, "retain_bytes": 1 << 30}


def grow(path: Path, seed: int, large: int = 300_000) -> None:
    """Commit to a store, with a new segment now and then."""
    with new_store(path, partitions=4, **KEEP_ALL) as db:
        for number in range(4):
            fill(db, 10 * seed + number, 12)
            db.map("stock")[b"large"] = bytes(large)


def in_order(found: Iterable[Row]) -> list[Row]:
    return sorted(found, key=lambda row: (row["partition"], row["counter"]))


def as_maps(found: Iterable[Row]) -> dict[str, dict[bytes, bytes]]:
    """The rows of a snapshot as maps; each key comes once."""
    maps: dict[str, dict[bytes, bytes]] = {}
    for row in found:
        assert row["key"] not in maps.setdefault(row["namespace"], {})
        maps[row["namespace"]][row["key"]] = row["value"]
    return maps


def state_of(changes: Iterable[Row]) -> dict[str, dict[bytes, bytes]]:
    """What changes leave behind, maps without keys left out."""
    return {name: pairs for name, pairs in replayed(changes).items() if pairs}


def vector_of(path: Path, **options: str) -> dict[int, int]:
    """The numbers that a snapshot tells as its cut."""
    _, cuts = read_snapshot(parse({"path": str(path), **options}))
    return {partition: number for partition, (_, number) in cuts[str(path)].items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Row]]:
    """A store whose log is complete, an archive made of it in three runs, and all changes."""
    folder = tmp_path_factory.mktemp("archives")
    store, archive = folder / "store", folder / "archive"
    for seed in range(3):
        grow(store, seed)
        compact(str(store), str(archive), HERE, task_bytes=100_000)
    assert len(list((store / "wal").glob("*.log"))) > 2
    return store, archive, rows(store, "changes")


# ------------------------------------------------------------------ changes


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"includeRollbacks": "true"},
        {"namespace": "stock"},
        {"partitions": "0,2-3", "namespace": "orders"},
        {"changeFormat": "cdf"},
        {"batchRows": "7"},
    ],
)
def test_an_archive_has_the_changes_of_the_log(
    whole: tuple[Path, Path, list[Row]], options: dict[str, str]
) -> None:
    store, archive, _ = whole
    number = "_commit_version" if options.get("changeFormat") else "counter"

    def ordered(path: Path) -> list[Row]:
        return sorted(rows(path, "changes", **options), key=lambda r: (r["partition"], r[number]))

    assert ordered(archive) == ordered(store)
    assert ordered(archive)


def test_changes_of_an_archive_between_vectors_and_since_a_time(
    whole: tuple[Path, Path, list[Row]],
) -> None:
    _, archive, everything = whole
    low, high = {"0": 5, "2": 17}, {"0": 30, "1": 20, "2": 18, "3": 44}
    found = rows(
        archive, "changes", startingCounters=json.dumps(low), endingCounters=json.dumps(high)
    )
    assert in_order(found) == in_order(
        row
        for row in everything
        if low.get(str(row["partition"]), 0) < row["counter"] <= high[str(row["partition"])]
    )
    time = everything[len(everything) // 2]["commit_ts"]
    since = rows(archive, "changes", startingTimestamp=time.isoformat())
    assert in_order(since) == in_order(row for row in everything if row["commit_ts"] >= time)
    assert rows(archive, "changes", startingCounters="latest") == []


def test_a_run_without_changes_adds_nothing(whole: tuple[Path, Path, list[Row]]) -> None:
    store, archive, _ = whole
    before = (archive / archives.NAME).read_text()
    assert compact(str(store), str(archive), HERE)["rows"] == 0
    assert (archive / archives.NAME).read_text() == before


def test_a_key_has_its_history_after_the_log_has_gone(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    grow(store, 1)
    key = b"7"
    early = jobs.history(str(store), "stock", key, HERE)
    compact(str(store), str(archive), HERE)
    with new_store(store, retain_bytes=1) as db:
        db.checkpoint()
    grow(store, 2, 10)
    late = jobs.history(str(store), "stock", key, HERE)
    assert early
    assert late
    assert early[-1]["counter"] < late[0]["counter"]
    for _ in range(2):  # the second time both of them have the late ones
        assert jobs.history(str(store), "stock", key, HERE, str(archive)) == early + late
        compact(str(store), str(archive), HERE)


# ------------------------------------------------------------------ data as of a cut


@pytest.mark.slow
def test_data_as_of_a_time(whole: tuple[Path, Path, list[Row]]) -> None:
    store, archive, everything = whole
    times = sorted({row["commit_ts"] for row in everything})
    for time in (times[0], times[1], *times[20::40], times[-1]):
        found = as_maps(rows(archive, "snapshot", asOf=time.isoformat()))
        assert found == state_of([row for row in everything if row["commit_ts"] <= time])
        cut = vector_of(archive, asOf=time.isoformat())
        below = {
            (row["partition"], row["counter"]) for row in everything if row["commit_ts"] <= time
        }
        numbers = {(row["partition"], row["counter"]) for row in everything}
        assert below == {(p, n) for p, n in numbers if n <= cut[p]}
    assert as_maps(rows(archive, "snapshot")) == content(store)
    assert rows(archive, "snapshot", asOf="1999-01-01") == []
    assert set(vector_of(archive, asOf="1999-01-01").values()) == {0}
    with pytest.raises(UsageError, match="ends at"):
        rows(archive, "snapshot", asOf="2999-01-01")


def test_data_tells_which_change_wrote_it(whole: tuple[Path, Path, list[Row]]) -> None:
    _, archive, everything = whole
    newest = {(row["namespace"], row["key"]): row for row in everything}
    for row in rows(archive, "snapshot"):
        change = newest[row["namespace"], row["key"]]
        for name in ("partition", "counter", "value", "tx_id", "commit_ts"):
            assert row[name] == change[name]


def test_data_of_one_map_some_partitions_and_a_range_of_keys(
    whole: tuple[Path, Path, list[Row]],
) -> None:
    store, archive, _ = whole

    def repeated(**options: str) -> tuple[list[str], list[str]]:
        found = []
        for path in (archive, store):
            plain = [{**row, "tx_id": None} for row in rows(path, "snapshot", **options)]
            found.append(sorted(map(repr, plain)))
        return found[0], found[1]

    for options in (
        {"namespace": "stock"},
        {"partitions": "1-2"},
        {"startKey": "2", "endKey": "5"},
    ):
        mine, other = repeated(**options)
        assert mine == other
        assert mine
    with pytest.raises(UsageError, match="no map 'stok'"):
        rows(archive, "snapshot", namespace="stok")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_data_as_of_a_vector_splits_no_transaction(
    whole: tuple[Path, Path, list[Row]], seed: int
) -> None:
    _, archive, everything = whole
    last = {row["partition"]: row["counter"] for row in everything}
    wanted = {p: number * (seed + 1 + p) % (number + 1) for p, number in last.items()}
    text = json.dumps({str(p): number for p, number in wanted.items()})
    for consistency, cut in (
        ("partition", wanted),
        ("transaction", greatest_closed(everything, wanted)),
    ):
        assert vector_of(archive, asOf=text, consistency=consistency) == cut
        found = as_maps(rows(archive, "snapshot", asOf=text, consistency=consistency))
        assert found == state_of(
            [row for row in everything if row["counter"] <= cut[row["partition"]]]
        )


@pytest.mark.parametrize("task_bytes", [50, 1 << 20])
def test_maps_have_the_names_of_that_time(tmp_path: Path, task_bytes: int) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    seen: list[tuple[str, dict[str, dict[bytes, bytes]]]] = []

    def see() -> None:
        time = max(row["commit_ts"] for row in rows(store, "changes"))
        seen.append((time.isoformat(), {n: pairs for n, pairs in content(store).items() if pairs}))

    def change(work: Callable[[Any], object]) -> None:
        with new_store(store, partitions=4) as db:
            work(db)

    change(lambda db: db.map("a").update_many({b"%d" % n: b"1" for n in range(9)}))
    see()
    compact(str(store), str(archive), HERE, task_bytes=task_bytes)
    change(lambda db: db.rename("a", "b"))
    change(lambda db: db.map("b").__setitem__(b"new", b"2"))
    see()
    change(lambda db: db.map("a").__setitem__(b"other", b"3"))
    see()
    compact(str(store), str(archive), HERE, task_bytes=task_bytes)
    change(lambda db: db.drop("b"))
    compact(str(store), str(archive), HERE, task_bytes=task_bytes)
    change(lambda db: db.map("c").__setitem__(b"last", b"4"))
    see()
    compact(str(store), str(archive), HERE, task_bytes=task_bytes)
    for time, maps in seen:
        assert as_maps(rows(archive, "snapshot", asOf=time)) == maps
    assert as_maps(rows(archive, "snapshot")) == seen[-1][1]


@pytest.mark.parametrize("carried", [1, 2])
def test_a_name_given_last_counts_with_the_last_number(tmp_path: Path, carried: int) -> None:
    # It counted for each time at all.
    store, archive = tmp_path / "store", tmp_path / "archive"
    with new_store(store, partitions=4) as db:
        db.map("a")[b"first"] = b"1"
        db.map("new")[b"second"] = b"2"
        session_of(db).abandon()
    if carried == 2:
        compact(str(store), str(archive), HERE)
    with new_store(store) as db:  # after a crash: in a new epoch, at a time of its own
        db.rename("a", "b")
    compact(str(store), str(archive), HERE)
    first, second = sorted(row["commit_ts"] for row in rows(store, "changes"))
    assert as_maps(rows(archive, "snapshot", asOf=first.isoformat())) == {"a": {b"first": b"1"}}
    for time in ("latest", second.isoformat()):
        assert set(as_maps(rows(archive, "snapshot", asOf=time))) == {"b", "new"}


@pytest.mark.parametrize("task_bytes", [50, 1 << 20])
def test_a_map_that_was_renamed_and_dropped_at_once_stays_away(
    tmp_path: Path, task_bytes: int
) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    with new_store(store, partitions=4) as db:
        db.map("a")[b"key"] = b"1"
        db.rename("a", "b")
        db.drop("b")
        db.map("c")[b"key"] = b"2"
    compact(str(store), str(archive), HERE, task_bytes=task_bytes)
    assert as_maps(rows(archive, "snapshot")) == {"c": {b"key": b"2"}}


def test_a_map_that_was_dropped_last_is_not_in_the_newest_data(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    grow(store, 1, 10)
    compact(str(store), str(archive), HERE)
    with tidelog.open(store) as db:
        db.drop("stock")
    compact(str(store), str(archive), HERE)
    assert as_maps(rows(archive, "snapshot")) == content(store)


# ------------------------------------------------------------------ a log that had been trimmed


def test_an_archive_of_a_trimmed_log_begins_with_the_data(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    grow(store, 1)
    before = max(row["commit_ts"] for row in rows(store, "changes"))
    with new_store(store, retain_bytes=1) as db:
        db.checkpoint()
        with pytest.raises(AlreadyOpenError, match="open for writing"):
            compact(str(store), str(archive), HERE)
    assert not archives.is_archive(str(archive))
    compact(str(store), str(archive), HERE)
    assert as_maps(rows(archive, "snapshot")) == content(store)
    grow(store, 2)
    compact(str(store), str(archive), HERE)
    assert as_maps(rows(archive, "snapshot")) == content(store)
    base = max(row["commit_ts"] for row in rows(store, "changes"))
    assert as_maps(rows(archive, "snapshot", asOf=base.isoformat())) == content(store)
    with pytest.raises(HistoryTruncatedError, match="holds the data from"):
        rows(archive, "snapshot", asOf=(before.replace(year=2000)).isoformat())
    with pytest.raises(HistoryTruncatedError, match="holds the data from"):
        rows(archive, "snapshot", asOf='{"0": 1}')


def test_a_log_that_was_trimmed_behind_the_archive_is_an_error(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    grow(store, 1, 10)
    compact(str(store), str(archive), HERE)
    grow(store, 2)
    grow(store, 3)
    with new_store(store, retain_bytes=1) as db:
        db.checkpoint()
    before = (archive / archives.NAME).read_text()
    with pytest.raises(HistoryTruncatedError, match="kept from update numbers"):
        compact(str(store), str(archive), HERE)
    assert (archive / archives.NAME).read_text() == before


# ------------------------------------------------------------------ deaths


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("death", ["rename", "replace", "fsync", "write"])
def test_a_run_that_dies_leaves_the_archive_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str, first: bool
) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    grow(store, 1, 10)
    if not first:
        compact(str(store), str(archive), HERE)
        grow(store, 2, 10)
    before = None if first else rows(archive, "changes")

    def die(*_args: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(compaction._Files if death == "write" else os, death, die)
        patch.setattr(compaction, "_take_away", lambda *_: None)  # who dies cleans nothing up
        with pytest.raises(Killed):
            compact(str(store), str(archive), HERE)
    if before is None:
        assert not archives.is_archive(str(archive))
    else:
        assert rows(archive, "changes") == before
    compact(str(store), str(archive), HERE)
    assert in_order(rows(archive, "changes")) == in_order(rows(store, "changes"))
    named = {stretch.folder for stretch in archives.read_archive(str(archive)).parts()}
    assert {entry.name for entry in archive.iterdir() if entry.is_dir()} == named


@pytest.mark.parametrize(
    ("where", "call", "error", "told"),
    [
        (os, "mkdir", OSError(errno.ENOSPC, "full"), DiskFullError),
        (os, "mkdir", OSError(errno.EIO, "failed"), DiskError),
        (compaction, "new_file", OSError(errno.ENOSPC, "full"), DiskFullError),
        (os, "rename", OSError(errno.EIO, "failed"), DiskError),
        (os, "replace", OSError(errno.EIO, "failed"), DiskError),
        (os, "replace", KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_run_that_fails_leaves_the_folder_as_empty_as_it_was_and_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    call: str,
    error: BaseException,
    told: type[BaseException],
) -> None:
    # An error of the disk was one of Python's for a new file, and at the end.
    store, archive = tmp_path / "store", tmp_path / "archive"
    grow(store, 1, 10)
    archive.mkdir()

    def fail(*_args: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(where, call, fail)
        with pytest.raises(told) as caught:
            compact(str(store), str(archive), HERE)
    assert caught.value is error or str(archive) in str(caught.value)
    assert os.listdir(archive) == []


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_run_that_finds_no_space_leaves_nothing_of_its_own(
    tmp_path: Path, at_once: bool, first: bool
) -> None:
    """Under Spark it was a bug of ours, exit code 1, and the new folder stayed."""
    store, archive = tmp_path / "store", tmp_path / "archive"
    grow(store, 1, 10)
    if not first:
        compact(str(store), str(archive), HERE)
    with tidelog.open(store) as db:
        for number in range(20):
            db.map("stock")[b"%d" % number] = os.urandom(5000)
    before = sorted(archive.rglob("*"))
    # At once: what does not fit is written in the middle of the work, not at its end.
    sizes = FileSizes(batch=10_000) if at_once else FILE_SIZES
    with files_at_most(12_000), pytest.raises(DiskFullError):
        compact(str(store), str(archive), HERE, sizes=sizes)
    assert sorted(archive.rglob("*")) == before
    assert first is not archive.exists()
    compact(str(store), str(archive), HERE)
    assert in_order(rows(archive, "changes")) == in_order(rows(store, "changes"))


# ------------------------------------------------------------------ refusals


def test_what_is_no_archive_of_this_store_is_refused(
    whole: tuple[Path, Path, list[Row]], tmp_path: Path
) -> None:
    store, archive, _ = whole
    grow(tmp_path / "other", 1, 10)
    with pytest.raises(UsageError, match="belongs to store"):
        compact(str(tmp_path / "other"), str(archive), HERE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UsageError, match="do not belong to an archive"):
        compact(str(store), str(tmp_path / "full"), HERE)
    with pytest.raises(SnapshotExpiredError, match="its checkpoint is at") as raised:
        rows(store, "snapshot", asOf="2020-01-01")
    assert "tidelog spark compact" in raised.value.hint
    both = json.dumps([str(archive), str(store)])
    with pytest.raises(UsageError, match="is not an archive"):
        read(parse({"path": both, "view": "changes"}))
    for view in ("wal", "meta"):
        with pytest.raises(UsageError, match="has no view"):
            rows(archive, view)
    with pytest.raises(UsageError, match="4 partitions, and no partition 9"):
        rows(archive, "snapshot", partitions="9")
    with pytest.raises(UsageError, match="ends at number"):
        rows(archive, "snapshot", asOf='{"0": 1000000}')
    with pytest.raises(UsageError, match="have no maxReadBytesPerSec"):
        rows(archive, "snapshot", maxReadBytesPerSec=100)


def without_column(archive: Path, name: str) -> None:
    """Make of an archive what a version had made that did not know a column of the changes."""
    found = archives.read_archive(str(archive))
    (stretch,) = found.stretches
    files: dict[int, list[archives.File]] = {}
    for bundle, of in stretch.files.items():
        for file in of:
            place = archive / stretch.folder / file.name
            parquet.write_table(parquet.read_table(place).drop_columns([name]), place)
            data = place.read_bytes()
            written = replace(file, size=len(data), crc=crc32c(data))
            files.setdefault(bundle, []).append(written)
    told = replace(found, stretches=(replace(stretch, files=files),))
    (archive / archives.NAME).write_text(told.to_json())


def test_a_column_that_is_younger_than_an_archive_is_null_there(tmp_path: Path) -> None:
    # Columns were taken by their places: with one more, no older archive could be read.
    store, archive = tmp_path / "store", tmp_path / "archive"
    with new_store(store, partitions=4) as db:
        fill(db, 1, 9)
    compact(str(store), str(archive), HERE)
    without_column(archive, "tx_size")
    expected = [{**row, "tx_size": None} for row in in_order(rows(store, "changes"))]
    assert in_order(rows(archive, "changes")) == expected
    assert as_maps(rows(archive, "snapshot")) == as_maps(rows(store, "snapshot"))
    assert [row["tx_size"] for row in rows(archive, "changes", columns="tx_size")] == [None] * len(
        expected
    )


def test_two_runs_at_once_are_refused(whole: tuple[Path, Path, list[Row]]) -> None:
    store, archive, _ = whole

    lock = RealDisk().lock(str(archive / compaction.ARCHIVE_LOCK_NAME))
    try:
        with pytest.raises(AlreadyOpenError, match="another process"):
            compact(str(store), str(archive), HERE)
    finally:
        lock.release()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v": 9}', '{"v": 2, "store": "zz"}'])
def test_a_damaged_account_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / archives.NAME).write_text(text)
    with pytest.raises(CorruptDataError, match="not an account of an archive"):
        rows(tmp_path, "changes")
