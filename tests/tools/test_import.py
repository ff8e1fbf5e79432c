"""``tidelog kv import`` and ``export``: forms of files, errors by line, and what failures leave."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from click.testing import Result
from hypothesis import given, settings, strategies as st

import tidelog
from support.codec_values import KEYS, VALUES, encoded, namespace_with
from tidelog import codecs
from tidelog.affinity.errors import DiskError, UsageError
from tidelog.engine.api.database import Database
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.codecs import registry as engine_codecs
from tidelog.engine.codecs.registry import Codec
from tidelog.tools.kv.column_types import ColumnTypes
from tidelog.tools.kv.export import _WRITERS
from tidelog.tools.kv.importing import batches_of
from tidelog.tools.kv.record_files import LINE_BYTES_MAX, format_of, numbered_records
from tidelog.tools.kv.record_pairs import ImportFields, Records, pairs_of_records, split_head
from tidelog.tools.kv.sources import file_source, progress_of

Run = Callable[..., Result]


def records(
    data: bytes, kind: str = "jsonl", most: int = LINE_BYTES_MAX
) -> list[tuple[int, dict[str, Any]]]:
    return list(numbered_records(io.BytesIO(data), kind, most))


def refusal(data: bytes, kind: str = "jsonl", most: int = LINE_BYTES_MAX) -> UsageError:
    with pytest.raises(UsageError) as caught:
        records(data, kind, most)
    return caught.value


def maps_of(path: Path) -> list[str]:
    with tidelog.open(path, read_only=True) as db:
        return db.maps()


# ------------------------------------------------------------------ nothing is made by a failure


FAILURES: list[tuple[str, list[str], str]] = [
    ("a key that is no text", ["--key-field", "id"], '{"id": 1, "n": "x"}'),
    ("a key that is too long", [], json.dumps({"key": "x" * 481, "value": 1})),
    ("no such field", [], '{"id": 1}'),
    ("no JSON", [], "{"),
    ("a bad second record", [], '{"key": "a", "value": 1}\n{"key": 5, "value": 1}'),
    ("a value of another codec", ["--value-codec", "i64"], '{"key": "a", "value": "x"}'),
    ("no name for a map", ["--map", "a\nb"], '{"key": "a", "value": 1}'),
]


@pytest.mark.parametrize(("name", "options", "text"), FAILURES)
def test_an_import_that_fails_at_once_makes_no_map(
    name: str, options: list[str], text: str, shop: Path, run: Run
) -> None:
    # The map was there afterwards, with codecs that nobody could change.
    before = maps_of(shop)
    assert run("kv", "import", shop, "--map", "m", *options, input=text).exit_code == 2
    assert maps_of(shop) == before


@pytest.mark.parametrize(("name", "options", "text"), FAILURES)
def test_an_import_that_fails_at_once_makes_no_store(
    name: str, options: list[str], text: str, tmp_path: Path, run: Run
) -> None:
    store = tmp_path / "new.tl"
    done = run("kv", "import", store, "--map", "m", "--create", *options, input=text)
    assert done.exit_code == 2
    assert os.listdir(tmp_path) == []


def test_the_right_codecs_can_be_given_after_a_failure(shop: Path, run: Run) -> None:
    command = ["kv", "import", shop, "--map", "towns", "--key-field", "id"]
    failed = run(*command, input='{"id": 1}')
    assert "--key-codec" in failed.stderr
    assert run(*command, "--key-codec", "i64", input='{"id": 1}').exit_code == 0
    assert run("kv", "get", shop, "towns", "1").stdout == '{"id": 1}\n'


def test_a_batch_ends_at_a_number_of_records_or_of_bytes() -> None:
    pairs = [((n, n), size) for n, size in enumerate([1, 2, 3, 9, 1, 20, 1])]
    for batch, bytes_max, lengths in (
        (3, 100, [3, 3, 1]), (100, 9, [4, 2, 1]), (2, 9, [2, 2, 2, 1]), (7, 100, [7]),
        (1, 9, [1] * 7),
    ):  # fmt: skip
        found = list(batches_of(iter(pairs), batch, bytes_max))
        assert [len(part) for part in found] == lengths
        assert [pair for part in found for pair in part] == [pair for pair, _ in pairs]
    assert list(batches_of(iter(()), 3)) == []


def test_the_bytes_of_a_record_are_those_that_are_stored() -> None:
    namespace = namespace_with(engine_codecs.Str, engine_codecs.Msgpack)
    wanted = Records(numbered=iter([(1, {"key": "Zoë", "value": "x" * 1000})]), form="typed")
    found = list(pairs_of_records(wanted, namespace, ImportFields(key=("key",))))
    assert found == [(("Zoë", "x" * 1000), 4 + 1003)]


@pytest.mark.slow
def test_records_that_are_large_together_are_loaded(tmp_path: Path, run: Run) -> None:
    # They were held in memory, refused as one transaction, and left an empty store behind.
    lines = [json.dumps({"key": str(n), "value": "x" * (25 << 20)}) for n in range(3)]
    new = tmp_path / "new.tl"
    done = run("kv", "import", new, "--map", "m", "--create", input="\n".join(lines))
    assert done.exit_code == 0, done.stderr
    with tidelog.open(new) as db:
        assert list(db.map("m")) == ["0", "1", "2"]


def test_an_error_about_a_record_of_many_fields_names_some(shop: Path, run: Run) -> None:
    # It was as long as all of their names.
    text = ",".join(f"c{number}" for number in range(5000)) + "\n" + "1," * 4999 + "1\n"
    for options in ([], ["--type", "x=int"]):
        done = run("kv", "import", shop, "--map", "m", "--format", "csv", *options, input=text)
        assert done.exit_code == 2
        assert "c0, c1, c2, c3, c4, c5, c6, c7 and 4,992 more" in done.stderr
        assert len(done.stderr) < 500


PUTS: list[tuple[str, list[str]]] = [
    ("a value that is no JSON", ["b", "k", "hello"]),
    ("a key that is too long", ["b", "x" * 481, "1"]),
    ("a key of another codec", ["b", "x", "1", "--key-codec", "i64"]),
    ("bytes that do not decode", ["b", "k", "-"]),
    ("bytes that do not decode, as text", ["b", "k", "hex:c1"]),
]


def test_an_import_that_cannot_be_synced_says_so(
    shop: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_db: Database) -> NoReturn:
        raise DiskError("no sync")

    monkeypatch.setattr(Database, "sync", broken)
    lines = "".join(f'{{"key": "{n}", "value": 1}}\n' for n in range(3))
    done = run("kv", "import", shop, "--map", "new", "--batch", "2", input=lines)
    assert done.exit_code != 0
    assert "committed 3 records, and could not sync them" in done.stderr
    assert "loaded 3" not in done.stderr


@pytest.mark.parametrize(("name", "arguments"), PUTS)
def test_a_put_that_fails_makes_nothing(
    name: str, arguments: list[str], shop: Path, tmp_path: Path, run: Run
) -> None:
    before = maps_of(shop)
    for store in (shop, tmp_path / "new.tl"):
        done = run("kv", "put", store, *arguments, "--create", input=b"\xc1")
        assert done.exit_code == 2, done.stderr
    assert maps_of(shop) == before
    assert os.listdir(tmp_path) == ["shop.tl"]


# ------------------------------------------------------------------ what other programs write


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xef\xbb\xbfkey,value\r\na,1\r\n", {"key": "a", "value": "1"}),
        (b"key;value\r\na;1\r\n", {"key": "a", "value": "1"}),
        (b"key\tvalue\na\t1\n", {"key": "a", "value": "1"}),
        (b'"a;b"\n1\n', {"a;b": "1"}),
        (b"key,a;b\nk,1\n", {"key": "k", "a;b": "1"}),
        (b"key,value\n\na,1\n\r\n", {"key": "a", "value": "1"}),
        (b'key,value\n"a\nb","x ""y"""\n', {"key": "a\nb", "value": 'x "y"'}),
        (b"key,value\n" + b"a," + b"x" * 200_000, {"key": "a", "value": "x" * 200_000}),
    ],
    ids=["mark", "semicolon", "tab", "one column", "both marks", "blank", "quotes", "long"],
)
def test_csv_as_other_programs_write_it(data: bytes, expected: dict[str, str]) -> None:
    assert [record for _, record in records(data, "csv")] == [expected]


