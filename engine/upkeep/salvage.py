"""What is left of a damaged store, and what is not: for ``tidelog db salvage``.

Log and data file are read past all damage (``wal.remains``, ``lmdb_remains``) and laid over each
other: of each key the newest update that anything holds.

Invariants:

- The damaged store is only read; nobody may have it open for writing meanwhile.
- What comes out was committed: a pair or frame that does not match its checksum is never used.
- What may be missing or outdated is told: maps and keys if they are known, else the update
  numbers of a partition, or a run of keys.  Nothing else is lost.
- A record that this version cannot follow is told as a stretch of the log, for it may have changed
  anything; it is harmless if the data file has what came of it.
- A torn tail may never have been durable, and a recovery would cut it.  Here it counts as lost, and
  what is whole behind it is used: each transaction is there as a whole or not at all.

How the two help each other: a value that is damaged in the data file is taken from the log, if
every update of its partition since is in the log; numbers that a damaged log lacks are in the data
file, if its mark counts them.

- The store of a cluster's member is taken only if its log has nothing that other members had a
  part in: of what they did, only they know what became of it.

Left out: ids of transactions, the ledger and update numbers.  The new store begins anew.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from ...affinity.errors import (
    CodecError,
    CorruptDataError,
    FormatVersionError,
    NotFoundError,
    UsageError,
)
from ...affinity.partitions import Space, one_space, partition_of
from ...checkpoints.continuity import is_free
from ...checkpoints.marks import PartitionMark, StoreMark
from ...tx.counter import PartitionUpdateCounter
from ...wal.files import ReadOnlyDirectory
from ...wal.format import Frame
from ...wal.records import (
    CheckpointRecord,
    DropNamespaceRecord,
    EpochRecord,
    IdleRecord,
    IngestRecord,
    NamespaceRecord,
    OpenRecord,
    OutcomesRecord,
    Record,
    RollbackRecord,
    Run,
    SettleRecord,
    StateRecord,
    TxRecord,
    UndecodableRecordError,
    UnknownRecord,
    decode_record,
    split_records,
)
from ...wal.remains import Hole, remains
from ..codecs.registry import Codec, codec_named
from ..data.namespaces import decoded_key
from ..data.partition_store import MARKS_NAMESPACE, STORE_KEY, mark_key
from ..data.scan import Pair
from ..data.stored import (
    PENDING,
    PREFIX_SIZE,
    TRAILER_SIZE,
    StoredPair,
    is_damaged,
    pack_prefix,
    shown_key,
    split_key,
    user_value,
    version_of,
    xor_trailers,
)
from ..files import manifest as manifests
from ..files.features import check_own, newest_header
from ..files.manifest import Manifest
from ..system.layout import DATA_FILE, DATA_NAME, WAL_NAME
from ..system.lmdb_file import mapped, trees_of
from ..system.lmdb_pages import PAGE, Tree
from ..system.lmdb_remains import LostRun, Remains, free_pages

FIRST_MAP = 16
_UNLIMITED = 1 << 30


class Written(NamedTuple):
    """An update as the log holds it; ``value`` None deletes."""

    epoch: int
    counter: int
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Something that could not be read.

    ``kind`` is ``value`` (of ``key`` in ``map``), ``keys`` (a run of them in the data file, or one
    of which the log does not tell whether it is right),
    ``updates`` (``first`` to ``last`` of a partition: what they set or deleted is as it was
    before), ``rows`` (of a load in ``map``), ``log`` (a stretch of it, for what it is worth),
    ``partition`` (of which nothing shows that it is all there), ``map`` (whose name is lost),
    ``file``, or ``member`` (what the other members of a cluster serve was never here).
    ``harmless`` says that all that it held was found elsewhere.
    """

    kind: str
    text: str
    map: str | None = None
    key: bytes | None = None
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    harmless: bool = False


