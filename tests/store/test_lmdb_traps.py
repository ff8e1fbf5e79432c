"""What LMDB does to its users, and the store must keep from them."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.real_stores import error_of, expect_sound, in_child, opened, quiet, run_python
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.open import open as open_store
from tidelog.engine.codecs import registry as codecs
from tidelog.engine.store.options import Options
from tidelog.engine.system import lmdb_file as kv
from tidelog.engine.upkeep.check import check_store
from tidelog.errors import (
    ClosedError,
    CorruptDataError,
    DiskFullError,
    ForkedError,
    SnapshotExpiredError,
)

MIB = 1 << 20


class Waiting:
    """A clock that moves when somebody waits, and who does something meanwhile."""

    def __init__(self, *works: Callable[[], object]) -> None:
        self.now = 0.0
        self.works = list(works)

    def wait(self, seconds: float) -> None:
        if self.works:
            self.works.pop(0)()
        self.now += max(seconds, 0.5)

    def environment(self) -> Any:
        return quiet(monotonic=lambda: self.now, wait=self.wait)


def rows(first: int, size: int = 500, length: int = 1000) -> dict[bytes, bytes]:
    return {b"%06d" % number: bytes(length) for number in range(first, first + size)}


@pytest.fixture
def quick_turns() -> Iterator[None]:
    """Busy threads let go of the interpreter soon: LMDB's many short calls wait for it each."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


# ------------------------------------------------------------------ the map grows


@pytest.mark.slow
def test_a_full_map_grows_unseen(tmp_path: Path) -> None:
    with opened(tmp_path / "store", durability="none", map_size=MIB) as db:
        m = db.map("m")
        for first in range(0, 5000, 500):
            m.update_many(rows(first))
            db.checkpoint()
        assert len(m) == 5000
        assert session_of(db).store.kv.map_size() >= 8 * MIB
    # What was grown to is kept, whatever the option says.
    with opened(tmp_path / "store", map_size=MIB) as db:
        assert len(db.map("m")) == 5000
    expect_sound(tmp_path / "store")


@pytest.mark.slow
def test_a_recovery_that_fills_the_map_grows_it(tmp_path: Path) -> None:
    db = opened(tmp_path / "store", durability="none", map_size=MIB)
    for first in range(0, 5000, 500):
        db.map("m").update_many(rows(first))
    session_of(db).abandon()
    with opened(tmp_path / "store", map_size=MIB, checkpoint_bytes=MIB) as db:
        assert len(db.map("m")) == 5000
    expect_sound(tmp_path / "store")


@pytest.mark.usefixtures("quick_turns")
@pytest.mark.slow
def test_readers_beside_growth_see_all_of_it(tmp_path: Path) -> None:
    """Threads get and scan while the map is enlarged again and again."""
    with open_store(tmp_path / "store", durability="none", map_size=MIB) as db:
        m = db.map("m")
        m.update_many(rows(0))
        db.checkpoint()
        stop, looked, expired = threading.Event(), count(), count()
        errors: list[BaseException] = []

        def reader(scans: bool) -> None:
            try:
                while not stop.is_set():
                    next(looked)
                    assert m[b"000123"] == bytes(1000)
                    assert m.get(b"nothing") is None
                    try:
                        with db.snapshot() as snapshot:
                            found = sum(1 for _ in snapshot[m].items()) if scans else 500
                            assert found % 500 == 0
                            assert found >= 500
                    except SnapshotExpiredError:
                        next(expired)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=reader, args=(scans,)) for scans in (True, False, False)]
        for thread in threads:
            thread.start()
        for first in range(500, 3500, 500):
            m.update_many(rows(first))
            db.checkpoint()
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert next(looked) > 3
        assert len(m) == 3500
    expect_sound(tmp_path / "store")


