"""Faults of a simulated network: ways that are cut, connections that are reset or half open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from tidelog.engine.system.environment import Network, Stream
from tidelog.testing import World
from tidelog.testing.network import CONNECT_S_MAX
from tidelog.testing.node import Node
from tidelog.testing.streams import BACKLOG_MAX, WINDOW_BYTES
from tidelog.testing.ways import LATE_S_MAX

PORT = 7000
SEEDS = range(5)


class Pair:
    """Two hosts, and a connection between them; ``far`` may be killed and come again."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.network = self.world.network
        self.nodes = [self.world.add(name, self._idle) for name in ("near", "far")]

    def run(self, body: Callable[[Pair], Awaitable[None]]) -> None:
        async def scenario() -> None:
            for node in self.nodes:
                node.start()
            await body(self)

        self.world.run(scenario)

    def network_of(self, name: str) -> Network:
        """The network as the present process of a node sees it."""
        return self.world.nodes[name].environment.network

    async def connected(self) -> tuple[Stream, Stream]:
        listener = await self.network_of("far").listen(("far", PORT))
        near = await self.network_of("near").connect(("far", PORT))
        far = await listener.accept()
        listener.close()
        return near, far

    async def _idle(self, _node: Node) -> None:
        await trio.sleep_forever()


async def hears_nothing(stream: Stream, seconds: float = 50) -> bool:
    with trio.move_on_after(seconds) as waiting:
        await stream.receive()
    return waiting.cancelled_caught


@pytest.fixture(params=SEEDS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def test_a_way_is_cut_in_one_direction_and_holds_up_what_was_sent(pair: Pair) -> None:
    async def body(pair: Pair) -> None:
        near, far = await pair.connected()
        pair.network.cut("near", "far")
        assert pair.network.cuts == [("near", "far")]
        await near.send(b"to far")
        await far.send(b"to near")
        assert (await near.receive())[:1] == b"t"
        assert await hears_nothing(far)
        pair.network.heal()
        assert pair.network.cuts == []
        assert (await far.receive())[:1] == b"t"

    pair.run(body)


def test_news_of_room_has_to_get_through_as_well(pair: Pair) -> None:
    async def body(pair: Pair) -> None:
        near, far = await pair.connected()
        pair.network.cut("far", "near")
        with trio.move_on_after(50) as waiting:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.send, b"x" * (WINDOW_BYTES + 1))
                read = 0
                while read < WINDOW_BYTES:
                    read += len(await far.receive())
                await far.receive()
        assert waiting.cancelled_caught

    pair.run(body)


def test_order_holds_over_a_cut(pair: Pair) -> None:
    async def body(pair: Pair) -> None:
        near, far = await pair.connected()
        rng = pair.world.random("cuts")
        sent = b"".join(b"%d " % number for number in range(3000))

        async def send() -> None:
            for start in range(0, len(sent), 500):
                await near.send(sent[start : start + 500])
                await trio.sleep(rng.uniform(0, 0.01))
            near.close()

        async def cut() -> None:
            while True:
                await trio.sleep(rng.uniform(0, 0.02))
                pair.network.cut("near", "far")
                await trio.sleep(rng.uniform(0, 0.02))
                pair.network.heal()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            nursery.start_soon(send)
            read = b""
            while piece := await far.receive():
                read += piece
            nursery.cancel_scope.cancel()
        assert read == sent

    pair.run(body)


def test_streams_are_cut_into_pieces_and_pieces_joined() -> None:
    sizes = set()

    async def body(pair: Pair) -> None:
        near, far = await pair.connected()
        for _ in range(40):
            await near.send(b"x" * 100)
        near.close()
        while piece := await far.receive():
            sizes.add(len(piece))

    for seed in SEEDS:
        Pair(seed).run(body)
    assert min(sizes) < 100 < max(sizes)
    assert any(size > 100 and size % 100 for size in sizes)


def test_connections_overtake_each_other_and_some_are_late() -> None:
    delays = []

    async def body(pair: Pair) -> None:
        near, far = await pair.connected()
        for _ in range(60):
            begun = pair.world.now()
            await near.send(b"x")
            await far.receive()
            delays.append(pair.world.now() - begun)

    for seed in SEEDS:
        Pair(seed).run(body)
    assert 0 < min(delays) < 0.001
    assert 0.01 < max(delays) < LATE_S_MAX + 0.01


