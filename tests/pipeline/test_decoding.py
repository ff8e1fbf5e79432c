"""Keys and values as typed columns: by the codecs that a map has, or by a type that is given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

import tidelog
from support.pipelines import Row, new_store, parse, rows, rows_of
from tidelog import codecs
from tidelog.affinity.errors import CodecError, UsageError
from tidelog.codecs import (
    I64,
    U64,
    Bytes,
    Codec,
    Float,
    Json,
    Msgpack,
    SingleFloat,
    Str,
    Tuple,
)
from tidelog.engine.codecs import registry
from tidelog.pipeline.base.codec_types import (
    CODEC_TYPES,
    UnfitError,
    check_takes,
    fitting,
    sampled_type,
)
from tidelog.pipeline.base.sql_types import SPAN, parse_type, type_of_json
from tidelog.pipeline.data.decoded import Side
from tidelog.pipeline.jobs.compaction import compact
from tidelog.pipeline.jobs.runner import Runner, export
from tidelog.pipeline.log.logs import Log
from tidelog.pipeline.plan.reads import fields_of, read
from tidelog.pipeline.plan.streams import stream
from tidelog.pipeline.spark.datasource import TidelogSource


@dataclass
class Cart:
    """A value of a user's own."""

    owner: str
    sums: list[float]


SEEN: list[tuple[str, Codec[Any], list[Any], str, list[Any]]] = [
    ("bytes", Bytes, [b"\0\xff", b""], "binary", [b"\0\xff", b""]),
    ("str", Str, ["ä", ""], "string", ["ä", ""]),
    ("i64", I64, [-(2**63), 2**63 - 1], "bigint", [-(2**63), 2**63 - 1]),
    ("u64", U64, [0, 2**64 - 1], "decimal(20,0)", [Decimal(0), Decimal(2**64 - 1)]),
    ("float", Float, [0.1, -1e300], "double", [0.1, -1e300]),
    ("tuple", Tuple, [("a", 1), ("b", None)], "struct<_1:string,_2:bigint>",
     [{"_1": "a", "_2": 1}, {"_1": "b", "_2": None}]),
    ("msgpack", Msgpack, [{"a": 1, "b": [b"x"]}, {"c": None}],
     "struct<a:bigint,b:array<binary>,c:string>",
     [{"a": 1, "b": [b"x"], "c": None}, {"a": None, "b": None, "c": None}]),
    ("json", Json, [{"a": 1, "b c": {"d": True}}, {"a": 2.5}],
     "struct<a:double,`b c`:struct<d:boolean>>",
     [{"a": 1.0, "b c": {"d": True}}, {"a": 2.5, "b c": None}]),
    ("cart", codecs.dataclass(Cart), [Cart("ada", [0.5]), Cart("bob", [])],
     "struct<owner:string,sums:array<double>>",
     [{"owner": "ada", "sums": [0.5]}, {"owner": "bob", "sums": []}]),
]  # fmt: skip
"""Name, codec, values, type, and what is read of them."""


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a map for each codec, of which each map has values of another one."""
    path = tmp_path_factory.mktemp("typed") / "s"
    with new_store(path, partitions=2) as db:
        for name, codec, values, _, _ in SEEN:
            db.map(f"values-{name}", key=I64, value=codec).update_many(dict(enumerate(values)))
            if codec.ordered:
                db.map(f"keys-{name}", key=codec, value=I64).update_many(
                    {value: place for place, value in enumerate(values)}
                )
    return path


def decoded(path: Path, name: str, view: str = "snapshot", **given: Any) -> list[Row]:
    return rows(path, view, namespace=name, decode="true", **given)


def test_every_codec_that_comes_with_tidelog_has_a_row() -> None:
    assert registry._BUILT_IN.keys() <= CODEC_TYPES.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uuid", UUID(int=7)),
        ("datetime", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("date", date(1, 1, 1)),
        ("timedelta", timedelta(days=-1, microseconds=1)),
        ("decimal", Decimal("-12345678901234567890.000000000000000001")),
        ("decimal-key", Decimal("0.5")),
    ],
)
def test_values_of_other_types_go_there_and_back(name: str, value: object) -> None:
    import pyarrow as pa

    row = CODEC_TYPES[name]
    assert row.kind is not None
    kind = parse_type(row.kind)
    assert type_of_json(kind.json()) == parse_type(str(kind)) == kind
    array = pa.array([fitting(kind)(value), None], kind.arrow())
    assert row.value(array[0].as_py(), kind) == value
    if not name.startswith("uuid"):
        assert sampled_type([value]) == kind
    with pytest.raises(UnfitError):
        fitting(kind)(b"")


@pytest.mark.parametrize("view", ["snapshot", "changes"])
@pytest.mark.parametrize(("name", "codec", "values", "kind", "seen"), SEEN)
def test_a_map_shows_what_is_in_it(
    typed: Path, view: str, name: str, codec: Codec[Any], values: list[Any], kind: str,
    seen: list[Any],
) -> None:  # fmt: skip
    given = {"path": str(typed), "view": view, "decode": "true", "namespace": f"values-{name}"}
    found = {row["key"]: row["value"] for row in decoded(typed, f"values-{name}", view)}
    assert found == dict(enumerate(seen))
    kinds = dict(fields_of(parse(given)))
    assert (kinds["key"], kinds["value"]) == ("bigint", kind)
    if codec.ordered:
        keys = {row["value"]: row["key"] for row in decoded(typed, f"keys-{name}", view)}
        assert keys == dict(enumerate(seen))


def test_columns_are_those_asked_for_in_their_order(typed: Path) -> None:
    assert decoded(typed, "values-str", columns="value") == [{"value": "ä"}, {"value": ""}]
    one = decoded(typed, "keys-i64", columns="node,key,counter", partitions="0-1")
    assert all(list(row) == ["node", "key", "counter"] for row in one)
    assert {row["node"] for row in one} == {str(typed)}


def test_a_given_type_counts(typed: Path) -> None:
    kind = "a decimal(9,2), `b c` string, gone array<int>"
    found = {row["key"]: row["value"] for row in decoded(typed, "values-json", valueSchema=kind)}
    assert found == {
        0: {"a": Decimal(1), "b c": '{"d":true}', "gone": None},
        1: {"a": Decimal("2.5"), "b c": None, "gone": None},
    }


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A store with a map that was another one before, and has a value that is foreign."""
    with new_store(tmp_path / "m", partitions=1) as db:
        db.map("m", key=Str, value=I64)["old"] = 1
        db.drop("m")
        db.map("m", key=Str, value=Json).update_many({"a": {"n": 1}, "b": {"n": 2}, "c": [3]})
    return tmp_path / "m"


