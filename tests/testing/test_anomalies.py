"""Histories that are wrong in known ways: each is rejected, and called by its name."""

from __future__ import annotations

import pytest

from support.timelines import has_order, history_of
from tidelog.testing.anomalies import SHOWN_MAX, Anomaly, Violation
from tidelog.testing.linear import check
from tidelog.testing.moves import COUNTER, REGISTER, CallModel

# name, anomaly, the number of the line that cannot be placed, history
REGISTERS: list[tuple[str, Anomaly, int, str]] = [
    (
        "a stale read",
        Anomaly.STALE_READ,
        2,
        """a 0-1 put 1
           a 2-3 put 2
           b 4-5 get -> 1
           b 6-7 get -> 2""",
    ),
    (
        "a stale read and nothing behind it",
        Anomaly.STALE_READ,
        2,
        """a 0-1 put 1
           a 2-3 put 2
           b 4-5 get -> 1""",
    ),
    (
        "a value that another client saw already",
        Anomaly.STALE_READ,
        3,
        """a 0-1 put 1
           a 2-99 put 2
           b 4-5 get -> 2
           c 6-7 get -> 1
           b 8-9 get -> 2""",
    ),
    (
        "an acknowledged write that nobody ever saw",
        Anomaly.LOST_UPDATE,
        2,
        """a 0-1 put 1
           b 2-3 put 2
           c 4-5 get -> 1
           a 6-7 get -> 1""",
    ),
    (
        "a first write that was acknowledged and is not there",
        Anomaly.LOST_UPDATE,
        1,
        """a 0-1 put 1
           c 4-5 get -> -
           a 6-7 get -> -""",
    ),
    (
        "an update over another one",
        Anomaly.LOST_UPDATE,
        2,
        """a 0-1 put 1
           b 2-3 put 2
           c 4-5 cas 1 3 -> yes""",
    ),
    (
        "a value from nowhere",
        Anomaly.NEVER_WRITTEN,
        1,
        """a 0-1 put 1
           b 2-3 get -> 7""",
    ),
    (
        "a compare_and_set from nowhere",
        Anomaly.NEVER_WRITTEN,
        0,
        "a 0-1 cas 7 8 -> yes",
    ),
    (
        "a value whose write failed",
        Anomaly.FAILED_WRITE,
        1,
        """a 0-1! put 1
           b 2-3 get -> 1""",
    ),
    (
        "a value whose compare_and_set was refused by an error",
        Anomaly.FAILED_WRITE,
        2,
        """a 0-1 put 1
           a 2-3! cas 1 2
           b 4-5 get -> 2""",
    ),
    (
        "a value that comes back",
        Anomaly.RESURRECTION,
        4,
        """a 0-1 put 1
           b 2-3 get -> 1
           a 4-5 put 2
           b 6-7 get -> 2
           c 8-9 get -> 1
           b 10-11 get -> 1""",
    ),
    (
        "a value that comes back to another client",
        Anomaly.RESURRECTION,
        4,
        """a 0-1 put 1
           b 2-3 get -> 1
           a 4-99 put 2
           b 6-7 get -> 2
           c 8-9 get -> 1""",
    ),
    (
        "two from one value",
        Anomaly.TWO_SWAPS,
        2,
        """a 0-1 put 1
           b 2-6 cas 1 2 -> yes
           c 3-7 cas 1 3 -> yes""",
    ),
    (
        "two that made the key",
        Anomaly.TWO_SWAPS,
        1,
        """b 2-6 cas - 2 -> yes
           c 3-7 cas - 3 -> yes""",
    ),
    (
        "two from no value, which was there twice, and an update over another one",
        Anomaly.LOST_UPDATE,
        3,
        """b 0-1 cas - 2 -> yes
           a 2-3 delete
           a 4-5 put 5
           c 6-7 cas - 3 -> yes""",
    ),
    (
        "refused by the value that was there",
        Anomaly.REFUSED,
        1,
        """a 0-1 put 1
           b 2-3 cas 1 2 -> no
           c 4-5 get -> 1""",
    ),
    (
        "a value that is written later",
        Anomaly.FUTURE,
        0,
        """b 0-1 get -> 1
           a 2-3 put 1""",
    ),
    (
        "a compare_and_set from a value that is written later",
        Anomaly.FUTURE,
        0,
        """b 0-1 cas 1 2 -> yes
           a 2-3 put 1""",
    ),
    (
        "a deleted value that is there again",
        Anomaly.DELETE_UNDONE,
        2,
        """a 0-1 put 1
           a 2-3 delete
           b 4-5 get -> 1""",
    ),
    (
        "a deleted value that was seen to be gone",
        Anomaly.DELETE_UNDONE,
        3,
        """a 0-1 put 1
           a 2-99 delete
           b 4-5 get -> -
           b 6-7 get -> 1""",
    ),
    (
        "reads that go back",
        Anomaly.NOT_MONOTONIC,
        3,
        """a 0-1 put 1
           a 2-99 put 2
           b 4-5 get -> 2
           b 6-7 get -> 1""",
    ),
    (
        "reads that go back to nothing",
        Anomaly.NOT_MONOTONIC,
        2,
        """a 0-99 put 1
           b 4-5 get -> 1
           b 6-7 get -> -""",
    ),
    (
        "the earlier write is the last one",
        Anomaly.WRITES_REVERSED,
        3,
        """a 0-1 put 1
           b 2-3 put 2
           c 4-5 get -> 2
           c 6-7 get -> 1
           d 8-9 get -> 1""",
    ),
    (
        "an unknown write that was there and is not",
        Anomaly.UNKNOWN_UNSEEN,
        3,
        """a 0-1 put 1
           b 2-3? put 2
           c 4-5 get -> 2
           d 6-7 get -> 1""",
    ),
    (
        "an unknown write that was replaced long ago",
        Anomaly.STALE_READ,
        4,
        """a 0-1 put 1
           b 2-3? put 2
           c 4-5 get -> 2
           a 6-7 put 3
           d 8-9 get -> 1
           c 10-11 get -> 3""",
    ),
    (
        "an unknown first write that was there and is not",
        Anomaly.UNKNOWN_UNSEEN,
        2,
        """b 2-3? put 2
           c 4-5 get -> 2
           c 6-7 get -> -""",
    ),
    (
        "two halves, each with a value of its own",
        Anomaly.SPLIT_BRAIN,
        3,
        """a 0-3 put 1
           b 1-4 put 2
           c 5-6 get -> 1
           d 7-8 get -> 2
           c 9-10 get -> 1
           d 11-12 get -> 2""",
    ),
    (
        "two halves, while the writes go on",
        Anomaly.SPLIT_BRAIN,
        4,
        """a 0-99 put 1
           b 1-98 put 2
           c 5-6 get -> 1
           d 7-8 get -> 2
           c 9-10 get -> 1
           d 11-12 get -> 2""",
    ),
]

