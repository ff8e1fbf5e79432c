"""What a member of several does not carry in one piece: it would be taken for dead meanwhile."""

from __future__ import annotations

import pytest

from support.raw_client import FailureError, RawClient
from support.sim_clients import Clients, cluster, serving
from tidelog.engine.data.digests import RANGE_KEYS_MAX
from tidelog.engine.net.operations import GET_KEYS_MAX
from tidelog.engine.node.committing import READ_KEYS_MAX, SHARE_BYTES_MAX, SHARE_KEYS_MAX
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


@pytest.mark.parametrize(
    ("keys", "ranges", "said"),
    [
        (READ_KEYS_MAX, 0, "TL-TX-002"),
        (READ_KEYS_MAX + 1, 0, "TL-TX-008"),
        (0, 1, "TL-TX-002"),
        (0, 2, "TL-TX-008"),
    ],
)
def test_members_of_several_refuse_to_confirm_what_keeps_them_busy_for_long(
    keys: int, ranges: int, said: str
) -> None:
    # 100,000 keys that were read stopped all writes for seconds, again and again.
    at = cluster(1, nodes=3, backups=2)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        client = await clients.to(at.primary(0))
        there, read = at.key(0, 0), [b"%d" % one for one in range(keys)]
        reads = [[number, read, [1] * keys, [9] * keys]] if keys else []
        spans = [[number, [0], b"", None, RANGE_KEYS_MAX, b"?"]] * ranges
        writes = [[number, [there], [b"v"]]]
        with pytest.raises(FailureError) as refused:
            await client.ask("commit", b"%016d" % 1, 1, False, None, reads, spans, writes)
        assert refused.value.code == said, "what is looked at is found to be otherwise"

    at.run(scenario)


def test_a_get_of_more_keys_than_are_looked_for_in_one_piece_is_refused() -> None:
    at = cluster(1, nodes=3, backups=2)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        client = await clients.to(at.primary(0))
        keys = [b"%d" % one for one in range(GET_KEYS_MAX + 1)]
        with pytest.raises(FailureError, match="more than 8,192 keys"):
            await client.ask("get", number, keys)

    at.run(scenario)
