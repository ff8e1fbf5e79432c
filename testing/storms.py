"""Storms: clients of a simulated cluster work while faults come that a seed decides.

    run_storm(17)                                   # faults as the seed has them
    run_storm(17, faults=["2.500 kill n1 torn 0.8"])  # these, and no others

Behind the last fault everything is healed, and has to settle; every key is read back, also behind a
power cut of all members at once; in the end copies have to be equal, and the histories of registers
and counters linearizable.  What is looked at meanwhile is the business of ``SimCluster``.

A fault is a line: when it comes, what it is, and what that needs.

    AT kill NAME OUTCOME DOWN         a process ends, and is started again DOWN seconds later
    AT kill_at NAME NTH DOWN POINT    the same, when a point is reached for the n-th time
    AT crash_at NAME NTH MOMENT DOWN  its machine loses power at the n-th operation of its disk
    AT stop NAME DOWN                 a member drains and ends
    AT stop_all DOWN                  all members are told to
    AT move PARTITION NAME            a partition is handed over to a member, if it has a copy
    AT power_cut DOWN                 all members lose power
    AT cut NAMES SECONDS              nothing passes between these hosts and the others
    AT cut_way FROM TO SECONDS        nothing of one host arrives at another
    AT hold KIND FROM TO SECONDS      connections stand still from a message of a kind on
    AT reset ONE OTHER                connections break
    AT half_open ONE OTHER            connections break, and only one end knows
    AT suspend NAME SECONDS           the steady clock stands still
    AT jump NAME SECONDS              the wall clock is set
    AT stall SECONDS                  time passes in which nobody does anything
    AT fail NAME NTH SECONDS          the n-th operation of its disk is an I/O error; if its log
                                      failed by then, it is killed SECONDS later
    AT full NAME SECONDS              its disk has no space

NAMES are joined by commas.  The end of any cut heals all.

Left out: a machine that stands still alone (the world has none).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite

import trio

from ..affinity.errors import UsageError
from ..engine.client.copies import ReadFrom
from ..engine.codecs.registry import Msgpack, Str
from ..engine.store.options import Options
from .cluster import KINDS, POINTS, SimCluster
from .histories import Get, History
from .linear import check
from .media import CRASH_OUTCOMES
from .moves import COUNTER, REGISTER, CallModel
from .plan import MOMENTS
from .process import leaves
from .promises import BrokenPromiseError
from .workloads import SharedMap, WorkloadClient, counter_clients, register_clients

PARTITIONS = 16
STORM_S = 10.0
FAULTS_MIN, FAULTS_MAX = 5, 15
MACHINES = 2
OPERATIONS = 30
PAUSE_S_MAX = 0.5
CALL_S_MAX = 6.0
END_S_MAX = 60.0
"""Seconds behind the last fault in which the calls of all clients have to end."""
REGISTER_KEYS = [f"r{number}" for number in range(8)]
COUNTER_KEYS = [f"c{number}" for number in range(4)]

KILL_POINTS = (
    *(point for point in POINTS if point.split(".")[0] in ("config", "checkpoint", "rotate")),
    "tx.before_prepare_log",
    "tx.after_prepare_log",
    "tx.after_prepare_sync",
    "takeover.after_seal",
    "takeover.after_open",
    *(
        f"{moment} {kind}"
        for kind in ("sync", "checkpoint", "open", "outcome")
        for moment in ("before", "inside", "after")
    ),
)
COPIES_POINTS = (
    "tx.after_prepared_sent",
    "tx.before_commit_log",
    "tx.after_commit_log",
    "takeover.after_report",
    "takeover.after_list_logged",
    "takeover.after_list_stored",
    "admit.sent",
    "admit.logged",
    "supply.first",
    "supply.middle",
    "supply.last",
    "join.sent",
    "add.proposed",
    "add.decided",
    *(f"{moment} supply" for moment in ("before", "inside", "after")),
)
"""Points that only members reach whose partitions have other copies."""
COPIES_KINDS = (
    *("replicate", "stored", "report", "settle", "settle-stored") * 2,
    *("admit", "supply", "fill", "demand"),
)
PLANNED_WEIGHTS = ((0, 0), (1, 8))
"""Of ``stop_all`` and ``move``, without copies and with them."""
HELD_KINDS = ("ping", "pong", "lease", "propose", "accepted", "decided", "ask-promise")


@dataclass(frozen=True, slots=True)
class StormFault:
    """One fault of a storm, as a line."""

    at: float
    kind: str
    needs: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((f"{self.at:.3f}", self.kind, *self.needs))


_FORMS: dict[str, tuple[str, ...]] = {
    "kill": ("member", "outcome", "seconds"),
    "kill_at": ("member", "count", "seconds", "point"),
    "crash_at": ("member", "count", "moment", "seconds"),
    "stop": ("member", "seconds"),
    "stop_all": ("seconds",),
    "move": ("partition", "member"),
    "power_cut": ("seconds",),
    "cut": ("hosts", "seconds"),
    "cut_way": ("host", "host", "seconds"),
    "hold": ("kind", "member", "member", "seconds"),
    "reset": ("host", "host"),
    "half_open": ("host", "host"),
    "suspend": ("member", "seconds"),
    "jump": ("member", "number"),
    "stall": ("seconds",),
    "fail": ("member", "count", "seconds"),
    "full": ("member", "seconds"),
}
"""Kind of fault -> what it needs, word by word; a point may be two words."""


def parsed_fault(line: str, nodes: int) -> StormFault:
    """Return the fault that a line tells of; ``UsageError`` if a cluster has no such fault."""
    at, kind, *needs = [*line.split(), "", ""]
    needs = needs[:-2]
    form = _FORMS.get(kind, ())
    if form and form[-1] == "point":
        needs[len(form) - 1 :] = [" ".join(needs[len(form) - 1 :])]
    pairs = zip(form, needs, strict=False)
    wrong = next((word for name, word in pairs if not _fits(name, word, nodes)), None)
    if not _fits("seconds", at, nodes) or kind not in _FORMS or len(needs) != len(form):
        raise UsageError(f"{line!r} is not a fault", hint=_HINT)
    if wrong is not None:
        raise UsageError(f"{wrong!r} in the fault {line!r} is not right there", hint=_HINT)
    return StormFault(float(at), kind, tuple(needs))


_HINT = "`python -m pydoc tidelog.testing.storms` shows their forms."


def _fits(need: str, word: str, nodes: int) -> bool:
    members, hosts = _names(nodes)
    known: dict[str, Container[str]] = {
        "member": members,
        "host": hosts,
        "outcome": CRASH_OUTCOMES,
        "moment": MOMENTS,
        "point": (*KILL_POINTS, *COPIES_POINTS, *POINTS),
        "kind": KINDS,
    }
    match need:
        case "partition":
            return word.isdecimal() and int(word) < PARTITIONS
        case "hosts":
            return set(word.split(",")) < set(hosts)
        case "count":
            return word.isdecimal() and int(word) > 0
        case "seconds" | "number":
            try:
                number = float(word)
            except ValueError:
                return False
            return isfinite(number) and (need == "number" or number >= 0)
    return word in known[need]


def _names(nodes: int) -> tuple[list[str], list[str]]:
    """Return the names of members, and of all hosts."""
    members = [f"n{number}" for number in range(1, nodes + 1)]
    return members, [*members, *(f"c{number}" for number in range(1, MACHINES + 1))]


def drawn_faults(seed: int, nodes: int, backups: int = 0) -> list[StormFault]:
    """Return the faults of a seed, in the order of time."""
    rng = random.Random(f"{seed}:{nodes}:faults")
    count = rng.randint(FAULTS_MIN, FAULTS_MAX)
    times = sorted(round(rng.uniform(0, STORM_S), 3) for _ in range(count))
    return [_drawn(rng, at, nodes, backups) for at in times]


def _drawn(rng: random.Random, at: float, nodes: int, backups: int) -> StormFault:
    members, hosts = _names(nodes)
    one, other = rng.sample(members, 2)
    host, far = rng.sample(hosts, 2)
    seconds, down = f"{rng.uniform(0.1, 4.0):.3f}", f"{rng.uniform(0.0, 3.0):.3f}"
    kind = rng.choices(
        list(_FORMS),
        [4, 5, 4, 1, *PLANNED_WEIGHTS[backups > 0], 1, 3, 3, 2, 2, 1, 1, 1, 1, 3, 1],
    )[0]
    match kind:
        case "kill":
            needs = [one, rng.choice(CRASH_OUTCOMES), down]
        case "kill_at":
            needs = [
                one,
                str(rng.choice([1, 1, 2, 5, 20])),
                down,
                rng.choice(KILL_POINTS + COPIES_POINTS * bool(backups)),
            ]
        case "crash_at":
            needs = [one, str(rng.randint(1, 200)), rng.choice(MOMENTS), down]
        case "fail":
            needs = [one, str(rng.randint(1, 200)), down]
        case "full":
            needs = [one, seconds]
        case "stop":
            needs = [one, down]
        case "move":
            needs = [str(rng.randrange(PARTITIONS)), one]
        case "power_cut" | "stop_all":
            needs = [down]
        case "cut":
            side = rng.sample(hosts, rng.randint(1, len(hosts) // 2))
            needs = [",".join(sorted(side)), seconds]
        case "cut_way":
            needs = [host, far, seconds]
        case "hold":
            needs = [rng.choice(HELD_KINDS + COPIES_KINDS * bool(backups)), one, other, seconds]
        case "reset" | "half_open":
            needs = [host, far]
        case "suspend":
            needs = [one, seconds]
        case "jump":
            needs = [one, f"{rng.uniform(-30, 30):.3f}"]
        case _:
            needs = [f"{rng.uniform(0.1, 3.0):.3f}"]
    return StormFault(at, kind, tuple(needs))


@dataclass(frozen=True, slots=True, kw_only=True)
class StormOutcome:
    """What became of a storm."""

    seed: int
    nodes: int
    backups: int = 0
    faults: tuple[str, ...]
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
    faults: Iterable[str] | None = None,
    read_from: ReadFrom = "primary",
) -> StormOutcome:
    """Run the storm of a seed, or with other faults than it has, and tell what became of it.

    ``read_from`` is who answers the reads of every second machine; the others ask the primary.
    """
    chosen = (
        drawn_faults(seed, nodes, backups)
        if faults is None
        else [parsed_fault(line, nodes) for line in faults]
    )
    storm = _Storm(seed, nodes, backups, chosen, read_from)
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
        failure=failure,
        trace=storm.cluster.world.trace.hash,
        calls=len(calls),
        answered=sum(call.ending == "ok" for call in calls),
    )


def shrunk(faults: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return as few of the faults as it takes to fail still: no one of them can be left out."""
    left = list(faults)
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
        read_from: ReadFrom,
    ) -> None:
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
        self._read_from = read_from
        self._down = dict.fromkeys(self.cluster.names, 0.5)
        self._working = 0
        self._ended = trio.Event()

    # -------------------------------------------------------------- the run

    async def scenario(self, cluster: SimCluster) -> None:
        """Let clients work and faults come; then let everything settle, and read all back."""
        cluster.start()
        await cluster.settled()
        began = cluster.world.now()
        async with trio.open_nursery() as nursery:
            clients = self._clients()
            self._working = len(clients)
            for client in clients:
                nursery.start_soon(self._work, client)
            for name in cluster.names:
                nursery.start_soon(self._keep, name)
            async with trio.open_nursery() as going_on:
                for fault in self._faults:
                    await trio.sleep(max(0.0, began + fault.at - cluster.world.now()))
                    going_on.start_soon(self._cause, fault)
                await trio.sleep(max(0.0, began + STORM_S - cluster.world.now()))
                going_on.cancel_scope.cancel()
            self._end_faults()
            await cluster.settled()
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
            await cluster.settled()
            await self._read_back("reader behind a power cut")
            await cluster.whole()
            await cluster.quiesce()
            nursery.cancel_scope.cancel()

    def _clients(self) -> list[WorkloadClient]:
        """Return clients of both maps, who use the databases of several machines."""
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
            maps[0], self.registers, clients=6, keys=REGISTER_KEYS, operations=OPERATIONS,
            chance=chance, clock=world.now,
        )  # fmt: skip
        clients += counter_clients(
            maps[1], self.counters, clients=4, keys=COUNTER_KEYS, operations=OPERATIONS,
            chance=chance, clock=world.now,
        )  # fmt: skip
        return clients

    async def _work(self, client: WorkloadClient) -> None:
        await client()
        self._working -= 1
        if not self._working:
            self._ended.set()

    async def _keep(self, name: str) -> None:
        """Start a member whenever it has ended."""
        while True:
            await self.cluster.killed(name)
            await trio.sleep(self._down[name])
            self.cluster.start([name])

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
                call.ok(await mapping.get(key), cluster.world.now())
        await database.aclose()

    def judge(self) -> None:
        """Raise ``BrokenPromiseError`` unless both histories are linearizable."""
        both: list[tuple[History, CallModel]] = [
            (self.registers, REGISTER),
            (self.counters, COUNTER),
        ]
        for history, model in both:
            violation = check(history, model)
            if violation is not None:
                raise BrokenPromiseError(f"not linearizable: {violation}")

    # -------------------------------------------------------------- faults

    async def _cause(self, fault: StormFault) -> None:
        cluster, network = self.cluster, self.cluster.world.network
        cluster.world.trace.note("fault", str(fault))
        needs = fault.needs
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
            case "jump":
                cluster.nodes[needs[0]].clocks.jump_wall(float(needs[1]))
            case _:
                cluster.nodes["n1"].clocks.move(float(needs[0]))

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
        """Kill those whose log failed: they only read until they are started again (I6)."""
        running = self.cluster.running()
        for name in names:
            if name in running and running[name].log.failure is not None:
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
