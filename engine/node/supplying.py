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
- Of what is sent at most ``PIECE_BYTES`` and one record, or two pieces of a full copy, wait for an
  answer, per copy.
- The log is pinned from before it is searched; a full copy's until it follows the stream.

Left out: what the copy does (``catching_up``), and which kind it is (``rebalance.choosing``).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import trio

from ...affinity.changes import CopiesAdded, CopiesAdmitted, CopiesRemoved, TopologyChange
from ...affinity.errors import CorruptLogError, SnapshotExpiredError, TidelogError
from ...affinity.topology import Incarnation, PartitionCopies, Topology
from ...checkpoints.copies import CopyState
from ...checkpoints.supplying import FoundNumbers, WantedNumbers
from ...rebalance.choosing import (
    ShownByCopy,
    ShownByPrimary,
    SupplyChoice,
    SupplyKind,
    choose,
)
from ...tx.counter import PartitionUpdateCounter
from ...tx.numbers import run_numbers
from ...wal.history import oldest_state
from ...wal.records import AdmitRecord, PrepareRecord, StateRecord, SuppliedRecord
from ..agreement.messages import Guard
from ..files.pins import Pin
from ..replication.reports import Report
from ..replication.returning import (
    Admitted,
    Demanded,
    FillPiece,
    ReturnPlace,
    SupplyPiece,
    admit_message,
    fill_message,
    supply_message,
)
from ..replication.streams import Follower, Streams
from ..store.partition_cuts import cut_partition
from ..store.store_files import StoreFiles
from .log import NodeLog, record_bytes
from .outflow import Outflow
from .partitions import Partitions
from .supply_log import PIN_BYTES_MAX, SearchedLog, begun, reach_of

PIECE_BYTES = 512 << 10
"""Bytes of keys and values from which on the rest goes with the next piece."""
FILL_BYTES, FILL_ROWS = 4 << 20, 16_384
"""The same of pairs of a full copy, of which the next piece is sent before this one is stored."""
PATIENCE_S = 5.0
"""Seconds without a word of a copy, or of the coordinator, after which its return begins anew."""
LOOK_S = 0.02
JOIN_ITEMS = 64
"""Items that a copy may lack of the stream when it joins: writes wait for these."""
BEHIND_BYTES_MAX = 64 << 20
"""Bytes of items that are kept for copies that are not waited for."""
ASK_AGAIN_S = 0.5
PENDING_BYTES_MAX = 48 << 20
"""Bytes of pending transactions that go with an admission."""
PENDING_BYTES = 64 << 20
"""Bytes of log before an instant in which the PREPARE of everything pending then is looked for."""

EXPLAINED_MAX = 8

log = logging.getLogger("tidelog.node")


class Suggestions(Protocol):
    """Who has changes decided."""

    def suggest(self, change: TopologyChange, guards: tuple[Guard, ...] = ()) -> int:
        """Ask for a change once; return the number of the request."""


class ReturnExplained(NamedTuple):
    """How a copy came back, or began to, and when."""

    copy: Incarnation
    at: float
    choice: SupplyChoice[str]


class _StoppedError(Exception):
    """A return cannot go on, and begins anew when the copy reports again."""


