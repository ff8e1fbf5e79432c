"""Full copies that go out: the pairs of an instant, piece by piece, and the ADMIT that ends them.

Invariants:

- All pieces and the counter are of one instant, or newer where a snapshot had to go meanwhile: what
  is newer than the counter comes again by history, and loses against itself.
- Of what is sent at most ``AHEAD_BYTES`` and one piece are under way to a copy that has not said
  that they have arrived.
- While others write, a copy is sent to for a seventh of the time: the rest is theirs, on the disks,
  the wires and the processors of all who take part.
- The log is pinned from before the instant, far enough for what was pending then.
- With the ADMIT goes a tally of all pairs that were sent: the copy compares (M3).

Left out: when a copy needs all there is (``ways_back``), and what it does with it (``taking_in``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import trio

from ...affinity.errors import SnapshotExpiredError
from ...rebalance.choosing import SupplyKind
from ...tx.counter import PartitionUpdateCounter
from ...wal.records import AdmitRecord
from ..data.full_pairs import PackedPairs, PairTally, packed
from ..data.stored import StoredPair
from ..replication.returning import (
    Admitted,
    Demanded,
    FillEnd,
    FillPiece,
    ReturnPlace,
    admit_message,
    fill_message,
)
from ..store.partition_cuts import PartitionState, cut_partition
from ..store.store_files import StoreFiles
from .log import NodeLog
from .returns import Return
from .supply_log import PIN_BYTES_MAX

PIECE_BYTES, PIECE_ROWS = 1 << 20, 4096
"""Bytes of values, or pairs, with which a piece ends: it is encoded and sent in the loop."""
BLOCK_BYTES, BLOCK_ROWS = 256 << 10, 1024
"""Bytes of values, or pairs, that are read and checked together."""
AHEAD_BYTES = 4 << 20
"""Bytes under way from which on no further piece is sent."""
PAUSES, PAUSE_S_MAX = 6, 0.5
"""Pauses behind a piece while others write, each as long as that took, and seconds at most."""
PENDING_BYTES = 64 << 20
"""Bytes of log before an instant in which the PREPARE of everything pending then is looked for."""


class Filling:
    """The full copies that one incarnation sends."""

    def __init__(
        self, files: StoreFiles, node_log: NodeLog, reached: Callable[[str], None]
    ) -> None:
        self._files = files
        self._log = node_log
        self._reached = reached
        self._last = 0

    def __repr__(self) -> str:
        return f"<Filling {self._last}>"

    def new_place(self, partition: int, epoch: int, index: int) -> ReturnPlace:
        """Return the place of a new full copy, whose number is above all others and an index."""
        self._last = max(self._last + 1, index)
        return ReturnPlace(partition, epoch, self._last)

    async def begin(self, returning: Return, places: Sequence[ReturnPlace]) -> None:
        """Have a copy remove what it has of some partitions, so that nothing of it counts."""
        for place in places:
            returning.expect(place, -1)
            self._pin(returning, place.partition)
        if places:
            admitted = [Admitted(place=place, kind=SupplyKind.FULL) for place in places]
            returning.tell(admit_message(admitted), [Demanded(place, 1) for place in places])
            self._reached("admit.sent")
            await returning.answered()

    async def send(self, returning: Return, place: ReturnPlace) -> None:
        """Send all that there is in a partition, as it is at some moment, to who has begun.

        The end of it is on its way then: the next partition follows without a pause.
        """
        number, tally, now = 0, PairTally(), self._files.environment.monotonic
        pairs = _Pairs(self._files, self._log, place.partition)
        try:
            while True:
                began, position = now(), self._log.position
                try:
                    found = await self._files.environment.run("supply", pairs.next)
                except SnapshotExpiredError:
                    # What is newer than the counter comes by history, and may be there before.
                    pairs.cut_anew()
                    continue
                if found is None:
                    break
                number += 1
                piece, of_piece = found
                tally = tally.plus(of_piece)
                message = fill_message(FillPiece(place, number, piece))
                returning.tell(message, [Demanded(place, number + 1)], piece.size)
                self._reached("supply.first" if number == 1 else "supply.middle")
                await returning.room(AHEAD_BYTES)
                if self._log.position > position:  # somebody writes meanwhile
                    await trio.sleep(min(PAUSES * (now() - began), PAUSE_S_MAX))
            number += 1
            end = FillEnd(_ending(pairs.state, place.admission), tally)
            message = fill_message(FillPiece(place, number, PackedPairs(b"", b""), end))
            returning.tell(message, [Demanded(place, number + 1)])
            self._reached("supply.last")
        finally:
            pairs.close()

    def _pin(self, returning: Return, partition: int) -> None:
        """Hold the log for what comes behind the pairs, until the copy follows the stream."""
        pins, first = self._files.keeper.pins, self._files.keeper.first_position
        first = max(first, self._log.position - PENDING_BYTES)
        old = returning.pins.pop(partition, None)
        owner = f"copy {returning.copy}"
        returning.pins[partition] = pins.set(owner, first, limit=PIN_BYTES_MAX)
        if old is not None:
            pins.release(old)


class _Pairs:
    """The pairs of a partition, as they are when this is made."""

    def __init__(self, files: StoreFiles, node_log: NodeLog, partition: int) -> None:
        self._files = files
        self._log = node_log
        self._partition = partition
        self._after: bytes | None = None
        self.cut_anew()
        self.state = self._cut.state
        """What is known of the partition beside them."""

    def cut_anew(self) -> None:
        """Go on with the pairs as they are now."""
        self._cut = cut_partition(self._files, self._log, self._partition)
        rows, size = min(BLOCK_ROWS, PIECE_ROWS), min(BLOCK_BYTES, PIECE_BYTES)
        self._blocks = self._cut.blocks(self._after, rows=rows, most_bytes=size)

    def next(self) -> tuple[PackedPairs, PairTally] | None:
        """Return the next pairs and their tally, None behind the last; reads files.

        Raises ``SnapshotExpiredError`` if these have had to go.
        """
        pairs: list[StoredPair] = []
        size = 0
        for block in self._blocks:
            pairs += block
            size += sum(map(len, map(itemgetter(1), block)))
            if size >= PIECE_BYTES or len(pairs) >= PIECE_ROWS:
                break
        if not pairs:
            return None
        self._after = pairs[-1][0]
        return packed(pairs)

    def close(self) -> None:
        """Let go of what the pairs pin."""
        self._cut.close()


def _ending(state: PartitionState, admission: int) -> AdmitRecord:
    """Return what ends a full copy: the counter and the epochs of its instant."""
    counter = PartitionUpdateCounter.from_bytes(state.counter)
    return AdmitRecord(
        partition=state.partition,
        admission=admission,
        epochs=state.epochs,
        lwm=counter.lwm,
        ranges=tuple(counter.out_of_order),
        hwm=counter.hwm,
        dropped=(),
    )
