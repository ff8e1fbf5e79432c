"""What becomes of everything unfinished when a partition changes its epoch: K4 of the protocol.

The author of an epoch has the reports of all listed copies, and makes one settle list of them.
Where it takes effect (OPEN) every listed copy has the same counter, the same pending transactions
and the same epoch table, and the same content.  An example, two copies of a partition in epoch 1:

=================== ============== ============== ===============================================
transaction         one            other          in the list
=================== ============== ============== ===============================================
A, number 1         applied        pending        a: committed, for one of them let it take effect
B, number 2         rolled back    pending        b: rolled back
C, number 3         pending        pending        c: committed, it writes this partition alone
D, number 4         pending        pending        d: pending, others decide as well
E, number 5         pending        -              e: rolled back, nobody was told that it is safe
number 6            -              -              f: closed
F, number 7         pending        pending        c; the epoch begins at 8
=================== ============== ============== ===============================================

Invariants:

- N2: an epoch begins behind every number that any report holds, so no list gives a number out
  again that a listed copy has.  N5: below that every number is applied, closed, or of a transaction
  that stays pending (K4d), and then it stays a gap.
- K6: a list that a copy has stored may have been opened, so it counts as if every copy had it:
  what it rolled back is rolled back, what it committed is committed.  The list with the highest
  epoch has all of what older ones say, for its author had these in the reports.  A list of an
  epoch below one that a report shows as open is void: whoever is in the set stored the newer list
  before that was opened, and if it has not, it lost a part of its log.
- N1, N3: a number belongs to one epoch.  A transaction whose number has been given out again is
  not named; the epoch table of the list makes copies equal that missed an opening.
- A copy lacks something if an other shows that it had it: entries of what is committed, a list
  whose epoch is open, what it has acknowledged in this boot (K3).  Entries cannot be made up, and
  its lack proves nothing of others: the list is made without it, and it has to leave the set (I6).
- Equal reports give the equal list, in any order.

A number that is applied does not tell whether it was committed or closed.  Closed are those that a
report names: ``Copies`` of the fold keeps them as long as another copy may not know.

Left out: who asks for reports, and what is durable when (``docs/takeover.md``); and durability
below the level always, at which e may commit what one copy alone has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from ...affinity.topology import Incarnation
from ...checkpoints.marks import EpochTable, epoch_of, with_epoch
from ...tx.numbers import NumberRanges, has_run, run_numbers, told_numbers, united, without
from ...wal.records import Closed, Columns, Run, Settled, SettledOutcome, SettleRecord
from .reports import PreparedHere, Report

GAP_REASON = "gap"

Attempted: TypeAlias = tuple[bytes, int]
"""Id and attempt of a transaction."""


class MergeError(ValueError):
    """Why no list can be made of some reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A settle list; which copies lack what, and the row of K4 for each transaction in the list.

    With anybody in ``lacking`` the list is made without these, and must not be sent to them.
    """

    settle: SettleRecord
    lacking: Mapping[Incarnation, str]
    letters: Mapping[Attempted, str]


class Seen(NamedTuple):
    """What the reports come to for one transaction."""

    rolled_back: bool
    committed: bool
    everywhere: bool
    """It is pending at every copy."""
    alone: bool
    """It writes this partition and no other one."""


K4: tuple[tuple[str, Callable[[Seen], bool], SettledOutcome], ...] = (
    ("b", lambda seen: seen.rolled_back, SettledOutcome.ROLLED_BACK),
    ("a", lambda seen: seen.committed, SettledOutcome.COMMITTED),
    ("c", lambda seen: seen.everywhere and seen.alone, SettledOutcome.COMMITTED),
    ("d", lambda seen: seen.everywhere, SettledOutcome.PENDING),
    ("e", lambda _seen: True, SettledOutcome.ROLLED_BACK),
)
"""The rows of K4 but f, which has no transaction; the first that fits counts.

