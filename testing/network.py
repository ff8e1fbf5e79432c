"""The seeded network of a simulated world: its hosts, and the faults of their connections.

Invariants:

- A host that is down hears nothing and says nothing: those who were connected to it are not told,
  and find a reset when they send to it after it came back.
- If a process went and its machine stayed, its system closes the connections: their other ends
  see an end, or a reset, as the seed has it.

Left out: a connection that gives up by itself behind a cut (TCP takes a quarter of an hour: put a
deadline around), and messages that are lost or doubled: a stream has neither, they come from who
connects once more.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Callable

import trio

from ..engine.system.environment import Address
from .streams import OPEN, Host, SimulatedListener, SimulatedStream
from .trace import Trace
from .ways import Ways

PORT_FIRST = 49_152
"""The first port for who does not choose one."""
CONNECT_S_MAX = 127.0
"""Seconds after which a system gives up if nobody answers."""


class SimulatedNetwork:
    """All hosts of a world and the ways between them."""

    def __init__(
        self, seed: int, trace: Trace, now: Callable[[], float], delay_s: float | None = None
    ) -> None:
        """``delay_s`` is how long everything is on its way; without it the seed decides."""
        self._trace = trace
        self._ways = Ways(random.Random(f"{seed}:network"), now, delay_s)
        self._hosts: dict[str, Host] = {}
        self._connections = 0
        self._port = PORT_FIRST

    def __repr__(self) -> str:
        return f"<SimulatedNetwork hosts={sorted(self._hosts)} cut={self.cuts}>"

    def join(self, name: str) -> Endpoint:
        """Return the network as the host of that name sees it, which is up from now on."""
        host = self._hosts.setdefault(name, Host(name))
        host.up = True
        return Endpoint(self, host)

    async def run(self) -> None:
        """Let arrive what is due, until cancelled."""
        await self._ways.run()

    # ---------------------------------------------------------------- faults

    @property
    def cuts(self) -> list[tuple[str, str]]:
        """The ways that are cut, sorted."""
        return self._ways.cuts

    def cut(self, source: str, target: str) -> None:
        """Let nothing arrive at ``target`` that ``source`` sends; the other way stays."""
        self._trace.note("cut", source, target)
        self._ways.cut((source, target))

    def heal(self) -> None:
        """Let all ways be open, and what they held up arrive."""
        self._trace.note("heal")
        for way in self.cuts:
            self._ways.heal(way)

    def reset(self, one: str, other: str) -> None:
        """Reset the connections between two hosts, as a box on the way does; both ends are told."""
        self._trace.note("reset", one, other)
        for stream in self._between(one, other) + self._between(other, one):
            stream.tell("reset", SimulatedStream.be_reset)

    def half_open(self, one: str, other: str) -> None:
        """Let ``one`` lose its connections to ``other``, which hears of it when it sends."""
        self._trace.note("half-open", one, other)
        for stream in self._between(one, other):
            stream.be_reset()

    def _between(self, one: str, other: str) -> list[SimulatedStream]:
        host = self._hosts.get(one)
        return [stream for stream in host.streams if stream.peer[0] == other] if host else []

    # ---------------------------------------------------------------- for the endpoints

    def free_port(self) -> int:
        """Return a port that nobody has had yet."""
        self._port += 1
        return self._port - 1

    def resets_at_end(self) -> bool:
        """Draw whether a process that ends has its connections reset."""
        return self._ways.rng.random() < 0.5

    def call(self, host: Host, address: Address) -> SimulatedStream:
        """Begin to connect; the answer is on its way."""
        target = self._hosts.get(address[0])
        if target is None:
            raise socket.gaierror(socket.EAI_NONAME, f"there is no host {address[0]!r}")
        self._connections += 1
        number, here = self._connections, (host.name, self.free_port())
        near = SimulatedStream(self._ways, self._trace, host, f"{number}>", here, address)
        far = SimulatedStream(self._ways, self._trace, target, f"{number}<", address, here)
        near.other, far.other = far, near
        host.streams[near] = None

        def called(end: SimulatedStream) -> None:
            listener = target.listeners.get(address[1])
            if listener is None:
                end.go()
                end.tell("reset", SimulatedStream.be_reset)
            elif listener.offer(end):
                end.tell("connected", SimulatedStream.be_connected)

        near.tell("call", called)
        return near


class Endpoint:
    """The network as one process on one host sees it."""

    def __init__(self, network: SimulatedNetwork, host: Host) -> None:
        self._network = network
        self._host = host
        self._left = False

    def __repr__(self) -> str:
        return f"<Endpoint {self._host.name}>"

    async def listen(self, address: Address) -> SimulatedListener:
        """Listen at a port of this host."""
        await trio.lowlevel.checkpoint()
        self._check()
        name, port = address[0], address[1] or self._network.free_port()
        if name != self._host.name:
            raise OSError(errno.EADDRNOTAVAIL, f"{name!r} is not this host, {self._host.name!r}")
        if port in self._host.listeners:
            raise OSError(errno.EADDRINUSE, f"somebody listens at port {port} already")
        return SimulatedListener(self._host, port)

    async def connect(self, address: Address) -> SimulatedStream:
        """Connect to a port of a host."""
        await trio.lowlevel.checkpoint()
        self._check()
        stream = self._network.call(self._host, address)
        try:
            with trio.fail_after(CONNECT_S_MAX):
                await stream.wait_connected()
            return stream
        except trio.TooSlowError:
            stream.close()
            raise TimeoutError(errno.ETIMEDOUT, f"{address} does not answer") from None
        except BaseException:
            stream.close()
            raise

    def leave(self, *, silent: bool) -> None:
        """Be gone, with all that this process had; ``silent`` if its machine went down."""
        self._left = True
        self._host.up = not silent
        for listener in list(self._host.listeners.values()):
            listener.go()
        resets = self._network.resets_at_end()
        for stream in list(self._host.streams):
            if stream.state == OPEN and not silent:
                if resets:
                    stream.tell("reset", SimulatedStream.be_reset)
                else:
                    stream.tell_end()
            stream.go()

    def _check(self) -> None:
        if self._left:
            raise OSError(errno.ENETDOWN, f"the process on {self._host.name} is gone")
