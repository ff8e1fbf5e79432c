"""Stores that have lived: made by the engine alone, through long seeded histories on a real disk.

``grow(folder, seed)`` opens a store again and again, and does to it whatever a program may do:
commits of every kind, maps that come, go, change names and come back under the same name, loads,
checkpoints, copies that go on in the place of the store, commits that fail, crashes and kills, with
segments and limits so small that the log begins anew dozens of times and loses its beginning.
Beside it a model in plain dicts says what every reader has to find: ``Model``.

Everything is done by one thread, so the log has the transactions of the model in that order, and
the model knows the number of each update.  It holds keys and values as the codecs encode them.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tidelog
from tidelog import codecs
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.maps import Map
from tidelog.errors import ConflictError, DiskFullError

from .loads import make_load
from .real_stores import in_child, opened

FIRST_MAP = 16
SHAPES: dict[str, tuple[Any, Any]] = {
    "bytes": (codecs.Bytes, codecs.Bytes),
    "words": (codecs.Str, codecs.Msgpack),
    "numbers": (codecs.I64, codecs.I64),
    "pairs": (codecs.Tuple, codecs.Json),
}
NAMES = ("orders", "stock", "people", "17", "visits", "zones")
BIG = 60_000


class Update(NamedTuple):
    """One update of the log; ``value`` is None for a delete, ``name`` that of its map then."""

    partition: int
    counter: int
    map: int
    name: str
    key: bytes
    value: bytes | None


class Commit(NamedTuple):
    """One transaction of the log; ``tx_id`` where it was given or told."""

    updates: tuple[Update, ...]
    tx_id: bytes | None
    given: bool
    tag: str | None


class Held(NamedTuple):
    """What a key has, and which update gave it that."""

    value: bytes
    partition: int
    counter: int


@dataclass(slots=True)
class Table:
    """A map: what it is called, or was when it was dropped, and what it holds."""

    id: int
    name: str
    shape: str
    pairs: dict[bytes, Held] = field(default_factory=dict)
    attached: bool = False

    @property
    def codecs(self) -> tuple[Any, Any]:
        """The codecs of keys and values."""
        return SHAPES[self.shape]

    def content(self) -> dict[bytes, bytes]:
        """Keys and values, in the order of the keys."""
        return {key: self.pairs[key].value for key in sorted(self.pairs)}

    def decoded(self) -> dict[Any, Any]:
        """The same as the map shows it."""
        key, value = self.codecs
        return {key.decode(k): value.decode(v) for k, v in self.content().items()}


@dataclass(slots=True)
class Model:
    """What a store has to show, and how it came about."""

    partitions: int
    counters: list[int]
    maps: dict[str, Table] = field(default_factory=dict)
    tables: dict[int, Table] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    closed: list[tuple[int, int]] = field(default_factory=list)
    """Numbers, by partition, of updates that failed."""
    loaded: list[tuple[int, int, int]] = field(default_factory=list)
    """Map, partition and number of rows that were attached."""
    outcomes: dict[bytes, str] = field(default_factory=dict)
    """What became of transaction ids that somebody may ask for."""
    done: dict[str, int] = field(default_factory=dict)
    """How often each thing was done."""
    segments_made: int = 0

    def content(self) -> dict[str, dict[bytes, bytes]]:
        """All maps with all pairs."""
        return {name: table.content() for name, table in sorted(self.maps.items())}

    def updates(self) -> Iterator[Update]:
        """All updates of all maps, in the order of the log."""
        for commit in self.commits:
            yield from commit.updates

    def new_table(self, name: str, shape: str, *, attached: bool = False) -> Table:
        """Add a map, with the next id."""
        table = Table(FIRST_MAP + len(self.tables), name, shape, attached=attached)
        self.tables[table.id] = self.maps[name] = table
        return table

    def next_number(self, key: bytes) -> tuple[int, int]:
        """Take the next number of the partition of a key; return both."""
        partition = partition_of(key, Space(0, self.partitions))
        self.counters[partition] += 1
        return partition, self.counters[partition]

    def commit(
        self,
        writes: list[tuple[Table, bytes, bytes | None]],
        tx_id: bytes | None = None,
        *,
        given: bool = False,
        tag: str | None = None,
    ) -> None:
        """Do what a transaction does, given what it wrote last to each key."""
        updates = []
        for table, key, value in writes:
            partition, number = self.next_number(key)
            if value is None:
                table.pairs.pop(key, None)
            else:
                table.pairs[key] = Held(value, partition, number)
            updates.append(Update(partition, number, table.id, table.name, key, value))
        if given:
            assert tx_id is not None
            self.next_number(tx_id)  # its outcome is an update, too
        if tx_id is not None:
            self.outcomes[tx_id] = "committed"
        self.commits.append(Commit(tuple(updates), tx_id, given, tag))


class Aged(NamedTuple):
    """A closed store, its model, and an earlier copy of it with the model of then."""

    path: Path
    model: Model
    copy: Path
    model_of_copy: Model
    seed: int


class Life:
    """What one opening of a store does."""

    def __init__(self, db: Database, model: Model, rng: random.Random, folder: Path) -> None:
        self.db = db
        self.model = model
        self.rng = rng
        self.folder = folder
        self.maps: dict[str, Map[Any, Any]] = {name: db.map(name) for name in model.maps}

    # ------------------------------------------------------------------ what is written

    def key_of(self, table: Table) -> Any:
        """A key; few enough that most have been there."""
        number = self.rng.randrange(40)
        return {
            "bytes": b"key %02d" % number,
            "words": f"word {number} é",
            "numbers": number - 20,
            "pairs": ("DE" if number % 2 else "FR", number),
        }[table.shape]

    def value_of(self, table: Table, size: int = 0) -> Any:
        """A value that no other has."""
        number, size = self.rng.getrandbits(40), size or self.rng.randrange(200)
        return {
            "bytes": b"%d" % number + self.rng.randbytes(size),
            "words": {"n": number, "text": "x" * size, "raw": b"\xff"},
            "numbers": number,
            "pairs": [number, "y" * size, None],
        }[table.shape]

    def table(self, *shapes: str) -> Table:
        """A map there is, or a new one where none fits."""
        fitting = [t for _, t in sorted(self.model.maps.items()) if not shapes or t.shape in shapes]
        if fitting:
            return self.rng.choice(fitting)
        return self.create(shapes)

    def create(self, shapes: tuple[str, ...] = ()) -> Table:
        """Make a map under a name that is free; one that is not is dropped."""
        name = self.rng.choice(NAMES)
        if name in self.model.maps:
            self.drop(name)
        shape = self.rng.choice(shapes or sorted(SHAPES))
        key, value = SHAPES[shape]
        self.maps[name] = self.db.map(name, key=key, value=value)
        return self.model.new_table(name, shape)

    def encoded(self, table: Table, key: Any, value: Any = None) -> Any:
        """What the model knows of a pair."""
        keys, values = table.codecs
        return table, keys.encode(key), None if value is None else values.encode(value)

    # ------------------------------------------------------------------ one map

    def put(self) -> None:
        """Set a key, as most programs do most of the time."""
        table = self.table()
        key, value = self.key_of(table), self.value_of(table)
        self.maps[table.name][key] = value
        self.model.commit([self.encoded(table, key, value)])

    def put_big(self) -> None:
        """Set a key to what has pages of its own in the data file; segments are full soon."""
        table = self.table("bytes", "words", "pairs")
        key, value = self.key_of(table), self.value_of(table, self.rng.randrange(BIG // 4, BIG))
        self.maps[table.name][key] = value
        self.model.commit([self.encoded(table, key, value)])

    def discard(self) -> None:
        """Delete a key that may not be there."""
        table = self.table()
        key = self.key_of(table)
        self.maps[table.name].discard(key)
        self.model.commit([self.encoded(table, key)])

    def update_many(self) -> None:
        """Set keys in one transaction."""
        table = self.table()
        pairs = {self.key_of(table): self.value_of(table) for _ in range(self.rng.randrange(1, 30))}
        self.maps[table.name].update_many(pairs)
        writes = [self.encoded(table, *pair) for pair in pairs.items()]
        # By partition, in the order in which these come first.
        places: dict[int, int] = {}
        for _, key, _ in writes:
            places.setdefault(partition_of(key, Space(0, self.model.partitions)), len(places))
        writes.sort(key=lambda w: places[partition_of(w[1], Space(0, self.model.partitions))])
        self.model.commit(writes)

    def clear(self) -> None:
        """Delete all keys."""
        table = self.table()
        self.maps[table.name].clear()
        if table.pairs:
            self.model.commit([(table, key, None) for key in sorted(table.pairs)])

    def change(self) -> None:
        """Change a key by what it holds."""
        table = self.table("numbers")
        numbers, key = self.maps[table.name], self.key_of(table)
        before = table.decoded().get(key)
        kind = self.rng.randrange(4)
        if kind == 0 and (before is None or before < 1 << 62):
            assert numbers.incr(key, 3) == (before or 0) + 3
            self.model.commit([self.encoded(table, key, (before or 0) + 3)])
        elif kind == 1:
            assert numbers.pop(key, None) == before
            if before is not None:
                self.model.commit([self.encoded(table, key)])
        elif kind == 2:
            assert numbers.setdefault(key, 5) == (5 if before is None else before)
            if before is None:
                self.model.commit([self.encoded(table, key, 5)])
        else:
            assert not numbers.compare_and_set(key, -1, 6)

    # ------------------------------------------------------------------ transactions

    def transaction(self) -> None:
        """Write to several maps at once, with an id, a tag, or neither."""
        rng = self.rng
        given = rng.randbytes(16) if rng.random() < 0.3 else None
        tag = rng.choice([None, None, "import", "tag é"])
        mode = rng.choice(["optimistic", "pessimistic"])
        with self.db.transaction(mode, id=given, tag=tag) as tx:  # type: ignore[arg-type]
            writes = self.written(tx)
        assert tx.receipt is not None
        self.model.commit(writes, tx.receipt.tx_id, given=given is not None, tag=tag)
        if given is not None and rng.random() < 0.5:
            self.repeat(given)

    def repeat(self, given: bytes) -> None:
        """Try again what took effect: that is noticed, and nothing happens."""
        with self.db.transaction(id=given) as tx:
            self.written(tx)
        assert self.db.outcome(given) == "committed"

    def written(self, tx: Any) -> list[tuple[Table, bytes, bytes | None]]:
        """Write some updates in a transaction; return the last one of each key, in order."""
        last: dict[tuple[int, bytes], tuple[Table, bytes, bytes | None]] = {}
        for _ in range(self.rng.randrange(1, 12)):
            table = self.table()
            view, key = tx[self.maps[table.name]], self.key_of(table)
            value = None if self.rng.random() < 0.25 else self.value_of(table)
            if value is None:
                view.discard(key)
            else:
                view[key] = value
            write = self.encoded(table, key, value)
            last[table.id, write[1]] = write
        return list(last.values())

    def roll_back(self) -> None:
        """Begin a transaction, and let it end without effect."""
        tx_id = self.rng.randbytes(16)
        tx = self.db.transaction(id=tx_id)
        self.written(tx)
        tx.rollback()
        self.model.outcomes[tx_id] = "rolled_back"

    def conflict(self) -> None:
        """Lose against somebody who was faster."""
        table = self.table()
        key, value = self.key_of(table), self.value_of(table)
        tx = self.db.transaction()
        tx[self.maps[table.name]].get(key)
        tx[self.maps[table.name]][key] = self.value_of(table)
        self.maps[table.name][key] = value
        self.model.commit([self.encoded(table, key, value)])
        try:
            tx.commit()
        except ConflictError:
            return
        raise AssertionError("a lost update")

    def fail(self) -> None:
        """Find the disk full: numbers are lost, nothing else."""
        if self.db.durability != "always":
            return  # a file that is mapped takes what has a place already
        table = self.table()
        key = self.key_of(table)
        self.db.checkpoint()  # or the put might take one, and the data file be spoilt
        with no_file_may_grow():
            try:
                self.maps[table.name][key] = self.value_of(table)
            except DiskFullError:
                self.model.closed.append(self.model.next_number(self.encoded(table, key)[1]))
            else:
                raise AssertionError("the disk was not full")
        self.put()  # with what closes the number: a crash would have it given again

    # ------------------------------------------------------------------ the catalog

    def drop(self, name: str | None = None) -> None:
        """Drop a map."""
        name = name or self.table().name
        self.db.drop(name)
        self.model.maps.pop(name)
        self.maps.pop(name)

    def remake(self) -> None:
        """Drop a map, and make another one of that name, maybe of other codecs."""
        name = self.table().name
        self.drop(name)
        shape = self.rng.choice(sorted(SHAPES))
        key, value = SHAPES[shape]
        self.maps[name] = self.db.map(name, key=key, value=value)
        self.model.new_table(name, shape)

    def rename(self) -> None:
        """Give a map another name, which another one may have had."""
        old = self.table().name
        free = [name for name in NAMES if name not in self.model.maps]
        if free:
            new = self.rng.choice(free)
            self.db.rename(old, new)
            table = self.model.maps.pop(old)
            table.name = new
            self.model.maps[new] = table
            self.maps[new] = self.maps.pop(old)

    def attach(self) -> None:
        """Make a load a new map."""
        free = [name for name in NAMES if name not in self.model.maps]
        if not free:
            return
        rows = {b"key %02d" % n: self.rng.randbytes(60) for n in self.rng.sample(range(60), 25)}
        load = make_load(
            self.folder / f"load-{self.model.done['attach']}",
            rows,
            partitions=session_of(self.db).partitions,
        )
        name = self.rng.choice(free)
        self.maps[name] = self.db.attach(load, name)
        table = self.model.new_table(name, "bytes", attached=True)
        for key in sorted(rows):
            partition, number = self.model.next_number(key)
            table.pairs[key] = Held(rows[key], partition, number)
            self.model.loaded.append((table.id, partition, number))

    # ------------------------------------------------------------------ the store

    def checkpoint(self) -> None:
        """Take a checkpoint that somebody asks for."""
        self.db.checkpoint()

    def maintain(self) -> None:
        """Do what the background thread would do now."""
        session_of(self.db).maintenance.maintain()

    def sync(self) -> None:
        """Make everything durable."""
        self.db.sync()

    def look(self) -> None:
        """Compare a map, and a snapshot that commits go on beside."""
        table = self.table()
        with self.db.snapshot() as snapshot:
            then = table.decoded()
            self.put()
            assert dict(snapshot[self.maps[table.name]].items()) == then
        assert dict(self.maps[table.name].items()) == table.decoded()

    def step(self, kinds: dict[str, int]) -> None:
        """Do one thing of those kinds, by weight."""
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        self.model.done[kind] = self.model.done.get(kind, 0) + 1
        getattr(self, kind)()


WRITES = {
    "put": 20,
    "put_big": 12,
    "discard": 5,
    "update_many": 5,
    "change": 6,
    "transaction": 14,
    "roll_back": 2,
    "conflict": 2,
    "fail": 2,
    "clear": 1,
    "drop": 1,
    "create": 2,
    "remake": 1,
    "rename": 2,
    "checkpoint": 2,
    "maintain": 3,
    "sync": 1,
    "look": 2,
}
ALL = {**WRITES, "attach": 1}


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """Let every write to a file fail: no byte may lie beyond the first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---------------------------------------------------------------------- lives


