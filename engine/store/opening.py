"""Opens a store for an owner of its own: its files, then what commits into them.

The order, and why: the lock first, so that nobody else changes what is looked at; the manifest
next, which says whose files these are (``claim``); then the files (``store_files``).  Only when
their log has been replayed, and its tail is durable, is anything appended: what closes the gaps of
counters, and raises the epochs after anything but a clean close.  A crash at any step leaves a
store that the next open recovers.

Left out: reading processes (``read_only``), maps and transactions (``database``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise

from ...checkpoints.marks import epoch_of
from ...checkpoints.replay import State
from ...wal.records import DropNamespaceRecord, Record, RollbackRecord, Run
from ..commit.committer import Committer
from ..commit.context import AutomaticIds, CommitContext
from ..commit.lock_manager import LockManager
from ..commit.outcomes import automatic_prefix
from ..system.environment import Environment
from .claim import claim_store
from .creation import check_partition_count
from .options import Options
from .store_files import StoreFiles, open_files


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStore(StoreFiles):
    """An embedded store that is open for writing: its files, and what commits into them."""

    committer: Committer
    locks: LockManager


def open_store(
    environment: Environment,
    path: str,
    *,
    partitions: int | None,
    create: bool,
    options: Options,
    mapped: bool,
) -> OpenStore:
    """Open the store at ``path`` for writing, making it if there is none and ``create`` allows.

    ``partitions`` is for a new store (16 by default) and has to agree with that of an old one.
    Raises as ``open_files`` does, and ``AlreadyOpenError``, ``NotFoundError``, ``UsageError``,
    ``FormatVersionError``.
    """
    if partitions is not None:
        check_partition_count(partitions)
    claim = claim_store(environment, path, partitions=partitions, create=create)
    try:
        files = open_files(claim, options, mapped=mapped)
        try:
            store = _embedded(files, puts_durable=not mapped)
            _close_gaps(store)
            return store
        except BaseException:
            files.close()
            raise
    except BaseException:
        claim.give_up()
        raise


def _embedded(files: StoreFiles, puts_durable: bool) -> OpenStore:
    """Return the files with a committer of their own."""
    context = CommitContext(
        files.state,
        files.overlay,
        AutomaticIds(_id_prefix(files)),
        position=files.writer.position,
        now=files.environment.monotonic,
        note_given_id=files.keeper.note_given_id,
    )
    committer = Committer(
        files.environment,
        context,
        files.writer,
        mutex=files.mutex,
        transaction_bytes_max=files.options.transaction_bytes_max,
        puts_durable=puts_durable,
    )
    files.keeper.follow(committer)
    files.adopt(committer)
    parts = {part.name: getattr(files, part.name) for part in fields(files)}
    return OpenStore(**parts, committer=committer, locks=LockManager(files.environment, committer))


def _id_prefix(files: StoreFiles) -> bytes:
    """Return the first half of automatic ids, which carries a time.

    That is behind the time of every commit so far, and of no commit to come.
    """
    environment, state = files.environment, files.state
    time = max(environment.clock(), state.time + 1000)
    state.time = time = time - time % 1000
    return automatic_prefix(time, environment.new_id())


def _close_gaps(store: OpenStore) -> None:
    """Close gaps, and raise epochs if they must be; log both.

    Hidden maps go: nobody is left who could complete them.
    """
    state = store.state
    with store.mutex:
        gaps = _finalize_counters(state)
    time = max(store.environment.clock(), state.time)
    closing: list[Record] = []
    if gaps:
        closing.append(RollbackRecord(tx_id=bytes(16), time=time, reason="gap", runs=tuple(gaps)))
    records: list[Record] = [
        DropNamespaceRecord(id=namespace.id, time=time)
        for namespace in state.namespaces.values()
        if namespace.hidden
    ]
    if not store.report.clean:
        records.append(state.next_epochs(time))
    if closing or records:
        store.committer.log(
            [*closing, *records],
            durable=True,
            then=lambda: [state.apply(store.writer.position, record) for record in records],
        )


def _finalize_counters(state: State) -> list[Run]:
    """Close what recovery found missing, and forget reservations that never reached the log."""
    gaps = []
    for partition, counter in enumerate(state.counters):
        table = state.epoch_tables[partition]
        for first, last in counter.finalize():
            # A number belongs to the epoch that gave it out, and only to that one.
            starts = [first, *(start for _, start in table if first < start <= last), last + 1]
            gaps += [
                Run(partition, epoch_of(table, low), low, high - low)
                for low, high in pairwise(starts)
            ]
            state.touched.add(partition)
    return gaps
