"""A transaction as its user holds it: maps inside of it, and its end.

Left out: what it reads, writes and locks (``transaction_session``), how it is run again
(``attempts``).
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypeVar, cast

from ..commit.entries import Receipt
from ..data.namespaces import not_copied
from .maps import Map
from .transaction_session import TransactionSession

K = TypeVar("K")
V = TypeVar("V")


class Behind(Protocol):
    """What stands behind a transaction: of a store here, or of a cluster."""

    @property
    def receipt(self) -> Receipt | None:
        """What the commit gave."""

    @property
    def in_doubt(self) -> bool:
        """Whether it may have taken effect, or not."""

    @property
    def tx_id(self) -> bytes | None:
        """The id that the caller gave, or the one of the commit."""

    def map_inside(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is inside."""

    def commit(self) -> Receipt:
        """Make it take effect."""

    def rollback(self) -> None:
        """End it without any effect."""

    def __enter__(self) -> object:
        """Begin its block."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End its block."""


class Transaction:
    """One attempt at a change of many keys; made by ``db.transaction``.

    ``tx[users]`` is the map ``users`` inside the transaction.  Used by one thread only.  Leaving
    the ``with`` block commits, an exception in it rolls back.
    """

    __slots__ = ("__weakref__", "_session")

    def __init__(self, session: Behind) -> None:
        self._session = session

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show what the transaction is doing."""
        return repr(self._session)

    def __getitem__(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is inside this transaction; ``UsageError`` for a foreign one."""
        return self._session.map_inside(mapping)

    @property
    def receipt(self) -> Receipt | None:
        """What the commit gave; None before it, and after a rollback."""
        return self._session.receipt

    @property
    def tx_id(self) -> bytes | None:
        """The id that the caller gave, or the one of the commit; None before it."""
        return self._session.tx_id

    @property
    def in_doubt(self) -> bool:
        """Whether it may have taken effect, or not.

        So it is if the commit raised ``CommitUnknownError``, or was interrupted.
        """
        return self._session.in_doubt

    def commit(self) -> Receipt:
        """Make the transaction take effect; return its receipt.

        Raises ``ConflictError`` (run it again), ``CommitUnknownError`` (ask ``db.outcome``),
        ``TransactionTooLargeError``, ``DeadlineError``, ``StorageError``.  After any of these the
        transaction is over.
        """
        return self._session.commit()

    def rollback(self) -> None:
        """End the transaction without any effect; after its end this does nothing."""
        self._session.rollback()

    def __enter__(self) -> Transaction:
        """Return the transaction; its thread writes through it alone, until it ends."""
        self._session.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back if the block raised; after ``commit`` or ``rollback`` do nothing."""
        self._session.__exit__(kind, error, trace)


def behind(transaction: Transaction) -> TransactionSession:
    """Return what stands behind a transaction of a store, for the parts of it that work in it."""
    return cast(TransactionSession, transaction._session)
