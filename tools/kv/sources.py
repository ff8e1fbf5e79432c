"""Where the records of an import come from: a file of some form, standard input, or SQLite.

Invariants:

- What is read is never changed: a file is opened for reading only.
- What a pipe has in all is not known; of everything else it is, for the progress.

Left out: the forms themselves (``record_files``, ``parquet``, ``sqlite_tables``).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ...affinity.errors import UsageError
from .column_types import ColumnTypes
from .parquet import parquet_records
from .record_files import numbered_records
from .record_pairs import Head, Records, head_of, split_head


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSource:
    """Records to be loaded, which codecs they name, and how many of them there are.

    ``key`` is the key that the source itself knows of, as a table does.
    """

    head: Head
    records: Records
    measured: ImportProgress
    key: Callable[[], tuple[str, ...]] = lambda: ("key",)


@dataclass(slots=True)
class ImportProgress:
    """How far an import is: in bytes of a file, else in records."""

    unit: str
    total: int | None
    position: Callable[[], int] | None
    told: int = 0

    def since(self, records: int) -> int:
        """Return how far it has come since the last time, which was so many records ago."""
        if self.position is None:
            return records
        before, self.told = self.told, self.position()
        return self.told - before


def progress_of(stream: BinaryIO) -> ImportProgress:
    """Return how far a stream is read: what a pipe has in all is not known."""
    try:
        seekable = stream.seekable() and os.path.isfile(f"/dev/fd/{stream.fileno()}")
    except OSError:
        seekable = False
    if not seekable:
        return ImportProgress("records", None, None)
    return ImportProgress("bytes", os.fstat(stream.fileno()).st_size, stream.tell)


@contextlib.contextmanager
def file_source(file: str, kind: str, types: ColumnTypes) -> Iterator[ImportSource]:
    """Open a file of a form, or standard input for ``-``."""
    if types and kind not in ("csv", "tsv"):
        raise UsageError("--type is for the columns of CSV", hint="Leave --type out.")
    with _opened_for_reading(file) as stream:
        if kind == "parquet":
            if not stream.seekable():
                raise UsageError("Parquet cannot be read from a pipe", hint="Name a file.")
            found = parquet_records(stream, file)
            yield ImportSource(
                head=head_of(found.head, 1) or Head(),
                records=Records(
                    numbered=found.records(),
                    form="typed",
                    is_text=found.texts.__contains__,
                    unit="row",
                ),
                measured=ImportProgress("records", found.rows, None),
            )
            return
        numbered = numbered_records(stream, kind, types=types)
        if kind == "jsonl":
            front, numbered = split_head(numbered)
            records = Records(numbered=numbered, form="json")
        else:
            front = Head()
            records = Records(
                numbered=numbered, form="typed", is_text=lambda field: field not in types
            )
        yield ImportSource(head=front, records=records, measured=progress_of(stream))


@contextlib.contextmanager
def table_source(file: str, name: str) -> Iterator[ImportSource]:
    """Open a table of an SQLite file."""
    from .sqlite_tables import sqlite_table  # some builds of Python have no SQLite

    with sqlite_table(file, name) as table:
        yield ImportSource(
            head=Head(),
            records=Records(numbered=table.records(), form="typed", unit="row"),
            measured=ImportProgress("records", table.rows, None),
            key=table.key_columns,
        )


@contextlib.contextmanager
def _opened_for_reading(file: str) -> Iterator[BinaryIO]:
    """Open a file, or standard input for ``-``."""
    if file == "-":
        yield sys.stdin.buffer
        return
    if os.path.lexists(file) and not os.path.isfile(file):
        raise UsageError(f"{file} is not a regular file", hint="Use - for standard input.")
    with open(file, "rb") as stream:
        yield stream
