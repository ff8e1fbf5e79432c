"""Transactions in doubt: a group that takes part has no copy left, or goes on without what it said.

No half of one stays where anybody can know better, nobody waits for ever, and what was forced is
listed (S6, T9, T13).
"""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from support.copies import Begun, assert_found
from support.losing import ask, lose
from support.parts import PARTITIONS, Three, together
from support.raw_client import FailureError
from tidelog.affinity.topology import Resolution
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.commit.outcomes import CLOCKS_APART, dated_id, home_of
from tidelog.engine.node.in_doubt import InDoubt
from tidelog.errors import CommitUnknownError

QUICK = Timing(join_wait=1.0, swap_pause=1e6)
OLD, NEW = b"old", b"new"


def resolutions(three: Three) -> list[tuple[bool, bool, tuple[int, ...]]]:
    """Return of what was resolved whether it commits, whether by hand, and who could not tell."""

    def told(one: Resolution) -> tuple[bool, bool, tuple[int, ...]]:
        return one.commits, one.by_hand, one.missing

    return list(map(told, three.at.topology().resolutions))


async def nothing_is_pending(three: Three) -> None:
    await three.until(lambda: not any(map(three._pending, three.at.running())))


async def goes_on(three: Three) -> None:
    """Write everything once more, as often as that takes, and wait until all is forgotten."""
    is_done = False
    with trio.fail_after(30):
        while not is_done:
            with suppress(FailureError):
                await three.put(p=b"after", q=b"after", r=b"after")
                is_done = True
    await three.until(lambda: not three.remembered())


# ---------------------------------------------------------------- groups that were reset (S6)


async def acknowledged_without_end(three: Three, lost: str) -> Begun:
    """Let p commit what p, q and r have prepared, and nobody else hear of that; lose a disk then.

    The group whose disk it was is lost.
    """
    await three.put(p=OLD, q=OLD, r=OLD)
    await three.at.quiesce()
    three.hold_everywhere("decision")
    tx = await three.begin({"p": NEW, "q": NEW, "r": NEW})
    await tx.answer()
    near, gone = three.near, three.groups[lost].primary
    await three.until(lambda: not three.p.has_pending(near, tx.tx_id))
    await three.q.fall(*{near, gone}, outcome="kept")
    three.at.may_end.add(gone)
    three.at.holds.release_all()
    three.at.start({near} - {gone})
    await lose(three.q, [gone])
    return tx


async def ends_alike(three: Three, lost: str) -> None:
    """Let a group begin with nothing; the others come to what the client was told."""
    at = three.at
    tx = await acknowledged_without_end(three, lost)
    await ask(three.q, next(iter(at.running())), "reset", three.groups[lost].partition, True)
    await at.settled(at.running())
    await nothing_is_pending(three)
    kept = {"p", "q", "r"} - {lost}
    assert await three.values(*sorted(kept)) == [NEW, NEW], "half of a transaction"
    assert await three.values(lost) == [None]
    assert resolutions(three) == [(True, False, (three.groups[lost].partition,))]
    assert await three.p.outcome(tx.tx_id) == "committed"
    await goes_on(three)


@pytest.mark.parametrize("lost", ["p", "q"])
def test_what_was_acknowledged_commits_though_a_group_begins_with_nothing(lost: str) -> None:
    # The partition that began anew said that it had refused what it knew nothing of.  One group had
    # committed it already, and the other one rolled it back by that.
    together(lambda three: ends_alike(three, lost), backups=0, timing=QUICK)


def test_a_partition_that_began_anew_and_refuses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InDoubt, "_tells_otherwise", lambda _self, _asker, _question: False)
    assert_found(
        "half of a transaction",
        lambda: together(lambda three: ends_alike(three, "q"), backups=0, timing=QUICK),
    )


