"""The built-in consistency check: log, data file and counters of a store against each other.

What must hold, and is looked for:

- The manifest decodes, the data file is a sound tree, and each pair in it is as it was written.
- Count and digest of each partition are those of its mark, and so is the number of deletes that
  left a tombstone; nothing lies outside of partitions.
- The kept log has a good end, and no damage before it; commit times never fall in an epoch.
- Every update number above the kept history belongs to one record, in the epoch of its time, and
  the numbers of all records are those that the counters say (I-8, I-10, I-11).
- The data file is not ahead of the log (I-3), and holds the newest value, or the absence, of every
  key that the kept log says something about; no value in it pretends to be newer than that, but for
  rows of loads, of which the log knows the numbers only.
- Two folds agree: from the head of the kept log on, and from the checkpoint on.

Nothing is changed.  A store may be checked beside its writer; one that is open in this process is
checked through its ``OpenStore``.

Left out: repair, and history that is no longer kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

from ...affinity.errors import (
    CodecError,
    CorruptDataError,
    CorruptLogError,
    FormatVersionError,
    HistoryTruncatedError,
    StorageError,
)
from ...affinity.partitions import Space, partition_of
from ...checkpoints.continuity import Continuity, is_free
from ...checkpoints.copies import CopyState, columns_prepared
from ...checkpoints.marks import EpochTable, PartitionMark, epoch_of
from ...checkpoints.replay import Applied, Cleared, Effect, State
from ...tx.counter import PartitionUpdateCounter
from ...wal.format import Frame
from ...wal.ports import ReadableDirectory
from ...wal.reader import Scan, read_records
from ...wal.records import (
    AdmitRecord,
    IngestRecord,
    Record,
    Run,
    StateRecord,
    numbered,
)
from ...wal.segments import segment_sizes
from ...wal.tail import REFUSED
from ..codecs.registry import codec_named
from ..data.namespaces import INTERNAL, decoded_key
from ..data.overlay import Layer, View
from ..data.partition_store import (
    STORE_KEY,
    Measured,
    mark_key,
    read_marks,
    read_pending,
)
from ..data.stored import (
    CHECK_SIZE,
    PENDING,
    PREFIX_SIZE,
    TRAILER_SIZE,
    check_flags,
    check_pair,
    checked,
    is_tombstone,
    pack_prefix,
    shown_key,
    split_key,
    version_of,
    xor_trailers,
)
from ..files.manifest import Manifest
from ..files.recovery import OutdatedDataError, apply_updates, check_rows
from ..store.access import ReadAccess
from ..store.opening import OpenStore
from ..store.options import Options
from ..system.environment import Environment, KvTransaction
from ..system.layout import DATA_FILE, DATA_NAME, WAL_NAME
from ..system.lmdb_file import open_lmdb, verify_file
from ..system.production import production

BLOCK = 1000
_PENDING = PENDING.to_bytes(4, "big")
PROBLEMS_MAX = 100
BeginPhase = Callable[[str, int | None, str], Callable[[int], None]]
"""Takes what begins, how much there is of it if that is known, and in what unit; returns what is
called with how much was done since."""
CHECK_ATTEMPTS = 3
"""How often a store is looked at again because a writer has come too far meanwhile."""


@dataclass(slots=True)
class Inspection:
    """What a check found: ``problems`` as sentences, and what the store holds.

    ``position`` is the end of the log; ``partitions`` are count and digest of each partition
    there: those of the data file, with the log behind its checkpoint applied.
    """

    problems: list[str] = field(default_factory=list)
    position: int = 0
    maps: list[str] = field(default_factory=list)
    partitions: dict[int, tuple[int, int]] = field(default_factory=dict)

    def note(self, problem: str) -> None:
        """Add a problem; beyond ``PROBLEMS_MAX`` they are only said to be more."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        elif len(self.problems) == PROBLEMS_MAX:
            self.problems.append("there are more problems than these")


def check_store(path: str | os.PathLike[str], environment: Environment | None = None) -> list[str]:
    """Return what is wrong with the store at ``path``, as sentences; the empty list means nothing.

    Raises ``NotFoundError`` if there is no store, ``AlreadyOpenError`` for one that is open in
    this process (use ``check_open_store``), and ``DiskError``.
    """
    place = os.path.abspath(os.fspath(path))
    return inspect_store(environment or production(), place).problems


def untold(_what: str, _total: int | None, _unit: str) -> Callable[[int], None]:
    """Begin a phase that nobody looks at."""
    return _ignore


