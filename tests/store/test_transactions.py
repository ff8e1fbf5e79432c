"""What transactions promise, seen from outside: levels, locks, ids, outcomes, retries."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.real_stores import error_of, expect_sound, opened, quiet
from tidelog import codecs
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.maps import Map
from tidelog.engine.api.open import open as open_store
from tidelog.engine.api.transactions import Transaction
from tidelog.engine.system.disk import RealDisk
from tidelog.errors import (
    ClosedError,
    ConflictError,
    DeadlineError,
    DeadlockError,
    LockTimeoutError,
    TransactionTooLargeError,
    UsageError,
)
from tidelog.tx.locks import LockAnswer, LockTable, Want

OPTIMISTIC_LEVELS = ["serializable", "repeatable_read", "read_committed"]
ID = bytes(range(16))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with opened(tmp_path / "store", partitions=4, durability="none") as database:
        yield database
    expect_sound(tmp_path / "store")


@pytest.fixture
def m(db: Database) -> Map[Any, Any]:
    mapping = db.map("m", key=codecs.Str, value=codecs.I64)
    mapping.update_many({"x": 50, "y": 50})
    return mapping


def in_threads(*works: Callable[[], object]) -> list[BaseException | None]:
    """Run each in a thread of its own; return what each of them raised."""
    raised: list[BaseException | None] = [None] * len(works)

    def guarded(place: int) -> None:
        try:
            works[place]()
        except BaseException as error:
            raised[place] = error

    threads = [threading.Thread(target=guarded, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


# ------------------------------------------------------------------ levels


@pytest.mark.parametrize("isolation", OPTIMISTIC_LEVELS)
def test_write_skew_is_possible_below_serializable(
    db: Database, m: Map[Any, Any], isolation: Any
) -> None:
    one, two = (db.transaction(isolation=isolation) for _ in range(2))
    for tx, mine in ((one, "x"), (two, "y")):
        if tx[m]["x"] + tx[m]["y"] >= 100:
            tx[m][mine] = -40
    one.commit()
    skewed = error_of(two.commit) is None
    assert skewed == (isolation != "serializable")
    assert (m["x"] + m["y"] < 0) == skewed


@pytest.mark.parametrize("isolation", OPTIMISTIC_LEVELS)
def test_updates_are_lost_at_read_committed_only(
    db: Database, m: Map[Any, Any], isolation: Any
) -> None:
    one, two = (db.transaction(isolation=isolation) for _ in range(2))
    for tx in (one, two):
        tx[m]["x"] += 1
    one.commit()
    assert (error_of(two.commit) is None) == (isolation == "read_committed")
    assert m["x"] == 51


@pytest.mark.parametrize("isolation", OPTIMISTIC_LEVELS)
def test_a_read_repeats_itself_above_read_committed(
    db: Database, m: Map[Any, Any], isolation: Any
) -> None:
    with db.transaction(isolation=isolation, plain_writes=True) as tx:
        first = tx[m]["x"]
        m["x"] = 7
        assert tx[m]["x"] == (7 if isolation == "read_committed" else first)


@pytest.mark.parametrize("isolation", OPTIMISTIC_LEVELS)
def test_phantoms_stop_serializable_transactions_only(
    db: Database, m: Map[Any, Any], isolation: Any
) -> None:
    tx = db.transaction(isolation=isolation)
    total = sum(tx[m].values())
    m["phantom"] = 1
    tx[m]["total"] = total
    error = error_of(tx.commit)
    if isolation == "serializable":
        assert isinstance(error, ConflictError)
        assert error.key == b"phantom"
    else:
        assert error is None


def test_a_scan_that_stopped_early_depends_on_what_it_saw_only(
    db: Database, m: Map[Any, Any]
) -> None:
    m.update_many({f"x{number:04}": 0 for number in range(1000)})
    db.checkpoint()
    for reverse, near, far in ((False, "x", "x0900"), (True, "x0999", "x0100")):
        for changed, conflicts in ((near, True), (far, False)):
            with db.transaction(plain_writes=True) as tx:
                assert len(list(tx[m].range("x", "y", reverse=reverse, limit=1))) == 1
                tx[m]["z"] = 1
                m[changed] += 1
                assert isinstance(error_of(tx.commit), ConflictError) == conflicts


def test_reading_only_never_conflicts(db: Database, m: Map[Any, Any]) -> None:
    with db.transaction(plain_writes=True) as tx:
        before = dict(tx[m].items())
        m.clear()
        assert dict(tx[m].items()) == before


@pytest.mark.parametrize("isolation", ["serializable", "repeatable_read"])
def test_pessimistic_readers_keep_writers_and_phantoms_out(
    db: Database, m: Map[Any, Any], isolation: Any
) -> None:
    with db.transaction("pessimistic", isolation=isolation) as tx:
        assert sum(tx[m].values()) == 100
        for key in ("x", "phantom"):
            writer = db.transaction("pessimistic", lock_timeout=0.01)
            with pytest.raises(LockTimeoutError):
                writer[m][key] = 1
            writer.rollback()
            blind = db.transaction(lock_timeout=0.01)
            blind[m][key] = 1
            assert isinstance(error_of(blind.commit), LockTimeoutError)
    m["phantom"] = 1


def test_pessimistic_read_committed_holds_no_read_locks(db: Database, m: Map[Any, Any]) -> None:
    with db.transaction("pessimistic", isolation="read_committed", plain_writes=True) as tx:
        assert tx[m]["x"] == 50
        m["x"] = 7
        assert tx[m]["x"] == 7


def test_single_puts_wait_for_locks(
    db: Database, m: Map[Any, Any], waiting: threading.Event
) -> None:
    locked, done = threading.Event(), []

    def holder() -> None:
        with db.transaction("pessimistic") as tx:
            tx[m]["x"] += 1
            locked.set()
            assert waiting.wait(60)
            done.append("holder")

    def put() -> None:
        locked.wait()
        m["x"] = 7
        done.append("put")

    assert in_threads(holder, put) == [None, None]
    assert done == ["holder", "put"]
    assert m["x"] == 7


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a request for a lock has to wait."""
    queued, request = threading.Event(), LockTable.request

    def watched(table: LockTable, owner: int, want: Want) -> LockAnswer:
        outcome = request(table, owner, want)
        if table.blockers(owner):
            queued.set()
        return outcome

    monkeypatch.setattr(LockTable, "request", watched)
    return queued


