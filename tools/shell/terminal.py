"""What is written where: results to stdout, everything else to stderr.

Owns the settings that every command shares (colour, progress, how much is told), tables, lines
of JSON, progress, and the texts of errors.

Invariants:

- Tables, colour and progress appear on a terminal only; without one a table is lines with tabs, and
  a table that does not fit the terminal is its fields, one per line.
- ``NO_COLOR`` and ``FORCE_COLOR`` count if ``--color`` is ``auto``.
- rich is imported only for what a terminal shows.

Left out: which exit code an error has (``exits``), and what commands print (each command).
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

import click

from ...affinity.errors import TidelogError
from .exits import error_lines

BAR_SECONDS = 0.05
COLUMN_GAP = 3
FOLDED_WIDTH = 20
"""What a folded column of a table has to keep."""

TableRow = Mapping[str, Any]


@dataclass(slots=True)
class Settings:
    """The options that all commands share, and the place that the command is about."""

    color: str = "auto"
    progress: bool = True
    quiet: bool = False
    verbose: int = 0
    debug: bool = False
    where: str | None = None


def is_terminal(stream: TextIO) -> bool:
    """Tell whether people look at a stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_color(settings: Settings, stream: TextIO) -> bool:
    """Tell whether a stream gets colour."""
    if settings.color != "auto":
        return settings.color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def show_error(settings: Settings, error: BaseException) -> None:
    """Write what went wrong to stderr: three lines, and the traceback if it was asked for."""
    if settings.debug:
        trace = traceback.TracebackException.from_exception(error)
        advice = error.advice() if isinstance(error, TidelogError) else None
        # The lines below tell code and hint; notes that others left are told here only.
        trace.__notes__ = [note for note in trace.__notes__ or () if note != advice]
        click.echo("".join(trace.format()), err=True, nl=False)
    color = wants_color(settings, sys.stderr)
    head = click.style("error:", fg="red", bold=True) if color else "error:"
    lines = list(map(visible, error_lines(error, settings.where)))
    with suppress(OSError):
        click.echo("\n".join([f"{head} {lines[0]}", *lines[1:]]), err=True, color=color)


def visible(text: str) -> str:
    """Return text that does nothing to a terminal: names in it may be of anybody's file."""
    if text.isprintable():
        return text
    return "".join(
        mark if mark.isprintable() or mark == "\n" else mark.encode("unicode_escape").decode()
        for mark in text
    )


def note(settings: Settings, text: str) -> None:
    """Tell something beside the result, unless ``-q`` was given."""
    if not settings.quiet:
        tell_beside(text)


def tell_beside(text: str) -> None:
    """Write a line to stderr; if nobody takes it, the command goes on."""
    with suppress(OSError):
        click.echo(visible(text), err=True)


@contextmanager
def telling_if_interrupted(told: Callable[[], Iterable[str]]) -> Iterator[None]:
    """On Ctrl-C and SIGTERM write to stderr what is known so far."""
    try:
        yield
    except KeyboardInterrupt:
        for line in told():
            tell_beside(line)
        raise


_LOG_LINE = logging.Formatter(
    "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
)
_LOG_LINE.converter = time.gmtime


@contextmanager
def logging_to_stderr(settings: Settings) -> Iterator[None]:
    """Show what the product logs: warnings, more with ``-v``, errors only with ``-q``.

    Each line begins with its time in UTC.
    """
    levels = {0: logging.WARNING, 1: logging.INFO}
    level = logging.ERROR if settings.quiet else levels.get(settings.verbose, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LOG_LINE)
    log = logging.getLogger("tidelog")
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


# ------------------------------------------------------------------ results


def write_json(document: object, *, indent: int | None = None) -> None:
    """Print one JSON document: on one line, or indented for people."""
    click.echo(json.dumps(document, ensure_ascii=False, indent=indent))


def write_json_list(head: Mapping[str, object], name: str, documents: Iterable[object]) -> None:
    """Print one JSON document whose last field is a list, without holding the list."""
    start = json.dumps({**head, name: []}, ensure_ascii=False)
    click.echo(start.removesuffix("]}"), nl=False)
    for number, document in enumerate(documents):
        text = json.dumps(document, ensure_ascii=False)
        click.echo(f", {text}" if number else text, nl=False)
    click.echo("]}")


