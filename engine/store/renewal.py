"""A new data file in place of one of which most was cleared: what copies of everything begin with.

Pairs that are deleted one by one leave their pages scattered over the file, and what comes next is
written into these.  It takes less than half of the time to write what stays into a new file, and
what comes behind that:

1. ``FRESH_DATA_FILE`` is made beside the data file, and takes all that was not cleared, in order.
   It is called ``WHOLE_DATA_FILE`` then.
2. Its lock file gets the name of the other one, then it does, and the folder is synced.
3. The environment goes on in the new file.  Transactions that read stay in the old one, which has
   no name any more, and goes with the last of them.

Invariants:

- Until the lock file has its name nothing has changed: a crash leaves the old files, and remains
  that the next open removes.  A new lock file belongs to the new data, so from there on the next
  open ends the renewal: there is a whole file, and no lock file of its own beside it.
- Behind that there is what a checkpoint had left that removed what was cleared, and did no more.
- Whoever opens the new file, from another process, too, finds the lock file of who writes it.

Left out: when the log says so durably, and what a failure means (``checkpointer``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice, takewhile

from ...checkpoints.marks import PartitionMark
from ...wal.ports import Directory
from ..data.flush import CHUNK, data_ranges
from ..data.partition_store import mark_key, write_mark
from ..data.stored import StoredPair
from ..system.disk_errors import translated_disk
from ..system.environment import Cursor, KeyValueEnvironment
from ..system.layout import DATA_FILE, FRESH_DATA_FILE, FRESH_DATA_LOCK, WHOLE_DATA_FILE
from ..system.limits import LIMITS, Limits
from ..system.lmdb_file import LOCK_FILE

_FIRST, _BEHIND_ALL = b"\0", b"\xff" * 16


def pays(
    marks: Mapping[int, PartitionMark], cleared: Collection[int], limits: Limits = LIMITS
) -> bool:
    """Tell whether so many pairs were cleared, of so few, that a new file is quicker.

    Example: with 50,000 pairs cleared and 6,000 that stay it pays, with 7,000 it does not.
    """
    held = {partition: mark.count + mark.tombstones for partition, mark in marks.items()}
    gone = sum(held[partition] for partition in cleared)
    stays = sum(held.values()) - gone
    return gone >= max(limits.renewed_pairs, limits.renewed_share * stays)


def write_fresh(
    kv: KeyValueEnvironment,
    folder: Directory,
    cleared: Mapping[int, PartitionMark],
    limits: Limits,
    rest: Callable[[], object],
) -> Generator[None, None, KeyValueEnvironment]:
    """Write all but the data of some partitions into a new file beside that of ``kv``.

    Yields behind each transaction; the generator returns the new environment.  ``cleared`` has the
    marks that it then has of these.  ``rest`` is called behind each ``CHUNK`` of pairs.  Raises as
    writing does: nothing has changed then.
    """
    with translated_disk("removing what a renewal left"):
        remove_fresh(folder)
    fresh: KeyValueEnvironment | None = None
    try:
        fresh = kv.beside()
        yield from _carry_over(kv, fresh, cleared, limits, rest)
        with fresh.write() as txn:
            for partition, mark in cleared.items():
                write_mark(txn, mark_key(partition), mark.to_bytes())
        return fresh
    except BaseException:
        if fresh is not None:
            fresh.close()
        with suppress(OSError):
            remove_fresh(folder)
        raise


def take_place(kv: KeyValueEnvironment, folder: Directory, fresh: KeyValueEnvironment) -> None:
    """Let ``kv`` go on in a file that was written beside its own.

    Raises ``OSError``.  Behind any error it is not known which file is there after a crash.
    """
    try:
        folder.rename(FRESH_DATA_FILE, WHOLE_DATA_FILE)
        folder.rename(FRESH_DATA_LOCK, LOCK_FILE)
        folder.rename(WHOLE_DATA_FILE, DATA_FILE)
        folder.sync()
    except BaseException:
        fresh.close()
        raise
    kv.become(fresh)


def end_renewal(folder: Directory) -> None:
    """End a renewal that came to no end, or remove what it left; raises ``OSError``.

    The folder is not synced.
    """
    names = folder.names()
    if WHOLE_DATA_FILE in names and FRESH_DATA_LOCK not in names:
        folder.rename(WHOLE_DATA_FILE, DATA_FILE)
    remove_fresh(folder)


def remove_fresh(folder: Directory) -> None:
    """Remove what a renewal has written; raises ``OSError``."""
    names = folder.names()
    for name in (WHOLE_DATA_FILE, FRESH_DATA_FILE, FRESH_DATA_LOCK):
        if name in names:
            folder.unlink(name)


def _carry_over(
    kv: KeyValueEnvironment,
    fresh: KeyValueEnvironment,
    cleared: Iterable[int],
    limits: Limits,
    rest: Callable[[], object],
) -> Iterator[None]:
    """Write all pairs but the data of cleared partitions into an empty file."""
    cursor = kv.begin().cursor()
    pairs = _pairs_of(cursor, cleared)
    more = True
    while more:
        rows = size = 0
        with fresh.write() as txn:
            target = txn.cursor()
            while rows < limits.attach_rows and size < limits.attach_bytes and more:
                some = list(islice(pairs, CHUNK))
                target.putmulti(some, append=True)
                rows += len(some)
                size += sum(len(value) for _, value in some)
                more = len(some) == CHUNK
                rest()
            target.close()
        yield
    cursor.close()


def _pairs_of(cursor: Cursor, cleared: Iterable[int]) -> Iterator[StoredPair]:
    """Yield all pairs but the data of some partitions, in order."""
    first = _FIRST
    for partition in sorted(cleared):
        for went, until in data_ranges(partition):
            yield from _pairs_between(cursor, first, went)
            first = until
    yield from _pairs_between(cursor, first, _BEHIND_ALL)


def _pairs_between(cursor: Cursor, first: bytes, last: bytes) -> Iterator[StoredPair]:
    if cursor.set_range(first):
        yield from takewhile(lambda pair: pair[0] < last, cursor.iternext())
