"""``tidelog spark`` without a JVM."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import get_args

import pytest
from click.testing import Result

import tidelog
from support.pipelines import flip, load_content
from tidelog.affinity.errors import UsageError
from tidelog.pipeline.plan.options import ViewName
from tidelog.pipeline.spark import doctor, submit
from tidelog.tools.shell.exits import Exit

Run = Callable[..., Result]


@pytest.fixture
def copy(shop: Path) -> Path:
    with tidelog.open(shop) as db:
        db.backup(shop.parent / "copy")
    return shop.parent / "copy"


def test_export_tells_what_it_wrote(run: Run, shop: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    done = run("spark", "export", shop, target, "--format", "jsonl", "--option", "namespace=stock")
    assert done.exit_code == Exit.DONE, done.output
    assert f"1 rows in 1 files in {target}" in done.stderr
    assert "pears" in (target / "part-00000.jsonl").read_text()
    again = run("spark", "export", shop, target)
    assert again.exit_code == Exit.USAGE
    assert "is there already" in again.stderr
    told = run("spark", "export", shop, tmp_path / "two", "--view", "changes", "--json")
    assert json.loads(told.stdout)["rows"] == 5


def test_no_command_takes_a_uri_for_a_relative_path(
    run: Run, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `compact STORE hdfs://h/x` and the like made a folder `hdfs:` here.
    monkeypatch.chdir(tmp_path)
    uri = "nonsense://h/x"
    for command in (
        ("spark", "export", shop, uri), ("spark", "export", uri, "out"),
        ("spark", "compact", shop, uri), ("spark", "compact", uri, "out"),
        ("spark", "history", uri, "stock", "k"), ("spark", "verify", uri, shop),
        ("spark", "replay-check", uri, shop), ("spark", "wal-stats", uri),
        ("spark", "load", uri, "out", "--map", "m", "--partitions", "2"),
        ("spark", "load", shop, uri, "--map", "m", "--partitions", "2"),
        ("db", "backup", shop, uri), ("db", "backup", shop, uri, "--compact"),
        ("kv", "put", uri, "stock", "k", "v", "--create"),
    ):  # fmt: skip
        done = run(*command)
        assert done.exit_code in (Exit.USAGE, Exit.NOT_FOUND), (command, done.output)
        assert sorted(path.name for path in tmp_path.iterdir() if "nonsense" in path.name) == []


def test_export_knows_all_views(run: Run) -> None:
    # They were a list of their own here: a new view could not be exported.
    told = run("spark", "export", "--help").output
    assert f"[{'|'.join(get_args(ViewName))}]" in told


def test_export_refuses_options_that_are_none(run: Run, shop: Path, tmp_path: Path) -> None:
    for text, said in (("nonsense", "is not NAME=TEXT"), ("nonsense=1", "Its options are")):
        done = run("spark", "export", shop, tmp_path / "out", "--option", text)
        assert done.exit_code == Exit.USAGE
        assert said in done.stderr


def test_history_shows_versions_by_the_key_as_the_map_has_it(run: Run, shop: Path) -> None:
    done = run("spark", "history", shop, "stock", "apples", "--json")
    document = json.loads(done.stdout)
    assert [row["op"] for row in document["versions"]] == ["put", "delete"]
    assert [(row["key"], row["value"]) for row in document["versions"]] == [
        ("apples", 3),
        ("apples", None),
    ]
    assert document["count"] == 2
    assert run("spark", "history", shop, "numbers", "5").exit_code == Exit.DONE
    none = run("spark", "history", shop, "stock", "plums")
    assert none.exit_code == Exit.NOT_FOUND
    assert "no version" in none.stderr
    assert run("spark", "history", shop, "nobody", "plums").exit_code == Exit.NOT_FOUND


def test_compact_makes_an_archive_that_history_and_exports_read(
    run: Run, shop: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    done = run("spark", "compact", shop, archive)
    assert done.exit_code == Exit.DONE, done.output
    assert "5 changes in" in done.stderr
    assert json.loads(run("spark", "compact", shop, archive, "--json").stdout)["rows"] == 0
    history = ("spark", "history", shop, "stock", "apples", "--json")
    assert run(*history, "--archive", archive).stdout == run(*history).stdout
    target = tmp_path / "out"
    done = run("spark", "export", archive, target, "--format", "jsonl", "--option", "asOf=latest")
    assert done.exit_code == Exit.DONE, done.output
    assert "pears" in "".join(part.read_text() for part in target.iterdir())
    other = run("spark", "compact", archive, tmp_path / "other")
    assert other.exit_code == Exit.NOT_FOUND
    assert run("spark", "compact", shop, shop).exit_code == Exit.USAGE


def test_load_makes_files_for_a_map(run: Run, tmp_path: Path) -> None:
    source, target = tmp_path / "cities.csv", tmp_path / "load"
    source.write_text("name,size\nOslo,1\nRome,2\nOslo,3\n")
    given: tuple[object, ...] = ("spark", "load", source, target, "--map", "cities")
    given += ("--partitions", 4, "--key-column", "name", "--value-column", "size")
    twice = run(*given)
    assert twice.exit_code == Exit.USAGE
    assert "key 'Oslo' comes twice" in twice.stderr
    done = run(*given, "--on-conflict", "last", "--key-codec", "str")
    assert done.exit_code == Exit.DONE, done.output
    assert f"2 rows in 1 files in {target}" in done.stderr
    assert load_content(target) == {b"Oslo": b"3", b"Rome": b"2"}
    assert "there is a load" in run(*given, "--on-conflict", "last").stderr
    again = run(*given, "--on-conflict", "last", "--replace", "--files", 3, "--json")
    document = json.loads(again.stdout)
    assert document["rows"] == 2
    assert document["files"] == [name for name in sorted(os.listdir(target)) if "part" in name]


def test_a_load_may_become_a_map_at_once(run: Run, shop: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "cities.jsonl", tmp_path / "load"
    source.write_text('{"key": "Oslo", "value": "1"}\n{"key": "Rome", "value": "2"}\n')
    given: tuple[object, ...] = ("spark", "load", source, target, "--key-codec", "str", "--map")
    untold = run(*given, "cities")
    assert untold.exit_code == Exit.USAGE
    assert "Give --partitions, or --attach STORE" in untold.stderr
    assert "a map 'stock' already" in run(*given, "stock", "--attach", shop).stderr
    assert not target.exists()
    done = run(*given, "cities", "--attach", shop)
    assert done.exit_code == Exit.DONE, done.output
    assert f"2 rows in 1 files in {target}, and in {shop}" in done.stderr
    with tidelog.open(shop, read_only=True) as db:
        assert dict(db.map("cities").items()) == {"Oslo": b"1", "Rome": b"2"}


def test_verify_ends_with_3_where_an_archive_is_damaged(
    run: Run, shop: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    run("spark", "compact", shop, archive)
    good = run("spark", "verify", archive)
    assert good.exit_code == Exit.DONE, good.output
    assert "all files are what was written" in good.stderr
    file = next(archive.glob("*/*.parquet"))
    flip(file, 40)
    done = run("spark", "verify", archive, "--jsonl")
    assert done.exit_code == Exit.FOUND
    assert "one file is damaged" in done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    assert row["file"] == f"{file.parent.name}/{file.name}"
    mixed = run("spark", "verify", archive, shop)
    assert mixed.exit_code == Exit.USAGE


def test_verify_ends_with_3_where_copies_differ(run: Run, shop: Path, copy: Path) -> None:
    done = run("spark", "verify", shop, copy)
    assert (done.exit_code, done.stdout) == (Exit.DONE, "")
    assert "all copies hold the same" in done.stderr
    with tidelog.open(copy) as db:
        db.map("numbers")[6] = "six"
    done = run("spark", "verify", shop, copy, "--jsonl")
    assert done.exit_code == Exit.FOUND
    row = json.loads(done.stdout)
    assert row["namespace"] == "numbers"
    assert row["copies"][0] is None
    table = run("spark", "verify", shop, copy)
    assert table.stdout.startswith("partition\tnamespace\tkey\tcopies\n")


def test_replay_check_proves_or_tells(run: Run, shop: Path, copy: Path) -> None:
    with tidelog.open(shop) as db:
        db.map("numbers")[6] = "six"
    done = run("spark", "replay-check", copy, shop, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"differences": [], "count": 0})
    assert run("spark", "replay-check", shop, copy).exit_code == Exit.USAGE


def test_wal_stats_prints_tables_a_document_or_rows(run: Run, shop: Path, copy: Path) -> None:
    done = run("spark", "wal-stats", shop, "--json", "--tasks", "9")
    assert done.exit_code == Exit.DONE, done.output
    document = json.loads(done.stdout)
    assert list(document) == ["records", "maps", "transactions", "ranges", "hot_keys"]
    assert document["hot_keys"][0] == {
        "node": str(shop), "namespace": "stock", "key": {"s": "apples"}, "writes": 2, "error": 0,
    }  # fmt: skip
    assert [row["namespace"] for row in document["maps"]] == ["stock", "orders", "numbers"]
    lines = run("spark", "wal-stats", shop, copy, "--jsonl", "--top", "1").stdout.splitlines()
    listed = [json.loads(line) for line in lines]
    assert [row["node"] for row in listed if row["type"] == "hot_keys"] == [
        str(shop), str(shop), str(copy), str(copy),
    ]  # fmt: skip
    # An empty table is left out; the last row stands for the keys that are not listed.
    *_, sizes, hot = run("spark", "wal-stats", shop, "--top", "1").stdout.split("\n\n")
    assert sizes.startswith("node\tmeasure\ttransactions\ttotal\tmedian\tp99\tlargest\n")
    assert sizes.splitlines()[1] == f"{shop}\tupdates\t4\t5\t1\t2\t2"
    assert hot.splitlines()[1:] == [
        f'{shop}\tstock\t{{"s": "apples"}}\t2\t0',
        f"{shop}\t-\t-\t0\t1",
    ]


def test_wal_stats_ends_with_3_for_damage_and_2_for_one_log_twice(run: Run, shop: Path) -> None:
    assert run("spark", "wal-stats", shop, shop).exit_code == Exit.USAGE
    assert run("spark", "wal-stats", shop.parent / "nowhere").exit_code == Exit.NOT_FOUND
    segment = shop / "wal" / f"{1:016d}.log"
    data = bytearray(segment.read_bytes())
    data[segment.read_bytes().index(b"import-42")] ^= 1
    segment.write_bytes(data)
    done = run("spark", "wal-stats", shop)
    assert done.exit_code == Exit.FOUND
    assert "segment 1, offset" in done.stderr


def test_submit_brings_an_environment_or_uses_the_one_of_the_driver() -> None:
    made = submit.submit_command("spark-submit", "/py", "job.py", ["--x", "1"], master="yarn")
    assert made == [
        "env", "PYSPARK_PYTHON=/py", "spark-submit", "--master", "yarn", "job.py", "--x", "1",
    ]  # fmt: skip
    made = submit.submit_command("spark-submit", "/py", "job.py", archive="a/env.tar.gz")
    assert made == [
        "env", "PYSPARK_PYTHON=./env/bin/python", "spark-submit",
        "--archives", "a/env.tar.gz#env", "--conf", "spark.pyspark.python=./env/bin/python",
        "job.py",
    ]  # fmt: skip
    made = submit.submit_command("spark-submit", "/py", "job.py", py_files="code.zip")
    assert made == [
        "env", "PYSPARK_PYTHON=/py", "spark-submit", "--py-files", "code.zip", "job.py",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="exclude each other"):
        submit.submit_command("spark-submit", "/py", "job.py", archive="a", py_files="b")


def fake_spark(home: Path) -> Path:
    """A ``spark-submit`` that tells how it was called, and ends with 7."""
    program = home / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s|" "$PYSPARK_PYTHON" "$@"\nexit 7\n')
    program.chmod(0o755)
    return program


def test_submit_prints_a_line_that_a_shell_takes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_spark(tmp_path / "spark home")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark home"))
    done = run("spark", "submit", "--master", "local[2]", "job.py", "shop.tl", "--execute", "a b")
    assert done.exit_code == Exit.DONE, done.output
    assert shlex.split(done.stdout) == [
        "env", f"PYSPARK_PYTHON={sys.executable}", str(program),
        "--master", "local[2]", "job.py", "shop.tl", "--execute", "a b",
    ]  # fmt: skip
    shell = subprocess.run(["sh", "-c", done.stdout], capture_output=True, text=True, check=False)
    assert shell.stdout == f"{sys.executable}|--master|local[2]|job.py|shop.tl|--execute|a b|"
    both = run("spark", "submit", "--archive", "a", "--py-files", "b", "job.py")
    assert both.exit_code == Exit.USAGE


@pytest.mark.slow
def test_submit_executes_and_passes_the_exit_code_on(tmp_path: Path) -> None:
    fake_spark(tmp_path / "home")
    command = [sys.executable, "-m", "tidelog", "spark", "submit", "--archive", "env.tgz"]
    env = {**os.environ, "SPARK_HOME": str(tmp_path / "home")}

    def executed() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "--execute", "job.py", "x"],
            cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip

    refused = executed()
    assert (refused.returncode, refused.stdout) == (Exit.USAGE, "")
    assert "mkdir env && tar -xf env.tgz -C env" in refused.stderr
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").touch()
    done = executed()
    assert done.returncode == 7, done.stderr
    assert done.stdout.split("|")[:3] == ["./env/bin/python", "--archives", "env.tgz#env"]


def test_spark_submit_is_that_of_spark_home_of_pyspark_or_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert submit.find_program().endswith("pyspark/bin/spark-submit")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "home" / "bin"))
    with pytest.raises(UsageError, match="no spark-submit"):
        submit.find_program()
    program = str(fake_spark(tmp_path / "home"))
    assert submit.find_program() == program
    other = str(fake_spark(tmp_path / "other"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "other"))
    assert submit.find_program() == other


def test_doctor_says_what_is_missing_and_what_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "java 8" / "bin" / "java"
    java.parent.mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java 8"))
    checks = {c.name: c for c in doctor.examine(None)}
    assert "not found in JAVA_HOME" in checks["java"].found
    assert "openjdk-17" in (checks["java"].next or "")
    java.write_text("#!/bin/sh\necho 'openjdk version \"8.0.1\"' >&2\n")
    java.chmod(0o755)
    checks = {c.name: c for c in doctor.examine(None)}
    assert checks["java"].found.startswith("8 ")
    assert not checks["java"].passed
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\necho java.base\n")
    checks = {c.name: c for c in doctor.examine(None)}
    assert checks["java"].passed
    assert "trimmed" in (checks["java modules"].next or "")
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/env")
    monkeypatch.setattr(sys, "executable", "/a b/python")
    checks = {c.name: c for c in doctor.examine("local[1]")}
    assert "space" in (checks["interpreter"].next or "")
    assert "another Python" in (checks["PYSPARK_PYTHON"].next or "")
    assert "session" not in checks
    done = run("spark", "doctor", "--no-session", "--json")
    assert done.exit_code == Exit.FOUND  # it was 1, a bug
    assert {row["check"] for row in json.loads(done.stdout)["checks"]} == set(checks)


def test_doctor_takes_one_interpreter_by_two_names_for_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Names were compared: python and python3 of one environment were two.
    for name in ("one", "two"):
        (tmp_path / name / "bin").mkdir(parents=True)
        for program in ("python", "python3"):
            (tmp_path / name / "bin" / program).symlink_to(sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "one" / "bin" / "python3"))
    for name, passed in (("one", True), ("two", False)):
        monkeypatch.setattr(sys, "executable", str(tmp_path / name / "bin" / "python"))
        checks = {c.name: c for c in doctor.examine(None)}
        assert checks["PYSPARK_PYTHON"].passed is passed


def test_load_says_which_option_replaces_a_load(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("key,value\na,1\n")
    for exit_code in (Exit.DONE, Exit.USAGE):
        done = run("spark", "load", tmp_path / "in.csv", tmp_path / "load", "--map", "m",
                   "--partitions", "2")  # fmt: skip
        assert done.exit_code == exit_code, done.output
    assert "--replace" in done.stderr


def test_doctor_misses_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    pyspark, pyarrow, *_ = doctor.examine(None)
    for check in (pyspark, pyarrow):
        assert not check.passed
        assert "tidelog[spark]" in (check.next or "")
    monkeypatch.setattr(doctor, "version", lambda name: "3.5.1")
    assert "4.2 or newer, below 4.4, is needed" in (next(doctor.examine(None)).next or "")
