"""What members tell of exchanges: why they began, how long they took, and who was in the way."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from support.copies import Group, live
from support.pictures import picture_in
from tidelog.tools.cluster.exchanges import exchange_text, exchanges_of

LINK_S = 0.025
POLL_S = 0.01
"""How exactly a scenario sees when something happens."""


def newest(group: Group) -> dict[str, Any]:
    """The newest exchange, as all members tell it."""
    return exchanges_of(picture_in(group.at), 1)[0]


def by_takeover(group: Group) -> list[dict[str, Any]]:
    """The exchanges with takeovers behind those of the start."""
    rows = exchanges_of(picture_in(group.at), 100)
    first = next(n for n, row in enumerate(rows) if "for the first time" in row["cause"])
    return [row for row in rows[first + 1 :] if row["taken_over"]]


def phases(row: dict[str, Any]) -> list[str]:
    return [phase["phase"] for phase in row["phases"]]


def test_a_killed_primary_is_told_with_its_cause_and_with_all_the_time_that_it_took() -> None:
    async def scenario(group: Group) -> None:
        at, old, author = group.at, group.primary, group.backups[0]
        member, other = at.member(author), group.backups[1]
        await group.put(0, b"before")
        await group.fall(old)
        await group.until(lambda: member.groups.story(0)["epoch"] == 2)
        began = at.world.now()
        await group.until(lambda: bool(member.groups.story(0)["open_here"]))
        took = at.world.now() - began
        [row] = by_takeover(group)
        assert row["cause"].startswith(f"{author} takes over from {old}, which has gone")
        counts = [row[name] for name in ("taken_over", "removed", "admitted", "added")]
        assert counts == [1, 0, 0, 0]
        assert phases(row) == ["reports", "logging", "storing", "opening"]
        assert row["blocked"] == pytest.approx(took, abs=POLL_S)
        assert took > 2 * LINK_S, "the list, and the answer to it"
        together = sum(phase["seconds"] for phase in row["phases"])
        assert together == pytest.approx(row["blocked"], abs=1e-5)
        waited = {phase["phase"]: phase["waited_for"] for phase in row["phases"]}
        assert waited.pop("reports") in (author, other)
        assert waited == {"logging": None, "storing": other, "opening": None}
        assert row["slowest"] == 0
        assert row["over"]
        assert row["authors"][0]["opened"] == 1

    live(scenario, partitions=1, delay_s=LINK_S)


def test_who_is_waited_for_is_told_by_name_while_it_says_nothing_and_behind_it() -> None:
    async def scenario(group: Group) -> None:
        old, (author, slow) = group.primary, group.backups
        group.hold("report", slow, author)
        await group.fall(old)
        await group.until(lambda: group.epoch == 2)
        await trio.sleep(2)
        row = newest(group)
        block = {"member": author, "phase": "reports", "partitions": [0], "waits_for": [slow]}
        assert (row["over"], row["blocks"]) == (False, [block])
        assert row["blocked"] == pytest.approx(2, abs=0.1)
        state = exchange_text(row)["state"]
        assert state == f"{author} waits for the reports of {slow}: 1 partition (0)"

        group.release("report", slow, author)
        await group.taken_over(1)
        await trio.sleep(1)
        row = newest(group)
        assert (row["over"], row["blocks"]) == (True, [])
        assert exchange_text(row)["state"] == "over"
        reports = row["phases"][0]
        assert (reports["phase"], reports["waited_for"]) == ("reports", slow)
        assert reports["seconds"] == pytest.approx(2, abs=0.2)
        assert reports["seconds"] <= row["blocked"] < reports["seconds"] + 0.1

    live(scenario, delay_s=0.01, slow_disks=False)


def test_an_epoch_that_a_later_one_follows_before_it_is_open_is_told_as_superseded() -> None:
    async def scenario(group: Group) -> None:
        old, (author, silent) = group.primary, group.backups
        group.hold("report", silent, author)
        await group.fall(old)
        await group.taken_over(2)
        group.release("report", silent, author)
        first, second = by_takeover(group)
        assert first["authors"] == [
            {
                "member": author,
                "taken_over": 1,
                "opened": 0,
                "superseded": {str(second["decision"]): 1},
                "untold": 0,
            }
        ]
        assert exchange_text(first)["state"] == f"over; 1 superseded by {second['decision']}"
        assert phases(first) == ["reports"]
        assert first["blocked"] > 5
        assert second["cause"] == f"{author} goes on without {silent}"
        assert second["over"]

    live(scenario)


def test_of_an_author_that_died_others_tell_what_became_of_its_takeover() -> None:
    async def scenario(group: Group) -> None:
        old, (author, other) = group.primary, group.backups
        group.hold("report", other, author)
        await group.fall(old)
        await group.until(lambda: group.at.member(other).groups.story(0)["epoch"] == 2)
        await group.fall(author)
        [row] = by_takeover(group)
        assert row["authors"][0]["untold"] == 1
        assert not row["over"]
        assert exchange_text(row)["state"] == f"{author} has not told of 1"
        group.at.start([old])
        await group.until(lambda: group.epoch == 3)
        await group.until(lambda: bool(group.at.member(other).groups.story(0)["open_here"]))
        first, second = by_takeover(group)
        assert first["authors"][0]["superseded"] == {str(second["decision"]): 1}
        assert first["over"]
        assert second["cause"].startswith(f"{other} takes over from {author}, which has gone")

    live(scenario)


def test_a_move_and_a_copy_that_comes_back_are_exchanges() -> None:
    async def scenario(group: Group) -> None:
        at, old, (new, other) = group.at, group.primary, group.backups
        client = await group.client(old)
        await client.ask("move", 0, at.member_id(new).bytes)
        await group.until(lambda: newest(group)["over"])
        row = newest(group)
        assert row["cause"] == f"{old} hands over to {new}"
        assert (row["taken_over"], row["removed"]) == (1, 0)

        since = row["decision"]
        await group.fall(other)
        await group.until(lambda: other not in group.in_sync)
        at.start([other])
        await group.until(lambda: other in group.in_sync)
        await trio.sleep(1)
        rows = [row for row in exchanges_of(picture_in(at), 20) if row["decision"] > since]
        causes = {cause["kind"] for row in rows for cause in row["causes"]}
        kinds = {"gone", "removed", "restarted", "admitted", "added"}
        assert kinds <= causes
        assert sum(row["admitted"] for row in rows) == sum(row["added"] for row in rows) == 2
        assert all(row["over"] for row in rows)

    live(scenario)


def test_only_the_partitions_of_an_exchange_stop() -> None:
    # While one takeover waits for a report, who has no part in it is written to as before (X1).
    async def scenario(group: Group) -> None:
        at, led = group.at, group.at.coordinator()
        group.partition = next(p for p in range(at.partitions) if at.primary(p) != led)
        stopped, old, (author, silent) = group.partition, group.primary, group.backups
        group.hold("report", silent, author)
        await group.fall(old)
        await group.until(lambda: group.epoch == 2)
        gone, held = at.member_id(old), {at.member_id(author), at.member_id(silent)}
        group.partition = next(
            partition
            for partition, copies in enumerate(at.topology().partitions)
            if copies.epoch == 1
            and gone not in copies.row.replicas
            # What the one says to the other is held up, of whatever partition it is.
            and not (copies.author.member in held and held <= {*copies.row.replicas})
        )
        pauses = []
        for number in range(40):
            began = at.world.now()
            await group.put(number, b"on")
            pauses.append(at.world.now() - began)
        assert max(pauses) < 0.1
        group.partition = stopped
        begun = await group.begin(0, b"waits", author)
        assert not await begun.is_answered(0.5)
        row = by_takeover(group)[-1]
        assert stopped in {p for block in row["blocks"] for p in block["partitions"]}
        assert row["taken_over"] == sum(one["taken_over"] for one in row["authors"]) < at.partitions
        assert row["blocked"] > sum(pauses)
        group.release("report", silent, author)

    live(scenario, nodes=5, partitions=10, delay_s=0.01, slow_disks=False)


def test_a_member_is_asked_for_what_it_saw() -> None:
    async def scenario(group: Group) -> None:
        old, author = group.primary, group.backups[0]
        await group.fall(old)
        await group.taken_over(1)
        client = await group.client(author)
        await client.send("known", 1 << 62)  # it answers for itself, whatever is known elsewhere
        told = await client.ask("exchanges", 2)
        assert told["decided"] == group.at.topology().index
        assert [row["decision"] for row in told["exchanges"]] == sorted(
            row["decision"] for row in told["exchanges"]
        )
        assert len(told["exchanges"]) == 2
        assert (await client.ask("exchanges", 0))["exchanges"] == []

    live(scenario)
