"""Open pessimistic transactions, at the member that keeps them: the one a client locks through.

    lock -> acquired of primary after primary -> ... -> commit, or the end

The *keeper* knows which partitions a transaction has locks in, and where it waits.  The client
names the transaction, and commits it as any other; whoever leads that names it to the primaries.

Invariants:

- Nothing here is durable: what it kept has no locks any more once it has gone.
- A partition has to stay in the epoch in which it was locked first (T2).
- A transaction waits at one primary at a time.
- One ends with the connection over which it locks, with its deadline, and if it locks nothing for
  long; then all that it had is given back.

Left out: who holds what (``plain_locks``), commits (``committing``, ``near``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

from ...affinity.errors import (
    DeadlineError,
    DeadlockError,
    LockTimeoutError,
    RolledBackError,
    TidelogError,
    TransactionTooLargeError,
    UsageError,
)
from ...affinity.topology import Incarnation, Topology
from ...checkpoints.replay import State
from ..data.stored import pack_prefix, split_key
from ..net.connection import Connection
from ..net.failures import Failure
from .client_request import ClientRequest
from .commits import check_id, map_record, not_understood, places_of, range_of
from .group_locks import LOCKED_HINT
from .partitions import Partitions, RoutedError
from .plain_locks import locks_lost
from .post import Post
from .tx_messages import (
    AcquireWanted,
    FoundAt,
    LockProbe,
    acquire_message,
    error_told,
    ids_message,
    probe_message,
)

IDLE_S_MAX = 30.0
"""Seconds without another lock after which an open transaction ends."""
ANSWER_S_MAX = 5.0
"""Seconds, beside those that it may wait, in which a primary has to say that something is locked:
copies that say nothing are out of their set by then."""
WAIT_S_MAX = 3600.0
KEYS_MAX = 10_000
"""Keys that are locked at once: a member does nothing else meanwhile."""
OPEN_MAX = 10_000
"""Transactions that are open at once over one connection."""
_KEPT = (RoutedError, LockTimeoutError, TransactionTooLargeError, DeadlineError)
"""Why a lock is not there, and the others are still: those of a transaction that was begun."""


@dataclass(slots=True, eq=False)
class _Open:
    """One transaction."""

    name: bytes
    connection: Connection
    ends: float
    """Its deadline."""
    idle_since: float
    touched: dict[int, int] = field(default_factory=dict)
    """The partitions that it has locks in, and their epochs."""
    is_known: bool = False
    """Whether its client has heard who keeps it."""
    request: ClientRequest | None = None
    """What its client waits for."""
    left: deque[AcquireWanted] = field(default_factory=deque)
    """What is to be acquired for that; the first one is asked for."""
    keys: list[bytes] | None = None
    """The keys at which it reads."""
    found: dict[bytes, FoundAt] = field(default_factory=dict)
    new: list[int] = field(default_factory=list)
    """The partitions of that one that it had no locks in before."""
    until: float = float("inf")
    """When that has to be answered."""
    passed: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """The last probes that went on from here since it waits, by initiator."""

    @property
    def ask(self) -> int:
        """The number of what is asked for; 0 if nothing is."""
        return self.left[0].ask if self.left else 0

    def answer(self) -> list[FoundAt] | None:
        """Return what was read; None if it reads nothing, or not all of that was told."""
        if self.keys is None or not self.found.keys() >= set(self.keys):
            return None
        return [self.found[key] for key in self.keys]


class OpenTransactions:
    """The open transactions that one incarnation keeps."""

    def __init__(
        self,
        me: Incarnation,
        state: State,
        partitions: Partitions,
        post: Post,
        now: Callable[[], float],
    ) -> None:
        self._me = me
        self._state = state
        self._partitions = partitions
        self._post = post
        self._now = now
        self._topology = Topology()
        self._numbers = count(1)
        self._open: dict[bytes, _Open] = {}
        self._by_connection: Counter[Connection] = Counter()

    def __repr__(self) -> str:
        return f"<OpenTransactions {len(self._open)}>"

    def has(self, name: bytes) -> bool:
        """Tell whether a transaction is open."""
        return name in self._open

    # -------------------------------------------------------------- what clients ask

    def lock(self, request: ClientRequest) -> None:
        """Lock keys or a range; answered once they are locked.

        The answer is the id of this member, and what is at the keys; None if that was not wanted.
        """
        name, first, number, keys, exclusive, reads, bounds, wait_us, left_us = request.arguments
        check_id(name)
        if min(wait_us, left_us or 0) < 0 or len(bounds) not in (0, 2) or len(keys) > KEYS_MAX:
            raise not_understood("a lock that nobody could want")
        if bounds and not (type(bounds[0]) is bytes and type(bounds[1]) in (bytes, type(None))):
            raise not_understood("bounds that are not bytes")
        within = range_of(number, *bounds) if bounds else None
        places = places_of(self._state, number, keys)
        touched = set(places)
        if within is not None:
            touched.update(self._state.space_of(map_record(self._state, number)).numbers)
        self._partitions.check_there(touched)
        left = float("inf") if left_us is None else left_us / 1e6
        tx = self._known(name, request, left, first=first)
        tx.request = request
        for partition in touched:
            epoch = self._topology.partitions[partition].epoch
            if tx.touched.get(partition, epoch) != epoch:
                self._end(tx, locks_lost(f"partition {partition} has a new epoch"))
                return
        wait = min(wait_us / 1e6, WAIT_S_MAX, max(request.deadline - self._now(), 0.0))
        full_keys = [pack_prefix(p, number) + key for key, p in zip(keys, places, strict=True)]
        tx.keys, tx.found = (full_keys if reads else None), {}
        parts = self._divided(full_keys, touched)
        tx.left = deque(
            AcquireWanted(
                next(self._numbers), name, [*epochs], [*epochs.values()], part, exclusive, reads,
                within, int(wait * 1e6),
            )
            for epochs, part in parts
        )  # fmt: skip
        self._ask(tx)

    def _known(self, name: bytes, request: ClientRequest, left: float, *, first: bool) -> _Open:
        tx, now = self._open.get(name), self._now()
        if tx is not None and tx.connection is not request.connection:
            self._end(tx, locks_lost("its connection has ended"))
            tx, first = None, False
        if tx is None:
            if not first:
                raise locks_lost(
                    f"the member {self._me.member} does not keep it any more, as if it had locked "
                    f"nothing for {IDLE_S_MAX:g} s"
                )
            if self._by_connection[request.connection] >= OPEN_MAX:
                raise UsageError(
                    f"{OPEN_MAX:,} pessimistic transactions are open over one connection",
                    hint="Let fewer tasks be inside such transactions at once, or give some of "
                    "them a database handle of their own.",
                )
            tx = self._open[name] = _Open(name, request.connection, now + left, now)
            self._by_connection[tx.connection] += 1
        elif tx.request is not None:  # whoever asked for that does not wait any more
            tx.request.fail(RoutedError("wait", "the transaction has asked for another lock"))
        return tx

    def _divided(
        self, full_keys: Iterable[bytes], touched: Iterable[int]
    ) -> list[tuple[dict[int, int], list[bytes]]]:
        """Divide a lock among the members that serve it: partitions with epochs, and keys."""
        rows = self._topology.partitions
        parts: dict[Incarnation, tuple[dict[int, int], list[bytes]]] = {}
        for partition in sorted(touched):
            part = parts.setdefault(rows[partition].author, ({}, []))
            part[0][partition] = rows[partition].epoch
        for key in full_keys:
            parts[rows[split_key(key)[0]].author][1].append(key)
        return [parts[author] for author in sorted(parts)]

    def _ask(self, tx: _Open) -> None:
        """Ask for what is next; if that is nothing, the client has it all."""
        tx.passed.clear()
        if not tx.left:
            request, tx.request, tx.idle_since = tx.request, None, self._now()
            tx.is_known = True
            if request is not None:
                request.answer((self._me.member.bytes, tx.answer()))
            return
        wanted = tx.left[0]
        rows = dict(zip(wanted.partitions, wanted.epochs, strict=True))
        tx.new = [partition for partition in rows if partition not in tx.touched]
        tx.touched |= rows
        tx.until = self._now() + wanted.wait_us / 1e6 + ANSWER_S_MAX
        self._post.tell(self._author(wanted.partitions[0]), acquire_message(wanted))

    def _author(self, partition: int) -> Incarnation:
        return self._topology.partitions[partition].author

    def acquired(
        self, ask: int, name: bytes, found: list[FoundAt] | None, failure: Failure | None
    ) -> None:
        """Take the answer to an ``acquire``."""
        tx = self._open.get(name)
        if tx is None or tx.ask != ask:
            return
        if failure is None:
            wanted = tx.left.popleft()
            if found is not None and len(found) == len(wanted.keys):
                tx.found.update(zip(wanted.keys, found, strict=True))
            self._ask(tx)
            return
        error = error_told(failure)
        request = tx.request
        assert request is not None
        if isinstance(error, RoutedError):
            error = RoutedError("wait", str(error), error.hint)
            for partition in tx.new:  # nothing was locked there
                del tx.touched[partition]
        elif isinstance(error, LockTimeoutError) and self._now() >= request.deadline:
            error = DeadlineError(
                "the deadline passed while waiting for a lock",
                hint=f"{DeadlineError.hint} {LOCKED_HINT}",
            )
        if not (tx.is_known and isinstance(error, _KEPT)):
            self._end(tx, error)
            return
        tx.request = None
        tx.left.clear()
        request.fail(error)

    def cancelled(self, connection: Connection, number: int) -> None:
        """Withdraw what nobody waits for any more; one that has nothing yet ends."""
        for tx in list(self._open.values()):
            request = tx.request
            if request is None or tx.connection is not connection or request.number != number:
                continue
            if not tx.is_known:
                self._end(tx, locks_lost("it was cancelled"))
                return
            author = self._author(tx.left[0].partitions[0])
            nothing = tx.left[0]._replace(
                ask=next(self._numbers), partitions=[], epochs=[], keys=[], within=None
            )
            self._post.tell(author, acquire_message(nothing))  # it takes the place of the other
            tx.request = None
            tx.left.clear()
            request.fail(RoutedError("wait", "the request was cancelled"))

    def unlock(self, request: ClientRequest) -> None:
        """End a transaction for its client."""
        tx = self._open.get(request.arguments[0])
        if tx is not None and tx.connection is request.connection:
            self._end(tx, locks_lost("it was rolled back"))
        request.answer(None)

    def _end(self, tx: _Open, error: TidelogError) -> None:
        """Give all back; who waits for a lock hears why."""
        del self._open[tx.name]
        self._by_connection[tx.connection] -= 1
        if not self._by_connection[tx.connection]:
            del self._by_connection[tx.connection]
        for author in sorted({self._author(partition) for partition in tx.touched}):
            self._post.tell(author, ids_message("give-back", [tx.name]))
        if tx.request is not None:
            tx.request.fail(error)

    # -------------------------------------------------------------- probes

    def probe(self, probe: LockProbe) -> None:
        """Send a probe on to where a transaction waits; end the one that has come to itself."""
        tx = self._open.get(probe.path[-1])
        if tx is None or not tx.left:
            return
        if tx.name == probe.initiator:
            if tx.ask == probe.ask:
                self._end(tx, DeadlockError("transactions waited for each other's locks"))
            return
        number = probe.ask, probe.round
        if tx.passed.get(probe.initiator, (0, 0)) < number:
            tx.passed[probe.initiator] = number
            author = self._author(tx.left[0].partitions[0])
            self._post.tell(author, probe_message(probe._replace(waits=True)))

    # -------------------------------------------------------------- epochs and time

    def decided(self, topology: Topology) -> None:
        """End what has lost its locks with an epoch."""
        self._topology = topology
        for tx in list(self._open.values()):
            moved = [p for p, e in tx.touched.items() if topology.partitions[p].epoch != e]
            if moved:
                self._end(tx, locks_lost(f"partition {moved[0]} has a new epoch"))

    def tick(self) -> None:
        """End what nobody wants any more, or nobody answers."""
        now = self._now()
        for tx in list(self._open.values()):
            if not tx.connection.up:
                self._end(tx, locks_lost("its connection has ended"))
            elif now > tx.ends:
                self._end(tx, DeadlineError("the deadline of the transaction has passed"))
            elif tx.left and now > tx.until:
                told = ", ".join(map(str, tx.left[0].partitions))
                self._end(tx, locks_lost(f"partitions {told} do not answer"))
            elif tx.request is None and now > tx.idle_since + IDLE_S_MAX:
                self._end(tx, RolledBackError(f"it has locked nothing for {IDLE_S_MAX:g} s"))
