"""``tidelog kv import`` and ``export``: a map as JSON lines or CSV.

Owns the two file forms.  JSON lines: one ``map`` line with the codecs, then one ``pair`` line per
key, both of the schema in ``docs/cli.md``; these keep every byte.  Any other JSON object per line
is a record of somebody else's: ``--key-field`` says where its key is.  CSV: a head line, then one
line per record.

Invariants:

- An import is not one transaction: each batch is all or none.  Batches are synced at the end and
  whenever the import stops; what it says was loaded is durable then.
- Loading the same records again gives the same map, so an import that stopped can be resumed with
  ``--skip``, or from the start.
- An export is one snapshot; a file of it appears whole or not at all.

Left out: single keys (``kv``).
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any, TextIO

import click

from ..affinity.errors import CodecError, TidelogError, UsageError
from ..affinity.partitions import PARTITIONS_MAX
from ..engine.byte_text import bytes_shown
from ..engine.codecs import Codec
from ..engine.database import Database
from .commands import ToolCommand, json_options, settings_of, store_argument
from .exits import RefusedError
from .kv import bounds_of, codec_given, map_for_writing, pair_document, pairs_of
from .stores import AnyMap, reading_map, writing
from .terminal import Settings, note, progress, write_json
from .text import as_tuple, inline, parse_value
from .wal_records import SCHEMA

BATCH = 10_000
PAIR_MAX_CHARACTERS = 64 << 20
"""A line that is longer is refused: it is no record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Where key and value are in the records of an import."""

    key: tuple[str, ...]
    value: str | None


# ------------------------------------------------------------------ import


@click.command(name="import", cls=ToolCommand)
@store_argument()
@click.argument("file", metavar="[FILE]", default="-", type=click.Path(path_type=str))
@click.option("--map", "map_name", metavar="NAME", required=True, help="Into this map.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "csv"]),
    default="jsonl",
    show_default=True,
    help="Form of the file.",
)
@click.option(
    "--key-field",
    "--key",
    "key_fields",
    metavar="NAME",
    multiple=True,
    help="Field that is the key; several make a tuple.  [default: key]",
)
@click.option(
    "--value-field",
    "--value",
    metavar="NAME",
    help="Field that is the value.  [default: value, else the whole record]",
)
@click.option("--create", is_flag=True, help="Make the store where there is none.")
@click.option("--key-codec", help="Codec of the keys of a new map.  [default: str]")
@click.option("--value-codec", help="Codec of the values of a new map.  [default: msgpack]")
@click.option("--partitions", type=click.IntRange(1, PARTITIONS_MAX), help="Of a new store.")
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=BATCH,
    show_default=True,
    help="Records per transaction.",
)
@click.option("--skip", type=click.IntRange(0), default=0, help="Leave out the first records.")
@json_options
@click.pass_context
def import_records(
    ctx: click.Context,
    store: str,
    file: str,
    map_name: str,
    kind: str,
    key_fields: tuple[str, ...],
    value_field: str | None,
    create: bool,
    key_codec: str | None,
    value_codec: str | None,
    partitions: int | None,
    batch: int,
    skip: int,
    form: str,
) -> None:
    """Load the records of FILE (or of standard input) into a map, making the map where needed.

    \b
    Each batch of records is one transaction. An import that stops says how many records are
    loaded; give that number to --skip, or load the file again from its start.
    """  # fmt: skip
    settings = settings_of(ctx)
    fields = Fields(key=key_fields or ("key",), value=value_field)
    with opened_for_reading(file) as stream:
        records = numbered_records(stream, kind)
        head, records = split_head(records)
        given = (key_codec or head.key_codec, value_codec or head.value_codec)
        codecs = codec_given(given[0], "str"), codec_given(given[1], "msgpack")
        with writing(store, create=create, durability="none", partitions=partitions) as db:
            mapping = map_for_writing(db, map_name, True, codecs, given)
            pairs = pairs_of_records(islice(records, skip, None), mapping, fields, kind == "csv")
            loaded = load(settings, db, mapping, pairs, batch, skip)
    if form == "text":
        note(settings, f"loaded {loaded} records into {map_name!r}")
    else:
        write_json({"v": SCHEMA, "type": "import", "map": map_name, "loaded": loaded, "skip": skip})


def load(
    settings: Settings,
    db: Database,
    mapping: AnyMap,
    pairs: Iterator[tuple[Any, Any]],
    batch: int,
    skip: int,
) -> int:
    """Load pairs in batches and sync; on the way out of a failure too, and tell how many."""
    loaded = 0
    try:
        with progress(settings, "loading") as advance, Patience() as patience:
            while part := list(islice(pairs, batch)):
                with patience:
                    mapping.update_many(part)
                    loaded += len(part)
                advance(len(part))
        db.sync()
    except BaseException:
        with contextlib.suppress(TidelogError):
            db.sync()
            note(settings, f"loaded {loaded} records; go on with --skip {skip + loaded}")
        raise
    return loaded


class Patience:
    """Lets Ctrl-C wait for the end of a step, so that what was counted is what is there.

    The outer ``with`` changes how the signal is handled, each inner one is a step.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._interrupted = False
        self._before: Any = None

    def __enter__(self) -> Patience:
        """Begin to handle the signal, or begin a step."""
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        self._depth += 1
        return self

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._depth < 2:
            raise KeyboardInterrupt
        self._interrupted = True

    def __exit__(self, *_exc: object) -> None:
        """End a step, by the interrupt that came meanwhile; or handle the signal as before."""
        self._depth -= 1
        if self._depth == 0 and self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Head:
    """The codecs that the ``map`` line of an export names, or None."""

    key_codec: str | None = None
    value_codec: str | None = None