def options_of(rng: random.Random) -> dict[str, Any]:
    """How a store is opened: as small as can be, so that everything happens often."""
    return {
        "durability": rng.choice(["always", "always", "interval", "none"]),
        "segment_bytes": rng.choice([1, 1, 300_000]),
        "checkpoint_bytes": rng.choice([20_000, 200_000, 1 << 20]),
        "retain_bytes": rng.choice([1, 400_000]),
    }


def live(path: Path, model: Model, rng: random.Random, steps: int, ending: str) -> Model:
    """Open a store, do some steps, and end: by ``close``, ``abandon`` or ``kill``."""
    options = options_of(rng)
    if ending.startswith("kill"):
        return _live_and_die(path, model, rng, steps, options, ending)
    db = opened(path, partitions=model.partitions, **options)
    life = Life(db, model, rng, path.parent)
    for _ in range(steps):
        life.step(ALL)
    model.segments_made = _newest_segment(path)
    if ending == "close":
        db.close()
    else:
        session_of(db).abandon()
    return model


def _live_and_die(
    path: Path,
    model: Model,
    rng: random.Random,
    steps: int,
    options: dict[str, Any],
    ending: str,
) -> Model:
    """Live in a process of its own, which ``kill -9`` ends; return what the model is then."""
    told = path.parent / "told"
    calls = rng.randrange(1, 6)

    def work() -> None:
        db = opened(path, partitions=model.partitions, **options)
        life = Life(db, model, rng, path.parent)
        for _ in range(steps):
            life.step(ALL)
        model.segments_made = _newest_segment(path)
        told.write_bytes(pickle.dumps(model))
        if ending == "kill in a checkpoint":
            die_at(calls)
            db.checkpoint()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    found: Model = pickle.loads(told.read_bytes())
    # Some steps have drawn from the child's copy of it.  Never as it was before: ids would return.
    rng.seed(f"{len(found.commits)} {rng.getrandbits(64)}")
    return found


