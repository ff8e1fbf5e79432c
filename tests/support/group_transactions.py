"""Members, topologies and keys for tests of transactions of several groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tidelog.affinity.partitions import one_space, partition_of
from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import Incarnation, KnownMember, PartitionCopies, Topology
from tidelog.engine.data.stored import pack_prefix
from tidelog.engine.net.frames import KNOWN, FrameDecoder, Message, frame, pack_message
from tidelog.engine.net.kinds import BY_NUMBER, DATA, checked_message
from tidelog.engine.node.tx_messages import told_of

ME, BOB, CID = (Incarnation(UUID(int=number), 3) for number in (1, 2, 3))
NAMES = {ME: "me", BOB: "bob", CID: "cid"}
PARTITIONS = 6
AUTHORS = {0: ME, 1: BOB, 2: BOB, 3: CID, 4: ME, 5: CID}
MAP = 16
TX, OTHER, GIVEN, FRESH = b"t" * 16, b"o" * 16, b"g" * 16, b"f" * 16

Said = tuple[str, str, Any]
"""To whom, which kind of message, and what it tells."""


def topology(
    epochs: Mapping[int, int] | None = None,
    authors: Mapping[int, Incarnation] | None = None,
    *,
    away: tuple[Incarnation, ...] = (),
    boots: Mapping[Incarnation, int] | None = None,
) -> Topology:
    """Return what is decided: each partition has one copy, and epoch 1 if nothing else is told."""
    members = {
        one.member: KnownMember(
            member=one.member, address="", since=1, boot=(boots or {}).get(one, one.boot),
            present=one not in away,
        )
        for one in (ME, BOB, CID)
    }  # fmt: skip
    partitions = []
    for number in range(PARTITIONS):
        author = (authors or {}).get(number, AUTHORS[number])
        row = PartitionRow(partition=number, version=1, replicas=(author.member,))
        epoch = (epochs or {}).get(number, 1)
        partitions.append(
            PartitionCopies(
                row=row, epoch=epoch, author=author, in_sync=(author,), changed=1, opened=True
            )
        )
    return Topology(index=9, members=members, partitions=tuple(partitions))


def name_in(partition: int, number: int = 0) -> bytes:
    """Return the n-th key of a user that lies in a partition."""
    space = one_space(PARTITIONS)[0]
    found = (b"%d" % n for n in range(1 << 20))
    names = (name for name in found if partition_of(name, space) == partition)
    for _ in range(number):
        next(names)
    return next(names)


def key_in(partition: int, number: int = 0, namespace: int = MAP) -> bytes:
    """Return the full key of that."""
    return pack_prefix(partition, namespace) + name_in(partition, number)


class Told:
    """A post that delivers nothing, and keeps what it was given."""

    def __init__(self) -> None:
        self.messages: list[tuple[Incarnation, Message]] = []

    def tell(self, to: Incarnation, message: Message) -> None:
        self.messages.append((to, message))

    def said(self) -> list[Said]:
        """Return what was told since the last call, as it arrives over the wire."""
        messages, self.messages = self.messages, []
        found: list[Said] = []
        for to, message in messages:
            [came] = FrameDecoder(KNOWN).feed(frame([pack_message(message)]))
            told = told_of(checked_message(came, DATA))
            found.append((NAMES.get(to, str(to)), BY_NUMBER[message[0]].name, told))
        return found

    def kinds(self) -> list[tuple[str, str]]:
        """Return to whom what kind of message was told since the last call."""
        return [(to, kind) for to, kind, _ in self.said()]
