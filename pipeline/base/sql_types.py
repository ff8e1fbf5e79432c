"""Types of columns: as Spark SQL writes them, as its JSON has them, and as Arrow has them.

Spark reads such texts in its JVM, which neither planners nor tools without Spark can ask.

Invariants:

- two types are the same if and only if their texts are.

Left out: intervals of months, variants, and columns that must not be null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ...affinity.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

DECIMAL_DIGITS_MAX = 38

_OF_JSON = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_TO_JSON = {name: other for other, name in _OF_JSON.items()}
_ALIASES = {**_OF_JSON, "real": "float", "dec": "decimal", "numeric": "decimal"}
_PLAIN = frozenset(
    [
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "string",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]
)
SPAN = "interval day to second"
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))")
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type; an array has a field ``element``, a map has ``key`` and ``value``."""

    name: str
    """``struct``, ``array``, ``map``, or all of the text of any other type."""
    fields: tuple[tuple[str, SqlType], ...] = ()

    def __str__(self) -> str:
        if self.name == "struct":
            return f"struct<{','.join(f'{_quoted(name)}:{kind}' for name, kind in self.fields)}>"
        inner = ",".join(str(kind) for _, kind in self.fields)
        return f"{self.name}<{inner}>" if inner else self.name

    def decimal(self) -> tuple[int, int] | None:
        """Return precision and scale of a decimal; of any other type None."""
        found = _DECIMAL.fullmatch(self.name)
        return None if found is None else (int(found[1]), int(found[2]))

    def json(self) -> object:
        """Return the type as in the JSON of a schema."""
        kinds = dict(self.fields)
        if self.name == "struct":
            fields = [
                {"name": name, "type": kind.json(), "nullable": True, "metadata": {}}
                for name, kind in self.fields
            ]
            return {"type": "struct", "fields": fields}
        if self.name == "array":
            return {"type": "array", "elementType": kinds["element"].json(), "containsNull": True}
        if self.name == "map":
            types = {"keyType": kinds["key"].json(), "valueType": kinds["value"].json()}
            return {"type": "map", **types, "valueContainsNull": True}
        return _TO_JSON.get(self.name, self.name)

    def arrow(self) -> pa.DataType:
        """Return the type of Arrow that Spark takes it for."""
        import pyarrow as pa

        kinds = {name: kind.arrow() for name, kind in self.fields}
        if self.name == "struct":
            return pa.struct(list(kinds.items()))
        if self.name == "array":
            return pa.list_(kinds["element"])
        if self.name == "map":
            return pa.map_(kinds["key"], kinds["value"])
        digits = self.decimal()
        return _arrow_types()[self.name] if digits is None else pa.decimal128(*digits)


def _quoted(name: str) -> str:
    return name if _WORD.fullmatch(name) else "`" + name.replace("`", "``") + "`"


@cache
def _arrow_types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        SPAN: pa.duration("us"),
    }


def type_of_json(found: Any) -> SqlType:
    """Return a type out of the JSON of a schema; one that is not known keeps its name."""
    if isinstance(found, Mapping):
        kind = found["type"]
        if kind == "struct":
            fields = [(field["name"], type_of_json(field["type"])) for field in found["fields"]]
            return SqlType("struct", tuple(fields))
        if kind == "array":
            return SqlType("array", (("element", type_of_json(found["elementType"])),))
        if kind == "map":
            key, value = type_of_json(found["keyType"]), type_of_json(found["valueType"])
            return SqlType("map", (("key", key), ("value", value)))
        return SqlType(str(kind))
    return SqlType(_OF_JSON.get(found, found))


@cache
def parse_type(text: str) -> SqlType:
    """Return the type that a text means; columns with names make a struct.

    Raises ``UsageError`` for any other text.
    """
    try:
        tokens = _Tokens(text)
        kind = _columns(tokens) if tokens.begins_column() else _type(tokens)
        if tokens.rest():
            raise ValueError(f"nothing was expected behind {kind}")
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a type of Spark: {error}",
            hint="Such as `bigint`, `array<string>`, or columns: `name string, credit bigint`.",
        ) from None
    return kind


class _Tokens:
    """The words and signs of a text, and how far they were read."""

    def __init__(self, text: str) -> None:
        self._found: list[tuple[str, bool]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            token = _TOKEN.match(text, at)
            if token is None:
                raise ValueError(f"{text[at : at + 1]!r} was not expected")
            quoted, word, sign = token.groups()
            self._found.append(
                (quoted.replace("``", "`"), True) if quoted else (word or sign, bool(word))
            )
            at = token.end()
        self._at = 0

    def rest(self) -> bool:
        """Tell whether anything is left."""
        return self._at < len(self._found)

    def begins_column(self) -> bool:
        """Tell whether a name comes, and behind it a type."""
        ahead = self._found[self._at : self._at + 2]
        if [token.lower() for token, _ in ahead] == SPAN.split()[:2]:
            return False
        return len(ahead) == 2 and ahead[0][1] and (ahead[1][1] or ahead[1][0] == ":")

    def take(self, *signs: str) -> str:
        """Return what comes, which has to be one of some signs; without signs a word or a name."""
        token, is_word = self._found[self._at] if self.rest() else ("the end", False)
        if token not in signs if signs else not is_word:
            raise ValueError(f"{' or '.join(signs) or 'a name'} was expected, not {token}")
        self._at += 1
        return token

    def skip(self, sign: str) -> bool:
        """Go beyond a sign if it comes."""
        found = self.rest() and self._found[self._at] == (sign, False)
        self._at += found
        return found


def _columns(tokens: _Tokens) -> SqlType:
    fields: dict[str, SqlType] = {}
    while True:
        name = tokens.take()
        tokens.skip(":")
        if name.lower() in map(str.lower, fields):
            raise ValueError(f"there are two columns {name}")
        fields[name] = _type(tokens)
        if not tokens.skip(","):
            return SqlType("struct", tuple(fields.items()))


def _type(tokens: _Tokens) -> SqlType:
    word = tokens.take().lower()
    name = _ALIASES.get(word, word)
    if name in _PLAIN:
        return SqlType(name)
    if name == "interval":
        for part in SPAN.split()[1:]:
            if tokens.take().lower() != part:
                raise ValueError(f"of intervals there is {SPAN}")
        return SqlType(SPAN)
    if name == "decimal":
        return SqlType(_decimal(tokens))
    if name not in ("struct", "array", "map"):
        raise ValueError(f"there is no type {word}")
    tokens.take("<")
    if name == "struct":
        kind = _columns(tokens)
    elif name == "array":
        kind = SqlType(name, (("element", _type(tokens)),))
    else:
        key = _type(tokens)
        tokens.take(",")
        kind = SqlType(name, (("key", key), ("value", _type(tokens))))
    tokens.take(">")
    return kind


def _decimal(tokens: _Tokens) -> str:
    digits, scale = 10, 0
    if tokens.skip("("):
        digits = int(tokens.take())
        scale = int(tokens.take()) if tokens.skip(",") else 0
        tokens.take(")")
    if not 1 <= digits <= DECIMAL_DIGITS_MAX or not 0 <= scale <= digits:
        raise ValueError(f"a decimal has at most {DECIMAL_DIGITS_MAX} digits, decimals included")
    return f"decimal({digits},{scale})"
