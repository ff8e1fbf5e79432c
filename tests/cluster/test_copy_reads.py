"""Reads at copies that are not the primary: as new as there, or stale and telling how old."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from tidelog import codecs
from tidelog.engine.node.copy_reads import CopyReads, PendingKeys
from tidelog.errors import NotEnoughMembersError, PartitionUnavailableError, ReadOnlyError
from tidelog.testing import SimCluster
from tidelog.testing.storms import run_storm

PARTITIONS = 8


def cluster(seed: int, *, nodes: int = 3, backups: int = 2) -> SimCluster:
    return SimCluster(seed=seed, nodes=nodes, partitions=PARTITIONS, backups=backups)


def test_copies_answer_reads_and_what_was_acknowledged_is_in_them() -> None:
    at = cluster(1)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        writing = at.client().map("m", key=codecs.Str, value=codecs.I64)
        database = at.client(read_from="copies")
        reading = database.map("m", key=codecs.Str, value=codecs.I64)
        names = [f"k{number}" for number in range(40)]
        for number, name in enumerate(names):
            await writing.set(name, number)
            assert await reading.get(name) == number
        await at.quiesce()
        counted = {name: at.member(name).requests.count for name in at.names}
        for number, name in enumerate(names * 3):
            assert await reading.get(name) == number % 40
        asked = [at.member(name).requests.count - counted[name] for name in at.names]
        assert sum(asked) == 120, "nobody had to be asked again"
        assert min(asked) == 40, asked
        assert await reading.get_many(names) == {name: at for at, name in enumerate(names)}
        assert [pair async for pair in reading.items()] == sorted(
            zip(names, range(40), strict=True)
        )

    at.run(scenario)
