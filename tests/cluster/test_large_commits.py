"""What a member of several does not carry in one piece: it would be taken for dead meanwhile."""

from __future__ import annotations

import pytest

from support.raw_client import FailureError, RawClient
from support.sim_clients import Clients, cluster, serving
from tidelog.engine.node import requests
from tidelog.testing import SimCluster

KEYS_MAX, BYTES_MAX = 5, 1000


async def refusal(client: RawClient, number: int, pairs: dict[bytes, bytes | None]) -> str | None:
    try:
        await client.put(b"%016d" % len(pairs), number, pairs)
    except FailureError as refused:
        return refused.code
    return None


@pytest.mark.parametrize(("nodes", "backups"), [(1, 0), (3, 0), (3, 2)])
def test_members_of_several_refuse_what_keeps_them_busy_for_long(
    nodes: int, backups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "SHARE_KEYS_MAX", KEYS_MAX)
    monkeypatch.setattr(requests, "SHARE_BYTES_MAX", BYTES_MAX)
    at = cluster(1, nodes=nodes, backups=backups)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        client = await clients.to(at.primary(0))
        keys = [at.key(0, place) for place in range(KEYS_MAX + 1)]
        large = None if nodes == 1 else "TL-TX-008"
        small: dict[bytes, bytes | None] = dict.fromkeys(keys, b"v")
        assert await refusal(client, number, small) == large
        del small[keys[0]]
        assert await refusal(client, number, small) is None
        assert await refusal(client, number, {keys[0]: b"v" * BYTES_MAX}) is None
        pair: dict[bytes, bytes | None] = dict.fromkeys(keys[:2], b"v" * (BYTES_MAX // 2))
        assert await refusal(client, number, pair) == large

    at.run(scenario)
