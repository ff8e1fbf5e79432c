"""``tidelog kv``: reads and writes keys of a store.

Invariants:

- Reading commands see one snapshot, and print the exact bytes beside what the codecs make of them.
- Each writing command is one transaction (``import`` states its own rule) and prints its id.

- A command that fails makes neither a store nor a map.

Left out: import and export (``importing``, ``export``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import click

from ...affinity.errors import NotFoundError, UsageError
from ...affinity.partitions import PARTITIONS_MAX, Space, partition_of
from ...engine.api.database import Database, session_of
from ...engine.api.maps import namespace_of
from ...engine.api.read_only import ReadOnlyDatabase
from ...engine.codecs.byte_text import quoted
from ...engine.codecs.registry import Codec, KeyRange, codec_named
from ...engine.commit.entries import Receipt
from ...engine.data.namespaces import Home, Namespace, check_name, named
from ...engine.data.scan import Pair, Range
from ...engine.data.stored import damaged_pair
from ...engine.upkeep.load_files import read_load_manifest
from ...wal.records import NamespaceRecord
from ..db.stores import AnyMap, is_store, reading, reading_map, require_map, require_store, writing
from ..shell.commands import PATH, CountRange, LazyGroup, json_options, settings_of, store_argument
from ..shell.exits import Exit
from ..shell.terminal import (
    note,
    tell_beside,
    telling_if_interrupted,
    write_json,
    write_json_list,
    write_rows,
)
from ..shell.text import check_given, inline, parse_value, shown_pair_part
from ..wal.completion import complete_codec, complete_map, complete_partition
from ..wal.filters import key_range
from ..wal.records import FIRST_USER_NAMESPACE, SCHEMA

F = TypeVar("F", bound=Callable[..., Any])

_LAZY = {
    "maps": ("tidelog.tools.kv.catalog:list_maps", "List the maps of STORE with their codecs."),
    "drop": ("tidelog.tools.kv.catalog:drop", "Remove MAP and everything in it from STORE."),
    "rename": ("tidelog.tools.kv.catalog:rename", "Give MAP the name NEW."),
    "import": (
        "tidelog.tools.kv.importing:import_records",
        "Load a file or an SQLite table into a map.",
    ),
    "export": (
        "tidelog.tools.kv.export:export_records",
        "Write a map as JSON lines, CSV or Parquet.",
    ),
}


@click.group(cls=LazyGroup, lazy=_LAZY)
def kv() -> None:
    """Read and write keys of a store.

    \b
    Keys and values are text as the codec of the map reads it: plain text for str and bytes,
    decimal numbers, JSON for msgpack and json, a JSON array for tuple. Stored bytes are given
    as utf8:text, hex:6162 or b64:YWI=.
    """


# ------------------------------------------------------------------ reading


def skip_damaged_option(command: F) -> F:
    """Add the option to go on past values that do not match their checksums."""
    return click.option(
        "--skip-damaged",
        is_flag=True,
        help="Go on past damaged values: each is named, and the command ends with 3.",
    )(command)


class Skipped:
    """Counts and tells the damaged values that a command went past."""

    def __init__(self) -> None:
        self.count = 0

    def tell(self, namespace: Namespace, full_key: bytes) -> None:
        """Tell one of them, by map and key."""
        self.count += 1
        tell_beside(f"skipped: {named(damaged_pair(full_key), namespace)}")


def leave_skipped(ctx: click.Context, skipped: Skipped | None) -> None:
    """End the command with 3 if it went past damaged values."""
    if skipped is not None and skipped.count:
        tell_beside(f"skipped {skipped.count} damaged values")
        ctx.exit(Exit.FOUND)


@kv.command()
@store_argument()
@click.argument("map_name", metavar="MAP", shell_complete=complete_map)
@click.argument("key")
@click.option("--raw", is_flag=True, help="Print the stored bytes of the value, and nothing else.")
@json_options
def get(store: str, map_name: str, key: str, raw: bool, form: str) -> None:
    """Print the value of KEY; ends with 4 if there is none."""
    with reading_map(store, map_name) as (db, mapping), session_of(db).snapshot() as snapshot:
        namespace = namespace_of(mapping)
        encoded = parse_value(key, namespace.key_codec, "key")
        value = snapshot.getter(namespace)(encoded)
        if value is None:
            raise NotFoundError(
                f"the map {map_name!r} has no key {quoted(key)}",
                hint="`tidelog kv scan` lists the keys.",
            )
        if raw:
            sys.stdout.buffer.write(value)
        elif form == "text":
            click.echo(inline(value, namespace.value_codec))
        else:
            write_json(pair_document(namespace, encoded, value))


@kv.command()
@store_argument()
@click.argument("map_name", metavar="MAP", shell_complete=complete_map)
@click.option("--key", help="Only this key.")
@click.option("--prefix", help="Keys that begin with this.")
@click.option("--start", help="From this key on.")
@click.option("--stop", help="Up to this key, not included.")
@click.option(
    "--partition",
    type=click.IntRange(0, PARTITIONS_MAX - 1),
    help="Of this partition.",
    shell_complete=complete_partition,
)
@click.option("--reverse", is_flag=True, help="Backwards.")
@click.option("--limit", type=CountRange(0), help="At most this many.")
@click.option("--keys-only", is_flag=True, help="Without values.")
@skip_damaged_option
@json_options
@click.pass_context
def scan(
    ctx: click.Context,
    /,
    store: str,
    map_name: str,
    partition: int | None,
    reverse: bool,
    limit: int | None,
    keys_only: bool,
    skip_damaged: bool,
    form: str,
    **bounds: str | None,
) -> None:
    """Print the keys and values of MAP in the order of the keys."""
    with reading_map(store, map_name) as (db, mapping):
        codec = namespace_of(mapping).key_codec
        wanted = bounds_of(codec, **bounds)
        skipped = Skipped() if skip_damaged else None
        pairs = encoded_pairs(
            db, mapping, wanted, reverse=reverse, partition=partition, skipped=skipped
        )
        pairs = islice(pairs, limit)
        if form == "text":
            for key, value in pairs:
                columns = [inline(key, codec)]
                columns += [] if keys_only else [inline(value, namespace_of(mapping).value_codec)]
                click.echo("\t".join(columns))
        else:
            documents = (
                pair_document(namespace_of(mapping), key, None if keys_only else value)
                for key, value in pairs
            )
            if form == "jsonl":
                for document in documents:
                    write_json(document)
            else:
                write_json_list({"v": SCHEMA, "type": "pairs"}, "pairs", documents)
    leave_skipped(ctx, skipped)


@kv.command()
@store_argument()
@click.argument("map_names", metavar="[MAP]...", nargs=-1, shell_complete=complete_map)
@click.option("--prefix", help="Keys that begin with this.")
@skip_damaged_option
@json_options
@click.pass_context
def count(
    ctx: click.Context,
    store: str,
    map_names: tuple[str, ...],
    prefix: str | None,
    skip_damaged: bool,
    form: str,
) -> None:
    """Count the keys of each MAP, or of all maps."""
    with reading(store) as db:
        names = list(map_names) or db.maps()
        for name in map_names:
            require_map(db, name)
    rows: list[dict[str, Any]] = []
    skipped = Skipped() if skip_damaged else None
    with telling_if_interrupted(
        lambda: ("counted so far: {map!r} {keys}".format(**r) for r in rows)
    ):
        for name in names:
            with reading_map(store, name) as (reader, mapping):
                wanted = bounds_of(namespace_of(mapping).key_codec, prefix=prefix)
                total = sum(
                    1 for _ in encoded_pairs(reader, mapping, wanted, block=2048, skipped=skipped)
                )
            rows.append({"map": name, "keys": total})
    if form == "json":
        write_json({"v": SCHEMA, "type": "counts", "counts": rows})
    elif form == "jsonl":
        for row in rows:
            write_json({"v": SCHEMA, "type": "count", **row})
    else:
        write_rows(settings_of(ctx), ("map", "keys"), rows)
    leave_skipped(ctx, skipped)


def bounds_of(
    codec: Codec[Any],
    *,
    key: str | None = None,
    prefix: str | None = None,
    start: str | None = None,
    stop: str | None = None,
) -> KeyRange:
    """Return the run of encoded keys that the options mean; they narrow each other down."""
    low, high = b"", None
    if key is not None or prefix is not None:
        if key is not None and prefix is not None:
            raise UsageError("--key and --prefix exclude each other")
        low, high = key_range(codec, key, prefix)
    if (start is not None or stop is not None) and not codec.ordered:
        raise UsageError(f"codec {codec.name} does not keep the order of keys")
    if start is not None:
        low = max(low, parse_value(start, codec, "key"))
    if stop is not None:
        end = parse_value(stop, codec, "key")
        high = end if high is None else min(high, end)
    return low, high


def encoded_pairs(
    db: ReadOnlyDatabase,
    mapping: AnyMap,
    wanted: KeyRange,
    *,
    reverse: bool = False,
    partition: int | None = None,
    block: int = 64,
    skipped: Skipped | None = None,
) -> Iterator[Pair]:
    """Yield the encoded pairs of one snapshot, in order; past damaged ones with ``skipped``."""
    if partition is not None and partition >= db.partitions:
        raise UsageError(
            f"there is no partition {partition}", hint=f"The store has {db.partitions} partitions."
        )
    low, high = wanted
    space = namespace_of(mapping).space
    with session_of(db).snapshot() as snapshot:
        if skipped is None:
            blocks = snapshot.blocks(namespace_of(mapping), low, high, reverse, block)
        else:
            blocks = snapshot.scan(
                Range(namespace=namespace_of(mapping).id, start=low, stop=high),
                reverse=reverse,
                block=block,
                damaged=partial(skipped.tell, namespace_of(mapping)),
            )
        for pairs in blocks:
            for pair in pairs:
                if partition is None or partition_of(pair[0], space) == partition:
                    yield pair


def pair_document(namespace: Namespace, key: bytes, value: bytes | None) -> dict[str, Any]:
    """Return what ``--json`` prints of a key and, if given, its value."""
    fields: dict[str, Any] = {"v": SCHEMA, "type": "pair", "map": namespace.name}
    fields |= shown_pair_part("key", key, namespace.key_codec)
    if value is not None:
        fields |= shown_pair_part("value", value, namespace.value_codec)
    return fields


# ------------------------------------------------------------------ writing


@kv.command()
@store_argument()
@click.argument("map_name", metavar="MAP", shell_complete=complete_map)
@click.argument("key")
@click.argument("value")
@click.option("--create", is_flag=True, help="Make the store and the map if they do not exist.")
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
@click.option("--tag", help="Text that the log keeps with the transaction.")
@json_options
@click.pass_context
def put(
    ctx: click.Context,
    store: str,
    map_name: str,
    key: str,
    value: str,
    create: bool,
    key_codec: str | None,
    value_codec: str | None,
    partitions: int | None,
    tag: str | None,
    form: str,
) -> None:
    """Set KEY to VALUE in one transaction; VALUE - reads the stored bytes from standard input."""
    given = key_codec, value_codec
    codecs = codec_given(key_codec, "str"), codec_given(value_codec, "msgpack")
    data = sys.stdin.buffer.read() if value == "-" else None
    if not create:
        require_store(store)
    with ExitStack() as stack:
        # What can be refused is refused before anything is made.
        there = is_store(store)
        db = stack.enter_context(writing(store, partitions=partitions)) if there else None
        if db is not None and not create:
            require_map(db, map_name)
        namespace = namespace_for_writing(db, map_name, codecs, given)
        for_key, for_value = namespace.key_codec, namespace.value_codec
        new_key = for_key.decode(parse_value(key, for_key, "key"))
        if data is None:
            encoded = parse_value(value, for_value, "value")
        else:
            encoded = data
            hint = (
                f"Give bytes as the codec {for_value.name} writes them; - takes them as they are."
            )
            check_given(data, for_value, "the value on standard input", hint)
        new_value = for_value.decode(encoded)
        namespace.encode_key(new_key)
        namespace.encode_value(new_value)
        if db is None:
            db = stack.enter_context(writing(store, create=create, partitions=partitions))
        mapping = map_for_writing(db, map_name, create, codecs, given)
        with db.transaction(tag=tag) as tx:
            tx[mapping][new_key] = new_value
            receipt = tx.commit()
        tell_receipt(ctx, receipt, form)


@kv.command(name="del")
@store_argument()
@click.argument("map_name", metavar="MAP", shell_complete=complete_map)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--ignore-missing", is_flag=True, help="Pass over keys that are not there.")
@click.option("--tag", help="Text that the log keeps with the transaction.")
@json_options
@click.pass_context
def delete(
    ctx: click.Context,
    store: str,
    map_name: str,
    keys: tuple[str, ...],
    ignore_missing: bool,
    tag: str | None,
    form: str,
) -> None:
    """Delete each KEY, all in one transaction; with one missing, none is, and it ends with 4."""
    with writing(store) as db:
        require_map(db, map_name)
        mapping = db.map(map_name)
        codec = namespace_of(mapping).key_codec
        wanted = {codec.decode(parse_value(key, codec, "key")): key for key in keys}
        with db.transaction(tag=tag) as tx:
            inside = tx[mapping]
            for key, text in wanted.items():
                if key not in inside and not ignore_missing:
                    raise NotFoundError(
                        f"the map {map_name!r} has no key {quoted(text)}; nothing was deleted",
                        hint="Leave it out, or give --ignore-missing.",
                    )
                inside.discard(key)
            receipt = tx.commit()
        tell_receipt(ctx, receipt, form)


@kv.command()
@store_argument()
@click.argument("directory", type=PATH)
@click.option("--map", "map_name", help="Name of the new map.  [default: what the load says]")
@json_options
@click.pass_context
def attach(ctx: click.Context, store: str, directory: str, map_name: str | None, form: str) -> None:
    """Make the load in DIRECTORY a new map of STORE, all at once and past the log."""
    with writing(store) as db:
        rows = read_load_manifest(directory).rows
        name = db.attach(directory, map_name).name
        if form == "text":
            note(settings_of(ctx), f"attached {name!r} with {rows:,} rows")
        else:
            write_json({"v": SCHEMA, "type": "attached", "map": name, "rows": rows})


def tell_receipt(ctx: click.Context, receipt: Receipt, form: str) -> None:
    """Tell under which id a transaction was committed."""
    text = f"committed {receipt.tx_id.hex()} at position {receipt.position}"
    if form == "text":
        note(settings_of(ctx), text)
        return
    try:
        write_json(
            {
                "v": SCHEMA,
                "type": "receipt",
                "tx": receipt.tx_id.hex(),
                "position": receipt.position,
                "time_us": receipt.time,
            }
        )
        sys.stdout.flush()
    except OSError:
        note(settings_of(ctx), text)  # it is, whoever hears of it
        raise


def codec_given(name: str | None, default: str) -> Codec[Any]:
    """Return the codec of an option; ``UsageError`` for one that nobody knows."""
    return codec_named(name or default)


def map_for_writing(
    db: Database,
    name: str,
    create: bool,
    codecs: tuple[Codec[Any], Codec[Any]],
    given: tuple[object, object],
) -> AnyMap:
    """Return a map of an open store, making it only if ``create`` says so.

    Codecs that were given have to be those of a map that is there.
    """
    if name in db.maps():
        key, value = (
            codec if asked is not None else None for codec, asked in zip(codecs, given, strict=True)
        )
        return db.map(name, key=key, value=value)
    if not create:
        require_map(db, name)
    return db.map(name, key=codecs[0], value=codecs[1])


def namespace_for_writing(
    db: Database | None,
    name: str,
    codecs: tuple[Codec[Any], Codec[Any]],
    given: tuple[object, object],
) -> Namespace:
    """Return what a map is, or will be once it is made; nothing is made here.

    Codecs that were given have to be those of a map that is there.
    """
    check_name(name)
    if db is not None and name in db.maps():
        return namespace_of(map_for_writing(db, name, False, codecs, given))
    key, value = codecs
    record = NamespaceRecord(
        id=FIRST_USER_NAMESPACE,
        name=name,
        key_codec=key.name,
        key_version=key.version,
        value_codec=value.name,
        value_version=value.version,
    )
    return Namespace(record, key, value, Space(0, 1), Home(""))
