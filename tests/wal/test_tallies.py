"""Counts over updates."""

from __future__ import annotations

from tidelog.wal.tallies import MapTally


def test_a_tally_counts_puts_deletes_and_bytes_in_parts_as_in_one() -> None:
    first, second = MapTally(), MapTally()
    first.add([b"a", b"bc"], [b"xyz", None])
    second.add([b"d"], [b""])
    first.merge(second)
    assert first == MapTally(puts=2, deletes=1, key_bytes=4, value_bytes=3)
