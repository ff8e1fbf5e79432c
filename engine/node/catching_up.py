"""Partitions of which this member is in the row and not in the set: how it comes back to them.

    decided -> report -> admitted, with an ADMIT -> pieces, and the stream -> added (decided)
                      -> in full (``taking_in``) -> report

A copy that comes back decides nothing (B1): it takes what its primary sends, in order, and says
what it has durably.

Invariants:

- Nothing is cleared, and nothing admitted, that the newest decided set lists this member for (B3).
- An ADMIT is logged only if this copy has what it says that both have.
- A piece is demanded once all before it is durable in the log.
- Behind the last piece no number up to HWM is missing, and the log has what was sent; else the copy
  begins anew (B5, M3).

Left out: what the primary does (``supplying``), full copies (``taking_in``), and the stream
(``groups``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from uuid import UUID

from ...affinity.topology import Incarnation, PartitionCopies, Topology
from ...checkpoints.copies import CopyState
from ...checkpoints.marks import epoch_of
from ...rebalance.choosing import SupplyKind
from ...tx.counter import PartitionUpdateCounter
from ...tx.numbers import applied_in, without
from ...wal.records import ClearRecord, Record, SuppliedRecord
from ..replication.following import Following
from ..replication.reports import Report, report_message, report_of
from ..replication.returning import (
    Admitted,
    Demanded,
    ReturnPlace,
    SupplyPiece,
    demand_message,
)
from .aside import Aside
from .log import NodeLog
from .outflow import Outflow
from .room import LateWords
from .taking_in import DataFile, TakingIn
from .tasks import Tasks

AGAIN_S = 1.0
"""Seconds behind which a copy that has heard nothing reports again."""

log = logging.getLogger("tidelog.node")


class CatchingUp:
    """What one incarnation does to come back to the partitions that it shall hold."""

    def __init__(
        self,
        me: Incarnation,
        node_log: NodeLog,
        outflow: Outflow,
        followed: dict[int, Following],
        store: DataFile,
        aside: Aside,
        now: Callable[[], float],
        reached: Callable[[str], None],
        tasks: Tasks,
    ) -> None:
        """``followed`` are the streams that this member follows, by partition."""
        self._me = me
        self._log = node_log
        self._outflow = outflow
        self._followed = followed
        self._aside = aside
        self._now = now
        self._reached = reached
        self._topology = Topology()
        self._outside: set[int] = set()
        """Partitions to which this copy may have to come back."""
        self._shown: dict[int, float] = {}
        """When this copy last reported on a partition."""
        self._late: LateWords[tuple[Incarnation, Sequence[Following]]] = LateWords(node_log)
        """Who is to send the next pieces of what was missed."""
        self._condemned: dict[int, ClearRecord] = {}
        """Partitions of which nothing here may count, and the log does not say so yet."""
        self.taking_in = TakingIn(
            node_log, outflow, store, now, reached, self._shown, tasks, self._expects_answers
        )
        """The full copies that come in."""

    def __repr__(self) -> str:
        return f"<CatchingUp of {self._me}: {self.taking_in}>"

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
            place = self.taking_in.place(partition)
            if place is not None and not self._may_come_back(copies, place.epoch):
                self.taking_in.stop(partition)

    def _still_follows(self, following: Following, copies: PartitionCopies) -> bool:
        return self._me in copies.in_sync or copies.admission(self._me) == following.admission

    def _may_come_back(self, copies: PartitionCopies, epoch: int) -> bool:
        return (
            copies.epoch == epoch
            and copies.may_hold(self._me.member)
            and not copies.has(self._me.member)
            and copies.author != self._me
            and self._log.failure is None
            and copies.row.partition not in self._log.unsaid
        )

    # -------------------------------------------------------------- reports

    def tick(self) -> None:
        """Report on the partitions to which this copy does not come back yet."""
        self.taking_in.tick()
        if self._condemned:
            self._clear_condemned()
        now = self._now()
        for sender, places in self._late.due(now):
            self._demand(sender, places)
        outside = [self._topology.partitions[partition] for partition in sorted(self._outside)]
        due = [
            copies
            for copies in outside
            if not self._is_busy(copies.row.partition)
            and copies.row.partition not in self._condemned
            and now >= self._shown.get(copies.row.partition, float("-inf")) + AGAIN_S
            and self._may_come_back(copies, copies.epoch)
            and copies.author in self._topology.present
            and self._aside.has_kept(copies.row.partition)
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
                and self._aside.has_kept(partition)
            ):
                report = report_of(self._log.state, partition, copy=self._me, epoch=copies.epoch)
                told.setdefault(copies.author.member, []).append(report)
        for author, reports in told.items():
            self._outflow.tell(author, report_message(reports))

    def _expects_answers(self) -> bool:
        """Tell whether primaries that are there have still to say how this copy comes back."""
        partitions, present = self._topology.partitions, self._topology.present
        return any(
            partitions[partition].author in present and not self._is_busy(partition)
            for partition in self._outside
        )

    def _is_busy(self, partition: int) -> bool:
        return partition in self._followed or self.taking_in.place(partition) is not None

    # -------------------------------------------------------------- admitted

    def admitted(self, sender: Incarnation, rows: Iterable[Admitted]) -> None:
        """Take how this copy comes back to some partitions."""
        begun: list[Following] = []
        records: list[Record] = []
        again: list[Demanded] = []
        full: list[ReturnPlace] = []
        for row in rows:
            place = row.place
            if place.partition >= len(self._topology.partitions):
                continue
            copies = self._topology.partitions[place.partition]
            if copies.author != sender or not self._may_come_back(copies, place.epoch):
                continue
            if row.kind is SupplyKind.FULL:
                self._followed.pop(place.partition, None)
                full.append(place)
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
                records += [row.record, *row.pending, *row.outcomes]
                for prepared in row.pending:
                    self._log.context.note_given_id(prepared.tx_id)
        if full:
            self.taking_in.begin(full, sender)
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
        whole = whole and partition not in self._condemned
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
        taken: list[tuple[Following, SupplyPiece]] = []
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
                taken.append((following, piece))
                records.append(piece.record)
                for one in piece.record.transactions:
                    self._log.context.note_given_id(one.tx_id)
            elif piece.number <= following.supplied:
                again.append(following)
        self._demand(sender, again)
        if taken:
            places = [following for following, _ in taken]
            self._log.put_records(
                records,
                partial(self._have_supplied, sender, self._now(), taken),
                partial(self._forget, places),
                self._supply_logged,
            )

    def _is_of_its_epochs(self, piece: SupplyPiece) -> bool:
        """Tell whether numbers belong to the epochs in which they are supplied (N1)."""
        table = self._log.state.epoch_tables[piece.place.partition]
        if self._log.state.copies.admissions.get(piece.place.partition) != piece.place.admission:
            return True  # its ADMIT is on its way into the log, and has the table
        return all(
            epoch_of(table, one.run.first) == one.run.epoch for one in piece.record.transactions
        )

    def _supply_logged(self, record: Record, data: bytes) -> None:
        """Take what the log has of a piece into the digest of all of them."""
        assert isinstance(record, SuppliedRecord)
        following = self._followed.get(record.partition)
        if following is not None and following.admission == record.admission:
            following.digest.update(data)

    def _have_supplied(
        self,
        sender: Incarnation,
        arrived: float,
        taken: Iterable[tuple[Following, SupplyPiece]],
    ) -> None:
        for following, piece in taken:
            following.supplied += 1
            if piece.last and not self._log.state.copies.is_whole(following.partition):
                log.error(
                    "node.supply_lacks: Tidelog: the store %s lacks numbers of partition %d behind "
                    "all that %s has sent, and asks again",
                    self._log.path,
                    following.partition,
                    sender,
                    extra={"event": "node.supply_lacks"},
                )
                self._forget([following])
            elif piece.last and piece.digest != following.digest.digest():
                self._condemn(following)
        places = [following for following, _ in taken]
        if not self._late.put_off((sender, places), arrived, self._now()):
            self._demand(sender, places)

    def _condemn(self, following: Following) -> None:
        """Let nothing count that is here: the log has not what was sent (M3)."""
        log.error(
            "node.supply_differs: Tidelog: the log of the store %s has not what %s has sent of "
            "partition %d: all of it is copied anew",
            self._log.path,
            following.author,
            following.partition,
            extra={"event": "node.supply_differs"},
        )
        self._forget([following])
        self._condemned[following.partition] = ClearRecord(
            partition=following.partition,
            admission=following.admission,
            reason="its log has not what was supplied",
        )
        self._clear_condemned()

    def _clear_condemned(self) -> None:
        """Let the log say what must not count; until it does nothing is said of it."""
        cleared = dict(self._condemned)

        def then() -> None:
            for partition in cleared:
                self._condemned.pop(partition, None)

        self._log.put_records(cleared.values(), then)

    # -------------------------------------------------------------- connections

    def unheard(self, member: UUID) -> list[Demanded]:
        """Return what a primary may not have heard over the connection that broke."""
        found = [
            demanded
            for following in self._followed.values()
            if following.author.member == member and following.is_admitted
            for demanded in _demanded(following)
        ]
        found += self.taking_in.unheard(member)
        return found


def _demanded(following: Following) -> list[Demanded]:
    """Return the piece that a copy wants next, once its ADMIT is durable."""
    if following.supplied < 0:
        return []
    place = ReturnPlace(following.partition, following.epoch, following.admission)
    return [Demanded(place, following.supplied + 1)]
