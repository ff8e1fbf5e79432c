"""``tidelog spark``: jobs over stores and logs, here or in Spark.

Small inputs are read in this process, for a JVM takes longer to start; ``--engine`` decides
otherwise.

Invariants:

- Nothing is changed in a store, but by ``load --attach``.
- Differences and damage end with 3, an environment in which Spark cannot work with 1.

Left out: what the jobs do (``pipeline``), and the scripts that ``submit`` runs.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, get_args

import click

from ...affinity.errors import UsageError
from ...engine.api.maps import namespace_of
from ...engine.codecs.byte_text import quoted
from ...pipeline.data.archives import is_archive
from ...pipeline.jobs import audits, compaction, loads, runner as jobs, wal_stats as statistics
from ...pipeline.jobs.runner import PlainRow, Runner
from ...pipeline.plan.options import ViewName
from ...pipeline.spark import doctor as doctors, submit as submits
from ..db.stores import reading, reading_map, writing
from ..shell.commands import PATH, LazyGroup, json_options, settings_of, store_argument
from ..shell.exits import Exit
from ..shell.terminal import note, progress, write_json, write_rows
from ..shell.text import decoded, parse_value

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=LazyGroup)
def spark() -> None:
    """Export, compare and audit stores, here or in Spark.

    Needs the extra: pip install 'tidelog[spark]'.
    """


def engine_options(command: F) -> F:
    """Add the options that say where a job runs."""
    command = click.option(
        "--engine",
        type=click.Choice(["auto", "arrow", "spark"]),
        default="auto",
        help="Here without a JVM (arrow), or in Spark; auto goes by size.",
    )(command)
    return click.option("--master", default="local[*]", metavar="URL", help="The master of Spark.")(
        command
    )


@contextmanager
def _runner(
    ctx: click.Context, engine: str, master: str, paths: Sequence[str], what: str
) -> Iterator[Runner]:
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError("this needs pyarrow", hint="pip install 'tidelog[arrow]'")
    chosen = engine
    if engine == "auto":
        # What would go to Spark for its size is done here, and slower, if there is no Spark.
        found = importlib.util.find_spec("pyspark") is not None
        chosen = jobs.engine_for(paths) if found else "arrow"
    with progress(settings_of(ctx), what) as advance:
        yield Runner("spark" if chosen == "spark" else "arrow", master, advance)


def _show(
    ctx: click.Context, form: str, name: str, columns: Sequence[str], rows: list[PlainRow]
) -> None:
    """Print rows as a table, one document, or one per line."""
    shown = [jobs.plain(row) for row in rows]
    if form == "json":
        write_json({name: shown, "count": len(rows)}, indent=2)
    elif form == "jsonl":
        for row in shown:
            write_json(row)
    elif rows:
        write_rows(settings_of(ctx), columns, shown)


@spark.command()
@click.option("--master", default="local[*]", metavar="URL", help="The master of Spark.")
@click.option("--no-session", is_flag=True, help="Look at files only, start no session.")
@json_options
def doctor(master: str, no_session: bool, form: str) -> None:
    """Check what Spark needs: Java, packages, interpreters, workers.

    Ends with 3 if something is missing; the table says what to do.
    """
    ctx = click.get_current_context()
    checks = list(doctors.examine(None if no_session else master))
    rows = [
        {"check": check.name, "ok": check.passed, "found": check.found, "next": check.next}
        for check in checks
    ]
    _show(ctx, form, "checks", ("check", "ok", "found", "next"), rows)
    if not all(check.passed for check in checks):
        ctx.exit(Exit.FOUND)


@spark.command()
@store_argument()
@click.argument("target", type=PATH)
@click.option(
    "--view", type=click.Choice(get_args(ViewName)), default="snapshot", help="What to export."
)
@click.option(
    "--format", "kind", type=click.Choice(get_args(jobs.Format)), default="parquet",
    help="The kind of file.",
)  # fmt: skip
@click.option(
    "--option", "given", multiple=True, metavar="NAME=TEXT",
    help="An option of the view, such as namespace=stock; can be repeated.",
)  # fmt: skip
@engine_options
@json_options
def export(
    store: str,
    target: str,
    view: str,
    kind: jobs.Format,
    given: tuple[str, ...],
    engine: str,
    master: str,
    form: str,
) -> None:
    """Write a view of STORE into files of the new folder TARGET."""
    ctx = click.get_current_context()
    options = dict(_pair(text) for text in given)
    options.update(path=os.path.abspath(store), view=view)
    with _runner(ctx, engine, master, [store], "parts") as runner:
        rows, files = jobs.export(options, os.path.abspath(target), kind, runner)
    if form == "text":
        note(settings_of(ctx), f"{rows:,} rows in {len(files)} files in {target}")
    else:
        write_json({"rows": rows, "files": files}, indent=2 if form == "json" else None)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--option {quoted(text)} is not NAME=TEXT")
    return name, value


@spark.command()
@store_argument()
@click.argument("name", metavar="MAP")
@click.argument("key")
@click.option("--archive", type=PATH, help="An archive of the log, too.")
@engine_options
@json_options
def history(
    store: str, name: str, key: str, archive: str | None, engine: str, master: str, form: str
) -> None:
    """Show all versions of KEY that the log of STORE still holds."""
    ctx = click.get_current_context()
    with reading_map(store, name) as (_, mapping):
        codecs = namespace_of(mapping).key_codec, namespace_of(mapping).value_codec
        data = parse_value(key, codecs[0], "key")
    with _runner(ctx, engine, master, [store], "parts") as runner:
        place = None if archive is None else os.path.abspath(archive)
        rows = jobs.history(os.path.abspath(store), name, data, runner, place)
    columns = ("commit_ts", "op", "value", "partition", "counter", "tx_id", "tx_size")
    for row in rows:
        row["tx_id"] = row["tx_id"].hex()
        for part, codec in zip(("key", "value"), codecs, strict=True):
            if row[part] is not None:
                value, problem = decoded(row[part], codec)
                row[part] = row[part] if problem else value
    _show(ctx, form, "versions", columns, rows)
    if not rows:
        note(settings_of(ctx), "the log holds no version of this key")
        ctx.exit(Exit.NOT_FOUND)


@spark.command()
@store_argument()
@click.argument("archive", type=PATH)
@engine_options
@json_options
def compact(store: str, archive: str, engine: str, master: str, form: str) -> None:
    """Carry what the log of STORE has gained since the last time into the folder ARCHIVE."""
    ctx = click.get_current_context()
    with _runner(ctx, engine, master, [store], "parts") as runner:
        done = compaction.compact(os.path.abspath(store), os.path.abspath(archive), runner)
    if form == "text":
        note(settings_of(ctx), f"{done['rows']:,} changes in {done['files']} files in {archive}")
    else:
        write_json(done, indent=2 if form == "json" else None)


@spark.command()
@click.argument("source", metavar="INPUT")
@click.argument("target", metavar="DIR", type=PATH)
@click.option("--map", "name", required=True, metavar="NAME", help="The map that it is for.")
@click.option(
    "--partitions", type=click.IntRange(1),
    help="How many partitions the store has.  [default: as the one of --attach]",
)  # fmt: skip
@click.option("--attach", "store", metavar="STORE", help="Attach the load to STORE, too.")
@click.option("--key-column", default="key", show_default=True, help="The column of the keys.")
@click.option("--value-column", default="value", show_default=True, help="That of the values.")
@click.option("--key-codec", default="bytes", show_default=True, help="Codec of the keys.")
@click.option("--value-codec", default="bytes", show_default=True, help="Codec of the values.")
@click.option("--files", type=click.IntRange(1), help="How many files, and tasks, at most.")
@click.option(
    "--on-conflict", type=click.Choice(["fail", "last"]), default="fail",
    help="A key that comes twice: fail, or keep its greatest value.",
)  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace the load that is in DIR.")
@engine_options
@json_options
def load(
    source: str,
    target: str,
    name: str,
    partitions: int | None,
    store: str | None,
    key_column: str,
    value_column: str,
    key_codec: str,
    value_codec: str,
    files: int | None,
    on_conflict: str,
    replace: bool,
    engine: str,
    master: str,
    form: str,
) -> None:
    """Make a load in the folder DIR of INPUT: files that a store can take in at once.

    INPUT is a file, or a folder of files, of Parquet, CSV with a header, or JSON lines.
    """
    ctx = click.get_current_context()
    if store is not None:
        with reading(store) as reader:
            partitions = partitions or reader.partitions
            if name in reader.maps():
                raise UsageError(f"there is a map {name!r} already", hint="Name another one.")
    if partitions is None:
        raise UsageError(
            "the number of partitions of the store is missing",
            hint="Give --partitions, or --attach STORE.",
        )
    options = {
        "path": os.path.abspath(target),
        "namespace": name,
        "partitions": str(partitions),
        "keyCodec": key_codec,
        "valueCodec": value_codec,
        "onConflict": on_conflict,
    }
    columns = (key_column, value_column)
    with _runner(ctx, engine, master, [source], "parts") as runner:
        done = loads.load(
            os.path.abspath(source), options, runner, columns=columns, files=files, replace=replace
        )
    if store is not None:
        with writing(store) as db:
            db.attach(target)
    if form == "text":
        attached = "" if store is None else f", and in {store}"
        note(
            settings_of(ctx), f"{done.rows:,} rows in {len(done.files)} files in {target}{attached}"
        )
    else:
        found = {"id": done.id.hex(), "rows": done.rows, "files": [f.name for f in done.files]}
        write_json(found, indent=2 if form == "json" else None)


@spark.command()
@click.argument("copies", nargs=-1, required=True, type=PATH)
@click.option("--tasks", type=click.IntRange(1), default=4, help="How many parts to compare.")
@engine_options
@json_options
def verify(copies: tuple[str, ...], tasks: int, engine: str, master: str, form: str) -> None:
    """Compare copies of a store, key by key if they differ.

    Of archives, of which there may be one, look at every byte of every file.
    """
    ctx = click.get_current_context()
    paths = list(map(os.path.abspath, copies))
    if any(map(is_archive, paths)):
        with _runner(ctx, engine, master, paths, "parts") as runner:
            rows = audits.verify_archives(paths, runner)
        _show(ctx, form, "damaged", ("archive", "file", "problem"), rows)
        damaged = "one file is damaged" if len(rows) == 1 else f"{len(rows):,} files are damaged"
        note(settings_of(ctx), damaged if rows else "all files are what was written")
        if rows:
            ctx.exit(Exit.FOUND)
        return
    with _runner(ctx, engine, master, paths, "parts") as runner:
        rows = audits.verify(paths, runner, tasks=tasks)
    _show(ctx, form, "differences", ("partition", "namespace", "key", "copies"), rows)
    _judge(ctx, rows, "all copies hold the same")


@spark.command("replay-check")
@click.argument("older", type=PATH)
@click.argument("newer", type=PATH)
@click.option("--tasks", type=click.IntRange(1), default=4, help="How many parts to compare.")
@engine_options
@json_options
def replay_check(older: str, newer: str, tasks: int, engine: str, master: str, form: str) -> None:
    """Prove that the copy OLDER and the log of NEWER give NEWER."""
    ctx = click.get_current_context()
    before, after = os.path.abspath(older), os.path.abspath(newer)
    with _runner(ctx, engine, master, (before, after), "parts") as runner:
        rows = audits.replay_check(before, after, runner, tasks=tasks)
    _show(ctx, form, "differences", ("partition", "namespace", "key", "replayed", "found"), rows)
    _judge(ctx, rows, f"{older} and the changes since give {newer}")


def _judge(ctx: click.Context, rows: list[PlainRow], good: str) -> None:
    bad = "one key differs" if len(rows) == 1 else f"{len(rows):,} keys differ"
    note(settings_of(ctx), bad if rows else good)
    if rows:
        ctx.exit(Exit.FOUND)


_TABLES = {
    "records": ("node", "segment", "record_type", "records", "bytes"),
    "maps": ("node", "segment", "namespace", "puts", "deletes", "key_bytes", "value_bytes"),
    "transactions": ("node", "measure", "transactions", "total", "median", "p99", "largest"),
    "ranges": ("node", "partition", "kind", "first", "last", "count"),
    "hot_keys": ("node", "namespace", "key", "writes", "error"),
}


@spark.command("wal-stats")
@click.argument("logs", nargs=-1, required=True, type=PATH)
@click.option("--top", type=click.IntRange(0), default=10, help="How many hot keys of each log.")
@click.option("--tasks", type=click.IntRange(1), default=4, help="How many parts of each log.")
@engine_options
@json_options
def wal_stats(
    logs: tuple[str, ...], top: int, tasks: int, engine: str, master: str, form: str
) -> None:
    """Count what LOGS hold: records, updates, sizes of transactions, gaps, hot keys.

    A log is a store, a hot copy, a folder of segments or a segment.
    """
    ctx = click.get_current_context()
    paths = list(map(os.path.abspath, logs))
    with _runner(ctx, engine, master, paths, "parts") as runner:
        tables = statistics.wal_stats(paths, runner, top=top, tasks=tasks)
    shown = {name: [jobs.plain(row) for row in rows] for name, rows in tables.items()}
    if form == "json":
        write_json(shown, indent=2)
        return
    if form == "jsonl":
        for name, rows in shown.items():
            for row in rows:
                write_json({"type": name, **row})
        return
    for place, (name, rows) in enumerate((n, rows) for n, rows in shown.items() if rows):
        if place:
            click.echo()
        write_rows(settings_of(ctx), _TABLES[name], rows)


@spark.command(context_settings={"allow_interspersed_args": False})
@click.option("--master", metavar="URL", help="The master; else as Spark is configured.")
@click.option("--archive", metavar="FILE", help="A virtual environment for the workers.")
@click.option("--py-files", metavar="FILE", help="Python code for the workers.")
@click.option("--execute", is_flag=True, help="Run it instead of printing it.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def submit(
    master: str | None,
    archive: str | None,
    py_files: str | None,
    execute: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Print the line that runs SCRIPT on a cluster, or run it.

    \b
    Examples:
      tidelog spark submit --master spark://host:7077 job.py shop.tl
      tidelog spark submit --master yarn --archive env.tar.gz --execute job.py shop.tl
    """
    command = submits.submit_command(
        submits.find_program(),
        sys.executable,
        script,
        arguments,
        master=master,
        archive=archive,
        py_files=py_files,
    )
    if not execute:
        click.echo(shlex.join(command))
        return
    if archive is not None:
        submits.check_unpacked(archive)
    os.execvp(command[0], command)
