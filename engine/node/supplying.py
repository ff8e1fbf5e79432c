"""Copies that come back to the partitions that this member serves: admitted, supplied, added.

    report -> admitted (decided) -> the stream, from one moment on -> what was missed before it
           -> joins the ack set -> has all that there was then -> added to the set (decided)

A copy of which nothing counts gets all there is first (*full*): the pairs of an instant, and the
counter of that instant with the last of them.  It reports again, and goes the way above.

One copy has one task here, which takes what the copy has reported together: the log is read once
for all these partitions.

Invariants:

- The moment of an admission lies between two groups of the log: what was given out by then is
  decided, or pending, and sent with the admission; what comes later is in the stream (B3).
- A copy is waited for from before it is proposed until a decision says that it is out (I2, C6).
- It is proposed once everything up to the moment when it joined is durable there (B8).
- The log that a full copy needs is pinned until it follows the stream.

Left out: what the copy does (``catching_up``), which way it comes back (``ways_back``), and what is
sent for that: history (``missed``), or all there is (``filling``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol
from uuid import UUID

import trio

from ...affinity.changes import CopiesAdded, CopiesAdmitted, CopiesRemoved, TopologyChange
from ...affinity.errors import CorruptLogError, TidelogError
from ...affinity.topology import Incarnation, PartitionCopies, Topology
from ...checkpoints.supplying import WantedNumbers
from ...rebalance.choosing import LogReach, SupplyKind
from ...tx.numbers import has_run, united
from ...wal.history import oldest_state
from ...wal.records import AdmitRecord, PrepareRecord, Record, encode_record
from ..agreement.messages import Guard
from ..replication.lent import OpenPlace
from ..replication.reports import Report
from ..replication.returning import Admitted, Demanded, ReturnPlace, admit_message
from ..replication.streams import Follower, Streams
from ..store.store_files import StoreFiles
from .borrowing import Borrowing
from .filling import Filling
from .log import NodeLog, record_bytes
from .missed import HistorySource, MissedHistory
from .outflow import Outflow
from .own_history import OwnHistory
from .partitions import Partitions
from .returns import PATIENCE_S, Return, StoppedError
from .supply_log import reach_of
from .tasks import Tasks
from .ways_back import LogHolder, WaysBack

LOOK_S = 0.02
FILLED_MAX, FILLED_BYTES = 256, 4 << 30
"""Partitions, or bytes of these (about), that are copied in full before what was written meanwhile
is sent for all of them."""
JOIN_ITEMS = 64
"""Items that a copy may lack of the stream when it joins: writes wait for these."""
BEHIND_BYTES_MAX = 64 << 20
"""Bytes of items that are kept for copies that are not waited for."""
ASK_AGAIN_S = 0.5
PENDING_BYTES_MAX = 48 << 20
"""Bytes of pending transactions that go with the admissions of one moment: all of them are said
again over a new connection, and one for which more waits is hung up (``outflow``)."""

Reaches = list[LogReach[LogHolder]]
"""Whose logs have which numbers of a partition."""
LackedBySupplier = dict[Incarnation, dict[ReturnPlace, WantedNumbers]]
"""What a copy lacks, by whose log has it."""

log = logging.getLogger("tidelog.node")


class Suggestions(Protocol):
    """Who has changes decided."""

    def suggest(self, change: TopologyChange, guards: tuple[Guard, ...] = ()) -> int:
        """Ask for a change once; return the number of the request."""


class Supplies:
    """The copies that come back to what one incarnation serves."""

    def __init__(
        self,
        me: Incarnation,
        files: StoreFiles,
        node_log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        outflow: Outflow,
        decisions: Suggestions,
        now: Callable[[], float],
        reached: Callable[[str], None],
        announce: Callable[[int], None],
        tasks: Tasks,
    ) -> None:
        """``announce`` lets the log know that a partition is open."""
        self._announce = announce
        self._me = me
        self._files = files
        self._wal = files.keeper.directory
        self._log = node_log
        self._partitions = partitions
        self._streams = streams
        self._outflow = outflow
        self._decisions = decisions
        self._now = now
        self._reached = reached
        self._topology = Topology()
        self._returns: dict[Incarnation, Return] = {}
        self._refused: set[int] = set()
        self._asked: set[int] = set()
        self._tidied_at = float("-inf")
        self._tasks = tasks
        self.ways = WaysBack(me, node_log, now)
        """How copies came back lately, and why."""
        self.borrowing = Borrowing(me, outflow)
        """What the logs of others have."""
        self._own_history = OwnHistory(files, node_log)
        self._history = MissedHistory(self.ways, reached)
        self._filling = Filling(files, node_log, reached)

    def __repr__(self) -> str:
        return f"<Supplies of {self._me}: {len(self._returns)} copies come back>"

    # -------------------------------------------------------------- what is heard

    def reported(self, report: Report) -> None:
        """Take what a copy has that is not of a set: it wants to come back."""
        if report.partition >= len(self._topology.partitions):
            return
        copies = self._topology.partitions[report.partition]
        if not self._may_return(report.copy, copies, report.epoch) or self._is_ahead(report):
            return
        returning = self._returns.get(report.copy)
        if returning is None:
            returning = Return(report.copy, self._outflow, self._now, self._may_go_on)
            if not self._tasks.begin(self._bring_back, returning):
                return
            self._returns[report.copy] = returning
        if report.partition not in returning.busy:
            returning.reports[report.partition] = report
            returning.heard()

    def demanded(self, sender: Incarnation, rows: Iterable[Demanded]) -> None:
        """Take which pieces a copy wants next."""
        returning = self._returns.get(sender)
        if returning is not None:
            returning.demands(rows)

    def refused(self, request: int) -> None:
        """Hear that a change which was suggested is not made."""
        if request in self._asked:
            self._refused.add(request)

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self._topology = topology
        self.ways.decided(topology)
        for returning in self._returns.values():
            returning.heard()

    def unanswered(self, member: UUID) -> list[Any]:
        """Return the messages that a member has to get again over a new connection."""
        return [
            message
            for returning in self._returns.values()
            if returning.copy.member == member
            for message in returning.unanswered()
        ]

    def tick(self) -> None:
        """Let go of copies that follow the stream, and that nobody brings back any more."""
        now = self._now()
        if now < self._tidied_at + ASK_AGAIN_S:
            return
        self._tidied_at = now
        left: dict[Incarnation, list[int]] = {}
        for copies in self._topology.partitions:
            partition = copies.row.partition
            if not copies.moving or not self._partitions.is_open(partition):
                continue
            stream = self._streams.get(partition)
            behind = 0 if stream is None else stream.kept_bytes - stream.bytes
            for copy, _ in copies.moving:
                returning = self._returns.get(copy)
                busy = returning is not None and partition in returning.busy
                if not busy or (behind > BEHIND_BYTES_MAX and not self._counts(copy, partition)):
                    left.setdefault(copy, []).append(partition)
        for copy, partitions in left.items():
            self._withdraw(copy, partitions)

    # -------------------------------------------------------------- one copy

    def _may_return(self, copy: Incarnation, copies: PartitionCopies, epoch: int) -> bool:
        return (
            copies.epoch == epoch
            and copies.may_hold(copy.member)
            and copy in self._topology.present
            and not copies.has(copy.member)
            and self._partitions.is_open(copies.row.partition)
            and self._streams.get(copies.row.partition) is not None
            and self._log.failure is None
        )

    def _is_ahead(self, report: Report) -> bool:
        """Tell whether a copy has applied what is pending here, so that it has to wait.

        It knew that all groups had prepared, and nobody here does yet: that is asked for (T10).
        """
        pending = self._log.state.copies.pending.get(report.partition)
        ranges = [(start + 1, start + delta) for start, delta in report.ranges]
        applied = united([(1, report.lwm), *ranges])
        return pending is not None and any(has_run(applied, one.run) for one in pending.all())

    def _may_go_on(self, copy: Incarnation, place: ReturnPlace) -> bool:
        copies = self._topology.partitions[place.partition]
        return self._may_return(copy, copies, place.epoch)

    async def _bring_back(self, returning: Return) -> None:
        """Take what a copy reports, until it says nothing more."""
        try:
            while returning.reports or returning.pins:
                if not await returning.reported():
                    break
                await self._take_reports(returning)
        finally:
            del self._returns[returning.copy]
            for pin in returning.pins.values():
                self._files.keeper.pins.release(pin)

    async def _take_reports(self, returning: Return) -> None:
        copy = returning.copy
        reports = {
            partition: report
            for partition, report in sorted(returning.reports.items())
            if self._may_return(copy, self._topology.partitions[partition], report.epoch)
        }
        returning.reports = {}
        returning.busy = set(reports)
        try:
            reaches = await self._reaches(reports)
            choices = {p: self.ways.choice(report, reaches[p]) for p, report in reports.items()}
            known = {p: r for p, r in reports.items() if choices[p].kind is not SupplyKind.FULL}
            if known:
                await self._by_history(returning, known, reaches)
            full = [reports[partition] for partition in sorted(reports.keys() - known.keys())]
            count = self._filled_together(full)
            for report in full[count:]:  # behind what is reported meanwhile: that takes less
                returning.reports.setdefault(report.partition, report)
            for report in full[:count]:
                self.ways.explain(copy, report.partition, choices[report.partition])
            await self._fill(returning, full[:count])
        except (StoppedError, TidelogError, OSError) as error:
            log.info(
                "node.return_stopped: Tidelog: %s comes back later: %s",
                copy,
                error,
                extra={"event": "node.return_stopped"},
            )
        finally:
            returning.rest()
            for partition in [p for p in returning.pins if self._is_added(copy, p)]:
                self._files.keeper.pins.release(returning.pins.pop(partition))

    async def _reaches(self, reports: Mapping[int, Report]) -> dict[int, Reaches]:
        """Return whose logs have which numbers of some partitions.

        Others are asked only where the log of this member does not do.
        """
        mine = LogHolder(self._me)
        reaches: dict[int, Reaches] = {partition: [] for partition in reports}
        with suppress(CorruptLogError):  # then others may have what nobody can read here
            head = await self._files.environment.run("supply", lambda: oldest_state(self._wal))
            reaches = {p: [reach_of(head, p, mine)] for p in reports}
        asked: dict[Incarnation, list[OpenPlace]] = {}
        for partition, report in reports.items():
            if self.ways.choice(report, reaches[partition]).wants_log:
                for copy in self._topology.partitions[partition].in_sync:
                    if copy != self._me and copy in self._topology.present:
                        asked.setdefault(copy, []).append(OpenPlace(partition, report.epoch))
        if asked:
            others = await self.borrowing.reaches(asked)
            for partition, known in reaches.items():
                known += others.get(partition, [])
        return reaches

    # -------------------------------------------------------------- by history

    async def _by_history(
        self, returning: Return, reports: Mapping[int, Report], reaches: Mapping[int, Reaches]
    ) -> None:
        copy = returning.copy
        for partition in reports:
            if not self._topology.partitions[partition].opened:
                self._announce(partition)
        await self._until(
            lambda: all(self._topology.partitions[p].opened for p in reports),
            "nobody decides that its partitions are open",
        )
        before = self._topology.index
        change = CopiesAdmitted(copy=copy, partitions=tuple(reports))
        await self._decided(
            returning,
            change,
            lambda: all((self._admission(copy, p) or 0) > before for p in reports),
        )
        try:
            wanted = await self._admit(returning, reports, reaches)
            for supplier, rows in wanted.items():
                history = self._history_of(supplier, rows)
                await self._history.send(returning, rows, supplier, history)
            await self._join(
                returning, [place.partition for rows in wanted.values() for place in rows]
            )
        finally:
            left = [p for p in reports if not self._is_added(copy, p)]
            if left:
                self._withdraw(copy, left)

    def _admission(self, copy: Incarnation, partition: int) -> int | None:
        return self._topology.partitions[partition].admission(copy)

    def _is_added(self, copy: Incarnation, partition: int) -> bool:
        return copy in self._topology.partitions[partition].in_sync

    def _history_of(self, supplier: Incarnation, places: Iterable[ReturnPlace]) -> HistorySource:
        """Return what the log of a member has of some places."""
        if supplier == self._me:
            return self._own_history
        return self.borrowing.history(supplier, {one.partition: one.epoch for one in places})

    async def _admit(
        self, returning: Return, reports: Mapping[int, Report], reaches: Mapping[int, Reaches]
    ) -> LackedBySupplier:
        """Let a copy follow the streams; return what it lacks of what was before."""
        wanted: LackedBySupplier = {}
        done, waits = trio.Event(), True

        def admit() -> None:
            if waits:
                left, told = PENDING_BYTES_MAX, list[Admitted]()
                for partition, report in reports.items():
                    row = self._admitted(returning, report, reaches[partition], wanted, left)
                    if row is not None:
                        told.append(row)
                        left -= _bytes_of(row.pending, row.outcomes)
                if told:
                    for row in told:
                        returning.tell(admit_message([row]), [Demanded(row.place, 1)])
                    self._reached("admit.sent")
                done.set()

        self._log.put_barrier(admit)
        with trio.move_on_after(PATIENCE_S):
            await done.wait()
        waits = False
        if not wanted:
            raise StoppedError("what it has reported is not so any more")
        await returning.answered()
        return wanted

    def _admitted(
        self,
        returning: Return,
        report: Report,
        reaches: Reaches,
        wanted: LackedBySupplier,
        left: int,
    ) -> Admitted | None:
        """Fix the moment from which on a copy follows a stream; None if it cannot.

        ``left`` is how many bytes of what is pending may go with it.
        """
        partition, state, copy = report.partition, self._log.state, returning.copy
        admission = self._admission(copy, partition)
        copies = self._topology.partitions[partition]
        if admission is None or not self._may_return(copy, copies, report.epoch):
            return None
        choice = self.ways.choice(report, reaches)
        if choice.kind is SupplyKind.FULL:
            return None
        pending = state.copies.pending.get(partition)
        waiting = (
            []
            if pending is None
            else [
                one
                for one in pending.all()
                if isinstance(one, PrepareRecord)  # a member's own fold has no others
            ]
        )
        outcomes = state.copies.outcomes(partition)
        if _bytes_of(waiting, outcomes) > left:
            return None  # it would be no message, or more than may wait: soon less is pending
        self.ways.explain(copy, partition, choice)
        place = ReturnPlace(partition, copies.epoch, admission)
        table = state.epoch_tables[partition]
        supplier = self._me if choice.supplier is None else choice.supplier.copy
        wanted.setdefault(supplier, {})[place] = WantedNumbers(choice.missing, table)
        returning.expect(place)
        return Admitted(
            place=place,
            kind=choice.kind,
            begin=self._streams.admit(partition, copy, admission, self._now()),
            record=AdmitRecord(
                partition=partition,
                admission=admission,
                epochs=table,
                lwm=choice.lwm,
                ranges=tuple(choice.ranges),
                hwm=state.counters[partition].hwm,
                dropped=tuple(one.tx_id for one in report.pending),
            ),
            pending=tuple(waiting),
            outcomes=tuple(outcomes),
        )

    # -------------------------------------------------------------- into the set

    async def _join(self, returning: Return, partitions: list[int]) -> None:
        """Wait for a copy with every write from here on, and have it added to the sets (B8)."""
        copy = returning.copy
        joined: dict[int, int] = {}
        with trio.move_on_after(PATIENCE_S):
            while len(joined) < len(partitions):
                for partition in partitions:
                    if partition not in joined and self._is_near(copy, partition):
                        joined[partition] = self._streams.join(partition, copy)
                if len(joined) < len(partitions):
                    await trio.sleep(LOOK_S)
        if not joined:
            raise StoppedError("it stays behind what is written")
        self._reached("join.sent")
        await self._until(
            lambda: all(self._has_stored(copy, p, number) for p, number in joined.items()),
            "it does not store what is written",
        )
        self._reached("add.proposed")
        await self._decided(
            returning,
            CopiesAdded(copy=copy, partitions=tuple(joined)),
            lambda: all(self._is_added(copy, p) for p in joined),
        )
        self._reached("add.decided")

    def _follower(self, copy: Incarnation, partition: int) -> Follower:
        """Return how far a copy has a stream; ``StoppedError`` if it follows it no more."""
        stream = self._streams.get(partition)
        follower = None if stream is None else stream.followers.get(copy)
        if follower is None:
            raise StoppedError(f"it does not follow partition {partition} any more")
        return follower

    def _is_near(self, copy: Incarnation, partition: int) -> bool:
        """Tell whether a copy lacks little, and all others have what was before its admission."""
        stream, follower = self._streams.get(partition), self._follower(copy, partition)
        assert stream is not None
        others = (one.stored for one in stream.followers.values() if one.counts)
        return stream.end - follower.stored <= JOIN_ITEMS and all(
            stored >= follower.begun for stored in others
        )

    def _has_stored(self, copy: Incarnation, partition: int, number: int) -> bool:
        return self._follower(copy, partition).stored >= number

    def _counts(self, copy: Incarnation, partition: int) -> bool:
        stream = self._streams.get(partition)
        follower = None if stream is None else stream.followers.get(copy)
        return follower is not None and follower.counts

    def _withdraw(self, copy: Incarnation, partitions: Iterable[int]) -> None:
        """Have it decided that a copy comes back no more; who is waited for is until then (C6)."""
        shown = []
        for partition in partitions:
            stream = self._streams.get(partition)
            follower = None if stream is None else stream.followers.get(copy)
            if follower is not None and not follower.counts:
                self._streams.drop(partition, copy)
            if self._admission(copy, partition) is not None:
                shown.append(partition)
        if shown:
            change = CopiesRemoved(copy=copy, partitions=tuple(shown))
            self._decisions.suggest(change, self._guards(shown))

    def _guards(self, partitions: Iterable[int]) -> tuple[Guard, ...]:
        found = [self._topology.partitions[partition] for partition in partitions]
        return tuple(Guard(one.row.partition, one.epoch, one.changed) for one in found)

    # -------------------------------------------------------------- in full

    def _filled_together(self, reports: Sequence[Report]) -> int:
        """Return of how many of these partitions all there is is sent, one after the other."""
        pairs = {
            partition: mark.count for partition, mark in self._files.checkpointer.marks.items()
        }
        size = self._files.kv.size_used() / max(sum(pairs.values()), 1)
        together = 0.0
        for count, report in enumerate(reports[:FILLED_MAX]):
            together += pairs.get(report.partition, 0) * size
            if count and together > FILLED_BYTES:
                return count
        return min(len(reports), FILLED_MAX)

    async def _fill(self, returning: Return, reports: Iterable[Report]) -> None:
        """Send a copy all that there is in some partitions, one after the other."""
        places = [
            self._filling.new_place(report.partition, report.epoch, self._topology.index)
            for report in reports
            if self._may_return(
                returning.copy, self._topology.partitions[report.partition], report.epoch
            )
        ]
        await self._filling.begin(returning, places)
        for place in places:
            await self._filling.send(returning, place)
            self.ways.filled(returning.copy, place.partition)
            returning.busy.discard(place.partition)  # what it reports now it reports behind that
        await returning.answered()

    # -------------------------------------------------------------- waiting

    async def _decided(
        self, returning: Return, change: CopiesAdmitted | CopiesAdded, done: Callable[[], bool]
    ) -> None:
        """Have a change decided, and wait until it has taken effect here."""
        request = self._decisions.suggest(change, self._guards(change.partitions))
        self._asked.add(request)
        try:
            with trio.move_on_after(PATIENCE_S):
                while not done():
                    if request in self._refused:
                        raise StoppedError("the sets have changed meanwhile")
                    await trio.sleep(LOOK_S)
                return
            raise StoppedError("nobody decides that it comes back")
        finally:
            self._asked.discard(request)
            self._refused.discard(request)

    async def _until(self, true: Callable[[], bool], otherwise: str) -> None:
        with trio.move_on_after(PATIENCE_S):
            while not true():
                await trio.sleep(LOOK_S)
            return
        raise StoppedError(otherwise)


def _bytes_of(pending: Iterable[PrepareRecord], outcomes: Iterable[Record]) -> int:
    """Return how many bytes what is pending has in an admission, and what is remembered."""
    return sum(map(record_bytes, pending)) + sum(len(encode_record(one)) for one in outcomes)
