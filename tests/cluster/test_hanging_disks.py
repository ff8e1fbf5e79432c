"""A primary whose disk does not answer, and that answers pings, keeps nobody from writing."""

from __future__ import annotations

import pytest
import trio

from support.copies import Group, live
from support.hanging import Hanging
from tidelog.engine.node.disk_watch import DISK_TIMEOUT_S
from tidelog.engine.node.leaving_out import REPLICA_TIMEOUT_S
from tidelog.engine.node.stepping_back import SteppingBack
from tidelog.wal.records import IdleRecord

SOON_S = 3.0
"""Seconds for agreement, and for a takeover in which everybody answers."""


@pytest.mark.parametrize("seed", range(1, 5))
def test_others_serve_what_a_member_has_whose_disk_hangs(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(group: Group) -> None:
        at, hangs = group.at, group.primary
        await at.whole()
        await group.put(range(3), b"old")
        await group.equal()
        disk = Hanging(at, hangs)
        begun = await group.begin(0, b"on its way")
        began = trio.current_time()
        await group.until(lambda: group.primary != hangs)
        assert DISK_TIMEOUT_S < trio.current_time() - began < DISK_TIMEOUT_S + SOON_S
        await group.until(lambda: at.member(group.primary).partitions.is_open(group.partition))
        taken = trio.current_time() - began
        assert taken < DISK_TIMEOUT_S + REPLICA_TIMEOUT_S + SOON_S
        await group.put(1, b"new")
        became = await group.outcome(begun.tx_id)
        disk.back()
        await at.whole()
        await group.equal()
        found = [await group.value(i) for i in range(3)]
        assert found == [b"on its way" if became == "committed" else b"old", b"new", b"old"]

    live(scenario, seed=seed)
    assert caplog.text.count("node.disk_hangs") == 1


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_third_one_serves_what_two_have_whose_disks_hang(seed: int) -> None:
    async def scenario(group: Group) -> None:
        at, hangs, epoch = group.at, group.primary, group.epoch
        next_one, third = group.backups
        await at.whole()
        disks = [Hanging(at, hangs)]
        began = trio.current_time()
        await group.begin(0, b"on its way")
        await trio.sleep(0.5)  # the next one has stored that: nobody complains of it
        disks.append(Hanging(at, next_one))
        at.member(next_one).log.put_records([IdleRecord()], lambda: None)
        await group.until(lambda: group.primary == third)
        await group.until(lambda: at.member(third).partitions.is_open(group.partition))
        taken = trio.current_time() - began
        assert taken < DISK_TIMEOUT_S + REPLICA_TIMEOUT_S + 2 * SOON_S
        assert group.epoch <= epoch + 3
        await group.put(1, b"new")
        for disk in disks:
            disk.back()
        await at.whole()
        await group.equal()

    live(scenario, seed=seed)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_disk_that_hangs_for_all_leaves_the_primary_not_alone(seed: int) -> None:
    async def scenario(group: Group) -> None:
        at, hangs = group.at, group.primary
        await at.whole()
        await group.put(0, b"old")
        disks = {name: Hanging(at, name) for name in at.names}
        begun = await group.begin(0, b"on its way")
        await trio.sleep(DISK_TIMEOUT_S - 2)
        assert group.in_sync == {*at.names}
        for name in group.backups:
            disks[name].back()
        await group.served_by_another(hangs)
        became = await group.outcome(begun.tx_id)
        assert await group.value(0) == (b"on its way" if became == "committed" else b"old")
        await group.put(1, b"new")
        disks[hangs].back()
        await at.whole()
        await group.equal()

    live(scenario, seed=seed)


@pytest.mark.parametrize("pause_s", [1.5, 4.0])
def test_a_primary_whose_disk_is_slow_goes_on_without_a_copy_whose_disk_hangs(
    pause_s: float,
) -> None:
    async def scenario(group: Group) -> None:
        at, slow, hangs = group.at, group.primary, group.backups[0]
        await at.whole()
        Hanging(at, hangs)

        async def answer_late() -> None:
            while True:
                disk = Hanging(at, slow)
                at.member(slow).log.put_records([IdleRecord()], lambda: None)
                await trio.sleep(pause_s)
                disk.back()
                await trio.sleep(0.2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_late)
            await group.begin(0, b"new")
            await group.until(lambda: hangs not in group.in_sync)
            nursery.cancel_scope.cancel()

    live(scenario)


def test_nobody_is_given_what_has_no_other_copy(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(group: Group) -> None:
        at, hangs, epoch = group.at, group.primary, group.epoch
        await group.put(0, b"old")
        disk = Hanging(at, hangs)
        begun = await group.begin(0, b"new")
        await trio.sleep(2 * DISK_TIMEOUT_S)
        assert (group.primary, group.epoch) == (hangs, epoch)
        assert await group.value(0) == b"old"
        disk.back()
        await begun.answer()
        assert await group.value(0) == b"new"

    live(scenario, backups=0)
    assert "0 partitions" in caplog.text


def test_a_disk_that_answers_within_its_time_loses_nothing() -> None:
    async def scenario(group: Group) -> None:
        at, hangs, epoch = group.at, group.primary, group.epoch
        await at.whole()
        for _ in range(3):
            disk = Hanging(at, hangs)
            begun = await group.begin(0, b"new")
            await trio.sleep(DISK_TIMEOUT_S - 0.5)
            disk.back()
            await begun.answer()
        assert (group.primary, group.epoch) == (hangs, epoch)

    live(scenario)


def test_without_that_rule_nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SteppingBack, "look", lambda *_about: None)

    async def scenario(group: Group) -> None:
        at, hangs = group.at, group.primary
        await at.whole()
        Hanging(at, hangs)
        begun = await group.begin(0, b"new")
        assert not await begun.is_answered(4 * DISK_TIMEOUT_S)
        assert group.primary == hangs

    live(scenario)
