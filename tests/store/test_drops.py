"""Threads that write to maps which others drop, make anew and rename: against model and log.

What the log must show: nothing of a map behind its drop, no commit behind it that has read the map
at level ``serializable``, and everything that was acknowledged.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from support.real_stores import expect_sound
from tidelog import aio
from tidelog.codecs import Msgpack
from tidelog.engine.aio.maps import backing_of
from tidelog.engine.api.database import Database
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.api.open import open as open_store
from tidelog.errors import ConflictError, DeadlockError, LockTimeoutError, NotFoundError
from tidelog.testing import check_database
from tidelog.wal.files import ReadOnlyDirectory
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import DropNamespaceRecord, TxRecord

NAMES = ("x", "y")


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Writers:
    """Threads that write until they are stopped, and what was acknowledged to them."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.seen = db.map("seen", value=Msgpack)
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.acknowledged: dict[int, dict[bytes, bytes]] = {}
        """Of each namespace that was written to: keys and values, each key written once."""
        self.noted: dict[bytes, list[int]] = {}
        """Acknowledged transactions that have read: key in ``seen``, the namespaces read."""
        self.refused = 0
        self._mutex = threading.Lock()

    def thread(self, number: int, work: Callable[[random.Random, bytes], None]) -> threading.Thread:
        def run() -> None:
            chance = random.Random(number)
            count = 0
            try:
                while not self.stop.is_set():
                    count += 1
                    try:
                        work(chance, b"%d-%d" % (number, count))
                    except NotFoundError:
                        self.refused += 1
                    except (ConflictError, DeadlockError, LockTimeoutError):
                        continue
            except BaseException as error:
                self.errors.append(error)

        return threading.Thread(target=run)

    def note(self, number: int, pairs: dict[bytes, bytes]) -> None:
        with self._mutex:
            self.acknowledged.setdefault(number, {}).update(pairs)

    def put(self, chance: random.Random, key: bytes) -> None:
        mapping = self.db.map(chance.choice(NAMES))
        for part in range(5):
            mapping[key + b"-%d" % part] = key
            self.note(namespace_of(mapping).id, {key + b"-%d" % part: key})

    def many(self, chance: random.Random, key: bytes) -> None:
        mapping = self.db.map(chance.choice(NAMES))
        pairs = {key + b"-%d" % part: key for part in range(20)}
        mapping.update_many(pairs)
        self.note(namespace_of(mapping).id, pairs)

    def transact(self, chance: random.Random, key: bytes) -> None:
        one, other = (self.db.map(name) for name in chance.sample(NAMES, 2))
        mode = chance.choice(["optimistic", "pessimistic"])
        with self.db.transaction(mode, lock_timeout=0.5) as tx:  # type: ignore[arg-type]
            tx[one].get(b"absent")
            if chance.random() < 0.5:
                next(iter(tx[one].items()), None)
            tx[other][key] = key
            tx[self.seen][key] = namespace_of(one).id
        self.note(namespace_of(other).id, {key: key})
        self.noted[key] = [namespace_of(one).id]

    def look(self, _chance: random.Random, _key: bytes) -> None:
        assert set(self.db.maps()) <= {*NAMES, "seen", "z"}

    def drop(self, chance: random.Random, _key: bytes) -> None:
        name = chance.choice(NAMES)
        if "z" in self.db.maps():  # its drop has waited for locks in vain
            self.db.drop("z")
        elif chance.random() < 0.3:
            self.db.rename(name, "z")
            self.db.drop("z")
        else:
            self.db.drop(name)
        if chance.random() < 0.3:
            self.db.checkpoint()


@pytest.mark.parametrize("durability", ["always", "interval", "none"])
@pytest.mark.parametrize(
    "drops",
    [pytest.param(15, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.nightly)],
)
def test_drops_beside_writers_lose_nothing_and_leave_nothing(
    tmp_path: Path, durability: Any, drops: int
) -> None:
    path = tmp_path / "shop"
    options: dict[str, Any] = {"retain_bytes": 1 << 30, "lock_timeout": 0.5}
    db = open_store(path, partitions=2, durability=durability, **options)
    writers = Writers(db)
    work = [writers.put, writers.many, writers.transact, writers.transact, writers.look]
    threads = [writers.thread(number, each) for number, each in enumerate(work)]
    for thread in threads:
        thread.start()
    chance = random.Random(99)
    try:
        done = 0
        while done < drops:
            if writers.errors:
                break
            try:
                writers.drop(chance, b"")
                done += 1
            except (NotFoundError, LockTimeoutError):
                db.map(chance.choice(NAMES))
    finally:
        writers.stop.set()
        for thread in threads:
            thread.join()
    assert writers.errors == []
    assert writers.refused
    for name in db.maps():
        if name in NAMES:
            expected = writers.acknowledged.get(namespace_of(db.map(name)).id, {})
            assert expected.items() <= dict(db.map(name)).items()
    noted = dict(writers.seen)
    assert noted == {key: value for key, (value,) in writers.noted.items()}
    db.checkpoint()
    assert check_database(db) == []
    db.close()
    expect_sound(path)
    expect_order(path, noted, namespace_of(writers.seen).id)
    with open_store(path) as again:
        assert dict(again.map("seen", value=Msgpack)) == noted


def expect_order(path: Path, noted: dict[bytes, int], seen: int) -> None:
    """Fail where the log has anything behind a drop that touched the map, or read it."""
    dropped: set[int] = set()
    for _, record in read_records(Scan(ReadOnlyDirectory(path / "wal"))):
        if isinstance(record, DropNamespaceRecord):
            dropped.add(record.id)
        elif isinstance(record, TxRecord):
            ids = record.namespaces
            touched = {ids} if isinstance(ids, int) else set(ids)
            for number, key in zip(
                [ids] * len(record.keys) if isinstance(ids, int) else ids, record.keys, strict=True
            ):
                if number == seen:
                    touched.add(noted[key])
            assert not touched & dropped
    assert dropped


@pytest.mark.slow
async def test_drops_beside_tasks_that_write_lose_nothing_and_leave_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop"
    acknowledged: dict[int, set[bytes]] = {}
    refused = []
    async with aio.open(path, partitions=2) as db:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def write(number: int) -> None:
                    count = 0
                    while True:
                        count += 1
                        mapping = db.map("x")
                        number_of_map = (await backing_of(mapping)).namespace.id
                        key = b"%d-%d" % (number, count)
                        try:
                            if number % 2:
                                await mapping.set(key, b"v")
                            else:
                                await mapping.update_many({key: b"v"})
                        except NotFoundError:
                            refused.append(key)
                            continue
                        acknowledged.setdefault(number_of_map, set()).add(key)

                for number in range(8):
                    nursery.start_soon(write, number)
                for _ in range(20):
                    await trio.lowlevel.checkpoint()
                    await db.map("x").ensure()
                    await db.drop("x")
                scope.cancel()
        left = db.map("x")
        number = (await backing_of(left)).namespace.id
        assert acknowledged.get(number, set()) <= {key async for key in left}
        assert check_database(cast(Database, db.database)) == []
    assert refused
    expect_sound(path)
