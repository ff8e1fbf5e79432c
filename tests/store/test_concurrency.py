"""Histories of concurrent transactions, recorded and checked for strict serializability.

Clients are threads over a few keys of two maps.  They read, write, delete and scan in transactions
of both modes, put, swap, take and make single keys, and read from snapshots, while checkpoints are
taken.  The order of the versions of each key comes from the log.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.real_stores import expect_sound
from tidelog.codecs import I64, Str
from tidelog.engine.api.choices import Durability, Isolation, Mode
from tidelog.engine.api.database import Database
from tidelog.engine.api.maps import Map
from tidelog.engine.api.open import open as open_store
from tidelog.errors import TransactionError
from tidelog.testing.cycles import assert_strictly_serializable, check_transactions
from tidelog.testing.transactions import (
    ABORTED,
    COMMITTED,
    Transaction as Recorded,
    TransactionHistory,
    TransactionRecorder,
)
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import TxRecord

KEYS = [f"{place:02}" for place in range(6)]
MAPS = ["m", "n"]

Deletes = dict[tuple[bytes, str], str]


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Mix(NamedTuple):
    """Who does what in a history."""

    modes: tuple[Mode, ...] = ("optimistic", "pessimistic")
    durability: Durability = "none"
    partitions: int = 4
    singles: bool = True
    isolation: Isolation = "serializable"
    deletes: bool = True
    clients: int = 4
    steps: int = 30
    transactions: float = 0.7


class Client:
    """One thread and what it saw."""

    def __init__(self, db: Database, number: int, mix: Mix, seed: int, now: Callable[[], int]):
        self.name = f"c{number}"
        self.seen: list[Recorded] = []
        self.deletes: Deletes = {}
        self.error: BaseException | None = None
        self._db = db
        self._maps = {name: db.map(name) for name in MAPS}
        self._mix = mix
        self._random = random.Random(f"{seed}:{number}")
        self._now = now
        self._values = count(1)

    def work(self) -> None:
        try:
            for step in range(self._mix.steps):
                self.step(f"{self.name}.{step}")
        except BaseException as error:
            self.error = error

    def step(self, name: str) -> None:
        chance = self._random.random()
        share = self._mix.transactions
        if not self._mix.singles or chance < share:
            self.transact(name)
        elif chance < share + 0.1:
            self.put(name)
        elif chance < 0.95:
            kinds = [self.swap, self.take, self.make, self.take_first]
            self._random.choice(kinds[: 4 if self._mix.deletes else 1])(name)
        else:
            self.look(name)

    def transact(self, name: str) -> None:
        recorder = TransactionRecorder(name, self._now())
        deleted: dict[str, str] = {}
        tx = self._db.transaction(
            self._random.choice(self._mix.modes), isolation=self._mix.isolation
        )
        try:
            for _ in range(self._random.randint(1, 5)):
                self.touch(recorder, deleted, lambda mapping: tx[mapping])
            receipt = tx.commit()
        except TransactionError:
            tx.rollback()
            self.seen.append(recorder.finish(ABORTED, self._now()))
            return
        self.deletes.update({(receipt.tx_id, key): value for key, value in deleted.items()})
        self.seen.append(recorder.finish(COMMITTED, self._now()))

    def touch(
        self,
        recorder: TransactionRecorder,
        deleted: dict[str, str],
        inside: Callable[[Map[Any, Any]], Any],
    ) -> None:
        name, key = self._random.choice(MAPS), self._random.choice(KEYS)
        mapping, full = inside(self._maps[name]), f"{name}/{key}"
        steps = ["read", "read", "write", "write", "scan", *["delete"] * self._mix.deletes]
        match self._random.choice(steps):
            case "read":
                recorder.read(full, text(mapping.get(key.encode())))
            case "write":
                value = self.value()
                mapping[key.encode()] = value.encode()
                recorder.write(full, value)
                deleted.pop(full, None)
            case "delete":
                deleted[full] = self.value()
                mapping.discard(key.encode())
                recorder.delete(full, deleted[full])
            case "scan":
                self.scan(recorder, name, mapping)

    def scan(self, recorder: TransactionRecorder, name: str, mapping: Map[Any, Any]) -> None:
        start, stop = sorted(self._random.sample(KEYS, 2))
        reverse, limit = self._random.random() < 0.3, self._random.choice([None, None, 2])
        pairs = mapping.range(start.encode(), stop.encode(), reverse=reverse, limit=limit)
        found: dict[str | bytes, str | bytes | int | None] = {
            f"{name}/{key.decode()}": text(value) for key, value in pairs
        }
        if limit is not None and len(found) == limit and not reverse:
            stop = max(map(str, found))[2:] + "\0"
        elif limit is not None and len(found) == limit:
            start = min(map(str, found))[2:]
        recorder.scan(f"{name}/{start}", f"{name}/{stop}", found)

    def put(self, name: str) -> None:
        recorder = TransactionRecorder(name, self._now())
        on, key, value = self._random.choice(MAPS), self._random.choice(KEYS), self.value()
        self._maps[on][key.encode()] = value.encode()
        recorder.write(f"{on}/{key}", value)
        self.seen.append(recorder.finish(COMMITTED, self._now()))

    def swap(self, name: str) -> None:
        on, key, value = self._random.choice(MAPS), self._random.choice(KEYS), self.value()
        first = TransactionRecorder(f"{name}.read", self._now())
        found = self._maps[on].get(key.encode())
        first.read(f"{on}/{key}", text(found))
        self.seen.append(first.finish(COMMITTED, self._now()))
        second = TransactionRecorder(f"{name}.swap", self._now())
        if self._maps[on].compare_and_set(key.encode(), found, value.encode()):
            second.read(f"{on}/{key}", text(found))
            second.write(f"{on}/{key}", value)
            self.seen.append(second.finish(COMMITTED, self._now()))

    def take(self, name: str) -> None:
        recorder = TransactionRecorder(name, self._now())
        on, key = self._random.choice(MAPS), self._random.choice(KEYS)
        found = text(self._maps[on].pop(key.encode(), None))
        recorder.read(f"{on}/{key}", found)
        if found is not None:
            recorder.delete(f"{on}/{key}", gone(found))
        self.seen.append(recorder.finish(COMMITTED, self._now()))

    def make(self, name: str) -> None:
        recorder = TransactionRecorder(name, self._now())
        on, key, value = self._random.choice(MAPS), self._random.choice(KEYS), self.value()
        found = text(self._maps[on].setdefault(key.encode(), value.encode()))
        if found == value:
            recorder.read(f"{on}/{key}", None)
            recorder.write(f"{on}/{key}", value)
        else:
            recorder.read(f"{on}/{key}", found)
        self.seen.append(recorder.finish(COMMITTED, self._now()))

    def take_first(self, name: str) -> None:
        recorder = TransactionRecorder(name, self._now())
        on = self._random.choice(MAPS)
        try:
            key, value = self._maps[on].popitem()
        except KeyError:
            recorder.scan(f"{on}/", f"{on}0", {})
        else:
            full, found = f"{on}/{key.decode()}", value.decode()
            recorder.scan(f"{on}/", f"{full}\0", {full: found})
            recorder.delete(full, gone(found))
        self.seen.append(recorder.finish(COMMITTED, self._now()))

    def look(self, name: str) -> None:
        recorder = TransactionRecorder(name, self._now())
        with self._db.snapshot() as snapshot:
            for _ in range(3):
                on = self._random.choice(MAPS)
                self.scan(recorder, on, snapshot[self._maps[on]])
        self.seen.append(recorder.finish(COMMITTED, self._now()))

    def value(self) -> str:
        return f"{self.name}:{next(self._values)}"


def gone(value: str) -> str:
    """The name of the deletion of a value, where nothing else tells them apart."""
    return f"no more {value}"


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def record(path: Path, mix: Mix, seed: int) -> TransactionHistory:
    """Let the clients work, and return what they saw, with the order of the log."""
    clock = count(1)
    db = open_store(
        path,
        partitions=mix.partitions,
        durability=mix.durability,
        checkpoint_bytes=8_000,
        segment_bytes=1,
        lock_timeout=60.0,
    )
    with db:
        moved, ended = threading.Event(), list[str]()

        def work(client: Client) -> None:
            client.work()
            ended.append(client.name)
            moved.set()

        def tick() -> int:
            moved.set()
            return next(clock)

        clients = [Client(db, n, mix, seed, tick) for n in range(mix.clients)]
        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        while len(ended) < len(clients):
            moved.wait()
            moved.clear()
            db.checkpoint()
            assert db.statistics().overlay_layers < 100
        for thread in threads:
            thread.join()
        for client in clients:
            assert client.error is None, client.error
    deletes: Deletes = {}
    for client in clients:
        deletes |= client.deletes
    versions = versions_of(path, deletes)
    expect_sound(path)
    seen = [seen for client in clients for seen in client.seen]
    return TransactionHistory(transactions=seen, versions=dict(versions.items()))


def versions_of(path: Path, deletes: Deletes) -> dict[str, list[str]]:
    """The values of each key in the order of (epoch, counter) in the log."""
    from tidelog.engine.system.disk import RealDisk

    names = dict(enumerate(MAPS, 16))
    found: dict[str, list[tuple[tuple[int, int], str | None]]] = {}
    for _, record_ in read_records(Scan(RealDisk().directory(str(path / "wal")))):
        if isinstance(record_, TxRecord):
            numbers = [
                (run.epoch, run.first + place) for run in record_.runs for place in range(run.count)
            ]
            for place, key in enumerate(record_.keys):
                names_of = record_.namespaces
                number = names_of if isinstance(names_of, int) else names_of[place]
                full = f"{names[number]}/{key.decode()}"
                value = record_.values[place]
                shown = deletes.get((record_.tx_id, full)) if value is None else value.decode()
                found.setdefault(full, []).append((numbers[place], shown))
    return {key: named([value for _, value in sorted(pairs)]) for key, pairs in found.items()}


def named(values: list[str | None]) -> list[str]:
    """Name the deletions that are not named yet by what they deleted."""
    shown: list[str] = []
    for value in values:
        shown.append(gone(shown[-1] if shown else "nothing") if value is None else value)
    return shown


MIXES = {
    "both modes": Mix(),
    "optimistic": Mix(modes=("optimistic",)),
    "pessimistic": Mix(modes=("pessimistic",)),
    "pessimistic, no single puts": Mix(modes=("pessimistic",), singles=False),
    "durable": Mix(durability="always"),
    "one partition": Mix(partitions=1),
    "many clients": Mix(clients=8, steps=15),
    "single keys": Mix(clients=8, transactions=0.3),
    "single keys, durable": Mix(durability="always", transactions=0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXES)
def test_histories_are_strictly_serializable(name: str, tmp_path: Path) -> None:
    for seed in range(2):
        history = record(tmp_path / str(seed), MIXES[name], seed)
        assert sum(seen.status == COMMITTED for seen in history.transactions) > 20
        assert_strictly_serializable(history)


@pytest.mark.nightly
@pytest.mark.parametrize("name", MIXES)
def test_long_histories_are_strictly_serializable(name: str, tmp_path: Path) -> None:
    for seed in range(100, 140):
        mix = MIXES[name]
        history = record(tmp_path / str(seed), mix._replace(steps=4 * mix.steps), seed)
        assert_strictly_serializable(history)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["repeatable_read", "read_committed"])
def test_weaker_levels_lose_nothing_and_tear_nothing(isolation: Isolation, tmp_path: Path) -> None:
    # Without deletes each absence is the beginning: the checker need not guess which one it was.
    mix = Mix(isolation=isolation, singles=False, modes=("optimistic",), deletes=False)
    found = {anomaly.name for anomaly in check_transactions(record(tmp_path / "store", mix, 1))}
    allowed = {
        "repeatable_read": {"G2", "real-time violation"},
        "read_committed": {"internal", "lost update", "G-single", "G2", "real-time violation"},
    }
    assert found <= allowed[isolation]


# ------------------------------------------------------------------ one key, everybody


def crowd(count: int, work: Callable[[int], None]) -> None:
    """Let so many threads do something, and fail with what any of them raised."""
    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["always", "none"])
def test_32_threads_count_one_key_and_none_fails(durability: Durability, tmp_path: Path) -> None:
    # Most of them met ConflictError 16 times in a row.
    path = tmp_path / "store"
    with open_store(path, durability=durability, checkpoint_bytes=20_000) as db:
        numbers = db.map("numbers", key=Str, value=I64)
        told: list[int] = []

        def work(number: int) -> None:
            for turn in range(20):
                told.append(numbers.incr("n"))
                numbers.incr(f"n{number}", turn)
                if number == 0 and not turn % 5:
                    db.checkpoint()

        crowd(32, work)
        assert sorted(told) == list(range(1, 641))
        before = dict(numbers)
        assert before == {"n": 640, **{f"n{number}": 190 for number in range(32)}}
    with open_store(path) as db:
        assert dict(db.map("numbers")) == before
    expect_sound(path)


@pytest.mark.slow
def test_threads_that_count_in_transactions_and_beside_them_lose_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", lock_timeout=60.0) as db:
        numbers = db.map("numbers", key=Str, value=I64)

        def count(tx: Any) -> None:
            tx[numbers]["n"] = tx[numbers].get("n", 0) + 1
            tx[numbers].incr("m")

        def work(number: int) -> None:
            for _ in range(8):
                match number % 4:
                    case 0:
                        db.run(count)
                    case 1:
                        db.run(count, mode="pessimistic", attempts=100)
                    case _:
                        numbers.incr("n")
                        numbers.incr("m")

        crowd(12, work)
        assert dict(numbers) == {"m": 96, "n": 96}
    expect_sound(tmp_path / "store")


@pytest.mark.slow
def test_transactions_over_one_key_get_through_without_a_mode(tmp_path: Path) -> None:
    # Of 8 threads 3 ended with ConflictError, after 16 attempts each.
    with open_store(tmp_path / "store", lock_timeout=60.0) as db:
        numbers = db.map("numbers", key=Str, value=I64)
        orders = db.map("orders", key=I64, value=I64)

        def place(tx: Any, number: int) -> None:
            tx[orders][tx[numbers].incr("order")] = number

        def work(number: int) -> None:
            for _ in range(20):
                db.run(place, number)

        crowd(8, work)
        assert list(orders) == list(range(1, 161))
    expect_sound(tmp_path / "store")


@pytest.mark.slow
def test_a_queue_gives_each_item_to_one_of_8_threads_in_order(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", checkpoint_bytes=50_000) as db:
        jobs = db.map("jobs", key=I64, value=I64)
        jobs.update((number, -number) for number in range(400))
        taken: list[list[int]] = [[] for _ in range(8)]

        def work(number: int) -> None:
            try:
                while True:
                    job, value = jobs.popitem()
                    assert value == -job
                    taken[number].append(job)
                    if len(taken[number]) == 10:
                        db.checkpoint()
            except KeyError:
                return

        crowd(8, work)
        assert sorted(job for mine in taken for job in mine) == list(range(400))
        assert all(mine == sorted(mine) for mine in taken)
    expect_sound(tmp_path / "store")
