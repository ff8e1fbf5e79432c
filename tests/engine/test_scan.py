"""Ordered scans against a sorted dict: partitions, layers, deletes, own writes, small blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

import pytest

from support.stores import in_data_file
from tidelog.affinity.errors import CorruptDataError
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.data import scan as scans
from tidelog.engine.data.overlay import Overlay, View
from tidelog.engine.data.scan import BLOCK_SIZES, BlockSizes, Pair, Range, after_prefix, scan
from tidelog.engine.data.stored import pack_prefix
from tidelog.engine.data.updates import Writes
from tidelog.testing import FaultyDisk, MemoryKv

NAMESPACES = (15, 16, 17)
"""The one in the middle is scanned; the others are its neighbours."""


TINY = BlockSizes(least=1, full=4, in_hand=8)


class World:
    """Pairs in a key-value environment, in layers above it, and in a transaction's writes."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.kv = MemoryKv(FaultyDisk(), "/", 1 << 30)
        self.content: dict[bytes, bytes] = {}
        self.writes: Writes = {}
        self.overlay: Overlay | None = None
        self._counter = 0

    def _pair(self, namespace: int, key: bytes, value: bytes | None) -> tuple[int, bytes, bytes]:
        partition = partition_of(key, Space(0, self.partitions))
        full_key = pack_prefix(partition, namespace) + key
        self._counter += 1
        if namespace == 16 and value is None:
            self.content.pop(key, None)
        elif namespace == 16 and value is not None:
            self.content[key] = value
        return partition, full_key, in_data_file(full_key, value, 1, self._counter, 7)

    def below(self, pairs: list[tuple[int, bytes, bytes]]) -> None:
        with self.kv.write() as txn:
            for pair in pairs:
                _, full_key, stored = self._pair(*pair)
                txn.put(full_key, stored)
        if self.overlay is not None:
            self.overlay.refresh(self.kv.begin())

    def above(self, namespace: int, key: bytes, value: bytes | None) -> None:
        if self.overlay is None:
            self.overlay = Overlay(self.kv.begin())
        partition, full_key, stored = self._pair(namespace, key, value)
        self.overlay.active.part(partition)[full_key] = stored

    def seal(self) -> None:
        if self.overlay is not None:
            self.overlay.snapshot()

    def write(self, namespace: int, key: bytes, value: bytes | None) -> None:
        partition, full_key, _ = self._pair(namespace, key, value)
        self.writes[full_key] = (partition, namespace, key, value)

    def view(self) -> View:
        if self.overlay is None:
            self.overlay = Overlay(self.kv.begin())
        return self.overlay.snapshot()[0]

    def scan(
        self,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        reverse: bool = False,
        blocks: BlockSizes = BLOCK_SIZES,
    ) -> Iterator[list[Pair]]:
        return scan(
            self.view(),
            range(self.partitions),
            Range(namespace=16, start=start, stop=stop),
            reverse=reverse,
            writes=self.writes,
            blocks=blocks,
        )

    def expected(self, start: bytes, stop: bytes | None, reverse: bool) -> list[Pair]:
        pairs = [
            (key, value)
            for key, value in sorted(self.content.items())
            if start <= key and (stop is None or key < stop)
        ]
        return pairs[::-1] if reverse else pairs


def flat(blocks: Iterator[list[Pair]]) -> list[Pair]:
    blocks_seen = list(blocks)
    assert all(blocks_seen), "a block without pairs"
    return [pair for block in blocks_seen for pair in block]


def random_world(rng: random.Random, partitions: int) -> World:
    world = World(partitions)
    size = rng.choice((0, 5, 60, 200))
    keys = [rng.randbytes(rng.randint(0, 3)) for _ in range(max(size, 1))]
    world.below([(rng.choice(NAMESPACES), rng.choice(keys), b"low") for _ in range(size)])
    if rng.random() < 0.3:
        # A stretch of deletes: whole blocks of the data below vanish.
        for key in sorted(world.content)[: rng.randint(0, size)]:
            world.above(16, key, None)
    for number in range(rng.choice((0, 10, 100))):
        value = None if rng.random() < 0.4 else b"%d" % number
        world.above(rng.choice(NAMESPACES), rng.choice(keys), value)
        if rng.random() < 0.1:
            world.seal()
    for number in range(rng.choice((0, 0, 10))):
        value = None if rng.random() < 0.4 else b"own %d" % number
        world.write(rng.choice(NAMESPACES), rng.choice(keys), value)
    return world


