"""The index beside a sealed segment: which updates, times and transactions it holds.

Owns the file ``<number>.idx``, which can be deleted at any time: who misses it reads the segment.

Invariants:

- An index never denies what its segment holds; it may promise what the segment does not.
- A damaged index, one of another segment, or one of a later version counts as missing.

The file is the magic ``TLI\\x01``, a CRC-32C of what follows, and a msgpack array.  Transaction ids
are 16 bytes; the filter keeps the lowest and highest second half per first half, for automatic ids
are a prefix of 8 bytes per opening and a sequence number.

Left out: reading and writing the file, and when it is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgpack
from crc32c import crc32c

from .format import Frame
from .records import (
    AdmitRecord,
    Closed,
    CommitRecord,
    CommitUptoRecord,
    IngestRecord,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    Settled,
    SettleRecord,
    Supplied,
    SuppliedRecord,
    TxRecord,
    decode_payload,
)

INDEX_MAGIC = b"TLI\x01"
PREFIXES_MAX = 100_000

_HEAD = len(INDEX_MAGIC) + 4


def index_name(number: int) -> str:
    """Return the name of the index file of a segment."""
    return f"{number:016d}.idx"


@dataclass(slots=True, kw_only=True)
class SegmentIndex:
    """What a segment holds.

    ``counters`` maps a partition to its lowest and highest update number by epoch, as a list of
    (epoch, lowest, highest) in log order.  ``oldest`` and ``newest`` are commit times, None if
    nothing has a time.  ``prefixes`` is the filter, None if it says nothing.  ``log_id`` is that
    of the segment, empty if the index does not tell.  With more first halves of ids than
    ``prefixes_max`` the filter says that any id may be there.
    """

    number: int
    first_position: int
    end_position: int
    oldest: int | None = None
    newest: int | None = None
    counters: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    prefixes: dict[bytes, tuple[int, int]] | None = field(default_factory=dict)
    log_id: bytes = b""
    prefixes_max: int = field(default=PREFIXES_MAX, repr=False, compare=False)

    @classmethod
    def build(cls, number: int, first_position: int, frames: Iterable[Frame]) -> SegmentIndex:
        """Return the index of a segment from all of its frames."""
        index = cls(number=number, first_position=first_position, end_position=first_position)
        for frame in frames:
            for record in decode_payload(frame.payload):
                index.add(record)
            index.end_position = frame.end
        return index

    def add(self, record: Record) -> None:
        """Take one record into the index: its time, if its type has one, and what is numbered."""
        time: int | None = getattr(record, "time", None)
        if time is not None:
            self._add_time(time)
        match record:
            case TxRecord() | RollbackRecord():
                self.note_transaction(record.tx_id)
                self.note_runs(record.runs)
            case PrepareRecord():
                self.note_transaction(record.tx_id)
                self.note_runs((record.run,))
            case CommitRecord():
                self.note_transaction(record.tx_id)
                self.note_runs(
                    run for run in record.participants if run.partition in record.applied
                )
            case CommitUptoRecord():
                self.note_runs(Run(*upto, 1) for upto in record.rows)
            case IngestRecord():
                self.note_runs(record.runs)
            case SettleRecord() | SuppliedRecord():
                self._add_settled(record.transactions)
                self._add_closed(record.partition, record.closed)
            case AdmitRecord():
                for tx_id in record.dropped:
                    self.note_transaction(tx_id)
            case _:
                pass

    def _add_settled(self, transactions: Iterable[Settled | Supplied]) -> None:
        for one in transactions:
            if one.time:  # what was rolled back, or is pending, has none
                self._add_time(one.time)
            self.note_transaction(one.tx_id)
            self.note_runs((one.run,))

    def _add_closed(self, partition: int, closed: Iterable[Closed]) -> None:
        for epoch, first, count, _ in closed:
            self.note_runs((Run(partition, epoch, first, count),))

    def _add_time(self, time: int) -> None:
        self.oldest = time if self.oldest is None else min(self.oldest, time)
        self.newest = time if self.newest is None else max(self.newest, time)

    def note_transaction(self, tx_id: bytes) -> None:
        """Take the id of a transaction into the filter."""
        if self.prefixes is None:
            return
        prefix, number = tx_id[:8], int.from_bytes(tx_id[8:], "big")
        low, high = self.prefixes.get(prefix, (number, number))
        self.prefixes[prefix] = (min(low, number), max(high, number))
        if len(self.prefixes) > self.prefixes_max:
            self.prefixes = None

    def note_runs(self, runs: Iterable[Run]) -> None:
        """Take runs of numbers into the index."""
        for partition, epoch, first, count in runs:
            last = first + count - 1
            ranges = self.counters.setdefault(partition, [])
            for index, (known, low, high) in enumerate(ranges):
                if known == epoch:
                    ranges[index] = (epoch, min(low, first), max(high, last))
                    break
            else:
                ranges.append((epoch, first, last))

    def may_contain(self, tx_id: bytes) -> bool:
        """Return whether the segment may hold the transaction; false is certain."""
        if self.prefixes is None:
            return True
        low, high = self.prefixes.get(tx_id[:8], (1, 0))
        return low <= int.from_bytes(tx_id[8:], "big") <= high

    def covers(self, partition: int, first: int, last: int) -> bool:
        """Return whether the segment may hold one of the updates ``first`` to ``last``."""
        ranges = self.counters.get(partition, ())
        return any(low <= last and first <= high for _, low, high in ranges)

    def to_bytes(self) -> bytes:
        """Return the content of the index file."""
        body: bytes = msgpack.packb(
            (
                self.number,
                self.first_position,
                self.end_position,
                self.oldest,
                self.newest,
                {p: [n for three in ranges for n in three] for p, ranges in self.counters.items()},
                self.prefixes,
                self.log_id,
            )
        )
        return INDEX_MAGIC + crc32c(body).to_bytes(4, "little") + body

    @classmethod
    def from_bytes(cls, data: bytes) -> SegmentIndex | None:
        """Return the index in the content of an index file, or None if it is not whole."""
        body = data[_HEAD:]
        if data[:_HEAD] != INDEX_MAGIC + crc32c(body).to_bytes(4, "little"):
            return None
        return _decoded(msgpack.unpackb(body, strict_map_key=False))


def _decoded(body: list[Any]) -> SegmentIndex:
    number, first, end, oldest, newest, counters, prefixes = body[:7]
    log_id = body[7] if len(body) > 7 else b""
    return SegmentIndex(
        number=number,
        first_position=first,
        end_position=end,
        oldest=oldest,
        newest=newest,
        counters={
            p: list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
            for p, flat in counters.items()
        },
        prefixes=None if prefixes is None else {k: (v[0], v[1]) for k, v in prefixes.items()},
        log_id=log_id,
    )
