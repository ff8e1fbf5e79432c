"""One connection of a client, for tasks without a loop: what is sent, and how it ends."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tidelog.engine.client.dialogue import Dialogue
from tidelog.engine.client.lines import Line, LineConnection
from tidelog.engine.client.links import Link
from tidelog.engine.client.routing import Cluster, Unreached
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


def link_on(near: socket.socket, loop: Any) -> tuple[Made, LineConnection]:
    dialogue = Dialogue(Cluster(["a:1"]), b"i" * 16, 1, None)
    connection = LineConnection(near, dialogue)
    link = Made(loop, lambda: 0.0, "a:1", dialogue, 1.0)
    link._is_made(connection)
    return link, connection


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
