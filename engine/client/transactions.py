"""Transactions of a client for threads: what ``Transaction`` of ``api`` stands in front of.

Left out: what was read and written (``changes``), and users' faces (``blocking``).
"""

from __future__ import annotations

import warnings
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar

from ...affinity.errors import ClosedError, DeadlineError, UsageError
from ..api.attempts import ATTEMPTS, Attempt, Chance, Retries, run
from ..api.choices import Durability, Isolation, Mode, TransactionOptions, checked_seconds
from ..api.inside import Blocks
from ..api.maps import Map, map_of
from ..api.pickling import not_pickled
from ..api.transaction_session import checked_tag, checked_tx_id
from ..api.transactions import Transaction
from ..commit.entries import DROPPED_WITH_LOCKS, Receipt, leaves_doubt, state_of
from ..data.decisions import KEEP, Decide
from ..data.namespaces import Home, Namespace, namespace_at
from ..data.scan import Pair
from ..store.open_state import OpenState
from .actions import about
from .changes import TransactionContent
from .lateness import of_timeout, within
from .lines import Line, Lines
from .locking import ClientLocks
from .routing import Cluster, Steps
from .unsupported import checked_choices

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class ClientSource(Protocol):
    """The client that a transaction belongs to."""

    @property
    def cluster(self) -> Cluster:
        """What is known of the cluster."""

    @property
    def lines(self) -> Lines:
        """What carries out steps."""

    @property
    def home(self) -> Home:
        """What its maps belong to."""

    @property
    def inside(self) -> Blocks:
        """The threads that are inside a transaction block."""

    @property
    def open_state(self) -> OpenState:
        """Whether it is open, and what every call raises once it is not."""

    @property
    def new_id(self) -> Callable[[], bytes]:
        """Makes ids of commits."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds that never run backwards."""

    @property
    def pause(self) -> Callable[[float], object]:
        """Wait some seconds."""

    @property
    def random(self) -> Chance:
        """Where the length of a pause comes from."""