# ------------------------------------------------------------------ locks


def crossing(db: Database, m: Map[Any, Any], barrier: threading.Barrier, *keys: str) -> None:
    with db.transaction("pessimistic") as tx:
        tx[m][keys[0]] += 1
        barrier.wait()
        tx[m][keys[1]] += 1


def test_of_two_that_wait_for_each_other_one_ends(db: Database, m: Map[Any, Any]) -> None:
    barrier = threading.Barrier(2)
    raised = in_threads(
        lambda: crossing(db, m, barrier, "x", "y"), lambda: crossing(db, m, barrier, "y", "x")
    )
    assert sorted(map(type, raised), key=str) == [type(None), DeadlockError]
    assert DeadlockError.retryable
    assert (m["x"], m["y"]) == (51, 51)


def test_of_a_circle_of_five_somebody_ends_and_the_others_commit(
    db: Database, m: Map[Any, Any]
) -> None:
    m.update_many({str(key): 0 for key in range(5)})
    barrier = threading.Barrier(5)

    def client(place: int) -> Callable[[], None]:
        return lambda: crossing(db, m, barrier, str(place), str((place + 1) % 5))

    raised = in_threads(*(client(place) for place in range(5)))
    ended = [error for error in raised if error is not None]
    assert ended
    assert all(isinstance(error, DeadlockError) for error in ended)
    assert sum(m[str(key)] for key in range(5)) == 2 * (5 - len(ended))


@pytest.mark.parametrize("mode", ["optimistic", "pessimistic"])
def test_run_retries_until_every_transfer_is_made(
    db: Database, m: Map[Any, Any], mode: Any
) -> None:
    accounts = [f"account {number}" for number in range(4)]
    m.update_many(dict.fromkeys(accounts, 100))

    def transfer(tx: Any, source: str, target: str) -> int:
        tx[m][source] -= 1
        tx[m][target] += 1
        return int(tx[m][source])

    def client(seed: int) -> Callable[[], None]:
        chance = random.Random(seed)

        def work() -> None:
            for _ in range(25):
                source, target = chance.sample(accounts, 2)
                db.run(transfer, source, target, attempts=1000, mode=mode)

        return work

    assert in_threads(*(client(seed) for seed in range(4))) == [None] * 4
    assert sum(m[account] for account in accounts) == 400
    assert db.statistics().transactions >= 100


def test_waiting_for_a_lock_ends_at_its_time_out_and_at_the_deadline(
    db: Database, m: Map[Any, Any]
) -> None:
    with db.transaction("pessimistic") as holder:
        holder[m]["x"] = 1
        with pytest.raises(LockTimeoutError) as late, db.transaction(lock_timeout=0.01) as tx:
            tx[m]["x"] = 2
        assert late.value.retryable
        with pytest.raises(DeadlineError), db.transaction("pessimistic", deadline=0.01) as tx:
            tx[m]["x"] = 3
    assert m["x"] == 1


