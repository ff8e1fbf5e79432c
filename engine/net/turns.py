"""The requests of clients are carried out in turns, and all else that a member does between them.

    async with turns:                            # 400 clients ask for a page each
        while left and not turns.is_over():
            carry_out(left.pop())                # 62 ms: this turn is over
    # the next of the 400 goes on one round of the loop later, and pings are answered in that round

A member whose loop does nothing but what clients ask for is taken for dead by the others, who wait
for its pings a second.  One connection may bring ten thousand requests at once, and of thousands
each may bring one in the same round.

Invariants:

- Behind ``TURN_S`` of requests, of however many connections, the loop goes round once, and nobody
  has a turn meanwhile.
- Nobody goes ahead of those who wait.  Two of them are woken by each turn that ends: behind long
  turns one of the two waits once more, and of many quick ones soon all go on in the same round.

Left out: how long one request takes, which limits of its own bound (``reads``, ``committing``).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

TURN_S = 0.01
"""Seconds of requests between two rounds of the loop."""


class RequestTurns:
    """When requests are carried out; for all clients of one member.

    Whoever has a turn, from ``async with`` on, does not wait for anything in it.
    """

    def __init__(self, now: Callable[[], float] = trio.current_time) -> None:
        self._now = now
        self._waiting = trio.lowlevel.ParkingLot()
        self._ahead = trio.lowlevel.ParkingLot()
        """Who was woken and came too late: they go ahead of those who wait."""
        self._parked = 0
        """Who waits, or was woken and has not gone on yet."""
        self._rests = False
        self._left = TURN_S
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<RequestTurns {len(self._waiting) + len(self._ahead)} waiting>"

    async def __aenter__(self) -> None:
        lot, waits = self._waiting, self._rests or self._parked > 0
        while waits:
            self._parked += 1
            was_woken = False
            try:
                await lot.park()
                was_woken = True
            finally:
                self._parked -= 1
                if not was_woken and not self._rests:
                    self._wake()  # who came since may wait for whoever is cancelled here
            lot, waits = self._ahead, self._rests
        self._until = self._now() + self._left

    def is_over(self) -> bool:
        """Tell whether whoever has the turn has to let others go on."""
        return self._now() >= self._until

    async def __aexit__(self, *_error: object) -> None:
        self._left = self._until - self._now()
        try:
            if self._left <= 0:
                self._left, self._rests = TURN_S, True
                await trio.lowlevel.checkpoint()
        finally:
            self._rests = False
            self._wake()

    def _wake(self) -> None:
        if self._parked:
            woken = self._ahead.unpark(count=2)
            self._waiting.unpark(count=2 - len(woken))
