"""What is written where: results to stdout, everything else to stderr.

Owns the settings that every command shares (colour, progress, how much is told), tables, lines
of JSON, progress, and the texts of errors.

Invariants:

- Tables, colour and progress bars appear on a terminal only; without one a table is lines with
  tabs, and progress is a line each ten seconds.
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

PROGRESS_LINE_SECONDS = 10.0
BAR_SECONDS = 0.05

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
    lines = list(error_lines(error, settings.where))
    with suppress(OSError):
        click.echo("\n".join([f"{head} {lines[0]}", *lines[1:]]), err=True, color=color)


def note(settings: Settings, text: str) -> None:
    """Tell something beside the result, unless ``-q`` was given."""
    if not settings.quiet:
        tell_beside(text)


def tell_beside(text: str) -> None:
    """Write a line to stderr; if nobody takes it, the command goes on."""
    with suppress(OSError):
        click.echo(text, err=True)


@contextmanager
def logging_to_stderr(settings: Settings) -> Iterator[None]:
    """Show what the product logs: warnings, more with ``-v``, errors only with ``-q``."""
    levels = {0: logging.WARNING, 1: logging.INFO}
    level = logging.ERROR if settings.quiet else levels.get(settings.verbose, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
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
    """Print rows: a table on a terminal, else a head line and lines with tabs between."""
    if not is_terminal(sys.stdout):
        return _write_lines(columns, rows)
    if not has_rich():
        return _write_lines(columns, rows)
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row.get(name))) for name in columns))
    _console(settings, sys.stdout).print(table)


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


@contextmanager
def progress(settings: Settings, what: str, total: int | None = None) -> Iterator[Advance]:
    """Show how far something is; yields a function that takes how many are done since."""
    if settings.quiet or not settings.progress:
        yield lambda _count: None
    elif is_terminal(sys.stderr) and has_rich():
        with _bar(settings, what, total) as advance:
            yield advance
    else:
        yield _Lines(what, total).advance


@contextmanager
def _bar(settings: Settings, what: str, total: int | None) -> Iterator[Advance]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    time_left = () if total is None else (TimeRemainingColumn(),)
    bar = Progress(
        *columns,
        TimeElapsedColumn(),
        *time_left,
        console=_console(settings, sys.stderr),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total)
        pending, told = 0, time.monotonic()

        def advance(count: int) -> None:
            # Moving the bar costs more than most of what is counted.
            nonlocal pending, told
            pending += count
            now = time.monotonic()
            if now - told >= BAR_SECONDS:
                bar.advance(task, pending)
                pending, told = 0, now

        yield advance
        bar.advance(task, pending)


class _Lines:
    """Progress if nobody watches a bar: a line now and then."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what = what
        self._of = "" if total is None else f" of {total}"
        self._done = 0
        self._told = time.monotonic()

    def advance(self, count: int) -> None:
        """Count, and write a line when the last one is long enough ago."""
        self._done += count
        now = time.monotonic()
        if now - self._told >= PROGRESS_LINE_SECONDS:
            self._told = now
            tell_beside(f"{self._what}: {self._done}{self._of}")
