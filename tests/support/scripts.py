"""The fixed script of the crash tests, and what it was promised at each of its points.

A ``Run`` plays steps against a store on a simulated disk and keeps, beside it, a plain model: the
``World`` after each commit, in log order, and which commits were acknowledged, and how.  It looks
into the engine only for update numbers.

Left out: what must hold afterwards (``support.promises``), and where the power is cut.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

from tidelog.affinity.errors import CommitUnknownError, ConflictError, TidelogError
from tidelog.engine.api import open as opens
from tidelog.engine.api.choices import Durability, Mode
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.api.snapshots import Snapshot
from tidelog.engine.api.transactions import behind
from tidelog.engine.data.decisions import compare_and_set
from tidelog.engine.system.limits import Limits
from tidelog.testing import FaultyDisk, simulated
from tidelog.testing.environment import SimulatedEnvironment
from tidelog.testing.kv import MemoryKv
from tidelog.wal.writer import WriteSizes

PATH = "/store"
PARTITIONS = 4
LIMITS: dict[str, Any] = {
    "segment_bytes": 8192,
    "retain_bytes": 16384,
    "checkpoint_bytes": 6000,
    "sync_interval": 0.05,
    "checkpoint_interval": 1.0,
}

NEVER = b"never committed!"
"""An id that no transaction has."""

Content = dict[bytes, bytes]
Change = tuple[str, bytes, "bytes | None"]
"""(map, key, value or None for a delete)."""


SMALL_PIECES = Limits(
    log_writes=WriteSizes(piece=1024, ahead=2048, ahead_mapped=4096),
    copy_bytes=1024,
    batch_updates=4,
    piece_updates=6,
    attach_rows=1,
)
"""Let the engine write in small pieces, so that few bytes make many operations."""


class BrokenInvariant(AssertionError):  # noqa: N818  # it is no error of the program's own
    """A promise was not kept; ``name`` says which."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


def broken(name: str, text: str) -> NoReturn:
    """Raise for the invariant of that name."""
    raise BrokenInvariant(name, text)


