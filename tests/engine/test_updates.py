"""The two shapes of updates against one naive fold, and what recovery makes of the record."""

from __future__ import annotations

import random
from typing import cast

import msgpack
import pytest

from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.replay import Applied, Cleared, State
from tidelog.engine.data.overlay import PAIR_OVERHEAD, Layer, View
from tidelog.engine.data.stored import pack_prefix, split_key, stored_value
from tidelog.engine.data.updates import FEW, FewUpdates, ManyUpdates, NoUpdates, Updates, Writes
from tidelog.engine.files.recovery import apply_updates, take_over
from tidelog.engine.system.environment import KvTransaction
from tidelog.wal.records import (
    Columns,
    RecordType,
    Run,
    TxRecord,
    decode_payload,
    encode_record,
    pack_record_header,
    put_encoder,
    tx_body,
)

PARTITIONS = 3
TX_ID = b"boot-one" + (7).to_bytes(8, "big")
TIME = 1_700_000_000_000_000


def state_with_numbers() -> State:
    """A state whose partitions have each been written before, one in its second epoch."""
    state = State(b"s" * 16, one_space(PARTITIONS))
    for partition, count in enumerate((5, 0, 9)):
        if count:
            state.counters[partition].set(count)
    state.epochs[2] = 4
    state.epoch_tables[2] = ((1, 1), (4, 8))
    return state


def record_of(updates: Updates, state: State) -> bytes:
    runs, namespaces, keys, values = updates.reserve(state)
    fields = tx_body(TX_ID, TIME, runs, namespaces, list(keys), list(values), None)
    body = msgpack.packb(fields)
    return pack_record_header(len(body), RecordType.TX, 0) + body


def written(updates: Updates) -> tuple[dict[bytes, bytes], State, bytes, Layer]:
    """Reserve, encode and apply; the layer's pairs, the state, the record and the layer."""
    state, layer = state_with_numbers(), Layer()
    record = record_of(updates, state)
    updates.apply(layer, state, TIME)
    pairs = {key: value for part in layer.parts.values() for key, value in part.items()}
    assert all(split_key(key)[0] == p for p, part in layer.parts.items() for key in part)
    return pairs, state, record, layer


def random_writes(rng: random.Random, count: int, namespaces: tuple[int, ...]) -> Writes:
    writes: Writes = {}
    for _ in range(count):
        partition, namespace = rng.randrange(PARTITIONS), rng.choice(namespaces)
        key = rng.randbytes(rng.randint(0, 12))
        value = None if rng.random() < 0.3 else rng.randbytes(rng.randint(0, 30))
        writes[pack_prefix(partition, namespace) + key] = (partition, namespace, key, value)
    return writes


def many_of(writes: Writes) -> ManyUpdates:
    parts: dict[int, dict[bytes, bytes | None]] = {}
    for partition, _, key, value in writes.values():
        parts.setdefault(partition, {})[key] = value
    return ManyUpdates(16, [pack_prefix(partition, 16) for partition in range(PARTITIONS)], parts)


def check_shape(updates: Updates, writes: Writes) -> None:
    """Content, counters, record and replay of one shape against the writes themselves."""
    before = state_with_numbers()
    assert set(updates.full_keys()) == set(writes)
    pairs, state, record, layer = written(updates)
    decoded = decode_payload(record)[0]
    assert isinstance(decoded, TxRecord)
    naive: dict[bytes, bytes] = {}
    numbers: dict[int, list[int]] = {}
    for partition, epoch, counter, namespace, key, value in decoded.updates():
        full_key = pack_prefix(partition, namespace) + key
        assert writes[full_key] == (partition, namespace, key, value)
        assert epoch == before.epochs[partition]
        naive[full_key] = stored_value(value, epoch, counter, TIME)
        numbers.setdefault(partition, []).append(counter)
    assert pairs == naive
    assert pairs.keys() == writes.keys()
    for partition, counter_now in enumerate(state.counters):
        first = before.counters[partition].hwm + 1
        mine = numbers.get(partition, [])
        assert sorted(mine) == list(range(first, first + len(mine)))
        assert (counter_now.lwm, counter_now.hwm) == (first + len(mine) - 1,) * 2
        assert counter_now.out_of_order == []
    assert layer.bytes >= sum(len(key) + len(value) for key, value in pairs.items())
    # What recovery reads from the log is the same to the byte.
    replayed, replayed_layer = state_with_numbers(), Layer()
    view = View((replayed_layer,), cast("KvTransaction", None))
    assert apply_updates(view, replayed, 0, decoded) == len(writes)
    assert replayed_layer.parts == layer.parts
    price = sum(len(key) + len(value) + PAIR_OVERHEAD for key, value in pairs.items())
    assert layer.bytes == replayed_layer.bytes == price
    assert replayed.counters == state.counters
    assert replayed.time == TIME


