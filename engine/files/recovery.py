"""From what is on disk to a store that runs: replay the log onto the last checkpoint.

Steps, each of which may crash and be done again from the start:

1. Read the checkpoint's marks from LMDB: state and replay positions.
2. Stream the log from the lowest replay position; apply what each partition lacks.  A full overlay
   is flushed as in normal running, so memory is bounded; before that, the log up to there is made
   durable.
3. Judge the end (``wal.tail``); a log that is refused is left as it is.
4. Write the tail above w again and sync it: the page cache may hold what the disk lacks, when an
   earlier sync failed.  Cut what follows the end, so that no stale frame is met there later.
5. Let a checkpoint remove what the log has cleared: the data file still has that.
6. Close the gaps that are left, and raise the epochs after anything but a clean close.

A reading process does 1 to 3, up to the newest ``synced``, and writes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from operator import add

from ...affinity.errors import CorruptDataError, CorruptLogError
from ...checkpoints.replay import Cleared, Effect, State
from ...wal.format import HEADER_SIZE, Frame, parse_segment_header, segment_name
from ...wal.ports import Directory, ReadableDirectory
from ...wal.reader import Scan, read_records
from ...wal.records import Record
from ...wal.segments import segment_numbers
from ...wal.tail import End
from ..data.overlay import PAIR_OVERHEAD, Overlay, View
from ..data.stored import pack_prefix, stored_run, version_of
from ..data.updates import PAIR_FIELDS

log = logging.getLogger("tidelog.recovery")


@dataclass(slots=True)
class RecoveryReport:
    """What a recovery did: frames and updates applied, and how the log ended."""

    frames: int = 0
    updates: int = 0
    clean: bool = True
    dropped_bytes: int = 0
    end: str = ""


@dataclass(slots=True)
class Replayed:
    """The log applied to state and overlay; what ``Checkpointer`` needs while that goes on.

    Stands in for the ``Committer`` that does not exist yet.
    """

    state: State
    overlay: Overlay
    applied_position: int
    sync: Callable[[int], object]
    mutex: threading.Lock = field(default_factory=threading.Lock)
    flush_turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    report: RecoveryReport = field(default_factory=RecoveryReport)

    def check_writable(self) -> None:
        """A recovery that is interrupted ends."""

    def log(self, records: Iterable[Record]) -> int:
        """Leave no CHECKPOINT record: the log is not open for writing yet."""
        return self.applied_position


def apply_updates(view: View, state: State, position: int, record: Record) -> int:
    """Fold one record into a state and the newest layer of a view; return how many updates."""
    effects = state.apply(position, record)
    return take_over(view, effects, state.cleared) if effects else 0


def take_over(view: View, effects: Iterable[Effect], cleared: Container[int] = ()) -> int:
    """Put updates into the newest layer of a view, and return how many those were.

    A late update is put only if the view has nothing newer.  What was cleared goes from all layers;
    what the data file has of ``cleared`` partitions counts for nothing here, and the next
    checkpoint removes it.
    """
    layer = view.layers[0]
    taken_keys: list[bytes] = []
    taken_values: list[bytes | None] = []
    for effect in effects:
        if isinstance(effect, Cleared):
            for each in view.layers:
                each.forget(effect.partition)
            continue
        run, time, (names, keys, values), late = effect
        if isinstance(names, int):
            prefix = pack_prefix(run.partition, names)
            full_keys = map(prefix.__add__, keys)
        else:
            full_keys = map(add, map(pack_prefix, repeat(run.partition), names), keys)
        stored = stored_run(values, run.epoch, run.first, time)
        pairs: Iterable[tuple[bytes, bytes]] = zip(full_keys, stored, strict=True)
        if late:
            stands = view.newer if run.partition in cleared else view.stored
            pairs = filter(partial(_is_newest, partial(stands, run.partition)), pairs)
        layer.part(run.partition).update(pairs)
        taken_keys += keys
        taken_values += values
    # Of all at once: most effects have one key.
    size = sum(map(len, taken_keys)) + sum(map(len, filter(None, taken_values)))
    layer.bytes += size + (PAIR_FIELDS + PAIR_OVERHEAD) * len(taken_keys)
    return len(taken_keys)


def _is_newest(stands: Callable[[bytes], bytes | None], pair: tuple[bytes, bytes]) -> bool:
    """Tell whether nothing stands under a key that is newer by epoch and number."""
    full_key, stored = pair
    known = stands(full_key)
    return known is None or version_of(known)[:2] < version_of(stored)[:2]


def replay(
    directory: ReadableDirectory,
    replayed: Replayed,
    *,
    start: int,
    durable: int,
    log_ids: list[tuple[bytes, int]],
    relieve: Callable[[], None] | None = None,
) -> End:
    """Apply the log from ``start`` on; return how it ends.

    ``relieve`` is called after each frame and may flush.
    Raises ``CorruptLogError`` for a log that must not be continued.
    """
    scan = Scan(directory, start, exact=True, durable=durable, log_ids=log_ids)
    for frame in scan:
        _apply_frame(replayed, frame)
        if relieve is not None:
            relieve()
    scan.end.raise_if_refused()
    check_rows(replayed.state)
    return scan.end


def newest_durable(
    directory: ReadableDirectory,
    log_ids: list[tuple[bytes, int]],
    known: int,
    *,
    alone: bool = False,
) -> int:
    """Return the highest position that the log shows to be durable, given one that surely is.

    What is logged meanwhile may be left out: who reads beside a quick writer would never come to
    the end.  ``alone`` is as for ``Scan``.  Raises ``CorruptLogError`` for a log that is damaged.
    """
    newest, later = known, None
    last = max(segment_numbers(directory), default=0)
    # Each log has a first frame.
    durable = max(known, 1)
    scan = Scan(directory, known, exact=True, durable=durable, log_ids=log_ids, alone=alone)
    ends: deque[int] = deque()
    for frame in scan:
        if later is None and frame.segment > last:
            later = frame.position
        ends.append(frame.end)
        known = max(known, frame.synced)
        while ends and ends[0] <= known:
            newest = ends.popleft()
        if later is not None and newest >= later:
            return newest
    scan.end.raise_if_refused()
    return newest


def replay_to(
    directory: ReadableDirectory,
    replayed: Replayed,
    *,
    stop: int,
    log_ids: list[tuple[bytes, int]],
) -> None:
    """Apply the log up to ``stop``, which is durable: what a reading process may see."""
    start = replayed.applied_position
    scan = Scan(directory, start, exact=True, durable=stop, log_ids=log_ids)
    for frame in scan:
        if frame.end > stop:
            break
        _apply_frame(replayed, frame)
    else:
        scan.end.raise_if_refused()
    check_rows(replayed.state)


class OutdatedDataError(CorruptDataError):
    """The data file is older than the name of a load whose rows only it can have."""


def check_rows(state: State) -> None:
    """Raise ``OutdatedDataError`` if the fold has named a load whose rows it did not bring."""
    names = state.without_rows()
    if names:
        raise OutdatedDataError(
            f"the data file lacks the rows of {names[0]!r}, which its checkpoints had already",
            hint="An older data file was put in its place: restore a whole copy of the store.",
        )


def _apply_frame(replayed: Replayed, frame: Frame) -> None:
    with replayed.mutex:
        view = replayed.overlay.view
        for _, record in read_records((frame,)):
            replayed.report.updates += apply_updates(view, replayed.state, frame.position, record)
        replayed.applied_position = frame.end
        replayed.report.frames += 1


def rewrite_tail(directory: Directory, end: End, durable: int, piece_bytes: int) -> None:
    """Write what lies between ``durable`` and the end again, cut what follows, and sync both.

    Raises ``CorruptLogError``, with nothing written, if the last segment is not the one that
    the log was seen to end in: whatever it holds was not looked at.
    """
    numbers = segment_numbers(directory)
    if numbers and numbers[-1] != end.segment:
        raise CorruptLogError(
            f"segment {numbers[-1]} lies behind segment {end.segment}, in which the log was found "
            f"to end at position {end.position}; nothing was cut",
            kind="gap",
            segment=numbers[-1],
            offset=0,
            hint="Open the store again; if that is refused too, run `tidelog wal verify STORE`.",
        )
    if end.dropped_segment is not None:
        directory.unlink(segment_name(end.dropped_segment))
        directory.sync()
    numbers = segment_numbers(directory)
    if not numbers:
        return
    file = directory.open_write(segment_name(numbers[-1]))
    try:
        header = parse_segment_header(file.read(0, HEADER_SIZE), numbers[-1])
        base = header.first_position - HEADER_SIZE
        offset = max(durable, header.first_position) - base
        stop = end.position - base
        while offset < stop:
            piece = file.read(offset, min(piece_bytes, stop - offset))
            file.write(offset, piece)
            offset += len(piece)
        if file.size() > stop:
            file.truncate(stop)
        file.sync()
    finally:
        file.close()
