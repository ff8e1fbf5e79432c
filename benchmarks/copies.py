"""Puts with two backups beside etcd-3 and PySyncObj, taken apart, and what a kill does to them.

The part of ``cluster.py`` whose rows have three copies of everything: ours are durable on three
disks when they are answered, those of etcd on two of three, those of PySyncObj on none.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from statistics import median

import etcd
import pysync
from kills import AFTER_S, CLIENTS, Dip, kill_of_etcd, kill_of_member
from loads import PYSYNCOBJ, Ask, Load, in_child, load_of
from members import Layout
from report import table
from sides import (
    ETCD,
    ETCD_GO,
    OURS,
    PYSYNC,
    PYTHON,
    SIDES,
    Place,
    Row,
    Side,
    Target,
    both_up,
    cpu_table,
    lacks_etcd,
    measured,
    rate_table,
    told_once,
    verdict_table,
)
from stages import staged_round

BACKUPS = 2
ROWS = (("put", 1), ("put", 32), ("put", 64), ("get", 32))
KILL_S_MUST, KILL_S_AIM = 2.0, 1.2

TARGETS = (
    Target(("put", 1), ETCD, 0.8, None),
    Target(("put", 32), ETCD, 1.5, None),
    Target(("put", 64), ETCD, 2.0, None),
    Target(("get", 32), ETCD, 3.0, None),
    Target(("put", 1), ETCD_GO, None, 1.0),
    Target(("put", 32), ETCD_GO, None, 1.0),
    Target(("put", 64), ETCD_GO, None, 1.5),
    Target(("put", 1), PYSYNC, 40.0, None),
)

LAYOUTS: tuple[tuple[Layout, tuple[int, ...]], ...] = (
    ("spread", (1, 32, 64)),
    ("one primary", (32,)),
    ("three disks", (32,)),
    ("in memory", (32,)),
)


@dataclass(slots=True)
class Figures:
    """One figure per round of each row and side, stage and layout, and kill."""

    loads: dict[tuple[Row, Side], list[Load]] = field(default_factory=dict)
    stages: dict[tuple[Layout, int], list[dict[str, float]]] = field(default_factory=dict)
    dips: dict[str, list[Dip]] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    """Why somebody does not take part."""


def sides_here() -> tuple[list[Side], list[str]]:
    """Who can take part on this machine, and why the others cannot."""
    lacks = lacks_etcd() | {PYSYNC: pysync.missing()}
    return [side for side in SIDES if not lacks.get(side)], told_once(lacks)


def copies_round(sides: Iterable[Side], folder: Path, seconds: float, figures: Figures) -> None:
    """Measure everything once."""
    _loads(list(sides), folder, seconds, figures)
    for layout, clients in LAYOUTS:
        found = staged_round(folder, BACKUPS, layout, clients, seconds)
        for count, by_stage in found.items():
            figures.stages.setdefault((layout, count), []).append(by_stage)
    kills: dict[str, Callable[[Path], Dip]] = {"etcd-3": kill_of_etcd, OURS: kill_of_member}
    for peer, kill in kills.items():
        if peer == OURS or ETCD_GO in sides:
            figures.dips.setdefault(peer, []).append(kill(folder))


def _loads(sides: list[Side], folder: Path, seconds: float, figures: Figures) -> None:
    together = [side for side in sides if side != PYSYNC]
    try:
        with both_up(folder, sides, BACKUPS) as (_, places):
            for number, row in enumerate(ROWS):
                turn = number % len(together)
                for side in (*together[turn:], *together[:turn]):
                    _load(row, side, places[side.peer], seconds, figures)
        if PYSYNC in sides:  # alone, as its members are at work all the time
            (folder / PYSYNCOBJ).mkdir(parents=True)
            with pysync.running(folder / PYSYNCOBJ) as place:
                for row in ROWS[:-1]:
                    _load(row, PYSYNC, place, seconds, figures)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _load(
    row: Row,
    side: Side,
    place: Place,
    seconds: float,
    figures: Figures,
) -> None:
    os.sync()
    where, pids = place
    operation, clients = row
    ask = Ask(side.peer, where, operation, side.form, clients, seconds, pids)
    load = in_child(load_of, ask)
    figures.loads.setdefault((row, side), []).append(load)
    print(f"{operation}, {clients}: {side}: {load.rate:,.0f}/s", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------- the page


def page(figures: Figures, rounds: int, load: float) -> Iterator[str]:
    """The part of the page that is about copies."""
    sides = measured(figures.loads)
    versions = [PYTHON, *([f"etcd {etcd.version()}"] if ETCD in sides else [])]
    versions += [f"PySyncObj {pysync.version()}"] if PYSYNC in sides else []
    told = "; ".join([*versions, *figures.lacking])
    yield f"Taken with `benchmarks/cluster.py --only copies`, medians of {rounds} rounds; {told};"
    yield f"load of the machine when it began: {load:.2f}."
    yield ""
    yield from verdict_table(TARGETS, figures.loads)
    yield ""
    yield from rate_table(ROWS, figures.loads)
    yield ""
    yield from cpu_table(ROWS, figures.loads)
    yield ""
    yield from _stage_table(figures)
    yield ""
    yield from _kill_table(figures.dips)


def _stage_table(figures: Figures) -> Iterator[str]:
    columns = [(layout, count) for layout, counts in LAYOUTS for count in counts]
    stages = figures.stages[columns[0]][0]
    return table(
        ("us per put", *(_column(layout, count) for layout, count in columns)),
        (
            (
                stage,
                *(
                    time(median(found.get(stage, nan) for found in figures.stages[column]))
                    for column in columns
                ),
            )
            for stage in stages
        ),
    )


def _column(layout: Layout, clients: int) -> str:
    name = f"{clients} thread{'s' * (clients > 1)}"
    return name if layout == "spread" else f"{name}, {layout}"


def time(figure: float) -> str:
    """Microseconds, or a count, as a cell."""
    return "" if isnan(figure) else f"{figure:,.0f}" if figure >= 10 else f"{figure:.2g}"


def _kill_table(dips: dict[str, list[Dip]]) -> Iterator[str]:
    peers = [peer for peer in ("etcd-3", OURS) if peer in dips]

    def row(name: str, figure: Callable[[Dip], float], form: str, verdict: str = "") -> list[str]:
        cells = [format_of([figure(dip) for dip in dips[peer]], form) for peer in peers]
        return [name, *cells, verdict]

    back = median(dip.back for dip in dips[OURS])
    errors = sum(dip.errors for dip in dips[OURS])
    must = f"<= {KILL_S_MUST:g} (aim {KILL_S_AIM:g}): {'pass' if back <= KILL_S_MUST else 'fail'}"
    return table(
        (f"kill -9 under {CLIENTS} clients", *peers, "must"),
        (
            row("puts per second before", lambda dip: dip.rate, ",.0f"),
            row("half of the rate is back, s", lambda dip: dip.back, ".2f", must),
            row("the same for keys of the killed member, s", lambda dip: dip.back_killed, ".2f"),
            row("p99 of the others' puts meanwhile, s", lambda dip: dip.p99, ".2f"),
            row(
                "errors that the client told",
                lambda dip: dip.errors,
                ".0f",
                f"0: {'fail' if errors else 'pass'}",
            ),
        ),
    )


def format_of(figures: list[float], form: str) -> str:
    """Median and extremes; a figure that was not reached in the time says so."""
    if any(map(isnan, figures)):
        return "-"
    low, middle, high = min(figures), median(figures), max(figures)
    more = "over " if form == ".2f" and middle >= AFTER_S else ""
    return f"{more}{middle:{form}} ({low:{form}} to {high:{form}})"