def test_rows_of_an_earlier_map_are_never_read_by_the_codecs_of_a_later_one(mixed: Path) -> None:
    with pytest.raises(CodecError, match=r"key old in map 'm'.*an earlier map.*i64 1"):
        decoded(mixed, "m", "changes", valueSchema="n bigint")
    found = decoded(mixed, "m", "changes", valueSchema="n bigint", undecodable="null")
    assert [(row["key"], row["value"]) for row in found] == [
        (None, None), ("a", {"n": 1}), ("b", {"n": 2}), ("c", None),
    ]  # fmt: skip
    assert [row["decode_error"] is None for row in found] == [False, True, True, False]
    key, value = found[0]["decode_error"].split("; ")
    assert (key[:7], value[:20]) == ("key old", "the value of key old")
    assert "list is not struct" in found[3]["decode_error"]
    only = decoded(mixed, "m", "changes", valueSchema="n bigint", undecodable="null",
                   columns="decode_error")  # fmt: skip
    assert [list(row) for row in only] == [["decode_error"]] * 4


def test_a_delete_in_an_earlier_map_has_no_value_that_could_not_be_decoded(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=1) as db:
        db.map("m", key=Str, value=I64)["old"] = 1
        db.map("m").discard("old")
        db.drop("m")
        db.map("m", key=Str, value=Str)["new"] = "v"
    found = decoded(tmp_path / "s", "m", "changes", undecodable="null")
    assert [(row["op"], row["value"]) for row in found] == [
        ("put", None), ("delete", None), ("put", "v"),
    ]  # fmt: skip
    told = [(row["decode_error"] or "").count("it is of an earlier map") for row in found]
    assert told == [2, 1, 0]


def test_a_map_of_which_the_log_tells_nothing_is_not_decoded(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Log, "record_of", lambda self, number: None)
    with pytest.raises(CodecError, match=r"key old .*nothing tells the codecs of map_id \d+"):
        decoded(mixed, "m", "changes", valueSchema="n bigint")


def test_a_map_made_again_with_the_same_codecs_goes_on(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=1) as db:
        db.map("m", key=Str, value=I64)["old"] = 1
        db.drop("m")
        db.map("m", key=Str, value=I64)["new"] = 2
        db.map("m").discard("new")
        db.rename("m", "n")
    found = decoded(tmp_path / "s", "m", "changes")
    assert [(row["key"], row["op"], row["value"]) for row in found] == [
        ("old", "put", 1), ("new", "put", 2), ("new", "delete", None),
    ]  # fmt: skip


