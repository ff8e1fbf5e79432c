"""What each fault of a storm does; and what storms look at, each with a mistake to find."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tidelog.engine.client.tasks import ClusterTasksDatabase
from tidelog.engine.node.member import RunningMember
from tidelog.testing import storms
from tidelog.testing.clocks import NodeClocks
from tidelog.testing.cluster import SimCluster
from tidelog.testing.disk import FaultyDisk
from tidelog.testing.growth import Growth
from tidelog.testing.holds import Holds
from tidelog.testing.network import SimulatedNetwork
from tidelog.testing.node import Node
from tidelog.testing.promises import BrokenPromiseError
from tidelog.testing.storm_faults import StormFault
from tidelog.testing.storms import END_S_MAX, run_storm
from tidelog.testing.transaction_mix import LISTING, OTHERS, READING, TransactionMix

Patch = pytest.MonkeyPatch

# ------------------------------------------------------------------ faults

SPIED: dict[type, tuple[str, ...]] = {
    Node: ("kill", "kill_at", "start", "hang_disk"),
    NodeClocks: ("jump_wall", "suspend", "move"),
    FaultyDisk: ("crash_at", "fail_at", "heal"),
    SimulatedNetwork: ("cut", "reset", "half_open", "heal"),
    SimCluster: ("stop", "hold", "release"),
    Holds: ("release_all",),
    RunningMember: ("move",),
    Growth: ("join", "want", "choose", "lose"),
}


def spied(patch: Patch) -> list[str]:
    """Return lines, to which each thing that is done to a cluster adds one from the first fault on.

    A line has the time since the storm began, what was done to whom, and its arguments.
    """
    told: list[str] = []
    clusters: list[SimCluster] = []
    began: list[float] = []
    make, cause = SimCluster.__init__, storms._Storm._cause

    def made(self: SimCluster, **options: Any) -> None:
        clusters.append(self)
        make(self, **options)

    async def caused(self: Any, fault: StormFault) -> None:
        began.append(clusters[0].world.now() - fault.at)
        await cause(self, fault)

    def noted(kind: type, name: str) -> Callable[..., Any]:
        genuine = getattr(kind, name)

        def spy(self: Any, *arguments: Any, **more: Any) -> Any:
            if began:
                cluster = clusters[0]
                whose = [n for n, at in cluster.nodes.items() if self in (at, at.clocks, at.disk)]
                words = [*arguments, *more.values()]
                if kind is FaultyDisk and words:
                    words[0] -= self.operations
                if kind is RunningMember:
                    names = {cluster.member_id(n).bytes: n for n in cluster.names}
                    words = [words[0], names[words[1]]]
                line = [f"{cluster.world.now() - began[0]:.1f}", *whose, name, *words]
                told.append(" ".join(map(str, line)))
            return genuine(self, *arguments, **more)

        return spy

    patch.setattr(SimCluster, "__init__", made)
    patch.setattr(storms._Storm, "_cause", caused)
    for kind, names in SPIED.items():
        for name in names:
            patch.setattr(kind, name, noted(kind, name))
    return told


POWER = ((4, "kill lost"), (7, "start"))
FAULTS = {
    "0.2 move 3 n2": ["0.2 move 3 n2"],
    "0.5 kill n1 torn 0.8": ["0.5 n1 kill torn", "1.3 n1 start"],
    "1.0 kill_at n2 1 0.5 before sync": ["1.0 n2 kill_at before sync 1"],
    "2.0 crash_at n3 5 inside 0.5": ["2.0 n3 crash_at 5 inside"],
    "3.5 stop n1 0.25": ["3.5 stop n1"],
    "4.0 cut n1,c1 0.3": [
        f"4.0 cut {one} {other}"
        for inside in ("n1", "c1")
        for outside in ("n2", "n3", "c2")
        for one, other in ((inside, outside), (outside, inside))
    ]
    + ["4.3 heal"],
    "4.5 cut_way n2 n3 0.2": ["4.5 cut n2 n3", "4.7 heal"],
    "5.0 hold ping n1 n2 0.2": ["5.0 hold ping n1 n2", "5.2 release ping n1 n2"],
    "5.5 reset n1 n2": ["5.5 reset n1 n2"],
    "5.6 half_open n2 n3": ["5.6 half_open n2 n3"],
    "5.7 suspend n1 0.1": ["5.7 n1 suspend 0.1"],
    "5.8 jump n2 -7.5": ["5.8 n2 jump_wall -7.5"],
    "5.9 stall 0.4": ["5.9 n1 move 0.4"],
    "6.5 fail n2 1 0.5": ["6.5 n2 fail_at 1"],
    "7.5 full n3 0.4": ["7.5 n3 fail_at 1 ENOSPC True", "7.9 n3 heal"],
    "8.2 hang n2 0.1": ["8.2 n2 hang_disk 0.1"],
    "8.4 power_cut 0.3": [f"8.{at} n{n} {what}" for n in (1, 2, 3) for at, what in POWER],
    "9.4 stop_all 0.1": [f"9.4 stop n{n}" for n in (1, 2, 3)],
}
GROWING = {
    "0.5 join n4": ["0.5 join n4", "0.5 n4 start"],
    "2.5 kill n4 kept 0.7": ["2.5 n4 kill kept", "3.2 n4 start"],
    "3.5 policy ignore": ["3.5 choose ignore"],
    "4.5 want n4": ["4.5 want n4 True"],
    "5.5 leave n2": ["5.5 want n2 False"],
    "6.0 want n2": ["6.0 want n2 True"],
    "6.5 lose n3": ["6.5 lose n3", "6.5 n3 kill lost"],
}
ENDED = ["10.0 heal", "10.0 release_all", *(f"10.0 n{n} heal" for n in (1, 2, 3))]


@pytest.mark.slow
@pytest.mark.parametrize("lines", [FAULTS, GROWING])
def test_each_fault_does_what_its_line_says_and_the_end_of_a_storm_ends_it(
    lines: dict[str, list[str]], monkeypatch: Patch
) -> None:
    told = spied(monkeypatch)
    outcome = run_storm(3, faults=lines, clients=[0], backups=2, growing=lines is GROWING)
    assert outcome.failure is None
    assert outcome.faults == tuple(f"{float(at):.3f} {rest}" for at, rest in map(_halves, lines))
    missing = {line: [one for one in does if one not in told] for line, does in lines.items()}
    assert {line: does for line, does in missing.items() if does} == {}
    assert [one for one in ENDED if one not in told] == []
    behind = [one.partition(" ")[2] for one in told if float(one.split()[0]) > 10]
    assert {"n1 kill lost", "n2 kill lost"} <= {*behind}, "all power is cut, and all is read again"


def _halves(line: str) -> tuple[str, str]:
    at, _, rest = line.partition(" ")
    return at, rest


@pytest.mark.slow
def test_nothing_hits_who_has_not_joined_or_is_lost(monkeypatch: Patch) -> None:
    told = spied(monkeypatch)
    faults = ["0.1 kill n4 lost 0.1", "0.2 lose n3", "2.0 kill n3 lost 0.1", "2.5 cut n1,n5 0.1"]
    assert run_storm(3, faults=faults, clients=[0], backups=2, growing=True).failure is None
    during = [one for one in told if float(one.split()[0]) < 10]
    assert "0.2 n3 kill lost" in during
    assert not [one for one in during if " n4 " in one or " cut " in one or "2.0 n3" in one]
    assert not [one for one in told if one.endswith("n3 start")], "its disk is lost"


# ------------------------------------------------------------------ checks


FOUND = BrokenPromiseError("this was looked at")


def looked_at(method: str) -> Callable[[Patch], None]:
    """Return a patch by which one look at a cluster finds something wrong."""

    def plant(patch: Patch) -> None:
        patch.setattr(SimCluster, method, raises)

    async def raises(*_about: Any) -> None:
        raise FOUND

    return plant


def broken_store(patch: Patch) -> None:
    async def problems(*_about: Any) -> list[str]:
        return ["a hole"]

    patch.setattr(SimCluster, "verify", problems)


def never_ends(patch: Patch) -> None:
    def clients(*_about: Any, **_more: Any) -> list[Any]:
        return [trio.sleep_forever] * storms.COUNTER_CLIENTS

    patch.setattr(storms, "counter_clients", clients)


def reads_back(first: int) -> Callable[[Patch], None]:
    """Return a patch by which nothing is there when keys are read back, from one of these on."""

    def plant(patch: Patch) -> None:
        genuine, reads = storms._Storm._read, itertools.count()

        async def read(self: Any, mapping: Any, key: str) -> Any:
            found = await genuine(self, mapping, key)
            return found if next(reads) < first else None

        patch.setattr(storms._Storm, "_read", read)

    return plant


KEYS = len(storms.REGISTER_KEYS) + len(storms.COUNTER_KEYS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "working", "told"),
    [
        (looked_at("whole"), [0], str(FOUND)),
        (looked_at("quiesce"), [0], str(FOUND)),
        (broken_store, [0], "the store of n1: a hole"),
        (never_ends, [0, 6], f"1 clients wait still {END_S_MAX:g} s after the last fault"),
        (reads_back(0), [0], ": reader: get 'r"),
        (reads_back(len(storms.REGISTER_KEYS)), [6], ": reader: get 'c"),
        (reads_back(KEYS), [0], ": reader behind a power cut: get 'r"),
        (reads_back(KEYS + len(storms.REGISTER_KEYS)), [6], ": reader behind a power cut: get 'c"),
    ],
)
def test_a_storm_without_faults_tells_of_what_is_wrong_behind_it(
    plant: Callable[[Patch], None], working: Sequence[int], told: str, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    failure = run_storm(1, faults=[], clients=working).failure
    assert failure is not None
    assert told in failure


# ------------------------------------------------------------------ transactions

LISTERS, SECOND, LOOKING, READERS = (
    range(first, first + count)
    for first, count in ((10, LISTING), (14, OTHERS), (17, 1), (18, READING))
)


def weak_isolation(patch: Patch) -> None:
    """Begin transactions whose reads are not looked at again."""
    genuine = ClusterTasksDatabase.transaction

    def weak(self: ClusterTasksDatabase, _mode: str) -> Any:
        return genuine(self, isolation="read_committed")

    patch.setattr(ClusterTasksDatabase, "transaction", weak)


class Late:
    """A map that is read a moment later than somebody asks."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def get(self, key: str) -> Any:
        await trio.sleep(0.2)
        return await self._inner.get(key)


