"""What members say of transactions of several groups, as rows (section 8 of the protocol).

================ ====================================== ==========================================
message          from, to                               what it asks, or tells
================ ====================================== ==========================================
lock             near, primary                          locks on what is written
locked           primary, near                          None, or why not
unlock           near, primary                          let go of them
confirm          near, primary                          whether what was read is so still
confirmed        primary, near                          None, or why not
prepare          near, primary                          to prepare a part
prepared         primary, near or settler               it is on every copy
refused          primary, near or settler               it never will be
decision         near, primary                          what all groups have come to
question         settler, primary                       which of both
too-old          primary, near or settler               that it cannot tell, and never will (T9)
settled          primary, primary of the collector      all copies here have the end
ask-settled      collector, primary                     whether they have, as it has not heard it
acquire          keeper, primary                        plain locks, of an open transaction
acquired         primary, keeper                        None, or why not
give-back        keeper, primary                        let go of plain locks
probe            primary, keeper; keeper, primary       who waits for whom, in a circle
ask-over         collector, near; primary, keeper       whether it waits for nothing any more
over             near, collector; keeper, primary       for these not
forget           collector, primaries                   nobody will ask any more
pin              near, whoever serves anything          to hold, at one instant (Q5)
pinned           member, near                           what it serves then, and what is prepared
resume           near, member                           to go on
held             member, near                           whether it has held until then
================ ====================================== ==========================================

Keys are full keys: partition, map, key of the user.  An ``ask`` is the number that the near member
gives to each try.

Left out: who sends them, and when (``near``, ``participating``, ``settling``, ``plain_locks``,
``open_transactions``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...affinity.errors import TidelogError
from ...tx.counter import COUNTER_MAX
from ...wal.records import Participant, Run, flatten
from ...wal.records.shapes import (
    UNDECODABLE,
    check_numbers,
    checked_id,
    checked_number,
    checked_text,
    rows_of,
    runs_of,
)
from ..data.scan import Range
from ..data.stored import PREFIX_SIZE, split_key
from ..net.failures import Failure, error_of, failure_of
from ..net.frames import FrameError, Message
from ..net.kinds import BY_NAME, BY_NUMBER
from .partitions import RoutedError

ROUTED = frozenset(("remap", "wait", "again"))
EARLIER = "earlier"

NAMESPACE_MAX = (1 << 32) - 1


class ReadKey(NamedTuple):
    """A key that was read, by its full key, and the version that it had."""

    full_key: bytes
    epoch: int
    counter: int


class ReadSpan(NamedTuple):
    """A range of a map that was read in one partition, and what was there."""

    namespace: int
    low: bytes
    high: bytes | None
    count: int  # type: ignore[assignment]  # hides the method of tuples, which nobody needs
    digest: bytes


class LockWanted(NamedTuple):
    """What is asked to be locked in one partition; ``given`` is the id that a user gave.

    ``opened`` is the open transaction that has plain locks on it.
    """

    ask: int
    tx_id: bytes
    attempt: int
    given: bytes | None
    partition: int
    epoch: int
    keys: list[bytes]
    opened: bytes | None = None


class ConfirmWanted(NamedTuple):
    """What was read in one partition, and has to be so still, and locked by what is ``opened``."""

    ask: int
    partition: int
    reads: list[ReadKey]
    ranges: list[ReadSpan]
    opened: bytes | None = None


class PrepareWanted(NamedTuple):
    """What one partition has of a transaction.

    ``locked`` tells that its keys were locked before; ``shared`` are keys that stay as they were
    read until the outcome is known; ``opened`` is the open transaction that has plain locks on it.
    """

    ask: int
    tx_id: bytes
    attempt: int
    given: bytes | None
    tag: str | None
    home: int
    participants: tuple[Participant, ...]
    locked: bool
    partition: int
    epoch: int
    keys: list[bytes]
    values: list[bytes | None]
    reads: list[ReadKey]
    ranges: list[ReadSpan]
    shared: list[bytes]
    opened: bytes | None = None


class PreparedPart(NamedTuple):
    """A part that is on every copy of its partition."""

    tx_id: bytes
    attempt: int
    run: Run
    time: int


class RefusedPart(NamedTuple):
    """A part that never will be, and why."""

    tx_id: bytes
    attempt: int
    partition: int
    failure: Failure


class GroupOutcome(NamedTuple):
    """What a transaction has come to: with the numbers of all its parts, none if rolled back."""

    tx_id: bytes
    attempt: int
    runs: tuple[Run, ...]
    time: int

    @property
    def commits(self) -> bool:
        """Whether it has committed."""
        return bool(self.runs)


class Question(NamedTuple):
    """What became of a part; ``near`` is the incarnation that led the transaction.

    ``went_back`` tells that whoever asks goes on from an older copy: what it asks about may have
    been forgotten by all others, as they had heard of the end.
    """

    tx_id: bytes
    attempt: int
    near: tuple[bytes, int]
    partition: int
    epoch: int
    went_back: bool = False


class TooOldPart(NamedTuple):
    """A part of which its group does not know any more what became of it."""

    tx_id: bytes
    attempt: int
    partition: int


class AcquireWanted(NamedTuple):
    """What an open transaction is to have locked of some partitions: keys, or a range in all."""

    ask: int
    name: bytes
    partitions: list[int]
    epochs: list[int]
    keys: list[bytes]
    exclusive: bool
    reads: bool
    """Whether it is to hear what is at the keys."""
    within: Range | None
    wait_us: int
    """How long it may wait for each."""


class FoundAt(NamedTuple):
    """What is at a key: None, 0 and 0 if it is not there."""

    value: bytes | None
    epoch: int
    counter: int


class LockProbe(NamedTuple):
    """A question whether a transaction waits for itself: of the n-th round of one of its waits.

    ``waits`` tells that the last one on its path waits where it goes, and was asked at its keeper.
    """

    initiator: bytes
    path: list[bytes]
    ask: int
    round: int
    waits: bool


class PreparedAtPin(NamedTuple):
    """A transaction that is prepared in a partition at a pin, and where else it has parts."""

    partition: int
    tx_id: bytes
    participants: list[int]


class PinnedHere(NamedTuple):
    """What a member serves at a pin, behind ``decided`` decisions.

    ``committed`` are partitions and ids of commits that are remembered.
    """

    snapshot: bytes
    attempt: int
    decided: int
    partitions: list[int]
    prepared: list[PreparedAtPin]
    committed: list[tuple[int, bytes]]


# ------------------------------------------------------------------ failures


class EarlierError(RoutedError):
    """A transaction under the same id has committed before, at ``time``; users never see this."""

    def __init__(self, time: int) -> None:
        super().__init__(EARLIER, "a transaction under this id has committed before")
        self.time = time


def told_failure(error: Exception) -> Failure:
    """Return what travels of an error, those included that users never see."""
    if isinstance(error, EarlierError):
        return Failure(EARLIER, str(error), {"time": error.time})
    if isinstance(error, RoutedError):
        return Failure(error.answer, str(error), error.fields)
    return failure_of(error)


def error_told(failure: Failure) -> TidelogError:
    """Return the error that has travelled."""
    if failure.code == EARLIER and isinstance(failure.fields.get("time"), int):
        return EarlierError(failure.fields["time"])  # type: ignore[arg-type]  # just looked at
    if failure.code in ROUTED:
        hint = failure.fields.get("hint")
        return RoutedError(failure.code, failure.message, hint if isinstance(hint, str) else "")
    return error_of(*failure)


# ------------------------------------------------------------------ to messages


def lock_message(wanted: LockWanted) -> Message:
    """Return a ``lock``."""
    return BY_NAME["lock"].message(*wanted)


def answer_message(kind: str, ask: int, partition: int, failure: Failure | None) -> Message:
    """Return a ``locked`` or a ``confirmed``."""
    return BY_NAME[kind].message(ask, partition, None if failure is None else list(failure))


def unlock_message(ask: int, partitions: Sequence[int]) -> Message:
    """Return an ``unlock``."""
    return BY_NAME["unlock"].message(ask, list(partitions))


def confirm_message(wanted: ConfirmWanted) -> Message:
    """Return a ``confirm``."""
    return BY_NAME["confirm"].message(*wanted)


def prepare_message(wanted: PrepareWanted) -> Message:
    """Return a ``prepare``."""
    return BY_NAME["prepare"].message(
        *wanted._replace(participants=flatten(wanted.participants))  # type: ignore[arg-type]  # flat on the wire
    )


def prepared_message(part: PreparedPart) -> Message:
    """Return a ``prepared``."""
    return BY_NAME["prepared"].message(part.tx_id, part.attempt, list(part.run), part.time)


def refused_message(part: RefusedPart) -> Message:
    """Return a ``refused``."""
    tx_id, attempt, partition, failure = part
    return BY_NAME["refused"].message(tx_id, attempt, partition, list(failure))


def decision_message(decided: GroupOutcome, partitions: Sequence[int]) -> Message:
    """Return a ``decision`` for some partitions."""
    tx_id, attempt, runs, time = decided
    return BY_NAME["decision"].message(tx_id, attempt, flatten(runs), time, list(partitions))


def question_message(question: Question) -> Message:
    """Return a ``question``."""
    tx_id, attempt, (member, boot), partition, epoch, went_back = question
    return BY_NAME["question"].message(tx_id, attempt, member, boot, partition, epoch, went_back)


def too_old_message(part: TooOldPart) -> Message:
    """Return a ``too-old``."""
    return BY_NAME["too-old"].message(*part)


def settled_message(kind: str, rows: Sequence[tuple[int, int, bytes]]) -> Message:
    """Return a ``settled`` or an ``ask-settled``: collector, partition and id of each."""
    return BY_NAME[kind].message(*([row[at] for row in rows] for at in range(3)))


def forget_message(rows: Sequence[tuple[int, bytes]]) -> Message:
    """Return a ``forget``: partition and id of each."""
    return BY_NAME["forget"].message(*([row[at] for row in rows] for at in range(2)))


def pin_message(snapshot: bytes, attempt: int, decided: int) -> Message:
    """Return a ``pin``."""
    return BY_NAME["pin"].message(snapshot, attempt, decided)


def pinned_message(pinned: PinnedHere) -> Message:
    """Return a ``pinned``."""
    return BY_NAME["pinned"].message(
        *pinned[:4], [list(row) for row in pinned.prepared], [list(row) for row in pinned.committed]
    )


def resume_message(snapshot: bytes, attempt: int) -> Message:
    """Return a ``resume``."""
    return BY_NAME["resume"].message(snapshot, attempt)


def held_message(snapshot: bytes, attempt: int, *, still: bool) -> Message:
    """Return a ``held``."""
    return BY_NAME["held"].message(snapshot, attempt, still)


def acquire_message(wanted: AcquireWanted) -> Message:
    """Return an ``acquire``."""
    within = wanted.within
    span = None if within is None else [within.namespace, within.start, within.stop]
    return BY_NAME["acquire"].message(*wanted._replace(within=span))  # type: ignore[arg-type]  # flat on the wire


def acquired_message(
    ask: int, name: bytes, found: Sequence[FoundAt] | None, failure: Failure | None
) -> Message:
    """Return an ``acquired``."""
    rows = None if found is None else list(map(list, found))
    told = None if failure is None else list(failure)
    return BY_NAME["acquired"].message(ask, name, rows, told)


def probe_message(probe: LockProbe) -> Message:
    """Return a ``probe``."""
    return BY_NAME["probe"].message(*probe)


def ids_message(kind: str, tx_ids: Sequence[bytes]) -> Message:
    """Return an ``ask-over``, an ``over`` or a ``give-back``."""
    return BY_NAME[kind].message(list(tx_ids))


# ------------------------------------------------------------------ from messages


def told_of(message: Message) -> Any:
    """Return what a message says, as one of the rows here, or a tuple; ``FrameError`` if it cannot.

    ``locked``, ``confirmed`` and ``unlock`` are (ask, partition or partitions, failure),
    ``acquired`` is (ask, name, found, failure), a ``decision`` is (decided, partitions),
    ``settled``, ``ask-settled`` and ``forget`` are lists of rows, and the others of ids alone are
    (ids,).
    """
    kind = BY_NUMBER[message[0]].name
    try:
        return _READERS[kind](*message[1:])
    except UNDECODABLE as error:
        raise FrameError(f"{kind}: {error}") from None


def _lock(
    ask: int, tx_id: bytes, attempt: int, given: bytes | None, partition: int, epoch: int,
    keys: list[bytes], opened: bytes | None,
) -> LockWanted:  # fmt: skip
    _check_numbers(ask, attempt, partition, epoch)
    _check_keys(keys, partition)
    return LockWanted(
        ask, checked_id(tx_id), attempt, _given(given), partition, epoch, keys, _given(opened)
    )


def _answer(ask: int, partition: int, failure: list[Any] | None) -> tuple[int, int, Failure | None]:
    _check_numbers(ask, partition)
    return ask, partition, None if failure is None else _failure(failure)


def _unlock(ask: int, partitions: list[int]) -> tuple[int, list[int], None]:
    _check_numbers(ask, *partitions)
    return ask, partitions, None


def _confirm(
    ask: int, partition: int, reads: list[Any], ranges: list[Any], opened: bytes | None
) -> ConfirmWanted:
    _check_numbers(ask, partition)
    found = _reads(reads, partition)
    return ConfirmWanted(ask, partition, found, _spans(ranges), _given(opened))


def _prepare(
    ask: int, tx_id: bytes, attempt: int, given: bytes | None, tag: str | None, home: int,
    participants: list[int], locked: bool, partition: int, epoch: int, keys: list[bytes],
    values: list[bytes | None], reads: list[Any], ranges: list[Any], shared: list[bytes],
    opened: bytes | None,
) -> PrepareWanted:  # fmt: skip
    _check_numbers(ask, attempt, home, partition, epoch, *participants)
    _check_keys(keys, partition)
    _check_keys(shared, partition)
    if not keys or len(set(keys)) != len(values) or len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys with {len(values)} values")
    if not {bytes, type(None)}.issuperset(map(type, values)):
        raise ValueError("a value that is not bytes")
    rows = tuple(Participant(*row) for row in rows_of(participants, 3))
    if Participant(partition, epoch, len(keys)) not in rows:
        raise ValueError(f"partition {partition} does not take part as prepared")
    if len({row.partition for row in rows}) != len(rows) or not all(row.count for row in rows):
        raise ValueError(f"{participants!r} are not partitions that each take part once")
    return PrepareWanted(
        ask, checked_id(tx_id), attempt, _given(given), tag, home, rows, locked, partition, epoch,
        keys, values, _reads(reads, partition), _spans(ranges), shared, _given(opened),
    )  # fmt: skip


def _prepared(tx_id: bytes, attempt: int, run: list[int], time: int) -> PreparedPart:
    _check_numbers(attempt, time, *run)
    check_numbers(run, 4)
    (one,) = runs_of(run)
    return PreparedPart(checked_id(tx_id), attempt, one, time)


def _refused(tx_id: bytes, attempt: int, partition: int, failure: list[Any]) -> RefusedPart:
    _check_numbers(attempt, partition)
    return RefusedPart(checked_id(tx_id), attempt, partition, _failure(failure))


def _decision(
    tx_id: bytes, attempt: int, runs: list[int], time: int, partitions: list[int]
) -> tuple[GroupOutcome, list[int]]:
    _check_numbers(attempt, time, *runs, *partitions)
    check_numbers(runs, 4)
    found = runs_of(runs)
    if found and not {run.partition for run in found}.issuperset(partitions):
        raise ValueError(f"a commit in {partitions!r}, which do not all take part")
    return GroupOutcome(checked_id(tx_id), attempt, found, time), partitions


def _question(
    tx_id: bytes, attempt: int, member: bytes, boot: int, partition: int, epoch: int,
    went_back: bool,
) -> Question:  # fmt: skip
    _check_numbers(attempt, boot, partition, epoch)
    near = checked_id(member), boot
    return Question(checked_id(tx_id), attempt, near, partition, epoch, went_back)


def _too_old(tx_id: bytes, attempt: int, partition: int) -> TooOldPart:
    _check_numbers(attempt, partition)
    return TooOldPart(checked_id(tx_id), attempt, partition)


def _settled(
    collectors: list[int], partitions: list[int], txs: list[bytes]
) -> list[tuple[int, int, bytes]]:
    _check_numbers(*collectors, *partitions)
    return list(zip(collectors, partitions, map(checked_id, txs), strict=True))


def _forget(partitions: list[int], txs: list[bytes]) -> list[tuple[int, bytes]]:
    _check_numbers(*partitions)
    return list(zip(partitions, map(checked_id, txs), strict=True))


def _pinned(
    snapshot: bytes, attempt: int, decided: int, partitions: list[int], prepared: list[Any],
    committed: list[Any],
) -> PinnedHere:  # fmt: skip
    rows = [PreparedAtPin(place, checked_id(tx_id), others) for place, tx_id, others in prepared]
    for place, _, others in rows:
        check_numbers((place, *others), 1)
    return PinnedHere(
        snapshot, attempt, decided, partitions, rows,
        [(checked_number(place), checked_id(tx_id)) for place, tx_id in committed],
    )  # fmt: skip


def _acquire(
    ask: int, name: bytes, partitions: list[int], epochs: list[int], keys: list[bytes],
    exclusive: bool, reads: bool, span: list[Any] | None, wait_us: int,
) -> AcquireWanted:  # fmt: skip
    _check_numbers(ask, wait_us, *partitions, *epochs)
    if len(partitions) != len(epochs) or len(set(partitions)) != len(partitions):
        raise ValueError(f"{partitions!r} are not partitions with an epoch each")
    places = set(partitions)
    for key in keys:
        if len(key) < PREFIX_SIZE or split_key(key)[0] not in places:
            raise ValueError("a key that is of none of the partitions")
    within = None
    if span is not None:
        namespace, low, high = span
        _check_bounds(namespace, low, high)
        within = Range(namespace=namespace, start=low, stop=high)
    return AcquireWanted(
        ask, checked_id(name), partitions, epochs, keys, exclusive, reads, within, wait_us
    )


def _acquired(
    ask: int, name: bytes, rows: list[Any] | None, failure: list[Any] | None
) -> tuple[int, bytes, list[FoundAt] | None, Failure | None]:
    found = None if rows is None else [FoundAt(*row) for row in rows]
    for one in found or ():
        _check_numbers(ask, *one[1:])
        if type(one.value) not in (bytes, type(None)):
            raise ValueError("a value that is not bytes")
    _check_numbers(ask)
    return ask, checked_id(name), found, None if failure is None else _failure(failure)


def _probe(initiator: bytes, path: list[bytes], ask: int, number: int, waits: bool) -> LockProbe:
    _check_numbers(ask, number)
    if not path:
        raise ValueError("a probe that is about nobody")
    return LockProbe(checked_id(initiator), list(map(checked_id, path)), ask, number, waits)


def _given(value: bytes | None) -> bytes | None:
    return None if value is None else checked_id(value)


def _failure(fields: list[Any]) -> Failure:
    code, message, more = fields
    if not isinstance(more, dict):
        raise ValueError(f"{more!r} are not the fields of an error")
    return Failure(checked_text(code), checked_text(message), more)


def _reads(rows: list[Any], partition: int) -> list[ReadKey]:
    found = [ReadKey(key, epoch, counter) for key, epoch, counter in rows]
    _check_keys([one.full_key for one in found], partition)
    for one in found:
        _check_numbers(*one[1:])
    return found


def _spans(rows: list[Any]) -> list[ReadSpan]:
    found = [ReadSpan(*row) for row in rows]
    for namespace, low, high, number, digest in found:
        _check_numbers(number)
        _check_bounds(namespace, low, high)
        if type(digest) is not bytes:
            raise ValueError("a digest that is not bytes")
    return found


def _check_bounds(namespace: int, low: bytes, high: bytes | None) -> None:
    _check_numbers(checked_number(namespace))
    if namespace > NAMESPACE_MAX:
        raise ValueError(f"no map has the id {namespace}")
    if not {bytes}.issuperset(map(type, (low, b"" if high is None else high))):
        raise ValueError("bounds that are not bytes")


def _check_numbers(*numbers: int) -> None:
    check_numbers(numbers, 1)
    if numbers and max(numbers) > COUNTER_MAX:
        raise ValueError(f"{max(numbers)} is not a number of 63 bits")


def _check_keys(keys: Sequence[bytes], partition: int) -> None:
    for key in keys:
        if type(key) is not bytes or len(key) < PREFIX_SIZE or split_key(key)[0] != partition:
            raise ValueError(f"a key that is not of partition {partition}")


_READERS: dict[str, Any] = {
    "lock": _lock,
    "locked": _answer,
    "unlock": _unlock,
    "confirm": _confirm,
    "confirmed": _answer,
    "prepare": _prepare,
    "prepared": _prepared,
    "refused": _refused,
    "decision": _decision,
    "question": _question,
    "too-old": _too_old,
    "acquire": _acquire,
    "acquired": _acquired,
    "give-back": lambda names: (list(map(checked_id, names)),),
    "probe": _probe,
    "ask-over": lambda txs: (list(map(checked_id, txs)),),
    "over": lambda txs: (list(map(checked_id, txs)),),
    "settled": _settled,
    "ask-settled": _settled,
    "pin": lambda snapshot, attempt, decided: (checked_id(snapshot), attempt, decided),
    "pinned": _pinned,
    "resume": lambda snapshot, attempt: (checked_id(snapshot), attempt),
    "held": lambda snapshot, attempt, still: (checked_id(snapshot), attempt, still),
    "forget": _forget,
}
KINDS = frozenset(_READERS)
"""The names of these messages."""
