"""Disks that are gone for good, and partitions that went with them, on the command line (S6).

    policy   what else happens when partitions are lost
    lose     a member that is away is declared lost -> it never comes back
    reset    a partition that is lost goes on: from the best copy that is left, or with nothing
    losses   what is lost, and what became of what was, and of transactions in doubt

Invariants:

- Nothing is declared, and nothing reset, unless the user has said that it may be: none of it can be
  taken back.
- Of several copies that are left the one is taken that has opened the newest epoch, and of these
  the one with the most numbers.

Left out: what is lost, and what a reset does (``engine.node``).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from ...affinity.errors import NotEnoughMembersError, UsageError
from ...affinity.topology import LossPolicy
from ..shell.exits import RefusedError
from .blocks import names_text
from .cluster_file import LocalCluster, LocalMember, start_text, write_cluster
from .running import ask_somebody, runs
from .shares import Share
from .standing import Picture, in_form

LOSS_COLUMNS = ("decision", "partition", "lost_epoch", "epoch", "from", "opened", "upto")
RESOLVED_COLUMNS = ("decision", "tx", "outcome", "by", "partitions", "missing")


class CopyLeft(NamedTuple):
    """A whole copy that a member has: the newest epoch that it has opened, and its HWM."""

    opened: int
    hwm: int
    member: str


def check_not_running(folder: str, cluster: LocalCluster, name: str) -> None:
    """Raise ``UsageError`` if a member runs on this machine, whose disk so is not lost."""
    member = cluster.member(name)
    if member.directory and runs(folder, member):
        raise UsageError(
            f"{name} runs: its disk is not lost",
            hint="If others are to hold what it holds, let it leave: `tidelog cluster baseline "
            f"remove {shlex.quote(folder)} {name}`.",
        )


def declare_lost(folder: str, cluster: LocalCluster, name: str) -> None:
    """Declare a member lost; ``UsageError`` if it runs, ``ClusterError`` if nobody decides it."""
    check_not_running(folder, cluster, name)
    said = f"{name} is not declared lost"
    ask_somebody(folder, cluster, said, "lose", cluster.member(name).id.bytes)
    note_lost(folder, cluster, name)


def note_lost(folder: str, cluster: LocalCluster, name: str) -> None:
    """Write down that a member was declared lost, if it is of the file of a directory."""
    if cluster.member(name).directory:
        write_cluster(folder, cluster.without(name))


def choose_policy(folder: str, cluster: LocalCluster, policy: LossPolicy) -> None:
    """Have it decided what else happens when partitions are lost."""
    ask_somebody(folder, cluster, "the policy stays as it is", "policy", policy)


def reset_partition(
    folder: str, cluster: LocalCluster, partition: int, name: str, *, empty: bool
) -> None:
    """Let a partition go on from the copy of a member, or there with nothing."""
    said = f"partition {partition} was not reset"
    others = [one for one in cluster.members if one.name == name]
    ask_somebody(folder, cluster, said, "reset", partition, empty, others=others)


def told_losses(
    folder: str,
    cluster: LocalCluster,
    others: Sequence[LocalMember] | None = None,
    said: str = "nobody tells of losses",
) -> Mapping[str, Any]:
    """Return what one of some members tells of losses, or of all; ``NotEnoughMembersError``."""
    told: Mapping[str, Any] = ask_somebody(folder, cluster, said, "losses", others=others)
    return told


def copies_left(picture: Picture) -> list[CopyLeft]:
    """Return the whole copies of the partition that was asked for, the best first."""
    found = []
    with in_form():
        for name, answer in picture.answers.items():
            story = answer.story
            if story is not None and story["whole"] and story["hwm"]:
                found.append(CopyLeft(int(story["epochs"][-1][0]), int(story["hwm"]), name))
    return sorted(found, reverse=True)


def check_reset(folder: str, picture: Picture, partition: int, source: str | None) -> None:
    """Raise if a partition cannot be reset now, or not from there."""
    if not picture.majority:
        raise NotEnoughMembersError(
            "too few members run to decide that a partition is reset",
            hint=f"Start the others: `tidelog cluster status {shlex.quote(folder)}` names them.",
        )
    if picture.newest is not None and partition not in picture.newest.lost:
        raise UsageError(
            f"partition {partition} is not lost: a copy that counts is there, or may come back",
            hint="Start who has it; or, if those disks are gone, declare their members lost.",
        )
    if source is not None and not picture.not_lost([source]):
        raise UsageError(
            f"{source} was declared lost: nobody goes on from its copy",
            hint="Name another one; without --from it is the best that is left.",
        )
    if source is not None and picture.state_of(source) != "up":
        raise UsageError(
            f"{source} does not answer, whose copy is wanted",
            hint="Start it, or name another one.",
        )


def check_nobody_is_away(folder: str, picture: Picture, share: Share) -> None:
    """Raise ``RefusedError`` if somebody may have a newer copy of a partition than who answers."""
    away = [
        one.name
        for one in picture.cluster.members
        if one.name in share.row and not picture.is_lost(one) and picture.state_of(one.name) != "up"
    ]
    if away:
        do = "does" if len(away) == 1 else "do"
        raise RefusedError(
            f"{names_text(away)} {do} not answer, and may have a newer copy of partition "
            f"{share.partition} than those that answer",
            hint=f"Start {'it' if len(away) == 1 else 'each of them'}: "
            f"{start_text(folder, away[0])}. If that cannot be, give --yes.",
        )


def best_copy(picture: Picture) -> str | None:
    """Return who has the best copy that is left of the partition that was asked for, if any is."""
    found = copies_left(picture)
    return found[0].member if found else None


def loss_rows(cluster: LocalCluster, told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what became of partitions that were lost, the oldest first."""
    names = {member.id: member.name for member in cluster.members}
    rows = []
    with in_form():
        for index, partition, before, epoch, member, boot, opened, upto in told["losses"]:
            author = UUID(bytes=member)
            rows.append(
                {
                    "decision": int(index),
                    "partition": int(partition),
                    "lost_epoch": int(before),
                    "epoch": int(epoch),
                    "from": names.get(author, str(author)[:8]),
                    "boot": int(boot),
                    "opened": int(opened),
                    "upto": int(upto),
                    "empty": not opened,
                }
            )
    return rows


def resolved_rows(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was decided of transactions in doubt, the oldest first.

    ``missing`` are the partitions that could not tell what they had of one.
    """
    with in_form():
        return [
            {
                "decision": int(index),
                "tx": bytes(tx_id).hex(),
                "outcome": "committed" if commits else "rolled_back",
                "by": "operator" if by_hand else "reset",
                "partitions": list(map(int, partitions)),
                "missing": list(map(int, missing)),
            }
            for index, tx_id, _, commits, by_hand, partitions, missing in told["resolved"]
        ]


def loss_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as it is shown."""
    if not row["empty"]:
        return row
    return {**row, "from": f"nothing, at {row['from']}", "opened": "-", "upto": "-"}
