from __future__ import annotations

import random
from dataclasses import replace

import msgpack
import pytest

from tidelog.affinity.errors import CorruptDataError, TidelogError
from tidelog.checkpoints.marks import (
    FIRST_EPOCHS,
    EpochTable,
    PartitionMark,
    StoreMark,
    epoch_of,
    with_epoch,
)
from tidelog.tx.counter import PartitionUpdateCounter
from tidelog.wal.records import NamespaceRecord

NAMESPACES = (
    NamespaceRecord(
        id=16, name="users", key_codec="str", key_version=1, value_codec="msgpack", value_version=2
    ),
    NamespaceRecord(
        id=17, name="日", key_codec="bytes", key_version=1, value_codec="bytes", value_version=1,
        before_images=True, space=3,
    ),
)  # fmt: skip
STORE = StoreMark(
    store_id=b"s" * 16, position=2**62, time=-5, namespaces=NAMESPACES, next_namespace=18,
    dropped=(9, 11),
)  # fmt: skip
PARTITION = PartitionMark(
    position=12345,
    written=23456,
    counter=PartitionUpdateCounter(7, [(9, 2)]).to_bytes(),
    epochs=((1, 1), (3, 6)),
    count=2**40,
    digest=(1 << 200) - 2,
    state=2,
    admission=77,
    sealed=4,
    pending=3,
    tombstones=5,
    swept=b"\0\0\0\x03\0\0\0\x10key",
    counts={1: 2**40 - 1, 16: 1},
)


def test_what_is_written_is_read() -> None:
    for partition in (PARTITION, PartitionMark.empty()):
        assert PartitionMark.from_bytes(partition.to_bytes()) == partition
    for store in (STORE, replace(STORE, namespaces=(), dropped=())):
        assert StoreMark.from_bytes(store.to_bytes()) == store


def test_an_empty_partition_begins_at_zero_in_its_first_epoch() -> None:
    empty = PartitionMark.empty()
    assert PartitionUpdateCounter.from_bytes(empty.counter) == PartitionUpdateCounter()
    assert (empty.position, empty.epochs, empty.count, empty.digest) == (0, FIRST_EPOCHS, 0, 0)


@pytest.mark.parametrize("mark", [PARTITION, STORE], ids=["partition", "store"])
def test_fields_that_a_later_version_appends_are_passed_over(
    mark: PartitionMark | StoreMark,
) -> None:
    for later in ("later", {1: "a map whose keys are no text"}):
        longer = msgpack.packb([*msgpack.unpackb(mark.to_bytes()), later])
        assert type(mark).from_bytes(longer) == mark


@pytest.mark.parametrize("kind", [PartitionMark, StoreMark])
@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x07", b"\xa3abc", b"\x80"])
def test_bytes_that_are_no_mark_are_damage(
    kind: type[PartitionMark] | type[StoreMark], data: bytes
) -> None:
    with pytest.raises(CorruptDataError, match="checkpoint mark"):
        kind.from_bytes(data)


def test_a_mark_of_a_version_that_kept_no_counts_has_none() -> None:
    without = replace(PARTITION, counts=None)
    assert len(msgpack.unpackb(without.to_bytes())) == 12
    assert PartitionMark.from_bytes(without.to_bytes()) == without
    assert PartitionMark.empty().counts == {}


@pytest.mark.parametrize(("mark", "needed"), [(PARTITION, 12), (STORE, 6)])
def test_a_mark_with_a_field_less_than_it_needs_is_damage(
    mark: PartitionMark | StoreMark, needed: int
) -> None:
    fields = msgpack.unpackb(mark.to_bytes(), strict_map_key=False)
    for count in range(needed):
        with pytest.raises(CorruptDataError, match="too few fields"):
            type(mark).from_bytes(msgpack.packb(fields[:count]))


@pytest.mark.parametrize("mark", [PARTITION, STORE], ids=["partition", "store"])
def test_a_mark_that_ends_early_is_damage(mark: PartitionMark | StoreMark) -> None:
    data = mark.to_bytes()
    for length in range(len(data)):
        with pytest.raises(TidelogError):
            type(mark).from_bytes(data[:length])


# ------------------------------------------------------------------ epochs


@pytest.mark.parametrize(
    ("table", "epoch", "start", "after"),
    [
        (((1, 1),), 2, 5, ((1, 1), (2, 5))),
        # No number of epoch 1 survives.
        (((1, 1),), 2, 1, ((2, 1),)),
        (((1, 1), (2, 5)), 3, 5, ((1, 1), (3, 5))),
        (((1, 1), (2, 5)), 3, 3, ((1, 1), (3, 3))),
        (((1, 1), (2, 5)), 9, 1, ((9, 1),)),
        ((), 4, 7, ((4, 7),)),
    ],
)
def test_a_new_epoch_leaves_the_numbers_below_it_to_the_older_ones(
    table: EpochTable, epoch: int, start: int, after: EpochTable
) -> None:
    assert with_epoch(table, epoch, start) == after


@pytest.mark.parametrize(
    ("counter", "epoch"), [(0, 1), (1, 1), (4, 1), (5, 3), (6, 3), (9, 3), (10, 4), (2**62, 4)]
)
def test_a_counter_belongs_to_the_last_epoch_that_starts_at_or_below_it(
    counter: int, epoch: int
) -> None:
    assert epoch_of(((1, 1), (3, 5), (4, 10)), counter) == epoch


@pytest.mark.parametrize("seed", range(20))
def test_a_table_says_of_each_number_who_wrote_it_last(seed: int) -> None:
    rng = random.Random(seed)
    table, owner, epoch = FIRST_EPOCHS, dict.fromkeys(range(1, 60), 1), 1
    for _ in range(8):
        # Numbers from `start` on were forgotten, and are given out again in a new epoch.
        epoch += rng.randint(1, 3)
        start = rng.randint(1, 50)
        table = with_epoch(table, epoch, start)
        owner.update(dict.fromkeys(range(start, 60), epoch))
        assert {number: epoch_of(table, number) for number in owner} == owner
        assert list(table) == sorted(table)
        assert {entry for entry, _ in table} == set(owner.values())


def test_the_same_counts_are_the_same_bytes() -> None:
    one, other = (replace(PARTITION, counts=counts) for counts in ({1: 5, 2: 6}, {2: 6, 1: 5}))
    assert one.to_bytes() == other.to_bytes()
