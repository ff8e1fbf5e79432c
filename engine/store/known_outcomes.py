"""What became of the transactions of an open store: who remembers it, for how long, and who asks.

An id that the caller gave has an entry in the data, written by its own transaction.  An automatic
id is looked up in the log.  ``outcomes`` says what ids and entries tell.

Invariants:

- An entry stays for ``RETENTION_SECONDS`` during which the store was open, by the steady clock.
- Before entries go, the horizon says how new they are: what is found nowhere, and is younger than
  that, never took effect.
- Nothing waits under the commit mutex: ``check_readable`` turns back who would have to.

Left out: who sweeps, and when (``maintenance``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from ...affinity.errors import ConflictError, UsageError
from ...wal.records import TxRecord
from ..commit import outcomes
from ..commit.entries import Commit, Entry, Receipt
from ..data.namespaces import OUTCOMES
from ..data.point_reads import read_view
from ..data.scan import Pair
from ..data.updates import FewUpdates, Writes
from ..system.disk_errors import translated_disk
from .data_file_growth import check_open
from .opening import OpenStore


class KnownOutcomes:
    """The outcomes of one open store; shared by threads."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._partitions = store.state.spaces[0].partitions
        self._pending: list[bytes] = []
        self._empty_numbers = count()
        self._now = store.environment.monotonic
        self._opened = self.log_time()
        self._times = deque([(self._now(), self._opened)])
        """When outcomes were swept, by the steady clock, and what time the log had reached."""

    def log_time(self) -> int:
        """Return the time, which no later commit falls behind."""
        state = self._store.state
        with self._store.mutex:
            state.time = max(state.time, self._store.environment.clock())
            return state.time

    # -------------------------------------------------------------- ids

    def new_id(self) -> bytes:
        """Return a fresh transaction id that carries its time."""
        environment, state = self._store.environment, self._store.state
        time = max(environment.clock(), state.time)
        return outcomes.dated_id(time, environment.new_id(), state.store_id)

    def empty_receipt(self) -> Receipt:
        """Return the receipt of a transaction that wrote nothing."""
        # Numbers of their own, counted in one step: this is called without the mutex, and nothing
        # in the log may ever have the same one.
        tx_id = outcomes.empty_id(self._store.committer.ids()[0], next(self._empty_numbers))
        return Receipt(tx_id, 0, self._store.state.time, 0)

    @contextmanager
    def pending(self, tx_id: bytes | None) -> Iterator[None]:
        """Let ``outcome`` say ``pending`` of an id meanwhile, unless that is None."""
        if tx_id is None:
            yield
            return
        self._pending.append(tx_id)
        try:
            yield
        finally:
            self._pending.remove(tx_id)

    # -------------------------------------------------------------- entries

    def add_entry(self, writes: Writes, tx_id: bytes) -> None:
        """Add the entry that remembers a transaction whose id the caller gave."""
        partition = outcomes.home_of(tx_id, self._partitions)
        key = outcomes.outcome_key(tx_id, self._partitions)
        state = self._store.state
        time = max(self._store.environment.clock(), state.time)
        if outcomes.is_dated(tx_id, state.store_id):
            time = max(time, outcomes.born(tx_id, state.store_id) or 0)
        writes[key] = (partition, OUTCOMES, tx_id, outcomes.committed(time))

    def earlier_receipt(self, tx_id: bytes, group: Sequence[Entry]) -> Receipt | None:
        """Return the receipt of an id that is committed already.

        Raises ``ConflictError`` if it is about to be, in this very group.  Reads the data file:
        under the mutex ``check_readable`` comes first.
        """
        key = outcomes.outcome_key(tx_id, self._partitions)
        if any(entry.changed({key}) for entry in group):
            raise ConflictError(
                f"another attempt of transaction {tx_id.hex()} is being committed",
                namespace="",
                key=None,
                winner=tx_id,
            )
        partition = outcomes.home_of(tx_id, self._partitions)
        found = read_view(self._store.overlay.view, None, partition, key)
        entry = None if found is None else outcomes.decode_outcome(found)
        if entry is None or entry.kind is not outcomes.Kind.COMMITTED:
            return None
        return Receipt(tx_id, 0, entry.time, partition)

    def check_readable(self) -> None:
        """Raise ``GrowingError`` if a read of the data file would have to wait; under the mutex.

        Whoever waited there would keep from going on those whose end is waited for.
        """
        check_open(self._store.overlay.view.txn)

    # -------------------------------------------------------------- questions

    def outcome(self, tx_id: bytes) -> outcomes.Outcome:
        """Tell what became of a transaction."""
        if type(tx_id) is not bytes or len(tx_id) != 16:
            raise UsageError(
                f"the id of a transaction is 16 bytes, not {tx_id!r}",
                hint="Give a `receipt.tx_id`; of printed digits make `bytes.fromhex(text)`.",
            )
        if tx_id in self._pending:
            return "pending"
        if self.earlier_receipt(tx_id, ()) is not None:
            return "committed"
        with translated_disk("reading the log"):
            return outcomes.looked_through(lambda: self._outcome_in_log(tx_id))

    def _outcome_in_log(self, tx_id: bytes) -> outcomes.Outcome:
        keeper, writer = self._store.keeper, self._store.writer
        found = keeper.find_transaction(tx_id, self._store.manifest.log_ids)
        if writer.failure is not None and (found is None or found[0].end > writer.synced):
            return "pending"  # a sync failed: what lies behind the last one may be there or not
        if found is not None:
            return "committed" if isinstance(found[1], TxRecord) else "rolled_back"
        surely = keeper.first_position == 0 or self._never_committed(tx_id)
        return "rolled_back" if surely else "too_old"

    def _never_committed(self, tx_id: bytes) -> bool:
        """Tell whether what is found nowhere would be found somewhere if it had been committed."""
        keeper = self._store.keeper
        since = outcomes.born(tx_id, self._store.state.store_id)
        automatic = outcomes.is_automatic(tx_id)
        if since is not None and automatic and since > self.log_time():
            since = None  # one that somebody gave, and that only looks like an automatic one
        if since is not None and since > keeper.known_since():
            return True
        if automatic:
            first = keeper.first_number(tx_id[:8])
            return first is not None and outcomes.number_of(tx_id) >= first
        return since is not None and since > self._horizon()

    def _horizon(self) -> int:
        """Return a time behind which no outcome of a given id has expired."""
        known = self.earlier_receipt(outcomes.HORIZON_ID, ())
        return self._opened if known is None else known.time

    # -------------------------------------------------------------- expiry

    def sweep(self, blocks: Iterator[list[Pair]]) -> int:
        """Delete entries that have expired; return how many.

        ``blocks`` are the encoded pairs of the namespace of outcomes, in any order.
        """
        oldest = self._time_of_expiry()
        horizon: int | None = None
        entries: list[tuple[int, bytes]] = []
        for block in blocks:
            entries += [(outcomes.decode_outcome(value).time, key) for key, value in block]
        for time, key in entries:
            if key == outcomes.HORIZON_ID:
                horizon = time
        entries = sorted(entry for entry in entries if entry[1] != outcomes.HORIZON_ID)
        limits = self._store.environment.limits
        excess = len(entries) - limits.outcomes
        expired = [(time, key) for place, (time, key) in enumerate(entries)
                   if time < oldest or place < excess]  # fmt: skip
        newest = max([time for time, _ in expired], default=0)
        if entries and (horizon is None or newest > horizon):
            self._set_horizon(max(newest, self._opened if horizon is None else horizon))
        most = limits.sweep_outcomes
        for first in range(0, len(expired), most):
            self._delete([key for _, key in expired[first : first + most]])
        return len(expired)

    def _time_of_expiry(self) -> int:
        """Return a time that had passed a whole retention ago, by the steady clock."""
        now, times = self._now(), self._times
        times.append((now, self.log_time()))
        while len(times) > 1 and times[1][0] <= now - outcomes.RETENTION_SECONDS:
            times.popleft()
        steady, reached = times[0]
        return reached if steady <= now - outcomes.RETENTION_SECONDS else 0

    def _delete(self, tx_ids: list[bytes]) -> None:
        self._write(dict.fromkeys(tx_ids))

    def _set_horizon(self, time: int) -> None:
        """Note, before they go, how new the entries are that expire."""
        self._write({outcomes.HORIZON_ID: outcomes.committed(time)})

    def _write(self, entries: dict[bytes, bytes | None]) -> None:
        writes: Writes = {}
        for tx_id, value in entries.items():
            partition = outcomes.home_of(tx_id, self._partitions)
            key = outcomes.outcome_key(tx_id, self._partitions)
            writes[key] = (partition, OUTCOMES, tx_id, value)
        self._store.committer.commit(Commit(FewUpdates(writes), False))
