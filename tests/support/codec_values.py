"""Values of every codec that comes with Tidelog, and a map of two codecs without a store."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import tidelog
from tidelog import codecs
from tidelog.affinity.partitions import Space
from tidelog.engine.codecs.registry import Codec
from tidelog.engine.data.namespaces import Home, Namespace
from tidelog.wal.records import NamespaceRecord


def documents(depth: int = 2) -> st.SearchStrategy[Any]:
    plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats()
    return st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=depth * 3,
    )


KEYS: dict[str, tuple[Codec[Any], st.SearchStrategy[Any]]] = {
    "str": (codecs.Str, st.text(max_size=60)),
    "bytes": (codecs.Bytes, st.binary(max_size=60)),
    "i64": (codecs.I64, st.integers(-(2**63), 2**63 - 1)),
    "u64": (codecs.U64, st.integers(0, 2**64 - 1)),
    "tuple": (
        codecs.Tuple,
        st.lists(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**63 - 1)
            | st.text(max_size=9)
            | st.binary(max_size=9)
            | st.floats(allow_nan=False),
            max_size=4,
        ).map(tuple),
    ),
}
VALUES: dict[str, tuple[Codec[Any], st.SearchStrategy[Any]]] = KEYS | {
    "float": (codecs.Float, st.floats()),
    "msgpack": (
        codecs.Msgpack,
        documents() | st.binary() | st.dictionaries(st.text(), st.binary()),
    ),
    "json": (codecs.Json, documents()),
}


def encoded(codec: Codec[Any], value: Any) -> bytes | None:
    try:
        return codec.encode(value)
    except tidelog.errors.CodecError:
        return None


def namespace_with(key: Codec[Any], value: Codec[Any]) -> Namespace:
    record = NamespaceRecord(
        id=16,
        name="m",
        key_codec=key.name,
        key_version=key.version,
        value_codec=value.name,
        value_version=value.version,
    )
    return Namespace(record, key, value, Space(0, 1), Home("/store"))
