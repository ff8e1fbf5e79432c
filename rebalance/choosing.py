"""How a copy that was away comes back: by nothing, by what it has missed, or by all there is.

The copy shows what it has, the primary what there is now, and whoever is in sync which numbers its
log still holds.  From these alone follow three things, after "Rebalance" of Apache Ignite, with
sets of numbers where that compares one counter with another:

- the *agreed point*: what the copy has that surely is what the primary has;
- the *missing* numbers: all up to the primary's highest, but for those that the copy has, and those
  that are pending, which it is sent with its admission;
- the kind: ``none`` if nothing is missing, ``historical`` if somebody's log holds all of it, else
  ``full``.

An example.  The primary is in epoch 3, has given out numbers up to 20, and 18 is pending:

====================== ============================== =========== ===========================
the copy               epochs of the primary          agreed      missing
====================== ============================== =========== ===========================
opened 3, LWM 20       1 from 1, 3 from 11            1-17, 19-20 nothing: ``none``
opened 3, LWM 9        1 from 1, 3 from 11            1-9         10-17, 19, 20
opened 1, LWM 12       1 from 1, 3 from 11            1-10        11-17, 19, 20
opened 2, LWM 9        1 from 1, 3 from 11            1-9         10-17, 19, 20
opened 1, data at 12   1 from 1, 3 from 11            nothing     1-17, 19, 20: it has diverged
====================== ============================== =========== ===========================

In the third row numbers 11 and 12 were closed at the copy without data, and given out again.

Invariants:

- What the copy has is compared number by number, never by its LWM alone: a number above a gap is
  there, and is not asked for.
- Of numbers that may stand for something else at the primary none is taken for the same.
- A log counts only if it holds every missing number, with data.

Left out: who asks and who sends (``engine.node``), and what happens if a log does not hold in the
end what it was thought to: then this is asked again, without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple

from ..affinity.rows import Member
from ..checkpoints.marks import EpochTable
from ..tx.counter import PartitionUpdateCounter
from ..tx.numbers import NumberRanges, applied_in, in_both, told_numbers, united, without


class SupplyKind(StrEnum):
    """How a copy comes back."""

    NONE = "none"
    HISTORICAL = "historical"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownByCopy:
    """What a copy has of a partition.

    ``opened`` is the highest epoch that it has opened, 0 if none; ``ranges`` are (start, delta)
    above ``lwm``, as a counter has them.  ``data_to`` is the highest number of which it has data:
    numbers above that were closed without.  ``whole`` is False if what it has counts for nothing.
    """

    whole: bool
    opened: int
    epochs: EpochTable
    lwm: int
    ranges: Sequence[tuple[int, int]] = ()
    data_to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownByPrimary:
    """What there is: ``top`` is the highest number that was given out (HWM)."""

    epoch: int
    epochs: EpochTable
    top: int
    pending: Sequence[tuple[int, int]] = ()


class LogReach(NamedTuple, Generic[Member]):
    """Whose log holds every number from ``first`` on with what became of it, but for some.

    ``lacking`` are numbers that were applied, or prepared, before what is kept of the log begins,
    and numbers of loads, whose rows are in no log.
    """

    member: Member
    first: int
    lacking: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyChoice(Generic[Member]):
    """How a copy comes back, and why.

    ``lwm`` and ``ranges`` are the agreed point; ``instead`` says what would have been needed for
    less to be sent, empty if nothing is.  ``wants_log`` tells whether the log of somebody else
    might do.
    """

    kind: SupplyKind
    lwm: int
    ranges: list[tuple[int, int]]
    missing: NumberRanges
    supplier: Member | None
    reason: str
    instead: str = ""
    wants_log: bool = False


def choose(
    copy: ShownByCopy, primary: ShownByPrimary, histories: Iterable[LogReach[Member]]
) -> SupplyChoice[Member]:
    """Return how a copy comes back; of several logs that would do the first is chosen."""
    wrong = _why_full(copy, primary)
    if wrong is not None:
        return _full(primary, *wrong)
    agreed = PartitionUpdateCounter(copy.lwm, copy.ranges)
    pending = [(first - 1, last - first + 1) for first, last in primary.pending]
    agreed.cut(agreed_up_to(copy.opened, primary), pending)
    missing = without(_given_out(primary), applied_in(agreed))
    lwm, ranges = agreed.lwm, agreed.out_of_order
    if not missing:
        return SupplyChoice(
            kind=SupplyKind.NONE,
            lwm=lwm,
            ranges=ranges,
            missing=[],
            supplier=None,
            reason=f"the copy has every number up to {primary.top} that is not pending",
        )
    known = list(histories)
    for history in known:
        if history.first <= missing[0][0] and not in_both(missing, history.lacking):
            return SupplyChoice(
                kind=SupplyKind.HISTORICAL,
                lwm=lwm,
                ranges=ranges,
                missing=missing,
                supplier=history.member,
                reason=f"{told_numbers(missing)} of {primary.top} are missing, and the log of "
                f"{history.member} holds them from {history.first} on",
                instead="if the copy had not missed them",
            )
    return _full(primary, *_no_history(missing, known), wants_log=True)


def agreed_up_to(opened: int, primary: ShownByPrimary) -> int:
    """Return the last number that means the same to who has opened an epoch, and to the primary."""
    if opened >= primary.epoch:
        return primary.top
    return min([primary.top, *(start - 1 for epoch, start in primary.epochs if epoch > opened)])


def _why_full(copy: ShownByCopy, primary: ShownByPrimary) -> tuple[str, str] | None:
    """Return why nothing that a copy has counts, and what would have been needed; None if it does.

    An epoch that the primary's table lacks had no number that survived, which is fine.  Data of a
    number that was given out again is not.
    """
    if not copy.whole or not copy.opened:
        return "the copy is not whole", "if it had been whole, and had once been in sync"
    last = agreed_up_to(copy.opened, primary)
    if copy.opened > primary.epoch:
        return (
            f"the copy has opened epoch {copy.opened}, and the primary is in {primary.epoch}",
            "if it had not diverged",
        )
    if copy.data_to > last:
        return (
            f"the copy has data at number {copy.data_to}, and from {last + 1} on the numbers were "
            f"given out again behind epoch {copy.opened}: it has diverged",
            "if it had not diverged",
        )
    mine = [entry for entry in copy.epochs if entry[1] <= last]
    there = [entry for entry in primary.epochs if entry[1] <= last]
    if mine != there:
        return (
            f"up to number {last} the epochs of the copy are {mine}, and those of the primary "
            f"{there}: it has diverged",
            "if it had not diverged",
        )
    return None


def _no_history(missing: NumberRanges, histories: Sequence[LogReach[Member]]) -> tuple[str, str]:
    first = missing[0][0]
    reaching = [one for one in histories if one.first <= first]
    if reaching:
        rows = in_both(missing, reaching[0].lacking)
        return (
            f"{told_numbers(rows)} are in no log with their data: loaded, or prepared earlier",
            "if the copy had been there then",
        )
    if not histories:
        return f"no log holds {told_numbers(missing)}", "if another copy in sync had its log"
    reach = min(one.first for one in histories)
    return (
        f"number {first} is missing, and no log reaches further back than {reach}",
        f"if a log had been kept from number {first} on",
    )


def _given_out(primary: ShownByPrimary) -> NumberRanges:
    """Return the numbers of which it is known what became of them."""
    return without(united([(1, primary.top)]), primary.pending)


def _full(
    primary: ShownByPrimary, reason: str, instead: str, *, wants_log: bool = False
) -> SupplyChoice[Member]:
    return SupplyChoice(
        kind=SupplyKind.FULL,
        lwm=0,
        ranges=[],
        missing=_given_out(primary),
        supplier=None,
        reason=reason,
        instead=instead,
        wants_log=wants_log,
    )
