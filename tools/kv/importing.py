"""``tidelog kv import``: loads the records of a file into a map.

A ``map`` line and ``pair`` lines of an export of our own keep every byte.  Any other record is
somebody else's: ``--key-field`` says where its key is.

Invariants:

- An import is not one transaction: each batch is all or none.  Batches are synced at the end and
  whenever the import stops; what it says was loaded is durable then.
- Store and map are made with the first batch: an import whose first records cannot be loaded leaves
  nothing behind.
- Loading the same records again gives the same map, so an import that stopped can be resumed with
  ``--skip``, or from the start.

Left out: the forms of files (``record_files``), and writing them (``export``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from types import FrameType
from typing import Any, BinaryIO, TypeGuard

import click

from ...affinity.errors import CodecError, TidelogError, UsageError
from ...affinity.partitions import PARTITIONS_MAX
from ...engine.api.database import Database
from ...engine.codecs.byte_text import bytes_shown
from ...engine.codecs.registry import Codec, codec_named
from ...engine.data.namespaces import Namespace
from ..db.stores import AnyMap, is_store, require_store, writing
from ..shell.commands import (
    PATH,
    CountRange,
    ToolCommand,
    json_options,
    settings_of,
    store_argument,
)
from ..shell.exits import Terminated
from ..shell.terminal import Settings, note, progress, write_json
from ..shell.text import parse_value, value_of_json
from ..wal.records import SCHEMA
from .cli import codec_given, map_for_writing, namespace_for_writing
from .record_files import Numbered, bad_line, format_of, numbered_records

BATCH = 10_000

DecodedPair = tuple[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFields:
    """Where key and value are in the records of an import."""

    key: tuple[str, ...]
    value: str | None


# ------------------------------------------------------------------ import


@click.command(name="import", cls=ToolCommand)
@store_argument()
@click.argument("file", metavar="[FILE]", default="-", type=PATH)
@click.option("--map", "map_name", metavar="NAME", required=True, help="Into this map.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "csv"]),
    help="Form of the file.  [default: by its ending, else jsonl]",
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
@click.option("--create", is_flag=True, help="Make the store if it does not exist.")
@click.option("--key-codec", help="Codec of the keys of a new map.  [default: str]")
@click.option("--value-codec", help="Codec of the values of a new map.  [default: msgpack]")
@click.option("--partitions", type=click.IntRange(1, PARTITIONS_MAX), help="Of a new store.")
@click.option(
    "--batch",
    type=CountRange(1),
    default=BATCH,
    show_default=True,
    help="Records per transaction.",
)
@click.option("--skip", type=CountRange(0), default=0, help="Leave out the first records.")
@json_options
@click.pass_context
def import_records(
    ctx: click.Context,
    store: str,
    file: str,
    map_name: str,
    kind: str | None,
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
    """Load the records of FILE (or of standard input) into a map, making the map if needed.

    \b
    Each batch of records is one transaction. An import that stops says how many records are
    loaded; give that number to --skip, or load the file again from its start.
    """  # fmt: skip
    settings = settings_of(ctx)
    fields = ImportFields(key=key_fields or ("key",), value=value_field)
    kind = kind or format_of(file)
    if not create:
        require_store(store)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(opened_for_reading(file))
        head, records = split_head(numbered_records(stream, kind))
        given = (key_codec or head.key_codec, value_codec or head.value_codec)
        codecs = (
            chosen_codec(key_codec, head.key_codec, "str"),
            chosen_codec(value_codec, head.value_codec, "msgpack"),
        )
        opened = partial(writing, store, create=create, durability="none", partitions=partitions)
        # A store that is there tells the codecs; a new one is made once something is to go into it.
        db = stack.enter_context(opened()) if is_store(store) else None
        namespace = namespace_for_writing(db, map_name, codecs, given)
        pairs = pairs_of_records(islice(records, skip, None), namespace, fields, kind == "csv")
        loading = Loading(settings, map_name, skip)
        with loading:
            batches = batches_of(pairs, batch)
            first = next(batches, [])
            if db is None:
                db = stack.enter_context(opened())
            loading.load(db, (codecs, given), chain([first], batches), progress_of(stream))
        if form == "text":
            note(settings, f"loaded {loading.loaded} records into {map_name!r}")
        else:
            write_json(
                {
                    "v": SCHEMA,
                    "type": "import",
                    "map": map_name,
                    "loaded": loading.loaded,
                    "skip": skip,
                }
            )


def batches_of(pairs: Iterator[DecodedPair], batch: int) -> Iterator[list[DecodedPair]]:
    """Yield pairs, so many at a time."""
    while part := list(islice(pairs, batch)):
        yield part


class Loading:
    """An import on its way: counts what is loaded, and on the way out of a failure tells it."""

    def __init__(self, settings: Settings, name: str, skip: int) -> None:
        self.loaded = 0
        self._settings = settings
        self._name = name
        self._skip = skip
        self._db: Database | None = None

    def load(
        self,
        db: Database,
        codecs: Codecs,
        batches: Iterator[list[DecodedPair]],
        measured: ImportProgress,
    ) -> None:
        """Commit batches, the map with the first one, and sync."""
        self._db = db
        with (
            progress(self._settings, measured.what, measured.total) as advance,
            Patience() as patience,
        ):
            for part in batches:
                with patience:
                    if not self.loaded:
                        mapping = self._begun(db, codecs, part)
                    else:
                        mapping.update_many(part)
                    self.loaded += len(part)
                advance(measured.since(len(part)))
        db.sync()

    def _begun(self, db: Database, codecs: Codecs, part: list[DecodedPair]) -> AnyMap:
        """Commit the first batch; a map that is made for it goes again if that fails."""
        new = self._name not in db.maps()
        mapping = map_for_writing(db, self._name, True, *codecs)
        try:
            mapping.update_many(part)
        except BaseException:
            if new:
                with contextlib.suppress(TidelogError):
                    db.drop(self._name)
            raise
        return mapping

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        """Make durable what is loaded, and tell how much that is, if something failed."""
        if kind is None:
            return
        try:
            if self._db is not None and self.loaded:
                self._db.sync()
        except TidelogError:
            note(
                self._settings,
                f"committed {self.loaded} records, and could not sync them: some may be lost; "
                "load the file again from its start",
            )
        else:
            go_on = f"go on with --skip {self._skip + self.loaded}"
            note(self._settings, f"loaded {self.loaded} records; {go_on}")


@dataclass(slots=True)
class ImportProgress:
    """How far an import is: in bytes of a file, else in records."""

    what: str
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
        return ImportProgress("records loaded", None, None)
    return ImportProgress("bytes loaded", os.fstat(stream.fileno()).st_size, stream.tell)


class Patience:
    """Lets Ctrl-C and SIGTERM wait for the end of a step, so that what was counted is there.

    The outer ``with`` changes how the signals are handled, each inner one is a step.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._interrupt: type[BaseException] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Patience:
        """Begin to handle the signals, or begin a step."""
        if self._depth == 0 and threading.current_thread() is threading.main_thread():
            for number in _INTERRUPTS:
                self._before[number] = signal.signal(number, self._note)
        self._depth += 1
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else self._note)
        if self._depth < 2:
            raise _INTERRUPTS[number]
        self._interrupt = _INTERRUPTS[number]

    def __exit__(self, *_exc: object) -> None:
        """End a step, by the interrupt that came meanwhile; or handle the signals as before."""
        self._depth -= 1
        if self._depth == 0:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt


