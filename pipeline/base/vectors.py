"""Vectors of update numbers: how far a reader of changes has come, per partition.

A vector maps each partition to (epoch, number): everything up to there was read.  Its JSON form is
an offset of Spark and a start that people write by hand::

    {"v": 1, "store": "<hex>", "history": "<hex>", "p": {"0": [1, 1234], ...}}

Invariants:

- An offset belongs to one history of one store; one of another is refused, never rewound.
- The text of a vector is always the same: Spark compares it.
- Within one log the numbers of a partition ascend whatever their epochs, so numbers are compared
  and epochs are not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...affinity.errors import UsageError

Number = tuple[int, int]
"""(epoch, update number)."""

Vector = Mapping[int, Number]

_HINT = 'It looks like {"v":1,"store":"...","history":"...","p":{"0":[1,1234]}}.'


def encode(store_id: bytes, history_id: bytes, vector: Vector) -> dict[str, Any]:
    """Return the JSON object of a vector, partitions in order."""
    return {
        "v": 1,
        "store": store_id.hex(),
        "history": history_id.hex(),
        "p": {str(partition): list(vector[partition]) for partition in sorted(vector)},
    }


def decode(data: Mapping[str, Any], store_id: bytes, history_id: bytes) -> dict[int, Number]:
    """Return the vector of a JSON object; ``UsageError`` if it is not one of this store."""
    if data.get("v") != 1 or not isinstance(data.get("p"), dict):
        raise UsageError(f"this is not an offset of Tidelog: {json.dumps(data)[:200]}", hint=_HINT)
    for name, own in (("store", store_id), ("history", history_id)):
        if data.get(name) != own.hex():
            raise UsageError(
                f"the offset belongs to {name} {data.get(name)}, this is {name} {own.hex()}",
                hint="Update numbers of another history mean something else: begin anew.",
            )
    return numbers(data["p"])


def given(text: str, store_id: bytes, history_id: bytes) -> dict[int, Number]:
    """Return the vector in an option: an offset, or numbers by partition."""
    data = json.loads(text)
    return decode(data, store_id, history_id) if "p" in data else numbers(data)


def numbers(fields: Mapping[str, Any]) -> dict[int, Number]:
    """Return the vector in ``{"partition": [epoch, number]}``; a bare number has epoch 0, any."""
    try:
        return {int(partition): _number(value) for partition, value in fields.items()}
    except (TypeError, ValueError):
        raise UsageError(f"not update numbers by partition: {fields}", hint=_HINT) from None


def _number(value: Any) -> Number:
    epoch, number = (0, value) if isinstance(value, int) else value
    if type(epoch) is not int or type(number) is not int or epoch < 0 or number < 0:
        raise ValueError(f"[{epoch}, {number}]")
    return epoch, number
