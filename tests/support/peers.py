"""Members in a simulated world that are a transport and nothing else, and peers that misbehave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import trio

from tidelog.engine.net.connection import Connection, hear, say
from tidelog.engine.net.frames import FrameDecoder, Message, frame, pack_message
from tidelog.engine.net.handshake import Introduction
from tidelog.engine.net.kinds import BY_NAME, Channel
from tidelog.engine.net.transport import OUTBOX_BYTES, Transport
from tidelog.engine.system.environment import MANY_FILES, Address, Network, Stream
from tidelog.testing import World
from tidelog.testing.node import Node

PORT = 7000
CLUSTER = b"tide" * 4

Told = tuple[Any, ...]


def id_of(name: str) -> bytes:
    """The id of the member of that name."""
    return name.encode().ljust(16, b"-")


def name_of(member: bytes) -> str:
    """The name of the member with that id."""
    return member.rstrip(b"-").decode()


def nonce_of(name: str, boot: int) -> bytes:
    """The fresh nonce of the disk of that member, started so often."""
    return f"{name} {boot}".encode()


def ping(number: int) -> Message:
    """A control message that has a number."""
    return BY_NAME["ping"].message([], number, 0)


def stored(number: int, *, size: int = 0) -> Message:
    """A data message that has a number, and at least so many bytes."""
    return BY_NAME["pairs"].message(number, 0, 0, 0, b"", bytes(size), b"", None)


class Owner:
    """What a transport has told, as (event, name, class, detail) in order."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.errors: list[Exception] = []
        """Why attempts to connect failed."""
        self.decided: list[int] = []
        """What senders knew, for each arrival."""
        self.answer: Message | None = None
        """Sent back for each message."""

    def arrived(self, connection: Connection, messages: list[Message]) -> None:
        """Note messages, each on its own."""
        self.decided.append(connection.decided)
        for message in messages:
            self.note("arrived", connection, message)
            if self.answer is not None:
                connection.send(self.answer)

    def up(self, connection: Connection) -> None:
        """Note a connection."""
        self.note("up", connection, connection.other.number)

    def down(self, connection: Connection) -> None:
        """Note the end of a connection, and the class of its reason."""
        reason = connection.reason
        self.note("down", connection, type(reason).__name__ if reason else None)

    def failed(self, member: bytes, channel: Channel, error: Exception) -> None:
        """Note an attempt to connect."""
        self.errors.append(error)
        self.told.append(("failed", name_of(member), channel, type(error).__name__))

    def room(self, connection: Connection) -> None:
        """Note that there is room again."""
        self.note("room", connection, None)

    def note(self, event: str, connection: Connection, detail: object) -> None:
        """Note an event; accepted connections have a ``<`` before the name."""
        name = name_of(connection.other.member)
        place = name if connection.outgoing else f"<{name}"
        self.told.append((event, place, connection.channel, detail))

    def of(self, event: str, name: str, channel: str) -> list[Any]:
        """The details of all events of a kind."""
        return [told[3] for told in self.told if told[:3] == (event, name, channel)]

    def numbers(self, name: str, channel: str) -> list[int]:
        """The numbers of the messages that have arrived on one class."""
        at = 2 if channel == "control" else 1
        return [message[at] for message in self.of("arrived", name, channel)]


class Member(Owner):
    """One member: a transport that listens, and has met the others."""

    transport: Transport

    def __init__(
        self,
        world: World,
        name: str,
        others: Iterable[str],
        *,
        cluster: bytes = CLUSTER,
        outbox_bytes: int = OUTBOX_BYTES,
        files: int = MANY_FILES,
    ) -> None:
        super().__init__()
        self.name = name
        self.others = tuple(others)
        self.gone: set[tuple[str, int]] = set()
        self.node = world.add(name, self._run)
        self._cluster = cluster
        self._outbox_bytes = outbox_bytes
        self._files = files

    async def _run(self, node: Node) -> None:
        self.transport = Transport(
            replace(node.environment, open_files_max=lambda: self._files),
            self,
            member=id_of(self.name),
            boot=node.starts,
            nonce=nonce_of(self.name, node.starts),
            cluster=self._cluster,
            standing=lambda member, boot, _nonce: (
                "gone" if (name_of(member), boot) in self.gone else None
            ),
            outbox_bytes=self._outbox_bytes,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self.transport.run)
            await self.transport.listen((self.name, PORT))
            for other in self.others:
                self.transport.meet(id_of(other), (other, PORT))

    def send(self, name: str, channel: Channel, message: Message) -> str:
        """Send a message to another member."""
        return self.transport.send(id_of(name), channel, message)


def members(world: World, *names: str, **options: Any) -> list[Member]:
    """Members that have all met one another, not started yet."""
    return [
        Member(world, name, [other for other in names if other != name], **options)
        for name in names
    ]


async def idle(_node: Node) -> None:
    """Be a machine on which the scenario itself acts."""
    await trio.sleep_forever()


def introduction(name: str = "x", **changes: Any) -> Introduction:
    """What a well-behaved member says first."""
    fields: dict[str, Any] = {
        "role": "member",
        "channel": "control",
        "cluster": CLUSTER,
        "boot": 1,
        "number": 1,
    }
    return Introduction(member=id_of(name), **(fields | changes))


async def call(network: Network, address: Address, said: Introduction) -> tuple[Stream, object]:
    """Connect by hand, and return the connection and what was answered."""
    stream = await network.connect(address)
    await say(stream, said)
    return stream, await hear(stream, FrameDecoder())


def framed(*messages: Message) -> bytes:
    """The frame of some messages."""
    return frame([pack_message(message) for message in messages])


async def read_to_end(stream: Stream) -> bytes:
    """What arrives until the other end is closed, or reset."""
    found = b""
    try:
        while data := await stream.receive():
            found += data
    except ConnectionResetError:
        pass
    return found