def write_rows(settings: Settings, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
    """Print rows: a table on a terminal, else a head line and lines with tabs between.

    A table that is wider than the terminal has its widest column folded; if that would leave too
    little of it, each row is a paragraph with one line per field.
    """
    if not (is_terminal(sys.stdout) and has_rich()):
        return _write_lines(columns, rows)
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    console = _console(settings, sys.stdout)
    heads = [name.replace("_", " ") for name in columns]
    cells = [[cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    left = console.width - sum(widths) - COLUMN_GAP * (len(widths) - 1)
    widest = widths.index(max(widths))
    if left + widths[widest] < min(widths[widest], FOLDED_WIDTH):
        return _write_paragraphs(settings, columns, cells)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for number, name in enumerate(heads):
        table.add_column(name, overflow="fold", no_wrap=number != widest)
    for texts in cells:
        table.add_row(*map(Text, texts))
    console.print(table)


def _write_paragraphs(
    settings: Settings, columns: Sequence[str], cells: Iterable[Sequence[str]]
) -> None:
    for number, texts in enumerate(cells):
        if number:
            click.echo()
        write_fields(settings, dict(zip(columns, texts, strict=True)))


def _write_lines(columns: Sequence[str], rows: Iterable[TableRow]) -> None:
    click.echo("\t".join(columns))
    for row in rows:
        click.echo("\t".join(cell(row.get(name)) for name in columns))


def has_rich() -> bool:
    """Tell whether tables and bars can be drawn; without, they are lines as in a pipe."""
    return importlib.util.find_spec("rich") is not None


def write_fields(settings: Settings, fields: Mapping[str, Any]) -> None:
    """Print names and values, one per line."""
    width = max(map(len, fields), default=0)
    color = wants_color(settings, sys.stdout)
    for name, value in fields.items():
        label = f"{name.replace('_', ' ')}:".ljust(width + 2)
        click.echo((click.style(label, bold=True) if color else label) + cell(value), color=color)


def cell(value: object) -> str:
    """Return a value as people read it, on one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value) or "-"
    if isinstance(value, str) and value.isprintable():
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _console(settings: Settings, stream: TextIO) -> Any:
    from rich.console import Console

    color = wants_color(settings, stream)
    return Console(
        file=stream,
        force_terminal=True if settings.color == "always" else None,
        color_system="auto" if color else None,
        highlight=False,
        emoji=False,
    )


# ------------------------------------------------------------------ progress


Advance = Callable[[int], None]
Begin = Callable[[str, int | None, str], Advance]
"""Takes what is done now, how much of it there is if that is known, and in what unit."""


def shows_progress(settings: Settings) -> bool:
    """Tell whether somebody sees progress: on a terminal, unless it was turned off."""
    wanted = settings.progress and not settings.quiet
    return wanted and is_terminal(sys.stderr) and has_rich()


@contextmanager
def progress(
    settings: Settings, what: str, total: int | None = None, unit: str = ""
) -> Iterator[Advance]:
    """Show how far something is; yields a function that takes how many are done since."""
    with phases(settings) as begin:
        yield begin(what, total, unit)


@contextmanager
def phases(settings: Settings) -> Iterator[Begin]:
    """Show how far something is that is done in phases; yields what begins the next one."""
    if not shows_progress(settings):
        yield lambda _what, _total, _unit: _nothing
        return
    with _bar(settings) as begin:
        yield begin


def _nothing(_count: int) -> None:
    """Count nothing."""


@contextmanager
def _bar(settings: Settings) -> Iterator[Begin]:
    from rich.filesize import decimal
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Amount(ProgressColumn):
        """How much is done, of how much, and how fast."""

        def render(self, task: Task) -> Text:
            """Return the text; nothing if neither is known."""
            if task.total is None and not task.completed:
                return Text()
            count = decimal if task.fields["unit"] == "bytes" else "{:,}".format
            of = "" if task.total is None else f" of {count(int(task.total))}"
            rate = "" if not task.speed else f", {count(int(task.speed))}/s"
            return Text(f"{count(int(task.completed))}{of}{rate}")

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        Amount(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=_console(settings, sys.stderr),
        transient=True,
    )
    flush: Advance = _nothing

    def begin(what: str, total: int | None, unit: str) -> Advance:
        nonlocal flush
        flush(0)
        for former in bar.task_ids:
            bar.update(former, visible=False)
        task = bar.add_task(what, total=total, unit=unit)
        pending, told = 0, time.monotonic()

        def advance(count: int) -> None:
            # Moving the bar costs more than most of what is counted.
            nonlocal pending, told
            pending += count
            now = time.monotonic()
            if now - told >= BAR_SECONDS or not count:
                bar.advance(task, pending)
                pending, told = 0, now

        flush = advance
        return advance

    with bar:
        yield begin
        flush(0)
