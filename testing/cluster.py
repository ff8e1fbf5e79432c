"""A cluster in a simulated world: real members, one seed, faults on demand.

    async def scenario(cluster):
        cluster.start()
        await cluster.settled()
        await cluster.kill("n1")
        ...

    SimCluster(seed=7, nodes=3, partitions=16).run(scenario)

The members are those of production, on simulated disks, clocks and connections.  Everything that
happens follows from the seed.

While a scenario runs its promises are looked at every ``CHECK_S`` of simulated time, and at its end
(``promises``).  What clients were told is kept, too: the scenarios check that, by histories.

Left out: faults that a seed decides (``storms``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import TypeVar
from uuid import UUID

import trio

from ..affinity.changes import Decision
from ..affinity.errors import TidelogError
from ..affinity.partitions import partition_of
from ..affinity.topology import FIRST_NAMESPACE, Topology
from ..engine.agreement.identity import member_id
from ..engine.agreement.timing import Timing
from ..engine.client.copies import ReadFrom
from ..engine.client.tasks import ClusterTasksDatabase
from ..engine.data.raw_scan import raw_blocks
from ..engine.data.stored import CHECK_SIZE, PENDING, is_tombstone, pack_prefix, split_key
from ..engine.net.kinds import KINDS as WIRE_KINDS
from ..engine.node.adopting import adopt_store
from ..engine.node.member import RunningMember
from ..engine.node.member_files import Newcomer, init_member
from ..engine.node.server import run_member
from ..engine.store.options import Options
from ..engine.system.environment import Environment
from ..engine.system.layout import MANIFEST_NAME
from ..engine.upkeep.check import inspect_store
from .cluster_clients import ClientMachine
from .environment import simulated
from .holds import HeldNetwork, Holds
from .node import Node
from .promises import BrokenPromiseError, Promises
from .world import World

T = TypeVar("T")

PORT = 7400
DIRECTORY = "/member"
CHECK_S = 0.02
SEGMENT_BYTES = 256 << 10
SETTLE_S_MAX = 60.0
CLIENT_S_MAX = 10.0
"""Seconds that a call of a client may take."""

KINDS = tuple(kind.name for kind in WIRE_KINDS if kind.channel in ("control", "data"))
"""Messages between members that can be held."""

POINTS = (
    "config.after_accept", "config.after_decide",
    "tx.after_lock", "tx.after_confirm", "tx.before_prepare_log", "tx.after_prepare_log",
    "tx.after_prepare_sync", "tx.after_prepared_sent", "tx.before_commit_log",
    "tx.after_commit_log",
    "takeover.after_seal", "takeover.after_report", "takeover.after_list_logged",
    "takeover.after_list_stored", "takeover.after_open",
    "admit.sent", "admit.logged",
    "supply.first", "supply.middle", "supply.last", "lend.sent",
    "join.sent", "add.proposed", "add.decided",
    "checkpoint.between_pieces", "checkpoint.before_mark", "checkpoint.after_mark",
    "rotate.after_new_segment",
)  # fmt: skip
"""Points of the program at which a member can be killed; those of copies and of transactions over
several groups are reached once there are such."""


class SimCluster:
    """Members ``n1``, ``n2``, ... in a world; ``run`` a scenario with it, once."""

    def __init__(
        self,
        *,
        seed: int,
        nodes: int = 3,
        partitions: int = 16,
        backups: int = 0,
        min_in_sync: int = 1,
        timing: Timing | None = None,
        options: Options | None = None,
        delay_s: float | None = None,
        slow_disks: bool = True,
        store: Callable[[Environment, str], None] | None = None,
    ) -> None:
        """``delay_s`` and ``slow_disks`` are those of the world.

        ``store`` makes an embedded store in a directory, which is adopted as the only member.
        """
        self.world = World(seed, delay_s=delay_s, slow_disks=slow_disks)
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.partitions = partitions
        self.backups = backups
        self.min_in_sync = min_in_sync
        self.holds = Holds()
        self._id = UUID(int=self.world.random("cluster").getrandbits(128), version=4)
        self._members = [(self.member_id(name), f"{name}:{PORT}") for name in self.names]
        self._timing = timing or Timing()
        self._options = options or Options(segment_bytes=SEGMENT_BYTES)
        self._running: dict[str, RunningMember] = {}
        self._stops: dict[str, trio.Event] = {}
        self._promises = Promises(self._id, self.world.now, self.digest)
        self.may_end: set[str] = set()
        """Members that may end by an error; others fail the scenario, unless their disk did."""
        self.ends: dict[str, TidelogError] = {}
        """By which error a member has ended, if it has."""
        self.machines: list[ClientMachine] = []
        """The machines of clients."""
        self.nodes = {name: self.world.add(name, self._program) for name in self.names}
        self._newcomers: dict[str, Newcomer] = {}
        self._store = store

    def __repr__(self) -> str:
        return f"<SimCluster seed={self.world.seed} of {len(self.names)}>"

    @property
    def founders(self) -> frozenset[UUID]:
        """The members that began the cluster."""
        return frozenset(member for member, _ in self._members)

    def member_id(self, name: str) -> UUID:
        """Return the id of a member."""
        return member_id(self._id, name)

    def run(self, scenario: Callable[[SimCluster], Awaitable[T]]) -> T:
        """Return ``await scenario(self)``; the world ends behind it."""

        async def watched() -> T:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                result = await scenario(self)
                self.check()
                nursery.cancel_scope.cancel()
            return result

        try:
            return self.world.run(watched)
        finally:
            for machine in self.machines:
                machine.leave()

    async def _program(self, node: Node) -> None:
        environment = node.environment
        held = HeldNetwork(environment.network, node.name, self.holds)
        environment = replace(environment, network=held)
        stop = self._stops[node.name] = trio.Event()

        def started(member: RunningMember) -> None:
            self._running[node.name] = member
            self._promises.watch(node.name, member, self.running)

        try:
            newcomer = self._newcomers.get(node.name)
            if newcomer is not None or f"{DIRECTORY}/{MANIFEST_NAME}" in node.disk.paths():
                pass
            elif self._store is not None:
                self._store(environment, DIRECTORY)
                adopt_store(
                    environment,
                    DIRECTORY,
                    cluster=self._id,
                    member=self.member_id(node.name),
                    address=f"{node.name}:{PORT}",
                    backups=self.backups,
                )
            else:
                init_member(
                    environment,
                    DIRECTORY,
                    cluster=self._id,
                    member=self.member_id(node.name),
                    members=self._members,
                    partitions=self.partitions,
                    backups=self.backups,
                    min_in_sync=self.min_in_sync,
                )
            await run_member(
                environment,
                DIRECTORY,
                listen=(node.name, PORT),
                insecure=True,
                ready=lambda _address: None,
                stop=stop,
                timing=self._timing,
                options=self._options,
                started=started,
                newcomer=newcomer,
            )
        except TidelogError as error:
            if not node.disk.failed and node.name not in self.may_end:
                raise
            self.ends[node.name] = error
            self.world.trace.note(node.name, "ended", str(error))

    # -------------------------------------------------------------- life and death

    def start(self, names: Iterable[str] | None = None) -> None:
        """Start members, all if none are named."""
        for name in self.names if names is None else names:
            self._running.pop(name, None)
            self.nodes[name].start()

    def join(self, name: str, *, voter: bool = False) -> None:
        """Start a new member of that name, with an empty disk, which joins the cluster."""
        seeds = tuple(f"{other}:{PORT}" for other in self.names)
        self._newcomers[name] = Newcomer(
            seeds=seeds, address=f"{name}:{PORT}", name=name, voter=voter
        )
        self.names.append(name)
        self.nodes[name] = self.world.add(name, self._program)
        self.start([name])

    async def kill(self, name: str, at: str | None = None, outcome: str | None = None) -> None:
        """End a member at once, or arm a point at which it will end: see ``killed``."""
        if at is None:
            self.nodes[name].kill(outcome)
            await self.killed(name)
        else:
            self.nodes[name].kill_at(at)

    async def killed(self, name: str) -> None:
        """Wait until a member has ended."""
        await self.nodes[name].wait_ended()

    async def restart(self, name: str) -> None:
        """Start a member again, and kill it before if it runs."""
        self.nodes[name].kill()
        await self.killed(name)
        self.start([name])

    async def stop(self, name: str) -> None:
        """Let a member drain and end, as SIGTERM does."""
        self._stops[name].set()
        await self.killed(name)

    async def power_cut(self) -> None:
        """End all members at once, as if the power of their machines was cut."""
        for node in self.nodes.values():
            node.kill("lost")
        for node in self.nodes.values():
            await node.wait_ended()

    def copy(self, name: str, copied: str) -> None:
        """Add a machine whose disk is that of a member as it is now: its identity, twice."""
        self.nodes[copied] = self.world.add(copied, self._program)
        self.nodes[copied].disk = self.nodes[name].disk.copy()

    async def verify(self, name: str) -> list[str]:
        """End a member at once; return what ``tidelog db verify`` finds wrong with its store."""
        self.nodes[name].kill("kept")
        await self.killed(name)
        return inspect_store(simulated(self.world.seed, self.nodes[name].disk), DIRECTORY).problems

    # -------------------------------------------------------------- the network

    def cut(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Let nothing pass between two sets of hosts, either way."""
        for one in sorted(some):
            for other in sorted(others):
                self.world.network.cut(one, other)
                self.world.network.cut(other, one)

    def heal(self) -> None:
        """Let everything pass again."""
        self.world.network.heal()

    def hold(self, kind: str, *, src: str, dst: str) -> None:
        """Let a connection wait from the next message of a kind on, until it is released."""
        if kind.partition(".")[0] not in KINDS:
            raise ValueError(f"there is no kind {kind!r} of messages between members")
        self.holds.hold(kind, src, dst)

    def release(self, kind: str, *, src: str, dst: str) -> None:
        """Let go on what was held."""
        self.holds.release(kind, src, dst)

    # -------------------------------------------------------------- clients

    def client_machine(self) -> ClientMachine:
        """Return a new machine ``c1``, ``c2``, ... in this world."""
        machine = ClientMachine(self.world, f"c{len(self.machines) + 1}")
        self.machines.append(machine)
        return machine

    def client(
        self,
        name: str | None = None,
        timeout: float = CLIENT_S_MAX,
        read_from: ReadFrom = "primary",
    ) -> ClusterTasksDatabase:
        """Return a database of ``tidelog.aio`` on a machine of its own.

        ``name`` is the member that is asked first.
        """
        names = sorted(self.names, key=lambda other: other != name)
        addresses = [f"{one}:{PORT}" for one in names]
        return self.client_machine().database(addresses, timeout, read_from)

    # -------------------------------------------------------------- what is looked at

    def member(self, name: str) -> RunningMember:
        """Return the running incarnation of a member."""
        if not self.nodes[name].running:
            raise RuntimeError(f"{name} does not run")
        return self._running[name]

    def running(self) -> dict[str, RunningMember]:
        """Return the incarnations that run and have not been declared gone."""
        return {name: member for name, member in self._running.items() if self.nodes[name].running}

    def topology(self) -> Topology:
        """Return the newest topology that any running member knows."""
        return max(
            (member.agreement.topology for member in self.running().values()),
            key=lambda topology: topology.index,
        )

    def coordinator(self) -> str | None:
        """Return who leads, as far as it knows itself; None if nobody does."""
        leading = [name for name, member in self.running().items() if member.agreement.leads]
        return leading[0] if len(leading) == 1 else None

    def primary(self, partition: int) -> str:
        """Return who serves a partition, by the newest topology."""
        author = self.topology().partitions[partition].author
        return next(name for name in self.names if self.member_id(name) == author.member)

    def counters(self, name: str, partition: int) -> tuple[int, int]:
        """Return LWM and HWM of a partition at a member."""
        counter = self.member(name).log.state.counters[partition]
        return counter.lwm, counter.hwm

    def digest(self, name: str, partition: int) -> str:
        """Return a hash of all that a member has in a partition, with versions and deletes."""
        log = self.member(name).log
        low, high = pack_prefix(partition, 1), pack_prefix(partition + 1, 0)
        maps, found = log.state.namespaces, blake2b(digest_size=16)
        for block in raw_blocks(
            log.overlay.view, partition, low, high, rows=1000, most_bytes=1 << 20
        ):
            for full_key, stored in block:
                _, number, _ = split_key(full_key)
                shown = number in maps or number < FIRST_NAMESPACE
                if shown and number != PENDING and not is_tombstone(stored):
                    found.update(full_key + stored[:-CHECK_SIZE])
        return found.hexdigest()

    def decided(self) -> dict[int, Decision]:
        """Return the decisions that were seen, by index."""
        return dict(self._promises.decided)

    def key(self, partition: int, i: int) -> bytes:
        """Return the i-th key of a partition."""
        space = self.topology().spaces[0]
        found, number = -1, 0
        while True:
            key = b"key%d" % number
            if partition_of(key, space) == partition:
                found += 1
                if found == i:
                    return key
            number += 1

    async def checkpoint(self, name: str) -> None:
        """Let a member take a checkpoint."""
        await self.member(name).checkpoint("asked for")

    async def settled(self, names: Iterable[str] | None = None) -> None:
        """Wait until every partition of the named members is served, by all members if none are.

        ``BrokenPromiseError`` if that takes more than a minute: with faults off everything
        settles (8).
        """
        wanted = set(self.names if names is None else names)
        with trio.move_on_after(SETTLE_S_MAX):
            while not self._is_settled(wanted):
                await trio.sleep(CHECK_S)
            return
        raise BrokenPromiseError(
            f"at {self.world.now():.3f} s: not everything of {sorted(wanted)} is served "
            f"{SETTLE_S_MAX} s after the last fault: {self._told()}"
        )

    def _is_settled(self, wanted: set[str]) -> bool:
        running = self.running()
        if not wanted <= running.keys():
            return False
        if not running:
            return False
        newest = self.topology().index
        for name in wanted:
            member = running[name]
            if member.agreement.topology.index != newest or self._stops[name].is_set():
                return False
        return all(
            running[name].partitions.serves(partition, running[name].now)
            for partition in range(self.partitions)
            if (name := self.primary(partition)) in wanted
        )

    async def whole(self) -> None:
        """Wait until every member of each row is in the set: who was away has come back.

        ``BrokenPromiseError`` if that takes more than a minute.
        """
        with trio.move_on_after(SETTLE_S_MAX):
            while missing := self._missing():
                await trio.sleep(CHECK_S)
            return
        raise BrokenPromiseError(
            f"at {self.world.now():.3f} s: not all copies have come back: {missing}; {self._told()}"
        )

    def _missing(self) -> dict[int, list[str]]:
        """Return who shall hold a partition and does not as it runs now, or shall not and does."""
        missing, topology = {}, self.topology()
        runs = {one.agreement.me.member: one.agreement.me for one in self.running().values()}
        counted = {one for one in topology.present if runs.get(one.member, one) == one}
        for copies in topology.partitions:
            there = {one.member for one in copies.in_sync if one in counted}
            wrong = {*copies.wanted} ^ there
            names = [name for name in self.names if self.member_id(name) in wrong]
            if names or copies.goal:
                missing[copies.row.partition] = names
        return missing

    async def quiesce(self) -> None:
        """Wait until every partition is served, and all copies of a set are equally far."""
        await self.settled(self.running())
        with trio.move_on_after(SETTLE_S_MAX):
            while not all(map(self._is_quiet, range(self.partitions))):
                await trio.sleep(CHECK_S)
            self.check()
            return
        raise BrokenPromiseError(f"at {self.world.now():.3f} s: copies are not equally far")

    def _is_quiet(self, partition: int) -> bool:
        copies = self.topology().partitions[partition]
        there = [one for one in self.running().values() if one.agreement.me in copies.in_sync]
        states = [one.log.state for one in there]
        places = {(s.epoch_tables[partition], s.counters[partition].lwm) for s in states}
        return len(places) == 1 and not any(s.copies.pending.get(partition) for s in states)

    def _told(self) -> str:
        return "; ".join(
            f"{name}: boot {member.agreement.me.boot}, decision {member.agreement.topology.index}"
            for name, member in sorted(self.running().items())
        )

    # -------------------------------------------------------------- checks

    async def _watch(self) -> None:
        while True:
            self.check()
            await trio.sleep(CHECK_S)

    def check(self) -> None:
        """Raise ``BrokenPromiseError`` for what must never be."""
        self._promises.check(self.running())
