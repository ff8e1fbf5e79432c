"""Values with flags in the data file: nobody sees deletes, all refuse those of later versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tidelog
from support.pipelines import rows
from support.stores import flagged
from tidelog.affinity.errors import FormatVersionError
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.data import flush as flushes
from tidelog.engine.data.partition_store import read_marks
from tidelog.engine.data.stored import is_tombstone, pack_prefix, version_of
from tidelog.engine.system.lmdb_file import open_lmdb
from tidelog.engine.upkeep.salvage import salvage
from tidelog.testing import check_database, check_store
from tidelog.tools.main import cli

PARTITIONS = 2
COUNT = 3_000
"""Enough for several blocks of a scan."""
WHOLE = {b"%05d" % number: b"value %d" % number for number in range(COUNT)}
GONE = {key for number, key in enumerate(WHOLE) if number % 3 == 0 or 1_000 <= number < 2_000}
LEFT = {key: value for key, value in WHOLE.items() if key not in GONE}
LATER = b"01500"


def tombstones(store: Path) -> tuple[int, int]:
    """How many are in the data file, and how many the marks count."""
    kv = open_lmdb(str(store / "data"), 1 << 30, True, True)
    txn = kv.begin()
    cursor = txn.cursor()
    cursor.first()
    there = sum(is_tombstone(value) for value in cursor.iternext(keys=False))
    counted = sum(mark.tombstones for mark in read_marks(txn)[1].values())
    del cursor, txn
    kv.close()
    return there, counted


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose deletes have left tombstones, as they do in a copy that is brought up."""
    path = tmp_path / "store"
    with tidelog.open(path, partitions=PARTITIONS) as db:
        db.map("m").update_many(WHOLE)
    with monkeypatch.context() as patched:
        patched.setattr(flushes, "_tombstones_above", lambda *_: 0)
        with tidelog.open(path) as db, db.transaction() as tx:
            for key in GONE:
                del tx[db.map("m")][key]
    assert tombstones(path) == (len(GONE), len(GONE))
    return path


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A store with one value that a later version has written."""
    path = tmp_path / "later"
    with tidelog.open(path, partitions=PARTITIONS) as db:
        db.map("m").update_many(WHOLE)
    full_key = pack_prefix(partition_of(LATER, Space(0, PARTITIONS)), 16) + LATER
    kv = open_lmdb(str(path / "data"), 1 << 30, False, True)
    with kv.write() as txn:
        old = txn.get(full_key)
        assert old is not None
        txn.put(full_key, flagged(full_key, b"compressed", 4, version_of(old)))
    kv.close()
    return path


def opened(path: Path, read_only: bool) -> Any:
    return tidelog.open(path, read_only=True) if read_only else tidelog.open(path)


def readers(db: Any) -> Iterator[tuple[str, Callable[[], dict[bytes, bytes]]]]:
    """All ways to read a map, each as a function to the pairs that it finds."""
    users, keys = db.map("m"), list(WHOLE)

    def one_by_one(view: Any) -> dict[bytes, bytes]:
        return {key: view[key] for key in keys if view.get(key) is not None}

    yield "get", lambda: one_by_one(users)
    yield "get_many", lambda: users.get_many(keys)
    yield "items", lambda: dict(users.items())
    yield "reversed", lambda: dict(users.range(reverse=True))
    yield "range", lambda: dict(users.range(b"00990", b"02010"))
    yield "snapshot", lambda: one_by_one(db.snapshot()[users])
    yield "items of a snapshot", lambda: dict(db.snapshot()[users].items())


def wanted(name: str) -> dict[bytes, bytes]:
    if name != "range":
        return LEFT
    return {key: value for key, value in LEFT.items() if b"00990" <= key < b"02010"}


# ------------------------------------------------------------------ tombstones


@pytest.mark.parametrize("read_only", [True, False])
def test_no_reader_sees_a_tombstone(store: Path, read_only: bool) -> None:
    with opened(store, read_only) as db:
        for name, read in readers(db):
            assert read() == wanted(name), name


def test_a_transaction_sees_no_tombstone_and_may_write_over_one(store: Path) -> None:
    gone, left = sorted(GONE)[:40], sorted(LEFT)[:40]
    with tidelog.open(store) as db:
        users = db.map("m")
        with db.transaction() as tx:
            assert [tx[users].get(key) for key in gone] == [None] * 40
            assert dict(tx[users].items()) == LEFT
            for key in gone[:20]:
                tx[users][key] = b"back"
            for key in left[:20]:
                del tx[users][key]
        assert users.setdefault(gone[20], b"set") == b"set"
        assert users.pop(gone[21], None) is None
        expected = {**LEFT, **dict.fromkeys(gone[:20], b"back"), gone[20]: b"set"}
        for key in left[:20]:
            del expected[key]
        assert dict(users.items()) == expected
        assert check_database(db) == []
        db.checkpoint()
        assert dict(users.items()) == expected
        assert check_database(db) == []
    # The copies are whole, so the flushes have swept the rest away.
    assert tombstones(store) == (0, 0)
    assert check_store(store) == []


def test_checks_and_tools_count_tombstones_apart(store: Path) -> None:
    assert check_store(store) == []
    found = salvage(str(store))
    assert {key: value for _, key, value in found.pairs()} == LEFT
    assert found.complete
    assert {row["key"]: row["value"] for row in rows(store, "snapshot")} == LEFT
    done = CliRunner().invoke(cli, ["db", "verify", str(store)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(cli, ["kv", "scan", str(store), "m", "--limit", "9999", "--jsonl"])
    assert done.output.count('"pair"') == len(LEFT), done.output[-300:]
    for option in ([], ["--skip-damaged"]):
        done = CliRunner().invoke(cli, ["kv", "count", str(store), "m", *option])
        assert done.output.split()[-1].replace(",", "") == str(len(LEFT)), done.output
    copy = store.with_name("copy")
    with tidelog.open(store, read_only=True) as db:
        db.backup(copy, verify=True)
    assert tombstones(copy) == tombstones(store)


# ------------------------------------------------------------------ flags of later versions


@pytest.mark.parametrize("read_only", [True, False])
def test_every_reader_refuses_a_flag_of_a_later_version(later: Path, read_only: bool) -> None:
    with opened(later, read_only) as db:
        for name, read in readers(db):
            with pytest.raises(FormatVersionError, match="flags 0x04, of a later version") as told:
                read()
            assert (told.value.found, told.value.supported) == (4, 1), name
            assert repr(LATER.decode()) in str(told.value)
        # Whatever does not touch it goes on.
        assert db.map("m")[b"00000"] == WHOLE[b"00000"]
        assert len(dict(db.map("m").range(b"01501"))) == COUNT - 1_501


def test_a_transaction_refuses_a_flag_of_a_later_version(later: Path) -> None:
    with tidelog.open(later) as db:
        users = db.map("m")
        with db.transaction() as tx:
            for read in (lambda: tx[users][LATER], lambda: list(tx[users].items())):
                with pytest.raises(FormatVersionError):
                    read()
        with pytest.raises(FormatVersionError):
            users.setdefault(LATER, b"")


def test_checks_and_tools_refuse_a_flag_of_a_later_version(later: Path) -> None:
    (problem,) = [one for one in check_store(later) if "flags" in one]
    assert problem.startswith("a stored value has flags 0x04, of a later version")
    for read in (lambda: salvage(str(later)), lambda: rows(later, "snapshot")):
        with pytest.raises(FormatVersionError, match="of a later version"):
            read()
    verified = CliRunner().invoke(cli, ["db", "verify", str(later)])
    assert verified.exit_code == 3
    assert "flags 0x04" in verified.output
    shown = CliRunner().invoke(cli, ["kv", "get", str(later), "m", LATER.decode()])
    assert shown.exit_code != 0
    assert "flags 0x04" in shown.output
