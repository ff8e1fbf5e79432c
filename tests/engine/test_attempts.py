from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from support.stores import Opened, opened
from support.trio_stores import opened as opened_under_trio
from tidelog.affinity.errors import (
    ConflictError,
    DeadlineError,
    DeadlockError,
    TidelogError,
    UsageError,
)
from tidelog.engine.aio.database import loop_session_of
from tidelog.engine.api import attempts as attempts_module
from tidelog.engine.api.attempts import ATTEMPTS, PAUSE_FIRST, PAUSE_MAX, plan
from tidelog.engine.api.database import session_of
from tidelog.engine.api.transactions import Transaction, behind
from tidelog.engine.commit.committer import Committer


@pytest.fixture
def store() -> Iterator[Opened]:
    with opened() as store:
        yield store


def conflict() -> ConflictError:
    return ConflictError("changed", namespace="users", key=None, winner=None)


class Work:
    """Fails some times, then writes; counts its calls."""

    def __init__(self, store: Opened, failures: int, error: BaseException | None = None) -> None:
        self.users = store.database.map("users")
        self.calls = 0
        self._failures = failures
        self._error = error

    def __call__(self, tx: Any, *args: bytes) -> int:
        self.calls += 1
        tx[self.users][b"call"] = b"%d" % self.calls
        if self.calls <= self._failures:
            raise self._error or conflict()
        return self.calls


def test_what_can_be_retried_is_and_the_value_is_returned(store: Opened) -> None:
    work = Work(store, 3)
    assert store.database.run(work) == 4
    assert dict(work.users) == {b"call": b"4"}


def test_arguments_and_options_reach_the_transaction(store: Opened) -> None:
    def work(tx: Any, one: int, two: int) -> tuple[int, int, str]:
        return one, two, behind(tx)._rule.row

    assert store.database.run(work, 1, 2, mode="pessimistic", isolation="read_committed") == (
        1,
        2,
        "F",
    )
    with pytest.raises(TypeError):
        store.database.run(work, 1, 2, no_such_option=3)  # type: ignore[call-arg]


def test_the_last_attempt_raises_what_went_wrong(store: Opened) -> None:
    work = Work(store, 99)
    with pytest.raises(ConflictError):
        store.database.run(work, attempts=3)
    assert work.calls == 3
    work.calls = 0
    with pytest.raises(ConflictError):
        store.database.run(work)
    assert work.calls == ATTEMPTS
    assert dict(work.users) == {}


@pytest.mark.parametrize("error", [ValueError("mine"), UsageError("wrong"), KeyboardInterrupt()])
def test_nothing_else_is_tried_again(store: Opened, error: BaseException) -> None:
    work = Work(store, 99, error)
    with pytest.raises(type(error)):
        store.database.run(work)
    assert work.calls == 1
    assert dict(work.users) == {}


def test_the_work_may_commit_or_roll_back_itself(store: Opened) -> None:
    users = store.database.map("users")

    def rolls_back(tx: Any) -> str:
        tx[users][b"a"] = b"1"
        tx.rollback()
        return "done"

    def commits(tx: Any) -> str:
        tx[users][b"b"] = b"2"
        tx.commit()
        return "committed"

    with store.database.transaction() as tx:
        rolls_back(tx)
    assert store.database.run(rolls_back) == "done"
    for attempt in store.database.attempts():
        with attempt as tx:
            rolls_back(tx)
    assert dict(users) == {}
    for attempt in store.database.attempts():
        with attempt as tx:
            tx[users][b"a"] = b"1"
            tx.commit()
    assert dict(users) == {b"a": b"1"}
    assert store.database.run(commits) == "committed"
    assert dict(users) == {b"a": b"1", b"b": b"2"}


