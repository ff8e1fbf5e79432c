"""What an attack on transactions of several groups has found, each as a scenario."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from support.copies import when_reached
from support.parts import PARTITIONS, Three, together
from tidelog import codecs
from tidelog.engine.node.group_locks import GroupLocks
from tidelog.errors import TransactionTooLargeError
from tidelog.testing import SimCluster
from tidelog.tx.locks import LockTable

APART: Any = {"nodes": 6, "backups": 1, "apart": True}
"""No member has copies of two of the partitions: what is held concerns one step only."""


LEFT = (
    "_everywhere", "_due", "_having", "_ripe", "_going", "_works", "_waiting", "_untold", "_by_ask",
    "_by_id", "_by_client_id", "_by_partition", "_by_owner", "_asked", "_held",
)  # fmt: skip
"""What members hold of transactions that are not over."""


async def fill(three: Three) -> None:
    await three.put(p=b"old", q=b"old", r=b"old")
    await three.at.quiesce()


@pytest.mark.parametrize("confirms", [False, True], ids=["at once", "locked before"])
def test_who_is_refused_at_home_leaves_no_locks_elsewhere(*, confirms: bool) -> None:
    async def scenario(three: Three) -> None:
        await fill(three)
        reads = await three.versions("r") if confirms else []
        three.at.hold("prepare", src=three.near, dst=three.r.primary)
        first = await three.begin({"p": b"new", "r": b"new"})
        await three.prepared(first, "p")
        second = await three.begin({"p": b"other", "q": b"other"}, reads)
        assert await second.failure() in ("again", "wait")
        with trio.fail_after(0.3):
            await three.put(q=b"third")
        three.at.holds.release_all()
        await first.answer()
        await three.whole()
        assert await three.values() == [b"new", b"third", b"new"]

    together(scenario, **APART)


def test_two_who_read_what_the_other_one_writes_in_the_same_partition() -> None:
    """T3: what another one has prepared is not confirmed by a prepare either."""

    async def scenario(three: Three) -> None:
        await fill(three)
        x, y = (three.at.key(three.q.partition, place) for place in (1, 2))
        await (await three.begin_pairs("q", {x: b"old", y: b"old"})).answer()
        client, number = await three.q.client(), three.q.number
        found = await client.ask("get", number, [x, y])
        reads = [[number, [x, y], found[1], found[2]]]
        other = three.at.key(three.p.partition, 1)
        absent = [number, [other], [0], [0]]
        confirmed_at_r, confirmed_at_p = await three.versions("r"), [absent]
        # The first one is acknowledged, and q does not hear of that yet.
        three.at.hold("decision", src=three.near, dst=three.q.primary)
        one = await three.begin_pairs("p", {three.key("p"): b"1", x: b"1"}, reads + confirmed_at_r)
        await one.answer()
        two = await three.begin_pairs("q", {y: b"2"}, reads + confirmed_at_p)
        acknowledged = await two.is_answered(0.5)
        three.at.holds.release_all()
        await three.whole()
        found = await client.ask("get", number, [x, y])
        assert found[0] == [b"1", b"old"], "each has read the other one's key old"
        assert not acknowledged

    together(scenario, **APART)


def test_what_was_refused_and_is_sent_no_more_is_not_remembered() -> None:
    async def scenario(three: Three) -> None:
        await fill(three)
        outdated = await three.versions("q")
        await three.put(q=b"newer")
        for _ in range(5):
            tx = await three.begin({"p": b"new", "q": b"new"}, outdated)
            assert await tx.failure() == "TL-TX-002"
            await three.over(tx)
        await three.whole()
        for member in three.at.running().values():
            refused: Any = member.groups.transactions.participating._refused
            assert not any(refused.values())
        assert await three.values() == [b"old", b"newer", b"old"]

    together(scenario, **APART)


def test_nothing_is_left_of_what_has_settled_everywhere() -> None:
    async def scenario(three: Three) -> None:
        await fill(three)
        for _ in range(3):
            await three.put(p=b"new", q=b"new")
        # One group is late, so what it has is told again and again.
        three.at.hold("over", src=three.near, dst=three.near)
        three.at.hold("decision", src=three.near, dst=three.q.primary)
        three.at.hold("ask-settled", src=three.near, dst=three.q.primary)
        await three.put(p=b"newer", q=b"newer")
        await trio.sleep(8)
        await three.whole()
        await three.until(lambda: not three.remembered())
        await trio.sleep(2)
        for member in three.at.running().values():
            left: Any = member.groups.transactions
            for found in (
                left.settling, left.commit_locks, left.participating, left.works, left.near,
                left.locks,
            ):  # fmt: skip
                kept = {name: value for name, value in vars(found).items() if name in LEFT}
                kept["_everywhere"] = [one for one in kept.get("_everywhere", {}).values() if one]
                assert not any(kept.values()), kept

    together(scenario, **APART)


def test_who_asks_for_too_many_locks_keeps_none() -> None:
    locks = GroupLocks(lambda: 0.0)
    locks._table = LockTable(locks_per_owner_max=2)
    with pytest.raises(TransactionTooLargeError):
        locks.take([b"one", b"two"], [b"three"])
    assert locks.idle
    assert locks.take([b"one"], [b"two"]) is not None


def test_an_id_that_a_user_gave_is_acknowledged_by_its_name_in_the_logs() -> None:
    at = SimCluster(seed=1, nodes=3, partitions=PARTITIONS, backups=2)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        db = at.client()
        numbers = db.map("m", key=codecs.Bytes, value=codecs.I64)
        await numbers.set(b"other", 0)
        given = db.new_id()
        async with db.transaction(id=given) as tx:
            for partition in range(PARTITIONS):
                await tx[numbers].set(at.key(partition, 0), 1)
        assert await db.outcome(given) == "committed"

    at.run(scenario)


def test_nothing_is_prepared_beside_a_partition_that_nobody_can_serve() -> None:
    async def scenario(three: Three) -> None:
        await fill(three)
        gone = three.q.primary
        await three.at.kill(gone)
        away = three.at.topology().partitions[three.q.partition].author
        await three.until(lambda: not three.at.topology().is_present(away))
        tx = await three.begin({"p": b"new", "q": b"new"})
        assert await tx.failure() == "TL-CLU-003"
        with trio.fail_after(0.3):
            await three.put(p=b"other")
        await three.whole()
        assert await three.values() == [b"other", b"old", b"old"]

    together(scenario, nodes=3, backups=0)


def test_who_comes_back_knows_what_others_may_ask_about() -> None:
    """T14: also if the disk of its primary takes nothing just then."""

    async def scenario(three: Three) -> None:
        await fill(three)
        at, near, [backup] = three.at, three.near, three.p.backups
        await three.p.away(backup)
        three.at.hold("decision", src=near, dst=three.q.primary)
        three.at.hold("question", src=three.q.primary, dst=near)
        tx = await three.begin({"p": b"new", "q": b"new"})
        await tx.answer()
        await three.until(lambda: not three.p.has_pending(near, tx.tx_id))
        disk, full = at.nodes[near].disk, trio.Event()

        def is_full() -> None:
            now = disk.operations + 1
            disk.fail_at(now, "ENOSPC", for_ever=True, path="/member/wal")
            full.set()

        when_reached(three.p, near, "admit.sent", is_full)
        at.start([backup])
        await full.wait()
        await trio.sleep(0.2)
        disk.heal()
        await three.until(lambda: backup in three.p.in_sync)
        assert three.q.has_pending(three.q.primary, tx.tx_id)
        await three.p.fall(near)
        await three.p.author(near)
        await three.whole()
        assert await three.values("p", "q") == [b"new", b"new"]

    together(scenario, **APART)


@pytest.mark.parametrize("backups", [0, 2])
@pytest.mark.parametrize("confirms", [False, True], ids=["at once", "locked before"])
def test_who_leads_and_has_a_log_that_fails_tells_its_clients(
    backups: int, *, confirms: bool
) -> None:
    async def scenario(three: Three) -> None:
        await fill(three)
        reads = await three.versions("r") if confirms else []
        disk = three.at.nodes[three.near].disk

        def fails() -> None:
            disk.fail_at(disk.operations + 1, "EIO", kind="sync", path="/member/wal")

        tx = await three.begin({"p": b"new", "q": b"new"}, reads, before=fails)
        with trio.fail_after(2):
            assert await tx.failure() == "TL-TX-007"
        await three.p.fall(three.near)
        await three.whole()
        assert len(set(await three.values("p", "q"))) == 1

    together(scenario, backups=backups)


def test_what_was_in_doubt_for_long_is_settled_soon_behind_its_reason() -> None:
    """T10: pauses between questions have grown meanwhile, and nobody waits for their end."""

    async def scenario(three: Three) -> None:
        await fill(three)
        near = three.near
        three.at.hold("decision", src=near, dst=three.q.primary)
        tx = await three.begin({"p": b"new", "q": b"new"})
        await tx.answer()
        await three.p.fall(near)
        await trio.sleep(20)
        three.at.start([near])
        await three.at.settled()
        began = three.at.world.now()
        await three.over(tx)
        assert three.at.world.now() < began + 3
        assert await three.values("p", "q") == [b"new", b"new"]

    together(scenario, backups=0)


@pytest.mark.parametrize("backups", [0, 2])
def test_who_reads_a_range_and_writes_in_it_is_alone_and_commits(backups: int) -> None:
    # What the same transaction wrote to other partitions was taken for somebody else's.
    at = SimCluster(seed=1, nodes=3, partitions=PARTITIONS, backups=backups)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        db = at.client()
        numbers = db.map("m", key=codecs.Bytes, value=codecs.I64)
        keys = [at.key(partition, place) for partition in range(PARTITIONS) for place in (0, 1)]
        async with db.transaction() as tx:
            for number, key in enumerate(keys):
                await tx[numbers].set(key, number)
        async with db.transaction() as tx:
            async with tx[numbers].items() as pairs:
                found = [(key, value) async for key, value in pairs]
            for key, value in found:
                await tx[numbers].set(key, value + 1)
        async with db.transaction() as tx:
            async with tx[numbers].items() as pairs:
                assert sorted([value async for _, value in pairs]) == [*range(1, len(keys) + 1)]
            await tx[numbers].delete_many(keys[::2])
        assert await numbers.count() == len(keys) // 2

    at.run(scenario)