def test_single_writes_in_the_way_of_a_deadlock_go_on(
    db: Database, m: Map[Any, Any], waiting: threading.Event
) -> None:
    """Was: a plain put that waited for a lock could be the youngest of a circle, and raised."""
    locked = threading.Barrier(2)

    def holder() -> None:
        with db.transaction("pessimistic") as tx:
            assert tx[m]["x"] == 50
            locked.wait()
            assert waiting.wait(60)
            # The put waits to write x, so a range around it has to wait for the put.
            assert sum(tx[m].values()) == 100

    def put() -> None:
        locked.wait()
        m["x"] = 1

    def put_many() -> None:
        locked.wait()
        m.update_many({"x": 1, "y": 2})

    for write in (put, put_many):
        m.update_many({"x": 50, "y": 50})
        assert in_threads(holder, write) == [None, None]
        assert m["x"] == 1


# ------------------------------------------------------------------ conflicts, ends


def test_a_conflict_names_map_key_and_winner(db: Database, m: Map[Any, Any]) -> None:
    other = db.map("other")
    tx = db.transaction()
    tx[other].get(b"\xff\0")
    with db.transaction() as winner:
        winner[other][b"\xff\0"] = b"1"
    tx[m]["x"] = 1
    with pytest.raises(ConflictError, match="0xff00") as caught:
        tx.commit()
    assert winner.receipt is not None
    assert (caught.value.namespace, caught.value.key) == ("other", b"\xff\0")
    assert caught.value.winner == winner.receipt.tx_id
    assert caught.value.retryable
    assert m["x"] == 50


def test_a_conflict_is_seen_after_a_checkpoint_too(db: Database, m: Map[Any, Any]) -> None:
    changes: list[Callable[[], None]] = [
        lambda: m.update_many({"x": 1}),
        lambda: m.discard("x"),
    ]
    for change in changes:
        tx = db.transaction()
        tx[m].get("x")
        db.checkpoint()
        change()
        db.checkpoint()
        m["unrelated"] = 1
        db.checkpoint()
        tx[m]["y"] = 1
        with pytest.raises(ConflictError):
            tx.commit()


def test_a_transaction_is_over_after_its_end(db: Database, m: Map[Any, Any]) -> None:
    for end in ("commit", "rollback"):
        with db.transaction() as tx:
            tx[m]["x"] = 1
            inside = tx[m]
            pairs = iter(inside.items())
            getattr(tx, end)()
            for use in (
                lambda inside=inside: inside["x"],
                lambda inside=inside: inside.update({"x": 2}),
                lambda pairs=pairs: next(pairs),
                lambda tx=tx: tx[m],
                tx.commit,
            ):
                with pytest.raises(ClosedError):
                    use()
            tx.rollback()
    assert m["x"] == 1


def test_a_transaction_belongs_to_its_thread(db: Database, m: Map[Any, Any]) -> None:
    with db.transaction() as tx:
        tx[m]["x"] = 1
        (error,) = in_threads(lambda: tx[m])
    assert isinstance(error, UsageError)
    assert m["x"] == 1


def touch_late(tx: Transaction, m: Map[Any, Any], how: str) -> None:
    if how == "read":
        tx[m].get(b"k")
    elif how == "write":
        tx[m].set(b"k", b"w")
    else:
        tx.commit()


def test_a_transaction_past_its_deadline_does_nothing(tmp_path: Path) -> None:
    now = [0.0]
    with opened(tmp_path / "store", quiet(monotonic=lambda: now[0])) as db:
        m = db.map("m")
        for late in ("read", "write", "commit"):
            tx = db.transaction(deadline=5.0)
            tx[m][b"k"] = b"v"
            now[0] += 5.1
            with pytest.raises(DeadlineError):
                touch_late(tx, m, late)
            tx.rollback()
        assert not m


def test_too_large_a_transaction_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "store", transaction_bytes_max=1000) as db:
        m = db.map("m")
        with pytest.raises(TransactionTooLargeError), db.transaction() as tx:
            tx[m][b"k"] = bytes(2000)
        with pytest.raises(TransactionTooLargeError):
            m.update_many({b"k": bytes(2000)})
        with pytest.raises(TransactionTooLargeError):
            m[b"k"] = bytes(2000)
        assert not m
        assert m.load(((b"%d" % number, bytes(200)) for number in range(20)), batch=2) == 20
        assert len(m) == 20
    expect_sound(tmp_path / "store")


