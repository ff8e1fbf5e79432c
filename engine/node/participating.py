"""What the primary of a partition does for transactions of several groups (section 8).

    lock -> (others confirm) -> prepare -> PREPARE on every copy -> prepared -> decision -> end

Invariants:

- A part is prepared in the epoch that it names, under locks that were held without a break (T5).
- *Refused* is said only of what is in no log, and never will be.  A part is sent once; of one that
  was asked about before it came that is remembered until it comes, until its near member has gone,
  or the epoch has ended (T8a).
- *Prepared* is said once the PREPARE is on every copy; by a sole copy with a lease only (L5).
- Locks go once the end has taken effect here, or with the epoch; the next author locks again what
  is pending (T10).

Left out: locks and confirms (``commit_locks``), who decides (``near``, ``settling``), and what is
checked (``commits``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from ...affinity.errors import TidelogError
from ...affinity.topology import Incarnation, Topology, incarnation_of
from ...wal.records import CommitRecord, PrepareRecord, RollbackRecord, Run
from ..data.stored import pack_prefix, split_key
from ..data.updates import Writes
from ..replication.stream import EndRecord
from ..replication.streams import Streams
from .commit_locks import AboutToEndError, CommitLocks, share_of
from .commits import commit_of
from .group_locks import GroupLocks, is_locked
from .log import Haste, NodeLog
from .partitions import Partitions, RoutedError
from .post import Post
from .prepared import ClientCommit, EndCommit, GroupPart
from .room import check_room
from .tx_messages import (
    EarlierError,
    GroupOutcome,
    PreparedPart,
    PrepareWanted,
    Question,
    RefusedPart,
    prepared_message,
    refused_message,
    told_failure,
)
from .works import DECISION_TIMEOUT_S, Work, Works, near_of


class Participating:
    """What the partitions that one incarnation serves prepare, and how that ends."""

    def __init__(
        self,
        works: Works,
        commit_locks: CommitLocks,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        locks: GroupLocks,
        post: Post,
        now: Callable[[], float],
    ) -> None:
        self._works = works
        self._commit_locks = commit_locks
        self._log = log
        self._partitions = partitions
        self._streams = streams
        self._locks = locks
        self._post = post
        self._now = now
        self._topology = Topology()
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

    def copy_may_read(self, partition: int, number: int) -> bool:
        """Tell whether a copy that had a stream up to an item has met all locks by that (Q3).

        Locks that are older than their PREPARE are known here only.
        """
        if number < self._locked_upto.get(partition, 0):
            return False
        return not any(
            work.holds_only or (work.phase == "preparing" and work.was_locked)
            for work in self._works.within(partition)
        )

    def lose_locks(self) -> None:
        """Let go of what is locked and not in the log: a snapshot is taken at this instant (Q5).

        What it has confirmed would be before the snapshot, and what it writes behind it.
        """
        works = list(self._works)
        self._commit_locks.let_go()
        for work in works:
            if work.phase == "preparing" and work.run is None:
                work.is_lost = not self._is_logged(work)

    def _is_logged(self, work: Work) -> bool:
        pending = self._log.state.copies.pending.get(work.partition)
        return pending is not None and any(one.tx_id == work.tx_id for one in pending.all())

    # -------------------------------------------------------------- prepares

    def prepare(self, near: Incarnation, wanted: PrepareWanted) -> None:
        """Prepare a part, or refuse it."""
        partition, name = wanted.partition, (wanted.tx_id, wanted.attempt)
        known = self._works.at(partition, wanted.tx_id)
        if known is not None and known.name == name and not known.holds_only:
            known.told.add(near)
            self._tell(known)
            return
        if known is None and self._tell_committed(near, partition, name):
            return
        try:
            self._begin(near, wanted, known)
        except AboutToEndError as ending:
            self._commit_locks.wait(
                ending.owner,
                (near, wanted.ask, partition),
                name,
                lambda: self.prepare(near, wanted),
                lambda: self._refuse(near, partition, name, is_locked()),
            )
        except TidelogError as error:
            if known is not None and (known.near, known.ask) == (near, wanted.ask):
                self._commit_locks.drop(known)
            self._refuse(near, partition, name, error)

    def _begin(self, near: Incarnation, wanted: PrepareWanted, known: Work | None) -> None:
        partition, name = wanted.partition, (wanted.tx_id, wanted.attempt)
        if self._refused.get(partition, {}).pop(name, None) is not None:
            raise RoutedError("again", "it was refused before")
        if known is not None and (known.near, known.ask) != (near, wanted.ask):
            raise RoutedError("again", "an earlier attempt of this transaction is under way")
        self._commit_locks.check(partition, wanted.epoch)
        shared = check_room(self._log, self._streams, (partition,))
        if not wanted.locked:
            owner = self._commit_locks.owner_of(wanted, wanted.shared)
            work = Work(
                partition, wanted.epoch, wanted.tx_id, wanted.attempt, near, wanted.ask, owner,
                frozenset(wanted.keys), "preparing",
            )  # fmt: skip
            self._works.add(work)
        elif known is None or known.phase != "locked":
            raise RoutedError("again", "its locks were let go")
        else:
            work = known
            self._commit_locks.check_unlocked(wanted, work.owner)
            self._works.enter_preparing(work)
        work.participants = wanted.participants
        work.told.add(near)
        self._log.put(self._commit_of(work, wanted), Haste.SHARED if shared else Haste.AT_ONCE)

    def _commit_of(self, work: Work, wanted: PrepareWanted) -> ClientCommit:
        writes: Writes = {}
        for full_key, value in zip(wanted.keys, wanted.values, strict=True):
            writes[full_key] = (*split_key(full_key), value)
        share = share_of(
            wanted.partition, wanted.reads, wanted.ranges, wanted.tx_id, wanted.attempt,
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
            self._commit_locks.drop(work)  # that was its commit
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
            self._commit_locks.drop(work)
            return
        assert isinstance(commit.error, Exception)
        self._end_refused(work, commit.error)

    def _end_refused(self, work: Work, error: Exception) -> None:
        self._commit_locks.drop(work)
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
        work = self._works.at(partition, question.tx_id)
        if work is not None and work.name == name:
            if not work.holds_only:
                work.told.add(asker)
                self._tell(work)
                return
            self._commit_locks.drop(work)
        if self._tell_committed(asker, partition, name):
            return
        near = incarnation_of(*question.near)
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
        self._commit_locks.waits_no_more((decided.tx_id, decided.attempt), partitions)
        for partition in partitions:
            work = self._works.at(partition, decided.tx_id)
            if work is None or work.attempt != decided.attempt or work.decided is not None:
                continue
            if work.holds_only:
                self._commit_locks.drop(work)
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
        commit.then = lambda: self._log.fold(commit.ended(), lambda: self._commit_locks.drop(work))
        commit.undo = partial(self._not_ended, work)
        self._log.put(commit)

    def _not_ended(self, work: Work) -> None:
        """Try again soon: the disk may have had no space."""
        work.phase = "prepared"

    # -------------------------------------------------------------- epochs, members, time

    def sealed(self, partition: int) -> None:
        """Drop what belongs to an older epoch (K2)."""
        for work in self._works.within(partition):
            self._commit_locks.drop(work)
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
            self._works.add(work)

    def decided(self, topology: Topology) -> None:
        """Ask at once about what is prepared and nobody leads any more."""
        self._topology = topology
        for work in self._works:
            if not work.holds_only and not topology.is_present(work.near):
                work.ask_at = min(work.ask_at, self._now())
        for refused in self._refused.values():
            for name, near in list(refused.items()):
                if not topology.is_present(near):
                    del refused[name]

    def tick(self) -> None:
        """End what could not be ended before, and say what has waited for a lease."""
        for work in self._works.prepared():
            if work.decided is not None:
                self._end(work)
        untold, self._untold = self._untold, []
        for work in untold:
            self._tell(work)


def _full_keys(prepared: PrepareRecord) -> Iterator[bytes]:
    names, partition = prepared.namespaces, prepared.run.partition
    each = [names] * len(prepared.keys) if isinstance(names, int) else names
    for number, key in zip(each, prepared.keys, strict=True):
        yield pack_prefix(partition, number) + key