def test_a_sample_is_of_the_map_that_is_there_now(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=1) as db:
        db.map("m", key=Str, value=Json)["old"] = {"gone": "x"}
        db.drop("m")
        db.map("m", key=Str, value=Json)["new"] = {"n": 2}
        db.map("m").discard("new")
    found = decoded(tmp_path / "s", "m", "changes", columns="value")
    assert found == [{"value": {"n": None}}, {"value": {"n": 2}}, {"value": None}]


def test_what_cannot_be_decoded_is_left_out_of_a_sample(tmp_path: Path) -> None:
    with new_store(tmp_path / "s") as db:
        db.map("m", key=Str, value=Bytes).update_many({"a": b"{", "b": b'{"n":1}'})
    compact(str(tmp_path / "s"), str(tmp_path / "a"), Runner())
    given = {"keyCodec": "str", "valueCodec": "json", "undecodable": "null", "columns": "value"}
    found = decoded(tmp_path / "a", "m", **given)
    assert found == [{"value": None}, {"value": {"n": 1}}]


def test_what_is_of_no_type_of_the_column_names_map_and_key(mixed: Path) -> None:
    with pytest.raises(CodecError, match=r"the value of key c in map 'm' of .* list is not struct"):
        decoded(mixed, "m", valueSchema="n bigint")
    with pytest.raises(CodecError, match=r"key a in map 'm'.*\$\.n: int is not boolean") as caught:
        decoded(mixed, "m", valueSchema="n boolean")
    assert "undecodable=null" in (caught.value.hint or "")
    assert len(decoded(mixed, "m", valueSchema="n bigint", undecodable="null")) == 3
    # A sample has both, and shows them as JSON.
    assert {row["value"] for row in decoded(mixed, "m")} == {'{"n":1}', '{"n":2}', "[3]"}


def test_bytes_that_no_codec_made_are_told(tmp_path: Path) -> None:
    with new_store(tmp_path / "s") as db:
        db.map("m")[b"\xff"] = b"not eight"
    assert decoded(tmp_path / "s", "m", columns="key,value") == [
        {"key": b"\xff", "value": b"not eight"}
    ]
    compact(str(tmp_path / "s"), str(tmp_path / "a"), Runner())
    for view in ("snapshot", "changes"):
        for given in ({}, {"keyCodec": "bytes"}, {"valueCodec": "i64"}):
            with pytest.raises(UsageError, match="does not say what codecs"):
                decoded(tmp_path / "a", "m", view, **given)
        with pytest.raises(CodecError, match=r"hex:ff in map 'm'.*9 bytes, not 8"):
            decoded(tmp_path / "a", "m", view, keyCodec="bytes", valueCodec="i64")
        with pytest.raises(UsageError, match="has codec bytes, not i64"):
            decoded(tmp_path / "s", "m", view, keyCodec="i64")


def test_closed_numbers_have_neither_key_nor_value(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=1) as db:
        db.map("m", key=I64, value=I64)[1] = 2
    found = decoded(tmp_path / "s", "m", "changes", changeFormat="cdf", includeRollbacks="true")
    assert [(r["_change_type"], r["key"], r["value"]) for r in found] == [
        ("update_postimage", 1, 2)
    ]


def test_a_stream_takes_types_and_no_sample(mixed: Path) -> None:
    given = {
        "path": str(mixed), "view": "changes", "namespace": "m", "decode": "true",
        "startingCounters": "earliest",
    }  # fmt: skip
    with pytest.raises(UsageError, match="types of what json holds"):
        stream(parse(given, stream=True))
    given |= {"valueSchema": "n bigint", "undecodable": "null"}
    follower = stream(parse(given, stream=True), ["value"])
    tasks = follower.tasks(follower.initial(), follower.newest())
    assert rows_of(tasks) == [{"value": v} for v in (None, {"n": 1}, {"n": 2}, None)]


