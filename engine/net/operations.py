"""What the arguments of requests are: the operations of ``docs/client-protocol.md``, with types.

Types are those of ``kinds``.  Columns that belong together have one length.  Numbers are from 0 on
and have 63 bits: a member passes many of them on to others, which take no others.

Left out: what the operations do, which is a member's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ...tx.counter import COUNTER_MAX
from .kinds import TYPES, picking, typed_fields

_COLUMNS = frozenset({"keys", "epochs", "counters", "values", "partitions"})
"""Those that have one length."""


class Arguments:
    """What an operation is told, or one row of that: fields, of which some are numbers."""

    def __init__(self, text: str) -> None:
        self.fields = typed_fields(text)
        places = list(enumerate(self.fields))
        self._numbers = picking(
            [at for at, field in places if field.items is None and int in field.types]
        )
        self._columns = picking([at for at, field in places if field.items == TYPES["int"]])
        self._together = picking(
            [at for at, field in places if field.items is not None and field.name in _COLUMNS]
        )

    def check(self, what: str, values: Sequence[Any]) -> None:
        """Raise ``MisunderstoodError`` unless values can be these."""
        if len(values) != len(self.fields):
            raise MisunderstoodError(f"{what} has {len(values)} fields, not {len(self.fields)}")
        wrong = self.fields.wrong(values)
        if wrong is not None:
            raise MisunderstoodError(f"{what}: {wrong}")
        numbers = [*filter(None, self._numbers(values))]  # what may be missing is no number
        numbers += chain.from_iterable(self._columns(values))
        if numbers and not 0 <= min(numbers) <= max(numbers) <= COUNTER_MAX:
            raise MisunderstoodError(
                f"{what}: {self._out_of_range(values)} has to be from 0 to {COUNTER_MAX:,}"
            )
        if len(set(map(len, self._together(values)))) > 1:
            raise MisunderstoodError(f"{what} has columns of different lengths")

    def _out_of_range(self, values: Sequence[Any]) -> str:
        """Return the name of the first field whose number is out of range."""
        return next(
            field.name
            for field, value in zip(self.fields, values, strict=True)
            for number in (value if field.items == TYPES["int"] else [value])
            if type(number) is int and not 0 <= number <= COUNTER_MAX
        )


OPERATIONS: Mapping[str, Arguments] = {
    "get": Arguments("namespace:int keys:bytes*"),
    "scan": Arguments(
        "namespace:int partitions:int* low:bytes high:bytes? "
        "reverse:flag limit:int versions:flag values:flag"
    ),
    "copy": Arguments("operation:text arguments:list"),
    "stale": Arguments("operation:text arguments:list"),
    "snapshot": Arguments(""),
    "pinned": Arguments("snapshot:bytes shown:bytes* operation:text arguments:list"),
    "unpin": Arguments("snapshot:bytes"),
    "commit": Arguments(
        "id:bytes attempt:int given:flag tag:text? reads:list* ranges:list* writes:list*"
        " partitions:int* epochs:int*"
    ),
    "commit-locked": Arguments(
        "transaction:bytes id:bytes attempt:int given:flag tag:text? reads:list* ranges:list*"
        " writes:list* partitions:int* epochs:int*"
    ),
    "lock": Arguments(
        "transaction:bytes first:flag namespace:int keys:bytes* exclusive:flag reads:flag"
        " bounds:any* wait_us:int left_us:int?"
    ),
    "unlock": Arguments("transaction:bytes"),
    "outcome": Arguments("id:bytes given:flag home:int"),
    "map": Arguments("name:text key_codec:text key_version:int value_codec:text value_version:int"),
    "drop": Arguments("name:text map:int?"),
    "rename": Arguments("old:text new:text map:int?"),
    "status": Arguments(""),
    "partition": Arguments("partition:int"),
    "copies": Arguments("first:int limit:int"),
    "exchanges": Arguments("last:int"),
    "move": Arguments("partition:int member:bytes"),
    "topology": Arguments(""),
    "want": Arguments("member:bytes wanted:flag"),
    "lose": Arguments("member:bytes"),
    "losses": Arguments(""),
    "policy": Arguments("policy:text"),
    "reset": Arguments("partition:int empty:flag"),
    "transactions": Arguments(""),
    "transaction": Arguments("id:bytes"),
    "resolve": Arguments("id:bytes commits:flag"),
}
READS = Arguments("namespace:int keys:bytes* epochs:int* counters:int*")
RANGES = Arguments("namespace:int partitions:int* low:bytes high:bytes? count:int digest:bytes")
WRITES = Arguments("namespace:int keys:bytes* values:any*")

GET_KEYS_MAX = 8192
"""Keys that one ``get`` may ask for: a member looks for them in one piece."""


class MisunderstoodError(ValueError):
    """A request is not one of this version; the text says what of it."""


def check_arguments(operation: str, arguments: Sequence[Any]) -> None:
    """Raise ``MisunderstoodError`` unless an operation is known, and these can be its arguments."""
    known = OPERATIONS.get(operation)
    if known is None:
        raise MisunderstoodError(f"there is no operation {operation!r}")
    known.check(operation, arguments)
    if operation == "get" and len(arguments[1]) > GET_KEYS_MAX:
        raise MisunderstoodError(f"a get of more than {GET_KEYS_MAX:,} keys")
    if operation in ("commit", "commit-locked"):
        reads, ranges, writes = arguments[-5:-2]
        for row in reads:
            READS.check("a read", row)
        for row in ranges:
            RANGES.check("a range", row)
        for row in writes:
            WRITES.check("a write", row)
