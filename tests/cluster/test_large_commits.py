"""What a member of several does not carry in one piece: it would be taken for dead meanwhile."""

from __future__ import annotations

import pytest

from support.raw_client import FailureError, RawClient
from support.sim_clients import Clients, cluster, serving
from tidelog.engine.node.committing import SHARE_BYTES_MAX, SHARE_KEYS_MAX
from tidelog.testing import SimCluster


async def refusal(client: RawClient, number: int, pairs: dict[bytes, bytes | None]) -> str | None:
    try:
        await client.put(b"%016d" % len(pairs), number, pairs)
    except FailureError as refused:
        return refused.code
    return None


@pytest.mark.parametrize(("nodes", "backups"), [(1, 0), (3, 0), (3, 2)])
def test_members_of_several_refuse_what_keeps_them_busy_for_long(nodes: int, backups: int) -> None:
    at = cluster(1, nodes=nodes, backups=backups)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        client = await clients.to(at.primary(0))
        key, other = at.key(0, 0), at.key(0, 1)
        large = None if nodes == 1 else "TL-TX-008"
        half = b"v" * (SHARE_BYTES_MAX // 2)
        assert await refusal(client, number, {key: half + half}) is None
        assert await refusal(client, number, {key: half, other: half}) == large
        many = (b"%d" % one for one in range(SHARE_KEYS_MAX + 1))
        assert await refusal(client, number, dict.fromkeys(many, b"v")) == large

    at.run(scenario)
