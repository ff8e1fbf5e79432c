"""Members that agree and serve, in a simulated world: restarts, cuts, leases, and what is told."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import trio

from support.raw_client import FailureError
from support.sim_clients import PARTITIONS, Clients, cluster, made_map, serving
from tidelog.affinity.changes import Touched
from tidelog.affinity.errors import ConflictError, RolledBackError
from tidelog.affinity.topology import Topology
from tidelog.codecs import Msgpack, Str
from tidelog.engine.agreement import journal, machine
from tidelog.engine.commit.entries import Commit
from tidelog.engine.data.digests import range_digest
from tidelog.engine.net import frames
from tidelog.engine.node import reads
from tidelog.engine.node.client_request import ClientRequest
from tidelog.engine.node.log import NodeLog
from tidelog.engine.node.member import RunningMember
from tidelog.engine.node.tx_history import TxHistory
from tidelog.engine.store.options import Options
from tidelog.engine.system.layout import NEW_CONFIG_LOG_NAME
from tidelog.testing import SimCluster, SimulatedCrash
from tidelog.testing.cluster import DIRECTORY, POINTS
from tidelog.wal.records import Record


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_is_there_behind_every_kind_of_end(seed: int) -> None:
    at = cluster(seed)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        written: dict[bytes, bytes] = {}
        for partition in range(PARTITIONS):
            key = at.key(partition, 0)
            client = await clients.to(at.primary(partition))
            await client.put(b"%016d" % partition, number, {key: b"%d" % partition})
            written[key] = b"%d" % partition
        await at.power_cut()
        at.start()
        await at.settled()
        for name in at.names:
            await at.kill(name)
            at.start([name])
            await at.settled()
        await at.checkpoint("n2")
        await at.stop("n2")
        at.start(["n2"])
        await at.settled()
        for partition in range(PARTITIONS):
            key = at.key(partition, 0)
            client = await clients.to(at.primary(partition))
            values, epochs, counters = await client.ask("get", number, [key])
            assert values == [written[key]]
            assert (epochs, counters) == ([1], [1])

    at.run(scenario)


def test_a_partition_whose_member_is_away_says_so_at_once_and_the_others_go_on() -> None:
    at = cluster(4)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine = [p for p in range(PARTITIONS) if at.primary(p) == "n3"]
        others = [p for p in range(PARTITIONS) if at.primary(p) == "n1"]
        await at.kill("n3", outcome="kept")
        client = await clients.to("n1")
        while at.topology().is_present(at.topology().partitions[mine[0]].author):
            await trio.sleep(0.1)
        before = at.world.now()
        with pytest.raises(FailureError) as refused:
            await client.ask("get", number, [at.key(mine[0], 0)])
        assert refused.value.code == "TL-CLU-003"
        assert "n3:7400" in refused.value.message
        assert at.world.now() - before < 0.1
        assert (await client.ask("get", number, [at.key(others[0], 0)]))[0] == [None]

    at.run(scenario)


def test_a_member_that_is_cut_off_serves_nothing_and_says_why() -> None:
    at = cluster(5)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine = next(p for p in range(PARTITIONS) if at.primary(p) == "n1")
        key = at.key(mine, 0)
        client = await clients.to("n1")
        await client.put(b"1" * 16, number, {key: b"before"})
        at.cut({"n1"}, {"n2", "n3"})
        codes = []
        with trio.move_on_after(4):
            while True:
                await trio.sleep(0.05)
                try:
                    assert (await client.ask("get", number, [key]))[0] == [b"before"]
                except FailureError as refused:
                    codes.append(refused.code)
        assert set(codes) <= {"wait", "TL-CLU-004"}
        assert codes[-1] == "TL-CLU-004"
        at.heal()
        await at.settled()
        client = await clients.to("n1")
        assert (await client.ask("get", number, [key]))[0] == [b"before"]

    at.run(scenario)


def test_a_member_asked_for_what_another_one_serves_says_remap() -> None:
    at = cluster(6)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        other = next(p for p in range(PARTITIONS) if at.primary(p) != "n1")
        with pytest.raises(FailureError) as refused:
            await client.ask("get", number, [at.key(other, 0)])
        assert refused.value.code == "remap"
        with pytest.raises(FailureError) as refused:
            await client.put(b"1" * 16, number, {at.key(other, 0): b"x"})
        assert refused.value.code == "remap"
        key = [[number, [at.key(other, 0)], [0], [0]]]
        span = [[number, [other], b"", None, 0, range_digest([], [], [])]]
        for read in ([key, []], [[], span]):
            with pytest.raises(FailureError) as refused:
                await client.ask("commit", b"1" * 16, 1, False, None, *read, [])
            assert refused.value.code == "remap"

    at.run(scenario)


def test_a_member_that_serves_the_home_of_a_commit_asks_the_others_about_the_rest() -> None:
    at = cluster(6)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        own = next(p for p in range(PARTITIONS) if at.primary(p) == "n1")
        other = next(p for p in range(own, PARTITIONS) if at.primary(p) != "n1")
        away = at.key(other, 0)
        key = [[number, [away], [0], [0]]]
        span = [[number, [other], b"", None, 0, range_digest([], [], [])]]
        commits = count(1)

        async def commit(reads: Any, ranges: Any, *writes: Any) -> Any:
            tx_id, rows = b"%016d" % next(commits), [[number, *one] for one in writes]
            return await client.ask("commit", tx_id, 1, False, None, reads, ranges, rows)

        written = [at.key(own, 0)], [b"x"]
        for read, ranges in ((key, []), ([], span)):
            told = await commit(read, ranges, written)
            assert (told[1], told[4]) == ([own], [1])
        there = await clients.to(at.primary(other))
        await there.put(b"2" * 16, number, {away: b"new"})
        for read, ranges in ((key, []), ([], span)):
            with pytest.raises(FailureError) as refused:
                await commit(read, ranges, written)
            assert refused.value.code == ConflictError.code
        told = await commit([], [], ([at.key(own, 0), away], [b"both"] * 2))
        assert (told[1], told[4]) == ([own, other], [1, 1])
        assert (await there.ask("get", number, [away]))[0] == [b"both"]
        with pytest.raises(FailureError) as refused:
            await there.ask("commit", b"3" * 16, 1, False, None, [], [], [[number, *written]])
        assert refused.value.code == "remap"

    at.run(scenario)


def test_two_commits_on_one_version_conflict_and_a_range_that_changed_does() -> None:
    at = cluster(7, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        keys = [b"a", b"b", b"c"]
        await client.put(b"0" * 16, number, dict.fromkeys(keys, b"0"))
        values, epochs, counters = await client.ask("get", number, keys)
        assert values == [b"0"] * 3
        read = [[number, keys, epochs, counters]]
        one = await client.begin(
            "commit", b"1" * 16, 1, False, None, read, [], [[number, [b"a"], [b"1"]]]
        )
        two = await client.begin(
            "commit", b"2" * 16, 1, False, None, read, [], [[number, [b"b"], [b"2"]]]
        )
        await client.answer(one)
        with pytest.raises(FailureError) as refused:
            await client.answer(two)
        assert refused.value.code == "TL-TX-002"
        assert refused.value.fields["key"] == b"a"
        found = await client.ask("get", number, keys)
        assert found[0] == [b"1", b"0", b"0"]

    at.run(scenario)


def _range_of_all(number: int, keys: list[bytes], found: list[list[Any]]) -> list[Any]:
    """The row of a range over all of a map, as a client that scanned it sends it."""
    _, epochs, counters = found
    digest = range_digest(keys, epochs, counters)
    return [number, list(range(PARTITIONS)), b"", None, len(keys), digest]


def test_a_range_whose_keys_are_the_same_and_a_value_is_not_conflicts() -> None:
    at = cluster(27, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        keys = [b"a", b"b", b"c"]
        await client.put(b"0" * 16, number, dict.fromkeys(keys, b"0"))
        rows = [_range_of_all(number, keys, await client.ask("get", number, keys))]
        sum_of = [[number, [b"sum"], [b"0"]]]
        await client.put(b"1" * 16, number, {b"b": b"1"})
        with pytest.raises(FailureError) as refused:
            await client.ask("commit", b"2" * 16, 1, False, None, [], rows, sum_of)
        assert refused.value.code == "TL-TX-002"
        rows = [_range_of_all(number, keys, await client.ask("get", number, keys))]
        await client.ask("commit", b"3" * 16, 1, False, None, [], rows, sum_of)
        assert (await client.ask("get", number, [b"sum"]))[0] == [b"0"]

    at.run(scenario)


def test_two_commits_of_one_group_that_each_write_into_what_the_other_read_conflict() -> None:
    at = cluster(28, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        keys = [b"a", b"b"]
        await client.put(b"0" * 16, number, dict.fromkeys(keys, b"0"))
        rows = [_range_of_all(number, keys, await client.ask("get", number, keys))]
        one, two = await client.begin_all(  # in one frame, and so in one group
            *(
                ("commit", [name * 16, 1, False, None, [], rows, [[number, [name], [b"0"]]]])
                for name in (b"1", b"2")
            )
        )
        await client.answer(one)
        with pytest.raises(FailureError) as refused:
            await client.answer(two)
        assert refused.value.code == "TL-TX-002"
        assert refused.value.fields["key"] == b"1"
        assert refused.value.fields["winner"] == b"1" * 16

    at.run(scenario)


def test_an_id_that_was_given_commits_once_and_one_that_was_refused_never() -> None:
    at = cluster(8, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        write = [[number, [b"a"], [b"1"]]]
        again = [[number, [b"a"], [b"2"]]]
        first = await client.ask("commit", b"1" * 16, 1, True, None, [], [], write)
        assert await client.ask("outcome", b"1" * 16, True, 0) == "committed"
        await trio.sleep(1)
        old = [[number, [b"a"], [0], [0]]]
        second = await client.ask("commit", b"1" * 16, 1, True, None, old, [], again)
        assert second[0] == first[0] > 0
        assert second[1:] == [[], [], [], []]
        assert first[1:] != second[1:]
        assert (await client.ask("get", number, [b"a"]))[0] == [b"1"]

        assert await client.ask("outcome", b"2" * 16, True, 0) == "rolled_back"
        with pytest.raises(FailureError) as refused:
            await client.ask("commit", b"2" * 16, 1, True, None, [], [], again)
        assert refused.value.code == "TL-TX-006"
        assert refused.value.fields["attempt"] == 1
        assert await client.ask("outcome", b"2" * 16, True, 0) == "rolled_back"
        with pytest.raises(FailureError) as refused:
            await client.ask("commit", b"2" * 16, 2, True, None, [], [], again)
        assert refused.value.fields["attempt"] == 2
        await client.ask("commit", b"2" * 16, 3, True, None, [], [], again)
        assert await client.ask("outcome", b"2" * 16, True, 0) == "committed"
        await at.restart("n1")
        await at.settled()
        client = await clients.to("n1")
        assert await client.ask("outcome", b"2" * 16, True, 0) == "committed"
        assert (await client.ask("get", number, [b"a"]))[0] == [b"2"]

    at.run(scenario)


def test_what_arrives_together_is_answered_as_if_it_had_come_one_by_one() -> None:
    at = cluster(14, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)

        async def told(*asked: tuple[str, list[object]]) -> list[Any]:
            """Send requests in one frame, and return each answer, or the code of its failure."""
            answers = []
            with trio.fail_after(10):
                for request in await client.begin_all(*asked):
                    try:
                        answers.append(await client.answer(request))
                    except FailureError as refused:
                        answers.append(refused.code)
            return answers

        def commit(tx_id: bytes, given: bool, read: list[Any], write: bool) -> Any:
            writes = [[number, [b"a"], [b"b"]]] if write else []
            return "commit", [tx_id, 1, given, None, read, [], writes]

        absent = [[number, [b"a"], [0], [0]]]
        one, two, three = b"1" * 16, b"2" * 16, b"3" * 16
        _, *behind = await told(
            commit(one, False, [], True),
            commit(two, False, absent, False),
            ("outcome", [one, False, 0]),
            commit(one, False, [], True),
        )
        assert behind == ["TL-TX-002", "committed", "wait"]
        question = ("outcome", [three, True, 0])
        behind = await told(question, question, commit(three, True, [], True))
        assert behind == ["rolled_back", "rolled_back", "wait"]
        assert await told(commit(three, True, [], True)) == ["TL-TX-006"]

    at.run(scenario)


def test_a_page_ends_at_its_limits_and_says_that_there_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = reads.PAGE_PAIRS_MAX
    at = cluster(16, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        await client.put(b"1" * 16, number, {b"a%d" % i: b"x" * 600_000 for i in range(4)})
        await client.put(b"2" * 16, number, {b"b%05d" % i: b"" for i in range(most + 3)})

        async def page(low: bytes, limit: int, with_values: bool = True) -> tuple[int, bool]:
            scan = [number, list(range(PARTITIONS)), low, None, False, limit, False, with_values]
            keys, values, _, _, more = await client.ask("scan", *scan)
            assert len(values) == len(keys) * with_values
            return len(keys), more

        assert await page(b"a", most + 3) == (2, True)
        assert await page(b"b", most + 3) == (most, True)
        assert await page(b"b", 3) == (3, True)
        assert await page(b"b", 1) == (1, True)
        assert await page(b"b00003", most + 3) == (most, False)
        assert await page(b"a", 4, with_values=False) == (4, True)
        monkeypatch.setattr(reads, "PASSED_BYTES_MAX", 1_000_000)
        assert await page(b"a", 4, with_values=False) == (2, True)

    at.run(scenario)


def test_an_answer_that_is_too_long_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    at = cluster(16, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        await client.put(b"1" * 16, number, {b"a": b"x" * 1000, b"b": b"x" * 1000})
        small = replace(frames.SENDABLE, bytes_max=1500, items_max=500)
        monkeypatch.setattr(frames, "SENDABLE", small)
        assert (await client.ask("get", number, [b"a"]))[0] == [b"x" * 1000]
        with pytest.raises(FailureError, match="the answer is too long") as raised:
            await client.ask("get", number, [b"a", b"b"])
        assert raised.value.fields["hint"] == "Ask for fewer keys at once."

    at.run(scenario)


def test_the_outcome_of_a_commit_whose_answer_was_lost_is_known_behind_a_restart() -> None:
    at = cluster(9, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        home = 0
        key = at.key(home, 0)
        client = await clients.to("n1", line=b"one line of ours")
        await client.begin("commit", b"1" * 16, 1, False, None, [], [], [[number, [key], [b"1"]]])
        again = await clients.to("n1", line=b"one line of ours")
        told = await again.ask("outcome", b"1" * 16, False, home)
        found = (await again.ask("get", number, [key]))[0]
        assert (told == "committed") == (found == [b"1"])
        await at.restart("n1")
        await at.settled()
        again = await clients.to("n1")
        assert await again.ask("outcome", b"1" * 16, False, home) == told
        assert await again.ask("outcome", b"3" * 16, False, home) == "rolled_back"

    at.run(scenario)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_commit_that_arrives_behind_the_question_for_its_outcome_is_refused(
    groups: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network had held it up; who asked heard "rolled back", and then it took effect."""
    genuine = TxHistory._read

    async def read(self: TxHistory, tx_id: bytes) -> list[tuple[int, Record]]:
        found = await genuine(self, tx_id)
        await trio.sleep(0.2)  # the log is long
        return found

    monkeypatch.setattr(TxHistory, "_read", read)
    at = cluster(9)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        home = 0
        other = next(p for p in range(at.partitions) if at.primary(p) != at.primary(home))
        keys = [at.key(place, 0) for place in (home, other)[:groups]]
        asker, late = [await clients.to(at.primary(home)) for _ in range(2)]
        question = await asker.begin("outcome", b"1" * 16, False, home)
        if not at_once:
            assert await asker.answer(question) == "rolled_back"
        with pytest.raises(FailureError, match="somebody asked what became of") as raised:
            await late.put(b"1" * 16, number, dict.fromkeys(keys, b"late"))
        assert raised.value.code == RolledBackError.code
        if at_once:
            assert await asker.answer(question) == "rolled_back"
        assert (await asker.ask("get", number, keys[:1]))[0] == [None]
        assert await asker.ask("outcome", b"1" * 16, False, home) == "rolled_back"
        await late.put(b"2" * 16, number, dict.fromkeys(keys, b"again"))
        assert await asker.ask("outcome", b"2" * 16, False, home) == "committed"

    at.run(scenario)


