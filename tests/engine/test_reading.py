"""A store that is open for reading only, beside its writer, after a crash, and on its own."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tidelog
from support.interrupts import Interrupt, Tracer
from support.scripts import SMALL_PIECES
from tidelog import errors
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.open import open_with
from tidelog.engine.api.read_only import ReadOnlyDatabase
from tidelog.engine.api.read_session import ReadSession, stacked
from tidelog.engine.data import point_reads
from tidelog.engine.data.overlay import Layer, View
from tidelog.engine.files import manifest as manifests
from tidelog.engine.files.recovery import newest_durable
from tidelog.engine.system.disk import RealDirectory
from tidelog.engine.system.environment import LockHandle
from tidelog.engine.system.production import production
from tidelog.testing import FaultyDisk, check_database, check_store, simulated
from tidelog.testing.environment import SimulatedEnvironment
from tidelog.wal.ports import ReadableFile

STORE = "/store"
WAIT = 60.0
SMALL = {"segment_bytes": 1 << 17}


class World:
    """A writer and a reader in two simulated processes on one disk."""

    def __init__(self, **options: Any) -> None:
        self.disk = FaultyDisk()
        self.writing: SimulatedEnvironment = simulated(1, self.disk)
        self.reading: SimulatedEnvironment = simulated(2, self.disk)
        self.db: Database = open_with(self.writing, STORE, partitions=4, **options)
        self.users = self.db.map("users")

    def reader(self) -> ReadOnlyDatabase:
        return open_with(self.reading, STORE, read_only=True)

    def announce(self) -> None:
        """Let the writer's maintenance tell what is durable."""
        self.writing.advance(1.0)

    def end(self) -> None:
        assert check_database(self.db) == []
        self.db.close()
        assert check_store(STORE, self.reading) == []


@contextmanager
def world(**options: Any) -> Iterator[World]:
    made = World(**options)
    yield made
    made.end()


# ------------------------------------------------------------------ beside a writer


def test_a_reader_sees_what_was_announced_as_durable() -> None:
    with world() as w:
        w.users[b"ann"] = b"1"
        w.announce()
        with w.reader() as reader:
            assert reader.maps() == ["users"]
            assert dict(reader.map("users").items()) == {b"ann": b"1"}
            assert reader.read_only


def test_a_reader_tells_the_age_of_its_oldest_snapshot() -> None:
    with world() as w, w.reader() as reader:
        assert reader.statistics().oldest_snapshot_seconds is None
        w.reading.time.move(3)
        with reader.snapshot():
            w.reading.time.move(5)
            with reader.snapshot():
                w.reading.time.move(2)
                assert reader.statistics().oldest_snapshot_seconds == 7
        assert reader.statistics().oldest_snapshot_seconds is None


def test_a_reader_stands_at_the_end_of_what_it_shows() -> None:
    with world() as w:
        with w.db.transaction() as tx:
            tx[w.users][b"ann"] = b"1"
        w.announce()
        assert tx.receipt is not None
        with w.reader() as reader:
            assert reader.refresh() == reader.statistics().position == tx.receipt.position


def test_a_reader_beside_half_a_checkpoint_shows_all_that_the_checkpoint_carries_over() -> None:
    # The data file has some partitions already, and no frame tells yet that the log is durable.
    with world(durability="none") as w:
        rows = {b"%02d" % number: b"v" for number in range(24)}
        w.users.update_many(rows)
        checkpointer = session_of(w.db).store.checkpointer
        steps = checkpointer.steps(lambda: True, "test", SMALL_PIECES)
        for _ in range(3):
            next(steps)
        with w.reader() as reader:
            assert dict(reader.map("users").items()) == rows
        steps.close()


def test_a_frame_is_held_back_until_something_shows_that_it_is_durable() -> None:
    with world() as w:
        w.users[b"ann"] = b"1"
        w.announce()
        w.users[b"bob"] = b"2"
        with w.reader() as reader:
            seen = reader.map("users")
            assert b"bob" not in seen
            w.users[b"cid"] = b"3"
            reader.refresh()
            assert b"bob" in seen
            assert b"cid" not in seen


def test_what_is_not_synced_is_never_shown() -> None:
    with world(durability="none") as w:
        w.users[b"ann"] = b"1"
        w.users[b"bob"] = b"2"
        with w.reader() as reader:
            assert reader.maps() == []
            w.db.sync()
            w.announce()
            reader.refresh()
            assert len(reader.map("users")) == 2