def test_a_stream_that_begins_with_a_copy_is_decoded_there_too(mixed: Path, tmp_path: Path) -> None:
    with tidelog.open(mixed) as db:
        db.backup(tmp_path / "copy")
        db.map("m")["d"] = {"n": 4}
    given = {
        "path": str(mixed), "view": "changes", "namespace": "m", "decode": "true",
        "valueSchema": "string", "initialSnapshot": str(tmp_path / "copy"),
    }  # fmt: skip
    follower = stream(parse(given, stream=True), ["key", "value", "node"])
    first = follower.latest(follower.initial(), None)
    tasks = follower.tasks(follower.initial(), first) + follower.tasks(first, follower.newest())
    found = rows_of(tasks)
    assert [(row["key"], row["value"]) for row in found] == [
        ("a", '{"n":1}'), ("b", '{"n":2}'), ("c", "[3]"), ("d", '{"n":4}'),
    ]  # fmt: skip
    assert {row["node"] for row in found} == {str(mixed)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"decode": "true"}, "needs the option namespace"),
        ({"valueSchema": "string"}, "valueSchema without decode"),
        ({"decode": "true", "namespace": "m", "valueSchema": "strng"}, "there is no type strng"),
        ({"decode": "true", "namespace": "gone"}, "there is no map 'gone'"),
        ({"decode": "true", "namespace": "empty"}, "nothing by which to tell the type"),
        ({"decode": "true", "namespace": "m", "undecodable": "skip"}, "fail or null"),
        ({"decode": "true", "namespace": "m", "view": "changes", "includeCatalog": "true"},
         "exclude each other"),
        ({"decode": "true", "namespace": "m", "columns": "decode_error"}, "no column"),
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_so_says_why(mixed: Path, given: dict[str, str], said: str) -> None:
    with tidelog.open(mixed) as db:
        db.map("empty", key=Str, value=Json)
    with pytest.raises(UsageError, match=said):
        fields_of(parse({"path": str(mixed), **given}))


def test_a_codec_of_ones_own_takes_a_type_that_is_given_or_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    money: Codec[int] = Codec(
        name="acme.money", encode=lambda v: str(v).encode(), decode=lambda b: int(b)
    )
    with new_store(tmp_path / "s") as db:
        db.map("m", key=Str, value=money)["a"] = 7
    given = {"path": str(tmp_path / "s"), "namespace": "m", "decode": "true"}
    for kind in ({}, {"valueSchema": "bigint"}):
        with pytest.raises(CodecError, match=r"acme\.money version 1 is not known"):
            fields_of(parse({**given, **kind}))
    monkeypatch.setattr(registry, "_registered", lambda name: [money])
    assert decoded(tmp_path / "s", "m", columns="value") == [{"value": 7}]
    assert decoded(tmp_path / "s", "m", columns="value", valueSchema="string") == [{"value": "7"}]


