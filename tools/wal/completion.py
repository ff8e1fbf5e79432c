"""What a shell completes from the store on the line: maps, codecs, partitions.

Invariants:

- The store is only read, without a lock, from its manifest and the newest segment of its log: each
  segment begins with the names of all maps.
- An answer is quick: after ``SECONDS`` it is what is known so far.
- What cannot be read has no completions.

Left out: how the shell is answered (``shell.completion``).
"""

from __future__ import annotations

import os
import time
from functools import partial
from operator import eq

import click

from ...affinity.errors import TidelogError
from ...engine.codecs.registry import known_names
from ...engine.files.log_source import LogSource, find_log
from ...wal.records import DropNamespaceRecord, NamespaceRecord, StateRecord
from ...wal.segments import segment_numbers
from .records import records_in

SECONDS = 0.5


def complete_map(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the maps of the store on the line that begin with what is there."""
    try:
        source = _source_of(ctx)
        names = map_names(source) if source else []
    except (TidelogError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_codec(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the codecs that are known here and begin with what is there."""
    return [name for name in known_names() if name.startswith(incomplete)]


def complete_partition(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the partitions of the store on the line that begin with what is there."""
    try:
        source = _source_of(ctx)
    except (TidelogError, OSError):
        return []
    count = source.manifest.partitions if source and source.manifest else 0
    return [str(number) for number in range(count) if str(number).startswith(incomplete)]


def _source_of(ctx: click.Context) -> LogSource | None:
    # Behind an option without its value click leaves the arguments as they are.
    path = ctx.params.get("store") or ctx.params.get("path") or next(iter(ctx.args), None)
    return find_log(os.path.expanduser(path)) if path else None


def map_names(source: LogSource) -> list[str]:
    """Return the names of the maps at the end of a log, sorted."""
    stop = time.monotonic() + SECONDS
    names: dict[int, str] = {}
    for newest in sorted(segment_numbers(source.directory), reverse=True)[:2]:
        for frame in source.scan(partial(eq, newest)):
            for logged in records_in(frame):
                match logged.record:
                    case StateRecord() as state:
                        names = {one.id: one.name for one in state.namespaces if not one.hidden}
                    case NamespaceRecord() as one if not one.hidden:
                        names[one.id] = one.name
                    case DropNamespaceRecord() as one:
                        names.pop(one.id, None)
                    case _:
                        pass
            if time.monotonic() > stop:
                break
        if names:
            break
    return sorted(names.values())