_INTERRUPTS: dict[int, type[BaseException]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: Terminated,
}


@dataclass(frozen=True, slots=True)
class Head:
    """Name and version of the codecs in the ``map`` line of an export, or None."""

    key_codec: tuple[str, int] | None = None
    value_codec: tuple[str, int] | None = None


def chosen_codec(option: str | None, head: tuple[str, int] | None, default: str) -> Codec[Any]:
    """Return the codec of an option, else that of an export, in the version that wrote it."""
    if head is not None and option in (None, head[0]):
        return codec_named(*head)
    return codec_given(option, default)


Codecs = tuple[tuple[Codec[Any], Codec[Any]], tuple[object, object]]
"""The codecs of a new map, and which of them were given, None for those that were not."""


def is_head(record: dict[str, Any]) -> bool:
    """Tell whether a record is the ``map`` line of an export, of this version or another one."""
    return (
        type(record.get("v")) is int
        and record.get("type") == "map"
        and {"key_codec", "value_codec"} <= record.keys()
    )


def split_head(records: Iterator[Numbered]) -> tuple[Head, Iterator[Numbered]]:
    """Take the ``map`` line off the front of an export of our own."""
    for number, record in records:
        if is_head(record) and record["v"] > SCHEMA:
            raise bad_line(
                number,
                f"an export of version {record['v']} of the format; this version of tidelog reads "
                f"version {SCHEMA}",
                "Load it with the version of tidelog that wrote it, or a later one.",
            )
        if record.get("v") == SCHEMA and record.get("type") == "map":
            key, value = (record.get(name) for name in ("key_codec", "value_codec"))
            if not (_names_codec(key) and _names_codec(value)):
                raise bad_line(number, "a map line without the codecs of the map")
            return Head((key["name"], key["version"]), (value["name"], value["version"])), records
        return Head(), _with_first((number, record), records)
    return Head(), iter(())


