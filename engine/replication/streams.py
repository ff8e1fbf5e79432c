"""The streams of a member: what it tells the copies of the partitions that it serves, in order.

A *stream* belongs to one partition and one epoch, and has numbered items, from 1 on: the OPEN of
the epoch, then PREPARE, COMMIT_UPTO, COMMIT, ROLLBACK and OUTCOMES.  Each other copy that gets it
is a *follower*: it logs item n behind item n - 1, and says up to which number it has everything
durable (W3).  One that is catching up begins behind the item that was the last when it was
admitted, and counts for nothing until it joins (B7).  Those that count are the ack set.

An item is *everywhere* when it is durable here and at every follower that counts.  A one-group
transaction whose PREPARE is everywhere has committed, and nobody needs to hear of it first (T15).
One of several groups is *prepared* here then, and all of them decide (T6).

An example, of a stream with the followers b and c:

====================== ===== ======= ======= ========== ==========================================
what happens           own   b has   c has   everywhere then
====================== ===== ======= ======= ========== ==========================================
PREPARE of 7 is item 4 3     3       3       3          b and c are sent item 4
the log is synced      4     3       3       3
b has stored item 4    4     4       3       3
c's removal is decided 4     4       -       4          7 has committed, and its client is told
====================== ===== ======= ======= ========== ==========================================

Invariants:

- Items of a partition are in the order of their update numbers, so COMMIT_UPTO can name one.
- An item is kept until every follower has it: a follower whose connection broke is sent again what
  lies behind the highest number that it has told.
- Without followers that count everything that is durable here is everywhere.

Left out: the log (``engine.node.log``), connections (``engine.node.outflow``), and how a message is
made of items (``reports``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from ...affinity.topology import Incarnation
from ...wal.records import CommitUptoRecord, Opened, OpenRecord, PrepareRecord, Upto
from .reports import Acknowledged
from .stream import EndRecord, Item, StoredUpto, Streamed

BY_TAKEOVER = 0
"""The admission of a copy that is in the set since the epoch was given (W2)."""
ITEM_OVERHEAD = 100
"""About what an item takes beside its keys and values, in bytes."""
NEARLY_ITEMS = 64
"""Items that a copy may lack and still take over quickly."""


class Kept(NamedTuple):
    """What is kept of an item until every follower has it.

    ``last`` is the last update number of a PREPARE.  ``commits`` is the update number up to which
    everything of this partition alone has committed once the item is everywhere, 0 if that says
    nothing of it; ``waits`` is who is told then.
    """

    record: Streamed
    last: int
    commits: int
    size: int
    waits: object


class Follower:
    """A copy that has to store a stream."""

    __slots__ = (
        "admission", "begun", "behind", "copy", "counts", "number", "sent", "stored",
        "waited_since",
    )  # fmt: skip

    def __init__(
        self, copy: Incarnation, admission: int, now: float, *, begin: int = 0, counts: bool = True
    ) -> None:
        self.copy = copy
        self.admission = admission
        self.counts = counts
        """Whether it is waited for."""
        self.begun = begin
        """The last item that it does not get."""
        self.sent = begin
        """The last item that went to it over the connection that there is."""
        self.stored = begin
        """The last item that it has durably."""
        self.number = 0
        """The last update number that it has said to have durably."""
        self.waited_since = now
        """When it last had everything, or stored something; later if it was excused since."""
        self.behind: dict[int, Follower] = {}
        """The followers of its member that lack something, by partition."""


class PartitionStream:
    """The stream of one partition, in the epoch that this member has opened."""

    def __init__(self, partition: int, epoch: int, copies: Iterable[Incarnation], now: float):
        self.partition = partition
        self.epoch = epoch
        self.end = 0
        """The number of the last item."""
        self.prepared = 0
        """The number of the last PREPARE."""
        self.own = 0
        """Up to which item the own log is durable."""
        self.everywhere = 0
        self.committed = 0
        """Up to which update number everything has committed."""
        self.untold: Upto | None = None
        self.followers = {copy: Follower(copy, BY_TAKEOVER, now) for copy in copies}
        self.bytes = 0
        """Of the items that are not everywhere."""
        self.kept_bytes = 0
        """Of all items that are kept: some follower lacks them."""
        self._items: deque[Kept] = deque()
        self._dropped = 0

    def __repr__(self) -> str:
        having = " ".join(f"{one.copy}:{one.stored}" for one in self.followers.values())
        return (
            f"<PartitionStream {self.partition} epoch {self.epoch}: {self.own} of {self.end} "
            f"durable here, {having or 'no followers'}>"
        )

    def add(self, item: Kept, now: float) -> None:
        """Add an item, which is on its way into the own log."""
        for follower in self.followers.values():
            if follower.stored == self.end:
                follower.waited_since = now
        self._items.append(item)
        self.end += 1
        if isinstance(item.record, PrepareRecord):
            self.prepared = self.end
        self.bytes += item.size
        self.kept_bytes += item.size

    def admit(self, copy: Incarnation, admission: int, now: float) -> Follower:
        """Let a copy follow from the next item on; it does not count yet (B3)."""
        known = self.followers.get(copy)
        assert known is None or not known.counts
        follower = Follower(copy, admission, now, begin=self.end, counts=False)
        self.followers[copy] = follower
        return follower

    def unsent(
        self, follower: Follower, bytes_max: int, *, one_at_least: bool
    ) -> tuple[list[Item], int]:
        """Return the next items for a follower, and their bytes."""
        found: list[Item] = []
        size, number, admission = 0, follower.sent, follower.admission
        while number < self.end:
            kept = self._items[number - self._dropped]
            if size + kept.size > bytes_max and (found or not one_at_least):
                break
            number += 1
            size += kept.size
            found.append(Item(self.partition, admission, self.epoch, number, kept.record))
        return found, size

    def keep(self, copies: Iterable[Incarnation]) -> list[Follower]:
        """Take it that others are not followers any more, by a decision (I2); return those."""
        kept, before = set(copies), self.followers
        self.followers = {copy: one for copy, one in before.items() if copy in kept}
        return [one for copy, one in before.items() if copy not in kept]

    def stored(self, copy: Incarnation, admission: int, number: int, now: float) -> bool:
        """Take it that a follower has all items up to one; tell whether that is new."""
        follower = self.followers.get(copy)
        if follower is None or follower.admission != admission:
            return False
        if not follower.stored < number <= self.end:
            return False
        for item in islice(self._items, follower.stored - self._dropped, number - self._dropped):
            if isinstance(item.record, PrepareRecord):
                follower.number = item.last
        follower.stored = number
        follower.sent = max(follower.sent, number)
        follower.waited_since = now
        return True

    def stored_by_all(self) -> int:
        """Return up to which item the ack set has everything durable."""
        durable = self.own
        for follower in self.followers.values():
            if follower.stored < durable and follower.counts:
                durable = follower.stored
        return durable

    def advance(self) -> list[object]:
        """Go on to what is everywhere by now; return who is answered, in order."""
        durable = self.stored_by_all()
        answered: list[object] = []
        while self.everywhere < durable:
            item = self._items[self.everywhere - self._dropped]
            self.everywhere += 1
            self.committed = max(self.committed, item.commits)
            self.bytes -= item.size
            if item.waits is not None:
                answered.append(item.waits)
        needed = self.everywhere
        for follower in self.followers.values():
            if follower.stored < needed:
                needed = follower.stored
        while self._dropped < needed:
            self.kept_bytes -= self._items.popleft().size
            self._dropped += 1
        return answered

    def acknowledged(self) -> tuple[Acknowledged, ...]:
        """Return up to which update number each follower has said to have the stream (K3)."""
        return tuple(
            Acknowledged(copy.member, copy.boot, max(one.number, 0))
            for copy, one in self.followers.items()
        )

    def waiting(self) -> list[object]:
        """Return who waits for items that are not everywhere, in order."""
        left = islice(self._items, self.everywhere - self._dropped, None)
        return [item.waits for item in left if item.waits is not None]

    def excuse(self, seconds: float, now: float) -> None:
        """Let some seconds count against no follower."""
        for follower in self.followers.values():
            follower.waited_since = min(follower.waited_since + seconds, now)

    def late(self, now: float, patience: float) -> Iterator[Incarnation]:
        """Yield the followers that have stored nothing for too long, though there was something."""
        for follower in self.followers.values():
            if follower.stored < self.end and now > follower.waited_since + patience:
                yield follower.copy

    def has_nearly_all(self, member: UUID) -> bool:
        """Tell whether a member is waited for, and lacks few items: it can go on soon."""
        return any(
            copy.member == member and one.counts and one.stored + NEARLY_ITEMS >= self.end
            for copy, one in self.followers.items()
        )


class Streams:
    """All streams of one incarnation, by partition."""

    def __init__(self) -> None:
        self._open: dict[int, PartitionStream] = {}
        self._behind: dict[UUID, dict[int, Follower]] = {}
        self._moved: dict[int, None] = {}
        self._untold: dict[int, None] = {}

    def __repr__(self) -> str:
        return f"<Streams of {len(self._open)} partitions>"

    def __iter__(self) -> Iterator[PartitionStream]:
        return iter(self._open.values())

    def get(self, partition: int) -> PartitionStream | None:
        """Return the stream of a partition; None if this member has not opened it."""
        return self._open.get(partition)

    def alone(self, partition: int) -> bool:
        """Tell whether no other copy is to have what is written to a partition (T15)."""
        stream = self._open.get(partition)
        return stream is None or not stream.followers

    def counts_alone(self, partition: int) -> bool:
        """Tell whether no other copy is waited for: those that there are only catch up."""
        stream = self._open.get(partition)
        return stream is None or not any(one.counts for one in stream.followers.values())

    # -------------------------------------------------------------- epochs and sets

    def open(self, partition: int, epoch: int, copies: Iterable[Incarnation], now: float) -> None:
        """Begin a stream; its OPEN, which is in the own log, is its first item."""
        stream = self._open[partition] = PartitionStream(partition, epoch, copies, now)
        for copy, follower in stream.followers.items():
            follower.behind = self._behind.setdefault(copy.member, {})
        if stream.followers:
            record = OpenRecord(rows=(Opened(partition, epoch),))
            self.add(partition, Kept(record, 0, 0, ITEM_OVERHEAD, None), now)
            self.logged(partition, 1)

    def close(self, partition: int) -> PartitionStream | None:
        """End a stream, as the partition has another epoch; return it.

        Its ``untold`` is what has committed, and the own log does not say so yet.
        """
        self._moved.pop(partition, None)
        if partition in self._untold:
            stream = self._open[partition]
            stream.untold = Upto(partition, stream.epoch, stream.committed)
            del self._untold[partition]
        for behind in self._behind.values():
            behind.pop(partition, None)
        return self._open.pop(partition, None)

    def admit(self, partition: int, copy: Incarnation, admission: int, now: float) -> int:
        """Let a copy follow behind the last item; return the number of that."""
        follower = self._open[partition].admit(copy, admission, now)
        follower.behind = self._behind.setdefault(copy.member, {})
        follower.behind.pop(partition, None)
        return follower.sent

    def join(self, partition: int, copy: Incarnation) -> int:
        """Wait for a copy from here on (I2); return the number of the last item by now."""
        stream = self._open[partition]
        stream.followers[copy].counts = True
        self._moved[partition] = None
        return stream.end

    def drop(self, partition: int, copy: Incarnation) -> None:
        """Let a copy follow no more that was not waited for."""
        follower = self._open[partition].followers.pop(copy)
        assert not follower.counts
        follower.behind.pop(partition, None)
        self._moved[partition] = None

    def keep(self, partition: int, copies: Iterable[Incarnation]) -> None:
        """Take it that a partition has these copies beside the own one, and no others."""
        stream = self._open.get(partition)
        if stream is not None:
            for follower in stream.keep(copies):
                follower.behind.pop(partition, None)
            self._moved[partition] = None

    # -------------------------------------------------------------- items

    def add(self, partition: int, item: Kept, now: float) -> int:
        """Add an item to the stream of a partition; return its number."""
        stream = self._open[partition]
        stream.add(item, now)
        for follower in stream.followers.values():
            follower.behind[partition] = follower
        return stream.end

    def logged(self, partition: int, number: int) -> None:
        """Take it that the own log has an item durably, and all before it."""
        stream = self._open.get(partition)
        if stream is not None:
            stream.own = max(stream.own, number)
            self._moved[partition] = None

    def stored(self, copy: Incarnation, row: StoredUpto, now: float) -> None:
        """Take how far a copy has stored a stream."""
        partition, admission, epoch, number = row
        stream = self._open.get(partition)
        if stream is None or stream.epoch != epoch:
            return
        if stream.stored(copy, admission, number, now):
            self._moved[partition] = None

    def advance(self) -> tuple[list[Upto], list[object]]:
        """Return what has committed since the last call, and who is answered, in order."""
        rows: list[Upto] = []
        answered: list[object] = []
        moved, self._moved = self._moved, {}
        for partition in moved:
            stream = self._open[partition]
            before = stream.committed
            answered += stream.advance()
            if stream.committed > before:
                rows.append(Upto(partition, stream.epoch, stream.committed))
                self._untold[partition] = None
        return rows, answered

    def untold(self) -> list[Upto]:
        """Return what has committed, and neither the own log nor the followers know."""
        streams = map(self._open.__getitem__, self._untold)
        return [Upto(one.partition, one.epoch, one.committed) for one in streams]

    def tell(self, rows: Iterable[Upto], now: float) -> list[tuple[int, int]]:
        """Add what ``untold`` returned, which is in the own log now; return the new items."""
        added: list[tuple[int, int]] = []
        for row in rows:
            stream = self._open.get(row.partition)
            if stream is None or stream.epoch != row.epoch:
                continue
            if stream.committed == row.last:
                self._untold.pop(row.partition, None)
            if stream.followers:
                item = Kept(CommitUptoRecord(rows=(row,)), 0, 0, ITEM_OVERHEAD, None)
                added.append((row.partition, self.add(row.partition, item, now)))
        return added

    def prepare(self, record: PrepareRecord, size: int, waits: object, now: float) -> int:
        """Add a prepared transaction, which is in the own log; return its number.

        0 if its epoch has ended meanwhile.
        """
        stream = self._open.get(record.run.partition)
        if stream is None or stream.epoch != record.run.epoch:
            return 0
        last = record.run.first + record.run.count - 1
        commits = last if len(record.participants) == 1 else 0
        item = Kept(record, last, commits, size + ITEM_OVERHEAD, waits)
        return self.add(record.run.partition, item, now)

    def end(self, partition: int, epoch: int, record: EndRecord, waits: object, now: float) -> int:
        """Add what became of transactions, which is in the own log now; return its number.

        0 if the epoch has ended meanwhile.
        """
        stream = self._open.get(partition)
        if stream is None or stream.epoch != epoch:
            return 0
        return self.add(partition, Kept(record, 0, 0, ITEM_OVERHEAD, waits), now)

    # -------------------------------------------------------------- what is sent

    def members_behind(self) -> list[UUID]:
        """Return the members that there is something to send to."""
        return [member for member, behind in self._behind.items() if behind]

    def next_items(self, member: UUID, bytes_max: int) -> list[Item]:
        """Return the next items for a member, of all partitions in turn."""
        found: list[Item] = []
        left = bytes_max
        for partition, follower in self._behind.get(member, {}).items():
            items, size = self._open[partition].unsent(follower, left, one_at_least=not found)
            left -= size
            found += items
            if left <= 0:
                break
        return found

    def sent(self, member: UUID, items: Iterable[Item]) -> None:
        """Take it that these items are on their way to a member."""
        behind = self._behind[member]
        for item in items:
            behind[item.partition].sent = item.number
        for partition in {item.partition for item in items}:
            if behind[partition].sent == self._open[partition].end:
                del behind[partition]

    def send_again(self, member: UUID) -> None:
        """Take it that what was on its way to a member may have been lost."""
        for stream in self._open.values():
            for follower in stream.followers.values():
                if follower.copy.member == member:
                    follower.sent = follower.stored
                    if follower.sent < stream.end:
                        follower.behind[stream.partition] = follower
