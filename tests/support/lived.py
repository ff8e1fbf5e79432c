"""Stores with a long mixed history, made by the real engine from a seed, beside a model of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog import codecs
from tidelog.engine.api.database import Database, session_of

from .loads import make_load, rows_of
from .real_stores import opened

DURABILITIES = ("always", "interval", "none")
LIMITS: dict[str, Any] = {"segment_bytes": 128 << 10, "checkpoint_bytes": 1 << 20}


@dataclass
class Lived:
    """A closed store, and what it has to hold: the encoded pairs of each map by name."""

    path: Path
    maps: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    ever: set[tuple[bytes, bytes]] = field(default_factory=set)
    """Every pair that was committed at some time."""
    done: list[str] = field(default_factory=list)
    """What was done to it, in order."""


def live(
    path: Path,
    seed: int,
    *,
    steps: int = 40,
    retain_bytes: int = 1 << 30,
    value_bytes: int = 4000,
    crash_at_end: bool = False,
) -> Lived:
    """Make a store: puts, groups, rollbacks, checkpoints, drops, renames, loads, crashes."""
    life = _Life(path, seed, value_bytes, {**LIMITS, "retain_bytes": retain_bytes})
    for _ in range(steps):
        life.step()
    if crash_at_end:
        life.crash()
    else:
        life.db.close()
    return life.made


class _Life:
    def __init__(self, path: Path, seed: int, value_bytes: int, limits: dict[str, Any]) -> None:
        self.made = Lived(path)
        self._rng = random.Random(seed)
        self._value_bytes = value_bytes
        self._limits = limits
        self._loads = 0
        self._open()
        self._kinds = [
            (8, self._put), (6, self._group), (3, self._delete), (3, self._transaction),
            (2, self._rolled_back), (2, self._checkpoint), (1, self._drop), (1, self._rename),
            (1, self._attach), (1, self._reopen), (2, self.crash_and_open),
        ]  # fmt: skip

    def _open(self) -> None:
        durability = self._rng.choice(DURABILITIES)
        self.db: Database = opened(
            self.made.path, partitions=4, durability=durability, **self._limits
        )
        self.made.done.append(f"open {durability}")

    def step(self) -> None:
        """Do one thing."""
        weights = [weight for weight, _ in self._kinds]
        (kind,) = self._rng.choices([kind for _, kind in self._kinds], weights)
        self.made.done.append(kind.__name__)
        kind()

    def _name(self) -> str:
        return self._rng.choice(["stock", "orders", "users"])

    def _map(self, name: str) -> Any:
        self.made.maps.setdefault(name, {})
        return self.db.map(name, key=codecs.Bytes, value=codecs.Bytes)

    def _pair(self) -> tuple[bytes, bytes]:
        rng = self._rng
        pair = b"k%03d" % rng.randrange(200), rng.randbytes(rng.randrange(self._value_bytes))
        self.made.ever.add(pair)
        return pair

    def _put(self) -> None:
        name = self._name()
        mapping = self._map(name)
        for _ in range(self._rng.randrange(1, 8)):
            key, value = self._pair()
            mapping[key] = self.made.maps[name][key] = value

    def _group(self) -> None:
        name = self._name()
        pairs = dict(self._pair() for _ in range(self._rng.randrange(1, 30)))
        self._map(name).update_many(list(pairs.items()))
        self.made.maps[name] |= pairs

    def _delete(self) -> None:
        name = self._name()
        mapping = self._map(name)
        for key in self._rng.sample(sorted(self.made.maps[name]), len(self.made.maps[name]) // 8):
            del mapping[key]
            del self.made.maps[name][key]

    def _transaction(self) -> None:
        names = {self._name(), self._name()}
        maps = {name: self._map(name) for name in sorted(names)}
        given = self._rng.randbytes(16) if self._rng.random() < 0.5 else None
        with self.db.transaction(tag="life", id=given) as tx:
            for name, mapping in maps.items():
                key, value = self._pair()
                tx[mapping][key] = self.made.maps[name][key] = value

    def _rolled_back(self) -> None:
        mapping = self._map(self._name())
        with self.db.transaction() as tx:
            tx[mapping][b"never"] = b"there"
            tx.rollback()

    def _checkpoint(self) -> None:
        self.db.checkpoint()

    def _drop(self) -> None:
        name = self._rng.choice([*sorted(self.made.maps), ""])
        if name:
            self.db.drop(name)
            del self.made.maps[name]

    def _rename(self) -> None:
        name = self._rng.choice([*sorted(self.made.maps), ""])
        new = f"{name}-{self._rng.randrange(1000)}"
        if name and new not in self.made.maps:
            self.db.rename(name, new)
            self.made.maps[new] = self.made.maps.pop(name)

    def _attach(self) -> None:
        self._loads += 1
        name = f"load-{self._loads}"
        rows = rows_of(self._rng.randrange(1, 60), tag=name.encode(), size=50)
        folder = self.made.path.with_name(f"{self.made.path.name}.{name}")
        self.db.attach(make_load(folder, rows, name=name))
        self.made.maps[name] = dict(rows)
        self.made.ever.update(rows.items())

    def _reopen(self) -> None:
        self.db.close()
        self._open()

    def crash(self) -> None:
        """End without a close; what was committed is in the page cache, and stays."""
        session_of(self.db).abandon()

    def crash_and_open(self) -> None:
        """Crash, and recover."""
        self.crash()
        self._open()
