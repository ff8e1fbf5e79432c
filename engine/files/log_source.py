"""Finds the log that a path means: a store, a folder of segments, or one segment.

Invariants:

- Files are opened for reading only and without a lock; nothing is created or changed.
- Whatever the path, what is read is the product's own ``Scan`` over a ``ReadableDirectory``.

Left out: LMDB.  The position of the last checkpoint proves durability too, and only ``tidelog db
verify`` looks at it: a log whose newest part was cut off by hand looks shorter here, not damaged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...affinity.errors import CorruptLogError, NotFoundError, TidelogError, UsageError
from ...wal.files import ReadOnlyDirectory
from ...wal.format import HEADER_SIZE, parse_segment_header, segment_name, segment_number
from ...wal.ports import ReadableDirectory, ReadableFile
from ...wal.reader import Scan
from ...wal.segments import segment_numbers
from ..system.layout import MANIFEST_NAME, WAL_NAME
from . import manifest as manifests
from .manifest import Manifest


class OneSegment:
    """A directory that shows one segment of another one, by the name that its number asks for."""

    def __init__(self, directory: ReadableDirectory, name: str, number: int) -> None:
        self._directory = directory
        self._real = name
        self._shown = segment_name(number)

    def names(self) -> list[str]:
        """Return the name of the one segment."""
        return [self._shown]

    def open_read(self, name: str) -> ReadableFile:
        """Open the segment."""
        if name != self._shown:
            raise FileNotFoundError(name)
        return self._directory.open_read(self._real)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """A log to look into.  ``manifest`` is None if no store is known; ``notes`` say why."""

    path: str
    kind: Literal["store", "folder", "segment"]
    directory: ReadableDirectory
    manifest: Manifest | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def log_ids(self) -> Sequence[tuple[bytes, int]] | None:
        """The ids that the manifest knows, or None."""
        return None if self.manifest is None else self.manifest.log_ids

    @property
    def durable(self) -> int:
        """The position that the manifest proves to be durable."""
        return self.manifest.durable if self.manifest else 0

    @property
    def alone(self) -> bool:
        """Whether this is one segment of a log that may have others."""
        return self.kind == "segment"

    def scan(self, wanted: Callable[[int], bool] | None = None) -> Scan:
        """Return a scan over the whole log; segments that are not ``wanted`` go unread."""
        return Scan(
            self.directory,
            durable=self.durable,
            log_ids=self.log_ids,
            wanted=wanted,
            alone=self.alone,
        )


def find_log(path: str) -> LogSource:
    """Return the log at a path.

    Raises ``NotFoundError`` if there is none, ``UsageError`` for what is not a file or folder,
    and what a damaged manifest or segment header raises.
    """
    if os.path.isdir(path):
        return _in_folder(path)
    if not os.path.lexists(path):
        raise NotFoundError(
            f"there is nothing at {path}", hint="Name a store, a folder of segments or a segment."
        )
    return _segment(path)


def _in_folder(path: str) -> LogSource:
    folder = ReadOnlyDirectory(path)
    names = folder.names()
    if MANIFEST_NAME in names:
        directory = ReadOnlyDirectory(os.path.join(path, WAL_NAME))
        return LogSource(
            path=path, kind="store", directory=directory, manifest=manifests.read(folder)
        )
    if segment_numbers(folder):
        return LogSource(
            path=path, kind="folder", directory=folder, manifest=_manifest_around(path)
        )
    inside = os.path.join(path, WAL_NAME)
    if WAL_NAME in names and segment_numbers(ReadOnlyDirectory(inside)):
        return LogSource(
            path=path,
            kind="folder",
            directory=ReadOnlyDirectory(inside),
            notes=["the store has no manifest: which log it owns is not checked"],
        )
    raise NotFoundError(
        f"there is no log in {path}", hint="Name a store, a folder of segments or a segment."
    )


def _manifest_around(path: str) -> Manifest | None:
    """Return the manifest of the store whose folder of segments this is, None for any other folder.

    The log of a copy that was continued has had two ids, which only the manifest links.
    """
    above, name = os.path.split(os.path.realpath(path))
    if name != WAL_NAME:
        return None
    try:
        return manifests.read(ReadOnlyDirectory(above))
    except (OSError, TidelogError):
        return None


def _segment(path: str) -> LogSource:
    folder, name = os.path.split(path)
    directory = ReadOnlyDirectory(folder or ".")
    number = segment_number(name)
    file = directory.open_read(name)
    try:
        head = file.read(0, HEADER_SIZE)
    finally:
        file.close()
    if number is None:
        try:
            number = parse_segment_header(head, 0).number
        except CorruptLogError as error:
            raise UsageError(
                f"{path} is not a segment of a log, neither by name nor by content",
                hint="Name a store, a folder of segments or a segment.",
            ) from error.__cause__
    return LogSource(path=path, kind="segment", directory=OneSegment(directory, name, number))
