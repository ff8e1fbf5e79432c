"""What the figures are held against, and how they are told.

A target is a ratio against a peer in the same round, or an absolute figure.  "Must" decides
between pass and fail; "aim" is where we want to be and is only shown.  Units of `s`, `B`, `us` and
`x` are better when smaller.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isnan
from pathlib import Path
from statistics import median

from peers import STORES, WRITERS
from workloads import SKETCH, TIDELOG, WORKLOADS, Row

Figures = dict[str, dict[str, list[float]]]  # row -> peer -> one figure per round

ROWS: dict[str, Row] = {row.name: row for workload in WORKLOADS for row in workload.rows}
FLAT_BYTES_PER_RECORD = 20
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
INTRODUCTION = """# Benchmarks

Tidelog beside what a Python developer would take instead. `make bench` takes the figures anew;
`benchmarks/run.py --help` tells of its options, and `--write` replaces the part of this page
between the two marks.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A demand on one row: `against` a peer it is a ratio, without one the figure itself."""

    row: str
    against: str | None
    must: float | None
    aim: float | None = None
    of: tuple[str, ...] = TIDELOG


TARGETS = (
    Target("a", "raw-append", 1.2, 1.4),
    Target("a", "lmdb", 2.4),
    Target("a", "sqlite", 1.0),
    Target("a", "rocksdict", 1.0),
    Target("a", "plyvel", 1.0),
    Target("g", "raw-append", 1.05, 1.2),
    Target("g", "lmdb", 3.0, 3.5),
    Target("g", "sqlite", 1.5),
    Target("g", "rocksdict", 1.2),
    Target("g", "plyvel", 1.1),
    Target("b-trio-1", "raw-append", 0.55, 1.0),
    Target("b-trio-8", "plyvel", 1.1, 1.8),
    Target("b-trio-32", "plyvel", 1.4, 2.2),
    Target("b-trio-128", "plyvel", 2.2, 3.3),
    Target("b-asyncio-1", "raw-append", 0.55, 1.0),
    Target("b-asyncio-8", "plyvel", 1.1, 1.8),
    Target("b-asyncio-32", "plyvel", 1.4, 2.2),
    Target("b-asyncio-128", "plyvel", 2.2, 3.3),
    Target("b-threads-8", "lmdb", 7.0),
    Target("b-threads-8", "sqlite", 3.5),
    Target("b-threads-8", "rocksdict", 3.5),
    Target("b-threads-8", "plyvel", 0.9, 1.2),
    Target("b-threads-32", "lmdb", 11.0),
    Target("b-threads-32", "sqlite", 5.5),
    Target("b-threads-32", "rocksdict", 5.5),
    Target("b-threads-32", "plyvel", 0.8, 1.0),
    Target("incr-1", "sqlite", 1.0),
    Target("incr-32", "sqlite", 5.0),
    Target("c", "lmdb", 4.5),
    Target("c", "sqlite", 4.5),
    Target("c", "rocksdict", 1.2),
    Target("c", "plyvel", 0.8, 1.1),
    Target("d", "lmdb", 2.5),
    Target("d", "rocksdict", 0.85, 1.2),
    Target("d", "plyvel", 1.4),
    Target("i-disk", None, 300, 240),
    Target("i-written", None, 6, 4),
    Target("ds", "lmdb", 0.15, 0.25),
    Target("ds", "sqlite", 1.4),
    Target("ds", "rocksdict", None, 0.6),
    Target("ds", "plyvel", 0.95),
    Target("e", "lmdb", 0.65, 0.85),
    Target("e", "sqlite", 3.0),
    Target("e", "rocksdict", 3.0),
    Target("e", "plyvel", 1.2),
    Target("e-multi", "lmdb", 1.0, 1.15),
    Target("f", "lmdb", 0.45, 0.55, of=("tidelog-1",)),
    Target("f", "lmdb", 0.3, 0.4, of=("tidelog-16",)),
    Target("f", "sqlite", 0.6, of=("tidelog-16",)),
    Target("f-prefix", "lmdb", 0.45, 0.55),
    Target("h", "plyvel", 0.45, 0.25),
    Target("h", "rocksdict", 0.35),
    Target("counter", None, 2.0, of=("tidelog-16",)),
    Target("rows", None, 2.0, of=("tidelog-16",)),
    Target("rows-join", None, 2.0, of=("tidelog-16",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A target beside what was reached: the median over rounds and the extremes.

    ``sketch`` is what the sketch of a store reached in the same rounds, if it took part.
    """

    target: Target
    peer: str
    reached: float
    lowest: float
    highest: float
    sketch: float | None

    @property
    def passed(self) -> bool:
        if self.target.must is None:
            return True
        if smaller_is_better(self.target.row):
            return self.reached <= self.target.must
        return self.reached >= self.target.must

    @property
    def word(self) -> str:
        if self.target.must is None:
            return "-"
        return "pass" if self.passed else "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The peaks of anonymous memory, in bytes, of one size of store."""

    peer: str
    records: int
    peaks: dict[str, int]


