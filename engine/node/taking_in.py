"""Full copies that come in: what was here goes, pairs are written, and an ADMIT ends them.

    CLEAR -> what was there is removed by a checkpoint -> pieces, several to a transaction
          -> the tallies agree -> ADMIT -> the copy reports (``catching_up``)

Invariants:

- Between CLEAR and the ADMIT that follows the copy counts for nothing, whenever it is started.
- Of pieces that have arrived and are not stored at most ``HELD_BYTES`` wait, of all full copies
  together, and what is under way when they come to that.
- No pair is written that is not whole, of this partition, and behind all that were written.
- What arrives while others are stored is stored together then, the partition with the most first:
  the faster it arrives, the more a transaction has.
- There is no ADMIT unless what was written, and what was of maps that have gone, is all that was
  sent (M3).

Left out: when a copy is filled (``rebalance.choosing``), and what is sent (``filling``).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol
from uuid import UUID

import trio

from ...affinity.errors import TidelogError
from ...affinity.topology import Incarnation
from ...wal.records import ClearRecord
from ..data.full_pairs import PackedPairs, PairTally, WrongPairsError
from ..replication.returning import Demanded, FillPiece, ReturnPlace, demand_message
from .log import NodeLog
from .outflow import Outflow
from .tasks import Tasks

GATHER_S, GATHER_S_MAX = 0.1, 1.5
"""Seconds in which other primaries may begin copies, too, and at most if some are expected: one
checkpoint clears for them all, and only if that is nearly everything there is a new data file."""
HELD_BYTES = 64 << 20
"""Bytes of pieces that have arrived and are not stored, from which on no more are demanded."""
STORE_BYTES = 2 << 20
"""Bytes of pieces with which a transaction of the data file begins once no other is under way: logs
on the same disk wait for its sync, so few bytes come in small ones, and many in few."""
TELL_BYTES = 1 << 20
"""Bytes that have arrived, behind which the primary is told: less than it sends ahead."""
ALIVE_S = 1.0
"""Seconds between two words of a copy that is busy with its data file."""
PATIENCE_S = 10.0
"""Seconds without a piece of a primary, behind which its full copies begin anew."""
WAIT_S_MIN = 0.001
"""Seconds that are waited at least: clocks differ in their last digits."""

log = logging.getLogger("tidelog.node")


class DataFile(Protocol):
    """Who writes the data file of a member."""

    async def checkpoint(self, reason: str) -> None:
        """Take a checkpoint."""

    async def fill(self, partition: int, pieces: Sequence[PackedPairs], position: int) -> PairTally:
        """Write stored pairs into a partition that was cleared at a position of the log.

        Returns the tally of all of them; raises ``WrongPairsError`` if they cannot be right.
        """


class _Filling:
    """A full copy that comes in."""

    def __init__(self, place: ReturnPlace, primary: Incarnation) -> None:
        self.place = place
        self.primary = primary
        self.taken = 0
        """The last piece that has arrived."""
        self.held = 0
        """The bytes of pieces that have arrived and are not stored."""
        self.untold = 0
        """The bytes that have arrived since the primary was told."""
        self.demanded = 0
        """The piece that is wanted next; 0 while what was there is removed."""
        self.stores = False
        """Whether pieces are being written into the data file."""
        self.told_at = float("-inf")
        self.pieces: deque[FillPiece] = deque()
        self.news = trio.Event()
        self.scope = trio.CancelScope()

    def take_pairs(self) -> list[PackedPairs]:
        """Take the pairs that have arrived, up to the end of all."""
        taken: list[PackedPairs] = []
        while self.pieces and self.pieces[0].end is None:
            taken.append(self.pieces.popleft().pairs)
        return taken

    @property
    def has_ended(self) -> bool:
        """Whether the last piece has arrived."""
        return len(self.pieces) > 0 and self.pieces[-1].end is not None


class TakingIn:
    """The full copies that come in to one incarnation."""

    def __init__(
        self,
        node_log: NodeLog,
        outflow: Outflow,
        store: DataFile,
        now: Callable[[], float],
        reached: Callable[[str], None],
        shown: dict[int, float],
        tasks: Tasks,
        expects: Callable[[], bool],
    ) -> None:
        """``shown`` is when this member last reported on each partition.

        ``expects`` tells whether primaries have still to answer what it has reported.
        """
        self._log = node_log
        self._outflow = outflow
        self._store = store
        self._now = now
        self._reached = reached
        self._shown = shown
        self._fillings: dict[int, _Filling] = {}
        self._begun: list[_Filling] = []
        """Those for which nothing was cleared."""
        self._is_clearing = False
        self._heard_at: dict[Incarnation, float] = {}
        """When a primary last sent a piece."""
        self._tasks = tasks
        self._expects = expects

    def __repr__(self) -> str:
        return f"<TakingIn {len(self._fillings)} full copies>"

    # -------------------------------------------------------------- which there are

    def place(self, partition: int) -> ReturnPlace | None:
        """Return the place of the full copy of a partition that comes in; None without one."""
        filling = self._fillings.get(partition)
        return None if filling is None else filling.place

    @property
    def bytes_held(self) -> int:
        """How many bytes of pieces have arrived and are not stored."""
        return sum(filling.held for filling in self._fillings.values())

    @property
    def _stores(self) -> bool:
        """Whether pieces are being stored, of any full copy."""
        return any(filling.stores for filling in self._fillings.values())

    def begin(self, places: Iterable[ReturnPlace], sender: Incarnation) -> None:
        """Let full copies come in; who says that again is told what is wanted next."""
        for place in places:
            known = self._fillings.get(place.partition)
            if known is not None and known.place == place:
                self._tell([known])
                continue
            if known is not None:
                known.scope.cancel()
            filling = self._fillings[place.partition] = _Filling(place, sender)
            self._begun.append(filling)
        if self._begun and not self._is_clearing:
            self._is_clearing = self._tasks.begin(self._clear_begun)

    def stop(self, partition: int) -> None:
        """Take in no more of a partition."""
        self._fillings[partition].scope.cancel()

    def tick(self) -> None:
        """Let primaries know that this member is busy with its data file."""
        now = self._now()
        busy = [
            filling
            for filling in self._fillings.values()
            if (self._is_busy(filling) or not filling.demanded) and now >= filling.told_at + ALIVE_S
        ]
        for filling in busy:
            filling.told_at = now
        self._tell(busy)

    def unheard(self, member: UUID) -> list[Demanded]:
        """Return what a primary may not have heard over the connection that broke."""
        return [
            Demanded(filling.place, filling.demanded)
            for filling in self._fillings.values()
            if filling.primary.member == member
        ]

    def filled(self, sender: Incarnation, piece: FillPiece) -> None:
        """Take a piece of a full copy."""
        filling = self._fillings.get(piece.place.partition)
        if filling is None or (filling.place, filling.primary) != (piece.place, sender):
            return
        self._heard_at[sender] = self._now()
        if piece.number == filling.taken + 1:
            filling.taken += 1
            filling.held += piece.pairs.size
            filling.untold += piece.pairs.size
            filling.pieces.append(piece)
            self._wake([filling])
            if piece.end is None and filling.untold >= TELL_BYTES:
                self._demand_more(filling)
        elif piece.number < filling.demanded:
            self._tell([filling])

    # -------------------------------------------------------------- one after the other

    async def _clear_begun(self) -> None:
        """Clear for all copies that have begun, and let them come in."""
        try:
            while self._begun:
                until = self._now() + GATHER_S_MAX - GATHER_S
                await trio.sleep(GATHER_S)
                while self._expects() and self._now() < until:
                    await trio.sleep(GATHER_S)
                begun, self._begun = self._begun, []
                for filling in begun:
                    if filling.scope.cancel_called:
                        self._end(filling)
                wanted = [one for one in begun if not one.scope.cancel_called]
                if wanted:
                    await self._clear(wanted)
        finally:
            self._is_clearing = False

    async def _clear(self, begun: Sequence[_Filling]) -> None:
        """Let what is here of some partitions count for nothing, and remove it; then go on."""
        for filling in begun:
            self._shown.pop(filling.place.partition, None)
        try:
            await self._log.logged(
                ClearRecord(partition=one.place.partition, admission=one.place.admission,
                            reason=f"a full copy of {one.primary}")
                for one in begun
            )  # fmt: skip
            await self._store.checkpoint("clear")
        except (TidelogError, OSError) as error:
            for filling in begun:
                self._failed(filling, error)
                self._end(filling)
            return
        for filling in begun:
            self._heard_at[filling.primary] = self._now()
            filling.demanded = 1
            self._tasks.begin(self._take_in, filling, self._log.position)
        self._tell(begun)

    async def _take_in(self, filling: _Filling, position: int) -> None:
        try:
            with filling.scope:
                await self._take_pieces(filling, position)
        except (TidelogError, OSError) as error:
            self._failed(filling, error)
        except WrongPairsError as error:
            self._refuse(filling, str(error))
        finally:
            self._end(filling)

    async def _take_pieces(self, filling: _Filling, position: int) -> None:
        """Store all pieces; the copy is a prefix of its partition then."""
        tally = PairTally()
        while await self._news_of(filling):
            pieces = filling.take_pairs()
            if pieces:
                filling.stores = True
                stored = await self._store.fill(filling.place.partition, pieces, position)
                filling.stores = False
                self._heard_at[filling.primary] = self._now()
                tally = tally.plus(stored)
                filling.held -= sum(piece.size for piece in pieces)
                self._go_on()
                continue
            last = filling.pieces.popleft()
            assert last.end is not None
            if last.end.tally != tally:
                self._refuse(filling, f"{tally} was stored, and {last.end.tally} was sent")
                return
            await self._log.logged([last.end.record])
            self._reached("admit.logged")
            filling.demanded = last.number + 1
            self._tell([filling])
            return

    async def _news_of(self, filling: _Filling) -> bool:
        """Wait until it is worth to store pieces; False if the primary has sent none for long.

        It sends none while what it has sent is stored, or waits for that.
        """
        while not self._is_worth_storing(filling):
            of_primary = (one for one in self._fillings.values() if one.primary == filling.primary)
            if any(map(self._is_busy, of_primary)):
                self._heard_at[filling.primary] = self._now()
            left = self._heard_at[filling.primary] + PATIENCE_S - self._now()
            if left <= 0:
                return False
            filling.news = trio.Event()
            with trio.move_on_after(max(left, WAIT_S_MIN)):
                await filling.news.wait()
        return True

    def _is_busy(self, filling: _Filling) -> bool:
        """Tell whether pieces are being stored, or it waits until others are.

        What is stored already waits, too, if the primary was not told to go on for want of room.
        """
        waits = filling.held > 0 or filling.untold >= TELL_BYTES
        return filling.stores or (waits and self._stores)

    def _is_worth_storing(self, filling: _Filling) -> bool:
        """Tell whether to store what has arrived, or to go on to the end.

        A few pieces are stored alone only if there would be no room otherwise: each transaction has
        a sync.
        """
        if filling.has_ended:
            return True
        most = max(one.held for one in (filling, *self._fillings.values()))
        is_enough = most >= STORE_BYTES or self.bytes_held >= HELD_BYTES
        return is_enough and filling.held == most and not self._stores

    def _wake(self, fillings: Iterable[_Filling]) -> None:
        """Let those go on for whom that is worth it: many full copies wait while few store."""
        for filling in fillings:
            if self._is_worth_storing(filling):
                filling.news.set()

    def _go_on(self) -> None:
        """Let all go on behind what was stored: there may be room, and it is another one's turn."""
        self._wake(self._fillings.values())
        for filling in self._fillings.values():
            self._demand_more(filling)

    def _demand_more(self, filling: _Filling) -> None:
        """Let the primary go on, if there is room."""
        if filling.untold and not filling.has_ended and self.bytes_held < HELD_BYTES:
            filling.untold = 0
            filling.demanded = filling.taken + 1
            self._tell([filling])

    def _tell(self, fillings: Iterable[_Filling]) -> None:
        told: dict[UUID, list[Demanded]] = {}
        for one in fillings:
            told.setdefault(one.primary.member, []).append(Demanded(one.place, one.demanded))
        for member, rows in told.items():
            self._outflow.tell(member, demand_message(rows))

    # -------------------------------------------------------------- how they end

    def _end(self, filling: _Filling) -> None:
        if self._fillings.get(filling.place.partition) is filling:
            del self._fillings[filling.place.partition]
        self._go_on()

    def _failed(self, filling: _Filling, error: Exception) -> None:
        """Tell why a copy does not come in now; it is tried again a little later."""
        self._shown[filling.place.partition] = self._now()
        log.warning(
            "node.fill_failed: Tidelog: the store %s takes no copy of partition %d now: %s",
            self._log.path,
            filling.place.partition,
            error,
            extra={"event": "node.fill_failed"},
        )

    def _refuse(self, filling: _Filling, why: str) -> None:
        """Tell that what came in is not what a primary has: the copy begins anew."""
        self._shown[filling.place.partition] = self._now()
        log.error(
            "node.fill_differs: Tidelog: the store %s lets no copy of partition %d by %s count: %s",
            self._log.path,
            filling.place.partition,
            filling.primary,
            why,
            extra={"event": "node.fill_differs"},
        )
