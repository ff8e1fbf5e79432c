"""The stores that are compared, each behind the same few calls.

A peer is opened for one purpose: `durable` (every put is on disk when it returns), `relaxed` (puts
are handed to the operating system at most), `load` (batches, durable once the load returns) or
`log` (a load whose records stay in the peer's log, for the reopen after a kill).

Every peer runs with the settings that its user gets, beyond what the purpose names.  LMDB commits
and syncs each batch of a load, `lmdb-nosync` syncs once at the end; SQLite is one connection
behind a lock; RocksDB and LevelDB have no transactions here, so theirs is an atomic batch.  What a
peer cannot do (`raw-append` reads nothing) it lacks, and no workload asks it for that.  `sketch` is
no peer but the limit of what is written in Python: see `sketch.py`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

Mode = Literal["durable", "relaxed", "load", "log"]
Pair = tuple[bytes, bytes]
Batches = Iterable[list[Pair]]

MAP_SIZE_BYTES = 64 << 30
WHOLE_LOG_BYTES = 1 << 30  # LevelDB takes no larger write buffer
NO_CHECKPOINTS: dict[str, Any] = {"checkpoint_bytes": 1 << 40, "checkpoint_interval": 1_000_000}


class Writer(Protocol):
    def put(self, key: bytes, value: bytes, /) -> object: ...
    def transact(self, pairs: list[Pair], /) -> object: ...
    def load(self, batches: Batches, /) -> None: ...
    def close(self) -> object: ...


class Counter(Protocol):
    def increment(self) -> object: ...
    def count(self) -> int: ...
    def close(self) -> object: ...


class Store(Writer, Protocol):
    def get(self, key: bytes, /) -> bytes | None: ...
    def get_many(self, keys: list[bytes], /) -> object: ...
    def scan(self, prefix: bytes = b"", /) -> Iterable[Pair]: ...
    def settle(self) -> None: ...


def past(prefix: bytes) -> bytes:
    """The first key behind every key that begins with a non-empty prefix."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else b"\xff" * 64


def until(pairs: Iterator[Pair], stop: bytes) -> Iterator[Pair]:
    """The pairs before the first key that is not below `stop`."""
    for pair in pairs:
        if pair[0] >= stop:
            return
        yield pair


class RawAppend:
    """Write and fdatasync of a growing file: the naive physical limit."""

    def __init__(self, path: Path, mode: Mode) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._durable = mode == "durable"
        self._lock = threading.Lock()

    def put(self, key: bytes, value: bytes) -> None:
        self._append(key + value)

    def transact(self, pairs: list[Pair]) -> None:
        self._append(b"".join(map(b"".join, pairs)))

    def load(self, batches: Batches) -> None:
        for batch in batches:
            self.transact(batch)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def _append(self, data: bytes) -> None:
        with self._lock:
            os.write(self._file, data)
            if self._durable:
                os.fdatasync(self._file)


class Lmdb:
    """py-lmdb with one unnamed database."""

    def __init__(self, path: Path, mode: Mode, *, sync_batches: bool = True) -> None:
        import lmdb

        sync = mode == "durable" or (mode == "load" and sync_batches)
        path.mkdir(parents=True, exist_ok=True)
        self._env = lmdb.open(str(path), map_size=MAP_SIZE_BYTES, sync=sync)

    def put(self, key: bytes, value: bytes) -> None:
        with self._env.begin(write=True) as txn:
            txn.put(key, value)

    def transact(self, pairs: list[Pair]) -> None:
        with self._env.begin(write=True) as txn:
            for key, value in pairs:
                txn.put(key, value)

    def load(self, batches: Batches) -> None:
        for batch in batches:
            with self._env.begin(write=True) as txn:
                txn.cursor().putmulti(sorted(batch))
        self._env.sync(True)

    def get(self, key: bytes) -> bytes | None:
        with self._env.begin() as txn:
            return txn.get(key)

    def get_many(self, keys: list[bytes]) -> object:
        return list(map(self.get, keys))

    def scan(self, prefix: bytes = b"") -> Iterable[Pair]:
        self._reading = self._env.begin()  # a cursor is good for as long as its transaction
        cursor = self._reading.cursor()
        if not prefix:
            return cursor
        cursor.set_range(prefix)
        return until(iter(cursor), past(prefix))

    def settle(self) -> None:
        self._env.sync(True)

    def close(self) -> None:
        self._env.close()


