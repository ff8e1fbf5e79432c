"""What logs hold: records, updates, sizes of transactions, gaps, hot keys.

A task reads one slice of a log and returns counts of it, which are merged as they come.

Invariants:

- Any number of tasks gives the same rows, but for hot keys if there are too many keys to count
  each: their counts then differ within the error that stands beside them.
- Updates of internal maps are records, and use up numbers; they are not updates of a map, belong to
  no transaction, and no hot key is one of theirs.
- Memory grows with segments, maps, gaps and runs of closed numbers, not with the log.

Left out: values, and what lies behind the durable end of a log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import repeat

from ...affinity.errors import UsageError
from ...checkpoints.replay import FIRST_NAMESPACE
from ...tx.counter import PartitionUpdateCounter
from ...wal.format import Frame
from ...wal.records import (
    RECORD_OVERHEAD,
    NumberedRecord,
    RecordType,
    Run,
    TxRecord,
    UndecodableRecordError,
    corrupt_record,
    decode_record,
    split_records,
)
from ...wal.tallies import MapTally
from ..base.sketches import HeavyHitters, Sizes
from ..log.columns import record_name
from ..log.logs import Log, Slice
from .runner import PlainRow, Runner

KEYS_COUNTED = 4096
"""Twice as many keys are counted exactly; beyond that the error is below a 4,096th of updates."""

_NO_LIMIT = 1 << 62

_ROWLESS = {int(RecordType.ROLLBACK): "rollback", int(RecordType.INGEST): "load"}


@dataclass(slots=True)
class _Segment:
    """Counts of one segment."""

    records: Counter[int] = field(default_factory=Counter)
    bytes: Counter[int] = field(default_factory=Counter)
    maps: dict[int, MapTally] = field(default_factory=dict)

    def merge(self, other: _Segment) -> None:
        self.records.update(other.records)
        self.bytes.update(other.bytes)
        for number, tally in other.maps.items():
            self.maps.setdefault(number, MapTally()).merge(tally)


@dataclass(slots=True)
class _Numbers:
    """Update numbers by partition, as stretches (first, behind the last) in the order seen."""

    seen: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, run: Run) -> None:
        """Take a run in; one that goes on from the last stretch makes it longer."""
        stretches = self.seen.setdefault(run.partition, [])
        first, stop = run.first, run.first + run.count
        if stretches and stretches[-1][1] == first:
            first, _ = stretches.pop()
        stretches.append((first, stop))

    def merge(self, other: _Numbers) -> None:
        for partition, stretches in other.seen.items():
            for first, stop in stretches:
                self.add(Run(partition, 0, first, stop - first))

    def counters(self) -> Iterator[tuple[int, PartitionUpdateCounter]]:
        """Yield each partition with the union of its stretches."""
        for partition in sorted(self.seen):
            counter = PartitionUpdateCounter(max_ranges=_NO_LIMIT)
            for first, stop in self.seen[partition]:
                if first < stop:
                    counter.update(first - 1, stop - first)
            yield partition, counter


@dataclass(slots=True)
class _Node:
    """Counts of one log."""

    hot: HeavyHitters[tuple[int, bytes]]
    updates: Sizes = field(default_factory=Sizes)
    bytes: Sizes = field(default_factory=Sizes)
    numbers: _Numbers = field(default_factory=_Numbers)
    rowless: dict[int, _Numbers] = field(
        default_factory=lambda: {kind: _Numbers() for kind in _ROWLESS}
    )
    """Numbers without updates in the log, by the type of their record."""

    def merge(self, other: _Node) -> None:
        self.hot.merge(other.hot)
        self.updates.merge(other.updates)
        self.bytes.merge(other.bytes)
        self.numbers.merge(other.numbers)
        for kind, numbers in self.rowless.items():
            numbers.merge(other.rowless[kind])


def wal_stats(
    paths: Sequence[str],
    runner: Runner,
    *,
    top: int = 10,
    tasks: int = 4,
    keys_counted: int = KEYS_COUNTED,
) -> dict[str, list[PlainRow]]:
    """Return tables of counts over the durable part of logs, each of them read by ``tasks``.

    ``records`` by log, segment and type; ``maps`` by log, segment and map; ``transactions`` by log:
    how many updates and bytes they have; ``ranges`` of numbers by log and partition: closed by a
    ``rollback``, those of a ``load``, or a ``gap`` between the first number seen and the last one;
    ``hot_keys`` by log: the ``top`` keys written most often, at least ``writes`` times and at most
    ``error`` times more, and a row without a key that says the same of every other one.
    ``keys_counted`` is the capacity of ``HeavyHitters``.  Raises ``UsageError`` for a path without
    a log, ``CorruptLogError``.
    """
    if len(set(paths)) < len(paths):
        raise UsageError("a log is named twice", hint="Name each log once.")
    slices: list[Slice] = []
    names: dict[str, dict[int, str]] = {}
    for path in paths:
        log = Log(path)
        start, end = log.extent(permissive=False)
        slices += log.slices(start, end, most_bytes=max(-(-(end - start) // tasks), 1))
        names[path] = log.names(log.newest(end=end))
    capacity = max(keys_counted, top)
    segments: dict[tuple[str, int], _Segment] = {}
    nodes = {path: _Node(HeavyHitters(capacity)) for path in paths}
    for path, number, segment, node in runner.run(partial(_count, capacity), slices):
        segments.setdefault((path, number), _Segment()).merge(segment)
        nodes[path].merge(node)
    return {
        "records": [
            {"node": path, "segment": number, **row}
            for (path, number), segment in segments.items()
            for row in _records(segment)
        ],
        "maps": [
            {"node": path, "segment": number, **row}
            for (path, number), segment in segments.items()
            for row in _maps(segment, names[path])
        ],
        "transactions": [{"node": p, **row} for p, node in nodes.items() for row in _sizes(node)],
        "ranges": [{"node": p, **row} for p, node in nodes.items() for row in _ranges(node)],
        "hot_keys": [
            {"node": p, **row} for p, node in nodes.items() for row in _hot(node, top, names[p])
        ],
    }


# ---------------------------------------------------------------------------------------- tasks


def _count(capacity: int, part: Slice) -> Iterator[tuple[str, int, _Segment, _Node]]:
    """Count what a slice holds."""
    segment, node = _Segment(), _Node(HeavyHitters(capacity))
    with closing(Log(part.path).frames(part)) as frames:
        for frame in frames:
            assert isinstance(frame, Frame), "damage is refused before"
            _add_frame(segment, node, frame)
    yield part.path, part.segment, segment, node


def _add_frame(segment: _Segment, node: _Node, frame: Frame) -> None:
    try:
        for kind, flags, body in split_records(frame.payload):
            size = RECORD_OVERHEAD + len(body)
            segment.records[kind] += 1
            segment.bytes[kind] += size
            if kind not in (RecordType.TX, RecordType.ROLLBACK, RecordType.INGEST):
                continue
            record = decode_record(kind, flags, body)
            assert isinstance(record, NumberedRecord)
            for run in record.runs:
                node.numbers.add(run)
                if kind in node.rowless:
                    node.rowless[kind].add(run)
            if isinstance(record, TxRecord):
                _add_transaction(segment, node, record, size)
    except UndecodableRecordError as error:
        raise corrupt_record(error, frame.segment, frame.offset) from None


def _add_transaction(segment: _Segment, node: _Node, tx: TxRecord, size: int) -> None:
    updates = 0
    for number, keys, values in _by_map(tx):
        updates += len(keys)
        segment.maps.setdefault(number, MapTally()).add(keys, values)
        node.hot.add(zip(repeat(number), keys, strict=False))
    if updates:
        node.updates.add(updates)
        node.bytes.add(size)


def _by_map(tx: TxRecord) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    """Yield each map that a transaction writes, with keys and values; internal ones left out."""
    ids = tx.namespaces
    if isinstance(ids, int):
        if ids >= FIRST_NAMESPACE:
            yield ids, tx.keys, tx.values
        return
    found: dict[int, tuple[list[bytes], list[bytes | None]]] = {}
    for number, key, value in zip(ids, tx.keys, tx.values, strict=True):
        if number >= FIRST_NAMESPACE:
            keys, values = found.setdefault(number, ([], []))
            keys.append(key)
            values.append(value)
    for number, (keys, values) in found.items():
        yield number, keys, values


# ---------------------------------------------------------------------------------------- rows


def _records(segment: _Segment) -> Iterator[PlainRow]:
    for kind in sorted(segment.records):
        yield {
            "record_type": record_name(kind),
            "records": segment.records[kind],
            "bytes": segment.bytes[kind],
        }


def _maps(segment: _Segment, names: dict[int, str]) -> Iterator[PlainRow]:
    for number in sorted(segment.maps):
        yield {"namespace": names.get(number, str(number)), **asdict(segment.maps[number])}


def _sizes(node: _Node) -> Iterator[PlainRow]:
    for measure, sizes in (("updates", node.updates), ("bytes", node.bytes)):
        if sizes.by_bits:
            yield {
                "measure": measure,
                "transactions": sizes.by_bits.total(),
                "total": sizes.total,
                "median": sizes.percentile(50),
                "p99": sizes.percentile(99),
                "largest": sizes.largest,
                "histogram": [
                    {"at_most": most, "transactions": count} for most, count in sizes.histogram()
                ],
            }


def _ranges(node: _Node) -> Iterator[PlainRow]:
    found = []
    for number, numbers in node.rowless.items():
        for partition, counter in numbers.counters():
            below = [(0, counter.lwm)] if counter.lwm else []
            for start, count in [*below, *counter.out_of_order]:
                found.append((partition, start + 1, start + count, _ROWLESS[number]))
    for partition, counter in node.numbers.counters():
        # What lies below the first number seen begins at 1, where no other gap can.
        gaps = [gap for gap in counter.missing if gap[0] > 1]
        found += [(partition, first, last, "gap") for first, last in gaps]
    for partition, first, last, kind in sorted(found):
        count = last - first + 1
        yield {"partition": partition, "kind": kind, "first": first, "last": last, "count": count}


def _hot(node: _Node, top: int, names: dict[int, str]) -> Iterator[PlainRow]:
    error = node.hot.error
    counts = sorted(node.hot.counts.items(), key=lambda item: (-item[1], item[0]))
    for (number, key), writes in counts[:top]:
        namespace = names.get(number, str(number))
        yield {"namespace": namespace, "key": key, "writes": writes, "error": error}
    most = error + (counts[top][1] if top < len(counts) else 0)
    if most:
        yield {"namespace": None, "key": None, "writes": 0, "error": most}
