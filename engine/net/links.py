"""Which connections of a member still count: the newest of each class, from its newest boot (W1).

Every connection that a member makes has a number, higher than any that this process of it made
before.  What arrives on an older one was sent before something that has been seen already.

A boot counts against lower ones while there are connections with it.  Behind their end only the
decided log says that a lower one is over: whoever claimed the boot may have been another disk,
which the cluster has refused.

Left out: incarnations that are called gone, and other clusters (``handshake``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .kinds import Channel


@dataclass(slots=True)
class _Peer:
    boot: int = 0
    """Of the connection that came last."""
    numbers: dict[Channel, int] = field(default_factory=dict)
    """The highest of this boot, by class."""
    up: Counter[int] = field(default_factory=Counter)
    """How many connections there are, by boot."""


class Links:
    """The newest connection of each member and class that was accepted here."""

    def __init__(self) -> None:
        self._peers: dict[bytes, _Peer] = {}

    def __repr__(self) -> str:
        shown = {member.hex(): (peer.boot, peer.numbers) for member, peer in self._peers.items()}
        return f"<Links {shown}>"

    def boot_of(self, member: bytes) -> int:
        """Return the highest boot of the connections with this member; 0 without any."""
        peer = self._peers.get(member)
        return max(peer.up, default=0) if peer else 0

    def admits(self, member: bytes, channel: Channel, boot: int, number: int) -> bool:
        """Tell whether a connection is newer than all that were accepted."""
        peer = self._peers.get(member)
        if peer is None or boot != peer.boot:
            return boot >= self.boot_of(member)
        return number > peer.numbers.get(channel, 0)

    def accept(self, member: bytes, channel: Channel, boot: int, number: int) -> None:
        """Take a connection that is admitted: older ones do not count from now on."""
        self.meet(member, boot)
        self._peers[member].numbers[channel] = number

    def meet(self, member: bytes, boot: int) -> None:
        """Take a connection with a member under a boot that is not below ``boot_of``."""
        peer = self._peers.setdefault(member, _Peer())
        if boot != peer.boot:
            peer.boot = boot
            peer.numbers.clear()
        peer.up[boot] += 1

    def left(self, member: bytes, boot: int) -> None:
        """Take it that a connection that was accepted, or met, has ended."""
        up = self._peers[member].up
        up[boot] -= 1
        if not up[boot]:
            del up[boot]

    def counts(self, member: bytes, channel: Channel, boot: int, number: int) -> bool:
        """Tell whether a connection that was accepted is still the newest one."""
        peer = self._peers.get(member)
        return (
            peer is not None and boot == peer.boot and number == peer.numbers.get(channel, number)
        )
