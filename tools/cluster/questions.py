"""Asks a member how it is, by the protocol of clients (``docs/client-protocol.md``).

One connection on a blocking socket, one question after the other.

Invariants:

- Whatever is at an address, there is an answer or an ``OSError`` in the time given.

Left out: what the answers mean (``standing``, ``stories``).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ECONNREFUSED, EHOSTUNREACH, ENETUNREACH
from typing import Any

from ...engine.net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from ...engine.net.handshake import Introduction, Refusal, heard
from ...engine.net.kinds import BY_NAME, BY_NUMBER, CLIENT, checked_message
from ...engine.system.environment import Address

RECEIVE_BYTES = 65_536
PAGE = 4096
"""Partitions that are asked for at once."""
GREETING_S_MAX = 5.0
"""Seconds for a member to say who it is: who has stopped takes connections, and says nothing."""
_VIEW_EPOCHS = 5
_UNREACHED = (ECONNREFUSED, EHOSTUNREACH, ENETUNREACH)


@contextmanager
def talking(
    address: Address, cluster: bytes, seconds: float, greeting: float = GREETING_S_MAX
) -> Iterator[Conversation]:
    """Connect to the member at an address, for so many seconds in all; ``OSError``.

    One that does not say who it is in the time for its ``greeting`` is not waited for any longer.
    """
    began = time.monotonic()
    greeting = min(seconds, greeting)
    try:
        with socket.create_connection(address, timeout=greeting) as stream:
            conversation = Conversation(stream, began + greeting)
            conversation.introduce(cluster)
            conversation.deadline = began + seconds
            yield conversation
    except FrameError as error:
        raise ConnectionAbortedError(f"it does not speak tidelog: {error}") from None


def is_unreached(error: Exception) -> bool:
    """Tell whether nobody can have heard: no host of that name, no way to it, nobody listens."""
    if isinstance(error, socket.gaierror):
        return True
    return isinstance(error, OSError) and error.errno in _UNREACHED


class Conversation:
    """A connection to a member, and what has arrived on it and was not looked at."""

    def __init__(self, stream: socket.socket, deadline: float) -> None:
        self.view: list[Any] = []
        """The newest view that the member has told; empty before the first question."""
        self.deadline = deadline
        """When no answer is waited for any more."""
        self._stream = stream
        self._decoder = FrameDecoder()
        self._arrived: list[Message] = []
        self._asked = 0

    def introduce(self, cluster: bytes) -> None:
        """Say who asks, and for which cluster; ``OSError`` if the member refuses."""
        mine = Introduction(
            role="tool", channel=CLIENT, member=os.urandom(16), cluster=cluster, number=1
        )
        self._stream.sendall(frame([pack_message(mine.message())]))
        other = heard(self._next())
        if isinstance(other, Refusal):
            raise ConnectionRefusedError(other.reason)
        self._decoder.limits = KNOWN

    def ask(self, operation: str, *arguments: object) -> Any:
        """Return the answer to a question; ``OSError`` with the words of a failure."""
        self._asked += 1
        left_us = max(1, int(self._left() * 1_000_000))
        request = BY_NAME["request"].message(self._asked, left_us, operation, list(arguments))
        self._stream.sendall(frame([pack_message(request)]))
        while True:
            message = checked_message(self._next(), CLIENT)
            name = BY_NUMBER[message[0]].name
            if name in ("welcome", "topology"):
                self.view = message[-1]
            elif name == "response":
                return message[2]
            elif name == "failure":
                raise ConnectionRefusedError(message[3])

    def ask_copies(self) -> list[Any]:
        """Return who holds the partitions, page by page."""
        pages = [self.ask("copies", 0, PAGE)]
        count = len(self.view[_VIEW_EPOCHS]) if len(self.view) > _VIEW_EPOCHS else 0
        return pages + [self.ask("copies", first, PAGE) for first in range(PAGE, count, PAGE)]

    def _next(self) -> Message:
        while not self._arrived:
            self._stream.settimeout(self._left())
            size = min(self._decoder.missing, RECEIVE_BYTES)
            data = self._stream.recv(size)
            if not data:
                raise ConnectionResetError("it closed the connection without an answer")
            self._arrived += self._decoder.feed(data)
        return self._arrived.pop(0)

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it did not answer in time")
        return left
