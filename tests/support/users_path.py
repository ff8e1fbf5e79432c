"""The way a user goes who tries a cluster: one script, for real processes and a simulated world."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import trio

from tidelog.codecs import Msgpack, Str
from tidelog.errors import NotEnoughMembersError, PartitionUnavailableError

CITIES = 60
PATIENCE_S = 30.0


class Stage(Protocol):
    """A cluster of three members, and what a user can do to it."""

    async def up(self) -> None:
        """Start it, and return when everything is served."""

    def connect(self) -> AbstractAsyncContextManager[Any]:
        """Connect to it, for tasks."""

    async def kill(self, name: str) -> None:
        """End a member at once."""

    async def start(self, name: str) -> None:
        """Start a member again, and return when everything of it is served."""

    async def status(self) -> dict[str, Any]:
        """Return ``coordinator``, ``members_up`` and ``partitions_served``."""

    async def down(self) -> None:
        """End all members in order."""


async def users_path(stage: Stage, partitions: int) -> None:
    """Go the way of ``docs/cluster.md``."""
    await stage.up()
    status = await stage.status()
    assert (status["members_up"], status["partitions_served"]) == (3, partitions)
    written = {f"c{number}": number for number in range(CITIES)}
    async with stage.connect() as db:
        cities = db.map("cities", key=Str, value=Msgpack)
        for name, number in written.items():
            await cities.set(name, number)
        assert dict([pair async for pair in cities.items()]) == written

        first = status["coordinator"]
        other = next(name for name in ("n1", "n2", "n3") if name != first)
        await stage.kill(other)
        await _noticed(stage, 2)
        there, away = await _looked_up(cities, written)
        assert away
        assert len(there) > len(away)
        for name in there:
            written[name] += 1000
            await cities.set(name, written[name])
        await stage.start(other)
        assert await _looked_up(cities, written) == (list(written), [])

        await stage.kill(first)
        with trio.fail_after(PATIENCE_S):
            while (await stage.status())["coordinator"] in (None, first):
                await trio.sleep(0.05)
        await stage.start(first)
        assert await _looked_up(cities, written) == (list(written), [])
    await stage.down()

    await stage.up()
    async with stage.connect() as db:
        cities = db.map("cities")
        assert await _looked_up(cities, written) == (list(written), [])
    await stage.down()


async def _noticed(stage: Stage, members: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while (await stage.status())["members_up"] != members:
            await trio.sleep(0.05)


async def _looked_up(cities: Any, written: dict[str, int]) -> tuple[list[str], list[str]]:
    """Return the keys that are there, all with what was written, and those that are away."""
    there, away = [], []
    for name, number in written.items():
        try:
            assert await cities.get(name) == number
            there.append(name)
        except (PartitionUnavailableError, NotEnoughMembersError):
            away.append(name)
    return there, away
