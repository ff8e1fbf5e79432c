"""Tasks that begin by what a member hears, while nobody waits for them.

Invariants:

- A task begins only while the member runs; at its end all are cancelled, and none begins any more.
- What a task raises ends the member: who begins one says what may go wrong in it.

Left out: what is done in them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import trio

T = TypeVarTuple("T")


class Tasks:
    """The tasks of one incarnation that begin while it runs."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        running = 0 if self._nursery is None else len(self._nursery.child_tasks)
        return f"<Tasks: {running} running>"

    async def run(self) -> None:
        """Let tasks begin, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def begin(self, work: Callable[[*T], Awaitable[object]], *arguments: *T) -> bool:
        """Begin a task; False if the member does not run, and nothing was begun."""
        if self._nursery is None:
            return False
        self._nursery.start_soon(work, *arguments)
        return True
