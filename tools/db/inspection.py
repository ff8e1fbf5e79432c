"""What a store is and holds, gathered beside a live writer: for ``db info`` and ``check-readers``.

Invariants:

- The store is looked at through the product's own ``ReadAccess``: a slot in ``readers/`` is taken
  for as long as it lasts, nothing else is touched.
- What is told about counters and maps is the last checkpoint with the log after it folded in, so
  it is what a reader would see now.

Left out: whether all of that is right (``db verify``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...affinity.errors import FormatVersionError, StorageError
from ...checkpoints.marks import PartitionMark
from ...checkpoints.replay import State
from ...engine.data.partition_store import read_state
from ...engine.files.log_source import LogSource
from ...engine.files.manifest import Manifest
from ...engine.store.access import ReadAccess
from ...engine.store.options import Options
from ...engine.store.place import owner_of
from ...engine.system.environment import Environment
from ...engine.system.layout import LOCK_NAME, READERS_NAME
from ...engine.system.production import production
from ...wal.reader import Scan, read_records
from ...wal.retention import Holders, RetentionLimits, SegmentInfo, plan_retention
from ...wal.tail import End
from ..shell.text import shown_time
from ..wal.records import end_document, namespace_document
from ..wal.segments import describe_segments
from .stores import require_store


@dataclass(slots=True, kw_only=True)
class InspectedStore:
    """A store at one moment."""

    path: str
    access: ReadAccess
    manifest: Manifest
    marks: dict[int, PartitionMark]
    state: State
    checkpoint_position: int
    end: End


@contextmanager
def inspected(path: str, *, of_members: bool = False) -> Iterator[InspectedStore]:
    """Open a store for a look, and let go of it; that of a cluster's member only if wanted."""
    require_store(path)
    access = ReadAccess(production(), path, Options().map_size, of_members=of_members)
    try:
        yield _inspected_store(path, access)
    finally:
        access.close()


def require_known_version(path: str) -> None:
    """Raise ``FormatVersionError`` for a store of a later version; other faults are not looked at.

    The check of a whole store reports any fault as a problem, but this one is not the store's.
    """
    try:
        ReadAccess(production(), path, Options().map_size, of_members=True).close()
    except FormatVersionError:
        raise
    except StorageError:
        return


def _inspected_store(path: str, access: ReadAccess) -> InspectedStore:
    manifest = access.manifest()
    store_id = bytes.fromhex(manifest.store_id)
    state, marks = read_state(access.kv.begin(), store_id, manifest.spaces, path)
    checkpoint = state.position
    scan = Scan(
        access.wal,
        checkpoint,
        exact=True,
        durable=max(checkpoint, manifest.durable),
        log_ids=[(bytes.fromhex(log_id), first) for log_id, first in manifest.logs],
    )
    for frame, record in read_records(scan):
        state.apply(frame.position, record)
    return InspectedStore(
        path=path,
        access=access,
        manifest=manifest,
        marks=marks,
        state=state,
        checkpoint_position=checkpoint,
        end=scan.end,
    )


def describe(found: InspectedStore) -> dict[str, Any]:
    """Return what ``db info`` prints, as data."""
    manifest, state = found.manifest, found.state
    source = LogSource(path=found.path, kind="store", directory=found.access.wal, manifest=manifest)
    segments, _ = describe_segments(source)
    environment, readers = found.access.environment, reader_slots(found)
    held = _held(found, segments, readers, environment.clock())
    for segment in segments:
        segment["held_by"] = list(held.get(segment["segment"], ("nothing",)))
    return {
        "path": found.path,
        "store_id": manifest.store_id,
        "history_id": manifest.history_id,
        "log_id": manifest.log_id,
        "format": manifest.format,
        "kv_engine": manifest.kv_engine,
        "cluster": manifest.cluster,
        "member": manifest.member,
        "partitions": manifest.partitions,
        "copied": manifest.copied,
        "rebuild": manifest.rebuild,
        "writer_pid": writer_pid(environment, found.path),
        "clean_end": manifest.clean_end,
        "maps": [
            namespace_document(record)
            for _, record in sorted(state.namespaces.items())
            if not record.hidden
        ],
        "data": {
            "file_bytes": found.access.kv.size_used(),
            "keys": sum(mark.count for mark in found.marks.values()),
            "checkpoint_position": found.checkpoint_position,
        },
        "counters": counters(state),
        "copies": None if manifest.member is None else copies(state),
        "newest_commit": shown_time(state.time) if state.time else None,
        "log": {
            "bytes": sum(segment["bytes"] for segment in segments),
            "end_position": found.end.position,
            "durable_position": found.end.durable,
            "bytes_after_checkpoint": found.end.position - found.checkpoint_position,
            "end": end_document(found.end),
            "segments": segments,
        },
        "readers": readers,
    }


