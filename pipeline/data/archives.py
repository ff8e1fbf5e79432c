"""Archives: the changes of a store in columns, kept for as long as somebody likes.

An archive is a folder.  Each *stretch* of it holds the changes between two cuts of the log, as
Parquet files, one or more for each *bundle* of partitions, in the order of the log.  An archive
whose log had been trimmed when it was begun has a *base*, too: the data of the store at a later
cut.  ``archive.json`` names all of that with sizes and CRC-32C, and says what became of maps, and
where in the log.

Invariants:

- What ``archive.json`` does not name does not exist; it is replaced when all that it names is
  durable.  A run that dies leaves a folder that the next one removes.
- Stretches join: each begins where the one before ended, and transactions are never split.
- The state at a cut is the newest change of each key at or below it, over the base.
- A file that is read is, byte for byte, what was written, and lies in the folder of the archive:
  whatever is not so is a ``CorruptDataError`` that names the file.

Left out: writing (``compaction``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from ...affinity.errors import (
    CorruptDataError,
    FormatVersionError,
    HistoryTruncatedError,
    UsageError,
)
from ..base import vectors
from ..base.private import check_size_and_crc, is_name, open_plain
from ..base.times import text_of, time_of
from ..base.vectors import Number, Vector
from ..log.changes import PUT, CatalogRow, Wanted, catalog_batch, wants
from ..log.columns import CHANGE_FIELDS, CHANGES, SNAPSHOT, ChangeFormat, arrow_schema
from ..log.logs import check_partitions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

NAME = "archive.json"
BUNDLES = 16
"""Into as many the partitions are divided; a task that rebuilds the data holds one of them."""

VERSION = 2

_COMPACT = "Compact what the store has logged since."
_RESTORE = "Restore the archive, or compact into a new one."


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of an archive: its name in the folder of its stretch, and what it has to have."""

    name: str
    size: int
    crc: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The changes between two cuts, of which the second lies at ``position`` in the log.

    ``time`` is that of the newest change, in microseconds UTC.
    """

    folder: str
    low: Vector
    high: Vector
    position: int
    time: int
    files: Mapping[int, Sequence[File]]
    """Files by bundle."""

    @property
    def rows(self) -> int:
        """How many changes its files have."""
        return sum(file.rows for files in self.files.values() for file in files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A map got a name at a position of the log, or was dropped (no name).

    ``moved`` are the last numbers before it, of partitions in which they are others than before
    the event before it; the first event has all of them that are not 0.  ``time`` is that of a
    drop, and ``next`` that of the first number behind it, as far as there is one; in microseconds
    UTC.
    """

    position: int
    map: int
    name: str | None
    before: str | None
    """The name until then; none for a new map."""
    moved: Mapping[int, int]
    time: int | None = None
    next: int | None = None

    def row(self) -> CatalogRow:
        """Return what a row of the changes shows of it."""
        if self.name is None:
            return self.position, self.before, self.map, "drop", None, self.time
        return self.position, self.before, self.map, "rename", self.name.encode(), None


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What an archive holds."""

    path: str
    store_id: bytes
    history_id: bytes
    partitions: int
    base: Stretch | None = None
    stretches: tuple[Stretch, ...] = ()
    maps: Mapping[int, str] = field(default_factory=dict)
    """Names of the maps that were there where it begins, by id."""
    events: tuple[Event, ...] = field(default=())

    def parts(self) -> list[Stretch]:
        """Return the base, if there is one, and the stretches, in the order to apply them."""
        return [*([] if self.base is None else [self.base]), *self.stretches]

    @property
    def high(self) -> Vector:
        """How far it goes."""
        return self.stretches[-1].high

    def vector(self, text: str | None, default: str) -> dict[int, Number]:
        """Return the vector that an option names; ``UsageError`` for one beyond the archive."""
        text = text or default
        if text == "earliest":
            return dict(self.stretches[0].low)
        if text == "latest":
            return dict(self.high)
        given = vectors.given(text, self.store_id, self.history_id)
        check_partitions(self.path, given, range(self.partitions))
        for partition, (_, number) in given.items():
            if number > self.high[partition][1]:
                raise UsageError(
                    f"{self.path} ends at number {self.high[partition][1]} of partition "
                    f"{partition}, but {number} was asked for",
                    hint=_COMPACT,
                )
        edge = self.stretches[0].low if default == "earliest" else self.high
        return {**edge, **given}

    @property
    def time(self) -> int:
        """The time of its newest change, or drop."""
        return max(
            [*(stretch.time for stretch in self.stretches), *(e.time or 0 for e in self.events)]
        )

    @property
    def bundle_size(self) -> int:
        """How many partitions a bundle has."""
        return -(-self.partitions // BUNDLES)

    # ------------------------------------------------------------------ maps

    def names(self) -> dict[int, str]:
        """Return the names of the maps that are there at the end."""
        return _renamed(self.maps, self.events)

    def names_at(self, cut: Vector) -> dict[int, str]:
        """Return the names of the maps that were there where the last number of a cut moved."""
        return _renamed(self.maps, self.behind(dict.fromkeys(cut, (0, 0)), cut))

    def names_by(self, time: int) -> dict[int, str]:
        """Return the names of the maps that were there at a time.

        Names have no time of their own, and count with the number that follows: or, if none
        does, with the last number of all.
        """
        counted: list[Event] = []
        waiting: list[Event] = []
        for event in self.events:
            if event.next is not None and event.next <= time:
                counted.append(event)
            elif event.name is not None:
                waiting.append(event)
            elif event.time is not None and event.time <= time:
                counted += [*waiting, event]
                waiting = []
            else:
                return _renamed(self.maps, counted)
        if time >= self.stretches[-1].time:
            counted += waiting
        return _renamed(self.maps, counted)

    def behind(self, low: Vector, high: Vector) -> Iterator[Event]:
        """Yield what became of maps before the last number of one cut, and behind that of another.

        Somewhere a cut has to go beyond the numbers that came before, for that to lie below it.
        """
        before = dict.fromkeys(range(self.partitions), 0)
        ahead_of_low = {p for p in before if low[p][1] > 0}
        ahead_of_high = {p for p in before if high[p][1] > 0}
        for event in self.events:
            for p, number in event.moved.items():
                if low[p][1] <= number:
                    ahead_of_low.discard(p)
                if high[p][1] <= number:
                    ahead_of_high.discard(p)
            if ahead_of_high and not ahead_of_low:
                yield event

    def to_json(self) -> str:
        """Return the text of ``archive.json``; ``check`` is the CRC-32C of all else."""

        def vector(of: Vector) -> dict[str, Any]:
            return {str(p): list(of[p]) for p in sorted(of)}

        def stretch(of: Stretch) -> dict[str, Any]:
            files = {
                str(bundle): [[file.name, file.size, file.crc, file.rows] for file in found]
                for bundle, found in of.files.items()
            }
            return {
                "folder": of.folder,
                "low": vector(of.low),
                "high": vector(of.high),
                "position": of.position,
                "time": of.time,
                "files": files,
            }

        def event(of: Event) -> dict[str, Any]:
            return {
                "position": of.position,
                "map": of.map,
                "name": of.name,
                "before": of.before,
                "moved": {str(p): number for p, number in of.moved.items()},
                "time": of.time,
                "next": of.next,
            }

        fields = {
            "v": VERSION,
            "store": self.store_id.hex(),
            "history": self.history_id.hex(),
            "partitions": self.partitions,
            "base": None if self.base is None else stretch(self.base),
            "stretches": list(map(stretch, self.stretches)),
            "maps": {str(number): name for number, name in self.maps.items()},
            "events": list(map(event, self.events)),
        }
        return json.dumps({**fields, "check": _check_of(fields)})


def _renamed(maps: Mapping[int, str], events: Iterable[Event]) -> dict[int, str]:
    found = dict(maps)
    for event in events:
        found.pop(event.map, None)
        if event.name is not None:
            found[event.map] = event.name
    return found


def _check_of(fields: Mapping[str, Any]) -> str:
    return f"{crc32c(json.dumps(fields, sort_keys=True).encode()):08x}"


def is_archive(path: str) -> bool:
    """Tell whether there is an archive at a path."""
    return os.path.exists(os.path.join(path, NAME))


def read_archive(path: str) -> Archive:
    """Return what an archive holds.

    Raises ``CorruptDataError`` if its account is damaged, ``FormatVersionError`` for an archive
    of another version.
    """
    place = os.path.join(path, NAME)
    try:
        with open(place, encoding="utf-8") as file:
            fields = json.load(file)
        found = fields["v"]
        if found != 1 and fields.pop("check") != _check_of(fields):
            raise ValueError("it does not match its checksum")
        if found != VERSION:
            raise FormatVersionError(
                f"{place} has version {found}; this version of tidelog knows version {VERSION}",
                found=found,
                supported=VERSION,
                hint="Compact into a new folder.",
            )
        archive = _archive_of(path, fields)
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise CorruptDataError(
            f"{place} is not an account of an archive: {error!r}", hint=_RESTORE
        ) from None
    return archive


def _archive_of(path: str, fields: Mapping[str, Any]) -> Archive:
    base = fields["base"]
    return Archive(
        path=path,
        store_id=bytes.fromhex(fields["store"]),
        history_id=bytes.fromhex(fields["history"]),
        partitions=fields["partitions"],
        base=None if base is None else _stretch(base),
        stretches=tuple(map(_stretch, fields["stretches"])),
        maps={int(number): name for number, name in fields["maps"].items()},
        events=tuple(map(_event, fields["events"])),
    )


def _stretch(fields: Mapping[str, Any]) -> Stretch:
    files = {
        int(bundle): tuple(File(name=n, size=s, crc=c, rows=r) for n, s, c, r in found)
        for bundle, found in fields["files"].items()
    }
    names = [fields["folder"], *(file.name for found in files.values() for file in found)]
    if not all(map(is_name, names)):
        raise ValueError("a file of it is not in the archive")
    return Stretch(
        folder=fields["folder"],
        low=vectors.numbers(fields["low"]),
        high=vectors.numbers(fields["high"]),
        position=fields["position"],
        time=fields["time"],
        files=files,
    )


def _event(fields: Mapping[str, Any]) -> Event:
    moved = {int(p): number for p, number in fields["moved"].items()}
    return Event(**{**fields, "moved": moved})


# ---------------------------------------------------------------------------------------- cuts


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A cut to read at: numbers by partition, or a time in microseconds UTC, or else the end."""

    vector: Vector | None = None
    time: int | None = None

    def names(self, archive: Archive) -> dict[int, str]:
        """Return the names of the maps that were there, by id."""
        if self.vector is not None:
            return archive.names_at(self.vector)
        return archive.names() if self.time is None else archive.names_by(self.time)


