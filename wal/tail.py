"""What the end of a log means: clean, torn, or damaged.

Owns the table of verdicts and ``End``, which carries one to whoever reads a log.

Invariants:

- *w* is the highest position that anything valid shows to have been durable: the manifest, the
  partition store, ``synced`` of a valid frame, the first position of a valid segment, the seal of
  the segment before.  An invalid frame below w is damage.  At or above w everything from the first
  invalid frame on may be cut, valid frames behind it included: nobody was told that they are
  durable.
- The verdict follows from two inputs only: what was seen where valid frames end, and whether w is
  above that position.
- A newest segment that was in use is never taken for one that is yet to come.
- A log is never refused for what an interrupted writer leaves, and never cut below w.

Left out: gathering what is seen (``reader``), naming what is lost (``damage``), cutting (the
writer).  A damaged last group that nothing later proves durable looks like a torn tail.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from ..affinity.errors import CorruptLogError


class EndKind(StrEnum):
    """How a log ends."""

    CLEAN = "clean"
    PREALLOCATED = "preallocated-zero"
    RECYCLED = "recycled"
    TORN = "torn-tail"
    DAMAGED = "damaged"
    GAP = "gap"
    FOREIGN = "foreign"


REFUSED = {
    EndKind.DAMAGED: "the log is damaged",
    EndKind.GAP: "the log has a gap",
    EndKind.FOREIGN: "the log has a segment of another log",
}
"""Ends after which a log must not be continued, and what a check calls them."""


class Sight(Enum):
    """What there is at the position where valid frames end."""

    NO_SEGMENT = auto()
    FILE_END = auto()
    ZEROS = auto()
    STALE = auto()
    BYTES = auto()
    BAD_HEADER = auto()
    WRONG_NUMBER = auto()
    OVERLAP = auto()
    MISSING = auto()
    OTHER_LOG = auto()
    SEALED = auto()


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table; ``proven`` is whether w is above the position, None for either."""

    letter: str
    sight: Sight
    proven: bool | None
    kind: EndKind
    reason: str


END_RULES = (
    # A: a new store, before its first segment.  M is the same directory after somebody emptied it.
    Rule("A", Sight.NO_SEGMENT, False, EndKind.CLEAN, "there is no log yet"),
    # B: the writer grows its file with every frame, and was closed or killed between two.
    Rule("B", Sight.FILE_END, False, EndKind.CLEAN, "the file ends with a valid frame"),
    # C: the writer fills files with zeros ahead of itself.  A frame whose pages were all lost with
    # the power looks the same.
    Rule("C", Sight.ZEROS, False, EndKind.PREALLOCATED, "only zeros follow the last valid frame"),
    # D: the writer reuses dropped segments.  Their old frames hold older positions than the file's
    # first one, and so can be told from new frames that were torn.
    Rule("D", Sight.STALE, False, EndKind.RECYCLED, "only frames of a recycled file follow"),
    # E: power was lost while unsynced frames were on their way: pages land in any order.  Also what
    # a copying tool leaves that stopped in the middle, and garbage behind the end.
    Rule("E", Sight.BYTES, False, EndKind.TORN, "an incomplete frame that was never durable"),
    # F: a segment gets its name after its header was synced, so only another tool or a disk that
    # lies about syncs leads here.  It holds nothing that was durable and is dropped whole.
    Rule("F", Sight.BAD_HEADER, False, EndKind.TORN, "an unreadable new segment without content"),
    # G: the file was cut below what was durable: by hand, by a repairing file system, or by a copy
    # that was taken without the store's help.
    Rule("G", Sight.FILE_END, True, EndKind.DAMAGED, "the file ends before what was durable"),
    # H: durable frames were overwritten with zeros, mostly whole sectors or pages, by the disk or
    # the file system; or a sync was reported that never happened.
    Rule("H", Sight.ZEROS, True, EndKind.DAMAGED, "zeros where durable frames were"),
    # I: a write that was reported durable never reached the recycled file.
    Rule("I", Sight.STALE, True, EndKind.DAMAGED, "a recycled file's frames where newer ones were"),
    # J: flipped bits, misplaced or lost sectors, or another program's writes.
    Rule("J", Sight.BYTES, True, EndKind.DAMAGED, "an invalid frame below what was durable"),
    # K: as J, in the first 128 bytes of a segment.
    Rule("K", Sight.BAD_HEADER, True, EndKind.DAMAGED, "the header of the segment is damaged"),
    # L: somebody renamed or copied a segment by hand.
    Rule("L", Sight.WRONG_NUMBER, None, EndKind.DAMAGED, "the file is not the segment of its name"),
    # N: two segments claim the same positions: a file of an older copy of this store was put back.
    Rule("N", Sight.OVERLAP, None, EndKind.DAMAGED, "the next segment begins inside this one"),
    # M: the log was deleted, the rest of the store was not.
    Rule("M", Sight.NO_SEGMENT, True, EndKind.GAP, "no segment is left of a log that had content"),
    # O: a segment in the middle was deleted, or a copy left it out.
    Rule("O", Sight.MISSING, None, EndKind.GAP, "a segment is missing"),
    # P: a segment of another store, or of another copy of this one, was put here.
    Rule("P", Sight.OTHER_LOG, None, EndKind.FOREIGN, "the segment belongs to another log"),
    # Q: the newest segment was deleted, or a copy left it out.  The one before was sealed, or got
    # its index, when the newest one was durable under its name.
    Rule("Q", Sight.SEALED, None, EndKind.GAP, "the segment is missing that followed a sealed one"),
)