def test_an_export_is_decoded_too(typed: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    given = {"path": str(typed), "namespace": "values-json", "decode": "true"}
    for form in ("parquet", "jsonl", "csv"):
        assert export(given, str(tmp_path / form), form, Runner())[0] == 2
    lines = "".join(path.read_text() for path in tmp_path.glob("csv/*.csv"))
    assert '"{""a"": 2.5, ""b c"": null}"' in lines
    table = parquet.read_table(tmp_path / "parquet")
    assert table.schema.field("key").type == "int64"
    assert {row["a"] for row in table.column("value").to_pylist()} == {1.0, 2.5}


# ------------------------------------------------------------------ several stores


def test_rows_of_several_stores_say_which_they_are_of(tmp_path: Path) -> None:
    # Only wal and meta did.
    paths = [str(tmp_path / name) for name in "ab"]
    for number, path in enumerate(paths):
        with new_store(Path(path)) as db:
            db.map("m", key=I64, value=I64)[number] = number
    both = {"path": f'["{paths[0]}", "{paths[1]}"]'}
    for view in ("snapshot", "changes"):
        found = rows_of(read(parse({**both, "view": view})))
        assert [(row["node"], row["key"][-1]) for row in found] == [(paths[0], 0), (paths[1], 1)]
        assert list(found[0])[-1] == "node"
        assert "node" not in rows(Path(paths[0]), view)[0]
        named = {**both, "view": view, "decode": "true", "namespace": "m"}
        assert [row["key"] for row in rows_of(read(parse(named)))] == [0, 1]
    archives = [f"{path}.archive" for path in paths]
    for path, archive in zip(paths, archives, strict=True):
        compact(path, archive, Runner())
    given = {"path": f'["{archives[0]}", "{archives[1]}"]', "columns": "node,namespace"}
    for view in ("snapshot", "changes"):
        found = rows_of(read(parse({**given, "view": view})))
        assert found == [{"node": archive, "namespace": "m"} for archive in archives]


def test_an_earlier_map_of_one_store_is_not_taken_for_a_map_of_another(tmp_path: Path) -> None:
    with new_store(tmp_path / "a", partitions=1) as db:
        db.map("m", key=Str, value=Str)["k"] = "a"
    with new_store(tmp_path / "b", partitions=1) as db:
        db.map("m", key=Str, value=Bytes)["old"] = b"b"  # it has the number of that in the other
        db.drop("m")
        db.map("m", key=Str, value=Str)["k"] = "b"
    given = {
        "path": f'["{tmp_path / "a"}", "{tmp_path / "b"}"]', "view": "changes", "namespace": "m",
        "decode": "true", "undecodable": "null", "columns": "value,decode_error",
    }  # fmt: skip
    found = rows_of(read(parse(given)))
    assert [row["value"] for row in found] == ["a", None, "b"]
    assert "it is of an earlier map" in found[1]["decode_error"]


def test_stores_whose_maps_have_other_codecs_are_not_read_as_one(tmp_path: Path) -> None:
    for name, codec in (("a", Str), ("b", Json)):
        with new_store(tmp_path / name) as db:
            db.map("m", key=Str, value=codec)["k"] = "v"
    paths = f'["{tmp_path / "a"}", "{tmp_path / "b"}"]'
    with pytest.raises(UsageError, match=r"same codecs everywhere: .*a: str, str; .*b: str, json"):
        read(parse({"path": paths, "namespace": "m", "decode": "true"}))


def test_a_store_and_its_copy_are_not_counted_twice(tmp_path: Path) -> None:
    # The rows of both came, without a word.
    with new_store(tmp_path / "s") as db:
        db.map("m")[b"k"] = b"v"
        db.backup(tmp_path / "copy")
    both = {"path": f'["{tmp_path / "s"}", "{tmp_path / "copy"}"]'}
    for given in ({}, {"view": "changes"}):
        with pytest.raises(UsageError, match="are of one store"):
            read(parse({**both, **given}))
    with pytest.raises(UsageError, match="are of one store"):
        stream(parse({**both, "view": "changes"}, stream=True))
    assert {row["node"] for row in rows_of(read(parse({**both, "view": "wal"})))} == {
        str(tmp_path / "s"), str(tmp_path / "copy"),
    }  # fmt: skip


# ------------------------------------------------------------------ types and values


@pytest.mark.parametrize(
    "text",
    ["bigint", "decimal(38,18)", "array<struct<a:int,`b c`:map<string,array<double>>>>",
     "struct<`a``b`:timestamp,`ä`:date>"],
)  # fmt: skip
def test_a_type_is_its_text_and_its_json(text: str) -> None:
    kind = parse_type(text)
    assert str(kind) == text
    assert type_of_json(kind.json()) == kind
    assert parse_type(str(kind)) == kind


def test_types_have_other_spellings() -> None:
    assert (
        str(parse_type(" a LONG , b Struct< c : STRING >")) == "struct<a:bigint,b:struct<c:string>>"
    )
    assert str(parse_type("decimal")) == "decimal(10,0)"
    assert str(parse_type("dec(1)")) == "decimal(1,0)"
    assert str(parse_type("a: int, b:string")) == "struct<a:int,b:string>"
    assert str(parse_type("`x y` byte")) == "struct<`x y`:tinyint>"


def test_the_json_of_a_type_is_that_of_spark() -> None:
    from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

    inner = StructType().add("c", ArrayType(LongType())).add("d", MapType(StringType(), LongType()))
    kind = StructType().add("a", LongType()).add("b", inner)
    text = "a bigint, b struct<c:array<bigint>,d:map<string,bigint>>"
    assert parse_type(text).json() == kind.jsonValue()


def test_a_type_that_is_only_known_to_spark_keeps_its_name_and_has_no_values() -> None:
    kind = type_of_json({"type": "udt", "class": "org.acme.Point"})
    assert str(kind) == "udt"
    with pytest.raises(UsageError, match="columns of udt cannot be decoded into"):
        fitting(kind)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("array<", "a name was expected, not the end"),
        ("array<int", "> was expected, not the end"),
        ("map<int>", ", was expected, not >"),
        ("int int int", "nothing was expected behind struct<int:int>"),
        ("array<interval year to month>", "of intervals there is interval day to second"),
        ("decimal(0)", "a decimal has at most 38 digits"),
        ("a int; b int", "';' was not expected"),
    ],
)
def test_what_is_no_type_is_told_with_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_type(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "strng", "array", "array<>", "a int,", "a int, A int", "map<string>", "decimal(39,0)",
     "decimal(3,4)", "struct<a:int", "int int int", "interval year", "a int not null", "a int;",
     "array<interval year>"],
)  # fmt: skip
def test_what_is_no_type_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="is not a type of Spark"):
        parse_type(text)


