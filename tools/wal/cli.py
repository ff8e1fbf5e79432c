"""``tidelog wal``: looks into a log without a store around it, beside a live writer or not.

Invariants:

- Nothing is written, locked or created; only ``wal``, ``affinity`` and what decodes values is
  imported, neither LMDB nor an event loop.
- A log that is refused still shows what is valid before the damage; the command then ends with 3.

Left out: LMDB, which ``tidelog db verify`` compares the log with; and repairing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import click

from ...affinity.errors import CorruptLogError, NotFoundError, UsageError
from ...affinity.partitions import PARTITIONS_MAX
from ...engine.codecs.byte_text import parse_bytes, quoted
from ...engine.files.log_source import LogSource, find_log
from ...wal.reader import Scan
from ...wal.records import Update
from ...wal.segments import segment_numbers, segment_sizes
from ...wal.tail import End, EndKind
from ..shell.commands import CountRange, LazyGroup, json_options, settings_of, store_argument
from ..shell.exits import Exit
from ..shell.terminal import (
    Settings,
    note,
    progress,
    show_error,
    telling_if_interrupted,
    write_fields,
    write_json,
    write_rows,
)
from ..shell.text import parse_span, parse_time, shown_time
from .completion import complete_map, complete_partition
from .filters import Filter, position_of, segments_wanted
from .records import (
    SCHEMA,
    TYPE_NAMES,
    BadRecord,
    LoggedRecord,
    Names,
    WithUpdates,
    document,
    end_document,
    lines,
    records_in,
)
from .segments import describe_segments
from .summary import Tally

F = TypeVar("F", bound=Callable[..., Any])
Selected = tuple[LoggedRecord, list[Update]]


@click.group(cls=LazyGroup)
def wal() -> None:
    """Look into a log: of a store, of a folder of segments, or of one segment.

    Nothing is changed, and a writer may go on meanwhile.
    """


# ------------------------------------------------------------------ filters


def filter_options(command: F) -> F:
    """Add the options that choose records; the command gets them as ``chosen``."""
    options = [
        click.option("--map", "--namespace", "map", metavar="NAME", help="Of this map (or id).",
                     shell_complete=complete_map),
        click.option("--key", metavar="KEY", help="Of this key."),
        click.option("--prefix", metavar="KEY", help="Of keys that begin with this."),
        click.option("--partition", type=click.IntRange(0, PARTITIONS_MAX - 1),
                     help="Of this one.", shell_complete=complete_partition),
        click.option("--counter", metavar="A..B", help="Of these update numbers."),
        click.option("--tx", metavar="HEX", help="Of the transaction whose id begins so."),
        click.option("--type", "types", type=click.Choice(TYPE_NAMES), multiple=True,
                     help="Of this type; can be repeated."),
        click.option("--since", metavar="TIME", help="Committed then or later."),
        click.option("--until", metavar="TIME", help="Committed before."),
        click.option("--from", "start", metavar="POS", help="From a position, or segment:offset."),
        click.option("--to", "stop", metavar="POS", help="Up to a position, not included."),
        click.option("--internal", is_flag=True, help="Show internal namespaces too."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def make_filter(source: LogSource, given: dict[str, Any]) -> Filter:
    """Return the filter that the options mean."""
    texts = {name: given[name] for name in ("since", "until", "start", "stop", "counter", "tx")}
    tx = texts["tx"]
    if tx is not None and re.fullmatch(r"[0-9a-fA-F]{1,32}", tx) is None:
        raise UsageError(
            f"{quoted(tx)} is not an id of a transaction", hint="Give up to 32 hexadecimal digits."
        )
    times = {name: parse_time(texts[name]) for name in ("since", "until") if texts[name]}
    places = {
        name: position_of(source.directory, texts[name])
        for name in ("start", "stop")
        if texts[name] is not None
    }
    if given["key"] is not None and given["prefix"] is not None:
        raise UsageError("--key and --prefix exclude each other")
    for name in ("key", "prefix"):
        if given[name] is not None:
            parse_bytes(given[name])  # what is not bytes is not a key of any map
    return Filter(
        map=given["map"],
        named_now=named_now(source, given["map"]) if given["map"] else frozenset(),
        key=given["key"],
        prefix=given["prefix"],
        partition=given["partition"],
        counters=parse_span(texts["counter"]) if texts["counter"] else None,
        tx=tx.lower() if tx else None,
        types=given["types"],
        internal=given["internal"],
        since=times.get("since"),
        until=times.get("until"),
        start=places.get("start"),
        stop=places.get("stop"),
    )


def named_now(source: LogSource, name: str) -> frozenset[int]:
    """Return the ids of the maps that have a name at the end of the log.

    Each segment begins with all names, so that the newest one tells it.
    """
    names = Names()
    newest = max(segment_numbers(source.directory), default=0)
    for frame in source.scan(lambda number: number == newest):
        for logged in records_in(frame):
            names.learn(logged.record)
    return names.named(name)


def select(scan: Scan, chosen: Filter, names: Names) -> Iterator[Selected]:
    """Yield the wanted records of a log with their wanted updates."""
    for frame in scan:
        for logged in records_in(frame):
            names.learn(logged.record)
            if chosen.wants(logged, names):
                updates = chosen.updates(logged.record, names)
                if updates or not (chosen.about_updates and isinstance(logged.record, WithUpdates)):
                    yield logged, updates


def check_found(chosen: Filter, names: Names, count: int) -> None:
    """Raise ``NotFoundError`` if a named map or transaction is nowhere in the log."""
    if count:
        return
    if chosen.map is not None and chosen.map not in names.seen and not chosen.internal:
        raise NotFoundError(
            f"the log names no map {chosen.map!r}", hint="`tidelog wal stat` lists the maps."
        )
    if chosen.tx is not None:
        raise NotFoundError(
            f"the log holds no such record of transaction {chosen.tx}",
            hint="It may be older than the log that is kept.",
        )


# ------------------------------------------------------------------ commands


@wal.command(name="ls")
@store_argument("path")
@json_options
@click.pass_context
def list_segments(ctx: click.Context, path: str, form: str) -> None:
    """List the segments of the log at PATH, with what they hold."""
    settings, source = settings_of(ctx), find_log(path)
    tell_notes(settings, source)
    rows, end = describe_segments(source)
    if form == "json":
        write_json({"v": SCHEMA, "type": "segments", "segments": rows, "end": end_document(end)})
    elif form == "jsonl":
        for row in rows:
            write_json({"v": SCHEMA, "type": "segment", **row})
    else:
        columns = ("segment", "first_position", "end_position", "bytes", "oldest", "newest",
                   "partitions", "index", "state")  # fmt: skip
        write_rows(settings, columns, rows)
    leave(ctx, end)


@wal.command()
@store_argument("path")
@filter_options
@click.option("--limit", type=CountRange(0), help="At most this many records.")
@click.option("--last", type=CountRange(1), help="Only the newest this many.")
@json_options
@click.pass_context
def dump(
    ctx: click.Context, /, path: str, limit: int | None, last: int | None, form: str, **given: Any
) -> None:
    """Print the records of the log at PATH, values decoded by their recorded codecs.

    \b
    Examples:
      tidelog wal dump shop.tl --map stock --key apples
      tidelog wal dump shop.tl --tx 9f3c --json
      tidelog wal dump shop.tl/wal/0000000000000002.log --type tx --last 5
    """
    settings, source = settings_of(ctx), find_log(path)
    tell_notes(settings, source)
    chosen, names = make_filter(source, given), Names()
    scan = source.scan(segments_wanted(source.directory, chosen))
    records: Iterable[Selected] = select(scan, chosen, names)
    ended = Ended(scan)
    records = ended.after(records) if limit is None else islice(records, limit)
    if last is not None:
        records = deque(records, maxlen=last)
    count = print_records(records, names, form, ended)
    if ended.end is not None:
        check_found(chosen, names, count)
        leave(ctx, ended.end, later=ended.later_version, bad=ended.bad_records)


class Ended:
    """Remembers how the log ended, and whether some record could not be read."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self.end: End | None = None
        self.later_version = False
        self.bad_records = False

    def after(self, records: Iterable[Selected]) -> Iterator[Selected]:
        """Yield the records; then the end is known."""
        yield from records
        self.end = self._scan.end

    def look(self, logged: LoggedRecord) -> None:
        """Take note of a record that could not be read."""
        if isinstance(logged.record, BadRecord):
            self.later_version |= logged.record.later
            self.bad_records = True


