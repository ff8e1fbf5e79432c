"""Who dies when, and what becomes of a transaction then: the table of ``docs/takeover.md``.

Transactions of one group, in the rows of the table; each scenario stops at its step by holding
messages, or by a point of the program.  Behind it the copies have to be equal, with no gap.
"""

from __future__ import annotations

import pytest
import trio

from support.copies import Group, live
from support.raw_client import FailureError
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.node.leaving_out import REPLICA_TIMEOUT_S

KNOWN_S = 1.75
"""Behind the end of a lease: until then members may think that somebody is about to lead."""

# ---------------------------------------------------------------- the primary


def test_a_prepare_that_no_copy_has_is_gone_and_its_number_is_given_again() -> None:
    # A number that only the dead primary knew must not stay a gap for ever.
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, backups = group.primary, group.backups
        for name in backups:
            group.hold("replicate", old, name)
        lost = await group.begin(0, b"lost")
        await group.pending_at(lost.tx_id, old)
        await group.fall(old)
        await group.taken_over(1)
        assert not await lost.is_answered(0.1)
        assert await group.outcome(lost.tx_id) == "rolled_back"
        assert await group.value(0) == b"before"
        await group.put(1, b"after")
        assert await group.equal() == (2, 2)
        assert {group.table(name) for name in backups} == {((1, 1), (2, 2))}

    live(scenario)


def test_a_prepare_that_no_other_copy_has_is_rolled_back_if_its_primary_is_listed() -> None:
    # K4e: all come back, and the old primary reports what it alone has.
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, backups = group.primary, group.backups
        for name in backups:
            group.hold("replicate", old, name)
        lost = await group.begin(0, b"lost")
        await group.pending_at(lost.tx_id, old)
        await group.synced(old)
        await group.fall(*group.at.names)
        for name in backups:
            group.release("replicate", old, name)
        group.at.start()
        await group.taken_over(1)
        assert not await lost.is_answered(0.1)
        assert await group.outcome(lost.tx_id) == "rolled_back"
        assert await group.value(0) == b"before"
        assert await group.equal() == (2, 2)
        assert group.in_sync == set(group.at.names)
        assert group.table(old) == ((1, 1), (group.epoch, 3))

    live(scenario)


@pytest.mark.parametrize("having", [0, 1])
def test_a_prepare_that_some_copies_have_is_rolled_back_and_one_author_closes_it(
    having: int,
) -> None:
    # The copy that has it must not apply it, nor close its number by itself (K4e, N5).
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, backups = group.primary, group.backups
        group.hold("replicate", old, backups[1 - having])
        some = await group.begin(0, b"at one copy")
        await group.pending_at(some.tx_id, old, backups[having])
        await group.fall(old)
        await group.taken_over(1)
        assert not await some.is_answered(0.1)
        assert await group.outcome(some.tx_id) == "rolled_back"
        assert await group.value(0) == b"before"
        assert await group.equal() == (2, 2)
        await group.put(1, b"after")
        assert await group.equal() == (3, 3)
        assert {group.table(name) for name in backups} == {((1, 1), (2, 3))}

    live(scenario)


@pytest.mark.parametrize("told", [False, True])
def test_a_prepare_that_all_copies_have_commits_whether_its_client_was_told_or_not(
    told: bool,
) -> None:
    # K4c: nobody knows whether the dead primary had acknowledged it.
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, backups = group.primary, group.backups
        if not told:
            for name in backups:
                group.hold("stored", name, old)
        every = await group.begin(0, b"everywhere")
        await group.pending_at(every.tx_id, *backups)
        if told:
            await every.answer()
        await group.fall(old)
        await group.taken_over(1)
        assert await group.outcome(every.tx_id) == "committed"
        assert await group.value(0) == b"everywhere"
        assert await group.equal() == (2, 2)

    live(scenario)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_commit_in_the_log_of_its_primary_alone_is_derived_again(streamed: bool) -> None:
    # COMMIT_UPTO was logged, and at most one copy has heard of it.
    async def scenario(group: Group) -> None:
        old, backups = group.primary, group.backups
        every = await group.begin(0, b"committed")
        await every.answer()
        for name in backups[streamed:]:
            group.hold("replicate", old, name)
        before = group.at.nodes[old].points.reached["tx.after_commit_log"]
        await group.until(
            lambda: group.at.nodes[old].points.reached["tx.after_commit_log"] > before
        )
        if streamed:
            await group.until(lambda: group.numbers(backups[0])[0] == 1)
        assert group.numbers(backups[1])[0] == 0, "the other copy has it pending still"
        await group.fall(old)
        await group.taken_over(1)
        assert await group.outcome(every.tx_id) == "committed"
        assert await group.value(0) == b"committed"
        assert await group.equal() == (1, 1)

    live(scenario)


