"""What one member knows of a transaction: what is pending or remembered here, and what its log has.

    pending here -> wait for the end
    records in the log -> what they say        (``prepared.outcome_of``)
    no record -> remembered? resolved by a decision? -> too old to tell, or rolled back

Invariants:

- *Rolled back* is said only where a commit would be known: the log goes back to when the id was
  made, and the partition was neither copied in full nor reset since.

Left out: who is asked, and what is refused by that (``committing``, ``in_doubt``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import trio

from ...affinity.errors import TidelogError
from ...affinity.topology import Topology
from ...wal.records import (
    AdmitRecord,
    CommitRecord,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    SettleRecord,
    SuppliedRecord,
    TxRecord,
)
from ..commit import outcomes
from ..commit.outcomes import Outcome
from ..files.recorded import NEVER, Filled, Fills
from ..store.store_files import StoreFiles
from ..system.disk_errors import translated_disk
from .prepared import outcome_of
from .tasks import Tasks

T = TypeVar("T")

_COMMITTED = TxRecord | CommitRecord | SuppliedRecord

LOOK_AGAIN_S = 0.05
"""Seconds between looks at whether what is pending has ended."""

LOOK_ANEW_S = 1.0
"""Seconds after which a log that did not tell when a copy was filled is read anew for that."""

HearStory = Callable[[list[list[Any]] | Exception], object]
"""Hears rows: partition, what became of it there (an ``Outcome``, or None), whether that is
remembered for others, epoch, first number, count, and the home if that is known."""


class TxHistory:
    """The transactions that the log of one incarnation has, and what it knows beside that."""

    def __init__(self, files: StoreFiles, tasks: Tasks, now: Callable[[], float]) -> None:
        self._files = files
        self._tasks = tasks
        self._now = now
        self._fills = Fills(from_beginning=True), -1, -math.inf
        """Full copies; the moves of the fold, and the time, when the log was read for them."""
        self._reads_fills = trio.Lock()
        self._topology = Topology()

    def __repr__(self) -> str:
        return f"<TxHistory of {self._files.path}>"

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self._topology = topology

    # -------------------------------------------------------------- outcomes

    def find_outcome(
        self,
        tx_id: bytes,
        home: int,
        done: Callable[[Outcome | Exception], object],
        until: float = math.inf,
    ) -> None:
        """Tell what became of a transaction under an id that a client made, once that is known.

        ``home`` is a partition that it wrote to.  What is pending then is so *until* that time.
        """

        async def look() -> None:
            try:
                outcome: Outcome | None = "pending"
                while outcome == "pending":
                    # What ends while the log is read may be behind what was read.
                    while self._is_pending(tx_id, home):
                        if self._now() >= until:
                            done("pending")
                            return
                        await trio.sleep(LOOK_AGAIN_S)
                    found = await self._read(tx_id)
                    outcome = await self._outcome(found, tx_id, home)
                done(outcome or await self._outcome_of_unknown(tx_id, home))
            except TidelogError as error:
                done(error)

        self._tasks.begin(look)

    def _is_pending(self, tx_id: bytes, partition: int) -> bool:
        pending = self._files.state.copies.pending.get(partition)
        return pending is not None and any(one.tx_id == tx_id for one in pending.all())

    async def _read(self, tx_id: bytes) -> list[tuple[int, Record]]:
        """Return what the log has about a transaction, with positions, in order."""
        keeper, log_ids = self._files.keeper, self._files.manifest.log_ids
        return await self._in_log(partial(keeper.records_about, tx_id, log_ids))

    async def _filled(self, partition: int) -> Filled:
        """Return when a partition was copied in full.

        Who loses a primary asks about many transactions at once: the log is read once for all.
        """
        copies = self._files.state.copies
        if partition not in copies.admissions:
            return NEVER
        async with self._reads_fills:
            known, moves, since = self._fills
            found = known.of(partition)
            fresh = found.until is not None or self._now() < since + LOOK_ANEW_S
            if moves != copies.moves or not fresh:
                moves, since = copies.moves, self._now()
                known = await self._in_log(self._files.keeper.fills)
                self._fills = known, moves, since
            return known.of(partition)

    async def _in_log(self, work: Callable[[], T]) -> T:
        def look() -> T:
            with translated_disk("reading the log"):
                return outcomes.looked_through(work)

        return await self._files.environment.run("outcome", look)

    async def _outcome(
        self, found: list[tuple[int, Record]], tx_id: bytes, partition: int
    ) -> Outcome | None:
        """Return what is known here, what the log says, or was decided; None if nothing does.

        A part without an end tells nothing: the copy may have been copied in full behind it.
        """
        filled = await self._filled(partition) if found else NEVER
        if self._is_pending(tx_id, partition):
            return "pending"
        if tx_id in self._files.state.copies.remembered.get(partition, {}):
            return "committed"
        telling = _telling(found, tx_id, partition, filled)
        if not all(map(_is_part, telling)):
            return outcome_of(telling, tx_id, partition, self._files.state)
        for one in self._topology.resolutions:
            if one.tx_id == tx_id and partition in one.partitions:
                return "committed" if one.commits else "rolled_back"
        return None

    async def _outcome_of_unknown(self, tx_id: bytes, home: int) -> Outcome:
        """Return what became of something of which nothing is known: rolled back, if that tells.

        Nothing tells nothing where a partition was copied in full: what was in it then is in no
        record of this log.  Nor where it has gone on from an older copy.
        """
        if self.may_be_lost(tx_id, home):
            return "too_old"
        since, filled = self._since(tx_id), await self._filled(home)
        known = await self._in_log(partial(self._is_kept, since))
        known = known and filled.until is not None and (filled.until == 0 or since > filled.until)
        return "rolled_back" if known else "too_old"

    def may_be_lost(self, tx_id: bytes, home: int) -> bool:
        """Tell whether a partition went on from an older copy since an id was made (S6)."""
        times = [loss.time for loss in self._topology.losses if loss.partition == home]
        return bool(times) and self._since(tx_id) <= max(times)

    def _since(self, tx_id: bytes) -> int:
        """Return a time at which an id was not made yet, whatever clock it is of; 0 if unknown."""
        found = outcomes.born(tx_id, self._files.state.store_id)
        return 0 if found is None else max(found - outcomes.CLOCKS_APART, 0)

    def _is_kept(self, since: int) -> bool:
        """Tell whether the kept log goes back to a time."""
        keeper = self._files.keeper
        return keeper.first_position == 0 or since > keeper.known_since()

    # -------------------------------------------------------------- stories

    def tell(self, tx_id: bytes, done: HearStory) -> None:
        """Tell what became of a transaction in each partition of which something is here."""

        async def look() -> None:
            try:
                done(await self._story(await self._read(tx_id), tx_id))
            except TidelogError as error:
                done(error)

        self._tasks.begin(look)

    async def _story(self, found: list[tuple[int, Record]], tx_id: bytes) -> list[list[Any]]:
        copies = self._files.state.copies
        homes = [one.home for _, one in found if isinstance(one, PrepareRecord)]
        runs = {run.partition: run for _, one in found for run in _runs_here(one, tx_id)}
        for partition, known in copies.remembered.items():
            if tx_id in known:
                runs[partition] = known[tx_id].run
        for partition, pending in copies.pending.items():
            for one in pending.all():
                if one.tx_id == tx_id:
                    runs[partition] = one.run
                    homes += [one.home] if isinstance(one, PrepareRecord) else []
        return [
            [
                partition,
                await self._outcome(found, tx_id, partition),
                tx_id in copies.remembered.get(partition, {}),
                *run[1:],
                homes[0] if homes else None,
            ]
            for partition, run in sorted(runs.items())
        ]


def _telling(
    found: Iterable[tuple[int, Record]], tx_id: bytes, partition: int, filled: Filled
) -> list[Record]:
    """Return what tells of a transaction in one partition.

    What is before a CLEAR says only what had committed: anything else may have ended otherwise.
    """
    cleared = filled.cleared
    return [
        record
        for position, record in found
        if _tells_of(record, tx_id, partition)
        and (cleared is None or position > cleared or isinstance(record, _COMMITTED))
    ]


def _is_part(record: Record) -> bool:
    """Tell whether a record is what one of several groups has of a transaction."""
    return isinstance(record, PrepareRecord) and len(record.participants) > 1


def _tells_of(record: Record, tx_id: bytes, partition: int) -> bool:
    """Tell whether what a record says of a transaction is about a partition."""
    if isinstance(record, AdmitRecord):
        return record.partition == partition  # what it names has no numbers any more
    return any(run.partition == partition for run in _runs_here(record, tx_id))


def _runs_here(record: Record, tx_id: bytes) -> Iterator[Run]:
    """Yield the numbers that a record has for a transaction, in partitions of which it tells."""
    match record:
        case PrepareRecord():
            yield record.run
        case CommitRecord():
            yield from (run for run in record.participants if run.partition in record.applied)
        case TxRecord() | RollbackRecord():
            yield from record.runs
        case SuppliedRecord() | SettleRecord():
            yield from (one.run for one in record.transactions if one.tx_id == tx_id)
