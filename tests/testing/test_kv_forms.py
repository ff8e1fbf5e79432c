"""One suite for all forms of the key-value environment: LMDB, its twin, and LMDB on a twin disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.affinity.errors import CorruptDataError, DiskError
from tidelog.engine.system.disk import RealDisk
from tidelog.engine.system.environment import Cursor, Disk, KeyValueEnvironment, KvTransaction
from tidelog.engine.system.layout import DATA_FILE, FRESH_DATA_FILE, FRESH_DATA_LOCK
from tidelog.engine.system.lmdb_file import LOCK_FILE, KvFullError, open_lmdb
from tidelog.testing import FaultyDisk, MemoryKv, simulated

MAP_SIZE = 1 << 20
Opener = Callable[[str, int, bool, bool], KeyValueEnvironment]


class Form:
    """One form, and a directory to open stores in."""

    def __init__(self, name: str, base: Path) -> None:
        self.disk: Disk = RealDisk()
        self.root = str(base / "store")
        self.opener: Opener = open_lmdb
        if name != "real":
            twin = FaultyDisk(1)
            self.disk, self.root = twin, "/store"
            self.opener = simulated(1, twin, kv=name).open_kv
        self.disk.make_directory(self.root)

    def open(
        self, *, name: str = "data", read_only: bool = False, map_size: int = MAP_SIZE
    ) -> KeyValueEnvironment:
        path = f"{self.root}/{name}"
        self.disk.make_directory(path)
        return self.opener(path, map_size, read_only, True)


@pytest.fixture(params=["real", "memory", "lmdb"])
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Form:
    return Form(request.param, tmp_path)


@pytest.fixture
def kv(form: Form) -> KeyValueEnvironment:
    return form.open()


def fill(kv: KeyValueEnvironment, keys: bytes = b"bdfh") -> None:
    with kv.write() as txn:
        for key in keys:
            txn.put(bytes([key]), b"v" + bytes([key]))


def filled(kv: KeyValueEnvironment) -> Cursor:
    fill(kv)
    return kv.begin().cursor()


def content(kv: KeyValueEnvironment) -> dict[object, object]:
    return dict(kv.begin().cursor().iternext())


def broken_write(kv: KeyValueEnvironment, error: BaseException) -> None:
    with kv.write() as txn:
        txn.put(b"a", b"1")
        raise error


# ------------------------------------------------------------------ transactions


def test_what_was_committed_is_there_after_opening_again(form: Form) -> None:
    kv = form.open()
    fill(kv)
    kv.close()
    kv.close()
    again = form.open()
    assert again.entries() == 4
    assert content(again)[b"d"] == b"vd"
    again.close()


def test_get_put_and_delete_answer_as_a_dict_would(kv: KeyValueEnvironment) -> None:
    with kv.write() as txn:
        assert txn.get(b"a") is None
        assert txn.get(b"a", b"default") == b"default"
        assert txn.put(b"a", b"1")
        assert txn.put(b"a", b"2")
        assert txn.get(b"a") == b"2"
        assert txn.put(b"empty", b"")
        assert txn.delete(b"a")
        assert not txn.delete(b"a")
    assert content(kv) == {b"empty": b""}
    assert kv.entries() == 1


def test_a_reader_sees_the_state_of_its_begin(kv: KeyValueEnvironment) -> None:
    fill(kv)
    reader = kv.begin()
    with kv.write() as txn:
        txn.put(b"b", b"new")
        txn.delete(b"d")
        assert reader.get(b"b") == b"vb"
    assert reader.get(b"b") == b"vb"
    assert reader.get(b"d") == b"vd"
    assert kv.begin().get(b"b") == b"new"


def test_an_error_in_the_block_leaves_nothing(kv: KeyValueEnvironment) -> None:
    with pytest.raises(ZeroDivisionError):
        broken_write(kv, ZeroDivisionError())
    assert content(kv) == {}
    fill(kv)
    assert kv.entries() == 4


def test_a_transaction_committed_or_aborted_by_hand_has_ended(kv: KeyValueEnvironment) -> None:
    txn = kv.begin(write=True)
    txn.put(b"a", b"1")
    txn.commit()
    txn.abort()
    other = kv.begin(write=True)
    other.put(b"a", b"2")
    other.abort()
    assert content(kv) == {b"a": b"1"}
    with pytest.raises(Exception):  # noqa: B017, PT011 - a bug of the caller: any kind will do
        txn.get(b"a")


def test_a_second_write_transaction_in_one_thread_is_refused(kv: KeyValueEnvironment) -> None:
    first = kv.begin(write=True)
    with pytest.raises(Exception):  # noqa: B017, PT011 - as above
        kv.begin(write=True)
    first.abort()
    fill(kv)


def test_a_read_transaction_writes_nothing(kv: KeyValueEnvironment) -> None:
    reader = kv.begin()
    attempts: list[Callable[[], object]] = [
        lambda: reader.put(b"a", b"1"),
        lambda: reader.delete(b"a"),
        lambda: reader.cursor().putmulti([(b"a", b"1")]),
    ]
    for attempt in attempts:
        with pytest.raises(Exception):  # noqa: B017, PT011 - as above
            attempt()
    assert content(kv) == {}


@pytest.mark.parametrize("key", [b"", b"x" * 512], ids=["empty", "512 bytes"])
def test_keys_have_1_to_511_bytes(kv: KeyValueEnvironment, key: bytes) -> None:
    txn = kv.begin(write=True)
    with pytest.raises(Exception):  # noqa: B017, PT011 - as above
        txn.put(key, b"1")
    txn.put(b"x" * 511, b"1")
    txn.commit()
    assert kv.entries() == 1


# ------------------------------------------------------------------ cursors


def test_a_cursor_without_a_position_shows_nothing(kv: KeyValueEnvironment) -> None:
    cursor = filled(kv)
    assert cursor.key() == b""
    assert cursor.value() == b""
    assert cursor.item() == (b"", b"")
    assert cursor.next()
    assert cursor.item() == (b"b", b"vb")


def test_set_range_finds_the_first_key_that_is_not_less(kv: KeyValueEnvironment) -> None:
    cursor = filled(kv)
    found = [(key, cursor.set_range(key), cursor.key()) for key in (b"", b"b", b"c", b"h", b"i")]
    assert found == [
        (b"", True, b"b"),
        (b"b", True, b"b"),
        (b"c", True, b"d"),
        (b"h", True, b"h"),
        (b"i", False, b""),
    ]


def test_iterators_begin_at_the_position_or_at_an_end(kv: KeyValueEnvironment) -> None:
    cursor = filled(kv)
    cursor.set_range(b"d")
    assert list(cursor.iternext(values=False)) == [b"d", b"f", b"h"]
    assert list(cursor.iternext(keys=False)) == [b"vb", b"vd", b"vf", b"vh"]
    cursor.set_range(b"d")
    assert list(cursor.iterprev()) == [(b"d", b"vd"), (b"b", b"vb")]
    assert list(cursor.iterprev(values=False)) == [b"h", b"f", b"d", b"b"]
    cursor.set_range(b"z")
    assert list(cursor.iternext(values=False)) == [b"b", b"d", b"f", b"h"]


def test_iterators_follow_their_cursor(kv: KeyValueEnvironment) -> None:
    cursor = filled(kv)
    keys = cursor.iternext(values=False)
    assert next(keys) == b"b"
    cursor.set_range(b"f")
    assert list(keys) == [b"h"]


def test_getmulti_returns_what_it_finds_in_the_order_asked(kv: KeyValueEnvironment) -> None:
    cursor = filled(kv)
    assert cursor.getmulti([b"h", b"x", b"b", b"b"]) == [
        (b"h", b"vh"),
        (b"b", b"vb"),
        (b"b", b"vb"),
    ]
    assert cursor.getmulti(key for key in (b"x",)) == []


def test_set_key_tells_whether_a_key_is_there(kv: KeyValueEnvironment) -> None:
    cursor = filled(kv)
    assert list(map(cursor.set_key, [b"h", b"x", b"c", b"b"])) == [True, False, False, True]
    assert cursor.item() == (b"b", b"vb")


def test_the_twin_refuses_a_step_that_lmdb_leaves_undefined() -> None:
    kv = MemoryKv(FaultyDisk(1), "/", MAP_SIZE)
    cursor = filled(kv)
    cursor.getmulti([b"b", b"x"])
    for step in (cursor.next, cursor.prev):
        with pytest.raises(RuntimeError, match="not defined"):
            step()
    assert cursor.first()
    assert cursor.next()


def test_putmulti_counts_what_it_took_and_what_it_stored(kv: KeyValueEnvironment) -> None:
    fill(kv)
    with kv.write() as txn:
        cursor = txn.cursor()
        assert cursor.putmulti([(b"b", b"1"), (b"c", b"2")]) == (2, 2)
        assert cursor.putmulti(iter([(b"i", b"3"), (b"k", b"4")]), append=True) == (2, 2)
        assert cursor.putmulti([(b"a", b"no"), (b"k", b"no"), (b"l", b"5")], append=True) == (3, 1)
        cursor.close()
    assert content(kv) == {
        b"b": b"1", b"c": b"2", b"d": b"vd", b"f": b"vf", b"h": b"vh",
        b"i": b"3", b"k": b"4", b"l": b"5",
    }  # fmt: skip


def test_a_cursor_of_a_writer_sees_its_changes(kv: KeyValueEnvironment) -> None:
    fill(kv)
    with kv.write() as txn:
        cursor = txn.cursor()
        cursor.set_range(b"d")
        txn.delete(b"d")
        assert cursor.item() == (b"f", b"vf")
        txn.put(b"g", b"vg")
        assert cursor.next()
        assert cursor.item() == (b"g", b"vg")
        txn.put(b"g", b"new")
        assert cursor.value() == b"new"


def test_a_cursor_that_deletes_stands_on_what_is_behind_that(kv: KeyValueEnvironment) -> None:
    fill(kv)
    with kv.write() as txn:
        cursor = txn.cursor()
        assert not cursor.delete(), "it stands nowhere"
        assert cursor.set_range(b"c")
        assert cursor.delete()
        assert cursor.item() == (b"f", b"vf")
        assert cursor.delete()
        assert cursor.delete()
        assert cursor.item() == (b"", b"")
        assert not cursor.delete(), "it has come to the end"
    assert content(kv) == {b"b": b"vb"}
    assert kv.entries() == 1


def test_an_empty_store_has_no_first_key(kv: KeyValueEnvironment) -> None:
    cursor = kv.begin().cursor()
    steps = (cursor.first, cursor.last, cursor.next, cursor.prev, lambda: cursor.set_range(b"a"))
    assert [step() for step in steps] == [False] * 5
    assert list(cursor.iternext()) == []
    assert list(cursor.iterprev()) == []
    assert kv.entries() == 0


def walk(cursor: Cursor, rng: random.Random) -> list[object]:
    """What 60 random steps of a reading cursor show."""
    shown: list[object] = []
    for _ in range(60):
        step = rng.randrange(8)
        key = bytes([rng.randrange(97, 123)]) * rng.choice((1, 2))
        if step < 4:
            moves = (cursor.first, cursor.last, cursor.next, cursor.prev)
            shown.append(moves[rng.randrange(4)]())
        elif step == 4:
            shown.append(cursor.set_range(key))
        elif step == 5:
            iterator = cursor.iternext() if rng.random() < 0.5 else cursor.iterprev()
            shown.append([item for item, _ in zip(iterator, range(rng.randrange(4)), strict=False)])
        elif step == 6:
            shown.append(list(cursor.iternext(values=False)))
        else:
            shown.append(cursor.getmulti([key, b"b", b"bb"]))
            shown.append(cursor.item())
            # Where the cursor stands after a miss is not defined.
            cursor.first()
        shown.append(cursor.item())
    return shown


@pytest.mark.parametrize("seed", range(40))
def test_cursors_of_the_twin_walk_as_those_of_lmdb(tmp_path: Path, seed: int) -> None:
    walks = []
    for name in ("real", "memory"):
        rng = random.Random(seed)
        kv = Form(name, tmp_path).open()
        with kv.write() as txn:
            for _ in range(rng.choice((0, 1, 5, 20))):
                txn.put(bytes([rng.randrange(97, 123)]) * rng.choice((1, 2)), rng.randbytes(2))
        reader = kv.begin()
        walks.append(walk(reader.cursor(), rng))
    assert walks[0] == walks[1]


def change(txn: KvTransaction, rng: random.Random) -> list[object]:
    """What 40 random changes answer."""
    shown: list[object] = []
    for _ in range(40):
        key, value = bytes([rng.randrange(97, 110)]), rng.randbytes(rng.randrange(3))
        step = rng.randrange(6)
        if step == 0:
            shown.append(txn.put(key, value))
        elif step == 1:
            shown.append(txn.delete(key))
        elif step == 2:
            shown.append(txn.get(key))
        elif step == 3:
            cursor = txn.cursor()
            shown.append((cursor.set_range(key), cursor.delete(), cursor.item()))
        else:
            pairs = [(bytes([rng.randrange(97, 123)]), value) for _ in range(3)]
            shown.append(txn.cursor().putmulti(pairs, append=step == 4))
    return shown


@pytest.mark.parametrize("seed", range(20))
def test_changes_of_the_twin_answer_as_those_of_lmdb(tmp_path: Path, seed: int) -> None:
    results = []
    for name in ("real", "memory"):
        rng = random.Random(seed)
        kv = Form(name, tmp_path).open()
        shown: list[object] = []
        for _ in range(3):
            txn = kv.begin(write=True)
            shown.append(change(txn, rng))
            txn.commit() if rng.random() < 0.7 else txn.abort()
        results.append((shown, content(kv), kv.entries()))
    assert results[0] == results[1]


# ------------------------------------------------------------------ the file


def fill_until_full(kv: KeyValueEnvironment) -> None:
    with kv.write() as txn:
        for number in range(1000):
            txn.put(b"%d" % number, b"x" * 3000)


def test_a_full_map_leaves_the_store_as_it_was_and_can_grow(form: Form) -> None:
    kv = form.open()
    fill(kv)
    with pytest.raises(KvFullError):
        fill_until_full(kv)
    assert kv.entries() == 4
    kv.grow(1 << 23)
    assert kv.map_size() == 1 << 23
    fill_until_full(kv)
    assert kv.entries() == 1004
    assert MAP_SIZE < kv.size_used() <= kv.map_size()


def test_growing_ends_transactions_that_read(kv: KeyValueEnvironment) -> None:
    fill(kv)
    reader = kv.begin()
    kv.grow(2 * MAP_SIZE)
    with pytest.raises(Exception):  # noqa: B017, PT011 - nobody may rely on the kind
        reader.get(b"b")
    assert kv.begin().get(b"b") == b"vb"


def test_growing_beside_a_writer_is_refused(kv: KeyValueEnvironment) -> None:
    writer = kv.begin(write=True)
    with pytest.raises(DiskError):
        kv.grow(2 * MAP_SIZE)
    writer.abort()
    assert kv.map_size() == MAP_SIZE


def test_a_copy_is_consistent_and_refuses_to_replace(form: Form) -> None:
    kv = form.open()
    fill(kv)
    form.disk.make_directory(f"{form.root}/copy")
    kv.copy(f"{form.root}/copy")
    with kv.write() as txn:
        txn.delete(b"b")
    with pytest.raises(DiskError):
        kv.copy(f"{form.root}/copy")
    with pytest.raises(DiskError):
        kv.copy(f"{form.root}/missing")
    assert form.disk.directory(f"{form.root}/copy").names() == ["data.mdb"]
    kv.close()
    copied = form.open(name="copy")
    assert content(copied) == {b"b": b"vb", b"d": b"vd", b"f": b"vf", b"h": b"vh"}
    copied.close()


def test_the_directory_shows_the_data_and_the_lock_file(form: Form) -> None:
    kv = form.open()
    assert form.disk.directory(f"{form.root}/data").names() == ["data.mdb", "lock.mdb"]
    kv.close()


def test_opening_for_reading_creates_and_changes_nothing(form: Form) -> None:
    form.disk.make_directory(f"{form.root}/data")
    with pytest.raises(DiskError):
        form.open(read_only=True)
    kv = form.open()
    fill(kv)
    kv.close()
    reading = form.open(read_only=True)
    assert reading.entries() == 4
    with pytest.raises(Exception):  # noqa: B017, PT011 - a bug of the caller: any kind will do
        reading.begin(write=True)
    reading.close()


@pytest.mark.parametrize("damage", [b"", b"short", b"no such file at all" * 1000])
def test_a_file_that_is_no_store_is_refused(form: Form, damage: bytes) -> None:
    form.disk.make_directory(f"{form.root}/data")
    file = form.disk.directory(f"{form.root}/data").create("data.mdb")
    file.write(0, damage)
    file.close()
    with pytest.raises(CorruptDataError):
        form.open()


def test_a_file_cut_short_is_refused(form: Form) -> None:
    kv = form.open()
    fill(kv)
    kv.close()
    file = form.disk.directory(f"{form.root}/data").open_write("data.mdb")
    file.truncate(file.size() // 2)
    file.close()
    with pytest.raises(CorruptDataError):
        form.open()


def test_no_reader_is_stale_in_a_process_that_lives(kv: KeyValueEnvironment) -> None:
    reader = kv.begin()
    assert kv.clear_stale_readers() == 0
    assert reader.get(b"a") is None


def test_a_closed_environment_is_refused(kv: KeyValueEnvironment) -> None:
    fill(kv)
    kv.close()
    with pytest.raises(Exception):  # noqa: B017, PT011 - a bug of the caller: any kind will do
        kv.begin()


def test_the_twin_counts_transactions_that_nobody_ended() -> None:
    disk = FaultyDisk(1)
    kv = MemoryKv(disk, "/", MAP_SIZE)
    forgotten = kv.begin()
    assert kv.open_transactions() == 1
    with kv.write():
        assert kv.open_transactions() == 2
    assert kv.open_transactions() == 1
    del forgotten
    assert kv.open_transactions() == 0


def renew(form: Form, kv: KeyValueEnvironment, pairs: dict[bytes, bytes]) -> None:
    """Let a new file with some pairs take the place of that of ``kv``."""
    fresh = kv.beside()
    with fresh.write() as txn:
        for key, value in pairs.items():
            txn.put(key, value)
    folder = form.disk.directory(f"{form.root}/data")
    assert {FRESH_DATA_FILE, FRESH_DATA_LOCK} <= set(folder.names())
    folder.rename(FRESH_DATA_LOCK, LOCK_FILE)
    folder.rename(FRESH_DATA_FILE, DATA_FILE)
    folder.sync()
    kv.become(fresh)


def test_a_new_file_takes_the_place_of_an_old_one(form: Form) -> None:
    kv = form.open()
    fill(kv)
    reader = kv.begin()
    for round_number in range(3):
        renew(form, kv, {b"a": b"%d" % round_number})
        assert content(kv) == {b"a": b"%d" % round_number}
        with kv.write() as txn:
            txn.put(b"b", b"more")
        assert content(kv) == {b"a": b"%d" % round_number, b"b": b"more"}
        assert kv.entries() == 2
    assert dict(reader.cursor().iternext()) == {b"b": b"vb", b"d": b"vd", b"f": b"vf", b"h": b"vh"}
    kv.clear_stale_readers()
    assert reader.get(b"d") == b"vd"
    assert sorted(form.disk.directory(f"{form.root}/data").names()) == [DATA_FILE, LOCK_FILE]
    kv.close()
    kv.close()
    with pytest.raises(Exception):  # noqa: B017, PT011 - nobody may rely on the kind
        reader.get(b"b")
    again = form.open()
    assert content(again) == {b"a": b"2", b"b": b"more"}
    again.close()


def test_a_new_file_that_gets_no_name_changes_nothing(form: Form) -> None:
    kv = form.open()
    fill(kv)
    fresh = kv.beside()
    with fresh.write() as txn:
        txn.put(b"a", b"1")
    assert kv.entries() == 4
    fresh.close()
    fill(kv, b"x")
    assert kv.entries() == 5
    kv.close()


def test_a_new_file_can_grow_as_far_as_the_old_one_could(form: Form) -> None:
    kv = form.open()
    kv.grow(1 << 23)
    renew(form, kv, {b"a": b"1"})
    assert kv.map_size() == 1 << 23
    fill_until_full(kv)
    assert kv.entries() == 1001
    kv.grow(1 << 24)
    assert content(kv)[b"a"] == b"1"
