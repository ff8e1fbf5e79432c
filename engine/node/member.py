"""A member of a cluster: what one incarnation of it runs, in one nursery.

    connections -> council (who is there, who serves what) -> partitions (what is open here)
                -> requests of clients -> log (a group after the other) -> answers

Everything but blocking work runs in the loop, so what is held here needs no lock: the two that
there are let blocking work take turns.  What was decided reaches the log first: maps and epochs are
records, and only behind them this member counts the decision as known, and lets clients hear of it.

Left out: the files (``member_files``), and starting again as a new incarnation (``server``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from uuid import UUID

import trio

from ...affinity.changes import (
    TopologyChange,
)
from ...affinity.errors import (
    ClusterError,
    NotEnoughMembersError,
    TidelogError,
    UsageError,
)
from ...affinity.topology import Topology, incarnation_of
from ...wal.records import DropNamespaceRecord, NamespaceRecord, Record
from ..agreement.encoding import topology_bytes
from ..agreement.machine import Agreement
from ..agreement.timing import Timing
from ..commit.outcomes import Outcome
from ..data.full_pairs import PackedPairs, PairTally, unpacked
from ..net.addresses import address_of
from ..net.connection import Connection
from ..net.frames import Message
from ..net.kinds import BY_NAME, CONTROL, DATA, Channel
from ..net.transport import Transport, UnwelcomeError
from ..replication.following import Following
from ..replication.streams import Streams
from ..store.checkpointer import catalog_of
from ..store.maintenance import CHECKPOINT_PAUSE
from ..system.environment import Address
from .aside import Aside
from .catching_up import CatchingUp
from .chronicle import Chronicle
from .committing import Committing
from .copy_reads import CopyReads
from .council import Council
from .deciding import Deciding
from .departure import Departure
from .emptying import Emptying
from .exchanges import ExchangeRecord
from .groups import ReplicaGroups
from .leaving_out import REPLICA_TIMEOUT_S
from .leftovers import Leftovers
from .lending import Lending
from .log import NodeLog
from .losing import Losing
from .member_files import OLD_DISK_HINT, OpenMember
from .outflow import Outflow
from .partitions import Partitions
from .requests import Requests
from .supplying import Supplies
from .tasks import Tasks
from .transactions import Transactions
from .views import baseline_of, members_of, told_copies, told_view

TICK_S = 0.05
"""Seconds between looks at what waits for a lease, and at whether a checkpoint is due."""
ANNOUNCE_S = 1.0
"""Seconds after which an idle log says how far it is durable."""
LINES_MAX = 65_536
"""Lines of clients whose newest connection is remembered."""

WELCOME, TOPOLOGY = BY_NAME["welcome"], BY_NAME["topology"]

log = logging.getLogger("tidelog.node")


class RunningMember:
    """One incarnation of a member; ``run`` it once."""

    def __init__(
        self, opened: OpenMember, *, address: str, timing: Timing, votes_only: bool = False
    ) -> None:
        environment, history = opened.files.environment, opened.known.topology.history
        assert history is not None
        self._opened = opened
        self._timing = timing
        self._environment = environment
        self._files = opened.files
        self.agreement = Agreement(
            disk=opened.disk,
            address=address,
            topology=opened.known.topology,
            voter=opened.known.voter,
            timing=timing,
            uniform=environment.random.random,
            now=environment.boottime(),
            decisions=opened.known.decisions,
            votes_only=votes_only,
        )
        self.transport = Transport(
            environment,
            self,
            member=opened.disk.member.bytes,
            boot=opened.disk.boot,
            nonce=opened.disk.fresh,
            cluster=opened.cluster.bytes,
            history=history.bytes,
            standing=self._standing,
        )
        self.council = Council(
            environment,
            self.agreement,
            opened.journal,
            self.transport,
            changed=self._changed,
            refused=lambda request, reason: self.groups.refused(request, reason),
            looked=lambda: self._chronicle.look(self.now),
        )
        me = self.agreement.me
        streams = Streams()
        outflow = Outflow(self.transport, streams)
        self.log = NodeLog(opened.files, streams, outflow.pump, self.transport.gathering)
        patience = timing.lease + timing.member_timeout
        self.partitions = Partitions(self.agreement, self.now + patience)
        self._chronicle = Chronicle(opened.files.path, address, self.agreement, self.partitions)
        followed: dict[int, Following] = {}
        self._tasks = Tasks()
        now, reached = environment.boottime, environment.reached
        self._exchanges = ExchangeRecord(opened.known.topology)
        self.groups = ReplicaGroups(
            me, self.log, self.partitions, streams, outflow, self.council, now, reached, followed,
            self._exchanges,
        )  # fmt: skip
        transactions = self.groups.transactions = Transactions(
            me, opened.files, self.log, self.partitions, streams, outflow, now, reached,
            self._tasks,
        )  # fmt: skip
        transactions.in_doubt.suggest = self.council.suggest
        self.groups.supplies = Supplies(
            me, opened.files, self.log, self.partitions, streams, outflow, self.council, now,
            reached, self.groups.announce, self._tasks,
        )  # fmt: skip
        self._aside = Aside(opened.files, self.log, self._tasks)
        self.groups.catching_up = CatchingUp(
            me, self.log, outflow, followed, self, self._aside, now, reached, self._tasks
        )
        self.groups.lending = Lending(
            me, opened.files, self.log, self.groups.followed, outflow, self._tasks, reached
        )
        self.groups.leftovers = Leftovers(me, self.log, self.agreement, self._aside, now)
        self.groups.emptying = Emptying(me, self.log, self, self._aside, self._tasks)
        near = (me.member.bytes, me.boot)
        copy_reads = CopyReads(
            me, self.log, self.partitions, streams, self.groups, outflow, environment.boottime,
            transactions,
        )  # fmt: skip
        self.groups.readers = copy_reads
        self.committing = Committing(self.log, self.partitions, streams, self, near, transactions)
        self.requests = Requests(
            self.log, self.partitions, copy_reads, self.committing, self, transactions
        )
        opened.files.keeper.follow(self.log)
        opened.files.keeper.indexes_by_reading = True  # what copies log is not in order of numbers
        opened.files.adopt(self.log)
        self._departure = Departure(self.log, self.partitions, streams, self.council, timing)
        self._deciding = Deciding(
            self.log,
            self.council,
            self.partitions,
            self._departure,
            environment.boottime,
            self._tasks,
        )
        self._losing = Losing(me, self.log, self.council, self._deciding, opened.files.checkpointer)
        self._carrying = trio.Lock()
        """Held by who writes the data file, so that nobody waits for it in a thread."""
        self._turn = threading.Lock()
        """Held by who unpacks pairs, or gives them to LMDB, which lets go of the interpreter at
        each: beside somebody who computes it would wait for it as often.  Syncs go beside both."""
        self._lines: dict[bytes, Connection] = {}
        self._clients: set[Connection] = set()
        self._numbers: dict[bytes, int] = {}
        self._unapplied = 0
        self._unwritten = False
        self._is_writing = False
        """Whether a checkpoint that was due, or the next segment, is being written."""
        self._writes_again = 0.0
        """When a checkpoint is tried again."""
        self._ended = trio.Event()

    # -------------------------------------------------------------- its life

    @property
    def ended(self) -> bool:
        """Whether this incarnation is over, and about to let go of its files."""
        return self._ended.is_set()

    async def run(self, *, listen: Address, ready: Callable[[Address], object]) -> None:
        """Take part in the cluster until ``leave`` or the end of this incarnation.

        Returns if it has gone, so that the member may come back under a new boot.  Raises
        ``ClusterError`` if the cluster will not have this disk, ``StorageError`` if the journal
        could not be synced: a member that notes nothing must not vote.  If the log could not be,
        the member goes on for reading (I6).
        """
        self.log.tell_recovered()
        self._chronicle.begun()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tasks.run)  # before anything is heard
            await nursery.start(self.transport.run)
            ready(await self.transport.listen(listen))
            for work in (
                self.log.run,
                self.council.run,
                self._look_after,
                self._departure.give_back,
                self._losing.run,
            ):
                nursery.start_soon(work)
            await self._ended.wait()
            nursery.cancel_scope.cancel()
        if self.agreement.refusal is not None:
            raise ClusterError(
                f"the cluster will not have the disk of this member: {self.agreement.refusal}",
                hint=OLD_DISK_HINT,
            )

    async def leave(self) -> None:
        """Let others serve, answer what is under way, and tell the others."""
        self._chronicle.leaves()
        await self._departure.leave()
        self._ended.set()

    async def close(self) -> None:
        """Take a checkpoint, note that the log ends cleanly, and let go of all files.

        A disk that does not take that ends nothing else: the next start recovers what the log has.
        """
        with trio.CancelScope(shield=True):
            try:
                if self.log.failure is None:
                    await self._end_cleanly()
            except TidelogError as error:
                log.warning(
                    "node.end_failed: Tidelog: the log of the store %s does not end cleanly, "
                    "its next start recovers it: %s",
                    self._files.path,
                    error,
                    extra={"event": "node.end_failed"},
                )
            finally:
                self._opened.close()
                self._chronicle.ended()

    async def _end_cleanly(self) -> None:
        environment, manifests = self._environment, self._files.manifests
        await self.checkpoint("close")
        end = self._files.writer.position
        await environment.run("sync", partial(self.log.sync, end))
        clean = replace(
            manifests.manifest, clean_end=end, config_durable=self._opened.journal.synced
        )
        await environment.run("close", lambda: manifests.put(clean))

    async def checkpoint(self, reason: str) -> None:
        """Take a checkpoint, piece by piece."""
        async with self._carrying:
            steps = self._files.checkpointer.steps(lambda: True, reason)
            ended = object()
            run = self._environment.run
            try:
                while await run("checkpoint", partial(next, steps, ended)) is None:
                    self._environment.reached("checkpoint.between_pieces")
                    self.log.pass_turn()
            finally:
                steps.close()
            self._environment.reached("checkpoint.after_mark")

    async def fill(self, partition: int, pieces: Sequence[PackedPairs], position: int) -> PairTally:
        """Write pairs of a full copy into a partition that was cleared at a position.

        Those of maps that have gone meanwhile are left out; the tally is of all that came.
        """
        fill, check = self._files.checkpointer.fill, self.log.check_writable
        lives, run = catalog_of(self.log.state), self._environment.run

        def unpack() -> tuple[list[bytes], list[bytes], PairTally]:
            with self._turn:
                return unpacked(partition, pieces, lives)

        keys, stored, dropped = await run("unpack", unpack)
        written = PairTally()
        if keys:
            async with self._carrying:
                writing = partial(fill, partition, keys, stored, position, check, self._turn)
                written = await run("checkpoint", writing)
        return written.plus(dropped)

    async def _look_after(self) -> None:
        """Do what is due from time to time: what waits for the disk goes on beside it."""
        files, now = self._files, self._environment.boottime
        policy = files.options.checkpoint_policy()
        last = announced = now()
        while True:
            await trio.sleep(TICK_S)
            with self.transport.gathering:
                self.requests.tick()
                self.groups.tick()
            self._chronicle.look(now())
            if self._unwritten and self.log.failure is None:
                self._changed(self.agreement.topology)
            if now() >= announced + ANNOUNCE_S:
                self.log.tell_durable()
                if self._is_half_full and not self._is_writing:
                    self._is_writing = self._tasks.begin(self._fill_ahead)
                announced = now()
            reason = policy.due(
                overlay_bytes=files.overlay.bytes,
                log_bytes=files.writer.position - files.checkpointer.position,
                seconds=now() - last,
            )
            may_write = not self._is_writing and now() >= self._writes_again
            if reason is not None and may_write and self.log.failure is None:
                last = now()
                self._is_writing = self._tasks.begin(self._write_back, reason)

    async def _write_back(self, reason: str) -> None:
        """Take a checkpoint that is due."""
        try:
            await self.checkpoint(reason)
            self.log.carries = True
        except TidelogError:  # logged there, and tried again
            self.log.carries = False
            self._writes_again = self._environment.boottime() + CHECKPOINT_PAUSE
        finally:
            self._is_writing = False

    @property
    def _is_half_full(self) -> bool:
        """Whether the newest segment of the log is."""
        writer, size = self._files.writer, self._files.options.segment_bytes
        return writer.position - writer.segment.first_position >= size // 2

    async def _fill_ahead(self) -> None:
        """Have a file of zeros for the next segment.

        It is a courtesy: without room on the disk segments grow as they are written.
        """
        size = self._files.options.segment_bytes
        try:
            with suppress(OSError):
                await self._environment.run("fill", partial(self._files.keeper.prepare_spare, size))
        finally:
            self._is_writing = False

    # -------------------------------------------------------------- what was decided

    def _standing(self, member: bytes, boot: int, nonce: bytes) -> str | None:
        """Tell why an incarnation counts no more: gone, lost, or another disk was that boot."""
        incarnation = incarnation_of(member, boot)
        if self.agreement.has_refused(incarnation, nonce):
            return "copy"
        known = self.agreement.topology.members.get(incarnation.member)
        if known is not None and known.lost:
            return "lost"
        if known is None or boot > known.boot:
            return None
        if boot < known.boot or not known.present:
            return "gone"
        return None if known.nonce == nonce else "copy"

    def _changed(self, topology: Topology) -> None:
        """Take over what was decided, durably here; it takes effect behind its records."""
        if self.agreement.gone or self.agreement.refusal is not None:
            self._end()
            return
        for member, known in topology.members.items():
            if known.lost:
                self.transport.part(member.bytes)
            elif member != self.agreement.me.member:
                self.transport.meet(member.bytes, address_of(known.address))
        records = self._maps_of(topology)
        self._unwritten = False
        if records or self._unapplied:
            self._unapplied += 1
            self.log.put_records(
                records,
                partial(self._applied, topology),
                self._not_written,
            )
        else:
            self._take_effect(topology)

    def _end(self) -> None:
        """Be over without having been told to end: for good if the cluster refuses this disk."""
        known = self._departure.begun or self.agreement.refusal is not None
        if not self.ended and not known:
            self._chronicle.gone()
        self._ended.set()

    def _applied(self, topology: Topology) -> None:
        self._unapplied -= 1
        self._take_effect(topology)

    def _not_written(self) -> None:
        """Try again soon: the disk may have had no space for them."""
        self._unapplied -= 1
        self._unwritten = True

    def _take_effect(self, topology: Topology) -> None:
        self._deciding.decided(topology)
        self._chronicle.decided(topology, self.now)
        self._exchanges.decided(topology, self.agreement.decisions_kept(), self.now)
        self._losing.decided(topology)
        self._aside.decided(topology)
        self.groups.decided(topology)
        message = TOPOLOGY.message(told_view(topology))
        for client in self._clients:
            client.send(message)
        self.requests.decided()

    def _maps_of(self, topology: Topology) -> list[Record]:
        """Return the records that make the maps of this store those of the topology."""
        known, time = self._files.state.namespaces, self._environment.clock()
        found: list[Record] = []
        for number, one in sorted(topology.namespaces.items()):
            record = NamespaceRecord(
                id=number,
                name=one.name,
                key_codec=one.key_codec,
                key_version=one.key_version,
                value_codec=one.value_codec,
                value_version=one.value_version,
                space=one.space,
            )
            if known.get(number) != record:
                found.append(record)
        for number, record in known.items():
            if number not in topology.namespaces:
                self.log.context.dropped[number] = record.name
                found.append(DropNamespaceRecord(id=number, time=time))
        return found

    # -------------------------------------------------------------- what requests ask for

    @property
    def now(self) -> float:
        """The time of leases."""
        return self._environment.boottime()

    @property
    def decided(self) -> int:
        """How many decisions have taken effect here."""
        return self._deciding.topology.index

    def change(
        self,
        change: TopologyChange,
        deadline: float,
        done: Callable[[Exception | None], None],
        number: int | None = None,
    ) -> None:
        """Have a change decided; ``done`` hears None behind its effect, or why not."""
        self._deciding.change(change, deadline, done, number)

    def find_outcome(
        self,
        tx_id: bytes,
        home: int,
        done: Callable[[Outcome | Exception], object],
        until: float,
    ) -> None:
        """Look for what became of a transaction under an id that a client made."""
        self.groups.transactions.history.find_outcome(tx_id, home, done, until)

    def status(self) -> Mapping[str, Any]:
        """Return what ``status`` shows of this member."""
        agreement, now = self.agreement, self.now
        topology, partitions = agreement.topology, self.partitions
        mine = [copies for copies in topology.partitions if copies.author == agreement.me]
        numbers = [copies.row.partition for copies in mine]
        term = agreement.coordinator
        return {
            "member": agreement.me.member.bytes,
            "boot": agreement.me.boot,
            "term": term.number,
            "coordinator": term.member.bytes if term.number else None,
            "majority": agreement.reaches_majority(now),
            "just_started": partitions.just_started(now),
            "stopping": self._departure.begun,
            "decided": topology.index,
            "members": members_of(topology),
            **baseline_of(topology),
            "lease_us": max(int((agreement.lease.end - now) * 1e6), 0)
            if agreement.lease.end > now
            else 0,
            "partitions": numbers,
            "epochs": [copies.epoch for copies in mine],
            "open": [partitions.is_open(number) for number in numbers],
            "leased": [agreement.may_serve(number, now) for number in numbers],
            "sets": [[copy.member.bytes for copy in copies.in_sync] for copies in mine],
            "blocked": self.groups.blocked(),
            "lagging": self.groups.lagging(),
            "log_failure": _told(self.log.failure),
            "data_failure": _told(self._files.checkpointer.doubtful),
            "timing": {**asdict(self._timing), "replica_timeout": REPLICA_TIMEOUT_S},
            "counts": {
                "clients": len(self._clients),
                "requests": self.requests.count,
                "commits": self.log.commits,
                "log_bytes": self.log.position,
            },
        }

    def move(self, partition: int, member: bytes, done: Callable[[Exception | None], None]) -> None:
        """Let another member serve a partition of this one; ``done`` hears None once it does."""
        self._deciding.move(partition, UUID(bytes=member), done)

    def reset(
        self, partition: int, empty: bool, deadline: float, done: Callable[[Exception | None], None]
    ) -> None:
        """Go on with a partition that was lost: from the copy here, or with nothing (S6)."""
        self._losing.reset(partition, empty, deadline, done)

    def losses(self) -> Mapping[str, Any]:
        """Return which partitions are lost, and what became of those that were."""
        return self._losing.told()

    def story(self, partition: int) -> Mapping[str, Any]:
        """Return what this member knows of one partition."""
        count = len(self._deciding.topology.partitions)
        if not count:
            raise NotEnoughMembersError("this member has not heard of any decision yet")
        if not 0 <= partition < count:
            raise UsageError(
                f"there is no partition {partition}", hint=f"Name one of 0 to {count - 1}."
            )
        return self.groups.story(partition)

    def topology_bytes(self) -> bytes:
        """Return the newest topology, as it is written, for whoever wants to join."""
        return topology_bytes(self.agreement.topology)

    def copies(self, first: int, limit: int) -> Mapping[str, Any]:
        """Return who holds so many partitions from a number on, and what they have here."""
        topology, first = self.agreement.topology, max(first, 0)
        found = topology.partitions[first : first + max(limit, 0)]
        return told_copies(topology.index, found, self.log.state.counters)

    def exchanges(self, last: int) -> Mapping[str, Any]:
        """Return the newest exchanges that this member saw, so many at most."""
        told = self._exchanges.told(last, self.now)
        return {"decided": self._deciding.topology.index, "exchanges": told}

    # -------------------------------------------------------------- events of the transport

    def arrived(self, connection: Connection, messages: list[Message]) -> None:
        """Take messages, in order."""
        if connection.other.role == "member":
            if connection.channel == CONTROL:
                self.council.arrived(connection, messages)
            else:
                self.groups.arrived(connection, messages)
        else:
            self.requests.arrived(connection, messages)

    def up(self, connection: Connection) -> None:
        """Greet a client; what is on an older connection of its line counts no more."""
        other = connection.other
        if other.role == "member":
            if connection.channel == DATA:
                self.council.links_changed()
                if connection.outgoing:
                    self.groups.connected(UUID(bytes=other.member))
            return
        if other.role == "client" and not self._is_newest(connection):
            connection.end()
            return
        self._clients.add(connection)
        topology = self._deciding.topology
        store, history = (
            known.bytes if known is not None else b""
            for known in (topology.store, topology.told_history)
        )
        cluster = self._opened.cluster.bytes
        connection.send(WELCOME.message(cluster, store, history, told_view(topology)))

    def _is_newest(self, connection: Connection) -> bool:
        """End what is older on its line; tell whether there is nothing newer, or was."""
        line, number = connection.other.member, connection.other.number
        if number <= self._numbers.get(line, -1):
            return False
        self._numbers.pop(line, None)
        self._numbers[line] = number
        if len(self._numbers) > LINES_MAX:
            del self._numbers[next(iter(self._numbers))]
        older = self._lines.get(line)
        if older is not None:
            older.end()
        self._lines[line] = connection
        return True

    def down(self, connection: Connection) -> None:
        """Forget a client, or a way to another member."""
        if connection.other.role == "member":
            self.council.links_changed()
            return
        self._clients.discard(connection)
        if self._lines.get(connection.other.member) is connection:
            del self._lines[connection.other.member]

    def failed(self, member: bytes, channel: Channel, error: Exception) -> None:
        """Hear that a member could not be reached.

        If nothing listens there it is dead (C10).  If it says that this incarnation has gone, then
        nobody will tell it more (W1): it ends, and the member starts again under a new boot.  If
        another disk was this boot, this one is an old image or a copy, and ends for good (C7); so
        does one that was declared lost.
        """
        if isinstance(error, ConnectionRefusedError):
            self.council.unreachable(UUID(bytes=member))
        elif isinstance(error, UnwelcomeError) and error.told:
            if error.refusal.code == "gone":
                self._end()
            elif error.refusal.code in ("copy", "lost"):
                self.council.refused(error.refusal.reason)

    def room(self, connection: Connection) -> None:
        """Go on with what waited for room."""
        if connection.other.role == "member":
            self.groups.has_room(UUID(bytes=connection.other.member))


def _told(failure: TidelogError | None) -> str | None:
    return None if failure is None else str(failure)
