"""A client's commit: one record if nobody else has a copy, else prepared, and decided later (T15).

What it writes to several groups is prepared in each of them, by a commit of its own, and ended by
an ``EndCommit`` (T11).

Invariants:

- Which of both it is follows from the ack set at the moment when its numbers are reserved; with
  several groups it is always prepared.
- A prepared commit is answered once: decided, failed, or forsaken with its epoch.
- What becomes of a transaction stands in the stream where it stands in the log.

Left out: what is checked (``commits``), and when everybody has it (``replication.streams``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from typing import NamedTuple

from ...affinity.errors import CommitUnknownError
from ...checkpoints.marks import epoch_of
from ...checkpoints.replay import State
from ...wal.records import (
    AdmitRecord,
    CommitRecord,
    Participant,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    SettledOutcome,
    SettleRecord,
    SuppliedRecord,
    TxRecord,
    encode_record,
)
from ..commit.context import CommitContext
from ..commit.entries import Commit, Entry, Receipt
from ..commit.outcomes import Outcome
from ..data.updates import NoUpdates, Updates
from ..replication.stream import EndRecord
from ..replication.streams import Streams


class GroupPart(NamedTuple):
    """What part a partition has in a transaction, and who else has one."""

    participants: tuple[Participant, ...]
    home: int
    locks: list[tuple[int, bytes]] | None
    """Namespaces and keys that stay as they were read until the outcome is known (T4)."""


class ClientCommit(Commit):
    """A transaction that a client has sent whole, or what it has in one of several groups."""

    __slots__ = ("_attempt", "_near", "_part", "_streams", "record_prepared", "was_forsaken")

    def __init__(
        self,
        updates: Updates,
        streams: Streams,
        near: tuple[bytes, int],
        attempt: int = 1,
        part: GroupPart | None = None,
        **options: object,
    ) -> None:
        """``options`` are those of ``Commit``; ``part`` is None if nobody else takes part."""
        super().__init__(updates, durable=True, **options)  # type: ignore[arg-type]
        self._streams = streams
        self._near = near
        self._attempt = attempt
        self._part = part
        self.record_prepared: PrepareRecord | None = None
        """What is in the log if other copies have to have it, too."""
        self.was_forsaken = False

    @property
    def waits_for_copies(self) -> bool:
        """Whether it is in the log, and is decided or forsaken later."""
        return self.record_prepared is not None and self.error is None

    def _record_of(
        self,
        context: CommitContext,
        namespaces: int | list[int],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
    ) -> bytes:
        runs = self._runs
        part = self._part
        decides_alone = part is None or len(part.participants) == 1
        if decides_alone and self._streams.alone(runs[0]):
            return super()._record_of(context, namespaces, keys, values)
        assert len(runs) == 4, "what is written to several groups is divided before"
        assert self.tx_id is not None
        run = Run(*runs)
        if part is None:
            part = GroupPart(
                (Participant(run.partition, run.epoch, run.count),), run.partition, None
            )
        self.record_prepared = PrepareRecord(
            tx_id=self.tx_id,
            attempt=self._attempt,
            near=self._near,
            time=self._time,
            home=part.home,
            participants=part.participants,
            run=run,
            namespaces=namespaces,
            keys=list(keys),
            values=list(values),
            locks=part.locks,
            details=self.details or {},
        )
        return encode_record(self.record_prepared)

    def apply(self, context: CommitContext, end: int) -> None:
        """Take effect; a prepared one is pending from here on."""
        if self.record_prepared is None:
            super().apply(context, end)
            return
        context.state.apply(end, self.record_prepared)
        stream = self._streams.get(self.record_prepared.run.partition)
        if stream is None or stream.epoch != self.record_prepared.run.epoch:
            self.forsaken()

    def unknown(self, cause: BaseException) -> None:
        """End it after a failed sync."""
        super().unknown(cause)
        self.was_forsaken = True

    def decided(self) -> None:
        """Take it that every copy has it; what writes one group has taken effect by that."""
        if self.was_forsaken:
            return  # its client was told that nobody knows
        self.receipt = Receipt(self.tx_id or b"", 0, self._time, self._runs[0])
        if self.then is not None:
            self.then()

    def forsaken(self) -> None:
        """Take it that the epoch has ended before every copy was known to have it."""
        if self.was_forsaken:
            return
        self.was_forsaken = True
        tx_id = self.tx_id or b""
        self.error = CommitUnknownError(
            f"transaction {tx_id.hex()} was prepared, and its partition has another primary before "
            "all copies were known to have it",
            tx_id=tx_id,
            home=self._runs[0],
        )
        undo, self.undo = self.undo, None  # its group may be on its way still
        if undo is not None:
            undo()


class EndCommit(Commit):
    """The end of a transaction of several groups in one of them, or what is known of such ends.

    It goes into log and stream.  ``make`` returns the record, given its time; ``everywhere`` is
    called once all copies have it.
    """

    __slots__ = ("_everywhere", "_make", "epoch", "partition", "record_ended")

    def __init__(
        self,
        partition: int,
        epoch: int,
        make: Callable[[int], EndRecord],
        everywhere: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(NoUpdates(), durable=True)
        self.partition = partition
        self.epoch = epoch
        self._make = make
        self._everywhere = everywhere
        self.record_ended: EndRecord | None = None
        self.record = self._encoded

    def _encoded(self, time: int) -> bytes:
        self.record_ended = self._make(time)
        return encode_record(self.record_ended)

    @property
    def waits_for_copies(self) -> bool:
        """Whether it is in the log, and is decided or forsaken later."""
        return self.record_ended is not None and self.error is None

    def ended(self) -> list[Record]:
        """Return what is in the log of it."""
        assert self.record_ended is not None
        return [self.record_ended]

    def decided(self) -> None:
        """Take it that every copy has it."""
        self._everywhere()

    def forsaken(self) -> None:
        """Take it that the epoch has ended before: the next author has its record in reports."""


def outcome_of(found: Sequence[Record] | Outcome, tx_id: bytes, home: int, state: State) -> Outcome:
    """Return what became of a transaction, by what the log has about it, in order.

    Only what is about its ``home`` counts: the log has copies of other partitions, too.  A PREPARE
    alone does not tell.  If it is of ``home`` alone it is pending, or has committed, or a newer
    epoch has given its numbers to others (N1).  If it is of several groups its end is in the log
    behind it, maybe behind what was looked at; and if no end is there it was closed (N5).
    """
    if isinstance(found, str):
        return found
    outcome: Outcome = "rolled_back"
    for record in found:
        match record:
            case PrepareRecord() if record.run.partition == home:
                run = record.run
                prepared = state.copies.pending.get(home)
                if prepared is not None and any(one.tx_id == tx_id for one in prepared.all()):
                    return "pending"
                counts = epoch_of(state.epoch_tables[home], run.first) == run.epoch
                alone = len(record.participants) == 1
                outcome = "committed" if counts and alone else "rolled_back"
            case TxRecord():
                outcome = "committed"
            case CommitRecord() if home in record.applied:
                outcome = "committed"
            case AdmitRecord() if record.partition == home:
                outcome = "rolled_back"  # else its supply has it
            case SuppliedRecord() if record.partition == home:
                outcome = "committed"
            case RollbackRecord() if any(run.partition == home for run in record.runs):
                outcome = "rolled_back"
            case SettleRecord() if record.partition == home:
                told = next(one.outcome for one in record.transactions if one.tx_id == tx_id)
                if told is not SettledOutcome.PENDING and record.epoch <= state.epochs[home]:
                    committed = told is SettledOutcome.COMMITTED
                    outcome = "committed" if committed else "rolled_back"
    return outcome


class Undecided:
    """The keys that prepared transactions write, which are in the way of others like a group.

    It stands before a group as if it was an entry of it.
    """

    durable = True
    size = 0
    count = 0
    error: BaseException | None = None
    tx_id: bytes | None = None

    def __init__(self) -> None:
        self._writers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._writers)

    def add(self, commit: Entry) -> None:
        """Take in what a prepared transaction writes."""
        for full_key in commit.full_keys():
            self._writers[full_key] = self._writers.get(full_key, 0) + 1

    def remove(self, commit: Entry) -> None:
        """Let go of what a transaction writes that is decided, or forsaken."""
        for full_key in commit.full_keys():
            left = self._writers.get(full_key, 0) - 1
            if left > 0:
                self._writers[full_key] = left
            else:
                self._writers.pop(full_key, None)

    def prepare(self, context: CommitContext, group: Sequence[Entry], time: int) -> bytes | None:
        """Do nothing: it is not a commit."""
        return None

    def apply(self, context: CommitContext, end: int) -> None:
        """Do nothing."""

    def fail(self, error: BaseException) -> None:
        """Do nothing."""

    def unknown(self, cause: BaseException) -> None:
        """Do nothing."""

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys are written."""
        return keys & self._writers.keys()

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys that are written."""
        return self._writers.keys()

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return nothing: what they write is not asked for."""
        return {}
