"""Pessimistic transactions of a cluster: whom their locks stop, who ends a circle, who dies when.

Partitions p, q and r have primaries of their own.  A transaction is kept by the primary of what it
locks first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio

from support.parts import PARTITIONS, Three, together
from tidelog.codecs import Bytes
from tidelog.engine.api.choices import Mode
from tidelog.engine.client.tasks import ClusterTasksDatabase, reach_behind
from tidelog.engine.commit.outcomes import home_of
from tidelog.engine.data.stored import pack_prefix
from tidelog.engine.node.member import RunningMember
from tidelog.engine.node.open_transactions import IDLE_S_MAX
from tidelog.engine.node.plain_locks import ASK_OVER_S, PlainLocks
from tidelog.engine.node.tx_messages import AcquireWanted
from tidelog.engine.store.options import Options
from tidelog.errors import (
    DeadlineError,
    DeadlockError,
    LockTimeoutError,
    RolledBackError,
    TidelogError,
)
from tidelog.tx.locks import LockTable

SOON_S = 5.0


class Client:
    """A user of a cluster, on a machine of its own; keys are named as the partitions are."""

    def __init__(self, three: Three) -> None:
        self.three = three
        self.db: ClusterTasksDatabase = three.at.client(timeout=20.0)
        self.map: Any = self.db.map("locked", key=Bytes, value=Bytes)

    def key(self, name: str) -> bytes:
        return self.three.key(name)

    async def get(self, tx: Any, name: str) -> bytes | None:
        value: bytes | None = await tx[self.map].get(self.key(name))
        return value

    async def put(self, tx: Any, name: str, value: bytes) -> None:
        await tx[self.map].set(self.key(name), value)

    async def write(self, name: str, value: bytes) -> None:
        await self.map.set(self.key(name), value)

    async def read(self, name: str) -> bytes | None:
        with trio.fail_after(SOON_S):
            value: bytes | None = await self.map.get(self.key(name))
        return value


def idle(three: Three) -> bool:
    """Whether nobody has locked anything, and no transaction is open."""
    return not any(
        member.groups.transactions.plain._holdings or member.groups.transactions.open._open
        for member in three.at.running().values()
    )


def users(three: Three, count: int) -> Iterator[Client]:
    for _ in range(count):
        yield Client(three)


def among(count: int, scenario: Callable[..., Awaitable[None]], **options: Any) -> None:
    """Run a scenario with some users, behind the writes that fill p, q and r."""

    async def lived(three: Three) -> None:
        found = list(users(three, count))
        for name in "pqr":
            await found[0].write(name, b"old")
        await scenario(three, *found)
        await three.whole()
        await three.until(lambda: idle(three))
        for one in found:
            await one.db.aclose()

    together(lived, **options)


# ------------------------------------------------------------------ what locks stop


@pytest.mark.parametrize("other", ["pessimistic", "optimistic", None])
def test_what_was_read_stays_until_the_end_and_nobody_conflicts(other: Mode | None) -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        order = []

        async def writes() -> None:
            if other is None:
                await two.write("p", b"two")
            else:
                async with two.db.transaction(other, isolation="read_committed") as tx:
                    await two.put(tx, "p", b"two")
                    await two.put(tx, "q", b"two")
            order.append("two")

        async with trio.open_nursery() as nursery, one.db.transaction("pessimistic") as tx:
            assert await one.get(tx, "p") == b"old"
            nursery.start_soon(writes)
            await trio.sleep(0.5)
            assert order == []
            assert await one.get(tx, "q") == b"old"
            await one.put(tx, "r", b"one")
            order.append("one")
        assert order == ["one", "two"]
        assert [await one.read(name) for name in "pr"] == [b"two", b"one"]

    among(2, scenario)


def test_plain_locks_stop_no_reader_and_shared_ones_nobody_who_reads() -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        async with one.db.transaction("pessimistic") as tx:
            await one.put(tx, "p", b"one")
            await one.get(tx, "q")
            began = trio.current_time()
            assert [await two.read(name) for name in "pq"] == [b"old", b"old"]
            assert dict([pair async for pair in two.map.items()])[two.key("p")] == b"old"
            async with two.db.transaction("pessimistic") as other:
                assert await two.get(other, "q") == b"old"
            async with two.db.transaction() as reader:
                assert [await two.get(reader, name) for name in "pq"] == [b"old", b"old"]
            assert trio.current_time() - began < 0.5
        assert await two.read("p") == b"one"

    among(2, scenario)


def test_a_range_keeps_new_keys_out() -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        async with one.db.transaction("pessimistic") as tx:
            async with tx[one.map].items() as pairs:
                assert len([pair async for pair in pairs]) == 3
            with pytest.raises(LockTimeoutError):
                async with two.db.transaction("pessimistic", lock_timeout=0.2) as other:
                    await other[two.map].set(b"another key", b"two")
            await one.put(tx, "r", b"one")
        assert await two.map.get(b"another key") is None

    among(2, scenario)


def test_many_who_add_to_the_same_keys_wait_for_each_other() -> None:
    async def scenario(three: Three, *clients: Client) -> None:
        tried = 0

        async def add(client: Client) -> None:
            async def work(tx: Any) -> None:
                nonlocal tried
                tried += 1
                for name in "pq":
                    found = await tx[client.map].get(client.key(name))
                    await client.put(tx, name, found + b"+")

            for _ in range(3):
                await client.db.run(work, attempts=50)

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(add, client)
        assert await clients[0].read("p") == await clients[0].read("q") == b"old" + b"+" * 15

    among(5, scenario)


@pytest.mark.parametrize("timeout", [0, 0.3])
def test_a_lock_is_waited_for_as_long_as_was_said(timeout: float) -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        async with one.db.transaction("pessimistic") as holder:
            await one.put(holder, "p", b"one")
            async with two.db.transaction("pessimistic", lock_timeout=timeout) as tx:
                await two.put(tx, "q", b"two")
                began = trio.current_time()
                with pytest.raises(LockTimeoutError, match=r"key .* of 'locked' was not granted"):
                    await two.get(tx, "p")
                assert timeout <= trio.current_time() - began < timeout + 0.5
                await two.put(tx, "r", b"two")  # what it has it keeps
        assert [await two.read(name) for name in "pqr"] == [b"one", b"two", b"two"]

    among(2, scenario)


def test_locks_go_with_the_deadline() -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        async def waits() -> None:
            async with two.db.transaction("pessimistic", deadline=0.5) as tx:
                await two.put(tx, "q", b"two")
                with pytest.raises(DeadlineError):
                    await two.get(tx, "p")
                await one.put(holder, "q", b"one")  # nobody has said that the other is over

        async with one.db.transaction("pessimistic") as holder:
            await one.put(holder, "p", b"one")
            with pytest.raises(DeadlineError, match="deadline of the transaction"):
                await waits()
        assert [await two.read(name) for name in "pq"] == [b"one", b"one"]

    among(2, scenario)


def test_who_locks_nothing_for_long_loses_all() -> None:
    async def scenario(three: Three, one: Client) -> None:
        async def sleeps() -> None:
            async with one.db.transaction("pessimistic") as tx:
                await one.put(tx, "p", b"one")
                await trio.sleep(IDLE_S_MAX + 1)
                assert idle(three)

        with pytest.raises(RolledBackError):
            await sleeps()
        assert await one.read("p") == b"old"

    among(1, scenario)


@pytest.mark.parametrize("names", ["p", "pq"])
@pytest.mark.parametrize("read", ["", "r"])
def test_a_given_id_commits_with_locks(names: str, read: str) -> None:
    async def scenario(three: Three, one: Client) -> None:
        async with one.db.transaction("pessimistic", id=b"given id of test") as tx:
            for name in read:
                await one.get(tx, name)
            for name in names:
                await one.put(tx, name, b"new")
        assert [await one.read(name) for name in names] == [b"new"] * len(names)
        assert await one.db.outcome(b"given id of test") == "committed"

    among(1, scenario)


@pytest.mark.parametrize("names", ["q", "qr"])
def test_what_was_locked_to_be_written_where_only_the_outcome_lies_is_in_nobodys_way(
    names: str,
) -> None:
    # Its own lock was in its way, by each attempt, until its time was over.
    async def scenario(three: Three, one: Client) -> None:
        ids = (b"given id %07d" % number for number in range(9999))
        given = next(id for id in ids if home_of(id, PARTITIONS) == three.p.partition)
        async with one.db.transaction("pessimistic", id=given) as tx:
            assert not await tx[one.map].compare_and_set(one.key("p"), b"another", b"new")
            for name in names:
                await one.put(tx, name, b"new")
        assert [await one.read(name) for name in names] == [b"new"] * len(names)
        assert await one.read("p") == b"old"

    among(1, scenario)


def test_a_cancelled_wait_ends_at_once_and_the_rest_stays_locked() -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        async with one.db.transaction("pessimistic") as holder:
            await one.put(holder, "p", b"one")
            async with two.db.transaction("pessimistic") as tx:
                await two.put(tx, "q", b"two")
                with trio.move_on_after(0.3) as scope:
                    await two.get(tx, "p")
                assert scope.cancelled_caught
                await trio.sleep(0.5)
                await holder.rollback()
                async with one.db.transaction("pessimistic", lock_timeout=2) as other:
                    await one.put(other, "p", b"other")
                    with pytest.raises(LockTimeoutError):
                        await one.put(other, "q", b"other")
                await two.put(tx, "r", b"two")
        assert [await two.read(name) for name in "pqr"] == [b"other", b"two", b"two"]

    among(2, scenario)


def test_a_cancelled_first_lock_leaves_nothing_behind() -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        async with one.db.transaction("pessimistic") as holder:
            await one.put(holder, "p", b"one")
            with trio.move_on_after(0.3):
                async with two.db.transaction("pessimistic") as tx:
                    await two.get(tx, "p")
            await holder.rollback()
        await three.until(lambda: idle(three))

    among(2, scenario)


@pytest.mark.parametrize("mode", ["optimistic", "pessimistic"])
@pytest.mark.parametrize("whole", [True, False], ids=["range", "key"])
def test_what_was_not_read_in_time_does_not_count(mode: Mode, *, whole: bool) -> None:
    # Its partition was named by the commit of another one, whose member does not serve it: the
    # client was sent from one to the other until its time was over.
    async def scenario(three: Three, one: Client) -> None:
        with trio.fail_after(SOON_S):
            async with one.db.transaction(mode) as tx:
                with trio.move_on_after(1e-4) as scope:
                    if whole:
                        async with tx[one.map].items() as pairs:
                            assert [pair async for pair in pairs] == []
                    else:
                        await one.get(tx, "p")
                assert scope.cancelled_caught
                await one.put(tx, "q", b"new")
        assert await one.read("q") == b"new"

    among(1, scenario)


def test_who_has_not_got_a_lock_in_time_commits_what_else_it_writes() -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        async with one.db.transaction("pessimistic") as holder:
            await one.put(holder, "p", b"one")
            with trio.fail_after(SOON_S):
                async with two.db.transaction("pessimistic", lock_timeout=0) as tx:
                    with pytest.raises(LockTimeoutError):
                        await two.get(tx, "p")
                    await two.put(tx, "q", b"two")
        assert [await two.read(name) for name in "pq"] == [b"one", b"two"]

    among(2, scenario)


def test_who_has_given_a_first_lock_that_nobody_waited_for_keeps_the_others() -> None:
    # Another member kept them, and each of the two knew half of a circle.
    async def scenario(three: Three, one: Client, two: Client) -> None:
        first, keeper, ended = b"first", three.q.primary, []

        async def first_lock(tx: Any) -> None:
            kept = three.at.member(keeper).groups.transactions.open
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def locks() -> None:
                        await one.put(tx, "q", first)

                    nursery.start_soon(locks)
                    while not any(known.is_known for known in kept._open.values()):
                        await trio.sleep(1e-5)
                    scope.cancel()
            assert scope.cancelled_caught

        async def crosses(client: Client, tx: Any, name: str) -> None:
            try:
                await client.put(tx, name, b"second")
            except DeadlockError:
                ended.append(name)
                await tx.rollback()
            else:
                await tx.commit()

        async with one.db.transaction("pessimistic") as mine:
            await first_lock(mine)
            await one.put(mine, "r", first)
            async with two.db.transaction("pessimistic") as other:
                await two.put(other, "p", first)
                with trio.fail_after(2):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(crosses, one, mine, "p")
                        nursery.start_soon(crosses, two, other, "q")
        assert len(ended) == 1

    among(2, scenario)


# ------------------------------------------------------------------ deadlocks


async def circle(
    clients: Sequence[Client], names: str, closes: Callable[[], object] = lambda: None
) -> list[str]:
    """Let each of some clients lock a key, and, once all have one, that of the next one.

    Returns what came of them, the oldest first; their clocks tell who that is.  ``closes`` is
    called once all have one.
    """
    ended: dict[bytes, str] = {}
    have, all_have = [], trio.Event()

    async def locks(number: int) -> None:
        client, value = clients[number], b"%d" % number
        name = b""
        try:
            async with client.db.transaction("pessimistic") as tx:
                known = reach_behind(tx)._locks
                assert known is not None
                name = known.name
                await client.put(tx, names[number], value)
                have.append(number)
                if len(have) == len(clients):
                    closes()
                    all_have.set()
                await all_have.wait()
                await client.put(tx, names[(number + 1) % len(clients)], value)
        except DeadlockError:
            ended[name] = "deadlock"
        else:
            ended[name] = "committed"

    with trio.fail_after(SOON_S):
        async with trio.open_nursery() as nursery:
            for number in range(len(clients)):
                nursery.start_soon(locks, number)
    return [ended[name] for name in sorted(ended)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("names", ["pq", "qp", "pqr", "rqp", "qpr"])
def test_of_a_circle_over_members_the_youngest_ends_and_nobody_else(names: str, seed: int) -> None:
    async def scenario(three: Three, *clients: Client) -> None:
        *older, youngest = await circle(clients, names)
        assert older == ["committed"] * (len(names) - 1)
        assert youngest == "deadlock"

    among(len(names), scenario, seed=seed)


def test_a_circle_ends_while_members_take_checkpoints_that_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing was looked after meanwhile: locks, copies that are silent, signs of life.  A
    # checkpoint of a million small values takes five seconds, and longer beside a full copy.
    taken, ended = list[str](), trio.Event()

    async def checkpoint(_self: RunningMember, reason: str) -> None:
        taken.append(reason)
        await ended.wait()

    async def scenario(three: Three, *clients: Client) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(RunningMember, "checkpoint", checkpoint)
            await trio.sleep(Options().checkpoint_interval + 1)
            assert taken == ["idle"] * 3, "each member is at one"
            assert await circle(clients, "pq") == ["committed", "deadlock"]
            ended.set()

    among(2, scenario)


def test_two_who_upgrade_what_both_have_read_are_a_circle_at_one_member() -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        ended = []

        async def upgrade(client: Client) -> None:
            try:
                async with client.db.transaction("pessimistic") as tx:
                    await client.get(tx, "p")
                    await trio.sleep(0.3)
                    await client.put(tx, "p", b"new")
            except DeadlockError:
                ended.append("deadlock")
            else:
                ended.append("committed")

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upgrade, one)
            nursery.start_soon(upgrade, two)
        assert sorted(ended) == ["committed", "deadlock"]
        assert trio.current_time() - began < 1.0

    among(2, scenario)


def test_who_waits_for_a_circle_without_being_in_it_goes_on() -> None:
    async def scenario(three: Three, *clients: Client) -> None:
        waits, *others = clients

        async def waiting() -> None:
            async with waits.db.transaction("pessimistic") as tx:
                await waits.put(tx, "r", b"waits")
                await waits.put(tx, "p", b"waits")

        async with trio.open_nursery() as nursery:

            def closes() -> None:
                nursery.start_soon(waiting)

            assert await circle(others, "pq", closes) == ["committed", "deadlock"]
        assert await waits.read("p") == await waits.read("r") == b"waits"

    among(3, scenario)


def test_who_waits_in_a_long_queue_is_looked_at_once_by_each_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each probe went through the queues of all who were before: 400 who waited took a member
    # 2.7 seconds, every 0.4 seconds, and to come took them as long.
    many = 60
    looked = 0
    blockers = LockTable.blockers

    def counted(table: LockTable, owner: int) -> list[int]:
        nonlocal looked
        looked += 1
        return blockers(table, owner)

    async def scenario(three: Three, one: Client) -> None:
        member = three.at.member(three.q.primary)
        plain, partition = member.groups.transactions.plain, three.q.partition
        epoch = three.at.topology().partitions[partition].epoch
        key = pack_prefix(partition, three.q.number) + one.key("q")
        names = [b"%016d" % number for number in range(many)]
        for name in names:
            wanted = AcquireWanted(
                1, name, [partition], [epoch], [key], True, False, None, 9_000_000
            )
            plain.acquire(member.agreement.me, wanted)
        for waiting in plain._acquiring.values():
            waiting.probe_at = 0.0
        with monkeypatch.context() as patch:
            patch.setattr(LockTable, "blockers", counted)
            plain.tick()
        assert many <= looked + 1 <= 2 * many
        plain.give_back(names)

    among(1, scenario)


def test_without_probes_a_circle_lasts_until_a_lock_was_waited_for_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PlainLocks, "_probe", lambda *_: None)

    async def scenario(three: Three, *clients: Client) -> None:
        with pytest.raises(trio.TooSlowError):
            await circle(clients, "pq")

    among(2, scenario)


# ------------------------------------------------------------------ who dies


async def taken(three: Three, client: Client, value: bytes) -> None:
    """Write p and q as soon as nobody else has them locked."""
    with trio.fail_after(15):
        async with client.db.transaction("pessimistic", lock_timeout=15) as tx:
            await client.put(tx, "p", value)
            await client.put(tx, "q", value)


@pytest.mark.parametrize("names", ["pq", "qp"], ids=["the keeper", "another primary"])
def test_who_dies_with_locks_takes_the_transaction_along(names: str) -> None:
    """The primary of p dies: it keeps what has locked p first."""

    async def scenario(three: Three, one: Client, two: Client) -> None:
        async def loses() -> None:
            async with one.db.transaction("pessimistic") as tx:
                for name in names:
                    await one.put(tx, name, b"one")
                await three.at.kill(three.near)
                await taken(three, two, b"two")

        with pytest.raises(RolledBackError):
            await loses()
        assert [await two.read(name) for name in "pq"] == [b"two", b"two"]

    among(2, scenario)


def test_a_member_that_only_keeps_a_transaction_dies_and_all_locks_go() -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        async def loses() -> None:
            async with one.db.transaction("pessimistic") as tx:
                await one.get(tx, "r")
                for name in "pq":
                    await one.put(tx, name, b"one")
                await three.at.kill(three.r.primary)
                await taken(three, two, b"two")

        with pytest.raises(RolledBackError):
            await loses()
        assert [await two.read(name) for name in "pq"] == [b"two", b"two"]

    among(2, scenario)


def test_a_new_epoch_of_what_was_only_read_ends_it_too() -> None:
    async def scenario(three: Three, one: Client) -> None:
        async def loses() -> None:
            async with one.db.transaction("pessimistic") as tx:
                await one.get(tx, "p")
                await one.get(tx, "q")
                await one.put(tx, "r", b"one")
                target = next(name for name in three.at.names if name != three.q.primary)
                epoch = three.q.epoch
                three.at.member(three.q.primary).move(
                    three.q.partition, three.at.member_id(target).bytes, lambda _refused: None
                )
                await three.q.taken_over(epoch)

        with pytest.raises(RolledBackError):
            await loses()
        assert await one.read("r") == b"old"

    among(1, scenario)


@pytest.mark.parametrize("how", ["closes", "is cut off"])
def test_locks_go_with_the_connection(how: str) -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        with suppress(TidelogError):
            async with one.db.transaction("pessimistic") as tx:
                for name in "qp":
                    await one.put(tx, name, b"one")
                if how == "closes":
                    await one.db.aclose()
                else:
                    for name in three.at.names:
                        three.at.world.network.reset(name, "c1")
                await taken(three, two, b"two")
        assert [await two.read(name) for name in "pq"] == [b"two", b"two"]

    among(2, scenario)


def test_locks_whose_return_was_lost_are_asked_after() -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        async with one.db.transaction("pessimistic") as tx:
            await one.put(tx, "q", b"one")
            await one.put(tx, "p", b"one")
            keeper = three.q.primary
            three.at.hold("give-back", src=keeper, dst=three.near)
            await tx.rollback()
            await trio.sleep(0.1)
            three.at.world.network.reset(keeper, three.near)
            three.at.release("give-back", src=keeper, dst=three.near)
        began = trio.current_time()
        await taken(three, two, b"two")
        assert 0.5 < trio.current_time() - began < ASK_OVER_S + 1
        assert await two.read("p") == b"two"

    among(2, scenario)


# ------------------------------------------------------------------ commits


def test_readers_wait_once_a_commit_has_begun_and_see_all_of_it() -> None:
    """A plain lock stops no reader, a commit lock all: it has its place in the order (T12)."""

    async def scenario(three: Three, one: Client, two: Client) -> None:
        three.hold_everywhere("confirm")

        async def commits() -> None:
            async with one.db.transaction("pessimistic") as tx:
                assert await one.get(tx, "r") == b"old"
                await one.put(tx, "q", b"new")
                assert await two.read("q") == b"old"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commits)
            transactions = three.at.member(three.q.primary).groups.transactions
            await three.until(lambda: any(one.was_locked for one in transactions.works))
            with trio.move_on_after(0.2) as scope:
                await two.read("q")
            assert scope.cancelled_caught
            three.at.holds.release_all()
        assert await two.read("q") == b"new"

    among(2, scenario)


@pytest.mark.parametrize("when", ["before the commit", "behind its locks"])
def test_a_pin_takes_commit_locks_and_leaves_plain_ones(when: str) -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        async def pinned() -> None:
            async with two.db.snapshot() as old:
                assert await old[two.map].get(two.key("q")) == b"old"

        async def commits() -> None:
            async with one.db.transaction("pessimistic") as tx:
                await one.get(tx, "r")
                await one.put(tx, "p", b"new")
                await one.put(tx, "q", b"new")
                if when == "before the commit":
                    await pinned()

        async def is_rolled_back() -> None:
            with pytest.raises(RolledBackError):
                await commits()

        if when == "before the commit":
            await commits()
            assert [await two.read(name) for name in "pq"] == [b"new", b"new"]
            return
        three.hold_everywhere("confirm")
        transactions = three.at.member(three.q.primary).groups.transactions
        async with trio.open_nursery() as nursery:
            nursery.start_soon(is_rolled_back)
            await three.until(lambda: any(one.was_locked for one in transactions.works))
            await pinned()
            three.at.holds.release_all()
        assert [await two.read(name) for name in "pq"] == [b"old", b"old"]

    among(2, scenario)


def test_attempts_lock_from_the_third_on() -> None:
    async def scenario(three: Three, one: Client, two: Client) -> None:
        tried = 0

        async def work(tx: Any) -> None:
            nonlocal tried
            tried += 1
            found = await one.get(tx, "p")
            with trio.move_on_after(0.5) as scope:
                await two.write("p", b"%d" % tried)  # it comes between, if it can
            assert scope.cancelled_caught is (tried == 3)
            assert found is not None
            await one.put(tx, "q", found)
            await one.put(tx, "p", b"end")

        await one.db.run(work)
        assert tried == 3
        assert await one.read("q") == b"2"

    among(2, scenario)


def test_a_write_without_locks_has_its_turn_among_those_who_lock_without_a_pause() -> None:
    # It was looked at anew behind the queue each time, and never came to its turn: 18 seconds.
    async def scenario(three: Three, writer: Client, *lockers: Client) -> None:
        ended = False

        async def lock(one: Client) -> None:
            while not ended:
                async with one.db.transaction("pessimistic") as tx:
                    await one.put(tx, "p", b"locked")
                    await one.put(tx, "q", b"locked")

        async with trio.open_nursery() as nursery:
            for one in lockers:
                nursery.start_soon(lock, one)
            for _ in range(5):
                with trio.fail_after(2.0):
                    await writer.write("p", b"written")
            ended = True

    among(5, scenario)
