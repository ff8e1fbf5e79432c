"""Messages between members that wait: a connection stands still from one of a kind on.

What is behind a held message waits, too, as on a real connection, whose order never changes.

Left out: loss and cuts (``network``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from ..engine.net.frames import KNOWN as KNOWN_LIMITS, LENGTH_BYTES, FrameDecoder, FrameError
from ..engine.net.kinds import BY_NUMBER
from ..engine.system.environment import Address, Listener, Network, Stream


class Holds:
    """What is held between which hosts, as far as it is not released."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str], trio.Event] = {}

    def hold(self, kind: str, source: str, target: str) -> None:
        """Hold messages of a kind from one host to another."""
        self._held.setdefault((kind, source, target), trio.Event())

    def release(self, kind: str, source: str, target: str) -> None:
        """Let them go."""
        held = self._held.pop((kind, source, target), None)
        if held is not None:
            held.set()

    def release_all(self) -> None:
        """Let go all that is held."""
        for key in list(self._held):
            self.release(*key)

    async def passed(self, frame: bytes, source: str, target: str) -> None:
        """Wait until nothing in a frame is held."""
        while (event := self._reason(frame, source, target)) is not None:
            await event.wait()

    def _reason(self, frame: bytes, source: str, target: str) -> trio.Event | None:
        if not any(key[1:] == (source, target) for key in self._held):
            return None
        try:
            messages = FrameDecoder(KNOWN_LIMITS).feed(frame)
        except FrameError:
            return None
        for message in messages:
            kind = BY_NUMBER[message[0]]
            event = self._held.get((kind.name, source, target))
            if event is not None:
                return event
        return None


class HeldNetwork:
    """A network whose connections stand still where a message of theirs is held."""

    def __init__(self, network: Network, host: str, holds: Holds) -> None:
        self._network = network
        self._host = host
        self._holds = holds

    async def listen(self, address: Address) -> Listener:
        """Listen as the network beneath does."""
        return await self._network.listen(address)

    async def connect(self, address: Address) -> Stream:
        """Connect; what is sent may be held."""
        stream = await self._network.connect(address)
        return _HeldStream(stream, lambda data: self._holds.passed(data, self._host, address[0]))


class _HeldStream:
    def __init__(self, stream: Stream, passed: Callable[[bytes], Any]) -> None:
        self._stream = stream
        self._passed = passed

    @property
    def peer(self) -> Address:
        return self._stream.peer

    async def send(self, data: bytes) -> None:
        if len(data) > LENGTH_BYTES:
            await self._passed(data)
        await self._stream.send(data)

    def send_nowait(self, data: bytes) -> int:
        return 0  # it may have to wait

    async def receive(self, bytes_max: int = 65_536) -> bytes:
        return await self._stream.receive(bytes_max)

    def close(self) -> None:
        self._stream.close()
