"""Recorded transactions: what each of several clients did, in which order, and what it saw.

Every value that is written is unique, and of each key the order of its values is known:
from the log, or from what lists of all of them showed (``lists``).

Left out: whether a history is right (``cycles``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

TxKey = str | bytes
TxValue = str | bytes | int | None

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSeen:
    """A range read: all keys ``start <= key < stop`` (None: no end) but the ``own`` ones."""

    start: TxKey
    stop: TxKey | None
    found: Mapping[TxKey, TxValue]
    own: frozenset[TxKey] = frozenset()

    def __contains__(self, key: TxKey) -> bool:
        inside = key_bytes(self.start) <= key_bytes(key)
        return inside and (self.stop is None or key_bytes(key) < key_bytes(self.stop))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction as its client saw it; ``start`` and ``end`` are on one clock.

    ``reads`` are of keys not written before, ``writes`` are last writes; what was written and
    replaced within the transaction is in ``replaced``, and ``deletes`` are keys whose last write
    deleted them.  ``status`` is ``unknown`` if no answer came; such a transaction counts as
    committed if the log holds its writes.  ``complaints`` tell of contradictions inside it.
    """

    id: str
    start: float = 0.0
    end: float = inf
    status: str = COMMITTED
    reads: Mapping[TxKey, TxValue] = field(default_factory=dict)
    scans: Sequence[RangeSeen] = ()
    writes: Mapping[TxKey, TxValue] = field(default_factory=dict)
    replaced: Mapping[TxKey, Sequence[TxValue]] = field(default_factory=dict)
    deletes: frozenset[TxKey] = frozenset()
    complaints: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionHistory:
    """All transactions, and per key its values, oldest first, as the log holds them."""

    transactions: Sequence[Transaction]
    versions: Mapping[TxKey, Sequence[TxValue]]


class TransactionRecorder:
    """Builds one ``Transaction`` from what its client did, in that order."""

    def __init__(self, id: str, start: float) -> None:
        self._id = id
        self._start = start
        self._reads: dict[TxKey, TxValue] = {}
        self._scans: list[RangeSeen] = []
        self._writes: dict[TxKey, TxValue] = {}
        self._replaced: dict[TxKey, list[TxValue]] = {}
        self._deletes: set[TxKey] = set()
        self._complaints: list[str] = []

    def read(self, key: TxKey, value: TxValue) -> None:
        """Record what a read gave back; it must repeat an own write or an earlier read."""
        if key not in self._writes:
            self._expect(key, self._reads.setdefault(key, value), value)
        else:
            self._expect(key, self._own(key), value)

    def scan(
        self,
        start: TxKey,
        stop: TxKey | None,
        found: Mapping[TxKey, TxValue],
    ) -> None:
        """Record everything that a range read gave back, own writes included."""
        own = frozenset(self._writes)
        others = {key: value for key, value in found.items() if key not in own}
        scan = RangeSeen(start=start, stop=stop, found=others, own=own)
        for key in sorted(own, key=key_bytes):
            if key in scan:
                self._expect(key, self._own(key), found.get(key))
        for key, value in self._reads.items():
            if key in scan and key not in own:
                self._expect(key, value, found.get(key))
        self._scans.append(scan)

    def write(self, key: TxKey, value: TxValue) -> None:
        """Record a write of a unique value."""
        if key in self._writes:
            self._replaced.setdefault(key, []).append(self._writes[key])
        self._writes[key] = value
        self._deletes.discard(key)

    def delete(self, key: TxKey, value: TxValue) -> None:
        """Record a delete, under a unique value by which the log's order names it."""
        self.write(key, value)
        self._deletes.add(key)

    def finish(self, status: str, end: float) -> Transaction:
        """Return the transaction, answered at ``end`` unless its status is unknown."""
        return Transaction(
            id=self._id,
            start=self._start,
            end=inf if status == UNKNOWN else end,
            status=status,
            reads=dict(self._reads),
            scans=tuple(self._scans),
            writes=dict(self._writes),
            replaced=dict(self._replaced),
            deletes=frozenset(self._deletes),
            complaints=tuple(self._complaints),
        )

    def _own(self, key: TxKey) -> TxValue:
        return None if key in self._deletes else self._writes[key]

    def _expect(self, key: TxKey, expected: TxValue, found: TxValue) -> None:
        if found != expected:
            self._complaints.append(f"saw {key!r} as {found!r} after {expected!r}")


def key_bytes(key: TxKey) -> bytes:
    """Return a key as its place in a range is told."""
    return key.encode() if isinstance(key, str) else key
