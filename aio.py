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
from .engine.client.tasks import ClusterTasksDatabase as ClusterTasksDatabase, connect as connect
