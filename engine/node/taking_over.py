"""Epochs of partitions on their way to be open: what their author does, and what its copies do.

    decided -> seal -> sync of all before -> report -> list -> stored -> OPEN -> serve

One object for all partitions, since what is said about them travels together: one message for a
peer and a wake-up, one frame for all lists.

Invariants:

- A report is made behind everything that was queued before the seal, and behind a sync (K3).  What
  has committed here by then is in the log, too: else a restart would have it pending again, when
  the list that follows has nothing to say of it.
- What was said is said again over a new connection until it is of no use any more.

Left out: what a list says (``replication.merging``), the state of one takeover
(``replication.opening``), and what follows behind it (``groups``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from ...affinity.topology import Incarnation, PartitionCopies, Topology
from ...wal.records import CommitUptoRecord, Opened, OpenRecord, Record, SettleRecord, Upto
from ..net.frames import Message
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
from ..replication.streams import PartitionStream
from .exchanges import ExchangeRecord
from .leaving_out import REPLICA_TIMEOUT_S, LeavingOut
from .log import NodeLog
from .outflow import Outflow


class TakingOver:
    """The epochs that one incarnation opens, and those that it reports for."""

    def __init__(
        self,
        me: Incarnation,
        log: NodeLog,
        outflow: Outflow,
        leaving_out: LeavingOut,
        followed: dict[int, Following],
        exchanges: ExchangeRecord,
        now: Callable[[], float],
        reached: Callable[[str], None],
        topology: Callable[[], Topology],
        empties: Callable[[int], bool],
        serve: Callable[[Sequence[OpeningEpoch]], None],
    ) -> None:
        """``empties`` tells whether a partition is being emptied, whose report waits for that.

        ``serve`` is told the epochs that are open here, in the log, from now on.
        """
        self._me = me
        self._log = log
        self._outflow = outflow
        self._leaving_out = leaving_out
        self._following = followed
        self._exchanges = exchanges
        self._now = now
        self._reached = reached
        self._topology = topology
        self._empties = empties
        self._serve = serve
        self._takeovers: dict[int, OpeningEpoch] = {}
        self._reports: dict[int, Report] = {}
        self._acknowledged: dict[int, tuple[Acknowledged, ...]] = {}
        self._untold: list[Upto] = []
        """What has committed in epochs that are over, and the log does not say so yet."""
        self._unreported: list[PartitionCopies] = []
        """Partitions whose report waits for that."""

    def __repr__(self) -> str:
        return f"<TakingOver of {self._me}: {len(self._takeovers)} to open>"

    def __len__(self) -> int:
        return len(self._takeovers)

    def get(self, partition: int) -> OpeningEpoch | None:
        """Return the takeover of a partition that is not open here yet; None if there is none."""
        return self._takeovers.get(partition)

    def blocked(self) -> list[list[object]]:
        """Return which partitions are not open here yet: partition, phase, who is waited for."""
        return [
            [partition, takeover.phase, [copy.member.bytes for copy in takeover.waits_for()]]
            for partition, takeover in sorted(self._takeovers.items())
        ]

    # -------------------------------------------------------------- seals

    def seal(self, copies: PartitionCopies, stream: PartitionStream | None) -> None:
        """Drop what belongs to an older epoch, and begin to open the new one if it is ours (K2).

        ``stream`` is that of the older one, which is closed.
        """
        partition = copies.row.partition
        if stream is not None:
            self._acknowledged[partition] = stream.acknowledged()
            if stream.untold is not None:
                self._untold.append(stream.untold)
                self._log.unsaid.add(partition)
        self._takeovers.pop(partition, None)
        self._reports.pop(partition, None)
        if copies.author == self._me:
            takeover = self._takeovers[partition] = OpeningEpoch(copies, self._now())
            self._exchanges.begun(takeover)

    # -------------------------------------------------------------- reports

    def report(self, sealed: Sequence[PartitionCopies]) -> None:
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
        rows = self._topology().partitions
        told: dict[UUID, list[Report]] = {}
        for copies in sealed:
            partition = copies.row.partition
            if rows[partition].epoch != copies.epoch:
                continue  # sealed again meanwhile: another report is on its way
            if copies.author == self._me and self._empties(partition):
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

    def take_reports(self, sender: Incarnation, message: Message) -> list[Report]:
        """Take what a copy says of its log; return what is of no partition that is opened here."""
        others = []
        for report in reports_of(message, sender):
            takeover = self._takeovers.get(report.partition)
            if takeover is None:
                others.append(report)
            elif takeover.epoch == report.epoch:
                takeover.reported(report)
        self._list()
        return others

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
                self._leaving_out.tell_of_lack(str(error))
                continue
            if found.lacking:
                takeover.enter("stuck", self._now())
                self._leaving_out.begin_without_lacking(takeover, found.lacking)
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

    def take_settles(self, sender: Incarnation, message: Message) -> None:
        """Store the lists of an author, and answer."""
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

    def take_stored_lists(self, sender: Incarnation, message: Message) -> None:
        """Take it that a copy has lists."""
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
        """Hand on partitions whose lists count now."""
        opened = []
        for takeover in takeovers:
            if self._takeovers.get(takeover.partition) is not takeover:
                continue  # another epoch was given meanwhile
            del self._takeovers[takeover.partition]
            self._exchanges.opened(takeover, self._now())
            opened.append(takeover)
        self._serve(opened)

    # -------------------------------------------------------------- connections

    def say_again(self, member: UUID) -> None:
        """Say to a member what may have been lost, over a new connection to it."""
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
        stored = [
            Opened(one.partition, one.epoch)
            for one in self._following.values()
            if one.author.member == member and one.listed and not one.is_admitted
        ]
        if stored:
            self._outflow.tell(member, settle_stored_message(stored))

    # -------------------------------------------------------------- time

    def tick(self) -> None:
        """Go on with what waits for nobody any more."""
        if self._untold or self._unreported:
            self.report([])
        self._list()
        self._open()

    def look(self, now: float) -> None:
        """Begin anew without copies that do not do their part."""
        for takeover in self._takeovers.values():
            if now > takeover.since + REPLICA_TIMEOUT_S:
                takeover.since = now
                silent = takeover.left_out or takeover.waits_for()
                self._leaving_out.begin_without(
                    takeover, [copy for copy in silent if copy != self._me]
                )

    def excuse(self, seconds: float, now: float) -> None:
        """Let some seconds count against no copy."""
        for takeover in self._takeovers.values():
            takeover.since = min(takeover.since + seconds, now)


def _nothing() -> None:
    """Nobody waits for it."""
