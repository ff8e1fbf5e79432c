"""Gathering what there is where the valid frames of a log end, and saying what that means.

Owns the way from files to an ``End``: what lies behind the end, what it proves to be durable, and,
for a log that is refused, what is lost.

Invariants:

- The table in ``tail`` decides; this module only looks.
- Everything is read in bounded pieces, and nothing is written.

Left out: the walk to the end (``reader``), and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from .damage import lost_ranges, transactions_in
from .format import FRAME_OVERHEAD, HEADER_SIZE
from .segments import NO_LIMIT, Segment, headers, later_frames, probe, seal_at, used_end, walk
from .sequence import Fault
from .tail import End, EndKind, LogPlace, Sight, verdict

DAMAGED_BYTES_READ_MAX = 1 << 20
"""How much of a damaged frame is searched for the transactions that it held."""


class Survey(NamedTuple):
    """What lies behind an offset: where non-zero bytes end, and the valid frames among them."""

    used: int
    first: LogPlace | None = None
    frames: int = 0
    synced: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkEnd:
    """Where a walk stopped in ``segment``, and what was known then.

    ``following`` is the next segment that exists, of whatever number.  ``unread`` is that segment
    as it must have been, if its header is unreadable.  ``durable`` is w so far, ``before`` the
    last valid frame.  ``indexed`` tells whether an index of the segment says that it ends here,
    ``alone`` that nobody asked for the segments behind it.
    """

    segment: Segment
    position: int
    following: Segment | Fault | None
    unread: Segment | None
    durable: int
    before: LogPlace | None
    indexed: bool = False
    alone: bool = False

    @property
    def offset(self) -> int:
        """The file offset of the position."""
        return self.segment.offset_of(self.position)

    @property
    def limit(self) -> int:
        """Where the next readable segment begins."""
        following = self.following
        return following.first_position if isinstance(following, Segment) else NO_LIMIT


def judge(walked: WalkEnd) -> End:
    """Return how the log ends; ``walked.segment`` holds no valid frame at the position."""
    segment, following = walked.segment, walked.following
    here = _survey(segment, walked.offset, walked)
    there = _survey(walked.unread, 0, walked) if walked.unread else Survey(0)
    seal = None if walked.alone else seal_at(segment, walked.position)
    durable = max(walked.durable, here.synced, there.synced, seal.end if seal else 0)
    sight = _sight(walked, here, sealed=seal is not None or walked.indexed)
    proven = durable > walked.position or (isinstance(following, Fault) and not following.last)
    row = verdict(sight, proven)
    torn = row.kind is EndKind.TORN
    end = End(
        row=row.letter,
        kind=row.kind,
        reason=row.reason,
        position=walked.position,
        segment=segment.number,
        offset=walked.offset,
        durable=durable,
        before=walked.before,
        after=here.first or there.first or _first_of(following),
        dropped_bytes=(here.used - walked.offset + there.used) if torn else 0,
        dropped_frames=(here.frames + there.frames) if torn else 0,
    )
    if sight in (Sight.MISSING, Sight.SEALED):
        return replace(end, segment=segment.number + 1, offset=0)
    if isinstance(following, Fault):
        return _blamed(end, following)
    seen = probe(segment, walked.position)
    return replace(end, expected=seen.expected, found=seen.found)


def _survey(segment: Segment, offset: int, walked: WalkEnd) -> Survey:
    used = used_end(segment.file, offset)
    first, frames, synced = None, 0, 0
    if used > offset:
        for frame in later_frames(segment, offset + 1, walked.limit):
            first = first or LogPlace(frame.position, segment.number, frame.offset)
            frames += 1
            synced = max(synced, frame.synced)
            if synced > walked.position:
                # The log is refused already; the rest of a large segment need not be searched.
                break
    return Survey(used, first, frames, synced)


def _sight(walked: WalkEnd, here: Survey, *, sealed: bool) -> Sight:
    segment, following = walked.segment, walked.following
    if following is None and sealed:
        return Sight.SEALED
    if following is not None and following.number != segment.number + 1:
        return Sight.MISSING
    if isinstance(following, Fault):
        return following.sight
    if walked.limit < walked.position or probe(segment, walked.position).frame:
        return Sight.OVERLAP
    if walked.offset >= segment.file.size():
        return Sight.FILE_END
    if here.used == walked.offset:
        return Sight.ZEROS
    return Sight.STALE if not here.frames and _stale(walked) else Sight.BYTES


def _stale(walked: WalkEnd) -> bool:
    """Whether the next thing that looks like a frame was written before this segment began."""
    found = next(headers(walked.segment.file, walked.offset), None)
    return found is not None and found[2] < walked.segment.first_position


def nowhere(first: Segment | Fault | None, start: int, durable: int) -> End:
    """Return how a log ends whose ``start`` no readable segment holds; ``first`` is the oldest."""
    if first is None:
        sight, number = Sight.NO_SEGMENT, 0
    elif isinstance(first, Segment):
        sight, number = Sight.MISSING, first.number - 1
    else:
        sight, number = first.sight, first.number
    # Where a first segment would begin is not known, so only an empty one proves to be new.
    used = isinstance(first, Fault) and not (first.last and first.empty)
    row = verdict(sight, durable > 0 or start > 0 or used)
    end = End(
        row=row.letter,
        kind=row.kind,
        reason=row.reason,
        position=start,
        segment=number,
        offset=0,
        durable=durable,
        after=_first_of(first),
    )
    return _blamed(end, first) if isinstance(first, Fault) else end


def _first_of(following: Segment | Fault | None) -> LogPlace | None:
    if not isinstance(following, Segment):
        return None
    return LogPlace(following.first_position, following.number, HEADER_SIZE)


def _blamed(end: End, fault: Fault) -> End:
    return replace(
        end,
        reason=f"{end.reason} ({fault.detail})",
        segment=fault.number,
        offset=0,
        expected=fault.expected,
        found=fault.found,
        dropped_segment=None if end.refused else fault.number,
    )


def with_losses(end: End, walked: WalkEnd) -> End:
    """Return ``end`` with the updates and transactions that the stretch at its position held."""
    segment, position = walked.segment, walked.position
    before = walk(segment, segment.first_position, position)
    return replace(
        end,
        lost=lost_ranges((frame.payload for frame in before), _payloads_behind(walked)),
        transactions=transactions_in(_damaged_payload(end, walked)),
    )


def _payloads_behind(walked: WalkEnd) -> Iterator[bytes]:
    following = walked.following
    behind = later_frames(walked.segment, walked.offset + 1, walked.limit)
    yield from (frame.payload for frame in behind)
    if isinstance(following, Segment):
        yield from (frame.payload for frame in walk(following, following.first_position))


def _damaged_payload(end: End, walked: WalkEnd) -> bytes:
    """What may be the payload of the damaged frame: the bytes up to the next valid frame."""
    file, start = walked.segment.file, walked.offset + FRAME_OVERHEAD
    after = end.after
    stop = after.offset if after and after.segment == walked.segment.number else file.size()
    return file.read(start, max(0, min(stop - start, DAMAGED_BYTES_READ_MAX)))
