from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar, assert_type

import pytest
from hypothesis import given, strategies as st

from tidelog.engine.codecs import registry as codecs
from tidelog.engine.codecs.registry import (
    I64,
    U64,
    Bytes,
    Codec,
    Date,
    Datetime,
    Dec,
    DecKey,
    Float,
    Json,
    KeyCodec,
    KeyRange,
    Msgpack,
    Str,
    Timedelta,
    Tuple,
    Uuid,
    ValueCodec,
    as_codec,
    byte_prefix_range,
    codec_named,
)
from tidelog.errors import CodecError

T = TypeVar("T")

TIMES: list[Codec[Any]] = [Datetime, Date, Timedelta]
ALL: list[Codec[Any]] = [
    Bytes, Str, I64, U64, Tuple, Float, Msgpack, Json, Uuid, *TIMES, Dec, DecKey
]  # fmt: skip
ORDERED: list[Codec[Any]] = [Bytes, Str, I64, U64, Tuple, Uuid, *TIMES, DecKey]


class Shout:
    """A codec written as a class, without Codec."""

    name = "acme.shout"
    version = 2
    ordered = True

    def encode(self, value: str) -> bytes:
        return value.upper().encode("ascii")

    def decode(self, data: bytes) -> str:
        return data.decode("ascii")

    def prefix_range(self, value: str) -> KeyRange:
        return byte_prefix_range(self.encode(value))


@dataclasses.dataclass
class Town:
    name: str


class ValuesOnly:
    name = "acme.values"
    version = 1

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


# ------------------------------------------------------------------ the codec object


@pytest.mark.parametrize("codec", ALL)
def test_a_built_in_codec_is_found_by_its_recorded_name(codec: Codec[Any]) -> None:
    assert codec_named(codec.name, codec.version) is codec
    assert as_codec(codec) is codec


def test_the_tests_of_all_codecs_know_all_of_them() -> None:
    assert [codec for codec in vars(codecs).values() if isinstance(codec, Codec)] == ALL


def test_the_names_of_the_built_in_codecs_never_change() -> None:
    # They are in every store: another name or version would make its maps unreadable.
    assert [(codec.name, codec.version) for codec in ALL] == [
        ("bytes", 1),
        ("str", 1),
        ("i64", 1),
        ("u64", 1),
        ("tuple", 1),
        ("float", 1),
        ("msgpack", 1),
        ("json", 1),
        ("uuid", 1),
        ("datetime", 1),
        ("date", 1),
        ("timedelta", 1),
        ("decimal", 1),
        ("decimal-key", 1),
    ]


@pytest.mark.parametrize("codec", ALL)
def test_a_codec_says_whether_it_keeps_order(codec: Codec[Any]) -> None:
    assert codec.ordered == (codec in ORDERED)
    assert ("ordered" in repr(codec)) == codec.ordered
    assert codec.name in repr(codec)


@pytest.mark.parametrize("codec", ALL)
def test_a_built_in_codec_survives_pickling(codec: Codec[Any]) -> None:
    assert pickle.loads(pickle.dumps(codec)) == codec


def test_a_codec_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Str.version = 2  # type: ignore[misc]  # the error is the point


def test_a_codec_is_made_from_two_functions() -> None:
    hexadecimal = Codec(name="acme.hex", encode=bytes.fromhex, decode=bytes.hex)
    assert hexadecimal.encode("00ff") == b"\x00\xff"
    assert hexadecimal.decode(b"\x00\xff") == "00ff"
    assert not hexadecimal.ordered
    assert as_codec(hexadecimal) is hexadecimal


def test_types_of_keys_and_values_reach_the_checker() -> None:
    assert_type(Str, Codec[str])
    assert_type(as_codec(Shout()), Codec[str])
    assert_type(decoded_key(Tuple, b""), tuple[Any, ...])
    assert_type(decoded_key(Shout(), b""), str)
    assert_type(decoded_value(Float, bytes(8)), float)
    assert_type(decoded_value(ValuesOnly(), b""), str)


def decoded_key(codec: KeyCodec[T], data: bytes) -> T:
    return codec.decode(data)


def decoded_value(codec: ValueCodec[T], data: bytes) -> T:
    return codec.decode(data)


@pytest.mark.parametrize("name", ["", "Money", "acme money", "-a", ".a", "a" * 65, "a\n", None, 3])
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(CodecError, match="is not a name for a codec"):
        Codec(name=name, encode=str.encode, decode=bytes.decode)


@pytest.mark.parametrize("version", [0, -1, 65_536, True, 1.0, "1"])
def test_a_bad_version_is_refused(version: Any) -> None:
    with pytest.raises(CodecError, match="the version is not within 1 to 65535"):
        Codec(name="acme", version=version, encode=str.encode, decode=bytes.decode)


