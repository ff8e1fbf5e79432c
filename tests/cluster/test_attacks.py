"""What members withstand: requests that no client sends, full disks, ends at any moment."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import UUID

import pytest
import trio

from support.raw_client import FailureError, RawClient
from support.sim_clients import PARTITIONS, Clients, cluster, serving
from tidelog.affinity.changes import Decision, MemberGone, NamespaceDropped
from tidelog.affinity.topology import Incarnation
from tidelog.engine.agreement.messages import (
    Accepted,
    AskPromise,
    Credentials,
    Decided,
    Join,
    Ping,
    Pong,
    Propose,
    ProposeChange,
    Telling,
    Term,
)
from tidelog.engine.agreement.wire import message_of
from tidelog.engine.commit.outcomes import dated_id
from tidelog.engine.data.digests import range_digest
from tidelog.engine.net.frames import frame, pack_message
from tidelog.engine.net.handshake import Introduction
from tidelog.engine.node import commits, committing, log as node_log, reads, requests, room
from tidelog.engine.node.tx_history import TxHistory
from tidelog.testing import SimCluster
from tidelog.testing.cluster import DIRECTORY, PORT


def _nothing() -> None:
    """Say nothing."""


async def refusal(client: RawClient, operation: str, *arguments: object) -> FailureError | None:
    try:
        await client.ask(operation, *arguments)
    except FailureError as refused:
        return refused
    return None


@pytest.mark.parametrize("version", [(-1, 0), (0, -1), (1 << 63, 0), (0, 1 << 63)])
def test_versions_that_cannot_be_are_refused_before_other_members_hear_of_them(
    version: tuple[int, int],
) -> None:
    # The primary of both partitions ended at its own message about them, and so did the next one.
    at = cluster(21, nodes=3, backups=2)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        near = at.primary(0)
        other = next(p for p in range(1, PARTITIONS) if at.primary(p) == near)
        client = await clients.to(near)
        reads = [[number, [at.key(other, 0)], [version[0]], [version[1]]]]
        writes = [[number, [at.key(0, 0)], [b"v"]]]
        commit: list[object] = [b"c" * 16, 1, False, None, reads, [], writes]
        put: list[object] = [b"p" * 16, 1, False, None, [], [], writes]
        first, second = await client.begin_all(("commit", put), ("commit", commit))
        await client.answer(first)
        with pytest.raises(FailureError, match="cannot be understood"):
            await client.answer(second)
        assert (await client.ask("get", number, [at.key(0, 0)]))[0] == [b"v"]

    at.run(scenario)


def test_what_a_checkpoint_has_before_the_log_says_so_is_no_damage() -> None:
    # `db verify` complained of members that died within a tick of a checkpoint.
    at = cluster(22, nodes=3, backups=2)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        near = at.primary(0)
        client = await clients.to(near)
        member = at.member(near)
        member.log.tell_decided = _nothing  # type: ignore[method-assign]
        for step, value in enumerate((b"v", None, b"w")):
            pairs = {at.key(0, 0): value, at.key(0, 1): b"x", at.key(0, 2): b"y" if step else None}
            await client.put(b"%016d" % step, number, pairs)
        await client.put(b"d" * 16, number, {at.key(0, 2): None})
        await member.checkpoint("early")
        assert await at.verify(near) == []

    at.run(scenario)


def test_requests_with_numbers_that_cannot_be_are_answered_and_the_member_goes_on() -> None:
    at = cluster(20, nodes=1)
    clients = Clients(at)
    huge, long = (1 << 64) - 1, b"x" * 5000

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)

        def commit(given: bool = False, **changed: Any) -> tuple[str, list[object]]:
            fields: dict[str, object] = {
                "id": b"%016d" % len(nonsense), "attempt": 1, "given": given, "tag": None,
                "reads": [], "ranges": [], "writes": [[number, [b"k"], [b"v"]]], **changed,
            }  # fmt: skip
            return "commit", list(fields.values())

        nonsense: list[tuple[str, list[object]]] = []
        for count in (-2, -huge // 2, huge):
            for writes in ([], [[number, [b"k"], [b"v"]]]):
                ranges = [[number, [0], b"", None, count, b""]]
                nonsense.append(commit(ranges=ranges, writes=writes))
        for low, high in ((long, None), (b"", long), (long, long), (b"b", b"a"), (b"", b"")):
            ranges = [[number, [0], low, high, 0, b""]]
            nonsense.append(commit(ranges=ranges))
            nonsense.append(commit(ranges=ranges, writes=[]))
            for reverse in (False, True):
                scan = [number, [0], low, high, reverse, 10, True, True]
                nonsense.append(("scan", scan))
        for value in (-1, huge, -(1 << 63)):
            nonsense += [
                commit(given=True, attempt=value),
                commit(reads=[[number, [b"k"], [value], [value]]]),
                ("get", [value, [b"k"]]),
                ("outcome", [b"5" * 16, False, value]),
                ("scan", [number, [0], b"", None, False, value, True, True]),
                ("scan", [value, [0], b"", None, False, 1, True, True]),
                ("scan", [number, [value], b"", None, False, 1, True, True]),
                ("map", ["new", "bytes", value, "bytes", 1]),
                ("exchanges", [value]),
            ]
        nonsense += [
            ("scan", [number, [], b"", None, False, 1, True, True]),
            ("scan", [number, [0, 0, 0], b"", None, False, 1, True, True]),
            ("scan", [number, [True], b"", None, False, 1, True, True]),
            ("move", [0, b"n1"]),
            ("get", [number, []]),
            ("get", [number, [b""]]),
            ("map", ["a\0b", "bytes", 1, "bytes", 1]),
            ("map", ["\n" * 300, "bytes", 1, "bytes", 1]),
            ("rename", ["m", ""]),
            ("rename", ["", "m"]),
            commit(given=True, writes=[]),
            commit(given=True, id=b"tidelog.horizon."),
            commit(tag="x" * 100_000),
            commit(writes=[[number, [b""], [b"v"]]]),
        ]
        for operation, arguments in nonsense:
            refused = await refusal(client, operation, *arguments)
            assert refused is None or refused.code.startswith("TL-"), (operation, arguments)
        for index in range(len(nonsense)):  # what was written under a given id can be asked for
            await client.ask("outcome", b"%016d" % index, True, 0)
        await client.put(b"z" * 16, number, {b"a": b"b"})
        assert (await client.ask("get", number, [b"a"]))[0] == [b"b"]

    at.run(scenario)


@pytest.mark.parametrize(
    ("operation", "work"),
    [
        ("get", (reads, "get")),
        ("scan", (reads, "page")),
        ("commit", (committing, "commit_of")),
        ("outcome", (TxHistory, "_outcome")),
    ],
)
def test_the_lease_is_looked_at_behind_the_work(
    operation: str, work: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = cluster(21)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        partition = next(p for p in range(PARTITIONS) if at.primary(p) == "n1")
        key = at.key(partition, 0)
        client = await clients.to("n1")
        answered = getattr(*work)

        def slowly(*arguments: Any, **more: Any) -> Any:
            found = answered(*arguments, **more)
            at.nodes["n1"].clocks.move(30)
            return found

        monkeypatch.setattr(*work, slowly)
        arguments: dict[str, list[object]] = {
            "get": [number, [key]],
            "scan": [number, [partition], b"", None, False, 10, True, True],
            "commit": [b"1" * 16, 1, False, None, [[number, [key], [0], [0]]], [], []],
            "outcome": [b"1" * 16, False, partition],
        }
        with pytest.raises(FailureError) as refused:
            await client.ask(operation, *arguments[operation])
        assert refused.value.code in ("wait", "TL-CLU-004")

    at.run(scenario)


def test_whoever_reads_slowly_gets_every_answer() -> None:
    at = cluster(22, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        await client.put(b"1" * 16, number, {b"a": b"x" * (1 << 20)})
        begun = [await client.begin("get", number, [b"a"]) for _ in range(40)]
        await trio.sleep(5)
        assert max(one._outbox.bytes for one in at.member("n1")._clients) < 10 << 20
        with trio.fail_after(60):
            for request in begun:
                [value], _, _ = await client.answer(request)
                assert len(value) == 1 << 20

    at.run(scenario)


def test_an_older_connection_of_a_line_is_not_listened_to_however_late_it_comes() -> None:
    at = cluster(23, nodes=1)
    clients = Clients(at)
    line = b"one line of ours"

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)

        async def late_commit(newest: int, number: int) -> None:
            late = await clients.to("n1", line=line)
            await late.put(b"%016d" % newest, number, {b"a": b"late"})

        for closes in (False, True):
            newer = await clients.to("n1", line=line)
            newest = clients._numbers
            if closes:
                newer.close()
                await trio.sleep(1)
            clients._numbers = newest - 2
            with pytest.raises(ConnectionResetError):
                await late_commit(newest, number)
            clients._numbers = newest
        assert (await client.ask("get", number, [b"a"]))[0] == [None]

    at.run(scenario)


def test_a_map_that_is_not_there_is_not_renamed_and_whoever_asked_hears_so() -> None:
    at = cluster(24)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, _ = await serving(at, clients)
        with pytest.raises(FailureError) as refused:
            await client.ask("rename", "nobody", "m")
        assert refused.value.code.startswith("TL-USE")
        await client.ask("rename", "m", "other")
        assert [row[1] for row in client.view[3]] == ["other"]

    at.run(scenario)


def test_a_member_under_load_stops_in_time() -> None:
    at = cluster(25)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        partition = next(p for p in range(PARTITIONS) if at.primary(p) == "n1")
        key = at.key(partition, 0)

        async def load(name: int) -> None:
            client = await clients.to("n1")
            numbers = 0
            try:
                while True:
                    numbers += 1
                    tx_id = b"%08d%08d" % (name, numbers)
                    writes = [[number, [key], [b"%d" % numbers]]]
                    await client.begin("commit", tx_id, 1, False, None, [], [], writes)
            except OSError:
                return

        async with trio.open_nursery() as nursery:
            for name in range(4):
                nursery.start_soon(load, name)
            await trio.sleep(0.5)
            with trio.fail_after(4):
                await at.stop("n1")
            nursery.cancel_scope.cancel()
        at.start(["n1"])
        await at.settled()

    at.run(scenario)


@pytest.mark.parametrize("seed", range(2))
def test_a_full_disk_during_a_start_delays_what_is_opened_and_no_more(seed: int) -> None:
    at = cluster(30 + seed, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        await client.put(b"1" * 16, number, {b"a": b"b"})
        await at.kill("n1")
        at.start()
        while "n1" not in at.running():
            await trio.sleep(0.001)
        disk = at.nodes["n1"].disk
        disk.fail_at(disk.operations + 1, "ENOSPC", for_ever=True, path=f"{DIRECTORY}/wal")
        await trio.sleep(6)
        disk.heal()
        await at.settled()
        client = await clients.to("n1")
        assert (await client.ask("get", number, [b"a"]))[0] == [b"b"]
        await client.put(b"2" * 16, number, {b"a": b"c"})

    at.run(scenario)


def test_a_full_disk_while_a_map_is_made_delays_it_and_no_more() -> None:
    at = cluster(36, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        disk = at.nodes["n1"].disk
        disk.fail_at(disk.operations + 1, "ENOSPC", for_ever=True, path=f"{DIRECTORY}/wal")
        begun = await client.begin("map", "other", "bytes", 1, "bytes", 1)
        with pytest.raises(FailureError) as refused:
            await client.put(b"1" * 16, number, {b"a": b"b"})
        assert refused.value.code == "TL-STO-002"
        await trio.sleep(2)
        disk.heal()
        with trio.fail_after(10):
            assert await client.answer(begun) == number + 1
        await client.put(b"2" * 16, number + 1, {b"a": b"b"})

    at.run(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_nobody_is_told_the_outcome_of_a_commit_whose_sync_failed(seed: int) -> None:
    at = cluster(100 + seed, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        disk = at.nodes["n1"].disk
        disk.fail_at(disk.operations + 1, "EIO", kind="sync", path=f"{DIRECTORY}/wal")
        with pytest.raises(FailureError) as refused:
            await client.put(b"1" * 16, number, {b"a": b"b"})
        assert refused.value.code == "TL-TX-007"
        question = b"1" * 16, False, refused.value.fields["home"]
        with pytest.raises(FailureError, match="sync"):
            await client.ask("outcome", *question)
        await trio.sleep(1)
        assert (await client.ask("get", number, [b"a"]))[0] == [None], "reads go on (I6)"
        await at.restart("n1")
        await at.settled()
        client = await clients.to("n1")
        found = (await client.ask("get", number, [b"a"]))[0]
        told = await client.ask("outcome", *question)
        assert told == ("committed" if found == [b"b"] else "rolled_back")

    at.run(scenario)


def test_a_manifest_that_is_older_than_the_configuration_log_is_refused_in_words() -> None:
    at = cluster(50, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        await serving(at, clients)
        await at.kill("n1", outcome="kept")
        disk = at.nodes["n1"].disk
        older = disk.read_bytes(f"{DIRECTORY}/manifest")
        at.start()
        await at.settled()
        await at.kill("n1", outcome="kept")
        at.nodes["n1"].disk.write_bytes(f"{DIRECTORY}/manifest", older)
        at.start()
        await at.killed("n1")

    with pytest.raises(Exception, match="old image") as refused:
        at.run(scenario)
    assert "ClusterError" in repr(refused.value)


def test_whoever_asks_for_a_change_without_a_majority_is_answered_by_the_deadline() -> None:
    at = cluster(51)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, _ = await serving(at, clients)
        at.cut({"n1"}, {"n2", "n3"})
        begun = await client.begin("map", "other", "bytes", 1, "bytes", 1, left_us=3_000_000)
        endless = await client.begin("drop", "m")
        with trio.fail_after(10):
            for request in (begun, endless):
                with pytest.raises(FailureError) as refused:
                    await client.answer(request)
                assert refused.value.code.startswith("TL-")

    at.run(scenario)


def test_whoever_claims_to_know_of_decisions_that_are_not_made_is_told_to_come_again() -> None:
    at = cluster(52, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        await client.send("known", 1 << 62)
        with trio.fail_after(60):
            with pytest.raises(FailureError) as refused:
                await client.ask("get", number, [b"a"])
            assert refused.value.code == "wait"
            late = await client.begin("get", number, [b"a"], left_us=1_000_000)
            assert await answer_of(client, late) == "TL-TX-005"
        assert (await client.ask("status"))["decided"] < 1 << 62
        begun = [await client.begin("get", number, [b"a"]) for _ in range(10)]
        assert begun
        await trio.sleep(0.1)
        member = at.member("n1")
        assert len(member.requests._held) == 10
        client.close()
        await trio.sleep(1)
        assert not member.requests._held

    at.run(scenario)


def test_a_full_disk_at_the_end_ends_no_other_way_than_any() -> None:
    at = cluster(53)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        partition = next(p for p in range(PARTITIONS) if at.primary(p) == "n1")
        key = at.key(partition, 0)
        client = await clients.to("n1")
        await client.put(b"1" * 16, number, {key: b"b"})
        disk = at.nodes["n1"].disk
        disk.fail_at(disk.operations + 1, "ENOSPC", for_ever=True, path=f"{DIRECTORY}/data")
        disk.fail_at(disk.operations + 1, "ENOSPC", for_ever=True, path=f"{DIRECTORY}/wal")
        await at.stop("n1")
        at.start(["n1"])
        await at.settled()
        client = await clients.to("n1")
        assert (await client.ask("get", number, [key]))[0] == [b"b"]

    at.run(scenario)


def test_commits_that_the_disk_does_not_keep_up_with_are_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = cluster(54, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        monkeypatch.setattr(room, "QUEUED_BYTES_MAX", 10_000)
        begun = {}
        for index in range(100):
            writes = [[number, [b"%d" % index], [b"x" * 1000]]]
            tx_id = b"%016d" % index
            begun[index] = await client.begin("commit", tx_id, 1, False, None, [], [], writes)
        told = {index: await answer_of(client, begun[index]) for index in begun}
        assert set(told.values()) == {None, "wait"}
        values = (await client.ask("get", number, [b"%d" % index for index in begun]))[0]
        assert [value is None for value in values] == [told[index] == "wait" for index in begun]
        assert at.member("n1").log.queued_bytes == 0

    at.run(scenario)


async def answer_of(client: RawClient, number: int) -> str | None:
    try:
        await client.answer(number)
    except FailureError as refused:
        return refused.code
    return None


def test_a_decision_that_does_not_follow_on_ours_ends_its_connection_and_no_more() -> None:
    at = cluster(55)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        topology = at.topology()
        known = topology.members[at.member_id("n2")]
        nobody = MemberGone(incarnation=Incarnation(UUID(int=7), 1))
        forged = Decided(decisions=(Decision(topology.index + 1, (nobody,)),))
        stream = await clients.network.connect(("n1", PORT))
        mine = Introduction(
            role="member", channel="control", member=known.member.bytes, number=1 << 40,
            boot=known.boot, nonce=known.nonce, decided=topology.index + 1,
        )  # fmt: skip
        await stream.send(frame([pack_message(mine.message())]))
        await stream.send(frame([pack_message(message_of(forged))]))
        with trio.fail_after(5):
            while await stream.receive():
                pass
        partition = next(p for p in range(PARTITIONS) if at.primary(p) == "n1")
        assert (await client.ask("get", number, [at.key(partition, 0)]))[0] == [None]
        await at.restart("n1")
        await at.settled()

    at.run(scenario)


def test_who_is_not_of_the_cluster_cannot_stop_its_elections() -> None:
    at = cluster(58)
    clients = Clients(at)
    stranger = Incarnation(UUID(int=7), 1)
    last = Term((1 << 63) - 1, stranger.member)
    disk = Credentials(incarnation=stranger, last=b"", fresh=b"nonce", end=1)

    async def scenario(at: SimCluster) -> None:
        await serving(at, clients)
        said: tuple[Telling, ...] = (
            AskPromise(term=last, sure=False),
            AskPromise(term=last, sure=True),
            Ping(term=last, round=1),
            Pong(term=last, round=1, votes=True, promised=last, end=1),
            Propose(term=last, decision=Decision(at.topology().index + 1, ())),
            Accepted(term=last, index=2, promised=last),
            ProposeChange(request=1, change=NamespaceDropped(name="m")),
            Join(credentials=disk, address="nowhere"),
        )
        for number, (name, telling) in enumerate(product(at.names, said), 1):
            stream = await clients.network.connect((name, PORT))
            mine = Introduction(
                role="member", channel="control", member=stranger.member.bytes, boot=1,
                number=number, decided=1,
            )  # fmt: skip
            await stream.send(frame([pack_message(mine.message())]))
            await stream.receive()
            await stream.send(frame([pack_message(message_of(telling))]))
            await trio.sleep(0.1)
            stream.close()
        assert [known.name for known in at.topology().namespaces.values()] == ["m"]
        assert at.topology().members.keys() == {at.member_id(name) for name in at.names}
        leader = at.coordinator()
        assert leader is not None
        await at.restart(leader)
        await at.settled()

    at.run(scenario)


def test_an_error_of_the_disk_while_an_outcome_is_looked_up_is_told_and_ends_nothing() -> None:
    at = cluster(57, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        await client.put(b"1" * 16, number, {b"k": b"a"})
        store = at.member("n1").log.state.store_id
        clock, disk = at.nodes["n1"].environment.clock, at.nodes["n1"].disk
        for nth in range(1, 40):
            disk.fail_at(disk.operations + nth, "EIO", path=f"{DIRECTORY}/wal")
            tx_id = dated_id(clock(), b"%016d" % nth, store)
            failure = await refusal(client, "outcome", tx_id, False, 0)
            assert failure is None or failure.code.startswith("TL-STO")
            disk.heal()
        assert (await client.ask("get", number, [b"k"]))[0] == [b"a"]

    at.run(scenario)


def test_a_disk_that_cannot_be_read_at_a_start_ends_that_start_with_a_storage_error() -> None:
    at = cluster(67, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        await client.put(b"1" * 16, number, {b"k": b"a"})
        await at.kill("n1")
        for nth in range(1, 40):
            disk = at.nodes["n1"].disk
            disk.fail_at(disk.operations + nth)
            at.start(["n1"])
            with trio.move_on_after(2):
                await at.killed("n1")
            await at.kill("n1")
        at.start(["n1"])
        await at.settled()
        client = await clients.to("n1")
        assert (await client.ask("get", number, [b"k"]))[0] == [b"a"]

    at.run(scenario)


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_who_asks_for_an_outcome_that_cannot_be_written_down_is_told_so(kind: str) -> None:
    # T19: nobody hears of a refusal that is not durable, and nobody waits for ever.
    at = cluster(80, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        disk = at.nodes["n1"].disk
        disk.fail_at(disk.operations + 1, "EIO", kind=kind, path=f"{DIRECTORY}/wal")
        asked = ("outcome", [b"1" * 16, True, 0])
        with trio.fail_after(10):
            told = [await answer_of(client, one) for one in await client.begin_all(asked, asked)]
        assert told[0] is not None
        assert told[0].startswith("TL-STO" if kind == "write" else "TL-TX-007"), told
        assert (told[1] is None) == (kind == "write"), "the next one could be written"
        write = [[number, [b"a"], [b"b"]]]
        refused = await refusal(client, "commit", b"2" * 16, 1, False, None, [], [], write)
        assert (refused is None) == (kind == "write"), "behind a failed sync nothing is written"
        await at.restart("n1")
        await at.settled()
        client = await clients.to("n1")
        assert await client.ask("outcome", b"1" * 16, True, 0) == "rolled_back"

    at.run(scenario)


def test_whoever_knows_more_than_a_member_that_writes_nothing_is_told_why() -> None:
    # I6: what is decided takes no effect there any more, so nobody waits for it.
    at = cluster(81, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        held = await clients.to("n1")
        await held.send("known", client.decided + 1)
        early = await held.begin("get", number, [b"a"])
        disk = at.nodes["n1"].disk
        disk.fail_at(disk.operations + 1, "EIO", kind="sync", path=f"{DIRECTORY}/wal")
        assert await refusal(
            client, "commit", b"1" * 16, 1, False, None, [], [], [[number, [b"a"], [b"b"]]]
        )
        before = at.world.now()
        late = await held.begin("get", number, [b"a"])
        with pytest.raises(FailureError, match="sync"):
            await held.answer(late)
        assert at.world.now() < before + 0.5
        with pytest.raises(FailureError, match="sync"):
            await held.answer(early)

    at.run(scenario)


def test_of_too_many_that_know_more_than_a_member_the_oldest_are_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "HELD_MAX", 3)
    at = cluster(82, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        ahead = await clients.to("n1")
        await ahead.send("known", client.decided + 2)
        begun = [await ahead.begin("get", number, [b"a"]) for _ in range(5)]
        assert [await answer_of(ahead, one) for one in begun[:2]] == ["wait", "wait"]
        gone = await clients.to("n1")
        await gone.send("known", client.decided + 2)
        await client.ask("map", "one", "bytes", 1, "bytes", 1)
        assert len(at.member("n1").requests._held) == 3
        await client.ask("map", "two", "bytes", 1, "bytes", 1)
        for one in begun[2:]:
            assert (await ahead.answer(one))[0] == [None]
        assert not at.member("n1").requests._held

    at.run(scenario)


def test_numbers_of_a_commit_that_did_not_get_into_the_log_are_given_to_the_next_one() -> None:
    # Left as a gap, they would have to be closed at every copy, too.
    at = cluster(83, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        key = at.key(2, 0)
        await client.put(b"1" * 16, number, {key: b"1"})
        disk = at.nodes["n1"].disk
        disk.fail_at(disk.operations + 1, "ENOSPC", kind="write", path=f"{DIRECTORY}/wal")
        lost = [[number, [key, at.key(2, 1)], [b"2", b"2"]]]
        refused = await refusal(client, "commit", b"2" * 16, 1, False, None, [], [], lost)
        assert refused is not None
        disk.heal()
        read = [[number, [key], [1], [1]]]  # which is as it was
        assert await refusal(client, "commit", b"5" * 16, 1, False, None, read, [], []) is None
        told = await client.put(b"3" * 16, number, {key: b"3"})
        assert told[1:] == [[2], [1], [2], [1]]
        await at.restart("n1")
        await at.settled()
        assert at.counters("n1", 2) == (2, 2)
        client = await clients.to("n1")
        assert (await client.ask("get", number, [key, at.key(2, 1)]))[0] == [b"3", None]
        assert (await client.put(b"4" * 16, number, {key: b"4"}))[1:] == [[2], [2], [3], [1]]

    at.run(scenario)


def test_what_no_client_sends_is_not_taken_for_a_mistake_of_the_member(
    caplog: pytest.LogCaptureFixture,
) -> None:
    at = cluster(84, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        name = b"1" * 16
        longest = b"k" * 480
        await client.put(name, number, {longest: b"v", b"b": b"v"})
        write = [[number, [b"a"], [b"v"]]]
        nonsense: tuple[tuple[Any, ...], ...] = (
            ("commit", name, 0, False, None, [], [], write),
            ("commit", name, 1 << 62, False, None, [], [], write),
            ("commit", name[1:], 1, False, None, [], [], write),
            ("commit", name, 1, False, None, [], [], [[number, [longest + b"k"], [b"v"]]]),
            (
                "commit",
                name,
                1,
                False,
                None,
                [],
                [[number, [PARTITIONS], b"", None, 0, b""]],
                write,
            ),
            ("commit", name, 1, False, None, [], [[number, [0], b"", None, -1, b""]], write),
            ("get", number, [longest + b"k"]),
            ("outcome", name[1:], False, 0),
            ("outcome", name, False, PARTITIONS),
            ("outcome", name, False, -1),
            ("scan", number, [PARTITIONS], b"", None, False, 1, False, False),
            ("scan", number, [0], b"", None, False, 0, False, False),
            ("map", "m2", "c" * 256, 1, "bytes", 1),
            ("map", "m2", "", 1, "bytes", 1),
            ("map", "m2", "bytes", 1, "bytes", 1 << 31),
        )
        for asked in nonsense:
            refused = await refusal(client, *asked)
            assert refused is not None, asked
            assert refused.code.startswith("TL-USE"), (asked, refused)
            assert "cannot be understood" in refused.message
        assert (await client.ask("get", number, [longest, b"a"]))[0] == [b"v", None]
        await client.ask("map", "m2", "c" * 255, 0, "bytes", (1 << 31) - 1)

    at.run(scenario)
    assert "node.request_failed" not in caplog.text


def test_a_mistake_in_the_check_of_one_commit_ends_that_commit_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = cluster(85, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        genuine = commits._check_read

        def mistaken(read: Any, *rest: Any) -> None:
            if read.version == (7, 7):
                raise KeyError("a mistake")
            genuine(read, *rest)

        monkeypatch.setattr(commits, "_check_read", mistaken)
        asked = [
            ("commit", [b"%016d" % n, 1, False, None, [[number, [b"x"], [v], [v]]], [],
                        [[number, [b"%d" % n], [b"v"]]]])
            for n, v in enumerate((0, 7, 0))
        ]  # fmt: skip
        told = [await answer_of(client, one) for one in await client.begin_all(*asked)]
        assert told == [None, "TL-CLU-005", None]
        values = (await client.ask("get", number, [b"0", b"1", b"2"]))[0]
        assert values == [b"v", None, b"v"]
        assert await client.ask("outcome", b"%016d" % 1, False, 0) == "rolled_back"

    at.run(scenario)


def test_much_that_waits_for_the_log_goes_in_groups_of_a_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_log, "GROUP_BYTES_MAX", 3000)
    at = cluster(86, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        groups = at.member("n1").log.groups
        asked = [
            (
                "commit",
                [b"%016d" % n, 1, False, None, [], [], [[number, [b"%d" % n], [b"v" * size]]]],
            )
            for n, size in enumerate([1000] * 9 + [5000] + [1000])
        ]
        told = [await client.answer(one) for one in await client.begin_all(*asked)]
        assert all(len(one[1]) == 1 for one in told)
        assert 5 <= at.member("n1").log.groups - groups <= 8
        assert at.member("n1").log.queued_bytes == 0
        assert None not in (await client.ask("get", number, [b"%d" % n for n in range(11)]))[0]

    at.run(scenario)


def test_a_read_that_a_commit_on_its_way_changes_is_not_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    genuine = node_log.NodeLog._append

    async def slowly(self: node_log.NodeLog, payload: bytes) -> None:
        await genuine(self, payload)
        await trio.sleep(0.2)

    at = cluster(87, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        monkeypatch.setattr(node_log.NodeLog, "_append", slowly)
        write = [[number, [b"a"], [b"1"]]]
        begun = await client.begin("commit", b"1" * 16, 1, False, None, [], [], write)
        await trio.sleep(0.1)
        assert at.member("n1").log.ids_in_flight() == (1, [b"1" * 16])
        read = [[number, [b"a"], [0], [0]]]
        refused = await refusal(client, "commit", b"2" * 16, 1, False, None, read, [], [])
        assert refused is not None
        assert refused.code == "TL-TX-002"
        assert refused.fields["winner"] == b"1" * 16
        await client.answer(begun)
        assert at.member("n1").log.ids_in_flight() == (1, [])

    at.run(scenario)


def test_a_range_that_is_too_long_to_be_checked_is_not_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A member looks at one key more than a range may have, and would miss what is behind that.
    monkeypatch.setattr(commits, "RANGE_KEYS_MAX", 3)
    at = cluster(88, nodes=1)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        client, number = await serving(at, clients)
        keys = [b"a", b"b", b"c", b"d", b"e"]
        await client.put(b"1" * 16, number, dict.fromkeys(keys, b"v"))
        for count, code in ((3, "TL-TX-002"), (4, "TL-USE-001"), (5, "TL-USE-001")):
            _, epochs, counters = await client.ask("get", number, keys[:count])
            digest = range_digest(keys[:count], epochs, counters)
            for high, told in (
                (None, code),
                (keys[count - 1] + b"\0", code if count > 3 else None),
            ):
                ranges = [[number, list(range(PARTITIONS)), b"", high, count, digest]]
                refused = await refusal(client, "commit", b"2" * 16, 1, False, None, [], ranges, [])
                assert (refused and refused.code) == told, (count, high)

    at.run(scenario)
