"""``tidelog db``: what a store is, whether it is whole, and copies of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import tidelog
from support.local_clusters import document
from tidelog import codecs
from tidelog.engine.api.database import session_of
from tidelog.engine.files import manifest as manifests
from tidelog.engine.system.disk import RealDisk
from tidelog.engine.system.environment import LockHandle
from tidelog.wal.format import HEADER_SIZE, segment_name

Run = Callable[..., Result]
Fingerprint = Callable[[Path], dict[str, tuple[str, int]]]

READER = """
import sys, tidelog
with tidelog.open(sys.argv[1], read_only=True):
    print("open", flush=True)
    sys.stdin.read()
"""


WRITER = """
import sys, tidelog
with tidelog.open(sys.argv[1]) as db:
    db.map("numbers")[6] = "six"
    db.checkpoint()
    print("open", flush=True)
    sys.stdin.read()
"""


def in_child(program: str, store: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program that holds a store open until it is killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        yield child
        child.kill()


@pytest.fixture
def writer(shop: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store open for writing, and has written one more key."""
    yield from in_child(WRITER, shop)


@pytest.fixture
def reader(shop: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store open for reading."""
    yield from in_child(READER, shop)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store whose writer was killed behind two commits; nothing says that the last is durable."""
    path = tmp_path / "killed.tl"
    db = tidelog.open(path)
    stock = db.map("m", key=codecs.Str, value=codecs.Str)
    stock["a"] = "1"
    stock["b"] = "2"
    session_of(db).abandon()
    return path


# ------------------------------------------------------------------ info


def test_info_tells_identity_maps_counters_and_log(run: Run, shop: Path) -> None:
    found = document(run("db", "info", shop, "--json"))
    assert found["v"] == 1
    assert found["partitions"] == 4
    assert found["writer_pid"] is None
    assert [row["map"] for row in found["maps"]] == ["stock", "orders", "numbers"]
    assert found["maps"][1]["key_codec"] == {"name": "tuple", "version": 1}
    assert found["counters"]["updates"] == 6
    assert found["counters"]["gaps"] == 0
    assert found["log"]["end"]["refused"] is False
    assert found["log"]["segments"][0]["held_by"][0] == "being written"
    assert found["clean_end"] == found["log"]["end_position"]
    assert (found["cluster"], found["member"], found["copies"]) == (None, None, None)


def test_info_for_people(run: Run, shop: Path) -> None:
    done = run("db", "info", shop)
    assert done.exit_code == 0
    assert "partitions:    4\n" in done.stdout
    assert "stock\t16\tstr\tmsgpack\n" in done.stdout


@pytest.mark.slow
def test_info_beside_a_writer_names_it_and_shows_what_is_newer_than_the_checkpoint(
    run: Run, shop: Path, writer: subprocess.Popen[str]
) -> None:
    found = document(run("db", "info", shop, "--json"))
    assert found["writer_pid"] == writer.pid
    assert found["counters"]["updates"] == 7
    assert found["log"]["bytes_after_checkpoint"] > 0


@pytest.mark.slow
def test_readers_are_listed_and_dead_ones_are_freed(
    run: Run, shop: Path, reader: subprocess.Popen[str]
) -> None:
    (slot,) = document(run("db", "check-readers", shop, "--json"))["readers"]
    assert slot["slot"].startswith(f"{reader.pid}-")
    assert slot["alive"] is True
    held = document(run("db", "info", shop, "--json"))["log"]["segments"][0]["held_by"]
    assert any(name.startswith("reader") for name in held)
    reader.kill()
    reader.wait()
    found = document(run("db", "check-readers", shop, "--json"))
    assert found["freed_slots"] == [slot["slot"]]
    assert found["readers"] == []


def test_looking_changes_nothing(run: Run, shop: Path, unchanged: Fingerprint) -> None:
    before = unchanged(shop)
    for command in ("info", "verify", "check-readers"):
        assert run("db", command, shop).exit_code == 0
    assert unchanged(shop) == before
    assert os.listdir(shop / "readers") == []


# ------------------------------------------------------------------ verify


def test_a_whole_store_verifies(run: Run, shop: Path) -> None:
    found = document(run("db", "verify", shop, "--json"))
    assert found["whole"] is True
    assert found["maps"] == 3
    assert found["problems"] == []


@pytest.mark.slow
@pytest.mark.usefixtures("writer")
def test_a_store_can_be_read_and_verified_beside_its_writer(run: Run, shop: Path) -> None:
    assert document(run("db", "verify", shop, "--json"))["whole"] is True
    assert run("kv", "scan", shop, "numbers").stdout == "5\tfive\n6\tsix\n"
    assert run("kv", "put", shop, "numbers", "7", "seven").exit_code == 7


def spoil(path: Path, find: bytes) -> None:
    data = path.read_bytes()
    at = data.rindex(find)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


DAMAGE: list[tuple[str, Callable[[Path], object], int]] = [
    ("a stored value", lambda s: spoil(s / "data" / "data.mdb", b"five"), 3),
    ("a record of the log", lambda s: spoil(s / "wal" / segment_name(1), b"import-42"), 3),
    ("the data file cut", lambda s: os.truncate(s / "data" / "data.mdb", 8192), 3),
    ("the data file of zeros", lambda s: (s / "data" / "data.mdb").write_bytes(bytes(9000)), 3),
    ("the manifest", lambda s: spoil(s / "manifest", b"store_id"), 3),
    ("the log cut", lambda s: os.truncate(s / "wal" / segment_name(1), HEADER_SIZE), 3),
    ("no manifest", lambda s: (s / "manifest").unlink(), 3),
    ("no data file", lambda s: (s / "data" / "data.mdb").unlink(), 4),
]


@pytest.mark.parametrize(("name", "damage", "code"), DAMAGE)
def test_damage_is_found_and_left_as_it_is(
    name: str,
    damage: Callable[[Path], object],
    code: int,
    run: Run,
    shop: Path,
    unchanged: Fingerprint,
) -> None:
    damage(shop)
    before = unchanged(shop)
    done = run("db", "verify", shop)
    assert done.exit_code == code, done.stdout + done.stderr
    assert "problem: " in done.stdout or done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert unchanged(shop) == before
    for command in (["kv", "scan", shop, "numbers"], ["db", "info", shop]):
        other = run(*command)
        assert other.exit_code in (0, 3, 4), other.stderr
        assert "TL-" in other.stderr or other.exit_code == 0


def test_a_store_of_a_later_format_ends_with_8(run: Run, shop: Path) -> None:
    directory = RealDisk().directory(str(shop))
    later = manifests.read(directory)
    manifests.write(directory, manifests.Manifest(**{**vars_of(later), "format": 2}))
    for command in (["db", "info"], ["db", "verify"], ["kv", "count"], ["wal", "ls"]):
        done = run(*command, shop)
        assert done.exit_code == 8, done.stdout + done.stderr
        assert "format 2" in done.stderr
        assert "format 1" in done.stderr


def vars_of(manifest: manifests.Manifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in manifest.__dataclass_fields__}


def test_the_loss_of_a_log_before_the_first_checkpoint_is_found(run: Run, killed: Path) -> None:
    # `db verify` ended with 1, as by a bug.
    for segment in (killed / "wal").glob("*.log"):
        segment.unlink()
    for command in (("wal", "verify"), ("db", "verify")):
        done = run(*command, killed)
        assert done.exit_code == 3
        assert "no segment is left of a log that had content" in done.stdout


@pytest.mark.parametrize("kept", [None, 0, 4096])
def test_the_loss_of_a_whole_log_is_found(kept: int | None, run: Run, tmp_path: Path) -> None:
    # It was "log: whole", and "wrote all of it".
    path = tmp_path / "killed.tl"
    db = tidelog.open(path)
    stock = db.map("m", key=codecs.Str, value=codecs.Str)
    stock["a"] = "1"
    db.checkpoint()
    stock["b"] = "2"
    session_of(db).abandon()
    for segment in (path / "wal").glob("*.log"):
        segment.unlink()
        if kept is not None:
            segment.write_bytes(bytes(kept))
    done = run("wal", "verify", path)
    assert done.exit_code == 3, done.stdout
    assert "log: damaged" in " ".join(done.stdout.split())
    done = run("db", "salvage", path, tmp_path / "saved.tl")
    assert done.exit_code == 3, done.stdout
    assert "lost: all of the log behind position" in done.stdout
    assert "wrote what could be read" in done.stderr
    assert run("kv", "scan", tmp_path / "saved.tl", "m").stdout == "a\t1\n"


# ------------------------------------------------------------------ copies


def test_a_backup_is_a_store_of_its_own(
    run: Run, shop: Path, tmp_path: Path, unchanged: Fingerprint
) -> None:
    target, before = tmp_path / "copy.tl", unchanged(shop)
    found = document(run("db", "backup", shop, target, "--json"))
    assert unchanged(shop) == before
    assert found["verified"] is True
    assert found["maps"] == 3
    assert run("db", "verify", target).exit_code == 0
    assert run("kv", "put", target, "numbers", 6, "six").exit_code == 0
    assert run("kv", "get", shop, "numbers", 6).exit_code == 4


@pytest.mark.slow
@pytest.mark.usefixtures("writer")
def test_a_backup_is_taken_beside_a_writer(run: Run, shop: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.tl"
    assert document(run("db", "backup", shop, target, "--json"))["verified"] is True
    assert run("kv", "get", target, "numbers", 6).stdout == "six\n"


def test_a_compacted_copy_holds_the_same_in_less_space(
    run: Run, tmp_path: Path, unchanged: Fingerprint
) -> None:
    store, target = tmp_path / "wide.tl", tmp_path / "slim.tl"
    with tidelog.open(store, partitions=1) as db:
        data = db.map("data", key=codecs.U64, value=codecs.Bytes)
        data.update_many([(number, bytes(3000)) for number in range(500)])
        db.checkpoint()
        data.update_many([(number, b"small") for number in range(500)])
    before = unchanged(store)
    found = document(run("db", "compact", store, "--out", target, "--json"))
    assert found["verified"] is True
    assert (target / "data" / "data.mdb").stat().st_size < found["data_bytes_before"] / 2
    assert unchanged(store) == before
    shown = run("kv", "scan", store, "data", "--jsonl").stdout
    assert run("kv", "scan", target, "data", "--jsonl").stdout == shown


@pytest.mark.parametrize("command", [["backup"], ["compact", "--out"]])
def test_a_copy_of_a_store_whose_writer_was_killed_has_all_its_commits(
    command: list[str], run: Run, killed: Path, tmp_path: Path
) -> None:
    # The last one was left out, with exit 0 and "verified: yes".
    name, *option = command
    assert run("kv", "scan", killed, "m").stdout == "a\t1\n"
    done = run("db", name, killed, *option, tmp_path / "copy.tl")
    assert done.exit_code == 0, done.stderr
    assert "left out" not in done.stderr
    for store in (killed, tmp_path / "copy.tl"):
        assert run("kv", "scan", store, "m").stdout == "a\t1\nb\t2\n"


@pytest.mark.parametrize("command", [["backup"], ["compact", "--out"]])
@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_copy_of_such_a_store_that_cannot_be_written_tells_what_it_lacks(
    code: int,
    command: list[str],
    run: Run,
    killed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unchanged: Fingerprint,
) -> None:
    name, *option = command
    before, lock = unchanged(killed), RealDisk.lock

    def refuse(disk: RealDisk, path: str, shared: bool = False) -> LockHandle:
        if path == str(killed / "lock") and not shared:
            raise OSError(code, os.strerror(code), path)
        return lock(disk, path, shared=shared)

    monkeypatch.setattr(RealDisk, "lock", refuse)
    done = run("-q", "db", name, killed, *option, tmp_path / "copy.tl")
    assert done.exit_code == 0, done.stderr
    assert "left out of the copy" in done.stderr
    assert unchanged(killed) == before
    assert run("kv", "scan", tmp_path / "copy.tl", "m").stdout == "a\t1\n"


@pytest.mark.slow
def test_a_store_in_use_is_not_compacted(
    run: Run, shop: Path, tmp_path: Path, writer: subprocess.Popen[str]
) -> None:
    done = run("db", "compact", shop, "--out", tmp_path / "copy.tl")
    assert done.exit_code == 7
    assert f"process {writer.pid}" in done.stderr
    assert not (tmp_path / "copy.tl").exists()


@pytest.mark.parametrize("command", [["backup"], ["compact", "--out"]])
def test_nothing_is_written_over(command: list[str], run: Run, shop: Path, tmp_path: Path) -> None:
    name, *option = command
    place = tmp_path / "mine"
    place.mkdir()
    (place / "file").write_text("mine")
    for target in (place, place / "file"):
        done = run("db", name, shop, *option, target)
        assert done.exit_code == 7
        assert len(done.stderr.splitlines()) == 3
    assert (place / "file").read_text() == "mine"
    assert os.listdir(place) == ["file"]


@pytest.mark.parametrize(
    "command", [["info"], ["verify"], ["check-readers"], ["backup", "x"], ["compact", "--out", "x"]]
)
def test_where_there_is_no_store(command: list[str], run: Run, tmp_path: Path) -> None:
    name, *more = command
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    more = [str(tmp_path / part) if part == "x" else part for part in more]
    for place, code in (("nix", 4), ("empty", 4), ("file", 2)):
        done = run("db", name, tmp_path / place, *more)
        assert done.exit_code == code
        assert len(done.stderr.splitlines()) == 3
    assert sorted(os.listdir(tmp_path)) == ["empty", "file"]
