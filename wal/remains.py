"""What can still be read of a damaged log: all valid frames of its segments, and the holes between.

A reader that is to go on with a log stops at the first hole (``reader``); this one is for whoever
wants what is left.

Invariants:

- Only frames with the right CRC come out, each once, in the order of their positions.
- A hole ends where the next valid frame begins; holes and frames together cover the log.
- A segment with a damaged header is read as the one that its place asks for; one that belongs
  elsewhere is left out, and told.
- Files are opened for reading only.

Left out: whether a hole was ever durable, and what it held (``engine.upkeep.salvage``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from ..affinity.errors import CorruptLogError, FormatVersionError
from .format import Frame, segment_name
from .ports import ReadableDirectory
from .segments import (
    NO_LIMIT,
    Segment,
    headers,
    later_frames,
    open_segment,
    seal_at,
    segment_numbers,
    used_end,
    walk,
)

LogIds = Sequence[tuple[bytes, int]]


class Hole(NamedTuple):
    """A stretch of the log without a valid frame; ``stop`` None is the end of the last file."""

    segment: int
    offset: int
    start: int
    stop: int | None
    why: str


def remains(directory: ReadableDirectory, log_ids: LogIds | None) -> Iterator[Frame | Hole]:
    """Yield the valid frames of a log and the holes between them.

    ``log_ids`` is as for ``reader.Scan``; without it all segments of the first one's log count.
    """
    numbers = segment_numbers(directory)
    end: tuple[int, int, int] | None = None
    """Where the last valid frame ended: segment, offset, position."""
    for index, number in enumerate(numbers):
        segment = _opened(directory, number, end[2] if end else None, log_ids)
        if isinstance(segment, Hole):
            yield segment
            continue
        try:
            log_ids = log_ids or [(segment.log_id, 0)]
            if end is not None and segment.first_position < end[2]:
                yield Hole(number, 0, end[2], end[2], "it begins inside of the segment before it")
                continue
            if end is not None and segment.first_position > end[2]:
                missing = number != end[0] + 1
                why = "a segment is missing" if missing else "an invalid frame"
                yield Hole(end[0], end[1], end[2], segment.first_position, why)
            if segment.header is None:
                place = segment.first_position
                yield Hole(number, 0, place, place, "its header is damaged")
            limit = _limit(directory, numbers[index + 1 :])
            position = yield from _frames(segment, limit)
            end = number, segment.offset_of(position), position
            if index == len(numbers) - 1 and _torn(segment, end[1]):
                sealed = seal_at(segment, position) is not None
                why = "the segment behind it is missing" if sealed else "an invalid frame"
                yield Hole(number, end[1], position, None, why)
        finally:
            segment.file.close()


def _opened(
    directory: ReadableDirectory, number: int, expected: int | None, log_ids: LogIds | None
) -> Segment | Hole:
    """Return a segment of this log, by its header or by its place; or why it is left out."""
    place = expected or 0
    try:
        segment = open_segment(directory, number)
    except FormatVersionError as error:
        return Hole(number, 0, place, place, str(error))
    except CorruptLogError as error:
        if expected is None and number > 1:
            return Hole(number, 0, place, place, f"{error}, and its place is not known")
        log_id = _log_id_at(log_ids, place)
        if log_id is None:
            return Hole(number, 0, place, place, str(error))
        return Segment(
            number=number,
            first_position=place,
            log_id=log_id,
            file=directory.open_read(segment_name(number)),
            header=None,
        )
    if log_ids and segment.log_id != _log_id_at(log_ids, segment.first_position):
        segment.file.close()
        return Hole(number, 0, place, place, "it belongs to another log")
    return segment


def _log_id_at(log_ids: LogIds | None, position: int) -> bytes | None:
    ids = [log_id for log_id, first in log_ids or () if first <= position]
    return ids[-1] if ids else None


def _limit(directory: ReadableDirectory, behind: Sequence[int]) -> int:
    """Return where the next segment begins, as far as its header says."""
    if not behind:
        return NO_LIMIT
    try:
        segment = open_segment(directory, behind[0])
    except (CorruptLogError, FormatVersionError):
        return NO_LIMIT
    segment.file.close()
    return segment.first_position


def _frames(segment: Segment, limit: int) -> Generator[Frame | Hole, None, int]:
    """Yield the frames and holes of a segment; return the position behind the last frame."""
    position = segment.first_position
    while True:
        stop = yield from walk(segment, position, limit)
        position = stop.position
        offset = segment.offset_of(position)
        found = next(later_frames(segment, offset + 1, limit), None)
        if found is None:
            return position
        yield Hole(segment.number, offset, position, found.position, "an invalid frame")
        position = found.position


def _torn(segment: Segment, offset: int) -> bool:
    """Tell whether a frame was begun behind the last valid one: old ones of the file are older."""
    if used_end(segment.file, offset) == offset:
        return False
    found = next(headers(segment.file, offset), None)
    return found is None or found[2] >= segment.first_position
