"""The data file grows while readers are about: who waits, who is let go, what the limit does."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.interrupts import Interrupt, Line, Tracer
from support.stores import Opened, open_store, opened
from tidelog.affinity.errors import DiskFullError, SnapshotExpiredError
from tidelog.engine.api.database import session_of
from tidelog.engine.api.open import open as open_real
from tidelog.engine.data.overlay import Layer, Overlay
from tidelog.engine.store import data_file_growth as map_growth
from tidelog.engine.store.options import Options
from tidelog.testing import FaultyDisk, MemoryKv, simulated

WAIT = 60.0
SMALL: dict[str, Any] = {"map_size": 20_000, "map_size_max": 1 << 20}


def fill(store: Opened, count: int, first: int = 0) -> None:
    store.database.map("users").update_many(
        {b"%05d" % number: b"x" * 100 for number in range(first, first + count)}
    )


def test_a_checkpoint_that_finds_the_map_full_doubles_it_until_it_fits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with opened(**SMALL) as store, caplog.at_level(logging.INFO, "tidelog.store"):
        fill(store, 1000)
        store.database.checkpoint()
        assert store.parts.kv.map_size() == 160_000
        grown = [r for r in caplog.records if getattr(r, "event", "") == "map.grown"]
        assert len(grown) == 3
        assert len(store.database.map("users")) == 1000
        # Nobody was in the way, so nobody was waited for.
        assert store.environment.time.steady_s() == 0


def test_a_map_at_its_limit_is_an_error_and_nothing_is_lost() -> None:
    with opened(map_size=20_000, map_size_max=40_000) as store:
        fill(store, 500)
        with pytest.raises(DiskFullError, match="limit of 40,000 bytes") as caught:
            store.database.checkpoint()
        assert "map_size_max" in caught.value.hint
        users = store.database.map("users")
        assert len(users) == 500
        users[b"more"] = b"1"
        statistics = store.database.statistics()
        assert (statistics.checkpoints, statistics.checkpoint_failures) == (0, 1)
        assert statistics.log_first_position == 0
        for key in list(users):
            users.discard(key)
        store.database.checkpoint()
        assert len(users) == 0


def test_a_map_grows_to_its_limit_and_no_further() -> None:
    with opened(map_size=20_000, map_size_max=30_000) as store:
        fill(store, 140)
        store.database.checkpoint()
        assert store.parts.kv.map_size() == 30_000
        assert not session_of(store.database).overlay.gated


def test_the_limit_can_be_raised_at_the_next_open() -> None:
    store = open_store(map_size=20_000, map_size_max=20_000)
    fill(store, 500)
    with pytest.raises(DiskFullError):
        store.database.close()
    with opened(store.disk) as again:
        assert len(again.database.map("users")) == 500


@pytest.mark.parametrize("patience", [5.0, 0.2])
def test_whoever_still_reads_after_the_patience_is_expired(patience: float) -> None:
    with opened(**SMALL, growth_patience=patience) as store:
        fill(store, 10)
        store.database.checkpoint()
        users = store.database.map("users")
        snapshot = store.database.snapshot()
        scan: Iterator[bytes] = iter(users)
        assert next(scan) == b"00000"
        fill(store, 150)
        store.database.checkpoint()
        waited = store.environment.time.steady_s()
        assert patience <= waited <= patience + min(patience, 1.0) + 0.1
        with pytest.raises(SnapshotExpiredError, match="had to grow") as caught:
            snapshot[users].get(b"00000")
        assert caught.value.retryable
        with pytest.raises(SnapshotExpiredError):
            list(scan)
        with store.database.snapshot() as fresh:
            assert len(fresh[users]) == 150


def test_who_leaves_within_the_grace_is_not_disturbed() -> None:
    with opened(**SMALL) as store:
        fill(store, 10)
        store.database.checkpoint()
        snapshot = store.database.snapshot()
        # Some other work that runs meanwhile: the reader ends after a second.
        store.environment.schedule.add("leaves", 1.0, snapshot.close)
        fill(store, 1000)
        store.database.checkpoint()
        assert 1.0 <= store.environment.time.steady_s() < 1.1


def unexpected(why: str) -> None:
    """Nothing may have to end: no snapshot is open."""
    raise AssertionError(why)


def test_reads_during_growth_wait_and_go_on() -> None:
    disk = FaultyDisk()
    environment = simulated(1, disk)
    kv = MemoryKv(disk, "/", 5000)
    with kv.write() as txn:
        txn.put(b"key", b"value")
    overlay = Overlay(kv.begin())
    growth = map_growth.MapGrowth(
        environment,
        kv,
        overlay,
        Options(map_size_max=100_000),
        mutex=threading.Lock(),
        expire=unexpected,
    )
    waiting, found = threading.Semaphore(0), list[object]()

    class Growing:
        """The environment, with a reader that comes while its map changes."""

        def map_size(self) -> int:
            return kv.map_size()

        def begin(self) -> Any:
            return kv.begin()

        def grow(self, size: int) -> None:
            gate = overlay.view.txn

            def read() -> None:
                waiting.release()
                found.append(gate.get(b"key"))
                cursor = gate.cursor()
                found.append(cursor.set_range(b"a") and cursor.item())

            threads.append(threading.Thread(target=read))
            threads[0].start()
            assert waiting.acquire(timeout=WAIT)
            with pytest.raises(AssertionError):
                gate.put(b"k", b"v")
            with pytest.raises(AssertionError):
                gate.delete(b"k")
            gate.commit()
            gate.abort()
            assert found == []
            kv.grow(size)

    threads: list[threading.Thread] = []
    growth._kv = Growing()  # type: ignore[assignment]
    growth.grow()
    threads[0].join(WAIT)
    assert found == [b"value", (b"key", b"value")]
    assert kv.map_size() == 10_000
    assert overlay.view.stored(0, b"key") == b"value"
    assert overlay.active.parts == Layer().parts


def test_growth_that_fails_lets_the_readers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(**SMALL) as store:
        fill(store, 10)
        store.database.checkpoint()
        fill(store, 1000)

        def refuse(size: int) -> None:
            raise DiskFullError("no")

        with monkeypatch.context() as patch:
            patch.setattr(store.parts.kv, "grow", refuse)
            with pytest.raises(DiskFullError):
                store.database.checkpoint()
        assert len(store.database.map("users")) == 1000


def lines_of_growth() -> list[tuple[Line, int]]:
    """The lines that growth comes by, and how often."""
    tracer = Tracer()
    with opened(**SMALL) as store:
        fill(store, 300)
        tracer.run(store.database.checkpoint)
    lines = [
        item for item in tracer.lines.items() if item[0][0] == "engine/store/data_file_growth.py"
    ]
    assert len(lines) > 20
    return lines


@pytest.mark.parametrize(("line", "times"), lines_of_growth())
def test_an_interrupted_growth_leaves_no_reader_at_the_gate(line: Line, times: int) -> None:
    with opened(**SMALL) as store:
        fill(store, 300)
        with pytest.raises(Interrupt):
            Tracer((line, times // 2)).run(store.database.checkpoint)
        found = list[int]()
        reader = threading.Thread(
            target=lambda: found.append(len(store.database.map("users"))), daemon=True
        )
        reader.start()
        reader.join(WAIT)
        assert found == [300]
        with store.database.snapshot() as snapshot:
            fill(store, 300, 300)
            assert len(snapshot[store.database.map("users")]) == 300
        store.database.checkpoint()
        assert len(store.database.map("users")) == 600
        assert not session_of(store.database).overlay.gated


def test_a_commit_under_a_given_id_beside_growth_waits_without_the_mutex(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for the data file with the mutex in its hands, and growth for the mutex: for ever.

    Whether an id is committed already is looked up in the data file, in the middle of a commit.
    """
    with opened(**SMALL) as store:
        fill(store, 10)
        store.database.checkpoint()
        fill(store, 1000)
        users, new_id = store.database.map("users"), store.database.new_id()
        waiting, threads, grow = threading.Semaphore(0), list[threading.Thread](), []
        wait = map_growth.Gate.wait

        def commit() -> None:
            with store.database.transaction(id=new_id) as tx:
                tx[users][b"given"] = b"1"

        def waits(gate: map_growth.Gate) -> None:
            waiting.release()
            wait(gate)

        def grows(size: int) -> None:
            if not threads:
                threads.append(threading.Thread(target=commit, daemon=True))
                threads[0].start()
                assert waiting.acquire(timeout=WAIT)
                # Others commit meanwhile, and nobody keeps the mutex.
                users[b"other"] = b"2"
                assert threads[0].is_alive()
            grow.append(size)
            larger(size)

        larger = store.parts.kv.grow
        monkeypatch.setattr(map_growth.Gate, "wait", waits)
        monkeypatch.setattr(store.parts.kv, "grow", grows)
        store.database.checkpoint()
        threads[0].join(WAIT)
        assert (users[b"given"], users[b"other"]) == (b"1", b"2")
        assert store.database.outcome(new_id) == "committed"
        assert len(grow) == 3


