"""What keeps a cluster from serving everything with all copies, and what to do about it.

Each *block* is about some partitions or members, says in a sentence what is so, and what comes
next: what somebody can do, or that it goes by itself.  The worst one comes first.

Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...engine.system.layout import SERVER_LOG_NAME
from .cluster_file import ELSEWHERE, start_text
from .shares import Share
from .standing import Picture

LAG_S = 0.25
"""Seconds in which a copy may store nothing of what it lacks before that is in the way."""
RANGES_SHOWN = 6
"""Stretches of partitions that a sentence names."""

_Key = TypeVar("_Key", bound=Hashable)

PHASES = {
    "reports": "waits for the reports of {}",
    "logging": "writes the list of what counts",
    "storing": "waits until the list is stored at {}",
    "opening": "writes that they are open",
    "stuck": "waits for a set without copies that lack what they must have",
}
"""What an author does in each phase of a takeover, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Something that is in the way."""

    kind: str
    """``majority``, ``coordinator``, ``log``, ``data``, ``lost``, ``unavailable``, ``takeover``,
    ``lease``, ``few``, ``lag`` or ``copies``."""
    partitions: tuple[int, ...] = ()
    members: tuple[str, ...] = ()
    """Who it is about: whose disk is needed, or who is waited for."""
    text: str
    next: str


def partitions_text(partitions: Sequence[int]) -> str:
    """Return how many there are, and which: ``3 partitions (0, 4-5)``."""
    stretches: list[list[int]] = []
    for number in sorted(partitions):
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1][1] = number
        else:
            stretches.append([number, number])
    shown = [str(one) if one == last else f"{one}-{last}" for one, last in stretches]
    if len(shown) > RANGES_SHOWN:
        shown[RANGES_SHOWN:] = ["..."]
    count = len(partitions)
    return f"{count} partition{'s' * (count != 1)} ({', '.join(shown)})"


def phase_text(phase: str | None, waits_for: Sequence[str]) -> str:
    """Return what an author does in a phase, and whom it waits for."""
    return PHASES.get(phase or "", "has not heard of it yet").format(names_text(waits_for))


def blocks_of(picture: Picture, shares: Sequence[Share], folder: str) -> list[Blocker]:
    """Return what is in the way of a cluster in a directory, the worst first."""
    if not picture.statuses:
        return [_nobody(picture, folder)]
    return [
        *_too_few(picture, shares, folder),
        *_no_coordinator(picture),
        *_disks(picture, folder),
        *_unavailable(picture, shares, folder),
        *_openings(picture, shares),
        *_dues(picture, shares, folder),
        *_leases(picture, shares),
        *_unwritten(picture, shares, folder),
        *_lags(picture),
        *_copies(picture, shares, folder),
    ]


def blocks_about(share: Share, blocks: Iterable[Blocker]) -> list[Blocker]:
    """Return those that are in the way of one partition."""
    return [
        block
        for block in blocks
        if share.partition in block.partitions
        or block.kind == "majority"
        or (block.kind == "log" and block.members[0] in share.in_sync)
    ]


def _nobody(picture: Picture, folder: str) -> Blocker:
    silent = picture.away(lambda answer: answer.pid > 0)
    if silent:
        return Blocker(
            kind="majority",
            members=tuple(silent),
            text=f"no member answers; of {names_text(silent)} there is a process",
            next=f"wait a moment; if it stays so, look into {SERVER_LOG_NAME} of each member",
        )
    return Blocker(
        kind="majority",
        members=tuple(picture.answers),
        text="no member runs",
        next="`tidelog server run DIR` on the machine of each member, with its directory"
        if folder.startswith(ELSEWHERE)
        else f"`tidelog cluster up --dir {shlex.quote(folder)}`",
    )


def _too_few(picture: Picture, shares: Iterable[Share], folder: str) -> list[Blocker]:
    if picture.majority:
        return []
    voting = picture.voting
    members, away = len(voting), [name for name in voting if picture.state_of(name) != "up"]
    missing = members // 2 + 1 - (members - len(away))
    if missing <= 0:
        return [
            Blocker(
                kind="majority",
                members=tuple(voting),
                text=f"no coordinator leads, though {members - len(away)} of {members} members "
                "answer: nothing can be decided, and nothing is served",
                next="wait some seconds; if it stays so, they do not reach each other: look into "
                f"{SERVER_LOG_NAME} of each member",
            )
        ]
    needed = {name for share in shares if share.state == "unavailable" for name in share.in_sync}
    may_come = picture.not_lost(away)
    gone = picture.gone(may_come)
    first = sorted(may_come, key=lambda name: (name in gone, name not in needed))
    if len(may_come) - len(gone) >= missing:
        what_next = f"start {missing} of them: {_start(picture, first, folder)}"
        what_next += f"; {_lose(gone, folder)}" if gone else ""
    else:
        place = shlex.quote(folder)
        what_next = f"{_bring_back(gone)}; " if gone else ""
        what_next += (
            "if most disks are gone for good, take all down, and make a "
            f"cluster of those that are left: `tidelog cluster rescue {place}`"
        )
    do_not = "does not answer" if len(away) == 1 else "do not answer"
    return [
        Blocker(
            kind="majority",
            members=tuple(away),
            text=f"{names_text(away)} {do_not}, and {members // 2 + 1} of {members} members are "
            "needed for a majority: nothing can be decided, and nothing is served",
            next=what_next,
        )
    ]


def _no_coordinator(picture: Picture) -> list[Blocker]:
    leading = picture.leading
    if leading is None or picture.state_of(leading) == "up":
        return []
    return [
        Blocker(
            kind="coordinator",
            members=(leading,),
            text=f"{leading}, which led, does not answer: leases end, and nothing can be decided",
            next="wait some seconds: another member leads by then",
        )
    ]


def _disks(picture: Picture, folder: str) -> list[Blocker]:
    found = []
    for name, answer in picture.answers.items():
        log, data = answer.failures
        if log is not None:
            kind, text = "log", f"{name} writes nothing any more, as its log failed: {log}"
        elif data is not None:
            kind = "data"
            text = f"{name} takes no checkpoints and no full copies any more: {data}"
        else:
            continue
        mended = f"mend its disk, then end it and start it again: {_again(name, folder)}"
        found.append(Blocker(kind=kind, members=(name,), text=text, next=mended))
    return found


def _unavailable(picture: Picture, shares: Iterable[Share], folder: str) -> list[Blocker]:
    closed = [share for share in shares if share.state == "unavailable"]
    found = _lost(picture, [share for share in closed if share.lost], folder)
    wanted = [share for share in closed if not share.lost]
    for in_sync, partitions in _grouped(wanted, lambda share: _wanted(picture, share)):
        left = [name for name in in_sync if name not in picture.gone(in_sync)]
        start = f"start {names_text(left, 'or')}: " if left else ""
        disks = " and on that of ".join(in_sync)
        found.append(
            Blocker(
                kind="unavailable",
                partitions=partitions,
                members=in_sync,
                text=f"{_are(partitions)} unavailable: what was written is on the disk of "
                f"{disks}, and nowhere else for sure",
                next=start + _start(picture, left or in_sync, folder),
            )
        )
    return found


def _wanted(picture: Picture, share: Share) -> tuple[str, ...]:
    in_sync = sorted(share.in_sync)
    return tuple(picture.not_lost(in_sync) or in_sync)


def _lost(picture: Picture, shares: Sequence[Share], folder: str) -> list[Blocker]:
    left = {one.name for one in picture.cluster.members if not picture.is_lost(one)}
    place, found = shlex.quote(folder), []
    for has_copies, partitions in _grouped(
        shares, lambda share: not left.isdisjoint([*share.row, *share.goal])
    ):
        reset = f"`tidelog cluster reset {place} {' '.join(map(str, partitions))}"
        found.append(
            Blocker(
                kind="lost",
                partitions=partitions,
                text=f"{_are(partitions)} lost: the disks of all who had copies that count are "
                "gone",
                next="start everybody who may have a newer copy, then let them go on from the best "
                f"copies that are left, or with nothing (--empty): {reset}`"
                if has_copies
                else f"let them begin with nothing: {reset} --empty --yes`",
            )
        )
    return found


def _openings(picture: Picture, shares: Iterable[Share]) -> list[Blocker]:
    found = []
    opening = (share for share in shares if share.state == "opening")
    for key, partitions in _grouped(opening, lambda s: (s.primary, s.phase, s.waits_for)):
        primary, phase, waits_for = key
        what = phase_text(phase, waits_for)
        found.append(
            Blocker(
                kind="takeover",
                partitions=partitions,
                members=waits_for or (primary,),
                text=f"{_are(partitions)} being taken over by {primary}, which {what}",
                next=f"look for `node.copy_lacks` in {SERVER_LOG_NAME} of {primary}: a disk has "
                "lost what was synced"
                if phase == "stuck"
                else f"wait: who says nothing for {_seconds(picture, 'replica_timeout')} is left "
                f"out; if it stays so, look into {SERVER_LOG_NAME} of "
                f"{names_text(waits_for or (primary,))}",
            )
        )
    return found


def _dues(picture: Picture, shares: Iterable[Share], folder: str) -> list[Blocker]:
    if not picture.majority:
        return []  # nothing can be decided: that is told already
    due = [share for share in shares if share.state == "due"]
    found = []
    going_on = (share for share in due if share.stayed or not _away(picture, share))
    for key, partitions in _grouped(going_on, lambda s: (s.primary, _there(picture, s))):
        primary, there = key
        by = "itself, as it was started again" if there == (primary,) else names_text(there, "or")
        found.append(
            Blocker(
                kind="takeover",
                partitions=partitions,
                members=there,
                text=f"{_are(partitions)} about to be taken over from {primary} by {by}",
                next=f"wait some seconds, until the lease of {primary} has ended",
            )
        )
    waiting = (share for share in due if not share.stayed and _away(picture, share))
    for away, partitions in _grouped(waiting, lambda share: _away(picture, share)):
        found.append(
            Blocker(
                kind="takeover",
                partitions=partitions,
                members=away,
                text=f"{_are(partitions)} waiting for {names_text(away)}: all who have copies "
                "ended together, and all are to come back",
                next=f"{_start(picture, away, folder)}; after {_seconds(picture, 'restart_wait')} "
                "those who are back go on",
            )
        )
    return found


def _there(picture: Picture, share: Share) -> tuple[str, ...]:
    return tuple(sorted(name for name in share.in_sync if picture.state_of(name) == "up"))


def _away(picture: Picture, share: Share) -> tuple[str, ...]:
    away = (name for name in share.in_sync if picture.state_of(name) != "up")
    return tuple(picture.not_lost(sorted(away)))


def _leases(picture: Picture, shares: Iterable[Share]) -> list[Blocker]:
    if not picture.majority or _no_coordinator(picture):
        return []
    waiting = (share for share in shares if share.state == "waiting")
    return [
        Blocker(
            kind="lease",
            partitions=partitions,
            members=(primary,),
            text=f"{_are(partitions)} open at {primary}, which has no lease",
            next="wait some seconds: a coordinator that leads gives leases",
        )
        for primary, partitions in _grouped(waiting, lambda share: share.primary)
    ]


def _unwritten(picture: Picture, shares: Iterable[Share], folder: str) -> list[Blocker]:
    """Return what a user who sees everything served would not notice: writes are refused."""
    least = picture.cluster.min_in_sync
    few = [share for share in shares if len(share.in_sync) < least]
    if not few:
        return []
    partitions = tuple(share.partition for share in few)
    missing = tuple(sorted({name for share in few for name in share.missing}))
    return [
        Blocker(
            kind="few",
            partitions=partitions,
            members=missing,
            text=f"{_are(partitions)} not written any more: fewer than {least} copies are in sync "
            "(`--min-in-sync`); reads go on",
            next=_let_catch_up(picture, missing, folder),
        )
    ]


def _lags(picture: Picture) -> list[Blocker]:
    found = []
    for name, answer in picture.answers.items():
        told = answer.status.lagging if answer.status else ()
        lagging = [lag for lag in told if lag.seconds >= LAG_S]
        for copy in sorted({lag.member for lag in lagging}):
            rows = [lag for lag in lagging if lag.member == copy]
            items, seconds = sum(lag.items for lag in rows), max(lag.seconds for lag in rows)
            partitions = tuple(sorted(lag.partition for lag in rows))
            [lags] = picture.names_of([copy])
            found.append(
                Blocker(
                    kind="lag",
                    partitions=partitions,
                    members=(lags,),
                    text=f"{lags} has not stored {items} item{'s' * (items != 1)} of "
                    f"{partitions_text(partitions)} of {name}, and nothing of one for "
                    f"{seconds:.1f} s",
                    next="while there is work this comes and goes, and writes wait for it; a copy "
                    f"that stores nothing for {_seconds(picture, 'replica_timeout')} is taken out "
                    "of its set",
                )
            )
    return found


def _copies(picture: Picture, shares: Iterable[Share], folder: str) -> list[Blocker]:
    lacking: dict[str, list[int]] = {}
    for share in shares:
        # Where nobody serves nobody sends either: how that goes on is told apart from this.
        for name in share.missing if share.state != "unavailable" else ():
            lacking.setdefault(name, []).append(share.partition)
    found = []
    for name, partitions in sorted(lacking.items()):
        found.append(
            Blocker(
                kind="copies",
                partitions=tuple(partitions),
                members=(name,),
                text=f"{name} has no copy that counts of {partitions_text(partitions)}: it was "
                + (
                    "away, or said nothing, while the others went on"
                    if picture.not_lost([name])
                    else "declared lost"
                ),
                next=_let_catch_up(picture, [name], folder),
            )
        )
    return found


# ------------------------------------------------------------------ words


def _grouped(
    shares: Iterable[Share], key: Callable[[Share], _Key]
) -> list[tuple[_Key, tuple[int, ...]]]:
    """Return the partitions of each group, in the order in which groups begin."""
    found: dict[_Key, list[int]] = {}
    for share in shares:
        found.setdefault(key(share), []).append(share.partition)
    return [(one, tuple(partitions)) for one, partitions in found.items()]


def _are(partitions: Sequence[int]) -> str:
    return f"{partitions_text(partitions)} {'is' if len(partitions) == 1 else 'are'}"


def names_text(names: Sequence[str], word: str = "and") -> str:
    """Return names as a sentence has them."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {word} {names[-1]}"