class OnePair:
    """A data file with one key."""

    def __init__(self, key: bytes, stored: bytes) -> None:
        self._pair = {key: stored}

    def get(self, key: bytes) -> bytes | None:
        return self._pair.get(key)


@pytest.mark.parametrize(
    ("epoch", "first", "late", "kept"),
    [(1, 4, True, b"old"), (1, 6, True, b"new"), (2, 4, True, b"new"), (1, 4, False, b"new")],
)
@pytest.mark.parametrize("where", ["newest layer", "older layer", "data file"])
def test_a_late_update_is_put_only_where_nothing_newer_is(
    epoch: int, first: int, late: bool, kept: bytes, where: str
) -> None:
    full_key = pack_prefix(0, 16) + b"k"
    layers = Layer(), Layer()
    known = stored_value(b"old", 1, 5, 1)
    txn = OnePair(full_key if where == "data file" else b"", known)
    if where != "data file":
        layers[where == "older layer"].part(0)[full_key] = known
    view = View(layers, cast("KvTransaction", txn))
    columns = Columns(16, [b"k", b"other"], [b"new", None])
    applied = Applied(Run(0, epoch, first, 2), 9, columns, late)
    assert take_over(view, [applied]) == 2
    found = view.stored(0, full_key)
    assert found is not None
    assert found.startswith(kept)
    assert pack_prefix(0, 16) + b"other" in layers[0].parts[0]


def test_a_partition_that_is_cleared_takes_its_own_price_with_it_and_no_more() -> None:
    # 33 bytes more of each pair went, which others were there for: after some rounds a layer that
    # was full of them cost nothing.
    layer = Layer()
    view = View((layer,), cast("KvTransaction", OnePair(b"", b"")))
    keys, values = [b"%d" % n for n in range(50)], [None, *(b"v" * n for n in range(49))]
    of_one = 0
    for first in (1, 51):
        for partition in (3, 4):
            columns = Columns(16, keys, values)
            take_over(view, [Applied(Run(partition, 1, first, 50), 9, columns, late=False)])
            of_one = of_one or layer.bytes
        take_over(view, [Cleared(3)])
        assert list(layer.parts) == [4]
        assert layer.bytes == of_one * (1 if first == 1 else 2), "what is overwritten counts on"


def test_what_was_cleared_goes_from_all_layers_and_counts_for_nothing_below_them() -> None:
    layers, key = (Layer(), Layer()), pack_prefix(3, 16) + b"k"
    for layer in layers:
        layer.part(3)[key] = layer.part(2)[key] = stored_value(b"old", 1, 5, 1)
        assert layer.keys_of(3) == [key]
    view = View(layers, cast("KvTransaction", OnePair(key, stored_value(b"old", 1, 9, 1))))
    late = [
        Applied(Run(3, 1, number, 1), 9, Columns(16, [b"k"], [b"%d" % number]), late=True)
        for number in (4, 3)
    ]
    assert take_over(view, [Cleared(3), *late], {3}) == 2
    assert view.stored(3, key) == stored_value(b"4", 1, 4, 9)
    assert [list(layer.parts) for layer in layers] == [[2, 3], [2]]
    assert layers[1].keys_of(3) == []


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("most", [3, FEW, 3 * FEW])
def test_few_updates_are_what_a_naive_fold_makes_of_them(seed: int, most: int) -> None:
    rng = random.Random(seed)
    writes = random_writes(rng, rng.randint(1, most), (16, 17) if seed % 2 else (16,))
    check_shape(FewUpdates(dict(writes)), writes)


