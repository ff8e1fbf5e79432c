"""The real environment: this machine's clock, chance, disk, threads and LMDB."""

from __future__ import annotations

import os
import random
import time

from .disk import RealDisk
from .environment import Environment
from .thread_task import ThreadTask


def production() -> Environment:
    """Return the real thing: this machine's clock, disk, threads and LMDB."""
    from .lmdb_file import open_lmdb

    return Environment(
        clock=_microseconds,
        monotonic=time.monotonic,
        random=random.Random(),
        new_id=_new_id,
        disk=RealDisk(),
        open_kv=open_lmdb,
        background=ThreadTask,
        wait=time.sleep,
        finalizes=True,
    )


def _microseconds() -> int:
    return time.time_ns() // 1000


def _new_id() -> bytes:
    return os.urandom(16)