def test_what_cannot_be_called_is_refused() -> None:
    wrong: Any = "utf-8"
    with pytest.raises(CodecError, match="must be functions"):
        Codec(name="acme", encode=wrong, decode=bytes.decode)
    with pytest.raises(CodecError, match="must be functions"):
        Codec(name="acme", encode=str.encode, decode=wrong)


# ------------------------------------------------------------------ prefixes


@given(st.binary(), st.binary())
def test_a_byte_prefix_range_holds_what_begins_so(prefix: bytes, key: bytes) -> None:
    start, stop = byte_prefix_range(prefix)
    for candidate in (key, prefix + key, prefix[:-1], prefix + b"\xff" * 3):
        inside = start <= candidate and (stop is None or candidate < stop)
        assert inside == candidate.startswith(prefix)


@pytest.mark.parametrize(
    ("prefix", "stop"),
    [(b"", None), (b"\xff\xff", None), (b"a", b"b"), (b"a\xff", b"b"), (b"a\xfe\xff", b"a\xff")],
)
def test_a_byte_prefix_range_ends_at_the_next_prefix(prefix: bytes, stop: bytes | None) -> None:
    assert byte_prefix_range(prefix) == (prefix, stop)


@given(st.text(), st.text())
def test_a_text_prefix_range_holds_what_begins_so(prefix: str, key: str) -> None:
    start, stop = Str.prefix_range(prefix)
    for candidate in (key, prefix + key):
        encoded = Str.encode(candidate)
        inside = start <= encoded and (stop is None or encoded < stop)
        assert inside == candidate.startswith(prefix)


def test_bytes_have_prefixes() -> None:
    assert Bytes.prefix_range(b"ab") == (b"ab", b"ac")
    with pytest.raises(CodecError, match="a value is bytes, not str"):
        Bytes.prefix_range("ab")  # type: ignore[arg-type]  # the error is the point


@pytest.mark.parametrize("codec", [I64, U64, Float, Msgpack, Json, Uuid, *TIMES, Dec, DecKey])
def test_numbers_and_documents_have_no_prefixes(codec: Codec[Any]) -> None:
    with pytest.raises(CodecError, match=f"codec {codec.name}: its keys have no prefixes"):
        codec.prefix_range(1)


# ------------------------------------------------------------------ codecs of one's own


def test_an_object_with_the_right_members_becomes_a_codec() -> None:
    codec = as_codec(Shout())
    assert (codec.name, codec.version, codec.ordered) == ("acme.shout", 2, True)
    assert codec.decode(codec.encode("hey")) == "HEY"
    assert codec.prefix_range("a") == (b"A", b"B")


def test_an_object_for_values_has_neither_order_nor_prefixes() -> None:
    codec = as_codec(ValuesOnly())
    assert not codec.ordered
    with pytest.raises(CodecError, match="no prefixes"):
        codec.prefix_range("a")


def test_an_object_that_lacks_a_member_is_no_codec() -> None:
    wrong: Any = 5
    with pytest.raises(CodecError, match=r"^5 is not a codec: int has no name(?m:$)"):
        as_codec(wrong)
    wrong = Shout()
    wrong.decode = None
    with pytest.raises(CodecError, match=r"encode and decode must be functions"):
        as_codec(wrong)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("str", "Give `tidelog.codecs.Str`."),
        ("decimal-key", "Give `tidelog.codecs.DecKey`."),
        ("Jsn", "Did you mean `Json`? The codecs of Tidelog are: Bytes, Str, "),
        ("words", "The codecs of Tidelog are: Bytes, Str, "),
    ],
)
def test_a_text_is_not_a_codec(name: Any, hint: str) -> None:
    # `str is not a codec` was all that was said.
    with pytest.raises(CodecError, match=f"^the text '{name}' is not a codec(?m:$)") as caught:
        as_codec(name)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        (str, "tidelog.codecs.Str"),
        (bytes, "tidelog.codecs.Bytes"),
        (int, "tidelog.codecs.I64"),
        (float, "tidelog.codecs.Float"),
        (tuple, "tidelog.codecs.Tuple"),
        (dict, "`tidelog.codecs.Msgpack` or `tidelog.codecs.Json`"),
        (datetime, "`tidelog.codecs.Datetime`"),
        (Decimal, "`tidelog.codecs.Dec` for values, `tidelog.codecs.DecKey` for keys"),
        (Town, "`tidelog.codecs.dataclass(Town)`"),
        (Shout, "`Shout()`"),
        (object, "or an object with name"),
    ],
)
def test_a_type_is_no_codec(kind: Any, instead: str) -> None:
    # It said that "type" is none, and not what to give instead.
    with pytest.raises(
        CodecError, match=f"^the type {kind.__name__} is not a codec(?m:$)"
    ) as caught:
        as_codec(kind)
    assert instead in caught.value.hint


