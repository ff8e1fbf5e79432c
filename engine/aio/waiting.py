"""What tasks wait for: a turn, or what happens once.

Invariants:

- A turn goes to who has waited longest; who is cancelled while waiting gets none.
- Waking comes before forgetting: an interrupt in between lets nobody sleep for ever.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from .loops import Loop, never, take_back


class Turns:
    """At most so many tasks at a time; the others wait."""

    def __init__(self, loop: Loop, most: int) -> None:
        self.most = most
        self._free = most
        self._loop = loop
        self._waiting: deque[Any] = deque()
        self.wait = loop.protected(self._wait)
        self.leave = loop.protected(self._leave)

    def take_nowait(self) -> bool:
        """Take a turn if one is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def _wait(self) -> None:
        """Take a turn, once there is one."""
        if self.take_nowait():
            return
        sleeper = self._loop.sleeper()
        self._waiting.append(sleeper)
        await self._loop.wait(sleeper, take_back, self._waiting, sleeper)

    def _leave(self) -> None:
        """Give a turn back."""
        if self._waiting:
            self._loop.wake(self._waiting[0])
            self._waiting.popleft()
        else:
            self._free += 1


class Once:
    """Something that happens once; who waits for it cannot be cancelled."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._come = False
        self._waiting: deque[Any] = deque()
        self.wait = loop.protected(self._wait)
        self.come = loop.protected(self._now)

    async def _wait(self) -> None:
        """Sleep until it comes, if it has not."""
        if self._come:
            return
        sleeper = self._loop.sleeper()
        self._waiting.append(sleeper)
        await self._loop.wait(sleeper, never)

    def _now(self) -> None:
        """Let it be now: everybody goes on."""
        self._come = True
        while self._waiting:
            self._loop.wake(self._waiting[0])
            self._waiting.popleft()