Numbered = tuple[int, dict[str, Any]]


def split_head(records: Iterator[Numbered]) -> tuple[Head, Iterator[Numbered]]:
    """Take the ``map`` line off the front of an export of our own."""
    for number, record in records:
        if record.get("v") == SCHEMA and record.get("type") == "map":
            codecs = [record.get(name) for name in ("key_codec", "value_codec")]
            names = [codec.get("name") if isinstance(codec, dict) else None for codec in codecs]
            return Head(*names), records
        return Head(), _with_first((number, record), records)
    return Head(), iter(())


def _with_first(first: Numbered, rest: Iterator[Numbered]) -> Iterator[Numbered]:
    yield first
    yield from rest


@contextlib.contextmanager
def opened_for_reading(file: str) -> Iterator[TextIO]:
    """Open a text file, or standard input for ``-``."""
    if file == "-":
        stream = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", newline="")
        try:
            yield stream
        finally:
            stream.detach()
        return
    if os.path.lexists(file) and not os.path.isfile(file):
        raise UsageError(f"{file} is not a regular file", hint="Use - for standard input.")
    with open(file, encoding="utf-8", newline="") as stream:
        yield stream


def numbered_records(stream: TextIO, kind: str) -> Iterator[Numbered]:
    """Yield (line number, record) of a file."""
    try:
        yield from _csv_records(stream) if kind == "csv" else _json_records(stream)
    except UnicodeDecodeError as error:
        raise UsageError(f"the file is not UTF-8: {error}") from error


def _json_records(stream: TextIO) -> Iterator[Numbered]:
    number = 0
    while line := stream.readline(PAIR_MAX_CHARACTERS):
        number += 1
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad_line(number, f"no JSON: {error}") from error
        if not isinstance(record, dict):
            raise _bad_line(number, f"a JSON object is needed, not {type(record).__name__}")
        yield number, record


def _csv_records(stream: TextIO) -> Iterator[Numbered]:
    reader = csv.DictReader(stream, strict=True)
    try:
        for record in reader:
            if None in record or None in record.values():
                raise _bad_line(reader.line_num, "another number of fields than the head line")
            yield reader.line_num, record
    except csv.Error as error:
        raise _bad_line(reader.line_num, f"no CSV: {error}") from error


def _bad_line(number: int, text: str) -> UsageError:
    return UsageError(f"line {number}: {text}", hint="Correct the line; then go on with --skip.")


def pairs_of_records(
    records: Iterable[Numbered], mapping: AnyMap, fields: Fields, texts: bool
) -> Iterator[tuple[Any, Any]]:
    """Yield key and value of each record; ``texts`` says that fields are text, as in CSV."""
    take = _text_pair if texts else _json_pair
    for number, record in records:
        try:
            pair = take(record, mapping, fields)
            mapping.namespace.key_codec.encode(pair[0])
            mapping.namespace.value_codec.encode(pair[1])
        except (UsageError, CodecError) as error:
            raise _bad_line(number, str(error)) from error
        yield pair


