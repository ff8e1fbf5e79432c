"""``tidelog kv import`` and ``export``: types of CSV columns, plain JSON lines, SQLite, Parquet."""

from __future__ import annotations

import errno
import io
import json
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result
from hypothesis import given, settings, strategies as st
from pyarrow import parquet as pq

import tidelog
from support.codec_values import KEYS, VALUES, encoded, namespace_with
from support.lived import live
from tidelog import codecs
from tidelog.affinity.errors import NotFoundError, UsageError
from tidelog.engine.api.maps import namespace_of
from tidelog.tools.kv.column_types import ColumnTypes
from tidelog.tools.kv.export import _head
from tidelog.tools.kv.parquet import ROWS_MAX, groups_of, parquet_records, write_parquet
from tidelog.tools.kv.record_pairs import ImportFields, Records, pairs_of_records
from tidelog.tools.kv.sqlite_tables import SqliteTable, _interruptible, sqlite_table

Run = Callable[..., Result]


def maps_of(path: Path) -> dict[str, dict[Any, Any]]:
    with tidelog.open(path, read_only=True) as db:
        return {name: dict(db.map(name).items()) for name in db.maps()}


# ------------------------------------------------------------------ forms


def test_an_ending_that_says_nothing_is_refused_with_those_that_do(run: Run, shop: Path) -> None:
    for command in (
        ["import", shop, "a.xlsx", "--map", "m"],
        ["export", shop, "stock", "-o", "a.x"],
    ):
        done = run("kv", *command)
        assert done.exit_code == 2
        assert "does not say what form the file has" in done.stderr
        assert ".jsonl, .ndjson, .json, .csv, .tsv, .parquet; or give --format" in done.stderr


def test_tabs_there_and_back(run: Run, shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "stock.tsv"
    assert run("kv", "export", shop, "stock", "-o", file).exit_code == 0
    assert file.read_text().startswith("key\tvalue\n")
    assert run("kv", "import", shop, file, "--map", "again").exit_code == 0
    found = maps_of(shop)
    assert found["again"] == found["stock"]


def test_tabs_count_whatever_the_head_line_has(run: Run, shop: Path) -> None:
    text = "key\ta,b\nk\tx\n"
    done = run("kv", "import", shop, "--map", "m", "--format", "tsv", input=text)
    assert done.exit_code == 0
    assert maps_of(shop)["m"] == {"k": {"key": "k", "a,b": "x"}}


# ------------------------------------------------------------------ types of columns

PRICES = "id,name,price,sold,seen\n7,Ulm,13.5,true,\n9,Hof,2e3,No,4\n"


def test_columns_get_the_types_that_are_given(run: Run, shop: Path) -> None:
    types = ("id=int", "price=float", "sold=bool", "seen=int?")
    options = ["--key-field", "id", "--key-codec", "i64", *(f"--type={one}" for one in types)]
    done = run("kv", "import", shop, "--map", "m", "--format", "csv", *options, input=PRICES)
    assert done.exit_code == 0, done.stderr
    assert maps_of(shop)["m"] == {
        7: {"id": 7, "name": "Ulm", "price": 13.5, "sold": True, "seen": None},
        9: {"id": 9, "name": "Hof", "price": 2000.0, "sold": False, "seen": 4},
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("int", " -07 ", -7), ("float", "1e3", 1000.0), ("bool", "YES", True), ("str", " a ", " a "),
     ("decimal", "1.50", "Decimal('1.50')"), ("json", '{"a": [1]}', {"a": [1]}),
     ("uuid", "12345678123456781234567812345678", "UUID('12345678-1234-5678-1234-567812345678')"),
     ("datetime", "2026-11-23T16:00:00Z",
      "datetime.datetime(2026, 11, 23, 16, 0, tzinfo=datetime.timezone.utc)")],
)  # fmt: skip
def test_what_a_field_of_a_type_stands_for(name: str, text: str, value: Any) -> None:
    record: dict[str, Any] = {"x=y": text}
    ColumnTypes([f"x=y={name}"]).convert(record, 1)
    found = record["x=y"]
    assert found == value or repr(found) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [("int", "1_000"), ("int", "1.0"), ("int", ""), ("float", "1_0"), ("float", "1,5"),
     ("bool", "maybe"), ("decimal", "NaN"), ("decimal", "1e"), ("decimal", "."), ("uuid", "x"),
     ("float", "١٢"), ("uuid", "1234_678-1234-5678-1234-567812345678"), ("uuid", "+" + "1" * 31),
     ("uuid", "{12345678-1234-5678-1234-567812345678}"), ("uuid", "1-" + "1" * 31),
     ("decimal", "1e99999999999999999999"),
     ("datetime", "today"), ("json", "{"), ("json", "NaN"), ("json", '{"a": 1, "a": 2}'),
     ("json", "[" * 100_000), ("int", "9" * 10_000)],
)  # fmt: skip
def test_a_field_that_is_not_of_its_type(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=rf"^line 3, column 'price': .* is not an? {name}(?m:$)"):
        ColumnTypes([f"price={name}"]).convert({"price": text}, 3)


