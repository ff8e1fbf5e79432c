"""Plays the script while the disk reports errors, and checks what a store promises then.

Every error that leaves the store is one of Tidelog's; what was acknowledged stays; reading goes
on; writing goes on too once the disk is well again, but never after a sync of the log has failed.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tidelog.affinity.errors import TidelogError
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.data.stored import TRAILER_SIZE, split_key, version_of
from tidelog.testing import FaultyDisk, simulated
from tidelog.testing.plan import DiskOperation, SimulatedCrash

from .promises import (
    check_counters,
    check_recovered,
    find_world,
    naming_errors,
    promise_of,
    shown,
    stored_pairs,
)
from .scripts import PATH, SMALL_PIECES, Entry, Given, Run, Step, Writer, broken

T = TypeVar("T")
ENDLESS = 4000
"""Operations after which a run that needs 600 is taken to hang."""
WAL = f"{PATH}/wal"


class EndlessError(BaseException):
    """The engine goes round in circles; no ``Exception``, so that nobody handles it."""


class WatchedDisk(FaultyDisk):
    """A disk that remembers which syncs failed, and sees what is done to such a file."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.failed_syncs: list[DiskOperation] = []
        self.failed_commits: list[DiskOperation] = []
        self._doomed: set[str] = set()

    def perform(
        self,
        kind: str,
        path: str,
        action: Callable[[], T],
        *,
        size: int = 0,
        partly: Callable[[random.Random], object] | None = None,
        spoil: Callable[[random.Random], object] | None = None,
    ) -> T:
        """Do as the disk does, and note failed syncs."""
        if self.operations > ENDLESS:
            raise EndlessError(f"{ENDLESS} operations")
        if kind in ("write", "sync") and path in self._doomed:
            broken("I-7", f"{kind} of {path}, whose sync has failed")
        if kind in ("create", "rename", "unlink", "open_write"):
            self._doomed.discard(path)
        try:
            return super().perform(kind, path, action, size=size, partly=partly, spoil=spoil)
        except OSError as error:
            if kind == "commit" and error.errno == errno.EIO:
                self.failed_commits.append(self.trace[-1])
            if kind in ("sync", "sync_directory"):
                self.failed_syncs.append(self.trace[-1])
                self._doomed.add(path)
            raise


def play_with_error(disk: WatchedDisk, steps: list[Step], kv: str = "memory") -> None:
    """Play the script on a disk on which errors are planned; raise where a promise is broken."""
    run = Run(disk, kv=kv)
    opened_at = 0
    with naming_errors("the script"):
        for step in steps:
            if step.kind == "open":
                _abandon(run)
                opened_at = _open(run, step)
            elif run.db is not None and run.world.allows(step):
                with suppress(TidelogError):
                    run.do(step)
        if run.db is not None and shown(run.db) != run.world:
            broken("I-1", "the open store shows something else than was acknowledged")
        disk.heal()
        if run.db is None:
            opened_at = _open(run, Step(kind="open"))
        if run.db is None:
            broken("I-1", "the store does not open though the disk is well")
        check_counters(run.db, promise_of(run))
        syncs = [op for op in disk.failed_syncs if op.number > opened_at and WAL in op.path]
        stopped = any(op.kind == "sync" for op in syncs)
        doubtful = bool(syncs) or any(op.number > opened_at for op in disk.failed_commits)
        _commit_now(run, stopped, doubtful)
        session_of(run.db).abandon()
    outcome = "lost" if disk.operations % 2 else "reordered"
    check_recovered(disk.crash(outcome), promise_of(run), kv=kv)


def _abandon(run: Run) -> None:
    if run.db is not None:
        session_of(run.db).abandon()
        run.db = None


def _open(run: Run, step: Step) -> int:
    """Open, at the second attempt if need be; return the number of the operation before."""
    for _ in range(2):
        before = run.disk.operations
        with suppress(TidelogError):
            run.do(step)
            settle(run, run.store)
            return before
    return run.disk.operations


def settle(run: Run, db: Database) -> None:
    """Find out which of the allowed worlds a store holds, and go on from that one."""
    promise = promise_of(run)
    place = find_world(shown(db), promise)
    check_counters(db, promise)
    kept = [e for e in run.entries if e.state != "failed"][:place]
    lwms = [counter.lwm for counter in session_of(db).store.state.counters]
    for entry in kept:
        entry.given = entry.given or numbers_of(entry, stored_pairs(db))
        entry.state = "durable"
        entry.lwms = entry.lwms or lwms
    run.entries = kept
    run.worlds = promise.worlds[: place + 1]
    run.floor = place
    run.lwms = lwms


def numbers_of(entry: Entry, pairs: dict[bytes, bytes]) -> list[Given]:
    """Return the numbers that a store shows for a commit: each value is written only once."""
    values = {value for _, _, value in entry.step.changes}
    found = []
    for full_key, stored in pairs.items():
        if stored[:-TRAILER_SIZE] in values:
            epoch, number, _ = version_of(stored)
            found.append((split_key(full_key)[0], epoch, number, number))
    return found


def _commit_now(run: Run, stopped: bool, doubtful: bool) -> None:
    """Writing works again on a disk that is well, but never after a failed sync of the log.

    ``doubtful``: where writing the data file has failed, commits go on until the overlay is full,
    and a failed sync of names stops the store only if they are those of new segments.
    """
    writer = Writer(900)
    steps = [Step(kind="commit", changes=writer.changes(name, range(3))) for name in run.world.maps]
    for step in steps or [Step(kind="map", name="first")]:
        try:
            run.do(step)
        except TidelogError as error:
            if not stopped and not doubtful:
                broken("I-1", f"the disk is well, and a commit fails: {error!r}")
        else:
            if stopped:
                broken("I-7", "a commit was acknowledged after a failed sync")


def check_killed(run: Run, kv: str = "memory") -> None:
    """Kill the process and not the machine, open again, commit, and only then cut the power.

    What the dead process wrote is still there, but nobody knows what of it is on the platter.
    """
    disk = run.disk
    if run.db is not None:
        with suppress(SimulatedCrash):  # of a commit that it was in the middle of
            session_of(run.db).abandon()
    disk.crashed = False
    disk.crash_at(0)
    run.environment = simulated(7, disk, kv=kv, limits=SMALL_PIECES)
    with naming_errors("after a kill"):
        run.floor = sum(entry.state in ("relaxed", "durable") for entry in run.entries)
        run.do(Step(kind="open"))
        settle(run, run.store)
        _commit_now(run, stopped=False, doubtful=False)
        session_of(run.store).abandon()
    check_recovered(disk.crash("lost"), promise_of(run), kv=kv)
