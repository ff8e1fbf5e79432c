"""Transactions of several keys on three members with two backups, beside those of etcd-3.

A transaction reads some keys and sets all of them, and takes effect only if nobody has set one of
them between.  It is made again until it does.  The part of ``cluster.py`` about them draws keys of
partitions whose primaries are one member, which are one group, and of any, which mostly are
several.  Everybody has the same keys, which are drawn before and are in a file.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

import etcd
from loads import (
    RECORDS,
    Ask,
    Load,
    Meter,
    from_tasks,
    from_threads,
    in_child,
    load_told,
    shares_of,
)
from members import Members
from report import table
from sides import (
    ETCD,
    ETCD_GO,
    ETCD_TASKS,
    OURS,
    PYTHON,
    TASKS,
    THREADS,
    Loads,
    Row,
    Side,
    Target,
    both_up,
    cpu_table,
    lacks_etcd,
    measured,
    name_of,
    rate_table,
    ratios_of,
    told_once,
    verdict_table,
)
from workloads import KEY_BYTES, WRITTEN, keys_of, pairs_of

import tidelog
from tidelog import aio
from tidelog.errors import ConflictError, DeadlineError

BACKUPS = 2
CLIENTS = (1, 32, 64)
DRAWN = 10_000
"""How many transactions are drawn; clients begin again behind the last."""
NAME = "transaction"
NOT_COMMITTED = (ConflictError, DeadlineError)
"""Errors behind which a transaction is made again; the latter tells that it never got its locks."""


class Draw(NamedTuple):
    """How keys of a transaction are drawn: so many, and whether all are of one member."""

    keys: int
    together: bool

    def __str__(self) -> str:
        if self.keys == 1:
            return "1 key"
        return f"{self.keys} keys of {'one member' if self.together else 'any members'}"


DRAWS = tuple(Draw(*one) for one in ((1, True), (3, True), (3, False), (10, True), (10, False)))
ROWS: tuple[Row, ...] = tuple((str(draw), clients) for draw in DRAWS for clients in CLIENTS)
DEMANDS = ((1, ETCD, 1.0, None), (32, ETCD, 1.5, None), (32, ETCD_GO, None, 1.5))
TARGETS = tuple(
    Target((str(draw), clients), against, must, aim)
    for clients, against, must, aim in DEMANDS
    for draw in DRAWS
    if draw.keys == 3
)
BESIDE = ((THREADS, ETCD), (TASKS, ETCD_TASKS), (THREADS, ETCD_GO), (TASKS, ETCD_GO))
"""Whose ratios have a column."""

Transaction = tuple[tuple[bytes, ...], bytes]
"""The keys that are read, and what they are set to."""


# ----------------------------------------------------------------------------------- what is drawn


def drawn(draw: Draw, keys: list[bytes], places: list[int]) -> Iterator[bytes]:
    """The keys of each transaction, one behind the other; ``places`` are the members of keys."""
    chance = random.Random(f"transactions {draw}")
    by_place: dict[int, list[bytes]] = {}
    for key, place in zip(keys, places, strict=True):
        by_place.setdefault(place, []).append(key)
    for _ in range(DRAWN):
        first = chance.randrange(len(keys))
        among = by_place[places[first]] if draw.together else keys
        yield b"".join(chance.sample(among, draw.keys))


def transactions_in(file: Path, keys: int) -> list[Transaction]:
    """The transactions of a file that have so many keys each."""
    data = file.read_bytes()
    every = [data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)]
    values = [value for _, value in pairs_of(DRAWN, WRITTEN)]
    draws = (tuple(every[at : at + keys]) for at in range(0, len(every), keys))
    return list(zip(draws, values, strict=True))


# --------------------------------------------------------------------------------------- one load


@dataclass(frozen=True, slots=True)
class AskTransactions:
    """What one process of clients does, with which keys."""

    ask: Ask
    file: Path
    keys: int


def load_of_transactions(asked: AskTransactions) -> Load:
    """Rate, CPU and further attempts, in this process or in that of etcd's client in Go."""
    ask, file, keys = asked.ask, asked.file, asked.keys
    if ask.form == "go":
        told = etcd.go_load(
            ask.where, NAME, ask.clients, ask.seconds, ask.pids, draws=file, keys=keys
        )
        return load_told(told)
    shares = shares_of(transactions_in(file, keys), ask.clients)
    return asyncio.run(_of_tasks(ask, shares)) if ask.form == "tasks" else _of_threads(ask, shares)


class _Again:
    """How often what was done had to be done again, since time is taken."""

    def __init__(self, ask: Ask) -> None:
        self._meter = Meter(ask)
        self._times: list[int] = []
        self.add = self._times.append

    def begin(self) -> None:
        self._times.clear()
        self._meter.begin()

    def load(self, done: int, seconds: float) -> Load:
        return self._meter.load(done, seconds)._replace(again=sum(self._times) / done)


def _of_threads(ask: Ask, shares: list[list[Transaction]]) -> Load:
    client = TidelogThreads(ask.where) if ask.peer == OURS else etcd.Threads(ask.where)
    again = _Again(ask)

    def transact(keys: Sequence[bytes], value: bytes) -> None:
        again.add(client.transact(keys, value))

    load = again.load(*from_threads(transact, shares, ask.seconds, again.begin))
    client.close()
    return load


