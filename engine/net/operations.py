"""What the arguments of requests are: the operations of ``docs/client-protocol.md``, with types.

Types are those of ``kinds``.  Columns that belong together have one length.  Numbers are from 0 on
and have 63 bits: a member passes many of them on to others, which take no others.

Left out: what the operations do, which is a member's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...tx.counter import COUNTER_MAX
from .kinds import Field, typed_fields, wrong_field

OPERATIONS: Mapping[str, tuple[Field, ...]] = {
    "get": typed_fields("namespace:int keys:bytes*"),
    "scan": typed_fields(
        "namespace:int partitions:int* low:bytes high:bytes? "
        "reverse:flag limit:int versions:flag values:flag"
    ),
    "copy": typed_fields("operation:text arguments:list"),
    "stale": typed_fields("operation:text arguments:list"),
    "snapshot": (),
    "pinned": typed_fields("snapshot:bytes shown:bytes* operation:text arguments:list"),
    "unpin": typed_fields("snapshot:bytes"),
    "commit": typed_fields(
        "id:bytes attempt:int given:flag tag:text? reads:list* ranges:list* writes:list*"
        " partitions:int* epochs:int*"
    ),
    "commit-locked": typed_fields(
        "transaction:bytes id:bytes attempt:int given:flag tag:text? reads:list* ranges:list*"
        " writes:list* partitions:int* epochs:int*"
    ),
    "lock": typed_fields(
        "transaction:bytes first:flag namespace:int keys:bytes* exclusive:flag reads:flag"
        " bounds:any* wait_us:int left_us:int?"
    ),
    "unlock": typed_fields("transaction:bytes"),
    "outcome": typed_fields("id:bytes given:flag home:int"),
    "map": typed_fields(
        "name:text key_codec:text key_version:int value_codec:text value_version:int"
    ),
    "drop": typed_fields("name:text map:int?"),
    "rename": typed_fields("old:text new:text map:int?"),
    "status": (),
    "partition": typed_fields("partition:int"),
    "copies": typed_fields("first:int limit:int"),
    "exchanges": typed_fields("last:int"),
    "move": typed_fields("partition:int member:bytes"),
    "topology": (),
    "want": typed_fields("member:bytes wanted:flag"),
    "lose": typed_fields("member:bytes"),
    "losses": (),
    "policy": typed_fields("policy:text"),
    "reset": typed_fields("partition:int empty:flag"),
    "transactions": (),
    "transaction": typed_fields("id:bytes"),
    "resolve": typed_fields("id:bytes commits:flag"),
}
READS = typed_fields("namespace:int keys:bytes* epochs:int* counters:int*")
RANGES = typed_fields("namespace:int partitions:int* low:bytes high:bytes? count:int digest:bytes")
WRITES = typed_fields("namespace:int keys:bytes* values:any*")

GET_KEYS_MAX = 8192
"""Keys that one ``get`` may ask for: a member looks for them in one piece."""

_NUMBERS = frozenset({int})
_COLUMNS = frozenset({"keys", "epochs", "counters", "values", "partitions"})


class MisunderstoodError(ValueError):
    """A request is not one of this version; the text says what of it."""


def check_arguments(operation: str, arguments: Sequence[object]) -> None:
    """Raise ``MisunderstoodError`` unless an operation is known, and these can be its arguments."""
    fields = OPERATIONS.get(operation)
    if fields is None:
        raise MisunderstoodError(f"there is no operation {operation!r}")
    _check(operation, fields, arguments)
    if operation == "get" and len(_column(arguments[1])) > GET_KEYS_MAX:
        raise MisunderstoodError(f"a get of more than {GET_KEYS_MAX:,} keys")
    if operation in ("commit", "commit-locked"):
        reads, ranges, writes = arguments[-5:-2]
        for name, rows, row_fields in (
            ("a read", reads, READS),
            ("a range", ranges, RANGES),
            ("a write", writes, WRITES),
        ):
            for row in _column(rows):
                _check(name, row_fields, row)


def _column(value: object) -> list[Any]:
    assert isinstance(value, list)
    return value


def _check(what: str, fields: Sequence[Field], values: Sequence[object]) -> None:
    if len(values) != len(fields):
        raise MisunderstoodError(f"{what} has {len(values)} fields, not {len(fields)}")
    wrong = wrong_field(fields, values)
    if wrong is not None:
        raise MisunderstoodError(f"{what}: {wrong}")
    for field, value in zip(fields, values, strict=True):
        numbers = _column(value) if field.items == _NUMBERS else [value] * (type(value) is int)
        if numbers and not 0 <= min(numbers) <= max(numbers) <= COUNTER_MAX:
            raise MisunderstoodError(f"{what}: {field.name} has to be from 0 to {COUNTER_MAX:,}")
    lengths = {
        len(value)
        for field, value in zip(fields, values, strict=True)
        if field.name in _COLUMNS and isinstance(value, list)
    }
    if len(lengths) > 1:
        raise MisunderstoodError(f"{what} has columns of different lengths")