@pytest.mark.parametrize("name", ["bytes", "str", "msgpack"])
def test_the_name_of_a_built_in_codec_is_taken(name: str) -> None:
    impostor = Codec(name=name, version=7, encode=str.encode, decode=bytes.decode)
    with pytest.raises(CodecError, match=f"codec {name}: the name is taken"):
        as_codec(impostor)


def test_a_given_codec_is_found_by_name_and_version() -> None:
    older = Codec(name="acme.shout", version=1, encode=str.encode, decode=bytes.decode)
    given: list[ValueCodec[str]] = [older, Shout()]
    assert codec_named("acme.shout", 1, given=given) is older
    assert codec_named("acme.shout", 2, given=given).encode("a") == b"A"
    with pytest.raises(CodecError, match=r"codec acme\.shout version 3 is not known"):
        codec_named("acme.shout", 3, given=given)


def test_an_unknown_name_says_how_to_get_it() -> None:
    with pytest.raises(
        CodecError, match=r"^codec acme\.money version 1 is not known(?m:$)"
    ) as caught:
        codec_named("acme.money")
    assert "entry-point group `tidelog.codecs`" in caught.value.hint
    assert "pass the codec object" in caught.value.hint
    assert "The codecs of Tidelog are: bytes, str, i64, u64, tuple, " in caught.value.hint


def test_a_name_with_a_typo_gets_a_guess() -> None:
    with pytest.raises(CodecError) as caught:
        codec_named("msgpak")
    assert caught.value.hint.startswith("Did you mean `msgpack`? The codecs of Tidelog are: ")


def test_a_later_version_of_a_built_in_codec_asks_for_a_newer_tidelog() -> None:
    with pytest.raises(CodecError, match="version 2 is not known: this Tidelog has 1") as caught:
        codec_named("msgpack", 2)
    assert caught.value.hint == "Use a newer version of tidelog."


# ------------------------------------------------------------------ codecs of installed packages

MODULE = """
from tidelog.codecs import Codec

money = Codec(name="acme.money", encode=str.encode, decode=bytes.decode)
dates = [
    Codec(name="acme.dates", version=1, encode=str.encode, decode=bytes.decode),
    Codec(name="acme.dates", version=2, encode=str.encode, decode=bytes.decode),
]
other = Codec(name="acme.other", encode=str.encode, decode=bytes.decode)
text = "acme.text"
"""

ENTRY_POINTS = """
[tidelog.codecs]
acme.money = acme_codecs:money
acme.dates = acme_codecs:dates
acme.misnamed = acme_codecs:other
acme.text = acme_codecs:text
acme.missing = acme_codecs:missing
acme.broken = acme_broken:codec
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path that looks as after the installation of a package."""
    metadata = tmp_path / "acme-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "acme_codecs.py").write_text(MODULE)
    (tmp_path / "acme_broken.py").write_text("raise RuntimeError('no library')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_codecs", raising=False)
    return tmp_path


@pytest.mark.usefixtures("acme")
def test_a_registered_codec_is_found_by_name_and_version() -> None:
    assert codec_named("acme.money").name == "acme.money"
    assert codec_named("acme.dates", 1).version == 1
    assert codec_named("acme.dates", 2).version == 2
    with pytest.raises(CodecError, match=r"codec acme\.dates version 3 is not known"):
        codec_named("acme.dates", 3)


@pytest.mark.usefixtures("acme")
def test_a_package_is_imported_only_for_a_name_that_is_not_known_otherwise() -> None:
    mine = Codec(name="acme.money", encode=str.encode, decode=bytes.decode)
    assert codec_named("acme.money", given=[mine]) is mine
    assert codec_named("str") is Str
    assert "acme_codecs" not in sys.modules
    codec_named("acme.money")
    assert "acme_codecs" in sys.modules


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acme.misnamed", "codec acme.misnamed version 1 is not known"),
        ("acme.text", "the text 'acme.text' is not a codec"),
        ("acme.missing", "codec acme.missing: loading acme_codecs:missing failed: AttributeError"),
        ("acme.broken", r"codec acme.broken: loading acme_broken:codec failed: RuntimeError\('no"),
    ],
)
def test_a_registration_that_is_wrong_says_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(CodecError, match=f"^{message}"):
        codec_named(name)


def test_importing_the_codecs_looks_for_no_packages(tmp_path: Path) -> None:
    program = "import sys, tidelog.codecs; print('importlib.metadata' in sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert printed.stdout == "False\n"


def test_every_public_name_is_offered_by_the_public_module() -> None:
    from tidelog import codecs as public

    assert {name: getattr(public, name) for name in codecs.__all__} == {
        name: getattr(codecs, name) for name in codecs.__all__
    }
