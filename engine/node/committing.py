"""Commits of clients, and what became of them: taken, confirmed, answered.

Invariants:

- An answer is computed first, then the lease is looked at, then it leaves (L5).
- A commit is answered behind its sync, and only while the partitions that it wrote are served; one
  whose lease has ended meanwhile waits for the next lease of the same epoch, or is unknown.
- Of one id one commit is on its way at a time; who asks what became of it waits for that.
- What is asked about before it has come is refused when it comes (T19): the network may have held
  it up, and who asked was told that it was rolled back.  It names the epoch that it was made for,
  so who serves the next one refuses it by that.  An id of a user has an entry for that instead.

Left out: what is checked (``commits``), the log (``log``), transactions of several groups
(``near``), other operations (``requests``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...affinity.errors import (
    CommitUnknownError,
    ConflictError,
    RolledBackError,
    TidelogError,
    TransactionTooLargeError,
)
from ...wal.records import Run
from ..commit import outcomes
from ..commit.outcomes import Outcome
from ..data.digests import RANGE_KEYS_MAX
from ..data.namespaces import OUTCOMES
from ..data.updates import FewUpdates, Writes
from ..replication.streams import Streams
from . import reads
from .client_request import ClientRequest
from .commits import WantedCommit, check_id, commit_of, not_understood, wanted_of
from .group_locks import is_locked
from .log import Haste, NodeLog
from .partitions import Partitions, RoutedError
from .prepared import ClientCommit
from .room import check_room
from .transactions import Transactions

SHARE_BYTES_MAX, SHARE_KEYS_MAX = 16 << 20, 100_000
"""Of one transaction in a cluster of several members, but for one value that is larger: it takes a
member some tenths of a second in one piece, and one that says nothing for a second is taken for
dead."""
READ_KEYS_MAX = 50_000
"""Keys that one such transaction may have read, beside those of ranges; each is looked at again."""
SILENT_S = 0.1
"""Seconds after which a copy that has stored nothing counts as silent."""
RECENT_MAX = 65_536
"""Ids whose commits are known without a look into the log."""
REFUSED_MAX = 131_072
"""Ids that are refused because somebody has asked about them; behind so many more one is let go."""


class Outcomes(Protocol):
    """What commits ask of the member beside its log and its partitions."""

    @property
    def now(self) -> float:
        """The time of leases."""

    def find_outcome(
        self,
        tx_id: bytes,
        home: int,
        done: Callable[[Outcome | Exception], None],
        until: float,
    ) -> None:
        """Look in the log for what became of a transaction; wait for its end until some time."""


@dataclass(slots=True)
class PendingCommit:
    """A commit that is not answered yet, with all partitions that it is about."""

    request: ClientRequest
    commit: ClientCommit
    tx_id: bytes
    partitions: frozenset[int]


class Committing:
    """The commits of all clients of one member."""

    def __init__(
        self,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        around: Outcomes,
        near: tuple[bytes, int],
        transactions: Transactions,
    ) -> None:
        """``near`` is the member, and its boot."""
        self._log = log
        self._partitions = partitions
        self._streams = streams
        self._around = around
        self._near = near
        self._locks, self._leading = transactions.locks, transactions.near
        self._history = transactions.history
        self._plain = transactions.plain
        self._leading.over = self._ask_again
        self._unconfirmed: list[PendingCommit] = []
        self._questions: list[ClientRequest] = []
        self._ids: set[bytes] = set()
        self._recent: dict[bytes, None] = {}
        self._refused: dict[bytes, None] = {}
        self.acknowledged: Callable[[bytes, Sequence[int]], object] = lambda _tx_id, _runs: None
        """Hears of each commit that is answered: its id in the logs and its flat runs."""

    def tick(self) -> None:
        """Confirm commits that wait for a lease."""
        waiting, self._unconfirmed = self._unconfirmed, []
        for pending in waiting:
            self._confirm(pending)

    # -------------------------------------------------------------- commits

    def commit(self, request: ClientRequest) -> None:
        """Take a commit; it is answered when it has ended."""
        if self._partitions.has_others():
            keys_read, ranges_read, writes = request.arguments[4:7]
            _check_share(writes)
            _check_reads(keys_read, ranges_read)
        wanted = wanted_of(request.arguments, self._log.state, request.opened)
        if wanted.given is None and wanted.tx_id in self._refused:
            raise RolledBackError(
                "somebody asked what became of the transaction before its commit arrived, and was "
                "told that it was rolled back"
            )
        touched = wanted.partitions()
        if wanted.tx_id in self._ids or self._leading.leads(wanted.tx_id):
            raise RoutedError("wait", "a commit under this id is on its way")
        if len(touched) > 1 and not self._is_alone(touched):
            self._lead(request, wanted, touched)
            return
        self._partitions.check(touched, self._around.now)
        self._partitions.check_epochs(wanted.epochs)
        if self._waits_for_lock(request, wanted):
            return
        if not wanted.writes:
            self._only_reads(request, wanted)
            return
        self._check_log(touched)
        self._partitions.check_copies(touched)
        shared = check_room(self._log, self._streams, touched)
        commit = self._commit_of(wanted, lambda: self._ended(pending, wanted))
        pending = PendingCommit(request, commit, wanted.tx_id, frozenset(touched))
        if request.deadline != float("inf"):
            commit.deadline = request.deadline
        self._ids.add(wanted.tx_id)
        self._log.put(commit, Haste.SHARED if shared else Haste.AT_ONCE)

    def _is_alone(self, partitions: Collection[int]) -> bool:
        """Tell whether partitions are served here, and no other copy has any of them (T15)."""
        served = all(map(self._partitions.is_open, partitions))
        return served and all(map(self._streams.alone, partitions))

    def _waits_for_lock(self, request: ClientRequest, wanted: WantedCommit) -> bool:
        """Tell whether a commit waits for a transaction of several groups, and is held then."""
        if self._locks.idle and wanted.opened is None:
            return False
        owner = self._locks.in_way_of(
            wanted.writes,
            (read.full_key for read in wanted.reads),
            ((one.partitions, one.wanted) for one in wanted.ranges),
            but=self._plain.owners(wanted.opened, wanted.locked() if wanted.opened else ()),
        )
        if owner is None:
            return False
        self._ids.add(wanted.tx_id)  # whoever asks for its outcome waits, too
        key = None if wanted.opened else self._locks.plainly_locked(wanted.writes)
        if key is None:
            self._locks.hold(owner, request, self._commit_held, self._commit_late)
        else:
            self._locks.take_turn(key, request, self._commit_held, self._commit_late)
        return True

    def _commit_held(self, request: ClientRequest) -> None:
        """Go on with a commit that has waited for locks."""
        self._ids.discard(request.arguments[0])
        try:
            self.commit(request)
        finally:
            self._ask_again()

    def _commit_late(self, request: ClientRequest) -> None:
        self._ids.discard(request.arguments[0])
        request.fail(is_locked())
        self._ask_again()

    def _lead(self, request: ClientRequest, wanted: WantedCommit, touched: set[int]) -> None:
        """Lead a transaction of several groups, as the member that serves its home (T17)."""
        home = min((write[0] for write in wanted.writes.values()), default=min(touched))
        if wanted.given is not None:
            home = outcomes.home_of(wanted.given, self._log.state.spaces[0].partitions)
        for one in wanted.ranges:
            if len(one.partitions) > 1:  # read while there was one member only
                name = self._log.context.name_of(one.wanted.namespace)
                raise ConflictError(
                    f"what was read of {name!r} is served by several members by now",
                    namespace=name, key=None, winner=None,
                )  # fmt: skip
        self._partitions.check((home,), self._around.now)
        self._partitions.check_there(touched)  # else what the others lock stays locked for long
        self._partitions.check_epochs([row for row in wanted.epochs if row[0] == home])
        self._check_log((home,))
        if wanted.writes:
            check_room(self._log, self._streams, ())  # before others are sent their parts

        def done(error: Exception | None, time: int, tx_id: bytes, runs: Sequence[Run]) -> None:
            if error is not None:
                request.fail(error)
                return
            if runs:
                self.acknowledged(tx_id, [field for run in runs for field in run])
            request.answer((time or self._log.state.time, *(
                [run[field] for run in runs] for field in range(4)
            )))  # fmt: skip

        self._leading.begin(wanted, home, request.deadline, done)

    def _check_log(self, partitions: Collection[int]) -> None:
        """Raise if the log has failed: to come again if others have copies, who will serve (I6)."""
        if self._log.failure is None:
            return
        if all(map(self._knows_no_more, partitions)):
            raise self._log.failure
        raise _about_to_withdraw()

    def _knows_no_more(self, partition: int) -> bool:
        """Tell whether the log has failed, and nobody else has what it holds of a partition."""
        return self._log.failure is not None and self._streams.counts_alone(partition)

    def _commit_of(self, wanted: WantedCommit, answer: Callable[[], object]) -> ClientCommit:
        written = {write[0] for write in wanted.writes.values()}

        def check_writable(epochs: Iterable[tuple[int, int]]) -> None:
            self._partitions.check_writable(epochs)
            if len(written) > 1 and not self._is_alone(written):
                raise RoutedError("wait", "a copy has come, so that it is of several groups by now")

        return commit_of(
            wanted,
            self._log.context,
            answer,
            streams=self._streams,
            near=self._near,
            check_epochs=check_writable if wanted.writes else self._partitions.check_epochs,
        )

    def _only_reads(self, request: ClientRequest, wanted: WantedCommit) -> None:
        """Confirm what was read; nothing is written for that."""
        context = self._log.context
        commit = self._commit_of(wanted, lambda: None)
        assert commit.check is not None
        # What is on its way is not applied: a read that it changes is not confirmed either.
        try:
            commit.check(commit, self._log.waiting)
        except ConflictError as error:
            raise self._told(error, wanted) from None
        self._partitions.check(wanted.partitions(), self._around.now)
        request.answer((context.state.time, [], [], [], []))

    def _told(self, error: Exception, wanted: WantedCommit) -> Exception:
        """Return what is told of an error: to come again if what was in the way waits for a copy.

        Whoever runs again at once would lose again, until the copy is out of the set.
        """
        if error is self._log.failure and not all(map(self._knows_no_more, wanted.partitions())):
            return _about_to_withdraw()
        if not isinstance(error, ConflictError):
            return error
        if not self._log.is_undecided({read.full_key for read in wanted.reads}):
            return error
        now, streams = self._around.now, map(self._streams.get, wanted.partitions())
        if not any(stream is not None and any(stream.late(now, SILENT_S)) for stream in streams):
            return error
        return RoutedError("wait", "another transaction is in the way, which waits for a copy")

    def _ended(self, pending: PendingCommit, wanted: WantedCommit) -> None:
        """Answer a commit that was applied, or failed; called under the mutex if it was applied."""
        commit = pending.commit
        if commit.error is not None:
            self._ids.discard(pending.tx_id)
            assert isinstance(commit.error, Exception)
            pending.request.fail(self._told(commit.error, wanted))
        else:
            if wanted.opened is not None:
                self._plain.give_back([wanted.opened])  # its client tells only who keeps it
            self._confirm(pending)
        self._ask_again()

    def _confirm(self, pending: PendingCommit) -> None:
        """Answer a commit that is in the log, if its partitions are served, else later."""
        commit, request = pending.commit, pending.request
        partitions, now = self._partitions, self._around.now
        everywhere = commit.record_prepared is not None  # so it has committed, whoever leads (T15)
        if everywhere or all(partitions.serves(partition, now) for partition in pending.partitions):
            self._end(pending)
            runs = commit.runs
            time = commit.time if commit.receipt is None else commit.receipt.time
            self.acknowledged(pending.tx_id, runs)
            request.answer((time, runs[::4], runs[1::4], runs[2::4], runs[3::4]))
        elif now < request.deadline and all(map(partitions.is_open, pending.partitions)):
            self._unconfirmed.append(pending)
        else:
            self._end(pending)
            request.fail(
                CommitUnknownError(
                    f"transaction {pending.tx_id.hex()} was written, but this member may not "
                    "answer for it any more",
                    tx_id=pending.tx_id,
                    home=min(pending.partitions),
                )
            )

    def _end(self, pending: PendingCommit) -> None:
        self._ids.discard(pending.tx_id)
        _remember(self._recent, pending.tx_id, RECENT_MAX)

    # -------------------------------------------------------------- outcomes

    def outcome(self, request: ClientRequest) -> None:
        """Answer what became of a transaction, or have its id refused (T19)."""
        tx_id, given, home = request.arguments
        check_id(tx_id)
        if given:
            home = outcomes.home_of(tx_id, self._log.state.spaces[0].partitions)
        if not 0 <= home < self._log.state.partitions:
            raise not_understood("a home that is not a partition")
        self._partitions.check((home,), self._around.now)
        self._check_log((home,))  # what is in it may not be there behind a restart
        if tx_id in self._ids or self._leading.leads(tx_id):
            self._questions.append(request)
        elif tx_id in self._recent:
            request.answer("committed")
        elif given:
            self._outcome_given(request, tx_id, home)
        else:
            _remember(self._refused, tx_id, REFUSED_MAX)  # else it might come while that is found
            self._around.find_outcome(
                tx_id, home, lambda found: self._tell(request, home, found), request.deadline
            )

    def _tell(self, request: ClientRequest, home: int, found: Outcome | Exception) -> None:
        try:
            self._partitions.check((home,), self._around.now)
        except TidelogError as error:
            request.fail(error)
            return
        if isinstance(found, Exception):
            request.fail(found)
        else:
            request.answer(found)

    def _ask_again(self) -> None:
        if self._questions:
            questions, self._questions = self._questions, []
            for request in questions:
                request.carry_out(self.outcome)

    def _outcome_given(self, request: ClientRequest, tx_id: bytes, home: int) -> None:
        """Answer from the entry; if there is none, refuse the id first, durably (T19)."""
        state = self._log.state
        full_key = outcomes.outcome_key(tx_id, state.spaces[0].partitions)
        owner = self._locks.in_way_of([full_key])
        if owner is not None:
            self._locks.hold(owner, request, self.outcome)
            return
        [stored], _, _ = reads.get(self._log.overlay.view, OUTCOMES, [tx_id], [home])
        entry = None if stored is None else outcomes.decode_outcome(stored)
        if entry is not None and entry.kind is outcomes.Kind.COMMITTED:
            request.answer("committed")
            return
        if entry is None and self._history.may_be_lost(tx_id, home):
            request.answer("too_old")
            return
        # Whoever uses a higher attempt than the next one was told of that one's refusal.
        attempt = 1 if entry is None else entry.attempt + 1
        self._partitions.check_copies((home,))
        refusal = outcomes.OutcomeEntry(outcomes.Kind.REFUSED, state.time, attempt)
        writes: Writes = {full_key: (home, OUTCOMES, tx_id, outcomes.encode_outcome(refusal))}
        epoch = self._partitions.epoch(home)
        commit = ClientCommit(
            FewUpdates(writes),
            self._streams,
            self._near,
            check=lambda _commit, _group: self._partitions.check_writable([(home, epoch)]),
            tx_id=self._log.new_id(),
        )

        def done() -> None:
            self._ids.discard(tx_id)
            if commit.error is None:
                self._tell(request, home, "rolled_back")
            elif commit.was_forsaken and not self._knows_no_more(home):
                request.fail(RoutedError("wait", "who serves this next knows what is refused"))
            else:
                assert isinstance(commit.error, Exception)
                request.fail(commit.error)
            self._ask_again()

        commit.then = commit.undo = done
        self._ids.add(tx_id)
        self._log.put(commit)


def _remember(ids: dict[bytes, None], tx_id: bytes, ids_max: int) -> None:
    """Add an id as the newest one, and drop the oldest of too many."""
    ids.pop(tx_id, None)
    ids[tx_id] = None
    if len(ids) > ids_max:
        del ids[next(iter(ids))]


def _check_share(writes: Sequence[tuple[int, list[bytes], list[bytes | None]]]) -> None:
    """Raise for more than is carried in one piece, before anything is done that takes long."""
    keys = sum(len(row[1]) for row in writes)
    if keys <= 1:
        return
    given = (one for row in writes for column in row[1:] for one in column)
    size = sum(len(one) for one in given if type(one) is bytes)
    if keys > SHARE_KEYS_MAX or size > SHARE_BYTES_MAX:
        raise TransactionTooLargeError(
            f"a transaction of {keys:,} keys and {size:,} bytes is more than a member of a cluster "
            "of several carries in one piece",
            hint=f"Commit at most {SHARE_KEYS_MAX:,} keys, and {SHARE_BYTES_MAX:,} bytes, at once; "
            "`map.load` does that.",
        )


def _check_reads(keys_read: Sequence[list[Any]], ranges: Sequence[list[Any]]) -> None:
    """Raise for more to confirm than is looked at in one piece."""
    if not keys_read and not ranges:
        return
    keys = sum(len(row[1]) for row in keys_read)
    in_ranges = sum(row[4] for row in ranges)
    if keys > READ_KEYS_MAX or in_ranges + len(ranges) > RANGE_KEYS_MAX + 1:
        raise TransactionTooLargeError(
            f"a transaction that has read {keys:,} keys, and {in_ranges:,} of {len(ranges):,} "
            "ranges, is more than members of a cluster of several confirm in one piece",
            hint=f"Read at most {READ_KEYS_MAX:,} keys, and {RANGE_KEYS_MAX:,} of ranges, in one "
            "transaction; `db.snapshot()` reads any number.",
        )


def _about_to_withdraw() -> RoutedError:
    return RoutedError("wait", "the log of this member failed, and others have what it serves")
