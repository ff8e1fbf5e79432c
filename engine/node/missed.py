"""What copies have missed, sent to them from a log, piece by piece.

A log is read once for all partitions to which a copy comes back together: that of the primary, or
one that another copy lends to it.

Invariants:

- Of what is sent at most ``PIECE_BYTES`` and one record wait for an answer, per copy.
- Once a log was found to lack some numbers nothing more of it is sent: it is looked through to its
  end, so that the next attempt knows of all partitions that it lacks some of.
- A copy hears that it has all only if each number that it lacked was sent, or was closed (B5), and
  with that a digest of all that was sent, which it compares (M3).

Left out: what is looked for (``checkpoints.supplying``), and reading it (``own_history``,
``borrowing``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ...affinity.topology import Incarnation
from ...checkpoints.supplying import FoundNumbers, WantedNumbers
from ...wal.records import SuppliedRecord, encode_record
from ..replication.returning import (
    Demanded,
    ReturnPlace,
    SupplyPiece,
    new_digest,
    supply_message,
)
from .own_history import NextTurn, NoHistoryError
from .returns import Return, StoppedError
from .ways_back import WaysBack


class HistorySource(Protocol):
    """A log that has what a copy has missed."""

    def opened(
        self, owner: str, wanted: Mapping[int, WantedNumbers]
    ) -> AbstractAsyncContextManager[NextTurn]:
        """Begin to search it; raises ``NoHistoryError``, as each turn does."""


class _Sent:
    """What was sent of the history of one place."""

    def __init__(self) -> None:
        self.number = 0
        """The last piece."""
        self.digest = new_digest()


class MissedHistory:
    """The history that copies which come back to one incarnation are sent."""

    def __init__(self, ways: WaysBack, reached: Callable[[str], None]) -> None:
        self._ways = ways
        self._reached = reached

    def __repr__(self) -> str:
        return f"<MissedHistory, {self._ways}>"

    async def send(
        self,
        returning: Return,
        wanted: Mapping[ReturnPlace, WantedNumbers],
        supplier: Incarnation,
        history: HistorySource,
    ) -> None:
        """Send what the log of a supplier has of what is missing, piece by piece."""
        left = {place.partition: place for place, row in wanted.items() if row.missing}
        if not left:
            return
        sought = {place.partition: wanted[place] for place in left.values()}
        try:
            async with history.opened(f"copy {returning.copy}", sought) as turn:
                await self._send_from(returning, supplier, turn, left)
        except NoHistoryError as error:
            self._ways.lacks(returning.copy, sought, supplier)
            raise StoppedError(str(error)) from None

    async def _send_from(
        self,
        returning: Return,
        supplier: Incarnation,
        turn: NextTurn,
        left: dict[int, ReturnPlace],
    ) -> None:
        number = 0
        sent = {place: _Sent() for place in left.values()}
        lacking: set[int] = set()
        while left:
            found_by, more = await turn()
            lacking |= {p for p in left if p in found_by and found_by[p].lacking}
            if not (lacking or more):
                lacking = {p for p in left if p in found_by and found_by[p].not_yet}
            if lacking:
                if more:
                    continue
                # Only these partitions are without history: others may come by it (B5).
                self._ways.lacks(returning.copy, sorted(lacking), supplier)
                raise StoppedError(f"the log lacks numbers of partitions {sorted(lacking)}")
            pieces: list[SupplyPiece] = []
            for partition, found in found_by.items():
                place = left.get(partition)
                if place is None:
                    continue
                last = not found.not_yet
                if not (last or found.transactions or found.closed):
                    continue
                pieces.append(_piece(supplier, place, sent[place], last, found))
                if last:
                    del left[partition]
            if pieces:
                demanded = [Demanded(one.place, one.number + 1) for one in pieces]
                returning.tell(supply_message(pieces), demanded)
                number += 1
                self._reached("supply.first" if number == 1 else "supply.middle")
                if not left:
                    self._reached("supply.last")
                await returning.answered()
            elif not more:
                raise NoHistoryError(f"the log says nothing of partitions {sorted(left)}")


def _piece(
    supplier: Incarnation, place: ReturnPlace, sent: _Sent, last: bool, found: FoundNumbers
) -> SupplyPiece:
    record = SuppliedRecord(
        partition=place.partition,
        admission=place.admission,
        source=supplier.member.bytes,
        transactions=tuple(found.transactions),
        closed=tuple(found.closed),
    )
    sent.number += 1
    sent.digest.update(encode_record(record))
    return SupplyPiece(place, sent.number, last, record, sent.digest.digest() if last else b"")