def test_snapshots_get_their_time_before_growth_and_end_then(tmp_path: Path) -> None:
    waiting = Waiting()
    with opened(tmp_path / "store", waiting.environment(), durability="none", map_size=MIB) as db:
        m = db.map("m")
        m.update_many(rows(0))
        db.checkpoint()
        snapshot, tx = db.snapshot(), db.transaction()
        assert tx[m][b"000001"] == bytes(1000)
        pairs, scanned = iter(m.items()), iter(snapshot[m].items())
        assert next(pairs) == next(scanned) == (b"000000", bytes(1000))
        m.update_many(rows(500, 1000))
        db.checkpoint()
        assert waiting.now >= Options().growth_patience
        for read in (
            lambda: snapshot[m],
            lambda: list(pairs),
            lambda: list(scanned),
            lambda: tx[m][b"000002"],
        ):
            assert isinstance(error_of(read), SnapshotExpiredError)
        assert SnapshotExpiredError.retryable
        assert len(m) == 1500
        with db.snapshot() as fresh:
            assert len(fresh[m]) == 1500
    expect_sound(tmp_path / "store")


def test_growth_goes_on_once_the_last_reader_has_left(tmp_path: Path) -> None:
    held: list[Any] = []
    waiting = Waiting(lambda: None, held.clear)
    with opened(tmp_path / "store", waiting.environment(), durability="none", map_size=MIB) as db:
        m = db.map("m")
        m.update_many(rows(0))
        db.checkpoint()
        held.append(db.snapshot())
        m.update_many(rows(500))
        db.checkpoint()
        assert waiting.now < Options().growth_patience
    expect_sound(tmp_path / "store")


def test_a_snapshot_that_is_taken_during_growth_does_not_change(tmp_path: Path) -> None:
    """Was: it read from whatever transaction was the newest, so later commits showed in it."""
    held: list[Any] = []
    taken: list[Any] = []
    waiting = Waiting(lambda: taken.append(db.snapshot()), held.clear)
    db: Database = opened(
        tmp_path / "store", waiting.environment(), durability="none", map_size=MIB
    )
    with db:
        m = db.map("m")
        m[b"k"] = b"old"
        db.checkpoint()
        held.append(db.snapshot())
        m.update_many(rows(0, 800))
        db.checkpoint()
        m[b"k"] = b"new"
        m.update_many(rows(0, 1, 1))
        db.checkpoint()
        (snapshot,) = taken
        assert snapshot[m][b"k"] == b"old"
        assert snapshot[m][b"000000"] == bytes(1000)
        assert m[b"k"] == b"new"
    expect_sound(tmp_path / "store")


def test_a_map_at_its_greatest_stops_writing_and_goes_on_after_raising_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"durability": "none", "map_size": MIB, "checkpoint_bytes": 2 * MIB}
    db = opened(tmp_path / "store", map_size_max=2 * MIB, **options)
    m = db.map("m")
    m.update_many(rows(0))
    db.checkpoint()
    written = range(500, 20_000, 500)

    def fill() -> None:
        for first in written:
            m.update_many(rows(first))
            db.checkpoint()

    error = error_of(fill)
    assert isinstance(error, DiskFullError)
    assert "map_size_max" in error.hint
    assert error.retryable
    before = len(m)
    assert m[b"000000"] == bytes(1000)
    assert db.statistics().checkpoint_failures > 0
    assert isinstance(error_of(db.checkpoint), DiskFullError)
    assert len(m) == before
    assert isinstance(error_of(db.close), DiskFullError)
    with opened(tmp_path / "store", map_size_max=64 * MIB, **options) as db:
        assert len(db.map("m")) == before
        db.map("m").update_many(rows(written.stop))
        db.checkpoint()
    expect_sound(tmp_path / "store")


@pytest.mark.slow
def test_a_map_at_its_greatest_takes_writes_again_after_deletes(tmp_path: Path) -> None:
    with opened(tmp_path / "store", durability="none", map_size=MIB, map_size_max=4 * MIB) as db:
        m = db.map("m")
        m.update_many(rows(0, 1500))
        db.checkpoint()
        m.update_many(rows(2500, 2500))
        assert isinstance(error_of(db.checkpoint), DiskFullError)
        for key in rows(2500, 2500):
            m.discard(key)
        db.checkpoint()
        m[b"after"] = b"it works"
        db.checkpoint()
        assert len(m) == 1501
    expect_sound(tmp_path / "store")


# ------------------------------------------------------------------ many readers, memory


@pytest.mark.slow
def test_more_readers_than_lmdb_has_slots(tmp_path: Path) -> None:
    with opened(tmp_path / "store", durability="none") as db:
        m = db.map("m")
        snapshots = []
        for number in range(1500):
            m[b"k"] = b"%d" % number
            snapshots.append(db.snapshot())
            if number % 10 == 0:
                db.checkpoint()
        for number in range(0, 1500, 7):
            assert snapshots[number][m][b"k"] == b"%d" % number
        assert db.statistics().snapshots == 1500
        for snapshot in snapshots:
            snapshot.close()
        assert db.statistics().snapshots == 0
    expect_sound(tmp_path / "store")


