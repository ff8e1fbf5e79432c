"""Copies that a reset has left behind: what they have is kept in files before it is cleared (S6).

A partition that was lost went on from some copy.  A copy that comes back later, and has what that
one had not, is never merged: nobody can tell which of it was undone since.  It is written into
files that ``tidelog kv import`` reads, one for each map, with what is pending in it, which may have
been acknowledged.  Then it comes back like any other.  One that was catching up when the others
were lost is not whole, and nothing goes on from it; what it has is kept all the same.

    aside/partition-5-epoch-3-upto-120-map-16.jsonl

Invariants:

- Nothing of a copy that was left behind is dropped before all of it is in files, durably.
- A file has its name once it is whole.
- One copy is written at a time: of a file that has no name yet there is only one.

Left out: when a copy comes back or goes (``catching_up``, ``leftovers``, ``emptying``).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import trio

from ...affinity.errors import SnapshotExpiredError, TidelogError
from ...affinity.topology import FIRST_NAMESPACE, Topology
from ...checkpoints.copies import CopyState
from ...wal.ports import Directory, LogFile
from ...wal.records import NamespaceRecord, PrepareRecord
from ..codecs.byte_text import shown_bytes
from ..data.stored import StoredPair, pack_prefix, split_key, user_value
from ..store.partition_cuts import PartitionCut, cut_partition
from ..store.store_files import StoreFiles
from ..system.disk_errors import translated_disk
from ..system.layout import ASIDE_NAME
from .log import NodeLog
from .tasks import Tasks

FORM = 1
"""The version of the lines, which are those of ``tidelog kv export``."""
BLOCK_BYTES, BLOCK_ROWS = 512 << 10, 1024

log = logging.getLogger("tidelog.node")


class Aside:
    """What one incarnation keeps of copies that were left behind."""

    def __init__(self, files: StoreFiles, node_log: NodeLog, tasks: Tasks) -> None:
        self._files = files
        self._log = node_log
        self._tasks = tasks
        self._topology = Topology()
        self._kept: dict[int, tuple[int, int]] = {}
        """Of each partition that was kept, the newest epoch of the copy, and its HWM."""
        self._begun: set[int] = set()
        self._turn = trio.Lock()
        """Held by who writes: threads do, and several partitions may be due at once."""

    def __repr__(self) -> str:
        return f"<Aside of {self._files.path}>"

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self._topology = topology

    def has_kept(self, partition: int) -> bool:
        """Tell whether nothing of the copy here need be kept any more; if not, it is seen to."""
        if not self._is_left_behind(partition):
            return True
        if partition not in self._begun and self._tasks.begin(self._try, partition):
            self._begun.add(partition)
        return False

    async def _try(self, partition: int) -> None:
        try:
            await self.keep(partition)
        except TidelogError as error:
            log.warning(
                "node.aside_failed: Tidelog: the store %s cannot keep its copy of partition %d "
                "now, which was left behind when that was reset: %s",
                self._files.path,
                partition,
                error,
                extra={"event": "node.aside_failed"},
            )
        finally:
            self._begun.discard(partition)

    def _is_left_behind(self, partition: int) -> bool:
        """Tell whether the copy here has what the one had not from which its partition went on."""
        if not self._topology.losses:
            return False
        state, here = self._log.state, self._here(partition)
        catching_up = state.copies.states.get(partition) is CopyState.MOVING
        if not here[1] or not (state.copies.is_whole(partition) or catching_up):
            return False
        return self._kept.get(partition) != here and any(
            here[0] < loss.epoch and (loss.opened, loss.upto) < here
            for loss in self._topology.losses
            if loss.partition == partition
        )

    def _here(self, partition: int) -> tuple[int, int]:
        state = self._log.state
        return state.epochs[partition], state.counters[partition].hwm

    async def keep(self, partition: int) -> None:
        """Write what is here if it was left behind; ``DiskError`` if that fails."""
        async with self._turn:
            if self._is_left_behind(partition):
                await self._keep(partition)

    async def _keep(self, partition: int) -> None:
        state, run = self._log.state, self._files.environment.run
        place = f"{self._files.path}/{ASIDE_NAME}"
        epoch, upto = here = self._here(partition)
        name = f"partition-{partition}-epoch-{epoch}-upto-{upto}"
        pairs = _Pairs(self._files, self._log, partition)
        try:
            written = await run(
                "aside", partial(self._write, place, name, pairs, dict(state.namespaces))
            )
        finally:
            pairs.close()
        self._kept[partition] = here
        log.warning(
            "node.left_behind: Tidelog: the store %s has a copy of partition %d that counts no "
            "more, as the partition was reset: its %d keys are kept in %s",
            self._files.path,
            partition,
            written,
            place,
            extra={"event": "node.left_behind"},
        )

    def _write(self, place: str, name: str, pairs: _Pairs, maps: dict[int, NamespaceRecord]) -> int:
        """Write one file for each map; return how many keys there are in all."""
        disk, written = self._files.environment.disk, 0
        with translated_disk(f"keeping a copy in {place}"):
            if disk.kind(place) is None:
                disk.make_directory(place)
            directory = disk.directory(place)
            writer: _Writer | None = None
            for full_key, value in pairs:
                _, number, key = split_key(full_key)
                if number not in maps or number < FIRST_NAMESPACE or value is None:
                    continue
                if writer is None or writer.number != number:
                    if writer is not None:
                        writer.close()
                    writer = _Writer(directory, number, f"{name}-map-{number}.jsonl", maps[number])
                writer.write(key, value)
                written += 1
            if writer is not None:
                writer.close()
        return written


class _Pairs:
    """The keys of a copy that nobody changes any more, with their values; None is a delete."""

    def __init__(self, files: StoreFiles, node_log: NodeLog, partition: int) -> None:
        self._again = partial(cut_partition, files, node_log, partition)
        self._cut: PartitionCut = self._again()
        self._pending: dict[bytes, bytes | None] = {}
        prepared = node_log.state.copies.pending.get(partition)
        for one in prepared.all() if prepared is not None else ():
            assert isinstance(one, PrepareRecord), "a store's own fold has the updates"
            for update in one.updates():
                full_key = pack_prefix(partition, update.namespace) + update.key
                self._pending[full_key] = update.value

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]:
        newer = sorted(self._pending.items())
        place = 0
        for full_key, stored in self._applied():
            while place < len(newer) and newer[place][0] < full_key:
                yield newer[place]
                place += 1
            if full_key not in self._pending:
                yield full_key, user_value(full_key, stored)
        yield from newer[place:]

    def _applied(self) -> Iterator[StoredPair]:
        after: bytes | None = None
        while True:
            try:
                for block in self._cut.blocks(after, rows=BLOCK_ROWS, most_bytes=BLOCK_BYTES):
                    yield from block
                    after = block[-1][0]
                return
            except SnapshotExpiredError:
                self._cut = self._again()

    def close(self) -> None:
        """Let go of what they pin."""
        self._cut.close()


class _Writer:
    """One file, which gets its name when it is closed."""

    def __init__(self, directory: Directory, number: int, name: str, made: NamespaceRecord) -> None:
        self._new = f"{name}.tmp"
        if self._new in directory.names():
            directory.unlink(self._new)
        self.number = number
        self._directory = directory
        self._name = name
        self._map = made.name
        self._file: LogFile = directory.create(self._new)
        self._at = 0
        self._lines: list[str] = []
        self._size = 0
        self._add(
            {
                "v": FORM,
                "type": "map",
                "map": made.name,
                "key_codec": {"name": made.key_codec, "version": made.key_version},
                "value_codec": {"name": made.value_codec, "version": made.value_version},
            }
        )

    def write(self, key: bytes, value: bytes) -> None:
        """Add a pair."""
        shown = {"key": shown_bytes(key), "value": shown_bytes(value)}
        self._add({"v": FORM, "type": "pair", "map": self._map, **shown})

    def _add(self, fields: dict[str, Any]) -> None:
        line = json.dumps(fields) + "\n"
        self._lines.append(line)
        self._size += len(line)
        if self._size >= BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        data = "".join(self._lines).encode()
        self._file.write(self._at, data)
        self._at += len(data)
        self._lines, self._size = [], 0

    def close(self) -> None:
        """Make it durable under its name."""
        try:
            self._flush()
            self._file.sync()
        finally:
            self._file.close()
        self._directory.rename(self._new, self._name)
        self._directory.sync()
