"""What members do for clients: one function per operation of ``docs/client-protocol.md``.

Invariants:

- A request is answered at once, or behind what it waits for.
- An answer is computed first, then the lease is looked at, then it leaves (L5).
- A client that knows more decisions than this member waits until it knows them, too.

Left out: commits and their outcomes (``committing``), connections (``net.transport``), the log
(``log``), epochs (``partitions``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from ...affinity.errors import DeadlineError, UsageError
from ...affinity.topology import LOSS_POLICIES
from ...wal.records.shapes import ID_SIZE
from ..data.namespaces import check_name
from ..data.stored import pack_prefix
from ..net.connection import Connection
from ..net.frames import Message
from ..net.kinds import BY_NAME
from ..net.operations import check_arguments
from . import reads
from .client_request import ClientRequest
from .commits import check_id, not_understood, places_of
from .committing import Committing
from .copy_reads import CopyReads
from .log import NodeLog
from .partitions import Partitions, RoutedError
from .snapshots import TakenSnapshot
from .transactions import Transactions

REQUEST, CANCEL = BY_NAME["request"], BY_NAME["cancel"]
CODEC_NAME_MAX = 255
VERSIONS_END = 1 << 31
HELD_MAX = 4096
"""Requests that wait for decisions; of more than that the oldest are told to come again."""
HELD_S_MAX = 5.0
"""Seconds that a request waits for decisions before it is told to come again."""
AT_ONCE = frozenset((
    "status", "partition", "copies", "exchanges", "losses", "stale", "topology", "transactions",
    "transaction",
))  # fmt: skip
"""What a member answers for itself, whatever it knows of decisions."""


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
        copy_reads: CopyReads,
        committing: Committing,
        around: Surroundings,
        transactions: Transactions,
    ) -> None:
        self._log = log
        self._locks = transactions.locks
        self._open = transactions.open
        self._snapshots, self._pinning = transactions.snapshots, transactions.pinning
        self._in_doubt, self._history = transactions.in_doubt, transactions.history
        self._copy_reads = copy_reads
        self._committing = committing
        self._partitions = partitions
        self._around = around
        self._held: list[_Held] = []
        self.count = 0
        """Requests that arrived."""

    # -------------------------------------------------------------- what arrives

    def arrived(self, connection: Connection, messages: list[Message]) -> None:
        """Take what a client says, in order."""
        for message in messages:
            if message[0] != REQUEST.number:
                if message[0] == CANCEL.number:  # what is no lock is answered all the same
                    self._open.cancelled(connection, message[1])
                continue
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
        request.carry_out(self._handle)

    def _handle(self, request: ClientRequest) -> None:
        check_arguments(request.operation, request.arguments)
        _HANDLERS[request.operation](self, request)

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
        """Let what waits go on, and give up what waits too long."""
        now = self._around.now
        self._copy_reads.tick()
        self._committing.tick()
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
        if not self._locks.idle:
            full_keys = (
                pack_prefix(place, number) + key for key, place in zip(keys, places, strict=True)
            )
            owner = self._locks.in_way_of(read=full_keys)
            if owner is not None:
                self._partitions.check(set(places), self._around.now)
                self._locks.hold(owner, request, self._handle)
                return
        found = reads.get(self._log.overlay.view, number, keys, places)
        self._partitions.check(set(places), self._around.now)
        request.answer(found)

    def _scan(self, request: ClientRequest) -> None:
        found = reads.scanned(self._log.state, self._log.overlay.view, request.arguments)
        self._partitions.check(found.partitions, self._around.now)
        reverse = bool(request.arguments[4])
        written = self._locks.first_written(found.partitions, found.span(), reverse=reverse)
        if written is None:
            request.answer(found.value)
            return
        key, owner = written
        before = reads.cut(found.value, key, reverse=reverse)
        if before[0]:
            request.answer(before)
        else:
            self._locks.hold(owner, request, self._handle)

    def _copy(self, request: ClientRequest) -> None:
        self._copy_reads.confirmed(request)

    def _stale(self, request: ClientRequest) -> None:
        self._copy_reads.stale(request)

    def _snapshot(self, request: ClientRequest) -> None:
        def done(taken: TakenSnapshot | Exception) -> None:
            if isinstance(taken, Exception):
                request.fail(taken)
                return
            members = [member.member.bytes for member in taken.members]
            request.answer((taken.snapshot, members, [*taken.members.values()], taken.shown))

        self._snapshots.take(request.deadline, done)

    def _pinned(self, request: ClientRequest) -> None:
        snapshot, shown, operation, arguments = request.arguments
        partitions = reads.read_partitions(self._log.state, operation, arguments)
        view = self._pinning.view(snapshot, shown, partitions)
        request.answer(reads.looked_up(self._log.state, view, operation, arguments).value)

    def _unpin(self, request: ClientRequest) -> None:
        self._pinning.unpin(request.arguments[0])
        request.answer(None)

    def _commit(self, request: ClientRequest) -> None:
        self._committing.commit(request)

    def _commit_locked(self, request: ClientRequest) -> None:
        request.opened, *request.arguments = request.arguments
        self._committing.commit(request)

    def _lock(self, request: ClientRequest) -> None:
        self._open.lock(request)

    def _unlock(self, request: ClientRequest) -> None:
        self._open.unlock(request)

    def _outcome(self, request: ClientRequest) -> None:
        self._committing.outcome(request)

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

    def _transactions(self, request: ClientRequest) -> None:
        request.answer(self._in_doubt.told())

    def _transaction(self, request: ClientRequest) -> None:
        tx_id = request.arguments[0]
        check_id(tx_id)

        def done(rows: list[list[Any]] | Exception) -> None:
            if isinstance(rows, Exception):
                request.fail(rows)
            else:
                request.answer({"decided": self._around.decided, "parts": rows})

        self._history.tell(tx_id, done)

    def _resolve(self, request: ClientRequest) -> None:
        tx_id, commits = request.arguments
        check_id(tx_id)
        change = self._in_doubt.change(tx_id, commits=commits)
        self._around.change(change, request.deadline, lambda refused: _done(request, refused))

    def _move(self, request: ClientRequest) -> None:
        partition, member = request.arguments
        if not 0 <= partition < self._log.state.partitions:
            raise not_understood("a partition that is not there")
        self._partitions.check((partition,), self._around.now)
        target = _member_of(member).bytes
        self._around.move(partition, target, lambda refused: _done(request, refused))

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


def _member_of(given: bytes) -> UUID:
    if len(given) != ID_SIZE:
        raise not_understood(f"an id of a member of {len(given)} bytes, not {ID_SIZE}")
    return UUID(bytes=given)


def _done(request: ClientRequest, refused: Exception | None) -> None:
    if refused is None:
        request.answer(None)
    else:
        request.fail(refused)


_HANDLERS: Mapping[str, Callable[[Requests, ClientRequest], None]] = {
    "get": Requests._get,
    "scan": Requests._scan,
    "copy": Requests._copy,
    "stale": Requests._stale,
    "snapshot": Requests._snapshot,
    "pinned": Requests._pinned,
    "unpin": Requests._unpin,
    "commit": Requests._commit,
    "commit-locked": Requests._commit_locked,
    "lock": Requests._lock,
    "unlock": Requests._unlock,
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
    "transactions": Requests._transactions,
    "transaction": Requests._transaction,
    "resolve": Requests._resolve,
}
