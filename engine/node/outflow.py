"""What goes to the other members about partitions: streams, and messages that must not be lost.

Everything goes over the data connections that are made here.  If one takes no more it is told when
it does again; if one breaks, whatever was on its way may be lost, and ``connected`` begins again
from what the other end has told that it has.

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
from ..net.frames import Message
from ..net.kinds import DATA, Channel
from ..replication.stream import replicate_message
from ..replication.streams import Streams

MESSAGE_BYTES = 256 << 10
"""Bytes of items from which on the rest goes with the next message."""
KEPT_MAX = 4096
"""Messages that wait for room on one connection; of more than that the oldest are said again by
whoever gave them, when the connection is made anew."""


class DataLines(Protocol):
    """Who has connections to members: the transport."""

    def send(self, member: bytes, channel: Channel, message: Message) -> Sent:
        """Let a message go its way."""


class Outflow:
    """The data that one incarnation sends to the others."""

    def __init__(self, lines: DataLines, streams: Streams) -> None:
        self._lines = lines
        self._streams = streams
        self._kept: dict[UUID, deque[Message]] = {}
        self._blocked: set[UUID] = set()
        """Members whose connection takes nothing, or that have none."""

    def __repr__(self) -> str:
        return f"<Outflow, {sum(map(len, self._kept.values()))} messages wait for room>"

    def tell(self, member: UUID, message: Message) -> None:
        """Send a message, behind those that wait."""
        if member not in self._blocked and self._send(member, message) == "queued":
            return
        self._kept.setdefault(member, deque(maxlen=KEPT_MAX)).append(message)

    def pump(self) -> None:
        """Send what is new in the streams to everybody whose connection takes it."""
        for member in self._streams.members_behind():
            if member not in self._blocked:
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
        kept = self._kept.pop(member, deque())
        while kept:
            if self._send(member, kept[0]) != "queued":
                self._kept[member] = kept
                return
            kept.popleft()
        self._pump_to(member)
