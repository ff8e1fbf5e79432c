"""What a log that goes on from itself may not say."""

from __future__ import annotations

from support.logs import LogBuilder
from tidelog.checkpoints.continuity import Continuity
from tidelog.wal.records import RollbackRecord, Run


def test_the_time_of_a_log_may_begin_at_zero_and_does_not_fall() -> None:
    log = LogBuilder()
    wrong: list[str] = []
    continuity = Continuity(wrong.append)
    (frame,) = log.frames
    continuity.take(frame, log.state())
    for number, time in enumerate((0, 0, 7, 7, 6, 7), start=1):
        run = Run(0, 1, number, 1)
        continuity.take(frame, RollbackRecord(tx_id=bytes(16), time=time, reason="", runs=(run,)))
    assert wrong == [f"segment 1, offset {frame.offset}: commit time 6 after 7 in partition 0"]
