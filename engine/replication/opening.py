"""One epoch of one partition on its way to be open, as its author sees it.

    seal -> all reports are there -> the list is in the log -> every copy has it -> OPEN

Everything that a copy says is kept by its incarnation, so that messages may come twice, and from
copies that the log has called gone meanwhile: those are of a newer epoch's business.

Invariants:

- Nothing of the list takes effect before every listed copy has it durably (K5).
- Who has not done its part is named, so that it can be told, and be left out by a new epoch (I4).

Left out: what the list says (``merging``), and how the messages travel (``engine.node.groups``).
"""

from __future__ import annotations

from typing import Literal

from ...affinity.topology import Incarnation, PartitionCopies
from ...wal.records import SettleRecord
from .reports import Report

Phase = Literal["reports", "logging", "storing", "opening", "stuck"]
"""Of a takeover; ``stuck`` if it waits for an epoch without copies that are not whole."""


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

    def __repr__(self) -> str:
        return (
            f"<OpeningEpoch of partition {self.partition} epoch {self.epoch}: {self.phase}, "
            f"waits for {', '.join(map(str, self.waits_for())) or 'nobody'}>"
        )

    def reported(self, report: Report) -> None:
        """Take a report; what comes twice, or from nobody that is listed, changes nothing."""
        self._reports[report.copy] = report

    def reports(self) -> list[Report]:
        """Return the reports, in the order of the set."""
        return [self._reports[copy] for copy in self.copies.in_sync]

    def stored(self, copy: Incarnation) -> None:
        """Take it that a copy has the list durably."""
        self._stored.add(copy)

    def waits_for(self) -> list[Incarnation]:
        """Return the copies that have not done their part of the present phase."""
        if self.phase == "reports":
            return [copy for copy in self.copies.in_sync if copy not in self._reports]
        if self.phase == "storing":
            return [copy for copy in self.others if copy not in self._stored]
        return []
