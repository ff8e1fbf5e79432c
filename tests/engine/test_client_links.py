"""One connection of a client, for tasks without a loop: what is sent, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tidelog.engine.aio.asyncio_loop import AsyncioLoop
from tidelog.engine.aio.trio_loop import TrioLoop
from tidelog.engine.client.dialogue import RESPONSE, Dialogue
from tidelog.engine.client.lines import Line, LineConnection
from tidelog.engine.client.links import BURST_S, Burst, Link
from tidelog.engine.client.routing import Cluster, Unreached
from tidelog.engine.net.frames import KNOWN, FrameDecoder, frame, pack_message
from tidelog.engine.system.production import production


class Inline:
    """A loop that does everything at once, in the thread that asks for it."""

    ended = False

    def has_ended(self) -> bool:
        return self.ended

    def soon(self, work: Callable[..., object], /, *args: Any) -> bool:
        work(*args)
        return True

    def start(self, job: Callable[[], None], /) -> None:
        job()

    def protected(self, function: Any) -> Any:
        return function


class Made(Link):
    """A connection that is made already."""

    def _begin(self) -> None:
        """Begin no thread."""


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with closing(near), closing(far):
        yield near, far


class Sent:
    """What some links have sent: for each write what its messages end with."""

    def __init__(self, loop: Any) -> None:
        self.time = 1.0
        self.writes: list[tuple[str, list[Any]]] = []
        self.burst = Burst(loop, lambda: self.time)
        self._loop = loop

    def link(self, address: str) -> Made:
        dialogue = Dialogue(Cluster([address]), b"i" * 16, 1, None)
        dialogue.welcome, dialogue.member = True, b"m" * 16
        dialogue._decoder.limits = KNOWN
        link = Made(self._loop, lambda: self.time, address, dialogue, 1.0, self.burst)

        class Connection:
            @staticmethod
            def send_now(data: bytes) -> int:
                messages = FrameDecoder(KNOWN).feed(data)
                self.writes.append((address, [message[-1] for message in messages]))
                return len(data)

        link._connection = Connection()  # type: ignore[assignment]
        return link


def answered(link: Link) -> None:
    """Answer all that a link waits for, in one frame."""
    answers = [pack_message([RESPONSE, number, None]) for number in link.waiting]
    link._arrived(frame(answers))


async def asks(link: Link, *requests: object, taken_back: bool = True) -> None:
    for request in requests:
        waiting = link.ask("get", [request], 1.0)
        await link.answer(waiting, taken_back=taken_back)


def link_on(near: socket.socket, loop: Any) -> tuple[Made, LineConnection]:
    dialogue = Dialogue(Cluster(["a:1"]), b"i" * 16, 1, None)
    connection = LineConnection(near, dialogue)
    link = Made(loop, _no_time, "a:1", dialogue, 1.0, Burst(loop, _no_time))
    link._is_made(connection)
    return link, connection


def _no_time() -> float:
    return 0.0


def test_nothing_follows_a_frame_of_which_only_a_part_was_sent(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """What was sent next went into the middle of that frame, and every later call hung."""
    near, far = ends
    far.setblocking(False)
    link, connection = link_on(near, Inline())

    def send(_data: bytes) -> None:
        raise BlockingIOError(errno.EAGAIN, "it takes nothing")

    connection.send = send
    link.send(bytes(16 << 20))
    received = 0
    while data := far.recv(1 << 20):
        received += len(data)
    link.send(b"next")
    assert 0 < received < 16 << 20
    assert far.recv(1) == b""
    assert link.reason == "it takes nothing"


def test_who_receives_ends_with_the_loop_though_nobody_waits_for_an_answer(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for that only while somebody waited: a thread and its connection were left."""
    loop = Inline()
    link, connection = link_on(ends[0], loop)
    received: list[str] = []

    def receive() -> bytes:
        assert not loop.ended
        received.append("nothing")
        loop.ended = len(received) == 2
        raise BlockingIOError

    monkeypatch.setattr(connection, "receive", receive)
    link._receive(connection)
    assert received == ["nothing"] * 2


