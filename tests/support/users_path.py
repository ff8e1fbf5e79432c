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

    async def kill_all(self) -> None:
        """End all members at the same moment, as when the power is cut."""

    async def status(self) -> dict[str, Any]:
        """Return the fields of ``tidelog cluster status --json``."""

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


async def copies_path(stage: Stage, partitions: int) -> None:
    """Go the way of ``docs/cluster.md`` with two backups: nothing waits, and nothing is lost."""
    await stage.up()
    status = await stage.status()
    assert _standing(status) == (3, partitions, partitions)
    assert status["blocks"] == []
    written: dict[str, int] = {}
    async with stage.connect() as db:
        cities = db.map("cities", key=Str, value=Msgpack)
        await _all_written(cities, written, 1)

    await stage.kill_all()
    status = await stage.status()
    assert (status["members_up"], [block["kind"] for block in status["blocks"]]) == (
        0,
        ["majority"],
    )
    await stage.up()
    assert _standing(await stage.status()) == (3, partitions, partitions), "all copies are back"

    async with stage.connect() as db:
        cities = db.map("cities")
        assert await _looked_up(cities, written) == (list(written), [])
        first = (await stage.status())["coordinator"]
        other = next(name for name in ("n1", "n2", "n3") if name != first)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.kill, other)
            await _all_written(cities, written, 2)  # the client waits for whoever takes over
        assert await _looked_up(cities, written) == (list(written), [])
        status = await _settled(stage, 2, partitions)
        assert (status["members_away"], status["sets_full"]) == ([other], 0)
        assert _blocks(status) == [("copies", [other], partitions)]

        await stage.start(other)
        await _whole(stage, partitions)
        await stage.kill(first)
        await _all_written(cities, written, 3)
        status = await _settled(stage, 2, partitions)
        assert _blocks(status) == [("copies", [first], partitions)]
        await stage.start(first)
        await _whole(stage, partitions)
        assert await _looked_up(cities, written) == (list(written), [])
    await stage.down()

    await stage.up()
    async with stage.connect() as db:
        assert await _looked_up(db.map("cities"), written) == (list(written), [])
    await stage.down()


def _standing(status: dict[str, Any]) -> tuple[int, int, int]:
    return status["members_up"], status["partitions_served"], status["sets_full"]


def _blocks(status: dict[str, Any]) -> list[tuple[str, list[str], int]]:
    return [
        (block["kind"], list(block["members"]), len(block["partitions"]))
        for block in status["blocks"]
    ]


async def _settled(stage: Stage, members: int, partitions: int) -> dict[str, Any]:
    """Return the status once everything is served by so many members, and sets have shrunk.

    Those that are left have stored everything by then.
    """
    with trio.fail_after(PATIENCE_S):
        while True:
            status = await stage.status()
            if _standing(status) == (members, partitions, 0) and not status["copies_lagging"]:
                return status
            await trio.sleep(0.05)


async def _whole(stage: Stage, partitions: int) -> None:
    """Wait until all sets have all copies: who was away has caught up."""
    with trio.fail_after(PATIENCE_S):
        while _standing(await stage.status()) != (3, partitions, partitions):
            await trio.sleep(0.05)


async def _all_written(cities: Any, written: dict[str, int], value: int) -> None:
    """Write all cities; each is there from its acknowledgement on."""
    for number in range(CITIES):
        await cities.set(f"c{number}", value * 1000 + number)
        written[f"c{number}"] = value * 1000 + number


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