def print_records(records: Iterable[Selected], names: Names, form: str, ended: Ended) -> int:
    """Print records in a form, with the end of the log if it was reached; return how many."""
    count = 0
    documents = []
    for logged, updates in records:
        ended.look(logged)
        count += 1
        if form == "text":
            click.echo("\n".join(lines(logged, names, updates)))
        elif form == "jsonl":
            write_json(document(logged, names, updates))
        else:
            documents.append(document(logged, names, updates))
    end = None if ended.end is None else end_document(ended.end)
    if form == "json":
        write_json({"v": SCHEMA, "type": "records", "records": documents, "end": end})
    elif form == "jsonl" and end is not None:
        write_json(end)
    return count


@wal.command()
@store_argument("path")
@json_options
@click.pass_context
def verify(ctx: click.Context, path: str, form: str) -> None:
    """Read every byte of the log at PATH and tell whether it is whole.

    Ends with 0 for a whole log, a torn tail included (nobody was told that it was durable), with
    3 for damage, and with 8 if a later version of tidelog is needed.
    """
    from ...checkpoints.continuity import Continuity

    settings, source = settings_of(ctx), find_log(path)
    tell_notes(settings, source)
    tally, problems, later = Tally(), list[str](), False
    continuity = Continuity(problems.append)
    scan = source.scan()

    def told() -> list[str]:
        return [f"problem: {one}" for one in problems] + [f"read {tally.frames} frames so far"]

    with (
        telling_if_interrupted(told),
        progress(settings, "verifying", sum(segment_sizes(source.directory)), "bytes") as advance,
    ):
        for frame in scan:
            advance(len(frame.payload))
            for logged in records_in(frame):
                tally.add(logged, ())
                if isinstance(logged.record, BadRecord):
                    later |= logged.record.later
                    place = f"segment {frame.segment}, offset {frame.offset}"
                    problems.append(f"{place}: {logged.record.problem}")
                else:
                    continuity.take(frame, logged.record)
    end = scan.end
    whole = not (end.refused or problems)
    facts = {
        "segments": len(segment_numbers(source.directory)),
        "frames": tally.frames,
        "transactions": tally.transactions,
        "newest": None if tally.newest is None else shown_time(tally.newest),
    }
    if form == "text":
        verdict = "whole" if whole else "damaged"
        write_fields(settings, {"log": verdict, "end": str(end.kind), "detail": str(end), **facts})
        for problem in problems:
            click.echo(f"problem: {problem}")
    else:
        write_json(
            {
                "v": SCHEMA,
                "type": "verdict",
                "whole": whole,
                **facts,
                "problems": problems,
                "end": end_document(end),
            }
        )
    leave(ctx, end, later=later, bad=bool(problems))


