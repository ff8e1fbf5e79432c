"""Copies of a whole store, with their progress: for ``db backup``, ``compact`` and ``restore``.

Invariants:

- How far a copy is, is seen from outside, by the size of what is there: copying it is one step.

Left out: the copy itself (``backup``), and what is told about it (``cli``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

from ...engine.api.database import session_of
from ...engine.api.read_only import ReadOnlyDatabase
from ...engine.system.layout import DATA_NAME, WAL_NAME
from ...engine.upkeep.backup import BackupReport
from ..shell.terminal import Advance, Begin, Settings, phases, shows_progress

LOOK_SECONDS = 0.2


def copy_of(
    settings: Settings,
    reader: ReadOnlyDatabase,
    directory: str,
    *,
    verify: bool = True,
    compact: bool = False,
) -> BackupReport:
    """Copy a store that is open for reading into a new directory."""
    place = os.path.abspath(directory)
    with phases(settings) as begin, _Copying(settings, reader, place, begin) as copying:
        return session_of(reader).back_up(
            place, verify=verify, compact=compact, begin=copying.begin_next
        )


class _Copying:
    """Tells the size of a copy until the next phase begins."""

    def __init__(
        self, settings: Settings, reader: ReadOnlyDatabase, place: str, begin: Begin
    ) -> None:
        self._place = place
        self._begin = begin
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if shows_progress(settings):
            seen = reader.statistics()
            total = seen.data_bytes + seen.position - seen.checkpoint_position
            advance = begin("copying", total, "bytes")
            self._thread = threading.Thread(target=self._watch, args=(advance,), daemon=True)

    def __enter__(self) -> _Copying:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end()

    def begin_next(self, what: str, total: int | None, unit: str) -> Advance:
        """Begin a phase behind the copying."""
        self._end()
        return self._begin(what, total, unit)

    def _end(self) -> None:
        self._ended.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _watch(self, advance: Advance) -> None:
        told = 0
        while not self._ended.wait(LOOK_SECONDS):
            size = sum(_sizes(self._place))
            advance(size - told)
            told = size


def _sizes(place: str) -> Iterator[int]:
    for folder in (DATA_NAME, WAL_NAME):
        with suppress(OSError), os.scandir(os.path.join(place, folder)) as files:
            for file in files:
                with suppress(OSError):
                    yield file.stat().st_size
