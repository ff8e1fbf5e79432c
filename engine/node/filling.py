"""Full copies that go out: the pairs of an instant, piece by piece, and the ADMIT that ends them.

Invariants:

- All pieces and the counter are of one instant, or newer where a snapshot had to go meanwhile: what
  is newer than the counter comes again by history, and loses against itself.
- Of what is sent at most two pieces wait for an answer, per copy.
- The log is pinned from before the instant, far enough for what was pending then.

Left out: when a copy needs all there is (``ways_back``), and what it does with it
(``catching_up``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...affinity.errors import SnapshotExpiredError
from ...rebalance.choosing import SupplyKind
from ...tx.counter import PartitionUpdateCounter
from ...wal.records import AdmitRecord
from ..replication.returning import (
    Admitted,
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

FILL_BYTES, FILL_ROWS = 4 << 20, 16_384
"""Bytes of values, or pairs, with which a piece ends; the next one is sent before it is stored."""
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

    def new_number(self, index: int) -> int:
        """Return the number of a new full copy, above all others and the index of a decision."""
        self._last = max(self._last + 1, index)
        return self._last

    async def send(self, returning: Return, place: ReturnPlace) -> None:
        """Send all that there is in a partition, as it is at some moment."""
        partition = place.partition
        returning.expect(place, -1)
        self._pin(returning, partition)
        returning.tell(admit_message([Admitted(place=place, kind=SupplyKind.FULL)]))
        self._reached("admit.sent")
        await returning.answered({place: 1})
        cut = cut_partition(self._files, self._log, partition)
        state = cut.state
        number = 0
        try:
            blocks = cut.blocks(rows=FILL_ROWS, most_bytes=FILL_BYTES)
            after: bytes | None = None
            while True:
                try:
                    block = await self._files.environment.run("supply", partial(next, blocks, []))
                except SnapshotExpiredError:
                    # What is newer than ``state`` comes by history, and may be there before.
                    cut = cut_partition(self._files, self._log, partition)
                    blocks = cut.blocks(after, rows=FILL_ROWS, most_bytes=FILL_BYTES)
                    continue
                number += 1
                last = not block
                if not last:
                    after = block[-1][0]
                record = _ending(state, place.admission) if last else None
                keys, values = [key for key, _ in block], [value for _, value in block]
                returning.tell(fill_message(FillPiece(place, number, keys, values, record)))
                self._reached("supply.first" if number == 1 else "supply.middle")
                if last:
                    self._reached("supply.last")
                await returning.answered({place: number + last})
                if last:
                    return
        finally:
            cut.close()

    def _pin(self, returning: Return, partition: int) -> None:
        """Hold the log for what comes behind the pairs, until the copy follows the stream."""
        pins, first = self._files.keeper.pins, self._files.keeper.first_position
        first = max(first, self._log.position - PENDING_BYTES)
        old = returning.pins.pop(partition, None)
        owner = f"copy {returning.copy}"
        returning.pins[partition] = pins.set(owner, first, limit=PIN_BYTES_MAX)
        if old is not None:
            pins.release(old)


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
