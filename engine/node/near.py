"""Transactions of several groups, as the member leads them that a client asked (T1, T3, T7).

    lock what is written -> confirm what is read elsewhere -> prepare -> all have: it has committed

If all that is read lies in partitions that are written, too, each prepares at once, and keeps what
was read locked until the outcome is known (T4).  A pessimistic transaction has locked all of it
already: what it writes becomes commit locks by its first message there (T12).

An example, of a transaction that writes x in p and y in q, and has read z in r:

==================== ===================================== ======================================
step                 messages                              what nobody else can do from then on
==================== ===================================== ======================================
locking              lock x to p, lock y to q; both grant  write x or y, or read them
confirming           confirm z to r: the version is so     (its place in the serial order is here)
preparing            prepare to p and q; both prepared     undo it: the client hears that it is so
decided              decision to p and q                   (x and y can be read again)
==================== ===================================== ======================================

Invariants:

- Nothing here is durable: the outcome is what the groups have said (T6).
- No prepare leaves before every lock is held and every read confirmed (T3).
- A client hears *failed*, or is told to come again, only if no prepare has left, or a group has
  refused; it comes again under another id then.
- Under one id one transaction is on its way here, until its outcome is known.
- What writes one partition alone is prepared by the member that leads it, so a prepare that is on
  its way is never asked about there.

Left out: what a primary answers (``participating``), and transactions whose near member has gone
(``settling``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from ...affinity.errors import CommitUnknownError
from ...affinity.topology import Incarnation, Topology
from ...wal.records import Participant, Run
from ..net.failures import Failure
from .commits import WantedCommit
from .partitions import RoutedError
from .post import Post
from .tx_messages import (
    ConfirmWanted,
    EarlierError,
    GroupOutcome,
    LockWanted,
    PreparedPart,
    PrepareWanted,
    Question,
    ReadKey,
    ReadSpan,
    RefusedPart,
    TooOldPart,
    confirm_message,
    decision_message,
    error_told,
    ids_message,
    lock_message,
    prepare_message,
    question_message,
    unlock_message,
)

STEP_S_MAX = 1.0
"""Seconds that locking, and confirming, may take; then the client comes again."""
QUESTION_PAUSE_S = 0.5
"""Seconds after which a group that has not answered a prepare is asked what became of it."""

HearEnd = Callable[[Exception | None, int, bytes, Sequence[Run]], None]
"""Hears an error, or None and the time of a transaction that has committed, its id in the logs, and
its numbers."""

LedStep = Literal["locking", "confirming", "preparing"]


@dataclass(slots=True)
class _Share:
    """What one partition has of a transaction."""

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    reads: list[ReadKey] = field(default_factory=list)
    ranges: list[ReadSpan] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Led:
    """A transaction that is led here."""

    ask: int
    tx_id: bytes
    wanted: WantedCommit
    home: int
    shares: dict[int, _Share]
    written: dict[int, int]
    """The partitions that it writes, with the epochs in which it does (T2)."""
    deadline: float
    done: HearEnd | None
    """Who hears of it; None once told."""
    step: LedStep
    since: float
    waits: set[int] = field(default_factory=set)
    """The partitions that have not answered."""
    parts: dict[int, PreparedPart] = field(default_factory=dict)


class Near:
    """The transactions that one incarnation leads."""

    def __init__(
        self,
        me: Incarnation,
        post: Post,
        new_id: Callable[[], bytes],
        now: Callable[[], float],
        reached: Callable[[str], None],
    ) -> None:
        self._me = me
        self._post = post
        self._new_id = new_id
        self._now = now
        self._reached = reached
        self._topology = Topology()
        # What answers an earlier start of this member answers nothing that this one has asked.
        self._numbers = count((me.boot << 32) + 1)
        self._by_ask: dict[int, _Led] = {}
        self._by_id: dict[bytes, _Led] = {}
        self._by_client_id: dict[bytes, _Led] = {}
        self.over: Callable[[], object] = lambda: None
        """Called when something has ended that was led here."""

    def __repr__(self) -> str:
        return f"<Near leads {len(self._by_ask)} transactions>"

    def leads(self, tx_id: bytes) -> bool:
        """Tell whether the outcome of a transaction is not known here yet, by its client's id."""
        return tx_id in self._by_client_id

    def asked_over(self, sender: Incarnation, tx_ids: Sequence[bytes]) -> None:
        """Tell which transactions wait for nothing here."""
        over = [tx_id for tx_id in tx_ids if tx_id not in self._by_id]
        if over:
            self._post.tell(sender, ids_message("over", over))

    # -------------------------------------------------------------- begin

    def begin(self, wanted: WantedCommit, home: int, deadline: float, done: HearEnd) -> None:
        """Lead a transaction; ``done`` hears of its end.

        ``RoutedError`` if it names epochs that are over.
        """
        shares = _shares_of(wanted)
        written = {
            partition: self._topology.partitions[partition].epoch
            for partition in sorted(shares)
            if shares[partition].keys
        }
        for partition, epoch in wanted.epochs:
            if written.get(partition, epoch) != epoch:
                raise RoutedError("remap", f"partition {partition} is in epoch {epoch} no more")
        tx = _Led(
            ask=next(self._numbers),
            # Tries under an id of a user have names of their own: its outcome is an entry (T18).
            tx_id=wanted.tx_id if wanted.given is None else self._new_id(),
            wanted=wanted,
            home=home,
            shares=shares,
            written=written,
            deadline=deadline,
            done=done,
            step="locking",
            since=self._now(),
        )
        self._by_ask[tx.ask] = tx
        self._by_id[tx.tx_id] = self._by_client_id[wanted.tx_id] = tx
        if not written:
            self._confirm(tx)
        elif wanted.ranges or len(written) < len(shares):
            self._lock(tx)
        else:
            self._prepare(tx, locked=False)

    def _enter(self, tx: _Led, step: LedStep, waits: Iterable[int]) -> None:
        tx.step, tx.since, tx.waits = step, self._now(), set(waits)

    def _tell(self, partition: int, message: list[object]) -> None:
        self._post.tell(self._topology.partitions[partition].author, message)

    def _asked(self, tx: _Led) -> Iterator[tuple[int, int]]:
        """Yield what a transaction writes, with epochs: what is served here first.

        That answers at once.  If it refuses nobody else is asked, who would lock what no decision
        speaks of any more: that has left before.
        """
        rows = self._topology.partitions
        for row in sorted(tx.written.items(), key=lambda row: rows[row[0]].author != self._me):
            if tx.ask in self._by_ask:
                yield row

    # -------------------------------------------------------------- locking, confirming

    def _lock(self, tx: _Led) -> None:
        self._enter(tx, "locking", tx.written)
        for partition, epoch in self._asked(tx):
            wanted = LockWanted(
                tx.ask, tx.tx_id, tx.wanted.attempt, self._given(tx, partition), partition, epoch,
                tx.shares[partition].keys, tx.wanted.opened,
            )  # fmt: skip
            self._tell(partition, lock_message(wanted))

    def _given(self, tx: _Led, partition: int) -> bytes | None:
        """Return the id that a user gave, for the partition that has its outcome."""
        return tx.wanted.given if partition == tx.home else None

    def locked(self, ask: int, partition: int, failure: Failure | None) -> None:
        """Take the answer to a ``lock``."""
        tx = self._answered(ask, "locking", partition, failure)
        if tx is not None:
            self._reached("tx.after_lock")
            self._confirm(tx)

    def _confirm(self, tx: _Led) -> None:
        others = [partition for partition in sorted(tx.shares) if partition not in tx.written]
        if not others:
            self._prepare(tx, locked=True)
            return
        self._enter(tx, "confirming", others)
        for partition in others:
            share = tx.shares[partition]
            opened = tx.wanted.opened
            wanted = ConfirmWanted(tx.ask, partition, share.reads, share.ranges, opened)
            if tx.ask in self._by_ask:  # else one that is served here was not confirmed
                self._tell(partition, confirm_message(wanted))

    def confirmed(self, ask: int, partition: int, failure: Failure | None) -> None:
        """Take the answer to a ``confirm``."""
        tx = self._answered(ask, "confirming", partition, failure)
        if tx is None:
            return
        self._reached("tx.after_confirm")
        if tx.written:
            self._prepare(tx, locked=True)
        else:
            self._end(tx, None, 0, ())

    def _answered(
        self, ask: int, step: LedStep, partition: int, failure: Failure | None
    ) -> _Led | None:
        """Return the transaction if this was the last answer that it waited for."""
        tx = self._by_ask.get(ask)
        if tx is None or tx.step != step or partition not in tx.waits:
            return None
        if failure is not None:
            self._give_up(tx, error_told(failure))
            return None
        tx.waits.remove(partition)
        return None if tx.waits else tx

    def _give_up(self, tx: _Led, error: Exception) -> None:
        """End a transaction of which no prepare has left."""
        locked: dict[Incarnation, list[int]] = {}
        for partition in tx.written:
            author = self._topology.partitions[partition].author
            locked.setdefault(author, []).append(partition)
        if isinstance(error, EarlierError):
            self._end(tx, None, error.time, ())
        else:
            self._end(tx, error, 0, ())
        for author, partitions in locked.items():
            self._post.tell(author, unlock_message(tx.ask, partitions))

    # -------------------------------------------------------------- preparing

    def _prepare(self, tx: _Led, *, locked: bool) -> None:
        self._enter(tx, "preparing", tx.written)
        participants = tuple(
            Participant(partition, epoch, len(tx.shares[partition].keys))
            for partition, epoch in tx.written.items()
        )
        wanted = tx.wanted
        for partition, epoch in self._asked(tx):
            share = tx.shares[partition]
            written = frozenset(share.keys)
            shared = [one.full_key for one in share.reads if one.full_key not in written]
            prepare = PrepareWanted(
                tx.ask, tx.tx_id, wanted.attempt, self._given(tx, partition), wanted.tag, tx.home,
                participants, locked, partition, epoch, share.keys, share.values, share.reads,
                share.ranges, [] if locked else shared, wanted.opened,
            )  # fmt: skip
            self._tell(partition, prepare_message(prepare))

    def prepared(self, part: PreparedPart) -> None:
        """Take it that a group has prepared its part."""
        tx = self._preparing(part.tx_id, part.attempt, part.run.partition)
        if tx is None:
            return
        tx.waits.remove(part.run.partition)
        tx.parts[part.run.partition] = part
        if tx.waits:
            return
        runs = tuple(tx.parts[partition].run for partition in tx.written)
        time = max(one.time for one in tx.parts.values())
        self._end(tx, None, time, runs)
        self._reached("tx.after_prepared_sent")
        if len(runs) > 1:
            self._decide(tx, GroupOutcome(tx.tx_id, tx.wanted.attempt, runs, time))

    def refused(self, part: RefusedPart) -> None:
        """Take it that a group will never have its part: nobody has."""
        tx = self._preparing(part.tx_id, part.attempt, part.partition)
        if tx is None:
            return
        error: Exception = error_told(part.failure)
        if isinstance(error, EarlierError):
            self._end(tx, None, error.time, ())
        elif isinstance(error, RoutedError):
            self._end(tx, RoutedError("again", str(error), error.hint), 0, ())
        else:
            self._end(tx, error, 0, ())
        self._decide(tx, GroupOutcome(tx.tx_id, tx.wanted.attempt, (), 0))

    def too_old(self, part: TooOldPart) -> None:
        """Take it that a group cannot tell what became of its part: nor can this member."""
        tx = self._preparing(part.tx_id, part.attempt, part.partition)
        if tx is not None:
            self._end(tx, self._unknown(tx), 0, ())

    def _preparing(self, tx_id: bytes, attempt: int, partition: int) -> _Led | None:
        tx = self._by_id.get(tx_id)
        if tx is None or tx.step != "preparing" or partition not in tx.waits:
            return None
        return tx if tx.wanted.attempt == attempt else None

    def _decide(self, tx: _Led, decided: GroupOutcome) -> None:
        """Tell all groups what they have come to."""
        told: dict[Incarnation, list[int]] = {}
        for partition in tx.written:
            told.setdefault(self._topology.partitions[partition].author, []).append(partition)
        for author, partitions in told.items():
            self._post.tell(author, decision_message(decided, partitions))

    def _end(self, tx: _Led, error: Exception | None, time: int, runs: Sequence[Run]) -> None:
        del self._by_ask[tx.ask], self._by_id[tx.tx_id], self._by_client_id[tx.wanted.tx_id]
        self._tell_client(tx, error, time, runs)
        self.over()

    @staticmethod
    def _tell_client(
        tx: _Led, error: Exception | None, time: int = 0, runs: Sequence[Run] = ()
    ) -> None:
        done, tx.done = tx.done, None
        if done is not None:
            done(error, time, tx.tx_id, runs)

    # -------------------------------------------------------------- epochs and time

    def decided(self, topology: Topology) -> None:
        """Give up what has lost its epoch before a prepare has left; ask about what has since."""
        self._topology = topology
        for tx in list(self._by_ask.values()):
            if (tx.tx_id, tx.wanted.attempt) in topology.resolved:
                self._end(tx, self._unknown(tx), 0, ())
                continue
            moved = [p for p, epoch in tx.written.items() if topology.partitions[p].epoch != epoch]
            if tx.step == "preparing" and len(tx.written) > 1:
                self._ask(tx, tx.waits.intersection(moved))
            elif tx.step == "preparing" and moved:
                # What it was to become is in no other group: its next primary knows (T15).
                self._end(tx, self._unknown(tx), 0, ())
            elif moved:
                self._give_up(tx, RoutedError("wait", f"partition {moved[0]} has a new epoch"))

    def tick(self) -> None:
        """Give up what takes too long, or ask; a client whose time is over hears that."""
        now = self._now()
        for tx in list(self._by_ask.values()):
            if tx.step != "preparing":
                if now > tx.since + STEP_S_MAX or now > tx.deadline:
                    told = ", ".join(map(str, sorted(tx.waits)))
                    self._give_up(tx, RoutedError("wait", f"partitions {told} do not answer"))
                continue
            if now > tx.since + QUESTION_PAUSE_S and len(tx.written) > 1:
                tx.since = now
                self._ask(tx, tx.waits)
            if now > tx.deadline:
                self._tell_client(tx, self._unknown(tx))

    def log_failed(self) -> None:
        """Tell clients what is known by now; this member hears nothing more."""
        for tx in list(self._by_ask.values()):
            if tx.step == "preparing":
                self._tell_client(tx, self._unknown(tx))
            else:
                self._give_up(tx, RoutedError("wait", "the log of this member failed"))

    def _ask(self, tx: _Led, partitions: Iterable[int]) -> None:
        near = self._me.member.bytes, self._me.boot
        for partition in sorted(partitions):
            epoch = tx.written[partition]
            question = Question(tx.tx_id, tx.wanted.attempt, near, partition, epoch)
            self._tell(partition, question_message(question))

    @staticmethod
    def _unknown(tx: _Led) -> CommitUnknownError:
        told = ", ".join(map(str, sorted(tx.waits)))
        return CommitUnknownError(
            f"transaction {tx.wanted.tx_id.hex()} was prepared, and partitions {told} have not "
            "said within its time that all of their copies have it",
            tx_id=tx.wanted.tx_id,
            home=tx.home,
        )


def _shares_of(wanted: WantedCommit) -> dict[int, _Share]:
    """Divide a transaction among its partitions."""
    shares: dict[int, _Share] = {}
    for full_key, (partition, _, _, value) in wanted.writes.items():
        share = shares.setdefault(partition, _Share())
        share.keys.append(full_key)
        share.values.append(value)
    for read in wanted.reads:
        row = ReadKey(read.full_key, *read.version)
        shares.setdefault(read.partition, _Share()).reads.append(row)
    for one in wanted.ranges:
        span = ReadSpan(
            one.wanted.namespace, one.wanted.start, one.wanted.stop, one.count, one.digest
        )
        for partition in one.partitions:
            shares.setdefault(partition, _Share()).ranges.append(span)
    return shares
