"""Histories of lists, by hand: bad ones with their names, and good ones.

A line is a transaction, ``name start..end status: steps``; steps are ``a key element`` and
``r key elements``; an end of ``?`` is an answer that never came.  ``last key: elements`` is what
was read behind all.
"""

from __future__ import annotations

import pytest

from tidelog.testing.lists import Append, ListTransaction, ReadList, check_lists
from tidelog.testing.transactions import COMMITTED, UNKNOWN


def found_in(text: str) -> list[str]:
    """Return the names of what is wrong with a history."""
    transactions, finals = list[ListTransaction](), dict[str, list[int]]()
    for line in filter(None, map(str.strip, text.splitlines())):
        head, _, steps = line.partition(":")
        name, *rest = head.split()
        if name == "last":
            finals[rest[0]] = list(map(int, steps.split()))
            continue
        start, end = rest[0].split("..")
        one = ListTransaction(id=name, start=float(start), status=UNKNOWN)
        if end != "?":
            one.end, one.status = float(end), rest[1] if len(rest) > 1 else COMMITTED
        for step in filter(None, map(str.strip, steps.split(","))):
            kind, key, *elements = step.split()
            numbers = tuple(map(int, elements))
            one.steps.append(Append(key, numbers[0]) if kind == "a" else ReadList(key, numbers))
        transactions.append(one)
    return [anomaly.name for anomaly in check_lists(transactions, finals)]


BAD = {
    "an acknowledged append is not there": (
        "lost write",
        """
        A 0..1: a x 1
        B 2..3: a x 2
        last x: 2
        """,
    ),
    "what was refused is there": (
        "aborted write",
        """
        A 0..1 aborted: a x 1
        last x: 1
        """,
    ),
    "what was refused was read, and is not there": (
        "incompatible order",
        """
        A 0..1 aborted: a x 1
        B 2..3: r x 1
        last x:
        """,
    ),
    "an element that nobody appended": (
        "garbage write",
        """
        A 0..1: a x 1
        last x: 7 1
        """,
    ),
    "an element of another list": (
        "misplaced write",
        """
        A 0..1: a x 1
        last x: 1
        last y: 1
        """,
    ),
    "an element twice": (
        "duplicate",
        """
        A 0..1: a x 1
        last x: 1 1
        """,
    ),
    "two readers see two orders": (
        "incompatible order",
        """
        A 0..1: a x 1
        B 0..1: a x 2
        C 2..3: r x 1 2
        D 2..3: r x 2 1
        last x: 1 2
        """,
    ),
    "an element went away again": (
        "incompatible order",
        """
        A 0..1: a x 1
        B 2..3: r x 1
        C 4..5: a x 2
        last x: 2
        """,
    ),
    "another append between two of one transaction": (
        "torn append",
        """
        A 0..9: a x 1, a x 2
        B 0..9: a x 3
        last x: 1 3 2
        """,
    ),
    "two of one transaction in reverse order": (
        "torn append",
        """
        A 0..9: a x 1, a x 2
        last x: 2 1
        """,
    ),
    "three of one transaction in another order": (
        "torn append",
        """
        A 0..9: a x 1, a x 2, a x 3
        last x: 1 3 2
        """,
    ),
    "half of two appends to a list": (
        "torn append",
        """
        A 0..?: a x 1, a x 2
        last x: 1
        """,
    ),
    "half of a transaction over two lists": (
        "torn transaction",
        """
        A 0..?: a x 1, a y 2
        last x: 1
        last y:
        """,
    ),
    "a read between two appends of one transaction": (
        "G1b",
        """
        A 0..9: a x 1, a x 2
        B 0..9: r x 1
        last x: 1 2
        """,
    ),
    "two lists in opposite orders": (
        "G0",
        """
        A 0..9: a x 1, a y 2
        B 0..9: a x 3, a y 4
        last x: 1 3
        last y: 4 2
        """,
    ),
    "each saw what the other appended": (
        "G1c",
        """
        A 0..9: a x 1, r y 2
        B 0..9: a y 2, r x 1
        last x: 1
        last y: 2
        """,
    ),
    "the new x and the old y": (
        "G-single",
        """
        A 0..9: a x 1, a y 2
        B 0..9: r x 1, r y
        last x: 1
        last y: 2
        """,
    ),
    "an append that rests on an old list": (
        "lost update",
        """
        A 0..9: r x, a x 1
        B 0..9: r x, a x 2
        last x: 1 2
        """,
    ),
    "each missed the other's append": (
        "G2",
        """
        A 0..9: r x, a y 1
        B 0..9: r y, a x 2
        last x: 2
        last y: 1
        """,
    ),
    "a list read twice was another one": (
        "internal",
        """
        A 0..9: r x, r x 1
        B 0..9: a x 1
        last x: 1
        """,
    ),
    "the own append was not seen": (
        "internal",
        """
        A 0..9: r x, a x 1, r x
        last x: 1
        """,
    ),
    "an old list behind the acknowledgement": (
        "real-time violation",
        """
        A 0..1: a x 1
        B 2..3: r x
        last x: 1
        """,
    ),
    "a list that was newer before": (
        "real-time violation",
        """
        A 0..9: a x 1
        B 1..2: r x 1
        C 3..4: r x
        last x: 1
        """,
    ),
    "x and then y, and others see y and then not x": (
        "real-time violation",
        """
        A 0..1: a x 1
        B 2..3: a y 2
        C 0..9: r y 2, r x
        last x: 1
        last y: 2
        """,
    ),
}


@pytest.mark.parametrize(
    ("name", "text"), [pytest.param(*row, id=title) for title, row in BAD.items()]
)
def test_a_bad_history_is_rejected_by_its_name(name: str, text: str) -> None:
    assert set(found_in(text)) == {name}


GOOD = {
    "nothing": "",
    "one behind the other": """
        A 0..1: r x, a x 1
        B 2..3: r x 1, a x 2, r x 1 2
        last x: 1 2
        """,
    "two appends of one transaction": """
        A 0..9: a x 1, r x 1, a x 2, r x 1 2
        B 0..9: r x
        last x: 1 2
        """,
    "no answer came, and it took effect": """
        A 0..?: a x 1, a y 2
        B 5..6: r x 1, r y 2
        last x: 1
        last y: 2
        """,
    "no answer came, and it did not": """
        A 0..?: a x 1, a y 2
        B 5..6: r x, r y
        last x:
        last y:
        """,
    "refused, whatever it read": """
        A 0..9 aborted: r x 7, a x 1
        last x:
        """,
    "at one time either order will do": """
        A 0..9: a x 1
        B 0..9: r x
        C 0..9: r x 1
        last x: 1
        """,
}


@pytest.mark.parametrize("text", [pytest.param(text, id=title) for title, text in GOOD.items()])
def test_a_good_history_is_accepted(text: str) -> None:
    assert found_in(text) == []


def test_what_is_wrong_is_told_with_who_did_what() -> None:
    one = ListTransaction(id="A", start=0.0, end=1.0, status=COMMITTED)
    one.steps += [Append("x", 1), Append("x", 2)]
    [found] = check_lists([one], {"x": [1, 5, 2]})
    assert found.name == "torn append"
    assert found.transactions == ("A",)
    assert found.text == "A appended [1, 2] to 'x', where they are at places [0, 2]"
