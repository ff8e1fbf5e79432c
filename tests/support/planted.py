"""Bugs that are planted by replacing one function, to see that the suites catch them.

Each one is a mistake that somebody could make, or has made in other engines.  Nothing in the
product knows of them.  ``hunt`` runs the suite that is expected to catch a bug and counts the
cases that it took; ``cases`` is what it may take: half as much again as when it was measured, or
all cases of the suite where that is less.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tidelog.affinity.errors import CorruptLogError
from tidelog.checkpoints.replay import State
from tidelog.engine.api.database import session_of
from tidelog.engine.commit.commit_log import CommitLog
from tidelog.engine.commit.committer import Committer
from tidelog.engine.data.stored import split_key, version_of
from tidelog.engine.files import recovery
from tidelog.engine.files.log_source import find_log
from tidelog.engine.store import replaying
from tidelog.engine.store.data_file_growth import MapGrowth
from tidelog.engine.store.known_outcomes import KnownOutcomes
from tidelog.testing import FaultyDisk
from tidelog.testing.crash import recorded
from tidelog.tx.counter import PartitionUpdateCounter
from tidelog.wal import reader, segments, writer
from tidelog.wal.format import FRAME_OVERHEAD, HEADER_SIZE, Frame, parse_frame_header
from tidelog.wal.ports import Directory
from tidelog.wal.reader import Scan
from tidelog.wal.records import EpochRecord, TxRecord, decode_payload
from tidelog.wal.segments import Segment, open_segment, segment_numbers
from tidelog.wal.tail import End
from tidelog.wal.writer import LogWriter

from .crashes import Figures, cut_everywhere, fail_everywhere, scenario_of
from .pipelines import rows
from .promises import (
    Promise,
    check_recovered,
    find_world,
    opened,
    promise_of,
    shown,
    stored_pairs,
)
from .scripts import PARTITIONS, PATH, BrokenInvariant, Run, Step, Writer, broken, full_script

Suite = Callable[[Figures], None]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A bug: ``owner.attribute`` is replaced, ``suite`` catches it within ``cases`` cases.

    ``names`` are the invariants under which it may show.
    """

    name: str
    owner: object
    attribute: str
    replacement: Callable[..., Any]
    suite: Suite
    names: frozenset[str]
    cases: int


def hunt(bug: Planted) -> tuple[str, int]:
    """Plant a bug and run its suite; return the broken invariant and the number of cases."""
    figures = Figures()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bug.owner, bug.attribute, bug.replacement)
        try:
            bug.suite(figures)
        except BrokenInvariant as found:
            return found.name, figures.points
    raise AssertionError(f"{bug.name} was not caught in {figures.points} cases")


# ------------------------------------------------------------------ suites


def power_cuts(figures: Figures) -> None:
    """Cut the power at every seventh operation of the script."""
    cut_everywhere(full_script(), outcomes=("lost", "reordered"), step=7, figures=figures)


def checkpoints(figures: Figures) -> None:
    """Cut the power at every operation from the first checkpoint on."""
    steps = full_script()
    changing = [op for op in recorded(scenario_of(steps)) if op.changes]
    first = [op.kind for op in changing].index("commit")
    cut_everywhere(steps, outcomes=("lost",), first=first, figures=figures)


def full_disks(figures: Figures) -> None:
    """Let every fifth operation find the disk full."""
    fail_everywhere(full_script(), step=5, faults=("ENOSPC",), figures=figures)


def io_errors(figures: Figures) -> None:
    """Let every thirteenth operation of the script fail."""
    fail_everywhere(full_script(), step=13, figures=figures)


def damage(figures: Figures) -> None:
    """Flip a bit in each frame that a recovery reads: it refuses, where the frame was durable."""
    disk = FaultyDisk(0)
    run = Run(disk)
    steps = Writer()
    steps.add("map", name="a")
    for key in range(20):
        steps.add("put", changes=steps.changes("a", range(key, key + 1)))
    run.play([Step(kind="open"), *steps.steps])
    promise = promise_of(run)
    durable = session_of(run.store).store.writer.announced
    session_of(run.store).abandon()
    image = disk.crash("lost")
    frames = [f for f in Scan(image.directory(f"{PATH}/wal"), 0) if f.end <= durable]
    assert len(frames) > 10
    for frame in frames:
        hurt = image.copy()
        path = f"{PATH}/wal/{frame.segment:016d}.log"
        # The last byte is mostly one of a value, where nothing but the CRC can tell.
        hurt.flip_bit(path, 8 * (frame.offset + FRAME_OVERHEAD + len(frame.payload)) - 3)
        before = hurt.read_bytes(path)
        figures.points += 1
        try:
            _, db = opened(hurt, 2, "memory")
        except BrokenInvariant as refused:
            if not isinstance(refused.__context__, CorruptLogError):
                raise
            if hurt.read_bytes(path) != before:
                broken("I-6", "a log that is refused was changed")
        else:
            with_damage = shown(db)
            session_of(db).abandon()
            find_world(with_damage, promise)
            broken("I-6", f"damage at {frame.position} was taken for a torn tail")