def samples() -> Iterator[tuple[list[Any], str]]:
    yield [], "string"
    yield [None], "string"
    yield [{}, {}], "map<string,string>"
    yield [{}, {"a": 1}], "struct<a:bigint>"
    yield [[], [1, None]], "array<bigint>"
    yield [1, 2.5], "double"
    yield [-(2**63), 2**63 - 1], "bigint"
    yield [1, 2**63], "decimal(38,0)"
    yield [-(2**63) - 1, 1], "decimal(38,0)"
    yield [2.5, "a"], "string"
    yield [{"a": 1}, {1: "a"}], "string"
    yield [{}, [1]], "string"
    yield [1, "a"], "string"
    yield [True, 1], "string"
    yield [{1: "a"}, {2: "b"}], "map<bigint,string>"
    yield [("a", UUID(int=1), SingleFloat(0.5))], "struct<_1:string,_2:string,_3:float>"
    yield [("a",), ("a", ("b", 1))], "struct<_1:string,_2:struct<_1:string,_2:bigint>>"
    yield [{"a": 1}, [1]], "string"


@pytest.mark.parametrize(("values", "kind"), [*samples()])
def test_a_sample_has_a_type_that_holds_all_of_it(values: list[Any], kind: str) -> None:
    import pyarrow as pa

    found = sampled_type(values)
    assert str(found) == kind
    array = pa.array(map(fitting(found), values), found.arrow())
    assert len(array) == len(values)
    assert array.null_count == values.count(None)


@pytest.mark.parametrize("value", [{}, [], {"a": []}, {"a": [{1: {}}], "b": 0}, [[None], []], "x"])
def test_documents_are_written_as_they_were_read(value: Any) -> None:
    # An empty map was written as an empty list.
    import pyarrow as pa

    kind = sampled_type([value])
    side = Side(("msgpack", 1), str(kind))
    column = pa.array([fitting(kind)(value)], kind.arrow())
    encoded = side.encoded(column, lambda place, error: pytest.fail(str(error)))
    assert Msgpack.decode(encoded[0].as_py()) == value


@pytest.mark.parametrize(
    ("codec", "kind", "found", "value"),
    [
        ("msgpack", "a int, b struct<c:int,d:int>", {"a": None, "b": {"c": None, "d": 1}},
         {"b": {"d": 1}}),
        ("json", "map<string,struct<a:int,b:int>>", [("k", {"a": None, "b": 1})], {"k": {"b": 1}}),
        ("msgpack", "array<struct<a:int,b:int>>", [{"a": None, "b": 1}, None], [{"b": 1}, None]),
        ("tuple", "a struct<b:int,c:int>, d int", {"a": {"b": 1, "c": None}, "d": None},
         ((1, None), None)),
        ("u64", "decimal(20,0)", Decimal(2**64 - 1), 2**64 - 1),
        ("u64", "int", 7, 7),
        ("decimal", "int", 7, Decimal(7)),
        ("decimal-key", "bigint", 7, Decimal(7)),
        ("decimal-key", "decimal(4,2)", Decimal("7.50"), Decimal("7.5")),
    ],
)  # fmt: skip
def test_what_a_column_has_is_what_its_codec_writes(
    codec: str, kind: str, found: object, value: object
) -> None:
    import pyarrow as pa

    side = Side((codec, 1), kind)
    column = pa.array([found, None], parse_type(kind).arrow())
    encoded = side.encoded(column, lambda place, error: pytest.fail(str(error)))
    assert encoded[1].as_py() is None
    assert registry._BUILT_IN[codec].decode(encoded[0].as_py()) == value


def test_a_value_that_its_codec_cannot_write_is_told_with_its_place() -> None:
    import pyarrow as pa

    told: list[int] = []
    column = pa.array([1, -1, None, -2], pa.int64())
    encoded = Side(("u64", 1), "bigint").encoded(column, lambda place, _: told.append(place))
    assert told == [1, 3]
    assert [data.is_valid for data in encoded] == [True, False, False, False]


