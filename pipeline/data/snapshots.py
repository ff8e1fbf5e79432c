"""The data of a store at one cut, some partitions to a task.

A snapshot is the data file of a store that nobody writes, or of a hot copy, under the log behind
it: all of that, or what lies below an older cut (``past``).  Each task opens the store for reading,
by itself, and closes it again.

Invariants:

- All tasks of a read see the same position of the log; a store that was written in between raises
  ``SnapshotExpiredError``.
- Every value is checked, and each key comes once.
- Memory is bounded by a batch, by rows and by bytes, and what the log has behind the checkpoint.

Left out: the log itself (``logs``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

from ...affinity.errors import AlreadyOpenError, NotFoundError, SnapshotExpiredError, UsageError
from ...checkpoints.marks import PartitionMark
from ...engine.api.database import session_of
from ...engine.api.open import open as open_store
from ...engine.api.read_only import ReadOnlyDatabase
from ...engine.data.overlay import View
from ...engine.data.partition_store import read_marks
from ...engine.data.raw_scan import raw_blocks
from ...engine.data.scan import Range
from ...engine.data.stored import TRAILER_SIZE, StoredPair, flags_of, present
from ...engine.system.disk import RealDisk
from ...engine.system.environment import Environment
from ...engine.system.layout import LOCK_NAME
from ...engine.system.production import production
from ..base.pace import paced
from ..log.changes import as_puts
from ..log.columns import META, ChangeFormat, GrowingColumns
from ..log.logs import Cut, Log
from ..log.tx_ids import TxIds
from .past import Past
from .stored_rows import StoredRows

if TYPE_CHECKING:
    import pyarrow as pa


BLOCK = 1_000
BLOCK_BYTES = 4 << 20
"""A block ends with the pair that brings it here."""

_VALUE = itemgetter(1)


@dataclass(frozen=True, slots=True)
class Part:
    """Some partitions of a store at one position of its log."""

    path: str
    position: int
    partitions: tuple[int, ...]
    maps: dict[int, str]
    """Names of the wanted maps by id."""
    start: bytes = b""
    stop: bytes | None = None
    """Where the wanted keys begin, and what they lie before."""
    tx_ids: bool = False
    """Whether to look the transactions up in the log, all of which is read for that."""
    past: Past | None = None
    """The cut to show, if that is older than the position."""
    bytes_per_second: float | None = None
    """How much of keys and stored values to read, at most."""

    def batches(
        self,
        columns: tuple[str, ...] | None,
        batch_rows: int,
        environment: Environment | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read them; raises ``SnapshotExpiredError`` and what damage raises.

        ``environment`` has the clock to keep a pace by; None is the real one.
        """
        known = TxIds(self.path, self.position, self.partitions) if self.tx_ids else None
        rows = StoredRows(columns, batch_rows, known)
        blocks = self.pairs(min(BLOCK, batch_rows))
        if self.bytes_per_second is not None:
            blocks = paced(blocks, _size, self.bytes_per_second, environment or production())
        for partition, number, block in blocks:
            rows.add(block, partition, number, self.maps[number])
            if rows.full:
                yield from rows.batch()
        yield from rows.batch()

    def pairs(self, rows: int | None = None) -> Iterator[tuple[int, int, list[StoredPair]]]:
        """Yield (partition, map's id, checked pairs of full key and stored value); raises alike.

        At most so many at a time.
        """
        opened = _newest(self.path) if self.past is None else self.past.view(self.path)
        with opened as (view, position):
            if position != self.position:
                raise SnapshotExpiredError(
                    f"{self.path} was written since the read was planned: its log has come from "
                    f"{self.position} to {position}",
                    hint="Read a hot copy: `tidelog db backup STORE DIR`.",
                )
            for partition in self.partitions:
                for number in self.maps:
                    wanted = Range(namespace=number, start=self.start, stop=self.stop)
                    for block in _blocks(view, partition, wanted, rows or BLOCK):
                        yield partition, number, block


