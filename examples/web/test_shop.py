"""Fixtures for pytest: a store in memory for most tests, one on the disk for what is about files.

pytest examples/web/test_shop.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tidelog.codecs import I64, Str


@pytest.fixture
def db() -> Iterator[tidelog.Database]:
    """Give each test a store of its own, without files."""
    with tidelog.memory() as db:
        yield db


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tidelog.Database]:
    """Give each test a store of its own, in a directory that pytest removes."""
    with tidelog.open(tmp_path / "shop.tl", durability="none") as db:
        yield db


@pytest.mark.parametrize("times", [1, 5])
def test_sales_are_counted(db: tidelog.Database, times: int) -> None:
    """Each case begins with an empty store."""
    sold = db.map("sold", key=Str, value=I64)
    for _ in range(times):
        sold.incr("apples")
    assert sold == {"apples": times}


def test_what_was_sold_is_there_after_a_crash(stored: tidelog.Database) -> None:
    """A crash of the process takes back nothing, whatever the level of durability."""
    stored.map("sold", key=Str, value=I64).incr("apples")
    stored.abandon()  # as `kill -9` would
    with tidelog.open(stored.path) as db:
        assert db.map("sold") == {"apples": 1}
