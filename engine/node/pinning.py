"""A snapshot of the whole store, at one of the members that serve it (Q5).

    pin -> what is prepared is everywhere -> pinned -> resume -> held -> reads, until it ends

A *pin* is what the partitions that are served here hold at one instant, between two groups of the
log: a view of what has taken effect, and what is prepared.  From that instant until it is told to
go on, this member lets nothing take effect and acknowledges nothing (it *holds*), so there is an
instant at which all members held.

Invariants:

- While held nothing is applied, nothing is said to be prepared, and no lock is granted.
- Locks without a PREPARE are lost at a pin: what confirmed before it would be prepared behind it.
- A hold ends with its last ``resume``, after ``HOLD_S``, or with an epoch or the lease; one that
  has ended is told as such.
- A pin ends if it is not read for ``IDLE_S``, if it pins too much memory, if the data file grows,
  and if a partition of it gets another epoch.

Left out: which members are asked, and what the snapshot shows (``snapshots``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import trio

from ...affinity.errors import SnapshotExpiredError, TidelogError
from ...affinity.topology import Incarnation
from ...checkpoints.copies import columns_prepared
from ...checkpoints.replay import Applied
from ...wal.records import PrepareRecord
from ..data.overlay import Layer, View
from ..files.recovery import take_over
from ..replication.streams import Streams
from ..store.store_files import StoreFiles
from .log import NodeLog
from .participating import Participating
from .partitions import Partitions
from .post import Post
from .tasks import Tasks
from .tx_messages import PinnedHere, PreparedAtPin, held_message, pinned_message

HOLD_S = 0.05
"""Seconds that a member holds at most: a sync and a round trip, on a quick disk."""
IDLE_S = 60.0
"""Seconds without a read after which a pin ends."""
PINS_MAX = 64
"""Snapshots that are held at once; of more than that the oldest ends."""
LOOK_S = 0.002


class StorePin:
    """What one member holds of one snapshot."""

    def __init__(
        self,
        epochs: dict[int, int],
        taken: tuple[View, Layer],
        prepared: Iterable[PrepareRecord],
        ended: Callable[[Layer], object],
        now: float,
    ) -> None:
        self.began = self.used = now
        self.epochs = epochs
        """The partitions that it has, and their epochs."""
        self._view: View | None = taken[0]
        self._boundary = taken[1]
        self._ended = ended
        self.prepared = list(prepared)
        self._shown: tuple[frozenset[bytes], View] | None = None
        self._why = "it was closed"

    def __repr__(self) -> str:
        return f"<StorePin of {len(self.epochs)} partitions, {len(self.prepared)} prepared>"

    def view(self, shown: frozenset[bytes], partitions: Collection[int]) -> View:
        """Return what it shows, with what was prepared by these transactions.

        ``SnapshotExpiredError`` if it has ended, or never had one of some partitions.
        """
        if self._view is None:
            raise SnapshotExpiredError(f"the snapshot was ended: {self._why}")
        if not self.epochs.keys() >= set(partitions):
            raise SnapshotExpiredError("the snapshot was taken while others served this")
        if self._shown is None or self._shown[0] != shown:
            above = View((Layer(), *self._view.layers), self._view.txn)
            for one in self.prepared:
                columns = columns_prepared(one)
                if one.tx_id in shown and columns is not None:
                    effect = Applied(one.run, one.time, columns, late=True)
                    take_over(above, [effect])
            self._shown = shown, above
        return self._shown[1]

    # -------------------------------------------------------------- its end, as ``LiveSnapshot``

    def layers(self) -> tuple[Layer, ...] | None:
        """Return the layers that it pins; None once it has ended."""
        return None if self._view is None else self._view.layers

    def expire(self, why: str) -> None:
        """End it; its next use raises ``SnapshotExpiredError``."""
        if self._view is not None:
            self._why, self._view, self._shown, self.prepared = why, None, None, []
            self._ended(self._boundary)

    def end(self, _error: Callable[[], TidelogError]) -> None:
        """End it with its store."""
        self.expire("its member has ended")

    def forked(self, error: Callable[[], TidelogError]) -> None:
        """End it: a member is not forked."""
        self.end(error)

    def __del__(self) -> None:
        self.expire("nobody has it any more")


class _Joined(NamedTuple):
    """Who waits for the word that a pin is made."""

    near: Incarnation
    snapshot: bytes
    attempt: int


class Pinning:
    """The pins of one member, and its hold."""

    def __init__(
        self,
        files: StoreFiles,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        participating: Participating,
        post: Post,
        decided: Callable[[], int],
        now: Callable[[], float],
        tasks: Tasks,
    ) -> None:
        """``decided`` tells how many decisions have taken effect here."""
        self._files = files
        self._log = log
        self._partitions = partitions
        self._streams = streams
        self._participating = participating
        self._post = post
        self._decided = decided
        self._now = now
        self._tasks = tasks
        self._pins: dict[bytes, StorePin] = {}
        self._attempts: dict[bytes, int] = {}
        """By snapshot, which attempt its pin is of."""
        self._newest: StorePin | None = None
        """The pin of the hold."""
        self._ends: dict[int, int] = {}
        """The last PREPARE of each stream at the pin of the hold."""
        self._until = float("-inf")
        self._holding: set[tuple[bytes, int]] = set()
        """Snapshots and attempts that have not let go."""

    def __repr__(self) -> str:
        return f"<Pinning {len(self._pins)} snapshots{', holds' * self.holds}>"

    @property
    def holds(self) -> bool:
        """Whether nothing takes effect here just now."""
        return self._log.held

    # -------------------------------------------------------------- pins

    def pin(self, near: Incarnation, snapshot: bytes, attempt: int, decided: int) -> None:
        """Pin what is served here, once what is queued by now is in the log."""
        if self._log.failure is None and decided == self._decided():
            joined = _Joined(near, snapshot, attempt)
            self._log.put_barrier(lambda: self._pin(joined))

    def _pin(self, joined: _Joined) -> None:
        if not self.holds:
            self._begin()
        assert self._newest is not None
        self._pins.pop(joined.snapshot, None)
        self._pins[joined.snapshot] = self._newest
        self._attempts[joined.snapshot] = joined.attempt
        while len(self._pins) > PINS_MAX:
            self._drop(next(iter(self._pins)), "too many others came behind it")
        self._holding.add((joined.snapshot, joined.attempt))
        self._tasks.begin(self._tell_pinned, joined)

    def _begin(self) -> None:
        """Make a pin, and hold."""
        log, now = self._log, self._now()
        served = [
            c for c in self._partitions.authored() if self._partitions.is_open(c.row.partition)
        ]
        epochs = {copies.row.partition: copies.epoch for copies in served}
        pending = log.state.copies.pending
        with log.mutex:
            taken = log.overlay.snapshot()
        prepared = [
            one
            for partition in epochs
            if partition in pending
            for one in pending[partition].all()
            if isinstance(one, PrepareRecord)  # a member's own fold has no others
        ]
        self._newest = StorePin(epochs, taken, prepared, log.overlay.ended.append, now)
        self._files.snapshots.add(self._newest)
        streams = [stream for p in epochs if (stream := self._streams.get(p)) is not None]
        self._ends = {stream.partition: stream.prepared for stream in streams}
        log.held = True  # before locks go: who waited for one is granted none at this instant
        self._participating.lose_locks()
        self._until = now + HOLD_S
        self._tasks.begin(self._let_go_late)

    async def _tell_pinned(self, joined: _Joined) -> None:
        """Say that a pin is made once every copy has what is prepared at it.

        What became of something is not waited for: copies store it with their next tick only.
        """
        while not self._is_everywhere():
            await trio.sleep(LOOK_S)
            if not self.holds:
                return
        pin = self._pins.get(joined.snapshot)
        if pin is None or not self.holds:
            return
        state = self._log.state
        prepared = [
            PreparedAtPin(one.run.partition, one.tx_id, [row.partition for row in one.participants])
            for one in pin.prepared
        ]
        committed = [
            (partition, tx_id)
            for partition in pin.epochs
            for tx_id in state.copies.remembered.get(partition, ())
        ]
        told = PinnedHere(
            joined.snapshot,
            joined.attempt,
            self._decided(),
            sorted(pin.epochs),
            prepared,
            committed,
        )
        self._post.tell(joined.near, pinned_message(told))

    def _is_everywhere(self) -> bool:
        """Tell whether all copies have what was prepared at the pin."""
        for partition, end in self._ends.items():
            stream = self._streams.get(partition)
            if stream is not None and stream.stored_by_all() < end:
                return False
        return True

    # -------------------------------------------------------------- the hold

    async def _let_go_late(self) -> None:
        """Let go at the end of the time; by the clock of leases, which may run otherwise."""
        until = self._until
        while self._now() < until:
            await trio.sleep(LOOK_S)
        if self._until == until:
            self._let_go()

    def resume(self, near: Incarnation, snapshot: bytes, attempt: int) -> None:
        """Go on, and tell whether this member has held until now, with its lease (L5)."""
        name = snapshot, attempt
        pin = self._pins.get(snapshot)
        still = self.holds and self._now() < self._until and name in self._holding
        still = still and pin is not None and self._still_serves(pin)
        self._holding.discard(name)
        if not self._holding:
            self._let_go()
        if not still and self._attempts.get(snapshot) == attempt:
            self._pins.pop(snapshot, None)
        self._post.tell(near, held_message(snapshot, attempt, still=still))

    def _still_serves(self, pin: StorePin) -> bool:
        now = self._now()
        return pin.layers() is not None and all(
            self._partitions.epoch(partition) == epoch and self._partitions.serves(partition, now)
            for partition, epoch in pin.epochs.items()
        )

    def _let_go(self) -> None:
        self._holding.clear()
        self._newest = None
        if self._log.held:
            self._log.let_go()
            self._participating.tick()

    def sealed(self, partition: int) -> None:
        """End what has a partition that others serve from now on."""
        for snapshot, pin in list(self._pins.items()):
            if partition in pin.epochs:
                del self._pins[snapshot]
                pin.expire("a partition of it is served by another member, or anew")
        if self._newest is not None and partition in self._newest.epochs:
            self._let_go()

    # -------------------------------------------------------------- reads

    def view(self, snapshot: bytes, shown: Iterable[bytes], partitions: Collection[int]) -> View:
        """Return what a snapshot shows of partitions; ``SnapshotExpiredError``."""
        pin = self._pins.get(snapshot)
        if pin is None:
            raise SnapshotExpiredError("this member has no such snapshot any more")
        pin.used = self._now()
        return pin.view(frozenset(shown), partitions)

    def unpin(self, snapshot: bytes) -> None:
        """End a snapshot."""
        self._drop(snapshot, "it was closed")

    def _drop(self, snapshot: bytes, why: str) -> None:
        """Let a snapshot go; its pin ends if no other one that was taken with it has that."""
        pin = self._pins.pop(snapshot, None)
        if pin is not None and pin not in self._pins.values():
            pin.expire(why)

    def tick(self) -> None:
        """End what nobody reads, and what pins too much memory."""
        oldest = self._now() - IDLE_S
        for snapshot in [one for one, pin in self._pins.items() if pin.used < oldest]:
            self._pins[snapshot].expire(f"it was not read for {IDLE_S:g} s")
            del self._pins[snapshot]
        for snapshot in self._attempts.keys() - self._pins.keys():
            del self._attempts[snapshot]
        if self._pins:
            limit = self._files.options.snapshot_memory_max
            self._files.snapshots.expire_oldest(self._log.overlay.view, limit)