def counters(state: State) -> dict[str, Any]:
    """Return a summary of the update counters."""
    lwms = [counter.lwm for counter in state.counters]
    return {
        "updates": sum(lwms),
        "lwm_min": min(lwms),
        "lwm_max": max(lwms),
        "gaps": sum(len(counter.missing) for counter in state.counters),
        "epoch_max": max(state.epochs),
    }


def copies(state: State) -> dict[str, int]:
    """Return a summary of the copies of partitions that a member has.

    Those are whole by its own log; which of them count says the cluster.
    """
    held = {*state.copies.sealed, *state.copies.admissions}
    whole = sum(map(state.copies.is_whole, held))
    return {
        "whole": whole,
        "not_whole": len(held) - whole,
        "pending_transactions": sum(map(len, state.copies.pending.values())),
    }


def _held(
    found: InspectedStore, segments: list[dict[str, Any]], readers: list[dict[str, Any]], now: int
) -> dict[int, tuple[str, ...]]:
    """What holds each segment back; the limits of the writer and its own pins are not known."""
    infos = [
        SegmentInfo(
            number=segment["segment"],
            first_position=segment["first_position"],
            end_position=segment["end_position"],
            size_bytes=segment["bytes"],
        )
        for segment in segments
        if "first_position" in segment
    ]
    holders = Holders(
        checkpoint=found.checkpoint_position,
        readers={slot["slot"]: slot["position"] for slot in readers if slot["alive"]},
    )
    return plan_retention(infos, limits=RetentionLimits(), holders=holders, now=now).held


# ------------------------------------------------------------------ who else is there


def reader_slots(found: InspectedStore) -> list[dict[str, Any]]:
    """Return the slots of reading processes, this one left out."""
    own = found.access.slot.name if found.access.slot else None
    folder = os.path.join(found.path, READERS_NAME)
    slots = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name != own:
            place = os.path.join(folder, name)
            slots.append({"slot": name, "position": _position_in(place), "alive": _locked(place)})
    return slots


def _position_in(path: str) -> int:
    """The position that a slot needs the log from; one that does not say needs everything."""
    try:
        with open(path, "rb") as stream:
            text = stream.read(20).strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def writer_pid(environment: Environment, path: str) -> int | None:
    """Return the process that has the store open for writing, or None if none is known."""
    if not _locked(os.path.join(path, LOCK_NAME)):
        return None
    return owner_of(environment, path)


def _locked(path: str) -> bool:
    """Tell whether a file is locked by a process of this system, without touching the lock.

    Trying to take the lock would tell too, but a writer that opens the store at that moment would
    be turned away.
    """
    try:
        inode = os.stat(path).st_ino
        with open("/proc/locks", encoding="utf-8") as stream:
            table = stream.read()
    except OSError:
        return False
    # The device is left out: that of a file in a layered file system is not the one listed.
    return any(
        "FLOCK" in fields and any(field.endswith(f":{inode}") for field in fields)
        for fields in map(str.split, table.splitlines())
    )


def clear_dead_slots(found: InspectedStore) -> list[str]:
    """Remove the slots of processes that have died; return their names."""
    disk = found.access.environment.disk
    folder = os.path.join(found.path, READERS_NAME)
    own = found.access.slot.name if found.access.slot else None
    cleared = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name == own:
            continue
        try:
            lock = disk.lock(os.path.join(folder, name))
        except BlockingIOError:
            continue
        disk.directory(folder).unlink(name)
        lock.release()
        cleared.append(name)
    return cleared
