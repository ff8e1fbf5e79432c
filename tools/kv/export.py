"""``tidelog kv export``: writes a map as JSON lines, CSV, TSV or Parquet.

JSON lines: one ``map`` line with the codecs, then one ``pair`` line per key, both of the schema in
``docs/cli.md``.  Plain JSON lines: ``{"key": ..., "value": ...}`` for each key, but a ``pair`` line
for what that would not bring back.  CSV and TSV: the head line ``key,value``, then one line per
key.

Invariants:

- All forms keep every byte: an import of them makes the same map, given the same codecs.
- An export is one snapshot; a file of it appears whole or not at all.

Left out: reading such files (``importing``), and Parquet (``parquet``).
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TextIO

import click

from ...affinity.errors import UsageError
from ...engine.api.maps import namespace_of
from ...engine.data.namespaces import Namespace
from ...engine.data.scan import Pair
from ..db.stores import reading_map
from ..shell.commands import PATH, ToolCommand, settings_of, store_argument
from ..shell.exits import RefusedError
from ..shell.terminal import Advance, note, progress
from ..shell.text import exact, exact_json
from ..wal.completion import complete_map
from ..wal.records import SCHEMA
from .cli import (
    Skipped,
    bounds_of,
    encoded_pairs,
    leave_skipped,
    pair_document,
    skip_damaged_option,
)
from .parquet import write_parquet
from .record_files import FORMATS, format_of


@click.command(name="export", cls=ToolCommand)
@store_argument()
@click.argument("map_name", metavar="MAP", shell_complete=complete_map)
@click.option("-o", "--output", type=PATH, help="Write this file; - is standard output.")
@click.option("--force", is_flag=True, help="Replace the file if there is one.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(FORMATS)),
    help="Form of the file.  [default: by its ending, jsonl without one]",
)
@click.option("--plain", is_flag=True, help="In JSON lines only what the codecs make of each pair.")
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
    plain: bool,
    skip_damaged: bool,
    **bounds: str | None,
) -> None:
    """Write the keys and values of MAP to a file, or to standard output."""  # fmt: skip
    settings = settings_of(ctx)
    output = None if output == "-" else output
    kind = kind or format_of(output or "")
    if plain and kind != "jsonl":
        raise UsageError(f"--plain is for JSON lines, not {kind}", hint="Leave --plain out.")
    if kind == "parquet" and output is None:
        raise UsageError("Parquet is not for standard output", hint="Name a file with -o.")
    skipped = Skipped() if skip_damaged else None
    with reading_map(store, map_name) as (db, mapping):
        wanted = bounds_of(namespace_of(mapping).key_codec, **bounds)
        pairs = encoded_pairs(db, mapping, wanted, block=1024, skipped=skipped)
        with (
            opened_for_writing(output, force, store) as stream,
            progress(settings, "writing") as advance,
        ):
            write = _WRITERS["plain" if plain else kind]
            written = write(stream, namespace_of(mapping), pairs, advance)
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
    except FileExistsError as error:
        raise RefusedError(
            f"{beside} is there: half of an export that was killed or still runs, or your file",
            hint="Delete it unless it is yours or such a command is running, or name another file.",
        ) from error
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


def _head(namespace: Namespace) -> dict[str, Any]:
    """Return the ``map`` line: what a map has beside its pairs."""
    key, value = namespace.key_codec, namespace.value_codec
    return {
        "v": SCHEMA,
        "type": "map",
        "map": namespace.name,
        "key_codec": {"name": key.name, "version": key.version},
        "value_codec": {"name": value.name, "version": value.version},
    }


def _write_jsonl(
    stream: TextIO, namespace: Namespace, pairs: Iterable[Pair], advance: Advance
) -> int:
    stream.write(_line(_head(namespace)))
    return _write_each(
        pairs, advance, lambda *pair: stream.write(_line(pair_document(namespace, *pair)))
    )


def _write_plain(
    stream: TextIO, namespace: Namespace, pairs: Iterable[Pair], advance: Advance
) -> int:
    def write(key: bytes, value: bytes) -> None:
        try:
            document = {
                "key": exact_json(key, namespace.key_codec),
                "value": exact_json(value, namespace.value_codec),
            }
        except UsageError:
            document = pair_document(namespace, key, value)
        stream.write(_line(document))

    return _write_each(pairs, advance, write)


def _write_csv(
    stream: TextIO,
    namespace: Namespace,
    pairs: Iterable[Pair],
    advance: Advance,
    mark: str = ",",
) -> int:
    writer = csv.writer(stream, delimiter=mark)
    writer.writerow(("key", "value"))

    def write(key: bytes, value: bytes) -> None:
        writer.writerow((exact(key, namespace.key_codec), exact(value, namespace.value_codec)))

    return _write_each(pairs, advance, write)


def _write_parquet(
    stream: TextIO, namespace: Namespace, pairs: Iterable[Pair], advance: Advance
) -> int:
    return write_parquet(stream.buffer, namespace, _head(namespace), pairs, advance)


_WRITERS: dict[str, Callable[[Any, Namespace, Iterable[Pair], Advance], int]] = {
    "jsonl": _write_jsonl,
    "plain": _write_plain,
    "csv": _write_csv,
    "tsv": partial(_write_csv, mark="\t"),
    "parquet": _write_parquet,
}


def _write_each(
    pairs: Iterable[Pair], advance: Advance, write: Callable[[bytes, bytes], object]
) -> int:
    written = 0
    for key, value in pairs:
        write(key, value)
        written += 1
        advance(1)
    return written


def _line(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False) + "\n"