def late_snapshots(patch: Patch) -> None:
    """Take snapshots that show each key as it is when it is read."""

    class Now:
        def __getitem__(self, mapping: Any) -> Late:
            return Late(mapping)

    @asynccontextmanager
    async def snapshot(_self: ClusterTasksDatabase) -> AsyncIterator[Now]:
        yield Now()

    patch.setattr(ClusterTasksDatabase, "snapshot", snapshot)


class OldReads(TransactionMix):
    """Single reads that answer what they have answered first."""

    def __init__(self, *about: Any, **more: Any) -> None:
        super().__init__(*about, **more)
        known: dict[str, Any] = {}

        class Old:
            def __init__(self, inner: Any) -> None:
                self._inner = inner

            async def get(self, key: str) -> Any:
                if not known.get(key):
                    known[key] = await self._inner.get(key)
                return known[key]

        self._lists: list[Any] = [Old(one) for one in self._lists]


def old_reads(patch: Patch) -> None:
    patch.setattr(storms, "TransactionMix", OldReads)


BANK, SET = 2, 1
"""Seeds of storms that have a bank, and a set."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "seed", "working"),
    [
        (weak_isolation, SET, LISTERS),
        (weak_isolation, SET, SECOND),
        (weak_isolation, BANK, SECOND),
        (late_snapshots, SET, [*LISTERS, *LOOKING]),
        (late_snapshots, BANK, [*SECOND, *LOOKING]),
        (old_reads, SET, [*LISTERS, *READERS]),
    ],
)
def test_a_storm_without_faults_tells_of_transactions_that_are_not_serializable(
    plant: Callable[[Patch], None], seed: int, working: Sequence[int], monkeypatch: Patch
) -> None:
    assert run_storm(seed, faults=[], clients=working, transactions=True).failure is None
    plant(monkeypatch)
    failure = run_storm(seed, faults=[], clients=working, transactions=True).failure
    assert failure is not None
    assert "not serializable" in failure
