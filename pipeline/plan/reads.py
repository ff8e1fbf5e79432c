"""What a read of each view consists of: cuts that are pinned, and tasks that go anywhere.

Nothing here knows Spark: a tool runs the tasks one after the other.

Invariants:

- A read is planned once: all of its tasks see the same cut, whatever a writer does meanwhile.
- Any number of tasks gives the same rows.
- A task holds all that it needs but the files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from ...affinity.errors import HistoryTruncatedError, SnapshotExpiredError, UsageError
from ...engine.data.scan import after_prefix
from ...wal.format import Frame
from ...wal.records import IngestRecord
from ..base import vectors
from ..base.remote import at_hand, is_remote
from ..base.vectors import Number, Vector
from ..data import archives, snapshots
from ..data.archives import Archive, ArchivedCatalog, ArchivedChanges, ArchivedData
from ..data.decoded import DECODE_ERROR
from ..data.past import cut_as_of
from ..data.snapshots import Account, Part, PartAsPuts
from ..log import columns
from ..log.changes import Wanted, changes
from ..log.columns import wal
from ..log.logs import BadFrame, Cut, Log, Slice, attached, check_partitions
from .decoding import SAMPLED_ROWS, with_decoding
from .options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa


_log = logging.getLogger("tidelog.pipeline")

_FIELDS = {
    "snapshot": columns.SNAPSHOT,
    "wal": columns.WAL,
    "meta": columns.META,
}


@dataclass(frozen=True, slots=True)
class LostEnd:
    """The end of a log that should go on."""

    path: str
    frame: BadFrame

    def batches(self, columns: tuple[str, ...] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Return a row of the view ``wal`` that says so."""
        return wal([self.frame], self.path, columns=columns, batch_rows=batch_rows)


