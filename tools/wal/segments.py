"""What ``wal ls`` and ``db info`` tell about each segment of a log.

Invariants:

- The index beside a segment is used if there is one; else the segment is read.
- A segment that cannot be read has a row that says why.

Left out: what holds a segment back (``inspection``).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from ...affinity.errors import CorruptLogError, FormatVersionError
from ...engine.files.log_source import LogSource
from ...wal.format import segment_name
from ...wal.index import SegmentIndex
from ...wal.reader import load_index
from ...wal.records import UndecodableRecordError
from ...wal.segments import NO_LIMIT, Segment, open_segment, segment_numbers, walk
from ...wal.tail import End
from ..shell.text import shown_time


@dataclass(slots=True)
class _Seen:
    """A segment with the size of its file, or why its header cannot be read."""

    number: int
    size: int
    segment: Segment | None
    problem: str | None


def describe_segments(source: LogSource) -> tuple[list[dict[str, Any]], End]:
    """Return one row per segment, oldest first, and how the log ends."""
    scan = source.scan(wanted=lambda _number: False)
    for _frame in scan:
        pass
    seen = []
    for number in segment_numbers(source.directory):
        # A live writer may drop the oldest ones at any moment.
        with contextlib.suppress(FileNotFoundError):
            seen.append(_look(source, number))
    try:
        borders = [found.segment.first_position for found in seen[1:] if found.segment]
        ends = [*borders, scan.end.position]
        rows = []
        for found in seen:
            if found.segment is None:
                rows.append({"segment": found.number, "bytes": found.size, "state": found.problem})
                continue
            first = found.segment.first_position
            end = next((border for border in ends if border > first), first)
            last = found is seen[-1]
            if not last and not any(other.number == found.number + 1 for other in seen):
                end = NO_LIMIT
            rows.append(_row(source, found, found.segment, end, last=last))
        return rows, scan.end
    finally:
        for found in seen:
            if found.segment is not None:
                found.segment.file.close()


def _look(source: LogSource, number: int) -> _Seen:
    file = source.directory.open_read(segment_name(number))
    size = file.size()
    file.close()
    try:
        return _Seen(number, size, open_segment(source.directory, number), None)
    except (CorruptLogError, FormatVersionError) as error:
        return _Seen(number, size, None, str(error))


def _row(
    source: LogSource, found: _Seen, segment: Segment, end: int, *, last: bool
) -> dict[str, Any]:
    index = None if last else load_index(source.directory, found.number)
    state = "last" if last else "sealed"
    if end == NO_LIMIT:
        state += f"; segment {found.number + 1} is missing"
    row = {
        "segment": found.number,
        "first_position": segment.first_position,
        "end_position": end,
        "bytes": found.size,
        "log_id": segment.log_id.hex(),
        "index": index is not None,
    }
    try:
        contents = index or SegmentIndex.build(
            found.number, segment.first_position, walk(segment, segment.first_position, end)
        )
    except (UndecodableRecordError, FormatVersionError) as error:
        return row | {"state": f"{state}; {error}"}
    return row | {
        "end_position": contents.end_position if end == NO_LIMIT else end,
        "oldest": None if contents.oldest is None else shown_time(contents.oldest),
        "newest": None if contents.newest is None else shown_time(contents.newest),
        "partitions": len(contents.counters),
        "state": state,
    }
