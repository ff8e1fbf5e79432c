"""Isolation levels and read sets: the table, conflicts by hand, then against a naive twin."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from tidelog.affinity.errors import UsageError
from tidelog.tx import validation
from tidelog.tx.validation import (
    READ_RULES,
    Isolation,
    Mode,
    RangeRead,
    ReadSet,
    Validated,
    first_common,
    read_rule,
)

MAP, OTHER = b"\0\0\0\x10", b"\0\0\0\x11"


def at(key: str, partition: int = 0, namespace: bytes = MAP) -> bytes:
    return partition.to_bytes(4, "big") + namespace + key.encode()


# ------------------------------------------------------------------ the table of levels


def test_the_table_in_the_module_says_what_the_rules_say() -> None:
    assert validation.__doc__ is not None
    lines = [line.split() for line in validation.__doc__.splitlines()]
    rows = {(w[1], w[2]): w for w in lines if len(w) > 5 and (w[1], w[2]) in READ_RULES}
    assert rows.keys() == READ_RULES.keys()
    for key, words in rows.items():
        rule = READ_RULES[key]
        row, reads, locked = words[0], words[3], words[-1] != "none"
        validated = " ".join(words[4:6])
        assert (rule.row, rule.snapshot, rule.read_locks) == (row, reads == "snapshot", locked)
        assert rule.validated.value in validated
        assert rule.pessimistic == (key[0] == "pessimistic")


def test_checkers_know_the_modes_and_levels_of_the_rules() -> None:
    # They were listed in another layer: a new level ran, and no checker let anybody ask for it.
    modes, levels = zip(*READ_RULES, strict=True)
    assert (set(get_args(Mode)), set(get_args(Isolation))) == (set(modes), set(levels))


def test_what_is_validated_was_read_from_one_snapshot() -> None:
    for rule in READ_RULES.values():
        assert rule.snapshot == (rule.validated is not Validated.NOTHING)
        assert not (rule.read_locks and rule.snapshot)


@pytest.mark.parametrize(
    ("mode", "isolation"),
    [
        ("optimistic", "snapshot"),
        ("eager", "serializable"),
        ("", ""),
        ("serializable", "optimistic"),
    ],
)
def test_an_unknown_level_is_an_error_that_names_the_known_ones(mode: str, isolation: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_rule(mode, isolation)
    assert caught.value.hint == (
        "Modes are optimistic, pessimistic; "
        "isolation levels are serializable, repeatable_read, read_committed."
    )


# ------------------------------------------------------------------ ranges

# (case, start, stop, reverse, last key given out, came to the end, keys covered of "abcdefg")
RANGES: list[tuple[str, str, str | None, bool, str | None, bool, str]] = [
    ("nothing asked for yet", "", None, False, None, False, ""),
    ("the whole map", "", None, False, "g", True, "abcdefg"),
    ("an empty map", "", None, False, None, True, "abcdefg"),
    ("up to the last one given out", "", None, False, "c", False, "abc"),
    ("from the start, that included", "b", None, False, "c", False, "bc"),
    ("to the stop, that not included", "", "d", False, "c", True, "abc"),
    ("backwards, down to the last one given out", "", None, True, "e", False, "efg"),
    ("backwards from the stop", "", "f", True, "e", False, "e"),
    ("backwards to the end", "c", "f", True, "c", True, "cde"),
    ("stop below start", "e", "b", False, None, True, ""),
]


@pytest.mark.parametrize(
    ("start", "stop", "reverse", "last", "ended", "covered"),
    [row[1:] for row in RANGES],
    ids=[row[0] for row in RANGES],
)
def test_a_range_read_covers(
    start: str, stop: str | None, reverse: bool, last: str | None, ended: bool, covered: str
) -> None:
    read = RangeRead(16, start.encode(), None if stop is None else stop.encode(), reverse=reverse)
    if last is not None:
        read.gave(last.encode())
    if ended:
        read.finish()
    for partition in (0, 1, 7):
        found = "".join(key for key in "abcdefg" if read.covers(at(key, partition)))
        assert found == covered
    assert not any(read.covers(at(key, 0, OTHER)) for key in "abcdefg")


# ------------------------------------------------------------------ read sets


def test_a_key_that_was_read_conflicts_with_its_change_only() -> None:
    reads = ReadSet()
    assert reads.first_changed({at("a")}) is None
    reads.keys.add(at("a"))
    assert reads.first_changed({at("b"), at("a", 1), at("a", 0, OTHER)}) is None
    assert reads.first_changed({at("b"), at("a")}) == at("a")
    assert reads.first_changed({}) is None
    assert repr(reads) == "<ReadSet keys=1 ranges=0>"


def test_a_key_that_appears_in_a_range_is_a_phantom() -> None:
    reads = ReadSet()
    first, second = RangeRead(16, b"a", b"c"), RangeRead(16, b"x", None)
    reads.ranges += [first, second]
    second.finish()
    assert reads.first_changed([at("b"), at("w")]) is None
    assert reads.first_changed([at("b"), at("z", 3)]) == at("z", 3)
    first.finish()
    assert reads.first_changed([at("b")]) == at("b")


@pytest.mark.parametrize(
    ("keys", "changed", "first"),
    [
        ("", "", None),
        ("abc", "", None),
        ("", "abc", None),
        ("abc", "def", None),
        ("cab", "xcb", b"b"),
        ("c", "abcdefgh", b"c"),
        ("abcdefgh", "hg", b"g"),
    ],
)
def test_the_lowest_common_key_is_found(keys: str, changed: str, first: bytes | None) -> None:
    mine = {key.encode() for key in keys}
    for theirs in ({key.encode() for key in changed}, {key.encode(): 1 for key in changed}):
        assert first_common(mine, theirs) == first


@pytest.mark.parametrize("seed", range(20))
def test_a_read_set_agrees_with_the_list_of_all_that_was_read(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = "abcdefghij"
    reads, depended = ReadSet(), set()
    for key in rng.sample(alphabet, rng.randint(0, 3)):
        reads.keys.add(at(key))
        depended.add(at(key))
    for _ in range(rng.randint(0, 3)):
        start, stop = rng.choice(alphabet), rng.choice([*alphabet, None])
        read = RangeRead(16, start.encode(), None if stop is None else stop.encode())
        given = [key for key in alphabet if start <= key and (stop is None or key < stop)]
        shown = given[: rng.randint(0, len(given))]
        if shown:
            read.gave(shown[-1].encode())
        if rng.random() < 0.5:
            read.finish()
            shown = given
        depended |= {at(key, partition) for key in shown for partition in (0, 1)}
        reads.ranges.append(read)
    for _ in range(50):
        changed = {at(rng.choice(alphabet), rng.randint(0, 1)) for _ in range(rng.randint(0, 4))}
        found = reads.first_changed(changed)
        assert (found is None) == changed.isdisjoint(depended)
        assert found is None or found in changed & depended
