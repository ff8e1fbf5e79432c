"""History that copies in the set lend to this primary, for one that comes back.

A primary that was itself copied in full, or whose log was cut, has no history of what was before;
the copies of its set may have it.  They are asked which numbers their logs hold only if the own log
would not do; what they lend goes the way of history that is read here.

Invariants:

- Nobody is waited for longer than ``PATIENCE_S``; who does not answer has no history.
- A question is asked again until it is answered: messages may be lost with their connection.

Left out: who lends (``lending``), and which of several logs is chosen (``rebalance.choosing``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from ...affinity.topology import Incarnation
from ...checkpoints.supplying import WantedNumbers
from ...rebalance.choosing import LogReach
from ..net.frames import Message
from ..replication.lent import (
    ENOUGH,
    LENT,
    KeptNumbers,
    Lent,
    Loan,
    OpenPlace,
    lend_message,
    lent_of,
    reach_message,
    reached_of,
)
from .outflow import Outflow
from .own_history import NextTurn, NoHistoryError, SearchTurn
from .returns import PATIENCE_S
from .ways_back import LogHolder

ASK_AGAIN_S = 0.5
REACH_S_MAX = 1.0
"""Seconds in which copies have to tell which numbers their logs hold."""


class _Question:
    """A question to a copy, and its answer."""

    def __init__(self, copy: Incarnation) -> None:
        self.copy = copy
        self.answered = trio.Event()
        self.answer: Any = None


class Borrowing:
    """What one incarnation asks of the logs of others."""

    def __init__(self, me: Incarnation, outflow: Outflow) -> None:
        self._outflow = outflow
        self._number = me.boot << 32
        """The last question: an answer may come late, to one that the last incarnation asked."""
        self._questions: dict[tuple[int, int], _Question] = {}
        """By the number of the question, and the piece that is asked for."""

    def __repr__(self) -> str:
        return f"<Borrowing: {len(self._questions)} questions>"

    def arrived(self, sender: Incarnation, message: Message) -> None:
        """Take the answer of a copy; ``FrameError`` if that cannot be."""
        answer: Lent | dict[int, KeptNumbers]
        if message[0] == LENT.number:
            answer = lent = lent_of(message)
            number = (lent.ask, lent.piece)
        else:
            ask, answer = reached_of(message)
            number = (ask, ENOUGH)
        question = self._questions.get(number)
        if question is not None and question.copy == sender:
            question.answer = answer
            question.answered.set()

    # -------------------------------------------------------------- which numbers

    async def reaches(
        self, places: Mapping[Incarnation, list[OpenPlace]]
    ) -> dict[int, list[LogReach[LogHolder]]]:
        """Ask copies which numbers their logs hold; return that by partition.

        Who does not answer at once is left out.
        """
        found: dict[Incarnation, dict[int, KeptNumbers]] = {}

        async def ask(copy: Incarnation) -> None:
            number = self._next_number()
            message = reach_message(number, places[copy])
            found[copy] = await self._answer(copy, (number, ENOUGH), message) or {}

        with trio.move_on_after(REACH_S_MAX):
            async with trio.open_nursery() as nursery:
                for copy in places:
                    nursery.start_soon(ask, copy)
        reaches: dict[int, list[LogReach[LogHolder]]] = {}
        for copy in places:  # not in the order in which they have answered
            for partition, reached in found.get(copy, {}).items():
                reaches.setdefault(partition, []).append(LogReach(LogHolder(copy), *reached))
        return reaches

    # -------------------------------------------------------------- what they are

    def history(self, copy: Incarnation, epochs: Mapping[int, int]) -> BorrowedHistory:
        """Return the history that a copy lends of partitions, in these epochs."""
        return BorrowedHistory(self, copy, epochs)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    async def _answer(self, copy: Incarnation, number: tuple[int, int], message: Message) -> Any:
        """Ask a copy until it answers; None if it does not for long."""
        question = self._questions[number] = _Question(copy)
        try:
            with trio.move_on_after(PATIENCE_S):
                while not question.answered.is_set():
                    self._outflow.tell(copy.member, message)
                    with trio.move_on_after(ASK_AGAIN_S):
                        await question.answered.wait()
            return question.answer
        finally:
            del self._questions[number]


class BorrowedHistory:
    """The history that is in the log of a copy."""

    def __init__(self, borrowing: Borrowing, copy: Incarnation, epochs: Mapping[int, int]) -> None:
        self._borrowing = borrowing
        self._copy = copy
        self._epochs = epochs

    def __repr__(self) -> str:
        return f"<BorrowedHistory of {self._copy}>"

    @asynccontextmanager
    async def opened(
        self, owner: str, wanted: Mapping[int, WantedNumbers]
    ) -> AsyncIterator[NextTurn]:
        """Have a log searched for what is missing, as ``OwnHistory.opened`` does here."""
        borrowing, copy = self._borrowing, self._copy
        ask = borrowing._next_number()
        missing = {
            OpenPlace(partition, self._epochs[partition]): row.missing
            for partition, row in wanted.items()
        }
        loan = Loan(ask, 0, missing)

        async def turn() -> SearchTurn:
            nonlocal loan
            loan = loan._replace(piece=loan.piece + 1)
            message = lend_message(loan)
            lent = await borrowing._answer(copy, (ask, loan.piece), message)
            loan = loan._replace(missing={})
            if lent is None:
                raise NoHistoryError(f"{copy} does not lend what {owner} has missed")
            return SearchTurn(lent.found, lent.more)

        try:
            yield turn
        finally:
            borrowing._outflow.tell(copy.member, lend_message(Loan(ask, ENOUGH, {})))
