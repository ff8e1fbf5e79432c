"""The segments of one directory in their order, each checked to be what its place asks for.

Owns which segment follows which, and which log a segment has to belong to.

Invariants:

- A segment is opened by name, and only once until it is forgotten.
- Every segment that is handed out has the log id that its first position asks for and the number
  of its name.  Others are handed out as a ``Fault``.

Left out: frames (``segments``), and what a fault means for the log (``ending``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..affinity.errors import CorruptLogError, HistoryTruncatedError
from .format import segment_name
from .ports import ReadableDirectory
from .segments import Segment, open_segment, segment_numbers, used_end
from .tail import Sight


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A segment that cannot be read, and why.

    ``last``: no segment has a higher number; ``empty``: the file holds nothing, or only zeros.
    """

    number: int
    sight: Sight
    last: bool
    detail: str
    empty: bool = False
    expected: int | None = None
    found: int | None = None


class LogFiles:
    """The segments of a directory, opened on demand and checked to be of one log.

    ``log_ids`` lists (log id, first position) in rising order; a segment has to carry the id of
    the last entry at or below its first position.  Without a list all segments have to carry the
    id of the one that is opened first.
    """

    def __init__(
        self,
        directory: ReadableDirectory,
        log_ids: Sequence[tuple[bytes, int]] | None = None,
    ) -> None:
        self._directory = directory
        self._log_ids = log_ids
        self._open: dict[int, Segment] = {}

    def numbers(self) -> list[int]:
        """Return the numbers of all segments that there are now, lowest first."""
        return segment_numbers(self._directory)

    def open(self, number: int) -> Segment | Fault:
        """Return the segment, or why it cannot be read; a segment is opened once."""
        if number in self._open:
            return self._open[number]
        try:
            segment = open_segment(self._directory, number)
        except FileNotFoundError:
            raise HistoryTruncatedError(
                f"segment {number} was dropped while the log was read",
                hint="A writer dropped that part of the log meanwhile; run it again.",
            ) from None
        except CorruptLogError as error:
            return replace(
                self._fault(number, Sight.BAD_HEADER, str(error)),
                empty=self._is_empty(number),
                expected=error.expected,
                found=error.found,
            )
        fault = self._misplaced(segment)
        if fault is not None:
            segment.file.close()
            return fault
        self._open[number] = segment
        return segment

    def following(self, number: int) -> Segment | Fault | None:
        """Return the next higher segment that exists now."""
        higher = [found for found in self.numbers() if found > number]
        return self.open(higher[0]) if higher else None

    def unread(self, fault: Fault, position: int) -> Segment | None:
        """Open a segment with an unreadable header as the one that must begin at ``position``."""
        log_id = self._log_id_at(position)
        if log_id is None or fault.sight is not Sight.BAD_HEADER:
            return None
        file = self._directory.open_read(segment_name(fault.number))
        return Segment(
            number=fault.number, first_position=position, log_id=log_id, file=file, header=None
        )

    def highest_first_position(self, number: int) -> int:
        """Return the highest first position of the readable segments above ``number``, or 0."""
        highest = 0
        for other in self.numbers():
            if other > number:
                known = other in self._open
                segment = self.open(other)
                if isinstance(segment, Segment):
                    highest = max(highest, segment.first_position)
                    if not known:
                        self.forget(other)
        return highest

    def forget(self, number: int) -> None:
        """Close a segment; it is opened anew when it is asked for again."""
        segment = self._open.pop(number, None)
        if segment is not None:
            segment.file.close()

    def close(self) -> None:
        """Close all segments."""
        for number in list(self._open):
            self.forget(number)

    def _misplaced(self, segment: Segment) -> Fault | None:
        assert segment.header is not None, "an opened segment has a header"
        expected = self._log_id_at(segment.first_position)
        if expected is None and not self._log_ids:
            self._log_ids = [(segment.log_id, 0)]
        elif segment.log_id != expected:
            detail = f"log {segment.log_id.hex()}, expected {expected.hex() if expected else '-'}"
            return self._fault(segment.number, Sight.OTHER_LOG, detail)
        if segment.header.number != segment.number:
            detail = f"its header says {segment.header.number}"
            return self._fault(segment.number, Sight.WRONG_NUMBER, detail)
        return None

    def _log_id_at(self, position: int) -> bytes | None:
        ids = [log_id for log_id, first in self._log_ids or () if first <= position]
        return ids[-1] if ids else None

    def _is_empty(self, number: int) -> bool:
        file = self._directory.open_read(segment_name(number))
        try:
            return used_end(file, 0) == 0
        finally:
            file.close()

    def _fault(self, number: int, sight: Sight, detail: str) -> Fault:
        last = number == self.numbers()[-1]
        return Fault(number=number, sight=sight, last=last, detail=detail)