def test_both_ends_hear_of_a_reset(pair: Pair) -> None:
    async def body(pair: Pair) -> None:
        streams = await pair.connected()
        pair.network.reset("far", "near")
        for stream in streams:
            with pytest.raises(ConnectionResetError):
                await stream.receive()
            with pytest.raises(ConnectionResetError):
                await stream.send(b"x")

    pair.run(body)


def test_a_reset_does_not_pass_a_cut(pair: Pair) -> None:
    async def body(pair: Pair) -> None:
        near, far = await pair.connected()
        pair.network.cut("far", "near")
        pair.network.reset("near", "far")
        with pytest.raises(ConnectionResetError):
            await far.receive()
        assert await hears_nothing(near)
        pair.network.heal()
        with pytest.raises(ConnectionResetError):
            await near.receive()

    pair.run(body)


def test_a_half_open_connection_is_found_by_sending(pair: Pair) -> None:
    async def body(pair: Pair) -> None:
        near, far = await pair.connected()
        pair.network.half_open("far", "near")
        with pytest.raises(ConnectionResetError):
            await far.receive()
        assert await hears_nothing(near)
        await near.send(b"is anybody there?")
        with pytest.raises(ConnectionResetError):
            await near.receive()

    pair.run(body)


def test_a_power_cut_is_silent_and_found_when_the_machine_is_back(pair: Pair) -> None:
    async def body(pair: Pair) -> None:
        near, _ = await pair.connected()
        await pair.network_of("far").listen(("far", PORT))
        pair.nodes[1].kill("lost")
        await near.send(b"lost")
        assert await hears_nothing(near)
        with trio.move_on_after(CONNECT_S_MAX - 1) as waiting:
            await pair.network_of("near").connect(("far", PORT))
        assert waiting.cancelled_caught
        with pytest.raises(TimeoutError):
            await pair.network_of("near").connect(("far", PORT))
        await pair.nodes[1].restart()
        await near.send(b"is anybody there?")
        with pytest.raises(ConnectionResetError):
            await near.receive()
        with pytest.raises(ConnectionRefusedError):
            await pair.network_of("near").connect(("far", PORT))

    pair.run(body)


def test_the_connections_of_a_killed_process_end_in_one_of_two_ways() -> None:
    ends = set()

    async def body(pair: Pair) -> None:
        near, far = await pair.connected()
        await far.send(b"last words")
        pair.nodes[1].kill("kept")
        read = b""
        try:
            while piece := await near.receive():
                read += piece
            ends.add("end")
            assert read == b"last words"
        except ConnectionResetError:
            ends.add("reset")

    for seed in SEEDS:
        Pair(seed).run(body)
    assert ends == {"end", "reset"}


def test_a_connection_that_was_given_up_is_reset_where_it_arrived(pair: Pair) -> None:
    async def body(pair: Pair) -> None:
        listener = await pair.network_of("far").listen(("far", PORT))
        pair.network.cut("far", "near")
        with trio.move_on_after(5) as waiting:
            await pair.network_of("near").connect(("far", PORT))
        assert waiting.cancelled_caught
        far = await listener.accept()
        with pytest.raises(ConnectionResetError):
            await far.receive()
        pair.network.heal()
        near = await pair.network_of("near").connect(("far", PORT))
        far = await listener.accept()
        await near.send(b"x")
        assert await far.receive() == b"x"

    pair.run(body)


def test_more_connections_than_a_listener_keeps_hear_nothing() -> None:
    async def body(pair: Pair) -> None:
        await pair.network_of("far").listen(("far", PORT))
        connected = 0

        async def connect() -> None:
            nonlocal connected
            await pair.network_of("near").connect(("far", PORT))
            connected += 1

        with trio.move_on_after(20) as waiting:
            async with trio.open_nursery() as nursery:
                for _ in range(BACKLOG_MAX + 3):
                    nursery.start_soon(connect)
        assert waiting.cancelled_caught
        assert connected == BACKLOG_MAX

    Pair(1).run(body)


def test_the_process_that_was_killed_can_use_the_network_no_more(pair: Pair) -> None:
    async def body(pair: Pair) -> None:
        network = pair.network_of("far")
        pair.nodes[1].kill()
        for call in (network.listen, network.connect):
            with pytest.raises(OSError, match="is gone"):
                await call(("far", PORT))

    pair.run(body)
