"""Transactions: reads and writes of many keys that take effect all at once, or not at all.

*Optimistic*: reads come from one snapshot, taken at the first read; at the commit everything read
is compared with what was committed since.  *Pessimistic*: keys are locked when they are touched,
so the commit has nothing to compare.  ``tx.validation`` has the table of levels.

Invariants:

- A transaction reads what it wrote.
- Nothing is visible to others, logged or numbered before ``commit``.
- After ``commit`` or ``rollback`` it is over: every call but these two raises ``ClosedError``,
  and leaving the ``with`` block does nothing.
- Serial order is the order of the log.

Left out: how commits get into the log (``commit``), waiting for locks (``lock_manager``).
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from mmh3 import hash as murmur3

from ...affinity.errors import (
    ClosedError,
    CorruptDataError,
    DeadlineError,
    TidelogError,
    UsageError,
)
from ...affinity.partitions import partition_of
from ...tx.locks import KeyLock, RangeLock
from ...tx.validation import RangeRead, ReadSet, Validated, first_common, read_rule
from ..commit.entries import Commit, Entry, Receipt, leaves_doubt, state_of
from ..commit.lock_manager import Holder, LockManager, map_key
from ..commit.outcomes import HORIZON_ID
from ..data.decisions import KEEP, Decide
from ..data.namespaces import Home, Namespace, named, namespace_at
from ..data.overlay import Overlay, since
from ..data.point_reads import read_view
from ..data.scan import Pair, Range
from ..data.updates import FewUpdates, Writes
from ..store.conflicts import Conflicts
from ..store.known_outcomes import KnownOutcomes
from ..store.open_state import OpenState
from .choices import Durability, Isolation, Mode, checked_seconds, choice
from .inside import Blocks
from .maps import Map, map_of
from .pickling import not_pickled
from .snapshots import SnapshotSession

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

TX_ID_SIZE = 16
TAG_BYTES_MAX = 1024
_NAMESPACE = slice(4, 8)
"""Where a full key has the id of its map."""


class TransactionSource(Protocol):
    """The store that a transaction changes."""

    @property
    def home(self) -> Home:
        """The opening of the store, to which its maps belong."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds that never run backwards."""

    @property
    def durability(self) -> Durability:
        """What a commit waits for, if the transaction does not say."""

    @property
    def lock_timeout(self) -> float:
        """Seconds that a lock is waited for, if the transaction does not say."""

    @property
    def locks(self) -> LockManager:
        """Who has locked what."""

    @property
    def overlay(self) -> Overlay:
        """The newest state."""

    @property
    def inside(self) -> Blocks:
        """The threads that are inside a transaction block."""

    @property
    def open_state(self) -> OpenState:
        """Whether the store is open, and what every call raises once it is not."""

    @property
    def outcomes(self) -> KnownOutcomes:
        """What became of transactions."""

    @property
    def conflicts(self) -> Conflicts:
        """Makes the error for a key that was changed by somebody else."""

    @property
    def dropped(self) -> Mapping[int, str]:
        """Maps that were dropped in this opening, id to name."""

    @property
    def was_dropped(self) -> Callable[[int], TidelogError]:
        """Return the error for a map that was dropped before the commit."""

    def check_writable(self) -> None:
        """Raise unless the store can be written."""

    def snapshot(self) -> SnapshotSession:
        """Return the whole store as it is now."""

    def commit_transaction(self, transaction: TransactionSession, /) -> Receipt:
        """Commit what a transaction wrote; waits for locks that are in the way."""


