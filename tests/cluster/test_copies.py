"""Partitions with copies: what was acknowledged outlives members, and copies stay equal."""

from __future__ import annotations

import pytest
import trio

from tidelog import aio, codecs
from tidelog.affinity.partitions import Space, partition_of
from tidelog.errors import PartitionUnavailableError
from tidelog.testing import SimCluster

PARTITIONS = 8
KEYS = 24


def cluster(seed: int, *, nodes: int = 3, backups: int = 2) -> SimCluster:
    return SimCluster(seed=seed, nodes=nodes, partitions=PARTITIONS, backups=backups)


async def written(at: SimCluster, value: int, name: str | None = None) -> None:
    """Write all keys, and read them back."""
    numbers = at.client(name, timeout=30).map("m", key=codecs.Str, value=codecs.I64)
    for key in range(KEYS):
        await numbers.set(f"k{key}", value)
    assert [await numbers.get(f"k{key}") for key in range(KEYS)] == [value] * KEYS


async def read(at: SimCluster, name: str | None = None) -> list[int | None]:
    numbers = at.client(name, timeout=30).map("m", key=codecs.Str, value=codecs.I64)
    return [await numbers.get(f"k{key}") for key in range(KEYS)]


def in_sync(at: SimCluster) -> set[int]:
    return {len(copies.in_sync) for copies in at.topology().partitions}


def test_every_copy_has_what_was_acknowledged() -> None:
    at = cluster(1)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 7)
        await at.quiesce()
        for partition in range(PARTITIONS):
            assert len({at.digest(name, partition) for name in at.names}) == 1
            assert len({at.counters(name, partition) for name in at.names}) == 1

    at.run(scenario)


@pytest.mark.parametrize("writes", [True, False])
def test_who_conflicts_with_a_commit_that_waits_for_a_silent_copy_waits_too(writes: bool) -> None:
    """Each attempt lost at once to what could not commit yet, until there were none left."""
    at = cluster(61)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        db = at.client(timeout=30)
        numbers = db.map("m", key=codecs.Str, value=codecs.I64)
        await numbers.set("k0", 1)

        space = Space(0, PARTITIONS)
        place = partition_of(b"k0", space)
        names = (f"k{number}" for number in range(1, 1000))
        twin = next(name for name in names if partition_of(name.encode(), space) == place)

        async def add(tx: aio.Transaction) -> int | None:
            await tx[numbers].get(twin)
            found = await tx[numbers].get("k0")
            if writes:
                await tx[numbers].set("k0", (found or 0) + 1)
            return found

        primary = at.primary(place)
        silent = next(name for name in at.names if name not in (primary, at.coordinator()))
        at.cut([silent], [name for name in at.names if name != silent])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(numbers.set, "k0", 10)
            await trio.sleep(0.3)
            assert await db.run(add, attempts=3) == 10
        assert await numbers.get("k0") == 10 + writes

    at.run(scenario)


@pytest.mark.parametrize("killed", ["n1", "n2", "n3"])
def test_a_member_that_is_killed_takes_nothing_with_it_and_others_serve(killed: str) -> None:
    at = cluster(2)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 1)
        await at.kill(killed)
        other = next(name for name in at.names if name != killed)
        assert await read(at, other) == [1] * KEYS
        await written(at, 2, other)
        await at.settled([name for name in at.names if name != killed])
        await at.quiesce()
        assert in_sync(at) == {2}

    at.run(scenario)


def test_a_cluster_whose_power_was_cut_has_all_copies_back() -> None:
    # S2: the last in-sync sets are waited for, so that nobody is left out who is just coming.
    at = cluster(3)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 1)
        await at.power_cut()
        at.start()
        await at.settled()
        assert await read(at) == [1] * KEYS
        await at.quiesce()
        assert in_sync(at) == {3}

    at.run(scenario)


def test_the_last_copy_serves_alone_and_is_waited_for() -> None:
    # I1: who is restarted is in no set until it has caught up, so the last member decides.
    at = cluster(4)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 1)
        await at.kill("n3")
        await at.settled(["n1", "n2"])
        for name in ("n1", "n2"):  # what it has it tells nobody, so it does not come back
            at.hold("report", src="n3", dst=name)
        at.start(["n3"])
        await at.settled()
        await at.kill("n2")
        await at.settled(["n1", "n3"])
        await written(at, 2, "n1")
        assert in_sync(at) == {1}
        at.hold("report", src="n2", dst="n1")
        at.start(["n2"])
        await at.settled()
        await at.kill("n1")
        await trio.sleep(4)
        with pytest.raises(PartitionUnavailableError):
            await read(at, "n2")
        at.start(["n1"])
        await at.settled()
        assert await read(at, "n2") == [2] * KEYS

    at.run(scenario)


def test_a_primary_that_is_cut_off_acknowledges_nothing_and_the_others_go_on() -> None:
    at = cluster(5, nodes=5)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 1)
        lonely = at.primary(0)
        rest = [name for name in at.names if name != lonely]
        inside = at.client(lonely, timeout=3).map("m", key=codecs.Str, value=codecs.I64)
        await inside.get("k0")
        at.cut([lonely, "c2"], [*rest, "c1", "c3", "c4", "c5"])
        await at.settled(rest)
        await written(at, 2, rest[0])
        at.heal()
        await at.settled()
        assert await read(at, lonely) == [2] * KEYS

    at.run(scenario)
