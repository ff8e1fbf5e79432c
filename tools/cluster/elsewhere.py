"""A cluster whose members run anywhere: what one of them tells of it, instead of ``cluster.toml``.

    found_cluster("./demo")                           # of this machine: its file
    found_cluster("tidelog://10.0.0.1:7400")          # of any: some of its members

A member has the name by which its id was made, if that is n1, n2, ..., and else its address.

Left out: starting and ending members, which are processes of their machines.
"""

from __future__ import annotations

from uuid import UUID

from ...affinity.errors import ClusterError, NotEnoughMembersError, UsageError
from ...affinity.topology import Topology
from ...engine.agreement.encoding import topology_of
from ...engine.agreement.identity import member_id
from ...wal.records.shapes import UndecodableRecordError
from ..server.members import addresses_in, parsed_address
from .cluster_file import ELSEWHERE, LocalCluster, LocalMember, read_cluster
from .questions import is_unreached, talking

ASK_S_MAX = 5.0
"""Seconds that one member gets to tell of its cluster."""
NUMBERS_MAX = 256


def found_cluster(place: str) -> LocalCluster:
    """Return the cluster in a directory, or of which members are at some addresses.

    ``NotEnoughMembersError`` if none of these answers, ``ClusterError`` if none tells.
    """
    if not place.startswith(ELSEWHERE):
        return read_cluster(place)
    reasons, heard = [], False
    for address in addresses_in(place.removeprefix(ELSEWHERE)):
        try:
            with talking(parsed_address(address), b"", ASK_S_MAX) as member_says:
                return _cluster_of(topology_of(member_says.ask("topology")))
        except (OSError, UndecodableRecordError) as error:
            told = error.strerror if isinstance(error, OSError) else None
            reasons.append(f"{address}: {told or error}")
            heard = heard or not (is_unreached(error) or isinstance(error, TimeoutError))
    raise (ClusterError if heard else NotEnoughMembersError)(
        f"no member tells of its cluster: {'; '.join(reasons)}",
        hint="Name the addresses of members that run.",
    )


def _cluster_of(topology: Topology) -> LocalCluster:
    if topology.cluster is None:
        raise UsageError("that member has not heard of any decision yet", hint="Wait a moment.")
    names = _names(topology.cluster)
    members = [
        LocalMember(
            name=names.get(member, known.address),
            id=member,
            address=known.address,
            directory="",
            voter=known.voter,
            lost=known.lost,
        )
        for member, known in topology.members.items()
    ]
    return LocalCluster(
        cluster=topology.cluster,
        partitions=len(topology.partitions),
        members=tuple(sorted(members, key=lambda one: (len(one.name), one.name))),
        backups=topology.spaces[0].backups,
        min_in_sync=topology.min_in_sync,
        auto_join=topology.auto_join,
    )


def _names(cluster: UUID) -> dict[UUID, str]:
    """Return the names that members have as a rule, by their ids."""
    names = (f"n{number}" for number in range(1, NUMBERS_MAX))
    return {member_id(cluster, name): name for name in names}
