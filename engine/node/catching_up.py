"""Partitions of which this member is in the row and not in the set: how it comes back to them.

    decided -> report -> admitted, with an ADMIT -> pieces, and the stream -> added (decided)
                      -> in full: CLEAR -> cleared by a checkpoint -> pairs, and an ADMIT -> report

A copy that comes back decides nothing (B1): it takes what its primary sends, in order, and says
what it has durably.

Invariants:

- Nothing is cleared, and nothing admitted, that the newest decided set lists this member for (B3).
- An ADMIT is logged only if this copy has what it says that both have.
- A piece is demanded once all before it is durable: in the log, or in the data file.
- Behind the last piece no number up to HWM is missing; else the copy begins anew (B5).
- Between CLEAR and the ADMIT that follows the copy counts for nothing, whenever it is started.

Left out: what the primary does (``supplying``), and the stream (``groups``).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol
from uuid import UUID

import trio

from ...affinity.errors import TidelogError
from ...affinity.topology import Incarnation, PartitionCopies, Topology
from ...checkpoints.copies import CopyState
from ...checkpoints.marks import epoch_of
from ...checkpoints.replay import FIRST_NAMESPACE
from ...rebalance.choosing import SupplyKind
from ...tx.counter import PartitionUpdateCounter
from ...tx.numbers import applied_in, without
from ...wal.records import ClearRecord, Record, SuppliedRecord
from ..data.stored import split_key
from ..replication.following import Following
from ..replication.reports import Report, report_message, report_of
from ..replication.returning import (
    Admitted,
    Demanded,
    FillPiece,
    ReturnPlace,
    SupplyPiece,
    demand_message,
)
from .log import NodeLog
from .outflow import Outflow

AGAIN_S = 1.0
"""Seconds behind which a copy that has heard nothing reports again."""
ALIVE_S = 1.0
"""Seconds between two words of a copy that is busy with clearing."""
PATIENCE_S = 10.0
"""Seconds without a piece of a full copy, behind which it begins anew."""

log = logging.getLogger("tidelog.node")


class DataFile(Protocol):
    """Who writes the data file of a member."""

    async def checkpoint(self, reason: str) -> None:
        """Take a checkpoint."""

    async def fill(self, partition: int, pairs: dict[bytes, bytes], position: int) -> None:
        """Write stored pairs into a partition that was cleared at a position of the log."""


class _Filling:
    """A full copy that comes in."""

    def __init__(self, place: ReturnPlace, primary: Incarnation) -> None:
        self.place = place
        self.primary = primary
        self.taken = 0
        """The last piece that has arrived."""
        self.demanded = 0
        """The piece that is wanted next; 0 while what was there is removed."""
        self.told_at = float("-inf")
        self.pieces: deque[FillPiece] = deque()
        self.news = trio.Event()
        self.scope = trio.CancelScope()


class CatchingUp:
    """What one incarnation does to come back to the partitions of its rows."""

    def __init__(
        self,
        me: Incarnation,
        node_log: NodeLog,
        outflow: Outflow,
        followed: dict[int, Following],
        store: DataFile,
        now: Callable[[], float],
        reached: Callable[[str], None],
    ) -> None:
        """``followed`` are the streams that this member follows, by partition."""
        self._me = me
        self._log = node_log
        self._outflow = outflow
        self._followed = followed
        self._store = store
        self._now = now
        self._reached = reached
        self._topology = Topology()
        self._outside: set[int] = set()
        """Partitions to which this copy may have to come back."""
        self._shown: dict[int, float] = {}
        """When this copy last reported on a partition."""
        self._fillings: dict[int, _Filling] = {}
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<CatchingUp of {self._me}: {len(self._fillings)} full copies come in>"

    async def run(self) -> None:
        """Let full copies come in, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    # -------------------------------------------------------------- what is decided

    def decided(self, before: Topology, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self._topology = topology
        known = before.partitions
        for partition, copies in enumerate(topology.partitions):
            if partition < len(known) and known[partition] is copies:
                continue
            self._shown.pop(partition, None)
            # What the log has not said yet keeps it from coming back for a moment only.
            if partition in self._log.unsaid or self._may_come_back(copies, copies.epoch):
                self._outside.add(partition)
            else:
                self._outside.discard(partition)
            following = self._followed.get(partition)
            if following is not None and not self._still_follows(following, copies):
                del self._followed[partition]
            filling = self._fillings.get(partition)
            if filling is not None and not self._may_come_back(copies, filling.place.epoch):
                filling.scope.cancel()

    def _still_follows(self, following: Following, copies: PartitionCopies) -> bool:
        return self._me in copies.in_sync or copies.admission(self._me) == following.admission

    def _may_come_back(self, copies: PartitionCopies, epoch: int) -> bool:
        return (
            copies.epoch == epoch
            and self._me.member in copies.row.replicas
            and not any(one.member == self._me.member for one in copies.in_sync)
            and copies.author != self._me
            and self._log.failure is None
            and copies.row.partition not in self._log.unsaid
        )

    # -------------------------------------------------------------- reports

    def tick(self) -> None:
        """Report on the partitions to which this copy does not come back yet."""
        now = self._now()
        for filling in self._fillings.values():
            if not filling.demanded and now >= filling.told_at + ALIVE_S:
                filling.told_at = now
                self._tell_filling(filling)
        outside = [self._topology.partitions[partition] for partition in sorted(self._outside)]
        due = [
            copies
            for copies in outside
            if not self._is_busy(copies.row.partition)
            and now >= self._shown.get(copies.row.partition, float("-inf")) + AGAIN_S
            and self._may_come_back(copies, copies.epoch)
            and copies.author in self._topology.present
        ]
        if due:
            self._shown.update((copies.row.partition, now) for copies in due)
            self._log.put_barrier(partial(self._report, due))

    def _report(self, due: Iterable[PartitionCopies]) -> None:
        """Tell primaries what this copy has; behind a sync of all that was queued before."""
        told: dict[UUID, list[Report]] = {}
        for copies in due:
            partition = copies.row.partition
            if (
                self._topology.partitions[partition] is copies
                and not self._is_busy(partition)
                and partition not in self._log.unsaid
            ):
                report = report_of(self._log.state, partition, copy=self._me, epoch=copies.epoch)
                told.setdefault(copies.author.member, []).append(report)
        for author, reports in told.items():
            self._outflow.tell(author, report_message(reports))

    def _is_busy(self, partition: int) -> bool:
        return partition in self._followed or partition in self._fillings

    # -------------------------------------------------------------- admitted

    def admitted(self, sender: Incarnation, rows: Iterable[Admitted]) -> None:
        """Take how this copy comes back to some partitions."""
        begun: list[Following] = []
        records: list[Record] = []
        again: list[Demanded] = []
        for row in rows:
            place = row.place
            if place.partition >= len(self._topology.partitions):
                continue
            copies = self._topology.partitions[place.partition]
            if copies.author != sender or not self._may_come_back(copies, place.epoch):
                continue
            if row.kind is SupplyKind.FULL:
                self._begin_filling(place, sender)
                continue
            following = self._followed.get(place.partition)
            if following is not None and following.admission == place.admission:
                again += _demanded(following)
            elif copies.admission(self._me) == place.admission and self._agrees(row):
                following = Following(place.partition, place.epoch, sender)
                following.admit(place.admission, row.begin)
                self._followed[place.partition] = following
                begun.append(following)
                assert row.record is not None
                records += [row.record, *row.pending]
                for prepared in row.pending:
                    self._log.context.note_given_id(prepared.tx_id)
        if again:
            self._outflow.tell(sender.member, demand_message(again))
        if begun:
            self._log.put_records(
                records, partial(self._have_admitted, sender, begun), partial(self._forget, begun)
            )

    def _agrees(self, row: Admitted) -> bool:
        """Tell whether this copy has all that its primary takes for agreed."""
        record, state = row.record, self._log.state
        partition = row.place.partition
        if record is None or record.partition != partition:
            return False
        agreed = applied_in(PartitionUpdateCounter(record.lwm, record.ranges))
        here = state.copies.states.get(partition, CopyState.OWNING)
        whole = here in (CopyState.OWNING, CopyState.MOVING)
        return whole and not without(agreed, applied_in(state.counters[partition]))

    def _have_admitted(self, sender: Incarnation, begun: Iterable[Following]) -> None:
        self._reached("admit.logged")
        for following in begun:
            following.supplied = 0
        self._demand(sender, begun)

    def _forget(self, begun: Iterable[Following]) -> None:
        """Follow nothing whose ADMIT is not in the log."""
        for following in begun:
            if self._followed.get(following.partition) is following:
                del self._followed[following.partition]

    def _demand(self, sender: Incarnation, places: Iterable[Following]) -> None:
        rows = [
            demanded
            for following in places
            if self._followed.get(following.partition) is following
            for demanded in _demanded(following)
        ]
        if rows:
            self._outflow.tell(sender.member, demand_message(rows))

    # -------------------------------------------------------------- by history

    def supplied(self, sender: Incarnation, pieces: Iterable[SupplyPiece]) -> None:
        """Take pieces of what was missed, and demand the next ones once these are durable."""
        taken: list[tuple[Following, bool]] = []
        again: list[Following] = []
        records: list[SuppliedRecord] = []
        for piece in pieces:
            place = piece.place
            following = self._followed.get(place.partition)
            if (
                following is None
                or (following.epoch, following.admission) != (place.epoch, place.admission)
                or following.author != sender
                or (piece.record.partition, piece.record.admission)
                != (place.partition, place.admission)
            ):
                continue
            if not self._is_of_its_epochs(piece):
                log.error(
                    "node.supply_wrong: Tidelog: the store %s takes nothing that %s supplies of "
                    "partition %d: its numbers are not of the epochs that both have agreed to",
                    self._log.path,
                    sender,
                    place.partition,
                    extra={"event": "node.supply_wrong"},
                )
            elif piece.number == following.pieces + 1:
                following.pieces += 1
                taken.append((following, piece.last))
                records.append(piece.record)
                for one in piece.record.transactions:
                    self._log.context.note_given_id(one.tx_id)
            elif piece.number <= following.supplied:
                again.append(following)
        self._demand(sender, again)
        if taken:
            places = [following for following, _ in taken]
            self._log.put_records(
                records, partial(self._have_supplied, sender, taken), partial(self._forget, places)
            )

    def _is_of_its_epochs(self, piece: SupplyPiece) -> bool:
        """Tell whether numbers belong to the epochs in which they are supplied (N1)."""
        table = self._log.state.epoch_tables[piece.place.partition]
        if self._log.state.copies.admissions.get(piece.place.partition) != piece.place.admission:
            return True  # its ADMIT is on its way into the log, and has the table
        return all(
            epoch_of(table, one.run.first) == one.run.epoch for one in piece.record.transactions
        )

    def _have_supplied(self, sender: Incarnation, taken: Iterable[tuple[Following, bool]]) -> None:
        for following, last in taken:
            following.supplied += 1
            if last and not self._log.state.copies.is_whole(following.partition):
                log.error(
                    "node.supply_lacks: Tidelog: the store %s lacks numbers of partition %d behind "
                    "all that %s has sent, and asks again",
                    self._log.path,
                    following.partition,
                    sender,
                    extra={"event": "node.supply_lacks"},
                )
                self._forget([following])
        self._demand(sender, [following for following, _ in taken])

    # -------------------------------------------------------------- in full

    def _begin_filling(self, place: ReturnPlace, sender: Incarnation) -> None:
        known = self._fillings.get(place.partition)
        if known is not None and known.place == place:
            self._tell_filling(known)
            return
        if known is not None:
            known.scope.cancel()
        self._followed.pop(place.partition, None)
        filling = self._fillings[place.partition] = _Filling(place, sender)
        assert self._nursery is not None
        self._nursery.start_soon(self._fill, filling)

    def _tell_filling(self, filling: _Filling) -> None:
        row = Demanded(filling.place, filling.demanded)
        self._outflow.tell(filling.primary.member, demand_message([row]))

    def filled(self, sender: Incarnation, piece: FillPiece) -> None:
        """Take a piece of a full copy."""
        filling = self._fillings.get(piece.place.partition)
        if filling is None or (filling.place, filling.primary) != (piece.place, sender):
            return
        if piece.number == filling.taken + 1:
            filling.taken += 1
            filling.pieces.append(piece)
            filling.news.set()
        elif piece.number < filling.demanded:
            self._tell_filling(filling)

    async def _fill(self, filling: _Filling) -> None:
        partition = filling.place.partition
        self._shown.pop(partition, None)
        try:
            with filling.scope:
                await self._clear(filling)
                await self._take_pieces(filling)
        except (TidelogError, OSError) as error:
            log.warning(
                "node.fill_failed: Tidelog: the store %s takes no copy of partition %d now: %s",
                self._log.path,
                partition,
                error,
                extra={"event": "node.fill_failed"},
            )
            self._shown[partition] = self._now()
        finally:
            if self._fillings.get(partition) is filling:
                del self._fillings[partition]

    async def _clear(self, filling: _Filling) -> None:
        """Let all that is here count for nothing, and remove it."""
        place = filling.place
        reason = f"a full copy of {filling.primary}"
        await self._logged(
            ClearRecord(partition=place.partition, admission=place.admission, reason=reason)
        )
        await self._store.checkpoint("clear")
        filling.demanded = 1
        self._tell_filling(filling)

    async def _take_pieces(self, filling: _Filling) -> None:
        partition = filling.place.partition
        position = self._log.position
        while True:
            with trio.move_on_after(PATIENCE_S) as scope:
                while not filling.pieces:
                    filling.news = trio.Event()
                    await filling.news.wait()
            if scope.cancelled_caught:
                return
            piece = filling.pieces.popleft()
            rows = self._rows_of(piece)
            if rows:
                await self._store.fill(partition, rows, position)
            if piece.record is not None:
                await self._logged(piece.record)
                self._reached("admit.logged")
            filling.demanded = piece.number + 1
            self._tell_filling(filling)
            if piece.record is not None:
                return

    def _rows_of(self, piece: FillPiece) -> dict[bytes, bytes]:
        """Return the pairs of maps that are there still."""
        state = self._log.state
        maps, next_id = state.namespaces, state.next_namespace

        def lives(full_key: bytes) -> bool:
            place, number, _ = split_key(full_key)
            there = number < FIRST_NAMESPACE or number >= next_id or number in maps
            return there and place == piece.place.partition

        return {
            key: value for key, value in zip(piece.keys, piece.values, strict=True) if lives(key)
        }

    async def _logged(self, record: Record) -> None:
        """Wait until a record is durable, and has taken effect; raises if it cannot be logged."""
        ended = trio.Event()
        failed: list[bool] = []

        def undo() -> None:
            failed.append(True)
            ended.set()

        self._log.put_records([record], ended.set, undo)
        await ended.wait()
        if failed:
            raise OSError("the log does not take it")

    # -------------------------------------------------------------- connections

    def unheard(self, member: UUID) -> list[Demanded]:
        """Return what a primary may not have heard over the connection that broke."""
        found = [
            demanded
            for following in self._followed.values()
            if following.author.member == member and following.is_admitted
            for demanded in _demanded(following)
        ]
        found += [
            Demanded(filling.place, filling.demanded)
            for filling in self._fillings.values()
            if filling.primary.member == member
        ]
        return found


def _demanded(following: Following) -> list[Demanded]:
    """Return the piece that a copy wants next, once its ADMIT is durable."""
    if following.supplied < 0:
        return []
    place = ReturnPlace(following.partition, following.epoch, following.admission)
    return [Demanded(place, following.supplied + 1)]
