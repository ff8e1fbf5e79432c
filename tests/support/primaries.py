"""A primary of some partitions: a real log over nothing but memory, and what is around it.

The log is carried by ``carry``, streams are stored by copies when a test says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from threading import Lock
from types import SimpleNamespace
from typing import Any

import trio
from sortedcontainers import SortedDict
from trio.testing import MockClock, wait_all_tasks_blocked

from support.group_transactions import (
    BOB,
    CID,
    MAP,
    ME,
    NAMES,
    PARTITIONS,
    Said,
    Told,
    key_in,
    name_in,
    topology,
)
from tidelog.affinity.partitions import one_space
from tidelog.affinity.topology import Incarnation, PartitionCopies, Topology
from tidelog.checkpoints.replay import State
from tidelog.engine.data.overlay import Overlay
from tidelog.engine.data.point_reads import read_stored
from tidelog.engine.data.stored import VALUE, version_of
from tidelog.engine.node.commit_locks import CommitLocks
from tidelog.engine.node.group_locks import GroupLocks
from tidelog.engine.node.log import NodeLog
from tidelog.engine.node.participating import Participating
from tidelog.engine.node.partitions import Partitions
from tidelog.engine.node.plain_locks import PlainLocks
from tidelog.engine.node.settling import Settling
from tidelog.engine.node.tx_messages import (
    ConfirmWanted,
    GroupOutcome,
    LockWanted,
    PrepareWanted,
    Question,
    ReadKey,
    ReadSpan,
)
from tidelog.engine.node.works import Works
from tidelog.engine.replication.stream import StoredUpto
from tidelog.engine.replication.streams import Streams
from tidelog.engine.store.live_snapshots import LiveSnapshots
from tidelog.engine.store.options import Options
from tidelog.testing.kv_cursor import MemoryCursor
from tidelog.wal.records import (
    NamespaceRecord,
    Opened,
    OpenRecord,
    Participant,
    PrepareRecord,
    Record,
    Run,
    Settled,
    SettleRecord,
    decode_payload,
)

__all__ = ["BOB", "CID", "MAP", "ME", "NAMES", "Primary", "Said", "key_in", "name_in"]
COPIES = {0: (ME, BOB), 1: (ME,), 2: (ME, BOB, CID), 4: (ME,)}
"""Who has copies of the partitions that are served here."""


class Writer:
    """The end of a log, in memory."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.synced = self.announced = 0
        self.failure: BaseException | None = None
        self.fails: BaseException | None = None
        """What the next append raises."""
        self.sync_fails: BaseException | None = None

    @property
    def position(self) -> int:
        return sum(map(len, self.payloads))

    def append(self, payload: bytes) -> bool:
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        self.payloads.append(payload)
        return True

    def sync(self) -> int:
        if self.sync_fails is not None:
            self.failure = self.sync_fails
            raise self.sync_fails
        self.synced = self.position
        return self.synced

    def rotate(self) -> None:
        raise AssertionError("everything fits")


class NoPairs:
    """A data file that has nothing."""

    def __init__(self) -> None:
        self.tree: SortedDict[bytes, bytes] = SortedDict()

    def check(self) -> None:
        """Nothing ends."""

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        return default

    def cursor(self) -> Any:
        return MemoryCursor(self)  # type: ignore[arg-type]  # it only reads


class Leases:
    """What is decided, and whether this member has its lease."""

    def __init__(self, me: Incarnation) -> None:
        self.topology = topology()
        self.held = self.has_majority = True
        self._me = me

    def may_serve(self, partition: int, now: float) -> bool:
        return self.held and self.is_author(self.topology.partitions[partition])

    def is_author(self, copies: PartitionCopies) -> bool:
        return copies.author == self._me

    def is_released(self, copies: PartitionCopies) -> bool:
        return False

    def reaches_majority(self, now: float) -> bool:
        return self.has_majority


