"""``tidelog spark`` without a JVM."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from click.testing import Result

import tidelog
from tidelog.pipeline import doctor
from tidelog.tools.exits import Exit

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
    assert done.exit_code == Exit.FAILURE
    assert {row["check"] for row in json.loads(done.stdout)["checks"]} == set(checks)


def test_doctor_misses_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    pyspark, pyarrow, *_ = doctor.examine(None)
    for check in (pyspark, pyarrow):
        assert not check.passed
        assert "tidelog[spark]" in (check.next or "")
    monkeypatch.setattr(doctor, "version", lambda name: "3.5.1")
    assert "4.3 is needed" in (next(doctor.examine(None)).next or "")
