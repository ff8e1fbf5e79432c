"""An author that answers pings and opens nothing does not keep a partition closed for ever (X4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from support.copies import STAYING, Group, live
from tidelog.engine.agreement.coordinator import Coordinator

TIMING = replace(STAYING, exchange_timeout=8.0)


def hang(group: Group, name: str) -> None:
    """Let nothing of a member's log become durable any more; its configuration log does."""
    log = group.at.member(name).log
    run = log.environment.run

    async def hanging(kind: str, work: Callable[[], Any]) -> Any:
        if kind == "sync":
            await trio.sleep_forever()
        return await run(kind, work)

    log.environment = replace(log.environment, run=hanging)


async def next_author_hangs(group: Group) -> str:
    """Kill the primary while the disk of the next author hangs; return that one."""
    await group.at.whole()
    await group.put(range(3), b"kept")
    await group.equal()
    author, epoch = group.backups[0], group.epoch
    hang(group, author)
    await group.at.kill(group.primary)
    await group.until(lambda: group.epoch > epoch)
    return author


@pytest.mark.parametrize("seed", range(1, 6))
def test_an_author_whose_disk_hangs_is_taken_out_and_another_copy_opens(seed: int) -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        stuck = await next_author_hangs(group)
        incarnation = at.member(stuck).agreement.me
        assert group.primary == stuck
        await group.until(lambda: not at.topology().is_present(incarnation))
        await group.until(lambda: group.primary != stuck)
        assert [await group.value(i) for i in range(3)] == [b"kept"] * 3
        await group.put(0, b"new")

    live(scenario, seed=seed, nodes=5, timing=TIMING)


def test_without_that_rule_the_partition_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "_opens_nothing", lambda *_about: [])

    async def scenario(group: Group) -> None:
        stuck = await next_author_hangs(group)
        await trio.sleep(3 * TIMING.exchange_timeout)
        assert group.primary == stuck
        assert not group.at.member(stuck).partitions.is_open(group.partition)

    live(scenario, nodes=5, timing=TIMING)


def test_nobody_is_taken_out_if_too_few_would_stay_to_decide() -> None:
    async def scenario(group: Group) -> None:
        stuck = await next_author_hangs(group)
        incarnation = group.at.member(stuck).agreement.me
        await trio.sleep(3 * TIMING.exchange_timeout)
        assert group.at.topology().is_present(incarnation)

    live(scenario, nodes=3, timing=TIMING)