def test_a_prepare_that_did_not_get_into_the_log_leaves_no_number_behind() -> None:
    # No ROLLBACK is streamed for it: nobody has seen its number, so that is given out again.
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old = group.primary
        disk = group.at.nodes[old].disk
        disk.fail_at(disk.operations + 1, "ENOSPC", for_ever=True)
        full = await group.begin(0, b"full")
        assert await full.failure() != ""
        disk.heal()
        await group.put(1, b"after")
        assert await group.value(0) == b"before"
        assert await group.equal() == (2, 2)
        assert group.in_sync == set(group.at.names), "nobody had to leave the set"

    live(scenario)


def test_a_sole_copy_takes_over_from_itself_and_has_what_it_acknowledged() -> None:
    # S3, S5: until it is back its partition waits; nobody else may open it.
    async def scenario(group: Group) -> None:
        first, second = group.backups
        await group.fall(first)
        await group.until(lambda: group.in_sync == {group.primary, second})
        old = group.primary
        group.hold("stored", second, old)
        last = await group.begin(0, b"prepared with two, acknowledged alone")
        await group.pending_at(last.tx_id, old, second)
        await group.fall(second)
        group.at.start([first])
        await last.answer()
        assert group.in_sync == {old}
        await group.put(1, b"alone")
        epoch = group.epoch
        await group.fall(old)
        group.at.start([second])
        await group.at.settled([])
        await trio.sleep(3 * Timing().lease)
        assert group.epoch == epoch, "nobody else takes it over"
        group.at.start([old])
        await group.taken_over(epoch)
        assert group.primary == old
        assert [await group.value(i) for i in (0, 1)] == [
            b"prepared with two, acknowledged alone",
            b"alone",
        ]
        assert await group.equal() == (2, 2)

    live(scenario)


def test_a_primary_that_is_cut_off_holds_its_lease_and_acknowledges_nothing() -> None:
    # No other one opens before that lease ends; its prepares miss the answer of sealed copies.
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        at, old = group.at, group.primary
        rest = [name for name in at.names if name != old]
        late = await group.client(old)
        at.cut([old], rest)
        lease = at.member(old).agreement.lease
        cut = await group.begin(0, b"cut off", old)
        while at.member(old).partitions.serves(group.partition, at.member(old).now):
            assert not any(at.member(name).partitions.is_open(group.partition) for name in rest)
            await trio.sleep(0.005)
        assert lease.end <= at.member(old).now
        await group.until(lambda: group.primary != old)
        await at.settled(rest)
        await group.put(1, b"of the others")
        assert not await cut.is_answered(1)
        with pytest.raises(FailureError):
            await late.ask("get", group.number, [at.key(group.partition, 1)])
        at.heal()
        await at.settled()
        assert await group.outcome(cut.tx_id) == "rolled_back"
        assert [await group.value(i) for i in (0, 1)] == [b"before", b"of the others"]
        assert await group.equal() == (2, 2)

    live(scenario)


# ---------------------------------------------------------------- a backup


def test_a_backup_that_dies_before_it_stored_leaves_the_set_and_the_group_goes_on() -> None:
    async def scenario(group: Group) -> None:
        old, (one, other) = group.primary, group.backups
        group.hold("replicate", old, one)
        waits = await group.begin(0, b"waits")
        await group.pending_at(waits.tx_id, old, other)
        assert not await waits.is_answered(0.5), "every copy of the ack set is waited for"
        await group.fall(one)
        await waits.answer()
        assert group.in_sync == {old, other}
        assert group.epoch == 1, "an open epoch goes on"
        assert await group.value(0) == b"waits"
        assert await group.equal() == (1, 1)

    live(scenario)


