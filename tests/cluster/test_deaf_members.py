"""A member that others hear, and that hears nobody, or too few: the others go on without it.

Such a coordinator has no majority, and asks in vain whether it would be elected.  Whoever gave way
to that each time never stood.  And its last proposal, that others are gone, had these begin anew
once one of them adopted it, and let it alone have what they had copies of.
"""

from __future__ import annotations

from itertools import product

import pytest
import trio

from support.copies import Group, live

SERVED_S = 6.0
"""Seconds in which others serve everything: the lease, one try of the member that is deaf, and one
of another."""


def served_without(group: Group, name: str) -> bool:
    """Tell whether members other than this one serve every partition."""
    running = {n: one for n, one in group.at.running().items() if n != name}
    served = {
        partition
        for member in running.values()
        for partition in range(group.at.partitions)
        if member.partitions.is_open(partition)
        and member.agreement.may_serve(partition, member.now)
    }
    return len(served) == group.at.partitions


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("leads", [True, False], ids=["coordinator", "another"])
@pytest.mark.parametrize(
    ("seed", "hears"),
    [*product(range(1, 7), (0, 1)), (9, 0), (34, 0), (48, 0)],
)
def test_others_go_on_without_a_member_that_hears_too_few(
    seed: int, leads: bool, nodes: int, hears: int
) -> None:
    async def scenario(group: Group) -> None:
        at, coordinator = group.at, group.at.coordinator() or ""
        deaf = coordinator if leads else next(one for one in at.names if one != coordinator)
        rest = [name for name in at.names if name != deaf]
        await group.put(range(4), b"before")
        boots = {name: at.member(name).agreement.me.boot for name in rest}
        for name in rest[hears:]:
            at.world.network.cut(name, deaf)
        if nodes == 3 and hears:  # that is a majority with which it goes on
            await trio.sleep(SERVED_S)
        else:
            with trio.fail_after(SERVED_S):
                while not served_without(group, deaf):
                    await trio.sleep(0.02)
            assert {name: at.member(name).agreement.me.boot for name in rest} == boots
        at.world.network.heal()
        await at.settled()
        await group.put(range(2), b"behind")
        await group.back()
        assert [await group.value(i) for i in range(4)] == [b"behind"] * 2 + [b"before"] * 2

    live(scenario, seed=seed, nodes=nodes)
