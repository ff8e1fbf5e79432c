"""Proofs about copies of a store: that they hold the same, and that the log leads on to the newer.

Both go by partitions: the same partitions of all copies are read by one task, so nothing is sent
between tasks, and only what differs is looked at key by key.

Invariants:

- What is compared is what a reader of that copy would get: the data file under the log behind it,
  every value checked.
- Keys are compared with update number, commit time and value, by namespace id, so that renames
  are not differences.
- Memory: ``verify`` holds the partitions that differ, one map at a time; ``replay_check`` the keys
  and values of the partitions of its task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from operator import add
from typing import Any, NamedTuple

from mmh3 import hash128

from ...affinity.errors import UsageError
from ...engine.data.stored import (
    CHECK_SIZE,
    PREFIX_SIZE,
    VALUE,
    pack_prefix,
    slice_of,
    split_key,
    version_of,
)
from ...wal.format import Frame
from ...wal.records import IngestRecord, RecordType
from ..base.vectors import Vector
from ..data import archives, snapshots
from ..data.archives import Archive
from ..data.snapshots import Part
from ..log import columns
from ..log.logs import Cut, Log, Slice, attached
from .runner import PlainRow, Runner

_UNCHECKED = slice(None, -CHECK_SIZE)


class Fingerprint(NamedTuple):
    """What a map has in one partition of one copy, in short: order does not matter."""

    rows: int
    sum: int


@dataclass(frozen=True, slots=True)
class _Copies:
    """The same partitions of several copies."""

    parts: tuple[Part, ...]


def verify(paths: Sequence[str], runner: Runner, *, tasks: int = 4) -> list[PlainRow]:
    """Return every key that the copies of a store do not all hold alike, in order.

    A row has ``partition``, ``namespace``, ``key``, and ``copies``: for each path in turn what it
    has, an update number or None.  Raises ``UsageError`` for copies of different stores,
    ``AlreadyOpenError`` for a store that is being written, and what damage raises.
    """
    if len(paths) < 2:
        raise UsageError("one copy alone cannot differ", hint="Name two or more.")
    pinned = [snapshots.pin(path) for path in paths]
    first, cut_of_first = pinned[0]
    for log, pin in pinned[1:]:
        _check_same_store(first, log)
        if len(pin.state.counters) != len(cut_of_first.state.counters):
            raise UsageError(f"{log.path} has another number of partitions than {first.path}")
    found = runner.run(_differences, _by_partitions(pinned, tasks))
    return sorted(found, key=lambda row: (row["partition"], row["namespace"], row["key"]))


def verify_archives(paths: Sequence[str], runner: Runner) -> list[PlainRow]:
    """Return the files of archives that are not what was written.

    A row has ``archive``, ``file``, and ``problem``.  Raises ``CorruptDataError`` if the account
    of an archive is damaged, and ``UsageError`` for what is not an archive.
    """
    work = []
    for path in paths:
        if not archives.is_archive(path):
            raise UsageError(
                f"{path} is not an archive", hint="Verify archives, and copies of a store, apart."
            )
        archive = archives.read_archive(path)
        alone = replace(archive, base=None, events=(), maps={})
        work += [replace(alone, stretches=(stretch,)) for stretch in archive.parts()]
    return list(runner.run(_damaged, work))


def _damaged(archive: Archive) -> Iterator[PlainRow]:
    for file, problem in archives.damaged_files(archive):
        yield {"archive": archive.path, "file": file, "problem": problem}


def _check_same_store(first: Log, other: Log) -> None:
    if other.store_id != first.store_id:
        raise UsageError(
            f"{other.path} is a copy of store {other.store_id.hex()}, {first.path} one of "
            f"{first.store_id.hex()}",
            hint="Only copies of one store can be compared: update numbers are its own.",
        )


def _by_partitions(pinned: Sequence[tuple[Log, Cut]], tasks: int) -> list[_Copies]:
    """Return tasks that each compare some partitions of all copies."""
    everywhere = list(range(len(pinned[0][1].state.counters)))
    groups = [snapshots.parts(log.path, cut, everywhere, None, tasks) for log, cut in pinned]
    return [_Copies(parts) for parts in zip(*groups, strict=True)]


def _differences(copies: _Copies) -> Iterator[PlainRow]:
    """Yield the keys that differ: first by fingerprints, then by keys if those differ."""
    prints = [_fingerprints(part) for part in copies.parts]
    places = {place for found in prints for place in found}
    for place in sorted(places):
        if len({found.get(place) for found in prints}) > 1:
            yield from _compare(copies, *place)


def _fingerprints(part: Part) -> dict[tuple[int, int], Fingerprint]:
    """Return a fingerprint for each partition and namespace that has data."""
    found: dict[tuple[int, int], Fingerprint] = {}
    for partition, namespace, block in part.pairs():
        rows, total = found.get((partition, namespace), Fingerprint(0, 0))
        keys, stored = zip(*block, strict=True)
        # Without the check, which values get on their way into the data file only.
        hashes = map(hash128, map(add, keys, map(slice_of, stored, repeat(_UNCHECKED))))
        found[partition, namespace] = Fingerprint(rows + len(block), sum(hashes, total))
    return found


def _compare(copies: _Copies, partition: int, namespace: int) -> Iterator[PlainRow]:
    """Yield the keys of one map in one partition that are not the same everywhere."""
    pairs = [_pairs_of(part, partition, namespace) for part in copies.parts]
    for full_key in {key for found in pairs for key in found}:
        held = [found.get(full_key) for found in pairs]
        if len(set(held)) > 1:
            names = (part.maps.get(namespace) for part in copies.parts)
            yield {
                "partition": partition,
                "namespace": next(filter(None, names)),
                "key": full_key[PREFIX_SIZE:],
                "copies": [None if one is None else version_of(one)[1] for one in held],
            }


def _pairs_of(part: Part, partition: int, namespace: int) -> dict[bytes, bytes]:
    """Return the pairs of one map in one partition, without their checks."""
    name = part.maps.get(namespace)
    maps = {} if name is None else {namespace: name}
    one = Part(part.path, part.position, (partition,), maps)
    return {
        key: stored[_UNCHECKED] + bytes(CHECK_SIZE)
        for _, _, block in one.pairs()
        for key, stored in block
    }


# ---------------------------------------------------------------------------------------- replay


@dataclass(frozen=True, slots=True)
class _Replay:
    """Some partitions of an older and of a newer copy, and the log that leads there."""

    copies: _Copies
    slices: tuple[Slice, ...]
    low: Vector
    high: Vector


def replay_check(older: str, newer: str, runner: Runner, *, tasks: int = 4) -> list[PlainRow]:
    """Return every key for which the older copy and the changes since do not give the newer one.

    A row has ``partition``, ``namespace``, ``key``, ``replayed`` and ``found``: update numbers, or
    None for an absent key.  Raises ``HistoryTruncatedError`` if the log of the newer copy does
    not go back to the older one, and as ``verify`` does.
    """
    before, after = snapshots.pin(older), snapshots.pin(newer)
    _check_same_store(before[0], after[0])
    log, end = after
    if before[0].history_id != log.history_id:
        raise UsageError(
            f"{older} and {newer} have different histories: neither continues the other",
            hint="Name two states of one history, the older one first.",
        )
    low, high = before[1].vector(), end.vector()
    end.check_reaches(low, newer)
    start = log.before(low).position
    slices = tuple(log.slices(start, end.position, most_bytes=1 << 40))
    work = [_Replay(copies, slices, low, high) for copies in _by_partitions((before, after), tasks)]
    found = runner.run(_replayed, work)
    return sorted(found, key=lambda row: (row["partition"], row["namespace"], row["key"]))


def _replayed(work: _Replay) -> Iterator[PlainRow]:
    """Replay some partitions, and yield what differs."""
    older, newer = work.copies.parts
    live = newer.maps
    state = {
        key: (version_of(stored)[1], slice_of(stored, VALUE))
        for _, namespace, block in older.pairs()
        for key, stored in block
        if namespace in live
    }
    for full_key, counter, value in _updates(work):
        if value is None:
            state.pop(full_key, None)
        else:
            state[full_key] = counter, value
    for _, _, block in newer.pairs():
        for key, stored in block:
            here = version_of(stored)[1], slice_of(stored, VALUE)
            there = state.pop(key, None)
            if here != there:
                yield _difference(live, key, None if there is None else there[0], here[0])
    for key, (counter, _) in state.items():
        yield _difference(live, key, counter, None)


def _difference(
    maps: dict[int, str], full_key: bytes, replayed: int | None, found: int | None
) -> PlainRow:
    partition, namespace, key = split_key(full_key)
    row: dict[str, Any] = {"partition": partition, "namespace": maps[namespace], "key": key}
    return {**row, "replayed": replayed, "found": found}


def _updates(work: _Replay) -> Iterator[tuple[bytes, int, bytes | None]]:
    """Yield the updates between the two copies as (full key, number, value or None)."""
    _, newer = work.copies.parts
    wanted, live = frozenset(newer.partitions), newer.maps
    log = Log(newer.path)
    for part in work.slices:
        for frame in log.frames(part):
            assert isinstance(frame, Frame), "damage is refused before"
            for record in columns.records(frame, (RecordType.TX, RecordType.INGEST)):
                if isinstance(record, IngestRecord):
                    _check_attached(work, record)
                    continue
                for partition, _, counter, namespace, key, value in record.updates():
                    here = partition in wanted and namespace in live
                    if here and work.low[partition][1] < counter <= work.high[partition][1]:
                        yield pack_prefix(partition, namespace) + key, counter, value


def _check_attached(work: _Replay, record: IngestRecord) -> None:
    """Raise ``HistoryTruncatedError`` if rows that are still there came from files meanwhile."""
    _, newer = work.copies.parts
    between = any(
        work.low[run.partition][1] < run.first <= work.high[run.partition][1] for run in record.runs
    )
    if between and record.namespace in newer.maps:
        raise attached(newer.path, newer.maps[record.namespace], record)