class ClusterTransaction:
    """What stands behind a transaction; used by one thread only."""

    way = not_pickled
    _line: Line | None = None
    """What it locks through."""

    def __init__(
        self,
        session: ClientSource,
        mode: Mode = "optimistic",
        isolation: Isolation = "serializable",
        durability: Durability | None = None,
        id: bytes | None = None,
        tag: str | None = None,
        deadline: float | None = None,
        lock_timeout: float | None = None,
        plain_writes: bool = False,
    ) -> None:
        confirms = checked_choices(mode, isolation, durability)
        if lock_timeout is not None:
            checked_seconds("lock_timeout", lock_timeout)
        self._session = session
        self._given_id = None if id is None else checked_tx_id(id)
        self._deadline = (
            None if deadline is None else session.now() + checked_seconds("deadline", deadline)
        )
        self._locks = None
        if mode == "pessimistic":
            name = session.new_id()
            self._locks = ClientLocks(session.cluster, name, lock_timeout, self._deadline)
        self._content = TransactionContent(
            session.cluster, self._given_id, tag and checked_tag(tag), confirms=confirms,
            locks=self._locks,
        )  # fmt: skip
        self._plain_writes = plain_writes
        self._thread = get_ident()
        self._maps: dict[int, Map[Any, Any]] = {}
        self._entered = False
        self._open = True
        self.receipt: Receipt | None = None
        self.in_doubt = False
        """Whether the commit ended so that it may have taken effect, or not."""

    def __repr__(self) -> str:
        state = state_of(is_open=self._open, receipt=self.receipt, in_doubt=self.in_doubt)
        return f"<Transaction {state} {self._content!r}>"

    def follow(self, earlier: ClusterTransaction | None, *, mode_chosen: bool) -> None:
        """Be the next attempt of a loop, behind an earlier one."""
        before = None if earlier is None else earlier._content
        self._content.follow(before, mode_chosen=mode_chosen)

    @property
    def tx_id(self) -> bytes | None:
        """The id that the caller gave, or the one of the commit; None before it."""
        return self.receipt.tx_id if self.receipt else self._given_id

    @property
    def is_open(self) -> bool:
        """Whether it has neither been committed nor rolled back."""
        return self._open

    def map_inside(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is inside this transaction; ``UsageError`` for a foreign one."""
        self._check_open()
        namespace = namespace_at(self._session.home, mapping)
        inside = self._maps.get(namespace.id)
        if inside is None:
            inside = self._maps[namespace.id] = map_of(namespace, self)
        return inside

    # -------------------------------------------------------------- begin and end

    def __enter__(self) -> ClusterTransaction:
        self._check_open()
        if not self._plain_writes:
            self._entered = True
            self._session.inside.enter(self._thread, self)
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

    def commit(self) -> Receipt:
        """Make the transaction take effect, as ``Transaction.commit`` does."""
        self._check_open()
        self._open = False
        try:
            new_id = self._session.new_id
            receipt = self._run(lambda until: self._content.committing(new_id, until))
            self.receipt = receipt or Receipt(self._given_id or new_id(), 0, 0, 0)
            return self.receipt
        except BaseException as error:
            self.in_doubt = leaves_doubt(error)
            raise
        finally:
            self._end()

    def rollback(self) -> None:
        """End the transaction without any effect; after its end this does nothing."""
        self._open = False
        self._end()

    def _end(self) -> None:
        if self._entered:
            self._entered = False
            self._session.inside.leave(self._thread, self)
        self._maps.clear()
        line, self._line = self._line, None
        if line is not None and self._locks is not None:
            for member in sorted(self._locks.asked):
                line.tell(member, "unlock", (self._locks.name,))
            self._session.lines.give_back(line)

    def __del__(self) -> None:
        """Let go of locks that nobody can let go of any more: they go with their connection."""
        line, self._line = self._line, None
        if line is not None:
            self._session.lines.forget(line)
            warnings.warn(DROPPED_WITH_LOCKS, ResourceWarning, stacklevel=1, source=self)

    def _check_open(self) -> None:
        self._session.open_state.check()
        if not self._open:
            raise ClosedError(
                "the transaction is over",
                hint="Begin a new one; results that you still need have to be read before its end.",
            )
        if self._thread != get_ident():
            raise UsageError(
                "a transaction belongs to the thread that began it",
                hint="Begin one in each thread; the database may be shared.",
            )
        if self._deadline is not None and self._session.now() > self._deadline:
            raise DeadlineError("the deadline of the transaction has passed")

    def _check(self, namespace: Namespace) -> None:
        self._check_open()
        namespace.check_alive()

    def _run_about(self, namespace: Namespace, steps: Callable[[float], Steps[T]]) -> T:
        return self._run(lambda until: about(namespace, steps(until)))

    def _run(self, steps: Callable[[float], Steps[T]]) -> T:
        lines = self._session.lines
        made = within(steps, lines.until(), self._deadline)
        if self._locks is None:
            return lines.carry(made)
        self._line = self._line or lines.keep()
        return self._line.carry(made)

    # -------------------------------------------------------------- session of its maps

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""
        return lambda key: self.get_many(namespace, [key])[0]

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that sets an encoded key, or deletes it if the value is None."""
        return lambda key, value: self.set_many(namespace, [(key, value)])

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""
        return self._values(namespace, keys, to_write=False)

    def _values(
        self, namespace: Namespace, keys: list[bytes], *, to_write: bool
    ) -> list[bytes | None]:
        self._check(namespace)
        return self._run_about(
            namespace,
            lambda until: self._content.values(namespace, keys, until, to_write=to_write),
        )

    def set_many(self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Set or delete many encoded keys."""
        self._check(namespace)
        if self._locks is None:
            for key, value in pairs:
                self._content.put(namespace, key, value)
        else:
            self._run_about(namespace, lambda until: self._content.writing(namespace, pairs, until))

    def rewriter(self, namespace: Namespace) -> Callable[[bytes, Decide], Any]:
        """Return a function that carries out a decision about an encoded key."""

        def rewrite(key: bytes, decide: Decide) -> Any:
            result, value = decide(self._values(namespace, [key], to_write=True)[0])
            if value is not KEEP:
                self.set_many(namespace, [(key, value)])
            return result

        return rewrite

    def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None if the map is empty."""
        block = next(self.blocks(namespace, b"", None, False, 1), None)
        if block is None:
            return None
        self.set_many(namespace, [(block[0][0], None)])
        return block[0]

    def atomically(self, namespace: Namespace, work: Callable[[Map[Any, Any]], T]) -> T:
        """Run ``work`` with the map of this transaction."""
        self._check(namespace)
        return work(map_of(namespace, self))

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int,
        *, values: bool = True,
    ) -> Iterator[list[Pair]]:  # fmt: skip
        """Yield blocks of encoded pairs, in order, with this transaction's own writes."""
        self._check(namespace)
        seen = self._content.range(namespace, start, stop, reverse=reverse, values=values)
        while block := self._run_about(
            namespace, lambda until: self._content.block(seen, size, until)
        ):
            yield block
            self._check(namespace)

    def count(self, namespace: Namespace) -> None:
        """Return nothing: what is counted is read."""
        self._check(namespace)

    def peek(self, _namespace: Namespace) -> None:
        """Return nothing: whoever only looks may cause no conflict."""


def cluster_attempts(
    session: ClientSource, count: int, deadline: float | None, options: TransactionOptions
) -> Iterator[Attempt]:
    """Yield attempts until one has committed; all together take no longer than one call may.

    See ``api.attempts``.
    """
    seconds = session.lines.timeout if deadline is None else deadline
    late = of_timeout if deadline is None else None
    retries = Retries("with", count, seconds, options, session.now, late)
    earlier: ClusterTransaction | None = None
    while True:
        plan = retries.next()
        inner = ClusterTransaction(session, deadline=plan.left, **plan.options)
        inner.follow(earlier, mode_chosen="mode" in plan.options)
        earlier = inner
        try:
            yield Attempt(retries, Transaction(inner))
        finally:
            inner.rollback()
        if not retries.goes_on():
            return
        session.pause(session.random.uniform(0.0, plan.pause))


def run_inside(
    session: ClientSource, mapping: Map[Any, Any], work: Callable[[Map[Any, Any]], T]
) -> T:
    """Run ``work`` with a map inside a transaction of the client's own."""
    inside = partial(_work_inside, mapping, work)
    return run(cluster_attempts(session, ATTEMPTS, None, {"plain_writes": True}), inside)


def _work_inside(mapping: Map[Any, Any], work: Callable[[Map[Any, Any]], T], tx: Transaction) -> T:
    return work(tx[mapping])
