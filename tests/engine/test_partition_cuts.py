"""One partition at one instant, as it is stored: against maps that were read at that instant."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings, strategies as st

from support.scripts import SMALL_PIECES
from support.stores import Opened, open_store, opened
from tidelog.affinity.errors import (
    ClosedError,
    CorruptDataError,
    ReadOnlyError,
    SnapshotExpiredError,
)
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import session_of
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.data.overlay import Layer, View
from tidelog.engine.data.raw_scan import raw_blocks
from tidelog.engine.data.stored import (
    TRAILER_SIZE,
    checked,
    is_tombstone,
    pack_prefix,
    split_key,
    stored_value,
    version_of,
)
from tidelog.engine.store import partition_cuts
from tidelog.engine.store.partition_cuts import PartitionCut, cut_partition
from tidelog.engine.system.lmdb_file import KvReadError
from tidelog.testing import FaultyDisk
from tidelog.testing.kv import MemoryKv
from tidelog.tx.counter import PartitionUpdateCounter
from tidelog.wal.records import Participant, PrepareRecord, Run

PARTITIONS = 3


def cut(store: Opened, partition: int) -> PartitionCut:
    return cut_partition(store.parts, store.parts.committer, partition)


def live(found: PartitionCut, rows: int = 1000) -> dict[tuple[int, bytes], bytes]:
    """What a cut has that was not deleted, by namespace and key; its keys have to rise."""
    pairs = [pair for block in found.blocks(rows=rows) for pair in block]
    assert [key for key, _ in pairs] == sorted({key for key, _ in pairs})
    assert {split_key(key)[0] for key, _ in pairs} <= {found.state.partition}
    return {
        split_key(key)[1:]: stored[:-TRAILER_SIZE]
        for key, stored in pairs
        if not is_tombstone(stored)
    }


def expected(store: Opened, partition: int) -> dict[tuple[int, bytes], bytes]:
    """What maps show of a partition."""
    found = {}
    for name in store.database.maps():
        mapping = store.database.map(name)
        for key, value in mapping.items():
            if partition_of(key, Space(0, PARTITIONS)) == partition:
                found[namespace_of(mapping).id, key] = value
    return found


def some_life(store: Opened, seed: int) -> None:
    """Updates, deletes and checkpoints in two maps."""
    chance = random.Random(seed)
    maps = [store.database.map("one"), store.database.map("two")]
    for _ in range(120):
        mapping, key = chance.choice(maps), b"%02d" % chance.randrange(40)
        if chance.random() < 0.3:
            mapping.pop(key, None)
        else:
            mapping[key] = chance.randbytes(chance.randrange(1, 9))
        if chance.random() < 0.05:
            store.database.checkpoint()


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_has_what_the_maps_had_and_keeps_it(seed: int) -> None:
    with opened(limits=SMALL_PIECES, partitions=PARTITIONS) as store:
        some_life(store, seed)
        cuts = [cut(store, partition) for partition in range(PARTITIONS)]
        before = [expected(store, partition) for partition in range(PARTITIONS)]
        counters = [counter.to_bytes() for counter in store.parts.state.counters]
        assert [live(found) for found in cuts] == before
        some_life(store, seed + 100)
        store.database.checkpoint()
        some_life(store, seed + 200)
        assert [live(found, rows=3) for found in cuts] == before
        assert [found.state.counter for found in cuts] == counters
        for found in cuts:
            numbers = [version_of(value)[1] for block in found.blocks() for _, value in block]
            counter = PartitionUpdateCounter.from_bytes(found.state.counter)
            assert max(numbers) <= counter.lwm
            found.close()


def test_a_cut_goes_on_behind_a_key_and_keeps_to_its_limits() -> None:
    with opened(limits=SMALL_PIECES, partitions=1) as store:
        some_life(store, 1)
        found = cut(store, 0)
        whole = [pair for block in found.blocks() for pair in block]
        blocks = list(found.blocks(rows=5))
        assert max(map(len, blocks)) == 5
        assert [pair for block in blocks for pair in block] == whole
        assert all(len(block) == 1 for block in found.blocks(most_bytes=1))
        for at in (0, 7, len(whole) - 1):
            rest = [pair for block in found.blocks(whole[at][0]) for pair in block]
            assert rest == whole[at + 1 :]
        found.close()


def test_a_delete_that_is_not_in_the_data_file_yet_is_in_the_cut() -> None:
    with opened(limits=SMALL_PIECES, partitions=1) as store:
        users = store.database.map("users")
        users[b"a"] = users[b"c"] = b"1"
        store.database.checkpoint()
        users[b"b"] = b"2"
        del users[b"c"]
        with cut(store, 0) as found:
            (block,) = found.blocks()
        told = [
            (split_key(key)[2], version_of(value)[1], is_tombstone(value)) for key, value in block
        ]
        assert told == [(b"a", 1, False), (b"b", 3, False), (b"c", 4, True)]


def test_a_cut_is_ended_by_its_owner_or_from_outside() -> None:
    with opened(limits=SMALL_PIECES, partitions=1) as store:
        some_life(store, 2)
        found, other = cut(store, 0), cut(store, 0)
        reading, read = found.blocks(rows=1), other.blocks(rows=1)
        next(reading)
        next(read)
        assert store.database.statistics().snapshots == 2
        found.close()
        found.close()
        with pytest.raises(ClosedError, match="the cut of a partition is closed"):
            next(reading)
        store.parts.snapshots.expire("the data file had to grow")
        with pytest.raises(SnapshotExpiredError, match="had to grow"):
            next(read)
        with pytest.raises(SnapshotExpiredError):
            next(other.blocks())
        assert store.database.statistics().snapshots == 0


def test_what_is_pending_is_in_the_state_of_a_cut_and_not_among_its_pairs() -> None:
    store = open_store(partitions=1)
    prepared = PrepareRecord(
        tx_id=b"t" * 16, attempt=1, near=(b"m" * 16, 1), time=5, home=0,
        participants=(Participant(0, 1, 1),), run=Run(0, 1, 1, 1),
        namespaces=16, keys=[b"k"], values=[b"v"],
    )  # fmt: skip
    with store.parts.committer.mutex:
        store.parts.state.apply(store.parts.writer.position, prepared)
    store.database.checkpoint()
    found = cut(store, 0)
    assert list(found.blocks()) == []
    assert found.state.pending == (prepared,)
    found.close()
    session_of(store.database).abandon()


def test_a_read_that_fails_since_its_cut_was_ended_says_why_that_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(partitions=1) as store:
        found = cut(store, 0)

        def broken(_block: int) -> None:
            found.expire("the data file had to grow")
            raise KvReadError("the data file is closed")

        monkeypatch.setattr(partition_cuts, "raw_blocks", lambda *_, **__: map(broken, range(1)))
        with pytest.raises(SnapshotExpiredError, match="had to grow"):
            next(found.blocks())


def test_nothing_is_cut_from_a_store_that_stopped_halfway() -> None:
    store = open_store(partitions=1)
    with store.parts.committer.mutex:
        store.parts.committer.context.stop("break", "for the test")
    with pytest.raises(ReadOnlyError, match="for the test"):
        cut(store, 0)
    session_of(store.database).abandon()


def test_a_cut_that_is_forgotten_pins_nothing() -> None:
    with opened(limits=SMALL_PIECES, partitions=1) as store:
        some_life(store, 3)
        cut(store, 0)
        assert store.database.statistics().snapshots == 0
        assert len(store.parts.overlay.ended) == 1  # what it kept apart may be merged


def test_a_data_file_that_grows_ends_a_cut_and_the_next_one_has_everything() -> None:
    with opened(
        limits=SMALL_PIECES, partitions=1, map_size=200_000, map_size_max=4_000_000
    ) as store:
        numbers = store.database.map("numbers")
        found = cut(store, 0)
        numbers.update_many({b"%04d" % at: bytes(200) for at in range(2000)})
        store.database.checkpoint()
        with pytest.raises(SnapshotExpiredError, match="had to grow"):
            next(found.blocks())
        with cut(store, 0) as again:
            assert len(live(again)) == 2000


@pytest.mark.parametrize("damaged", range(5))
def test_a_pair_that_is_damaged_or_lies_beside_the_range_is_told(damaged: int) -> None:
    # One before the range, three in it, one behind it.
    keys = [pack_prefix(partition, 16) + b"k" for partition in (0, 1, 2)]
    keys = [keys[0], *(keys[1] + bytes([at]) for at in range(3)), keys[2]]
    values = checked(keys, [stored_value(b"v", 1, 1, 1)] * len(keys))
    values[damaged] = b"w" + values[damaged][1:]
    kv = MemoryKv(disk := FaultyDisk(), "/", 100_000)
    assert disk.kind("/") == "directory"
    with kv.write() as txn:
        for key, value in zip(keys, values, strict=True):
            txn.put(key, value)
    low, high = pack_prefix(1, 0), pack_prefix(2, 0)
    view = View((Layer(),), kv.begin())
    with pytest.raises(CorruptDataError):
        list(raw_blocks(view, 1, low, high, rows=2, most_bytes=100))


@settings(deadline=None)
@given(
    older=st.dictionaries(st.binary(max_size=2), st.integers(0, 60), max_size=40),
    newer=st.lists(
        st.dictionaries(st.binary(max_size=2), st.integers(0, 60), max_size=20), max_size=3
    ),
    bounds=st.tuples(st.binary(max_size=2), st.binary(max_size=2)),
    rows=st.integers(1, 50),
    most_bytes=st.integers(1, 2000),
)
def test_blocks_have_each_key_once_and_keep_to_rows_and_bytes(
    older: dict[bytes, int],
    newer: list[dict[bytes, int]],
    bounds: tuple[bytes, bytes],
    rows: int,
    most_bytes: int,
) -> None:
    prefix = pack_prefix(1, 16)
    kv = MemoryKv(disk := FaultyDisk(), "/", 1 << 20)
    assert disk.kind("/") == "directory"
    pairs = {
        prefix + key: stored_value(bytes(size), 1, 1, 1) for key, size in sorted(older.items())
    }
    with kv.write() as txn:
        for key, value in zip(pairs, checked(pairs, pairs.values()), strict=True):
            txn.put(key, value)
        pairs = dict(zip(pairs, checked(pairs, pairs.values()), strict=True))
    layers: list[Layer] = []
    for number, updates in enumerate(newer, 2):
        layers.insert(0, layer := Layer())
        for key, size in updates.items():
            stored = stored_value(bytes(size) if size % 4 else None, 1, number, 1)
            layer.put(1, prefix + key, stored)
            pairs[prefix + key] = stored
    low, high = (prefix + key for key in sorted(bounds))
    view = View(tuple(layers) or (Layer(),), kv.begin())
    blocks = list(raw_blocks(view, 1, low, high, rows=rows, most_bytes=most_bytes))
    assert [pair for block in blocks for pair in block] == [
        (key, pairs[key]) for key in sorted(pairs) if low <= key < high
    ]
    for block in blocks:
        assert 1 <= len(block) <= rows
        assert sum(len(value) for _, value in block[:-1]) < most_bytes


def test_a_block_of_large_values_ends_with_the_one_that_fills_it() -> None:
    prefix = pack_prefix(0, 16)
    keys = [prefix + bytes([at]) for at in range(20)]
    values = checked(keys, [stored_value(bytes(100_000), 1, 1, 1)] * len(keys))
    kv = MemoryKv(disk := FaultyDisk(), "/", 10 << 20)
    assert disk.kind("/") == "directory"
    with kv.write() as txn:
        for key, value in zip(keys, values, strict=True):
            txn.put(key, value)
    sizes = [
        len(block)
        for block in raw_blocks(
            View((Layer(),), kv.begin()), 0, prefix, keys[-1], rows=1000, most_bytes=250_000
        )
    ]
    assert sizes == [3] * 6 + [1]