def test_a_map_that_one_member_made_is_known_to_all_and_a_dropped_one_to_nobody() -> None:
    at = cluster(10)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        others = [await clients.to(name) for name in ("n2", "n3")]
        assert [await made_map(one) for one in others] == [number, number]
        with pytest.raises(FailureError) as refused:
            await others[0].ask("map", "m", "str", 1, "bytes", 1)
        assert refused.value.code.startswith("TL-USE")
        await others[0].ask("rename", "m", "other")
        assert [row[1] for row in others[0].view[3]] == ["other"]
        await others[1].ask("drop", "other")
        assert others[1].view[3] == []
        with pytest.raises(FailureError) as refused:
            await others[1].ask("get", number, [at.key(0, 0)])
        assert refused.value.code == "TL-USE-006"
        assert await made_map(others[0]) == number + 1
        await at.power_cut()
        at.start()
        await at.settled()
        client = await clients.to("n3")
        assert [row[:2] for row in client.view[3]] == [[number + 1, "m"]]

    at.run(scenario)


def test_a_request_that_makes_no_sense_is_answered_and_ends_nothing() -> None:
    at = cluster(11, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        nonsense: list[tuple[str, list[object]]] = [
            ("nothing", []),
            ("get", []),
            ("get", [number]),
            ("get", [number, ["text"]]),
            ("get", [number, [b"x" * 481]]),
            ("get", [999, [b"a"]]),
            ("get", [None, [b"a"]]),
            ("scan", [number, [PARTITIONS], b"", None, False, 10, False, True]),
            ("scan", [number, [-1], b"", None, False, 10, False, True]),
            ("scan", [number, ["a"], b"", None, False, 10, False, True]),
            ("scan", [number, [0], 7, None, False, 10, False, True]),
            ("scan", [number, [0], b"", None, False, None, False, True]),
            ("commit", [b"short", 1, False, None, [], [], []]),
            ("commit", [b"1" * 16, 1, False, None, [], [], [[number, [b"a"], [7]]]]),
            ("commit", [b"1" * 16, 1, False, None, [], [], [[number, [b"a"], []]]]),
            ("commit", [b"1" * 16, 1, False, 7, [], [], [[number, [b"a"], [b"b"]]]]),
            ("commit", [b"1" * 16, 1, False, None, [[number, [b"a"], [1], []]], [], []]),
            ("commit", [b"1" * 16, 0, True, None, [], [], [[number, [b"a"], [b"b"]]]]),
            ("commit", [b"1" * 16, "x", True, None, [], [], [[number, [b"a"], [b"b"]]]]),
            ("commit", [b"1" * 16, 1, False, None, [], [[number, [0], b"", None, -1, b""]], []]),
            ("commit", [b"1" * 16, 1, False, None, [], [], [[1, [b"1" * 16], [b"b"]]]]),
            ("outcome", [b"1" * 16, False, PARTITIONS]),
            ("outcome", [b"1" * 16, False, None]),
            ("map", ["", "bytes", 1, "bytes", 1]),
            ("map", ["n", 7, 1, "bytes", 1]),
            ("map", ["n", "bytes", -1, "bytes", 1]),
            ("drop", ["nobody"]),
            ("drop", []),
            ("rename", ["m"]),
        ]
        for operation, arguments in nonsense:
            with pytest.raises(FailureError) as refused:
                await client.ask(operation, *arguments)
            assert refused.value.code.startswith("TL-"), (operation, arguments)
        await client.put(b"2" * 16, number, {b"a": b"b"})
        assert (await client.ask("get", number, [b"a"]))[0] == [b"b"]

    at.run(scenario)


REACHED = (
    "config.after_accept", "config.after_decide", "takeover.after_seal", "takeover.after_open",
    "tx.before_prepare_log", "tx.after_prepare_log", "tx.after_prepare_sync",
    "checkpoint.between_pieces", "checkpoint.before_mark", "checkpoint.after_mark",
    "rotate.after_new_segment",
)  # fmt: skip
OF_COPIES = (
    "tx.after_lock", "tx.after_confirm", "tx.after_prepared_sent", "tx.before_commit_log",
    "tx.after_commit_log", "takeover.after_report", "takeover.after_list_logged",
    "takeover.after_list_stored", "admit.sent", "admit.logged", "supply.first", "supply.middle",
    "supply.last", "lend.sent", "join.sent", "add.proposed", "add.decided",
)  # fmt: skip
"""Points of transactions over several groups, and of partitions with more than one copy."""


def test_every_point_is_reached_by_a_test_or_waits_for_copies() -> None:
    assert sorted([*REACHED, *OF_COPIES]) == sorted(POINTS)


@pytest.mark.parametrize("point", REACHED)
def test_a_member_that_ends_at_any_point_comes_back_with_all_that_was_acknowledged(
    point: str,
) -> None:
    segment_bytes = 1 if point.startswith("rotate") else 1 << 18
    at = cluster(12, options=Options(segment_bytes=segment_bytes))
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine = [p for p in range(PARTITIONS) if at.primary(p) == "n2"]
        client = await clients.to("n2")
        written: dict[bytes, bytes] = {}
        await at.kill("n2", at=point)

        async def work() -> None:
            for i in range(5):
                key = at.key(mine[i % len(mine)], i)
                value = b"%d" % i * 50_000  # three of them fill the smallest segment
                await client.put(b"%016d" % i, number, {key: value})
                written[key] = value
            other = await clients.to("n1")
            await other.ask("map", "another", "bytes", 1, "bytes", 1)
            if at.nodes["n2"].running:
                await at.checkpoint("n2")
                await at.stop("n2")
                at.start(["n2"])
                await at.settled()

        with trio.move_on_after(20), suppress(OSError, SimulatedCrash, FailureError):
            await work()  # a member whose power is cut does not even close its connections
        with trio.fail_after(20):
            await at.killed("n2")
        at.start(["n2"])
        await at.settled()
        again = await clients.to("n2")
        for key, value in written.items():
            assert (await again.ask("get", number, [key]))[0] == [value]

    at.run(scenario)


def test_a_member_that_has_just_started_asks_for_patience_before_it_says_there_are_too_few() -> (
    None
):
    at = cluster(13)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine = next(p for p in range(PARTITIONS) if at.primary(p) == "n1")
        for name in at.names:
            await at.kill(name, outcome="kept")
        at.start(["n1"])
        codes = []
        with trio.move_on_after(6):
            while True:
                try:
                    client = await clients.to("n1")
                    await client.ask("get", number, [at.key(mine, 0)])
                except FailureError as refused:
                    codes.append(refused.code)
                except OSError:
                    pass
                await trio.sleep(0.05)
        turn = codes.index("TL-CLU-004")
        assert set(codes[:turn]) == {"wait"}
        assert set(codes[turn:]) == {"TL-CLU-004"}

    at.run(scenario)


def test_a_map_can_be_asked_for_while_its_only_member_is_just_coming() -> None:
    at = cluster(19, nodes=1)

    async def scenario(at: SimCluster) -> None:
        at.start()
        db = at.client()
        mapping = db.map("m", key=Str, value=Msgpack)
        await mapping.set("k", 1)
        assert await mapping.get("k") == 1
        await at.kill("n1")
        at.start()
        await mapping.set("k", 2)
        assert await mapping.get("k") == 2

    at.run(scenario)


def test_a_commit_whose_lease_ends_during_its_sync_is_answered_under_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # L5: what was written is not told without a lease, and is not called unknown too early.
    at = cluster(70)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        partition = next(p for p in range(PARTITIONS) if at.primary(p) == "n2")
        key = at.key(partition, 0)
        client = await clients.to("n2")
        member = at.member("n2")
        finish, answered = NodeLog._finish, ClientRequest.answer
        ended: list[bool] = []
        served: list[bool] = []

        def late(self: NodeLog, *arguments: Any) -> None:
            if not ended:
                at.nodes["n2"].clocks.move(3)
                ended.append(not member.partitions.serves(partition, member.now))
            finish(self, *arguments)

        def seen(request: ClientRequest, value: object) -> None:
            served.append(member.partitions.serves(partition, member.now))
            answered(request, value)

        monkeypatch.setattr(NodeLog, "_finish", late)
        monkeypatch.setattr(ClientRequest, "answer", seen)
        with trio.fail_after(5):
            told = await client.put(b"1" * 16, number, {key: b"1"})
            assert (ended, served) == ([True], [True])
            assert told[1:] == [[partition], [1], [1], [1]]
            assert await client.ask("outcome", b"1" * 16, False, partition) == "committed"
            await client.put(b"1" * 16, number, {key: b"2"})
        ended.clear()
        write = [[number, [key], [b"3"]]]
        request = await client.begin(
            "commit", b"2" * 16, 1, False, None, [], [], write, left_us=2_000_000
        )
        with trio.fail_after(5), pytest.raises(FailureError) as unknown:
            await client.answer(request)
        assert unknown.value.code == "TL-TX-007"
        assert unknown.value.fields["tx_id"] == b"2" * 16
        assert unknown.value.fields["home"] == partition
        while not member.partitions.serves(partition, member.now):
            await trio.sleep(0.1)
        assert await client.ask("outcome", b"2" * 16, False, partition) == "committed"
        assert (await client.ask("get", number, [key]))[0] == [b"3"]

    at.run(scenario)


def test_a_commit_is_unknown_once_its_member_has_given_its_partitions_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # L7: no lease that follows covers what was released, so nobody waits for one.
    at = cluster(71)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        partition = next(p for p in range(PARTITIONS) if at.primary(p) == "n2")
        await at.settled()
        client = await clients.to("n2")
        member, finish = at.member("n2"), NodeLog._finish

        def late(self: NodeLog, *arguments: Any) -> None:
            if self is member.log:
                member.council.release([partition])
            finish(self, *arguments)

        monkeypatch.setattr(NodeLog, "_finish", late)
        with trio.fail_after(5), pytest.raises(FailureError) as unknown:
            await client.put(b"1" * 16, number, {at.key(partition, 0): b"1"})
        assert unknown.value.code == "TL-TX-007"

    at.run(scenario)


def test_a_member_that_is_about_to_stop_takes_nothing_new() -> None:
    at = cluster(72)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        key = at.key(next(p for p in range(PARTITIONS) if at.primary(p) == "n2"), 0)
        await trio.sleep(0.5)
        client = await clients.to("n2")
        at.member("n2").partitions.draining = True
        requests: tuple[tuple[Any, ...], ...] = (
            ("get", number, [key]),
            ("commit", b"1" * 16, 1, False, None, [], [], [[number, [key], [b"1"]]]),
        )
        for asked in requests:
            with pytest.raises(FailureError, match="about to stop") as refused:
                await client.ask(*asked)
            assert refused.value.code == "wait"

    at.run(scenario)


def test_reads_alone_are_confirmed_and_nothing_is_written_for_them() -> None:
    at = cluster(73, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        written = await client.put(b"1" * 16, number, {b"a": b"1"})
        end = at.member("n1").log.position
        _, epochs, counters = await client.ask("get", number, [b"a", b"b"])
        reads = [[number, [b"a", b"b"], epochs, counters]]
        told = await client.ask("commit", b"2" * 16, 1, False, None, reads, [], [])
        assert told[0] >= written[0]
        assert told[1:] == [[], [], [], []]
        assert at.member("n1").log.position == end
        with pytest.raises(FailureError) as refused:
            await client.ask(
                "commit", b"3" * 16, 1, False, None, [[number, [b"a"], [1], [7]]], [], []
            )
        assert refused.value.code == "TL-TX-002"

    at.run(scenario)


def test_an_epoch_starts_behind_all_that_was_applied() -> None:
    # K4: numbers of two epochs never overlap.
    at = cluster(74, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        for n in range(3):
            await client.put(b"%016d" % n, number, {at.key(2, 0): b"%d" % n})
        await at.restart("n1")
        await at.settled()
        client = await clients.to("n1")
        told = await client.put(b"4" * 16, number, {at.key(2, 0): b"4"})
        assert told[1:] == [[2], [2], [4], [1]]
        table = at.member("n1").log.state.epoch_tables[2]
        assert list(map(tuple, table)) == [(1, 1), (2, 4)]

    at.run(scenario)


def test_a_member_far_behind_takes_the_topology_and_finds_it_behind_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only what is durable here is a seal (K2): so is a topology that was told whole.
    monkeypatch.setattr(machine, "DECISIONS_MAX", 2)
    at = cluster(75)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, _ = await serving(at, clients)
        await at.kill("n3", outcome="kept")
        for n in range(6):
            await client.ask("map", f"m{n}", "bytes", 1, "bytes", 1)
        at.start(["n3"])
        await at.settled()
        index = at.topology().index
        await at.kill("n3", outcome="lost")
        at.cut({"n3"}, {"n1", "n2"})
        at.start(["n3"])
        await trio.sleep(1)
        assert at.member("n3").agreement.topology.index == index
        late = await clients.to("n3")
        assert [row[1] for row in late.view[3]] == ["m", *(f"m{n}" for n in range(6))]
        at.heal()
        await at.settled()

    at.run(scenario)


def test_a_configuration_log_that_has_grown_is_begun_anew_and_has_all_that_was_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "SNAPSHOT_AFTER", 2000)
    at = cluster(76)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, _ = await serving(at, clients)
        disk, kept = at.nodes["n1"].disk, at.member("n1").council._journal
        fresh = f"{DIRECTORY}/{NEW_CONFIG_LOG_NAME}"
        disk.fail_at(disk.operations + 1, "ENOSPC", for_ever=True, path=fresh)
        lengths = []
        for n in range(30):
            await client.ask("rename", f"m{n - 1}" if n else "m", f"m{n}")
            lengths.append(kept.position)
        assert lengths == sorted(lengths), "without space the old one goes on"
        tried: list[int] = []
        genuine = kept.snapshot

        def counted(*new: Any) -> None:
            tried.append(0)
            genuine(*new)

        monkeypatch.setattr(kept, "snapshot", counted)
        await trio.sleep(3)
        assert len(tried) <= 1, "not at every step"
        disk.heal()
        await trio.sleep(6)
        await client.ask("rename", "m29", "m30")
        assert kept.wants_snapshot is False
        await client.ask("rename", "m30", "last")
        await at.power_cut()
        at.start()
        await at.settled()
        client = await clients.to("n1")
        assert [row[1] for row in client.view[3]] == ["last"]

    at.run(scenario)


def test_who_hears_of_its_own_end_from_the_log_comes_back_under_a_new_boot() -> None:
    # W1: others hear nothing of n3, but n3 hears all that they say.
    at = cluster(77)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        boot = at.member("n3").agreement.me.boot
        partition = next(p for p in range(PARTITIONS) if at.primary(p) == "n3")
        for other in ("n1", "n2"):
            at.world.network.cut("n3", other)
        with trio.fail_after(20):
            while at.topology().members[at.member_id("n3")].present:
                await trio.sleep(0.1)
            at.heal()
            while at.member("n3").agreement.me.boot == boot:
                await trio.sleep(0.1)
        await at.settled()
        client = await clients.to("n3")
        assert (await client.ask("get", number, [at.key(partition, 0)]))[0] == [None]
        assert at.topology().partitions[partition].author.boot == boot + 1

    at.run(scenario)


def test_status_tells_of_leases_as_they_are() -> None:
    at = cluster(78)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        await serving(at, clients)
        client = await clients.to("n2")
        told = await client.ask("status")
        mine = [p for p in range(PARTITIONS) if at.primary(p) == "n2"]
        assert told["partitions"] == mine
        assert (told["open"], told["leased"]) == ([True] * len(mine), [True] * len(mine))
        assert 0 < told["lease_us"] <= 1_500_000
        assert told["majority"] is True
        at.nodes["n2"].clocks.move(3)
        told = await client.ask("status")
        assert (told["open"], told["leased"]) == ([True] * len(mine), [False] * len(mine))
        assert told["lease_us"] == 0
        assert told["counts"]["requests"] == 2

    at.run(scenario)


def test_a_decision_takes_effect_behind_those_before_it_which_the_log_still_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Else clients heard of maps that this member does not have yet.
    genuine, effect = NodeLog._carry, RunningMember._take_effect
    lacking: list[int] = []

    async def slowly(self: NodeLog, group: list[Commit]) -> None:
        await trio.sleep(0.2)
        await genuine(self, group)

    def seen(self: RunningMember, topology: Topology) -> None:
        lacking.extend(topology.namespaces.keys() - self.log.state.namespaces.keys())
        effect(self, topology)

    monkeypatch.setattr(NodeLog, "_carry", slowly)
    monkeypatch.setattr(RunningMember, "_take_effect", seen)
    at = cluster(79, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, _ = await serving(at, clients)
        member = at.member("n1")
        for n in range(3):
            begun = await client.begin("map", f"m{n}", "bytes", 1, "bytes", 1)
            while not any(
                one.name == f"m{n}" for one in member.agreement.topology.namespaces.values()
            ):
                await trio.sleep(0.001)
            index = member.agreement.topology.index
            member.agreement.propose(99 + n, Touched(partition=0))
            member.council._wake.set()
            while member.agreement.topology.index == index:
                await trio.sleep(0.001)
            assert member.decided < index
            await client.answer(begun)
        await at.restart("n1")
        await trio.sleep(0.001)
        while not at.running() or not at.member("n1").groups.blocked():
            await trio.sleep(0.001)
        member = at.member("n1")
        index = member.agreement.topology.index
        member.agreement.propose(1, Touched(partition=0))
        member.council._wake.set()
        while member.agreement.topology.index == index:
            await trio.sleep(0.001)
        assert not member.partitions._opened, "what opens is still on its way"
        await at.settled()
        await trio.sleep(1)
        assert member.decided == member.agreement.topology.index
        assert not lacking

    at.run(scenario)


def test_what_was_acknowledged_in_a_new_segment_is_there_behind_a_restart() -> None:
    at = cluster(90, nodes=1, options=Options(segment_bytes=65_536))
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        for n in range(40):
            await client.put(b"%016d" % n, number, {b"%d" % n: b"x" * 20_000})
        assert at.member("n1")._files.writer.segment.first_position > 0
        await at.kill("n1", outcome="lost")
        at.start()
        await at.settled()
        client = await clients.to("n1")
        values = (await client.ask("get", number, [b"%d" % n for n in range(40)]))[0]
        assert values == [b"x" * 20_000] * 40

    at.run(scenario)


def test_a_member_that_stops_tells_the_others_before_it_ends() -> None:
    # Else they took note of it only when it had been silent for long.
    at = cluster(91)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        await serving(at, clients)
        before = at.world.now()
        await at.stop("n3")
        while at.topology().members[at.member_id("n3")].present:
            await trio.sleep(0.01)
        assert at.world.now() < before + 0.9

    at.run(scenario)
