"""The store, or a cluster, for the tasks of a loop: the public name of ``tidelog.engine.aio``."""

from __future__ import annotations

from .engine.aio.database import (
    Attempt as Attempt,
    Attempts as Attempts,
    Database as Database,
    Items as Items,
    Map as Map,
    Reads as Reads,
    Snapshot as Snapshot,
    Transaction as Transaction,
    memory as memory,
    open as open,
    open_with as open_with,
)

TYPE_CHECKING = False  # checkers take it as true

if TYPE_CHECKING:
    from .engine.client.tasks import (
        ClusterTasksDatabase as ClusterTasksDatabase,
        connect as connect,
    )

if not TYPE_CHECKING:  # a checker that saw it would accept any misspelt name

    def __getattr__(name: str) -> object:
        """Load the client of a cluster when it is first asked for."""
        if name in ("ClusterTasksDatabase", "connect"):
            from .engine.client import tasks

            return getattr(tasks, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
