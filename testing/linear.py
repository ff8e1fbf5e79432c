"""Whether a history is linearizable: whether one order of its operations explains every answer.

Each operation that was acknowledged has to take effect at one moment between its begin and its end.
The search is that of Wing and Gong (1993) with the memory of Lowe (2017): a configuration is the
set of operations that took effect, as bits of an integer, and the value behind them.  None is
looked at twice.  Keys are independent of each other, so each is searched by itself.

What keeps the search short, and why nothing is lost by it:

- A move that fits and changes nothing is made at once: made earlier it hinders no other one.
- Of moves that may come next and have the same effect, the one with the earliest end is tried.
- A value that somebody has yet to see is not left if nothing brings it back.
- What ``moves`` and ``zones`` find out beforehand.

Calls of unknown outcome may come at any time after their begin, or never; failed ones never come.

Left out: what a violation is called and how it reads (``anomalies``), transactions, and scans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from .anomalies import Violation, name_of, overlapping
from .histories import Call, Get, History, HistoryKey, HistoryValue
from .moves import (
    LEAVING,
    NEEDING,
    CallModel,
    KeyMove,
    MoveKind,
    TimedMove,
    key_moves,
    merge_untold,
    tightened,
)
from .zones import have_order

BUDGET = 200_000
"""Configurations that one check looks at before it gives up."""

EXPLAINING = 50_000
"""Configurations that the explanation of a violation looks at in all."""

POSSIBLE_MAX = 32
"""Values that the explanation tries before the operation that cannot be placed."""


class UndecidedError(Exception):
    """The budget was used up before it was clear whether the history is linearizable."""


def check(
    history: History,
    model: CallModel,
    *,
    budget: int = BUDGET,
    left_out: Container[HistoryKey] = (),
) -> Violation | None:
    """Return the first key's violation, or None if the history is linearizable.

    Of the keys that are ``left_out`` nothing is expected.
    ``UndecidedError`` if that takes more configurations than ``budget``.
    """
    by_key: dict[HistoryKey, list[Call]] = defaultdict(list)
    for call in history.calls():
        if call.key not in left_out:
            by_key[call.key].append(call)
    left = budget
    for key, calls in by_key.items():
        used = _used(key_moves(calls, model), model.initial, left)
        if used is None:
            return _violation(key, calls, model)
        if used > left:
            raise UndecidedError(
                f"{len(calls)} calls of {key!r} were not decided within {budget} configurations; "
                "give a larger budget, or record fewer calls or clients for each key"
            )
        left -= used
    return None


# ------------------------------------------------------------------ the search


def _used(moves: list[TimedMove], initial: Any, budget: int) -> int | None:
    """Return how many configurations it took to place all moves, or None if that is impossible.

    More than the budget means that the search was given up.
    """
    adding = [timed.move.needs for timed in moves if timed.move.kind == MoveKind.ADD]
    if not adding:
        moves = tightened(moves, initial)
        if any(timed.end < timed.began for timed in moves) or not have_order(moves, initial):
            return None
        merge_untold(moves)
    return _Search(moves, adding).run(initial, budget)


class _Search:
    """One key: the moves that have to come, by their begin, and those that may."""

    def __init__(self, moves: list[TimedMove], adding: Sequence[int]) -> None:
        due = sorted((t for t in moves if not t.optional), key=lambda timed: timed.began)
        self.due = [(t.began, t.end, t.move.kind, t.move.needs, t.move.leaves) for t in due]
        self.all_due = (1 << len(due)) - 1
        self.needed: dict[Any, int] = defaultdict(int)  # value -> moves that need it, as bits
        self.made: dict[Any, int] = defaultdict(int)  # value -> moves that leave it, as bits
        for bit, (_, _, kind, needs, leaves) in enumerate(self.due):
            if kind in NEEDING:
                self.needed[needs] |= 1 << bit
            if kind in LEAVING:
                self.made[leaves] |= 1 << bit
        self.maybe = self._maybe(moves)
        self.maybe_made: dict[Any, int] = defaultdict(int)
        for bit, (_, kind, _, leaves, _) in enumerate(self.maybe):
            if kind in LEAVING:
                self.maybe_made[leaves] |= 1 << bit
        # A counter that never falls has each value once; one that may fall may come back to any.
        self.any_again = any(delta <= 0 for delta in adding)

    @staticmethod
    def _maybe(moves: list[TimedMove]) -> list[tuple[int, MoveKind, Any, Any, int]]:
        """The moves that may come, by begin, each with the bit that has to be set before it.

        Of those with one effect the first to begin comes first.
        """
        found: list[tuple[int, MoveKind, Any, Any, int]] = []
        latest: dict[KeyMove, int] = {}
        for timed in sorted((t for t in moves if t.optional), key=lambda timed: timed.began):
            move = timed.move
            before = latest.get(move, 0)
            latest[move] = 1 << len(found)
            found.append((timed.began, move.kind, move.needs, move.leaves, before))
        return found

    def run(self, initial: Any, budget: int) -> int | None:
        """Walk through the configurations, the ones behind the earliest end first."""
        all_due, seen = self.all_due, set()
        used = 0
        stack = [(0, 0, 0, initial)]  # what is placed: up to where, of those due, of the others
        while stack:
            low, done, extra, state = stack.pop()
            while True:  # all moves that fit and change nothing
                placed, nexts = self._nexts(low, done, extra, state)
                if placed is None:
                    break
                done = placed
                while done >> low & 1:
                    low += 1
            if done == all_due:
                return used
            key = (low, done >> low, extra, state)
            if key in seen:
                continue
            seen.add(key)
            used += 1
            if used > budget:
                return used
            for _, done_next, extra_next, state_next in nexts:
                low_next = low
                while done_next >> low_next & 1:
                    low_next += 1
                stack.append((low_next, done_next, extra_next, state_next))
        return None

    def _nexts(
        self, low: int, done: int, extra: int, state: Any
    ) -> tuple[int | None, list[tuple[float, int, int, Any]]]:
        """Return what is placed with all moves that change nothing, or the moves to try.

        The latter come latest end first, as they go on a stack.
        """
        due = self.due
        first_end = inf
        settled = done
        choices: dict[tuple[MoveKind, Any, Any], tuple[float, int]] = {}
        rest = done >> low
        for bit in range(low, len(due)):
            began, end, kind, needs, leaves = due[bit]
            if began > first_end:
                break
            if rest & 1:
                rest >>= 1
                continue
            rest >>= 1
            if end < first_end:
                first_end = end
            if kind == MoveKind.READ:
                if needs == state:
                    settled |= 1 << bit
            elif kind == MoveKind.REFUSED:
                if needs != state:
                    settled |= 1 << bit
            elif kind == MoveKind.WRITE or needs == state:
                known = choices.get((kind, needs, leaves))
                if known is None or end < known[0]:
                    choices[kind, needs, leaves] = end, bit
        if settled != done:
            return settled, []
        nexts = []
        waiting = self.needed[state] & ~done
        for (_, _, leaves), (end, bit) in choices.items():
            if leaves == state or not self._stuck(waiting & ~(1 << bit), done, extra, state):
                nexts.append((end, done | 1 << bit, extra, leaves))
        for bit, (began, kind, needs, leaves, before) in enumerate(self.maybe):
            if began > first_end:
                break
            if extra >> bit & 1 or extra & before != before:
                continue
            if kind == MoveKind.SWAP and needs != state:
                continue
            after = state + needs if kind == MoveKind.ADD else leaves
            if after != state and not self._stuck(waiting, done, extra, state):
                nexts.append((inf, done, extra | 1 << bit, after))
        nexts.sort(key=_by_end, reverse=True)
        return None, nexts

    def _stuck(self, waiting: int, done: int, extra: int, state: Any) -> bool:
        """Tell whether moves wait for a value that would not come back once it is left."""
        if not waiting or self.any_again:
            return False
        return not (self.made[state] & ~done or self.maybe_made[state] & ~extra)


def _by_end(choice: tuple[float, int, int, Any]) -> float:
    return choice[0]


# ------------------------------------------------------------------ what is wrong


class _Questions:
    """Asks about parts of a history, within one budget for all of them."""

    def __init__(self, model: CallModel) -> None:
        self.model = model
        self._left = EXPLAINING

    def fits(self, calls: Iterable[Call]) -> bool | None:
        """Tell whether there is an order, or None if that takes too long."""
        used = _used(key_moves(calls, self.model), self.model.initial, self._left)
        if used is None:
            return False
        undecided = used > self._left
        self._left = max(self._left - used, 0)
        return None if undecided else True


def _violation(key: HistoryKey, calls: list[Call], model: CallModel) -> Violation:
    """Explain a key whose calls cannot be ordered, by the first answer that makes it so."""
    ask = _Questions(model)
    ends = sorted(call.ended for call in calls if call.ending == "ok" and call.ended is not None)
    low, high = 0, len(ends) - 1  # the calls up to ends[high] are known to fit in no order
    while low < high:
        middle = (low + high) // 2
        if ask.fits(_up_to(calls, ends[middle])) is False:
            high = middle
        else:
            low = middle + 1
    call = next(call for call in calls if call.ending == "ok" and call.ended == ends[high])
    anomaly, because = name_of(calls, call)
    return Violation(
        anomaly=anomaly,
        key=key,
        call=call,
        because=tuple(because),
        possible=_possible(ask, _up_to(calls, ends[high]), call),
        concurrent=tuple(overlapping(calls, call)),
    )


def _up_to(calls: Iterable[Call], end: int) -> list[Call]:
    """Return the calls that began before an event, without the answers behind it."""
    return [
        replace(call, ended=None, ended_at=None, ending="unknown", result=None)
        if call.ending == "ok" and call.ended is not None and call.ended > end
        else call
        for call in calls
        if call.began < end
    ]


def _possible(ask: _Questions, calls: list[Call], stuck: Call) -> tuple[HistoryValue, ...]:
    """Return the values that a read instead of the call might have found."""
    others = [call for call in calls if call.number != stuck.number]
    reads = [
        replace(stuck, action=Get(stuck.key), result=value)
        for value in _candidates(others, ask.model)
    ]
    return tuple(_value(read) for read in reads if ask.fits([*others, read]))


def _value(read: Call) -> HistoryValue:
    assert not isinstance(read.result, bool)
    return read.result


def _candidates(calls: list[Call], model: CallModel) -> list[HistoryValue]:
    """Return the first value and those that the latest calls may have left, each once."""
    moves = key_moves(calls, model)
    values = [timed.move.leaves for timed in moves if timed.move.kind in LEAVING]
    latest = values[-POSSIBLE_MAX:]
    added = sum(timed.move.kind == MoveKind.ADD for timed in moves)
    if added:
        top = max(values, default=0)
        latest += range(top + 1, top + 1 + min(added, POSSIBLE_MAX))
    return list(dict.fromkeys([model.initial, *latest]))
