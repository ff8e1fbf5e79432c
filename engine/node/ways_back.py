"""Which way copies come back to what this member serves, and why.

The rules are those of ``rebalance.choosing``; here they are shown the state and the log of this
member.  What was chosen lately is kept for those who ask.

Left out: going that way (``supplying``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...affinity.topology import Incarnation, Topology
from ...checkpoints.copies import CopyState
from ...rebalance.choosing import LogReach, ShownByCopy, ShownByPrimary, SupplyChoice, choose
from ...tx.counter import PartitionUpdateCounter
from ...tx.numbers import run_numbers
from ..replication.reports import Report
from .log import NodeLog

EXPLAINED_MAX = 8


class LogHolder(NamedTuple):
    """A member whose log may have what a copy has missed."""

    copy: Incarnation

    def __str__(self) -> str:
        return str(self.copy.member)[:8]


class ReturnExplained(NamedTuple):
    """How a copy came back, or began to, and when."""

    copy: Incarnation
    at: float
    choice: SupplyChoice[LogHolder]


class WaysBack:
    """The ways by which copies come back to what one incarnation serves."""

    def __init__(self, me: Incarnation, node_log: NodeLog, now: Callable[[], float]) -> None:
        self._me = me
        self._log = node_log
        self._now = now
        self._without_history: set[tuple[Incarnation, int, Incarnation]] = set()
        """Copies, partitions, and whose log has not what these lack of those."""
        self.explained: dict[int, deque[ReturnExplained]] = {}
        """How copies came back lately, and why, by partition; the newest last."""

    def __repr__(self) -> str:
        return f"<WaysBack to {self._me}: {len(self._without_history)} without history>"

    def choice(
        self, report: Report, reaches: Sequence[LogReach[LogHolder]]
    ) -> SupplyChoice[LogHolder]:
        """Return how a copy comes back to a partition as that is now; whose log has what is told
        by ``reaches``."""
        partition, state = report.partition, self._log.state
        counter, pending = state.counters[partition], state.copies.pending.get(partition)
        return choose(
            ShownByCopy(
                whole=report.state in (CopyState.OWNING, CopyState.MOVING),
                opened=report.epochs[-1][0],
                epochs=report.epochs,
                lwm=report.lwm,
                ranges=report.ranges,
                data_to=PartitionUpdateCounter(report.lwm, report.ranges).highest_applied,
            ),
            ShownByPrimary(
                epoch=state.epochs[partition],
                epochs=state.epoch_tables[partition],
                top=counter.hwm,
                pending=[run_numbers(one.run) for one in pending.all()] if pending else (),
            ),
            [
                reach
                for reach in reaches
                if (report.copy, partition, reach.member.copy) not in self._without_history
            ],
        )

    # -------------------------------------------------------------- what the log proved to lack

    def lacks(self, copy: Incarnation, partitions: Iterable[int], supplier: Incarnation) -> None:
        """Know that a log has not what it was thought to have: it is not chosen again (B5)."""
        self._without_history.update((copy, partition, supplier) for partition in partitions)

    def filled(self, copy: Incarnation, partition: int) -> None:
        """Know that a copy was sent all there is: what it lacks now is new."""
        self._without_history = {
            row for row in self._without_history if row[:2] != (copy, partition)
        }

    def decided(self, topology: Topology) -> None:
        """Forget copies that have gone, or are of the set: what these will lack is new."""
        self._without_history = {
            (copy, partition, supplier)
            for copy, partition, supplier in self._without_history
            if {copy, supplier} <= topology.present
            and copy not in topology.partitions[partition].in_sync
        }

    # -------------------------------------------------------------- what is shown

    def explain(self, copy: Incarnation, partition: int, choice: SupplyChoice[LogHolder]) -> None:
        """Keep why a copy comes back as it does."""
        known = self.explained.setdefault(partition, deque(maxlen=EXPLAINED_MAX))
        known.append(ReturnExplained(copy, self._now(), choice))

    def told(self, partition: int) -> list[list[object]]:
        """Return how copies came back to a partition, as ``partition`` tells clients."""
        return [
            [
                copy.member.bytes,
                copy.boot,
                max(int((self._now() - at) * 1e6), 0),
                choice.kind.value,
                sum(last - first + 1 for first, last in choice.missing),
                choice.reason,
                choice.instead,
            ]
            for copy, at, choice in self.explained.get(partition, ())
        ]