def test_a_reader_does_not_run_after_the_end_of_a_quick_writers_log() -> None:
    """A child of a fork did so for over twenty seconds."""
    with world(**SMALL) as w:
        w.users[b"first"] = b"1"
        begun = session_of(w.db).store.writer.position
        log = w.reading.disk.directory(f"{STORE}/wal", read_only=True)
        opened = list[str]()

        class Growing:
            """The folder of the log; a segment is filled whenever one is opened."""

            def names(self) -> list[str]:
                return log.names()

            def open_read(self, name: str) -> ReadableFile:
                opened.append(name)
                if len(opened) < 30:
                    w.users[b"more"] = bytes(SMALL["segment_bytes"])
                    w.users[b"small"] = b"1"
                return log.open_read(name)

        ids = manifests.read(w.reading.disk.directory(STORE, read_only=True)).log_ids
        found = newest_durable(Growing(), ids, 0)
        assert begun <= found < session_of(w.db).store.writer.position
        assert len(opened) < 10


def test_a_view_stays_as_it_is_until_it_is_refreshed() -> None:
    with world() as w:
        w.users[b"ann"] = b"1"
        w.announce()
        with w.reader() as reader:
            seen = reader.map("users")
            before = reader.position
            w.users[b"ann"] = b"2"
            w.db.checkpoint()
            w.announce()
            assert seen[b"ann"] == b"1"
            assert reader.position == before
            assert reader.refresh() > before
            assert seen[b"ann"] == b"2"


def test_snapshots_and_iterations_stay_where_they_were_begun() -> None:
    with world() as w:
        w.db.map("users").update({b"a": b"1", b"b": b"1", b"c": b"1"})
        w.announce()
        with w.reader() as reader:
            seen = reader.map("users")
            walk = iter(seen.items())
            assert next(walk) == (b"a", b"1")
            with reader.snapshot() as old:
                w.users.update({b"a": b"2", b"b": b"2", b"d": b"2"})
                w.db.checkpoint()
                w.announce()
                reader.refresh()
                assert dict(old[seen].items()) == {b"a": b"1", b"b": b"1", b"c": b"1"}
                assert old.position < reader.position
            assert list(walk) == [(b"b", b"1"), (b"c", b"1")]
            assert seen[b"b"] == b"2"


def test_a_transaction_is_shown_as_a_whole() -> None:
    with world() as w:
        other = w.db.map("other")
        with w.reader() as reader:
            for round_ in range(30):
                with w.db.transaction() as tx:
                    for number in range(8):
                        tx[w.users][b"%d" % number] = b"%d" % round_
                    tx[other][b"round"] = b"%d" % round_
                if round_ % 7 == 0:
                    w.db.checkpoint()
                reader.refresh()
                if "other" in reader.maps() and (found := reader.map("other").get(b"round")):
                    users = dict(reader.map("users").items())
                    assert users == {b"%d" % number: found for number in range(8)}


def test_random_histories_read_the_same_in_both_processes() -> None:
    rng = random.Random(5)
    with world(**SMALL, checkpoint_bytes=1 << 16) as w:
        model: dict[bytes, bytes] = {}
        with w.reader() as reader:
            for step in range(400):
                key = b"%d" % rng.randrange(60)
                if rng.random() < 0.3:
                    w.users.discard(key)
                    model.pop(key, None)
                else:
                    model[key] = w.users[key] = bytes(rng.randrange(2000))
                if rng.random() < 0.03:
                    w.db.checkpoint()
                if step % 5 == 4:
                    w.announce()
                    reader.refresh()
                    seen = reader.map("users")
                    assert dict(seen.items()) == model
                    assert seen.get_many(list(model)) == model
                    assert [seen.get(b"%d" % n) for n in range(60)] == [
                        model.get(b"%d" % n) for n in range(60)
                    ]


def test_dropped_and_renamed_maps_follow_at_the_next_refresh() -> None:
    with world() as w:
        w.users[b"ann"] = b"1"
        w.db.map("gone")[b"x"] = b"y"
        w.announce()
        with w.reader() as reader:
            users, gone = reader.map("users"), reader.map("gone")
            w.db.rename("users", "people")
            w.db.drop("gone")
            w.announce()
            assert reader.maps() == ["gone", "users"]
            reader.refresh()
            assert reader.maps() == ["people"]
            assert (users.name, users[b"ann"]) == ("people", b"1")
            with pytest.raises(errors.NotFoundError, match="was dropped"):
                gone.get(b"x")
            with pytest.raises(errors.NotFoundError, match="no map 'users'"):
                reader.map("users")