def test_a_field_of_another_type_stops_an_import_that_tells_what_is_loaded(
    run: Run, shop: Path
) -> None:
    text = "key,value\na,1\nb,x\nc,3\n"
    done = run(
        "kv", "import", shop, "--map", "m", "--format", "csv", "--type", "value=int", "--batch", 1,
        input=text,
    )  # fmt: skip
    assert done.exit_code == 2
    assert "loaded 1 records; go on with --skip 1" in done.stderr
    assert "error: line 3, column 'value': 'x' is not an int" in done.stderr
    assert maps_of(shop)["m"] == {"a": 1}


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (["--type", "id=int"], "or give --key-codec i64 for a new map."),
        (["--type", "id=uuid"], "or give --key-codec uuid for a new map."),
        (["--value-field", "id", "--type", "id=decimal"], "or give --key-codec decimal-key for"),
        (["--key-field", "name", "--value-field", "id", "--type", "id=decimal"],
         "or give --value-codec decimal for a new map."),
        (["--key-field", "name", "--type", "id=uuid"],
         "give the column 'id' as str or float, or make it a value of its own"),
        (["--key-field", "name", "--type", "id=json", "--value-codec", "str"],
         "or give other codecs than str and str for a new map"),
    ],
)  # fmt: skip
def test_a_hint_names_the_codec_that_takes_what_is_there(
    run: Run, shop: Path, given: list[str], hint: str
) -> None:
    key = [] if "--key-field" in given else ["--key-field", "id"]
    text = "id,name\n12345678123456781234567812345678,ada\n"
    done = run("kv", "import", shop, "--map", "m", "--format", "csv", *key, *given, input=text)
    assert done.exit_code == 2
    assert hint in " ".join(done.stderr.split())


def test_an_empty_field_says_how_to_load_it_as_null(run: Run, shop: Path) -> None:
    text = "key,value\na,\n"
    arguments = ["kv", "import", shop, "--map", "m", "--format", "csv", "--type"]
    assert "--type value=int?" in run(*arguments, "value=int", input=text).stderr
    assert run(*arguments, "value=int?", input=text).exit_code == 0
    assert maps_of(shop)["m"] == {"a": None}


@pytest.mark.parametrize(
    ("given", "told"),
    [("price", "does not name a column and its type"), ("=int", "does not name a column"),
     ("price=money", "str, int, float, bool, decimal, datetime, uuid, json"),
     ("prize=int", "--type names the column 'prize'; the head line has key, price")],
)  # fmt: skip
def test_a_type_that_cannot_be_right(given: str, told: str, run: Run, shop: Path) -> None:
    arguments = ["kv", "import", shop, "--map", "m", "--format", "csv", "--type", given]
    done = run(*arguments, input="key,price\na,1\n")
    assert done.exit_code == 2
    assert told in done.stderr
    assert "m" not in maps_of(shop)


