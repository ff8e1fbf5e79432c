"""Compaction: what the log of a store holds, carried into an archive before the log lets go of it.

Tasks read slices of the log and write files into a folder that nobody knows yet; when all have
ended, the folder gets its name, and then ``archive.json`` is replaced.

Invariants:

- A run takes up where the one before ended, and stops at what is durable.
- Dying at any moment leaves the archive as it was; what fails leaves nothing that it wrote.
- A task holds at most ``ROWS`` changes of each bundle in memory, and of all about
  ``FileSizes``.

Left out: reading (``archives``).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from ...affinity.errors import AlreadyOpenError, TidelogError, UsageError
from ...engine.system.disk import RealDisk
from ...engine.system.disk_errors import translated_disk
from ...engine.system.production import production
from ...wal.format import Frame
from ...wal.reader import read_records
from ...wal.records import (
    DropNamespaceRecord,
    IngestRecord,
    NamespaceRecord,
    NumberedRecord,
    StateRecord,
)
from ..base.private import make_folder, new_file, size_and_crc
from ..base.remote import fetch_one, is_remote, names_at, send
from ..data import archives, snapshots
from ..data.archives import Archive, Event, File, Stretch
from ..data.snapshots import Part
from ..log.changes import Wanted, as_puts, changes
from ..log.columns import BATCH_BYTES
from ..log.logs import Cut, Log, Slice, attached, catalog_records
from .runner import PlainRow, Runner

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

ARCHIVE_LOCK_NAME = "lock"
T = TypeVar("T")

ROWS = 20_000
"""Rows of a row group of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes:
    """How much of its rows a task holds before it writes, in bytes."""

    batch: int = BATCH_BYTES
    """Of one bundle."""
    waiting: int = 64 << 20
    """Of all bundles."""


FILE_SIZES = FileSizes()

_UNFINISHED = ".unfinished"
_ANEW = "Compact into a new folder: that archive begins with the data as it is now."
_OWN = (archives.NAME, ARCHIVE_LOCK_NAME, "base", "changes-")


@dataclass(slots=True)
class _Written:
    """What one task has written, and where it saw the catalog's records."""

    files: dict[int, File]
    time: int = 0
    """The time of the newest change, in microseconds; 0 if there is none."""
    catalog: list[int] = field(default_factory=list)
    """Positions of frames."""


def compact(
    store: str,
    archive: str,
    runner: Runner,
    *,
    task_bytes: int = 64 << 20,
    sizes: FileSizes = FILE_SIZES,
) -> PlainRow:
    """Carry what the log at ``store`` has become since the last time into an archive.

    Makes the archive, in a new folder, if there is none.  Returns ``rows`` and ``files`` that
    are new, and ``vector``: how far the archive goes, by partition.  Raises ``UsageError`` for an
    archive of another store, ``HistoryTruncatedError`` if the log was trimmed behind the
    archive's end, or a map was attached since, ``DiskFullError`` and ``DiskError``, and
    ``AlreadyOpenError`` beside another run, or if a new archive needs the data of a store that
    is open.
    """
    if is_remote(archive):
        with tempfile.TemporaryDirectory() as folder:
            return _compact_elsewhere(store, folder, archive, runner, task_bytes, sizes)
    log = Log(store)
    made = not os.path.isdir(archive)
    make_folder(archive)
    if any(not name.startswith(_OWN) for name in os.listdir(archive)):
        raise UsageError(
            f"{archive} has files that do not belong to an archive", hint="Name a new folder."
        )
    try:
        lock = RealDisk().lock(os.path.join(archive, ARCHIVE_LOCK_NAME))
    except BlockingIOError:
        raise AlreadyOpenError(
            f"{archive} is being written by another process", path=archive, pid=0
        ) from None
    try:
        return _compact(log, archive, runner, task_bytes, sizes)
    except BaseException:
        _take_away(archive, made)
        raise
    finally:
        lock.release()


