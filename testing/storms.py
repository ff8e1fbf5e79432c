"""Storms: clients of a simulated cluster work while faults come that a seed decides.

    run_storm(17)                                   # faults as the seed has them
    run_storm(17, faults=["2.500 kill n1 torn 0.8"])  # these, and no others
    run_storm(17, clients=[2, 7])                   # and nobody else works

Behind the last fault everything is healed, and has to settle; every key is read back, also behind a
power cut of all members at once; in the end copies have to be equal, the stores of all members
whole, and the histories of registers and counters linearizable.  What is looked at meanwhile is the
business of ``SimCluster``.

Faults are lines: see ``storm_faults``.  Clients have numbers: those of registers first, then those
of counters, then those of transactions; what each does is the same whoever else works.  Of
partitions that were lost with a disk nothing is expected any more.

Left out: how faults are written and drawn (``storm_faults``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from ..affinity.errors import PartitionUnavailableError, UsageError
from ..affinity.partitions import Space, partition_of
from ..affinity.topology import Loss
from ..engine.client.copies import ReadFrom
from ..engine.codecs.registry import Msgpack, Str
from ..engine.store.options import Options
from .cluster import CHECK_S, SimCluster
from .growth import Growth
from .histories import Get, History
from .linear import check
from .moves import COUNTER, REGISTER, CallModel
from .process import leaves
from .promises import BrokenPromiseError
from .storm_faults import (
    MACHINES,
    NEWCOMERS,
    PARTITIONS,
    STORM_S,
    StormFault,
    drawn_faults,
    parsed_fault,
)
from .transaction_mix import CLIENTS, TransactionMix
from .workloads import SharedMap, WorkloadClient, counter_clients, register_clients

T = TypeVar("T")

REGISTER_CLIENTS, COUNTER_CLIENTS = 6, 4
OPERATIONS = 30
PAUSE_S_MAX = 0.5
CALL_S_MAX = 6.0
END_S_MAX = 60.0
"""Seconds behind the last fault in which the calls of all clients have to end."""
REGISTER_KEYS = [f"r{number}" for number in range(8)]
COUNTER_KEYS = [f"c{number}" for number in range(4)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StormOutcome:
    """What became of a storm."""

    seed: int
    nodes: int
    backups: int = 0
    faults: tuple[str, ...]
    clients: tuple[int, ...]
    """Who worked."""
    failure: str | None
    """What went wrong, None if nothing did."""
    trace: str
    """The hash of all that happened."""
    calls: int
    answered: int


def run_storm(
    seed: int,
    *,
    nodes: int = 3,
    backups: int = 0,
    growing: bool = False,
    faults: Iterable[str] | None = None,
    clients: Iterable[int] | None = None,
    read_from: ReadFrom = "primary",
    transactions: bool = False,
) -> StormOutcome:
    """Run the storm of a seed, or with other faults or fewer clients, and tell what became of it.

    ``growing`` tells whether members join, leave, and lose their disks, too.  ``read_from`` is who
    answers the reads of every second machine; the others ask the primary.  ``transactions`` tells
    whether some clients have such over keys of any partitions.
    """
    working = chosen_clients(clients, transactions=transactions)
    chosen = (
        drawn_faults(seed, nodes, backups, growing=growing, transactions=transactions)
        if faults is None
        else [parsed_fault(line, nodes) for line in faults]
    )
    storm = _Storm(seed, nodes, backups, chosen, working, read_from, transactions=transactions)
    failure = None
    try:
        storm.cluster.run(storm.scenario)
        storm.judge()
    except Exception as error:
        failure = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves(error))
    calls = [call for history in (storm.registers, storm.counters) for call in history.calls()]
    return StormOutcome(
        seed=seed,
        nodes=nodes,
        backups=backups,
        faults=tuple(map(str, chosen)),
        clients=working,
        failure=failure,
        trace=storm.cluster.world.trace.hash,
        calls=len(calls),
        answered=sum(call.ending == "ok" for call in calls),
    )


def chosen_clients(some: Iterable[int] | None, *, transactions: bool) -> tuple[int, ...]:
    """Return the numbers of the clients that work, None for all; ``UsageError`` for others."""
    every = range(REGISTER_CLIENTS + COUNTER_CLIENTS + CLIENTS * transactions)
    chosen = tuple(every if some is None else sorted(set(some)))
    if not chosen or not set(chosen) <= set(every):
        told = ", ".join(map(str, chosen)) or "none"
        raise UsageError(
            f"clients {told}: there are 0 to {every[-1]}, and one has to work",
            hint="Give some of these; those of transactions need `transactions`.",
        )
    return chosen


def shrunk(plan: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return as little of a plan as it takes to fail still: no one of it can be left out."""
    left = list(plan)
    size = max(len(left) // 2, 1)
    while left:
        place, found = 0, False
        while place < len(left):
            fewer = left[:place] + left[place + size :]
            if fails(fewer):
                left, found = fewer, True
            else:
                place += size
        if size == 1 and not found:
            break
        size = max(size // 2, 1)
    return left


class PacedMap:
    """A map as its users on several machines have it, who pause before each operation."""

    def __init__(self, shared: Sequence[SharedMap], rng: random.Random) -> None:
        self._shared = shared
        self._rng = rng

    async def _map(self) -> SharedMap:
        await trio.sleep(self._rng.uniform(0, PAUSE_S_MAX))
        return self._rng.choice(self._shared)

    async def get(self, key: str, /) -> object:
        """Return a value."""
        return await (await self._map()).get(key)

    async def set(self, key: str, value: object, /) -> None:
        """Set a value."""
        await (await self._map()).set(key, value)

    async def discard(self, key: str, /) -> None:
        """Remove a key."""
        await (await self._map()).discard(key)

    async def compare_and_set(self, key: str, expected: object, value: object, /) -> bool:
        """Set a value if it was another."""
        return await (await self._map()).compare_and_set(key, expected, value)

    async def incr(self, key: str, delta: int = 1, /) -> int:
        """Add to a number."""
        return await (await self._map()).incr(key, delta)


class _Storm:
    def __init__(
        self,
        seed: int,
        nodes: int,
        backups: int,
        faults: Sequence[StormFault],
        working: Sequence[int],
        read_from: ReadFrom,
        *,
        transactions: bool,
    ) -> None:
        self._has_transactions = transactions
        self._transactions: TransactionMix | None = None
        rng = random.Random(f"{seed}:storm")
        self.cluster = SimCluster(
            seed=seed,
            nodes=nodes,
            partitions=PARTITIONS,
            backups=backups,
            options=Options(
                segment_bytes=rng.choice([1, 2_000, 10_000]),
                checkpoint_bytes=rng.choice([1, 1_000, 100_000]),
                checkpoint_interval=rng.choice([0.5, 60.0]),
                retain_bytes=rng.choice([1, 20_000, 1 << 20]),
            ),
        )
        self.registers, self.counters = History(), History()
        self._faults = faults
        self._chosen = working
        self._read_from = read_from
        self._down = dict.fromkeys(self.cluster.names, 0.5)
        self._growth = Growth(self.cluster)
        self._losses: tuple[Loss, ...] = ()
        self._working = 0
        self._ended = trio.Event()
        self._nursery: trio.Nursery

    # -------------------------------------------------------------- the run

    async def scenario(self, cluster: SimCluster) -> None:
        """Let clients work and faults come; then let everything settle, and read all back."""
        cluster.start()
        await cluster.settled()
        began = cluster.world.now()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            clients = self._clients()
            if self._transactions is not None:
                await self._transactions.fill()
            self._working = len(clients)
            for client in clients:
                nursery.start_soon(self._work, client)
            for name in cluster.names:
                nursery.start_soon(self._keep, name)
            nursery.start_soon(self._growth.keep_going)
            async with trio.open_nursery() as going_on:
                for fault in self._faults:
                    await trio.sleep(max(0.0, began + fault.at - cluster.world.now()))
                    going_on.start_soon(self._cause, fault)
                await trio.sleep(max(0.0, began + STORM_S - cluster.world.now()))
                going_on.cancel_scope.cancel()
            self._end_faults()
            with trio.move_on_after(END_S_MAX):
                while not self._growth.is_over:
                    await trio.sleep(CHECK_S)
            await self._settled()
            await cluster.whole()
            with trio.move_on_after(END_S_MAX):
                await self._ended.wait()
            if self._working:
                raise BrokenPromiseError(
                    f"{self._working} clients wait still {END_S_MAX:g} s after the last fault"
                )
            await self._read_back("reader")
            self._cut_power(0.1)
            await trio.sleep(0.05)
            await self._settled()
            await self._read_back("reader behind a power cut")
            await cluster.whole()
            await cluster.quiesce()
            self._losses = cluster.topology().losses
            await self._judge_transactions()
            nursery.cancel_scope.cancel()
        for name in sorted(cluster.running()):
            if problems := await cluster.verify(name):
                raise BrokenPromiseError(f"the store of {name}: {'; '.join(problems)}")

    def _clients(self) -> list[WorkloadClient]:
        """Return the clients that work, who use the databases of several machines."""
        cluster, world = self.cluster, self.cluster.world
        databases = [
            cluster.client(
                timeout=CALL_S_MAX, read_from=self._read_from if number % 2 else "primary"
            )
            for number in range(MACHINES)
        ]
        maps = [
            PacedMap(
                [database.map(name, key=Str, value=Msgpack) for database in databases],
                world.random(name),
            )
            for name in ("registers", "counters")
        ]
        chance = world.random("work")
        clients = register_clients(
            maps[0], self.registers, clients=REGISTER_CLIENTS, keys=REGISTER_KEYS,
            operations=OPERATIONS, chance=chance, clock=world.now,
        )  # fmt: skip
        clients += counter_clients(
            maps[1], self.counters, clients=COUNTER_CLIENTS, keys=COUNTER_KEYS,
            operations=OPERATIONS, chance=chance, clock=world.now,
        )  # fmt: skip
        if self._has_transactions:
            self._transactions = TransactionMix(
                databases, world.now, world.random("transactions"), banks=world.seed % 2 == 0
            )
            clients += self._transactions.clients()
        return [clients[number] for number in self._chosen]

    async def _work(self, client: WorkloadClient) -> None:
        await client()
        self._working -= 1
        if not self._working:
            self._ended.set()

    async def _keep(self, name: str) -> None:
        """Start a member whenever it has ended, until its disk is lost."""
        while True:
            await self.cluster.killed(name)
            await trio.sleep(self._down[name])
            if name in self._growth.lost:
                return
            self.cluster.start([name])

    async def _settled(self) -> None:
        await self.cluster.settled(self._growth.names)

    async def _read_back(self, reader: str) -> None:
        cluster = self.cluster
        database = cluster.client()
        for history, name, keys in (
            (self.registers, "registers", REGISTER_KEYS),
            (self.counters, "counters", COUNTER_KEYS),
        ):
            mapping = database.map(name, key=Str, value=Msgpack)
            for key in keys:
                call = history.begin(reader, Get(key), cluster.world.now())
                call.ok(await self._read(mapping, key), cluster.world.now())
        await database.aclose()

    async def _read(self, mapping: SharedMap, key: str) -> Any:
        """Read a key; a member whose disk is slow may be declared gone now, and comes back."""
        with trio.fail_after(END_S_MAX):
            while True:
                try:
                    return await mapping.get(key)
                except PartitionUnavailableError:
                    await trio.sleep(CHECK_S)
                    await self._settled()

    async def _judge_transactions(self) -> None:
        """Raise unless transactions were strictly serializable; of what was lost nothing is."""
        if self._transactions is None or self._losses:
            return
        database = self.cluster.client()
        found = await self._transactions.anomalies(database)
        await database.aclose()
        if found:
            raise BrokenPromiseError(f"not serializable: {found}")

    def judge(self) -> None:
        """Raise ``BrokenPromiseError`` unless both histories are linearizable, losses excepted."""
        both: list[tuple[History, CallModel]] = [
            (self.registers, REGISTER),
            (self.counters, COUNTER),
        ]
        for history, model in both:
            violation = check(history, model, left_out=self._lost_keys())
            if violation is not None:
                raise BrokenPromiseError(f"not linearizable: {violation}")

    def _lost_keys(self) -> Collection[str]:
        """Return the keys of partitions that were lost."""
        space, lost = Space(0, PARTITIONS), {loss.partition for loss in self._losses}
        keys = (*REGISTER_KEYS, *COUNTER_KEYS)
        return [key for key in keys if partition_of(Str.encode(key), space) in lost]

    # -------------------------------------------------------------- faults

    async def _cause(self, fault: StormFault) -> None:
        cluster, network = self.cluster, self.cluster.world.network
        cluster.world.trace.note("fault", str(fault))
        needs = fault.needs
        if fault.kind == "join":
            self._join(needs[0])
            return
        if not self._hits(fault):
            return
        match fault.kind:
            case "kill":
                self._down[needs[0]] = float(needs[2])
                cluster.nodes[needs[0]].kill(needs[1])
            case "kill_at":
                self._down[needs[0]] = float(needs[2])
                cluster.nodes[needs[0]].kill_at(needs[3], int(needs[1]))
            case "crash_at":
                self._down[needs[0]] = float(needs[3])
                disk = cluster.nodes[needs[0]].disk
                disk.crash_at(disk.operations + int(needs[1]), needs[2])
            case "fail":
                disk = cluster.nodes[needs[0]].disk
                disk.fail_at(disk.operations + int(needs[1]))
                await trio.sleep(float(needs[2]))
                self._end_read_only([needs[0]])
            case "full":
                disk = cluster.nodes[needs[0]].disk
                disk.fail_at(disk.operations + 1, "ENOSPC", for_ever=True)
                await trio.sleep(float(needs[1]))
                disk.heal()
            case "hang":
                cluster.nodes[needs[0]].hang_disk(float(needs[1]))
            case "stop":
                if needs[0] in cluster.running():
                    self._down[needs[0]] = float(needs[1])
                    await cluster.stop(needs[0])
            case "stop_all":
                self._down = dict.fromkeys(cluster.names, float(needs[0]))
                async with trio.open_nursery() as nursery:
                    for name in cluster.running():
                        nursery.start_soon(cluster.stop, name)
            case "move":
                self._move(int(needs[0]), needs[1])
            case "power_cut":
                self._cut_power(float(needs[0]))
            case "cut":
                some = needs[0].split(",")
                cluster.cut(some, [name for name in cluster.world.nodes if name not in some])
                await self._heal_after(needs[1])
            case "cut_way":
                network.cut(needs[0], needs[1])
                await self._heal_after(needs[2])
            case "hold":
                cluster.hold(needs[0], src=needs[1], dst=needs[2])
                await trio.sleep(float(needs[3]))
                cluster.release(needs[0], src=needs[1], dst=needs[2])
            case "reset":
                network.reset(needs[0], needs[1])
            case "half_open":
                network.half_open(needs[0], needs[1])
            case "suspend":
                cluster.nodes[needs[0]].clocks.suspend(float(needs[1]))
            case "leave" | "want":
                await self._growth.want(needs[0], wanted=fault.kind == "want")
            case "policy":
                await self._growth.choose(needs[0])
            case "lose":
                self._growth.lose(needs[0])
            case "jump":
                cluster.nodes[needs[0]].clocks.jump_wall(float(needs[1]))
            case _:
                cluster.nodes["n1"].clocks.move(float(needs[0]))

    def _hits(self, fault: StormFault) -> bool:
        """Tell whether everybody whom a fault names is there."""
        members = range(1, len(self.cluster.founders) + NEWCOMERS + 1)
        absent = {f"n{number}" for number in members} - self._growth.names
        return absent.isdisjoint(name for need in fault.needs for name in need.split(","))

    def _join(self, name: str) -> None:
        if self._growth.join(name):
            self._down[name] = 0.5
            self._nursery.start_soon(self._keep, name)

    def _move(self, partition: int, target: str) -> None:
        cluster = self.cluster
        primary = cluster.running().get(cluster.primary(partition)) if cluster.running() else None
        if primary is None or primary.ended:
            return
        if primary.partitions.serves(partition, primary.now):
            with suppress(UsageError):  # the target has no copy in sync
                primary.move(partition, cluster.member_id(target).bytes, lambda _refused: None)

    def _cut_power(self, down: float) -> None:
        self._down = dict.fromkeys(self.cluster.names, down)
        for name in self.cluster.names:
            self.cluster.nodes[name].kill("lost")

    def _end_read_only(self, names: Iterable[str]) -> None:
        """Kill those whose log or data file failed: they write it once they are started again."""
        running = self.cluster.running()
        for name in names:
            member = running.get(name)
            if member is None:
                continue
            if member.log.failure is not None or member._files.checkpointer.doubtful is not None:
                self.cluster.nodes[name].kill("kept")

    async def _heal_after(self, seconds: str) -> None:
        await trio.sleep(float(seconds))
        self.cluster.heal()

    def _end_faults(self) -> None:
        cluster = self.cluster
        cluster.heal()
        cluster.holds.release_all()
        for node in cluster.nodes.values():
            node.points.planned.clear()
            node.disk.crash_at(0)
            node.disk.heal()
        self._end_read_only(cluster.names)