def test_types_are_for_csv_and_once_for_a_column(run: Run, shop: Path) -> None:
    arguments = ["kv", "import", shop, "--map", "m", "--type", "price=int"]
    assert "--type is for the columns of CSV" in run(*arguments, input="").stderr
    twice = run(*arguments, "--type", "price=str", "--format", "csv", input="")
    assert "names the column 'price' twice" in twice.stderr


def test_several_value_fields_make_a_record(run: Run, shop: Path) -> None:
    options = ["--map", "m", "--value", "a", "--value", "c"]
    text = '{"key": "k", "a": 1, "b": 2, "c": 3}'
    assert run("kv", "import", shop, *options, input=text).exit_code == 0
    assert maps_of(shop)["m"] == {"k": {"a": 1, "c": 3}}
    missing = run("kv", "import", shop, *options, input='{"key": "k", "a": 1}')
    assert "there is no field 'c'; the record has key, a" in missing.stderr


def test_a_column_that_is_text_by_its_type_is_not_read_as_json(run: Run, shop: Path) -> None:
    for name, options in (("typed", ["--type", "value=str"]), ("plain", [])):
        command = ["kv", "import", shop, "--map", name, "--format", "csv", *options]
        assert run(*command, input="key,value\na,5\n").exit_code == 0
    found = maps_of(shop)
    assert (found["typed"], found["plain"]) == ({"a": "5"}, {"a": 5})


# ------------------------------------------------------------------ plain JSON lines


def test_plain_lines_are_what_the_codecs_make_of_each_pair(run: Run, shop: Path) -> None:
    run("kv", "put", shop, "stock", "plums", '{"kg": 2.5}')
    done = run("kv", "export", shop, "stock", "--plain")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[1] == {"key": "plums", "value": {"kg": 2.5}}
    # JSON has no bytes: this one is exact instead.
    assert (lines[0]["type"], lines[0]["value"].keys()) == ("pair", {"b64"})
    assert run("kv", "import", shop, "--map", "again", input=done.stdout).exit_code == 0
    found = maps_of(shop)
    assert found["again"] == found["stock"]


def test_plain_is_for_json_lines(run: Run, shop: Path) -> None:
    done = run("kv", "export", shop, "stock", "--plain", "--format", "csv")
    assert (done.exit_code, "--plain is for JSON lines" in done.stderr) == (2, True)


def test_what_looks_like_an_exact_pair_is_still_itself(run: Run, shop: Path) -> None:
    tricky = {"v": 1, "type": "pair", "key": {"s": "x"}, "value": {"b64": "AA=="}}
    with tidelog.open(shop) as db:
        db.map("m", key=codecs.Str, value=codecs.Json)["k"] = tricky
    text = run("kv", "export", shop, "m", "--plain").stdout
    assert json.loads(text) == {"key": "k", "value": tricky}
    run("kv", "import", shop, "--map", "again", "--value-codec", "json", input=text)
    assert maps_of(shop)["again"] == {"k": tricky}


# ------------------------------------------------------------------ SQLite


@pytest.fixture
def towns(tmp_path: Path) -> Path:
    """An SQLite file with a table of every type, one with two keys, and a view."""
    file = tmp_path / "to wns?.db"
    with closing(sqlite3.connect(file)) as found:
        found.executescript(
            "CREATE TABLE town (id INTEGER PRIMARY KEY, name TEXT, area REAL, flag BLOB, note);"
            "INSERT INTO town VALUES (7, 'Ulm', 118.7, x'ff00', NULL), (9, 'hex:61', 2.0, x'', 5);"
            "CREATE TABLE road (a TEXT, b INTEGER, km, PRIMARY KEY (a, b));"
            "INSERT INTO road VALUES ('x', 1, 2), ('x', 2, 3);"
            'CREATE TABLE "o""dd" (k, v); CREATE VIEW seen AS SELECT name, id FROM town;'
        )
    return file