def salvage(path: str) -> Salvaged:
    """Return what is left of the store in a directory.

    Raises ``NotFoundError`` if there is nothing of a store, ``CorruptDataError`` if neither
    manifest nor log tell how many partitions it has, ``UsageError`` for the store of a cluster's
    member whose log has records that only copies write, and ``FormatVersionError`` for one that
    this version must refuse.
    """
    lost: list[Lost] = []
    manifest = _manifest(path, lost)
    wal = os.path.join(path, WAL_NAME)
    header = newest_header(ReadOnlyDirectory(wal)) if os.path.isdir(wal) else None
    data = _DataFile(os.path.join(path, DATA_NAME, DATA_FILE), lost)
    log = _read_log(path, manifest, data.durable, lost)
    try:
        check_own(path, manifest, header)
    except UsageError as error:
        if log.unread:
            raise UsageError(
                f"{error}; its log has records that only copies write, and what became of those "
                "only the other members know",
                hint="Keep the directory, and let the other members run: they have copies of it. "
                f"If it is the only one that is left, let it run: `tidelog server run {path}`.",
            ) from None
        text = f"{error}: what its other members serve was never here"
        lost.append(Lost(kind="member", text=text, harmless=True))
    data.choose(log)
    spaces = manifest.spaces if manifest else log.spaces or one_space(data.partitions)
    if not spaces[-1].end:
        raise NotFoundError(
            f"nothing of a store can be read at {path}", hint="Check the path; look for a backup."
        )
    return Salvaged(spaces, log, data, lost)


def _manifest(path: str, lost: list[Lost]) -> Manifest | None:
    try:
        return manifests.read(ReadOnlyDirectory(path))
    except FileNotFoundError:
        text = "the manifest is missing"
    except CorruptDataError as error:
        text = str(error)
    lost.append(Lost(kind="file", text=f"{text}; the log tells what it said", harmless=True))
    return None


# ------------------------------------------------------------------ the log


