"""The real environment: this machine's clock, chance, disk, threads, network and LMDB."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from .disk import RealDisk
from .environment import Address, Environment, Listener, Stream
from .open_files import open_files_max
from .thread_task import ThreadTask

if TYPE_CHECKING:
    from .blocking import BlockingRunner
    from .sockets import RealNetwork

T = TypeVar("T")


def production() -> Environment:
    """Return the real thing: this machine's clock, disk, threads, network and LMDB."""
    from .lmdb_file import open_lmdb

    trio_side = _TrioSide()
    return Environment(
        clock=_microseconds,
        monotonic=time.monotonic,
        boottime=_boottime,
        random=random.Random(),
        new_id=_new_id,
        disk=RealDisk(),
        open_kv=open_lmdb,
        background=ThreadTask,
        wait=time.sleep,
        run=trio_side.run,
        network=trio_side,
        open_files_max=open_files_max,
        finalizes=True,
    )


class _TrioSide:
    """What only code under Trio uses, which is loaded when it does: a sync store needs no Trio."""

    @cached_property
    def _runner(self) -> BlockingRunner:
        from .blocking import BlockingRunner

        return BlockingRunner(time.monotonic)

    @cached_property
    def _network(self) -> RealNetwork:
        from .sockets import RealNetwork

        return RealNetwork()

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        return await self._runner.run(kind, work)

    async def listen(self, address: Address) -> Listener:
        return await self._network.listen(address)

    async def connect(self, address: Address) -> Stream:
        return await self._network.connect(address)


def _microseconds() -> int:
    return time.time_ns() // 1000


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _new_id() -> bytes:
    return os.urandom(16)