@pytest.mark.slow
def test_generations_beyond_the_reader_slots_are_a_clear_error_or_work(tmp_path: Path) -> None:
    """One LMDB transaction for each checkpoint that a snapshot pins."""
    with opened(tmp_path / "store", durability="none", partitions=1) as db:
        m = db.map("m")
        snapshots = []
        for number in range(1100):
            m[b"k"] = b"%d" % number
            error = error_of(db.checkpoint)
            if error is not None:
                break
            snapshots.append((number, db.snapshot()))
        for number, snapshot in snapshots[::50]:
            assert snapshot[m][b"k"] == b"%d" % number
        snapshots.clear()
        m[b"k"] = b"last"
        db.checkpoint()
        assert m[b"k"] == b"last"
    expect_sound(tmp_path / "store")


@pytest.mark.slow
def test_slots_of_readers_that_died_are_freed(tmp_path: Path) -> None:
    program = (
        "import os, sys, tidelog\n"
        "db = tidelog.open(sys.argv[1], read_only=True)\n"
        "snapshot = db.snapshot()\n"
        "assert len(snapshot[db.map('m')]) == 500\n"
        "os._exit(0)\n"
    )
    with opened(tmp_path / "store") as db:
        db.map("m").update_many(rows(0))
        db.checkpoint()
        for _ in range(3):
            assert run_python(program, tmp_path / "store") == (0, "", "")
        assert session_of(db).store.kv.clear_stale_readers() == 3
        assert session_of(db).store.kv.clear_stale_readers() == 0
        assert db.statistics().readers == {}
    assert run_python(program, tmp_path / "store").status == 0
    with opened(tmp_path / "store") as db:
        assert session_of(db).store.kv.clear_stale_readers() == 0
        assert db.statistics().readers == {}
    assert list((tmp_path / "store" / "readers").iterdir()) == []
    expect_sound(tmp_path / "store")


def test_snapshots_that_pin_too_much_memory_end_oldest_first(tmp_path: Path) -> None:
    now = [0.0]
    environment = quiet(monotonic=lambda: now[0])
    with opened(
        tmp_path / "store", environment, durability="none", snapshot_memory_max=2 * MIB
    ) as db:
        m = db.map("m")
        snapshots = []
        for first in range(0, 3000, 500):
            m.update_many(rows(first))
            snapshots.append(db.snapshot())
            now[0] += 1
            db.checkpoint()
        shown = [error_of(partial(snapshot.__getitem__, m)) for snapshot in snapshots]
        ended = [isinstance(error, SnapshotExpiredError) for error in shown]
        assert ended == sorted(ended, reverse=True)
        assert ended[0]
        assert not ended[-1]
        assert len(snapshots[-1][m]) == 3000
        assert "snapshot_memory_max" in str(error_of(lambda: snapshots[0][m]))
    expect_sound(tmp_path / "store")


@pytest.mark.slow
def test_iterators_and_snapshots_that_nobody_closed_go_with_the_collector(tmp_path: Path) -> None:
    with opened(tmp_path / "store", durability="none") as db:
        m = db.map("m")
        m.update_many(rows(0))
        db.checkpoint()
        for number in range(50):
            m[b"k"] = b"%d" % number
            next(iter(m.items()))
            next(iter(db.snapshot()[m].keys()))
            with db.transaction() as tx:
                next(tx[m].range(b"000100"))
        gc.collect()
        assert db.statistics().snapshots == 0
        db.snapshot().close()
        assert db.statistics().overlay_layers <= 2
        db.checkpoint()
        # Dead transactions of LMDB would keep pages from being used again.
        size = db.statistics().data_bytes
        for _ in range(20):
            m.update_many(rows(0))
            next(iter(m.items()))
            db.checkpoint()
        assert db.statistics().data_bytes < 6 * size
    expect_sound(tmp_path / "store")


