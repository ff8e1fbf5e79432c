"""What a transaction's reads must still be when it commits, and whether they are.

Owns the table of isolation levels, the record of what an optimistic transaction read, and the
check of that record at commit.

=== =========== =============== ======== ========== ==========================================
row mode        isolation       reads    validated  read locks, held to the end
=== =========== =============== ======== ========== ==========================================
A   optimistic  serializable    snapshot all        none
B   optimistic  repeatable_read snapshot written    none
C   optimistic  read_committed  newest   nothing    none
D   pessimistic serializable    newest   nothing    each key read, each range scanned
E   pessimistic repeatable_read newest   nothing    each key read, each key a scan returned
F   pessimistic read_committed  newest   nothing    none
=== =========== =============== ======== ========== ==========================================

- **A**: every key read, absent ones too, and every range scanned must be unchanged.  Reads then
  hold at the commit itself: serializable, without phantoms.
- **B**: only keys that it both read, alone or in a scan, and writes must be unchanged: the first
  committer wins, no update is lost; write skew is possible.
- **C**: each read sees the newest commit; lost updates are possible.
- **D**: nobody writes what it read before it ends, so there is nothing to check.
- **E**: as D, but another transaction may add a key to a range that it scanned.
- **F**: as C; only its own writes are locked.

Invariants:

- a range read covers what its caller consumed and no more: up to and including the last key given
  out, or its whole range once it was exhausted;
- own writes are no reads: a key that is read after it was written is not recorded;
- a transaction that read nothing needs no ``ReadSet`` and costs nothing.

Left out: taking the locks (``locks``), finding versions, and what follows from a conflict.  The
range check after Hekaton's phantom detection (Larson et al., VLDB 2011): look again, compare.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from ..affinity.errors import TransactionTooLargeError, UsageError

RANGE_KEYS_MAX = 100_000


class Validated(Enum):
    """Which reads are checked at commit."""

    ALL = "all"
    WRITTEN = "written"
    NOTHING = "nothing"


class ReadLocks(Enum):
    """What a read locks, shared, until its transaction ends."""

    KEYS_AND_RANGES = "keys and ranges"
    KEYS = "keys"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRule:
    """How a transaction reads: one row of the table."""

    row: str
    snapshot: bool
    validated: Validated
    read_locks: ReadLocks


def _rule(row: str, snapshot: bool, validated: Validated, read_locks: ReadLocks) -> ReadRule:
    return ReadRule(row=row, snapshot=snapshot, validated=validated, read_locks=read_locks)


READ_RULES: dict[tuple[str, str], ReadRule] = {
    ("optimistic", "serializable"): _rule("A", True, Validated.ALL, ReadLocks.NOTHING),
    ("optimistic", "repeatable_read"): _rule("B", True, Validated.WRITTEN, ReadLocks.NOTHING),
    ("optimistic", "read_committed"): _rule("C", False, Validated.NOTHING, ReadLocks.NOTHING),
    ("pessimistic", "serializable"): _rule(
        "D", False, Validated.NOTHING, ReadLocks.KEYS_AND_RANGES
    ),
    ("pessimistic", "repeatable_read"): _rule("E", False, Validated.NOTHING, ReadLocks.KEYS),
    ("pessimistic", "read_committed"): _rule("F", False, Validated.NOTHING, ReadLocks.NOTHING),
}


def read_rule(mode: str, isolation: str) -> ReadRule:
    """Return the row for a mode and an isolation level; ``UsageError`` names the ones there are."""
    rule = READ_RULES.get((mode, isolation))
    if rule is None:
        modes, levels = (", ".join(dict.fromkeys(names)) for names in zip(*READ_RULES, strict=True))
        raise UsageError(
            f"no transaction is {mode!r} and {isolation!r}",
            hint=f"Modes are {modes}; isolation levels are {levels}.",
        )
    return rule


class RangeRead:
    """What one scan has seen so far: the same user-key range under one or more prefixes.

    A scan over several partitions gives keys out in the order of user keys, so that having given
    out one key says something about every partition: all of them are covered up to that user key.
    ``start`` is included, ``stop`` is not (None: no end); ``reverse`` scans go down from ``stop``.
    """

    __slots__ = ("_keys_max", "exhausted", "last", "prefixes", "reverse", "seen", "start", "stop")

    def __init__(
        self,
        prefixes: Collection[bytes],
        start: bytes,
        stop: bytes | None,
        *,
        reverse: bool,
        keys_max: int | None,
        keep: bool,
    ) -> None:
        self.prefixes = prefixes
        self.start = start
        self.stop = stop
        self.reverse = reverse
        self.exhausted = False
        self.last: bytes | None = None
        self.seen: dict[bytes, bytes] | None = {} if keep else None
        self._keys_max = keys_max

    def saw(self, user_key: bytes, full_key: bytes, version: bytes) -> None:
        """Record a committed key that the scan moved past: given out, or hidden by an own write.

        ``TransactionTooLargeError`` when the range has more keys than one may have.
        """
        self.last = user_key
        if self.seen is not None:
            self.seen[full_key] = version
            if self._keys_max is not None and len(self.seen) > self._keys_max:
                raise TransactionTooLargeError(
                    f"a range of more than {self._keys_max} keys cannot be validated at commit",
                    hint="Use isolation='repeatable_read', which does not check ranges, "
                    "or mode='pessimistic', or scan in a snapshot.",
                )

    def passed(self, user_key: bytes) -> None:
        """Record that the scan gave out a key that only this transaction has written."""
        self.last = user_key

    def finish(self) -> None:
        """Record that the scan came to the end of its range."""
        self.exhausted = True

    def intervals(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the covered full keys as ``[start, stop)``, one pair per prefix."""
        bounds = self._covered()
        if bounds is None:
            return
        start, stop = bounds
        for prefix in self.prefixes:
            yield prefix + start, _after(prefix) if stop is None else prefix + stop

    def _covered(self) -> tuple[bytes, bytes | None] | None:
        if self.exhausted:
            return self.start, self.stop
        if self.last is None:
            return None
        if self.reverse:
            return self.last, self.stop
        return self.start, self.last + b"\0"


