"""Replays the log of a claimed store onto what the data file has, and makes its end durable.

Left out: what a record does (``recovery``), what the end of a log means (``wal.tail``).
"""

from __future__ import annotations

import logging
import threading

from ...wal.format import segment_name
from ...wal.ports import Directory
from ...wal.segments import segment_numbers
from ...wal.tail import End
from ..files.manifest import Manifest
from ..files.recovery import Replayed, replay, rewrite_tail
from ..system.disk_errors import translated_disk
from .relief import Relief

log = logging.getLogger("tidelog.store")


class LogEnd:
    """The end of a log before it is open for appending: whoever writes it takes its turn.

    A checkpoint that the replay began may run on behind the replay.  It must not write back what
    it has read of a log that others append to by then.
    """

    def __init__(self, wal: Directory, piece_bytes: int) -> None:
        self._wal = wal
        self._piece_bytes = piece_bytes
        self._lock = threading.Lock()
        self._durable = False

    def sync(self, _position: int) -> None:
        """Make the log durable as far as it has been replayed, before a checkpoint holds it.

        It has to see the end of the log as the replay does: the page cache may hold what the disk
        lacks, so what is there is written once more.
        """
        with self._lock:
            if self._durable:
                return
            with translated_disk("making the replayed log durable"):
                number = segment_numbers(self._wal)[-1]
                file = self._wal.open_write(segment_name(number))
                try:
                    size, piece = file.size(), self._piece_bytes
                    for offset in range(0, size, piece):
                        file.write(offset, file.read(offset, piece))
                    file.sync()
                finally:
                    file.close()

    def cut_and_sync(self, end: End, durable: int, *, clean: bool) -> None:
        """Cut what follows the end, and make it durable; nothing is written here afterwards."""
        with self._lock:
            if not clean or end.dropped_segment is not None:
                with translated_disk("making the end of the log durable"):
                    # A process that was killed may have left names that are not durable yet.
                    self._wal.sync()
                    durable = min(durable, end.position)
                    rewrite_tail(self._wal, end, durable, self._piece_bytes)
            self._durable = True


def replay_log(
    path: str,
    wal: Directory,
    log_end: LogEnd,
    manifest: Manifest,
    replayed: Replayed,
    relief: Relief,
) -> None:
    """Apply the log to what ``replayed`` has, then cut and sync its end.

    Raises ``CorruptLogError``, with nothing written, for a log that must not be continued.
    """
    durable = max(replayed.state.durable, manifest.durable)
    end = replay(
        wal,
        replayed,
        start=replayed.applied_position,
        durable=durable,
        log_ids=manifest.log_ids,
        relieve=relief.look,
    )
    relief.end()
    # A copy of a running store has no clean end, even if its log ends as it should.
    clean = manifest.clean_end == end.position and not manifest.copied
    report = replayed.report
    report.clean, report.dropped_bytes, report.end = clean, end.dropped_bytes, str(end.kind)
    replayed.applied_position = end.position
    log_end.cut_and_sync(end, durable, clean=clean)
    log.log(
        logging.INFO if clean else logging.WARNING,
        "recovery.done: Tidelog %s the store %s, which was %s: %d frames of its log, %d updates; "
        "the log ends with %s, and %d bytes behind its end were cut",
        "read" if clean else "recovered",
        path,
        "closed" if clean else "not closed",
        report.frames,
        report.updates,
        end.kind,
        end.dropped_bytes,
        extra={"event": "recovery.done"},
    )
