"""Clients of a simulated cluster: what users have, on machines of their own in its world.

What a client decides is the code of production (``engine.client``); only its connections are made
here, as streams of the world instead of sockets and threads.

Left out: what is asked of whom (``engine.client.routing``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from ..engine.aio.running import running_loop
from ..engine.client.copies import ReadFrom
from ..engine.client.dialogue import Dialogue, NotWelcomeError
from ..engine.client.lines import CONNECT_S_MAX
from ..engine.client.links import TICK_S, Burst, Link, LoopLinks
from ..engine.client.places import ClusterPlace, host_and_port
from ..engine.client.tasks import ClusterLoopSession, ClusterTasksDatabase
from ..engine.net.frames import FrameError
from ..engine.store.handles import open_handles
from ..engine.system.environment import Stream
from .node import Node
from .world import World

MachineWork = Callable[[], Awaitable[object]]


class ClientMachine:
    """A machine in a world, and the tasks that run on it; started when it is made."""

    def __init__(self, world: World, name: str) -> None:
        self._waiting: list[MachineWork] = []
        self._nursery: trio.Nursery | None = None
        self._databases: list[ClusterLoopSession] = []
        self.node = world.add(name, self._program)
        self.node.start()

    def __repr__(self) -> str:
        return f"<ClientMachine {self.node.name}>"

    def start_soon(self, job: MachineWork) -> None:
        """Run a task on this machine; it ends with it."""
        if self._nursery is None:
            self._waiting.append(job)
        else:
            self._nursery.start_soon(job)

    def database(
        self, addresses: Sequence[str], timeout: float, read_from: ReadFrom = "primary"
    ) -> ClusterTasksDatabase:
        """Return a cluster as a user of this machine has it: ``tidelog.aio``."""
        place = ClusterPlace("tidelog://" + ",".join(addresses), tuple(addresses))
        environment = self.node.environment
        session = ClusterLoopSession(place, environment, running_loop(), timeout, (), read_from)
        open_handles.discard(session)  # it ends with its world, not with this process
        session.links = _StreamLinks(session, self, timeout)
        self._databases.append(session)
        return ClusterTasksDatabase(session)

    def leave(self) -> None:
        """Let go of all databases, behind the end of the world."""
        for session in self._databases:
            session.close()

    async def _program(self, _node: Node) -> None:
        async with trio.open_nursery() as self._nursery:
            while self._waiting:
                self._nursery.start_soon(self._waiting.pop(0))
            await trio.sleep_forever()


class _StreamLink(Link):
    """A connection that is a stream of the world."""

    def __init__(
        self,
        session: ClusterLoopSession,
        machine: ClientMachine,
        address: str,
        dialogue: Dialogue,
        left: float,
        burst: Burst,
    ) -> None:
        self._machine = machine
        self._scope = trio.CancelScope()
        self._outgoing: list[bytes] = []
        self._more = trio.Event()
        super().__init__(session.loop, session.now, address, dialogue, left, burst)

    def _begin(self) -> None:
        self._machine.start_soon(self._live_in_world)

    async def _live_in_world(self) -> None:
        network = self._machine.node.environment.network
        stream: Stream | None = None
        reason = "the member has closed the connection"
        try:
            with self._scope:
                with trio.fail_after(CONNECT_S_MAX):
                    stream = await network.connect(host_and_port(self._address))
                    await stream.send(self._dialogue.introduction())
                    while not self._dialogue.welcome:
                        self._dialogue.feed(await self._heard(stream))
                self.made.come()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._say, stream)
                    nursery.start_soon(self._look_on)
                    while True:
                        self._arrived(await self._heard(stream))
        except* (OSError, FrameError, NotWelcomeError, trio.TooSlowError) as errors:
            reason = str(_first(errors)) or "no answer in time"
        finally:  # the world may end, too
            if stream is not None:
                stream.close()
            self._end(reason)

    async def _heard(self, stream: Stream) -> bytes:
        data = await stream.receive(self._dialogue.bytes_max)
        if not data:
            raise ConnectionResetError("the member has closed the connection")
        return data

    async def _say(self, stream: Stream) -> None:
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._outgoing:
                await stream.send(self._outgoing.pop(0))

    async def _look_on(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self._look()

    def _write(self, data: bytes) -> None:
        self._outgoing.append(data)
        self._more.set()

    def close(self, reason: str = "the connection was closed") -> None:
        """End it; who waits for an answer hears so."""
        self.reason = self.reason or reason
        self._scope.cancel()

    def leave(self) -> None:
        """Let go of it."""
        self.close()


class _StreamLinks(LoopLinks):
    """The connections of one client in a world."""

    def __init__(self, session: ClusterLoopSession, machine: ClientMachine, timeout: float) -> None:
        environment = machine.node.environment
        super().__init__(session.cluster, environment, session.loop, session.open_state, timeout)
        self._session = session
        self._machine = machine

    def _begun(self, address: str, dialogue: Dialogue, left: float) -> Link:
        return _StreamLink(self._session, self._machine, address, dialogue, left, self._burst)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