def test_an_empty_csv_file_has_no_records() -> None:
    assert records(b"", "csv") == records(b"key,value\n", "csv") == []


def test_a_byte_order_mark_is_no_part_of_the_first_record() -> None:
    assert records(b'\xef\xbb\xbf{"key": 1}') == [(1, {"key": 1})]
    assert "Save it as UTF-8" in refusal('{"key": 1}'.encode("utf-16")).hint


@pytest.mark.parametrize(
    ("path", "kind"),
    [("a.csv", "csv"), ("A.CSV", "csv"), ("a.tsv", "tsv"), ("a.jsonl", "jsonl"), ("-", "jsonl"),
     ("a.ndjson", "jsonl"), ("a.parquet", "parquet"), ("a.csv/b", "jsonl"), ("data", "jsonl")],
)  # fmt: skip
def test_the_ending_of_a_file_says_its_form(path: str, kind: str) -> None:
    assert format_of(path) == kind


def test_a_csv_file_needs_no_option(shop: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "big.csv"
    file.write_bytes(b"\xef\xbb\xbfkey,value\r\na,1\r\n")
    assert run("kv", "import", shop, file, "--map", "m").exit_code == 0
    assert run("kv", "get", shop, "m", "a").stdout == "1\n"
    out = tmp_path / "out.csv"
    assert run("kv", "export", shop, "m", "-o", out).exit_code == 0
    assert out.read_text().splitlines() == ["key,value", "a,1"]


# ------------------------------------------------------------------ errors


LINES: list[tuple[str, bytes, str, str]] = [
    ("UTF-8", b'{"key": 1}\n{"key": "\xff"}\n', "jsonl", "line 2: it is not UTF-8"),
    ("UTF-8 in CSV", b"key,value\na,b\nc,\xff\n", "csv", "line 3: it is not UTF-8"),
    ("a field twice", b'{"a": 1, "b": 2, "a": 3}', "jsonl", "line 1: not JSON: the field 'a'"),
    ("a field twice inside", b'{"a": {"b": 1, "b": 2}}', "jsonl", "the field 'b' is there twice"),
    ("a column twice", b"a,b,a\n1,2,3\n", "csv", "line 1: the head line names the field 'a' twice"),
    ("a long line", b'{"key": "' + b"x" * 300 + b'"}', "jsonl", "line 1: it is longer than 200"),
    ("text behind quotes", b'key,value\na,"b"c\n', "csv", "line 2: not CSV: "),
    ("a field too many", b"key,value\n\na,b,c\n", "csv", "line 3: 3 fields; the head line has 2"),
    ("no end", b'{"key": "abc', "jsonl", "line 1: not JSON: Unterminated string"),
]


@pytest.mark.parametrize(("name", "data", "kind", "told"), LINES)
def test_an_error_names_its_line_and_the_reason(
    name: str, data: bytes, kind: str, told: str
) -> None:
    assert told in str(refusal(data, kind, 200))


def test_a_line_may_have_all_the_bytes_that_are_allowed() -> None:
    line = b'{"key": 1}\n'
    assert records(line, most=len(line)) == [(1, {"key": 1})]
    assert "line 1: it is longer than 10 bytes" in str(refusal(line, most=len(line) - 1))


def test_a_key_that_is_nested_deep_names_its_line(shop: Path, run: Run) -> None:
    """It ended the command as a bug of its own would."""
    line = f'{{"key": {"[" * 600}{"]" * 600}, "value": 1}}'
    done = run("kv", "import", shop, "--map", "m", "--key-codec", "tuple", input=line)
    assert (done.exit_code, "line 1: it is nested too deep" in done.stderr) == (2, True)


def test_a_record_without_its_key_names_the_option(shop: Path, run: Run) -> None:
    done = run("kv", "import", shop, "--map", "m", input='{"id": 1, "n": 2}')
    assert "line 1: there is no field 'key'; the record has id, n" in done.stderr
    assert "--key-field" in done.stderr
    done = run("kv", "import", shop, "--map", "m", "--value", "v", input='{"key": "1"}')
    assert "--value-field" in done.stderr


def test_a_key_that_is_too_long_names_its_line(shop: Path, run: Run) -> None:
    text = '{"key": "a", "value": 1}\n' + json.dumps({"key": "x" * 481, "value": 1})
    done = run("kv", "import", shop, "--map", "m", input=text)
    assert "line 2: a key of 481 bytes, 480 are allowed" in done.stderr


# ------------------------------------------------------------------ versions of codecs


def money(version: int) -> Codec[int]:
    """A codec whose versions write the same number differently."""
    return Codec(
        name="acme.money",
        version=version,
        encode=lambda value: str(value * version).encode(),
        decode=lambda data: int(data) // version,
    )


def registered(monkeypatch: pytest.MonkeyPatch, *versions: int) -> None:
    made = [money(version) for version in versions]
    monkeypatch.setattr(
        engine_codecs, "_registered", lambda name: made if name == "acme.money" else []
    )


@pytest.fixture
def priced(tmp_path: Path) -> Path:
    """A store with a map whose values are of version 2."""
    path = tmp_path / "priced.tl"
    with tidelog.open(path, partitions=2) as db:
        db.map("prices", key=codecs.Str, value=money(2))["pear"] = 30
    return path


def exported(priced: Path, run: Run) -> str:
    done = run("kv", "export", priced, "prices")
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["prices", "copied"])
@pytest.mark.parametrize("options", [[], ["--value-codec", "acme.money"]])
def test_an_export_is_read_by_the_version_that_wrote_it(
    name: str, options: list[str], priced: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A new map got version 1, which took 60 for the value; the map itself was refused.
    registered(monkeypatch, 1, 2)
    text = exported(priced, run)
    with tidelog.open(priced, codecs=[money(2)]) as db:
        del db.map("prices")["pear"]
    done = run("kv", "import", priced, "--map", name, *options, input=text)
    assert done.exit_code == 0, done.stderr
    with tidelog.open(priced, codecs=[money(2)]) as db:
        again = db.map(name)
        assert (again["pear"], namespace_of(again).value_codec.version) == (30, 2)


def test_a_version_that_nobody_knows_is_refused(
    priced: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, 2)
    text = exported(priced, run)
    registered(monkeypatch, 1)
    done = run("kv", "import", priced, "--map", "copied", input=text)
    assert done.exit_code == 2
    assert "codec acme.money version 2 is not known, only 1" in done.stderr
    assert maps_of(priced) == ["prices"]


def test_an_export_of_another_version_does_not_go_into_a_map(
    priced: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, 1, 2)
    text = exported(priced, run).replace('"version": 2', '"version": 1')
    done = run("kv", "import", priced, "--map", "prices", input=text)
    assert done.exit_code == 2
    assert "has codec acme.money 2, not acme.money 1" in done.stderr


def test_a_map_line_names_both_codecs(shop: Path, run: Run) -> None:
    known = {"name": "i64", "version": 1}
    for key, value in ((known, {"name": "i64"}), ({"version": 1}, known)):
        head = {"v": 1, "type": "map", "map": "m", "key_codec": key, "value_codec": value}
        done = run("kv", "import", shop, "--map", "m", input=json.dumps(head))
        assert (done.exit_code, "a map line without the codecs" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        ({"name": "i64", "version": 9}, "codec i64 version 9 is not known: this Tidelog has 1"),
        ({"name": "i64"}, "line 1: a map line without the codecs of the map"),
        ({"name": "i64", "version": "1"}, "line 1: a map line without the codecs of the map"),
    ],
)
def test_a_map_line_names_codec_and_version(
    codec: dict[str, Any], says: str, shop: Path, run: Run
) -> None:
    head = {"v": 1, "type": "map", "map": "m", "key_codec": codec, "value_codec": codec}
    done = run("kv", "import", shop, "--map", "m", input=json.dumps(head))
    assert done.exit_code == 2
    assert says in done.stderr


