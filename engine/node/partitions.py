"""Which partitions this member serves just now, and what whoever asks for another one is told.

A partition is served by the author of its newest epoch, once that epoch is open here and while this
member has a lease.  The lease is asked for behind the work, just before the answer leaves (L5).

Invariants:

- What is opened was sealed: the decision that gave the epoch is durable here (K2), and the records
  that open it are durable, too.
- Nothing of an epoch that the log has given to somebody else is answered.

Left out: reads and commits themselves (``requests``), leases (``agreement``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ...affinity.errors import (
    NotEnoughMembersError,
    PartitionUnavailableError,
    TidelogError,
    TooFewCopiesError,
)
from ...affinity.topology import KnownMember, PartitionCopies, Topology

TOLD_MAX = 8
"""Partitions that an error names."""


class Leases(Protocol):
    """Who knows of the decisions and leases of a member: its agreement."""

    @property
    def topology(self) -> Topology:
        """The newest decisions."""

    def may_serve(self, partition: int, now: float) -> bool:
        """Tell whether this incarnation may answer for a partition now."""

    def is_author(self, copies: PartitionCopies) -> bool:
        """Tell whether the log gives a partition to this incarnation, and it was not released."""

    def is_released(self, copies: PartitionCopies) -> bool:
        """Tell whether the log gives a partition to this incarnation, which released it."""

    def reaches_majority(self, now: float) -> bool:
        """Tell whether this member is on the side that can decide."""


class RoutedError(TidelogError):
    """A request is for somebody else, or comes too early: a client asks again, and users never
    see this."""

    code = "TL-INT-002"

    def __init__(self, answer: str, message: str, hint: str = "") -> None:
        """``hint`` is for who has asked again until the time was over."""
        super().__init__(message, hint=hint)
        self.answer = answer
        """``remap`` or ``wait``."""

    @property
    def fields(self) -> dict[str, object]:
        """What travels of it beside the message."""
        return {"hint": self.hint} if self.hint else {}


def just_started() -> RoutedError:
    """Return the answer of a member that does not know yet who else there is."""
    return RoutedError("wait", "this member has just started")


def about_to_move(partition: int) -> RoutedError:
    """Return the answer for a partition that somebody else is to serve (K7)."""
    return RoutedError("wait", f"partition {partition} is about to be served by another member")


class Partitions:
    """What one incarnation of a member serves."""

    def __init__(self, leases: Leases, patient_until: float) -> None:
        """``patient_until`` is when a member that was just started must have heard of others."""
        self._patient_until = patient_until
        self._leases = leases
        self._opened: dict[int, int] = {}
        self._drained: dict[int, int] = {}
        self.draining = False
        """Whether this member is about to leave: it takes nothing new."""

    def just_started(self, now: float) -> bool:
        """Tell whether it is too early to know that there are too few members."""
        return now < self._patient_until

    def check(self, partitions: Iterable[int], now: float) -> None:
        """Raise unless all of some partitions may be answered for now.

        ``RoutedError``, ``PartitionUnavailableError`` or ``NotEnoughMembersError``.
        """
        if self.draining:
            raise RoutedError("wait", "this member is about to stop")
        for partition in partitions:
            if not self.serves(partition, now):
                raise self.refusal(partition, now)
            if self._drained.get(partition) == self._opened.get(partition):
                raise about_to_move(partition)

    def check_there(self, partitions: Iterable[int]) -> None:
        """Raise unless somebody is there to serve each of some partitions, here or elsewhere."""
        topology = self._leases.topology
        for partition in partitions:
            if not topology.is_present(topology.partitions[partition].author):
                raise _deserted(partition, topology)

    def drain(self, moving: Iterable[PartitionCopies]) -> None:
        """Take nothing new for some partitions in their epochs: others are to serve them (K7)."""
        self._drained.update((copies.row.partition, copies.epoch) for copies in moving)

    def serves(self, partition: int, now: float) -> bool:
        """Tell whether a partition may be answered for now."""
        copies = self._leases.topology.partitions[partition]
        opened = self._opened.get(partition) == copies.epoch
        return opened and self._leases.may_serve(partition, now)

    def is_open(self, partition: int) -> bool:
        """Tell whether the newest epoch of a partition is open here."""
        copies = self._leases.topology.partitions[partition]
        return self._opened.get(partition) == copies.epoch and self._leases.is_author(copies)

    def has_others(self) -> bool:
        """Tell whether there are other members, who miss one that is busy for long."""
        return len(self._leases.topology.members) > 1

    def epoch(self, partition: int) -> int:
        """Return the newest epoch of a partition."""
        return self._leases.topology.partitions[partition].epoch

    def check_epochs(self, epochs: Iterable[tuple[int, int]]) -> None:
        """Raise ``RoutedError`` unless these epochs of partitions are the newest, and open here."""
        for partition, epoch in epochs:
            copies = self._leases.topology.partitions[partition]
            if copies.epoch != epoch or not self.is_open(partition):
                raise RoutedError("remap", f"partition {partition} is in epoch {copies.epoch}")

    def check_writable(self, epochs: Iterable[tuple[int, int]]) -> None:
        """Raise as ``check_epochs`` and ``check_copies`` do."""
        epochs = list(epochs)
        self.check_epochs(epochs)
        self.check_copies(partition for partition, _ in epochs)

    def check_copies(self, partitions: Iterable[int]) -> None:
        """Raise ``TooFewCopiesError`` unless enough copies of partitions are in sync (I7).

        ``PartitionUnavailableError`` if nothing is written as others of the space are lost (S6).
        """
        topology = self._leases.topology
        for partition in partitions:
            if partition in topology.read_only:
                raise _read_only(partition, topology)
            copies = len(topology.partitions[partition].in_sync)
            if copies < topology.min_in_sync:
                raise TooFewCopiesError(
                    f"partition {partition} has {copies} {'copy' if copies == 1 else 'copies'} in "
                    f"sync, and nothing is written to fewer than {topology.min_in_sync}",
                    partition=partition,
                )

    def authored(self) -> list[PartitionCopies]:
        """Return the partitions that the log gives to this incarnation."""
        leases = self._leases
        return [copies for copies in leases.topology.partitions if leases.is_author(copies)]

    def refusal(self, partition: int, now: float) -> Exception:
        """Return why a partition is not served here: whom to ask, or that nobody is there."""
        topology = self._leases.topology
        copies = topology.partitions[partition]
        if not self._leases.reaches_majority(now):
            if self.just_started(now):
                return just_started()
            return NotEnoughMembersError(
                f"the member that was asked for partition {partition} reaches no majority of the "
                f"{len(topology.baseline)} members",
                hint="It serves again as soon as a majority of the members run and reach each "
                "other.",
            )
        if self._leases.is_author(copies):
            return RoutedError("wait", f"partition {partition} is about to be served here")
        if self._leases.is_released(copies):
            return about_to_move(partition)
        if not topology.is_present(copies.author):
            return _deserted(partition, topology)
        return RoutedError("remap", f"partition {partition} is served by {copies.author}")

    # -------------------------------------------------------------- epochs

    def opened(self, rows: Iterable[tuple[int, int]]) -> None:
        """Take it that these epochs of partitions are open here."""
        for partition, epoch in rows:
            self._opened[partition] = max(epoch, self._opened.get(partition, 0))


def _deserted(partition: int, topology: Topology) -> Exception:
    """Return the error for a partition whose primary has gone: to wait, or that nobody is there."""
    copies = topology.partitions[partition]
    if any(topology.is_present(copy) for copy in copies.in_sync):
        return RoutedError("wait", f"partition {partition} is about to be taken over")
    return unavailable(partition, copies, topology)


def _read_only(partition: int, topology: Topology) -> PartitionUnavailableError:
    others = ", ".join(map(str, topology.lost[:TOLD_MAX]))
    others += " and others" * (len(topology.lost) > TOLD_MAX)
    return PartitionUnavailableError(
        f"nothing is written to partition {partition}, as others of its space are lost: {others}",
        partition=partition,
        hint="Reset these (`tidelog cluster reset`), or choose another policy for losses "
        "(`tidelog cluster policy`).",
    )


def _names(members: Iterable[KnownMember]) -> str:
    return " and ".join(f"{known.address} ({str(known.member)[:8]})" for known in members)


def unavailable(
    partition: int, copies: PartitionCopies, topology: Topology
) -> PartitionUnavailableError:
    """Return the error for a partition that no listed copy is there for as it was listed."""
    if partition in topology.lost:
        return PartitionUnavailableError(
            f"partition {partition} is lost: the disks of all who had it are gone",
            partition=partition,
            hint="Let it go on from an older copy, or with nothing: `tidelog cluster reset`.",
        )
    listed = [topology.members[copy.member] for copy in copies.in_sync]
    away = [known for known in listed if not known.present]
    never = [known for known in away if known.boot == 0]
    names = _names(never or away or listed)
    names += f", which {'is' if len(away) == 1 else 'are'} away" * bool(away and not never)
    if never:
        text = f"waits for {names} to be there for the first time: the cluster has just begun"
        hint = "Start what has not been started yet, or try again in some seconds."
    elif not away:
        text = f"is about to be opened: all who have copies, {names}, were started again"
        hint = "Try again in some seconds."
    elif len(away) < len(listed):
        text = f"waits for {names}: all who have copies ended together"
        hint = "Start what is away, or wait some seconds: then those who are back go on."
    else:
        text = f"is unavailable: its data is at {names}"
        hint = (
            "Start that member again: everything that was acknowledged is on its disk."
            if len(away) == 1
            else "Start these members again: everything that was acknowledged is on their disks."
        )
    return PartitionUnavailableError(
        f"partition {partition} {text}", partition=partition, hint=hint
    )
