"""Logs in memory, built frame by frame with the functions of ``wal.format`` and ``wal.records``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.affinity.partitions import Space, one_space
from tidelog.wal.format import (
    HEADER_SIZE,
    SEAL_MAGIC,
    Frame,
    SegmentHeader,
    encode_frame,
    log_seed,
    segment_name,
)
from tidelog.wal.reader import Scan
from tidelog.wal.records import (
    IdleRecord,
    NamespaceRecord,
    Record,
    Run,
    SealRecord,
    StateRecord,
    TxRecord,
    encode_record,
    encode_seal,
)
from tidelog.wal.tail import End

LOG_ID = bytes(range(16))
STORE_ID = b"store-id-16bytes"
HISTORY_ID = b"history-16-bytes"
BOOT = b"boot-one"


class MemoryFile:
    """An open file: keeps its bytes when its name is given to others."""

    def __init__(self, data: bytearray, opened: list[MemoryFile]) -> None:
        self.data = data
        self.closed = False
        opened.append(self)

    def read(self, offset: int, length: int) -> bytes:
        assert not self.closed
        assert offset >= 0
        return bytes(self.data[offset : offset + length])

    def size(self) -> int:
        assert not self.closed
        return len(self.data)

    def close(self) -> None:
        self.closed = True


class MemoryDirectory:
    """Files by name; what a live writer does meanwhile can be put into the two hooks."""

    def __init__(self, files: dict[str, bytearray] | None = None) -> None:
        self.files = files if files is not None else {}
        self.opened: list[MemoryFile] = []
        self.before_open: Callable[[str], None] = lambda name: None
        self.before_names: Callable[[], None] = lambda: None

    def names(self) -> list[str]:
        self.before_names()
        return sorted(self.files)

    def open_read(self, name: str) -> MemoryFile:
        self.before_open(name)
        if name not in self.files:
            raise FileNotFoundError(name)
        return MemoryFile(self.files[name], self.opened)

    def segment(self, number: int) -> bytearray:
        return self.files[segment_name(number)]

    def copy(self) -> MemoryDirectory:
        return MemoryDirectory({name: bytearray(data) for name, data in self.files.items()})

    @property
    def left_open(self) -> int:
        return sum(not file.closed for file in self.opened)


@dataclass
class LogBuilder:
    """Writes a log as the writer does, but ``synced`` and borders are in the test's hand."""

    log_id: bytes = LOG_ID
    first_position: int = 0
    partitions: int = 2
    spaces: tuple[Space, ...] = ()

    def __post_init__(self) -> None:
        self.directory = MemoryDirectory()
        self.frames: list[Frame] = []
        self.counters = [0] * self.partitions
        self.namespaces: dict[int, NamespaceRecord] = {}
        self.transactions = 0
        self.position = self.first_position
        self.synced = self.first_position
        self.number = 0
        self.rotate()

    @property
    def offset(self) -> int:
        """The file offset of the end of the log."""
        return HEADER_SIZE + self.position - self.base

    def rotate(self, number: int | None = None, *, sealed: bool = True) -> None:
        """Begin the next segment, with its header and STATE frame, and seal the one before.

        ``sealed`` false is a crash that came before the seal.
        """
        before, offset = self.number, self.number and self.offset
        self.number = number or self.number + 1
        self.base = self.synced = self.position
        header = SegmentHeader(
            log_id=self.log_id,
            store_id=STORE_ID,
            history_id=HISTORY_ID,
            number=self.number,
            first_position=self.position,
        )
        self.directory.files[segment_name(self.number)] = bytearray(header.to_bytes())
        self.add(self.state())
        self.synced = self.position
        if before and sealed:
            seal = SealRecord(number=self.number, first_position=self.base, end=self.position)
            data = encode_frame(
                log_seed(self.log_id), self.base, self.base, encode_seal(seal), SEAL_MAGIC
            )
            self.directory.segment(before)[offset : offset + len(data)] = data

    def state(self) -> StateRecord:
        counters = list(self.counters)
        return StateRecord(
            time=1_000 + self.transactions,
            namespaces=list(self.namespaces.values()),
            epochs=[1] * self.partitions,
            lwms=counters,
            hwms=counters,
            ranges={},
            spaces=self.spaces,
        )

    def grow(self, partitions: int) -> None:
        """Begin a segment of a store that has got one more space."""
        before = self.spaces or one_space(self.partitions)
        self.spaces = (*before, Space(self.partitions, partitions))
        self.partitions += partitions
        self.counters += [0] * partitions
        self.rotate()

    def add(self, *records: Record, payload: bytes | None = None) -> Frame:
        """Append one frame and put it over whatever lies at the end of the log."""
        self.namespaces |= {r.id: r for r in records if isinstance(r, NamespaceRecord)}
        payload = payload or b"".join(encode_record(record) for record in records)
        frame = Frame(self.position, self.synced, payload, self.number, self.offset)
        data = encode_frame(log_seed(self.log_id), self.position, self.synced, payload)
        segment = self.directory.segment(self.number)
        segment[frame.offset : frame.offset + len(data)] = data
        self.position += len(data)
        self.frames.append(frame)
        return frame

    def tx(self, partition: int = 0, count: int = 1, value: bytes = b"value") -> Frame:
        """Append a transaction of ``count`` updates."""
        return self.add(self.tx_record(partition, count, value))

    def tx_record(self, partition: int = 0, count: int = 1, value: bytes = b"value") -> TxRecord:
        first = self.counters[partition] + 1
        self.counters[partition] += count
        self.transactions += 1
        return TxRecord(
            tx_id=tx_id(self.transactions),
            time=1_000 + self.transactions,
            runs=(Run(partition, 1, first, count),),
            namespaces=16,
            keys=[b"key-%d" % (first + index) for index in range(count)],
            values=[value] * count,
        )

    def sync(self) -> None:
        """Note that everything so far is durable; the next frame says so."""
        self.synced = self.position

    def committed(self, count: int, partition: int = 0, value: bytes = b"value") -> None:
        """Append ``count`` transactions, each synced before the next one."""
        for _ in range(count):
            self.tx(partition, value=value)
            self.sync()

    def idle(self) -> Frame:
        """Append the small frame that only carries a newer ``synced``."""
        return self.add(IdleRecord())

    def pad(self, data: bytes) -> None:
        """Put bytes behind the end of the log."""
        self.directory.segment(self.number)[self.offset :] = data


def tx_id(number: int, boot: bytes = BOOT) -> bytes:
    """The id that the builder gives to its transaction of that number, from 1."""
    return boot + number.to_bytes(8, "big")


class Scanned(NamedTuple):
    """The frames of a scan and its end."""

    frames: list[Frame]
    end: End


def scanned(
    directory: MemoryDirectory,
    start: int | None = None,
    *,
    exact: bool = False,
    durable: int = 0,
    log_ids: Sequence[tuple[bytes, int]] | None = None,
    wanted: Callable[[int], bool] | None = None,
    alone: bool = False,
) -> Scanned:
    """Run a scan to its end, and see that it closes what it opens."""
    scan = Scan(
        directory,
        start,
        exact=exact,
        durable=durable,
        log_ids=log_ids,
        wanted=wanted,
        alone=alone,
    )
    frames = list(scan)
    assert not directory.left_open
    return Scanned(frames, scan.end)
