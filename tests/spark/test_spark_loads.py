"""Loads written by a real Spark session: what one process would write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.pipelines import load_content
from tidelog.affinity.errors import NotFoundError, UsageError
from tidelog.engine.upkeep.load_files import LoadManifest, read_load_manifest
from tidelog.pipeline.jobs import loads
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.spark import arranging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IN_SPARK = Runner("spark", "local[2,3]")


def rows(spark: SparkSession, count: int, key: str = "id") -> DataFrame:
    """Rows in no order, of which each task has some."""
    frame = spark.range(count).repartition(3)
    columns = [f"cast(string({part}) as binary)" for part in (key, "id * 2")]
    return frame.selectExpr(f"{columns[0]} key", f"{columns[1]} value")


def write(frame: DataFrame, directory: Path, mode: str = "append", **more: Any) -> None:
    options = {"path": str(directory), "target": "files", "namespace": "n", "partitions": 64}
    frame.write.format("tidelog").mode(mode).options(**{**options, **more}).save()


def doubled(count: int) -> dict[bytes, bytes]:
    return {b"%d" % n: b"%d" % (2 * n) for n in range(count)}


def told(manifest: LoadManifest) -> list[Any]:
    """What a manifest says, ids and times and files aside."""
    parts = [part for file in manifest.files for part in file.partitions]
    numbers = [(part.partition, part.rows, part.first_key, part.last_key) for part in parts]
    return [manifest.map, manifest.partitions, manifest.key_codec, sorted(numbers)]


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_spark_and_one_process_make_the_same_load(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    texts = "string(id)", """if(id = 7, '', concat('"', id, '", 2026-11-22'))"""
    frame = spark.range(2000).repartition(2).selectExpr(f"{texts[0]} k", f"{texts[1]} v")
    source = str(tmp_path / f"rows.{form}")
    frame.write.options(header=True, escape='"').format(form).save(source)
    found = []
    for runner in (Runner(), IN_SPARK):
        directory = tmp_path / runner.engine
        options = {"path": str(directory), "namespace": "n", "partitions": "1024"}
        done = loads.load(source, options, runner, columns=("k", "v"), files=5)
        assert len(done.files) == 5
        found.append((load_content(directory), told(done)))
    assert found[0] == found[1]
    assert found[0][0][b"8"] == b'"8", 2026-11-22'
    assert found[0][0][b"7"] == b""


def test_a_frame_becomes_a_load_which_another_replaces(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "load"
    write(arranging.arrange(rows(spark, 500), 64, 3), directory)
    assert load_content(directory) == doubled(500)
    with pytest.raises(Exception, match="there is a load"):
        write(arranging.arrange(rows(spark, 5), 64), directory)
    write(arranging.arrange(rows(spark, 50), 64), directory, "overwrite", keyCodec="str")
    assert load_content(directory) == doubled(50)
    assert read_load_manifest(str(directory)).key_codec == ("str", 1)
    assert not any(name.startswith("_") for name in os.listdir(directory))


def test_what_cannot_be_loaded_is_told(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "load"
    frame = arranging.arrange(rows(spark, 100), 64)
    cases: list[tuple[DataFrame, dict[str, Any], str]] = [
        (rows(spark, 100), {}, "arranging.arrange"),
        (arranging.arrange(rows(spark, 9, "id div 2"), 64), {}, "comes twice in partition"),
        (frame.selectExpr("key", "nullif(value, value) value"), {}, "a load holds no deletes"),
        (frame.selectExpr("key", "string(value) value"), {}, "value string"),
        (frame, {"partitions": 0}, "from 1 to"),
    ]
    for given, options, said in cases:
        with pytest.raises(Exception, match=rf"(?is){said}"):
            write(given, directory, **options)
        with pytest.raises(NotFoundError):
            read_load_manifest(str(directory))


def test_errors_of_tasks_are_raised_as_ours(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "rows.parquet")
    rows(spark, 9, "id div 2").write.parquet(source)
    options = {"path": str(tmp_path / "load"), "namespace": "n", "partitions": "4"}
    with pytest.raises(UsageError, match=r"key '\d' comes twice in partition \d"):
        loads.load(source, options, IN_SPARK)
    loads.load(source, {**options, "onConflict": "last"}, IN_SPARK)
    wanted = {b"0": b"2", b"1": b"6", b"2": b"8", b"3": b"14", b"4": b"16"}
    assert load_content(tmp_path / "load") == wanted
    with pytest.raises(UsageError, match="no column nobody"):
        loads.load(source, options, IN_SPARK, columns=("nobody", "value"))


def test_tasks_that_fail_and_are_tried_again_write_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    marks, directory = str(tmp_path / "marks"), tmp_path / "load"
    Path(marks).mkdir()

    def flaky(given: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from given
        mark = Path(marks, str(context.partitionId()))
        if not mark.exists():
            mark.touch()
            raise RuntimeError("the first attempt fails behind its last row")

    frame = arranging.arrange(rows(spark, 300), 64, 3)
    write(spark.createDataFrame(frame.rdd.mapPartitions(flaky), frame.schema), directory)
    assert len(list(Path(marks).iterdir())) == 3
    assert load_content(directory) == doubled(300)
    assert len(os.listdir(directory)) == 4
