"""The newest segment is lost after a power cut at every operation of a store that changes segments.

Whoever opens the store then is told, or finds all that was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.scripts import SMALL_PIECES
from tidelog.affinity.errors import CorruptLogError
from tidelog.engine.api.database import session_of
from tidelog.engine.api.open import open_with
from tidelog.testing import FaultyDisk, crash_points, simulated
from tidelog.wal.format import segment_name
from tidelog.wal.segments import segment_numbers

PATH = "/store"
VALUE = b"v" * 45_000
PARTS = 2


def scenario(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
    """Fill segments with durable puts; some of them go into the data file, others do not."""
    db = open_with(
        simulated(1, disk, limits=SMALL_PIECES), PATH, partitions=1, segment_bytes=1, retain_bytes=1
    )
    try:
        table = db.map("m")
        for number in range(12):
            table[b"%d" % number] = VALUE
            acknowledge((b"%d" % number, session_of(db).store.writer.segment.number))
            if number == 7:
                db.checkpoint()
    finally:
        session_of(db).abandon()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_newest_segment_that_had_something_is_never_taken_for_a_new_one(part: int) -> None:
    refused = opened = 0
    for point in crash_points(scenario, step=6 * PARTS, first=part, outcomes=("lost",)):
        folder = f"{PATH}/wal"
        numbers = segment_numbers(point.disk.directory(folder)) if point.disk.kind(folder) else []
        if len(numbers) < 2:
            continue
        newest = f"{folder}/{segment_name(numbers[-1])}"
        acknowledged = [item for item in point.acknowledged if isinstance(item, tuple)]
        for size in (None, 0, 128):
            disk = point.disk.copy()
            if size is None:
                disk.directory(folder).unlink(segment_name(numbers[-1]))
            else:
                disk.write_bytes(newest, disk.read_bytes(newest)[:size])
            try:
                db = open_with(simulated(2, disk, limits=SMALL_PIECES), PATH)
            except CorruptLogError:
                refused += 1
                continue
            opened += 1
            found = set(db.map("m")) if acknowledged else set()
            session_of(db).abandon()
            assert found >= {key for key, _ in acknowledged}, (point, size)
    assert refused > 15
    assert opened >= 1
