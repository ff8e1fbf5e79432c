"""What the commands of ``tidelog cluster`` show, as fields and rows.

Pure.  What JSON has is what is returned here; text leaves some of it out (``*_text``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .baseline import changes_text, seats_of
from .blocks import Blocker
from .shares import Share
from .standing import MemberAnswer, Picture

NODE_COLUMNS = (
    "name", "state", "votes", "pid", "address", "boot", "coordinator", "majority", "lease_ms",
    "decided", "partitions", "served", "problem",
)  # fmt: skip
PARTITION_COLUMNS = (
    "partition", "state", "primary", "epoch", "in_sync", "missing", "open", "leased", "lwm", "hwm",
    "lag",
)  # fmt: skip

_NOBODY = MemberAnswer(pid=0)
"""Of a member whose disk was declared lost: it is not asked any more."""

_ONLY_JSON = (
    "baseline", "members_joining", "members_waiting", "members_leaving", "members_out",
    "members_lost", "partitions_moving", "backups_wanted", "blocks",
)  # fmt: skip


def summary_of(
    picture: Picture, shares: Sequence[Share], blocks: Sequence[Blocker]
) -> dict[str, Any]:
    """Return what `tidelog cluster status` shows."""
    newest = picture.newest
    states = Counter(share.state for share in shares)
    waiting = 0 if picture.majority else states["due"]  # nobody takes anything over
    seats, lost = seats_of(picture, shares), newest.lost if newest else ()
    return {
        "cluster": str(picture.cluster.cluster),
        "members": len(picture.answers),
        "members_up": len(picture.statuses),
        "members_away": picture.away(),
        "baseline": picture.voting if newest else None,
        "members_joining": [s.member for s in seats if s.stage in ("joining", "entering")],
        "members_waiting": [seat.member for seat in seats if seat.stage == "waiting"],
        "members_leaving": [seat.member for seat in seats if seat.stage == "leaving"],
        "members_out": [seat.member for seat in seats if seat.stage == "out"],
        "members_lost": [seat.member for seat in seats if seat.stage == "lost"],
        "partitions_moving": sum(share.moving for share in shares),
        "changes": changes_text(seats, shares),
        "majority": picture.majority,
        "coordinator": picture.leading,
        "term": newest.term if newest else None,
        "decided": newest.decided if newest else None,
        "partitions": picture.cluster.partitions,
        "partitions_served": picture.partitions_served,
        "partitions_waiting": states["waiting"] + waiting if shares else None,
        "partitions_taken_over": states["opening"] + states["due"] - waiting if shares else None,
        "partitions_unavailable": states["unavailable"] if shares else None,
        "backups": max((len(share.row) - 1 for share in shares), default=picture.cluster.backups),
        "backups_wanted": picture.cluster.backups,
        "sets_full": sum(not share.missing and share.partition not in lost for share in shares)
        if shares
        else None,
        "copies_lagging": sum(len(share.lag) for share in shares),
        "timing": dict(newest.timing) if newest else None,
        "blocks": [asdict(block) for block in blocks],
    }


def summary_text(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a summary for people: times in a line, and changes if there are any."""
    shown = {name: value for name, value in fields.items() if name not in _ONLY_JSON}
    if not fields["changes"]:
        del shown["changes"]
    if fields["backups"] < fields["backups_wanted"]:
        wanted = fields["backups_wanted"]
        shown["backups"] = f"{fields['backups']}, and {wanted} once there are members for them"
    if fields["timing"] is not None:
        shown["timing"] = timing_text(fields["timing"])
    return shown


def timing_text(timing: Mapping[str, float]) -> str:
    """Return how long members wait, on one line."""
    return ", ".join(
        f"{name.replace('_', ' ')} {seconds:g}{'' if name == 'drift' else ' s'}"
        for name, seconds in timing.items()
    )


def blocks_text(blocks: Sequence[Blocker]) -> list[str]:
    """Return lines that tell what is in the way, and what to do."""
    if not blocks:
        return ["nothing blocks"]
    lines = []
    for block in blocks:
        lines += [f"- {block.text}", f"  next: {block.next}"]
    return lines


def node_rows(picture: Picture) -> list[dict[str, Any]]:
    """Return a row for each member, with its counts beside the columns."""
    newest = picture.newest
    rows = []
    for member in picture.cluster.members:
        answer = picture.answers.get(member.name, _NOBODY)
        status = answer.status
        row: dict[str, Any] = {**dict.fromkeys(NODE_COLUMNS), "counts": {}}
        row |= {
            "name": member.name,
            "state": "lost" if picture.is_lost(member) else answer.state,
            "votes": member.id in newest.baseline if newest else None,
            "pid": answer.pid if answer.pid > 0 else None,
            "address": member.address,
            "problem": answer.problem,
        }
        if status and newest:
            row |= {
                "boot": status.boot,
                "coordinator": picture.leading == member.name,
                "majority": status.majority,
                "lease_ms": status.lease_us // 1000,
                "decided": status.decided,
                "partitions": len(status.partitions),
                "served": status.served,
                "problem": status.log_failure or status.data_failure,
                "counts": dict(status.counts),
            }
        rows.append(row)
    return rows


def partition_rows(shares: Sequence[Share]) -> list[dict[str, Any]]:
    """Return a row for each partition; ``lwm`` and ``hwm`` are those of its primary."""
    return [
        {
            "partition": share.partition,
            "state": share.state,
            "primary": share.primary,
            "epoch": share.epoch,
            "in_sync": list(share.in_sync),
            "missing": list(share.missing),
            "goal": list(share.goal),
            "open": share.open,
            "leased": share.leased,
            "phase": share.phase,
            "waits_for": list(share.waits_for),
            "lwm": share.counters.get(share.primary, (None, None))[0],
            "hwm": share.counters.get(share.primary, (None, None))[1],
            "lag": dict(share.lag),
            "counters": {name: list(both) for name, both in sorted(share.counters.items())},
        }
        for share in shares
    ]


def partition_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a partition for people: the phase with the state, lags by name."""
    shown = dict(row)
    if row["phase"]:
        shown["state"] = f"{row['state']}: {row['phase']}"
    shown["lag"] = [f"{name}:{items}" for name, items in sorted(row["lag"].items())]
    return shown
