"""Maps against a dict: outside of transactions, inside them, and in snapshots."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import lmdb
import pytest

from support.stores import PATH, Opened, opened
from support.trio_stores import opened as opened_under_trio
from tidelog.affinity.errors import (
    ClosedError,
    CodecError,
    CorruptDataError,
    DiskError,
    KeyTooLargeError,
    LockTimeoutError,
    NotFoundError,
    ReadOnlyError,
    UsageError,
    ValueTooLargeError,
)
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.items import Items
from tidelog.engine.api.maps import BytesMap, Map
from tidelog.engine.api.open import open_with
from tidelog.engine.codecs import registry as codecs
from tidelog.engine.codecs.registry import I64, Bytes, Codec, Str
from tidelog.engine.data.namespaces import NAME_BYTES_MAX, VALUE_BYTES_MAX
from tidelog.engine.data.stored import KEY_BYTES_MAX
from tidelog.testing import simulated
from tidelog.testing.kv import MemoryTransaction


@pytest.fixture
def store() -> Iterator[Opened]:
    with opened() as store:
        yield store


def typed(store: Opened, name: str = "typed") -> Map[str, Any]:
    return store.database.map(name, key=codecs.Str, value=codecs.Json)


def plain(store: Opened, name: str = "plain") -> Map[bytes, bytes]:
    return store.database.map(name)


@contextmanager
def outside(store: Opened, mapping: Map[Any, Any]) -> Iterator[Map[Any, Any]]:
    yield mapping


@contextmanager
def optimistic(store: Opened, mapping: Map[Any, Any]) -> Iterator[Map[Any, Any]]:
    with store.database.transaction() as tx:
        yield tx[mapping]


@contextmanager
def pessimistic(store: Opened, mapping: Map[Any, Any]) -> Iterator[Map[Any, Any]]:
    with store.database.transaction("pessimistic") as tx:
        yield tx[mapping]


SESSIONS = pytest.mark.parametrize("session", [outside, optimistic, pessimistic])


# ------------------------------------------------------------------ like a dict


def attempt(act: Callable[[], object]) -> object:
    try:
        return act()
    except KeyError as error:
        return type(error)


def same(mapping: MutableMapping[Any, Any], twin: dict[Any, Any], rng: random.Random) -> None:
    """Do one thing to both, and expect the same of both."""
    key = rng.choice("abcdefghij")
    other = rng.choice("abcdefghij")
    value = rng.randint(0, 99)
    acts: list[Callable[[MutableMapping[Any, Any]], object]] = [
        lambda m: m.__setitem__(key, value),
        lambda m: m.__setitem__(other, [value, None]),
        lambda m: m.__delitem__(key),
        lambda m: m.pop(key),
        lambda m: m.pop(key, "default"),
        lambda m: m.pop(key, None),
        lambda m: m.setdefault(key, value),
        lambda m: m.setdefault(key),
        lambda m: m.update({key: value, other: value}),
        lambda m: m.update([(key, value), (key, value + 1)]),
        lambda m: m.update(**{key: value}),
        lambda m: m.get(key),
        lambda m: m.get(key, "default"),
        lambda m: key in m,
        lambda m: m[key],
        len,
        bool,
    ]
    act = rng.choice(acts)
    assert attempt(lambda: act(mapping)) == attempt(lambda: act(twin))


@SESSIONS
@pytest.mark.parametrize("seed", range(4))
def test_a_map_does_what_a_dict_does(store: Opened, session: Any, seed: int) -> None:
    rng, twin = random.Random(seed), dict[str, Any]()
    mapping = typed(store)
    for _ in range(4):
        with session(store, mapping) as inside:
            for _ in range(20):
                same(inside, twin, rng)
                assert list(inside.items()) == sorted(twin.items(), key=lambda pair: pair[0])
        if rng.random() < 0.5:
            store.database.checkpoint()
    assert list(mapping) == list(mapping.keys()) == sorted(twin)
    assert list(mapping.values()) == [twin[key] for key in sorted(twin)]
    assert len(mapping) == len(twin)


@SESSIONS
def test_popitem_takes_the_first_and_clear_takes_all(store: Opened, session: Any) -> None:
    mapping = typed(store)
    mapping.update({"b": 2, "a": 1, "c": 3})
    with session(store, mapping) as inside:
        assert inside.popitem() == ("a", 1)
        inside.clear()
        assert not inside
        assert len(inside) == 0
        inside.clear()
        with pytest.raises(KeyError):
            inside.popitem()


@SESSIONS
def test_discarding_reads_nothing_and_minds_nothing(store: Opened, session: Any) -> None:
    mapping = typed(store)
    mapping["a"] = 1
    with session(store, mapping) as inside:
        inside.discard("a")
        inside.discard("a")
        assert "a" not in inside


@SESSIONS
def test_a_number_is_counted_up_and_down(store: Opened, session: Any) -> None:
    mapping = typed(store)
    mapping["text"] = "five"
    mapping["flag"] = True
    with session(store, mapping) as inside:
        assert inside.incr("n") == 1
        assert inside.incr("n", 5) == 6
        assert inside.incr("n", -10) == -4
        for key in ("text", "flag"):
            with pytest.raises(UsageError, match="not an integer"):
                inside.incr(key)
    assert mapping["n"] == -4


@SESSIONS
def test_compare_and_set_takes_none_for_no_value(store: Opened, session: Any) -> None:
    mapping = typed(store)
    with session(store, mapping) as inside:
        assert not inside.compare_and_set("a", 1, 2)
        assert inside.compare_and_set("a", None, 1)
        assert not inside.compare_and_set("a", None, 2)
        assert inside.compare_and_set("a", 1, 2)
        assert inside["a"] == 2
        assert inside.compare_and_set("a", 2, None)
        assert "a" not in inside
        assert inside.compare_and_set("a", None, None)


@SESSIONS
def test_many_keys_at_once(store: Opened, session: Any) -> None:
    cases: list[tuple[Map[Any, Any], Any, Any]] = [
        (typed(store), "a", 1),
        (plain(store), b"a", b"1"),
    ]
    for mapping, key, value in cases:
        with session(store, mapping) as inside:
            inside.update_many([(key, value), (key * 2, value), (key, value * 2)])
            assert inside.get_many([key, key * 2, key * 3]) == {key: value * 2, key * 2: value}
            inside.update_many({})
        store.database.checkpoint()
        assert mapping.get_many([key, key * 2]) == {key: value * 2, key * 2: value}
        assert mapping.get_many([]) == {}


def test_a_map_shows_its_name_and_codecs(store: Opened) -> None:
    mapping = typed(store)
    mapping["a"] = 1
    assert repr(mapping) == "<Map 'typed' str -> json>"
    assert mapping.name == "typed"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mapping.nothing  # type: ignore[attr-defined]


# ------------------------------------------------------------------ in order


@SESSIONS
def test_a_range_includes_its_start_and_not_its_stop(store: Opened, session: Any) -> None:
    mapping = typed(store)
    mapping.update({key: ord(key) for key in "abcdefg"})
    with session(store, mapping) as inside:

        def keys(*args: Any, **kwargs: Any) -> str:
            return "".join(key for key, _ in inside.range(*args, **kwargs))

        assert keys() == "abcdefg"
        assert keys("c") == "cdefg"
        assert keys("c", "e") == "cd"
        assert keys(stop="c") == "ab"
        assert keys("c", "e", reverse=True) == "dc"
        assert keys("e", "c") == ""
        assert keys("bb", "dd") == "cd"
        assert keys(limit=2) == "ab"
        assert keys(reverse=True, limit=3) == "gfe"
        assert keys(limit=0) == ""
        assert keys(limit=99) == "abcdefg"
        with pytest.raises(UsageError):
            keys(limit=-1)


@SESSIONS
def test_a_prefix_keeps_the_keys_that_begin_with_it(store: Opened, session: Any) -> None:
    mapping = typed(store)
    mapping.update(dict.fromkeys(["a", "ab", "abc", "b", "abé", "ac"], 1))
    with session(store, mapping) as inside:
        assert list(inside.keys(prefix="ab")) == ["ab", "abc", "abé"]
        assert list(inside.items(prefix="ac")) == [("ac", 1)]
        assert list(inside.keys(prefix="")) == sorted(mapping)
        assert list(inside.keys(prefix="x")) == []


def test_keys_without_an_order_have_no_ranges(store: Opened) -> None:
    mapping = store.database.map("unordered", key=codecs.Msgpack)
    mapping[{"a": 1}] = b"1"
    assert list(mapping.range()) == [({"a": 1}, b"1")]
    for start, stop in ((1, None), (None, 1)):
        with pytest.raises(CodecError, match="order"):
            mapping.range(start, stop)


def test_iteration_is_as_of_its_first_step(store: Opened) -> None:
    mapping = plain(store)
    mapping.update({b"%02d" % number: b"" for number in range(50)})
    scan = iter(mapping)
    seen = [next(scan)]
    mapping[b"00x"] = b""
    mapping.clear()
    seen += scan
    assert len(seen) == 50
    assert list(mapping) == []


@pytest.mark.parametrize("many", [lambda m: m.items("1"), lambda m: m.range(limit=9), iter])
def test_an_iteration_that_is_left_early_lets_its_snapshot_go(store: Opened, many: Any) -> None:
    mapping = typed(store)
    mapping.update({str(number): number for number in range(100)})
    scan = many(mapping)
    next(scan)
    assert store.database.statistics().snapshots == 1
    scan.close()
    scan.close()
    assert store.database.statistics().snapshots == 0


def test_items_work_in_a_with_block_and_close_what_they_can() -> None:
    with Items(iter([1, 2, 3])) as items:
        assert next(items) == 1
        assert list(items) == [2, 3]


# ------------------------------------------------------------------ loading


def test_a_load_commits_in_batches_and_can_be_repeated(store: Opened) -> None:
    mapping = typed(store)
    before = store.database.statistics().transactions
    assert mapping.load(((str(number), number) for number in range(25)), batch=10) == 25
    assert store.database.statistics().transactions == before + 3
    assert mapping.load({"1": 1}) == 1
    assert mapping.load([]) == 0
    assert len(mapping) == 25
    with pytest.raises(UsageError, match="batch"):
        mapping.load({}, batch=0)


def test_a_load_that_fails_leaves_whole_batches(store: Opened) -> None:
    mapping = typed(store)

    def pairs(broken: bool) -> Iterator[tuple[str, int]]:
        for number in range(25):
            if number == 17 and broken:
                raise ZeroDivisionError
            yield str(number), number

    with pytest.raises(ZeroDivisionError):
        mapping.load(pairs(broken=True), batch=5)
    assert len(mapping) == 15
    assert mapping.load(pairs(broken=False), batch=5) == 25
    assert dict(mapping) == {str(number): number for number in range(25)}


# ------------------------------------------------------------------ bad input


def test_what_a_codec_does_not_take_changes_nothing(store: Opened) -> None:
    mapping: Any = typed(store)
    raw: Any = plain(store)
    position = store.parts.writer.position
    acts: list[Callable[[], object]] = [
        lambda: mapping.__setitem__(1, 1),
        lambda: mapping.__setitem__("a", {1, 2}),
        lambda: mapping.get(b"a"),
        lambda: mapping.__contains__(None),
        lambda: mapping.update_many({"a": 1, "b": object()}),
        lambda: raw.__setitem__("a", b"1"),
        lambda: raw.__setitem__(b"a", "1"),
        lambda: raw["a"],
        lambda: raw.get("a"),
    ]
    for act in acts:
        with pytest.raises(CodecError):
            act()
    assert store.parts.writer.position == position


def test_plain_keys_and_values_may_be_empty(store: Opened) -> None:
    raw = plain(store)
    assert type(raw) is BytesMap
    raw[b""] = b""
    assert raw[b""] == b""
    assert b"" in raw
    assert raw.get(b"x", b"default") == b"default"
    with pytest.raises(KeyError):
        raw[b"x"]


@SESSIONS
def test_keys_and_values_have_limits(store: Opened, session: Any) -> None:
    raw = plain(store)
    position = store.parts.writer.position
    with session(store, raw) as inside:
        acts: list[Callable[[], object]] = [
            lambda: inside.__setitem__(b"k" * (KEY_BYTES_MAX + 1), b""),
            lambda: inside[b"k" * (KEY_BYTES_MAX + 1)],
            lambda: inside.get(b"k" * (KEY_BYTES_MAX + 1)),
            lambda: inside.discard(b"k" * (KEY_BYTES_MAX + 1)),
        ]
        for act in acts:
            with pytest.raises(KeyTooLargeError, match="480 are allowed") as caught:
                act()
            assert caught.value.hint
        with pytest.raises(ValueTooLargeError, match="33,554,432 are allowed"):
            inside[b"a"] = bytes(VALUE_BYTES_MAX + 1)
        with pytest.raises(ValueTooLargeError):
            inside.update_many({b"a": bytes(VALUE_BYTES_MAX + 1)})
    assert store.parts.writer.position == position
    with session(store, raw) as inside:
        inside[b"k" * KEY_BYTES_MAX] = b"v" * 100_000
    assert raw[b"k" * KEY_BYTES_MAX] == b"v" * 100_000


@pytest.mark.parametrize(
    "name", ["", "a\nb", "a\0b", b"bytes", None, 7, "x" * (NAME_BYTES_MAX + 1), "é" * 128]
)
def test_a_name_that_is_none_is_refused(store: Opened, name: Any) -> None:
    position = store.parts.writer.position
    for act in (
        lambda: store.database.map(name),
        lambda: store.database.rename("a", name),
    ):
        with pytest.raises(UsageError):
            act()
    assert store.parts.writer.position == position


@pytest.mark.parametrize("name", ["a", "a b", "日本", "x" * NAME_BYTES_MAX, "../etc", "tidelog"])
def test_any_printable_text_is_a_name(store: Opened, name: str) -> None:
    store.database.map(name)[b"a"] = b"1"
    assert store.database.maps() == [name]


# ------------------------------------------------------------------ names and codecs


def test_codecs_are_recorded_and_hold_from_then_on(store: Opened) -> None:
    typed(store)["a"] = 1
    assert store.database.map("typed")["a"] == 1
    assert repr(store.database.map("typed", key=codecs.Str)) == "<Map 'typed' str -> json>"
    with pytest.raises(CodecError, match="has codec str 1, not i64"):
        store.database.map("typed", key=codecs.I64)
    with pytest.raises(CodecError, match="has codec json 1, not bytes"):
        store.database.map("typed", value=codecs.Bytes)


def test_maps_are_found_by_name_after_a_restart_and_a_checkpoint(store: Opened) -> None:
    typed(store)["a"] = 1
    plain(store)[b"b"] = b"2"
    store.database.checkpoint()
    store.database.close()
    with opened(store.disk) as again:
        assert again.database.maps() == ["plain", "typed"]
        assert again.database.map("typed")["a"] == 1
        assert again.database.map("plain")[b"b"] == b"2"


def test_a_renamed_map_keeps_its_content_and_its_handles(store: Opened) -> None:
    mapping, other = typed(store, "old"), plain(store, "other")
    mapping["a"] = 1
    store.database.rename("old", "new")
    assert store.database.maps() == ["new", "other"]
    assert (mapping.name, mapping["a"]) == ("new", 1)
    mapping["b"] = 2
    assert dict(store.database.map("new")) == {"a": 1, "b": 2}
    with pytest.raises(UsageError, match="already"):
        store.database.rename("new", "other")
    with pytest.raises(NotFoundError):
        store.database.rename("old", "newer")
    typed(store, "old")["a"] = 3
    assert other.name == "other"
    store.database.close()
    with opened(store.disk) as again:
        assert again.database.maps() == ["new", "old", "other"]
        assert again.database.map("new")["a"] == 1


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_dropped_map_is_gone_and_its_name_is_free(store: Opened, checkpointed: bool) -> None:
    mapping, kept = plain(store, "gone"), plain(store, "kept")
    mapping.update({b"%d" % number: b"v" for number in range(20)})
    kept[b"a"] = b"1"
    if checkpointed:
        store.database.checkpoint()
    with store.database.snapshot() as before:
        store.database.drop("gone")
        assert store.database.maps() == ["kept"]
        for act in (
            lambda: mapping.__setitem__(b"a", b"1"),
            lambda: mapping.get(b"nothing"),
            lambda: list(mapping),
            lambda: mapping.get_many([b"1"]),
            lambda: mapping.update_many({b"1": b"2"}),
            lambda: store.database.drop("gone"),
        ):
            with pytest.raises(NotFoundError):
                act()
        assert len(before[mapping]) == 20
    again = plain(store, "gone")
    assert dict(again) == {}
    again[b"new"] = b"1"
    store.database.checkpoint()
    assert dict(again) == {b"new": b"1"}
    assert dict(kept) == {b"a": b"1"}
    # Two pairs, four marks of partitions and that of the store.
    assert store.parts.kv.entries() == 7


@pytest.mark.parametrize("checkpointed", [False, True])
def test_many_keys_are_looked_at_as_one_is(store: Opened, checkpointed: bool) -> None:
    mapping = plain(store)
    mapping[b"a"] = b"1"
    if checkpointed:
        store.database.checkpoint()
    wrong: Any = "text"
    for keys, error in (([b"a", wrong], CodecError), ([b"a", b"x" * 481], KeyTooLargeError)):
        with pytest.raises(error):
            mapping.get_many(keys)
        with pytest.raises(error):
            mapping.get(keys[1])
    assert mapping.get_many([b"a", b"x" * 480]) == {b"a": b"1"}


@pytest.mark.parametrize(
    ("met", "raised"),
    [(lmdb.CorruptedError("torn"), CorruptDataError), (lmdb.DiskError("gone"), DiskError)],
)
def test_a_data_file_that_cannot_be_read_is_told_for_one_key_as_for_many(
    store: Opened, monkeypatch: pytest.MonkeyPatch, met: Exception, raised: type[Exception]
) -> None:
    mapping = plain(store)
    mapping[b"a"] = b"1"
    store.database.checkpoint()

    def get(_txn: MemoryTransaction, _key: bytes, _default: object = None) -> bytes:
        raise met

    monkeypatch.setattr(MemoryTransaction, "get", get)
    for look in (lambda: mapping[b"a"], lambda: mapping.get_many([b"a"])):
        with pytest.raises(raised):
            look()
    monkeypatch.undo()


# ------------------------------------------------------------------ snapshots


def test_a_map_in_a_snapshot_is_read_only(store: Opened) -> None:
    mapping = typed(store)
    mapping.update({"a": 1, "b": 2})
    with store.database.snapshot() as snapshot:
        old = snapshot[mapping]
        mapping["a"] = 5
        assert old["a"] == 1
        assert dict(old) == {"a": 1, "b": 2}
        assert old.get_many(["a", "x"]) == {"a": 1}
        for act in (
            lambda: old.__setitem__("a", 1),
            lambda: old.discard("a"),
            lambda: old.__delitem__("a"),
            lambda: old.update_many({"a": 1}),
            lambda: old.update({"a": 1}),
            lambda: old.clear(),
            lambda: old.incr("a"),
        ):
            with pytest.raises(ReadOnlyError):
                act()


# ------------------------------------------------------------------ maps that are not to be made


def test_a_map_that_is_not_to_be_made_is_looked_for_only(store: Opened) -> None:
    """A mistyped name made a map that stayed, with codecs that could not be changed any more."""
    db, position = store.database, store.parts.writer.position
    with pytest.raises(NotFoundError, match="there is no map 'typo'") as caught:
        db.map("typo", key=codecs.Str, create=False)
    assert caught.value.hint == "The store has no maps yet."
    assert (db.maps(), store.parts.writer.position) == ([], position)
    typed(store, "users")["ada"] = 1
    with pytest.raises(NotFoundError) as caught:
        db.map("user", create=False)
    assert caught.value.hint == "The store has these maps: users."
    assert db.map("users", create=False)["ada"] == 1
    with pytest.raises(CodecError):
        db.map("users", key=codecs.I64, create=False)
    for change in (db.drop, lambda name: db.rename(name, "people")):
        with pytest.raises(NotFoundError) as caught:
            change("user")
        assert caught.value.hint == "The store has these maps: users."
    for number in range(30):
        db.map(f"m{number:02}")
    with pytest.raises(NotFoundError) as caught:
        db.map("user", create=False)
    assert caught.value.hint.endswith("m18, m19 and others.")
    assert db.maps() == [*(f"m{number:02}" for number in range(30)), "users"]


def test_where_a_store_is_only_read_maps_are_never_made(store: Opened) -> None:
    """Code that serves both kinds of store says the same to both."""
    typed(store, "users")["ada"] = 1
    store.parts.committer.announce()
    with open_with(simulated(2, store.disk), PATH, read_only=True) as reader:
        for create in (False, True):
            assert reader.map("users", create=create)["ada"] == 1
            with pytest.raises(NotFoundError):
                reader.map("typo", create=create)


@pytest.mark.loops
async def test_for_tasks_a_map_that_is_not_to_be_made_is_looked_for_when_it_is_used() -> None:
    """As in threads, at the first awaited call."""
    async with opened_under_trio() as db:
        with pytest.raises(NotFoundError, match="'typo'"):
            await db.map("typo", create=False).set(b"a", b"1")
        assert db.maps() == []
        await db.map("users").set(b"a", b"1")
        assert await db.map("users", create=False).get(b"a") == b"1"


def test_a_handle_of_a_dropped_map_says_so_until_the_store_is_closed(store: Opened) -> None:
    """It went on saying so afterwards, and advised to ask a store that was closed."""
    users = plain(store)
    users[b"a"] = b"1"
    store.database.drop("plain")
    looks: list[Callable[[], object]] = [
        lambda: users.get(b"a"),
        lambda: users.get_many([b"a"]),
        lambda: list(users),
        lambda: users.set(b"a", b"2"),
        lambda: users.update({b"a": b"2"}),
    ]
    for look in looks:
        with pytest.raises(NotFoundError, match="was dropped"):
            look()
    store.database.close()
    for look in looks:
        with pytest.raises(ClosedError):
            look()


@pytest.mark.parametrize(
    ("name", "codecs"),
    [
        ("", {}),
        ("x" * 256, {}),
        (5, {}),
        ("x", {"key": 5}),
        ("x", {"value": "str"}),
        ("x", {"value": Codec(name="str", encode=bytes, decode=bytes)}),
    ],
)
def test_a_map_that_is_refused_is_not_made(name: Any, codecs: dict[str, Any]) -> None:
    with opened() as store:
        before = store.parts.writer.position
        with pytest.raises(UsageError):
            store.database.map(name, **codecs)
        assert (store.database.maps(), store.parts.writer.position) == ([], before)


def test_a_call_that_its_codecs_refuse_writes_nothing() -> None:
    """The map is there: `db.map` has made it, and has succeeded."""
    with opened() as store:
        numbers = store.database.map("numbers", key=Str, value=I64)
        before = store.parts.writer.position
        for refused in (
            lambda: numbers.set("k", "no number"),  # type: ignore[arg-type]
            lambda: numbers.update_many([("a", 1), ("b", "no number")]),  # type: ignore[list-item]
            lambda: numbers.setdefault("k", "no number"),  # type: ignore[arg-type]
        ):
            with pytest.raises(CodecError):
                refused()
        assert store.parts.writer.position == before
        assert dict(numbers) == {}


# ------------------------------------------------------------------ partitions


@pytest.mark.parametrize("durability", ["always", "none"])
def test_every_way_to_a_key_leads_to_the_same_partition(durability: Any) -> None:
    # With a power of two a hash that is taken for a signed number would do no harm.
    keys = [b"%d" % number for number in range(120)]
    ways: list[Callable[[Opened, Map[Any, Any], bytes], object]] = [
        lambda _, numbers, key: numbers.set(key, b"1"),
        lambda _, numbers, key: numbers.update_many({key: b"1"}),
        lambda _, numbers, key: numbers.setdefault(key, b"1"),
        lambda store, numbers, key: put_in(optimistic, store, numbers, key),
        lambda store, numbers, key: put_in(pessimistic, store, numbers, key),
    ]
    with opened(partitions=5, durability=durability) as store:
        numbers = plain(store)
        for number, key in enumerate(keys):
            ways[number % len(ways)](store, numbers, key)
        # Read the same wrong way a key would be found where it does not belong.
        for partition, updates in store.parts.overlay.view.layers[0].parts.items():
            assert all(partition_of(full_key[8:], Space(0, 5)) == partition for full_key in updates)
        assert dict(numbers) == dict.fromkeys(keys, b"1")
        assert dict(numbers.get_many(keys)) == dict.fromkeys(keys, b"1")
        for key in keys:
            assert numbers[key] == b"1"
            with store.database.transaction() as tx:
                assert tx[numbers].pop(key) == b"1"
        assert len(numbers) == 0


def put_in(session: Any, store: Opened, mapping: Map[Any, Any], key: bytes) -> None:
    with session(store, mapping) as inside:
        inside[key] = b"1"


def test_many_keys_in_the_data_file_are_each_looked_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A key that is looked for in another partition would be found by a second look, and slowly.
    looked_up = list[bytes]()
    get = MemoryTransaction.get

    def noting(txn: MemoryTransaction, key: bytes, default: bytes | None = None) -> bytes | None:
        looked_up.append(key[8:])
        return get(txn, key, default)

    keys = [b"%d" % number for number in range(40)]
    with opened(partitions=5) as store:
        numbers = plain(store)
        numbers.update_many(dict.fromkeys(keys, b"1"))
        store.database.checkpoint()
        with monkeypatch.context() as patched:
            patched.setattr(MemoryTransaction, "get", noting)
            assert dict(numbers.get_many(keys)) == dict.fromkeys(keys, b"1")
    assert looked_up == keys


def test_a_change_in_a_pessimistic_transaction_locks_its_key_alone_wherever_that_lies() -> None:
    keys = [b"%d" % number for number in range(40)]
    with opened(partitions=5) as store:
        numbers = plain(store)
        numbers.update_many(dict.fromkeys(keys, b"1"))
        with store.database.transaction("pessimistic") as reader:
            for key in keys:
                assert reader[numbers][key] == b"1"
                other = store.database.transaction("pessimistic", lock_timeout=0.0)
                # It keeps what it finds, and a lock on another key would be in nobody's way.
                with other, pytest.raises(LockTimeoutError):
                    other[numbers].setdefault(key, b"2")


def test_the_first_key_goes_from_where_it_is() -> None:
    with opened(partitions=5) as store:
        numbers = plain(store)
        keys = sorted(b"%d" % number for number in range(40))
        numbers.update_many(dict.fromkeys(keys, b"1"))
        assert [numbers.popitem()[0] for _ in keys] == keys


@pytest.mark.parametrize("wrong", [5, None, [1], ["abc"], [(b"a", b"b", b"c")]])
@pytest.mark.parametrize("codec", [Bytes, Str])
def test_what_is_no_pair_is_refused(codec: Any, wrong: Any) -> None:
    # It was the TypeError or ValueError of the unpacking.
    with opened() as store:
        users = store.database.map("users", key=codec, value=codec)
        for act in (users.update_many, users.load):
            with pytest.raises(UsageError, match="a pair of key and value is needed"):
                act(wrong)
        assert len(users) == 0


@pytest.mark.parametrize("batch", ["x", 1.5, 0, None, True])
def test_a_batch_that_is_no_number_is_refused(batch: Any) -> None:
    with opened() as store, pytest.raises(UsageError, match=r"^batch="):
        store.database.map("users").load([], batch=batch)
