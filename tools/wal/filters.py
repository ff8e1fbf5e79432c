"""Which records and updates of a log are wanted.

Invariants:

- Filters compose: a record has to satisfy all that are given, and so has each update shown of it.
- A segment is passed over only if its index, or its position, says that it holds nothing
  wanted; without an index it is read.

Left out: reading the log (``files.log_source``) and printing (``records``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from ...affinity.errors import CodecError, CorruptLogError, NotFoundError, UsageError
from ...engine.codecs.byte_text import parse_bytes, quoted
from ...engine.codecs.registry import Codec, KeyRange, byte_prefix_range
from ...wal.ports import ReadableDirectory
from ...wal.reader import load_index
from ...wal.records import (
    AdmitRecord,
    CommitRecord,
    DropNamespaceRecord,
    IngestRecord,
    NamespaceRecord,
    OutcomesRecord,
    PrepareRecord,
    RollbackRecord,
    Run,
    SettleRecord,
    SuppliedRecord,
    TxRecord,
    Update,
)
from ...wal.segments import open_segment, segment_numbers
from ..shell.text import parse_value, value_of_text
from .records import (
    FIRST_USER_NAMESPACE,
    AnyRecord,
    BadRecord,
    LoggedRecord,
    Names,
    WithUpdates,
    record_time,
    type_of,
    updates_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What is wanted; None and empty want everything.

    ``map`` is the id of a map, or a name: what was written while a map had it is wanted, and all of
    ``named_now``, the ids of those that have it at the end of the log.  ``tx`` is a whole id or the
    beginning of one, in hex.  ``start`` and ``stop`` are positions, ``since`` and ``until`` times
    in microseconds (``until`` is not included), ``counters`` an inclusive range.
    """

    map: str | None = None
    named_now: Set[int] = frozenset()
    key: str | None = None
    prefix: str | None = None
    partition: int | None = None
    counters: tuple[int, int] | None = None
    tx: str | None = None
    types: Sequence[str] = ()
    since: int | None = None
    until: int | None = None
    start: int | None = None
    stop: int | None = None
    internal: bool = False
    _ranges: dict[int, KeyRange | None] = field(default_factory=dict, compare=False)

    @property
    def about_updates(self) -> bool:
        """Whether single updates are wanted, and not whole records."""
        chosen = (self.map, self.key, self.prefix, self.partition, self.counters)
        return any(value is not None for value in chosen)

    # -------------------------------------------------------------- records

    def wants(self, logged: LoggedRecord, names: Names) -> bool:
        """Tell whether a record is wanted, its updates not looked at yet."""
        record, position = logged.record, logged.frame.position
        if self.start is not None and position < self.start:
            return False
        if self.stop is not None and position >= self.stop:
            return False
        if self.types and type_of(record) not in self.types:
            return False
        return (
            self._wants_id(record) and self._wants_time(record) and self._wants_part(record, names)
        )

    def _wants_id(self, record: AnyRecord) -> bool:
        if self.tx is None:
            return True
        return any(tx_id.hex().startswith(self.tx) for tx_id in ids_of(record))

    def _wants_time(self, record: AnyRecord) -> bool:
        if self.since is None and self.until is None:
            return True
        time = record_time(record)
        if time is None:
            return False
        return (self.since or 0) <= time and (self.until is None or time < self.until)

    def _wants_part(self, record: AnyRecord, names: Names) -> bool:
        """What of the update-wise filters can be said of a record that is not a transaction."""
        if not self.about_updates or isinstance(record, WithUpdates | BadRecord):
            return True
        if isinstance(record, RollbackRecord | CommitRecord):
            by_name = self.map is not None or self.key is not None or self.prefix is not None
            runs = record.runs if isinstance(record, RollbackRecord) else record.participants
            return not by_name and any(map(self._wants_run, runs))
        if isinstance(record, IngestRecord):
            by_key = self.key is not None or self.prefix is not None
            of_map = self.wants_map(record.namespace, names)
            return not by_key and of_map and any(map(self._wants_run, record.runs))
        if isinstance(record, NamespaceRecord | DropNamespaceRecord):
            only_map = Filter(map=self.map, named_now=self.named_now, internal=True)
            about_map = self.map is not None and not self._without_map()
            return about_map and only_map.wants_map(record.id, names)
        return False

    def _without_map(self) -> bool:
        chosen = (self.key, self.prefix, self.partition, self.counters)
        return any(value is not None for value in chosen)

    def _wants_run(self, run: Run) -> bool:
        if self.partition not in (None, run.partition):
            return False
        first, last = self.counters or (0, run.first)
        return first < run.first + run.count and run.first <= last

    # -------------------------------------------------------------- updates

    def updates(self, record: AnyRecord, names: Names) -> list[Update]:
        """Return the wanted updates of a record."""
        return [update for update in updates_of(record) if self._wants_update(update, names)]

    def _wants_update(self, update: Update, names: Names) -> bool:
        if not self.wants_map(update.namespace, names):
            return False
        if self.partition not in (None, update.partition):
            return False
        first, last = self.counters or (update.counter, update.counter)
        return first <= update.counter <= last and self._wants_key(update, names)

    def wants_map(self, number: int, names: Names) -> bool:
        """Tell whether a namespace is wanted; internal ones only on request."""
        if self.map is not None:
            return number in self.named_now or self.map in (names.name(number), str(number))
        return self.internal or number >= FIRST_USER_NAMESPACE

    def _wants_key(self, update: Update, names: Names) -> bool:
        if self.key is None and self.prefix is None:
            return True
        if update.namespace not in self._ranges:
            self._ranges[update.namespace] = self._range(names.key_codec(update.namespace))
        wanted = self._ranges[update.namespace]
        if wanted is None:
            return False
        low, high = wanted
        return low <= update.key and (high is None or update.key < high)

    def _range(self, codec: Codec[Any] | None) -> KeyRange | None:
        """The wanted keys of a map; None if the text is not a key of its codec."""
        try:
            return key_range(codec, self.key, self.prefix)
        except (UsageError, CodecError):
            if self.map is not None:
                raise
            return None


