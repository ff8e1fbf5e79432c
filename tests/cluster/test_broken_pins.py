"""The log is kept for a copy that comes back, up to a limit; behind that the copy begins again."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio

from support.copies import (
    CUT,
    LARGE,
    Group,
    age_logs,
    explained,
    live,
    small_pieces,
)
from tidelog.engine.node import filling, returns, supply_log
from tidelog.engine.node.missed import MissedHistory
from tidelog.engine.node.ways_back import ReturnExplained
from tidelog.engine.store.options import Options
from tidelog.rebalance.choosing import SupplyKind

SHORT = Options(segment_bytes=20_000, retain_bytes=300_000, checkpoint_bytes=1_000)
"""The log has what was written lately, and not what ``age_logs`` was called behind."""
LIMIT = 220_000
NONE, HISTORY, FULL = SupplyKind.NONE, SupplyKind.HISTORICAL, SupplyKind.FULL


def first_position(group: Group, name: str) -> int:
    return group.at.member(name)._files.keeper.first_position


def pins(group: Group, name: str) -> dict[str, int]:
    return group.at.member(name)._files.keeper.pins.positions()


async def log_cut(group: Group) -> None:
    """Write until segments go that the log of the primary has now."""
    begins = first_position(group, group.primary)
    for _ in range(8):
        await age_logs(group, rounds=1)
        if first_position(group, group.primary) > begins:
            return
    raise AssertionError(f"the log still begins at {begins}")


async def a_return(group: Group, full: bool) -> str:
    """Let a copy miss something, and begin to come back; return its name."""
    name, primary = group.backups[-1], group.primary
    await group.put(range(10), b"before")
    await group.equal()
    await group.away(name)
    await age_logs(group, rounds=3)
    for i in range(5):
        await group.put(i, b"meanwhile")
    await group.remove(range(5, 8))
    group.hold("pairs" if full else "supply", primary, name)
    group.at.start([name])
    await group.until(lambda: bool(pins(group, primary)))
    return name


async def let_go(group: Group, name: str) -> list[ReturnExplained]:
    """Let the return go on; return how the copy came back.

    Nothing is lost by then, and no log is kept behind it.
    """
    primary, epoch = group.primary, group.epoch
    group.at.holds.release_all()
    await group.put(8, b"last")
    await group.back()
    found = explained(group, name)
    await group.until(lambda: not pins(group, primary))
    await log_cut(group)
    await group.put(8, b"last")
    await group.fall(primary, next(one for one in group.backups if one != name))
    group.at.start(one for one in group.at.names if one not in group.at.running())
    await group.taken_over(epoch)
    values = [await group.value(i) for i in (0, 5, 8)]
    assert values == [LARGE + b"0", LARGE + b"0", b"last"]
    return found


@pytest.mark.parametrize("full", [False, True], ids=["history", "full"])
def test_the_log_is_kept_as_long_as_a_copy_is_supplied_from_it(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, rows=5)

    async def scenario(group: Group) -> None:
        name = await a_return(group, full)
        [pinned] = pins(group, group.primary).values()
        await age_logs(group)
        assert first_position(group, group.primary) <= pinned
        ways = [one.choice.kind for one in await let_go(group, name)]
        assert ways == ([FULL, HISTORY] if full else [HISTORY])

    live(scenario, options=CUT if full else SHORT)


def limit_pins(patch: pytest.MonkeyPatch) -> None:
    for module in (filling, supply_log):
        patch.setattr(module, "PIN_BYTES_MAX", LIMIT)


async def broken(group: Group) -> None:
    """Write until no pin holds the log of the primary, and what it held is written over."""
    began = group.at.world.now()
    for _ in range(3):
        await log_cut(group)
    assert pins(group, group.primary) == {}
    assert group.at.world.now() < began + returns.PATIENCE_S, "it was given up before"


@pytest.mark.parametrize("full", [False, True], ids=["history", "full"])
def test_no_log_is_kept_for_a_copy_that_died_on_its_way_back(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, rows=5)

    async def scenario(group: Group) -> None:
        name = await a_return(group, full)
        await group.fall(name)
        await group.until(lambda: not pins(group, group.primary))
        await log_cut(group)
        group.at.holds.release_all()
        await group.back(name)

    live(scenario, options=CUT if full else SHORT)


async def told(group: Group) -> list[tuple[str, str]]:
    """Return what the primary tells clients of returns: the ways, and why these."""
    client = await group.client()
    found = await client.ask("partition", group.partition)
    client.close()
    return [(kind, reason) for *_, kind, _, reason, _ in found["returns"]]


MOMENTS = {
    "before anything is read": [HISTORY, FULL],
    "between pieces": [HISTORY, FULL],
    "while a full copy is made": [FULL, FULL],
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_pin_that_breaks_lets_the_copy_begin_again_in_full(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, rows=5)
    for module in (filling, supply_log):
        monkeypatch.setattr(module, "PIN_BYTES_MAX", LIMIT)
    full, genuine, gate = MOMENTS[moment][0] is FULL, MissedHistory._send_from, trio.Event()

    async def supply_from(self: MissedHistory, *about: Any) -> None:
        await gate.wait()
        await genuine(self, *about)

    async def scenario(group: Group) -> None:
        if moment == "before anything is read":
            monkeypatch.setattr(MissedHistory, "_send_from", supply_from)
        name = await a_return(group, full)
        await broken(group)
        gate.set()
        first, second, *others = await let_go(group, name)
        assert [one.choice.kind for one in (first, second)] == MOMENTS[moment]
        assert "no log reaches further back than" in second.choice.reason
        assert others[-1].choice.kind in (NONE, HISTORY)

    live(scenario, options=CUT if full else SHORT)


def test_who_asks_is_told_why_a_copy_is_made_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, rows=5)
    for module in (filling, supply_log):
        monkeypatch.setattr(module, "PIN_BYTES_MAX", LIMIT)

    async def scenario(group: Group) -> None:
        await a_return(group, full=False)
        await broken(group)
        group.at.holds.release_all()
        await group.back()
        (way, reason), (then, why), *_ = await told(group)
        assert (way, then) == ("historical", "full")
        assert reason.startswith("11 to 78 of 78 are missing, and the log of ")
        assert re.fullmatch(r"number \d+ is missing, and no log reaches further back than \d+", why)

    live(scenario, options=SHORT)
