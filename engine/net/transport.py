"""The way of messages between members, and from clients: connections that are made and accepted.

To each peer that was met there are two connections of this member's own, for control and for data,
made again whenever they end.  What a member sends goes over its own connections; over those that
it accepted from members it only receives.  Clients are answered over theirs.

Invariants:

- Messages arrive in the order in which they were sent on one connection, and only from the newest
  connection of a member and class, of its newest boot (W1), while it is not called gone.
- While there is no connection messages are dropped, as on a wire that is cut: ``up`` tells when to
  send again what still matters.
- Strangers, connections before the end of their handshake, are limited in number, bytes and time.
  If there are too many the oldest goes, and the log gets one line per period.
- Clients are limited in number, so that whatever they do open files are left for the log, the data
  and other members.  One too many is refused.

Left out: encryption (a ``Network`` may have streams that encrypt), and who is a peer: ``meet`` is
told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import trio

from ..system.environment import Address, Environment, Listener, Stream, address_text
from .complaints import Complaints
from .connection import Connection, Sent, hear, say
from .frames import FrameDecoder, FrameError, Message
from .gathering import Gathering
from .handshake import Introduction, OutOf, Refusal, Role, judge_answer, judge_caller
from .kinds import CLIENT, CONTROL, DATA, Channel
from .links import Links
from .turns import RequestTurns

HANDSHAKE_S_MAX = 5.0
"""Seconds in which who connects, or is connected to, has to say who it is."""
STRANGERS_MAX = 128
"""Connections at a time that have not shaken hands."""
CLIENTS_MAX = 4096
"""Clients that are connected at a time, if the system lets the process have as many files open."""
CLIENTS_MIN = 16
"""Clients that may be, however few files that leaves."""
FILES_KEPT = 64
"""Open files that are left for the log, the data, and all else that a member opens."""
FILES_PER_PEER = 4
"""Connections to and from one other member."""
TOOLS = 16
"""Tools that may be when there are as many clients as may be: new members ask so, for instance."""
PAUSE_S, PAUSE_S_MAX = 0.05, 1.0
"""Seconds before the next attempt to connect: after the first failure, and after many."""
FRESH_S = 0.1
"""Seconds in which an attempt counts as fresh: it is not begun anew as the peer has connected."""
OUTBOX_BYTES = 8 << 20
"""Bytes that wait for one connection before ``send`` says ``full``."""

log = logging.getLogger("tidelog.net")


class UnwelcomeError(Exception):
    """One of both ends refuses the connection."""

    def __init__(self, refusal: Refusal, *, told: bool = False) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal
        self.told = told
        """Whether the other end has refused this one; else it was refused here."""


class Events(Protocol):
    """What a transport tells its owner; nothing here may wait."""

    def arrived(self, connection: Connection, messages: list[Message]) -> None:
        """Take messages, in order; ``connection.decided`` is what their sender knows."""

    def up(self, connection: Connection) -> None:
        """Know that a connection is there, made here or accepted."""

    def down(self, connection: Connection) -> None:
        """Know that a connection ended; ``connection.reason`` may say why."""

    def failed(self, member: bytes, channel: Channel, error: Exception) -> None:
        """Know that a peer could not be reached: an ``OSError``, or a ``UnwelcomeError``."""

    def room(self, connection: Connection) -> None:
        """Know that a connection that was full takes messages again."""


@dataclass(slots=True)
class _Attempt:
    """To connect to a peer, and the pause behind that."""

    scope: trio.CancelScope
    since: float
    has_failed: bool = False


@dataclass(slots=True)
class _Way:
    """The connections to one peer that are made here."""

    address: Address
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    connections: dict[Channel, Connection] = field(default_factory=dict)
    attempts: dict[Channel, _Attempt] = field(default_factory=dict)
    """What is tried for each class of which there is no connection."""


class Transport:
    """All connections of one member; ``run`` has to be running for them to be made."""

    def __init__(
        self,
        environment: Environment,
        events: Events,
        *,
        member: bytes,
        boot: int,
        nonce: bytes,
        cluster: bytes = b"",
        history: bytes = b"",
        standing: OutOf,
        outbox_bytes: int = OUTBOX_BYTES,
    ) -> None:
        self.cluster = cluster
        """Empty until it is known; its owner sets it then."""
        self.decided = 0
        """How many decisions are known here; its owner counts."""
        self.gathering = Gathering()
        """Around what may send several messages to one peer."""
        self._turns = RequestTurns(environment.monotonic)
        self._environment = environment
        self._events = events
        self._member = member
        self._boot = boot
        self._nonce = nonce
        self._history = history
        self._standing = standing
        self._outbox_bytes = outbox_bytes
        self._links = Links()
        self._ways: dict[bytes, _Way] = {}
        self._accepted: dict[tuple[bytes, Channel], Connection] = {}
        self._strangers: dict[trio.CancelScope, None] = {}
        self._clients: set[Stream] = set()
        """Connections of clients and tools, from their welcome on."""
        self._complaints = Complaints()
        self._number = 0
        self._nursery: trio.Nursery

    def __repr__(self) -> str:
        up = sum(len(way.connections) for way in self._ways.values())
        return (
            f"<Transport of {self._member.hex()} boot {self._boot}: {up} made, "
            f"{len(self._accepted)} accepted, {len(self._strangers)} strangers>"
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep connections until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def listen(self, address: Address) -> Address:
        """Accept connections at an address; return it, with the port that was chosen for 0."""
        listener = await self._environment.network.listen(address)
        self._nursery.start_soon(self._accept, listener)
        return listener.address

    def meet(self, member: bytes, address: Address) -> None:
        """Keep connections to a peer, from now on at this address."""
        way = self._ways.get(member)
        if way is not None and way.address == address:
            return
        if way is not None:
            way.scope.cancel()
        way = self._ways[member] = _Way(address)
        self._nursery.start_soon(self._keep_both, member, way)

    def part(self, member: bytes) -> None:
        """Connect to a peer no more."""
        if way := self._ways.pop(member, None):
            way.scope.cancel()

    def reached(self) -> frozenset[bytes]:
        """Return the peers with which data goes both ways: a connection made, and one accepted."""
        made = {m: way.connections.get(DATA) for m, way in self._ways.items()}
        accepted = {m: self._accepted.get((m, DATA)) for m in made}
        return frozenset(
            member
            for member in made
            if all(one is not None and one.up for one in (made[member], accepted[member]))
        )

    def try_anew(self) -> None:
        """Connect at once to all peers to which that has failed, and not behind a pause."""
        for way in self._ways.values():
            for attempt in way.attempts.values():
                if attempt.has_failed:
                    attempt.scope.cancel()

    def send(self, member: bytes, channel: Channel, message: Message) -> Sent:
        """Let a message go its way to a peer; never waits."""
        way = self._ways.get(member)
        connection = way.connections.get(channel) if way else None
        return connection.send(message) if connection else "down"

    def hang_up(self, member: bytes, channel: Channel, reason: Exception) -> None:
        """End a connection that was made here to a peer, if it is up; it is made anew."""
        way = self._ways.get(member)
        if way and (connection := way.connections.get(channel)):
            self._complain("slow", f"hung up {connection}: {reason}")
            connection.end(reason)

    async def ask(self, address: Address) -> Introduction:
        """Return who is at an address, without staying connected.

        Raises ``OSError``, or ``UnwelcomeError``.
        """
        stream, _, _, other = await self._dial(address, "tool", CLIENT, None)
        stream.close()
        return other

    # ---------------------------------------------------------------- connections made here

    async def _keep_both(self, member: bytes, way: _Way) -> None:
        with way.scope:
            async with trio.open_nursery() as nursery:
                for channel in (CONTROL, DATA):
                    nursery.start_soon(self._keep, member, way, channel)

    async def _keep(self, member: bytes, way: _Way, channel: Channel) -> None:
        failures = 0
        while True:
            dialled = None
            with trio.CancelScope() as scope:
                attempt = way.attempts[channel] = _Attempt(scope, trio.current_time())
                try:
                    dialled = await self._dial(way.address, "member", channel, member)
                except (OSError, UnwelcomeError) as error:
                    attempt.has_failed = True
                    failures += 1
                    if isinstance(error, UnwelcomeError):
                        self._complain(
                            "unwelcome", f"not connected to {address_text(way.address)}: {error}"
                        )
                    self._events.failed(member, channel, error)
                    await trio.sleep(self._pause(failures))
            if dialled is None:
                continue
            del way.attempts[channel]
            failures = 0
            connection = self._connection(*dialled, outgoing=True)
            self._links.meet(member, connection.other.boot)
            way.connections[channel] = connection
            try:
                await self._live(connection, _refuse_any)
            finally:
                del way.connections[channel]
            await trio.sleep(self._pause(failures))

    def _try_anew(self, member: bytes) -> None:
        """Connect at once to a peer that can be reached, as it has just connected.

        What was begun while its machine was away would take seconds to fail.
        """
        way = self._ways.get(member)
        for attempt in way.attempts.values() if way else ():
            if trio.current_time() > attempt.since + FRESH_S:
                attempt.scope.cancel()

    def _pause(self, failures: int) -> float:
        longest = min(PAUSE_S * (1 << min(failures, 10)), PAUSE_S_MAX)
        return longest * self._environment.random.uniform(0.5, 1.0)

    async def _dial(
        self, address: Address, role: Role, channel: Channel, expected: bytes | None
    ) -> tuple[Stream, FrameDecoder, Introduction, Introduction]:
        with trio.move_on_after(HANDSHAKE_S_MAX):
            self._number += 1
            mine = self._introduction(role, channel, self._number, expected or b"")
            stream = await self._environment.network.connect(address)
            try:
                await say(stream, mine)
                decoder = FrameDecoder()
                other = await hear(stream, decoder)
                return stream, decoder, mine, self._judged_answer(mine, other, expected)
            except FrameError as error:
                stream.close()
                raise ConnectionAbortedError(f"{address} does not speak tidelog: {error}") from None
            except BaseException:
                stream.close()
                raise
        raise TimeoutError(f"{address} did not say who it is within {HANDSHAKE_S_MAX} s")

    def _judged_answer(
        self, mine: Introduction, other: Introduction | Refusal, expected: bytes | None
    ) -> Introduction:
        if isinstance(other, Refusal):
            raise UnwelcomeError(other, told=True)
        refusal = judge_answer(
            mine, other, expected=expected, links=self._links, standing=self._standing
        )
        if refusal:
            raise UnwelcomeError(refusal)
        return other

    # ---------------------------------------------------------------- connections accepted

    async def _accept(self, listener: Listener) -> None:
        try:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:  # no file descriptors, say
                    self._complain("accept", f"no connection can be accepted: {error}")
                    await trio.sleep(PAUSE_S_MAX)
                else:
                    self._nursery.start_soon(self._receive, stream)
        finally:
            listener.close()

    async def _receive(self, stream: Stream) -> None:
        try:
            connection = await self._shaken(stream)
            if connection and connection.other.role == "member":
                self._try_anew(connection.other.member)
                await self._live_as_newest(connection)
            elif connection:
                await self._live(connection, lambda some: self._events.arrived(connection, some))
        finally:
            self._clients.discard(stream)
            stream.close()

    async def _shaken(self, stream: Stream) -> Connection | None:
        """Shake hands with who connected; None if that did not come about."""
        with trio.move_on_after(HANDSHAKE_S_MAX) as scope:
            self._strangers[scope] = None
            if len(self._strangers) > self._strangers_max():
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.cancel()
            try:
                decoder = FrameDecoder()
                other = await hear(stream, decoder)
                if isinstance(other, Introduction):
                    mine = self._introduction("member", other.channel, other.number)
                    refusal = judge_caller(
                        mine, other, links=self._links, standing=self._standing
                    ) or self._full(other.role)
                    if refusal:
                        self._complain(
                            "refusal", f"refused {address_text(stream.peer)}: {refusal.reason}"
                        )
                        await say(stream, refusal)
                        return None
                    if other.role != "member":
                        self._clients.add(stream)
                    await self._welcome(stream, mine, other)
                    return self._connection(stream, decoder, mine, other, outgoing=False)
            except (OSError, FrameError) as error:
                self._complain(
                    "stranger", f"no handshake with {address_text(stream.peer)}: {error}"
                )
            finally:
                self._strangers.pop(scope, None)
        if scope.cancelled_caught:
            self._complain(
                "silent", f"{address_text(stream.peer)} connected and did not say who it is"
            )
        return None

    def _strangers_max(self) -> int:
        return min(STRANGERS_MAX, self._environment.open_files_max() // 8)

    def _full(self, role: Role) -> Refusal | None:
        """Return why no more clients may be, or tools; None if another one may, or is a member."""
        files = self._environment.open_files_max() - self._strangers_max() - TOOLS
        files -= FILES_KEPT + FILES_PER_PEER * len(self._ways)
        most = min(max(files, CLIENTS_MIN), CLIENTS_MAX)
        if role == "member" or len(self._clients) < most + (TOOLS if role == "tool" else 0):
            return None
        more = ", or let its process have more open files (`ulimit -n`)"
        return Refusal(
            "full",
            f"this member has {len(self._clients):,} clients, and takes no more: end some that "
            f"are idle{more * (most < CLIENTS_MAX)}",
        )

    async def _welcome(self, stream: Stream, mine: Introduction, other: Introduction) -> None:
        if other.role != "member":
            await say(stream, mine)
            return
        self._links.accept(other.member, other.channel, other.boot, other.number)
        try:
            await say(stream, mine)
        except BaseException:
            self._links.left(other.member, other.boot)
            raise

    async def _live_as_newest(self, connection: Connection) -> None:
        other = connection.other
        for channel in (CONTROL, DATA):
            older = self._accepted.get((other.member, channel))
            if older and not self._counts(older):
                older.end()
        place = other.member, other.channel
        self._accepted[place] = connection

        def arrived(messages: list[Message]) -> None:
            if self._counts(connection):
                self._events.arrived(connection, messages)
            else:
                connection.end()

        try:
            await self._live(connection, arrived)
        finally:
            if self._accepted.get(place) is connection:
                del self._accepted[place]

    def _counts(self, connection: Connection) -> bool:
        other = connection.other
        newest = self._links.counts(other.member, other.channel, other.boot, other.number)
        return newest and self._standing(other.member, other.boot, other.nonce) is None

    # ---------------------------------------------------------------- both

    def _introduction(
        self, role: Role, channel: Channel, number: int, wanted: bytes = b""
    ) -> Introduction:
        return Introduction(
            role=role,
            channel=channel,
            member=self._member,
            cluster=self.cluster,
            boot=self._boot,
            number=number,
            decided=self.decided,
            nonce=self._nonce,
            wanted=wanted,
            history=self._history,
        )

    def _connection(
        self,
        stream: Stream,
        decoder: FrameDecoder,
        mine: Introduction,
        other: Introduction,
        *,
        outgoing: bool,
    ) -> Connection:
        return Connection(
            stream, decoder, mine, other, outgoing=outgoing, outbox_bytes=self._outbox_bytes,
            gathering=self.gathering, turns=self._turns,
        )  # fmt: skip

    async def _live(self, connection: Connection, arrived: Callable[[list[Message]], None]) -> None:
        def taken(messages: list[Message]) -> None:
            with self.gathering:
                arrived(messages)

        try:
            self._events.up(connection)
            await connection.live(
                taken, lambda: self._events.room(connection), lambda: self.decided
            )
        finally:
            connection.end()
            if connection.other.role == "member":
                self._links.left(connection.other.member, connection.other.boot)
        if isinstance(connection.reason, FrameError):
            self._complain("frame", f"ended {connection}: {connection.reason}")
        self._events.down(connection)

    def _complain(self, topic: str, text: str) -> None:
        if line := self._complaints.line(topic, text, trio.current_time()):
            log.warning("net.complaint: Tidelog %s", line, extra={"event": "net.complaint"})


def _refuse_any(messages: list[Message]) -> None:
    """Refuse what a member says over a connection that was made here."""
    raise FrameError(f"a message of kind {messages[0][0]} on a connection that is for sending")