def test_a_backup_that_stores_nothing_for_too_long_is_taken_out_of_the_set() -> None:
    # I3: it answers pings, and its answers to the stream do not arrive.
    async def scenario(group: Group) -> None:
        old, (one, other) = group.primary, group.backups
        group.hold("stored", one, old)
        began = group.at.world.now()
        waits = await group.begin(0, b"waits")
        await waits.answer()
        assert group.at.world.now() > began + REPLICA_TIMEOUT_S
        assert group.in_sync == {old, other}
        admitted = group.at.topology().partitions[group.partition].moving
        group.release("stored", one, old)
        await trio.sleep(0.02)
        assert group.in_sync == {old, other} or admitted, "nobody comes back by a late answer"
        await group.put(1, b"after")
        assert await group.equal() == (2, 2)

    live(scenario)


# ---------------------------------------------------------------- the author of a takeover


@pytest.mark.parametrize("stored", ["nowhere else", "at one", "at all"])
def test_an_author_that_dies_before_its_list_was_opened_had_no_effect(stored: str) -> None:
    # The next author is bound by what was stored, and the outcomes are the same ones.
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, (one, other, third) = group.primary, group.backups
        await group.until(lambda: group.numbers(third)[0] == 1)
        group.hold("replicate", old, third)
        some = await group.begin(0, b"some")
        await group.pending_at(some.tx_id, old, one, other)
        for name in (other, third):
            group.hold(
                "settle" if stored == "nowhere else" else "settle-stored",
                *((one, name) if stored == "nowhere else" else (name, one)),
            )
        if stored == "at one":
            group.hold("settle", one, third)
        await group.fall(old)
        assert await group.author(old) == one
        await group.until(lambda: group.phase(one) == "storing")
        having = {"nowhere else": set(), "at one": {other}, "at all": {other, third}}[stored]
        await group.until(lambda: all(map(group.has_list, having)))
        await trio.sleep(0.5)
        assert {name for name in (other, third) if group.has_list(name)} == having
        assert [group.numbers(name)[0] for name in (one, other, third)] == [1, 1, 1]
        assert group.has_pending(other, some.tx_id), "nothing is closed before it is open"
        epoch = group.epoch
        await group.fall(one)
        group.at.holds.release_all()
        await group.taken_over(epoch)
        assert await group.outcome(some.tx_id) == "rolled_back"
        assert await group.value(0) == b"before"
        await group.put(1, b"after")
        assert await group.equal() == (3, 3)
        assert group.table(other) == ((1, 1), (group.epoch, 3)) or stored != "nowhere else"

    live(scenario, nodes=5, backups=3)


@pytest.mark.parametrize("heard", ["by nobody", "by one"])
def test_an_author_that_dies_behind_its_open_binds_the_next_one(heard: str) -> None:
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, (one, other, third) = group.primary, group.backups
        group.hold("replicate", old, third)
        some = await group.begin(0, b"some")
        await group.pending_at(some.tx_id, old, one, other)
        group.hold("replicate", one, third)
        if heard == "by nobody":
            group.hold("replicate", one, other)
        await group.fall(old)
        assert await group.author(old) == one
        epoch = group.epoch
        await group.until(lambda: group.at.member(one).partitions.is_open(group.partition))
        if heard == "by one":
            await group.until(lambda: group.table(other)[-1][0] == epoch)
        behind = await group.begin(1, b"of the dead author", one)
        await group.pending_at(behind.tx_id, one)
        assert not await behind.is_answered(0.2)
        await group.fall(one)
        group.at.holds.release_all()
        await group.taken_over(epoch)
        assert await group.outcome(some.tx_id) == "rolled_back"
        assert await group.outcome(behind.tx_id) == "rolled_back"
        assert [await group.value(i) for i in (0, 1)] == [b"before", None]
        await group.put(1, b"after")
        lwm, hwm = await group.equal()
        assert lwm == hwm
        assert len({group.table(name) for name in (other, third)}) == 1

    live(scenario, nodes=5, backups=3)


# ---------------------------------------------------------------- a listed copy


