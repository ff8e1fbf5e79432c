"""Typed columns, tables and SQL in a real Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidelog
from support.pipelines import new_store
from tidelog.codecs import I64, Msgpack, Str, Tuple
from tidelog.pipeline import decode_key, decode_value, snapshot_vector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USERS: dict[tuple[str, int], dict[str, Any]] = {
    ("no", 1): {"name": "ada", "credit": 10, "tags": ["a"]},
    ("no", 2): {"name": "bob", "credit": 2},
    ("se", 1): {"name": "cid", "credit": None},
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with new_store(tmp_path / "store", partitions=2) as db:
        db.map("users", key=Tuple, value=Msgpack).update_many(USERS)
        db.map("counts", key=Str, value=I64)["ada"] = 1
    return tmp_path / "store"


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    given = {"decode": "true", "namespace": "users", **options}
    return spark.read.format("tidelog").options(path=str(path), **given).load()


def contents(path: Path, name: str) -> dict[Any, Any]:
    with tidelog.open(path, read_only=True) as db:
        return dict(db.map(name).items())


def test_values_are_columns(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    users = load(spark, store)
    assert users.schema["value"].dataType.simpleString() == (
        "struct<name:string,credit:bigint,tags:array<string>>"
    )
    rich = users.where("value.credit > 3").selectExpr("key._1 c", "key._2 n", "value.name")
    assert [tuple(row) for row in rich.collect()] == [("no", 1, "ada")]
    assert snapshot_vector(users)[str(store)].keys() == {0, 1}
    given = spark.read.format("tidelog").schema(
        "value map<string,string>, key struct<a:string,b:int>"
    )
    options = {"path": str(store), "namespace": "users", "decode": "true"}
    found = {tuple(row.key): row.value for row in given.options(**options).load().collect()}
    assert found["no", 2] == {"name": "bob", "credit": "2"}
    query = (
        spark.readStream.format("tidelog")
        .options(**options, view="changes", startingCounters="earliest")
        .schema("key struct<a:string,b:int>, value struct<credit:int>, counter bigint")
        .load()
        .writeStream.format("memory")
        .queryName("typed")
        .option("checkpointLocation", str(tmp_path / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.table("typed").selectExpr("sum(value.credit)").collect()[0][0] == 12


def test_functions_decode_what_is_read_as_bytes(spark: SparkSession, store: Path) -> None:
    plain = load(spark, store, decode="false")
    place = str(store)
    found = plain.select(
        decode_key("key", place, "users", "country string, n int").alias("k"),
        decode_value("value", place, "users").alias("v"),
    ).selectExpr("k.country", "k.n", "v.credit")
    assert sorted(map(tuple, found.collect())) == [
        (*key, user["credit"]) for key, user in USERS.items()
    ]
    with pytest.raises(Exception, match="a value of map 'counts' cannot be decoded"):
        plain.select(decode_value("value", place, "counts")).collect()


def write(frame: DataFrame, store: Path, **options: Any) -> None:
    given = {"namespace": "users", "encode": "true", **options}
    frame.write.format("tidelog").mode("append").options(path=str(store), **given).save()


def test_columns_are_encoded(spark: SparkSession, store: Path) -> None:
    write(load(spark, store).select("key", "value"), store, namespace="copy",
          keyCodec="tuple", valueCodec="json")  # fmt: skip
    seen = {key: {n: v for n, v in user.items() if v is not None} for key, user in USERS.items()}
    assert contents(store, "copy") == seen
    moved = ("struct('fi' as c, key._2 as n) key", "if(key._2 = 1, value, null) value")
    write(load(spark, store).where("key._1 = 'no'").selectExpr(*moved), store)
    assert contents(store, "users").keys() == {*USERS, ("fi", 1)}
    text = spark.range(1).selectExpr("'a' as key", "id as value")
    with pytest.raises(Exception, match="key is string; the map 'users' has the codec tuple"):
        write(text, store)
    with pytest.raises(Exception, match="no value"):
        write(text.select("key"), store)
    with pytest.raises(Exception, match=r"there is no map 'new'.*whose codecs would encode"):
        write(text, store, namespace="new")
    large = spark.range(1).selectExpr("'k' as key", "cast(id as decimal(20,0)) value")
    with pytest.raises(Exception, match=r"column value is decimal\(20,0\); the map 'counts' has"):
        write(large, store, namespace="counts")
    odd = spark.range(1).selectExpr("struct(cast('nan' as double) as a) key", "1 value")
    with pytest.raises(Exception, match=r"key .*nan.* cannot be written into map 'users'"):
        write(odd, store)


def test_a_stream_of_typed_rows_is_written(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    (
        spark.readStream.format("tidelog")
        .options(path=str(store), view="changes", namespace="users", decode="true")
        .option("startingCounters", "earliest")
        .option("keySchema", "country string, n int")
        .option("valueSchema", "name string, credit bigint")
        .load()
        .selectExpr("value.name key", "value.credit value")
        .writeStream.format("tidelog")
        .options(path=str(store), namespace="counts", encode="true")
        .option("checkpointLocation", str(tmp_path / "state"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    assert contents(store, "counts") == {"ada": 10, "bob": 2}


@pytest.fixture
def table(spark: SparkSession, store: Path, tmp_path: Path) -> Any:
    made: list[str] = []

    def make(name: str, options: str) -> None:
        spark.sql(f"CREATE TABLE {name} USING tidelog {options}")
        made.append(name)

    yield make
    for name in made:
        spark.sql(f"DROP TABLE {name}")


def test_tables_of_the_catalog_keep_their_options(
    spark: SparkSession, store: Path, table: Any
) -> None:
    # They were refused: Spark hands over nothing but columns if a table is read.
    table("users", f"OPTIONS (path '{store}', namespace 'users', decode 'true')")
    assert spark.sql("SELECT sum(value.credit) FROM users").collect()[0][0] == 12
    table("plain", f"LOCATION '{store}'")
    assert spark.sql("SELECT count(*) FROM plain").collect()[0][0] == 4
    table("log", f"OPTIONS (path '{store}', view 'changes', namespace 'counts')")
    assert spark.newSession().table("log").select("op").collect()[0][0] == "put"
    with tidelog.open(store) as db:
        db.map("users")["dk", 1] = {"name": "dan", "credit": 5}
    assert spark.table("users").where("value.name = 'dan'").count() == 1
    before = contents(store, "users")
    options = f"OPTIONS (path '{store}', namespace 'n')"
    for statement in (
        "INSERT INTO users SELECT * FROM users",
        f"CREATE TABLE t USING tidelog {options} AS SELECT * FROM users",
    ):
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW name"):
            spark.sql(statement)
    assert contents(store, "users") == before
    spark.sql("DROP TABLE IF EXISTS t")
    spark.sql(f"CREATE TABLE t (key binary) USING tidelog LOCATION '{store}'")
    with pytest.raises(Exception, match="columns of its own"):
        spark.sql("SELECT * FROM t").collect()
    spark.sql("DROP TABLE t")


def test_a_view_is_inserted_into(spark: SparkSession, store: Path) -> None:
    options = f"OPTIONS (path '{store}', namespace 'counts', decode 'true')"
    spark.sql(f"CREATE TEMPORARY VIEW counts (key string, value bigint) USING tidelog {options}")
    spark.sql("INSERT INTO counts VALUES ('bob', 7), ('ada', NULL)")
    assert contents(store, "counts") == {"bob": 7}
    spark.sql("INSERT OVERWRITE counts SELECT 'cid', 9")
    assert [tuple(row) for row in spark.table("counts").collect()] == [("cid", 9)]


def test_several_stores_are_one_frame(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    with new_store(tmp_path / "other") as db:
        db.map("counts", key=Str, value=I64)["eve"] = 3
    options = {"namespace": "counts", "decode": "true"}
    reader = spark.read.format("tidelog").options(**options)
    found = reader.load([str(store), str(tmp_path / "other")])
    assert sorted((row.node, row.key, row.value) for row in found.collect()) == [
        (str(tmp_path / "other"), "eve", 3), (str(store), "ada", 1),
    ]  # fmt: skip
