"""Counts over the updates of a log, as `wal stat` and the jobs of Spark tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class MapTally:
    """What a log did to one map."""

    puts: int = 0
    deletes: int = 0
    key_bytes: int = 0
    value_bytes: int = 0

    def add(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Count updates: ``keys[i]`` got ``values[i]``, or was deleted if that is None."""
        deletes = values.count(None)
        self.puts += len(keys) - deletes
        self.deletes += deletes
        self.key_bytes += sum(map(len, keys))
        self.value_bytes += sum(len(value) for value in values if value is not None)

    def merge(self, other: MapTally) -> None:
        """Add what was counted elsewhere."""
        self.puts += other.puts
        self.deletes += other.deletes
        self.key_bytes += other.key_bytes
        self.value_bytes += other.value_bytes