def test_growth_opens_the_gate_before_it_asks_for_the_mutex(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever reads under the mutex would keep the gate shut that it waits for."""
    with opened(**SMALL) as store:
        fill(store, 10)
        store.database.checkpoint()
        fill(store, 1000)
        overlay, seen = session_of(store.database).overlay, list[tuple[bool, bool]]()
        refresh = overlay.refresh

        def refreshed(txn: Any) -> None:
            before = overlay.view.txn
            if isinstance(before, map_growth.Gate):
                seen.append((before.shut, overlay.gated))
            refresh(txn)

        monkeypatch.setattr(overlay, "refresh", refreshed)
        store.database.checkpoint()
        assert seen == [(False, False)] * 3


@pytest.fixture
def quick_turns() -> Iterator[None]:
    """Threads take turns so often that they meet in every window."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_turns")
def test_commits_under_given_ids_and_growth_do_not_hold_each_other_up(tmp_path: Path) -> None:
    """Threads that commit under ids of their own, while the map is enlarged again and again."""
    with open_real(tmp_path / "store", durability="none", partitions=1, map_size=1 << 20) as db:
        m = db.map("m")
        stop, committed, filled = threading.Event(), list[bytes](), threading.Event()

        def commits() -> None:
            while not stop.is_set():
                tx_id = db.new_id()
                with db.transaction(id=tx_id) as tx:
                    tx[m][tx_id] = b"1"
                committed.append(tx_id)

        threads = [threading.Thread(target=commits, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()

        def fills() -> None:
            for first in range(0, 6000, 500):
                m.update_many((b"%06d" % n, bytes(1000)) for n in range(first, first + 500))
                db.checkpoint()
            filled.set()

        threading.Thread(target=fills, daemon=True).start()
        assert filled.wait(WAIT)
        stop.set()
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        assert session_of(db).store.kv.map_size() >= 8 << 20
        assert len(m) == 6000 + len(committed)
        assert {db.outcome(tx_id) for tx_id in committed} == {"committed"}


@pytest.mark.parametrize("writer", ["a checkpoint", "rows that no record holds"])
def test_a_gate_that_an_interrupt_left_reads_what_was_there_before_the_next_write(
    writer: str,
) -> None:
    # Begun behind the write its transaction saw what a snapshot at the gate must not see.
    with opened(**SMALL) as store:
        fill(store, 10)
        store.database.checkpoint()
        growth = store.parts.checkpointer._growth
        gate = map_growth.Gate(growth.begin)
        overlay = session_of(store.database).overlay
        overlay.gated = True
        with store.parts.committer.mutex:
            overlay.refresh(gate)
        with store.database.snapshot() as snapshot:
            users = store.database.map("users")
            fill(store, 10, 10)
            if writer == "a checkpoint":
                store.database.checkpoint()
            else:
                store.parts.checkpointer.add({}, 0, lambda: None)
            assert gate._found is not None
            assert not overlay.gated
            assert gate.txn() is gate.txn()
            assert len(snapshot[users]) == 10
        store.database.checkpoint()


def test_growth_that_ends_before_its_gate_is_in_place_leaves_nothing_gated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(**SMALL) as store:
        overlay = session_of(store.database).overlay
        refresh = overlay.refresh

        def refuse(txn: Any) -> None:
            if isinstance(txn, map_growth.Gate):
                raise Interrupt
            refresh(txn)

        fill(store, 300)
        with monkeypatch.context() as patch:
            patch.setattr(overlay, "refresh", refuse)
            with pytest.raises(Interrupt):
                store.database.checkpoint()
        assert not overlay.gated