def _ignore(_count: int) -> None:
    pass


def inspect_store(
    environment: Environment,
    path: str,
    manifest: Manifest | None = None,
    begin: BeginPhase = untold,
    problems: list[str] | None = None,
) -> Inspection:
    """Check a store and say what it holds; raises as ``check_store`` does.

    ``manifest`` is that of a copy which has none yet; ``begin`` is told of each phase.  Problems
    are added to ``problems`` as they are found, for whoever is interrupted.
    """
    problems = [] if problems is None else problems
    try:
        access = ReadAccess(environment, path, Options().map_size, manifest, of_members=True)
    except StorageError as error:
        return Inspection([str(error)])
    try:
        for _ in range(CHECK_ATTEMPTS):
            gone = f"the log of {path} is dropped faster than it can be read"
            check = _Check(access.manifest(), access.kv.begin(), access.wal, begin=begin)
            problems.clear()
            check.found.problems = problems
            try:
                begin("checking the data file", None, "bytes")
                file = os.path.join(path, DATA_NAME, DATA_FILE)
                if environment.open_kv is not open_lmdb or check.is_sound(file):
                    check.run()
                return check.found
            except HistoryTruncatedError:
                continue
            except OutdatedDataError as error:  # a load got its name meanwhile
                gone = str(error)
            except StorageError as error:
                check.found.note(str(error))
                return check.found
            finally:
                del check  # and with it LMDB's transaction, before the file is closed
        return Inspection([gone])
    finally:
        access.close()


def check_open_store(store: OpenStore) -> list[str]:
    """Return what is wrong with an open store: on disk as in ``check_store``, and in memory."""
    committer = store.committer
    wal = store.environment.disk.directory(os.path.join(store.path, WAL_NAME), read_only=True)
    with committer.mutex:
        view, boundary = store.overlay.snapshot()
        position = committer.applied_position
        counters = [
            PartitionUpdateCounter.from_bytes(counter.to_bytes())
            for counter in store.state.counters
        ]
    try:
        check = _Check(store.manifest, view.txn, wal, until=position)
        check.run()
        check.compare_with_memory(view, counters)
    except StorageError as error:
        check.found.note(str(error))
    finally:
        store.overlay.ended.append(boundary)
    writer = store.writer
    if not store.checkpointer.position <= writer.synced <= writer.position:
        check.found.note(
            f"checkpoint at {store.checkpointer.position}, log durable up to {writer.synced}, "
            f"written up to {writer.position}"
        )
    return check.found.problems


