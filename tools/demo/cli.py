"""``tidelog demo``: real data, concurrent transactions, a kill -9 in the middle, and the proof.

Steps: load the cities, let a child process move people between them from several threads, kill it
with SIGKILL while it does, open the store again, and compare all of it with the model that this
process kept.  Ends with 3 if anything contradicts the model.

Left out: the proof itself (``check``), the child (``worker``), the data (``data``).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click

from ...engine.api import open as opens
from ...engine.api.database import Database
from ...engine.upkeep.check import check_store
from ..db.stores import check_new_directory
from ..shell.commands import PATH, ToolCommand, json_options, settings_of
from ..shell.exits import Exit
from ..shell.terminal import Advance, Settings, progress, write_fields, write_json
from ..wal.cli import dump, stat
from ..wal.records import SCHEMA
from . import data as demo_data
from .check import Found, Model, find_problems
from .data import CityRecord, cities_of, index_of, index_pairs, moves_of

IMPORT_BATCH = 5_000
CITIES_MOVED_MIN = 100_000
"""Only cities of at least this population take part in moves, so that none runs empty."""
HOT_CITIES = 40
MODULE = "tidelog.tools.demo.worker"


@dataclass(slots=True)
class DemoReport:
    """What happened, for the closing table."""

    figures: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Take the time of a step."""
        began = time.perf_counter()
        yield
        self.seconds[step] = round(time.perf_counter() - began, 3)


@click.command(cls=ToolCommand)
@click.option("--dir", "directory", type=PATH, help="Make the store here and keep it.")
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Threads of the child that is killed.",
)
@click.option(
    "--transactions",
    type=click.IntRange(1),
    default=4_000,
    show_default=True,
    help="Kill the child after about this many acknowledged transactions.",
)
@click.option("--cities", "limit", type=click.IntRange(2), help="Take only this many cities.")
@click.option("--seed", type=int, help="Repeat the choice of moves of another run.")
@json_options
@click.pass_context
def demo(
    ctx: click.Context,
    directory: str | None,
    threads: int,
    transactions: int,
    limit: int | None,
    seed: int | None,
    form: str,
) -> None:
    """Load 234,908 cities, kill a writer in the middle, recover, and prove that nothing is lost.

    \b
    Acknowledged transactions have to be there, all others whole or not at all; totals, index and
    the model kept outside of the store have to agree. Ends with 3 if they do not.
    """  # fmt: skip
    settings = settings_of(ctx)
    seed = random.randrange(1 << 31) if seed is None else seed
    report = DemoReport(figures={"seed": seed})
    with demo_folder(directory) as path:
        model = fill(settings, report, path, limit)
        kill_in_the_middle(settings, report, path, model, threads, transactions, seed)
        recover_and_prove(settings, report, path, model)
        if form == "text":
            show_log(ctx, path, model)
        show_report(settings, report, path if directory else None, form)
    if report.problems:
        ctx.exit(Exit.FOUND)


@contextmanager
def demo_folder(directory: str | None) -> Iterator[str]:
    """Yield where the store goes: the given directory, or one that goes away afterwards."""
    if directory is not None:
        check_new_directory(directory)
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="tidelog-demo-") as folder:
        yield os.path.join(folder, "cities.tl")


# ------------------------------------------------------------------ the steps


def fill(settings: Settings, report: DemoReport, path: str, limit: int | None) -> Model:
    """Load the cities into a new store; return the model that starts with them."""
    with report.timed("read the data set"):
        cities = demo_data.load_cities()
    if limit is not None:
        largest = sorted(cities, key=lambda number: -cities[number]["population"])
        cities = {number: cities[number] for number in largest[:limit]}
    with (
        report.timed("import"),
        opens.open(path, durability="none") as db,
        progress(settings, "importing", 2 * len(cities)) as advance,
    ):
        moves_of(db)
        for mapping, pairs in (
            (cities_of(db), cities.items()),
            (index_of(db), index_pairs(cities.items())),
        ):
            for part in import_parts(list(pairs)):
                mapping.update_many(part)
                advance(len(part))
    report.figures["cities"] = len(cities)
    report.figures["people"] = sum(record["population"] for record in cities.values())
    return Model(cities)