class Primary:
    """One member: partition 0 has a copy at Bob too, 1 and 4 are here alone, 2 is at all three."""

    def __init__(
        self,
        me: Incarnation = ME,
        copies: Mapping[int, tuple[Incarnation, ...]] | None = None,
    ) -> None:
        self.me, self.copies = me, copies or COPIES
        self.now = 100.0
        self._seen = 0
        self.state = State(b"s" * 16, one_space(PARTITIONS))
        self.state.time = 1000
        self.state.namespaces = {
            MAP: NamespaceRecord(
                id=MAP, name="m", key_codec="bytes", key_version=1, value_codec="bytes",
                value_version=1,
            )
        }  # fmt: skip
        self.writer, self.streams, self.leases = Writer(), Streams(), Leases(me)
        self.sync_runs: Callable[[], object] = lambda: None
        """Called while a sync is on its way."""
        files: Any = SimpleNamespace(
            environment=SimpleNamespace(
                clock=lambda: 1000, new_id=lambda: b"n" * 16, boottime=lambda: self.now,
                monotonic=lambda: self.now, reached=lambda _point: None, run=self._run,
            ),
            mutex=Lock(), state=self.state,
            overlay=Overlay(NoPairs()),  # type: ignore[arg-type]  # it only reads
            writer=self.writer, path="store",
            keeper=SimpleNamespace(note_given_id=lambda _tx_id: None),
            snapshots=LiveSnapshots(),
            options=SimpleNamespace(
                snapshot_memory_max=1 << 20, checkpoint_policy=Options().checkpoint_policy
            ),
        )  # fmt: skip
        self.files = files
        self.log = NodeLog(files, self.streams)
        self.partitions = Partitions(self.leases, 0.0)
        self.locks, self.post = GroupLocks(lambda: self.now), Told()
        post: Any = self.post
        self.plain = PlainLocks(self.log, self.partitions, self.locks, post, lambda: self.now)
        self.works = Works()
        self.commit_locks = CommitLocks(
            self.works, self.log, self.partitions, self.streams, self.locks, self.plain, post,
            lambda: self.now,
        )  # fmt: skip
        self.here = Participating(
            self.works, self.commit_locks, self.log, self.partitions, self.streams, self.locks,
            post, lambda: self.now,
        )  # fmt: skip
        self.settling = Settling(
            self.works, self.log, self.partitions, self.here, post, lambda: self.now
        )
        self.log.advanced = self._advanced
        self.decide()
        for partition in self.copies:
            self.state.copies.open(partition, 1)
            self.opened(partition, 1)

    def _advanced(self) -> None:
        self.commit_locks.advanced()
        self.plain.advanced()

    def tick(self) -> None:
        """Let what waits for time go on."""
        self.commit_locks.tick()
        self.here.tick()

    # -------------------------------------------------------------- around it

    async def _run(self, _what: str, work: Callable[[], object]) -> None:
        self.sync_runs()
        work()

    def trio(self, work: Callable[[], Awaitable[object]]) -> None:
        trio.run(work, clock=MockClock(autojump_threshold=0))

    def carry(self) -> None:
        """Let the log write what it has."""

        async def work() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.log.run)
                nursery.start_soon(written, nursery.cancel_scope)
                while not nursery.cancel_scope.cancel_called:
                    self.log.hurry()  # as each tick does, for what waits for company
                    await wait_all_tasks_blocked()

        async def written(scope: trio.CancelScope) -> None:
            await self.log.written()
            scope.cancel()

        self.trio(work)

    def stored(self, partition: int, *copies: Incarnation) -> None:
        """Let copies have all of a stream."""
        stream = self.streams.get(partition)
        assert stream is not None
        for copy in copies:
            row = StoredUpto(partition, 0, stream.epoch, stream.end)
            self.streams.stored(copy, row, self.now)
        self.decide_log()

    def decide_log(self) -> None:
        async def work() -> None:
            self.log.decide()

        self.trio(work)

    def sync(self) -> None:
        """Let the log write, and sync what went into it without a sync of its own."""
        self.log.put_barrier(lambda: None)
        self.carry()
        self.decide_log()

    def all_have(self, partition: int) -> None:
        """Let the log write, durably, and all copies have it."""
        self.sync()
        self.stored(partition, *(one for one in self.copies[partition] if one != self.me))

    def decide(
        self,
        epochs: Mapping[int, int] | None = None,
        away: tuple[Incarnation, ...] = (),
        boots: Mapping[Incarnation, int] | None = None,
        authors: Mapping[int, Incarnation] | None = None,
    ) -> Topology:
        """Let something be decided."""
        here = dict.fromkeys(self.copies, self.me)
        found = topology(epochs, here | dict(authors or {}), away=away, boots=boots)
        self.leases.topology = found
        self.settling.decided(found)
        self.commit_locks.decided(found)
        self.here.decided(found)
        self.plain.decided(found)
        return found

    def opened(self, partition: int, epoch: int) -> None:
        others = [one for one in self.copies[partition] if one != self.me]
        self.streams.open(partition, epoch, others, self.now)
        self.partitions.opened([(partition, epoch)])
        self.here.opened(partition)
        self.settling.opened(partition)

    def seal(self, partition: int, epoch: int, author: Incarnation = ME) -> None:
        """Let a partition get another epoch, in which this member has sealed it."""
        self.decide({partition: epoch}, authors={partition: author})
        stream = self.streams.close(partition)
        assert stream is not None
        self.log.forsake(stream)
        self.here.sealed(partition)
        self.plain.sealed(partition)
        self.settling.sealed(partition)

    def open_again(self, partition: int, epoch: int, *settled: Settled) -> None:
        """Open an epoch whose list says what becomes of what was pending."""
        start = self.state.counters[partition].hwm + 1
        records: list[Record] = [
            SettleRecord(
                partition=partition, epoch=epoch, start=start, transactions=settled, closed=()
            ),
            OpenRecord(rows=(Opened(partition, epoch),)),
        ]
        self.log.put_records(records, lambda: None)
        self.carry()
        self.opened(partition, epoch)

    # -------------------------------------------------------------- what is there

    def said(self) -> list[Said]:
        return self.post.said()

    def kinds(self) -> list[tuple[str, str]]:
        return self.post.kinds()

    def records(self) -> list[Record]:
        """Return what has got into the log since the last call."""
        payloads = self.writer.payloads[self._seen :]
        self._seen += len(payloads)
        return [record for payload in payloads for record in decode_payload(payload)]

    def value(self, full_key: bytes) -> bytes | None:
        stored = read_stored(self.log.overlay.view, int.from_bytes(full_key[:4], "big"), full_key)
        return None if stored is None else bytes(stored[VALUE])

    def version(self, full_key: bytes) -> tuple[int, int]:
        stored = read_stored(self.log.overlay.view, int.from_bytes(full_key[:4], "big"), full_key)
        return (0, 0) if stored is None else version_of(stored)[:2]

    def pending(self, partition: int) -> list[Run]:
        return [one.run for one in self.state.copies.prepared(partition).all()]