b comes before a, since the numbers of what was rolled back are applied, too.
"""


def merged(partition: int, epoch: int, reports: Sequence[Report]) -> Merged:
    """Return the settle list of an epoch; ``reports`` are those of all listed copies (I4).

    ``MergeError`` if they are not of this takeover, or if every copy lacks something.
    """
    given = _checked(partition, epoch, reports)
    lacking: dict[Incarnation, str] = {}
    while True:
        left = [report for report in given if report.copy not in lacking]
        if not left:
            told = "; ".join(f"{copy} lacks {what}" for copy, what in lacking.items())
            raise MergeError(f"partition {partition}: no copy has what the others have: {told}")
        found = {**without_list(left), **behind_acknowledged(left, given)}
        if not found:
            settle, letters, found = _merge(partition, epoch, left, epoch_start(given))
            if not found:
                return Merged(settle=settle, lacking=lacking, letters=letters)
        lacking.update(found)


def _checked(partition: int, epoch: int, reports: Sequence[Report]) -> list[Report]:
    """Return the reports in the order of their copies."""
    if not reports:
        raise MergeError(f"partition {partition}: no report")
    for report in reports:
        if (report.partition, report.epoch) != (partition, epoch):
            raise MergeError(
                f"partition {partition}: {report.copy} reports on partition {report.partition} "
                f"for epoch {report.epoch}, not {epoch}"
            )
        newest = max(newest_opened(report), report.bound.epoch if report.bound is not None else 0)
        if newest > max(epoch - 1, 1):  # a table begins with epoch 1, before that is opened
            raise MergeError(
                f"partition {partition}: {report.copy} knows epoch {newest}, not below {epoch}"
            )
    if len({report.copy for report in reports}) != len(reports):
        raise MergeError(f"partition {partition}: two reports of one copy")
    return sorted(reports, key=lambda report: report.copy)


# ------------------------------------------------------------------ the rules


def newest_opened(report: Report) -> int:
    """Return the newest epoch that a copy has opened."""
    return report.epochs[-1][0]


def epoch_start(reports: Sequence[Report]) -> int:
    """Return where the epoch begins: behind every number that any report holds (N2)."""
    tops = [0]
    for report in reports:
        tops += [report.lwm, *(start + delta for start, delta in report.ranges)]
        tops += [run_numbers(one.run)[1] for one in report.pending]
        if report.bound is not None:
            tops.append(report.bound.start - 1)
    return max(tops) + 1


def binding(reports: Sequence[Report]) -> SettleRecord | None:
    """Return the list that counts as if every copy had it, if there is one (K6)."""
    opened = max(map(newest_opened, reports))
    lists = [one.bound for one in reports if one.bound is not None and one.bound.epoch >= opened]
    return max(lists, key=lambda settle: settle.epoch, default=None)


def without_list(reports: Sequence[Report]) -> dict[Incarnation, str]:
    """Return the copies that lack the list of an epoch which another has opened."""
    opened = max(map(newest_opened, reports))
    return {
        one.copy: f"the list of epoch {opened}, which was opened"
        for one in reports
        if newest_opened(one) < opened and (one.bound is None or one.bound.epoch < opened)
    }


def behind_acknowledged(
    reports: Sequence[Report], witnesses: Sequence[Report]
) -> dict[Incarnation, str]:
    """Return the copies that lack what they have acknowledged, in this boot (K3)."""
    highest: dict[Incarnation, int] = {}
    for witness in witnesses:
        for member, boot, number in witness.acknowledged:
            copy = Incarnation(member, boot)
            highest[copy] = max(number, highest.get(copy, 0))
    return {
        one.copy: f"numbers up to {highest[one.copy]}, which it acknowledged"
        for one in reports
        if one.hwm < highest.get(one.copy, 0)
    }


def is_rolled_back(run: Run, bound: Mapping[Run, Settled], copies: Sequence[_Copy]) -> bool:
    """Tell whether a copy, or the list that binds, has rolled a transaction back (K4b)."""
    settled = bound.get(run)
    if settled is not None and settled.outcome is SettledOutcome.ROLLED_BACK:
        return True
    return any(run in copy.rolled_back for copy in copies)


def is_committed(run: Run, bound: Mapping[Run, Settled], copies: Sequence[_Copy]) -> bool:
    """Tell whether a copy, or the list that binds, has committed one that is not rolled back."""
    settled = bound.get(run)
    if settled is not None and settled.outcome is SettledOutcome.COMMITTED:
        return True
    return any(has_run(copy.applied, run) for copy in copies)


def is_everywhere(run: Run, copies: Sequence[_Copy]) -> bool:
    """Tell whether every copy has a transaction pending (K4c, K4d)."""
    return all(run in copy.pending for copy in copies)


def gaps(copies: Sequence[_Copy], known: Iterable[Run], start: int) -> NumberRanges:
    """Return the numbers below ``start`` that nobody knows (K4f)."""
    applied = united(numbers for copy in copies for numbers in copy.applied)
    return without([(1, start - 1)], [*applied, *map(run_numbers, known)])


def commit_time(run: Run, bound: Mapping[Run, Settled], copies: Sequence[_Copy]) -> int | None:
    """Return the time of a commit, which is the same at every copy; None if nobody knows.

    One that writes this partition alone has that of its PREPARE.
    """
    settled = bound.get(run)
    if settled is not None and settled.outcome is SettledOutcome.COMMITTED:
        return settled.time
    for copy in copies:
        if run in copy.committed:
            return copy.committed[run]
    for copy in copies:
        prepared = copy.prepared.get(run)
        if prepared is not None and prepared.participants == 1:
            return prepared.time
    return None


# ------------------------------------------------------------------ the list


class _Copy:
    """A report as the rules look at it.

    ``prepared`` is what is pending there, ``pending`` what of it would be, had the binding list
    taken effect.
    """

    def __init__(self, report: Report, bound: SettleRecord | None) -> None:
        self.copy = report.copy
        ranges = [(start + 1, start + delta) for start, delta in report.ranges]
        self.applied = united([(1, report.lwm), *ranges])
        self.prepared: dict[Run, PreparedHere] = {one.run: one for one in report.pending}
        self.rolled_back = {one.run: one for one in report.rolled_back}
        self.committed = {one.run: one.time for one in report.committed}
        self.pending = set(self.prepared)
        if bound is not None and newest_opened(report) < bound.epoch:
            self.pending.intersection_update(
                one.run for one in bound.transactions if one.outcome is SettledOutcome.PENDING
            )


def _merge(
    partition: int, epoch: int, reports: Sequence[Report], start: int
) -> tuple[SettleRecord, dict[Attempted, str], dict[Incarnation, str]]:
    """Return the list, its letters, and the copies that lack entries for it."""
    binds = binding(reports)
    copies = [_Copy(report, binds) for report in reports]
    table = _table(reports, binds)
    bound = {one.run: one for one in binds.transactions} if binds is not None else {}
    lacking: dict[Incarnation, str] = {}
    rows: list[Settled] = []
    letters: dict[Attempted, str] = {}
    for run, (tx_id, attempt) in _transactions(copies, bound, table).items():
        seen = Seen(
            rolled_back=is_rolled_back(run, bound, copies),
            committed=is_committed(run, bound, copies),
            everywhere=is_everywhere(run, copies),
            alone=any(
                run in one.prepared and one.prepared[run].participants == 1 for one in copies
            ),
        )
        letter, outcome = next((row[0], row[2]) for row in K4 if row[1](seen))
        time = 0
        if all(has_run(copy.applied, run) for copy in copies):
            continue
        if outcome is SettledOutcome.COMMITTED:
            known = commit_time(run, bound, copies)
            if known is None:
                waiting = [one for one in copies if not has_run(one.applied, run)]
                lacking.update({one.copy: f"the commit of number {run.first}" for one in waiting})
                continue
            time = known
        rows.append(Settled(tx_id, attempt, run, outcome, time, _columns(bound, run)))
        letters[tx_id, attempt] = letter
    closed = _closed(copies, rows, binds, start)
    for copy in copies:
        lost = _lost(copy, rows, closed, start)
        if lost:
            lacking.setdefault(copy.copy, f"what is committed at numbers {told_numbers(lost)}")
    settle = SettleRecord(
        partition=partition,
        epoch=epoch,
        start=start,
        transactions=tuple(rows),
        closed=tuple(_by_epoch(table, closed)),
        epochs=() if all(report.epochs == table for report in reports) else table,
    )
    return settle, letters, lacking


def _table(reports: Sequence[Report], binds: SettleRecord | None) -> EpochTable:
    """Return the epoch table that all copies shall have below the new epoch."""
    newest = max(reports, key=lambda report: (newest_opened(report), report.epochs))
    if binds is None or binds.epoch <= newest_opened(newest):
        return newest.epochs
    return with_epoch(binds.epochs or newest.epochs, binds.epoch, binds.start)


def _transactions(
    copies: Sequence[_Copy], bound: Mapping[Run, Settled], table: EpochTable
) -> dict[Run, Attempted]:
    """Return the transactions that the reports name, in the order of their numbers.

    Those whose numbers belong to a newer epoch by now are not of this partition any more (N1).
    """
    found: dict[Run, Attempted] = {
        one.run: (one.tx_id, one.attempt)
        for one in bound.values()
        if one.outcome is not SettledOutcome.PENDING
    }
    for copy in copies:
        for run in copy.pending:
            found[run] = copy.prepared[run][:2]
        for run, ended in copy.rolled_back.items():
            if any(ended.tx_id):
                found[run] = ended[:2]
    return {run: found[run] for run in sorted(found, key=_by_number) if _belongs(table, run)}


def _columns(bound: Mapping[Run, Settled], run: Run) -> Columns | None:
    """Return the updates that a binding list brings, for copies that lack the PREPARE."""
    settled = bound.get(run)
    return None if settled is None else settled.columns


def _closed(
    copies: Sequence[_Copy], rows: Sequence[Settled], binds: SettleRecord | None, start: int
) -> NumberRanges:
    """Return the numbers that the list closes: those that some copy has not as applied."""
    runs = [one.run for one in rows]
    known = [run_numbers(one) for one in (binds.closed if binds is not None else ())]
    for copy in copies:
        known += [
            run_numbers(run) for run, ended in copy.rolled_back.items() if not any(ended.tx_id)
        ]
    missing = united(
        numbers for copy in copies for numbers in without([(1, start - 1)], copy.applied)
    )
    closable = united([*gaps(copies, runs, start), *known])
    here = without(missing, without([(1, start - 1)], closable))
    return without(here, map(run_numbers, runs))


def _lost(copy: _Copy, rows: Sequence[Settled], closed: NumberRanges, start: int) -> NumberRanges:
    """Return the numbers that a copy would still miss behind the list, and should not."""
    there = [*copy.applied, *closed]
    for one in rows:
        commits = one.outcome is SettledOutcome.COMMITTED
        if not commits or one.run in copy.prepared or one.columns is not None:
            there.append(run_numbers(one.run))
    return without([(1, start - 1)], there)


def _by_epoch(table: EpochTable, numbers: NumberRanges) -> Iterable[Closed]:
    """Yield closed numbers, each range within one epoch."""
    starts = [start for _, start in table[1:]]
    for first, last in numbers:
        cuts = [first, *(start for start in starts if first < start <= last), last + 1]
        for low, high in pairwise(cuts):
            yield Closed(epoch_of(table, low), low, high - low, GAP_REASON)


def _by_number(run: Run) -> tuple[int, int]:
    return run.first, run.epoch


def _belongs(table: EpochTable, run: Run) -> bool:
    first, last = run_numbers(run)
    return epoch_of(table, first) == run.epoch == epoch_of(table, last)
