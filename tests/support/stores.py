"""A store on a simulated disk, as most tests of the engine want it; checked when they are done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import islice
from typing import Any, NamedTuple

from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.open import open_with
from tidelog.engine.data.stored import checked, pack_trailer, stored_value
from tidelog.engine.store.opening import OpenStore
from tidelog.engine.system.limits import LIMITS, Limits
from tidelog.engine.upkeep.check import check_store
from tidelog.testing import FaultyDisk, simulated
from tidelog.testing.disk import Around
from tidelog.testing.environment import SimulatedEnvironment

PATH = "/store"


class Opened(NamedTuple):
    """An open store, and the world around it."""

    database: Database
    environment: SimulatedEnvironment
    disk: FaultyDisk

    @property
    def parts(self) -> OpenStore:
        """The parts of the open store, for tests that look inside."""
        return session_of(self.database).store

    def around_syncs(self, call: Around) -> AbstractContextManager[None]:
        """Hand the syncs of its log to ``call`` meanwhile: see ``FaultyDisk.around``."""
        return self.disk.around("sync", f"{PATH}/wal/", call)

    def reopened(self, *, seed: int = 2, **options: Any) -> Opened:
        """The same disk, opened once more."""
        limits = self.environment.limits
        return open_store(self.disk, seed=seed, limits=limits, **options)


def open_store(
    disk: FaultyDisk | None = None,
    *,
    seed: int = 1,
    limits: Limits = LIMITS,
    kv: str = "memory",
    **options: Any,
) -> Opened:
    """Open a store of four partitions, or with what ``options`` say."""
    disk = disk if disk is not None else FaultyDisk(seed)
    environment = simulated(seed, disk, limits=limits, kv=kv)
    if disk.kind(PATH) is None:
        options.setdefault("partitions", 4)
    return Opened(open_with(environment, PATH, **options), environment, disk)


@contextmanager
def opened(
    disk: FaultyDisk | None = None,
    *,
    seed: int = 1,
    limits: Limits = LIMITS,
    kv: str = "memory",
    **options: Any,
) -> Iterator[Opened]:
    """Open a store, close it behind the block, and check what it left."""
    store = open_store(disk, seed=seed, limits=limits, kv=kv, **options)
    yield store
    store.database.close()
    expect_sound(store.disk, kv)


def took_steps(db: Database, most: int, limits: Limits) -> bool:
    """Take a checkpoint up to so many of its steps; tell whether it had no more."""
    steps = session_of(db).store.checkpointer.steps(lambda: True, "test", limits)
    with closing(steps):
        return len(list(islice(steps, most))) < most


def expect_sound(disk: FaultyDisk, kv: str = "memory") -> None:
    """Fail with what the built-in check finds wrong with a closed store."""
    problems = check_store(PATH, simulated(99, disk, kv=kv))
    assert not problems, problems


def in_data_file(
    full_key: bytes, value: bytes | None, epoch: int, counter: int, time: int
) -> bytes:
    """Return a stored value with its check."""
    (stored,) = checked([full_key], [stored_value(value, epoch, counter, time)])
    return stored


def flagged(
    full_key: bytes, value: bytes, flags: int, version: tuple[int, int, int] = (1, 1, 1)
) -> bytes:
    """Return a stored value with flags, as the data file has it; a version is in its order."""
    (stored,) = checked([full_key], [value + pack_trailer(flags, *version)])
    return stored
