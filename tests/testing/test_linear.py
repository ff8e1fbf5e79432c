"""The checker of linearizability: what is right passes, and a slow twin agrees about the rest."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from support.timelines import KEY, has_order, history_of, ordered, simulated_calls
from tidelog.errors import UsageError
from tidelog.testing.histories import (
    Action,
    Call,
    CallEnded,
    CompareAndSet,
    Delete,
    Get,
    History,
    Incr,
    Put,
)
from tidelog.testing.linear import UndecidedError, _used, check
from tidelog.testing.moves import COUNTER, REGISTER, CallModel, key_moves, tightened
from tidelog.testing.zones import have_order

REGISTERS = {
    "nothing": "",
    "a key that was never written has no value": "a 0-1 get -> -",
    "a read beside a write sees the old value": "a 0-5 put 1\nb 1-2 get -> -",
    "a read beside a write sees the new value": "a 0-5 put 1\nb 1-2 get -> 1",
    "both, in this order": "a 0-9 put 1\nb 1-2 get -> -\nb 3-4 get -> 1",
    "two clients beside a write, each sees another value, beside each other": """
        a 0-9 put 1
        b 1-5 get -> 1
        c 2-6 get -> -""",
    "concurrent writes in one order": "a 0-5 put 1\nb 1-4 put 2\nc 6-7 get -> 1",
    "concurrent writes in the other order": "a 0-5 put 1\nb 1-4 put 2\nc 6-7 get -> 2",
    "a write that ended first may be the last one": """
        a 0-9 put 1
        b 1-2 put 2
        c 3-4 get -> 2
        c 10-11 get -> 1""",
    "an unknown write that takes effect late": """
        a 0-1? put 1
        b 2-3 put 2
        b 4-5 get -> 2
        b 6-7 get -> 1""",
    "an unknown write that never does": "a 0-1? put 1\nb 2-3 get -> -\nb 4-5 get -> -",
    "a write without an answer that was seen": "a 0- put 1\nb 2-3 get -> 1",
    "a failed write that nobody saw": "a 0-1! put 1\nb 2-3 get -> -",
    "a failed write of a value that another one wrote": """
        a 0-1! put 1
        b 2-3 put 1
        b 4-5 get -> 1""",
    "the same value again, written twice": """
        a 0-1 put 1
        a 2-3 put 2
        a 4-5 put 1
        b 6-7 get -> 1""",
    "a value that comes back as an unknown write of it is late": """
        a 0-1? put 1
        b 2-3 put 1
        b 4-5 put 2
        b 6-7 get -> 1""",
    "an unknown read": "a 0-1? get\nb 2-3 put 1\nb 4-5 get -> 1",
    "a delete beside a read": "a 0-1 put 1\na 2-9 delete\nb 3-4 get -> 1\nb 5-6 get -> -",
    "an unknown delete that takes effect late": """
        a 0-1 put 1
        b 2-3? delete
        a 4-5 get -> 1
        a 6-7 get -> -""",
    "a delete between two values": """
        a 0-1 put 1
        a 2-3 delete
        b 4-5 get -> -
        a 6-7 put 2
        b 8-9 get -> 2""",
    "compare_and_set in a chain": """
        a 0-1 cas - 1 -> yes
        b 2-3 cas 1 2 -> yes
        c 4-5 get -> 2""",
    "two from one value, of which one is refused": """
        a 0-1 put 1
        a 2-5 cas 1 2 -> no
        b 3-4 cas 1 3 -> yes
        c 6-7 get -> 3""",
    "two from one value, that was there twice": """
        a 0-1 put 1
        b 2-3 cas 1 2 -> yes
        a 4-5 put 1
        b 6-7 cas 1 3 -> yes""",
    "refused by an unknown write that nobody saw": """
        a 0-1 put 1
        b 2-3? put 9
        c 4-5 cas 1 2 -> no
        a 6-7 put 3
        c 8-9 get -> 3""",
    "refused between two unknown writes": """
        a 0-1 put 1
        b 2-3? put 9
        d 2-3? put 8
        c 4-5 cas 9 2 -> no
        c 6-7 cas 8 2 -> no
        c 8-9 cas 1 2 -> no""",
    "an unknown compare_and_set that was seen": """
        a 0-1 put 1
        b 2-3? cas 1 2
        c 4-5 get -> 1
        c 6-7 get -> 2""",
    "a compare_and_set to the same value": """
        a 0-1 put 1
        b 2-3 cas 1 1 -> yes
        c 4-5 cas 1 1 -> yes""",
    "a compare_and_set that deletes": """
        a 0-1 put 1
        b 2-3 cas 1 - -> yes
        c 4-5 get -> -
        c 6-7 cas - 2 -> yes""",
    "reads that begin before a write and end behind the next one": """
        a 1-2 put 1
        a 3-4 put 2
        b 0-5 get -> 1
        c 0-5 get -> -""",
    "a long write that is seen, hidden, and never again": """
        a 0-99 put 1
        b 1-2 get -> 1
        c 3-4 put 2
        b 5-6 get -> 2""",
    "unknown writes of one value, of which one is kept for later": """
        u 0-99? put 2
        v 4.5-99? put 2
        w 0-99? put 1
        x 0-99? cas 3 1
        a 1-2 get -> 2
        a 3-4 get -> 1
        a 5-6 get -> 1
        a 7-8 get -> 2
        b 2.1-7.1 put 2
        c 6.2-11.2 put 1""",
    "values that nobody saw, in any order": """
        a 0-5 put 1
        b 1-6 put 2
        c 2-7 put 3
        d 3-4 put 4
        e 8-9 get -> 3""",
}

COUNTERS = {
    "a counter that is not there is nothing": "a 0-1 get -> -",
    "or zero": "a 0-1 get -> 0",
    "increments beside each other, answered in the other order": """
        a 0-5 incr -> 2
        b 1-4 incr -> 1
        c 6-7 get -> 2""",
    "a read beside an increment": "a 0-5 incr -> 1\nb 1-2 get -> 0\nb 3-4 get -> 1",
    "an unknown increment that is counted late": """
        a 0-1? incr
        b 2-3 incr -> 1
        b 4-5 incr -> 3""",
    "an unknown increment that never is": "a 0-1? incr\nb 2-3 incr -> 1\nb 4-5 get -> 1",
    "two unknown ones of which one is": "a 0-1? incr\nb 0-1? incr\nc 2-3 get -> 1",
    "a failed increment": "a 0-1! incr\nb 2-3 incr -> 1",
    "up and down": "a 0-1 incr 5 -> 5\na 2-3 incr -5 -> 0\na 4-5 incr 5 -> 5\nb 6-7 get -> 5",
    "unknown ones up and down": """
        a 0-1? incr 2
        b 0-1? incr -2
        c 2-3 get -> 2
        c 4-5 get -> 0""",
    "unknown ones of which two together do what a third one does": """
        u 0-99? incr 2
        v 0-99? incr -1
        w 0-99? incr 3
        a 1-2 get -> 2
        a 3-4 get -> 1""",
    "an increment by nothing": "a 0-1 incr 0 -> 0\na 2-3 incr -> 1\na 4-5 incr 0 -> 1",
}


@pytest.mark.parametrize("name", list(REGISTERS))
def test_a_register_that_looks_wrong_and_is_right_passes(name: str) -> None:
    history = history_of(REGISTERS[name])
    assert has_order(history, REGISTER)
    assert check(history, REGISTER) is None


@pytest.mark.parametrize("name", list(COUNTERS))
def test_a_counter_that_looks_wrong_and_is_right_passes(name: str) -> None:
    history = history_of(COUNTERS[name])
    zero = [replace(call, result=call.result or 0) for call in history.calls()]
    assert has_order(ordered(zero), COUNTER)
    assert check(history, COUNTER) is None


# ------------------------------------------------------------------ the slow twin agrees

VALUES = st.sampled_from([1, 2, 3])
OLD = st.sampled_from([None, 1, 2, 3])


@st.composite
def register_calls(draw: st.DrawFn) -> History:
    """A few calls on one key, with answers that may be anything."""
    size = draw(st.integers(1, 6))
    return ordered([draw(call(KIND_OF_REGISTER, OLD)) for _ in range(size)])


@st.composite
def counter_calls(draw: st.DrawFn) -> History:
    size = draw(st.integers(1, 6))
    return ordered([draw(call(KIND_OF_COUNTER, st.integers(0, 4))) for _ in range(size)])


KIND_OF_REGISTER: st.SearchStrategy[Action] = st.one_of(
    st.just(Get(KEY)),
    st.just(Get(KEY)),
    VALUES.map(lambda value: Put(KEY, value)),
    VALUES.map(lambda value: Put(KEY, value)),
    st.just(Delete(KEY)),
    st.tuples(OLD, OLD).map(lambda pair: CompareAndSet(KEY, *pair)),
)
KIND_OF_COUNTER: st.SearchStrategy[Action] = st.one_of(
    st.just(Get(KEY)),
    st.sampled_from([1, 1, 2, 0, -1]).map(lambda delta: Incr(KEY, delta)),
)


@st.composite
def call(
    draw: st.DrawFn, actions: st.SearchStrategy[Action], values: st.SearchStrategy[int | None]
) -> Call:
    action = draw(actions)
    begin = draw(st.integers(0, 12))
    result: int | bool | None = None
    if isinstance(action, Get | Incr):
        result = draw(values)
    elif isinstance(action, CompareAndSet):
        result = draw(st.booleans())
    return Call(
        number=0,
        client=f"client {draw(st.uuids())}",
        action=action,
        began=0,
        began_at=begin,
        ended_at=begin + draw(st.sampled_from([1, 2, 3, 8])) + 0.5,
        ending=draw(st.sampled_from(["ok", "ok", "ok", "ok", "failed", "unknown"])),
        result=result,
    )


@settings(max_examples=600)
@given(register_calls())
def test_the_slow_twin_agrees_about_registers(history: History) -> None:
    assert (check(history, REGISTER) is None) == has_order(history, REGISTER)


@settings(max_examples=600)
@given(counter_calls())
def test_the_slow_twin_agrees_about_counters(history: History) -> None:
    assert (check(history, COUNTER) is None) == has_order(history, COUNTER)


def changed(history: History, rng: random.Random, values: int) -> History:
    """The history with one answer turned into another one."""
    calls = history.calls()
    events = list(history.events)
    told = [
        (place, event)
        for place, event in enumerate(events)
        if isinstance(event, CallEnded)
        and event.ending == "ok"
        and isinstance(calls[event.number].action, Get | Incr | CompareAndSet)
    ]
    if told:
        place, event = rng.choice(told)
        is_bool = isinstance(event.result, bool)
        result = not event.result if is_bool else rng.randint(0, values)
        events[place] = replace(event, result=result)
    return History(events)


@pytest.mark.parametrize("model", [REGISTER, COUNTER], ids=["register", "counter"])
@pytest.mark.parametrize(("values", "unknown"), [(2, 0.15), (2, 0.5), (10**9, 0.15)])
def test_what_took_effect_one_by_one_passes_and_with_one_answer_changed_the_twin_decides(
    model: CallModel, values: int, unknown: float
) -> None:
    rejected = 0
    for seed in range(150):
        rng = random.Random(seed)
        right = simulated_calls(
            rng, clients=3, count=8, counter=model is COUNTER, values=values, unknown=unknown
        )
        assert check(right, model) is None, list(right.to_lines())
        wrong = changed(right, rng, 5)
        fits = has_order(wrong, model)
        assert (check(wrong, model) is None) == fits, list(wrong.to_lines())
        rejected += not fits
    assert 20 < rejected < 150


@pytest.mark.parametrize("counter", [False, True])
def test_long_histories_that_took_effect_one_by_one_pass(counter: bool) -> None:
    model = COUNTER if counter else REGISTER
    for seed in range(8):
        rng = random.Random(seed)
        history = simulated_calls(rng, clients=8, count=120, counter=counter, unknown=0.05)
        assert check(history, model) is None


# ------------------------------------------------------------------ times alone


def test_times_alone_reject_what_no_order_could_explain() -> None:
    for text in [
        "a 0-1 put 1\nb 2-3 get -> 2",
        "a 0-1 put 1\na 2-3 put 2\nb 4-5 get -> 1",
        "a 0-9 put 1\nb 0-9 put 2\nc 1-2 get -> 1\nc 3-4 get -> 2\nc 5-6 get -> 1\nc 7-8 get -> 2",
        "a 0-1 put 1\nb 2-3 get -> -",
        "a 0-1 put 1\nb 2-3 delete\nb 4-5 get -> 1",
        "a 0-1 put 1\nb 2-3 cas 1 2 -> no\nb 4-5 get -> 1",
        "a 0-3 put 1\nb 0.5-4 put 2\nc 6-20 get -> 1\nd 7-21 get -> 2",
        "a 0-1 put 1\nb 2-9 put 2\nc 3-8 get -> 2\nb 10-11 get -> 1",
    ]:
        moves = tightened(key_moves(history_of(text).calls(), REGISTER), None)
        assert not have_order(moves, None), text


# ------------------------------------------------------------------ bounds, keys, and wrong use


def test_keys_are_checked_by_themselves() -> None:
    history = History()
    for time, key in enumerate(["x", "y"]):
        history.begin("a", Put(key, time), time).ok(None, time)
    history.begin("b", Get("x"), 5).ok(0, 6)
    history.begin("b", Get("y"), 7).ok(0, 8)
    violation = check(history, REGISTER)
    assert violation is not None
    assert violation.key == "y"
    assert violation.call.action == Get("y")


def test_over_its_budget_the_checker_says_that_it_does_not_know() -> None:
    history = simulated_calls(random.Random(1), clients=4, count=50)
    with pytest.raises(UndecidedError, match=r"50 calls of 'x' .* 10 configurations; give"):
        check(history, REGISTER, budget=10)
    assert check(history, REGISTER, budget=1000) is None


def test_a_search_over_its_budget_ends_at_once() -> None:
    calls = simulated_calls(random.Random(1), clients=4, count=50).calls()
    assert _used(key_moves(calls, REGISTER), None, 10) == 11


def test_the_budget_is_for_all_keys_together() -> None:
    history = History()
    for key in ("x", "y"):
        for value in range(30):
            history.begin("a", Put(key, value), 0).ok(None, 0)
    with pytest.raises(UndecidedError, match="'y'"):
        check(history, REGISTER, budget=40)


def test_many_unknown_writes_do_not_make_the_search_long() -> None:
    lines = [f"u{n} 0-1? put {100 + n}" for n in range(40)]
    lines += ["a 2-3 put 1", "a 4-5 cas 7 8 -> no", "b 6-7 get -> 1", "b 8-9 get -> 2"]
    assert check(history_of("\n".join(lines)), REGISTER, budget=1000) is not None


def test_many_unknown_increments_do_not_make_the_search_long() -> None:
    lines = [f"u{n} 0-1? incr" for n in range(40)]
    lines += ["b 6-7 get -> 30", "b 8-9 get -> 29"]
    assert check(history_of("\n".join(lines)), COUNTER, budget=1000) is not None


def test_a_model_refuses_what_it_does_not_have() -> None:
    with pytest.raises(UsageError, match="a register has no Incr"):
        check(history_of("a 0-1 incr -> 1"), REGISTER)
    with pytest.raises(UsageError, match="a counter has no Put"):
        check(history_of("a 0-1 put 1"), COUNTER)


def test_of_64_clients_and_many_keys_each_answer_is_looked_at() -> None:
    rng = random.Random(64)
    history = simulated_calls(rng, clients=64, count=1500, unknown=0.01)
    assert check(history, REGISTER) is None
    first = next(
        call.action.value
        for call in history.calls()
        if isinstance(call.action, Put) and call.ending == "ok"
    )
    history.begin("late", Get(KEY), 1e9).ok(first, 1e9)
    assert check(history, REGISTER) is not None
    history = simulated_calls(rng, clients=64, count=1500, counter=True, unknown=0.01)
    assert check(history, COUNTER) is None


def test_deletes_and_an_unknown_one_are_no_value() -> None:
    assert check(history_of("a 0-1 put 1\nb 2-3 get -> -"), REGISTER) is not None
    history = History()
    history.begin("a", Put(KEY, 1), 0).ok(None, 1)
    history.begin("b", Delete(KEY), 2).unknown(3)
    history.begin("c", Get(KEY), 4).ok(None, 5)
    assert check(history, REGISTER) is None
