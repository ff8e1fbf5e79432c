"""Carrying out a client's steps with sockets that block, in the thread of the caller.

A thread takes a *line* for a call: an id, and a connection of its own to each member that it has
asked.  Lines that nobody uses wait in a pool.

Invariants:

- A line is used by one thread at a time, and asks one thing at a time.
- A connection whose request was interrupted, by an error or by Ctrl-C, is closed: no answer is ever
  taken for that of another request.
- A connection that was idle is looked at before it is asked: what is sent over one that the member
  has closed is lost, and a commit would be in doubt, though nobody ever got it.
- In the child of a fork no line of the parent is used: it lets go of its descriptors, and the
  connections of the parent go on.

Left out: what is asked of whom (``routing``).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from ..net.failures import Failure
from ..net.frames import FrameError, Message
from ..system.environment import Environment
from .dialogue import RESPONSE, Dialogue, NotWelcomeError
from .places import host_and_port, is_path
from .routing import (
    PATIENCE_S,
    Ask,
    Broke,
    ClientEvent,
    ClientStep,
    Cluster,
    Drop,
    Failed,
    Greet,
    Listen,
    Pause,
    Quiet,
    StepDone,
    Steps,
    Tried,
    Unreached,
    Value,
)

T = TypeVar("T")

CLOSED = "the member has closed the connection"
CONNECT_S_MIN, CONNECT_S_MAX = 0.1, 3.0
"""Seconds in which a member has to take a connection and to say who it is, if time is short too."""
SEND_S_MAX = 20.0
"""Seconds in which a member has to take a part of a request."""
SILENCE_S_MAX = 20
"""Seconds after which the connection to a machine that does not answer is over."""
IDLE_S = 0.05
"""Seconds without a question behind which a member may be gone and back, and nobody noticed."""
GRACE_S = 0.25
"""Seconds behind its deadline in which a member may still say that a request came too late."""


class Line:
    """The connections on which one thread asks, one at a time."""

    def __init__(self, cluster: Cluster, environment: Environment) -> None:
        self._cluster = cluster
        self._now = environment.monotonic
        self._wait = environment.wait
        self._uniform = environment.random.uniform
        self._id = environment.new_id()
        self._number = 0
        self.connections: dict[bytes, LineConnection] = {}

    def carry(self, steps: Steps[T]) -> T:
        """Carry out steps to their end, and return the result."""
        try:
            step = next(steps)
            while True:
                step = steps.send(self._event(step))
        except StopIteration as end:
            result: T = end.value
            return result

    def _event(self, step: ClientStep) -> ClientEvent:
        match step:
            case Ask(member, operation, arguments, until):
                to = self.connections.get(member) or self._connected(member, until)
                if isinstance(to, Unreached):
                    return to
                return self.asked(to, operation, arguments, until - self._now())
            case Listen(member, until):
                if member not in self.connections:
                    return Broke("the connection was closed", self._now())
                left = until - self._now() + GRACE_S
                return self._listened(self.connections[member], left)
            case Drop(member):
                self.drop(member)
            case Greet(address, until):
                found = self._greeted(address, None, until)
                if isinstance(found, Unreached):
                    return found
            case Pause(seconds):
                if seconds:
                    self._wait(self._uniform(0.0, seconds))
        return StepDone(self._now())

    def asked(
        self, connection: LineConnection, operation: str, arguments: Sequence[object], left: float
    ) -> ClientEvent:
        """Send a request, and return what comes of it."""
        if self._now() > connection.answered_at + IDLE_S and connection.is_ended:
            ended = ConnectionResetError(CLOSED)
            return Unreached(self._broke(connection, ended).reason, self._now())
        try:
            data = connection.request(operation, arguments, left)
        except BaseException:
            self.drop(connection.member)
            raise
        try:
            connection.send(data)
        except OSError as error:  # the frame is not whole there, so nobody acts on it
            return Unreached(self._broke(connection, error).reason, self._now())
        except BaseException:
            self.drop(connection.member)
            raise
        return self._listened(connection, left + GRACE_S)

    def tell(self, member: bytes, operation: str, arguments: Sequence[object]) -> None:
        """Send a request to a member, if it is connected, and wait for no answer."""
        connection = self.connections.get(member)
        if connection is not None:
            try:
                connection.send(connection.request(operation, arguments, 0.0))
            except OSError as error:
                self._broke(connection, error)

    def _listened(self, connection: LineConnection, left: float) -> ClientEvent:
        try:
            answer = connection.answer(min(PATIENCE_S, left))
        except BlockingIOError:
            return Quiet(self._now())
        except (OSError, FrameError) as error:
            return self._broke(connection, error)
        except BaseException:
            self.drop(connection.member)
            raise
        now = connection.answered_at = self._now()
        if answer[0] == RESPONSE:
            return Value(answer[2], now)
        return Failed(*Failure(*answer[2:5]), now)

    def _broke(self, connection: LineConnection, error: Exception) -> Broke:
        self.drop(connection.member)
        return Broke(reason_of(error), self._now())

    def _connected(self, member: bytes, until: float) -> LineConnection | Unreached:
        address = self._cluster.address_of(member)
        if address is None:
            return Unreached("it has left the cluster", self._now())
        return self._greeted(address, member, until)

    def _greeted(
        self, address: str, member: bytes | None, until: float
    ) -> LineConnection | Unreached:
        self._number += 1
        dialogue = Dialogue(self._cluster, self._id, self._number, member)
        try:
            connection = connected(address, dialogue, until - self._now())
        except (OSError, ValueError, FrameError, NotWelcomeError) as error:
            return Unreached(reason_of(error), self._now())
        self.drop(connection.member)
        self.connections[connection.member] = connection
        return connection

    def drop(self, member: bytes) -> None:
        """End the connection to a member, if there is one."""
        connection = self.connections.pop(member, None)
        if connection is not None:
            connection.close()

    def shut(self) -> None:
        """End all connections of a line that a thread may be using: it hears of that."""
        for connection in list(self.connections.values()):
            connection.shut()

    def close(self) -> None:
        """End all connections."""
        for member in list(self.connections):
            self.drop(member)


class LineConnection:
    """One connection behind its welcome."""

    def __init__(self, made: socket.socket, dialogue: Dialogue) -> None:
        self.dialogue = dialogue
        self.answered_at = float("-inf")
        """When the last answer arrived, by the clock of its line."""
        self._socket = made
        self._patience = -1.0
        self._wanted = 0
        self._answers: list[Message] = []
        self.send: Callable[[bytes], None] = made.sendall
        """Send bytes; ``OSError`` if that fails."""

    @property
    def member(self) -> bytes:
        """Who is at the other end."""
        return self.dialogue.member

    @property
    def is_ended(self) -> bool:
        """Whether the other end has closed it, and nothing is left to be received."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def request(self, operation: str, arguments: Sequence[object], left: float) -> bytes:
        """Return the bytes of a request, whose answer is the one that counts from now on."""
        left_us = max(int(left * 1_000_000), 0)
        self._wanted, data = self.dialogue.request(operation, arguments, left_us)
        return data

    def answer(self, patience: float) -> Message:
        """Wait for the answer to the newest request; ``BlockingIOError`` if that takes longer."""
        self.limit(patience)
        while True:
            for answer in self.dialogue.feed(self.receive()):
                if answer[1] == self._wanted:
                    return answer

    def limit(self, seconds: float) -> None:
        """Let ``receive`` wait for so long from now on."""
        if seconds != self._patience:
            self._patience = seconds
            _set_timeout(self._socket, socket.SO_RCVTIMEO, max(seconds, 0.001))

    def send_now(self, data: bytes) -> int:
        """Send what the system takes at once; return how many bytes that was."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except OSError:  # it is full; or it has ended, as whoever receives will hear
            return 0

    def shut(self) -> None:
        """End it for both directions; who receives hears of that."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def receive(self) -> bytes:
        """Wait for bytes."""
        data = self._socket.recv(self.dialogue.bytes_max)
        if not data:
            raise ConnectionResetError(CLOSED)
        return data

    def receive_now(self) -> bytes:
        """Return bytes that are there; ``BlockingIOError`` if there are none."""
        data = self._socket.recv(self.dialogue.bytes_max, socket.MSG_DONTWAIT)
        if not data:
            raise ConnectionResetError(CLOSED)
        return data

    @property
    def number(self) -> int:
        """The number of the open socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """End it; closing twice is fine."""
        self._socket.close()


def connected(address: str, dialogue: Dialogue, left: float) -> LineConnection:
    """Connect within ``left`` seconds, and shake hands; the first request may follow."""
    seconds = max(min(CONNECT_S_MAX, left), CONNECT_S_MIN)
    made = socket_to(address, seconds)
    try:
        _set_timeout(made, socket.SO_RCVTIMEO, seconds)
        connection = LineConnection(made, dialogue)
        connection.send(dialogue.introduction())
        while not dialogue.welcome:
            dialogue.feed(connection.receive())
        return connection
    except BlockingIOError:
        made.close()
        raise TimeoutError(f"it has not said who it is for {seconds:g} s") from None
    except BaseException:
        made.close()
        raise


def socket_to(address: str, seconds: float) -> socket.socket:
    """Return a socket that is connected within so many seconds, and blocks."""
    if is_path(address):
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(seconds)
            made.connect(address)
        except BaseException:
            made.close()
            raise
    else:
        made = socket.create_connection(host_and_port(address), seconds)
    try:
        if not is_path(address):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S_MAX // 2)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S_MAX * 1000)
        made.settimeout(None)
        _set_timeout(made, socket.SO_SNDTIMEO, SEND_S_MAX)
        return made
    except BaseException:
        made.close()
        raise


def _set_timeout(made: socket.socket, option: int, seconds: float) -> None:
    """Let the system end a wait of this socket: Python would ask it first, with a call more."""
    whole = int(seconds)
    timeval = struct.pack("ll", whole, int((seconds - whole) * 1_000_000))
    made.setsockopt(socket.SOL_SOCKET, option, timeval)


def reason_of(error: Exception) -> str:
    """Return why there is no connection, as errors tell it."""
    text = error.strerror if isinstance(error, OSError) else None
    return text or str(error) or type(error).__name__


class Lines:
    """The lines of one client; shared by threads."""

    def __init__(self, cluster: Cluster, environment: Environment, timeout: float) -> None:
        self._cluster = cluster
        self._environment = environment
        self._now = environment.monotonic
        self._free: list[Line] = []
        self._kept: set[Line] = set()
        self._all: WeakSet[Line] = WeakSet()
        self._closed = False
        self.timeout = timeout
        """Seconds that a call may take."""

    def until(self) -> float:
        """Return when a call that begins now has to end."""
        return self._now() + self.timeout

    def carry(self, steps: Steps[T]) -> T:
        """Carry out steps on a line, and return the result."""
        line = self._taken()
        try:
            return line.carry(steps)
        finally:
            self._give_back(line)

    def asked(
        self,
        partition: int,
        operation: str,
        arguments: Sequence[object],
        otherwise: Callable[[Tried | None], Steps[T]],
    ) -> Any | T:
        """Ask who serves a partition at once, and return the answer: the path of every get and put.

        Anything but an answer is left to the steps that ``otherwise`` gives, on the same line: an
        outcome has to be asked for there.
        """
        line = self._taken()
        try:
            tried = None
            view = self._cluster.view
            if view is not None:
                member = view.members[view.primaries[partition]]
                connection = line.connections.get(member[0])
                if connection is not None and member[2]:
                    event = line.asked(connection, operation, arguments, self.timeout)
                    if type(event) is Value:
                        return event[0]
                    tried = member, event
            return line.carry(otherwise(tried))
        finally:
            self._give_back(line)

    def keep(self) -> Line:
        """Return a line for many calls of one thread; ``give_back`` has to follow."""
        line = self._taken()
        self._kept.add(line)
        return line

    def give_back(self, line: Line) -> None:
        """Take back a line that was kept."""
        self._kept.discard(line)
        self._give_back(line)

    def forget(self, line: Line) -> None:
        """End a line that was kept by who is no more there to give it back."""
        self._kept.discard(line)
        line.close()

    def _taken(self) -> Line:
        try:
            return self._free.pop()
        except IndexError:
            line = Line(self._cluster, self._environment)
            self._all.add(line)
            return line

    def _give_back(self, line: Line) -> None:
        self._free.append(line)
        if self._closed:
            self.close()

    def close(self) -> None:
        """End all connections; those in use end with their calls."""
        self._closed = True
        for line in list(self._kept):
            line.shut()
        while self._free:
            self._free.pop().close()

    def leave(self) -> None:
        """In the child of a fork: let go of all connections, and leave them to the parent."""
        self._closed = True
        for line in list(self._all):
            line.close()