@dataclass(frozen=True)
class World:
    """What the maps hold, and which given ids are committed."""

    maps: dict[str, Content] = field(default_factory=dict)
    ids: frozenset[bytes] = frozenset()

    def after(self, step: Step) -> World:
        """Return the world after a step that took effect."""
        maps = dict(self.maps)
        if step.kind in ("map", "attach"):
            maps[step.name] = {}
        elif step.kind == "drop":
            del maps[step.name]
        elif step.kind == "rename":
            maps[step.other] = maps.pop(step.name)
        if step.tx_id in self.ids:
            return self
        for name, key, value in step.changes:
            maps[name] = dict(maps[name])
            if value is None:
                maps[name].pop(key, None)
            else:
                maps[name][key] = value
        ids = self.ids if step.tx_id is None else self.ids | {step.tx_id}
        return World(maps, ids)

    def allows(self, step: Step) -> bool:
        """Tell whether the step makes sense here: earlier ones may have failed."""
        if step.kind in ("map", "attach"):
            return step.name not in self.maps
        if step.kind == "drop":
            return step.name in self.maps
        if step.kind == "rename":
            return step.name in self.maps and step.other not in self.maps
        return all(name in self.maps for name, _, _ in step.changes)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of the script.

    ``kind`` is ``open``, ``close``, ``checkpoint``, ``sync``, ``tick``, ``snapshot``, ``release``,
    ``outcome``, ``conflict`` (these change no world by themselves), ``map``, ``drop``, ``rename``,
    ``attach`` (a load of the ``changes``, in the directory ``other``), ``put`` (one update by the
    map itself), ``many`` (``update_many``), ``commit`` (a transaction), ``group`` (several that are
    queued together) or ``swap`` (changes of what a key holds, queued together).
    """

    kind: str
    changes: tuple[Change, ...] = ()
    durability: Durability = "always"
    mode: Mode = "optimistic"
    name: str = ""
    other: str = ""
    tx_id: bytes | None = None
    seconds: float = 0.0

    @property
    def commits(self) -> bool:
        """Whether the step is an entry of the log that changes the world."""
        return self.kind in _COMMITS


Given = tuple[int, int, int, int]
"""(partition, epoch, first number, last number)."""


@dataclass
class Entry:
    """A commit that was tried: ``state`` is tried, relaxed, durable, failed or unknown."""

    step: Step
    state: str = "tried"
    given: list[Given] = field(default_factory=list)
    lwms: list[int] = field(default_factory=list)


class Run:
    """One play of the script on one disk, and what was promised in it."""

    def __init__(
        self,
        disk: FaultyDisk,
        *,
        seed: int = 1,
        kv: str = "memory",
        acknowledge: Callable[[object], None] = lambda _: None,
    ) -> None:
        self.disk = disk
        self.environment: SimulatedEnvironment = simulated(seed, disk, kv=kv, limits=SMALL_PIECES)
        self.entries: list[Entry] = []
        self.worlds = [World()]
        """The world before each entry, and after the last one."""
        self.floor = 0
        """How many acknowledged entries are durable for sure."""
        self.db: Database | None = None
        self.snapshots: list[tuple[Snapshot, World]] = []
        self.durability: Durability = "always"
        self.lwms = [0] * PARTITIONS
        self._acknowledge = acknowledge
        acknowledge(self)

    # ---------------------------------------------------------------- steps

    def play(self, steps: list[Step]) -> None:
        """Play all steps; the first error ends it."""
        for step in steps:
            self.do(step)

    def do(self, step: Step) -> None:
        """Play one step and note what was acknowledged."""
        if step.commits:
            self._commit(step)
        else:
            getattr(self, f"_do_{step.kind}")(step)

    @property
    def world(self) -> World:
        """The world after everything that was acknowledged."""
        return self.worlds[-1]

    @property
    def store(self) -> Database:
        """The open store."""
        assert self.db is not None, "the script uses a store that is not open"
        return self.db

    def _commit(self, step: Step) -> None:
        entry = Entry(step)
        self.entries.append(entry)
        before = self.numbers()
        stopped = self._has_stopped()
        try:
            durable = _COMMITS[step.kind](self, step)
        except CommitUnknownError:
            entry.state = "unknown"
            raise
        except TidelogError:
            # A record about a map has no transaction id to ask for.
            named = step.kind in ("map", "attach", "drop", "rename")
            unknown = named and self._has_stopped() and not stopped
            entry.state = "unknown" if unknown else "failed"
            raise
        finally:
            self._note_numbers(entry, before)
        entry.state = "durable" if durable else "relaxed"
        self.worlds.append(self.world.after(step))
        if durable:
            self.floor = len(self.worlds) - 1
        entry.lwms = self.lwms
        self._acknowledge(entry)

    def _has_stopped(self) -> bool:
        return session_of(self.store).committer.stopped is not None

    def numbers(self) -> list[tuple[int, int]]:
        """Return epoch and HWM of each partition."""
        state = session_of(self.store).store.state
        return [(epoch, c.hwm) for epoch, c in zip(state.epochs, state.counters, strict=True)]

    def _note_numbers(self, entry: Entry, before: list[tuple[int, int]]) -> None:
        for partition, (old, new) in enumerate(zip(before, self.numbers(), strict=True)):
            if new[1] > old[1]:
                entry.given.append((partition, new[0], old[1] + 1, new[1]))
        lwms = [counter.lwm for counter in session_of(self.store).store.state.counters]
        if any(now < then for now, then in zip(lwms, self.lwms, strict=True)):
            broken("I-9", f"LWM fell from {self.lwms} to {lwms}")
        self.lwms = lwms

    def _all_durable(self) -> None:
        self.floor = len(self.worlds) - 1
        self._acknowledge("all")

    def _do_open(self, step: Step) -> None:
        self.durability = step.durability
        self.db = opens.open_with(
            self.environment,
            PATH,
            partitions=PARTITIONS,
            durability=step.durability,
            read_only=False,
            **LIMITS,
        )

    def _do_close(self, step: Step) -> None:
        store, self.db = self.store, None
        self.snapshots.clear()
        store.close()
        self._all_durable()

    def _do_checkpoint(self, step: Step) -> None:
        self.store.checkpoint()
        self._all_durable()
        check_readers(self.store, len(self.snapshots))

    def _do_sync(self, step: Step) -> None:
        self.store.sync()
        self._all_durable()

    def _do_tick(self, step: Step) -> None:
        self.environment.advance(step.seconds)

    def _do_snapshot(self, step: Step) -> None:
        self.snapshots.append((self.store.snapshot(), self.world))

    def _do_conflict(self, step: Step) -> None:
        """Let a transaction lose against one that commits what it has read."""
        name, key, value = step.changes[0]
        with self.store.transaction(plain_writes=True) as tx:
            inside = tx[self.store.map(name)]
            inside.get(key)
            inside[b"conflict"] = b"loses"
            self.do(Step(kind="put", changes=((name, key, value),)))
            with pytest.raises(ConflictError):
                tx.commit()

    def _do_outcome(self, step: Step) -> None:
        if self.store.outcome(NEVER) == "committed":
            broken("I-5", "a transaction that never was is said to be committed")

    def _do_release(self, step: Step) -> None:
        for snapshot, world in self.snapshots:
            found = {}
            for name, content in world.maps.items():
                if name in self.world.maps:
                    found[name] = dict(snapshot[self.store.map(name)].items())
                    if found[name] != content:
                        broken("I-2", f"a snapshot of {name!r} has changed")
            snapshot.close()
        self.snapshots.clear()


def check_readers(db: Database, snapshots: int = 0) -> None:
    """No read transaction of the data file is left behind: the file would grow without end."""
    kv = session_of(db).store.kv
    if isinstance(kv, MemoryKv) and kv.open_transactions() > 1 + snapshots:
        broken("readers", f"{kv.open_transactions()} read transactions are open")


def _put(run: Run, step: Step) -> bool:
    for name, key, value in step.changes:
        if value is None:
            run.store.map(name).discard(key)
        else:
            run.store.map(name)[key] = value
    return run.durability == "always"


def _many(run: Run, step: Step) -> bool:
    name = step.changes[0][0]
    run.store.map(name).update_many((key, value) for _, key, value in step.changes)
    return run.durability == "always"


def _change(tx: Any, run: Run, changes: tuple[Change, ...]) -> None:
    for name, key, value in changes:
        inside = tx[run.store.map(name)]
        if value is None:
            inside.discard(key)
        else:
            inside[key] = value


def _one(run: Run, step: Step) -> bool:
    with run.store.transaction(
        step.mode,
        durability=step.durability,
        id=step.tx_id,
    ) as tx:
        _change(tx, run, step.changes)
    return step.durability == "always" and step.tx_id not in run.world.ids


def _group(run: Run, step: Step) -> bool:
    transactions = []
    for change in step.changes:
        tx = run.store.transaction(durability=step.durability)
        _change(tx, run, (change,))
        transactions.append(tx)
    commits = [commit for tx in transactions if (commit := behind(tx).to_commit()) is not None]
    session_of(run.store).commit_group(commits)
    for commit in commits:
        if commit.error is not None:
            raise commit.error
    return step.durability == "always"


def _swap(run: Run, step: Step) -> bool:
    """Queue a compare-and-set per change, each of what those before it leave."""
    made, found = [], {name: dict(content) for name, content in run.world.maps.items()}
    for name, key, value in step.changes:
        namespace = namespace_of(run.store.map(name))
        decide = compare_and_set(namespace, found[name].get(key), value)
        rewrite = session_of(run.store).rewriting.maker(namespace)(key, decide)
        made.append(rewrite)
        found[name].pop(key, None)
        if value is not None:
            found[name][key] = value
    session_of(run.store).commit_group(made)
    for rewrite in made:
        if rewrite.error is not None:
            raise rewrite.error
    if not all(rewrite.choice.result for rewrite in made):
        broken("I-2", "a key did not hold what was written before it in its group")
    return run.durability == "always"


def _map(run: Run, step: Step) -> bool:
    run.store.map(step.name)
    return run.durability == "always"


def _attach(run: Run, step: Step) -> bool:
    run.store.attach(step.other, step.name)
    return True


def _drop(run: Run, step: Step) -> bool:
    run.store.drop(step.name)
    return run.durability == "always"


def _rename(run: Run, step: Step) -> bool:
    run.store.rename(step.name, step.other)
    return run.durability == "always"


_COMMITS: dict[str, Callable[[Run, Step], bool]] = {
    "put": _put,
    "many": _many,
    "commit": _one,
    "group": _group,
    "swap": _swap,
    "map": _map,
    "attach": _attach,
    "drop": _drop,
    "rename": _rename,
}


# ------------------------------------------------------------------ the script


class Writer:
    """Makes steps: every value is another one, so that no two worlds are equal."""

    def __init__(self, number: int = 0) -> None:
        self.steps: list[Step] = []
        self._rng = random.Random(number)
        self._number = number

    def value(self, size: int) -> bytes:
        """Return a value that no other step writes, about ``size`` bytes long."""
        self._number += 1
        return b"%05d:" % self._number + self._rng.randbytes(size)

    def changes(self, name: str, keys: range, size: int = 40) -> tuple[Change, ...]:
        """Return one change for each key."""
        return tuple((name, b"key%03d" % key, self.value(size)) for key in keys)

    def add(self, kind: str, **fields: Any) -> None:
        """Add a step."""
        self.steps.append(Step(kind=kind, **fields))


def full_script() -> list[Step]:
    """Return the script: over 300 operations that change the disk, everything a store does."""
    w = Writer()
    w.add("open")
    w.add("map", name="a")
    w.add("map", name="b")
    for key in range(8):
        w.add("put", changes=w.changes("a", range(key, key + 1), 120))
    w.add("commit", changes=w.changes("a", range(4, 9)) + w.changes("b", range(6)))
    w.add("put", changes=(("a", b"key002", None),))
    for key in range(4):
        w.add("commit", durability="none", changes=w.changes("b", range(key, key + 3), 200))
    w.add("tick", seconds=0.06)
    w.add("many", changes=w.changes("b", range(20, 36), 90))
    w.add("commit", durability="interval", changes=w.changes("a", range(30, 32), 30))
    w.add("checkpoint")
    w.add("snapshot")
    w.add("commit", tx_id=b"given-id-number1", changes=w.changes("a", range(2, 5)))
    w.add("commit", tx_id=b"given-id-number1", changes=w.changes("a", range(2, 9)))
    w.add("group", changes=w.changes("a", range(40, 45), 60))
    w.add("swap", changes=w.changes("a", range(40, 42), 60) + w.changes("a", range(41, 44), 60))
    w.add("commit", mode="pessimistic", changes=(("a", b"key040", None), ("b", b"key020", None)))
    w.add("map", name="gone")
    w.add("many", changes=w.changes("gone", range(12), 60))
    w.add("conflict", changes=w.changes("a", range(5, 6)))
    w.add("rename", name="b", other="bee")
    for key in range(3):
        w.add("commit", changes=w.changes("bee", range(key, key + 2), 1500))
    w.add("release")
    w.add("drop", name="gone")
    w.add("put", changes=w.changes("bee", range(50, 51), 3000))
    w.add("tick", seconds=0.06)
    w.add("checkpoint")
    for key in range(6):
        w.add("commit", durability="none", changes=w.changes("a", range(60 + key, 64 + key), 300))
    w.add("close")
    w.add("open", durability="interval")
    for key in range(8):
        w.add("put", changes=w.changes("a", range(70 + key, 71 + key), 500))
    w.add("map", name="late")
    w.add("put", changes=w.changes("late", range(1), 10))
    w.add("tick", seconds=0.06)
    w.add("put", changes=w.changes("late", range(1, 2), 10))
    w.add("commit", durability="always", changes=w.changes("late", range(3), 20))
    for key in range(10):
        w.add("put", changes=w.changes("bee", range(key, key + 1), 700))
    w.add("sync")
    w.add("swap", changes=(*w.changes("late", range(2), 20), ("late", b"key001", None)))
    w.add("drop", name="late")
    w.add("map", name="late")
    w.add("many", changes=w.changes("late", range(2), 10))
    w.add("tick", seconds=0.2)
    w.add("tick", seconds=1.1)
    w.add("close")
    w.add("open")
    for key in range(12):
        w.add("commit", changes=w.changes("a", range(key, key + 2)) + w.changes("late", range(3)))
    w.add("commit", tx_id=b"given-id-number2", durability="none", changes=w.changes("a", range(2)))
    w.add("outcome")
    w.add("snapshot")
    w.add("commit", changes=w.changes("a", range(5), 900))
    w.add("checkpoint")
    for key in range(10):
        w.add("put", changes=w.changes("late", range(key, key + 1), 250))
    w.add("group", durability="none", changes=w.changes("a", range(80, 84), 60))
    w.add("release")
    w.add("tick", seconds=0.06)
    for key in range(4):
        w.add("many", changes=w.changes("bee", range(key * 3, key * 3 + 9), 100))
    w.add("commit", durability="none", changes=w.changes("a", range(7), 60))
    w.add("commit", durability="none", changes=w.changes("bee", range(7), 60))
    return w.steps
