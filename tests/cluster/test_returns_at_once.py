"""Several returns at once, and what else happens to a cluster in the middle of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from _pytest.mark.structures import ParameterSet

from support.copies import (
    AGED_KEYS,
    CUT,
    LARGE,
    Group,
    Writers,
    admitted,
    age_logs,
    kinds,
    live,
    small_pieces,
    supply_waits,
    when_reached,
)
from tidelog.engine.node import supplying
from tidelog.engine.store.options import Options
from tidelog.errors import UsageError
from tidelog.rebalance.choosing import SupplyKind


def long_run(*values: object) -> ParameterSet:
    """Return parameters of a case that only long runs have."""
    return pytest.param(*values, marks=pytest.mark.nightly)


NONE, HISTORY, FULL = SupplyKind.NONE, SupplyKind.HISTORICAL, SupplyKind.FULL
WAYS = pytest.mark.parametrize("way", [HISTORY, FULL])
WRITTEN = range(AGED_KEYS, AGED_KEYS + 3)
"""Keys of the writers."""
PAUSE_S = 0.05
OF_ALL_RUNS = (("admit.logged", "torn"), ("supply.middle", "kept"), ("join.sent", "lost"))
"""When all restart, and what their disks keep; other pairs are for long runs."""


async def missing(group: Group, way: SupplyKind, *names: str) -> None:
    """Let copies be away while something is written, and deleted; None are started."""
    await group.put(range(30), b"before")
    await group.equal()
    for name in names:
        await group.away(name)
    if way is FULL:
        await age_logs(group)
    for i in range(6):
        await group.put(i, b"meanwhile")
    await group.remove(range(6, 9))


async def nothing_missing(group: Group, way: SupplyKind) -> None:
    """Check what ``missing`` has left, on all copies."""
    await group.back()
    old = LARGE + b"2" if way is FULL else b"before"
    wanted = [b"meanwhile"] * 6 + [None] * 3 + [old, b"before"]
    assert [await group.value(i) for i in (*range(10), 29)] == wanted


def options(way: SupplyKind) -> Options:
    return CUT if way is FULL else Options()


async def with_writers(group: Group, what: Callable[[], Awaitable[None]]) -> None:
    """Do something while keys of their own are written; nothing of them may be lost."""
    writers = Writers(group, PAUSE_S)
    async with trio.open_nursery() as nursery:
        for i in WRITTEN:
            nursery.start_soon(writers.write, i)
        await what()
        await group.at.settled()
        writers.ends = True
    await group.back()
    await writers.check()
    assert writers.acknowledged


# ---------------------------------------------------------------- several at once


@WAYS
@pytest.mark.parametrize("seed", [1, *map(long_run, (2, 3, 4))])
def test_two_copies_come_back_and_each_is_killed_in_turn(
    way: SupplyKind, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        random = group.at.world.random("kills")
        names = group.backups[-2:]
        await missing(group, way, *names)

        async def kills() -> None:
            group.at.start(names)
            for turn in range(4):
                await trio.sleep(random.uniform(0.2, 1.2))
                name = names[turn % 2]
                await group.at.kill(name)
                group.at.start([name])

        await with_writers(group, kills)
        await nothing_missing(group, way)

    live(scenario, seed=seed, nodes=5, backups=3, options=options(way))


@pytest.mark.parametrize("seed", [1, *map(long_run, (2, 3, 4))])
def test_a_copy_comes_back_to_many_partitions_in_all_ways_at_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, rows=10)
    ways = {partition: (NONE, HISTORY, FULL)[partition % 3] for partition in range(16)}

    async def scenario(group: Group) -> None:
        at = group.at

        async def put(way: SupplyKind, keys: range, value: bytes) -> None:
            for partition in (p for p, known in ways.items() if known is way):
                group.partition = partition
                await group.put(keys, value)

        for way in (NONE, HISTORY, FULL):
            await put(way, range(6), b"before")
        name = at.names[-1]
        await group.away(name)
        await group.until(lambda: all(at.primary(partition) != name for partition in ways))
        await at.settled(at.running())
        await put(FULL, range(6), LARGE)
        await put(FULL, range(6), LARGE)
        for other in at.running():
            await at.checkpoint(other)
        await put(HISTORY, range(3), b"meanwhile")
        at.start([name])
        await at.settled()
        await at.whole()
        found: dict[SupplyKind, list[SupplyKind]] = {way: [] for way in SupplyKind}
        for partition, way in ways.items():
            group.partition = partition
            await group.equal()
            found[way] += kinds(group, name)[:1]
            values = [await group.value(i) for i in (0, 5)]
            assert (
                values
                == {
                    NONE: [b"before"] * 2,
                    HISTORY: [b"meanwhile", b"before"],
                    FULL: [LARGE] * 2,
                }[way]
            )

    live(scenario, seed=seed, partitions=16, options=CUT)


# ---------------------------------------------------------------- writes meanwhile


def test_nobody_waits_for_a_copy_that_lacks_much_of_the_stream() -> None:
    async def scenario(group: Group) -> None:
        old, name = group.primary, group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        gate = supply_waits(group)
        group.at.start([name])
        await admitted(group, name)
        group.hold("replicate", old, name)
        async with trio.open_nursery() as nursery:
            for i in range(supplying.JOIN_ITEMS + 5):
                nursery.start_soon(group.put, i, b"meanwhile")
        gate.set()
        for i in range(10):
            with trio.fail_after(1):
                await group.put(i, b"and then")
        assert name not in group.in_sync
        assert group.at.topology().partitions[group.partition].moving, "it was not given up"
        group.at.holds.release_all()
        await group.back()
        assert [await group.value(i) for i in range(9, 11)] == [b"and then", b"meanwhile"]

    live(scenario)


def test_what_is_kept_for_a_copy_on_its_way_back_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supplying, "BEHIND_BYTES_MAX", 60_000)

    async def scenario(group: Group) -> None:
        old, name = group.primary, group.backups[-1]
        await missing(group, HISTORY, name)
        gate = supply_waits(group)
        group.at.start([name])
        await admitted(group, name)
        group.hold("replicate", old, name)
        await age_logs(group)
        stream = group.at.member(old).groups._streams.get(group.partition)
        assert stream is not None
        with trio.fail_after(2):
            await group.until(lambda: stream.kept_bytes < 60_000)
        gate.set()
        group.at.holds.release_all()
        await group.back()
        assert len(kinds(group, name)) > 1
        assert await group.value(0) == LARGE + b"2"

    live(scenario)


# ---------------------------------------------------------------- plans and maps


@WAYS
@pytest.mark.parametrize("target", ["another copy", "the one that comes back"])
def test_a_planned_move_during_a_return(
    way: SupplyKind, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        at, old, (other, name) = group.at, group.primary, group.backups
        await missing(group, way, name)
        ended: list[Exception | None] = []
        goal = other if target == "another copy" else name

        def move() -> None:
            try:
                at.member(old).move(group.partition, at.member_id(goal).bytes, ended.append)
            except UsageError as error:
                ended.append(error)

        async def moved() -> None:
            when_reached(group, old, "supply.first", move)
            at.start([name])
            await group.until(lambda: bool(ended))
            await group.until(lambda: name in group.in_sync)

        await with_writers(group, moved)
        await nothing_missing(group, way)
        if goal == other:
            assert ended == [None]
            assert group.primary == other
        else:
            assert "which is not in its in-sync set" in str(ended[0])
            assert group.primary == old

    live(scenario, options=options(way))


@WAYS
def test_a_map_that_is_dropped_and_made_again_during_a_return(
    way: SupplyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        name, dropped = group.backups[-1], group.number
        await missing(group, way, name)
        begun: list[int] = []
        when_reached(group, group.primary, "supply.middle", lambda: begun.append(1))
        group.at.start([name])
        await group.until(lambda: bool(begun))
        client = await group.client()
        await client.ask("drop", "m")
        group.number = await client.ask("map", "m", "bytes", 1, "bytes", 1)
        client.close()
        assert group.number != dropped
        await group.put(range(3), b"of the new one")
        await group.back()
        for one in group.at.names:
            assert dropped not in group.at.member(one).log.state.namespaces
            await group.at.checkpoint(one)
        epoch = group.epoch
        await group.fall(*(one for one in group.at.names if one != name))
        group.at.start(one for one in group.at.names if one != name)
        await group.taken_over(epoch)
        assert [await group.value(i) for i in range(5)] == [b"of the new one"] * 3 + [None] * 2

    live(scenario, options=options(way))


# ---------------------------------------------------------------- everybody


@WAYS
@pytest.mark.parametrize(
    ("point", "outcome"),
    [
        (point, outcome) if (point, outcome) in OF_ALL_RUNS else long_run(point, outcome)
        for point in ("admit.logged", "supply.middle", "join.sent")
        for outcome in ("kept", "lost", "torn", "reordered")
    ],
)
def test_all_restart_during_a_return(
    way: SupplyKind, point: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        at, old, name = group.at, group.primary, group.backups[-1]
        await missing(group, way, name)
        reached: list[str] = []

        def fall() -> None:
            if way not in kinds(group, name):
                aim()
                return
            reached.append(point)
            for one in at.names:
                at.nodes[one].kill(outcome)

        def aim() -> None:
            when_reached(group, name if point == "admit.logged" else old, point, fall)

        async def restarted() -> None:
            aim()
            at.start([name])
            for one in at.names:
                await group.until(lambda: bool(reached))
                await at.killed(one)
            at.start([name])
            await trio.sleep(1)
            at.start(one for one in at.names if one != name)

        await with_writers(group, restarted)
        await nothing_missing(group, way)

    live(scenario, options=options(way))


@WAYS
@pytest.mark.parametrize("who", ["primary", "copy"])
def test_a_member_that_stops_in_the_middle_of_a_return(
    way: SupplyKind, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It drains and leaves, as behind SIGTERM.
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        at, old, name = group.at, group.primary, group.backups[-1]
        await missing(group, way, name)
        victim, reached = old if who == "primary" else name, trio.Event()

        async def stopped() -> None:
            when_reached(group, old, "supply.first", reached.set)
            at.start([name])
            await reached.wait()
            await at.stop(victim)
            await trio.sleep(1)
            at.start([victim])

        await with_writers(group, stopped)
        await nothing_missing(group, way)

    live(scenario, options=options(way))


@WAYS
@pytest.mark.parametrize("cut", ["both", *map(long_run, ("to", "from"))])
def test_a_link_that_breaks_again_and_again_during_a_return(
    way: SupplyKind, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        at, old, name = group.at, group.primary, group.backups[-1]
        network, random = at.world.network, at.world.random("cuts")
        await missing(group, way, name)

        async def breaks() -> None:
            at.start([name])
            for _ in range(4):
                await trio.sleep(random.uniform(0.1, 1.0))
                if cut != "from":
                    network.cut(old, name)
                if cut != "to":
                    network.cut(name, old)
                await trio.sleep(random.uniform(0.01, 1.5))
                network.heal()

        await with_writers(group, breaks)
        await nothing_missing(group, way)

    live(scenario, options=options(way))


SLOW_S = 8.0
"""Longer than either side waits for a word of the other."""


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        (HISTORY, "supply"),
        (FULL, "demand"),
        long_run(HISTORY, "demand"),
        long_run(FULL, "pairs"),
    ],
)
def test_words_that_arrive_when_the_other_side_has_given_up(
    way: SupplyKind, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        old, name = group.primary, group.backups[-1]
        await missing(group, way, name)
        held = (kind, name, old) if kind == "demand" else (kind, old, name)
        when_reached(group, old, "supply.middle", lambda: group.hold(*held))

        async def late() -> None:
            group.at.start([name])
            await trio.sleep(SLOW_S)
            group.release(*held)

        await with_writers(group, late)
        await nothing_missing(group, way)
        assert kinds(group, name).count(way) > (way is HISTORY)  # a full one may have ended

    live(scenario, options=options(way))


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("way", [HISTORY, long_run(FULL)])
@pytest.mark.parametrize("whose", ["primary", "copy"])
@pytest.mark.parametrize("seconds", [long_run(2.0), 8.0])
def test_a_machine_that_is_suspended_during_a_return(
    way: SupplyKind, whose: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        at, old, name = group.at, group.primary, group.backups[-1]
        await missing(group, way, name)
        suspended: list[str] = []

        def suspend() -> None:
            who = old if whose == "primary" else name
            at.nodes[who].clocks.suspend(seconds)
            suspended.append(who)

        async def slept() -> None:
            when_reached(group, old, "supply.first", suspend)
            at.start([name])
            await group.until(lambda: bool(suspended))
            await group.until(lambda: name in group.in_sync)

        await with_writers(group, slept)
        await nothing_missing(group, way)

    live(scenario, options=options(way))