class TransactionSession:
    """What stands behind a transaction: what it has read, written and locked.

    Used by one thread only, unless ``any_thread`` says that its caller sees to that.
    """

    def __init__(
        self,
        database: TransactionSource,
        mode: Mode = "optimistic",
        isolation: Isolation = "serializable",
        durability: Durability | None = None,
        id: bytes | None = None,
        tag: str | None = None,
        deadline: float | None = None,
        lock_timeout: float | None = None,
        any_thread: bool = False,
        plain_writes: bool = False,
    ) -> None:
        self._database = database
        self._rule = read_rule(mode, isolation)
        if durability is None:
            durability = database.durability
        elif durability != "always":
            choice("durability", durability, Durability)
        self._durable = durability == "always"
        self._tag = None if tag is None else checked_tag(tag)
        self._given_id = None if id is None else checked_tx_id(id)
        self._deadline = (
            None if deadline is None else database.now() + checked_seconds("deadline", deadline)
        )
        self._lock_timeout = (
            database.lock_timeout
            if lock_timeout is None
            else checked_seconds("lock_timeout", lock_timeout)
        )
        self._thread = None if any_thread else get_ident()
        self._plain_writes = plain_writes
        self._entered = False
        self._writes: Writes = {}
        self._maps: dict[int, Map[Any, Any]] = {}
        self._reading: SnapshotSession | None = None
        self._reads = ReadSet()
        self._holder: Holder | None = None
        self._locked_maps: tuple[bytes, ...] = ()
        self._interrupted = False
        self._open = True
        self._ended = False
        """Whether it has let go of all it held."""
        self.receipt: Receipt | None = None
        self.in_doubt = False
        """Whether the commit ended so that it may have taken effect, or not."""

    def __repr__(self) -> str:
        state = state_of(is_open=self._open, receipt=self.receipt, in_doubt=self.in_doubt)
        return f"<Transaction {state} updates={len(self._writes)} {self._reads!r}>"

    way = not_pickled

    def map_inside(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is inside this transaction; ``UsageError`` for a foreign one."""
        self._check_open()
        try:
            namespace = mapping._namespace
            here = namespace.home is self._database.home
        except AttributeError:
            here = False
        if not here:
            namespace = namespace_at(self._database.home, mapping)
        inside = self._maps.get(namespace.id)
        if inside is None:
            if self._reading is not None:
                self._reading.check_shows(namespace)
            inside = self._maps[namespace.id] = map_of(namespace, self)
        return inside

    # -------------------------------------------------------------- end

    def commit(self) -> Receipt:
        """Make the transaction take effect, as ``Transaction.commit`` does."""
        self._check_open()
        self._open = False
        try:
            self.receipt = self._database.commit_transaction(self)
            return self.receipt
        except BaseException as error:
            self.in_doubt = leaves_doubt(error)
            raise
        finally:
            self._end()

    def prepare(self) -> Commit | None:
        """Take no more reads and writes, and return what to commit, if anything.

        For those who see to the commit themselves; ``end`` has to follow.
        """
        self._check_open()
        self._open = False
        return self.to_commit()

    def end(self, receipt: Receipt | None) -> None:
        """End what ``prepare`` began: with the receipt of the commit, or rolled back."""
        self.receipt = receipt
        self._end()

    def interrupt(self) -> None:
        """Let a wait for a lock end in ``RolledBackError``; called from another thread."""
        self._interrupted = True
        holder = self._holder
        if holder is not None and holder.owner:
            self._database.locks.interrupt(holder.owner)

    def resume(self) -> None:
        """Forget an ``interrupt``: what comes next may wait again."""
        self._interrupted = False
        if self._holder is not None:
            self._database.locks.resume(self._holder.owner)

    def rollback(self) -> None:
        """End the transaction without any effect; after its end this does nothing."""
        self._open = False
        self._end()

    def _end(self) -> None:
        """Let go of snapshot and locks, also if an interrupt comes in between."""
        if self._ended:
            return
        try:
            self._let_go()
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Let go of snapshot and locks; done twice it does the same."""
        if self._entered:
            self._entered = False
            self._database.inside.leave(self._thread, self)
        self._maps.clear()  # they refer to this transaction: let both go without the collector
        if self._reading is not None:
            self._reading.close()
        if self._holder is not None:
            self._holder.release()
        self._ended = True

    def __enter__(self) -> TransactionSession:
        self._check_open()
        if self._thread is not None and not self._plain_writes:
            try:
                self._entered = True
                self._database.inside.enter(self._thread, self)
                return self
            except BaseException:  # Ctrl-C: nobody will leave a block that was not begun
                self.rollback()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open and kind is None:
            self.commit()
        else:
            self.rollback()

    @property
    def is_open(self) -> bool:
        """Whether it has neither been committed nor rolled back."""
        return self._open

    def _check_open(self) -> None:
        if self._database.open_state.closed is not None:
            raise self._database.open_state.closed()
        if not self._open:
            raise ClosedError(
                "the transaction is over",
                hint="Begin a new one; results that you still need have to be read before its end.",
            )
        if self._thread is not None and self._thread != get_ident():
            raise UsageError(
                "a transaction belongs to the thread that began it",
                hint="Begin one in each thread; the database may be shared.",
            )
        if self._deadline is not None and self._database.now() > self._deadline:
            raise DeadlineError("the deadline of the transaction has passed")

    # -------------------------------------------------------------- session of its maps

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""
        prefixes, (first, count, _) = namespace.prefixes, namespace.space
        database = self._database

        def get(key: bytes) -> bytes | None:
            if (
                not self._open
                or database.open_state.closed is not None
                or self._deadline is not None
                or self._thread != get_ident()
            ):
                self._check_open()
            partition = first + murmur3(key, 0, False) % count
            full_key = prefixes[partition] + key
            mine = self._writes.get(full_key)
            if mine is not None:
                return mine[3]
            return self._get(namespace, partition, full_key)

        return get

    def _get(self, namespace: Namespace, partition: int, full_key: bytes) -> bytes | None:
        if not namespace.alive:
            namespace.check_alive()
        rule = self._rule
        if rule.snapshot:
            reading = self._reading
            if reading is None:
                reading = self._snapshot()
                namespace.check_alive()  # a drop may have come before the snapshot
            self._reads.keys.add(full_key)
            return reading.read(namespace, partition, full_key)
        if rule.read_locks:
            self._lock(KeyLock(full_key, exclusive=False))
            namespace.check_alive()
        found = read_view(self._database.overlay.view, namespace, partition, full_key)
        if found is None:
            namespace.check_alive()  # a checkpoint may have removed what was dropped meanwhile
        return found

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that sets an encoded key, or deletes it if the value is None."""
        namespace.check_alive()
        self._database.check_writable()
        prefixes, number = namespace.prefixes, namespace.id
        first, count, _ = namespace.space
        writes = self._writes
        pessimistic = self._rule.pessimistic
        database = self._database

        def put(key: bytes, value: bytes | None) -> None:
            if (
                not self._open
                or database.open_state.closed is not None
                or self._deadline is not None
                or self._thread != get_ident()
            ):
                self._check_open()
            partition = first + murmur3(key, 0, False) % count
            full_key = prefixes[partition] + key
            if pessimistic:
                self._lock(KeyLock(full_key))
            writes[full_key] = (partition, number, key, value)

        return put

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""
        return list(map(self.getter(namespace), keys))

    def set_many(self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Set or delete many encoded keys."""
        put = self.setter(namespace)
        for key, value in pairs:
            put(key, value)

    def rewriter(self, namespace: Namespace) -> Callable[[bytes, Decide], Any]:
        """Return a function that carries out a decision about an encoded key."""
        read = self.getter(namespace)
        prefixes, space = namespace.prefixes, namespace.space

        def rewrite(key: bytes, decide: Decide) -> Any:
            if self._rule.pessimistic:
                # At once what the write needs: of two who have read, neither could get it.
                self._check_open()
                namespace.check_alive()
                self._lock(KeyLock(prefixes[partition_of(key, space)] + key))
            result, value = decide(read(key))
            if value is not KEEP:
                self.setter(namespace)(key, value)
            return result

        return rewrite

    def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None if there is none."""
        with closing(self.blocks(namespace, b"", None, False, 1)) as blocks:  # type: ignore[type-var]  # a generator
            block = next(blocks, None)
        if block is None:
            return None
        self.setter(namespace)(block[0][0], None)
        return block[0]

    def atomically(self, namespace: Namespace, work: Callable[[Map[Any, Any]], T]) -> T:
        """Run ``work`` with the map of this transaction."""
        self._check_open()
        return work(self._maps[namespace.id])

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int,
        *, values: bool = True,
    ) -> Iterator[list[Pair]]:  # fmt: skip
        """Yield blocks of encoded pairs, in order, with this transaction's own writes."""
        wanted = Range(namespace=namespace.id, start=start, stop=stop)
        read = RangeRead(namespace.id, start, stop, reverse=reverse)
        with self._reads_of(namespace, wanted, read) as snapshot:
            for block in snapshot.scan(wanted, reverse=reverse, block=size, writes=self._writes):
                read.gave(block[-1][0])
                yield block
                self._check_open()
            read.finish()

    def count(self, namespace: Namespace) -> int | None:
        """Return the number of keys of a map; None if it has to be counted."""
        wanted = Range(namespace=namespace.id)
        read = RangeRead(namespace.id, wanted.start, wanted.stop)
        with self._reads_of(namespace, wanted, read) as snapshot:
            found = snapshot.count(namespace, self._writes)
            read.finish()
        return found

    def peek(self, _namespace: Namespace) -> None:
        """Return nothing: whoever only looks may cause no conflict and wait for no lock."""

    @contextmanager
    def _reads_of(
        self, namespace: Namespace, wanted: Range, read: RangeRead
    ) -> Iterator[SnapshotSession]:
        """Give what a range is read from; it is locked, or ``read`` tells what was seen of it."""
        self._check_open()
        namespace.check_alive()
        if self._rule.snapshot:
            snapshot = self._snapshot()
            self._reads.ranges.append(read)
        else:
            if self._rule.read_locks:
                for partition in namespace.space.numbers:
                    self._lock(RangeLock(*wanted.bounds(partition)))
            snapshot = self._database.snapshot()
        try:
            snapshot.check_shows(namespace)  # a drop may have come before the snapshot
            yield snapshot
        except CorruptDataError as error:
            raise named(error, namespace) from error.__cause__
        finally:
            if snapshot is not self._reading:
                snapshot.close()

    @property
    def lock_timeout(self) -> float:
        """Seconds that it waits for a lock."""
        return self._lock_timeout

    @property
    def wants_snapshot(self) -> bool:
        """Whether the next read takes a snapshot first."""
        return self._rule.snapshot and self._reading is None

    def read_from(self, snapshot: SnapshotSession) -> None:
        """Use a snapshot that was taken for this transaction, which closes it."""
        self._reading = snapshot

    def _snapshot(self) -> SnapshotSession:
        if self._reading is None:
            self._reading = self._database.snapshot()
        return self._reading

    def _lock(self, want: KeyLock | RangeLock) -> None:
        locks = self._database.locks
        holder = self._holder
        if holder is None:
            holder = self._holder = Holder(locks)
        if self._interrupted:  # looked at after the owner is known, see `interrupt`
            locks.interrupt(holder.owner)
        number = (want.key if isinstance(want, KeyLock) else want.start)[_NAMESPACE]
        if number not in self._locked_maps:
            whole = KeyLock(map_key(int.from_bytes(number, "big")), exclusive=False)
            locks.acquire(holder.owner, whole, timeout=self._lock_timeout, deadline=self._deadline)
            self._locked_maps += (number,)
        locks.acquire(holder.owner, want, timeout=self._lock_timeout, deadline=self._deadline)
        holder.locked = True

    # -------------------------------------------------------------- what the commit needs

    @property
    def tx_id(self) -> bytes | None:
        """The id that the caller gave, or the one of the commit; None before it."""
        return self.receipt.tx_id if self.receipt else self._given_id

    def to_commit(self) -> Commit | None:
        """Return the commit of this transaction; None if it wrote nothing."""
        writes = self._writes
        details: dict[str, Any] | None = None
        if self._given_id is not None:
            self._database.outcomes.add_entry(writes, self._given_id)
            details = {"user_id": True}
        if not writes:
            return None
        if self._tag is not None:
            details = {**(details or {}), "tag": self._tag}
        validates = self._reading is not None and self._rule.validated is not Validated.NOTHING
        check = self.check if validates or self._given_id is not None else None
        commit = Commit(
            FewUpdates(writes), self._durable, check, self._given_id, details, self._deadline
        )
        if self._holder is not None:
            commit.owner = self._holder.owner
        return commit

    def lock_writes(self) -> None:
        """Take exclusive locks on all keys written, in order, waiting for their holders."""
        for key in sorted(self._writes):
            self._lock(KeyLock(key))

    def check(self, commit: Commit, group: Sequence[Entry]) -> None:
        """Raise the error that prevents this commit; called under the mutex, in commit order.

        ``ConflictError`` if something read has changed, ``NotFoundError`` if a map that was
        read has been dropped, ``SnapshotExpiredError`` if the snapshot of its reads has ended.
        Sets the receipt of a commit under an id that is committed already.
        """
        database = self._database
        if self._given_id is not None:
            database.outcomes.check_readable()
            commit.receipt = database.outcomes.earlier_receipt(self._given_id, group)
            if commit.receipt is not None:
                return
        if self._reading is None or self._rule.validated is Validated.NOTHING:
            return
        self._reading.view()  # ended, its boundary may be merged with what came after it
        if database.dropped and self._rule.validated is Validated.READS:
            for number in database.dropped.keys() & self._maps.keys():
                if self._reads.touches(number):
                    raise database.was_dropped(number)
        for earlier in group:
            found = self._first_changed(list(earlier.full_keys()))
            if found is not None:
                winner = earlier.tx_id if isinstance(earlier, Commit) else None
                raise database.conflicts.error(found, winner)
        for layer in since(self._reading.boundary):
            for part in layer.parts.values():
                found = self._first_changed(part)
                if found is not None:
                    raise database.conflicts.error(found, None, part[found])

    def _first_changed(self, changed: Collection[bytes]) -> bytes | None:
        if self._rule.validated is Validated.READS:
            return self._reads.first_changed(changed)
        return first_common(self._writes.keys(), changed)


def checked_tx_id(tx_id: object) -> bytes:
    """Return the id of a transaction, or raise ``UsageError`` for what cannot be one."""
    if type(tx_id) is not bytes or len(tx_id) != TX_ID_SIZE:
        raise UsageError(
            f"the id of a transaction is {TX_ID_SIZE} bytes, not {tx_id!r}",
            hint="Use `db.new_id()`, or `uuid.uuid4().bytes`; of printed digits make "
            "`bytes.fromhex(text)`.",
        )
    if tx_id == HORIZON_ID:
        raise UsageError(f"the id {tx_id!r} is taken by the store", hint="Use `db.new_id()`.")
    return tx_id


def checked_tag(tag: object) -> str:
    """Return a tag, or raise ``UsageError`` for what cannot be one."""
    try:
        if isinstance(tag, str) and len(tag.encode()) <= TAG_BYTES_MAX:
            return tag
    except UnicodeEncodeError as error:
        raise UsageError(f"the tag {tag!r} cannot be written as UTF-8: {error.reason}") from None
    raise UsageError(f"a tag is text of at most {TAG_BYTES_MAX} bytes")
