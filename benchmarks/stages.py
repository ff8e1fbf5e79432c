"""A put taken apart: what it costs the clients, the members' loops, their logs and their disks.

Time is taken in members by ``staged_member.py``, CPU by the kernel.  What the members do without a
client is measured first, and taken off.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from pathlib import Path
from time import perf_counter_ns, process_time_ns, sleep

from loads import RECORDS, Ask, TidelogThreads, fill, from_threads, in_child
from members import Layout, members_up
from staged_member import read_stages
from workloads import WRITTEN, pairs_of

WARM_RECORDS = 1_000
"""Put before time is taken."""


@dataclass(frozen=True, slots=True)
class AskStages:
    """What one process of clients does, who the members are, and where they tell of stages."""

    where: str
    clients: int
    seconds: float
    processes: tuple[int, ...]
    files: tuple[Path, ...]


def stages_of(ask: AskStages) -> dict[str, float]:
    """Microseconds and counts per put by stage, of threads in this process."""
    shares = [pairs_of(RECORDS, WRITTEN)[number :: ask.clients] for number in range(ask.clients)]
    client = TidelogThreads(ask.where)
    begun: list[Counter[str]] = []

    def begin() -> None:
        begun.append(_spent(ask))
        sleep(ask.seconds / 2)
        begun.append(_spent(ask))

    puts, _ = from_threads(client.put, shares, ask.seconds, begin)
    after = _spent(ask)
    quiet, before = begun
    client.close()
    length = (after["wall"] - before["wall"]) / (before["wall"] - quiet["wall"])
    per_put = {
        name: (after[name] - before[name] - (before[name] - quiet[name]) * length) / puts
        for name in after
    }
    us = {name: figure / 1000 for name, figure in per_put.items()}
    wall = (after["wall"] - before["wall"]) / puts / 1000
    driver = us["loop"] - us["log"]
    # Of copies, the slowest of three syncs at a time is in the way of a single put.
    rest = wall - us["client"] - driver - us["log"] - us["sync"]
    stages = {
        "client: CPU of its process": us["client"],
        "driver: CPU of the members' loops, without the log": driver,
        "log: frames made and written": us["log"],
        "sync: of the members, one after the other": us["sync"],
    }
    if per_put["prepared"] < 0.5:
        stages["wire, and waiting for a core or a thread"] = rest if ask.clients == 1 else nan
    else:
        stages["of one put: from the queue to the own disk"] = us["here"]
        stages["of one put: from there until all copies have it"] = us["everywhere"]
    stages["all: time per put"] = wall
    stages["syncs per put"] = per_put["syncs"]
    stages["frames per put"] = per_put["frames"]
    if per_put["prepared"] >= 0.5:
        stages["messages between members per put"] = per_put["messages"]
    return stages


def _spent(ask: AskStages) -> Counter[str]:
    """Nanoseconds so far: of the clock, of CPU here and in the members' loops, of stages."""
    spent = Counter(wall=perf_counter_ns(), client=process_time_ns())
    for process, file in zip(ask.processes, ask.files, strict=True):
        spent["loop"] += int(
            Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()[0]
        )
        spent.update(read_stages(file))
    return spent


def staged_round(
    folder: Path, backups: int, layout: Layout, clients: Iterable[int], seconds: float
) -> dict[int, dict[str, float]]:
    """Measure a new cluster whose members tell of their stages; by the number of clients."""
    try:
        with members_up(folder, backups=backups, layout=layout, staged=True) as up:
            in_child(fill, Ask("tidelog-3", up.url, "put", "threads", 32, 0, (), WARM_RECORDS))
            return {
                count: in_child(stages_of, AskStages(up.url, count, seconds, up.pids, up.files))
                for count in clients
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
