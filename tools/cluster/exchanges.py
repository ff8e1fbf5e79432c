"""The exchanges that the members of a cluster saw lately, as one list.

Pure.  An answer that is not of the form of ``docs/client-protocol.md`` is a ``ClusterError``.

Invariants:

- An exchange that any member remembers has one row, whoever else was away then.
- Times are those of the members: each was measured by one clock.
- If nobody tells how a takeover went, as who knew has ended since, that is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from .blocks import PHASES, names_text, partitions_text, phase_text
from .standing import Picture, in_form, uuids_of

EXCHANGE_COLUMNS = (
    "decision", "age", "cause", "taken_over", "removed", "admitted", "added", "blocked", "slowest",
    "phases", "state",
)  # fmt: skip

_CAUSES = {
    "joined": "{} joined",
    "restarted": "{} {was} started again",
    "gone": "{} {has} gone",
    "from_gone": "{others} {take} over from {}, which has gone",
    "from_older": "{others} {take} over from {}, which was started again",
    "from_itself": "{} {take} over from itself, as it was started again",
    "moved": "{} {hand} over to {others}",
    "without": "{} {go} on without {others}",
    "anew": "{} {go} on in another epoch",
    "first": "{others} {serve} for the first time",
    "removed": "{} removed",
    "admitted": "{} admitted",
    "added": "{} added",
}
_ONE = {
    "was": "was", "has": "has", "take": "takes", "serve": "serves", "hand": "hands", "go": "goes",
}  # fmt: skip
_SEVERAL = {
    "was": "were", "has": "have", "take": "take", "serve": "serve", "hand": "hand", "go": "go",
}  # fmt: skip
_TELLS_OF = {"from_gone": "gone", "from_older": "restarted"}
"""What a cause says as well, in its words."""


def exchanges_of(picture: Picture, last: int) -> list[dict[str, Any]]:
    """Return the newest exchanges that members tell of, so many at most, the newest last."""
    told: list[tuple[int, str, Mapping[str, Any]]] = []
    with in_form():
        for name, answer in picture.answers.items():
            rows = () if answer.exchanges is None else answer.exchanges["exchanges"]
            told += [(int(row["decision"]), name, row) for row in rows]
        told.sort(key=itemgetter(0))
        grouped = [
            {name: row for _, name, row in rows} for _, rows in groupby(told, key=itemgetter(0))
        ]
        return [_merged(picture, rows) for rows in grouped[max(len(grouped) - last, 0) :]]


def _merged(picture: Picture, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one exchange, of which each of some members said something."""
    one = next(iter(rows.values()))
    causes = [_cause(picture, row) for row in one["causes"]]
    closed = [_seconds(row["closed"], name) for name, row in rows.items() if row["closed"]]
    seconds, slowest, _ = max(closed, default=(None, None, None))
    blocks = [
        {
            "member": name,
            "phase": str(phase),
            "partitions": list(map(int, partitions)),
            "waits_for": picture.names_of(uuids_of(silent)),
        }
        for name, row in rows.items()
        for phase, silent, partitions in row["blocked"]
    ]
    authors = _authors(picture, rows, blocks)
    return {
        "decision": int(one["decision"]),
        "age": max(int(row["ago_us"]) for row in rows.values()) / 1e6,
        "cause": causes_text(causes),
        "causes": causes,
        **{name: int(one[name]) for name in ("taken_over", "removed", "admitted", "added")},
        "blocked": seconds,
        "slowest": slowest,
        "phases": _phases(picture, rows),
        "over": not blocks and not any(one["untold"] for one in authors),
        "authors": authors,
        "blocks": blocks,
        "members": list(rows),
    }


def _seconds(closed: Sequence[int], name: str) -> tuple[float, int, str]:
    return int(closed[0]) / 1e6, int(closed[1]), name


