"""One epoch of one partition on its way to be open, as its author sees it.

    seal -> all reports are there -> the list is in the log -> every copy has it -> OPEN

Everything that a copy says is kept by its incarnation, so that messages may come twice, and from
copies that the log has called gone meanwhile: those are of a newer epoch's business.

Invariants:

- Nothing of the list takes effect before every listed copy has it durably (K5).
- Who has not done its part is named, so that it can be told, and be left out by a new epoch (I4).
- Each moment of it is in one phase: the steps together are as long as the partition is closed.

Left out: what the list says (``merging``), and how the messages travel
(``engine.node.taking_over``).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ...affinity.topology import Incarnation, PartitionCopies
from ...wal.records import SettleRecord
from .reports import Report

Phase = Literal["reports", "logging", "storing", "opening", "stuck"]
"""Of a takeover; ``stuck`` if it waits for an epoch without copies that are not whole."""


class PhaseTime(NamedTuple):
    """The time of a takeover in one phase, and who did its part in it last, or has not done it."""

    phase: Phase
    seconds: float
    last: Incarnation | None


class OpeningEpoch:
    """What an author has heard of the copies of its partition."""

    def __init__(self, copies: PartitionCopies, now: float) -> None:
        self.partition = copies.row.partition
        self.epoch = copies.epoch
        self.me = copies.author
        self.copies = copies
        """As the decision has them that gave the epoch."""
        self.others = tuple(copy for copy in copies.in_sync if copy != copies.author)
        self.phase: Phase = "reports"
        self.settle: SettleRecord | None = None
        self.since = now
        self.left_out: frozenset[Incarnation] = frozenset()
        self._reports: dict[Incarnation, Report] = {}
        self._stored: set[Incarnation] = set()
        self._steps: dict[Phase, PhaseTime] = {}
        self._entered = now
        self._last: Incarnation | None = None

    def __repr__(self) -> str:
        return (
            f"<OpeningEpoch of partition {self.partition} epoch {self.epoch}: {self.phase}, "
            f"waits for {', '.join(map(str, self.waits_for())) or 'nobody'}>"
        )

    def enter(self, phase: Phase, now: float) -> None:
        """Go on to a phase, or back to one that is tried again."""
        self._steps[self.phase] = self._step(now)
        self.phase, self._entered, self._last = phase, now, None

    def steps(self, now: float) -> list[PhaseTime]:
        """Return the phases by now, in the order in which they began, and for how long in all."""
        return list({**self._steps, self.phase: self._step(now)}.values())

    def _step(self, now: float) -> PhaseTime:
        """Return the present phase, with the time that was spent in it before."""
        before = self._steps.get(self.phase, PhaseTime(self.phase, 0.0, None))
        silent = self.waits_for() or sorted(self.left_out)
        last = silent[0] if silent else self._last or before.last
        return PhaseTime(self.phase, before.seconds + now - self._entered, last)

    def reported(self, report: Report) -> None:
        """Take a report; what comes twice, or from nobody that is listed, changes nothing."""
        if report.copy in self.waits_for():
            self._last = report.copy
        self._reports[report.copy] = report

    def reports(self) -> list[Report]:
        """Return the reports, in the order of the set."""
        return [self._reports[copy] for copy in self.copies.in_sync]

    def stored(self, copy: Incarnation) -> None:
        """Take it that a copy has the list durably."""
        if copy in self.waits_for():
            self._last = copy
        self._stored.add(copy)

    def waits_for(self) -> list[Incarnation]:
        """Return the copies that have not done their part of the present phase."""
        if self.phase == "reports":
            return [copy for copy in self.copies.in_sync if copy not in self._reports]
        if self.phase == "storing":
            return [copy for copy in self.others if copy not in self._stored]
        return []
