"""Locks that commits of several groups take at a primary, and what is confirmed beside them.

    lock -> locked, once no older write of the keys is on its way -> prepare, unlock, or time

What is locked is written, and read, by nobody else until the outcome is known (T12).  What is read
in other partitions is confirmed only: versions are the same, and nobody has a lock there.

Invariants:

- A part has all its locks or none.
- Nobody waits for a lock while it holds others, but behind what has ended and has to be logged
  only: two that are prepared would wait for each other (T4).
- Nothing here is durable: locks without a PREPARE go with the epoch, with their near member, and
  with time.

Left out: who has which keys (``group_locks``, ``plain_locks``), and prepares (``participating``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ...affinity.errors import TidelogError
from ...affinity.topology import Incarnation, Topology
from ..data.scan import Range
from ..data.updates import Writes
from ..net.failures import Failure
from ..replication.streams import Streams
from .commits import ReadRange, ReadVersion, WantedCommit, commit_of, earlier_receipt
from .group_locks import GroupLocks, is_locked
from .log import NodeLog
from .partitions import Partitions, RoutedError
from .plain_locks import PlainLocks
from .post import Post
from .tx_messages import (
    ConfirmWanted,
    EarlierError,
    LockWanted,
    PrepareWanted,
    ReadKey,
    ReadSpan,
    answer_message,
    told_failure,
)
from .works import Work, Works

LOCKED_S_MAX = 3.0
"""Seconds after which locks without a PREPARE are let go: a near member takes less (T16)."""

AskedFor = tuple[Incarnation, int, int]
"""Near member, ask and partition of what was asked for."""


class AboutToEndError(RoutedError):
    """What is in the way has ended, and that has to be logged only: whoever waits holds nothing."""

    def __init__(self, owner: int) -> None:
        super().__init__("wait", "a transaction that is in the way is about to end")
        self.owner = owner


class CommitLocks:
    """The commit locks of all partitions that one incarnation serves."""

    def __init__(
        self,
        works: Works,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        locks: GroupLocks,
        plain: PlainLocks,
        post: Post,
        now: Callable[[], float],
    ) -> None:
        self._works = works
        self._log = log
        self._partitions = partitions
        self._streams = streams
        self._locks = locks
        self._plain = plain
        self._post = post
        self._now = now
        self._waiting: dict[AskedFor, tuple[bytes, int]] = {}
        """What waits for an end that has to be logged only; id and attempt."""

    def __repr__(self) -> str:
        return f"<CommitLocks {len(self._works.holding())} without a PREPARE>"

    # -------------------------------------------------------------- locks

    def lock(self, near: Incarnation, wanted: LockWanted) -> None:
        """Lock keys for a transaction that confirms elsewhere before it is prepared."""
        try:
            work = self._locked(near, wanted)
        except AboutToEndError as ending:
            self.wait(
                ending.owner,
                (near, wanted.ask, wanted.partition),
                (wanted.tx_id, wanted.attempt),
                lambda: self.lock(near, wanted),
                lambda: self._answer(near, wanted.ask, wanted.partition, is_locked()),
            )
            return
        except TidelogError as error:
            self._answer(near, wanted.ask, wanted.partition, error)
            return
        if work.phase == "locked":
            self._answer(near, wanted.ask, wanted.partition, None)

    def _locked(self, near: Incarnation, wanted: LockWanted) -> Work:
        partition = wanted.partition
        self.check(partition, wanted.epoch)
        if self._works.at(partition, wanted.tx_id) is not None:
            raise RoutedError("wait", "an earlier attempt of this transaction is under way")
        if wanted.given is not None:
            self._check_new(wanted.given, wanted.attempt)
        owner = self.owner_of(wanted, ())
        work = Work(
            partition, wanted.epoch, wanted.tx_id, wanted.attempt, near, wanted.ask, owner,
            frozenset(wanted.keys), "locking", self._now() + LOCKED_S_MAX, was_locked=True,
        )  # fmt: skip
        self._works.add(work)
        if not self._is_overtaken(work):
            work.phase = "locked"
        return work

    def check(self, partition: int, epoch: int) -> None:
        """Raise unless a partition is served here, in an epoch, with all its copies."""
        if self._log.failure is not None:
            raise RoutedError("wait", "the log of this member failed")
        self._partitions.check((partition,), self._now())
        self._partitions.check_epochs([(partition, epoch)])
        self._partitions.check_copies((partition,))

    def _check_new(self, given: bytes, attempt: int) -> None:
        context = self._log.context
        receipt = earlier_receipt(given, attempt, context.overlay.view, context)
        if receipt is not None:
            raise EarlierError(receipt.time)

    def owner_of(self, wanted: LockWanted | PrepareWanted, read: Sequence[bytes]) -> int:
        """Take locks for a part, or those that its transaction has already; return their owner.

        Where its outcome alone is written it has some only if it has read there.  If others have
        them that is an error; ``AboutToEndError`` if all of these have only to be logged.
        """
        opened, partition = wanted.opened, wanted.partition
        is_outcome_only = wanted.given is not None and len(wanted.keys) == 1
        if opened is None or (is_outcome_only and not self._plain.has(opened, partition)):
            return self._taken(wanted.keys, read)
        return self._plain.hardened(opened, partition, wanted.keys)

    def _taken(self, written: Sequence[bytes], read: Sequence[bytes]) -> int:
        owner, others = self._locks.take(written, read)
        if owner:
            return owner
        ending = all(map(self._works.is_ending, others))
        raise AboutToEndError(min(others)) if ending else is_locked()

    def wait(
        self,
        owner: int,
        place: AskedFor,
        name: tuple[bytes, int],
        goes_on: Callable[[], object],
        late: Callable[[], object],
    ) -> None:
        """Go on once an owner lets go, unless its near member gives it up, or has gone by then."""

        def once(then: Callable[[], object]) -> None:
            if self._waiting.pop(place, None) is not None:
                then()

        self._waiting[place] = name
        self._locks.wait(owner, partial(once, goes_on), partial(once, late))

    def waits_no_more(self, name: tuple[bytes, int], partitions: Iterable[int]) -> None:
        """Withdraw what waits for a transaction in partitions, without an answer."""
        for place, waiting in list(self._waiting.items()):
            if waiting == name and place[2] in partitions:
                del self._waiting[place]

    def _is_overtaken(self, work: Work) -> bool:
        """Tell whether something older that writes its keys is on its way still.

        What is locked from before it would be read by nobody, and what it overwrites must not come
        between: it would show beside what was confirmed.
        """
        return self._log.held or any(entry.changed(work.keys) for entry in self._log.waiting)

    def advanced(self) -> None:
        """Grant locks that have waited for what was on its way."""
        for work in self._works.holding():
            if work.phase == "locking" and not self._is_overtaken(work):
                work.phase = "locked"
                self._answer(work.near, work.ask, work.partition, None)

    def _answer(self, near: Incarnation, ask: int, partition: int, error: Exception | None) -> None:
        failure = None if error is None else told_failure(error)
        self._post.tell(near, answer_message("locked", ask, partition, failure))

    def unlock(self, near: Incarnation, ask: int, partitions: Iterable[int]) -> None:
        """Let go of locks."""
        for partition in partitions:
            self._waiting.pop((near, ask, partition), None)
            work = self._works.asked(near, ask, partition)
            if work is not None:
                self.drop(work)

    def drop(self, work: Work) -> None:
        """End a work here: nothing of it is to come in this epoch."""
        self._works.remove(work)
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
        self.check_unlocked(wanted)
        share = share_of(partition, wanted.reads, wanted.ranges)
        commit = commit_of(
            share, self._log.context, lambda: None, streams=self._streams, near=(b"", 0)
        )
        assert commit.check is not None
        commit.check(commit, self._log.waiting)
        self._partitions.check((partition,), self._now())

    def check_unlocked(self, wanted: ConfirmWanted | PrepareWanted, owner: int = 0) -> None:
        """Raise if somebody but an owner has locked, or prepared, what was read (T3)."""
        ranges = [((wanted.partition,), _range(span)) for span in wanted.ranges]
        keys = [read.full_key for read in wanted.reads]
        if self._locks.in_way_of(read=keys, ranges=ranges, but={owner}) is not None:
            raise is_locked()

    # -------------------------------------------------------------- members and time

    def decided(self, topology: Topology) -> None:
        """Let go of what nobody leads any more."""
        for place in [one for one in self._waiting if not topology.is_present(one[0])]:
            del self._waiting[place]
        self._drop_if(lambda work: not topology.is_present(work.near))

    def tick(self) -> None:
        """Let go of locks that were held too long."""
        now = self._now()
        self._drop_if(lambda work: work.until < now)

    def let_go(self) -> None:
        """Let go of all locks without a PREPARE."""
        self._drop_if(lambda _work: True)

    def _drop_if(self, is_so: Callable[[Work], bool]) -> None:
        for work in self._works.holding():
            if work.holds_only and is_so(work):
                self.drop(work)


def share_of(
    partition: int,
    reads: Iterable[ReadKey],
    ranges: Iterable[ReadSpan],
    tx_id: bytes = b"",
    attempt: int = 0,
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
