"""Damaged values: how errors name them, and commands that go on past them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

import tidelog
from tidelog import codecs
from tidelog.affinity.errors import CorruptDataError, DiskFullError, UsageError
from tidelog.engine.api.database import session_of
from tidelog.engine.upkeep.salvage import Salvaged, salvaged_batches
from tidelog.tools.db import cli as db_commands
from tidelog.tools.db.stores import appearing_whole

Run = Callable[..., Result]

DAMAGED = (7, 150)
COUNT = 200


def value_of(number: int) -> str:
    return f"value-{number:05}-of-the-map"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store whose map ``m`` has two damaged values, and a whole map beside it."""
    path = tmp_path / "damaged.tl"
    with tidelog.open(path, partitions=4) as db:
        db.map("m", key=codecs.I64, value=codecs.Str).update_many(
            [(number, value_of(number)) for number in range(COUNT)]
        )
        db.map("whole", key=codecs.Str, value=codecs.Str)["a"] = "b"
    file = path / "data" / "data.mdb"
    content = file.read_bytes()
    for number in DAMAGED:
        text = value_of(number).encode()
        content = content.replace(text, text.replace(b"value", b"valve"))
    file.write_bytes(content)
    return path


def test_an_error_about_a_value_names_map_and_key(damaged: Path) -> None:
    # It named the number of the map, and the encoded key in hex.
    with tidelog.open(damaged, read_only=True) as db:
        mapping = db.map("m")
        for read in (
            lambda: mapping[7],
            lambda: mapping.get_many([1, 7]),
            lambda: list(mapping.items()),
            lambda: db.snapshot()[mapping][7],
            lambda: list(db.snapshot()[mapping].range(5, 9)),
        ):
            with pytest.raises(CorruptDataError, match=r"map 'm', key (7|150) ") as caught:
                read()
            assert caught.value.map == "m"
            assert caught.value.key in [codecs.I64.encode(number) for number in DAMAGED]
    with tidelog.open(damaged) as writer, writer.transaction() as tx:
        inside = tx[writer.map("m")]
        for read in (lambda: inside[7], lambda: list(inside.items())):
            with pytest.raises(CorruptDataError, match=r"map 'm', key (7|150) "):
                read()


def test_a_check_names_map_and_key(damaged: Path, run: Run) -> None:
    problems = json.loads(run("db", "verify", damaged, "--json").stdout)["problems"]
    for number in DAMAGED:
        assert any(f"map 'm', key {number} " in problem for problem in problems), problems


def test_a_scan_goes_on_past_damaged_values_when_told_to(damaged: Path, run: Run) -> None:
    assert run("kv", "scan", damaged, "m").exit_code == 3
    for options in ([], ["--reverse"], ["--json"], ["--jsonl"]):
        done = run("kv", "scan", damaged, "m", "--skip-damaged", *options)
        assert done.exit_code == 3
        assert done.stdout.count("value-") in (COUNT - 2, 2 * (COUNT - 2))
        skipped = [line for line in done.stderr.splitlines() if line.startswith("skipped: ")]
        assert ["map 'm', key 7 " in line for line in sorted(skipped)].count(True) == 1
        assert len(skipped) == 2
        assert done.stderr.splitlines()[-1] == "skipped 2 damaged values"


def test_only_damage_in_the_range_is_told(damaged: Path, run: Run) -> None:
    done = run("kv", "scan", damaged, "m", "--skip-damaged", "--start", "10", "--stop", "20")
    assert (done.exit_code, len(done.stdout.splitlines()), done.stderr) == (0, 10, "")


def test_a_count_goes_on_past_damaged_values_when_told_to(damaged: Path, run: Run) -> None:
    assert run("kv", "count", damaged).exit_code == 3
    done = run("kv", "count", damaged, "--skip-damaged", "--json")
    counts = {row["map"]: row["keys"] for row in json.loads(done.stdout)["counts"]}
    assert (done.exit_code, counts) == (3, {"m": COUNT - 2, "whole": 1})


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_export_goes_on_past_damaged_values_when_told_to(
    kind: str, damaged: Path, tmp_path: Path, run: Run
) -> None:
    file = tmp_path / f"out.{kind}"
    assert run("kv", "export", damaged, "m", "-o", file).exit_code == 3
    assert not file.exists()
    done = run("kv", "export", damaged, "m", "-o", file, "--skip-damaged")
    assert done.exit_code == 3
    assert len(file.read_text().splitlines()) == 1 + COUNT - 2
    assert run("kv", "export", damaged, "whole", "--skip-damaged").exit_code == 0


