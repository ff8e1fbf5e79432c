"""What the calls of one key do, as moves from one value to the next, and when they may come.

Invariants:

- A move that has to come has an end.  One that may come, because nobody knows what became of its
  call, has none.
- What is changed here never changes whether there is an order: writes get the end that the first
  answer about them gives them, and moves that can help no other one are left out.

Left out: the search for an order (``linear``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf
from typing import Any, Final

from ..affinity.errors import UsageError
from .histories import Action, Call, CompareAndSet, Delete, Get, HistoryValue, Incr, Put


class MoveKind(IntEnum):
    """What a move does with the value that it finds."""

    READ = 0  # needs a value
    WRITE = 1  # leaves a value, whatever it finds
    SWAP = 2  # needs a value and leaves another one
    REFUSED = 3  # needs any value but this one
    ADD = 4  # adds to whatever it finds


@dataclass(frozen=True, slots=True)
class KeyMove:
    """What one call does, if it takes effect: kind, what it needs or adds, what it leaves."""

    kind: MoveKind
    needs: Any = None
    leaves: Any = None


@dataclass(frozen=True, slots=True)
class CallModel:
    """What the calls of one key mean: the first value, and the move of each call."""

    name: str
    initial: HistoryValue
    move: Callable[[Action, Any, bool], KeyMove | None]
    """Action, result, whether it was acknowledged -> its move, or None if it does not matter."""


def _register_move(action: Action, result: Any, known: bool) -> KeyMove | None:
    match action:
        case Get():
            return KeyMove(MoveKind.READ, result) if known else None
        case Put(_, value):
            return KeyMove(MoveKind.WRITE, leaves=value)
        case Delete():
            return KeyMove(MoveKind.WRITE)
        case CompareAndSet(_, expected, value):
            if known and not result:
                return KeyMove(MoveKind.REFUSED, expected)
            if expected == value:
                return KeyMove(MoveKind.READ, expected) if known else None
            return KeyMove(MoveKind.SWAP, expected, value)
    raise UsageError(f"a register has no {type(action).__name__}", hint="Use COUNTER for `incr`.")


def _counter_move(action: Action, result: Any, known: bool) -> KeyMove | None:
    match action:
        case Get():
            return KeyMove(MoveKind.READ, result or 0) if known else None
        case Incr(_, delta):
            if known and not delta:
                return KeyMove(MoveKind.READ, result)
            if known:
                return KeyMove(MoveKind.SWAP, result - delta, result)
            return KeyMove(MoveKind.ADD, delta)
    raise UsageError(
        f"a counter has no {type(action).__name__}", hint="Use REGISTER for puts and the like."
    )


REGISTER: Final = CallModel("register", None, _register_move)
"""get, put, delete and compare_and_set; None stands for no value."""

COUNTER: Final = CallModel("counter", 0, _counter_move)
"""incr, which returns the sum, and get; a counter that is not there is 0."""


@dataclass(slots=True)
class TimedMove:
    """A move with the events between which it has to come; ``end`` is endless if it may not."""

    move: KeyMove
    began: int
    end: float

    @property
    def optional(self) -> bool:
        """Whether it may never come."""
        return self.end == inf


def key_moves(calls: Iterable[Call], model: CallModel) -> list[TimedMove]:
    """Return the moves of all calls but the failed ones."""
    found = []
    for call in calls:
        known = call.ending == "ok" and call.ended is not None
        if call.ending != "failed":
            move = model.move(call.action, call.result, known)
            if move is not None:
                end = inf if call.ended is None or not known else call.ended
                found.append(TimedMove(move, call.began, end))
    return found


class _Other:
    """The one value for all those that no answer tells of."""

    def __repr__(self) -> str:
        return "another value"


_OTHER = _Other()

NEEDING = frozenset({MoveKind.READ, MoveKind.SWAP})
LEAVING = frozenset({MoveKind.WRITE, MoveKind.SWAP})


def tightened(moves: list[TimedMove], initial: Any) -> list[TimedMove]:
    """Let writes end before their value is seen, and drop what can help no other move."""
    refusing = any(timed.move.kind == MoveKind.REFUSED for timed in moves)
    changed = True
    while changed:
        changed = False
        seen: dict[Any, float] = {}  # value -> the first end of a move that needs it
        makers: dict[Any, int] = defaultdict(int)
        for timed in moves:
            if timed.move.kind in NEEDING:
                value = timed.move.needs
                seen[value] = min(seen.get(value, inf), timed.end)
            if timed.move.kind in LEAVING:
                makers[timed.move.leaves] += 1
        kept = []
        for timed in moves:
            value = timed.move.leaves
            if timed.move.kind in LEAVING:
                if value not in seen and timed.optional and not refusing:
                    changed = True
                    continue
                if makers[value] == 1 and value != initial and seen.get(value, inf) < timed.end:
                    timed.end = seen[value]
                    changed = True
            kept.append(timed)
        moves = kept
    return moves


def merge_untold(moves: list[TimedMove]) -> None:
    """Make one value of those that no answer tells of."""
    telling = {*NEEDING, MoveKind.REFUSED}
    told = {timed.move.needs for timed in moves if timed.move.kind in telling}
    for timed in moves:
        if timed.move.kind in LEAVING and timed.move.leaves not in told:
            timed.move = replace(timed.move, leaves=_OTHER)
