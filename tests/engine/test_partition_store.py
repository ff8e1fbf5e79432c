"""Checkpoints of partitions: marks against recomputation, and damage that must not be believed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from support.stores import in_data_file
from tidelog.affinity.errors import CorruptDataError, ForeignFileError
from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.copies import CopyState
from tidelog.checkpoints.marks import PartitionMark, StoreMark
from tidelog.engine.data.flush import Flush, flush_piece
from tidelog.engine.data.partition_store import (
    STORE_KEY,
    check_neighbours,
    checked_get,
    mark_key,
    measure_partition,
    read_marks,
    read_pending,
    read_state,
    read_store_mark,
    verify_partitions,
    write_mark,
)
from tidelog.engine.data.stored import PENDING, TRAILER_SIZE, pack_prefix, xor_trailers
from tidelog.testing import FaultyDisk, MemoryKv
from tidelog.testing.kv_cursor import MemoryCursor
from tidelog.wal.records import Participant, PrepareRecord, Record, Run, SettleRecord

STORE_MARK = StoreMark(
    store_id=b"s" * 16, position=99, time=7, namespaces=(), next_namespace=16, dropped=()
)


def new_kv() -> MemoryKv:
    return MemoryKv(FaultyDisk(), "/", 1 << 30)


def at(partition: int, key: bytes, namespace: int = 16) -> bytes:
    return pack_prefix(partition, namespace) + key


class Partitions:
    """Partitions in a key-value environment, and a dict of what they should hold."""

    def __init__(self) -> None:
        self.kv = new_kv()
        self.marks: dict[int, PartitionMark] = {}
        self.content: dict[int, dict[bytes, bytes]] = {}
        self._counter = 0

    def flush(
        self,
        partition: int,
        changes: dict[bytes, bytes | None],
        *,
        namespace: int = 16,
        dropped: tuple[int, ...] = (),
        pending: Sequence[Record] = (),
    ) -> None:
        updates = {}
        content = self.content.setdefault(partition, {})
        for key, value in changes.items():
            self._counter += 1
            full_key = at(partition, key, namespace)
            updates[full_key] = in_data_file(full_key, value, 1, self._counter, 5)
            if value is None:
                content.pop(full_key, None)
            else:
                content[full_key] = updates[full_key]
        for number in dropped:
            prefix = pack_prefix(partition, number)
            for full_key in [key for key in content if key.startswith(prefix)]:
                del content[full_key]
        lives = (lambda number: number not in dropped) if dropped else None
        mark = self.marks.get(partition) or PartitionMark.empty()
        flush = Flush(
            partition=partition,
            updates=updates,
            position=self._counter,
            counter=mark.counter,
            epochs=mark.epochs,
            state=CopyState.MOVING,
            admission=7,
            pending=pending,
        )
        with self.kv.write() as txn:
            for piece in flush.pieces(7):
                mark = flush_piece(txn, piece, mark, lives)
        self.marks[partition] = mark

    def check(self) -> None:
        with self.kv.write() as txn:
            write_mark(txn, STORE_KEY, STORE_MARK.to_bytes())
        txn = self.kv.begin()
        store, marks = read_marks(txn)
        assert store == STORE_MARK == read_store_mark(txn)
        assert marks == self.marks
        for partition, content in self.content.items():
            mark = marks[partition]
            assert mark.count == len(content)
            assert mark.digest == xor_trailers(list(content.values()))
            assert measure_partition(txn, partition) == (mark.count, mark.digest, 0)
            assert {key: txn.get(key) for key in content} == content
        assert verify_partitions(self.kv, marks) == []

    def damage(self, key: bytes, *, bit: int) -> None:
        """Flip a bit of a stored value, or of the mark of a partition."""
        with self.kv.write() as txn:
            stored = bytearray(txn.get(key) or b"")
            stored[bit // 8] ^= 1 << bit % 8
            txn.put(key, bytes(stored))

    def move(self, old: bytes, new: bytes) -> None:
        """Flip bits of a key: its pair lies somewhere else now."""
        with self.kv.write() as txn:
            stored = txn.get(old)
            assert stored is not None
            txn.delete(old)
            txn.put(new, stored)

    def remove(self, key: bytes) -> None:
        with self.kv.write() as txn:
            txn.delete(key)


def prepared(number: int, name: bytes) -> PrepareRecord:
    return PrepareRecord(
        tx_id=name.ljust(16, b"."),
        attempt=1,
        near=(b"m" * 16, 1),
        time=5,
        home=2,
        participants=(Participant(2, 1, 1), Participant(4, 1, 1)),
        run=Run(2, 1, number, 1),
        namespaces=16,
        keys=[name],
        values=[b"v" * number],
    )


def test_what_is_pending_lies_beside_the_mark_and_counts_for_nothing() -> None:
    store = Partitions()
    settle = SettleRecord(partition=2, epoch=2, start=9, transactions=(), closed=())
    first, second = prepared(7, b"first"), prepared(8, b"second")
    steps: list[tuple[dict[bytes, bytes | None], list[Record]]] = [
        ({b"a": b"1"}, [first]),
        ({}, [first, second, settle]),
        ({b"b": b"2", b"a": None}, [second, settle]),
        ({b"%d" % number: b"v" for number in range(20)}, [second]),
        ({}, []),
    ]
    for changes, pending in steps:
        store.flush(2, changes, pending=pending)
        store.flush(3, {b"beside": b"it"})
        store.check()
        txn = store.kv.begin()
        assert read_pending(txn, 2) == pending
        state, _ = read_state(txn, STORE_MARK.store_id, one_space(4), "/store")
        assert state.copies.entries(2) == pending
        assert state.copies.states == {2: CopyState.MOVING, 3: CopyState.MOVING}
        assert state.copies.admissions == {2: 7, 3: 7}
    with pytest.raises(ForeignFileError, match="/store: its data file belongs to store"):
        read_state(txn, b"other".ljust(16), one_space(4), "/store")


def test_damage_to_what_is_pending_is_found() -> None:
    store = Partitions()
    store.flush(2, {b"a": b"1"}, pending=[prepared(7, b"first")])
    key = at(2, bytes(4), PENDING)
    store.damage(key, bit=90)
    with pytest.raises(CorruptDataError):
        read_pending(store.kv.begin(), 2)
    assert verify_partitions(store.kv, store.marks) != []
    with store.kv.write() as txn:
        write_mark(txn, key, b"not a record")
    with pytest.raises(CorruptDataError, match="pending in partition 2 does not decode"):
        read_pending(store.kv.begin(), 2)


def filled() -> Partitions:
    store = Partitions()
    for partition in (0, 2, 5):
        store.flush(partition, {b"%d" % number: b"v" for number in range(20)})
    store.check()
    return store


@pytest.mark.parametrize("seed", range(25))
def test_count_and_digest_are_those_of_what_the_partition_holds(seed: int) -> None:
    rng, store = random.Random(seed), Partitions()
    keys = [b"%d" % number for number in range(30)]
    for _ in range(12):
        partition, namespace = rng.choice((0, 1, 7)), rng.choice((15, 16, 17))
        changes = {
            key: None if rng.random() < 0.4 else rng.randbytes(rng.randint(0, 9))
            for key in rng.sample(keys, rng.randint(0, 15))
        }
        dropped = (rng.choice((15, 16, 17)),) if rng.random() < 0.2 else ()
        store.flush(partition, changes, namespace=namespace, dropped=dropped)
        store.check()


def test_a_new_environment_has_no_marks() -> None:
    txn = new_kv().begin()
    assert read_marks(txn) == (None, {})
    assert read_store_mark(txn) is None
    assert measure_partition(txn, 3) == (0, 0, 0)


def test_a_mark_alone_is_written_for_a_partition_that_has_no_updates() -> None:
    store = Partitions()
    store.flush(4, {})
    store.check()
    assert store.kv.entries() == 2


def test_an_append_behind_all_keys_replaces_nothing() -> None:
    store = Partitions()
    store.flush(1, {b"a": b"1"})
    store.flush(1, {b"b": b"2", b"c": None})
    store.flush(2, {b"a": b"1"})
    store.flush(1, {b"d": b"1"})
    store.check()


def test_a_delete_of_what_is_not_there_changes_nothing() -> None:
    store = Partitions()
    store.flush(1, {b"a": None})
    store.check()
    assert store.marks[1].count == store.marks[1].digest == 0


def test_a_dropped_namespace_goes_and_its_neighbours_stay() -> None:
    store = Partitions()
    for namespace in (15, 16, 17):
        store.flush(1, {b"%d" % number: b"v" for number in range(1500)}, namespace=namespace)
    store.flush(1, {}, dropped=(16,))
    store.check()
    assert store.marks[1].count == 3000
    store.flush(1, {b"new": b"v"}, namespace=17, dropped=(16, 15))
    store.check()
    assert store.marks[1].count == 1501


# ------------------------------------------------------------------ reading with checks


def test_a_value_is_checked_when_it_is_read() -> None:
    store = filled()
    key = at(2, b"7")
    assert checked_get(store.kv.begin(), key) == store.content[2][key]
    store.damage(key, bit=3)
    with pytest.raises(CorruptDataError):
        checked_get(store.kv.begin(), key)


def test_a_miss_is_believed_where_both_neighbours_are_whole() -> None:
    txn = filled().kv.begin()
    for key in (at(2, b"7x"), at(0, b""), at(9, b"z"), b"\0", b"\xff" * 20):
        assert checked_get(txn, key) is None


@pytest.mark.parametrize("bit", range(16))
def test_a_pair_whose_key_was_damaged_is_not_called_absent(bit: int) -> None:
    store = filled()
    key = at(2, b"17")
    moved = bytearray(key)
    moved[-2 + bit // 8] ^= 1 << bit % 8
    if bytes(moved) in store.content[2]:
        return
    store.move(key, bytes(moved))
    # In a real tree the pair still lies where it was; here it has moved as far as its key says.
    with pytest.raises(CorruptDataError):
        check_neighbours(store.kv.begin(), bytes(moved) + b"\0")


def test_an_empty_environment_has_no_neighbours() -> None:
    check_neighbours(new_kv().begin(), b"key")


# ------------------------------------------------------------------ marks


@pytest.mark.parametrize("partition", [0, 2, 5])
def test_a_damaged_mark_is_found(partition: int) -> None:
    for bit in range(0, 200, 7):
        store = filled()
        store.damage(mark_key(partition), bit=bit)
        with pytest.raises(CorruptDataError):
            read_marks(store.kv.begin())


def test_a_damaged_mark_of_the_store_is_found() -> None:
    store = filled()
    store.damage(STORE_KEY, bit=9)
    with pytest.raises(CorruptDataError):
        read_marks(store.kv.begin())


@pytest.mark.parametrize("name", ["first", "middle", "last"])
def test_data_without_a_mark_is_damage(name: str) -> None:
    # Its counters began anew from zero, and numbers were given out twice.
    partition = {"first": 0, "middle": 2, "last": 5}[name]
    store = filled()
    store.remove(mark_key(partition))
    with pytest.raises(CorruptDataError, match=f"partition {partition} holds data but no mark"):
        read_marks(store.kv.begin())


@pytest.mark.parametrize("bit", range(8 * len(mark_key(2))))
def test_a_mark_whose_key_was_damaged_is_not_lost(bit: int) -> None:
    store = filled()
    key = bytearray(mark_key(2))
    key[bit // 8] ^= 1 << bit % 8
    store.move(mark_key(2), bytes(key))
    with pytest.raises(CorruptDataError):
        read_marks(store.kv.begin())


# ------------------------------------------------------------------ the built-in check


def test_the_check_says_what_is_wrong() -> None:
    store = filled()
    store.damage(at(0, b"3"), bit=1)
    store.remove(at(2, b"3"))
    with store.kv.write() as txn:
        key = at(5, b"3")
        txn.put(key, in_data_file(key, b"another", 1, 2, 3))
    problems = verify_partitions(store.kv, store.marks)
    assert [problem[:12] for problem in problems] == [
        "partition 0:",
        "partition 2 ",
        "partition 5:",
    ]
    assert "does not match its checksum" in problems[0]
    assert "holds 19 keys, its mark says 20" in problems[1]
    assert "the digest of its 20 pairs is wrong" in problems[2]


def test_keys_that_belong_to_no_partition_are_found() -> None:
    store = filled()
    with store.kv.write() as txn:
        key = at(77, b"stranger")
        txn.put(key, in_data_file(key, b"v", 1, 2, 3))
    assert verify_partitions(store.kv, store.marks) == [
        "65 keys in the tree, 64 of them in partitions"
    ]


def test_a_mark_is_a_stored_value_like_any() -> None:
    store = filled()
    stored = checked_get(store.kv.begin(), mark_key(2))
    assert stored is not None
    assert PartitionMark.from_bytes(stored[:-TRAILER_SIZE]) == store.marks[2]


def test_a_tree_that_gives_an_earlier_key_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB looks a key up in pages whose order it trusts."""
    store = Partitions()
    for partition in range(2):
        store.flush(partition, {b"a": b"1"})
    real = MemoryCursor.set_range

    def misled(cursor: MemoryCursor, key: bytes) -> bool:
        return real(cursor, mark_key(0) if key == mark_key(1) else key)

    monkeypatch.setattr(MemoryCursor, "set_range", misled)
    monkeypatch.setattr(MemoryCursor, "prev", lambda _cursor: False)
    with pytest.raises(CorruptDataError, match="out of order"):
        read_marks(store.kv.begin())