async def gone_back(three: Three, *, refused: bool) -> tuple[str, Begun]:
    """Let q go on from a copy that has a part pending, of which all others have seen the end.

    Or they will never have it, as p has refused it.  Returns whose copy of q that is.
    """
    at = three.at
    await three.put(p=OLD, q=OLD)
    await at.quiesce()
    [older] = three.q.backups
    stale = await three.versions(["p"])
    if refused:
        await three.put(p=OLD)
    at.hold("stored", src=older, dst=three.q.primary)
    tx = await three.begin({"p": NEW, "q": NEW}, stale if refused else ())
    await three.until(lambda: three.q.has_pending(older, tx.tx_id))
    await three.q.synced(older)
    await three.q.fall(older, outcome="kept")
    at.holds.release_all()
    await three.until(lambda: older not in three.q.in_sync)
    with suppress(FailureError):
        await tx.answer()
    await nothing_is_pending(three)
    await three.until(lambda: not three.remembered())
    gone = three.q.primary
    await three.q.fall(gone)
    at.may_end.add(gone)
    at.start([older])
    await lose(three.q, [gone])
    await ask(three.q, older, "reset", three.q.partition, False)
    return older, tx


def test_what_an_older_copy_has_pending_commits_if_all_others_have_forgotten_it() -> None:
    # They knew nothing of it any more, and that meant that they had refused it.
    async def scenario(three: Three) -> None:
        older, tx = await gone_back(three, refused=False)
        await three.at.settled(three.at.running())
        await three.until(lambda: bool(resolutions(three)))
        await three.until(lambda: not three.q.has_pending(older, tx.tx_id))
        assert await three.values("p", "q") == [NEW, NEW]
        assert resolutions(three) == [(True, False, (three.p.partition,))]

    together(scenario, backups=1, nodes=6, apart=True, timing=QUICK)


def test_what_an_older_copy_has_pending_is_rolled_back_if_the_log_of_another_group_says_so() -> (
    None
):
    async def scenario(three: Three) -> None:
        older, tx = await gone_back(three, refused=True)
        await three.at.settled(three.at.running())
        await three.until(lambda: not three.q.has_pending(older, tx.tx_id))
        assert await three.values("p", "q") == [OLD, OLD]
        assert resolutions(three) == []

    together(scenario, backups=1, nodes=6, apart=True, timing=QUICK)


@pytest.mark.parametrize("given", [True, False])
def test_a_partition_that_went_back_does_not_say_that_what_it_lost_was_rolled_back(
    *, given: bool
) -> None:
    # What an older copy knew nothing of was refused for good, and so was an id that was given.
    async def scenario(three: Three) -> None:
        at, group = three.at, three.q
        [older] = group.backups
        await group.put(1, OLD)
        await group.away(older)
        ids = (b"%016d" % number for number in range(1000, 9999))
        tx_id = next(one for one in ids if home_of(one, PARTITIONS) == group.partition)
        writes = [[group.number, [at.key(group.partition, 1)], [NEW]]]
        client = await group.client()
        await client.ask("commit", tx_id, 1, given, None, [], [], writes)
        gone = group.primary
        await group.fall(gone)
        at.may_end.add(gone)
        at.start([older])
        await lose(group, [gone])
        await ask(group, older, "reset", group.partition, False)
        await at.settled(at.running())
        assert await group.value(1) == OLD
        client = await group.client()
        assert await client.ask("outcome", tx_id, given, group.partition) == "too_old"
        [loss] = at.topology().losses
        store = at.member(older).log.state.store_id
        behind = loss.time + CLOCKS_APART + 2000
        later = (dated_id(behind, b"%016d" % number, store) for number in range(9999))
        fresh = next(one for one in later if home_of(one, PARTITIONS) == group.partition)
        assert await client.ask("outcome", fresh, given, group.partition) == "rolled_back"

    together(scenario, backups=1, nodes=5, timing=QUICK)


# ---------------------------------------------------------------- by hand (T13)


async def in_doubt(three: Three, *, has_part: bool, silent: bool = False) -> tuple[str, Begun]:
    """Let p and r have prepared what q is away with, if it has it; return who is away.

    Of r that is not heard if it is ``silent``.
    """
    at = three.at
    await three.put(p=OLD, q=OLD, r=OLD)
    await at.quiesce()
    near, away = three.near, three.q.primary
    held = ("prepared", away, near) if has_part else ("prepare", near, away)
    at.holds.hold(*held)
    if silent:
        at.hold("prepared", src=three.r.primary, dst=near)
    tx = await three.begin({"p": NEW, "q": NEW, "r": NEW})
    await three.prepared(tx, "p", "r", *(["q"] if has_part else []))
    await three.q.synced(away)
    await three.q.fall(away, outcome="kept")
    at.holds.release(*held)
    await three.until(lambda: at.member_id(away) not in at.topology().members_present)
    return away, tx


