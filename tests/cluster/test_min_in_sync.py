"""Fewest copies for a write (I7): below that nothing new is prepared, and reads go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from tidelog import codecs
from tidelog.errors import TooFewCopiesError, UsageError
from tidelog.testing import SimCluster

BOTH_SIDES = [(2, False), (3, True)]


def raw_map(database: Any) -> Any:
    return database.map("raw", key=codecs.Bytes, value=codecs.Bytes)


@pytest.mark.parametrize(("least", "refused"), BOTH_SIDES)
def test_writes_are_refused_below_the_fewest_copies_and_reads_go_on(
    least: int, refused: bool
) -> None:
    at = SimCluster(seed=1, nodes=3, partitions=4, backups=2, min_in_sync=least)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        key, other_key, primary = at.key(0, 0), at.key(0, 1), at.primary(0)
        lost = next(name for name in at.names if name != primary)
        database = at.client(primary, timeout=30)
        raw = raw_map(database)
        await raw.set(key, b"before")
        await at.kill(lost)
        while len(at.member(primary).agreement.topology.partitions[0].in_sync) == 3:
            await trio.sleep(0.01)
        began = at.world.now()
        if not refused:
            await raw.set(key, b"after")
            assert await raw.get(key) == b"after"
            return
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: raw.set(key, b"after"),
            lambda: raw.pop(key),
            lambda: raw.update_many({key: b"after"}),
        ]
        for write in writes:
            with pytest.raises(TooFewCopiesError, match="has 2 copies in sync") as caught:
                await write()
            assert caught.value.partition == 0
            assert "--min-in-sync" in (caught.value.hint or "")
        with pytest.raises(TooFewCopiesError):
            await database.outcome(database.new_id())  # which would write that it is refused
        assert await raw.get(key) == b"before"
        async with database.transaction() as tx:  # it is confirmed when it ends
            assert await tx[raw].get(key) == b"before"
            assert await tx[raw].get(other_key) is None
        assert at.world.now() - began < 2, "nobody tries for ever"

    at.run(scenario)


def test_what_is_prepared_commits_though_a_copy_goes_meanwhile() -> None:
    at = SimCluster(seed=2, nodes=3, partitions=4, backups=2, min_in_sync=3)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        key, primary = at.key(0, 0), at.primary(0)
        other, lost = (name for name in at.names if name != primary)
        raw = raw_map(at.client(primary, timeout=30))
        await raw.set(key, b"before")
        await at.quiesce()
        at.hold("stored", src=lost, dst=primary)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raw.set, key, b"prepared")
            pending = at.member(primary).log.state.copies.pending
            while not pending.get(0):
                await trio.sleep(0.01)
            await at.kill(lost)
        at.release("stored", src=lost, dst=primary)
        with pytest.raises(TooFewCopiesError):
            await raw.set(key, b"too late")
        assert await raw.get(key) == b"prepared"
        await at.settled([primary, other])
        await at.quiesce()

    at.run(scenario)


def test_a_cluster_does_not_ask_for_more_copies_than_it_makes() -> None:
    at = SimCluster(seed=3, nodes=3, partitions=4, backups=1, min_in_sync=3)

    async def scenario(at: SimCluster) -> None:
        at.may_end.update(at.names)
        at.start()
        await at.killed("n1")
        assert isinstance(at.ends["n1"], UsageError)
        assert str(at.ends["n1"]).startswith("3 copies in sync cannot be had with 1 backups")

    at.run(scenario)
