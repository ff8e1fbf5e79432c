"""Connections of a simulated network: two ends each, and what arrives at them.

Invariants:

- An end is touched by its own process, and by what arrives; nothing passes between two ends but
  over a lane of ``ways``.
- At most ``WINDOW_BYTES`` of one direction are on their way or unread: who sends more waits, and
  the news that there is room again has to arrive as well.
- What arrives at an end that is over is answered by a reset; at a host that is down by nothing.
- Streams are cut into pieces, and pieces joined, as the seed has it.

Left out: who may connect to whom, and faults (``network``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import trio
from crc32c import crc32c

from ..engine.system.environment import Address
from .trace import Trace
from .ways import Lane, Ways

WINDOW_BYTES = 65_536
"""Bytes of one direction that may be on their way or unread."""
BACKLOG_MAX = 128
"""Connections that wait to be accepted; further ones hear nothing."""

OPEN, CLOSED, RESET, GONE = "open", "closed", "reset", "gone"
"""States of an end; all but ``open`` are for good.  ``gone``: with the process that had it."""

EXPECTED = frozenset({"data", "connected"})
"""What is answered by a reset if nobody expects it."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Host:
    """One machine on the network."""

    name: str
    up: bool = False
    listeners: dict[int, SimulatedListener] = field(default_factory=dict)
    streams: dict[SimulatedStream, None] = field(default_factory=dict)
    """Ends that are open here, oldest first."""


class Changes:
    """Lets a task wait until something has changed; whoever waits looks again then."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def tell(self) -> None:
        """Wake all that wait."""
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._event.wait()


class Turn:
    """Held by the one task that may send, or receive."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._taken = False

    def __enter__(self) -> None:
        """Take it; ``trio.BusyResourceError`` if another task has it."""
        if self._taken:
            raise trio.BusyResourceError(f"another task is {self._what} this stream")
        self._taken = True

    def __exit__(self, *_exc: object) -> None:
        """Give it back."""
        self._taken = False


