"""The length of a map is what a scan counts, whatever has happened to its store, and costs none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from support.loads import make_load, rows_of
from support.scripts import SMALL_PIECES
from support.stores import PATH, expect_sound, open_store, opened, took_steps
from tidelog.checkpoints.marks import PartitionMark
from tidelog.engine.api import snapshots
from tidelog.engine.api.database import Database
from tidelog.engine.api.maps import Map
from tidelog.engine.api.open import open_with
from tidelog.engine.api.snapshots import SnapshotSession
from tidelog.engine.data import flush
from tidelog.errors import ClosedError, ConflictError, LockTimeoutError, NotFoundError
from tidelog.testing import simulated
from tidelog.tx.validation import READ_RULES

Seen = Map[bytes, bytes]
NAMES = ("a", "b", "c")
STEPS = 100


def expect_counted(seen: Seen) -> None:
    """A length is as many keys as a scan gives, and no scan."""
    expected = sum(1 for _ in seen)
    assert seen._session.count(seen._namespace) == len(seen) == expected


def key(rng: random.Random) -> bytes:
    return b"%02d" % rng.randrange(40)


class History:
    """A store with a mixed life, whose lengths are compared on each of its faces on the way."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = open_store(limits=SMALL_PIECES, partitions=3)
        self.old: list[tuple[Seen, int]] = []

    @property
    def db(self) -> Database:
        return self.store.database

    def write(self) -> None:
        rng = self.rng
        m = self.db.map(rng.choice(NAMES))
        match rng.randrange(7):
            case 0:
                m.update_many({key(rng): rng.randbytes(rng.randrange(4)) for _ in range(12)})
            case 1:
                m.delete_many([key(rng) for _ in range(6)])
            case 2:
                m.delete_range(b"1", b"2")
            case 3:
                m.pop(key(rng), None)
            case 4 if rng.random() < 0.3:
                m.clear()
            case 5:
                m.discard(key(rng))
            case _:
                m[key(rng)] = b""

    def in_transaction(self) -> None:
        rng = self.rng
        mode, isolation = rng.choice(sorted(READ_RULES))
        m = self.db.map(rng.choice(NAMES))
        with self.db.transaction(mode, isolation=isolation) as tx:  # type: ignore[arg-type]
            for _ in range(6):
                tx[m][key(rng)] = b"tx"
                tx[m].discard(key(rng))
            expect_counted(tx[m])
            if rng.random() < 0.5:
                tx.rollback()

    def of_maps(self) -> None:
        name = self.rng.choice(NAMES)
        if name in self.db.maps():
            if self.rng.random() < 0.5:
                self.db.drop(name)
            else:
                self.db.rename(name, "another")
                expect_counted(self.db.map("another"))
                self.db.rename("another", name)

    def checkpoint(self) -> None:
        if self.rng.random() < 0.4:
            self.db.checkpoint()
        else:
            took_steps(self.db, self.rng.randrange(1, 8), SMALL_PIECES)

    def end(self) -> None:
        """A close, or the power goes in the middle of a checkpoint."""
        outcome = self.rng.choice(("closed", "lost", "kept"))
        self.old.clear()
        if outcome == "closed":
            self.db.close()
            disk = self.store.disk
            expect_sound(disk)
        else:
            took_steps(self.db, self.rng.randrange(8), SMALL_PIECES)
            disk = self.store.disk.crash(outcome)
        self.store = open_store(disk, seed=self.rng.randrange(99), limits=SMALL_PIECES)

    def hold(self) -> None:
        old = self.db.snapshot()
        then = [old[self.db.map(name)] for name in NAMES]
        self.old = [*self.old[-6:], *((m, sum(1 for _ in m)) for m in then)]

    def step(self) -> None:
        rng = self.rng
        (way,) = rng.choices(
            (self.write, self.in_transaction, self.of_maps, self.checkpoint, self.end, self.hold),
            (8, 4, 1, 3, 1, 2),
        )
        way()
        for name in NAMES:
            expect_counted(self.db.map(name))
        for m, length in self.old:
            if m._namespace.alive:
                assert len(m) == length
        if rng.random() < 0.1:
            with open_with(simulated(9, self.store.disk.copy()), PATH, read_only=True) as reader:
                for name in reader.maps():
                    expect_counted(reader.map(name))


