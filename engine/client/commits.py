"""Commits of a client: one request, and the question for its outcome if the answer was lost.

Invariants:

- A commit that never took effect is sent again under a new id; under one that was given as a new
  attempt.
- An attempt under a given id that was refused because somebody else asked for its outcome is an
  error; the next attempt of this client has a higher number.
- ``CommitUnknownError`` is raised only if nobody could be asked in time, or nobody knows any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ...affinity.errors import (
    CommitUnknownError,
    DeadlineError,
    RolledBackError,
    TidelogError,
    UsageError,
)
from ..commit.entries import Receipt
from ..commit.outcomes import Outcome, check_receipt_home, home_of, is_automatic, is_of_client
from .lateness import late_hint
from .routing import (
    PAUSE_S,
    AgainError,
    AnswerLostError,
    Cluster,
    Job,
    Pause,
    Steps,
    Tried,
    question,
    served,
)

AGAIN_PAUSE_S_MAX = 0.05
"""The longest pause of who has lost a race for locks; it tries as long as its call may take."""
RACES_MAX = 2
"""How many races for locks an attempt loses that others follow, which wait for them in the end."""

ReadColumns = list[tuple[int, list[bytes], list[int], list[int]]]
"""Namespace, keys, epochs, counters: versions that have to be so still."""
RangeColumns = list[tuple[int, list[int], bytes, bytes | None, int, bytes]]
"""Namespace, partitions, bounds, count and digest: what a scan has to find still."""
WriteColumns = list[tuple[int, list[bytes], list[bytes | None]]]
"""Namespace, keys, values; None for a delete."""


class CommitRequest(NamedTuple):
    """What a commit is about, but for its id."""

    partitions: Sequence[int]
    """All that it reads and writes, ascending."""
    written: int | None
    """The lowest partition that it writes; None if it only confirms what was read."""
    tag: str | None
    reads: ReadColumns
    ranges: RangeColumns
    writes: WriteColumns
    opened: bytes | None = None
    """The open transaction that has locked all that, if it is pessimistic."""

    @property
    def operation(self) -> str:
        """What is asked for."""
        return "commit" if self.opened is None else "commit-locked"

    def arguments(self, tx_id: bytes, attempt: int, given: bool) -> tuple[object, ...]:
        """Return what is sent."""
        sent = tx_id, attempt, given, self.tag, self.reads, self.ranges, self.writes
        return sent if self.opened is None else (self.opened, *sent)


def put_of(namespace: int, partition: int, key: bytes, value: bytes | None) -> CommitRequest:
    """Return the commit of one key."""
    return CommitRequest((partition,), partition, None, [], [], [(namespace, [key], [value])])


def puts_of(
    namespace: int, partitions: Iterable[int], pairs: dict[bytes, bytes | None]
) -> CommitRequest:
    """Return the commit of some keys of one map."""
    touched = sorted(set(partitions))
    return CommitRequest(
        touched, touched[0], None, [], [], [(namespace, [*pairs], [*pairs.values()])]
    )


def committing(
    cluster: Cluster,
    commit: CommitRequest,
    given_id: bytes | None,
    new_id: Callable[[], bytes],
    until: float,
    first: tuple[bytes, Tried] | None = None,
    *,
    races_max: int | None = None,
) -> Steps[Receipt]:
    """Return the receipt of a commit; ``first`` is an attempt that was made, with its id.

    With ``races_max`` it is a ``RolledBackError`` to have lost so many races for locks.
    """
    given = given_id is not None
    attempt, asked = 1 if given_id is None else cluster.next_attempt(given_id), False
    pause, races = PAUSE_S, 0
    while True:
        tx_id = first[0] if first else given_id or new_id()
        home = _home(cluster, commit, given_id)
        once = commit.written is not None
        arguments = commit.arguments(tx_id, attempt, given)
        job = Job((home,), commit.operation, arguments, until, once=once, named=commit.partitions)
        lost = refused = None
        try:
            answer = yield from served(cluster, job, first[1] if first else None)
        except AgainError as error:
            first, races = None, races + 1
            if races == races_max:
                raise RolledBackError(f"the transaction was not committed: {error}") from None
            pause = yield from _rested(error, pause, until)
            continue
        except AnswerLostError as error:
            lost = error
        except RolledBackError as error:
            refused = error
        first = None
        if refused is not None:
            if given_id is not None and refused.attempt:
                attempt = cluster.refused(given_id, refused.attempt)
            if not (asked and refused.attempt):
                raise refused
        elif lost is None:
            return Receipt(tx_id, 0, answer[0], home)
        else:
            asked = True
            if (yield from _took_effect(cluster, tx_id, given, home, until, lost)):
                return Receipt(tx_id, 0, 0, home)
            if given_id is not None:
                attempt = cluster.refused(given_id, attempt)


def asked_outcome(cluster: Cluster, tx_id: bytes, home: int | None, until: float) -> Steps[Outcome]:
    """Return what became of a transaction that a user asks about.

    What a user gave an id has its outcome where that lies, and ``home`` is not needed.  What had
    none is in the log of a partition that it wrote, which no id tells: ``UsageError`` without it.
    An id that a store has made before a cluster adopted it may look like one that was given.
    """
    if cluster.view is None:
        yield from served(cluster, Job((), "status", (), until))
    view = cluster.view
    assert view is not None, "who answers tells of it"
    check_receipt_home(home, len(view.primaries))
    automatic = is_of_client(tx_id, cluster.store)
    if automatic and home is None:
        raise UsageError(
            f"nobody gave the id {tx_id.hex()} to its transaction, so it does not tell where its "
            "outcome lies",
            hint="Give the `home` of its receipt, or of its error: "
            "`db.outcome(receipt.tx_id, home=receipt.home)`.",
        )
    found: Outcome = "too_old"
    if home is not None:
        found = yield from question(cluster, tx_id, False, home, until)
        if automatic or found == "committed":
            return found
    place = home_of(tx_id, view.spaces[0].partitions)
    given = yield from question(cluster, tx_id, True, place, until)
    return found if given == "rolled_back" and is_automatic(tx_id) else given


def _rested(error: AgainError, pause: float, until: float) -> Steps[float]:
    """Pause before a commit is made anew; return the next pause."""
    if error.now >= until:
        raise DeadlineError(
            f"a transaction was not committed within the time that was given: {error}",
            hint=late_hint("let fewer write the same keys", error.advice),
        )
    yield Pause(min(pause, until - error.now))
    return min(2 * pause, AGAIN_PAUSE_S_MAX)


def _home(cluster: Cluster, commit: CommitRequest, given_id: bytes | None) -> int:
    if given_id is not None and cluster.view is not None:
        return home_of(given_id, cluster.view.spaces[0].partitions)
    return commit.partitions[0] if commit.written is None else commit.written


_NOT_TOLD: Mapping[str, str] = {
    "pending": "; then it had not ended",
    "too_old": "; then nobody could tell: the log of who serves it does not go back so far, or its "
    "data were copied in full since, or just before",
}


def _took_effect(
    cluster: Cluster, tx_id: bytes, given: bool, home: int, until: float, lost: AnswerLostError
) -> Steps[bool]:
    """Tell what became of a commit whose answer was lost."""
    why = ""
    if lost.now < until:
        try:
            outcome = yield from question(cluster, tx_id, given, home, until)
        except TidelogError as error:  # whatever it is, it is not what became of the commit
            why = f"; then {error}"
        else:
            if outcome in ("committed", "rolled_back"):
                return outcome == "committed"
            why = _NOT_TOLD.get(outcome, "")
    told = f"{lost}{why}"
    raise CommitUnknownError(
        f"a commit was sent, and its answer was lost ({told}); it may have taken effect or not",
        tx_id=tx_id,
        home=home,
        hint="Ask `db.outcome(tx_id)`, with `home=` unless the id was given.",
    )
