"""A disk that hangs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import trio

from tidelog.testing import SimCluster


class Hanging:
    """The disk of a member's log that answers nothing from now on, until it is ``back``."""

    def __init__(self, at: SimCluster, name: str) -> None:
        log = at.member(name).log
        run = log.environment.run
        self._back = trio.Event()

        async def hanging(kind: str, work: Callable[[], Any]) -> Any:
            if kind == "sync":
                await self._back.wait()
            return await run(kind, work)

        log.environment = replace(log.environment, run=hanging)

    def back(self) -> None:
        self._back.set()
