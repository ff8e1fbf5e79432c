"""What an update takes in memory: the same on whichever way it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.stores import Opened, opened
from tidelog.affinity.partitions import partition_of
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.commit.puts import Puts
from tidelog.engine.data.overlay import PAIR_OVERHEAD
from tidelog.engine.data.stored import PREFIX_SIZE, TRAILER_SIZE

KEY, VALUE = b"k" * 100, b"v" * 50
PRICE = PREFIX_SIZE + len(KEY) + len(VALUE) + TRAILER_SIZE + PAIR_OVERHEAD


def put(store: Opened, key: bytes, value: bytes) -> None:
    store.database.map("m")[key] = value


def queued_put(store: Opened, key: bytes, value: bytes) -> None:
    namespace = namespace_of(store.database.map("m"))
    partition = partition_of(key, namespace.space)
    full_key = namespace.prefixes[partition] + key
    puts = Puts([(partition, namespace.id, full_key, key, value, key)], True)
    store.parts.committer.commit_all([puts])
    assert puts.error_of(key) is None


def transaction(store: Opened, key: bytes, value: bytes) -> None:
    with store.database.transaction() as tx:
        tx[store.database.map("m")][key] = value


def update_many(store: Opened, key: bytes, value: bytes) -> None:
    store.database.map("m").update_many({key: value})


def rewrite(store: Opened, key: bytes, value: bytes) -> None:
    assert store.database.map("m").setdefault(key, value) == value


def taken(store: Opened, work: Callable[[], Any]) -> int:
    """What the updates of some work take."""
    before: int = store.parts.overlay.active.bytes
    work()
    return int(store.parts.overlay.active.bytes) - before


@pytest.mark.parametrize("durability", ["always", "none"])
@pytest.mark.parametrize("way", [put, queued_put, transaction, update_many, rewrite])
def test_an_update_takes_its_key_its_value_and_one_overhead_on_every_way(
    durability: Any, way: Callable[[Opened, bytes, bytes], None]
) -> None:
    # There were five prices; the key was not among them where single puts were committed.
    with opened(durability=durability) as store:
        put(store, b"first", b"")
        assert taken(store, lambda: way(store, KEY, VALUE)) == PRICE == 383


@pytest.mark.parametrize("durability", ["always", "none"])
@pytest.mark.parametrize(
    "way",
    [
        lambda store: store.database.map("m").discard(KEY),
        lambda store: store.database.map("m").pop(KEY),
        lambda store: store.database.run(lambda tx: tx[store.database.map("m")].discard(KEY)),
    ],
)
def test_a_delete_takes_what_an_update_without_a_value_does(
    durability: Any, way: Callable[[Opened], object]
) -> None:
    with opened(durability=durability) as store:
        put(store, KEY, VALUE)
        assert taken(store, lambda: way(store)) == PRICE - len(VALUE)


def test_many_updates_take_as_much_as_each_of_them() -> None:
    pairs = {b"%d" % number: b"v" * number for number in range(100)}
    with opened() as store:
        put(store, b"first", b"")
        many = taken(store, lambda: store.database.map("m").update_many(pairs))
        each = [
            taken(store, lambda pair=pair: put(store, *pair))  # type: ignore[misc]
            for pair in pairs.items()
        ]

        def in_one(tx: Any) -> None:
            for key, value in pairs.items():
                tx[store.database.map("m")][key] = value

        assert taken(store, lambda: store.database.run(in_one)) == many == sum(each)
