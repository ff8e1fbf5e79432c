"""Lets members join a cluster on this machine, enter its baseline, and leave it.

    join     describe (cluster.toml) -> start its process, which joins -> wait until it has its part
    add      ask for it -> wait until it has its part
    remove   ask for it -> wait until others hold what it held, and it votes no more

Invariants:

- Whatever was asked for goes on by itself: who stops waiting has undone nothing, and each of these
  can be given again.

Left out: how a member joins (``tidelog server run --join``), and what a cluster does then
(``engine.agreement``).
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...affinity.errors import ClusterError, NotEnoughMembersError, UsageError
from ...engine.agreement.identity import member_id
from ...engine.system.environment import address_text
from ...engine.system.layout import MANIFEST_NAME
from ..server.members import check_member_name, parsed_address
from ..shell.exits import NotServedError, RefusedError
from .baseline import Seat, advice, changes_text, is_settled, seats_of
from .cluster_file import ELSEWHERE, LocalCluster, LocalMember, start_text, write_cluster
from .elsewhere import found_cluster
from .running import (
    HOST,
    TellUser,
    ask_somebody,
    changing,
    check_ended,
    free_ports,
    look,
    show_logs,
)
from .shares import Share, shares_of
from .standing import Picture

CHANGED_S_MAX = 120.0
"""Seconds in which a member has entered, or left, and partitions have moved."""
TELL_S = 1.0
"""Seconds between lines that tell how far it is."""
PAUSE_S = 0.1

IsSo = Callable[[Seat], bool]


def newcomer_of(
    folder: str, cluster: LocalCluster, name: str | None, *, voter: bool, base_port: int | None
) -> LocalMember:
    """Return who joins: who is named, who has not come to an end of it, or somebody new.

    Who is new is written down.  ``NotEnoughMembersError`` if nobody could decide it.
    """
    picture = look(folder, cluster)
    if not picture.statuses:
        raise NotEnoughMembersError(
            "no member answers, and so nobody can join",
            hint=f"Start the cluster first: `tidelog cluster up --dir {shlex.quote(folder)}`.",
        )
    voting = picture.voting
    there = [one for one in voting if picture.state_of(one) == "up"]
    if not picture.majority and len(there) <= len(voting) // 2:
        raise NotEnoughMembersError(
            f"{len(there)} of the {len(voting)} members that vote answer, and without a majority "
            "nobody can join",
            hint=f"Start the others: `tidelog cluster status {shlex.quote(folder)}` names them.",
        )
    found = next((one for one in cluster.members if one.name == name), None)
    if name is None:
        seats = {seat.member: seat for seat in seats_of(picture, shares_of(picture))}
        under_way = ("joining", "entering")
        joined = (one for one in cluster.members if one.joined)
        found = next((one for one in joined if seats[one.name].stage in under_way), None)
    if found is None:
        return _new_member(folder, cluster, name or _next_name(folder, cluster), voter, base_port)
    check_may_come(folder, picture, found)
    if not found.joined:
        raise UsageError(
            f"{found.name} is one of those that began the cluster",
            hint="Give another name, or none.",
        )
    if voter and not found.voter:
        raise UsageError(
            f"{found.name} is described already, as one that holds data",
            hint="Leave --voter out, or give another name.",
        )
    return found


def check_may_come(folder: str, picture: Picture, member: LocalMember) -> None:
    """Raise ``RefusedError`` for a member whose disk is lost: it does not come back.

    ``NotEnoughMembersError`` if nobody tells whether one without a disk has had one.
    """
    place = shlex.quote(folder)
    elsewhere = folder.startswith(ELSEWHERE)
    anew = "`tidelog server run --join`" if elsewhere else f"`tidelog cluster join {place}`"
    seats = {seat.member: seat for seat in seats_of(picture, shares_of(picture))}
    seat = seats.get(member.name)
    if picture.is_lost(member):
        raise RefusedError(
            f"{member.name} was declared lost: it never comes back",
            hint=f"Let a new member join: {anew}. What its disk has stays there.",
        )
    directory = os.path.join(folder, member.directory)
    if not member.joined or os.path.exists(os.path.join(directory, MANIFEST_NAME)):
        return
    check_ended(member.name, directory)
    if seat is None:
        raise NotEnoughMembersError(
            f"{member.name} has no store, and no member answers that tells whether it had one",
            hint=f"Start the cluster first: `tidelog cluster up --dir {place}`.",
        )
    if seat.stage != "joining":
        raise RefusedError(
            f"the disk of {member.name} is gone: {directory} is not there, or has no manifest, and "
            "the cluster knows that member",
            hint="Bring that directory back. If it is gone for good, declare it lost: `tidelog "
            f"cluster lose {place} {member.name}`; then let a new one join: {anew}.",
        )


def _next_name(folder: str, cluster: LocalCluster) -> str:
    """Return the first of n1, n2, ... that nobody has, and no directory of somebody who had it."""
    taken = {member.name for member in cluster.members} | {*os.listdir(folder)}
    return next(name for n in range(1, len(taken) + 2) if (name := f"n{n}") not in taken)


def _new_member(
    folder: str, cluster: LocalCluster, name: str, voter: bool, base_port: int | None
) -> LocalMember:
    check_member_name(name)
    if os.path.lexists(os.path.join(folder, name)):
        raise UsageError(f"there is a {name} in {folder} already", hint="Give another name.")
    taken = {parsed_address(member.address)[1] for member in cluster.members}
    ports = free_ports(base_port or min(taken), len(taken) + 1)
    new = LocalMember(
        name=name,
        id=member_id(cluster.cluster, name),
        address=address_text((HOST, next(port for port in ports if port not in taken))),
        directory=name,
        joined=True,
        voter=voter,
    )
    write_cluster(folder, replace(cluster, members=(*cluster.members, new)))
    return new


def want(
    folder: str, cluster: LocalCluster, name: str, wanted: bool, majority: bool = True
) -> None:
    """Ask for a member to be of the baseline, or not; ``ClusterError`` if that is refused.

    ``majority`` tells whether anything can be decided now.
    """
    said = f"{name} does not {'enter' if wanted else 'leave'}"
    place = shlex.quote(folder)
    too_few = (
        "If too few would stay, let another member join first. "
        f"`tidelog cluster baseline show {place}` tells who holds data, and "
        f"`tidelog cluster status {place}` what is in the way."
    )
    hint = too_few if majority and not wanted else None
    member = cluster.member(name).id.bytes
    ask_somebody(folder, cluster, said, "want", member, wanted, hint=hint)


def note_out(folder: str, name: str, out: bool) -> None:
    """Write down whether a member has left, if it is of the file of a directory."""
    cluster = found_cluster(folder)
    if cluster.member(name).directory and cluster.member(name).out != out:
        with changing(folder):
            write_cluster(folder, found_cluster(folder).with_out(name, out))


def wait_until(folder: str, name: str, wanted: IsSo, tell: TellUser) -> Seat:
    """Wait until a member is as it is wanted, and everything has moved; tell how far it is.

    While others are away, what they are to hold is not waited for, and they are told of.
    """
    deadline = time.monotonic() + CHANGED_S_MAX
    told, told_at = "", time.monotonic()
    while True:
        cluster = found_cluster(folder)
        picture = look(folder, cluster)
        shares = shares_of(picture)
        seats = seats_of(picture, shares)
        seat = next((one for one in seats if one.member == name), None)
        missing = advice(
            [one for one in seats if one.stage in ("in", "entering", "leaving")], folder
        )
        if seat is not None and wanted(seat) and _has_moved(picture, shares, seat):
            for line in missing:
                tell(line)
            return seat
        _check_comes(folder, cluster, picture, seat, wanted)
        changes, now = changes_text(seats, shares), time.monotonic()
        line = "; ".join(filter(None, [changes, *missing]))
        if line and line != told and now >= told_at + TELL_S:
            tell(line)
            told, told_at = line, now
        if now > deadline:
            raise NotServedError(
                f"after {CHANGED_S_MAX:.0f} s it is not so yet: {_left(picture, seats, shares)}",
                hint=f"{_goes_on(missing)} Look with `tidelog cluster baseline show "
                f"{shlex.quote(folder)}`; `tidelog cluster status` tells what is in the way.",
            )
        time.sleep(PAUSE_S)


def _goes_on(missing: Sequence[str]) -> str:
    if not missing:
        return "It goes on by itself."
    return f"{'; '.join(missing)}. Then it goes on by itself."


def _has_moved(picture: Picture, shares: Sequence[Share], seat: Seat) -> bool:
    if is_settled(picture, shares):
        return True
    newest = picture.newest
    if newest is None or not picture.away() or seat.to_come or seat.to_go:
        return False
    holds = seat.stage == "in" and not seat.voter
    return not holds or seat.member in picture.names_of(newest.placed)


def _left(picture: Picture, seats: Sequence[Seat], shares: Sequence[Share]) -> str:
    if not picture.statuses:
        return "no member answers"
    return changes_text(seats, shares) or "the partitions are about to be divided anew"


def _check_comes(
    folder: str, cluster: LocalCluster, picture: Picture, seat: Seat | None, wanted: IsSo
) -> None:
    """Raise ``ClusterError`` if who is to enter has ended."""
    if seat is None or wanted(seat) or seat.stage == "leaving":
        return
    if picture.state_of(seat.member) == "down":
        if cluster.member(seat.member).directory:
            show_logs(folder, cluster, [seat.member])
        raise ClusterError(
            f"{seat.member} does not run, and who is not there does not enter",
            hint=f"Start it: {start_text(folder, seat.member)}.",
        )