def smaller_is_better(row: str) -> bool:
    return ROWS[row].unit != "/s"


# --------------------------------------------------------------------------------------- verdicts


def verdicts(figures: Figures, rows: Iterable[str]) -> Iterator[Verdict]:
    """Every target of the rows for which both sides were measured."""
    wanted = set(rows)
    for target in TARGETS:
        if target.row not in wanted:
            continue
        by_peer = figures[target.row]
        for peer in target.of:
            reached = _reached(by_peer, peer, target.against)
            sketch = _reached(by_peer, SKETCH, target.against)
            if reached:
                yield Verdict(
                    target=target,
                    peer=peer,
                    reached=median(reached),
                    lowest=min(reached),
                    highest=max(reached),
                    sketch=median(sketch) if sketch else None,
                )


def _reached(by_peer: dict[str, list[float]], peer: str, against: str | None) -> list[float]:
    """One figure or ratio per round; none where one side was not measured."""
    own = by_peer.get(peer, [])
    if against is None:
        return [figure for figure in own if not isnan(figure)]
    return [mine / theirs for mine, theirs in zip(own, by_peer.get(against, own[:0]), strict=False)]


def verdict_lines(figures: Figures, rows: Iterable[str]) -> str:
    """The figures of some rows, then their verdicts, for the terminal."""
    lines = []
    names = list(rows)
    for name in names:
        row = ROWS[name]
        lines.append(f"{name}: {row.title}")
        for peer, taken in figures[name].items():
            if taken:
                lines.append(f"    {peer:<12} {_figure(median(taken), row.unit):>12}")
    for verdict in verdicts(figures, names):
        name, store, reached, extremes, must, aim, word, sketch = _cells(verdict)
        demands = f"must {must or '-'}, aim {aim or '-'}, sketch {sketch or '-'}"
        lines.append(f"{word:<4}  {name:<13} {store:<11} {reached:<17} {demands} ({extremes})")
    return "\n".join(lines)


def memory_line(memory: Memory) -> str:
    peaks = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in memory.peaks.items())
    return f"memory: {memory.peer}, {memory.records:,} records: {peaks}"


def memory_verdicts(memories: list[Memory]) -> Iterator[str]:
    """Whether memory stays flat: what each further record added, from the last size but one on."""
    for peer in TIDELOG:
        sizes = [memory for memory in memories if memory.peer == peer]
        if len(sizes) < 2:
            continue
        before, last = sizes[-2:]
        for name, peak in last.peaks.items():
            slope = (peak - before.peaks[name]) / (last.records - before.records)
            word = "pass" if slope <= FLAT_BYTES_PER_RECORD else "fail"
            yield (
                f"{word}  memory, {name}, {peer}: {slope:.1f} B per record from "
                f"{before.records:,} to {last.records:,} (must <= {FLAT_BYTES_PER_RECORD})"
            )


# ------------------------------------------------------------------------------------------ wording


def _cells(verdict: Verdict) -> tuple[str, ...]:
    """Row, store, what was reached, between which extremes, must, aim, word, sketch."""
    target = verdict.target
    sign = "<=" if smaller_is_better(target.row) else ">="
    unit = f"x {target.against}" if target.against else f" {ROWS[target.row].unit}"
    return (
        target.row,
        verdict.peer,
        f"{_number(verdict.reached)}{unit}",
        f"{_number(verdict.lowest)} to {_number(verdict.highest)}",
        f"{sign} {target.must:g}" if target.must is not None else "",
        f"{target.aim:g}" if target.aim is not None else "",
        verdict.word,
        f"{_number(verdict.sketch)}" if verdict.sketch is not None else "",
    )


