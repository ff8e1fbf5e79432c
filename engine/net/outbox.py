"""What waits to be sent on one connection, and how much that may be.

Invariants:

- Messages leave in the order in which they came, each once.
- A frame holds all that wait, up to ``FRAME_BYTES``; a longer message has a frame of its own.
- Over ``bytes_max`` the outbox is full.  What must not wait for others may still be put in, until
  ``FLOODED`` times as much waits: such a peer takes nothing, and its connection is of no use.
"""

from __future__ import annotations

from collections import deque

from .frames import frame

FRAME_BYTES = 1 << 19
"""So much goes into one frame; its items are fewer than a frame may have, whatever they are."""
FLOODED = 4


class Outbox:
    """Messages of one connection that were not sent yet, packed."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[bytes] = deque()
        self._rest = b""
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<Outbox {len(self._waiting)} messages, {self.bytes:,} bytes>"

    def __bool__(self) -> bool:
        return bool(self._waiting or self._rest)

    @property
    def is_begun(self) -> bool:
        """Whether a part of a frame was sent, or the whole of it was refused for now."""
        return len(self._rest) > 0

    @property
    def full(self) -> bool:
        """Whether what can wait has to wait."""
        return self.bytes >= self._bytes_max

    @property
    def flooded(self) -> bool:
        """Whether the other end takes nothing."""
        return self.bytes >= self._bytes_max * FLOODED

    @property
    def roomy(self) -> bool:
        """Whether it is worth the while to go on after it was full."""
        return self.bytes <= self._bytes_max // 2

    def put(self, packed: bytes) -> None:
        """Add a message."""
        self._waiting.append(packed)
        self.bytes += len(packed)

    def take(self, *first: bytes) -> bytes:
        """Return the next frame, which begins with the messages ``first``, or the rest of one."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self.bytes -= len(rest)
            return rest
        if self.bytes <= FRAME_BYTES:
            taken = [*first, *self._waiting]
            self._waiting.clear()
            self.bytes = 0
            return frame(taken)
        taken = [*first]
        size = 0
        while self._waiting and (not size or size + len(self._waiting[0]) <= FRAME_BYTES):
            taken.append(self._waiting.popleft())
            size += len(taken[-1])
        self.bytes -= size
        return frame(taken)

    def put_back(self, rest: bytes) -> None:
        """Take back what was not sent of a frame: it is the next that is taken."""
        self._rest = rest
        self.bytes += len(rest)

    def clear(self) -> None:
        """Drop all that waits."""
        self._waiting.clear()
        self._rest = b""
        self.bytes = 0