def import_parts(pairs: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the pairs in parts, each of which is one transaction."""
    for first in range(0, len(pairs), IMPORT_BATCH):
        yield pairs[first : first + IMPORT_BATCH]


def kill_in_the_middle(
    settings: Settings,
    report: DemoReport,
    path: str,
    model: Model,
    threads: int,
    transactions: int,
    seed: int,
) -> None:
    """Let a child move people and kill it; the model hears what it began and what it was told."""
    job = {
        "path": os.path.abspath(path),
        "cities": cities_to_move(model.cities),
        "hot": HOT_CITIES,
        "threads": threads,
        "seed": seed,
    }
    with report.timed("child, with its start"):
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child, progress(settings, "moving people", transactions) as advance:
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                child.stdin.write(json.dumps(job) + "\n")
                child.stdin.flush()
                report.seconds["moving people"] = listen(child, model, transactions, advance)
            finally:
                child.kill()
    if child.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the child ended by itself, with {child.returncode}")
    report.figures |= {
        "transactions begun": len(model.begun),
        "acknowledged": len(model.acknowledged),
        "in flight at the kill": len(model.undecided),
    }


def cities_to_move(cities: Mapping[int, CityRecord]) -> list[int]:
    """Return the cities that take part, the largest first."""
    ordered = sorted(cities, key=lambda number: -cities[number]["population"])
    large = [n for n in ordered if cities[n]["population"] >= CITIES_MOVED_MIN]
    return large if len(large) > HOT_CITIES else ordered[: 2 * HOT_CITIES]


def listen(
    child: subprocess.Popen[str], model: Model, transactions: int, advance: Advance
) -> float:
    """Hear the child; kill it at the wanted number, then hear what was still in the pipe.

    Returns how many seconds it moved people.
    """
    assert child.stdout is not None
    began, killed = 0.0, False
    for line in child.stdout:
        began = began or time.perf_counter()
        if not line.endswith("\n"):
            break
        model.hear(line)
        if line.startswith("A"):
            advance(1)
        if not killed and len(model.acknowledged) >= transactions:
            child.send_signal(signal.SIGKILL)
            killed = True
    return round(time.perf_counter() - began, 3)


def recover_and_prove(settings: Settings, report: DemoReport, path: str, model: Model) -> None:
    """Open the store again, compare it with the model, and run the built-in check."""
    with report.timed("recovery"):
        db = opens.open(path, create=False)
    bar = progress(settings, "proving", 2 * len(model.cities))
    with db, bar as advance, report.timed("proof"):
        found = read_all(db, model, advance)
        report.problems += find_problems(model, found)
    with report.timed("check of the store"):
        report.problems += check_store(path)
    applied = sum(tx_id in found.moves for tx_id in model.undecided)
    report.figures["in flight and applied whole"] = applied
    report.figures["in flight and not applied"] = len(model.undecided) - applied


def read_all(db: Database, model: Model, advance: Advance) -> Found:
    """Read the whole store."""
    cities, index = {}, {}
    for number, record in cities_of(db).items():
        cities[number] = record
        advance(1)
    for key, name in index_of(db).items():
        index[key] = name
        advance(1)
    return Found(
        cities=cities,
        index=index,
        moves=dict(moves_of(db).items()),
        outcomes={tx_id: db.outcome(tx_id) for tx_id in sorted(model.undecided)},
    )


# ------------------------------------------------------------------ what is shown


def show_log(ctx: click.Context, path: str, model: Model) -> None:
    """Show what the log itself says: its counts, and the records of one key."""
    click.echo(f"$ tidelog wal stat {path} --map moves")
    ctx.invoke(stat, path=path, form="text", map="moves")
    busiest = busiest_city(model)
    if busiest is not None:
        click.echo(f"\n$ tidelog wal dump {path} --map cities --key {busiest} --last 3")
        ctx.invoke(dump, path=path, form="text", map="cities", key=str(busiest), last=3)
    click.echo()


def busiest_city(model: Model) -> int | None:
    """Return the city that most moves touched, or None if there were none."""
    touched: dict[int, int] = {}
    for move in model.begun.values():
        for number in (move.source, move.target):
            touched[number] = touched.get(number, 0) + 1
    return max(sorted(touched), key=touched.__getitem__, default=None)


def show_report(settings: Settings, report: DemoReport, kept: str | None, form: str) -> None:
    """Print figures, timings and the verdict."""
    if form != "text":
        write_json(
            {
                "v": SCHEMA,
                "type": "demo",
                "proved": not report.problems,
                "problems": report.problems,
                "figures": report.figures,
                "seconds": report.seconds,
                "store": kept,
            }
        )
        return
    rates = {
        "transactions per second": round(
            report.figures["acknowledged"] / max(report.seconds["moving people"], 0.001)
        )
    }
    timings = {step: f"{seconds:.2f} s" for step, seconds in report.seconds.items()}
    write_fields(settings, {**report.figures, **timings, **rates})
    for problem in report.problems:
        click.echo(f"problem: {problem}")
    if report.problems:
        click.echo("NOT PROVED: the store contradicts the model")
    else:
        click.echo(
            "proved: every acknowledged transaction is there, every other one whole or not at all"
        )
    if kept is not None:
        click.echo(f"the store is kept in {kept}")