def stale_frames(figures: Figures) -> None:
    """Let a later frame of a cut tail lie just where the new frames end.

    The first of two relaxed commits is torn.  The recovery's own frame and one commit then take
    as many bytes as it had, and the power is cut again.
    """
    for more in range(-30, 31):
        disk = FaultyDisk(0)
        run = Run(disk)
        run.play([Step(kind="open"), Step(kind="map", name="a")])
        run.play([_relaxed(1, 10), _relaxed(2, 200), _relaxed(3, 50)])
        small, torn_bytes = disk.trace[-3].size_bytes, disk.trace[-2].size_bytes
        session_of(run.store).abandon()
        torn = disk.crash("kept")
        frames = list(Scan(torn.directory(f"{PATH}/wal"), 0))
        assert torn_bytes == FRAME_OVERHEAD + len(frames[-2].payload)
        path = f"{PATH}/wal/{frames[-2].segment:016d}.log"
        torn.flip_bit(path, 8 * (frames[-2].offset + FRAME_OVERHEAD))
        figures.points += 1
        _, db = opened(torn, 2, "memory")
        added = [op for op in torn.trace if op.kind == "write" and op.path == path][-1].size_bytes
        db.map("a")[b"new"] = bytes(10 + torn_bytes - added - small + more)
        world, pairs = shown(db), stored_pairs(db)
        session_of(db).abandon()
        given = [((split_key(key)[0], *version_of(value)[:2]), key) for key, value in pairs.items()]
        owners = [((p, e, n, n), 0) for (p, e, n), _ in given]
        check_recovered(torn.crash("lost"), Promise([world], 0, 0, owners, [0] * PARTITIONS))


def _relaxed(number: int, size: int) -> Step:
    changes = Writer(number).changes("a", range(number, number + 1), size)
    return Step(kind="commit", durability="none", changes=changes)


def gaps(figures: Figures) -> None:
    """Damage each commit in the log of a store; each partition is read up to its gap.

    The engine itself logs in order: what makes a gap is a frame that cannot be read any more, and
    whoever reads on behind it (mode PERMISSIVE) trusts the counters to tell how far.
    """
    with tempfile.TemporaryDirectory(prefix="tidelog-gaps-") as folder:
        store, hurt = Path(folder, "store"), Path(folder, "hurt")
        keys = [b"%d" % number for number in range(24)]
        with tidelog.open(store, partitions=2) as db:
            numbers = db.map("numbers")
            for key in keys:
                numbers[key] = key
        whole = {(row["partition"], row["counter"]): row["key"] for row in rows(store, "changes")}
        assert sorted(whole.values()) == sorted(keys)
        frames = [frame for frame in find_log(str(store)).scan() if b"numbers" not in frame.payload]
        for frame in frames:
            lost = [place for place, key in whole.items() if _names_key(frame, key)]
            if len(lost) == 1:
                figures.points += 1
                shutil.copytree(store, hurt)
                _flip(hurt / "wal" / f"{frame.segment:016d}.log", frame.offset + FRAME_OVERHEAD)
                found = {
                    (r["partition"], r["counter"]) for r in rows(hurt, "changes", mode="PERMISSIVE")
                }
                ((partition, gap),) = lost
                if found != {(p, n) for p, n in whole if p != partition or n < gap}:
                    broken("I-10", f"without number {gap} of {partition}: {sorted(found)}")
                shutil.rmtree(hurt)


def _names_key(frame: Frame, key: bytes) -> bool:
    return any(isinstance(r, TxRecord) and key in r.keys for r in decode_payload(frame.payload))


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


# ------------------------------------------------------------------ bugs


def _no_sync(self: CommitLog, end: int) -> None:
    return None


def _ignoring_sync(self: LogWriter) -> int:
    try:
        self._file.sync()
    except OSError:
        self.synced = self.position  # "it will be fine"
    self.synced = self.position
    return self.position


def _retrying_sync(self: LogWriter) -> int:
    try:
        self._file.sync()
    except OSError:
        self._file.sync()
    self.synced = self.position
    return self.position


def _trusting_walk(segment: Segment, position: int, limit: int = segments.NO_LIMIT) -> Any:
    file, last, highest = segment.file, None, 0
    while position < limit:
        offset = segment.offset_of(position)
        header = parse_frame_header(file.read(offset, FRAME_OVERHEAD))
        if header is None or offset + FRAME_OVERHEAD + header.length > file.size():
            break
        payload = file.read(offset + FRAME_OVERHEAD, header.length)
        yield Frame(position, header.synced, payload, segment.number, offset)
        last, highest = position, max(highest, header.synced)
        position += FRAME_OVERHEAD + header.length
    return segments.Stop(position, last, highest)