# ------------------------------------------------------------------ ids and outcomes


def test_the_same_id_applies_once(db: Database, m: Map[Any, Any]) -> None:
    receipts = []
    for _ in range(3):
        with db.transaction(id=ID) as tx:
            tx[m]["x"] += 1
        receipts.append(tx.receipt)
    assert m["x"] == 51
    assert [receipt.tx_id for receipt in receipts if receipt] == [ID] * 3
    assert db.outcome(ID) == "committed"


@pytest.mark.parametrize("durability", ["always", "none"])
def test_the_same_id_applies_once_across_reopening(tmp_path: Path, durability: Any) -> None:
    def attempt(db: Database) -> None:
        m = db.map("m", key=codecs.Str, value=codecs.I64)
        with db.transaction(id=ID) as tx:
            tx[m]["x"] = tx[m].get("x", 0) + 1
        assert m["x"] == 1
        assert db.outcome(ID) == "committed"

    for end in ("close", "abandon", "checkpoint", "close"):
        db = opened(tmp_path / "store", durability=durability)
        attempt(db)
        if end == "checkpoint":
            db.checkpoint()
            session_of(db).abandon()
        else:
            getattr(session_of(db), end)()
    expect_sound(tmp_path / "store")


@pytest.mark.parametrize("durability", ["always", "none"])
def test_the_same_id_applies_once_from_many_threads(tmp_path: Path, durability: Any) -> None:
    with open_store(tmp_path / "store", durability=durability) as db:
        m = db.map("m", key=codecs.Str, value=codecs.I64)
        m["x"] = 0
        for number in range(20):
            barrier = threading.Barrier(4)

            def add(tx: Any) -> None:
                tx[m]["x"] += 1

            def client(barrier: threading.Barrier = barrier, number: int = number) -> None:
                barrier.wait()
                db.run(add, id=number.to_bytes(16, "big"), attempts=100)

            assert in_threads(*[client] * 4) == [None] * 4
            assert m["x"] == number + 1
    expect_sound(tmp_path / "store")


def test_outcomes_of_automatic_ids(db: Database, m: Map[Any, Any]) -> None:
    with db.transaction() as tx:
        tx[m]["x"] = 1
    assert tx.receipt is not None
    assert db.outcome(tx.receipt.tx_id) == "committed"
    assert db.outcome(bytes(16)) == "rolled_back"
    lost = db.transaction(id=ID)
    lost[m]["x"] += 1
    m["x"] = 9
    with pytest.raises(ConflictError):
        lost.commit()
    assert db.outcome(ID) == "rolled_back"
    with pytest.raises(UsageError):
        db.outcome(b"short")


def test_outcomes_after_a_crash(tmp_path: Path) -> None:
    db = opened(tmp_path / "store")
    m = db.map("m")
    with db.transaction() as tx:
        tx[m][b"k"] = b"v"
    session_of(db).abandon()
    assert tx.receipt is not None
    for _ in range(2):
        with opened(tmp_path / "store") as db:
            assert db.outcome(tx.receipt.tx_id) == "committed"


def test_outcomes_whose_log_is_gone_are_too_old(tmp_path: Path) -> None:
    with opened(tmp_path / "store", durability="none", segment_bytes=1, retain_bytes=1) as db:
        m = db.map("m")
        with db.transaction() as tx:
            tx[m][b"k"] = b"v"
        with db.transaction(id=ID) as given:
            given[m][b"k"] = b"v"
        for _ in range(4):
            m.update_many({b"%d" % number: bytes(1000) for number in range(200)})
            db.checkpoint()
        assert tx.receipt is not None
        assert db.outcome(tx.receipt.tx_id) == "too_old"
        assert db.outcome(ID) == "committed"
        assert db.statistics().log_first_position > 0
    expect_sound(tmp_path / "store")


