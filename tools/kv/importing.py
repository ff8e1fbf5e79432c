"""``tidelog kv import``: loads the records of a file or a table into a map.

Invariants:

- An import is not one transaction: each batch is all or none.  It ends at a number of records
  or of bytes, so memory is bounded.  Batches are synced at the end and whenever the import stops;
  what it says was loaded is durable then.
- Store and map are made with the first batch: an import whose first records cannot be loaded leaves
  nothing behind.
- Loading the same records again gives the same map, so an import that stopped can be resumed with
  ``--skip``, or from the start.

Left out: where records come from (``sources``), what they mean (``record_pairs``), and writing them
(``export``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import click

from ...affinity.errors import TidelogError, UsageError
from ...affinity.partitions import PARTITIONS_MAX
from ...engine.api.database import Database
from ...engine.codecs.registry import Codec, codec_named
from ..db.stores import AnyMap, is_store, require_store, writing
from ..shell.commands import (
    PATH,
    CountRange,
    ToolCommand,
    json_options,
    settings_of,
    store_argument,
)
from ..shell.terminal import Settings, note, progress, write_json
from ..wal.completion import complete_codec, complete_map
from ..wal.records import SCHEMA
from .cli import codec_given, map_for_writing, namespace_for_writing
from .column_types import ColumnTypes
from .patience import Patience
from .record_files import FORMATS, format_of
from .record_pairs import DecodedPair, ImportFields, pairs_of_records
from .sources import ImportProgress, ImportSource, file_source, table_source

BATCH = 10_000
BATCH_BYTES = 16 << 20
"""A batch ends once it has so many bytes, too: it is held in memory, and has to fit into a
transaction together with one more value."""


@click.command(name="import", cls=ToolCommand)
@store_argument()
@click.argument("file", metavar="[FILE]", required=False, type=PATH)
@click.option(
    "--map",
    "map_name",
    metavar="NAME",
    required=True,
    help="Into this map.",
    shell_complete=complete_map,
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(FORMATS)),
    help="Form of the file.  [default: by its ending, jsonl without one]",
)
@click.option(
    "--type",
    "types",
    metavar="COLUMN=TYPE",
    multiple=True,
    help="What a CSV column holds: str, int, float, bool, decimal, datetime, uuid or json; with "
    "a ? behind it an empty field is null.",
)
@click.option(
    "--sqlite", "sqlite_file", metavar="FILE", type=PATH, help="Load from this SQLite file."
)
@click.option("--table", metavar="NAME", help="Table or view of the SQLite file.")
@click.option(
    "--key-field",
    "--key",
    "key_fields",
    metavar="NAME",
    multiple=True,
    help="Field that is the key; several make a tuple.  [default: key; primary key of a table]",
)
@click.option(
    "--value-field",
    "--value",
    "value_fields",
    metavar="NAME",
    multiple=True,
    help="Field that is the value; of several a record.  [default: value, else the whole record]",
)
@click.option("--create", is_flag=True, help="Make the store if it does not exist.")
@click.option(
    "--key-codec",
    help="Codec of the keys of a new map.  [default: str]",
    shell_complete=complete_codec,
)
@click.option(
    "--value-codec",
    help="Codec of the values of a new map.  [default: msgpack]",
    shell_complete=complete_codec,
)
@click.option("--partitions", type=click.IntRange(1, PARTITIONS_MAX), help="Of a new store.")
@click.option(
    "--batch",
    type=CountRange(1),
    default=BATCH,
    show_default=True,
    help="Records per transaction, at most.",
)
@click.option("--skip", type=CountRange(0), default=0, help="Leave out the first records.")
@json_options
@click.pass_context
def import_records(
    ctx: click.Context,
    store: str,
    file: str | None,
    map_name: str,
    kind: str | None,
    types: tuple[str, ...],
    sqlite_file: str | None,
    table: str | None,
    key_fields: tuple[str, ...],
    value_fields: tuple[str, ...],
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
    if not create:
        require_store(store)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(
            chosen_source(file, kind, ColumnTypes(types), sqlite_file, table)
        )
        fields = ImportFields(key=key_fields or source.key(), value=value_fields)
        head, records = source.head, source.records
        given = (key_codec or head.key_codec, value_codec or head.value_codec)
        codecs = (
            chosen_codec(key_codec, head.key_codec, "str"),
            chosen_codec(value_codec, head.value_codec, "msgpack"),
        )
        opened = partial(writing, store, create=create, durability="none", partitions=partitions)
        # A store that is there tells the codecs; a new one is made once something is to go into it.
        db = stack.enter_context(opened()) if is_store(store) else None
        namespace = namespace_for_writing(db, map_name, codecs, given)
        wanted = replace(records, numbered=islice(records.numbered, skip, None))
        if source.measured.position is None and source.measured.total is not None:
            source.measured.total = max(source.measured.total - skip, 0)
        loading = Loading(settings, map_name, skip)
        with loading:
            batches = batches_of(pairs_of_records(wanted, namespace, fields), batch)
            first = next(batches, [])
            if db is None:
                db = stack.enter_context(opened())
            loading.load(db, (codecs, given), chain([first], batches), source.measured)
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


def chosen_source(
    file: str | None,
    kind: str | None,
    types: ColumnTypes,
    sqlite_file: str | None,
    table: str | None,
) -> contextlib.AbstractContextManager[ImportSource]:
    """Return the file or the table that the options mean."""
    if (sqlite_file is None) != (table is None):
        raise UsageError("--sqlite and --table need each other")
    if sqlite_file is None or table is None:
        file = file or "-"
        return file_source(file, kind or format_of(file), types)
    if file is not None or kind is not None or types:
        raise UsageError("--sqlite excludes FILE, --format and --type")
    return table_source(sqlite_file, table)


def batches_of(
    pairs: Iterable[tuple[DecodedPair, int]], batch: int, bytes_max: int = BATCH_BYTES
) -> Iterator[list[DecodedPair]]:
    """Yield pairs, so many at a time, and fewer if they have ``bytes_max`` bytes already."""
    part: list[DecodedPair] = []
    size = 0
    for pair, pair_bytes in pairs:
        part.append(pair)
        size += pair_bytes
        if len(part) == batch or size >= bytes_max:
            yield part
            part, size = [], 0
    if part:
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
            progress(self._settings, "loading", measured.total, measured.unit) as advance,
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


def chosen_codec(option: str | None, head: tuple[str, int] | None, default: str) -> Codec[Any]:
    """Return the codec of an option, else that of an export, in the version that wrote it."""
    if head is not None and option in (None, head[0]):
        return codec_named(*head)
    return codec_given(option, default)


Codecs = tuple[tuple[Codec[Any], Codec[Any]], tuple[object, object]]
"""The codecs of a new map, and which of them were given, None for those that were not."""