def moment(archive: Archive, text: str | None, *, whole: bool) -> Moment:
    """Return the cut that ``asOf`` names: ``latest``, a time, or the JSON of a vector.

    ``whole``: of a vector the greatest cut at or below it that splits no transaction.  Raises
    ``HistoryTruncatedError`` for what lies before the archive, ``UsageError`` behind it.
    """
    if text is None or text == "latest":
        return Moment()
    if text.startswith("{"):
        return _at_vector(archive, text, whole=whole)
    if text.isdecimal():
        raise UsageError(
            f"{archive.path} is an archive, which has no checkpoints: asOf={text}",
            hint="Stores and hot copies have one. A time has dashes, such as 2026-11-22.",
        )
    time = time_of(text)
    if time > archive.time:
        raise UsageError(
            f"{archive.path} ends at {text_of(archive.time)}, but {text} was asked for",
            hint=_COMPACT,
        )
    if archive.base is not None and time < archive.base.time:
        raise _before(archive, archive.base.time, text)
    return Moment(time=time)


def _before(archive: Archive, time: int, text: str) -> HistoryTruncatedError:
    return HistoryTruncatedError(
        f"{archive.path} holds the data from {text_of(time)} on, but {text} was asked for",
        hint="The log had been trimmed when the archive was begun.",
    )


