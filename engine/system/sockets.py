"""The real network: TCP and Unix sockets, by Trio's.

Invariants:

- What the system says is an ``OSError`` of its own kind; Trio's names for it do not leave here.
- Every socket that a call has made and does not return is closed.
- What is sent leaves at once, as Trio asks the system to, and a connection whose other end does not
  answer ends after ``SILENCE_S_MAX``, also if nothing is sent.
- A Unix socket is its owner's alone, mode 0600, before anybody can connect.

Left out: encryption, other limits of time (a caller puts a deadline around), and closing one
direction.
"""

from __future__ import annotations

import errno
import os
import socket as system_socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

import trio
from trio import SocketListener, SocketStream, socket

from .environment import Address, address_text

BACKLOG_MAX = 128
"""Connections that wait to be accepted."""
SILENCE_S_MAX = 20
"""Seconds without an answer from the other machine after which a connection is over."""


class RealNetwork:
    """TCP and Unix sockets on this machine."""

    async def listen(self, address: Address) -> RealListener:
        """Listen at the first address that a host's name stands for, or at a path.

        A socket that a dead process has left at the path is replaced; whoever listens there is for
        the caller to have ruled out.
        """
        if _is_path(address):
            return await _listen_at_path(address[0])
        found = await socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await listening.bind(place)
            listening.listen(BACKLOG_MAX)
            return RealListener(SocketListener(listening))
        except BaseException as error:
            listening.close()
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, address_text(address)) from None
            raise

    async def connect(self, address: Address) -> RealStream:
        """Connect to the first address of a host that answers, or at a path."""
        try:
            if _is_path(address):
                stream = await trio.open_unix_socket(address[0])
            else:
                stream = await trio.open_tcp_stream(*address)
        except OSError as error:
            raise _first_attempt(error) from None
        try:
            return RealStream(stream)
        except OSError:
            stream.socket.close()
            raise


def _is_path(address: Address) -> bool:
    """Tell whether an address is the path of a Unix socket."""
    return address[0].startswith("/")


async def _listen_at_path(path: str) -> RealListener:
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            if _answers(path):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
            os.unlink(path)  # whoever listened there has ended
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(BACKLOG_MAX)
        return RealListener(SocketListener(listening))
    except BaseException:
        listening.close()
        raise


def _answers(path: str) -> bool:
    """Tell whether somebody listens at a Unix socket."""
    with system_socket.socket(system_socket.AF_UNIX, system_socket.SOCK_STREAM) as attempt:
        attempt.setblocking(False)
        return attempt.connect_ex(path) in (0, errno.EAGAIN)  # the latter: its queue is full


def _place_of(name: object) -> Address:
    """Return an address as the system tells it: a tuple, or the path of a Unix socket."""
    return (name, 0) if isinstance(name, str) else cast("tuple[str, int]", name)[:2]


class RealListener:
    """A port at which connections arrive."""

    def __init__(self, listener: SocketListener) -> None:
        self._listener = listener
        self.address: Address = _place_of(listener.socket.getsockname())
        """Where it listens."""

    def __repr__(self) -> str:
        return f"<RealListener {self.address}>"

    async def accept(self) -> RealStream:
        """Wait for the next connection."""
        while True:
            stream = await self._listener.accept()
            try:
                return RealStream(stream)
            except OSError:  # it has gone already
                stream.socket.close()

    def close(self) -> None:
        """Take no more connections; closing twice is fine."""
        if _is_path(self.address) and self._listener.socket.fileno() >= 0:
            with suppress(OSError):
                os.unlink(self.address[0])
        self._listener.socket.close()


class RealStream:
    """One end of a connection."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        if stream.socket.family != socket.AF_UNIX:
            _limit_silence(stream)
        self._number = stream.socket.fileno()
        """That of the socket; negative once it is closed."""
        self.peer: Address = _place_of(stream.socket.getpeername())
        """The address of the other end."""

    def __repr__(self) -> str:
        return f"<RealStream to {self.peer}>"

    async def send(self, data: bytes) -> None:
        """Send all of ``data``; waits while the peer does not keep up."""
        with _system_errors():
            await self._stream.send_all(data)

    def send_nowait(self, data: bytes) -> int:
        """Send what can be taken at once; return how many bytes that is, maybe none."""
        try:
            return os.write(self._open(), data)
        except BlockingIOError:
            return 0

    async def receive(self, bytes_max: int = 65_536) -> bytes:
        """Wait for some bytes; empty if the peer has closed its end.

        As nearly always nothing is there yet, it waits first: Trio's own way tries first, and goes
        round the loop once more if something was there.
        """
        if bytes_max < 1:
            raise ValueError("bytes_max must be 1 at least")
        while True:
            await trio.lowlevel.wait_readable(self._open())
            try:
                return os.read(self._open(), bytes_max)
            except BlockingIOError:
                continue

    def close(self) -> None:
        """Close this end, without waiting; closing twice is fine."""
        self._number = -1
        self._stream.socket.close()

    def _open(self) -> int:
        """Return the number of the open socket; ``ClosedResourceError`` if it is closed."""
        if self._number < 0:
            raise trio.ClosedResourceError
        return self._number


def _limit_silence(stream: SocketStream) -> None:
    """End the connection if the other machine is gone, which TCP finds out in hours by default."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S_MAX // 2)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S_MAX * 1000)


def _first_attempt(error: OSError) -> OSError:
    """Return what the system said about the first address that was tried."""
    cause = error.__cause__
    attempts = cause.exceptions if isinstance(cause, ExceptionGroup) else (cause,)
    return attempts[0] if isinstance(attempts[0], OSError) else error


@contextmanager
def _system_errors() -> Iterator[None]:
    """Raise what the system said instead of Trio's name for it."""
    try:
        yield
    except trio.BrokenResourceError as error:
        raise (error.__cause__ or ConnectionResetError(str(error))) from None
