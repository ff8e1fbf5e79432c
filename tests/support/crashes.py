"""Visits the crash points and error points of the script, in parts that tests can share.

``Figures`` count what was visited; the tests assert the floors that they promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tidelog.affinity.errors import TidelogError
from tidelog.engine.api import open as opens
from tidelog.engine.api.database import session_of
from tidelog.testing import FaultyDisk, SimulatedCrash, crash_points, simulated
from tidelog.testing.crash import CrashPoint, recorded
from tidelog.testing.media import CRASH_OUTCOMES
from tidelog.testing.plan import FAULTS, MOMENTS, DiskOperation

from .promises import Promise, check_recovered, promise_of
from .scripts import LIMITS, PARTITIONS, PATH, SMALL_PIECES, BrokenInvariant, Run, Step
from .trouble import WatchedDisk, check_killed, play_with_error


@dataclass
class Figures:
    """How much was visited: points (disks), and the worlds that were found on them."""

    points: int = 0
    worlds: set[int] = field(default_factory=set)


def scenario_of(
    steps: list[Step], kv: str = "memory"
) -> Callable[[FaultyDisk, Callable[[object], None]], None]:
    """Return the script as ``crash_points`` wants it; it acknowledges its ``Run`` first."""

    def scenario(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
        run = Run(disk, kv=kv, acknowledge=acknowledge)
        try:
            run.play(steps)
        finally:
            if run.db is not None:
                session_of(run.db).abandon()

    return scenario


def run_of(point: CrashPoint) -> Run:
    """Return the run that a power cut ended."""
    run = point.acknowledged[0]
    assert isinstance(run, Run)
    return run


def cut_everywhere(
    steps: list[Step],
    *,
    seed: int = 0,
    moments: Sequence[str] = MOMENTS,
    outcomes: Sequence[str] = CRASH_OUTCOMES,
    step: int = 1,
    first: int = 0,
    kv: str = "memory",
    figures: Figures | None = None,
) -> Figures:
    """Check every promise at the crash points; raise for the first one that is broken."""
    figures = figures or Figures()
    points = crash_points(
        scenario_of(steps, kv),
        seed=seed,
        moments=moments,
        outcomes=outcomes,
        step=step,
        first=first,
    )
    for point in points:
        promise = promise_of(run_of(point), kept=point.outcome == "kept")
        with_point(point, check_recovered, point.disk, promise, kv=kv, figures=figures)
    return figures


def with_point(
    point: object,
    check: Callable[..., int],
    disk: FaultyDisk,
    promise: Promise,
    *,
    kv: str,
    figures: Figures,
) -> None:
    """Check one disk, and say where it comes from if a promise is broken."""
    figures.points += 1
    try:
        figures.worlds.add(check(disk, promise, kv=kv))
    except BrokenInvariant as broken:
        broken.add_note(f"{point}; disk {figures.points} of this part")
        raise


def kill_everywhere(
    steps: list[Step], *, step: int = 1, first: int = 0, moments: Sequence[str] = ("after",)
) -> int:
    """Kill the process at each operation, go on, then cut the power; return how often."""
    changing = [op for op in recorded(scenario_of(steps)) if op.changes]
    for operation in changing[first::step]:
        for moment in moments:
            disk = FaultyDisk(0)
            disk.crash_at(operation.number, moment)
            run = Run(disk)
            with suppress(SimulatedCrash):
                run.play(steps)
            try:
                check_killed(run)
            except BrokenInvariant as broken:
                broken.add_note(f"killed {moment} {operation}")
                raise
    return len(changing[first::step]) * len(moments)


def recover(disk: FaultyDisk, _acknowledge: Callable[[object], None]) -> None:
    """Open a store and let go of it: a recovery, as a scenario."""
    environment = simulated(5, disk, limits=SMALL_PIECES)
    session_of(opens.open_with(environment, PATH, partitions=PARTITIONS, **LIMITS)).abandon()


def cut_recoveries(
    steps: list[Step], *, step: int, first: int = 0, outcomes: Sequence[str], inner: Sequence[str]
) -> Figures:
    """Cut the power inside recoveries, at every operation, from the disks of some crash points."""
    figures = Figures()
    outer = crash_points(
        scenario_of(steps), moments=("inside",), outcomes=outcomes, step=step, first=first
    )
    for point in outer:
        promise = promise_of(run_of(point), kept=point.outcome == "kept")
        for cut in crash_points(recover, start=point.disk, outcomes=inner):
            where = f"{point}, then {cut}"
            with_point(where, check_recovered, cut.disk, promise, kv="memory", figures=figures)
    return figures


def errors_of(
    operations: Sequence[DiskOperation], faults: Sequence[str] = ("EIO", "ENOSPC", "short")
) -> Iterator[tuple[DiskOperation, str, bool]]:
    """Yield each operation with each fault that can hit it, once and for ever."""
    for operation in operations:
        for fault in faults:
            if operation.kind in FAULTS[fault][1]:
                yield operation, fault, False
                yield operation, fault, True


def fail_everywhere(
    steps: list[Step],
    *,
    step: int = 1,
    first: int = 0,
    seed: int = 0,
    faults: Sequence[str] = ("EIO", "ENOSPC", "short"),
    figures: Figures | None = None,
) -> Figures:
    """Let each operation fail in each way, and check all promises."""
    figures = figures or Figures()
    operations = recorded(scenario_of(steps))[first::step]
    for operation, fault, for_ever in errors_of(operations, faults):
        disk = WatchedDisk(seed)
        disk.fail_at(operation.number, fault, for_ever=for_ever)
        figures.points += 1
        try:
            play_with_error(disk, steps)
        except (BrokenInvariant, TidelogError) as error:
            error.add_note(f"{fault} at {operation}, {'for ever' if for_ever else 'once'}")
            raise
    return figures