def test_the_rows_of_a_table_keep_their_types(
    towns: Path, run: Run, shop: Path, unchanged: Callable[[Path], Any]
) -> None:
    before = unchanged(towns.parent)
    done = run("kv", "import", shop, "--map", "m", "--sqlite", towns, "--table", "town",
               "--key-codec", "i64", "--json")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["loaded"] == 2
    assert maps_of(shop)["m"] == {
        7: {"id": 7, "name": "Ulm", "area": 118.7, "flag": b"\xff\x00", "note": None},
        9: {"id": 9, "name": "hex:61", "area": 2.0, "flag": b"", "note": 5},
    }
    after = unchanged(towns.parent)
    assert after[towns.name] == before[towns.name]


def test_key_and_value_columns_of_a_table(towns: Path, run: Run, shop: Path) -> None:
    where = ["kv", "import", shop, "--sqlite", towns, "--table"]
    assert run(*where, "road", "--map", "r", "--key-codec", "tuple", "--value", "km").exit_code == 0
    assert run(*where, "seen", "--map", "s", "--key", "name", "--value", "id").exit_code == 0
    assert run(*where, 'o"dd', "--map", "o", "--key", "k").exit_code == 0
    found = maps_of(shop)
    assert found["r"] == {("x", 1): 2, ("x", 2): 3}
    assert found["s"] == {"Ulm": 7, "hex:61": 9}
    assert found["o"] == {}


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--table", "twon"], 4, "has no table 'twon'"),
        (["--table", "seen"], 2, "the table 'seen' has no primary key"),
        (["--table", "town"], 2, "row 1: "),
        ([], 2, "--sqlite and --table need each other"),
        (["--table", "town", "--format", "csv"], 2, "--sqlite excludes FILE, --format and --type"),
    ],
)
def test_tables_that_cannot_be_loaded(
    options: list[str], code: int, told: str, towns: Path, run: Run, shop: Path
) -> None:
    done = run("kv", "import", shop, "--map", "m", "--sqlite", towns, *options)
    assert (done.exit_code, told in done.stderr) == (code, True), done.stderr
    assert "m" not in maps_of(shop)


@pytest.mark.parametrize(
    ("tables", "told"),
    [([], "none"), (["b", "a"], "a, b"), (list("ihgfedcba"), "a, b, c, d, e, f, g, h and 1 more")],
)
def test_a_table_that_is_not_there_is_told_with_some_that_are(
    tables: list[str], told: str, tmp_path: Path
) -> None:
    file = tmp_path / "some.db"
    with closing(sqlite3.connect(file)) as found:
        for name in tables:
            found.execute(f"CREATE TABLE {name} (k)")
    with (
        pytest.raises(NotFoundError, match="has no table 'z'") as caught,
        sqlite_table(str(file), "z"),
    ):
        pass
    assert caught.value.hint == f"The file has these tables: {told}."


def test_a_file_that_is_not_sqlite(run: Run, shop: Path, tmp_path: Path) -> None:
    arguments = ["kv", "import", shop, "--map", "m", "--table", "t", "--sqlite"]
    done = run(*arguments, shop / "manifest")
    assert (done.exit_code, "file is not a database" in done.stderr) == (2, True), done.stderr
    assert run(*arguments, tmp_path / "nothing.db").exit_code == 4
    assert not (tmp_path / "nothing.db").exists()


@pytest.mark.parametrize("good", [0, 1])
def test_a_row_that_cannot_be_read_is_named(
    good: int, run: Run, shop: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bad.db"
    with closing(sqlite3.connect(file)) as found:
        found.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)")
        found.executemany("INSERT INTO t VALUES (?, 'x')", [(n,) for n in range(good)])
        found.execute("INSERT INTO t VALUES (9, CAST(x'ff' AS TEXT))")
        found.commit()
    options = ["--table", "t", "--key-codec", "i64", "--batch", 1]
    done = run("kv", "import", shop, "--map", "m", "--sqlite", file, *options)
    assert done.exit_code == 2
    assert f"row {good + 1}: Could not decode to UTF-8" in done.stderr
    assert ("loaded 1 records" in done.stderr) == (good == 1)


