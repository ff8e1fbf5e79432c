"""The replica groups that a member is in: what is decided about them, streams, what copies answer.

Invariants:

- What a member knows more decisions than this one has told waits until they have taken effect here.
- A client's commit is answered once its PREPARE is everywhere; if its epoch ends before, nobody
  knows, and the client asks the new primary (T15, T7).
- While a copy has too much in memory it says only now and then what it has stored, so that
  primaries send it less.

Left out: decisions (``agreement``), how an epoch is opened (``taking_over``), who is left out
(``leaving_out``), and reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol
from uuid import UUID

from ...affinity.changes import EpochsOpened
from ...affinity.topology import Incarnation, PartitionCopies, Topology, incarnation_of
from ..net.connection import Connection
from ..net.frames import Message
from ..net.kinds import BY_NUMBER
from ..replication.following import Following
from ..replication.opening import OpeningEpoch
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
from .emptying import Emptying
from .exchanges import ExchangeRecord
from .leaving_out import ASK_AGAIN_S, Decisions, LeavingOut
from .leftovers import Leftovers
from .lending import Lending
from .log import Haste, NodeLog
from .outflow import Outflow
from .partitions import Partitions
from .room import LateWords
from .stepping_back import SteppingBack
from .supplying import Supplies
from .taking_over import TakingOver
from .transactions import Transactions
from .views import row_members

EARLY_MAX = 4096
"""Messages of one connection that wait for decisions; with more than that it ends."""


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
        self._following = followed
        self._unannounced: dict[int, int] = {}
        self._announced_at = float("-inf")
        self._leaving_out = LeavingOut(me, log, streams, decisions, lambda: self._topology)
        self._taking_over = TakingOver(
            me, log, outflow, self._leaving_out, followed, exchanges, now, reached,
            topology=lambda: self._topology,
            empties=lambda partition: self.emptying.empties(partition),
            serve=self._serve,
        )  # fmt: skip
        self._stepping_back = SteppingBack(
            me, log, partitions, streams, self._taking_over, decisions
        )
        self._early: list[_Early] = []
        self._late: LateWords[tuple[Incarnation, Sequence[Following]]] = LateWords(log)
        """What is stored here, and its author was not told of."""
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
            f"<ReplicaGroups of {self._me}: {len(self._taking_over)} to open, "
            f"{len(self._following)} followed, {self._streams}>"
        )

    # -------------------------------------------------------------- what is shown

    def blocked(self) -> list[list[object]]:
        """Return which partitions are not open here yet: partition, phase, who is waited for."""
        return self._taking_over.blocked()

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
        takeover, following = self._taking_over.get(partition), self._following.get(partition)
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
            self._taking_over.report(sealed)
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
        self._taking_over.seal(copies, stream)
        if stream is not None:
            self._log.forsake(stream)
        self.transactions.sealed(partition)
        self._following.pop(partition, None)
        self._unannounced.pop(partition, None)
        if self._me in copies.in_sync and copies.author != self._me:
            self._following[partition] = Following(partition, copies.epoch, copies.author)

    def _serve(self, opened: Sequence[OpeningEpoch]) -> None:
        """Serve partitions whose lists count now, and begin their streams with that word."""
        for takeover in opened:
            copies = self._topology.partitions[takeover.partition]
            others = [copy for copy in copies.in_sync if copy != self._me]
            self._streams.open(takeover.partition, takeover.epoch, others, self._now())
            if takeover.others or copies.goal or copies.is_to_be_emptied:
                self._unannounced[takeover.partition] = takeover.epoch
        self._partitions.opened([(takeover.partition, takeover.epoch) for takeover in opened])
        for takeover in opened:
            self.transactions.opened(takeover.partition)
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
            commit = arrived.commit(partial(self._stored_items, sender, self._now()))
            matters = arrived.matters or self.readers.waits
            self._log.put(commit, Haste.AT_ONCE if matters else Haste.COURTESY)

    def _stored_items(
        self, author: Incarnation, arrived: float, having: Sequence[Following]
    ) -> None:
        if not self._late.put_off((author, having), arrived, self._now()):
            self._answer(author, having)
        self.readers.applied()

    def _answer_late(self, now: float) -> None:
        newest: dict[Incarnation, dict[int, Following]] = {}
        for author, having in self._late.due(now):
            newest.setdefault(author, {}).update((one.partition, one) for one in having)
        for author, places in newest.items():
            self._answer(author, [*places.values()])

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
        sender = incarnation_of(other.member, other.boot)
        if self._log.failure is not None:
            return  # nothing that it says from here on may rest on this log (I6)
        match BY_NUMBER[message[0]].name:
            case "replicate":
                self._take_items(connection, sender, message)
            case "stored":
                self._take_stored(sender, message)
            case "report":
                for report in self._taking_over.take_reports(sender, message):
                    self.supplies.reported(report)
            case "settle":
                self._taking_over.take_settles(sender, message)
            case "settle-stored":
                self._taking_over.take_stored_lists(sender, message)
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
        self._taking_over.say_again(member)
        followed = [one for one in self._following.values() if one.author.member == member]
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
            self._stepping_back.withdraw(self._topology, now)
            return
        self._log.tell_decided()
        self._answer_late(now)
        self._taking_over.tick()
        due = now >= self._announced_at + ASK_AGAIN_S
        if self._unannounced and due and self._decisions.is_led:
            self._announced_at = now
            self._decisions.suggest(EpochsOpened(opened=tuple(self._unannounced.items())))
        self.transactions.tick()
        self.supplies.tick()
        self.catching_up.tick()
        self.leftovers.tick()
        self._stepping_back.look(self._topology, now)
        self._leaving_out.look(now)
        self._taking_over.look(now)

    def refused(self, request: int, reason: str) -> None:
        """Hear that a change which was suggested is not made."""
        self.supplies.refused(request)
        self._leaving_out.refused(request, reason)