def die_at(calls: int) -> None:
    """Let this process die at the n-th sync, rename or removal of a file from now on."""
    left = [calls]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **named)

        return call

    for name in ("fdatasync", "fsync", "rename", "unlink"):
        setattr(os, name, counted(getattr(os, name)))


def _newest_segment(path: Path) -> int:
    """The number of the newest segment: how many there have been."""
    return max(int(file.stem) for file in (path / "wal").glob("*.log"))


ENDINGS = ("close", "abandon", "kill", "kill in a checkpoint")


def grow(folder: Path, seed: int, *, lives: int = 8, steps: int = 90) -> Aged:
    """Make a store with a history, and a copy of an earlier time from which its log leads here."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    partitions = rng.choice([1, 3, 4, 8])
    model = Model(partitions, [0] * partitions)
    path = folder / "store"
    endings = [*ENDINGS, *rng.choices(ENDINGS, k=max(0, lives - len(ENDINGS)))][:lives]
    rng.shuffle(endings)
    for number, ending in enumerate(endings):
        model = live(path, model, rng, steps, ending)
        if number % 2 == 1:
            path = _go_on_with_a_copy(path, folder / f"copy-{number}")
    return _last_life(folder, path, model, rng, seed, steps)


def _go_on_with_a_copy(path: Path, place: Path) -> Path:
    """Copy a store, as a reader or as its writer, and throw the original away."""
    with tidelog.open(path) as db:
        db.backup(place)
    shutil.rmtree(path)
    return place


def _last_life(
    folder: Path, path: Path, model: Model, rng: random.Random, seed: int, steps: int
) -> Aged:
    """Keep a copy, live on as programs do, with all of the log kept from there on."""
    copy = folder / "earlier"
    with tidelog.open(path, segment_bytes=1, retain_bytes=1 << 30) as db:
        db.backup(copy)
        earlier = deepcopy(model)
        life = Life(db, model, rng, folder)
        kinds = {kind: weight for kind, weight in WRITES.items() if kind != "fail"}
        for _ in range(steps):
            life.step(kinds)
        model.segments_made = _newest_segment(path)
    return Aged(path, model, copy, earlier, seed)


def borrowed(shelf: Path, place: Path, seed: int) -> Aged:
    """Copy to ``place`` the store of a seed, which whoever asks first has made on a shelf."""
    shelf.mkdir(exist_ok=True)
    made, told = shelf / f"seed-{seed}", shelf / f"seed-{seed}.pickle"
    with (shelf / f"seed-{seed}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            told.write_bytes(pickle.dumps(grow(made, seed)))
    aged: Aged = pickle.loads(told.read_bytes())
    shutil.copytree(made, place)
    path, copy = (place / old.relative_to(made) for old in (aged.path, aged.copy))
    return aged._replace(path=path, copy=copy)
