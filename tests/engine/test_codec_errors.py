"""Errors of codecs tell the map and the key, whatever call meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tidelog.codecs import I64, Codec, Msgpack, Str, Tuple
from tidelog.errors import CodecError

Broken = tidelog.Map[Any, Any]


def refuse(data: bytes) -> Any:
    raise CodecError(f"acme: {data!r} is not mine", hint="Ask acme.")


VALUES: Codec[Any] = Codec(name="acme.values", encode=str.encode, decode=refuse)
KEYS: Codec[Any] = Codec(name="acme.keys", encode=str.encode, decode=refuse, ordered=True)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tidelog.Database]:
    with tidelog.open(tmp_path / "s.tl", partitions=2) as db:
        db.map("values", key=Str, value=VALUES)["ada"] = "x"
        db.map("keys", key=KEYS, value=Str)["ada"] = "x"
        yield db


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m["ada"],
        lambda m: m.get("ada"),
        lambda m: m.get_many(["ada", "bob"]),
        lambda m: list(m.items()),
        lambda m: list(m.range("a", "b")),
        lambda m: list(m.values()),
        lambda m: m.first(),
        lambda m: m.last(),
        lambda m: m.pop("ada"),
        lambda m: m.setdefault("ada", "y"),
        lambda m: m.compare_and_set("ada", "x", "y"),
        lambda m: m.incr("ada"),
    ],
)
def test_a_stored_value_that_cannot_be_read_is_told_with_its_key(
    db: tidelog.Database, call: Callable[[Broken], object]
) -> None:
    said = r"^map 'values', key 'ada': acme: b'x' is not mine(?m:$)"
    with pytest.raises(CodecError, match=said) as caught:
        call(db.map("values"))
    assert (caught.value.map, caught.value.hint) == ("values", "Ask acme.")
    assert caught.value.__suppress_context__
    with pytest.raises(CodecError, match=said), db.transaction() as tx:
        call(tx[db.map("values")])


@pytest.mark.parametrize("name", ["values", "keys"])
def test_a_pair_that_cannot_be_read_is_not_popped(db: tidelog.Database, name: str) -> None:
    # It was gone, and the error was all that was left of it.
    with pytest.raises(CodecError, match=f"^map '{name}', key 'ada': acme: "):
        db.map(name).popitem()
    assert "ada" in db.map(name)
    with db.transaction() as tx:
        with pytest.raises(CodecError, match=f"^map '{name}', key 'ada': acme: "):
            tx[db.map(name)].popitem()
        assert "ada" in tx[db.map(name)]
    assert db.map(name).delete_range() == 1


@pytest.mark.parametrize(
    "call", [list, lambda m: list(m.keys()), lambda m: list(m.items()), lambda m: list(reversed(m))]
)
def test_a_stored_key_that_cannot_be_read_is_told_too(
    db: tidelog.Database, call: Callable[[Broken], object]
) -> None:
    with pytest.raises(CodecError, match=r"^map 'keys', key 'ada': acme: b'ada' is not mine(?m:$)"):
        call(db.map("keys"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: m.get(5), "map 'towns': a key is str, not int (5)"),
        (lambda m: list(m.items(5)), "map 'towns': a key is str, not int (5)"),
        (lambda m: m.update_many({"a": 1, 5: 1}), "map 'towns': a key is str, not int (5)"),
        (
            lambda m: m.get("\udc00"),
            "map 'towns', key '\\udc00': str: $: 'utf-8' codec can't encode character '\\udc00' "
            "in position 0: surrogates not allowed",
        ),
        (
            lambda m: m.update_many({"a": 1, "b": {"c": {2}}}),
            "map 'towns', key 'b': msgpack: $.c: set is not supported",
        ),
        (
            lambda m: m.incr("n", 2**64),
            "map 'towns', key 'n': msgpack: $: Integer value out of range",
        ),
    ],
)
def test_what_cannot_be_stored_is_told_with_its_place(
    db: tidelog.Database, call: Callable[[Broken], object], said: str
) -> None:
    towns = db.map("towns", key=Str, value=Msgpack)
    with pytest.raises(CodecError) as caught:
        call(towns)
    assert str(caught.value) == said
    assert list(towns) == []


def test_a_renamed_map_is_told_by_its_name_of_now(db: tidelog.Database) -> None:
    numbers = db.map("numbers", key=Tuple, value=I64)
    db.rename("numbers", "sums")
    with pytest.raises(CodecError, match=r"^map 'sums', key \('a',\): a value is int, not str"):
        numbers[("a",)] = "x"  # type: ignore[assignment]


def test_an_exception_behind_a_codec_s_own_error_is_kept(db: tidelog.Database) -> None:
    def encode(value: str) -> bytes:
        try:
            return value.encode("ascii")
        except UnicodeEncodeError as error:
            raise CodecError("acme: no ASCII") from error

    plain = db.map("plain", key=Codec(name="acme.ascii", encode=encode, decode=bytes.decode))
    with pytest.raises(CodecError, match=r"^map 'plain', key 'é': acme: no ASCII(?m:$)") as caught:
        plain["é"] = b""
    assert isinstance(caught.value.__cause__, UnicodeEncodeError)
