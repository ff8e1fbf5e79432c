"""One copy that comes back, as its primary knows it: what it has said, and what was sent to it.

Invariants:

- What was sent and may not have arrived is kept until the copy demands what follows.
- Who waits for an answer goes on once it is there, or hears why it does not come.

Left out: what is sent (``filling``, ``missed``), and who decides that a copy may come back
(``supplying``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

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


class _Sent(NamedTuple):
    """A message, what the copy demands once it has it, and its bytes."""

    message: Message
    answer: tuple[Demanded, ...]
    size: int


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
        self._sent: list[_Sent] = []
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
                self._heard_at = self._now()  # the same number again: it is busy with its disk
        self._sent = [one for one in self._sent if not self._is_answered(one)]
        self.heard()

    def _is_answered(self, one: _Sent) -> bool:
        return all(self._demanded.get(place, number) >= number for place, number in one.answer)

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

    def tell(self, message: Message, answer: Iterable[Demanded], size: int = 0) -> None:
        """Send a message, which is said again over a new connection until it is answered.

        The ``answer`` are demands for these pieces, or later ones; ``size`` is in bytes.
        """
        self._sent.append(_Sent(message, tuple(answer), size))
        self._outflow.tell(self.copy.member, message)

    def unanswered(self) -> list[Message]:
        """Return the messages that the copy may not have got."""
        return [one.message for one in self._sent]

    @property
    def bytes_under_way(self) -> int:
        """How many bytes of what was sent are not answered."""
        return sum(one.size for one in self._sent)

    async def room(self, bytes_max: int) -> None:
        """Wait until fewer bytes than that are under way; raises as ``answered`` does."""
        await self._until(lambda: self.bytes_under_way < bytes_max)

    async def answered(self) -> None:
        """Wait until all is answered that was sent; ``StoppedError`` if that is of no use."""
        await self._until(lambda: not self._sent)

    async def _until(self, true: Callable[[], bool]) -> None:
        self._heard_at = self._now()
        while not true():
            for place, _ in chain.from_iterable(one.answer for one in self._sent):
                if not self._may_go_on(self.copy, place):
                    raise StoppedError(f"partition {place.partition} has changed")
            if self._now() > self._heard_at + PATIENCE_S:
                raise StoppedError("it says nothing any more")
            with trio.move_on_after(PATIENCE_S):
                await self._news.wait()

    def rest(self) -> None:
        """Be done with all that was begun: nothing is expected any more."""
        self.busy, self._sent = set(), []
        self._demanded.clear()
