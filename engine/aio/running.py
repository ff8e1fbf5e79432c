"""Which loop runs: Trio's or asyncio's.

Invariants:

- A loop that is not running is not loaded: a program of asyncio has no Trio in memory.
- In a loop that is the guest of another one, its own tasks are asked first.
"""

from __future__ import annotations

import sys

from ...affinity.errors import UsageError
from .loops import Loop


def in_trio() -> bool:
    """Tell whether the caller is a task of Trio."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


def running_loop() -> Loop:
    """Return the loop in which the caller is a task."""
    asyncio = sys.modules.get("asyncio")
    if in_trio():
        from .trio_loop import TrioLoop

        return TrioLoop()
    if asyncio is not None and asyncio._get_running_loop() and asyncio.current_task():
        from .asyncio_loop import AsyncioLoop

        return AsyncioLoop()
    raise UsageError(
        "`tidelog.aio` needs a running Trio or asyncio loop; no task of one is calling",
        hint="Begin one with `trio.run` or `asyncio.run`; without a loop use `tidelog.open`.",
    )


def would_block() -> Exception:
    """Return the error for a read that cannot be made at once; each loop has its own."""
    if in_trio():
        from trio import WouldBlock

        return WouldBlock()
    return BlockingIOError("this read would have to wait: await `get` instead")