# ------------------------------------------------------------------ there and back


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "plain"])
@pytest.mark.parametrize("value", sorted(VALUES))
@pytest.mark.parametrize("key", sorted(KEYS))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_an_import_of_an_export_has_every_byte(
    key: str, value: str, kind: str, data: st.DataObject
) -> None:
    (key_codec, keys), (value_codec, values) = KEYS[key], VALUES[value]
    made = data.draw(st.dictionaries(keys, values, max_size=4))
    pairs = {encoded(key_codec, one): encoded(value_codec, other) for one, other in made.items()}
    if None in pairs or None in pairs.values():
        return
    expected = cast("dict[bytes, bytes]", pairs)
    namespace = namespace_with(key_codec, value_codec)
    stream = io.StringIO(newline="")
    _WRITERS[kind](stream, namespace, expected.items(), lambda _: None)
    form = "jsonl" if kind == "plain" else kind
    found = numbered_records(io.BytesIO(stream.getvalue().encode()), form)
    if form == "jsonl":
        records = Records(numbered=split_head(found)[1], form="json")
    else:
        records = Records(numbered=found, form="typed", is_text=lambda _: True)
    back = pairs_of_records(records, namespace, ImportFields(key=("key",)))
    assert {
        namespace.encode_key(one): namespace.encode_value(other) for (one, other), _ in back
    } == expected


