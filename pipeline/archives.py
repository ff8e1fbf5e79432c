"""Archives: the changes of a store in columns, kept for as long as somebody likes.

An archive is a folder.  Each *stretch* of it holds the changes between two cuts of the log, as
Parquet files, one or more for each *bundle* of partitions, in the order of the log; maps stand
there by id.  An archive whose log had been trimmed when it was begun has a *base*, too: the data of
the store at a later cut.  ``archive.json`` names all of that, and what maps were called when.

Invariants:

- What ``archive.json`` does not name does not exist; it is replaced when all that it names is
  durable.  A run that dies leaves a folder that the next one removes.
- Stretches join: each begins where the one before ended, and transactions are never split.
- The state at a cut is the newest change of each key at or below it, over the base.

Left out: writing (``compaction``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..affinity.errors import CorruptDataError, HistoryTruncatedError, UsageError
from . import vectors
from .changes import PUT, Wanted
from .columns import CHANGE_FIELDS, SNAPSHOT, Rows, arrow_schema
from .logs import check_partitions
from .times import text_of, time_of
from .vectors import Number, Vector

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "archive.json"
BUNDLES = 16
"""Into as many the partitions are divided; a task that rebuilds the data holds one of them."""

VERSION = 1

_COMPACT = "Compact what the store has logged since."


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The changes between two cuts, of which the second lies at ``position`` in the log.

    ``time`` is that of the newest, in microseconds UTC.
    """

    folder: str
    low: Vector
    high: Vector
    position: int
    time: int
    rows: int
    files: Mapping[int, Sequence[str]]
    """Names of files by bundle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A map got a name at some time, or was dropped (no name)."""

    time: int
    map: int
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What an archive holds."""

    path: str
    store_id: bytes
    history_id: bytes
    partitions: int
    base: Stretch | None = None
    stretches: tuple[Stretch, ...] = ()
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
                    f"{partition}, wanted was {number}",
                    hint=_COMPACT,
                )
        edge = self.stretches[0].low if default == "earliest" else self.high
        return {**edge, **given}

    @property
    def time(self) -> int:
        """The time of its newest change."""
        return max(stretch.time for stretch in self.stretches)

    @property
    def bundle_size(self) -> int:
        """How many partitions a bundle has."""
        return -(-self.partitions // BUNDLES)

    def names(self, time: int | None = None) -> dict[int, str]:
        """Return the names of the maps that were there at a time, or at the end."""
        found: dict[int, str] = {}
        for event in self.events:
            if time is None or event.time <= time:
                found.pop(event.map, None)
                if event.name is not None:
                    found[event.map] = event.name
        return found

    def all_names(self) -> dict[int, str]:
        """Return the last name of every map, dropped ones included."""
        return {event.map: event.name for event in self.events if event.name is not None}

    def to_json(self) -> str:
        """Return the text of ``archive.json``."""

        def vector(of: Vector) -> dict[str, Any]:
            return {str(p): list(of[p]) for p in sorted(of)}

        def stretch(of: Stretch) -> dict[str, Any]:
            files = {str(bundle): list(names) for bundle, names in of.files.items()}
            return {
                "folder": of.folder,
                "low": vector(of.low),
                "high": vector(of.high),
                "position": of.position,
                "time": of.time,
                "rows": of.rows,
                "files": files,
            }

        fields = {
            "v": VERSION,
            "store": self.store_id.hex(),
            "history": self.history_id.hex(),
            "partitions": self.partitions,
            "base": None if self.base is None else stretch(self.base),
            "stretches": list(map(stretch, self.stretches)),
            "events": [[event.time, event.map, event.name] for event in self.events],
        }
        return json.dumps(fields)


def is_archive(path: str) -> bool:
    """Tell whether there is an archive at a path."""
    return os.path.exists(os.path.join(path, NAME))


def load(path: str) -> Archive:
    """Return what an archive holds; ``CorruptDataError`` where its account is damaged."""
    with open(os.path.join(path, NAME), encoding="utf-8") as file:
        text = file.read()
    try:
        fields = json.loads(text)
        if fields["v"] != VERSION:
            raise ValueError(f"version {fields['v']}, {VERSION} is known")
        base = fields["base"]
        return Archive(
            path=path,
            store_id=bytes.fromhex(fields["store"]),
            history_id=bytes.fromhex(fields["history"]),
            partitions=fields["partitions"],
            base=None if base is None else _stretch(base),
            stretches=tuple(map(_stretch, fields["stretches"])),
            events=tuple(Event(time=t, map=m, name=n) for t, m, n in fields["events"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            f"{os.path.join(path, NAME)} is no account of an archive: {error!r}",
            hint="Restore the archive, or compact into a new one.",
        ) from error


def _stretch(fields: Mapping[str, Any]) -> Stretch:
    return Stretch(
        folder=fields["folder"],
        low=vectors.numbers(fields["low"]),
        high=vectors.numbers(fields["high"]),
        position=fields["position"],
        time=fields["time"],
        rows=fields["rows"],
        files={int(bundle): tuple(names) for bundle, names in fields["files"].items()},
    )


# ---------------------------------------------------------------------------------------- cuts


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A cut to read at: numbers by partition, or a time in microseconds UTC."""

    vector: Vector | None = None
    time: int


