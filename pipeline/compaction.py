"""Compaction: what the log of a store holds, carried into an archive before the log lets go of it.

Tasks read slices of the log and write files into a folder that nobody knows yet; when all have
ended, the folder gets its name, and then ``archive.json`` is replaced.

Invariants:

- A run takes up where the one before ended, and stops at what is durable.
- Dying at any moment leaves the archive as it was.
- A task holds at most ``ROWS`` changes of each bundle in memory.

Left out: reading (``archives``).
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ..affinity.errors import AlreadyOpenError, UsageError
from ..engine.disk import RealDisk
from ..engine.environment import production
from ..wal.format import Frame
from ..wal.records import (
    DropNamespaceRecord,
    IngestRecord,
    NamespaceRecord,
    RecordType,
    TxRecord,
)
from . import archives, columns, snapshots
from .archives import Archive, Event, Stretch
from .changes import Wanted, as_puts, changes
from .jobs import Row, Runner
from .logs import Cut, Log, Slice, attached
from .snapshots import Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

LOCK_NAME = "lock"
T = TypeVar("T")

ROWS = 20_000
"""Rows of a row group of a file."""

_UNFINISHED = ".unfinished"
_ANEW = "Compact into a new folder: that archive begins with the data as it is now."
_OWN = (archives.NAME, LOCK_NAME, "base", "changes-")


@dataclass(slots=True)
class _Written:
    """What one task has written, and the catalog's records that it saw."""

    files: dict[int, str]
    rows: int = 0
    first: int = 0
    time: int = 0
    """Times of the oldest and the newest change, in microseconds; 0 where there is none."""
    events: list[tuple[int | None, int, str | None]] = field(default_factory=list)
    """Like ``Event``; the time is None where the next transaction lies in a later slice."""


def compact(store: str, archive: str, runner: Runner, *, task_bytes: int = 64 << 20) -> Row:
    """Carry what the log at ``store`` has become since the last time into an archive.

    Makes the archive, in a new folder, where there is none.  Returns ``rows`` and ``files`` that
    are new, and ``vector``: how far the archive goes, by partition.  Raises ``UsageError`` for an
    archive of another store, ``HistoryTruncatedError`` where the log was trimmed behind the
    archive's end, or a map was attached since, and ``AlreadyOpenError`` beside another run, or
    where a new archive needs the data of a store that is open.
    """
    log = Log(store)
    os.makedirs(archive, exist_ok=True)
    if any(not name.startswith(_OWN) for name in os.listdir(archive)):
        raise UsageError(f"{archive} holds what is no archive's", hint="Name a new folder.")
    try:
        lock = RealDisk().lock(os.path.join(archive, LOCK_NAME))
    except BlockingIOError as error:
        raise AlreadyOpenError(
            f"{archive} is being written by another process", path=archive, pid=0
        ) from error
    try:
        return _compact(log, archive, runner, task_bytes)
    finally:
        lock.release()


def _compact(log: Log, path: str, runner: Runner, task_bytes: int) -> Row:
    _remove_leftovers(path)
    known = archives.load(path) if archives.is_archive(path) else None
    if known is None:
        start = log.behind_loads()
        known = _begun(log, path, start, runner)
        low, begin = start.vector(), start.position
    else:
        _check_same(known, log)
        # Where the last run ended, and no sooner: it has noted the catalog up to there.
        low, begin = dict(known.high), known.stretches[-1].position
        start = log.before(low)
    cut = log.all_below(log.durable_end())
    cut.check_reaches(low, log.path)
    high = cut.vector()
    if known.stretches and all(high[p][1] == low[p][1] for p in high) and not _renamed(known, cut):
        return _told(known, 0, 0)
    wanted = Wanted(low=low, high=high, rollbacks=True)
    name = f"changes-{len(known.stretches) + 1:08d}"
    slices = log.slices(begin, cut.position, most_bytes=task_bytes)
    folder = os.path.join(path, name + _UNFINISHED)
    work = partial(_write_slice, folder, known.bundle_size, wanted, cut.names)
    found = _carry_out(path, name, runner, work, list(enumerate(slices)))
    events = list(_events(found, start, fresh=not known.stretches))
    newest = max([start.state.time, *(one.time for one in found)])
    stretch = Stretch(
        folder=name,
        low=low,
        high=high,
        position=cut.position,
        time=max([newest, *(event.time for event in events)]),
        rows=sum(one.rows for one in found),
        files=_by_bundle(found),
    )
    known = archives.with_stretch(known, stretch, events)
    _save(known)
    return _told(known, stretch.rows, sum(map(len, stretch.files.values())))


