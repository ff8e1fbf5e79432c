"""A client of a member that decides nothing: it sends requests as they are, and shows answers.

Tests of members speak to them with it, so that no rule of the real client hides what is said.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.commit.outcomes import home_of
from tidelog.engine.net.frames import KNOWN, FrameDecoder, Message, frame, pack_message
from tidelog.engine.net.handshake import Introduction, Refusal, heard
from tidelog.engine.net.kinds import BY_NAME, BY_NUMBER
from tidelog.engine.system.environment import Address, Network, Stream


class FailureError(Exception):
    """A request was answered by a failure."""

    def __init__(self, code: str, message: str, fields: dict[str, Any]) -> None:
        super().__init__(code, message, fields)
        self.code = code
        self.message = message
        self.fields = fields


class RawClient:
    """One connection to a member, with its newest view."""

    def __init__(self, stream: Stream, welcome: Message, decoder: FrameDecoder) -> None:
        self.view: list[Any] = welcome[4]
        self.history: bytes = welcome[3]
        self.stream = stream
        self._decoder = decoder
        self._inbox: list[Message] = []
        self._answers: dict[int, Message] = {}
        self._ids = 0

    @property
    def decided(self) -> int:
        """How many decisions the newest view knows."""
        found: int = self.view[0]
        return found

    def primary(self, partition: int) -> str:
        """The address of who serves a partition."""
        address: str = self.view[1][self.view[4][partition]][3]
        return address

    async def send(self, kind: str, *fields: object) -> None:
        """Send a message."""
        await self.stream.send(frame([pack_message(BY_NAME[kind].message(*fields))]))

    async def begin(self, operation: str, *arguments: object, left_us: int | None = None) -> int:
        """Send a request; return its id."""
        self._ids += 1
        asked = self._in_epochs(operation, self._about(operation, list(arguments)))
        await self.send("request", self._ids, left_us, operation, asked)
        return self._ids

    def _in_epochs(self, operation: str, arguments: list[Any]) -> list[Any]:
        """Add the epochs of its partitions to a commit that has none, by the newest view."""
        if operation != "commit" or len(arguments) != 7:
            return arguments
        touched: set[int] = set()
        space = Space(*self.view[2][0])
        reads, ranges, writes = arguments[4:]
        with suppress(TypeError, ValueError, IndexError):
            for row in (*reads, *writes):
                touched.update(partition_of(key, space) for key in row[1])
            for row in ranges:
                touched.update(row[1])
            if arguments[2]:
                touched.add(home_of(arguments[0], space.partitions))
        partitions = sorted(touched & set(range(len(self.view[5]))))
        return [*arguments, partitions, [self.view[5][partition] for partition in partitions]]

    def _about(self, operation: str, arguments: list[Any]) -> list[Any]:
        """Add to a drop, or to a rename, that it means whatever has the name."""
        if len(arguments) == {"drop": 1, "rename": 2}.get(operation):
            arguments.append(None)
        return arguments

    async def begin_all(self, *asked: tuple[str, list[object]]) -> list[int]:
        """Send requests in one frame; return their ids."""
        numbers = list(range(self._ids + 1, self._ids + 1 + len(asked)))
        self._ids += len(asked)
        kind = BY_NAME["request"]
        messages = [
            kind.message(n, None, operation, self._in_epochs(operation, arguments))
            for n, (operation, arguments) in zip(numbers, asked, strict=True)
        ]
        await self.stream.send(frame([pack_message(message) for message in messages]))
        return numbers

    async def answer(self, number: int) -> Any:
        """Return the value of a request's answer; ``FailureError`` if it is a failure."""
        while number not in self._answers:
            while not self._inbox:
                self._inbox += await _more(self.stream, self._decoder)
            message = self._inbox.pop(0)
            name = BY_NUMBER[message[0]].name
            if name == "topology":
                self.view = message[1]
            elif name in ("response", "failure"):
                self._answers[message[1]] = message
        message = self._answers.pop(number)
        if BY_NUMBER[message[0]].name == "failure":
            raise FailureError(*message[2:])
        return message[2]

    async def ask(self, operation: str, *arguments: object) -> Any:
        """Return the value of a request."""
        return await self.answer(await self.begin(operation, *arguments))

    async def put(self, tx_id: bytes, number: int, pairs: dict[bytes, bytes | None]) -> Any:
        """Commit some writes of a map."""
        writes = [[number, list(pairs), list(pairs.values())]]
        return await self.ask("commit", tx_id, 1, False, None, [], [], writes)

    def close(self) -> None:
        """End the connection."""
        self.stream.close()


async def connected(
    network: Network, address: Address, *, line: bytes = b"a line of a test", number: int = 1
) -> RawClient:
    """Return a client that is connected and was welcomed."""
    stream = await network.connect(address)
    try:
        return await _welcomed(stream, line, number)
    except BaseException:
        stream.close()
        raise


async def _welcomed(stream: Stream, line: bytes, number: int) -> RawClient:
    mine = Introduction(role="client", channel="client", member=line, number=number)
    await stream.send(frame([pack_message(mine.message())]))
    decoder = FrameDecoder()
    found: list[Message] = []
    while not found:  # not a byte of the next frame, which may be longer than strangers' may
        found = await _more(stream, decoder, decoder.missing)
    other = heard(found[0])
    assert not isinstance(other, Refusal), other
    decoder.limits = KNOWN
    client = RawClient(stream, [0, b"", b"", b"", [0]], decoder)
    arrived: list[Message] = []
    while not arrived or BY_NUMBER[arrived[0][0]].name == "known":  # decided meanwhile
        arrived = arrived[1:] or await _more(stream, decoder)
    assert BY_NUMBER[arrived[0][0]].name == "welcome"
    client.view, client.history = arrived[0][4], arrived[0][3]
    client._inbox = arrived[1:]
    return client


async def _more(stream: Stream, decoder: FrameDecoder, bytes_max: int = 65_536) -> list[Message]:
    data = await stream.receive(bytes_max)
    if not data:
        raise ConnectionResetError("the member closed the connection")
    return decoder.feed(data)
