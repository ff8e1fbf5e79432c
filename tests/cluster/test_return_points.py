"""Somebody dies at every point of a return, and the copy comes back all the same.

Who dies is the one that supplies (the primary), the one that demands (the copy), the coordinator,
which has none of the partition, or the other backup of the set.  Writers work meanwhile.  The
return ends without who has died, unless that is the copy; behind it all copies are equal, every key
has what was acknowledged last, and what was deleted stays deleted.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from support.copies import (
    AGED_KEYS,
    CUT,
    LARGE,
    SOON_S,
    Group,
    Writers,
    age_logs,
    kinds,
    live,
    small_pieces,
    when_reached,
)
from tidelog.engine.store.options import Options
from tidelog.rebalance.choosing import SupplyKind

HISTORY, FULL = SupplyKind.HISTORICAL, SupplyKind.FULL
OF_THE_PRIMARY = (
    "admit.sent", "supply.first", "supply.middle", "supply.last",
    "join.sent", "add.proposed", "add.decided",
)  # fmt: skip
OF_THE_COPY = ("admit.logged",)
OF_ITS_DATA_FILE = ("checkpoint.between_pieces", "checkpoint.before_mark", "checkpoint.after_mark")
"""Looked at from when a full copy begins."""
SUPPLIER, DEMANDER, COORDINATOR, BACKUP = ROLES = (
    "supplier", "demander", "coordinator", "backup",
)  # fmt: skip
WRITTEN = range(AGED_KEYS, AGED_KEYS + 3)
"""Keys of the writers."""
PAUSE_S = 0.1

POINTS = [
    *((point, SUPPLIER, kind) for point in OF_THE_PRIMARY for kind in (HISTORY, FULL)),
    *((point, DEMANDER, kind) for point in OF_THE_COPY for kind in (HISTORY, FULL)),
    *((point, DEMANDER, FULL) for point in OF_ITS_DATA_FILE),
]
OF_ALL_ROLES = ("supply.middle", "add.proposed")
"""At others the coordinator and the backup die in long runs only."""


def cases() -> list[Any]:
    """Return point, who reaches it, way and who dies."""
    return [
        pytest.param(
            *(point, whose, kind, who),
            marks=()
            if who in (SUPPLIER, DEMANDER) or point in OF_ALL_ROLES
            else pytest.mark.nightly,
        )
        for point, whose, kind in POINTS
        for who in ROLES
    ]


def roles(group: Group) -> dict[str, str]:
    """Return who is who; of five members the coordinator has nothing of the partition."""
    coordinator = group.at.coordinator()
    assert coordinator is not None
    if len(group.at.names) == 5:
        group.partition = next(
            partition
            for partition, copies in enumerate(group.at.topology().partitions)
            if group.at.member_id(coordinator) not in copies.row.replicas
        )
    backup, copy = group.backups
    return dict(zip(ROLES, (group.primary, copy, coordinator, backup), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("point", "whose", "kind", "who"), cases())
def test_somebody_dies_at_a_point_of_a_return(
    point: str, whose: str, kind: SupplyKind, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, rows=10)
    seen: list[list[SupplyKind]] = []

    async def scenario(group: Group) -> None:
        at, names = group.at, roles(group)
        name, victim = names[DEMANDER], names[who]

        def strike() -> bool:
            if kind not in kinds(group, name):
                aim()  # it comes back to another partition
                return False
            seen.append(kinds(group, name))
            if victim != names[whose]:
                at.nodes[victim].kill()
            return victim == names[whose]

        def aim() -> None:
            when_reached(group, names[whose], point, strike)

        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        if kind is FULL:
            await age_logs(group)
        for i in range(4):
            await group.put(i, b"meanwhile")
        await group.remove(range(4, 6))
        if point in OF_ITS_DATA_FILE:
            when_reached(group, names[SUPPLIER], "admit.sent", aim)
        else:
            aim()
        writers = Writers(group, PAUSE_S)
        async with trio.open_nursery() as nursery:
            for i in WRITTEN:
                nursery.start_soon(writers.write, i)
            at.start([name])
            with trio.fail_after(SOON_S):
                await at.killed(victim)
            if victim != name:
                await group.until(lambda: victim not in group.in_sync and name in group.in_sync)
            at.start([victim])
            await at.settled()
            writers.ends = True
        await group.back()
        await writers.check()
        values = [await group.value(i) for i in range(8)]
        last = [LARGE + b"2" if kind is FULL else b"before"] * 2
        assert values == [b"meanwhile"] * 4 + [None] * 2 + last

    nodes, partitions = (5, 8) if who == COORDINATOR else (3, 2)
    live(
        scenario,
        nodes=nodes,
        partitions=partitions,
        options=CUT if kind is FULL else Options(),
    )
    assert seen[0][0] is kind