def _names_codec(codec: Any) -> TypeGuard[dict[str, Any]]:
    return (
        isinstance(codec, dict)
        and isinstance(codec.get("name"), str)
        and type(codec.get("version")) is int
    )


def _with_first(first: Numbered, rest: Iterator[Numbered]) -> Iterator[Numbered]:
    yield first
    yield from rest


@contextlib.contextmanager
def opened_for_reading(file: str) -> Iterator[BinaryIO]:
    """Open a file, or standard input for ``-``."""
    if file == "-":
        yield sys.stdin.buffer
        return
    if os.path.lexists(file) and not os.path.isfile(file):
        raise UsageError(f"{file} is not a regular file", hint="Use - for standard input.")
    with open(file, "rb") as stream:
        yield stream


def pairs_of_records(
    records: Iterable[Numbered], namespace: Namespace, fields: ImportFields, texts: bool
) -> Iterator[DecodedPair]:
    """Yield key and value of each record; ``texts`` says that fields are text, as in CSV."""
    take = _text_pair if texts else _json_pair
    for number, record in records:
        if is_head(record):
            raise bad_line(
                number,
                "a second head line: another export begins here",
                "Split the file in front of this line, and load each export by itself.",
            )
        try:
            pair = take(record, namespace, fields)
            namespace.encode_key(pair[0])
            namespace.encode_value(pair[1])
        except UsageError as error:
            raise bad_line(number, str(error), _field_hint(error, namespace)) from error.__cause__
        yield pair


class MissingFieldError(UsageError):
    """A record lacks a field that holds the key or the value."""


def _field_hint(error: UsageError, namespace: Namespace) -> str | None:
    """Return what to do about a record that cannot be loaded; None if the line is to blame."""
    if isinstance(error, MissingFieldError):
        return error.hint
    if isinstance(error, CodecError):
        return (
            f"Correct the line, or give other codecs than {namespace.key_codec.name} and "
            f"{namespace.value_codec.name} for a new map: --key-codec, --value-codec."
        )
    return None


def _json_pair(record: dict[str, Any], namespace: Namespace, fields: ImportFields) -> DecodedPair:
    key_codec, value_codec = namespace.key_codec, namespace.value_codec
    if record.get("v") == SCHEMA and record.get("type") == "pair":
        key, value = bytes_shown(record.get("key")), bytes_shown(record.get("value"))
        return key_codec.decode(key), value_codec.decode(value)
    parts = [_field(record, name, "key") for name in fields.key]
    name: Any = parts[0] if len(parts) == 1 else parts
    key = value_of_json(name, key_codec)
    return key, value_of_json(_value_of(record, fields), value_codec)


def _text_pair(
    record: dict[str, str], namespace: Namespace, fields: ImportFields
) -> tuple[Any, Any]:
    key_codec, value_codec = namespace.key_codec, namespace.value_codec
    parts = [_field(record, name, "key") for name in fields.key]
    if len(parts) == 1:
        key = key_codec.decode(parse_value(parts[0], key_codec, "key"))
    else:
        key = tuple(parts)
    value = _value_of(record, fields)
    if isinstance(value, str):
        value = value_codec.decode(parse_value(value, value_codec, "value"))
    return key, value


def _field(record: dict[str, Any], name: str, what: str) -> Any:
    if name not in record:
        raise MissingFieldError(
            f"there is no field {name!r}; the record has {', '.join(record) or 'none'}",
            hint=f"Name the field that holds the {what}: --{what}-field.",
        )
    return record[name]


def _value_of(record: dict[str, Any], fields: ImportFields) -> Any:
    if fields.value is not None:
        return _field(record, fields.value, "value")
    if set(record) == {*fields.key, "value"}:
        return record["value"]
    return record
