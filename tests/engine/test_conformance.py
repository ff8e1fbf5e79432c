"""What every face of a map does: one list of scenarios, each run over all faces there are.

A scenario is written once, in terms of a map whose calls are awaited (``support.faces``), and says
what each call returns or raises, to the letter.  A new face is a new line in ``FACES``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from support.faces import CONTENTS, DEADLINE, FACES, REAL_FACES, Face, World, contents, filled
from support.real_members import end_shared_members
from tidelog.engine.data import operations
from tidelog.engine.data.namespaces import Namespace
from tidelog.engine.data.requests import Operation, PutMany, Request
from tidelog.engine.data.stored import KEY_BYTES_MAX
from tidelog.errors import (
    ClosedError,
    CodecError,
    DeadlineError,
    KeyTooLargeError,
    NotFoundError,
    ReadOnlyError,
    TidelogError,
    UsageError,
)

Changed = dict[str, dict[Any, Any]]
"""What a scenario expects some maps to hold in the end."""


async def refused(call: Awaitable[object], kind: type[Exception], said: object) -> None:
    """Expect a call to raise an error of exactly this kind, which says exactly this."""
    with pytest.raises(kind) as caught:
        await call
    assert (type(caught.value), caught.value.args) == (kind, (said,))


# ------------------------------------------------------------------ reading


async def one_key(world: World) -> None:
    m = world["typed"]
    assert await m.get("apple") == 1
    assert await m.get("banana", "default") is None
    assert await m.get("absent") is None
    assert await m.get("absent", "default") == "default"
    assert await m.get("") == 0
    assert await m.get("日本") == "é"
    assert [await m.contains(key) for key in ("banana", "", "absent", "日")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert await world["plain"].get(b"") == b""
    assert await world["plain"].contains(b"b")
    assert await world["plain"].get(b"x", b"") == b""
    assert await world["tuples"].get(("a", 2)) == 2
    assert await world["empty"].get("", 0) == 0


async def keys_of_wrong_types(world: World) -> None:
    m, plain = world["typed"], world["plain"]
    for call in (m.get(7), m.contains(7), m.get_many(["apple", 7]), m.items(7), m.keys(7)):
        await refused(call, CodecError, "map 'typed': a key is str, not int (7)")
    for call in (m.range(7), m.range(None, 7), m.range("a", 7, reverse=True)):
        await refused(call, CodecError, "map 'typed': a key is str, not int (7)")
    for call in (plain.get("a"), plain.contains("a"), plain.get_many([b"a", "a"])):
        await refused(call, CodecError, "map 'plain': a key is bytes, not str ('a')")
    large = b"x" * (KEY_BYTES_MAX + 1)
    for call in (plain.get(large), plain.contains(large), plain.get_many([large])):
        await refused(call, KeyTooLargeError, "a key of 481 bytes, 480 are allowed")


async def many_keys(world: World) -> None:
    m, plain, many = world["typed"], world["plain"], world["many"]
    assert await m.get_many(["日本", "absent", "banana", "日本"]) == {"日本": "é", "banana": None}
    assert await m.get_many([]) == await plain.get_many(iter(())) == {}
    assert await plain.get_many([b"a", b"x", b""]) == {b"a": b"1", b"": b""}
    assert await plain.get_many([b"a", b"b"]) == {b"a": b"1", b"b": b""}
    assert await many.get_many(range(-5, 200)) == CONTENTS["many"]
    assert await many.get_many(range(100)) == {n: n * n for n in range(100)}
    assert await many.count() == 150
    assert await m.count() == 7
    assert await world["empty"].count() == 0


async def in_order(world: World) -> None:
    for name, expected in CONTENTS.items():
        m = world[name]
        assert await m.items() == list(expected.items())
        assert await m.keys() == list(expected)
        assert await m.values() == list(expected.values())
        assert await m.range() == list(expected.items())
        assert await m.range(reverse=True) == list(reversed(expected.items()))


async def ranges(world: World) -> None:
    m, many = world["typed"], world["many"]
    assert [key for key, _ in await m.range("banana", "text")] == ["banana", "cherry", "flag"]
    assert [key for key, _ in await m.range("b", "flag\0", reverse=True)] == [
        "flag", "cherry", "banana",
    ]  # fmt: skip
    assert await m.range("text", "apple") == []
    assert await m.range(limit=0) == []
    assert await m.range(limit=2) == [("", 0), ("apple", 1)]
    assert await m.range(reverse=True, limit=1) == [("日本", "é")]
    assert await m.range(limit=99) == list(CONTENTS["typed"].items())
    for limit in (16, 64, 65, 149, 150, 151):
        assert await many.range(limit=limit) == list(CONTENTS["many"].items())[:limit]
    assert await many.range(20, 90) == [(n, n * n) for n in range(20, 90)]
    assert await m.range(limit=True, reverse=0) == [("", 0)]
    await refused(m.range(limit=-1), UsageError, "limit=-1 is negative")
    await refused(m.range(limit=1.5), UsageError, "limit=1.5 is not a whole number")
    await refused(m.range(reverse="x"), UsageError, "reverse='x' is neither False nor True")
    assert await world["unordered"].range() == [(1, b"1")]
    for call in (world["unordered"].range(1), world["unordered"].range(stop=1)):
        await refused(call, CodecError, "codec msgpack does not keep the order of keys")


async def prefixes(world: World) -> None:
    assert await world["typed"].keys("c") == await world["typed"].keys(prefix="cherry")
    assert await world["typed"].items("x") == []
    assert await world["typed"].keys("日") == ["日本"]
    assert await world["plain"].items(b"a") == [(b"a", b"1"), (b"ab", b"2")]
    assert await world["tuples"].keys(("a",)) == [("a", 1), ("a", 2)]
    assert await world["empty"].keys("") == []


async def both_ends(world: World) -> None:
    assert await world["typed"].first() == ("", 0)
    assert await world["typed"].last() == ("日本", "é")
    assert await world["plain"].first() == (b"", b"")
    assert await world["many"].last() == (149, 149 * 149)
    assert await world["unordered"].first() == await world["unordered"].last() == (1, b"1")
    assert await world["empty"].first() is await world["empty"].last() is None


# ------------------------------------------------------------------ writing


async def sets_and_deletes(world: World) -> Changed:
    m, plain = world["typed"], world["plain"]
    await m.set("apple", [1])
    await m.set("ünï", None)
    await m.discard("cherry")
    await m.discard("absent")
    await m.delete("flag")
    await refused(m.delete("flag"), KeyError, "flag")
    await refused(m.delete("absent"), KeyError, "absent")
    await plain.set(b"a", b"")
    await plain.set(b"large", b"x" * 5000)
    for call in (m.set(7, 1), m.discard(7), m.delete(7), m.pop(7), m.setdefault(7, 1)):
        await refused(call, CodecError, "map 'typed': a key is str, not int (7)")
    for call in (m.incr(7), m.compare_and_set(7, None, 1), m.update_many({7: 1})):
        await refused(call, CodecError, "map 'typed': a key is str, not int (7)")
    for call in (m.set("new", {1}), m.setdefault("new", {1}), m.update_many({"": 0, "new": {1}}),
                 m.compare_and_set("new", None, {1})):  # fmt: skip
        said = "map 'typed', key 'new': msgpack: $: set is not supported"
        await refused(call, CodecError, said)
    assert await m.get("apple") == [1]
    assert await m.contains("ünï")
    return {
        "typed": {
            "": 0, "apple": [1], "banana": None, "text": "five", "ünï": None, "日本": "é",
        },
        "plain": {b"": b"", b"a": b"", b"ab": b"2", b"b": b"", b"large": b"x" * 5000},
    }  # fmt: skip


async def takes_and_defaults(world: World) -> Changed:
    m = world["typed"]
    assert await m.pop("apple") == 1
    assert await m.pop("apple", None) is None
    assert await m.pop("banana", "default") is None
    assert await m.pop("", 0) == 0
    assert await m.pop("", 0) == 0
    await refused(m.pop("apple"), KeyError, "apple")
    assert await m.setdefault("text", "six") == "five"
    assert await m.setdefault("flag", True) is True
    assert await m.setdefault("new", 1) == 1
    assert await m.setdefault("new", 2) == 1
    assert await m.setdefault("none", None) is None
    assert await m.setdefault("none", 1) is None
    return {
        "typed": {
            "cherry": ["red", 2], "flag": True, "new": 1, "none": None, "text": "five",
            "日本": "é",
        }
    }  # fmt: skip


async def counts(world: World) -> Changed:
    m, many = world["typed"], world["many"]
    assert await m.incr("apple") == 2
    assert await m.incr("apple", -5) == -3
    assert await m.incr("new", 0) == 0
    assert await many.incr(149, 1) == 149 * 149 + 1
    for key, kind in (("text", "str"), ("flag", "bool"), ("banana", "NoneType")):
        said = f"the value of {key!r} is {kind}, not an integer"
        await refused(m.incr(key), UsageError, said)
    said = "map 'many', key 0: i64: $: the number is not within -2**63 to 2**63 - 1"
    await refused(many.incr(0, 1 << 63), CodecError, said)
    return {
        "typed": {**CONTENTS["typed"], "apple": -3, "new": 0},
        "many": {**CONTENTS["many"], 149: 149 * 149 + 1},
    }


async def swaps(world: World) -> Changed:
    m = world["tuples"]
    assert await m.compare_and_set(("a", 1), 2, 9) is False
    assert await m.compare_and_set(("a", 1), 1, 9) is True
    assert await m.compare_and_set(("a", 2), None, 9) is False
    assert await m.compare_and_set(("new",), None, 5) is True
    assert await m.compare_and_set(("b",), 4, None) is True
    assert await m.compare_and_set(("b",), None, None) is True
    assert await m.compare_and_set(("absent",), 1, None) is False
    return {"tuples": {("a", 1): 9, ("a", 2): 2, ("ab",): 3, ("new",): 5}}


async def first_ones(world: World) -> Changed:
    m, plain = world["tuples"], world["plain"]
    assert await m.popitem() == (("a", 1), 1)
    await m.set(("a", 0), 7)
    assert await m.popitem() == (("a", 0), 7)
    assert [await m.popitem() for _ in range(3)] == [(("a", 2), 2), (("ab",), 3), (("b",), 4)]
    await refused(m.popitem(), KeyError, "the map 'tuples' is empty")
    assert await plain.popitem() == (b"", b"")
    assert await m.count() == 0
    return {"tuples": {}, "plain": {b"a": b"1", b"ab": b"2", b"b": b""}}


def broken(pairs: list[Any]) -> Iterator[Any]:
    yield from pairs
    raise ZeroDivisionError("broken")


async def many_at_once(world: World) -> Changed:
    m, plain, many = world["typed"], world["plain"], world["many"]
    await m.update_many({})
    await m.update_many([("apple", 1), ("apple", 2), ("ü", 3), ("apple", None)])
    await plain.update_many({b"a": b"2", b"c": b""})
    await plain.update_many((b"%d" % n, b"x") for n in range(2))
    await many.update_many({n: -n for n in range(100, 200)})
    for pairs, kind, said in (
        (broken([("new", 1)]), ZeroDivisionError, "broken"),
        ([("new", 1), (7, 1)], CodecError, "map 'typed': a key is str, not int (7)"),
        ([("new", 1), 5], UsageError, "a pair of key and value is needed, not int"),
        ([("new", 1), (1, 2, 3)], UsageError, "a pair of key and value is needed, not tuple"),
        (5, UsageError, "a pair of key and value is needed, not int"),
    ):
        await refused(m.update_many(pairs), kind, said)
    said = "map 'plain', key b'x': a value is bytes, not str ('x')"
    await refused(plain.update_many({b"new": b"1", b"x": "x"}), CodecError, said)
    wrong: dict[Any, int] = {**dict.fromkeys(range(200), 0), "x": 1}
    said = "map 'many': a key is int, not str ('x')"
    await refused(many.update_many(wrong), CodecError, said)
    assert await plain.count() == 7
    return {
        "typed": {**CONTENTS["typed"], "apple": None, "ü": 3},
        "plain": {**CONTENTS["plain"], b"a": b"2", b"c": b"", b"0": b"x", b"1": b"x"},
        "many": {**{n: n * n for n in range(100)}, **{n: -n for n in range(100, 200)}},
    }


async def loads(world: World) -> Changed:
    empty, many = world["empty"], world["many"]
    assert await empty.load([]) == 0
    assert await empty.load({"a": 1}) == 1
    assert await empty.load(iter([("b", 2), ("b", 3), ("c", 4)]), batch=2) == 3
    assert await many.load(((n, 0) for n in range(300)), batch=100) == 300
    pairs = [("d", 1), ("e", 1), ("f", 1)]
    await refused(empty.load(broken(pairs), batch=2), ZeroDivisionError, "broken")
    said = "a pair of key and value is needed, not NoneType"
    await refused(empty.load([("g", 1), ("h", 1), None], batch=2), UsageError, said)
    await refused(empty.load(5), UsageError, "a pair of key and value is needed, not int")
    for batch in (0, -1, True, 1.5):
        said = f"batch={batch!r} is not a positive whole number"
        await refused(empty.load(pairs, batch=batch), UsageError, said)
    return {
        "empty": {"a": 1, "b": 3, "c": 4, "d": 1, "e": 1, "g": 1, "h": 1},
        "many": dict.fromkeys(range(300), 0),
    }


async def clears(world: World) -> Changed:
    for name in CONTENTS:
        await world[name].clear()
        assert await world[name].items() == []
    await world["many"].set(5, 5)
    await world["many"].clear()
    await world["many"].set(6, 6)
    return {**{name: {} for name in CONTENTS}, "many": {6: 6}}


async def many_deletes(world: World) -> Changed:
    m, plain, many = world["typed"], world["plain"], world["many"]
    await m.delete_many(["apple", "absent", "flag", "apple"])
    await plain.delete_many(key for key in (b"", b"b"))
    await m.delete_many([])
    await many.delete_many(range(50, 200))
    said = "map 'typed': a key is str, not int (7)"
    await refused(m.delete_many(["", 7]), CodecError, said)
    said = "map 'many': a key is int, not str ('x')"
    await refused(many.delete_many([*range(100), "x"]), CodecError, said)
    return {
        "typed": {"": 0, "banana": None, "cherry": ["red", 2], "text": "five", "日本": "é"},
        "plain": {b"a": b"1", b"ab": b"2"},
        "many": {n: n * n for n in range(50)},
    }


async def deletes_of_ranges(world: World) -> Changed:
    m, many = world["typed"], world["many"]
    assert await m.delete_range("banana", "text") == 3
    assert await m.delete_range("banana", "text") == 0
    assert await m.delete_range("x", "a") == 0
    await m.set("banana", 2)
    assert await many.delete_range(100) == 50
    assert await many.delete_range(stop=20) == 20
    assert await world["unordered"].delete_range() == 1
    said = "codec msgpack does not keep the order of keys"
    await refused(world["unordered"].delete_range(1), CodecError, said)
    said = "map 'typed': a key is str, not int (7)"
    await refused(m.delete_range("", 7), CodecError, said)
    return {
        "typed": {"": 0, "apple": 1, "banana": 2, "text": "five", "日本": "é"},
        "many": {n: n * n for n in range(20, 100)},
        "unordered": {},
    }


# ------------------------------------------------------------------ what ends a face


def reads_of(m: Any) -> list[Awaitable[object]]:
    return [
        m.get("apple"), m.contains("apple"), m.get_many(["apple"]), m.count(),
        m.items(), m.keys("a"), m.values(), m.range("a", limit=1), m.first(), m.last(),
    ]  # fmt: skip


def writes_of(m: Any) -> list[Awaitable[object]]:
    return [
        m.set("apple", 2), m.discard("apple"), m.delete("apple"), m.pop("apple", 5),
        m.setdefault("apple", 5), m.incr("apple"), m.compare_and_set("apple", 1, 2), m.popitem(),
        m.update_many({"apple": 2}), m.load([("apple", 2)]), m.clear(), m.delete_many(["apple"]),
        m.delete_range("a"),
    ]  # fmt: skip


async def refuses(calls: list[Awaitable[object]], kind: type[TidelogError], said: str) -> None:
    for call in calls:
        await refused(call, kind, said)


READING = [one_key, keys_of_wrong_types, many_keys, in_order, ranges, prefixes, both_ends]
WRITING = [
    sets_and_deletes, takes_and_defaults, counts, swaps, first_ones, many_at_once, loads, clears,
    many_deletes, deletes_of_ranges,
]  # fmt: skip

ALL = pytest.mark.parametrize("face", FACES.values(), ids=FACES)


def faces(wanted: Callable[[Face], bool]) -> pytest.MarkDecorator:
    chosen = {name: face for name, face in FACES.items() if wanted(face)}
    return pytest.mark.parametrize("face", chosen.values(), ids=chosen)


@ALL
@pytest.mark.parametrize("scenario", READING)
async def test_what_is_read_is_the_same_on_every_face(face: Face, scenario: Any) -> None:
    async with face.opened(filled().copy()) as world:
        await scenario(world)


@pytest.mark.parametrize("name", [name for name in FACES if ": " not in name])
async def test_views_are_those_of_a_dict_on_every_face_for_threads(name: str) -> None:
    async with FACES[name].opened(filled().copy()) as world:
        for called, content in CONTENTS.items():
            m = world[called].mapping
            assert list(m.keys()) == list(reversed(list(reversed(m.keys())))) == sorted(content)
            assert m.keys() == content.keys()
            assert sorted(m.items()) == sorted(content.items()) == sorted(m.items())
            assert list(m.values()) == [content[key] for key in m]
            assert len(m.keys()) == len(m.items()) == len(m.values()) == len(m) == len(content)
            assert bool(m.keys()) is bool(content)
            for pair in content.items():
                assert pair in m.items()
                assert pair[0] in m.keys() & {pair[0]}


@faces(lambda face: face.writes)
@pytest.mark.parametrize("scenario", WRITING)
async def test_what_is_written_is_the_same_on_every_face(face: Face, scenario: Any) -> None:
    disk = filled().copy()
    async with face.opened(disk) as world:
        expected = await scenario(world)
        for name, content in expected.items():
            assert dict(await world[name].items()) == content
    assert contents(disk) == {**CONTENTS, **expected}


@pytest.fixture(scope="module")
def real_clusters() -> Iterator[None]:
    yield
    end_shared_members()


@pytest.mark.slow
@pytest.mark.usefixtures("real_clusters")
@pytest.mark.parametrize("scenario", [*READING, *WRITING])
@pytest.mark.parametrize("face", REAL_FACES.values(), ids=REAL_FACES)
async def test_members_that_are_the_real_thing_do_what_all_faces_do(
    face: Face, scenario: Any
) -> None:
    if scenario in WRITING:
        await test_what_is_written_is_the_same_on_every_face(face, scenario)
    else:
        await test_what_is_read_is_the_same_on_every_face(face, scenario)


@faces(lambda face: not face.writes)
async def test_a_face_for_reading_refuses_every_write(face: Face) -> None:
    disk = filled().copy()
    async with face.opened(disk) as world:
        await refuses(writes_of(world["typed"]), ReadOnlyError, face.kind)
    assert contents(disk) == CONTENTS


@pytest.mark.slow  # each refusal collects garbage first
@faces(lambda face: face.kind == "plain")
async def test_plain_writes_inside_a_transaction_block_are_refused(face: Face) -> None:
    said = (
        "a write to the map 'typed' inside a transaction block, but not through its transaction: "
        "a rollback would not undo it"
    )
    disk = filled().copy()
    async with face.opened(disk) as world, world.block():
        await refuses(writes_of(world["typed"]), UsageError, said)
        await one_key(world)
    assert contents(disk) == CONTENTS


@faces(lambda face: face.writes)
async def test_a_map_that_was_dropped_says_so(face: Face) -> None:
    async with face.opened(filled().copy()) as world:
        m = world["typed"]
        world.drop("typed")
        await refuses([*reads_of(m), *writes_of(m)], NotFoundError, "the map 'typed' was dropped")


@ALL
async def test_a_closed_store_says_so(face: Face) -> None:
    with suppress(ClosedError):  # of a transaction that is committed too late
        async with face.opened(filled().copy()) as world:
            m = world["typed"]
            await world.close()
            calls = [*reads_of(m), *(writes_of(m) if face.writes else [])]
            await refuses(calls, ClosedError, f"the store {world.path} is closed")


@faces(lambda face: face.kind == "transaction")
async def test_a_transaction_that_is_over_says_so(face: Face) -> None:
    async with face.opened(filled().copy()) as world:
        m = world["typed"]
        assert world.commit is not None
        await world.commit()
        await refuses([*reads_of(m), *writes_of(m)], ClosedError, "the transaction is over")


@faces(lambda face: face.kind == "transaction")
async def test_a_transaction_past_its_deadline_says_so(face: Face) -> None:
    with suppress(DeadlineError):  # of the commit
        async with face.opened(filled().copy()) as world:
            m = world["typed"]
            world.environment.advance(DEADLINE + 1)
            said = "the deadline of the transaction has passed"
            await refuses([*reads_of(m), *writes_of(m)], DeadlineError, said)


# ------------------------------------------------------------------ the suite can fail


incr, popitem, load = operations.incr, operations.popitem, operations.load


def one_too_many(namespace: Namespace, key: Any, delta: int) -> Request:
    return incr(namespace, key, delta + 1)


def the_second(namespace: Namespace) -> Operation[Any]:
    first = yield from popitem(namespace)
    second = yield from popitem(namespace)
    yield PutMany([(namespace.encode_key(first[0]), namespace.encode_value(first[1]))])
    return second


def without_the_last(namespace: Namespace, source: Iterator[Any], batch: int) -> Operation[int]:
    return (yield from load(namespace, iter(list(source)[:-1]), batch))


MISTAKES = [
    ("incr", one_too_many, counts),
    ("popitem", the_second, first_ones),
    ("load", without_the_last, loads),
]


@pytest.mark.parametrize(("name", "wrong", "scenario"), MISTAKES)
@faces(lambda face: face.writes)
async def test_a_mistake_in_an_operation_is_found_on_every_face(
    face: Face, name: str, wrong: Any, scenario: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, name, wrong)
    with pytest.raises(AssertionError):
        async with face.opened(filled().copy()) as world:
            await scenario(world)