def test_codecs_come_from_the_store() -> None:
    with world() as w:
        stock = w.db.map("stock", key=tidelog.codecs.Str, value=tidelog.codecs.Msgpack)
        stock["apples"] = [1, {"a": 2}]
        w.announce()
        with w.reader() as reader:
            assert reader.map("stock")["apples"] == [1, {"a": 2}]
            assert reader.map("stock", key=tidelog.codecs.Str)["apples"] == [1, {"a": 2}]
            with pytest.raises(errors.CodecError, match="has codec msgpack 1, not json"):
                reader.map("stock", value=tidelog.codecs.Json)


def test_statistics_tell_where_a_reader_stands() -> None:
    with world() as w:
        w.users[b"ann"] = b"1"
        w.db.checkpoint()
        w.users[b"bob"] = b"2"
        w.announce()
        with w.reader() as reader, reader.snapshot():
            statistics = reader.statistics()
            assert 0 < statistics.checkpoint_position < statistics.position == reader.position
            assert statistics.snapshots == statistics.overlay_layers == 1
            assert statistics.log_segments == 1
            assert statistics.refreshes == 0
            assert reader.refresh() == reader.statistics().position
            assert reader.statistics().refreshes == 1
            w.db.checkpoint()
            reader.refresh()
            assert reader.statistics().checkpoint_position > statistics.checkpoint_position


# ------------------------------------------------------------------ slots


def slots(w: World) -> dict[str, int]:
    return w.db.statistics().readers


def fill(w: World, segments: int) -> None:
    """Write about so many segments of log."""
    for number in range(segments * 3):
        w.users[b"%d" % (number % 10)] = bytes(45_000)


def test_a_slot_holds_the_log_that_the_next_refresh_reads() -> None:
    with world(**SMALL, retain_bytes=1) as w:
        fill(w, 1)
        w.db.checkpoint()
        with w.reader() as reader:
            start = reader.statistics().checkpoint_position
            assert list(slots(w).values()) == [start]
            fill(w, 4)
            w.db.checkpoint()
            fill(w, 2)
            w.db.checkpoint()
            held = w.db.statistics()
            assert held.log_first_position <= start
            assert any("reader" in why for reasons in held.log_held_by.values() for why in reasons)
            reader.refresh()
            assert dict(reader.map("users").items()) == dict(w.users.items())
            w.db.checkpoint()
            assert w.db.statistics().log_first_position > start
        assert slots(w) == {}


def test_a_slot_asks_for_everything_before_the_reader_knows_what_it_needs() -> None:
    with world() as w:
        asked: list[dict[str, int]] = []
        open_kv = w.reading.open_kv
        watched = Watched(w.reading, lambda: asked.append(slots(w)), open_kv)
        open_with(watched.environment, STORE, read_only=True).close()
        assert [list(found.values()) for found in asked] == [[0]]


class Watched:
    """An environment that calls back before the data file is opened."""

    def __init__(
        self, environment: SimulatedEnvironment, before: Callable[[], None], open_kv: Any
    ) -> None:
        def opened(*arguments: Any) -> Any:
            before()
            return open_kv(*arguments)

        self.environment = replace(environment, open_kv=opened)


def test_a_writer_that_looks_at_a_new_slot_at_that_moment_makes_no_difference() -> None:
    with world() as w:
        taken: list[LockHandle] = []
        lock = w.disk.lock

        def contended(path: str, *, shared: bool = False) -> LockHandle:
            if "readers" in path and not taken:
                taken.append(lock(path))
            return lock(path, shared=shared)

        w.disk.lock = contended  # type: ignore[method-assign]
        with w.reader():
            assert taken
            taken[0].release()
            assert len(slots(w)) == 1


def test_a_slot_that_cannot_be_raised_keeps_too_much_and_nothing_breaks() -> None:
    with world() as w:
        w.users[b"ann"] = b"1"
        w.db.checkpoint()
        w.disk.fail_at(
            w.disk.operations, "ENOSPC", kind="write", path=f"{STORE}/readers", for_ever=True
        )
        with w.reader() as reader:
            assert list(slots(w).values()) == [0]
            assert reader.map("users")[b"ann"] == b"1"
        w.disk.heal()


