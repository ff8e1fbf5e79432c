"""The arguments of requests: what can't be any is refused, by name, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.engine.net.operations import (
    GET_KEYS_MAX,
    MisunderstoodError,
    check_arguments,
)
from tidelog.tx.counter import COUNTER_MAX

READ = [16, [b"a", b"b"], [1, 1], [0, COUNTER_MAX]]
RANGE = [16, [0, 1], b"", None, 0, b"digest"]
WRITE = [16, [b"a", b"b"], [b"", None]]
COMMIT = [b"id", 1, False, None, [READ, READ], [RANGE], [WRITE], [0, 1], [1, COUNTER_MAX]]


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("commit", COMMIT),
        ("commit", [b"id", COUNTER_MAX, True, "tag", [], [], [], [], []]),
        ("commit-locked", [b"open", *COMMIT]),
        ("get", [16, [b"a"] * GET_KEYS_MAX]),
        ("scan", [16, [0, 3], b"", None, False, 0, True, True]),
        ("drop", ["name", None]),
        ("drop", ["name", 16]),
        ("status", []),
    ],
)
def test_what_clients_send_is_taken(operation: str, arguments: list[Any]) -> None:
    check_arguments(operation, arguments)


def changed(places: tuple[int, ...], value: object, whole: list[Any] = COMMIT) -> list[Any]:
    """What ``whole`` is with another value at a place in it."""
    at, *inner = places
    put = changed(tuple(inner), value, whole[at]) if inner else value
    return [*whole[:at], put, *whole[at + 1 :]]


LENGTHS = "has columns of different lengths"
OUT_OF_RANGE = f"has to be from 0 to {COUNTER_MAX:,}"


@pytest.mark.parametrize(
    ("operation", "arguments", "text"),
    [
        ("put", [], "there is no operation 'put'"),
        ("status", [1], "status has 1 fields, not 0"),
        ("commit", COMMIT[1:], "commit has 8 fields, not 9"),
        ("commit", changed((0,), "id"), "commit: id has to be bytes, not str"),
        ("commit", changed((2,), 1), "commit: given has to be flag, not int"),
        ("commit", changed((4,), [1]), "commit: reads has to be list*, not list of int"),
        ("commit", changed((7,), [b""]), "commit: partitions has to be int*, not list of bytes"),
        ("commit", changed((1,), -1), f"commit: attempt {OUT_OF_RANGE}"),
        ("commit", changed((7, 1), -1), f"commit: partitions {OUT_OF_RANGE}"),
        ("commit", changed((8, 0), COUNTER_MAX + 1), f"commit: epochs {OUT_OF_RANGE}"),
        ("commit", changed((8,), [1]), f"commit {LENGTHS}"),
        ("commit", changed((4, 1, 0), COUNTER_MAX + 1), f"a read: namespace {OUT_OF_RANGE}"),
        ("commit", changed((4, 1, 3, 0), -1), f"a read: counters {OUT_OF_RANGE}"),
        ("commit", changed((4, 0, 1), [b"a"]), f"a read {LENGTHS}"),
        ("commit", changed((4, 0), []), "a read has 0 fields, not 4"),
        ("commit", changed((5, 0, 3), 1), "a range: high has to be bytes?, not int"),
        ("commit", changed((5, 0, 4), -1), f"a range: count {OUT_OF_RANGE}"),
        ("commit", changed((6, 0, 1), ["a"]), "a write: keys has to be bytes*, not list of str"),
        ("commit", changed((6, 0, 2), [b""]), f"a write {LENGTHS}"),
        ("commit-locked", [b"open", *changed((6, 0, 2), [b""])], f"a write {LENGTHS}"),
        ("get", [16, [b"a"] * (GET_KEYS_MAX + 1)], f"a get of more than {GET_KEYS_MAX:,} keys"),
        ("drop", ["name", -1], f"drop: map {OUT_OF_RANGE}"),
        ("lock", [b"", True, 16, [], True, True, [], 0, -1], f"lock: left_us {OUT_OF_RANGE}"),
    ],
)  # fmt: skip
def test_what_no_client_sends_is_refused(operation: str, arguments: list[Any], text: str) -> None:
    with pytest.raises(MisunderstoodError) as caught:
        check_arguments(operation, arguments)
    assert str(caught.value) == text