class _Log:
    """The fold of what is left of a log."""

    def __init__(self) -> None:
        self.partitions = 0
        self.spaces: Sequence[Space] = ()
        self.newest: dict[bytes, Written] = {}
        """The last update of each key, by full key."""
        self.numbers: list[PartitionUpdateCounter] = []
        """The numbers that the log has, by partition."""
        self.applied: list[PartitionUpdateCounter] = []
        """The numbers of which a STATE says that they were applied."""
        self.below: list[PartitionUpdateCounter] = []
        """Those that lie below the log."""
        self.names: list[tuple[int, Record]] = []
        """Records about maps, with their positions."""
        self.loads: list[IngestRecord] = []
        self.first = 0
        self.segment = 0
        self.position = 0
        self.newest_state = 0
        """Where the last STATE lies: what came before it is counted there."""
        self.holes: list[Hole] = []
        self.unread: list[tuple[Frame, str]] = []
        """Whole frames with records that are left out here, and why."""

    def take(self, frame: Frame) -> None:
        """Fold a frame in, up to the first record that does not decode."""
        self.segment, self.position = frame.segment, frame.end
        try:
            for parts in split_records(frame.payload):
                self._take_record(frame, decode_record(*parts))
        except (UndecodableRecordError, FormatVersionError) as error:
            self.unread.append((frame, str(error)))

    def _take_record(self, frame: Frame, record: Record) -> None:
        match record:
            case StateRecord():
                self._take_state(frame, record)
            case TxRecord():
                self._take_runs(record.runs)
                self._take_updates(record)
            case RollbackRecord():
                self._take_runs(record.runs)
            case IngestRecord():
                self.loads.append(record)
            case NamespaceRecord() | DropNamespaceRecord():
                self.names.append((frame.position, record))
            case SettleRecord(transactions=()):
                for closed in record.closed:
                    _add(self.numbers[record.partition], closed.first - 1, closed.count)
            case OpenRecord() | OutcomesRecord() | EpochRecord() | CheckpointRecord():
                pass
            case IdleRecord() | UnknownRecord():
                pass
            case _:
                name = type(record).__name__.removesuffix("Record")
                self.unread.append((frame, f"a {name}, which only copies in a cluster log"))

    def _take_state(self, frame: Frame, record: StateRecord) -> None:
        self.names.append((frame.position, record))
        first, known = not self.partitions, self.partitions
        if first:
            self.first = frame.position
        for counters in (self.numbers, self.applied, self.below):
            counters += [_counter() for _ in record.lwms[known:]]
        self.partitions = max(known, len(record.lwms))
        self.spaces = max(self.spaces, record.spaces or one_space(len(record.lwms)), key=len)
        if first:
            self._take_applied(self.below, record)
        self._take_applied(self.applied, record)
        self.newest_state = frame.position

    @staticmethod
    def _take_applied(counters: list[PartitionUpdateCounter], record: StateRecord) -> None:
        for partition, (counter, lwm) in enumerate(zip(counters, record.lwms, strict=False)):
            _add(counter, 0, lwm)
            for start, delta in record.ranges.get(partition, ()):
                _add(counter, start, delta)

    def _take_runs(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if run.partition < self.partitions:
                _add(self.numbers[run.partition], run.first - 1, run.count)

    def _take_updates(self, record: TxRecord) -> None:
        for partition, epoch, counter, namespace, key, value in record.updates():
            self.newest[pack_prefix(partition, namespace) + key] = Written(epoch, counter, value)

    def namespaces(self, mark: StoreMark | None) -> dict[int, NamespaceRecord]:
        """Return the maps at the end, the list of the checkpoint included."""
        found: dict[int, NamespaceRecord] = {}
        marked = mark is None
        for position, record in self.names:
            if mark is not None and not marked and position >= mark.position:
                found, marked = _of_mark(mark), True
            match record:
                case StateRecord():
                    found = {one.id: one for one in record.namespaces}
                case NamespaceRecord():
                    found[record.id] = record
                case DropNamespaceRecord():
                    found.pop(record.id, None)
                case _:
                    pass
        if mark is not None and not marked:
            found = _of_mark(mark)
        return {number: record for number, record in found.items() if not record.hidden}


def _of_mark(mark: StoreMark) -> dict[int, NamespaceRecord]:
    return {record.id: record for record in mark.namespaces}


def _read_log(path: str, manifest: Manifest | None, known: int, lost: list[Lost]) -> _Log:
    """Fold the log, with what lies behind its holes."""
    log = _Log()
    folder = os.path.join(path, WAL_NAME)
    if not os.path.isdir(folder):
        lost.append(Lost(kind="file", text="there is no log"))
        return log
    durable = max(known, (manifest.clean_end or 0) if manifest else 0)
    for part in remains(ReadOnlyDirectory(folder), manifest.log_ids if manifest else None):
        if isinstance(part, Hole):
            log.holes.append(part)
        else:
            durable = max(durable, part.synced)
            log.take(part)
    if durable > log.position:
        log.holes.append(Hole(log.segment, 0, log.position, durable, "the log ends too early"))
    told = any(hole.stop is None for hole in log.holes)
    closed = manifest is not None and manifest.clean_end is not None
    if not (told or closed) and (durable > log.position or not log.position):
        text = f"all of the log behind position {durable}: what was committed there is not known"
        lost.append(Lost(kind="log", text=text))
    log.holes.sort(key=lambda hole: hole.start)
    return log


def _counter() -> PartitionUpdateCounter:
    return PartitionUpdateCounter(max_ranges=_UNLIMITED)


def _add(counter: PartitionUpdateCounter, start: int, count: int) -> None:
    if count:
        counter.update(start, count)


def _missing(counter: PartitionUpdateCounter, highest: int) -> list[tuple[int, int]]:
    """Return the numbers up to ``highest`` that a counter lacks, as inclusive ranges."""
    gaps: list[tuple[int, int]] = [gap for gap in counter.missing if gap[0] <= highest]
    if highest > counter.highest_applied:
        gaps.append((counter.highest_applied + 1, highest))
    return gaps


# ------------------------------------------------------------------ the data file


class _Survey:
    """What one of the trees of a data file holds."""

    def __init__(self, remains_of: Remains) -> None:
        self.store: StoreMark | None = None
        self.marks: dict[int, PartitionMark] = {}
        self.counts: Counter[int] = Counter()
        self.digests: dict[int, int] = {}
        self.damaged: list[bytes] = []
        for key, stored in remains_of.pairs():
            if is_damaged(key, stored):
                self.damaged.append(key)
            else:
                self._take(key, stored)
        self.runs = [run for run in remains_of.lost if run.key is None]
        self.damaged += [run.key for run in remains_of.lost if run.key is not None]

    def _take(self, key: bytes, stored: bytes) -> None:
        partition, namespace, _ = split_key(key)
        try:
            if key == STORE_KEY:
                self.store = StoreMark.from_bytes(stored[:-TRAILER_SIZE])
            elif namespace == MARKS_NAMESPACE:
                self.marks[partition] = PartitionMark.from_bytes(stored[:-TRAILER_SIZE])
            elif namespace != PENDING and user_value(key, stored) is not None:
                self.counts[partition] += 1
                digest = self.digests.get(partition, 0)
                self.digests[partition] = digest ^ xor_trailers([stored])
        except CorruptDataError:
            self.damaged.append(key)

    @property
    def position(self) -> int:
        """The position of its checkpoint."""
        return self.store.position if self.store else 0

    def wrong(self) -> set[int]:
        """Return the partitions that do not hold what their marks say."""
        found = {*self.counts, *self.marks}
        return {
            partition
            for partition in found
            if partition not in self.marks
            or self.marks[partition].count != self.counts[partition]
            or self.marks[partition].digest != self.digests.get(partition, 0)
        }

    @property
    def whole(self) -> bool:
        """Whether nothing of it is damaged or missing."""
        return not (self.damaged or self.runs or self.wrong())


class _DataFile:
    """The better one of the two trees of a data file, opened for as long as this is used."""

    def __init__(self, file: str, lost: list[Lost]) -> None:
        self._content: bytes = b""
        self._tree: Tree | None = None
        self._free: set[int] = set()
        self._doubted: set[int] = set()
        self.survey: _Survey | None = None
        try:
            with open(file, "rb") as stream:
                if os.fstat(stream.fileno()).st_size:
                    self._content = cast(bytes, mapped(stream.fileno()))
        except FileNotFoundError:
            pass
        trees = trees_of(self._content[: 2 * PAGE])
        self._surveys = [
            (_Survey(Remains(self._content, main)), free, main) for free, main in trees
        ]
        if not trees:
            lost.append(Lost(kind="file", text="the data file is missing or cannot be read"))

    def choose(self, log: _Log) -> None:
        """Take the newest tree; an older one if only that is whole, and the log goes on from it."""
        if not self._surveys:
            return
        choice = self._surveys[0]
        for older in self._surveys[1:]:
            covered = log.partitions and log.first <= older[0].position and not log.holes
            if older[0].whole and not choice[0].whole and covered:
                choice = older
        self.survey, free, self._tree = choice
        wrong = self.survey.wrong()
        if wrong:
            # A branch may lead to an older copy of a page: those are among the free ones.
            self._free, self._doubted = free_pages(self._content, free), wrong
            self.survey = _Survey(self._walk())

    def _walk(self) -> Remains:
        assert self._tree is not None
        return Remains(self._content, self._tree, self._is_doubted)

    def _is_doubted(self, number: int, key: bytes) -> bool:
        return number in self._free and int.from_bytes(key[:4], "big") in self._doubted

    @property
    def durable(self) -> int:
        """The position up to which it shows the log to have been durable."""
        positions = [0]
        for survey, _, _ in self._surveys:
            positions += [survey.position, *(mark.written for mark in survey.marks.values())]
        return max(positions)

    @property
    def partitions(self) -> int:
        """How many partitions it knows."""
        return max(self.survey.marks, default=-1) + 1 if self.survey else 0

    def pairs(self) -> Iterator[StoredPair]:
        """Yield (full key, stored value) of what is as it was written, marks left out."""
        if self._tree is None:
            return
        for key, stored in self._walk().pairs():
            if not is_damaged(key, stored) and split_key(key)[1] != MARKS_NAMESPACE:
                yield key, stored


# ------------------------------------------------------------------ both together


class Salvaged:
    """What is left of a store: ``pairs`` of its ``maps``, and the list of what is ``lost``."""

    def __init__(
        self, spaces: Sequence[Space], log: _Log, data: _DataFile, lost: list[Lost]
    ) -> None:
        self.partitions = partitions = spaces[-1].end
        self._spaces = spaces
        self._log = log
        self._data = data
        self._lost = lost
        survey = data.survey
        self._store = survey.store if survey else None
        self._wrong = survey.wrong() if survey else set()
        self.maps = log.namespaces(self._store)
        """What is recorded about each map, by its number."""
        self._in_data = [self._numbers_in_data(partition) for partition in range(partitions)]
        self._tell_numbers()
        self._tell_loads()
        if survey is not None:
            self._tell_values(survey)
            self._tell_runs(survey)
        self._tell_holes()
        self._tell_unread()

    @property
    def lost(self) -> list[Lost]:
        """What could not be read, what is harmless last."""
        return sorted(self._lost, key=lambda one: one.harmless)

    @property
    def complete(self) -> bool:
        """Whether everything that the store held is there."""
        return all(one.harmless for one in self._lost)

    def pairs(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (number of the map, key, value), all encoded, of everything that is left."""
        newest = dict(self._log.newest)
        for full_key, stored in self._data.pairs():
            partition, namespace, key = split_key(full_key)
            if partition >= self.partitions or namespace < FIRST_MAP:
                continue
            self._know(namespace)
            value = user_value(full_key, stored)
            written = newest.pop(full_key, None)
            if written is not None and (written.epoch, written.counter) > version_of(stored)[:2]:
                value = written.value
            if namespace in self.maps and value is not None:
                yield namespace, key, value
        for full_key, written in newest.items():
            namespace = split_key(full_key)[1]
            if namespace not in self.maps or written.value is None:
                continue
            if not self._was_deleted(full_key, written.counter):
                yield namespace, full_key[PREFIX_SIZE:], written.value

    def _was_deleted(self, full_key: bytes, number: int) -> bool:
        """Tell whether the data file has dropped a key since: the log may lack the delete."""
        partition = split_key(full_key)[0]
        survey = self._data.survey
        if survey is None or partition >= self.partitions or partition in self._wrong:
            return False
        return not is_free(self._in_data[partition], number, 1)

    # -------------------------------------------------------------- what is lost

    def _numbers_in_data(self, partition: int) -> PartitionUpdateCounter:
        """Return the numbers whose updates the data file has, as far as its marks can be read."""
        found = _counter()
        survey = self._data.survey
        if survey is None:
            return found
        mark = survey.marks.get(partition)
        if mark is not None:
            kept = PartitionUpdateCounter.from_bytes(mark.counter)
            _add(found, 0, kept.lwm)
            for start, delta in kept.out_of_order:
                _add(found, start, delta)
        elif partition < len(self._log.below) and self._log.first <= survey.position:
            # Its mark is lost; what lies below the kept log is in it all the same.
            _unite(found, self._log.below[partition])
        return found

    def _highest(self, partition: int) -> int:
        counters = [self._in_data[partition]]
        if partition < self._log.partitions:
            counters += [self._log.numbers[partition], self._log.applied[partition]]
        return max(counter.highest_applied for counter in counters)

    def _log_lacks(self, partition: int) -> list[tuple[int, int]]:
        """Return the numbers of a partition that are not in the kept log."""
        highest = self._highest(partition)
        if partition >= self._log.partitions:
            return [(1, highest)] if highest else []
        return _missing(self._log.numbers[partition], highest)

    def _in_log_since(self, full_key: bytes) -> bool:
        """Tell whether the log surely has the newest update of a key."""
        partition, namespace, _ = split_key(full_key)
        if partition >= self._log.partitions:
            return False
        have = _counter()
        _unite(have, self._log.numbers[partition])
        for load in self._log.loads:
            if load.namespace != namespace:  # the numbers of its rows are not updates of this key
                for run in load.runs:
                    if run.partition == partition:
                        _add(have, run.first - 1, run.count)
        lacks = _missing(have, self._highest(partition))
        written = self._log.newest.get(full_key)
        return not lacks or (written is not None and written.counter > lacks[-1][1])

    def _tell_numbers(self) -> None:
        loaded = self._loaded()
        for partition in range(self.partitions):
            have = _counter()
            _unite(have, self._in_data[partition])
            if partition < self._log.partitions:
                _unite(have, self._log.numbers[partition])
            for run in loaded.get(partition, ()):
                _add(have, run.first - 1, run.count)
            for first, last in _missing(have, self._highest(partition)):
                self._lost.append(
                    Lost(
                        kind="updates",
                        text=f"updates {first} to {last} of partition {partition}",
                        partition=partition,
                        first=first,
                        last=last,
                    )
                )

    def _loaded(self) -> dict[int, list[Run]]:
        found: dict[int, list[Run]] = {}
        for load in self._log.loads:
            for run in load.runs:
                found.setdefault(run.partition, []).append(run)
        return found

    def _tell_loads(self) -> None:
        """Tell loads whose rows only the data file can have, and has not."""
        for load in self._log.loads:
            record = self.maps.get(load.namespace)
            gone = [
                run
                for run in load.runs
                if run.partition >= self.partitions
                or _missing(self._in_data[run.partition], run.first + run.count - 1)
            ]
            if record is not None and gone:
                count = sum(run.count for run in gone)
                text = f"up to {count} rows of the load that became map {record.name!r}"
                self._lost.append(Lost(kind="rows", text=text, map=record.name))

    def _tell_values(self, survey: _Survey) -> None:
        for full_key in survey.damaged:
            if not self._is_key(full_key):
                partitions = range(self.partitions)
                if any(self._log_lacks(partition) for partition in partitions):
                    text = f"a value whose key is damaged too, once {shown_key(full_key)}"
                    self._lost.append(Lost(kind="partition", text=text))
                continue
            partition, namespace, key = split_key(full_key)
            if namespace == MARKS_NAMESPACE:
                self._tell_mark(full_key, partition)
            elif namespace not in self.maps:
                # Of a map that was dropped; or the damage is in the number of the map.
                if self._log_lacks(partition):
                    shown = shown_key(key)
                    text = f"a value of partition {partition} whose map is not known, key {shown}"
                    self._lost.append(Lost(kind="partition", text=text, partition=partition))
            elif not self._in_log_since(full_key):
                name = self.maps[namespace].name
                shown = decoded_key(_codec_of(self.maps[namespace]), key)
                older = " (an older value is written)" if self._is_in_log(full_key) else ""
                text = f"the value of map {name!r}, key {shown} (partition {partition}){older}"
                kind = "value"
                if full_key not in self._log.newest:
                    text += ", or that of another key there, if the damage is in the key"
                    kind = "keys"
                self._lost.append(
                    Lost(kind=kind, text=text, map=name, key=key, partition=partition)
                )

    def _is_key(self, full_key: bytes) -> bool:
        """Tell whether a key lies in the partition that it belongs to."""
        if full_key == STORE_KEY:
            return True
        if len(full_key) < PREFIX_SIZE:
            return False
        partition, namespace, key = split_key(full_key)
        if namespace == MARKS_NAMESPACE:
            return partition < self.partitions and full_key == mark_key(partition)
        record = self.maps.get(namespace)
        known = record is not None and record.space < len(self._spaces)
        space = self._spaces[record.space if record is not None and known else 0]
        return partition == partition_of(key, space)

    def _is_in_log(self, full_key: bytes) -> bool:
        written = self._log.newest.get(full_key)
        return written is not None and written.value is not None

    def _tell_mark(self, full_key: bytes, partition: int) -> None:
        if full_key == STORE_KEY:
            text = "the mark of the checkpoint; the log tells the maps"
            self._lost.append(Lost(kind="file", text=text, harmless=bool(self.maps)))
        elif self._log_lacks(partition):
            text = f"the mark of partition {partition}: nothing shows that all of it is there"
            self._lost.append(Lost(kind="partition", text=text, partition=partition))

    def _tell_runs(self, survey: _Survey) -> None:
        told: set[int] = set()
        for run in survey.runs:
            partitions = [p for p in self._span(run) if self._log_lacks(p)]
            told.update(partitions)
            if partitions:
                text = f"{self._shown_run(run)} (page {run.page}: {run.why})"
                one = partitions[0] if len(partitions) == 1 else None
                self._lost.append(Lost(kind="keys", text=text, partition=one))
        told.update(split_key(key)[0] for key in survey.damaged if len(key) >= PREFIX_SIZE)
        for partition in sorted(self._wrong - told):
            if partition < self.partitions and self._log_lacks(partition):
                text = f"partition {partition} does not hold what its mark says"
                self._lost.append(Lost(kind="partition", text=text, partition=partition))

    def _span(self, run: LostRun) -> range:
        low = int.from_bytes(run.low[:4], "big") if run.low else 0
        high = int.from_bytes(run.high[:4], "big") if run.high else self.partitions - 1
        return range(low, min(high, self.partitions - 1) + 1)

    def _shown_run(self, run: LostRun) -> str:
        low = self._shown(run.low) if run.low else "the first one"
        high = self._shown(run.high) if run.high else "the last one"
        return f"keys of the data file from {low} to {high}"

    def _shown(self, full_key: bytes) -> str:
        if len(full_key) < PREFIX_SIZE:
            return shown_key(full_key)
        partition, namespace, key = split_key(full_key)
        record = self.maps.get(namespace)
        if record is None:
            return f"partition {partition}, namespace {namespace}, {shown_key(key)}"
        return f"{record.name!r} {decoded_key(_codec_of(record), key)} (partition {partition})"

    def _tell_holes(self) -> None:
        """Tell where the log is damaged; what that cost is told as updates where it is known.

        It is known once a STATE or a checkpoint behind counts the numbers.
        """
        kept = not any(one.kind in ("updates", "rows") for one in self._lost)
        counted = max(self._log.newest_state, self._store.position if self._store else 0)
        for hole in self._log.holes:
            stop = "its end" if hole.stop is None else f"position {hole.stop}"
            torn = "; if it is a torn tail, it was never durable" if hole.stop is None else ""
            text = (
                f"segment {hole.segment}, offset {hole.offset}: {hole.why} "
                f"(position {hole.start} to {stop}{torn})"
            )
            harmless = kept and hole.stop is not None and hole.stop <= counted
            self._lost.append(Lost(kind="log", text=text, harmless=harmless))

    def _tell_unread(self) -> None:
        """Tell frames that were not followed to their end; the data file may have what they did."""
        held = self._store.position if self._store else 0
        for frame, why in self._log.unread:
            text = (
                f"segment {frame.segment}, offset {frame.offset}: {why} "
                f"(position {frame.position} to position {frame.end})"
            )
            self._lost.append(Lost(kind="log", text=text, harmless=frame.end <= held))

    def _know(self, namespace: int) -> None:
        """Give a map without a record a name, so that its pairs are not lost."""
        if namespace in self.maps or self._store is not None or self._log.names:
            return
        name = f"namespace-{namespace}"
        self.maps[namespace] = NamespaceRecord(
            id=namespace,
            name=name,
            key_codec="bytes",
            key_version=1,
            value_codec="bytes",
            value_version=1,
        )
        text = f"name and codecs of map {namespace}; it is written as {name!r}, in bytes"
        self._lost.append(Lost(kind="map", text=text, map=name))


def _unite(counter: PartitionUpdateCounter, other: PartitionUpdateCounter) -> None:
    _add(counter, 0, other.lwm)
    for start, delta in other.out_of_order:
        _add(counter, start, delta)


def _codec_of(record: NamespaceRecord) -> Codec[object]:
    """Return the codec of a map's keys, or one that shows their bytes."""
    try:
        return codec_named(record.key_codec, record.key_version)
    except CodecError:
        return codec_named("bytes")


def salvaged_batches(salvaged: Salvaged, size: int) -> Iterator[tuple[NamespaceRecord, list[Pair]]]:
    """Yield what is left, for one map at a time, so many pairs together."""
    held: dict[int, list[Pair]] = {}
    for namespace, key, value in salvaged.pairs():
        part = held.setdefault(namespace, [])
        part.append((key, value))
        if len(part) >= size:
            yield salvaged.maps[namespace], held.pop(namespace)
    for namespace, part in sorted(held.items()):
        yield salvaged.maps[namespace], part
