"""What became of a transaction of which the log tells nothing any more."""

from __future__ import annotations

from support.copies import CUT, LARGE, Group, live
from tidelog.engine.commit.outcomes import dated_id


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
