"""What a notebook shows of maps and stores: a look that is short, escaped, and never an error."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NoReturn

import pytest

import tidelog
from support.stores import PATH, Opened, open_store
from tidelog.codecs import I64, Codec, Msgpack, Str
from tidelog.engine.api import snapshots
from tidelog.engine.api.database import session_of
from tidelog.engine.api.html import BYTES, MAPS, TEXT
from tidelog.engine.api.maps import Map
from tidelog.engine.api.open import open_with
from tidelog.engine.api.snapshots import GLIMPSE, Glimpse
from tidelog.errors import NotFoundError
from tidelog.testing import simulated

HOSTILE = "<script>alert('\"&')</script>"
ESCAPED = "&lt;script&gt;alert("


@pytest.fixture
def store() -> Iterator[Opened]:
    opened = open_store()
    yield opened
    opened.database.close()


class Balanced(HTMLParser):
    """Sees whether each element is closed, and in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def shown(of: Any) -> str:
    html: str = of._repr_html_()
    html.encode()
    assert "<script" not in html
    seen = Balanced()
    seen.feed(html)
    seen.close()
    assert seen.open == []
    return html


def rows(html: str) -> int:
    return html.count("<tr>") - 1


def test_a_map_shows_its_name_its_codecs_and_its_first_rows(store: Opened) -> None:
    m = store.database.map("stock", key=Str, value=I64)
    assert shown(m) == (
        "<p><b>Map</b> &#x27;stock&#x27; str → i64</p>"
        "<table><tr><th>key</th><th>value</th></tr></table>"
    )
    m["apples"] = 3
    html = shown(m)
    assert "<tr><td>&#x27;apples&#x27;</td><td>3</td></tr>" in html
    assert "first" not in html
    m.update({f"{n:04d}": n for n in range(2000)})
    html = shown(m)
    assert rows(html) == GLIMPSE.pairs
    assert "<td>&#x27;0009&#x27;</td>" in html
    assert "the first ones of 2,001" in html
    assert store.database.statistics().snapshots == 0


def test_everything_is_escaped(store: Opened) -> None:
    db = store.database
    m = db.map(HOSTILE, key=Str, value=Msgpack)
    m[HOSTILE] = [HOSTILE, {HOSTILE: HOSTILE}, "\ud800\u202e".encode("utf-8", "replace")]
    for of in (m, db, db.snapshot()[m]):
        assert ESCAPED in shown(of)
    assert shown(m).count(ESCAPED) == 5


def test_the_path_of_a_store_is_escaped(tmp_path: Path) -> None:
    with tidelog.open(tmp_path / "<script>alert('") as db:
        assert ESCAPED.replace("(", "(&#x27;") in shown(db)


class Hostile:
    """A value of somebody's codec."""

    def __init__(self, way: bytes) -> None:
        self.way = way

    def __repr__(self) -> str:
        if self.way == b"raises":
            raise ValueError(HOSTILE)
        return f"\ud800{HOSTILE}{'long' * 9999}"


def refuse(data: bytes) -> NoReturn:
    raise RuntimeError(HOSTILE)


def test_a_codec_of_somebody_else_can_do_no_harm(store: Opened) -> None:
    def decode(data: bytes) -> Hostile:
        return Hostile(data) if data != b"refused" else refuse(data)

    codec: Codec[Any] = Codec(name="hostile", encode=bytes, decode=decode)
    m = store.database.map("m", key=Str, value=codec)
    m.update({"a": b"raises", "b": b"refused", "c": b"long"})
    html = shown(m)
    assert "Hostile instance at" in html
    assert "b&#x27;refused&#x27;" in html
    assert "\\ud800" in html
    assert len(html) < 2000


def test_what_is_large_is_neither_decoded_nor_read_on(store: Opened) -> None:
    m = store.database.map("m", key=Str, value=Msgpack)
    m.update({f"{n}": "x" * 5000 for n in range(9)})
    html = shown(m)
    assert html.count("<i>5,003 bytes</i>") == 9
    assert len(html) < 1000
    with session_of(store.database).snapshot() as snapshot:
        pairs, count = snapshot.peek(m._namespace, Glimpse(bytes=5000))
    assert 1 <= len(pairs) < 9
    assert count == 9


