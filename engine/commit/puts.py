"""Puts of single keys on their way into the log together, each a transaction of its own.

They are the most frequent commits, and what is done once per put is what the throughput hangs
on.  So a put is a plain tuple, one loop makes all records, and another one all stored values.

Invariants:

- Each put has its own record, number and transaction id; a reader of the log sees no difference.
- Each has an outcome of its own: somebody's lock, or a map that was dropped, refuses one put and
  lets its neighbours through.

Left out: who waits for a put (``queue`` for threads, ``log_thread`` for tasks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from typing import Any, Final

from ...affinity.errors import TidelogError
from ..data.overlay import PAIR_OVERHEAD
from ..data.stored import pack_trailer
from .context import CommitContext
from .entries import Entry, unknown_outcome

PUT_BYTES_MAX = 1024
"""The longest value of such a put; it also bounds a group of ``PUTS_MAX``."""

PUTS_MAX = 1024
"""Puts in one ``Puts``."""

Put = tuple[int, int, bytes, bytes, bytes, Any]
"""(partition, namespace id, full key, encoded key, encoded value, whoever waits for it)."""

NAMESPACE: Final = 1
FULL_KEY: Final = 2
ENCODED_VALUE: Final = 4
WAITER: Final = 5


class LonePut:
    """A put that nobody waits for but the thread that leads it."""

    __slots__ = ("_context", "_epoch", "_full_key", "_id", "_key", "_namespace", "_number",
                 "_partition", "_time", "_value", "durable", "error", "size")  # fmt: skip

    count = 1

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
        self._context: CommitContext | None = None
        self._id = self._epoch = self._number = self._time = 0

    @property
    def tx_id(self) -> None:
        """None: the id is automatic."""

    def prepare(self, context: CommitContext, _group: Sequence[Entry], time: int) -> bytes | None:
        """Check for locks and a stop, reserve the number and return the record."""
        if context.standing.watched:
            if context.standing.stopped:
                self.error = context.refusal()
                return None
            self.error = context.locked(0, (self._full_key,))
            if self.error is not None:
                return None
        if context.dropped and self._namespace in context.dropped:
            self.error = context.was_dropped(self._namespace)
            return None
        partition, state, ids = self._partition, context.state, context.ids
        self._context, self._time = context, time
        self._epoch = epoch = state.epochs[partition]
        self._number = number = state.counters[partition].reserve(1) + 1
        ids.last = self._id = tx = ids.last + 1
        return context.encode_put(
            tx, time, partition, epoch, number, self._namespace, self._key, self._value
        )

    def apply(self, context: CommitContext, end: int) -> None:
        """Put it into overlay and counters."""
        partition, number = self._partition, self._number
        stored = self._value + pack_trailer(0, self._epoch, number, self._time)
        context.overlay.view.layers[0].put(partition, self._full_key, stored)
        context.state.counters[partition].apply_one(number)

    def fail(self, error: BaseException) -> None:
        """End it without effect."""
        self.error = error

    def unknown(self, cause: BaseException) -> None:
        """End it after a failed sync."""
        assert self._context is not None
        self.error = unknown_outcome(cause, self._context.ids.of(self._id), self._partition)

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

    __slots__ = ("_context", "_first_id", "_numbers", "_passed", "_puts", "_time", "durable",
                 "error", "errors", "size")  # fmt: skip

    def __init__(self, puts: Sequence[Put], durable: bool) -> None:
        self._puts = self._passed = puts
        self.durable = durable
        self.size = 0
        """No transaction among them is too large, nor are all of them for a group."""
        self.error: BaseException | None = None
        """What went wrong with all of them."""
        self.errors: dict[Any, BaseException] = {}
        """What went wrong with single ones, by who waits for them."""
        self._context: CommitContext | None = None
        self._first_id = 0
        self._numbers: list[tuple[int, int]] = []
        self._time = 0

    @property
    def count(self) -> int:
        """How many of them were not refused."""
        return len(self._passed)

    @property
    def tx_id(self) -> None:
        """None: they have an id each."""

    def error_of(self, waiter: object) -> BaseException | None:
        """Return the error for whoever waits for one of them, None if it is committed."""
        return self.errors.get(waiter, self.error)

    def leave_errors(self, place: dict[Any, BaseException], own: object) -> None:
        """Put the error of every put that has one, but for the one given, where it is looked up."""
        if self.errors or self.error is not None:
            for put in self._puts:
                error = self.error_of(put[WAITER])
                if error is not None and put is not own:
                    place[put[WAITER]] = error

    def has(self, queued: object) -> bool:
        """Tell whether a put is one of them."""
        return any(put is queued for put in self._puts)

    def waiters(self, own: object) -> list[Any]:
        """Return who waits for any put but the one given."""
        return [put[WAITER] for put in self._puts if put is not own]

    def prepare(self, context: CommitContext, group: Sequence[Entry], time: int) -> bytes | None:
        """Check for locks and a stop, reserve the numbers and return the records."""
        if context.standing.stopped:
            self.error = context.refusal()
            return None
        if context.standing.locks or context.dropped:
            self._refuse_some(context)
            if not self._passed:
                return None
        counters, epochs = context.state.counters, context.state.epochs
        encode, numbers = context.encode_put, self._numbers
        self._context, self._time = context, time
        self._first_id = tx = context.ids.reserve(len(self._passed))
        records = []
        for partition, namespace, _, key, value, _ in self._passed:
            number = counters[partition].reserve(1) + 1
            epoch = epochs[partition]
            numbers.append((number, epoch))
            records.append(encode(tx, time, partition, epoch, number, namespace, key, value))
            tx += 1
        return records[0] if len(records) == 1 else b"".join(records)

    def _refuse_some(self, context: CommitContext) -> None:
        free = []
        for put in self._puts:
            error: TidelogError | None = context.locked(0, (put[FULL_KEY],))
            if put[NAMESPACE] in context.dropped:
                error = context.was_dropped(put[NAMESPACE])
            if error is None:
                free.append(put)
            else:
                self.errors[put[WAITER]] = error
        self._passed = free

    def apply(self, context: CommitContext, end: int) -> None:
        """Put them into overlay and counters."""
        counters, layer = context.state.counters, context.overlay.active
        parts, time = layer.parts, self._time
        size = 0
        for (partition, _, full_key, _, value, _), (number, epoch) in zip(
            self._passed, self._numbers, strict=True
        ):
            part = parts.get(partition)
            if part is None:
                part = layer.part(partition)
            part[full_key] = stored = value + pack_trailer(0, epoch, number, time)
            size += len(full_key) + len(stored)
            counters[partition].apply_one(number)
        layer.bytes += size + PAIR_OVERHEAD * len(self._passed)

    def fail(self, error: BaseException) -> None:
        """End them without effect."""
        self.error = error

    def unknown(self, cause: BaseException) -> None:
        """End them after a failed sync."""
        assert self._context is not None
        id_of = self._context.ids.of
        for number, (partition, *_, waiter) in enumerate(self._passed, self._first_id):
            self.errors[waiter] = unknown_outcome(cause, id_of(number), partition)

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys they change."""
        return keys & set(self.full_keys())

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys that they change."""
        return [put[FULL_KEY] for put in self._passed]

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return what they write, by full key."""
        return {put[FULL_KEY]: put[ENCODED_VALUE] for put in self._passed}
