"""The update counter of one partition: which numbers are in the log, and which were given out.

Owns the arithmetic of LWM, HWM and the out-of-order ranges between them, and their bytes.
Everywhere a range ``(start, delta)`` has an exclusive start: ``(5, 3)`` covers 6, 7 and 8.
A pair ``(first, last)`` of ``missing`` and ``finalize()`` is inclusive on both ends.

Invariants, at every moment:

- ``0 <= lwm <= highest_applied <= hwm <= 2**63 - 1``;
- ranges are sorted, lie above LWM, and neither touch nor overlap each other or LWM;
- the numbers applied are exactly the set union of all that was passed to ``update()``;
- ``reset()`` and ``cut()``, and ``finalize()`` and ``lower_hwm()`` for HWM, are the only calls that
  lower anything;
- a call that raises has changed nothing.

Bytes, little endian, as read and written by ``to_bytes()`` and ``from_bytes()``:

====== ======== ==============================================================
offset size     field
====== ======== ==============================================================
0      1        version, 1
1      8        LWM
9      8        HWM
17     4        number of ranges, n
21     16 * n   start and delta of each range, ascending
...    4        CRC-32C of everything before it
====== ======== ==============================================================

Left out: the log (a caller moves a counter only after its update is in it), epochs, and locking.
After PartitionUpdateCounter of Apache Ignite, without its contract that ranges never intersect:
there an intersecting range could lose numbers, or lower LWM.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from operator import attrgetter

from crc32c import crc32c
from sortedcontainers import SortedDict

from ..affinity.errors import CorruptDataError, TooManyRangesError, UsageError

COUNTER_MAX = 2**63 - 1
MAX_RANGES_DEFAULT = 10_000

_VERSION = 1
_HEAD = struct.Struct("<BqqI")
_CRC = struct.Struct("<I")
_RANGE_SIZE = 16
_SHOWN_RANGES_MAX = 4


class PartitionUpdateCounter:
    """Tracks the updates of one partition that were reserved (HWM) and applied (LWM and ranges).

    ``out_of_order`` are ranges applied above ``lwm``; HWM starts at the highest number applied.
    More than ``max_ranges`` separate ranges raise ``TooManyRangesError``.  Counters are equal when
    LWM, HWM and ranges are.  Not thread-safe: its owner holds the commit mutex.
    """

    # An in-order update is `_lwm == start and not _ranges`; the commit path may test that inline.
    __slots__ = ("_hwm", "_lwm", "_max_ranges", "_ranges")

    def __init__(
        self,
        lwm: int = 0,
        out_of_order: Iterable[tuple[int, int]] = (),
        *,
        max_ranges: int = MAX_RANGES_DEFAULT,
    ) -> None:
        if type(max_ranges) is not int or max_ranges < 1:
            raise UsageError(f"max_ranges must be a whole number of at least 1, not {max_ranges!r}")
        self._lwm = self._hwm = _number("lwm", lwm)
        self._max_ranges = max_ranges
        # Exclusive start to inclusive end.  None until the first gap, since most of a store's
        # many counters never have one and a SortedDict takes over a kilobyte.
        self._ranges: SortedDict[int, int] | None = None
        for start, delta in _pairs(out_of_order):
            self.update(start, delta)

    # Through `attrgetter`, which is C: the commit path asks for these with every update.
    lwm: property = property(attrgetter("_lwm"), doc="The number up to which all are applied.")
    hwm: property = property(attrgetter("_hwm"), doc="The highest number reserved or applied.")

    @property
    def highest_applied(self) -> int:
        """The highest number that is applied, gaps below it or not."""
        return self._ranges.peekitem()[1] if self._ranges else self._lwm

    @property
    def out_of_order(self) -> list[tuple[int, int]]:
        """The ranges applied above a gap, as ascending ``(start, delta)``."""
        return [(start, end - start) for start, end in self._items()]

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The gaps below the highest applied number, as ascending ``(first, last)``."""
        gaps = []
        low = self._lwm
        for start, end in self._items():
            gaps.append((low + 1, start))
            low = end
        return gaps

    def reserve(self, n: int) -> int:
        """Give out the next ``n >= 1`` numbers; return the HWM before, the start of their range."""
        hwm = self._hwm
        if type(n) is not int or not 0 < n <= COUNTER_MAX - hwm:
            raise UsageError(f"cannot reserve {n!r} numbers above {hwm}")
        self._hwm = hwm + n
        return hwm

    def apply_one(self, number: int) -> None:
        """Apply one number: ``update(number - 1, 1)``, at half the cost if it is the next."""
        if (
            type(number) is int
            and number == self._lwm + 1
            and not self._ranges
            and number <= COUNTER_MAX
        ):
            self._lwm = number
            if number > self._hwm:
                self._hwm = number
        else:
            self.update(number - 1, 1)

    def update(self, start: int, delta: int) -> bool:
        """Apply ``start + 1 .. start + delta``; return whether any of them was new.

        An empty range (``delta`` 0) is a ``UsageError``, as is one outside 0 .. 2**63 - 1;
        ``TooManyRangesError`` when it would be one separate range too many.
        """
        # `_check_range`, written out: a commit has some of these for each of its keys.
        if (
            type(start) is not int
            or type(delta) is not int
            or start < 0
            or not 0 < delta <= COUNTER_MAX - start
        ):
            _check_range(start, delta)
        end = start + delta
        if start == self._lwm and not self._ranges:
            self._lwm = end
            new = True
        elif start <= self._lwm:
            new = self._raise_lwm(end)
        else:
            new = self._insert(start, end)
        if end > self._hwm:
            self._hwm = end
        return new

    def finalize(self) -> list[tuple[int, int]]:
        """Close every gap, forget reservations above the highest applied number; return the gaps.

        LWM and HWM become the highest applied number.  Called only when every transaction that
        reserved here has ended.
        """
        gaps = self.missing
        self._lwm = self._hwm = self.highest_applied
        self._ranges = None
        return gaps

    def set(self, value: int) -> None:
        """Declare everything up to ``value`` applied, as another copy said; ignored below LWM.

        A value below the highest applied number is a ``UsageError``: this copy holds updates
        that the other one lacks, so it must not take over the other one's number.
        """
        if _number("value", value) < self._lwm:
            return
        if value < self.highest_applied:
            raise UsageError(f"cannot set {self!r} to {value}, below its highest applied number")
        self._lwm = value
        self._hwm = max(self._hwm, value)
        self._ranges = None

    def prepared(self, start: int, delta: int) -> None:
        """Learn that another copy has given out ``start + 1 .. start + delta``; HWM covers them.

        Raises as ``update`` does for what is not a range.
        """
        _check_range(start, delta)
        self._hwm = max(self._hwm, start + delta)

    def cut(self, to: int, without: Iterable[tuple[int, int]] = ()) -> None:
        """Forget what was applied above ``to``, and in the ranges ``without``; HWM falls to ``to``.

        With LWM 5 and range (6, 2), ``cut(7, [(2, 1)])`` leaves LWM 2 and (3, 2), (6, 1): number 3
        is missing, 8 has gone.  Raises ``UsageError`` for what is not a range, and
        ``TooManyRangesError`` if too many would be left.
        """
        top = _number("to", to)
        holes = sorted(_pairs(without))
        for start, delta in holes:
            _check_range(start, delta)
        kept = PartitionUpdateCounter(max_ranges=self._max_ranges)
        for low, high in [(0, self._lwm), *self._items()]:
            end = min(high, top)
            for start, delta in holes:
                if low < start < end:
                    kept.update(low, start - low)
                if start < end:
                    low = max(low, start + delta)
            if low < end:
                kept.update(low, end - low)
        self._lwm, self._ranges = kept._lwm, kept._ranges
        self._hwm = min(self._hwm, top)

    def lower_hwm(self, to: int) -> None:
        """Forget reservations above ``to``: a new epoch gives out those numbers again.

        A value below the highest applied number, or above HWM, is a ``UsageError``.
        """
        if not self.highest_applied <= _number("to", to) <= self._hwm:
            raise UsageError(f"cannot lower HWM of {self!r} to {to}")
        self._hwm = to

    def reset(self) -> None:
        """Set everything to zero, before a full copy fills the partition anew."""
        self._lwm = self._hwm = 0
        self._ranges = None

    def to_bytes(self) -> bytes:
        """Return the state for ``from_bytes()``; ``max_ranges`` is not part of it."""
        numbers = [number for pair in self.out_of_order for number in pair]
        head = _HEAD.pack(_VERSION, self._lwm, self._hwm, len(numbers) // 2)
        body = head + struct.pack(f"<{len(numbers)}q", *numbers)
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def from_bytes(
        cls, data: bytes | bytearray | memoryview, *, max_ranges: int = MAX_RANGES_DEFAULT
    ) -> PartitionUpdateCounter:
        """Return the counter of ``to_bytes()``; anything else raises ``CorruptDataError``."""
        lwm, hwm, pairs = _decode(_bytes(data))
        counter = cls(lwm, max_ranges=max_ranges)
        if len(pairs) > max_ranges:
            raise TooManyRangesError(f"{len(pairs)} ranges, at most {max_ranges} are allowed")
        counter._hwm = hwm
        if pairs:
            counter._ranges = SortedDict((start, start + delta) for start, delta in pairs)
        return counter

    def _items(self) -> list[tuple[int, int]]:
        """Return the ranges as ascending (exclusive start, inclusive end)."""
        return list(self._ranges.items()) if self._ranges else []

    def _raise_lwm(self, end: int) -> bool:
        """Apply everything from LWM up to ``end``, and the ranges that it reaches."""
        if end <= self._lwm:
            return False
        ranges = self._ranges
        while ranges and ranges.peekitem(0)[0] <= end:
            end = max(end, ranges.popitem(0)[1])
        self._lwm = end
        return True

    def _insert(self, start: int, end: int) -> bool:
        """Unite ``start + 1 .. end``, which lies above LWM and a gap, with the ranges it meets."""
        if self._ranges is None:
            self._ranges = SortedDict()
        ranges = self._ranges
        place = ranges.bisect_right(start)
        if place:
            below, top = ranges.peekitem(place - 1)
            # Two ranges always have a gap between them, so only one alone can hold it all.
            if end <= top:
                return False
            if start <= top:
                start = below
        met = list(ranges.irange(start, end))
        if met:
            end = max(end, ranges[met[-1]])
        elif len(ranges) >= self._max_ranges:
            raise TooManyRangesError(
                f"({start}, {end - start}) would be out-of-order range {self._max_ranges + 1}; "
                f"the lowest missing number is {self._lwm + 1}",
                hint="Find the transaction that holds the lowest missing number.",
            )
        for key in met:
            if key != start:
                del ranges[key]
        ranges[start] = end
        return True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionUpdateCounter):
            return NotImplemented
        mine = (self._lwm, self._hwm, self._items())
        return mine == (other._lwm, other._hwm, other._items())

    __hash__ = None  # type: ignore[assignment]  # mutable: typeshed has no better spelling

    def __repr__(self) -> str:
        ranges = self.out_of_order
        shown = [f"({s},{d})={s + 1}..{s + d}" for s, d in ranges[:_SHOWN_RANGES_MAX]]
        if len(ranges) > len(shown):
            shown.append(f"and {len(ranges) - len(shown)} more")
        text = f" out_of_order=[{', '.join(shown)}]" if shown else ""
        return f"<PartitionUpdateCounter lwm={self._lwm} hwm={self._hwm}{text}>"