def _told(archive: Archive, rows: int, files: int) -> Row:
    vector = {str(p): number for p, (_, number) in sorted(archive.high.items())}
    return {"rows": rows, "files": files, "vector": vector}


def _check_same(archive: Archive, log: Log) -> None:
    for name, one, other in (
        ("store", archive.store_id, log.store_id),
        ("history", archive.history_id, log.history_id),
    ):
        if one != other:
            raise UsageError(
                f"{archive.path} belongs to {name} {one.hex()}, {log.path} is {name} {other.hex()}",
                hint="Each history of a store has an archive of its own: name another folder.",
            )


def _renamed(archive: Archive, cut: Cut) -> bool:
    """Tell whether maps came, went or got other names, with no change since."""
    return cut.maps() != archive.names()


# ---------------------------------------------------------------------------------------- base


def _begun(log: Log, path: str, start: Cut, runner: Runner) -> Archive:
    """Return a new archive, with the data of the store where the log does not begin at nothing."""
    archive = Archive(
        path=path,
        store_id=log.store_id,
        history_id=log.history_id,
        partitions=len(start.state.counters),
    )
    if not any(number for _, number in start.vector().values()):
        return archive
    _, cut = snapshots.pin(log.path)
    everywhere = range(archive.partitions)
    size = archive.bundle_size
    bundles = [list(everywhere[at : at + size]) for at in everywhere[::size]]
    numbered = []
    for bundle, partitions in enumerate(bundles):
        for part in snapshots.parts(log.path, cut, partitions, None, 1):
            maps = {number: str(number) for number in part.maps}
            numbered.append((bundle, replace(part, maps=maps)))
    work = partial(_write_part, os.path.join(path, "base" + _UNFINISHED))
    found = _carry_out(path, "base", runner, work, numbered)
    base = Stretch(
        folder="base",
        low=dict.fromkeys(everywhere, (0, 0)),
        high=cut.vector(),
        position=cut.position,
        time=cut.state.time,
        rows=sum(one.rows for one in found),
        files=_by_bundle(found),
    )
    return replace(archive, base=base)


def _write_part(folder: str, numbered: tuple[int, Part]) -> Iterator[_Written]:
    """Write the data of one bundle, as the changes that made it."""
    bundle, part = numbered
    with _Files(folder, 0) as files:
        for batch in part.batches(None, ROWS):
            files.write(bundle, as_puts(batch, "tidelog"))
    yield files.written


# ---------------------------------------------------------------------------------------- slices


def _write_slice(
    folder: str,
    bundle_size: int,
    wanted: Wanted,
    names: dict[int, str],
    numbered: tuple[int, Slice],
) -> Iterator[_Written]:
    """Write the changes of one slice, by bundle."""
    import pyarrow as pa
    import pyarrow.compute as pc

    number, part = numbered

    def refuse(record: IngestRecord) -> None:
        if wanted.has_load(names.get(record.namespace)):
            raise attached(part.path, names, record, hint=_ANEW)

    with _Files(folder, number) as files, closing(Log(part.path).frames(part)) as frames:
        watched = _watched(frames, files.written.events)
        # Without names maps are shown by id.
        for batch in changes(watched, {}, wanted, refuse, batch_rows=ROWS):
            bundles = pc.divide(batch.column("partition"), pa.scalar(bundle_size, pa.int32()))
            for bundle in pc.unique(bundles).to_pylist():
                files.write(bundle, batch.filter(pc.equal(bundles, bundle)))
    yield files.written


def _watched(
    frames: Iterable[object], events: list[tuple[int | None, int, str | None]]
) -> Iterator[Frame]:
    """Pass frames on, and note the catalog's records in them.

    Names have no time of their own: they hold from the next transaction on.
    """
    waiting: list[tuple[int, str | None]] = []
    kinds = (RecordType.NAMESPACE, RecordType.DROP_NAMESPACE)
    for frame in frames:
        assert isinstance(frame, Frame), "damage is refused before"
        for record in columns.records(frame, (*kinds, RecordType.TX) if waiting else kinds):
            if isinstance(record, NamespaceRecord):
                waiting += [] if record.hidden else [(record.id, record.name)]
            elif isinstance(record, DropNamespaceRecord):
                waiting = [names for names in waiting if names[0] != record.id]
                events.append((record.time, record.id, None))
            elif isinstance(record, TxRecord):
                events += [(record.time, *names) for names in waiting]
                waiting.clear()
        yield frame
    events += [(None, *names) for names in waiting]


