"""What members tell of transactions of several partitions, as rows.

Pure.  An answer that is not of the form of ``docs/client-protocol.md`` is a ``ClusterError``.

What a partition *says* of a transaction is what its primary has:

=================== ===========================================================================
says                what it means
=================== ===========================================================================
prepared            it is pending there
committed           it has committed there, and is remembered for the others
unknown             nothing is known of it: it was refused, or is forgotten, or was never there
no open primary     nobody can be asked now
=================== ===========================================================================

Invariants:

- A transaction is *in doubt* if a partition has nobody who could open it (T13).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ...checkpoints.replay import State
from ...wal.records import PrepareRecord
from ..cluster.shares import Share
from ..cluster.standing import in_form
from ..shell.text import shown_time

PENDING_COLUMNS = ("tx", "in_doubt", "home", "near", "since", "keys", "partitions")
PART_COLUMNS = ("partition", "member", "here", "outcome", "remembered", "epoch", "numbers")
NO_PRIMARY = "no open primary"


@dataclass(slots=True)
class PendingTx:
    """A transaction that is pending somewhere."""

    tx_id: bytes
    home: int
    near: tuple[UUID, int]
    near_is_there: bool | None
    """Whether it is in the topology; None if nobody tells."""
    since: int
    participants: dict[int, int]
    """Its partitions, with the epochs in which it is prepared."""
    keys: dict[int, int] = field(default_factory=dict)
    """How many it has locked in each partition of which somebody tells."""
    pending_at: set[tuple[str, int]] = field(default_factory=set)
    """Members and partitions."""


def pending_of(told: Mapping[str, Any]) -> dict[bytes, PendingTx]:
    """Return what is pending, by what members answered to ``transactions``."""
    found: dict[bytes, PendingTx] = {}
    with in_form():
        for name, answer in told.items():
            for row in answer["pending"]:
                tx_id, _, partition, home, member, boot, there, since, keys, locks, others = row
                one = found.setdefault(
                    tx_id,
                    PendingTx(
                        tx_id, int(home), (UUID(bytes=member), int(boot)), bool(there), int(since),
                        {int(place): int(epoch) for place, epoch in others},
                    ),
                )  # fmt: skip
                one.keys[int(partition)] = int(keys) + int(locks)
                one.pending_at.add((name, int(partition)))
    return found


def pending_in(name: str, state: State) -> dict[bytes, PendingTx]:
    """Return what is pending in a store that nobody runs, by itself."""
    found: dict[bytes, PendingTx] = {}
    for partition, pending in sorted(state.copies.pending.items()):
        for one in pending.all():
            if not isinstance(one, PrepareRecord) or len(one.participants) == 1:
                continue
            member, boot = one.near
            tx = found.setdefault(
                one.tx_id,
                PendingTx(
                    one.tx_id, one.home, (UUID(bytes=member), boot), None, one.time,
                    {row.partition: row.epoch for row in one.participants},
                ),
            )  # fmt: skip
            tx.keys[partition] = len(one.keys) + len(one.locks or ())
            tx.pending_at.add((name, partition))
    return found


def pending_rows(
    found: Iterable[PendingTx],
    told: Mapping[str, Any],
    shares: Sequence[Share],
    names: Mapping[UUID, str],
) -> list[dict[str, Any]]:
    """Return a row for each transaction, the oldest first."""
    with in_form():
        newest = max(told.values(), key=lambda answer: int(answer["decided"]), default=None)
        deserted = frozenset(map(int, newest["deserted"])) if newest is not None else frozenset()
        remembered = {
            (name, int(partition), bytes(tx_id))
            for name, answer in told.items()
            for partition, tx_id in answer["remembered"]
        }

    def says(tx: PendingTx, partition: int) -> str | None:
        share = shares[partition] if partition < len(shares) else None
        if share is None:
            return "prepared" if partition in tx.keys else None
        if not share.open or share.primary not in told:
            return NO_PRIMARY
        if (share.primary, partition) in tx.pending_at:
            return "prepared"
        known = (share.primary, partition, tx.tx_id) in remembered
        return "committed" if known else "unknown"

    return [
        {
            "tx": tx.tx_id.hex(),
            "in_doubt": not deserted.isdisjoint(tx.participants) if told else None,
            "home": tx.home,
            "near": f"{names.get(tx.near[0], str(tx.near[0])[:8])}.{tx.near[1]}",
            "near_is_there": tx.near_is_there,
            "since": shown_time(tx.since),
            "keys": sum(tx.keys.values()),
            "partitions": [
                {
                    "partition": partition,
                    "epoch": epoch,
                    "says": says(tx, partition),
                    "primary": shares[partition].primary if partition < len(shares) else None,
                }
                for partition, epoch in sorted(tx.participants.items())
            ],
        }
        for tx in sorted(found, key=lambda tx: (tx.since, tx.tx_id))
    ]


def pending_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as it is shown."""
    gone = {True: "", False: " (gone)", None: ""}[row["near_is_there"]]
    return {
        **row,
        "near": row["near"] + gone,
        "partitions": [f"{one['partition']}: {one['says'] or '?'}" for one in row["partitions"]],
    }


def part_rows(told: Mapping[str, Any], shares: Sequence[Share]) -> list[dict[str, Any]]:
    """Return what each member has of a transaction in each partition."""
    rows = []
    with in_form():
        for name, answer in told.items():
            for partition, outcome, remembered, epoch, first, count, home in answer["parts"]:
                share = shares[partition] if partition < len(shares) else None
                here = "primary" if share is not None and share.primary == name else "copy"
                in_sync = share is None or name in share.in_sync
                rows.append(
                    {
                        "partition": int(partition),
                        "member": name,
                        "here": here if in_sync else "stale",
                        "outcome": None if outcome is None else str(outcome),
                        "remembered": bool(remembered),
                        "epoch": int(epoch),
                        "numbers": [int(first), int(first) + int(count) - 1],
                        "home": None if home is None else int(home),
                    }
                )
    return sorted(rows, key=lambda row: (row["partition"], row["here"] != "primary", row["member"]))


def part_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as it is shown."""
    first, last = row["numbers"]
    return {
        **row,
        "outcome": row["outcome"] or "unknown",
        "numbers": str(first) if first == last else f"{first}-{last}",
    }


def home_in(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the home of a transaction, if its parts tell it."""
    return next((row["home"] for row in rows if row["home"] is not None), None)


def numbers_in(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the numbers of a transaction in each partition where it has committed."""
    found = {
        row["partition"]: {
            "partition": row["partition"], "epoch": row["epoch"], "numbers": row["numbers"]
        }
        for row in rows
        if row["outcome"] == "committed" and row["here"] != "stale"
    }  # fmt: skip
    return [found[partition] for partition in sorted(found)]
