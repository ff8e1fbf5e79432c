"""Numbers that copies lack: below their HWM, not applied.

Numbers of transactions that are under way are among them for a moment.  What stays, stays until its
transaction has an outcome, or until a copy that comes back has been sent it.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .shares import Share
from .standing import HeldPartition, Picture

GAP_COLUMNS = ("partition", "member", "here", "lwm", "hwm", "missing", "gaps")
SHOWN_MAX = 4
"""Gaps of a copy that people are shown."""


def gap_rows(picture: Picture, shares: Sequence[Share]) -> list[dict[str, Any]]:
    """Return the copies that lack numbers, by partition, as the members that answer tell it."""
    rows = []
    for share in shares:
        for name, answer in picture.answers.items():
            if share.partition < len(answer.held):
                held = answer.held[share.partition]
                if held.hwm > held.lwm:
                    rows.append(_row(share, name, held))
    return rows


def _row(share: Share, name: str, held: HeldPartition) -> dict[str, Any]:
    here = "primary" if name == share.primary else "copy" if name in share.in_sync else "stale"
    gaps = gaps_of(held)
    return {
        "partition": share.partition,
        "member": name,
        "here": here,
        "lwm": held.lwm,
        "hwm": held.hwm,
        "missing": sum(last - first + 1 for first, last in gaps),
        "gaps": gaps,
    }


def gaps_of(held: HeldPartition) -> list[list[int]]:
    """Return the first and the last number of each run that is not applied, up to the HWM."""
    gaps, applied = [], held.lwm
    for start, count in held.ranges:
        gaps.append([applied + 1, start])
        applied = start + count
    if applied < held.hwm:
        gaps.append([applied + 1, held.hwm])
    return gaps


def gap_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for people."""
    gaps = [f"{first}-{last}" for first, last in row["gaps"][:SHOWN_MAX]]
    more = len(row["gaps"]) - SHOWN_MAX
    return {**row, "gaps": ", ".join(gaps) + f" and {more} more" * (more > 0)}
