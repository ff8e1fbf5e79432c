"""The records in text files that ``tidelog kv import`` reads: JSON lines and CSV.

Owns the way from bytes to records with the numbers of their lines.

==========  ==================================================================================
JSON lines  one object per line; blank lines count as lines and as nothing else
CSV         a head line with the names of the fields, then one record per line, as RFC 4180 and
            Excel write it; if the head line has no comma, ``;`` or a tab separates its fields
TSV         the same with tabs, whatever the head line has
==========  ==================================================================================

Invariants:

- A byte order mark in front is not part of the first record.
- Every error names its line and says what is wrong with it.
- Memory is bounded by ``line_bytes_max``, whatever the file is.
- A field that is there twice is refused: one of its values would be lost.

Left out: what a record means for a map (``record_pairs``), which type a column has
(``column_types``), and Parquet and SQLite (``parquet``, ``sqlite_tables``).
"""

from __future__ import annotations

import codecs
import csv
import json
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from ...affinity.errors import UsageError
from ..shell.text import repeated, unique_fields
from .column_types import ColumnTypes

LINE_BYTES_MAX = 64 << 20
"""A line that is longer is refused: it is not a record."""

Numbered = tuple[int, dict[str, Any]]

FORMATS = {
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "parquet": (".parquet",),
}
"""The forms of files, and the endings of names that mean them."""

_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def format_of(path: str) -> str:
    """Return the form that the ending of a file's name means; JSON lines for a name without one.

    ``UsageError`` for an ending that means none.
    """
    ending = os.path.splitext(path)[1].lower()
    if not ending:
        return "jsonl"
    for form, endings in FORMATS.items():
        if ending in endings:
            return form
    known = ", ".join(one for endings in FORMATS.values() for one in endings)
    raise UsageError(
        f"the ending {ending} of {path} does not say what form the file has",
        hint=f"Use one of {known}; or give --format.",
    )


def numbered_records(
    stream: BinaryIO,
    kind: str,
    line_bytes_max: int = LINE_BYTES_MAX,
    types: ColumnTypes | None = None,
) -> Iterator[Numbered]:
    """Yield (line number, record) of a file of form ``jsonl``, ``csv`` or ``tsv``."""
    lines = text_lines(stream, line_bytes_max)
    if kind == "jsonl":
        return _json_records(lines)
    return _csv_records(lines, line_bytes_max, "\t" if kind == "tsv" else None, types)


def bad_line(number: int, text: str, hint: str | None = None, unit: str = "line") -> UsageError:
    """Return the error about a line, or about a row."""
    return UsageError(
        f"{unit} {number}: {text}", hint=hint or f"Correct the {unit}; then go on with --skip."
    )


def text_lines(stream: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their ends, without a byte order mark in front."""
    number = 0
    while line := stream.readline(line_bytes_max + 1):
        number += 1
        if number == 1:
            if line.startswith(_WIDE_MARKS):
                raise bad_line(1, "the file is UTF-16", "Save it as UTF-8.")
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) > line_bytes_max:
            raise bad_line(number, f"it is longer than {line_bytes_max:,} bytes")
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise bad_line(
                number, f"it is not UTF-8: {error.reason} at byte {error.start + 1} of the line"
            ) from error


# ------------------------------------------------------------------ JSON lines


def _json_records(lines: Iterator[str]) -> Iterator[Numbered]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=unique_fields)
        except (ValueError, RecursionError) as error:
            raise bad_line(number, f"not JSON: {_reason(error)}") from error
        if not isinstance(record, dict):
            raise bad_line(number, f"a JSON object is needed, not {type(record).__name__}")
        yield number, record


def _reason(error: Exception) -> str:
    """Return why a line is not JSON; its place in the line, for the line itself is named."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return str(error)


# ------------------------------------------------------------------ CSV


def _csv_records(
    lines: Iterator[str], field_chars_max: int, mark: str | None, types: ColumnTypes | None
) -> Iterator[Numbered]:
    # Python's own limit of 131,072 characters is less than a value may have.
    csv.field_size_limit(field_chars_max)
    head = next(lines, None)
    if head is None:
        return
    rows = csv.reader(_from(head, lines), delimiter=mark or _delimiter(head), strict=True)
    try:
        names = next(rows)
        _check_names(names)
        if types is not None:
            types.check(names)
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                text = f"{len(row)} fields; the head line has {len(names)}"
                raise bad_line(rows.line_num, text)
            record: dict[str, Any] = dict(zip(names, row, strict=True))
            if types is not None:
                types.convert(record, rows.line_num)
            yield rows.line_num, record
    except csv.Error as error:
        raise bad_line(rows.line_num, f"not CSV: {error}") from error


def _check_names(names: list[str]) -> None:
    if len(set(names)) < len(names):
        text = f"the head line names the field {repeated(names)!r} twice"
        raise bad_line(1, text, "Give each field a name of its own.")


def _delimiter(head: str) -> str:
    """Return what separates the fields of a file with this head line."""
    if "," in head or head.startswith('"'):
        return ","
    return next((mark for mark in (";", "\t") if mark in head), ",")


def _from(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest
