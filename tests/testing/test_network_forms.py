"""The real network and the simulated one pass the same tests."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import pytest
import trio
import trio.testing

from tidelog.engine.system.environment import Listener, Network, Stream
from tidelog.engine.system.production import production
from tidelog.testing import World
from tidelog.testing.node import Node

SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Two processes, and the networks that they see."""

    near: Network
    far: Network
    host: str
    """Where ``far`` may listen."""
    flood_bytes: int
    """More than is ever on its way."""

    async def listen(self, port: int = 0) -> Listener:
        return await self.far.listen((self.host, port))

    async def pair(self) -> tuple[Stream, Stream]:
        """Both ends of a new connection."""
        listener = await self.listen()
        near = await self.near.connect(listener.address)
        far = await listener.accept()
        listener.close()
        return near, far


Body = Callable[[Form], Awaitable[None]]
Runner = Callable[[Body], None]


def run_really(body: Body) -> None:
    network = production().network
    form = Form(near=network, far=network, host="127.0.0.1", flood_bytes=64 << 20)
    trio.run(body, form)


def run_simulated(seed: int, body: Body) -> None:
    async def idle(_node: Node) -> None:
        await trio.sleep_forever()

    world = World(seed)
    near, far = world.add("near", idle), world.add("far", idle)

    async def scenario() -> None:
        near.start()
        far.start()
        networks = near.environment.network, far.environment.network
        await body(Form(near=networks[0], far=networks[1], host="far", flood_bytes=1 << 20))

    world.run(scenario)


@pytest.fixture(params=["real", *SEEDS])
def run(request: pytest.FixtureRequest) -> Runner:
    return run_really if request.param == "real" else partial(run_simulated, request.param)


async def read_all(stream: Stream) -> bytes:
    """What arrives until the peer closes its end."""
    found = bytearray()
    while piece := await stream.receive():
        found += piece
    return bytes(found)


async def read_exactly(stream: Stream, size: int) -> bytes:
    """So many bytes."""
    found = bytearray()
    while len(found) < size:
        piece = await stream.receive(size - len(found))
        assert piece
        found += piece
    return bytes(found)


async def send_for_ever(stream: Stream) -> None:
    while True:
        await stream.send(b"x" * 1000)


def test_bytes_arrive_whole_and_in_order_both_ways_at_once(run: Runner) -> None:
    async def body(form: Form) -> None:
        streams = await form.pair()
        rng = random.Random(5)
        messages = [[rng.randbytes(rng.choice([1, 50, 9000])) for _ in range(60)] for _ in "ab"]
        read: dict[int, bytes] = {}

        async def send(end: int) -> None:
            for message in messages[end]:
                await streams[end].send(message)
            await streams[end].send(b"")

        async def receive(end: int) -> None:
            size = sum(map(len, messages[1 - end]))
            read[end] = await read_exactly(streams[end], size)

        async with trio.open_nursery() as nursery:
            for end in (0, 1):
                nursery.start_soon(send, end)
                nursery.start_soon(receive, end)
        assert [read[1], read[0]] == [b"".join(sent) for sent in messages]
        for stream in streams:
            stream.close()

    run(body)


def test_each_end_knows_the_address_of_the_other(run: Runner) -> None:
    async def body(form: Form) -> None:
        listener = await form.listen()
        host, port = listener.address
        assert host == form.host
        assert port > 0
        near, other = [await form.near.connect(listener.address) for _ in range(2)]
        far, far_too = await listener.accept(), await listener.accept()
        assert near.peer == (host, port)
        assert far.peer != far_too.peer
        for closing in (near, other, far, far_too, listener):
            closing.close()

    run(body)


def test_no_more_is_received_than_was_asked_for(run: Runner) -> None:
    async def body(form: Form) -> None:
        near, far = await form.pair()
        await near.send(b"0123456789")
        near.close()
        read = b""
        while piece := await far.receive(3):
            assert len(piece) <= 3
            read += piece
        assert read == b"0123456789"
        with pytest.raises(ValueError, match="must be"):
            await far.receive(0)
        far.close()

    run(body)


def test_what_was_sent_before_the_close_arrives_and_then_the_end_again_and_again(
    run: Runner,
) -> None:
    async def body(form: Form) -> None:
        near, far = await form.pair()
        await near.send(b"x" * 10_000)
        near.close()
        near.close()
        assert await read_all(far) == b"x" * 10_000
        assert await far.receive() == b""
        far.close()

    run(body)


def test_an_end_may_be_written_to_though_its_peer_sent_all_and_will_read(run: Runner) -> None:
    async def body(form: Form) -> None:
        near, far = await form.pair()
        await near.send(b"question")
        assert await read_exactly(far, 8) == b"question"
        await far.send(b"answer")
        far.close()
        assert await read_all(near) == b"answer"
        near.close()

    run(body)


