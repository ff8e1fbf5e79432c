"""History that this member lends, as a copy in the set, to a primary whose own log has it no more.

    reach -> which numbers are in the log here
    lend 1 -> all of them are decided here -> the first piece -> lend 2 -> ... -> enough

Invariants:

- Only who is in the set of a partition, in the epoch that is asked about, says anything of it.
- Nothing is told before the epoch is open here, and nothing is searched for that is not decided
  here: a copy learns both a little later than its primary.
- The next piece is read once it is asked for; a piece that is asked for again is sent again.
- A loan ends when its primary says so, or asks for nothing any more.

Left out: what the primary makes of it (``borrowing``), and reading (``own_history``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio

from ...affinity.errors import TidelogError
from ...affinity.topology import Incarnation
from ...checkpoints.supplying import FoundNumbers, WantedNumbers
from ...tx.numbers import applied_in, without
from ...wal.history import held_from, oldest_state
from ..net.frames import Message
from ..replication.following import Following
from ..replication.lent import (
    ENOUGH,
    LEND,
    KeptNumbers,
    Lent,
    Loan,
    OpenPlace,
    lent_message,
    loan_of,
    reach_asked,
    reached_message,
)
from ..store.store_files import StoreFiles
from .log import NodeLog
from .outflow import Outflow
from .own_history import NoHistoryError, OwnHistory
from .returns import PATIENCE_S
from .tasks import Tasks

OPENED_S_MAX = 0.5
"""Seconds in which this copy has to hear that an epoch is open which it is asked about."""
DECIDED_S_MAX = 2.0
"""Seconds in which this copy has to learn what became of what is asked for."""
LOOK_S = 0.02
LOANS_MAX = 64
"""Loans that go on at a time: a primary has one for each copy that comes back."""

log = logging.getLogger("tidelog.node")


class _Loan:
    """A search that goes on for a primary."""

    def __init__(self) -> None:
        self.wanted = 1
        """The piece that is asked for."""
        self.answer: Message | None = None
        """That piece, once it was sent."""
        self.news = trio.Event()

    def asks(self, piece: int) -> None:
        """Take it that a piece is asked for."""
        self.wanted, self.answer = piece, None
        self.news.set()

    async def is_asked_for(self, piece: int) -> bool:
        """Wait until a piece is asked for; False if none is any more."""
        with trio.move_on_after(PATIENCE_S):
            while ENOUGH < self.wanted < piece:
                self.news = trio.Event()
                await self.news.wait()
        return self.wanted == piece


class Lending:
    """The history that one incarnation lends."""

    def __init__(
        self,
        me: Incarnation,
        files: StoreFiles,
        node_log: NodeLog,
        followed: Callable[[int], Following | None],
        outflow: Outflow,
        tasks: Tasks,
        reached: Callable[[str], None],
    ) -> None:
        """``followed`` tells what this copy follows of a partition if it is of the set, in an epoch
        that is open here.
        """
        self._me = me
        self._files = files
        self._log = node_log
        self._followed = followed
        self._outflow = outflow
        self._tasks = tasks
        self._reached = reached
        self._history = OwnHistory(files, node_log)
        self._loans: dict[tuple[Incarnation, int], _Loan] = {}

    def __repr__(self) -> str:
        return f"<Lending of {self._me}: {len(self._loans)} loans>"

    def arrived(self, sender: Incarnation, message: Message) -> None:
        """Take what a primary asks for; ``FrameError`` if that cannot be."""
        if message[0] != LEND.number:
            self._tasks.begin(self._tell_reach, sender, *reach_asked(message))
            return
        asked = loan_of(message)
        loan = self._loans.get((sender, asked.ask))
        if loan is None:
            if asked.piece == 1 and len(self._loans) < LOANS_MAX:
                loan = self._loans[sender, asked.ask] = _Loan()
                self._tasks.begin(self._lend, sender, asked, loan)
        elif asked.piece == loan.wanted and loan.answer is not None:
            self._outflow.tell(sender.member, loan.answer)
        else:
            loan.asks(asked.piece)

    def _may_tell(self, sender: Incarnation, place: OpenPlace) -> bool:
        following = self._followed(place.partition)
        return following is not None and (following.epoch, following.author) == (
            place.epoch, sender,
        )  # fmt: skip

    async def _tell_reach(self, sender: Incarnation, ask: int, places: list[OpenPlace]) -> None:
        wal = self._files.keeper.directory
        with trio.move_on_after(OPENED_S_MAX):
            while not all(self._may_tell(sender, place) for place in places):
                await trio.sleep(LOOK_S)
        try:
            head = await self._files.environment.run("supply", lambda: oldest_state(wal))
        except (TidelogError, OSError) as error:
            self._failed(sender, error)
            return
        rows = {}
        for place in places:
            if self._may_tell(sender, place):
                held = held_from(head, place.partition)
                rows[place.partition] = KeptNumbers(held.above + 1, list(held.without))
        self._outflow.tell(sender.member, reached_message(ask, rows))

    async def _lend(self, sender: Incarnation, asked: Loan, loan: _Loan) -> None:
        wanted = {
            place.partition: WantedNumbers(missing, self._log.state.epoch_tables[place.partition])
            for place, missing in asked.missing.items()
            if self._may_tell(sender, place)
        }
        try:
            await self._until_decided(wanted)
            await self._lend_pieces(sender, asked, loan, wanted)
        except (NoHistoryError, TidelogError, OSError) as error:
            self._failed(sender, error)
            nothing = {
                partition: FoundNumbers(
                    transactions=[], closed=[], lacking=list(row.missing), not_yet=[]
                )
                for partition, row in wanted.items()
            }
            self._tell(sender, loan, Lent(asked.ask, loan.wanted, nothing, False))
        finally:
            del self._loans[sender, asked.ask]

    async def _until_decided(self, wanted: Mapping[int, WantedNumbers]) -> None:
        """Wait until this copy knows what became of what is asked for."""
        counters = self._log.state.counters
        with trio.move_on_after(DECIDED_S_MAX):
            while any(
                without(row.missing, applied_in(counters[partition]))
                for partition, row in wanted.items()
            ):
                await trio.sleep(LOOK_S)
            return
        raise NoHistoryError("it does not hear what became of the numbers that are missing")

    async def _lend_pieces(
        self, sender: Incarnation, asked: Loan, loan: _Loan, wanted: Mapping[int, WantedNumbers]
    ) -> None:
        async with self._history.opened(f"{sender} lends from it", wanted) as turn:
            piece = asked.piece
            while await loan.is_asked_for(piece):
                self._tell(sender, loan, Lent(asked.ask, piece, *await turn()))
                self._reached("lend.sent")
                piece += 1

    def _tell(self, sender: Incarnation, loan: _Loan, lent: Lent) -> None:
        loan.answer = lent_message(lent, self._me.member.bytes)
        self._outflow.tell(sender.member, loan.answer)

    def _failed(self, sender: Incarnation, error: Exception) -> None:
        """Tell why no history is lent: the primary asks another one, or copies in full."""
        log.warning(
            "node.lend_failed: Tidelog: the store %s lends no history to %s: %s",
            self._log.path,
            sender,
            error,
            extra={"event": "node.lend_failed"},
        )
