"""Opens the log of a claimed store for appending, behind its end.

Left out: where the log ends (``replaying``), and what is appended.
"""

from __future__ import annotations

from ...checkpoints.replay import State
from ...wal.format import SegmentHeader, segment_name
from ...wal.records import encode_record
from ...wal.segments import open_segment, segment_numbers
from ...wal.writer import LogWriter, create_segment, seal_before
from ..files.features import newest_header
from ..files.log_keeper import LogKeeper
from ..system.disk_errors import translated_disk
from .claim import Claim


def open_log(
    claim: Claim,
    state: State,
    position: int,
    keeper: LogKeeper,
    *,
    segment_bytes: int,
    mapped: bool,
) -> LogWriter:
    """Open the last segment for appending at ``position``; begin one if it is another log's."""

    def payload() -> bytes:
        # Not below what was logged: other members, whose clocks differ, have given times, too.
        head = state.record(max(claim.environment.clock(), state.time))
        # Who begins to read here needs the lists of epochs that are opened later on.
        return b"".join([encode_record(head), *map(encode_record, state.copies.lists.values())])

    wal = claim.wal
    header = _header_of_last(claim)
    if header is None:
        header = _next_header(claim, state, position)
        with translated_disk("beginning a segment of the log"):
            file, position = create_segment(wal, header, payload(), mapped=mapped)
    else:
        file = wal.open_write(segment_name(header.number), mapped=mapped)
    with translated_disk("sealing a segment of the log"):
        seal_before(wal, header)
    return LogWriter(
        wal,
        header,
        file,
        position=position,
        synced=position,
        segment_size=segment_bytes,
        state=payload,
        spare=keeper.spare,
        sealed=keeper.sealed,
        mapped=mapped,
        sizes=claim.environment.limits.log_writes,
    )


def _header_of_last(claim: Claim) -> SegmentHeader | None:
    """Return the header of the last segment; None if it is not one of this store's own log."""
    numbers = segment_numbers(claim.wal)
    if not numbers:
        return None
    segment = open_segment(claim.wal, numbers[-1])
    segment.file.close()
    own = segment.log_id == bytes.fromhex(claim.manifests.manifest.log_id)
    return segment.header if own else None


def _next_header(claim: Claim, state: State, position: int) -> SegmentHeader:
    """Return the header of the first segment of this store's own log.

    It has every feature that the manifest or an older segment has.
    """
    manifest, before = claim.manifests.manifest, newest_header(claim.wal)
    return SegmentHeader(
        log_id=bytes.fromhex(manifest.log_id),
        store_id=state.store_id,
        history_id=bytes.fromhex(manifest.history_id),
        number=max(segment_numbers(claim.wal), default=0) + 1,
        first_position=position,
        compatible=manifest.compatible | (before.compatible if before else 0),
        read_only=manifest.read_only | (before.read_only if before else 0),
        required=manifest.required | (before.required if before else 0),
    )