def _events(found: Sequence[_Written], start: Cut, *, fresh: bool) -> Iterator[Event]:
    """Return what slices have seen of the catalog, in order, with the times that they lacked."""
    if fresh:
        for number, first_name in start.maps().items():
            yield Event(time=0, map=number, name=first_name)
    end = max([start.state.time, *(one.time for one in found)])
    for place, one in enumerate(found):
        later = next((after.first for after in found[place + 1 :] if after.rows), end)
        for time, number, name in one.events:
            yield Event(time=later if time is None else time, map=number, name=name)


# ---------------------------------------------------------------------------------------- files


class _Files:
    """The files of one task, by bundle; durable when the block has ended."""

    def __init__(self, folder: str, number: int) -> None:
        # A name of its own for each attempt: a slow one must not write into that of another.
        self._name = f"{number:05d}-{production().new_id().hex()}"
        self._folder = folder
        self._writers: dict[int, ParquetWriter] = {}
        self._waiting: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
        self.written = _Written(files={})

    def write(self, bundle: int, batch: pa.RecordBatch) -> None:
        """Take rows of a bundle."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if batch.num_rows == 0:
            return
        written, waiting = self.written, self._waiting[bundle]
        bounds = pc.min_max(batch.column("commit_ts").cast(pa.int64())).as_py()
        written.first = min(written.first or bounds["min"], bounds["min"])
        written.time = max(written.time, bounds["max"])
        written.rows += batch.num_rows
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= ROWS:
            self._flush(bundle)

    def _flush(self, bundle: int) -> None:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        waiting = self._waiting.pop(bundle)
        if bundle not in self._writers:
            name = self.written.files[bundle] = f"bundle-{bundle:02d}-{self._name}.parquet"
            place = os.path.join(self._folder, name)
            self._writers[bundle] = ParquetWriter(place, waiting[0].schema, compression="zstd")
        self._writers[bundle].write_table(pa.Table.from_batches(waiting))

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        if kind is None:
            for bundle in sorted(self._waiting):
                self._flush(bundle)
        for bundle, writer in self._writers.items():
            writer.close()
            with open(os.path.join(self._folder, self.written.files[bundle]), "rb") as file:
                os.fsync(file.fileno())


def _carry_out(
    path: str,
    name: str,
    runner: Runner,
    work: Callable[[tuple[int, T]], Iterator[_Written]],
    tasks: Sequence[tuple[int, T]],
) -> list[_Written]:
    """Run tasks that write into a folder, which gets its name when all of them have ended."""
    folder = os.path.join(path, name)
    os.makedirs(folder + _UNFINISHED)
    found = list(runner.run(work, tasks))
    _sync_directory(folder + _UNFINISHED)
    os.rename(folder + _UNFINISHED, folder)
    _sync_directory(path)
    return found


def _by_bundle(found: Iterable[_Written]) -> dict[int, list[str]]:
    """Return names of files by bundle, in the order of the log."""
    files: dict[int, list[str]] = {}
    for one in found:
        for bundle, name in one.files.items():
            files.setdefault(bundle, []).append(name)
    return files


def _sync_directory(path: str) -> None:
    RealDisk().directory(path).sync()


def _save(archive: Archive) -> None:
    """Replace the account of an archive."""
    place = os.path.join(archive.path, archives.NAME)
    with open(place + _UNFINISHED, "w", encoding="utf-8") as file:
        file.write(archive.to_json())
        file.flush()
        os.fsync(file.fileno())
    os.replace(place + _UNFINISHED, place)
    _sync_directory(archive.path)


def _remove_leftovers(path: str) -> None:
    """Remove folders of runs that died."""
    known = archives.load(path) if archives.is_archive(path) else None
    named = set() if known is None else {one.folder for one in known.parts()}
    for entry in list(os.scandir(path)):
        if entry.is_dir() and entry.name not in named:
            shutil.rmtree(entry.path)
