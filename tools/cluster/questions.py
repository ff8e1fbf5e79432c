"""Asks a member how it is, by the protocol of clients (``docs/client-protocol.md``).

One connection on a blocking socket, one question, one answer.

Invariants:

- Whatever is at an address, there is an answer or an ``OSError`` in the time given.

Left out: what the answer means (``standing``).
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from ...engine.net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from ...engine.net.handshake import Introduction, Refusal, heard
from ...engine.net.kinds import BY_NAME, BY_NUMBER, CLIENT, checked_message
from ...engine.system.environment import Address

RECEIVE_BYTES = 65_536
REQUEST_ID = 1


def ask_status(address: Address, cluster: bytes, seconds: float) -> tuple[list[Any], Any]:
    """Return the view of the member at an address, and its answer to `status`."""
    deadline = time.monotonic() + seconds
    try:
        with socket.create_connection(address, timeout=seconds) as stream:
            return _Conversation(stream, deadline).status(cluster)
    except FrameError as error:
        raise ConnectionAbortedError(f"it does not speak tidelog: {error}") from None


class _Conversation:
    """A connection, and what has arrived on it and was not looked at."""

    def __init__(self, stream: socket.socket, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline
        self._decoder = FrameDecoder()
        self._arrived: list[Message] = []

    def status(self, cluster: bytes) -> tuple[list[Any], Any]:
        mine = Introduction(
            role="tool", channel=CLIENT, member=os.urandom(16), cluster=cluster, number=1
        )
        self._stream.sendall(frame([pack_message(mine.message())]))
        other = heard(self._next())
        if isinstance(other, Refusal):
            raise ConnectionRefusedError(other.reason)
        self._decoder.limits = KNOWN
        view: list[Any] = []
        left_us = max(1, int(self._left() * 1_000_000))
        request = BY_NAME["request"].message(REQUEST_ID, left_us, "status", [])
        self._stream.sendall(frame([pack_message(request)]))
        while True:
            message = checked_message(self._next(), CLIENT)
            name = BY_NUMBER[message[0]].name
            if name in ("welcome", "topology"):
                view = message[-1]
            elif name == "response":
                return view, message[2]
            elif name == "failure":
                raise ConnectionRefusedError(message[3])

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
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it did not answer in time")
        return left
