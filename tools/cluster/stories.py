"""The whole story of one partition: what was decided, and what each member has of it.

Pure.  An answer that is not of the form of ``docs/client-protocol.md`` is a ``ClusterError``.

Invariants:

- A member that did not answer has a row, too, which says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from .blocks import Blocker
from .shares import Share
from .standing import Picture, in_form, uuids_of

COPY_COLUMNS = (
    "member", "here", "does", "waits_for", "lwm", "hwm", "gaps", "pending", "stream", "lag",
    "decided", "problem",
)  # fmt: skip

_HERE = {"author": "primary", "copy": "copy", "none": "none"}
"""Beside these: ``back`` has the copy of the set and was started again since, ``stale`` has one
that does not count; ``down`` and ``silent`` do not answer."""


RETURN_COLUMNS = ("member", "boot", "ago", "how", "missing", "why", "instead")


def story_of(picture: Picture, share: Share, blocks: Sequence[Blocker]) -> dict[str, Any]:
    """Return all that members say of a partition, with what is in its way."""
    rows = [_row_of(picture, name, share) for name in picture.answers]
    newest = picture.newest
    tables = {row["member"]: row["epochs"] for row in rows if row["epochs"]}
    longest: list[list[int]] = max(tables.values(), key=lambda table: table[-1], default=[])
    return {
        "partition": share.partition,
        "state": share.state,
        "primary": share.primary,
        "epoch": share.epoch,
        "phase": share.phase,
        "waits_for": list(share.waits_for),
        "open": share.open,
        "leased": share.leased,
        "opened": share.opened,
        "changed": share.changed,
        "decided": newest.decided if newest else None,
        "row": list(share.row),
        "goal": list(share.goal),
        "in_sync": list(share.in_sync),
        "missing": list(share.missing),
        "epochs": tables.get(share.primary, longest),
        "moving": _moving(picture),
        "members": rows,
        "blocks": [asdict(block) for block in blocks],
    }


def _moving(picture: Picture) -> list[str]:
    """Return who is catching up, by whoever knows the newest decisions."""
    stories = [answer.story for answer in picture.answers.values() if answer.story is not None]
    with in_form():
        newest = max(stories, key=lambda story: int(story["decided"]), default=None)
        members = uuids_of(row[0] for row in newest.get("moving", ())) if newest is not None else ()
    return picture.names_of(members)


def returns_of(picture: Picture) -> list[dict[str, Any]]:
    """Return how copies came back to a partition, and why, by those that have served it."""
    rows = []
    for answer in picture.answers.values():
        if answer.story is None:
            continue
        with in_form():
            for member, boot, ago_us, how, missing, why, instead in answer.story.get("returns", ()):
                row = {
                    "member": picture.names_of([UUID(bytes=member)])[0],
                    "boot": int(boot),
                    "ago": int(ago_us) / 1e6,
                    "how": str(how),
                    "missing": int(missing),
                    "why": _named(picture, str(why)),
                    "instead": _named(picture, str(instead)),
                }
                rows.append(row)
    return sorted(rows, key=lambda row: -row["ago"])


def has_told(picture: Picture, name: str) -> bool:
    """Tell whether a member has answered what it has of the partition that was asked for."""
    answer = picture.answers.get(name)
    return answer is not None and answer.story is not None


def _named(picture: Picture, text: str) -> str:
    """Return a text of a member with the names that a user knows."""
    for member, name in picture.names.items():
        text = text.replace(str(member)[:8], name)
    return text


def return_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a return for people."""
    return {**row, "ago": f"{row['ago']:.1f} s"}


def _row_of(picture: Picture, name: str, share: Share) -> dict[str, Any]:
    answer = picture.answers[name]
    row: dict[str, Any] = {**dict.fromkeys(COPY_COLUMNS), "member": name, "here": answer.state}
    row |= {"waits_for": [], "gaps": [], "ranges": [], "pending": [], "epochs": []}
    row |= {"lag": share.lag.get(name), "problem": answer.problem}
    if answer.story is None:
        return row
    with in_form():
        row |= _told(picture, answer.story)
    if row["does"] == "serves" and not share.leased:
        row["does"] = "no lease"
    if row["here"] == "none" and (name in share.in_sync or row["hwm"]):
        row["here"] = "back" if name in share.in_sync else "stale"
    return row


def _told(picture: Picture, story: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a member said, in the words of a row."""
    lwm, ranges = int(story["lwm"]), [(int(low), int(count)) for low, count in story["ranges"]]
    stream, followed = story["stream"], story["followed"]
    told: dict[str, Any] = {
        "here": _HERE[story["here"]],
        "does": _does(story),
        "waits_for": picture.names_of(uuids_of(story["waits_for"])),
        "lwm": lwm,
        "hwm": int(story["hwm"]),
        "gaps": _gaps(lwm, ranges),
        "ranges": [[low + 1, low + count] for low, count in ranges],
        "pending": [bytes(one).hex() for one in story["pending"]],
        "epochs": [[int(epoch), int(start)] for epoch, start in story["epochs"]],
        "decided": int(story["decided"]),
    }
    if stream is not None:
        end, own, everywhere = map(int, stream)
        told["stream"] = {"items": end, "durable": own, "everywhere": everywhere}
        told["followers"] = {
            picture.names_of([UUID(bytes=member)])[0]: int(stored)
            for member, stored in story["followers"]
        }
    elif followed is not None:
        taken, durable = map(int, followed)
        told["stream"] = {"items": taken, "durable": durable}
    return told


def _does(story: Mapping[str, Any]) -> str | None:
    if story["here"] == "author":
        return "serves" if story["open_here"] else str(story["phase"] or "released")
    if story["here"] == "none":
        return None
    if not story["listed"]:
        return "sealed"
    return "follows" if story["followed"][1] else "stored"


def _gaps(lwm: int, ranges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the numbers below the highest one that is applied which are not."""
    gaps = []
    for low, count in ranges:
        gaps.append([lwm + 1, low])
        lwm = low + count
    return gaps


def story_text(story: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a story for people, without the rows of its members."""
    shown = {
        name: value for name, value in story.items() if name not in ("members", "blocks", "phase")
    }
    if len(story["in_sync"]) == 1:
        del shown["opened"]  # nobody is told of that: there is no other copy to take over
    if story["phase"]:
        shown["state"] = f"{story['state']}: {story['phase']}"
    shown["epochs"] = [f"{epoch} from number {start}" for epoch, start in story["epochs"]]
    return shown


def copy_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a member for people: how many are pending, and streams in words."""
    shown = dict(row)
    shown["gaps"] = [f"{first}-{last}" for first, last in row["gaps"]]
    answered = row["decided"] is not None
    shown["pending"] = len(row["pending"]) if answered else None
    if row["stream"]:
        stream = row["stream"]
        shown["stream"] = f"{stream['durable']} of {stream['items']} durable"
        if "everywhere" in stream:
            shown["stream"] += f" and {stream['everywhere']} everywhere"
    return shown
