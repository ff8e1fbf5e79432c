"""The open stores of this process, and what becomes of them at its end and behind a fork.

Nothing here, and no background work, keeps a handle alive: one that is lost is collected, and lets
go of its store then.

Left out: what closing is (``database``).
"""

from __future__ import annotations

import atexit
import logging
import os
import warnings
import weakref
from typing import Protocol

from ...affinity.errors import TidelogError

log = logging.getLogger("tidelog.store")


class Handle(Protocol):
    """An open store."""

    @property
    def path(self) -> str:
        """The directory of the store."""

    def close(self) -> None:
        """Let go of the store."""

    def forked(self) -> None:
        """Let every later call raise: this is the child of the process that opened it."""


open_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def warn_of_lost(path: str) -> None:
    """Warn that nobody refers to an open store any more, so that it was let go of."""
    warnings.warn(
        f"the store {path} was not closed: use it in a `with` block, or call `close`",
        ResourceWarning,
        stacklevel=3,  # behind the finalizer: the line that lost it
    )


def _close_all() -> None:
    """Close what a program left open at its end; daemon threads still run then."""
    for handle in list(open_handles):
        try:
            handle.close()
        except TidelogError as error:
            event = {"event": "store.close_failed"}
            log.error(
                "store.close_failed: Tidelog: closing the store %s failed: %s",
                handle.path,
                error,
                extra=event,
            )


def _after_fork() -> None:
    for handle in list(open_handles):
        handle.forked()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
