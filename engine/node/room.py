"""Whether there is room for what is to be written: in memory, in the log's queue, at the copies.

Left out: what a transaction may have at most (``committing``).
"""

from __future__ import annotations

from collections.abc import Collection

from ..replication.streams import Streams
from .log import NodeLog
from .partitions import RoutedError

OUTSTANDING_BYTES_MAX = 32 << 20
"""Bytes of one partition that some copy does not have yet; who brings more comes again."""
QUEUED_BYTES_MAX = 256 << 20
"""Bytes of updates that wait for the log; who brings more is told to come again."""


def check_room(log: NodeLog, streams: Streams, partitions: Collection[int]) -> bool:
    """Tell whether other copies have to store what partitions are about to get.

    ``RoutedError`` if checkpoints, the log, or a copy lag too far.
    """
    if log.is_full:
        raise RoutedError("wait", "more is written here than checkpoints keep up with")
    if log.queued_bytes > QUEUED_BYTES_MAX:
        raise RoutedError("wait", "more is to be written here than the disk keeps up with")
    shared = [
        stream
        for partition in partitions
        if (stream := streams.get(partition)) is not None and stream.followers
    ]
    if any(stream.bytes > OUTSTANDING_BYTES_MAX for stream in shared):
        raise RoutedError("wait", "a copy does not keep up with what is written")
    return bool(shared)
