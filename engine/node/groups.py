"""The replica groups that a member is in: takeovers, streams, and what copies answer.

    decided -> seal -> sync of all before -> report -> list -> stored -> OPEN -> serve

One object for all partitions, since what is said about them travels together: one message for a
peer and a wake-up, one frame for all lists.

Invariants:

- A report is made behind everything that was queued before the seal, and behind a sync (K3).  What
  has committed here by then is in the log, too: else a restart would have it pending again, when
  the list that follows has nothing to say of it.
- What a member knows more decisions than this one has told waits until they have taken effect here.
- A client's commit is answered once its PREPARE is everywhere; if its epoch ends before, nobody
  knows, and the client asks the new primary (T15, T7).

Left out: decisions (``agreement``), what a list says (``replication.merging``), and reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from ...affinity.changes import CopiesRemoved, EpochsOpened, MemberGone, Takeover
from ...affinity.topology import Incarnation, PartitionCopies, Topology
from ...wal.records import (
    CommitUptoRecord,
    Opened,
    OpenRecord,
    Record,
    SettleRecord,
    Upto,
)
from ..agreement.coordinator import GIVE_IT_UP
from ..agreement.messages import Guard
from ..net.connection import Connection
from ..net.frames import Message
from ..net.kinds import BY_NUMBER
from ..replication.following import Following
from ..replication.merging import MergeError, merged
from ..replication.opening import OpeningEpoch, Phase
from ..replication.reports import (
    Acknowledged,
    Report,
    epochs_of,
    report_message,
    report_of,
    reports_of,
    settle_message,
    settle_stored_message,
    settles_of,
)
from ..replication.returning import (
    admitted_of,
    demand_message,
    demanded_of,
    fill_of,
    supply_pieces_of,
)
from ..replication.stream import (
    Item,
    StoredUpto,
    replicated_of,
    stored_message,
    stored_of,
)
from ..replication.streams import Streams
from .arrivals import ArrivedItems
from .catching_up import CatchingUp
from .disk_watch import SLOW_S, DiskWatch
from .emptying import Emptying
from .exchanges import ExchangeRecord
from .leftovers import Leftovers
from .lending import Lending
from .log import Haste, NodeLog
from .outflow import Outflow
from .partitions import Partitions
from .supplying import Suggestions, Supplies
from .transactions import Transactions
from .views import row_members

REPLICA_TIMEOUT_S = 5.0
"""Seconds in which a copy has to answer before the set goes on without it (I3)."""
ASK_AGAIN_S = 0.5
EARLY_MAX = 4096
"""Messages of one connection that wait for decisions; with more than that it ends."""

log = logging.getLogger("tidelog.node")


class Decisions(Suggestions, Protocol):
    """Who has changes decided, and lets go of what this member serves."""

    @property
    def is_led(self) -> bool:
        """Whether somebody is known to lead, who hears what is suggested."""

    def release(self, partitions: list[int], target: UUID | None = None) -> None:
        """Serve some partitions no more in their epochs; ``target`` shall, if it is listed."""


class Readers(Protocol):
    """What answers reads from the copies that are here."""

    @property
    def waits(self) -> bool:
        """Whether a read waits for what is pending."""

    def arrived(self, sender: Incarnation, message: Message) -> None:
        """Take what another member says about reads."""

    def applied(self) -> None:
        """Hear that something of a stream has taken effect here."""


class _Early(NamedTuple):
    connection: Connection
    message: Message
    decided: int


class ReplicaGroups:
    """What one incarnation is to the other copies of its partitions."""

    def __init__(
        self,
        me: Incarnation,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        outflow: Outflow,
        decisions: Decisions,
        now: Callable[[], float],
        reached: Callable[[str], None],
        followed: dict[int, Following],
        exchanges: ExchangeRecord,
    ) -> None:
        """``followed`` is where the streams stand that this member follows, by partition."""
        self._me = me
        self._log = log
        self._partitions = partitions
        self._streams = streams
        self._outflow = outflow
        self._decisions = decisions
        self._now = now
        self._reached = reached
        self._seen: tuple[PartitionCopies, ...] = ()
        self._topology = Topology()
        self._takeovers: dict[int, OpeningEpoch] = {}
        self._following = followed
        self._exchanges = exchanges
        self._reports: dict[int, Report] = {}
        self._acknowledged: dict[int, tuple[Acknowledged, ...]] = {}
        self._unannounced: dict[int, int] = {}
        self._announced_at = float("-inf")
        self._untold: list[Upto] = []
        """What has committed in epochs that are over, and the log does not say so yet."""
        self._unreported: list[PartitionCopies] = []
        """Partitions whose report waits for that."""
        self._accused: dict[int, list[int]] = {}
        self._accused_at = float("-inf")
        self._disk = DiskWatch(log)
        self._given_up_at = float("-inf")
        self._disk_hangs = False
        self._early: list[_Early] = []
        self.readers: Readers
        self.supplies: Supplies
        self.catching_up: CatchingUp
        self.lending: Lending
        self.leftovers: Leftovers
        self.emptying: Emptying
        self.transactions: Transactions
        """Set before anything arrives."""

    def __repr__(self) -> str:
        return (
            f"<ReplicaGroups of {self._me}: {len(self._takeovers)} to open, "
            f"{len(self._following)} followed, {self._streams}>"
        )

    # -------------------------------------------------------------- what is shown

    def blocked(self) -> list[list[object]]:
        """Return which partitions are not open here yet: partition, phase, who is waited for."""
        return [
            [partition, takeover.phase, [copy.member.bytes for copy in takeover.waits_for()]]
            for partition, takeover in sorted(self._takeovers.items())
        ]

    def lagging(self) -> list[list[object]]:
        """Return which copies lack something: partition, member, how many items, since when.

        That is in microseconds, from when the copy last had everything or stored something.
        """
        now = self._now()
        return [
            [
                stream.partition,
                copy.member.bytes,
                stream.end - follower.stored,
                max(int((now - follower.waited_since) * 1e6), 0),
            ]
            for stream in self._streams
            for copy, follower in stream.followers.items()
            if follower.stored < stream.end
        ]

    def story(self, partition: int) -> dict[str, object]:
        """Return all that this member knows of a partition."""
        copies, state = self._topology.partitions[partition], self._log.state
        counter, pending = state.counters[partition], state.copies.pending.get(partition)
        stream = self._streams.get(partition)
        takeover, following = self._takeovers.get(partition), self._following.get(partition)
        return {
            "partition": partition,
            "decided": self._topology.index,
            "row": row_members([copies])[0],
            "epoch": copies.epoch,
            "author": [copies.author.member.bytes, copies.author.boot],
            "in_sync": [[copy.member.bytes, copy.boot] for copy in copies.in_sync],
            "opened": copies.opened,
            "changed": copies.changed,
            "here": "author" if copies.author == self._me else "copy" if following else "none",
            "open_here": self._partitions.is_open(partition),
            "phase": None if takeover is None else takeover.phase,
            "waits_for": []
            if takeover is None
            else [copy.member.bytes for copy in takeover.waits_for()],
            "whole": state.copies.is_whole(partition),
            "lwm": counter.lwm,
            "hwm": counter.hwm,
            "ranges": [list(row) for row in counter.out_of_order],
            "epochs": [list(row) for row in state.epoch_tables[partition]],
            "pending": [] if pending is None else [one.tx_id for one in pending.all()],
            "stream": None if stream is None else [stream.end, stream.own, stream.everywhere],
            "followers": []
            if stream is None
            else [[copy.member.bytes, one.stored] for copy, one in stream.followers.items()],
            "followed": None if following is None else [following.taken, following.durable],
            "listed": following is not None and following.listed,
            "moving": [
                [copy.member.bytes, copy.boot, admission] for copy, admission in copies.moving
            ],
            "returns": self.supplies.ways.told(partition),
        }

    # -------------------------------------------------------------- what reads of copies ask

    def lists(self, copy: Incarnation, partition: int) -> bool:
        """Tell whether a copy is of the in-sync set of a partition."""
        return copy in self._topology.partitions[partition].in_sync

    def following(self, partition: int) -> Following | None:
        """Return the place of this copy in a stream, whatever it counts for."""
        return self._following.get(partition)

    def followed(self, partition: int) -> Following | None:
        """Return what this copy follows, if it is of the set, in an epoch that is open here."""
        following = self._following.get(partition)
        if following is None or self._log.state.epochs[partition] != following.epoch:
            return None
        is_whole = self._log.state.copies.is_whole(partition)
        return following if is_whole and self.lists(self._me, partition) else None

    # -------------------------------------------------------------- what is decided

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here: seals, and sets that shrank."""
        older, before, self._seen = self._topology, self._seen, topology.partitions
        self._topology = topology
        sealed: list[PartitionCopies] = []
        for partition, copies in enumerate(topology.partitions):
            known = before[partition] if partition < len(before) else None
            if copies is known:
                continue
            if known is None or copies.epoch != known.epoch:
                self._seal(copies)
                if self._me in copies.in_sync:
                    sealed.append(copies)
            elif (copies.in_sync, copies.moving) != (known.in_sync, known.moving):
                self._keep(partition, copies)
            if copies.opened:
                self._unannounced.pop(partition, None)
            elif copies.goal:
                self.announce(partition)  # nobody may be to come whose asking would tell it
        self.supplies.decided(topology)
        self.catching_up.decided(older, topology)
        self.leftovers.decided(older, topology)
        self.emptying.decided(topology)
        if sealed:
            self._tell_and_report(sealed)
        self.transactions.decided(topology)
        self._log.decide()
        early, self._early = self._early, []
        for one in early:
            if one.connection.up:
                self._arrived(one.connection, one.message, one.decided)

    def _keep(self, partition: int, copies: PartitionCopies) -> None:
        """Wait for nobody more who is neither in the set nor catching up."""
        stream = self._streams.get(partition)
        if stream is not None:
            moving = [
                copy
                for copy, admission in copies.moving
                if copy in stream.followers and stream.followers[copy].admission == admission
            ]
            self._streams.keep(partition, [*copies.in_sync, *moving])

    def announce(self, partition: int) -> None:
        """Let the log know that a partition is open: somebody wants to come back to it."""
        if self._partitions.is_open(partition):
            self._unannounced[partition] = self._topology.partitions[partition].epoch

    def _seal(self, copies: PartitionCopies) -> None:
        """Drop what belongs to an older epoch, and begin what the new one needs (K2)."""
        partition = copies.row.partition
        stream = self._streams.close(partition)
        if stream is not None:
            self._acknowledged[partition] = stream.acknowledged()
            if stream.untold is not None:
                self._untold.append(stream.untold)
                self._log.unsaid.add(partition)
            self._log.forsake(stream)
        self.transactions.sealed(partition)
        for known in (self._following, self._takeovers, self._reports, self._unannounced):
            known.pop(partition, None)
        if self._me not in copies.in_sync:
            return
        if copies.author == self._me:
            takeover = self._takeovers[partition] = OpeningEpoch(copies, self._now())
            self._exchanges.begun(takeover)
        else:
            self._following[partition] = Following(partition, copies.epoch, copies.author)

    # -------------------------------------------------------------- reports

    def _tell_and_report(self, sealed: Sequence[PartitionCopies]) -> None:
        """Report on partitions once the log says what has committed in their older epochs."""
        told, self._untold = self._untold, []
        sealed, self._unreported = [*self._unreported, *sealed], []
        if told:
            self._log.put_records(
                [CommitUptoRecord(rows=tuple(told))],
                partial(self._told, told, sealed),
                partial(self._not_told, told, sealed),
            )
        else:
            self._log.put_barrier(partial(self._report, sealed))

    def _told(self, told: list[Upto], sealed: list[PartitionCopies]) -> None:
        self._log.unsaid.difference_update(
            {row.partition for row in told} - {row.partition for row in self._untold}
        )
        self._log.put_barrier(partial(self._report, sealed))

    def _not_told(self, told: list[Upto], sealed: list[PartitionCopies]) -> None:
        """Try again soon: the disk may have had no space."""
        self._untold += told
        self._unreported += sealed

    def _report(self, sealed: Sequence[PartitionCopies]) -> None:
        """Tell the authors what the log has; behind a sync of all that was queued before."""
        self._reached("takeover.after_seal")
        told: dict[UUID, list[Report]] = {}
        for copies in sealed:
            partition = copies.row.partition
            if self._topology.partitions[partition].epoch != copies.epoch:
                continue  # sealed again meanwhile: another report is on its way
            if copies.author == self._me and self.emptying.empties(partition):
                self._unreported.append(copies)
                continue
            report = report_of(
                self._log.state,
                partition,
                copy=self._me,
                epoch=copies.epoch,
                acknowledged=self._acknowledged.get(partition, ()),
            )
            if copies.author == self._me:
                self._takeovers[partition].reported(report)
            else:
                self._reports[partition] = report
                told.setdefault(copies.author.member, []).append(report)
        for author, reports in told.items():
            self._outflow.tell(author, report_message(reports))
        if told:
            self._reached("takeover.after_report")
        self._list()

    def _take_reports(self, sender: Incarnation, message: Message) -> None:
        for report in reports_of(message, sender):
            takeover = self._takeovers.get(report.partition)
            if takeover is None:
                self.supplies.reported(report)
            elif takeover.epoch == report.epoch:
                takeover.reported(report)
        self._list()

    def _through(self, phase: Phase) -> list[OpeningEpoch]:
        """Return the takeovers in a phase in which nobody is waited for any more."""
        takeovers = self._takeovers.values()
        return [one for one in takeovers if one.phase == phase and not one.waits_for()]

    # -------------------------------------------------------------- lists

    def _list(self) -> None:
        """Make the lists of all partitions whose reports are there, and let them be logged."""
        records: list[Record] = []
        alone: list[OpeningEpoch] = []
        shared: list[OpeningEpoch] = []
        for takeover in self._through("reports"):
            try:
                found = merged(takeover.partition, takeover.epoch, takeover.reports())
            except MergeError as error:
                takeover.enter("stuck", self._now())
                self._tell_of_lack(str(error))
                continue
            if found.lacking:
                takeover.enter("stuck", self._now())
                self._leave_out(takeover, found.lacking)
                continue
            takeover.settle = found.settle
            takeover.enter("logging", self._now())
            records.append(found.settle)
            (shared if takeover.others else alone).append(takeover)
        if alone:
            records.append(OpenRecord(rows=tuple(Opened(t.partition, t.epoch) for t in alone)))
        if records:
            self._log.put_records(
                records,
                partial(self._listed, alone, shared),
                partial(self._not_logged, [*alone, *shared], "reports"),
            )

    def _leave_out(self, takeover: OpeningEpoch, lacking: Mapping[Incarnation, str]) -> None:
        """Ask for an epoch without copies that lack what they must have (I6).

        An author that lacks it lets a copy go on that does not.
        """
        takeover.left_out = frozenset(lacking)
        for copy, what in lacking.items():
            self._tell_of_lack(f"partition {takeover.partition}: {copy} lacks {what}")
        whole = [copy for copy in takeover.copies.in_sync if copy not in lacking]
        if self._me not in lacking:
            self._begin_without(takeover, takeover.left_out)
        elif whole:
            self._decisions.release([takeover.partition], whole[0].member)

    def _tell_of_lack(self, what: str) -> None:
        log.error(
            "node.copy_lacks: Tidelog: copies of the store %s are not equal; one is left out, or "
            "its partition stays closed: %s",
            self._log.path,
            what,
            extra={"event": "node.copy_lacks"},
        )

    def _begin_without(self, takeover: OpeningEpoch, left_out: Collection[Incarnation]) -> None:
        """Ask for a new epoch, with the copies of the set that there are but for some."""
        copies = self._topology.partitions[takeover.partition]
        kept = tuple(
            copy
            for copy in copies.in_sync
            if copy not in left_out and self._topology.is_present(copy)
        )
        if not kept or not left_out:
            return
        change = Takeover(
            partition=copies.row.partition,
            epoch=copies.epoch + 1,
            author=copies.author if copies.author in kept else kept[0],
            in_sync=kept,
        )
        request = self._decisions.suggest(change, (self._guard(copies),))
        self._accused[request] = [takeover.partition]

    def _not_logged(self, takeovers: Iterable[OpeningEpoch], phase: Any) -> None:
        """Try again soon: the disk may have had no space."""
        for takeover in takeovers:
            takeover.enter(phase, self._now())

    def _listed(self, alone: Sequence[OpeningEpoch], shared: Sequence[OpeningEpoch]) -> None:
        """Send the lists, which are durable here; what has no other copy is open (K5)."""
        self._reached("takeover.after_list_logged")
        told: dict[UUID, list[Any]] = {}
        for takeover in shared:
            if self._takeovers.get(takeover.partition) is takeover:
                takeover.enter("storing", self._now())
                for copy in takeover.others:
                    told.setdefault(copy.member, []).append(takeover.settle)
        for member, lists in told.items():
            self._outflow.tell(member, settle_message(lists))
        self._opened(alone)

    def _take_settles(self, sender: Incarnation, message: Message) -> None:
        fresh: list[SettleRecord] = []
        known: list[SettleRecord] = []
        for settle in settles_of(message):
            following = self._following.get(settle.partition)
            if following is None or (following.epoch, following.author) != (settle.epoch, sender):
                continue
            (known if following.listed else fresh).append(settle)
        rows = [Opened(one.partition, one.epoch) for one in known]
        if rows:
            self._outflow.tell(sender.member, settle_stored_message(rows))
        if fresh:
            self._log.put_records(fresh, partial(self._stored_lists, sender, fresh), _nothing)

    def _stored_lists(self, sender: Incarnation, settles: Sequence[Any]) -> None:
        rows = []
        for settle in settles:
            following = self._following.get(settle.partition)
            if following is not None and following.epoch == settle.epoch:
                following.listed = True
                rows.append(Opened(settle.partition, settle.epoch))
        self._reached("takeover.after_list_stored")
        if rows:
            self._outflow.tell(sender.member, settle_stored_message(rows))

    def _take_stored_lists(self, sender: Incarnation, message: Message) -> None:
        for partition, epoch in epochs_of(message):
            takeover = self._takeovers.get(partition)
            if takeover is not None and takeover.epoch == epoch:
                takeover.stored(sender)
        self._open()

    # -------------------------------------------------------------- opening

    def _open(self) -> None:
        """Let it be logged that those lists count which every copy has."""
        ready = self._through("storing")
        if ready:
            for takeover in ready:
                takeover.enter("opening", self._now())
            rows = tuple(Opened(takeover.partition, takeover.epoch) for takeover in ready)
            self._log.put_records(
                [OpenRecord(rows=rows)],
                partial(self._opened, ready),
                partial(self._not_logged, ready, "storing"),
            )

    def _opened(self, takeovers: Sequence[OpeningEpoch]) -> None:
        """Serve partitions whose lists count now, and begin their streams with that word."""
        opened = []
        for takeover in takeovers:
            if self._takeovers.get(takeover.partition) is not takeover:
                continue  # another epoch was given meanwhile
            del self._takeovers[takeover.partition]
            self._exchanges.opened(takeover, self._now())
            copies = self._topology.partitions[takeover.partition]
            others = [copy for copy in copies.in_sync if copy != self._me]
            self._streams.open(takeover.partition, takeover.epoch, others, self._now())
            opened.append((takeover.partition, takeover.epoch))
            if takeover.others or copies.goal or copies.is_to_be_emptied:
                self._unannounced[takeover.partition] = takeover.epoch
        self._partitions.opened(opened)
        for partition, _ in opened:
            self.transactions.opened(partition)
        self._announced_at = float("-inf")
        if opened:
            self._reached("takeover.after_open")
        self._outflow.pump()

    # -------------------------------------------------------------- streams

    def _take_items(self, connection: Connection, sender: Incarnation, message: Message) -> None:
        fresh: list[Item] = []
        again: dict[int, Following] = {}
        for item in replicated_of(message):
            following = self._following.get(item.partition)
            taken = "foreign" if following is None else following.take(item, sender)
            if taken == "new":
                fresh.append(item)
            elif taken == "again":
                assert following is not None
                again[item.partition] = following
        self._answer(sender, [one for one in again.values() if one.durable])
        if fresh:
            arrived = ArrivedItems(fresh, self._following, self._log, connection)
            commit = arrived.commit(partial(self._stored_items, sender))
            matters = arrived.matters or self.readers.waits
            self._log.put(commit, Haste.AT_ONCE if matters else Haste.COURTESY)

    def _stored_items(self, author: Incarnation, having: Sequence[Following]) -> None:
        self._answer(author, having)
        self.readers.applied()

    def _answer(self, author: Incarnation, having: Sequence[Following]) -> None:
        if having:
            rows = [
                StoredUpto(one.partition, one.admission, one.epoch, one.durable) for one in having
            ]
            self._outflow.tell(author.member, stored_message(rows))

    def _take_stored(self, sender: Incarnation, message: Message) -> None:
        now = self._now()
        for row in stored_of(message):
            self._streams.stored(sender, row, now)
        self._log.decide()

    # -------------------------------------------------------------- connections

    def arrived(self, connection: Connection, messages: Iterable[Message]) -> None:
        """Take what another member says about partitions, in order."""
        waits = any(one.connection is connection for one in self._early)
        for message in messages:
            if waits or connection.decided > self._topology.index:
                waits = True
                self._early.append(_Early(connection, message, connection.decided))
            else:
                self._arrived(connection, message, connection.decided)
        if waits and len(self._early) > EARLY_MAX:
            connection.end()

    def _arrived(self, connection: Connection, message: Message, decided: int) -> None:
        if decided > self._topology.index:
            self._early.append(_Early(connection, message, decided))
            return
        other = connection.other
        sender = Incarnation(UUID(bytes=other.member), other.boot)
        if self._log.failure is not None:
            return  # nothing that it says from here on may rest on this log (I6)
        match BY_NUMBER[message[0]].name:
            case "replicate":
                self._take_items(connection, sender, message)
            case "stored":
                self._take_stored(sender, message)
            case "report":
                self._take_reports(sender, message)
            case "settle":
                self._take_settles(sender, message)
            case "settle-stored":
                self._take_stored_lists(sender, message)
            case "admit":
                self.catching_up.admitted(sender, admitted_of(message))
            case "supply":
                self.catching_up.supplied(sender, supply_pieces_of(message))
            case "pairs":
                self.catching_up.taking_in.filled(sender, fill_of(message))
            case "demand":
                self.supplies.demanded(sender, demanded_of(message))
            case "reach" | "lend":
                self.lending.arrived(sender, message)
            case "reached" | "lent":
                self.supplies.borrowing.arrived(sender, message)
            case "confirm-copy" | "copy-confirmed":
                self.readers.arrived(sender, message)
            case kind if self.transactions.takes(kind):
                self.transactions.arrived(sender, message)
            case _:
                pass

    def connected(self, member: UUID) -> None:
        """Say again to a member what may have been lost, over a new connection to it."""
        self._outflow.connected(member, self.supplies.unanswered(member))
        demanded = self.catching_up.unheard(member)
        if demanded:
            self._outflow.tell(member, demand_message(demanded))
        reports = [
            report
            for partition, report in self._reports.items()
            if (following := self._following.get(partition)) is not None
            and following.author.member == member
        ]
        if reports:
            self._outflow.tell(member, report_message(reports))
        lists = [
            takeover.settle
            for takeover in self._takeovers.values()
            if takeover.phase == "storing"
            and takeover.settle is not None
            and any(copy.member == member for copy in takeover.waits_for())
        ]
        if lists:
            self._outflow.tell(member, settle_message(lists))
        followed = [one for one in self._following.values() if one.author.member == member]
        stored = [
            Opened(one.partition, one.epoch)
            for one in followed
            if one.listed and not one.is_admitted
        ]
        if stored:
            self._outflow.tell(member, settle_stored_message(stored))
        for author in {one.author for one in followed}:
            self._answer(author, [one for one in followed if one.author == author and one.durable])

    def has_room(self, member: UUID) -> None:
        """Go on with what waited for room on the connection to a member."""
        self._outflow.has_room(member)

    # -------------------------------------------------------------- time

    def tick(self) -> None:
        """Say what nobody has heard yet, and complain of copies that say nothing."""
        now = self._now()
        if self._log.failure is not None:
            self.transactions.log_failed()
            self._withdraw(now)
            return
        self._log.tell_decided()
        if self._untold or self._unreported:
            self._tell_and_report([])
        self._list()
        self._open()
        due = now >= self._announced_at + ASK_AGAIN_S
        if self._unannounced and due and self._decisions.is_led:
            self._announced_at = now
            self._decisions.suggest(EpochsOpened(opened=tuple(self._unannounced.items())))
        self.transactions.tick()
        self.supplies.tick()
        self.catching_up.tick()
        self.leftovers.tick()
        self._give_up(now)
        self._complain(now)

    def _give_up(self, now: float) -> None:
        """Let others serve what they have, too, while the disk does not answer.

        What is on its way stays so, and they find it as behind any takeover.  They wait for what
        this member has to report as long as for anybody (I3), and it catches up later.
        """
        before, self._disk_hangs = self._disk_hangs, self._disk.look(now)
        if self._disk.seconds >= SLOW_S:
            self._excuse(self._disk.passed, now)
        if not self._disk_hangs or now < self._given_up_at + ASK_AGAIN_S:
            return
        self._given_up_at = now
        shared = [
            copies.row.partition
            for copies in self._partitions.authored()
            if any(copy != self._me and self._topology.is_present(copy) for copy in copies.in_sync)
        ]
        self._decisions.release(shared)
        if not before:
            log.error(
                "node.disk_hangs: Tidelog: the disk of the store %s has not answered for %.0f s; "
                "others serve what they have, too: %d partitions",
                self._log.path,
                self._disk.seconds,
                len(shared),
                extra={"event": "node.disk_hangs"},
            )

    def _excuse(self, seconds: float, now: float) -> None:
        """Let some seconds count against no copy: what they lack is not in the own log, either.

        One array may hang for all.  Else its disk would leave this member alone in its sets, and
        nobody could go on for it.
        """
        for stream in self._streams:
            stream.excuse(seconds, now)
        for takeover in self._takeovers.values():
            takeover.since = min(takeover.since + seconds, now)

    def _complain(self, now: float) -> None:
        late: dict[tuple[Incarnation, frozenset[Incarnation]], list[int]] = {}
        for stream in self._streams:
            for copy in stream.late(now, REPLICA_TIMEOUT_S):
                late.setdefault((copy, frozenset(stream.followers)), []).append(stream.partition)
        for takeover in self._takeovers.values():
            if now > takeover.since + REPLICA_TIMEOUT_S:
                takeover.since = now
                silent = takeover.left_out or takeover.waits_for()
                self._begin_without(takeover, [copy for copy in silent if copy != self._me])
        if not late or now < self._accused_at + ASK_AGAIN_S:
            return
        self._accused_at = now
        self._accused.clear()
        for (copy, _), partitions in late.items():
            shown = [p for p in partitions if self._topology.partitions[p].opened]
            guards = tuple(self._guard(self._topology.partitions[p]) for p in shown)
            change = CopiesRemoved(copy=copy, partitions=tuple(shown))
            if shown:
                self._accused[self._decisions.suggest(change, guards)] = shown

    def _withdraw(self, now: float) -> None:
        """Leave all sets that have others in them: nothing rests on this log any more (I6)."""
        for stream in self._streams:
            self._log.forsake(stream)
        if now < self._announced_at + ASK_AGAIN_S:
            return
        self._announced_at = now
        listed = [copies for copies in self._topology.partitions if self._me in copies.in_sync]
        shared = [copies for copies in listed if copies.in_sync[1:]]
        if shared and shared == listed:  # else there is what only this member can show
            self._decisions.suggest(MemberGone(incarnation=self._me))
        # Who serves nothing that others have is let go, and if it is not that is served at least.
        self._decisions.release([c.row.partition for c in shared if c.author == self._me])

    def refused(self, request: int, reason: str) -> None:
        """Hear that a change which was suggested is not made."""
        self.supplies.refused(request)
        partitions = self._accused.pop(request, [])
        if reason == GIVE_IT_UP:
            self._decisions.release(partitions)

    @staticmethod
    def _guard(copies: PartitionCopies) -> Guard:
        return Guard(copies.row.partition, copies.epoch, copies.changed)


def _nothing() -> None:
    """Nobody waits for it."""
