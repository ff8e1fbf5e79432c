"""What became of a transaction of which the log tells nothing any more."""

from __future__ import annotations

import trio

from support.copies import CUT, LARGE, Group, age_logs, kinds, live
from tidelog.engine.commit.outcomes import dated_id
from tidelog.engine.files.recorded import CLOCKS_APART
from tidelog.rebalance.choosing import SupplyKind


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
        at, ids = group.at, iter(range(1000))
        fast, slow = apart(group)
        group.partition = fast
        old, author, epoch = group.primary, group.backups[0], group.epoch
        clock, store = at.nodes[old].clocks.wall_us, at.member(old).log.state.store_id
        group.new_id = lambda: dated_id(  # type: ignore[method-assign]
            clock(), b"%016d" % next(ids), store
        )
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
        await group.back(old)
        before = group.epoch
        member = group.at.member_id(old).bytes
        group.at.member(group.primary).move(group.partition, member, lambda _refused: None)
        await group.taken_over(before)
        assert group.primary == old
        assert await group.value(0) == b"old"
        assert await group.outcome(begun.tx_id) == "rolled_back"

    live(scenario)


def test_a_copy_made_in_full_knows_soon_that_what_it_does_not_know_has_not_committed() -> None:
    # It never did while its log had the copy in it, and each commit that was under way to a primary
    # that died was an error for its client.
    async def scenario(group: Group) -> None:
        at, old, name = group.at, group.primary, group.backups[0]
        wall, store = at.nodes[old].clocks.wall_us, at.member(old).log.state.store_id
        ids = iter(range(1000))
        group.new_id = lambda: dated_id(  # type: ignore[method-assign]
            wall(), b"%016d" % next(ids), store
        )
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await age_logs(group)
        with_pairs = await group.put(3, b"with the pairs")
        await group.back(name)
        assert SupplyKind.FULL in kinds(group, name)
        early = group.new_id()
        await group.put(4, b"behind them")
        await trio.sleep(CLOCKS_APART / 1e6 + 5)
        known, late = await group.put(5, b"later"), group.new_id()
        assert at.member(name)._files.keeper.filled_until(group.partition), "the log has it still"
        epoch = group.epoch
        await group.fall(old)
        await group.taken_over(epoch)
        assert group.primary == name
        told = [await group.outcome(one) for one in (with_pairs, early, known, late)]
        assert told == ["too_old", "too_old", "committed", "rolled_back"]

    live(scenario, options=CUT)
