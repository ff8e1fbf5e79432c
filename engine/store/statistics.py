"""What ``db.statistics()`` tells: plain numbers, taken at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .opening import OpenStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How a store is doing.  Positions and sizes in bytes, times as their names say.

    ``sync_*`` are over the newest 1,024 syncs of the log, ``group_size_mean`` is transactions per
    group.  ``log_held_by`` maps each kept segment to what holds it back, ``pins`` names to
    positions; ``oldest_snapshot_seconds`` is None if no snapshot is open.
    """

    position: int
    durable_position: int
    checkpoint_position: int
    transactions: int
    groups: int
    group_size_mean: float
    syncs: int
    sync_us_median: float
    sync_us_p99: float
    sync_us_max: float
    overlay_bytes: int
    overlay_layers: int
    checkpoints: int
    checkpoint_failures: int
    checkpoint_seconds: float
    data_bytes: int
    snapshots: int
    oldest_snapshot_seconds: float | None
    log_bytes: int
    log_first_position: int
    log_held_by: dict[int, tuple[str, ...]]
    pins: dict[str, int]
    oldest_pin: int | None
    readers: dict[str, int]


def collect(store: OpenStore, snapshots: int, oldest_snapshot_seconds: float | None) -> Statistics:
    """Return the statistics of an open store."""
    carrier, keeper, figures = store.committer.carrier, store.keeper, store.checkpointer.figures
    syncs = store.committer.end_of_log.times
    median, p99, longest = syncs.percentiles()
    pins = keeper.pins.positions()
    plan = keeper.plan_now(store.checkpointer.position)
    return Statistics(
        position=store.writer.position,
        durable_position=store.writer.synced,
        checkpoint_position=store.checkpointer.position,
        transactions=carrier.grouped + store.overlay.changes - carrier.groups,
        groups=carrier.groups,
        group_size_mean=carrier.grouped / max(carrier.groups, 1),
        syncs=syncs.count,
        sync_us_median=median,
        sync_us_p99=p99,
        sync_us_max=longest,
        overlay_bytes=store.overlay.bytes,
        overlay_layers=store.overlay.layers,
        checkpoints=figures.count,
        checkpoint_failures=figures.failures,
        checkpoint_seconds=figures.seconds,
        data_bytes=store.kv.size_used(),
        snapshots=snapshots,
        oldest_snapshot_seconds=oldest_snapshot_seconds,
        log_bytes=keeper.kept_bytes,
        log_first_position=keeper.first_position,
        log_held_by=plan.held,
        pins=pins,
        oldest_pin=min(pins.values(), default=None),
        readers=keeper.readers(),
    )
