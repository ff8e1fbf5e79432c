"""How long a `kill -9` under load is felt: a member of a cluster, and the leader of etcd.

    dip = kill_of_member(folder)

The member that coordinates is killed, which is also the primary of a third of the partitions.  Each
of the clients has keys of one member only, in turn; what those of the other members see meanwhile
is told apart.  Nobody starts the member again: the two others go on.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from math import nan
from pathlib import Path
from threading import Barrier
from time import perf_counter
from typing import NamedTuple

import etcd
from loads import RECORDS, TidelogThreads, in_child
from members import MEMBERS, members_up
from peers import Pair
from workloads import WRITTEN, pairs_of

CLIENTS = 32
BEFORE_S, AFTER_S = 2.0, 6.0
WARM_S = 0.5
"""Of the time before the kill, what does not count for the rate."""
WINDOW_S, STEP_S = 0.2, 0.01
ETCD_LIMIT_S = 2.0
"""After which a client of etcd gives a put up, and counts it as failed.  Without it those that were
on their way to the dead leader through another member hang for 7 s, which a new leader does not
change."""


class Put(NamedTuple):
    """When a put began and was answered, in seconds, and whether its primary was killed."""

    began: float
    ended: float
    of_killed: bool


@dataclass(frozen=True, slots=True)
class AskKill:
    """What one process of clients does: a share each, and who is killed."""

    where: str
    shares: tuple[tuple[list[Pair], bool], ...]
    victim: int


@dataclass(frozen=True, slots=True)
class Told:
    """What clients saw: when the kill was, what was answered, and which errors came."""

    killed: float
    puts: list[Put]
    errors: list[str]


@dataclass(frozen=True, slots=True)
class Dip:
    """One kill: puts per second before it, seconds until half of that was back, and so on.

    ``back_killed`` is of the keys of the killed member, nan where nobody has any of their own;
    ``p99`` is of the seconds of the others' puts that were under way between kill and ``back``.
    """

    rate: float
    back: float
    back_killed: float
    p99: float
    errors: int


def kill_of_member(folder: Path) -> Dip:
    """Kill a member of a new cluster with two backups."""
    try:
        with members_up(folder, backups=MEMBERS - 1) as up:
            pairs = pairs_of(RECORDS, WRITTEN)
            of_member: list[list[Pair]] = [[] for _ in range(MEMBERS)]
            client = TidelogThreads(up.url)
            client.put(*pairs[0])
            client.close()
            for place, pair in zip(up.placed(key for key, _ in pairs), pairs, strict=True):
                of_member[place].append(pair)
            killed = up.coordinator()
            shares = tuple(
                (
                    of_member[number % MEMBERS][number // MEMBERS :: CLIENTS],
                    number % MEMBERS == killed,
                )
                for number in range(CLIENTS)
            )
            told = in_child(_under_threads, AskKill(up.url, shares, up.pids[killed]))
            if told.errors:
                print(f"errors after the kill: {sorted(set(told.errors))}")
            return dip_of(told)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _under_threads(ask: AskKill) -> Told:
    client = TidelogThreads(ask.where)
    errors: list[str] = []
    times: list[float] = []
    ready = Barrier(len(ask.shares) + 1, lambda: times.append(perf_counter()))

    def work(share: list[Pair], of_killed: bool) -> list[Put]:
        client.put(*share[0])
        ready.wait()
        puts: list[Put] = []
        for key, value in cycle(share):
            began = perf_counter() - times[0]
            if began >= BEFORE_S + AFTER_S:
                break
            try:
                client.put(key, value)
            except Exception as error:  # whatever it is, it counts
                errors.append(f"{type(error).__name__}: {error}")
            else:
                puts.append(Put(began, perf_counter() - times[0], of_killed))
        return puts

    with ThreadPoolExecutor(len(ask.shares)) as pool:
        asked = [pool.submit(work, *share) for share in ask.shares]
        ready.wait()
        time.sleep(BEFORE_S)
        os.kill(ask.victim, signal.SIGKILL)
        killed = perf_counter() - times[0]
        puts = [put for one in asked for put in one.result()]
    client.close()
    return Told(killed, puts, errors)


def kill_of_etcd(folder: Path) -> Dip:
    """Kill the leader of a new etcd-3 under its own client in Go."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with etcd.running(folder, MEMBERS) as up:
            at: list[float] = []

            def kill() -> None:
                os.kill(up.leading_pid, signal.SIGKILL)
                at.append(time.time())

            timer = threading.Timer(BEFORE_S, kill)
            timer.start()
            endpoints = ",".join(up.addresses)
            told = etcd.go_load(
                endpoints,
                "put",
                CLIENTS,
                BEFORE_S + AFTER_S,
                (),
                limit_s=ETCD_LIMIT_S,
                each=True,
            )
            timer.join()
            puts = [
                Put(began, ended, False)
                for began, ended in zip(told["began"], told["ended"], strict=True)
            ]
            return dip_of(Told(at[0] - told["begun"], puts, ["failed"] * told["failed"]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------------- what it means


def dip_of(told: Told) -> Dip:
    """What a kill did to the rate."""
    back = back_after(told.killed, [put.ended for put in told.puts])
    of_killed = [put.ended for put in told.puts if put.of_killed]
    until = told.killed + (back if back < AFTER_S else AFTER_S)
    meanwhile = sorted(
        put.ended - put.began
        for put in told.puts
        if not put.of_killed and put.ended >= told.killed and put.began <= until
    )
    return Dip(
        rate=rate_before(told.killed, [put.ended for put in told.puts]),
        back=back,
        back_killed=back_after(told.killed, of_killed) if of_killed else nan,
        p99=meanwhile[int(len(meanwhile) * 0.99)] if meanwhile else nan,
        errors=len(told.errors),
    )


def rate_before(killed: float, ended: list[float]) -> float:
    """Puts per second before a kill."""
    return sum(WARM_S <= at < killed for at in ended) / (killed - WARM_S)


def back_after(killed: float, ended: list[float]) -> float:
    """Seconds from a kill until half of the rate was back: 0 if it never fell below that.

    Taken is the middle of the first window with half of the rate, behind the first one without;
    ``AFTER_S`` if there is none.
    """
    half = rate_before(killed, ended) * WINDOW_S / 2
    steps = int((AFTER_S - WINDOW_S) / STEP_S)
    fallen = False
    for step in range(steps):
        begin = killed + step * STEP_S
        enough = sum(begin <= at < begin + WINDOW_S for at in ended) >= half
        if enough and fallen:
            return begin + WINDOW_S / 2 - killed
        fallen = fallen or not enough
    return AFTER_S if fallen else 0.0