def test_a_fraction_is_not_cut_off_for_a_codec_of_integers() -> None:
    import pyarrow as pa

    told: list[str] = []
    side, kind = Side(("u64", 1), "decimal(5,2)"), parse_type("decimal(5,2)").arrow()
    column = pa.array([Decimal("7.50"), Decimal("7.00")], kind)
    encoded = side.encoded(column, lambda _, error: told.append(str(error)))
    assert [data.as_py() for data in encoded] == [None, U64.encode(7)]
    assert told == ["$: 7.50 is not a whole number"]


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("tinyint", -128, -128), ("tinyint", 127, 127), ("smallint", 2**15 - 1, 2**15 - 1),
        ("int", -(2**31), -(2**31)), ("bigint", -(2**63), -(2**63)),
        ("decimal(3,1)", Decimal("99.9"), Decimal("99.9")),
        ("decimal(3,1)", Decimal("1.500"), Decimal("1.5")), ("decimal(3,1)", 0.1, Decimal("0.1")),
        ("decimal(3,1)", Decimal("0E+9"), Decimal(0)),
        ("decimal(3,1)", Decimal("2E+1"), Decimal(20)),
        ("decimal(38,18)", Decimal("-0E+999999999"), Decimal(0)),
        ("decimal(38,18)", Decimal("0E-20"), Decimal(0)),
        ("decimal(38,18)", Decimal("1." + "0" * 60), Decimal(1)),
        ("decimal(38,38)", Decimal("-0." + "9" * 38), Decimal("-0." + "9" * 38)),
        ("decimal(38,0)", Decimal("9" * 38), Decimal("9" * 38)),
        ("double", -(2**53), -float(2**53)), ("double", 2**53, float(2**53)),
        ("float", SingleFloat(0.5), 0.5),
        ("string", UUID(int=1), str(UUID(int=1))), ("string", {"a": "ä"}, '{"a":"ä"}'),
        ("a int, b int", (1,), {"a": 1, "b": None}),
        ("a array<int>", {"a": [None, 1], "left": "out"}, {"a": [None, 1]}),
    ],
)  # fmt: skip
def test_what_a_type_can_just_hold_is_taken(kind: str, value: object, found: object) -> None:
    import pyarrow as pa

    fit = fitting(parse_type(kind))(value)
    assert fit == found
    assert pa.array([fit], parse_type(kind).arrow())[0].as_py() == found


def test_a_moment_of_another_zone_is_that_moment() -> None:
    moment = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    found = fitting(parse_type("timestamp"))(moment)
    assert (found, found.tzinfo) == (moment, UTC)


def test_what_cannot_be_held_is_named_by_its_path() -> None:
    kind = parse_type("a array<struct<b:map<string,int>>>")
    with pytest.raises(UnfitError) as caught:
        fitting(kind)({"a": [{"b": {}}, {"b": {"k": "x"}}]})
    assert str(caught.value).startswith("$.a[1].b['k']: ")


def test_names_that_differ_in_case_only_need_a_map() -> None:
    with pytest.raises(UsageError, match="differ in case: a"):
        sampled_type([{"a": 1, "A": 2}])


@pytest.mark.parametrize(
    ("kind", "value"),
    [("bigint", 2**63), ("tinyint", 128), ("bigint", True), ("bigint", 1.0), ("boolean", 1),
     ("double", 2**60), ("double", "1"), ("decimal(3,1)", Decimal("1.25")), ("string", b"x"),
     ("decimal(3,1)", 100), ("decimal(38,18)", Decimal("1." + 30 * "0" + "1")),
     ("decimal(3,1)", Decimal("NaN")), ("binary", "x"), ("date", "2020"),
     ("timestamp", "soon"), ("decimal(3,1)", "much"), ("decimal(3,1)", "NaN"),
     ("decimal(3,1)", "1.25"), (SPAN, "1 day"), (SPAN, 1.5),
     ("decimal(3,1)", True), ("bigint", "1"),
     ("array<int>", {"a": 1}), ("map<string,int>", [1]), ("a int", [1]),
     ("tinyint", -129), ("date", datetime(2020, 1, 1, tzinfo=UTC)), ("map<string,int>", {None: 1}),
     ("timestamp", datetime.fromisoformat("2020-01-01")), ("double", 2**53 + 1),
     ("double", -(2**53) - 1),
     ("decimal(3,1)", 99.95), ("decimal(3,1)", Decimal("Infinity")),
     ("a string", ("a", "b")), ("a array<struct<b:int>>", {"a": [{"b": 1}, {"b": "x"}]})],
)  # fmt: skip
def test_what_a_type_cannot_hold_is_refused(kind: str, value: object) -> None:
    with pytest.raises(UnfitError):
        fitting(parse_type(kind))(value)


@pytest.mark.parametrize(
    ("codec", "taken", "refused"),
    [
        ("i64", "int", "decimal(9,0)"),
        ("u64", "decimal(9,0)", "double"),
        ("decimal", "decimal(9,2)", "double"),
        ("float", "float", "int"),
        ("tuple", "a int, b int", "array<int>"),
        ("dataclass.Sale", "total string", "string"),
    ],
)
def test_a_codec_takes_columns_of_some_types(codec: str, taken: str, refused: str) -> None:
    check_takes(codec, parse_type(taken), "value", "the map 'm'")
    with pytest.raises(UsageError, match=f"the map 'm' has the codec {codec} for it, which takes"):
        check_takes(codec, parse_type(refused), "value", "the map 'm'")