class HeldDisk(RealDisk):
    """A disk whose syncs of the log wait until they are let through."""

    def __init__(self) -> None:
        self.holding = False
        self.reached, self.go_on = threading.Event(), threading.Event()

    def directory(self, path: str, *, read_only: bool = False) -> Any:
        directory = super().directory(path, read_only=read_only)
        if path.endswith("wal"):
            directory._log_file = self._held(directory._log_file)  # type: ignore[attr-defined]
        return directory

    def _held(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def held(*args: Any) -> Any:
            return HeldFile(make(*args), self)

        return held


class HeldFile:
    def __init__(self, file: Any, disk: HeldDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        if self._disk.holding:
            self._disk.reached.set()
            self._disk.go_on.wait()
        self._file.sync()


def test_outcomes_on_their_way_are_pending_and_nobody_sees_them(tmp_path: Path) -> None:
    disk = HeldDisk()
    with opened(tmp_path / "store", quiet(disk=disk)) as db:
        m = db.map("m")
        m[b"k"] = b"old"
        disk.holding = True

        def commit() -> None:
            with db.transaction(id=ID) as tx:
                tx[m][b"k"] = b"new"

        def look() -> None:
            disk.reached.wait()
            try:
                assert db.outcome(ID) == "pending"
                assert m[b"k"] == b"old"
                assert dict(m.items()) == {b"k": b"old"}
                with db.snapshot() as snapshot:
                    assert snapshot[m][b"k"] == b"old"
            finally:
                disk.go_on.set()

        assert in_threads(commit, look) == [None, None]
        assert db.outcome(ID) == "committed"
        assert m[b"k"] == b"new"
    expect_sound(tmp_path / "store")


# ------------------------------------------------------------------ retries


class Busy:
    """Work that meets a conflict in its first attempts."""

    def __init__(self, m: Map[Any, Any], conflicts: int) -> None:
        self.m = m
        self.conflicts = conflicts
        self.attempts = 0

    def __call__(self, tx: Any, *more: int) -> tuple[int, ...]:
        self.attempts += 1
        tx[self.m]["x"] += 1
        if self.attempts <= self.conflicts:
            self.m["x"] = 0
        return (self.attempts, *more)


def test_run_returns_the_value_of_the_attempt_that_committed(
    db: Database, m: Map[Any, Any]
) -> None:
    assert db.run(Busy(m, 3), 7, 8, mode="optimistic", plain_writes=True) == (4, 7, 8)
    assert m["x"] == 1


def test_run_gives_up_after_its_attempts(db: Database, m: Map[Any, Any]) -> None:
    for attempts in (1, 3):
        busy = Busy(m, 99)
        with pytest.raises(ConflictError):
            db.run(busy, attempts=attempts, mode="optimistic", plain_writes=True)
        assert busy.attempts == attempts
    for wrong in (0, -1, True, 2.0):
        with pytest.raises(UsageError):
            db.run(Busy(m, 0), attempts=wrong)  # type: ignore[arg-type]


def test_run_pauses_longer_and_longer_and_gives_up_at_its_deadline(tmp_path: Path) -> None:
    now, pauses = [100.0], []

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds + 0.1

    environment = quiet(monotonic=lambda: now[0], wait=wait, random=random.Random(1))
    with opened(tmp_path / "store", environment) as db:
        m = db.map("m", key=codecs.Str, value=codecs.I64)
        m["x"] = 0
        busy = Busy(m, 99)
        with pytest.raises((ConflictError, DeadlineError)):
            db.run(busy, attempts=99, deadline=1.0, mode="optimistic", plain_writes=True)
        assert 3 <= busy.attempts <= 11
        assert now[0] <= 101.5
        assert all(0 <= pause <= 0.0005 * 2**place for place, pause in enumerate(pauses))
        assert len(set(pauses)) == len(pauses)


def test_run_does_not_repeat_what_cannot_help(db: Database, m: Map[Any, Any]) -> None:
    calls = []

    def work(tx: Any) -> None:
        tx[m]["x"] = 0
        calls.append(1)
        raise KeyError("own error")

    with pytest.raises(KeyError, match="own error"):
        db.run(work)
    assert (calls, m["x"]) == ([1], 50)


def try_twice(db: Database, work: Callable[[Transaction], object]) -> None:
    for attempt in db.attempts(2, plain_writes=True):
        with attempt as tx:
            work(tx)


def test_the_loop_of_attempts_ends_with_the_one_that_commits(
    db: Database, m: Map[Any, Any]
) -> None:
    busy = Busy(m, 2)
    for attempt in db.attempts(mode="optimistic", plain_writes=True):
        with attempt as tx:
            busy(tx)
    assert (busy.attempts, m["x"]) == (3, 1)
    busy = Busy(m, 9)
    with pytest.raises(ConflictError):
        try_twice(db, busy)
    assert busy.attempts == 2
    for attempt in db.attempts(mode="optimistic", plain_writes=True):
        with attempt as tx:
            tx[m]["x"] = 77
            tx.rollback()
    assert m["x"] == 0


def test_words_that_are_no_option_are_refused(db: Database) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"mode": "hopeful"},
        {"isolation": "chaos"},
        {"durability": "sometimes"},
        {"id": b"short"},
        {"id": "0" * 16},
        {"tag": 7},
        {"tag": "\u00fc" * 600},
    )
    for options in wrong:
        with pytest.raises(UsageError):
            db.transaction(**options)