def verdict(sight: Sight, proven: bool) -> Rule:
    """Return the row for what was seen; ``proven``: w is above the position where it was seen."""
    for row in END_RULES:
        if row.sight is sight and row.proven in (None, proven):
            return row
    raise AssertionError(f"no row for {sight}, proven={proven}")


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where something is: its position in the log, and the segment and offset that hold it."""

    position: int
    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class LostRange:
    """Update numbers ``first`` to ``last`` of a partition, which no valid frame holds."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where a log ends, and what that means.

    ``position`` is where valid frames end, and where a log that is not refused goes on;
    ``segment`` and ``offset`` are what to look at, offset 0 for a header.  ``durable`` is w, or
    for a refused log something that proves it.  ``expected`` and ``found`` are the stored and the
    computed CRC if there was a frame to check.  ``before`` and ``after`` are the nearest valid
    frames.  A torn tail is ``dropped_bytes`` long and holds ``dropped_frames`` that would have
    been valid; ``dropped_segment`` is the number of an unreadable last segment.  Of a refused log
    ``lost`` and ``transactions`` tell what the valid frames around show to be missing (at most:
    numbers may also never have been used) and what can still be read of the damaged frame; empty
    means unknown.
    """

    row: str
    kind: EndKind
    reason: str
    position: int
    segment: int
    offset: int
    durable: int
    expected: int | None = None
    found: int | None = None
    before: LogPlace | None = None
    after: LogPlace | None = None
    dropped_bytes: int = 0
    dropped_frames: int = 0
    dropped_segment: int | None = None
    lost: tuple[LostRange, ...] = ()
    transactions: tuple[bytes, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether the log must not be continued: it is damaged, has a gap, or is foreign."""
        return self.kind in REFUSED

    def raise_if_refused(self) -> None:
        """Raise ``CorruptLogError`` for a log that must not be continued."""
        if self.refused:
            raise CorruptLogError(
                str(self),
                kind=self.kind.value,
                segment=self.segment,
                offset=self.offset,
                expected=self.expected,
                found=self.found,
            )

    def __str__(self) -> str:
        return self.told(f"segment {self.segment}")

    def told(self, file: str) -> str:
        """Return all that is known, as one text; ``file`` names the file of the offset."""
        return "; ".join(self._sentences(file))

    def _sentences(self, file: str) -> list[str]:
        parts = [f"{file}, offset {self.offset}: {self.reason}"]
        parts.append(f"position {self.position}, durable up to {self.durable}")
        if self.found is not None:
            parts.append(f"CRC {self.expected:08x} stored, {self.found:08x} computed")
        if self.dropped_bytes:
            parts.append(f"{self.dropped_bytes} bytes, {self.dropped_frames} valid frames dropped")
        if self.after is not None:
            parts.append(
                f"next valid frame in segment {self.after.segment}, offset {self.after.offset}"
            )
        if self.lost:
            parts.append("lost: " + _listed([_told(lost) for lost in self.lost]))
        if self.transactions:
            parts.append("transactions: " + _listed([tx.hex() for tx in self.transactions]))
        return parts


_LISTED_MAX = 8


def _told(lost: LostRange) -> str:
    return f"partition {lost.partition} {lost.first}..{lost.last}"


def _listed(items: list[str]) -> str:
    more = len(items) - _LISTED_MAX
    return ", ".join(items[:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