def _compact_elsewhere(
    store: str, folder: str, archive: str, runner: Runner, task_bytes: int, sizes: FileSizes
) -> PlainRow:
    """Make what is new of an archive in a folder, and bring it to a URI; what says so goes last."""
    known = names_at(archive)
    if archives.NAME in known:
        fetch_one(archive, archives.NAME, folder)
    elif known:
        raise UsageError(
            f"{archive} has files that do not belong to an archive", hint="Name a new folder."
        )
    done = compact(store, folder, runner, task_bytes=task_bytes, sizes=sizes)
    found = [
        os.path.relpath(os.path.join(at, name), folder)
        for at, _, names in os.walk(folder)
        for name in names
    ]
    made = sorted(name for name in found if name not in (archives.NAME, ARCHIVE_LOCK_NAME))
    send(folder, [*made, archives.NAME], archive)
    return done


def _compact(log: Log, path: str, runner: Runner, task_bytes: int, sizes: FileSizes) -> PlainRow:
    _remove_leftovers(path)
    known = archives.read_archive(path) if archives.is_archive(path) else None
    if known is None:
        start = log.behind_loads()
        known = _begun(log, path, start, runner, sizes)
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
    work = partial(_write_slice, folder, known.bundle_size, wanted, sizes)
    found = _carry_out(path, name, runner, work, list(enumerate(slices)))
    stretch = Stretch(
        folder=name,
        low=low,
        high=high,
        position=cut.position,
        time=max([_newest(known, start), *(one.time for one in found)]),
        files=_by_bundle(found),
    )
    catalog = {position for one in found for position in one.catalog}
    known = replace(
        known,
        stretches=(*known.stretches, stretch),
        events=tuple(_events(log, known.events, begin, cut.position, catalog)),
    )
    _save(known)
    return _told(known, stretch.rows, sum(map(len, stretch.files.values())))


def _newest(archive: Archive, start: Cut) -> int:
    """Return the time of the newest change that is in an archive, which goes on at ``start``."""
    return max((part.time for part in archive.parts()), default=start.state.time)


def _told(archive: Archive, rows: int, files: int) -> PlainRow:
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


def _begun(log: Log, path: str, start: Cut, runner: Runner, sizes: FileSizes) -> Archive:
    """Return a new archive, with the data of the store if the log does not begin at nothing."""
    archive = Archive(
        path=path,
        store_id=log.store_id,
        history_id=log.history_id,
        partitions=len(start.state.counters),
        maps=start.maps(),
    )
    if not any(number for _, number in start.vector().values()):
        return archive
    _, cut = snapshots.pin(log.path)
    everywhere = range(archive.partitions)
    size = archive.bundle_size
    bundles = [list(everywhere[at : at + size]) for at in everywhere[::size]]
    numbered = []
    for bundle, partitions in enumerate(bundles):
        numbered += [(bundle, part) for part in snapshots.parts(log.path, cut, partitions, None, 1)]
    work = partial(_write_part, os.path.join(path, "base" + _UNFINISHED), sizes)
    found = _carry_out(path, "base", runner, work, numbered)
    base = Stretch(
        folder="base",
        low=dict.fromkeys(everywhere, (0, 0)),
        high=cut.vector(),
        position=cut.position,
        time=cut.state.time,
        files=_by_bundle(found),
    )
    return replace(archive, base=base)


def _write_part(folder: str, sizes: FileSizes, numbered: tuple[int, Part]) -> Iterator[_Written]:
    """Write the data of one bundle, as the changes that made it."""
    bundle, part = numbered
    with _Files(folder, 0, sizes) as files:
        for batch in part.batches(None, ROWS):
            files.write(bundle, as_puts(batch, "tidelog"))
    yield files.written


# ---------------------------------------------------------------------------------------- slices


