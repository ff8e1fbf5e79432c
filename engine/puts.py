"""Puts of many tasks on their way into the log together, each of them a transaction of its own.

A put alone costs a ``commit.Put``; where many arrive at once, as from the tasks of an event loop,
what is done once per put is what the throughput hangs on.  So the puts are plain tuples here, and
one loop makes all records, another one all stored values.

Invariants:

- Each put has its own record, number and transaction id; a reader of the log sees no difference.
- Locks stand in the way of all or none: where a key is locked the whole of it ends in an error,
  and the caller brings its puts one by one.

Left out: who waits for a put (``log_thread``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set as AbstractSet
from typing import Any

from crc32c import crc32c

from ..wal.records import encode_put
from .commit import Committer, Entry, unknown_outcome
from .overlay import PAIR_OVERHEAD
from .stored import CHECK_XOR, pack_check, pack_meta

PUT_BYTES_MAX = 1024
"""The longest value that is worth it; it also bounds a group of ``PUTS_MAX``."""

PUTS_MAX = 1024
"""Puts in one ``Puts``."""

OnePut = tuple[int, int, bytes, bytes, bytes, Any]
"""(partition, namespace id, full key, encoded key, encoded value, whoever waits for it)."""


class Puts:
    """Puts that are logged, synced and applied together."""

    __slots__ = ("_cause", "_ids", "_numbers", "_puts", "_runs", "_time", "durable", "error",
                 "size")  # fmt: skip

    def __init__(self, puts: Sequence[OnePut], durable: bool) -> None:
        self._puts = puts
        self.durable = durable
        self.size = 0
        """No transaction among them is too large, nor are all of them for a group."""
        self.error: BaseException | None = None
        self._cause: BaseException | None = None
        self._time = 0
        self._ids = (b"", 0)
        self._numbers: list[tuple[int, int]] = []
        self._runs: list[int] = []

    @property
    def tx_id(self) -> None:
        """None: they have an id each."""

    def prepare(self, committer: Committer, group: Sequence[Entry], time: int) -> bytes | None:
        """Check for locks and a stop, reserve the numbers and return the records."""
        if committer.stopped is not None:
            self.error = committer.refusal()
        elif committer.locks_held:
            self.error = committer.locked(0, self.full_keys())
        if self.error is not None:
            return None
        counters, epochs = committer.state.counters, committer.state.epochs
        self._time = time
        self._ids = prefix, tx = committer.reserve_ids(len(self._puts))
        ahead: dict[int, int] = {}
        records = []
        numbers = self._numbers
        for partition, namespace, _, key, value, _ in self._puts:
            number = ahead.get(partition, 0) or counters[partition].hwm + 1
            ahead[partition] = number + 1
            epoch = epochs[partition]
            numbers.append((number, epoch))
            records.append(
                encode_put(prefix, tx, time, partition, epoch, number, namespace, key, value)
            )
            tx += 1
        for partition, after in ahead.items():
            counter = counters[partition]
            first = counter.hwm + 1
            counter.reserve(after - first)
            self._runs += (partition, epochs[partition], first, after - first)
        return b"".join(records)

    def apply(self, committer: Committer, end: int) -> None:
        """Put them into overlay and counters."""
        counters, layer = committer.state.counters, committer.overlay.active
        parts, time = layer.parts, self._time
        size = 0
        for (partition, _, full_key, _, value, _), (number, epoch) in zip(
            self._puts, self._numbers, strict=True
        ):
            body = value + pack_meta(0, epoch, number, time)
            part = parts.get(partition)
            if part is None:
                part = layer.part(partition)
            part[full_key] = body + pack_check(crc32c(full_key + body) ^ CHECK_XOR)
            size += len(body)
        layer.bytes += size + PAIR_OVERHEAD * len(self._puts)
        runs = iter(self._runs)
        for partition, _, first, count in zip(runs, runs, runs, runs, strict=True):
            counters[partition].update(first - 1, count)
        committer.grouped += len(self._puts) - 1

    def fail(self, error: BaseException, runs: list[int]) -> None:
        """End them without effect."""
        runs += self._runs
        self.error = error

    def unknown(self, cause: BaseException) -> None:
        """End them after a failed sync."""
        self.error = self._cause = cause

    def error_of(self, place: int) -> BaseException | None:
        """Return the error of one of them, None where it is committed."""
        if self._cause is None:
            return self.error
        prefix, first = self._ids
        tx_id = prefix + (first + place).to_bytes(8, "big")
        return unknown_outcome(self._cause, tx_id, self._puts[place][0])

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys they change."""
        return keys & set(self.full_keys())

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys that they change."""
        return [put[2] for put in self._puts]
