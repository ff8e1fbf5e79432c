"""One start of a program on a simulated machine, from its ``Environment`` to its end.

Invariants:

- A killed process does nothing any more that anybody could see: its disk and its network are dead
  before its tasks are cancelled, and what they do or raise while they end is ignored.
- Shields do not protect tasks from a kill; a task that goes on all the same is an error.
- ``run`` keeps the order and the limits of the real one.  Its work happens at one instant, some
  time after it was begun and some time before the result is there.

Left out: threads.  A program must hand what blocks to ``Environment.run``, and not use
``tidelog.aio``, whose threads no seed decides about.  What the next start finds is the business
of ``node``.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import trio

from ..engine.system.blocking import SYNC, WORKERS_MAX
from ..engine.system.environment import Environment
from ..engine.system.limits import LIMITS, Limits
from .clocks import NodeClocks
from .disk import FaultyDisk
from .environment import PID, Schedule, kv_on, seeded_ids
from .media import CRASH_OUTCOMES
from .network import Endpoint
from .plan import MOMENTS, SimulatedCrash
from .points import Points
from .trace import Trace
from .trio_switches import end_shields

WORK_S_MAX = 0.002
"""Most work takes so long at most, one part before it happens and one after."""
SLOW_S_MAX = 0.5
"""One in ``SLOW_ONE_IN`` takes up to so much longer."""
SLOW_ONE_IN = 50
PAUSE_S_MIN = 0.001
"""The background work of a process is looked at no more often."""
RENEWING = Limits(renewed_pairs=1, renewed_share=0)
"""Of every other node: any pair that is cleared gets it a new data file."""
STEPS_TO_END_MAX = 1000
"""Turns of the scheduler that the tasks of a killed process have to end in."""

T = TypeVar("T")


class Process:
    """A program that runs, or ran, on a node; made by ``Node.start``."""

    def __init__(
        self,
        name: str,
        number: int,
        *,
        seed: str,
        kv: str,
        disk: FaultyDisk,
        clocks: NodeClocks,
        endpoint: Endpoint,
        points: Points,
        trace: Trace,
        nursery: trio.Nursery,
        slow_disk: bool = True,
    ) -> None:
        self.name = name
        self.outcome: str | None = None
        """What its end leaves on the disk of what was not synced; None as long as it lives."""
        self.ended = trio.Event()
        self._disk = disk
        self._clocks = clocks
        self._endpoint = endpoint
        self._points = points
        self._trace = trace
        self._nursery = nursery
        self._slow_disk = slow_disk
        self.disk_answers_at = 0.0
        """When what it asks of its disk is begun at the earliest, in seconds of the world."""
        self._rng = random.Random(f"{seed}:faults")
        self._scope = trio.CancelScope()
        self._limits = trio.CapacityLimiter(1), trio.CapacityLimiter(WORKERS_MAX)
        self._due = trio.Event()
        self._schedule = Schedule(clocks, lambda: self._due.set())
        self._noted = 0
        disk.at_power_cut = self.kill
        self.environment = Environment(
            clock=clocks.wall_us,
            monotonic=clocks.steady_s,
            boottime=clocks.boot_s,
            random=random.Random(f"{seed}:random"),
            new_id=seeded_ids(f"{seed}:ids"),
            disk=disk,
            open_kv=kv_on(disk, kv),
            background=self._schedule.add,
            wait=self._schedule.advance,
            run=self._run,
            network=endpoint,
            reached=self._reached,
            pid=lambda: PID + number,
            limits=RENEWING if number % 2 else LIMITS,
        )

    def __repr__(self) -> str:
        return f"<Process of {self.name} {'ended' if self.ended.is_set() else 'running'}>"

    # ---------------------------------------------------------------- life and death

    async def live(self, program: Callable[[], Awaitable[object]]) -> None:
        """Run the program to its end, whichever that is; ``outcome`` says what it left."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._do_background_work)
                    await program()
                    nursery.cancel_scope.cancel()
        except BaseException as error:
            if self.outcome is None or not _is_of_the_dead(error):
                raise
        finally:
            self._die("kept")  # if it returned, or failed
            self._note_disk()

    def kill(self, outcome: str | None = None) -> None:
        """End it at once, leaving ``outcome``, or what the seed decides; twice is fine."""
        if outcome not in (None, *CRASH_OUTCOMES):
            raise ValueError(f"outcome must be one of {', '.join(CRASH_OUTCOMES)}, not {outcome!r}")
        if self.outcome is None:
            self._die(outcome or self._rng.choice(CRASH_OUTCOMES))
            self._nursery.start_soon(self._end_tasks)

    def _die(self, outcome: str) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self._trace.note(self.name, "end", outcome)
            self._disk.cut_power()
            # Before their streams wake them: nobody is to take his own end for that of a peer.
            self._scope.cancel()
            end_shields(self._scope)
            self._endpoint.leave(silent=outcome != "kept")

    async def _end_tasks(self) -> None:
        for _ in range(STEPS_TO_END_MAX):
            if self.ended.is_set():
                return
            end_shields(self._scope)
            await trio.lowlevel.cancel_shielded_checkpoint()
        raise RuntimeError(f"a task of {self.name} goes on though its process was killed")

    # ---------------------------------------------------------------- what its environment does

    async def _run(self, kind: str, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        async with self._limits[kind != SYNC]:
            with trio.CancelScope(shield=True):  # what was begun is waited for
                slow = trio.current_time() + self._seconds_of_work()
                await trio.sleep_until(max(slow, self.disk_answers_at))
                self._reached(f"before {kind}")
                inside = self._points.reach(f"inside {kind}")
                if inside:
                    number = self._disk.operations + self._rng.randint(1, 6)
                    self._disk.crash_at(number, self._rng.choice(MOMENTS))
                try:
                    result = work()
                finally:
                    self._note_disk()
                if inside:  # it did less than that
                    self._end_here(f"inside {kind}")
                self._reached(f"after {kind}")
                await trio.sleep(self._seconds_of_work())
        return result

    async def _do_background_work(self) -> None:
        while True:
            self._due = trio.Event()
            left = self._clocks.world_s(self._schedule.seconds_left())
            with trio.move_on_after(max(PAUSE_S_MIN, left)):
                await self._due.wait()
                await trio.sleep(self._rng.uniform(0, WORK_S_MAX))
            self._schedule.run_due()
            self._note_disk()

    def _seconds_of_work(self) -> float:
        rng = self._rng
        slow = 0.0 if rng.randrange(2 * SLOW_ONE_IN) else rng.uniform(0, SLOW_S_MAX)
        return rng.uniform(0, WORK_S_MAX / 2) + slow * self._slow_disk

    def _reached(self, point: str) -> None:
        self._trace.note(self.name, "reached", point)
        if self._points.reach(point):
            self._end_here(point)

    def _end_here(self, point: str) -> None:
        self.kill()
        raise SimulatedCrash(f"{self.name} was killed at {point!r}")

    def _note_disk(self) -> None:
        for operation in self._disk.trace[self._noted :]:
            self._trace.note(self.name, operation)
        self._noted = len(self._disk.trace)


def _is_of_the_dead(error: BaseException) -> bool:
    """Whether an error may come from a killed process: all but what is meant for the world."""
    meant_for_the_world = (trio.Cancelled, KeyboardInterrupt, SystemExit)
    return not any(isinstance(leaf, meant_for_the_world) for leaf in leaves(error))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that a group of groups has at its ends."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
