"""What several clients did to the keys of one store, and what they were told: a history.

A client ``begin``s an operation before it asks the store, and says afterwards how it ended: ``ok``
with a result, ``failed`` (it certainly did nothing), or ``unknown`` (it may take effect at any time
after its begin, or never).  A history is a list of such events; calls are folded from them.

Invariants:

- The order of events is the order in which they were recorded.  Time is for people who read it.
- A client has one call at a time.  A call without an end counts as unknown.
- Events are plain frozen values.  As JSON lines a history is a file that can be kept.

Left out: whether a history is right (``linear``), and who makes one (``workloads``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..affinity.errors import UsageError

HistoryKey: TypeAlias = str | int
HistoryValue: TypeAlias = str | int | None
"""What a key may have; None stands for no value."""

CallEnding = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key; its result is the value, or None."""

    key: HistoryKey


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key."""

    key: HistoryKey
    value: HistoryValue


@dataclass(frozen=True, slots=True)
class Delete:
    """Take the value of a key away, if there is one."""

    key: HistoryKey


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Set a key if it has what is expected; its result tells whether it did."""

    key: HistoryKey
    expected: HistoryValue
    value: HistoryValue


@dataclass(frozen=True, slots=True)
class Incr:
    """Add to a number, which is 0 if it is not there; its result is the sum."""

    key: HistoryKey
    delta: int = 1


Action: TypeAlias = Get | Put | Delete | CompareAndSet | Incr

ACTIONS: dict[str, type[Action]] = {
    "get": Get,
    "put": Put,
    "delete": Delete,
    "compare_and_set": CompareAndSet,
    "incr": Incr,
}
"""Name of an operation -> its class."""

