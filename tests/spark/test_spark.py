"""The format ``tidelog`` in a real Spark session."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidelog
from support.pipelines import closed_store, content, fill, flip, new_store, replayed, rows
from tidelog.affinity.errors import CorruptLogError
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import session_of
from tidelog.pipeline.jobs import audits, runner as jobs
from tidelog.pipeline.jobs.compaction import compact
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.jobs.wal_stats import wal_stats
from tidelog.pipeline.spark import doctor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return closed_store(tmp_path / "store")


def load(spark: SparkSession, path: Path | str, view: str, **options: Any) -> DataFrame:
    reader = spark.read.format("tidelog").option("path", str(path)).option("view", view)
    return reader.options(**options).load()


def dicts(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame, bytes as Python has them."""
    found = []
    for row in frame.collect():
        fields = row.asDict()
        found.append({k: bytes(v) if isinstance(v, bytearray) else v for k, v in fields.items()})
    return found


def shown(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without their times, whose zone is a matter of taste, in one order."""
    return sorted(repr(sorted((k, v) for k, v in row.items() if k != "commit_ts")) for row in rows)


def test_spark_finds_the_format_by_itself(spark: SparkSession, store: Path) -> None:
    other = spark.newSession()
    assert other.read.format("tidelog").option("path", str(store)).load().count() > 0


def test_views_are_what_the_library_reads(spark: SparkSession, store: Path) -> None:
    for view in ("snapshot", "changes", "wal", "meta"):
        frame = load(spark, store, view, minPartitions=5)
        assert shown(dicts(frame)) == shown(rows(store, view))
        assert frame.count() == len(rows(store, view))


def test_times_are_those_of_the_commits(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, "changes").selectExpr("unix_micros(commit_ts) as t")
    expected = [int(row["commit_ts"].timestamp() * 1e6 + 0.5) for row in rows(store, "changes")]
    assert sorted(row.t for row in frame.collect()) == sorted(expected)


def test_frames_of_one_load_do_not_share_their_filters(spark: SparkSession, store: Path) -> None:
    # With filters pushed down PySpark 4.3 gives one query the rows of another.
    frame = load(spark, store, "changes")
    total = frame.count()
    puts, deletes = frame.where("op = 'put'"), frame.where("op = 'delete'")
    assert puts.union(deletes).count() == total
    assert puts.count() + deletes.count() == total
    assert frame.count() == total
    frame.createOrReplaceTempView("changes")
    both = (
        "select * from changes where counter < 5 union all select * from changes where counter >= 5"
    )
    assert spark.sql(both).count() == total


def test_frames_with_different_options_may_be_united(spark: SparkSession, store: Path) -> None:
    low = load(spark, store, "snapshot", partitions="0-1")
    high = load(spark, store, "snapshot", partitions="2-3")
    whole = load(spark, store, "snapshot")
    assert shown(dicts(low.union(high))) == shown(dicts(whole))


def test_a_frame_keeps_showing_what_it_showed_first(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, "changes")
    before = frame.count()
    with tidelog.open(store) as db:
        fill(db, 5, 10)
    assert frame.count() == before
    assert load(spark, store, "changes").count() > before


def test_a_narrow_schema_reads_less(spark: SparkSession, store: Path) -> None:
    reader = spark.read.format("tidelog").option("path", str(store)).schema("key binary")
    assert reader.load().columns == ["key"]
    assert reader.load().count() == len(rows(store, "snapshot"))
    assert load(spark, store, "changes", columns="op,counter").columns == ["op", "counter"]


def test_a_store_without_data_gives_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    with new_store(tmp_path / "empty"):
        pass
    for view in ("snapshot", "changes"):
        assert load(spark, tmp_path / "empty", view).collect() == []


def test_a_thousand_partitions_are_read_by_few_tasks(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "wide"
    with new_store(path, partitions=1024) as db:
        db.map("m").update_many({b"%d" % n: b"v" for n in range(3000)})
        db.checkpoint()
    frame = load(spark, path, "snapshot")
    assert frame.rdd.getNumPartitions() <= 16
    found = dicts(frame)
    assert {row["key"] for row in found} == {b"%d" % n for n in range(3000)}
    assert all(row["partition"] == partition_of(row["key"], Space(0, 1024)) for row in found)


@pytest.mark.parametrize(
    ("view", "options", "said"),
    [
        ("snapshot", {"nonsense": "1"}, "Its options are view, path, columns"),
        ("lag", {}, "There are snapshot, changes, wal, meta"),
        ("changes", {"startingCounters": '{"9": 1}'}, "has 4 partitions, and no partition 9"),
    ],
)
def test_bad_options_say_what_is_right(
    spark: SparkSession, store: Path, view: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match="Error") as caught:
        load(spark, store, view, **options).collect()
    assert said in str(caught.value)


def test_damage_names_segment_and_offset(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, "changes", minPartitions=3)
    total = frame.count()
    hit = rows(store, "wal")[40]["offset"]
    flip(store / "wal" / f"{1:016d}.log", hit + 22)
    with pytest.raises(Exception, match="segment 1, offset") as caught:
        frame.collect()
    assert f"offset {hit}" in str(caught.value)
    assert "mode=PERMISSIVE" in str(caught.value)
    bad = load(spark, store, "wal", mode="PERMISSIVE").where("not crc_ok").collect()
    assert [row.offset for row in bad] == [hit]
    readable = dicts(load(spark, store, "changes", mode="PERMISSIVE", minPartitions=3))
    assert shown(readable) == shown(rows(store, "changes", mode="PERMISSIVE"))
    assert 0 < len(readable) < total


def test_a_live_store_gives_its_log_and_a_copy_its_data(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    with tidelog.open(store) as db:
        assert load(spark, store, "changes").count() > 0
        with pytest.raises(Exception, match="tidelog db backup"):
            load(spark, store, "snapshot").collect()
        db.backup(tmp_path / "copy")
    copy = content(tmp_path / "copy")
    assert load(spark, tmp_path / "copy", "snapshot").count() == sum(map(len, copy.values()))


def stream(spark: SparkSession, path: Path, checkpoint: Path, **options: Any) -> Any:
    """Run a query over the changes to its end; return it."""
    reader = spark.readStream.format("tidelog").option("path", str(path)).option("view", "changes")
    query = (
        reader.options(startingCounters="earliest", **options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(checkpoint / "out"))
        .option("checkpointLocation", str(checkpoint / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_stream_gives_every_change_once_over_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, out = tmp_path / "store", tmp_path / "query"
    sizes: list[int] = []
    with new_store(path, partitions=4, segment_bytes=1 << 20) as db:
        for number in range(3):
            fill(db, number, 60)
            db.map("stock")[b"large"] = bytes(800_000)  # so that segments change
            session_of(db).committer.announce()
            query = stream(spark, path, out, maxChangesPerTrigger=50)
            sizes += [progress["numInputRows"] for progress in query.recentProgress]
    found = dicts(spark.read.parquet(str(out / "out")))
    assert shown(found) == shown(rows(path, "changes"))
    assert replayed(found) == content(path)
    assert len(list((path / "wal").glob("*.log"))) > 2
    assert len([size for size in sizes if size]) > 6
    assert max(sizes) <= 50 + 6


def test_progress_tells_how_far_a_query_is_behind(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    query = stream(spark, store, tmp_path / "query", maxChangesPerTrigger=100)
    first, last = query.recentProgress[0]["sources"][0], query.lastProgress["sources"][0]
    assert json.loads(first["endOffset"]) != json.loads(last["endOffset"])
    assert json.loads(first["latestOffset"]) == json.loads(last["endOffset"])


@pytest.mark.parametrize("loss", ["true", "false"])
def test_history_that_is_trimmed_under_a_query_is_an_error_or_skipped(
    spark: SparkSession, tmp_path: Path, loss: str
) -> None:
    path = tmp_path / "store"
    with new_store(path, partitions=2, segment_bytes=1 << 20, retain_bytes=1 << 30) as db:
        for _ in range(40):
            db.map("m").update_many({b"%d" % n: bytes(1000) for n in range(100)})
    everything = [(row["partition"], row["counter"]) for row in rows(path, "changes")]
    seen: list[tuple[int, int]] = []

    def take(frame: DataFrame, number: int) -> None:
        seen.extend((row.partition, row.counter) for row in frame.collect())
        if number == 0:
            with new_store(path, retain_bytes=1) as db:
                db.checkpoint()

    query = (
        spark.readStream.format("tidelog")
        .options(path=str(path), view="changes", startingCounters="earliest", failOnDataLoss=loss)
        .option("maxChangesPerTrigger", "1000")
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "state"))
        .trigger(availableNow=True)
        .start()
    )
    if loss == "true":
        with pytest.raises(Exception, match="HistoryTruncatedError"):
            query.awaitTermination()
        assert seen == everything[: len(seen)]
    else:
        query.awaitTermination()
        assert len(set(seen)) == len(seen)
        assert set(seen) < set(everything)
        assert set(everything[-100:]) < set(seen)
    assert len(seen) >= 1000


def test_a_stream_begins_at_a_time(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    everything = rows(store, "changes")
    time = everything[len(everything) // 2]["commit_ts"]
    reader = spark.readStream.format("tidelog").options(path=str(store), view="changes")
    query = (
        reader.options(startingTimestamp=time.isoformat(), changeFormat="cdf")
        .load()
        .writeStream.format("memory")
        .queryName("since")
        .option("checkpointLocation", str(tmp_path / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.table("since").select("partition", "_commit_version").collect()
    later = [(r["partition"], r["counter"]) for r in everything if r["commit_ts"] >= time]
    assert sorted(map(tuple, found)) == sorted(later)


def test_offsets_are_update_numbers(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    query = stream(spark, store, tmp_path / "query")
    offset = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert sorted(offset) == ["history", "p", "store", "v"]
    newest = {row["partition"]: row["counter"] for row in rows(store, "changes")}
    assert {int(p): number for p, (_, number) in offset["p"].items()} == newest


def test_the_installed_wheel_is_found(store: Path) -> None:
    """An editable install hides what a wheel forgets; this one is installed apart."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "installed"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
        subprocess.run([*pip, str(ROOT)], check=True, capture_output=True, timeout=300)
        program = (
            "import os, sys, tidelog\n"
            "os.environ['PYTHONPATH'] = sys.path[1]\n"
            "from tidelog.pipeline.spark.sessions import local_session\n"
            "from pyspark.sql import SparkSession\n"
            "print(tidelog.__file__)\n"
            "spark = local_session('local[1]', spark__ui__enabled='false').newSession()\n"
            f"print(spark.read.format('tidelog').option('path', {str(store)!r}).load().count())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(target), "HOME": folder},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        place, count = done.stdout.split()
        assert Path(place).is_relative_to(target)
        assert int(count) == len(rows(store, "snapshot"))


def test_records_are_streamed_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "query"
    for number in range(2):
        with new_store(path, partitions=4) as db:
            fill(db, number, 40)
        (
            spark.readStream.format("tidelog")
            .options(path=str(path), view="wal", startingPosition="earliest")
            .option("maxBytesPerTrigger", "4000")
            .load()
            .writeStream.format("parquet")
            .option("path", str(out / "out"))
            .option("checkpointLocation", str(out / "state"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
    found = dicts(spark.read.parquet(str(out / "out")))
    assert shown(found) == shown(rows(path, "wal"))


def test_jobs_give_the_same_in_spark_as_here(spark: SparkSession, store: Path) -> None:
    with tidelog.open(store) as db:
        db.backup(store.parent / "copy")
        fill(db, 7, 20)
    copy = str(store.parent / "copy")
    there = Runner("spark", "local[2,3]")
    works: tuple[Callable[[Runner], Any], ...] = (
        lambda runner: jobs.history(str(store), "stock", b"7", runner),
        lambda runner: audits.verify([str(store), copy], runner),
        lambda runner: audits.replay_check(copy, str(store), runner),
        lambda runner: wal_stats([str(store), copy], runner, tasks=3, keys_counted=10),
    )
    for work in works:
        assert work(there) == work(Runner())
    assert audits.verify([str(store), copy], there) != []
    given = {"path": str(store), "view": "changes", "minPartitions": "3"}
    count, _ = jobs.export(given, str(store.parent / "out"), "parquet", there)
    exported = dicts(spark.read.parquet(str(store.parent / "out")))
    assert shown(exported) == shown(rows(store, "changes"))
    assert count == len(exported)
    newest = rows(store, "wal")[-3]
    flip(store / "wal" / f"{newest['segment']:016d}.log", newest["offset"] + 22)
    with pytest.raises(CorruptLogError) as caught:
        audits.replay_check(copy, str(store), there)
    assert caught.value.segment == newest["segment"]
    with pytest.raises(CorruptLogError) as caught:
        wal_stats([str(store)], there)
    assert caught.value.segment == newest["segment"]


def test_an_archive_is_made_and_read_in_spark(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    there = Runner("spark", "local[2,3]")
    done = compact(str(store), str(archive), there, task_bytes=3000)
    assert done["rows"] == len(rows(store, "changes"))
    with tidelog.open(store) as db:
        fill(db, 7, 20)
    compact(str(store), str(archive), there)
    everything = rows(store, "changes")
    assert shown(dicts(load(spark, archive, "changes"))) == shown(everything)
    time = everything[len(everything) // 2]["commit_ts"]
    data = dicts(load(spark, archive, "snapshot", asOf=time.isoformat()))
    before = replayed(row for row in everything if row["commit_ts"] <= time)
    assert {(row["namespace"], row["key"]): row["value"] for row in data} == {
        (name, key): value for name, pairs in before.items() for key, value in pairs.items()
    }


def test_the_doctor_finds_nothing_here(spark: SparkSession) -> None:
    checks = list(doctor.examine("local[2,3]"))
    assert [check for check in checks if not check.passed] == []
    assert {"java", "session", "workers' packages", "format tidelog"} <= {c.name for c in checks}
