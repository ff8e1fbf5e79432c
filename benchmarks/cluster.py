"""A cluster of three members beside etcd, and four processes on one store beside sqlite3.

    .venv/bin/python benchmarks/cluster.py --write

All processes run on this machine.  In each round every peer is started anew.  A row is measured of
one peer after the other, in an order that turns from row to row, while the others have nothing to
do (which costs each less than a hundredth of a core), and ratios are taken within a round.  The
clients of a row are threads or tasks of one process, each of which has connected and done something
before time is taken.  `--write` replaces a part of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import cycle
from math import isnan, nan
from pathlib import Path
from statistics import median
from threading import Barrier
from time import perf_counter, perf_counter_ns, process_time_ns, sleep
from typing import Any, Protocol, TypeVar

import etcd
from peers import Pair
from report import file_system, table
from run import IN_MEMORY
from staged_member import read_stages
from workloads import WRITTEN, pairs_of, puts_until

import tidelog
from tidelog import aio
from tidelog.tools.cluster.running import described, look, make_members

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- clusters: begin -->", "<!-- clusters: end -->"
RECORDS = 10_000
MEMBERS, PARTITIONS, FIRST_PORT = 3, 64, 7400
CLIENTS = (1, 32, 64)
PROCESSES = 4

ETCD = ("etcd-1", "etcd-3")
CLUSTER = "tidelog-3"
SHARED = ("sqlite", "tidelog-solo")
FORMS = ("threads", "tasks")
A = TypeVar("A")
R = TypeVar("R")
Figures = dict[str, dict[str, list[float]]]
"""Row -> peer -> one figure per round."""


class Blocking(Protocol):
    def put(self, key: bytes, value: bytes, /) -> object: ...
    def get(self, key: bytes, /) -> object: ...
    def close(self) -> object: ...


class TidelogThreads:
    """A handle that threads share."""

    def __init__(self, where: str) -> None:
        self._db = tidelog.connect(where)
        table = self._db.map("bench")
        self.put: Callable[[bytes, bytes], object] = table.__setitem__
        self.get: Callable[[bytes], object] = table.get
        self.close: Callable[[], object] = self._db.close


# -------------------------------------------------------------------------------------- the peers


@contextmanager
def running(peer: str, folder: Path) -> Iterator[str]:
    """Start a peer in an empty folder, and end it; yields what its clients connect to."""
    if peer in ETCD:
        with etcd.running(folder, int(peer.rpartition("-")[2])) as address:
            yield address
        return
    try:
        command("cluster", "up", "-n", str(MEMBERS), "--dir", str(folder))
        yield str(folder)
    finally:
        command("cluster", "down", str(folder))


def command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "tidelog", "-q", *arguments], check=True, stdout=2)


def threads_of(peer: str, where: str) -> Blocking:
    return etcd.Threads(where) if peer in ETCD else TidelogThreads(where)


# ------------------------------------------------------------------------------- one measurement


@dataclass(frozen=True, slots=True)
class Ask:
    """What one process of clients does."""

    peer: str
    where: str
    operation: str
    form: str
    clients: int
    seconds: float


def rate_of(ask: Ask) -> float:
    """Operations per second, in this process."""
    pairs = pairs_of(RECORDS, WRITTEN)
    shares = [pairs[number :: ask.clients] for number in range(ask.clients)]
    if ask.form == "tasks":
        return asyncio.run(_of_tasks(ask, shares))
    client = threads_of(ask.peer, ask.where)
    operation = client.put if ask.operation == "put" else _get_of(client)
    done, seconds = from_threads(operation, shares, ask.seconds)
    client.close()
    return done / seconds


def from_threads(
    operation: Callable[[bytes, bytes], object],
    shares: list[list[Pair]],
    seconds: float,
    begun: Callable[[], object] = perf_counter,
) -> tuple[int, float]:
    """How much threads have done, a share each, and in which time; `begun` is called before."""
    times: list[float] = []

    def begin() -> None:
        begun()
        times.append(perf_counter())

    ready = Barrier(len(shares), begin)

    def work(share: list[Pair]) -> int:
        operation(*share[0])
        ready.wait()
        return puts_until(times[0] + seconds, operation, share)

    with ThreadPoolExecutor(len(shares)) as pool:
        done = sum(pool.map(work, shares))
    return done, perf_counter() - times[0]


def _get_of(client: Blocking) -> Callable[[bytes, bytes], object]:
    get = client.get
    return lambda key, _value: get(key)


@asynccontextmanager
async def tasks_of(ask: Ask) -> AsyncIterator[Callable[[bytes, bytes], Awaitable[object]]]:
    """What a task does with each pair."""
    if ask.peer in ETCD:
        client = etcd.Tasks(ask.where)
        put, get = client.put, client.get
        yield put if ask.operation == "put" else lambda key, _value: get(key)
        await client.close()
        return
    async with aio.connect(ask.where) as db:
        table = db.map("bench")
        yield table.set if ask.operation == "put" else lambda key, _value: table.get(key)


async def _of_tasks(ask: Ask, shares: list[list[Pair]]) -> float:
    done = 0
    async with tasks_of(ask) as operation:
        await asyncio.gather(*(operation(*share[0]) for share in shares))
        begin = perf_counter()
        end = begin + ask.seconds

        async def work(share: list[Pair]) -> None:
            nonlocal done
            for key, value in cycle(share):
                await operation(key, value)
                done += 1
                if perf_counter() >= end:
                    break

        await asyncio.gather(*map(work, shares))
        return done / (perf_counter() - begin)


def fill(ask: Ask) -> float:
    """Put all records once."""
    client = threads_of(ask.peer, ask.where)
    with ThreadPoolExecutor(ask.clients) as pool:
        list(pool.map(lambda pair: client.put(*pair), pairs_of(RECORDS, WRITTEN)))
    client.close()
    return 0.0


def in_child(task: Callable[[A], R], ask: A) -> R:
    """What a task returns, in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(task, (ask,))


