"""What a cluster cannot do yet, in one table, and the error that says so.

``docs/cluster-client.md`` has the same table.
"""

from __future__ import annotations

from ...affinity.errors import UnsupportedError
from ..api.choices import Durability, Isolation, Mode, choice

NOT_YET: dict[str, tuple[str, str]] = {
    "durability": (
        "commits that are answered before they are durable",
        "Leave `durability` out, or give `always`.",
    ),
    "attach": (
        "attaching a load",
        "Write the rows with `map.load`; to a cluster of several members one by one.",
    ),
    "backup": (
        "backups through a client",
        "Read all pairs, and write them into a store of your own.",
    ),
    "statistics": ("the statistics of a store", "`db.status()` tells what a member does."),
    "checkpoint": ("checkpoints on demand", "Each member takes its own when they are due."),
    "sync": ("syncs on demand", "Every commit is durable when it is answered."),
}
"""By what a user asks for: what it is, and what to do instead."""


def not_yet(what: str) -> UnsupportedError:
    """Return the error for something that a cluster cannot do yet."""
    told, hint = NOT_YET[what]
    return UnsupportedError(f"a cluster does not have {told} for now", hint=hint)


def checked_choices(mode: str, isolation: str, durability: str | None) -> bool:
    """Return whether a transaction confirms at its commit what it has read.

    One that is to be repeatable_read does: it has no snapshot here, and so is serializable.  Raises
    unless a cluster has what is asked for; ``UsageError`` if nobody has it.
    """
    choice("mode", mode, Mode)
    level = choice("isolation", isolation, Isolation)
    if durability is not None and choice("durability", durability, Durability) != "always":
        raise not_yet("durability")
    return bool(level != "read_committed")
