"""Writing from a real Spark session into a store, exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions

import tidelog
from support.pipelines import content, fill, new_store, rows
from tidelog.engine.upkeep.check import check_store
from tidelog.pipeline.spark.datasource import TidelogSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with new_store(tmp_path / "store", partitions=4) as db:
        db.map("old")[b"k"] = b"v"
    return tmp_path / "store"


def numbers(spark: SparkSession, count: int, *columns: str) -> DataFrame:
    """Rows of which each task has some: key, value, namespace."""
    chosen = columns or ("cast(id as string) k", "cast(id * 2 as string) v")
    frame = spark.range(count).repartition(3).selectExpr(*chosen)
    return frame.selectExpr("cast(k as binary) key", "cast(v as binary) value")


def write(frame: DataFrame, store: Path, mode: str = "append", **options: Any) -> None:
    writer = frame.write.format("tidelog").mode(mode).option("path", str(store))
    writer.options(**options).save()


def doubled(count: int) -> dict[bytes, bytes]:
    return {b"%d" % n: b"%d" % (2 * n) for n in range(count)}


def test_a_frame_becomes_one_transaction(spark: SparkSession, store: Path) -> None:
    write(numbers(spark, 100), store, namespace="numbers")
    assert content(store)["numbers"] == doubled(100)
    assert len({row["tx_id"] for row in rows(store, "changes", namespace="numbers")}) == 1
    assert not (store / "staging").exists()
    assert check_store(store) == []


def test_null_values_delete_and_the_map_may_be_a_column(spark: SparkSession, store: Path) -> None:
    frame = numbers(spark, 4, "cast(id as string) k", "if(id = 1, null, 'v') v")
    write(frame.withColumn("namespace", functions.lit("a")), store)
    assert sorted(content(store)["a"]) == [b"0", b"2", b"3"]
    gone = numbers(spark, 4, "cast(id as string) k", "cast(null as string) v")
    write(gone, store, namespace="a")
    assert content(store)["a"] == {}


def test_a_batch_with_a_version_is_written_once(spark: SparkSession, store: Path) -> None:
    token: dict[str, Any] = {"namespace": "n", "txnAppId": "nightly", "txnVersion": 3}
    write(numbers(spark, 5), store, **token)
    write(numbers(spark, 9), store, **token)
    assert content(store)["n"] == doubled(5)
    write(numbers(spark, 9), store, **{**token, "txnVersion": 4})
    assert content(store)["n"] == doubled(9)


def test_overwriting_replaces_one_map(spark: SparkSession, store: Path) -> None:
    write(numbers(spark, 9), store, namespace="n")
    write(numbers(spark, 3), store, "overwrite", namespace="n")
    assert content(store) == {"n": doubled(3), "old": {b"k": b"v"}}


def test_what_cannot_be_written_is_told_before_any_task_runs(
    spark: SparkSession, store: Path
) -> None:
    frame = numbers(spark, 3)
    for given, options, told in (
        (frame.withColumn("extra", functions.lit(1)), {"namespace": "n"}, "extra int"),
        (frame, {}, "no namespace"),
        (frame, {"namespace": "n", "nonsense": 1}, "has no option 'nonsense'"),
    ):
        with pytest.raises(Exception, match=told):
            write(given, store, **options)
    with pytest.raises(Exception, match="no store"):
        write(frame, store / "nowhere", namespace="n")
    assert not (store / "staging").exists()


def test_tasks_that_fail_and_are_tried_again_write_once(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    marks = str(tmp_path / "marks")
    Path(marks).mkdir()

    def flaky(rows: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from rows
        mark = Path(marks, str(context.partitionId()))
        if not mark.exists():
            mark.touch()
            raise RuntimeError("the first attempt fails behind its last row")

    frame = numbers(spark, 60)
    write(spark.createDataFrame(frame.rdd.mapPartitions(flaky), frame.schema), store, namespace="n")
    assert len(list(Path(marks).iterdir())) == 3
    assert content(store)["n"] == doubled(60)
    assert not (store / "staging").exists()


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, store: Path) -> None:
    broken = numbers(spark, 60, "cast(id as string) k", "cast(1 / (id - 59) as string) v")
    # One task: others would still be running, and stage, when the job is over.
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        write(broken.coalesce(1), store, namespace="n")
    assert sorted(content(store)) == ["old"]
    assert not list(store.glob("staging/*/*"))


def copy_changes(
    spark: SparkSession, source: Path, target: Path, state: Path, form: str = "tidelog"
) -> None:
    """Run a query that carries one map's changes over, to its end."""
    (
        spark.readStream.format("tidelog")
        .option("path", str(source))
        .option("view", "changes")
        .option("startingCounters", "earliest")
        .option("maxChangesPerTrigger", "40")
        .load()
        .select("namespace", "key", "value")
        .writeStream.format(form)
        .option("path", str(target))
        .option("onConflict", "last")
        .option("checkpointLocation", str(state))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def test_a_stream_from_store_to_store_survives_restarts(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    for number in range(3):
        with new_store(
            source, partitions=1
        ) as db:  # one, so that changes of a key keep their order
            fill(db, number, 30)
        copy_changes(spark, source, store, tmp_path / "state")
        assert content(store) == {**content(source), "old": {b"k": b"v"}}
    assert check_store(store) == []


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_query_that_dies_around_its_commit_writes_each_batch_once(
    spark: SparkSession, store: Path, tmp_path: Path, when: str
) -> None:
    mark = str(tmp_path / "died")

    class Dying(TidelogSource):
        """The format, but its third commit dies."""

        @classmethod
        def name(cls) -> str:
            return f"tidelog_dying_{when}"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            writer: Any = super().streamWriter(schema, overwrite)
            commit = writer.commit

            def dies(messages: Any, batch: int) -> None:
                fatal = batch == 2 and not Path(mark).exists()
                if fatal:
                    Path(mark).touch()
                if not fatal or when == "behind":
                    commit(messages, batch)
                if fatal:
                    raise RuntimeError("the driver dies")

            writer.commit = dies
            return writer

    spark.dataSource.register(Dying)
    source = tmp_path / "source"
    with new_store(source, partitions=1) as db:
        fill(db, 1, 60)
    with pytest.raises(StreamingQueryException, match="the driver dies"):
        copy_changes(spark, source, store, tmp_path / "state", Dying.name())
    batches = len({row["tx_id"] for row in rows(store, "changes")}) - 1
    assert batches == (3 if when == "behind" else 2)
    copy_changes(spark, source, store, tmp_path / "state", Dying.name())
    assert content(store) == {**content(source), "old": {b"k": b"v"}}
    written = [row["tx_id"] for row in rows(store, "changes") if row["namespace"] != "old"]
    state = [path for path in (tmp_path / "state" / "commits").iterdir() if path.name.isdigit()]
    assert len(set(written)) == len(state)
    assert check_store(store) == []


def test_an_aggregation_is_written_back_as_a_whole(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    for number in range(2):
        with tidelog.open(store) as db:
            fill(db, number, 20)
        query = (
            spark.readStream.format("tidelog")
            .options(path=str(store), view="changes", startingCounters="earliest")
            .load()
            .where("namespace in ('orders', 'stock')")
            .groupBy("namespace")
            .count()
            .selectExpr("cast(namespace as binary) key", "cast(string(count) as binary) value")
            .writeStream.format("tidelog")
            .options(path=str(store), namespace="counts")
            .option("checkpointLocation", str(tmp_path / "state"))
            .outputMode("complete")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    counts: dict[bytes, int] = {}
    for row in rows(store, "changes"):
        if row["namespace"] in ("orders", "stock"):
            name = row["namespace"].encode()
            counts[name] = counts.get(name, 0) + 1
    assert {key: int(value) for key, value in content(store)["counts"].items()} == counts