# ------------------------------------------------------------------ without a writer


def test_a_closed_store_is_read_to_its_end() -> None:
    w = World()
    w.users[b"ann"] = b"1"
    w.end()
    with w.reader() as reader:
        assert reader.map("users")[b"ann"] == b"1"


def test_after_a_crash_a_reader_sees_what_is_known_to_be_durable_and_cuts_nothing() -> None:
    w = World()
    w.users[b"ann"] = b"1"
    w.users[b"bob"] = b"2"
    w.announce()
    w.users[b"cid"] = b"3"  # durable, but no frame says so
    disk = w.disk.crash("kept")
    segment = disk.read_bytes(f"{STORE}/wal/{1:016d}.log")
    with open_with(simulated(3, disk), STORE, read_only=True) as reader:
        assert sorted(reader.map("users")) == [b"ann", b"bob"]
    assert disk.read_bytes(f"{STORE}/wal/{1:016d}.log") == segment
    with open_with(simulated(4, disk), STORE) as db:
        assert len(db.map("users")) == 3
    assert check_store(STORE, simulated(5, disk)) == []


def test_a_writer_may_come_and_go_under_a_reader() -> None:
    w = World()
    w.users[b"ann"] = b"1"
    w.end()
    with w.reader() as reader:
        w.db = open_with(w.writing, STORE)
        w.db.map("users")[b"bob"] = b"2"
        w.end()
        reader.refresh()
        assert sorted(reader.map("users")) == [b"ann", b"bob"]


def test_damage_is_refused_and_a_refresh_that_meets_it_changes_nothing() -> None:
    w = World()
    w.users[b"ann"] = b"1"
    w.announce()
    path = f"{STORE}/wal/{1:016d}.log"
    reader = w.reader()
    end = reader.position + 128
    w.users[b"bob"] = b"2"
    w.users[b"cid"] = b"3"
    w.announce()
    w.disk.flip_bit(path, 8 * (end + 40))
    with pytest.raises(errors.CorruptLogError, match="invalid frame below"):
        reader.refresh()
    assert sorted(reader.map("users")) == [b"ann"]
    w.disk.flip_bit(path, 8 * (end + 40))
    reader.refresh()
    assert len(reader.map("users")) == 3
    reader.close()
    w.end()


def test_a_log_that_ends_below_the_data_file_is_refused() -> None:
    w = World()
    w.users[b"ann"] = b"1"
    w.end()
    w.disk.write_bytes(f"{STORE}/wal/{1:016d}.log", b"")
    with pytest.raises(errors.CorruptLogError):
        w.reader()
    assert w.disk.directory(f"{STORE}/readers").names() == []
    assert check_store(STORE, w.reading) != []


def test_there_must_be_a_store(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="no store"):
        tidelog.open(tmp_path / "none", read_only=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.UsageError, match="not a directory"):
        tidelog.open(tmp_path / "file", read_only=True)
    for place, makes in ((tmp_path / "none", True), (tmp_path, False)):
        with pytest.raises(errors.NotFoundError, match="no store") as caught:
            tidelog.open(place, read_only=True)
        assert ("`tidelog.open(path)` makes one" in caught.value.hint) is makes
    assert str(caught.value) == f"there is no store at {tmp_path}, but file"
    assert "made in an empty directory only" in caught.value.hint
    assert os.listdir(tmp_path) == ["file"]


def test_a_store_without_its_data_file_has_to_be_recovered_first(tmp_path: Path) -> None:
    tidelog.open(tmp_path / "s").close()
    (tmp_path / "s/data/data.mdb").unlink()
    with pytest.raises(errors.NotFoundError, match="no data file yet") as caught:
        tidelog.open(tmp_path / "s", read_only=True)
    assert "for writing" in caught.value.hint
    assert os.listdir(tmp_path / "s/readers") == []


def test_a_data_file_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with tidelog.open(tmp_path / name) as db:
            db.map("m")[b"k"] = b"v"
    os.replace(tmp_path / "a/data/data.mdb", tmp_path / "b/data/data.mdb")
    with pytest.raises(errors.ForeignFileError, match="belongs to store"):
        tidelog.open(tmp_path / "b", read_only=True)


# ------------------------------------------------------------------ where nothing may be written


