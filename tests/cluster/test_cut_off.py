"""The coordinator and one primary are cut off from the three other members, together."""

from __future__ import annotations

import pytest
import trio

from support.raw_client import FailureError
from support.sim_clients import PARTITIONS, Clients, cluster, serving
from tidelog.codecs import Msgpack, Str
from tidelog.engine.agreement.machine import Agreement
from tidelog.engine.agreement.timing import Timing
from tidelog.testing import SimCluster
from tidelog.testing.histories import History
from tidelog.testing.linear import check
from tidelog.testing.moves import REGISTER
from tidelog.testing.storms import PacedMap
from tidelog.testing.workloads import register_clients

LEASE_S = Timing().lease
ELECTED_S = 2.0 + LEASE_S
"""Seconds in which another coordinator leads."""
AT_ONCE_S = 0.5
KNOWN_S = 1.75
"""Behind a lease: until then members may think that somebody is about to lead."""


async def another_leads(at: SimCluster, among: list[str]) -> None:
    with trio.fail_after(ELECTED_S):
        while not any(at.member(name).agreement.leads for name in among):
            await trio.sleep(0.01)


def nothing_is_answered_on_the_smaller_side(seed: int) -> None:
    at = cluster(seed, nodes=5)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        first = at.coordinator()
        assert first is not None
        second = next(name for name in at.names if name != first)
        rest = [name for name in at.names if name not in (first, second)]
        partition = next(p for p in range(PARTITIONS) if at.primary(p) == second)
        key = at.key(partition, 0)
        near, far = await clients.to(second), await clients.to(rest[0])
        await near.put(b"1" * 16, number, {key: b"of the past"})

        at.cut({first, second}, rest)
        await trio.sleep(LEASE_S * 1.3)
        await another_leads(at, rest)
        await trio.sleep(KNOWN_S)
        await far.ask("drop", "m")
        for operation, arguments in (
            ("get", (number, [key])),
            ("commit", (b"2" * 16, 1, False, None, [], [], [[number, [key], [b"b"]]])),
            ("map", ("other", "bytes", 1, "bytes", 1)),
        ):
            asked, answer, refused = at.world.now(), None, None
            try:
                answer = await near.ask(operation, *arguments)
            except FailureError as failure:
                refused = failure.code
            assert refused == "TL-CLU-004", f"{second} has no lease, and answered {answer}"
            assert at.world.now() < asked + AT_ONCE_S
        at.heal()
        await at.settled()

    at.run(scenario)


@pytest.mark.parametrize("seed", range(80, 84))
def test_the_side_without_a_majority_answers_nothing_and_says_so_at_once(seed: int) -> None:
    nothing_is_answered_on_the_smaller_side(seed)


def test_without_the_look_at_the_lease_behind_the_work_the_past_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule L5, taken out."""

    def may_serve(self: Agreement, partition: int, _now: float) -> bool:
        return self.is_author(self.topology.partitions[partition])

    monkeypatch.setattr(Agreement, "may_serve", may_serve)
    with pytest.raises(AssertionError, match=r"no lease, and answered .*of the past"):
        nothing_is_answered_on_the_smaller_side(80)


@pytest.mark.parametrize("seed", range(84, 88))
def test_clients_of_both_sides_see_one_history(seed: int) -> None:
    at = cluster(seed, nodes=5)
    history = History()

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        chance = at.world.random("work")
        maps = [at.client(timeout=2.0).map("m", key=Str, value=Msgpack) for _ in range(2)]
        workers = register_clients(
            PacedMap(maps, chance), history, clients=8, keys=[f"k{n}" for n in range(10)],
            operations=30, chance=chance, clock=at.world.now,
        )  # fmt: skip
        first = at.coordinator()
        assert first is not None
        second = next(name for name in reversed(at.names) if name != first)
        rest = [name for name in at.names if name not in (first, second)]
        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(worker)
            await trio.sleep(0.2)
            at.cut({first, second, "c1"}, [*rest, "c2"])
            await another_leads(at, rest)
            await trio.sleep(2.0)
            at.heal()
        await at.settled()

    at.run(scenario)
    assert check(history, REGISTER) is None
    assert sum(call.ending == "ok" for call in history.calls()) > 100


@pytest.mark.parametrize("seed", range(88, 98))
def test_another_coordinator_leads_two_seconds_and_a_lease_after_the_last_one_died(
    seed: int,
) -> None:
    at = cluster(seed)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        first = at.coordinator()
        assert first is not None
        await at.kill(first)
        await another_leads(at, [name for name in at.names if name != first])

    at.run(scenario)