def _let_catch_up(picture: Picture, names: Sequence[str], folder: str) -> str:
    """Return what lets copies come back that are in no set."""
    names = picture.not_lost(names)
    if not names:
        return "nothing: others get copies of what was there, as far as there are members"
    away = [name for name in names if picture.state_of(name) != "up"]
    gone = picture.gone(away)
    if away and len(gone) == len(away):
        return f"{_lose(gone, folder)}, then `tidelog cluster join {shlex.quote(folder)}`"
    if away:
        return f"{_start(picture, away, folder)}: it catches up by itself"
    return "nothing: what was missed is being sent, and then it counts again"


def _start(picture: Picture, names: Sequence[str], folder: str) -> str:
    """Return the command for the first of some members that can be started.

    If none can, as all these disks are gone, return what to do then: without a majority nobody can
    be declared lost.
    """
    gone = picture.gone(names)
    down = [name for name in names if picture.state_of(name) == "down" and name not in gone]
    if down:
        return start_text(folder, down[0])
    if len(gone) == len(names):
        return _lose(gone, folder) if picture.majority else _bring_back(gone)
    silent = next(name for name in names if name not in gone)
    return f"a process is there, and does not answer; {_again(silent, folder)}"


def _bring_back(gone: Sequence[str]) -> str:
    if len(gone) == 1:
        return f"the disk of {gone[0]} is gone: bring its directory back"
    return f"the disks of {names_text(gone)} are gone: bring their directories back"


def _lose(gone: Sequence[str], folder: str) -> str:
    """Return what to do about disks that are gone; a command names the first."""
    if_lost = "it is gone for good" if len(gone) == 1 else "they are gone for good, one by one"
    command = f"`tidelog cluster lose {shlex.quote(folder)} {gone[0]}`"
    return f"{_bring_back(gone)}; if {if_lost}: {command}"


def _again(name: str, folder: str) -> str:
    if folder.startswith(ELSEWHERE):
        return f"`kill` its process there, then {start_text(folder, name)}"
    return f"`tidelog cluster kill {shlex.quote(folder)} {name}`, {start_text(folder, name)}"


def _seconds(picture: Picture, name: str) -> str:
    newest = picture.newest
    seconds = newest.timing.get(name) if newest else None
    return "some time" if seconds is None else f"{seconds:g} s"
