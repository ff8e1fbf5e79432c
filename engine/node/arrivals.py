"""Items of a stream that have arrived at a copy, on their way into its log.

Invariants:

- Items whose epoch has ended before their turn are left out (K2).
- If they do not get into the log the connection ends: over the next one they are sent again.

Left out: whether they are the next ones of their stream (``replication.following``), and who is
answered (``groups``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...wal.records import OpenRecord, PrepareRecord, encode_record
from ..commit.entries import Commit
from ..data.updates import NoUpdates
from ..net.connection import Connection
from ..replication.following import Following, in_order
from ..replication.stream import Item, Streamed
from ..replication.streams import ITEM_OVERHEAD
from .log import NodeLog, record_bytes


class ArrivedItems:
    """Items of one message on their way into the log of a copy."""

    def __init__(
        self,
        items: Sequence[Item],
        followed: Mapping[int, Following],
        log: NodeLog,
        connection: Connection,
    ) -> None:
        self._items = items
        self._followed = followed
        self._log = log
        self._connection = connection
        self._places = {item.partition: followed[item.partition] for item in items}
        self._records: list[Streamed] = []

    @property
    def matters(self) -> bool:
        """Whether anybody waits for it: not for what only tells what became of something."""
        return any(isinstance(item.record, PrepareRecord | OpenRecord) for item in self._items)

    def commit(self, answer: Callable[[list[Following]], object]) -> Commit:
        """Return what is queued; ``answer`` is told the places that have something new."""
        commit = Commit(NoUpdates(), durable=True)
        commit.size = sum(ITEM_OVERHEAD + record_bytes(item.record) for item in self._items)
        commit.record, commit.undo = self._record, self._undo
        commit.then = lambda: self._log.fold(self._records, lambda: self._then(answer))
        return commit

    def _record(self, _time: int) -> bytes:
        kept = []
        for item in self._items:
            place = self._places[item.partition]
            if self._followed.get(item.partition) is place and item.number == place.logged + 1:
                place.logged = item.number
                kept.append(item)
        self._records = in_order(kept)
        for record in self._records:
            if isinstance(record, PrepareRecord):
                self._log.context.note_given_id(record.tx_id)
        return b"".join(map(encode_record, self._records))

    def _then(self, answer: Callable[[list[Following]], object]) -> None:
        for place in self._places.values():
            place.durable = place.logged
        answer([place for place in self._places.values() if place.durable])

    def _undo(self) -> None:
        for place in self._places.values():
            place.taken = place.logged = place.durable
        self._connection.end()
