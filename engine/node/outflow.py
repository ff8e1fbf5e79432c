"""What goes to the other members about partitions: streams, and messages that must not be lost.

Everything goes over the data connections that are made here.  If one takes no more it is told when
it does again; if one breaks, whatever was on its way may be lost, and ``connected`` begins again
from what the other end has told that it has.  A message that cannot wait is not left out
alone, for many are said again only over a new connection: the one that is full is hung up then.

Invariants:

- A member is sent messages in the order in which they were given, and items of streams in theirs.
- One message of items is made for a member at a time: what comes meanwhile goes with the next.

Left out: what the items are (``engine.replication.streams``), connections (``net.transport``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

from ..net.connection import Sent
from ..net.frames import Message, pack_message
from ..net.kinds import DATA, Channel
from ..replication.stream import replicate_message
from ..replication.streams import Streams

MESSAGE_BYTES = 256 << 10
"""Bytes of items from which on the rest goes with the next message."""
KEPT_MAX, KEPT_BYTES_MAX = 4096, 256 << 20
"""Messages that wait for room on one connection, and their bytes; with more it is hung up."""


class DataLines(Protocol):
    """Who has connections to members: the transport."""

    def send(self, member: bytes, channel: Channel, message: Message) -> Sent:
        """Let a message go its way."""

    def hang_up(self, member: bytes, channel: Channel, reason: Exception) -> None:
        """End a connection, which is made anew."""


class _Kept:
    """Messages that wait for room on one connection."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages: deque[tuple[Message, int]] = deque()
        """With the bytes of each."""
        self.bytes = 0

    def add(self, message: Message) -> None:
        """Let one wait behind the others."""
        size = len(pack_message(message))
        self.messages.append((message, size))
        self.bytes += size

    @property
    def is_too_much(self) -> bool:
        """Whether the other end takes too little."""
        return len(self.messages) > KEPT_MAX or self.bytes > KEPT_BYTES_MAX


class Outflow:
    """The data that one incarnation sends to the others."""

    def __init__(self, lines: DataLines, streams: Streams) -> None:
        self._lines = lines
        self._streams = streams
        self._kept: dict[UUID, _Kept] = {}
        """Of members whose connection is full."""
        self._blocked: set[UUID] = set()
        """Members whose connection takes nothing, or that have none."""

    def __repr__(self) -> str:
        waiting = sum(len(kept.messages) for kept in self._kept.values())
        return f"<Outflow, {waiting} messages wait for room>"

    def tell(self, member: UUID, message: Message) -> None:
        """Send a message, behind those that wait; without a connection it is not kept."""
        if member not in self._blocked and self._send(member, message) == "queued":
            return
        kept = self._kept.get(member)
        if kept is None:
            return
        kept.add(message)
        if kept.is_too_much:
            del self._kept[member]
            self._lines.hang_up(
                member.bytes, DATA, TimeoutError("the other end takes too little of what is sent")
            )

    def pump(self) -> None:
        """Send what is new in the streams to everybody whose connection takes it."""
        for member in self._streams.members_behind():
            self._pump_to(member)

    def _pump_to(self, member: UUID) -> None:
        while member not in self._blocked and (
            items := self._streams.next_items(member, MESSAGE_BYTES)
        ):
            sent = self._send(member, replicate_message(items))
            if sent != "queued":
                return
            self._streams.sent(member, items)

    def _send(self, member: UUID, message: Message) -> Sent:
        sent = self._lines.send(member.bytes, DATA, message)
        if sent != "queued":
            self._blocked.add(member)
        if sent == "full":
            self._kept[member] = _Kept()
        return sent

    def connected(self, member: UUID, first: Iterable[Message] = ()) -> None:
        """Take it that a new connection to a member is there: begin again behind what it has.

        ``first`` are messages that go before the items of streams.
        """
        self._blocked.discard(member)
        self._kept.pop(member, None)
        for message in first:
            self.tell(member, message)
        self._streams.send_again(member)
        self._pump_to(member)

    def has_room(self, member: UUID) -> None:
        """Take it that a connection that was full takes messages again."""
        self._blocked.discard(member)
        kept = self._kept.pop(member, _Kept())
        while kept.messages:
            message, size = kept.messages[0]
            sent = self._send(member, message)
            if sent == "full":
                self._kept[member] = kept
            if sent != "queued":
                return
            kept.messages.popleft()
            kept.bytes -= size
        self._pump_to(member)