def test_what_was_interrupted_while_it_committed_is_not_made_again(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, genuine = store.database.map("users"), Committer.commit
    calls = 0

    def interrupted(*arguments: Any) -> None:
        genuine(*arguments)
        raise KeyboardInterrupt

    def work(tx: Any) -> None:
        nonlocal calls
        calls += 1
        tx[users][b"%d" % calls] = b""
        with pytest.raises(KeyboardInterrupt):
            tx.commit()
        assert repr(tx).startswith("<Transaction in doubt ")
        assert tx.in_doubt
        raise conflict()

    users[b"0"] = b""
    monkeypatch.setattr(Committer, "commit", interrupted)
    with pytest.raises(ConflictError, match="the commit, which may have taken effect"):
        store.database.run(work)
    assert dict(users) == {b"0": b"", b"1": b""}


def test_what_the_work_has_committed_is_not_made_again(store: Opened) -> None:
    users = store.database.map("users")
    calls = 0

    def work(tx: Any) -> None:
        nonlocal calls
        calls += 1
        tx[users][b"%d" % calls] = b""
        tx.commit()
        raise conflict()

    with pytest.raises(ConflictError, match="behind the commit, which took effect"):
        store.database.run(work)
    assert dict(users) == {b"1": b""}

    def loop() -> None:
        for attempt in store.database.attempts():
            with attempt as tx:
                work(tx)

    with pytest.raises(ConflictError, match="behind the commit"):
        loop()
    assert dict(users) == {b"1": b"", b"2": b""}


def test_a_real_conflict_is_retried_on_a_fresh_snapshot(store: Opened) -> None:
    users = store.database.map("users")
    users[b"n"] = b"0"
    seen = []
    for attempt in store.database.attempts(plain_writes=True):
        with attempt as tx:
            seen.append(tx[users][b"n"])
            if len(seen) == 1:
                users[b"n"] = b"5"
            tx[users][b"n"] = tx[users][b"n"] + b"!"
    assert seen == [b"0", b"5"]
    assert users[b"n"] == b"5!"


def test_the_loop_ends_after_the_attempt_that_commits(store: Opened) -> None:
    users = store.database.map("users")
    rounds = 0
    for attempt in store.database.attempts():
        rounds += 1
        with attempt as tx:
            tx[users][b"a"] = b"%d" % rounds
            if rounds < 3:
                raise conflict()
    assert rounds == 3
    assert users[b"a"] == b"3"


def test_leaving_the_loop_early_rolls_back(store: Opened) -> None:
    users = store.database.map("users")
    attempts = store.database.attempts()
    with next(attempts) as tx:
        tx[users][b"a"] = b"1"
        attempts.close()  # type: ignore[attr-defined]  # a generator
    assert dict(users) == {}


def test_a_later_attempt_without_its_block_is_refused_as_well(store: Opened) -> None:
    turns = 0
    with pytest.raises(UsageError, match="was not used"):  # noqa: PT012
        for attempt in store.database.attempts():
            turns += 1
            if turns == 1:
                with attempt:
                    raise conflict()
    assert turns == 2


@pytest.mark.parametrize("count", [1, 16])
def test_a_loop_without_the_block_of_its_attempt_is_refused(store: Opened, count: int) -> None:
    # It went round 16 times, did nothing, and said nothing.
    turns = 0
    with pytest.raises(UsageError, match="was not used") as caught:  # noqa: PT012
        for _ in store.database.attempts(count):
            turns += 1
    assert turns == 1
    assert "`with attempt as tx:`" in caught.value.hint


def test_an_error_of_the_caller_rolls_back_and_leaves_the_loop(store: Opened) -> None:
    users = store.database.map("users")
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for attempt in store.database.attempts():
            with attempt as tx:
                tx[users][b"a"] = b"1"
                raise ZeroDivisionError
    assert dict(users) == {}


def test_an_error_that_is_caught_inside_of_the_loop_ends_it(store: Opened) -> None:
    """The attempt was made 15 times more, whatever its error, and the loop ended in silence."""
    rounds = 0
    for attempt in store.database.attempts():
        rounds += 1
        with suppress(ZeroDivisionError), attempt:
            raise ZeroDivisionError
    assert rounds == 1


@pytest.mark.loops
async def test_for_tasks_an_error_that_is_caught_inside_of_the_loop_ends_it() -> None:
    rounds = 0
    async with opened_under_trio() as db:
        async for attempt in db.attempts():
            rounds += 1
            with suppress(ZeroDivisionError):
                async with attempt:
                    raise ZeroDivisionError
    assert rounds == 1


def test_pauses_grow_and_are_spread_by_chance(store: Opened) -> None:
    pauses: list[float] = []
    drawn: list[tuple[float, float]] = []

    class Chance:
        @staticmethod
        def uniform(low: float, high: float) -> float:
            drawn.append((low, high))
            return high / 2

    session_of(store.database).pause = pauses.append
    session_of(store.database).random = Chance()  # type: ignore[assignment]
    with pytest.raises(ConflictError):
        store.database.run(Work(store, 99))
    limits = [min(PAUSE_FIRST * 2**number, PAUSE_MAX) for number in range(ATTEMPTS - 1)]
    assert drawn == [(0.0, limit) for limit in limits]
    assert pauses == [limit / 2 for limit in limits]
    assert limits[-1] == PAUSE_MAX


@pytest.mark.loops
async def test_for_tasks_pauses_grow_and_are_spread_by_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def paused(seconds: float) -> None:
        pauses.append(seconds)

    async def lost(_tx: Any) -> None:
        raise conflict()

    async with opened_under_trio() as db:
        session = loop_session_of(db)
        monkeypatch.setattr(session.loop, "sleep", paused)
        monkeypatch.setattr(session.writer().random, "uniform", lambda low, high: low + high / 2)
        with pytest.raises(ConflictError):
            await db.run(lost)
    limits = [min(PAUSE_FIRST * 2**number, PAUSE_MAX) for number in range(ATTEMPTS - 1)]
    assert pauses == [limit / 2 for limit in limits]


def test_a_deadline_is_for_all_attempts_together(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_of(store.database).pause = store.environment.time.move
    monkeypatch.setattr(session_of(store.database).random, "uniform", lambda _low, high: high)
    work = Work(store, 99)
    with pytest.raises(ConflictError):
        store.database.run(work, deadline=0.01)
    assert 1 < work.calls < ATTEMPTS
    assert store.environment.time.steady_s() <= 0.01


def test_a_deadline_that_passes_in_an_attempt_ends_it(store: Opened) -> None:
    users = store.database.map("users")

    def slow(tx: Any) -> None:
        store.environment.time.move(2.0)
        tx[users][b"a"] = b"1"

    with pytest.raises(DeadlineError):
        store.database.run(slow, deadline=1.0)
    assert dict(users) == {}


def test_what_ended_an_attempt_comes_out_where_no_time_is_left(store: Opened) -> None:
    # It was a DeadlineError of the next attempt, which had no time for anything.
    def slow(tx: Any) -> None:
        store.environment.time.move(2.0)
        raise conflict()

    with pytest.raises(ConflictError, match="that was after 1 attempt"):
        store.database.run(slow, deadline=1.0)


def test_a_deadline_tells_what_the_attempt_before_it_met(store: Opened) -> None:
    users = store.database.map("users")
    calls = 0

    def slow(tx: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise conflict()
        store.environment.time.move(2.0)
        tx[users][b"a"] = b"1"

    with pytest.raises(DeadlineError, match="has passed; the attempt before it: changed"):
        store.database.run(slow, deadline=1.0)
    assert dict(users) == {}


def test_a_deadline_that_passes_in_a_pause_ends_the_next_attempt(store: Opened) -> None:
    time = store.environment.time
    session_of(store.database).pause = lambda _seconds: time.move(2.0)
    work = Work(store, 1)

    def slow(tx: Any) -> None:
        work(tx)
        time.move(0.001)

    with pytest.raises(DeadlineError):
        store.database.run(slow, deadline=1.0)
    assert (work.calls, dict(work.users)) == (2, {})


@pytest.mark.parametrize("work", [None, 5])
def test_what_is_no_function_is_not_run(store: Opened, work: Any) -> None:
    # It was a bare TypeError, after a transaction had begun.
    with pytest.raises(UsageError, match=f"^{work} is not a function to run(?m:$)"):
        store.database.run(work)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None])
def test_a_number_of_attempts_that_is_none_is_refused(store: Opened, count: Any) -> None:
    with pytest.raises(UsageError, match="attempts="):
        store.database.run(lambda tx: None, attempts=count)


def rows_of(store: Opened, attempts: int, **options: Any) -> list[str]:
    """The rows of the table of isolation that the attempts of a losing transaction have."""
    rows = []
    with pytest.raises(ConflictError):  # noqa: PT012
        for attempt in store.database.attempts(attempts, **options):
            with attempt as tx:
                rows.append(behind(tx)._rule.row)
                raise conflict()
    return rows


def test_from_the_third_attempt_on_locks_are_taken_unless_the_mode_was_chosen(
    store: Opened,
) -> None:
    assert rows_of(store, 4) == ["A", "A", "D", "D"]
    assert rows_of(store, 4, isolation="repeatable_read") == ["B", "B", "E", "E"]
    assert rows_of(store, 3, mode="optimistic") == ["A", "A", "A"]
    assert rows_of(store, 3, mode="pessimistic") == ["D", "D", "D"]


def test_a_transaction_that_always_met_others_gets_through_with_locks(store: Opened) -> None:
    users = store.database.map("users")
    users[b"n"] = b"0"
    seen = []

    def work(tx: Any) -> None:
        seen.append(tx[users][b"n"])
        if behind(tx)._rule.row == "A":
            users[b"n"] = b"%d" % len(seen)  # as somebody else would
        tx[users][b"n"] += b"!"

    store.database.run(work, plain_writes=True)
    assert seen == [b"0", b"1", b"2"]
    assert users[b"n"] == b"2!"


def test_the_last_error_tells_how_many_attempts_there_were_and_what_helps(store: Opened) -> None:
    for attempts, told in (
        (1, "after 1 attempt(?m:$)"),
        (3, "changed; that was after 3 attempts(?m:$)"),
    ):
        with pytest.raises(ConflictError, match=told) as caught:
            store.database.run(Work(store, 99), attempts=attempts)
        assert 'mode="pessimistic"' in caught.value.hint
    with pytest.raises(DeadlockError, match="after 2 attempts") as deadlocked:
        store.database.run(Work(store, 99, DeadlockError("a circle")), attempts=2)
    assert deadlocked.value.hint == DeadlockError.hint
    with pytest.raises(UsageError, match=r"^wrong(?m:$)"):
        store.database.run(Work(store, 99, UsageError("wrong")))


@pytest.mark.parametrize(
    ("number", "count", "left", "last", "pause"),
    [
        (1, 16, None, False, PAUSE_FIRST),
        (2, 16, None, False, 2 * PAUSE_FIRST),
        (15, 16, None, False, PAUSE_MAX),
        (16, 16, None, True, PAUSE_MAX),
        (1, 16, PAUSE_FIRST, True, PAUSE_FIRST),
        (1, 16, 1.01 * PAUSE_FIRST, False, PAUSE_FIRST),
        (3, 16, 0.0, True, 4 * PAUSE_FIRST),
    ],
)
def test_a_plan_tells_of_the_pause_and_whether_there_is_time_for_it(
    number: int, count: int, left: float | None, last: bool, pause: float
) -> None:
    made = plan(number, count, left, {})
    assert (made.last, made.pause) == (last, pause)


def test_no_transaction_is_left_open(store: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    transaction = Transaction

    def noted(*args: Any, **kwargs: Any) -> Any:
        made.append(transaction(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(attempts_module, "Transaction", noted)
    for failures in (0, 2, 99):
        try:
            store.database.run(Work(store, failures), attempts=4)
        except TidelogError:
            continue
    assert len(made) == 1 + 3 + 4
    assert not any(behind(tx).is_open for tx in made)


async def an_async_function(tx: Any) -> None:
    raise AssertionError("nobody runs it")


def a_generator_function(tx: Any) -> Iterator[None]:
    yield
    raise AssertionError("nobody runs it")


async def an_async_generator_function(tx: Any) -> AsyncIterator[None]:
    yield
    raise AssertionError("nobody runs it")


@pytest.mark.parametrize(
    "work",
    [
        an_async_function,
        partial(an_async_function),
        lambda tx: an_async_function(tx),
        a_generator_function,
        partial(a_generator_function),
        an_async_generator_function,
    ],
)
def test_a_function_of_which_nothing_runs_is_refused_before_anything_is_committed(
    store: Opened, work: Callable[..., object]
) -> None:
    """An empty transaction was committed, and a coroutine or a generator came back."""
    with pytest.raises(UsageError, match="nothing of it has run") as caught:
        store.database.run(work, id=bytes(16))
    assert caught.value.hint
    assert store.database.outcome(bytes(16)) == "rolled_back"


def test_a_generator_that_a_function_made_is_a_result(store: Opened) -> None:
    assert list(store.database.run(lambda tx: (n for n in range(3)))) == [0, 1, 2]


@pytest.mark.loops
async def test_for_tasks_what_is_no_function_is_not_run() -> None:
    async with opened_under_trio() as db:
        for work in (None, 5):
            wrong: Any = work
            with pytest.raises(UsageError, match="is not a function to run"):
                await db.run(wrong)


@pytest.mark.loops
async def test_for_tasks_a_plain_function_is_refused_and_nothing_is_committed() -> None:
    """It was a TypeError about an await that nobody had written."""
    async with opened_under_trio() as db:
        for work in (lambda tx: 1, an_async_generator_function):
            plain: Any = work
            with pytest.raises(UsageError, match="is not an async function"):
                await db.run(plain, id=bytes(16))
        assert await db.outcome(bytes(16)) == "rolled_back"