def _at_vector(archive: Archive, text: str, *, whole: bool) -> Moment:
    wanted = archive.vector(text, "latest")
    if whole:
        wanted = _closed(archive, wanted)
    if archive.base is not None and any(
        wanted[p][1] < number for p, (_, number) in archive.base.high.items()
    ):
        raise _before(archive, archive.base.time, text)
    return Moment(vector=wanted)


def vector_at(archive: Archive, at: Moment) -> Vector:
    """Return the numbers up to which a cut has the changes."""
    if at.vector is not None:
        return at.vector
    if at.time is None:
        return dict(archive.high)
    found = archive.vector("earliest", "earliest")
    for stretch in archive.parts():
        if stretch.time > at.time:
            for p, counter, time in _columns(archive, stretch, "partition", "counter", "time"):
                if time <= at.time and counter > found[p][1]:
                    found[p] = found[p][0], counter
            break
        found = dict(stretch.high)
    return found


def _closed(archive: Archive, wanted: Vector) -> dict[int, Number]:
    """Lower a vector until no transaction has parts on both sides.

    From the first stretch to the last: what one lowers can split transactions of later ones only.
    """
    cut = dict(wanted)
    for stretch in archive.stretches:
        if not _straddles(stretch, cut):
            continue
        parts: dict[bytes, list[tuple[int, ...]]] = {}
        for partition, counter, tx_id in _columns(
            archive, stretch, "partition", "counter", "tx_id"
        ):
            parts.setdefault(tx_id, []).append((partition, counter))
        spread = [rows for rows in parts.values() if len(rows) > 1]
        changed = True
        while changed:
            changed = False
            for rows in spread:
                if any(n > cut[p][1] for p, n in rows):
                    for partition, number in rows:
                        if number <= cut[partition][1]:
                            cut[partition] = (cut[partition][0], number - 1)
                            changed = True
    return cut


