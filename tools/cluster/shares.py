"""How each partition of a cluster is: who serves it, and who has copies, as members tell it.

========== ==========================================================================
state      what it means
========== ==========================================================================
served     its epoch is open at its primary, and that has a lease
waiting    its epoch is open at its primary, and that has no lease
opening    its primary has a new epoch, which is not open yet
due        its primary is not there, and another copy, or its next start, takes over
unavailable nobody who has a copy is there
========== ==========================================================================

Pure.

Invariants:

- What a primary serves is what it says itself; of a partition whose primary does not answer
  nothing is known but what was decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from .standing import Blocked, HeldPartition, MemberStatus, Picture

ShareState = Literal["served", "waiting", "opening", "due", "unavailable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A partition as it is now; members are named."""

    partition: int
    state: ShareState
    primary: str
    epoch: int
    opened: bool
    changed: int
    row: tuple[str, ...]
    """Who shall have a copy."""
    goal: tuple[str, ...] = ()
    """Who shall have one in the end, while members enter or leave; none if the row stays."""
    in_sync: tuple[str, ...]
    """Who has all that was acknowledged, by the last decision."""
    stayed: tuple[str, ...]
    """Who of these answers, and was not started again since that decision."""
    open: bool | None = None
    leased: bool | None = None
    phase: str | None = None
    """How far a takeover has come at the primary; None if there is none, or nobody says."""
    waits_for: tuple[str, ...] = ()
    lost: bool = False
    """Whether all who had copies that count are lost."""
    lag: Mapping[str, int]
    """How many items of the stream which copies lack."""
    counters: Mapping[str, tuple[int, int]]
    """LWM and HWM at each copy of the set that answers."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Who should have a copy, and is not in the in-sync set."""
        return tuple(name for name in self.row if name not in self.in_sync)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Who shall have a copy in the end."""
        return self.goal or self.row

    @property
    def moving(self) -> bool:
        """Whether others shall have it than have it now, and not as somebody was away.

        What is lost goes nowhere before it is reset.
        """
        moves = bool(self.goal) or any(name not in self.row for name in self.in_sync)
        return moves and not self.lost


def shares_of(picture: Picture) -> list[Share]:
    """Return how each partition is; none if no member answers, or none knows any."""
    counters: dict[int, dict[str, tuple[int, int]]] = {}
    for name, answer in picture.answers.items():
        for held in answer.held:
            counters.setdefault(held.partition, {})[name] = held.lwm, held.hwm
    lagging: dict[int, dict[str, int]] = {}
    for status in picture.statuses:
        for lag in status.lagging:
            name = picture.names_of([lag.member])[0]
            lagging.setdefault(lag.partition, {})[name] = lag.items
    there = {status.member: status.boot for status in picture.statuses}
    owned = {
        (status.member, status.boot, partition, epoch): (status, is_open, leased)
        for status in picture.statuses
        for partition, epoch, is_open, leased in zip(
            status.partitions, status.epochs, status.open, status.leased, strict=True
        )
    }
    lost = frozenset[int]() if picture.newest is None else picture.newest.lost
    found = []
    for held in picture.held:
        number = held.partition
        in_sync = tuple(picture.names_of(held.in_sync))
        own = owned.get((held.author, held.boot, number, held.epoch))
        blocked = own[0].blocked.get(number) if own else None
        found.append(
            Share(
                partition=number,
                state=_state_of(own, held, there),
                primary=picture.names_of([held.author])[0],
                epoch=held.epoch,
                opened=held.opened,
                changed=held.changed,
                row=tuple(picture.names_of(held.row)),
                goal=tuple(picture.names_of(held.goal)),
                in_sync=in_sync,
                stayed=tuple(
                    name
                    for name, member, boot in zip(in_sync, held.in_sync, held.boots, strict=True)
                    if there.get(member) == boot
                ),
                open=own[1] if own else None,
                leased=own[2] if own else None,
                phase=blocked.phase if blocked else None,
                waits_for=_awaited(blocked, picture),
                lost=number in lost,
                lag=lagging.get(number, {}),
                counters={name: both for name, both in counters[number].items() if name in in_sync},
            )
        )
    return found


def _awaited(blocked: Blocked | None, picture: Picture) -> tuple[str, ...]:
    return tuple(picture.names_of(blocked.waits_for)) if blocked else ()


def _state_of(
    own: tuple[MemberStatus, bool, bool] | None, held: HeldPartition, there: Mapping[UUID, int]
) -> ShareState:
    if own is not None:
        _, is_open, leased = own
        return "opening" if not is_open else "served" if leased else "waiting"
    if there.get(held.author) == held.boot:
        return "opening"  # it has not heard of that decision yet
    return "due" if any(member in there for member in held.in_sync) else "unavailable"