def _write_slice(
    folder: str,
    bundle_size: int,
    wanted: Wanted,
    sizes: FileSizes,
    numbered: tuple[int, Slice],
) -> Iterator[_Written]:
    """Write the changes of one slice, by bundle."""
    import pyarrow as pa
    import pyarrow.compute as pc

    number, part = numbered
    log = Log(part.path)

    def refuse(record: IngestRecord, position: int) -> None:
        name = log.name_of_load(record.namespace, position)
        if wanted.has_load(name):
            raise attached(part.path, name, record, hint=_ANEW)

    with _Files(folder, number, sizes) as files, closing(log.frames(part)) as frames:
        watched = _watched(frames, files.written.catalog)
        names = log.names_below(part)
        for batch in changes(watched, names, wanted, refuse, batch_rows=ROWS):
            bundles = pc.divide(batch.column("partition"), pa.scalar(bundle_size, pa.int32()))
            for bundle in pc.unique(bundles).to_pylist():
                files.write(bundle, batch.filter(pc.equal(bundles, bundle)))
    yield files.written


def _watched(frames: Iterable[object], found: list[int]) -> Iterator[Frame]:
    """Pass frames on, and note where maps come, go, or get other names."""
    for frame in frames:
        assert isinstance(frame, Frame), "damage is refused before"
        if any(not isinstance(record, StateRecord) for record in catalog_records(frame)):
            found.append(frame.position)
        yield frame


def _events(
    log: Log, known: Sequence[Event], begin: int, end: int, catalog: Collection[int]
) -> Iterator[Event]:
    """Return what is known of maps by now: what was before a position, and what lies behind it.

    ``catalog`` are the positions of all frames from there on that tell of maps.
    """
    waiting = [event for event in known if event.next is None]
    yield from known[: len(known) - len(waiting)]
    if not waiting and not catalog:
        return
    seen: dict[int, int] = {}
    for event in known:
        seen.update(event.moved)
    # From the head of a segment on, so that all numbers are known.
    cut = log.head_below(begin if waiting else min(catalog))
    for frame in log.between(cut.position, end):
        if not catalog and not waiting:
            return
        for _, record in read_records((frame,)):
            if frame.position >= begin:
                if isinstance(record, NumberedRecord):
                    yield from (replace(event, next=record.time) for event in waiting)
                    waiting = []
                elif isinstance(record, NamespaceRecord | DropNamespaceRecord):
                    waiting += _event(cut, frame.position, record, seen)
            cut.take(frame.position, record)
        if not waiting and frame.position >= max(catalog, default=begin):
            return
    yield from waiting


def _event(
    cut: Cut, position: int, record: NamespaceRecord | DropNamespaceRecord, seen: dict[int, int]
) -> Iterator[Event]:
    """Yield what a record says of a map that people see; ``seen`` are the numbers told before."""
    known = cut.state.namespaces.get(record.id)
    before = None if known is None or known.hidden else known.name
    if isinstance(record, DropNamespaceRecord):
        name, time, shown = None, record.time, before is not None
    else:
        name, time, shown = record.name, None, not record.hidden
    if shown:
        here = {p: counter.lwm for p, counter in enumerate(cut.state.counters) if counter.lwm}
        moved = {p: number for p, number in here.items() if seen.get(p) != number}
        seen.update(moved)
        yield Event(
            position=position, map=record.id, name=name, before=before, moved=moved, time=time
        )


# ---------------------------------------------------------------------------------------- files


