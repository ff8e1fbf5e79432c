"""``tidelog kv maps``, ``drop`` and ``rename``, ``db restore`` and ``db checkpoint``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import tidelog
from support.lived import live
from tidelog import codecs
from tidelog.engine.api.database import session_of
from tidelog.engine.codecs.registry import Codec

Run = Callable[..., Result]
Fingerprint = Callable[[Path], Any]

MONEY: Codec[int] = Codec(
    name="acme.money", version=2, encode=lambda value: b"%d" % value, decode=int
)


def contents(path: Path) -> dict[str, dict[Any, Any]]:
    with tidelog.open(path, read_only=True) as db:
        return {name: dict(db.map(name).items()) for name in db.maps()}


# ------------------------------------------------------------------ maps


def test_maps_are_listed_with_their_codecs(run: Run, shop: Path) -> None:
    with tidelog.open(shop) as db:
        db.map("prices", key=codecs.Str, value=MONEY)
    done = run("kv", "maps", shop)
    assert done.stdout.splitlines() == [
        "map\tnamespace\tkey_codec\tvalue_codec\tcodecs_known",
        "numbers\t18\ti64 1\tstr 1\tyes",
        "orders\t17\ttuple 1\tbytes 1\tyes",
        "prices\t19\tstr 1\tacme.money 2\tno",
        "stock\t16\tstr 1\tmsgpack 1\tyes",
    ]
    found = json.loads(run("kv", "maps", shop, "--json").stdout)
    lines = run("kv", "maps", shop, "--jsonl").stdout.splitlines()
    assert found["maps"] == [
        {name: value for name, value in json.loads(line).items() if name not in ("v", "type")}
        for line in lines
    ]
    assert found["maps"][2]["value_codec"] == {"name": "acme.money", "version": 2}


def test_a_map_is_not_dropped_without_a_yes(run: Run, shop: Path, unchanged: Fingerprint) -> None:
    before = unchanged(shop)
    done = run("kv", "drop", shop, "stock")
    assert (done.exit_code, "Give --yes" in done.stderr) == (7, True)
    assert run("kv", "drop", shop, "stcok").exit_code == 4
    assert unchanged(shop) == before


def test_a_map_is_dropped(run: Run, shop: Path) -> None:
    assert run("kv", "drop", shop, "stock", "--yes").stderr == "dropped 'stock'\n"
    found = json.loads(run("kv", "drop", shop, "orders", "--yes", "--json").stdout)
    assert found == {"v": 1, "type": "dropped", "map": "orders"}
    assert list(contents(shop)) == ["numbers"]
    assert run("kv", "drop", shop, "stock", "--yes").exit_code == 4
    assert run("db", "verify", shop).exit_code == 0


def test_a_map_gets_another_name(run: Run, shop: Path) -> None:
    before = contents(shop)["stock"]
    assert run("kv", "rename", shop, "stock", "goods").stderr == "renamed 'stock' to 'goods'\n"
    assert contents(shop)["goods"] == before
    told = json.loads(run("kv", "rename", shop, "goods", "a b", "--json").stdout)
    assert told == {"v": 1, "type": "renamed", "map": "a b", "before": "goods"}


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [("stcok", "x", 4), ("stock", "orders", 2), ("stock", "a\nb", 2), ("stock", "", 2),
     ("stock", "stock", 2)],
)  # fmt: skip
def test_names_that_cannot_be_given(old: str, new: str, code: int, run: Run, shop: Path) -> None:
    before = contents(shop)
    assert run("kv", "rename", shop, old, new).exit_code == code
    assert contents(shop) == before


def test_a_map_of_unknown_codecs_is_renamed_and_dropped(run: Run, shop: Path) -> None:
    with tidelog.open(shop) as db:
        db.map("prices", key=codecs.Str, value=MONEY)["pear"] = 3
    assert run("kv", "rename", shop, "prices", "costs").exit_code == 0
    assert run("kv", "drop", shop, "costs", "--yes").exit_code == 0


# ------------------------------------------------------------------ restore


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_backup_of_a_lived_store_is_restored(seed: int, tmp_path: Path, run: Run) -> None:
    made = live(tmp_path / "lived.tl", seed, retain_bytes=200 << 10, crash_at_end=seed == 1)
    backup, again = tmp_path / "backup.tl", tmp_path / "again.tl"
    assert run("db", "backup", made.path, backup).exit_code == 0
    done = run("db", "restore", backup, again, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["type"], told["verified"]) == ("restore", True)
    expected = contents(backup)
    assert contents(again) == expected == contents(made.path)
    with tidelog.open(again) as db:
        db.map("more")[b"a"] = b"b"
    assert contents(backup) == expected
    assert run("db", "verify", again).exit_code == 0


def test_a_restore_leaves_the_backup_as_it_is(
    run: Run, shop: Path, tmp_path: Path, unchanged: Fingerprint
) -> None:
    run("db", "backup", shop, tmp_path / "b.tl")
    before = unchanged(tmp_path / "b.tl")
    for name in ("one.tl", "two.tl"):
        assert run("db", "restore", tmp_path / "b.tl", tmp_path / name).exit_code == 0
    assert unchanged(tmp_path / "b.tl") == before
    assert contents(tmp_path / "one.tl") == contents(tmp_path / "two.tl") == contents(shop)


def test_only_a_backup_is_restored_and_only_into_a_new_place(
    run: Run, shop: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "b.tl"
    run("db", "backup", shop, backup)
    done = run("db", "restore", shop, tmp_path / "new.tl")
    assert (done.exit_code, "is not a backup" in done.stderr) == (7, True)
    assert run("db", "restore", backup, shop).exit_code == 7
    assert run("db", "restore", backup, backup).exit_code == 7
    assert run("db", "restore", backup, backup / "inside").exit_code == 2
    assert run("db", "restore", tmp_path / "nothing", tmp_path / "new.tl").exit_code == 4
    assert not (tmp_path / "new.tl").exists()


@pytest.mark.parametrize("part", ["data/data.mdb", "wal/0000000000000001.log", "manifest"])
def test_a_damaged_backup_is_not_restored(part: str, run: Run, shop: Path, tmp_path: Path) -> None:
    backup = tmp_path / "b.tl"
    run("db", "backup", shop, backup)
    file = backup / part
    data = bytearray(file.read_bytes())
    data[len(data) * 2 // 3] ^= 0xFF
    file.write_bytes(data)
    done = run("db", "restore", backup, tmp_path / "new.tl")
    if done.exit_code == 0:  # a page that is not in use
        assert contents(tmp_path / "new.tl") == contents(shop)
        assert run("db", "verify", tmp_path / "new.tl").exit_code == 0
    else:
        assert done.exit_code == 3, done.stderr
        assert not (tmp_path / "new.tl").exists()


def test_a_backup_that_lost_the_end_of_its_log_is_not_restored(
    run: Run, shop: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "b.tl"
    db = tidelog.open(shop)
    db.map("numbers")[6] = "six"
    session_of(db).abandon()
    run("db", "backup", shop, backup)
    log = backup / "wal" / "0000000000000001.log"
    log.write_bytes(log.read_bytes()[:-8])
    assert run("db", "restore", backup, tmp_path / "new.tl").exit_code == 3
    assert not (tmp_path / "new.tl").exists()


# ------------------------------------------------------------------ checkpoint


def test_a_checkpoint_brings_the_data_file_up_to_date(run: Run, shop: Path) -> None:
    db = tidelog.open(shop)
    db.map("numbers")[6] = "six"
    position = db.statistics().position
    session_of(db).abandon()
    told = json.loads(run("db", "checkpoint", shop, "--json").stdout)
    assert (told["type"], told["position"] >= position) == ("checkpoint", True)
    info = json.loads(run("db", "info", shop, "--json").stdout)
    assert info["data"]["checkpoint_position"] >= position
    assert "up to position" in run("db", "checkpoint", shop).stderr
    assert run("db", "checkpoint", shop.parent / "nothing").exit_code == 4
