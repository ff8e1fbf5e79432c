from __future__ import annotations

import pytest

from tidelog.affinity.partitions import PARTITIONS_MAX, Space, partition_of, partitions_of


@pytest.mark.parametrize(
    ("key", "partitions", "partition"),
    [
        # murmur3 of 32 bits, seed 0: the values that its authors publish.
        (b"", 16, 0),
        (b"test", 1 << 32, 0xBA6BD213),
        (b"Hello, world!", 1 << 32, 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 1 << 32, 0x2E4FF723),
    ],
)
def test_the_hash_is_murmur3_and_never_changes(key: bytes, partitions: int, partition: int) -> None:
    assert partition_of(key, Space(0, partitions)) == partition


@pytest.mark.parametrize("partitions", [1, 3, 16, PARTITIONS_MAX])
def test_every_key_has_a_partition_that_there_is(partitions: int) -> None:
    found = {partition_of(b"%d" % number, Space(0, partitions)) for number in range(200)}
    assert found <= set(range(partitions))
    assert len(found) > min(partitions, 200) // 2


def test_many_keys_are_placed_as_one_is() -> None:
    keys = [b"x" * length for length in range(40)]
    for space in (Space(0, 7), Space(5, 7), Space(32, 1)):
        assert partitions_of(keys, space) == [partition_of(key, space) for key in keys]
        assert partitions_of([], space) == []