@dataclass(frozen=True, slots=True)
class Task:
    """What one task reads: a part that knows how, or a slice of a log and what is wanted of it."""

    options: ReadOptions
    part: (
        Slice
        | LostEnd
        | Part
        | PartAsPuts
        | Account
        | ArchivedData
        | ArchivedChanges
        | ArchivedCatalog
    )
    columns: tuple[str, ...] | None
    """The columns that are wanted, in this order; None is all of them."""
    node: str = ""
    """The path of what the rows are of, in views whose parts do not say it themselves."""
    wanted: Wanted | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    """Names of maps by id, for what lies behind damage, if nothing else tells them."""
    damage: frozenset[tuple[int, int]] = frozenset()
    """Segment and offset of what was found unreadable when the changes were planned."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read it; raises ``StorageError``: damage, or what was planned is gone."""
        wanted, decoding = self.columns, self.options.decoding
        origins = dict(self.options.origins)
        for here, place in origins.items():
            if at_hand(place) != here:
                raise SnapshotExpiredError(
                    f"{place} was changed since the read was planned", hint="Load it again."
                )
        stored = None if wanted is None else self._stored(wanted)
        with closing(self._batches(stored)) as batches:
            for batch in batches:
                if wanted is not None and decoding is not None:
                    batch = decoding.decoded(batch, wanted, self.node)
                if columns.NODE in (wanted or batch.schema.names):
                    if self._made:
                        batch = columns.with_node(batch, origins.get(self.node, self.node))
                    elif self.node in origins:
                        batch = columns.with_node(batch.drop_columns("node"), origins[self.node])
                ordered = wanted is None or batch.schema.names == [*wanted]
                yield batch if ordered else batch.select(wanted)

    @property
    def _made(self) -> bool:
        """Whether some columns are made of others."""
        return self.options.view in ("snapshot", "changes")

    def _stored(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return what has to be read for columns, some of which are made of others."""
        if not self._made:
            return wanted
        stored = dict.fromkeys(n for n in wanted if n not in (columns.NODE, DECODE_ERROR))
        if self.options.decoding is not None:
            stored |= dict.fromkeys(("map_id", "key"))
            if DECODE_ERROR in wanted:
                stored["value"] = None
        return (*stored,) or ("partition",)

    def _batches(self, stored: tuple[str, ...] | None) -> Generator[pa.RecordBatch, None, None]:
        options = self.options
        if not isinstance(self.part, Slice):
            yield from self.part.batches(stored, options.batch_rows)
            return
        log = Log(self.part.path)
        frames = self._frames(log, self.part)
        try:
            if self.wanted is None:
                yield from columns.wal(
                    frames, log.path, columns=stored, batch_rows=options.batch_rows
                )
            else:
                yield from changes(
                    frames,
                    {**self.names, **log.names_below(self.part)},
                    self.wanted,
                    self._attached,
                    columns=stored,
                    batch_rows=options.batch_rows,
                )
        finally:
            frames.close()

    def _attached(self, record: IngestRecord, position: int) -> None:
        assert isinstance(self.part, Slice)
        assert self.wanted is not None
        name = Log(self.part.path).name_of_load(record.namespace, position)
        if self.wanted.has_load(name):
            _skip(self.options, attached(self.part.path, name, record))

    def _frames(self, log: Log, part: Slice) -> Generator[Frame | BadFrame, None, None]:
        """Return the frames to read; those of changes without damage that was known before."""
        permissive = self.options.mode == "PERMISSIVE"
        frames = log.frames(part, permissive=permissive)
        return frames if self.wanted is None or not permissive else self._known(log, frames)

    def _known(
        self, log: Log, frames: Generator[Frame | BadFrame, None, None]
    ) -> Generator[Frame | BadFrame, None, None]:
        with closing(frames):
            for frame in frames:
                if isinstance(frame, Frame):
                    yield frame
                elif (frame.segment, frame.offset) not in self.damage:
                    raise frame.error(log.path)


def fields_of(options: ReadOptions) -> columns.Fields:
    """Return the columns of a view, or those asked for, with their Spark types."""
    options = resolved(options)
    fields = _fields(options)
    if options.columns is None:
        alone = len(options.paths) == 1 and options.view in ("snapshot", "changes")
        return [field for field in fields if not (alone and field[0] == columns.NODE)]
    kinds = dict(fields)
    check_fields(options, [(name, kinds.get(name, "")) for name in options.columns])
    return [(name, kinds[name]) for name in options.columns]


def _fields(options: ReadOptions) -> columns.Fields:
    """Return all columns that a view may have, with their Spark types."""
    fields = _FIELDS.get(options.view, columns.CHANGE_FIELDS[options.form])
    if options.view not in ("snapshot", "changes"):
        return fields
    found = [*fields, (columns.NODE, "string")]
    return found if options.decoding is None else options.decoding.fields(found)


def resolved(options: ReadOptions, *, stream: bool = False) -> ReadOptions:
    """Return options that say how what they read is decoded, and whose paths are on this machine.

    Raises as ``at_hand`` and ``with_decoding`` do.
    """
    return with_decoding(_at_hand(options, stream), _sample, stream=stream)


def _at_hand(options: ReadOptions, stream: bool) -> ReadOptions:
    """Return options in which copies on this machine stand for places that are elsewhere."""
    if options.origins:
        return options
    # Logs are plain files, which need no locks.
    data = {*options.bases, *(options.paths if options.view in ("snapshot", "meta") else ())}
    places = {
        place: at_hand(place) if place in data or is_remote(place) else place
        for place in (*options.paths, *options.bases)
    }
    origins = tuple((here, place) for place, here in places.items() if here != place)
    moving = [place for place in options.paths if places[place] != place]
    if stream and moving:
        raise UsageError(
            f"{moving[0]} is not on a local disk: it is a copy, to which nothing is added",
            hint="Stream a store, or its segments, on the machine where it is written.",
        )
    return replace(
        options,
        paths=tuple(places[place] for place in options.paths),
        bases=tuple(places[place] for place in options.bases),
        origins=origins,
    )


def _sample(options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read what tells types of keys and values."""
    stored = replace(options, decode=False, columns=None, batch_rows=SAMPLED_ROWS)
    for task in read(stored, ("map_id", "key", "value")):
        yield from task.batches()


def chosen_columns(options: ReadOptions, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the columns that tasks make; None is all that is stored."""
    if names is not None:
        return tuple(names)
    made = options.decoding is not None or len(options.paths) > 1 or bool(options.origins)
    return tuple(name for name, _ in fields_of(options)) if made else options.columns


def check_apart(options: ReadOptions) -> None:
    """Raise ``UsageError`` if two paths are of one store: its rows would count twice."""
    known: dict[bytes, str] = {}
    kinds = list(map(archives.is_archive, options.paths))
    if len(kinds) == 1 or len(set(kinds)) > 1:  # archives and stores are refused together, too
        return
    for path in options.paths:
        found = archives.read_archive(path) if kinds[0] else Log(path)
        other = known.setdefault(found.store_id, path)
        if other is not path:
            raise UsageError(
                f"{other} and {path} are of one store: its rows would count twice",
                hint="Leave one out, or read them apart and unite what you have read.",
            )


def check_fields(options: ReadOptions, asked: columns.Fields) -> None:
    """Raise ``UsageError`` unless columns, with their Spark types, are some of a view's."""
    options = resolved(options)
    kinds = dict(_fields(options))
    unknown = [name for name, _ in asked if name not in kinds]
    if unknown:
        raise UsageError(
            f"view {options.view!r} has no column {', '.join(unknown)}",
            hint=f"Its columns are {', '.join(kinds)}.",
        )
    wrong = [f"{name} is {kinds[name]}, not {kind}" for name, kind in asked if kind != kinds[name]]
    if wrong:
        raise UsageError(
            f"columns of view {options.view!r} have other types: {', '.join(wrong)}",
            hint="Give them as they are, and cast them behind the read.",
        )


def read(options: ReadOptions, names: Sequence[str] | None = None) -> list[Task]:
    """Plan a read of what there is now; ``names`` are the columns that are wanted, in order."""
    if options.view == "snapshot":
        return read_snapshot(options, names)[0]
    options = resolved(options)
    chosen = chosen_columns(options, names)
    tasks: list[Task] = []
    if options.view == "changes":
        check_apart(options)
    if any(map(archives.is_archive, options.paths)):
        return _archived_changes(options, chosen)
    if options.view == "meta":
        return [Task(options, Account(path), chosen, path) for path in options.paths]
    logs = [Log(path) for path in options.paths]
    if options.view == "wal":
        for log in logs:
            start, end = log.extent(permissive=options.mode == "PERMISSIVE")
            slices = log.slices(start, end, most_bytes=task_bytes(options, end - start))
            tasks += [Task(options, part, chosen, log.path) for part in slices]
            lost = log.lost_end() if options.mode == "PERMISSIVE" else None
            if lost is not None:
                tasks.append(Task(options, LostEnd(log.path, lost), chosen, log.path))
        return tasks
    for log in logs:
        low = start_of(log, options, "earliest")
        if options.mode == "PERMISSIVE":
            tasks += _readable_changes(log, options, chosen, low)
            continue
        cut = log.newest()
        high = _end(log, options, cut)
        for vector in (low, high):
            cut.check_reaches(vector, log.path)
        check_map(log, options, cut)
        tasks += change_tasks(log, options, chosen, low, high, cut)
    return tasks


def _readable_changes(
    log: Log, options: ReadOptions, chosen: tuple[str, ...] | None, low: Vector
) -> list[Task]:
    """Return the tasks that read each partition up to its first gap, and tell where that is."""
    cut, damage = log.salvage()
    for error in damage:
        _log.warning("log.damaged %s", error, extra={"event": "log.damaged"})
    for partition, counter in enumerate(cut.state.counters):
        if counter.lwm < counter.hwm:
            _log.warning(
                "changes.stopped path=%s partition=%d counter=%d of=%d",
                log.path,
                partition,
                counter.lwm,
                counter.hwm,
                extra={"event": "changes.stopped"},
            )
    here, wanted = cut.vector(), _end(log, options, cut)
    check_map(log, options, cut)
    high = {p: min(here[p], wanted[p], key=itemgetter(1)) for p in here}
    found = frozenset((error.segment, error.offset) for error in damage)
    tasks = change_tasks(log, options, chosen, low, high, cut)
    names = {number: name for number, name in log.names(cut).items() if name}
    return [replace(task, damage=found, names=names) for task in tasks]


def _end(log: Log, options: ReadOptions, cut: Cut) -> dict[int, Number]:
    """Return the vector at which a batch ends; ``cut`` is the newest one."""
    if options.ending == "earliest":
        return log.earliest().vector()
    if options.ending in (None, "latest"):
        return cut.vector()
    return {**cut.vector(), **vectors.given(options.ending, log.store_id, log.history_id)}


def read_snapshot(
    options: ReadOptions, names: Sequence[str] | None = None
) -> tuple[list[Task], dict[str, Vector]]:
    """Plan a read of view ``snapshot`` as ``read`` does; return the cut of each path, too."""
    options = resolved(options)
    chosen = chosen_columns(options, names)
    check_apart(options)
    archived = any(map(archives.is_archive, options.paths))
    plan = _archived_data if archived else _snapshot
    parts: list[Part | ArchivedData] = []
    nodes: list[str] = []
    cuts = {}
    for path in options.paths:
        found, cuts[dict(options.origins).get(path, path)] = plan(path, options)
        parts += found
        nodes += [path] * len(found)
    shared = zip(_shared(parts, options), nodes, strict=True)
    return [Task(options, part, chosen, node) for part, node in shared], cuts


def _shared(
    parts: list[Part | ArchivedData], options: ReadOptions
) -> Iterator[Part | ArchivedData]:
    """Yield the parts of a read, each with its share of the bytes that it may read per second."""
    for part in parts:
        if options.bytes_per_second is not None and isinstance(part, Part):
            part = replace(part, bytes_per_second=options.bytes_per_second / len(parts))
        yield part


def _archived_data(path: str, options: ReadOptions) -> tuple[list[ArchivedData], Vector]:
    """Return what reads the data of an archive at the cut that is wanted, and that cut."""
    if options.bytes_per_second is not None:
        raise UsageError(
            "archives have no maxReadBytesPerSec",
            hint="A task reads files of a whole bundle before its first row.",
        )
    archive = _archive(path, options)
    at = archives.moment(archive, options.as_of, whole=options.consistency == "transaction")
    parts = archives.tasks_of_data(
        archive,
        at,
        namespace=options.namespace,
        partitions=options.partitions,
        keys=_keys(options),
    )
    return parts, archives.vector_at(archive, at)


def _archived_changes(options: ReadOptions, chosen: tuple[str, ...] | None) -> list[Task]:
    """Plan a read of the changes in archives."""
    tasks: list[Task] = []
    for path in options.paths:
        archive = _archive(path, options)
        low = archive.vector(options.starting, "earliest")
        wanted = _wanted(options, low, archive.vector(options.ending, "latest"))
        parts = archives.tasks_of_changes(archive, wanted, options.since, catalog=options.catalog)
        tasks += [Task(options, part, chosen, path) for part in parts]
    return tasks


def _archive(path: str, options: ReadOptions) -> Archive:
    """Return what an archive holds, if it has what is asked of it."""
    if not archives.is_archive(path):
        raise UsageError(f"{path} is not an archive", hint="Read archives and stores apart.")
    if options.view not in ("snapshot", "changes"):
        raise UsageError(
            f"{path} is an archive, which has no view {options.view!r}",
            hint="It has snapshot and changes.",
        )
    archive = archives.read_archive(path)
    check_partitions(path, options.partitions or (), range(archive.partitions))
    return archive


def _snapshot(path: str, options: ReadOptions) -> tuple[list[Part], Vector]:
    """Return the parts of a store's data, as it is now or was, and the cut that they show."""
    log, cut = snapshots.pin(path)
    shown, past = cut.vector(), None
    if options.as_of not in (None, "latest"):
        whole = options.consistency == "transaction"
        cut, past = cut_as_of(log, cut, options.as_of, whole=whole)
        shown = {p: (shown[p][0], number) for p, number in past.numbers.items()}
    tx_ids = options.columns is not None and "tx_id" in options.columns
    parts = parts_of(path, cut, options, _keys(options), tx_ids=tx_ids)
    if past is not None:
        parts = [replace(part, past=past.of(part.partitions)) for part in parts]
    return parts, shown


def parts_of(
    path: str,
    cut: Cut,
    options: ReadOptions,
    keys: tuple[bytes, bytes | None] = (b"", None),
    *,
    tx_ids: bool = False,
) -> list[Part]:
    """Return the parts of a snapshot that options ask for; the rest as in ``snapshots.parts``."""
    everywhere = range(len(cut.state.counters))
    partitions = [p for p in everywhere if options.partitions is None or p in options.partitions]
    check_partitions(path, options.partitions or (), everywhere)
    count = options.tasks or 2 * (os.cpu_count() or 1)
    return snapshots.parts(path, cut, partitions, options.namespace, count, keys, tx_ids=tx_ids)


def _keys(options: ReadOptions) -> tuple[bytes, bytes | None]:
    """Return where the wanted keys begin, and what they lie before."""
    start, stop = options.start_key, options.end_key
    if options.prefix is not None:
        start = max(start, options.prefix)
        behind = after_prefix(options.prefix)
        if behind is not None and (stop is None or behind < stop):
            stop = behind
    return start, stop


def change_tasks(
    log: Log,
    options: ReadOptions,
    chosen: tuple[str, ...] | None,
    low: Vector,
    high: Vector,
    cut: Cut,
) -> list[Task]:
    """Return the tasks that read what lies between two vectors; ``cut`` holds the second.

    What became of maps lies between two vectors if some number lies that is above the first,
    and below or at the second, behind it.
    """
    here = cut.vector()
    if all(high[p][1] <= low[p][1] for p in here):
        return []
    catalog = (0, 0)
    if options.catalog:
        at_end = all(high[p][1] >= here[p][1] for p in here)
        catalog = log.at(low).position, cut.position if at_end else log.at(high).position
    wanted = _wanted(options, low, high, catalog)
    start = log.before(low).position
    size = task_bytes(options, cut.position - start)
    parts = log.slices(start, cut.position, most_bytes=size)
    return [Task(options, part, chosen, log.path, wanted) for part in parts]


def _wanted(
    options: ReadOptions, low: Vector, high: Vector, catalog: tuple[int, int] = (0, 0)
) -> Wanted:
    """Return which changes options ask for, of those between two vectors."""
    return Wanted(
        low=low,
        high=high,
        partitions=options.partitions,
        namespace=options.namespace,
        rollbacks=options.rollbacks,
        form=options.form,
        catalog=catalog,
    )


def check_map(log: Log, options: ReadOptions, cut: Cut) -> None:
    """Raise ``UsageError`` for a map that the kept log does not know."""
    name = options.namespace
    if name is not None and name not in log.names(cut).values() and not log.has_map(name):
        raise UsageError(
            f"there is no map {name!r} in {log.path}",
            hint=f"There are {', '.join(sorted(cut.maps().values())) or 'none'}.",
        )


def task_bytes(options: ReadOptions, size: int) -> int:
    """Return how many bytes of log a task reads, of so many in all."""
    tasks = options.tasks or 2 * (os.cpu_count() or 1)
    return max(min(options.task_bytes, -(-size // tasks)), options.task_bytes_min)


def start_of(log: Log, options: ReadOptions, default: str) -> dict[int, Number]:
    """Return the vector at which a read begins."""
    if options.since is not None:
        try:
            return log.until(options.since).vector()
        except HistoryTruncatedError as error:
            return skipped(log, options, error)
    text = options.starting or default
    if text == "latest":
        return log.newest().vector()
    earliest = log.earliest().vector()
    if text == "earliest":
        return earliest
    given = vectors.given(text, log.store_id, log.history_id)
    return kept(log, options, {**earliest, **given}, earliest)


def kept(
    log: Log, options: ReadOptions, wanted: dict[int, Number], earliest: Vector
) -> dict[int, Number]:
    """Return a vector that the kept log still reaches, or raise if it does not."""
    try:
        log.before(wanted)
    except HistoryTruncatedError as error:
        skipped(log, options, error)
        return {p: max(number, earliest[p], key=lambda n: n[1]) for p, number in wanted.items()}
    return wanted


def skipped(log: Log, options: ReadOptions, error: HistoryTruncatedError) -> dict[int, Number]:
    """Return where the kept log begins, and tell what is skipped; raise if nothing may be."""
    _skip(options, error)
    return log.earliest().vector()


def _skip(options: ReadOptions, error: HistoryTruncatedError) -> None:
    """Tell what is skipped, or raise if nothing may be."""
    if options.fail_on_data_loss:
        raise error
    _log.warning("history.skipped %s", error, extra={"event": "history.skipped"})
