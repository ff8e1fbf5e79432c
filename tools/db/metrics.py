"""What is known of a store as metrics, in the text format of Prometheus.

Invariants:

- Each family has a name, a help, a type and samples with the label ``store``, in the format of
  version 0.0.4, which ends with a line feed.
- Only what a process that reads can know is told.  How often the writer syncs and what it holds in
  memory is known to the writer alone (``db.statistics()``).

Left out: gathering it (``inspection``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from ...wal.segments import segment_sizes
from ..shell.text import MICROSECONDS
from .inspection import InspectedStore, counters, reader_slots, writer_pid


class Metric(NamedTuple):
    """A family with its only sample."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    value: float
    labels: Mapping[str, str] = {}


def metrics_of(found: InspectedStore) -> Iterator[Metric]:
    """Yield what is known of a store."""
    manifest, state, end = found.manifest, found.state, found.end
    identity = {
        "store_id": manifest.store_id,
        "history_id": manifest.history_id,
        "log_id": manifest.log_id,
        "format": str(manifest.format),
    }
    totals = counters(state)
    sizes = segment_sizes(found.access.wal)
    writer = writer_pid(found.access.environment, found.path)
    alive = sum(slot["alive"] for slot in reader_slots(found))
    maps = sum(not record.hidden for record in state.namespaces.values())

    def gauge(name: str, text: str, value: float, labels: Mapping[str, str] = {}) -> Metric:
        return Metric(name, "gauge", text, value, labels)

    yield gauge("store_info", "Identity of the store; the value is 1.", 1, identity)
    yield gauge("partitions", "Partitions of the store.", manifest.partitions)
    yield gauge("maps", "Maps of the store.", maps)
    yield gauge(
        "data_file_keys",
        "Keys in the data file at its last checkpoint, those of internal maps included.",
        sum(mark.count for mark in found.marks.values()),
    )
    yield gauge("data_file_bytes", "Size of the data file.", found.access.kv.size_used())
    yield Metric("updates", "counter", "Updates that have a number.", totals["updates"])
    yield gauge("missing_updates", "Update numbers that are missing.", totals["gaps"])
    yield gauge("log_bytes", "Size of the log on disk.", sum(sizes))
    yield gauge("log_segments", "Segments of the log on disk.", len(sizes))
    yield gauge("log_end_position", "Where the log ends.", end.position)
    yield gauge("log_durable_position", "Up to where the log is known to be durable.", end.durable)
    yield gauge(
        "checkpoint_position",
        "Up to where the data file has everything.",
        found.checkpoint_position,
    )
    yield gauge(
        "log_refused", "Whether the log is damaged, so that it is not continued.", end.refused
    )
    yield gauge(
        "writer_open", "Whether a process has the store open for writing.", writer is not None
    )
    yield gauge("readers", "Other processes that have the store open for reading.", alive)
    if state.time:
        yield gauge(
            "newest_commit_timestamp_seconds",
            "Time of the newest commit that is seen.",
            state.time / MICROSECONDS,
        )


def exposition(found: InspectedStore) -> str:
    """Return the metrics of a store in the text format of Prometheus."""
    lines = []
    for metric in metrics_of(found):
        name = f"tidelog_{metric.name}"
        if metric.kind == "counter":
            name += "_total"
        lines.append(f"# HELP {name} {_escaped(metric.help)}")
        lines.append(f"# TYPE {name} {metric.kind}")
        labels = {"store": os.path.abspath(found.path), **metric.labels}
        inside = ",".join(f'{label}="{_quoted(value)}"' for label, value in labels.items())
        lines.append(f"{name}{{{inside}}} {_number(metric.value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(value: str) -> str:
    # What is not UTF-8 in a path is shown as elsewhere; the format is UTF-8.
    shown = value.encode("utf-8", "backslashreplace").decode()
    return _escaped(shown).replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
