"""Three layouts of a transaction's payload, side by side: what the log's record should look like.

    .venv/bin/python benchmarks/columns.py

``lists`` is what the log has: one msgpack list per column.  ``packed`` joins the keys, and the
values, and adds their ends as 32-bit numbers, as Arrow holds them.  ``rows`` is one msgpack list
per update.
All three are made from the lists of keys and values that a commit has, and are read back into such
lists; into Arrow too where ``pyarrow`` is installed, which nothing else here needs.

Figures are microseconds per update, the median of ``ROUNDS`` rounds that take the layouts in turn.
Only columns of one round compare: the machine's mood is the same for them.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import random
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from statistics import median
from time import perf_counter
from typing import Any

import msgpack

ROUNDS = 9
SIZES = (1, 5, 100, 10_000)
UPDATES_PER_ROUND = 50_000
RUNS = [number for partition in range(16) for number in (partition, 1, 1_000_000, 625)]
TX_ID = bytes(range(16))
TIME = 1_700_000_000_000_000

Columns = tuple[list[bytes], list["bytes | None"]]

pack = msgpack.Packer().pack


def head(count: int) -> tuple[object, ...]:
    """The fields that come before the columns."""
    return TX_ID, TIME, RUNS if count > 16 else RUNS[:4], 16


# ------------------------------------------------------------------ the layouts


def lists_encode(keys: list[bytes], values: list[bytes | None]) -> bytes:
    return pack((*head(len(keys)), keys, values, None))


def lists_decode(body: bytes) -> Columns:
    fields = msgpack.unpackb(body, strict_map_key=False)
    return fields[4], fields[5]


def packed_encode(keys: list[bytes], values: list[bytes | None]) -> bytes:
    key_ends = array("I", accumulate(map(len, keys), initial=0)).tobytes()
    deletes = b""
    present: Sequence[bytes]
    if None in values:
        deletes = bytes(value is None for value in values)
        present = [b"" if value is None else value for value in values]
    else:
        present = values  # type: ignore[assignment]  # there is no None among them
    value_ends = array("I", accumulate(map(len, present), initial=0)).tobytes()
    columns = (key_ends, b"".join(keys), value_ends, b"".join(present), deletes)
    return pack((*head(len(keys)), *columns, None))


def packed_decode(body: bytes) -> Columns:
    fields = msgpack.unpackb(body, strict_map_key=False)
    values: list[bytes | None] = [*cut(fields[7], fields[6])]
    for index, gone in enumerate(fields[8]):
        if gone:
            values[index] = None
    return cut(fields[5], fields[4]), values


def cut(joined: bytes, ends: bytes) -> list[bytes]:
    """The pieces of a packed column."""
    borders = array("I", ends)
    return [joined[start:end] for start, end in pairwise(borders)]


def rows_encode(keys: list[bytes], values: list[bytes | None]) -> bytes:
    return pack((*head(len(keys)), list(zip(keys, values, strict=True)), None))


def rows_decode(body: bytes) -> Columns:
    rows = msgpack.unpackb(body, strict_map_key=False)[4]
    return [row[0] for row in rows], [row[1] for row in rows]


# ------------------------------------------------------------------ the same into Arrow


def arrow_decoders(arrow: Any) -> dict[str, Callable[[bytes], object]]:
    def from_lists(body: bytes) -> object:
        keys, values = lists_decode(body)
        return arrow.array(keys, arrow.binary()), arrow.array(values, arrow.binary())

    def from_rows(body: bytes) -> object:
        keys, values = rows_decode(body)
        return arrow.array(keys, arrow.binary()), arrow.array(values, arrow.binary())

    def from_packed(body: bytes) -> object:
        fields = msgpack.unpackb(body, strict_map_key=False)
        buffer = arrow.py_buffer
        count = len(fields[4]) // 4 - 1
        return [
            arrow.Array.from_buffers(arrow.binary(), count, [None, buffer(ends), buffer(joined)])
            for ends, joined in ((fields[4], fields[5]), (fields[6], fields[7]))
        ]

    return {"lists": from_lists, "packed": from_packed, "rows": from_rows}


# ------------------------------------------------------------------ measuring


def timed(work: Callable[[], object], times: int) -> float:
    """Seconds that ``times`` calls take."""
    gc.collect()
    gc.disable()
    try:
        start = perf_counter()
        for _ in range(times):
            work()
        return perf_counter() - start
    finally:
        gc.enable()


def data(count: int) -> Columns:
    """Keys of 16 bytes and values of 100, from a seed."""
    rng = random.Random(count)
    return [rng.randbytes(16) for _ in range(count)], [rng.randbytes(100) for _ in range(count)]


Encode = Callable[[list[bytes], "list[bytes | None]"], bytes]
LAYOUTS: dict[str, tuple[Encode, Callable[[bytes], Columns]]] = {
    "lists": (lists_encode, lists_decode),
    "packed": (packed_encode, packed_decode),
    "rows": (rows_encode, rows_decode),
}


def works(count: int) -> dict[tuple[str, str], Callable[[], object]]:
    """What is to be measured for transactions of ``count`` updates, by step and layout."""
    keys, values = data(count)
    some: list[bytes | None] = [*values[:-1], None]
    found: dict[tuple[str, str], Callable[[], object]] = {}
    arrow: dict[str, Callable[[bytes], object]] = {}
    if importlib.util.find_spec("pyarrow") is not None:
        arrow = arrow_decoders(importlib.import_module("pyarrow"))
    for name, (encode, decode) in LAYOUTS.items():
        body = encode(keys, values)
        assert decode(body) == (keys, values), name
        assert decode(encode(keys, some)) == (keys, some), name
        found["append", name] = lambda encode=encode: encode(keys, values)  # type: ignore[misc]
        found["decode", name] = lambda decode=decode, body=body: decode(body)  # type: ignore[misc]
        if name in arrow:
            into = arrow[name]
            found["to Arrow", name] = lambda into=into, body=body: into(body)  # type: ignore[misc]
    return found


def main() -> None:
    print("| updates | step | lists | packed | rows | packed / lists |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for count in SIZES:
        measured: dict[tuple[str, str], list[float]] = {}
        times = UPDATES_PER_ROUND // count
        todo = works(count)
        for _ in range(ROUNDS):
            for place, work in todo.items():
                cost = timed(work, times) * 1e6 / (times * count)
                measured.setdefault(place, []).append(cost)
        for step in dict.fromkeys(step for step, _ in todo):
            lists, packed, rows = (measured[step, name] for name in LAYOUTS)
            ratio = median(two / one for one, two in zip(lists, packed, strict=True))
            cells = " | ".join(f"{median(cost):.2f}" for cost in (lists, packed, rows))
            print(f"| {count:,} | {step} | {cells} | {ratio:.2f} |")
    for name, (encode, _) in LAYOUTS.items():
        print(f"{name}: {len(encode(*data(10_000))) / 10_000:.1f} bytes per update of 116")


if __name__ == "__main__":
    main()
