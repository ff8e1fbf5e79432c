"""Maps are made, renamed and dropped once for each who asks, however late a question arrives."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from support.raw_client import FailureError, RawClient
from support.sim_clients import PARTITIONS, Clients, cluster, serving
from tidelog import codecs
from tidelog.errors import NotFoundError
from tidelog.testing import SimCluster

MADE = ("m", "bytes", 1, "bytes", 1)
ASKED_AGAIN_S = 0.5


def names(at: SimCluster) -> dict[int, str]:
    return {number: known.name for number, known in at.topology().namespaces.items()}


async def begin_late(
    at: SimCluster, near: RawClient, slow: str, operation: str, *arguments: object
) -> None:
    """Have a change asked for twice, of which the second time stays on its way to who leads."""
    leader = at.coordinator()
    assert leader is not None
    at.hold("decided", src=leader, dst=slow)
    asked = await near.begin(operation, *arguments)
    await trio.sleep(ASKED_AGAIN_S - 0.1)
    at.hold("propose-change", src=slow, dst=leader)
    await trio.sleep(0.15)
    at.release("decided", src=leader, dst=slow)
    await near.answer(asked)


@pytest.mark.parametrize("change", ["drop", "map", "rename"])
def test_a_change_that_is_asked_for_again_on_a_slow_connection_is_made_once(change: str) -> None:
    at = cluster(61)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        await serving(at, clients)
        leader = at.coordinator()
        assert leader is not None
        slow, third = (name for name in at.names if name != leader)
        near, other = await clients.to(slow), await clients.to(third)
        if change == "drop":
            await begin_late(at, near, slow, "drop", "m")
            number = await other.ask("map", *MADE)
            partition = next(p for p in range(PARTITIONS) if at.primary(p) == third)
            key = at.key(partition, 0)
            await other.put(b"1" * 16, number, {key: b"v"})
        elif change == "map":
            await other.ask("drop", "m")
            await begin_late(at, near, slow, "map", *MADE)
            await other.ask("drop", "m")
        else:
            await begin_late(at, near, slow, "rename", "m", "o")
            await other.ask("rename", "o", "m")
        known = names(at)
        at.release("propose-change", src=slow, dst=leader)
        await trio.sleep(2 * ASKED_AGAIN_S)
        assert names(at) == known
        if change == "drop":
            assert (await other.ask("get", number, [key]))[0] == [b"v"]

    at.run(scenario)


@pytest.mark.parametrize("seed", [62, 63])
def test_changes_of_maps_that_are_asked_for_at_once_are_each_made_or_refused(seed: int) -> None:
    at = cluster(seed)
    clients = Clients(at)
    made: list[int] = []

    async def scenario(at: SimCluster) -> None:
        await serving(at, clients)

        async def changes(name: str, own: str) -> None:
            client = await clients.to(name)
            for _ in range(4):
                made.append(await client.ask("map", own, *MADE[1:]))
                await client.ask("rename", own, own + "-2")
                await client.ask("drop", own + "-2")
            for operation, arguments in (("drop", ["m"]), ("map", [*MADE])):
                with suppress(FailureError):  # somebody else was first
                    await client.ask(operation, *arguments)

        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(changes, at.names[number % 3], f"own-{number}")
        assert len(set(made)) == 4 * 9
        assert set(names(at).values()) <= {"m"}

    at.run(scenario)


def test_who_asked_for_a_change_and_was_cut_off_is_told_that_it_may_be_made() -> None:
    at = cluster(64)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        await serving(at, clients)
        leader = at.coordinator()
        assert leader is not None
        slow, third = (name for name in at.names if name != leader)
        near = await clients.to(slow)
        at.hold("decided", src=leader, dst=slow)
        asked = await near.begin("drop", "m")
        with trio.fail_after(10):
            while names(at):
                await trio.sleep(0.01)
        at.cut([slow], [leader, third])
        with pytest.raises(FailureError) as refused:
            await near.answer(asked)
        assert refused.value.code == "TL-CLU-004"
        assert "may be made all the same" in refused.value.message
        assert names(at) == {}
        with pytest.raises(FailureError) as refused:
            await near.ask("map", *MADE)
        assert "nothing can be decided" in refused.value.message

    at.run(scenario)


def test_a_drop_that_comes_late_leaves_another_map_of_that_name_alone() -> None:
    # A client asked again by name, as the answer was lost, and met a map that was made meanwhile.
    at = cluster(67)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        await serving(at, clients)
        one, other = await clients.to("n1"), await clients.to("n2")
        [old] = [number for number, name in names(at).items() if name == "m"]
        await one.ask("drop", "m", old)
        while old in at.member("n2").log.state.namespaces:
            await trio.sleep(0.01)
        number = await other.ask("map", *MADE)
        while number not in at.member("n1").log.state.namespaces:
            await trio.sleep(0.01)
        for operation, arguments in (("drop", ["m", old]), ("rename", ["m", "o", old])):
            with pytest.raises(FailureError, match=f"map with the id {old} is not there"):
                await one.ask(operation, *arguments)
        assert names(at)[number] == "m"

    at.run(scenario)


def test_a_map_without_codecs_is_that_which_somebody_has_just_made() -> None:
    # The member that was asked had not heard of it, and a map of bytes was asked for in its place.
    at = cluster(71)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        slow = min(at.names, key=at.member_id)  # which leads first, and a client asks first
        await at.kill(slow)
        await trio.sleep(4)
        at.start([slow])
        await at.settled()
        leader = at.coordinator()
        assert leader not in (None, slow)
        [third] = set(at.names) - {leader, slow}
        near, far = at.client(slow), at.client(third)
        with suppress(NotFoundError):
            await near.map("nobody", create=False).get("a")
        at.hold("decided", src=str(leader), dst=slow)
        await far.map("users", key=codecs.Str, value=codecs.I64).set("ada", 7)
        async with trio.open_nursery() as nursery:
            found: list[object] = []

            async def look() -> None:
                found.append(await near.map("users").get("ada"))

            nursery.start_soon(look)
            await trio.sleep(0.4)
            at.release("decided", src=str(leader), dst=slow)
        assert found == [7]

    at.run(scenario)
