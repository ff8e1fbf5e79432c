"""What became of a transaction of which the log tells nothing any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from support.copies import (
    CUT,
    LARGE,
    STAYING,
    Begun,
    Group,
    admitted,
    age_logs,
    kinds,
    live,
    supply_waits,
)
from support.losing import ask, lose
from support.parts import Three, together
from tidelog.codecs import Str
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.api.open import open_with
from tidelog.engine.commit.outcomes import CLOCKS_APART, dated_id, home_of
from tidelog.engine.system.environment import Environment
from tidelog.rebalance.choosing import SupplyKind
from tidelog.testing import SimCluster

QUICK = Timing(join_wait=1.0, swap_pause=1e6)
AHEAD_US = CLOCKS_APART // 3
"""By how much the clock of a client is ahead, where it is."""


def date_ids(*groups: Group, ahead: int = 0) -> None:
    """Let ids tell when they were made, by the clock of a primary, or one that is ahead of it."""
    at, name = groups[0].at, groups[0].primary
    wall, store = at.nodes[name].clocks.wall_us, at.member(name).log.state.store_id
    ids = iter(range(100_000))
    for group in groups:
        group.new_id = lambda: dated_id(  # type: ignore[method-assign]
            wall() + ahead, b"%016d" % next(ids), store, given=False
        )


async def moved(group: Group, name: str) -> None:
    """Let another copy serve the partition."""
    before, member = group.epoch, group.at.member_id(name).bytes
    group.at.member(group.primary).move(group.partition, member, lambda _refused: None)
    await group.taken_over(before)
    assert group.primary == name


async def rolled_back_unseen(group: Group) -> tuple[str, Begun]:
    """Let a takeover roll back what its dead primary has; return that member, and what it was."""
    old, epoch = group.primary, group.epoch
    has_it, lacks_it = group.backups
    await group.put(0, b"old")
    await group.at.quiesce()
    group.hold("replicate", old, lacks_it)
    begun = await group.begin(0, b"new")
    await group.pending_at(begun.tx_id, old, has_it)
    await group.fall(old, outcome="kept")
    group.release("replicate", old, lacks_it)
    await group.taken_over(epoch)
    assert await group.outcome(begun.tx_id) == "rolled_back"
    return old, begun


def apart(group: Group) -> tuple[int, int]:
    """Return two partitions of which one member has copies, and whose primaries do not share any.

    The clock of the first one's primary is further ahead of the other one's than in any other two.
    """
    at, rows = group.at, {}
    for partition in range(at.partitions):
        group.partition = partition
        rows[partition] = [group.primary, *group.backups]
    walls = {name: at.nodes[name].clocks.wall_us() for name in at.names}
    return max(
        (
            (fast, slow)
            for fast, (primary, author, _) in rows.items()
            for slow, (other, *backups) in rows.items()
            if author in backups and other not in rows[fast] and primary != other
        ),
        key=lambda pair: walls[rows[pair[0]][0]] - walls[rows[pair[1]][0]],
    )


def test_clocks_of_primaries_that_differ_do_not_make_a_commit_a_refusal() -> None:
    # Their records stand in one log; the first that is kept was of a clock that is seconds behind,
    # so what had been dropped seemed to be younger than all that had been.
    async def scenario(group: Group) -> None:
        at = group.at
        fast, slow = apart(group)
        group.partition = fast
        old, author, epoch = group.primary, group.backups[0], group.epoch
        date_ids(group)
        begun = []
        for _ in range(24):
            group.partition = slow
            await group.put(range(3), LARGE)
            group.partition = fast
            begun.append(await group.put(range(3), LARGE))
            await at.checkpoint(author)
        assert at.member(author)._files.keeper.first_position > 0
        await group.fall(old)
        await group.taken_over(epoch)
        assert group.primary == author
        told = [await group.outcome(tx_id) for tx_id in begun[::2]]
        assert told[0] == "too_old"
        assert told[-1] == "committed"
        assert "rolled_back" not in told

    live(scenario, seed=4, partitions=16, nodes=5, options=CUT)


def test_what_a_takeover_has_rolled_back_has_not_committed_for_a_copy_that_missed_that() -> None:
    # Its number is of the old epoch still, and the PREPARE in the log of the old primary seemed to
    # have committed, once that was back and served again.
    async def scenario(group: Group) -> None:
        old, begun = await rolled_back_unseen(group)
        await group.back(old)
        await moved(group, old)
        assert await group.value(0) == b"old"
        assert await group.outcome(begun.tx_id) == "rolled_back"

    live(scenario)


def test_a_copy_made_in_full_knows_soon_that_what_it_does_not_know_has_not_committed() -> None:
    # It never did while its log had the copy in it, and each commit that was under way to a primary
    # that died was an error for its client.
    async def scenario(group: Group) -> None:
        at, old, name = group.at, group.primary, group.backups[0]
        date_ids(group)
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await age_logs(group)
        with_pairs = await group.put(3, b"with the pairs")
        await group.back(name)
        assert SupplyKind.FULL in kinds(group, name)
        early = group.new_id()
        await group.put(4, b"behind them")
        await trio.sleep(CLOCKS_APART / 1e6 + 10)
        known, late = await group.put(5, b"later"), group.new_id()
        assert at.member(name)._files.keeper.fills().of(group.partition).until, (
            "the log has it still"
        )
        epoch = group.epoch
        await group.fall(old)
        await group.taken_over(epoch)
        assert group.primary == name
        told = [await group.outcome(one) for one in (with_pairs, early, known, late)]
        assert told == ["too_old", "too_old", "committed", "rolled_back"]

    live(scenario, options=CUT)


def test_what_is_in_doubt_for_long_comes_again_behind_a_full_copy_and_makes_nothing_older() -> None:
    # Its time, of minutes ago, was taken for one that nothing of the copy lies behind: what had
    # been acknowledged since, and could be read, was told to be rolled back.
    at = SimCluster(seed=1, nodes=7, partitions=24, backups=1, timing=STAYING, options=CUT)
    three = Three(at, apart=True)

    async def lived(_at: SimCluster) -> None:
        await three.start()
        p, q = three.p, three.q
        old, [name] = p.primary, p.backups
        date_ids(p, q, three.r)
        await three.put(p=b"old", q=b"old")
        await at.quiesce()
        at.hold("prepare", src=old, dst=q.primary)
        doubt = await three.begin({"p": b"new", "q": b"new"})
        await p.pending_at(doubt.tx_id, old, name)
        await q.fall(q.primary, *q.backups)
        at.holds.release_all()
        await trio.sleep(2 * CLOCKS_APART / 1e6)
        await p.away(name)
        for turn in range(4):
            for first in range(1, 20, 5):
                await p.put(range(first, first + 5), LARGE + b"%d" % turn)
            await at.checkpoint(old)
        known = await p.put(3, b"acknowledged")
        at.start([name])
        await p.until(lambda: name in p.in_sync)
        assert SupplyKind.FULL in kinds(p, name)
        assert p.has_pending(name, doubt.tx_id)
        await p.put(4, b"more")
        await p.fall(old)
        await p.served_by_another(old)
        assert await p.value(3) == b"acknowledged"
        assert await p.outcome(known) == "too_old"

    at.run(lived)


def test_a_log_that_has_lost_a_full_copy_leaves_room_for_clocks_too() -> None:
    # The next record was of another primary, whose clock is behind.
    async def scenario(group: Group) -> None:
        at = group.at
        fast, slow = apart(group)
        group.partition = fast
        old, name = group.primary, group.backups[0]
        other = Group(at, slow, group._clients)
        other.number = group.number
        date_ids(group, other)
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await age_logs(group)
        known = await group.put(3, b"acknowledged")
        await group.back(name)
        assert SupplyKind.FULL in kinds(group, name)
        for turn in range(4):
            for first in range(0, 20, 5):
                await other.put(range(first, first + 5), LARGE + b"%d" % turn)
            await at.checkpoint(name)
        assert at.member(name)._files.keeper.fills().of(fast).until == 0
        epoch = group.epoch
        await group.fall(old)
        await group.taken_over(epoch)
        assert group.primary == name
        assert await group.outcome(known) == "too_old"

    live(scenario, seed=4, partitions=16, nodes=5, options=CUT)


def test_a_client_whose_clock_is_ahead_does_not_make_its_commit_younger_than_the_log() -> None:
    async def scenario(group: Group) -> None:
        old, epoch = group.primary, group.epoch
        date_ids(group, ahead=AHEAD_US)
        known = await group.put(21, b"acknowledged")
        await age_logs(group)
        await group.fall(old)
        await group.taken_over(epoch)
        assert await group.value(21) == b"acknowledged"
        assert await group.outcome(known) == "too_old"

    live(scenario, options=CUT)


def test_what_others_had_rolled_back_before_a_full_copy_has_not_committed() -> None:
    # The old primary had its PREPARE, and no end of it, in the log before the copy.
    async def scenario(group: Group) -> None:
        date_ids(group)
        old, begun = await rolled_back_unseen(group)
        await age_logs(group)
        await group.back(old)
        assert SupplyKind.FULL in kinds(group, old)
        await moved(group, old)
        assert await group.outcome(begun.tx_id) == "too_old"

    live(scenario, options=CUT)


def test_what_a_copy_dropped_when_it_was_admitted_may_have_come_by_a_full_copy_later() -> None:
    # It came back by history, and was killed before that came; then all was copied in full.
    async def scenario(group: Group) -> None:
        old, epoch = group.primary, group.epoch
        one, two = group.backups
        date_ids(group)
        await group.put(29, b"old")
        await group.at.quiesce()
        group.hold("stored", one, old)
        begun = await group.begin(29, b"new")
        await group.pending_at(begun.tx_id, old, one, two)
        await group.synced(one, two)
        await group.fall(old, outcome="kept")
        group.release("stored", one, old)
        await group.taken_over(epoch)
        assert await group.outcome(begun.tx_id) == "committed"
        gate = supply_waits(group)
        group.at.start([old])
        await admitted(group, old)
        await trio.sleep(0.3)
        await group.fall(old, outcome="kept")
        gate.set()
        await group.until(lambda: old not in group.in_sync)
        await age_logs(group)
        await group.back(old)
        assert SupplyKind.FULL in kinds(group, old)
        await moved(group, old)
        assert await group.value(29) == b"new"
        assert await group.outcome(begun.tx_id) == "too_old"

    live(scenario, options=CUT)


@pytest.mark.parametrize("given", [True, False])
def test_what_is_lost_by_a_reset_is_too_old_also_for_a_client_whose_clock_is_ahead(
    given: bool,
) -> None:
    async def scenario(three: Three) -> None:
        at, group = three.at, three.q
        [older] = group.backups
        await group.put(1, b"old")
        await group.away(older)
        gone, store = group.primary, at.member(group.primary).log.state.store_id
        wall = at.nodes[gone].clocks.wall_us() + AHEAD_US
        ids = (dated_id(wall, b"%016d" % n, store, given=given) for n in range(9999))
        tx_id = next(one for one in ids if home_of(one, at.partitions) == group.partition)
        writes = [[group.number, [at.key(group.partition, 1)], [b"new"]]]
        client = await group.client()
        await client.ask("commit", tx_id, 1, given, None, [], [], writes)
        await group.fall(gone)
        at.may_end.add(gone)
        at.start([older])
        await lose(group, [gone])
        await ask(group, older, "reset", group.partition, False)
        await at.settled(at.running())
        client = await group.client()
        assert await client.ask("outcome", tx_id, given, group.partition) == "too_old"

    together(scenario, backups=1, nodes=5, timing=QUICK)


def stored(kept: dict[str, Any], *, cut: bool) -> Callable[[Environment, str], None]:
    """A store that was embedded, and what it had committed; ``cut``: its log has lost that."""

    def made(environment: Environment, path: str) -> None:
        options: dict[str, Any] = {"segment_bytes": 64 << 10, "retain_bytes": 1} if cut else {}
        with open_with(environment, path, partitions=6, **options) as db:
            names = db.map("names", key=Str, value=Str)
            with db.transaction() as tx:
                tx[names]["a"] = "b"
            assert tx.receipt is not None
            kept["receipt"] = tx.receipt
            for i in range(100 if cut else 0):
                names[str(i)] = "x" * 4000
            for _ in range(2):
                db.checkpoint()
            kept["outcome"] = db.outcome(tx.receipt.tx_id)

    return made


@pytest.mark.parametrize("cut", [False, True])
def test_what_an_embedded_store_has_committed_is_not_rolled_back_once_it_was_adopted(
    cut: bool,
) -> None:
    # Its id looks like one that somebody gave, of which nothing was known.
    told: dict[str, Any] = {}

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        db, receipt = at.client(timeout=30), told["receipt"]
        assert await db.map("names", key=Str, value=Str).get("a") == "b"
        assert await db.outcome(receipt.tx_id, home=receipt.home) == told["outcome"]
        assert await db.outcome(receipt.tx_id) == "too_old"
        await db.aclose()

    SimCluster(seed=1, nodes=1, partitions=6, backups=2, store=stored(told, cut=cut)).run(scenario)
    assert told["outcome"] == ("too_old" if cut else "committed")