class NoSlots:
    """The real disk, where files may be made nowhere."""

    def __init__(self, code: int) -> None:
        self.environment = production()
        self._lock = self.environment.disk.lock
        self._code = code
        self.environment.disk.lock = self.lock  # type: ignore[method-assign]

    def lock(self, path: str, *, shared: bool = False) -> LockHandle:
        if not shared:
            raise OSError(self._code, os.strerror(self._code), path)
        return self._lock(path, shared=True)


def closed_store(path: Path) -> Path:
    with tidelog.open(path) as db:
        db.map("m")[b"k"] = b"v"
    return path


def test_without_slots_the_lock_of_the_store_keeps_writers_out(tmp_path: Path) -> None:
    store = closed_store(tmp_path / "s")
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    reader = open_with(NoSlots(errno.EACCES).environment, store, read_only=True)
    assert reader.map("m")[b"k"] == b"v"
    with pytest.raises(errors.AlreadyOpenError):
        tidelog.open(store)
    assert reader.refresh() == reader.position
    reader.close()
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    tidelog.open(store).close()
    assert check_store(store) == []


def catch_up(reader: ReadOnlyDatabase, writer: Writer, count: int) -> None:
    """Refresh until the newest commits are announced: the writer may be busy elsewhere."""
    for _ in range(1000):
        reader.refresh()
        if len(numbers_of(reader)) == count:
            return
        writer.write(0)


WRITE_ON_DEMAND = """
import sys, tidelog
from tidelog.engine.api.database import session_of
db = tidelog.open(sys.argv[1], segment_bytes=1 << 17, checkpoint_bytes=1 << 16)
numbers = db.map("numbers", key=tidelog.codecs.I64)
count = 0
for line in sys.stdin:
    if line == "close\\n":
        db.close()
    else:
        for _ in range(int(line)):
            with db.transaction() as tx:
                tx[numbers][count] = b"%d" % count
                tx[numbers][-1 - count] = b"%d" % count
            count += 1
        session_of(db).maintenance.maintain()
    print(count, flush=True)
"""


