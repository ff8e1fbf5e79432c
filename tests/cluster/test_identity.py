"""Disks that are not what the cluster knows of their member: older, twice there, foreign, torn."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from support.raw_client import RawClient
from support.sim_clients import PARTITIONS, Clients, cluster, serving
from tidelog.affinity.errors import ClusterError
from tidelog.engine.node.member_files import init_member
from tidelog.engine.system.environment import Environment
from tidelog.testing import SimCluster, cluster as sim_cluster
from tidelog.testing.disk import FaultyDisk
from tidelog.testing.plan import MOMENTS

START_S = 5.0


def served_by(at: SimCluster, name: str) -> bytes:
    """Return a key that a member serves."""
    partition = next(p for p in range(PARTITIONS) if at.primary(p) == name)
    return at.key(partition, 0)


async def value_of(client: RawClient, number: int, key: bytes) -> bytes | None:
    found: bytes | None = (await client.ask("get", number, [key]))[0][0]
    return found


def test_an_older_image_of_a_disk_is_refused_and_the_newest_one_is_taken_again() -> None:
    at = cluster(110)
    clients = Clients(at)
    at.may_end.add("n1")

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        key, other = served_by(at, "n1"), served_by(at, "n2")
        await at.kill("n1", outcome="kept")
        older = at.nodes["n1"].disk.copy()
        at.start(["n1"])
        await at.settled()
        client = await clients.to("n1")
        await client.put(b"1" * 16, number, {key: b"newer"})
        await at.kill("n1", outcome="kept")
        newest, at.nodes["n1"].disk = at.nodes["n1"].disk, older

        at.start(["n1"])
        with trio.fail_after(START_S):
            await at.killed("n1")
        assert isinstance(at.ends["n1"], ClusterError)
        assert "old" in str(at.ends["n1"])
        second = await clients.to("n2")
        await second.put(b"2" * 16, number, {other: b"goes on"})

        at.nodes["n1"].disk = newest
        at.start(["n1"])
        await at.settled()
        assert await value_of(await clients.to("n1"), number, key) == b"newer"
        assert await value_of(second, number, other) == b"goes on"

    at.run(scenario)


@pytest.mark.parametrize("together", [False, True])
def test_of_a_disk_that_is_there_twice_one_member_comes_and_the_other_is_refused(
    together: bool,
) -> None:
    # Where the twin is left nobody listens at the address by which the others know it (113).
    at = cluster(111 + 3 * together)
    clients = Clients(at)
    at.may_end |= {"n1", "twin"}

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        partition = next(p for p in range(PARTITIONS) if at.primary(p) == "n1")
        key = at.key(partition, 0)
        await (await clients.to("n1")).put(b"1" * 16, number, {key: b"a"})
        await at.kill("n1", outcome="kept")
        at.copy("n1", "twin")
        at.cut(["n1"], ["twin"])  # else the twin hears that the member runs
        at.start(["n1"])
        if not together:
            await at.settled()
        at.start(["twin"])
        with trio.fail_after(START_S):
            while at.nodes["n1"].running and at.nodes["twin"].running:
                await trio.sleep(0.01)
        left = "n1" if at.nodes["n1"].running else "twin"
        [ended] = at.ends
        assert ended != left
        assert isinstance(at.ends[ended], ClusterError)
        with trio.fail_after(START_S):
            while not at.member(left).partitions.serves(partition, at.member(left).now):
                await trio.sleep(0.01)
        assert await value_of(await clients.to(left), number, key) == b"a"

    at.run(scenario)


def test_a_disk_that_is_there_twice_is_refused_by_the_member_that_runs() -> None:
    at = cluster(112)
    clients = Clients(at)
    at.may_end.add("twin")

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine = served_by(at, "n1")
        await (await clients.to("n1")).put(b"1" * 16, number, {mine: b"a"})
        boot = at.member("n1").agreement.me.boot
        at.copy("n1", "twin")
        at.start(["twin"])
        with trio.fail_after(START_S):
            await at.killed("twin")
        assert "this member runs already, at n1:7400" in str(at.ends["twin"])
        assert await value_of(await clients.to("n1"), number, mine) == b"a"
        assert at.member("n1").agreement.me.boot == boot

    at.run(scenario)


def test_the_directory_of_another_cluster_harms_nobody() -> None:
    other = cluster(113)

    async def lived(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await at.kill("n1", outcome="kept")

    other.run(lived)
    at = cluster(114)
    clients = Clients(at)
    at.may_end.add("n1")

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine, theirs = served_by(at, "n1"), served_by(at, "n2")
        await (await clients.to("n1")).put(b"1" * 16, number, {mine: b"a"})
        await at.kill("n1", outcome="kept")
        right = at.nodes["n1"].disk
        at.nodes["n1"].disk = other.nodes["n1"].disk.copy()
        at.start(["n1"])
        await trio.sleep(START_S)
        second = await clients.to("n2")
        await second.put(b"2" * 16, number, {theirs: b"b"})
        assert at.topology().members.keys() == {at.member_id(name) for name in at.names}
        await at.kill("n1")
        at.nodes["n1"].disk = right
        at.start(["n1"])
        await at.settled()
        assert await value_of(await clients.to("n1"), number, mine) == b"a"

    at.run(scenario)


def test_a_directory_that_was_emptied_and_made_again_votes_and_serves_nothing() -> None:
    at = cluster(118)
    clients = Clients(at)
    at.may_end |= {"n1", "twin"}

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine, theirs = served_by(at, "n1"), served_by(at, "n2")
        await (await clients.to("n1")).put(b"1" * 16, number, {mine: b"a"})
        await at.kill("n1", outcome="kept")
        right, at.nodes["n1"].disk = at.nodes["n1"].disk, FaultyDisk(116)
        for _ in range(3):  # its boot counts up to what the cluster knows, and beyond
            at.start(["n1"])
            with trio.fail_after(START_S):
                await at.killed("n1")
            assert isinstance(at.ends["n1"], ClusterError)
        second = await clients.to("n2")
        await second.put(b"2" * 16, number, {theirs: b"b"})

        empty, at.nodes["n1"].disk = at.nodes["n1"].disk, right
        at.start(["n1"])
        await at.settled()
        assert await value_of(await clients.to("n1"), number, mine) == b"a"

        at.copy("n1", "twin")  # another machine, that claims a higher boot than the one that runs
        at.nodes["twin"].disk = empty
        at.start(["twin"])
        with trio.fail_after(START_S):
            await at.killed("twin")
        await at.settled()
        assert await value_of(await clients.to("n1"), number, mine) == b"a"

    at.run(scenario)


@pytest.mark.parametrize("moment", MOMENTS)
def test_two_crashes_during_starts_lose_nothing(moment: str) -> None:
    at = cluster(115 + MOMENTS.index(moment))
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        key = served_by(at, "n1")
        for nth in range(1, 40, 2):
            client = await clients.to("n1")
            await client.put(b"%016d" % nth, number, {key: b"%d" % nth})
            await at.kill("n1")
            for further in (nth, 41 - nth):
                disk = at.nodes["n1"].disk
                disk.crash_at(disk.operations + further, moment)
                at.start(["n1"])
                with trio.move_on_after(1):
                    await at.killed("n1")
                await at.kill("n1")
            at.start(["n1"])
            await at.settled()
            assert await value_of(await clients.to("n1"), number, key) == b"%d" % nth

    at.run(scenario)


@pytest.mark.parametrize("definition", ["partitions", "members", "addresses"])
def test_a_member_that_was_made_differently_is_told_so_and_has_no_part(
    definition: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one cluster by its id alone: with other partitions, members or addresses."""
    at = cluster(45)
    odd = "n3"

    def made(environment: Environment, directory: str, **given: Any) -> None:
        if given["member"] == at.member_id(odd):
            if definition == "partitions":
                given["partitions"] *= 2
            elif definition == "members":
                given["members"] = [*given["members"], (at.member_id("n4"), "n4:7400")]
            else:
                given["members"] = [(one, "x" + where) for one, where in given["members"]]
        init_member(environment, directory, **given)

    monkeypatch.setattr(sim_cluster, "init_member", made)
    monkeypatch.setattr(SimCluster, "check", lambda _self: None)  # index 1 differs, of course

    async def scenario(at: SimCluster) -> None:
        at.start([odd])
        await trio.sleep(5)
        at.start(["n1", "n2"])
        await trio.sleep(10)
        assert at.member("n1").agreement.leads or at.member("n2").agreement.leads
        for partition in (p for p in range(PARTITIONS) if at.primary(p) != odd):
            member = at.member(at.primary(partition))
            assert member.partitions.serves(partition, member.now)
        alone = at.member(odd)
        assert alone.agreement.topology.index == 1
        assert not alone.agreement.leads
        assert not at.topology().members[at.member_id(odd)].present

    at.run(scenario)
    if definition != "addresses":  # that one finds nobody
        assert "made with different --members or --partitions" in caplog.text
