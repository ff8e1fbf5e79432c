"""One connection of a client, for tasks without a loop: what is sent, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import Any
from unittest import mock

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tidelog.engine.aio.asyncio_loop import AsyncioLoop
from tidelog.engine.aio.trio_loop import TrioLoop
from tidelog.engine.client import links
from tidelog.engine.client.dialogue import RESPONSE, Dialogue
from tidelog.engine.client.lines import CLOSED, Line, LineConnection
from tidelog.engine.client.links import BURST_S, LATE_S, PER_LATE, Burst, Link
from tidelog.engine.client.routing import Broke, Cluster, Unreached, Value
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

    def watch(self, socket: int, ready: Callable[[], bool], over: Callable[[], object], /) -> None:
        def look() -> bool:
            goes_on = False
            try:
                goes_on = ready()
            finally:
                if not goes_on:
                    over()
            return goes_on

        self.look = look

    def protected(self, function: Any) -> Any:
        return function


class Later(Inline):
    """A loop that does what it is given in its next turn."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def soon(self, work: Callable[..., object], /, *args: Any) -> bool:
        self.calls.append(lambda: work(*args))
        return True

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


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
            def shut() -> None:
                """End nothing."""

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


def test_a_connection_is_closed_behind_the_loop_though_nobody_waits_for_an_answer(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked for only while somebody waited: a thread and its connection were left."""
    looked: list[str] = []

    class Ending(Inline):
        def has_ended(self) -> bool:
            looked.append("once more")
            return len(looked) == 2

    link, connection = link_on(ends[0], Ending())
    monkeypatch.setattr(links, "connected", lambda *_: connection)
    monkeypatch.setattr(link, "_over", mock.Mock(acquire=mock.Mock(return_value=False)))
    link._live()
    assert looked == ["once more"] * 2
    assert connection.number < 0


def test_what_is_cut_off_while_it_is_received_ends_the_connection(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may take bytes along that were received, and the rest would be no frames."""
    near, far = ends
    loop = Inline()
    link, connection = link_on(near, loop)
    monkeypatch.setattr(links, "connected", lambda *_: connection)
    assert loop.look(), "there is nothing yet"
    monkeypatch.setattr(link, "_arrived", mock.Mock(side_effect=KeyboardInterrupt))
    far.send(b"bytes")
    with pytest.raises(KeyboardInterrupt):
        loop.look()
    link._live()
    assert connection.number < 0
    assert link.reason == "what it received was interrupted"


def test_what_an_interrupt_ends_in_a_loop_is_over(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Else nobody reads, and nobody knows."""
    near, far = ends
    over: list[str] = []

    async def watched() -> None:
        ready = mock.Mock(side_effect=KeyboardInterrupt)
        AsyncioLoop().watch(near.fileno(), ready, lambda: over.append("over"))
        far.send(b"a")
        while True:
            await asyncio.sleep(0)

    with closing(asyncio.new_event_loop()) as loop:
        task = loop.create_task(watched())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
        assert over == ["over"]
        assert not loop.remove_reader(near), "it is watched no more"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)


def test_with_a_run_of_trio_ends_what_it_watches(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Generators that are left end behind that, and may wait for the connection to end."""
    over: list[str] = []

    async def left() -> AsyncIterator[None]:
        try:
            yield
        finally:
            assert over == ["first"]
            TrioLoop.watch(ends[1].fileno(), lambda: True, lambda: over.append("second"))

    async def main() -> None:
        TrioLoop.watch(ends[0].fileno(), lambda: True, lambda: over.append("first"))
        rows = left()
        kept.append(rows)
        await anext(rows)

    kept: list[AsyncIterator[None]] = []
    trio.run(main)
    assert over == ["first", "second"]


def test_behind_what_is_no_frame_nothing_more_is_received(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    near, far = ends
    loop = Inline()
    link, _ = link_on(near, loop)
    far.send(b"\xff" * 8)
    assert not loop.look()
    assert link.reason is not None


async def test_a_member_that_hangs_up_is_heard_of(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = ends
    loop = Inline()
    link, connection = link_on(near, loop)
    monkeypatch.setattr(links, "connected", lambda *_: connection)
    waiting = link.ask("get", [b"key"], 1.0)
    far.recv(100)
    far.close()
    assert not loop.look()
    link._live()
    assert await link.answer(waiting, taken_back=True) == Broke(CLOSED, 0.0)


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
    connection.answered_at = math.inf  # just now: nobody looks
    event = line.asked(connection, "get", [1, [b"key"]], 1.0)
    assert isinstance(event, Unreached)
    assert event.reason == "Broken pipe"
    assert not line.connections


@pytest.mark.parametrize("closes", [True, False])
def test_nothing_is_asked_of_who_has_closed_the_connection_since_the_last_answer(
    closes: bool,
) -> None:
    """A commit of a client that was idle while its member was killed and came back was in doubt."""
    cluster, answer = Cluster(["a:1"]), frame([pack_message([RESPONSE, 1, 7])])
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with closing(near), closing(far):
        dialogue = Dialogue(cluster, b"i" * 16, 1, b"m" * 16)
        dialogue.welcome, dialogue.member = True, b"m" * 16
        line, connection = Line(cluster, production()), LineConnection(near, dialogue)
        line.connections[connection.member] = connection
        if closes:
            far.close()
            event = line.asked(connection, "commit", [], 1.0)
            assert isinstance(event, Unreached)
            assert event.reason == "the member has closed the connection"
            assert not line.connections
        else:
            far.sendall(answer)
            event = line.asked(connection, "commit", [], 1.0)
            assert isinstance(event, Value)
            assert (event[0], line.connections) == (7, {connection.member: connection})
            assert connection.answered_at == event[1]
            assert not connection.is_ended


async def test_of_tasks_that_were_woken_together_the_first_sends_and_the_others_in_one_piece() -> (
    None
):
    sent = Sent(TrioLoop())
    first, second = sent.link("a:1"), sent.link("b:1")
    async with trio.open_nursery() as nursery:
        for request in range(4):
            nursery.start_soon(asks, first, [request], [request])
        for request in range(4, 7):
            nursery.start_soon(asks, second, [request], [request])
        await wait_all_tasks_blocked()
        assert len(sent.writes) == 7  # nobody was woken: nothing waits
        sent.writes.clear()
        answered(first)
        answered(second)
        await wait_all_tasks_blocked()
        counts = [(address, len(requests)) for address, requests in sent.writes]
        assert sorted(counts) == [("a:1", 1), ("a:1", 3), ("b:1", 1), ("b:1", 2)]
        assert sorted(request for _, some in sent.writes for request in some) == [
            [[request]] for request in range(7)
        ]
        assert sent.burst.woken == 0
        answered(first)
        answered(second)


async def test_who_asks_for_nothing_more_keeps_nobody_waiting() -> None:
    sent = Sent(TrioLoop())
    link = sent.link("a:1")
    async with trio.open_nursery() as nursery:
        for request in range(5):  # the last that runs asks for nothing, in whichever order
            nursery.start_soon(asks, link, *[[request]] * (2 if request in (1, 2, 3) else 1))
        await wait_all_tasks_blocked()
        sent.writes.clear()
        answered(link)
        await wait_all_tasks_blocked()
        assert [len(requests) for _, requests in sent.writes] == [1, 2]
        answered(link)


async def computed(seconds: float, tasks: int, *, rounds: int) -> list[list[int]]:
    """Return how many requests each write of each round had, of tasks that compute before them."""
    sent = Sent(TrioLoop())
    link, counts = sent.link("a:1"), list[list[int]]()

    async def computes() -> None:
        for _ in range(rounds + 1):
            sent.time += seconds
            await asks(link, [0])

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(computes)
        for _ in range(rounds):
            await wait_all_tasks_blocked()
            sent.writes.clear()
            answered(link)
            await wait_all_tasks_blocked()
            counts.append([len(requests) for _, requests in sent.writes])
        answered(link)
    return counts


async def test_a_request_waits_only_while_its_member_has_just_been_sent_another() -> None:
    assert await computed(BURST_S, 5, rounds=1) == [[1] * 5]
    assert await computed(BURST_S / 2, 5, rounds=1) == [[1, 2, 2]]


def begun(sent: Sent, *links: Made) -> None:
    """Begin a burst of one task, in which something was written to each of some links."""
    sent.burst.wakes()
    for link in links:
        link.tell("unlock", ["first"])
    sent.writes.clear()


def round_of(sent: Sent, link: Made, seconds: float) -> list[int]:
    """Return what each write had of a burst of five; behind the third somebody computed."""
    sent.writes.clear()
    for _ in range(6):
        sent.burst.wakes()
    for number in range(6):
        sent.time += seconds if number == 3 else 0.0
        sent.burst.ran()
        if number != 3:
            link.tell("unlock", [number])
    return [len(requests) for _, requests in sent.writes]


def test_who_computed_for_long_has_others_wait_no_more_for_a_hundred_times_as_long() -> None:
    """Commits left behind their deadline, as another task of their loop computed for a second."""
    sent = Sent(Later())
    link = sent.link("a:1")
    assert round_of(sent, link, 0.0) == [1, 4]
    assert round_of(sent, link, LATE_S / 2) == [1, 2, 2]
    assert round_of(sent, link, 0.0) == [1, 4]
    assert round_of(sent, link, 2 * LATE_S) == [1, 2, 1, 1]
    assert round_of(sent, link, 0.0) == [1] * 5
    sent.time += PER_LATE * LATE_S
    assert round_of(sent, link, 0.0) == [1] * 5
    sent.time += PER_LATE * LATE_S + BURST_S
    assert round_of(sent, link, 0.0) == [1, 4]


def test_who_computes_last_and_sends_nothing_is_noticed_by_the_next_turn_of_the_loop() -> None:
    loop = Later()
    sent = Sent(loop)
    link = sent.link("a:1")
    begun(sent, link)
    sent.burst.wakes()
    sent.burst.ran()
    link.tell("unlock", [0])
    sent.burst.ran()
    assert sent.writes == []
    sent.time += 2 * LATE_S
    loop.turn()
    assert len(sent.writes) == 1
    assert round_of(sent, link, 0.0) == [1] * 5


async def test_what_waits_goes_out_in_order_and_a_cancellation_behind_its_request() -> None:
    sent = Sent(TrioLoop())
    link = sent.link("a:1")
    begun(sent, link)
    for request in ("a", "b"):
        waiting = link.ask("get", [request], 1.0)
        link.tell("unlock", [request])
        assert link._take_back(waiting)
    assert sent.writes == []
    sent.burst.ran()
    link.ask("get", ["c"], 1.0)
    assert sent.writes == [("a:1", [["a"], ["a"], 2, ["b"], ["b"], 4, ["c"]])]


async def test_an_answer_to_who_is_awake_wakes_nobody() -> None:
    sent = Sent(TrioLoop())
    link = sent.link("a:1")
    waiting = link.ask("get", [0], 1.0)
    answered(link)
    assert sent.burst.woken == 0
    assert await link.answer(waiting, taken_back=True) == Value(None, sent.time)
    assert sent.burst.woken == 0


def test_one_connection_that_fails_keeps_no_other_from_being_written_to() -> None:
    """Its error went through the loop, and what the others had to send stayed where it was."""
    loop = Later()
    sent = Sent(loop)
    links = [sent.link("a:1"), sent.link("b:1"), sent.link("c:1")]
    begun(sent, *links)

    def fails(_data: bytes) -> None:
        raise RuntimeError("it is broken")

    for link in links:
        link.ask("get", [0], 1.0)
    links[1]._write = fails  # type: ignore[assignment, method-assign]
    with pytest.raises(RuntimeError, match="it is broken"):
        loop.turn()
    loop.turn()
    assert sorted(address for address, _ in sent.writes) == ["a:1", "c:1"]


def test_the_last_of_a_burst_has_all_connections_written_to() -> None:
    sent = Sent(Later())
    first, second = sent.link("a:1"), sent.link("b:1")
    begun(sent, first)
    first.tell("unlock", [0])
    sent.burst.ran()
    second.tell("unlock", [1])
    assert sent.writes == [("b:1", [[1]]), ("a:1", [[0]])]


def test_a_connection_for_which_no_thread_can_be_started_ends(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, _ = link_on(ends[0], Inline())

    def start(_job: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(link._loop, "start", start)
    link.send(bytes(16 << 20))
    assert link.reason == "can't start new thread"
    assert not link._unsent


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


def test_frames_of_answers_that_no_member_sends_end_the_connection() -> None:
    """An id that was a list went through the loop of its client as a ``TypeError``."""
    link = Sent(Inline()).link("a:1")
    answer = [RESPONSE, 1, None]
    for wrong in ([RESPONSE, [], None], [RESPONSE, "1", None], [RESPONSE, 1], [9999, 1, None]):
        for messages in ([wrong], [answer, wrong], [wrong, answer]):
            link.reason = None
            link._arrived(frame(list(map(pack_message, messages))))
            assert link.reason is not None


def test_a_whole_frame_behind_the_beginning_of_another_is_a_part_of_that() -> None:
    link = Sent(Inline()).link("a:1")
    answers = frame([pack_message([RESPONSE, 1, b"x" * 100])])
    heard = [
        answer[1] for part in (answers[:9], answers[9:]) for answer in link._dialogue.feed(part)
    ]
    assert heard == [1]
    inner = frame([pack_message([RESPONSE, 2, None])])
    outer = frame([pack_message([RESPONSE, 1, inner])])
    at = outer.index(inner)
    parts = outer[:at], inner, outer[at + len(inner) :]
    assert [one for part in parts if part for one in link._dialogue.feed(part)] == [
        [RESPONSE, 1, inner]
    ]