@wal.command()
@store_argument("path")
@filter_options
@json_options
@click.pass_context
def stat(ctx: click.Context, /, path: str, form: str, **given: Any) -> None:
    """Count what the log at PATH holds: records, transactions, bytes per map, update numbers."""
    settings, source = settings_of(ctx), find_log(path)
    tell_notes(settings, source)
    chosen, names, tally = make_filter(source, given), Names(), Tally()
    scan = source.scan(segments_wanted(source.directory, chosen))

    def told() -> list[str]:
        return [f"so far {tally.frames} frames with {tally.updates} updates were counted"]

    with (
        telling_if_interrupted(told),
        progress(settings, "counting", sum(segment_sizes(source.directory)), "bytes") as advance,
    ):
        for logged, updates in select(scan, chosen, names):
            advance(len(logged.frame.payload) if not logged.index else 0)
            tally.add(logged, updates)
    check_found(chosen, names, tally.frames)
    counts = tally.document(names)
    if form == "text":
        show_counts(settings, counts, scan.end)
    else:
        write_json({"v": SCHEMA, "type": "stat", **counts, "end": end_document(scan.end)})
    leave(ctx, scan.end)


def show_counts(settings: Settings, counts: dict[str, Any], end: End) -> None:
    """Print counts for people."""
    maps, partitions = counts.pop("maps"), counts.pop("partitions")
    records = [f"{count} {name}" for name, count in counts.pop("records").items()]
    write_fields(settings, {**counts, "records": records, "end": str(end.kind)})
    if maps:
        click.echo()
        columns = ("map", "namespace", "puts", "deletes", "key_bytes", "value_bytes")
        write_rows(settings, columns, maps)
    if partitions:
        click.echo()
        write_rows(settings, ("partition", "updates", "first", "last"), partitions)


# ------------------------------------------------------------------ what they share


def tell_notes(settings: Settings, source: LogSource) -> None:
    """Tell what is peculiar about the place."""
    for text in source.notes:
        note(settings, f"note: {text}")


def leave(ctx: click.Context, end: End, *, later: bool = False, bad: bool = False) -> None:
    """End the command by how the log ends: note a torn tail, exit with 3 or 8 for worse."""
    settings = settings_of(ctx)
    if end.kind is EndKind.TORN:
        note(
            settings, f"note: the tail is torn, as after a crash; it is cut at the next open. {end}"
        )
    if end.refused:
        try:
            end.raise_if_refused()
        except CorruptLogError as error:
            show_error(settings, error)
            ctx.exit(Exit.FOUND)
    if later:
        ctx.exit(Exit.FORMAT)
    if bad:
        ctx.exit(Exit.FOUND)
