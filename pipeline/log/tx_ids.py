"""Which transaction made which update, as far as the log is kept: the data file does not know.

Invariants:

- Numbers of a partition ascend along the log, so a search in one list finds the run of a number.
- Memory: 32 bytes for each run of numbers of the wanted partitions.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable

from ...wal.format import Frame
from ...wal.records import (
    RecordType,
    UndecodableRecordError,
    corrupt_record,
    decode_tx_fields,
    split_records,
)
from .logs import Log

ID_SIZE = 16


class TxIds:
    """The transactions of some partitions, in a log up to a position."""

    def __init__(self, path: str, position: int, partitions: Collection[int]) -> None:
        """Read the log; raises ``CorruptLogError`` if it is damaged."""
        self._firsts = {partition: array("q") for partition in partitions}
        self._ends = {partition: array("q") for partition in partitions}
        self._ids = {partition: bytearray() for partition in partitions}
        log = Log(path)
        start, _ = log.extent(permissive=False)
        for part in log.slices(start, position, most_bytes=position):
            for frame in log.frames(part):
                assert isinstance(frame, Frame), "damage is refused"
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        try:
            for kind, _, body in split_records(frame.payload):
                if kind == RecordType.TX:
                    tx_id, _, flat, *_ = decode_tx_fields(body)
                    for partition, first, count in zip(
                        flat[::4], flat[2::4], flat[3::4], strict=True
                    ):
                        if partition in self._firsts:
                            self._firsts[partition].append(first)
                            self._ends[partition].append(first + count)
                            self._ids[partition] += tx_id
        except UndecodableRecordError as error:
            raise corrupt_record(error, frame.segment, frame.offset) from None

    def of(self, partition: int, numbers: Iterable[int]) -> list[bytes | None]:
        """Return the id of the transaction that made each update; None if the log has gone."""
        firsts, ends, ids = self._firsts[partition], self._ends[partition], self._ids[partition]
        found: list[bytes | None] = []
        for number in numbers:
            place = bisect_right(firsts, number) - 1
            known = place >= 0 and number < ends[place]
            found.append(bytes(ids[place * ID_SIZE : (place + 1) * ID_SIZE]) if known else None)
        return found