def test_a_codec_of_documents_takes_columns_of_any_type() -> None:
    for kind in ("int", "array<int>", "a int"):
        check_takes("msgpack", parse_type(kind), "value", "the map 'm'")


@dataclass
class Sale:
    """A value with fields that its document has as text."""

    total: Decimal
    day: date
    at: datetime
    took: timedelta
    buyer: UUID


SALE = Sale(
    Decimal("10.50"),
    date(2026, 11, 21),
    datetime(2026, 11, 21, 15, 30, 0, 5, UTC),
    timedelta(days=-1, microseconds=5),
    UUID(int=5),
)


def test_fields_that_a_document_has_as_text_have_their_types_if_they_are_given(
    tmp_path: Path,
) -> None:
    codec = codecs.dataclass(Sale)
    with new_store(tmp_path / "s") as db:
        db.map("sales", key=Str, value=codec)["a"] = SALE
    given = f"total decimal(12,2), day date, at timestamp, took {SPAN}, buyer string"
    (row,) = decoded(tmp_path / "s", "sales", valueSchema=given)
    assert row["value"] == {**vars(SALE), "buyer": str(SALE.buyer)}
    (row,) = decoded(tmp_path / "s", "sales")
    assert row["value"] == Msgpack.decode(codec.encode(SALE))


@dataclass
class Shelf:
    """A value of which columns have all fields, nulls for those that are not there."""

    name: str | None
    sales: list[Sale]
    counts: dict[date, int]
    places: int = 7


@pytest.fixture
def shelves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Codec[Shelf]:
    """The codec of ``Shelf``, which an installed package registers."""
    codec = codecs.dataclass(Shelf)
    package = ModuleType("shelves")
    package.codec = codec  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shelves", package)
    metadata = tmp_path / "site" / "shelves-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shelves\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[tidelog.codecs]\ndataclass.Shelf = shelves:codec\n"
    )
    monkeypatch.syspath_prepend(metadata.parent)
    return codec


SHELF = (
    f"name string, sales array<struct<total:decimal(12,2),day:date,at:timestamp,took:{SPAN},"
    "buyer:string>>, counts map<date,int>, places int"
)


def columns_of(shelf: Shelf, *, places: int | None) -> dict[str, Any]:
    sales = [{**vars(sale), "buyer": str(sale.buyer)} for sale in shelf.sales]
    return {**vars(shelf), "sales": sales, "counts": list(shelf.counts.items()), "places": places}


def test_a_struct_is_written_as_an_instance_of_a_dataclass(shelves: Codec[Shelf]) -> None:
    # The codec wants an instance, and was given a dict.
    import pyarrow as pa

    full = Shelf("left", [SALE], {date(2026, 11, 21): 3}, 5)
    bare = Shelf(None, [], {})
    rows = [columns_of(full, places=5), None, columns_of(bare, places=None)]
    side = Side((shelves.name, 1), SHELF)
    encoded = side.encoded(
        pa.array(rows, parse_type(SHELF).arrow()), lambda place, error: pytest.fail(str(error))
    )
    assert [data.as_py() for data in encoded] == [shelves.encode(full), None, shelves.encode(bare)]


def test_a_struct_that_is_no_instance_is_told_by_the_path_of_its_field(
    shelves: Codec[Shelf],
) -> None:
    import pyarrow as pa

    lacking = {**columns_of(Shelf("a", [SALE], {}), places=1), "counts": None}
    null = columns_of(Shelf("b", [SALE], {}), places=1)
    null["sales"][0]["buyer"] = None
    told: list[str] = []
    encoded = Side((shelves.name, 1), SHELF).encoded(
        pa.array([lacking, null], parse_type(SHELF).arrow()),
        lambda _, error: told.append(str(error)),
    )
    assert encoded.null_count == 2
    for text, field in zip(told, ("'counts'", "'buyer'"), strict=True):
        assert f"the document has no field {field}, which has no default" in text
    assert "$.sales[0]" in told[1]


def test_types_given_to_spark_are_those_to_decode_into(mixed: Path) -> None:
    from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

    given = {"path": str(mixed), "namespace": "m", "decode": "true", "undecodable": "null"}
    source = TidelogSource(given)
    kind = MapType(StringType(), LongType())
    schema = StructType([StructField("value", kind), StructField("key", StringType())])
    reader: Any = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["key"], row["value"]) for row in found] == [
        ("a", [("n", 1)]), ("b", [("n", 2)]), ("c", None),
    ]  # fmt: skip
