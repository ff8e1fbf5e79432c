"""Dataclasses as values: what is stored, what comes back, and how a class may change."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import EJECT, Enum, Flag, IntEnum, IntFlag
from pathlib import Path
from typing import Any, Optional
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

import tidelog
from tidelog import codecs
from tidelog.codecs import Msgpack, Str
from tidelog.engine.codecs.registry import reading_codec
from tidelog.errors import CodecError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 3


class Rights(IntFlag):
    READ = 1
    WRITE = 2


@dataclass
class Item:
    name: str
    price: Decimal
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cart:
    id: UUID
    items: list[Item]
    opened: datetime
    day: date | None = None
    left: Optional[timedelta] = None  # noqa: UP045  # both ways of writing it
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    rights: Rights = Rights.READ
    weight: float = 0.0
    raw: bytes = b""
    paid: bool = False
    place: tuple[float, float] = (0.0, 0.0)
    marks: tuple[int, ...] = ()
    prices: dict[date, Decimal] = field(default_factory=dict)
    either: int | str | list[Item] | None = None
    more: Any = None


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None


@dataclass(init=False)
class Closed:
    a: int

    def __init__(self, b: int = 0) -> None:
        self.a = b


CART = codecs.dataclass(Cart)
NUMBERS = st.integers(-(2**63), 2**64 - 1)
ITEMS = st.builds(Item, st.text(), st.decimals(allow_nan=False), NUMBERS)
MOMENTS = st.datetimes(timezones=st.just(UTC))
SPANS = st.timedeltas(timedelta(-(10**8)), timedelta(10**8))
FLOATS = st.floats(allow_nan=False)
CARTS = st.builds(
    Cart,
    id=st.uuids(),
    items=st.lists(ITEMS, max_size=3),
    opened=MOMENTS,
    day=st.none() | st.dates(),
    left=st.none() | SPANS,
    colour=st.sampled_from(Colour),
    level=st.sampled_from(Level),
    rights=st.sampled_from([Rights(0), Rights.READ, Rights.READ | Rights.WRITE]),
    weight=FLOATS,
    raw=st.binary(),
    paid=st.booleans(),
    place=st.tuples(FLOATS, FLOATS),
    marks=st.lists(NUMBERS, max_size=3).map(tuple),
    prices=st.dictionaries(st.dates(), st.decimals(allow_nan=False), max_size=2),
    either=st.none() | NUMBERS | st.text() | st.lists(ITEMS, max_size=2),
    more=st.none() | st.dictionaries(st.text(), st.integers(0, 9), max_size=2),
)
ID = UUID(int=7)
NOW = datetime(2026, 11, 21, 15, 30, 0, 5, UTC)
SMALL = Cart(id=ID, items=[Item("tea", Decimal("1.50"))], opened=NOW)


@given(CARTS)
def test_what_comes_back_equals_what_went_in(cart: Cart) -> None:
    assert CART.decode(CART.encode(cart)) == cart


def test_the_document_is_plain_messagepack_by_the_names_of_fields() -> None:
    document = Msgpack.decode(CART.encode(SMALL))
    assert {name: document[name] for name in ("id", "items", "opened", "colour", "rights")} == {
        "id": "00000000-0000-0000-0000-000000000007",
        "items": [{"name": "tea", "price": "1.50", "count": 1}],
        "opened": "2026-11-21T15:30:00.000005Z",
        "colour": "red",
        "rights": 1,
    }
    assert document["day"] is None


def test_types_come_back_exactly() -> None:
    cart = dataclasses.replace(
        SMALL, weight=2, prices={date(2026, 1, 1): Decimal("1.10")}, either=[], more=(1, 2)
    )
    back = CART.decode(CART.encode(cart))
    assert type(back.weight) is float
    assert type(back.level) is Level
    assert str(back.prices[date(2026, 1, 1)]) == "1.10"
    assert back.more == [1, 2]  # as in Msgpack: nothing tells what was meant


def test_a_codec_of_a_class_has_its_name_and_survives_pickling() -> None:
    assert (CART.name, CART.version, CART.ordered, CART.of) == ("dataclass.Cart", 1, False, Cart)
    assert codecs.dataclass(Cart, name="acme.cart").name == "dataclass.acme.cart"
    again = pickle.loads(pickle.dumps(CART))
    assert again.decode(again.encode(SMALL)) == SMALL


def test_a_class_within_itself_is_read_once() -> None:
    codec = codecs.dataclass(Node)
    node = Node("a", [Node("b", [Node("c")]), Node("d")], Node("p"))
    assert codec.decode(codec.encode(node)) == node
    for _ in range(40):
        node = Node("up", [node])
    with pytest.raises(CodecError, match="nested more than 32 deep"):
        codec.encode(node)
    document: dict[str, Any] = {"name": "a"}
    for _ in range(200):
        document = {"name": "up", "parent": document}
    import msgpack

    with pytest.raises(CodecError, match="nested more than 32 deep"):
        codec.decode(msgpack.packb(document))


def test_an_instance_may_be_32_deep() -> None:
    codec = codecs.dataclass(Node)
    node = Node("a")  # the list of its children is one more
    for _ in range(30):
        node = Node("up", parent=node)
    assert codec.decode(codec.encode(node)) == node
    with pytest.raises(CodecError, match="nested more than 32 deep"):
        codec.encode(Node("up", parent=node))


# ------------------------------------------------------------------ a class that changes


def version_of(name: str, *fields: Any, **namespace: Any) -> Any:
    return dataclasses.make_dataclass(name, fields, namespace=namespace)


OLD = version_of("Cart", ("a", int), ("b", str))
STORED = codecs.dataclass(OLD).encode(OLD(1, "x"))


def test_a_new_field_takes_its_default() -> None:
    new = version_of("Cart", ("a", int), ("b", str), ("c", list, field(default_factory=list)))
    assert codecs.dataclass(new).decode(STORED) == new(1, "x", [])


def test_a_new_field_without_a_default_is_named() -> None:
    new = version_of("Cart", ("a", int), ("b", str), ("c", int))
    with pytest.raises(CodecError, match=r"dataclass.Cart: \$: .* no field 'c', which has no defa"):
        codecs.dataclass(new).decode(STORED)


def test_a_field_that_the_class_lacks_is_named_unless_it_is_known_to_be_gone() -> None:
    # Left out in silence, it would be gone with the next write.
    new = version_of("Cart", ("a", int))
    with pytest.raises(CodecError, match=r"dataclass.Cart: \$: Cart has no field 'b'") as caught:
        codecs.dataclass(new).decode(STORED)
    assert "`removed=`" in caught.value.hint
    assert codecs.dataclass(new, removed=["b"]).decode(STORED) == new(1)


def test_a_field_of_another_type_is_named() -> None:
    new = version_of("Cart", ("a", str), ("b", str))
    with pytest.raises(CodecError, match=r"dataclass.Cart: \$.a: is str, not int \(1\)"):
        codecs.dataclass(new).decode(STORED)


def test_a_document_that_the_class_refuses_is_not_a_value() -> None:
    def refuse(_self: object) -> None:
        raise LookupError("too dear")

    strict = version_of("Cart", ("a", int), ("b", str), __post_init__=refuse)
    with pytest.raises(CodecError, match=r"Cart refused it: LookupError\('too dear'\)") as caught:
        codecs.dataclass(strict).decode(STORED)
    assert isinstance(caught.value.__cause__, LookupError)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 5}, r"\$.id: is UUID, not int \(5\)"),
        ({"items": [Item("a", Decimal(1)), 7]}, r"\$.items\[1\]: is Item, not int"),
        ({"items": ()}, r"\$.items: is list, not tuple"),
        ({"items": [Item("a", 1.5)]}, r"\$.items\[0\].price: is Decimal, not float"),  # type: ignore[arg-type]
        ({"items": [Item("a", Decimal(1), True)]}, r"\$.items\[0\].count: is int, not bool"),
        ({"items": [Item("a", Decimal(1), 2**64)]}, r"\$.items\[0\].count: .*"),
        (
            {"opened": datetime.fromisoformat("2026-01-01")},
            r"\$.opened: a datetime without a time zone",
        ),
        ({"day": NOW}, r"\$.day: is NoneType \| date, not datetime|\$.day: is date \| NoneType"),
        ({"colour": "red"}, r"\$.colour: is Colour, not str"),
        ({"level": 1}, r"\$.level: is Level, not int"),
        ({"weight": 2**63 + 1}, r"\$.weight: the int is not a double"),
        ({"place": (1.0,)}, r"\$.place: a tuple of 2, not of 1"),
        ({"marks": (1, "2")}, r"\$.marks\[1\]: is int, not str"),
        ({"prices": {date(2026, 1, 1): 1}}, r"\$.prices\[.*\]: is Decimal, not int"),
        ({"either": 1.5}, r"\$.either: is int \| str \| list \| NoneType, not float"),
        ({"more": {1, 2}}, r"\$.more: set is not supported"),
        ({"weight": "heavy"}, r"\$.weight: is float, not str \('heavy'\)"),
        ({"weight": True}, r"\$.weight: is float, not bool"),
        ({"weight": 10**400}, r"\$.weight: the int is not a double"),
        ({"place": [1.0, 2.0]}, r"\$.place: is tuple, not list"),
        ({"marks": [1, 2]}, r"\$.marks: is tuple, not list"),
        ({"prices": []}, r"\$.prices: is dict, not list"),
        ({"paid": 1}, r"\$.paid: is bool, not int"),
    ],
)
def test_a_refusal_names_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=f"^dataclass.Cart: {message}"):
        CART.encode(dataclasses.replace(SMALL, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "00000000-0000-0000-0000-00000000000A"}, r"\$.id: not a UUID: not 36 characters"),
        ({"id": 5}, r"\$.id: is UUID, not int \(5\)"),
        ({"items": {}}, r"\$.items: is list, not dict"),
        ({"items": [{"name": "a", "price": "1"}, 7]}, r"\$.items\[1\]: is Item, not int \(7\)"),
        ({"day": "2026-02-30"}, r"\$.day: not a date: "),
        ({"colour": "green"}, r"\$.colour: 'green' is not a value of Colour"),
        ({"level": 1.0}, r"\$.level: 1.0 is not a value of Level"),
        ({"weight": True}, r"\$.weight: is float, not bool"),
        ({"paid": 1}, r"\$.paid: is bool, not int"),
        ({"paid": None}, r"\$.paid: is bool, not NoneType"),
        ({"place": {}}, r"\$.place: is tuple, not dict"),
        ({"place": [1.0, 2.0, 3.0]}, r"\$.place: a tuple of 2, not of 3"),
        ({"marks": "12"}, r"\$.marks: is tuple, not str"),
        ({"marks": [1, 2.5]}, r"\$.marks\[1\]: is int, not float"),
        ({"prices": []}, r"\$.prices: is dict, not list"),
        ({"prices": {"soon": "1"}}, r"\$.prices\['soon'\]: not a date: "),
        ({"either": 1.5}, r"\$.either: is int \| str \| list \| NoneType, not float"),
    ],
)
def test_a_document_with_a_field_of_another_type_is_refused_with_its_path(
    change: dict[str, Any], message: str
) -> None:
    document = Msgpack.decode(CART.encode(SMALL)) | change
    with pytest.raises(CodecError, match=f"^dataclass.Cart: {message}"):
        CART.decode(Msgpack.encode(document))


def test_a_field_that_was_taken_from_its_instance_is_named() -> None:
    item = Item("tea", Decimal("1.50"))
    del item.name
    with pytest.raises(CodecError, match=r"\$.items\[0\]: the field 'name' is not set"):
        CART.encode(dataclasses.replace(SMALL, items=[item]))


def test_keys_that_would_be_one_are_refused() -> None:
    @dataclass
    class Rates:
        by_size: dict[Decimal, int]

    codec = codecs.dataclass(Rates)
    with pytest.raises(CodecError, match=r"\$.by_size: two keys of the dict are one"):
        codec.decode(Msgpack.encode({"by_size": {"1.0": 1, "1.00": 2}}))


@pytest.mark.parametrize(("hint", "back"), [(float | None, 2.0), (float | int, 2)])
def test_an_int_stands_for_a_float_unless_ints_are_meant_too(hint: Any, back: float) -> None:
    kind = dataclasses.make_dataclass("Size", [("a", hint)])
    codec: codecs.Codec[Any] = codecs.dataclass(kind)
    for data in (codec.encode(kind(2)), Msgpack.encode({"a": 2})):
        found = codec.decode(data)
        assert (found, type(found.a)) == (kind(2), type(back))


class Kind(Enum):
    NONE = None
    NO = False
    TWO = 2
    HALF = 0.5
    TEXT = "t"
    RAW = b"r"


@pytest.mark.parametrize(
    ("hint", "values", "wrong"),
    [
        (Colour | int | None, [Colour.RED, 3, None], "red"),
        (Colour | Item, [Colour.BLUE, Item("a", Decimal(1))], Level.LOW),
        (dict[str, int] | tuple[int, int], [{"a": 1}, (1, 2)], [1, 2]),
        (tuple[int, ...] | str, [(), (1, 2, 3), "x"], [1]),
        (dict[Kind, int], [dict.fromkeys(Kind, 1), {}], {2: 1}),
        (dict[Any, list[None]], [{1: [], "a": [None]}], {1: [0]}),
        (tuple[None, int], [(None, 1)], (0, 1)),
        (dict, [{"a": [1]}], [1]),
        (list, [[1, "a"]], (1,)),
        (tuple, [(1, "a"), ()], [1]),
    ],
)
def test_values_of_a_hint_come_back_and_no_others_are_taken(
    hint: Any, values: list[Any], wrong: Any
) -> None:
    kind = dataclasses.make_dataclass("Held", [("a", hint)])
    codec: codecs.Codec[Any] = codecs.dataclass(kind)
    for value in values:
        found = codec.decode(codec.encode(kind(value)))
        assert (found, type(found.a)) == (kind(value), type(value))
    with pytest.raises(CodecError, match=r"^dataclass\.Held: \$\.a"):
        codec.encode(kind(wrong))


def test_a_subclass_of_a_simple_type_comes_back_as_that_type() -> None:
    class Name(str):
        __slots__ = ()

    back = codecs.dataclass(Item).decode(
        codecs.dataclass(Item).encode(Item(Name("tea"), Decimal(1), Level.HIGH))
    )
    assert back == Item("tea", Decimal(1), 3)
    assert (type(back.name), type(back.count)) == (str, int)


def test_a_codec_whose_class_is_not_here_reads_documents_and_writes_none() -> None:
    codec = reading_codec("dataclass.Cart", 1)
    assert codec.decode(CART.encode(SMALL))["items"] == [
        {"name": "tea", "price": "1.50", "count": 1}
    ]
    with pytest.raises(CodecError, match=r"dataclass\.Cart: the class is not known") as caught:
        codec.encode(SMALL)
    assert "`tidelog.codecs.dataclass(Cart)`" in caught.value.hint
    with pytest.raises(CodecError, match="a list is not a document with fields"):
        codec.decode(Msgpack.encode([1]))


def test_only_the_class_itself_is_taken() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Larger(Cart):
        extra: int = 0

    with pytest.raises(CodecError, match=r"dataclass\.Cart: a value is Cart, not .*Larger"):
        CART.encode(Larger(id=ID, items=[], opened=NOW))
    again = dataclasses.make_dataclass("Cart", [("a", int)])
    with pytest.raises(CodecError, match="another class that is called Cart") as caught:
        CART.encode(again(1))
    assert "defined again" in caught.value.hint


@given(CARTS, st.data())
def test_bytes_that_were_cut_or_changed_are_refused_or_mean_a_cart(
    cart: Cart, data: st.DataObject
) -> None:
    encoded = bytearray(CART.encode(cart))
    at = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CodecError):
        CART.decode(bytes(encoded[:at]))
    with pytest.raises(CodecError):
        CART.decode(bytes(encoded) + b"\x00")
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        other = CART.decode(bytes(encoded))
    except CodecError:
        return
    assert type(other) is Cart
    assert CART.decode(CART.encode(other)).id == other.id


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x90", b"\x05", b"\x81\x01\x02", b"\xff" * 9])
def test_bytes_that_are_no_document_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError, match=r"^dataclass\.Cart: "):
        CART.decode(data)


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (set[int], r"the field 'a': set\[int\] is not supported"),
        (complex, "the field 'a': .*complex.* is not supported"),
        (str | datetime, "the field 'a': a document does not tell str and datetime apart"),
        (Item | Node, "the field 'a': a document does not tell Item and Node apart"),
        (dict[tuple[int, int], int], "the field 'a': keys of a dict cannot be"),
        (dict[tuple[int, int], Any], "the field 'a': keys of a dict cannot be"),
        ("Missing", "its hints cannot be resolved: name 'Missing' is not defined"),
        (Enum("Odd", {"A": (1, 2)}), "the field 'a': the values of Odd are not text or numbers"),
        (Enum("Odd", {"A": 1.0, "B": float("nan")}), "the field 'a': nothing is equal to Odd.B"),
        (type[int], "the field 'a': .* is not supported"),
    ],
)
def test_a_hint_that_cannot_be_stored_is_refused_at_once(hint: Any, message: str) -> None:
    kind = dataclasses.make_dataclass("Odd", [("a", hint)])
    with pytest.raises(CodecError, match=f"dataclass Odd: {message}") as caught:
        codecs.dataclass(kind)
    assert "Supported are " in caught.value.hint


def test_what_is_no_dataclass_is_refused() -> None:
    wrong: Any
    for wrong in (int, 5, SMALL, "Cart", list[int]):
        with pytest.raises(CodecError, match="is not a dataclass"):
            codecs.dataclass(wrong)
    late = dataclasses.make_dataclass("Late", [("a", int, field(init=False))])
    with pytest.raises(CodecError, match="the field 'a' has init=False"):
        codecs.dataclass(late)
    seeded = dataclasses.make_dataclass("Seeded", [("a", int), ("seed", InitVar[int])])
    with pytest.raises(CodecError, match=r"it cannot be made of its fields: .* 'seed'"):
        codecs.dataclass(seeded)
    with pytest.raises(CodecError, match=r"it cannot be made of its fields: .* 'a'"):
        codecs.dataclass(Closed)
    with pytest.raises(CodecError, match="'id' that is named as removed"):
        codecs.dataclass(Cart, removed=["id"])
    with pytest.raises(CodecError, match="removed='id' is not a list of names"):
        codecs.dataclass(Cart, removed="id")
    with pytest.raises(CodecError, match="is not a name for a codec"):
        codecs.dataclass(Cart, name="so so")


def test_nobody_else_takes_the_name_of_a_dataclass() -> None:
    impostor: Any = codecs.Codec(name="dataclass.cart", encode=str.encode, decode=bytes.decode)
    with pytest.raises(CodecError, match="the name is taken"):
        codecs.as_codec(impostor)


# ------------------------------------------------------------------ in a store


def test_a_map_of_a_dataclass_is_opened_again_with_its_class(tmp_path: Path) -> None:
    with tidelog.open(tmp_path / "s.tl") as db:
        carts = db.map("carts", key=Str, value=CART)
        carts["a"] = SMALL
        assert db.map("carts")["a"] == SMALL
        again = dataclasses.make_dataclass("Cart", [("a", int)])
        with pytest.raises(CodecError, match=r"open with another class for dataclass\.Cart"):
            db.map("carts", value=codecs.dataclass(again))
    with tidelog.open(tmp_path / "s.tl") as db:
        with pytest.raises(CodecError, match="that of a dataclass, which was not given") as caught:
            db.map("carts")
        assert "`tidelog.codecs.dataclass(Cart)`" in caught.value.hint
        assert db.map("carts", value=CART)["a"] == SMALL
    with tidelog.open(tmp_path / "s.tl", read_only=True, codecs=[CART]) as db:
        assert db.map("carts")["a"] == SMALL


class Strange(Flag, boundary=EJECT):
    """Turns other values into no member, or into an error of its own."""

    READ = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        if value == 2:
            return super()._missing_(value)
        raise LookupError("no such right")


@pytest.mark.parametrize(
    ("value", "reason"),
    [(2, "2 is not a value"), (3.5, "refused it: Look"), ([], "refused it: Look")],
)
def test_whatever_an_enum_does_with_other_values_is_a_codec_error(value: Any, reason: str) -> None:
    codec = codecs.dataclass(version_of("Cart", ("a", Strange)))
    with pytest.raises(CodecError, match=rf"\$\.a: .*{reason}"):
        codec.decode(Msgpack.encode({"a": value}))


class Lenient(Enum):
    """It takes any value for one of its own."""

    KNOWN = "known"

    @classmethod
    def _missing_(cls, _value: object) -> Lenient:
        return cls.KNOWN


@dataclass
class Guess:
    found: Lenient


def test_a_value_that_no_member_has_is_not_read_as_one() -> None:
    codec = codecs.dataclass(Guess)
    assert codec.decode(Msgpack.encode({"found": "known"})) == Guess(Lenient.KNOWN)
    with pytest.raises(CodecError, match="'other' is not a value of Lenient"):
        codec.decode(Msgpack.encode({"found": "other"}))
