"""The log is kept for a copy that comes back, up to a limit; behind that the copy begins again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from support.copies import (
    CUT,
    LARGE,
    SOON_S,
    Group,
    age_logs,
    away,
    back,
    explained,
    kinds,
    live,
    small_pieces,
)
from tidelog.engine.node import supply_log, supplying
from tidelog.engine.node.supplying import ReturnExplained, Supplies
from tidelog.engine.store.options import Options
from tidelog.rebalance.choosing import SupplyKind

SHORT = Options(segment_bytes=20_000, retain_bytes=60_000, checkpoint_bytes=1_000)
"""The log has what was written lately, and not what ``age_logs`` was called behind."""
LIMIT = 30_000
NONE, HISTORY, FULL = SupplyKind.NONE, SupplyKind.HISTORICAL, SupplyKind.FULL


def first_position(group: Group, name: str) -> int:
    return group.at.member(name)._files.keeper.first_position


def pins(group: Group, name: str) -> dict[str, int]:
    return group.at.member(name)._files.keeper.pins.positions()


async def a_return(group: Group, full: bool) -> str:
    """Let a copy miss something, and begin to come back; return its name."""
    name, primary = group.backups[-1], group.primary
    await group.put(range(10), b"before")
    await group.equal()
    await away(group, name)
    if full:
        await age_logs(group)
    for i in range(5):
        await group.put(i, b"meanwhile")
    await group.remove(range(5, 8))
    group.hold("fill" if full else "supply", primary, name)
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
    await back(group)
    found = explained(group, name)
    await group.until(lambda: not pins(group, primary))
    begins = first_position(group, primary)
    await age_logs(group, rounds=2)
    assert first_position(group, primary) > begins
    await group.put(8, b"last")
    await group.fall(primary, next(one for one in group.backups if one != name))
    group.at.start(one for one in group.at.names if one not in group.at.running())
    await group.taken_over(epoch)
    values = [await group.value(i) for i in (0, 5, 8)]
    assert values == [LARGE + b"1", LARGE + b"1", b"last"]
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
    for module in (supplying, supply_log):
        patch.setattr(module, "PIN_BYTES_MAX", LIMIT)


async def broken(group: Group) -> None:
    """Write until no pin holds the log of the primary."""
    primary = group.primary
    begins = first_position(group, primary)
    await age_logs(group)
    assert pins(group, primary) == {}
    assert first_position(group, primary) > begins


def test_a_pin_that_breaks_between_pieces_lets_the_copy_begin_again_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_pieces(monkeypatch, rows=5)
    limit_pins(monkeypatch)

    async def scenario(group: Group) -> None:
        name = await a_return(group, full=False)
        await broken(group)
        first, *others = await let_go(group, name)
        assert first.choice.kind is HISTORY
        assert [one.choice.kind for one in others][0] is FULL
        print(others)

    live(scenario, options=SHORT)


def test_a_pin_that_breaks_before_the_search_has_read_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_pins(monkeypatch)
    genuine, waits = Supplies._supply_from, trio.Event()

    async def supply_from(self: Supplies, *about: Any) -> None:
        await waits.wait()
        await genuine(self, *about)

    monkeypatch.setattr(Supplies, "_supply_from", supply_from)

    async def scenario(group: Group) -> None:
        name = await a_return(group, full=False)
        await broken(group)
        waits.set()
        first, *others = await let_go(group, name)
        assert first.choice.kind is HISTORY
        assert [one.choice.kind for one in others][0] is FULL
        print(others)

    live(scenario, options=SHORT)


def test_a_pin_that_breaks_while_a_full_copy_is_made_lets_it_be_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_pieces(monkeypatch, rows=5)
    limit_pins(monkeypatch)

    async def scenario(group: Group) -> None:
        name = await a_return(group, full=True)
        await broken(group)
        found = await let_go(group, name)
        print(found)
        assert [one.choice.kind for one in found][:2] == [FULL, FULL]

    live(scenario, options=CUT)
