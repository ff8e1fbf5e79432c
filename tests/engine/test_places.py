"""Where keys lie: one function says it, and closures that say it themselves agree with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from hypothesis import given, strategies as st
from mmh3 import hash as murmur3

from support import trio_stores
from support.documents import ROOT
from support.stores import Opened, expect_sound, open_store, opened
from tidelog.affinity.partitions import Space, check_spaces, one_space, partition_of
from tidelog.checkpoints.replay import State
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.data import point_reads
from tidelog.engine.data.stored import split_key
from tidelog.wal.records import NamespaceRecord

LAYERS = (
    "affinity", "wal", "tx", "checkpoints", "rebalance", "engine", "pipeline", "testing", "tools",
)  # fmt: skip

OWNERS = {"affinity/partitions.py", "affinity/assignment.py"}
"""The one that places keys, and one that hashes names of members."""

FORM = "first + murmur3(key, 0, False) % count"
INLINED = {
    ("engine/aio/log_thread.py", "LogThread.putter.put"),
    ("engine/api/session.py", "StoreSession.setter.set_one"),
    ("engine/api/rewrites.py", "OneKey.__init__"),
    ("engine/api/transaction_session.py", "TransactionSession.getter.get"),
    ("engine/api/transaction_session.py", "TransactionSession.setter.put"),
    ("engine/commit/relaxed.py", "relaxed_setter.set_one"),
    ("engine/data/point_reads.py", "_get_all"),
    ("engine/data/point_reads.py", "getter.get"),
}
"""Where a call more per key was measured to cost too much."""

OTHERS = Space(5, 7)
"""A space that does not begin at 0, in a store of more partitions."""
PARTITIONS = 14
KEYS = [b"%d" % number for number in range(60)]


# ------------------------------------------------------------------ who says it


def hashes(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    """Where a tree uses the 32-bit hash of mmh3: the function, and the whole expression."""
    for node in ast.iter_child_nodes(tree):
        name = f"{inside}.{getattr(node, 'name', '')}".strip(".")
        scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(node, ast.BinOp) and ast.unparse(node) == FORM:
            yield inside, FORM
        elif isinstance(node, ast.Name) and node.id == "murmur3":
            yield inside, "murmur3"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "mmh3.hash":
            yield inside, "mmh3.hash"
        else:
            yield from hashes(node, name if scope else inside)


def imported(tree: ast.AST) -> Iterator[str]:
    """The names under which a tree has the hash."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "mmh3":
            yield from (one.asname or one.name for one in node.names if one.name == "hash")
        elif isinstance(node, ast.Import):
            yield from (
                f"{one.asname or one.name}.hash" for one in node.names if one.name == "mmh3"
            )


def test_only_listed_places_compute_the_partition_of_a_key() -> None:
    found = set()
    for path in [file for layer in LAYERS for file in (ROOT / layer).rglob("*.py")]:
        place = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        assert set(imported(tree)) <= {"murmur3", "mmh3.hash"}, place
        for function, what in hashes(tree):
            if place not in OWNERS:
                assert what == FORM, f"{place}: {function} hashes in another way: {what}"
                found.add((place, function))
    assert found == INLINED


# ------------------------------------------------------------------ that all say the same


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of users lie in a space that does not begin at 0."""

    def space_of(_state: State, record: NamespaceRecord) -> Space:
        return OTHERS if record.id >= 16 else Space(0, PARTITIONS)

    monkeypatch.setattr(State, "space_of", space_of)


def places(db: Database) -> dict[bytes, int]:
    """The partition of each key of user's maps, wherever it is held."""
    store = session_of(db)
    txn = store.overlay.view.txn
    cursor = txn.cursor()
    full_keys = list(cursor.iternext(values=False)) if cursor.first() else []
    for layer in store.overlay.view.layers:
        for partition, part in layer.parts.items():
            assert all(split_key(full_key)[0] == partition for full_key in part)
            full_keys += part
    return {key: p for p, number, key in map(split_key, full_keys) if 16 <= number < 99}


def expect_all_in_place(store: Any, keys: list[bytes]) -> None:
    assert places(store) == {key: partition_of(key, OTHERS) for key in keys}


