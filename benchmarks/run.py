"""Run the benchmarks: every workload with all its peers side by side, round by round.

    .venv/bin/python benchmarks/run.py --write

Each measurement runs in a fresh process; nothing but the measurement is timed.  Before it the file
system is synced, so that no peer pays for what another left behind; the order of the peers turns
from round to round.  Ratios are taken within a round, and their median is compared with the
target.  The data goes to `build/`, because a store in memory would say nothing about syncs.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import sleep
from typing import TypeVar

import report
from peers import MODULES, STORES
from workloads import (
    LOADED_STATES,
    QUICK,
    TIDELOG,
    WORKLOADS,
    Job,
    Scale,
    Workload,
    load_and_die,
    memory_load,
    memory_reopen,
    memory_scan,
    prepare,
)

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
IN_MEMORY = ("tmpfs", "ramfs")
POLL_SECONDS = 0.02
Result = TypeVar("Result")


class ChildError(Exception):
    """A measuring process ended without an answer."""


# -------------------------------------------------------------------------------- fresh processes


def in_child(
    task: Callable[[Job], Result],
    job: Job,
    *,
    dies: bool = False,
    watch: Callable[[int], None] | None = None,
) -> Result | None:
    """What a task returns, run in a new process; `watch` is called with its id all the while."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, task, job))
    child.start()
    sender.close()
    while watch is not None and child.is_alive():
        watch(child.pid or 0)
        sleep(POLL_SECONDS)
    try:
        result: Result | None = receiver.recv()
    except EOFError:
        result = None
    child.join()
    receiver.close()
    if child.exitcode != (-signal.SIGKILL if dies else 0):
        raise ChildError(f"{job.peer}: {task.__name__} ended with code {child.exitcode}")
    return result


def _answer(sender: Connection, task: Callable[[Job], object], job: Job) -> None:
    logging.disable(logging.WARNING)  # what is killed here on purpose need not say so
    sender.send(task(job))


