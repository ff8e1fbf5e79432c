"""Links between real processes that a test can cut: a proxy of TCP in front of each member.

Others know a member by the address of its proxy.  The first frame of a connection says who calls,
so each connection is a link from one host to another.  Hosts are members, by name, and two that
the lines of clients share in turn: ``c0`` and ``c1``.

Invariants:

- What is sent over a link that is cut stays where it is, in order.  When the cut ends it arrives
  late, or the connection breaks and it never does.
- A connection can be made only if both ways between the two hosts are open.
- A member that does not run has no proxy either: connections to it are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import trio

from tidelog.engine.net.frames import FrameDecoder, FrameError
from tidelog.engine.net.handshake import Refusal, heard

HOST = "127.0.0.1"
CLIENTS = ("c0", "c1")
PIECE_BYTES = 65_536


class Links:
    """The proxies of all members, and what is cut between whom."""

    def __init__(self, nursery: trio.Nursery, members: Mapping[bytes, str]) -> None:
        self._nursery = nursery
        self.members = members
        self._cut: set[tuple[str, str]] = set()
        self._healed = trio.Event()
        self._listening: dict[str, trio.SocketListener] = {}
        self._lines: dict[bytes, str] = {}
        self._open: dict[trio.CancelScope, tuple[str, str]] = {}
        """Connections, by who called whom."""

    async def listen(self, name: str, port: int, behind: int) -> None:
        """Accept connections to a member at a port; it listens at another one behind."""
        (listener,) = await trio.open_tcp_listeners(port, host=HOST)
        self._listening[name] = listener

        async def serve() -> None:
            with suppress(trio.ClosedResourceError):  # by `refuse`
                while True:
                    self._nursery.start_soon(self._serve, name, behind, await listener.accept())

        self._nursery.start_soon(serve)

    def refuse(self, name: str) -> None:
        """Accept no more connections to a member, which has ended."""
        self._listening.pop(name).socket.close()

    def cut(self, ways: Iterable[tuple[str, str]]) -> None:
        """Let nothing pass from the first host of each pair to the second one."""
        self._cut.update(ways)

    def heal(self, *, late: bool) -> None:
        """End all cuts; what was sent meanwhile arrives late, or its connections break."""
        cut, self._cut = self._cut, set()
        self._healed.set()
        self._healed = trio.Event()
        if not late:
            for scope, (src, dst) in list(self._open.items()):
                if (src, dst) in cut or (dst, src) in cut:
                    scope.cancel()

    def reset(self, name: str) -> None:
        """Break all connections of a host."""
        for scope, ends in list(self._open.items()):
            if name in ends:
                scope.cancel()

    async def _serve(self, dst: str, behind: int, caller: trio.SocketStream) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError, FrameError):
            async with caller:
                first = await _first_frame(caller)
                await self._pass(self._host(first), dst, behind, caller, first)

    def _host(self, first: bytes) -> str:
        decoder = FrameDecoder()
        (message,) = decoder.feed(first)
        introduction = heard(message)
        assert not isinstance(introduction, Refusal)
        line = introduction.member
        turn = CLIENTS[len(self._lines) % len(CLIENTS)]
        return self.members.get(line) or self._lines.setdefault(line, turn)

    async def _pass(
        self, src: str, dst: str, behind: int, caller: trio.SocketStream, first: bytes
    ) -> None:
        with trio.CancelScope() as scope:
            self._open[scope] = src, dst
            try:
                await self._passable((src, dst), (dst, src))
                async with await trio.open_tcp_stream(HOST, behind) as callee:
                    await callee.send_all(first)
                    async with trio.open_nursery() as both:
                        both.start_soon(self._pump, (src, dst), caller, callee, both.cancel_scope)
                        both.start_soon(self._pump, (dst, src), callee, caller, both.cancel_scope)
            finally:
                del self._open[scope]

    async def _pump(
        self,
        way: tuple[str, str],
        source: trio.SocketStream,
        target: trio.SocketStream,
        ending: trio.CancelScope,
    ) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(PIECE_BYTES):
                await self._passable(way)
                await target.send_all(data)
        await self._passable(way)  # nor does the other end hear that this one is closed
        ending.cancel()

    async def _passable(self, *ways: tuple[str, str]) -> None:
        while not self._cut.isdisjoint(ways):
            await self._healed.wait()


async def _first_frame(stream: trio.SocketStream) -> bytes:
    """Return the bytes of the first frame; ``FrameError`` if there is none."""
    decoder, found = FrameDecoder(), bytearray()
    while True:
        data = await stream.receive_some(decoder.missing)
        if not data:
            raise FrameError("closed before an introduction")
        found += data
        if decoder.feed(data):
            return bytes(found)
