"""Flushes into one partition: what a delete leaves, what is compared, and what is cleared."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from support.stores import in_data_file, opened
from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.copies import CopyState
from tidelog.checkpoints.marks import PartitionMark
from tidelog.checkpoints.replay import State
from tidelog.engine.data import flush as flushes
from tidelog.engine.data.flush import SWEEP, Flush, Sweep, flush_piece, still_held, without_data
from tidelog.engine.data.partition_store import (
    STORE_KEY,
    measure_partition,
    read_marks,
    verify_partitions,
)
from tidelog.engine.data.stored import (
    StoredPair,
    is_tombstone,
    pack_prefix,
    stored_value,
    xor_trailers,
)
from tidelog.testing import FaultyDisk, MemoryKv
from tidelog.wal.records import AdmitRecord, ClearRecord, Participant, PrepareRecord, Run

PREFIX = pack_prefix(0, 16)
MISSING = 1000
"""A number that a copy lacks for as long as it is being brought up."""
ADMIT = AdmitRecord(
    partition=0, admission=9, epochs=((1, 1),), lwm=0, ranges=(), hwm=MISSING, dropped=()
)

Version = tuple[int, int]
Change = tuple[int, int, bytes, bytes | None]
"""(epoch, number, key, value or None for a delete)."""


class Copy:
    """One partition in a data file, the fold that belongs to it, and what it should hold."""

    def __init__(self, sweep: Sweep = SWEEP) -> None:
        self.sweep = sweep
        self.kv = MemoryKv(FaultyDisk(), "/", 1 << 30)
        self.state = State(b"s" * 16, one_space(1))
        self.mark: PartitionMark | None = None
        self.held: dict[bytes, tuple[Version, bytes | None]] = {}
        """Per key the newest update that ever came."""

    def take(self, changes: Sequence[Change]) -> None:
        """Apply updates, and flush what an overlay would hold of them."""
        updates: dict[bytes, bytes] = {}
        for epoch, number, key, value in changes:
            self.state.counters[0].update(number - 1, 1)
            version = epoch, number
            if key not in self.held or self.held[key][0] < version:
                self.held[key] = version, value
            updates[PREFIX + key] = stored_value(value, epoch, number, 5)
        self.flush(updates)

    def flush(self, updates: dict[bytes, bytes], most: int = 7) -> None:
        flush = Flush.of(self.state, 0, updates, 77, self.mark)
        mark = self.mark or PartitionMark.empty()
        for piece in flush.pieces(most):
            with self.kv.write() as txn:
                mark = flush_piece(txn, piece, mark, sweep=self.sweep)
        self.mark = mark
        self.state.forget_cleared({0: flush.cleared or 0})

    def stored(self) -> dict[bytes, bytes]:
        """What the data file has, marks and what is pending left out."""
        txn = self.kv.begin()
        cursor = txn.cursor()
        found = dict(cursor.iternext() if cursor.first() else ())
        return {key[8:]: value for key, value in found.items() if key[:8] == PREFIX}

    def tombstones(self) -> set[bytes]:
        return {key for key, value in self.stored().items() if is_tombstone(value)}

    def check(self) -> None:
        assert self.mark is not None
        live = {
            key: in_data_file(PREFIX + key, value, *version, 5)
            for key, (version, value) in self.held.items()
            if value is not None
        }
        stored = self.stored()
        assert {key: one for key, one in stored.items() if not is_tombstone(one)} == live
        measured = measure_partition(self.kv.begin(), 0)
        assert measured == (self.mark.count, self.mark.digest, self.mark.tombstones)
        assert measured == (len(live), xor_trailers(list(live.values())), len(self.tombstones()))
        assert read_marks(self.kv.begin())[1] == {0: self.mark}
        assert self.mark.counts == ({16: len(live)} if live else {})
        assert verify_partitions(self.kv, {0: self.mark}) == []
        assert self.kv.begin().get(STORE_KEY) is None


def test_a_flush_leaves_the_mark_before_as_it_was() -> None:
    # If it fails, that one counts on.
    copy = Copy()
    copy.take([(1, 1, b"a", b"1")])
    before = copy.mark
    assert before is not None
    copy.take([(1, 2, b"b", b"2"), (1, 3, b"c", b"3")])
    copy.take([(1, 4, b"a", None)])
    assert before.counts == {16: 1}


def moving(sweep: Sweep = SWEEP) -> Copy:
    """A copy that is being brought up to its group."""
    copy = Copy(sweep)
    copy.state.apply(0, ADMIT)
    return copy


# ------------------------------------------------------------------ tombstones


def test_a_whole_copy_without_a_gap_keeps_nothing_of_a_delete() -> None:
    copy = Copy()
    copy.take([(1, 1, b"a", b"1"), (1, 2, b"b", b"2")])
    copy.take([(1, 3, b"a", None), (1, 4, b"c", None)])
    copy.check()
    assert set(copy.stored()) == {b"b"}


def test_a_delete_above_lwm_leaves_a_tombstone_and_one_below_does_not() -> None:
    copy = Copy()
    copy.take([(1, 1, b"a", b"1"), (1, 2, b"b", b"2"), (1, 3, b"c", b"3")])
    copy.take([(1, 4, b"a", None), (1, 6, b"b", None), (1, 7, b"gone", None)])
    copy.check()
    assert copy.tombstones() == {b"b", b"gone"}
    copy.take([(1, 8, b"d", b"4")])
    assert copy.tombstones() == {b"b", b"gone"}
    # Number 5 comes at last. LWM has passed the deletes, so its flush lets them go.
    copy.take([(1, 5, b"e", b"5")])
    copy.check()
    assert copy.tombstones() == set()


def test_a_delete_at_lwm_leaves_nothing_for_a_sweep() -> None:
    copy = Copy(Sweep(pairs=0))
    copy.take([(1, 1, b"a", b"1"), (1, 2, b"b", b"2")])
    copy.take([(1, 3, b"a", None), (1, 5, b"b", None)])
    copy.check()
    assert copy.tombstones() == {b"b"}


def test_a_value_that_takes_the_place_of_a_tombstone_is_counted() -> None:
    copy = moving(Sweep(pairs=0))
    copy.take([(1, 1, b"a", None), (1, 2, b"b", None)])
    copy.state.copies.states[0] = CopyState.OWNING
    copy.take([(1, 3, b"a", b"1")])
    copy.check()
    assert copy.tombstones() == {b"b"}


def test_every_delete_in_a_moving_copy_leaves_a_tombstone() -> None:
    copy = moving()
    copy.take([(1, 1, b"a", b"1"), (1, 2, b"a", None)])
    copy.take([(1, 3, b"b", None)])
    copy.check()
    assert copy.tombstones() == {b"a", b"b"}
    copy.take([])
    assert copy.tombstones() == {b"a", b"b"}
    copy.state.copies.states[0] = CopyState.OWNING
    copy.take([])
    copy.check()
    assert copy.stored() == {}


@pytest.mark.parametrize("state", list(CopyState))
def test_what_is_newer_stays_in_a_copy_that_is_not_whole(state: CopyState) -> None:
    copy = Copy()
    copy.state.copies.states[0] = CopyState.MOVING
    copy.take([(2, 9, b"a", b"new"), (2, 8, b"b", None), (1, 7, b"c", b"old")])
    copy.state.copies.states[0] = state
    older = [(2, 5, b"a", b"x"), (2, 6, b"b", b"x"), (1, 4, b"a", None), (2, 3, b"c", b"epoch 2")]
    copy.take(older)
    stored = copy.stored()
    if state is CopyState.OWNING:
        assert {key for key in stored if not is_tombstone(stored[key])} == {b"b", b"c"}
    else:
        assert copy.tombstones() == {b"b"}
        assert stored[b"a"].startswith(b"new")
        assert stored[b"c"].startswith(b"epoch 2")


@pytest.mark.parametrize("seed", range(40))
def test_a_moving_copy_holds_the_newest_of_each_key_in_whatever_order(seed: int) -> None:
    rng, copy = random.Random(seed), moving()
    changes: list[Change] = [
        (1 + number // 60, number, b"%d" % rng.randrange(12), rng.choice((None, b"", b"v")))
        for number in range(1, 120)
    ]
    rng.shuffle(changes)
    while changes:
        size = rng.randint(1, 20)
        # An overlay holds one update of a key, the newest: those that are late are compared there.
        newest: dict[bytes, Change] = {}
        for change in changes[:size]:
            known = newest.get(change[2])
            newest[change[2]] = change if known is None else max(known, change, key=lambda c: c[:2])
        for _, number, _, _ in changes[:size]:
            copy.state.counters[0].update(number - 1, 1)
        copy.take(list(newest.values()))
        copy.check()
        del changes[:size]
    assert copy.tombstones() == {key for key, (_, value) in copy.held.items() if value is None}
    copy.state.copies.states[0] = CopyState.OWNING
    copy.take([])
    copy.check()
    assert copy.tombstones() == set()


def test_a_flush_looks_through_so_many_pairs_for_tombstones() -> None:
    copy = moving(Sweep(pairs=10))
    copy.take([(1, n, b"%03d" % n, None if n % 3 else b"v") for n in range(1, 36)])
    copy.state.copies.states[0] = CopyState.OWNING
    lefts = []
    for _ in range(4):
        copy.take([])
        copy.check()
        assert copy.mark is not None
        lefts.append((copy.mark.tombstones, copy.mark.swept[8:]))
    assert lefts == [(17, b"011"), (10, b"021"), (4, b"031"), (0, b"")]


def test_a_sweep_begins_anew_at_the_end_of_the_partition() -> None:
    copy = moving(Sweep(pairs=10))
    copy.take([(1, n, b"%03d" % n, None) for n in range(1, 16)])
    copy.state.copies.states[0] = CopyState.OWNING
    copy.take([(1, 17, b"000", None)])  # there is no 16: LWM stays below it
    copy.check()
    for _ in range(2):
        copy.take([])
        assert copy.tombstones() == {b"000"}
        assert copy.mark is not None
        assert copy.mark.swept == b""
    copy.take([(1, 16, b"x", b"v")])
    assert copy.tombstones() == set()


def test_large_values_end_a_sweep_early() -> None:
    copy = moving(Sweep(bytes=100))
    copy.take([(1, n, b"%d" % n, bytes(60)) for n in range(1, 6)] + [(1, 6, b"9", None)])
    copy.state.copies.states[0] = CopyState.OWNING
    for following in (b"3", b"5", b""):
        copy.take([])
        copy.check()
        assert copy.mark is not None
        assert copy.mark.swept[8:] == following
    assert copy.tombstones() == set()


def test_a_store_of_its_own_never_writes_a_tombstone_and_never_compares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flushes, "_merge", lambda *_: pytest.fail("compared"))
    monkeypatch.setattr(flushes, "_sweep", lambda *_: pytest.fail("swept"))
    with opened(partitions=2) as store:
        users = store.database.map("users")
        for round_ in range(3):
            for number in range(40):
                users[b"%d" % number] = b"%d" % round_
            for number in range(round_, 40, 3):
                users.discard(b"%d" % number)
            with store.database.transaction() as tx:
                tx[users].discard(b"1")
                tx[users][b"2"] = b""
            store.database.checkpoint()
            marks = read_marks(store.parts.kv.begin())[1]
            assert [mark.tombstones for mark in marks.values()] == [0, 0]
            assert {bytes(mark.swept) for mark in marks.values()} == {b""}


def test_a_mark_says_what_a_copy_has_promised() -> None:
    copy = moving()
    copy.state.copies.sealed[0] = 4
    copy.take([(1, 1, b"a", b"1")])
    assert copy.mark is not None
    assert (copy.mark.state, copy.mark.admission, copy.mark.sealed) == (CopyState.MOVING, 9, 4)


# ------------------------------------------------------------------ clearing


@pytest.mark.parametrize("most", [2, 7, 1000])
@pytest.mark.parametrize("updates", [0, 1, 9])
def test_what_was_cleared_goes_before_anything_is_written(most: int, updates: int) -> None:
    copy = moving()
    copy.take([(1, n, b"%02d" % n, None if n % 4 == 0 else b"old") for n in range(1, 21)])
    copy.state.apply(500, ClearRecord(partition=0, admission=12, reason="told"))
    assert copy.state.cleared == {0: 500}
    copy.held.clear()
    new = [(1, n, b"%02d" % (n + 15), b"new" if n % 2 else None) for n in range(1, updates + 1)]
    flushed = {PREFIX + key: stored_value(value, e, n, 5) for e, n, key, value in new}
    copy.held = {key: ((e, n), value) for e, n, key, value in new}
    copy.flush(flushed, most)
    copy.check()
    assert copy.state.cleared == {}
    assert len(copy.tombstones()) == updates // 2


def test_a_clearing_goes_in_pieces_and_leaves_the_position_where_it_was() -> None:
    copy = moving()
    copy.take([(1, n, b"%02d" % n, b"old") for n in range(1, 21)])
    copy.state.apply(500, ClearRecord(partition=0, admission=12, reason="told"))
    assert copy.mark is not None
    before = copy.mark
    flush = Flush.of(copy.state, 0, {}, 600, before)
    pieces = list(flush.pieces(8))
    assert [piece.last for piece in pieces] == [False] * 4 + [True]
    mark, counts = before, []
    for piece in pieces:
        with copy.kv.write() as txn:
            mark = flush_piece(txn, piece, mark)
        counts.append(mark.count)
        if not piece.last:
            assert (mark.position, mark.written, mark.counter) == (77, 600, before.counter)
        copy.mark = mark
        assert verify_partitions(copy.kv, {0: mark}) == []
    assert counts == [12, 4, 0, 0, 0]
    assert (mark.position, mark.state, mark.digest) == (600, CopyState.NOT_WHOLE, 0)


@pytest.mark.parametrize("most", [2500, 1000])
def test_of_what_goes_as_a_whole_nothing_is_read_and_others_have_the_interpreter(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, read, rests = moving(), list[int](), list[int]()
    copy.take([(1, n, b"%04d" % n, b"old" if n % 3 else None) for n in range(1, 2501)])
    copy.state.apply(500, ClearRecord(partition=0, admission=12, reason="told"))
    assert copy.mark is not None
    genuine = flushes._counted

    def counted(mark: PartitionMark, pairs: Iterable[StoredPair], sign: int) -> PartitionMark:
        given = list(pairs)
        read.append(len(given))
        return genuine(mark, given, sign)

    monkeypatch.setattr(flushes, "_counted", counted)
    mark = copy.mark
    for piece in Flush.of(copy.state, 0, {}, 600, mark).pieces(most):
        with copy.kv.write() as txn:
            mark = flush_piece(txn, piece, mark, rest=lambda: rests.append(1))
    assert sum(read) == (0 if most == 2500 else 2000), "but for the last piece that has any"
    assert len(rests) >= (2500 - sum(read)) // flushes.CHUNK
    assert (mark.count, mark.tombstones, mark.digest, mark.counts) == (0, 0, 0, {})
    assert verify_partitions(copy.kv, {0: mark}) == []


def test_a_clearing_leaves_the_partitions_beside_alone() -> None:
    copy = moving()
    copy.take([(1, n, b"%02d" % n, b"old") for n in range(1, 6)])
    beside = [pack_prefix(1, 0) + b"mark", pack_prefix(1, 16) + b"a"]
    with copy.kv.write() as txn:
        for key in beside:
            txn.put(key, b"beside")
    copy.state.apply(500, ClearRecord(partition=0, admission=12, reason="told"))
    copy.held.clear()
    copy.flush({}, 100)
    assert copy.stored() == {}
    assert all(copy.kv.begin().get(key) == b"beside" for key in beside)


def test_a_piece_of_a_clearing_takes_as_many_tombstones_and_values_together() -> None:
    copy, other = moving(), pack_prefix(0, 17)
    copy.take([(1, n, b"%02d" % n, None) for n in range(1, 9)])
    copy.flush({other + b"%02d" % n: stored_value(b"v", 1, n, 5) for n in range(9, 17)})
    copy.state.apply(500, ClearRecord(partition=0, admission=12, reason="told"))
    assert copy.mark is not None
    mark, left = copy.mark, []
    for piece in Flush.of(copy.state, 0, {}, 600, mark).pieces(8):
        with copy.kv.write() as txn:
            mark = flush_piece(txn, piece, mark)
        left.append(mark.count + mark.tombstones)
    assert left == [8, 0, 0, 0]


def test_a_clearing_takes_what_is_left_where_a_count_was_too_low() -> None:
    copy = moving()
    copy.take([(1, n, b"%02d" % n, b"old") for n in range(1, 21)])
    copy.state.apply(500, ClearRecord(partition=0, admission=12, reason="told"))
    assert copy.mark is not None
    real, copy.mark = copy.mark, replace(copy.mark, count=3)
    flush = Flush.of(copy.state, 0, {}, 600, copy.mark)
    mark = real
    for piece in flush.pieces(8):
        with copy.kv.write() as txn:
            mark = flush_piece(txn, piece, mark)
    assert (mark.count, mark.digest) == (0, 0)
    assert copy.stored() == {}


def test_what_is_pending_goes_with_the_last_piece_of_a_clearing() -> None:
    copy = moving()
    prepared = PrepareRecord(
        tx_id=b"t" * 16, attempt=1, near=(b"m" * 16, 1), time=5, home=0,
        participants=(Participant(0, 1, 1), Participant(1, 1, 1)), run=Run(0, 1, 21, 1),
        namespaces=16, keys=[b"k"], values=[b"v"],
    )  # fmt: skip
    copy.take([(1, n, b"%02d" % n, b"old") for n in range(1, 21)])
    copy.state.apply(400, prepared)
    copy.take([])
    assert copy.mark is not None
    assert copy.mark.pending == 1
    copy.state.apply(500, ClearRecord(partition=0, admission=12, reason="told"))
    copy.held.clear()
    copy.flush({}, 8)
    copy.check()
    assert copy.mark.pending == 0


def test_a_partition_that_was_cleared_again_meanwhile_is_cleared_again() -> None:
    state = State(b"s" * 16, one_space(2))
    for position, partition in ((5, 0), (6, 1), (9, 0)):
        state.apply(position, ClearRecord(partition=partition, admission=1, reason="told"))
    state.forget_cleared({0: 5, 1: 6})
    assert state.cleared == {0: 9}


def test_what_is_cleared_where_the_last_checkpoint_ended_is_there_still() -> None:
    copy = moving()
    copy.take([(1, n, b"%02d" % n, b"old") for n in range(1, 6)])
    assert copy.mark is not None
    assert copy.mark.position == 77
    copy.state.apply(77, ClearRecord(partition=0, admission=12, reason="told"))
    assert still_held(copy.state.cleared, {0: copy.mark}) == [0]
    copy.held.clear()
    copy.flush({}, 100)
    copy.check()


def test_what_a_checkpoint_has_removed_or_nobody_ever_had_is_not_held() -> None:
    before, behind = (replace(PartitionMark.empty(), position=at) for at in (8, 10))
    assert still_held({0: 9, 1: 9, 2: 9}, {0: before, 1: behind, 3: before}) == [0]


def test_a_mark_of_a_version_that_did_not_count_by_map_stays_one_when_all_has_gone() -> None:
    old = replace(PartitionMark.empty(), count=3, digest=5, tombstones=2, written=20, counts=None)
    gone = replace(old, count=0, digest=0, tombstones=0)
    assert without_data(old, 10) == gone
    assert without_data(old, 30) == replace(gone, written=30)
    assert without_data(replace(old, counts={16: 3}), 10) == replace(gone, counts={})
