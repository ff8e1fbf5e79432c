"""Whether there is room for what is to be written: in memory, in the log's queue, at the copies.

Left out: what a transaction may have at most (``committing``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from ..replication.streams import Streams
from .log import NodeLog
from .partitions import RoutedError

OUTSTANDING_BYTES_MAX = 32 << 20
"""Bytes of one partition that some copy does not have yet; who brings more comes again."""
QUEUED_BYTES_MAX = 256 << 20
"""Bytes of updates that wait for the log; who brings more is told to come again."""
LATE_S_MAX = 1.0
"""Seconds after something has come in which a copy answers though its memory is full, unless its
disk takes longer: long before anybody takes it for silent."""

_Said = TypeVar("_Said")


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


class LateWords(Generic[_Said]):
    """What a copy says later while its memory is full, so that others send it less."""

    def __init__(self, log: NodeLog) -> None:
        self._log = log
        self._words: list[_Said] = []
        self._since = 0.0

    def put_off(self, word: _Said, since: float, now: float) -> bool:
        """Keep something for later; False, and nothing kept, if it may be said at once.

        ``since`` is when that came which it answers; if that is a second ago nothing is kept.
        """
        if not self._log.is_full or now >= since + LATE_S_MAX:
            return False
        if not self._words:
            self._since = since
        self._words.append(word)
        return True

    def due(self, now: float) -> list[_Said]:
        """Return what is to be said now, in order: all of it, once there is room or time is up."""
        if self._words and (not self._log.is_full or now >= self._since + LATE_S_MAX):
            words, self._words = self._words, []
            return words
        return []