_NAMES = {kind: name for name, kind in ACTIONS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operation of one client, as this client saw it.

    ``began`` and ``ended`` are places in the order of events.  ``ended`` is None if no answer came;
    a call of unknown outcome keeps its place there as well, but may take effect behind it.
    """

    number: int
    client: str
    action: Action
    began: int
    began_at: float
    ended: int | None = None
    ended_at: float | None = None
    ending: CallEnding = "unknown"
    result: HistoryValue | bool = None

    @property
    def key(self) -> HistoryKey:
        """The key that the operation is about."""
        return self.action.key

    def before(self, other: Call) -> bool:
        """Tell whether this call was answered before the other one began."""
        return self.ending == "ok" and self.ended is not None and self.ended < other.began

    def __str__(self) -> str:
        match self.action:
            case Get(key):
                text = f"get {key!r}"
            case Put(key, value):
                text = f"put {key!r} = {value!r}"
            case Delete(key):
                text = f"delete {key!r}"
            case CompareAndSet(key, expected, value):
                text = f"compare_and_set {key!r} from {expected!r} to {value!r}"
            case Incr(key, delta):
                text = f"incr {key!r} by {delta}"
        shown = isinstance(self.action, Get | CompareAndSet | Incr)
        ending = f" -> {self.result!r}" if self.ending == "ok" and shown else ""
        if self.ending != "ok":
            ending = f" ({self.ending})"
        until = "no answer" if self.ended_at is None else f"{self.ended_at:g}"
        return f"{self.client}: {text}{ending} [{self.began_at:g} .. {until}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBegan:
    """A client is about to ask; its number counts the calls of the history."""

    client: str
    action: Action
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnded:
    """What became of the call of that number."""

    number: int
    time: float
    ending: CallEnding
    result: HistoryValue | bool = None


HistoryEvent: TypeAlias = CallBegan | CallEnded


class OpenCall:
    """A call that waits for its end, which is told once."""

    def __init__(self, history: History, number: int) -> None:
        self._history = history
        self._number = number

    def ok(self, result: HistoryValue | bool, time: float) -> None:
        """Say that the operation was acknowledged, and with which result."""
        self._end("ok", time, result)

    def failed(self, time: float) -> None:
        """Say that the operation certainly did nothing."""
        self._end("failed", time)

    def unknown(self, time: float) -> None:
        """Say that nobody can tell whether the operation takes effect."""
        self._end("unknown", time)

    def _end(self, ending: CallEnding, time: float, result: HistoryValue | bool = None) -> None:
        ended = CallEnded(number=self._number, time=time, ending=ending, result=result)
        self._history.add(ended)


class History:
    """The events of all clients, in the order in which they were recorded."""

    def __init__(self, events: Iterable[HistoryEvent] = ()) -> None:
        self._events: list[HistoryEvent] = []
        self._begun: list[CallBegan] = []
        self._open: dict[str, int] = {}
        """Client -> number of its call that has not ended."""
        for event in events:
            self.add(event)

    def __repr__(self) -> str:
        return f"<History calls={len(self._begun)} open={len(self._open)}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._events == other._events

    __hash__ = None  # type: ignore[assignment]  # it grows

    @property
    def events(self) -> tuple[HistoryEvent, ...]:
        """All events so far."""
        return tuple(self._events)

    def begin(self, client: str, action: Action, time: float) -> OpenCall:
        """Record that a client is about to ask, and return what its end is told to."""
        self.add(CallBegan(client=client, action=action, time=time))
        return OpenCall(self, len(self._begun) - 1)

    def add(self, event: HistoryEvent) -> None:
        """Add an event; one that cannot be raises ``UsageError`` and changes nothing."""
        if isinstance(event, CallBegan):
            if event.client in self._open:
                raise UsageError(
                    f"the client {event.client!r} has a call that has not ended",
                    hint="Tell its end first, or begin under the name of another client.",
                )
            self._open[event.client] = len(self._begun)
            self._begun.append(event)
        else:
            began = self._begun[event.number] if event.number < len(self._begun) else None
            if began is None or self._open.get(began.client) != event.number:
                raise UsageError(
                    f"call {event.number} is not open, so it cannot end as {event.ending}",
                    hint="Tell the end of a call once, after its begin.",
                )
            del self._open[began.client]
        self._events.append(event)

    def calls(self) -> list[Call]:
        """Return every call, in the order of their begins."""
        ends: dict[int, tuple[int, CallEnded]] = {}
        starts: list[tuple[int, CallBegan]] = []
        for place, event in enumerate(self._events):
            if isinstance(event, CallBegan):
                starts.append((place, event))
            else:
                ends[event.number] = place, event
        return [
            Call(
                number=number,
                client=start.client,
                action=start.action,
                began=place,
                began_at=start.time,
                **_ending(ends.get(number)),
            )
            for number, (place, start) in enumerate(starts)
        ]

    def to_lines(self) -> Iterator[str]:
        """Yield one line of JSON for each event."""
        return map(_line, self._events)

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> History:
        """Return the history that such lines tell; lines without text are passed over."""
        history = cls()
        for number, line in enumerate(lines, 1):
            if line.strip():
                history.add(_event(number, line))
        return history


def _ending(end: tuple[int, CallEnded] | None) -> dict[str, Any]:
    if end is None:
        return {}
    place, event = end
    return {
        "ended": place,
        "ended_at": event.time,
        "ending": event.ending,
        "result": event.result,
    }


# ------------------------------------------------------------------ lines of JSON


def _line(event: HistoryEvent) -> str:
    if isinstance(event, CallBegan):
        fields = {name: getattr(event.action, name) for name in _fields(type(event.action))}
        name = _NAMES[type(event.action)]
        row = {"time": event.time, "client": event.client, "begin": name, **fields}
    else:
        row = {"time": event.time, "call": event.number, "end": event.ending}
        if event.ending == "ok":
            row["result"] = event.result
    return json.dumps(row)


def _event(number: int, line: str) -> HistoryEvent:
    try:
        row = json.loads(line)
        if "begin" in row:
            kind = ACTIONS[row["begin"]]
            action = kind(**{name: row[name] for name in _fields(kind)})
            return CallBegan(client=row["client"], action=action, time=row["time"])
        if row["end"] not in ("ok", "failed", "unknown"):
            raise KeyError(row["end"])
        return CallEnded(
            number=row["call"], time=row["time"], ending=row["end"], result=row.get("result")
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"line {number} is not an event of a history: {error!r}",
            hint="Write histories by `to_lines`.",
        ) from None


def _fields(kind: type[Action]) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)
