"""``tidelog kv maps``, ``drop`` and ``rename``: the maps of a store as such.

Invariants:

- Nothing is dropped without ``--yes``.
- Maps whose codecs are not installed here are listed, renamed and dropped like others.

Left out: what is in a map (``cli``).
"""

from __future__ import annotations

import click

from ...affinity.errors import CodecError
from ...engine.codecs.registry import codec_named
from ...wal.records import NamespaceRecord
from ..db.stores import reading, records_of, require_map, writing
from ..shell.commands import ToolCommand, json_options, settings_of, store_argument
from ..shell.exits import RefusedError
from ..shell.terminal import note, write_json, write_rows
from ..wal.completion import complete_map
from ..wal.records import SCHEMA, namespace_document


@click.command(name="maps", cls=ToolCommand)
@store_argument()
@json_options
@click.pass_context
def list_maps(ctx: click.Context, store: str, form: str) -> None:
    """List the maps of STORE with their codecs."""
    with reading(store) as db:
        records = sorted(records_of(db), key=lambda record: record.name)
    rows = [{**namespace_document(one), "codecs_known": _knows_codecs(one)} for one in records]
    if form == "json":
        write_json({"v": SCHEMA, "type": "maps", "maps": rows})
    elif form == "jsonl":
        for row in rows:
            write_json({"v": SCHEMA, "type": "map_of_store", **row})
    else:
        for row in rows:
            for part in ("key_codec", "value_codec"):
                row[part] = "{name} {version}".format(**row[part])
        columns = ("map", "namespace", "key_codec", "value_codec", "codecs_known")
        write_rows(settings_of(ctx), columns, rows)


def _knows_codecs(record: NamespaceRecord) -> bool:
    """Tell whether both codecs of a map are installed here."""
    try:
        codec_named(record.key_codec, record.key_version)
        codec_named(record.value_codec, record.value_version)
    except CodecError:
        return False
    return True


@click.command(cls=ToolCommand)
@store_argument()
@click.argument("map_name", metavar="MAP", shell_complete=complete_map)
@click.option("--yes", is_flag=True, help="Drop it; without this nothing is changed.")
@json_options
@click.pass_context
def drop(ctx: click.Context, store: str, map_name: str, yes: bool, form: str) -> None:
    """Remove MAP and everything in it from STORE."""
    if not yes:
        with reading(store) as reader:
            require_map(reader, map_name)
        raise RefusedError(
            f"the map {map_name!r} and everything in it would be removed; nothing was",
            hint="Give --yes to do it; `tidelog db backup` makes a copy first.",
        )
    with writing(store) as db:
        require_map(db, map_name)
        db.drop(map_name)
        if form == "text":
            note(settings_of(ctx), f"dropped {map_name!r}")
        else:
            write_json({"v": SCHEMA, "type": "dropped", "map": map_name})


@click.command(cls=ToolCommand)
@store_argument()
@click.argument("map_name", metavar="MAP", shell_complete=complete_map)
@click.argument("new_name", metavar="NEW")
@json_options
@click.pass_context
def rename(ctx: click.Context, store: str, map_name: str, new_name: str, form: str) -> None:
    """Give MAP the name NEW."""
    with writing(store) as db:
        require_map(db, map_name)
        db.rename(map_name, new_name)
        if form == "text":
            note(settings_of(ctx), f"renamed {map_name!r} to {new_name!r}")
        else:
            write_json({"v": SCHEMA, "type": "renamed", "map": new_name, "before": map_name})