def test_all_rows_of_a_table_are_of_one_moment(tmp_path: Path) -> None:
    file = tmp_path / "busy.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE t (k); INSERT INTO t VALUES (1)"
        )
        with sqlite_table(str(file), "t") as table:
            other.execute("INSERT INTO t VALUES (2)")
            assert (table.rows, list(table.records())) == (1, [(1, {"k": 1})])
        with sqlite_table(str(file), "t") as table:
            assert table.rows == 2


def test_columns_of_a_view_that_have_one_name_are_told_apart(tmp_path: Path) -> None:
    # SQLite itself gives them names of their own.
    file = tmp_path / "view.db"
    with closing(sqlite3.connect(file)) as found:
        found.executescript("CREATE VIEW v AS SELECT 1 AS k, 2 AS k, 3 AS K")
    with sqlite_table(str(file), "v") as table:
        ((_, record),) = table.records()
        assert list(record.values()) == [1, 2, 3]


def test_a_view_of_nothing_is_told_as_sqlite_tells_it(run: Run, shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "view.db"
    with closing(sqlite3.connect(file)) as found:
        found.executescript("CREATE TABLE t (k); CREATE VIEW v AS SELECT * FROM t; DROP TABLE t")
    done = run("kv", "import", shop, "--map", "m", "--sqlite", file, "--table", "v", "--key", "k")
    assert (done.exit_code, "no such table: main.t" in done.stderr) == (2, True), done.stderr


def test_ctrl_c_ends_a_query_that_gives_no_row() -> None:
    """It did not: Python looked for signals behind the query only, and so did SIGTERM's handler."""
    gate = threading.Lock()
    endless = "WITH RECURSIVE c (x) AS (SELECT begun() UNION ALL SELECT 1 FROM c) SELECT x FROM c"
    with closing(sqlite3.connect(":memory:")) as found:
        found.create_function("begun", 0, gate.release)
        found.execute("CREATE TABLE t (k)")
        found.execute(f"CREATE VIEW rows AS {endless}")
        found.execute("CREATE VIEW row AS SELECT (SELECT count(*) FROM rows) AS k FROM t")
        found.execute("CREATE VIEW later AS SELECT 1 UNION ALL SELECT k FROM row")
        table, later = SqliteTable(found, "row"), SqliteTable(found, "later")
        found.execute("INSERT INTO t VALUES (1)")
        for query in (
            lambda: SqliteTable(found, "rows"),
            lambda: list(table.records()),
            lambda: list(later.records()),
        ):
            gate.acquire()
            threading.Thread(
                target=signal_behind, args=(gate, threading.get_ident()), daemon=True
            ).start()
            with pytest.raises(KeyboardInterrupt), _interruptible(found):
                query()


def signal_behind(gate: threading.Lock, thread: int) -> None:
    with gate:
        signal.pthread_kill(thread, signal.SIGINT)


# ------------------------------------------------------------------ Parquet


@pytest.mark.slow
@pytest.mark.parametrize("value", sorted(VALUES))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_parquet_there_and_back_has_every_byte(value: str, data: st.DataObject) -> None:
    key_codec, keys = KEYS[data.draw(st.sampled_from(sorted(KEYS)))]
    value_codec, values = VALUES[value]
    made = data.draw(st.dictionaries(keys, values, max_size=4))
    pairs = {encoded(key_codec, one): encoded(value_codec, other) for one, other in made.items()}
    expected = {one: other for one, other in pairs.items() if one is not None and other is not None}
    namespace = namespace_with(key_codec, value_codec)
    file = io.BytesIO()
    write_parquet(file, namespace, _head(namespace), expected.items(), lambda _: None)
    found = parquet_records(io.BytesIO(file.getvalue()), "file")
    records = Records(numbered=found.records(), form="typed", is_text=found.texts.__contains__)
    back = list(pairs_of_records(records, namespace, ImportFields(key=("key",))))
    assert {namespace.encode_key(k): namespace.encode_value(v) for (k, v), _ in back} == expected


def test_parquet_of_ours_names_the_codecs(run: Run, shop: Path, tmp_path: Path) -> None:
    for name in ("stock", "orders", "numbers"):
        file = tmp_path / f"{name}.parquet"
        assert run("kv", "export", shop, name, "-o", file).exit_code == 0
        done = run("kv", "import", tmp_path / "new.tl", file, "--map", name, "--create")
        assert done.exit_code == 0, done.stderr
    assert maps_of(tmp_path / "new.tl") == maps_of(shop)
    table = pq.read_table(tmp_path / "numbers.parquet")
    assert table.schema.types == [pa.int64(), pa.string()]
    assert table.to_pylist() == [{"key": 5, "value": "five"}]


def test_parquet_of_others_keeps_its_types(run: Run, shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "towns.parquet"
    pq.write_table(pa.table({"id": [7, 9], "name": ["Ulm", "hex:61"], "tags": [["a"], None]}), file)
    options = ["--map", "m", "--key", "id", "--key-codec", "i64"]
    assert run("kv", "import", shop, file, *options).exit_code == 0
    assert maps_of(shop)["m"] == {
        7: {"id": 7, "name": "Ulm", "tags": ["a"]},
        9: {"id": 9, "name": "hex:61", "tags": None},
    }
    skipped = run("kv", "import", shop, file, "--map", "n", "--key", "name", "--skip", 1)
    assert (skipped.exit_code, list(maps_of(shop)["n"])) == (0, ["hex:61"])


def test_lists_are_tuples_in_keys_of_tuples(run: Run, shop: Path, tmp_path: Path) -> None:
    # In a key of several columns of Parquet they were refused.
    records = [{"a": "x", "b": [1, 2], "n": 3}, {"a": "y", "b": [], "n": 4}]
    parquet_file, json_file = tmp_path / "rows.parquet", tmp_path / "rows.jsonl"
    pq.write_table(pa.Table.from_pylist(records), parquet_file)
    json_file.write_text("\n".join(map(json.dumps, records)))
    for file in (parquet_file, json_file):
        options = ["--map", file.name, "--value", "n", "--key-codec", "tuple"]
        assert run("kv", "import", shop, file, "--key", "a", "--key", "b", *options).exit_code == 0
        options[1] += " b"
        assert run("kv", "import", shop, file, "--key", "b", *options).exit_code == 0
        found = maps_of(shop)
        assert found[file.name] == {("x", (1, 2)): 3, ("y", ()): 4}
        assert found[f"{file.name} b"] == {(1, 2): 3, (): 4}


def test_groups_of_rows_end_by_their_number_or_their_bytes() -> None:
    pairs = [(b"k", b"v" * size) for size in (8, 1, 9, 8, 1, 1, 1, 1, 1)]
    found = list(groups_of(pairs, rows_max=3, bytes_max=10))
    assert list(map(len, found)) == [2, 1, 2, 3, 1]
    assert [pair for group in found for pair in group] == pairs


def test_an_export_in_parquet_tells_how_far_it_is() -> None:
    namespace = namespace_with(codecs.Str, codecs.Bytes)
    pairs = [(b"%05d" % number, b"v") for number in range(ROWS_MAX + 2)]
    file, told = io.BytesIO(), list[int]()
    assert write_parquet(file, namespace, _head(namespace), pairs, told.append) == len(pairs)
    assert told == [ROWS_MAX, 2]
    written = pq.ParquetFile(file)
    assert not any(field.nullable for field in written.schema_arrow)
    groups = range(written.num_row_groups)
    assert [written.metadata.row_group(group).num_rows for group in groups] == told
    found = parquet_records(file, "file").records()
    assert list(found) == [
        (number, {"key": key.decode(), "value": value})
        for number, (key, value) in enumerate(pairs, 1)
    ]


def test_a_disk_that_cannot_be_read_is_not_called_a_bad_file(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, _size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "input/output error")

    file = tmp_path / "towns.parquet"
    pq.write_table(pa.table({"key": ["a"], "value": [1]}), file)
    with pytest.raises(OSError, match="input/output error") as caught:
        parquet_records(Broken(file.read_bytes()), "towns.parquet")
    assert caught.value.errno == errno.EIO


def test_a_row_that_cannot_be_loaded_is_named_in_parquet(
    run: Run, shop: Path, tmp_path: Path
) -> None:
    file = tmp_path / "towns.parquet"
    pq.write_table(pa.table({"key": ["a", "b", "x" * 481], "value": [1, 2, 3]}), file)
    done = run("kv", "import", shop, file, "--map", "m")
    assert (done.exit_code, "row 3: a key of 481 bytes" in done.stderr) == (2, True), done.stderr


def test_parquet_needs_a_file(run: Run, shop: Path) -> None:
    assert "Name a file with -o" in run("kv", "export", shop, "stock", "--format", "parquet").stderr
    done = run("kv", "import", shop, shop / "manifest", "--map", "m", "--format", "parquet")
    assert (done.exit_code, "is not Parquet" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    "column",
    [pa.array([1 << 30], pa.date32()), pa.array([1 << 62], pa.timestamp("us", "UTC")),
     pa.array([1 << 62], pa.duration("ms"))],
)  # fmt: skip
def test_times_that_python_does_not_have_are_refused(
    column: pa.Array, run: Run, shop: Path, tmp_path: Path
) -> None:
    """They ended the command as a bug of its own would."""
    file = tmp_path / "late.parquet"
    pq.write_table(pa.table({"key": ["a"], "value": column}), file)
    done = run("kv", "import", shop, file, "--map", "m")
    assert (done.exit_code, "late.parquet, behind row 0," in done.stderr) == (2, True), done.stderr


def test_what_others_say_in_parquet_is_no_head(run: Run, shop: Path, tmp_path: Path) -> None:
    """JSON that is nested too deep for Python ended the command as a bug of its own would."""
    for number, told in enumerate((b"[" * 100_000, b"\xff", b"[1]")):
        schema = pa.schema([("key", "string"), ("value", "string")], metadata={b"tidelog": told})
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"key": ["a"], "value": ["b"]}, schema=schema), file)
        assert run("kv", "import", shop, file, "--map", f"m{number}").exit_code == 0
        assert maps_of(shop)[f"m{number}"] == {"a": "b"}


