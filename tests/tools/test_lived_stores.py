"""The commands on stores whose log was rotated, trimmed and recovered by the engine itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from support.lived import DURABILITIES, LIMITS, live
from support.real_stores import expect_sound, opened
from tidelog import codecs
from tidelog.wal.files import ReadOnlyDirectory
from tidelog.wal.segments import segment_numbers

Run = Callable[..., Result]


def verdict_of(run: Run, path: Path) -> dict[str, Any]:
    done = run("wal", "verify", path, "--json")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    assert done.exit_code == (0 if found["whole"] else 3)
    return found


def segments_of(path: Path) -> int:
    return len(segment_numbers(ReadOnlyDirectory(str(path / "wal"))))


def one_by_one(db: Any, mapping: Any) -> None:
    for number in range(120):
        mapping[b"%d" % number] = bytes(1500)


def in_groups(db: Any, mapping: Any) -> None:
    for group in range(12):
        mapping.update_many([(b"%d-%d" % (group, n), bytes(1500)) for n in range(10)])


def in_transactions(db: Any, mapping: Any) -> None:
    for number in range(120):
        with db.transaction() as tx:
            tx[mapping][b"%d" % number] = bytes(1500)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("write", [one_by_one, in_groups, in_transactions])
def test_a_log_that_the_engine_rotated_is_whole(
    durability: str, write: Callable[[Any, Any], None], tmp_path: Path, run: Run
) -> None:
    # Every STATE that begins a segment was taken for a proof that the numbers of the transactions
    # behind it, in the same frame, were in the log before.
    path = tmp_path / "rotated.tl"
    with opened(path, partitions=2, durability=durability, **LIMITS) as db:
        write(db, db.map("m", key=codecs.Bytes, value=codecs.Bytes))
    assert segments_of(path) > 1
    found = verdict_of(run, path)
    assert (found["whole"], found["problems"]) == (True, [])


@pytest.mark.parametrize("number", [1, 2])
def test_a_rotated_segment_alone_is_whole(number: int, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "rotated.tl"
    with opened(path, partitions=2, **LIMITS) as db:
        one_by_one(db, db.map("m", key=codecs.Bytes, value=codecs.Bytes))
    assert verdict_of(run, path / "wal" / f"{number:016d}.log")["problems"] == []


@pytest.mark.slow
@pytest.mark.parametrize("retain_bytes", [1 << 30, 200 << 10])
@pytest.mark.parametrize("seed", range(6))
def test_a_log_with_a_long_history_is_whole(
    seed: int, retain_bytes: int, tmp_path: Path, run: Run
) -> None:
    made = live(tmp_path / "lived.tl", seed, retain_bytes=retain_bytes, crash_at_end=seed % 2 == 1)
    expect_sound(made.path)
    found = verdict_of(run, made.path)
    assert (found["whole"], found["problems"]) == (True, []), made.done


@pytest.mark.slow
def test_every_reading_command_reads_a_store_with_a_long_history(tmp_path: Path, run: Run) -> None:
    made = live(tmp_path / "lived.tl", 3)
    for command in ("ls", "dump", "verify", "stat"):
        assert run("wal", command, made.path).exit_code == 0, command
    for command in ("info", "verify", "check-readers"):
        assert run("db", command, made.path).exit_code == 0, command
    counted = json.loads(run("kv", "count", made.path, "--json").stdout)["counts"]
    assert {row["map"]: row["keys"] for row in counted} == {
        name: len(pairs) for name, pairs in made.maps.items()
    }
    for name, pairs in made.maps.items():
        assert len(run("kv", "scan", made.path, name).stdout.splitlines()) == len(pairs)
        exported = run("kv", "export", made.path, name).stdout.splitlines()
        assert len(exported) == len(pairs) + 1
