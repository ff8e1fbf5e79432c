"""Every exception that Tidelog raises on purpose, grouped by what the caller should do.

Owns the error tree, each class's stable ``code`` and whether trying again can help.
Every error says what went wrong and where in its text, and what to do next in ``hint``.  Code and
hint are a note of the exception (PEP 678), too, so that a traceback has them.  What a program may
want to look at is kept as attributes.  Nothing here is raised for a bug in Tidelog itself: those
stay ``AssertionError`` and the like.

``UsageError``        the call is wrong: fix the input
``TransactionError``  this transaction did not take effect: run it again if ``retryable``
``StorageError``      the disk, or what is on it: free space, repair, restore
``ClusterError``      members of a cluster: too few are there, or what one says cannot be true
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class TidelogError(Exception):
    """Base of all errors of Tidelog."""

    code = "TL-000"
    retryable = False
    hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint
        self.add_note(self.advice())

    def advise(self, hint: str) -> None:
        """Give another hint, in the attribute and in tracebacks."""
        old, self.hint = self.advice(), hint
        self.__notes__ = [self.advice() if note == old else note for note in self.__notes__]

    def advice(self) -> str:
        """Return the note that Python prints below the error: its code, and what to do next."""
        return f"{self.code}; next: {self.hint}" if self.hint else self.code

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(
    kind: type[TidelogError], args: tuple[object, ...], state: dict[str, object]
) -> object:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    error.__notes__ = list(getattr(error, "__notes__", ()))  # not the list of the original
    return error


# ------------------------------------------------------------------ the call is wrong


class UsageError(TidelogError):
    """A call, an option or a value that cannot be right."""

    code = "TL-USE-001"


class ClosedError(UsageError):
    """The database, snapshot or transaction has ended already."""

    code = "TL-USE-002"
    hint = "Open it again, and keep using it inside its `with` block."


class ForkedError(UsageError):
    """The store was opened by the parent of this process; its handles do not survive a fork."""

    code = "TL-USE-003"
    hint = "Open the store in the child process, after the fork."


class ReadOnlyError(UsageError):
    """A write to a store that was opened for reading, or that stopped writing after a failure."""

    code = "TL-USE-004"


class AlreadyOpenError(UsageError):
    """The store is open already: in this process, or for writing in another one."""

    code = "TL-USE-005"
    hint = "Share the open handle, or open with `read_only=True`."

    def __init__(
        self, message: str, *, path: str, pid: int | None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.pid = pid


class NotFoundError(UsageError):
    """No store, map, backup or segment of that name, or a map that was dropped meanwhile."""

    code = "TL-USE-006"


class KeyTooLargeError(UsageError):
    """The encoded key is longer than 480 bytes."""

    code = "TL-USE-007"
    hint = "Store a hash of the key, or split it over several maps."


class ValueTooLargeError(UsageError):
    """The encoded value is larger than one value may be."""

    code = "TL-USE-008"
    hint = "Split the value over several keys."


class CodecError(UsageError):
    """A key or value that its codec cannot take, or a codec other than the map's own.

    ``map`` is the name of the map if it is about a key or a value of one.
    """

    code = "TL-USE-009"
    map: str | None = None
    reason: str | None = None
    """What is wrong, without saying where: for those who know more about the place."""


class UnsupportedError(UsageError):
    """A place or platform where the store's promises cannot be kept."""

    code = "TL-USE-010"


class PlacementError(UsageError, ValueError):
    """A row, a version, a migration or a list of members that cannot be right."""

    code = "TL-USE-011"
    hint = "Correct the argument that the text names."


# ------------------------------------------------------------------ the transaction


class TransactionError(TidelogError):
    """The transaction did not take effect, unless the class says otherwise."""

    code = "TL-TX-001"


