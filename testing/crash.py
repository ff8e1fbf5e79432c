"""Cut the power at every operation of a scenario, and hand out each disk that it may leave.

Owns the enumeration; what must hold on such a disk is the caller's to say::

    from tidelog.engine.api.open import open_with

    def scenario(disk, acknowledge):
        with open_with(simulated(1, disk), "/store") as db:
            users = db.map("users")
            for number in range(10):
                users[b"%d" % number] = b"x"
                acknowledge(b"%d" % number)

    for point in crash_points(scenario):
        with open_with(simulated(2, point.disk), "/store") as db:
            users = db.map("users")
            assert all(key in users for key in point.acknowledged), point

The scenario runs once to count its operations and then once for each operation and moment, each
time on a disk of its own, so it must do the same thing each time: use ``simulated``, and start no
threads.  It calls ``acknowledge`` with whatever the engine has promised to keep by then.

A crash inside recovery is the same with the recovery as the scenario::

    for inner in crash_points(recover, start=point.disk):
        ...

Left out: errors that the engine survives are planned with ``FaultyDisk.fail_at``; ``error_points``
enumerates those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .disk import FaultyDisk
from .media import CRASH_OUTCOMES
from .plan import FAULTS, MOMENTS, DiskOperation, SimulatedCrash

Scenario = Callable[[FaultyDisk, Callable[[object], None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """One power cut, and the disk as it is found afterwards."""

    operation: DiskOperation
    moment: str
    outcome: str
    seed: int
    disk: FaultyDisk = field(repr=False)
    acknowledged: list[object] = field(repr=False)

    def __str__(self) -> str:
        return f"crash {self.moment} {self.operation}, {self.outcome} (seed {self.seed})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPoint:
    """One planned I/O error, on a disk that has not been used yet."""

    operation: DiskOperation
    fault: str
    for_ever: bool
    disk: FaultyDisk = field(repr=False)

    def __str__(self) -> str:
        often = "from then on" if self.for_ever else "once"
        return f"{self.fault} at {self.operation}, {often} (seed {self.disk.seed})"


def crash_points(
    scenario: Scenario,
    *,
    start: FaultyDisk | None = None,
    seed: int = 0,
    moments: Sequence[str] = MOMENTS,
    outcomes: Sequence[str] = CRASH_OUTCOMES,
    step: int = 1,
    first: int = 0,
) -> Iterator[CrashPoint]:
    """Yield a ``CrashPoint`` for each operation that changes the disk x moment x outcome.

    ``start`` is the disk that the scenario begins with (an empty one by default), ``step`` takes
    only every ``step``-th operation, beginning with the one after ``first`` others, so that several
    calls can share the work.  Raises ``AssertionError`` if the scenario is not
    repeatable, or survives its own power cut and goes on to acknowledge.
    """
    changing = [operation for operation in recorded(scenario, start, seed) if operation.changes]
    for operation in changing[first::step]:
        for moment in moments:
            disk = _fresh(start, seed)
            disk.crash_at(operation.number, moment)
            acknowledged = _run(scenario, disk)
            assert disk.crashed, f"the scenario is not repeatable: it ended before {operation}"
            assert disk.trace[-1] == operation, (
                f"the scenario is not repeatable: {disk.trace[-1]} instead of {operation}"
            )
            for outcome in outcomes:
                yield CrashPoint(
                    operation=operation,
                    moment=moment,
                    outcome=outcome,
                    seed=seed,
                    disk=disk.crash(outcome),
                    acknowledged=list(acknowledged),
                )


def error_points(
    scenario: Scenario,
    *,
    start: FaultyDisk | None = None,
    seed: int = 0,
    faults: Sequence[str] = tuple(FAULTS),
    step: int = 1,
) -> Iterator[ErrorPoint]:
    """Yield an ``ErrorPoint`` for each operation x fault that can hit it x once or for ever.

    The caller runs the scenario on ``point.disk``, and says what must hold then.
    """
    for operation in recorded(scenario, start, seed)[::step]:
        for fault in faults:
            if operation.kind not in FAULTS[fault][1]:
                continue
            for for_ever in (False, True):
                disk = _fresh(start, seed)
                disk.fail_at(operation.number, fault, for_ever=for_ever)
                yield ErrorPoint(operation=operation, fault=fault, for_ever=for_ever, disk=disk)


def recorded(
    scenario: Scenario, start: FaultyDisk | None = None, seed: int = 0
) -> list[DiskOperation]:
    """Run the scenario without faults and return its operations."""
    disk = _fresh(start, seed)
    scenario(disk, lambda _: None)
    return disk.trace


def _fresh(start: FaultyDisk | None, seed: int) -> FaultyDisk:
    disk = FaultyDisk(seed) if start is None else start.copy()
    disk.seed = seed
    return disk


def _run(scenario: Scenario, disk: FaultyDisk) -> list[object]:
    acknowledged: list[object] = []

    def acknowledge(item: object) -> None:
        assert not disk.crashed, f"{item!r} was acknowledged after the power cut"
        acknowledged.append(item)

    with suppress(SimulatedCrash):
        scenario(disk, acknowledge)
    return acknowledged