def test_what_is_as_large_as_may_be_is_decoded(store: Opened) -> None:
    m = store.database.map("m", key=Str, value=Str)
    m["a"] = "x" * BYTES
    assert "xxx...xxx" in shown(m)
    m["a"] = "x" * (BYTES + 1)
    assert f"<i>{BYTES + 1:,} bytes</i>" in shown(m)


def test_a_value_of_many_short_parts_is_no_longer_than_a_line(store: Opened) -> None:
    m = store.database.map("m", key=Str, value=Msgpack)
    m["a"] = [["x" * 50] * 6] * 2
    html = shown(m)
    assert "...</td>" in html
    assert len(html) < 4 * TEXT + 200


def test_a_length_that_is_not_known_is_not_told(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = store.database.map("m")
    m.update({b"%02d" % n: b"" for n in range(20)})
    monkeypatch.setattr(snapshots, "count_keys", lambda *_: None)
    html = shown(m)
    assert rows(html) == GLIMPSE.pairs
    assert html.endswith("<p>the first ones</p>")


def test_a_look_ends_if_rows_come_slowly(store: Opened) -> None:
    m = store.database.map("m")
    m.update({b"%d" % n: b"" for n in range(1000)})
    with session_of(store.database).snapshot() as snapshot:
        pairs, count = snapshot.peek(m._namespace, Glimpse(seconds=-1))
    assert 1 <= len(pairs) < GLIMPSE.pairs
    assert count == 1000


def test_a_look_in_a_transaction_is_no_read(store: Opened) -> None:
    db = store.database
    m = db.map("m")
    m[b"a"] = b"1"
    for mode in ("optimistic", "pessimistic"):
        with db.transaction(mode, plain_writes=True) as tx:
            tx[m][b"b"] = b"2"
            assert "in a transaction" in shown(tx[m])
            m[b"a"] = b"3"


def test_what_has_ended_says_so(store: Opened) -> None:
    db = store.database
    m, gone = db.map("m"), db.map(HOSTILE)
    with db.snapshot() as snapshot:
        old = snapshot[m]
    db.drop(HOSTILE)
    html = shown(gone)
    assert "was dropped" in html
    assert ESCAPED in html
    assert "the snapshot is closed" in shown(old)
    with open_with(simulated(9, store.disk), PATH, read_only=True) as reader:
        assert "&#x27;m&#x27;" in shown(reader)
        read: Map[Any, Any] = reader.map("m")
        assert rows(shown(read)) == 0
    assert "closed" in shown(reader)
    assert "closed" in shown(read)
    db.close()
    assert "closed" in shown(db)
    assert "closed" in shown(m)


def test_a_store_shows_its_maps(store: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    db = store.database
    for n in range(MAPS):
        db.map(f"map {n:02d}", key=Str, value=I64)
    html = shown(db)
    assert rows(html) == MAPS
    assert "more" not in html
    for n in range(MAPS, MAPS + 2):
        db.map(f"map {n:02d}", key=Str, value=I64)
    html = shown(db)
    assert rows(html) == 50
    assert "<td>&#x27;map 00&#x27;</td><td>str → i64</td>" in html
    assert "and 2 more" in html
    assert "/store" in html

    def dropped(*_: object, **__: object) -> NoReturn:
        raise NotFoundError(HOSTILE)

    monkeypatch.setattr(type(db), "map", dropped)
    assert shown(db).count(ESCAPED) == 50


def test_a_plain_repr_reads_nothing(store: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    m = store.database.map("m")
    m[b"a"] = b""
    monkeypatch.setattr(snapshots, "count_keys", None)
    monkeypatch.setattr(snapshots, "scan", None)
    assert repr(m) == "<Map 'm' bytes -> bytes>"
