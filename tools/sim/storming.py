"""Storms in processes of their own: what became of each seed, and how little that takes.

Invariants:

- What a seed does depends on nothing but the seed, the number of members and of backups, the
  faults, and which clients work, so the command that is told shows the same again.
- However this ends, no process that was started here is left.

Left out: what a storm is (``testing.storms``), how it is told (``cli``).
"""

from __future__ import annotations

import logging
import multiprocessing
import shlex
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from ...affinity.errors import UsageError
from ...engine.client.copies import ReadFrom
from ...testing.process import leaves
from ...testing.storms import run_storm, shrunk

NUMBER_MAX = 2**31
RUNS_MAX = 100
"""Storms that are run in search of less that fails, too, for each seed that failed."""


class Shape(NamedTuple):
    """How many members begin a cluster, how many copies of a partition there are beside its first.

    ``growing`` tells whether the seed has members join, leave and lose their disks, too, and
    ``transactions`` whether some clients have such over keys of any partitions; ``clients`` are
    those that work, None if all do, and ``read_from`` is who answers every second machine.
    """

    nodes: int
    backups: int = 0
    growing: bool = False
    transactions: bool = False
    clients: tuple[int, ...] | None = None
    read_from: ReadFrom = "primary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one seed."""

    seed: int
    shape: Shape
    """With as few clients as it takes; none of them can be left out, if the runs sufficed."""
    failure: str | None
    """What went wrong behind as few faults as it takes, None if nothing did."""
    faults: tuple[str, ...]
    """These faults; with all clients none of them can be left out, if the runs sufficed."""

    @property
    def command(self) -> str:
        """The command line that shows the failure again."""
        shape = self.shape
        words = ["tidelog", "sim", "--seeds", str(self.seed), "--nodes", str(shape.nodes)]
        if shape.backups:
            words += ["--backups", str(shape.backups)]
        if shape.transactions:
            words.append("--transactions")
        if shape.read_from != "primary":
            words += ["--read-from", shape.read_from]
        if shape.clients is not None:
            words += ["--clients", ",".join(map(str, shape.clients))]
        for fault in self.faults:
            words += ["--fault", fault]
        return shlex.join(words if self.faults else [*words, "--no-faults"])


def parsed_numbers(text: str, what: str) -> list[int]:
    """Return the seeds or clients that a text names: ``17``, ``1-200``, ``3,9-12``; ``UsageError``.

    ``what`` is the word for them.
    """
    ranges = [_range_of(part, what) for part in text.split(",")]
    return list(dict.fromkeys(chain.from_iterable(ranges)))


def _range_of(text: str, what: str) -> range:
    first, dash, last = text.strip().partition("-")
    if not all(part.isdecimal() and part.isascii() for part in (first, last if dash else first)):
        raise UsageError(f"{text!r} names no {what}", hint="Write them as 17, 1-200 or 3,9-12.")
    lowest, highest = int(first), int(last if dash else first)
    if highest < lowest:
        raise UsageError(
            f"{text!r} names no {what}: {highest} is less than {lowest}",
            hint=f"Write {highest}-{lowest}.",
        )
    if highest > NUMBER_MAX:
        raise UsageError(f"{highest} is too large", hint=f"The largest number is {NUMBER_MAX}.")
    return range(lowest, highest + 1)


def judged(
    seed: int, shape: Shape, faults: tuple[str, ...] | None, runs: int = RUNS_MAX
) -> Verdict:
    """Run the storm of a seed, or these faults; if it fails, find how little it takes to fail.

    Faults are left out first, then clients; what so many more runs have not left out stays.
    """
    storm = partial(
        run_storm, seed, nodes=shape.nodes, backups=shape.backups, transactions=shape.transactions,
        read_from=shape.read_from,
    )  # fmt: skip
    outcome = storm(growing=shape.growing, faults=faults, clients=shape.clients)
    verdict = Verdict(seed=seed, shape=shape, failure=outcome.failure, faults=outcome.faults)
    if verdict.failure is None:
        return verdict
    failures = {(outcome.faults, outcome.clients): outcome.failure}

    def fails(some: Iterable[str], working: Iterable[int]) -> bool:
        plan = tuple(some), tuple(working)
        if plan not in failures and plan[1] and len(failures) <= runs:
            failures[plan] = storm(faults=plan[0], clients=plan[1]).failure
        return failures.get(plan) is not None

    few = tuple(shrunk(outcome.faults, lambda some: fails(some, outcome.clients)))
    who = tuple(shrunk(outcome.clients, lambda some: fails(few, some)))
    clients = shape.clients if who == outcome.clients else who
    return replace(
        verdict, shape=shape._replace(clients=clients), failure=failures[few, who], faults=few
    )


def judged_seeds(
    seeds: list[int], shape: Shape, faults: tuple[str, ...] | None, jobs: int
) -> Iterator[Verdict]:
    """Yield what became of each seed, in the order in which they end.

    With one job all runs in this process.
    """
    if jobs == 1:
        with _quiet_members():
            for seed in seeds:
                try:
                    verdict = judged(seed, shape, faults)
                except BaseExceptionGroup as group:  # an interrupt, among what it did to the world
                    raise _interrupt_of(group) from None
                yield verdict
        return
    try:
        yield from _judged_in_processes(seeds, shape, faults, jobs)
    except (EOFError, ConnectionError):
        raise RuntimeError("a process that ran storms ended by itself") from None


def _judged_in_processes(
    seeds: list[int], shape: Shape, faults: tuple[str, ...] | None, jobs: int
) -> Iterator[Verdict]:
    rest = iter(seeds)
    with _workers(jobs, shape, faults) as workers:
        busy = []
        for worker, seed in zip(workers, rest, strict=False):
            worker.send(seed)
            busy.append(worker)
        while busy:
            for ready in wait(busy):
                assert isinstance(ready, Connection)
                verdict: Verdict = ready.recv()
                seed_next = next(rest, None)
                if seed_next is None:
                    busy.remove(ready)
                else:
                    ready.send(seed_next)
                yield verdict


@contextmanager
def _workers(jobs: int, shape: Shape, faults: tuple[str, ...] | None) -> Iterator[list[Connection]]:
    """Run processes that answer each seed with a verdict.

    No pool of the library's: its threads and locks are left anyhow by a signal that comes between.
    """
    context = multiprocessing.get_context("spawn")
    workers: list[Connection] = []
    try:
        for _ in range(jobs):
            here, there = context.Pipe()
            workers.append(here)
            with _ignoring_interrupts():  # as the process does then: this one ends it
                context.Process(target=_work, args=(there, shape, faults), daemon=True).start()
            there.close()
        yield workers
    finally:
        children = multiprocessing.active_children()
        for child in children:
            child.terminate()
        for child in children:
            child.join()
        for worker in workers:
            worker.close()


def _work(asker: Connection, shape: Shape, faults: tuple[str, ...] | None) -> None:
    logging.disable(logging.CRITICAL)
    with suppress(EOFError, ConnectionError):  # whoever asked is no more
        while True:
            asker.send(judged(asker.recv(), shape, faults))


def _interrupt_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    return next((one for one in leaves(group) if isinstance(one, KeyboardInterrupt)), group)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _quiet_members() -> Iterator[None]:
    """Let members that are killed by the dozen log nothing."""
    log = logging.getLogger("tidelog")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)
