"""Asks a running cluster who it is, as whoever wants to become a member does first.

One connection as a tool, one question; the answer is the topology as of some decision.  What was
decided since, the new member hears like anybody who was away.

Left out: the directory that is made of it (``member_files``).
"""

from __future__ import annotations

from collections.abc import Sequence
from errno import ECONNREFUSED

import trio

from ...affinity.errors import ClusterError, NotEnoughMembersError
from ...affinity.topology import Topology
from ...wal.records.shapes import UndecodableRecordError
from ..agreement.encoding import topology_of
from ..net.addresses import address_of
from ..net.connection import hear, say
from ..net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from ..net.handshake import Introduction, Refusal
from ..net.kinds import BY_NAME, BY_NUMBER, CLIENT, checked_message
from ..system.environment import Address, Environment, Stream

ASK_S_MAX = 5.0
"""Seconds that one member gets to answer."""


async def fetch_topology(environment: Environment, seeds: Sequence[str]) -> Topology:
    """Return the topology of the cluster of which members are at some addresses.

    Raises ``NotEnoughMembersError`` if none of these is there, ``ClusterError`` if none tells.
    """
    reasons, heard = [], False
    for seed in seeds:
        reason, listens = "it did not answer in time", True
        with trio.move_on_after(ASK_S_MAX):
            try:
                return await _asked(environment, address_of(seed))
            except (OSError, FrameError, UndecodableRecordError) as error:
                reason = str(error) or type(error).__name__
                listens = getattr(error, "errno", None) != ECONNREFUSED
        reasons.append(f"{seed}: {reason}")
        heard = heard or listens
    raise (ClusterError if heard else NotEnoughMembersError)(
        f"no member tells of its cluster: {'; '.join(reasons)}",
        hint="Name the addresses of members that run.",
    )


async def _asked(environment: Environment, address: Address) -> Topology:
    stream = await environment.network.connect(address)
    try:
        mine = Introduction(role="tool", channel=CLIENT, member=environment.new_id(), number=1)
        await say(stream, mine)
        decoder = FrameDecoder()
        other = await hear(stream, decoder)
        if isinstance(other, Refusal):
            raise ConnectionRefusedError(other.reason)
        decoder.limits = KNOWN
        request = BY_NAME["request"].message(1, int(ASK_S_MAX * 1e6), "topology", [])
        await stream.send(frame([pack_message(request)]))
        while True:
            for message in await _received(stream, decoder):
                name = BY_NUMBER[message[0]].name
                if name == "response":
                    return topology_of(message[2])
                if name == "failure":
                    raise ConnectionRefusedError(message[3])
    finally:
        stream.close()


async def _received(stream: Stream, decoder: FrameDecoder) -> list[Message]:
    data = await stream.receive(1 << 16)
    if not data:
        raise ConnectionResetError("it closed the connection without an answer")
    return [checked_message(message, CLIENT) for message in decoder.feed(data)]