def test_where_nobody_listens_the_connection_is_refused(run: Runner) -> None:
    async def body(form: Form) -> None:
        listener = await form.listen()
        listener.close()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await form.near.connect(listener.address)
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()

    run(body)


def test_a_listener_that_is_closed_lets_go_of_who_waits_at_it(run: Runner) -> None:
    async def body(form: Form) -> None:
        listener = await form.listen()
        waiting = await form.near.connect(listener.address)
        async with trio.open_nursery() as nursery:

            async def accept() -> None:
                (await listener.accept()).close()
                with pytest.raises(trio.ClosedResourceError):
                    await listener.accept()

            nursery.start_soon(accept)
            assert await waiting.receive() == b""
            listener.close()
        waiting.close()

        listener = await form.listen()
        waiting = await form.near.connect(listener.address)
        listener.close()
        with pytest.raises(ConnectionError):
            await waiting.receive()
        waiting.close()

    run(body)


def test_a_port_is_listened_at_once_only_and_again_when_it_is_free(run: Runner) -> None:
    async def body(form: Form) -> None:
        listener = await form.listen()
        with pytest.raises(OSError) as caught:  # noqa: PT011  # its number says which
            await form.listen(listener.address[1])
        assert caught.value.errno == errno.EADDRINUSE
        listener.close()
        again = await form.listen(listener.address[1])
        assert again.address == listener.address
        again.close()

    run(body)


def test_an_address_of_elsewhere_is_not_listened_at_and_an_unknown_name_is_an_error(
    run: Runner,
) -> None:
    async def body(form: Form) -> None:
        with pytest.raises(OSError) as caught:  # noqa: PT011  # its number says which
            await form.far.listen(("192.0.2.1", 0))
        assert caught.value.errno == errno.EADDRNOTAVAIL
        with pytest.raises(socket.gaierror):
            await form.near.connect(("host.invalid", 1))

    run(body)


def test_sends_to_a_peer_that_has_gone_fail_in_the_end(run: Runner) -> None:
    async def body(form: Form) -> None:
        near, far = await form.pair()
        far.close()
        with pytest.raises(ConnectionError):
            await send_for_ever(near)
        near.close()

    run(body)


def test_a_close_with_something_unread_resets_the_connection(run: Runner) -> None:
    async def body(form: Form) -> None:
        near, far = await form.pair()
        await near.send(b"xy")
        assert await far.receive(1) == b"x"
        await trio.testing.wait_all_tasks_blocked()
        far.close()
        with pytest.raises(ConnectionResetError):
            await read_all(near)
        near.close()

    run(body)


def test_a_stream_that_is_closed_here_says_so_to_who_waits_and_who_comes(run: Runner) -> None:
    async def body(form: Form) -> None:
        near, far = await form.pair()
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await near.receive()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            near.close()
        with pytest.raises(trio.ClosedResourceError):
            await near.receive()
        with pytest.raises(trio.ClosedResourceError):
            await near.send(b"x")
        far.close()

    run(body)


def test_who_sends_waits_until_the_peer_reads(run: Runner) -> None:
    async def body(form: Form) -> None:
        near, far = await form.pair()
        sent = 0

        async def send() -> None:
            nonlocal sent
            piece = b"x" * 65_536
            while sent < form.flood_bytes:
                await near.send(piece)
                sent += len(piece)
            near.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            assert sent < form.flood_bytes
            read = 0
            while piece := await far.receive(1 << 20):
                read += len(piece)
        assert read == sent == form.flood_bytes
        far.close()

    run(body)


def test_one_task_sends_and_one_receives(run: Runner) -> None:
    async def body(form: Form) -> None:
        near, far = await form.pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.receive)
            nursery.start_soon(far.send, b"x" * form.flood_bytes)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await far.send(b"y")
            with pytest.raises(trio.BusyResourceError):
                await far.receive()
            nursery.cancel_scope.cancel()
        for stream in (near, far):
            stream.close()

    run(body)


def test_a_receive_that_is_cancelled_takes_nothing(run: Runner) -> None:
    async def body(form: Form) -> None:
        near, far = await form.pair()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(far.receive)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        await near.send(b"after")
        with trio.CancelScope() as scope:
            scope.cancel()
            await far.receive()
        assert await read_exactly(far, 5) == b"after"
        near.close()
        far.close()

    run(body)


def test_a_connect_that_is_cancelled_leaves_nothing_to_serve(run: Runner) -> None:
    async def body(form: Form) -> None:
        listener = await form.listen()
        with trio.CancelScope() as scope:
            scope.cancel()
            await form.near.connect(listener.address)
        assert scope.cancelled_caught
        near = await form.near.connect(listener.address)
        far = await listener.accept()
        await near.send(b"the only one")
        near.close()
        assert await read_all(far) == b"the only one"
        far.close()
        listener.close()

    run(body)