def _json_pair(record: dict[str, Any], mapping: AnyMap, fields: Fields) -> tuple[Any, Any]:
    key_codec, value_codec = mapping.namespace.key_codec, mapping.namespace.value_codec
    if record.get("v") == SCHEMA and record.get("type") == "pair":
        key, value = bytes_shown(record.get("key")), bytes_shown(record.get("value"))
        return key_codec.decode(key), value_codec.decode(value)
    parts = [_field(record, name) for name in fields.key]
    name: Any = parts[0] if len(parts) == 1 else parts
    return _adapted(name, key_codec), _adapted(_value_of(record, fields), value_codec)


def _adapted(value: Any, codec: Codec[Any]) -> Any:
    """What JSON cannot say itself: tuples as arrays, bytes as text, numbers as ids in text."""
    if codec.name == "tuple" and isinstance(value, list):
        return as_tuple(value)
    if codec.name in ("i64", "u64", "bytes") and isinstance(value, str):
        return codec.decode(parse_value(value, codec, "key"))
    return value


def _text_pair(record: dict[str, str], mapping: AnyMap, fields: Fields) -> tuple[Any, Any]:
    key_codec, value_codec = mapping.namespace.key_codec, mapping.namespace.value_codec
    parts = [_field(record, name) for name in fields.key]
    if len(parts) == 1:
        key = key_codec.decode(parse_value(parts[0], key_codec, "key"))
    else:
        key = tuple(parts)
    value = _value_of(record, fields)
    if isinstance(value, str):
        value = value_codec.decode(parse_value(value, value_codec, "value"))
    return key, value


def _field(record: dict[str, Any], name: str) -> Any:
    if name not in record:
        raise UsageError(
            f"there is no field {name!r}; the record has {', '.join(record) or 'none'}"
        )
    return record[name]


def _value_of(record: dict[str, Any], fields: Fields) -> Any:
    if fields.value is not None:
        return _field(record, fields.value)
    if set(record) == {*fields.key, "value"}:
        return record["value"]
    return record


# ------------------------------------------------------------------ export


@click.command(name="export", cls=ToolCommand)
@store_argument()
@click.argument("map_name", metavar="MAP")
@click.option("-o", "--output", type=click.Path(path_type=str), help="Write this file.")
@click.option("--force", is_flag=True, help="Replace the file where there is one.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "csv"]),
    default="jsonl",
    show_default=True,
    help="Form of the file.",
)
@click.option("--prefix", help="Keys that begin with this.")
@click.option("--start", help="From this key on.")
@click.option("--stop", help="Up to this key, not included.")
@click.pass_context
def export_records(
    ctx: click.Context,
    /,
    store: str,
    map_name: str,
    output: str | None,
    force: bool,
    kind: str,
    **bounds: str | None,
) -> None:
    """Write the keys and values of MAP to a file, or to standard output."""  # fmt: skip
    settings = settings_of(ctx)
    with reading_map(store, map_name) as (db, mapping):
        wanted = bounds_of(mapping.namespace.key_codec, **bounds)
        pairs = pairs_of(db, mapping, wanted, block=1024)
        write = _write_csv if kind == "csv" else _write_jsonl
        with opened_for_writing(output, force) as stream, progress(settings, "writing") as advance:
            written = write(stream, mapping, pairs, advance)
    if output is not None:
        note(settings, f"wrote {written} records of {map_name!r} to {output}")


@contextlib.contextmanager
def opened_for_writing(output: str | None, force: bool) -> Iterator[TextIO]:
    """Open a file that appears under its name once it is whole, or standard output."""
    if output is None:
        yield sys.stdout
        return
    if os.path.lexists(output) and not force:
        raise RefusedError(f"{output} exists already", hint="Give --force to replace it.")
    if os.path.isdir(output):
        raise UsageError(f"{output} is a directory", hint="Name a file.")
    beside = f"{output}.part"
    try:
        with open(beside, "w", encoding="utf-8", newline="") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, output)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        raise


Advance = Callable[[int], None]


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
        writer.writerow((inline(key, namespace.key_codec), inline(value, namespace.value_codec)))
        written += 1
        advance(1)
    return written