@pytest.mark.parametrize("seed", range(15))
def test_many_updates_are_what_a_naive_fold_makes_of_them(seed: int) -> None:
    rng = random.Random(seed)
    writes = random_writes(rng, rng.randint(1, 100), (16,))
    check_shape(many_of(writes), writes)


@pytest.mark.parametrize("seed", range(5))
def test_both_shapes_give_the_same_keys_the_same_values(seed: int) -> None:
    writes = random_writes(random.Random(seed), 40, (16,))
    few, _, _, _ = written(FewUpdates(dict(writes)))
    many, _, _, _ = written(many_of(writes))
    assert {key: value[:-25] for key, value in few.items()} == {
        key: value[:-25] for key, value in many.items()
    }


def test_neighbours_of_one_partition_share_a_run() -> None:
    writes: Writes = {
        pack_prefix(partition, 16) + key: (partition, 16, key, b"v")
        for partition, key in ((0, b"a"), (0, b"b"), (1, b"c"), (0, b"d"))
    }
    runs, namespace, _, _ = FewUpdates(writes).reserve(state_with_numbers())
    assert runs == [0, 1, 6, 2, 1, 1, 1, 1, 0, 1, 8, 1]
    assert namespace == 16


def test_a_size_is_near_the_size_of_the_record() -> None:
    writes = random_writes(random.Random(1), 200, (16,))
    for updates in (FewUpdates(dict(writes)), many_of(writes)):
        size = updates.size()
        record = record_of(updates, state_with_numbers())
        assert len(record) / 2 < size < len(record) * 5


@pytest.mark.parametrize("shape", ["few", "many"])
def test_updates_say_which_keys_they_change(shape: str) -> None:
    writes = random_writes(random.Random(2), 10, (16,))
    updates: Updates = FewUpdates(dict(writes)) if shape == "few" else many_of(writes)
    key = next(iter(writes))
    other = pack_prefix(0, 99) + b"other"
    assert set(updates.changed({key, other})) == {key}
    assert set(updates.changed({other})) == set()
    assert set(updates.changed(frozenset({key}))) == {key}


def test_other_records_change_nothing() -> None:
    layer, state = Layer(), state_with_numbers()
    nothing = NoUpdates()
    nothing.apply(layer, state, TIME)
    assert layer.parts == {}
    assert state.counters == state_with_numbers().counters
    assert (nothing.size(), list(nothing.full_keys()), nothing.changed({b"k"})) == (0, [], set())
    with pytest.raises(AssertionError):
        nothing.reserve(state)


@pytest.mark.parametrize(
    ("number", "time", "partition", "epoch", "counter", "namespace", "key", "value"),
    [
        (0, 0, 0, 1, 1, 16, b"", b""),
        (7, TIME, 3, 2, 300, 17, b"key", b"value"),
        (2**64 - 1, 2**63 - 1, 32767, 2**32 - 1, 2**63 - 1, 2**32 - 1, b"k" * 480, b"v" * 70_000),
    ],
)
def test_the_quick_encoding_of_a_put_decodes_to_the_record_of_the_slow_one(
    number: int, time: int, partition: int, epoch: int, counter: int, namespace: int,
    key: bytes, value: bytes,
) -> None:  # fmt: skip
    prefix = b"boot-one"
    slow = TxRecord(
        tx_id=prefix + number.to_bytes(8, "big"),
        time=time,
        runs=(Run(partition, epoch, counter, 1),),
        namespaces=namespace,
        keys=[key],
        values=[value],
    )
    quick = put_encoder(prefix)(number, time, partition, epoch, counter, namespace, key, value)
    assert decode_payload(quick) == decode_payload(encode_record(slow)) == [slow]