class Writer:
    """A writing process that does as it is told, and says when it is done."""

    def __init__(self, store: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITE_ON_DEMAND, str(store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.write(0)

    def write(self, transactions: int) -> int:
        """Let it commit some transactions; return how many there are by then."""
        return self._ask(str(transactions))

    def close(self) -> None:
        """Let it close its store."""
        self._ask("close")

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_exc: object) -> None:
        with self._process:
            self._process.kill()


def test_without_slots_nothing_is_read_beside_a_writer(tmp_path: Path) -> None:
    with Writer(tmp_path / "s"):
        with pytest.raises(errors.AlreadyOpenError, match="may not take a slot") as caught:
            open_with(NoSlots(errno.EACCES).environment, tmp_path / "s", read_only=True)
        assert "readers/" in caught.value.hint


def test_a_sealed_copy_on_a_medium_that_cannot_be_written_needs_no_lock(tmp_path: Path) -> None:
    store = closed_store(tmp_path / "s")
    (store / "lock").unlink()
    disk = NoSlots(errno.EROFS)

    def lock(path: str, *, shared: bool = False) -> LockHandle:
        code = errno.ENOENT if shared else errno.EROFS
        raise OSError(code, os.strerror(code), path)

    disk.environment.disk.lock = lock  # type: ignore[method-assign]
    with open_with(disk.environment, store, read_only=True) as reader:
        assert reader.map("m")[b"k"] == b"v"
        assert session_of(reader).access.alone


def test_a_lock_that_fails_otherwise_is_an_error_of_the_disk(tmp_path: Path) -> None:
    store = closed_store(tmp_path / "s")
    disk = NoSlots(errno.EACCES)

    def lock(path: str, *, shared: bool = False) -> LockHandle:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    disk.environment.disk.lock = lock  # type: ignore[method-assign]
    with pytest.raises(errors.DiskError, match="cannot be locked"):
        open_with(disk.environment, store, read_only=True)


def test_a_copied_store_without_its_empty_folder_is_opened(tmp_path: Path) -> None:
    store = closed_store(tmp_path / "s")
    (store / "readers").rmdir()
    with tidelog.open(store, read_only=True) as reader:
        assert reader.map("m")[b"k"] == b"v"
        assert len(os.listdir(store / "readers")) == 1
    (store / "readers").rmdir()
    tidelog.open(store).close()
    assert (store / "readers").is_dir()
    assert check_store(store) == []


# ------------------------------------------------------------------ processes


def numbers_of(reader: ReadOnlyDatabase) -> list[int]:
    """The transactions that a reader sees, after a check that each is whole."""
    found = dict(reader.map("numbers").items())
    numbers = [number for number in found if number >= 0]
    assert {-1 - number for number in numbers} == {number for number in found if number < 0}
    assert all(found[number] == found[-1 - number] == b"%d" % number for number in numbers)
    return numbers


@pytest.mark.slow
def test_a_process_reads_while_another_one_writes(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with Writer(store) as writer, tidelog.open(store, read_only=True) as reader:
        for _ in range(25):
            count = writer.write(40)
            catch_up(reader, writer, count)
            assert numbers_of(reader) == list(range(count))
        assert reader.statistics().checkpoint_position > 0
        writer.close()
        reader.refresh()
        assert numbers_of(reader) == list(range(count))
    assert check_store(store) == []


@pytest.mark.slow
def test_a_process_reads_on_when_the_writer_is_killed(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with Writer(store) as writer:
        count = writer.write(100)
        with tidelog.open(store, read_only=True) as reader:
            catch_up(reader, writer, count)
            writer.kill()
            reader.refresh()
            assert numbers_of(reader) == list(range(count))
    assert check_store(store) == []
    with tidelog.open(store) as db:
        assert len(db.map("numbers")) == 2 * count
    assert check_store(store) == []


READ_ON_DEMAND = """
import sys, tidelog
reader = tidelog.open(sys.argv[1], read_only=True)
print(reader.position, flush=True)
for line in sys.stdin:
    reader.refresh()
    print(len(reader.map("m")), flush=True)
"""


@contextmanager
def reading_process(store: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", READ_ON_DEMAND, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def refreshed(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("refresh\n")
    process.stdin.flush()
    return int(process.stdout.readline())


@pytest.mark.slow
def test_the_slot_of_a_killed_reader_is_freed_and_its_log_goes(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with tidelog.open(store, segment_bytes=1 << 17, retain_bytes=1) as db:
        m = db.map("m")
        with reading_process(store) as reader:
            assert len(db.statistics().readers) == 1
            for number in range(20):
                m[b"%d" % number] = bytes(50_000)
            db.checkpoint()
            db.checkpoint()
            assert db.statistics().log_first_position == 0
            session_of(db).maintenance.maintain()
            assert refreshed(reader) == 20
        db.checkpoint()
        assert db.statistics().readers == {}
        assert db.statistics().log_first_position > 0
        assert os.listdir(store / "readers") == []
        assert check_database(db) == []
    assert check_store(store) == []


@pytest.mark.slow
def test_a_map_that_grew_beyond_that_of_the_reader_is_a_clear_error(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with tidelog.open(store) as db:
        db.map("m")[b"k"] = b"v"
    with (
        tidelog.open(store, read_only=True, map_size=1 << 20) as reader,
        Writer(store) as writer,
    ):
        with pytest.raises(errors.DiskFullError, match="outgrown"):
            follow(reader, writer)
        assert reader.map("m")[b"k"] == b"v"
    with tidelog.open(store, read_only=True) as again:
        assert numbers_of(again)


def follow(reader: ReadOnlyDatabase, writer: Writer) -> None:
    while writer.write(2000) < 100_000:
        reader.refresh()


def test_one_process_opens_a_store_once(tmp_path: Path) -> None:
    store = closed_store(tmp_path / "s")
    with tidelog.open(store, read_only=True):
        for read_only in (True, False):
            with pytest.raises(errors.AlreadyOpenError, match="open in this process"):
                open_either(store, read_only)
    with tidelog.open(store), pytest.raises(errors.AlreadyOpenError):
        open_either(store, True)
    assert os.listdir(store / "readers") == []
    assert check_store(store) == []


def open_either(store: Path, read_only: bool) -> None:
    if read_only:
        tidelog.open(store, read_only=True)
    else:
        tidelog.open(store)


# ------------------------------------------------------------------ what is refused, and the end


def test_nothing_can_be_written() -> None:
    with world() as w:
        w.users[b"ann"] = b"1"
        w.announce()
        with w.reader() as reader:
            seen = reader.map("users")
            refused: list[Callable[[], object]] = [
                lambda: seen.set(b"a", b"b"),
                lambda: seen.discard(b"ann"),
                lambda: seen.pop(b"ann"),
                lambda: seen.update({b"a": b"b"}),
                lambda: seen.incr(b"a"),
                lambda: seen.clear(),
                reader.transaction,
                lambda: reader.run(lambda tx: None),
                reader.attempts,
                lambda: reader.drop("users"),
                lambda: reader.rename("users", "people"),
                reader.checkpoint,
                reader.sync,
            ]
            for call in refused:
                with pytest.raises(errors.ReadOnlyError):
                    call()
            with pytest.raises(errors.NotFoundError, match="no map 'other'"):
                reader.map("other")
            with reader.snapshot() as snapshot, pytest.raises(errors.ReadOnlyError):
                snapshot[seen][b"a"] = b"b"


def test_an_unknown_option_is_named() -> None:
    with world() as w, pytest.raises(errors.UsageError, match="map_sise") as caught:
        open_with(w.reading, STORE, read_only=True, map_sise=1)  # type: ignore[call-overload]
    assert "map_size" in caught.value.hint


def test_after_close_every_call_says_so() -> None:
    with world() as w:
        w.users[b"ann"] = b"1"
        w.announce()
        reader = w.reader()
        seen, snapshot = reader.map("users"), reader.snapshot()
        walk = iter(seen.items())
        next(walk)
        reader.close()
        reader.close()
        calls: list[Callable[[], object]] = [
            lambda: seen[b"ann"],
            lambda: seen.get_many([b"ann"]),
            lambda: list(seen),
            lambda: reader.map("users"),
            reader.maps,
            reader.snapshot,
            reader.refresh,
            reader.statistics,
            reader.checkpoint,
            snapshot.__enter__,
            reader.__enter__,
        ]
        for call in calls:
            with pytest.raises(errors.ClosedError):
                call()
        assert "closed" in repr(reader)
        assert w.disk.directory(f"{STORE}/readers").names() == []


def test_a_close_that_was_interrupted_anywhere_is_ended_by_the_next_one() -> None:
    """That did nothing: slot and data file stayed open until the process ended."""
    with world() as w:
        lines = Tracer()
        with w.reader() as reader, reader.snapshot():
            lines.run(reader.close)
        assert len(lines.lines) > 20
        for line in sorted(lines.lines):
            reader = w.reader()
            snapshot = reader.snapshot()
            interrupted = Tracer((line, 0))
            with pytest.raises(Interrupt):
                interrupted.run(reader.close)
            reader.close()
            with pytest.raises(errors.ClosedError):
                snapshot.__enter__()
            assert session_of(reader).access.kv._closed, interrupted.where  # type: ignore[attr-defined]
            assert w.disk.directory(f"{STORE}/readers").names() == [], interrupted.where


def test_keys_that_are_read_at_once_are_of_one_moment_beside_a_refresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with world() as w:
        keys = [b"1", b"2", b"3"]
        w.users.update_many(dict.fromkeys(keys, b"old"))
        w.announce()
        with w.reader() as reader:
            seen, getter = reader.map("users"), point_reads.getter

            def overtaken(*given: Any) -> Callable[[bytes], bytes | None]:
                get = getter(*given)

                def get_one(key: bytes) -> bytes | None:
                    if key == b"2":
                        w.users.update_many(dict.fromkeys(keys, b"new"))
                        w.announce()
                        reader.refresh()
                    return get(key)

                return get_one

            monkeypatch.setattr(point_reads, "getter", overtaken)
            assert seen.get_many(keys) == dict.fromkeys(keys, b"new")


def test_a_map_that_was_dropped_before_a_refresh_is_not_in_a_snapshot_behind_it() -> None:
    with world() as w:
        w.users[b"k"] = b"1"
        w.announce()
        with w.reader() as reader:
            seen = reader.map("users")
            with reader.snapshot() as before:
                w.db.drop("users")
                w.announce()
                reader.refresh()
                assert before[seen][b"k"] == b"1"
                with reader.snapshot() as behind, pytest.raises(errors.NotFoundError):
                    behind[seen]
            for read in (lambda: list(seen), lambda: seen.get_many([b"k"])):
                with pytest.raises(errors.NotFoundError):
                    read()


def test_a_snapshot_that_is_taken_while_another_thread_closes_ends_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with world() as w, w.reader() as reader:
        session = session_of(reader)
        mutex, take_view = session._mutex, session.take_view
        waits = threading.Event()

        class Mutex:
            """Tells when the other thread comes to it."""

            def __enter__(self) -> None:
                if threading.current_thread() is closing:
                    waits.set()
                mutex.acquire()

            def __exit__(self, *_exc: object) -> None:
                mutex.release()

        def close() -> None:
            reader.close()
            waits.set()

        def close_meanwhile() -> tuple[View, Layer, int]:
            taken = take_view()
            closing.start()
            assert waits.wait(WAIT)
            return taken

        closing = threading.Thread(target=close)
        monkeypatch.setattr(session, "_mutex", Mutex())
        monkeypatch.setattr(session, "take_view", close_meanwhile)
        snapshot = reader.snapshot()
        closing.join(WAIT)
        assert not closing.is_alive()
        with pytest.raises(errors.ClosedError):
            snapshot.__enter__()


FORK = """
import os, sys, tidelog
reader = tidelog.open(sys.argv[1], read_only=True)
m = reader.map("m")
child = os.fork()
if child == 0:
    for call in (lambda: m[b"k"], reader.refresh, reader.snapshot, reader.maps):
        try:
            call()
        except tidelog.errors.ForkedError:
            continue
        os._exit(1)
    reader.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert m[b"k"] == b"v"
print(os.waitstatus_to_exitcode(status), len(os.listdir(sys.argv[1] + "/readers")))
"""


@pytest.mark.slow
def test_a_forked_child_may_not_use_the_reader_of_its_parent(tmp_path: Path) -> None:
    store = closed_store(tmp_path / "s")
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(store)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("0 1\n", "")
    assert os.listdir(store / "readers") == []


def test_layers_of_many_refreshes_stay_few() -> None:
    layers: tuple[Layer, ...] = ()
    expected: dict[bytes, bytes] = {}
    for number in range(1000):
        key, value = b"%d" % (number % 300), b"%d" % number
        fresh = Layer()
        fresh.part(0)[key] = expected[key] = value
        fresh.bytes = 1
        held = [dict(layer.part(0)) for layer in layers]
        before = layers
        layers = stacked(fresh, layers)
        assert [dict(layer.part(0)) for layer in before] == held
        assert len(layers) < 12
    seen: dict[bytes, bytes] = {}
    for layer in reversed(layers):
        seen.update(layer.part(0))
    assert seen == expected


def test_the_folder_of_a_reader_is_opened_for_reading_only(tmp_path: Path) -> None:
    store = closed_store(tmp_path / "s")
    with tidelog.open(store, read_only=True) as reader:
        wal = session_of(reader).access.wal
        assert isinstance(wal, RealDirectory)
        with pytest.raises(OSError, match="opened for reading only"):
            wal.unlink(wal.names()[0])


def test_what_a_reader_shows_is_what_the_docs_name() -> None:
    with world() as w, w.reader() as reader:
        assert {name for name in dir(reader) if not name.startswith("_")} == {
            *("path", "partitions", "read_only", "position"),
            *("map", "maps", "refresh", "snapshot", "backup", "statistics", "close"),
            *("transaction", "run", "attempts", "attach", "drop", "rename", "checkpoint", "sync"),
            *("new_id", "outcome", "abandon"),
        }


def test_a_reader_that_is_outrun_again_and_again_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def outrun(_session: ReadSession, _manifest: object, _base: object) -> object:
        raise errors.HistoryTruncatedError("a segment is gone")

    with world() as w:
        w.users[b"ann"] = b"1"
        w.announce()
        with w.reader() as reader:
            monkeypatch.setattr(ReadSession, "_grown", outrun)
            w.users[b"bob"] = b"2"
            w.announce()
            with pytest.raises(errors.HistoryTruncatedError, match="faster than it can be read"):
                reader.refresh()


def test_whatever_is_asked_of_a_view_of_a_closed_store_says_that_it_is_closed() -> None:
    # A read that a signal had held up until the store was closed knew no `newer` of it.
    view = point_reads.closed_view(lambda: errors.ClosedError("it is closed"))
    asked = [name for name in dir(View) if not name.startswith("_")]
    assert {"layers", "txn", "stored", "newer"} <= {*asked}
    for name in asked:
        with pytest.raises(errors.ClosedError, match="it is closed"):
            getattr(view, name)
