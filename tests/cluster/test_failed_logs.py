"""Members whose log fails, or is slow while they lose a partition: nothing is lost, nobody is told
what is not so, and nothing stands still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from support.raw_client import FailureError, RawClient
from support.sim_clients import PARTITIONS, Clients, cluster, serving
from tidelog import codecs
from tidelog.engine.commit.outcomes import home_of
from tidelog.engine.node.partitions import Partitions
from tidelog.errors import CommitUnknownError
from tidelog.testing import SimCluster
from tidelog.testing.cluster import DIRECTORY

PATIENCE_S = 4.0
"""Less than the time after which a silent copy is left out: nobody waits for that."""


def fail_sync(at: SimCluster, name: str) -> None:
    disk = at.nodes[name].disk
    disk.fail_at(disk.operations + 1, "EIO", kind="sync", path=f"{DIRECTORY}/wal")


@pytest.mark.parametrize(("seed", "nodes"), [(1, 3), (2, 3), (3, 5)])
def test_a_member_whose_log_failed_leaves_and_every_write_goes_on(seed: int, nodes: int) -> None:
    # I6; who asks to leave while it serves something is told to hand that over first.
    at = cluster(seed, nodes=nodes, backups=2)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        numbers = at.client(timeout=20).map("m", key=codecs.Bytes, value=codecs.I64)
        keys = [at.key(partition, 0) for partition in range(PARTITIONS)]
        for key in keys:
            await numbers.set(key, 1)
        failed = at.primary(0)
        fail_sync(at, failed)
        began = at.world.now()
        for key in keys:
            await numbers.set(key, 2)
        assert at.world.now() < began + PATIENCE_S
        me = at.member_id(failed), 1
        while any(me in one.in_sync for one in at.topology().partitions):
            assert at.world.now() < began + PATIENCE_S
            await trio.sleep(0.05)
        assert [await numbers.get(key) for key in keys] == [2] * PARTITIONS

    at.run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_a_commit_whose_sync_failed_at_its_primary_is_answered_by_the_next(seed: int) -> None:
    at = cluster(10 + seed, backups=2)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        numbers = at.client(timeout=20).map("m", key=codecs.Bytes, value=codecs.I64)
        key = at.key(0, 0)
        await numbers.set(key, 1)
        await trio.sleep(0.3)
        fail_sync(at, at.primary(0))
        await numbers.set(key, 2)
        assert await numbers.get(key) == 2

    at.run(scenario)


def test_no_other_error_stands_for_an_outcome_that_nobody_tells() -> None:
    at = cluster(20, nodes=1)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        database = at.client(timeout=3)
        numbers = database.map("m", key=codecs.Bytes, value=codecs.I64)
        await numbers.set(b"a", 1)
        fail_sync(at, "n1")
        with pytest.raises(CommitUnknownError, match="sync"):
            await numbers.set(b"a", 2)

    at.run(scenario)


async def held_up(at: SimCluster, then: Callable[[RawClient, int], Any]) -> list[str]:
    """Let the log of a primary stand still until it has lost partition 0; return the answers.

    ``then`` begins another request than the commit for which the log is synced.
    """
    clients = Clients(at)
    _, number = await serving(at, clients)
    primary, key = at.primary(0), at.key(0, 0)
    client, member = await clients.to(primary), at.member(primary)
    await client.put(b"1" * 16, number, {key: b"1"})
    await trio.sleep(0.3)  # until it is told everywhere, so the log is idle
    gate, environment = trio.Event(), member.log.environment

    class Gated:
        def __getattr__(self, name: str) -> Any:
            return getattr(environment, name)

        async def run(self, name: str, work: Callable[[], Any]) -> Any:
            await gate.wait()
            return await environment.run(name, work)

    member.log.environment = Gated()  # type: ignore[assignment]
    write = [[number, [key], [b"2"]]]
    begun = [await client.begin("commit", b"2" * 16, 1, False, None, [], [], write)]
    await trio.sleep(0.01)
    begun.append(await then(client, number))
    await trio.sleep(0.01)
    member.council.release([0])
    while member.groups._topology.partitions[0].epoch == 1:
        await trio.sleep(0.01)
    gate.set()
    told = []
    for request in begun:
        try:
            told.append(str(await client.answer(request)))
        except FailureError as failure:
            told.append(failure.code)
    await client.ask("status")
    assert not client._answers, "each is answered once"
    return told


def refused_id() -> bytes:
    numbered = (b"%016d" % number for number in range(1000))
    return next(one for one in numbered if home_of(one, PARTITIONS) == 0)


def test_a_refusal_that_waits_for_the_log_is_not_written_behind_the_end_of_its_epoch() -> None:
    # T19 and K2: whoever has lost the partition would have something that no other copy has.
    at = cluster(30, backups=2)

    async def scenario(at: SimCluster) -> None:
        told = await held_up(at, lambda one, _: one.begin("outcome", refused_id(), True, 0))
        assert told == ["TL-TX-007", "remap"]
        await at.settled()
        await at.quiesce()
        assert len(at.topology().partitions[0].in_sync) == 3
        assert len({at.digest(name, 0) for name in at.names}) == 1

    at.run(scenario)


def test_an_author_that_lacks_something_lets_a_whole_copy_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Partitions, "check_writable", lambda _self, _epochs: None)
    at = cluster(31, backups=2)

    async def scenario(at: SimCluster) -> None:
        await held_up(at, lambda one, _: one.begin("outcome", refused_id(), True, 0))
        await at.settled()
        copies = at.topology().partitions[0]
        whole = [name for name in at.names if at.counters(name, 0)[0] == 3]
        # Others may come back already.
        assert {copy.member for copy in copies.in_sync} <= {at.member_id(name) for name in whole}
        assert at.primary(0) in whole

    at.run(scenario)
    assert "node.copy_lacks" in caplog.text