@pytest.mark.usefixtures("quick_turns")
@pytest.mark.slow
def test_readers_beside_a_busy_writer_see_whole_transactions(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", durability="none", checkpoint_bytes=50_000) as db:
        m = db.map("m")
        keys = [b"%02d" % number for number in range(20)]
        m.update_many(dict.fromkeys(keys, b"0"))
        stop = threading.Event()
        errors: list[BaseException] = []

        def reader(look: Callable[[], list[bytes]]) -> None:
            last = -1
            try:
                while not stop.is_set():
                    found = set(look())
                    assert len(found) == 1
                    assert int(min(found)) >= last
                    last = int(min(found))
            except BaseException as error:
                errors.append(error)

        def inside() -> list[bytes]:
            with db.transaction() as tx:
                return [tx[m][key] for key in keys]

        looks = [
            lambda: list(m.values()),
            lambda: list(dict(m.range(reverse=True)).values()),
            inside,
        ]
        threads = [threading.Thread(target=reader, args=(look,)) for look in looks]
        for thread in threads:
            thread.start()
        for number in range(1, 400):
            m.update_many(dict.fromkeys(keys, b"%d" % number))
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
    expect_sound(tmp_path / "store")


ADDRESS_LIMIT = """
import resource, sys, tidelog
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
with tidelog.open(sys.argv[1], durability="none") as db:
    m = db.map("m")
    for first in range(0, 20_000, 2_000):
        m.update_many((b"%06d" % number, bytes(1000)) for number in range(first, first + 2_000))
        db.checkpoint()
    print(len(m))
"""


@pytest.mark.slow
def test_a_limit_of_the_address_space_makes_a_smaller_map(tmp_path: Path) -> None:
    assert run_python(ADDRESS_LIMIT, tmp_path / "store") == (0, "20000\n", "")
    expect_sound(tmp_path / "store")


# ------------------------------------------------------------------ forks


def test_a_fork_keeps_its_hands_off_the_store(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as db:
        m = db.map("m")
        m[b"k"] = b"v"
        db.checkpoint()
        snapshot, tx, pairs = db.snapshot(), db.transaction(), iter(m.items())
        tx[m][b"mine"] = b"1"
        old = snapshot[m]
        assert tx[m][b"k"] == b"v"

        def child() -> None:
            uses: list[Callable[[], object]] = [
                lambda: m[b"k"],
                lambda: m.set(b"k", b"child"),
                lambda: m.update_many({b"k": b"child"}),
                lambda: next(pairs),
                lambda: snapshot[m],
                lambda: old[b"k"],
                lambda: db.snapshot(),
                lambda: db.transaction(),
                lambda: db.checkpoint(),
                lambda: db.sync(),
                lambda: db.map("other"),
                lambda: db.maps(),
                tx.commit,
            ]
            for use in uses:
                error = error_of(use)
                assert isinstance(error, ForkedError), error
            db.close()
            session_of(db).abandon()

        assert in_child(child) == 0
        m[b"parents"] = b"2"
        tx.commit()
        assert dict(m.items()) == {b"k": b"v", b"mine": b"1", b"parents": b"2"}
        assert snapshot[m][b"k"] == b"v"
    expect_sound(tmp_path / "store")


def test_a_child_may_open_a_store_of_its_own(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as db:

        def child() -> None:
            with open_store(tmp_path / "childs") as own:
                own.map("m")[b"k"] = b"v"

        assert in_child(child) == 0
        db.map("m")[b"k"] = b"v"
    expect_sound(tmp_path / "childs")
    expect_sound(tmp_path / "store")


# ------------------------------------------------------------------ the end


def uses_of(db: Database) -> Iterator[Callable[[], object]]:
    """Everything that somebody may still hold when a store is closed."""
    m = db.map("m")
    snapshot, tx, other = db.snapshot(), db.transaction(), db.transaction("pessimistic")
    pairs, scanned, inside = iter(m.items()), iter(snapshot[m].items()), iter(tx[m].items())
    for started in (pairs, scanned, inside):
        next(started)
    tx[m][b"000001"] = b"1"
    other[m][b"000002"] = b"1"
    old = snapshot[m]
    yield from (
        lambda: m[b"000001"],
        lambda: m.get(b"no"),
        lambda: m.get_many([b"000001", b"no"]),
        lambda: m.set(b"000001", b"2"),
        lambda: m.discard(b"000001"),
        lambda: m.incr(b"n"),
        lambda: m.update_many({b"000001": b"2"}),
        lambda: len(m),
        lambda: next(iter(m.items())),
        lambda: list(pairs),
        lambda: list(scanned),
        lambda: list(inside),
        lambda: old[b"000001"],
        lambda: snapshot[m],
        lambda: tx[m][b"000003"],
        tx.commit,
        other.commit,
        db.snapshot,
        db.transaction,
        lambda: db.run(lambda tx: None),
        lambda: list(db.attempts()),
        db.checkpoint,
        db.sync,
        db.statistics,
        db.maps,
        lambda: db.map("m"),
        lambda: db.map("new"),
        lambda: db.drop("m"),
        lambda: db.rename("m", "n"),
        lambda: db.outcome(bytes(16)),
        db.__enter__,
    )


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_after_the_end_every_call_raises(tmp_path: Path, end: str) -> None:
    db = opened(tmp_path / "store", durability="none")
    db.map("m").update_many(rows(0))
    db.checkpoint()
    uses = list(uses_of(db))
    getattr(session_of(db), end)()
    for place, use in enumerate(uses):
        error = error_of(use)
        assert isinstance(error, ClosedError), (place, error)
    db.close()
    db.close()
    with opened(tmp_path / "store") as db:
        assert len(db.map("m")) == 500
    expect_sound(tmp_path / "store")


CLOSE_UNDER_READERS = """
import sys, threading, tidelog
sys.setswitchinterval(1e-5)
for round in range(12):
    db = tidelog.open(f"{sys.argv[1]}-{round}", partitions=4, durability="none")
    m = db.map("m")
    m.update_many((b"%06d" % n, bytes(50)) for n in range(3000))
    db.checkpoint()
    snapshot, raised, begun = db.snapshot(), [], threading.Barrier(6)
    keys = [b"%06d" % n for n in range(0, 3000, 3)]
    works = [
        lambda: (m[b"000777"], m.get(b"nothing")),
        lambda: sum(1 for _ in m.items()),
        lambda: sum(1 for _ in snapshot[m].range(reverse=True)),
        lambda: m.get_many(keys),
        lambda: m.update_many({b"k": b"v"}),
    ]
    def client(work):
        begun.wait()
        try:
            while True:
                work()
        except tidelog.errors.TidelogError as error:
            raised.append(error)
    threads = [threading.Thread(target=client, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    begun.wait()
    for _ in range(round):
        m[b"k"] = b"w"
    db.close()
    for thread in threads:
        thread.join()
    assert len(raised) == len(works), raised
print("fine")
"""


@pytest.mark.slow
def test_closing_under_readers_and_writers_ends_them_cleanly(tmp_path: Path) -> None:
    """Was: their reads of LMDB ended in errors of LMDB."""
    assert run_python(CLOSE_UNDER_READERS, tmp_path / "store") == (0, "fine\n", "")


USE_AFTER_THE_END = """
import sys, tidelog
from tidelog.engine.api.database import session_of
db = tidelog.open(sys.argv[1], durability="none")
m = db.map("m")
m.update_many((b"%06d" % n, bytes(50)) for n in range(3000))
db.checkpoint()
pairs, snapshot, tx = iter(m.items()), db.snapshot(), db.transaction()
old, inside = iter(snapshot[m].items()), iter(tx[m].items())
next(pairs), next(old), next(inside)
getattr(session_of(db), sys.argv[2])()
for use in (lambda: list(pairs), lambda: list(old), lambda: list(inside), tx.commit):
    try:
        use()
    except tidelog.errors.ClosedError:
        print("closed")
del db, m, pairs, snapshot, tx, old, inside
import gc
gc.collect()
print("end")
"""


@pytest.mark.parametrize("end", ["close", "abandon"])
@pytest.mark.slow
def test_what_is_used_after_the_end_does_not_end_the_interpreter(tmp_path: Path, end: str) -> None:
    ran = run_python(USE_AFTER_THE_END, tmp_path / "store", end)
    assert ran == (0, "closed\n" * 4 + "end\n", "")


EXIT_WHILE_OPEN = """
import sys, threading, tidelog
db = tidelog.open(sys.argv[1], durability=sys.argv[2])
m = db.map("m")
begun = threading.Barrier(4)
def commit(client):
    for number in range(1_000_000):
        m[b"%d/%d" % (client, number)] = b"v"
        if number == 20:
            begun.wait()
for client in range(3):
    threading.Thread(target=commit, args=(client,), daemon=True).start()
begun.wait()
m[b"last"] = b"v"
snapshot, pairs = db.snapshot(), iter(m.items())
next(pairs)
if sys.argv[3] == "raise":
    raise SystemExit(5)
"""


@pytest.mark.parametrize("durability", ["always", "interval", "none"])
@pytest.mark.parametrize(("how", "status"), [("end", 0), ("raise", 5)])
@pytest.mark.slow
def test_an_interpreter_that_ends_with_an_open_store_closes_it(
    tmp_path: Path, durability: str, how: str, status: int
) -> None:
    ran = run_python(EXIT_WHILE_OPEN, tmp_path / "store", durability, how)
    assert (ran.status, ran.out) == (status, "")
    with opened(tmp_path / "store") as db:
        assert session_of(db).store.report.clean
        m = db.map("m")
        assert m[b"last"] == b"v"
        for client in range(3):
            numbers = sorted(int(key.split(b"/")[1]) for key in m.keys(b"%d/" % client))
            assert numbers == list(range(len(numbers)))
            assert len(numbers) > 20
    expect_sound(tmp_path / "store")


# ------------------------------------------------------------------ pages that nobody wrote


def drop_what_was_filled(path: Path) -> Database:
    """A store whose last transaction of the data file took pages and gave them back."""
    db = open_store(path, partitions=1, durability="none", retain_bytes=1, segment_bytes=1)
    db.map("first")
    db.checkpoint()
    numbers = db.map("numbers", key=codecs.I64, value=codecs.I64)
    numbers.update_many({number: number for number in range(400)})
    db.checkpoint()
    db.drop("first")
    db.map("kept")[b"a"] = b"1"
    db.checkpoint()
    db.map("kept").clear()
    db.map("kept")[b"b"] = b"2"
    db.drop("numbers")
    db.checkpoint()
    return db


def test_the_data_file_is_as_long_as_its_meta_page_says(tmp_path: Path) -> None:
    db = drop_what_was_filled(tmp_path / "s")
    assert (tmp_path / "s/data/data.mdb").stat().st_size >= db.statistics().data_bytes
    db.close()


def test_pages_at_the_end_that_were_never_written_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A store was refused as cut off after a map had been dropped: LMDB counts pages that a
    # transaction took and gave back, and does not write them. A crash may leave it so, too.
    monkeypatch.setattr(kv.LmdbEnvironment, "_fill_up", lambda _: None)
    db = drop_what_was_filled(tmp_path / "s")
    file = tmp_path / "s/data/data.mdb"
    assert file.stat().st_size < db.statistics().data_bytes
    db.close()
    assert check_store(tmp_path / "s") == []
    with open_store(tmp_path / "s", read_only=True) as reader:
        assert dict(reader.map("kept").items()) == {b"b": b"2"}
    with open_store(tmp_path / "s") as again:
        assert again.maps() == ["kept"]
        again.map("kept")[b"c"] = b"3"
    assert check_store(tmp_path / "s") == []
    os.truncate(file, file.stat().st_size - 3 * 4096)
    with pytest.raises(CorruptDataError):
        open_store(tmp_path / "s")


# ------------------------------------------------------------------ readers that die

DYING_READER = """
import os, sys, tidelog
reader = tidelog.open(sys.argv[1], read_only=True)
snapshot = reader.snapshot()
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_reader_that_was_killed_pins_pages_until_the_next_checkpoint(tmp_path: Path) -> None:
    """The data file grew with every checkpoint until the writer was opened anew."""
    path = tmp_path / "store"
    with opened(path, durability="none", partitions=1) as db:
        m, sizes = db.map("m"), []

        def rewrite() -> None:
            for first in range(4):
                m.update_many({b"%06d" % n: bytes([first]) * 300 for n in range(2000)})
                db.checkpoint()
            sizes.append(db.statistics().data_bytes)

        rewrite()
        assert run_python(DYING_READER, path).status == -9
        for _ in range(5):
            rewrite()
        # One generation more than before may be in the file: that of the dead reader.
        assert max(sizes) <= 2 * sizes[0]
        kv: Any = session_of(db).store.kv
        assert kv._env.readers().count("\n") == 2  # a heading, and this process
    expect_sound(path)
