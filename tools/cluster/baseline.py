"""Who of a cluster votes, who holds data, and who is on the way in or out, as members tell it.

======== ==========================================================================
stage    what it means
======== ==========================================================================
in       it is of the baseline: it votes, and holds its part, or gets it
joining  it is of the file, and the cluster does not know it yet
entering it is known, and enters the baseline when it has been there for long enough
waiting  it is known, and enters when somebody asks for it
leaving  it is of the baseline until others hold what it holds, or it has something still
out      it has left: it holds nothing, and votes for nothing
======== ==========================================================================

Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal
from uuid import UUID

from .cluster_file import start_text
from .shares import Share
from .standing import MemberStatus, Picture

Stage = Literal["in", "joining", "entering", "waiting", "leaving", "out", "lost"]

SEAT_COLUMNS = ("member", "stage", "votes", "holds", "state", "copies", "to_come", "to_go")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a member is to the baseline, and what it holds; it is named."""

    member: str
    stage: Stage
    votes: bool
    voter: bool
    """Whether it holds no data, and never will."""
    state: str
    copies: int
    """Of how many partitions it has a copy that counts."""
    to_come: int
    """Of how many it gets one; of those that are lost nobody does."""
    to_go: int
    """How many it lets others have; none of those that are lost."""
    wanted: bool | None
    """Whether somebody has asked that it enters, or leaves; None if nobody has."""


def seats_of(picture: Picture, shares: Sequence[Share]) -> list[Seat]:
    """Return all members, in the order of the file; none if nobody tells of them."""
    newest = picture.newest
    if newest is None:
        return []
    of_file = {member.id: member.voter for member in picture.cluster.members}
    members = [*of_file, *(member for member in newest.known if member not in of_file)]
    return [
        _seat_of(member, of_file.get(member, False), newest, picture, shares) for member in members
    ]


def _seat_of(
    member: UUID, voter: bool, newest: MemberStatus, picture: Picture, shares: Sequence[Share]
) -> Seat:
    [name] = picture.names_of([member])
    copies = [share for share in shares if name in share.in_sync]
    going_on = [share for share in shares if not share.lost]
    return Seat(
        member=name,
        stage=_stage_of(member, newest, holds=bool(copies)),
        votes=member in newest.baseline,
        voter=voter or member in newest.voters,
        state=picture.state_of(name),
        copies=len(copies),
        to_come=sum(name in share.wanted and name not in share.in_sync for share in going_on),
        to_go=sum(name in share.in_sync and name not in share.wanted for share in going_on),
        wanted=newest.wanted.get(member),
    )


def _stage_of(member: UUID, newest: MemberStatus, *, holds: bool) -> Stage:
    wanted = newest.wanted.get(member)
    if member in newest.lost_members:
        return "lost"
    if member not in newest.known:
        return "joining"
    if wanted is False:
        return "leaving" if holds or member in newest.baseline else "out"
    if member in newest.baseline:
        return "in"
    return "entering" if wanted or newest.auto_join else "waiting"


def is_settled(picture: Picture, shares: Sequence[Share]) -> bool:
    """Tell whether the partitions are with those among whom they shall be divided."""
    newest = picture.newest
    if newest is None or not shares:
        return False
    holding = {
        member
        for member in newest.baseline
        if member not in newest.voters and newest.wanted.get(member) is not False
    }
    return {*newest.placed} == holding and not any(share.moving for share in shares)


def changes_text(seats: Sequence[Seat], shares: Sequence[Share]) -> str | None:
    """Return in a line who is on the way in or out, and how much moves; None if nothing is."""
    parts = []
    for stage in ("joining", "entering", "waiting", "leaving"):
        names = [seat.member for seat in seats if seat.stage == stage]
        if names:
            parts.append(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {stage}")
    moving = sum(share.moving for share in shares)
    if moving:
        is_or_are = "is" if moving == 1 else "are"
        parts.append(f"{moving} of {len(shares)} partitions {is_or_are} on the way to others")
    return "; ".join(parts) or None


def seat_text(seat: Seat) -> dict[str, Any]:
    """Return the row of a member for people."""
    return {**asdict(seat), "holds": "nothing" if seat.voter else "data"}


def advice(seats: Sequence[Seat], folder: str) -> list[str]:
    """Return lines that tell what somebody may do."""
    place, lines = shlex.quote(folder), []
    leaving = [seat.member for seat in seats if seat.stage == "leaving" and seat.copies]
    if leaving and not any(one.stage in ("in", "entering") and not one.voter for one in seats):
        lines.append(
            "nobody is to hold data: let a member stay, "
            f"`tidelog cluster baseline add {place} {leaving[0]}`, or let another one join"
        )
    for seat in seats:
        name = seat.member
        if seat.stage == "joining" and seat.state == "down":
            lines.append(f"{name} is not known yet: `tidelog cluster join {place} {name}`")
        elif seat.stage == "waiting":
            lines.append(
                f"{name} waits to be asked for: `tidelog cluster baseline add {place} {name}`"
            )
        elif seat.stage == "entering" and seat.state == "down":
            lines.append(
                f"{name} is away, and enters once it is there: {start_text(folder, name)}; if it "
                f"is to stay away, `tidelog cluster baseline remove {place} {name}`"
            )
        elif seat.stage == "lost" and seat.votes:
            lines.append(
                f"{name} was declared lost, and its vote is missing until "
                + (
                    f"its lost partitions go on: `tidelog cluster losses {place}` lists them"
                    if seat.copies
                    else "others hold what it held"
                )
            )
        elif seat.stage == "in" and seat.state == "silent":
            lines.append(
                f"{name} does not answer, and its vote is missing: `tidelog cluster status "
                f"{place}` tells what to do"
            )
        elif seat.stage == "in" and seat.state == "down":
            lines.append(
                f"{name} is away, and its vote is missing: {start_text(folder, name)}; "
                f"if its disk is gone, `tidelog cluster lose {place} {name}`"
            )
        elif seat.stage == "leaving" and seat.state == "down" and seat.copies:
            lines.append(
                f"{name} is away, and others are to get what it holds: "
                f"{start_text(folder, name)}; if its disk is gone, "
                f"`tidelog cluster lose {place} {name}`"
            )
    return lines


def baseline_fields(picture: Picture, shares: Sequence[Share]) -> Mapping[str, Any]:
    """Return what `tidelog cluster baseline show` tells, as JSON has it."""
    seats, newest = seats_of(picture, shares), picture.newest
    return {
        "decided": newest.decided if newest else None,
        "auto_join": newest.auto_join if newest else None,
        "partitions_moving": sum(share.moving for share in shares),
        "changes": changes_text(seats, shares),
        "members": [asdict(seat) for seat in seats],
    }
