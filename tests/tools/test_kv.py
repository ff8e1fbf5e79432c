"""``tidelog kv``: single keys, scans, import and export."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import tidelog
from support.loads import make_load
from tidelog import codecs
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.codecs.registry import Codec
from tidelog.tools.kv.patience import Patience
from tidelog.tools.shell.exits import Terminated

Run = Callable[..., Result]
Fingerprint = Callable[[Path], dict[str, tuple[str, int]]]


def lines_of(done: Result) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# ------------------------------------------------------------------ one key


def test_attach_makes_a_load_a_map(run: Run, shop: Path, tmp_path: Path) -> None:
    load = make_load(tmp_path / "load", {b"b": b"2", b"a": b"1"})
    done = run("kv", "attach", shop, load)
    assert (done.exit_code, done.stderr) == (0, "attached 'cities' with 2 rows\n")
    assert run("kv", "scan", shop, "cities").stdout == "a\t1\nb\t2\n"
    done = run("kv", "attach", shop, load, "--map", "towns", "--json")
    assert lines_of(done) == [{"v": 1, "type": "attached", "map": "towns", "rows": 2}]
    assert run("kv", "attach", shop, load).exit_code == 2
    assert run("kv", "attach", shop, tmp_path).exit_code == 4
    assert json.loads(run("db", "verify", shop, "--json").stdout)["maps"] == 5
    (record,) = [
        found
        for found in lines_of(run("wal", "dump", shop, "--jsonl", "--type", "ingest"))
        if found.get("namespace") == 20
    ]
    assert sum(part["count"] for part in record["runs"]) == 2


def test_put_get_and_delete(run: Run, shop: Path) -> None:
    assert run("kv", "put", shop, "stock", "plums", '{"n": 1}').exit_code == 0
    assert run("kv", "get", shop, "stock", "plums").stdout == '{"n": 1}\n'
    assert run("kv", "del", shop, "stock", "plums").exit_code == 0
    assert run("kv", "get", shop, "stock", "plums").exit_code == 4


def test_get_prints_exact_bytes_and_what_they_mean(run: Run, shop: Path) -> None:
    assert json.loads(run("kv", "get", shop, "orders", '["DE", -5]', "--json").stdout) == {
        "v": 1,
        "type": "pair",
        "map": "orders",
        "key": {"b64": "AkRFABP6"},
        "key_decoded": ["DE", -5],
        "value": {"b64": "cmF3AA=="},
        "value_decoded": {"b64": "cmF3AA=="},
    }
    assert run("kv", "get", shop, "orders", "b64:AkRFABP6").stdout == "hex:72617700\n"
    assert run("kv", "get", shop, "orders", '["DE", -5]', "--raw").stdout_bytes == b"raw\x00"


def test_put_takes_stored_bytes_from_standard_input(run: Run, shop: Path) -> None:
    done = run("kv", "put", shop, "numbers", "7", "-", input=b"se\xff")
    assert done.exit_code == 2
    assert "the value on standard input is refused" in done.stderr
    assert "damaged" not in done.stderr
    done = run("kv", "put", shop, "numbers", "7", "-", input=b"se\xc3\xbfen")
    assert done.exit_code == 0
    assert run("kv", "get", shop, "numbers", "7").stdout == "seÿen\n"


def test_put_tells_the_transaction_that_the_log_then_shows(run: Run, shop: Path) -> None:
    receipt = json.loads(run("kv", "put", shop, "numbers", "8", "x", "--tag", "t", "--json").stdout)
    (record, _end) = lines_of(run("wal", "dump", shop, "--tx", receipt["tx"], "--jsonl"))
    assert record["tag"] == "t"
    assert record["position"] < receipt["position"]
    assert record["time_us"] == receipt["time_us"]


def test_put_makes_a_store_and_a_map_only_when_told_to(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "new.tl"
    assert run("kv", "put", store, "m", "k", "1").exit_code == 4
    assert not store.exists()
    assert run("kv", "put", store, "m", "k", "no json", "--create").exit_code == 2
    assert not store.exists()
    done = run("kv", "put", store, "m", "k", "v", "--create", "--value-codec", "str",
               "--partitions", "2")  # fmt: skip
    assert done.exit_code == 0
    assert run("kv", "put", store, "other", "k", "1").exit_code == 4
    assert run("kv", "get", store, "m", "k").stdout == "v\n"
    assert json.loads(run("db", "info", store, "--json").stdout)["partitions"] == 2


def test_codecs_that_contradict_the_map_are_refused(run: Run, shop: Path) -> None:
    done = run("kv", "put", shop, "stock", "k", "1", "--key-codec", "i64")
    assert done.exit_code == 2
    assert "codec" in done.stderr


def test_a_delete_is_all_or_nothing(run: Run, shop: Path) -> None:
    done = run("kv", "del", shop, "stock", "pears", "nix")
    assert done.exit_code == 4
    assert "nothing was deleted" in done.stderr
    assert run("kv", "get", shop, "stock", "pears").exit_code == 0
    assert run("kv", "del", shop, "stock", "pears", "nix", "--ignore-missing").exit_code == 0
    assert run("kv", "get", shop, "stock", "pears").exit_code == 4


# ------------------------------------------------------------------ many keys


@pytest.fixture
def many(tmp_path: Path) -> Path:
    path = tmp_path / "many.tl"
    with tidelog.open(path, partitions=3) as db:
        words = db.map("words", key=codecs.Str, value=codecs.Str)
        words.update_many([(f"{letter}{n}", f"{n}") for letter in "abc" for n in range(3)])
        pairs = db.map("pairs", key=codecs.Tuple, value=codecs.Bytes)
        pairs.update_many([((x, y), b"") for x in range(3) for y in range(2)])
    return path


SCANS: list[tuple[list[str], list[str]]] = [
    ([], ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"]),
    (["--prefix", "b"], ["b0", "b1", "b2"]),
    (["--prefix", "hex:62"], ["b0", "b1", "b2"]),
    (["--key", "b1"], ["b1"]),
    (["--start", "b1", "--stop", "c1"], ["b1", "b2", "c0"]),
    (["--prefix", "b", "--start", "b1"], ["b1", "b2"]),
    (["--prefix", "b", "--reverse"], ["b2", "b1", "b0"]),
    (["--limit", "2"], ["a0", "a1"]),
    (["--limit", "0"], []),
]


@pytest.mark.parametrize(("options", "keys"), SCANS)
def test_what_a_scan_shows(options: list[str], keys: list[str], run: Run, many: Path) -> None:
    done = run("kv", "scan", many, "words", "--keys-only", *options)
    assert done.stdout.splitlines() == keys
    found = lines_of(run("kv", "scan", many, "words", "--jsonl", *options))
    assert [pair["key_decoded"] for pair in found] == keys


def test_a_scan_as_one_document(run: Run, many: Path) -> None:
    found = json.loads(run("kv", "scan", many, "words", "--limit", "1", "--json").stdout)
    assert found["v"] == 1
    assert [pair["value_decoded"] for pair in found["pairs"]] == ["0"]


def test_a_scan_of_one_partition(run: Run, many: Path) -> None:
    parts = [
        run("kv", "scan", many, "words", "--keys-only", "--partition", n).stdout.splitlines()
        for n in range(3)
    ]
    assert sorted(key for part in parts for key in part) == SCANS[0][1]
    assert run("kv", "scan", many, "words", "--partition", 3).exit_code == 2


def test_the_prefix_of_a_tuple_is_a_shorter_one(run: Run, many: Path) -> None:
    done = run("kv", "scan", many, "pairs", "--prefix", "[1]", "--keys-only")
    assert done.stdout.splitlines() == ["[1, 0]", "[1, 1]"]


def test_counts(run: Run, many: Path) -> None:
    assert run("kv", "count", many).stdout == "map\tkeys\npairs\t6\nwords\t9\n"
    assert run("kv", "count", many, "words", "--prefix", "a").stdout == "map\tkeys\nwords\t3\n"
    assert lines_of(run("kv", "count", many, "--jsonl"))[1]["keys"] == 9
    assert run("kv", "count", many, "nix").exit_code == 4


def test_reading_changes_nothing(run: Run, many: Path, unchanged: Fingerprint) -> None:
    before = unchanged(many)
    for command in (["scan", many, "words"], ["get", many, "words", "a0"], ["count", many],
                    ["export", many, "words"]):  # fmt: skip
        assert run("kv", *command).exit_code == 0
    assert unchanged(many) == before


def test_a_map_with_unknown_codecs_is_read_as_bytes(run: Run, tmp_path: Path) -> None:
    own: Codec[Any] = Codec(name="acme.x", version=3, encode=bytes, decode=bytes, ordered=True)
    with tidelog.open(tmp_path / "own.tl", codecs=[own]) as db:
        db.map("m", key=own, value=own)[b"k\xff"] = b"v"
    done = run("kv", "scan", tmp_path / "own.tl", "m", "--jsonl")
    (pair,) = lines_of(done)
    assert pair["key"] == {"b64": "a/8="}
    assert pair["value"] == {"s": "v"}
    assert "not known" in pair["key_problem"]
    assert run("kv", "scan", tmp_path / "own.tl", "m").stdout == "hex:6bff\thex:76\n"


# ------------------------------------------------------------------ import and export


@dataclasses.dataclass
class Box:
    size: Decimal
    made: datetime


BOX = codecs.dataclass(Box)
METADATA = "Metadata-Version: 2.1\nName: boxes\nVersion: 1.0\n"


@pytest.fixture
def boxes(tmp_path: Path) -> Path:
    """A store with keys and values of times, decimals and dataclasses."""
    path = tmp_path / "boxes.tl"
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    with tidelog.open(path, partitions=2) as db:
        db.map("boxes", key=codecs.Datetime, value=BOX)[moment] = Box(Decimal("1.50"), moment)
        db.map("prices", key=codecs.DecKey, value=codecs.Dec)[Decimal(10)] = Decimal("10.00")
        key = (Decimal("0.5"), moment.date(), moment, timedelta(1))
        db.map("tuples", key=codecs.Tuple, value=codecs.Timedelta)[key] = timedelta(seconds=-1.5)
    return path


def test_documents_of_a_class_are_read_without_it(run: Run, boxes: Path, tmp_path: Path) -> None:
    document = '{"size": "1.50", "made": "2026-01-01T00:00:00Z"}'
    assert run("kv", "get", boxes, "boxes", "2026-01-01T01:00:00+01:00").stdout == f"{document}\n"
    assert run("kv", "scan", boxes, "boxes").stdout == f"2026-01-01T00:00:00Z\t{document}\n"
    assert document in run("wal", "dump", boxes, "--map", "boxes").stdout
    assert run("db", "salvage", boxes, tmp_path / "saved.tl").exit_code == 0
    with tidelog.open(tmp_path / "saved.tl", codecs=[BOX]) as db:
        assert [box.size for box in db.map("boxes").values()] == [Decimal("1.50")]


def test_documents_of_a_class_are_not_written_without_it(
    run: Run, boxes: Path, tmp_path: Path
) -> None:
    exported = tmp_path / "boxes.jsonl"
    assert run("kv", "export", boxes, "boxes", "-o", exported).exit_code == 0
    for done in (
        run("kv", "put", boxes, "boxes", "2026-01-02T00:00:00Z", '{"size": 1}'),
        run("kv", "import", tmp_path / "new.tl", exported, "--map", "boxes", "--create"),
    ):
        assert done.exit_code == 2
        assert "codec dataclass.Box is that of a dataclass, which was not given" in done.stderr
        assert "register the codec in the entry-point group `tidelog.codecs`" in done.stderr
    assert not (tmp_path / "new.tl").exists()


def test_documents_of_a_class_are_written_if_it_is_registered(
    run: Run, boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "site" / "boxes-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(METADATA)
    entry = f"[tidelog.codecs]\ndataclass.Box = {__name__}:BOX\n"
    (metadata / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(metadata.parent)
    moment = "2026-01-02T00:00:00Z"
    good, bad = (f'{{"size": {size}, "made": "{moment}"}}' for size in ('"2.5"', "2.5"))
    refused = run("kv", "put", boxes, "boxes", moment, bad)
    assert (refused.exit_code, "$.size: is Decimal, not float (2.5)" in refused.stderr) == (2, True)
    assert run("kv", "put", boxes, "boxes", moment, good).exit_code == 0
    for form in ("jsonl", "csv"):
        exported, store = tmp_path / f"boxes.{form}", tmp_path / f"{form}.tl"
        assert run("kv", "export", boxes, "boxes", "--format", form, "-o", exported).exit_code == 0
        given = ("--key-codec", "datetime", "--value-codec", "dataclass.Box")
        options = ("--map", "boxes", "--create", *(given if form == "csv" else ()))
        assert run("kv", "import", store, exported, *options).exit_code == 0
        assert run("kv", "scan", store, "boxes").stdout == run("kv", "scan", boxes, "boxes").stdout


@pytest.mark.parametrize("name", ["prices", "tuples"])
def test_times_and_decimals_survive_an_export(
    name: str, run: Run, boxes: Path, tmp_path: Path
) -> None:
    pairs = run("kv", "scan", boxes, name, "--json").stdout
    for form in ("jsonl", "csv"):
        exported, store = tmp_path / f"{name}.{form}", tmp_path / f"{name}.{form}.tl"
        assert run("kv", "export", boxes, name, "--format", form, "-o", exported).exit_code == 0
        codec = {"prices": ("decimal-key", "decimal"), "tuples": ("tuple", "timedelta")}[name]
        given = ("--key-codec", codec[0], "--value-codec", codec[1]) if form == "csv" else ()
        done = run("kv", "import", store, exported, "--map", name, "--create", *given)
        assert done.exit_code == 0, done.output
        assert run("kv", "scan", store, name, "--json").stdout == pairs


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("name", ["stock", "orders", "numbers"])
def test_an_export_imports_into_the_same_map(
    kind: str, name: str, run: Run, shop: Path, tmp_path: Path
) -> None:
    file, copy = tmp_path / f"out.{kind}", tmp_path / "copy.tl"
    done = run("kv", "export", shop, name, "-o", file, "--format", kind)
    assert done.exit_code == 0
    with tidelog.open(shop, read_only=True) as db:
        before, key, value = db.map(name), *codecs_of(db.map(name))
        expected = dict(before.items())
    given = ["--key-codec", key, "--value-codec", value] if kind == "csv" else []
    loaded = run("kv", "import", copy, file, "--map", name, "--format", kind, "--create", *given)
    assert loaded.exit_code == 0, loaded.stderr
    with tidelog.open(copy) as db:
        assert codecs_of(db.map(name)) == (key, value)
        assert dict(db.map(name).items()) == expected


def codecs_of(mapping: Any) -> tuple[str, str]:
    namespace = namespace_of(mapping)
    return namespace.key_codec.name, namespace.value_codec.name


def test_an_export_never_replaces_a_file_unless_told_to(
    run: Run, shop: Path, tmp_path: Path
) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("mine")
    done = run("kv", "export", shop, "stock", "-o", file)
    assert done.exit_code == 7
    assert "--force" in done.stderr
    assert file.read_text() == "mine"
    assert run("kv", "export", shop, "stock", "-o", file, "--force").exit_code == 0
    assert json.loads(file.read_text().splitlines()[0])["type"] == "map"
    assert os.listdir(tmp_path) != ["out.jsonl.part"]


def test_an_export_that_fails_leaves_no_file(run: Run, shop: Path, tmp_path: Path) -> None:
    assert run("kv", "export", shop, "nix", "-o", tmp_path / "x").exit_code == 4
    assert run("kv", "export", shop, "stock", "-o", tmp_path).exit_code == 7
    assert run("kv", "export", shop, "stock", "-o", tmp_path, "--force").exit_code == 2
    assert sorted(os.listdir(tmp_path)) == ["shop.tl"]


def test_an_export_leaves_a_file_alone_that_it_did_not_make(
    run: Run, shop: Path, tmp_path: Path
) -> None:
    beside = tmp_path / "out.jsonl.part"
    beside.write_text("mine")
    done = run("kv", "export", shop, "stock", "-o", tmp_path / "out.jsonl")
    assert (done.exit_code, beside.read_text()) == (7, "mine")
    assert f"{beside} is there" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_an_export_goes_to_the_target_of_a_link(run: Run, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "out.jsonl", tmp_path / "link.jsonl"
    target.write_text("old")
    link.symlink_to(target)
    assert run("kv", "export", shop, "stock", "-o", link).exit_code == 7
    assert run("kv", "export", shop, "stock", "-o", link, "--force").exit_code == 0
    assert link.is_symlink()
    assert len(target.read_text().splitlines()) == 2
    assert os.listdir(tmp_path / "there") == ["out.jsonl"]


def test_an_export_replaces_nothing_but_files(run: Run, shop: Path, tmp_path: Path) -> None:
    # It replaced a named pipe, a device and files of the store.
    os.mkfifo(tmp_path / "pipe")
    done = run("kv", "export", shop, "stock", "-o", tmp_path / "pipe", "--force")
    assert done.exit_code == 2
    assert "Leave -o out" in done.stderr
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "inside").symlink_to(shop)
    for place in (shop / "new.jsonl", shop / "manifest", tmp_path / "inside" / "new.jsonl"):
        done = run("kv", "export", shop, "stock", "-o", place, "--force")
        assert (done.exit_code, "lies in the store" in done.stderr) == (2, True)
    assert run("db", "verify", shop).exit_code == 0


def test_an_export_to_a_dash_is_one_to_standard_output(
    run: Run, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = run("kv", "export", shop, "stock")
    done = run("kv", "export", shop, "stock", "-o", "-")
    assert (done.exit_code, done.stdout, done.stderr) == (0, plain.stdout, "")
    assert not (tmp_path / "-").exists()


IMPORTS: list[tuple[str, str, list[str], dict[Any, Any]]] = [
    ("key and value", '{"key": "a", "value": 1}\n\n{"key": "b", "value": null}', [],
     {"a": 1, "b": None}),
    ("whole record", '{"key": "a", "n": 1}', [], {"a": {"key": "a", "n": 1}}),
    ("key field", '{"id": "a", "n": 1}', ["--key-field", "id"], {"a": {"id": "a", "n": 1}}),
    ("value field", '{"id": "a", "n": 1}', ["--key", "id", "--value", "n"], {"a": 1}),
    ("tuple key", '{"c": "DE", "n": 1, "value": 2}',
     ["--key", "c", "--key", "n", "--key-codec", "tuple"], {("DE", 1): 2}),
    ("integer key", '{"key": 5, "value": 1}', ["--key-codec", "i64"], {5: 1}),
    ("integer as text", '{"key": "5", "value": 1}', ["--key-codec", "i64"], {5: 1}),
    ("bytes", '{"key": "a", "value": "hex:ff"}', ["--value-codec", "bytes"], {"a": b"\xff"}),
    ("csv", "key,value\na,1\nb,2", ["--format", "csv"], {"a": 1, "b": 2}),
    ("csv record", 'id,n,t\n1,2,"x, y"', ["--format", "csv", "--key", "id", "--key-codec", "u64"],
     {1: {"id": "1", "n": "2", "t": "x, y"}}),
    ("nothing", "", [], {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "options", "expected"), IMPORTS)
def test_what_an_import_makes_of_records(
    name: str, text: str, options: list[str], expected: dict[Any, Any], run: Run, tmp_path: Path
) -> None:
    store = tmp_path / "in.tl"
    done = run("kv", "import", store, "--map", "m", "--create", *options, "--json", input=text)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["loaded"] == len(expected)
    with tidelog.open(store) as db:
        assert dict(db.map("m").items()) == expected


BAD_LINES: list[tuple[str, str, list[str], str]] = [
    ("no JSON", '{"key": "a", "value": 1}\n{"key"', [], "line 2: not JSON"),
    ("no object", '{"key": "a", "value": 1}\n[1]', [], "line 2: a JSON object is needed"),
    ("no key", '{"key": "a", "value": 1}\n{"kye": "b"}', [], "line 2: there is no field 'key'"),
    (
        "wrong type",
        '{"key": "a", "value": 1}\n{"key": 5, "value": 1}',
        [],
        "line 2: map 'm': a key is str",
    ),
    (
        "CSV fields",
        "key,value\na,1\nb",
        ["--format", "csv"],
        "line 3: 1 fields; the head line has 2",
    ),
    ("CSV value", "key,value\na,1\nb,x", ["--format", "csv"], "line 3: 'x' is not a value"),
]


@pytest.mark.parametrize(("name", "text", "options", "told"), BAD_LINES)
def test_a_bad_line_stops_an_import_that_can_go_on(
    name: str, text: str, options: list[str], told: str, run: Run, tmp_path: Path
) -> None:
    store = tmp_path / "in.tl"
    done = run("kv", "import", store, "--map", "m", "--create", "--batch", "1", *options,
               input=text)  # fmt: skip
    assert done.exit_code == 2
    assert told in done.stderr
    assert "loaded 1 records; go on with --skip 1" in done.stderr
    with tidelog.open(store) as db:
        assert dict(db.map("m").items()) == {"a": 1}
    good = '{"key": "a", "value": 1}\n{"key": "b", "value": 2}'
    done = run("kv", "import", store, "--map", "m", "--skip", "1", input=good)
    assert done.exit_code == 0
    assert "loaded 1 records" in done.stderr
    with tidelog.open(store) as db:
        assert dict(db.map("m").items()) == {"a": 1, "b": 2}


def test_a_file_that_is_no_text(run: Run, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert run("kv", "import", shop, tmp_path / "binary", "--map", "m").exit_code == 2
    assert run("kv", "import", shop, tmp_path, "--map", "m").exit_code == 2
    assert run("kv", "import", shop, tmp_path / "nix", "--map", "m").exit_code == 4
    assert run("kv", "import", tmp_path / "nix.tl", "--map", "m", input="").exit_code == 4


# ------------------------------------------------------------------ bad input


BAD: list[tuple[int, list[str]]] = [
    (2, ["get", "{shop}", "stock"]),
    (2, ["get", "{shop}", "stock", "hex:6"]),
    (2, ["get", "{shop}", "numbers", "five"]),
    (2, ["get", "{shop}", "numbers", "99999999999999999999"]),
    (4, ["get", "{shop}", "nix", "a"]),
    (4, ["get", "{folder}/nix.tl", "stock", "a"]),
    (2, ["get", "{folder}/file", "stock", "a"]),
    (4, ["get", "{folder}/empty", "stock", "a"]),
    (2, ["put", "{shop}", "stock", "a", "no json"]),
    (2, ["put", "{shop}", "stock", "x" * 481, "1"]),
    (2, ["put", "{shop}", "stock", "a", "hex:c1"]),
    (4, ["put", "{shop}", "nix", "a", "1"]),
    (2, ["put", "{shop}", "nix", "a", "1", "--create", "--key-codec", "nix"]),
    (2, ["put", "{shop}", "stock", "a", "1", "--partitions", "0"]),
    (2, ["put", "{shop}", "stock", "a", "1", "--partitions", "5"]),
    (2, ["put", "{file}", "stock", "a", "1", "--create"]),
    (2, ["scan", "{shop}", "stock", "--limit", "-1"]),
    (2, ["scan", "{shop}", "stock", "--limit", "many"]),
    (2, ["scan", "{shop}", "stock", "--partition", "99999"]),
    (2, ["scan", "{shop}", "stock", "--key", "a", "--prefix", "b"]),
    (2, ["scan", "{shop}", "numbers", "--prefix", "5"]),
    (2, ["import", "{shop}", "--map", "m", "--format", "xml"]),
    (2, ["import", "{shop}", "--map", "m", "--batch", "0"]),
    (2, ["import", "{shop}", "--map", "\x00"]),
    (2, ["del", "{shop}", "stock"]),
]


@pytest.mark.parametrize(("code", "command"), BAD)
def test_bad_input_is_told_and_changes_nothing(
    code: int,
    command: list[str],
    run: Run,
    shop: Path,
    tmp_path: Path,
    unchanged: Fingerprint,
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    places = {"shop": shop, "folder": tmp_path, "file": tmp_path / "file"}
    arguments = [part.format(**places) if part.startswith("{") else part for part in command]
    before = contents(shop, run)
    done = run("kv", *arguments, input="")
    assert done.exit_code == code, done.stderr
    assert 1 <= len(done.stderr.splitlines()) <= 3
    assert done.stderr.startswith("error: ")
    assert done.stdout == ""
    assert contents(shop, run) == before
    assert sorted(os.listdir(tmp_path)) == ["empty", "file", "shop.tl"]


@pytest.mark.parametrize(
    "arguments", [("get", "", "stock", "a"), ("export", "shop.tl", "stock", "-o", "")]
)
def test_an_empty_path_is_refused(
    run: Run,
    shop: Path,
    unchanged: Fingerprint,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    # The export wrote a file `.part` and failed at the end.
    monkeypatch.chdir(shop.parent)
    before = unchanged(shop.parent)
    done = run("kv", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "An empty path names nothing" in done.stderr
    assert unchanged(shop.parent) == before


def contents(shop: Path, run: Run) -> list[str]:
    """All transactions and maps of a store, by its log."""
    done = run("wal", "dump", shop, "--type", "tx", "--type", "namespace", "--jsonl")
    return done.stdout.splitlines()[:-1]


def test_a_store_that_is_open_elsewhere_is_named_with_its_owner(run: Run, shop: Path) -> None:
    with tidelog.open(shop):
        (shop / "lock").write_text("4242\n")
        done = run("kv", "put", shop, "stock", "a", "1")
    assert done.exit_code == 7
    assert "process 4242" in done.stderr
    assert "commands that only read" in done.stderr


def test_ctrl_c_waits_for_the_end_of_a_batch() -> None:
    done: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Patience() as patience:  # noqa: PT012  # two steps
        with patience:
            signal.raise_signal(signal.SIGINT)
            done.append("batch")
        done.append("next batch")
    assert done == ["batch"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_between_two_batches_a_signal_ends_at_once(number: signal.Signals) -> None:
    done: list[str] = []
    before = signal.getsignal(number)
    with pytest.raises((KeyboardInterrupt, Terminated)), Patience() as patience:  # noqa: PT012
        with patience:
            done.append("batch")
        signal.raise_signal(number)
        done.append("next batch")
    assert done == ["batch"]
    assert signal.getsignal(number) is before


def test_a_second_sigterm_waits_for_nothing_and_a_second_ctrl_c_does() -> None:
    done: list[str] = []
    with pytest.raises(Terminated), Patience() as patience, patience:  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        done.append("batch")
    with pytest.raises(KeyboardInterrupt), Patience() as patience, patience:  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("batch")
    assert done == ["batch"] * 2


def test_signals_are_handled_from_the_first_batch_to_the_last() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Patience() as patience:
        handled = signal.getsignal(signal.SIGTERM)
        assert handled != before
        for _ in range(2):
            with patience:
                assert signal.getsignal(signal.SIGTERM) == handled
            assert signal.getsignal(signal.SIGTERM) == handled
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_batch_in_another_thread_leaves_the_signals_alone() -> None:
    found: list[object] = []

    def batch() -> None:
        with Patience() as patience, patience:
            found.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=batch)
    thread.start()
    thread.join()
    assert found == [before]
