"""Who dies when, in a transaction of several groups: it takes effect in all of them, or in none.

Behind each death everybody comes back, and everything settles without anybody who asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import trio

from support.copies import when_reached
from support.parts import Three, together
from support.raw_client import FailureError
from tidelog.errors import CommitUnknownError
from tidelog.testing.cluster import POINTS

TX_POINTS = [point for point in POINTS if point.startswith("tx.")]
WHO = {
    "near": lambda three: [three.near],
    "other primary": lambda three: [three.q.primary],
    "both": lambda three: [three.near, three.q.primary],
    "one that only has copies": lambda three: [three.r.primary],
}


async def told(three: Three, arm: Callable[[], object], *, confirms: bool) -> tuple[str, bytes]:
    """Commit something to p and q; return what the client is told, and the id."""
    reads = await three.versions(["r", "p"] if confirms else ["p", "q"])
    await three.at.quiesce()
    tx = await three.begin({"p": b"new", "q": b"new"}, reads, before=arm)
    with trio.move_on_after(5), suppress(OSError):
        try:
            await tx.answer()
        except FailureError as failure:
            return failure.code, tx.tx_id
        return "ok", tx.tx_id
    return "unknown", tx.tx_id


async def checked(three: Three, answer: str, tx_id: bytes) -> None:
    """Check that all of a transaction is there, or nothing, and that its client was told truly."""
    await three.whole()
    values = await three.values("p", "q")
    assert values in ([b"old", b"old"], [b"new", b"new"]), f"half of it: {values}"
    committed = values[0] == b"new"
    assert await three.p.outcome(tx_id) == ("committed" if committed else "rolled_back")
    if answer == "ok":
        assert committed, "it was acknowledged, and is lost"
    elif answer not in ("unknown", CommitUnknownError.code):
        assert not committed, f"{answer} was told"
    await three.put(p=b"after", q=b"after")
    assert await three.values("p", "q") == [b"after", b"after"]
    await three.until(lambda: not three.remembered())


@pytest.mark.parametrize("confirms", [False, True], ids=["at once", "locked before"])
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("point", TX_POINTS)
def test_somebody_dies_at_a_point(point: str, who: str, *, confirms: bool) -> None:
    async def scenario(three: Three) -> None:
        await three.put(p=b"old", q=b"old", r=b"old")

        def arm() -> None:
            for name in WHO[who](three):
                three.at.nodes[name].kill_at(point)

        await checked(three, *await told(three, arm, confirms=confirms))

    together(scenario)


@pytest.mark.parametrize("who", ["near", "other primary"])
@pytest.mark.parametrize("point", TX_POINTS)
def test_everybody_loses_power_at_a_point(point: str, who: str) -> None:
    async def scenario(three: Three) -> None:
        await three.put(p=b"old", q=b"old", r=b"old")

        def cut() -> bool:
            for node in three.at.nodes.values():
                node.kill("lost")
            return True

        [name] = WHO[who](three)
        answer = await told(three, lambda: when_reached(three.p, name, point, cut), confirms=True)
        await checked(three, *answer)

    together(scenario)


def test_the_coordinator_and_both_primaries_die_behind_the_prepares() -> None:
    async def scenario(three: Three) -> None:
        await three.put(p=b"old", q=b"old", r=b"old")
        await three.at.quiesce()
        three.hold_everywhere("decision")
        tx = await three.begin({"p": b"new", "q": b"new"})
        await tx.answer()
        coordinator = three.at.coordinator()
        assert coordinator is not None
        await three.p.fall(*{coordinator, three.near, three.q.primary})
        await checked(three, "ok", tx.tx_id)

    together(scenario, nodes=5)


@pytest.mark.parametrize("backups", [0, 1])
def test_sole_copies_and_pairs_settle_behind_a_restart_of_all(backups: int) -> None:
    async def scenario(three: Three) -> None:
        await three.put(p=b"old", q=b"old", r=b"old")
        await three.at.quiesce()
        three.hold_everywhere("decision")
        tx = await three.begin({"p": b"new", "q": b"new"})
        await tx.answer()
        await three.p.fall(*three.at.names)
        await checked(three, "ok", tx.tx_id)

    together(scenario, backups=backups)
