"""Connections between members, in simulated worlds: order, numbers, back pressure, bad peers."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import pytest
import trio

from support.peers import (
    PORT,
    Member,
    call,
    framed,
    id_of,
    idle,
    introduction,
    members,
    nonce_of,
    ping,
    read_to_end,
    stored,
)
from tidelog.engine.net import outbox, transport
from tidelog.engine.net.connection import (
    RECEIVE_S_MAX,
    Connection,
    hear,
    say,
)
from tidelog.engine.net.frames import LENGTH_BYTES, FrameDecoder, Message, frame
from tidelog.engine.net.handshake import Introduction, Refusal
from tidelog.engine.net.kinds import BY_NAME
from tidelog.engine.net.links import Links
from tidelog.engine.net.transport import (
    CLIENTS_MAX,
    CLIENTS_MIN,
    FILES_KEPT,
    FILES_PER_PEER,
    PAUSE_S,
    PAUSE_S_MAX,
    STRANGERS_MAX,
    TOOLS,
    Transport,
    UnwelcomeError,
)
from tidelog.engine.system.environment import Stream
from tidelog.errors import UsageError
from tidelog.testing import World
from tidelog.testing.streams import SimulatedListener, SimulatedStream

SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


async def started(*some: Member) -> None:
    for member in some:
        member.node.start()
    await trio.sleep(10)


@SEEDS
def test_messages_arrive_in_order_over_a_connection_for_each_class(seed: int) -> None:
    world = World(seed)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(a, b)
        for number in range(100):
            assert a.send("b", "control", ping(number)) == "queued"
            assert a.send("b", "data", stored(number, size=number * 50)) == "queued"
            assert b.send("a", "data", stored(number)) == "queued"
            if number % 10 == 0:
                await trio.sleep(0.001)
        await trio.sleep(10)

    world.run(scenario)
    assert b.numbers("<a", "control") == list(range(100))
    assert b.numbers("<a", "data") == list(range(100))
    assert a.numbers("<b", "data") == list(range(100))
    assert a.numbers("<b", "control") == []


def test_a_message_says_which_decisions_its_sender_knows() -> None:
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        a.node.start()
        await trio.sleep(0.01)
        a.transport.decided = 3
        await started(b)
        for decided in (3, 4, 4, 9):
            a.transport.decided = decided
            a.send("b", "control", ping(decided))
            await trio.sleep(1)

    world.run(scenario)
    assert b.decided == [3, 4, 4, 9]


@SEEDS
def test_a_connection_that_breaks_is_made_again_under_a_higher_number(seed: int) -> None:
    world = World(seed)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(a, b)
        for number in range(3):
            a.send("b", "control", ping(number))
            await trio.sleep(1)
            world.network.reset("a", "b")
            await trio.sleep(3)

    world.run(scenario)
    assert b.numbers("<a", "control") == [0, 1, 2]
    numbers = b.of("up", "<a", "control")
    assert len(numbers) == 4
    assert sorted(set(numbers)) == numbers
    assert a.of("up", "b", "control") == numbers


def test_while_there_is_no_connection_messages_are_dropped() -> None:
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(a)
        assert a.send("b", "control", ping(1)) == "down"
        assert a.send("c", "control", ping(2)) == "down"
        await started(b)
        a.send("b", "control", ping(3))
        await trio.sleep(1)
        b.node.kill("kept")
        await trio.sleep(1)
        assert a.send("b", "control", ping(4)) == "down"
        await b.node.wait_ended()
        await started(b)
        a.send("b", "control", ping(5))
        await trio.sleep(1)

    world.run(scenario)
    assert b.numbers("<a", "control") == [3, 5]
    assert a.of("failed", "b", "data")[-1] == "ConnectionRefusedError"


def test_attempts_become_rarer_and_go_on() -> None:
    world = World(1)
    [a] = members(world, "a", "b")[:1]

    async def scenario() -> None:
        a.node.start()
        for wanted in (range(5, 20), range(8, 25)):
            before = len(a.of("failed", "b", "data"))
            await trio.sleep(10)
            assert len(a.of("failed", "b", "data")) - before in wanted
        world.nodes["b"].start()
        await trio.sleep(10)

    world.run(scenario)
    assert a.of("up", "b", "data")


def arrivals_over_two_connections(seed: int) -> list[int]:
    """What arrives if a member goes on to use an older connection beside its newest one."""
    world = World(seed)
    [b] = members(world, "b")
    node = world.add("x", idle)

    async def scenario() -> None:
        node.start()
        await started(b)
        network = node.environment.network
        older, _ = await call(network, ("b", PORT), introduction(number=1))
        await older.send(framed(ping(1)))
        await trio.sleep(5)
        newer, _ = await call(network, ("b", PORT), introduction(number=2))
        await newer.send(framed(ping(2)))
        for number in (3, 4):
            with suppress(ConnectionError):
                await older.send(framed(ping(number)))
            await trio.sleep(5)
        _, answer = await call(network, ("b", PORT), introduction(number=1))
        assert answer == Refusal("number", "connection 1 is not newer than one known here")

    world.run(scenario)
    return b.numbers("<x", "control")


@SEEDS
def test_what_arrives_on_an_older_connection_is_dropped(seed: int) -> None:
    assert arrivals_over_two_connections(seed) == [1, 2]


def test_without_w1_what_was_sent_on_an_older_connection_takes_back_what_is_newer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Links, "counts", lambda *_connection: True)
    assert sorted(arrivals_over_two_connections(1)) == [1, 2, 3, 4]


LATE: dict[str, Introduction] = {
    "of another cluster": introduction(cluster=b"another cluster!"),
    "from an older boot": introduction("a", boot=0, number=99),
    "called gone": introduction("y"),
}


def arrivals_from(late: Introduction) -> list[int]:
    """What arrives from a connection that may not be."""
    world = World(1)
    a, b = members(world, "a", "b")
    node = world.add("x", idle)

    async def scenario() -> None:
        b.gone.add(("y", 1))
        node.start()
        await started(a, b)
        stream, _ = await call(node.environment.network, ("b", PORT), late)
        with suppress(ConnectionError):
            await stream.send(framed(ping(1)))
        await trio.sleep(5)

    world.run(scenario)
    return [told[3][2] for told in b.told if told[0] == "arrived"]


@pytest.mark.parametrize("name", LATE)
def test_what_comes_from_someone_who_may_not_connect_is_dropped(name: str) -> None:
    assert arrivals_from(LATE[name]) == []


@pytest.mark.parametrize("name", LATE)
def test_without_w1_it_arrives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "judge_caller", lambda *_said, **_known: None)
    monkeypatch.setattr(Transport, "_counts", lambda *_connection: True)
    assert arrivals_from(LATE[name]) == [1]


def test_a_half_open_connection_ends_as_soon_as_the_next_one_is_there() -> None:
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(a, b)
        world.network.half_open("a", "b")
        await trio.sleep(3)
        a.send("b", "control", ping(7))
        await trio.sleep(1)
        assert b.transport.reached() == {id_of("a")}, "the older one has taken nothing with it"

    world.run(scenario)
    assert b.numbers("<a", "control") == [7]
    assert len(b.of("down", "<a", "control")) == len(b.of("down", "<a", "data")) == 1


@SEEDS
def test_a_member_that_was_started_again_replaces_the_one_before(seed: int) -> None:
    world = World(seed)
    a, b = members(world, "a", "b")
    node = world.add("x", idle)

    async def scenario() -> None:
        node.start()
        await started(a, b)
        await a.node.restart("lost")  # b is not told that a went
        await trio.sleep(10)
        a.send("b", "data", stored(1))
        await trio.sleep(1)
        impostor = introduction("a", boot=1, number=99, channel="data")
        _, answer = await call(node.environment.network, ("b", PORT), impostor)
        assert answer == Refusal("boot", "boot 1 is over: 2 has been seen here")

    world.run(scenario)
    assert b.numbers("<a", "data") == [1]
    assert len(b.of("up", "<a", "data")) == 2


def test_what_a_member_that_is_gone_sends_is_dropped() -> None:
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(a, b)
        a.send("b", "control", ping(1))
        await trio.sleep(1)
        b.gone.add(("a", 1))
        a.send("b", "control", ping(2))
        await trio.sleep(5)
        assert a.send("b", "control", ping(3)) == "down"
        await a.node.restart("kept")
        await trio.sleep(5)
        a.send("b", "control", ping(4))
        await trio.sleep(1)

    world.run(scenario)
    assert b.numbers("<a", "control") == [1, 4]
    assert "UnwelcomeError" in a.of("failed", "b", "control")


def test_members_of_two_clusters_do_not_talk() -> None:
    world = World(1)
    a = Member(world, "a", ["b"])
    b = Member(world, "b", [], cluster=b"another cluster!")

    async def scenario() -> None:
        await started(a, b)
        with pytest.raises(UnwelcomeError):
            await a.transport.ask(("b", PORT))
        a.transport.cluster = b""
        found = await a.transport.ask(("b", PORT))
        assert (found.member, found.cluster) == (id_of("b"), b"another cluster!")

    world.run(scenario)
    assert a.of("up", "b", "control") == []
    assert {told[2] for told in b.told} == {"client"}
    assert any("this is cluster" in str(error) for error in a.errors)


def test_another_member_at_the_address_of_a_peer_is_not_taken_for_it() -> None:
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(b)
        a.others = ()
        await started(a)
        a.transport.meet(id_of("c"), ("b", PORT))
        await trio.sleep(5)
        assert a.send("c", "control", ping(1)) == "down"
        a.transport.meet(id_of("c"), ("b", PORT))
        a.transport.meet(id_of("b"), ("nowhere", PORT))
        await trio.sleep(1)
        a.transport.meet(id_of("b"), ("b", PORT))
        await trio.sleep(5)
        assert a.send("b", "control", ping(2)) == "queued"
        assert len(a.of("up", "b", "control")) == 1  # what is meant for another ends nothing
        await trio.sleep(1)
        a.transport.meet(id_of("b"), ("nowhere", PORT))
        await trio.sleep(1)
        assert a.send("b", "control", ping(3)) == "down"

    world.run(scenario)
    assert set(a.of("failed", "c", "control")) == {"UnwelcomeError"}
    assert b.numbers("<a", "control") == [2]
    assert b.of("down", "<a", "control")[-1] is None


@SEEDS
def test_a_peer_that_takes_nothing_holds_data_back_and_no_control_messages(seed: int) -> None:
    world = World(seed)
    a, b = members(world, "a", "b", outbox_bytes=100_000)

    async def scenario() -> None:
        await started(a, b)
        world.network.cut("a", "b")
        said = [a.send("b", "data", stored(number, size=10_000)) for number in range(50)]
        assert said == ["queued"] * 10 + ["full"] * 40
        for number in range(3000):
            assert a.send("b", "control", ping(number)) == "queued"
        await trio.sleep(5)
        world.network.heal()
        await trio.sleep(15)
        assert a.send("b", "data", stored(10)) == "queued"
        await trio.sleep(1)

    world.run(scenario)
    assert len(a.of("room", "b", "data")) == 1
    assert b.numbers("<a", "data") == list(range(11))
    assert b.numbers("<a", "control") == list(range(3000))


def test_a_connection_that_takes_nothing_for_too_long_ends() -> None:
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(a, b)
        world.network.cut("a", "b")
        for number in range(10):
            a.send("b", "data", stored(number, size=100_000))
        await trio.sleep(60)

    world.run(scenario)
    assert a.of("down", "b", "data") == ["TimeoutError"]
    assert a.of("down", "b", "control") == []


def test_a_connection_that_is_hung_up_is_made_anew_and_the_other_class_stays() -> None:
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(a, b)
        a.transport.hang_up(id_of("c"), "data", TimeoutError("who is not known is not connected"))
        a.transport.hang_up(id_of("b"), "data", TimeoutError("too little is taken"))
        assert a.send("b", "data", stored(0)) == "down"
        await trio.sleep(5)
        assert a.send("b", "data", stored(1)) == "queued"
        await trio.sleep(1)

    world.run(scenario)
    assert a.of("down", "b", "data") == ["TimeoutError"]
    assert len(a.of("up", "b", "data")) == 2
    assert len(a.of("up", "b", "control")) == 1
    assert b.numbers("<a", "data") == [1]


def test_who_is_met_again_stays_connected_and_at_another_address_is_connected_anew() -> None:
    # Each decision tells whom to meet.
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(a, b)
        a.transport.meet(id_of("b"), ("b", PORT))
        await trio.sleep(5)
        assert len(a.of("up", "b", "data")) == 1
        elsewhere = await b.transport.listen(("b", PORT + 1))
        a.transport.meet(id_of("b"), elsewhere)
        await trio.sleep(5)
        a.send("b", "data", stored(1))
        await trio.sleep(1)

    world.run(scenario)
    assert len(a.of("up", "b", "data")) == len(a.of("up", "b", "control")) == 2
    assert len(b.of("down", "<a", "data")) == len(b.of("down", "<a", "control")) == 1
    assert b.numbers("<a", "data") == [1]


def test_a_peer_is_reached_while_data_goes_both_ways(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)
    a, b, c = members(world, "a", "b", "c")
    both, alone = {id_of("b"), id_of("c")}, {id_of("c")}

    async def scenario() -> None:
        await started(a, b, c)
        assert a.transport.reached() == both
        a.transport.hang_up(id_of("b"), "data", TimeoutError("too little is taken"))
        assert a.transport.reached() == alone
        await trio.sleep(5)
        assert a.transport.reached() == both
        b.transport.meet(id_of("a"), ("nowhere", PORT))
        await trio.sleep(5)
        assert a.send("b", "data", stored(0)) == "queued"
        assert a.transport.reached() == alone, "nothing comes from it"

    world.run(scenario)
    [told] = [one for one in warnings_of(caplog) if "hung up" in one]
    assert "too little is taken" in told


def test_a_connection_that_breaks_is_made_again_at_once_whatever_had_failed_before() -> None:
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(a)
        await started(b)
        world.network.reset("a", "b")
        await trio.sleep(2 * PAUSE_S)

    world.run(scenario)
    assert len(a.of("failed", "b", "data")) > 5
    assert len(a.of("up", "b", "data")) == 2


def test_who_connects_is_connected_to_at_once_though_an_older_attempt_hears_nothing() -> None:
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        b.node.start()
        await trio.sleep(1)
        b.node.kill("lost")
        await b.node.wait_ended()
        a.node.start()
        await trio.sleep(1)
        assert a.of("failed", "b", "data") == [], "its machine is away"
        b.node.start()
        await trio.sleep(0.5)

    world.run(scenario)
    assert len(a.of("up", "<b", "data")) == 1
    assert len(a.of("up", "b", "data")) == len(a.of("up", "b", "control")) == 1


def test_who_tries_anew_hears_at_once_that_nobody_listens() -> None:
    world = World(1)
    [a] = members(world, "a", "b")[:1]

    async def scenario() -> None:
        await started(a)
        for _ in range(20):
            before = len(a.of("failed", "b", "control"))
            a.transport.try_anew()
            await trio.sleep(PAUSE_S)
            assert len(a.of("failed", "b", "control")) > before

    world.run(scenario)


def test_even_control_messages_are_not_kept_without_limit() -> None:
    world = World(1)
    a, b = members(world, "a", "b", outbox_bytes=1000)

    async def scenario() -> None:
        await started(a, b)
        said = [a.send("b", "control", ping(number)) for number in range(2000)]
        assert said.index("down") == len(said) - said.count("down")
        assert said.count("queued") < 2000
        await trio.sleep(0.01)

    world.run(scenario)
    assert a.of("down", "b", "control") == ["TimeoutError"]


def test_one_large_message_is_not_a_flood() -> None:
    # A message of several times the outbox once ended the connection that it was put into.
    world = World(1)
    a, b = members(world, "a", "b", outbox_bytes=1000)

    async def scenario() -> None:
        await started(a, b)
        assert a.send("b", "data", stored(1, size=10_000)) == "queued"
        assert a.send("b", "data", stored(2)) == "full"
        await trio.sleep(1)
        assert a.send("b", "data", stored(3)) == "queued"
        await trio.sleep(1)

    world.run(scenario)
    assert b.numbers("<a", "data") == [1, 3]
    assert len(a.of("room", "b", "data")) == 1


def test_a_message_that_no_frame_holds_is_refused_where_it_is_sent() -> None:
    world = World(1)
    a, b = members(world, "a", "b")

    async def scenario() -> None:
        await started(a, b)
        with pytest.raises(UsageError, match="would be refused"):
            a.send("b", "data", stored(1, size=64 << 20))
        with pytest.raises(OverflowError):
            a.send("b", "data", stored(1 << 64))
        a.send("b", "data", stored(2))
        await trio.sleep(1)

    world.run(scenario)
    assert b.numbers("<a", "data") == [2]


def test_a_client_is_answered_over_its_own_connection() -> None:
    world = World(1)
    [b] = members(world, "b")
    node = world.add("x", idle)
    request = BY_NAME["request"].message(7, None, "get", [b"k"])
    response = BY_NAME["response"].message(7, b"v")
    b.answer = response

    async def scenario() -> None:
        node.start()
        await started(b)
        said = Introduction(role="client", channel="client", member=id_of("x"))
        stream, answer = await call(node.environment.network, ("b", PORT), said)
        assert isinstance(answer, Introduction)
        assert (answer.member, answer.boot, len(answer.cluster)) == (id_of("b"), 1, 16)
        assert answer.nonce == nonce_of("b", 1)
        await stream.send(framed(request, request))
        wanted, found = framed(response, response), b""
        while len(found) < len(wanted):
            found += await stream.receive()
        assert found == wanted

    world.run(scenario)


def test_what_is_said_while_messages_are_taken_is_one_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Answering(Member):
        def arrived(self, connection: Connection, messages: list[Message]) -> None:
            super().arrived(connection, messages)
            for message in messages:
                self.send("a", "data", message)

    world = World(1)
    a, b = Member(world, "a", ["b"]), Answering(world, "b", ["a"])
    sizes: list[int] = []

    def framed(packed: Sequence[bytes]) -> bytes:
        sizes.append(len(packed))
        return frame(packed)

    async def scenario() -> None:
        await started(a, b)
        monkeypatch.setattr(outbox, "frame", framed)
        with a.transport.gathering:
            for number in range(3):
                a.send("b", "data", stored(number))
        await trio.sleep(1)

    world.run(scenario)
    assert a.numbers("<b", "data") == [0, 1, 2]
    assert sizes == [3, 3]


def test_clients_that_idle_leave_open_files_for_the_log_and_for_other_members() -> None:
    """They took all: the log had none for its next segment, and no member could connect."""
    world = World(1)
    a, b = Member(world, "a", ["b"]), Member(world, "b", ["a"], files=160)
    node = world.add("x", idle)
    least = 160 - 160 // 8 - TOOLS - FILES_KEPT - FILES_PER_PEER

    async def asks(role: str, number: int) -> tuple[Stream, object]:
        said = introduction(f"x{number}", role=role, channel="client")
        return await call(node.environment.network, ("b", PORT), said)

    async def scenario() -> None:
        node.start()
        await started(b)
        idlers = []
        for number in range(least):
            stream, answer = await asks("client", number)
            assert isinstance(answer, Introduction)
            idlers.append(stream)
        _, refused = await asks("client", 500)
        assert refused == Refusal(
            "full",
            f"this member has {least} clients, and takes no more: end some that are idle, or let "
            "its process have more open files (`ulimit -n`)",
        )
        for number in range(TOOLS):
            _, answer = await asks("tool", 600 + number)
            assert isinstance(answer, Introduction), "new members ask so"
        assert isinstance((await asks("tool", 700))[1], Refusal)
        await started(a)
        assert a.send("b", "data", stored(1)) == "queued"
        for stream in idlers[: TOOLS + 1]:
            stream.close()
        await trio.sleep(1)
        assert isinstance((await asks("client", 501))[1], Introduction)
        assert isinstance((await asks("client", 502))[1], Refusal)

    world.run(scenario)
    assert b.numbers("<a", "data") == [1]


def test_a_frame_that_a_client_has_begun_and_leaves_so_ends_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was waited for without end, and up to 64 MiB of it were kept."""
    world = World(1)
    [b] = members(world, "b")
    node = world.add("x", idle)
    ended: dict[str, float] = {}
    began = 0.0

    async def speak(name: str, pieces: Sequence[bytes]) -> None:
        said = introduction(name, role="client", channel="client")
        stream, _ = await call(node.environment.network, ("b", PORT), said)
        for piece in pieces:
            await stream.send(piece)
            await trio.sleep(RECEIVE_S_MAX - 1)
        with suppress(ConnectionError):
            await read_to_end(stream)
            ended[name] = trio.current_time() - began

    async def scenario() -> None:
        nonlocal began
        node.start()
        await started(b)
        began = trio.current_time()
        whole = framed(BY_NAME["request"].message(1, None, "get", [b"k" * 9]))
        with trio.move_on_after(RECEIVE_S_MAX * 6):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(speak, "idle", [])
                nursery.start_soon(speak, "whole", [whole])
                nursery.start_soon(speak, "slow", [whole[at : at + 10] for at in range(0, 50, 10)])
                nursery.start_soon(speak, "half", [whole[:10]])
                nursery.start_soon(speak, "length", [whole + whole[:2]])

    world.run(scenario)
    assert ended.keys() == {"half", "length"}
    assert all(RECEIVE_S_MAX < at < RECEIVE_S_MAX + 1 for at in ended.values())
    assert b.of("down", "<half", "client") == ["FrameError"]
    [line] = warnings_of(caplog)
    assert "nothing more of a frame has come for 30 s" in line


