"""Histories as short texts, a slow checker of them, and a store that answers at random moments.

A line of a text is one call: client, begin-end, and what it did, with the answer behind ``->``.  An
end with ``?`` is unknown, one with ``!`` failed.  ``-`` is no value.  All is about one key.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tidelog.testing.histories import (
    Action,
    Call,
    CallBegan,
    CallEnded,
    CallEnding,
    CompareAndSet,
    Delete,
    Get,
    History,
    HistoryEvent,
    Incr,
    Put,
)
from tidelog.testing.moves import CallModel

KEY = "x"


def history_of(text: str) -> History:
    """The history that lines tell; of events at one time begins come first."""
    return ordered([_call(number, line) for number, line in enumerate(text.strip().splitlines())])


def ordered(calls: Sequence[Call]) -> History:
    """The history of calls by the times of their events; ``number`` is only a name here."""
    events: list[tuple[float, int, int, Call]] = []
    for place, call in enumerate(calls):
        events.append((call.began_at, 0, place, call))
        if call.ended_at is not None:
            events.append((call.ended_at, 1, place, call))
    history = History()
    numbers: dict[int, int] = {}
    for time, is_end, place, call in sorted(events, key=lambda event: event[:3]):
        event: HistoryEvent
        if is_end:
            event = CallEnded(
                number=numbers[place], time=time, ending=call.ending, result=call.result
            )
        else:
            numbers[place] = len(numbers)
            event = CallBegan(client=call.client, action=call.action, time=time)
        history.add(event)
    return history


def _call(number: int, line: str) -> Call:
    asked, _, answer = line.partition("->")
    client, span, name, *arguments = asked.split()
    begin, _, end = span.partition("-")
    ending: CallEnding = {"?": "unknown", "!": "failed"}.get(end[-1:], "ok")  # type: ignore[assignment]
    end = end.rstrip("?!")
    return Call(
        number=number,
        client=client,
        action=_action(name, [_value(argument) for argument in arguments]),
        began=0,
        began_at=float(begin),
        ended_at=float(end) if end else None,
        ending=ending,
        result={"yes": True, "no": False}.get(answer.strip(), _value(answer.strip() or "-")),
    )


def _value(text: str) -> int | None:
    return None if text in ("-", "yes", "no") else int(text)


def _action(name: str, arguments: Sequence[int | None]) -> Action:
    match name, arguments:
        case "get", []:
            return Get(KEY)
        case "put", [value]:
            return Put(KEY, value)
        case "delete", []:
            return Delete(KEY)
        case "cas", [expected, value]:
            return CompareAndSet(KEY, expected, value)
        case "incr", [int(delta)]:
            return Incr(KEY, delta)
        case "incr", []:
            return Incr(KEY)
    raise AssertionError(f"{name} {arguments}")


# ------------------------------------------------------------------ slow and obvious


def applied(action: Action, state: Any) -> tuple[Any, Any]:
    """Answer and next value of one operation alone."""
    match action:
        case Get():
            return state, state
        case Put(_, value):
            return None, value
        case Delete():
            return None, None
        case CompareAndSet(_, expected, value):
            return state == expected, value if state == expected else state
        case Incr(_, delta):
            return state + delta, state + delta


def has_order(history: History, model: CallModel) -> bool:
    """Try every order of every choice of calls of unknown outcome."""
    calls = [call for call in history.calls() if call.ending != "failed"]
    return _continues(calls, model.initial)


def _continues(left: list[Call], state: Any) -> bool:
    if all(call.ending == "unknown" for call in left):
        return True
    for call in left:
        others = [other for other in left if other is not call]
        if any(other.before(call) for other in others):
            continue
        result, after = applied(call.action, state)
        if call.ending == "ok" and call.result != result:
            continue
        if _continues(others, after):
            return True
    return False


# ------------------------------------------------------------------ histories that are right


def simulated_calls(
    rng: random.Random,
    *,
    clients: int,
    count: int,
    counter: bool = False,
    values: int = 10**9,
    unknown: float = 0.1,
) -> History:
    """A history of one key that took effect one call at a time, at moments between their ends."""
    state: Any = 0 if counter else None
    fresh = 0
    free = dict.fromkeys((f"c{n}" for n in range(clients)), 0.0)
    pending: list[tuple[float, int, str]] = []  # moment, number, and what comes then
    history = History()
    begun: list[tuple[Any, Action, bool]] = []
    results: dict[int, Any] = {}
    owners: list[str] = []
    now = 0.0
    while len(begun) < count or pending:
        now += rng.random()
        if free and len(begun) < count and rng.random() < 0.6:
            client = rng.choice(sorted(free))
            del free[client]
            fresh = fresh % values + 1
            action = _drawn(rng, state, fresh, counter)
            lost = rng.random() < unknown
            begun.append((history.begin(client, action, now), action, lost))
            owners.append(client)
            number = len(begun) - 1
            end = now + rng.uniform(0.5, 6)
            if not lost or rng.random() < 0.5:
                pending.append((rng.uniform(now, end + 20 * lost), number, "effect"))
            pending.append((end, number, "end"))
            continue
        for moment, number, what in sorted(entry for entry in pending if entry[0] <= now):
            pending.remove((moment, number, what))
            open_call, action, lost = begun[number]
            if what == "effect":
                results[number], state = applied(action, state)
            elif lost:
                open_call.unknown(now)
            else:
                open_call.ok(results[number], now)
            if what == "end":
                free[owners[number]] = now
    return history


def _drawn(rng: random.Random, state: Any, fresh: int, counter: bool) -> Action:
    if counter:
        steps: list[Action] = [Get(KEY), Incr(KEY), Incr(KEY, rng.choice([1, 2]))]
        return rng.choice(steps)
    actions: list[Action] = [
        Get(KEY),
        Get(KEY),
        Put(KEY, fresh),
        Put(KEY, fresh),
        Delete(KEY),
        CompareAndSet(KEY, state, fresh),
        CompareAndSet(KEY, max(fresh - 1, 1), fresh),
    ]
    return rng.choice(actions)