class ReadSet:
    """What one optimistic transaction has read and did not write before.

    ``points`` maps full keys to the version seen (None: absent, deleted included).  Versions are
    opaque: equal if and only if nothing was committed to the key in between.  All reads come from
    one snapshot, so a key has one version however often it is read.  ``range_keys_max`` None
    lifts the limit on the keys of a range.
    """

    __slots__ = ("_keep", "_range_keys_max", "points", "ranges")

    def __init__(
        self,
        validated: Validated = Validated.ALL,
        *,
        range_keys_max: int | None = RANGE_KEYS_MAX,
    ) -> None:
        self._keep = validated is Validated.ALL
        self._range_keys_max = range_keys_max
        self.points: dict[bytes, bytes | None] = {}
        self.ranges: list[RangeRead] = []

    def record(self, full_key: bytes, version: bytes | None) -> None:
        """Record a key that was read, and the version found."""
        self.points[full_key] = version

    def scan(
        self,
        prefixes: Collection[bytes],
        start: bytes,
        stop: bytes | None,
        *,
        reverse: bool = False,
    ) -> RangeRead:
        """Begin a range read; it covers nothing before its caller consumes something."""
        read = RangeRead(
            prefixes,
            start,
            stop,
            reverse=reverse,
            keys_max=self._range_keys_max,
            keep=self._keep,
        )
        self.ranges.append(read)
        return read

    def __bool__(self) -> bool:
        return bool(self.points or self.ranges)

    def __repr__(self) -> str:
        return f"<ReadSet keys={len(self.points)} ranges={len(self.ranges)}>"


Current = Callable[[bytes], bytes | None]
CurrentRange = Callable[[bytes, bytes | None], Iterable[tuple[bytes, bytes]]]


def first_conflict(
    reads: ReadSet,
    current: Current,
    current_range: CurrentRange,
    pending: Collection[bytes] = (),
) -> bytes | None:
    """Return a full key that keeps a serializable transaction from committing now, or None (row A).

    ``pending`` is a set or mapping of what the same group has written so far: committed before
    this transaction, but not visible in ``current`` yet.
    """
    overwritten = first_overwritten(reads, pending)
    return first_changed(reads, current, current_range) if overwritten is None else overwritten


def first_changed(reads: ReadSet, current: Current, current_range: CurrentRange) -> bytes | None:
    """Return a full key whose committed state is no longer what was read, or None.

    ``current_range(start, stop)`` gives the keys and versions there are, ascending, without deleted
    ones.  Keys are looked at in the order they were read, ranges after them.
    """
    for key, version in reads.points.items():
        if current(key) != version:
            return key
    for read in reads.ranges:
        changed = _range_changed(read, current_range)
        if changed is not None:
            return changed
    return None


def first_overwritten(reads: ReadSet, written: Collection[bytes]) -> bytes | None:
    """Return a full key of ``written``, a set or mapping, that was read or lies in a range read.

    For keys that others wrote after the snapshot: those pending in the same group, which
    ``first_changed`` cannot see yet, or all of them where they are fewer than the reads.
    """
    if not written:
        return None
    if not reads.points.keys().isdisjoint(written):
        return next(key for key in reads.points if key in written)
    if not reads.ranges:
        return None
    ordered = sorted(written)
    for read in reads.ranges:
        for start, stop in read.intervals():
            place = bisect_left(ordered, start)
            if place < len(ordered) and (stop is None or ordered[place] < stop):
                return ordered[place]
    return None


def first_lost_update(
    reads: ReadSet,
    own_writes: Iterable[bytes],
    pending: Collection[bytes],
    before: Current,
    current: Current,
) -> bytes | None:
    """Return the first key read and then written that somebody else has written since (row B).

    ``before`` looks into the transaction's snapshot; a scan at this level keeps no versions.
    """
    intervals = [interval for read in reads.ranges for interval in read.intervals()]
    for key in own_writes:
        if key not in reads.points and not _inside(key, intervals):
            continue
        if key in pending or current(key) != before(key):
            return key
    return None


def _range_changed(read: RangeRead, current_range: CurrentRange) -> bytes | None:
    """Return the lowest full key that changed, came or went, prefix by prefix; None if none did."""
    seen = read.seen or {}
    unchanged = 0
    for start, stop in read.intervals():
        for key, version in current_range(start, stop):
            if seen.get(key) != version:
                return key
            unchanged += 1
    if unchanged == len(seen):
        return None
    present = {key for interval in read.intervals() for key, _ in current_range(*interval)}
    return min(seen.keys() - present)


def _inside(key: bytes, intervals: list[tuple[bytes, bytes | None]]) -> bool:
    return any(start <= key and (stop is None or key < stop) for start, stop in intervals)


def _after(prefix: bytes) -> bytes | None:
    """Return the first key after all that begin with ``prefix``; None if there is no such key."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