@pytest.mark.parametrize(("files", "most"), [(40, CLIENTS_MIN), (1 << 20, CLIENTS_MAX)])
def test_a_member_takes_some_clients_with_few_open_files_and_not_all_with_many(
    files: int, most: int
) -> None:
    world = World(1)
    [b] = members(world, "b", files=files)

    async def scenario() -> None:
        await started(b)
        b.transport._clients.update(cast("list[Stream]", range(most - 1)))
        assert b.transport._full("client") is None
        b.transport._clients.update(cast("list[Stream]", range(most)))
        refusal = b.transport._full("client")
        assert refusal is not None
        assert ("ulimit" in refusal.reason) == (most == CLIENTS_MIN)

    world.run(scenario)


# ---------------------------------------------------------------- bad peers


@pytest.mark.slow
@SEEDS
def test_a_thousand_silent_connections_cost_little_and_leave_one_line(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(seed)
    a, b = members(world, "a", "b")
    node = world.add("x", idle)
    most = 0

    async def connect() -> None:
        stream = await node.environment.network.connect(("b", PORT))
        with suppress(ConnectionError):
            await stream.receive()

    async def scenario() -> None:
        nonlocal most
        node.start()
        await started(b)
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(connect)
                if number % 100 == 99:
                    await trio.sleep(0.1)
                    most = max(most, len(b.transport._strangers))
            a.node.start()
            await trio.sleep(9)
            assert a.send("b", "control", ping(1)) == "queued"
            await trio.sleep(1)
            assert b.numbers("<a", "control") == [1]
            assert not b.transport._strangers
            assert len(warnings_of(caplog)) == 1
            nursery.start_soon(connect)
            await trio.sleep(20)

    world.run(scenario)
    assert most == STRANGERS_MAX
    first, second = warnings_of(caplog)
    assert first.endswith("connected and did not say who it is")
    assert int(second.split("; ")[1].split()[0].replace(",", "")) > 500


BAD_STARTS = {
    "too long": (4097).to_bytes(4, "big"),
    "too deep": b"\x00\x00\x00\x20" + b"\x91" * 31 + b"\x01",
    "http": b"GET / HTTP/1.1\r\nHost: b\r\n\r\n",
    "not a handshake": framed(ping(1)),
    "a longer first message": framed([*introduction().message(), b"x" * 4100]),
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD_STARTS)
def test_a_stranger_that_says_nonsense_is_dropped(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(1)
    a, b = members(world, "a", "b")
    node = world.add("x", idle)

    async def scenario() -> None:
        node.start()
        await started(a, b)
        for _ in range(5):
            stream = await node.environment.network.connect(("b", PORT))
            await stream.send(BAD_STARTS[name])
            assert await read_to_end(stream) == b""
        a.send("b", "control", ping(1))
        await trio.sleep(1)

    world.run(scenario, seconds_max=100)
    assert b.numbers("<a", "control") == [1]
    assert {told[1] for told in b.told} == {"<a", "a"}
    assert 1 <= len(warnings_of(caplog)) <= 4  # one for each 10 s


def test_a_stranger_that_speaks_slowly_is_dropped_in_time() -> None:
    world = World(1)
    [b] = members(world, "b")
    node = world.add("x", idle)
    sent = 0

    async def scenario() -> None:
        nonlocal sent
        node.start()
        await started(b)
        stream = await node.environment.network.connect(("b", PORT))
        with suppress(ConnectionError):
            for byte in framed(introduction().message()):
                await trio.sleep(1)
                await stream.send(bytes([byte]))
                sent += 1

    world.run(scenario)
    assert 3 <= sent <= 7
    assert b.told == []


BAD_FRAMES = {
    "too long": b"\xff\xff\xff\xff",
    "too deep": (100).to_bytes(LENGTH_BYTES, "big") + b"\x91" * 99 + b"\x01",
    "random": random.Random(5).randbytes(300),
    "of no kind": framed([9, 1]),
    "of another class": framed(stored(1)),
    "a second handshake": framed(introduction(number=5).message()),
    "fewer fields": framed([15]),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_peer_that_says_nonsense_loses_its_connection_and_nothing_else(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(1)
    a, b = members(world, "a", "b")
    node = world.add("x", idle)

    async def scenario() -> None:
        node.start()
        await started(a, b)
        for number in range(1, 6):
            said = introduction(number=number)
            stream, _ = await call(node.environment.network, ("b", PORT), said)
            await stream.send(framed(ping(number)))
            await trio.sleep(0.5)
            await stream.send(BAD_FRAMES[name])
            await read_to_end(stream)
        a.send("b", "control", ping(7))
        await trio.sleep(1)

    world.run(scenario, seconds_max=100)
    assert b.numbers("<a", "control") == [7]
    assert b.numbers("<x", "control") == [1, 2, 3, 4, 5]
    assert b.of("down", "<x", "control") == ["FrameError"] * 5
    assert len(warnings_of(caplog)) == 1


def test_a_frame_that_is_cut_off_is_not_heard() -> None:
    world = World(1)
    [b] = members(world, "b")
    node = world.add("x", idle)

    async def scenario() -> None:
        node.start()
        await started(b)
        stream, _ = await call(node.environment.network, ("b", PORT), introduction())
        await stream.send(framed(ping(1)) + framed(ping(2), ping(3))[:-1])
        stream.close()
        await trio.sleep(1)

    world.run(scenario)
    assert b.numbers("<x", "control") == [1]
    assert b.of("down", "<x", "control") == [None]


def test_a_boot_counts_against_nobody_once_its_connections_have_ended() -> None:
    # W1: another disk may have claimed it, which the cluster has refused since.
    world = World(1)
    [b] = members(world, "b")
    node = world.add("x", idle)

    async def scenario() -> None:
        node.start()
        await started(b)
        for boot in (7, 2):
            stream, _ = await call(
                node.environment.network, ("b", PORT), introduction(number=1, boot=boot)
            )
            await stream.send(framed(ping(boot)))
            await trio.sleep(1)
            stream.close()
            await trio.sleep(1)

    world.run(scenario)
    assert b.numbers("<x", "control") == [7, 2]


def test_a_boot_whose_caller_never_hears_its_answer_counts_against_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # W1: a boot counts while there is a connection with it, and there was none.
    world = World(1)
    [b] = members(world, "b")
    node = world.add("x", idle)
    genuine = say

    async def said(stream: Stream, what: Introduction | Refusal) -> None:
        if isinstance(what, Introduction) and what.number == 9:
            raise ConnectionResetError("gone")
        await genuine(stream, what)

    async def scenario() -> None:
        node.start()
        await started(b)
        monkeypatch.setattr(transport, "say", said)
        stream = await node.environment.network.connect(("b", PORT))
        await genuine(stream, introduction(number=9, boot=7))
        await read_to_end(stream)
        stream, _ = await call(
            node.environment.network, ("b", PORT), introduction(number=1, boot=2)
        )
        await stream.send(framed(ping(1)))
        await trio.sleep(1)

    world.run(scenario)
    assert b.numbers("<x", "control") == [1]


def test_a_peer_that_is_silent_or_something_else_is_tried_again() -> None:
    world = World(1)
    a = Member(world, "a", ["http", "silent", "refusing"])
    nodes = {name: world.add(name, idle) for name in a.others}

    async def answer(name: str, said: bytes) -> None:
        nodes[name].start()
        listener = await nodes[name].environment.network.listen((name, PORT))
        while True:
            stream = await listener.accept()
            if said:
                await stream.send(said)

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, "http", b"HTTP/1.1 400 Bad Request\r\n\r\n")
            nursery.start_soon(answer, "silent", b"")
            nursery.start_soon(answer, "refusing", framed(Refusal("gone", "out").message()))
            await started(a)
            left = [stream.peer[0] for stream in world.network._hosts["a"].streams]
            assert all(left.count(name) <= 2 for name in a.others), "one for each class"
            nursery.cancel_scope.cancel()

    world.run(scenario)
    assert set(a.of("failed", "http", "control")) == {"ConnectionAbortedError"}
    assert a.of("failed", "silent", "control") == ["TimeoutError"]
    assert set(a.of("failed", "refusing", "control")) == {"UnwelcomeError"}
    assert not [told for told in a.told if told[0] == "up"]


def test_a_system_that_has_no_sockets_left_ends_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(1)
    a, b = members(world, "a", "b")
    accept, failed = SimulatedListener.accept, dict[SimulatedListener, list[float]]()

    async def accept_later(listener: SimulatedListener) -> SimulatedStream:
        at = failed.setdefault(listener, [])
        if len(at) < 3:
            at.append(trio.current_time())
            raise OSError(errno.EMFILE, "too many open files")
        return await accept(listener)

    monkeypatch.setattr(SimulatedListener, "accept", accept_later)

    async def scenario() -> None:
        await started(a, b)
        assert a.send("b", "control", ping(1)) == "queued"
        await trio.sleep(1)
        assert repr(a.transport).endswith(" boot 1: 2 made, 2 accepted, 0 strangers>")

    world.run(scenario)
    assert b.numbers("<a", "control") == [1]
    for first, second, third in failed.values():
        assert min(second - first, third - second) >= PAUSE_S_MAX, "nothing is tried in between"
    assert any("too many open files" in line for line in warnings_of(caplog))


def test_a_member_that_talks_back_over_a_connection_for_sending_loses_it() -> None:
    world = World(1)
    a = Member(world, "a", ["x"])
    node = world.add("x", idle)

    async def answer(stream: Stream) -> None:
        other = await hear(stream, FrameDecoder())
        assert isinstance(other, Introduction)
        await say(stream, introduction(channel=other.channel, number=other.number))
        await stream.send(framed(ping(1) if other.channel == "control" else stored(1)))

    async def scenario() -> None:
        node.start()
        listener = await node.environment.network.listen(("x", PORT))
        a.node.start()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(answer, await listener.accept())
        listener.close()
        await trio.sleep(1)

    world.run(scenario)
    assert a.of("down", "x", "control") == a.of("down", "x", "data") == ["FrameError"]
    assert not [told for told in a.told if told[0] == "arrived"]


# ---------------------------------------------------------------- the same each time


def run_in_trouble(seed: int) -> tuple[str, list[Member]]:
    """Three members that talk for a while as their network and processes fail."""
    world = World(seed)
    some = members(world, "a", "b", "c", outbox_bytes=20_000)
    rng = world.random("trouble")

    async def scenario() -> None:
        for member in some:
            member.node.start()
        for number in range(400):
            await trio.sleep(rng.uniform(0.0, 0.1))
            one, other = rng.sample(some, 2)
            if one.node.running:
                with suppress(AttributeError):  # it has not begun yet
                    if rng.random() < 0.5:
                        one.send(other.name, "control", ping(number))
                    else:
                        one.send(other.name, "data", stored(number, size=number * 9))
            match rng.randrange(60):
                case 0:
                    world.network.cut(one.name, other.name)
                case 1 | 2:
                    world.network.heal()
                case 3:
                    world.network.reset(one.name, other.name)
                case 4:
                    world.network.half_open(one.name, other.name)
                case 5:
                    await one.node.restart()
        world.network.heal()
        await trio.sleep(20)
        for number in (1000, 1001):  # a connection that is half open shows when it is used
            for member in some:
                for name in member.others:
                    assert member.send(name, "control", ping(number)) == "queued"
            await trio.sleep(10)

    world.run(scenario)
    return world.trace.hash, some


@pytest.mark.slow
@SEEDS
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    first, some = run_in_trouble(seed)
    second, again = run_in_trouble(seed)
    assert first == second
    assert [member.told for member in some] == [member.told for member in again]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_in_trouble_messages_stay_in_order_and_connections_come_back(seed: int) -> None:
    _, some = run_in_trouble(seed)
    for member in some:
        for other in member.others:
            numbers = member.numbers(f"<{other}", "control")
            assert numbers == sorted(set(numbers))
            assert numbers[-1] == 1001
            data = member.numbers(f"<{other}", "data")
            assert data == sorted(set(data))
