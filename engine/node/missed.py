"""What copies have missed, sent to them from the log, piece by piece.

The log is read once for all partitions to which a copy comes back together.

Invariants:

- Of what is sent at most ``PIECE_BYTES`` and one record wait for an answer, per copy.
- The log is pinned from before it is searched.
- A copy hears that it has all only if each number that it lacked was sent, or was closed (B5), and
  with that a digest of all that was sent, which it compares (M3).

Left out: what is looked for (``checkpoints.supplying``), and reading (``supply_log``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import trio

from ...affinity.errors import CorruptLogError
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
from ..store.store_files import StoreFiles
from .log import NodeLog
from .returns import PATIENCE_S, Return, StoppedError
from .supply_log import SearchedLog, begun
from .ways_back import WaysBack

PIECE_BYTES = 512 << 10
"""Bytes of keys and values from which on the rest goes with the next piece."""


class _Sent:
    """What was sent of the history of one place."""

    def __init__(self) -> None:
        self.number = 0
        """The last piece."""
        self.digest = new_digest()


class MissedHistory:
    """The history that one incarnation sends."""

    def __init__(
        self,
        me: Incarnation,
        files: StoreFiles,
        node_log: NodeLog,
        ways: WaysBack,
        reached: Callable[[str], None],
    ) -> None:
        self._me = me
        self._files = files
        self._log = node_log
        self._ways = ways
        self._reached = reached

    def __repr__(self) -> str:
        return f"<MissedHistory of {self._me}>"

    async def send(self, returning: Return, wanted: Mapping[ReturnPlace, WantedNumbers]) -> None:
        """Send what the log has of what is missing, piece by piece."""
        left = {place.partition: place for place, row in wanted.items() if row.missing}
        if not left:
            return
        run, keeper = self._files.environment.run, self._files.keeper
        # What has committed by now is told in the log, and that is durable, up to here.
        with trio.move_on_after(PATIENCE_S):
            await self._log.told()
        upto = self._log.position
        sought = {place.partition: wanted[place] for place in left.values()}
        owner = f"copy {returning.copy}"
        try:
            searched, pin = await run("supply", lambda: begun(keeper, owner, sought, upto))
            try:
                await self._send_from(returning, searched, left)
            finally:
                keeper.pins.release(pin)
        except CorruptLogError as error:
            # Damage, or something that began before the first segment that is needed.
            self._ways.lacks(returning.copy, sought)
            raise StoppedError(f"the log does not tell what is missing: {error}") from None

    async def _send_from(
        self, returning: Return, searched: SearchedLog, left: dict[int, ReturnPlace]
    ) -> None:
        number, more, environment = 0, True, self._files.environment
        read = partial(searched.read, PIECE_BYTES, environment.rest)
        sent = {place: _Sent() for place in left.values()}
        while left:
            more = await environment.run("supply", read)
            pieces: list[SupplyPiece] = []
            for partition, found in searched.search.take_out().items():
                place = left.get(partition)
                if place is None:
                    continue
                self._check_found(returning, partition, found, more)
                last = not found.not_yet
                if not (last or found.transactions or found.closed):
                    continue
                pieces.append(self._piece(place, sent[place], last, found))
                if last:
                    del left[partition]
            if not pieces:
                continue
            demanded = [Demanded(one.place, one.number + 1) for one in pieces]
            returning.tell(supply_message(pieces), demanded)
            number += 1
            self._reached("supply.first" if number == 1 else "supply.middle")
            if not left:
                self._reached("supply.last")
            await returning.answered()

    def _check_found(
        self, returning: Return, partition: int, found: FoundNumbers, more: bool
    ) -> None:
        """Raise if the log does not have what is missing; it is copied in full then (B5)."""
        if found.lacking or (found.not_yet and not more):
            self._ways.lacks(returning.copy, [partition])
            raise StoppedError(f"the log lacks numbers of partition {partition}")

    def _piece(
        self, place: ReturnPlace, sent: _Sent, last: bool, found: FoundNumbers
    ) -> SupplyPiece:
        record = SuppliedRecord(
            partition=place.partition,
            admission=place.admission,
            source=self._me.member.bytes,
            transactions=tuple(found.transactions),
            closed=tuple(found.closed),
        )
        sent.number += 1
        sent.digest.update(encode_record(record))
        return SupplyPiece(place, sent.number, last, record, sent.digest.digest() if last else b"")
