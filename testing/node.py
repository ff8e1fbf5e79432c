"""One machine of a simulated world: what outlives the processes that are started on it.

Invariants:

- At most one process runs at a time, and the next finds on the disk what the end of the last left.
- Each start has other ids, chance and process id, the same ones for the same seed.
- Clocks and planned ends go on over starts; a machine that lost its power boots.

Left out: what a process does and how it ends (``process``).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from ..engine.system.environment import Environment
from .clocks import NodeClocks
from .disk import FaultyDisk
from .network import SimulatedNetwork
from .points import Points
from .process import Process
from .trace import Trace

Program = Callable[["Node"], Awaitable[object]]


class Node:
    """One machine and its program; made by ``World.add``."""

    environment: Environment
    """What the process of the newest start stands on."""

    def __init__(
        self,
        name: str,
        program: Program,
        *,
        seed: str,
        kv: str,
        clocks: NodeClocks,
        network: SimulatedNetwork,
        trace: Trace,
        slow_disk: bool = True,
    ) -> None:
        self.name = name
        self.clocks = clocks
        self.points = Points()
        self.starts = 0
        self._program = program
        self._seed = seed
        self._kv = kv
        self._slow_disk = slow_disk
        self._network = network
        self._trace = trace
        self._seeds = random.Random(f"{seed}:disks")
        self._process: Process | None = None
        self._nursery: trio.Nursery | None = None
        self.disk = FaultyDisk(self._seeds.getrandbits(32))
        """The disk of the process that runs; behind its end, what the next one finds."""

    def __repr__(self) -> str:
        state = "running" if self.running else "down"
        return f"<Node {self.name} {state} starts={self.starts}>"

    @property
    def running(self) -> bool:
        """Whether a process runs that was not killed."""
        return self._process is not None and self._process.outcome is None

    def enter(self, nursery: trio.Nursery) -> None:
        """Be in a world that runs."""
        self._nursery = nursery

    def start(self) -> None:
        """Start the program; the process before it must have ended."""
        if self._nursery is None:
            raise RuntimeError("a node can be started only while its world runs")
        if self._process is not None:
            raise RuntimeError(f"{self.name} has a process that has not ended")
        self.starts += 1
        self._trace.note(self.name, "start", self.starts)
        self._process = Process(
            self.name,
            self.starts,
            seed=f"{self._seed}:{self.starts}",
            kv=self._kv,
            disk=self.disk,
            clocks=self.clocks,
            endpoint=self._network.join(self.name),
            points=self.points,
            trace=self._trace,
            nursery=self._nursery,
            slow_disk=self._slow_disk,
        )
        self.environment = self._process.environment
        self._nursery.start_soon(self._live, self._process)

    def kill(self, outcome: str | None = None) -> None:
        """End the process at once; if none runs nothing happens.

        ``outcome`` says what stays of what the disk had not synced: ``kept`` is a process that was
        killed on a machine that runs on; ``lost``, ``torn`` and ``reordered`` are power cuts, of
        which its peers hear nothing.  Without it the seed decides.
        """
        if self._process is not None:
            self._process.kill(outcome)

    def kill_at(self, point: str, nth: int = 1) -> None:
        """Let the process end when it reaches a point for the n-th time from now on.

        Points are those of ``Environment.reached``, and ``before``, ``inside`` and ``after`` each
        kind of ``Environment.run``, as in ``inside sync``.
        """
        self.points.plan(point, nth)

    def hang_disk(self, seconds: float) -> None:
        """Let nothing that the process asks of its disk be done before some seconds have passed.

        That is about what it has threads for.  The next process finds a disk that answers.
        """
        if self._process is not None:
            self._process.disk_answers_at = trio.current_time() + seconds

    async def wait_ended(self) -> None:
        """Return once no process runs here, and the disk is what the last one left."""
        if self._process is not None:
            await self._process.ended.wait()

    async def restart(self, outcome: str | None = None) -> None:
        """Kill the process if one runs, and start the program once more."""
        self.kill(outcome)
        await self.wait_ended()
        self.start()

    async def _live(self, process: Process) -> None:
        try:
            await process.live(lambda: self._program(self))
        finally:
            assert process.outcome is not None
            self.disk = self.disk.crash(process.outcome)
            self.disk.seed = self._seeds.getrandbits(32)
            if process.outcome != "kept":
                self.clocks.reboot()
            self._process = None
            process.ended.set()
