"""Iterations over several members, page by page, decided without I/O."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tidelog.engine.client.reads import PagedScan
from tidelog.engine.client.routing import Ask, Cluster, Steps, Value

MEMBERS = (b"a" * 16, b"b" * 16, b"c" * 16)
Row = tuple[bytes, bytes, int, int]
UNTIL = 10.0


def cluster() -> Cluster:
    """Three members, of which each serves one partition."""
    made, places = Cluster(["a:1"]), [0, 1, 2]
    members = [[name, 1, True, chr(name[0])] for name in MEMBERS]
    copies = [[place] for place in places]
    made.learn([5, members, [[0, 3, 0]], [], places, [1] * 3, [], copies])
    return made


class Pages:
    """What the members have, and what they were asked."""

    def __init__(self, rows: list[list[Row]]) -> None:
        self.rows = rows
        self.limits: list[int] = []

    def carried(self, steps: Steps[Any]) -> Any:
        try:
            step = next(steps)
            while True:
                assert isinstance(step, Ask)
                asked: Any = step.arguments
                step = steps.send(Value(self._page(step.member, *asked), 0.0))
        except StopIteration as end:
            return end.value

    def _page(
        self, member: bytes, _number: int, partitions: list[int], low: bytes, high: bytes | None,
        reverse: bool, limit: int, versions: bool, values: bool,
    ) -> list[Any]:  # fmt: skip
        [place] = partitions
        assert member == MEMBERS[place]
        self.limits.append(limit)
        rows = [
            row for row in self.rows[place] if low <= row[0] and (high is None or row[0] < high)
        ]
        rows.sort(reverse=reverse)
        shown = rows[:limit]
        wanted = (True, values, versions, versions)
        columns = [[row[at] for row in shown if wanted[at]] for at in range(4)]
        return [*columns, len(rows) > limit]


def scan(size: int, **options: Any) -> PagedScan:
    fields: dict[str, Any] = {"reverse": False, "versions": True} | options
    return PagedScan(cluster(), 16, range(3), b"", None, size=size, **fields)


def row(key: bytes, number: int) -> Row:
    return key, b"of " + key, 1 + number % 2, number


ROWS = [
    [row(b"a", 1), row(b"d", 2), row(b"e", 3)],
    [row(b"b", 7), row(b"c", 4), row(b"f", 5)],
    [],
]


def test_a_block_ends_where_a_member_may_have_more() -> None:
    pages, reads = Pages(ROWS), scan(2)
    blocks = [(pages.carried(reads.block(UNTIL)), reads.ended) for _ in range(4)]
    assert blocks == [
        ([row(b"a", 1), row(b"b", 7), row(b"c", 4)], False),
        ([row(b"d", 2)], False),
        ([row(b"e", 3), row(b"f", 5)], True),
        ([], True),
    ]
    assert pages.limits == [2, 2, 2, 8, 32], "a page of each, and larger ones of the rest"


def test_without_versions_a_block_has_pairs() -> None:
    pages = Pages(ROWS)
    found = pages.carried(scan(9, versions=False, reverse=True).block(UNTIL))
    assert found == sorted((one[:2] for part in ROWS for one in part), reverse=True)


@pytest.mark.slow
@given(
    st.lists(st.sets(st.binary(max_size=2), max_size=12), min_size=3, max_size=3),
    st.integers(1, 5),
    st.booleans(),
)
def test_blocks_are_all_rows_in_order_with_their_versions(
    keys: list[set[bytes]], size: int, reverse: bool
) -> None:
    placed = [keys[0], keys[1] - keys[0], keys[2] - keys[1] - keys[0]]
    rows = [[row(key, number) for number, key in enumerate(part)] for part in placed]
    pages, reads = Pages(rows), scan(size, reverse=reverse)
    found: list[Row] = []
    while block := pages.carried(reads.block(UNTIL)):
        found += block
        assert reads.ended is (len(found) == sum(map(len, rows)))
    assert reads.ended
    assert found == sorted((one for part in rows for one in part), reverse=reverse)


@pytest.mark.parametrize("versions", [False, True])
def test_what_is_empty_ends_at_once(versions: bool) -> None:
    pages, reads = Pages([[], [], []]), scan(3, versions=versions)
    assert pages.carried(reads.block(UNTIL)) == []
    assert reads.ended