@dataclass(frozen=True, slots=True)
class PartAsPuts:
    """The data of a part as the changes that made it: what a stream may begin with."""

    part: Part
    form: ChangeFormat

    def batches(self, columns: tuple[str, ...] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read them; raises as ``Part.batches`` does."""
        for batch in self.part.batches(None, batch_rows):
            yield as_puts(batch, self.form, columns)


@dataclass(frozen=True, slots=True)
class Account:
    """What a store, or a folder of segments, says about each of its partitions."""

    path: str

    def batches(self, columns: tuple[str, ...] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read it; raises what a damaged log or data file raises."""
        log = Log(self.path)
        marks: dict[int, PartitionMark] = {}
        checkpoint = None
        if log.source.kind == "store":
            check_closed(self.path)
            with _opened(self.path) as db:
                mark, marks = read_marks(session_of(db).overlay.view.txn)
                checkpoint = None if mark is None else str(mark.position)
                state = session_of(db).state
        else:
            state = log.newest().state
        earliest = log.earliest().state
        rows = GrowingColumns(META, columns, batch_rows)
        for partition, counter in enumerate(state.counters):
            of = marks.get(partition)
            gaps = [{"start": a, "count": b - a + 1} for a, b in counter.missing]
            rows.add(
                1,
                (self.path,),
                (partition,),
                ("local",),
                (counter.lwm,),
                (counter.hwm,),
                (gaps,),
                (earliest.counters[partition].lwm if partition < earliest.partitions else 0,),
                (checkpoint,),
                (None if of is None else of.count,),
                (None,),
                (None if of is None else of.digest.to_bytes(TRAILER_SIZE, "little"),),
            )
        yield from rows.batch()


def pin(path: str) -> tuple[Log, Cut]:
    """Return the log of a store that nobody writes, and the cut that a snapshot of it shows."""
    log = Log(path)
    if log.source.kind != "store":
        raise NotFoundError(
            f"{path} is a folder of segments, which hold changes and no data",
            hint="The views changes and wal read it; a snapshot needs a store or a hot copy.",
        )
    check_closed(path)
    with _opened(path) as db:
        state = session_of(db).state
        names = {number: record.name for number, record in state.namespaces.items()}
        return log, Cut(position=db.position, state=state, names=names)


def check_closed(path: str) -> None:
    """Raise ``AlreadyOpenError`` if a writer has a store open."""
    try:
        RealDisk().lock(os.path.join(path, LOCK_NAME), shared=True).release()
    except BlockingIOError:
        raise AlreadyOpenError(
            f"{path} is open for writing: its data file changes while it is read",
            path=path,
            pid=0,
            hint="Read a hot copy: `tidelog db backup STORE DIR`. The views changes and wal read "
            "beside a writer.",
        ) from None
    except FileNotFoundError:
        pass  # a hot copy that nobody has opened yet


def parts(
    path: str,
    cut: Cut,
    partitions: list[int],
    namespace: str | None,
    tasks: int,
    keys: tuple[bytes, bytes | None] = (b"", None),
    *,
    tx_ids: bool = False,
) -> list[Part]:
    """Return the parts of a snapshot, of about equal numbers of partitions.

    ``keys`` are where the wanted ones begin, and what they lie before; ``tx_ids`` as in a part.
    """
    live = cut.maps()
    maps = {n: name for n, name in live.items() if namespace in (None, name)}
    if namespace is not None and not maps:
        raise UsageError(
            f"there is no map {namespace!r} in {path}",
            hint=f"There are {', '.join(sorted(live.values())) or 'none'}.",
        )
    size = -(-len(partitions) // max(tasks, 1))
    groups = [tuple(partitions[at : at + size]) for at in range(0, len(partitions), size)]
    return [Part(path, cut.position, group, maps, *keys, tx_ids) for group in groups]


def _opened(path: str) -> ReadOnlyDatabase:
    db = open_store(path, read_only=True)
    assert isinstance(db, ReadOnlyDatabase)
    return db


@contextmanager
def _newest(path: str) -> Iterator[tuple[View, int]]:
    """Open a store for a block; return how it is, and where its log ends."""
    with _opened(path) as db:
        yield session_of(db).overlay.view, db.position


def _size(read: tuple[int, int, list[StoredPair]]) -> int:
    """Return the bytes of keys and stored values in a block."""
    return sum(map(len, chain.from_iterable(read[2])))


def _blocks(view: View, partition: int, wanted: Range, rows: int) -> Iterator[list[StoredPair]]:
    """Yield blocks of checked pairs that are not deletes, in order."""
    low, high = wanted.bounds(partition)
    if low >= high:
        return
    for block in raw_blocks(view, partition, low, high, rows=rows, most_bytes=BLOCK_BYTES):
        live = present(block) if any(map(flags_of, map(_VALUE, block))) else block
        if live:
            yield live