@pytest.mark.parametrize("durability", ["always", "none"])
@pytest.mark.usefixtures("elsewhere")
def test_all_ways_to_write_and_read_a_key_find_the_same_partition(durability: str) -> None:
    store: Opened = open_store(partitions=PARTITIONS, durability=durability)
    db = store.database
    users = db.map("users")
    one, many, mine, counted, popped = KEYS[:20], KEYS[20:40], KEYS[40:50], KEYS[50:55], KEYS[55:]
    for key in one:
        users[key] = b"one"
    users.update_many(dict.fromkeys(many, b"many"))
    for mode in ("optimistic", "pessimistic"):
        with db.transaction(mode) as tx:
            for key in mine:
                tx[users][key] = tx[users].get(key, b"") + b"mine"
                tx[users].setdefault(key, b"no")
    for key in counted + popped:
        assert users.setdefault(key, b"set") == b"set"
    store.database.map("other")[b"0"] = b"a neighbour"
    expected = {
        **dict.fromkeys(one, b"one"), **dict.fromkeys(many, b"many"),
        **dict.fromkeys(mine, b"minemine"), **dict.fromkeys(counted + popped, b"set"),
    }  # fmt: skip
    for _ in range(2):
        expect_all_in_place(db, list(expected))
        assert {key: users[key] for key in expected} == expected
        assert users.get_many(list(expected)) == expected
        assert dict(users.items()) == expected
        with db.snapshot() as snapshot:
            assert {key: snapshot[users][key] for key in expected} == expected
        with db.transaction() as tx:
            assert {key: tx[users][key] for key in expected} == expected
        db.checkpoint()
    first = min(expected)
    assert users.popitem() == (first, expected.pop(first))
    db.checkpoint()
    expect_all_in_place(db, list({*expected, b"0"}))
    assert dict(users.items()) == expected
    db.close()
    expect_sound(store.disk)


@pytest.mark.usefixtures("elsewhere")
def test_many_keys_are_looked_up_where_one_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    # A key that is not found there is looked up one by one, which would find it.
    with opened(partitions=PARTITIONS) as store:
        users = store.database.map("users")
        users.update_many(dict.fromkeys(KEYS, b"v"))
        store.database.checkpoint()
        monkeypatch.setattr(point_reads, "getter", lambda *_: pytest.fail("one by one"))
        assert users.get_many(KEYS) == dict.fromkeys(KEYS, b"v")


@pytest.mark.usefixtures("elsewhere")
def test_a_task_puts_a_key_where_a_thread_finds_it() -> None:
    async def main() -> None:
        async with trio_stores.opened(partitions=PARTITIONS) as db:
            users = db.map("users")
            for key in KEYS:
                await users.set(key, b"v")
            assert [await users.get(key) for key in KEYS] == [b"v"] * len(KEYS)
            expect_all_in_place(db.database, KEYS)

    trio.run(main)


@given(st.binary(max_size=40), st.integers(0, 20_000), st.integers(1, 12_768))
def test_a_key_lies_in_its_space_as_far_as_in_one_at_0(key: bytes, first: int, count: int) -> None:
    space = Space(first, count)
    assert partition_of(key, space) in space.numbers
    assert partition_of(key, space) - first == partition_of(key, Space(0, count))


@given(st.binary(max_size=40), st.integers(0, 20_000), st.integers(1, 12_768))
def test_what_is_written_out_says_what_the_function_says(
    key: bytes, first: int, count: int
) -> None:
    names = {"murmur3": murmur3, "key": key, "first": first, "count": count}
    assert eval(FORM, names) == partition_of(key, Space(first, count))


# ------------------------------------------------------------------ spaces


def test_spaces_follow_one_another() -> None:
    check_spaces(one_space(16), 16)
    check_spaces([Space(0, 16, 1), Space(16, 4), Space(20, 1, 2)], 21)
    for wrong, count in [
        ([], 1),
        ([Space(0, 16)], 17),
        ([Space(1, 16)], 17),
        ([Space(0, 16), Space(17, 4)], 21),
        ([Space(0, 16), Space(15, 6)], 21),
        ([Space(0, 0), Space(0, 4)], 4),
        ([Space(0, 4, -1)], 4),
    ]:
        with pytest.raises(ValueError, match="partition"):
            check_spaces(wrong, count)