class _Files:
    """The files of one task, by bundle; durable when the block has ended.

    What waits to be written is bounded in rows and in bytes, for one bundle and for all of them.
    """

    def __init__(self, folder: str, number: int, sizes: FileSizes) -> None:
        # A name of its own for each attempt: a slow one must not write into that of another.
        self._name = f"{number:05d}-{production().new_id().hex()}"
        self._folder = folder
        self._sizes = sizes
        self._writers: dict[int, ParquetWriter] = {}
        self._sinks: dict[int, BinaryIO] = {}
        self._waiting: defaultdict[int, list[pa.RecordBatch]] = defaultdict(list)
        self._bytes = 0
        self._rows: Counter[int] = Counter()
        self.written = _Written(files={})

    def write(self, bundle: int, batch: pa.RecordBatch) -> None:
        """Take rows of a bundle."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if batch.num_rows == 0:
            return
        written, waiting = self.written, self._waiting[bundle]
        bounds = pc.min_max(batch.column("commit_ts").cast(pa.int64())).as_py()
        written.time = max(written.time, bounds["max"])
        self._rows[bundle] += batch.num_rows
        waiting.append(batch)
        self._bytes += batch.nbytes
        if sum(one.nbytes for one in waiting) >= self._sizes.batch:
            self._flush(bundle)
        elif self._bytes >= self._sizes.waiting:
            for other in sorted(self._waiting):
                self._flush(other)
        elif sum(one.num_rows for one in waiting) >= ROWS:
            self._flush(bundle)

    def _flush(self, bundle: int) -> None:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        waiting = self._waiting.pop(bundle)
        self._bytes -= sum(one.nbytes for one in waiting)
        with translated_disk(f"writing into {self._folder}"):
            if bundle not in self._writers:
                place = os.path.join(self._folder, self._named(bundle))
                sink = self._sinks[bundle] = new_file(place)
                self._writers[bundle] = ParquetWriter(
                    sink, waiting[0].schema, compression="zstd", write_page_checksum=True
                )
            self._writers[bundle].write_table(pa.Table.from_batches(waiting))

    def _named(self, bundle: int) -> str:
        return f"bundle-{bundle:02d}-{self._name}.parquet"

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        try:
            if kind is None:
                for bundle in sorted(self._waiting):
                    self._flush(bundle)
                with translated_disk(f"writing into {self._folder}"):
                    self._finish()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Close what a failure has left open, without a word: the files are not wanted."""
        for writer in self._writers.values():
            writer.is_open = False  # or it would write the end of its file when it is collected
        for sink in self._sinks.values():
            with suppress(OSError):
                sink.close()

    def _finish(self) -> None:
        for writer in self._writers.values():
            writer.close()
        for sink in self._sinks.values():
            sink.flush()
            os.fsync(sink.fileno())
            sink.close()
        for bundle in self._writers:
            name = self._named(bundle)
            with open(os.path.join(self._folder, name), "rb") as file:
                size, crc = size_and_crc(file)
            rows = self._rows[bundle]
            self.written.files[bundle] = File(name=name, size=size, crc=crc, rows=rows)


def _carry_out(
    path: str,
    name: str,
    runner: Runner,
    work: Callable[[tuple[int, T]], Iterator[_Written]],
    tasks: Sequence[tuple[int, T]],
) -> list[_Written]:
    """Run tasks that write into a folder, which gets its name when all of them have ended."""
    folder = os.path.join(path, name)
    with translated_disk(f"making {folder}"):
        make_folder(folder + _UNFINISHED)
    found = list(runner.run(work, tasks))
    with translated_disk(f"making {folder}"):
        _sync_directory(folder + _UNFINISHED)
        os.rename(folder + _UNFINISHED, folder)
        _sync_directory(path)
    return found


def _by_bundle(found: Iterable[_Written]) -> dict[int, list[File]]:
    """Return files by bundle, in the order of the log."""
    files: dict[int, list[File]] = {}
    for one in found:
        for bundle, file in one.files.items():
            files.setdefault(bundle, []).append(file)
    return files


def _sync_directory(path: str) -> None:
    RealDisk().directory(path).sync()


def _save(archive: Archive) -> None:
    """Replace the account of an archive."""
    place = os.path.join(archive.path, archives.NAME)
    with translated_disk(f"writing {place}"):
        with new_file(place + _UNFINISHED) as file:
            file.write(archive.to_json().encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(place + _UNFINISHED, place)
        _sync_directory(archive.path)


def _remove_leftovers(path: str) -> None:
    """Remove folders of runs that died or failed."""
    known = archives.read_archive(path) if archives.is_archive(path) else None
    named = set() if known is None else {one.folder for one in known.parts()}
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False) and entry.name not in named:
            shutil.rmtree(entry.path)


def _take_away(path: str, made: bool) -> None:
    """Remove what a run that failed has written, and the archive that it has begun."""
    with suppress(OSError, TidelogError):
        _remove_leftovers(path)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(path, archives.NAME + _UNFINISHED))
        if not archives.is_archive(path):
            os.unlink(os.path.join(path, ARCHIVE_LOCK_NAME))
            if made:
                os.rmdir(path)