def _authors(
    picture: Picture, rows: Mapping[str, Mapping[str, Any]], blocks: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return what became of the takeovers of each author.

    Who opened one knows that before the others, so the most that anybody says is right, and who
    takes it for superseded or just ended then has not heard.
    """
    waiting = Counter[str]()
    for block in blocks:
        waiting[block["member"]] += len(block["partitions"])
    counts, opened, ended = Counter[str](), Counter[str](), Counter[str]()
    superseded: dict[str, Counter[int]] = {}
    for row in rows.values():
        for author, *told, by in row["authors"]:
            [name] = picture.names_of(uuids_of([author]))
            for kept, number in zip((counts, opened, ended), told, strict=True):
                kept[name] = max(kept[name], int(number))
            superseded.setdefault(name, Counter())
            superseded[name] |= Counter({int(index): int(number) for index, number in by})
    found = []
    for name, count in sorted(counts.items()):
        left = max(count - opened[name] - waiting[name], 0)
        later = {}
        for index, number in sorted(superseded[name].items(), reverse=True):
            if taken := min(number, left):
                later[str(index)] = taken
                left -= taken
        found.append(
            {
                "member": name,
                "taken_over": count,
                "opened": opened[name],
                "superseded": dict(sorted(later.items(), key=lambda row: int(row[0]))),
                "untold": left - min(ended[name], left),
            }
        )
    return found


def _phases(picture: Picture, rows: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what took longest in each phase, at any member."""
    found: dict[str, dict[str, Any]] = {}
    for name, row in rows.items():
        for phase, us, partition, copy in row["phases"]:
            seconds = int(us) / 1e6
            if phase in found and found[phase]["seconds"] >= seconds:
                continue
            waited_for = picture.names_of(uuids_of([copy]))[0] if copy is not None else None
            found[str(phase)] = {
                "phase": str(phase),
                "seconds": seconds,
                "partition": int(partition),
                "member": name,
                "waited_for": waited_for,
            }
    return sorted(found.values(), key=lambda row: [*PHASES, row["phase"]].index(row["phase"]))


def _cause(picture: Picture, row: Sequence[Any]) -> dict[str, Any]:
    kind, member, others, partitions = row
    return {
        "kind": str(kind),
        "member": None if member is None else picture.names_of(uuids_of([member]))[0],
        "others": sorted(picture.names_of(uuids_of(others))),
        "partitions": int(partitions),
    }


def causes_text(causes: Sequence[Mapping[str, Any]]) -> str:
    """Return in words why an exchange began; what one cause says of another is said once."""
    said = {(_TELLS_OF.get(cause["kind"]), cause["member"]) for cause in causes}
    members: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for cause in causes:
        if (cause["kind"], cause["member"]) not in said:
            itself = cause["others"] == [cause["member"]]
            kind = "from_itself" if itself else cause["kind"]
            if kind == "without" and not cause["others"]:
                kind = "anew"
            about = members.setdefault((kind, tuple(cause["others"])), [])
            about += [cause["member"]] * (cause["member"] is not None)
    return "; ".join(_cause_text(*key, names) for key, names in members.items())


def _cause_text(kind: str, others: Sequence[str], members: Sequence[str]) -> str:
    form = _CAUSES.get(kind, f"{{}} {kind}")
    who = others if form.startswith("{others}") else members
    words = _SEVERAL if len(who) > 1 else _ONE
    return form.format(names_text(members), others=names_text(others), **words)


def exchange_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of an exchange for people: times and states in words."""
    shown = {**row, "age": f"{row['age']:.1f} s"}
    for name in ("taken_over", "removed", "admitted", "added"):
        shown[name] = row[name] or None
    if row["blocked"] is not None:
        shown["blocked"] = f"{row['blocked']:.3f} s"
    shown["phases"] = [
        f"{one['phase']} {one['seconds']:.3f} s"
        + (f" ({one['waited_for']})" if one["waited_for"] else "")
        for one in row["phases"]
    ]
    shown["state"] = "; ".join(_states(row))
    return shown


def _states(row: Mapping[str, Any]) -> list[str]:
    """Return what blocks an exchange, and what it left to others."""
    states = [
        f"{block['member']} {phase_text(block['phase'], block['waits_for'])}: "
        + partitions_text(block["partitions"])
        for block in row["blocks"]
    ]
    states += [
        f"{one['member']} has not told of {one['untold']}"
        for one in row["authors"]
        if one["untold"]
    ]
    if row["over"]:
        states.append("over")
    later = Counter[str]()
    for one in row["authors"]:
        later.update(one["superseded"])
    return states + [f"{count} superseded by {index}" for index, count in later.items()]