COUNTERS: list[tuple[str, Anomaly, int, str]] = [
    (
        "counted twice",
        Anomaly.COUNTED_TWICE,
        1,
        """a 0-1 incr -> 1
           b 2-3 get -> 2""",
    ),
    (
        "counted twice, as the next one sees",
        Anomaly.COUNTED_TWICE,
        1,
        """a 0-1 incr -> 1
           b 2-3 incr -> 3
           a 4-5 incr -> 4""",
    ),
    (
        "lost",
        Anomaly.INCREMENT_LOST,
        2,
        """a 0-1 incr -> 1
           b 2-3 incr -> 2
           c 4-5 get -> 1""",
    ),
    (
        "lost, as two have the same sum",
        Anomaly.INCREMENT_LOST,
        1,
        """a 0-2 incr -> 1
           b 1-3 incr -> 1""",
    ),
    (
        "lost, as the next one begins anew",
        Anomaly.INCREMENT_LOST,
        1,
        """a 0-1 incr -> 1
           b 2-3 incr -> 1""",
    ),
    (
        "a failed one was counted",
        Anomaly.FAILED_INCREMENT,
        1,
        """a 0-1! incr
           b 2-3 get -> 1""",
    ),
    (
        "one that comes later",
        Anomaly.FUTURE,
        0,
        """b 0-1 get -> 1
           a 2-3 incr -> 1""",
    ),
    (
        "an old count",
        Anomaly.STALE_READ,
        1,
        """a 0-1 incr -> 1
           b 2-3 get -> 0
           b 4-5 get -> 1""",
    ),
    (
        "a count that another client saw already",
        Anomaly.STALE_READ,
        2,
        """a 0-99 incr -> 1
           b 2-3 get -> 1
           c 4-5 get -> 0""",
    ),
    (
        "counts that go back",
        Anomaly.NOT_MONOTONIC,
        2,
        """a 0-99 incr -> 1
           b 2-3 get -> 1
           b 4-5 get -> 0""",
    ),
    (
        "counts that go back below what was acknowledged",
        Anomaly.NOT_MONOTONIC,
        2,
        """a 0-1 incr -> 1
           b 2-3 get -> 1
           b 4-5 get -> 0""",
    ),
    (
        "an unknown one that was counted and is not",
        Anomaly.UNKNOWN_UNSEEN,
        2,
        """a 0-1? incr
           b 2-3 get -> 1
           c 4-5 get -> 0""",
    ),
    (
        "a count that the sums allow and no order does",
        Anomaly.NO_ORDER,
        1,
        """a 0-1? incr 2
           b 2-3 get -> 1""",
    ),
]


