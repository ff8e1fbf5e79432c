"""Who is measured beside whom under one load after the other, what ratios must be, and the tables.

How those start that are measured in turn stands here, too: they have the same pairs.

A side is a peer with one form of its clients.  Ratios are taken within a round; verdicts and tables
are about the medians of all rounds.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import etcd
from loads import PYSYNCOBJ, Ask, Load, fill, in_child
from members import Members, members_up
from report import table


class Side(NamedTuple):
    """A peer and the form of its clients: a column of the tables."""

    peer: str
    form: str

    def __str__(self) -> str:
        return f"{self.peer}, {'Go' if self.form == 'go' else self.form}"


PYTHON = f"Python {platform.python_version()}"
"""Of members and of clients."""
OURS = "tidelog-3"
THREADS, TASKS = Side(OURS, "threads"), Side(OURS, "tasks")
ETCD, ETCD_TASKS, ETCD_GO = (Side("etcd-3", form) for form in ("threads", "tasks", "go"))
PYSYNC = Side(PYSYNCOBJ, "threads")
SIDES = (ETCD, ETCD_TASKS, ETCD_GO, PYSYNC, THREADS, TASKS)

Place = tuple[str, tuple[int, ...]]
"""What clients of a peer connect to, and the processes whose time counts."""
Row = tuple[str, int]
"""What is done, and by how many clients."""
Loads = Mapping[tuple[Row, Side], Sequence[Load]]
"""One figure per round of each row and side."""


class Target(NamedTuple):
    """A demand on the ratio of a row of ours and one of another's."""

    row: Row
    against: Side
    must: float | None
    aim: float | None


def lacks_etcd() -> dict[Side, str | None]:
    """Why sides of etcd cannot take part on this machine, if so."""
    lacks = etcd.missing()
    return {ETCD: lacks, ETCD_TASKS: lacks, ETCD_GO: lacks or etcd.lacks_go()}


def told_once(lacks: Mapping[Side, str | None]) -> list[str]:
    """The reasons why sides do not take part."""
    return list(dict.fromkeys(reason for reason in lacks.values() if reason))


@contextmanager
def both_up(
    folder: Path, sides: Sequence[Side], backups: int
) -> Iterator[tuple[Members, Mapping[str, Place]]]:
    """Start our members, and etcd if it takes part, each with all pairs.

    Yields our members, and by peer where it is.
    """
    with ExitStack() as up:
        ours = up.enter_context(members_up(folder / OURS, backups=backups))
        places: dict[str, Place] = {OURS: (ours.url, ours.pids)}
        if ETCD in sides:
            (folder / ETCD.peer).mkdir(parents=True)
            other = up.enter_context(etcd.running(folder / ETCD.peer, 3))
            places[ETCD.peer] = other.leader, other.pids
        for peer, (where, _) in places.items():
            in_child(fill, Ask(peer, where, "put", "threads", 32, 0))
        yield ours, places


def measured(loads: Loads) -> list[Side]:
    """The sides that took part, in the order of columns."""
    return [side for side in SIDES if any(other == side for _, other in loads)]


def verdict_table(targets: Iterable[Target], loads: Loads) -> Iterator[str]:
    """What was demanded of our threads and tasks, and what they reached."""
    return table(
        ("row", "ours", "beside", "reached", "over the rounds", "must", "aim", "verdict"),
        _verdicts(targets, loads),
    )


def _verdicts(targets: Iterable[Target], loads: Loads) -> Iterator[tuple[str, ...]]:
    here = set(measured(loads))
    for row, against, must, aim in targets:
        for mine in (THREADS, TASKS):
            if against not in here:
                continue
            ratios = ratios_of(loads, row, mine, against)
            reached = median(ratios)
            yield (
                name_of(row),
                mine.form,
                str(against),
                f"{reached:.2g}x",
                f"{min(ratios):.2g} to {max(ratios):.2g}",
                f">= {must:g}" if must else "",
                f"{aim:g}" if aim else "",
                "-" if must is None else "pass" if reached >= must else "fail",
            )


def ratios_of(loads: Loads, row: Row, mine: Side, against: Side) -> list[float]:
    """Our rate by that of another, of each round."""
    pairs = zip(loads[row, mine], loads[row, against], strict=True)
    return [own.rate / other.rate for own, other in pairs]


def rate_table(rows: Iterable[Row], loads: Loads) -> Iterator[str]:
    """Rates of all rows and sides."""
    sides = measured(loads)
    return table(
        ("per second", *map(str, sides)),
        ((name_of(row), *(_rate(loads.get((row, side))) for side in sides)) for row in rows),
    )


def cpu_table(rows: Iterable[Row], loads: Loads) -> Iterator[str]:
    """CPU of each operation, of all rows and sides."""
    sides = measured(loads)
    return table(
        ("us of CPU: client + members", *map(str, sides)),
        ((name_of(row), *(_cpu(loads.get((row, side))) for side in sides)) for row in rows),
    )


def name_of(row: Row) -> str:
    """A row as the first cell of its line."""
    operation, clients = row
    return f"{operation}, {clients} client{'s' * (clients > 1)}"


def _rate(loads: Sequence[Load] | None) -> str:
    return f"{median(load.rate for load in loads):,.0f}" if loads else "-"


def _cpu(loads: Sequence[Load] | None) -> str:
    if not loads:
        return "-"
    client = median(load.client_us for load in loads)
    return f"{client:,.0f} + {median(load.members_us for load in loads):,.0f}"
