"""What users know from a dict: CPython's own tests of mappings, views, equality.

What stays different from a dict, and why, stands in docs/maps.md.
"""

from __future__ import annotations

import unittest
from collections import UserDict
from collections.abc import ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from itertools import count
from typing import Any

import pytest
from test import mapping_tests  # type: ignore[import-not-found]  # typeshed has none

import tidelog
from support.stores import PATH
from tidelog.codecs import I64, Bytes, Msgpack, Str
from tidelog.engine.api.database import Database
from tidelog.engine.api.open import open_with
from tidelog.engine.api.snapshots import SnapshotSession
from tidelog.errors import ClosedError, CodecError, ReadOnlyError
from tidelog.testing import FaultyDisk, simulated

DIFFERENT = {
    "test_copy": "a copy would be another map of the store: `dict(m)` copies one",
    "test_eq": "keys are values that a codec knows",
    "test_fromkeys": "maps are made by `db.map`",
    "test_getitem": "keys are values that a codec knows",
    "test_items": "`items` and `keys` take a prefix, and None is none",
    "test_pop": "keys are values that a codec knows",
    "test_popitem": "it wants `copy`",
    "test_repr": "a repr that shows everything would read a whole store",
    "test_repr_deep": "values are values that a codec knows",
    "test_setdefault": "values are encoded: what is done to one that was read stays in memory",
}
"""Tests of CPython that a map does not pass, and why; docs/maps.md tells it to users."""


class OfMaps(mapping_tests.TestHashMappingProtocol):  # type: ignore[misc]
    """CPython's tests over maps with keys and values of any type that msgpack has."""

    __test__ = False  # pytest gets them by name, below

    db: Database
    numbers = count()

    def _reference(self) -> dict[str, str]:
        return {"1": "2", "key1": "value1", "key2": "value2"}

    def type2test(self, *args: Any, **kwargs: Any) -> Any:
        made = self.db.map(f"map {next(self.numbers)}", key=Msgpack, value=Msgpack)
        made.update(*args, **kwargs)
        return made


@pytest.fixture
def db() -> Iterator[Database]:
    with open_with(simulated(1, FaultyDisk()), PATH, durability="none") as db:
        yield db


@pytest.mark.parametrize("name", unittest.TestLoader().getTestCaseNames(OfMaps))
def test_a_map_is_a_mapping_as_cpython_tests_them(db: Database, name: str) -> None:
    OfMaps.db = db
    result = unittest.TestResult()
    OfMaps(name).run(result)
    failed = [text for _, text in result.failures + result.errors]
    if name in DIFFERENT:
        assert failed
    else:
        assert failed == []


def test_maps_are_equal_to_what_has_the_same_pairs(db: Database) -> None:
    one, other = db.map("one", key=Str, value=I64), db.map("other", key=Str, value=I64)
    assert one == other == {} == one
    one.update({"a": 1, "b": 2})
    assert one == {"b": 2, "a": 1} == one == UserDict(a=1, b=2)
    assert one != other
    for different in ({"a": 1}, {"a": 1, "b": 3}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}):
        assert one != different != one
    other.update(one)
    assert one == other
    old = db.snapshot()
    one["c"] = 3
    with db.transaction() as tx:
        assert old[one] == {"a": 1, "b": 2} == other != tx[one]
    assert one != [("a", 1), ("b", 2), ("c", 3)]
    assert isinstance(one, MutableMapping)
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_views_are_those_of_a_dict_and_show_what_is_there_now(db: Database) -> None:
    m = db.map("m", key=Str, value=I64)
    keys, items, values = m.keys(), m.items(), m.values()
    assert isinstance(keys, KeysView)
    assert isinstance(items, ItemsView)
    assert isinstance(values, ValuesView)
    assert len(keys) == len(items) == len(values) == 0
    assert not keys
    expected = {"a": 1, "ab": 2, "b": 2}
    m |= expected
    assert keys
    for _ in range(2):
        assert (list(keys), list(items), list(values)) == (
            list(expected), list(expected.items()), list(expected.values()),
        )  # fmt: skip
        assert list(reversed(keys)) == list(reversed(m)) == ["b", "ab", "a"]
        assert list(reversed(items)) == [("b", 2), ("ab", 2), ("a", 1)]
        assert list(reversed(values)) == [2, 2, 1]
    assert len(keys) == len(items) == len(values) == 3
    assert "ab" in keys
    assert "c" not in keys
    assert ("ab", 2) in items
    assert not {("ab", 1), ("c", 2)} & items
    assert "ab" not in items  # type: ignore[comparison-overlap]
    assert ("a", 1, 1) not in items  # type: ignore[comparison-overlap]
    assert 2 in values
    assert 3 not in values
    assert {"a", "ab", "b"} == keys == expected.keys()  # type: ignore[comparison-overlap]
    assert keys & {"a", "x"} == {"a", "x"} & keys == {"a"}
    assert keys | {"x"} == {"a", "ab", "b", "x"}
    assert keys - {"a"} == {"ab", "b"}
    assert keys ^ {"a", "x"} == {"ab", "b", "x"}
    assert keys.isdisjoint(["x"])
    assert items == expected.items()
    assert {"a", "b"} < keys
    with pytest.raises(CodecError):
        5 in keys  # type: ignore[comparison-overlap]  # noqa: B015


