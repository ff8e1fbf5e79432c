"""Transactions: reads and writes of many keys that take effect all at once, or not at all.

*Optimistic*: reads come from one snapshot, taken at the first read; at the commit everything read
is checked against what was committed since.  *Pessimistic*: keys are locked when they are
touched, so the commit has nothing to check.

What each level keeps out:

================  ==================================  ====================================
isolation         optimistic checks at the commit     pessimistic locks
================  ==================================  ====================================
serializable      keys and ranges read                keys and ranges read, keys written
repeatable_read   keys written                        keys and ranges read, keys written
read_committed    nothing                             keys written
================  ==================================  ====================================

Invariants:

- A transaction reads what it wrote.
- Nothing is visible to others, logged or numbered before ``commit``.
- After ``commit`` or ``rollback`` it is over: every call but these two raises ``ClosedError``,
  and leaving the ``with`` block does nothing.
- Serial order is the order of the log.

Left out: how commits get into the log (``commit``), waiting for locks (``lock_manager``).
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from ..affinity.errors import ClosedError, DeadlineError, TidelogError, UsageError
from ..affinity.partitions import partition_of
from ..tx.locks import KeyLock, RangeLock
from .commit import Commit, Receipt
from .maps import Map
from .namespaces import Namespace
from .overlay import since
from .scan import Pair, Range
from .snapshots import Snapshot, read_view

if TYPE_CHECKING:
    from .database import Database

Mode = Literal["optimistic", "pessimistic"]
Isolation = Literal["serializable", "repeatable_read", "read_committed"]
Durability = Literal["always", "interval", "none"]

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

TX_ID_SIZE = 16
TAG_BYTES_MAX = 1024


class LockedError(TidelogError):
    """A key to be written is locked by a pessimistic transaction; waited for, never seen by users."""

    code = "TL-INT-001"
    hint = ""


def choice(name: str, value: object, allowed: object) -> Any:
    """Return ``value`` if the literal type ``allowed`` has it, else raise ``UsageError``."""
    if value not in get_args(allowed):
        raise UsageError(f"{name}={value!r} is not one of {', '.join(get_args(allowed))}")
    return value


class Transaction:
    """One attempt at a change of many keys; made by ``db.transaction``.

    ``tx[users]`` is the map ``users`` inside the transaction.  Used by one thread only.  Leaving
    the ``with`` block commits, an exception in it rolls back.
    """

    def __init__(
        self,
        database: Database,
        *,
        mode: Mode = "optimistic",
        isolation: Isolation = "serializable",
        durability: Durability | None = None,
        id: bytes | None = None,
        tag: str | None = None,
        deadline: float | None = None,
        lock_timeout: float | None = None,
        any_thread: bool = False,
    ) -> None:
        self._database = database
        self._pessimistic = choice("mode", mode, Mode) == "pessimistic"
        self._isolation = choice("isolation", isolation, Isolation)
        level = database.durability if durability is None else durability
        self._durable = choice("durability", level, Durability) == "always"
        self._tag = _checked_tag(tag)
        self._given_id = _checked_id(id)
        self._deadline = None if deadline is None else database.now() + deadline
        self._lock_timeout = database.lock_timeout if lock_timeout is None else lock_timeout
        self._thread = None if any_thread else _thread.get_ident()
        self._writes: dict[int, dict[bytes, bytes | None]] = {}
        self._namespaces: set[int] = set()
        self._maps: dict[int, Map[Any, Any]] = {}
        self._reading: Snapshot | None = None
        self._keys_read: set[bytes] = set()
        self._ranges_read: list[Range] = []
        self._owner = 0
        self._open = True
        self.receipt: Receipt | None = None

    def __repr__(self) -> str:
        """Show what the transaction is doing."""
        state = "open" if self._open else "committed" if self.receipt else "rolled back"
        updates = sum(map(len, self._writes.values()))
        return f"<Transaction {state} updates={updates} reads={len(self._keys_read)}>"

    def __getitem__(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is inside this transaction."""
        self._check_open()
        namespace = mapping.namespace
        inside = self._maps.get(namespace.id)
        if inside is None:
            inside = self._maps[namespace.id] = Map(namespace, self)
        return inside

    # -------------------------------------------------------------- end

    def commit(self) -> Receipt:
        """Make the transaction take effect; return its receipt.

        Raises ``ConflictError`` (run it again), ``CommitUnknownError`` (ask ``db.outcome``),
        ``TransactionTooLargeError``, ``DeadlineError``, ``StorageError``.  After any of these the
        transaction is over.
        """
        self._check_open()
        self._open = False
        try:
            self.receipt = self._database.commit_transaction(self)
            return self.receipt
        finally:
            self._end()

    def rollback(self) -> None:
        """End the transaction without any effect; after its end this does nothing."""
        if self._open:
            self._open = False
            self._end()

    def _end(self) -> None:
        if self._reading is not None:
            self._reading.close()
        if self._owner:
            self._database.locks.release(self._owner)
            self._owner = 0
        self._database.transaction_ended(self)

    def __enter__(self) -> Transaction:
        """Return the transaction."""
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back if the block raised; after ``commit`` or ``rollback`` do nothing."""
        if self._open:
            if kind is None:
                self.commit()
            else:
                self.rollback()

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError(
                "the transaction is over",
                hint="Begin a new one; results that you still need have to be read before its end.",
            )
        if self._thread is not None and self._thread != _thread.get_ident():
            raise UsageError(
                "a transaction belongs to the thread that began it",
                hint="Begin one in each thread; the database may be shared.",
            )
        if self._deadline is not None and self._database.now() > self._deadline:
            raise DeadlineError("the deadline of the transaction has passed")

    # -------------------------------------------------------------- session of its maps

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""
        prefixes = namespace.prefixes
        count = len(prefixes)

        def get(key: bytes) -> bytes | None:
            self._check_open()
            partition = partition_of(key, count)
            full_key = prefixes[partition] + key
            mine = self._writes.get(partition)
            if mine is not None and full_key in mine:
                return mine[full_key]
            return self._get(namespace, partition, full_key)

        return get

    def _get(self, namespace: Namespace, partition: int, full_key: bytes) -> bytes | None:
        namespace.check_alive()
        if self._pessimistic:
            if self._isolation != "read_committed":
                self._lock(KeyLock(full_key, exclusive=False))
            view = self._database.overlay.view
        elif self._isolation == "read_committed":
            view = self._database.overlay.view
        else:
            view = self._snapshot().view()
            if self._isolation == "serializable":
                self._keys_read.add(full_key)
        return read_view(view, partition, full_key)

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that sets an encoded key, or deletes it where the value is None."""
        prefixes = namespace.prefixes
        count = len(prefixes)

        def put(key: bytes, value: bytes | None) -> None:
            self._check_open()
            partition = partition_of(key, count)
            full_key = prefixes[partition] + key
            if self._pessimistic:
                self._lock(KeyLock(full_key))
            part = self._writes.get(partition)
            if part is None:
                part = self._part(namespace, partition)
            elif namespace.id not in self._namespaces:
                self._part(namespace, partition)
            part[full_key] = value

        return put

    def _part(self, namespace: Namespace, partition: int) -> dict[bytes, bytes | None]:
        namespace.check_alive()
        self._database.check_writable()
        self._namespaces.add(namespace.id)
        return self._writes.setdefault(partition, {})

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""
        return list(map(self.getter(namespace), keys))

    def set_many(self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Set or delete many encoded keys."""
        put = self.setter(namespace)
        for key, value in pairs:
            put(key, value)

    def atomically(self, namespace: Namespace, work: Callable[[Map[Any, Any]], T]) -> T:
        """Run ``work`` with the map of this transaction."""
        self._check_open()
        return work(self._maps[namespace.id])

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int
    ) -> Iterator[list[Pair]]:
        """Yield blocks of encoded pairs, in order, with this transaction's own writes."""
        self._check_open()
        namespace.check_alive()
        wanted = Range(namespace=namespace.id, start=start, stop=stop)
        if self._pessimistic:
            if self._isolation != "read_committed":
                for partition in range(len(namespace.prefixes)):
                    self._lock(RangeLock(*wanted.bounds(partition)))
            snapshot = self._database.snapshot()
        elif self._isolation == "read_committed":
            snapshot = self._database.snapshot()
        else:
            snapshot = self._snapshot()
            if self._isolation == "serializable":
                self._ranges_read.append(wanted)
        try:
            mine = {partition: dict(part) for partition, part in self._writes.items()}
            for block in snapshot.scan(wanted, reverse=reverse, block=size, writes=mine):
                yield block
                self._check_open()
        finally:
            if snapshot is not self._reading:
                snapshot.close()

    def _snapshot(self) -> Snapshot:
        if self._reading is None:
            self._reading = self._database.snapshot()
        return self._reading

    def _lock(self, want: KeyLock | RangeLock) -> None:
        locks = self._database.locks
        if not self._owner:
            self._owner = locks.new_owner()
        locks.acquire(self._owner, want, timeout=self._lock_timeout, deadline=self._deadline)

    # -------------------------------------------------------------- what the commit needs

    @property
    def tx_id(self) -> bytes | None:
        """The id that the caller gave, or the one of the commit; None before it."""
        return self.receipt.tx_id if self.receipt else self._given_id

    def to_commit(self) -> Commit | None:
        """Return the commit of this transaction; None where it wrote nothing."""
        if self._given_id is not None:
            self._database.add_outcome(self._writes, self._namespaces, self._given_id, self._tag)
        if not self._writes:
            return None
        details: dict[str, Any] = {}
        if self._tag is not None:
            details["tag"] = self._tag
        if self._given_id is not None:
            details["user_id"] = True
        return Commit(
            self._writes,
            self._namespaces,
            self._durable,
            tx_id=self._given_id,
            details=details or None,
            check=self.check,
            deadline=self._deadline,
        )

    def lock_writes(self) -> None:
        """Take exclusive locks on all keys written, in order, waiting for their holders."""
        for partition in sorted(self._writes):
            for key in sorted(self._writes[partition]):
                self._lock(KeyLock(key))

    def check(self, commit: Commit, group: Sequence[Commit]) -> None:
        """Raise what speaks against this commit; called under the mutex, in commit order.

        ``LockedError`` where somebody's lock is in the way, ``ConflictError`` where something
        read has changed.  Sets the receipt of a commit under an id that is committed already.
        """
        database = self._database
        if self._given_id is not None:
            commit.receipt = database.earlier_receipt(self._given_id, group)
            if commit.receipt is not None:
                return
        database.check_locks(commit, self._owner)
        snapshot = self._reading
        if self._pessimistic or snapshot is None or self._isolation == "read_committed":
            return
        if self._isolation == "serializable":
            keys: Iterable[bytes] = self._keys_read
            ranges: Sequence[Range] = self._ranges_read
        else:
            keys, ranges = (key for part in self._writes.values() for key in part), ()
        keys = keys if isinstance(keys, set) else set(keys)
        for earlier in group:
            found = first_change(earlier.writes, keys, ranges)
            if found is not None:
                raise database.conflict(found, earlier.tx_id)
        for layer in since(snapshot.boundary):
            found = first_change(layer.parts, keys, ranges)
            if found is not None:
                raise database.conflict(found, None, layer.parts)


def first_change(
    changes: Mapping[int, Mapping[bytes, Any]], keys: set[bytes], ranges: Sequence[Range]
) -> bytes | None:
    """Return a changed key that is among ``keys`` or in ``ranges``, or None."""
    for partition, part in changes.items():
        if keys:
            found = keys & part.keys() if len(part) < len(keys) else keys.intersection(part)
            if found:
                return min(found)
        for wanted in ranges:
            low, high = wanted.bounds(partition)
            for key in part:
                if low <= key < high:
                    return key
    return None


def _checked_id(tx_id: bytes | None) -> bytes | None:
    if tx_id is not None and (type(tx_id) is not bytes or len(tx_id) != TX_ID_SIZE):
        raise UsageError(
            f"the id of a transaction is {TX_ID_SIZE} bytes, not {tx_id!r}",
            hint="Use `uuid.uuid4().bytes`, or `db.new_id()`.",
        )
    return tx_id


def _checked_tag(tag: str | None) -> str | None:
    if tag is not None and len(str(tag).encode()) > TAG_BYTES_MAX:
        raise UsageError(f"a tag is text of at most {TAG_BYTES_MAX} bytes")
    return tag
