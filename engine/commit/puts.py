"""Puts of single keys on their way into the log together, each a transaction of its own.

They are the most frequent commits, and what is done once per put is what the throughput hangs
on.  So a put is a plain tuple, one loop makes all records, and another one all stored values.

Invariants:

- Each put has its own record, number and transaction id; a reader of the log sees no difference.
- Each has an outcome of its own: somebody's lock, or a map that was dropped, refuses one put and
  lets its neighbours through.

Left out: who waits for a put (``commit`` for threads, ``log_thread`` for tasks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from typing import TYPE_CHECKING, Any

from ..data.overlay import PAIR_OVERHEAD
from ..data.stored import pack_trailer
from .entries import Entry, unknown_outcome

if TYPE_CHECKING:
    from .committer import Committer

PUT_BYTES_MAX = 1024
"""The longest value of such a put; it also bounds a group of ``PUTS_MAX``."""

PUTS_MAX = 1024
"""Puts in one ``Puts``."""

Put = tuple[int, int, bytes, bytes, bytes, Any]
"""(partition, namespace id, full key, encoded key, encoded value, whoever waits for it)."""


class LonePut:
    """A put that nobody waits for but the thread that leads it."""

    __slots__ = ("_committer", "_epoch", "_full_key", "_id", "_key", "_namespace", "_number",
                 "_partition", "_time", "_value", "durable", "error", "size")  # fmt: skip

    def __init__(
        self,
        partition: int,
        namespace: int,
        full_key: bytes,
        key: bytes,
        value: bytes,
        durable: bool,
    ) -> None:
        self._partition = partition
        self._namespace = namespace
        self._full_key = full_key
        self._key = key
        self._value = value
        self.durable = durable
        self.size = 0
        """Not too large, as it is no longer than ``PUT_BYTES_MAX``."""
        self.error: BaseException | None = None
        self._committer: Committer | None = None
        self._id = self._epoch = self._number = self._time = 0

    @property
    def tx_id(self) -> None:
        """None: the id is automatic."""

    def prepare(self, committer: Committer, _group: Sequence[Entry], time: int) -> bytes | None:
        """Check for locks and a stop, reserve the number and return the record."""
        if committer.stopped is not None:
            self.error = committer.refusal()
            return None
        if committer.locks_held:
            self.error = committer.locked(0, (self._full_key,))
            if self.error is not None:
                return None
        if committer.dropped and self._namespace in committer.dropped:
            self.error = committer.was_dropped(self._namespace)
            return None
        partition, state = self._partition, committer.state
        self._committer, self._time = committer, time
        self._epoch = epoch = state.epochs[partition]
        self._number = number = state.counters[partition].reserve(1) + 1
        committer.last_id = self._id = committer.last_id + 1
        return committer.encode_put(
            self._id, time, partition, epoch, number, self._namespace, self._key, self._value
        )

    def apply(self, committer: Committer, end: int) -> None:
        """Put it into overlay and counters."""
        partition, layer = self._partition, committer.overlay.active
        stored = self._value + pack_trailer(0, self._epoch, self._number, self._time)
        layer.part(partition)[self._full_key] = stored
        layer.bytes += len(stored) + PAIR_OVERHEAD
        committer.state.counters[partition].apply_one(self._number)

    def fail(self, error: BaseException) -> None:
        """End it without effect."""
        self.error = error

    def unknown(self, cause: BaseException) -> None:
        """End it after a failed sync."""
        assert self._committer is not None
        prefix, _ = self._committer.ids()
        tx_id = prefix + self._id.to_bytes(8, "big")
        self.error = unknown_outcome(cause, tx_id, self._partition)

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return whether it changes one of some full keys: none, or that one."""
        return keys & {self._full_key}

    def full_keys(self) -> Iterable[bytes]:
        """Return the full key that it changes."""
        return (self._full_key,)

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return what it writes, by full key."""
        return {self._full_key: self._value}


class Puts:
    """Puts that are logged, synced and applied together."""

    __slots__ = ("_ids", "_numbers", "_passed", "_puts", "_time", "durable", "error", "errors",
                 "size")  # fmt: skip

    def __init__(self, puts: Sequence[Put], durable: bool) -> None:
        self._puts = self._passed = puts
        self.durable = durable
        self.size = 0
        """No transaction among them is too large, nor are all of them for a group."""
        self.error: BaseException | None = None
        """What went wrong with all of them."""
        self.errors: dict[Any, BaseException] = {}
        """What went wrong with single ones, by who waits for them."""
        self._ids = (b"", 0)
        self._numbers: list[tuple[int, int]] = []
        self._time = 0

    @property
    def tx_id(self) -> None:
        """None: they have an id each."""

    def error_of(self, waiter: object) -> BaseException | None:
        """Return the error for whoever waits for one of them, None where it is committed."""
        return self.errors.get(waiter, self.error)

    def leave_errors(self, place: dict[Any, BaseException], own: object) -> None:
        """Put the error of every put that has one, but for the one given, where it is looked up."""
        if self.errors or self.error is not None:
            for put in self._puts:
                error = self.error_of(put[5])
                if error is not None and put is not own:
                    place[put[5]] = error

    def has(self, queued: object) -> bool:
        """Tell whether a put is one of them."""
        return any(put is queued for put in self._puts)

    def waiters(self, own: object) -> list[Any]:
        """Return who waits for any put but the one given."""
        return [put[5] for put in self._puts if put is not own]

    def prepare(self, committer: Committer, group: Sequence[Entry], time: int) -> bytes | None:
        """Check for locks and a stop, reserve the numbers and return the records."""
        if committer.stopped is not None:
            self.error = committer.refusal()
            return None
        if committer.locks_held or committer.dropped:
            self._refuse_some(committer)
            if not self._passed:
                return None
        counters, epochs = committer.state.counters, committer.state.epochs
        encode, numbers = committer.encode_put, self._numbers
        self._time = time
        self._ids = _, tx = committer.reserve_ids(len(self._passed))
        records = []
        for partition, namespace, _, key, value, _ in self._passed:
            number = counters[partition].reserve(1) + 1
            epoch = epochs[partition]
            numbers.append((number, epoch))
            records.append(encode(tx, time, partition, epoch, number, namespace, key, value))
            tx += 1
        return records[0] if len(records) == 1 else b"".join(records)

    def _refuse_some(self, committer: Committer) -> None:
        free = []
        for put in self._puts:
            error = committer.locked(0, (put[2],))
            if put[1] in committer.dropped:
                error = committer.was_dropped(put[1])
            if error is None:
                free.append(put)
            else:
                self.errors[put[5]] = error
        self._passed = free

    def apply(self, committer: Committer, end: int) -> None:
        """Put them into overlay and counters."""
        counters, layer = committer.state.counters, committer.overlay.active
        parts, time = layer.parts, self._time
        size = 0
        for (partition, _, full_key, _, value, _), (number, epoch) in zip(
            self._passed, self._numbers, strict=True
        ):
            part = parts.get(partition)
            if part is None:
                part = layer.part(partition)
            part[full_key] = value + pack_trailer(0, epoch, number, time)
            size += len(value)
            counters[partition].apply_one(number)
        layer.bytes += size + PAIR_OVERHEAD * len(self._passed)
        committer.grouped += len(self._passed) - 1

    def fail(self, error: BaseException) -> None:
        """End them without effect."""
        self.error = error

    def unknown(self, cause: BaseException) -> None:
        """End them after a failed sync."""
        prefix, first = self._ids
        for place, put in enumerate(self._passed):
            tx_id = prefix + (first + place).to_bytes(8, "big")
            self.errors[put[5]] = unknown_outcome(cause, tx_id, put[0])

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys they change."""
        return keys & set(self.full_keys())

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys that they change."""
        return [put[2] for put in self._passed]

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return what they write, by full key."""
        return {put[2]: put[4] for put in self._passed}
