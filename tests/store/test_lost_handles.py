"""Handles that nobody refers to any more: they warn, and let go of their store."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.real_stores import expect_sound, run_python
from tidelog import aio
from tidelog.codecs import Str
from tidelog.engine.api.database import session_of
from tidelog.engine.api.open import open as open_store
from tidelog.errors import UsageError

LOST = "was not closed"


COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, pickle.dumps]


@pytest.mark.parametrize("copied", COPIES, ids=lambda copied: copied.__name__)
def test_what_ends_with_a_block_is_neither_copied_nor_pickled(
    tmp_path: Path, copied: Callable[[Any], Any]
) -> None:
    """A copy that was collected ended the transaction under the original."""
    with open_store(tmp_path / "store") as db:
        shop = db.map("shop")
        shop[b"k"] = b"v"
        with db.transaction() as tx, db.snapshot() as snapshot:
            for handle in (tx, snapshot, tx[shop], snapshot[shop], shop.items(), shop.range()):
                with pytest.raises(UsageError, match="cannot be copied"):
                    copied(handle)
        assert shop == {b"k": b"v"}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_store_and_its_maps_are_not_copied(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    """A copy that was collected closed the store under the original."""
    with open_store(tmp_path / "store") as db:
        shop, orders = db.map("shop"), db.map("orders", key=Str, value=Str)
        for handle in (db, shop, orders):
            with pytest.raises(UsageError, match="cannot be copied: both would be the same") as how:
                copied(handle)
            assert "`dict(m)` copies" in how.value.hint
        shop[b"k"] = b"v"
    with (
        open_store(tmp_path / "store", read_only=True) as reader,
        pytest.raises(UsageError, match="cannot be copied: both would be the same"),
    ):
        copied(reader)


@pytest.mark.loops
@pytest.mark.parametrize("copied", COPIES, ids=lambda copied: copied.__name__)
async def test_what_belongs_to_a_store_for_tasks_is_not_copied(
    tmp_path: Path, copied: Callable[[Any], Any]
) -> None:
    async with aio.open(tmp_path / "store") as db:
        shop = db.map("shop")
        for handle in (db, shop, db.transaction(), db.snapshot(), shop.items()):
            with pytest.raises(UsageError, match="cannot be copied or pickled"):
                copied(handle)


@pytest.mark.parametrize("durability", ["always", "interval", "none"])
def test_a_lost_store_can_be_opened_again_with_all_that_was_acknowledged(
    tmp_path: Path, durability: Any
) -> None:
    """It stayed open until the process ended, and could not be had again."""
    path = tmp_path / "store"
    with pytest.warns(ResourceWarning, match=LOST):
        open_store(path)
    db = open_store(path, durability=durability)
    db.map("m").update_many({b"%d" % number: b"1" for number in range(100)})
    db.map("m")[b"last"] = b"2"
    with pytest.warns(ResourceWarning, match=LOST) as warned:
        del db
    assert warned[0].filename == __file__
    with open_store(path) as again:
        assert len(again.map("m")) == 101
    expect_sound(path)


def test_a_lost_reader_gives_its_slot_back(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_store(path) as db:
        db.map("m")[b"k"] = b"v"
        db.checkpoint()
    reader = open_store(path, read_only=True)
    assert len(list((path / "readers").iterdir())) == 1
    with pytest.warns(ResourceWarning, match=LOST) as warned:
        del reader
    assert warned[0].filename == __file__
    assert list((path / "readers").iterdir()) == []
    with open_store(path, read_only=True) as again:
        assert again.map("m")[b"k"] == b"v"


@pytest.mark.slow
def test_whatever_works_with_a_store_keeps_it_open(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "store"
    with open_store(path) as db:
        db.map("m").update_many({b"a": b"1", b"b": b"2"})
    m = open_store(path).map("m")
    gc.collect()
    assert m[b"a"] == b"1"
    m[b"c"] = b"3"
    pairs = iter(m.items())
    del m
    gc.collect()
    assert next(pairs) == (b"a", b"1")
    assert recwarn.list == []
    with pytest.warns(ResourceWarning, match=LOST):
        assert [key for key, _ in pairs] == [b"b", b"c"]
    db = open_store(path)
    tx, m = db.transaction(), db.map("m")
    inside = tx[m]
    del db, tx, m
    gc.collect()
    assert inside[b"a"] == b"1"
    assert recwarn.list == []
    del inside
    with pytest.warns(ResourceWarning, match=LOST):
        gc.collect()
    with open_store(path) as again:
        assert len(again.map("m")) == 3
    expect_sound(path)


def test_a_lost_store_that_is_part_of_a_cycle_goes_with_the_collector(tmp_path: Path) -> None:
    class Holder:
        pass

    holder = Holder()
    holder.db, holder.me = open_store(tmp_path / "store"), holder  # type: ignore[attr-defined]
    del holder
    with pytest.warns(ResourceWarning, match=LOST):
        gc.collect()
    open_store(tmp_path / "store").close()


ENDS = """
import sys, tidelog
db = tidelog.open(sys.argv[1])
m = db.map("m")
m[b"k"] = b"v"
other = tidelog.open(sys.argv[1] + "2")
"""


@pytest.mark.slow
def test_a_program_that_ends_without_closing_still_closes(tmp_path: Path) -> None:
    done = run_python(ENDS, tmp_path / "store")
    assert (done.status, done.err) == (0, "")
    for name in ("store", "store2"):
        with open_store(tmp_path / name) as db:
            assert session_of(db).store.report.clean