class SimulatedStream:
    """One end of a connection."""

    other: SimulatedStream
    """The other end, to which things are sent and which is never looked at."""

    def __init__(
        self, ways: Ways, trace: Trace, host: Host, label: str, here: Address, peer: Address
    ) -> None:
        self.state = OPEN
        self.connected = False
        """Whether the other end is known to be there."""
        self.here = here
        self.peer = peer
        """The address of the other end."""
        self._ways = ways
        self._trace = trace
        self._host = host
        self._label = label
        self._lane = Lane()
        self._arrived = bytearray()
        self._peer_closed = False
        self._room = WINDOW_BYTES
        self._changes = Changes()
        self._sending, self._receiving = Turn("sending on"), Turn("receiving from")

    def __repr__(self) -> str:
        return f"<SimulatedStream {self._label} {self.state} to {self.peer}>"

    # ---------------------------------------------------------------- for the process

    async def send(self, data: bytes) -> None:
        """Send all of ``data``; waits while the peer does not keep up."""
        left = memoryview(bytes(data))
        with self._sending:
            await trio.lowlevel.checkpoint()
            self._check()
            while left:
                if not self._room:
                    await self._changes.wait()
                    self._check()
                    continue
                piece = bytes(left[: self._piece(min(self._room, len(left)), 0.3)])
                left = left[len(piece) :]
                self._send_piece(piece)

    def send_nowait(self, _data: bytes) -> int:
        """Take nothing at once: here everything takes its time."""
        return 0

    async def receive(self, bytes_max: int = 65_536) -> bytes:
        """Wait for some bytes; empty if the peer has closed its end."""
        if bytes_max < 1:
            raise ValueError("bytes_max must be at least 1")
        with self._receiving:
            await trio.lowlevel.checkpoint()
            while True:
                self._check()
                if self._arrived:
                    return self._read(self._piece(min(bytes_max, len(self._arrived)), 0.2))
                if self._peer_closed:
                    return b""
                await self._changes.wait()

    def close(self) -> None:
        """Close this end, without waiting; closing twice is fine."""
        if self.state == OPEN:
            self.tell_end()
        if self.state != GONE:
            self._be(CLOSED)

    async def wait_connected(self) -> None:
        """Wait for the answer to the call of ``connect``."""
        while not self.connected:
            if self.state == RESET:
                raise ConnectionRefusedError(f"nobody listens at {self.peer}")
            self._check()
            await self._changes.wait()

    # ---------------------------------------------------------------- for the network

    def tell(self, what: str, action: Callable[[SimulatedStream], None], data: bytes = b"") -> None:
        """Send something to the other end."""
        self._ways.carry(
            (self.here[0], self.peer[0]),
            self._lane,
            lambda: self.other.arrive(what, action, data),
        )

    def arrive(
        self, what: str, action: Callable[[SimulatedStream], None], data: bytes = b""
    ) -> None:
        """Take what the other end sent."""
        if not self._host.up:
            return
        self._trace.note(what, self._label, len(data), crc32c(data))
        if self.state == OPEN:
            action(self)
        elif what in EXPECTED:
            self.tell("reset", SimulatedStream.be_reset)

    def tell_end(self) -> None:
        """Send what a system sends for an end that is closed."""
        if self._arrived or not self.connected:
            self.tell("reset", SimulatedStream.be_reset)
        else:
            self.tell("end", SimulatedStream.end)

    def take(self, piece: bytes) -> None:
        """Take bytes that arrived."""
        self._arrived += piece
        self._changes.tell()

    def end(self) -> None:
        """Know that the peer has closed its end."""
        self._peer_closed = True
        self._changes.tell()

    def be_reset(self) -> None:
        """Know that the connection is no more; what was not read is lost."""
        if self.state == OPEN:
            self._be(RESET)

    def be_connected(self) -> None:
        """Know that the other end is there."""
        self.connected = True
        self._changes.tell()

    def go(self) -> None:
        """Be over, without a word, as the process that had this end."""
        self._be(GONE)

    # ---------------------------------------------------------------- inside

    def _be(self, state: str) -> None:
        self.state = state
        self._arrived.clear()
        self._host.streams.pop(self, None)
        self._changes.tell()

    def _check(self) -> None:
        if self.state == CLOSED:
            raise trio.ClosedResourceError("this stream was closed here")
        if self.state != OPEN:
            raise ConnectionResetError(f"the connection to {self.peer} was reset")

    def _send_piece(self, piece: bytes) -> None:
        self._room -= len(piece)
        self.tell("data", lambda end: end.take(piece), piece)

    def _piece(self, size: int, chance: float) -> int:
        rng = self._ways.rng
        return rng.randint(1, size) if rng.random() < chance else size

    def _read(self, size: int) -> bytes:
        piece = bytes(self._arrived[:size])
        del self._arrived[:size]
        self.tell("room", lambda end: end.make_room(size))
        return piece

    def make_room(self, size: int) -> None:
        """Know that the peer has read so many bytes."""
        self._room += size
        self._changes.tell()


class SimulatedListener:
    """A port at which connections arrive."""

    def __init__(self, host: Host, port: int) -> None:
        self.address: Address = (host.name, port)
        """Where it listens."""
        self._host = host
        self._waiting: deque[SimulatedStream] = deque()
        self._changes = Changes()
        self._closed = False
        host.listeners[port] = self

    def __repr__(self) -> str:
        return f"<SimulatedListener {self.address}>"

    async def accept(self) -> SimulatedStream:
        """Wait for the next connection."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise trio.ClosedResourceError("this listener was closed")
            if self._waiting:
                return self._waiting.popleft()
            await self._changes.wait()

    def close(self) -> None:
        """Take no more connections; closing twice is fine."""
        if self._closed:
            return
        self.go()
        for stream in self._waiting:
            if stream.state == OPEN:
                stream.tell("reset", SimulatedStream.be_reset)
            stream.go()

    def go(self) -> None:
        """Be over, without a word, as the process that had this port."""
        self._closed = True
        self._host.listeners.pop(self.address[1], None)
        self._changes.tell()

    def offer(self, stream: SimulatedStream) -> bool:
        """Take a connection that arrived, and tell whether there was room for it."""
        if len(self._waiting) == BACKLOG_MAX:
            return False
        self._host.streams[stream] = None
        stream.connected = True
        self._waiting.append(stream)
        self._changes.tell()
        return True
