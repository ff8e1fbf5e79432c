"""Messages of every kind of the wire: one that is fixed, and any that Hypothesis makes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tidelog.engine.net.frames import Message
from tidelog.engine.net.kinds import Field, MessageKind

EXAMPLES: dict[str, Any] = {
    "int": 300,
    "bytes": b"\x00\xff",
    "text": "tide",
    "flag": True,
    "list": [1, [b"k", None]],
    "map": {"a": 1},
    "any": None,
}

integers = st.integers(min_value=-(2**63), max_value=2**64 - 1)
scalars = st.none() | st.booleans() | integers | st.binary(max_size=40) | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "int": integers,
    "bytes": st.binary(max_size=300),
    "text": st.text(max_size=40),
    "flag": st.booleans(),
    "list": st.lists(values, max_size=4),
    "map": st.dictionaries(st.text(max_size=8), values, max_size=4),
    "any": values,
}


def example_of(kind: MessageKind) -> Message:
    """A message of a kind, the same one for ever."""
    return kind.message(*map(_example, kind.fields))


def _example(field: Field) -> Any:
    value = EXAMPLES[field.type_name.rstrip("*?")]
    return [value, value] if field.items is not None else value


def messages_of(kind: MessageKind) -> st.SearchStrategy[Message]:
    """Any messages of a kind."""
    return st.tuples(*map(_values, kind.fields)).map(lambda fields: kind.message(*fields))


def _values(field: Field) -> st.SearchStrategy[Any]:
    made = BY_TYPE[field.type_name.rstrip("*?")]
    if field.items is not None:
        return st.lists(made, max_size=5)
    return made | st.none() if field.type_name.endswith("?") else made
