"""One copy that comes back, as its primary knows it: what it has said, and what was sent to it.

Invariants:

- What was sent and may not have arrived is kept until it is answered: two messages at most.
- Who waits for an answer goes on once it is there, or hears why it does not come.

Left out: what is sent (``filling``, ``missed``), and who decides that a copy may come back
(``supplying``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import trio

from ...affinity.topology import Incarnation
from ..files.pins import Pin
from ..net.frames import Message
from ..replication.reports import Report
from ..replication.returning import Demanded, ReturnPlace
from .outflow import Outflow

PATIENCE_S = 5.0
"""Seconds without a word of a copy, or of the coordinator, after which its return begins anew."""


class StoppedError(Exception):
    """A return cannot go on, and begins anew when the copy reports again."""


class Return:
    """A copy that comes back."""

    def __init__(
        self,
        copy: Incarnation,
        outflow: Outflow,
        now: Callable[[], float],
        may_go_on: Callable[[Incarnation, ReturnPlace], bool],
    ) -> None:
        """``may_go_on`` tells whether a copy may come back to a place still."""
        self.copy = copy
        self._outflow = outflow
        self._now = now
        self._may_go_on = may_go_on
        self.reports: dict[int, Report] = {}
        """What it has reported and nobody has looked at."""
        self.busy: set[int] = set()
        """The partitions in which it is coming back."""
        self.pins: dict[int, Pin] = {}
        """What holds the log for a partition whose pairs it has got."""
        self.sent: list[Message] = []
        """The last messages, which it may not have answered."""
        self._demanded: dict[ReturnPlace, int] = {}
        self._heard_at = 0.0
        """When it last demanded something."""
        self._news = trio.Event()

    def __repr__(self) -> str:
        return f"<Return of {self.copy} to {len(self.busy)} partitions>"

    # -------------------------------------------------------------- what is heard

    def heard(self) -> None:
        """Let who waits for the copy look again."""
        self._news.set()
        self._news = trio.Event()

    def demands(self, rows: Iterable[Demanded]) -> None:
        """Take which pieces the copy wants next."""
        for place, number in rows:
            known = self._demanded.get(place)
            if known is not None:
                self._demanded[place] = max(known, number)
                if number > known or not number:  # 0: it is busy with clearing
                    self._heard_at = self._now()
        self.heard()

    async def reported(self) -> bool:
        """Wait until the copy has reported something; False if it says nothing for long."""
        with trio.move_on_after(PATIENCE_S):
            while not self.reports:
                await self._news.wait()
        return bool(self.reports)

    # -------------------------------------------------------------- what is sent

    def expect(self, place: ReturnPlace, demanded: int = 0) -> None:
        """Take demands for a place from now on; ``demanded`` lies below the first of them."""
        self._demanded[place] = demanded

    def tell(self, message: Message) -> None:
        """Send a message, which is said again over a new connection until it is answered."""
        self.sent = [*self.sent[-1:], message]
        self._outflow.tell(self.copy.member, message)

    async def answered(self, wanted: Mapping[ReturnPlace, int]) -> None:
        """Wait until the copy demands these pieces; ``StoppedError`` if that is of no use."""
        self._heard_at = self._now()
        while any(self._demanded[place] < number for place, number in wanted.items()):
            for place in wanted:
                if not self._may_go_on(self.copy, place):
                    raise StoppedError(f"partition {place.partition} has changed")
            if self._now() > self._heard_at + PATIENCE_S:
                raise StoppedError("it says nothing any more")
            with trio.move_on_after(PATIENCE_S):
                await self._news.wait()

    def rest(self) -> None:
        """Be done with all that was begun: nothing is expected any more."""
        self.busy, self.sent = set(), []
        self._demanded.clear()