def anonymous_bytes(process: int) -> int:
    """The anonymous memory of a process; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


# ------------------------------------------------------------------------------------------ rounds


class Stage:
    """The directories of one run: prepared stores, made once, and the one being measured."""

    def __init__(self, path: Path, scale: Scale) -> None:
        self._path = path
        self._scale = scale
        self._measured = path / "measured"

    def measure(self, workload: Workload, peer: str) -> list[float]:
        """One figure per row, from a fresh process on a store in the state asked for."""
        path = self._store(workload, peer)
        os.sync()
        writers = workload.writers_of(peer)
        job = Job(peer=peer, path=path, scale=self._scale, writers=writers)
        try:
            return list(in_child(workload.measure, job) or ())
        finally:
            shutil.rmtree(self._measured, ignore_errors=True)

    def forget(self, workload: Workload) -> None:
        """Remove the prepared stores that no other workload reads."""
        if workload.state == "killed":
            shutil.rmtree(self._path / workload.state, ignore_errors=True)

    def _store(self, workload: Workload, peer: str) -> Path:
        if workload.state not in LOADED_STATES or peer not in STORES:
            return self._measured
        prepared = self._prepared(workload.state, peer)
        if workload.state == "shared":
            return prepared
        shutil.copytree(prepared, self._measured)
        return self._measured

    def _prepared(self, state: str, peer: str) -> Path:
        path = self._path / state / peer
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            small = replace(self._scale, records=self._scale.records_small)
            scale = small if state == "copy" else self._scale
            job = Job(peer=peer, path=path, scale=scale)
            if state == "killed":
                in_child(load_and_die, job, dies=True)
            else:
                in_child(prepare, job)
        return path


def run_workload(
    stage: Stage, workload: Workload, peers: tuple[str, ...], *, rounds: int, warm_up: bool
) -> report.Figures:
    """The figures of every row and peer, one per round; the warm-up round is thrown away."""
    figures: report.Figures = {row.name: {peer: [] for peer in peers} for row in workload.rows}
    for number in range(-1 if warm_up else 0, rounds):
        turn = number % len(peers)
        for peer in peers[turn:] + peers[:turn]:
            measured = stage.measure(workload, peer)
            for row, figure in zip(workload.rows, measured, strict=False):
                if number >= 0:
                    figures[row.name][peer].append(figure)
        print(f"{workload.name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    stage.forget(workload)
    return figures


def memory_peaks(path: Path, peer: str, records: int) -> report.Memory:
    """The highest anonymous memory while a peer loads, recovers from its log, and scans."""
    job = Job(peer=peer, path=path / "memory", scale=Scale(records=records))
    killed = replace(job, path=path / "memory-killed")
    in_child(load_and_die, killed, dies=True)
    peaks = {
        "load": _peak(memory_load, job),
        "recovery": _peak(memory_reopen, killed),
        "scan": _peak(memory_scan, job),
    }
    for used in (job, killed):
        shutil.rmtree(used.path)
    return report.Memory(peer=peer, records=records, peaks=peaks)


def _peak(task: Callable[[Job], None], job: Job) -> int:
    peak = 0

    def watch(process: int) -> None:
        nonlocal peak
        peak = max(peak, anonymous_bytes(process))

    in_child(task, job, watch=watch)
    return peak


# ------------------------------------------------------------------------------------ command line


def main() -> None:
    """Run what the command line asks for, print the verdicts, and write the page if told to."""
    arguments = _arguments()
    chosen = tuple(_chosen(arguments))
    _check_modules(chosen)
    arguments.dir.mkdir(parents=True, exist_ok=True)
    machine = report.machine_facts(arguments.dir)
    if machine["file system"] in IN_MEMORY:
        sys.exit(f"{arguments.dir} is kept in memory; give --dir a folder on a disk")
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    figures: report.Figures = {}
    memories: list[report.Memory] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.dir) as folder:
        stage = Stage(Path(folder), QUICK if arguments.quick else Scale())
        for workload, peers in chosen:
            warm_up = not arguments.quick
            figures |= run_workload(stage, workload, peers, rounds=rounds, warm_up=warm_up)
            print(report.verdict_lines(figures, [row.name for row in workload.rows]), flush=True)
        for peer, records in _memory_steps(arguments):
            memories.append(memory_peaks(Path(folder), peer, records))
            print(report.memory_line(memories[-1]), flush=True)
    for line in report.memory_verdicts(memories):
        print(line)
    if arguments.write:
        report.write(DOCUMENT, report.page(machine, figures, memories, rounds, sys.argv[1:]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Tidelog with its peers.")
    parser.add_argument("--quick", action="store_true", help="small data, three rounds")
    parser.add_argument("--rounds", type=int, help="rounds that count (default 5)")
    parser.add_argument("--only", type=_names, help="workloads, such as a,g,e,memory")
    parser.add_argument("--peers", type=_names, help="peers, such as lmdb,tidelog-16")
    parser.add_argument(
        "--memory",
        type=_numbers,
        help="millions of records of the memory rows (default 1,2,5; 1,2,5,10 takes long)",
    )
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where the data goes")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def _chosen(arguments: argparse.Namespace) -> Iterator[tuple[Workload, tuple[str, ...]]]:
    """The workloads to run, each with its peers; a name that does not exist ends the program."""
    known = {workload.name for workload in WORKLOADS} | {"memory"}
    if unknown := set(arguments.only or ()) - known:
        sys.exit(f"no such workload: {', '.join(sorted(unknown))}")
    for workload in WORKLOADS:
        peers = tuple(
            peer for peer in workload.peers if not arguments.peers or peer in arguments.peers
        )
        if peers and (not arguments.only or workload.name in arguments.only):
            yield workload, peers


def _memory_steps(arguments: argparse.Namespace) -> Iterator[tuple[str, int]]:
    if arguments.only and "memory" not in arguments.only:
        return
    for peer in TIDELOG:
        if not arguments.peers or peer in arguments.peers:
            for millions in arguments.memory or ([0.1, 0.2] if arguments.quick else [1, 2, 5]):
                yield peer, int(millions * 1_000_000)


def _check_modules(chosen: tuple[tuple[Workload, tuple[str, ...]], ...]) -> None:
    wanted = {MODULES[peer] for _, peers in chosen for peer in peers if peer in MODULES}
    if missing := sorted(name for name in wanted if not importlib.util.find_spec(name)):
        sys.exit(f"not installed: {', '.join(missing)} (`make bench` installs all it needs)")


if __name__ == "__main__":
    main()
