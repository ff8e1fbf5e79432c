"""``tidelog kv export``: writes a map as JSON lines or CSV.

JSON lines: one ``map`` line with the codecs, then one ``pair`` line per key, both of the schema in
``docs/cli.md``.  CSV: the head line ``key,value``, then one line per key.

Invariants:

- Both forms keep every byte: an import of them makes the same map, given the same codecs.
- An export is one snapshot; a file of it appears whole or not at all.

Left out: reading such files (``importing``).
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

import click

from ...affinity.errors import UsageError
from ..db.stores import AnyMap, reading_map
from ..shell.commands import PATH, ToolCommand, settings_of, store_argument
from ..shell.exits import RefusedError
from ..shell.terminal import Advance, note, progress
from ..shell.text import exact
from ..wal.records import SCHEMA
from .cli import (
    Skipped,
    bounds_of,
    encoded_pairs,
    leave_skipped,
    pair_document,
    skip_damaged_option,
)
from .record_files import format_of


@click.command(name="export", cls=ToolCommand)
@store_argument()
@click.argument("map_name", metavar="MAP")
@click.option("-o", "--output", type=PATH, help="Write this file; - is standard output.")
@click.option("--force", is_flag=True, help="Replace the file if there is one.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "csv"]),
    help="Form of the file.  [default: by its ending, else jsonl]",
)
@click.option("--prefix", help="Keys that begin with this.")
@click.option("--start", help="From this key on.")
@click.option("--stop", help="Up to this key, not included.")
@skip_damaged_option
@click.pass_context
def export_records(
    ctx: click.Context,
    /,
    store: str,
    map_name: str,
    output: str | None,
    force: bool,
    kind: str | None,
    skip_damaged: bool,
    **bounds: str | None,
) -> None:
    """Write the keys and values of MAP to a file, or to standard output."""  # fmt: skip
    settings = settings_of(ctx)
    output = None if output == "-" else output
    kind = kind or format_of(output or "")
    skipped = Skipped() if skip_damaged else None
    with reading_map(store, map_name) as (db, mapping):
        wanted = bounds_of(mapping.namespace.key_codec, **bounds)
        pairs = encoded_pairs(db, mapping, wanted, block=1024, skipped=skipped)
        write = _write_csv if kind == "csv" else _write_jsonl
        with (
            opened_for_writing(output, force, store) as stream,
            progress(settings, "writing") as advance,
        ):
            written = write(stream, mapping, pairs, advance)
    if output is not None:
        note(settings, f"wrote {written} records of {map_name!r} to {output}")
    leave_skipped(ctx, skipped)


@contextlib.contextmanager
def opened_for_writing(output: str | None, force: bool, store: str) -> Iterator[TextIO]:
    """Open a file that appears under its name once it is whole, or standard output.

    Of a symbolic link the target is replaced, and the link stays.
    """
    if output is None:
        yield sys.stdout
        return
    _check_place(output, force, store)
    place = os.path.realpath(output)
    beside = f"{place}.part"
    try:
        stream = open(beside, "x", encoding="utf-8", newline="")  # noqa: SIM115  # closed below
    except FileExistsError:
        raise RefusedError(
            f"{beside} is there: half of an export that was killed or still runs, or your file",
            hint="Delete it unless it is yours or such a command is running, or name another file.",
        ) from None
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, place)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        raise


def _check_place(output: str, force: bool, store: str) -> None:
    """Raise if a file must not be written: over another thing, or into the store."""
    if os.path.lexists(output) and not force:
        raise RefusedError(f"{output} exists already", hint="Give --force to replace it.")
    if os.path.isdir(output):
        raise UsageError(f"{output} is a directory", hint="Name a file.")
    if os.path.exists(output) and not os.path.isfile(output):
        raise UsageError(
            f"{output} is not a regular file",
            hint="Leave -o out to write to standard output, or name a file.",
        )
    whole = os.path.realpath(store)
    if os.path.commonpath([whole, os.path.realpath(output)]) == whole:
        raise UsageError(
            f"{output} lies in the store that is to be exported", hint="Name a file outside of it."
        )


def _write_jsonl(
    stream: TextIO, mapping: AnyMap, pairs: Iterable[tuple[bytes, bytes]], advance: Advance
) -> int:
    namespace = mapping.namespace
    head = {
        "v": SCHEMA,
        "type": "map",
        "map": namespace.name,
        "key_codec": {"name": namespace.key_codec.name, "version": namespace.key_codec.version},
        "value_codec": {
            "name": namespace.value_codec.name,
            "version": namespace.value_codec.version,
        },
    }
    stream.write(json.dumps(head, ensure_ascii=False) + "\n")
    written = 0
    for key, value in pairs:
        stream.write(json.dumps(pair_document(mapping, key, value), ensure_ascii=False) + "\n")
        written += 1
        advance(1)
    return written


def _write_csv(
    stream: TextIO, mapping: AnyMap, pairs: Iterable[tuple[bytes, bytes]], advance: Advance
) -> int:
    writer = csv.writer(stream)
    writer.writerow(("key", "value"))
    written = 0
    namespace = mapping.namespace
    for key, value in pairs:
        writer.writerow((exact(key, namespace.key_codec), exact(value, namespace.value_codec)))
        written += 1
        advance(1)
    return written
