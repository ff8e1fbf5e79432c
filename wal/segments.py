"""One segment: opening it, walking its frames, and searching it for frames behind a damaged one.

Invariants:

- A frame leaves this module only if its CRC is right for the position that it lies at.
- Memory is bounded by ``CHUNK_BYTES`` or the largest frame; a length that the file cannot hold
  allocates nothing.
- Searching is linear in the length of the file but for bytes that only look like headers of
  frames.

Left out: the order of segments (``reader``), and what their end means (``tail``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from .format import (
    FRAME_MAGIC,
    FRAME_OVERHEAD,
    HEADER_SIZE,
    PAYLOAD_MAX,
    SEAL_MAGIC,
    Frame,
    SegmentHeader,
    log_seed,
    pack_covered,
    parse_frame_header,
    parse_segment_header,
    segment_name,
    segment_number,
    unpack_frame_header,
)
from .ports import ReadableDirectory, ReadableFile
from .records import SealRecord, decode_seal

CHUNK_BYTES = 1 << 20
NO_LIMIT = 1 << 64
"""A position that no log reaches."""

_ZEROS = bytes(CHUNK_BYTES)


class Stop(NamedTuple):
    """Where a walk ended: behind the last valid frame, which began at ``last``, if any."""

    position: int
    last: int | None
    synced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """An open segment: what its header says, or what it would say if it were readable."""

    number: int
    first_position: int
    log_id: bytes
    file: ReadableFile
    header: SegmentHeader | None

    def offset_of(self, position: int) -> int:
        """Return the file offset of a position."""
        return HEADER_SIZE + position - self.first_position

    def position_of(self, offset: int) -> int:
        """Return the position at a file offset."""
        return self.first_position + offset - HEADER_SIZE


def segment_numbers(directory: ReadableDirectory) -> list[int]:
    """Return the numbers of all segments in a directory, lowest first."""
    numbers = (segment_number(name) for name in directory.names())
    return sorted(number for number in numbers if number is not None)


def segment_sizes(directory: ReadableDirectory) -> list[int]:
    """Return the sizes of all segments, lowest first; a writer may drop some meanwhile."""
    sizes = []
    for number in segment_numbers(directory):
        with suppress(FileNotFoundError):
            file = directory.open_read(segment_name(number))
            try:
                sizes.append(file.size())
            finally:
                file.close()
    return sizes


def open_segment(directory: ReadableDirectory, number: int) -> Segment:
    """Open a segment and check its header.

    Raises ``CorruptLogError`` for a damaged header, ``FormatVersionError`` for one of a later
    version, ``FileNotFoundError`` if there is no such segment.
    """
    file = directory.open_read(segment_name(number))
    try:
        header = parse_segment_header(file.read(0, HEADER_SIZE), number)
        return Segment(
            number=number,
            first_position=header.first_position,
            log_id=header.log_id,
            file=file,
            header=header,
        )
    except BaseException:
        file.close()
        raise


def walk(segment: Segment, position: int, limit: int = NO_LIMIT) -> Generator[Frame, None, Stop]:
    """Yield the valid frames from ``position`` on that end at or below ``limit``.

    Returns where they end.  This is the inner loop of recovery, so it knows the fields of a
    frame header itself.
    """
    file, number, seed = segment.file, segment.number, log_seed(segment.log_id)
    shift = HEADER_SIZE - segment.first_position
    last: int | None = None
    highest, ask = 0, CHUNK_BYTES
    while position < limit:
        chunk = file.read(position + shift, ask)
        at, end, ask = 0, len(chunk), CHUNK_BYTES
        while end - at >= FRAME_OVERHEAD:
            magic, length, crc, synced = unpack_frame_header(chunk, at)
            size = FRAME_OVERHEAD + length
            stop = at + size
            if magic != FRAME_MAGIC or not length or position + size > limit:
                return Stop(position, last, highest)
            if stop > end:
                if length > PAYLOAD_MAX or position + shift + size > file.size():
                    return Stop(position, last, highest)
                ask = max(CHUNK_BYTES, size)
                break
            payload = chunk[at + FRAME_OVERHEAD : stop]
            if crc32c(payload, crc32c(pack_covered(position, length, synced), seed)) != crc:
                return Stop(position, last, highest)
            # `tuple.__new__` skips a call in Python that costs a fifth of this loop.
            yield tuple.__new__(Frame, (position, synced, payload, number, position + shift))
            last = position
            if synced > highest:
                highest = synced
            position += size
            at = stop
        else:
            if at == 0:
                break
    return Stop(position, last, highest)


class Probe(NamedTuple):
    """What lies at a position: a frame, or the CRCs of what may have been one, or nothing."""

    frame: Frame | None = None
    expected: int | None = None
    found: int | None = None


def probe(segment: Segment, position: int, magic: bytes = FRAME_MAGIC) -> Probe:
    """Look at one position of a segment, reading the file anew."""
    file, offset = segment.file, segment.offset_of(position)
    header = parse_frame_header(file.read(offset, FRAME_OVERHEAD), 0, magic)
    if header is None or offset + FRAME_OVERHEAD + header.length > file.size():
        return Probe()
    payload = file.read(offset + FRAME_OVERHEAD, header.length)
    found = header.crc_found(log_seed(segment.log_id), position, payload)
    if found != header.crc:
        return Probe(None, header.crc, found)
    return Probe(Frame(position, header.synced, payload, segment.number, offset))


def seal_at(segment: Segment, position: int) -> SealRecord | None:
    """Return the seal at a position, or None if there is none that can be trusted."""
    found = probe(segment, position, SEAL_MAGIC).frame
    return decode_seal(found.payload) if found else None


def later_frames(
    segment: Segment, offset: int, limit: int = NO_LIMIT
) -> Generator[Frame, None, None]:
    """Search from a file offset on for valid frames below position ``limit``, and yield them."""
    size = segment.file.size()
    for at, length, synced in headers(segment.file, offset):
        position = segment.position_of(at)
        if at < offset or at + FRAME_OVERHEAD + length > size or position >= limit:
            continue
        # A frame of this segment was written when everything before the segment was synced, and
        # nobody knew more to be durable than what came before it.
        if segment.first_position <= synced <= position:
            stop = yield from walk(segment, position, limit)
            offset = segment.offset_of(stop.position)


def headers(file: ReadableFile, offset: int) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, length, synced) of whatever looks like the header of a frame."""
    while chunk := file.read(offset, CHUNK_BYTES):
        at = -1 if chunk == _ZEROS else chunk.find(FRAME_MAGIC)
        while 0 <= at <= len(chunk) - FRAME_OVERHEAD:
            header = parse_frame_header(chunk, at)
            if header is not None:
                yield offset + at, header.length, header.synced
            at = chunk.find(FRAME_MAGIC, at + 1)
        if len(chunk) < FRAME_OVERHEAD:
            return
        # A header that this chunk cuts off is whole in the next one.
        offset += len(chunk) - FRAME_OVERHEAD + 1


def used_end(file: ReadableFile, offset: int) -> int:
    """Return the offset behind the last byte that is not zero, or ``offset`` if all are."""
    used = offset
    while chunk := file.read(offset, CHUNK_BYTES):
        if chunk != _ZEROS[: len(chunk)]:
            used = offset + len(chunk.rstrip(b"\0"))
        offset += len(chunk)
    return used
