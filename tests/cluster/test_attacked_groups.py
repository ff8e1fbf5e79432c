"""What an attack on transactions of several groups has found, each as a scenario."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from support.parts import Three, together

APART: Any = {"nodes": 6, "backups": 1, "apart": True}
"""No member has copies of two of the partitions: what is held concerns one step only."""


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
