"""When what is sent on a connection leaves: at once, with other answers, or as room is made."""

from __future__ import annotations

import gc
import math
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from support.peers import introduction, ping
from tidelog.engine.net.connection import Connection
from tidelog.engine.net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from tidelog.engine.net.gathering import Gathering
from tidelog.engine.net.kinds import BY_NAME
from tidelog.engine.net.turns import TURN_S, RequestTurns
from tidelog.engine.system.environment import Address


class Wire:
    """A stream whose other end takes as much as a test says; the rest waits for ``opened``."""

    peer: Address = ("there", 1)

    def __init__(self) -> None:
        self.takes: deque[int | OSError] = deque()
        """What the next calls of ``send_nowait`` take; behind them all is taken."""
        self.taken = bytearray()
        self.opened = trio.Event()
        self.fails: OSError | None = None
        self._closed = trio.Event()
        self._sender, self._receiver = trio.open_memory_channel[bytes | OSError](math.inf)

    def arrives(self, *messages: Message) -> None:
        self.comes(frame([pack_message(message) for message in messages]))

    def comes(self, data: bytes | OSError) -> None:
        self._sender.send_nowait(data)

    def frames(self) -> list[list[Message]]:
        """Return the messages of each frame that is there whole."""
        found, data = [], bytes(self.taken)
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            found.append(FrameDecoder(KNOWN).feed(data[:size]))
            data = data[size:]
        return found

    def send_nowait(self, data: bytes) -> int:
        takes = self.takes.popleft() if self.takes else len(data)
        if isinstance(takes, OSError):
            raise takes
        self.taken += data[:takes]
        return min(takes, len(data))

    async def send(self, data: bytes) -> None:
        await self.opened.wait()
        if self.fails:
            raise self.fails
        self.taken += data

    async def receive(self, bytes_max: int = 65_536) -> bytes:
        data = await self._receiver.receive()
        if isinstance(data, OSError):
            raise data
        return data

    def close(self) -> None:
        self._closed.set()


def accepted(wire: Wire) -> Connection:
    """Return a connection that a client has made."""
    return Connection(
        wire, FrameDecoder(), introduction(channel="client"),
        introduction(channel="client", role="client"), outgoing=False, outbox_bytes=1000,
        gathering=Gathering(), turns=RequestTurns(),
    )  # fmt: skip


async def with_connection(
    channel: str,
    body: Callable[[Wire, Connection, list[Message]], object],
    gathering: Gathering | None = None,
) -> None:
    """Call ``body`` with a connection that was accepted, or made, and what arrived on it."""
    wire, arrived = Wire(), list[Message]()
    outgoing = channel != "client"
    other = introduction(channel=channel, role="member" if outgoing else "client")
    connection = Connection(
        wire, FrameDecoder(), introduction(channel=channel), other,
        outgoing=outgoing, outbox_bytes=1000, gathering=gathering or Gathering(),
        turns=RequestTurns(),
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.live, arrived.extend, lambda: None, lambda: 0)
        await trio.testing.wait_all_tasks_blocked()
        done = body(wire, connection, arrived)
        if done is not None:
            await done  # type: ignore[misc]
        nursery.cancel_scope.cancel()


def request(number: int) -> Message:
    return BY_NAME["request"].message(number, None, "get", [])


def response(number: int) -> Message:
    return BY_NAME["response"].message(number, b"v")


async def test_a_message_leaves_at_once_if_nothing_waits() -> None:
    def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        for number in range(3):
            assert connection.send(ping(number)) == "queued"
            assert wire.frames() == [[ping(one)] for one in range(number + 1)]

    await with_connection("control", body)


async def test_messages_that_are_gathered_leave_as_one_frame_at_the_end() -> None:
    gathering = Gathering()

    async def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        with gathering:
            connection.send(ping(0))
            with gathering:
                connection.send(ping(1))
            assert connection.send(ping(2)) == "queued"
            assert not wire.taken, "the outermost block writes"
        assert wire.frames() == [[ping(0), ping(1), ping(2)]]
        connection.send(ping(3))
        assert wire.frames()[1:] == [[ping(3)]], "nothing is gathered any more"
        await trio.testing.wait_all_tasks_blocked()
        assert len(wire.frames()) == 2

    await with_connection("control", body, gathering)


def test_what_was_gathered_is_flushed_once() -> None:
    gathering, flushed = Gathering(), list[str]()
    for name in ("one", "two"):
        with gathering:
            assert gathering.takes(SimpleNamespace(flush=partial(flushed.append, name)))
    assert flushed == ["one", "two"]


