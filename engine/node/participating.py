"""What the primary of a partition does for transactions of several groups (section 8).

    lock -> (others confirm) -> prepare -> PREPARE on every copy -> prepared -> decision -> end

A *work* is what one partition has to do with one transaction:

========== ============================================================= =========================
phase      what holds                                                    it ends by
========== ============================================================= =========================
locking    its keys are locked, an older write of one is on its way      that has been applied
locked     its keys are locked                                           prepare, unlock, time
preparing  its PREPARE is on its way to all copies                       all have it; refused
prepared   all have it, and somebody may have been told so (T6)          a decision
ending     COMMIT or ROLLBACK is on its way into the log                 it has taken effect
========== ============================================================= =========================

Invariants:

- A part is prepared in the epoch that it names, under locks that were held without a break (T5).
- *Refused* is said only of what is in no log, and never will be.  A part is sent once; of one that
  was asked about before it came that is remembered until it comes, until its near member has gone,
  or the epoch has ended (T8a).
- *Prepared* is said once the PREPARE is on every copy; by a sole copy with a lease only (L5).
- Locks go once the end has taken effect here, or with the epoch; the next author locks again what
  is pending (T10).

Left out: who decides (``near``, ``settling``), and what is checked (``commits``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal
from uuid import UUID

from ...affinity.errors import TidelogError
from ...affinity.topology import Incarnation, Topology
from ...wal.records import (
    CommitRecord,
    Participant,
    PrepareRecord,
    RollbackRecord,
    Run,
)
from ..data.scan import Range
from ..data.stored import pack_prefix, split_key
from ..data.updates import Writes
from ..net.failures import Failure
from ..replication.stream import EndRecord
from ..replication.streams import Streams
from .commits import (
    ReadRange,
    ReadVersion,
    WantedCommit,
    commit_of,
    earlier_receipt,
)
from .group_locks import GroupLocks, is_locked
from .log import Haste, NodeLog
from .partitions import Partitions, RoutedError
from .plain_locks import PlainLocks
from .post import Post
from .prepared import ClientCommit, EndCommit, GroupPart
from .room import check_room
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
    answer_message,
    prepared_message,
    refused_message,
    told_failure,
)

LOCKED_S_MAX = 3.0
"""Seconds after which locks without a PREPARE are let go: a near member takes less (T16)."""
DECISION_TIMEOUT_S = 1.0
"""Seconds after which a prepared transaction without a decision is asked about (T10)."""

WorkPhase = Literal["locking", "locked", "preparing", "prepared", "ending"]

_HOLDS_ONLY = frozenset(("locking", "locked"))


class _AboutToEndError(RoutedError):
    """What is in the way has ended, and that has to be logged only: whoever waits holds nothing."""

    def __init__(self, owner: int) -> None:
        super().__init__("wait", "a transaction that is in the way is about to end")
        self.owner = owner


@dataclass(slots=True, eq=False)
class Work:
    """What one partition has to do with one transaction."""

    partition: int
    epoch: int
    """In which it is prepared."""
    tx_id: bytes
    attempt: int
    near: Incarnation
    ask: int
    owner: int
    """Of its locks."""
    keys: frozenset[bytes]
    phase: WorkPhase
    until: float = float("inf")
    """When locks without a PREPARE are let go."""
    was_locked: bool = False
    """Whether its locks are older than its PREPARE (T3)."""
    participants: tuple[Participant, ...] = ()
    run: Run | None = None
    time: int = 0
    is_lost: bool = False
    """Whether a snapshot was taken before its PREPARE was in the log."""
    told: set[Incarnation] = field(default_factory=set)
    """Who is to hear that it is prepared."""
    decided: GroupOutcome | None = None
    answers: dict[int, PreparedPart] = field(default_factory=dict)
    """What other groups have said to this one, by partition."""
    too_old: set[int] = field(default_factory=set)
    """The other partitions that cannot tell what became of it (T9)."""
    ask_at: float = float("inf")
    pause: float = DECISION_TIMEOUT_S

    @property
    def name(self) -> tuple[bytes, int]:
        """Id and attempt."""
        return self.tx_id, self.attempt

    def part(self) -> PreparedPart:
        """Return what is said of it once it is prepared."""
        assert self.run is not None
        return PreparedPart(self.tx_id, self.attempt, self.run, self.time)


class Participating:
    """The works of all partitions that one incarnation serves."""

    def __init__(
        self,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        locks: GroupLocks,
        plain: PlainLocks,
        post: Post,
        now: Callable[[], float],
    ) -> None:
        self._log = log
        self._partitions = partitions
        self._streams = streams
        self._locks = locks
        self._plain = plain
        self._post = post
        self._now = now
        self._topology = Topology()
        self._works: dict[tuple[int, bytes], Work] = {}
        self._asks: dict[tuple[Incarnation, int, int], Work] = {}
        """Those that hold locks only, by near member, ask and partition."""
        self._waiting: dict[tuple[Incarnation, int, int], tuple[bytes, int]] = {}
        """What waits for an end that has to be logged only, by the same; id and attempt."""
        self._untold: list[Work] = []
        """Those whose word waits for a lease, or for the end of a hold (Q5)."""
        self._refused: dict[int, dict[tuple[bytes, int], Incarnation]] = {}
        """What was refused before it came, by partition, and who could send it."""
        self._locked_upto: dict[int, int] = {}
        """The last item of a stream whose locks were older than it (Q3)."""
        self.committed_here: Callable[[int, bytes], object] = lambda _partition, _tx_id: None
        """Hears of commits that all copies of a partition have."""
        self.tells_otherwise: Callable[[Incarnation, Question], bool] = lambda _asker, _asked: False
        """Answers about what is unknown here, if it is not refused by that; tells whether it is."""

    def __repr__(self) -> str:
        return f"<Participating in {len(self._works)} transactions>"

    # -------------------------------------------------------------- what is there

    def prepared(self) -> Iterator[Work]:
        """Yield the works that wait for a decision."""
        return (work for work in list(self._works.values()) if work.phase == "prepared")

    def works_of(self, tx_id: bytes) -> list[Work]:
        """Return what partitions here have to do with a transaction."""
        return [work for (_, known), work in self._works.items() if known == tx_id]

    def has(self, partition: int, tx_id: bytes) -> bool:
        """Tell whether a transaction is under way in a partition."""
        return (partition, tx_id) in self._works

    def copy_may_read(self, partition: int, number: int) -> bool:
        """Tell whether a copy that had a stream up to an item has met all locks by that (Q3).

        Locks that are older than their PREPARE are known here only.
        """
        if number < self._locked_upto.get(partition, 0):
            return False
        return not any(
            work.partition == partition and (work.was_locked or work.phase in _HOLDS_ONLY)
            for work in self._works.values()
            if work.phase in ("locking", "locked", "preparing")
        )

    # -------------------------------------------------------------- locks

    def lock(self, near: Incarnation, wanted: LockWanted) -> None:
        """Lock keys for a transaction that confirms elsewhere before it is prepared."""
        try:
            work = self._locked(near, wanted)
        except _AboutToEndError as ending:
            self._wait(
                ending.owner,
                near,
                wanted,
                lambda: self.lock(near, wanted),
                lambda: self._answer_lock(near, wanted.ask, wanted.partition, is_locked()),
            )
            return
        except TidelogError as error:
            self._answer_lock(near, wanted.ask, wanted.partition, error)
            return
        if work.phase == "locked":
            self._answer_lock(near, wanted.ask, wanted.partition, None)

    def _locked(self, near: Incarnation, wanted: LockWanted) -> Work:
        partition = wanted.partition
        self._check(partition, wanted.epoch)
        if self.has(partition, wanted.tx_id):
            raise RoutedError("wait", "an earlier attempt of this transaction is under way")
        if wanted.given is not None:
            self._check_new(wanted.given, wanted.attempt)
        owner = self._owner_of(wanted, ())
        work = Work(
            partition, wanted.epoch, wanted.tx_id, wanted.attempt, near, wanted.ask, owner,
            frozenset(wanted.keys), "locking", self._now() + LOCKED_S_MAX, was_locked=True,
        )  # fmt: skip
        self._works[partition, work.tx_id] = work
        self._asks[near, work.ask, partition] = work
        if not self._is_overtaken(work):
            work.phase = "locked"
        return work

    def _owner_of(self, wanted: LockWanted | PrepareWanted, read: Sequence[bytes]) -> int:
        """Take locks for a part, or those that its transaction has already; return their owner.

        Where its outcome alone is written it has some only if it has read there.
        """
        opened, partition = wanted.opened, wanted.partition
        is_outcome_only = wanted.given is not None and len(wanted.keys) == 1
        if opened is None or (is_outcome_only and not self._plain.has(opened, partition)):
            return self._taken(wanted.keys, read)
        return self._plain.hardened(opened, partition, wanted.keys)

    def lose_locks(self) -> None:
        """Let go of what is locked and not in the log: a snapshot is taken at this instant (Q5).

        What it has confirmed would be before the snapshot, and what it writes behind it.
        """
        for work in list(self._works.values()):
            if work.phase in _HOLDS_ONLY:
                self._drop(work)
            elif work.phase == "preparing" and work.run is None:
                work.is_lost = not self._is_logged(work)

    def _is_logged(self, work: Work) -> bool:
        pending = self._log.state.copies.pending.get(work.partition)
        return pending is not None and any(one.tx_id == work.tx_id for one in pending.all())

    def _taken(self, written: Sequence[bytes], read: Sequence[bytes]) -> int:
        """Take locks for a new owner, and return that; raises if others have them.

        ``_AboutToEndError`` if all of these have come to an end that only has to be logged.
        """
        owner, others = self._locks.take(written, read)
        if owner:
            return owner
        ending = {work.owner for work in self._works.values() if work.phase == "ending"}
        raise _AboutToEndError(min(others)) if others <= ending else is_locked()

    def _wait(
        self,
        owner: int,
        near: Incarnation,
        wanted: LockWanted | PrepareWanted,
        goes_on: Callable[[], object],
        late: Callable[[], object],
    ) -> None:
        """Go on once an owner lets go, unless its near member gives it up, or has gone by then."""
        name = near, wanted.ask, wanted.partition

        def once(then: Callable[[], object]) -> None:
            if self._waiting.pop(name, None) is not None:
                then()

        self._waiting[name] = wanted.tx_id, wanted.attempt
        self._locks.wait(owner, partial(once, goes_on), partial(once, late))

    def _check_new(self, given: bytes, attempt: int) -> None:
        context = self._log.context
        receipt = earlier_receipt(given, attempt, context.overlay.view, context)
        if receipt is not None:
            raise EarlierError(receipt.time)

    def _is_overtaken(self, work: Work) -> bool:
        """Tell whether something older that writes its keys is on its way still.

        What is locked from before it would be read by nobody, and what it overwrites must not come
        between: it would show beside what was confirmed.
        """
        return self._log.held or any(entry.changed(work.keys) for entry in self._log.waiting)

    def advanced(self) -> None:
        """Grant locks that have waited for what was on its way."""
        for work in [work for work in self._asks.values() if work.phase == "locking"]:
            if not self._is_overtaken(work):
                work.phase = "locked"
                self._answer_lock(work.near, work.ask, work.partition, None)

    def _answer_lock(
        self, near: Incarnation, ask: int, partition: int, error: Exception | None
    ) -> None:
        failure = None if error is None else told_failure(error)
        self._post.tell(near, answer_message("locked", ask, partition, failure))

    def unlock(self, near: Incarnation, ask: int, partitions: list[int]) -> None:
        """Let go of locks."""
        for partition in partitions:
            self._waiting.pop((near, ask, partition), None)
            work = self._asks.get((near, ask, partition))
            if work is not None:
                self._drop(work)

    def _drop(self, work: Work) -> None:
        """End a work here: nothing of it is to come in this epoch."""
        self._asks.pop((work.near, work.ask, work.partition), None)
        if self._works.get((work.partition, work.tx_id)) is work:
            del self._works[work.partition, work.tx_id]
        self._locks.release(work.owner)

    # -------------------------------------------------------------- confirms

    def confirm(self, near: Incarnation, wanted: ConfirmWanted) -> None:
        """Tell whether what was read is so still, and nobody is about to change it (T3)."""
        failure: Failure | None = None
        try:
            self._confirm(wanted)
        except TidelogError as error:
            failure = told_failure(error)
        message = answer_message("confirmed", wanted.ask, wanted.partition, failure)
        self._post.tell(near, message)

    def _confirm(self, wanted: ConfirmWanted) -> None:
        partition = wanted.partition
        self._partitions.check((partition,), self._now())
        self._plain.owners(wanted.opened, (partition,))
        self._check_unlocked(wanted)
        share = _share(partition, b"", 0, wanted.reads, wanted.ranges)
        commit = commit_of(
            share, self._log.context, lambda: None, streams=self._streams, near=(b"", 0)
        )
        assert commit.check is not None
        commit.check(commit, self._log.waiting)
        self._partitions.check((partition,), self._now())

    def _check_unlocked(self, wanted: ConfirmWanted | PrepareWanted, owner: int = 0) -> None:
        """Raise if somebody but an owner has locked, or prepared, what was read (T3)."""
        ranges = [((wanted.partition,), _range(span)) for span in wanted.ranges]
        keys = [read.full_key for read in wanted.reads]
        if self._locks.in_way_of(read=keys, ranges=ranges, but={owner}) is not None:
            raise is_locked()

    # -------------------------------------------------------------- prepares

    def prepare(self, near: Incarnation, wanted: PrepareWanted) -> None:
        """Prepare a part, or refuse it."""
        partition, name = wanted.partition, (wanted.tx_id, wanted.attempt)
        known = self._works.get((partition, wanted.tx_id))
        if known is not None and known.name == name and known.phase not in _HOLDS_ONLY:
            known.told.add(near)
            self._tell(known)
            return
        if known is None and self._tell_committed(near, partition, name):
            return
        try:
            self._begin(near, wanted, known)
        except _AboutToEndError as ending:
            self._wait(
                ending.owner,
                near,
                wanted,
                lambda: self.prepare(near, wanted),
                lambda: self._refuse(near, partition, name, is_locked()),
            )
        except TidelogError as error:
            if known is not None and (known.near, known.ask) == (near, wanted.ask):
                self._drop(known)
            self._refuse(near, partition, name, error)

    def _begin(self, near: Incarnation, wanted: PrepareWanted, known: Work | None) -> None:
        partition, name = wanted.partition, (wanted.tx_id, wanted.attempt)
        if self._refused.get(partition, {}).pop(name, None) is not None:
            raise RoutedError("again", "it was refused before")
        if known is not None and (known.near, known.ask) != (near, wanted.ask):
            raise RoutedError("again", "an earlier attempt of this transaction is under way")
        self._check(partition, wanted.epoch)
        shared = check_room(self._log, self._streams, (partition,))
        if wanted.locked:
            if known is None or known.phase != "locked":
                raise RoutedError("again", "its locks were let go")
            work = known
            self._check_unlocked(wanted, work.owner)
        else:
            owner = self._owner_of(wanted, wanted.shared)
            work = Work(
                partition, wanted.epoch, wanted.tx_id, wanted.attempt, near, wanted.ask, owner,
                frozenset(wanted.keys), "preparing",
            )  # fmt: skip
        work.participants = wanted.participants
        work.phase, work.until = "preparing", float("inf")
        work.told.add(near)
        self._asks.pop((near, wanted.ask, partition), None)
        self._works[partition, work.tx_id] = work
        self._log.put(self._commit_of(work, wanted), Haste.SHARED if shared else Haste.AT_ONCE)

    def _commit_of(self, work: Work, wanted: PrepareWanted) -> ClientCommit:
        writes: Writes = {}
        for full_key, value in zip(wanted.keys, wanted.values, strict=True):
            writes[full_key] = (*split_key(full_key), value)
        share = _share(
            wanted.partition, wanted.tx_id, wanted.attempt, wanted.reads, wanted.ranges,
            writes, wanted.given, wanted.tag, ((wanted.partition, wanted.epoch),),
        )  # fmt: skip
        locks = [split_key(key)[1:] for key in wanted.shared]
        commit = commit_of(
            share,
            self._log.context,
            lambda: None,
            streams=self._streams,
            near=(work.near.member.bytes, work.near.boot),
            part=GroupPart(wanted.participants, wanted.home, locks or None),
            check_epochs=partial(self._check_prepare, work),
        )
        commit.then = partial(self._is_prepared, work, commit)
        commit.undo = partial(self._not_prepared, work, commit)
        return commit

    def _check_prepare(self, work: Work, epochs: Iterable[tuple[int, int]]) -> None:
        self._partitions.check_writable(epochs)
        if work.is_lost:
            raise RoutedError("again", "a snapshot was taken before it was prepared")

    def _check(self, partition: int, epoch: int) -> None:
        if self._log.failure is not None:
            raise RoutedError("wait", "the log of this member failed")
        self._partitions.check((partition,), self._now())
        self._partitions.check_epochs([(partition, epoch)])
        self._partitions.check_copies((partition,))

    def _is_prepared(self, work: Work, commit: ClientCommit) -> None:
        """Take it that a part is on every copy, or that its id has committed before."""
        if not commit.runs:
            assert commit.receipt is not None
            self._end_refused(work, EarlierError(commit.receipt.time))
            return
        work.run, work.time = Run(*commit.runs[:4]), commit.time
        stream = self._streams.get(work.partition)
        if work.was_locked and stream is not None:
            self._locked_upto[work.partition] = stream.prepared
        work.phase = "prepared"
        if len(work.participants) == 1:
            self._drop(work)  # that was its commit
        elif work.decided is not None:
            self._end(work)
        else:
            work.ask_at = self._now() + DECISION_TIMEOUT_S
        self._tell(work)

    def _tell(self, work: Work) -> None:
        """Say that a part is prepared, to whoever wants to hear it."""
        if work.run is None or not work.told:
            return
        partition = work.partition
        sole = self._streams.counts_alone(partition)
        lacks = sole and not self._partitions.serves(partition, self._now())
        if lacks or self._log.held:
            if work not in self._untold:
                self._untold.append(work)
            return
        told, work.told = work.told, set()
        for one in sorted(told):
            self._post.tell(one, prepared_message(work.part()))

    def _not_prepared(self, work: Work, commit: ClientCommit) -> None:
        """Take it that a part was refused, or that nobody knows, since its epoch has ended."""
        if commit.was_forsaken or self._log.failure is not None:
            self._drop(work)
            return
        assert isinstance(commit.error, Exception)
        self._end_refused(work, commit.error)

    def _end_refused(self, work: Work, error: Exception) -> None:
        self._drop(work)
        for one in sorted(work.told):
            self._refuse(one, work.partition, work.name, error)

    def _refuse(
        self, to: Incarnation, partition: int, name: tuple[bytes, int], error: Exception
    ) -> None:
        """Say that a part is in no log, and never will be (T8a)."""
        part = RefusedPart(*name, partition, told_failure(error))
        self._post.tell(to, refused_message(part))

    # -------------------------------------------------------------- questions

    def question(self, asker: Incarnation, question: Question) -> None:
        """Answer what became of a part, if this is who speaks for its group (T9)."""
        partition, state = question.partition, self._log.state
        if self._log.failure is not None:
            return  # what was on its way may be in the log, or at a copy (T8)
        if partition >= state.partitions or not self._partitions.serves(partition, self._now()):
            return
        if state.epochs[partition] < question.epoch:
            return
        name = question.tx_id, question.attempt
        work = self._works.get((partition, question.tx_id))
        if work is not None and work.name == name:
            if work.phase not in _HOLDS_ONLY:
                work.told.add(asker)
                self._tell(work)
                return
            self._drop(work)
        if self._tell_committed(asker, partition, name):
            return
        member, boot = question.near
        near = Incarnation(UUID(bytes=member), boot)
        if state.epochs[partition] == question.epoch and self._topology.is_present(near):
            self._refused.setdefault(partition, {})[name] = near
        if not self.tells_otherwise(asker, question):
            self._refuse(asker, partition, name, RoutedError("again", "it is not known here"))

    def _tell_committed(self, to: Incarnation, partition: int, name: tuple[bytes, int]) -> bool:
        """Say that a part was prepared, if its transaction has committed; tell whether it has.

        During a hold nothing is said: it is asked again (Q5).
        """
        known = self._log.state.copies.remembered.get(partition, {}).get(name[0])
        if known is None or known.attempt != name[1]:
            return False
        if self._log.held:
            return True
        self._post.tell(to, prepared_message(PreparedPart(*name, known.run, known.time)))
        return True

    # -------------------------------------------------------------- decisions

    def decision(self, decided: GroupOutcome, partitions: list[int]) -> None:
        """Take what a transaction has come to."""
        for name, known in list(self._waiting.items()):
            if known == (decided.tx_id, decided.attempt) and name[2] in partitions:
                del self._waiting[name]
        for partition in partitions:
            work = self._works.get((partition, decided.tx_id))
            if work is None or work.attempt != decided.attempt or work.decided is not None:
                continue
            if work.phase in _HOLDS_ONLY:
                self._drop(work)
            else:
                self.end(work, decided)

    def end(self, work: Work, decided: GroupOutcome) -> None:
        """Let a prepared part take effect, or not; once it is prepared, if it is not yet."""
        work.decided = decided
        if work.phase == "prepared":
            self._end(work)

    def _end(self, work: Work) -> None:
        partition, decided, run = work.partition, work.decided, work.run
        assert decided is not None
        assert run is not None
        failed, held = self._log.failure is not None, self._log.held
        if failed or held or not self._partitions.is_open(partition):
            return
        work.phase = "ending"

        def make(time: int) -> EndRecord:
            if not decided.commits:
                return RollbackRecord(
                    tx_id=work.tx_id, time=time, reason="refused", runs=(run,),
                    attempt=work.attempt,
                )  # fmt: skip
            return CommitRecord(
                tx_id=work.tx_id,
                attempt=work.attempt,
                time=decided.time,
                participants=decided.runs,
                applied=(partition,),
            )

        def everywhere() -> None:
            if decided.commits:
                self.committed_here(partition, work.tx_id)

        commit = EndCommit(partition, self._partitions.epoch(partition), make, everywhere)
        commit.then = lambda: self._log.fold(commit.ended(), lambda: self._drop(work))
        commit.undo = partial(self._not_ended, work)
        self._log.put(commit)

    def _not_ended(self, work: Work) -> None:
        """Try again soon: the disk may have had no space."""
        work.phase = "prepared"

    # -------------------------------------------------------------- epochs, members, time

    def sealed(self, partition: int) -> None:
        """Drop what belongs to an older epoch (K2)."""
        for work in [work for work in self._works.values() if work.partition == partition]:
            self._drop(work)
        self._untold = [work for work in self._untold if work.partition != partition]
        self._refused.pop(partition, None)
        self._locked_upto.pop(partition, None)

    def opened(self, partition: int) -> None:
        """Lock again what is pending in a partition that is served from now on."""
        pending = self._log.state.copies.pending.get(partition)
        for one in pending.all() if pending is not None else ():
            if not isinstance(one, PrepareRecord) or len(one.participants) == 1:
                continue
            keys = frozenset(_full_keys(one))
            shared = [pack_prefix(partition, number) + key for number, key in one.locks or ()]
            owner, _ = self._locks.take(keys, shared)
            assert owner, "two transactions are pending at one key"
            epoch = next(row.epoch for row in one.participants if row.partition == partition)
            work = Work(
                partition, epoch, one.tx_id, one.attempt, near_of(one), 0, owner, keys, "prepared",
                participants=one.participants, run=one.run, time=one.time,
                ask_at=self._now() + DECISION_TIMEOUT_S,
            )  # fmt: skip
            self._works[partition, one.tx_id] = work

    def decided(self, topology: Topology) -> None:
        """Let go of what nobody leads any more; what is prepared is asked about at once."""
        self._topology = topology
        for place in [one for one in self._waiting if not topology.is_present(one[0])]:
            del self._waiting[place]  # what was refused meanwhile is forgotten below (T8a)
        for work in list(self._works.values()):
            if topology.is_present(work.near):
                continue
            if work.phase in _HOLDS_ONLY:
                self._drop(work)
            else:
                work.ask_at = min(work.ask_at, self._now())
        for refused in self._refused.values():
            for name, near in list(refused.items()):
                if not topology.is_present(near):
                    del refused[name]

    def tick(self) -> None:
        """Let go of locks that were held too long, and say what has waited for a lease."""
        now = self._now()
        for work in [work for work in self._asks.values() if work.until < now]:
            self._drop(work)
        for work in self.prepared():
            if work.decided is not None:
                self._end(work)
        untold, self._untold = self._untold, []
        for work in untold:
            self._tell(work)


def _share(
    partition: int,
    tx_id: bytes,
    attempt: int,
    reads: list[ReadKey],
    ranges: list[ReadSpan],
    writes: Writes | None = None,
    given: bytes | None = None,
    tag: str | None = None,
    epochs: tuple[tuple[int, int], ...] = (),
) -> WantedCommit:
    """Return what one partition has of a commit."""
    return WantedCommit(
        tx_id=tx_id,
        attempt=attempt,
        given=given,
        tag=tag,
        reads=tuple(ReadVersion(partition, key, (epoch, number)) for key, epoch, number in reads),
        ranges=tuple(
            ReadRange(
                partitions=(partition,), wanted=_range(span), count=span.count, digest=span.digest
            )
            for span in ranges
        ),
        writes=writes or {},
        epochs=epochs,
    )


def _range(span: ReadSpan) -> Range:
    return Range(namespace=span.namespace, start=span.low, stop=span.high)


def near_of(prepared: PrepareRecord) -> Incarnation:
    """Return the incarnation that led a transaction."""
    member, boot = prepared.near
    return Incarnation(UUID(bytes=member), boot)


def _full_keys(prepared: PrepareRecord) -> Iterator[bytes]:
    names, partition = prepared.namespaces, prepared.run.partition
    each = [names] * len(prepared.keys) if isinstance(names, int) else names
    for number, key in zip(each, prepared.keys, strict=True):
        yield pack_prefix(partition, number) + key
