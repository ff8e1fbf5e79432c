"""An author that answers pings and opens nothing does not keep a partition closed for ever (X4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from support.copies import STAYING, Group, live
from support.hanging import Hanging
from tidelog.engine.agreement.coordinator import Coordinator
from tidelog.engine.node.stepping_back import SteppingBack

TIMING = replace(STAYING, exchange_timeout=8.0)


@pytest.fixture(autouse=True)
def knows_nothing_of_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what hangs be something that the author does not notice by itself."""
    monkeypatch.setattr(SteppingBack, "look", lambda *_about: None)


async def next_author_hangs(group: Group) -> str:
    """Kill the primary while the disk of the next author hangs; return that one."""
    await group.at.whole()
    await group.put(range(3), b"kept")
    await group.equal()
    author, epoch = group.backups[0], group.epoch
    Hanging(group.at, author)  # its configuration log is written
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
        await group.served_by_another(stuck)
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