# ------------------------------------------------------------------------------ several processes


def shared_puts(peer: str, folder: Path, seconds: float) -> float:
    """Durable puts per second of several processes together, on one store."""
    if peer == "sqlite":
        return _together(_sqlite_writer, str(folder / "store.db"), seconds)
    command = [sys.executable, "-m", "tidelog", "server", "run", "--solo", str(folder / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            if not server.stdout.readline().startswith("listening"):
                raise RuntimeError("the server did not come up")
            url = f"tidelog+unix://{folder / 'store' / 'socket'}"
            return _together(_solo_writer, url, seconds)
        finally:
            server.terminate()


def _together(work: Callable[[str, int, Any, float], int], where: str, seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        barrier = manager.Barrier(PROCESSES)
        with context.Pool(PROCESSES) as pool:
            asked = [(where, number, barrier, seconds) for number in range(PROCESSES)]
            return sum(pool.starmap(work, asked)) / seconds


def _puts(put: Callable[[bytes, bytes], object], number: int, barrier: Any, seconds: float) -> int:
    share = pairs_of(RECORDS, WRITTEN)[number::PROCESSES]
    barrier.wait()
    return puts_until(perf_counter() + seconds, put, share)


def _sqlite_writer(where: str, number: int, barrier: Any, seconds: float) -> int:
    db = sqlite3.connect(where, isolation_level=None, timeout=60)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE IF NOT EXISTS kv (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID")

    def put(key: bytes, value: bytes) -> None:
        db.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (key, value))

    done = _puts(put, number, barrier, seconds)
    db.close()
    return done


def _solo_writer(where: str, number: int, barrier: Any, seconds: float) -> int:
    client = TidelogThreads(where)
    done = _puts(client.put, number, barrier, seconds)
    client.close()
    return done


# ------------------------------------------------------------------------------- a put, by stage


@dataclass(frozen=True, slots=True)
class AskStages:
    """What one process of clients does, who the members are, and where they tell of stages."""

    where: str
    clients: int
    seconds: float
    processes: tuple[int, ...]
    files: tuple[Path, ...]


def stages_of(ask: AskStages) -> dict[str, float]:
    """Microseconds per put by stage, of threads in this process.

    What the members do without any client is measured first, and taken off.
    """
    shares = [pairs_of(RECORDS, WRITTEN)[number :: ask.clients] for number in range(ask.clients)]
    client = TidelogThreads(ask.where)
    begun: list[Counter[str]] = []

    def begin() -> None:
        begun.append(_spent(ask))
        sleep(ask.seconds)
        begun.append(_spent(ask))

    puts, _ = from_threads(client.put, shares, ask.seconds, begin)
    after = _spent(ask)
    quiet, before = begun
    client.close()
    length = (after["wall"] - before["wall"]) / (before["wall"] - quiet["wall"])
    per_put = {
        name: (after[name] - before[name] - (before[name] - quiet[name]) * length) / puts / 1000
        for name in after
    }
    wall = (after["wall"] - before["wall"]) / puts / 1000
    driver = per_put["loop"] - per_put["log"]
    rest = wall - per_put["client"] - driver - per_put["log"] - per_put["sync"]
    return {
        "client: CPU of its process": per_put["client"],
        "driver: CPU of the members' loops, without the log": driver,
        "log: frames made and written": per_put["log"],
        "sync: of the members, one after the other": per_put["sync"],
        "wire, and waiting for a core or a thread": rest if ask.clients == 1 else nan,
        "all: time per put": wall,
        "puts per frame": puts / (after["frames"] - before["frames"]),
    }


def _spent(ask: AskStages) -> Counter[str]:
    """Nanoseconds so far: of the clock, of CPU here and in the members' loops, of stages."""
    spent = Counter(wall=perf_counter_ns(), client=process_time_ns())
    for process, file in zip(ask.processes, ask.files, strict=True):
        spent["loop"] += int(
            Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()[0]
        )
        spent.update(read_stages(file))
    return spent


def stages_round(folder: Path, seconds: float, figures: Figures) -> None:
    """Measure a cluster whose members tell of their stages once."""
    folder.mkdir()
    place = str(folder)
    members = described(place, MEMBERS, PARTITIONS, FIRST_PORT)
    make_members(place, members)
    program = str(ROOT / "benchmarks" / "staged_member.py")
    files = tuple(folder / f"{member.name}.stages" for member in members.members)
    processes = []
    try:
        for member, file in zip(members.members, files, strict=True):
            # The words in the middle are how a member's process is found.
            named = "server", "run", os.path.realpath(folder / member.directory)
            command = [sys.executable, program, *named, str(file)]
            processes.append(subprocess.Popen(command, stdout=sys.stderr))
        while not look(place, members).whole:
            sleep(0.05)
        pids = tuple(process.pid for process in processes)
        url = "tidelog://" + ",".join(member.address for member in members.members)
        in_child(fill, Ask(CLUSTER, url, "put", "threads", 32, 0))
        for clients in CLIENTS:
            found = in_child(stages_of, AskStages(url, clients, seconds, pids, files))
            for stage, figure in found.items():
                figures.setdefault(stage, {}).setdefault(str(clients), []).append(figure)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------------------- a run


def rows() -> Iterator[tuple[str, str, int, str]]:
    """Name, operation, number of clients and their form of each row."""
    for operation in ("put", "get"):
        for form in FORMS:
            for clients in CLIENTS:
                word = form if clients > 1 else form[:-1]
                yield f"{operation}, {clients} {word}", operation, clients, form


def cluster_round(peers: Sequence[str], folder: Path, seconds: float, figures: Figures) -> None:
    """Start peers, and measure each with all rows once: a row of all, then the next row."""
    try:
        with ExitStack() as up:
            places: dict[str, str] = {}
            for peer in peers:
                (folder / peer).mkdir(parents=True)
                places[peer] = up.enter_context(running(peer, folder / peer))
                in_child(fill, Ask(peer, places[peer], "put", "threads", 32, 0))
            for number, (name, operation, clients, form) in enumerate(rows()):
                turn = number % len(peers)
                for peer in (*peers[turn:], *peers[:turn]):
                    os.sync()
                    ask = Ask(peer, places[peer], operation, form, clients, seconds)
                    figures.setdefault(name, {}).setdefault(peer, []).append(in_child(rate_of, ask))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shared_round(peer: str, folder: Path, seconds: float, figures: Figures) -> None:
    """Measure one peer of the row of several processes once."""
    folder.mkdir()
    os.sync()
    try:
        rate = shared_puts(peer, folder, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    name = f"put, {PROCESSES} processes"
    figures.setdefault(name, {}).setdefault(peer, []).append(rate)


def main() -> None:
    """Measure, print, and write the page if told to."""
    arguments = _arguments()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    if file_system(arguments.dir) in IN_MEMORY:
        sys.exit(f"{arguments.dir} is kept in memory; give --dir a folder on a disk")
    lacking = etcd.missing()
    load = os.getloadavg()[0]
    together = [CLUSTER] if lacking else [*ETCD, CLUSTER]
    if arguments.peers:
        together = [peer for peer in together if peer in arguments.peers]
    shared = [peer for peer in SHARED if not arguments.peers or peer in arguments.peers]
    figures: Figures = {}
    stages: Figures = {}
    with tempfile.TemporaryDirectory(prefix="cluster-", dir=arguments.dir) as made:
        folder = Path(made) / "peers"
        for number in range(-1, arguments.rounds):
            counts = number >= 0
            if together:
                cluster_round(together, folder, arguments.seconds, figures if counts else {})
            for peer in reversed(shared) if number % 2 else shared:
                shared_round(peer, folder, arguments.seconds, figures if counts else {})
            if CLUSTER in together:
                stages_round(folder, arguments.seconds, stages if counts else {})
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    page = "\n".join(_page(figures, stages, arguments.rounds, lacking, load))
    print(page)
    if arguments.write:
        _write(page)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare a cluster with etcd.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--peers", type=lambda text: text.split(","), help="such as etcd-3")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where the data goes")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    return parser.parse_args()


# --------------------------------------------------------------------------------------- the page


def _page(
    figures: Figures, stages: Figures, rounds: int, lacking: str | None, load: float
) -> Iterator[str]:
    program = lacking or f"etcd {etcd.version()}"
    yield f"Taken with `benchmarks/cluster.py`, medians of {rounds} rounds; {program}; load of the"
    yield f"machine when it began: {load:.2f}."
    yield ""
    yield from table(
        ("per second", *ETCD, CLUSTER, *(f"beside {peer}" for peer in ETCD)),
        (
            (name, *_cells(by_peer, (*ETCD, CLUSTER)), *_ratios(by_peer, CLUSTER, ETCD))
            for name, by_peer in figures.items()
            if not set(by_peer) & set(SHARED)
        ),
    )
    yield ""
    yield from table(
        ("per second", *SHARED, f"beside {SHARED[0]}"),
        (
            (name, *_cells(by_peer, SHARED), *_ratios(by_peer, SHARED[1], SHARED[:1]))
            for name, by_peer in figures.items()
            if set(by_peer) & set(SHARED)
        ),
    )
    yield ""
    yield from table(
        ("us per put", *(f"{clients} thread{'s' * (clients > 1)}" for clients in CLIENTS)),
        (
            (stage, *(_time(median(by_clients[str(clients)])) for clients in CLIENTS))
            for stage, by_clients in stages.items()
        ),
    )


def _time(figure: float) -> str:
    return "" if isnan(figure) else f"{figure:,.0f}" if figure >= 10 else f"{figure:.2g}"


def _cells(by_peer: dict[str, list[float]], peers: tuple[str, ...]) -> Iterator[str]:
    for peer in peers:
        yield f"{median(by_peer[peer]):,.0f}" if by_peer.get(peer) else "-"


def _ratios(by_peer: dict[str, list[float]], mine: str, against: tuple[str, ...]) -> Iterator[str]:
    for peer in against:
        pairs = zip(by_peer.get(mine, ()), by_peer.get(peer, ()), strict=False)
        ratios = [own / other for own, other in pairs]
        yield f"{median(ratios):.2g} ({min(ratios):.2g} to {max(ratios):.2g})" if ratios else "-"


def _write(page: str) -> None:
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{page}\n{END}{after}")


if __name__ == "__main__":
    main()