async def _of_tasks(ask: Ask, shares: list[list[Transaction]]) -> Load:
    again = _Again(ask)
    async with _tasks_of(ask) as tried:

        async def transact(keys: Sequence[bytes], value: bytes) -> None:
            again.add(await tried(keys, value))

        return again.load(*await from_tasks(transact, shares, ask.seconds, again.begin))


class TidelogThreads:
    """A handle that threads share."""

    def __init__(self, where: str) -> None:
        self._db = tidelog.connect(where)
        self._map = self._db.map("bench")
        self.close: Callable[[], object] = self._db.close

    def transact(self, keys: Sequence[bytes], value: bytes) -> int:
        """Read keys and set them all, until nobody came between; returns how often one did."""
        again = 0
        while True:
            try:
                with self._db.transaction() as tx:
                    table = tx[self._map]
                    assert len(table.get_many(keys)) == len(keys)
                    for key in keys:
                        table[key] = value
            except NOT_COMMITTED:
                again += 1
            else:
                return again


@asynccontextmanager
async def _tasks_of(
    ask: Ask,
) -> AsyncIterator[Callable[[Sequence[bytes], bytes], Awaitable[int]]]:
    if ask.peer != OURS:
        client = etcd.Tasks(ask.where)
        yield client.transact
        await client.close()
        return
    async with aio.connect(ask.where) as db:
        bench = db.map("bench")

        async def transact(keys: Sequence[bytes], value: bytes) -> int:
            again = 0
            while True:
                try:
                    async with db.transaction() as tx:
                        table = tx[bench]
                        assert len(await table.get_many(keys)) == len(keys)
                        for key in keys:
                            await table.set(key, value)
                except NOT_COMMITTED:
                    again += 1
                else:
                    return again

        yield transact


# ---------------------------------------------------------------------------------------- a round


@dataclass(slots=True)
class Figures:
    """One figure per round of each row and side."""

    loads: dict[tuple[Row, Side], list[Load]] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    """Why somebody does not take part."""


def sides_here() -> tuple[list[Side], list[str]]:
    """Who can take part on this machine, and why the others cannot."""
    lacks = lacks_etcd()
    return [side for side in (*lacks, THREADS, TASKS) if not lacks.get(side)], told_once(lacks)


def transactions_round(
    sides: Sequence[Side], folder: Path, seconds: float, figures: Figures
) -> None:
    """Measure everything once: a row of all sides, then the next row."""
    try:
        with both_up(folder, sides, BACKUPS) as (cluster, places):
            files = write_draws(folder, cluster)
            rows = [(draw, clients) for draw in DRAWS for clients in CLIENTS]
            for number, (draw, clients) in enumerate(rows):
                turn = number % len(sides)
                for side in (*sides[turn:], *sides[:turn]):
                    where, pids = places[side.peer]
                    ask = Ask(side.peer, where, NAME, side.form, clients, seconds, pids)
                    _load(side, AskTransactions(ask, files[draw], draw.keys), draw, figures)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_draws(folder: Path, cluster: Members) -> dict[Draw, Path]:
    """Draw the keys of all transactions; returns the file of each way to draw them."""
    keys = keys_of(RECORDS, WRITTEN)
    places = cluster.placed(keys)
    files = {draw: folder / f"{draw}.keys" for draw in DRAWS}
    for draw, file in files.items():
        file.write_bytes(b"".join(drawn(draw, keys, places)))
    return files


def _load(side: Side, asked: AskTransactions, draw: Draw, figures: Figures) -> None:
    os.sync()
    load = in_child(load_of_transactions, asked)
    row = str(draw), asked.ask.clients
    figures.loads.setdefault((row, side), []).append(load)
    cpu = f"{load.client_us:,.0f} + {load.members_us:,.0f} us of CPU"
    told = f"{load.rate:,.0f}/s, {cpu}, {load.again:.2g} attempts more"
    print(f"{name_of(row)}: {side}: {told}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------- the page


def page(figures: Figures, rounds: int, load: float) -> Iterator[str]:
    """The part of the page that is about transactions."""
    sides = measured(figures.loads)
    versions = [PYTHON, *([f"etcd {etcd.version()}"] if ETCD in sides else [])]
    told = "; ".join([*versions, *figures.lacking])
    yield f"Taken with `benchmarks/cluster.py --only transactions`, medians of {rounds} rounds;"
    yield f"{told}; load of the machine when it began: {load:.2f}."
    yield ""
    yield from verdict_table(TARGETS, figures.loads)
    yield ""
    yield from rate_table(ROWS, figures.loads)
    yield ""
    yield from _ratio_table(figures.loads, sides)
    yield ""
    yield from cpu_table(ROWS, figures.loads)
    yield ""
    yield from table(
        ("further attempts per 100", *map(str, sides)),
        ((name_of(row), *(_again(figures.loads[row, side]) for side in sides)) for row in ROWS),
    )


def _ratio_table(loads: Loads, sides: Iterable[Side]) -> Iterator[str]:
    here = set(sides)
    pairs = [(mine, against) for mine, against in BESIDE if against in here]
    return table(
        ("row", *(f"{mine.form} beside {against}" for mine, against in pairs)),
        ((name_of(row), *(_ratio(ratios_of(loads, row, *pair)) for pair in pairs)) for row in ROWS),
    )


def _ratio(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2g} ({min(ratios):.2g} to {max(ratios):.2g})"


def _again(loads: Sequence[Load]) -> str:
    return f"{median(load.again for load in loads) * 100:.2g}"
