"""What the log of a member tells of its cluster: who leads, who is there, what is served here."""

from __future__ import annotations

import logging
import re

import pytest
import trio

from support.copies import Group, live
from tidelog.affinity.errors import ClusterError
from tidelog.checkpoints.policy import CheckpointPolicy
from tidelog.engine.net.handshake import Refusal
from tidelog.engine.net.kinds import CONTROL
from tidelog.engine.net.transport import UnwelcomeError
from tidelog.engine.node.member import RunningMember

OWN = re.compile(r"(?:boot \d+ of |Tidelog: )(n\d):\d+ \(\w{8}\)")
"""Who tells."""


def lines(caplog: pytest.LogCaptureFixture, name: str, *events: str) -> list[str]:
    """What a member has told of some events, without its own name and the ids of others."""
    found = []
    for record in caplog.records:
        text = record.getMessage()
        own = OWN.search(text)
        if own and own[1] == name and vars(record).get("event") in events:
            text = text.split(": ", 2)[2].removeprefix(own[0].removeprefix("Tidelog: ") + " ")
            found.append(re.sub(r":\d+ \(\w{8}\)", "", text))
    return found


async def all_told(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """Wait until the primary has told of its beginning, and forget that."""
    await group.at.whole()
    await group.until(lambda: len(lines(caplog, group.primary, "node.lease")) == 1)
    caplog.clear()


@pytest.fixture(autouse=True)
def hears_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.node")


def test_a_member_tells_of_its_beginning_who_leads_its_lease_and_what_it_opens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(group: Group) -> None:
        at, name = group.at, group.primary
        led = at.coordinator()
        await group.until(lambda: len(lines(caplog, name, "node.lease")) == 1)
        await group.until(lambda: len(lines(caplog, name, "node.serves")) == 2)
        assert lines(caplog, name, "node.begun") == [
            f"the member at /member begins as boot 1 of {name}"
        ]
        [first] = lines(caplog, name, "node.led")
        leads = "leads" if led == name else f"is led by {led}"
        assert re.fullmatch(rf"{leads}, in term \d+", first)
        assert lines(caplog, name, "node.lease") == [
            "has a lease: it may answer for what it has opened"
        ]
        mine = sorted(p for p in range(at.partitions) if at.primary(p) == name)
        to_open, opened = lines(caplog, name, "node.serves")
        count = f"{len(mine)} partition{'s' * (len(mine) > 1)}"
        named = ", ".join(map(str, mine))
        told = rf"is to open {count} by decision \d+, of {len(mine)} that it serves then: {named}"
        assert re.fullmatch(told, to_open)
        assert re.fullmatch(rf"has opened {count} after 0\.\d{{3}} s", opened)

    live(scenario)


def test_the_others_tell_of_a_primary_that_dies_and_of_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(group: Group) -> None:
        at, old = group.at, group.primary
        await all_told(group, caplog)
        await group.away(old)
        await at.settled(at.running())
        new = group.primary
        assert lines(caplog, new, "node.member") == [
            f"hears that {old} is gone: others are to serve what it did"
        ]
        await group.until(lambda: "has opened" in lines(caplog, new, "node.serves")[-1])
        told = lines(caplog, new, "node.serves")
        assert re.fullmatch(r"is to open \d.* that it serves then: [\d, ]*", told[0])
        assert f"by decision {at.topology().partitions[group.partition].changed}" in told[0]
        assert str(group.partition) in told[0].split(": ")[1].split(", ")
        await group.back(old)
        for name in {*at.names} - {old}:
            assert f"hears that {old} is there, as boot 2" in lines(caplog, name, "node.member")
        assert not lines(caplog, old, "node.gone"), "it died, and was not declared gone alive"

    live(scenario)


def test_a_member_that_was_cut_off_tells_that_it_has_no_lease_and_was_declared_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(group: Group) -> None:
        at, old = group.at, group.primary
        await all_told(group, caplog)
        at.cut([old], [name for name in at.names if name != old])
        await group.until(lambda: old not in group.in_sync)
        assert lines(caplog, old, "node.lease") == [
            "has no lease any more: it answers for nothing until a coordinator gives it one"
        ]
        at.heal()
        await group.until(lambda: len(lines(caplog, old, "node.begun")) == 1)
        gone = [one for one in caplog.records if vars(one).get("event") == "node.gone"]
        assert [one.levelname for one in gone] == ["WARNING"]
        assert lines(caplog, old, "node.gone")[0].startswith("was declared gone by the others")
        assert lines(caplog, old, "node.ended") == ["has ended"]
        assert lines(caplog, old, "node.begun") == [
            f"the member at /member begins as boot 2 of {old}"
        ]

    live(scenario)


def test_a_member_that_is_told_to_end_says_so_and_was_not_declared_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(group: Group) -> None:
        at, old = group.at, group.primary
        await all_told(group, caplog)
        await at.stop(old)
        assert lines(caplog, old, "node.leaves", "node.ended", "node.gone") == [
            "is told to end, and lets others serve",
            "has ended",
        ]
        no_more = [text for text in lines(caplog, old, "node.serves") if "no more" in text]
        assert re.match(r"serves \d+ partitions? no more: \d", no_more[0])

    live(scenario)


def test_a_coordinator_that_is_cut_off_tells_that_it_leads_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(group: Group) -> None:
        at, led = group.at, group.at.coordinator() or ""
        await at.whole()
        caplog.clear()
        at.cut([led], [name for name in at.names if name != led])
        await group.until(lambda: bool(lines(caplog, led, "node.led")))
        assert re.fullmatch(r"leads no more, in term \d+", lines(caplog, led, "node.led")[0])

    live(scenario)


def test_a_checkpoint_that_takes_long_holds_nothing_up_that_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was told 28 s after a partition had been opened, by the task that takes checkpoints.
    async def for_long(_member: RunningMember, reason: str) -> None:
        await trio.sleep(0 if reason == "close" else 100)

    async def scenario(group: Group) -> None:
        at, old, new = group.at, group.primary, group.backups[0]
        await at.whole()
        monkeypatch.setattr(CheckpointPolicy, "due", lambda *_about, **_more: "time")
        monkeypatch.setattr(RunningMember, "checkpoint", for_long)
        await trio.sleep(1)
        caplog.clear()
        await at.kill(old)
        await group.served_by_another(old)
        with trio.fail_after(1):
            while not [one for one in lines(caplog, new, "node.serves") if "has opened" in one]:
                await trio.sleep(0.01)

    live(scenario)


def test_a_member_whose_disk_is_refused_was_not_declared_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(group: Group) -> None:
        at, name = group.at, group.primary
        await at.whole()
        at.may_end.add(name)
        await at.kill(name, outcome="kept")
        older = at.nodes[name].disk.copy()
        at.start([name])
        await at.settled()
        await at.kill(name, outcome="kept")
        at.nodes[name].disk = older
        caplog.clear()
        at.start([name])
        await at.killed(name)
        assert isinstance(at.ends[name], ClusterError)
        assert lines(caplog, name, "node.begun", "node.gone", "node.ended") == [
            f"the member at /member begins as boot 2 of {name}",
            "has ended",
        ]

    live(scenario)


def test_who_hears_at_another_member_that_it_is_gone_tells_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(group: Group) -> None:
        at, name = group.at, group.primary
        await at.whole()
        caplog.clear()
        error = UnwelcomeError(Refusal("gone", ""), told=True)
        for other in group.backups:
            at.running()[name].failed(at.member_id(other).bytes, CONTROL, error)
        await group.until(lambda: bool(lines(caplog, name, "node.begun")))
        assert len(lines(caplog, name, "node.gone")) == 1

    live(scenario)