def rejected(text: str, model: CallModel) -> Violation:
    history = history_of(text)
    assert not has_order(history, model)
    violation = check(history, model)
    assert violation is not None
    return violation


@pytest.mark.parametrize(("name", "anomaly", "line", "text"), REGISTERS)
def test_a_wrong_register_is_called_by_its_name(
    name: str, anomaly: Anomaly, line: int, text: str
) -> None:
    violation = rejected(text, REGISTER)
    assert violation.anomaly == anomaly
    assert str(violation.call) == described(text, line)


@pytest.mark.parametrize(("name", "anomaly", "line", "text"), COUNTERS)
def test_a_wrong_counter_is_called_by_its_name(
    name: str, anomaly: Anomaly, line: int, text: str
) -> None:
    violation = rejected(text, COUNTER)
    assert violation.anomaly == anomaly
    assert str(violation.call) == described(text, line)


def described(text: str, line: int) -> str:
    """How the call of a line reads, when it stands alone."""
    return str(history_of(text.strip().splitlines()[line]).calls()[0])


def test_every_anomaly_has_a_history() -> None:
    assert {row[1] for row in [*REGISTERS, *COUNTERS]} == set(Anomaly)


def test_a_violation_tells_what_it_knows() -> None:
    violation = rejected(
        """a 0-1 put 1
           a 2-3 put 2
           c 3.5-9 put 3
           b 4-5 get -> 1
           e 4.5-9! put 4""",
        REGISTER,
    )
    assert violation.possible == (2, 3)
    assert str(violation) == (
        "stale read: key 'x' is not linearizable.\n"
        "No order of the operations allows this answer: b: get 'x' -> 1 [4 .. 5].\n"
        "The value before it could have been 2 or 3.\n"
        "This contradicts:\n"
        "  a: put 'x' = 2 [2 .. 3]\n"
        "Concurrent with it:\n"
        "  c: put 'x' = 3 [3.5 .. 9]"
    )


def test_what_could_have_been_there_before_a_compare_and_set_and_an_increment() -> None:
    assert rejected("a 0-1 put 1\nb 2-3 cas 2 3 -> yes\na 4-9 put 2", REGISTER).possible == (1,)
    assert rejected("a 0-1 incr -> 1\nb 2-3? incr\nc 4-5 incr -> 9", COUNTER).possible == (1, 2)


def test_a_violation_lists_only_some_of_many_calls() -> None:
    text = "\n".join(f"w{n} 0-9 put {n}" for n in range(20)) + "\nb 1-2 get -> 77"
    violation = check(history_of(text), REGISTER)
    lines = str(violation).splitlines()
    assert lines[-1] == f"  and {20 - SHOWN_MAX} more"
    assert len(lines) == 3 + 1 + SHOWN_MAX + 1


def test_the_first_wrong_answer_is_told_of_several() -> None:
    violation = rejected("a 0-1 put 1\nb 2-3 get -> 5\nb 4-5 get -> 6\nb 6-7 get -> 7", REGISTER)
    assert violation.call.result == 5
