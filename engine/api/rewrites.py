"""Updates of one key that depend on what it holds, on their way into the log.

They never conflict: what a rewrite reads, it reads under the commit mutex, in the order of the
log, and sees what is applied as well as what earlier entries of its own group are about to write.
So any number of increments of one key go into the log as one frame, with one sync.

A rewrite is prepared in two steps.  Its thread reads the key without any lock and decides; if the
newest value is still that one when its turn comes, the decision stands, and nothing is decoded or
encoded under the mutex.  Else it is made again, of the newest value.

Invariants:

- LMDB is never read under the mutex: a reader of LMDB may have to wait.  What was read there
  before is good for as long as readers read by the same transaction of LMDB; if they do not any
  more and no layer has the key, the rewrite is *stale* and begins again.
- Only codecs that come with Tidelog run under the mutex.  One of a user's own may do anything, use
  the store too; if its decision does not stand, the rewrite *raced*, and has to lock its key.
- What a decision raises ends its own rewrite and no other one.

Left out: what is decided (``decisions``), what to do about the stale and the raced (``rewriting``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from contextlib import closing
from itertools import chain, islice
from typing import Any, Protocol

from mmh3 import hash as murmur3

from ...affinity.errors import StorageError, TidelogError
from ...affinity.partitions import partition_of
from ..commit.context import CommitContext
from ..commit.entries import Entry, Receipt, unknown_outcome
from ..data.decisions import KEEP, Decide, New
from ..data.namespaces import Namespace
from ..data.overlay import Overlay, since
from ..data.scan import Pair
from ..data.stored import PREFIX_SIZE, TRAILER_SIZE, VALUE, is_tombstone, stored_value
from ..data.updates import PAIR_FIELDS
from ..system.environment import KvTransaction
from .snapshots import SnapshotSession

Values = dict[bytes, "bytes | None"]
"""What a group writes, by full key: encoded values, None for a delete."""

CHANGES_MAX = 512
"""Changes of a map since somebody looked at its first keys; then it is time to look again."""

_NAMESPACE = slice(4, 8)


class StaleError(TidelogError):
    """What was read before is no longer known to be the newest; users never see this."""

    code = "TL-INT-002"


class RacedError(TidelogError):
    """Somebody changed the key, and its codec must not run here; users never see this."""

    code = "TL-INT-003"


class Choice(Protocol):
    """Which key is written, and what it gets; known once ``choose`` has returned."""

    namespace: Namespace
    partition: int
    full_key: bytes
    key: bytes
    size: int
    nothing_to_write: bool
    """Whether that is known without the mutex."""
    result: Any

    def choose(self, overlay: Overlay, values: Values) -> New:
        """Return what to write, given what earlier entries of the group write; under the mutex."""

    def let_go(self) -> None:
        """Hold nothing of the data file any more: an error may keep this alive for long."""


class OneKey:
    """A decision about one key."""

    __slots__ = ("_decide", "_seen", "_txn", "_value", "full_key", "key", "namespace",
                 "nothing_to_write", "partition", "result", "size")  # fmt: skip

    def __init__(
        self,
        overlay: Overlay,
        namespace: Namespace,
        key: bytes,
        decide: Decide,
        get: Callable[[bytes], bytes | None],
    ) -> None:
        self.namespace = namespace
        self.key = key
        first, count, _ = namespace.space
        self.partition = first + murmur3(key, 0, False) % count
        self.full_key = namespace.prefixes[self.partition] + key
        # First the transaction, then the value: were it the other way round, the value could be
        # older than what readers of that transaction see.
        self._txn: KvTransaction | None = overlay.view.txn
        self._seen = get(key)
        self._decide = decide
        self.result, self._value = decide(self._seen)
        self.nothing_to_write = self._value is KEEP
        self.size = PAIR_FIELDS + len(self.full_key)
        if isinstance(self._value, bytes):
            self.size += len(self._value)

    def choose(self, overlay: Overlay, values: Values) -> New:
        """Return what to write to the key."""
        data = values[self.full_key] if self.full_key in values else self._applied(overlay)
        if data != self._seen:
            if not self.namespace.built_in:
                raise RacedError("the key was changed")
            self.result, self._value = self._decide(data)
        return self._value

    def let_go(self) -> None:
        """Hold no transaction of LMDB any more: it would keep the data file from growing."""
        self._txn = None

    def _applied(self, overlay: Overlay) -> bytes | None:
        view, partition, full_key = overlay.view, self.partition, self.full_key
        for layer in view.layers:
            part = layer.parts.get(partition)
            if part is not None:
                stored = part.get(full_key)
                if stored is not None:
                    return None if is_tombstone(stored) else stored[:-TRAILER_SIZE]
        if view.txn is not self._txn:
            raise StaleError("the data file has moved on")
        return self._seen


class Look:
    """The first ``count`` pairs of a map in a snapshot; for all who pop from the map meanwhile.

    Its snapshot ends when the last of them lets go of it, or soon after.
    """

    __slots__ = ("__weakref__", "count", "exhausted", "pairs", "snapshot", "used_up")

    def __init__(self, namespace: Namespace, snapshot: SnapshotSession, count: int) -> None:
        self.count = count
        self.snapshot = snapshot
        with closing(snapshot.blocks(namespace, b"", None, False, count)) as blocks:  # type: ignore[type-var]  # a generator
            self.pairs = list(islice(chain.from_iterable(blocks), count))
        self.exhausted = len(self.pairs) < count
        """Whether these are all pairs of the map."""
        self.used_up = not self.pairs
        """Whether the next one to pop should look again."""


class FirstKey:
    """The first key of a map, to be deleted; ``result`` is its pair, None if there is none.

    It knows the first pairs of a snapshot, and finds under the mutex what became of them since.
    """

    __slots__ = ("_look", "full_key", "key", "namespace", "nothing_to_write", "partition", "result",
                 "size")  # fmt: skip

    def __init__(self, namespace: Namespace, look: Look) -> None:
        self.namespace = namespace
        self._look = look
        self.nothing_to_write = not look.pairs
        self.result: Pair | None = None
        self.partition = 0
        self.full_key = self.key = b""
        self.size = PAIR_FIELDS

    def choose(self, overlay: Overlay, values: Values) -> New:
        """Find the first key and delete it."""
        look = self._look
        try:
            look.snapshot.view()  # if it has ended, layers may have been merged
        except StorageError as error:
            look.used_up = True
            raise StaleError("the snapshot has ended") from error
        changed = self._changed(values)
        found = next((pair for pair in look.pairs if pair[0] not in changed), None)
        fresh = [(key, value) for key, value in changed.items() if value is not None]
        if not look.exhausted:
            last = look.pairs[-1][0]
            fresh = [pair for pair in fresh if pair[0] <= last]
        first = min(fresh, default=None)
        if first is not None and (found is None or first[0] < found[0]):
            found = first
        look.used_up = found is None or len(changed) > CHANGES_MAX
        if found is None and not look.exhausted:
            raise StaleError("others have taken all of the first keys")
        self.result = found
        if found is None:
            return KEEP
        self.key = found[0]
        self.partition = partition_of(self.key, self.namespace.space)
        self.full_key = self.namespace.prefixes[self.partition] + self.key
        return None

    def let_go(self) -> None:
        """The look is shared, and ends by itself."""

    def _changed(self, values: Values) -> dict[bytes, bytes | None]:
        """Return what keys of the map hold that were changed since the snapshot."""
        changed: dict[bytes, bytes | None] = {}
        prefixes = self.namespace.prefixes
        for layer in since(self._look.snapshot.boundary):
            for partition, part in layer.parts.items():
                if partition >= len(prefixes):
                    continue  # of another space
                prefix = prefixes[partition]
                for full_key, stored in part.items():
                    if full_key.startswith(prefix):
                        value = None if is_tombstone(stored) else stored[VALUE]
                        changed[full_key[PREFIX_SIZE:]] = value
        number = prefixes[0][_NAMESPACE]
        for full_key, value in values.items():
            if full_key[_NAMESPACE] == number:
                changed[full_key[PREFIX_SIZE:]] = value
        return changed


class Rewrite:
    """A transaction that updates one key, of what it holds."""

    __slots__ = ("_context", "_epoch", "_id", "_number", "_time", "_value", "choice", "durable",
                 "error", "receipt", "size", "values")  # fmt: skip

    count = 1

    def __init__(self, choice: Choice, durable: bool) -> None:
        self.choice = choice
        self.durable = durable
        self.size = choice.size
        self.error: BaseException | None = None
        self.receipt: Receipt | None = None
        self.values: Values = {}
        """What its group writes, as far as it is known; shared by all rewrites of the group."""
        self._context: CommitContext | None = None
        self._value: New = KEEP
        self._id = self._epoch = self._number = self._time = 0

    @property
    def tx_id(self) -> None:
        """None: the id is automatic."""

    def prepare(self, context: CommitContext, group: Sequence[Entry], time: int) -> bytes | None:
        """Decide, check for locks and a stop, reserve the number and return the record.

        The record is empty if nothing is to be written.
        """
        choice, values = self.choice, newest_values(group)
        try:
            if context.standing.stopped:
                raise context.refusal()
            if context.dropped:
                context.check_dropped((choice.namespace.id,))
            self._value = value = choice.choose(context.overlay, values)
            if value is not KEEP and context.standing.locks:
                blocked = context.locked(0, (choice.full_key,))
                if blocked is not None:
                    raise blocked
        except TidelogError as error:
            self.error = error.with_traceback(None)  # its frames would hold what holds it: a cycle
            return None
        except Exception as error:  # what a value makes a codec raise is for one caller only
            self.error = error
            return None
        finally:
            choice.let_go()
        self._context, self._time, self.values = context, time, values
        if value is KEEP:
            self.durable = False  # what it saw in its group is synced with the group
            return b""
        partition, state = choice.partition, context.state
        self._epoch = epoch = state.epochs[partition]
        self._number = number = state.counters[partition].reserve(1) + 1
        context.ids.last = self._id = tx = context.ids.last + 1
        values[choice.full_key] = value
        namespace, key = choice.namespace.id, choice.key
        if value is None:
            runs = (partition, epoch, number, 1)
            return context.tx_record((self._tx_id(), time, runs, namespace, (key,), (None,), None))
        return context.encode_put(tx, time, partition, epoch, number, namespace, key, value)

    def _tx_id(self) -> bytes:
        assert self._context is not None
        return self._context.ids.of(self._id)

    def apply(self, context: CommitContext, end: int) -> None:
        """Put it into overlay and counters, and make its receipt."""
        partition, value = self.choice.partition, self._value
        if value is KEEP:
            self.receipt = Receipt(b"", end, self._time, partition)
            return
        stored = stored_value(value, self._epoch, self._number, self._time)
        context.overlay.active.put(partition, self.choice.full_key, stored)
        context.state.counters[partition].apply_one(self._number)
        self.receipt = Receipt(self._tx_id(), end, self._time, partition)

    def fail(self, error: BaseException) -> None:
        """End it without effect."""
        self.error = error

    def unknown(self, cause: BaseException) -> None:
        """End it after a failed sync."""
        self.receipt = None
        if self._value is KEEP:
            self.error = cause
        else:
            self.error = unknown_outcome(cause, self._tx_id(), self.choice.partition)

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return whether it changes one of some full keys: none, or that one."""
        return keys & set(self.full_keys())

    def full_keys(self) -> Iterable[bytes]:
        """Return the full key that it changes, if it does."""
        return () if self._value is KEEP else (self.choice.full_key,)

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return what it writes, by full key."""
        return {} if self._value is KEEP else {self.choice.full_key: self._value}


def newest_values(group: Sequence[Entry]) -> Values:
    """Return what a group writes so far; a rewrite in it hands over what was known to it."""
    values: Values = {}
    behind = []
    for entry in reversed(group):
        if isinstance(entry, Rewrite):
            values = entry.values
            break
        behind.append(entry)
    for entry in reversed(behind):
        values.update(entry.new_values())
    return values