def _figure(figure: float, unit: str) -> str:
    if isnan(figure):
        return "-"
    if unit != "/s":
        return f"{_number(figure)} {unit}"
    if figure >= 1e6:
        return f"{_number(figure / 1e6)} M/s"
    return f"{_number(figure / 1e3)} k/s" if figure >= 1e4 else f"{figure:,.0f}/s"


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(head)
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


# --------------------------------------------------------------------------------------- the page


def machine_facts(folder: Path) -> dict[str, str]:
    """What the figures depend on, without the machine's name or any path on it."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = [
        f"{name} {importlib.metadata.version(name)}"
        for name in ("tidelog", "lmdb", "rocksdict", "plyvel", "trio")
    ]
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory_bytes / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": file_system(folder),
        "Python": platform.python_version(),
        "versions": ", ".join([*versions, f"SQLite {sqlite3.sqlite_version}"]),
        "load when it began": f"{os.getloadavg()[0]:.2f}",
        "date": datetime.now(UTC).date().isoformat(),
    }


def file_system(folder: Path) -> str:
    """The type of the file system that holds a folder."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    resolved = folder.resolve()
    holding = [mount for mount in mounts if resolved.is_relative_to(mount[1])]
    return max(holding, key=lambda mount: len(mount[1]))[2]


def page(
    machine: dict[str, str],
    figures: Figures,
    memories: list[Memory],
    rounds: int,
    options: list[str],
) -> str:
    """The generated part of the page."""
    command = " ".join([".venv/bin/python benchmarks/run.py", *_without_paths(options)])
    lines = [
        f"Taken with `{command}`.",
        "Every workload runs with all its peers in turn, each measurement in a fresh process, over",
        f"{rounds} rounds; a ratio is the median of the ratios within each. Keys are 16 random",
        "bytes, values 100 random bytes. `tidelog-1` and `tidelog-16` have one and 16 partitions.",
        "`sketch` (`benchmarks/sketch.py`) is no store but the least that Python has to do: the",
        "same records, frames and checks, without locks, isolation, recovery or background work.",
        "",
        *table(("fact", "value"), machine.items()),
        "",
        "## Targets",
        "",
        *table(
            ("row", "store", "reached", "over the rounds", "must", "aim", "verdict", "sketch"),
            map(_cells, verdicts(figures, figures)),
        ),
        "",
        "## Figures",
        "",
        *_figure_table(figures),
    ]
    if memories:
        lines += ["", "## Memory", "", *_memory_part(memories)]
    return "\n".join(lines)


def _without_paths(options: list[str]) -> Iterator[str]:
    """The options, with the data's folder left out: it belongs to one machine."""
    hidden = False
    for option in options:
        yield "..." if hidden else "--dir=..." if option.startswith("--dir=") else option
        hidden = option == "--dir"


def _figure_table(figures: Figures) -> Iterator[str]:
    peers = [
        peer for peer in (*WRITERS, *STORES) if any(peer in taken for taken in figures.values())
    ]
    return table(
        ("row", "what", *peers),
        (
            (
                name,
                ROWS[name].title,
                *(
                    _figure(median(taken[peer]), ROWS[name].unit) if taken.get(peer) else ""
                    for peer in peers
                ),
            )
            for name, taken in figures.items()
        ),
    )


def _memory_part(memories: list[Memory]) -> Iterator[str]:
    yield "Peaks of anonymous memory, sampled from outside; mapped pages of the store do not count."
    yield ""
    phases = list(memories[0].peaks)
    yield from table(
        ("store", "records", *phases),
        (
            (
                memory.peer,
                f"{memory.records:,}",
                *(f"{memory.peaks[phase] / 2**20:.0f} MiB" for phase in phases),
            )
            for memory in memories
        ),
    )
    yield ""
    yield from (f"- {line}" for line in memory_verdicts(memories))


def write(document: Path, generated: str) -> None:
    """Put the generated part between its marks; what is written around them stays."""
    text = document.read_text() if document.exists() else f"{INTRODUCTION}\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    document.parent.mkdir(exist_ok=True)
    document.write_text(f"{before}{BEGIN}\n{generated}\n{END}{after}")