def moment(archive: Archive, text: str | None, *, whole: bool) -> Moment:
    """Return the cut that ``asOf`` names: ``latest``, a time, or the JSON of a vector.

    ``whole``: of a vector the greatest cut at or below it that splits no transaction.  Raises
    ``HistoryTruncatedError`` for what lies before the archive, ``UsageError`` behind it.
    """
    if text is None or text == "latest":
        return Moment(time=archive.time)
    if text.startswith("{"):
        return _at_vector(archive, text, whole=whole)
    if text.isdecimal():
        raise UsageError(
            f"{archive.path} is an archive, which has no checkpoints: asOf={text}",
            hint="A store has one, and hot copies. A time has dashes, such as 2026-11-22.",
        )
    time = time_of(text)
    if time > archive.time:
        raise UsageError(
            f"{archive.path} ends at {text_of(archive.time)}, wanted was {text}",
            hint=_COMPACT,
        )
    if archive.base is not None and time < archive.base.time:
        raise _before(archive, archive.base.time, text)
    return Moment(time=time)


def _before(archive: Archive, time: int, text: str) -> HistoryTruncatedError:
    return HistoryTruncatedError(
        f"{archive.path} holds the data from {text_of(time)} on, wanted was {text}",
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
    return Moment(vector=wanted, time=_newest_time(archive, wanted))


def vector_at(archive: Archive, at: Moment) -> Vector:
    """Return the numbers up to which a cut has the changes."""
    if at.vector is not None:
        return at.vector
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


def _newest_time(archive: Archive, cut: Vector) -> int:
    """Return the time of the newest change at or below a cut."""
    newest = 0 if archive.base is None else archive.base.time
    for stretch in archive.stretches:
        if all(cut[p][1] >= n for p, (_, n) in stretch.high.items()):
            newest = max(newest, stretch.time)
        elif _straddles(stretch, cut):
            for p, counter, time in _columns(archive, stretch, "partition", "counter", "time"):
                if counter <= cut[p][1]:
                    newest = max(newest, time)
    return newest


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


def _batches(
    path: str, stretch: Stretch, bundle: int, rows: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    from pyarrow.parquet import ParquetFile

    for name in stretch.files.get(bundle, ()):
        with ParquetFile(os.path.join(path, stretch.folder, name)) as file:
            yield from file.iter_batches(batch_size=rows, columns=columns)


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
        """Read them; the newest change of each key is held in memory."""
        newest: dict[tuple[int, bytes], tuple[Any, ...]] = {}
        archive = self.archive
        for stretch in archive.parts():
            for row in self._rows(stretch):
                _, number, _, key, op, *_ = row
                if op == "put":
                    newest[number, key] = row
                elif op == "delete":
                    newest.pop((number, key), None)
        rows = Rows(SNAPSHOT, columns, batch_rows)
        for (number, key), (partition, _, counter, _, _, value, tx_id, time) in newest.items():
            name = self.maps[number]
            rows.add(1, (name,), (key,), (value,), (partition,), (counter,), (tx_id,), (time,))
            if rows.full:
                yield from rows.batch()
        yield from rows.batch()

    def _rows(self, stretch: Stretch) -> Iterator[tuple[Any, ...]]:
        """Yield (partition, map, counter, key, op, value, id, time) of the wanted changes."""
        limit = self.at.vector
        names = ("partition", "namespace", "counter", "key", "op", "value", "tx_id", "commit_ts")
        for batch in _batches(self.archive.path, stretch, self.bundle, 10_000, [*names]):
            columns = [batch.column(name).to_pylist() for name in names]
            times = _values(batch, "time")
            for row, time in zip(zip(*columns, strict=True), times, strict=True):
                partition, namespace, counter, key, op, *_ = row
                if op == "rollback" or int(namespace) not in self.maps:
                    continue
                if self.partitions is not None and partition not in self.partitions:
                    continue
                if (counter > limit[partition][1]) if limit is not None else (time > self.at.time):
                    continue
                if key >= self.start and (self.stop is None or key < self.stop):
                    yield partition, int(namespace), counter, key, op, *row[5:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedChanges:
    """The changes of a bundle of partitions in one stretch, for one task."""

    path: str
    stretch: Stretch
    bundle: int
    names: dict[int, str]
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
            names = [
                None if number is None else self.names.get(int(number), number)
                for number in of["namespace"].to_pylist()
            ]
            keep = pc.or_(pc.not_equal(of["op"], "rollback"), wanted.rollbacks)
            if self.since is not None:
                since = pa.scalar(self.since, of["commit_ts"].type)
                keep = pc.and_(keep, pc.greater_equal(of["commit_ts"], since))
            of["namespace"] = pa.array(names, pa.string())
            of["op"] = pc.if_else(pc.equal(of["op"], "put"), PUT[wanted.form], of["op"])
            batch = pa.RecordBatch.from_arrays(list(of.values()), schema=schema).filter(keep)
            batch = filtered(batch)
            if batch.num_rows:
                yield batch.select(chosen)


def data_tasks(
    archive: Archive,
    at: Moment,
    *,
    namespace: str | None,
    partitions: frozenset[int] | None,
    keys: tuple[bytes, bytes | None],
) -> list[ArchivedData]:
    """Return the tasks that read the data at a cut."""
    live = archive.names(at.time)
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


def change_tasks(
    archive: Archive, wanted: Wanted, since: int | None = None
) -> list[ArchivedChanges]:
    """Return the tasks that read changes, but those of before a time."""
    names = archive.all_names()
    return [
        ArchivedChanges(
            path=archive.path,
            stretch=stretch,
            bundle=bundle,
            names=names,
            wanted=wanted,
            since=since,
        )
        for stretch in archive.stretches
        for bundle in _bundles(archive, wanted.partitions)
        if bundle in stretch.files and _overlaps(stretch, wanted)
    ]


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


def with_stretch(archive: Archive, stretch: Stretch, events: Iterable[Event]) -> Archive:
    """Return an archive that holds one stretch more."""
    return replace(
        archive,
        stretches=(*archive.stretches, stretch),
        events=(*archive.events, *events),
    )
