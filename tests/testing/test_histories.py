"""Histories: what is recorded, in which order, and as lines of JSON."""

from __future__ import annotations

import random

import pytest

from support.timelines import history_of, simulated_calls
from tidelog.errors import UsageError
from tidelog.testing.histories import (
    CallBegan,
    CompareAndSet,
    Delete,
    Get,
    History,
    Incr,
    Put,
)


def test_calls_are_folded_from_events() -> None:
    history = History()
    first = history.begin("a", Put("x", 1), 0.5)
    second = history.begin("b", Get("x"), 1.0)
    second.ok(1, 2.0)
    third = history.begin("b", Delete("x"), 3.0)
    first.unknown(4.0)
    third.failed(5.0)
    history.begin("c", Incr("n"), 6.0)
    one, two, three, four = history.calls()
    assert (one.began, one.ended, one.ending, one.ended_at) == (0, 4, "unknown", 4.0)
    assert (two.began, two.ended, two.ending, two.result) == (1, 2, "ok", 1)
    assert (three.ending, three.key, three.began_at) == ("failed", "x", 3.0)
    assert (four.ended, four.ending, four.number) == (None, "unknown", 3)
    assert repr(history) == "<History calls=4 open=1>"


def test_only_an_answer_tells_what_was_before() -> None:
    calls = history_of(
        """a 0-1 put 1
           b 0-1? put 2
           c 0-1! put 3
           d 2-3 get -> 1
           e 0.5-9 get -> 1"""
    ).calls()
    by_client = {call.client: call for call in calls}
    later = by_client["d"]
    assert [c for c in "abcde" if by_client[c].before(later)] == ["a"]
    assert not later.before(by_client["a"])


def test_a_client_has_one_call_at_a_time_and_a_call_one_end() -> None:
    history = History()
    call = history.begin("a", Get("x"), 0)
    with pytest.raises(UsageError, match="'a' has a call that has not ended"):
        history.begin("a", Get("x"), 1)
    call.ok(None, 2)
    before = history.events
    with pytest.raises(UsageError, match="call 0 is not open, so it cannot end as failed"):
        call.failed(3)
    assert history.events == before
    history.begin("a", Get("x"), 4)
    with pytest.raises(UsageError, match="call 0 is not open"):
        call.ok(None, 5)


def test_calls_read_as_one_line() -> None:
    history = history_of(
        """a 0-1 put 1
           b 0-1? get
           c 0- cas - 2
           d 0-1! delete
           e 0-1.5 incr 2 -> 7
           f 0-2 cas 1 2 -> no"""
    )
    assert [str(call) for call in history.calls()] == [
        "a: put 'x' = 1 [0 .. 1]",
        "b: get 'x' (unknown) [0 .. 1]",
        "c: compare_and_set 'x' from None to 2 (unknown) [0 .. no answer]",
        "d: delete 'x' (failed) [0 .. 1]",
        "e: incr 'x' by 2 -> 7 [0 .. 1.5]",
        "f: compare_and_set 'x' from 1 to 2 -> False [0 .. 2]",
    ]


@pytest.mark.parametrize("counter", [False, True])
def test_a_history_comes_back_from_its_lines(counter: bool) -> None:
    history = simulated_calls(random.Random(1), clients=3, count=60, counter=counter, unknown=0.3)
    history.begin("f", CompareAndSet(7, "old", None), 99).failed(100)
    lines = list(history.to_lines())
    assert History.from_lines([*lines[:5], "  \n", *lines[5:]]) == history
    assert History.from_lines(lines[:9]).calls() != history.calls()


def test_the_lines_are_those_that_fixtures_have() -> None:
    history = history_of("a 0-1 put 1\nb 0.5-2 get -> -\nc 3-4? incr 2")
    assert list(history.to_lines()) == [
        '{"time": 0.0, "client": "a", "begin": "put", "key": "x", "value": 1}',
        '{"time": 0.5, "client": "b", "begin": "get", "key": "x"}',
        '{"time": 1.0, "call": 0, "end": "ok", "result": null}',
        '{"time": 2.0, "call": 1, "end": "ok", "result": null}',
        '{"time": 3.0, "client": "c", "begin": "incr", "key": "x", "delta": 2}',
        '{"time": 4.0, "call": 2, "end": "unknown"}',
    ]


@pytest.mark.parametrize(
    "line",
    [
        "nothing",
        "[]",
        "3",
        '{"time": 1}',
        '{"time": 0, "client": "a", "begin": "jump", "key": "x"}',
        '{"time": 0, "client": "a", "begin": "put", "key": "x"}',
        '{"client": "a", "begin": "get", "key": "x"}',
        '{"time": 0, "call": 0, "end": "perhaps"}',
    ],
)
def test_a_line_that_is_not_an_event_is_refused_by_its_number(line: str) -> None:
    good = '{"time": 0, "client": "z", "begin": "get", "key": "x"}'
    with pytest.raises(UsageError, match="line 2 is not an event of a history"):
        History.from_lines([good, line])


def test_events_are_values() -> None:
    event = CallBegan(client="a", action=Put("x", 1), time=0)
    assert event == CallBegan(client="a", action=Put("x", 1), time=0)
    assert History([event]) == History([event])
    assert History([event]) != History()
    with pytest.raises(AttributeError):
        event.time = 2  # type: ignore[misc]