# ------------------------------------------------------------------ heads of exports


def test_two_exports_in_one_file_are_told_apart(run: Run, shop: Path, tmp_path: Path) -> None:
    # It said that there is no field 'key'.
    text = run("kv", "export", shop, "stock").stdout
    done = run("kv", "import", tmp_path / "new.tl", "--map", "m", "--create", input=text + text)
    assert done.exit_code == 2
    assert "line 3: a second head line: another export begins here" in done.stderr
    assert not (tmp_path / "new.tl").exists()


def test_an_export_of_a_later_version_is_told(run: Run, shop: Path) -> None:
    text = run("kv", "export", shop, "stock").stdout.replace('{"v": 1', '{"v": 2')
    done = run("kv", "import", shop, "--map", "m", input=text)
    assert done.exit_code == 2
    assert "line 1: an export of version 2 of the format; this version of tidelog" in done.stderr


def test_records_of_somebody_else_may_look_a_little_like_a_head(run: Run, shop: Path) -> None:
    text = '{"key": "a", "type": "map", "v": 2}\n{"key": "b", "type": "map", "v": 1}\n'
    assert run("kv", "import", shop, "--map", "m", input=text).exit_code == 0


# ------------------------------------------------------------------ where records come from


def test_how_far_a_file_is_read_is_told_in_bytes(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"123\n45\n")
    with file.open("rb") as stream:
        progress = progress_of(stream)
        assert (progress.unit, progress.total) == ("bytes", 7)
        stream.readline()
        assert progress.since(1) == 4
        stream.readline()
        assert (progress.since(1), progress.since(1)) == (3, 0)


def test_how_far_a_pipe_is_read_is_told_in_records() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with open(reading, "rb") as stream:
        progress = progress_of(stream)
    assert (progress.unit, progress.total, progress.since(5)) == ("records", None, 5)
    assert progress_of(io.BytesIO(b"no file")).unit == "records"


def test_only_regular_files_are_opened_by_name(tmp_path: Path, run: Run, shop: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("pipe.jsonl", "."):
        done = run("kv", "import", shop, tmp_path / name, "--map", "m", "--format", "jsonl")
        assert (done.exit_code, "is not a regular file" in done.stderr) == (2, True)
    assert run("kv", "import", shop, tmp_path / "gone.jsonl", "--map", "m").exit_code == 4


def test_parquet_is_not_read_from_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with io.TextIOWrapper(open(reading, "rb")) as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        with (
            pytest.raises(UsageError, match="Parquet cannot be read from a pipe"),
            file_source("-", "parquet", ColumnTypes([])),
        ):
            pass
