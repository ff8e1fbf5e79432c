"""What clients are told of a cluster, made of the topology: see ``docs/client-protocol.md``."""

from __future__ import annotations

from ...affinity.topology import Topology


def members_of(topology: Topology) -> list[list[object]]:
    """Return the rows of the members, by id."""
    return [
        [member.bytes, known.boot, known.present, known.address]
        for member, known in sorted(topology.members.items())
    ]


def told_view(topology: Topology) -> list[object]:
    """Return the view of a topology, as ``welcome`` and ``topology`` have it."""
    places = {member: place for place, member in enumerate(sorted(topology.members))}
    return [
        topology.index,
        members_of(topology),
        [list(space) for space in topology.spaces],
        [
            [
                one.id,
                one.name,
                one.key_codec,
                one.key_version,
                one.value_codec,
                one.value_version,
                one.space,
            ]
            for _, one in sorted(topology.namespaces.items())
        ],
        [places[copies.author.member] for copies in topology.partitions],
        [copies.epoch for copies in topology.partitions],
        [partition for partition in topology.orphaned if partition not in topology.deserted],
        [[places[copy.member] for copy in copies.in_sync] for copies in topology.partitions],
    ]