class _Return:
    """A copy that comes back."""

    def __init__(self, copy: Incarnation) -> None:
        self.copy = copy
        self.reports: dict[int, Report] = {}
        """What it has reported and nobody has looked at."""
        self.busy: set[int] = set()
        """The partitions in which it is coming back."""
        self.demanded: dict[ReturnPlace, int] = {}
        self.sent: list[Any] = []
        """The last messages, which it may not have answered."""
        self.heard_at = 0.0
        """When it last demanded something."""
        self.pins: dict[int, Pin] = {}
        """What holds the log for a partition whose pairs it has got."""
        self.news = trio.Event()

    def heard(self) -> None:
        self.news.set()
        self.news = trio.Event()


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
        self._returns: dict[Incarnation, _Return] = {}
        self._refused: set[int] = set()
        self._asked: set[int] = set()
        self._without_history: set[tuple[Incarnation, int]] = set()
        """Copies, with a partition of which the log has not what it was thought to have."""
        self._last_fill = 0
        self._tidied_at = float("-inf")
        self._nursery: trio.Nursery | None = None
        self.explained: dict[int, deque[ReturnExplained]] = {}
        """How copies came back lately, and why, by partition; the newest last."""

    def __repr__(self) -> str:
        return f"<Supplies of {self._me}: {len(self._returns)} copies come back>"

    async def run(self) -> None:
        """Bring copies back, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    # -------------------------------------------------------------- what is heard

    def reported(self, report: Report) -> None:
        """Take what a copy has that is not of a set: it wants to come back."""
        if report.partition >= len(self._topology.partitions):
            return
        copies = self._topology.partitions[report.partition]
        if self._nursery is None or not self._may_return(report.copy, copies, report.epoch):
            return
        returning = self._returns.get(report.copy)
        if returning is None:
            returning = self._returns[report.copy] = _Return(report.copy)
            self._nursery.start_soon(self._bring_back, returning)
        if report.partition not in returning.busy:
            returning.reports[report.partition] = report
            returning.heard()

    def demanded(self, sender: Incarnation, rows: Iterable[Demanded]) -> None:
        """Take which pieces a copy wants next."""
        returning = self._returns.get(sender)
        if returning is not None:
            for place, number in rows:
                known = returning.demanded.get(place)
                if known is not None:
                    returning.demanded[place] = max(known, number)
                    if number > known or not number:  # 0: it is busy with clearing
                        returning.heard_at = self._now()
            returning.heard()

    def refused(self, request: int) -> None:
        """Hear that a change which was suggested is not made."""
        if request in self._asked:
            self._refused.add(request)

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self._topology = topology
        self._without_history = {row for row in self._without_history if row[0] in topology.present}
        for returning in self._returns.values():
            returning.heard()

    def unanswered(self, member: UUID) -> list[Any]:
        """Return the messages that a member has to get again over a new connection."""
        return [
            message
            for returning in self._returns.values()
            if returning.copy.member == member
            for message in returning.sent
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

    async def _bring_back(self, returning: _Return) -> None:
        """Take what a copy reports, until it says nothing more."""
        try:
            while returning.reports or returning.pins:
                if not returning.reports:
                    with trio.move_on_after(PATIENCE_S):
                        while not returning.reports:
                            await returning.news.wait()
                    if not returning.reports:
                        break
                await self._take_reports(returning)
        finally:
            del self._returns[returning.copy]
            for pin in returning.pins.values():
                self._files.keeper.pins.release(pin)

    async def _take_reports(self, returning: _Return) -> None:
        copy = returning.copy
        reports = {
            partition: report
            for partition, report in sorted(returning.reports.items())
            if self._may_return(copy, self._topology.partitions[partition], report.epoch)
        }
        returning.reports = {}
        returning.busy = set(reports)
        try:
            head = await self._files.environment.run("supply", lambda: oldest_state(self._wal))
            choices = {p: self._choice(report, head) for p, report in reports.items()}
            known = {p: r for p, r in reports.items() if choices[p].kind is not SupplyKind.FULL}
            if known:
                await self._by_history(returning, known, head)
            filled = sorted(reports.keys() - known.keys())
            for partition in filled[1:]:  # behind what is reported meanwhile, and takes less
                returning.reports.setdefault(partition, reports[partition])
            for partition in filled[:1]:
                self._explain(copy, partition, choices[partition])
                await self._fill(returning, reports[partition])
        except (_StoppedError, TidelogError, OSError) as error:
            log.info(
                "node.return_stopped: Tidelog: %s comes back later: %s",
                copy,
                error,
                extra={"event": "node.return_stopped"},
            )
        finally:
            returning.busy, returning.sent = set(), []
            returning.demanded.clear()
            for partition in [p for p in returning.pins if self._is_added(copy, p)]:
                self._files.keeper.pins.release(returning.pins.pop(partition))

    def _choice(self, report: Report, head: StateRecord) -> SupplyChoice[str]:
        """Return how a copy comes back to a partition as that is now."""
        partition, state = report.partition, self._log.state
        counter, pending = state.counters[partition], state.copies.pending.get(partition)
        found: SupplyChoice[str] = choose(
            ShownByCopy(
                whole=report.state in (CopyState.OWNING, CopyState.MOVING),
                opened=report.epochs[-1][0],
                epochs=report.epochs,
                lwm=report.lwm,
                ranges=report.ranges,
                data_to=PartitionUpdateCounter(report.lwm, report.ranges).highest_applied,
            ),
            ShownByPrimary(
                epoch=state.epochs[partition],
                epochs=state.epoch_tables[partition],
                top=counter.hwm,
                pending=[run_numbers(one.run) for one in pending.all()] if pending else (),
            ),
            []
            if (report.copy, partition) in self._without_history
            else [reach_of(head, partition, str(self._me.member)[:8])],
        )
        return found

    def _explain(self, copy: Incarnation, partition: int, choice: SupplyChoice[str]) -> None:
        known = self.explained.setdefault(partition, deque(maxlen=EXPLAINED_MAX))
        known.append(ReturnExplained(copy, self._now(), choice))

    def told(self, partition: int) -> list[list[object]]:
        """Return how copies came back to a partition, as ``partition`` tells clients."""
        return [
            [
                copy.member.bytes,
                copy.boot,
                max(int((self._now() - at) * 1e6), 0),
                choice.kind.value,
                sum(last - first + 1 for first, last in choice.missing),
                choice.reason,
                choice.instead,
            ]
            for copy, at, choice in self.explained.get(partition, ())
        ]

    # -------------------------------------------------------------- by history

    async def _by_history(
        self, returning: _Return, reports: Mapping[int, Report], head: StateRecord
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
            wanted = await self._admit(returning, reports, head)
            await self._supply(returning, wanted)
            await self._join(returning, [place.partition for place in wanted])
        finally:
            left = [p for p in reports if not self._is_added(copy, p)]
            if left:
                self._withdraw(copy, left)

    def _admission(self, copy: Incarnation, partition: int) -> int | None:
        return self._topology.partitions[partition].admission(copy)

    def _is_added(self, copy: Incarnation, partition: int) -> bool:
        return copy in self._topology.partitions[partition].in_sync

    async def _admit(
        self, returning: _Return, reports: Mapping[int, Report], head: StateRecord
    ) -> dict[ReturnPlace, WantedNumbers]:
        """Let a copy follow the streams; return what it lacks of what was before."""
        wanted: dict[ReturnPlace, WantedNumbers] = {}
        copy = returning.copy.member
        done, waits = trio.Event(), True

        def admit() -> None:
            if waits:
                rows = [
                    self._admitted(returning, report, head, wanted) for report in reports.values()
                ]
                told = [row for row in rows if row is not None]
                if told:
                    returning.sent = [admit_message([row]) for row in told]
                    for message in returning.sent:
                        self._outflow.tell(copy, message)
                    self._reached("admit.sent")
                done.set()

        self._log.put_barrier(admit)
        with trio.move_on_after(PATIENCE_S):
            await done.wait()
        waits = False
        if not wanted:
            raise _StoppedError("what it has reported is not so any more")
        await self._answered(returning, dict.fromkeys(wanted, 1))
        return wanted

    def _admitted(
        self,
        returning: _Return,
        report: Report,
        head: StateRecord,
        wanted: dict[ReturnPlace, WantedNumbers],
    ) -> Admitted | None:
        """Fix the moment from which on a copy follows a stream; None if it cannot."""
        partition, state, copy = report.partition, self._log.state, returning.copy
        admission = self._admission(copy, partition)
        copies = self._topology.partitions[partition]
        if admission is None or not self._may_return(copy, copies, report.epoch):
            return None
        choice = self._choice(report, head)
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
        if sum(map(record_bytes, waiting)) > PENDING_BYTES_MAX:
            return None  # it would be no message: soon less is pending
        self._explain(copy, partition, choice)
        place = ReturnPlace(partition, copies.epoch, admission)
        table = state.epoch_tables[partition]
        wanted[place] = WantedNumbers(choice.missing, table)
        returning.demanded[place] = 0
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
        )

    async def _supply(
        self, returning: _Return, wanted: Mapping[ReturnPlace, WantedNumbers]
    ) -> None:
        """Send what the log has of what is missing, piece by piece."""
        left = {place.partition: place for place, row in wanted.items() if row.missing}
        if not left:
            return
        run, keeper = self._files.environment.run, self._files.keeper
        # What has committed by now is told in the log, and that is durable, up to here.
        with trio.move_on_after(PATIENCE_S):
            await self._log.told()
        upto = self._log.position
        sought = {place.partition: wanted[place] for place in left.values()}
        owner = f"copy {returning.copy}"
        try:
            searched, pin = await run("supply", lambda: begun(keeper, owner, sought, upto))
            try:
                await self._supply_from(returning, searched, left)
            finally:
                keeper.pins.release(pin)
        except CorruptLogError as error:
            # Damage, or something that began before the first segment that is needed.
            self._without_history.update((returning.copy, partition) for partition in sought)
            raise _StoppedError(f"the log does not tell what is missing: {error}") from None

    async def _supply_from(
        self, returning: _Return, searched: SearchedLog, left: dict[int, ReturnPlace]
    ) -> None:
        number, more = 0, True
        numbers = dict.fromkeys(left.values(), 0)
        while left:
            more = await self._files.environment.run("supply", lambda: searched.read(PIECE_BYTES))
            pieces: list[SupplyPiece] = []
            for partition, found in searched.search.take_out().items():
                place = left.get(partition)
                if place is None:
                    continue
                self._check_found(returning, partition, found, more)
                last = not found.not_yet
                if not (last or found.transactions or found.closed):
                    continue
                numbers[place] += 1
                pieces.append(self._piece(place, numbers[place], last, found))
                if last:
                    del left[partition]
            if not pieces:
                continue
            self._tell(returning, supply_message(pieces))
            number += 1
            self._reached("supply.first" if number == 1 else "supply.middle")
            if not left:
                self._reached("supply.last")
            await self._answered(returning, {one.place: one.number + 1 for one in pieces})

    def _check_found(
        self, returning: _Return, partition: int, found: FoundNumbers, more: bool
    ) -> None:
        """Raise if the log does not have what is missing; it is copied in full then (B5)."""
        if found.lacking or (found.not_yet and not more):
            self._without_history.add((returning.copy, partition))
            raise _StoppedError(f"the log lacks numbers of partition {partition}")

    def _piece(
        self, place: ReturnPlace, number: int, last: bool, found: FoundNumbers
    ) -> SupplyPiece:
        record = SuppliedRecord(
            partition=place.partition,
            admission=place.admission,
            source=self._me.member.bytes,
            transactions=tuple(found.transactions),
            closed=tuple(found.closed),
        )
        return SupplyPiece(place, number, last, record)

    # -------------------------------------------------------------- into the set

    async def _join(self, returning: _Return, partitions: list[int]) -> None:
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
            raise _StoppedError("it stays behind what is written")
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
        """Return how far a copy has a stream; ``_StoppedError`` if it follows it no more."""
        stream = self._streams.get(partition)
        follower = None if stream is None else stream.followers.get(copy)
        if follower is None:
            raise _StoppedError(f"it does not follow partition {partition} any more")
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

    async def _fill(self, returning: _Return, report: Report) -> None:
        """Send all that there is in a partition, as it is at some moment."""
        partition, copy = report.partition, returning.copy
        copies = self._topology.partitions[partition]
        if not self._may_return(copy, copies, report.epoch):
            return
        self._last_fill = max(self._last_fill + 1, self._topology.index)
        place = ReturnPlace(partition, copies.epoch, self._last_fill)
        returning.demanded[place] = -1
        pins, keeper = self._files.keeper.pins, self._files.keeper
        first = max(keeper.first_position, self._log.position - PENDING_BYTES)
        old = returning.pins.pop(partition, None)
        returning.pins[partition] = pins.set(f"copy {copy}", first, limit=PIN_BYTES_MAX)
        if old is not None:
            pins.release(old)
        self._tell(returning, admit_message([Admitted(place=place, kind=SupplyKind.FULL)]))
        self._reached("admit.sent")
        await self._answered(returning, {place: 1})
        cut = cut_partition(self._files, self._log, partition)
        state = cut.state
        counter = PartitionUpdateCounter.from_bytes(state.counter)
        number = 0
        try:
            blocks = cut.blocks(rows=FILL_ROWS, most_bytes=FILL_BYTES)
            after: bytes | None = None
            while True:
                try:
                    block = await self._files.environment.run("supply", partial(next, blocks, []))
                except SnapshotExpiredError:
                    # What is newer than ``state`` comes by history, and may be there before.
                    cut = cut_partition(self._files, self._log, partition)
                    blocks = cut.blocks(after, rows=FILL_ROWS, most_bytes=FILL_BYTES)
                    continue
                number += 1
                record = None
                if not block:
                    record = AdmitRecord(
                        partition=partition,
                        admission=place.admission,
                        epochs=state.epochs,
                        lwm=counter.lwm,
                        ranges=tuple(counter.out_of_order),
                        hwm=counter.hwm,
                        dropped=(),
                    )
                else:
                    after = block[-1][0]
                keys, values = [key for key, _ in block], [value for _, value in block]
                self._tell(returning, fill_message(FillPiece(place, number, keys, values, record)))
                self._reached("supply.first" if number == 1 else "supply.middle")
                if record is not None:
                    self._reached("supply.last")
                await self._answered(returning, {place: number + (record is not None)})
                if record is not None:
                    self._without_history.discard((copy, partition))
                    return
        finally:
            cut.close()

    # -------------------------------------------------------------- waiting

    def _tell(self, returning: _Return, message: Any) -> None:
        returning.sent = [*returning.sent[-1:], message]
        self._outflow.tell(returning.copy.member, message)

    async def _answered(self, returning: _Return, wanted: Mapping[ReturnPlace, int]) -> None:
        """Wait until a copy demands these pieces."""
        returning.heard_at = self._now()
        while any(returning.demanded[place] < number for place, number in wanted.items()):
            for place in wanted:
                copies = self._topology.partitions[place.partition]
                if not self._may_return(returning.copy, copies, place.epoch):
                    raise _StoppedError(f"partition {place.partition} has changed")
            if self._now() > returning.heard_at + PATIENCE_S:
                raise _StoppedError("it says nothing any more")
            with trio.move_on_after(PATIENCE_S):
                await returning.news.wait()

    async def _decided(
        self, returning: _Return, change: CopiesAdmitted | CopiesAdded, done: Callable[[], bool]
    ) -> None:
        """Have a change decided, and wait until it has taken effect here."""
        request = self._decisions.suggest(change, self._guards(change.partitions))
        self._asked.add(request)
        try:
            with trio.move_on_after(PATIENCE_S):
                while not done():
                    if request in self._refused:
                        raise _StoppedError("the sets have changed meanwhile")
                    await trio.sleep(LOOK_S)
                return
            raise _StoppedError("nobody decides that it comes back")
        finally:
            self._asked.discard(request)
            self._refused.discard(request)

    async def _until(self, true: Callable[[], bool], otherwise: str) -> None:
        with trio.move_on_after(PATIENCE_S):
            while not true():
                await trio.sleep(LOOK_S)
            return
        raise _StoppedError(otherwise)
