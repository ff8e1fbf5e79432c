"""The inner sizes and times of the engine that are not options: how much is done at a time.

Users have no reason to change any of these.  Tests and simulations shrink them, so that few bytes
make many pieces: they come with the ``Environment``, and whoever needs one takes it from there when
it is made.

Left out: what ``open`` takes (``store.options``), and sizes that nobody ever has to change, which
are constants of their modules.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...wal.writer import WRITE_SIZES, WriteSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much the engine does at a time, and how long it waits; named with their units."""

    log_writes: WriteSizes = WRITE_SIZES
    """How the end of the log is written."""
    copy_bytes: int = 64 << 10
    """Bytes of the log that a recovery writes anew in one write."""
    batch_updates: int = 16_384
    """Updates after which a checkpoint begins another LMDB transaction, at the end of a piece."""
    piece_updates: int = 65_536
    """The most updates of one partition in one transaction: they bound what LMDB holds in
    memory."""
    renewed_pairs: int = 16_384
    """Pairs that were cleared, from which on what stays may go into a new data file."""
    renewed_share: int = 8
    """It does if so many times the pairs that stay were cleared, at least."""
    load_block_bytes: int = 1 << 20
    """Bytes of a load that are checked, or read, at a time."""
    attach_rows: int = 65_536
    """Rows of a load after which the next transaction begins, at the end of a block."""
    attach_bytes: int = 16 << 20
    """Bytes of such rows after which it does."""
    outcomes: int = 1_000_000
    """Entries of given ids that are kept: beyond it the oldest go."""
    sweep_outcomes: int = 1000
    """Entries that one transaction of a sweep deletes."""
    patience_seconds: float = 0.25
    """Seconds after which a thread that waits looks whether anybody is left to wake it."""
    merged_nowait_bytes: int = 1 << 20
    """Bytes of layers that taking a snapshot may merge if nobody may be kept waiting."""
    lock_places: int = 64
    """Transactions under Trio, of one store, that hold or await locks at a time."""


LIMITS = Limits()
"""What every store has outside of tests."""
