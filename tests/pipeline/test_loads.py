"""Loads from tasks, and from files of rows: whole, in order, or not there."""

from __future__ import annotations

import json
import os
import random
import shutil
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from support.pipelines import load_content
from tidelog import errors
from tidelog.affinity.errors import (
    CodecError,
    KeyTooLargeError,
    NotFoundError,
    StorageError,
    UsageError,
)
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.upkeep.load_files import LoadManifest, read_load_manifest
from tidelog.pipeline.jobs import loads
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.plan.options import is_load, parse_load, parse_write
from tidelog.pipeline.spark import arranging
from tidelog.pipeline.write import load_sinks
from tidelog.pipeline.write.load_sinks import LoadWriter

Pair = tuple[bytes | None, bytes | None]


def given(directory: Path, **more: object) -> dict[str, str]:
    options = {"path": directory, "namespace": "cities", "partitions": 4, **more}
    return {name: str(text) for name, text in options.items()}


def writer(directory: Path, *, replace: bool = False, **more: object) -> LoadWriter:
    return LoadWriter(parse_load(given(directory, **more)), replace=replace)


def batch_of(pairs: Iterable[Pair]) -> pa.RecordBatch:
    keys, values = zip(*pairs, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(keys, pa.binary())], names=["value", "key"]
    )


def pairs_in(partition: int, count: int, partitions: int = 4) -> list[Pair]:
    """The first keys of a partition, in order."""
    found = (b"%06d" % number for number in range(100_000))
    keys = [key for key in found if partition_of(key, Space(0, partitions)) == partition][:count]
    return [(key, b"value of " + key) for key in keys]


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


# ------------------------------------------------------------------------------ tasks and commit


def test_the_files_of_all_tasks_are_one_load(tmp_path: Path) -> None:
    job = writer(tmp_path / "load", keyCodec="str")
    parts = [pairs_in(partition, 5) for partition in range(4)]
    staged = [
        # Batches end anywhere.
        job.stage("0-1", [batch_of(parts[0][:2]), batch_of(parts[0][2:] + parts[1])]),
        job.stage("1-2", []),
        job.stage("2-3", [batch_of(parts[2] + parts[3])]),
    ]
    assert names(tmp_path / "load") == ["_staging"]
    manifest = job.commit(staged)
    assert manifest == read_load_manifest(str(tmp_path / "load"))
    assert (manifest.map, manifest.partitions, manifest.rows) == ("cities", 4, 20)
    assert (manifest.key_codec, manifest.value_codec) == (("str", 1), ("bytes", 1))
    assert names(tmp_path / "load") == ["manifest.json", *(file.name for file in manifest.files)]
    assert [
        (part.partition, part.first_key, part.last_key)
        for file in manifest.files
        for part in file.partitions
    ] == [(number, part[0][0], part[-1][0]) for number, part in enumerate(parts)]
    assert load_content(tmp_path / "load") == dict(pair for part in parts for pair in part)


def test_a_load_of_no_rows_is_one(tmp_path: Path) -> None:
    job = writer(tmp_path / "load")
    assert job.commit([job.stage("0", []), job.stage("1", [])]).files == ()
    assert names(tmp_path / "load") == ["manifest.json"]
    assert load_content(tmp_path / "load") == {}


def test_attempts_that_nobody_was_told_of_leave_nothing(tmp_path: Path) -> None:
    job = writer(tmp_path / "load")
    lost = [job.stage(f"0-{attempt}", [batch_of(pairs_in(0, 5))]) for attempt in range(2)]
    counted = job.stage("0-2", [batch_of(pairs_in(0, 5))])
    assert {file.partitions for file in lost} == {counted.partitions}
    job.commit([counted])
    assert len(load_content(tmp_path / "load")) == 5
    assert len(names(tmp_path / "load")) == 2


def test_what_is_out_of_order_is_refused_with_what_brings_order(tmp_path: Path) -> None:
    first, second = pairs_in(0, 2), pairs_in(1, 2)
    job = writer(tmp_path / "load")
    for number, (pairs, told) in enumerate(
        [
            (first[::-1], "out of order"),
            (second + first, "partition 0 comes behind 1"),
            ([*first, second[0], *pairs_in(0, 3)[2:]], "partition 0 comes behind 1"),
            ([first[0], first[0]], "key '.*' comes twice in partition 0"),
        ]
    ):
        with pytest.raises(UsageError, match=told) as caught:
            job.stage(str(number), [batch_of(pairs)])
        assert "arranging.arrange" in caught.value.hint


def test_a_partition_from_two_tasks_is_refused(tmp_path: Path) -> None:
    job = writer(tmp_path / "load")
    keys = pairs_in(3, 2)
    staged = [job.stage(str(task), [batch_of([keys[task]])]) for task in range(2)]
    with pytest.raises(UsageError, match="partition 3 comes from two tasks"):
        job.commit(staged)
    job.discard()
    with pytest.raises(NotFoundError):
        read_load_manifest(str(tmp_path / "load"))