def test_a_damaged_value_that_was_written_over_is_not_told(damaged: Path, run: Run) -> None:
    with tidelog.open(damaged) as db:
        mapping = db.map("m")
        for number in (*DAMAGED, COUNT, COUNT + 1):  # each sync is told by the next frame
            mapping[number] = "again"
        session_of(db).abandon()
    done = run("kv", "count", damaged, "m", "--skip-damaged", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    with tidelog.open(damaged):
        pass
    assert run("db", "verify", damaged).exit_code == 0


# ------------------------------------------------------------------ salvage


def test_salvage_writes_what_can_be_read_and_lists_what_cannot(
    damaged: Path, tmp_path: Path, run: Run, unchanged: Callable[[Path], object]
) -> None:
    for segment in (damaged / "wal").glob("*.log"):
        segment.unlink()  # which has the values still
    before = unchanged(damaged)
    out = tmp_path / "out.tl"
    done = run("db", "salvage", damaged, out)
    assert done.exit_code == 3
    for number in DAMAGED:
        assert f"lost: the value of map 'm', key {number} (partition " in done.stdout
    assert "m\t198" in done.stdout
    assert unchanged(damaged) == before
    assert run("db", "verify", out).exit_code == 0
    with tidelog.open(out) as db:
        expected = {n: value_of(n) for n in range(COUNT) if n not in DAMAGED}
        assert dict(db.map("m").items()) == expected
        assert dict(db.map("whole").items()) == {"a": "b"}


def test_salvage_takes_damaged_values_from_the_log(damaged: Path, tmp_path: Path, run: Run) -> None:
    done = run("db", "salvage", damaged, tmp_path / "out.tl", "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["complete"], told["lost"]) == (0, True, [])
    assert told["maps"] == [{"map": "m", "keys": COUNT}, {"map": "whole", "keys": 1}]


@pytest.mark.parametrize("there_before", [False, True])
@pytest.mark.parametrize("error", [DiskFullError("no space"), KeyboardInterrupt()])
def test_a_salvage_that_fails_leaves_no_store(
    error: BaseException,
    there_before: bool,
    damaged: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(found: Salvaged, size: int) -> Iterator[object]:
        yield next(iter(salvaged_batches(found, 10)))
        raise error

    monkeypatch.setattr(db_commands, "salvaged_batches", failing)
    out = tmp_path / "out.tl"
    if there_before:
        out.mkdir()
    assert run("db", "salvage", damaged, out).exit_code in (10, 130)
    assert out.exists() == there_before
    assert not there_before or not list(out.iterdir())


def test_salvage_keeps_codecs_that_are_not_known_here(tmp_path: Path, run: Run) -> None:
    from tidelog.engine.codecs.registry import Codec

    path, out = tmp_path / "own.tl", tmp_path / "out.tl"
    own = Codec(name="acme.x", version=3, encode=bytes, decode=bytes)
    with tidelog.open(path) as db:
        db.map("m", key=own, value=own)[b"k"] = b"v"
    assert run("db", "salvage", path, out).exit_code == 0
    with tidelog.open(out, codecs=[own]) as db:
        assert db.map("m")[b"k"] == b"v"


def test_salvage_writes_over_nothing(damaged: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert run("db", "salvage", damaged, tmp_path / "full").exit_code == 7
    assert run("db", "salvage", damaged, damaged / "inside").exit_code == 2
    done = run("db", "salvage", tmp_path / "nix", tmp_path / "out")
    assert done.exit_code == 4
    assert f"there is nothing at {tmp_path / 'nix'}" in done.stderr
    with tidelog.open(damaged):
        assert run("db", "salvage", damaged, tmp_path / "out").exit_code == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.tl", "full"]


KILLED = """
import os, signal
from tidelog.tools import main
from tidelog.tools.db import cli as db
batches = db.salvaged_batches
def dying(found, size):
    yield next(iter(batches(found, 10)))
    os.kill(os.getpid(), signal.SIGKILL)
db.salvaged_batches = dying
main.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("there_before", [False, True])
def test_a_salvage_that_is_killed_leaves_nothing_that_looks_whole(
    damaged: Path, tmp_path: Path, run: Run, there_before: bool
) -> None:
    """Half of what could be read was there under the name that was asked for, as a store."""
    out = tmp_path / "out.tl"
    if there_before:
        out.mkdir(mode=0o750)
    arguments = ["db", "salvage", str(damaged), str(out)]
    died = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert died.returncode == -signal.SIGKILL
    assert not out.exists() or not list(out.iterdir())
    done = run(*arguments)
    assert (done.exit_code, "out.tl.part is there" in done.stderr) == (7, True)
    shutil.rmtree(tmp_path / "out.tl.part")
    assert run(*arguments).exit_code == 0  # what is damaged was in the log
    assert run("db", "verify", out).exit_code == 0
    assert out.stat().st_mode & 0o777 == (0o750 if there_before else 0o700)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.tl", "out.tl"]


def test_what_a_killed_copy_leaves_is_refused_with_what_to_do(
    damaged: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "copy" / "data").mkdir(parents=True)
    (tmp_path / "copy" / "data" / "data.mdb").touch()
    done = run("db", "backup", damaged, tmp_path / "copy")
    assert done.exit_code == 7
    assert "as a copy that was killed leaves" in done.stderr
    assert "Delete it if it is that" in done.stderr


def test_a_copy_that_fails_can_be_tried_again(damaged: Path, tmp_path: Path, run: Run) -> None:
    # The empty folders of the first try made the next one end with 7.
    copy = tmp_path / "copy.tl"
    for name in ("wal", "data", "readers"):
        (copy / name).mkdir(parents=True)
    assert run("db", "backup", damaged, copy, "--no-verify").exit_code == 0


def test_a_store_that_appears_takes_the_place_of_empty_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = list[int](), os.fsync

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    out = tmp_path / "out.tl"
    for name in ("wal", "data", "readers"):
        (out / name).mkdir(parents=True)
    with appearing_whole(str(out)) as beside:
        Path(beside, "manifest").touch()
    assert os.listdir(out) == ["manifest"]
    assert synced == [tmp_path.stat().st_ino]  # or a power cut would take the name away


def test_no_store_can_appear_in_the_place_of_a_mount_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "out.tl"))
    with pytest.raises(UsageError, match="mount point"), appearing_whole(str(tmp_path / "out.tl")):
        pytest.fail("the work was begun")
    assert os.listdir(tmp_path) == []


def test_a_store_can_appear_behind_a_link_to_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "out.tl").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "out.tl")
    with appearing_whole(str(tmp_path / "link")) as beside:
        Path(beside, "manifest").touch()
    assert os.listdir(tmp_path / "disk" / "out.tl") == ["manifest"]
    assert sorted(os.listdir(tmp_path)) == ["disk", "link"]
