"""Two transports over real sockets, and what those are set to."""

from __future__ import annotations

import socket

import pytest
import trio

from support.peers import CLUSTER, Owner, framed, id_of, introduction, ping, read_to_end, stored
from tidelog.engine.net.transport import Transport, UnwelcomeError
from tidelog.engine.system.environment import Address
from tidelog.engine.system.production import production
from tidelog.engine.system.sockets import SILENCE_S_MAX, RealStream


class Ends(Owner):
    """What one transport has told, for tasks that wait until it has."""

    def __init__(self, name: str, *, cluster: bytes = CLUSTER) -> None:
        super().__init__()
        self.transport = Transport(
            production(),
            self,
            member=id_of(name),
            boot=1,
            nonce=b"nonce of " + name.encode(),
            cluster=cluster,
            standing=lambda _member, _boot, _nonce: None,
        )

    async def wait(self, event: str, name: str, channel: str, times: int = 1) -> None:
        """Return once something was told so often."""
        with trio.fail_after(30):
            while len(self.of(event, name, channel)) < times:
                await trio.sleep(0)


def test_two_members_talk_over_loopback() -> None:
    async def body() -> None:
        a, b = Ends("a"), Ends("b")
        async with trio.open_nursery() as nursery:
            places: list[Address] = []
            for end in (a, b):
                await nursery.start(end.transport.run)
                places.append(await end.transport.listen(("127.0.0.1", 0)))
            a.transport.meet(id_of("b"), places[1])
            b.transport.meet(id_of("a"), places[0])
            await a.wait("up", "b", "control")
            await a.wait("up", "b", "data")
            await b.wait("up", "a", "data")
            for number in range(50):
                assert a.transport.send(id_of("b"), "control", ping(number)) == "queued"
                assert a.transport.send(id_of("b"), "data", stored(number, size=30_000)) == "queued"
                assert b.transport.send(id_of("a"), "data", stored(number)) == "queued"
            await b.wait("arrived", "<a", "control", 50)
            await b.wait("arrived", "<a", "data", 50)
            await a.wait("arrived", "<b", "data", 50)
            assert b.numbers("<a", "control") == list(range(50))
            assert b.numbers("<a", "data") == list(range(50))
            assert a.numbers("<b", "data") == list(range(50))
            found = await a.transport.ask(places[1])
            assert (found.member, found.cluster, found.boot) == (id_of("b"), CLUSTER, 1)
            b.transport._accepted[id_of("a"), "data"].end()
            await a.wait("down", "b", "data")
            await a.wait("up", "b", "data", 2)
            a.transport.send(id_of("b"), "data", stored(50))
            await b.wait("arrived", "<a", "data", 51)
            nursery.cancel_scope.cancel()

    trio.run(body)


def test_bad_peers_are_dropped_over_loopback() -> None:
    async def body() -> None:
        b = Ends("b")
        async with trio.open_nursery() as nursery:
            await nursery.start(b.transport.run)
            place = await b.transport.listen(("127.0.0.1", 0))
            network = production().network
            for said in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70_000, framed(ping(1))):
                stream = await network.connect(place)
                await stream.send(said)
                assert await read_to_end(stream) == b""
                stream.close()
            stream = await network.connect(place)
            await stream.send(framed(introduction().message()))
            await b.wait("up", "<x", "control")
            await stream.send(framed(ping(2)))
            await b.wait("arrived", "<x", "control")
            await stream.send(b"\x00\x00\x00\x01\xc1")
            await b.wait("down", "<x", "control")
            stream.close()
            other = Ends("c", cluster=b"another cluster!")
            with pytest.raises(UnwelcomeError, match="this is cluster"):
                await other.transport.ask(place)
            nursery.cancel_scope.cancel()

    trio.run(body)


def test_a_socket_sends_at_once_and_does_not_wait_for_a_machine_that_is_gone() -> None:
    async def body() -> None:
        network = production().network
        listener = await network.listen(("127.0.0.1", 0))
        stream = await network.connect(listener.address)
        accepted = await listener.accept()
        for end in (stream, accepted):
            assert isinstance(end, RealStream)
            found = end._stream.getsockopt
            assert found(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert found(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert found(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == SILENCE_S_MAX * 1000
            end.close()
        listener.close()

    trio.run(body)