class ConflictError(TransactionError):
    """Something this transaction read was changed by another one that committed first.

    ``key`` is the encoded key; ``winner`` the id of the transaction that changed it, or None if
    it is no longer known.  It is looked up in the log when it is first read.
    """

    code = "TL-TX-002"
    retryable = True
    hint = "Run the transaction again; `db.run` does so by itself."

    def __init__(
        self,
        message: str,
        *,
        namespace: str,
        key: bytes | None,
        winner: bytes | Callable[[], bytes | None] | None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.namespace = namespace
        self.key = key
        self._winner = winner

    @property
    def winner(self) -> bytes | None:
        """The id of the transaction that changed the key, or None if that is not known."""
        winner = self._winner
        if callable(winner):
            self._winner = winner = winner()
        return winner

    def __copy__(self) -> object:
        # Without a look at the log, unlike what goes into another process.
        return _rebuild(type(self), self.args, dict(self.__dict__))

    def __reduce__(self) -> tuple[object, ...]:
        self._winner = self.winner
        return super().__reduce__()


class DeadlockError(TransactionError):
    """Transactions waited for each other's locks; this one, the youngest, was chosen to end."""

    code = "TL-TX-003"
    retryable = True
    hint = "Run the transaction again; touching keys in one order avoids deadlocks."


class LockTimeoutError(TransactionError):
    """A lock was not granted within ``lock_timeout``."""

    code = "TL-TX-004"
    retryable = True
    hint = "Run the transaction again, or give a longer `lock_timeout`."


class DeadlineError(TransactionError):
    """The deadline of the transaction passed before it was committed."""

    code = "TL-TX-005"
    hint = "Give a longer `deadline`, or do less in one transaction."


class RolledBackError(TransactionError):
    """The transaction was rolled back, for the reason in the text; it had no effect.

    ``attempt`` is the newest attempt of a given id that a cluster has refused, 0 if it is not that.
    """

    attempt: int = 0
    code = "TL-TX-006"
    retryable = True
    hint = "Run the transaction again."


class CommitUnknownError(TransactionError):
    """The sync of a commit failed: it may or may not be on disk."""

    code = "TL-TX-007"
    hint = "Open the store again and ask `db.outcome(tx_id)`."

    def __init__(self, message: str, *, tx_id: bytes, home: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.tx_id = tx_id
        self.home = home


class TransactionTooLargeError(TransactionError):
    """The transaction is larger than ``transaction_bytes_max``; nothing was reserved or written."""

    code = "TL-TX-008"
    hint = (
        "Use `map.load(pairs)`, which commits in parts, for large values with a smaller `batch=`; "
        "or raise `transaction_bytes_max`."
    )


class TooManyRangesError(TransactionError):
    """More separate out-of-order ranges than an update counter may hold."""

    code = "TL-TX-009"


# ------------------------------------------------------------------ the disk


class StorageError(TidelogError):
    """The disk failed, is full, or holds something it should not."""

    code = "TL-STO-001"


class DiskFullError(StorageError):
    """No space, or a configured limit, stops writing; reading goes on, and writing with space."""

    code = "TL-STO-002"
    retryable = True
    hint = "Free some space, or raise the limit that the text names; then try again."


class DiskError(StorageError):
    """The operating system reported an I/O error."""

    code = "TL-STO-003"
    hint = "Check the disk. After a failed sync close the store and open it again."


class CorruptLogError(StorageError):
    """The log is damaged below what was known to be durable.

    ``kind`` is ``damaged``, ``gap`` (a segment is missing), or ``foreign`` (of another log).
    """

    code = "TL-STO-004"
    hint = "Run `tidelog wal verify STORE`; restore from a backup."

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        segment: int,
        offset: int,
        expected: int | None = None,
        found: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.segment = segment
        self.offset = offset
        self.expected = expected
        self.found = found


class CorruptDataError(StorageError):
    """A stored value, a counter or a file of the store does not match its checksum.

    If it is about one value, ``map`` is the name of its map and ``key`` its encoded key.
    """

    code = "TL-STO-005"
    hint = "Run `tidelog db verify STORE`; restore from a backup."
    map: str | None = None
    key: bytes | None = None
    full_key: bytes | None = None


class FormatVersionError(StorageError):
    """The store was written by a version, or with features, that this one must not open."""

    code = "TL-STO-006"
    hint = "Use a newer version of tidelog."

    def __init__(
        self, message: str, *, found: int, supported: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.found = found
        self.supported = supported


class ForeignFileError(StorageError):
    """A file of the store belongs to another store."""

    code = "TL-STO-007"
    hint = "Put back the file that belongs here, or restore from a backup."


class SnapshotExpiredError(StorageError):
    """The snapshot was ended: the store had to grow, or it pinned too much memory.

    Also raised for a map that was attached after the snapshot was taken, and by the pipeline for
    data that was written since a read was planned, or for a cut that is too old.
    """

    code = "TL-STO-008"
    retryable = True
    hint = "Take a new snapshot and start again; keep snapshots short."


class HistoryTruncatedError(StorageError):
    """The part of the log that was asked for is no longer kept, or was never in it."""

    code = "TL-STO-009"


# ------------------------------------------------------------------ the cluster


class ClusterError(TidelogError):
    """Members of a cluster are not there, or what one says cannot be true beside what is known."""

    code = "TL-CLU-001"


class DivergedError(ClusterError):
    """Two tables give one partition the same version with different rows.

    ``partition`` is its number and ``version`` the version that both have.  Neither row may be
    taken for the right one.
    """

    code = "TL-CLU-002"
    hint = "Stop this member, and compare its table with the decided rows of the cluster."

    def __init__(
        self, message: str, *, partition: int, version: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.partition = partition
        self.version = version


class PartitionUnavailableError(ClusterError):
    """Nobody who has all of a partition is there, so nothing was done; others are served.

    ``partition`` is its number.
    """

    code = "TL-CLU-003"
    retryable = True
    hint = (
        "Start a member that has the partition, and try again; `tidelog cluster status` names it."
    )

    def __init__(self, message: str, *, partition: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.partition = partition


class NotEnoughMembersError(ClusterError):
    """No majority of the members can be reached, so nothing was done."""

    code = "TL-CLU-004"
    retryable = True
    hint = "Check that the members run and reach each other; then try again."


class TooFewCopiesError(ClusterError):
    """A partition has fewer copies in sync than are to be there for a write; nothing was done.

    ``partition`` is its number.  Reads go on.
    """

    code = "TL-CLU-006"
    retryable = True
    hint = (
        "Reads go on. `tidelog cluster status` tells which copies are missing; one that left its "
        "set does not come back in this preview. How many have to be there was said when the "
        "cluster was made (`--min-in-sync`)."
    )

    def __init__(self, message: str, *, partition: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.partition = partition


class ServerError(ClusterError):
    """A member failed in a way that has no other class here; whether it did anything is not known.

    ``server_code`` is the code of the error there, or the name of its class; ``fields`` are its
    attributes.
    """

    code = "TL-CLU-005"
    hint = "Look at the log of the member; a newer client may know what the code means."

    def __init__(
        self,
        message: str,
        *,
        server_code: str,
        fields: Mapping[str, object] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.server_code = server_code
        self.fields = dict(fields or {})