@pytest.mark.parametrize("step", ["report", "settle-stored"])
@pytest.mark.parametrize("dies", [True, False])
def test_a_listed_copy_that_does_not_do_its_part_is_left_out_by_a_new_epoch(
    step: str, dies: bool
) -> None:
    # I4: dead or silent, the takeover does not wait for it for ever.
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, (one, other) = group.primary, group.backups
        group.hold(step, other, one)
        await group.fall(old)
        assert await group.author(old) == one
        epoch = group.epoch
        waited = {"report": "reports", "settle-stored": "storing"}[step]
        await group.until(lambda: group.phase(one) == waited)
        await trio.sleep(0.3)
        assert not group.at.member(one).partitions.is_open(group.partition)
        if dies:
            await group.fall(other)
        await group.until(lambda: group.epoch > epoch)
        await group.until(lambda: group.at.member(one).partitions.is_open(group.partition))
        assert group.in_sync == {one}
        await group.at.settled([one])
        assert await group.value(0) == b"before"
        await group.put(1, b"after")
        assert await group.equal() == (2, 2)
        group.at.holds.release_all()

    live(scenario, nodes=5)


# ---------------------------------------------------------------- the coordinator


async def coordinator_apart(group: Group) -> tuple[str, str, list[str]]:
    """Return the coordinator, a primary that it is not, and the other members."""
    at = group.at
    coordinator = at.coordinator()
    assert coordinator is not None
    if group.primary == coordinator:
        group.partition = next(p for p in range(at.partitions) if at.primary(p) != coordinator)
    old = group.primary
    return coordinator, old, [name for name in at.names if name not in (coordinator, old)]


@pytest.mark.parametrize("point", ["config.after_accept", "config.after_decide"])
def test_a_coordinator_that_dies_over_a_takeover_leaves_it_to_the_next_one(point: str) -> None:
    # C2: accepted by a minority, or decided and not told; nobody has acted on it, or all do.
    async def scenario(group: Group) -> None:
        coordinator, old, rest = await coordinator_apart(group)
        await group.put(0, b"before")
        if point == "config.after_decide":
            for name in rest:
                group.hold("decided", coordinator, name)
        else:
            for name in rest:
                group.hold("propose", coordinator, name)
        await group.fall(old)
        if point == "config.after_accept":
            await group.at.kill(coordinator, at=point)
        else:
            node = group.at.member(coordinator)
            await group.until(
                lambda: (
                    node.agreement.topology.partitions[group.partition].author.member
                    != group.at.member_id(old)
                )
            )
            await group.fall(coordinator)
        await group.at.killed(coordinator)
        group.at.holds.release_all()
        await group.until(lambda: group.primary in rest)
        await group.at.settled(rest)
        assert await group.value(0) == b"before"
        await group.put(1, b"after")
        assert await group.equal() == (2, 2)

    live(scenario, nodes=5)


def test_a_coordinator_that_is_isolated_with_a_primary_ends_its_leases() -> None:
    # L2, L3: the majority elects behind them; the minority says that it is one.
    async def scenario(group: Group) -> None:
        coordinator, old, rest = await coordinator_apart(group)
        await group.put(0, b"before")
        late = await group.client(old)
        group.at.cut([coordinator, old], rest)
        await group.until(lambda: any(group.at.member(one).agreement.leads for one in rest))
        assert not group.at.member(old).partitions.serves(group.partition, group.at.member(old).now)
        await trio.sleep(KNOWN_S)
        with pytest.raises(FailureError, match="TL-CLU-004"):
            await late.ask("get", group.number, [group.at.key(group.partition, 0)])
        await group.until(lambda: group.primary in rest)
        await group.at.settled(rest)
        await group.put(0, b"after")
        group.at.heal()
        await group.at.settled()
        assert await group.value(0) == b"after"
        assert await group.equal() == (2, 2)

    live(scenario, nodes=5)


# ---------------------------------------------------------------- everybody


@pytest.mark.parametrize("having", [0, 1, 2])
def test_a_cluster_whose_power_is_cut_has_what_all_had_and_not_what_some_had(having: int) -> None:
    # S2 to S4: all listed copies come back, and the table holds.
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, backups = group.primary, group.backups
        for name in backups[having:]:
            group.hold("replicate", old, name)
        for name in backups:
            group.hold("stored", name, old)
        last = await group.begin(0, b"last")
        await group.pending_at(last.tx_id, old, *backups[:having])
        await group.synced(old, *backups[:having])
        await group.fall(*group.at.names)
        group.at.holds.release_all()
        group.at.start()
        await group.taken_over(1)
        committed = having == len(backups)
        assert await group.outcome(last.tx_id) == ("committed" if committed else "rolled_back")
        assert await group.value(0) == (b"last" if committed else b"before")
        assert group.in_sync == set(group.at.names)
        assert await group.equal() == (2, 2)

    live(scenario)