def _number(name: str, value: int) -> int:
    if type(value) is not int or not 0 <= value <= COUNTER_MAX:
        raise UsageError(f"{name} must be a whole number from 0 to 2**63 - 1, not {value!r}")
    return value


def _check_range(start: int, delta: int) -> None:
    if (
        type(start) is not int
        or type(delta) is not int
        or start < 0
        or not 0 < delta <= COUNTER_MAX - start
    ):
        raise UsageError(f"({start!r}, {delta!r}) is not a range of update numbers")


def _pairs(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    try:
        return [(start, delta) for start, delta in ranges]
    except (TypeError, ValueError):
        raise UsageError("out_of_order must be pairs (start, delta)") from None


def _bytes(data: bytes | bytearray | memoryview) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"the bytes of a counter are needed, not {type(data).__name__}")
    return bytes(data)


def _decode(data: bytes) -> tuple[int, int, list[tuple[int, int]]]:
    """Check length, CRC, version and every invariant; return LWM, HWM and ranges."""
    if len(data) < _HEAD.size + _CRC.size:
        raise CorruptDataError(f"the bytes of an update counter end early, after {len(data)}")
    (expected,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    found = crc32c(data[: -_CRC.size])
    if expected != found:
        raise CorruptDataError(
            f"an update counter does not match its CRC: expected {expected:#010x}, "
            f"found {found:#010x}"
        )
    version, lwm, hwm, count = _HEAD.unpack_from(data)
    if version != _VERSION or len(data) != _HEAD.size + count * _RANGE_SIZE + _CRC.size:
        raise CorruptDataError(
            f"an update counter of version {version} and {count} ranges has {len(data)} bytes"
        )
    numbers = struct.unpack_from(f"<{2 * count}q", data, _HEAD.size)
    pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
    top = lwm
    for start, delta in pairs:
        if start <= top or delta < 1:
            raise CorruptDataError(f"an update counter holds the range ({start}, {delta}) at {top}")
        top = start + delta
    if not 0 <= lwm <= top <= hwm:
        raise CorruptDataError(f"an update counter says lwm={lwm}, highest {top}, hwm={hwm}")
    return lwm, hwm, pairs
