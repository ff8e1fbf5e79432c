"""What a copy that comes back was sent is what it has, or it does not count; and neither side holds
more of that than its limits say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from support.copies import Group, live
from tidelog.checkpoints.copies import CopyState
from tidelog.engine.data import full_pairs
from tidelog.engine.data.full_pairs import PackedPairs
from tidelog.engine.data.stored import VALUE, checked
from tidelog.engine.node import filling, supply_log, taking_in
from tidelog.engine.node.log import NodeLog
from tidelog.engine.node.member import RunningMember
from tidelog.engine.node.returns import PATIENCE_S, Return
from tidelog.engine.node.taking_in import TakingIn
from tidelog.engine.store.options import Options
from tidelog.engine.system.environment import Environment
from tidelog.rebalance.choosing import SupplyKind
from tidelog.testing.kv import MemoryKv
from tidelog.wal.records import Columns, Record, SuppliedRecord

CUT = Options(segment_bytes=20_000, retain_bytes=1, checkpoint_bytes=1_000)
"""What a checkpoint has carried over is in no log any more."""
LARGE = b"large " * 400
UNPACKED = "tidelog.engine.node.member.unpacked"
Patch = pytest.MonkeyPatch


def kinds(group: Group, name: str) -> list[SupplyKind]:
    """Return how a member came back to the partition, at each attempt that anybody knows of."""
    return [
        one.choice.kind
        for running in group.at.running().values()
        for one in running.groups.supplies.ways.explained.get(group.partition, ())
        if one.copy.member == group.at.member_id(name)
    ]


async def cut_history(group: Group) -> None:
    """Write so much that what is old goes from the logs."""
    for turn in range(3):
        for i in range(20):
            await group.put(i, LARGE + b"%d of %d" % (i, turn))
        for name in sorted(group.in_sync & group.at.running().keys()):
            await group.at.checkpoint(name)


# ---------------------------------------------------------------- by history


def another_value(records: Sequence[Record]) -> list[Record]:
    """The records, with another value in the first that has one."""
    [first, *others] = records
    assert isinstance(first, SuppliedRecord)
    [one, *more] = first.transactions
    columns = one.columns
    changed = Columns(columns.namespaces, columns.keys, [b"another", *columns.values[1:]])
    return [replace(first, transactions=(one._replace(columns=changed), *more)), *others]


def the_first_twice(records: Sequence[Record]) -> list[Record]:
    return [records[0], *records]


HISTORY: list[Callable[[Sequence[Record]], list[Record]]] = [another_value, the_first_twice]


def log_wrongly(patch: Patch, wrong: Callable[[Sequence[Record]], list[Record]]) -> list[bool]:
    """Let the next supply get into a log otherwise than it came; return what is true then."""
    genuine, done = NodeLog.put_records, list[bool]()

    def put_records(self: NodeLog, records: Iterable[Record], *about: Any) -> None:
        made = list(records)
        if not done and any(isinstance(one, SuppliedRecord) and one.transactions for one in made):
            done.append(True)
            made = wrong(made)
        genuine(self, made, *about)

    patch.setattr(NodeLog, "put_records", put_records)
    return done


@pytest.mark.parametrize("wrong", HISTORY, ids=lambda one: one.__name__)
def test_a_copy_whose_log_has_not_what_was_supplied_is_copied_anew(
    wrong: Callable[[Sequence[Record]], list[Record]],
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The frames of the wire and of the log are right, and no number is missing.
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await group.put(range(5), b"meanwhile")
        done = log_wrongly(monkeypatch, wrong)
        await group.back(name)
        assert done
        first, second, *_ = kinds(group, name)
        assert (first, second) == (SupplyKind.HISTORICAL, SupplyKind.FULL)

    live(scenario)
    assert "node.supply_differs" in caplog.text


def test_what_a_log_has_wrongly_counts_no_more_behind_a_restart(monkeypatch: Patch) -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await group.put(range(5), b"meanwhile")
        done = log_wrongly(monkeypatch, another_value)
        group.at.start([name])
        await group.until(lambda: bool(done))
        copies = group.at.member(name).log.state.copies
        cleared = CopyState.NOT_WHOLE
        await group.until(lambda: copies.states.get(group.partition) is cleared)
        await group.at.kill(name)
        await group.back(name)
        assert SupplyKind.FULL in kinds(group, name)

    live(scenario)


# ---------------------------------------------------------------- in full


def without_a_piece(pieces: list[PackedPairs]) -> list[PackedPairs]:
    return pieces[1:]


def a_piece_twice(pieces: list[PackedPairs]) -> list[PackedPairs]:
    return [pieces[0], *pieces]


def in_another_order(pieces: list[PackedPairs]) -> list[PackedPairs]:
    return pieces[::-1]


@pytest.fixture
def small_pieces(monkeypatch: Patch) -> None:
    monkeypatch.setattr(filling, "PIECE_ROWS", 3)


PIECES: list[Callable[[list[PackedPairs]], list[PackedPairs]]] = [
    without_a_piece,
    a_piece_twice,
    in_another_order,
]


def come_back_in_full(monkeypatch: Patch, plant: Callable[[], None], planted: list[int]) -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(30), b"before")
        await group.equal()
        await group.away(name)
        await cut_history(group)
        plant()
        await group.back(name)
        assert planted
        assert kinds(group, name).count(SupplyKind.FULL) > 1

    live(scenario, options=CUT)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("wrong", PIECES, ids=lambda one: one.__name__)
def test_a_full_copy_that_lacks_a_piece_or_has_it_twice_or_elsewhere_does_not_count(
    wrong: Callable[[list[PackedPairs]], list[PackedPairs]],
    monkeypatch: Patch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    genuine, planted = taking_in._Filling.take_pairs, list[int]()

    def take_pairs(self: Any) -> list[PackedPairs]:
        pieces = genuine(self)
        if len(pieces) > 1 and not planted:
            planted.append(1)
            return wrong(pieces)
        return pieces

    def plant() -> None:
        monkeypatch.setattr(taking_in._Filling, "take_pairs", take_pairs)

    come_back_in_full(monkeypatch, plant, planted)
    assert "node.fill_differs" in caplog.text


def test_a_full_copy_with_another_value_does_not_count(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    # It is whole, with a checksum of its own.
    genuine, planted = full_pairs.unpacked, list[int]()

    def unpacked(*about: Any) -> Any:
        keys, stored, left_out = genuine(*about)
        if not planted:
            planted.append(1)
            other = b"another" + stored[0][len(stored[0][VALUE]) :]
            stored = [*checked(keys[:1], [other]), *stored[1:]]
        return keys, stored, left_out

    come_back_in_full(monkeypatch, lambda: monkeypatch.setattr(UNPACKED, unpacked), planted)
    assert "node.fill_differs" in caplog.text


def test_a_map_that_is_dropped_while_its_pairs_come_in_is_no_difference(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    genuine, left_out = full_pairs.unpacked, list[int]()

    def unpacked(*about: Any) -> Any:
        found = genuine(*about)
        left_out.append(found[2].live)
        return found

    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(30), b"before")
        await group.equal()
        await group.away(name)
        await cut_history(group)
        asked = Return.room

        async def room(self: Return, *about: Any) -> None:
            if not left_out:
                left_out.append(0)
                client = await group.client()
                await client.ask("drop", "m")
                client.close()
                there = group.at.running().values()
                number = group.number
                await group.until(
                    lambda: all(number not in one.log.state.namespaces for one in there)
                )
            await asked(self, *about)

        monkeypatch.setattr(Return, "room", room)
        monkeypatch.setattr(UNPACKED, unpacked)
        monkeypatch.setattr(taking_in, "STORE_BYTES", 1 << 30)
        await group.back(name)
        assert sum(left_out) == 30

    live(scenario, options=CUT)
    assert "node.fill_differs" not in caplog.text


# ---------------------------------------------------------------- giving way


@pytest.fixture
def rests(monkeypatch: Patch) -> list[str]:
    """A list that has each rest of who computes: what is being done by the one who rests."""
    found, doing = list[str](), ["something else"]

    def named(owner: type, name: str, what: str) -> None:
        genuine = getattr(owner, name)

        def called(self: Any, *about: Any) -> Any:
            doing.append(what)
            try:
                return genuine(self, *about)
            finally:
                doing.pop()

        monkeypatch.setattr(owner, name, called)

    genuine_rest = Environment.rest

    def rest(self: Environment) -> None:
        found.append(doing[-1])
        genuine_rest(self)

    monkeypatch.setattr(Environment, "rest", rest)
    named(supply_log.SearchedLog, "read", "history")
    return found


def test_who_looks_for_history_gives_way(rests: list[str]) -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(0, b"before")
        await group.equal()
        await group.away(name)
        for i in range(2 * supply_log.RECORDS):
            await group.put(i, b"meanwhile")
        await group.back(name)
        assert kinds(group, name) == [SupplyKind.HISTORICAL]

    live(scenario)
    assert rests.count("history") >= 2


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("writes", [True, False])
def test_a_full_copy_gives_way_to_who_writes(writes: bool, monkeypatch: Patch) -> None:
    pauses, asked, sleep = list[float](), Return.room, trio.sleep

    async def recorded(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(30), b"before")
        await group.equal()
        await group.away(name)
        await cut_history(group)
        await group.at.quiesce()

        async def room(self: Return, *about: Any) -> None:
            if writes:
                await group.put(0, b"meanwhile")
            await asked(self, *about)

        monkeypatch.setattr(Return, "room", room)
        monkeypatch.setattr(filling, "trio", SimpleNamespace(sleep=recorded))
        await group.back(name)
        assert SupplyKind.FULL in kinds(group, name)

    live(scenario, options=CUT)
    assert all(0 <= pause <= filling.PAUSE_S_MAX for pause in pauses)
    assert len(pauses) >= 10 if writes else len(pauses) <= 2


# ---------------------------------------------------------------- bounds

PIECE, AHEAD, TELL, STORE, HELD = 4_000, 16_000, 4_000, 16_000, 64_000
VALUE_BYTES = 1_000


@pytest.fixture
def small_limits(monkeypatch: Patch) -> None:
    monkeypatch.setattr(filling, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(filling, "AHEAD_BYTES", AHEAD)
    monkeypatch.setattr(taking_in, "TELL_BYTES", TELL)
    monkeypatch.setattr(taking_in, "STORE_BYTES", STORE)
    monkeypatch.setattr(taking_in, "HELD_BYTES", HELD)


class Most:
    """What both sides of full copies held at most, and what was sent, in bytes."""

    def __init__(self) -> None:
        self.sent = self.under_way = self.held = 0

    def watch(self, monkeypatch: Patch) -> None:
        """Begin to look."""
        tell, filled = Return.tell, TakingIn.filled

        def told(returning: Return, message: Any, answer: Any, size: int = 0) -> None:
            tell(returning, message, answer, size)
            self.sent += size
            self.under_way = max(self.under_way, returning.bytes_under_way)

        def arrived(taking: TakingIn, *about: Any) -> None:
            filled(taking, *about)
            self.held = max(self.held, taking.bytes_held)

        monkeypatch.setattr(Return, "tell", told)
        monkeypatch.setattr(TakingIn, "filled", arrived)


def ranges(count: int, size: int) -> Iterator[range]:
    return (range(first, first + size) for first in range(0, count, size))


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("keys", [400, 1600])
def test_what_both_sides_hold_of_a_full_copy_does_not_grow_with_it(
    keys: int, monkeypatch: Patch
) -> None:
    """The disk of the copy is slow, so that both come to their limits.

    A partition of four times the size holds no more.
    """
    most, fill = Most(), RunningMember.fill

    async def slow(self: RunningMember, *about: Any) -> Any:
        await trio.sleep(0.2)
        return await fill(self, *about)

    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(0, b"before")
        await group.equal()
        await group.away(name)
        for some in ranges(keys, 20):
            await group.put(some, b"v" * VALUE_BYTES)
        await cut_history(group)
        most.watch(monkeypatch)
        monkeypatch.setattr(RunningMember, "fill", slow)
        await group.back(name)
        assert SupplyKind.FULL in kinds(group, name)

    live(scenario, options=CUT)
    piece = PIECE + 3 * VALUE_BYTES
    assert most.sent > keys * VALUE_BYTES
    assert AHEAD <= most.under_way < AHEAD + piece
    assert HELD <= most.held < HELD + AHEAD + piece


MIB = 1 << 20
LARGE_BYTES, AT_ONCE = 256 << 10, 16
"""Of a value of a large copy, and how many of them a transaction sets."""


@pytest.mark.parametrize(
    "mib",
    [128, pytest.param(5120, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])],
)
def test_a_large_full_copy_is_never_held_at_once(mib: int, monkeypatch: Patch) -> None:
    """With the limits as they are; 5 GiB take a quarter of an hour at most, and 12 GiB of memory.

    The data files of the simulation keep their pairs as they are, and are not written out with each
    commit: nobody starts again from them.
    """
    most = Most()

    def commit(self: MemoryKv, tree: Any) -> None:
        def carried() -> None:
            self._inode.version += 1

        self._disk.perform("commit", self._path, carried, size=len(tree))
        self._tree, self._version = tree, self._inode.version

    async def scenario(group: Group) -> None:
        async def put_all(count: int) -> None:
            for first in range(0, count, AT_ONCE):
                await group.put(range(first, first + AT_ONCE), bytes(LARGE_BYTES))

        async def checkpoint() -> None:
            for other in sorted(group.in_sync & group.at.running().keys()):
                await group.at.checkpoint(other)

        name = group.backups[-1]
        await group.put(0, b"before")
        await group.equal()
        await group.away(name)
        monkeypatch.setattr(MemoryKv, "commit", commit)
        await put_all(mib * MIB // LARGE_BYTES)
        await checkpoint()
        for _ in range(3):
            await put_all(4 * AT_ONCE)
            await checkpoint()
        most.watch(monkeypatch)
        await group.back(name)
        assert SupplyKind.FULL in kinds(group, name)

    for limit in ("support.copies.SOON_S", "support.copies.BACK_S"):
        monkeypatch.setattr(limit, 1e6)
    monkeypatch.setattr("tidelog.testing.cluster.SETTLE_S_MAX", 1e6)
    options = Options(segment_bytes=8 * MIB, retain_bytes=1, checkpoint_bytes=16 * MIB)
    live(scenario, backups=1, options=options)
    assert most.sent >= mib * MIB
    assert most.under_way < filling.AHEAD_BYTES + filling.PIECE_BYTES + LARGE_BYTES
    assert most.held < 4 * taking_in.STORE_BYTES < taking_in.HELD_BYTES


@pytest.mark.usefixtures("small_limits")
def test_a_copy_whose_disk_is_slower_than_its_primary_is_patient_comes_back(
    monkeypatch: Patch,
) -> None:
    fill, begun = RunningMember.fill, list[float]()

    async def slow(self: RunningMember, *about: Any) -> Any:
        begun.append(trio.current_time())
        await trio.sleep(PATIENCE_S + 1)
        return await fill(self, *about)

    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(0, b"before")
        await group.equal()
        await group.away(name)
        for some in ranges(120, 20):
            await group.put(some, b"v" * VALUE_BYTES)
        await cut_history(group)
        monkeypatch.setattr(RunningMember, "fill", slow)
        await group.back(name)
        assert kinds(group, name).count(SupplyKind.FULL) == 1

    live(scenario, options=CUT)
    assert len(begun) > 1
