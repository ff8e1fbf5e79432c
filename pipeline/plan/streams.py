"""Streams of a view: offsets, and the tasks between two of them.

Invariants:

- The tasks between two offsets are the same whenever they are planned, as long as the log is kept.
- An offset belongs to one history of one store; one of another is refused.

Left out: what a task reads (``reads``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...affinity.errors import HistoryTruncatedError, SnapshotExpiredError, UsageError
from ..base import vectors
from ..base.vectors import Number, Vector
from ..data import snapshots
from ..data.snapshots import PartAsPuts
from ..log.logs import Cut, Log
from .options import ReadOptions
from .reads import (
    Task,
    change_tasks,
    check_apart,
    check_map,
    chosen_columns,
    kept,
    parts_of,
    resolved,
    skipped,
    start_of,
    task_bytes,
)

Offset = dict[str, Any]
"""How far a stream has come: a vector in JSON, or a list of positions or vectors as ``sources``."""


class ViewStream(Protocol):
    """A stream of a view: offsets, and the tasks between two of them."""

    def initial(self) -> Offset:
        """Return the offset at which a new query begins."""

    def latest(self, start: Offset, most: int | None) -> Offset:
        """Return the newest offset, or one about ``most`` behind ``start``, in its own measure."""

    def newest(self) -> Offset:
        """Return the offset behind all that could be read now."""

    def freeze(self) -> None:
        """Let ``latest`` go no further than what is there now."""

    def tasks(self, start: Offset, end: Offset) -> list[Task]:
        """Return the tasks that read what lies between two offsets."""


def stream(options: ReadOptions, names: Sequence[str] | None = None) -> ViewStream:
    """Return the stream of a view; ``names`` are the columns that are wanted."""
    if options.view == "changes":
        return ChangeStream(options, names)
    if options.view == "wal":
        return WalStream(options, names)
    raise UsageError(
        f"view {options.view!r} cannot be streamed", hint="The views `changes` and `wal` can."
    )


class WalStream:
    """A stream of records: its offsets are positions, at borders of frames."""

    def __init__(self, options: ReadOptions, names: Sequence[str] | None = None) -> None:
        self._options = options = resolved(options, stream=True)
        self._chosen = chosen_columns(options, names)
        self._logs = [Log(path) for path in options.paths]
        self._ends: list[int | None] = [None for _ in self._logs]

    def initial(self) -> Offset:
        """Return the offset at which a new query begins."""
        text = self._options.starting or "latest"
        found = []
        for log in self._logs:
            first, end = log.extent(permissive=False)
            asked = {"earliest": first, "latest": end}.get(text)
            found.append(log.border(int(text), end) if asked is None else asked)
        return self._joined(found)

    def latest(self, start: Offset, most: int | None) -> Offset:
        """Return the end of what is durable, or the first border ``most`` bytes behind ``start``.

        Bytes are shared by the logs.
        """
        found = []
        share = None if most is None else max(most // len(self._logs), 1)
        for log, low, frozen in zip(self._logs, self._split(start), self._ends, strict=True):
            end = log.durable_end(low) if frozen is None else frozen
            if share is not None and low + share < end:
                end = log.border(low + share, end)
            found.append(max(low, end))
        return self._joined(found)

    def newest(self) -> Offset:
        """Return the offset behind all that is durable."""
        return self._joined([log.durable_end() for log in self._logs])

    def freeze(self) -> None:
        """Let ``latest`` go no further than what is there now."""
        self._ends = [log.durable_end() for log in self._logs]

    def tasks(self, start: Offset, end: Offset) -> list[Task]:
        """Return the tasks that read what lies between two offsets."""
        pairs = zip(self._logs, self._split(start), self._split(end), strict=True)
        return [
            Task(self._options, part, self._chosen)
            for log, low, high in pairs
            if low < high
            for part in log.slices(low, high, most_bytes=task_bytes(self._options, high - low))
        ]

    def _joined(self, positions: Sequence[int]) -> Offset:
        return {
            "v": 1,
            "sources": [
                {"store": log.store_id.hex(), "history": log.history_id.hex(), "position": position}
                for log, position in zip(self._logs, positions, strict=True)
            ],
        }

    def _split(self, offset: Mapping[str, Any]) -> list[int]:
        sources = offset.get("sources", [])
        known = [(log.store_id.hex(), log.history_id.hex()) for log in self._logs]
        if [(one["store"], one["history"]) for one in sources] != known:
            raise UsageError(
                "the offset belongs to other logs, or to another history of them",
                hint="Keep the paths of a query, and their order; else begin anew.",
            )
        return [one["position"] for one in sources]


class ChangeStream:
    """A stream of changes: its offsets are vectors of update numbers.

    Lives as long as the query's runner and remembers where offsets lie in the log; without that,
    after a restart, it looks from the head of a segment on.

    One that begins with the data of a copy begins at the empty vector; the first batch is that data
    as a whole, and ends at the cut of the copy.
    """

    def __init__(self, options: ReadOptions, names: Sequence[str] | None = None) -> None:
        options = resolved(options, stream=True)
        check_apart(options)
        self._options = options
        self._chosen = chosen_columns(options, names)
        self._logs = [Log(path) for path in options.paths]
        self._cuts: list[dict[str, Cut]] = [{} for _ in self._logs]
        self._newest: Sequence[Cut | None] = [None for _ in self._logs]
        self._ends: list[int | None] = [None for _ in self._logs]

    def initial(self) -> Offset:
        """Return the offset at which a new query begins."""
        if self._options.bases:
            return self._joined([{} for _ in self._logs])
        starts = [start_of(log, self._options, "latest") for log in self._logs]
        for log, start in zip(self._logs, starts, strict=True):
            cut = log.newest()
            cut.check_reaches(start, log.path)
            check_map(log, self._options, cut)
        return self._joined(starts)

    def latest(self, start: Offset, most: int | None) -> Offset:
        """Return the newest offset, or one about ``most`` changes, or bytes, behind ``start``."""
        found = []
        share = None if most is None else max(most // len(self._logs), 1)
        for place, low in enumerate(self._split(start)):
            if low:
                cut = self._next(place, low, share)
                self._remember(place, cut)
            else:
                cut = self._base(place)
            found.append(cut.vector())
        return self._joined(found)

    def newest(self) -> Offset:
        """Return the offset behind all that is durable."""
        cuts = [log.newest(cut) for log, cut in zip(self._logs, self._newest, strict=True)]
        self._newest = cuts
        return self._joined([cut.vector() for cut in cuts])

    def freeze(self) -> None:
        """Let ``latest`` go no further than what is there now."""
        self._ends = [log.durable_end() for log in self._logs]

    def tasks(self, start: Offset, end: Offset) -> list[Task]:
        """Return the tasks that read what lies between two offsets."""
        tasks: list[Task] = []
        for place, (low, high) in enumerate(zip(self._split(start), self._split(end), strict=True)):
            log = self._logs[place]
            if not low:
                tasks += self._puts(place, high)
                continue
            try:
                cut = self._cuts[place].get(_text(high)) or log.at(high)
            except HistoryTruncatedError as error:
                skipped(log, self._options, error)
                continue
            low = kept(log, self._options, low, log.earliest().vector())
            tasks += change_tasks(log, self._options, self._chosen, low, high, cut)
        return tasks

    def _next(self, place: int, low: dict[int, Number], most: int | None) -> Cut:
        log, end = self._logs[place], self._ends[place]
        in_bytes = self._options.most_bytes is not None
        try:
            cut = self._cuts[place].get(_text(low)) or log.at(low)
            return log.newest(cut, most, end, in_bytes=in_bytes)
        except HistoryTruncatedError as error:
            skipped(log, self._options, error)
            return log.newest(log.earliest(), most, end, in_bytes=in_bytes)

    def _base(self, place: int) -> Cut:
        """Return the cut of the copy that a source begins with."""
        log = self._logs[place]
        if not self._options.bases:
            raise UsageError(
                f"the query over {log.path} began with a copy of it, and has not read all of it",
                hint="Set initialSnapshot as before.",
            )
        copy, cut = snapshots.pin(self._options.bases[place])
        if (copy.store_id, copy.history_id) != (log.store_id, log.history_id):
            raise UsageError(
                f"{copy.path} is not a copy of {log.path}, or it has a history of its own by now",
                hint="Begin with a hot copy that nobody has opened for writing.",
            )
        return cut

    def _puts(self, place: int, high: Vector) -> list[Task]:
        """Return the tasks that read the data of a copy, as changes."""
        options, cut = self._options, self._base(place)
        if cut.vector() != high:
            raise SnapshotExpiredError(
                f"{options.bases[place]} is not the copy that the query began with",
                hint="Put that one in its place, or begin anew.",
            )
        if options.namespace is not None and options.namespace not in cut.names.values():
            return []
        found = parts_of(options.bases[place], cut, options)
        node = self._logs[place].path
        return [Task(options, PartAsPuts(p, options.form), self._chosen, node) for p in found]

    def _remember(self, place: int, cut: Cut) -> None:
        cuts = self._cuts[place]
        cuts[_text(cut.vector())] = cut
        while len(cuts) > 4:
            del cuts[next(iter(cuts))]

    def _joined(self, found: Sequence[Vector]) -> Offset:
        offsets = [
            vectors.encode(log.store_id, log.history_id, vector)
            for log, vector in zip(self._logs, found, strict=True)
        ]
        return offsets[0] if len(offsets) == 1 else {"v": 1, "sources": offsets}

    def _split(self, offset: Mapping[str, Any]) -> list[dict[int, Number]]:
        offsets = offset.get("sources", [offset])
        if len(offsets) != len(self._logs):
            raise UsageError(
                f"the offset is of {len(offsets)} sources, the query has {len(self._logs)}",
                hint="Keep the paths of a query, and their order.",
            )
        return [
            vectors.decode(data, log.store_id, log.history_id)
            for data, log in zip(offsets, self._logs, strict=True)
        ]


def _text(vector: Vector) -> str:
    return json.dumps([vector[p] for p in sorted(vector)])