async def test_what_was_gathered_leaves_whatever_is_raised() -> None:
    gathering = Gathering()

    def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        def take() -> None:
            with gathering:
                connection.send(ping(0))
                raise FrameError("what arrived cannot be")

        with pytest.raises(FrameError):
            take()
        assert wire.frames() == [[ping(0)]]

    await with_connection("control", body, gathering)


async def test_of_what_was_gathered_the_rest_waits_for_room() -> None:
    gathering = Gathering()

    async def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        wire.takes.extend([5, 0])
        with gathering:
            connection.send(ping(0))
            connection.send(ping(1))
        assert len(wire.taken) == 5
        with gathering:
            connection.send(ping(2))
        assert len(wire.taken) == 5, "it would be in the middle of a frame"
        wire.opened.set()
        await trio.testing.wait_all_tasks_blocked()
        assert wire.frames() == [[ping(0), ping(1)], [ping(2)]]

    await with_connection("control", body, gathering)


async def test_a_connection_that_ends_while_it_gathers_sends_nothing() -> None:
    gathering = Gathering()

    def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        with gathering:
            connection.send(ping(0))
            connection.end()
            assert connection.send(ping(1)) == "down"
        assert not wire.taken

    await with_connection("control", body, gathering)


async def test_a_gathered_frame_that_cannot_be_written_ends_its_connection_only() -> None:
    gathering = Gathering()

    def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        wire.takes.append(ConnectionResetError("gone"))
        with gathering:
            connection.send(ping(0))
        assert not connection.up
        assert isinstance(connection.reason, ConnectionResetError)

    await with_connection("control", body, gathering)


async def test_what_was_not_taken_leaves_before_anything_newer() -> None:
    async def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        wire.takes.extend([5, 0])
        for number in range(3):
            assert connection.send(ping(number)) == "queued"
        assert len(wire.taken) == 5
        await trio.testing.wait_all_tasks_blocked()  # the task has taken the rest, and waits
        assert connection.send(ping(3)) == "queued"
        assert len(wire.taken) == 5, "it would be in the middle of a frame"
        wire.opened.set()
        await trio.testing.wait_all_tasks_blocked()
        assert wire.frames() == [[ping(0)], [ping(1), ping(2), ping(3)]]
        assert connection.send(ping(4)) == "queued"
        assert wire.frames()[2:] == [[ping(4)]]

    await with_connection("control", body)


async def test_nothing_leaves_in_the_middle_of_a_frame_that_alone_is_waited_for() -> None:
    async def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        wire.takes.extend([5, 0])
        connection.send(ping(0))
        await trio.testing.wait_all_tasks_blocked()  # the task has taken all, and waits
        connection.send(ping(1))
        assert len(wire.taken) == 5
        wire.opened.set()
        await trio.testing.wait_all_tasks_blocked()
        assert wire.frames() == [[ping(0)], [ping(1)]]

    await with_connection("control", body)


async def test_what_was_not_taken_counts_for_what_may_wait() -> None:
    async def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        long = BY_NAME["confirm-copy"].message(1, [1] * 1200, [], [], [])
        wire.takes.append(0)
        assert connection.send(long) == "queued"
        assert connection.send(ping(1)) == "full"

    await with_connection("data", body)


async def test_answers_of_requests_that_are_open_together_share_a_frame() -> None:
    async def body(wire: Wire, connection: Connection, arrived: list[Message]) -> None:
        wire.arrives(*(request(number) for number in range(3)))
        await trio.testing.wait_all_tasks_blocked()
        assert arrived == [request(number) for number in range(3)]
        for number in range(3):
            connection.send(response(number))
            assert not wire.taken
        await trio.testing.wait_all_tasks_blocked()
        assert wire.frames() == [[response(0), response(1), response(2)]]
        wire.arrives(request(3))
        await trio.testing.wait_all_tasks_blocked()
        connection.send(response(3))
        assert wire.frames()[1:] == [[response(3)]], "nobody else waits"

    await with_connection("client", body)


async def test_what_nobody_answers_keeps_no_answer_back() -> None:
    async def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        wire.arrives(BY_NAME["cancel"].message(0), request(1))
        await trio.testing.wait_all_tasks_blocked()
        connection.send(response(1))
        assert wire.frames() == [[response(1)]]
        connection.send(BY_NAME["topology"].message([]))  # unasked
        wire.arrives(request(2), request(3))
        await trio.testing.wait_all_tasks_blocked()
        connection.send(response(2))
        assert len(wire.frames()) == 2

    await with_connection("client", body)


async def test_answers_of_requests_that_came_one_behind_the_other_share_a_frame() -> None:
    async def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        for number in range(2):
            wire.arrives(request(number))
            await trio.testing.wait_all_tasks_blocked()
        for number in range(2):
            connection.send(response(number))
            assert not wire.taken
        await trio.testing.wait_all_tasks_blocked()
        assert wire.frames() == [[response(0), response(1)]]

    await with_connection("client", body)


