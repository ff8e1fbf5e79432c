"""``tidelog db``: looks after a whole store.

Invariants:

- ``info``, ``verify`` and ``check-readers`` work beside a live writer; of the store they touch
  nothing but ``readers/`` and LMDB's lock file.
- ``backup``, ``compact``, ``restore`` and ``salvage`` write a new directory and leave the store as
  it is, but that the first two recover one that was not closed.
- If one of them fails, the directory can be used for the next try.

Left out: the log alone (``wal``), and single keys (``kv``).
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import click

from ...affinity.errors import NotFoundError, UsageError
from ...engine.api.database import session_of
from ...engine.api.maps import namespace_of
from ...engine.codecs.byte_text import shown_bytes
from ...engine.system.production import production
from ...engine.upkeep.backup import BackupReport
from ...engine.upkeep.check import inspect_store
from ...engine.upkeep.salvage import Lost, Salvaged, salvage as read_remains, salvaged_batches
from ..shell.commands import PATH, LazyGroup, json_options, settings_of, store_argument
from ..shell.exits import Exit
from ..shell.terminal import (
    Settings,
    note,
    phases,
    progress,
    telling_if_interrupted,
    write_fields,
    write_json,
    write_rows,
)
from ..wal.records import SCHEMA
from .copying import copy_of
from .inspection import clear_dead_slots, describe, inspected, reader_slots, require_known_version
from .metrics import exposition
from .stores import (
    appearing_whole,
    check_backup,
    check_new_directory,
    map_like,
    new_directory,
    reading,
    recover,
    require_store,
    without_writer,
    writing,
)

SALVAGE_BATCH = 2000


@click.group(cls=LazyGroup)
def db() -> None:
    """Look after a store."""


@db.command()
@store_argument()
@click.option("--prometheus", is_flag=True, help="Print metrics in the text format of Prometheus.")
@json_options
@click.pass_context
def info(ctx: click.Context, store: str, prometheus: bool, form: str) -> None:
    """Show what STORE is and holds: identity, maps, counters, sizes, and what keeps the log.

    It may be the directory of a cluster's member.
    """
    if prometheus and form != "text":
        raise UsageError("--prometheus excludes --json and --jsonl")
    with inspected(store, of_members=True) as found:
        if prometheus:
            click.echo(exposition(found), nl=False)
        elif form == "text":
            show_info(settings_of(ctx), describe(found))
        else:
            write_json({"v": SCHEMA, "type": "info", **describe(found)})
    found.end.raise_if_refused()


def show_info(settings: Settings, document: dict[str, Any]) -> None:
    """Print what ``db info`` tells, for people."""
    maps, data, log = document.pop("maps"), document.pop("data"), document.pop("log")
    counters, copies = document.pop("counters"), document.pop("copies") or {}
    readers = document.pop("readers")
    segments = log.pop("segments")
    log["end"] = log["end"]["kind"]
    write_fields(settings, document)
    parts = {"data": data, "counters": counters, "copies": copies, "log": log}
    for name, part in parts.items():
        if part:
            click.echo()
            write_fields(settings, {f"{name} {field}": value for field, value in part.items()})
    if maps:
        click.echo()
        rows = [
            {
                **row,
                "key_codec": row["key_codec"]["name"],
                "value_codec": row["value_codec"]["name"],
            }
            for row in maps
        ]
        write_rows(settings, ("map", "namespace", "key_codec", "value_codec"), rows)
    click.echo()
    columns = ("segment", "first_position", "end_position", "bytes", "newest", "held_by")
    write_rows(settings, columns, segments)
    if readers:
        click.echo()
        write_rows(settings, ("slot", "position", "alive"), readers)


@db.command()
@store_argument()
@json_options
@click.pass_context
def verify(ctx: click.Context, store: str, form: str) -> None:
    """Check STORE: log, data file and counters against each other, every value and every record.

    Ends with 0 if nothing is wrong and with 3 for any problem, each of which is printed.
    """
    settings = settings_of(ctx)
    require_store(store)
    require_known_version(store)
    problems: list[str] = []

    def told() -> list[str]:
        return [f"problem: {one}" for one in problems] + ["interrupted: there is no verdict"]

    with telling_if_interrupted(told), phases(settings) as begin:
        place = os.path.abspath(store)
        found = inspect_store(production(), place, begin=begin, problems=problems)
    facts = {
        "position": found.position,
        "maps": len(found.maps),
        "keys": sum(count for count, _ in found.partitions.values()),
    }
    if form == "text":
        write_fields(settings, {"store": "damaged" if found.problems else "whole", **facts})
        for problem in found.problems:
            click.echo(f"problem: {problem}")
    else:
        verdict = {"whole": not found.problems, **facts, "problems": found.problems}
        write_json({"v": SCHEMA, "type": "verdict", **verdict})
    if found.problems:
        ctx.exit(Exit.FOUND)


@db.command(name="check-readers")
@store_argument()
@json_options
@click.pass_context
def check_readers(ctx: click.Context, store: str, form: str) -> None:
    """List the processes that read STORE, and free what dead ones left behind."""
    settings = settings_of(ctx)
    with inspected(store) as found:
        cleared = clear_dead_slots(found)
        freed = found.access.kv.clear_stale_readers()
        slots = reader_slots(found)
    if form == "text":
        write_rows(settings, ("slot", "position", "alive"), slots)
        note(settings, f"freed {len(cleared)} slots of the log and {freed} of LMDB")
    else:
        write_json(
            {
                "v": SCHEMA,
                "type": "readers",
                "readers": slots,
                "freed_slots": cleared,
                "freed_lmdb_slots": freed,
            }
        )


@db.command()
@store_argument()
@click.argument("directory", type=PATH)
@click.option("--no-verify", is_flag=True, help="Do not open and check the copy.")
@json_options
@click.pass_context
def backup(ctx: click.Context, store: str, directory: str, no_verify: bool, form: str) -> None:
    """Copy STORE, as it is now, into DIRECTORY, which must not exist yet or be empty.

    Others may read and write meanwhile; the copy is checked as `tidelog db verify` does.
    A store whose writer was killed is recovered first, as by any open for writing.
    """
    settings = settings_of(ctx)
    check_new_directory(directory)
    recover(store)
    with reading(store) as reader, new_directory(directory):
        report = copy_of(settings, reader, directory, verify=not no_verify)
    tell_copy(settings, report, form, "backup")


@db.command()
@store_argument()
@click.option("--out", required=True, type=PATH, help="Directory of the new store.")
@json_options
@click.pass_context
def compact(ctx: click.Context, store: str, out: str, form: str) -> None:
    """Write a copy of STORE without unused space; STORE stays as it is.

    If its writer was killed, it is recovered first, as by any open for writing. Nobody may have
    the store open for writing. To use the copy in its place, move it there.
    """
    settings = settings_of(ctx)
    check_new_directory(out)
    recover(store)
    with reading(store) as reader, without_writer(store), new_directory(out):
        report = copy_of(settings, reader, out, compact=True)
        before = session_of(reader).access.kv.size_used()
    tell_copy(settings, report, form, "compact", data_bytes_before=before)


@db.command()
@store_argument("backup")
@click.argument("directory", type=PATH)
@json_options
@click.pass_context
def restore(ctx: click.Context, backup: str, directory: str, form: str) -> None:
    """Make a store in DIRECTORY of a backup, which stays as it is; the new store is checked.

    DIRECTORY must not exist yet or be empty. If it is to replace a damaged store, move that one
    away first.
    """
    settings = settings_of(ctx)
    check_new_directory(directory)
    check_backup(backup)
    with reading(backup) as reader, new_directory(directory):
        report = copy_of(settings, reader, directory)
    tell_copy(settings, report, form, "restore")


@db.command()
@store_argument()
@json_options
@click.pass_context
def checkpoint(ctx: click.Context, store: str, form: str) -> None:
    """Bring the data file of STORE up to the end of its log.

    Needs the store for itself: a process that writes it takes its own checkpoints.
    """
    with writing(store) as db:
        position = db.checkpoint()
        if form == "text":
            note(settings_of(ctx), f"the data file has everything up to position {position}")
        else:
            write_json({"v": SCHEMA, "type": "checkpoint", "position": position})


@db.command()
@store_argument()
@click.argument("directory", type=PATH)
@json_options
@click.pass_context
def salvage(ctx: click.Context, store: str, directory: str, form: str) -> None:
    """Write what can be read of a damaged STORE into a new store in DIRECTORY.

    \b
    Tells everything that is lost. Ends with 0 if all that the store held is in the new one,
    with 3 if something is not. STORE stays as it is; nobody may have it open for writing.
    """
    settings = settings_of(ctx)
    if not os.path.lexists(store):
        raise NotFoundError(f"there is nothing at {store}", hint="Check the path.")
    check_new_directory(directory)
    if os.path.commonpath([os.path.abspath(store), os.path.abspath(directory)]) == os.path.abspath(
        store
    ):
        raise UsageError(f"{directory} lies in the store that is to be salvaged")
    with without_writer(store):
        found = read_remains(store)
        with appearing_whole(directory) as beside:
            counts = write_salvaged(settings, found, beside)
    if form == "text":
        for one in found.lost:
            click.echo(f"{'harmless' if one.harmless else 'lost'}: {one.text}")
        write_rows(settings, ("map", "keys"), counts)
        word = "all of it" if found.complete else "what could be read"
        note(settings, f"wrote {word} to {directory}")
    else:
        write_json(
            {
                "v": SCHEMA,
                "type": "salvage",
                "complete": found.complete,
                "path": directory,
                "maps": counts,
                "lost": [lost_document(one) for one in found.lost],
            }
        )
    if not found.complete:
        ctx.exit(Exit.FOUND)


def write_salvaged(
    settings: Settings, found: Salvaged, directory: str
) -> list[dict[str, str | int]]:
    """Make a store of what was salvaged; return how many keys each map has got."""
    keys: Counter[str] = Counter()
    with (
        writing(directory, create=True, durability="none", partitions=found.partitions) as target,
        progress(settings, "pairs written") as advance,
    ):
        for record, pairs in salvaged_batches(found, SALVAGE_BATCH):
            session_of(target).set_many(namespace_of(map_like(target, record)), pairs)
            keys[record.name] += len(pairs)
            advance(len(pairs))
        for _, record in sorted(found.maps.items()):
            map_like(target, record)
            keys[record.name] += 0
    return [{"map": name, "keys": count} for name, count in sorted(keys.items())]


def lost_document(one: Lost) -> dict[str, Any]:
    """Return what ``--json`` prints about something that is lost."""
    fields = {"kind": one.kind, "text": one.text, "harmless": one.harmless}
    more = {"map": one.map, "partition": one.partition, "first": one.first, "last": one.last}
    fields |= {name: value for name, value in more.items() if value is not None}
    return fields if one.key is None else fields | {"key": shown_bytes(one.key)}


def tell_copy(settings: Settings, report: BackupReport, form: str, kind: str, **more: int) -> None:
    """Tell what a copy holds."""
    fields = {
        "path": report.path,
        "position": report.position,
        "bytes": report.bytes,
        "log_bytes": report.log_bytes,
        "maps": len(report.maps),
        "keys": report.keys,
        "verified": report.verified,
        "seconds": round(report.seconds, 3),
        **more,
    }
    if form == "text":
        write_fields(settings, fields)
    else:
        write_json({"v": SCHEMA, "type": kind, **fields})
