"""What can stand in the queue of the commit path: transactions, other records, batches of them.

An *entry* is checked, numbered and turned into a record by ``prepare``, and takes effect by
``apply``; in between its record has gone into the log.  All of it is called by the leading thread,
with the ``CommitContext`` of the store.

Left out: the queue (``queue``), the leader (``committer``), puts of single keys (``puts``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from typing import Any, NamedTuple, Protocol

from ...affinity.errors import CommitUnknownError, TidelogError
from ..data.updates import Updates
from .context import CommitContext

DROPPED_WITH_LOCKS = (
    "a pessimistic transaction was dropped with its locks: use it in a `with` block, or end it by "
    "`commit` or `rollback`"
)
"""The warning for it."""


def leaves_doubt(error: BaseException) -> bool:
    """Tell whether a commit that ended so may have taken effect.

    What interrupts it, or cancels it, does not know; an error of Tidelog says if it does not.
    """
    return isinstance(error, CommitUnknownError) or not isinstance(error, TidelogError)


class Receipt(NamedTuple):
    """What a commit leaves behind: its id, its position in the log, and its time.

    ``position`` is the end of the log behind the transaction, in bytes; ``time`` microseconds
    UTC; ``home`` the partition to ask about it.  A transaction that wrote nothing has position 0.
    """

    tx_id: bytes
    position: int
    time: int
    home: int


def state_of(*, is_open: bool, receipt: Receipt | None, in_doubt: bool) -> str:
    """Return what a transaction shows of itself: whether it is open, or how it has ended."""
    if is_open:
        return "open"
    if receipt:
        return "committed"
    return "in doubt" if in_doubt else "rolled back"


class Entry(Protocol):
    """A commit in the queue, as the leader handles it; all calls are made under the mutex."""

    durable: bool
    size: int
    error: BaseException | None

    @property
    def count(self) -> int:
        """How many transactions it is, once it is prepared."""

    @property
    def tx_id(self) -> bytes | None:
        """The id of the transaction, known once it is prepared; None for anything else."""

    def prepare(self, context: CommitContext, group: Sequence[Entry], time: int) -> bytes | None:
        """Check it against all before it, reserve its numbers and return its record.

        None if it was refused; empty if it was committed earlier under the same id.
        """

    def apply(self, context: CommitContext, end: int) -> None:
        """Put it into overlay and counters; the frame that holds it ends at ``end``."""

    def fail(self, error: BaseException) -> None:
        """End it without effect."""

    def unknown(self, cause: BaseException) -> None:
        """End it after a failed sync: it may or may not be on disk."""

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys it changes."""

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys that it changes."""

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return what it writes by full key, encoded, None for a delete; once it is prepared."""


class Commit:
    """A transaction, or other records, on the way into the log.

    ``check`` raises the error that prevents it, given the earlier ones of its group; it runs under
    the mutex, in commit order.  ``owner`` is whose locks are not in its way.  ``record`` makes
    what is logged instead of a transaction, given the time; ``then`` runs when the commit is
    applied, ``undo`` if what ``record`` made did not get into the log.  All of them run under
    the mutex.
    """

    count = 1

    __slots__ = ("_runs", "_time", "check", "deadline", "details", "durable", "error", "owner",
                 "receipt", "record", "size", "then", "tx_id", "undo", "updates",
                 "wake")  # fmt: skip

    def __init__(
        self,
        updates: Updates,
        durable: bool,
        check: Callable[[Commit, Sequence[Entry]], None] | None = None,
        tx_id: bytes | None = None,
        details: dict[str, Any] | None = None,
        deadline: float | None = None,
    ) -> None:
        self.updates = updates
        self.durable = durable
        self.check = check
        self.tx_id = tx_id
        self.details = details
        self.deadline = deadline
        self.owner = 0
        self.record: Callable[[int], bytes] | None = None
        self.size = updates.size()
        self.then: Callable[[], object] | None = None
        self.undo: Callable[[], object] | None = None
        self.receipt: Receipt | None = None
        self.error: BaseException | None = None
        self.wake: Any = None
        """The lock that its thread waits for, once it is queued."""
        self._runs: Sequence[int] = ()
        self._time = 0

    @property
    def runs(self) -> Sequence[int]:
        """Partition, epoch, first number and count of each run, flat; known once it is prepared."""
        return self._runs

    @property
    def time(self) -> int:
        """Its time in microseconds, known once it is prepared."""
        return self._time

    def prepare(self, context: CommitContext, group: Sequence[Entry], time: int) -> bytes | None:
        """Check it against all before it, reserve its numbers and return its record."""
        standing = context.standing
        try:
            if standing.stopped:
                raise context.refusal()
            if self.deadline is not None:
                context.check_deadline(self.deadline)
            if self.check is not None:
                self.check(self, group)
                if self.receipt is not None:
                    return b""  # committed earlier under the same id, but perhaps not durably
            if context.dropped:
                context.check_dropped(self.updates.namespaces())
            if standing.locks:
                blocked = context.locked(self.owner, self.updates.full_keys())
                if blocked is not None:
                    raise blocked
        except TidelogError as error:
            self.error = error
            return None
        self._time = time
        if self.record is not None:
            return self.record(time)
        self._runs, namespaces, keys, values = self.updates.reserve(context.state)
        if self.tx_id is None:
            self.tx_id = context.ids.new()
        else:
            context.note_given_id(self.tx_id)
        return self._record_of(context, namespaces, keys, values)

    def _record_of(
        self,
        context: CommitContext,
        namespaces: int | list[int],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
    ) -> bytes:
        """Return what is logged of a transaction that has its numbers: prepared and committed."""
        return context.tx_record(
            (self.tx_id, self._time, self._runs, namespaces, keys, values, self.details)
        )

    def apply(self, context: CommitContext, end: int) -> None:
        """Put it into overlay and counters, and make its receipt."""
        if self.receipt is not None:
            return
        self.updates.apply(context.overlay.view.layers[0], context.state, self._time)
        if self.then is not None:
            self.then()
        home = self._runs[0] if self._runs else 0
        self.receipt = Receipt(self.tx_id or b"", end, self._time, home)

    def fail(self, error: BaseException) -> None:
        """End it without effect."""
        self.receipt = None
        self.error = error
        if self.undo is not None:
            self.undo()

    def unknown(self, cause: BaseException) -> None:
        """End it after a failed sync."""
        home = self._runs[0] if self._runs else 0
        self.receipt = None
        self.error = cause if self.tx_id is None else unknown_outcome(cause, self.tx_id, home)

    def rest(self) -> None:
        """Call nothing any more: it is over, and whoever waited for it knows.

        What it calls knows it mostly: so all that its client has sent would stay in memory until
        the collector of cycles comes.
        """
        self.check = self.record = self.then = self.undo = None
        if self.error is not None:
            self.error.__traceback__ = None

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys it changes."""
        return self.updates.changed(keys)

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys that it changes."""
        return self.updates.full_keys()

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return what it writes: nothing if it was committed earlier under the same id."""
        return {} if self.receipt is not None else self.updates.new_values()


class Batch:
    """Entries that one thread brings at once, and waits for together."""

    __slots__ = ("entries", "size", "wake")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.size = sum(entry.size for entry in entries)
        self.wake: Any = None
        """The lock that its thread waits for, once it is queued."""


def unknown_outcome(cause: BaseException, tx_id: bytes, home: int) -> CommitUnknownError:
    """Return the error for a commit whose sync failed."""
    return CommitUnknownError(
        f"{cause}; transaction {tx_id.hex()} may or may not be on disk", tx_id=tx_id, home=home
    )
