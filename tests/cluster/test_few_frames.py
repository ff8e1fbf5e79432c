"""What members say to each other of one transaction shares frames, and its end has no haste."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgpack
import pytest

from tidelog import codecs
from tidelog.engine.net import outbox
from tidelog.engine.net.frames import Message, frame
from tidelog.engine.net.kinds import BY_NAME
from tidelog.testing import SimCluster
from tidelog.wal.records import RecordType

PARTITIONS = 6
"""Two of each member."""


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[list[Message]]:
    """The messages of each frame that any member sends."""
    found: list[list[Message]] = []

    def framed(packed: Iterable[bytes]) -> bytes:
        packed = list(packed)
        found.append([msgpack.unpackb(one) for one in packed])
        return frame(packed)

    monkeypatch.setattr(outbox, "frame", framed)
    return found


def served(backups: int, scenario: Callable[[Callable[[], Awaitable[None]]], Any]) -> None:
    """Run a scenario that is given what writes a key of each partition in one transaction."""
    at = SimCluster(seed=1, nodes=3, partitions=PARTITIONS, backups=backups)

    async def lived(at: SimCluster) -> None:
        at.start()
        await at.settled()
        db = at.client()
        numbers = db.map("m", key=codecs.Bytes, value=codecs.I64)
        await numbers.set(b"other", 0)
        await at.quiesce()
        assert len({at.primary(partition) for partition in range(PARTITIONS)}) == 3

        async def write() -> None:
            async with db.transaction() as tx:
                for partition in range(PARTITIONS):
                    await tx[numbers].set(at.key(partition, 0), 1)

        await scenario(write)

    at.run(lived)


@pytest.mark.parametrize("backups", [0, 2])
@pytest.mark.parametrize("kind", ["prepare", "prepared"])
def test_what_is_said_to_a_member_about_its_partitions_is_one_frame(
    kind: str, backups: int, frames: list[list[Message]]
) -> None:
    # The others have two partitions each: without copies they answer behind their own sync.
    async def scenario(write: Callable[[], Awaitable[None]]) -> None:
        frames.clear()
        await write()
        number = BY_NAME[kind].number
        counts = [[message[0] for message in one].count(number) for one in frames]
        assert [count for count in counts if count] == [2, 2]

    served(backups, scenario)


def test_ends_travel_with_the_next_prepares(frames: list[list[Message]]) -> None:
    async def scenario(write: Callable[[], Awaitable[None]]) -> None:
        frames.clear()
        for _ in range(20):
            await write()
        streamed = list(types_of(frames))
        alone = streamed.count({RecordType.COMMIT})
        together = streamed.count({RecordType.COMMIT, RecordType.PREPARE})
        assert together > alone, "only what a tick has found may go by itself"

    served(2, scenario)


def types_of(frames: Iterable[list[Message]]) -> Iterator[set[int]]:
    """Yield which types of records each message of a stream has."""
    for message in (message for one in frames for message in one):
        if message[0] == BY_NAME["replicate"].number:
            yield set(message[5])
