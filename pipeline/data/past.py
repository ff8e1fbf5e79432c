"""The data of a store at an older cut than its newest: the data file under a part of its log.

The option ``asOf`` names the cut, in the end as numbers by partition: of each key the newest
version at or below them is shown.  What the data file shows already has to lie below the cut, for
of what it replaced it knows nothing.

An example with two partitions, and a checkpoint that has number 2 of partition 0 and number 1 of
partition 1.  The data file shows a=1, b=1 and x=1; the log goes on behind it::

    09:00  partition 0, number 1: a=1      in the data file
    09:01  partition 0, number 2: b=1      in the data file
           partition 1, number 1: x=1      in the data file
    09:02  partition 0, number 3: a=2      one transaction
           partition 1, number 2: x=2
    09:05  partition 0, number 4: b is deleted

======================= ============= ============================================================
``asOf``                numbers       shown
======================= ============= ============================================================
the checkpoint's id     0: 2, 1: 1    a=1, b=1, x=1
09:04                   0: 3, 1: 2    a=2, b=1, x=2
``{"0": 3}``            0: 3, 1: 2    the same: of a partition that is not named, the newest
``{"0": 3, "1": 1}``    0: 2, 1: 1    a=1, b=1, x=1: the numbers split a transaction, so they are
                                      lowered until none is (with ``consistency=partition`` they
                                      stay, and a=2 is shown beside x=1)
``{"0": 1}``            refused       ``SnapshotExpiredError``: the data file has number 2 already,
                                      and cannot tell whether there was a *b* before
======================= ============= ============================================================

Invariants:

- Whatever cannot be shown as it was is a ``SnapshotExpiredError``: a partition whose data file is
  newer, even by a part of a checkpoint, and a map that was there and whose rows have been removed.
- A vector ends where its last number moved.  Maps have the names that they had there, and one that
  is dropped behind it is there.  A time has all that was committed or dropped by then; names count
  with the number that follows, or if none does, as they are now.
- The rows of a load count from their numbers on, under the first name that their map gets.

Left out: what a newest cut shows (``snapshots``), and archives, which have cuts of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace

from ...affinity.errors import HistoryTruncatedError, SnapshotExpiredError, UsageError
from ...checkpoints.marks import PartitionMark
from ...checkpoints.replay import FIRST_NAMESPACE, Applied, State
from ...engine.data.overlay import Layer, View
from ...engine.data.partition_store import read_state
from ...engine.files.recovery import take_over
from ...engine.store.access import ReadAccess
from ...engine.store.options import Options
from ...engine.system.environment import KvTransaction
from ...engine.system.production import production
from ...wal.reader import read_records
from ...wal.records import (
    DropNamespaceRecord,
    NamespaceRecord,
    NumberedRecord,
    TxRecord,
)
from ..base import vectors
from ..base.times import text_of, time_of
from ..log.logs import Cut, Log, check_partitions

_ARCHIVE = (
    "An archive has older data, if `tidelog spark compact` ran before that part of the log was "
    "dropped."
)

Numbers = list[int]
"""Update numbers by partition."""

Parts = dict[int, tuple[int, int]]
"""First and last number of a transaction, by partition."""

Told = NamespaceRecord | DropNamespaceRecord | NumberedRecord
"""What the log behind a cut tells about maps, and what ends that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A cut of a store, as its tasks need it: the last number of each of their partitions.

    The log has no such number at or behind ``stop``.  ``durable`` is how much of the log the data
    file had seen when the read was planned.
    """

    numbers: Mapping[int, int]
    stop: int
    durable: int

    def of(self, partitions: Sequence[int]) -> Past:
        """Return the same for some partitions."""
        return replace(self, numbers={p: self.numbers[p] for p in partitions})

    @contextmanager
    def view(self, path: str) -> Iterator[tuple[View, int]]:
        """Open a store for a block; return how it was, and where its log ends now."""
        log = Log(path)
        with _data_file(path) as txn:
            state, _ = _marked(log, txn)
            if state.durable != self.durable:
                raise SnapshotExpiredError(
                    f"the data file of {path} was written since the read was planned",
                    hint="Read a hot copy: `tidelog db backup STORE DIR`.",
                )
            end = log.durable_end(state.durable)
            view = View((Layer(),), txn)
            if state.position < self.stop:
                for _, record in read_records(log.between(state.position, self.stop)):
                    if isinstance(record, TxRecord):
                        take_over(view, self._wanted(record))
            yield view, end

    def _wanted(self, record: TxRecord) -> Iterator[Applied]:
        """Yield what lies at or below the cut of each run."""
        for run, columns in zip(record.runs, record.columns(), strict=True):
            count = min(run.count, self.numbers.get(run.partition, 0) - run.first + 1)
            if count > 0:
                wanted = run._replace(count=count)
                yield Applied(wanted, record.time, columns.between(0, count), late=False)


@contextmanager
def _data_file(path: str) -> Iterator[KvTransaction]:
    access = ReadAccess(production(), path, Options().map_size)
    try:
        yield access.kv.begin()
    finally:
        access.close()


def _marked(log: Log, txn: KvTransaction) -> tuple[State, dict[int, PartitionMark]]:
    """Return what the data file says about itself, in all and by partition."""
    manifest = log.source.manifest
    assert manifest is not None, "folders of segments are refused before"
    return read_state(txn, log.store_id, manifest.spaces, log.path)


# ---------------------------------------------------------------------------------------- planning


def cut_as_of(log: Log, newest: Cut, text: str, *, whole: bool) -> tuple[Cut, Past]:
    """Return the cut that ``asOf`` names, with the maps that were there; ``newest`` is that of now.

    ``text`` is the id of a checkpoint, the JSON of a vector, or a time.  ``whole``: the greatest
    cut at or below it that splits no transaction.  Raises ``SnapshotExpiredError`` for what cannot
    be shown any more, ``UsageError`` for what the store has not reached.
    """
    base = _base(log, newest)
    time = None
    if text.isdecimal():
        cut, numbers = base.at_checkpoint(text)
    elif text.startswith("{"):
        numbers = _given(log, newest, text)
        base.check(numbers)
        if whole:
            numbers = base.closed(numbers)
            base.check(numbers)
        cut = log.at({p: (0, number) for p, number in enumerate(numbers)})
        base.check_known(cut)
    else:
        time = time_of(text)
        cut = base.until(time)
        numbers = [counter.lwm for counter in cut.state.counters]
        base.check(numbers)
    maps = base.maps(cut, time)
    state = copy(newest.state)
    state.namespaces = maps
    names = {number: record.name for number, record in maps.items()}
    past = Past(numbers=dict(enumerate(numbers)), stop=cut.position, durable=base.state.durable)
    return Cut(position=newest.position, state=state, names=names), past


def _given(log: Log, newest: Cut, text: str) -> Numbers:
    """Return the numbers of a vector; if it has none, the newest."""
    wanted = vectors.given(text, log.store_id, log.history_id)
    counters = newest.state.counters
    check_partitions(log.path, wanted, range(len(counters)))
    newest.check_reaches(wanted, log.path)
    return [wanted.get(p, (0, counter.lwm))[1] for p, counter in enumerate(counters)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """The data file of a store, and what the log behind its checkpoint says."""

    log: Log
    newest: Cut
    state: State
    """That of the checkpoint; of partitions that a later one has reached, that of there."""
    seen: Numbers
    """The last number of each partition that the data file may show."""
    ahead: dict[int, int]
    """Where a later checkpoint has reached a partition, its first number since this one."""
    transactions: list[Parts]
    """Those of several updates, in the order of the log."""

    def check(self, numbers: Numbers) -> None:
        """Raise ``SnapshotExpiredError`` if the data file shows more than some numbers."""
        for partition, (seen, wanted) in enumerate(zip(self.seen, numbers, strict=True)):
            if wanted < seen:
                raise SnapshotExpiredError(
                    f"{self.log.path} has no data as of number {wanted} of partition {partition} "
                    f"any more: its checkpoint is at {seen}, the earliest one that can be read",
                    hint=_ARCHIVE,
                )

    def closed(self, numbers: Numbers) -> Numbers:
        """Lower numbers until no transaction has updates on both sides.

        Those that the data file has are below the numbers, all of them.
        """
        found = list(numbers)
        changed = True
        while changed:
            changed = False
            for parts in self.transactions:
                if any(last > found[p] for p, (_, last) in parts.items()):
                    for partition, (first, _) in parts.items():
                        if first <= found[partition]:
                            found[partition] = first - 1
                            changed = True
        return found

    def at_checkpoint(self, text: str) -> tuple[Cut, Numbers]:
        """Return the cut of the checkpoint, if that is its id."""
        state = self.state
        if int(text) != state.position:
            raise SnapshotExpiredError(
                f"{self.log.path} has no checkpoint {text}: its data file is that of checkpoint "
                f"{state.position}, the only one there is",
                hint="The column checkpoint_id of the view meta has its id.",
            )
        numbers = [
            self.ahead.get(p, counter.highest_applied + 1) - 1
            for p, counter in enumerate(state.counters)
        ]
        self.check(numbers)
        return Cut(position=state.position, state=state, names={}), numbers

    def until(self, time: int) -> Cut:
        """Return the highest cut below which all was committed by a time."""
        log, newest = self.log, self.newest.state.time
        manifest = log.source.manifest
        if manifest is not None and manifest.copied and time > newest:
            raise UsageError(
                f"{log.path} is a copy, which ends at {text_of(newest)}, but {text_of(time)} was "
                "asked for: the store may have gone on",
                hint="Read a newer copy, or the store.",
            )
        try:
            return log.until(time + 1)
        except HistoryTruncatedError as error:
            earliest = max(self.state.time, log.earliest().state.time)
            raise SnapshotExpiredError(
                f"{log.path} has no data as of {text_of(time)} any more: its checkpoint is at "
                f"{text_of(earliest)}, the earliest time that can be read",
                hint=_ARCHIVE,
            ) from error.__cause__

    # ------------------------------------------------------------------ maps

    def maps(self, cut: Cut, time: int | None) -> dict[int, NamespaceRecord]:
        """Return the maps of a cut under the names that they had; all their rows are there."""
        found, dropped = self._behind(cut, time)
        for number, position in dropped.items():
            if number in found and any(done > position for done in self.state.replay_from):
                raise self._without(f"map {found[number].name!r}, which was dropped")
        if len({record.name for record in found.values()}) < len(found):
            raise self._without("one of two maps that had one name, one after the other")
        return found

    def _behind(
        self, cut: Cut, time: int | None
    ) -> tuple[dict[int, NamespaceRecord], dict[int, int]]:
        """Return the maps of a cut, and where in the log behind it maps are dropped.

        A map that was hidden at the cut is there under its first name, whenever it gets that.
        """
        behind = self._told(cut.position)
        counted = 0 if time is None else counted_with(time, [record for _, record in behind])
        known = cut.state.namespaces
        found = {number: record for number, record in known.items() if not record.hidden}
        dropped: dict[int, int] = {}
        for place, (position, record) in enumerate(behind):
            if isinstance(record, DropNamespaceRecord):
                dropped.setdefault(record.id, position)
                if place < counted:
                    found.pop(record.id, None)
            elif isinstance(record, NamespaceRecord):
                if record.id in known and known[record.id].hidden:
                    found.setdefault(record.id, record)
                elif place < counted:
                    found[record.id] = record
        return found, dropped

    def _told(self, start: int) -> list[tuple[int, Told]]:
        """Return positions and records of names and drops behind a position.

        Of the records with update numbers, the first one is among them.
        """
        told: list[tuple[int, Told]] = []
        numbered = False
        for position, record in self._records(start):
            if isinstance(record, NumberedRecord):
                if numbered:
                    continue
                numbered = True
            if isinstance(record, Told) and not (
                isinstance(record, NamespaceRecord) and record.hidden
            ):
                told.append((position, record))
        return told

    def _records(self, start: int) -> Iterator[tuple[int, object]]:
        """Yield position and record of what lies behind a position."""
        for frame, record in read_records(self.log.between(start, self.newest.position)):
            yield frame.position, record

    def check_known(self, cut: Cut) -> None:
        """Raise if the log does not tell whether maps were dropped right behind a cut.

        That is so if its last number lies in a part of the log that has gone.
        """
        head = self.log.earliest()
        if cut.position != head.position or not any(n for _, n in head.vector().values()):
            return
        given = set(range(FIRST_NAMESPACE, self.state.next_namespace))
        records = [record for _, record in self._records(head.position)]
        told = {record.id for record in records if isinstance(record, DropNamespaceRecord)}
        if given - self.state.namespaces.keys() - told:
            raise self._without("maps that were dropped then or later, of which the log has gone")

    def _without(self, what: str) -> SnapshotExpiredError:
        return SnapshotExpiredError(
            f"{self.log.path} may lack rows of {what}: its checkpoint {self.state.position} has "
            "removed what was dropped before",
            hint=f"asOf=latest shows what is left. {_ARCHIVE}",
        )


def counted_with(time: int, told: Sequence[Told]) -> int:
    """Return how many of the records behind the cut of a time count with that time.

    The cut ends where the last number moved that was committed by then.  Records of the catalog
    behind it may still be older than the time, but only a drop says when it was.  The cases, for
    the time 10:00 and a map that is called *a* at the cut:

    = ================================================= ====== ================================
    A nothing behind the cut                            0      *a*
    B name b, the end of the log                        all    *b*: as it is called now
    C name b, a number                                  0      *a*: the name came with the number
    D name b, a drop at 09:59, name c, a number         2      *b*, without the map of the drop
    E name b, a drop at 09:59, name c, the end          all    *c*, without the map of the drop
    F name b, a drop at 10:01, the end                  0      *a*, with the map of the drop
    G name b, a drop at 09:59, name c, a drop at 10:01  2      *b*, without the map of the first
    = ================================================= ====== ================================
    """
    counted = 0
    for place, record in enumerate(told, 1):
        if isinstance(record, NamespaceRecord):
            continue
        if not isinstance(record, DropNamespaceRecord) or record.time > time:
            return counted
        counted = place
    return len(told)


def _base(log: Log, newest: Cut) -> _Base:
    """Look at the data file of a store, and at the log behind it."""
    with _data_file(log.path) as txn:
        state, marks = _marked(log, txn)
    written = {partition: mark.written for partition, mark in marks.items()}
    seen = [counter.highest_applied for counter in state.counters]
    ahead: dict[int, int] = {}
    transactions: list[Parts] = []
    for frame, record in read_records(log.between(state.position, newest.position)):
        if not isinstance(record, NumberedRecord):
            continue
        for run in record.runs:
            if frame.position < state.replay_from[run.partition]:
                first = ahead.get(run.partition, run.first)
                ahead[run.partition] = min(first, run.first)
            elif isinstance(record, TxRecord) and frame.position < written.get(run.partition, 0):
                seen[run.partition] = max(seen[run.partition], run.first + run.count - 1)
        if isinstance(record, TxRecord) and len(record.keys) > 1:
            transactions.append(_parts(record))
    return _Base(
        log=log, newest=newest, state=state, seen=seen, ahead=ahead, transactions=transactions
    )


def _parts(record: TxRecord) -> Parts:
    """Return the numbers of a transaction, but for those of internal maps."""
    found: Parts = {}
    for partition, _, number, namespace, _, _ in record.updates():
        if namespace >= FIRST_NAMESPACE:
            first, last = found.get(partition, (number, number))
            found[partition] = min(first, number), max(last, number)
    return found