@pytest.mark.parametrize("seed", range(8))
def test_a_length_is_what_a_scan_counts_through_a_long_life(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.db.close()
    expect_sound(history.store.disk)


@pytest.fixture
def db() -> Iterator[Database]:
    with opened(limits=SMALL_PIECES) as store:
        yield store.database


def no_scan(*_: object, **__: object) -> NoReturn:
    raise AssertionError("nothing is scanned for a length")


def test_a_length_scans_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    m = db.map("m")
    m.update_many({b"%d" % n: b"" for n in range(50)})
    db.checkpoint()
    m.update_many({b"%d" % n: b"" for n in range(40, 60)})
    m.delete_many([b"1", b"no such key"])
    other = db.map("other")
    monkeypatch.setattr(SnapshotSession, "scan", no_scan)
    with db.snapshot() as old:
        m[b"later"] = b""
        assert (len(m), len(old[m])) == (60, 59)
        with db.transaction() as tx:
            tx[other][b"theirs"] = b""
            tx[m][b"mine"] = b""
            del tx[m][b"2"]
            tx[m].discard(b"2")
            tx[m][b"3"] = b"there already"
            assert (len(tx[m]), len(tx[other]), len(m)) == (60, 1, 60)
            tx.rollback()
    db.close()
    with pytest.raises(ClosedError):
        len(m)


def test_a_length_of_a_store_for_reading_scans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.database.map("m").update_many({b"%d" % n: b"" for n in range(60)})
    store.database.checkpoint()
    store.database.map("m").update_many({b"%d" % n: b"" for n in range(50, 70)})
    store.database.map("m")[b"later"] = b""  # by which readers know that the others are durable
    monkeypatch.setattr(SnapshotSession, "scan", no_scan)
    with open_with(simulated(9, store.disk), PATH, read_only=True) as reader:
        assert len(reader.map("m")) == 70
        with reader.snapshot() as old:
            assert len(old[reader.map("m")]) == 70
    store.database.close()


def test_a_key_that_comes_changes_what_an_optimistic_transaction_counted(db: Database) -> None:
    m, other = db.map("m"), db.map("other")
    for written, conflicts in ((m, True), (other, False)):
        with db.transaction("optimistic", plain_writes=True) as tx:
            tx[db.map("length")][b"m"] = b"%d" % len(tx[m])
            written[b"new"] = b""
            if conflicts:
                with pytest.raises(ConflictError):
                    tx.commit()


def test_a_pessimistic_transaction_holds_off_keys_of_what_it_counted(db: Database) -> None:
    m = db.map("m")
    with db.transaction("pessimistic") as tx:
        assert len(tx[m]) == 0
        with (
            pytest.raises(LockTimeoutError),
            db.transaction("pessimistic", lock_timeout=0) as other,
        ):
            other[m][b"new"] = b""


def test_a_map_that_was_dropped_has_no_length(db: Database) -> None:
    m = db.map("m")
    m[b"a"] = b""
    db.drop("m")
    with pytest.raises(NotFoundError):
        len(m)
    assert len(db.map("m")) == 0


def test_a_snapshot_that_is_closed_while_it_is_counted_has_no_length(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, old = db.map("m"), db.snapshot()
    seen = old[m]

    def ended(*_: object) -> int:
        old.close()
        return 0

    monkeypatch.setattr(snapshots, "count_keys", ended)
    with pytest.raises(ClosedError):
        len(seen)


def test_a_load_is_counted_with_what_is_written_over_it(db: Database, tmp_path: Path) -> None:
    db.map("m")[b"a"] = b""
    cities = db.attach(make_load(tmp_path / "load", rows_of(60)))
    expect_counted(cities)
    cities.update_many({next(iter(rows_of(60))): b"", b"new": b""})
    expect_counted(cities)
    assert len(cities) == 61


def test_a_data_file_without_counts_is_scanned_and_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {b"%d" % n: b"" for n in range(20)}
    store = open_store(partitions=2)
    with monkeypatch.context() as patched:
        without = replace(PartitionMark.empty(), counts=None)
        patched.setattr(PartitionMark, "empty", lambda: without)
        store.database.map("m").update_many(rows)
        store.database.close()
    expect_sound(store.disk)
    with open_store(store.disk, seed=2).database as db:
        m = db.map("m")
        assert m._session.count(m._namespace) is None
        assert len(m) == 20
        m[b"new"] = b""
        del m[b"1"]
        m[b"newer"] = b""
        db.checkpoint()
        assert m._session.count(m._namespace) is None
        assert len(m) == 21
        with db.transaction() as tx:
            tx[m][b"mine"] = b""
            assert len(tx[m]) == 22
            tx.rollback()
    expect_sound(store.disk)


def test_a_data_file_with_deletes_in_it_is_scanned(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = db.map("m")
    m.update_many({b"%d" % n: b"" for n in range(20)})
    db.checkpoint()
    # As in a copy that is being brought up: every delete leaves a tombstone.
    monkeypatch.setattr(flush, "_tombstones_above", lambda *_: 0)
    m.delete_many([b"1", b"2"])
    db.checkpoint()
    m.update_many({b"1": b"again", b"new": b""})
    assert m._session.count(m._namespace) is None
    assert len(m) == len(list(m)) == 20
