"""Storms in processes of their own: what became of each seed, and as few faults as that takes.

Invariants:

- What a seed does depends on nothing but the seed, the number of members and of backups, and the
  faults, so the command that is told shows the same again.
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
from ...testing.process import leaves
from ...testing.storms import run_storm, shrunk

SEED_MAX = 2**31


class Shape(NamedTuple):
    """How many members begin a cluster, how many copies of a partition there are beside its first.

    ``growing`` tells whether the seed has members join, leave and lose their disks, too, and
    ``transactions`` whether some clients have such over keys of any partitions.
    """

    nodes: int
    backups: int = 0
    growing: bool = False
    transactions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one seed."""

    seed: int
    nodes: int
    backups: int = 0
    transactions: bool = False
    failure: str | None
    """What went wrong behind as few faults as it takes, None if nothing did."""
    faults: tuple[str, ...]
    """These faults; none of them can be left out."""

    @property
    def command(self) -> str:
        """The command line that shows the failure again."""
        words = ["tidelog", "sim", "--seeds", str(self.seed), "--nodes", str(self.nodes)]
        if self.backups:
            words += ["--backups", str(self.backups)]
        if self.transactions:
            words.append("--transactions")
        for fault in self.faults:
            words += ["--fault", fault]
        return shlex.join(words if self.faults else [*words, "--no-faults"])


def parsed_seeds(text: str) -> list[int]:
    """Return the seeds that a text names: ``17``, ``1-200``, ``3,9-12``; ``UsageError``."""
    return list(dict.fromkeys(chain.from_iterable(map(_range_of, text.split(",")))))


def _range_of(text: str) -> range:
    first, dash, last = text.strip().partition("-")
    if not all(part.isdecimal() and part.isascii() for part in (first, last if dash else first)):
        raise UsageError(f"{text!r} names no seeds", hint="Write them as 17, 1-200 or 3,9-12.")
    lowest, highest = int(first), int(last if dash else first)
    if highest < lowest:
        raise UsageError(
            f"{text!r} names no seeds: {highest} is less than {lowest}",
            hint=f"Write {highest}-{lowest}.",
        )
    if highest > SEED_MAX:
        raise UsageError(f"the seed {highest} is too large", hint=f"The largest is {SEED_MAX}.")
    return range(lowest, highest + 1)


def judged(seed: int, shape: Shape, faults: tuple[str, ...] | None) -> Verdict:
    """Run the storm of a seed, or these faults; if it fails, find as few as it takes to fail."""
    storm = partial(
        run_storm, seed, nodes=shape.nodes, backups=shape.backups, transactions=shape.transactions
    )
    outcome = storm(growing=shape.growing, faults=faults)
    verdict = Verdict(
        seed=seed, nodes=shape.nodes, backups=shape.backups, transactions=shape.transactions,
        failure=outcome.failure, faults=outcome.faults,
    )  # fmt: skip
    if verdict.failure is None:
        return verdict
    failures = {outcome.faults: outcome.failure}

    def fails(some: Iterable[str]) -> bool:
        failure = storm(faults=some).failure
        if failure is not None:
            failures[tuple(some)] = failure
        return failure is not None

    few = tuple(shrunk(outcome.faults, fails))
    return replace(verdict, failure=failures[few], faults=few)


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
