"""Rows that are cut out of stored pairs in C are those that one pair at a time gives."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tidelog.engine.data.stored import (
    TRAILER_SIZE,
    checked,
    pack_prefix,
    split_key,
    stored_value,
    version_of,
)
from tidelog.pipeline.data.stored_rows import StoredRows
from tidelog.pipeline.log.columns import SNAPSHOT

NAMES = [name for name, _ in SNAPSHOT]
COUNTERS = st.integers(1, 2**63 - 1)
TIMES = st.integers(0, 10**16)
PAIRS = st.lists(
    st.tuples(st.binary(max_size=12), st.binary(max_size=40), COUNTERS, TIMES), min_size=1
)
BLOCKS = st.lists(st.tuples(st.integers(0, 32_767), st.sampled_from(["a", "", "größe"]), PAIRS))

Block = tuple[int, str, list[tuple[bytes, bytes]]]


def stored(partition: int, rows: list[tuple[bytes, bytes, int, int]]) -> list[tuple[bytes, bytes]]:
    keys = [pack_prefix(partition, 7) + key for key, *_ in rows]
    values = [stored_value(value, 3, counter, time) for _, value, counter, time in rows]
    return list(zip(keys, checked(keys, values), strict=True))


def one_by_one(blocks: list[Block]) -> list[dict[str, Any]]:
    found = []
    for partition, name, pairs in blocks:
        for full_key, value in pairs:
            _, counter, time = version_of(value)
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)
            key = split_key(full_key)[2]
            row = (name, 7, key, value[:-TRAILER_SIZE], partition, counter, None, moment)
            found.append(dict(zip(NAMES, row, strict=True)))
    return found


@pytest.mark.slow
@given(BLOCKS, st.none() | st.lists(st.sampled_from(NAMES), min_size=1), st.integers(1, 9))
def test_rows_are_those_of_one_pair_at_a_time(
    given: list[tuple[int, str, Any]], columns: list[str] | None, most: int
) -> None:
    blocks = [(partition, name, stored(partition, rows)) for partition, name, rows in given]
    rows = StoredRows(columns, most, None)
    found: list[dict[str, Any]] = []
    for partition, name, pairs in blocks:
        rows.add(pairs, partition, 7, name)
        if rows.full:
            for batch in rows.batch():
                assert batch.num_rows < most + len(pairs)
                found += batch.to_pylist()
    for batch in rows.batch():
        found += batch.to_pylist()
    assert not list(rows.batch())
    wanted = NAMES if columns is None else [name for name in NAMES if name in columns]
    assert found == [{name: row[name] for name in wanted} for row in one_by_one(blocks)]


def test_a_value_too_short_for_a_trailer_is_no_row() -> None:
    rows = StoredRows(None, 1, None)
    rows.add([(pack_prefix(0, 7), bytes(TRAILER_SIZE - 1))], 0, 7, "a")
    with pytest.raises(ValueError, match="widths must match"):
        list(rows.batch())
