"""The types of CSV columns, as ``--type price=decimal`` names them.

Invariants:

- A field that is not of its type is refused with its row, its column and its value.
- Text is taken strictly: what Python alone would take, such as ``1_000``, is refused.

Left out: which values a codec takes (``engine``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

from ...affinity.errors import UsageError
from ...engine.codecs.byte_text import quoted
from ...engine.codecs.registry import Json
from ..shell.text import first_of, parse_uuid, value_of_text

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _int(text: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:
        raise ValueError
    return int(text)


def _float(text: str) -> float:
    if "_" in text or not text.isascii():
        raise ValueError
    return float(text)


def _decimal(text: str) -> Decimal:
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text) is None:
        raise ValueError
    return Decimal(text)


_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": _int,
    "float": _float,
    "bool": lambda text: _TRUTH[text.lower()],
    "decimal": _decimal,
    "datetime": datetime.fromisoformat,
    "uuid": parse_uuid,
    "json": lambda text: value_of_text(text, Json, "value"),
}


class ColumnTypes:
    """What the columns of a CSV file hold; those that are not named hold text."""

    def __init__(self, given: Iterable[str]) -> None:
        self._types: dict[str, tuple[str, Callable[[str], Any], bool]] = {}
        for text in given:
            column, _, type_name = text.rpartition("=")
            name = type_name.removesuffix("?")
            if not column or name not in _TYPES:
                raise UsageError(
                    f"--type {text} does not name a column and its type",
                    hint=f"Give --type COLUMN=TYPE with one of {', '.join(_TYPES)}; "
                    "a ? behind it takes an empty field for null.",
                )
            if column in self._types:
                raise UsageError(f"--type names the column {quoted(column)} twice")
            self._types[column] = name, _TYPES[name], name != type_name

    def __contains__(self, column: str) -> bool:
        return column in self._types

    def __bool__(self) -> bool:
        return bool(self._types)

    def check(self, columns: list[str]) -> None:
        """Raise ``UsageError`` for a type of a column that a file does not have."""
        for column in self._types:
            if column not in columns:
                raise UsageError(
                    f"--type names the column {quoted(column)}; the head line has "
                    f"{first_of(columns)}",
                    hint="Correct the name of the column.",
                )

    def convert(self, record: dict[str, Any], number: int) -> None:
        """Put the values that they stand for in place of the texts of a record."""
        for column, (name, parse, nullable) in self._types.items():
            text = record[column]
            if nullable and not text:
                record[column] = None
                continue
            try:
                record[column] = parse(text if name == "str" else text.strip())
            except (UsageError, ValueError, ArithmeticError, KeyError):
                article = "an" if name == "int" else "a"
                raise UsageError(
                    f"line {number}, column {quoted(column)}: {quoted(text)} is not {article} "
                    f"{name}",
                    hint=_hint(column, name, text),
                ) from None


def _hint(column: str, name: str, text: str) -> str:
    if not text:
        return f"Give --type {column}={name}? to load an empty field as null."
    return "Correct the line; then go on with --skip."
