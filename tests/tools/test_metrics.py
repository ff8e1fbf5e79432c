"""``tidelog db info --prometheus``: a valid form, and right beside a writer or after a life."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from prometheus_client.parser import text_string_to_metric_families

import tidelog
from support.lived import live
from tidelog import codecs
from tidelog.engine.api.database import session_of

Run = Callable[..., Result]


def families(text: str) -> dict[str, Any]:
    assert text.endswith("\n")
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(text: str) -> dict[str, float]:
    return {name: family.samples[0].value for name, family in families(text).items()}


def test_every_family_has_a_name_a_help_a_type_and_the_store(run: Run, shop: Path) -> None:
    done = run("db", "info", shop, "--prometheus")
    assert done.exit_code == 0
    found = families(done.stdout)
    for name, family in found.items():
        assert name.startswith("tidelog_")
        assert family.documentation.endswith(".")
        assert family.type == ("counter" if name == "tidelog_updates" else "gauge")
        assert [sample.labels["store"] for sample in family.samples] == [str(shop)]
    assert found["tidelog_updates"].samples[0].name == "tidelog_updates_total"
    assert len(found["tidelog_store_info"].samples[0].labels["store_id"]) == 32


def test_the_metrics_are_those_of_the_store(run: Run, shop: Path) -> None:
    with tidelog.open(shop) as db:
        told = db.statistics()
    found = values(run("db", "info", shop, "--prometheus").stdout)
    assert found["tidelog_partitions"] == 4
    assert found["tidelog_maps"] == 3
    assert found["tidelog_updates"] == 6
    assert found["tidelog_missing_updates"] == 0
    assert found["tidelog_writer_open"] == found["tidelog_readers"] == 0
    assert found["tidelog_log_refused"] == 0
    assert found["tidelog_log_end_position"] == told.position
    assert found["tidelog_log_bytes"] == sum(
        file.stat().st_size for file in (shop / "wal").glob("*.log")
    )
    assert found["tidelog_newest_commit_timestamp_seconds"] > 1.7e9


@pytest.mark.parametrize("name", ['a"b\\n.tl', "two\nlines.tl", "käse, {x=1}.tl"])
def test_any_path_is_a_label(name: str, tmp_path: Path, run: Run) -> None:
    path = tmp_path / name
    tidelog.open(path, partitions=1).close()
    found = families(run("db", "info", path, "--prometheus").stdout)
    labels = [family.samples[0].labels["store"] for family in found.values()]
    assert set(labels) == {str(path)}


def test_an_empty_store_has_no_time_of_a_commit(tmp_path: Path, run: Run) -> None:
    tidelog.open(tmp_path / "s.tl", partitions=1).close()
    found = values(run("db", "info", tmp_path / "s.tl", "--prometheus").stdout)
    assert "tidelog_newest_commit_timestamp_seconds" not in found
    assert found["tidelog_data_file_keys"] == 0


def test_prometheus_and_json_exclude_each_other(run: Run, shop: Path) -> None:
    assert run("db", "info", shop, "--prometheus", "--json").exit_code == 2


WRITER = """
import sys, tidelog
with tidelog.open(sys.argv[1]) as db:
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_live_writer_is_seen(run: Run, shop: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(shop)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        found = values(run("db", "info", shop, "--prometheus").stdout)
    assert found["tidelog_writer_open"] == 1


def test_readers_are_those_that_are_alive(run: Run, shop: Path) -> None:
    (shop / "readers").mkdir(exist_ok=True)
    alive, dead = shop / "readers" / ("a" * 16), shop / "readers" / ("d" * 16)
    dead.write_text("0\n")  # what a process that died leaves behind: nobody has locked it
    with alive.open("w") as slot:
        fcntl.flock(slot, fcntl.LOCK_EX)
        found = values(run("db", "info", shop, "--prometheus").stdout)
    assert found["tidelog_readers"] == 1


@pytest.mark.slow
def test_metrics_of_a_long_history(tmp_path: Path, run: Run) -> None:
    made = live(tmp_path / "lived.tl", 4, retain_bytes=200 << 10, crash_at_end=True)
    found = values(run("db", "info", made.path, "--prometheus").stdout)
    assert found["tidelog_maps"] == len(made.maps)
    assert found["tidelog_log_segments"] == len(list((made.path / "wal").glob("*.log")))
    assert found["tidelog_checkpoint_position"] <= found["tidelog_log_end_position"]


def test_a_damaged_log_is_a_metric_too(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "s.tl"
    db = tidelog.open(path, partitions=1)
    stock = db.map("m", key=codecs.Str, value=codecs.Str)
    stock["a"], stock["b"] = "x" * 500, "y" * 500
    session_of(db).abandon()
    log = next((path / "wal").glob("*.log"))
    log.write_bytes(log.read_bytes().replace(b"x" * 100, b"z" * 100, 1))
    done = run("db", "info", path, "--prometheus")
    assert done.exit_code == 3
    assert values(done.stdout)["tidelog_log_refused"] == 1
