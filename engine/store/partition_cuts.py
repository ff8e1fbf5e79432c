"""One partition as it was at one instant: its pairs, counters, epochs and what is pending.

A full copy is made from one.  Taking it costs as much as taking a snapshot, whatever the partition
holds, and like a snapshot it pins layers and pages until it is closed.  It may be expired: the data
file has to grow, or snapshots pin too much memory.  Then whoever reads from it begins again with a
new one.

Invariants:

- Pairs, counters, epochs and pending transactions are those behind one record of the log.
- A cut never changes, and reading it keeps nobody from committing.

Left out: what is sent of it, and to whom (``rebalance``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...affinity.errors import ClosedError, SnapshotExpiredError, TidelogError
from ...wal.records import Record
from ..data.overlay import Layer, View
from ..data.raw_scan import raw_blocks
from ..data.stored import PENDING, PREFIX_SIZE, StoredPair, pack_prefix
from ..system.lmdb_file import KvReadError, read_error
from .checkpointer import CheckpointSource
from .store_files import StoreFiles

BLOCK_ROWS = 1024
BLOCK_BYTES = 1 << 20
_FIRST = 1
"""The first namespace of which a copy gets the pairs; below lie the marks."""
_PENDING = PENDING.to_bytes(4, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """What is known of a partition beside its pairs.

    ``position`` is the end of the log then, ``counter`` the bytes of its update counter, ``epochs``
    its epoch table as (epoch, first number), and ``pending`` the records of prepared transactions
    without an outcome.
    """

    partition: int
    position: int
    counter: bytes
    epochs: tuple[tuple[int, int], ...]
    pending: tuple[Record, ...]


class PartitionCut:
    """One partition at one instant; made by ``cut_partition``.  Close it, or use ``with``."""

    _view: View | None = None

    def __init__(
        self, state: PartitionState, taken: tuple[View, Layer], ended: Callable[[Layer], object],
        began: float,
    ) -> None:  # fmt: skip
        self.state = state
        self.began = began
        self._ended = ended
        self._error: Callable[[], TidelogError] = _closed
        self._view, self._boundary = taken

    def blocks(
        self, after: bytes | None = None, *, rows: int = BLOCK_ROWS, most_bytes: int = BLOCK_BYTES
    ) -> Iterator[list[StoredPair]]:
        """Yield (full key, stored value) in order, deletes that are remembered included.

        ``after`` is a full key behind which to go on.  A block ends at ``rows`` pairs or when it
        has ``most_bytes``.  Raises ``CorruptDataError`` for damage, ``SnapshotExpiredError`` or
        ``ClosedError`` if the cut has ended.
        """
        partition = self.state.partition
        low = pack_prefix(partition, _FIRST) if after is None else after + b"\0"
        high = pack_prefix(partition + 1, 0)
        found = raw_blocks(self._viewed(), partition, low, high, rows=rows, most_bytes=most_bytes)
        try:
            for block in found:
                # Ended meanwhile, its layers may have been merged with newer ones.
                self._viewed()
                kept = [pair for pair in block if pair[0][4:PREFIX_SIZE] != _PENDING]
                if kept:
                    yield kept
                    self._viewed()
        except KvReadError as error:
            self._viewed()
            raise read_error(error) from None

    def _viewed(self) -> View:
        if self._view is None:
            raise self._error()
        return self._view

    def layers(self) -> tuple[Layer, ...] | None:
        """Return the layers that it pins; None once it has ended."""
        return None if self._view is None else self._view.layers

    def expire(self, why: str) -> None:
        """End it from outside; its next use raises ``SnapshotExpiredError``."""
        self.end(lambda: SnapshotExpiredError(f"the cut of a partition was ended: {why}"))

    def forked(self, error: Callable[[], TidelogError]) -> None:
        """End it in the child of a fork; its next use raises ``error()``."""
        self.end(error)

    def end(self, error: Callable[[], TidelogError]) -> None:
        """End it from outside; its next use raises ``error()``."""
        if self._view is not None:
            self._error = error
            self.close()

    def close(self) -> None:
        """Let go of what it pins; closing twice is fine."""
        if self._view is not None:
            self._view = None
            self._ended(self._boundary)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> PartitionCut:
        self._viewed()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def cut_partition(files: StoreFiles, source: CheckpointSource, partition: int) -> PartitionCut:
    """Return a partition as it is now; ``source`` is who writes the store."""
    with source.mutex:
        source.check_writable()
        known, overlay = files.state, files.overlay
        state = PartitionState(
            partition=partition,
            position=source.applied_position,
            counter=known.counters[partition].to_bytes(),
            epochs=tuple(known.epoch_tables[partition]),
            pending=tuple(known.copies.entries(partition)),
        )
        taken = overlay.snapshot()
    cut = PartitionCut(state, taken, overlay.ended.append, files.environment.monotonic())
    files.snapshots.add(cut)
    return cut


def _closed() -> TidelogError:
    return ClosedError("the cut of a partition is closed")