async def resolve(three: Three, tx: Begun, *, commits: bool) -> None:
    """Have it ended by hand, once its groups have said what they have."""
    with trio.fail_after(30):
        while True:
            try:
                await ask(three.p, three.near, "resolve", tx.tx_id, commits)
                return
            except FailureError as failure:
                if "have not said" not in failure.message:
                    raise
                await trio.sleep(0.5)


async def who_comes_back_obeys(three: Three, *, has_part: bool, commits: bool) -> None:
    """End it by hand while q is away, and let that come back."""
    away, tx = await in_doubt(three, has_part=has_part)
    await resolve(three, tx, commits=commits)
    await nothing_is_pending(three)
    value = NEW if commits else OLD
    assert await three.values("p", "r") == [value, value]
    assert await tx.failure() == CommitUnknownError.code
    three.at.start([away])
    await three.whole()
    assert await three.values("q") == [NEW if commits and has_part else OLD], "q does not obey"
    assert resolutions(three) == [(commits, True, (three.q.partition,))]
    assert await three.p.outcome(tx.tx_id) == ("committed" if commits else "rolled_back")
    await goes_on(three)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("has_part", [True, False])
def test_who_comes_back_obeys_what_was_decided_by_hand(*, has_part: bool, commits: bool) -> None:
    together(
        lambda three: who_comes_back_obeys(three, has_part=has_part, commits=commits), backups=0
    )


@pytest.mark.parametrize(
    "point", ["config.after_accept", "config.after_decide", "tx.before_commit_log"]
)
@pytest.mark.parametrize("who", ["coordinator", "asked", "both"])
def test_somebody_dies_while_it_is_ended_by_hand(who: str, point: str) -> None:
    """Asked again, or not, all groups come to the same in the end."""

    async def scenario(three: Three) -> None:
        at = three.at
        _, tx = await in_doubt(three, has_part=True)
        works = at.member(three.near).groups.transactions.works
        await three.until(lambda: any(one.answers for one in works.of(tx.tx_id)))
        coordinator = at.coordinator()
        assert coordinator is not None
        names = {"coordinator": {coordinator}, "asked": {three.near}}
        for name in names.get(who, {coordinator, three.near}):
            at.nodes[name].kill_at(point)
        with trio.move_on_after(5), suppress(OSError, FailureError):
            await ask(three.p, three.near, "resolve", tx.tx_id, True)
        await three.whole()
        assert len(resolutions(three)) <= 1
        # Nobody has refused it, and the one that was away is back: it has committed either way.
        assert await three.values("p", "q", "r") == [NEW] * 3

    together(scenario, backups=0)


def test_only_what_is_in_doubt_is_ended_by_hand() -> None:
    async def scenario(three: Three) -> None:
        at = three.at
        await at.quiesce()
        at.hold("prepared", src=three.q.primary, dst=three.near)
        tx = await three.begin({"p": NEW, "q": NEW})
        await three.prepared(tx, "p", "q")
        with pytest.raises(FailureError, match="is not in doubt"):
            await ask(three.p, three.near, "resolve", tx.tx_id, True)
        with pytest.raises(FailureError, match="not prepared in any partition"):
            await ask(three.p, three.near, "resolve", b"an unknown one's", True)
        await three.whole()

    together(scenario, backups=0)


def test_it_is_ended_by_hand_once_and_only_when_all_that_are_there_have_said_what_they_have() -> (
    None
):
    async def scenario(three: Three) -> None:
        _, tx = await in_doubt(three, has_part=True, silent=True)
        with pytest.raises(FailureError, match="have not said whether they have it"):
            await ask(three.p, three.near, "resolve", tx.tx_id, False)
        three.at.holds.release_all()
        await resolve(three, tx, commits=False)
        with pytest.raises(FailureError, match="is rolled back already, by decision"):
            await ask(three.p, three.near, "resolve", tx.tx_id, True)

    together(scenario, backups=0)