# ------------------------------------------------------------------ what is asked


def lock(
    partition: int, tx_id: bytes, ask: int = 1, *, number: int = 0, epoch: int = 1, **more: Any
) -> LockWanted:
    fields: dict[str, Any] = {"attempt": 1, "given": None} | more
    return LockWanted(
        ask, tx_id, fields["attempt"], fields["given"], partition, epoch,
        [key_in(partition, number)],
    )  # fmt: skip


def confirm(
    partition: int,
    reads: Sequence[tuple[int, int, int]] = (),
    ranges: Sequence[ReadSpan] = (),
    ask: int = 1,
) -> ConfirmWanted:
    """Ask whether the n-th keys of a partition have these epochs and counters."""
    rows = [ReadKey(key_in(partition, number), *version) for number, *version in reads]
    return ConfirmWanted(ask, partition, rows, list(ranges))


def prepare(partition: int, tx_id: bytes, ask: int = 1, **more: Any) -> PrepareWanted:
    """Ask a partition, and partition 3, to prepare the n-th key."""
    fields: dict[str, Any] = {
        "attempt": 1, "given": None, "tag": None, "locked": False, "epoch": 1, "number": 0,
        "value": b"v", "others": (3,), "reads": (), "ranges": (), "shared": (), "home": 0,
    } | more  # fmt: skip
    rows = {one: Participant(one, 1, 1) for one in fields["others"]}
    rows[partition] = Participant(partition, fields["epoch"], 1)
    return PrepareWanted(
        ask, tx_id, fields["attempt"], fields["given"], fields["tag"], fields["home"],
        tuple(rows[one] for one in sorted(rows)), fields["locked"], partition, fields["epoch"],
        [key_in(partition, fields["number"])], [fields["value"]],
        [ReadKey(key_in(partition, n), *version) for n, *version in fields["reads"]],
        list(fields["ranges"]), [key_in(partition, n) for n in fields["shared"]],
    )  # fmt: skip


def question(partition: int, tx_id: bytes, **more: Any) -> Question:
    fields: dict[str, Any] = {"attempt": 1, "near": CID, "epoch": 1} | more
    near = fields["near"]
    return Question(
        tx_id, fields["attempt"], (near.member.bytes, near.boot), partition, fields["epoch"]
    )


def committed(tx_id: bytes, *runs: Run, attempt: int = 1, time: int = 2000) -> GroupOutcome:
    return GroupOutcome(tx_id, attempt, runs, time)


def rolled_back(tx_id: bytes, attempt: int = 1) -> GroupOutcome:
    return GroupOutcome(tx_id, attempt, (), 0)


def prepared_of(records: Sequence[Record]) -> PrepareRecord:
    [found] = [record for record in records if isinstance(record, PrepareRecord)]
    return found
