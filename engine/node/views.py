"""What clients are told of a cluster, made of the topology: see ``docs/client-protocol.md``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...affinity.topology import PartitionCopies, Topology
from ...tx.counter import PartitionUpdateCounter


def members_of(topology: Topology) -> list[list[object]]:
    """Return the rows of the members, by id."""
    return [
        [member.bytes, known.boot, known.present, known.address]
        for member, known in sorted(topology.members.items())
    ]


def baseline_of(topology: Topology) -> Mapping[str, Any]:
    """Return who votes and who holds data, and what was asked for, as ``status`` has it."""
    members = sorted(topology.members.items())
    return {
        "baseline": [member.bytes for member in topology.baseline],
        "placed": [member.bytes for member in topology.placed],
        "voters": [member.bytes for member, known in members if known.voter],
        "wanted": [[m.bytes, known.wanted] for m, known in members if known.wanted is not None],
        "auto_join": topology.auto_join,
        "lost": list(topology.lost),
        "lost_members": [member.bytes for member, known in members if known.lost],
    }


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
        list(topology.lost),
    ]


def row_members(copies: Iterable[PartitionCopies]) -> list[list[bytes]]:
    """Return who shall hold each partition."""
    return [[member.bytes for member in one.row.replicas if member is not None] for one in copies]


def told_copies(
    decided: int,
    copies: Sequence[PartitionCopies],
    counters: Sequence[PartitionUpdateCounter],
) -> Mapping[str, Any]:
    """Return who holds some partitions as of a decision, and the counters that a member has."""
    own = [counters[one.row.partition] for one in copies]
    return {
        "decided": decided,
        "partitions": [one.row.partition for one in copies],
        "rows": row_members(copies),
        "goals": [[member.bytes for member in one.goal] for one in copies],
        "epochs": [one.epoch for one in copies],
        "authors": [one.author.member.bytes for one in copies],
        "boots": [one.author.boot for one in copies],
        "sets": [[copy.member.bytes for copy in one.in_sync] for one in copies],
        "set_boots": [[copy.boot for copy in one.in_sync] for one in copies],
        "opened": [one.opened for one in copies],
        "changed": [one.changed for one in copies],
        "lwms": [counter.lwm for counter in own],
        "hwms": [counter.hwm for counter in own],
        "ranges": [list(map(list, counter.out_of_order)) for counter in own],
    }
