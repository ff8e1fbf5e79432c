"""One connection behind its handshake: a task that writes, one that reads, and what waits.

Invariants:

- ``send`` neither waits nor fails for what the peer does.  It writes at once if nothing waits, and
  no request of the peer is open, whose answer could go into the same frame; while messages are
  gathered, at the end of that.  Else one task writes: at each wake-up it takes all that is there
  as one frame.
- What arrives is checked and handed on in order, as many messages at once as one read completed.
- Whatever the peer does, or leaves, ends this connection only; ``reason`` says what it was.
- A frame that a client has begun goes on within ``RECEIVE_S_MAX``, or the connection ends.
- A client is never told ``full``: while it takes no answers none of its requests is taken.
- Its requests are handed on in turns, however many have arrived.

Left out: who the peer may be (``handshake``), and connecting once more (``transport``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal

import trio

from ..system.environment import Stream
from .frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from .gathering import Gathering
from .handshake import Introduction, Refusal, heard
from .kinds import BY_NAME, CLIENT, DATA, checked_message
from .outbox import Outbox
from .turns import RequestTurns

RECEIVE_BYTES, LARGE_BYTES = 64 << 10, 512 << 10
"""Bytes that are received at once: mostly, and of a frame that is longer."""
SEND_S_MAX = 30.0
"""Seconds in which a peer has to take one frame."""
RECEIVE_S_MAX = 30.0
"""Seconds in which a client has to bring more of a frame that it has begun."""

Sent = Literal["queued", "full", "down"]
"""What became of a message: on its way, refused until there is room, or dropped."""

KNOWN_DECIDED = BY_NAME["known"]
REQUEST = BY_NAME["request"].number
HANDSHAKE_NUMBERS = frozenset({BY_NAME["introduction"].number, BY_NAME["refusal"].number})
OWN_NUMBERS = HANDSHAKE_NUMBERS | {KNOWN_DECIDED.number}
"""Of messages that are for the connection itself."""


class Connection:
    """One connection to a member, a client or a tool."""

    def __init__(
        self,
        stream: Stream,
        decoder: FrameDecoder,
        mine: Introduction,
        other: Introduction,
        *,
        outgoing: bool,
        outbox_bytes: int,
        gathering: Gathering,
        turns: RequestTurns,
    ) -> None:
        self.other = other
        """Who the other end is, as it said."""
        self.outgoing = outgoing
        """Whether it was made here."""
        self.channel = other.channel
        self.version = min(mine.version_max, other.version_max)
        """The version of the wire that both speak."""
        self.decided = other.decided
        """How many decisions the other end knows."""
        self.reason: Exception | None = None
        """Why it ended; None as long as it is up, and if the other end closed it."""
        self.up = True
        self._stream = stream
        self._decoder = decoder
        self._told = mine.decided
        self._outbox = Outbox(outbox_bytes)
        self._gathering = gathering
        self._turns = turns
        self._is_of_client = other.channel == CLIENT and not outgoing
        """Whether a client, or a tool, has made it."""
        self._is_gathered = False
        """Whether what waits is about to be written."""
        self._writes = False
        """Whether the task that writes waits for the other end to take the rest of a frame."""
        self._open = 0
        """Requests that arrived and were not answered."""
        self._decided: Callable[[], int] = lambda: mine.decided
        self._wanted = False
        self._room = trio.Event()
        self._wake = trio.Event()
        decoder.limits = KNOWN

    def __repr__(self) -> str:
        arrow = "to" if self.outgoing else "from"
        state = "up" if self.up else "down"
        return (
            f"<Connection {self.other.number} {arrow} {self.other.role} "
            f"{self.other.member.hex()} boot {self.other.boot} {self.channel} {state}>"
        )

    def send(self, message: Message) -> Sent:
        """Let a message go its way; ``full`` if it has to wait, which only data ever does."""
        assert self.outgoing or self.other.role != "member", (
            "members are sent to over own connections"
        )
        if not self.up:
            return "down"
        outbox = self._outbox
        if outbox.full:
            if self.channel == DATA:
                self._wanted = True
                return "full"
            if outbox.flooded:
                self.end(TimeoutError("the other end takes nothing of what is sent"))
                return "down"
        idle = not self._writes and not outbox
        outbox.put(pack_message(message))
        self._open = max(self._open - 1, 0)
        if self._is_gathered:
            return "queued"
        if idle and not self._open:
            self._is_gathered = self._gathering.takes(self)
            return "queued" if self._is_gathered else self.flush()
        self._wake.set()
        return "queued"

    def flush(self) -> Sent:
        """Write what waits."""
        self._is_gathered = False
        if self.up:
            try:
                if rest := self._send_frame():
                    self._outbox.put_back(rest)
            except OSError as error:
                self.end(error)
                return "down"
            if self._outbox:
                self._wake.set()
        return "queued"

    def end(self, reason: Exception | None = None) -> None:
        """Be over; what was not sent is dropped."""
        if self.up:
            self.up = False
            self.reason = reason and _bare(reason)
            self._stream.close()
            self._outbox.clear()
            self._room.set()

    async def live(
        self,
        arrived: Callable[[list[Message]], None],
        room: Callable[[], None],
        decided: Callable[[], int],
    ) -> None:
        """Send and receive until the connection ends.

        ``decided`` returns how many decisions are known here; ``room`` is called when a message
        that was refused as the outbox was full would be taken now.
        """
        self._decided = decided
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._guarded, lambda: self._write(room))
            await self._guarded(lambda: self._read(arrived))
            nursery.cancel_scope.cancel()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
            self.end()
        except trio.ClosedResourceError:
            self.end()
        except (OSError, FrameError) as error:
            self.end(error)
        except trio.TooSlowError:
            self.end(TimeoutError("the other end took nothing for too long"))

    async def _write(self, room: Callable[[], None]) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._outbox:
                if rest := self._send_frame():
                    self._writes = True
                    with trio.fail_after(SEND_S_MAX):
                        await self._stream.send(rest)
                    self._writes = False
                if self._outbox.roomy:
                    self._room.set()
                if self._wanted and self._outbox.roomy:
                    self._wanted = False
                    room()

    def _send_frame(self) -> bytes:
        """Send a frame of what waits; return what was not taken of it, mostly nothing."""
        decided = self._decided()
        if self._told < decided and not self._outbox.is_begun:
            self._told = decided
            data = self._outbox.take(pack_message(KNOWN_DECIDED.message(decided)))
        else:
            data = self._outbox.take()
        return data[self._stream.send_nowait(data) :]

    async def _read(self, arrived: Callable[[list[Message]], None]) -> None:
        while data := await self._received():
            messages = [checked_message(raw, self.channel) for raw in self._decoder.feed(data)]
            if not OWN_NUMBERS.isdisjoint([message[0] for message in messages]):
                messages = [message for message in messages if not self._noted(message)]
            if self._is_of_client:
                self._open += sum(message[0] == REQUEST for message in messages)
                await self._hand_on(deque(messages), arrived)
                if not self.up:
                    return
            elif messages:
                arrived(messages)

    async def _hand_on(
        self, left: deque[Message], arrived: Callable[[list[Message]], None]
    ) -> None:
        """Hand on what a client says, as it takes answers."""
        while left:
            while self._outbox.full:
                self._room = trio.Event()
                await self._room.wait()
            async with self._turns:
                while self.up and not self._outbox.full:
                    arrived([left.popleft()])
                    if not left or self._turns.is_over():
                        break
            if not self.up:
                return

    async def _received(self) -> bytes:
        """Receive bytes; a frame that a client has begun has to go on."""
        if not self._is_of_client or self._decoder.is_empty:
            return await self._stream.receive(self._wanted_bytes())
        with trio.move_on_after(RECEIVE_S_MAX):
            return await self._stream.receive(self._wanted_bytes())
        raise FrameError(f"nothing more of a frame has come for {RECEIVE_S_MAX:g} s")

    def _wanted_bytes(self) -> int:
        """Return how much to receive at once: large frames take fewer turns of the loop."""
        if self._decoder.is_empty:
            return RECEIVE_BYTES
        return max(RECEIVE_BYTES, min(self._decoder.missing, LARGE_BYTES))

    def _noted(self, message: Message) -> bool:
        """Take what is for the connection itself."""
        if message[0] in HANDSHAKE_NUMBERS:
            raise FrameError("a second handshake on one connection")
        if message[0] != KNOWN_DECIDED.number:
            return False
        self.decided = max(self.decided, message[1])
        return True


def _bare(error: Exception) -> Exception:
    """Return an error without the calls that it came through.

    They hold the connection and what arrived, in a circle that is looked for seldom.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


async def say(stream: Stream, what: Introduction | Refusal) -> None:
    """Send the frame of a handshake."""
    await stream.send(frame([pack_message(what.message())]))


async def hear(stream: Stream, decoder: FrameDecoder) -> Introduction | Refusal:
    """Receive the frame of a handshake, and nothing behind it."""
    while not (messages := decoder.feed(data := await stream.receive(decoder.missing))):
        if not data:
            raise ConnectionResetError(
                "the other end closed the connection before it said who it is"
            )
    return heard(messages[0])
