"""A simulated world: several machines, a network between them, and one seed that decides it all.

    async def serve(node):
        listener = await node.environment.network.listen((node.name, 7000))
        ...

    world = World(seed=7)
    server, client = world.add("server", serve), world.add("client", ask)

    async def scenario():
        server.start()
        client.start()
        await trio.sleep(1)
        await server.restart("lost")

    world.run(scenario)

Invariants:

- The same seed and the same programs give the same ``trace.hash``, in any process.
- Time passes only when every task waits: then it jumps to the next deadline.
- Nothing of a world is left behind its run: no open store, no switch of Trio, no scratch file.

Left out: threads (``process`` says what that means for a program).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
from trio.testing import MockClock

from .clocks import NodeClocks
from .network import SimulatedNetwork
from .node import Node, Program
from .trace import Trace
from .trio_switches import repeatable

T = TypeVar("T")


class World:
    """Machines and a network, and what happens to them."""

    def __init__(
        self,
        seed: int,
        *,
        kv: str = "memory",
        delay_s: float | None = None,
        slow_disks: bool = True,
    ) -> None:
        """``delay_s`` is how long everything is on its way between two machines, in seconds;
        without it the seed decides, and some is late.  ``slow_disks`` tells whether some of what
        blocks takes up to half a second.
        """
        self.seed = seed
        self._slow_disks = slow_disks
        self.nodes: dict[str, Node] = {}
        self._kv = kv
        self._nursery: trio.Nursery | None = None
        self._clock = MockClock(autojump_threshold=0)
        self.trace = Trace(self.now)
        self.network = SimulatedNetwork(seed, self.trace, self.now, delay_s)

    def __repr__(self) -> str:
        return f"<World seed={self.seed} nodes={sorted(self.nodes)} at {self.now():.6f} s>"

    def now(self) -> float:
        """Return the seconds since the world began, which no node knows."""
        return self._clock.current_time()

    def random(self, name: str) -> random.Random:
        """Return random numbers of the seed for a purpose, for scenarios and their faults."""
        return random.Random(f"{self.seed}:scenario:{name}")

    def add(self, name: str, program: Program) -> Node:
        """Add a machine, with the program that runs on it once it is started."""
        if name in self.nodes:
            raise ValueError(f"there is a node {name!r} already")
        seed = f"{self.seed}:{name}"
        node = Node(
            name,
            program,
            seed=seed,
            kv=self._kv,
            clocks=NodeClocks(random.Random(f"{seed}:clocks"), self.now, self._clock.jump),
            network=self.network,
            trace=self.trace,
            slow_disk=self._slow_disks,
        )
        self.nodes[name] = node
        if self._nursery is not None:
            node.enter(self._nursery)
        return node

    def run(self, scenario: Callable[[], Awaitable[T]], *, seconds_max: float = 3600.0) -> T:
        """Return ``await scenario()``; nodes that run still are killed then.

        What goes wrong in the scenario or in the program of a node that lives is raised, with the
        seed and the newest events in a note.  So is the world's end, after ``seconds_max``.
        """
        try:
            with repeatable(f"{self.seed}:schedule"):
                return trio.run(self._main, scenario, seconds_max, clock=self._clock)
        except BaseException as error:
            alone = error
            while isinstance(alone, BaseExceptionGroup) and len(alone.exceptions) == 1:
                alone = alone.exceptions[0]
            alone.add_note("\n".join([f"world of seed {self.seed}:", *self.trace.recent]))
            raise alone from alone.__cause__

    async def _main(self, scenario: Callable[[], Awaitable[T]], seconds_max: float) -> T:
        with trio.fail_after(seconds_max):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for node in self.nodes.values():
                    node.enter(nursery)
                nursery.start_soon(self.network.run)
                result = await scenario()
                for node in self.nodes.values():
                    node.kill("kept")
                    await node.wait_ended()
                nursery.cancel_scope.cancel()
        return result
