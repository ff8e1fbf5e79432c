"""The rules of reading, in a real session: cuts, order, grouping, and what is open or closed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.pipelines import Row, closed_store, content, fill, new_store, replayed
from tidelog.affinity.errors import UsageError
from tidelog.engine.api.database import session_of
from tidelog.pipeline import partition_of, snapshot_vector, with_preimages
from tidelog.pipeline.jobs.compaction import compact
from tidelog.pipeline.jobs.runner import Runner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = [b"%d" % number for number in range(40)]


def read(spark: SparkSession, path: Path, view: str, **options: Any) -> list[dict[str, Any]]:
    frame = spark.read.format("tidelog").options(path=str(path), view=view, **options).load()
    return [
        {
            name: bytes(value) if isinstance(value, bytearray) else value
            for name, value in row.asDict().items()
        }
        for row in frame.collect()
    ]


def test_a_snapshot_never_splits_a_transaction(spark: SparkSession, tmp_path: Path) -> None:
    # Each transaction sets every key, and so goes over all partitions.
    path, archive = tmp_path / "store", tmp_path / "archive"
    with new_store(path, partitions=4) as db:
        for round_number in range(6):
            db.map("m").update_many(dict.fromkeys(KEYS, b"%d" % round_number))
            if round_number == 2:
                db.checkpoint()
            if round_number == 4:
                db.backup(tmp_path / "copy", verify=False)
    rows = read(spark, tmp_path / "copy", "snapshot")
    assert {row["value"] for row in rows} == {b"4"}
    assert sorted(row["key"] for row in rows) == sorted(KEYS)
    compact(str(path), str(archive), Runner())
    share = Counter(row["partition"] for row in rows)
    # One number short of the fourth transaction in one partition: the third is the greatest cut.
    cut = {p: 4 * count - (p == 1) for p, count in share.items()}
    rows = read(spark, archive, "snapshot", asOf=json.dumps(cut))
    assert Counter(row["value"] for row in rows) == {b"2": len(KEYS)}
    rows = read(spark, archive, "snapshot", asOf=json.dumps(cut), consistency="partition")
    assert Counter(row["value"] for row in rows) == {b"3": len(KEYS) - 1, b"2": 1}


def test_a_copy_shows_older_cuts_down_to_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    # As above: each transaction sets every key. The copy has the last three of six in its log.
    with new_store(tmp_path / "store", partitions=4) as db:
        for round_number in range(6):
            db.map("m").update_many(dict.fromkeys(KEYS, b"%d" % round_number))
            if round_number == 2:
                db.checkpoint()
        db.backup(tmp_path / "copy", verify=False)
    copy = tmp_path / "copy"
    share = Counter(row["partition"] for row in read(spark, copy, "snapshot"))
    cut = json.dumps({p: 5 * count - (p == 1) for p, count in share.items()})
    rows = read(spark, copy, "snapshot", asOf=cut, minPartitions=3)
    assert Counter(row["value"] for row in rows) == {b"3": len(KEYS)}
    rows = read(spark, copy, "snapshot", asOf=cut, consistency="partition")
    assert Counter(row["value"] for row in rows) == {b"4": len(KEYS) - 1, b"3": 1}
    (number,) = {row["checkpoint_id"] for row in read(spark, copy, "meta")}
    rows = read(spark, copy, "snapshot", asOf=number, maxReadBytesPerSec=1_000_000)
    assert Counter(row["value"] for row in rows) == {b"2": len(KEYS)}
    early = json.dumps({p: 2 * count for p, count in share.items()})
    with pytest.raises(Exception, match=r"SnapshotExpiredError.*has no data as of number"):
        read(spark, copy, "snapshot", asOf=early)


def test_a_snapshot_is_pinned_by_load_and_tells_its_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    def load(path: object, **options: str) -> DataFrame:
        return spark.read.format("tidelog").options(path=str(path), **options).load()

    store, copy, archive = tmp_path / "store", tmp_path / "copy", tmp_path / "archive"
    with new_store(store, partitions=4) as db:
        for value in (b"0", b"1"):
            db.map("m").update_many(dict.fromkeys(KEYS, value))
        db.backup(copy, verify=False)
    compact(str(store), str(archive), Runner())
    share = Counter(row["partition"] for row in read(spark, store, "snapshot"))
    last = {p: 2 * count for p, count in share.items()}
    early = load(store)
    for frame, path in ((early, store), (load(copy), copy), (load(archive), archive)):
        assert snapshot_vector(frame) == {str(path): last}
    other = tmp_path / "other"
    with new_store(other, partitions=1) as db:
        db.map("m")[b"k"] = b"v"
    both = load(json.dumps([str(store), str(other)]))
    assert snapshot_vector(both) == {str(store): last, str(other): {0: 1}}
    for path in (copy, archive):
        frame = load(path, asOf=json.dumps(share), columns="key,value")
        assert snapshot_vector(frame) == {str(path): dict(share)}
        assert {bytes(row["value"]) for row in frame.collect()} == {b"0"}
    with new_store(store, partitions=4) as db:
        db.map("m")[b"more"] = b"2"
        late = load(store)
    # Nothing else is shown in the place of what was pinned; what could not be is pinned later.
    with pytest.raises(Exception, match=r"SnapshotExpiredError.*was written since"):
        early.collect()
    assert late.count() == len(KEYS) + 1
    given = spark.read.format("tidelog").option("path", str(store)).schema("key binary").load()
    for frame in (late, given, early.select("value")):
        with pytest.raises(UsageError, match="the cut of this DataFrame is not known"):
            snapshot_vector(frame)


def test_changes_ascend_and_lead_to_the_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    path = closed_store(tmp_path / "store")
    changes = read(spark, path, "changes", minPartitions=1)
    for partition in range(4):
        numbers = [row["counter"] for row in changes if row["partition"] == partition]
        assert numbers
        assert all(a < b for a, b in pairwise(numbers))
    assert replayed(changes) == content(path)
    newest = {(row["namespace"], row["key"]): row["counter"] for row in changes}
    for row in read(spark, path, "snapshot"):
        assert newest[row["namespace"], row["key"]] == row["counter"]


@pytest.mark.parametrize("view", ["snapshot", "changes", "wal"])
def test_any_grouping_gives_the_same_rows(spark: SparkSession, tmp_path: Path, view: str) -> None:
    path = closed_store(tmp_path / "store")
    found = [
        sorted(repr(sorted(row.items())) for row in read(spark, path, view, minPartitions=tasks))
        for tasks in (1, 3, 16)
    ]
    assert found[0] == found[1] == found[2]


def test_open_and_closed_stores_give_the_same(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with new_store(path, partitions=4) as db:
        fill(db, 1, 50)
        db.backup(tmp_path / "copy")
        db.sync()
        session_of(db).maintenance.maintain()
        live = read(spark, path, "changes", minPartitions=1)
    assert live == read(spark, path, "changes", minPartitions=1)
    assert live == read(spark, tmp_path / "copy", "changes", minPartitions=1)
    copied, closed = (
        sorted(read(spark, place, "snapshot"), key=itemgetter("namespace", "key"))
        for place in (tmp_path / "copy", path)
    )
    assert copied == closed


def test_a_stream_begins_with_the_data_of_a_copy(spark: SparkSession, tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with new_store(path, partitions=4, retain_bytes=1) as db:
        fill(db, 1, 30)
        db.checkpoint()
        db.backup(copy)
        fill(db, 2, 30)
        db.sync()
        session_of(db).maintenance.maintain()
        reader = spark.readStream.format("tidelog").options(path=str(path), view="changes")
        query = (
            reader.options(initialSnapshot=str(copy), maxChangesPerTrigger="40")
            .load()
            .writeStream.format("memory")
            .queryName("from_a_copy")
            .option("checkpointLocation", str(tmp_path / "state"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    found = [row.asDict() for row in spark.table("from_a_copy").collect()]
    for row in found:
        row["key"] = bytes(row["key"])
        row["value"] = None if row["value"] is None else bytes(row["value"])
    assert replayed(found) == content(path)
    assert sum(row["tx_id"] is None for row in found) == sum(map(len, content(copy).values()))
    assert len([p for p in query.recentProgress if p["numInputRows"]]) > 2


def test_keys_of_any_length_lie_where_the_store_has_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    with new_store(path, partitions=1024) as db:
        db.map("m").update_many({bytes(range(length)): b"" for length in range(34)})
    frame = spark.read.format("tidelog").option("path", str(path)).load()
    found = frame.select("partition", partition_of("key", 1024).alias("told")).collect()
    assert len(found) == 34
    assert all(row["partition"] == row["told"] for row in found)


def preimages_of(changes: list[Row], before: dict[tuple[str, bytes], bytes]) -> list[Row]:
    """Changes in the order of the log, each with the value that it replaced."""
    found = []
    for row in sorted(changes, key=itemgetter("partition", "counter")):
        place = row["namespace"], row["key"]
        found.append({**row, "preimage": before.get(place)})
        before = {**before, place: row["value"]}
    return found


@pytest.mark.parametrize("form", ["tidelog", "cdf"])
def test_changes_tell_what_they_replaced(spark: SparkSession, tmp_path: Path, form: str) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with new_store(path, partitions=4) as db:
        fill(db, 1, 60)
        db.backup(copy)
        fill(db, 2, 60)
    load = spark.read.format("tidelog").option("path", str(copy)).load
    base = load()
    before = {(row["namespace"], row["key"]): row["value"] for row in read(spark, copy, "snapshot")}
    cut = json.dumps(snapshot_vector(base)[str(copy)])
    wanted = preimages_of(read(spark, path, "changes", startingCounters=cut), before)
    assert {row["op"] for row in wanted if row["preimage"] is None} == {"put", "delete"}
    assert {row["op"] for row in wanted if row["preimage"] is not None} == {"put", "delete"}
    options = {"path": str(path), "view": "changes", "startingCounters": cut, "changeFormat": form}
    changes = spark.read.format("tidelog").options(**options).load()
    told = [
        {name: bytes(v) if isinstance(v, bytearray) else v for name, v in row.asDict().items()}
        for row in with_preimages(changes, base).collect()
    ]
    if form == "tidelog":
        assert sorted(told, key=itemgetter("partition", "counter")) == wanted
        return
    expected: list[tuple[int, int, str, bytes | None]] = []
    for row in wanted:
        place = row["partition"], row["counter"]
        if row["op"] == "delete":
            expected.append((*place, "delete", row["preimage"]))
        elif row["preimage"] is None:
            expected.append((*place, "insert", row["value"]))
        else:
            expected.append((*place, "update_postimage", row["value"]))
            expected.append((*place, "update_preimage", row["preimage"]))
    names = ("partition", "_commit_version", "_change_type", "value")
    assert sorted(map(itemgetter(*names), told), key=itemgetter(0, 1, 2)) == expected
    assert set(told[0]) == set(changes.columns)
