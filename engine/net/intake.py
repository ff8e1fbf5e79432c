"""Room for the long frames that clients have begun: so many bytes together.

Who shakes hands, which takes no secret, may begin frames and leave them so.  Therefore the bytes of
a whole frame are held before more than its beginning is received.  Who finds no room is not read
from until there is some.  Nobody who holds room waits for more of it, so what was begun can be
completed, and all that wait come to their turn.

Invariants:

- What is held together is no more than there is; who came first holds first.
- While somebody waits, room is given back within ``WAIT_S_MAX``: else who has held for longest
  loses its connection.  So who brings a byte now and then, for ever, keeps nobody out.

Left out: short frames, which the number of clients limits (``transport``).
"""

from __future__ import annotations

from typing import Protocol

import trio

from .frames import FrameError

WAIT_S_MAX = 10.0
"""Seconds in which somebody has to complete a frame while another one waits."""


class Receiving(Protocol):
    """A connection that receives long frames."""

    def end(self, reason: Exception | None = None) -> None:
        """Be over."""


class Intake:
    """The room of one member."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._held: dict[Receiving, int] = {}
        self._turn = trio.Lock()
        """Held by who waits for room; those behind wait for it, in their order."""
        self._given_back = trio.Event()

    def __repr__(self) -> str:
        return f"<Intake of {len(self._held)} connections, {self._free:,} bytes free>"

    async def hold(self, holder: Receiving, size: int) -> None:
        """Hold so many bytes, in place of what was held before; waits until there is room."""
        if self._held.get(holder, 0) == size:
            return
        self.give_back(holder)
        if not self._turn.locked() and size <= self._free:
            self._take(holder, size)
            return
        async with self._turn:
            while size > self._free:
                await self._wait()
            self._take(holder, size)

    def give_back(self, holder: Receiving) -> None:
        """Hold nothing any more."""
        if size := self._held.pop(holder, 0):
            self._free += size
            self._given_back.set()

    def _take(self, holder: Receiving, size: int) -> None:
        if size:
            self._held[holder] = size
            self._free -= size

    async def _wait(self) -> None:
        self._given_back = trio.Event()
        with trio.move_on_after(WAIT_S_MAX) as patience:
            await self._given_back.wait()
        if patience.cancelled_caught:
            longest = next(iter(self._held))
            longest.end(
                FrameError(f"others have waited {WAIT_S_MAX:g} s for the room of its frame")
            )
            self.give_back(longest)