def test_the_last_of_the_rows_with_a_key_counts_where_that_is_asked_for(tmp_path: Path) -> None:
    job = writer(tmp_path / "load", onConflict="last")
    (one, _), (other, _) = pairs_in(2, 2)
    rows: list[Pair] = [(one, b"a"), (one, b"b"), (other, b"x"), (other, b"y"), (other, b"y")]
    # Across batches, too.
    job.commit([job.stage("0", [batch_of(rows[:1]), batch_of(rows[1:3]), batch_of(rows[3:])])])
    assert load_content(tmp_path / "load") == {one: b"b", other: b"y"}


@pytest.mark.parametrize(
    ("pair", "codecs", "error"),
    [
        ((None, b"v"), {}, UsageError),
        ((b"k", None), {}, UsageError),
        ((b"k" * 481, b"v"), {}, KeyTooLargeError),
        ((b"\xff", b"v"), {"keyCodec": "str"}, CodecError),
        ((b"k", b"{"), {"valueCodec": "json"}, CodecError),
    ],
)
def test_rows_that_no_map_could_have_are_refused(
    tmp_path: Path, pair: Pair, codecs: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        writer(tmp_path / "load", **codecs).stage("0", [batch_of([pair])])


# --------------------------------------------------------------------------- what is there already


def small(directory: Path, *pairs: Pair, replace: bool = False) -> LoadManifest:
    job = writer(directory, replace=replace, partitions=1)
    return job.commit([job.stage("0", [batch_of(pairs)])])


def test_a_load_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    small(tmp_path / "load", (b"old", b"1"))
    with pytest.raises(UsageError, match="there is a load"):
        writer(tmp_path / "load")
    small(tmp_path / "load", (b"new", b"2"), replace=True)
    assert load_content(tmp_path / "load") == {b"new": b"2"}
    assert len(names(tmp_path / "load")) == 2


def test_a_load_that_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    late = writer(tmp_path / "load")
    small(tmp_path / "load", (b"first", b"1"))
    with pytest.raises(UsageError, match="there is a load"):
        late.commit([])
    assert load_content(tmp_path / "load") == {b"first": b"1"}


def test_a_folder_with_files_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").touch()
    with pytest.raises(UsageError, match=r"do not belong to a load: data\.mdb"):
        writer(tmp_path, replace=True)


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("where", ["rename", "write_load_manifest", "rmtree", "unlink"])
def test_a_death_leaves_the_old_load_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, old: bool
) -> None:
    load = tmp_path / "load"
    if old:
        small(load, (b"old", b"1"))

    def kill(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        place = {"rmtree": shutil, "write_load_manifest": load_sinks}.get(where, os)
        patched.setattr(place, where, kill)
        if where == "unlink" and not old:
            small(load, (b"new", b"2"))
        else:
            with pytest.raises(KilledError):
                small(load, (b"new", b"2"), replace=True)
    if where in ("rmtree", "unlink"):
        assert load_content(load) == {b"new": b"2"}
    elif old:
        assert load_content(load) == {b"old": b"1"}
    else:
        with pytest.raises(NotFoundError):
            read_load_manifest(str(load))
    small(load, (b"newer", b"3"), replace=True)
    assert load_content(load) == {b"newer": b"3"}
    assert len(names(load)) == 2


# ------------------------------------------------------------------------------------- options


def test_the_target_says_which_options_there_are(tmp_path: Path) -> None:
    assert is_load({"TARGET": "Files"})
    assert not is_load({"target": "store"})
    assert parse_write({"path": "p", "target": "store"}).target == "store"
    options = parse_load(given(tmp_path, keyCodec="str", target="files"))
    assert (options.key_codec, options.value_codec, options.partitions) == ("str", "bytes", 4)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"partitions": 0}, "a number from 1 to 32,768"),
        ({"partitions": "0-3"}, "option partitions"),
        ({"keyCodec": "nonsense"}, "codec nonsense"),
        ({"namespace": ""}, "not a name for a map"),
        ({"atomicity": "batch"}, "a load has no option 'atomicity'"),
    ],
)
def test_options_that_cannot_be_are_told(
    tmp_path: Path, more: dict[str, object], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        parse_load(given(tmp_path, **more))


@pytest.mark.parametrize("name", ["namespace", "partitions"])
def test_options_that_are_needed_are_told(tmp_path: Path, name: str) -> None:
    options = given(tmp_path)
    del options[name]
    with pytest.raises(UsageError, match=f"the option {name} is missing"):
        parse_load(options)


# ------------------------------------------------------------------------- the job, in one process

RNG = random.Random(5)
TEXTS = {f"key {RNG.getrandbits(64)}": f'"value", {number}' for number in range(3000)}
TEXTS[""] = ""
TEXTS["2026-11-22"] = "2026-11-22T08:00:00Z"
WANTED = {key.encode(): value.encode() for key, value in TEXTS.items()}


def table_of(rows: Sequence[tuple[str, str]]) -> pa.Table:
    keys, values = zip(*rows, strict=True)
    return pa.table({"other": [1] * len(rows), "value": values, "key": keys})


def written(folder: Path, form: str, rows: Sequence[tuple[str, str]]) -> str:
    """A folder with rows in two files."""
    folder.mkdir()
    for number, part in enumerate((rows[::2], rows[1::2])):
        path, table = folder / f"{number}.{form}", table_of(part)
        if form == "parquet":
            parquet.write_table(table, path)
        elif form == "csv":
            csv.write_csv(table, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return str(folder)


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_files_of_rows_become_a_load(tmp_path: Path, form: str) -> None:
    source = written(tmp_path / "rows", form, list(TEXTS.items()))
    options = given(tmp_path / "load", partitions=1024)
    manifest = loads.load(source, options, Runner(), files=3)
    assert load_content(tmp_path / "load") == WANTED
    assert len(manifest.files) == 3
    numbers = [part.partition for file in manifest.files for part in file.partitions]
    assert numbers == sorted({partition_of(key, Space(0, 1024)) for key in WANTED})


def test_any_number_of_files_and_any_order_give_the_same_rows(tmp_path: Path) -> None:
    rows = list(TEXTS.items())
    digests = set()
    for number, files in enumerate((1, 4, 9)):
        RNG.shuffle(rows)
        source = written(tmp_path / f"rows{number}", "parquet", rows)
        directory = tmp_path / f"load{number}"
        manifest = loads.load(source, given(directory), Runner(), files=files)
        assert len(manifest.files) == min(files, 4)
        assert load_content(directory) == WANTED
        digests.add(
            tuple(
                (part.partition, part.rows, part.first_key, part.last_key)
                for file in manifest.files
                for part in file.partitions
            )
        )
    assert len(digests) == 1


def test_other_columns_may_have_keys_and_values(tmp_path: Path) -> None:
    table = pa.table({"name": [b"a", b"b"], "size": pa.array(["1", "2"], pa.large_string())})
    parquet.write_table(table, tmp_path / "rows.parquet")
    source, columns = str(tmp_path / "rows.parquet"), ("name", "size")
    loads.load(source, given(tmp_path / "load"), Runner(), columns=columns)
    assert load_content(tmp_path / "load") == {b"a": b"1", b"b": b"2"}


def test_a_key_that_comes_twice_fails_or_keeps_its_greatest_value(tmp_path: Path) -> None:
    rows = [("a", "1"), ("b", "2"), ("a", "3"), ("a", "2")]
    source = written(tmp_path / "rows", "csv", rows)
    with pytest.raises(UsageError, match="key 'a' comes twice"):
        loads.load(source, given(tmp_path / "load"), Runner())
    assert names(tmp_path / "load") == []
    loads.load(source, given(tmp_path / "load", onConflict="last"), Runner())
    assert load_content(tmp_path / "load") == {b"a": b"3", b"b": b"2"}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("rows.txt", "key,value", "does not hold files of one kind"),
        ("rows.csv", "key,other\na,b\n", "no column value"),
        ("rows.csv", "key,value\na\n", "cannot be read as csv"),
        ("rows.jsonl", '{"key": "a", "value": 5}\n', "cannot be read as jsonl"),
        ("rows.jsonl", '{"key": "a"}\n', "without a key, or without a value"),
        ("rows.parquet", "nonsense", "cannot be read as parquet"),
    ],
)
def test_a_source_that_has_no_rows_for_it_is_told(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=told):
        loads.load(str(tmp_path / name), given(tmp_path / "load"), Runner())


def test_numbers_are_no_bytes(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"key": [1], "value": ["v"]}), tmp_path / "rows.parquet")
    with pytest.raises(UsageError, match="the column key is int64"):
        loads.load(str(tmp_path / "rows.parquet"), given(tmp_path / "load"), Runner())
    with pytest.raises(NotFoundError):
        loads.load(str(tmp_path / "nothing"), given(tmp_path / "load"), Runner())


def test_an_error_that_spark_tells_of_is_raised_as_ours() -> None:
    for raised, kind in ((errors.DiskFullError, StorageError), (errors.NotFoundError, UsageError)):
        for hint in ("Free some.", None):
            text = "".join(traceback.format_exception(raised("no room", hint=hint)))
            found = arranging._our_error(f"{text} at org.apache")
            assert found is not None
            wanted = hint or raised.hint
            assert (type(found), str(found), found.hint) == (kind, "no room", wanted)
    assert arranging._our_error("no error of ours") is None