def _file_sync_only(what: Any) -> None:
    if not hasattr(what, "names"):
        what.sync()


def _never_refused(self: End) -> None:
    return None


_sync = Committer.sync


def _sync_without_position(self: Committer, position: int | None = None) -> int:
    return self.end_of_log.writer.synced if position is not None else _sync(self)


_append = CommitLog.append


def _append_without_rollback(self: CommitLog, payload: bytes) -> None:
    gaps, self.gaps = self.gaps, []
    try:
        _append(self, payload)
    except BaseException:
        self.gaps = gaps
        raise
    for run in gaps:
        self._context.state.counters[run.partition].update(run.first - 1, run.count)


_update = PartitionUpdateCounter.update


def _update_over_gaps(self: PartitionUpdateCounter, start: int, delta: int) -> bool:
    new = _update(self, start, delta)
    self._lwm, self._ranges = max(self._lwm, start + delta), None
    return new


def _same_epochs(self: State, time: int) -> EpochRecord:
    starts = [counter.hwm + 1 for counter in self.counters]
    return EpochRecord(time=time, first_partition=0, epochs=list(self.epochs), starts=starts)


def _no_earlier_receipt(self: KnownOutcomes, tx_id: bytes, group: object) -> None:
    return None


_begin = MapGrowth.begin


def _remembering_begin(self: MapGrowth) -> Any:
    txn = _begin(self)
    self.__dict__.setdefault("forgotten", []).append(txn)
    return txn


_apply = recovery.apply_updates


def _apply_half(view: Any, state: State, position: int, record: Any) -> int:
    if isinstance(record, TxRecord) and len(record.runs) > 1:
        record = record._replace(runs=record.runs[:-1])
    return _apply(view, state, position, record)


def _rewrite_without_cut(directory: Directory, end: End, durable: int, _piece: int) -> None:
    number = segment_numbers(directory)[-1]
    segment = open_segment(directory, number)
    segment.file.close()
    file = directory.open_write(f"{number:016d}.log")
    offset = max(durable, segment.first_position) - segment.first_position + HEADER_SIZE
    stop = end.position - segment.first_position + HEADER_SIZE
    file.write(offset, file.read(offset, max(0, stop - offset)))
    file.sync()
    file.close()


def _bug(
    name: str,
    owner: object,
    attribute: str,
    replacement: Callable[..., Any],
    suite: Suite,
    names: str,
    cases: int,
) -> Planted:
    return Planted(
        name=name,
        owner=owner,
        attribute=attribute,
        replacement=replacement,
        suite=suite,
        names=frozenset(names.split()),
        cases=cases,
    )


CUTS = 270
"""Of the 384 points of ``power_cuts``: only a torn write in the right place shows this bug."""

FULL_DISKS = 128
"""All points of ``full_disks``: two failures have to meet."""

BUGS = (
    _bug("acknowledged before the sync", CommitLog, "sync", _no_sync, power_cuts, "I-1", 60),
    _bug("a failed sync is ignored", LogWriter, "sync", _ignoring_sync, io_errors, "I-1 I-7", 40),
    _bug("a failed sync is tried again", LogWriter, "sync", _retrying_sync, io_errors, "I-7", 40),
    _bug("no CRC", reader, "walk", _trusting_walk, power_cuts, "I-2 I-5 I-6 errors", CUTS),
    _bug("no CRC, damage", reader, "walk", _trusting_walk, damage, "I-5 I-6 errors", 5),
    _bug("no directory sync", writer, "_sync", _file_sync_only, power_cuts, "I-1 I-6", 40),
    _bug("damage is cut off", End, "raise_if_refused", _never_refused, damage, "I-1 I-6", 5),
    _bug(
        "the data file is ahead of the log",
        Committer,
        "sync",
        _sync_without_position,
        checkpoints,
        "I-3",
        10,
    ),
    _bug(
        "LWM passes numbers of a failed group that no record closes",
        CommitLog,
        "append",
        _append_without_rollback,
        full_disks,
        "I-9 I-10",
        FULL_DISKS,
    ),
    _bug("LWM passes a gap", PartitionUpdateCounter, "update", _update_over_gaps, gaps,
         "I-10", 6),
    _bug(
        "an id is applied twice",
        KnownOutcomes,
        "earlier_receipt",
        _no_earlier_receipt,
        power_cuts,
        "I-2 I-5",
        150,
    ),
    _bug("numbers are given again", State, "next_epochs", _same_epochs, power_cuts, "I-11", 100),
    _bug("a reader is never closed", MapGrowth, "begin", _remembering_begin, power_cuts,
         "readers", 1),
    _bug("half a transaction", recovery, "apply_updates", _apply_half, power_cuts, "I-2 I-6", 100),
    _bug(
        "stale frames behind a cut", replaying, "rewrite_tail", _rewrite_without_cut, stale_frames,
        "I-2 I-5 I-6", 40,
    ),
)  # fmt: skip
