"""Simulated clusters for tests, with raw clients on a machine of their own."""

from __future__ import annotations

from typing import Any

import trio

from support.raw_client import RawClient, connected
from tidelog.engine.system.environment import Network
from tidelog.testing import SimCluster
from tidelog.testing.cluster import PORT

PARTITIONS = 8


def cluster(seed: int, **options: Any) -> SimCluster:
    return SimCluster(seed=seed, partitions=PARTITIONS, **options)


class Clients:
    """Raw clients of all members, on a machine of their own."""

    def __init__(self, at: SimCluster) -> None:
        self._cluster = at
        self._node = at.world.add("client", lambda _node: trio.sleep_forever())
        self._numbers = 0

    def start(self) -> None:
        self._node.start()

    @property
    def network(self) -> Network:
        """The network as the machine of the clients sees it."""
        return self._node.environment.network

    async def to(self, name: str, line: bytes = b"") -> RawClient:
        self._numbers += 1
        own = line or b"%016d" % self._numbers
        return await connected(self.network, (name, PORT), line=own, number=self._numbers)


async def made_map(client: RawClient) -> int:
    number: int = await client.ask("map", "m", "bytes", 1, "bytes", 1)
    return number


async def serving(at: SimCluster, clients: Clients) -> tuple[RawClient, int]:
    at.start()
    clients.start()
    await at.settled()
    first = await clients.to("n1")
    number = await made_map(first)
    with trio.fail_after(10):
        while not all(number in one.log.state.namespaces for one in at.running().values()):
            await trio.sleep(0.01)
    return first, number