def test_a_request_of_which_only_a_part_was_sent_has_reached_nobody(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """A commit to a member that had just been killed was in doubt, and too old to be told."""
    near, far = ends
    far.close()
    cluster = Cluster(["a:1"])
    line = Line(cluster, production())
    connection = LineConnection(near, Dialogue(cluster, b"i" * 16, 1, b"m" * 16))
    line.connections[connection.member] = connection
    event = line.asked(connection, "get", [1, [b"key"]], 1.0)
    assert isinstance(event, Unreached)
    assert event.reason == "Broken pipe"
    assert not line.connections


async def test_tasks_that_were_woken_together_send_in_one_piece_for_each_member() -> None:
    sent = Sent(TrioLoop())
    first, second = sent.link("a:1"), sent.link("b:1")
    async with trio.open_nursery() as nursery:
        for request in range(3):
            nursery.start_soon(asks, first, [request], [request])
        for request in range(3, 5):
            nursery.start_soon(asks, second, [request], [request])
        await wait_all_tasks_blocked()
        assert len(sent.writes) == 5  # nobody was woken: nothing waits
        sent.writes.clear()
        answered(first)
        answered(second)
        await wait_all_tasks_blocked()
        assert sorted((address, sorted(requests)) for address, requests in sent.writes) == [
            ("a:1", [[[0]], [[1]], [[2]]]), ("b:1", [[[3]], [[4]]]),
        ]  # fmt: skip
        answered(first)
        answered(second)


async def test_who_asks_for_nothing_more_keeps_nobody_waiting() -> None:
    sent = Sent(TrioLoop())
    link = sent.link("a:1")
    async with trio.open_nursery() as nursery:
        for request in range(4):  # the last that runs asks for nothing, in whichever order
            nursery.start_soon(asks, link, *[[request]] * (2 if request in (1, 2) else 1))
        await wait_all_tasks_blocked()
        sent.writes.clear()
        answered(link)
        await wait_all_tasks_blocked()
        assert sorted(request for _, some in sent.writes for request in some) == [[[1]], [[2]]]
        assert sent.burst.woken == 0
        answered(link)


async def test_a_request_waits_no_millisecond_for_those_who_compute() -> None:
    sent = Sent(TrioLoop())
    link = sent.link("a:1")

    async def computes(request: int) -> None:
        await asks(link, [request])
        sent.time += BURST_S
        await asks(link, [request])

    async with trio.open_nursery() as nursery:
        for request in range(5):
            nursery.start_soon(computes, request)
        await wait_all_tasks_blocked()
        sent.writes.clear()
        answered(link)
        await wait_all_tasks_blocked()
        assert [len(requests) for _, requests in sent.writes] == [2, 2, 1]
        answered(link)


@pytest.mark.parametrize("taken_back", [True, False])
async def test_a_burst_counts_who_was_cancelled_once(taken_back: bool) -> None:
    sent = Sent(TrioLoop())
    link = sent.link("a:1")
    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(3)]

        async def within(scope: trio.CancelScope) -> None:
            with scope:
                await asks(link, [0], taken_back=taken_back)

        for scope in scopes:
            nursery.start_soon(within, scope)
        await wait_all_tasks_blocked()
        scopes[0].cancel()  # before it is woken
        await wait_all_tasks_blocked()
        answered(link)
        scopes[1].cancel()  # behind that
    assert sent.burst.woken == 0


@pytest.mark.parametrize("taken_back", [True, False])
def test_a_burst_counts_who_was_cancelled_once_in_asyncio(taken_back: bool) -> None:
    async def main() -> int:
        sent = Sent(AsyncioLoop())
        link = sent.link("a:1")
        tasks = [
            asyncio.create_task(asks(link, [number], taken_back=taken_back)) for number in range(3)
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        answered(link)
        tasks[1].cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert ended[2] is None
        return sent.burst.woken

    assert asyncio.run(main()) == 0
