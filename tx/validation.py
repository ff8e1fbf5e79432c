"""What a transaction's reads must still be when it commits, and whether they are.

Owns the modes and isolation levels with their table, the record of what an optimistic transaction
read, and the check of that record against what others committed since its snapshot.

=== =========== =============== ======== ========== =====================================
row mode        isolation       reads    validated  read locks, held to the end
=== =========== =============== ======== ========== =====================================
A   optimistic  serializable    snapshot all reads  none
B   optimistic  repeatable_read snapshot own writes none
C   optimistic  read_committed  newest   nothing    none
D   pessimistic serializable    newest   nothing    each key read, each range scanned
E   pessimistic repeatable_read newest   nothing    each key read, each range scanned
F   pessimistic read_committed  newest   nothing    none
=== =========== =============== ======== ========== =====================================

- **A**: every key read, absent ones too, and every range scanned must be unchanged.  Reads then
  hold at the commit itself: serializable, without phantoms.
- **B**: nobody else may have written, since the snapshot, what it writes: the first committer
  wins, no update is lost; write skew is possible.  A transaction that read nothing has no
  snapshot, and nothing to compare with.
- **C**: each read sees the newest commit; lost updates are possible.
- **D**, **E**: nobody writes what it read before it ends, so there is nothing to check.
- **F**: as C; only its own writes are locked.

Invariants:

- a range read covers what its caller was given and no more: up to and including the last key
  given out, or its whole range once it was exhausted (keys are given out by blocks);
- own writes are not reads: a key that is read after it was written is not recorded.

Left out: taking the locks (``locks``), and who finds what others committed (``data.overlay``).
Backward validation after Kung and Robinson, "On optimistic methods for concurrency control", 1981.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from ..affinity.errors import UsageError

# A full key: partition (4 bytes), namespace (4 bytes), user key.
_NAMESPACE = slice(4, 8)
_USER_KEY = slice(8, None)

Mode = Literal["optimistic", "pessimistic"]
Isolation = Literal["serializable", "repeatable_read", "read_committed"]


class Validated(Enum):
    """What is compared with others' commits at the commit."""

    READS = "reads"
    WRITES = "writes"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRule:
    """How a transaction reads: one row of the table."""

    row: str
    snapshot: bool
    validated: Validated
    pessimistic: bool
    read_locks: bool


READ_RULES: dict[tuple[str, str], ReadRule] = {
    (mode, isolation): ReadRule(
        row=row,
        snapshot=snapshot,
        validated=validated,
        pessimistic=mode == "pessimistic",
        read_locks=read_locks,
    )
    for row, mode, isolation, snapshot, validated, read_locks in (
        ("A", "optimistic", "serializable", True, Validated.READS, False),
        ("B", "optimistic", "repeatable_read", True, Validated.WRITES, False),
        ("C", "optimistic", "read_committed", False, Validated.NOTHING, False),
        ("D", "pessimistic", "serializable", False, Validated.NOTHING, True),
        ("E", "pessimistic", "repeatable_read", False, Validated.NOTHING, True),
        ("F", "pessimistic", "read_committed", False, Validated.NOTHING, False),
    )
}


def read_rule(mode: str, isolation: str) -> ReadRule:
    """Return the row for a mode and an isolation level; ``UsageError`` names the ones there are."""
    try:
        rule = READ_RULES.get((mode, isolation))
    except TypeError:  # a list, say, which no dict can look for
        rule = None
    if rule is None:
        modes, levels = (", ".join(dict.fromkeys(names)) for names in zip(*READ_RULES, strict=True))
        raise UsageError(
            f"a transaction cannot be {mode!r} and {isolation!r}",
            hint=f"Modes are {modes}; isolation levels are {levels}.",
        )
    return rule


class RangeRead:
    """What one scan of a namespace was given so far, over all partitions.

    Pairs are given out in the order of user keys whatever their partition, so one key given out
    covers every partition up to it.  ``start`` is included, ``stop`` is not (None: no end);
    ``reverse`` scans go down from ``stop``.
    """

    __slots__ = ("_exhausted", "_last", "_namespace", "_reverse", "_start", "_stop")

    def __init__(
        self, namespace: int, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> None:
        self._namespace = namespace.to_bytes(4, "big")
        self._start = start
        self._stop = stop
        self._reverse = reverse
        self._exhausted = False
        self._last: bytes | None = None

    def gave(self, user_key: bytes) -> None:
        """Record the last key that was given out so far."""
        self._last = user_key

    def finish(self) -> None:
        """Record that the scan came to the end of its range."""
        self._exhausted = True

    def touches(self, namespace: bytes) -> bool:
        """Tell whether anything was read of a namespace, given as in a full key."""
        return namespace == self._namespace and (self._exhausted or self._last is not None)

    def covers(self, full_key: bytes) -> bool:
        """Tell whether the scan depended on a key, present or absent."""
        if full_key[_NAMESPACE] != self._namespace:
            return False
        key = full_key[_USER_KEY]
        if key < self._start or (self._stop is not None and key >= self._stop):
            return False
        if self._exhausted:
            return True
        if self._last is None:
            return False
        return key >= self._last if self._reverse else key <= self._last


class ReadSet:
    """What one optimistic transaction has read and did not write before."""

    __slots__ = ("keys", "ranges")

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.ranges: list[RangeRead] = []

    def touches(self, namespace: int) -> bool:
        """Tell whether anything was read of a namespace, be it only that something is absent."""
        wanted = namespace.to_bytes(4, "big")
        return any(key[_NAMESPACE] == wanted for key in self.keys) or any(
            read.touches(wanted) for read in self.ranges
        )

    def first_changed(self, changed: Collection[bytes]) -> bytes | None:
        """Return one of the full keys that others changed and that was read, or None."""
        found = first_common(self.keys, changed)
        if found is None and self.ranges:
            found = next(self._covered(changed), None)
        return found

    def _covered(self, changed: Iterable[bytes]) -> Iterator[bytes]:
        for key in changed:
            if any(read.covers(key) for read in self.ranges):
                yield key

    def __repr__(self) -> str:
        return f"<ReadSet keys={len(self.keys)} ranges={len(self.ranges)}>"


def first_common(keys: AbstractSet[bytes], changed: Collection[bytes]) -> bytes | None:
    """Return the lowest key of both, or None; walks the smaller of the two."""
    if len(changed) < len(keys):
        return min((key for key in changed if key in keys), default=None)
    return min((key for key in keys if key in changed), default=None)
