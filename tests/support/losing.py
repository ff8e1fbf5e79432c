"""Members that are declared lost, and partitions that are reset, as scenarios speak of them."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from support.copies import Group


async def ask(group: Group, name: str, operation: str, *arguments: object) -> object:
    """Return what a member answers."""
    client = await group.client(name)
    try:
        with trio.fail_after(30):
            return await client.ask(operation, *arguments)
    finally:
        client.close()


async def lose(group: Group, names: Iterable[str]) -> None:
    """Declare members lost that have gone; all that are there have heard of it then."""
    at = group.at
    for name in names:
        await group.until(lambda name=name: at.member_id(name) not in at.topology().members_present)  # type: ignore[misc]
        other = next(one for one in at.running() if one != name)
        await ask(group, other, "lose", at.member_id(name).bytes)
    decided = at.topology().index
    there = [at.member(n) for n in at.running() if at.member_id(n) in at.topology().members_present]
    await group.until(lambda: all(one.ended or one.decided >= decided for one in there))