class _Check:
    """One check of one state of the data file, and the log beside it."""

    def __init__(
        self,
        manifest: Manifest,
        txn: KvTransaction,
        wal: ReadableDirectory,
        *,
        until: int | None = None,
        begin: BeginPhase = untold,
    ) -> None:
        self.found = Inspection()
        self._begin = begin
        self._manifest = manifest
        self._txn = txn
        self._wal = wal
        self._until = until
        self._partitions = manifest.partitions
        self._history = Continuity(self.found.note, manifest.spaces)
        self._layer = Layer()
        self._view = View((self._layer,), txn)
        self._deleted: dict[bytes, int] = {}
        """Keys that the data file lacks, with the highest number at which the log sets them."""
        self._erased: dict[bytes, int] = {}
        """Keys that the data file lacks, with the highest number at which the log deletes them, in
        partitions with copies: what was supplied has lower numbers, and comes later."""
        self._agreeing: Counter[tuple[int, int]] = Counter()
        """Per partition and namespace, how many updates of the kept log are in the data file."""
        self._kept: State | None = None
        """The fold of the kept log, which says what takes effect where."""
        self._suspects: dict[int, list[str]] = {}
        """What a partition seems to lack, unless the log clears it later."""
        self._unknown: dict[int, list[Run]] = {}
        """Per partition, numbers of transactions that were prepared before the kept log."""
        self._counters: dict[int, PartitionUpdateCounter] = {}
        """Of partitions that were asked for, the counter in the data file."""
        self._outdated: set[int] = set()
        """Partitions that the log clears behind the checkpoint: what is there is of before."""
        self._refilled: set[int] = set()
        """Partitions with pairs that came in a full copy, past the log."""
        self._loaded: dict[tuple[int, int], range] = {}
        """Per partition and namespace, the numbers of a load."""

    def is_sound(self, file: str) -> bool:
        """Tell whether an LMDB file is a sound tree: reading another one may end the process.

        The open transaction keeps the tree readable as it is.
        """
        findings = verify_file(file)
        if findings:
            # A commit of a live writer that made the file grow meanwhile looks like damage, once.
            findings = verify_file(file)
        for finding in findings:
            self.found.note(finding)
        return not findings

    def run(self) -> None:
        """Check everything that is on disk; raises ``StorageError`` if that cannot go on."""
        mark, marks = read_marks(self._txn)
        store_id = bytes.fromhex(self._manifest.store_id)
        if mark is not None and mark.store_id != store_id:
            self.found.note(f"the data file belongs to store {mark.store_id.hex()}")
            return
        if any(partition >= self._partitions for partition in marks):
            self.found.note(f"the data file has {max(marks) + 1} partitions or more")
            return
        empty = PartitionMark.empty()
        self._marks = [marks.get(partition, empty) for partition in range(self._partitions)]
        pending = {p: read_pending(self._txn, p) for p, found in marks.items() if found.pending}
        self._state = State.from_marks(store_id, self._manifest.spaces, mark, marks, pending)
        self._start = self._state.position
        try:
            whole = self._read_log()
        finally:
            for problem in chain.from_iterable(self._suspects.values()):
                self.found.note(problem)
        self._live = {*INTERNAL, *self._state.namespaces}
        self._known = self._live | self._state.dropped
        namespaces = self._state.namespaces.values()
        self.found.maps = sorted(record.name for record in namespaces if not record.hidden)
        if whole:
            self._compare_prepared()
            self._compare_folds()
        self._walk_data(whole)

    # -------------------------------------------------------------- the log

    def _read_log(self) -> bool:
        """Fold the kept log twice; tell whether it is whole, so that more can be asked of it."""
        state, found = self._state, self.found
        durable = max(state.durable, self._manifest.durable)
        scan = Scan(self._wal, None, durable=durable, log_ids=self._manifest.log_ids)
        first = None
        total = None if self._begin is untold else sum(segment_sizes(self._wal))
        advance = self._begin("reading the log", total, "bytes")
        for frame in scan:
            advance(len(frame.payload))
            if self._until is not None and frame.end > self._until:
                break
            first = frame.position if first is None else first
            if first > self._start:
                found.note(f"the log begins at {first}, above the checkpoint at {self._start}")
                return False
            for _, record in read_records((frame,)):
                self._take(frame, record)
            if not self._history.numbers:
                found.note(f"segment {frame.segment} does not begin with a state")
                return False
            found.position = frame.end
        else:
            if scan.end.refused:
                found.note(f"{REFUSED[scan.end.kind]}: {scan.end}")
                return False
        for name, position in (
            ("the data file", state.durable), ("the overlay", self._until or 0)
        ):  # fmt: skip
            if found.position < position:
                found.note(f"{name} is at {position}, the log ends at {found.position}")
                return False
        check_rows(state)
        return True

    def _take(self, frame: Frame, record: Record) -> None:
        self._history.take(frame, record)
        for effect in self._effects(frame, record):
            if isinstance(effect, Cleared):
                self._forget(effect.partition)
                if frame.position >= self._state.replay_from[effect.partition]:
                    self._outdated.add(effect.partition)
            else:
                self._compare_updates(frame, effect)
        if isinstance(record, AdmitRecord):
            self._count_anew(record.partition)  # what it has counts as what lies below the log
        if isinstance(record, IngestRecord):
            self._loaded |= {
                (run.partition, record.namespace): range(run.first, run.first + run.count)
                for run in record.runs
            }
        if frame.position >= self._start:
            apply_updates(self._view, self._state, frame.position, record)

    def _effects(self, frame: Frame, record: Record) -> list[Effect]:
        """Return what becomes of the data by a record of the kept log."""
        if self._kept is None and isinstance(record, StateRecord):
            self._kept = State.from_record(record)
            states = self._kept.copies.states.items()
            self._refilled.update(p for p, one in states if one is not CopyState.OWNING)
            for one in record.pending:  # of these the kept log has no updates
                self._unknown.setdefault(one.run.partition, []).append(one.run)
        if self._kept is None:
            return []
        try:
            return self._kept.apply(frame.position, record)
        except CorruptLogError as error:
            place = f"segment {frame.segment}, offset {frame.offset}"
            self.found.note(f"{place}: the record does not fit the log before it: {error}")
            return []

    def _forget(self, partition: int) -> None:
        """Ask nothing any more of what was written before a partition was cleared."""
        self._refilled.add(partition)
        self._suspects.pop(partition, None)
        self._deleted = {k: n for k, n in self._deleted.items() if split_key(k)[0] != partition}
        self._erased = {k: n for k, n in self._erased.items() if split_key(k)[0] != partition}
        self._count_anew(partition)

    def _count_anew(self, partition: int) -> None:
        for place in [place for place in self._agreeing if place[0] == partition]:
            del self._agreeing[place]

    def _compare_updates(self, frame: Frame, applied: Applied) -> None:
        """Look whether the data file has what took effect below its checkpoint."""
        replay_from = self._state.replay_from
        for partition, _, counter, namespace, key, value in applied.updates():
            if partition >= self._partitions:
                continue
            if frame.position < replay_from[partition] or self._has(partition, counter):
                full_key = pack_prefix(partition, namespace) + key
                problem = self._compare(full_key, counter, value)
                if problem and namespace in (*INTERNAL, *self._state.namespaces):
                    suspects = self._suspects.setdefault(partition, [])
                    if len(suspects) <= PROBLEMS_MAX:
                        suspects.append(
                            f"segment {frame.segment}, offset {frame.offset}: update {counter} of "
                            f"partition {partition} {problem}: {self._place(full_key)}"
                        )
            elif value is None and frame.position < self._marks[partition].written:
                # A piece of an unfinished checkpoint may have carried this delete over.
                self._deleted.pop(pack_prefix(partition, namespace) + key, None)

    def _has(self, partition: int, number: int) -> bool:
        """Tell whether the data file says that it has a number.

        What all copies of a partition have may be carried over before the log says so.
        """
        if partition in self._outdated:
            return False
        counter = self._counters.get(partition)
        if counter is None:
            counter = PartitionUpdateCounter.from_bytes(self._marks[partition].counter)
            self._counters[partition] = counter
        return not is_free(counter, number, 1)

    def _compare(self, full_key: bytes, counter: int, value: bytes | None) -> str | None:
        """Return what is wrong with the data file's value of a key that was written."""
        stored = self._txn.get(full_key)
        if stored is None:
            if value is not None:
                if self._erased.get(full_key, 0) < counter:
                    self._deleted[full_key] = counter
            elif self._deleted.get(full_key, 0) < counter:
                self._deleted.pop(full_key, None)
                if self._has_copies(split_key(full_key)[0]):
                    self._erased[full_key] = max(counter, self._erased.get(full_key, 0))
            return None
        newest = version_of(stored)[1] if len(stored) >= TRAILER_SIZE else 0
        if newest > counter:
            return None
        if newest < counter:
            return "is missing in the data file" if value is not None else "is deleted, but there"
        if is_tombstone(stored):
            return None if value is None else "is deleted in the data file"
        self._agreeing[split_key(full_key)[:2]] += 1
        return None if stored[:-TRAILER_SIZE] == value else "has another value in the data file"

    def _has_copies(self, partition: int) -> bool:
        copies = None if self._kept is None else self._kept.copies
        return copies is not None and (partition in copies.sealed or partition in copies.admissions)

    def _compare_prepared(self) -> None:
        """Look whether the data file has what the log has prepared, where it has the numbers."""
        pending = {} if self._kept is None else self._kept.copies.pending
        for partition, prepared in pending.items():
            for one in prepared.all():
                columns = columns_prepared(one)
                if columns is None or not self._has(partition, one.run.first):
                    continue
                for _, _, number, namespace, key, value in numbered((one.run,), columns):
                    full_key = pack_prefix(partition, namespace) + key
                    if problem := self._compare(full_key, number, value):
                        self.found.note(
                            f"update {number} of partition {partition}, which is prepared, "
                            f"{problem}: {self._place(full_key)}"
                        )

    def _compare_folds(self) -> None:
        """Compare the fold from the checkpoint on with the one from the head of the log on."""
        state, history, note = self._state, self._history, self.found.note
        for partition, (numbers, counter) in enumerate(
            zip(history.numbers, state.counters, strict=True)
        ):
            if shape(numbers) != shape(_with_pending(state, partition)):
                note(f"partition {partition}: {counter!r}, but the log has {numbers!r}")
        if state.epochs != history.epochs:
            note("the epochs of the checkpoint are not those of the log")
        if state.namespaces != history.namespaces:
            note("the maps of the checkpoint are not those of the log")
        for full_key, number in self._deleted.items():
            partition, namespace, _ = split_key(full_key)
            if namespace in self._live:
                note(
                    f"update {number} of partition {partition} is missing in the data file, "
                    f"and nothing deleted it: {self._place(full_key)}"
                )

    # -------------------------------------------------------------- the data file

    def _walk_data(self, whole: bool) -> None:
        """Check each pair of the data file; say what each partition holds, the log included."""
        self._check_strangers()
        self._advance = self._begin(
            "checking pairs", sum(mark.count for mark in self._marks), "pairs"
        )
        for partition, mark in enumerate(self._marks):
            (count, digest, deletes), counts, recent = self._walk_partition(partition, mark)
            if (count, digest) != (mark.count, mark.digest):
                self.found.note(
                    f"partition {partition} holds {count} pairs with digest {digest:050x}, "
                    f"its mark says {mark.count} with {mark.digest:050x}"
                )
            elif mark.counts is not None and counts != mark.counts:
                self.found.note(
                    f"partition {partition} holds {dict(counts)} pairs by namespace, its mark says "
                    f"{dict(mark.counts)}"
                )
            if deletes != mark.tombstones:
                self.found.note(
                    f"partition {partition} holds {deletes} deletes, its mark says "
                    f"{mark.tombstones}: others belong in the log only"
                )
            if whole and partition not in self._state.cleared.keys() | self._refilled:
                self._check_recent(partition, recent)
            self.found.partitions[partition] = self._with_log(partition, count, digest)

    def _walk_partition(
        self, partition: int, mark: PartitionMark
    ) -> tuple[Measured, Counter[int], Counter[int]]:
        """Return what is there, its pairs by namespace, and how many the kept log must have."""
        counter = PartitionUpdateCounter.from_bytes(mark.counter)
        known, epochs = counter, mark.epochs
        if mark.position < mark.written:
            # A checkpoint was cut short: some values are newer than the mark's counter.
            known = self._state.counters[partition]
            epochs = self._state.epoch_tables[partition]
        bases = self._history.bases
        base = bases[partition] if bases else counter
        # The counter of a full copy that comes in comes with its end.
        is_filled = mark.state == CopyState.NOT_WHOLE
        count, digest, deletes = 0, 0, 0
        counts: Counter[int] = Counter()
        recent: Counter[int] = Counter()
        stored: list[bytes] = []
        cursor = self._txn.cursor()
        prefix = partition.to_bytes(4, "big")
        more = cursor.set_range(prefix + b"\0\0\0\1")
        while more and cursor.key().startswith(prefix):
            full_key, value = cursor.item()
            more = cursor.next()
            self._advance(1)
            problem = None if is_filled else self._check_value(full_key, value, known, epochs)
            if problem is not None:
                self.found.note(problem)
            elif full_key[4:8] == _PENDING:
                continue
            elif is_tombstone(value):
                deletes += 1
                continue
            elif is_free(base, number := version_of(value)[1], 1) and not is_free(
                counter, number, 1
            ):
                namespace = split_key(full_key)[1]
                if not self._is_elsewhere(partition, namespace, number):
                    recent[namespace] += 1
            stored.append(value)
            counts[int.from_bytes(full_key[4:8], "big")] += 1
            if len(stored) == BLOCK:
                digest ^= xor_trailers(stored)
                count += len(stored)
                stored = []
        count, digest = count + len(stored), digest ^ xor_trailers(stored)
        return Measured(count, digest, deletes), counts, recent

    def _is_elsewhere(self, partition: int, namespace: int, number: int) -> bool:
        """Tell whether the kept log has a number without the update that it belongs to."""
        return number in self._loaded.get((partition, namespace), ()) or any(
            run.first <= number < run.first + run.count for run in self._unknown.get(partition, ())
        )

    def _check_value(
        self, full_key: bytes, value: bytes, counter: PartitionUpdateCounter, epochs: EpochTable
    ) -> str | None:
        try:
            check_pair(full_key, value)
        except CorruptDataError:
            return f"a stored value does not match its checksum: {self._place(full_key)}"
        try:
            check_flags(full_key, value)
        except FormatVersionError as error:
            return str(error)
        partition, namespace, key = split_key(full_key)
        if namespace == PENDING or partition in self._state.cleared:
            return None
        epoch, number, _ = version_of(value)
        where = self._place(full_key)
        belongs = partition_of(key, self._space_of(namespace))
        if belongs != partition:
            return f"{where} belongs to partition {belongs}"
        if is_free(counter, number, 1):
            return f"{where} has update number {number}, which {counter!r} does not hold"
        if epoch != epoch_of(epochs, number):
            return f"{where} has update number {number} in epoch {epoch}"
        if namespace not in self._known:
            return f"{where} belongs to no map"
        return None

    def _space_of(self, namespace: int) -> Space:
        """Return the space of a namespace; internal ones lie in the first."""
        record = self._state.namespaces.get(namespace)
        return self._state.spaces[0] if record is None else self._state.space_of(record)

    def _place(self, full_key: bytes) -> str:
        """Return a full key as the user knows it: map and key, if these can be told."""
        if len(full_key) < PREFIX_SIZE:
            return f"key {shown_key(full_key)}"
        partition, number, key = split_key(full_key)
        record = self._state.namespaces.get(number)
        if record is None:
            return f"namespace {number}, key {shown_key(key)} (partition {partition})"
        try:
            shown = decoded_key(codec_named(record.key_codec, record.key_version), key)
        except CodecError:
            shown = shown_key(key)
        return f"map {record.name!r}, key {shown} (partition {partition})"

    def _check_recent(self, partition: int, recent: Counter[int]) -> None:
        """Compare the newest values with those that the kept log wrote: none may be made up."""
        for namespace, count in sorted(recent.items()):
            written = self._agreeing[partition, namespace]
            if namespace in self._live and written != count:
                self.found.note(
                    f"partition {partition}, namespace {namespace} has {count} values from the "
                    f"time of the kept log, which wrote {written} of them"
                )

    def _check_strangers(self) -> None:
        """Look for keys that are neither in a partition nor a mark."""
        cursor = self._txn.cursor()
        more = cursor.first()
        while more:
            key = cursor.key()
            partition, namespace = split_key(key)[:2] if len(key) >= PREFIX_SIZE else (-1, 0)
            if key != STORE_KEY and not (0 <= partition < self._partitions):
                self.found.note(f"key {key.hex()} lies outside of the partitions")
                more = cursor.next()
            elif namespace == 0 and key not in (STORE_KEY, mark_key(partition)):
                self.found.note(f"key {key.hex()} is not a mark")
                more = cursor.next()
            elif namespace == 0:
                more = cursor.next()
            else:
                more = cursor.set_range((partition + 1).to_bytes(4, "big"))

    def _with_log(self, partition: int, count: int, digest: int) -> tuple[int, int]:
        """Return count and digest with the log behind the checkpoint applied."""
        cleared = partition in self._state.cleared
        if cleared:
            count = digest = 0
        for full_key, stored in self._layer.parts.get(partition, {}).items():
            old = self._txn.get(full_key)
            if old is not None and not cleared and not is_tombstone(old):
                digest ^= xor_trailers([old])
                count -= 1
            if not is_tombstone(stored):
                digest ^= xor_trailers(checked([full_key], [stored]))
                count += 1
        return count, digest

    # -------------------------------------------------------------- memory

    def compare_with_memory(self, view: View, counters: list[PartitionUpdateCounter]) -> None:
        """Compare what an open store has in memory with the fold of its log."""
        note = self.found.note
        for partition, (logged, counter) in enumerate(
            zip(self._state.counters, counters, strict=True)
        ):
            if shape(logged) != shape(counter):
                note(f"partition {partition}: {counter!r} in memory, {logged!r} in the log")
        for partition in range(self._partitions):
            replayed = self._layer.parts.get(partition, {})
            keys = set(replayed).union(*(layer.parts.get(partition, ()) for layer in view.layers))
            for full_key in sorted(keys):
                live = view.stored(partition, full_key)
                folded = replayed.get(full_key) or self._txn.get(full_key)
                if seen(live) != seen(folded):
                    note(f"partition {partition}, key {full_key.hex()} differs in memory")


def shape(counter: PartitionUpdateCounter) -> tuple[int, list[tuple[int, int]]]:
    """Return what is applied; HWM may be higher if reservations never reached the log."""
    return counter.lwm, counter.out_of_order


def _with_pending(state: State, partition: int) -> PartitionUpdateCounter:
    """Return a counter with the numbers of prepared transactions, which the log has too."""
    pending = state.copies.pending.get(partition)
    if not pending:
        return state.counters[partition]
    counter = PartitionUpdateCounter.from_bytes(
        state.counters[partition].to_bytes(), max_ranges=1 << 30
    )
    for one in pending.all():
        counter.update(one.run.first - 1, one.run.count)
    return counter


def seen(stored: bytes | None) -> bytes | None:
    """Return a stored value as readers see it: a delete is nothing, and there is no check yet."""
    return None if stored is None or is_tombstone(stored) else stored[:-CHECK_SIZE]
