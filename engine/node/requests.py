"""What members do for clients: one function per operation of ``docs/client-protocol.md``.

A request is answered once: at once, or behind what it waits for.  Whatever goes wrong in one is its
own failure, and ends nothing else.

Invariants:

- An answer is computed first, then the lease is looked at, then it leaves (L5).
- A commit is answered behind its sync, and only while the partitions that it wrote are served; one
  whose lease has ended meanwhile waits for the next lease of the same epoch, or is unknown.
- A client that knows more decisions than this member waits until it knows them, too.

Left out: connections (``net.transport``), the log (``log``), epochs (``partitions``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from ...affinity.changes import (
    LossPolicySet,
    MemberLost,
    MemberWanted,
    NamespaceDropped,
    NamespaceMade,
    NamespaceRenamed,
    TopologyChange,
)
from ...affinity.errors import (
    CommitUnknownError,
    ConflictError,
    DeadlineError,
    TidelogError,
    TransactionTooLargeError,
    UsageError,
)
from ...affinity.topology import LOSS_POLICIES
from ...wal.records.shapes import ID_SIZE
from ..commit import outcomes
from ..commit.outcomes import Outcome
from ..data.namespaces import OUTCOMES, check_name
from ..data.updates import FewUpdates, Writes
from ..net.connection import Connection
from ..net.failures import Failure, failure_of
from ..net.frames import Message
from ..net.kinds import BY_NAME
from ..net.operations import MisunderstoodError, check_arguments
from ..replication.streams import Streams
from . import reads
from .commits import (
    WantedCommit,
    check_id,
    commit_of,
    not_understood,
    places_of,
    unexpected,
    wanted_of,
)
from .copy_reads import CopyReads
from .log import Haste, NodeLog
from .partitions import Partitions, RoutedError
from .prepared import ClientCommit

REQUEST, RESPONSE, FAILURE = BY_NAME["request"], BY_NAME["response"], BY_NAME["failure"]
CANCEL = BY_NAME["cancel"]
CODEC_NAME_MAX = 255
VERSIONS_END = 1 << 31
HELD_MAX = 4096
"""Requests that wait for decisions; of more than that the oldest are told to come again."""
HELD_S_MAX = 5.0
"""Seconds that a request waits for decisions before it is told to come again."""
AT_ONCE = frozenset(("status", "partition", "copies", "exchanges", "losses", "stale", "topology"))
"""What a member answers for itself, whatever it knows of decisions."""
SHARE_BYTES_MAX, SHARE_KEYS_MAX = 16 << 20, 100_000
"""Of one transaction in a cluster of several members, but for one value that is larger: it takes a
member some tenths of a second in one piece, and one that says nothing for a second is taken for
dead."""
OUTSTANDING_BYTES_MAX = 32 << 20
"""Bytes of one partition that some copy does not have yet; who brings more comes again."""
SILENT_S = 0.1
"""Seconds after which a copy that has stored nothing counts as silent."""
QUEUED_BYTES_MAX = 256 << 20
"""Bytes of updates that wait for the log; who brings more is told to come again."""


class Surroundings(Protocol):
    """What requests ask of the member beside its log and its partitions."""

    @property
    def now(self) -> float:
        """The time of leases."""

    @property
    def decided(self) -> int:
        """How many decisions are known here, durably."""

    def change(
        self,
        change: TopologyChange,
        deadline: float,
        done: Callable[[Exception | None], None],
        number: int | None = None,
    ) -> None:
        """Have a change decided; ``done`` hears None behind its effect, or why it is refused.

        ``number`` is the map that is meant, which another one of its name is not.
        """

    def find_outcome(
        self, tx_id: bytes, home: int, done: Callable[[Outcome | Exception], None]
    ) -> None:
        """Look in the log for what became of a transaction."""

    def status(self) -> Mapping[str, Any]:
        """Return what ``status`` shows."""

    def move(self, partition: int, member: bytes, done: Callable[[Exception | None], None]) -> None:
        """Let another member serve a partition; ``done`` hears None once it does, or why not."""

    def story(self, partition: int) -> Mapping[str, Any]:
        """Return what is known of a partition; ``UsageError`` if there is none of this number."""

    def reset(
        self, partition: int, empty: bool, deadline: float, done: Callable[[Exception | None], None]
    ) -> None:
        """Go on with a partition that was lost."""

    def losses(self) -> Mapping[str, Any]:
        """Return what was lost."""

    def topology_bytes(self) -> bytes:
        """Return the newest topology, as it is written."""

    def copies(self, first: int, limit: int) -> Mapping[str, Any]:
        """Return who holds so many partitions from a number on, in columns."""

    def exchanges(self, last: int) -> Mapping[str, Any]:
        """Return the newest exchanges that were seen here, so many at most."""


@dataclass(slots=True)
class ClientRequest:
    """A request that is not answered yet."""

    connection: Connection
    number: int
    deadline: float
    operation: str
    arguments: list[Any]

    def answer(self, value: object) -> None:
        """Answer it; ``UsageError`` if the answer is too long."""
        try:
            self.connection.send(RESPONSE.message(self.number, value))
        except UsageError as error:
            raise UsageError(
                f"the answer is too long: {error}", hint="Ask for fewer keys at once."
            ) from None

    def fail(self, error: Exception) -> None:
        """Answer it with an error."""
        if isinstance(error, RoutedError):
            failure = Failure(error.answer, str(error), {})
        else:
            failure = failure_of(error)
        self.connection.send(FAILURE.message(self.number, *failure))


@dataclass(slots=True)
class PendingCommit:
    """A commit that is not answered yet, with all partitions that it is about."""

    request: ClientRequest
    commit: ClientCommit
    tx_id: bytes
    partitions: frozenset[int]


class _Held(NamedTuple):
    """A request whose client knows more decisions than this member."""

    decided: int
    until: float
    request: ClientRequest


class Requests:
    """The requests of all clients of one member."""

    def __init__(
        self,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        copy_reads: CopyReads,
        around: Surroundings,
        near: tuple[bytes, int],
    ) -> None:
        """``near`` is the member, and its boot."""
        self._log = log
        self._streams = streams
        self._copy_reads = copy_reads
        self._near = near
        self._partitions = partitions
        self._around = around
        self._held: list[_Held] = []
        self._unconfirmed: list[PendingCommit] = []
        self._questions: list[ClientRequest] = []
        self._ids: set[bytes] = set()
        self._recent: dict[bytes, None] = {}
        self.acknowledged: Callable[[bytes, Sequence[int]], object] = lambda _tx_id, _runs: None
        """Hears of each commit that is answered: its id and its numbers, as flat runs."""
        self.count = 0
        """Requests that arrived."""

    # -------------------------------------------------------------- what arrives

    def arrived(self, connection: Connection, messages: list[Message]) -> None:
        """Take what a client says, in order."""
        for message in messages:
            if message[0] != REQUEST.number:
                continue  # a cancel: whatever it is about is answered all the same
            if not connection.up:
                return  # a newer one of its line has been answered: this never arrived
            _, number, left_us, operation, arguments = message
            self.count += 1
            left = float("inf") if left_us is None else left_us / 1e6
            request = ClientRequest(
                connection, number, self._around.now + left, operation, arguments
            )
            if connection.decided > self._around.decided and operation not in AT_ONCE:
                self._hold(connection.decided, request)
            else:
                self._carry_out(request)

    def _hold(self, decided: int, request: ClientRequest) -> None:
        if self._log.failure is not None:
            request.fail(self._log.failure)  # what is decided takes no effect here any more
            return
        self._held.append(_Held(decided, self._around.now + HELD_S_MAX, request))
        if len(self._held) > HELD_MAX:
            self._held.pop(0).request.fail(_knows_too_little())

    def _carry_out(self, request: ClientRequest) -> None:
        try:
            check_arguments(request.operation, request.arguments)
            _HANDLERS[request.operation](self, request)
        except TidelogError as error:
            request.fail(error)
        except MisunderstoodError as error:
            request.fail(not_understood(str(error)))
        except Exception as error:  # one client's request, not the member of all
            request.fail(unexpected(error))

    # -------------------------------------------------------------- what happened

    def decided(self) -> None:
        """Go on with those that wait for decisions, as far as they are known now."""
        held, self._held = self._held, []
        for one in held:
            if not one.request.connection.up:
                continue
            if one.decided > self._around.decided:
                self._held.append(one)
            else:
                self._carry_out(one.request)

    def tick(self) -> None:
        """Confirm commits that wait for a lease, and give up what waits too long."""
        now = self._around.now
        self._copy_reads.tick()
        waiting, self._unconfirmed = self._unconfirmed, []
        for pending in waiting:
            self._confirm(pending)
        held, self._held = self._held, []
        for one in held:
            if one.request.deadline < now:
                one.request.fail(_too_late(one.decided, self._around.decided))
            elif one.until < now:
                one.request.fail(self._log.failure or _knows_too_little())
            elif one.request.connection.up:
                self._held.append(one)

    # -------------------------------------------------------------- operations that read

    def _get(self, request: ClientRequest) -> None:
        number, keys = request.arguments
        places = places_of(self._log.state, number, keys)
        found = reads.get(self._log.overlay.view, number, keys, places)
        self._partitions.check(set(places), self._around.now)
        request.answer(found)

    def _scan(self, request: ClientRequest) -> None:
        found = reads.scanned(self._log.state, self._log.overlay.view, request.arguments)
        self._partitions.check(found.partitions, self._around.now)
        request.answer(found.value)

    def _copy(self, request: ClientRequest) -> None:
        self._copy_reads.confirmed(request)

    def _stale(self, request: ClientRequest) -> None:
        self._copy_reads.stale(request)

    def _status(self, request: ClientRequest) -> None:
        request.answer(dict(self._around.status()))

    def _partition(self, request: ClientRequest) -> None:
        request.answer(dict(self._around.story(request.arguments[0])))

    def _copies(self, request: ClientRequest) -> None:
        request.answer(dict(self._around.copies(*request.arguments)))

    def _topology(self, request: ClientRequest) -> None:
        request.answer(self._around.topology_bytes())

    def _want(self, request: ClientRequest) -> None:
        member, wanted = request.arguments
        change = MemberWanted(member=_member_of(member), wanted=wanted)
        self._around.change(change, request.deadline, lambda refused: _done(request, refused))

    def _exchanges(self, request: ClientRequest) -> None:
        request.answer(dict(self._around.exchanges(*request.arguments)))

    def _lose(self, request: ClientRequest) -> None:
        change = MemberLost(member=_member_of(request.arguments[0]))
        self._around.change(change, request.deadline, lambda refused: _done(request, refused))

    def _losses(self, request: ClientRequest) -> None:
        request.answer(dict(self._around.losses()))

    def _policy(self, request: ClientRequest) -> None:
        given = request.arguments[0]
        chosen = [policy for policy in LOSS_POLICIES if policy == given]
        if not chosen:
            raise not_understood(f"the policy {given[:CODEC_NAME_MAX]!r}")
        change = LossPolicySet(policy=chosen[0])
        self._around.change(change, request.deadline, lambda refused: _done(request, refused))

    def _reset(self, request: ClientRequest) -> None:
        partition, empty = request.arguments
        if not 0 <= partition < self._log.state.partitions:
            raise not_understood("a partition that is not there")
        self._around.reset(
            partition, empty, request.deadline, lambda refused: _done(request, refused)
        )

    def _move(self, request: ClientRequest) -> None:
        partition, member = request.arguments
        if not 0 <= partition < self._log.state.partitions:
            raise not_understood("a partition that is not there")
        self._partitions.check((partition,), self._around.now)
        self._around.move(partition, member, lambda refused: _done(request, refused))

    # -------------------------------------------------------------- commits

    def _commit(self, request: ClientRequest) -> None:
        if self._partitions.has_others():
            _check_share(request.arguments[6])
        wanted = wanted_of(request.arguments, self._log.state)
        touched = wanted.partitions()
        self._partitions.check(touched, self._around.now)
        self._partitions.check_epochs(wanted.epochs)
        if wanted.tx_id in self._ids:
            raise RoutedError("wait", "a commit under this id is on its way")
        if not wanted.writes:
            self._only_reads(request, wanted)
            return
        self._check_log(touched)
        self._partitions.check_copies(touched)
        if self._log.queued_bytes > QUEUED_BYTES_MAX:
            raise RoutedError("wait", "more is to be written here than the disk keeps up with")
        shared = self._check_room(touched)
        commit = self._commit_of(wanted, lambda: self._ended(pending, wanted))
        pending = PendingCommit(request, commit, wanted.tx_id, frozenset(touched))
        if request.deadline != float("inf"):
            commit.deadline = request.deadline
        self._ids.add(wanted.tx_id)
        self._log.put(commit, Haste.SHARED if shared else Haste.AT_ONCE)

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
        return commit_of(
            wanted,
            self._log.context,
            answer,
            streams=self._streams,
            near=self._near,
            check_epochs=self._partitions.check_writable
            if wanted.writes
            else self._partitions.check_epochs,
        )

    def _check_room(self, touched: Collection[int]) -> bool:
        """Tell whether other copies have to store it, too.

        Raises for what would be written to several groups, or to copies that lag too far.
        """
        streams = [stream for stream in map(self._streams.get, touched) if stream is not None]
        shared = [stream for stream in streams if stream.followers]
        if shared and len(touched) > 1:
            raise UsageError(
                f"a transaction over {len(touched)} partitions, which have other copies",
                hint="Put what belongs together into one partition, or write one key at a time.",
            )
        if any(stream.bytes > OUTSTANDING_BYTES_MAX for stream in shared):
            raise RoutedError("wait", "a copy does not keep up with what is written")
        return bool(shared)

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
        recent = self._recent
        recent[pending.tx_id] = None
        if len(recent) > RECENT_MAX:
            del recent[next(iter(recent))]

    # -------------------------------------------------------------- outcomes

    def _outcome(self, request: ClientRequest) -> None:
        tx_id, given, home = request.arguments
        check_id(tx_id)
        if given:
            home = outcomes.home_of(tx_id, self._log.state.spaces[0].partitions)
        if not 0 <= home < self._log.state.partitions:
            raise not_understood("a home that is not a partition")
        self._partitions.check((home,), self._around.now)
        self._check_log((home,))  # what is in it may not be there behind a restart
        if tx_id in self._ids:
            self._questions.append(request)
        elif tx_id in self._recent:
            request.answer("committed")
        elif given:
            self._outcome_given(request, tx_id, home)
        else:
            self._around.find_outcome(tx_id, home, lambda found: self._tell(request, home, found))

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
                self._carry_out(request)

    def _outcome_given(self, request: ClientRequest, tx_id: bytes, home: int) -> None:
        """Answer from the entry; if there is none, refuse the id first, durably (T19)."""
        state = self._log.state
        full_key = outcomes.outcome_key(tx_id, state.spaces[0].partitions)
        [stored], _, _ = reads.get(self._log.overlay.view, OUTCOMES, [tx_id], [home])
        entry = None if stored is None else outcomes.decode_outcome(stored)
        if entry is not None and entry.kind is outcomes.Kind.COMMITTED:
            request.answer("committed")
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

    # -------------------------------------------------------------- maps

    def _map(self, request: ClientRequest) -> None:
        name, key, key_version, value, value_version = request.arguments
        check_name(name)
        for codec, version in ((key, key_version), (value, value_version)):
            if not 0 < len(codec) <= CODEC_NAME_MAX or not 0 <= version < VERSIONS_END:
                raise not_understood(f"a codec {codec[:CODEC_NAME_MAX]!r} of version {version}")
        made = NamespaceMade(
            name=name,
            key_codec=key,
            key_version=key_version,
            value_codec=value,
            value_version=value_version,
            space=0,
        )

        def done(refused: Exception | None) -> None:
            known = [one for one in self._log.state.namespaces.values() if one.name == name]
            if refused is None and known:
                request.answer(known[0].id)
            else:
                request.fail(refused or UsageError(f"the map {name!r} was dropped meanwhile"))

        self._around.change(made, request.deadline, done)

    def _drop(self, request: ClientRequest) -> None:
        name, number = request.arguments
        change = NamespaceDropped(name=check_name(name))
        self._around.change(
            change, request.deadline, lambda refused: _done(request, refused), number
        )

    def _rename(self, request: ClientRequest) -> None:
        old, new, number = request.arguments
        change = NamespaceRenamed(old=check_name(old), new=check_name(new))
        self._around.change(
            change, request.deadline, lambda refused: _done(request, refused), number
        )


def _too_late(wanted: int, known: int) -> DeadlineError:
    return DeadlineError(
        "the deadline passed before the request was begun: the member that was asked knows "
        f"{known} decisions, and the client {wanted}",
        hint="Look at that member: it does not hear from the others, or has just started. Then try "
        "again.",
    )


def _knows_too_little() -> RoutedError:
    return RoutedError("wait", "this member knows too little of the cluster yet")


def _check_share(writes: Sequence[tuple[int, list[bytes], list[bytes | None]]]) -> None:
    """Raise for more than is carried in one piece, before anything is done that takes long."""
    keys = sum(len(row[1]) for row in writes)
    given = (one for row in writes for column in row[1:] for one in column)
    size = sum(len(one) for one in given if type(one) is bytes)
    if keys > SHARE_KEYS_MAX or (size > SHARE_BYTES_MAX and keys > 1):
        raise TransactionTooLargeError(
            f"a transaction of {keys:,} keys and {size:,} bytes is more than a member of a cluster "
            "of several carries in one piece",
            hint=f"Commit at most {SHARE_KEYS_MAX:,} keys, and {SHARE_BYTES_MAX:,} bytes, at once; "
            "`map.load` does that.",
        )


def _member_of(given: bytes) -> UUID:
    if len(given) != ID_SIZE:
        raise not_understood(f"an id of a member of {len(given)} bytes, not {ID_SIZE}")
    return UUID(bytes=given)


def _about_to_withdraw() -> RoutedError:
    return RoutedError("wait", "the log of this member failed, and others have what it serves")


def _done(request: ClientRequest, refused: Exception | None) -> None:
    if refused is None:
        request.answer(None)
    else:
        request.fail(refused)


RECENT_MAX = 65_536
"""Ids whose commits are known without a look into the log."""

_HANDLERS: Mapping[str, Callable[[Requests, ClientRequest], None]] = {
    "get": Requests._get,
    "scan": Requests._scan,
    "copy": Requests._copy,
    "stale": Requests._stale,
    "commit": Requests._commit,
    "outcome": Requests._outcome,
    "map": Requests._map,
    "drop": Requests._drop,
    "rename": Requests._rename,
    "status": Requests._status,
    "partition": Requests._partition,
    "copies": Requests._copies,
    "exchanges": Requests._exchanges,
    "move": Requests._move,
    "topology": Requests._topology,
    "want": Requests._want,
    "lose": Requests._lose,
    "losses": Requests._losses,
    "policy": Requests._policy,
    "reset": Requests._reset,
}
