"""What users know from a dict: CPython's own tests of mappings, equality, ``|=``.

What stays different from a dict, and why, stands in docs/maps.md.
"""

from __future__ import annotations

import unittest
from collections import UserDict
from collections.abc import Iterator, MutableMapping
from itertools import count
from typing import Any

import pytest
from test import mapping_tests  # type: ignore[import-not-found]  # typeshed has none

import tidelog
from support.stores import PATH
from tidelog.codecs import I64, Bytes, Msgpack, Str
from tidelog.engine.api.database import Database
from tidelog.engine.api.open import open_with
from tidelog.errors import CodecError, ReadOnlyError
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
