"""What a copy has of the stream of its partition: item n behind item n - 1, of one author (W3).

Invariants:

- Nothing of an older epoch, of another admission, or of somebody who is not the author is taken
  (K2, W2).
- An item is taken once, and in order; what comes again is answered, for the answer may be lost.

Left out: the log (``engine.node.log``), and what the author makes of the answers (``streams``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ...affinity.topology import Incarnation
from ...wal.records import CommitUptoRecord, Upto
from .returning import new_digest
from .stream import Item, Streamed
from .streams import BY_TAKEOVER

Taken = Literal["new", "again", "foreign"]


class Following:
    """One copy's place in the stream of one epoch; that begins when the copy seals the epoch."""

    __slots__ = (
        "admission", "author", "digest", "durable", "epoch", "listed", "logged", "partition",
        "pieces", "supplied", "taken",
    )  # fmt: skip

    def __init__(self, partition: int, epoch: int, author: Incarnation) -> None:
        self.partition = partition
        self.epoch = epoch
        self.author = author
        self.admission = BY_TAKEOVER
        self.listed = False
        """Whether the settle list of the epoch is durable here."""
        self.taken = 0
        """The last item that is on its way into the log."""
        self.logged = 0
        """The last item that is in the log, or in the frame that is being made."""
        self.durable = 0
        """The last item that is durable in the log."""
        self.pieces = 0
        """The last piece of what was missed that has arrived."""
        self.supplied = -1
        """The last piece that is durable; -1 before the ADMIT is, or if there is none."""
        self.digest = new_digest()
        """Of the records of these pieces, as they stand in the log."""

    @property
    def is_admitted(self) -> bool:
        """Whether this copy came to its place by an admission, and not by a takeover."""
        return self.admission != BY_TAKEOVER

    def admit(self, admission: int, begin: int) -> None:
        """Follow behind an item, by an admission (B3)."""
        self.admission = admission
        self.listed = True
        self.taken = self.logged = self.durable = begin

    def __repr__(self) -> str:
        return (
            f"<Following of partition {self.partition} epoch {self.epoch} by {self.author}: "
            f"{self.durable} of {self.taken} durable>"
        )

    def take(self, item: Item, sender: Incarnation) -> Taken:
        """Take an item, if it is the next one."""
        place = (item.epoch, item.admission, sender)
        if place != (self.epoch, self.admission, self.author) or not self.listed:
            return "foreign"
        if item.number <= self.taken:
            return "again"
        if item.number > self.taken + 1:
            return "foreign"  # what lies between was lost, and is sent again with this one
        self.taken = item.number
        return "new"


def in_order(items: Iterable[Item]) -> list[Streamed]:
    """Return the records of items as the log has them: COMMIT_UPTO last, and one for all.

    What a COMMIT_UPTO speaks of is before it in its stream, so it may go behind what follows it.
    """
    records: list[Streamed] = []
    upto: dict[int, Upto] = {}
    for item in items:
        if isinstance(item.record, CommitUptoRecord):
            upto.update((row.partition, row) for row in item.record.rows)
        else:
            records.append(item.record)
    if upto:
        records.append(CommitUptoRecord(rows=tuple(upto.values())))
    return records