async def test_requests_are_taken_again_once_answers_are() -> None:
    async def body(wire: Wire, connection: Connection, arrived: list[Message]) -> None:
        wire.takes.extend([5, 0])
        wire.arrives(request(0))
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            connection.send(BY_NAME["response"].message(0, bytes(1000)))
        wire.arrives(request(1), request(2))
        await trio.testing.wait_all_tasks_blocked()
        assert arrived == [request(0)], "there is no room for their answers"
        wire.opened.set()
        await trio.testing.wait_all_tasks_blocked()
        assert arrived == [request(number) for number in range(3)]

    await with_connection("client", body)


async def test_what_is_decided_while_a_rest_waits_is_told_with_the_next_frame() -> None:
    wire, decided = Wire(), [0]
    connection = accepted(wire)
    known, first, second = BY_NAME["known"].message(1), response(0), response(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.live, lambda _: None, lambda: None, lambda: decided[0])
        await trio.testing.wait_all_tasks_blocked()
        wire.takes.append(5)
        connection.send(first)
        decided[0] = 1
        await trio.testing.wait_all_tasks_blocked()
        connection.send(second)
        assert wire.frames() == [[first], [known, second]]
        nursery.cancel_scope.cancel()


async def test_who_takes_no_answers_and_leaves_is_waited_for_by_nobody() -> None:
    wire, arrived = Wire(), list[Message]()
    connection = accepted(wire)
    wire.takes.extend([5, 0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.live, arrived.extend, lambda: None, lambda: 0)
        wire.arrives(request(0))
        await trio.testing.wait_all_tasks_blocked()
        connection.send(BY_NAME["response"].message(0, bytes(1000)))
        connection.send(BY_NAME["response"].message(0, bytes(1000)))
        wire.arrives(request(1), request(2))
        await trio.testing.wait_all_tasks_blocked()
        assert arrived == [request(0)], "there is no room for their answers"
        wire.fails = BrokenPipeError("gone")
        wire.opened.set()
    assert arrived == [request(0)]
    assert not connection.up
    assert isinstance(connection.reason, BrokenPipeError)
    assert "0 messages, 0 bytes" in repr(connection._outbox)


async def test_between_requests_that_take_long_the_loop_goes_round(
    mock_clock: trio.testing.MockClock,
) -> None:
    """110,000 requests in one frame were carried out in one piece, and their member taken for
    dead."""
    wire, rounds, seen = Wire(), 0, list[int]()
    connection = accepted(wire)

    def arrived(messages: list[Message]) -> None:
        mock_clock.jump(2 * TURN_S)
        seen.extend([rounds] * len(messages))

    wire.arrives(*map(request, range(20)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.live, arrived, lambda: None, lambda: 0)
        while len(seen) < 20:
            rounds += 1
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert all(seen.count(turn) <= 2 for turn in seen), "two, as the loop shuffles its tasks"


async def test_an_error_in_sending_ends_the_connection_with_its_reason() -> None:
    def body(wire: Wire, connection: Connection, _: list[Message]) -> None:
        wire.takes.append(BrokenPipeError("gone"))
        assert connection.send(ping(1)) == "down"
        assert not connection.up
        assert isinstance(connection.reason, BrokenPipeError)
        assert connection.send(ping(2)) == "down"

    await with_connection("control", body)


@pytest.mark.parametrize("how", ["garbage", "reading fails", "sending fails", "the rest fails"])
async def test_a_connection_that_has_ended_and_what_arrived_are_held_by_no_circle(how: str) -> None:
    last: dict[str, bytes | OSError] = {
        "garbage": b"\0\0\0\2\x91\xc1",
        "reading fails": ConnectionResetError("gone"),
    }

    async def ended() -> tuple[weakref.ref[Connection], Exception | None]:
        wire = Wire()
        connection = accepted(wire)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.live, lambda _: None, lambda: None, lambda: 0)
            if how == "sending fails":
                wire.takes.append(BrokenPipeError("gone"))
            elif how == "the rest fails":
                wire.takes.extend([5, 0])
                wire.fails = BrokenPipeError("gone")
                wire.opened.set()
            connection.send(BY_NAME["topology"].message([]))
            await trio.testing.wait_all_tasks_blocked()
            wire.comes(last.get(how, b""))
        return weakref.ref(connection), connection.reason

    gc.collect()
    gc.disable()
    try:
        connection, reason = await ended()
        assert connection() is None
    finally:
        gc.enable()
    assert isinstance(reason, FrameError if how == "garbage" else ConnectionError)
    assert str(reason)