class Sqlite:
    """sqlite3 with a write-ahead log, one connection behind a lock."""

    def __init__(self, path: Path, mode: Mode) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path / "store.db", isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {'OFF' if mode == 'relaxed' else 'FULL'}")
        self._db.execute("CREATE TABLE IF NOT EXISTS kv (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID")

    def put(self, key: bytes, value: bytes) -> None:
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (key, value))

    def transact(self, pairs: list[Pair]) -> None:
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO kv VALUES (?, ?)", pairs)
            self._db.execute("COMMIT")

    def load(self, batches: Batches) -> None:
        for batch in batches:
            self.transact(batch)

    def get(self, key: bytes) -> bytes | None:
        row = self._db.execute("SELECT v FROM kv WHERE k = ?", (key,)).fetchone()
        return row[0] if row else None

    def get_many(self, keys: list[bytes]) -> object:
        return list(map(self.get, keys))

    def scan(self, prefix: bytes = b"") -> Iterable[Pair]:
        if not prefix:
            return self._db.execute("SELECT k, v FROM kv ORDER BY k")
        span = (prefix, past(prefix))
        return self._db.execute("SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k", span)

    def settle(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._db.close()


class RocksDb:
    """RocksDB through rocksdict, keys and values as plain bytes."""

    def __init__(self, path: Path, mode: Mode) -> None:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        if mode == "log":
            options.set_write_buffer_size(WHOLE_LOG_BYTES)
        write_options = rocksdict.WriteOptions()
        write_options.sync = mode == "durable"
        self._db = rocksdict.Rdict(str(path), options)
        self._db.set_write_options(write_options)
        self._batch = partial(rocksdict.WriteBatch, raw_mode=True)
        self.put: Callable[[bytes, bytes], object] = self._db.put
        self.get: Callable[[bytes], bytes | None] = self._db.get
        self.close: Callable[[], object] = self._db.close

    def transact(self, pairs: list[Pair]) -> None:
        batch = self._batch()
        for key, value in pairs:
            batch.put(key, value)
        self._db.write(batch)

    def load(self, batches: Batches) -> None:
        for batch in batches:
            self.transact(batch)
        self._db.flush_wal(True)

    def get_many(self, keys: list[bytes]) -> object:
        return self._db.get(keys)

    def scan(self, prefix: bytes = b"") -> Iterable[Pair]:
        pairs: Iterator[Pair] = self._db.items(from_key=prefix or None)
        if not prefix:
            return pairs
        return until(pairs, past(prefix))

    def settle(self) -> None:
        self._db.flush()
        self._db.compact_range(None, None)


class LevelDb:
    """LevelDB through plyvel."""

    def __init__(self, path: Path, mode: Mode) -> None:
        import plyvel

        buffer_bytes = WHOLE_LOG_BYTES if mode == "log" else None
        self._db = plyvel.DB(str(path), create_if_missing=True, write_buffer_size=buffer_bytes)
        self._sync = mode == "durable"
        put = partial(self._db.put, sync=True) if self._sync else self._db.put
        self.put: Callable[[bytes, bytes], object] = put
        self.get: Callable[[bytes], bytes | None] = self._db.get
        self.close: Callable[[], object] = self._db.close

    def transact(self, pairs: list[Pair]) -> None:
        self._write(pairs, sync=self._sync)

    def load(self, batches: Batches) -> None:
        for batch in batches:
            self._write(batch, sync=False)
        self._write([], sync=True)

    def get_many(self, keys: list[bytes]) -> object:
        return list(map(self._db.get, keys))

    def scan(self, prefix: bytes = b"") -> Iterable[Pair]:
        pairs: Iterable[Pair] = self._db.iterator(prefix=prefix or None)
        return pairs

    def settle(self) -> None:
        self._db.compact_range()

    def _write(self, pairs: list[Pair], *, sync: bool) -> None:
        with self._db.write_batch(sync=sync) as batch:
            for key, value in pairs:
                batch.put(key, value)


class Tidelog:
    """The store itself, one map of bytes."""

    def __init__(self, path: Path, mode: Mode, *, partitions: int) -> None:
        import tidelog

        durability: Literal["always", "none"] = "always" if mode == "durable" else "none"
        opener = partial(tidelog.open, path, partitions=partitions, durability=durability)
        self._db = opener(**NO_CHECKPOINTS) if mode == "log" else opener()
        self._map = self._db.map("bench")
        self.put: Callable[[bytes, bytes], object] = self._map.__setitem__
        self.get: Callable[[bytes], bytes | None] = self._map.get
        self.close: Callable[[], object] = self._db.close

    def transact(self, pairs: list[Pair]) -> None:
        with self._db.transaction() as tx:
            view = tx[self._map]
            for key, value in pairs:
                view[key] = value

    def load(self, batches: Batches) -> None:
        """The last batch is committed durably, which makes all before it durable."""
        behind: list[Pair] | None = None
        for batch in batches:
            if behind is not None:
                self._map.update_many(behind)
            behind = batch
        with self._db.transaction(durability="always") as tx:
            tx[self._map].update(behind or [])

    def get_many(self, keys: list[bytes]) -> object:
        return self._map.get_many(keys)

    def scan(self, prefix: bytes = b"") -> Iterable[Pair]:
        return self._map.items(prefix=prefix) if prefix else self._map.items()

    def settle(self) -> None:
        self._db.checkpoint()


class SqliteCounter:
    """One row that is counted up, with sqlite3 as it is for puts."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path / "store.db", isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE kv (k TEXT PRIMARY KEY, v INTEGER) WITHOUT ROWID")
        self._db.execute("INSERT INTO kv VALUES ('n', 0)")
        self.close = self._db.close

    def increment(self) -> object:
        """Count up by one, and return the sum as ``incr`` does."""
        with self._lock:
            found = self._db.execute("UPDATE kv SET v = v + 1 WHERE k = 'n' RETURNING v")
            return found.fetchone()[0]

    def count(self) -> int:
        return int(self._db.execute("SELECT v FROM kv").fetchone()[0])


class TidelogCounter:
    """One key of a typed map that is counted up."""

    def __init__(self, path: Path, *, partitions: int) -> None:
        import tidelog
        from tidelog.codecs import I64, Str

        self._db = tidelog.open(path, partitions=partitions)
        self._map = self._db.map("numbers", key=Str, value=I64)
        self.increment: Callable[[], object] = partial(self._map.incr, "n")
        self.close: Callable[[], object] = self._db.close

    def count(self) -> int:
        return self._map["n"]


COUNTERS: dict[str, Callable[[Path], Counter]] = {
    "sqlite": SqliteCounter,
    "tidelog-1": partial(TidelogCounter, partitions=1),
    "tidelog-16": partial(TidelogCounter, partitions=16),
}


def _sketch(path: Path, mode: Mode) -> Store:
    from sketch import Sketch

    return Sketch(path, mode)


WRITERS: dict[str, Callable[[Path, Mode], Writer]] = {"raw-append": RawAppend}
STORES: dict[str, Callable[[Path, Mode], Store]] = {
    "lmdb": Lmdb,
    "lmdb-nosync": partial(Lmdb, sync_batches=False),
    "sqlite": Sqlite,
    "rocksdict": RocksDb,
    "plyvel": LevelDb,
    "tidelog-1": partial(Tidelog, partitions=1),
    "tidelog-16": partial(Tidelog, partitions=16),
    "sketch": _sketch,
}
MODULES = {
    "lmdb": "lmdb",
    "lmdb-nosync": "lmdb",
    "rocksdict": "rocksdict",
    "plyvel": "plyvel",
    "tidelog-1": "tidelog.engine.api.database",
    "tidelog-16": "tidelog.engine.api.database",
}


def open_writer(name: str, path: Path, mode: Mode) -> Writer:
    return WRITERS[name](path, mode) if name in WRITERS else STORES[name](path, mode)


def open_store(name: str, path: Path, mode: Mode) -> Store:
    return STORES[name](path, mode)