def test_parquet_with_a_column_twice_is_refused(run: Run, shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "twice.parquet"
    pq.write_table(pa.table({"key": ["a"], "b": [1]}).rename_columns(["key", "key"]), file)
    done = run("kv", "import", shop, file, "--map", "m")
    assert (done.exit_code, "names the column 'key' twice" in done.stderr) == (2, True)


# ------------------------------------------------------------------ lived stores


@pytest.mark.slow
def test_every_form_brings_a_lived_store_back(tmp_path: Path, run: Run) -> None:
    made = live(tmp_path / "lived.tl", 5, crash_at_end=True)
    assert run("db", "backup", made.path, tmp_path / "recovered.tl").exit_code == 0
    source, target = tmp_path / "recovered.tl", tmp_path / "new.tl"
    expected = maps_of(source)
    for ending in ("jsonl", "csv", "tsv", "parquet", "plain"):
        for name, pairs in expected.items():
            if not pairs:
                continue
            file = tmp_path / f"map.{ending.replace('plain', 'json')}"
            plain = ["--plain"] if ending == "plain" else []
            assert run("kv", "export", source, name, "-o", file, "--force", *plain).exit_code == 0
            with tidelog.open(source, read_only=True) as db:
                namespace = namespace_of(db.map(name))
            done = run(
                "kv", "import", target, file, "--map", f"{name} {ending}", "--create",
                "--key-codec", namespace.key_codec.name, "--value-codec",
                namespace.value_codec.name,
            )  # fmt: skip
            assert done.exit_code == 0, done.stderr
    found = maps_of(target)
    for ending in ("jsonl", "csv", "tsv", "parquet", "plain"):
        for name, pairs in expected.items():
            assert not pairs or found[f"{name} {ending}"] == pairs