@pytest.mark.parametrize("partitions", [1, 3, 16])
@pytest.mark.parametrize("seed", range(25))
def test_a_scan_is_what_a_sorted_dict_says(seed: int, partitions: int) -> None:
    rng = random.Random(seed * 100 + partitions)
    world = random_world(rng, partitions)
    bounds = [b"", b"\x40", b"\x80\0", rng.randbytes(2), None]
    for _ in range(8):
        start, stop = rng.choice(bounds) or b"", rng.choice(bounds)
        reverse, block = rng.random() < 0.5, rng.choice((1, 2, 16))
        found = flat(world.scan(start, stop, reverse=reverse, blocks=TINY._replace(first=block)))
        assert found == world.expected(start, stop, reverse), (start, stop, reverse)


@pytest.mark.parametrize("partitions", [1, 16])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_long_scan_in_blocks_of_the_real_size(partitions: int, reverse: bool) -> None:
    world = World(partitions)
    world.below([(16, b"%06d" % number, b"v") for number in range(4000)])
    world.above(16, b"000001", None)
    world.above(16, b"~", b"last")
    blocks = list(world.scan(reverse=reverse))
    assert [pair for block in blocks for pair in block] == world.expected(b"", None, reverse)
    assert len(blocks[0]) <= 2 * BLOCK_SIZES.first * partitions
    assert max(map(len, blocks)) <= 2 * BLOCK_SIZES.in_hand


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pairs were fetched from the data file, block by block."""
    sizes: list[int] = []

    def counted(items: Iterator[Pair], size: int) -> list[Pair]:
        block = list(islice(items, size))
        sizes.append(len(block))
        return block

    monkeypatch.setattr(scans, "islice", counted)
    return sizes


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("per_prefix", [8, 128, 1000])
def test_little_is_fetched_beyond_the_end_of_a_range(
    fetched: list[int], reverse: bool, per_prefix: int
) -> None:
    world = World(16)
    rng = random.Random(1)
    world.below([(16, bytes((first,)) + rng.randbytes(15), b"v")
                 for first in (64, 65, 66) for _ in range(per_prefix)])  # fmt: skip
    assert flat(world.scan(b"A", b"B", reverse=reverse)) == world.expected(b"A", b"B", reverse)
    # It was up to 128 more in each partition.
    assert sum(fetched) <= 1.5 * per_prefix + 16 * 2 * BLOCK_SIZES.least


@pytest.mark.parametrize("reverse", [False, True])
def test_a_wrong_guess_of_the_rest_of_a_range_loses_nothing(reverse: bool) -> None:
    # Ever denser towards either end, with keys that are equal in all that is gauged of them.
    numbers = [bytes(n) + b"\x01" for n in range(60)] + [b"\xff" * n for n in range(60)]
    tails = [b"\x80" * 40 + b"%03d" % n for n in range(300)]
    world = World(1)
    world.below([(16, key, b"v") for key in {*numbers, *tails}])
    for start, stop in ((b"", None), (b"\x80", b"\x81"), (b"\x80" * 40, b"\x80" * 40 + b"~")):
        found = flat(world.scan(start, stop, reverse=reverse))
        assert found == world.expected(start, stop, reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", range(20))
def test_no_pair_is_lost_at_the_border_of_a_block(count: int, reverse: bool) -> None:
    world = World(1)
    world.below([(16, b"%02d" % number, b"v") for number in range(count)])
    for block in (1, 2, 3, 4):
        found = flat(world.scan(reverse=reverse, blocks=TINY._replace(first=block)))
        assert found == world.expected(b"", None, reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("partitions", [1, 4])
def test_a_scan_ends_before_the_marks_and_the_neighbours(partitions: int, reverse: bool) -> None:
    world = World(partitions)
    world.below([(namespace, b"\xff" * 3, b"theirs") for namespace in (0, 1, 15, 17, 400)])
    world.below([(namespace, b"", b"theirs") for namespace in (0, 1, 15, 17, 400)])
    assert flat(world.scan(reverse=reverse)) == []
    world.below([(16, b"", b"mine"), (16, b"\xff" * 480, b"mine")])
    assert len(flat(world.scan(reverse=reverse))) == 2


@pytest.mark.parametrize("reverse", [False, True])
def test_damage_is_found_before_any_pair_of_its_block_is_handed_out(reverse: bool) -> None:
    world = World(1)
    world.below([(16, b"%02d" % number, b"v") for number in range(40)])
    key = pack_prefix(0, 16) + b"20"
    with world.kv.write() as txn:
        stored = txn.get(key)
        assert stored is not None
        txn.put(key, b"w" + stored[1:])
    seen: list[bytes] = []
    with pytest.raises(CorruptDataError, match="'20'"):  # noqa: PT012
        for block in world.scan(reverse=reverse, blocks=TINY):
            seen += [user_key for user_key, _ in block]
    assert b"20" not in seen
    assert all(user_key > b"20" if reverse else user_key < b"20" for user_key in seen)
    # What lies elsewhere can be read.
    assert flat(world.scan(b"30", blocks=TINY)) == world.expected(b"30", None, False)


@pytest.mark.parametrize(
    ("prefix", "after"),
    [(b"", None), (b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"\xfe\xff", b"\xff")],
)
def test_the_first_key_behind_a_prefix(prefix: bytes, after: bytes | None) -> None:
    assert after_prefix(prefix) == after


def test_the_bounds_of_a_range_lie_in_its_partition_and_namespace() -> None:
    assert Range(namespace=16).bounds(3) == (pack_prefix(3, 16), pack_prefix(3, 17))
    low, high = Range(namespace=16, start=b"a", stop=b"b").bounds(3)
    assert (low, high) == (pack_prefix(3, 16) + b"a", pack_prefix(3, 16) + b"b")


@pytest.mark.parametrize("reverse", [False, True])
def test_the_first_pairs_of_a_large_overlay_come_without_the_others(reverse: bool) -> None:
    # `range(limit=1)` and `popitem` built a dict of the whole range first.
    world = World(1)
    for number in range(0, 5000, 10):
        world.below([(16, b"%04d" % number, b"old")])
    for number in range(5000):
        world.above(16, b"%04d" % number, b"new")
    source = scans._Source(world.view(), 0, Range(namespace=16), reverse, None)
    taken = []
    while source.more:
        source.fetch(4, counted=False)
        assert len(source.pairs) <= 8
        taken += sorted(source.take_all(), reverse=reverse)
    assert taken == world.expected(b"", None, reverse)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("partitions", [1, 16])
def test_of_long_values_few_are_in_hand(partitions: int, reverse: bool) -> None:
    # A page of one value of 4 MiB read those of 512 keys, and threw them away.
    world = World(partitions)
    world.below([(16, b"%04d" % number, bytes(100_000)) for number in range(200)])
    blocks = list(world.scan(reverse=reverse))
    assert [pair for block in blocks for pair in block] == world.expected(b"", None, reverse)
    in_hand = scans.HEAVY_BYTES // 100_000 + len(scans.PIECES) + 4
    assert max(map(len, blocks)) <= in_hand * partitions


@pytest.mark.parametrize("seed", range(20))
def test_values_long_and_short_come_in_order(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng.choice((1, 4)))
    lengths = [rng.choice((1, 1, 1, 600, 300_000)) for _ in range(150)]
    world.below([(16, rng.randbytes(3), bytes(length)) for length in lengths])
    for key in rng.sample(sorted(world.content), 20):
        world.above(16, key, rng.choice((None, bytes(300_000))))
    for reverse in (False, True):
        found = flat(world.scan(reverse=reverse, blocks=BLOCK_SIZES._replace(first=200)))
        assert found == world.expected(b"", None, reverse)
