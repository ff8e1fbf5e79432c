"""A cluster of three members beside etcd, and four processes on one store beside sqlite3.

    .venv/bin/python benchmarks/cluster.py --write
    .venv/bin/python benchmarks/cluster.py --only copies --rounds 2

All processes run on this machine.  In each round every peer is started anew.  A row is measured of
one peer after the other, in an order that turns from row to row, while the others have nothing to
do (which costs each less than a hundredth of a core), and ratios are taken within a round.  The
clients of a row are threads or tasks of one process, each of which has connected and done something
before time is taken.  What has copies is measured by `copies.py`, transactions of several keys by
`transactions.py`, copies that come back by `rebalance.py`.  `--write` replaces parts of
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import copies
import etcd
import transactions
from loads import ETCD, RECORDS, Ask, TidelogThreads, fill, in_child, rate_of
from members import MEMBERS
from report import file_system, table
from run import IN_MEMORY
from sides import PYTHON
from stages import staged_round
from workloads import WRITTEN, pairs_of, puts_until

import rebalance

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
PARTS = ("one", "copies", "transactions", "rebalance")
"""Of the page, between two marks each: one copy of everything, three, or one that comes back.

Transactions are of three copies.
"""
REBALANCES_MAX = 3
"""Rounds in which copies come back, however many there are of the rest: each takes minutes."""
CLIENTS = (1, 32, 64)
PROCESSES = 4

CLUSTER = "tidelog-3"
SHARED = ("sqlite", "tidelog-solo")
FORMS = ("threads", "tasks")
Figures = dict[str, dict[str, list[float]]]
"""Row -> peer -> one figure per round."""


# -------------------------------------------------------------------------------------- the peers


@contextmanager
def running(peer: str, folder: Path) -> Iterator[str]:
    """Start a peer in an empty folder, and end it; yields what its clients connect to."""
    if peer in ETCD:
        with etcd.running(folder, int(peer.rpartition("-")[2])) as up:
            yield up.leader
        return
    try:
        command("cluster", "up", "-n", str(MEMBERS), "--dir", str(folder))
        yield str(folder)
    finally:
        command("cluster", "down", str(folder))


def command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "tidelog", "-q", *arguments], check=True, stdout=2)


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


def one_copy(arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Measure what has one copy only; returns its part of the page."""
    lacking = etcd.missing()
    load = os.getloadavg()[0]
    together = [CLUSTER] if lacking else [*ETCD, CLUSTER]
    if arguments.peers:
        together = [peer for peer in together if peer in arguments.peers]
    shared = [peer for peer in SHARED if not arguments.peers or peer in arguments.peers]
    figures: Figures = {}
    stages: Figures = {}
    for number in range(-1, arguments.rounds):
        counts = number >= 0
        if together:
            cluster_round(together, folder, arguments.seconds, figures if counts else {})
        for peer in reversed(shared) if number % 2 else shared:
            shared_round(peer, folder, arguments.seconds, figures if counts else {})
        if CLUSTER in together and counts:
            found = staged_round(folder, 0, "spread", CLIENTS, arguments.seconds)
            for clients, by_stage in found.items():
                for stage, figure in by_stage.items():
                    stages.setdefault(stage, {}).setdefault(str(clients), []).append(figure)
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    return _page(figures, stages, arguments.rounds, lacking, load)


def in_rounds(rounds: int, once: Callable[[], None]) -> float:
    """Measure again and again; returns the load of the machine before that."""
    load = os.getloadavg()[0]
    for number in range(rounds):
        once()
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return load


def three_copies(arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Measure what has three copies; returns its part of the page."""
    sides, lacking = copies.sides_here()
    figures = copies.Figures(lacking=lacking)
    once = partial(copies.copies_round, sides, folder, arguments.seconds, figures)
    load = in_rounds(arguments.rounds, once)
    return copies.page(figures, arguments.rounds, load)


def several_keys(arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Measure transactions of several keys; returns their part of the page."""
    sides, lacking = transactions.sides_here()
    figures = transactions.Figures(lacking=lacking)
    once = partial(transactions.transactions_round, sides, folder, arguments.seconds, figures)
    load = in_rounds(arguments.rounds, once)
    return transactions.page(figures, arguments.rounds, load)


def comes_back(arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Measure copies that come back; returns its part of the page."""
    rounds, figures = min(arguments.rounds, REBALANCES_MAX), rebalance.Figures()
    load = in_rounds(rounds, partial(rebalance.rebalance_round, folder, figures))
    return rebalance.page(figures, rounds, load)


def main() -> None:
    """Measure, print, and write the page if told to."""
    arguments = _arguments()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    if file_system(arguments.dir) in IN_MEMORY:
        sys.exit(f"{arguments.dir} is kept in memory; give --dir a folder on a disk")
    measured = {
        "one": one_copy,
        "copies": three_copies,
        "transactions": several_keys,
        "rebalance": comes_back,
    }
    with tempfile.TemporaryDirectory(prefix="cluster-", dir=arguments.dir) as made:
        for part in [arguments.only] if arguments.only else PARTS:
            page = "\n".join(measured[part](arguments, Path(made) / "peers"))
            print(page)
            if arguments.write:
                _write(part, page)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare a cluster with etcd.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--only", choices=PARTS, help="one copy, three, transactions, or one back")
    parser.add_argument(
        "--peers", type=lambda text: text.split(","), help="such as etcd-3; of one copy only"
    )
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where the data goes")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    return parser.parse_args()


# --------------------------------------------------------------------------------------- the page


def _page(
    figures: Figures, stages: Figures, rounds: int, lacking: str | None, load: float
) -> Iterator[str]:
    program = lacking or f"etcd {etcd.version()}"
    yield f"Taken with `benchmarks/cluster.py`, medians of {rounds} rounds; {PYTHON}; {program};"
    yield f"load of the machine when it began: {load:.2f}."
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
            (stage, *(copies.time(median(by_clients[str(clients)])) for clients in CLIENTS))
            for stage, by_clients in stages.items()
        ),
    )


def _cells(by_peer: dict[str, list[float]], peers: tuple[str, ...]) -> Iterator[str]:
    for peer in peers:
        yield f"{median(by_peer[peer]):,.0f}" if by_peer.get(peer) else "-"


def _ratios(by_peer: dict[str, list[float]], mine: str, against: tuple[str, ...]) -> Iterator[str]:
    for peer in against:
        pairs = zip(by_peer.get(mine, ()), by_peer.get(peer, ()), strict=False)
        ratios = [own / other for own, other in pairs]
        yield f"{median(ratios):.2g} ({min(ratios):.2g} to {max(ratios):.2g})" if ratios else "-"


def _write(part: str, page: str) -> None:
    begin, end = (f"<!-- clusters, {part}: {word} -->" for word in ("begin", "end"))
    before, found, rest = DOCUMENT.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    assert found, f"{DOCUMENT} has no {begin}"
    assert ended, f"{DOCUMENT} has no {end}"
    DOCUMENT.write_text(f"{before}{begin}\n{page}\n{end}{after}")


if __name__ == "__main__":
    main()