def test_a_view_is_shown_without_a_read_of_its_map(db: Database) -> None:
    m = db.map("m", key=Str, value=I64)
    shown = [repr(view) for view in (m.keys(), m.items(), m.values())]
    db.close()
    assert shown == [
        f"{name}(<Map 'm' str -> i64>)" for name in ("MapKeys", "MapItems", "MapValues")
    ]
    assert repr(m.keys()) == shown[0]


def test_a_pair_is_looked_up_in_a_view_by_one_read(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = db.map("m")
    m.update({b"%d" % n: b"" for n in range(9)})
    keys, items = m.keys(), m.items()
    monkeypatch.setattr(SnapshotSession, "scan", None)
    assert (b"1" in keys, b"x" in keys) == (True, False)
    assert ((b"1", b"") in items, (b"1", b"x") in items, (b"x", b"") in items) == (
        True, False, False,
    )  # fmt: skip
    assert keys & {b"1", b"x"} == {b"1"}


def test_a_view_holds_nothing_until_it_is_gone_over(db: Database) -> None:
    m = db.map("m")
    m.update({b"%d" % n: b"" for n in range(100)})
    items, keys, values = m.items(), m.keys(), m.values()
    assert b"" in values
    assert db.statistics().snapshots == 0
    pairs = iter(items)
    next(pairs)
    assert db.statistics().snapshots == 1
    del pairs
    assert db.statistics().snapshots == 0
    db.close()
    for use in (lambda: list(items), lambda: len(items), lambda: b"1" in keys, lambda: bool(keys)):
        with pytest.raises(ClosedError):
            use()


def test_what_begins_with_a_prefix_is_an_iterator(db: Database) -> None:
    m = db.map("m", key=Str, value=I64)
    m.update({"a": 1, "ab": 2, "b": 3})
    with m.items("a") as pairs:
        assert next(pairs) == ("a", 1)
    assert list(pairs) == []
    assert list(m.keys("a")) == ["a", "ab"]


def test_a_map_is_gone_over_backwards(db: Database) -> None:
    m = db.map("m", key=Str, value=I64)
    assert list(reversed(m)) == []
    m.update({"a": 1, "ab": 2, "b": 3})
    assert list(reversed(m)) == ["b", "ab", "a"]


def test_an_update_by_an_operator_is_one_transaction(db: Database) -> None:
    m = db.map("m", key=Str, value=I64)
    wrong: dict[str, Any] = {"a": 1, "b": "x"}
    with pytest.raises(CodecError):
        m |= wrong
    assert m == {}
    m |= [("a", 1), ("b", 2)]
    assert m == {"a": 1, "b": 2}
    old = db.snapshot()[m]
    with pytest.raises(ReadOnlyError):
        old |= {"a": 2}


def test_an_update_takes_any_name_as_a_key(db: Database) -> None:
    # `self` was a TypeError.
    m = db.map("m", key=Str, value=I64)
    m.update({"a": 1}, self=2, pairs=3)
    assert m == {"a": 1, "pairs": 3, "self": 2}


def test_a_map_of_bytes_is_equal_by_content_too(db: Database) -> None:
    m = db.map("plain", key=Bytes, value=Bytes)
    m[b"a"] = b"1"
    assert m == {b"a": b"1"}
    assert m.last() == m.first() == (b"a", b"1")
    assert tidelog.Map is type(m).__mro__[1]


def test_a_value_is_found_by_what_equals_it(db: Database) -> None:
    values = db.map("documents", key=Str, value=Msgpack).values()
    db.map("documents").update_many({"a": {"n": [1]}, "b": "some text"})
    assert {"n": [1]} in values
    assert "some " + "text" in values
    assert {"n": [2]} not in values