def _straddles(stretch: Stretch, cut: Vector) -> bool:
    """Tell whether a cut lies within a stretch."""
    return any(cut[p][1] > n for p, (_, n) in stretch.low.items()) and any(
        cut[p][1] < n for p, (_, n) in stretch.high.items()
    )


def _columns(archive: Archive, stretch: Stretch, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield some columns of all changes of a stretch; ``time`` is in microseconds."""
    wanted = ["commit_ts" if name == "time" else name for name in names]
    for bundle in stretch.files:
        for batch in _batches(archive.path, stretch, bundle, 10_000, wanted):
            yield from zip(*(_values(batch, name) for name in names), strict=True)


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    import pyarrow as pa

    if name == "time":
        found: list[Any] = batch.column("commit_ts").cast(pa.int64()).to_pylist()
    else:
        found = batch.column(name).to_pylist()
    return found


@contextmanager
def _opened(path: str, stretch: Stretch, file: File) -> Iterator[ParquetFile]:
    """Open a file for a block, if it is what was written.

    Whatever goes wrong with it in the block is a ``CorruptDataError`` that names it.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    shown = os.path.join(path, stretch.folder, file.name)
    try:
        with open_plain(path, stretch.folder, file.name) as source:
            check_size_and_crc(source, shown, file.size, file.crc)
            with ParquetFile(source, page_checksum_verification=True) as found:
                if found.metadata.num_rows != file.rows:
                    raise CorruptDataError(
                        f"{shown} has {found.metadata.num_rows:,} rows, {file.rows:,} were written"
                    )
                yield found
    except CorruptDataError as error:
        error.advise(_RESTORE)
        raise
    except (OSError, pa.ArrowException) as error:
        raise CorruptDataError(f"{shown} cannot be read: {error}", hint=_RESTORE) from error


def _batches(
    path: str,
    stretch: Stretch,
    bundle: int,
    rows: int,
    columns: list[str] | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the changes of a bundle, with the columns of today; raises ``CorruptDataError``."""
    schema = arrow_schema([field for field in CHANGES if columns is None or field[0] in columns])
    for file in stretch.files.get(bundle, ()):
        with _opened(path, stretch, file) as found:
            for group in range(found.num_row_groups):
                # A group is bounded in bytes, and its batches begin with it.
                for batch in found.iter_batches(
                    rows, row_groups=[group], columns=columns, use_threads=False
                ):
                    yield _conformed(batch, schema)


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of a schema: null what their file was written without."""
    import pyarrow as pa

    arrays = [
        batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows, kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def damaged_files(archive: Archive) -> Iterator[tuple[str, str]]:
    """Yield each file of an archive that is not what was written, and what is wrong with it."""
    for stretch in archive.parts():
        for bundle, files in stretch.files.items():
            for file in files:
                try:
                    alone = replace(stretch, files={bundle: (file,)})
                    for _ in _batches(archive.path, alone, bundle, 10_000):
                        pass
                except CorruptDataError as error:
                    yield f"{stretch.folder}/{file.name}", str(error)


# ---------------------------------------------------------------------------------------- tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedData:
    """The data of a bundle of partitions at a cut, for one task."""

    archive: Archive
    bundle: int
    at: Moment
    maps: dict[int, str]
    """Names of the wanted maps by id."""
    partitions: frozenset[int] | None
    start: bytes
    stop: bytes | None

    def batches(self, columns: tuple[str, ...] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read them; the keys, and which change of each is the newest, are held in memory."""
        newest: dict[tuple[int, bytes], tuple[int, int, int]] = {}
        parts = self.archive.parts()
        for place, stretch in enumerate(parts):
            for partition, number, counter, key, op in self._keys(stretch):
                if op == "put":
                    # The base has changes that stretches may have, too.
                    newest[number, key] = place, partition, counter
                elif op == "delete":
                    newest.pop((number, key), None)
        wanted: list[set[tuple[int, int]]] = [set() for _ in parts]
        while newest:
            _, (place, partition, counter) = newest.popitem()
            wanted[place].add((partition, counter))
        schema = arrow_schema(SNAPSHOT)
        chosen = [name for name in schema.names if columns is None or name in columns]
        for stretch, numbers in zip(parts, wanted, strict=True):
            for batch in _batches(self.archive.path, stretch, self.bundle, batch_rows):
                yield from self._chosen(batch, numbers, schema, chosen)

    def _chosen(
        self,
        batch: pa.RecordBatch,
        wanted: set[tuple[int, int]],
        schema: pa.Schema,
        columns: list[str],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of changes that are the newest ones, as data, if there are any."""
        import pyarrow as pa

        numbers = zip(
            batch.column("partition").to_pylist(), batch.column("counter").to_pylist(), strict=True
        )
        mask = pa.array([number in wanted for number in numbers], pa.bool_())
        if not mask.true_count:
            return
        batch = batch.filter(mask)
        names = pa.array(map(self.maps.get, batch.column("map_id").to_pylist()), pa.string())
        arrays = [names if name == "namespace" else batch.column(name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema).select(columns)

    def _keys(self, stretch: Stretch) -> Iterator[tuple[int, int, int, bytes, str]]:
        """Yield (partition, map, counter, key, op) of the wanted changes."""
        vector, last = self.at.vector, self.at.time
        names = ["partition", "map_id", "counter", "key", "op", "commit_ts"]
        for batch in _batches(self.archive.path, stretch, self.bundle, 10_000, names):
            columns = [_values(batch, name) for name in (*names[:5], "time")]
            for partition, number, counter, key, op, time in zip(*columns, strict=True):
                if op == "rollback" or number not in self.maps:
                    continue
                if self.partitions is not None and partition not in self.partitions:
                    continue
                if vector is not None and counter > vector[partition][1]:
                    continue
                if last is not None and time > last:
                    continue
                if key >= self.start and (self.stop is None or key < self.stop):
                    yield partition, number, counter, key, op


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedChanges:
    """The changes of a bundle of partitions in one stretch, for one task."""

    path: str
    stretch: Stretch
    bundle: int
    wanted: Wanted
    since: int | None
    """The time of the oldest change that is wanted."""

    def batches(self, columns: tuple[str, ...] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read those that are wanted, in the order of their numbers."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = self.wanted
        schema = arrow_schema(CHANGE_FIELDS[wanted.form])
        chosen = [name for name in schema.names if columns is None or name in columns]
        filtered = wanted.filter()
        for batch in _batches(self.path, self.stretch, self.bundle, batch_rows):
            of = dict(zip(batch.schema.names, batch.columns, strict=True))
            keep = pc.or_(pc.not_equal(of["op"], "rollback"), wanted.rollbacks)
            if self.since is not None:
                since = pa.scalar(self.since, of["commit_ts"].type)
                keep = pc.and_(keep, pc.greater_equal(of["commit_ts"], since))
            of["op"] = pc.if_else(pc.equal(of["op"], "put"), PUT[wanted.form], of["op"])
            batch = pa.RecordBatch.from_arrays(list(of.values()), schema=schema).filter(keep)
            batch = filtered(batch)
            if batch.num_rows:
                yield batch.select(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedCatalog:
    """What became of maps, as rows of the changes, for one task."""

    rows: tuple[CatalogRow, ...]
    form: ChangeFormat

    def batches(self, columns: tuple[str, ...] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Return them."""
        for at in range(0, len(self.rows), batch_rows):
            batch = catalog_batch(self.rows[at : at + batch_rows], self.form)
            yield batch if columns is None else batch.select(columns)


def tasks_of_data(
    archive: Archive,
    at: Moment,
    *,
    namespace: str | None,
    partitions: frozenset[int] | None,
    keys: tuple[bytes, bytes | None],
) -> list[ArchivedData]:
    """Return the tasks that read the data at a cut."""
    live = at.names(archive)
    maps = {n: name for n, name in live.items() if namespace in (None, name)}
    if namespace is not None and not maps:
        raise UsageError(
            f"there is no map {namespace!r} in {archive.path} at that time",
            hint=f"There are {', '.join(sorted(live.values())) or 'none'}.",
        )
    start, stop = keys
    return [
        ArchivedData(
            archive=archive, bundle=bundle, at=at, maps=maps, partitions=partitions,
            start=start, stop=stop,
        )
        for bundle in _bundles(archive, partitions)
    ]  # fmt: skip


def tasks_of_changes(
    archive: Archive, wanted: Wanted, since: int | None = None, *, catalog: bool = False
) -> list[ArchivedChanges | ArchivedCatalog]:
    """Return the tasks that read changes, but those of before a time.

    ``catalog``: and what became of maps between the first number that is wanted and the last.
    """
    named = [*archive.maps.values(), *(event.name for event in archive.events)]
    if wanted.namespace is not None and wanted.namespace not in named:
        raise UsageError(
            f"there is no map {wanted.namespace!r} in {archive.path}",
            hint=f"There are {', '.join(sorted(archive.names().values())) or 'none'}.",
        )
    found: list[ArchivedChanges | ArchivedCatalog] = []
    if catalog:
        everywhere = replace(wanted, catalog=(0, 1 << 64))
        events = archive.behind(wanted.low, wanted.high)
        rows = [
            event.row()
            for event in events
            if event.before is not None and (since is None or (event.next or since) >= since)
        ]
        kept = tuple(row for row in rows if wants(everywhere, row))
        found += [ArchivedCatalog(rows=kept, form=wanted.form)] if kept else []
    found += [
        ArchivedChanges(
            path=archive.path,
            stretch=stretch,
            bundle=bundle,
            wanted=wanted,
            since=since,
        )
        for stretch in archive.stretches
        for bundle in _bundles(archive, wanted.partitions)
        if bundle in stretch.files and _overlaps(stretch, wanted)
    ]
    return found


def _overlaps(stretch: Stretch, wanted: Wanted) -> bool:
    return any(
        wanted.low[p][1] < stretch.high[p][1] and wanted.high[p][1] > stretch.low[p][1]
        for p in stretch.high
    )


def _bundles(archive: Archive, partitions: Iterable[int] | None) -> list[int]:
    """Return the bundles that some partitions, or all, lie in."""
    size = archive.bundle_size
    wanted = range(archive.partitions) if partitions is None else partitions
    return sorted({partition // size for partition in wanted})
