"""Attaching a load: what the map holds, who sees it when, and what errors leave of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tidelog
from support.loads import make_load, rows_of
from support.stores import PATH, Opened, expect_sound, open_store, opened
from tidelog.affinity.errors import (
    ClosedError,
    CodecError,
    ConflictError,
    CorruptDataError,
    NotFoundError,
    ReadOnlyError,
    SnapshotExpiredError,
    UsageError,
)
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.api.open import open_with
from tidelog.engine.api.read_only import ReadOnlyDatabase
from tidelog.engine.data.partition_store import read_marks
from tidelog.engine.data.stored import version_of
from tidelog.engine.store.catalog import Catalog
from tidelog.engine.store.checkpointer import Checkpointer
from tidelog.engine.system.limits import Limits
from tidelog.engine.upkeep import check, load_files
from tidelog.engine.upkeep.attaching import pieces_of
from tidelog.engine.upkeep.load_files import read_load_manifest, write_load_manifest
from tidelog.testing import FaultyDisk, check_database, check_store, crash_points, simulated
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import IngestRecord

ROWS = rows_of(60) | {b"empty": b""}
COPY = "/copy"
PIECEWISE = Limits(attach_rows=1, load_block_bytes=300)
"""Each block is written as a piece of its own."""


@pytest.fixture
def load(tmp_path: Path) -> str:
    return make_load(tmp_path / "load", ROWS)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], list[int]]:
    """Call a function behind every piece of a load."""
    add = Checkpointer.add

    def install(hook: Callable[[], None]) -> list[int]:
        pieces: list[int] = []

        def added(self: Checkpointer, *args: Any) -> None:
            add(self, *args)
            pieces.append(len(pieces))
            hook()

        monkeypatch.setattr(Checkpointer, "add", added)
        return pieces

    return install


def reading(disk: FaultyDisk, path: str = PATH) -> ReadOnlyDatabase:
    return open_with(simulated(9, disk), path, read_only=True)


def content(db: Database | ReadOnlyDatabase) -> dict[str, dict[object, object]]:
    return {name: dict(db.map(name).items()) for name in db.maps()}


def ingests(store: Opened) -> list[IngestRecord]:
    scan = Scan(store.disk.directory(f"{PATH}/wal"))
    return [record for _, record in read_records(scan) if isinstance(record, IngestRecord)]


# ------------------------------------------------------------------ the map


def test_a_load_is_a_map_like_any_other(load: str) -> None:
    disk = FaultyDisk()
    with opened(disk) as store:
        db = store.database
        db.map("users")[b"ada"] = b"x"
        cities = db.attach(load)
        assert cities.name == "cities"
        assert dict(cities.items()) == ROWS
        assert check_database(db) == []
        cities[b"key00001"] = b"new"
        del cities[b"key00002"]
        cities[b"later"] = b"y"
        expected = {**ROWS, b"key00001": b"new", b"later": b"y"}
        del expected[b"key00002"]
        assert dict(cities.items()) == expected
        assert check_database(db) == []
    again = open_store(disk)
    assert content(again.database) == {"cities": expected, "users": {b"ada": b"x"}}
    again.database.drop("cities")
    again.database.checkpoint()
    assert check_database(again.database) == []
    again.database.close()
    expect_sound(disk)


def test_the_log_says_which_numbers_the_rows_have(load: str) -> None:
    with opened() as store:
        db, users = store.database, store.database.map("users")
        for number in range(8):
            users[b"%d" % number] = b"x"
        before = [counter.lwm for counter in store.parts.state.counters]
        cities = db.attach(load)
        (record,) = ingests(store)
        assert record.load == read_load_manifest(load).id
        assert record.namespace == namespace_of(cities).id
        assert [(run.partition, run.first, run.count) for run in record.runs] == sorted(
            (p, before[p] + 1, sum(partition_of(key, Space(0, 4)) == p for key in ROWS))
            for p in range(4)
        )
        for run in record.runs:
            counter = store.parts.state.counters[run.partition]
            assert counter.lwm == counter.hwm == run.first + run.count - 1
            keys = sorted(key for key in ROWS if partition_of(key, Space(0, 4)) == run.partition)
            view = session_of(db).overlay.view
            found = [
                view.stored(run.partition, namespace_of(cities).prefixes[run.partition] + key)
                for key in keys
            ]
            assert [version_of(stored or b"") for stored in found] == [
                (run.epoch, run.first + place, record.time) for place in range(run.count)
            ]


def test_a_load_is_attached_under_another_name_and_twice(tmp_path: Path) -> None:
    load = make_load(tmp_path / "load", {b"k": b"[1]"}, value_codec=("json", 1))
    with opened() as store:
        assert store.database.attach(load, "one")[b"k"] == [1]
        assert store.database.attach(Path(load), "two")[b"k"] == [1]
        assert store.database.maps() == ["one", "two"]


def test_a_load_without_rows_is_an_empty_map(tmp_path: Path) -> None:
    with opened() as store:
        assert len(store.database.attach(make_load(tmp_path / "load", {}, files=1))) == 0


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_an_attached_map_is_durable_whatever_commits_are(load: str, durability: Any) -> None:
    store = open_store(durability=durability)
    store.database.attach(load)
    session_of(store.database).abandon()
    with opened(store.disk.crash("lost")) as again:
        assert content(again.database) == {"cities": ROWS}


def test_the_data_file_grows_for_a_load(tmp_path: Path) -> None:
    rows = rows_of(300, size=1000)
    store = open_store(map_size=64 << 10)
    cities = store.database.attach(make_load(tmp_path / "load", rows))
    assert store.parts.kv.map_size() > 64 << 10
    assert dict(cities.items()) == rows
    store.database.close()
    expect_sound(store.disk)


def test_a_load_is_attached_in_the_real_data_file(tmp_path: Path) -> None:
    rows = rows_of(5000, size=50)
    load = make_load(tmp_path / "load", rows, partitions=64, files=3)
    with tidelog.open(tmp_path / "store", partitions=64) as db:
        assert dict(db.attach(load).items()) == rows
        assert check_database(db) == []
    assert check_store(tmp_path / "store") == []
    with tidelog.open(tmp_path / "store", read_only=True) as reader:
        assert dict(reader.map("cities").items()) == rows


# ------------------------------------------------------------------ who sees what


def test_nothing_is_seen_and_nothing_waits_until_all_rows_are_there(
    load: str, between: Callable[[Callable[[], None]], list[int]]
) -> None:
    store = open_store(limits=PIECEWISE, checkpoint_bytes=6000)
    db, users = store.database, store.database.map("users")
    reader_disk = store.disk
    expected: dict[object, object] = {}

    def busy() -> None:
        users[b"%d" % len(expected)] = expected[b"%d" % len(expected)] = bytes(400)
        if len(expected) % 2:
            db.checkpoint()
        store.parts.committer.announce()
        assert content(db) == {"users": expected}
        assert check_database(db) == []
        marks = store.parts.checkpointer.marks.values()
        assert all(mark.position <= mark.written for mark in marks)
        with reading(reader_disk) as reader:
            assert content(reader) == {"users": expected}
        assert check_store(PATH, simulated(8, reader_disk)) == []
        with pytest.raises(NotFoundError):
            db.drop("cities")

    pieces = between(busy)
    assert dict(db.attach(load).items()) == ROWS
    assert len(pieces) > 8
    assert content(db) == {"users": expected, "cities": ROWS}
    assert check_database(db) == []
    db.close()
    expect_sound(store.disk)


def test_a_snapshot_from_before_refuses_the_map(
    load: str, between: Callable[[Callable[[], None]], list[int]]
) -> None:
    with opened(limits=PIECEWISE) as store:
        db, users = store.database, store.database.map("users")
        users[b"ada"] = b"x"
        snapshots = [db.snapshot()]
        between(lambda: snapshots.append(db.snapshot()))
        tx = db.transaction()
        assert tx[users][b"ada"] == b"x"
        cities = db.attach(load)
        for snapshot in snapshots:
            assert dict(snapshot[users].items()) == {b"ada": b"x"}
            with pytest.raises(SnapshotExpiredError, match="'cities' was attached after"):
                snapshot[cities]
            snapshot.close()
        with pytest.raises(SnapshotExpiredError):
            tx[cities]
        tx.rollback()
        with db.snapshot() as snapshot:
            assert dict(snapshot[cities].items()) == ROWS
        assert db.run(lambda tx: tx[cities][b"key00001"]) == ROWS[b"key00001"]


def test_a_transaction_that_read_an_attached_row_fails_where_it_changed(load: str) -> None:
    with opened() as store:
        cities = store.database.attach(load)
        with store.database.transaction(plain_writes=True) as tx:
            tx[cities][b"mine"] = tx[cities][b"key00001"]
            cities[b"key00001"] = b"changed"
            with pytest.raises(ConflictError):
                tx.commit()


def test_a_reading_process_sees_the_map_whole_or_not_at_all(
    load: str, between: Callable[[Callable[[], None]], list[int]]
) -> None:
    store = open_store(limits=PIECEWISE)
    db = store.database
    db.map("users")[b"ada"] = b"x"
    with reading(store.disk) as reader:
        old = []

        def look() -> None:
            store.parts.committer.announce()
            reader.refresh()
            assert reader.maps() == ["users"]
            old.append(reader.snapshot())

        between(look)
        db.attach(load)
        assert reader.maps() == ["users"]
        store.parts.committer.announce()
        reader.refresh()
        cities = reader.map("cities")
        assert dict(cities.items()) == ROWS
        for snapshot in old:
            with pytest.raises(SnapshotExpiredError):
                snapshot[cities]
        with pytest.raises(ReadOnlyError):
            reader.attach(load)
    db.close()
    expect_sound(store.disk)


@pytest.mark.parametrize("call", range(1, 5))
@pytest.mark.parametrize("late", [True, False])
def test_a_load_that_gets_its_name_during_a_refresh_is_whole_or_absent(
    load: str, monkeypatch: pytest.MonkeyPatch, call: int, late: bool
) -> None:
    store = open_store()
    db = store.database
    db.map("users")[b"ada"] = b"x"
    store.parts.committer.announce()
    with reading(store.disk) as reader:
        begin, calls = session_of(reader).access.kv.begin, []

        def begin_and_attach(**how: Any) -> Any:
            txn = begin(**how) if late else None
            calls.append(how)
            if len(calls) == call:
                db.attach(load)
                store.parts.committer.announce()
            return txn or begin(**how)

        monkeypatch.setattr(session_of(reader).access.kv, "begin", begin_and_attach)
        for _ in range(3):
            reader.refresh()
            assert content(reader).get("cities", ROWS) == ROWS
        assert reader.maps() == ["cities", "users"]
    db.close()


@pytest.mark.parametrize("by_reader", [True, False])
def test_a_copy_that_is_made_meanwhile_has_the_map_whole_or_not_at_all(
    load: str, monkeypatch: pytest.MonkeyPatch, by_reader: bool
) -> None:
    store = open_store()
    db = store.database
    db.map("users")[b"ada"] = b"x"
    store.parts.committer.announce()
    source: Any = reading(store.disk) if by_reader else db
    kv = session_of(source).access.kv if by_reader else store.parts.kv
    copy = kv.copy

    def copy_and_attach(path: str, **how: Any) -> None:
        copy(path, **how)
        db.attach(load)
        db.map("cities")[b"later"] = b"y"
        store.parts.committer.announce()

    monkeypatch.setattr(kv, "copy", copy_and_attach)
    source.backup(COPY)
    monkeypatch.setattr(kv, "copy", copy)
    source.backup("/whole", verify=False)
    for path, expected in ((COPY, {}), ("/whole", {"cities": {**ROWS, b"later": b"y"}})):
        with open_with(simulated(5, store.disk), path) as found:
            assert content(found) == {"users": {b"ada": b"x"}, **expected}
        assert check_store(path, simulated(6, store.disk)) == []
    if by_reader:
        source.close()
    db.close()


def test_a_check_beside_a_writer_looks_again_where_a_load_got_its_name(
    load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    db = store.database
    db.map("users")[b"ada"] = b"x"
    looked: list[object] = []

    def read_and_attach(txn: Any) -> Any:
        marks = read_marks(txn)
        if not looked:
            db.attach(load)
        looked.append(marks)
        return marks

    monkeypatch.setattr(check, "read_marks", read_and_attach)
    assert check_store(PATH, simulated(8, store.disk)) == []
    assert len(looked) == 2
    db.close()


def test_a_copy_that_is_made_between_two_pieces_is_opened_without_the_map(
    load: str, between: Callable[[Callable[[], None]], list[int]]
) -> None:
    store = open_store(limits=PIECEWISE)
    store.database.map("users")[b"ada"] = b"x"
    paths: list[str] = []

    def copy() -> None:
        paths.append(f"{COPY}{len(paths)}")
        assert store.database.backup(paths[-1]).maps == ("users",)

    between(copy)
    store.database.attach(load)
    between(lambda: None)
    for path in paths:
        with open_with(simulated(5, store.disk), path) as found:
            assert content(found) == {"users": {b"ada": b"x"}}
            assert dict(found.attach(load).items()) == ROWS
        assert check_store(path, simulated(6, store.disk)) == []
    store.database.close()


# ------------------------------------------------------------------ what is refused


def test_a_load_that_does_not_fit_is_refused(load: str, tmp_path: Path) -> None:
    unknown = make_load(tmp_path / "unknown", {b"k": b"v"}, value_codec=("nobody's", 7))
    wide = make_load(tmp_path / "wide", {b"k": b"v"}, partitions=5)
    (tmp_path / "empty").mkdir()
    with opened() as store:
        db = store.database
        db.map("cities")
        before = store.parts.writer.position
        for directory, name, error, text in (
            (load, None, UsageError, "there is a map 'cities' already"),
            (load, "", UsageError, "is not a name for a map"),
            (load, "\0hidden", UsageError, "is not a name for a map"),
            (wide, "new", UsageError, "for 5 partitions, the store has 4"),
            (unknown, "new", CodecError, "nobody's"),
            (str(tmp_path / "empty"), "new", NotFoundError, "there is no load"),
        ):
            with pytest.raises(error, match=text):
                db.attach(directory, name)
        assert store.parts.writer.position == before
        assert db.maps() == ["cities"]
    with pytest.raises(ClosedError):
        db.attach(load, "new")


def flip_a_bit(load: Path) -> None:
    file = load / "part-1.mdb"
    data = bytearray(file.read_bytes())
    data[data.index(b"row 1")] ^= 1
    file.write_bytes(data)


def remove_a_file(load: Path) -> None:
    (load / "part-1.mdb").unlink()


def spoil_the_manifest(load: Path) -> None:
    fields = json.loads((load / "manifest.json").read_text())
    (load / "manifest.json").write_text(json.dumps({**fields, "rows": 1}))


def tell_of_other_rows(load: Path) -> None:
    manifest = read_load_manifest(str(load))
    first, last = manifest.files
    *parts, part = last.partitions
    wrong = replace(last, partitions=(*parts, replace(part, digest=part.digest ^ 1)))
    write_load_manifest(str(load), replace(manifest, files=(first, wrong)))


def hash_otherwise(load: Path) -> None:
    narrow = Path(make_load(load.parent / "narrow", ROWS, partitions=1, files=1))
    (load / "part-0.mdb").write_bytes((narrow / "part-0.mdb").read_bytes())
    manifest = replace(read_load_manifest(str(narrow)), partitions=4)
    write_load_manifest(str(load), manifest)


def make_a_key_too_long(load: Path) -> None:
    long = Path(make_load(load.parent / "long", {b"k" * 481: b"v"}, files=1))
    for name in ("part-0.mdb", "manifest.json"):
        (load / name).write_bytes((long / name).read_bytes())


DAMAGE = [
    flip_a_bit,
    remove_a_file,
    spoil_the_manifest,
    tell_of_other_rows,
    hash_otherwise,
    make_a_key_too_long,
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_in_a_load_is_found_before_anybody_sees_it(
    load: str, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(Path(load))
    with opened() as store:
        db = store.database
        with pytest.raises(CorruptDataError):
            db.attach(load)
        expect_nothing_left(store)
        good = make_load(tmp_path / "good", ROWS)
        assert dict(db.attach(good).items()) == ROWS
        assert check_database(db) == []


def expect_nothing_left(store: Opened) -> None:
    """Fail where a load has left more in an open store than closed numbers."""
    assert store.parts.state.namespaces == {}
    store.database.checkpoint()
    assert sum(mark.count for mark in store.parts.checkpointer.marks.values()) == 0
    assert check_database(store.database) == []


# ------------------------------------------------------------------ what goes wrong meanwhile


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_whatever_interrupts_an_attach_leaves_nothing_of_it(
    load: str, between: Callable[[Callable[[], None]], list[int]], error: type[BaseException]
) -> None:
    def interrupt() -> None:
        if len(pieces) == 2:
            raise error

    pieces = between(interrupt)
    with opened(limits=PIECEWISE) as store:
        with pytest.raises(error):
            store.database.attach(load)
        expect_nothing_left(store)
        assert dict(store.database.attach(load).items()) == ROWS


def test_a_name_that_is_taken_meanwhile_stays_with_whom_it_has(
    load: str, between: Callable[[Callable[[], None]], list[int]]
) -> None:
    with opened(limits=PIECEWISE) as store:
        db = store.database
        between(lambda: db.map("cities").__setitem__(b"k", b"v"))
        with pytest.raises(UsageError, match="there is a map 'cities' already"):
            db.attach(load)
        assert content(db) == {"cities": {b"k": b"v"}}
        assert len(store.parts.state.namespaces) == 1


def test_a_store_may_be_closed_while_a_load_is_attached(
    load: str, between: Callable[[Callable[[], None]], list[int]]
) -> None:
    store = open_store(limits=PIECEWISE)
    store.database.map("users")[b"ada"] = b"x"
    between(store.database.close)
    with pytest.raises(ClosedError):
        store.database.attach(load)
    with opened(store.disk) as again:
        assert content(again.database) == {"users": {b"ada": b"x"}}
        assert again.parts.state.namespaces.keys() == {16}


def test_what_a_full_disk_did_not_let_go_goes_with_the_next_attach(
    load: str, between: Callable[[Callable[[], None]], list[int]]
) -> None:
    store = open_store(limits=PIECEWISE)
    db, users, disk = store.database, store.database.map("users"), store.disk
    users[b"ada"] = b"x"

    def fill_the_disk() -> None:
        disk.fail_at(disk.operations, "ENOSPC", for_ever=True)

    between(fill_the_disk)
    with pytest.raises(tidelog.errors.DiskFullError):
        db.attach(load)
    assert content(db) == {"users": {b"ada": b"x"}}
    between(lambda: None)
    disk.heal()
    assert dict(db.attach(load).items()) == ROWS
    assert len(store.parts.state.namespaces) == 2
    db.close()
    expect_sound(disk)


def test_a_data_file_from_before_an_attach_is_not_taken_for_the_newest(load: str) -> None:
    store = open_store()
    db, disk = store.database, store.disk
    db.map("users")[b"ada"] = b"x"
    db.checkpoint()
    before = disk.read_bytes(f"{PATH}/data/data.mdb")
    db.attach(load)
    db.close()
    disk.write_bytes(f"{PATH}/data/data.mdb", before)
    for open_it in (open_store, reading):
        with pytest.raises(CorruptDataError, match="lacks the rows of 'cities'"):
            open_it(disk)
    (problem,) = check_store(PATH, simulated(5, disk))
    assert "lacks the rows of 'cities'" in problem


def test_a_load_is_attached_again_wherever_the_first_time_ended(load: str) -> None:
    def scenario(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
        store = open_store(disk)
        acknowledge("begun")
        try:
            store.database.attach(load)
        finally:
            session_of(store.database).abandon()

    seen = set()
    for point in crash_points(scenario, moments=("after",), outcomes=("lost",)):
        if not point.acknowledged:
            continue
        with opened(point.disk) as store:
            db = store.database
            seen.add(tuple(db.maps()))
            if not db.maps():
                db.attach(load)
            assert content(db) == {"cities": ROWS}, point
    assert seen == {(), ("cities",)}


def test_a_load_that_is_not_what_was_written_is_told_as_one(tmp_path: Path, load: str) -> None:
    # It was told as a damaged store, to be verified and restored.
    manifest = Path(load) / load_files.LOAD_MANIFEST_NAME
    whole = manifest.read_text()
    file = next(Path(load).glob("*.mdb"))
    with tidelog.open(tmp_path / "s", partitions=4) as db:
        manifest.write_text(whole.replace('"rows"', '"r0ws"', 1))
        with pytest.raises(CorruptDataError, match=load) as raised:
            db.attach(load)
        assert raised.value.hint == load_files.ANEW
        manifest.write_text(whole)
        file.write_bytes(file.read_bytes() + b"x")
        with pytest.raises(CorruptDataError, match=str(file)) as raised:
            db.attach(load)
        assert raised.value.hint == load_files.ANEW


def test_keys_that_are_none_of_their_codec_are_refused(tmp_path: Path) -> None:
    # Such a load was attached, and its map could not be read.
    load = make_load(tmp_path / "load", {b"12345": b"1"}, key_codec=("i64", 1))
    with tidelog.open(tmp_path / "s", partitions=4) as db:
        with pytest.raises(CodecError, match="keys that do not decode as i64, the codec"):
            db.attach(load)
        assert db.maps() == []
    assert check_store(tmp_path / "s") == []


def test_a_snapshot_from_just_before_its_name_does_not_show_a_load(
    load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, taken = Catalog.publish, list[Any]()

    with opened() as store:

        def named(self: Catalog, *args: Any) -> None:
            taken.append(store.database.snapshot())
            publish(self, *args)

        monkeypatch.setattr(Catalog, "publish", named)
        cities = store.database.attach(load)
        with taken[0] as before, store.database.snapshot() as behind:
            with pytest.raises(SnapshotExpiredError, match="attached after"):
                before[cities]
            assert dict(behind[cities].items()) == ROWS


def test_a_piece_is_no_larger_than_a_transaction_may_be_by_either_measure() -> None:
    rows = [(0, {b"%d" % number: b"x" * 99}) for number in range(6)]
    for limits, count in ((Limits(attach_rows=2), 3), (Limits(attach_bytes=250), 2)):
        pieces = list(pieces_of(iter(rows), limits))
        assert [len(piece[0]) for piece in pieces] == [6 // count] * count
        assert [row for piece in pieces for row in piece[0].items()] == [
            row for _, part in rows for row in part.items()
        ]


@pytest.mark.parametrize("place", [None, b"x", "", "a\0b"])
def test_what_is_no_path_of_a_load_is_refused(tmp_path: Path, place: Any) -> None:
    with (
        tidelog.open(tmp_path / "store") as db,
        pytest.raises(UsageError, match=r"^the path of a load"),
    ):
        db.attach(place)
