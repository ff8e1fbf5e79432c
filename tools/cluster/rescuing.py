"""A cluster on this machine goes on without most of its members (S8), on the command line.

Left out: what the members that are left become (``engine.node.rescuing``).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from dataclasses import replace

from ...affinity.errors import UsageError
from ...affinity.topology import Topology
from ...engine.system.layout import MANIFEST_NAME
from ...engine.system.production import production
from .cluster_file import LocalCluster, write_cluster
from .processes import pid_of


def members_left(folder: str, cluster: LocalCluster, lost: Collection[str]) -> list[str]:
    """Return the names of members whose directories are there, and that are not named as lost.

    ``UsageError`` if one of them runs, or all of them are there.
    """
    left = []
    for member in cluster.left:
        directory = os.path.join(folder, member.directory)
        if pid_of(directory):
            raise UsageError(
                f"{member.name} runs",
                hint=f"End all members first: `tidelog cluster down {shlex.quote(folder)}`.",
            )
        there = os.path.exists(os.path.join(directory, MANIFEST_NAME))
        if there and member.name not in lost:
            left.append(member.name)
    if len(left) == len(cluster.left):
        raise UsageError(
            "the directories of all members that were not declared lost are there",
            hint="Start them; or name those whose disks are gone: --lost NODE.",
        )
    return left


def rescue_cluster(folder: str, cluster: LocalCluster, left: Collection[str]) -> Topology:
    """Let the cluster be that of the members that are left, in its file, too.

    ``UsageError`` if it is that already: what was rescued has another id.
    """
    from ...engine.node.rescuing import rescue_members

    members = [member for member in cluster.members if member.name in left]
    paths = [os.path.abspath(os.path.join(folder, member.directory)) for member in members]
    try:
        topology = rescue_members(production(), paths)
    except UsageError as error:
        for member in members:  # who are told by their ids there
            if str(error).startswith(f"{member.id} "):
                raise UsageError(
                    str(error).replace(str(member.id), member.name, 1),
                    hint=f"Leave it out: give `--lost {member.name}`, too. {error.hint}",
                ) from None
        raise
    assert topology.cluster is not None
    if topology.cluster == cluster.cluster:
        raise UsageError(
            "all members that were not declared lost are left: they need no rescue",
            hint=f"Start them: `tidelog cluster up --dir {shlex.quote(folder)}`.",
        )
    write_cluster(
        folder,
        replace(
            cluster,
            cluster=topology.cluster,
            members=tuple(replace(member, joined=False, out=False, pid=0) for member in members),
            backups=topology.spaces[0].backups,
            min_in_sync=topology.min_in_sync,
        ),
    )
    return topology
