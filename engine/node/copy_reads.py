"""Reads that a copy answers which is not the primary: confirmed by that (Q3), or stale (Q4).

    compute -> nothing of it is being written here -> ask the primaries -> all say yes -> answer

A *confirmed* read is as new as one at the primary.  What was acknowledged before it began is at
least pending here, since the primary waits for every copy of its set.  So a read that meets nothing
pending has missed nothing, if this copy is of the set still: its primary confirms that, by epoch
and admission, with a lease that is looked at last.  Within an epoch nobody comes back into a set
under the same admission, so who is of it now was of it when the read was computed.

What it shows never vanishes.  A copy applies what is prepared at all copies (COMMIT_UPTO), which
any takeover commits, since it lists some of these copies; and what a list says whose epoch has
opened, which binds everybody after it.  That this copy may lose with its power what it has applied
matters to nobody: the PREPARE is on the disks of all.

A *stale* read asks nobody.  It shows what is applied here at one moment, which is whole
transactions in the order of their numbers: of what is pending it shows nothing, and LWM stands
still below that.

Invariants:

- A question goes out behind everything that rests on it was computed; one is on its way to each
  primary at a time, and what is computed meanwhile goes with the next.
- An answer counts for the question that it names, and for the rows that it repeats.
- Whatever does not come in time is the primary's to answer: ``remap``.

Left out: what is read (``reads``), streams and sets (``groups``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...affinity.errors import TidelogError
from ...affinity.topology import Incarnation
from ...checkpoints.copies import Prepared
from ...wal.records import PrepareRecord, Run
from ..net.frames import FrameError, Message
from ..net.kinds import BY_NAME, BY_NUMBER, MessageKind
from ..replication.following import Following
from ..replication.streams import Streams
from .log import NodeLog
from .outflow import Outflow
from .partitions import Partitions, RoutedError
from .reads import LookedUp, looked_up
from .transactions import Transactions

CONFIRM, CONFIRMED = BY_NAME["confirm-copy"], BY_NAME["copy-confirmed"]

PENDING_S_MAX = 0.1
"""Seconds for which a read waits for the outcome of what it has met."""
CONFIRM_S_MAX = 0.5
"""Seconds in which a primary has to answer."""
WAITING_MAX = 4096
"""Reads that wait for outcomes; of more than that the oldest go to the primary."""


class CopyRequest(Protocol):
    """A request of a client."""

    @property
    def arguments(self) -> list[object]:
        """What it asks for: an operation, and the arguments of that."""

    def answer(self, value: object) -> None:
        """Answer it; ``UsageError`` if the answer is too long."""

    def fail(self, error: Exception) -> None:
        """Answer it with an error."""


class Sets(Protocol):
    """Who knows of the sets and streams of partitions: the replica groups."""

    def followed(self, partition: int) -> Following | None:
        """Return what this copy follows, if it is of the set, in an epoch that is open here."""

    def lists(self, copy: Incarnation, partition: int) -> bool:
        """Tell whether a copy is of the in-sync set of a partition."""


class CopyRow(NamedTuple):
    """A partition as a copy has followed it when it computed a read."""

    partition: int
    epoch: int
    admission: int
    number: int
    """The last item of the stream that it had then."""


@dataclass(slots=True, eq=False)
class _Computed:
    """A read that waits for the word of some primaries."""

    request: CopyRequest
    value: object
    left: int
    """How many primaries have not answered; 0 once it is answered, in whatever way."""


@dataclass(slots=True, eq=False)
class _Questions:
    """What one primary is asked."""

    number: int = 0
    """Of the newest question."""
    until: float = 0.0
    asked: list[tuple[_Computed, list[CopyRow]]] = field(default_factory=list)
    next: list[tuple[_Computed, list[CopyRow]]] = field(default_factory=list)


class _Waiting(NamedTuple):
    until: float
    request: CopyRequest


class CopyReads:
    """The reads that one incarnation answers as a copy, and those that it confirms as primary."""

    def __init__(
        self,
        me: Incarnation,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        sets: Sets,
        outflow: Outflow,
        now: Callable[[], float],
        transactions: Transactions,
    ) -> None:
        self._transactions = transactions
        self._me = me
        self._log = log
        self._partitions = partitions
        self._streams = streams
        self._sets = sets
        self._outflow = outflow
        self._now = now
        self._writing = PendingKeys()
        self._waiting: list[_Waiting] = []
        self._questions: dict[Incarnation, _Questions] = {}
        self._number = 0

    @property
    def waits(self) -> bool:
        """Whether a read waits for what is pending."""
        return len(self._waiting) > 0

    # -------------------------------------------------------------- stale

    def stale(self, request: CopyRequest) -> None:
        """Answer with what is here, and how old that is."""
        found = self._look(request)
        state, partitions = self._log.state, sorted(found.partitions)
        for partition in partitions:
            if not self._log.has_whole(partition):
                coming = self._sets.lists(self._me, partition)
                raise RoutedError(
                    "wait" if coming else "remap", f"there is no copy of partition {partition} here"
                )
        epochs = [state.epochs[partition] for partition in partitions]
        lwms = [state.counters[partition].lwm for partition in partitions]
        request.answer((found.value, partitions, epochs, lwms))

    def _look(self, request: CopyRequest) -> LookedUp:
        operation, arguments = request.arguments
        return looked_up(self._log.state, self._log.overlay.view, operation, arguments)

    # -------------------------------------------------------------- confirmed, at the copy

    def confirmed(self, request: CopyRequest) -> None:
        """Answer once all primaries have confirmed what is read; else the client asks these."""
        self._begin(request, self._now() + PENDING_S_MAX)

    def _begin(self, request: CopyRequest, until: float) -> None:
        if self._log.failure is not None:
            raise self._log.failure  # this copy is about to leave its sets (I6)
        found, state = self._look(request), self._log.state
        rows: dict[Incarnation, list[CopyRow]] = {}
        for partition in sorted(found.partitions):
            following = self._sets.followed(partition)
            if following is None:
                self._partitions.check((partition,), self._now())
                if not self._transactions.locks.idle:
                    raise _not_here("what is served here may be locked")
                continue
            if self._writing.meets(found, partition, state.copies.pending.get(partition)):
                self._waiting.append(_Waiting(until, request))
                self._log.hurry()
                if len(self._waiting) > WAITING_MAX:
                    self._waiting.pop(0).request.fail(_not_here("what is read is being written"))
                return
            place = following.epoch, following.admission, following.durable
            row = CopyRow(partition, *place)
            rows.setdefault(following.author, []).append(row)
        if not rows:
            request.answer(found.value)
            return
        computed = _Computed(request, found.value, len(rows))
        for author, told in rows.items():
            self._questions.setdefault(author, _Questions()).next.append((computed, told))
            self._ask(author)

    def applied(self) -> None:
        """Look again at what waits for outcomes, since some are here."""
        waiting, self._waiting = self._waiting, []
        for until, request in waiting:
            try:
                self._begin(request, until)
            except TidelogError as error:
                request.fail(error)

    def _ask(self, author: Incarnation) -> None:
        questions = self._questions[author]
        if questions.asked or not questions.next:
            return
        questions.asked, questions.next = questions.next, []
        questions.number = self._number = self._number + 1
        questions.until = self._now() + CONFIRM_S_MAX
        rows = dict.fromkeys(row for _, rows in questions.asked for row in rows)
        self._outflow.tell(author.member, _message(CONFIRM, questions.number, rows))

    def _take_answer(self, author: Incarnation, number: int, rows: Iterable[CopyRow]) -> None:
        questions = self._questions.get(author)
        if questions is None or questions.number != number:
            return
        asked, questions.asked = questions.asked, []
        confirmed = set(rows)
        for computed, told in asked:
            _settle(computed, confirmed=confirmed.issuperset(told))
        self._ask(author)

    def tick(self) -> None:
        """Give up what has waited too long."""
        now = self._now()
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.until < now:
                one.request.fail(_not_here("what is read is being written"))
            else:
                self._waiting.append(one)
        for author, questions in list(self._questions.items()):
            if questions.asked and questions.until < now:
                self._take_answer(author, questions.number, ())
            elif not questions.asked:
                del self._questions[author]

    # -------------------------------------------------------------- messages

    def arrived(self, sender: Incarnation, message: Message) -> None:
        """Take what another member asks or answers; ``FrameError`` if that cannot be."""
        kind, number, *columns = message
        try:
            rows = [CopyRow._make(row) for row in zip(*columns, strict=True)]
        except ValueError as error:
            raise FrameError(f"{BY_NUMBER[kind].name}: {error}") from None
        if kind == CONFIRMED.number:
            self._take_answer(sender, number, rows)
            return
        told = [row for row in rows if self._confirms(sender, row)]
        self._outflow.tell(sender.member, _message(CONFIRMED, number, told))

    def _confirms(self, copy: Incarnation, row: CopyRow) -> bool:
        """Tell whether a copy is in the set of a partition that is served here now (L5)."""
        stream = self._streams.get(row.partition)
        if stream is None or stream.epoch != row.epoch:
            return False
        follower = stream.followers.get(copy)
        if follower is None or follower.admission != row.admission:
            return False
        # Locks without a PREPARE are known here only (T12).
        if not self._transactions.participating.copy_may_read(row.partition, row.number):
            return False
        listed = self._sets.lists(copy, row.partition)
        return listed and self._partitions.serves(row.partition, self._now())


def _message(kind: MessageKind, number: int, rows: Collection[CopyRow]) -> Message:
    columns = zip(*rows, strict=True) if rows else [()] * len(CopyRow._fields)
    return kind.message(number, *map(list, columns))


def _settle(computed: _Computed, *, confirmed: bool) -> None:
    """Take the word of one primary about a read."""
    if not computed.left:
        return
    computed.left = computed.left - 1 if confirmed else 0
    if not confirmed:
        computed.request.fail(_not_here("the primary has not confirmed this copy"))
    elif not computed.left:
        try:
            computed.request.answer(computed.value)
        except TidelogError as error:
            computed.request.fail(error)


def _not_here(why: str) -> RoutedError:
    return RoutedError("remap", why)


class PendingKeys:
    """The keys that pending transactions write, made of each of these once."""

    def __init__(self) -> None:
        self._known: dict[int, dict[tuple[bytes, Run], frozenset[tuple[int, bytes]]]] = {}

    def meets(self, found: LookedUp, partition: int, prepared: Prepared | None) -> bool:
        """Tell whether something of what was read is written by what is pending in a partition."""
        before = self._known.pop(partition, {})
        if not prepared:
            return False
        known = self._known[partition] = {
            (one.tx_id, one.run): before.get((one.tx_id, one.run)) or _keys_of(one)
            for one in prepared.all()
            if isinstance(one, PrepareRecord)  # in a member's own fold they all are
        }
        return any(map(found.meets, known.values()))


def _keys_of(prepared: PrepareRecord) -> frozenset[tuple[int, bytes]]:
    names = prepared.namespaces
    each = [names] * len(prepared.keys) if isinstance(names, int) else names
    return frozenset(zip(each, prepared.keys, strict=True))