def ids_of(record: AnyRecord) -> list[bytes]:
    """Return the ids of the transactions that a record speaks of."""
    match record:
        case TxRecord() | RollbackRecord() | PrepareRecord() | CommitRecord():
            return [record.tx_id]
        case SettleRecord() | SuppliedRecord():
            return [one.tx_id for one in record.transactions]
        case AdmitRecord():
            return list(record.dropped)
        case OutcomesRecord():
            return [*(one.tx_id for one in record.committed), *record.forgotten]
        case _:
            return []


def key_range(codec: Codec[Any] | None, key: str | None, prefix: str | None) -> KeyRange:
    """Return the run of encoded keys that ``--key`` or ``--prefix`` text means.

    Without a codec only bytes (``utf8:``, ``hex:``, ``b64:``) mean something.
    """
    text = key if key is not None else prefix
    assert text is not None, "one of both is given"
    data = parse_bytes(text)
    if codec is None and data is None:
        raise UsageError(
            "the codec of the keys is not known here", hint="Give bytes as utf8:, hex: or b64:."
        )
    if key is not None:
        exact = parse_value(text, codec, "key") if codec else data
        assert exact is not None
        return exact, exact + b"\0"
    if data is not None:
        return byte_prefix_range(data)
    assert codec is not None
    return codec.prefix_range(value_of_text(text, codec, "prefix"))


# ------------------------------------------------------------------ segments


def segments_wanted(directory: ReadableDirectory, chosen: Filter) -> Callable[[int], bool]:
    """Return the function that tells a scan which segments it has to read."""
    borders = _borders(directory) if chosen.start or chosen.stop is not None else {}

    def wanted(number: int) -> bool:
        first, end = borders.get(number, (0, None))
        if chosen.stop is not None and first >= chosen.stop:
            return False
        if chosen.start is not None and end is not None and end <= chosen.start:
            return False
        return _index_wants(directory, number, chosen)

    return wanted


def _index_wants(directory: ReadableDirectory, number: int, chosen: Filter) -> bool:
    index = load_index(directory, number)
    if index is None:
        return True
    if chosen.tx is not None and len(chosen.tx) == 32:
        return index.may_contain(bytes.fromhex(chosen.tx))
    if chosen.partition is not None and index.counters.get(chosen.partition) is None:
        return False
    if chosen.since is not None and index.newest is not None and index.newest < chosen.since:
        return False
    return chosen.until is None or index.oldest is None or index.oldest < chosen.until


def _borders(directory: ReadableDirectory) -> dict[int, tuple[int, int | None]]:
    """First and end position of each segment whose header can be read."""
    firsts: list[tuple[int, int]] = []
    for number in segment_numbers(directory):
        try:
            segment = open_segment(directory, number)
        except (CorruptLogError, FileNotFoundError):
            continue
        segment.file.close()
        firsts.append((number, segment.first_position))
    ends = [first for _, first in firsts[1:]]
    return {
        number: (first, end) for (number, first), end in zip(firsts, [*ends, None], strict=True)
    }


def position_of(directory: ReadableDirectory, text: str) -> int:
    """Return the position that text means: a number, or ``segment:offset``."""
    match = re.fullmatch(r"(\d{1,20})(?::(\d{1,20}))?", text)
    if match is None:
        raise UsageError(
            f"{quoted(text)} is not a position", hint="Give 4096, or segment:offset as 1:4224."
        )
    number = int(match[1])
    if match[2] is None:
        return number
    if number not in segment_numbers(directory):
        raise NotFoundError(f"there is no segment {number}", hint="`tidelog wal ls` lists them.")
    segment = open_segment(directory, number)
    segment.file.close()
    return max(segment.position_of(int(match[2])), segment.first_position)
